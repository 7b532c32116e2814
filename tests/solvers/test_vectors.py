"""Solvers take any vectors: arrays of several libraries, lists of vectors, and what is registered."""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from programs import run_python

import jali
from jali import Complex, Field, Lattice, Real, Spinor, solvers, vectors
from jali.array_namespaces import NAMESPACES
from jali.arrays import DistributedArray, StackedDistributedArray, layout_of
from jali.errors import LayoutError, ParameterError, SolverError
from jali.lattice import vectors as of_fields
from jali.solvers import VectorKind, cg, register, vectors_of
from jali.vectors import registry


def hermitian(n, dtype, seed=1):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, n)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.normal(size=(n, n))
    return (a.conj().T @ a + n * np.eye(n)).astype(dtype)


def right_hand_side(n, dtype, seed=2):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=n).astype(dtype)
    return b + (1j * rng.normal(size=n)).astype(dtype) if np.dtype(dtype).kind == "c" else b


def dense(a):
    def apply(p, q):
        q[...] = a @ p

    return apply


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64"])
def test_numpy_arrays_are_vectors(dtype):
    a, b = hermitian(12, dtype), right_hand_side(12, dtype)
    before = b.copy()
    double = np.dtype(dtype).itemsize // (2 if np.dtype(dtype).kind == "c" else 1) == 8
    found = cg(dense(a), b, rtol=1e-12 if double else 1e-05)
    assert found.x.dtype == b.dtype
    assert np.allclose(found.x, np.linalg.solve(a, b), rtol=1e-9 if double else 1e-3)
    assert found.iterations <= 13
    assert np.array_equal(b, before)
    again = cg(dense(a), b, x0=found.x, rtol=1e-10 if double else 0.0001)
    assert again.iterations == 0


def test_arrays_of_two_dimensions_are_vectors():
    b = np.arange(12.0).reshape(3, 4) + 1

    def apply(p, q):
        q[...] = 3 * p + np.roll(p, 1, 0) + np.roll(p, -1, 0)

    found = cg(apply, b, rtol=1e-13)
    check = np.empty_like(b)
    apply(found.x, check)
    assert np.allclose(check, b, rtol=1e-12)


def test_operators_that_are_not_what_they_should_be_are_named():
    b = right_hand_side(6, "complex128")
    with pytest.raises(SolverError, match="iteration 1: .* not positive definite"):
        cg(dense(-hermitian(6, "complex128")), b)
    skew = hermitian(6, "complex128") + 3j * np.eye(6)
    with pytest.raises(SolverError, match="the operator is not Hermitian"):
        cg(dense(skew), b)


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_vectors_are_one_vector(kind):
    """Two blocks of a dense system that are coupled."""
    a, b = hermitian(10, "float64"), right_hand_side(10, "float64")

    def apply(p, q):
        whole = a @ np.concatenate(p)
        q[0][...], q[1][...] = whole[:4], whole[4:]

    found = cg(apply, kind([b[:4].copy(), b[4:].copy()]), rtol=1e-12)
    assert type(found.x) is kind
    assert np.allclose(np.concatenate(found.x), np.linalg.solve(a, b), rtol=1e-9)


def test_lists_may_hold_fields_of_several_lattices():
    @jali.site_function
    def scaled(X, out, p, c):
        out[X] = c * p[X]

    fields = [Field(Lattice(4), Real()), Field(Lattice(3, 3), Complex())]
    fields[0][...] = 1.0
    fields[1][...] = 2j

    def apply(p, q):
        scaled(q[0], p[0], 2.0)
        scaled(q[1], p[1], 4.0)

    found = cg(apply, fields, rtol=1e-12)
    assert np.allclose(found.x[0][...], 0.5)
    assert np.allclose(found.x[1][...], 0.5j)
    assert found.iterations == 2


