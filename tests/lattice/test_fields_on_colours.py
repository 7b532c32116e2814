"""Fields on a colour: their bits are those of fields on all sites, with half the memory; what is not there is an error at the line."""

from __future__ import annotations

import re

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
    Lattice,
    LayoutError,
    Matrix,
    ParameterError,
    Real,
    Spinor,
    TraceError,
    Vector,
    fft,
)
from jali.arrays import from_field
from jali.comm.virtual import virtual_ranks
from jali.lattice.algebra import inner, norm2
from jali.solvers import cg

COLOURS = {0: EVEN, 1: ODD}
LATTICES = [(4, 12), (8, 8, 8), (12, 8), (8, 2, 2, 8)]  # some boxes of 2 to 4 ranks have odd extents


def filled(lattice, element, seed=1, **options):
    field, rng = Field(lattice, element, **options), np.random.default_rng(seed)
    values = rng.normal(size=lattice.extents + element.numpy_shape)
    if element.type.kind == "complex":
        values = values + 1j * rng.normal(size=values.shape)
    field[...] = np.round(10 * values).astype(int) if element.type.kind == "int" else values
    return field


def same(half, full):
    """Whether a field on a colour has the bytes of a field on all sites there, and no others."""
    inside = np.indices(full.lattice.local_extents).sum(axis=0) + sum(full.lattice.local_origin)
    inside = inside % 2 == (half.over is ODD)
    mine, theirs = half.stored_bytes(), full.stored_bytes()
    return np.array_equal(mine[inside], theirs[inside]) and not mine[~inside].any()


class Program:
    """A random step: what it reads at which offsets. Sources are given twice, as they are read from sites of either colour."""

    def __init__(self, seed, ndim):
        rng = np.random.default_rng(seed)
        self.terms = [
            (
                int(rng.integers(2)),
                tuple(int(n) for n in rng.integers(-2, 3, ndim) * (rng.random(ndim) < 0.6)),
                int(rng.integers(4)),
            )
            for _ in range(int(rng.integers(1, 5)))
        ]
        self.link_at = tuple(int(n) for n in rng.integers(-1, 2, ndim))

        @jali.site_function
        def step(X, out, sources, u, weight, colour):
            out[X] = self.value(X, sources, u, weight, colour)

        @jali.site_function
        def summed(X, sources, u, weight, colour, total):
            total += self.value(X, sources, u, weight, colour).norm2()

        self.step, self.summed = step, summed

    def value(self, X, sources, u, weight, colour):
        total = weight * sources[colour is ODD][X]
        for source, offset, kind in self.terms:
            Y = self.moved(X, offset)
            parity = ((colour is ODD) + sum(offset)) % 2
            value = sources[2 * source + parity][Y]
            if kind == 1:
                value = u[self.moved(X, self.link_at)] * value
            elif kind == 2:
                value = (1.0 + X.coordinate(X.directions()[0])) * value
            total = total + (value if kind != 3 else -0.5 * value)
        return total

    @staticmethod
    def moved(X, offset):
        Y = X
        for mu, n in zip(X.directions(), offset, strict=True):
            Y = Y + n * mu if n else Y
        return Y


def run_program(
    seed, extents, device="cpu", precision="float64", storage=None, made=lambda half: half, grid=None
):
    """The numbers of a program on fields of one colour, as they are `made` of such fields, compared with those on all sites."""
    lattice = Lattice(*extents, device=device, grid=grid)
    boundary = {0: "antiperiodic", len(extents) - 1: 1j}
    options = {"precision": precision, "storage": storage, "boundary": boundary}
    a, b = (filled(lattice, Vector(3), k, **options) for k in (1, 2))
    u = filled(lattice, Matrix(3, 3), 3, precision=precision)
    program, numbers = Program(seed, lattice.ndim), []
    halves = [made(half) for half in (*a.split(), *b.split())]
    for turn in range(3):
        for colour in (EVEN, ODD):
            full, half = a.like(), made(a.like(over=colour))
            program.step[colour](full, [a, a, b, b], u, 0.5, colour)
            program.step(half, halves, u, 0.5, colour)
            assert same(half, full)
            numbers.append(lattice.sum(program.summed, halves, u, 0.5, colour))
            assert numbers[-1] == lattice.sum(program.summed, [a, a, b, b], u, 0.5, colour, over=colour)
            if turn < 2:  # the next turn finds ghosts that are stale
                a[...] = (
                    jali.join(half, a.on(colour.opposite)) if colour is EVEN else jali.join(a.on(EVEN), half)
                )
                halves[:2] = [half, halves[1]] if colour is EVEN else [halves[0], half]
    return numbers


