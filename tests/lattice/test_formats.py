"""Storage formats: what each format keeps of a value, alone and together with others in one kernel, on any ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import jali
import jali.fermions
import jali.io
from jali import SU, Algebra, Field, Integer, Lattice, Real, Spinor, StorageError, Vector
from jali.codegen import storage_formats
from jali.codegen.storage_formats import FORMATS, Format, add_format, section
from jali.codegen.target import host
from jali.comm.virtual import virtual_ranks
from jali.gauge import GaugeField

pytestmark = pytest.mark.lanes

NUMBERS = ["float64", "float32", "float16", "bfloat16", "fixed16", "fixed8"]
# The largest error of a stored number, relative to itself or (fixed point) to the largest of its site.
BOUNDS = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8, "fixed16": 1 / 65534, "fixed8": 1 / 254}
# Of an element of an SU(3) matrix with 12 and with 8 reals: three times what is usual for random matrices.
BOUNDS_12 = {
    "float64": 1e-15,
    "float32": 1.6e-7,
    "float16": 1.6e-3,
    "bfloat16": 1.2e-2,
    "fixed16": 1e-4,
    "fixed8": 3e-2,
}
BOUNDS_8 = {
    "float64": 1e-13,
    "float32": 5e-6,
    "float16": 2e-2,
    "bfloat16": 0.12,
    "fixed16": 1.2e-3,
    "fixed8": 0.25,
}


def random_links(n, shape, seed=1):
    """Haar-like SU(n) matrices."""
    rng = np.random.default_rng(seed)
    q, r = np.linalg.qr(rng.normal(size=(*shape, n, n)) + 1j * rng.normal(size=(*shape, n, n)))
    q *= (np.diagonal(r, axis1=-2, axis2=-1) / abs(np.diagonal(r, axis1=-2, axis2=-1)))[..., None, :]
    return q / np.linalg.det(q)[..., None, None] ** (1 / n)


def numbers(shape, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def stored_bytes(field):
    """Of this rank's box."""
    return field.storage.export_box()


def test_packets_are_the_largest_that_divide_a_section():
    assert [section(18, 8), section(5, 8)] == [(18, 8, 2), (5, 8, 1)]
    assert [section(18, 4), section(24, 4), section(3, 4)] == [(18, 4, 2), (24, 4, 4), (3, 4, 1)]
    assert [section(24, 2), section(12, 2), section(18, 2), section(9, 2)] == [
        (24, 2, 8),
        (12, 2, 4),
        (18, 2, 2),
        (9, 2, 1),
    ]
    assert section(32, 1) == (32, 1, 16)


def test_sites_take_the_bytes_that_their_rows_say():
    lattice = Lattice(4, 4)
    sizes = {
        (Spinor(3), "fixed16"): 52,
        (Spinor(3), "float16"): 48,
        (SU(3), "fixed16"): 36,
        (SU(3), "float32-12"): 48,
        (SU(3), "fixed16-8"): 16,
        (SU(2), "float64-4"): 32,
        (Algebra(3), "bfloat16"): 16,
        (Integer(), "int32"): 4,
    }
    for (element, storage), size in sizes.items():
        field = Field(lattice, element, storage=storage)
        assert field.storage.site_bytes == field.stored.site_bytes == size, (element, storage)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_16_bit_numbers_are_those_of_ieee_for_every_pattern_and_round_to_even(precision):
    lattice = Lattice(256, 256)
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    wide = {
        "float16": patterns.view(np.float16),
        "bfloat16": (patterns.astype(np.uint32) << 16).view(np.float32),
    }
    rng = np.random.default_rng(3)
    values = rng.normal(size=(256, 256)) * 2.0 ** rng.integers(-40, 15, size=(256, 256))
    values[0, :6] = [0.0, -0.0, 2.0**-25, 3 * 2.0**-25, 65519.0, 2049.0]
    values = values.astype(precision)
    for name, expected in wide.items():
        f = Field(lattice, Real(), precision=precision, storage=name)
        f.storage.import_box(np.ascontiguousarray(patterns.T))
        with np.errstate(invalid="ignore"):
            assert np.array_equal(f[...], expected.astype(precision), equal_nan=True), name
        f[...] = values
        if name == "float16":
            assert np.array_equal(
                stored_bytes(f).view(np.uint16)[..., 0].T, values.astype(np.float16).view(np.uint16)
            )
            continue
        got = f[...].astype(float)
        spacing = 2.0 ** np.floor(np.log2(np.maximum(abs(values.astype(float)), 2.0**-126))) * 2.0**-7
        assert np.array_equal(got, np.rint(values.astype(float) / spacing) * spacing)


