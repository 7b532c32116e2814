"""Values are reshaped, stacked and joined as arrays of NumPy are, at no cost."""

import numpy as np
import pytest
from support import random_field

import jali
from jali import Field, Hermitian, Integer, Lattice, Matrix, Real, Spinor, TraceError, Vector

pytestmark = pytest.mark.lanes

EXTENTS = (3, 5, 2)
precisions = pytest.mark.parametrize("precision", ["float64", "float32"])


def fields(*elements, precision="float64"):
    lattice = Lattice(*EXTENTS)
    return [random_field(lattice, element, k, precision=precision) for k, element in enumerate(elements)]


@precisions
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_shapes_are_those_of_numpy(kind, precision):
    @jali.site_function
    def f(X, rows, columns, long, below, beside, flat, wide, diagonal, entries, numbers, v, w, m, a):
        rows[X] = jali.stack([v[X], 2 * v[X]])
        columns[X] = jali.stack([v[X], w[X][:3]], axis=1)
        long[X] = jali.concatenate([v[X], w[X]])
        below[X] = jali.concatenate([m[X], m[X][:1, :]])
        beside[X] = jali.concatenate([m[X], m[X][:, 1:]], axis=-1)
        flat[X] = m[X].reshape(-1)
        wide[X] = w[X].reshape((2, 2))
        diagonal[X] = jali.diagonal(v[X])
        entries[X] = m[X].diagonal()
        numbers[X] = jali.stack([a[X], 1, v[X][0]])

    n = {"kind": kind}
    results = [
        Matrix(2, 3, **n),
        Matrix(3, 2, **n),
        Vector(7, **n),
        Matrix(3, 3, **n),
        Matrix(2, 5, **n),
        Vector(6, **n),
    ]
    results += [Matrix(2, **n), Matrix(3, **n), Vector(2, **n), Vector(3, **n)]
    arguments = [Vector(3, **n), Vector(4, **n), Matrix(2, 3, **n), Real()]
    given = fields(*results, *arguments, precision=precision)
    V, W, M, A = (field[...] for field in given[-4:])
    f(*given)
    expected = [
        np.stack([V, 2 * V], axis=-2),
        np.stack([V, W[..., :3]], axis=-1),
        np.concatenate([V, W], axis=-1),
        np.concatenate([M, M[..., :1, :]], axis=-2),
        np.concatenate([M, M[..., 1:]], axis=-1),
        M.reshape(*EXTENTS, 6),
        W.reshape(*EXTENTS, 2, 2),
        V[..., None] * np.eye(3),
        np.diagonal(M, axis1=-2, axis2=-1),
        np.stack([A, np.ones_like(A), V[..., 0]], axis=-1),
    ]
    for field, values in zip(given, expected, strict=False):
        assert np.array_equal(field[...], values), field.name


@precisions
def test_a_spinor_becomes_two_chiral_halves_and_back_at_no_cost(precision):
    @jali.site_function
    def halves(X, upper, lower, psi):
        upper[X] = psi[X][:, :2].reshape(6)
        lower[X] = psi[X][:, 2:].reshape(6)

    @jali.site_function
    def whole(X, psi, upper, lower):
        psi[X] = jali.concatenate([upper[X].reshape(3, 2), lower[X].reshape(3, 2)], axis=1)

    @jali.site_function
    def there_and_back(X, chi, psi):
        upper, lower = psi[X][:, :2].reshape(6), psi[X][:, 2:].reshape(6)
        chi[X] = jali.concatenate([upper.reshape(3, 2), lower.reshape(3, 2)], axis=1)

    psi, chi, upper, lower = fields(Spinor(3), Spinor(3), Vector(6), Vector(6), precision=precision)
    halves(upper, lower, psi)
    spin_last = np.swapaxes(psi[...], -1, -2)
    assert np.array_equal(upper[...], spin_last[..., :2].reshape(*EXTENTS, 6))
    assert np.array_equal(lower[...], spin_last[..., 2:].reshape(*EXTENTS, 6))
    whole(chi, upper, lower)
    assert np.array_equal(chi[...], psi[...])
    there_and_back(chi.like(), psi)
    for function, arguments in [
        (halves, (upper, lower, psi)),
        (whole, (chi, upper, lower)),
        (there_and_back, (chi, psi)),
    ]:
        assert jali.inspect(function, *arguments).flops == 0


