"""Execute the code blocks of Markdown pages, in order, each page in an empty temporary directory.

- `python`: runs, in one namespace per page. Code is compiled under the page's own name and line numbers, so that tracebacks, and the
  errors of site functions, point into the page. What cannot run here (devices, PyTorch) is fenced as `py`.
- Any block with `title="NAME"` is the file of that name, which is written instead.
- `bash`: those commands run that cost little and start no ranks: `NOT_RUN` says which do not, and why. They must end with status 0.
  What a reader has before (configurations, the folder of a run, scripts of examples/) is made where a command names it; runs are
  those of a small lattice.
- `text`: what the block before it printed has this form: words are the same, numbers may be others. One whose lines are paths lists
  files that are there.

Prints `page: n blocks, m commands`; the first failing block ends with `page:line: error` and status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,})\s*(?P<language>[\w+-]*)(?P<words>[^`\n]*)$")
TITLE = re.compile(r'\btitle="([^"]+)"')
# By the first that fits; what fits none runs.
NOT_RUN = (
    (re.compile(r"(?!jali |python )"), "another program"),
    (
        re.compile(r"python (?:benchmarks|tools)/|jali (?:bench|machine|profile|tune collectives) "),
        "measures",
    ),
    (
        re.compile(r".*(?:raw\.milc|tree\.json|here\.toml)|jali tune \w+ \w"),
        "reads what only measuring or others make",
    ),
    (re.compile(r"jali example \w"), "tests/examples runs it"),
    (
        re.compile(r"jali run examples/(?!su3\.toml)"),
        "compiles for long; tests/examples checks its parameters",
    ),
    (re.compile(r"jali simulate .*--scaling"), "takes seconds"),
    (re.compile(r"jali (?:plan|simulate|explain) "), ""),
    (re.compile(r".* -n \d"), "starts ranks"),
    (re.compile(r".*--device "), "needs a device, or a run on one"),
)
SMALL = ("extents=4,4,4,4", "thermalisation=50", "sweeps=50", "save_every=50")


# Options whose next word is their value.
WITH_VALUE = {
    "--output",
    "--resume",
    "--set",
    "--device",
    "--lattice",
    "--group",
    "--precision",
    "--rows",
    "--check",
}


class LineError(Exception):
    """What is wrong with a page; begins with the number of its line."""


class UnclosedFenceError(Exception):
    """A code fence that never ends; holds the number of its line."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the name of the file that it is or "", the number of its first line, its lines."""

    language: str
    title: str
    first: int
    text: str


def blocks(text: str) -> list[Block]:
    """Every fenced block of a page; UnclosedFenceError if one never ends."""
    found, lines, number = [], text.splitlines(), 0
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
        title = TITLE.search(fence["words"])
        body = textwrap.dedent("\n".join(lines[first:number]))
        found.append(Block(fence["language"], title[1] if title else "", first + 1, body))
        number += 1
    return found


def commands(block: Block) -> list[tuple[int, str]]:
    """(number of its first line, command) of a block of shell: lines joined, comments left out."""
    found, held, first = [], "", 0
    for number, line in enumerate(block.text.splitlines(), start=block.first):
        first = first if held else number
        held += re.sub(r"(?:^|\s+)#.*$", "", line)
        if held.endswith("\\"):
            held = held[:-1]
            continue
        if held.strip():
            found.append((first, held.strip()))
        held = ""
    return found


def why_not_run(command: str) -> str:
    """Why a command of a page does not run here; "" if it does."""
    return next((why for pattern, why in NOT_RUN if pattern.match(command)), "")


def run_command(command: str) -> str:
    """Run it, and make what a reader would have before; returns what it printed. Raises RuntimeError, with that, where it fails."""
    words = shlex.split(command)
    if words[0] == "python":
        make_script(words[1])
        return python(*words[1:])
    for name in files_that_are_read(words):
        if not Path(name).exists():
            make_what_a_reader_has(Path(name))
    return jali(*words[1:], *(small() if words[1] == "run" and "--output" in words else ()))


def python(*words: str) -> str:
    """Run a script in this process, where what it imports may be already; what it printed."""
    said, given = io.StringIO(), sys.argv
    sys.argv = list(words)
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = given
    return said.getvalue()


def jali(*words: str) -> str:
    """Run a command of jali in this process; what it printed. Raises RuntimeError, with that, where it fails."""
    from jali.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(list(words))
    if status:
        raise RuntimeError(f"`jali {shlex.join(words)}` ended with {status}:\n{said.getvalue()}")
    return said.getvalue()