@pytest.mark.lanes
@pytest.mark.short(6)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_programs_have_the_bits_of_fields_on_all_sites(seed, ranks):
    extents = LATTICES[seed % len(LATTICES)]
    if ranks == 3:
        extents = (6, 18)
    alone = run_program(seed, extents)
    if ranks > 1:
        assert virtual_ranks(ranks, lambda: run_program(seed, extents)) == [alone] * ranks


@pytest.mark.lanes
@pytest.mark.short(3)
@pytest.mark.parametrize("storage", ["float32", "float16", "fixed16", "fixed8"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_formats_of_storage_keep_the_bits(storage, ranks):
    virtual_ranks(ranks, lambda: run_program(2, (4, 2, 8), storage=storage))
    virtual_ranks(
        ranks, lambda: run_program(3, (4, 2, 8), "cpu", "float32", None if storage == "float32" else storage)
    )


@pytest.mark.parametrize("precisions", [("float32", "float64"), ("float64", "float32")], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_two_precisions_and_arrays_meet_in_a_kernel(ranks, precisions):
    """A kernel finds the sites of the others one by one, several to a vector, and the ghosts of even fields apart."""

    @jali.site_function
    def mixed(X, out, x, y, w):
        mu, nu = X.directions()
        out[X] = x[X + mu] + 0.5 * x[X - nu] + y[X + mu - nu] + w[X] * y[X]

    def run():
        lattice = Lattice(12, 12, device="cpu")  # where arrays of NumPy are
        x, y = (filled(lattice, Vector(2), k, precision=p) for k, p in enumerate(precisions))
        w = lattice.wrap(np.ascontiguousarray(filled(lattice, Real(), 3).local()))
        for over in (EVEN, ODD):
            for out in (x.like(), y.like()):
                half = out.like(over=over)
                mixed(half, x.on(over.opposite), y.on(over), w)
                mixed[over](out, x, y, w)
                assert same(half, out)

    virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "element", [Real(), Complex(), Integer(), Spinor(2), SU(3), SU(2), SU(1), Algebra(3)], ids=str
)
def test_taken_apart_and_put_together(element, ranks):
    @jali.site_function
    def start(X, f, rng):
        if element == Integer():
            f[X] = rng.integers(X, 1000)
        elif element == SU(1):
            f[X] = jali.exp(1j * rng.uniform(X))
        elif element.type.shape == ():
            f[X] = rng.gaussian(X) if element == Real() else jali.complex(rng.gaussian(X), rng.gaussian(X))
        else:
            rows, columns = element.type.shape
            m = jali.matrix(
                [
                    [jali.complex(rng.gaussian(X), rng.gaussian(X)) for _ in range(columns)]
                    for _ in range(rows)
                ]
            )
            if not element.spinor:
                m = m.traceless_antihermitian()
            f[X] = m.exp() if element in (SU(2), SU(3)) else m

    def run():
        lattice = Lattice(4, 6, 2)
        f = Field(lattice, element)
        start(f, jali.Random(seed=7))
        even, odd = f.split()
        assert same(even, f)
        assert same(odd, f)
        assert even.storage.nbytes < 0.6 * f.storage.nbytes or ranks > 1
        assert jali.join(even, odd).stored_bytes().tobytes() == f.stored_bytes().tobytes()
        again = [f.like(over=over) for over in (EVEN, ODD)]
        for g in again:
            start(g, jali.Random(seed=7))  # numbers belong to sites
            assert same(g, f)
        assert f.on(ODD).astype("float32").over is ODD
        assert same(f.on(ODD).astype("float32"), f.astype("float32"))
        values = f[...]
        inside = np.indices(lattice.extents).sum(axis=0) % 2 == 0
        values[~inside] = 0
        assert np.array_equal(even[...], values)
        return even[...].tobytes()

    assert len(set(virtual_ranks(ranks, run))) == 1


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sums_arithmetic_and_vectors(ranks):
    def run():
        lattice = Lattice(4, 6, 2)
        f, g = (filled(lattice, Complex(), k) for k in (1, 2))
        e, h = f.on(EVEN), g.on(EVEN)
        assert norm2(e) == lattice.sum(lambda_norm, f, over=EVEN)
        assert inner(e, h) == lattice.sum(lambda_inner, f, g, over=EVEN)
        assert same((2 * e + 1j * h).field(), (2 * f + 1j * g).field())
        assert same((e * g).field(), (f * g).field())  # a field on all sites beside one on a colour
        e += 3 * h
        f += 3 * g
        assert same(e, f)
        assert (e.on(EVEN) - e).norm2() == 0
        per = lattice.sum(lambda_norm, e, per=1)
        assert np.array_equal(per, lattice.sum(lambda_norm, f, over=EVEN, per=1))
        high = lattice.reduce(highest, e)
        assert high == lattice.reduce(highest, f, over=EVEN)
        return complex(inner(e, h))

    assert len(set(virtual_ranks(ranks, run))) == 1


@jali.site_function
def lambda_norm(X, f, total):
    total += f[X].norm2()


@jali.site_function
def lambda_inner(X, f, g, total):
    total += f[X].conj() * g[X]


@jali.site_function
def highest(X, f, high):
    high.max(f[X].norm2())


@jali.site_function
def two_steps(X, out, phi, m):
    """(m - sum of all second neighbours) phi: they have the site's own colour."""
    total = m * phi[X]
    for mu in X.directions():
        for nu in X.directions():
            total = total - phi[X + mu + nu] - phi[X - mu - nu]
    out[X] = total


@pytest.mark.parametrize("ranks", [1, 2])
def test_solvers_and_graphs_take_them(ranks):
    def run():
        lattice = Lattice(4, 6, 4, device="cpu")  # where graphs of several ranks are always possible
        f = filled(lattice, Real())
        e = f.on(EVEN)
        found = cg(lambda p, q: two_steps(q, p, 20.0), e)
        out = e.like()
        two_steps(out, found.x, 20.0)
        assert np.abs(out[...] - e[...]).max() < 1e-8
        graph = jali.graph(lambda: two_steps(out, e, 20.0), lattice)
        graph.run(3)
        full = f.like()
        two_steps(full, f, 20.0)
        assert same(out, full)
        return found.history

    assert len({tuple(history) for history in virtual_ranks(ranks, run)}) == 1


@pytest.mark.parametrize("format", ["jali", "npy", "h5"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_files_keep_the_colour(format, ranks, tmp_path):
    if format == "h5":
        pytest.importorskip("h5py")

    def run():
        f = filled(Lattice(4, 6), Vector(2)).on(ODD)
        path = tmp_path / f"f.{format}"
        f.save(path)
        g = jali.load(path)
        assert g.over is ODD
        return np.array_equal(g[...], f[...])

    assert virtual_ranks(ranks, run) == [True] * ranks


def test_sites_are_set_and_read_by_their_global_coordinates():
    f = Field(Lattice(4, 4), Real(), over=ODD)
    f[0, 1] = 2.0
    assert f[0, 1] == 2.0
    f[2, :] = 5.0  # of the odd sites
    assert f[2, :].tolist() == [0, 5, 0, 5]
    assert f[...].sum() == 12
    f[[0, 1], [3, 0]] = [7.0, 8.0]
    assert f[[0, 1, 0], [3, 0, 0]].tolist() == [7, 8, 0]
    for act in (lambda: f[0, 0], lambda: f.__setitem__((1, 1), 3.0), lambda: f[[0, 1], [0, 1]]):
        with pytest.raises(LayoutError, match=r"lives on ODD and has no site at \("):
            act()
    assert f[0, 2:3].tolist() == [0]  # a slice is a part of the array, whose other colour is zero


def test_numpy_sees_zeros_and_means_are_of_their_own_sites():
    f = filled(Lattice(4, 6), Vector(2))
    even, values = f.on(EVEN), f[...]
    inside = np.indices((4, 6)).sum(axis=0) % 2 == 0
    assert np.isclose(even.mean(), values[inside].mean())
    assert np.isclose((even + f).mean(), 2 * values[inside].mean())
    assert np.isclose(np.mean(even), even.mean() / 2)
    assert np.isclose(complex(even.norm2(wait=False)), np.linalg.norm(even) ** 2)
    tiny = Field(Lattice(3, 1), Real(), boundary="open")
    tiny[...] = [[1.0], [2.0], [6.0]]
    assert tiny.on(EVEN).mean() == 3.5  # sites 0 and 2
    assert tiny.on(ODD).mean() == 2.0
    nowhere = Field(Lattice(1, 1), Real(), boundary="open", over=ODD)
    assert nowhere[...] == 0
    with pytest.raises(ParameterError, match="ODD has no sites of"):
        nowhere.mean()


def test_reports_count_the_sites_and_bytes_that_are_there():
    lattice = Lattice(8, 8, 8)
    out, x = Field(lattice, Real(), over=ODD), Field(lattice, Real(), over=EVEN)
    text = around.bind(out, x).explain()
    assert re.search(r"out on ODD +written +8 B +2 KiB +0 B ", text)
    assert "256 sites, none of which reads a ghost" in text
    assert "x on EVEN" in text
    found = around.bind(out, x).simulate("perlmutter", extents=(64, 64, 64), grid=(2, 2, 4))
    whole = around.bind(out.like(over=ALL), x.like(over=ALL), over=ODD)
    assert str(found) == str(whole.simulate("perlmutter", extents=(64, 64, 64), grid=(2, 2, 4)))


def test_halves_of_two_precisions_are_joined_in_the_wider_one():
    even, odd = filled(Lattice(4, 6), Real()).split()
    for parts in ((even.astype("float32"), odd), (even, odd.astype("float32"))):
        assert jali.join(*parts).precision == "float64"
    assert jali.join(*(part.like(storage="float16") for part in (even, odd))).stored.format.name == "float16"
    mixed = even.like(boundary="antiperiodic"), odd
    with pytest.raises(LayoutError, match="the odd one Boundary.periodic, periodic.; out= is"):
        jali.join(*mixed)
    assert jali.join(*mixed, out=even.like(over=ALL)).boundary == even.boundary


def test_transforms_have_all_sites_and_arrays_are_of_all_sites():
    f = filled(Lattice(4, 6, device="cpu"), Complex())
    even = f.on(EVEN)
    assert np.allclose(fft.fftn(even)[...], np.fft.fftn(even[...]))
    assert np.array_equal(fft.array_of(even).asarray(), even[...])
    with pytest.raises(ParameterError, match="values at all sites, and .* lives on EVEN"):
        fft.fftn(f, out=even)
    with pytest.raises(LayoutError, match=r"lives on EVEN, and an array has all sites: .*to_dist\(field"):
        from_field(even)


def test_open_directions_may_have_odd_extents():
    """What a kernel loads behind the edge has the wrong colour there, and counts as zero."""
    for ranks in (1, 2):

        def run():
            lattice = Lattice(5, 6)
            f = filled(lattice, Real(), boundary={0: "open"})
            full = f.like()
            around(full, f)
            for colour in (EVEN, ODD):
                half = f.like(over=colour)
                around(half, f.on(colour.opposite))
                assert same(half, full)

        virtual_ranks(ranks, run)
    with pytest.raises(LayoutError, match=r"direction 0 has 5 sites.*boundary=\{0: \"open\"\}"):
        Field(Lattice(5, 6), Real(), over=EVEN)


@jali.site_function
def around(X, out, x):
    out[X] = sum(x[X + mu] + x[X - mu] for mu in X.directions())


@jali.site_function
def hop(X, out, x):
    out[X] = sum(x[X + mu] for mu in X.directions())


@jali.site_function
def own(X, out, x):
    out[X] = x[X]


@jali.site_function
def both(X, out, x, y):
    out[X] = x[X] + y[X + X.directions()[0]]


def on(colour, lattice=None):
    return Field(lattice or X2, Real(), over=colour, name=f"field_{colour}".lower())


X2 = Lattice(4, 4)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: hop(on(EVEN), on(EVEN)),
            TraceError,
            r"hop runs over EVEN, since it writes out at X .*reads x at X \+ e0, where x has no site: it lives on EVEN",
        ),
        (
            lambda: own(on(EVEN), on(ODD)),
            TraceError,
            "own runs over EVEN, since .*, and reads x at X, where x has no site: it lives on ODD",
        ),
        (
            lambda: hop[EVEN](on(ODD), on(EVEN)),
            TraceError,
            "hop runs over EVEN, and writes out at X, where out has no site: it lives on ODD|reads x",
        ),
        (
            lambda: own[Colouring(2, lambda x: x[0] % 2)[0]](on(EVEN), on(EVEN)),
            TraceError,
            "own runs over colour 0 of 2, and .*, which lives on EVEN: .* runs over EVEN or ODD",
        ),
        (lambda: both(on(EVEN), on(EVEN), on(EVEN)), TraceError, r"reads y at X \+ e0, where y has no site"),
        (
            lambda: on(EVEN) + on(ODD),
            LayoutError,
            "field_even lives on EVEN, field_odd on ODD; fields of one colour combine",
        ),
        (
            lambda: on(EVEN).assign(on(ODD)),
            LayoutError,
            "field_odd lives on ODD and gives field_even no values on EVEN",
        ),
        (
            lambda: on(ALL).assign(on(ODD)),
            LayoutError,
            r"no values on the other sites; jali.join\(even, odd\)",
        ),
        (lambda: on(ALL).__setitem__(..., 2 * on(ODD)), LayoutError, "no values on the other sites"),
        (lambda: on(ODD).on(EVEN), LayoutError, "lives on ODD and gives"),
        (
            lambda: jali.join(on(ODD), on(EVEN)),
            LayoutError,
            "a field over EVEN and one over ODD, in this order, not a field over ODD for EVEN",
        ),
        (lambda: jali.join(on(EVEN), Field(X2, Complex(), over=ODD)), LayoutError, "one lattice and element"),
        (
            lambda: jali.join(on(EVEN), on(ODD), out=on(ODD)),
            LayoutError,
            "out is a field of Real on all sites",
        ),
        (
            lambda: Field(X2, Real(), over="even"),
            LayoutError,
            "ALL sites, on EVEN or on ODD ones, not over 'even'",
        ),
        (
            lambda: Field(X2, Real(), over=Colouring(2, lambda x: x[0] % 2)[0]),
            LayoutError,
            "not over colour 0 of 2",
        ),
        (lambda: Field(Lattice(4, 3), Real(), over=ODD), LayoutError, "direction 1 has 3 sites"),
        (lambda: cg(lambda p, q: own(q, p), on(EVEN), x0=on(ODD)), LayoutError, "lives on ODD, b on EVEN"),
        (
            lambda: jali.vectors.vectors_of("x", on(EVEN)).update([(on(EVEN), 1, [(1, on(ODD))])]),
            LayoutError,
            "an update has one colour",
        ),
    ],
)
def test_mistakes_are_reported(call, error, match):
    with pytest.raises(error, match=match) as caught:
        call()
    if error is TraceError:
        assert re.search(r"test_fields_on_colours.py:\d+", str(caught.value)), caught.value
    with pytest.raises(error):  # on every rank
        virtual_ranks(2, call)


def test_fields_of_other_lattices_have_all_sites():
    @jali.site_function
    def restrict(X, out, fine):
        out[X] = fine[X.on(fine)]

    fine = on(EVEN, Lattice(8, 8))
    with pytest.raises(LayoutError, match="between lattices fields have ALL sites"):
        restrict(on(ALL), fine)


def test_fields_that_were_made_one_by_one_are_joined():
    """Boundaries are equal where their conditions are, whichever objects they are."""
    for boundary, other in (
        (None, "periodic"),
        ({1: "antiperiodic"}, ["periodic", -1]),
        ({0: 1j}, [1j, "periodic"]),
    ):
        even = Field(X2, Complex(), over=EVEN, boundary=boundary)
        odd = Field(X2, Complex(), over=ODD, boundary=other)
        even[...], odd[...] = 1.0, 2.0
        whole = jali.join(even, odd)
        assert whole[0].tolist() == [1, 2, 1, 2]
        assert whole.boundary == even.boundary == odd.boundary
        assert hash(even.boundary) == hash(odd.boundary)
        assert even.boundary != Field(X2, Complex(), boundary={0: -1j}).boundary
    with pytest.raises(LayoutError, match="the even field is .*antiperiodic.*, the odd one"):
        jali.join(Field(X2, Real(), over=EVEN, boundary={1: "antiperiodic"}), on(ODD))
    with pytest.raises(LayoutError, match="has a batch of 2, .* no batch"):
        jali.join(Field(X2, Real(), over=EVEN, batch=2), on(ODD))


def test_they_say_where_they_live():
    f = on(ODD)
    assert "on ODD sites of Lattice(4, 4)" in repr(f)
    assert f.like().over is ODD
    assert f.copy().over is ODD
    assert f.like(over=EVEN).over is EVEN
    assert f.shape == (4, 4)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("over", [EVEN, ODD])
def test_values_at_sites_of_the_other_colour_are_not_looked_at(over, batch):
    lattice, members = Lattice(4, 6), () if batch is None else (batch,)
    inside = np.indices(lattice.extents).sum(axis=0) % 2 == (over is ODD)
    for element, good, bad, options in (
        (jali.Hermitian(2), np.eye(2), [[1, 2j], [2j, 1]], {}),
        (Real(), 1.5, 1e300, {"precision": "float32"}),
        (Integer(), 3, 1 << 40, {"precision": "float32"}),
    ):
        f = Field(lattice, element, over=over, batch=batch, name="f", **options)
        values = np.empty(f.shape, np.asarray(bad).dtype)
        values[inside], values[~inside] = good, bad
        f[...] = values
        assert np.array_equal(f[...][inside], values[inside])
        f[1:3, ::2] = values[1:3, ::2]
        f[[0, 1], [1, 1]] = values[[0, 1], [1, 1]]
        assert np.array_equal(f.copy().set_local(values)[...], f[...])
        assert not f[...][~inside].any()
        site = tuple(np.argwhere(~inside)[0].tolist())
        with pytest.raises(LayoutError, match=re.escape(f"f lives on {over} and has no site at {site}")):
            f[site] = np.broadcast_to(bad, members + element.numpy_shape)
        with pytest.raises((LayoutError, jali.StorageError)):
            f[...] = np.broadcast_to(bad, f.shape)
        with pytest.raises((LayoutError, jali.StorageError)):
            f[tuple(np.argwhere(inside)[0])] = np.broadcast_to(bad, members + element.numpy_shape)
    f = Field(lattice, Real(), over=over, batch=batch)
    with pytest.raises(LayoutError, match="is real, the array is complex128"):
        f[...] = 1j
