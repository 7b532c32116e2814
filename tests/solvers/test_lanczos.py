"""Eigenvectors by thick-restart Lanczos: dense spectra, multiplicities, polynomials, ranks, deflation, and honest ends."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
from hermitian_operators import Counted, OfMatrix, dense, hermitian, wilson, with_spectrum

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Real, Spinor, Vector
from jali.arrays import DistributedArray
from jali.errors import SolverError
from jali.fermions import DomainWallDirac, Laplace, Staggered, WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import Eigenpair, Eigenpairs, lanczos


def check(pairs, M, expected, rtol=1e-8, accuracy=1e-10):
    """Values, orthonormal vectors, and residuals that are those of the matrix."""
    scale = np.abs(np.linalg.eigvalsh(M)).max()
    assert np.abs(pairs.values - expected).max() < accuracy * scale
    V = np.array([v[...].ravel() for v in pairs.vectors]).T
    assert np.abs(V.conj().T @ V - np.eye(len(pairs))).max() < 1e-12
    true = np.linalg.norm(M @ V - V * pairs.values, axis=0)
    assert np.abs(true - pairs.residuals).max() < 1e-13 * scale
    assert pairs.bound == pytest.approx(rtol * np.abs(pairs.values).max(), rel=1e-12)
    assert (true <= 1.001 * pairs.bound).all()
    assert pairs.converged


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
def test_matrices_have_the_eigenvalues_of_numpy(which, complex_):
    for n, count, space in ((150, 1, None), (150, 8, None), (150, 5, 8), (8, 8, None), (1, 1, None)):
        M = hermitian(n, complex_)
        A = OfMatrix(M)
        pairs = lanczos(A, np.zeros(n, M.dtype), count, which=which, space=space)
        values = np.linalg.eigvalsh(M)
        check(pairs, M, values[:count] if which == "smallest" else values[-count:])
        assert pairs.applications == A.calls
        assert pairs.vectors[0].dtype == M.dtype


SPECTRA = {
    "twofold": [k // 2 for k in range(-20, 60)],
    "mixed": [1.0] * 3 + [2.0] * 5 + [3.0] * 12 + list(range(4, 50)),
    "zeros": [0.0] * 4 + [1.0] * 40,
    "one": [2.0] * 20,
    "cluster": [1.0, 1.0 + 1e-7, 1.0 + 1e-7, 1.0 + 2e-7] + [1.5 + 0.1 * k for k in range(60)],
}


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("name", SPECTRA)
def test_multiplicities_are_found(name, count):
    values = np.sort(np.array(SPECTRA[name], float))
    M = with_spectrum(values)
    for which in ("smallest", "largest"):
        pairs = lanczos(OfMatrix(M), np.zeros(len(M), complex), count, which=which, rtol=1e-11)
        expected = values[:count] if which == "smallest" else values[-count:]
        assert np.abs(pairs.values - expected).max() < 1e-10
        assert pairs.converged
        V = np.array(pairs.vectors).T
        assert np.linalg.norm(V.conj().T @ V - np.eye(count)) < 1e-12


def test_free_quarks_have_their_multiplicities():
    lattice = Lattice(2, 2, 2, 4)
    U = GaugeField(lattice, SU(2)).cold_start()
    for D, like in (
        (Staggered(U, 0.3), Field(lattice, Vector(2))),
        (WilsonDirac(U, 0.3), Field(lattice, Spinor(2))),
    ):
        M = dense(D.normal, like)
        expected = np.linalg.eigvalsh(M)
        assert expected[7] - expected[0] < 1e-12 < expected[-1] - expected[0]  # eight at least are one
        count = 20 if isinstance(D, Staggered) else 3
        check(lanczos(D.normal, like, count), M, expected[:count])


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize("name", ["normal", "gamma5 D"])
def test_quarks_have_the_eigenvalues_of_dense_matrices(name, which):
    psi, normal, gamma5_D = wilson()
    A = normal if name == "normal" else gamma5_D
    M = dense(A, psi)
    values = np.linalg.eigvalsh(M)
    assert (values[0] < 0) == (name == "gamma5 D")
    check(lanczos(A, psi, 6, which=which), M, values[:6] if which == "smallest" else values[-6:])


@pytest.mark.parametrize("which", ["smallest", "largest"])
def test_a_polynomial_has_the_same_eigenvalues_in_fewer_steps(which):
    psi, normal, _ = wilson()
    M = dense(normal, psi)
    values = np.linalg.eigvalsh(M)
    plain = lanczos(normal, psi, 6, which=which)
    steps = [plain.iterations]
    expected = values[:6] if which == "smallest" else values[-6:]
    window = (values[9], values[-1]) if which == "smallest" else (values[0], values[-10])
    for degree in (1, 4, 9):
        A = Counted(normal)
        pairs = lanczos(A, psi, 6, which=which, degree=degree, window=window)
        check(pairs, M, expected)
        assert np.abs(pairs.values - plain.values).max() < 1e-10
        assert pairs.applications == A.calls
        assert (
            A.calls == 3 + degree * pairs.iterations + 6
        )  # the check at the start, the residuals in the end
        steps.append(pairs.iterations)
    assert steps[3] <= steps[2] < steps[0]


def test_the_tolerance_falls_while_copies_are_found():
    """The first search sees one of each, so that the largest of them is much larger than in the end; what it left then has a residual too large."""
    M = with_spectrum(np.sort(np.repeat(2.0 ** np.arange(14), 5)))
    for options in ({"space": 20}, {"block": 2}):
        pairs = lanczos(OfMatrix(M), np.zeros(70, complex), 10, rtol=1e-6, maxiter=2000, **options)
        check(pairs, M, [1.0] * 5 + [2.0] * 5, rtol=1e-6)


def test_a_polynomial_finds_multiplicities():
    M = with_spectrum([0.1] * 3 + [0.2] * 2 + [0.3] + [1 + 0.01 * k for k in range(80)])
    pairs = lanczos(OfMatrix(M), np.zeros(len(M), complex), 6, degree=6, window=(0.9, 2.0))
    check(pairs, M, [0.1, 0.1, 0.1, 0.2, 0.2, 0.3])


@pytest.mark.parametrize("name", ["twofold", "mixed", "cluster"])
def test_blocks_find_multiplicities(name):
    values = np.sort(np.array(SPECTRA[name], float))
    M = with_spectrum(values)
    for block, count, which in ((2, 4, "smallest"), (3, 7, "largest"), (6, 5, "smallest")):
        pairs = lanczos(OfMatrix(M), np.zeros(len(M), complex), count, block=block, which=which, rtol=1e-11)
        expected = values[:count] if which == "smallest" else values[-count:]
        assert np.abs(pairs.values - expected).max() < 1e-10
        assert pairs.converged
        V = np.array(pairs.vectors).T
        assert np.linalg.norm(V.conj().T @ V - np.eye(count)) < 1e-12


def test_a_block_with_more_vectors_than_copies_is_one_search(monkeypatch):
    module = importlib.import_module("jali.solvers.band_lanczos")
    starts = []
    monkeypatch.setattr(module, "random", lambda x, seed: starts.append(seed) or jali.vectors.random(x, seed))
    M = with_spectrum([1.0] * 4 + [2.0] * 3 + list(np.linspace(3, 9, 93)))
    for block, searches in ((6, 1), (5, 1), (4, 2)):
        starts.clear()
        pairs = lanczos(OfMatrix(M), np.zeros(100, complex), 6, block=block)
        check(pairs, M, [1.0] * 4 + [2.0] * 2)
        assert len(starts) == searches * block


@pytest.mark.parametrize("name", ["normal", "gamma5 D"])
def test_blocks_of_fields_are_batches_with_the_eigenvalues_of_dense_matrices(name):
    psi, normal, gamma5_D = wilson()
    A = normal if name == "normal" else gamma5_D
    M = dense(A, psi)
    values = np.linalg.eigvalsh(M)
    batches = []

    def counted(p, q):
        batches.append(p.batch)
        A(p, q)

    check(lanczos(counted, psi, 6, block=4), M, values[:6])
    assert batches.count(4) > 0.9 * len(batches) - 9  # the check at the start, the residuals in the end
    window = (values[9], values[-1])
    pairs = lanczos(A, psi, 6, block=3, degree=5, window=window)
    check(pairs, M, values[:6])
    assert pairs.applications == 3 + 5 * pairs.iterations + 6


def test_random_spectra_are_found_from_blocks_and_from_given_vectors():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 45))
        distinct = int(rng.integers(1, n + 1))
        base = (rng.normal(size=distinct), np.geomspace(0.1, 100, distinct), np.arange(distinct) * 1.0)[
            seed % 3
        ]
        M = with_spectrum(np.sort(np.concatenate([base, rng.choice(base, n - distinct)])), seed)
        count, block = int(rng.integers(1, min(n, 8) + 1)), int(rng.integers(1, 5))
        which, rtol = ("smallest", "largest")[seed % 2], 10.0 ** -int(rng.integers(3, 11))
        zeros, start = np.zeros(n, complex), None
        if seed % 4 == 1:
            start = lanczos(OfMatrix(M), zeros, count, which=which, rtol=10.0 ** -int(rng.integers(1, 9)))
        pairs = lanczos(OfMatrix(M), zeros, count, which=which, rtol=rtol, block=block, start=start)
        values = np.linalg.eigvalsh(M)
        expected = values[:count] if which == "smallest" else values[-count:]
        assert np.abs(pairs.values - expected).max() <= 1.01 * pairs.bound + 1e-12 * np.abs(values).max(), (
            seed
        )
        assert pairs.converged
        V = np.array(pairs.vectors).T
        assert np.abs(V.conj().T @ V - np.eye(count)).max() < 1e-10


def test_rounding_is_relative_to_the_operator_and_not_to_given_vectors():
    """Which have images of size 1e-3, of an operator of size 1e3: what rounding leaves of these is no sign of another operator."""
    M = with_spectrum(np.concatenate([np.full(4, 1e-3), np.linspace(500, 1000, 60)]))
    zeros = np.zeros(64, complex)
    start = lanczos(OfMatrix(M), zeros, 4, rtol=1e-6)
    again = lanczos(OfMatrix(M), zeros, 4, rtol=1e-6, start=start)
    assert np.abs(again.values - 1e-3).max() < 1e-10


def test_an_operator_that_takes_no_batch_is_named():
    psi, normal, _ = wilson()

    def of_one(p, q):
        if p.batch is not None:
            raise LayoutError("one vector at a time")
        normal(p, q)

    with pytest.raises(LayoutError, match="block=2 applies .* with a batch of 2: one vector at a time"):
        lanczos(of_one, psi, 3, block=2)


def test_vectors_that_have_converged_are_locked(monkeypatch):
    """Eigenvalues far from the others converge first, and then stay as they are."""
    module = importlib.import_module("jali.solvers.band_lanczos")
    M = with_spectrum([-50.0, -30.0, *np.linspace(0, 1, 200)])
    restart, kept = module.Search._restart, []

    def noted(search):
        restart(search)
        kept.append([x.tobytes() for x in search.slots[: int(search.locked.sum())]])
        assert not search.locked[int(search.locked.sum()) :].any()

    monkeypatch.setattr(module.Search, "_restart", noted)
    check(lanczos(OfMatrix(M), np.zeros(202, complex), 4), M, [-50, -30, 0, 1 / 199])
    assert len(kept[-1]) >= 2
    first = next(k for k, vectors in enumerate(kept) if len(vectors) == 2)
    assert first < len(kept) / 2
    assert all(vectors[:2] == kept[first] for vectors in kept[first : first + 4])


def test_a_search_begins_with_given_vectors():
    values = np.sort(np.concatenate([np.linspace(0.1, 0.8, 8), np.random.default_rng(1).uniform(1, 9, 140)]))
    M = with_spectrum(values)
    A, zeros = OfMatrix(M), np.zeros(len(M), complex)
    rough, found = lanczos(A, zeros, 8, rtol=1e-4), lanczos(A, zeros, 8)
    again = lanczos(A, zeros, 8, start=found)
    check(again, M, values[:8])
    assert again.iterations < 0.7 * found.iterations
    check(lanczos(A, zeros, 8, rtol=1e-12, start=found), M, values[:8], rtol=1e-12)
    check(lanczos(A, zeros, 12, start=found), M, values[:12])
    check(lanczos(A, zeros, 6, start=rough.vectors, block=2), M, values[:6])
    check(lanczos(A, zeros, 8, start=rough, degree=5, window=(0.9, 9.0)), M, values[:8])
    check(lanczos(A, zeros, 8, start=[rough.vectors[0], found.vectors[0]]), M, values[:8])
    with pytest.raises(ParameterError, match="start is Eigenpairs, or a list of vectors like `like`, not 3"):
        lanczos(A, zeros, 4, start=3)
    with pytest.raises(LayoutError, match=r"lanczos: start\[0\] "):
        lanczos(A, zeros, 4, start=[zeros[1:]])
    with pytest.raises(ParameterError, match=r"lanczos: start\[1\] is a vector of the kind of like"):
        lanczos(A, zeros, 4, start=[zeros, Field(Lattice(4), Real())])


def test_a_search_of_fields_begins_with_those_of_few_bits():
    psi, normal, _ = wilson()
    M = dense(normal, psi)
    values = np.linalg.eigvalsh(M)
    few = lanczos(normal, psi, 2, rtol=1e-4, storage="fixed16")
    check(lanczos(normal, psi, 2, rtol=1e-6, start=few), M, values[:2], rtol=1e-6)
    less = [x.astype("float32") for x in few.vectors]
    check(lanczos(normal, psi, 2, rtol=1e-6, start=less), M, values[:2], rtol=1e-6)


def ones(like):
    b = like.like()
    b[...] = 1.0
    return b


def test_ranks_have_the_same_bits():
    def run():
        lattice, four = Lattice(4, 4), Lattice(4, 2, 2, 2)
        A = Laplace(GaugeField(lattice, SU(2)).hot_start(seed=3))
        phi, wide = Field(lattice, Vector(2)), {"which": "largest", "rtol": 1e-3, "space": 8}
        walls = DomainWallDirac(GaugeField(four, SU(2)).hot_start(seed=3), 0.5, 1.2, Ls=2)
        rough = lanczos(A, phi, 1, which="largest", rtol=1e-2, space=4)
        found = [
            rough,
            lanczos(A, phi, 2, start=rough, storage="fixed16", **wide),
            lanczos(A, phi, 2, block=2, degree=3, window=(-8.0, -1.5), **wide),
            lanczos(walls.normal, Field(four, Spinor(2), batch=2), 1, rtol=0.1, space=4),
        ]
        return [
            (
                p.values.tobytes(),
                p.residuals.tobytes(),
                p.applications,
                [v[...].tobytes() for v in p.vectors],
                p.deflate(ones(p.vectors[0]))[...].tobytes(),
            )
            for p in found
        ]

    alone = run()
    assert jali.virtual_ranks(2, run) == [alone, alone]


def test_seeds_make_other_starts():
    M = hermitian(60)
    one, again, other = (lanczos(OfMatrix(M), np.zeros(60, complex), 2, seed=seed) for seed in (0, 0, 1))
    assert one.vectors[0].tobytes() == again.vectors[0].tobytes() != other.vectors[0].tobytes()
    assert np.abs(one.values - other.values).max() < 1e-10


@jali.site_function
def laplace(X, out, phi):
    total = 2 * X.ndim * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def test_all_kinds_of_vectors_are_taken():
    waves = np.array([2 - 2 * np.cos(2 * np.pi * k / 8) for k in range(8)])
    expected = np.sort(np.add.outer(waves, waves[::2]).ravel())[:6]  # fourfold after a zero

    def on_fields(p, q):
        laplace(q, p)

    field = Field(Lattice(8, 4), Real())
    found = lanczos(on_fields, field, 6)
    assert np.abs(found.values - expected).max() < 1e-12
    assert found.vectors[0].dtype == np.float64

    D = np.diag(np.arange(20.0))

    class OnDistributed:
        def matvec(self, x):
            y = x.zeros_like()
            y.local[...] = D @ x.local
            return y

    array = DistributedArray.to_dist(np.zeros(20))
    assert np.abs(lanczos(OnDistributed(), array, 3).values - [0, 1, 2]).max() < 1e-12

    def on_lists(p, q):
        on_fields(p[0], q[0])
        q[1][...] = 5 * p[1]

    both = lanczos(on_lists, [field, np.zeros(3)], 3, which="largest")
    assert (
        np.abs(both.values - [6 + 2**0.5, 6 + 2**0.5, 8]).max() < 1e-12
    )  # of the lattice: the numbers of the array are 5
    three = lanczos(lambda p, q: q.__setitem__(slice(None), D @ p), np.zeros(20, np.float32), 3, rtol=1e-5)
    assert three.vectors[0].dtype == np.float32
    assert np.abs(three.values - [0, 1, 2]).max() < 1e-4
    complex_operator = type("C", (), {"matvec": lambda self, x: D @ x, "dtype": np.dtype(complex)})()
    assert lanczos(complex_operator, np.zeros(20), 1).vectors[0].dtype == complex


def test_a_batch_that_is_joined_is_one_vector():
    lattice = Lattice(2, 2, 2, 2)
    D = DomainWallDirac(GaugeField(lattice, SU(2)).hot_start(seed=2), 0.5, 1.2, Ls=3)
    psi = Field(lattice, Spinor(2), batch=3)
    M = dense(D.normal, psi)
    pairs = lanczos(D.normal, psi, 4)
    check(pairs, M, np.linalg.eigvalsh(M)[:4])
    b = psi.like()
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    V = np.array([v[...].ravel() for v in pairs.vectors]).T
    expected = V @ ((V.conj().T @ b[...].ravel()) / pairs.values)
    assert np.abs(pairs.deflate(b)[...].ravel() - expected).max() < 1e-12
    W = WilsonDirac(GaugeField(lattice, SU(2)).hot_start(seed=2), 0.5)
    with pytest.raises(
        LayoutError, match=r"members the operator does not join.* give one member, f\.members\[k\]"
    ):
        lanczos(W.normal, psi, 2)
    with pytest.raises(LayoutError, match="members the operator does not join"):
        lanczos(D.normal, [psi, psi], 2)


def test_pairs_are_a_sequence():
    M = hermitian(30)
    pairs = lanczos(OfMatrix(M), np.zeros(30, complex), 3)
    assert isinstance(pairs, Eigenpairs)
    assert len(pairs) == len(pairs.vectors) == len(pairs.values) == len(pairs.residuals) == 3
    one = pairs[1]
    assert isinstance(one, Eigenpair)
    assert one.eigenvalue == pairs.values[1]
    assert one.eigenvector is pairs.vectors[1]
    assert one.iterations == pairs.iterations
    assert [pair.eigenvalue for pair in pairs] == pairs.values.tolist()
    assert repr(pairs).startswith(f"<3 eigenpairs, converged, from {pairs.values[0]:.6g} to ")
    assert f"{pairs.applications} applications" in repr(pairs)


def test_no_convergence_says_how_much_has_converged():
    M = with_spectrum([-50.0, *np.linspace(0, 1, 200)])
    zeros = np.zeros(len(M), complex)
    with pytest.raises(
        SolverError, match="lanczos: 1 of 4 eigenpairs have converged .* in 40 steps"
    ) as raised:
        lanczos(OfMatrix(M), zeros, 4, maxiter=40, rtol=1e-10)
    assert str(raised.value).split("residuals: ")[1].count(",") == 3
    assert len(raised.value.history) >= 2
    found = lanczos(OfMatrix(M), zeros, 4, maxiter=40, rtol=1e-10, must_converge=False)
    assert not found.converged
    assert len(found) == 4
    assert "not all converged" in repr(found)
    true = [np.linalg.norm(M @ v - value * v) for v, value in zip(found.vectors, found.values, strict=True)]
    assert np.abs(true - found.residuals).max() < 1e-12
    assert (found.residuals <= found.bound).tolist() == [True, False, False, False]
    one = OfMatrix(2 * np.eye(20))  # a search is one step
    with pytest.raises(SolverError, match="4 of 4 .*; whether there are more copies of them is not settled"):
        lanczos(one, np.zeros(20), 4, maxiter=4)
    assert lanczos(one, np.zeros(20), 4, maxiter=5).converged


@pytest.mark.parametrize(
    "options", [{"space": 8}, {"degree": 2, "window": (0.9, 3.0), "space": 8}], ids=["A", "polynomial"]
)
def test_residuals_above_the_tolerance_are_lowered(monkeypatch, options):
    """Where estimates were too low: here they may be 100 times the tolerance."""
    module = importlib.import_module("jali.solvers.band_lanczos")
    M = with_spectrum([*np.linspace(0.1, 0.5, 9), *np.linspace(1, 3, 300)])
    monkeypatch.setattr(module, "STRICTNESS", 100.0)
    pairs = lanczos(OfMatrix(M), np.zeros(len(M), complex), 4, **options)
    check(pairs, M, [0.1, 0.15, 0.2, 0.25])
    monkeypatch.setattr(module, "REFINEMENTS", 0)
    with pytest.raises(
        SolverError, match="further searches lower them no more, as rounding in complex128 does"
    ):
        lanczos(OfMatrix(M), np.zeros(len(M), complex), 4, **options)


def test_a_count_above_the_number_of_eigenvectors_is_an_error():
    for block in (1, 2):
        with pytest.raises(ParameterError, match="7 eigenvectors are wanted, and such vectors have 6"):
            lanczos(OfMatrix(hermitian(6)), np.zeros(6, complex), 7, block=block)
    assert len(lanczos(OfMatrix(hermitian(6)), np.zeros(6, complex), 6, block=4)) == 6
    with pytest.raises(ParameterError, match="1 eigenvectors are wanted, and such vectors have 0"):
        lanczos(lambda p, q: None, np.zeros(0), 1)


def test_what_is_not_hermitian_is_named():
    M = hermitian(30)
    M[3, 7] += 1e-3
    with pytest.raises(
        SolverError, match="lanczos: the operator is not Hermitian: .* for random u and v|for a random v"
    ):
        lanczos(OfMatrix(M), np.zeros(30, complex), 2)
    lattice = Lattice(2, 2, 2, 2)
    D = DomainWallDirac(GaugeField(lattice, SU(2)).hot_start(seed=2), 0.5, 1.2, Ls=3)
    with pytest.raises(SolverError, match="lanczos, step 1: the operator is not Hermitian"):
        lanczos(D, Field(lattice, Spinor(2), batch=3), 2)

    class Later(OfMatrix):
        """Hermitian as long as it is measured at the start."""

        def matvec(self, x):
            y = super().matvec(x)
            return y if self.calls < 8 else y + 1e-3 * np.roll(x, 1)

    with pytest.raises(SolverError, match=r"lanczos, step \d+: the operator is not Hermitian"):
        lanczos(Later(hermitian(30)), np.zeros(30, complex), 2)


def test_infinities_and_nan_are_named():
    class Broken(OfMatrix):
        def __init__(self, matrix, bad, first):
            super().__init__(matrix)
            self.bad, self.first = bad, first

        def matvec(self, x):
            y = super().matvec(x)
            if self.calls >= self.first:
                y[2] = self.bad
            return y

    for bad in (np.nan, np.inf):
        for first in (1, 9):
            with pytest.raises(SolverError, match="the operator gave infinities or nan"):
                lanczos(Broken(hermitian(30), bad, first), np.zeros(30, complex), 2)
    with pytest.raises(SolverError, match="or the polynomial of degree 300 overflows beyond its window"):
        lanczos(OfMatrix(hermitian(30)), np.zeros(30, complex), 2, degree=300, window=(-0.1, 0.1))


def test_sizes_of_operators_are_any_whose_squares_are_numbers():
    M = hermitian(30)
    for size in (1e-100, 1e100):
        pairs = lanczos(OfMatrix(size * M), np.zeros(30, complex), 2)
        assert np.abs(pairs.values / size - np.linalg.eigvalsh(M)[:2]).max() < 1e-10
    with pytest.raises(
        SolverError, match="the squares of numbers about .* are too small for complex128; scale"
    ):
        lanczos(OfMatrix(1e-170 * M), np.zeros(30, complex), 2)
    with pytest.raises(SolverError, match="infinities or nan, or numbers whose squares overflow"):
        lanczos(OfMatrix(1e170 * M), np.zeros(30, complex), 2)
    nothing = lanczos(lambda p, q: np.multiply(p, 0, out=q), np.zeros(5), 2)
    assert nothing.values.tolist() == [0, 0]
    assert nothing.converged


def test_a_window_that_does_not_fit_is_named():
    values = np.linspace(0, 10, 60)
    A, zeros = OfMatrix(with_spectrum(values)), np.zeros(60, complex)
    for which, short, inside in (
        ("smallest", (2.0, 7.0), (0.5, 10.0)),
        ("largest", (3.0, 8.0), (0.0, 9.5)),
    ):
        over = "above b" if which == "smallest" else "below a"
        for degree in (4, 5):  # beyond the short end they differ in sign
            with pytest.raises(
                SolverError, match=f"there is an eigenvalue .*{over}, where the polynomial grows as well"
            ):
                lanczos(A, zeros, 4, which=which, degree=degree, window=short)
        side = "below a" if which == "smallest" else "above b"
        few = OfMatrix(with_spectrum(range(8)))
        settled = (2.5, 7.0) if which == "smallest" else (0.0, 4.5)
        with pytest.raises(
            SolverError, match=f"only 3 of 4 eigenvalues were found {side}: all wanted ones lie"
        ):
            lanczos(few, np.zeros(8, complex), 4, which=which, degree=2, window=settled)
        with pytest.raises(SolverError, match=f"only 3 of (them|6).*{side}"):
            lanczos(A, zeros, 6, which=which, degree=8, window=inside, maxiter=100)


def test_bad_arguments_are_named():
    A, zeros = OfMatrix(hermitian(30)), np.zeros(30, complex)
    for count in (0, -1, 1.5, True, "3"):
        with pytest.raises(ParameterError, match="count is a positive whole number, not"):
            lanczos(A, zeros, count)
    for options, match in (
        ({"which": "small"}, 'which is "smallest" or "largest", not'),
        ({"rtol": 0.0}, "rtol is between 0 and 1, not 0.0"),
        ({"rtol": 1.0}, "rtol is between 0 and 1"),
        ({"rtol": math.nan}, "rtol is a real number from 0"),
        ({"rtol": 1e-17}, "rtol=1e-17 is below what rounding in complex128 allows, 8.9e-16"),
        ({"space": 3}, "space is a whole number above count, 6 at least for 3 eigenvectors, not 3"),
        ({"space": 5}, "6 at least"),
        ({"space": 8, "block": 2}, "9 at least"),
        ({"block": 0}, "block is a positive whole number, not 0"),
        ({"block": 65}, "block is at most 64, not 65"),
        (
            {"storage": "float16"},
            "complex numbers of arrays are stored as float64 or float32, not as 'float16'",
        ),
        ({"space": 8.5}, "space is a whole number"),
        ({"maxiter": 0}, "maxiter is a positive whole number, not 0"),
        ({"degree": 0, "window": (1, 2)}, "degree is a positive whole number, not 0"),
        ({"degree": 4}, r"degree is given without window=\(a, b\)"),
        ({"window": (1, 2)}, "window is given without degree"),
        (
            {"degree": 4, "window": (2, 1)},
            r"window is two finite numbers, \(a, b\) with a below b, not \(2, 1\)",
        ),
        ({"degree": 4, "window": (1, 1)}, "with a below b"),
        ({"degree": 4, "window": (1, math.inf)}, "two finite numbers"),
        ({"degree": 4, "window": 3}, "two finite numbers"),
        ({"seed": -1}, "seed is a whole number from 0, not -1"),
    ):
        with pytest.raises(ParameterError, match=match):
            lanczos(A, zeros, 3, **options)
    with pytest.raises(TypeError, match="no argument 'tol'; here it is rtol"):
        lanczos(A, zeros, 3, tol=1e-3)
    with pytest.raises(ParameterError, match="the operator has a function matvec, or is a function"):
        lanczos(3, zeros, 3)
    with pytest.raises(ParameterError, match="lanczos: like is a vector"):
        lanczos(A, "vector", 3)
    with pytest.raises(LayoutError, match="real and complex"):
        lanczos(A, np.zeros(30, int), 3)
