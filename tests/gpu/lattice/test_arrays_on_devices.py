"""Arrays of a device as fields: the bytes of a field of jali's own, whatever the array, the domain and the ranks; streams in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_ccl, use_fake_gpus
from test_foreign_arrays import Foreign

import jali
from jali import (
    ALL,
    EVEN,
    ODD,
    Colouring,
    Complex,
    Field,
    Integer,
    Lattice,
    LayoutError,
    Matrix,
    Random,
    Real,
    Spinor,
    Vector,
    _core,
)
from jali.comm import DeviceArray
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))
from test_arrays import both_of, drawn, far, first_small, laplacian, norms, values
from test_two_lattices import coarse_slope

CASES = [
    ((7,), Complex(), "float32"),
    ((5, 9), Vector(3), "float64"),
    ((4, 6, 5), Real(), "float64"),
    ((3, 4, 2, 5), Spinor(3), "float64"),
    ((3, 5), Matrix(2, 3), "float32"),
    ((2, 1, 2, 1, 2), Vector(2, "real"), "float32"),
]


class Interface:
    """An array by its interface, said otherwise."""

    def __init__(self, array: DeviceArray, **changes: Any):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def both(lattice: Any, element: Any, precision: str, box: Any, seed: int = 1, boundary: Any = None) -> Any:
    """The same values in an array of the device and in a field: the array, its field, the field."""
    part = tuple(slice(o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True))
    numbers = np.ascontiguousarray(values(box, element, precision, seed)[part])
    array = DeviceArray.from_host(numbers, lattice.gpu)
    field = Field(lattice, element, precision, boundary=boundary)
    field.set_local(numbers)
    return array, lattice.wrap(array, element, boundary=boundary), field


def same(array: Any, field: Any) -> None:
    equal = array.to_host().tobytes() == np.ascontiguousarray(field.local()).tobytes()
    assert equal  # without pytest's comparison of bytes, which takes minutes


@pytest.mark.short(2)
@pytest.mark.parametrize(("box", "element", "precision"), CASES, ids=str)
def test_stencils_give_the_bytes_of_a_field_on_every_domain(box, element, precision, device):
    lattice = Lattice(*box, device=device)
    three = Colouring(3, lambda x: (x[0] + 2 * x[-1]) % 3)
    array, inner, field = both(lattice, element, precision, box)
    out, outer, result = both(lattice, element, precision, box, seed=2)
    for domain in (ALL, EVEN, ODD, three[1]):
        for function in (laplacian, far):
            function[domain](outer, inner)
            function[domain](result, field)
            same(out, result)
    same(array, field)
    for first, second in ((outer, field), (result, inner)):  # an array into a field, and the reverse
        far(first, second)
        far[ODD](first, second)
    same(out, result)
    assert np.array_equal(outer.local(), result.local())
    whole = (..., *(slice(None),) * len(element.numpy_shape))
    assert np.array_equal(outer[...][whole], result[...][whole])


@pytest.mark.parametrize("boundary", ["antiperiodic", "open", 0.6 + 0.8j])
def test_boundaries_are_those_of_a_field(boundary, device):
    box = (4, 5, 6)
    lattice = Lattice(*box, device=device)
    for element in (Complex(), Vector(3)):
        _, inner, field = both(lattice, element, "float64", box, boundary=boundary)
        out, outer, result = both(lattice, element, "float64", box, 2)
        laplacian(outer, inner)
        laplacian(result, field)
        same(out, result)
        laplacian(outer, field)  # one apart
        same(out, result)


@pytest.mark.parametrize("boundary", ["antiperiodic", "open"])
def test_a_box_of_one_site_is_its_own_neighbour(boundary, device):
    lattice = Lattice(1, 1, device=device)
    for element in (Real(), Matrix(2)):
        out, outer, result = both(lattice, element, "float64", (1, 1), 2)
        _, inner, field = both(lattice, element, "float64", (1, 1), boundary=boundary)
        for to, source in ((result, inner), (outer, field), (outer, inner)):
            laplacian(to, source)
            numbers = to.local()
            laplacian(result, field)
            assert np.array_equal(numbers, result.local())


def test_sums_slices_and_random_numbers_are_those_of_a_field(device):
    box = (4, 5, 6)
    lattice = Lattice(*box, device=device)
    for element in (Complex(), Vector(3)):
        array, inner, field = both(lattice, element, "float64", box)
        assert lattice.sum(norms, inner) == lattice.sum(norms, field)
        assert lattice.sum(norms, inner, over=ODD) == lattice.sum(norms, field, over=ODD)
        for axis in range(lattice.ndim):
            per = zip(lattice.sum(norms, inner, per=axis), lattice.sum(norms, field, per=axis), strict=True)
            assert all(mine.tobytes() == theirs.tobytes() for mine, theirs in per)
    array, inner, field = both(lattice, Real(), "float64", box)
    drawn(inner, Random(5))
    drawn(field, Random(5))
    same(array, field)


def test_whole_numbers_loops_and_rounding(device):
    lattice = Lattice(5, 9, device=device)
    counts = DeviceArray.from_host(np.zeros((5, 9), np.int64), lattice.gpu)
    array = DeviceArray.from_host(np.zeros((5, 9), np.float32), lattice.gpu)
    inner, numbers = lattice.wrap(array, precision="float64"), lattice.wrap(counts)
    field, whole = Field(lattice, Real(), "float64", "float32"), Field(lattice, Integer())

    first_small[EVEN](inner, numbers, Random(3))
    first_small[EVEN](field, whole, Random(3))
    same(array, field)
    same(counts, whole)

    @jali.site_function
    def huge(X, f):
        f[X] = 1e300

    huge[ODD](inner)
    with pytest.raises(jali.StorageError, match="22 sites"):
        inner.local()


@pytest.mark.short(1)
@pytest.mark.parametrize("launch", ["64,1,2,2", "128,2,4,1"])
def test_threads_of_several_sites_give_the_same_bytes(launch, device, use_settings):
    use_settings(launch=launch)
    box = (5, 9)
    lattice = Lattice(*box, device=device)

    @jali.site_function
    def axpy(X, out, f, total):
        out[X] = out[X] + 0.5 * f[X]
        total += f[X].norm2()

    for element in (Real(), Vector(3)):
        _, inner, field = both(lattice, element, "float32", box)
        out, outer, result = both(lattice, element, "float32", box, 2)
        for to, source in ((outer, inner), (outer, field)):
            sums = lattice.sum(axpy, to, source), lattice.sum(axpy, result, field)
            assert sums[0] == sums[1]
            same(out, result)


def use_devices(number: int, monkeypatch: Any, use_settings: Any, folder: Path) -> None:
    if REAL and _core.Gpu.count("cuda") < number:
        pytest.skip(f"needs {number} GPUs")
    use_fake_gpus(monkeypatch, number, folder=folder)
    use_fake_ccl(use_settings)


@pytest.mark.short(1)
@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)])
def test_ranks_exchange_what_their_arrays_lack(grid, monkeypatch, use_settings, tmp_path):
    box = (7, 13)
    ranks = int(np.prod(grid))
    use_devices(ranks, monkeypatch, use_settings, tmp_path)

    def run():
        lattice = Lattice(*box, grid=grid, device=f"cuda:{jali.comm.current().rank}")
        for element in (Complex(), Vector(3)):
            array, inner, field = both(lattice, element, "float64", box, boundary="antiperiodic")
            out, outer, result = both(lattice, element, "float64", box, 2)
            for turn in range(3):
                for function in (laplacian, far):
                    function(outer, inner)
                    function(result, field)
                    same(out, result)
                    function(outer, field)  # with halos of both
                    function(result, inner)
                    same(out, result)
                field.set_local((0.5 + turn) * field.local())
                array.gpu.upload_address(array.address, field.local())  # which nobody is told
            assert lattice.sum(norms, inner) == lattice.sum(norms, field)
            laplacian[EVEN](inner, outer)
            laplacian[EVEN](field, result)
            laplacian(outer, inner)
            laplacian(result, field)
            same(out, result)

    jali.virtual_ranks(ranks, run)


@pytest.mark.short(2)
@pytest.mark.parametrize("policy", [name for name, *_ in _core.halo_policies("cuda") if "mpi" not in name])
def test_every_halo_policy_carries_arrays(policy, monkeypatch, use_settings, tmp_path):
    use_devices(2, monkeypatch, use_settings, tmp_path)
    use_settings(halo_policy=policy)
    box = (6, 5, 4)

    def run():
        lattice = Lattice(*box, grid=(2, 1, 1), device=f"cuda:{jali.comm.current().rank}")
        trouble = lattice.layout("float64").why_not_halo_policy(lattice.communicator.core, policy)
        if trouble:
            return trouble
        _, inner, field = both(lattice, Vector(3), "float32", box)
        out, outer, result = both(lattice, Vector(3), "float32", box, 2)
        for _ in range(3):
            far(outer, inner)
            far(result, field)
            same(out, result)
            laplacian(inner, outer)
            laplacian(field, result)
        return ""

    trouble = jali.virtual_ranks(2, run)[0]
    if trouble:
        pytest.skip(trouble)


@jali.site_function
def covariant(X, out, f, U, V):
    total = -8.0 * f[X]
    for mu, link in ((X.directions()[0], U), (X.directions()[1], V)):
        total += link[X] * f[X + mu] + link[X - mu].dagger() * f[X - mu]
    out[X] = total


@jali.site_function
def kinetic(X, out, f, U):
    mu = X.directions()[0]
    out[X] = U[X - mu].dagger() * f[X - mu].conj().conj()


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_products_of_arrays_travel_as_halo_items(ranks, monkeypatch, use_settings, tmp_path):
    use_devices(ranks, monkeypatch, use_settings, tmp_path)
    box = (6, 4)

    def run():
        lattice = Lattice(*box, grid=(ranks, 1), device=f"cuda:{jali.comm.current().rank}")
        f, g, u, v = (
            both(lattice, element, "float64", box, seed)
            for seed, element in enumerate((Vector(3), Vector(3), Matrix(3), Matrix(3)))
        )
        for turn in range(2):
            for function, more in ((covariant, (u, v)), (kinetic, (u,))):
                function(g[1], f[1], *(m[1] for m in more))
                function(g[2], f[2], *(m[2] for m in more))
                same(g[0], g[2])
            f[2].set_local((2.0 + turn) * f[2].local())
            f[0].gpu.upload_address(f[0].address, f[2].local())

    jali.virtual_ranks(ranks, run)


def test_a_dirac_operator_takes_arrays(device):
    lattice = Lattice(4, 2, 2, 4, device=device)
    dirac = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=4), 0.1)
    _, inner, field = both(lattice, Spinor(3), "float64", lattice.extents)
    out, outer, result = both(lattice, Spinor(3), "float64", lattice.extents, 2)
    dirac.apply(inner, outer)
    dirac.apply(field, result)
    same(out, result)


def test_a_wrapped_array_is_the_memory_of_its_field(device):
    lattice = Lattice(3, 4, device=device)
    for element in (Real(), Vector(3, "real")):
        array = DeviceArray.from_host(np.zeros((3, 4, *element.numpy_shape)), lattice.gpu)
        field = lattice.wrap(array, element, name="u")
        assert field.array is array
        numbers = values((3, 4), element, "float64")
        field[...] = numbers
        assert np.array_equal(array.to_host(), numbers)
        field[0, 1] = numbers[2, 3]
        numbers[0, 1] = numbers[2, 3]
        assert np.array_equal(array.to_host(), numbers)
        assert np.array_equal(field[0, 1:3], numbers[0, 1:3])
        more = field.like()
        assert isinstance(more.array, DeviceArray)
        assert not more.array.to_host().any()
        more.assign(field)
        assert np.array_equal(more.array.to_host(), numbers)
        assert np.array_equal(Field(lattice, element).assign(field)[...], numbers)
        single = lattice.wrap(DeviceArray.from_host(np.zeros(array.shape, np.float32), lattice.gpu), element)
        single.assign(field)
        assert np.array_equal(single.array.to_host(), numbers.astype(np.float32))
        assert np.array_equal(single.astype("float64")[...], numbers.astype(np.float32))
        own = Field(lattice, element).assign(field)
        field.assign(single)
        assert np.array_equal(array.to_host(), numbers.astype(np.float32))
        field.assign(own)
        assert np.array_equal(field.copy().array.to_host(), numbers)


def test_arrays_are_of_the_finer_or_the_coarser_lattice(device):
    element = Vector(3)
    small, large = Lattice(3, 4, 2, device=device), Lattice(6, 8, 6, device=device)
    _, inner, coarse = both(small, element, "float64", small.extents)
    out, outer, fine = both(large, element, "float64", large.extents, 2)
    coarse_slope(fine, coarse)
    for to, source in ((outer, inner), (outer, coarse), (fine, inner)):
        coarse_slope(to, source)
        same(out, fine)


def test_a_graph_repeats_calls_on_arrays(device):
    box = (4, 6)
    lattice = Lattice(*box, device=device)
    array, inner, field = both(lattice, Vector(2), "float64", box)
    out, outer, result = both(lattice, Vector(2), "float64", box, 2)
    steps = [
        jali.graph(lambda to=to, source=source: (laplacian(to, source), source.assign(to)), lattice)
        for to, source in ((outer, inner), (result, field))
    ]
    for step in steps:
        step.run(3)
    same(out, result)
    same(array, field)


@pytest.mark.short(2)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("element", [Real(), Integer(), Vector(3), Matrix(2, 3), Spinor(3)], ids=str)
def test_a_graph_assigns_between_arrays_and_fields(element, precision, device):
    box = (4, 6)
    lattice = Lattice(*box, device=device)
    other = {"float32": "float64", "float64": "float32"}[precision]
    own, same_precision, converted = (Field(lattice, element, p) for p in ("float64", "float64", other))
    array = DeviceArray.from_host(
        np.zeros((*box, *element.numpy_shape), element.numpy_dtype(precision)), lattice.gpu
    )
    wrapped = lattice.wrap(array, element)

    def step() -> None:
        wrapped.assign(own)
        same_precision.assign(wrapped)
        converted.assign(wrapped)

    graph = jali.graph(step, lattice)
    for turn in range(1, 3):
        numbers = turn * np.arange(array.size).reshape(array.shape)
        own[...] = numbers
        graph.run()
        assert np.array_equal(array.to_host(), numbers)
        assert np.array_equal(same_precision[...], numbers)
        assert np.array_equal(converted[...], numbers)


@pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")
@pytest.mark.parametrize("how", ["interface", "dlpack", "named"])
def test_streams_of_arrays_are_put_in_order(how, fake_driver):
    """The other library's stream is lazy: without a wait, either side would see what was there before."""
    lattice = Lattice(3, 4, device="cuda")
    other = Foreign(fake_driver, lattice.gpu)
    if how == "dlpack":
        other.stream = 0  # the default stream, which DLPack cannot name
    numbers = values((3, 4), Real(), "float64")
    a, b = other.array(numbers, "dlpack" if how == "dlpack" else "interface"), other.array(np.zeros((3, 4)))
    if how == "named":  # an array that says nothing of a stream
        for array in (a, b):
            array.__cuda_array_interface__["stream"] = None
    stream = other.stream if how == "named" else None
    f, g = lattice.wrap(a, stream=stream), lattice.wrap(b, stream=stream)
    own, result = Field(lattice, Real()), Field(lattice, Real())
    step = jali.graph(lambda: laplacian(g, f), lattice)
    for turn in range(4):
        numbers = numbers + turn
        own[...] = numbers
        laplacian(result, own)
        other.put(a, numbers)
        if turn < 2:
            laplacian(g, f)
        else:
            step.run()
        np.testing.assert_array_equal(other.take(b), result[...])
    other.put(a, 3 * numbers)
    assert lattice.sum(both_of, f, f) == pytest.approx(9 * (numbers**2).sum())
    other.put(a, 4 * numbers)
    np.testing.assert_array_equal(f[...], 4 * numbers)
    f[...] = numbers
    np.testing.assert_array_equal(other.take(a), numbers)
    other.put(a, 5 * numbers)
    own.assign(f)
    np.testing.assert_array_equal(own[...], 5 * numbers)
    f.assign(result)
    np.testing.assert_array_equal(other.take(a), result[...])


