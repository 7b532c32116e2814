"""A script of pylops runs on several ranks after two changed lines, and gives the same."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from programs import need_mpi, run_program

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "arrays"
LAPTOP, CLUSTER = FOLDER / "smooth_laptop.py", FOLDER / "smooth_cluster.py"
DIMS = (11, 8, 6)


def test_two_lines_differ() -> None:
    before, after = LAPTOP.read_text().splitlines(), CLUSTER.read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert changed == [
        ("from numpy import load, save", "from jali.arrays import load, save"),
        ("from pylops import Identity, Laplacian", "from jali.linops import Identity, Laplacian"),
    ]


@pytest.fixture(scope="module")
def by_pylops(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray]:
    """Noise, and what the script of one process makes of it."""
    pytest.importorskip("pylops")
    folder = tmp_path_factory.mktemp("laptop")
    noisy = np.random.default_rng(4).normal(size=int(np.prod(DIMS)))
    np.save(folder / "noisy.npy", noisy)
    run_program([sys.executable, LAPTOP, *DIMS], cwd=folder)
    return noisy, np.load(folder / "smooth.npy")


@pytest.mark.short(1)
@pytest.mark.parametrize(
    "ranks",
    [
        1,
        pytest.param(2, marks=pytest.mark.mpi),
        pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.full]),
    ],
)
def test_any_number_of_ranks_writes_the_file_that_pylops_writes(
    ranks: int, by_pylops: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    noisy, smooth = by_pylops
    assert np.linalg.norm(smooth) < 0.7 * np.linalg.norm(noisy)
    np.save(tmp_path / "noisy.npy", noisy)
    command = [sys.executable, CLUSTER, *DIMS]
    if ranks > 1:  # as users start them
        command = [need_mpi().program, "-n", ranks, *command]
    run_program(command, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "smooth.npy"), smooth, rtol=0, atol=1e-7)
