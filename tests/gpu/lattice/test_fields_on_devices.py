"""Fields on a device, seen through NumPy: what goes in comes out, as from the host's memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from shadow import assert_same_bits

import jali
from jali import SU, Algebra, Complex, Field, Hermitian, Integer, Lattice, Matrix, Real, Spinor, Vector

ELEMENTS = [
    Real(),
    Complex(),
    Vector(3),
    Vector(2, kind="real"),
    Matrix(2, 3),
    Matrix(3, kind="real"),
    *(SU(n) for n in range(1, 6)),
    Algebra(2),
    Algebra(3),
    Hermitian(3),
    Spinor(2),
    Spinor(3),
]
EXTENTS = [(37,), (5, 8), (3, 4, 5), (3, 2, 1, 7), (2, 3, 2, 3, 2), (2, 1, 3, 2, 2, 1, 2, 2), (1, 1), (32,)]


def values_of(extents, element, seed=1):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(*extents, *element.numpy_shape))
    if element.type.kind == "int":
        return rng.integers(-99, 99, extents)
    if element.type.kind == "complex":
        values = values + 1j * rng.normal(size=values.shape)
    if element.codec == "algebra":
        n = element.type.shape[0]
        values = values - np.swapaxes(values, -1, -2).conj()
        values -= np.trace(values, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n
    if element.codec == "hermitian":
        values = values + np.swapaxes(values, -1, -2).conj()
    return values


def pair(extents, element, kind, **options):
    """A field on the host and one on the device, with the same values."""
    values = values_of(extents, element)
    fields = [Field(Lattice(*extents, device=d), element, **options) for d in ("cpu", kind)]
    for field in fields:
        field[...] = values
    return fields


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_box_goes_in_and_out(element, precision, device):
    host, there = pair((3, 4, 5), element, device, precision=precision)
    assert_same_bits(there[...], host[...], "all sites")
    assert_same_bits(there.local(), host.local(), "local box")
    assert_same_bits(
        there.copy().set_local(2 * host.local()).local(),
        host.copy().set_local(2 * host.local()).local(),
        "set",
    )
    assert not np.array_equal(there[...], 0 * there[...])


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_any_extents(extents, device):
    for element, options in (
        (Spinor(3), {}),
        (Real(), {"precision": "float32"}),
        (SU(2), {"storage": "float32"}),
    ):
        host, there = pair(extents, element, device, **options)
        assert_same_bits(there[...], host[...], str(element))


@pytest.mark.parametrize("element", [Real(), Vector(3), SU(3)], ids=str)
def test_sites_and_slices_are_read_and_written(element, device):
    host, there = pair((4, 3, 5), element, device)
    indices = [(0, 0, 0), (3, -1, 2), (slice(None), 1, 2), (slice(1, 4, 2), slice(None), -2), (...,)]
    for index in indices:
        index = index if index != (...,) else ...
        assert_same_bits(there[index], host[index], f"read at {index}")
    new = values_of((2, 3), element, seed=2)
    for field in (host, there):
        field[1:3, :, 4] = new
        field[0, 0, 0] = new[0, 0]
        field[3, 2, :] = new[1, 1]
    assert_same_bits(there[...], host[...], "after writing")
    assert_same_bits(there[0, 0, 0], new[0, 0], "one site") if element.codec == "plain" else None
    with pytest.raises(IndexError, match="outside"):
        there[4, 0, 0]


def test_new_field_is_zero_in_memory_that_was_used_before(device):
    lattice = Lattice(4, 4, device=device)
    for _ in range(3):
        field = Field(lattice, SU(3))
        assert not np.any(field[...])
        field[...] = values_of((4, 4), SU(3))
        del field
        gc.collect()


def test_copy_assign_and_conversion_round_as_on_the_host(device):
    host, there = pair((3, 4, 5), SU(3), device)
    for got, expected in (
        (there.copy(), host.copy()),
        (there.astype("float32"), host.astype("float32")),
        (there.astype("float32").astype("float64"), host.astype("float32").astype("float64")),
        (there.like(storage="float32").assign(there), host.like(storage="float32").assign(host)),
    ):
        assert_same_bits(got[...], expected[...], str(got.precision))
        assert got.lattice is there.lattice
    twin = there.copy()
    twin[0, 0, 0] = np.eye(3)
    assert_same_bits(there[...], host[...], "a copy is another field")
    with pytest.raises(jali.LayoutError, match="different lattices"):
        there.assign(host)


def test_conversion_of_special_values(device):
    special = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        5e-324,
        1e-310,
        1.5e-45,
        1e-39,
        3.4028235e38,
        -1e-320,
        1 + 2**-24,
    ]
    for element in (Real(), Vector(2, kind="real")):
        host, there = (Field(Lattice(len(special), device=d), element) for d in ("cpu", device))
        for field in (host, there):
            field[...] = np.array(special).reshape((-1,) + (1,) * len(element.numpy_shape)) * np.ones(
                element.numpy_shape
            )
        assert_same_bits(there[...], host[...], "float64")
        assert_same_bits(there.astype("float32")[...], host.astype("float32")[...], "float32")
        assert_same_bits(
            there.astype("float32").astype("float64")[...],
            host.astype("float32").astype("float64")[...],
            "back",
        )
    for field in (host, there):
        field[0] = 3.4028236e38
        with pytest.raises(jali.StorageError, match="1 site "):
            field.astype("float32")[0]


@pytest.mark.short(1)
def test_array_larger_than_the_staging_memory_goes_in_pieces(device):
    """Boxes travel in pieces of 64 MiB."""
    extents = (3000, 3001)
    assert 8 * np.prod(extents) > 64 << 20
    values = np.arange(np.prod(extents), dtype=float).reshape(extents)
    field = Field(Lattice(*extents, device=device), Real())
    field[...] = values
    assert np.array_equal(field.local(), values)
    assert field[2999, 3000] == values[-1, -1]


def test_two_lattices_of_one_device_and_one_of_the_host_live_side_by_side(device):
    small, large, host = (
        Lattice(2, 2, device=device),
        Lattice(6, 4, 4, device=device),
        Lattice(6, 4, 4, device="cpu"),
    )

    @jali.site_function
    def fill(X, a):
        a[X] = X.extent(0) + X.coordinate(1)

    fields = [Field(lattice, Real()) for lattice in (small, large, host)]
    for field in fields:
        fill(field)
    assert fields[0][...].tolist() == [[2, 3], [2, 3]]
    assert np.array_equal(fields[1][...], fields[2][...])

    @jali.site_function
    def add(X, a, b):
        a[X] += b[X]

    with pytest.raises(jali.LayoutError, match="runs on one lattice"):
        add(fields[1], fields[2])


def test_memory_goes_back_to_the_pool_with_the_field(device):
    lattice = Lattice(16, 16, device=device)
    gc.collect()
    before = lattice.gpu.memory_held
    field = Field(lattice, SU(3), name="links of the test")
    assert lattice.gpu.memory_held - before >= 256 * 18 * 8
    assert any("links of the test" in label for label, _, _ in lattice.gpu.memory_usage())
    del field
    gc.collect()
    assert lattice.gpu.memory_held == before
    assert lattice.gpu.memory_cached >= 256 * 18 * 8
    lattice.gpu.trim()
    assert lattice.gpu.memory_cached == 0


@jali.site_function
def around(X, out, f):
    total = f[X]
    for mu in X.directions():
        total = total + X.coordinate(mu) * (f[X + mu] - 2 * f[X - mu])
    out[X] = total


@pytest.mark.parametrize("ndim", [6, 7, 8])
def test_neighbours_in_many_dimensions(ndim, device):
    host, there = pair((2, 1, 3, 2, 2, 1, 2, 3)[:ndim], Complex(), device)
    results = [f.like() for f in (host, there)]
    for out, f in zip(results, (host, there), strict=True):
        around(out, f)
    assert_same_bits(results[1][...], results[0][...], "sums over neighbours")


@pytest.mark.parametrize("condition", ["open", "antiperiodic"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_whole_numbers_meet_boundaries_as_on_the_host(condition, precision, device):
    host, there = pair((3, 1, 4), Integer(), device, precision=precision, boundary=condition)
    results = [f.like() for f in (host, there)]
    for out, f in zip(results, (host, there), strict=True):
        around(out, f)
    assert np.array_equal(results[1][...], results[0][...])


@pytest.mark.parametrize("ending", [".jali", ".npy", ".h5"])
@pytest.mark.parametrize(
    ("element", "storage"), [(SU(3), "float64-12"), (Spinor(3), "float32"), (Algebra(3), None)], ids=str
)
def test_files_go_from_the_device_to_the_host_and_back(tmp_path, ending, element, storage, device):
    if ending == ".h5":
        pytest.importorskip("h5py")
    host, there = pair((3, 4, 5), element, device, storage=storage, boundary="antiperiodic")
    there.save(tmp_path / f"there{ending}")
    host.save(tmp_path / f"host{ending}")
    for name, target in (("there", host.lattice), ("host", there.lattice)):
        found = jali.load(tmp_path / f"{name}{ending}", target)
        assert found.lattice is target
        assert_same_bits(found[...], host[...], name)
    if ending != ".jali":
        assert (tmp_path / f"there{ending}").read_bytes() == (tmp_path / f"host{ending}").read_bytes()
    narrow = jali.load(tmp_path / f"host{ending}", there.lattice, precision="float32")
    assert_same_bits(narrow[...], host.astype("float32")[...], "in another precision")
