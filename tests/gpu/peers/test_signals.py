"""Signals between devices: the memory model, rule by rule (docs/memory-model.md)."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_checked_launches as checked
from collective_machine import HEAD, SMALL
from fake_driver import REAL, TWO_DEVICES, until_idle, use_fake_ccl, use_fake_gpus
from ptx import ptx_text
from test_checked_messages import Arguments, Out, ring

import jali
from jali import _core, comm, settings
from jali._core import GpuCompiler, builtin_text, collective_text, gpu_prelude
from jali.codegen import kernel_cache
from jali.codegen.stages import write
from jali.errors import DeviceError, RankError
from jali.tune import experiment

PRELUDE = Path(kernel_cache.__file__).parent / "prelude"
PAGE = 4096

made = checked.made  # a fixture


# ---- what kernels are compiled to ------------------------------------------------------------------------


def ptx_of(nvrtc: GpuCompiler, head: str, text: str) -> dict[str, list[str]]:
    """The instructions of each kernel of a text, for devices from 9.0 on, without comments and directives."""
    text = ptx_text(nvrtc, head + gpu_prelude() + text)
    bodies = re.split(r"\.visible \.entry (\w+)\(", text)[1:]
    return {
        name: [line.strip() for line in body.splitlines() if re.match(r"\s+(@\S+ )?[a-z]", line)]
        for name, body in zip(bodies[::2], bodies[1::2], strict=True)
    }


def in_order(lines: list[str], *patterns: str) -> bool:
    """Whether instructions that match come one after the other, others between them."""
    at = 0
    for pattern in patterns:
        at = next((k + 1 for k in range(at, len(lines)) if re.search(pattern, lines[k])), -1)
        if at < 0:
            return False
    return True


PROBES = """
struct probe_arguments {
    double* data;
    int64_t* word;
    int64_t* retired;
    int64_t* watch;
    int64_t shares, epoch;
};
JALI_KERNEL(probe_signal, probe_arguments) {
    a.data[thread_in_block()] = 7.5;
    if (all_retired(a.retired, a.shares, 1)) signal(a.word, a.epoch);
}
JALI_KERNEL(probe_wait, probe_arguments) {
    if (wait_in_block(a.word, a.epoch, IN_AWAIT_HALOS, a.watch)) a.data[thread_in_block()] *= 3;
}
JALI_KERNEL(probe_all, probe_arguments) {
    wait_for_all((const int64_t* const*)a.data, a.shares, a.epoch, IN_AWAIT_HALOS, a.watch);
    a.word[thread_in_block()] += 1;
}
JALI_KERNEL(probe_flags, probe_arguments) {
    bytes16 q = *(const bytes16*)a.data;
    store_flagged((char*)a.word, q, uint32_t(a.epoch));
}
"""


@pytest.fixture(scope="module")
def probes(nvrtc: GpuCompiler) -> dict[str, list[str]]:
    head, _ = builtin_text()
    return ptx_of(nvrtc, head, (PRELUDE / "signals.hpp").read_text() + PROBES)


STORE_OF_DATA = r"^(@\S+ )?st\.global\.(f64|u64|b64)"
RELEASE, SET = r"fence\.acq_rel\.sys", r"st\.relaxed\.sys\.global\.s64"
BARRIER = r"(bar\.sync|barrier\.sync|bar\.red|barrier\.red)"
ACQUIRE = r"ld\.acquire\.sys\.global\.s64"


def test_a_signal_follows_all_stores(probes):
    """Of the block's threads, of the other blocks that have retired, and of this one."""
    lines = probes["probe_signal"]
    device_fence = r"(membar\.gl|fence\.(acq_rel|sc)\.gpu)"
    assert in_order(lines, STORE_OF_DATA, BARRIER, device_fence, r"atom\S*\.add", rf"{RELEASE}", SET), (
        "\n".join(lines)
    )
    assert not in_order(lines, SET, STORE_OF_DATA)
    fences = [k for k, line in enumerate(lines) if re.search(RELEASE, line)]
    assert fences
    assert all(re.search(SET, lines[k + 1]) for k in fences)


