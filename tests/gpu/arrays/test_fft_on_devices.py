"""Fourier transforms of arrays and fields on devices of several ranks: by the vendor's library and jali's collectives, where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL

import jali
from jali import Complex, Field, Lattice, Matrix, Real, Spinor, Vector, fft
from jali.array_namespaces import NAMESPACES, ArrayNamespace
from jali.arrays import DistributedArray, layout_of
from jali.arrays.exchange import BoxExchange
from jali.comm import DeviceArray, current
from jali.errors import DeviceError, ParameterError, RecordingError
from jali.fft import vendors

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")
LIBRARY = {"cuda": "cufft", "hip": "hipfft"}


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        yield module


def spread(a: np.ndarray, **split: Any) -> DistributedArray:
    """A whole array of the host on the devices of these ranks."""
    layout = layout_of(current(), a.shape, **split)
    part = a[tuple(slice(begin, end) for begin, end in layout.box)]
    return DistributedArray.of(layout, fake_cupy.there(part))


def whole(x: DistributedArray) -> np.ndarray:
    """All of it on the host, by way of the host."""
    here = DistributedArray.of(x.layout, fake_cupy.asnumpy(x.local))
    return here.asarray()


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=shape)
    return (x + 1j * random.normal(size=shape) if dtype.startswith("c") else x).astype(dtype)


CASES: list[tuple[int, tuple[int, ...], dict[str, Any], Any]] = [
    (1, (4, 5, 6), {}, None),
    (2, (4, 5, 6), {}, None),
    (3, (7, 5, 4), {"axis": 1}, (0, 1)),
    (4, (4, 6, 5), {"axis": (0, 1), "grid": (2, 2)}, None),
    (2, (24,), {}, None),  # four steps
    (4, (16, 2), {}, (0,)),
]


@pytest.mark.short(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_transforms_happen_where_arrays_are(case: Any, device: str) -> None:
    ranks, shape, split, axes = case

    def body() -> None:
        fake_cupy.use(device, current().rank)
        for dtype, exact in (("complex128", 1e-11), ("complex64", 1e-4)):
            a, b = numbers(shape, dtype), numbers(shape, dtype, 1)
            x, y = spread(a, **split), spread(b, **split)
            before = fake_cupy.copies_to_host()
            found = fft.fftn(x, axes=axes)
            plan = fft.FftPlan(x.layout, axes, result="transposed", norm="ortho", workspace=1 << 10)
            spectrum = plan(x)
            back, inverse = plan.adjoint(spectrum), fft.ifftn(y, axes=axes)
            assert fake_cupy.copies_to_host() == before
            np.testing.assert_allclose(whole(found), np.fft.fftn(a, axes=axes), atol=exact)
            np.testing.assert_allclose(whole(spectrum), np.fft.fftn(a, axes=axes, norm="ortho"), atol=exact)
            np.testing.assert_allclose(whole(back), a, atol=exact)
            np.testing.assert_allclose(whole(inverse), np.fft.ifftn(b, axes=axes), atol=exact)
            assert np.array_equal(whole(x), a)
        for dtype, exact in (("float64", 1e-11), ("float32", 1e-4)):
            a = numbers(shape, dtype)
            y = fft.rfftn(spread(a, **split), axes=axes)
            s = shape if axes is None else [shape[axis] for axis in axes]
            z = fft.irfftn(y, s, axes=axes)
            np.testing.assert_allclose(whole(y), np.fft.rfftn(a, axes=axes), atol=exact)
            np.testing.assert_allclose(whole(z), a, atol=exact)

    jali.virtual_ranks(ranks, body)


def test_arrays_stay_on_their_device_also_where_another_one_is_current(device: str) -> None:
    def body() -> None:
        here = current().rank
        fake_cupy.use(device, here)
        a = numbers((8, 6, 5), "complex128")
        x = spread(a)
        with fake_cupy.Device(3 - here):
            y = fft.fftn(x, norm="ortho")
            made = [y, x.copy(), x.zeros_like(), x.empty_like(), x.astype("complex64"), x.ravel()]
            squares = x.dot(x, vdot=True)
            shifted = fft.ifftn(y, norm="ortho")
        assert {one.local.device.id for one in [*made, shifted]} == {here}
        np.testing.assert_allclose(squares, np.vdot(a, a))
        np.testing.assert_allclose(whole(y), np.fft.fftn(a, norm="ortho"), atol=1e-11)
        np.testing.assert_allclose(whole(shifted), a, atol=1e-11)

    jali.virtual_ranks(2, body)


@pytest.mark.parametrize("provider", ["cufft", "cupy"])
def test_a_transform_puts_no_copy_to_the_host_on_a_stream(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what jali packs nor what carries it goes by way of the host, unless somebody asks for that."""
    monkeypatch.setattr(DeviceArray, "to_host", _refused)
    monkeypatch.setattr(type(NAMESPACES["cupy"]), "to_host", _refused)

    def body() -> str:
        gpu = fake_cupy.use("cuda", current().rank)
        a = numbers((6, 4, 5), "complex64")
        x = spread(a)
        plan = fft.FftPlan(x.layout, provider=provider)
        y = plan(x)
        np.testing.assert_allclose(whole(y), np.fft.fftn(a), atol=1e-4)
        there = current().collectives.on_device(gpu)
        call = jali._core.CollectiveCall("all_to_all", "complex64", 20, 0, "sum", False, None, False)
        return str(there.algorithm_of(call).name)

    assert "host-staged" not in jali.virtual_ranks(3, body)


