"""Fields in somebody's array: the same bytes as on a field of jali's own, whatever the array, the domain and the ranks."""

from __future__ import annotations

import functools
import gc
import weakref

import numpy as np
import pytest

import jali
from jali import (
    ALL,
    EVEN,
    ODD,
    SU,
    Algebra,
    Colouring,
    Complex,
    Field,
    Integer,
    LayoutError,
    Matrix,
    Random,
    Real,
    Spinor,
    Vector,
)

pytestmark = pytest.mark.lanes
Lattice = functools.partial(jali.Lattice, device="cpu")  # where arrays are

BOXES = [
    (7,),
    (16,),
    (5, 9),
    (6, 10),
    (4, 6, 17),
    (3, 5, 4, 7),
    (2, 2, 2, 2, 6),
    (1, 1),
    (2, 1, 2, 1, 2, 3, 1, 5),
]
ELEMENTS = [
    (Real(), "float64"),
    (Complex(), "float64"),
    (Real(), "float32"),
    (Complex(), "float32"),
    (Vector(3), "float64"),
    (Vector(2, "real"), "float32"),
    (Matrix(2, 3), "float64"),
    (Spinor(3), "float64"),
    (Spinor(2), "float32"),
]


@jali.site_function
def laplacian(X, out, f):
    total = -2.0 * X.ndim * f[X]
    for mu in X.directions():
        total += f[X + mu] + f[X - mu]
    out[X] = total


@jali.site_function
def far(X, out, f):
    mu, nu = X.directions()[0], X.directions()[-1]
    out[X] = 0.5 * f[X + 2 * mu - nu] - 0.25 * f[X - 3 * nu] + out[X]


@jali.site_function
def norms(X, f, total, at):
    total += f[X].norm2()
    at += f[X].norm2() * X.coordinate(0)


@jali.site_function
def both_of(X, f, g, total):
    total += f[X] * g[X]


@jali.site_function
def drawn(X, f, rng):
    f[X] = rng.gaussian(X) + rng.uniform(X) * X.coordinate(X.ndim - 1)


@jali.site_function
def first_small(X, f, n, rng):
    def attempt():
        u = rng.uniform(X)
        return u < 0.3, u

    f[X] = X.repeat_until(attempt, 40, 2.0)
    n[X] = X.coordinate(0) * 100 + X.coordinate(1)


def values(shape, element, precision, seed=1):
    rng = np.random.default_rng(seed)
    kind = element.numpy_dtype(precision)
    made = rng.normal(size=shape + element.numpy_shape)
    if kind.kind == "c":
        made = made + 1j * rng.normal(size=made.shape)
    return np.ascontiguousarray(made.astype(kind))


def both(lattice, element, precision, box, seed=1, boundary=None):
    """The same values in an array and in a field: the array, its field, the field."""
    part = tuple(slice(o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True))
    array = np.ascontiguousarray(values(box, element, precision, seed)[part])
    inner = lattice.wrap(array, element, boundary=boundary)
    field = Field(lattice, element, precision, boundary=boundary)
    field.set_local(array)
    return array, inner, field


def same(array, field):
    assert array.tobytes() == np.ascontiguousarray(field.local()).tobytes()


@pytest.mark.short(7)
@pytest.mark.parametrize(
    ("element", "precision", "box"),
    [
        pytest.param(*of, box, marks=() if (k + j) % 3 == 0 else pytest.mark.full)
        for k, of in enumerate(ELEMENTS)
        for j, box in enumerate(BOXES)
    ],
    ids=str,
)
def test_stencils_give_the_bytes_of_a_field_on_every_domain(box, element, precision):
    lattice = Lattice(*box)
    three = Colouring(3, lambda x: (x[0] + 2 * x[-1]) % 3)
    array, inner, field = both(lattice, element, precision, box)
    out, outer, result = both(lattice, element, precision, box, seed=2)
    for domain in (ALL, EVEN, ODD, *three):
        for function in (laplacian, far):
            function[domain](outer, inner)
            function[domain](result, field)
            same(out, result)
    same(array, field)