def test_a_wait_acquires_before_anything_is_loaded(probes):
    for name, load in (("probe_wait", r"ld\.global\S*\.f64"), ("probe_all", r"ld\.global\.[su]64")):
        lines = probes[name]
        last = max(k for k, line in enumerate(lines) if re.search(ACQUIRE, line))
        barrier = next(k for k in range(last, len(lines)) if re.search(BARRIER, lines[k]))
        assert any(re.search(load, line) for line in lines[barrier:]), "\n".join(lines)
        assert not any(re.search(r"ld\.global\S*\.f64", line) for line in lines[:barrier])


def test_flags_and_their_bytes_are_stored_at_once(probes):
    stores = [line for line in probes["probe_flags"] if re.match(r"(@\S+ )?st\.", line)]
    assert len(stores) == 2
    for store in stores:
        positions = re.search(r"st\.volatile\.global\.v4\.(u|b)32 \[\S+\], \{(.*)\}", store)
        assert positions, store
        _, flag, _, again = positions[2].split(", ")
        assert flag == again


WIRES = [("flagged", "fp32", "sum"), ("slotted", "fp32", "sum"), ("slotted", "int8", "none")]


def test_kernels_that_wait_load_nothing_by_the_path_that_does_not_know_of_stores(nvrtc):
    """Neither `ld.global.nc`; and what has come is not looked for in the first-level cache."""
    kernels = {f"builtin {name}": lines for name, lines in ptx_of(nvrtc, *builtin_text()).items()}
    for wire in WIRES:
        kernels["collective " + " ".join(wire)] = ptx_of(nvrtc, *collective_text(*wire))["collective"]
    waiting = {
        name: lines for name, lines in kernels.items() if any(re.search(ACQUIRE, line) for line in lines)
    }
    assert len(waiting) == 5 + 1 + len(WIRES)  # of halos, of messages
    for name, lines in waiting.items():
        assert not [line for line in lines if "ld.global.nc" in line], name
    assert any("ld.global.cg.v2" in line for line in waiting["builtin receive_halos"])
    assert any("ld.global.cg.v2" in line for line in waiting["collective slotted fp32 sum"])
    # who waits for ghosts reads none: there are only words, and no loads of data after
    assert not [line for line in waiting["builtin await_halos"] if re.search(r"ld\.global\.\S*v2", line)]


@jali.site_function
def around(X, y, U, x):
    for mu in X.directions():
        y[X] += U[mu][X] * x[X + mu] - U[mu][X - mu].dagger() * x[X - mu]


def test_a_kernel_that_waits_for_ghosts_loads_them_by_the_ordinary_path(nvrtc):
    lattice = jali.Lattice(4, 4, 4, device="cuda")
    U, x, y = (
        [lattice.field(jali.SU(3)) for _ in range(3)],
        *(lattice.field(jali.Vector(3)) for _ in range(2)),
    )
    kernel = around.kernels(y, U, x)[0]
    lowered = kernel.binary.source.lowered
    head = "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS 128\n#define JALI_BLOCKS 1\n"
    head += f"#define JALI_BLOCK_BITS {lowered.lowering.block_bits}\n"
    texts = [(PRELUDE / name).read_text() for name in ("signals.hpp", "halos.hpp")]
    lines = ptx_of(nvrtc, head, "".join(texts) + write(lowered, with_halos=True).kernel.text)["kernel"]
    acquires = [k for k, line in enumerate(lines) if re.search(ACQUIRE, line)]
    loads = [k for k, line in enumerate(lines) if "ld.global" in line and "v2.f64" in line]
    assert acquires
    assert len([k for k in loads if k > acquires[-1]]) >= 6 * 9  # of six links, after the last wait
    assert not [line for line in lines if "ld.global.nc" in line]


def test_nothing_else_in_the_prelude_publishes_or_spins():
    for path in sorted(PRELUDE.glob("*.hpp")):
        if path.name in ("signals.hpp", "target_gpu.hpp"):  # which declares fences and pauses
            continue
        code = re.sub(r"//.*", "", path.read_text())
        assert not re.search(
            r"\bpause\(\)|\.sys\b|\bld\.(volatile|acquire)|\bst\.(volatile|release)", code
        ), path
        assert not re.search(r"volatile int64_t\*\)\s*(word|freed|arrived)", code), path
        if path.name not in ("halos.hpp", "builtin.hpp", "messages.hpp", "collective.hpp"):
            assert not re.search(r"\b(signal|wait\w*)\(", code), path


