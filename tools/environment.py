"""Make or refresh a virtual environment in which jali runs from this checkout.

`python tools/environment.py .venv test docs` creates `.venv` if it is not there, installs what
`pyproject.toml` asks for (its dependencies, its build requirements and the named extras) and builds the
core. The package is installed editable, so changed Python sources need nothing; the core is rebuilt when a
file that it is made of has changed. `--wheel-from .venv` installs a finished wheel, built by that
environment, instead: a second environment (another MPI) then needs no second compilation.

What was done is recorded in the environment by content, not by time, so a second run does nothing, quickly.
Standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD_FILES = ("CMakeLists.txt", "pyproject.toml", "src/jali/version.py")
NETWORK_SIGNS = (
    "Max retries exceeded",
    "NewConnectionError",
    "Temporary failure",
    "Connection refused",
    "Connection reset",
    "ReadTimeout",
    "ConnectTimeout",
    "ProxyError",
    "No matching distribution",
)


class SetupError(Exception):
    """Something on this machine stands in the way; the message says what to do."""


def say(text: str) -> None:
    print(f"[environment] {text}", file=sys.stderr, flush=True)


class Environment:
    """A virtual environment and the record of what was put into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._record_file = folder / "jali-environment.json"
        self.record: dict = {"requirements": [], "source": None}
        if self._record_file.exists():
            self.record = json.loads(self._record_file.read_text())

    def save(self) -> None:
        partial = self._record_file.with_suffix(".part")
        partial.write_text(json.dumps(self.record, indent=1) + "\n")
        partial.replace(self._record_file)

    def create(self) -> None:
        """Create the environment, or check that the one found is of the Python that runs this script."""
        if self.python.exists():
            made_with = python_version(self.python)
            if made_with == sys.version_info[:2]:
                if not self._record_file.exists():  # made by hand, or its making was interrupted
                    run(
                        [str(self.python), "-m", "ensurepip"],
                        f"{self.folder} has no pip and ensurepip failed",
                    )
                return
            if made_with is not None:
                raise SetupError(
                    f"{self.folder} was made with Python {made_with[0]}.{made_with[1]}, but this is Python "
                    f"{sys.version_info[0]}.{sys.version_info[1]}: remove it with `make distclean`, or name "
                    f"another folder, as `make test VENV=.venv-other PYTHON={sys.executable}` does"
                )
            say(f"{self.folder} is broken (its Python no longer runs): making it anew")
            shutil.rmtree(self.folder)
        say(f"creating {self.folder} with Python {sys.version.split()[0]}")
        run([sys.executable, "-m", "venv", str(self.folder)], "cannot create a virtual environment")
        self.record = {"requirements": [], "source": None}

    def install(self, requirements: list[str]) -> None:
        """Install the requirements that the record does not have yet."""
        missing = sorted(set(requirements) - set(self.record["requirements"]))
        if not missing:
            return
        say("installing " + ", ".join(re.split(r"[<>=!~; ]", r, maxsplit=1)[0] for r in missing))
        # Without --no-compile pip turns every module of every package into bytecode: several seconds per
        # environment for modules that are mostly never imported.
        self.pip("install", "--no-compile", *missing)
        self.record["requirements"] = sorted({*self.record["requirements"], *missing})
        self.save()

    def pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
        run(
            [*command, *arguments],
            f"pip {arguments[0]} failed",
            {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
        )


def run(command: list[str], failure: str, environment: dict[str, str] | None = None) -> None:
    """Run a command in silence; if it fails, show what it said and raise SetupError."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return
    sys.stderr.write("".join(line + "\n" for line in done.stdout.splitlines()[-60:]))
    if any(sign in done.stdout for sign in NETWORK_SIGNS):
        failure += (
            ": a package could not be fetched. The first run needs the Python package index (or a mirror, "
            "named by PIP_INDEX_URL, or a folder of wheels, named by PIP_FIND_LINKS). What is installed "
            "already is kept: run the same command again"
        )
    raise SetupError(failure)


def python_version(python: Path) -> tuple[int, int] | None:
    """(major, minor) of an interpreter, None if it does not run."""
    try:
        done = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
    except OSError:
        return None
    if done.returncode != 0:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def tool_version(name: str) -> tuple[int, ...]:
    """The version that a program on PATH states, () if there is none."""
    if shutil.which(name) is None:
        return ()
    done = subprocess.run([name, "--version"], capture_output=True, text=True)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found and done.returncode == 0 else ()


def requirements(extras: list[str], build: bool) -> list[str]:
    """What pyproject.toml asks for, with CMake and Ninja added where the machine has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    available = project["project"]["optional-dependencies"]
    wanted = list(project["project"]["dependencies"])
    for extra in extras:
        if extra not in available:
            raise SetupError(f"pyproject.toml has no extra {extra!r}; it has {', '.join(available)}")
        wanted += available[extra]
    if build:
        wanted += project["build-system"]["requires"]
        if tool_version("cmake") < (3, 22):
            wanted.append("cmake>=3.22")
        if tool_version("ninja") < (1, 5):
            wanted.append("ninja>=1.5")
    return wanted


def source_hash(python_sources: bool) -> str:
    """Digest of what an installation depends on: the core always, Python sources when they are copied.

    An editable installation finds Python modules by itself, but learns new packages only when it is made,
    so the names of the packages belong to the digest either way.
    """
    files = [ROOT / name for name in BUILD_FILES]
    built_in = [ROOT / "core", ROOT / "src/jali/codegen/prelude"]
    files += [p for folder in built_in for p in folder.rglob("*") if p.is_file()]
    made = ("__pycache__", "_core.pyi")  # not sources
    package = [p for p in (ROOT / "src").rglob("*") if p.is_file() and not set(made) & set(p.parts)]
    if python_sources:
        files = sorted({*files, *package})
    digest = hashlib.sha256()
    for folder in sorted({str(p.parent.relative_to(ROOT)) for p in package}):
        digest.update(folder.encode() + b"\0")
    for path in sorted(files):
        digest.update(
            str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
        )
    return digest.hexdigest()


def check_compiler() -> None:
    names = [os.environ["CXX"].split()[0]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise SetupError(
            f"no C++ compiler found (looked for {', '.join(names)}); jali needs one with C++20, such as g++ "
            "11 or clang 14, to build its core and to compile kernels. On Debian and Ubuntu: apt-get install "
            "g++. CXX names another one"
        )


def install_editable(environment: Environment) -> None:
    digest = source_hash(python_sources=False)
    if environment.record["source"] == digest:
        return
    check_compiler()
    say("building the core")
    environment.pip("install", "--no-deps", "--no-build-isolation", "--editable", ".")
    environment.record["source"] = digest
    environment.save()


def install_wheel(environment: Environment, builder: Environment) -> None:
    digest = source_hash(python_sources=True)
    if environment.record["source"] == digest:
        return
    say(f"installing jali into {environment.folder}")
    wheels = ROOT / "build" / f"wheels-{environment.folder.name}"
    shutil.rmtree(wheels, ignore_errors=True)
    builder.pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), ".")
    (wheel,) = wheels.glob("jali-*.whl")
    environment.pip("install", "--no-compile", "--no-deps", "--force-reinstall", str(wheel))
    environment.record["source"] = digest
    environment.save()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="the virtual environment, such as .venv")
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml to install as well")
    parser.add_argument(
        "--wheel-from", type=Path, metavar="VENV", help="install a wheel that VENV builds, not editable"
    )
    arguments = parser.parse_args()
    environment = Environment(ROOT / arguments.folder)
    start = time.monotonic()
    try:
        environment.create()
        environment.install(requirements(arguments.extras, build=arguments.wheel_from is None))
        if arguments.wheel_from is None:
            install_editable(environment)
        else:
            install_wheel(environment, Environment(ROOT / arguments.wheel_from))
    except SetupError as failure:
        say(f"error: {failure}")
        return 1
    if time.monotonic() - start > 2:
        say(f"{arguments.folder} is ready after {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
