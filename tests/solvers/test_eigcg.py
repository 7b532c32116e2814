"""EigCG: the recursion is that of conjugate gradients, its window a projected operator, and each solve makes the next one shorter."""

from __future__ import annotations

import numpy as np
import pytest
from hermitian_operators import OfMatrix, with_spectrum
from test_eigenpairs import light

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Vector
from jali.fermions import Laplace
from jali.gauge import GaugeField
from jali.solvers import Harvest, cg, eigcg, lanczos
from jali.solvers.eigcg import EigCG
from jali.solvers.solved import solved

LOW = np.geomspace(1e-3, 1e-1, 12)


def with_low_modes(complex_=True, n=200):
    """A matrix with twelve small eigenvalues, as that of a light quark has, and its eigenvalues."""
    values = np.sort(np.concatenate([LOW, np.random.default_rng(1).uniform(0.5, 10, n - len(LOW))]))
    if complex_:
        return with_spectrum(values), values
    Q, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(n, n)))
    M = (Q * values) @ Q.T
    return (M + M.T) / 2, values


def sources(n, complex_, count):
    rng = np.random.default_rng(3)
    return [rng.normal(size=n) + (1j * rng.normal(size=n) if complex_ else 0) for _ in range(count)]


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
def test_iterations_fall_from_one_right_hand_side_to_the_next(complex_):
    M, values = with_low_modes(complex_)
    A, harvest, iterations = OfMatrix(M), None, []
    for b in sources(len(M), complex_, 6):
        solution, harvest = eigcg(A, b, harvest=harvest)
        x = np.linalg.solve(M, b)
        assert np.linalg.norm(solution.x - x) < 1e-8 * np.linalg.norm(x)
        assert solution.residual <= 1e-10
        assert solution.x.dtype == b.dtype
        iterations.append(solution.iterations)
    assert iterations[0] > 1.2 * iterations[1] > 1.4 * iterations[2]
    assert max(iterations[3:]) < iterations[0] / 2.5
    assert len(harvest) >= 12
    pairs = harvest.eigenpairs(A, 12)
    assert np.abs(pairs.values[:12] / LOW - 1).max() < 1e-2  # the square of what residuals may be
    assert np.abs(pairs.values[:8] / LOW[:8] - 1).max() < 1e-5
    V = np.array(pairs.vectors).T
    assert np.abs(V.conj().T @ V - np.eye(12)).max() < 1e-12
    true = np.linalg.norm(M @ V - V * pairs.values, axis=0)
    assert np.abs(true - pairs.residuals).max() < 1e-12
    assert (true <= 0.1 * pairs.values).all()
    assert f"harvest of {len(harvest)} vectors, at most 128" in repr(harvest)


def test_a_full_harvest_deflates_and_takes_no_more():
    M, _ = with_low_modes()
    A, harvest = OfMatrix(M), Harvest(most=10)
    iterations = []
    for b in sources(len(M), True, 4):
        solution, harvest = eigcg(A, b, harvest=harvest)
        iterations.append(solution.iterations)
    assert len(harvest) == 10
    assert iterations[-1] < 0.7 * iterations[0]
    again = cg(A, sources(len(M), True, 5)[-1], deflation=harvest)
    assert again.converged
    assert again.iterations < iterations[0]


def test_the_recursion_is_that_of_conjugate_gradients():
    M, _ = with_low_modes()
    b = sources(len(M), True, 1)[0]
    plain, found = cg(OfMatrix(M), b), eigcg(OfMatrix(M), b, window=20, pairs=4).solution
    assert found.history == plain.history
    assert found.x.tobytes() == plain.x.tobytes()
    D, source = light()
    plain, found = cg(D.normal, source), eigcg(D.normal, source).solution
    assert found.history == plain.history
    assert found.x[...].tobytes() == plain.x[...].tobytes()


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
def test_the_window_is_the_projected_operator_also_after_it_has_shrunk(complex_):
    values = np.linspace(0.2, 4, 150)
    if complex_:
        M = with_spectrum(values)
    else:
        Q, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(150, 150)))
        M = (Q * values) @ Q.T
        M = (M + M.T) / 2
    run = EigCG(OfMatrix(M), sources(150, complex_, 1)[0], None, 1e-7, 0.0, Harvest(), 4, 16, 0.1)
    solved(run, 1000, True, 1)
    assert run.iterations > 25  # the window has 16: it has shrunk
    n = run.filled
    V = np.array(run.V[:n]).T
    assert np.abs(V.conj().T @ V - np.eye(n)).max() < 1e-6
    assert np.abs(V.conj().T @ M @ V - run.T[:n, :n]).max() < 1e-5
    lowest = np.linalg.eigvalsh(run.T[:n, :n])[:2]
    assert np.abs(lowest - values[:2]).max() < 0.02