CORE = Path(__file__).resolve().parents[3] / "core"


def location_of(path: Path) -> str:
    return path.relative_to(CORE).as_posix()


def test_transports_of_halos_are_distinguished_by_traits():
    """Who exchanges, launches or binds names none of them: a transport is one file, with its entry in one table."""
    files = [p for folder in ("halo", "bind", "device_transports") for p in (CORE / folder).rglob("*.?pp")]
    naming = {location_of(path) for path in files if re.search(r"\bhalos_by_\w+", path.read_text())}
    transports = {
        location_of(path) for path in files if re.search(r"^const HaloTransport ", path.read_text(), re.M)
    }
    assert len(transports) == 7  # six between devices, one file for hosts
    assert all(position.startswith("device_transports/") for position in transports)
    # what is mapped or packed falls back to others by their entries; hosts have two transports in one exchange
    assert naming == transports | {"halo/policy.cpp", "halo/halo_transport.hpp", "halo/exchange.cpp"}
    assert not [path.name for path in files if re.search(r"policy\w*(\.|->)name\s*==", path.read_text())]


def test_transports_of_messages_are_distinguished_by_traits():
    """Who chooses, starts or binds names none of them, nor what halos and messages have in common of one."""
    folders = ("messaging", "halo", "bind", "device_transports")
    files = [p for folder in folders for p in (CORE / folder).rglob("*.?pp")]
    texts = {location_of(path): path.read_text() for path in files}
    naming = {name for name, text in texts.items() if re.search(r"\bmessages_(by|to)_\w+", text)}
    transports = {name for name, text in texts.items() if re.search(r"^const MessageTransport ", text, re.M)}
    assert len(transports) == 6
    assert naming == transports | {
        "device_transports/message_transport.cpp",
        "device_transports/message_transport.hpp",
    }
    names = r'"(remote-write|copy-engine|gpu-aware-mpi|host-staged|local)"'
    said = {name for name, text in texts.items() if re.search(names, re.sub(r"//.*", "", text))}
    assert said == {
        "device_transports/device_transports.hpp",
        "device_transports/local/messages.cpp",
        "device_transports/hosts/halos.cpp",
    }
    code = (CORE.parent / "src" / "jali" / "comm" / "device_messages.py").read_text()
    assert not re.search(names, re.sub(r'""".*?"""', "", code, flags=re.S))


def test_nobody_asks_for_the_name_of_a_policy_or_transport():
    """Nor takes one apart. Names stand in the ladder that is drawn, and as a side that is measured."""
    root = Path(__file__).resolve().parents[3]
    folders = ("composition", "planning", "simulation", "running")
    files = [p for folder in folders for p in (root / "core" / folder).glob("*.?pp")]
    files += (root / "src" / "jali").rglob("*.py")
    comments = re.compile(r'""".*?"""|//[^\n]*|#[^\n]*', re.S)
    texts = {path.name: comments.sub("", path.read_text()) for path in files}
    assert len(files) > 200
    names = r'"(remote-write|buffered-write|copy-engine|gpu-aware-mpi|host-staged|nccl|rccl)[\w-]*"'
    said = {name for name, text in texts.items() if re.search(names, text)}
    # those of MPICH's trees are MPICH's, those of another library's names that library's
    assert said == {"halo_report.py", "device_report.py", "mpich_trees.py", "deps.py", "_nccl.py"}
    comparisons = r"(polic|carrie|way)\w*(\.name)?(\s*[!=]=\s*f?\"(?!auto-graph)|\.(starts|ends)with\(|\.r?(partition|split)\()"
    assert [name for name, text in texts.items() if re.search(comparisons, text)] == []


# ---- words -----------------------------------------------------------------------------------------------


def entries(record: _core.RecordedCalls, address: int, names: str) -> np.ndarray:
    return np.frombuffer(record.memory[address], [(name, np.int64) for name in names.split()])


