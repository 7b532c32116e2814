"""What notebooks show of an object: a table of facts in HTML, and long text folded behind its heading."""

from __future__ import annotations

import html
from collections.abc import Mapping


def facts(title: str, rows: Mapping[str, object], folded: Mapping[str, str] | None = None) -> str:
    """A table of names and values under a title; `folded` texts, by their headings, are opened by a click."""
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    texts = "".join(
        f"<details><summary>{html.escape(heading)}</summary><pre>{html.escape(text)}</pre></details>"
        for heading, text in (folded or {}).items()
    )
    return f"<div><b>{html.escape(title)}</b><table>{cells}</table>{texts}</div>"
