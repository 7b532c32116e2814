"""The benchmark of collectives: it notices every wrong result, counts time as it says, judges by its thresholds."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path

import numpy as np
import pytest

from jali.bench.cases import COLLECTIVES, Case
from jali.bench.collectives import Cell, Report, Timing, sizes_between
from jali.bench.collectives_report import as_json, judge, write_csv, write_plot

KiB, MiB = 1 << 10, 1 << 20


def _filled(collective: str, ranks: int, payload: int, root: int, number: int) -> list[Case]:
    """Cases of all ranks, each holding the right result of round `number`, computed here from what they send."""
    cases = [Case(collective, payload, rank, ranks, root) for rank in range(ranks)]
    for case in cases:
        case.fill(number)
    sent = [case.receive.copy() if collective == "broadcast" else case.send.copy() for case in cases]
    n = cases[0].chunk
    for rank, case in enumerate(cases):
        mine = slice(rank * n, (rank + 1) * n)
        if collective in ("all_reduce", "reduce"):
            result = np.sum(sent, axis=0, dtype=np.float64)
        elif collective == "reduce_scatter":
            result = np.sum(sent, axis=0, dtype=np.float64)[mine]
        elif collective in ("all_gather", "gather"):
            result = np.concatenate(sent)
        elif collective == "broadcast":
            result = sent[root]
        elif collective == "scatter":
            result = sent[root][mine]
        else:
            result = np.concatenate([data[mine] for data in sent])
        if case.receive.size:
            case.receive[:] = result
    return cases


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_right_results_are_right_and_any_other_is_noticed(collective: str) -> None:
    ranks, root = 4, 2
    for payload in (1, 16, 4096, 64 * KiB):
        for number in range(2):
            assert [c.wrong(number) for c in _filled(collective, ranks, payload, root, number)] == [
                ""
            ] * ranks
        for case in _filled(collective, ranks, payload, root, 0):
            if case.receive.size == 0:
                continue
            right = case.receive.copy()
            for i in {0, right.size // 2, right.size - 1}:
                case.receive[i] += 1
                assert f"rank {case.rank} has 1 of {right.size} elements wrong, first at {i}" in case.wrong(0)
                case.receive[:] = right
            if payload >= 4096:
                assert case.wrong(1)  # the result of another round
                case.receive[:] = np.roll(right, case.chunk if right.size > case.chunk else right.size // 2)
                assert case.wrong(0)  # chunks in other places
        fresh = Case(collective, payload, root, ranks, root)
        fresh.fill(0)
        if collective != "broadcast":  # whose root has the result from the start
            assert fresh.wrong(0)  # nothing was done


def test_one_rank_counted_twice_and_another_dropped_is_noticed() -> None:
    cases = _filled("all_reduce", 4, 4096, 0, 0)
    for twice in range(4):
        for dropped in set(range(4)) - {twice}:
            cases[0].receive[:] = (
                np.sum([c.send for c in cases], axis=0) + cases[twice].send - cases[dropped].send
            )
            assert cases[0].wrong(0)


def test_changed_input_is_noticed() -> None:
    case = _filled("all_gather", 2, 1024, 0, 0)[1]
    case.send[-1] = 0
    assert "what it sent was changed" in case.wrong(0)


def test_payload_is_whole_chunks_of_elements() -> None:
    assert [Case("all_gather", payload, 0, 3).payload for payload in (1, 12, 13, 1200)] == [12, 12, 24, 1200]


def test_sizes_reach_from_the_smallest_to_the_largest() -> None:
    assert sizes_between(8, 64 * MiB, 8) == [8 * 8**k for k in range(8)] + [64 * MiB]
    assert sizes_between(8, 100, 10) == [8, 80, 100]


@pytest.mark.parametrize("rounds", [10, 15, 40, 200])
def test_interval_of_the_median_has_95_percent_and_no_more_than_it_needs(rounds: int) -> None:
    cell = Cell("broadcast", 1, {"a": Timing([1.0] * rounds), "b": Timing([float(k) for k in range(rounds)])})
    _, low, high = cell.ratio("a", "b")
    k = int(low)
    assert high == rounds - 1 - k

    def misses(k: int) -> float:  # the median lies outside of sorted values k..n-1-k
        return 2 * sum(comb(rounds, j) for j in range(k + 1)) / 2.0**rounds

    assert misses(k) <= 0.05 < misses(k + 1)


def _report(ratios: dict[int, float], spread: float = 0.02) -> Report:
    """A report in which jali is `ratio` times as fast at each payload, give or take the spread."""
    cells = []
    for payload, ratio in ratios.items():
        theirs = [1e-3 * (1 + spread * (k - 4.5) / 4.5) for k in range(10)]
        cells.append(Cell("gather", payload, {"jali": Timing([1e-3 / ratio] * 10), "mpi": Timing(theirs)}))
    return Report({"ranks": 2, "mpi": "a library"}, ["jali", "mpi"], cells)


def test_thresholds_are_judged_outside_the_spread() -> None:
    good = judge(_report({8: 0.7, 64 * KiB: 1.0, MiB: 2.0}))
    assert [v.holds for v in good] == [True, True, True]
    slow = judge(_report({8: 0.6, 64 * KiB: 0.8, MiB: 3.0}))
    assert [v.holds for v in slow] == [False, True, False]
    assert slow[0].missing == ("gather 64 KiB: 0.80",)
    assert slow[2].missing == ("gather 8 B: 0.60",)
    assert not judge(_report({64 * KiB: 1.2, MiB: 1.3}))[1].holds
    assert judge(_report({64 * KiB: 0.8}, spread=0.3))[0].holds  # not below 0.9 beyond doubt


def test_report_writes_what_was_measured(tmp_path: Path) -> None:
    report = _report({8: 0.7, MiB: 2.0})
    write_csv(report, tmp_path / "a.csv")
    rows = [
        line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines() if not line.startswith("#")
    ]
    assert rows[0][:3] == ["collective", "bytes", "side"]
    assert [row[1:3] for row in rows[1:]] == [
        ["8", "jali"],
        ["8", "mpi"],
        [str(MiB), "jali"],
        [str(MiB), "mpi"],
    ]
    assert float(rows[3][3]) == pytest.approx(0.5e-3)
    parsed = json.loads(json.dumps(as_json(report)))
    assert parsed["cells"][1]["ratio"]["value"] == pytest.approx(2.0)
    assert len(parsed["cells"][0]["mpi"]["rounds_s"]) == 10
    assert len(parsed["verdicts"]) == 3
    write_plot(report, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_sides_take_turns_on_ranks_and_a_wrong_one_is_named(any_mpi) -> None:
    ended = any_mpi.run(
        """
        from mpi4py import MPI
        from jali.bench import collectives
        from jali.bench.collectives import MpiSide, measure
        world = MPI.COMM_WORLD

        class Clock:  # goes by what the calls say that they took
            now = 0.0
            def perf_counter(self):
                return self.now
        clock = collectives.time = Clock()
        turns = []
        class Timed(MpiSide):
            def __init__(self, name, seconds, seconds_of_last):
                super().__init__(world.Dup())
                self.name, self.seconds, self.seconds_of_last = name, seconds, seconds_of_last
            def prepare(self, case):
                call = super().prepare(case)
                def run():
                    turns.append(self.name)
                    clock.now += self.seconds_of_last if case.rank == case.size - 1 else self.seconds
                    call()
                return run
        mpi, slow = Timed("mpi", 0.25, 0.25), Timed("slow", 0.25, 1.0)
        report = measure(world, [slow, mpi], [8, 4096], warm_ups=1, rounds=3, seconds=0, root=1)
        assert len(report.cells) == 16
        for cell in report.cells:
            assert set(cell.timings["slow"].seconds) == {1.0}, cell
            assert set(cell.timings["mpi"].seconds) == {0.25}, cell
        for first, second in zip(turns[::2], turns[1::2]):
            assert {first, second} == {"mpi", "slow"}
        assert {("slow", "mpi"), ("mpi", "slow")} == set(zip(turns[::2], turns[1::2]))
        class Wrong:
            name = "wrong"
            def prepare(self, case):
                call = mpi.prepare(case)
                def run():
                    call()
                    if case.rank == 1:
                        case.receive[-1] = 0
                return run
        try:
            measure(world, [mpi, Wrong()], [4096], ["all_gather"], warm_ups=1, rounds=3)
        except RankError as error:
            print("told", str(error).split(": rank")[0], flush=True)
        """
    )
    assert ended.status == 0, ended.err
    assert ended.out.splitlines() == ["told wrong: round 0: all_gather of 4096 B"] * any_mpi.ranks