def fake_library(monkeypatch, name, kind, **more):
    fake = type(kind, (np.ndarray,), {"__module__": name})
    module = types.ModuleType(name)
    module.zeros_like, module.vdot, module.finfo = np.zeros_like, np.vdot, np.finfo
    module.promote_types = np.promote_types
    for key, value in more.items():
        setattr(fake, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(NAMESPACES[name].__dict__, "xp", module)  # which it keeps
    return lambda a: np.asarray(a).view(fake)


def test_arrays_that_look_like_cupys_are_solved_with_cupy(monkeypatch):
    made = fake_library(monkeypatch, "cupy", "ndarray", device=contextlib.nullcontext())
    a, b = hermitian(7, "complex128"), right_hand_side(7, "complex128")
    assert vectors_of("b", made(b)).xp is sys.modules["cupy"]
    found = cg(dense(a), made(b), rtol=1e-12)
    assert type(found.x) is type(made(b))
    assert np.allclose(found.x, np.linalg.solve(a, b), rtol=1e-9)


def test_tensors_that_look_like_pytorchs_are_solved_with_torch(monkeypatch):
    made = fake_library(
        monkeypatch,
        "torch",
        "Tensor",
        clone=lambda self: self.copy(),
        to=lambda self, dtype: self.astype(dtype),
        is_floating_point=lambda self: self.dtype.kind == "f",
        is_complex=lambda self: self.dtype.kind == "c",
    )
    a, b = hermitian(7, "float64"), right_hand_side(7, "float64")
    assert isinstance(vectors_of("b", made(b)), vectors.TorchVectors)
    found = cg(dense(a), made(b), rtol=1e-12)
    assert np.allclose(found.x, np.linalg.solve(a, b), rtol=1e-9)


def test_tensors_of_pytorch_are_vectors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a, b = hermitian(9, "complex128"), right_hand_side(9, "complex128")
    matrix = torch.from_numpy(a)

    def apply(p, q):
        q[...] = matrix @ p

    found = cg(apply, torch.from_numpy(b), rtol=1e-12)
    assert np.allclose(found.x.numpy(), np.linalg.solve(a, b), rtol=1e-9)


def test_arrays_of_cupy_are_vectors():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    a, b = hermitian(9, "float64"), right_hand_side(9, "float64")
    matrix = cupy.asarray(a)

    def apply(p, q):
        q[...] = matrix @ p

    found = cg(apply, cupy.asarray(b), rtol=1e-12)
    assert np.allclose(found.x.get(), np.linalg.solve(a, b), rtol=1e-9)


def test_random_vectors_are_the_same_on_any_number_of_ranks():
    def run():
        ranks = jali.comm.current()
        plane = DistributedArray.of(layout_of(ranks, (6, 4), axis=1), np.zeros((6, 4 // ranks.size)))
        fields = [
            Field(Lattice(4, 6), Spinor(2)),
            Field(Lattice(4, 6), Real(), "float32", over=jali.EVEN, batch=3),
        ]
        arrays = [
            DistributedArray.to_dist(np.zeros(13, complex)),
            plane,
            StackedDistributedArray([plane, DistributedArray.to_dist(np.zeros(5))]),
        ]
        flat = vectors.random(plane.ravel(), 7).local.reshape(plane.local_shape)
        assert np.array_equal(flat, vectors.random(plane, 7).local)
        found = [vectors.random(x, 7)[...] for x in fields] + [vectors.random(x, 7).asarray() for x in arrays]
        both = vectors.random([fields[0], np.zeros(3)], 7)
        return [x.tobytes() for x in [*found, both[0][...], both[1]]], found

    (alone, found), *others = jali.virtual_ranks(1, run) + jali.virtual_ranks(2, run)
    assert all(bits == alone for bits, _ in others)
    field, colour, array, *_ = found
    for x in (field.ravel(), array):
        numbers = np.concatenate([x.real, x.imag])
        assert np.abs(numbers).max() < 1
        assert len(np.unique(numbers)) == numbers.size
    assert field.shape == (4, 6, 4, 2)
    assert abs(field.mean()) < 0.1
    assert abs(np.mean(np.abs(field) ** 2) - 2 / 3) < 0.05  # of which each part has a third
    assert (np.abs(colour).reshape(4, 6, 3).max(axis=2) > 0).sum() == 12
    assert vectors.random(np.zeros(3), 1).tolist() != vectors.random(np.zeros(3), 2).tolist()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["field", "half field", "array", "list"])
def test_sums_of_several_vectors_are_those_of_one_after_the_other(kind, dtype):
    lattice, element = Lattice(4, 4), Complex() if dtype == "complex128" else Real()
    like = {
        "field": lambda: Field(lattice, element),
        "half field": lambda: Field(lattice, element, "float32", over=jali.EVEN),
        "array": lambda: np.zeros((2, 3), dtype),
        "list": lambda: [Field(lattice, element), np.zeros(3, dtype)],
    }[kind]()
    of_like = vectors_of("x", like)

    def numbers(x):
        return np.concatenate([np.ravel(part[...]) for part in (x if isinstance(x, list) else [x])])

    xs = of_like.several(like, 37)
    for k, x in enumerate(xs):
        of_like.update([(x, 0, [(1, vectors.random(like, k))])])
    y, rng = vectors.random(like, 100), np.random.default_rng(1)
    X, accuracy = np.array([numbers(x) for x in xs]), 1e-5 if kind == "half field" else 1e-13
    for count in (1, 5, 8, 19, 32, 37):
        some, c = xs[:count], rng.normal(size=(count, 3))
        c = c + (1j * rng.normal(size=c.shape) if dtype == "complex128" else 0)
        assert np.allclose(
            of_like.inner_products(some, y), X[:count].conj() @ numbers(y), rtol=0, atol=10 * accuracy
        )
        for own in (0, 1):
            z = of_like.copy(y)
            of_like.add_several(z, c[:, 0], some, own)
            assert np.allclose(numbers(z), own * numbers(y) + c[:, 0] @ X[:count], rtol=0, atol=20 * accuracy)
        ys = of_like.several(like, 8)[:3]
        of_like.combine_several(ys, c, some)
        assert np.allclose([numbers(z) for z in ys], c.T @ X[:count], rtol=0, atol=20 * accuracy)


def test_vectors_of_several_sets_and_single_ones_are_summed():
    like = Field(Lattice(4, 4), Real())
    of_like = vectors_of("x", like)
    first, second, single = of_like.several(like, 8), of_like.several(like, 8), of_like.several(like, 1)
    mixed = [first[0], first[1], single[0], second[3], second[0], second[1], first[2], second[2]]
    for k, x in enumerate(mixed):
        of_like.update([(x, 0, [(1, vectors.random(like, k))])])
    X, y = np.array([x[...].ravel() for x in mixed]), vectors.random(like, 100)
    c = np.arange(1.0, 9.0)
    assert np.allclose(of_like.inner_products(mixed, y), X @ y[...].ravel())
    expected = y[...].ravel() + c @ X
    of_like.add_several(y, c, mixed)
    assert np.allclose(y[...].ravel(), expected)
    out = of_like.several(like, 2)
    of_like.combine_several(out, np.array([c, -c]).T, mixed)
    assert np.allclose(out[0][...].ravel(), c @ X)
    assert np.allclose(out[1][...].ravel(), -c @ X)


def test_another_kind_of_vector_is_one_row(monkeypatch):
    class Boxed:
        def __init__(self, values):
            self.values = values

    class BoxedVectors(vectors.ArrayVectors):
        def check(self, name, x, like):
            super().check(name, x.values, like.values)

        def like(self, x):
            return Boxed(np.zeros_like(x.values))

        def copy(self, x):
            return Boxed(x.values.copy())

        def epsilon(self, x):
            return super().epsilon(x.values)

        def inner(self, x, y, wait=True):
            return super().inner(x.values, y.values)

        def update(self, assignments, norm=False, wait=True):
            plain = [(y.values, own, [(a, x.values) for a, x in terms]) for y, own, terms in assignments]
            vectors.ArrayVectors(np).update(plain)
            return self.norm2(assignments[-1][0]) if norm else None

    monkeypatch.setattr(registry, "VECTOR_KINDS", list(registry.VECTOR_KINDS))
    register(VectorKind("Boxed", lambda x: isinstance(x, Boxed), lambda x: BoxedVectors(np)))
    a, b = hermitian(5, "float64"), right_hand_side(5, "float64")

    def apply(p, q):
        q.values[...] = a @ p.values

    found = cg(apply, Boxed(b), rtol=1e-12)
    assert np.allclose(found.x.values, np.linalg.solve(a, b))


FIELD = Field(Lattice(4), Real())


@pytest.mark.parametrize(
    ("b", "more", "error", "match"),
    [
        ("x", {}, ParameterError, "cg: b is a vector .*PyTorch tensor.*, not 'x'"),
        ([], {}, ParameterError, "cg: b is a vector"),
        (np.arange(3), {}, LayoutError, "real and complex numbers, not with arrays of int64"),
        (np.ones(3), {"x0": np.ones(4)}, LayoutError, r"x0 is an array of float64 with shape \(4,\)"),
        (np.ones(3), {"x0": np.ones(3, "D")}, LayoutError, "x0 is an array of complex128"),
        (np.ones(3), {"x0": FIELD}, ParameterError, "x0 is a vector of the kind of b, ndarray, not Field"),
        ([np.ones(3)], {"x0": [np.ones(3)] * 2}, LayoutError, "x0 is a list of 2 vectors, b one of 1"),
        ([np.ones(3)], {"x0": [FIELD]}, LayoutError, r"x0\[0\] is"),
        (
            np.ones(3),
            {"check_interval": 4},
            ParameterError,
            "check_interval=4, but operations on these vectors",
        ),
    ],
)
def test_vectors_that_do_not_fit_are_refused(b, more, error, match):
    with pytest.raises(error, match=match):
        cg(lambda p, q: None, b, **more)


def test_updates_of_fields_are_what_they_say():
    lattice = Lattice(4, 2)
    x, y, z = (Field(lattice, Complex()) for _ in range(3))
    rng = np.random.default_rng(1)
    values = [rng.normal(size=(4, 2)) + 1j * rng.normal(size=(4, 2)) for _ in range(3)]
    for field, v in zip((x, y, z), values, strict=True):
        field[...] = v
    a, b, c = values
    space = of_fields.FieldVectors()
    norm = space.update(
        [(x, 0.5, [(1, y), (2j, z)]), (y, 0, [(1, x), (-1, z)]), (z, 1, [(lattice.scalar(3.0), x)])],
        norm=True,
    )
    a = 0.5 * a + b + 2j * c
    b = a - c
    c = c + 3 * a
    for field, v in zip((x, y, z), (a, b, c), strict=True):
        assert np.allclose(field[...], v, rtol=1e-14)
    assert norm == pytest.approx(np.sum(np.abs(c) ** 2))


WITHOUT_SOLVERS = """
import sys
import jali
from jali.vectors import vectors_of
x = jali.Field(jali.Lattice(4), jali.Real())
x[...] = 2.0
assert "jali.lattice.vectors" not in sys.modules
print(vectors_of("x", [x]).norm2([x]), vectors_of("x", x).norm2(x))
"""


def test_fields_are_vectors_where_no_solver_is_loaded():
    found = run_python(WITHOUT_SOLVERS)
    assert found.stdout.split() == ["16.0", "16.0"]


def test_solvers_import_no_site_functions():
    for file in Path(solvers.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert "site_function" not in names, file
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("jali.lattice.sites", "jali.lattice.algebra"), file
