"""Two sides of a comparison: commits, branches or checkouts, as packages that are built and ready to be imported.

The sources of a side are put below the cache directory, out of a commit or a working tree as it is at that moment, and built there with
CMake (and ccache where it is installed). What was built from the same sources is not built again. The repository is
only read.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jali.errors import CompileError, ParameterError
from jali.processes import ended_with_us

SPACE = 200 << 20  # bytes that sources, objects and package take at most
BUILT_FROM = ("src/jali", "core", "CMakeLists.txt")
NOT_SOURCES = ("__pycache__", ".so", ".pyc", "_core.pyi")


class OutOfTimeError(Exception):
    """The time of this part is over; completed work is kept."""


@dataclass(frozen=True)
class Checkout:
    """One side: what the user called it, what it is called in tables, its folder in the cache, and a digest of its sources."""

    name: str
    label: str
    home: Path
    digest: str

    @property
    def package(self) -> Path:
        """The folder from which jali is imported once it is built."""
        return self.home / "package"


def repository(start: Path) -> Path | None:
    """The checkout of jali that a folder belongs to; None outside of one."""
    for folder in (start.resolve(), *start.resolve().parents):
        if is_checkout(folder):
            return folder
    return None


def is_checkout(folder: Path) -> bool:
    return (folder / "CMakeLists.txt").is_file() and (folder / "src" / "jali" / "__init__.py").is_file()


def take(name: str, cache: Path, here: Path) -> Checkout:
    """Put the sources that `name` means into the cache: a folder with a checkout ("." for the one that `here` belongs to), or a
    commit, branch or tag of the checkout `here` belongs to.

    Raises `ParameterError` for what is neither, and where git or space on the disk is missing.
    """
    root = repository(here)
    folder = root if name == "." else here / name if name else None
    if folder is not None and is_checkout(folder):
        return _take_tree(name, folder.resolve(), cache)
    if root is None:
        raise ParameterError(
            f"{name!r} is no checkout of jali, and {here} does not belong to one whose commits could be meant"
        )
    return _take_commit(name, root, cache)


def _take_commit(name: str, root: Path, cache: Path) -> Checkout:
    if shutil.which("git") is None:
        raise ParameterError(
            f"there is no git to look for the commit {name!r}; install it, or name two checkouts"
        )
    if not (root / ".git").exists():
        raise ParameterError(
            f"{root} is no git repository, so it has no commit {name!r}; name checkouts by their folders"
        )
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    commit = found.stdout.decode().strip()
    if found.returncode or not commit:
        raise ParameterError(
            f"{name!r} is neither a checkout of jali (a folder with src/jali) nor a commit of {root}"
        )
    home = _home(cache, commit[:16])
    tree = home / "tree"
    with _alone(home, name):
        if not tree.is_dir():
            need_space(home)
            archive = _git(root, "archive", "--format=tar", commit)
            if archive.returncode:
                raise ParameterError(f"git gives no files of {name!r}: {_last_line(archive.stderr.decode())}")
            fresh = home / "tree.new"
            shutil.rmtree(fresh, ignore_errors=True)
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
                files.extractall(fresh, filter="data")
            if not is_checkout(fresh):
                shutil.rmtree(fresh)
                raise ParameterError(f"{name!r} is a commit without src/jali and CMakeLists.txt")
            fresh.rename(tree)
    short = commit[:7]
    label = short if commit.startswith(name) else f"{name} ({short})"
    return Checkout(name, label, home, digest(tree))


def _take_tree(name: str, folder: Path, cache: Path) -> Checkout:
    home = _home(cache, "tree-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:16])
    tree = home / "tree"
    with _alone(home, name):
        if not tree.is_dir():
            need_space(home)
        there = {path.relative_to(folder) for path in sources(folder)}
        for path in sources(tree):
            if path.relative_to(tree) not in there:
                path.unlink()
        for relative in there:
            copy = tree / relative
            # equal files keep their times, so that only what changed is compiled
            if not copy.is_file() or not filecmp.cmp(folder / relative, copy, shallow=False):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / relative, copy)
    label = folder.name
    if shutil.which("git") is not None and (folder / ".git").exists():
        commit = _git(folder, "rev-parse", "--short=7", "HEAD").stdout.decode().strip()
        label += f" ({commit}{' and changes' if changed(folder) else ''})"
    return Checkout(name, label, home, digest(tree))


def changed(root: Path) -> bool:
    """Whether the working tree has what no commit has, among what jali is built from."""
    done = _git(root, "status", "--porcelain", "--", *BUILT_FROM)
    return done.returncode == 0 and bool(done.stdout.strip())


def sources(folder: Path) -> list[Path]:
    """The files that jali is built from."""
    found: list[Path] = []
    for name in BUILT_FROM:
        path = folder / name
        files = [path] if path.is_file() else path.rglob("*")
        found += [p for p in files if p.is_file() and not str(p).endswith(NOT_SOURCES)]
    return sorted(found)


def digest(folder: Path) -> str:
    """SHA-256 of the names and contents of what jali is built from."""
    total = hashlib.sha256()
    for path in sources(folder):
        name = os.fsencode(path.relative_to(folder))
        total.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def need_space(folder: Path) -> None:
    """Raises `ParameterError` if the disk has no room for another build."""
    free = shutil.disk_usage(folder).free
    if free < SPACE:
        raise ParameterError(
            f"{folder} has {free >> 20} MB free, and a build takes up to {SPACE >> 20} MB; "
            "set JALI_CACHE_DIR to a directory on another disk"
        )


def build(checkout: Checkout, until: float, say: Callable[[str], object]) -> None:
    """Build the package of a side if it is not there; `until` is a time of `time.monotonic`.

    Raises `OutOfTimeError` (compiled files are kept), `ParameterError` without CMake, nanobind or space, and `CompileError` with the first
    error of the compiler.
    """
    home, package = checkout.home, checkout.package
    mark = package / "built"
    if mark.is_file() and mark.read_text() == checkout.digest:
        return
    cmake = _program("cmake")
    if cmake is None or importlib.util.find_spec("nanobind") is None:
        missing = "cmake" if cmake is None else "nanobind"
        raise ParameterError(
            f"building {checkout.label} needs {missing}: {sys.executable} -m pip install cmake ninja nanobind"
        )
    need_space(home)
    say(f"building {checkout.label}")
    with _alone(home, checkout.label):
        configure = [cmake, "-S", home / "tree", "-B", home / "build", "-DCMAKE_BUILD_TYPE=Release"]
        configure += [f"-DPython_EXECUTABLE={sys.executable}"]
        ninja, ccache = _program("ninja"), _program("ccache")
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
        if ccache and "CMAKE_CXX_COMPILER_LAUNCHER" not in os.environ:
            configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
        fresh = home / "package.new"
        shutil.rmtree(fresh, ignore_errors=True)
        if not (home / "build" / "CMakeCache.txt").is_file():
            shutil.rmtree(home / "build", ignore_errors=True)
        cores = str(len(os.sched_getaffinity(0)))
        _run(configure, checkout, until)
        _run([cmake, "--build", home / "build", "--parallel", cores], checkout, until)
        shutil.copytree(
            home / "tree" / "src" / "jali",
            fresh / "jali",
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
        _run(
            [cmake, "--install", home / "build", "--component", "python", "--prefix", fresh], checkout, until
        )
        (fresh / "built").write_text(checkout.digest)
        shutil.rmtree(package, ignore_errors=True)
        fresh.rename(package)


def _run(command: list[object], checkout: Checkout, until: float) -> None:
    log = checkout.home / "build.log"
    # Both sides' files have the same names relative to their homes, so that ccache finds what they share.
    environment = {"CCACHE_BASEDIR": str(checkout.home), "CCACHE_NOHASHDIR": "1", **os.environ}
    with open(log, "wb") as out:
        words = list(map(str, command))
        with ended_with_us(words, stdout=out, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                status = process.wait(timeout=max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise OutOfTimeError(f"building {checkout.label}") from None
    if status:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line.lower() or "No space left" in line]
        first = (errors or lines or ["no message"])[0].strip()
        raise CompileError(f"{checkout.label} cannot be built: {first} (all of it: {log})")


def _home(cache: Path, name: str) -> Path:
    home = cache / f"{name}-{sys.implementation.cache_tag}"
    home.mkdir(parents=True, exist_ok=True)
    return home


@contextlib.contextmanager
def _alone(home: Path, name: str) -> Iterator[None]:
    """One process at a time works in a folder of the cache."""
    with open(home / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ParameterError(f"another comparison is preparing {name} in {home}; wait for it") from None
        yield


def _program(name: str) -> str | None:
    """A program on PATH, or beside the interpreter, where pip puts it."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(root), *words], stdin=subprocess.DEVNULL, capture_output=True)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