@pytest.mark.short(3)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("storage", list(BOUNDS))
def test_numbers_come_back_within_the_bound_of_their_row(storage, precision):
    lattice = Lattice(4, 6, 2)
    values = numbers((4, 6, 2, 4, 3)) * 10.0 ** np.arange(2)[None, None, :, None, None]
    f = Field(lattice, Spinor(3), precision=precision, storage=storage)
    f[...] = values
    values = values.astype("complex128" if precision == "float64" else "complex64")
    of = np.maximum(abs(values.real), abs(values.imag))
    scale = of.max(axis=(-2, -1), keepdims=True) if "fixed" in storage else of
    error = np.maximum(abs((f[...] - values).real), abs((f[...] - values).imag))
    assert error.max() > 0 or precision == storage
    assert np.all(error <= 1.001 * BOUNDS[storage] * scale)


@pytest.mark.short(2)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(("reals", "bounds"), [("12", BOUNDS_12), ("8", BOUNDS_8)])
def test_links_of_12_and_8_reals_come_back_within_their_bounds(reals, bounds, precision):
    lattice = Lattice(8, 4, 2)
    values = random_links(3, (8, 4, 2))
    values[0, 0, 0] = np.eye(3)  # where other choices of 8 reals are singular
    for numbers_as, bound in bounds.items():
        if precision == "float32" and numbers_as == "float64":
            continue
        f = Field(lattice, SU(3), precision=precision, storage=f"{numbers_as}-{reals}")
        f[...] = values
        least = 0 if precision == "float64" else bounds["float32"]
        assert abs(f[...] - values).max() < max(bound, least), numbers_as


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_links_of_8_reals_have_no_singular_place(order, precision):
    """Signed permutations, with phases, and matrices at any distance from them: half of the digits at least come back."""
    lattice = Lattice(8, 6)
    rng = np.random.default_rng(1)
    phases = np.exp(1j * rng.uniform(-np.pi, np.pi, (8, 6, 3)))
    phases[0] = 1.0
    phases[..., 2] *= np.linalg.det(np.eye(3)[list(order)]) / phases.prod(axis=-1)
    near = np.eye(3)[list(order)] * phases[..., None, :]
    generators = rng.normal(size=(8, 6, 3, 3)) + 1j * rng.normal(size=(8, 6, 3, 3))
    generators = generators + generators.conj().swapaxes(-1, -2)
    generators -= np.trace(generators, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) / 3
    generators *= np.array([0.0, 1e-15, 1e-10, 1e-5, 1e-3, 0.3])[None, :, None, None]
    angles, axes = np.linalg.eigh(generators)
    values = near @ (axes * np.exp(1j * angles)[..., None, :]) @ axes.conj().swapaxes(-1, -2)
    assert abs(np.linalg.det(values) - 1).max() < 1e-12
    for numbers_as in BOUNDS_8:
        if precision == "float32" and numbers_as == "float64":
            continue
        f = Field(lattice, SU(3), precision=precision, storage=f"{numbers_as}-8")
        f[...] = values
        digits = max(2.0**-24 if precision == "float32" else 2.0**-53, BOUNDS.get(numbers_as, 2.0**-53))
        # measured: up to 2.5; in float64 4.1, where the rounding of the values themselves counts
        times = 6 if digits < 2.0**-50 else 3
        assert abs(f[...] - values).max() < times * math.sqrt(digits), numbers_as


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_two_by_two_links_of_four_reals_lose_nothing_but_the_rounding_of_their_first_row(precision):
    values = random_links(2, (4, 4))
    f = Field(Lattice(4, 4), SU(2), precision=precision, storage=f"{precision}-4")
    f[...] = values
    got = f[...]
    assert np.array_equal(got[..., 0, :], values[..., 0, :].astype(got.dtype))
    assert np.array_equal(got[..., 1, 0], -got[..., 0, 1].conj())
    assert np.array_equal(got[..., 1, 1], got[..., 0, 0].conj())


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_what_was_decoded_is_encoded_to_the_same_bytes(precision):
    """But for 8 reals, whose phases are rounded anew."""
    lattice = Lattice(4, 4, 2)
    for element, values in (
        (SU(3), random_links(3, (4, 4, 2))),
        (SU(2), random_links(2, (4, 4, 2))),
        (Spinor(3), numbers((4, 4, 2, 4, 3))),
    ):
        for name in FORMATS:
            try:
                f = Field(lattice, element, precision=precision, storage=name)
            except jali.LayoutError:
                continue
            if name.endswith("-8"):
                continue
            f[...] = values
            again = f.like()
            again[...] = f[...]
            assert np.array_equal(stored_bytes(again), stored_bytes(f)), name
            copied = f.like(storage=precision).assign(f)  # by kernels on the lattice
            assert np.array_equal(stored_bytes(again.assign(copied)), stored_bytes(f)), name
            assert np.array_equal(copied[...], f[...]), name


