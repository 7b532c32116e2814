"""The example of least-squares migration gives the numbers that are known, on any number of ranks, and its picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jali import comm
from jali.examples import Options, lsm, verdicts

SMALL = lsm.SIZES["small"]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.full), 3])
def test_residuals_are_those_that_are_known(ranks: int, tmp_path: Path) -> None:
    p = lsm.SIZES["laptop"]
    found = comm.virtual_ranks(ranks, lambda: lsm.solve(replace(p, iterations=5), Options()))
    for one in found:
        entries = verdicts(one.numbers, lsm.expected(p, one))
        assert [entry.name for entry in entries] == ["fall", "residuals - PyLops-MPI"]
        assert all(entry.holds for entry in entries), entries
        assert one.series == found[0].series
    pytest.importorskip("matplotlib").use("Agg")
    lsm.draw(found[0], tmp_path / "lsm.png")
    assert (tmp_path / "lsm.png").stat().st_size > 10_000


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.full), 4])
def test_residuals_of_other_sizes_are_those_of_serial_pylops(ranks: int) -> None:
    pytest.importorskip("pylops")
    found = comm.virtual_ranks(ranks, lambda: lsm.solve(SMALL, Options()))[0]
    entries = verdicts(found.numbers, lsm.expected(SMALL, found))
    assert [entry.name for entry in entries] == ["fall", "residuals - pylops"]
    assert all(entry.holds for entry in entries), entries
    found.series["residual"][3] *= 1.001
    assert [entry.holds for entry in verdicts(found.numbers, lsm.expected(SMALL, found))] == [True, False]


def test_ranks_may_have_so_many_sources_each() -> None:
    p = replace(SMALL, sources=0, sources_per_rank=2, iterations=2)
    for ranks in (1, 3):
        found = comm.virtual_ranks(ranks, lambda: lsm.solve(p, Options()))[0]
        assert found.numbers["sources"] == 2 * ranks


def test_an_iteration_is_one_all_reduce_of_the_image_and_two_of_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    all_reduce = comm.Communicator.all_reduce

    def counted(self: comm.Communicator, x: object, *arguments: object, **named: object) -> object:
        calls.append(getattr(x, "size", 1))
        return all_reduce(self, x, *arguments, **named)

    monkeypatch.setattr(comm.Communicator, "all_reduce", counted)

    def calls_of(iterations: int) -> list[int]:
        calls.clear()
        comm.virtual_ranks(2, lambda: lsm.solve(replace(SMALL, iterations=iterations), Options()))
        return sorted(calls)

    few, many = calls_of(2), calls_of(5)
    image = SMALL.nx * SMALL.nz
    assert many.count(image) - few.count(image) == 2 * 3
    assert len(many) - len(few) <= 2 * 3 * 3


def test_the_time_of_iterations_and_the_part_of_communication_are_measured() -> None:
    alone, two = (
        comm.virtual_ranks(ranks, lambda: lsm.solve(SMALL, Options()))[0].times["iterations"]
        for ranks in (1, 2)
    )
    assert alone.steps == two.steps == SMALL.iterations
    assert alone.seconds > 0
    assert alone.communication < 0.05
    assert 0 < two.communication < 1
