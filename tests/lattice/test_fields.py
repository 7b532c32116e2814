"""Fields seen from Python: sites, slices, boxes, copies, and what is refused."""

from __future__ import annotations

import gc
import itertools
import re
import tracemalloc

import numpy as np
import pytest

import jali
from jali import Field, Lattice, LayoutError, TraceError

pytestmark = pytest.mark.lanes

ELEMENTS = [
    jali.Real(),
    jali.Complex(),
    jali.Vector(2),
    jali.Matrix(2, 3),
    jali.SU(2),
    jali.Algebra(3),
    jali.Hermitian(3),
    jali.Spinor(3),
]


def values(element, shape, seed=0):
    rng = np.random.default_rng(seed)
    full = (*shape, *element.numpy_shape)
    array = rng.normal(size=full)
    if element.type.kind == "complex":
        array = array + 1j * rng.normal(size=full)
    if element.codec == "algebra":
        array = array - np.conj(np.swapaxes(array, -1, -2))
        array = array - np.trace(array, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) / 3
    if element.codec == "hermitian":
        array = array + np.conj(np.swapaxes(array, -1, -2))
    return array


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("extents", [(5,), (4, 6), (3, 4, 2), (4, 2, 2, 6), (2, 3, 2, 2, 4)])
def test_box_goes_in_and_out(element, extents):
    array = values(element, extents)
    field = Field(Lattice(*extents), element).set_local(array)
    np.testing.assert_allclose(field.local(), array, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(field[...], field.local())


def gather(element, extents):
    array = values(element, extents)
    lattice = Lattice(*extents)
    mine = tuple(slice(o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True))
    field = Field(lattice, element).set_local(array[mine])
    field[1, 2, 0] = 2 * array[1, 2, 0]
    field[:, 0, ::2] = array[:, 1, ::2]
    return field[...], field[1, 2, 0], field[0, :, -1], field[:, 1:3, 1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("element", [jali.Real(), jali.Spinor(2)], ids=str)
def test_sites_and_slices_are_global_on_every_rank(ranks, element):
    extents = (4, 5, 6)
    expected = values(element, extents)
    source = expected.copy()
    expected[1, 2, 0] = 2 * source[1, 2, 0]
    expected[:, 0, ::2] = source[:, 1, ::2]
    for whole, site, line, slab in jali.virtual_ranks(ranks, gather, element, extents):
        np.testing.assert_array_equal(whole, expected)
        np.testing.assert_array_equal(site, expected[1, 2, 0])
        np.testing.assert_array_equal(line, expected[0, :, -1])
        np.testing.assert_array_equal(slab, expected[:, 1:3, 1])


def test_precision_and_storage_round_once():
    lattice = Lattice(4, 4)
    array = values(jali.Complex(), (4, 4))
    single = Field(lattice, jali.Complex()).set_local(array).astype("float32")
    np.testing.assert_array_equal(single.local(), array.astype(np.complex64))
    stored = Field(lattice, jali.Complex(), storage="float32").set_local(array)
    assert stored.storage.nbytes < Field(lattice, jali.Complex()).storage.nbytes
    np.testing.assert_array_equal(stored.local(), array.astype(np.complex64))
    np.testing.assert_array_equal(
        single.astype("float64").local(), array.astype(np.complex64).astype(complex)
    )


def test_copy_is_independent():
    field = Field(Lattice(4, 4), jali.Real()).set_local(np.ones((4, 4)))
    other = field.copy()
    field[0, 0] = 5.0
    assert other[0, 0] == 1.0
    assert field[0, 0] == 5.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lattice(), "1 to 8 dimensions"),
        (lambda: Lattice(0, 4), "positive whole numbers, not 0"),
        (lambda: Lattice(4, 2.5), "positive whole numbers, not 2.5"),
        (lambda: Lattice(*[1] * 9), "1 to 8 dimensions, not 9"),
        (lambda: Lattice(4, 4, grid=(2, 1)), r"2 ranks.* 1"),
        (lambda: Field(Lattice(4), "SU(3)"), r"element type such as SU\(3\)"),
        (lambda: Field(Lattice(4), jali.Real(), precision="half"), "precision 'half' is unknown"),
        (lambda: Field(Lattice(4), jali.Real(), boundary="wild"), "'wild' in direction 0 is unknown"),
        (lambda: Field(Lattice(4), jali.Real(), boundary=1j), "complex phase"),
        (lambda: Field(Lattice(4), jali.Complex(), boundary=2.0), "modulus 2"),
        (
            lambda: Field(Lattice(4, 4), jali.Real(), boundary=["periodic"]),
            "1 boundary conditions for 2 directions",
        ),
        (lambda: Field(Lattice(4), jali.Real()).set_local(np.ones(5)), r"shape \(4,\), the array \(5,\)"),
        (lambda: Field(Lattice(4), jali.Real()).__setitem__(0, 1j), "real"),
        (lambda: Field(Lattice(4), jali.Real()).set_local(np.ma.masked_equal([1, 2, 3, 4], 2)), "masked"),
        (
            lambda: Field(Lattice(4), jali.Real()).__setitem__(..., np.ma.masked_equal([1, 2, 3, 4], 2)),
            "masked",
        ),
        (
            lambda: Field(Lattice(4), jali.Real()).set_stored_bytes([1, 2], ("float64", 1)),
            "is bytes of shape",
        ),
        (
            lambda: Field(Lattice(4), jali.Real()).set_stored_bytes(np.zeros(4), "float64"),
            "a name and a version",
        ),
        (lambda: Field(Lattice(4), jali.Real())[1, 2], r"has shape \(4,\); 2 indices were given"),
        (lambda: Field(Lattice(4), jali.Real())[1.5], "whole numbers and slices"),
        (lambda: jali.SU(0), "positive whole numbers"),
    ],
)
def test_impossible_requests_say_what_would_be_right(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


def test_site_outside_the_lattice_is_an_index_error():
    with pytest.raises(IndexError, match=r"index 4 of axis 0 is outside 0\.\.3"):
        Field(Lattice(4), jali.Real())[4]


def test_fields_of_two_lattices_do_not_mix():
    a, b = Field(Lattice(4), jali.Real(), name="a"), Field(Lattice(4), jali.Real(), name="b")

    @jali.site_function
    def add(X, a, b):
        a[X] += b[X]

    with pytest.raises(LayoutError, match="runs on one lattice"):
        add(a, b)


def too_wide(extent):
    field = Field(Lattice(extent, grid=(4,)), jali.Real())

    @jali.site_function
    def far(X, a, b):
        b[X] = a[X + 6 * X.directions()[0]]

    far(field, field.like())


def test_halo_wider_than_the_local_box_says_how_many_ranks_would_do():
    with pytest.raises(LayoutError, match=r"halo of width 6"):
        jali.virtual_ranks(4, too_wide, 20)


def test_captured_field_is_an_error():
    lattice = Lattice(4)
    hidden = Field(lattice, jali.Real())

    @jali.site_function
    def bad(X, a):
        a[X] = hidden[X]

    with pytest.raises(TraceError, match=r"not one of its arguments[\s\S]*test_fields\.py:\d+"):
        bad(Field(lattice, jali.Real()))


def test_inspect_reports_reads_writes_flops_and_bytes():
    lattice = Lattice(4, 4)
    x, y = Field(lattice, jali.Complex(), name="x"), Field(lattice, jali.Complex(), name="y")

    @jali.site_function
    def step(X, y, x, a):
        e = X.directions()[1]
        y[X] = y[X] + a * x[X - e]

    report = jali.inspect(step, y, x, 0.5)
    assert report.reads == {"y": [(0, 0)], "x": [(0, -1)]}
    assert report.writes == {"y": [(0, 0)]}
    assert report.flops == 4
    assert report.bytes_moved == 3 * 16
    assert report.path.exists()
    assert re.search(r"\bkernel\b", report.source)


@pytest.mark.short(1)
def test_launches_with_new_fields_leave_nothing_behind():
    """A field that stays does not remember the launches with fields that are gone."""
    lattice = Lattice(4, 4)
    stays = Field(lattice, jali.Real(), name="stays")

    @jali.site_function
    def accumulate(X, out, a, weight):
        out[X] += weight * a[X]

    def launches(count):
        for k in range(count):
            accumulate(Field(lattice, jali.Real(), name="goes"), stays, 0.5)
            if k % 2:
                accumulate[jali.EVEN](stays, Field(lattice, jali.Real(), name="goes"), 0.5)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        launches(100)
        held = [launches(100), launches(200), launches(200)]
        # one of the rounds may meet a table of the interpreter's that grows, such as that of interned strings
        assert min(after - before for before, after in itertools.pairwise(held)) < 200 * 8
    finally:
        tracemalloc.stop()
    assert len(accumulate._bound) == 0
    assert len(stays._release) == 0


def test_site_functions_that_are_gone_leave_nothing_in_fields_that_stay():
    lattice = Lattice(4, 4)
    stays = Field(lattice, jali.Real())

    def use():
        @jali.site_function
        def scale(X, a):
            a[X] = 2 * a[X]

        scale(stays)

    for _ in range(5):
        use()
    gc.collect()
    assert len(stays._release) == 0


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("batch", 256, r"f\.like\(batch=\.\.\.\)"),
        ("over", jali.ALL, r"f\.like\(over=\.\.\.\)"),
        ("boundary", "open", r"f\.like\(boundary=\.\.\.\)"),
        ("element", jali.SU(3), r"f\.like\(element=\.\.\.\)"),
        ("precision", "float32", r"f\.like\(precision=\.\.\.\)"),
        ("storage", "float32", r"f\.like\(storage=\.\.\.\)"),
        ("stored", None, r"f\.like\(storage=\.\.\.\)"),
        ("layout", None, r"f\.like\(storage=\.\.\.\)"),
        ("lattice", Lattice(16, 16), r"Field\(lattice, f\.element\)"),
        ("members_in_memory", 256, r"f\.members\[\.\.\.\]"),
        ("listed_members", (255,), r"f\.members\[\.\.\.\]"),
        ("view_of", None, r"f\.members\[\.\.\.\]"),
    ],
)
def test_what_kernels_are_prepared_for_cannot_be_assigned(name, value, right):
    lattice = Lattice(4, 4)
    for field in (
        Field(lattice, jali.Real(), over=jali.EVEN, batch=2, name="g"),
        Field(lattice, jali.Real(), batch=2, name="g").members[[1, 0]],
    ):
        with pytest.raises(LayoutError, match=rf"g.* keeps its {name}; {right} makes another field"):
            setattr(field, name, value)
        field += 1.0
        assert np.array_equal(
            field.norm2(), [field.on(jali.EVEN).norm2()[0] * (1 + (field.over is jali.ALL))] * 2
        )


def test_the_geometry_of_a_lattice_cannot_be_assigned():
    lattice = Lattice(4, 4)
    for name, value, right in (
        ("extents", (8, 8), r"Lattice\(\.\.\.\)"),
        ("grid", (2, 2), r"Lattice\(\.\.\., grid=\.\.\.\)"),
        ("partition", None, r"Lattice\(\.\.\., grid=\.\.\.\)"),
        ("gpu", None, r"Lattice\(\.\.\., device=\.\.\.\)"),
        ("halo_wire", "float16", r"Lattice\(\.\.\., halo_wire=\.\.\.\)"),
    ):
        with pytest.raises(LayoutError, match=rf"Lattice\(4, 4\) keeps its {name}; {right} makes another"):
            setattr(lattice, name, value)
    assert lattice.extents == (4, 4)


def test_a_field_may_get_another_name():
    field = Field(Lattice(4, 4), jali.Real(), name="f")
    field.name = "g"
    assert field.name == "g"