@precisions
def test_blocks_of_a_spinor_are_solved_by_hermitian_blocks(precision):
    @jali.site_function
    def f(X, chi, psi, plus, minus):
        upper = plus[X].solve(psi[X][:, :2].reshape(6)).reshape(3, 2)
        lower = minus[X].solve(psi[X][:, 2:].reshape(6)).reshape(3, 2)
        chi[X] = jali.concatenate([upper, lower], axis=1)

    psi, chi, plus, minus = fields(Spinor(3), Spinor(3), Hermitian(6), Hermitian(6), precision=precision)
    for block in (plus, minus):
        block[...] = block[...] @ block[...] + np.eye(6)
    f(chi, psi, plus, minus)
    for block, spins in ((plus, slice(2)), (minus, slice(2, 4))):
        x = np.swapaxes(chi[...][..., spins, :], -1, -2).reshape(*EXTENTS, 6, 1)
        b = np.swapaxes(psi[...][..., spins, :], -1, -2).reshape(*EXTENTS, 6, 1)
        assert np.abs(block[...] @ x - b).max() < (1e-12 if precision == "float64" else 1e-4)


def test_kinds_are_those_of_the_higher_one():
    @jali.site_function
    def f(X, out, whole, number, real):
        out[X] = jali.concatenate([jali.stack([whole[X], number[X]]), real[X]])

    lattice = Lattice(*EXTENTS)
    elements = (Vector(4), Integer(), jali.Complex(), Vector(2, kind="real"))
    out, whole, number, real = (Field(lattice, element) for element in elements)
    whole[...], number[...], real[...] = 3, 1 + 2j, [4.0, 5.0]
    f(out, whole, number, real)
    assert np.array_equal(out[0, 0, 0], [3, 1 + 2j, 4, 5])


def test_a_real_diagonal_is_known_to_be_hermitian():
    @jali.site_function
    def f(X, h, v):
        h[X] = jali.diagonal(v[X])

    lattice = Lattice(*EXTENTS)
    h, v, w = (Field(lattice, element) for element in (Hermitian(3), Vector(3, kind="real"), Vector(3)))
    v[...] = [1.0, 2.0, 3.0]
    f(h, v)
    assert np.array_equal(h[0, 1, 1], np.diag([1, 2, 3]))
    with pytest.raises(TraceError, match="holds Hermitian"):
        f(h, w)


MISTAKES = {
    "v.reshape(2, 2)": r"a complex Vector\(3\) has 3 components and is no vector or matrix of shape \(2, 2\)",
    "v.reshape(1, 1, 3)": r"no vector or matrix of shape \(1, 1, 3\)",
    "v.reshape(-1, -1)": r"no vector or matrix of shape \(-1, -1\)",
    "v.reshape(0, -1)": r"no vector or matrix of shape \(0, -1\)",
    "v.reshape(1.5)": r"reshape takes whole numbers, not \(1.5,\)",
    "(v[0].real > 0).reshape(1)": "a condition has no components",
    "v.diagonal()": r"diagonal needs a matrix, not complex Vector\(3\)",
    "jali.diagonal(m)": r"jali.diagonal needs a vector, not a complex Matrix\(2, 3\)",
    "jali.stack([])": "jali.stack needs at least one value",
    "jali.stack(v)": "jali.stack needs a list of values",
    "jali.stack([v, m])": r"takes numbers, or vectors of one length, not complex Vector\(3\) and complex Matrix\(2, 3\)",
    "jali.stack([v, v[:2]])": r"not complex Vector\(3\) and complex Vector\(2\)",
    "jali.stack([v, v], axis=2)": "jali.stack along axis 2: of these values it is 0 or 1",
    "jali.stack([v[0] == 0])": "complex numbers|conditions",
    "jali.concatenate([v[0], v])": r"jali.vector\(\[a, b\]\) is made of numbers",
    "jali.concatenate([v, m])": r"vectors alone or matrices alone, not complex Vector\(3\) and complex Matrix\(2, 3\)",
    "jali.concatenate([m, m.transpose()])": r"of equal numbers of columns along axis 0, not complex Matrix\(2, 3\) and",
    "jali.concatenate([m, m.transpose()], axis=1)": "of equal numbers of rows along axis 1",
    "jali.concatenate([v, v], axis=1)": "along axis 1: of these values it is 0",
    "np.stack([v, v])": r"write jali.stack\(\[a, b\]\)",
    "np.reshape(v, 3)": r"write a.reshape\(n, m\)",
    "np.linalg.cholesky(m)": r"write h.cholesky\(\)",
    "m.flatten()": r"did you mean .reshape\(\)\?",
}


@pytest.mark.parametrize("formula", MISTAKES)
def test_what_does_not_fit_is_an_error_at_the_line(formula):
    space = {"jali": jali, "np": np}
    code = compile(f"def f(X, v0, m0):\n    v, m = v0[X], m0[X]\n    v0[X] = {formula}\n", __file__, "exec")
    exec(code, space)
    v, m = fields(Vector(3), Matrix(2, 3))
    with pytest.raises(TraceError, match=f"(?s){MISTAKES[formula]}.*test_shapes.py:3"):
        jali.site_function(space["f"])(v, m)