@jali.site_function
def write_and_read(X, y, x, z, total):
    y[X] = 1.1 * x[X]
    z[X] = y[X]
    total += y[X].norm2()


@jali.site_function
def read(X, y, total):
    total += y[X].norm2()


@pytest.mark.short(2)
@pytest.mark.parametrize("storage", [*NUMBERS[1:], "float64-12"])
def test_reading_after_writing_gives_what_is_stored_and_sums_add_it(storage):
    lattice = Lattice(4, 4, 2)
    element = SU(3) if "-" in storage else Vector(3)
    x = Field(lattice, element)
    x[...] = random_links(3, (4, 4, 2)) / 1.1 if "-" in storage else numbers((4, 4, 2, 3))
    y, z = (
        Field(lattice, element, storage=storage),
        Field(lattice, jali.Matrix(3) if "-" in storage else element),
    )
    total = lattice.sum(write_and_read, y, x, z)
    assert np.array_equal(z[...], y[...].astype(complex))
    assert total == lattice.sum(read, y)
    assert total == lattice.sum(read, z)
    if "-" not in storage:
        assert not np.array_equal(z[...], 1.1 * x[...])


@jali.site_function
def add_ahead(X, out, x, y):
    out[X] = x[X + X.directions()[0]] + y[X]


@pytest.mark.parametrize("grid", [(1, 1), (2, 1)])
def test_precisions_meet_on_a_processor_where_vectors_have_one_length(grid):
    def body():
        lattice = Lattice(4, 8, lanes=host().lanes("float64"), grid=grid)
        x, y = Field(lattice, Real(), precision="float32", storage="float16"), Field(lattice, Real())
        x[...], y[...] = numbers((4, 8)).real, numbers((4, 8), seed=2).real
        wide, narrow = y.like(), x.like(storage="float32")
        add_ahead(wide, x, y)
        add_ahead(narrow, x, y)
        expected = np.roll(x[...].astype(float), -1, 0) + y[...]
        assert np.array_equal(wide[...], expected)
        assert np.array_equal(narrow[...], expected.astype(np.float32))

    virtual_ranks(grid[0], body)


