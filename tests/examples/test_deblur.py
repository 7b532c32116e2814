"""A blurred picture becomes sharp: the example's solutions are those of dense least squares, and the same on two ranks."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import need_mpi, run_program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "arrays" / "deblur.py"


def test_least_squares_are_the_dense_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--size", "20", "--picture", str(tmp_path / "x.png")])
    found = runpy.run_path(str(EXAMPLE), run_name="__main__")
    n, mu, y, image = (found[name] for name in ("n", "mu", "y", "image"))
    down, along = np.zeros((n, n)), np.zeros((n, n))
    for matrix, h in zip((down, along), found["FILTERS"], strict=True):
        for row in range(n):
            for column in range(n):
                if abs(row - column) <= 6:
                    matrix[row, column] = h[row - column + 6]
    A = np.kron(down, along)
    assert np.allclose(A @ image + found["noise"], y, rtol=1e-13)
    D = np.diff(np.eye(n), axis=0)
    differences = np.concatenate([np.kron(D, np.eye(n)), np.kron(np.eye(n), D)])
    expected = np.linalg.solve(A.T @ A + mu * differences.T @ differences, A.T @ y)
    assert np.allclose(found["found"]["cgls, differences"], expected, rtol=0, atol=1e-6)
    stopped = np.linalg.norm(A @ found["found"]["lsqr, to the noise"] - y)
    assert 0.8 * np.linalg.norm(found["noise"]) < stopped <= np.linalg.norm(found["noise"])
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.mpi
def test_two_ranks_print_the_same_errors() -> None:
    command = [sys.executable, EXAMPLE]
    alone = run_program(command).stdout
    assert re.search(r"cgls, few edges +error 0\.0\d+", alone), alone
    assert run_program([need_mpi().program, "-n", 2, *command]).stdout == alone
