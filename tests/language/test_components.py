"""Components are assigned as in NumPy: of fields where they are read, of values of the function's own."""

import copy

import numpy as np
import pytest
from support import assert_close, random_field

import jali
from jali import EVEN, SU, Algebra, Complex, Field, Lattice, Matrix, Real, Spinor, TraceError, Vector
from jali.gauge import GaugeField

EXTENTS = (3, 5, 2)
precisions = pytest.mark.parametrize("precision", ["float64", "float32"])


@precisions
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_components_of_fields_are_written_and_added_to(precision, kind):
    @jali.site_function
    def f(X, v, m, a):
        mu = X.directions()[1]
        v[X][0] = 2 * a[X]
        v[X][1] += a[X + mu]
        v[X][-1] *= v[X][0]
        m[X][0, 1] = a[X]
        m[X][1, 0] -= 1
        m[X][0, 0], m[X][1, 1] = m[X][1, 1], m[X][0, 0]

    lattice = Lattice(*EXTENTS)
    v = random_field(lattice, Vector(4, kind=kind), 1, precision=precision)
    m = random_field(lattice, Matrix(2, 3, kind=kind), 2, precision=precision)
    a = random_field(lattice, Real(), 3, precision=precision)
    V, M, A = v[...], m[...], a[...]
    V[..., 0] = 2 * A
    V[..., 1] += np.roll(A, -1, 1)
    V[..., -1] *= V[..., 0]
    M[..., 0, 1] = A
    M[..., 1, 0] -= 1
    M[..., 0, 0], M[..., 1, 1] = M[..., 1, 1].copy(), M[..., 0, 0].copy()
    f(v, m, a)
    assert_close(v[...], V, precision)
    assert_close(m[...], M, precision)


@precisions
def test_slices_are_rows_columns_and_blocks(precision):
    @jali.site_function
    def f(X, m, v, w):
        m[X][0, :] = v[X]
        m[X][:, 2] = w[X][1:]
        m[X][1:, :2] = 2 * m[X][:2, 1:]
        v[X][::2] = 0.5
        v[X][1:2] += w[X][:1]

    lattice = Lattice(*EXTENTS)
    m, v, w = (
        random_field(lattice, element, k, precision=precision)
        for k, element in enumerate((Matrix(3), Vector(3), Vector(4)))
    )
    M, V, W = m[...], v[...], w[...]
    M[..., 0, :] = V
    M[..., :, 2] = W[..., 1:]
    M[..., 1:, :2] = 2 * M[..., :2, 1:]
    V[..., ::2] = 0.5
    V[..., 1:2] += W[..., :1]
    f(m, v, w)
    assert_close(m[...], M, precision)
    assert_close(v[...], V, precision)


def test_values_of_the_function_are_changed_in_place_and_copies_are_not():
    @jali.site_function
    def f(X, out, a):
        v = jali.zero(Vector(3, kind="real"))
        same, other, third, sum_of_one = v, v.copy(), +v, sum([v])
        power, deep = a[X] ** 1, copy.deepcopy(v)
        for k in range(3):
            v[k] = k * a[X]
        m = jali.identity(2)
        m[0, 1] = 1j
        m[1, :] = jali.vector([m[0, 0], 2])
        out[X] = jali.vector(
            [
                same[2],
                other[2] + third[2] + sum_of_one[2] + deep[2],
                m[0, 1].imag + m[1, 0].real,
                m[1, 1].real,
                power,
            ]
        )

    lattice = Lattice(*EXTENTS)
    out, a = Field(lattice, Vector(5, kind="real")), random_field(lattice, Real(), 1)
    f(out, a)
    A = a[...]
    assert_close(out[...], np.stack([2 * A, 0 * A, 0 * A + 2, 0 * A + 2, A], -1), "float64")


def test_a_copy_of_what_a_field_holds_leaves_the_field():
    @jali.site_function
    def f(X, out, a):
        v = a[X].copy()
        v[0] = 7.0
        out[X] = v

    lattice = Lattice(4, 3)
    out, a = Field(lattice, Vector(2)), random_field(lattice, Vector(2), 1)
    before = a[...]
    f(out, a)
    assert np.array_equal(a[...], before)
    assert np.array_equal(out[...], np.stack([np.full_like(before[..., 0], 7.0), before[..., 1]], -1))