def test_whole_numbers_are_kept_and_those_that_do_not_fit_are_found():
    lattice = Lattice(4, 4)

    @jali.site_function
    def step(X, j, i):
        j[X] = i[X + X.directions()[0]] * 2 + X.coordinate(X.directions()[1])

    values = np.arange(16).reshape(4, 4) * 2**27
    for precision, storage, most in (
        ("float64", "int64", 63),
        ("float64", "int32", 31),
        ("float32", "int32", 31),
    ):
        i = Field(lattice, Integer(), precision=precision, storage=storage)
        i[...] = values if most == 31 else values * 2**20
        before = i[...].copy()
        j = i.like()
        if storage == "int32" and precision == "float64":
            step(j, i)
            with pytest.raises(StorageError, match="8 sites"):
                j[0, 0]
            i[...] = before = before // 4
        elif storage == "int32":
            i[...] = before = before // 4
        step(j, i)
        assert np.array_equal(j[...], np.roll(before, -1, 0) * 2 + np.arange(4)[None, :])
    with pytest.raises(jali.LayoutError, match="whole numbers"):
        i[0, 0] = 0.5

    @jali.site_function
    def added(X, j, i):
        total = jali.zero(Integer())
        total += i[X]
        j[X] = total + jali.zero(Integer())

    added(j, i)
    assert np.array_equal(j[...], i[...])
    with pytest.raises(jali.LayoutError, match="a field of Integer.* cannot carry the complex phase"):
        Field(lattice, Integer(), boundary=1j)


@jali.site_function
def topple(X, new, s, psi, total):
    mu, nu = X.directions()[:2]
    new[X] = s[X] + 3 * s[X + mu] - 5 * s[X - mu + nu] + s[X + 2 * nu]
    total += (s[X + mu] * psi[X + mu]).norm2()  # travels as a halo item


def toppled(precision, storage, conditions, wrapped=False):
    lattice = Lattice(5, 8, 2, device="cpu" if wrapped else None)  # where arrays are
    s = Field(lattice, Integer(), precision, storage, boundary=[*conditions, "periodic"])
    psi = Field(lattice, jali.Spinor(3), precision, boundary=[*conditions[::-1], "periodic"])
    if wrapped:
        numbers = np.zeros(lattice.local_extents, np.int64)
        s = lattice.wrap(numbers, Integer(), precision, boundary=s.boundary)
    s[...], psi[...] = GRAINS, SPINORS
    new = s.like(boundary=None)
    total = lattice.sum(topple, new, s, psi)
    return new[...], total


GRAINS = np.random.default_rng(1).integers(-9, 9, (5, 8, 2))
SPINORS = np.random.default_rng(1).integers(-9, 9, (5, 8, 2, 4, 3))


def grains_at(offset, conditions, values=GRAINS):
    """The values at an offset from each site, beyond edges too."""
    for axis, (step, condition) in enumerate(zip(offset, conditions, strict=True)):
        values = np.roll(values, -step, axis)
        beyond = np.arange(values.shape[axis]) + step
        outside = (beyond < 0) | (beyond >= values.shape[axis])
        factor = np.where(outside, {"open": 0, "antiperiodic": -1, "periodic": 1}[condition], 1)
        values = values * factor.reshape([-1 if k == axis else 1 for k in range(values.ndim)])
    return values


@pytest.mark.short(2)
@pytest.mark.parametrize(
    "conditions", [("open", "open"), ("antiperiodic", "open"), ("periodic", "antiperiodic")]
)
@pytest.mark.parametrize(
    ("precision", "storage"), [("float64", "int64"), ("float32", "int32"), ("float64", "int32")]
)
def test_whole_numbers_meet_boundaries(conditions, precision, storage):
    offsets = {(0, 0): 1, (1, 0): 3, (-1, 1): -5, (0, 2): 1}
    expected = sum(n * grains_at(o, conditions) for o, n in offsets.items())
    lengths = np.sum(abs(grains_at((1, 0), conditions[::-1], SPINORS)) ** 2, axis=(-1, -2))
    total = np.sum(grains_at((1, 0), conditions) ** 2 * lengths)
    for ranks in (1, 2, 3):
        for found in jali.virtual_ranks(ranks, toppled, precision, storage, conditions):
            assert np.array_equal(found[0], expected)
            assert found[1] == total
    if (precision, storage) == ("float64", "int64"):
        for found in jali.virtual_ranks(2, toppled, precision, storage, conditions, wrapped=True):
            assert np.array_equal(found[0], expected)
            assert found[1] == total