@pytest.mark.parametrize("shape", [(8, 8, 6), (9, 5, 4)])
def test_large_parts_go_in_pieces_by_messages(
    shape: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """By default, where parts are large enough; there is no collective call then, and the numbers are the same."""
    monkeypatch.setattr("jali.fft.plan.OVERLAPPED_BYTES", 0)
    cut = []
    pipelined = BoxExchange.pipelined
    monkeypatch.setattr(BoxExchange, "pipelined", lambda self, *a: cut.append(a[:2]) or pipelined(self, *a))
    monkeypatch.setattr("jali.comm.Communicator.all_to_all", _refused)

    def body() -> None:
        fake_cupy.use(device, current().rank)
        a = numbers(shape, "complex64")
        x = spread(a)
        plan = fft.FftPlan(x.layout)
        for _ in range(3):
            y = plan(x)
            np.testing.assert_allclose(whole(y), np.fft.fftn(a), atol=1e-4)
            np.testing.assert_allclose(whole(plan.inverse(y)), a, atol=1e-4)

    jali.virtual_ranks(3, body)
    assert (
        len(cut) == 3 * 3 * 3
    )  # of ranks, rounds, and exchanges that follow a transform, two forward and one back
    assert {pieces for pieces, _ in cut} == {4}


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("axes", [None, (0,)])
def test_results_may_lie_where_numbers_came_from(axes: Any, pieces: int, device: str) -> None:
    """Also in another layout, and in a graph."""

    def body() -> None:
        rank = current().rank
        fake_cupy.use(device, rank)
        lattice = Lattice(4, 4, grid=(1, 2), device=f"{device}:{rank}")
        a = numbers((8, 6, 4), "complex128")
        x = spread(a)
        plan = fft.FftPlan(x.layout, axes, result="transposed", norm="ortho", pieces=pieces)
        there = plan.result_layout
        y = DistributedArray.of(there, x.local.reshape(there.local_shape))
        right = np.fft.fftn(a, axes=axes, norm="ortho")
        for overwrite in (False, True):
            x.local[...] = spread(a).local
            plan(x, y, overwrite)
            np.testing.assert_allclose(whole(y), right, atol=1e-11)
            plan.inverse(y, x, overwrite)
            np.testing.assert_allclose(whole(x), a, atol=1e-11)
        graph = jali.graph(lambda: plan(x, y), lattice)
        graph.run()
        np.testing.assert_allclose(whole(y), right, atol=1e-11)

    jali.virtual_ranks(2, body)


@pytest.mark.parametrize("pieces", [1, 3])
def test_memory_of_a_plan_is_for_one_stream_after_the_other(pieces: int, device: str) -> None:
    def body() -> None:
        gpu = fake_cupy.use(device, current().rank)
        a = numbers((32, 32, 16), "complex128")
        parts = [spread(factor * a) for factor in range(1, 7)]
        gpu.synchronize()
        fake_cupy.wait()
        plan, found = fft.FftPlan(parts[0].layout, pieces=pieces, norm="ortho"), []
        for x in parts:
            with fake_cupy.another_stream():
                found.append(plan(x))
        fake_cupy.wait()
        gpu.synchronize()
        right = np.fft.fftn(a, norm="ortho")
        for factor, y in enumerate(found, 1):
            np.testing.assert_allclose(whole(y), factor * right, atol=1e-9)

    jali.virtual_ranks(2, body)


def _refused(*_: Any) -> Any:
    raise AssertionError("a copy to the host")


def test_the_vendors_library_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    monkeypatch.setenv("JALI_FAKE_FFT_LOG", str(log))

    def body() -> None:
        fake_cupy.use("cuda", current().rank)
        fft.fftn(spread(numbers((4, 4), "complex64")))
        fake_cupy.wait()

    jali.virtual_ranks(2, body)
    assert log.read_text().count("cufftExecC2C") == 4
    log.unlink()
    vendors.use_file("cufft", "/nowhere/libcufft.so")
    jali.virtual_ranks(2, body)
    assert not log.exists() or "Exec" not in log.read_text()  # plans of before may go


def test_all_ranks_hear_of_a_rank_whose_library_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_FFT_FAIL", "cufftExecC2C:6")

    def body() -> None:
        fake_cupy.use("cuda", current().rank)
        fft.fftn(spread(numbers((4, 4), "complex64")))

    with pytest.raises(DeviceError, match=r"cufftExecC2C \(.*\) failed with code 6: CUFFT_EXEC_FAILED"):
        jali.virtual_ranks(2, body)


@pytest.mark.short(2)
@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (1, 1, 3), (2, 2, 1)], ids=str)
def test_fields_stay_on_their_devices(grid: tuple[int, ...], device: str) -> None:
    def body() -> None:
        rank = current().rank
        fake_cupy.use(device, rank)
        lattice = Lattice(4, 5, 6, grid=grid, device=f"{device}:{rank}")
        for element, wanted in (
            (Complex(), Complex()),
            (Real(), Complex()),
            (Vector(3), Vector(3)),
            (Matrix(2, 3), Matrix(2, 3)),
            (Spinor(2), Spinor(2)),
        ):
            f = Field(lattice, element)
            f[...] = numbers(f.shape, str(f.dtype))
            before = fake_cupy.copies_to_host()
            g = fft.fftn(f, norm="ortho")
            back = fft.ifftn(g, norm="ortho")
            assert fake_cupy.copies_to_host() == before
            assert isinstance(g, Field)
            assert g.element == wanted
            np.testing.assert_allclose(g[...], np.fft.fftn(f[...], axes=(0, 1, 2), norm="ortho"), atol=1e-12)
            np.testing.assert_allclose(back[...], f[...], atol=1e-12)
        local = fake_cupy.there(numbers((*lattice.local_extents, 2), "complex64", rank))
        f = lattice.wrap(local)
        assert fft.array_of(f).local is local
        out = Field(lattice, Vector(2), "float32")
        assert fft.fft(f, axis=0, out=out) is out
        np.testing.assert_allclose(out[...], np.fft.fft(f[...], axis=0), atol=1e-4)

    jali.virtual_ranks(math.prod(grid), body)