@pytest.mark.short(3)
@pytest.mark.parametrize("box", BOXES, ids=str)
def test_sums_slices_and_random_numbers_are_those_of_a_field(box):
    lattice = Lattice(*box)
    array, inner, field = both(lattice, Complex(), "float64", box)
    assert lattice.sum(norms, inner) == lattice.sum(norms, field)
    for axis in range(lattice.ndim):
        for mine, theirs in zip(
            lattice.sum(norms, inner, per=axis), lattice.sum(norms, field, per=axis), strict=True
        ):
            assert mine.tobytes() == theirs.tobytes()
    drawn(inner, Random(5))
    drawn(field, Random(5))
    same(array, field)
    assert lattice.sum(norms, inner, over=ODD) == lattice.sum(norms, field, over=ODD)


@pytest.mark.short(1)
@pytest.mark.parametrize("boundary", ["antiperiodic", "open", 0.6 + 0.8j])
@pytest.mark.parametrize("element", [Complex(), Vector(3), Spinor(3)], ids=str)
def test_boundaries_are_those_of_a_field(boundary, element):
    lattice = Lattice(4, 5, 6)
    array, inner, field = both(lattice, element, "float64", (4, 5, 6), boundary=boundary)
    out, outer, result = both(lattice, element, "float64", (4, 5, 6), 2)
    for function in (laplacian, far):
        function(outer, inner)
        function(result, field)
        same(out, result)


@pytest.mark.short(1)
@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2), (3, 1), (1, 4)])
def test_ranks_exchange_what_their_arrays_lack(grid):
    box = (7, 13)

    def run():
        lattice = Lattice(*box, grid=grid)
        array, inner, field = both(lattice, Complex(), "float64", box, boundary="antiperiodic")
        out, outer, result = both(lattice, Complex(), "float64", box, 2)
        for turn in range(3):
            for function in (laplacian, far):
                function(outer, inner)
                function(result, field)
                same(out, result)
            array *= 0.5 + turn  # which nobody is told
            field.set_local(array)
        assert lattice.sum(norms, inner) == lattice.sum(norms, field)
        laplacian[EVEN](inner, outer)
        laplacian[EVEN](field, result)
        laplacian(outer, inner)
        laplacian(result, field)
        same(out, result)

    jali.virtual_ranks(int(np.prod(grid)), run)


@pytest.mark.short(1)
@pytest.mark.parametrize("box", [(6, 10), (16, 16), (5, 7, 3)], ids=str)
def test_arrays_and_fields_meet_in_a_kernel(box):
    lattice = Lattice(*box)
    array, inner, field = both(lattice, Vector(3), "float64", box)
    out, outer, result = both(lattice, Vector(3), "float64", box, 2)
    for function in (laplacian, far):
        function(result, inner)  # an array into a field
        function(outer, field)  # and the reverse
        same(out, result)
    laplacian[ODD](outer, field)
    laplacian[ODD](result, field)
    same(out, result)


@pytest.mark.short(1)
@pytest.mark.parametrize("box", [(6, 10), (16, 16), (5, 7, 3)], ids=str)
def test_fields_of_two_precisions_meet_in_a_kernel(box):
    """Their sites lie differently in vectors; arithmetic is the wider one's."""
    lattice = Lattice(*box)
    single, double = values(box, Complex(), "float32"), values(box, Complex(), "float64", 2)
    f, g = Field(lattice, Complex(), "float32"), Field(lattice, Complex())
    widened = Field(lattice, Complex(), storage="float32")
    f[...], g[...], widened[...] = single, double, single
    out, expected = Field(lattice, Complex()), Field(lattice, Complex())

    @jali.site_function
    def mixed(X, out, f, g):
        mu = X.directions()[-1]
        out[X] = f[X + mu] * g[X] - 0.1 * f[X - mu]

    mixed(out, f, g)
    mixed(expected, widened, g)
    assert out.local().tobytes() == expected.local().tobytes()
    rounded, expected32 = Field(lattice, Complex(), "float32"), Field(lattice, Complex(), storage="float32")
    mixed[EVEN](rounded, f, g)
    mixed[EVEN](expected32, widened, g)
    assert rounded.local().tobytes() == expected32.local().tobytes()