@jali.site_function
def all_pairs(X, targets, sources):
    mu, nu = X.directions()[0], X.directions()[1]
    for k in range(len(targets)):
        source = sources[k // 6]
        targets[k][X] = 0.5 * source[X + mu - nu] + source[X]


def pairs(precision, **options):
    """Stored bytes, and values read, of fields of all formats made of fields of all formats; and what NumPy says."""
    lattice = Lattice(6, 4, 2, **options)
    storages = [n for n in NUMBERS if not (precision == "float32" and n == "float64")] + ["float32"] * (
        precision == "float32"
    )
    boundary = ["antiperiodic", "periodic", "periodic"]
    sources = [Field(lattice, Vector(3), precision=precision, storage=s, boundary=boundary) for s in storages]
    targets = [Field(lattice, Vector(3), precision=precision, storage=t) for _ in storages for t in storages]
    for k, source in enumerate(sources):
        source[...] = numbers((6, 4, 2, 3), seed=k)
    all_pairs[jali.EVEN](targets, sources)
    all_pairs[jali.ODD](targets, sources)
    expected = []
    for source in sources:
        x = source[...].astype("complex128" if precision == "float64" else "complex64")
        shifted = np.roll(x, (-1, 1), (0, 1))
        shifted[5] *= -1
        value = x.dtype.type(0.5) * shifted + x
        expected += [t.like(storage=t.stored.format.name) for t in targets[:6]]
        for field in expected[-6:]:
            field[...] = value
    return [t[...].tobytes() for t in targets], [e[...].tobytes() for e in expected]


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_fields_of_any_two_formats_meet_in_one_kernel(precision):
    got, expected = pairs(precision)
    assert got == expected


@pytest.mark.short(1)
@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 1), (3, 2, 1)])
def test_stored_values_do_not_depend_on_ranks(grid):
    alone, _ = pairs("float32")
    ranks = grid[0] * grid[1] * grid[2]
    for got, _ in virtual_ranks(ranks, lambda: pairs("float32", grid=grid)):
        assert got == alone


def wilson(storage_of_links, storage_of_spinors, precision="float64", **options):
    """The Wilson operator on links and spinors that are stored so, the spinors antiperiodic in one direction."""
    lattice = Lattice(4, 4, 4, 4, **options)
    U = GaugeField(lattice, SU(3), precision=precision, storage=storage_of_links)
    for mu, field in enumerate(U.fields):
        field[...] = random_links(3, (4, 4, 4, 4), seed=mu)
    psi = Field(lattice, Spinor(3), precision=precision, storage=storage_of_spinors, boundary=[-1, 1, 1, 1])
    psi[...] = numbers((4, 4, 4, 4, 4, 3))
    out = psi.like(storage=None)
    jali.fermions.WilsonDirac(U, mass=0.1).apply(psi, out)
    return U, psi, out


@pytest.mark.short(2)
@pytest.mark.parametrize("links", ["float32-12", "fixed16-12", "fixed16-8", "float16"])
def test_wilson_operator_of_stored_links_is_that_of_the_links_read_from_them(links):
    U, psi, out = wilson(links, "fixed16")
    plain_U = GaugeField(U.lattice, SU(3)).assign(U)
    plain_psi = psi.like(storage="float64").assign(psi)
    expected = jali.fermions.WilsonDirac(plain_U, mass=0.1).apply(plain_psi)
    assert np.array_equal(out[...], expected[...])


@jali.site_function
def from_behind(X, out, U):
    for mu in X.directions():
        out[mu][X] = U[mu][X - mu]


