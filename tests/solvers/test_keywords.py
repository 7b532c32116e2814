"""One thing has one name in all solvers, and a name that is none is answered with the one that is meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_solvers_in_corner_cases import Matrix

import jali
from jali import comm, fermions, gauge, linops, solvers
from jali.arrays import DistributedArray
from jali.gauge import SU, GaugeField
from jali.keywords import ELSEWHERE
from jali.linops import BlockDiag
from jali.solvers import (
    ADMM,
    CG,
    CGLS,
    FISTA,
    L2,
    LSQR,
    ProximalGradient,
    cg,
    cgls,
    fista,
    lsqr,
    power_iteration,
)

ITERATIVE = [
    *(solvers.cg, solvers.cgls, solvers.lsqr, solvers.ista, solvers.fista, solvers.power_iteration),
    *(solvers.ADMM, solvers.ADMML2, solvers.LinearizedADMM, solvers.PrimalDual, solvers.ProximalGradient),
    *(solvers.CG.solve, solvers.CGLS.solve, solvers.LSQR.solve, solvers.CG.setup, solvers.CGLS.setup),
    *(solvers.LSQR.setup, solvers.ISTA.setup, gauge.landau_gauge, gauge.coulomb_gauge),
]
# words of other libraries that no public function has; the others of the table mean something else somewhere
FOREIGN = set(ELSEWHERE) - {
    "rtol",
    "every",
    "y",
    "Op",
    "operator",
    "apply",
    "comm",
    "communicator",
    "limit",
    "iterations",
}
BY_RULES = (
    "SolverChoice",
    "choose",
    "solve",
    "tune_solver",
)  # whose tolerance is that of |b - A x|, whatever a solver calls its own


def public(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            yield name, thing
            yield from (
                (f"{name}.{method}", function)
                for method, function in inspect.getmembers(thing, inspect.isfunction)
                if not method.startswith("_")
            )
        elif callable(thing):
            yield name, thing


@pytest.mark.parametrize("module", [solvers, gauge, linops, fermions], ids=lambda module: module.__name__)
def test_no_public_function_has_a_second_spelling(module: Any) -> None:
    for name, function in public(module):
        try:
            words = set(inspect.signature(function).parameters)
        except ValueError:
            continue  # of a class in C
        by_rules = name in BY_RULES or name.endswith(".propagator")  # which is jali.solve's
        assert not words & (FOREIGN - {"tolerance"} if by_rules else FOREIGN), name
        if module is solvers and not name.startswith("Vectors"):
            assert not words & {"Op", "y", "limit", "every", "operator", "apply", "comm"}, name


@pytest.mark.parametrize("solve", ITERATIVE, ids=lambda function: function.__qualname__)
def test_all_solvers_have_the_same_words(solve: Any) -> None:
    words = inspect.signature(solve).parameters
    assert "maxiter" in words
    assert words["maxiter"].kind is inspect.Parameter.KEYWORD_ONLY
    assert {"rtol", "atol"} & set(words)
    for word, parameter in words.items():
        if parameter.default is not inspect.Parameter.empty and word not in ("x0", "y0"):
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, word


def test_tolerances_mean_the_same_in_all_linear_solvers() -> None:
    """A solution within rtol |b|, or within atol, from any of them; of CGLS the gradient's."""
    generator = np.random.default_rng(3)
    a = generator.normal(size=(20, 20))
    a, b = a @ a.T + np.eye(20), generator.normal(size=20)
    A, size = Matrix(a), np.linalg.norm(b)
    for solve in (cg, lambda *given, **named: CG(A).solve(*given[1:], **named)):
        for x0 in (None, np.ones(20)):
            found = solve(A, b, x0, rtol=1e-3)
            history = getattr(found, "history", None) or np.divide(found.cost, size)
            assert history[-1] <= 1e-3 < history[-2]
            assert np.linalg.norm(b - a @ found.x) <= 1.001e-3 * size
            found = solve(A, b, x0, rtol=0, atol=1e-5)
            history = np.array(getattr(found, "history", found[2] if isinstance(found, tuple) else None))
            assert np.linalg.norm(b - a @ found.x) <= 1.001e-5
            assert history[-2] * (size if solve is cg else 1) > 1e-5
    for x0 in (None, np.ones(20)):
        x = cgls(A, b, x0, rtol=1e-3).x
        assert np.linalg.norm(a @ (b - a @ x)) <= 1.001e-3 * np.linalg.norm(a @ b)
        x = cgls(A, b, x0, rtol=0, atol=1e-5).x
        assert np.linalg.norm(a @ (b - a @ x)) <= 1.001e-5


