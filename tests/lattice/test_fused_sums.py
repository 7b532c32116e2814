"""Inner products that the kernel gives which writes: the bits of a call and `inner` after it, also where one kernel cannot give them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import jali
from jali import (
    EVEN,
    SU,
    Algebra,
    Complex,
    Field,
    Integer,
    Lattice,
    LayoutError,
    Matrix,
    Real,
    Spinor,
    StorageError,
    TraceError,
    Vector,
)
from jali.comm.virtual import virtual_ranks
from jali.lattice.algebra import inner
from jali.lattice.fused_sums import apply_inner

pytestmark = pytest.mark.lanes

ELEMENTS = [Real(), Complex(), Vector(3), Vector(3, kind="real"), Matrix(2, 2), Spinor(2), Integer()]


@jali.site_function
def spread(X, out, x, m):
    total = (m + 2 * X.ndim) * x[X]
    for mu in X.directions():
        total = total - x[X + mu] - x[X - mu]
    out[X] = total


def filled(lattice, element, seed=1, **options):
    field, rng = Field(lattice, element, **options), np.random.default_rng(seed)
    values = rng.normal(size=lattice.extents + element.numpy_shape)
    if element.type.kind == "complex":
        values = values + 1j * rng.normal(size=values.shape)
    field[...] = np.round(10 * values).astype(int) if element.type.kind == "int" else values
    return field


@pytest.fixture(autouse=True)
def nothing_is_known_of_the_function():
    """Tests run in any order, and some make it need two kernels."""
    spread.derived.clear()


def apart(function):
    """Whether a call of the function has needed two kernels."""
    return any(derived.apart for derived in function.derived.values())


def both(function, p, out, *arguments, **options):
    """The number of one kernel and that of two; what they write is the same."""
    p, other = (out if p is None else p), out.copy()
    found = apply_inner(function, None if p is out else p, out, *arguments, **options)
    domain = options.get("over", jali.ALL)
    function[domain](other, *[other if a is out else a for a in arguments])
    assert out.local().tobytes() == other.local().tobytes()
    return found, inner(other if p is out else p, other)


@pytest.mark.short(8)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_the_number_has_the_bits_of_an_inner_product_after_the_call(element, precision, ranks):
    m = 3 if element == Integer() else 0.3

    def run():
        x = filled(Lattice(8, 6), element, precision=precision)
        p = filled(x.lattice, element, 2, precision=precision)
        pairs = [both(spread, of, x.like(), x, m) for of in (x, p, None)]
        assert all(type(one) is type(two) and one == two for one, two in pairs), pairs
        return pairs

    assert virtual_ranks(ranks, run) == virtual_ranks(1, run) * ranks
    assert not apart(spread)


@pytest.mark.short(5)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "storage", ["float32", "float16", "bfloat16", "fixed16", "fixed8", "float64-spin-first"]
)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_what_is_added_is_what_is_stored(precision, storage, ranks):
    if storage.startswith("float64") and precision == "float32":
        return

    def run():
        x = filled(Lattice(6, 4), Spinor(3), precision=precision, storage=storage)
        found, right = both(spread, x, x.like(), x, 0.25)
        assert found == right
        return found

    assert len(set(virtual_ranks(ranks, run) + virtual_ranks(1, run))) == 1
    assert not apart(spread)


@pytest.mark.parametrize("element", [SU(3), SU(1), Algebra(3)], ids=str)
def test_matrices_of_groups_are_added_as_they_are_kept(element):
    @jali.site_function
    def moved(X, out, x):
        out[X] = x[X + X.directions()[0]]

    @jali.site_function
    def start(X, u, rng):
        A = jali.matrix(
            [[jali.complex(rng.gaussian(X), rng.gaussian(X)) for _ in range(3)] for _ in range(3)]
        )
        u[X] = A.traceless_antihermitian() if element == Algebra(3) else A.traceless_antihermitian().exp()

    @jali.site_function
    def phases(X, u, rng):
        u[X] = jali.exp(1j * rng.uniform(X))

    u = Field(Lattice(4, 4), element, **({"storage": "float32-12"} if element == SU(3) else {}))
    (phases if element == SU(1) else start)(u, jali.Random(seed=1))
    found, right = both(moved, u, u.like(), u)
    assert found == right != 0
    assert not apart(moved)


def test_zeros_and_units_of_the_algebra_are_not_simplified_in_the_product():
    """jali.zero times infinity would be 0, and what memory holds times infinity is nan."""

    @jali.site_function
    def zeros(X, out, x):
        out[X] = jali.zero(out.element)

    @jali.site_function
    def turned(X, out, x):
        out[X] = 1j * x[X]

    x = filled(Lattice(4, 4), Complex())
    x[0, 0] = np.inf
    for function in (zeros, turned):
        found, right = both(function, x, x.like(), x)
        assert repr(found) == repr(right)
        assert "nan" in repr(found)
        assert not apart(function)


def test_what_the_function_rounds_stays_as_it_is_where_it_has_the_same_product():
    """p[X] * out[X] is a multiply-add there, and no longer one if it were used twice."""

    @jali.site_function
    def shared(X, out, other, x):
        out[X] = 0.1 * x[X] + 0.3
        other[X] = 1.0 + x[X] * out[X]

    for storage in ("float64", "fixed16", "float32"):
        x = filled(Lattice(6, 6), Real(), storage=storage)
        one, two = x.like(), x.like()
        out, again = x.like(), x.like()
        found = apply_inner(shared, x, out, one, x)
        shared(again, two, x)
        assert one[...].tobytes() == two[...].tobytes()
        assert found == inner(x, again)
        assert apart(shared) == (storage != "float64")  # there it reads what storage has rounded


def test_the_other_field_may_be_written_too():
    @jali.site_function
    def exchanged(X, a, b):
        a[X], b[X] = b[X], a[X]

    a, b = (filled(X4.lattice, Vector(2), seed) for seed in (1, 2))
    before = a[...], b[...]
    found = apply_inner(exchanged, b, a, b)
    assert np.array_equal(a[...], before[1])
    assert np.array_equal(b[...], before[0])
    assert found == inner(b, a)
    assert apply_inner(exchanged, a, a, b, written="b") == inner(a, b)
    assert not apart(exchanged)


class Model:
    def __init__(self, weight):
        self.weight = weight

    @jali.site_function
    def weighted(self, X, out, x):
        out[X] = self.weight[X] * x[X]


@jali.site_function
def pushed(X, out, x):
    out[X + X.directions()[0]] = x[X]


@jali.site_function
def both_ways(X, out, x):
    mu = X.directions()[0]
    out[X + mu] = x[X]
    out[X] = 2.0 * x[X]


@jali.site_function
def times(X, out, x, y):
    out[X] = x[X] * y[X]


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_one_kernel_would_give_other_bits_there_are_two(ranks):
    def run():
        x = filled(Lattice(6, 4), Real())
        narrow = filled(x.lattice, Real(), 2, precision="float32")
        results = [
            both(pushed, x, x.like(), x),
            both(spread, x, x.copy(), x, 0.5, over=EVEN),
            both(Model(x).weighted, x, x.like(), x),
            both(times, narrow, narrow.like(), narrow, x),  # a product of float64, and one of float32
        ]
        assert apart(pushed)
        assert apart(times)
        assert apply_inner(both_ways, x, out := x.like(), x) == inner(x, out)
        assert apart(both_ways)
        assert all(one == two for one, two in results), results
        return results

    assert virtual_ranks(ranks, run) == virtual_ranks(1, run) * ranks


@pytest.mark.short(6)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("of_p", [{"precision": "float64"}, {"precision": "float32"}, {"storage": "float16"}])
@pytest.mark.parametrize("of_y", [{"precision": "float32"}, {"precision": "float64"}, {"storage": "fixed16"}])
def test_the_other_field_leaves_the_arithmetic_of_the_function_as_it_is(of_y, of_p, ranks):
    """With p of float64, a function of float32 would run in float64: other bits of the number and of the field."""

    def run():
        x = filled(Lattice(6, 4), Complex(), **of_y)
        p = filled(x.lattice, Complex(), 2, **of_p)
        pairs = [both(spread, p, x.like(), x, 0.3), both(spread, p, p.like(), x, 0.3)]
        assert all(one == two for one, two in pairs), pairs
        return pairs

    assert virtual_ranks(ranks, run) == virtual_ranks(1, run) * ranks


@pytest.mark.parametrize("wrapped", range(1, 8))
def test_arrays_beside_fields_give_the_bits_of_two_kernels(wrapped):
    @jali.site_function
    def bent(X, out, x):
        out[X] = jali.sin(x[X]) * jali.exp(x[X + X.directions()[0]]) / 3.0 + 0.1 * x[X]

    lattice, rng = Lattice(7, 5, device="cpu"), np.random.default_rng(1)
    arrays = [rng.normal(size=(7, 5)) for _ in range(3)]
    p, out, x = (
        lattice.wrap(array) if wrapped >> k & 1 else filled(lattice, Real(), k)
        for k, array in enumerate(arrays)
    )
    found = apply_inner(bent, p, out, x)
    written = out[...].copy()
    bent(out, x)
    assert written.tobytes() == out[...].tobytes()
    assert found == inner(p, out)
    assert not apart(bent)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_other_field_may_be_written_at_other_sites(ranks):
    @jali.site_function
    def scattered(X, out, other, x):
        out[X] = x[X]
        other[X + X.directions()[0]] = 2.0 * x[X]

    def run():
        x = filled(Lattice(6, 4), Real())
        out, other = x.like(), x.copy()
        found = apply_inner(scattered, other, out, other, x)
        assert np.array_equal(other[...], 2.0 * np.roll(x[...], 1, 0))
        assert found == inner(other, out)
        return found

    assert virtual_ranks(ranks, run) == virtual_ranks(1, run) * ranks


def test_a_function_runs_over_the_lattice_that_it_runs_over_without():
    """That of its first field, which is not the lattice of y here."""

    @jali.site_function
    def injected(X, coarse, fine):
        fine[X] = coarse[X.on(coarse)]

    coarse, fine = filled(Lattice(3, 4), Real()), filled(Lattice(6, 8), Real(), 2)
    for call in (
        lambda: injected(coarse, fine),
        lambda: apply_inner(injected, fine, coarse, fine, written="fine"),
    ):
        with pytest.raises(TraceError, match="put fine in front"):
            call()


def test_a_part_of_the_sites_leaves_the_others_in_the_product():
    x = filled(Lattice(4, 4), Real())
    y = filled(x.lattice, Real(), 3)
    odd = y[...].copy()
    colouring = jali.Colouring(3, lambda at: (at[0] + at[1]) % 3)
    found = apply_inner(spread, x, y, x, 0.5, over=colouring[1])
    assert found == inner(x, y)
    assert np.count_nonzero(y[...] == odd) >= 10


def test_numbers_that_change_trace_nothing_again():
    x = filled(Lattice(4, 4), Complex())
    out = x.like()
    apply_inner(spread, x, out, x, 0.5)
    derived = next(iter(spread.derived.values()))
    programs = dict(derived._programs)
    for m in (0.1, 0.7):
        assert apply_inner(spread, x, out, x, m) == inner(x, out)
    assert derived._programs == programs


def test_a_scalar_stays_where_it_is():
    x = filled(Lattice(4, 4), Complex())
    out = x.like()
    found = apply_inner(spread, x, out, x, 0.5, wait=False)
    assert isinstance(found, jali.Scalar)
    assert complex(found) == inner(x, out)


def test_defaults_and_names_of_parameters_are_those_of_the_function():
    @jali.site_function
    def scaled(X, x, result, c=0.5):
        result[X] = c * x[X]

    x = filled(Lattice(4, 4), Real())
    out = x.like()
    assert apply_inner(scaled, x, x, out, written="result") == inner(x, out)
    assert np.array_equal(out[...], 0.5 * x[...])


def test_values_that_storage_cannot_hold_are_reported():
    x = filled(Lattice(4, 4), Real(), storage="float16")
    with pytest.raises(StorageError):
        apply_inner(spread, x, x.like(), x, 1e6)


@jali.site_function
def idle(X, out, x, y):
    y[X] = x[X] + 0.0 * out[X]


X4 = filled(Lattice(4, 4), Real(), name="x")
C4 = Field(X4.lattice, Complex(), name="c")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: apply_inner(spread, X4), TraceError, "spread takes 3 arguments .*out, x, m are missing"),
        (lambda: apply_inner(spread, X4, 2.0, X4, 1.0), LayoutError, "out of spread is 2.0"),
        (lambda: apply_inner(spread, 2.0, X4.like(), X4, 1.0), LayoutError, "two fields; p is 2.0"),
        (lambda: apply_inner(spread, X4, [X4.like()], X4, 1.0), LayoutError, "two fields; out of spread is "),
        (
            lambda: apply_inner(spread, X4, C4, X4, 1.0),
            LayoutError,
            "x holds Real.*c, which spread writes, holds Complex",
        ),
        (
            lambda: apply_inner(spread, C4, X4.like(), X4, 1.0),
            LayoutError,
            "c holds Complex.*which spread writes, holds Real",
        ),
        (lambda: apply_inner(spread, X4, Field(Lattice(4, 4), Real()), X4, 1.0), LayoutError, "x lives on "),
        (
            lambda: apply_inner(spread, X4, X4.like(), X4, 1.0, written="y"),
            TraceError,
            r"written= is a parameter of spread \(out, x, m\)",
        ),
        (
            lambda: apply_inner(spread, X4, X4.like(), X4, 1.0, written=3),
            TraceError,
            "by position from 0, not 3",
        ),
        (lambda: apply_inner(idle, X4, X4.copy(), X4, X4.like()), TraceError, "idle never writes "),
        (
            lambda: apply_inner(len, X4, X4.like(), X4),
            TraceError,
            "apply_inner takes a site function, not len",
        ),
    ],
)
def test_mistakes_are_reported_at_the_users_line(call, error, match):
    with pytest.raises(error, match=match) as caught:
        call()
    line = call.__code__.co_firstlineno
    assert re.search(rf"test_fused_sums.py:{line}", str(caught.value)), caught.value
