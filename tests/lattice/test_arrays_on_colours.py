"""Arrays of the sites of one colour as fields: the bits of fields on that colour, whatever the element, the ranks and what is beside them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from test_fields_on_colours import around, filled, own, run_program, same, two_steps

import jali
from jali import (
    ALL,
    EVEN,
    ODD,
    SU,
    Colouring,
    Complex,
    Field,
    Integer,
    LayoutError,
    Matrix,
    ParameterError,
    Random,
    Real,
    Spinor,
    TraceError,
    Vector,
)
from jali.comm import DeviceArray
from jali.comm.virtual import virtual_ranks
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import cg

Lattice = functools.partial(jali.Lattice, device="cpu")  # where arrays are


def compact(half):
    """What an array of its sites holds: an independent computation of where each site is."""
    lattice, inner, local = half.lattice, half.element.numpy_shape, half.local()
    box = lattice.local_extents
    found = np.zeros((*box[:-1], box[-1] // 2, *inner), local.dtype)
    for site in np.ndindex(*box):
        if (sum(site) + sum(lattice.local_origin)) % 2 == (half.over is ODD):
            found[(*site[:-1], site[-1] // 2)] = local[site]
    return found


def in_array(half):
    """The same values in an array, as a field."""
    array, gpu = compact(half), half.lattice.gpu
    given = array if gpu is None else DeviceArray.from_host(array, gpu)
    return half.lattice.wrap(given, half.element, boundary=half.boundary, over=half.over)


def some_in_arrays(seed):
    """Of fields that are made one after the other some are arrays."""
    rng = np.random.default_rng(seed)
    return lambda half: in_array(half) if rng.random() < 0.7 else half


PROGRAMS = [  # extents, and grids of 1 to 4 ranks; some boxes begin at an odd site
    ((4, 12), [(1, 1), (2, 1), (1, 3), (2, 2)]),
    ((6, 8), [(1, 1), (1, 2), (3, 1), (1, 4)]),
    ((6, 2, 8), [(1, 1, 1), (1, 1, 2), (3, 1, 1), (2, 1, 2)]),
    ((6, 2, 2, 4), [(1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 1, 1), (2, 1, 1, 2)]),
]


@pytest.mark.lanes
@pytest.mark.short(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_programs_have_the_bits_of_fields(seed, ranks):
    extents, grids = PROGRAMS[seed]
    alone = run_program(seed, extents)

    def run(made):
        return run_program(seed, extents, made=made, grid=grids[ranks - 1])

    assert virtual_ranks(ranks, lambda: run(some_in_arrays(seed))) == [alone] * ranks
    if ranks == 1:
        assert run(in_array) == alone


def test_single_precision_has_the_bits_of_fields():
    extents = (4, 6)
    alone = run_program(5, extents, precision="float32")
    assert run_program(5, extents, precision="float32", made=in_array) == alone


@pytest.mark.short(3)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "element", [Real(), Complex(), Integer(), Vector(2, "real"), Matrix(2, 3), Spinor(3)], ids=str
)
def test_an_array_is_the_memory_of_its_field(element, ranks):
    def run():
        lattice = Lattice(4, 3, 4, grid=(1, 1, ranks))
        f = filled(lattice, element, boundary={1: "open"})
        for half in (f.on(EVEN), f.on(ODD)):
            array = compact(half)
            field = lattice.wrap(array, element, boundary=half.boundary, over=half.over)
            assert field.array is array
            assert field.over is half.over
            assert np.array_equal(field[...], half[...])
            assert field.stored_bytes().size == half.stored_bytes().size
            array[...] = 0
            assert not field[...].any()
            field.assign(f)  # what a field on all sites has there
            assert np.array_equal(array, compact(half))
            field[...] = 2 * f[...]
            field[1, 1:, 2] = f[1, 1:, 2]
            half[...] = 2 * f[...]
            half[1, 1:, 2] = f[1, 1:, 2]
            assert np.array_equal(array, compact(half))
            assert np.array_equal(field[1:3, ::2], half[1:3, ::2])
            copied, zero, other = field.copy(), field.like(), field.like(over=half.over.opposite)
            assert np.array_equal(copied.array, array)
            assert copied.array is not array
            assert zero.array.shape == array.shape
            assert not zero.array.any()
            assert other.array.shape == array.shape
            assert field.like(over=ALL).array is None
            single = lattice.wrap(
                array.astype(element.numpy_dtype("float32")), element, boundary=half.boundary, over=half.over
            )
            assert np.array_equal(field.assign(single).array, array)
            assert np.array_equal(single.assign(half)[...], half[...].astype(single.dtype))
            assert np.array_equal(half.like().assign(single)[...], single[...])
            assert np.array_equal(
                field.set_stored_bytes(field.stored_bytes(), field.format)[...], single[...]
            )
            assert np.array_equal(field.set_local(half.local()).array, compact(half))

    virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_exchange_what_their_arrays_lack_at_every_call(ranks):
    def run():
        lattice = Lattice(6, 4, grid=(ranks, 1))
        f, full = filled(lattice, Complex(), boundary={0: "antiperiodic"}), Field(lattice, Complex())
        even = in_array(f.on(EVEN))
        out, apart = in_array(full.on(ODD)), full.on(ODD)
        for turn in range(3):
            around(out, even)
            around(apart, even)
            around(full, f)
            assert same(out, full)
            assert same(apart, full)
            even.array[...] *= 0.5 + turn  # which nobody is told
            f *= 0.5 + turn

    virtual_ranks(ranks, run)


def test_colours_beside_each_other_in_one_array():
    lattice = Lattice(4, 6)
    f = filled(lattice, Real())
    array = np.stack([compact(half) for half in f.split()])
    even, odd = (lattice.wrap(part, over=over) for part, over in zip(array, (EVEN, ODD), strict=True))
    for out, source in ((odd, even), (even, odd)):
        full = jali.join(even, odd)
        around[out.over](full, full)
        around(out, source)
        assert same(out, full)
    assert np.array_equal(jali.join(even, odd)[...], full[...])


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [2, 1])
def test_sums_arithmetic_random_numbers_and_whole_arrays_beside(ranks):
    @jali.site_function
    def drawn(X, f, rng):
        f[X] = jali.complex(rng.gaussian(X), rng.uniform(X)) * X.coordinate(1)

    @jali.site_function
    def summed(X, f, g, total, at):
        total += f[X].conj() * g[X + X.directions()[0]]
        at += X.coordinate(1) * f[X].norm2()

    def run():
        lattice = Lattice(4, 6, grid=(ranks, 1))
        f, g = (filled(lattice, Complex(), k) for k in (1, 2))
        whole = lattice.wrap(np.ascontiguousarray(g.local()))
        half, array = f.on(EVEN), in_array(f.on(EVEN))
        assert array.norm2() == half.norm2()
        for per in (None, 0, 1, (0, 1)):
            for other in (whole, g, in_array(g.on(ODD))):
                found, wanted = (lattice.sum(summed, a, b, per=per) for a, b in ((array, other), (half, g)))
                assert np.array_equal(found, wanted)
        assert same((2 * array + 1j * whole).field(), (2 * f + 1j * g).field())
        array += 3 * whole
        array *= array + half
        half *= (half + 3 * g) / half + 0 * half
        drawn(array, Random(5))
        drawn(half, Random(5))
        assert np.array_equal(array.array, compact(half))
        return array.mean()

    assert len(set(virtual_ranks(ranks, run))) == 1


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [2, 1])
def test_solvers_and_graphs_take_them(ranks):
    def run():
        lattice = Lattice(4, 2, 2, 4, grid=(1, 1, 1, ranks))
        half = filled(lattice, Real()).on(ODD)
        array = in_array(half)
        histories = [cg(lambda p, q: two_steps(q, p, 40.0), b, rtol=1e-6) for b in (half, array)]
        assert histories[0].history == histories[1].history
        assert np.array_equal(histories[1].x.array, compact(histories[0].x))
        out = array.like()
        jali.graph(lambda: two_steps(out, array, 3.0), lattice).run(2)
        wanted = half.like()
        two_steps(wanted, half, 3.0)
        assert np.array_equal(out.array, compact(wanted))

    virtual_ranks(ranks, run)


@pytest.mark.full
def test_even_odd_operators_take_them():
    def run():
        lattice = Lattice(4, 2, 2, 4, grid=(1, 1, 1, 2))
        E = WilsonDirac(GaugeField(lattice, SU(2)).hot_start(seed=3), 0.3).even_odd()
        psi = filled(lattice, Spinor(2), boundary={3: "antiperiodic"}).on(ODD)
        assert np.array_equal(E.apply(in_array(psi))[...], E.apply(psi)[...])

    virtual_ranks(2, run)


@pytest.mark.parametrize("format", ["jali", "npy"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_files_keep_the_values_and_the_colour(format, ranks, tmp_path):
    def run():
        half = filled(Lattice(4, 6, grid=(ranks, 1)), Vector(2)).on(ODD)
        path = tmp_path / f"f.{format}"
        in_array(half).save(path)
        g = jali.load(path, lattice=half.lattice)
        assert g.over is ODD
        return np.array_equal(in_array(half.like()).assign(g).array, compact(half))

    assert virtual_ranks(ranks, run) == [True] * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_open_directions_may_have_odd_extents(ranks):
    """What is read behind the edge has the wrong colour there, and no memory."""

    def run():
        lattice = Lattice(5, 6, grid=(ranks, 1))
        f = filled(lattice, Real(), boundary={0: "open"})
        full = f.like()
        around(full, f)
        for colour in (EVEN, ODD):
            out = in_array(f.like(over=colour))
            around(out, in_array(f.on(colour.opposite)))
            assert same(out, full)

    virtual_ranks(ranks, run)


def of_zeros(*shape, over=EVEN, **options):
    return Lattice(4, 6).wrap(np.zeros(shape), over=over, **options)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: of_zeros(4, 6),
            LayoutError,
            r"\(4, 6\) sites, 12 of them EVEN, an array of them shape \(4, 3\) first; it has \(4, 6\)",
        ),
        (
            lambda: of_zeros(2, 6, over=ODD),
            LayoutError,
            r"12 of them ODD, an array of them shape \(4, 3\) first; it has \(2, 6\)",
        ),
        (
            lambda: of_zeros(4, 3, 2, element=Vector(3, "real")),
            LayoutError,
            r"has shape \(4, 3, 3\), this one \(4, 3, 2\)",
        ),
        (
            lambda: of_zeros(4, 3, over="even"),
            LayoutError,
            "ALL sites, on EVEN or on ODD ones, not over 'even'",
        ),
        (
            lambda: of_zeros(4, 3, over=Colouring(2, lambda x: x[0] % 2)[0]),
            LayoutError,
            "not over colour 0 of 2",
        ),
        (
            lambda: Lattice(6, 5).wrap(np.zeros((6, 2)), over=EVEN, boundary={1: "open"}),
            LayoutError,
            "an array over EVEN holds half of each row, so boxes need an even extent in the last direction, and have 5 sites there: ",
        ),
        (
            lambda: virtual_ranks(2, lambda: Lattice(4, 6, grid=(1, 2)).wrap(np.zeros((4, 1)), over=ODD)),
            LayoutError,
            "an array over ODD .* have 3 sites there on rank 0: wrap an array of ALL sites, or give the lattice another grid=",
        ),
        (lambda: Lattice(5, 6).wrap(np.zeros((5, 3)), over=ODD), LayoutError, "direction 0 has 5 sites"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_what_an_array_of_one_colour_does_not_have_is_an_error():
    lattice = Lattice(4, 6)
    even, odd = (lattice.wrap(np.zeros((4, 3)), over=over, name=f"{over}".lower()) for over in (EVEN, ODD))
    with pytest.raises(
        TraceError,
        match="own runs over EVEN, since .*, and reads x at X, where x has no site: it lives on ODD",
    ):
        own(even, odd)
    with pytest.raises(LayoutError, match="odd lives on ODD and gives even no values on EVEN"):
        even.assign(odd)
    with pytest.raises(LayoutError, match=r"even lives on EVEN and has no site at \(0, 1\)"):
        even[0, 1] = 2.0
    fixed = np.zeros((4, 3))
    fixed.flags.writeable = False
    seen = lattice.wrap(fixed, over=EVEN)
    with pytest.raises(LayoutError, match="around writes .*, whose array is read-only"):
        around(seen, odd)
    with pytest.raises(LayoutError, match="is a read-only array"):
        seen[...] = 1.0
    with pytest.raises(LayoutError, match="shares memory with that of"):
        around(lattice.wrap(even.array, over=ODD), even)
    assert not fixed.any()


def test_ranks_wrap_arrays_of_one_colour():
    def run():
        lattice = Lattice(4, 4, grid=(2, 1))
        return lattice.wrap(np.zeros((2, 2)), over=(EVEN, ODD)[lattice.rank])

    with pytest.raises(ParameterError, match="over: EVEN on rank 0, ODD on rank 1"):
        virtual_ranks(2, run)
