"""Run the tests that are nearest to what has changed, for a minute: `python tools/quick_tests.py -- -x`.

What has changed is what differs from where this branch left `main` (on `main`: from the commit before), together with the working
tree. Changed tests come first, then tests with the name of a changed file, then the folders that mirror a changed folder
(`FOLDERS` where they are not called the same). What is picked is printed with its reason. When the time is over no further test
begins, and what is left is said: `make test` runs all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests of folders and files, by the longest path that fits; else src/jali/NAME has tests/NAME, and so have others.
FOLDERS = {
    "src/jali/codegen": ("codegen", "language"),
    "src/jali/lattice": ("lattice", "language", "any_ranks"),
    "src/jali/comm": ("comm", "collective"),
    "src/jali/planner": ("collective",),
    "src/jali/torch": ("pytorch",),
    "src/jali/vectors": ("solvers",),
    "src/jali/array_namespaces.py": ("arrays", "fft"),
    "src/jali/machines": ("collective",),
    "src/jali/devices.py": ("gpu/device",),
    "src/jali/vendors.py": ("gpu/device",),
    "src/jali/files.py": ("io", "cli"),
    "src/jali/__init__.py": ("test_import.py",),
    "src/jali": ("cli",),
    "core/bind": ("core",),
    "core/composition": ("collective",),
    "core/planning": ("collective",),
    "core/simulation": ("collective",),
    "core/proof": ("collective", "gpu/proof"),
    "core/running": ("collective", "gpu/running"),
    "core/device_transports": ("gpu/device_transports",),
    "core/device": ("gpu/device",),
    "core/halo": ("core", "any_ranks", "gpu/halo"),
    "core/schedule": ("core", "collective"),
    "core/sum": ("core",),
    "core/vectors": ("core", "solvers"),
    "core/messaging": ("comm",),
    "core/peers": ("gpu/peers",),
    "CMakeLists.txt": ("cpp", "core"),
    "Makefile": ("tools",),
    ".ci": ("tools",),
    "pyproject.toml": ("tools",),
    "benchmarks": ("docs/test_names.py",),
}


def git(root: Path, *words: str) -> str | None:
    """What git prints; None where it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def base_of(root: Path) -> str | None:
    """The commit with which to compare."""
    head = git(root, "rev-parse", "HEAD")
    for main in ("main", "origin/main"):
        found = git(root, "merge-base", "HEAD", main)
        if found is not None and found != head:
            return found.strip()
    before = git(root, "rev-parse", "--verify", "--quiet", "HEAD~1")
    return before.strip() if before else None


def changed_files(root: Path, base: str) -> list[str]:
    """What differs from a commit, and files that git does not know yet."""
    names = git(root, "diff", "--name-only", "-z", base) or ""
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    return sorted({name for name in (names + new).split("\0") if name})


def picked(files: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Tests (files and folders, nearest first) and the changed file that each is picked for."""
    files = list(files)
    own: dict[str, str] = {}
    named: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in files:
        path = Path(name)
        if path.parts[0] == "tests":
            if not (root / path).exists():
                continue
            if path.name.startswith("test_"):
                own[name] = "it changed"
            elif len(path.parts) > 2:
                folders.setdefault("/".join(path.parts[:2]), name)
            continue
        for folder in folders_of(name):
            if not (root / "tests" / folder).exists():
                continue
            near = sorted((root / "tests" / folder).glob(f"test_{path.stem}*.py"))
            for test in near:
                named.setdefault(test.relative_to(root).as_posix(), name)
            folders.setdefault(f"tests/{folder}", name)
    return own | {k: v for k, v in named.items() if k not in own} | folders


def folders_of(name: str) -> tuple[str, ...]:
    """What tests a file, relative to `tests`."""
    path = Path(name)
    # the package itself is the last resort: a folder in it has tests of its name first
    fitting = [key for key in FOLDERS if name == key or name.startswith(f"{key}/")]
    best = max(fitting, key=len, default=None)
    parts = path.parts[2:] if name.startswith("src/jali/") else path.parts
    if best == "src/jali" and len(parts) > 1:
        best = None
    if best is not None:
        return FOLDERS[best]
    return (Path(parts[0]).stem,) if parts else ()


class Budget:
    """Lets no test begin when the time is over."""

    def __init__(self, seconds: float) -> None:
        self.end, self.seconds, self.left = time.monotonic() + seconds, seconds, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() < self.end:
            return None
        self.left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.write_line(
                f"{self.seconds:g} s are over: {self.left} tests were not run; `make test` runs all"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=50.0, help="after which no test begins")
    parser.add_argument("--list", action="store_true", help="say what is picked, and run nothing")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    base = base_of(ROOT)
    if base is None:
        print("there is no commit to compare with (is this a git repository?); `make test` runs all tests")
        return 2
    tests = picked(changed_files(ROOT, base))
    short = git(ROOT, "log", "-1", "--format=%h %s", base) or base
    if not tests:
        print(f"nothing that has tests changed since {short.strip()}")
        return 0
    print(f"since {short.strip()}:")
    for test, reason in tests.items():
        print(f"  {test}: {reason}")
    if options.list:
        return 0
    budget = Budget(options.seconds)
    status = pytest.main(
        ["-q", "-m", "not full", "--rootdir", str(ROOT), *words[cut + 1 :], *(str(ROOT / t) for t in tests)],
        plugins=[budget],
    )
    # everything was left out by its mark
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
    sys.exit(main())
