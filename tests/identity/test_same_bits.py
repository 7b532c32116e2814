"""Same seed, same bits: the strongest test we own (docs/notes/same-bits.md)."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

import pytest
from programs import need_mpi, need_openmpi, on_ranks, run_program

import jali
from jali import _core

sys.path.insert(0, str(Path(__file__).parent))

import history

pytestmark = pytest.mark.lanes

PROGRAM = Path(__file__).parent / "history.py"


@pytest.fixture(scope="module")
def reference():
    return history.both()


def test_history_moves_and_precisions_differ(reference):
    rows = reference["float64"]["rows"]
    assert len({row[0] for row in rows}) == history.SWEEPS + 1
    assert reference["float64"]["links"] != reference["float32"]["links"]
    assert reference["float64"]["flow"][0] != rows[-1][0]
    assert 0.3 < float.fromhex(rows[-1][0]) < 0.7
    starts = [float.fromhex(reference[p]["rows"][0][0]) for p in reference]
    assert abs(starts[0] - starts[1]) < 1e-6  # the same random numbers, rounded


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [2, 3, 6, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 4))])
def test_same_bits_on_any_number_of_virtual_ranks(reference, ranks):
    assert all(result == reference for result in jali.virtual_ranks(ranks, history.both))


@pytest.mark.short(1)
@pytest.mark.parametrize(
    "grid",
    [
        (1, 1, 1, 4),
        (2, 1, 2, 1),
        *(pytest.param(grid, marks=pytest.mark.full) for grid in ((2, 2, 1, 1), (1, 4, 1, 1))),
    ],
)
def test_same_bits_on_any_rank_grid(reference, grid):
    assert jali.virtual_ranks(4, history.both, grid)[0] == reference


@pytest.mark.short(2)
@pytest.mark.parametrize("policy", [name for name, *_ in jali._core.halo_policies()])
def test_same_bits_with_every_halo_policy(reference, policy, use_settings):
    use_settings(halo_policy=policy)
    assert jali.virtual_ranks(3, history.both)[0] == reference


def test_same_bits_with_the_tables_of_large_layouts(reference, monkeypatch):
    monkeypatch.setattr(_core, "Layout", functools.partial(_core.Layout, block_bits=28))
    assert history.both() == reference


@pytest.mark.short(1)
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_same_bits_with_narrower_vectors(reference, lanes):
    assert history.both(lanes=lanes) == reference


def test_same_bits_without_halo_items(reference):
    assert jali.virtual_ranks(2, history.both, halo_items=False)[0] == reference


@pytest.mark.short(1)
@pytest.mark.parametrize(("first", "second"), [(1, 3), (4, 1), (2, 6)])
def test_same_bits_when_resumed_on_another_number_of_ranks(reference, first, second, tmp_path):
    jali.virtual_ranks(first, history.both, None, tmp_path)
    assert jali.virtual_ranks(second, history.both, None, tmp_path)[0] == reference


def run_with_mpi(python: str, ranks: int, *arguments: str) -> dict:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "JALI_TEST"))}
    done = run_program(on_ranks(ranks, python, PROGRAM, *arguments, python=python), env=environment)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.mpi
@pytest.mark.short(1)
def test_same_bits_on_two_mpich_ranks(reference):
    need_mpi()
    assert run_with_mpi(sys.executable, 2) == reference


@pytest.mark.full
@pytest.mark.mpi
def test_same_bits_on_four_open_mpi_ranks(reference):
    assert run_with_mpi(need_openmpi(), 4) == reference


@pytest.mark.full
@pytest.mark.mpi
def test_same_bits_when_mpi_continues_what_virtual_ranks_began(reference, tmp_path):
    need_mpi()
    jali.virtual_ranks(3, history.both, None, tmp_path)
    assert run_with_mpi(sys.executable, 2, str(tmp_path)) == reference