@pytest.mark.short(2)
@pytest.mark.parametrize("links", ["float32-12", "fixed16-12", "fixed16-8", "float16"])
def test_boundary_phases_are_applied_to_what_was_reconstructed(links):
    """The third row of a phased link is no cross product."""
    lattice = Lattice(4, 4, 4, 4)
    U = GaugeField(lattice, SU(3), storage=links, boundary=[-1, 1, 1, 1]).hot_start(seed=1)
    plain = GaugeField(lattice, SU(3), boundary=[-1, 1, 1, 1]).assign(U)
    found, expected = ([Field(lattice, jali.Matrix(3)) for _ in range(4)] for _ in range(2))
    from_behind(found, U)
    from_behind(expected, plain)
    for mu in range(4):
        rolled = np.roll(plain[mu][...], 1, axis=mu)
        if mu == 0:
            rolled[0] *= -1
        assert np.array_equal(found[mu][...], expected[mu][...])
        assert np.array_equal(found[mu][...], rolled)


def test_wilson_operator_of_stored_links_has_the_same_bits_on_any_ranks():
    _, _, alone = wilson("fixed16-12", "float16", "float32")
    expected = alone[...].tobytes()
    for grid in ((2, 1, 1, 1), (1, 1, 2, 2)):
        run = lambda grid=grid: wilson("fixed16-12", "float16", "float32", grid=grid)[2][...].tobytes()  # noqa: E731
        assert virtual_ranks(int(np.prod(grid)), run) == [expected] * int(np.prod(grid))


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("storage", "bound"), [("float32", 9e-8), ("fixed16", 6.6e-5), ("float16", 6.6e-4), ("fixed8", 1.7e-2)]
)
def test_error_of_the_wilson_operator_is_what_its_storage_makes_it(storage, bound):
    """Three times what is usual: 3e-8, 2.2e-5, 2.2e-4, 5.7e-3."""
    _, _, exact = wilson("float64", "float64")
    _, _, out = wilson(storage, storage)
    error = np.linalg.norm(out[...] - exact[...]) / np.linalg.norm(exact[...])
    assert bound / 30 < error < bound


def test_an_unknown_or_impossible_storage_names_the_entries_there_are():
    lattice = Lattice(4, 4)
    for element, storage, said in (
        (Real(), "float8", "storage 'float8' is unknown; Real can be stored as float64, .*float32, float16"),
        (Real(), 16, "storage 16 is unknown"),
        (Spinor(3), "float32-12", "float32-12 does not hold Spinor"),
        (SU(2), "float32-8", "SU\\(2\\) can be stored as .*float32-4"),
        (jali.Matrix(3), "float32-12", "does not hold Matrix"),
        (Real(), "int32", "real numbers, which int32 does not hold"),
        (Integer(), "float32", "can be stored as int32, int64"),
    ):
        with pytest.raises(jali.LayoutError, match=said):
            Field(lattice, element, storage=storage)
    with pytest.raises(jali.LayoutError, match="a field with float32 arithmetic is not stored as int64"):
        Field(lattice, Integer(), precision="float32", storage="int64")


