"""Views of batches in calls: what is shared, what would be a race, and what other parts of jali say of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from test_batches import batch_of, same
from test_fields_on_colours import filled

import jali
from jali import EVEN, Field, Lattice, LayoutError, Matrix, Real, SingularError, StorageError, Vector
from jali.comm.virtual import virtual_ranks
from jali.lattice.algebra import axpy
from jali.lattice.fused_sums import apply_inner
from jali.linops import SiteOperator
from jali.solvers import cgls, lsqr, power_iteration


@jali.site_function
def hop(X, out, x, y):
    mu, nu = X.directions()
    out[X] = x[X + mu] - 0.25 * x[X - nu] + 0.5 * y[X - mu]


@jali.site_function
def double(X, out, x):
    out[X] = 2.0 * x[X]


@jali.site_function
def numbers(X, x, total):
    total += X.member + x[X, 0]


@jali.site_function
def solve(X, x, m, v):
    x[X] = m[X].hermitian().solve(v[X])


@jali.site_function
def norm_of(X, x, total):
    total += x[X].norm2()


def run_views(device="cpu", precision="float64", storage=None):
    """Calls whose fields are views of one memory, compared with those of single fields. Returns the bytes of the end."""
    lattice = Lattice(8, 12, device=device)
    options = {"precision": precision, "storage": storage, "boundary": {0: "antiperiodic"}}
    g = [filled(lattice, Vector(2), k, **options) for k in range(4)]
    f = batch_of(g)
    hop(f.members[1], f.members[0], f.members[2])  # one member is written, others are read at other sites
    hop(g[1], g[0], g[2])
    hop(f.members[2:], f.members[:2], g[0])
    for k in (2, 3):
        hop(g[k], g[k - 2], g[0])
    new, each = f.like(), [one.like() for one in g]
    hop(new, f, f.members[2])  # all members read one of their own
    for k in range(4):
        hop(each[k], g[k], g[2])
    f.members[0] = new.members[3]
    f.members[[3, 1]] = new.members[1:3]
    f.members[2] *= 0.5
    hop(f.members[[1, 2]], new.members[[3, 0]], f.members[0])
    g[0].assign(each[3])
    g[3].assign(each[1])
    g[2] *= 0.5
    hop(g[1], each[3], g[0])
    hop(g[2], each[0], g[0])
    assert same(f, g)
    assert same(new, each)
    sums = lattice.sum(norm_of, f.members[::2])
    assert sums.tolist() == [lattice.sum(norm_of, g[k]) for k in (0, 2)]
    return f[...].tobytes(), sums.tolist()


@pytest.mark.parametrize("storage", [None, "fixed16"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_views_of_one_memory_have_the_bits_of_single_fields(ranks, storage):
    alone = run_views(storage=storage)
    assert virtual_ranks(ranks, lambda: run_views(storage=storage)) == [alone] * ranks


def batch(members=4, element=None, device=None, **options):
    lattice = Lattice(4, 6, device=device)
    return Field(lattice, Real() if element is None else element, batch=members, name="f", **options)


def test_a_view_is_one_object_while_it_is_in_use():
    f = batch()
    one = f.members[1]
    assert one is f.members[1]
    assert one is f.members[1:].members[0]
    assert f.members[:] is f
    f.members[1] += 1.0 * f.members[1]
    del f
    one[...] = 3.0  # the memory stays
    assert one.norm2() == 9 * 24


def assigned(f, to, source):
    f.members[to] = f.members[source]


@pytest.mark.parametrize(
    ("call", "shared"),
    [
        (lambda f: double(f.members[1:], f.members[:3]), "1, 2"),
        (lambda f: double(f.members[:3], f.members[1:]), "1, 2"),
        (lambda f: hop(f, f.like(), f.members[1]), "1"),
        (lambda f: hop(f.members[1], f.members[0], f.members[[1, 2]].members[0]), None),
        (lambda f: assigned(f, slice(1, 4), slice(0, 3)), "1, 2"),
        (lambda f: f.__isub__(f.members[1]), "1"),
        (lambda f: f.members[[0, 1]].__iadd__(f.members[[1, 0]]), "0, 1"),
    ],
)
def test_members_that_are_written_and_read_by_another_view_are_refused(call, shared):
    if shared is None:  # the same view, whose neighbours are read
        with pytest.raises(jali.TraceError, match="the result would depend on the order of the sites"):
            call(batch())
        return
    with pytest.raises(
        LayoutError, match=rf"writes f.*, which has members? {shared} in common with f.* pass a copy of one"
    ):
        call(batch())


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_change_their_precision(ranks):
    def run():
        f = batch()
        f[...] = np.random.default_rng(1).normal(size=f.shape)
        single = f.astype("float32")
        assert np.array_equal(single[...], f[...].astype(np.float32))
        assert np.array_equal(f.members[2].astype("float32")[...], single[...][:, :, 2])
        assert np.array_equal(f.members[[3, 0]].astype("float32")[...], single[...][:, :, [3, 0]])
        f.members[1:3].assign(single.members[2:])
        assert np.array_equal(f[...][:, :, 1], single[...][:, :, 2])
        assert np.array_equal(f[...][:, :, 3].astype(np.float32), single[...][:, :, 3])
        single.assign(f.members[1])  # for all members
        assert np.array_equal(single.members[3][...], f.members[1][...])
        half = f.on(EVEN).astype("float32")
        assert np.array_equal(half[...], f.astype("float32").on(EVEN)[...])

    virtual_ranks(ranks, run)


def test_what_a_storage_cannot_hold_is_reported_once_by_any_view():
    f = batch(3, precision="float32", storage="float16")
    large = Field(f.lattice, Real(), precision="float32")
    large[...] = 1e30
    for read in (
        lambda: f[...],
        lambda: f.members[0][...],
        lambda: f.members[[1, 2]][...],
        lambda: f.lattice.sum(norm_of, f.members[2]),
    ):
        double(f.members[1], large)
        with pytest.raises(StorageError, match="24 sites"):
            read()
        f[...] = 0.0
        f.members[2][...]  # is not reported again
    double(f.members[1], large)
    copied = f.members[1:].copy()  # each of the two reports it, as of fields
    for read in (copied, f):
        with pytest.raises(StorageError, match="24 sites"):
            read[...]


def test_singular_blocks_of_views_are_reported():
    m = batch(3, Matrix(2, 2))
    v = m.like(element=Vector(2))
    m[...] = np.eye(2)
    m[1, 1, 2] = 0
    x = v.like()
    solve(x.members[:2], m.members[:2], v.members[:2])
    x[...]
    solve(x.members[1:], m.members[1:], v.members[1:])
    with pytest.raises(SingularError, match=r"at site \(1, 1\)"):
        x.members[0][...]
    with pytest.raises(SingularError, match=r"at site \(1, 1\)"):
        (m.hermitian().solve(v)).field()[...]


def test_shapes_of_expressions_have_the_batch():
    f = batch(3, Vector(2))
    assert (2 * f).shape == f.shape
    assert (f + Field(f.lattice, Vector(2))).batch == 3


def test_costs_are_those_of_the_members():
    f, one = (
        batch(device="cpu"),
        Field(Lattice(4, 6, device="cpu"), Real()),
    )  # a thread of a device loads for itself

    @jali.site_function
    def shared(X, out, x, y):
        there = y[X + X.directions()[0]]
        out[X] = x[X] * (there * there)

    shared_field = Field(f.lattice, Real())
    (of_batch,) = shared.kernels(f, f.like(), shared_field)
    (single,) = shared.kernels(one, one.like(), one.like())
    assert single.cost.bytes_moved == 24
    assert of_batch.cost.bytes_moved == of_batch.cost.bytes_least == 8 * (4 + 4 + 1)
    assert of_batch.cost.flops == 4 + 1  # the square is computed once
    (of_views,) = double.kernels(f.members[:2], f.members[2:])
    assert of_views.cost.bytes_moved == 32


DOUBLE = SiteOperator(double, (4, 6))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f: 2 * f + batch_on(f, 3), LayoutError, "f has a batch of 4, g one of 3"),
        (lambda f: f.like(batch=None, name="g").assign(f), LayoutError, "g has no batch.* has 4 members"),
        (lambda f: f * f.norm2(), LayoutError, r"out\[X\] = numbers\[X.member\] \* f\[X\]"),
        (lambda f: f * f.lattice.sum(norm_of, f, wait=False), LayoutError, r"numbers\[X.member\]"),
        (
            lambda f: jali.block_sums(norm_of, f, onto=Field(Lattice(2, 3), Real())),
            LayoutError,
            "takes fields without a batch, and f has one of 4",
        ),
        (lambda f: jali.fft.fftn(f), LayoutError, "f has a batch of 4.* take its members"),
        (lambda f: jali.arrays.from_field(f.members[0]), LayoutError, "is a member of one"),
        (lambda f: lsqr(DOUBLE, f), LayoutError, "has a batch of 4.* solve for each member"),
        (lambda f: cgls(DOUBLE, f), jali.ShapeError, "has a batch of 4.* operators act on single fields"),
        (lambda f: power_iteration(DOUBLE, f), LayoutError, "has a batch of 4"),
        (lambda f: axpy(1.0, f, f.members[0]), LayoutError, "axpy: f has a batch of 4, f.members.0. none"),
        (
            lambda f: apply_inner(double, f.members[:2], f.like(), f),
            LayoutError,
            "has a batch of 2, .* one of 4",
        ),
        (
            lambda f: f.lattice.sum(numbers, f),
            jali.TraceError,
            "asks for X.member, and neither reads nor writes",
        ),
    ],
)
def test_what_is_about_single_fields_says_so(call, error, match):
    with pytest.raises(error, match=match):
        call(batch())


@jali.site_function
def scaled(X, out, x, s):
    out[X] = s[(X.member + 1) % 4] * x[X]


@jali.site_function
def combined(X, out, x, c):
    out[X] = sum(c[a, X.member] * x[X, a] for a in range(4))


@pytest.mark.parametrize("ranks", [1, 2])
def test_arrays_that_stay_are_indexed_by_the_member(ranks):
    def run():
        f = batch(device="cpu" if ranks > 1 else None)  # sums of ranks do not stay on every device
        f[...] = np.random.default_rng(1).normal(size=f.shape)
        stays, out, again = f.lattice.sum(norm_of, f, wait=False), f.like(), f.like()
        scaled(out, f, stays)
        scaled(again, f, stays.read())
        assert np.array_equal(out[...], np.roll(f.norm2(), -1) * f[...])
        assert np.array_equal(out[...], again[...])
        matrix = f.lattice.scalars(np.arange(16.0).reshape(4, 4))
        combined(out, f, matrix.T)
        combined(again, f, np.arange(16.0).reshape(4, 4).T)
        assert np.array_equal(out[...], again[...])
        step = jali.graph(lambda: scaled(out, f, 1 / f.lattice.sum(norm_of, f, wait=False)), f.lattice)
        f *= 2.0
        step.run()
        scaled(again, f, 1 / f.norm2())
        assert np.array_equal(out[...], again[...])

    virtual_ranks(ranks, run)


def test_an_index_of_members_that_leaves_the_array_is_an_error():
    @jali.site_function
    def too_far(X, out, x, s):
        out[X] = s[X.member + 1] * x[X]

    f = batch()
    with pytest.raises(jali.TraceError, match="s, a real Vector.4., .* from 1 to 4, .* components 0 to 3"):
        too_far(f.like(), f, f.lattice.scalars(np.ones(4)))


def test_methods_read_members_of_fields_of_their_objects():
    class Reader:
        def __init__(self, f):
            self.f = f

        def read(self, X, out):
            out[X] = self.f[X, 1] - self.f[X + X.directions()[0], X.member - 1]

    f = batch()
    f[...] = np.random.default_rng(1).normal(size=f.shape)
    out = f.like()
    jali.site_function(Reader(f).read)(out)
    values = f[...]
    assert np.array_equal(out[...], values[:, :, 1:2] - np.roll(np.roll(values, -1, axis=0), 1, axis=2))


def test_a_loop_goes_over_members():
    f = batch()
    for k, member in enumerate(f.members):
        member[...] = k
    assert [member.mean() for member in f.members] == [0, 1, 2, 3]


def batch_on(f, members):
    return f.like(batch=members, name="g")


def test_members_take_part_in_transforms_and_solves_as_fields():
    f = batch(device="cpu")  # transforms on devices take CuPy or PyTorch
    f[...] = np.random.default_rng(1).normal(size=f.shape)
    one = f.members[2].copy()
    assert np.array_equal(jali.fft.fftn(f.members[2])[...], jali.fft.fftn(one)[...])
    assert np.array_equal(lsqr(DOUBLE, f.members[2])[0][...], lsqr(DOUBLE, one)[0][...])