@pytest.mark.short(2)
@pytest.mark.parametrize("storage", ["float16", "fixed16", "float32-12", "fixed8-8"])
def test_coded_fields_of_other_vectors_are_found_site_by_site(storage):
    lattice = Lattice(4, 6, 5)
    element = SU(3) if "-" in storage else Vector(3)
    unitary, _ = np.linalg.qr(values((4, 6, 5), Matrix(3), "float64"))
    unitary = unitary / np.linalg.det(unitary)[..., None, None] ** (1 / 3)
    given = unitary if element == SU(3) else values((4, 6, 5), Vector(3), "float64")
    boundary = "antiperiodic"
    f = Field(lattice, element, "float32", storage, boundary=boundary)
    same_bytes = Field(lattice, element, "float64", storage, boundary=boundary)
    f[...] = given
    same_bytes.set_stored_bytes(f.stored_bytes(), f.format)
    g, h = Field(lattice, element), Field(lattice, element)

    @jali.site_function
    def moved(X, out, f):
        out[X] = f[X + X.directions()[1]] + f[X]

    moved(g, f)
    moved(h, same_bytes)
    assert g.local().tobytes() == h.local().tobytes()


def test_whole_numbers_and_loops():
    lattice = Lattice(5, 9)
    counts = np.zeros((5, 9), np.int64)
    array = np.zeros((5, 9))
    inner, numbers = lattice.wrap(array), lattice.wrap(counts)
    field, whole = Field(lattice, Real()), Field(lattice, Integer())

    before = first_small.exhausted
    first_small[EVEN](inner, numbers, Random(3))
    given_up = first_small.exhausted - before
    first_small[EVEN](field, whole, Random(3))
    assert first_small.exhausted - before == 2 * given_up
    same(array, field)
    same(counts, whole)


def test_a_wrapped_array_is_the_memory_of_its_field():
    lattice = Lattice(3, 4)
    array = np.zeros((3, 4))
    field = lattice.wrap(array, name="u")
    assert field.array is array
    array[1, 2] = 7.0
    assert field[1, 2] == 7.0
    field[0, :] = [1, 2, 3, 4]
    assert array[0].tolist() == [1, 2, 3, 4]
    more = field.like()
    more.assign(field)
    assert more.array is not array
    assert more.array.tolist() == array.tolist()
    own = Field(lattice, Real()).assign(field)
    assert own[...].tolist() == array.tolist()
    assert field.copy().array.tolist() == array.tolist()
    watched = weakref.ref(field)
    del field
    gc.collect()
    assert watched() is None


def test_an_array_that_is_a_field_keeps_its_place():
    lattice = Lattice(4, 6)
    array = np.zeros((4, 6))
    heat = lattice.wrap(array)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize((40, 60), refcheck=False)
    array[1, 2] = 3.0
    assert heat[1, 2] == 3.0


def test_two_fields_in_one_array_are_refused_where_one_is_written():
    lattice = Lattice(4, 6)
    array = np.arange(48.0).reshape(8, 6)
    whole, same, apart = lattice.wrap(array[:4]), lattice.wrap(array[:4]), lattice.wrap(array[4:])
    shifted = lattice.wrap(array[2:6])
    for other in (same, shifted):
        with pytest.raises(LayoutError, match="shares memory with that of"):
            laplacian(whole, other)
    laplacian(whole, apart)
    assert lattice.sum(both_of, same, whole) == lattice.sum(both_of, whole, whole)  # nothing is written


def test_arrays_that_may_not_be_written_are_read():
    lattice = Lattice(4, 6)
    array, _, field = both(lattice, Complex(), "float64", (4, 6))
    array.flags.writeable = False
    seen = lattice.wrap(array)
    out, outer, result = both(lattice, Complex(), "float64", (4, 6), 2)
    laplacian(outer, seen)
    laplacian(result, field)
    same(out, result)
    before = array.copy()
    with pytest.raises(LayoutError, match="laplacian writes .*, whose array is read-only"):
        laplacian(seen, outer)
    for change in (
        lambda: seen.assign(field),
        lambda: seen.set_local(np.zeros((4, 6))),
        lambda: seen.__setitem__((0, 0), 1.0),
        lambda: seen.set_stored_bytes(seen.stored_bytes(), seen.format),
    ):
        with pytest.raises(LayoutError, match="is a read-only array"):
            change()
    assert array.tobytes() == before.tobytes()
    assert seen.like().assign(seen).array.tobytes() == before.tobytes()


