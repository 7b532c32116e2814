"""Vectors of several precisions in one update: computed in the widest, rounded once when stored."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import jali
from jali import Complex, Field, Integer, Lattice, Real, Spinor, Vector
from jali.arrays import DistributedArray, StackedDistributedArray, from_field
from jali.errors import LayoutError, ParameterError
from jali.solvers import vectors_of
from jali.vectors import like

pytestmark = pytest.mark.lanes

SHAPE = (8, 6)


def values(dtype, seed=1):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=SHAPE)
    return (found + 1j * rng.normal(size=SHAPE) if np.dtype(dtype).kind == "c" else found).astype(dtype)


def field_of(lattice, array):
    element = Complex() if array.dtype.kind == "c" else Real()
    field = Field(lattice, element, precision="float32" if array.dtype.char in "fF" else "float64")
    field[...] = array
    return field


# Each makes a function that makes vectors, and one that gives the numbers of a vector, as one array or several.
def fields():
    lattice = Lattice(*SHAPE)
    return lambda a: field_of(lattice, a), lambda x: x[...]


def arrays():
    return lambda a: a.copy(), lambda x: x


def arrays_with_gaps():
    return lambda a: np.repeat(a, 2, axis=1)[:, ::2], lambda x: np.ascontiguousarray(x)


def distributed():
    return DistributedArray.to_dist, lambda x: x.asarray()


def distributed_fields():
    lattice = Lattice(*SHAPE)
    return lambda a: from_field(field_of(lattice, a)), lambda x: x.local.field[...]


def stacks():
    return (
        lambda a: StackedDistributedArray([DistributedArray.to_dist(part.copy()) for part in (a[:4], a[4:])]),
        lambda x: np.concatenate([one.asarray() for one in x.distarrays]),
    )


def lists():
    lattice = Lattice(*SHAPE)
    return lambda a: [a.copy(), field_of(lattice, a)], lambda x: np.stack([x[0], x[1][...]])


ALONE = [arrays, arrays_with_gaps]
KINDS = [fields, distributed, distributed_fields, stacks, lists, *ALONE]


def in_each(kind, body):
    """`body` of the vectors of a kind, on one rank and on two."""
    for ranks in (1,) if kind in (*ALONE, lists) else (1, 2):
        jali.virtual_ranks(ranks, lambda: body(*kind()))


def assert_bits(found, right):
    found = np.asarray(found)
    for one in found if found.ndim > right.ndim else [found]:
        assert one.dtype == right.dtype
        assert one.tobytes() == right.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", ["float64", "complex128"])
def test_a_correction_of_single_precision_is_added_in_double(kind, wide):
    narrow = "float32" if wide == "float64" else "complex64"
    x, p = values(wide), values(narrow, 2)
    right = x + 0.5 * p.astype(wide)  # products by a power of two are exact: one rounding in either order

    def body(make, read):
        vector, correction = make(x), make(p)
        norm = vectors_of("x", vector).update([(vector, 1, [(0.5, correction)])], norm=True)
        assert_bits(read(vector), right)
        assert_bits(read(correction), p)
        count = 2 if kind is lists else 1
        assert norm == pytest.approx(count * np.sum(np.abs(right) ** 2), rel=1e-14)

    in_each(kind, body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", ["float64", "complex128"])
def test_a_residual_of_double_precision_is_rounded_once_to_single(kind, wide):
    """b and A x are nearly the same: rounded one by one, no digit of their difference would be right."""
    narrow = "float32" if wide == "float64" else "complex64"
    b = values(wide)
    q = b * (1 + 2.0**-40)
    right = (b - q).astype(narrow)

    def body(make, read):
        r = like(make(b), precision="float32")
        vectors = vectors_of("r", r)
        norm = vectors.update([(r, 0, [(1, make(b)), (-1, make(q))])], norm=True)
        assert_bits(read(r), right)
        count = 2 if kind is lists else 1
        assert norm == pytest.approx(count * np.sum(np.abs(right.astype(wide)) ** 2), rel=1e-6)
        vectors.update([(r, 0, [(1, make(b))])])
        assert_bits(read(r), b.astype(narrow))

    in_each(kind, body)


@pytest.mark.parametrize("kind", [distributed, arrays, arrays_with_gaps, stacks])
def test_products_of_arrays_are_rounded_to_the_widest_type(kind):
    x, p, own = values("float64"), values("float32", 2), 0.3
    right = own * x + 0.1 * p.astype("float64")

    def body(make, read):
        vector = make(x)
        vectors_of("x", vector).update([(vector, own, [(0.1, make(p))])])
        assert_bits(read(vector), right)

    in_each(kind, body)


def test_products_of_fields_are_added_with_one_rounding():
    x, p = values("float64"), values("float32", 2)
    exact = [
        float(Fraction(u) + Fraction(0.1) * Fraction(v))
        for u, v in zip(x.flat, p.astype(float).flat, strict=True)
    ]

    def body(make, read):
        vector = make(x)
        vectors_of("x", vector).update([(vector, 1, [(0.1, make(p))])])
        assert_bits(read(vector), np.array(exact).reshape(SHAPE))

    in_each(fields, body)


@pytest.mark.parametrize("storage", ["float16", "bfloat16", "fixed16", "float32"])
def test_storage_formats_round_once_and_norms_are_those_of_what_is_stored(storage):
    lattice = Lattice(4, 4)
    b = Field(lattice, Vector(3))
    b[...] = np.random.default_rng(1).normal(size=b.shape) + 1j
    r = b.like(precision="float32", storage=storage)
    right = r.like()
    right[...] = (0.7 * b[...]).astype(np.complex128)
    norm = vectors_of("r", r).update([(r, 0, [(0.7, b)])], norm=True)
    assert np.array_equal(r.storage.export_box(), right.storage.export_box())
    found = np.sum(np.abs(r[...].astype(complex)) ** 2)
    assert norm == pytest.approx(
        found, rel=1e-7 if storage == "fixed16" else 1e-14
    )  # its decoding is rounded
    same = b.like(storage=storage)
    assert vectors_of("b", b).update([(same, 0, [(0.7, b)])], norm=True) == same.norm2()


def test_several_assignments_of_fields_are_one_kernel_in_the_widest_precision():
    make, read = fields()
    x, r, p = values("float64"), values("float32", 2), values("float32", 3)
    vectors = [make(a) for a in (x, p, r)]
    vectors_of("x", vectors[0]).update(
        [(vectors[0], 1, [(0.5, vectors[1])]), (vectors[1], 0.25, [(1, vectors[2])])]
    )
    assert_bits(read(vectors[0]), x + 0.5 * p.astype(float))
    assert_bits(read(vectors[1]), (0.25 * p.astype(float) + r.astype(float)).astype("float32"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_zeros_of_another_precision_have_the_form_of_the_vector(kind, dtype, precision):
    is_complex = np.dtype(dtype).kind == "c"
    right = np.zeros(SHAPE, np.result_type(precision, np.complex64 if is_complex else np.float32))

    def body(make, read):
        x = make(values(dtype))
        found = like(x, precision=precision)
        assert type(found) is type(x)
        assert type(vectors_of("x", found)) is type(vectors_of("x", x))
        assert_bits(read(found), right)
        vectors_of("x", x).check("zeros", vectors_of("x", x).like(x), x)

    in_each(kind, body)


def test_zeros_keep_boundary_and_storage_where_the_precision_is_the_same():
    x = Field(
        Lattice(4, 4), Spinor(3), precision="float32", storage="fixed16", boundary=["antiperiodic", "open"]
    )
    same, wide = like(x, precision="float32"), like(x, precision="float64")
    assert same.stored.format.name == "fixed16"
    assert wide.stored.format.name == "float64"
    assert wide.boundary == same.boundary == x.boundary


INTEGERS = Field(Lattice(4, 4), Integer(), name="n")
REALS = Field(INTEGERS.lattice, Real(), name="x")
COMPLEX = Field(INTEGERS.lattice, Complex(), name="c")
VECTOR = Field(INTEGERS.lattice, Vector(3), name="v")
WHOLE = np.ones(3, int)


def spread(array):
    return DistributedArray.to_dist(array)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: like(np.ones(3), precision="float16"),
            ParameterError,
            "precision of a vector is float32 or float64, not 'float16'",
        ),
        (lambda: like(REALS, precision="double"), ParameterError, "is float32 or float64, not 'double'"),
        (lambda: like(spread(np.ones(3)), precision=4), ParameterError, "is float32 or float64, not 4"),
        (
            lambda: like(from_field(REALS), precision="half"),
            ParameterError,
            "is float32 or float64, not 'half'",
        ),
        (lambda: like(INTEGERS, precision="float32"), LayoutError, "n holds whole numbers"),
        (lambda: like(WHOLE, precision="float32"), LayoutError, "arrays of int64"),
        (lambda: like([REALS, WHOLE], precision="float32"), LayoutError, "arrays of int64"),
        (lambda: like(spread(WHOLE), precision="float32"), LayoutError, "arrays of int64"),
    ],
)
def test_precisions_that_there_are_not_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


def update(y, own, *terms):
    return vectors_of("y", y).update([(y, own, list(terms))], norm=True)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: update(INTEGERS, 1, (1, INTEGERS)), LayoutError, "n holds whole numbers"),
        (lambda: update(REALS.copy(), 1, (1, INTEGERS)), LayoutError, "n holds whole numbers"),
        (
            lambda: update(WHOLE.copy(), 1, (1, WHOLE)),
            LayoutError,
            "real or complex numbers, not an array of int64",
        ),
        (lambda: update(np.ones(3), 1, (1, WHOLE)), LayoutError, "not an array of int64"),
        (lambda: update(spread(np.ones(3)), 1, (1, spread(WHOLE))), LayoutError, "not an array of int64"),
        (
            lambda: update([REALS.copy(), WHOLE.copy()], 1, (1, [REALS, WHOLE])),
            LayoutError,
            "not an array of int64",
        ),
        (
            lambda: update(np.ones(3, "f"), 1, (1, np.ones(3, "D"))),
            LayoutError,
            "array of complex128 makes complex numbers, which an array of float32",
        ),
        (
            lambda: update(np.ones(3, "f"), 1, (2j, np.ones(3))),
            LayoutError,
            "the factor 2j makes complex numbers",
        ),
        (
            lambda: update(np.ones(3), 1, (np.complex64(2j), np.ones(3))),
            LayoutError,
            "the factor 2j makes complex numbers",
        ),
        (
            lambda: update(REALS.copy(), 1, (2j, REALS)),
            LayoutError,
            "the factor 2j makes complex numbers, which .*, a field of Real",
        ),
        (
            lambda: update(REALS.copy(), 1, (np.complex64(2j), REALS)),
            LayoutError,
            "the factor 2j makes complex numbers",
        ),
        (
            lambda: update(REALS.copy(), 1, (REALS.lattice.scalar(2j), REALS)),
            LayoutError,
            "a complex Scalar makes complex numbers, which .*, a field of Real",
        ),
        (
            lambda: update(REALS, 1, (1, COMPLEX)),
            LayoutError,
            "c, which holds Complex, makes complex numbers, which x does not hold, a field of Real",
        ),
        (
            lambda: update(REALS, 1, (1, VECTOR)),
            LayoutError,
            r"v holds Vector\(3\), and x, which it is added to, Real",
        ),
        (
            lambda: update(REALS, 1, (1, Field(Lattice(4, 5), Real(), name="y"))),
            LayoutError,
            r"x lives on Lattice\(4, 4\), y on Lattice\(4, 5\) \(extents",
        ),
        (
            lambda: vectors_of("x", REALS).update([(REALS, 1, []), (Field(Lattice(4, 4), Real()), 1, [])]),
            LayoutError,
            "an update has one lattice",
        ),
        (
            lambda: update(REALS, 1, (1, np.ones((4, 4)))),
            LayoutError,
            r"an update of fields is one between fields, .* a numpy.ndarray of shape \(4, 4\) .*lattice.wrap",
        ),
        (
            lambda: vectors_of("x", REALS).update([(np.ones(3), 1, [(1, REALS)])]),
            LayoutError,
            "an update of fields",
        ),
        (lambda: update(REALS, 1, (1, 2.0)), LayoutError, "one of its vectors is 2.0"),
        (lambda: vectors_of("x", REALS).check("y", np.ones(3), REALS), LayoutError, "y is no field, as b is"),
        (
            lambda: update(np.ones(3), 1, (1, REALS)),
            ParameterError,
            "of one kind, not a numpy.ndarray .* and <Real",
        ),
        (lambda: update(np.ones(3), 1, (1, None)), ParameterError, "an operand is a vector .*, not None"),
        (lambda: update(np.ones(3), 1, (1, np.ones(4))), LayoutError, r"one shape, not \(3,\) and \(4,\)"),
        (
            lambda: vectors_of("x", WHOLE).inner(np.ones(3), REALS),
            ParameterError,
            "of one kind, not a numpy.ndarray",
        ),
        (
            lambda: vectors_of("x", WHOLE).inner(np.ones(3), np.ones(4)),
            LayoutError,
            r"one shape, not \(3,\) and \(4,\)",
        ),
        (
            lambda: update(spread(np.ones(3)), 1, (1, np.ones(3))),
            ParameterError,
            "of one kind, not <Distributed",
        ),
        (
            lambda: update(spread(np.ones(3)), 1, (1, StackedDistributedArray([spread(np.ones(3))] * 2))),
            LayoutError,
            "of one form, not <Distributed.*Stacked",
        ),
        (lambda: vectors_of("x", spread(WHOLE)).inner(spread(WHOLE), WHOLE), ParameterError, "of one kind"),
        (
            lambda: update([REALS], 1, (1, [REALS, REALS])),
            LayoutError,
            "as many vectors, not 1 and 2",
        ),
        (
            lambda: vectors_of("x", [REALS]).inner([REALS], [REALS, REALS]),
            LayoutError,
            "as many vectors, not 1 and 2",
        ),
        (lambda: update([REALS], 1, (1, REALS)), LayoutError, "a list of 1, another one is <Real field"),
        (
            lambda: update(REALS.copy(), 1, ("3", REALS)),
            ParameterError,
            "a factor of vectors is a number, not '3'",
        ),
        (
            lambda: update(np.ones(3, "f"), None, (1, np.ones(3))),
            ParameterError,
            "a factor of vectors is a number, not None",
        ),
        (
            lambda: update(REALS.copy(), 1, (10**400, REALS)),
            ParameterError,
            "at most 1.8e308, not a whole number of 1329 bits",
        ),
        (
            lambda: update(from_field(REALS.copy()), 1, (1, spread(np.ones((4, 4))))),
            LayoutError,
            r"x.as_engine\('jali'\)",
        ),
        (
            lambda: update(spread(np.ones((4, 4))), 1, (1, from_field(REALS))),
            LayoutError,
            r"x.as_engine\('numpy'\)",
        ),
    ],
)
def test_what_is_no_update_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("factor", [1e300, np.float64(1e300), 1 << 200, float("inf")])
@pytest.mark.parametrize("kind", [fields, arrays, arrays_with_gaps, distributed, distributed_fields])
def test_a_factor_is_rounded_as_ieee_has_it(kind, factor):
    """As np.float32(1e300) is; in an update that computes in double it stays what it is."""

    def body(make, read):
        x = make(np.full(SHAPE, 2.0**-60, "f"))
        narrow, wide = (like(x, precision=precision) for precision in ("float32", "float64"))
        for y in (narrow, wide):
            vectors_of("y", y).update([(y, 0, [(factor, x)])])
        assert np.all(np.isinf(np.asarray(read(narrow))))
        assert_bits(read(wide), np.full(SHAPE, float(factor) * 2.0**-60))

    in_each(kind, body)
