"""Ranks that call different things: an error that names the calls, or a warning that names what is waited for, never a crash or garbage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jali
from jali import comm
from jali.errors import JaliError, ParameterError, RankError
from jali.gauge import GaugeField

# What a rank calls that exchanges messages of the control plane, and how errors name it.
CALLS: dict[str, tuple[str, str]] = {
    "barrier": ("w.barrier()", "a barrier"),
    "split": ("w.split(0)", "a split or duplicate"),
    "sharing_memory": ("w.duplicate().sharing_memory()", "a split or duplicate"),
    "gather": ("w.gather_bytes(b'abc')", "an all-gather"),
    "long gather": ("w.gather_bytes(bytes(100_000))", "an all-gather"),
    "broadcast": ("w.broadcast_bytes(b'abc', 0)", "a broadcast from rank 0"),
    "broadcast from 1": ("w.broadcast_bytes(bytes(100_000), 1)", "a broadcast from rank 1"),
    "sum": ("w.all_reduce_sum([1])", "a sum of 1 number"),
    "long sum": ("w.all_reduce_sum(np.arange(50_000))", "a sum of 50000 numbers"),
    "all_reduce": ("w.all_reduce(np.ones(4))", "the first all_reduce"),
    "reduce": ("w.reduce(np.ones(4))", "the first reduce"),
    "broadcast of an array": ("w.broadcast(np.ones(4))", "the first broadcast"),
    "all_gather": ("w.all_gather(np.ones(4))", "the first all_gather"),
    "gather of arrays": ("w.gather(np.ones(4))", "the first gather"),
    "scatter": ("w.scatter(np.ones(2 * w.size), np.ones(2))", "the first scatter"),
    "reduce_scatter": ("w.reduce_scatter(np.ones(12))", "the first reduce_scatter"),
    "all_to_all": ("w.all_to_all(np.ones(12))", "the first all_to_all"),
    "clocks": ("_core.clock_offsets(w.core)", "comparing clocks"),
}
PAIRS = [(a, b) for a, b in itertools.permutations(CALLS, 2) if CALLS[a][1] != CALLS[b][1]]
FEW = [
    ("barrier", "all_reduce"), ("broadcast", "broadcast from 1"), ("sum", "long sum"), ("split", "gather"),
    ("long gather", "barrier"), ("all_reduce", "all_gather"),
]  # fmt: skip


def outcomes(ranks: int, calls: Callable[[comm.Communicator], Any]) -> list[tuple[str, str]]:
    """What each virtual rank met: the type and the text of its error, or two empty ones."""
    met = [("", "")] * ranks

    def run() -> None:
        world = comm.current()
        try:
            calls(world)
        except JaliError as error:
            met[world.rank] = (type(error).__name__, str(error))

    comm.virtual_ranks(ranks, run)
    return met


def call(name: str, w: comm.Communicator) -> None:
    eval(CALLS[name][0], {"np": np, "_core": jali._core, "w": w})


@pytest.mark.parametrize(
    ("first", "second"), [*FEW, *(pytest.param(*p, marks=pytest.mark.full) for p in PAIRS if p not in FEW)]
)
def test_virtual_ranks_that_have_parted_name_both_calls(first: str, second: str) -> None:
    met = outcomes(3, lambda w: call(second if w.rank == 1 else first, w))
    names = {CALLS[first][1], CALLS[second][1]}
    for kind, text in met:
        assert kind == "RankError"
        assert "ranks disagree" in text
        assert all(name in text for name in names), text


@pytest.mark.short(1)
@pytest.mark.parametrize("over", ["mpi", "shm"])
@pytest.mark.parametrize("pairs", ["few", pytest.param("all", marks=pytest.mark.full)])
def test_processes_that_have_parted_name_both_calls(mpich, over: str, pairs: str) -> None:
    chosen = FEW if pairs == "few" else PAIRS
    ended = mpich.run(
        f"""
        from mpi4py import MPI
        from jali import _core

        calls = {CALLS!r}
        for pair in {chosen!r}:
            w = comm.from_mpi4py(MPI.COMM_WORLD.Dup())
            if {over!r} == "shm":
                w = w.sharing_memory()
            name = pair[w.rank]
            try:
                eval(calls[name][0])
                said = "nothing"
            except RankError as error:
                said = str(error)
            if not ("ranks disagree" in said and all(calls[n][1] in said for n in pair)):
                print(f"rank {{w.rank}} at {{pair}}: {{said}}", flush=True)
        open(os.path.join(os.environ["DONE"], f"done-{{w.rank}}"), "w").close()
        MPI.COMM_WORLD.Barrier()
        os._exit(0)
        """,
        DONE=str(mpich.folder),
        JALI_WATCHDOG="20",
    )
    assert ended.out == "", ended.err
    assert len(list(mpich.folder.glob("done-*"))) == mpich.ranks, ended.err


def test_calls_that_agree_give_what_they_should_over_messages(mpich) -> None:
    ended = mpich.run("""
        world = comm.current()
        for group in (world, world.sharing_memory(), world.duplicate()):
            for size in (0, 1, 1015, 1016, 1017, 8128, 8129, 200_000):
                told = group.gather_bytes(bytes([group.rank + 1]) * (size + group.rank))
                assert told == [bytes([r + 1]) * (size + r) for r in range(group.size)]
                for root in range(group.size):
                    mine = bytes([7 + root]) * size if group.rank == root else b"ignored"
                    assert group.broadcast_bytes(mine, root) == bytes([7 + root]) * size
                total = group.all_reduce_sum(np.arange(size) + group.rank)
                assert (total == 2 * np.arange(size) + 1).all()
        """)
    assert (ended.status, ended.err) == (0, "")


@jali.site_function
def shifted(X: Any, out: Any, phi: Any) -> None:
    out[X] = phi[X + X.directions()[0]]


@jali.site_function
def total_of(X: Any, phi: Any, total: Any) -> None:
    total += phi[X]


def checked_calls(folder: Path) -> dict[str, Callable[[comm.Communicator], Any]]:
    """Calls by the name that checked mode gives them; plans, fields and kernels exist already."""

    def halo(w: comm.Communicator) -> None:
        lattice = jali.Lattice(4, 4, communicator=w)
        shifted(jali.Field(lattice, jali.Real()), jali.Field(lattice, jali.Real()))

    def lattice_sum(w: comm.Communicator) -> None:
        lattice = jali.Lattice(4, 4, communicator=w)
        lattice.sum(total_of, jali.Field(lattice, jali.Real()))

    return {
        "barrier": lambda w: w.barrier(),
        "split": lambda w: w.split(0),
        "duplicate": lambda w: w.duplicate(),
        "sharing_memory": lambda w: w.sharing_memory(),
        "gather_bytes": lambda w: w.gather_bytes(b"x"),
        "broadcast_bytes": lambda w: w.broadcast_bytes(b"x", 0),
        "all_reduce_sum": lambda w: w.all_reduce_sum([1]),
        "all_reduce": lambda w: w.all_reduce(np.ones(4)),
        "reduce": lambda w: w.reduce(np.ones(4)),
        "broadcast": lambda w: w.broadcast(np.ones(4)),
        "all_gather": lambda w: w.all_gather(np.ones(4)),
        "all_gather that exchanges counts": lambda w: w.all_gather(np.ones(w.rank + 1), counts="exchange"),
        "all_to_all that exchanges counts": lambda w: w.all_to_all(np.ones(2), counts=[1, 1]),
        "gather": lambda w: w.gather(np.ones(4)),
        "scatter": lambda w: w.scatter(np.ones(4), np.ones(2)),
        "reduce_scatter": lambda w: w.reduce_scatter(np.ones(4)),
        "all_to_all": lambda w: w.all_to_all(np.ones(4)),
        "shifted": halo,
        "total_of": lattice_sum,
    }


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(
    "pair",
    [
        ("barrier", "all_reduce"), ("split", "barrier"), ("duplicate", "gather_bytes"), ("all_reduce", "all_gather"),
        ("shifted", "barrier"), ("total_of", "all_reduce"), ("sharing_memory", "all_reduce_sum"),
        ("all_gather that exchanges counts", "split"), ("all_gather", "all_gather that exchanges counts"),
    ],
    ids=lambda pair: f"{pair[0]}-{pair[1]}",
)  # fmt: skip
def test_checked_mode_names_what_each_rank_called(
    pair: tuple[str, str], later: bool, tmp_path: Path, use_settings: Callable[..., None]
) -> None:
    use_settings(checked="1")
    _names_both(pair, later, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
def test_checked_mode_names_every_pair_of_calls(
    later: bool, tmp_path: Path, use_settings: Callable[..., None]
) -> None:
    use_settings(checked="1")
    for pair in itertools.combinations(checked_calls(tmp_path), 2):
        _names_both(pair, later, tmp_path)


def _names_both(pair: tuple[str, str], later: bool, folder: Path) -> None:
    calls = checked_calls(folder)

    def run(w: comm.Communicator) -> None:
        if later:
            for name in pair:
                if name != "sharing_memory":  # whose later calls are no calls of all ranks
                    calls[name](w)
        try:
            calls[pair[w.rank]](w)
        except ParameterError:
            assert w.all_reduce_sum([w.rank]).tolist() == [1]  # the group goes on
            raise

    met = outcomes(2, run)
    assert met[0] == met[1]
    kind, text = met[0]
    assert kind == "ParameterError"
    assert f"call: {pair[0]} on rank 0, {pair[1]} on rank 1" in text
    assert "test_parted_ranks.py:" in text


def test_checked_file_access_beside_a_barrier_names_both(
    tmp_path: Path, use_settings: Callable[..., None]
) -> None:
    use_settings(checked="1")

    def run(w: comm.Communicator) -> None:
        if w.rank == 0:
            w.barrier()
        else:
            U = GaugeField(jali.Lattice(2, 2, 2, 2, communicator=w), jali.SU(2)).cold_start()
            U.save(tmp_path / "links")

    met = outcomes(2, run)
    assert met[0] == met[1]
    assert met[0][0] == "ParameterError"
    assert "call: barrier on rank 0" in met[0][1]
    assert "GaugeField.save on rank 1" in met[0][1]


def test_long_wait_is_named_once_long_before_the_watchdog(
    use_settings: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    use_settings(wait_warning=0.2, watchdog=3)

    def run(w: comm.Communicator) -> None:
        w.all_reduce(np.ones(4))
        if w.rank == 0:
            w.all_reduce(np.ones(4))  # of the data plane: nothing says what is called
        else:
            w.barrier()

    met = outcomes(2, run)
    assert {kind for kind, _ in met} == {"RankError"}
    lines = [line for line in capfd.readouterr().err.splitlines() if "nothing has moved for 0.2 s" in line]
    assert len(lines) == 2
    collective, barrier = sorted(lines)
    assert collective.startswith("jali: rank 0 waited for step")
    assert "of all_reduce of 32 bytes" in collective
    assert "message from rank 1" in collective
    assert "JALI_CHECKED=1" in collective
    assert barrier.startswith("jali: rank 1 waited for a barrier")


def test_waits_that_end_are_not_named(
    use_settings: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    use_settings(wait_warning="30")
    outcomes(2, lambda w: w.barrier())
    assert capfd.readouterr().err == ""


def test_root_that_does_not_exist_is_refused_by_every_rank() -> None:
    assert [kind for kind, _ in outcomes(2, lambda w: w.broadcast_bytes(b"x", 2))] == ["ParameterError"] * 2


def test_group_that_has_parted_refuses_every_later_call() -> None:
    def run() -> None:
        w = comm.current()
        with pytest.raises(RankError):
            w.barrier() if w.rank == 0 else w.gather_bytes(b"")
        raise RankError("ended")

    with pytest.raises(RankError):
        comm.virtual_ranks(2, run)