def packed(record: _core.RecordedCalls, kernel: str) -> np.ndarray:
    """The entries of messages of the first launch of a kernel."""
    k = [name for _, name, _ in record.calls].index(kernel)
    words = np.frombuffer(record.arguments(k), np.int64)
    at = checked.ARGUMENTS[kernel].split().index("messages")
    return entries(record, int(words[at]), checked.TABLES["message"])


@TWO_DEVICES
@pytest.mark.parametrize(
    ("policy", "kernel", "ahead"),
    [
        (
            "remote-write-overlap",
            "pack_halos",
            1,
        ),  # credit is the exchange for which ghosts are open, else how many are consumed
        ("buffered-write-wait", "pack_halos", -1),  # two slots
        ("copy-engine-wait", "signal_halos", 0),  # one
    ],
)
def test_words_of_data_and_credit_lie_apart(policy, kernel, ahead, made, use_settings):
    """And three channels of exchanges have words of their own, with credit for as many exchanges ahead as there are slots."""
    use_settings(halo_policy=policy)
    records = jali.virtual_ranks(2, checked.recorded, made, *checked.SHAPES["pair"][1:])
    for record in records:
        messages = packed(record, kernel)
        assert len(messages) == 2
        pages = {int(word) // PAGE for word in messages["arrived"]}
        credit = {int(word) // PAGE for word in messages["credit"]}
        assert all(int(word) % 8 == 0 for word in (*messages["arrived"], *messages["credit"]))
        assert not pages & credit
        assert set(messages["ahead"]) == {ahead}


@TWO_DEVICES
def test_copies_signal_in_the_order_of_their_stream(made, use_settings):
    use_settings(halo_policy="copy-engine-overlap")
    for record in jali.virtual_ranks(2, checked.recorded, made, *checked.SHAPES["pair"][1:]):
        calls = record.calls
        for k, (_, name, stream) in enumerate(calls):
            if name != "await_slots":
                continue
            of_stream = [(kind, what) for kind, what, where in calls[k + 1 :] if where == stream]
            assert [kind for kind, _ in of_stream[:2]] == ["copy", "copy"]
            assert of_stream[2] == ("launch", "signal_halos")


@pytest.mark.skipif(REAL, reason="the same on every driver")
def test_a_word_that_another_rank_sets_is_found(made, use_settings):
    """Rank 0 says that what rank 2 sends to rank 1 has arrived."""
    use_settings(halo_policy="copy-engine-wait")
    ranks, extents, grid, function = checked.SHAPES["square"]
    records = jali.virtual_ranks(ranks, checked.recorded, made, extents, grid, function)
    _core.check_recorded(records)
    calls = records[0].calls
    k = [name for _, name, _ in calls].index("signal_halos")
    table = int(np.frombuffer(records[0].arguments(k), np.int64)[0])
    names = checked.TABLES["message"]
    message = entries(records[0], table, names)
    other = packed(records[3], "signal_halos")  # to the same ranks, in other slabs
    own = {int(word) for word in message["arrived"]}
    word = next(int(w) for w in other["arrived"] if int(w) not in own)
    data = checked.changed(names, records[0].memory[table], 0, "arrived", word)
    with pytest.raises(
        RuntimeError, match=r"'signal_halos.* of rank 0 sets a word that rank 3 alone may set"
    ):
        _core.check_recorded([records[0].with_memory(table, data), *records[1:]])


# ---- giving up -------------------------------------------------------------------------------------------


@jali.site_function
def shifted(X, y, x):
    y[X] = x[X + X.directions()[2]]


def fields() -> tuple[jali.Lattice, jali.Field, jali.Field]:
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    shifted(y, x)
    y.local()
    comm.current().barrier()
    return lattice, x, y


def fails_while_waited_for() -> str:
    _, x, y = fields()
    if comm.current().rank == 1:
        raise ArithmeticError("rank 1 has had enough")
    x.storage.mark_written(3)
    shifted(y, x)
    with pytest.raises(RankError, match="rank 1 has had enough") as caught:
        y.local()
    WHAT.append(str(caught.value))
    raise caught.value


WHAT: list[str] = []
LEFT: list[Any] = []  # of a job that has failed
WAITING = threading.Event()  # what rank 0 has started waits for rank 1


@pytest.mark.short(1)
@TWO_DEVICES
@pytest.mark.parametrize(
    ("policy", "wait"),
    [
        ("remote-write-overlap", "waits for rank 1 to give credit 2 for exchanges, in 'pack_halos'"),
        ("buffered-write-wait", "waits for exchange 2 of rank 1, in 'receive_halos'"),
    ],
)
@pytest.mark.unproved("counts exchanges, or makes a rank wait for what never comes")
def test_what_a_device_waited_for_is_reported_when_a_rank_fails(policy, wait, made, use_settings):
    use_settings(halo_policy=policy)
    WHAT.clear()
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        jali.virtual_ranks(2, fails_while_waited_for)
    assert len(WHAT) == 1
    assert f"(rank 0 {wait})" in WHAT[0]
    until_idle()


def stands_still() -> str:
    _, x, y = fields()
    c = comm.current()
    if c.rank == 1:
        with pytest.raises(RankError):
            c.barrier()
        return ""
    x.storage.mark_written(3)
    shifted(y, x)
    with pytest.raises(RankError) as caught:
        y.local()
    raise caught.value


LITTLE = 2  # seconds


def with_short_timeout(body: Callable[[], Any], use_settings: Callable[..., None]) -> list[Any]:
    """Runs it where kernels are compiled already, so that ranks of a busy machine keep no other waiting for so long."""
    use_settings(watchdog=str(LITTLE))
    return comm.virtual_ranks(2, body)


@TWO_DEVICES
@pytest.mark.unproved("counts exchanges, or makes a rank wait for what never comes")
def test_the_watchdog_names_the_wait(made, use_settings):
    use_settings(halo_policy="buffered-write-wait")
    jali.virtual_ranks(2, fields)
    with pytest.raises(
        RankError,
        match=r"rank 0 waited for its device, where halos of other ranks may be missing "
        r"\(it waits for exchange 2 of rank 1, in 'receive_halos'\): nothing has moved for 2 s",
    ):
        with_short_timeout(stands_still, use_settings)
    until_idle()


def sums_that_stand_still() -> str:
    c = comm.current()
    x = np.ones(64, np.float32)
    array = on_device(x)
    c.all_reduce(array)
    c.barrier()
    if settings.current().watchdog > LITTLE:
        return "warm"
    if c.rank == 1:
        with pytest.raises(RankError):
            c.barrier()
        return ""
    result = c.all_reduce(array)
    result.to_host()
    return "came"


def on_device(x: np.ndarray) -> Any:
    from test_device_messages import on_device as put

    return put(x)


@pytest.mark.short(1)
@TWO_DEVICES
@pytest.mark.parametrize("flagged", [True, False])
def test_the_watchdog_names_the_message_of_a_collective(flagged, made, use_settings):
    sizes = "flagged_below=1,flagged_below_combining=1" if not flagged else "flagged_below=1048576"
    with experiment(device_queues=sizes):
        assert comm.virtual_ranks(2, sums_that_stand_still) == ["warm"] * 2
    with (
        experiment(device_queues=sizes),
        pytest.raises(RankError, match=r"\(it waits for message \d+ of rank 1, in 'collective'\)"),
    ):
        with_short_timeout(sums_that_stand_still, use_settings)
    until_idle()


def messages_that_stand_still() -> None:
    c = comm.current()
    messages = ring("remote-write")[:4]
    c.start(messages)
    for message in messages:
        message.array.to_host()
    c.barrier()
    if c.rank == 1:
        with pytest.raises(RankError):
            c.barrier()
        return
    messages[1].start()
    messages[1].array.to_host()


@pytest.mark.full
@TWO_DEVICES
@pytest.mark.unproved("counts exchanges, or makes a rank wait for what never comes")
def test_the_watchdog_names_the_start_of_a_message(made, use_settings):
    comm.virtual_ranks(2, lambda: on_device(np.zeros(8)).to_host())
    with pytest.raises(RankError, match=r"\(it waits for start \d+ of rank 1, in 'pass_messages'\)"):
        with_short_timeout(messages_that_stand_still, use_settings)
    until_idle()


def after_an_abort() -> None:
    lattice, x, y = fields()
    graph = _core.GpuGraph(lattice.gpu, lambda: (x.storage.mark_written(3), shifted(y, x)))
    LEFT.extend([y, graph])
    y.local()
    if comm.current().rank == 1:
        assert WAITING.wait(60)
        raise ArithmeticError("rank 1 has had enough")
    x.storage.mark_written(3)
    shifted(y, x)  # an exchange that rank 1 will not join
    WAITING.set()
    try:
        with pytest.raises(RankError, match="rank 1 has had enough") as caught:
            y.local()
        until_idle()
        refused: list[Callable[[], object]] = [
            y.local,
            lambda: (x.storage.mark_written(3), shifted(y, x)),
            lambda: lattice.gpu.launch_graph(graph),
        ]
        for call in refused:  # by what devices were told, or, where they are late, by what rank 1 has told
            with pytest.raises((DeviceError, RankError), match="rank 1 has had enough"):
                call()
        WHAT.append("refused")
    except BaseException as error:  # only the first of two errors leaves the ranks, and that is rank 1's
        WHAT.append("".join(traceback.format_exception(error)))
        raise
    raise caught.value


@TWO_DEVICES
def test_nothing_can_be_read_or_repeated_after_an_abort(made, use_settings):
    use_settings(halo_policy="remote-write-wait")
    WHAT.clear()
    WAITING.clear()
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        jali.virtual_ranks(2, after_an_abort)
    assert WHAT == ["refused"]
    LEFT.clear()
    until_idle()


def whose_device_waits() -> np.ndarray:
    _, x, y = fields()
    x[...] = 1.5
    if comm.current().rank == 1:
        time.sleep(0.3)
    shifted(y, x)
    return y.local()


@TWO_DEVICES
@pytest.mark.unproved("counts exchanges, or makes a rank wait for what never comes")
def test_a_job_does_not_hear_of_one_that_has_failed(made, use_settings):
    """Also where somebody keeps what the failed one had, as an interpreter does with the last error."""
    use_settings(halo_policy="remote-write-wait")
    WHAT.clear()
    WAITING.clear()
    right = jali.virtual_ranks(2, whose_device_waits)
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        jali.virtual_ranks(2, after_an_abort)
    assert WHAT == ["refused"]
    assert LEFT
    for _ in range(3):
        assert np.array_equal(jali.virtual_ranks(2, whose_device_waits), right)
    LEFT.clear()


# ---- kernels that give up, each run as one thread by itself ----------------------------------------------


# A grid of one block, which nobody else takes turns with.
ALONE = """
static const jali_block_here alone{0, 1, [](const int64_t*, int64_t) {}, [] {}, [] {}, [] {}};
__attribute__((constructor)) static void run_alone() { jali_here = &alone; }
"""


def one_thread(folder: Path, head: str, text: str) -> ctypes.CDLL:
    """Kernels compiled for the host; each takes a pointer to a pointer to its arguments."""
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text("#define JALI_ONE_THREAD 1\n" + head + gpu_prelude() + text + ALONE)
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w"]
    subprocess.run([*os.environ.get("CXX", "c++").split(), *flags, "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


def launch(kernel: Any, arguments: bytes | ctypes.Structure) -> None:
    held = ctypes.create_string_buffer(bytes(arguments), len(bytes(arguments)))
    kernel(ctypes.byref(ctypes.c_void_p(ctypes.addressof(held))))


def report_of(watch: np.ndarray, word: int) -> tuple[int, int, int]:
    """What the page of the host says of waits for a word: its address, whose kernel, the epoch."""
    position = 2 + 2 * (word // 8 % 128)
    return int(watch[position]), int(watch[position + 1]) >> 56, int(watch[position + 1]) & (1 << 56) - 1


def test_a_message_that_is_given_up_is_neither_put_nor_signalled(tmp_path):
    kernel = one_thread(tmp_path, *builtin_text()).pass_messages
    source, target = np.arange(32, dtype=np.int8), np.zeros(32, np.int8)
    words, watch = (
        np.zeros(4, np.int64),
        np.zeros(2 + 2 * 128, np.int64),
    )  # credit, arrived, starts, blocks done
    at = [int(words.ctypes.data) + 8 * k for k in range(4)]
    arguments = Arguments(outgoing=1, watch=watch.ctypes.data)
    for name, value in zip(
        Out._fields_, (source.ctypes.data, target.ctypes.data, 32, *at, 7, 16, 0, 1), strict=True
    ):
        setattr(arguments.sent[0], name[0], value)
    watch[0] = 1
    launch(kernel, arguments)
    assert not target.any()
    assert not words.any()
    assert report_of(watch, at[0]) == (at[0], 5, 1)
    watch[:], words[0] = 0, 1
    launch(kernel, arguments)
    assert np.array_equal(target, source)
    assert words.tolist() == [1, 1, 1, 0]
    assert not watch.any()


def test_a_halo_that_is_given_up_is_neither_stored_nor_signalled(tmp_path):
    kernel = one_thread(tmp_path, *builtin_text()).pack_halos
    source, target = np.arange(64.0), np.zeros(64)
    words, watch = np.zeros(8, np.int64), np.zeros(2 + 2 * 128, np.int64)
    credit, arrived, epoch, retired, awaited = (int(words.ctypes.data) + 8 * k for k in (0, 1, 2, 3, 5))
    part = np.array([source.ctypes.data, 0, 32, 1, 16, 512, 0, target.ctypes.data], np.int64)
    message = np.array([1, arrived, credit, 1], np.int64)
    job = np.array([0, 0, 0, 1], np.int32)
    waits = np.array([awaited], np.int64)
    tables = [x.ctypes.data for x in (part, message, job)]
    pack = [*tables, 1, 1, 1, 0, epoch, retired, 0, 0, waits.ctypes.data, 1, 1, watch.ctypes.data]
    arguments = np.array(pack, np.int64).tobytes()
    watch[0] = 1
    launch(kernel, arguments)
    assert not target.any()
    assert not words.any()
    assert report_of(watch, credit) == (credit, 1, 1)
    words[0] = 1  # there is credit, and what this rank waits for does not come
    launch(kernel, arguments)
    assert np.array_equal(target, source)
    assert words[1] == 1
    assert words[2] == 0  # the exchange has not ended
    assert report_of(watch, awaited) == (awaited, 1, 1)
    words[5], words[1] = 1, 0
    launch(kernel, arguments)
    assert words.tolist()[:4] == [1, 1, 1, 0]


@pytest.mark.parametrize("wire", ["flagged", "slotted"])
def test_a_collective_that_is_given_up_neither_stores_nor_counts(wire, tmp_path):
    kernel = one_thread(tmp_path, *collective_text(wire, "fp32", "sum")).collective
    memory, out = np.zeros(256, np.int64), np.zeros(4, np.float32)  # arrived, freed, queues
    numbers, watch = np.zeros(4, np.int64), np.zeros(2 + 2 * 128, np.int64)
    bases = np.array([memory.ctypes.data] * 2, np.int64)
    head = dict.fromkeys(HEAD, 0)
    head |= {"buffer 0": out.ctypes.data, "table_words": 15, "instructions": 1, "sources": 1, "waits": 1}
    head |= {"actions": 1, "iterations": 1, "channels": 1, "ranks": 2, "slots": 4, "slot_bytes": 64}
    head |= {"memories": bases.ctypes.data, "own_memory": memory.ctypes.data, "numbers": numbers.ctypes.data}
    head |= {"freed": 256, "queues": 512, "watch": watch.ctypes.data, "overflows": memory.ctypes.data + 2040}
    table = struct.pack("<qii qq iiiiiiii q", 0, 0, 0, 16, 16, 0, 1, 0, 0, 0, 1, 1, 1, 1)  # into buffer 0
    table += struct.pack("<qii", 0, ~1, 0)  # from a message of rank 1
    table += struct.pack("<iiii", 1, 1, 0, 0) + struct.pack("<iiii", 0, 1, 0, 0)  # frees it, waits for it
    table += struct.pack("<iiii", 0, 0, 0, 1)  # which is received
    head["table_words"] = len(table) // 8
    arguments = struct.pack(f"<{len(HEAD)}q", *head.values()) + table.ljust(8 * SMALL, b"\0")
    slot, arrived = 512 // 8 + 4 * 64 // 8, 4  # of rank 1, its first
    if wire == "slotted":
        memory[slot : slot + 2] = np.array([1, 2, 3, 4], np.float32).view(np.int64)
    watch[0] = 1
    launch(kernel, arguments)
    assert not numbers.any()
    assert not memory[32:64].any()  # nothing was freed
    if wire == "flagged":
        assert not out.any()
    word = int(memory.ctypes.data) + 8 * (arrived if wire == "slotted" else slot)
    assert report_of(watch, word) == (word, 6, 1)
    watch[:], memory[arrived] = 0, 1
    if wire == "flagged":
        memory[slot : slot + 4] = np.array([1, 2, 3, 4], np.float32).view(np.uint32) | np.int64(1) << 32
    launch(kernel, arguments)
    assert out.tolist() == [1, 2, 3, 4]
    assert numbers.tolist() == [0, 0, 0, 1]


# ---- memory that kernels read while others write ---------------------------------------------------------


def why_not(device: str, policies: list[str]) -> list[str]:
    lattice = jali.Lattice(4, 4, 8, device=device)
    return [lattice.layout("float64").why_not_halo_policy(comm.current().core, p) for p in policies]


@pytest.mark.skipif(REAL, reason="needs drivers of both kinds")
def test_a_boundary_that_waits_refuses_where_kernels_do_not_see_stores(monkeypatch, tmp_path, use_settings):
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)
    policies = ["remote-write-overlap", "remote-write-pack-in-bulk", "remote-write-one-launch"]
    assert jali.virtual_ranks(2, why_not, "cuda", policies) == [["", "", ""]] * 2
    for first, *others in jali.virtual_ranks(2, why_not, "hip", policies):
        assert first == ""
        assert all("need not see what others store" in reason for reason in others)


TAKE_IT = ["remote-write-overlap", "buffered-write-wait", "copy-engine-directions"]


@pytest.mark.skipif(REAL, reason="needs a driver of HIP's")
@pytest.mark.parametrize("fine", [True, False])
def test_entries_that_take_fine_grained_memory_refuse_where_there_is_none(
    fine, monkeypatch, tmp_path, use_settings
):
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)
    if not fine:
        for ordinal in range(4):
            _core.Gpu.open("hip", ordinal).trim()  # of what an earlier test has left
        monkeypatch.setenv("JALI_FAKE_NO_FINE", "1")
    for reasons in jali.virtual_ranks(2, why_not, "hip", [*TAKE_IT, "host-staged-wait"]):
        if fine:
            assert reasons == [""] * 4
        else:
            assert all("take fine-grained memory of their own (NOT_SUPPORTED" in why for why in reasons[:3])
            assert reasons[3] == ""
    assert jali.virtual_ranks(2, why_not, "cuda", TAKE_IT) == [[""] * 3] * 2
    for reached, reason in jali.virtual_ranks(2, ends_of_messages):
        assert reached is fine
        assert ("take fine-grained memory" in reason) is not fine


def ends_of_messages() -> tuple[bool, str]:
    """Whether messages are put into the memory of the other rank's device, and why not."""
    c = comm.current()
    why = c.device_messages(_core.Gpu.open("hip", c.rank)).why_not("remote-write", 1 - c.rank)
    return not why, why


def test_every_rule_of_the_memory_model_is_held_by_a_test():
    tests = Path(__file__).resolve().parents[2]
    page = (tests.parent / "docs" / "memory-model.md").read_text()
    rules = [line for line in page.splitlines() if line.startswith("| ") and "| `" in line]
    assert len(rules) == 14
    known = "".join(path.read_text() for path in tests.rglob("test_*.py"))
    for rule in rules:
        names = re.findall(r"`(test_\w+)`", rule)
        assert names or "tests/gpu/proof/test_checked_*.py" in rule, rule
        assert [name for name in names if f"def {name}(" not in known] == []