TWO_OF_21_BITS = """
// Two mantissas of 21 bits with a common exponent of 11 bits, in 64 bits.
struct two_of_21_bits {
    typedef uint32_t unit;
    static const bool norm = false;
    static JALI_MEMBER integer low_bits(integer x, int n) { return x & splat_integer((lane_integer(1) << n) - 1); }
    template <int N>
    static JALI_MEMBER void decode(real* v, const integer* units, real) {
        for (int c = 0; c < N; c += 2) {
            const integer first = units[c], second = units[c + 1];
            const integer exponent = low_bits(first >> splat_integer(21), 11) - splat_integer(1024);
            const real scale = real_of_bits((exponent + splat_integer(REAL_BIAS - 19)) << splat_integer(REAL_FRACTION));
            const integer half = splat_integer(1 << 20);
            v[c] = to_real((low_bits(first, 21) ^ half) - half) * scale;
            v[c + 1] = to_real((low_bits(second, 21) ^ half) - half) * scale;
        }
    }
    template <int N>
    static JALI_MEMBER mask encode(integer* units, real*, const real* v) {
        mask lost = all_lanes(false);
        for (int c = 0; c < N; c += 2) {
            const real most = vmax(vabs(v[c]), vabs(v[c + 1]));
            const mask beyond = ~(most < two_to(100));
            const real bounded = select(beyond, splat(1), vmax(most, two_to(-80)));
            const integer biased = low_bits(bits_of(bounded) >> splat_integer(REAL_FRACTION), 8 * sizeof(real) / JALI_LANES - 1 - REAL_FRACTION);
            integer exponent = biased - splat_integer(REAL_BIAS - 1); // |v| < 2^exponent
            const real inverse = real_of_bits((splat_integer(REAL_BIAS + 20) - exponent) << splat_integer(REAL_FRACTION));
            for (int k = 0; k < 2; ++k) {
                integer m = nearest_integer(select(beyond, splat(0), v[c + k]) * inverse);
                m = select(m > splat_integer((1 << 20) - 1), splat_integer((1 << 20) - 1), m);
                units[c + k] = low_bits(m, 21);
            }
            units[c] = units[c] | (exponent + splat_integer(1023)) << splat_integer(21);
            lost = lost | beyond;
        }
        return lost;
    }
};
"""


@pytest.fixture
def own_format(monkeypatch):
    """A format of this test's own: nothing but the table knows of it."""
    monkeypatch.setattr(storage_formats, "FORMATS", dict(FORMATS))
    return add_format(
        Format("two-21", 1, 4, text=TWO_OF_21_BITS, what="two numbers of 21 bits with one exponent")
    )


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_an_entry_added_by_a_test_works_like_those_there_are(own_format, precision):
    def run(**options):
        lattice = Lattice(6, 4, 2, **options)
        x = Field(lattice, Vector(3), precision=precision, storage="two-21", boundary=[-1, 1, 1])
        x[...] = numbers((6, 4, 2, 3))
        y, z = x.like(), x.like(storage=precision)
        all_pairs([z], [x])
        all_pairs([y], [x])
        return x[...], z[...], y[...], stored_bytes(y.like().assign(z)).tobytes() == stored_bytes(y).tobytes()

    x, z, y, same = run()
    values = numbers((6, 4, 2, 3))
    scale = np.maximum(abs(values.real), abs(values.imag))
    assert abs(x - values).max() > 0
    assert np.all(abs(x - values) <= 2**-19 * 2**0.5 * scale)
    shifted = np.roll(x, (-1, 1), (0, 1))
    shifted[5] *= -1
    assert np.array_equal(z, x.dtype.type(0.5) * shifted + x)
    assert same
    for theirs in virtual_ranks(2, lambda: run(grid=(2, 1, 1))):
        assert np.array_equal(theirs[0], x)
        assert np.array_equal(theirs[2], y)
        assert theirs[3]


def files_order(sites):
    """Files have the last direction first."""
    return np.ascontiguousarray(sites.transpose(2, 1, 0, 3))


@pytest.mark.parametrize("storage", ["float16", "fixed16", "float32-8", "float64"])
def test_checkpoints_keep_the_bytes_with_name_and_version_of_their_format(storage, tmp_path):
    lattice = Lattice(4, 4, 2)
    U = Field(lattice, SU(3), storage=storage)
    U[...] = random_links(3, (4, 4, 2))
    box = jali.io.Box.whole(lattice.extents)
    jali.io.write_checkpoint(
        tmp_path / "c", lattice.extents, box, {"U": files_order(U.stored_bytes())}, formats={"U": U.format}
    )
    checkpoint = jali.io.open_checkpoint(tmp_path / "c")
    assert checkpoint.fields["U"].format == (storage, 2 if storage.endswith("-8") else 1)
    again = U.like().set_stored_bytes(files_order(checkpoint.read("U", box)), checkpoint.fields["U"].format)
    assert np.array_equal(again.stored_bytes(), U.stored_bytes())
    with pytest.raises(jali.LayoutError, match=f"{storage} version {U.format[1]}"):
        U.like(storage="bfloat16").set_stored_bytes(
            files_order(checkpoint.read("U", box)), checkpoint.fields["U"].format
        )
    with pytest.raises(jali.LayoutError, match="version 3"):
        U.set_stored_bytes(files_order(checkpoint.read("U", box)), (storage, 3))
    with pytest.raises(jali.ParameterError, match="bytes of sites"):
        jali.io.write_checkpoint(
            tmp_path / "d", lattice.extents, box, {"U": np.zeros((2, 4, 4, 3))}, formats={"U": U.format}
        )


