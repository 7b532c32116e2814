"""Pages of reports: self-contained HTML with inline SVG, no scripts, nothing fetched; the same bytes for the same content."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from jali.cli.report_plots import STYLE

_CSS = """
:root { color-scheme: light; }
body { margin: 0; overflow-wrap: anywhere; background: #f5f7fa; color: #243b53; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 26px; font-weight: 600; margin: 0 0 2px; }
h2 { font-size: 16px; font-weight: 600; margin: 0 0 12px; }
.sub { color: #627d98; margin: 0 0 24px; }
.card { background: #fff; border: 1px solid #e4e9ee; border-radius: 10px; padding: 18px 20px; }
.card { margin: 0 0 18px; }
.result { display: flex; flex-wrap: wrap; gap: 10px 44px; align-items: baseline; }
.result .value { font-size: 30px; font-weight: 600; }
.result .label { color: #627d98; display: block; font-size: 13px; }
.result .small { font-size: 19px; font-weight: 500; }
.good { color: #27745a; } .bad { color: #b3261e; }
.note { margin: 12px 0 0; padding: 8px 12px; background: #fff8ec; border-left: 3px solid #e0a03c; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 18px; }
.pair .whole { grid-column: 1 / -1; }
svg, img { width: 100%; max-width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: #627d98; font-size: 13px; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid #eef1f4; white-space: nowrap; }
pre { font-size: 12.5px; overflow-x: auto; margin: 12px 0 0; }
summary { cursor: pointer; font-weight: 600; }
@media (max-width: 900px) { .pair { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 520px) { main { padding: 20px 10px 40px; } .card { padding: 14px 12px; } }
"""


def page(title: str, subtitle: str, body: str) -> str:
    """A page; `title` and `subtitle` are texts, `body` is HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_CSS}</style></head>
<body><main>
<h1>{html.escape(title)}</h1>
<p class="sub">{html.escape(subtitle)}</p>
{body}
</main></body></html>
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in a box of its own, which scrolls where the screen is narrow."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def inline(figure: Figure, name: str) -> str:
    """The figure as an <svg> element; ``name`` keeps element ids of several figures apart."""
    buffer = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