def test_links_and_spinors():
    @jali.site_function
    def f(X, U, psi):
        U[0][X][0, 0] = 0.5
        psi[X][2, 3] = psi[X][0, 1]  # colour, spin

    lattice = Lattice(4, 2)
    U, psi = GaugeField(lattice, SU(3)).cold_start(), random_field(lattice, Spinor(3), 2)
    values = psi[...]
    f(U, psi)
    values[..., 3, 2] = values[..., 1, 0]
    assert np.array_equal(psi[...], values)
    links = U[0][...]
    assert np.all(links[..., 0, 0] == 0.5)
    assert np.all(links[..., 1, 1] == 1.0)


def test_at_an_offset_and_on_a_colour():
    @jali.site_function
    def f(X, v):
        v[X + X.directions()[0]][1] += 1

    lattice = Lattice(4, 4)
    v = random_field(lattice, Vector(2, kind="real"), 1)
    expected = v[...]
    expected[np.add.outer(np.arange(4), np.arange(4)) % 2 == 1, 1] += 1
    f[EVEN](v)
    assert np.array_equal(v[...], expected)


def test_a_field_whose_components_are_all_assigned_is_not_read():
    @jali.site_function
    def f(X, v, a):
        v[X][0] = a[X]
        v[X][1] = -a[X]

    lattice = Lattice(4, 4)
    report = jali.inspect(f, Field(lattice, Vector(2)), Field(lattice, Real()))
    assert list(report.reads) == ["a"]


L = Lattice(4, 4)


@pytest.mark.parametrize(
    ("element", "wrong", "message"),
    [
        (
            Vector(3),
            lambda X, a: a[X].__setitem__(3, 1.0),
            "component 3 of a complex Vector.3. does not exist",
        ),
        (Vector(3), lambda X, a: a[X].__setitem__((0, 1), 1.0), "takes 1 indices, not 2"),
        (
            Vector(3),
            lambda X, a: a[X].__setitem__(slice(0, 2), a[X]),
            "a complex Vector.3. cannot be assigned",
        ),
        (Vector(3), lambda X, a: a[X].__setitem__(slice(3, 3), 1.0), "is empty"),
        (Vector(3), lambda X, a: a[X].__setitem__(0.5, 1.0), "0.5 is not a whole number"),
        (Vector(3), lambda X, a: a[X].__delitem__(0), "cannot be removed"),
        (Vector(2, kind="real"), lambda X, a: a[X].__setitem__(0, 1j), "use .real or .imag"),
        (Complex(), lambda X, a: a[X].__setitem__(0, 1.0), "a complex has no components to assign"),
        (Algebra(2), lambda X, a: a[X].__setitem__((0, 0), 1.0), "apply .traceless_antihermitian"),
    ],
)
def test_what_does_not_fit_is_an_error(element, wrong, message):
    @jali.site_function
    def f(X, a):
        wrong(X, a)

    with pytest.raises(TraceError, match=message):
        f(Field(L, element))


def test_a_value_of_a_field_that_was_assigned_to_is_not_used_again():
    @jali.site_function
    def f(X, out, a):
        v = a[X]
        v[0] = 1.0
        out[X] = v

    with pytest.raises(
        TraceError, match=r"that wrote a: read a\[X\] again, or .* v = a\[X\].copy\(\)\n .*test_comp"
    ):
        f(Field(L, Vector(2)), Field(L, Vector(2)))


def test_a_value_of_a_field_that_was_written_since_is_not_assigned_to():
    @jali.site_function
    def f(X, a):
        v = a[X]
        a[X] = 2 * v
        v[0] = 1.0

    with pytest.raises(TraceError, match="a has been written since this value was read"):
        f(Field(L, Vector(2)))


def on_ranks():
    @jali.site_function
    def f(X, v):
        v[X][0] += v[X + X.directions()[1]][1]

    lattice = Lattice(4, 6)
    v = random_field(lattice, Vector(2), 4)
    f[EVEN](v)
    return v[...]


def test_on_several_ranks():
    (alone,) = jali.virtual_ranks(1, on_ranks)
    assert all(np.array_equal(alone, values) for values in jali.virtual_ranks(3, on_ranks))