def small() -> list[str]:
    """Options of `jali run` for a run that takes a moment and saves configurations."""
    return [word for setting in SMALL for word in ("--set", setting)]


def files_that_are_read(words: list[str]) -> list[str]:
    """Those of the words of a command that name what it reads."""
    alone = [
        word
        for before, word in itertools.pairwise(words[1:])
        if not word.startswith("-") and (before not in WITH_VALUE or before == "--resume")
    ]
    first = list(itertools.takewhile(lambda word: not word.startswith("-"), words[2:]))
    of_quarks = {"spectrum": first, "invert": first}
    return ({"run": alone[:1], "measure": alone, "convert": alone[:1]} | of_quarks).get(words[1], [])


def make_what_a_reader_has(path: Path) -> None:
    """The file or folder that a command reads: a configuration in the format of its name, parameters, or a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".toml":
        shutil.copy(ROOT / path if (ROOT / path).exists() else ROOT / "examples" / "su3.toml", path)
    elif path.suffix:
        from jali import Lattice
        from jali.gauge import SU, GaugeField

        GaugeField(Lattice(4, 4, 4, 4), SU(3)).hot_start(seed=1).save(path)
    else:
        jali("run", str(ROOT / "examples" / "su3.toml"), "--output", str(path), *small())


def make_script(name: str) -> None:
    """A script of examples/ beside the reader, if no block made one of this name."""
    found = next((ROOT / "examples").rglob(name), None)
    if found is not None and not Path(name).exists():
        shutil.copy(found, name)


def check_output(shown: str, printed: str) -> None:
    """Raises AssertionError unless the lines that a page shows have the form of those that were printed; `...` stands for any lines."""
    parts = [form(part) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)]
    rest = form(printed)
    for part in parts:
        before, found, rest = rest.partition(part)
        if not found or (before and part is parts[0]):
            raise AssertionError(f"the page shows\n{shown}\nwhat was printed is\n{printed}")


def form(text: str) -> str:
    """Text without its numbers, names of files and spaces."""
    text = re.sub(r"\S+\.(?:py|md):\d+", "FILE", text)
    return " ".join(re.sub(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?", "#", text).split())


def run_page(page: Path) -> tuple[int, int]:
    """Run the blocks of one page; returns how many blocks of Python and how many commands ran. Raises what a block raises."""
    namespace: dict[str, object] = {"__name__": "__main__", "__file__": str(page)}
    python = shell = 0
    printed = ""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(page.read_text()):
            if block.title:
                Path(block.title).write_text(block.text + "\n")
            elif block.language == "python":
                # Blank lines in front make line numbers those of the page.
                code = compile("\n" * (block.first - 1) + block.text + "\n", str(page), "exec")
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(code, namespace)
                printed, python = said.getvalue(), python + 1
            elif block.language == "bash":
                printed = ""
                for line, command in commands(block):
                    if not why_not_run(command):
                        with at_line(line):
                            printed += run_command(command)
                        shell += 1
            elif block.language == "text":
                with at_line(block.first):
                    check_text(block.text, printed)
                printed = ""
            else:
                printed = ""
    return python, shell


def check_text(text: str, printed: str) -> None:
    """Raises AssertionError where the page shows files that are not there, or something else than was printed."""
    lines = text.splitlines()
    if all(re.fullmatch(r"(?:[\w-]+/)+[\w.-]+", line) for line in lines):
        missing = [line for line in lines if not Path(line).exists()]
        assert not missing, f"there is no {', '.join(missing)}"
    elif printed:
        check_output(text, printed)


@contextlib.contextmanager
def at_line(line: int) -> Iterator[None]:
    """An error inside is one of this line of the page."""
    try:
        yield
    except Exception as error:
        raise LineError(f"{line}: {type(error).__name__}: {error}") from error


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
            python, shell = run_page(path)
        except UnclosedFenceError as error:
            print(f"{page}:{error}: this code fence is never closed", file=sys.stderr)
            return 1
        except LineError as error:
            print(f"{page}:{error}", file=sys.stderr)
            return 1
        except Exception as error:
            traceback.print_exc()
            print(f"{page}:{line_in(path, error)}: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        print(f"{page}: {python} blocks, {shell} commands")
    return 0


if __name__ == "__main__":
    sys.exit(main())