def test_arrays_that_may_not_be_written_are_read(device):
    lattice = Lattice(3, 4, device=device)
    array, inner, field = both(lattice, Real(), "float64", (3, 4))

    seen = lattice.wrap(Interface(array, data=(array.address, True)))
    out, outer, result = both(lattice, Real(), "float64", (3, 4), 2)
    laplacian(outer, seen)
    laplacian(result, field)
    same(out, result)
    with pytest.raises(LayoutError, match="laplacian writes .*, whose array is read-only"):
        laplacian(seen, outer)
    for change in (
        lambda: seen.assign(field),
        lambda: seen.set_local(field.local()),
        lambda: seen.__setitem__((0, 0), 1.0),
        lambda: seen.set_stored_bytes(seen.stored_bytes(), seen.format),
    ):
        with pytest.raises(LayoutError, match="is a read-only array"):
            change()
    with pytest.raises(LayoutError, match="shares memory with that of"):
        laplacian(inner, seen)


def of_device(make: Callable[[Any], np.ndarray]) -> Callable[[Any], Any]:
    return lambda lattice: lattice.wrap(DeviceArray.from_host(make(lattice), lattice.gpu))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda lattice: lattice.wrap(np.zeros((3, 4))),
            "array of NumPy is on the host, and this lattice on",
        ),
        (lambda lattice: lattice.wrap([1.0]), "a list is not in device memory"),
        (lambda lattice: lattice.wrap([1.0], stream=-5), "-5 is no handle of a stream"),
        (lambda lattice: lattice.wrap([1.0], stream=True), "True is no handle of a stream"),
        (of_device(lambda lattice: np.zeros((4, 3))), r"box has \(3, 4\) sites.*\(4, 3\)"),
        (of_device(lambda lattice: np.zeros((3, 4), np.float16)), "float64 or float32, not of float16"),
        (
            of_device(lambda lattice: np.zeros((3, 4), np.uint8)),
            "Integer is one of int64 or int32, not of uint8",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make, match, device):
    with pytest.raises(LayoutError, match=match):
        make(Lattice(3, 4, device=device))


