"""Why a solver failed is measured, and the message says it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_solvers_in_corner_cases import Matrix, ill

import jali
from jali import Field, Lattice, Real, comm
from jali.arrays import DistributedArray
from jali.errors import ParameterError, SolverError
from jali.linops import BlockDiag
from jali.solvers import (
    ADMM,
    ADMML2,
    CG,
    L2,
    L21,
    LinearizedADMM,
    PrimalDual,
    ProximalGradient,
    cg,
    cgls,
    fista,
    ista,
    lsqr,
    power_iteration,
)
from jali.solvers.causes import ritz_values

DTYPES = ["float64", "float32", "complex128", "complex64"]
RANKS = [1, 2, 3]


def numbers(shape: Any, dtype: str, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(2, *np.atleast_1d(shape)))
    return (x[0] + 1j * x[1] if np.dtype(dtype).kind == "c" else x[0]).astype(dtype)


def positive(n: int, condition: float, dtype: str, seed: int) -> np.ndarray:
    """A Hermitian matrix with eigenvalues from 1 to 1 / condition."""
    q = np.linalg.qr(numbers((n, n), dtype, seed))[0]
    return ((q * np.logspace(0, -np.log10(condition), n)) @ q.conj().T).astype(dtype)


def on_ranks(ranks: int, a: np.ndarray, b: np.ndarray, solve: Any) -> Any:
    """`solve` of a block of the operator, and a part of b, on each rank."""

    def run() -> Any:
        return solve(BlockDiag([a]), DistributedArray.to_dist(np.tile(b, ranks)))

    return comm.virtual_ranks(ranks, run)


# ---- conjugate gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("skew", [0.01, 0.3, 3.0])
def test_an_operator_that_is_not_hermitian_is_said_to_be_none(ranks: int, dtype: str, skew: float) -> None:
    """p^dagger A p is real and positive in each direction of real vectors, and more iterations help nothing."""
    a, s = positive(30, 1e4, dtype, 1), numbers((30, 30), dtype, 2)
    a = a + skew * (s - s.conj().T) / 10
    for must_converge in (True, False):
        with pytest.raises(SolverError, match="is not Hermitian") as raised:
            on_ranks(
                ranks,
                a,
                numbers(30, dtype, 3),
                lambda A, b, must=must_converge: cg(A, b, rtol=1e-12, maxiter=5000, must_converge=must),
            )
        assert "more iterations" not in str(raised.value)


@jali.site_function
def upwind(X: Any, out: Any, phi: Any) -> None:
    """phi less its neighbour behind in each direction, and a mass."""
    total = (0.05 + X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X - mu]
    out[X] = total


@pytest.mark.parametrize("check_interval", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_fields_of_an_operator_that_is_not_hermitian(ranks: int, check_interval: int) -> None:
    def run() -> None:
        b = Field(Lattice(8, 6), Real())
        b[...] = numbers((8, 6), "float64", 1)
        with pytest.raises(
            SolverError, match=r"has grown to .* from .*: the operator is not Hermitian: <u, A v> = "
        ):
            cg(lambda p, q: upwind(q, p), b, maxiter=10**6, check_interval=check_interval)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_row_of_many_is_found(dtype: str) -> None:
    """An edge that is treated otherwise from one side alone."""
    n = 400
    a = np.diag(np.linspace(1, 40, n)).astype(dtype)
    a[0, n // 2], a[n // 2, 0] = 15, 2
    with pytest.raises(SolverError, match="is not Hermitian"):
        cg(
            Matrix(a),
            np.ones(n, dtype),
            rtol=1e-5 if dtype in ("float32", "complex64") else 1e-10,
            maxiter=300,
        )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", DTYPES)
def test_hermitian_operators_are_not_accused(dtype: str, seed: int) -> None:
    """However ill-conditioned, and though residuals grow on the way: what fails, fails for another cause."""
    condition = 10 ** np.random.default_rng(seed).uniform(0, 6)
    a, b = positive(25, condition, dtype, seed), numbers(25, dtype, seed + 100)
    a = (a + a.conj().T) / 2
    for maxiter in (3, 60, 1000):
        said = ""
        try:
            cg(Matrix(a), b, rtol=1e-7, maxiter=maxiter)
        except SolverError as error:
            said = str(error)
        assert "Hermitian" not in said
        assert "not positive" not in said


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", RANKS)
def test_indefinite_operators_are_said_to_be_indefinite(ranks: int, dtype: str) -> None:
    a = positive(30, 100, dtype, 1) - 0.3 * np.eye(30, dtype=dtype)
    low, high = np.linalg.eigvalsh(a)[[0, -1]]
    with pytest.raises(
        SolverError, match=r"not positive definite: eigenvalues reach from (\S+) or less to (\S+) or"
    ) as raised:
        on_ranks(ranks, a, numbers(30, dtype, 3), lambda A, b: cg(A, b))
    words = str(raised.value).split()
    reported_low, reported_high = (float(words[words.index(word) + 1]) for word in ("from", "to"))
    assert low * 1.01 <= reported_low < 0
    assert reported_high <= high * 1.01


@jali.site_function
def laplace(X: Any, out: Any, phi: Any) -> None:
    total = 2 * X.ndim * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_singular_operator_is_said_to_be_singular(ranks: int, precision: str) -> None:
    """The periodic Laplacian: a constant is none of its images."""

    def run() -> None:
        b = Field(Lattice(8, 6), Real(), precision=precision)
        b[...] = numbers((8, 6), "float64", 1) + 0.5
        with pytest.raises(SolverError, match="the operator is singular up to rounding in"):
            cg(lambda p, q: laplace(q, p), b, rtol=1e-5)
        b[...] = b[...] - b[...].mean()
        assert cg(lambda p, q: laplace(q, p), b, rtol=1e-5).converged

    comm.virtual_ranks(ranks, run)


def test_a_tolerance_below_rounding_is_reported() -> None:
    a = positive(40, 1e6, "float64", 1)
    b = numbers(40, "float64", 2)
    with pytest.raises(
        SolverError, match=r"\|b - A x\|/\|b\| is .* below what rounding in float64 allows"
    ) as raised:
        cg(Matrix(a), b, rtol=1e-15, maxiter=10000)
    tolerance = float(str(raised.value).split("ask for ")[1].split()[0])
    assert cg(Matrix(a), b, rtol=tolerance, maxiter=10000).converged
    honest = cg(Matrix(a), b, rtol=1e-15, maxiter=10000, must_converge=False)
    assert not honest.converged
    assert honest.residual > 1e-14 > honest.history[-1]


def test_too_few_iterations_are_reported_with_the_condition() -> None:
    a = positive(60, 1e4, "float64", 1)
    with pytest.raises(
        SolverError, match=r"condition of the operator is (\S+) or more: allow more iterations"
    ) as raised:
        cg(Matrix(a), numbers(60, "float64", 2), maxiter=30)
    reported = float(str(raised.value).split("operator is ")[1].split()[0])
    assert 100 < reported <= 1.1e4


def test_ritz_values_are_eigenvalues_when_the_space_is_exhausted() -> None:
    a, b = np.diag([1.0, 2, 5, 7]), np.ones(4)
    x, r, curvatures, squares = np.zeros(4), b.copy(), [], [4.0]
    p = r.copy()
    for _ in range(4):
        curvatures.append(p @ a @ p)
        step = squares[-1] / curvatures[-1]
        x, r = x + step * p, r - step * a @ p
        squares.append(r @ r)
        p = r + squares[-1] / squares[-2] * p
    assert ritz_values(curvatures, squares) == pytest.approx((1, 7), rel=1e-10)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("solve", [cg, cgls, lsqr, ista, fista, lambda A, b, x0=None: CG(A).solve(b, x0)])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_source_of_infinities_and_nan_is_reported(ranks: int, solve: Any, value: float) -> None:
    a, b = np.eye(4) * 2, np.ones(4)
    bad, wrong = b.copy(), a.copy()
    bad[2] = wrong[1, 2] = value
    with pytest.raises(SolverError, match=rf": b contains infinities or nan \({ranks} numbers\)"):
        on_ranks(ranks, a, bad, solve)
    with pytest.raises(SolverError, match=rf": x0 contains infinities or nan \({ranks} numbers\)"):
        on_ranks(ranks, a, b, lambda A, y: solve(A, y, DistributedArray.to_dist(np.tile(bad, ranks))))
    with pytest.raises(
        SolverError, match=r"(operator|adjoint) produced infinities or nan|A.* contains infinities or nan"
    ):
        on_ranks(ranks, wrong, b, solve)


@pytest.mark.parametrize("solve", [cgls, lsqr, lambda A, b: CG(A).solve(b)])
def test_squares_that_overflow_are_distinguished_from_infinities(solve: Any) -> None:
    with pytest.raises(
        SolverError, match="squares of b .*are larger than float64 can hold; scale the problem down"
    ):
        solve(Matrix(np.eye(3)), np.full(3, 1e200))


# ---- adjoints ------------------------------------------------------------------------------------------------


class Claimed(Matrix):
    """A matrix with another one in place of its adjoint."""

    def __init__(self, a: np.ndarray, adjoint: np.ndarray) -> None:
        super().__init__(a)
        self.adjoint = adjoint

    def rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self.adjoint @ y


@pytest.mark.parametrize("wrong", ["twice", "no conjugate", "another"])
@pytest.mark.parametrize("solve", [cgls, lsqr])
@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_adjoint_is_reported(solve: Any, wrong: str, seed: int) -> None:
    a, b = numbers((12, 8), "complex128", seed), numbers(12, "complex128", seed + 9)
    adjoint = {
        "twice": 2 * a.conj().T,
        "no conjugate": a.T,
        "another": numbers((8, 12), "complex128", seed + 20),
    }[wrong]
    with pytest.raises(SolverError, match=r"rmatvec is not the adjoint of matvec: \|A v\|\^2 = "):
        solve(Claimed(a, adjoint), b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solve", [cgls, lsqr])
def test_true_adjoints_are_not_accused(solve: Any, dtype: str) -> None:
    """From zero, from near the solution and from it; with damping; of ill-conditioned and of inconsistent systems."""
    for seed in range(6):
        a = ill(20, 12, 10.0 ** (2 * seed), dtype, seed)
        x = numbers(12, dtype, seed)
        for b in (a @ x, numbers(20, dtype, seed + 5)):
            near = np.linalg.lstsq(a, b, rcond=None)[0].astype(dtype)
            for x0 in (None, x, near, near + 1e-3 * x):
                for damp in (0.0, 0.3):
                    solve(Matrix(a), b, x0, damp=damp, maxiter=300)


# ---- steps that are too long -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_divergence_is_an_error(ranks: int) -> None:
    """There x is nan, and nothing says so."""
    a, b = np.diag([1.0, 2, 3]), np.ones(3)

    def run() -> None:
        A, y = BlockDiag([a]), DistributedArray.to_dist(np.tile(b, ranks))
        x0, f = y.zeros_like(), L2(b=y)
        g = L21(1, 0.1)
        diverging = {
            "ProximalGradient": lambda: ProximalGradient(L2(A, y), g, x0, tau=1e9, maxiter=100),
            "PrimalDual": lambda: PrimalDual(L2(b=y, sigma=1e-6), L2(), A, x0, tau=1e3, mu=1e3, maxiter=300),
        }
        for name, call in diverging.items():
            with (
                np.errstate(all="ignore"),
                pytest.raises(SolverError, match=rf"{name}: x contains infinities or nan .*take smaller"),
            ):
                call()
        with pytest.raises(SolverError, match="ADMM: x contains infinities or nan .* so does x0"):
            ADMM(f, g, x0 * np.nan, 1.0)
        with pytest.raises(SolverError, match="LinearizedADMM: x contains infinities or nan .* so does z0"):
            LinearizedADMM(f, g, A, x0, 1.0, 0.1, z0=y * np.nan)
        with pytest.raises(SolverError, match="CGLS: b contains infinities or nan"):
            ADMML2(g, A, y * np.nan, A, x0, 1.0)
        with pytest.raises(SolverError, match="produced infinities or nan"):
            power_iteration(np.nan * A, x0)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("library", ["pylops", "scipy"])
@pytest.mark.parametrize("name", ["cg", "cgls", "lsqr", "ista", "fista", "power_iteration"])
def test_a_serial_operator_with_a_field_is_reported_as_serial(library: str, name: str) -> None:
    b = Field(Lattice(4, 4), Real())
    b[...] = np.arange(16.0).reshape(4, 4)
    A: Any = pytest.importorskip("pylops").MatrixMult(np.eye(16))
    if library == "scipy":
        A = pytest.importorskip("scipy.sparse.linalg").aslinearoperator(np.eye(16))
    arguments = {"ista": {"maxiter": 2}, "fista": {"maxiter": 2}}.get(name, {})
    with pytest.raises(
        ParameterError, match=rf"is a {library}.*acts on arrays of one process, not on a Field"
    ):
        getattr(jali.solvers, name)(A, b, **arguments)
