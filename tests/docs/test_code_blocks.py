"""The documentation does what it says: its Python runs, its `jali` commands parse."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run_program

from jali.cli.main import make_parser

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tools" / "run_doc_blocks.py"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BASH_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_blocks(page: Path) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, RUNNER, page], status=None, env={**os.environ, "MPLBACKEND": "Agg"})


def jali_commands() -> list[str]:
    found = []
    for page in PAGES:
        for block in BASH_BLOCK.findall(page.read_text()):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.split("#")[0].strip() for line in lines if line.startswith("jali ")]
    return found


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda p: p.name)
def test_python_of_the_page_runs(page: Path) -> None:
    done = run_blocks(page)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", jali_commands())
def test_jali_command_of_the_documentation_parses(command: str) -> None:
    words = shlex.split(command)[1:]
    parser = make_parser(words[0])
    try:
        parser.parse_args(words)
    except SystemExit as stopped:  # argparse ends the process on a mistake, and after --help and --version
        assert stopped.code == 0, f"jali does not understand: {command}"  # noqa: PT017
    assert isinstance(parser, argparse.ArgumentParser)


def test_failing_block_is_reported_with_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\ny = x + 1\nassert y == 3\n```\n")
    done = run_blocks(page)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"{page}:11: AssertionError")


def test_blocks_of_a_page_share_one_namespace_and_other_languages_do_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shared = "```python\nx = 41\n```\n```bash\nexit 1\n```\n"
    indented = "- item\n\n    ```python\n    assert x + 1 == 42\n    ```\n"
    page.write_text(shared + indented)
    done = run_blocks(page)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{page}: 2 blocks\n"


def test_unclosed_fence_is_an_error_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n")
    done = run_blocks(page)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{page}:3: ")
