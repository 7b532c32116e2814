"""Fields with a batch: each member has the bits of a field of its own, on any sites, formats and ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_fields_on_colours import Program, filled

import jali
from jali import (
    EVEN,
    ODD,
    SU,
    Algebra,
    Complex,
    Field,
    Hermitian,
    Integer,
    Lattice,
    LayoutError,
    Matrix,
    Real,
    Spinor,
    TraceError,
    Vector,
)
from jali.comm.virtual import virtual_ranks
from jali.lattice.algebra import inner, norm2

LATTICES = [(4, 12), (8, 8, 8), (12, 8), (8, 2, 2, 8)]
MEMBERS = [1, 3, 8, 2]


def batch_of(singles):
    """One field with these as members."""
    f = singles[0].like(batch=len(singles))
    for k, single in enumerate(singles):
        f.members[k].assign(single)
    return f


def same(f, singles):
    assert f.batch == len(singles)
    return all(
        f.members[k].stored_bytes().tobytes() == g.stored_bytes().tobytes() for k, g in enumerate(singles)
    )


def run_batch(
    seed, extents, members, device="cpu", precision="float64", storage=None, made=lambda f: f, grid=None
):
    """The sums of a random program on batches, as they are `made` of such fields, compared with those of single fields; on all sites and on a
    colour."""
    lattice = Lattice(*extents, device=device, grid=grid)
    boundary = {0: "antiperiodic", len(extents) - 1: 1j}
    options = {"precision": precision, "storage": storage, "boundary": boundary}
    a, b = ([filled(lattice, Vector(3), 10 * k + m, **options) for m in range(members)] for k in (1, 2))
    u = filled(lattice, Matrix(3, 3), 3, precision=precision)
    shared = filled(lattice, Vector(3), 99, **options)  # a field that all members read
    program, numbers = Program(seed, lattice.ndim), []
    together = [made(batch_of(a)), made(batch_of(b))]
    assert same(together[0], a)
    for turn in range(2):
        colour = (EVEN, ODD)[turn]
        out = made(together[0].like())
        program.step(out, [together[0], shared, together[1], together[1]], u, 0.5, colour)
        found = lattice.sum(program.summed, [together[0], shared, together[1], together[1]], u, 0.5, colour)
        singles = [g.like() for g in a]
        for g, mine, other in zip(singles, a, b, strict=True):
            program.step(g, [mine, shared, other, other], u, 0.5, colour)
        assert same(out, singles)
        each = [
            lattice.sum(program.summed, [mine, shared, other, other], u, 0.5, colour)
            for mine, other in zip(a, b, strict=True)
        ]
        assert found.shape == (members,)
        assert found.tolist() == each
        halves = [made(each) for f in together for each in f.split()]
        half = made(together[0].like(over=colour))
        program.step(half, halves, u, 0.5, colour)
        full = together[0].like()
        program.step[colour](full, [together[0]] * 2 + [together[1]] * 2, u, 0.5, colour)
        assert np.array_equal(half.stored_bytes(), full.on(colour).stored_bytes())
        numbers.append(found.tolist())
        together[0], a = out, singles
    return numbers


@pytest.mark.lanes
@pytest.mark.short(5)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_members_have_the_bits_of_single_fields(seed, ranks):
    extents = (6, 18) if ranks == 3 else LATTICES[seed]
    alone = run_batch(seed, extents, MEMBERS[seed])
    if ranks > 1:
        assert virtual_ranks(ranks, lambda: run_batch(seed, extents, MEMBERS[seed])) == [alone] * ranks


@pytest.mark.lanes
@pytest.mark.short(3)
@pytest.mark.parametrize("storage", ["float32", "float16", "fixed16", "fixed8"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_formats_with_a_norm_keep_one_for_each_member(storage, ranks):
    virtual_ranks(ranks, lambda: run_batch(2, (4, 2, 8), 3, storage=storage))
    if storage != "float32":
        virtual_ranks(ranks, lambda: run_batch(3, (4, 2, 8), 2, "cpu", "float32", storage))
    lattice = Lattice(4, 4)
    f = Field(lattice, Vector(2), storage=storage, batch=2)
    f[...] = np.array([1e-6, 1e4]).reshape(2, 1) * np.ones((4, 4, 2, 2))
    assert np.allclose(f.members[0][...], 1e-6, rtol=1e-2)


@pytest.mark.parametrize(
    "element", [Real(), Complex(), Integer(), Spinor(2), SU(3), SU(1), Algebra(3), Hermitian(3)], ids=str
)
def test_numpy_sees_the_members_behind_the_site(element):
    lattice = Lattice(4, 2, 2)
    f = Field(lattice, element, batch=3)
    assert f.shape == (4, 2, 2, 3, *element.numpy_shape)
    values = np.zeros(f.shape, f.dtype)
    if element in (SU(3), Hermitian(3)):
        values[...] = np.eye(3)
    else:
        values[...] = 1
        if element == Algebra(3):
            values[...] = 1j * np.diag([1, 1, -2])
    f[...] = values
    assert np.array_equal(f[...], values)
    assert np.array_equal(f[1, 0, 1], values[1, 0, 1])
    assert np.array_equal(f[1, 0, 1, 2], values[1, 0, 1, 2])
    f[0, 0, 0, 1] = 0 * values[0, 0, 0, 1] if element not in (SU(3), SU(1)) else values[0, 0, 0, 1]
    assert np.array_equal(f.members[2][...], values[:, :, :, 2])
    f.set_local(values)
    assert np.array_equal(f.local(), values)
    g = f.like()
    g.set_stored_bytes(f.stored_bytes(), f.format)
    assert np.array_equal(g[...], values)


@pytest.mark.parametrize("ranks", [1, 2])
def test_members_are_views(ranks):
    def run():
        lattice = Lattice(4, 6)
        singles = [filled(lattice, Vector(2), k) for k in range(5)]
        f = batch_of(singles)
        some = f.members[[3, 0]]
        assert same(some, [singles[3], singles[0]])
        assert same(f.members[1:4], singles[1:4])
        assert same(f.members[np.arange(5) % 2 == 0], singles[::2])
        assert same(some.members[::-1], [singles[0], singles[3]])
        assert f.members[-1].batch is None
        assert len(f.members) == 5
        doubled = some.like()
        double(doubled, some)  # a kernel that reads a view
        assert np.array_equal(doubled[...], 2 * some[...])
        double(some, doubled)  # and one that writes it
        assert np.array_equal(f.members[3][...], 4 * singles[3][...])
        assert same(f.members[[1, 2, 4]], [singles[k] for k in (1, 2, 4)])
        some += 1.0 * doubled
        f.members[2][...] = 7.0
        f.members[4].assign(singles[0])
        assert np.array_equal(f[...][:, :, 2], np.full((4, 6, 2), 7.0))
        left = f.members[[4, 2]].copy()  # what has left is not in memory any more
        assert left.storage.nbytes < f.storage.nbytes
        assert np.array_equal(left[...], f[...][:, :, [4, 2]])
        assert norm2(f.members[[4, 2]]).tolist() == norm2(left).tolist()
        return f[...].tobytes()

    assert len(set(virtual_ranks(ranks, run))) == 1


@jali.site_function
def double(X, out, x):
    out[X] = 2.0 * x[X]


@jali.site_function
def neighbours(X, out, x, factor):
    """Hops along the batch, with a factor where it begins again."""
    s, last = X.member, 3
    mu = X.directions()[0]
    out[X] = (
        jali.where(s == last, factor, 1.0) * x[X + mu, s + 1] - jali.where(s == 0, factor, 1.0) * x[X, s - 1]
    )


@jali.site_function
def ends(X, out, x, k):
    out[X] = x[X, 0] + x[X - X.directions()[1], -1] + x[X, k]


@pytest.mark.parametrize("ranks", [1, 2])
def test_neighbours_along_the_batch_are_read(ranks):
    def run():
        lattice = Lattice(4, 6)
        singles = [filled(lattice, Complex(), k) for k in range(4)]
        f = batch_of(singles)
        out = f.like()
        neighbours(out, f, -0.25)
        values = f[...]
        ahead = np.roll(np.roll(values, -1, axis=2), -1, axis=0)
        behind = np.roll(values, 1, axis=2)
        ahead[:, :, 3] *= -0.25
        behind[:, :, 0] *= -0.25
        assert np.array_equal(out[...], ahead - behind)
        one = singles[0].like()
        for k in (1, 2):
            ends(one, f, k)
            assert np.array_equal(
                one[...], values[:, :, 0] + np.roll(values[:, :, 3], 1, axis=1) + values[:, :, k]
            )
        return out[...].tobytes()

    assert len(set(virtual_ranks(ranks, run))) == 1


@jali.site_function
def gram(X, x, y, total):
    """conj(x_a) y_b, row a of the member b."""
    total += jali.vector([x[X, a].dot(y[X]) for a in range(3)])


@jali.site_function
def scaled(X, out, x, factors):
    out[X] = factors[X.member] * x[X]


@jali.site_function
def extreme(X, x, high, low):
    high.max(x[X].norm2())
    low.min(x[X].norm2())


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_are_arrays_of_the_members(ranks):
    def run():
        lattice = Lattice(4, 6)
        singles = [filled(lattice, Vector(2), k) for k in range(3)]
        others = [filled(lattice, Vector(2), 5 + k) for k in range(3)]
        f, g = batch_of(singles), batch_of(others)
        assert inner(f, g).tolist() == [inner(a, b) for a, b in zip(singles, others, strict=True)]
        assert inner(f, singles[0]).tolist() == [inner(a, singles[0]) for a in singles]
        found = lattice.sum(gram, f, g)
        assert found.shape == (3, 3)
        assert found.T.tolist() == [[inner(a, b) for b in others] for a in singles]
        stays = lattice.sum(norm_of, f, wait=False)  # an array of numbers
        assert stays.read().tolist() == [norm2(a) for a in singles]
        assert lattice.sum(gram, f, g, wait=False).read().tolist() == found.tolist()
        per = lattice.sum(norm_of, f, per=1)
        assert per.shape == (6, 3)
        assert per[:, 2].tolist() == lattice.sum(norm_of, singles[2], per=1).tolist()
        high, low = lattice.reduce(extreme, f)
        assert [high[1], low[1]] == list(lattice.reduce(extreme, singles[1]))
        factors = np.array([1.5, -2.0, 0.25])
        out = f.like()
        scaled(out, f, factors)
        assert np.array_equal(out[...], factors[:, None] * f[...])
        total = (2 * f + g).field()
        assert same(total, [(2 * a + b).field() for a, b in zip(singles, others, strict=True)])
        assert same((f + singles[0]).field(), [(a + singles[0]).field() for a in singles])
        assert f.norm2().tolist() == [a.norm2() for a in singles]
        return found.tobytes()

    assert len(set(virtual_ranks(ranks, run))) == 1


@jali.site_function
def norm_of(X, x, total):
    total += x[X].norm2()


def test_random_numbers_differ_between_members_and_the_first_has_those_of_a_field():
    @jali.site_function
    def noise(X, out, rng):
        out[X] = rng.gaussian(X) + rng.uniform(X)

    lattice = Lattice(8, 8, 8)
    one, three = Field(lattice, Real()), Field(lattice, Real(), batch=3)
    noise(one, jali.Random(seed=3))
    noise(three, jali.Random(seed=3))
    assert same(three.members[0:1], [one])
    correlations = np.corrcoef(three[...].reshape(-1, 3).T)
    assert np.abs(correlations - np.eye(3)).max() < 5 / np.sqrt(512)


@pytest.mark.parametrize("format", ["jali", "npy", "h5"])
def test_files_keep_the_batch(format, tmp_path):
    if format == "h5":
        pytest.importorskip("h5py")

    def run():
        lattice = Lattice(4, 6)
        f = batch_of([filled(lattice, Vector(2), k) for k in range(3)]).on(EVEN)
        path = tmp_path / f"f.{format}"
        f.members[0:2].save(path)
        g = jali.load(path)
        return g.batch == 2 and g.over is EVEN and np.array_equal(g[...], f[...][:, :, :2])

    assert virtual_ranks(2, run) == [True, True]


X2 = Lattice(4, 4)


def on(batch, **options):
    return Field(X2, Real(), batch=batch, name=f"field_{batch}", **options)


@jali.site_function
def add(X, out, x, y):
    out[X] = x[X] + y[X]


@jali.site_function
def in_place(X, x):
    x[X] = x[X, 1]


@jali.site_function
def a_member(X, out, x):
    out[X] = x[X, 5]


@jali.site_function
def by_direction(X, out, x):
    out[X] = x[X, X.directions()[1]]


@jali.site_function
def by_truth(X, out, x):
    out[X] = x[X, True]


@jali.site_function
def by_site(X, out, x):
    out[X] = x[X, X.coordinate(0)]


@jali.site_function
def labels(X, x, count):
    count[X.coordinate(0)] += x[X]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: add(on(3), on(3), on(2)),
            TraceError,
            "a batch of 3 .*reads y, a batch of 2: one call is about batches of one size",
        ),
        (
            lambda: add(on(None), on(3), on(None)),
            TraceError,
            "writes out, which has none: all members would write there",
        ),
        (lambda: in_place(on(3)), TraceError, "writes x .*and reads another member of it"),
        (lambda: by_direction(on(3), on(3)), TraceError, "a member of x is named by a whole number.*not by"),
        (lambda: by_truth(on(3), on(3)), TraceError, "a member of x is named by a whole number.*not by True"),
        (lambda: a_member(on(None), on(None)), TraceError, "x has no batch"),
        (lambda: by_site(on(4), on(4)), TraceError, "is named by a number that is the same at all sites"),
        (lambda: X2.sum(labels, on(3), bins=4), TraceError, "a label is one of a site"),
        (lambda: on(3).members[3], LayoutError, "field_3 has the members 0 to 2, not 3"),
        (lambda: on(3).members["a"], LayoutError, "are chosen by numbers, a slice or a mask"),
        (lambda: on(3).members[[1, 1]], LayoutError, "one member or more, each once"),
        (lambda: on(3).members[[]], LayoutError, "one member or more, each once"),
        (lambda: on(None).members, LayoutError, "field_None has no batch"),
        (lambda: on(0), LayoutError, "a batch has 1 to 256 members, not 0"),
        (lambda: on(2.5), LayoutError, "a batch has 1 to 256 members, not 2.5"),
        (lambda: on(3).__setitem__((0, 0, 3), 1.0), IndexError, "index 3 of axis 2"),
        (lambda: on(3).assign(on(2)), (LayoutError, TraceError), "batch"),
        (lambda: on(None).assign(on(2)), (LayoutError, TraceError), "batch"),
    ],
)
def test_mistakes_are_reported(call, error, match):
    with pytest.raises(error, match=match) as caught:
        call()
    if error is TraceError and "add" in match:
        assert re.search(r"test_batches.py:\d+", str(caught.value)), caught.value
    with pytest.raises(error):  # on every rank
        virtual_ranks(2, call)


@pytest.mark.short(2)
@pytest.mark.parametrize("wire", ["", "float16", "fixed16"])
def test_halo_items_of_members_travel_as_those_of_fields(wire):
    """Half of a spinor travels for each member, in the wire format of the lattice; with links, which have no batch."""
    from jali.fermions import WilsonDirac
    from jali.gauge import GaugeField

    def run():
        lattice = Lattice(4, 2, 2, 8, halo_wire=wire)
        D = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=2), 0.1)
        singles = [filled(lattice, Spinor(3), k, boundary={3: "antiperiodic"}) for k in range(3)]
        f = batch_of(singles)
        out = D.apply(f)
        assert same(out, [D.apply(g) for g in singles])
        (kernel,) = D.kernel("apply").kernels(out, f, False, *D.data)
        assert [item.batch for item in kernel.program.items] == [3, 3]
        half = D.hop(f.on(EVEN))
        assert same(half, [D.hop(g.on(EVEN)) for g in singles])
        return out[...].tobytes()

    found = virtual_ranks(2, run)
    assert found[0] == found[1]


@jali.site_function
def counted_round(X, out, x, k):
    out[X] = x[X, 5] + 10 * x[X, -4] + 100 * x[X, k] + 1000 * x[X, X.member + 3]


def test_numbers_of_members_count_round_the_batch():
    x = Field(Lattice(4, 4), Real(), batch=3)
    x[...] = np.broadcast_to([1.0, 2.0, 3.0], x.shape)
    out = x.like()
    counted_round(out, x, 5)
    assert out[0, 0].tolist() == [3 + 30 + 300 + 1000 * k for k in (1, 2, 3)]


@jali.site_function
def scaled_by_list(X, out, x, m):
    out[X] = m[X.member] * x[X]


def test_mistaken_members_and_arguments_of_members_say_what_would_be_right():
    lattice = Lattice(4, 4)
    f, single = Field(lattice, Real(), batch=3, name="f"), Field(lattice, Real(), name="g")
    for call, error, match in (
        (
            lambda: scaled_by_list(f.like(), f, np.ones(2)),
            TraceError,
            "m has 2 entries .* X.member, of a batch of 3",
        ),
        (
            lambda: scaled_by_list(f.like(), f, [1.0, 2.0, 3.0]),
            TraceError,
            r"np\.array\(m\) is indexed by X.member",
        ),
        (
            lambda: scaled_by_list(f.like(), f, (1.0, 2.0, 3.0)),
            TraceError,
            r"np\.array\(m\) is indexed by X.member",
        ),
        (lambda: f.members[True], LayoutError, "by numbers, a slice or a mask, not by True"),
        (
            lambda: f.members[[True, False]],
            LayoutError,
            r"a mask of the members of f has shape \(3,\).*not \(2,\)",
        ),
        (
            lambda: jali.join(f.on(jali.EVEN), single.on(jali.ODD)),
            LayoutError,
            "has a batch of 3, .* no batch",
        ),
    ):
        with pytest.raises(error, match=match):
            call()
