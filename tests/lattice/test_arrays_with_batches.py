"""Arrays with several elements at each site as fields: the bits of fields with a batch; and batches that are found site by site."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from test_batches import run_batch
from test_fields_on_colours import filled

import jali
from jali import (
    ALL,
    EVEN,
    ODD,
    Complex,
    Field,
    Integer,
    LayoutError,
    Matrix,
    ParameterError,
    Real,
    Spinor,
    Vector,
)
from jali.comm import DeviceArray
from jali.comm.virtual import virtual_ranks
from jali.solvers import cg

Lattice = functools.partial(jali.Lattice, device="cpu")  # where arrays are


def numbers_of(f):
    """What an array of a field holds."""
    local, lattice = f.local(), f.lattice
    if f.over is ALL:
        return np.ascontiguousarray(local)
    inside = (np.indices(lattice.local_extents).sum(axis=0) + sum(lattice.local_origin)) % 2 == (
        f.over is ODD
    )
    box = lattice.local_extents
    return np.ascontiguousarray(local[inside].reshape(*box[:-1], box[-1] // 2, *local.shape[lattice.ndim :]))


def in_array(f):
    """The same values in an array, as a field."""
    array, gpu = numbers_of(f), f.lattice.gpu
    given = array if gpu is None else DeviceArray.from_host(array, gpu)
    return f.lattice.wrap(given, f.element, boundary=f.boundary, over=f.over, batch=f.batch)


def some_in_arrays(seed):
    """Of fields that are made one after the other some are arrays."""
    rng = np.random.default_rng(seed)
    return lambda f: in_array(f) if rng.random() < 0.7 else f


PROGRAMS = [  # extents, members, and grids of 1 to 4 ranks
    ((4, 12), 3, [(1, 1), (2, 1), (1, 3), (2, 2)]),
    ((6, 8), 1, [(1, 1), (1, 2), (3, 1), (1, 4)]),
    ((6, 2, 8), 4, [(1, 1, 1), (1, 1, 2), (3, 1, 1), (2, 1, 2)]),
]


@pytest.mark.lanes
@pytest.mark.short(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_programs_have_the_bits_of_single_fields(seed, ranks):
    extents, members, grids = PROGRAMS[seed]
    alone = run_batch(seed, extents, members)

    def run(made):
        return run_batch(seed, extents, members, made=made, grid=grids[ranks - 1])

    assert virtual_ranks(ranks, lambda: run(some_in_arrays(seed))) == [alone] * ranks
    if ranks == 1:
        assert run(in_array) == alone


@jali.site_function
def around(X, out, x):
    out[X] = sum((X.member + 1) * x[X + mu] - x[X - mu, X.member + 1] for mu in X.directions())


@jali.site_function
def summed(X, x, total):
    total += x[X].norm2() * (X.member + 1)


def batch_of(lattice, element, batch=3, seed=1, **options):
    f = Field(lattice, element, batch=batch, **options)
    for k, member in enumerate(f.members):
        member[...] = filled(lattice, element, seed + 10 * k)[...]
    return f


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("element", [Real(), Integer(), Matrix(2, 3), Spinor(3)], ids=str)
def test_an_array_is_the_memory_of_its_field(element, ranks):
    def run():
        lattice = Lattice(4, 3, 6, grid=(ranks, 1, 1))
        f = batch_of(lattice, element, boundary={1: "open"})
        for g in (f, f.on(ODD)):
            array = np.ascontiguousarray(numbers_of(g))
            field = lattice.wrap(array, element, boundary=g.boundary, over=g.over, batch=3)
            assert field.array is array
            assert np.array_equal(field[...], g[...])
            field.members[1] = g.members[2]
            g.members[1] = g.members[2]
            field.members[[2, 0]] = g.members[:2]
            g.members[[2, 0]] = g.members[:2].copy()
            field[1, :, 2:, 1] = g[2, :, 1:5, 1]
            g[1, :, 2:, 1] = g[2, :, 1:5, 1]
            assert np.array_equal(array, numbers_of(g))
            field.members[0] *= 2
            g.members[0] *= 2
            field.members[1].assign(field.members[0])
            g.members[1].assign(g.members[0])
            assert np.array_equal(array, numbers_of(g))
            assert field.members[1].array is None
            single, more = field.members[2].copy(), field.like(batch=5)
            assert single.array.shape == array.shape[: lattice.ndim] + element.numpy_shape
            assert np.array_equal(single[...], g.members[2][...])
            assert more.array.shape == (*array.shape[: lattice.ndim], 5, *element.numpy_shape)
            more.members[1:4] = field
            assert np.array_equal(more[...][..., 1:4, *(slice(None),) * len(element.numpy_shape)], g[...])
            assert field.like(batch=None).array.shape == single.array.shape
            assert np.array_equal(field.copy().array, array)
            other = in_array(g.like(precision="float32"))
            assert np.array_equal(other.assign(field)[...], g[...].astype(other.dtype))
            assert np.array_equal(g.like().assign(other)[...], other[...])
            assert np.array_equal(field.set_stored_bytes(field.stored_bytes(), field.format)[...], g[...])
            assert np.array_equal(field.set_local(2 * g.local())[...], 2 * g[...])

    virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_exchange_what_their_arrays_lack_at_every_call(ranks):
    def run():
        lattice = Lattice(4, 6, grid=(ranks, 1))
        for over in (ALL, EVEN):
            f = batch_of(lattice, Complex(), boundary={0: "antiperiodic"}).on(over)
            inner, out = in_array(f), f.like(over=f.over.opposite if over is EVEN else ALL)
            outer = in_array(out)
            for turn in range(2):
                around(outer, inner)
                around(out, f)
                assert np.array_equal(outer.array, numbers_of(out))
                assert lattice.sum(summed, outer).tolist() == lattice.sum(summed, out).tolist()
                inner.array[...] *= 0.5 + turn  # which nobody is told
                f *= 0.5 + turn

    virtual_ranks(ranks, run)


def test_two_precisions_and_storages_meet_in_a_call():
    """Kernels find the members of one of them site by site; with any format of storage, and with views."""

    @jali.site_function
    def mixed(X, out, x, y):
        out[X] = x[X + X.directions()[1]] - 2 * y[X - X.directions()[0], X.member + 1]

    @jali.site_function
    def of_one(X, out, x, y):
        out[X] = x[X + X.directions()[1]] - 2 * y[X - X.directions()[0]]

    lattice = Lattice(4, 6)
    for x, y in (
        (batch_of(lattice, Vector(2), precision="float32"), batch_of(lattice, Vector(2), seed=2)),
        (
            batch_of(lattice, Vector(2)),
            batch_of(lattice, Vector(2), seed=2, precision="float32", storage="fixed16"),
        ),
    ):
        for out in (x.like(), y.like(), in_array(x.like())):
            mixed(out, x, y)
            for k in range(3):
                single = x.members[k].copy().like(precision=out.precision, storage=out.format[0])
                of_one(single, x.members[k].copy(), y.members[(k + 1) % 3].copy())
                assert out.members[k].stored_bytes().tobytes() == single.stored_bytes().tobytes()
        y.members[1:].assign(x.members[:2])
        assert np.array_equal(y.members[2][...], y.members[2].like().assign(x.members[1].copy())[...])


def test_batches_of_two_lattices_meet_in_a_call():
    @jali.site_function
    def to_fine(X, fine, coarse):
        fine[X] = fine[X] + coarse[X.on(coarse)]

    fine, coarse = batch_of(Lattice(8, 4), Real()), batch_of(Lattice(4, 2), Real())
    for f, c in ((fine.copy(), coarse), (in_array(fine), coarse), (fine.copy(), in_array(coarse))):
        to_fine(f, c)
        for k in range(3):
            single = fine.members[k].copy()
            to_fine(single, coarse.members[k].copy())
            assert np.array_equal(f.members[k][...], single[...])


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [2, 1])
def test_solvers_and_files_take_them(ranks, tmp_path):
    @jali.site_function
    def helmholtz(X, out, f, masses):
        out[X] = (4 + masses[X.member]) * f[X] - sum(f[X + mu] + f[X - mu] for mu in X.directions())

    def run():
        f = batch_of(Lattice(4, 6, grid=(ranks, 1)), Real())
        masses = np.array([0.5, 1.0, 8.0])
        found = [cg(lambda p, q: helmholtz(q, p, masses), b, rtol=1e-8) for b in (f, in_array(f))]
        assert [m.history for m in found[0].members] == [m.history for m in found[1].members]
        assert np.array_equal(found[1].x.array, numbers_of(found[0].x))
        in_array(f).save(tmp_path / "f.jali")
        assert np.array_equal(jali.load(tmp_path / "f.jali")[...], f[...])

    virtual_ranks(ranks, run)


def wrapped(*shape, **options):
    return Lattice(4, 6).wrap(np.zeros(shape), **options)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: wrapped(4, 6, 3, batch=2),
            r"a batch of 2 has shape \(4, 6, 2\) first, the members behind the sites; .* \(4, 6, 3\)",
        ),
        (
            lambda: wrapped(2, 4, 6, batch=2),
            r"box has \(4, 6\) sites, an array of them shape \(4, 6\) first; it has \(2, 4, 6\)",
        ),
        (
            lambda: wrapped(4, 6, batch=2),
            r"a batch of 2 has shape \(4, 6, 2\) first, .* this one has \(4, 6\)",
        ),
        (lambda: wrapped(4, 3, 3, over=EVEN, batch=2), r"has shape \(4, 3, 2\) first"),
        (
            lambda: wrapped(4, 6, 2, 3, element=Vector(2, "real"), batch=2),
            r"has shape \(4, 6, 2, 2\), this one \(4, 6, 2, 3\)",
        ),
        (lambda: wrapped(4, 6, 2, batch=0), "a batch has 1 to 256 members, not 0"),
        (lambda: wrapped(4, 6, 2, batch=True), "a batch has 1 to 256 members, not True"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make, match):
    with pytest.raises(LayoutError, match=match):
        make()


def test_members_that_are_written_and_read_are_told_apart():
    f = wrapped(4, 6, 3, batch=3, name="f")
    fixed = np.zeros((4, 6, 3))
    fixed.flags.writeable = False
    seen = f.lattice.wrap(fixed, batch=3)
    with pytest.raises(LayoutError, match="whose array is read-only"):
        around(seen.members[0:2], f.members[0:2])
    with pytest.raises(LayoutError, match="members 1 in common|member 1 in common"):
        f.members[1:].assign(f.members[:2])
    with pytest.raises(LayoutError, match="shares memory with that of"):
        around(f.lattice.wrap(f.array, batch=3), f)


def test_ranks_wrap_arrays_of_one_batch():
    def run():
        lattice = Lattice(4, 4, grid=(2, 1))
        return lattice.wrap(np.zeros((2, 4, 2 + lattice.rank)), batch=2 + lattice.rank)

    with pytest.raises(ParameterError, match="batch: 2 on rank 0, 3 on rank 1"):
        virtual_ranks(2, run)
