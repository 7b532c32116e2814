"""Applies a recipe of docs/recipes to a fresh checkout and runs its tests: `python tools/recipes.py operation`.

A recipe is a page, `docs/recipes/NAME.md`. Its steps are code blocks under a line that says where they go: "New file `path`:",
"At the end of `path`:" or "Before the line `text` of `path`:", where exactly one line has this text, white space aside. The checkout
is made of the files that git does not ignore, with the core of this Python; where a step changes the core, the core of the checkout
is built instead. The tests of a recipe are its new files under `tests/`. Nothing in this checkout changes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copy2
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "docs/recipes"
STEP = re.compile(
    r"^(New file|At the end of|Before the line `([^`\n]+)` of) `([^`\n]+)`:\n\n```\w*\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Runs pytest on the checkout in argv[1], whatever jali is installed.
RUN = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable")]
sys.path.insert(0, sys.argv[1] + "/src")
import jali, pytest
assert jali.__file__.startswith(sys.argv[1]), jali.__file__
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


class Step(NamedTuple):
    """One change: a file, whether it is new, the text that comes into it, and the line before which it comes, if not at the end."""

    path: str
    new: bool
    text: str
    before: str = ""

    def apply(self, found: str) -> str:
        """What a file becomes that holds `found`. Raises SystemExit where the line is not there once."""
        if self.new:
            return self.text
        if not self.before:
            return f"{found}\n\n{self.text}"
        lines = found.splitlines(keepends=True)
        found_at = [n for n, line in enumerate(lines) if line.strip() == self.before]
        if len(found_at) != 1:
            sys.exit(f"{FOLDER}: {self.path} has the line {self.before!r} {len(found_at)} times, not once")
        return "".join([*lines[: found_at[0]], self.text, *lines[found_at[0] :]])


def recipes(root: Path = ROOT) -> dict[str, list[Step]]:
    """The steps of each recipe of a checkout, by name."""
    return {page.stem: steps(page.read_text()) for page in sorted((root / FOLDER).glob("*.md"))}


def steps(page: str) -> list[Step]:
    """The steps of a page, in order."""
    return [Step(path, how == "New file", text, before) for how, before, path, text in STEP.findall(page)]


def changes_core(steps: list[Step]) -> bool:
    """Whether a recipe has to be built."""
    return any(step.path.startswith("core/") for step in steps)


def check_out(folder: Path, with_core: bool = False) -> None:
    """Copies what git does not ignore of this checkout, as it is now, and the built core or its sources."""
    from jali import _core

    wanted = ["src", "tests", "pyproject.toml", *(["core", "CMakeLists.txt"] if with_core else [])]
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard", *wanted],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy2(ROOT / name, folder / name)
    if with_core:
        return
    core = Path(str(_core.__file__))
    copy2(core, folder / "src" / "jali" / core.name)


def apply(steps: list[Step], folder: Path) -> list[str]:
    """Makes the changes of a recipe; returns its tests. Raises SystemExit for a step that does not fit."""
    for step in steps:
        path = folder / step.path
        if path.exists() == step.new:
            sys.exit(f"{FOLDER}: {step.path} {'is there already' if step.new else 'does not exist'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.apply("" if step.new else path.read_text()))
    return [step.path for step in steps if step.new and step.path.startswith("tests/")]


def build(folder: Path) -> None:
    """Builds the core of a checkout into its package, without optimisation. Raises SystemExit where that fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    made = folder / "build"
    commands: tuple[list[str | Path], ...] = (
        [
            "cmake",
            "-S",
            folder,
            "-B",
            made,
            "-DCMAKE_BUILD_TYPE=Debug",
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        ["cmake", "--build", made, "--parallel", str(len(os.sched_getaffinity(0)))],
        ["cmake", "--install", made, "--component", "python", "--prefix", folder / "src"],
    )
    for command in commands:
        done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(
                f"{FOLDER}: the core with the recipe does not build:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
            )


def main() -> int:
    """Applies the recipe that is named and returns the status of its tests."""
    known = recipes()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=sorted(known))
    name = parser.parse_args().name
    with tempfile.TemporaryDirectory(prefix="jali-recipe-") as temporary:
        folder = Path(temporary).resolve()
        check_out(folder, changes_core(known[name]))
        tests = apply(known[name], folder)
        if changes_core(known[name]):
            build(folder)
        if not tests:
            sys.exit(f"{FOLDER}/{name}.md has no new file under tests/")
        return subprocess.run(
            [sys.executable, "-c", RUN, str(folder), *tests], cwd=folder, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