def test_what_shares_its_memory_with_numpy_is_an_array():
    class Lent:
        """As a tensor of PyTorch."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    lattice = Lattice(4, 6)
    array, _, field = both(lattice, Real(), "float64", (4, 6))
    shared, plain = Lent(np.zeros((4, 6))), bytearray(8 * 24)
    for given in (shared, memoryview(plain).cast("d", (4, 6))):
        laplacian(lattice.wrap(given), field)
        laplacian(lattice.wrap(array), field)
        assert bytes(plain if given is not shared else shared.array.tobytes()) == array.tobytes()
        assert lattice.wrap(given).array is given


def test_python_sets_and_assigns_arrays_that_share_memory_as_numpy_does_or_says_so():
    lattice = Lattice(7)
    array = np.arange(10.0)
    shifted, first = lattice.wrap(array[1:8]), lattice.wrap(array[:7])
    with pytest.raises(LayoutError, match="their arrays share memory"):
        shifted.assign(first)
    with pytest.raises(LayoutError, match="their arrays share memory"):
        lattice.wrap(array.view(np.float32)[1:8]).assign(first)
    expected = array.copy()
    expected[1:8] = expected[:7].copy()
    shifted.set_local(array[:7])
    assert np.array_equal(array, expected)
    assert np.array_equal(shifted.assign(shifted)[...], expected[1:8])


@pytest.mark.parametrize(
    ("theirs", "options", "match"),
    [
        (np.float32, {}, "array of: float64 on rank 0, float32 on rank 1"),
        (np.int64, {}, "array of: float64 on rank 0, int64 on rank 1"),
        (np.float64, {"boundary": "open"}, "boundary: .*periodic.* on rank 0, .*open.* on rank 1"),
        (np.float64, {"element": Vector(1, "real")}, "element: .* on rank 1"),
    ],
)
def test_ranks_wrap_alike(theirs, options, match):
    def run():
        lattice = Lattice(8, 4, grid=(2, 1))
        shape = (4, 4, 1) if "element" in options else (4, 4)
        if lattice.rank == 1:
            return lattice.wrap(np.zeros(shape, theirs), **options)
        return lattice.wrap(np.zeros((4, 4)))

    with pytest.raises(jali.ParameterError, match=match):
        jali.virtual_ranks(2, run)


def test_vectors_of_many_components_are_arrays_too():
    lattice = Lattice(4, 6)
    array = np.random.default_rng(1).normal(size=(4, 6, 300))
    assert lattice.sum(norms, lattice.wrap(array))[0] == pytest.approx((array**2).sum())


def test_an_array_lives_as_long_as_its_field():
    class Seen(np.ndarray):
        pass

    lattice = Lattice(8)
    array = np.zeros(8).view(Seen)
    gone = weakref.ref(array)
    field = lattice.wrap(array)
    del array
    gc.collect()
    laplacian(field.like(), field)
    assert gone() is not None
    del field
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda lattice: lattice.wrap([1.0, 2.0]),
            "takes an array, not a list, which has no memory to share",
        ),
        (lambda lattice: lattice.wrap(np.zeros((3, 4)), stream=7), "a stream is for arrays on devices"),
        (lambda lattice: lattice.wrap(np.ma.masked_array(np.zeros((3, 4)))), "an array with a mask"),
        (lambda lattice: lattice.wrap(Field(lattice, Real())), "is a field already"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4)), int), "element type such as SU.3. or Real"),
        (lambda lattice: Field(lattice, Real()).set_local(Field(lattice, Real())), r"f\.assign\(g\) takes"),
        (lambda lattice: lattice.wrap(object()), "no element that is known|cannot share|takes an array"),
        (lambda lattice: lattice.wrap(np.zeros((4, 3))), r"box has \(3, 4\) sites.*\(4, 3\)"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4), order="F")), "C-ordered and aligned"),
        (lambda lattice: lattice.wrap(np.zeros((3, 8))[:, ::2]), "C-ordered"),
        (lambda lattice: lattice.wrap(np.broadcast_to(1.0, (3, 4))), "C-ordered"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4), np.float16)), "float64 or float32, not of float16"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4), ">f8")), "float64 or float32, not of >f8"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4), bool)), "one of int64 or int32, not of bool"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4)), Complex()), "complex128 or complex64"),
        (lambda lattice: lattice.wrap(np.zeros((3, 4, 3, 4), complex), Spinor(3)), r"shape \(3, 4, 4, 3\)"),
        (
            lambda lattice: lattice.wrap(np.zeros((3, 4, 3, 3), complex), Algebra(3)),
            "8 numbers.*wrap a Matrix",
        ),
        (
            lambda lattice: lattice.wrap(np.zeros((3, 4), np.float64), precision="float32"),
            "float32 arithmetic",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make, match):
    with pytest.raises(LayoutError, match=match):
        make(Lattice(3, 4))
