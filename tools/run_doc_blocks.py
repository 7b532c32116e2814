"""Execute the Python code blocks of Markdown pages, in order, in one namespace per page.

Every block fenced as ```python runs; what should not run is fenced as something else (`text`, `bash`,
`toml`). Each page runs in an empty temporary directory. Code is compiled under the page's own name and line
numbers, so that tracebacks, and the errors of site functions, point into the page. Prints `page: n blocks`;
the first failing block ends with `page:line: error` and status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,})\s*(?P<language>[\w+-]*)")


class UnclosedFenceError(Exception):
    """A code fence that never ends; holds the number of its line."""


def python_blocks(text: str) -> list[tuple[int, str]]:
    """(number of its first line, code) of every Python block; UnclosedFenceError if one never ends."""
    blocks, lines, number = [], text.splitlines(), 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        number += 1
        if not fence:
            continue
        first = number
        while number < len(lines) and lines[number].strip() != fence["ticks"]:
            number += 1
        if number == len(lines):
            raise UnclosedFenceError(first)
        if fence["language"] == "python":
            blocks.append((first + 1, textwrap.dedent("\n".join(lines[first:number]))))
        number += 1
    return blocks


def run_page(page: Path) -> int:
    """Run the blocks of one page; returns how many there were. Raises what a block raises."""
    blocks = python_blocks(page.read_text())
    namespace: dict[str, object] = {"__name__": "__main__", "__file__": str(page)}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for first, code in blocks:
            # Blank lines in front make line numbers those of the page.
            exec(compile("\n" * (first - 1) + code + "\n", str(page), "exec"), namespace)
    return len(blocks)


def line_in(page: Path, error: BaseException) -> int:
    """The last line of the page that the error passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(page):
        return error.lineno or 0
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(page)]
    return (lines[-1] if lines else 0) or 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    os.environ.setdefault("MPLBACKEND", "Agg")
    for page in parser.parse_args().pages:
        path = page.resolve()
        try:
            count = run_page(path)
        except UnclosedFenceError as error:
            print(f"{page}:{error}: this code fence is never closed", file=sys.stderr)
            return 1
        except Exception as error:
            traceback.print_exc()
            print(f"{page}:{line_in(path, error)}: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        print(f"{page}: {count} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
