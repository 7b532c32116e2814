"""Arrays that are arguments, indexed by coordinates and other whole numbers of the site."""

import numpy as np
import pytest
from support import assert_close

import jali
from jali import EVEN, Complex, Field, Integer, Lattice, LayoutError, Matrix, Random, Real, TraceError, Vector
from jali.codegen.stage_cache import COUNTS

EXTENTS = (3, 5, 4)
precisions = pytest.mark.parametrize("precision", ["float64", "float32"])


@jali.site_function
def look_up(X, real, number, whole, vector, matrix, r, c, i, v, m):
    mu, nu, rho = X.directions()
    real[X] = r[X.coordinate(rho)] * r[(X + mu - 2 * rho).coordinate(rho)]
    number[X] = c[X.coordinate(mu), X.coordinate(nu)]
    whole[X] = i[X.coordinate(nu)] + 1
    vector[X] = v[X.coordinate(nu)] * (v[X.coordinate(nu), 1] * v[0, X.parity])
    matrix[X] = m[X.coordinate(mu), X.coordinate(mu)] * m[0, X.coordinate(mu)].dagger()


def arrays(lengths, seed):
    rng = np.random.default_rng(seed)
    n0, n1, n2 = lengths
    return (
        rng.normal(size=n2),
        rng.normal(size=(n0, n1)) + 1j * rng.normal(size=(n0, n1)),
        rng.integers(-1000, 1000, n1),
        rng.normal(size=(n1, 3)),
        rng.normal(size=(n0, n0, 2, 2)) * (1 + 0.5j),
    )


def expected(r, c, i, v, m, extents=EXTENTS):
    x, y, z = np.indices(extents)
    return (
        r[z] * r[(z - 2) % extents[2]],
        c[x, y],
        i[y] + 1,
        v[y] * (v[y, 1] * v[0, (x + y + z) % 2])[..., None],
        m[x, x] @ np.swapaxes(m[0, x], -1, -2).conj(),
    )


def outputs(lattice, precision):
    elements = (Real(), Complex(), Integer(), Vector(3, kind="real"), Matrix(2))
    return [Field(lattice, element, precision=precision) for element in elements]


@precisions
@pytest.mark.parametrize("longer", [0, 2, 300])
def test_tables_of_all_kinds_and_lengths(precision, longer):
    lattice = Lattice(*EXTENTS)
    out = outputs(lattice, precision)
    lengths = [n + (longer if longer < 10 or k == 2 else 0) for k, n in enumerate(EXTENTS)]
    for seed in (1, 2):
        tables = arrays(lengths, seed)
        look_up(*out, *tables)
        for field, values in zip(out, expected(*tables), strict=True):
            assert_close(field[...], values, precision, scale=4)


def test_other_numbers_make_nothing_and_changes_in_place_are_seen():
    lattice = Lattice(*EXTENTS)
    out = outputs(lattice, "float64")
    tables = arrays(EXTENTS, 1)
    look_up(*out, *tables)
    before = {name: count.made for name, count in COUNTS.items()}
    tables[0][2] = 17.0
    look_up(*out, *tables)
    assert_close(out[0][...], expected(*tables)[0], "float64")
    look_up(*out, *arrays(EXTENTS, 3))
    assert {name: count.made for name, count in COUNTS.items()} == before
    binaries = COUNTS["binary"].made
    look_up(*out, *arrays([n + 1 for n in EXTENTS], 3))  # another length is the same kernel
    assert COUNTS["binary"].made == binaries


def test_arrays_of_any_strides_and_types():
    @jali.site_function
    def f(X, out, a):
        out[X] = a[X.coordinate(0)]

    lattice = Lattice(5, 4)
    out, base = Field(lattice, Real()), np.arange(20.0)
    for array in (
        base[::3],
        base[::-1],
        base.astype(np.float32),
        base.astype(np.int16),
        base > 7,
        base.astype(">f8"),
    ):
        f(out, array)
        assert np.array_equal(out[...][:, 0], array[:5].astype(float))


def test_a_small_array_is_a_vector_and_a_table_at_once():
    @jali.site_function
    def f(X, out, a):
        out[X] = a[X.coordinate(0)] * a[1] + a.norm2()

    lattice = Lattice(3, 4)
    out, a = Field(lattice, Real()), np.array([1.0, 2.0, 3.0])
    f(out, a)
    assert np.array_equal(out[...], np.repeat((a * 2 + 14)[:, None], 4, 1))