def test_fields_on_a_colour_have_zeros_elsewhere(device: str) -> None:
    fake_cupy.use(device, 0)
    lattice = Lattice(4, 6, device=device)
    even = Field(lattice, Complex(), over=jali.EVEN)
    even[...] = numbers((4, 6), "complex128")
    found = fft.fftn(even)
    assert found.over is jali.ALL
    assert np.allclose(found[...], np.fft.fftn(even[...]))


def test_fields_of_a_device_need_a_library_of_arrays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArrayNamespace, "installed", property(lambda self: False))
    lattice = Lattice(4, 4, device="cuda")
    with pytest.raises(
        ParameterError, match="is on a device, where transforms are of arrays of CuPy or PyTorch"
    ):
        fft.fftn(Field(lattice, Complex()))


GRAPHS = [
    ("fft", 1, (4, 5, 6), {}, "natural"),
    ("fft", 2, (4, 5, 6), {}, "transposed"),
    ("ifft", 3, (7, 5, 4), {"axis": 1}, "natural"),
    ("fft", 4, (4, 6, 5), {"axis": (0, 1), "grid": (2, 2)}, "natural"),
    ("rfft", 2, (4, 5, 6), {}, "natural"),
    ("irfft", 2, (4, 5, 6), {}, "natural"),
    ("fft", 2, (24,), {}, "natural"),  # four steps
]


