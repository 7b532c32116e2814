"""MkDocs hook: what differs between the site and the files of a clone.

The architecture, the guide of contributors and the changelog are files at the root of the repository; a link to them, or to a source,
which a reader of the clone can follow, leads to the site's page or becomes plain words. `--quiet` hides what MkDocs tells, not its warnings,
which `--strict` could not count then.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = {
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"\[([^\]\n]*)\]\(([^()\s]+)\)")


def on_startup(*, command: str, dirty: bool) -> None:
    """Let warnings through: `--quiet` drops them before they are counted, and a strict build would pass."""
    logger = logging.getLogger("mkdocs")
    logger.setLevel(min(logger.level, logging.WARNING))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository's root to the site."""
    root = Path(config.config_file_path).parent
    for page, name in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between docs/ and the rest of the repository to where the site has them; the first page is as wide as the window."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    name = page.file.src_uri
    if name == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # the landing page has its own doors
    here = root if name in ROOT_PAGES else (docs / name).parent
    pages = {root / file: uri for uri, file in ROOT_PAGES.items()}

    def led(found: re.Match[str]) -> str:
        label, link = found.groups()
        path, mark, anchor = link.partition("#")
        target = Path(os.path.normpath(here / path))
        if not path or not target.exists() or (target.is_relative_to(docs) and here != root):
            return found[0]
        if target.is_relative_to(docs):
            uri = target.relative_to(docs).as_posix()
        elif target in pages:
            uri = pages[target]
        else:
            return label
        return f"[{label}]({os.path.relpath(uri, os.path.dirname(name) or '.')}{mark}{anchor})"

    return LINK.sub(led, markdown)