def test_indices_are_whole_numbers_of_fields_within_bounds():
    @jali.site_function
    def f(X, out, s, table, k):
        n = X.coordinate(0)
        out[X] = (
            table[s[X] % 3]
            + 10 * table[jali.minimum(jali.maximum(s[X] + k, 0), 2)]
            + 100 * table[jali.where(n == 1, 2, n // 2)]
            + 1000 * table[(2 - X.parity) % 3]
            + 10000 * table[abs(n - 1)]
        )

    lattice = Lattice(4, 3)
    out, s = Field(lattice, Real()), Field(lattice, Integer())
    values = np.random.default_rng(1).integers(-5, 5, (4, 3))
    s[...], table = values, np.array([0.25, 0.5, 0.75])
    x, y = np.indices((4, 3))
    f(out, s, table, 1)
    wanted = (
        table[values % 3] + 10 * table[np.clip(values + 1, 0, 2)] + 100 * table[np.where(x == 1, 2, x // 2)]
    )
    wanted += 1000 * table[2 - (x + y) % 2] + 10000 * table[abs(x - 1)]
    assert np.allclose(out[...], wanted)


def test_in_sums_on_colours_and_in_rejection_loops():
    @jali.site_function
    def f(X, out, rng, width, total):
        def attempt():
            x = rng.gaussian(X)
            return x > 0, width[X.coordinate(1)] * x

        out[X] = X.repeat_until(attempt, 60, 0.0)
        total += width[X.coordinate(1)]

    lattice = Lattice(4, 5)
    out, width = Field(lattice, Real()), np.arange(1.0, 6.0)
    parity = np.add.outer(np.arange(4), np.arange(5)) % 2
    assert (
        lattice.sum(f, out, Random(1), width, over=EVEN) == np.broadcast_to(width, (4, 5))[parity == 0].sum()
    )
    ones = out.like()
    lattice.sum(f, ones, Random(1), np.ones(5), over=EVEN)
    assert np.allclose(out[...], width * ones[...])


L = Lattice(4, 6)
R = Field(L, Real())
WHOLE = Field(L, Integer())


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (
            lambda X, s, k: X.coordinate(1),
            np.ones(5),
            r"has 5 entries at index 0, .* reaches from 0 to 5 on a lattice of \(4, 6\)",
        ),
        (lambda X, s, k: (X.coordinate(0), X.coordinate(1) + 1), np.ones((4, 6)), "has 6 entries at index 1"),
        (lambda X, s, k: X.coordinate(0) - 1, np.ones(9), "reaches from -1 to 2"),
        (lambda X, s, k: s[X], np.ones(9), r"can be any number; bound it, as by % 9"),
        (lambda X, s, k: k, np.ones(9), r"can be any number; bound it"),
        (lambda X, s, k: 1.0 * X.coordinate(0), np.ones(9), "whole numbers of the site, .* not by a real"),
        (lambda X, s, k: (X.coordinate(0), slice(None)), np.ones((9, 2)), "the last indices are left out"),
        (lambda X, s, k: (X.coordinate(0), 0), np.ones(9), "is indexed by 2 whole numbers"),
        (
            lambda X, s, k: X.coordinate(0),
            np.ones((9, 2, 2, 2)),
            "is indexed by 1 whole numbers; what is left",
        ),
        (lambda X, s, k: 0, np.ones((9, 2, 2, 2)), "is indexed by 1 whole numbers; what is left"),
    ],
)
def test_indices_that_may_be_outside_are_errors_with_a_reason(index, array, message):
    @jali.site_function
    def f(X, out, s, table, k):
        out[X] = table[index(X, s, k)]

    with pytest.raises(TraceError, match=rf"{message}[\s\S]*at .*test_tables.py"):
        f(R, WHOLE, array, 1)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(257), "of shape .257,., is a table: index it"),
        (np.ones((2, 2, 2)), "is a table: index it"),
        (np.ones(0), "an array without numbers"),
        (np.array(["a"]), "cannot be used in a site function"),
    ],
)
def test_arrays_that_are_no_values_are_errors(array, message):
    @jali.site_function
    def f(X, out, table):
        out[X] = table

    with pytest.raises(TraceError, match=message):
        f(R, array)


def test_whole_numbers_that_do_not_fit_the_arithmetic_are_an_error():
    @jali.site_function
    def f(X, out, table):
        out[X] = table[X.coordinate(0)]

    table = np.array([1 << 40, 2, 3, 4])
    f(WHOLE, table)
    assert WHOLE[0, 0] == 1 << 40
    with pytest.raises(
        LayoutError, match="table reaches from 2 to 1099511627776; whole numbers of float32 kernels"
    ):
        f(Field(L, Integer(), precision="float32"), table)


def test_a_graph_keeps_the_table_that_it_was_recorded_with():
    @jali.site_function
    def f(X, out, table):
        out[X] += table[X.coordinate(0)]

    lattice = Lattice(3, 4)
    out, table = Field(lattice, Real()), np.arange(3.0)
    graph = jali.graph(lambda: f(out, table), lattice)
    table[...] = 100.0
    f(out, table)
    graph.run(2)
    assert np.array_equal(out[...][:, 0], 100 + 2 * np.arange(3.0))


def on_ranks(precision):
    lattice = Lattice(6, 5, 4)
    out = outputs(lattice, precision)
    look_up(*out, *arrays(lattice.extents, 1))
    return [field[...] for field in out]


@precisions
@pytest.mark.parametrize("ranks", [2, 3])
def test_on_several_ranks(precision, ranks):
    (alone,) = jali.virtual_ranks(1, on_ranks, precision)
    for values in jali.virtual_ranks(ranks, on_ranks, precision):
        assert all(np.array_equal(a, b) for a, b in zip(values, alone, strict=True))


def test_as_an_array_of_rows_whose_lanes_go_beyond_the_end():
    @jali.site_function
    def f(X, out, table):
        out[X] = table[X.coordinate(1)]

    lattice = Lattice(3, 5, device="cpu")
    out = lattice.wrap(np.zeros((3, 5)))
    f(out, np.arange(5.0))
    assert np.array_equal(out.array, np.broadcast_to(np.arange(5.0), (3, 5)))


def test_a_field_far_away_that_chooses_an_entry():
    """What is looked up by a neighbour's number is not computed by the neighbour."""

    @jali.site_function
    def g(X, out, s, table):
        out[X] = table[s[X + X.directions()[0]] % 2]

    def run():
        lattice = Lattice(6, 4)
        out, s = Field(lattice, Vector(2)), Field(lattice, Integer())
        s[...] = np.random.default_rng(1).integers(0, 9, (6, 4))
        g(out, s, np.array([[1.0, 2.0], [3.0, 4.0]]))
        return out[...], s[...]

    for values, s in jali.virtual_ranks(3, run):
        assert np.array_equal(values, np.array([[1.0, 2.0], [3.0, 4.0]])[np.roll(s, -1, 0) % 2])
