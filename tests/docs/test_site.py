"""A site with a fault is not built: every kind of warning fails `mkdocs build --strict --quiet`, which `make docs` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("mkdocs", reason="the site is built by `make docs`, which installs MkDocs")
pytest.importorskip("mkdocstrings_handlers.python")

ROOT = Path(__file__).resolve().parents[2]
# As the real site in everything but the pages.
SETTINGS = f"""\
INHERIT: {ROOT}/mkdocs.yml
docs_dir: docs
site_dir: site
hooks: [{ROOT}/tools/docs_hook.py]
nav: [index.md, architecture.md, contributing.md, changelog.md]
plugins:
  mkdocstrings:
    handlers: {{python: {{paths: [src]}}}}
"""
GOOD_PAGE = """\
# Page

[here](#page) [how](../ARCHITECTURE.md#how) [`well`](../src/well.py)

::: well
"""
GOOD_MODULE = '''\
"""Well."""

def said(n: int) -> int:
    """Says it.

    Args:
        n: a number.
    """
    return n
'''


def build(project: Path, page: str, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    for folder in ("docs", "src"):
        (project / folder).mkdir()
    (project / "mkdocs.yml").write_text(SETTINGS)
    (project / "ARCHITECTURE.md").write_text("# Architecture\n\n## How\n\n[a page](docs/index.md#page)\n")
    (project / "CONTRIBUTING.md").write_text("# Contributing\n")
    (project / "CHANGELOG.md").write_text("# Changes\n")
    (project / "docs" / "index.md").write_text(page)
    (project / "src" / "well.py").write_text(module)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *words]
    return run_program(command, cwd=project, env=environment, status=None)


@pytest.mark.full
def test_site_without_a_fault_is_built_and_its_links_lead_to_its_pages(tmp_path: Path) -> None:
    done = build(tmp_path, GOOD_PAGE, GOOD_MODULE, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site" / "index.html").read_text()
    assert 'href="architecture.html#how"' in page
    assert 'href="index.html#page"' in (tmp_path / "site" / "architecture.html").read_text()
    assert "<code>well</code></p>" in page  # a source is no page of the site


def test_every_kind_of_warning_is_shown_and_fails_the_build_although_it_is_quiet(tmp_path: Path) -> None:
    page = GOOD_PAGE + "\n[missing](none.md) [anchor](#none) [absolute](/none.html)\n"
    module = GOOD_MODULE.replace("n: a", "n, m: a").replace("Says it.", "Says [it][none.at.all].")
    done = build(tmp_path, page, module, "--quiet")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for word in ("none.md", "#none", "/none.html", "'n, m'", "none.at.all"):
        assert any(word in line for line in warnings), done.stderr