def spread_blocks(extents, n=6, decades=20):
    """Hermitian matrices whose scales differ by orders of magnitude from site to site."""
    rng = np.random.default_rng(3)
    a = rng.normal(size=(*extents, n, n)) + 1j * rng.normal(size=(*extents, n, n))
    scale = 10.0 ** rng.uniform(-decades, decades, size=extents)[..., None, None]
    return scale * (a + np.swapaxes(a, -1, -2).conj())


NORMED = {"fixed16": 1 / 65534, "fixed8": 1 / 254, "float16-scaled": 2**-11}
"""Formats with a norm for each element, and the error of a number relative to the largest of its element."""


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("storage", NORMED)
def test_a_norm_for_each_block_keeps_blocks_of_any_scale(storage, precision):
    lattice = Lattice(4, 3, 5)
    a = spread_blocks(lattice.extents).astype("complex64" if precision == "float32" else "complex128")
    for element, values in ((jali.Hermitian(6), a), (jali.Matrix(6), a), (Vector(6), a[..., 0])):
        f = Field(lattice, element, precision=precision, storage=storage)
        f[...] = values
        axes = tuple(range(3, values.ndim))
        parts = np.maximum(abs(values.real), abs(values.imag)).max(axis=axes, keepdims=True)
        error = np.maximum(abs((f[...] - values).real), abs((f[...] - values).imag))
        assert (error <= 1.01 * NORMED[storage] * parts).all()
        again = f.like().assign(f)
        assert np.array_equal(again[...], f[...])
        copied = f.like()
        copied[...] = 1.0 * f  # through a kernel
        assert copied.stored_bytes().tobytes() == f.stored_bytes().tobytes()
    with pytest.raises(StorageError):  # without a norm the range ends
        Field(lattice, jali.Hermitian(6), precision=precision, storage="float16")[...] = a


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_scaled_float16_keeps_eleven_bits_of_small_numbers_too(precision):
    """Numbers down to 2^-28 of the largest are as exact as this itself."""
    lattice = Lattice(5, 3)
    rng = np.random.default_rng(2)
    values = rng.choice([-1, 1], size=(5, 3, 29)) * rng.uniform(1, 2, size=(5, 3, 29)) * 2.0 ** -np.arange(29)
    values = (values * 2.0 ** rng.integers(-60, 60, size=(5, 3, 1))).astype(precision)
    f = Field(lattice, Vector(29, kind="real"), precision=precision, storage="float16-scaled")
    f[...] = values
    assert f.stored.site_bytes == 2 * 29 + 4
    assert (abs(f[...] - values) <= 2.0**-11 * abs(values)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**127])
def test_what_scaled_float16_cannot_hold_is_found(value):
    lattice = Lattice(4, 3)
    f = Field(lattice, Vector(3), storage="float16-scaled")
    with pytest.raises(StorageError):
        f[1, 1] = [1, value, 2]
    f[0, 0] = [1e-31, 1e-31, 0]
    assert not f[0, 0].any()
    links = Field(lattice, SU(3), storage="float16-scaled")  # of modulus one at most: no norm
    assert (links.stored.site_bytes, links.format) == (36, ("float16-scaled", 1))