def test_fields_and_half_fields_are_harvested():
    D, b = light()
    E = D.even_odd()
    o = E.prepare(b)
    for A, source in ((D.normal, b), (E.normal, o)):
        first, harvest = eigcg(A, source)
        again = source.copy()
        again[...] = np.random.default_rng(4).normal(size=b.shape)
        second, harvest = eigcg(A, again, harvest=harvest)
        assert len(harvest) >= 2
        assert second.iterations < 0.93 * first.iterations
        x = cg(A, again).x
        assert np.abs((second.x - x).field()[...]).max() < 1e-8 * np.abs(x[...]).max()
        pairs = harvest.eigenpairs(A, 2)
        exact = lanczos(A, source, 2, rtol=1e-4, start=pairs)
        assert np.abs(pairs.values / exact.values - 1).max() < 1e-3
        assert pairs.vectors[0].over is source.over
        assert pairs.digest == D.digest()


def test_a_search_of_lanczos_goes_on_from_a_harvest():
    M, values = with_low_modes()
    _, harvest = eigcg(OfMatrix(M), sources(len(M), True, 1)[0])
    pairs = lanczos(OfMatrix(M), np.zeros(len(M), complex), 4, start=harvest.eigenpairs(OfMatrix(M), 4))
    assert np.abs(pairs.values - values[:4]).max() < 1e-10


def test_ranks_have_the_same_bits():
    def run():
        lattice = Lattice(8, 4)
        D = Laplace(GaugeField(lattice, SU(2)).cold_start())

        def A(p, q):
            D.apply(p, q)
            q[...] = 0.05 * p - q

        b, harvest, found = Field(lattice, Vector(2)), Harvest(accept=0.9), []
        for k in range(2):
            b[...] = np.random.default_rng(k).normal(size=b.shape)
            solution, harvest = eigcg(A, b, harvest=harvest, window=10, pairs=2, rtol=1e-8)
            found += [solution.history, solution.x[...].tobytes(), harvest.H.tobytes()]
        return found, len(harvest)

    alone = run()
    assert alone[1] > 0
    assert jali.virtual_ranks(2, run) == [alone, alone]


def test_bad_arguments_are_named():
    M, _ = with_low_modes()
    A, b = OfMatrix(M), sources(len(M), True, 1)[0]
    for options, match in (
        ({"pairs": 0}, "pairs is a positive whole number, not 0"),
        ({"window": 17}, "a window of 17 vectors has no room for 8 pairs: it has 18 at least"),
        ({"restart": -1}, "restart is a real number from 0"),
        ({"harvest": 3}, "harvest is a jali.solvers.Harvest, not 3"),
        ({"deflation": Harvest()}, "its harvest deflates, so there is no other deflation"),
    ):
        with pytest.raises(ParameterError, match=match):
            eigcg(A, b, **options)
    for options, match in (
        ({"most": 0}, "a positive whole number of vectors, not 0"),
        ({"accept": -1}, "accept is a real number from 0"),
    ):
        with pytest.raises(ParameterError, match=match):
            Harvest(**options)
    _, harvest = eigcg(A, b)
    with pytest.raises(LayoutError, match="eigcg: b"):
        eigcg(A, b[:3], harvest=harvest)
    for count in (0, len(harvest) + 1):
        with pytest.raises(
            ParameterError, match=f"a harvest of {len(harvest)} vectors has not {count} pairs"
        ):
            harvest.eigenpairs(A, count)
    assert (Harvest().deflate(b) == 0).all()
    D, source = light()
    with pytest.raises(LayoutError, match=r"one after the other, b\.members\[k\]"):
        eigcg(D.normal, source.like(batch=2))
    _, harvest = eigcg(D.normal, source)
    other, _ = light(seed=4, lattice=source.lattice)
    with pytest.raises(ParameterError, match="belong to an operator of other links"):
        eigcg(other.normal, source, harvest=harvest)
