"""Solvers where numbers, arguments and vectors are at their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray
from jali.errors import LayoutError, ParameterError, SolverError
from jali.linops import BlockDiag
from jali.solvers import ADMM, CG, CGLS, L2, L21, ProximalGradient, cgls, fista, ista, lsqr, power_iteration


class Matrix:
    """A matrix as an operator on NumPy's vectors."""

    def __init__(self, a: np.ndarray) -> None:
        self.a, self.shape, self.dtype = a, a.shape, a.dtype

    def matvec(self, x: np.ndarray) -> np.ndarray:
        return self.a @ x

    def rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self.a.conj().T @ y


def ill(rows: int, columns: int, condition: float, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    left = np.linalg.qr(generator.normal(size=(rows, columns)))[0]
    right = np.linalg.qr(generator.normal(size=(columns, columns)))[0]
    a = (left * np.logspace(0, -np.log10(condition), columns)) @ right
    if np.dtype(dtype).kind == "c":
        a = a * np.exp(1j * generator.uniform(size=a.shape))
    return a.astype(dtype)


@pytest.mark.parametrize("damp", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("form", [(12, 9, 10.0), (40, 20, 10.0), (40, 20, 1e3), (200, 100, 1e2)])
def test_cgls_without_a_tolerance_stops_before_rounding_grows(
    form: tuple[int, int, float], dtype: str, damp: float
) -> None:
    """The recursion that goes on from rounding doubles its error in every step, to 1e80."""
    epsilon = float(np.finfo(dtype).eps)
    for seed in range(3):
        a = ill(*form, dtype, seed)
        y = np.random.default_rng(seed + 7).normal(size=form[0]).astype(dtype)
        found = cgls(Matrix(a), y, maxiter=1500, rtol=0, damp=damp)
        wide = a.astype("complex128")
        right = np.linalg.solve(
            wide.conj().T @ wide + damp**2 * np.eye(form[1]), wide.conj().T @ y.astype("complex128")
        )
        allowed = 200 * epsilon * form[2]
        assert np.linalg.norm(found.x - right) <= allowed * np.linalg.norm(right)
        assert found.istop == 1
        assert found.iterations < 1500


def test_solvers_of_consistent_systems_stop_where_residuals_vanish() -> None:
    a = ill(20, 20, 10.0, "float64", 1)
    positive = a.T @ a + np.eye(20)
    right = np.arange(20.0)
    for found in (
        CG(Matrix(positive)).solve(positive @ right, maxiter=5000, rtol=0),
        cgls(Matrix(a), a @ right, maxiter=5000, rtol=0),
    ):
        np.testing.assert_allclose(found.x, right, rtol=1e-11, atol=1e-11)
        assert found.iterations < 500


def test_nan_is_reported_by_cg() -> None:
    y = np.array([1.0, np.nan])
    with pytest.raises(SolverError, match=r"CG: b contains infinities or nan \(1 numbers\)"):
        CG(Matrix(np.eye(2))).solve(y)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda A, x, y: cgls(A, y, x.astype("int64")), LayoutError, "not with arrays of int64"),
        (lambda A, x, y: lsqr(A, y, x.astype("int64")), LayoutError, "not with arrays of int64"),
        (lambda A, x, y: ista(A, y, x.astype("int64")), LayoutError, "not with arrays of int64"),
        (lambda A, x, y: ista(A, y, alpha=-1.0), ParameterError, "alpha is a positive number"),
        (lambda A, x, y: fista(A, y, alpha=np.nan), ParameterError, "alpha is a positive number"),
        (lambda A, x, y: ista(A, y, alpha=0.1, decay=[1.0] * 3), ParameterError, "decay has 3 factors"),
        (lambda A, x, y: ADMM(L2(), L2(), x, 1.0, maxiter=2.5), ParameterError, "ADMM: maxiter is a whole"),
        (
            lambda A, x, y: ProximalGradient(L2(), L2(), x, tau=1.0, maxiter=-1),
            ParameterError,
            "ProximalGradient: maxiter is a whole number from 0, not -1",
        ),
        (lambda A, x, y: CGLS(A).run(x, maxiter=3), ParameterError, "nothing to run before setup"),
        (
            lambda A, x, y: cgls(A, y, callback=3),
            ParameterError,
            "a callback is a function of x, or has methods as on_step_end, not 3",
        ),
        (lambda A, x, y: CGLS(A, callback=[3]), ParameterError, "a callback is a function of x, or has"),
        (
            lambda A, x, y: power_iteration(A, DistributedArray((0,))),
            ParameterError,
            "like has no elements",
        ),
    ],
)
def test_what_makes_no_sense_is_said(call: Any, error: type[Exception], words: str) -> None:
    def run() -> None:
        A = BlockDiag([np.eye(2)])
        x = DistributedArray((4,))
        x[:] = 1.0
        with pytest.raises(error, match=words):
            call(A, x, A @ x)

    comm.virtual_ranks(2, run)


def test_l21_of_one_vector_is_l1() -> None:
    v = np.linspace(-2, 2, 7) * (1 + 0.5j)

    def run() -> None:
        x = DistributedArray.to_dist(v)
        f = L21(1, 0.7)
        shrunk = v * np.maximum(1 - 0.7 * 0.3 / np.maximum(abs(v), 1e-30), 0)
        np.testing.assert_allclose(f.prox(x, 0.3).asarray(), shrunk, rtol=1e-13)
        np.testing.assert_allclose(f.prox(v, 0.3), shrunk, rtol=1e-13)
        np.testing.assert_allclose(
            f.proxdual(x, 0.3).asarray(), v * 0.7 / np.maximum(abs(v), 0.7), rtol=1e-13
        )

    comm.virtual_ranks(2, run)
