"""What becomes of eigenvectors: deflation of solves, storage in few bits, files, and digests of what they belong to."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hermitian_operators import OfMatrix, dense, gamma5_times, hermitian, times_gamma5, wilson, with_spectrum

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Real, Spinor, Vector
from jali.arrays import DistributedArray
from jali.errors import FileFormatError
from jali.fermions import Laplace, WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import Eigenpairs, bicgstab, cg, lanczos


def light(seed=3, mass=-1.5, lattice=None):
    """A Wilson operator with a few eigenvalues of its square near zero, and a right-hand side."""
    lattice = lattice or Lattice(4, 2, 2, 4)
    D = WilsonDirac(GaugeField(lattice, SU(2)).hot_start(seed=seed), mass)
    b = Field(lattice, Spinor(2))
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    return D, b


@functools.cache
def light_pairs():
    """The same, with eigenvectors of the square, and the solution."""
    D, b = light()
    return D, b, lanczos(D.normal, b, 16, rtol=1e-6), cg(D.normal, b)


def test_deflation_saves_iterations_and_leaves_the_solution():
    D, b, pairs, plain = light_pairs()
    before = b[...]
    assert pairs.values[-1] > 3 * pairs.values[0]
    deflated = cg(D.normal, b, x0=pairs.deflate(b))
    assert deflated.iterations < 0.65 * plain.iterations
    assert np.abs(deflated.x[...] - plain.x[...]).max() < 1e-8 * np.abs(plain.x[...]).max()
    assert (b[...] == before).all()


def test_deflation_is_the_solution_within_the_vectors():
    M = with_spectrum([-3.0, -2.0, 0.5, 4.0, 7.0])
    b = np.arange(5) + 1j
    pairs = lanczos(OfMatrix(M), b, 5)
    assert np.abs(pairs.deflate(b) - np.linalg.solve(M, b)).max() < 1e-12
    with pytest.raises(LayoutError, match="deflate: b"):
        pairs.deflate(np.ones(4, complex))
    with pytest.raises(ParameterError, match="deflate: b"):
        pairs.deflate(Field(Lattice(4), Real()))
    singular = lanczos(OfMatrix(with_spectrum([0.0, 1.0, 2.0, 3.0])), np.zeros(4, complex), 2)
    with pytest.raises(ParameterError, match="the eigenvalue 0, .*, is zero within rounding"):
        singular.deflate(np.ones(4, complex))
    rough = dataclasses.replace(pairs, residuals=np.full(5, 0.6))
    with pytest.raises(
        ParameterError, match=r"the eigenvalue 2, 0\.5, is zero within its residual 0\.6; a smaller rtol"
    ):
        rough.deflate(b)


def columns(pairs):
    return np.array([v[...].ravel() for v in pairs.vectors]).T


def test_members_and_precisions_are_deflated_by_the_same_vectors():
    D, b, pairs, _ = light_pairs()
    V = columns(pairs)
    many = b.like(batch=3)
    many[...] = np.random.default_rng(2).normal(size=many.shape)
    x0, rest = pairs.deflate(many), pairs.project(many)
    for k, member in enumerate(many.members):
        y = member[...].ravel()
        expected = V @ ((V.conj().T @ y) / pairs.values)
        assert np.abs(x0.members[k][...].ravel() - expected).max() < 1e-12
        assert np.abs(rest.members[k][...].ravel() - (y - V @ (V.conj().T @ y))).max() < 1e-12
    single = many.members[0][...]
    low = b.like(precision="float32")
    low[...] = single
    assert pairs.deflate(low).precision == "float32"
    assert np.abs(pairs.deflate(low)[...] - x0.members[0][...]).max() < 1e-4
    found = cg(D.normal, many, x0=x0)
    plain = cg(D.normal, many)
    assert np.abs(found.x[...] - plain.x[...]).max() < 1e-8 * np.abs(plain.x[...]).max()
    assert found.iterations < plain.iterations


def test_a_residual_is_corrected_again():
    D, b, pairs, _ = light_pairs()
    x, V = b.copy(), columns(pairs)
    r = (b - D.normal(x)).field()
    pairs.correct(r, x)
    left = (b - D.normal(x)).field()
    before, after = (np.linalg.norm(V.conj().T @ one[...].ravel()) for one in (r, left))
    assert after < 1e-4 * before


@pytest.mark.parametrize("name", ["normal", "gamma5 D"])
def test_what_is_not_hermitian_is_deflated_by_its_square_and_by_gamma5(name):
    """x0 = sum v <v, D^dagger b> / lambda(D^dagger D) = sum v <v, gamma5 b> / lambda(gamma5 D)."""
    D, b, pairs, _ = light_pairs()
    if name == "normal":
        x0 = pairs.deflate(b, of=D)
        right = D.adjoint(b)
    else:
        pairs = lanczos(gamma5_times(D), b, 4, rtol=1e-4)
        right = b.like()
        times_gamma5(right, b)
        x0 = pairs.deflate(right)
    V = columns(pairs)
    x = bicgstab(D, b)
    expected = V @ (V.conj().T @ x.x[...].ravel())
    if name == "normal":  # the part of the solution within the vectors
        assert np.abs(x0[...].ravel() - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(x0[...].ravel() - V @ ((V.conj().T @ right[...].ravel()) / pairs.values)).max() < 1e-12
    again = bicgstab(D, b, x0=x0)
    assert np.abs(again.x[...] - x.x[...]).max() < 1e-7 * np.abs(x.x[...]).max()


def test_a_preconditioner_lifts_eigenvalues_however_rough_the_vectors_are():
    D, b, pairs, plain = light_pairs()
    for some in (pairs, pairs.stored("float16", D.normal)):
        found = cg(D.normal, b, M=some.preconditioner())
        assert found.iterations < 0.75 * plain.iterations
        assert np.abs(found.x[...] - plain.x[...]).max() < 1e-8 * np.abs(plain.x[...]).max()
    M = with_spectrum([0.1, 1.0, 2.0, 5.0])
    lift = lanczos(OfMatrix(M), np.zeros(4, complex), 2).preconditioner(3.0)
    z = np.zeros((4, 4), complex)
    for row, unit in zip(z, np.eye(4, dtype=complex), strict=True):
        lift(unit, row)
    assert np.abs(np.sort(np.linalg.eigvals(z.T @ M).real) - [2, 3, 3, 5]).max() < 1e-7
    with pytest.raises(ParameterError, match="eigenvalues and their level are positive, not -1 and 0.5"):
        lanczos(OfMatrix(with_spectrum([-1, 0.5, 2, 3])), np.zeros(4, complex), 2).preconditioner()


@pytest.mark.parametrize("storage", ["float32", "float16", "fixed16"])
def test_vectors_in_few_bits_state_their_residuals(storage):
    psi, normal, _ = wilson()
    M = dense(normal, psi)
    precise = lanczos(normal, psi, 4)
    few = lanczos(normal, psi, 4, storage=storage)
    like = lanczos(normal, psi.like(storage=storage), 4)
    size = {"float32": 1e-7, "float16": 3e-4, "fixed16": 4e-5}[storage]
    for pairs in (few, like, precise.stored(storage, normal)):
        assert {v.stored.format.name for v in pairs.vectors} == {storage}
        assert pairs.vectors[0].precision == "float64"
        assert pairs.values.tobytes() == precise.values.tobytes()
        assert pairs.accuracy.tobytes() == precise.residuals.tobytes()
        assert pairs.applications == precise.applications + 4
        V = columns(pairs)
        true = np.linalg.norm(M @ V - V * pairs.values, axis=0) / np.linalg.norm(V, axis=0)
        assert np.abs(true - pairs.residuals).max() < 1e-12
        assert 0.01 * size < pairs.residuals.max() / 60 < size  # of |D^dagger D|, which is 60
        assert np.abs(V.conj().T @ V - np.eye(4)).max() < 10 * size
        b = psi.copy()
        b[...] = 1.0
        assert np.abs(pairs.deflate(b)[...] - precise.deflate(b)[...]).max() < 10 * size
    with pytest.raises(LayoutError, match="storage 'half' is unknown"):
        lanczos(normal, psi, 4, storage="half")


def test_a_16_bit_vector_of_float32_is_searched_in_float32():
    psi, normal, _ = wilson()
    like = psi.like(precision="float32", storage="float16")
    pairs = lanczos(normal, like, 3, rtol=1e-5)
    assert pairs.vectors[0].format == like.format
    assert pairs.vectors[0].precision == "float32"
    assert np.abs(pairs.values - np.linalg.eigvalsh(dense(normal, psi))[:3]).max() < 1e-4


def test_arrays_are_stored_in_few_bits():
    M = hermitian(40, complex_=False)
    A = OfMatrix(M)
    for storage in ("float32", "float16"):
        pairs = lanczos(A, np.zeros(40), 3, storage=storage)
        assert pairs.vectors[0].dtype == storage
        V = np.array(pairs.vectors, float).T
        true = np.linalg.norm(M @ V - V * pairs.values, axis=0) / np.linalg.norm(V, axis=0)
        assert np.abs(true - pairs.residuals).max() < 1e-12
        assert pairs.deflate(np.ones(40)).dtype == np.float64


# ---- files ---------------------------------------------------------------------------------------------


def of_files():
    """Vectors of every kind that has files, an operator for them, and how many eigenpairs."""
    lattice = Lattice(4, 4)
    D = Laplace(GaugeField(lattice, SU(2)).hot_start(seed=2))
    yield Field(lattice, Vector(2), boundary={1: "antiperiodic"}), D, 2
    yield Field(lattice, Vector(2), precision="float32", storage="fixed16"), D, 1
    values = np.arange(20.0)

    class OnDistributed:
        def matvec(self, x):
            y = x.zeros_like()
            first = x.layout.box[0][0]
            y.local[...] = values[first : first + len(x.local)] * x.local
            return y

    yield DistributedArray.to_dist(np.zeros(20)), OnDistributed(), 3


def test_files_keep_everything_on_any_number_of_ranks(tmp_path):
    def numbers(pairs):
        vectors = [v.asarray() if hasattr(v, "asarray") else v[...] for v in pairs.vectors]
        return [
            *(x.tobytes() for x in (pairs.values, pairs.residuals, pairs.accuracy, *vectors)),
            (
                pairs.applications,
                pairs.iterations,
                pairs.bound,
                pairs.rounding,
                pairs.converged,
                pairs.digest,
            ),
        ]

    def written(folder):
        found = []
        for k, (like, A, count) in enumerate(of_files()):
            pairs = lanczos(A, like, count, rtol=1e-2, space=6)
            pairs.save(folder / f"{k}.jali")
            found.append(numbers(pairs))
        return found

    def read(folder):
        found = []
        for k, (like, A, _) in enumerate(of_files()):
            pairs = Eigenpairs.read(folder / f"{k}.jali", like, A)
            assert pairs.vectors[0].dtype == like.dtype
            found.append(numbers(pairs))
        return found

    for ranks, others in ((1, 2), (2, 1)):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        before = jali.virtual_ranks(ranks, written, folder)
        after = jali.virtual_ranks(others, read, folder)
        assert all(one == before[0] for one in before + after)


def test_arrays_have_files(tmp_path):
    def twice(p, q):
        q[...] = 2 * p

    like = np.zeros((2, 3))
    pairs = lanczos(twice, like, 2)
    pairs.save(tmp_path / "pairs")
    again = Eigenpairs.read(tmp_path / "pairs", like, twice)
    assert [v.tobytes() for v in again.vectors] == [v.tobytes() for v in pairs.vectors]
    assert again.vectors[0].shape == (2, 3)
    one = lanczos(lambda p, q: q.__setitem__(..., p), np.zeros(()), 1)
    one.save(tmp_path / "one")
    assert Eigenpairs.read(tmp_path / "one", np.zeros(())).vectors[0].shape == ()


def test_a_search_goes_on_from_a_file(tmp_path):
    lattice = Lattice(4, 4)
    D = Laplace(GaugeField(lattice, SU(2)).hot_start(seed=2))
    phi = Field(lattice, Vector(2))
    first = lanczos(D, phi, 2, rtol=1e-4)
    first.save(tmp_path / "pairs.jali")
    one = jali.load(tmp_path / "pairs.jali", lattice, name="v0")
    assert np.array_equal(one[...], first.vectors[0][...])
    more = lanczos(D, phi, 3, start=Eigenpairs.read(tmp_path / "pairs.jali", phi, D))
    assert np.abs(more.values - np.linalg.eigvalsh(dense(D.apply, phi))[:3]).max() < 1e-10


def test_eigenvectors_of_another_configuration_are_refused(tmp_path):
    def run(path):
        lattice = Lattice(4, 4)
        b, (D, other) = (
            Field(lattice, Spinor(2)),
            (WilsonDirac(GaugeField(lattice, SU(2)).hot_start(seed=seed), 0.5) for seed in (1, 2)),
        )
        pairs = lanczos(D.normal, b, 1, rtol=0.1, space=4)
        pairs.save(path)
        low = WilsonDirac([u.astype("float32") for u in D.links], 0.3)
        for same in (D, D.normal, D.dagger, low, low.normal, D.even_odd().normal, gamma5_times(D)):
            Eigenpairs.read(path, b, same)
        texts = []
        for wrong in (
            lambda: Eigenpairs.read(path, b, other.normal),
            lambda: pairs.check(other.even_odd().normal),
            lambda: pairs.deflate(b, of=other),
            lambda: pairs.stored("float16", other.normal),
            lambda: lanczos(other.normal, b, 1, start=pairs),
        ):
            with pytest.raises(ParameterError, match="belong to an operator of other links") as raised:
                wrong()
            texts.append(str(raised.value))
        assert len(set(texts)) == 1
        found = lanczos(other.normal, b, 1, rtol=0.1, space=4, start=pairs.vectors)
        assert found.digest != pairs.digest
        return texts

    one, two = jali.virtual_ranks(2, run, tmp_path / "pairs.jali")
    assert one == two


def test_digests_see_gauge_transforms_and_no_rounding():
    lattice = Lattice(4, 4)
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    numbers = np.array(Laplace(U).digest()["numbers"])
    for storage in ("float32-12", "fixed16", "fixed8"):
        of_few = Laplace([u.like(storage=storage).assign(u) for u in U.fields]).digest()
        assert np.abs(np.array(of_few["numbers"]) - numbers).max() < of_few["rounding"] / 3
    alike = U.copy().random_gauge_transform(seed=5)
    turned = U.copy()
    g = Field(lattice, SU(3))
    g[...] = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    turned.gauge_transform(g)
    for other in (alike, turned):
        assert np.abs(np.array(Laplace(other).digest()["numbers"]) - numbers).max() > 0.05


def test_operators_have_digests_of_their_own():
    M = hermitian(20)
    A = OfMatrix(M)
    A.digest = "matrix 1"
    pairs = lanczos(A, np.zeros(20, complex), 2)
    assert pairs.digest == "matrix 1"
    B = OfMatrix(M)
    pairs.check(B)  # which says nothing
    B.digest = lambda: "matrix 2"
    with pytest.raises(ParameterError, match="their digest is 'matrix 1', that of the operator 'matrix 2'"):
        pairs.check(B)


def test_files_that_do_not_fit_are_named(tmp_path):
    (like, A, count), *_ = of_files()
    lanczos(A, like, count, rtol=1e-2, space=6).save(tmp_path / "pairs")
    jali.save(tmp_path / "field.jali", phi=like)
    with pytest.raises(FileFormatError, match="holds no eigenpairs"):
        Eigenpairs.read(tmp_path / "field.jali", like)
    with pytest.raises(LayoutError, match=r"holds a lattice \(4, 4\), not \(4, 2\)"):
        Eigenpairs.read(tmp_path / "pairs", Field(Lattice(4, 2), Vector(2)))
    with pytest.raises(LayoutError, match="an eigenvector holds Vector"):
        Eigenpairs.read(tmp_path / "pairs", Field(like.lattice, Vector(3)))
    with pytest.raises(LayoutError, match="v0 is .*antiperiodic"):
        Eigenpairs.read(tmp_path / "pairs", Field(like.lattice, Vector(2)))
    with pytest.raises(FileFormatError, match="holds fields, not arrays"):
        Eigenpairs.read(tmp_path / "pairs", np.zeros((4, 4), complex))
    with pytest.raises(LayoutError, match=r"holds arrays of shape \(4, 4\), not \(3,\)"):
        Eigenpairs.read(tmp_path / "pairs", np.zeros(3, complex))
    with pytest.raises(FileFormatError, match="missing"):
        Eigenpairs.read(tmp_path / "nothing", like)
    both = lanczos(
        lambda p, q: [np.copyto(b, 2 * a) for a, b in zip(p, q, strict=True)], [np.zeros(2)] * 2, 1
    )
    with pytest.raises(ParameterError, match="no files: a list or a stack is saved part by part"):
        both.save(tmp_path / "list")
