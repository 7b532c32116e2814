"""Gauge theory on several ranks: the same bits as on one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import jali
from jali.gauge import (
    SU,
    Flow,
    GaugeField,
    ape_smear,
    link_trace,
    measure_field_strength,
    metropolis_sweep,
    plaquettes,
    polyakov_loop,
    stout_smear,
    sweep,
    wilson_action,
    wilson_loops,
)

pytestmark = pytest.mark.lanes


def digest(U: GaugeField) -> str:
    """SHA-256 of all links in site order."""
    links = b"".join(field[...].tobytes() for field in U.fields)
    return hashlib.sha256(links).hexdigest()


def history(
    n: int, beta: float, extents: tuple[int, ...], precision: str, grid: Any = None
) -> tuple[Any, ...]:
    """Everything that a run can say about itself, exactly."""
    lattice = jali.Lattice(*extents, grid=grid)
    U = GaugeField(lattice, SU(n), precision=precision).hot_start(11)
    rng = jali.Random(3)
    found: list[Any] = [digest(U)]
    for _ in range(2):
        sweep(U, beta, rng, 1, 1)
        found += [plaquettes(U), polyakov_loop(U)]
    found.append(metropolis_sweep(U, beta, rng))
    found += [digest(U), link_trace(U), wilson_action(beta).value(U)]
    found += [polyakov_loop(U, mu) for mu in range(len(extents))]
    found.append(wilson_loops(U, 2, 3).tobytes())
    V = Flow(U, 0.05).advance(2)
    found += [digest(V), repr(measure_field_strength(V))]
    found += [digest(stout_smear(U, 0.1, 2)), digest(ape_smear(U, 0.5)), digest(U.reunitarise())]
    return tuple(found)


CASES = [
    pytest.param(3, 5.7, (4, 4, 4, 8), "float64", marks=pytest.mark.full),
    (3, 5.7, (4, 4, 4, 8), "float32"),
    pytest.param(2, 0.4, (6, 4, 6), "float64", marks=pytest.mark.full),
    (1, 2.0, (8, 12), "float64"),
    (2, 2.0, (5, 6, 7), "float64"),
]


@pytest.mark.short(1)
@pytest.mark.parametrize(("n", "beta", "extents", "precision"), CASES)
def test_a_run_is_the_same_on_any_number_of_ranks(
    n: int, beta: float, extents: tuple[int, ...], precision: str
) -> None:
    one = history(n, beta, extents, precision)
    for ranks in (2, 3, 4):
        for result in jali.virtual_ranks(ranks, history, n, beta, extents, precision):
            assert result == one


@pytest.mark.full
def test_a_run_is_the_same_on_different_rank_grids() -> None:
    arguments = (3, 5.7, (4, 4, 4, 8), "float64")
    one = history(*arguments)
    for grid in ((1, 1, 1, 2), (2, 1, 1, 1), (1, 2, 1, 1)):
        for result in jali.virtual_ranks(2, history, *arguments, grid):
            assert result == one


def test_ranks_read_and_write_one_file(tmp_path: Path) -> None:
    def start() -> GaugeField:
        return GaugeField(jali.Lattice(4, 6, 4, 8), SU(3)).hot_start(4)

    start().save(tmp_path / "one")
    U = start()

    def on_ranks() -> tuple[str, str]:
        start().save(tmp_path / "three")
        return digest(GaugeField.from_file(tmp_path / "one")), digest(
            GaugeField.from_file(tmp_path / "three")
        )

    for result in jali.virtual_ranks(3, on_ranks):
        assert result == (digest(U), digest(U))