@pytest.mark.parametrize("case", GRAPHS, ids=str)
def test_graphs_repeat_transforms(case: Any, device: str) -> None:
    kind, ranks, shape, split, result = case

    def body() -> None:
        rank = current().rank
        fake_cupy.use(device, rank)
        lattice = Lattice(4, 4, grid=(1, ranks) if ranks != 3 else (1, 3), device=f"{device}:{rank}")
        dtype = "float64" if kind == "rfft" else "complex128"
        a = [numbers(shape, dtype, seed) for seed in range(3)]
        if kind == "irfft":
            a = [np.fft.rfftn(np.fft.irfftn(one)) for one in a]  # spectra of real numbers
        x = spread(a[0], **split)
        plan = fft.FftPlan(x.layout, kind=kind, norm="ortho", result=result)
        out = plan(x)
        out.local[...] = 7.0
        graph = jali.graph(lambda: plan(x, out), lattice)
        assert np.all(whole(out) == 7.0)  # nothing has been done
        for one in (a[1], a[2]):
            x.local[...] = spread(one, **split).local  # on the stream of the arrays' library
            before = fake_cupy.copies_to_host()
            graph.run()
            assert fake_cupy.copies_to_host() == before
            wanted = getattr(np.fft, f"{kind}n")(one, norm="ortho")
            np.testing.assert_allclose(whole(out), wanted, atol=1e-11)
            np.testing.assert_allclose(whole(plan(x)), wanted, atol=1e-11)  # beside the graph
        vendors.find(LIBRARY[device]).forget()  # the graph has its own
        out.local[...] = 7.0
        graph.run(2)
        np.testing.assert_allclose(whole(out), wanted, atol=1e-11)

    jali.virtual_ranks(ranks, body)


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_graphs_transform_fields_between_their_kernels(grid: tuple[int, ...]) -> None:
    @jali.site_function
    def double(X: Any, f: Any) -> None:
        f[X] = 2.0 * f[X]

    def body() -> None:
        rank = current().rank
        fake_cupy.use("cuda", rank)
        lattice = Lattice(4, 6, grid=grid, device=f"cuda:{rank}")
        f, g = Field(lattice, Vector(2)), Field(lattice, Vector(2))
        a = numbers(f.shape, "complex128")
        f[...] = a

        def step() -> None:
            double(f)
            fft.fftn(f, norm="ortho", out=g)
            double(g)

        graph = jali.graph(step, lattice)
        assert np.array_equal(f[...], a)
        graph.run(2)
        np.testing.assert_allclose(f[...], 4 * a)
        np.testing.assert_allclose(g[...], 8 * np.fft.fftn(a, axes=(0, 1), norm="ortho"), atol=1e-11)

    jali.virtual_ranks(math.prod(grid), body)


def test_redistributions_of_arrays_are_recorded() -> None:
    def body() -> None:
        rank = current().rank
        fake_cupy.use("cuda", rank)
        lattice = Lattice(4, 4, grid=(1, 2), device=f"cuda:{rank}")
        a, b = numbers((4, 6), "float64"), numbers((4, 6), "float64", 1)
        x = spread(a)
        exchange = BoxExchange(current(), x.layout.boxes, layout_of(current(), (4, 6), axis=1).boxes)
        out = exchange.run(x.local)
        graph = jali.graph(lambda: exchange.run(x.local, out), lattice)
        x.local[...] = spread(b).local
        fake_cupy.wait()
        graph.run()
        lattice.gpu.synchronize()
        assert np.array_equal(fake_cupy.asnumpy(out), b[:, 3 * rank : 3 * rank + 3])

    jali.virtual_ranks(2, body)


def test_what_graphs_cannot_have_is_refused() -> None:
    fake_cupy.use("cuda", 0)
    lattice = Lattice(4, 4, device="cuda")
    x, f = spread(numbers((4, 4), "complex64")), Field(lattice, Complex())
    half = spread(numbers((4, 4), "float64"))
    shifted = fft.FftPlan(x.layout, shift_after=(0,))
    real = fft.FftPlan(half.layout, kind="rfft")
    y, host = real(half), DistributedArray((4, 4), dtype="complex64")
    host[:] = 1
    for call, words in (
        (
            lambda: fft.fftn(x, provider="cupy"),
            "a Fourier transform by cupy, which allocates .* give provider= cufft",
        ),
        (lambda: shifted(x), "that makes new arrays on the way .transform along axes"),
        (
            lambda: fft.fftn(host),
            "a Fourier transform of arrays on the host, which takes the host, is called",
        ),
        (lambda: real.adjoint(y), "the adjoint of a transform of real numbers is taken"),
        (lambda: fft.fftshift_nd(x), "an array is shifted"),
        (lambda: fft.fftn(f), "a field is made while a graph is recorded"),
    ):
        with pytest.raises(RecordingError, match=words):
            jali.graph(call, lattice)
    other = Lattice(4, 4, device="cuda:1")
    with pytest.raises(RecordingError, match="which is not the device of the graph"):
        jali.graph(lambda: fft.fftn(x), other)