def test_callbacks_are_the_same_in_all_solvers() -> None:
    a, b = np.diag([1.0, 2, 3, 4]), np.ones(4)
    A, f, g = Matrix(a), L2(b=b), L2()

    def run(ranks: int) -> list[int]:
        on_ranks, y = BlockDiag([a]), DistributedArray.to_dist(np.tile(b, ranks))
        counts = []
        for solve in (
            lambda seen: cg(A, b, callback=seen),
            lambda seen: cg(on_ranks, y, callback=seen),
            lambda seen: cgls(on_ranks, y, maxiter=3, callback=seen),
            lambda seen: lsqr(on_ranks, y, maxiter=3, callback=seen),
            lambda seen: fista(on_ranks, y, maxiter=3, callback=seen),
            lambda seen: CG(on_ranks, callback=seen).solve(y, maxiter=3),
            lambda seen: LSQR(on_ranks, callback=[seen]).solve(y, maxiter=3),
            lambda seen: ADMM(f, g, b, 1.0, maxiter=3, callback=seen),
            lambda seen: ProximalGradient(f, g, b, tau=0.1, maxiter=3, callback=seen),
        ):
            vectors: list[Any] = []
            solve(vectors.append)
            assert all(x is not None for x in vectors)
            counts.append(len(vectors))
        return counts

    assert run(1) == [4, 4, 3, 3, 3, 3, 3, 3, 3]
    assert comm.virtual_ranks(2, run, 2) == [[4, 4, 3, 3, 3, 3, 3, 3, 3]] * 2


def test_a_callback_of_fields_sees_the_solution_wherever_the_host_looks() -> None:
    @jali.site_function
    def twice(X: Any, out: Any, phi: Any) -> None:
        out[X] = (2 + X.coordinate(0)) * phi[X]

    b = jali.Field(jali.Lattice(6, 4), jali.Real())
    b[...] = np.random.default_rng(1).normal(size=(6, 4)) * 1e-170  # which is scaled inside
    for check_interval, times in ((None, 6), (5, 2)):
        seen: list[Any] = []
        found = cg(
            lambda p, q: twice(q, p),
            b,
            rtol=1e-12,
            check_interval=check_interval,
            callback=lambda x, seen=seen: seen.append(x[...]),
        )
        assert len(seen) == times
        np.testing.assert_allclose(seen[-1], found.x[...], rtol=1e-9)


A, B = Matrix(np.eye(2)), np.ones(2)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (
            lambda: cg(A, B, tolerance=1e-3),
            "cg has no argument 'tolerance'; here it is rtol or atol; there are rtol, atol,",
        ),
        (lambda: cg(A, B, tol=1e-3), "here it is rtol or atol"),
        (lambda: cg(A, B, max_iterations=3), "here it is maxiter; there are maxiter,"),
        (lambda: cg(apply=A, b=B), "here it is A"),
        (lambda: cg(A, B, maxitr=3), "the nearest is maxiter; there are maxiter,"),
        (lambda: cgls(A, B, niter=3), "cgls has no argument 'niter'; here it is maxiter"),
        (lambda: cgls(A, B, preconditioner=A), "here it is M"),
        (lambda: cgls(Op=A, y=B), "here it is A"),
        (lambda: lsqr(A, B, iter_lim=3), "here it is maxiter"),
        (lambda: lsqr(A, B, rtol=3), "here it is atol or btol"),
        (lambda: fista(A, B, eigsdict={}), "here it is eigs_options"),
        (lambda: fista(A, B, rtol1=1.0), "here it is cost_btol"),
        (lambda: CG(A, callbacks=[]), "CG has no argument 'callbacks'; here it is callback"),
        (lambda: CG(A).solve(B, tol=1), r"CG.solve has no argument 'tol'; here it is rtol or atol"),
        (lambda: CGLS(A).run(B, niter=1), r"CGLS.run has no argument 'niter'; here it is maxiter"),
        (lambda: FISTA(A).solve(B, niter=1), "here it is maxiter"),
        (lambda: L2(Op=A, b=B), "here it is A"),
        (lambda: L2(kwargs_solver={}), "here it is solver_options"),
        (lambda: ADMM(L2(), L2(), B, 1.0, callbackz=True), "here it is callback_pair"),
        (lambda: power_iteration(A, b_k=B), "here it is like"),
        (lambda: linops.dottest(A, B, B, verb=True), "here it is show"),
        (
            lambda: linops.Halo(4, 1, proc_grid_shape=(1,)),
            "Halo has no argument 'proc_grid_shape'; here it is grid",
        ),
        (lambda: linops.Halo(4, 1, comm=None), "here it is base_comm"),
        (lambda: linops.halo_block_split((4,), grid_shape=(1,)), "here it is grid"),
        (lambda: gauge.landau_gauge(links(), tolerance=1e-3), "here it is atol"),
        (lambda: gauge.landau_gauge(links(), limit=3), "here it is maxiter"),
        (lambda: gauge.coulomb_gauge(links(), every=3), "here it is check_interval"),
        (lambda: gauge.coulomb_gauge(links(), omga=1.3), "the nearest is omega"),
    ],
)
def test_an_old_or_foreign_spelling_names_the_right_one(call: Any, meant: str) -> None:
    with pytest.raises(TypeError, match=meant):
        call()


def links() -> GaugeField:
    return GaugeField(jali.Lattice(2, 2), SU(2)).cold_start()


@pytest.mark.parametrize("given", [(A, B, None, 10), (A, B, None, 1e-4, 10)])
@pytest.mark.parametrize("solve", [cg, cgls, lsqr, fista])
def test_options_have_no_positions(solve: Any, given: Any) -> None:
    """So that scripts with another order of arguments do not mean another thing in silence."""
    with pytest.raises(TypeError, match="positional arguments? but"):
        solve(*given)