def test_arrays_at_odd_addresses_are_refused(device):
    lattice = Lattice(3, 4, device=device)
    memory = DeviceArray.from_host(np.zeros(25), lattice.gpu)

    with pytest.raises(LayoutError, match="no multiple of 16 bytes"):
        lattice.wrap(Interface(memory, shape=(3, 4, 2), data=(memory.address + 8, False)))


@pytest.mark.gpu
def test_arrays_of_cupy_are_used_in_the_order_of_its_streams():
    cupy = pytest.importorskip("cupy")
    lattice = Lattice(64, 96, 32, device="cuda")
    rng = np.random.default_rng(3)
    field, result = Field(lattice, Complex()), Field(lattice, Complex())
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            a, b = (cupy.zeros(lattice.extents, complex) for _ in range(2))
            f, g = lattice.wrap(a), lattice.wrap(b)
            for turn in range(20):
                numbers = rng.normal(size=lattice.extents) + 0j
                a[...] = cupy.asarray(numbers)
                for _ in range(turn % 3):
                    a *= 2.0
                laplacian(g, f)
                b += 1.0
                field[...] = numbers * 2.0 ** (turn % 3)
                laplacian(result, field)
                assert np.array_equal(b.get(), result[...] + 1.0)


@pytest.mark.gpu
def test_tensors_of_pytorch_are_used_in_the_order_of_its_streams():
    torch = pytest.importorskip("torch")
    lattice = Lattice(64, 96, 32, device="cuda")
    rng = np.random.default_rng(3)
    field, result = Field(lattice, Vector(3, "real"), "float32"), Field(lattice, Vector(3, "real"), "float32")
    for stream in (None, torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            a, b = (torch.zeros(*lattice.extents, 3, device="cuda") for _ in range(2))
            f, g = (lattice.wrap(each, stream=stream) for each in (a, b))
            for turn in range(20):
                numbers = rng.normal(size=(*lattice.extents, 3)).astype(np.float32)
                a.copy_(torch.from_numpy(numbers))
                for _ in range(turn % 3):
                    a *= 2.0
                laplacian(g, f)
                b += 1.0
                field[...] = numbers * np.float32(2.0 ** (turn % 3))
                laplacian(result, field)
                assert np.array_equal(b.cpu().numpy(), result[...] + np.float32(1.0))
