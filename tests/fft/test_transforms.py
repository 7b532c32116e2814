"""Transforms of distributed arrays on 1 to 4 virtual ranks against numpy.fft on the whole array."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

from jali import comm, fft
from jali.arrays import DistributedArray, Partition, layout_of
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.fft.providers import PROVIDERS
from jali.fft.routes import cut_in_two, is_whole

RANKS = [1, 2, 3, 4]
SHAPES = [
    (1,),
    (2,),
    (7,),
    (13,),
    (36,),
    (64,),
    (5, 7),
    (12, 1),
    (2, 3),
    (3, 4, 5),
    (8, 2, 7),
    (13, 2, 1),
    (2, 3, 2, 5),
]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def close(dtype: Any) -> dict[str, float]:
    return (
        {"rtol": 1e-4, "atol": 1e-4}
        if np.dtype(dtype).name in ("float32", "complex64")
        else {"rtol": 1e-11, "atol": 1e-11}
    )


def splits(ndim: int) -> list[tuple[int, ...]]:
    return [(k,) for k in range(ndim)] + list(itertools.combinations(range(ndim), 2))


def axes_of(ndim: int) -> list[tuple[int, ...]]:
    every = [tuple(range(ndim))] if ndim > 2 else []
    return [(k,) for k in range(ndim)] + list(itertools.permutations(range(ndim), 2)) + every


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_axis_and_pair_of_every_split(ranks: int, shape: tuple[int, ...]) -> None:
    a, b = numbers(shape, "float64"), numbers(shape, "complex128", 1)
    cases = list(itertools.product(splits(len(shape)), axes_of(len(shape))))[:: max(1, 2 * len(shape) - 5)]

    def run() -> None:
        for number, (split, axes) in enumerate(cases):
            layout = ("natural", "transposed")[number % 2]
            x, z = (DistributedArray.to_dist(v, axis=split) for v in (a, b))
            for name, from_, given in (("fftn", z, b), ("ifftn", z, b), ("rfftn", x, a)):
                y = getattr(fft, name)(from_, axes=axes, layout=layout)
                right = getattr(np.fft, name)(given, axes=axes)
                np.testing.assert_allclose(
                    y.asarray(), right, **close("float64"), err_msg=f"{name} {split} {axes} {layout}"
                )
                if layout == "natural":
                    assert (y.layout.axes, y.layout.grid) == (x.layout.axes, x.layout.grid)
                    assert name == "rfftn" or y.layout is z.layout
            back = fft.irfftn(y, [shape[k] for k in axes], axes=axes, layout=layout)
            np.testing.assert_allclose(
                back.asarray(), a, **close("float64"), err_msg=f"irfftn {split} {axes} {layout}"
            )
            np.testing.assert_array_equal(z.asarray(), b)  # nobody wrote to it

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32", "float16"])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_types_and_norms(ranks: int, dtype: str, norm: str) -> None:
    a = (
        numbers((12, 5, 4), dtype)
        if np.dtype(dtype).kind != "i"
        else np.arange(240, dtype=dtype).reshape(12, 5, 4) % 7
    )

    def run() -> None:
        single = dtype in ("float16", "float32", "complex64")
        wide = a.astype("complex128")
        x = DistributedArray.to_dist(a, axis=1)
        for name in ("fftn", "ifftn"):
            y = getattr(fft, name)(x, norm=norm)
            assert y.dtype == ("complex64" if single else "complex128")
            np.testing.assert_allclose(
                y.asarray(),
                getattr(np.fft, name)(wide, norm=norm),
                **close("float32" if single else "float64"),
                err_msg=name,
            )
        if np.dtype(dtype).kind != "c":
            y = fft.rfftn(x, norm=norm)
            np.testing.assert_allclose(
                y.asarray(), np.fft.rfftn(wide.real, norm=norm), **close("float32" if single else "float64")
            )
            back = fft.irfftn(y, a.shape, norm=norm)
            assert back.dtype == ("float32" if single else "float64")
            np.testing.assert_allclose(back.asarray(), wide.real, **close("float32" if single else "float64"))

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("n", [1, 2, 3, 30, 49, 60, 97, 128, 144, 210])
def test_one_dimension(ranks: int, n: int) -> None:
    a = numbers((n,), "complex128")

    def run() -> None:
        x = DistributedArray.to_dist(a)
        y = fft.fft(x)
        assert y.layout is x.layout
        np.testing.assert_allclose(y.asarray(), np.fft.fft(a), **close("float64"))
        np.testing.assert_allclose(fft.ifft(y).asarray(), a, **close("float64"))
        np.testing.assert_allclose((y.norm() ** 2 / n), x.norm() ** 2, rtol=1e-12)  # Parseval
        z = fft.rfft(x.real)
        np.testing.assert_allclose(z.asarray(), np.fft.rfft(a.real), **close("float64"))
        np.testing.assert_allclose(fft.irfft(z, n).asarray(), a.real, **close("float64"))

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_extents_that_are_cut_or_filled(ranks: int) -> None:
    a, b = numbers((6, 7), "float64"), numbers((6, 7), "complex128", 1)

    def run() -> None:
        for split in splits(2) if ranks == 4 else [(0,)]:
            x, z = (DistributedArray.to_dist(v, axis=split) for v in (a, b))
            for n in (1, 6, 8, 13):
                for axis in (0, 1):
                    for name, from_, given in (
                        ("fft", z, b),
                        ("ifft", z, b),
                        ("rfft", x, a),
                        ("irfft", z, b),
                    ):
                        found = getattr(fft, name)(from_, n, axis)
                        right = getattr(np.fft, name)(given, n, axis)
                        np.testing.assert_allclose(
                            found.asarray(), right, **close("float64"), err_msg=f"{name} {n} {axis}"
                        )
            for s in ((3, 9), (8, 5)):
                for name, from_, given in (
                    ("fft2", z, b),
                    ("ifft2", z, b),
                    ("rfft2", x, a),
                    ("irfft2", z, b),
                ):
                    found = getattr(fft, name)(from_, s)
                    np.testing.assert_allclose(
                        found.asarray(), getattr(np.fft, name)(given, s), **close("float64"), err_msg=name
                    )
            np.testing.assert_allclose(fft.irfft(z).asarray(), np.fft.irfft(b), **close("float64"))
            np.testing.assert_allclose(
                fft.fftn(z, 4).asarray(), np.fft.fftn(b, (4,), axes=(1,)), **close("float64")
            )

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize("result", ["natural", "transposed"])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_inverse_and_adjoint_of_a_plan(kind: str, result: str, norm: str) -> None:
    def inner(x: DistributedArray, y: DistributedArray) -> float:
        return float(np.vdot(x.asarray(), y.asarray()).real)

    def run(shape: tuple[int, ...], axes: tuple[int, ...], split: tuple[int, ...], n: int) -> None:
        layout = layout_of(comm.current(), shape, axis=split)
        plan = fft.FftPlan(layout, axes, kind, result=result, norm=norm, n=n if kind == "irfft" else None)
        x = DistributedArray((shape), axis=split, dtype="float64" if kind == "rfft" else "complex128")
        x.global_index[...] = numbers(shape, str(x.dtype))
        y = plan(x)
        assert y.layout is plan.result_layout
        v = y.copy()
        v.global_index[...] = numbers(y.global_shape, str(y.dtype), 2)
        np.testing.assert_allclose(inner(y, v), inner(x, plan.adjoint(v)), rtol=1e-11)
        if kind != "irfft":  # of which not everything is a spectrum
            np.testing.assert_allclose(plan.inverse(y).asarray(), x.asarray(), **close("float64"))
        np.testing.assert_allclose(plan(plan.inverse(y)).asarray(), y.asarray(), **close("float64"))

    for shape, axes, split, n in (
        ((6, 5, 7), (0, 1, 2), (0,), 12),
        ((6, 5, 7), (0, 2), (2,), 13),
        ((2, 5, 3), (0, 1), (0, 1), 8),
        ((31,), (0,), (0,), 60),
        ((7,), (0,), (0,), 13),
    ):
        comm.virtual_ranks(3 if len(split) == 1 else 4, run, shape, axes, split, n)


@pytest.mark.parametrize("workspace", [1, 100, 1000, 10**9])
def test_a_workspace_limit(workspace: int) -> None:
    a = numbers((6, 5, 8), "complex64")

    def run() -> None:
        for split, axes in (((0,), (0, 1, 2)), ((1, 2), (1, 2))):
            x = DistributedArray.to_dist(a, axis=split)
            y = fft.fftn(x, axes=axes, workspace=workspace)
            np.testing.assert_allclose(y.asarray(), np.fft.fftn(a, axes=axes), rtol=1e-3, atol=1e-3)
        plan = fft.FftPlan(x.layout, (1, 2), workspace=workspace)
        move = next(step for step in plan.steps if hasattr(step, "there"))
        rounds = move.there.rounds(8)
        largest = max(
            8 * sum(int(np.prod(shape)) for _, _, shape in [*one.sends, *one.receives]) for one in rounds
        )
        assert largest <= workspace or workspace < 64  # one element for each rank there is always
        assert len(rounds) == 1 or workspace < 10**9

    comm.virtual_ranks(4, run)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_plans_are_kept_and_write_into_the_given_array(ranks: int) -> None:
    a = numbers((8, 6, 5), "complex128")

    def run() -> None:
        x = DistributedArray.to_dist(a)
        plan = fft.FftPlan(x.layout, result="transposed")
        out = DistributedArray.of(plan.result_layout, np.empty(plan.result_layout.local_shape, "complex128"))
        local = out.local
        for _ in range(3):
            assert plan(x, out) is out
            assert out.local is local
            np.testing.assert_allclose(out.asarray(), np.fft.fftn(a), **close("float64"))
        first = plan(x)
        second = plan(2 * x)  # results are not what the plan keeps
        np.testing.assert_allclose(second.asarray(), 2 * first.asarray(), **close("float64"))
        plan(x, out, overwrite_x=True)
        np.testing.assert_allclose(out.asarray(), np.fft.fftn(a), **close("float64"))
        kept = x.communicator.kept["plans of transforms"] if fft.fftn(x) is not None else None
        count = len(kept)
        fft.fftn(x)
        assert len(kept) == count

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("pieces", [2, 3, 50])
def test_transforms_and_exchanges_in_pieces(ranks: int, pieces: int) -> None:
    def run() -> None:
        for shape, split in (
            ((8, 6, 5), (0,)),
            ((5, 3, 4), (0, 1)),
            ((2, 7, 3), (0,)),
            ((32, 16, 32), (0,)),
        ):
            a = numbers(shape, "complex64")
            x = DistributedArray.to_dist(a, axis=split)
            for result in ("natural", "transposed"):
                plan = fft.FftPlan(x.layout, result=result, pieces=pieces, norm="ortho")
                for overwrite in (False, False, True):
                    y = plan(x, overwrite_x=overwrite)
                    right = np.fft.fftn(a, norm="ortho")
                    np.testing.assert_allclose(y.asarray(), right, rtol=1e-4, atol=1e-4)
                    x = plan.inverse(y)
                    np.testing.assert_allclose(x.asarray(), a, rtol=1e-4, atol=1e-4)

    comm.virtual_ranks(ranks, run)


def test_a_piece_that_fails_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    a = numbers((32, 64, 32), "complex128")
    calls = threading.local()
    plain = PROVIDERS["scipy"].c2c

    def sometimes(*arguments: Any) -> Any:
        calls.left = getattr(calls, "left", 1000) - 1
        if calls.left == 0:
            raise MemoryError
        return plain(*arguments)

    monkeypatch.setattr(PROVIDERS["scipy"], "c2c", sometimes)

    def run() -> None:
        x = DistributedArray.to_dist(a)
        plan = fft.FftPlan(x.layout, result="transposed", pieces=3, provider="scipy")
        for left in (2, 3):
            calls.left = left
            with pytest.raises(MemoryError):
                plan(-x)
            np.testing.assert_allclose(plan(x).asarray(), np.fft.fftn(a), **close("float64"))

    comm.virtual_ranks(2, run)


def test_results_may_lie_where_numbers_came_from() -> None:
    """In the same memory, in part or as a whole, also where it has another layout afterwards."""

    def run(shape: tuple[int, ...], pieces: int, axes: tuple[int, ...]) -> None:
        a = numbers(shape, "complex128")
        right = np.fft.fftn(a, axes=axes)
        rank = comm.current().rank
        for result, overwrite, late in itertools.product(("natural", "transposed"), (False, True), (0, 1)):
            layout = layout_of(comm.current(), shape)
            plan = fft.FftPlan(layout, axes, result=result, pieces=pieces)
            there = plan.result_layout.local_shape
            memory = np.empty(np.prod(layout.local_shape) + rank * late, "complex128")
            x = DistributedArray.of(layout, memory[: np.prod(layout.local_shape)].reshape(layout.local_shape))
            y = DistributedArray.of(plan.result_layout, memory[rank * late :].reshape(there))
            x.local[...] = a[slice(*layout.box[0])]
            assert plan(x, y, overwrite) is y
            np.testing.assert_allclose(y.asarray(), right, **close("float64"))
            np.testing.assert_allclose(plan.inverse(y, x, overwrite).asarray(), a, **close("float64"))

    for shape in ((4, 8, 6), (64, 64, 40)):
        for pieces, axes in ((1, (0, 1, 2)), (3, (0, 1, 2)), (1, (0,)), (3, (1,)), (1, (1, 2))):
            comm.virtual_ranks(2, run, shape, pieces, axes)


@pytest.mark.parametrize("dtype", [">f4", ">c8", ">c16"])
def test_numbers_of_the_other_order_of_bytes(dtype: str) -> None:
    a = (
        numbers((6, 5), "complex128").astype(dtype)
        if "c" in dtype
        else numbers((6, 5), "float64").astype(dtype)
    )
    native = "complex128" if dtype == ">c16" else "complex64"

    def run() -> None:
        x = DistributedArray.to_dist(a)
        y = fft.fftn(x)
        assert y.dtype == native
        np.testing.assert_allclose(y.asarray(), np.fft.fftn(a), **close(native))
        out = DistributedArray.of(x.layout, np.empty(x.local_shape, ">c16"))
        fft.fftn(x, out=out)
        np.testing.assert_allclose(out.local, y.local, **close(native))

    comm.virtual_ranks(2, run)


def test_pieces_are_no_more_than_there_is_to_cut() -> None:
    a = numbers((8, 6, 5), "complex128")

    def run() -> None:
        x = DistributedArray.to_dist(a)
        plan = fft.FftPlan(x.layout, pieces=np.int64(10**12))
        np.testing.assert_allclose(plan(x).asarray(), np.fft.fftn(a), **close("float64"))
        with pytest.raises(ParameterError, match="whole number from 1, not True"):
            fft.FftPlan(x.layout, pieces=True)

    comm.virtual_ranks(2, run)


def test_exchanges_are_as_few_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def redistributions(plan: fft.FftPlan) -> int:
        return sum(hasattr(step, "there") for step in plan.steps)

    def run() -> None:
        c = comm.current()
        slab = layout_of(c, (16, 16, 16))
        assert redistributions(fft.FftPlan(slab, result="transposed")) == 1
        assert redistributions(fft.FftPlan(slab)) == 2
        assert redistributions(fft.FftPlan(slab, (1, 2))) == 0
        pencil = layout_of(c, (16, 16, 2), axis=(0, 1))
        assert redistributions(fft.FftPlan(pencil, result="transposed")) == 2
        flat = fft.FftPlan(layout_of(c, (256,)))
        assert redistributions(flat) == 3
        planes = fft.FftPlan(layout_of(c, (2, 16, 16)), result="transposed")
        assert 0 not in planes.result_layout.local_shape
        back = fft.FftPlan(
            fft.FftPlan(slab, result="transposed").result_layout, kind="ifft", result="transposed"
        )
        assert back.result_layout is slab
        assert is_whole(slab, 1)
        assert not is_whole(slab, 0)

    comm.virtual_ranks(4, run)
    assert cut_in_two(97, 4) is None
    assert cut_in_two(64, 4) == (8, 8)


def test_arrays_that_all_ranks_have_and_masks_and_uneven_parts() -> None:
    a = numbers((6, 5), "float64")

    def run() -> None:
        x = DistributedArray.to_dist(a, partition=Partition.BROADCAST)
        y = fft.rfftn(x)
        assert y.partition is Partition.BROADCAST
        np.testing.assert_allclose(y.local, np.fft.rfftn(a), **close("float64"))
        z = DistributedArray.to_dist(a, mask=[0, 1, 1])
        w = fft.fftn(z, layout="transposed")
        assert w.mask == [0, 1, 1]
        np.testing.assert_allclose(w.asarray(), np.fft.fftn(a), **close("float64"))
        u = DistributedArray.to_dist(a, local_shapes=[(0, 5), (5, 5), (1, 5)], mask=[0, 0, 1])
        v = fft.rfftn(u)
        assert v.local_shapes == [(0, 3), (5, 3), (1, 3)]
        assert v.mask == [0, 0, 1]
        np.testing.assert_allclose(v.asarray(), np.fft.rfftn(a), **close("float64"))

    comm.virtual_ranks(3, run)


@pytest.mark.parametrize("provider", ["scipy", "numpy", "pyfftw"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_providers(provider: str, dtype: str) -> None:
    if not PROVIDERS[provider].installed:
        pytest.skip(f"{provider} is not installed")
    a = numbers((6, 5, 9), dtype)

    def run() -> None:
        for norm in ("backward", "ortho", "forward"):
            x = DistributedArray.to_dist(a)
            for name in ("fftn", "ifftn", "rfftn"):
                y = getattr(fft, name)(x, norm=norm, provider=provider)
                np.testing.assert_allclose(
                    y.asarray(), getattr(np.fft, name)(a, norm=norm), **close(dtype), err_msg=name
                )
            back = fft.irfftn(y, a.shape, norm=norm, provider=provider)
            np.testing.assert_allclose(back.asarray(), a, **close(dtype))

    comm.virtual_ranks(2, run)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    a = numbers((6, 5, 9), "float64")

    def run() -> None:
        x = DistributedArray.to_dist(torch.from_numpy(a))
        for name in ("fftn", "rfftn"):
            y = getattr(fft, name)(x)
            assert y.engine == "torch"
            np.testing.assert_allclose(y.asarray().numpy(), getattr(np.fft, name)(a), **close("float64"))
        np.testing.assert_allclose(fft.irfftn(y, a.shape).asarray().numpy(), a, **close("float64"))
        flat = DistributedArray.to_dist(torch.from_numpy(a.reshape(-1)))
        np.testing.assert_allclose(
            fft.fft(flat).asarray().numpy(), np.fft.fft(a.reshape(-1)), **close("float64")
        )
        np.testing.assert_array_equal(fft.fftshift_nd(x).asarray().numpy(), np.fft.fftshift(a))

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_shifts_of_split_axes(ranks: int) -> None:
    def run() -> None:
        for shape in ((1,), (2,), (7,), (5, 6), (4, 3, 2)):
            a = numbers(shape, "complex64")
            for split in splits(len(shape)):
                x = DistributedArray.to_dist(a, axis=split)
                for axes in [None, *axes_of(len(shape))]:
                    y = fft.fftshift_nd(x, axes)
                    assert y.layout is x.layout
                    np.testing.assert_array_equal(y.asarray(), np.fft.fftshift(a, axes))
                    np.testing.assert_array_equal(
                        fft.ifftshift_nd(x, axes).asarray(), np.fft.ifftshift(a, axes)
                    )
                    np.testing.assert_array_equal(fft.ifftshift_nd(y, axes).asarray(), a)

    comm.virtual_ranks(ranks, run)


def test_what_makes_no_sense_is_refused() -> None:
    def run() -> None:
        x, z = DistributedArray((4, 5)), DistributedArray((4, 5), dtype="complex128")
        other = DistributedArray((4, 5), axis=1, dtype="complex128")
        plan = fft.FftPlan(z.layout)
        for call, error, words in (
            (lambda: fft.fft(x, axis=2), ShapeError, r"axis 2 does not exist in an array of shape \(4, 5\)"),
            (lambda: fft.fftn(x, axes=(0, -2)), ShapeError, "one occurs twice"),
            (lambda: fft.fftn(x, axes=()), ShapeError, "none is given"),
            (lambda: fft.fft(x, axis=1.5), ShapeError, "whole numbers, not 1.5"),
            (lambda: fft.FftPlan(z.layout, 1.5), ShapeError, "whole numbers, not 1.5"),
            (lambda: fft.FftPlan(z.layout, kind="irfft", n="a"), ShapeError, "8 or 9 real numbers, not of a"),
            (lambda: fft.FftPlan(z.layout, provider=["numpy"]), ParameterError, r"not \['numpy'\]"),
            (lambda: fft.FftPlan(z.layout, 0, shift_after=1), ShapeError, r"shifts along \(\) and \(1,\)"),
            (lambda: fft.fft(x, n=0), ShapeError, "a positive extent for each"),
            (lambda: fft.fftn(x, s=(1, 2, 3), axes=(0, 1)), ShapeError, "a positive extent for each"),
            (lambda: fft.rfft(z), ParameterError, "a transform of real numbers got complex128; take fft"),
            (
                lambda: fft.fft(x, norm="none"),
                ParameterError,
                "norm of a transform is one of backward, ortho",
            ),
            (
                lambda: fft.fft(x, layout="upside down"),
                ParameterError,
                "layout of a transform is one of natural",
            ),
            (lambda: fft.fft(x, workspace=0), ParameterError, "positive number of bytes, not 0"),
            (lambda: fft.fft(x, axis=0, workspace="much"), ParameterError, "number of bytes, not 'much'"),
            (
                lambda: fft.fft(z, out=x),
                ParameterError,
                "is complex, which an array of float64 does not hold",
            ),
            (lambda: fft.fft(x, provider="abacus"), ParameterError, "come from scipy.*not 'abacus'"),
            (
                lambda: fft.fft(x, provider="torch"),
                ParameterError,
                "torch transforms arrays of torch, this one is of numpy",
            ),
            (lambda: fft.fft(np.ones(4)), ParameterError, "not a ndarray: DistributedArray.to_dist"),
            (lambda: fft.fft(x.astype("longdouble")), ParameterError, "single or double precision, not of"),
            (lambda: fft.fft(DistributedArray((0, 3)), axis=0), ShapeError, "no elements along an axis"),
            (lambda: fft.FftPlan(z.layout, pieces=0), ParameterError, "whole number from 1, not 0"),
            (lambda: fft.FftPlan(z.layout, kind="dct"), ParameterError, "kind of a transform is one of fft"),
            (
                lambda: fft.FftPlan(z.layout, kind="irfft", n=7),
                ShapeError,
                "are those of 8 or 9 real numbers, not of 7",
            ),
            (
                lambda: fft.FftPlan(z.layout, (0,), shift_after=(1,)),
                ShapeError,
                r"shifts along \(\) and \(1,\)",
            ),
            (lambda: plan(other), LayoutError, "planned for .* got .*along axis 1"),
            (lambda: plan(z, other), LayoutError, "the result of a transform that is planned"),
            (lambda: fft.fftshift_nd(x, 3), ShapeError, "axis 3 does not exist"),
        ):
            with pytest.raises(error, match=words):
                call()

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_an_extent_of_minus_1_is_that_of_the_array(ranks: int) -> None:
    real, z = numbers((4, 6, 5), "float64"), numbers((4, 6, 5), "complex128")

    def run() -> None:
        for axis in range(3):
            x, y = DistributedArray.to_dist(real, axis=axis), DistributedArray.to_dist(z, axis=axis)
            for name, array, s, axes in (
                ("fftn", y, (-1, 3), (0, 1)),
                ("ifft2", y, (7, -1), (0, 2)),
                ("rfftn", x, (-1, -1, 4), None),
                ("rfft2", x, (3, -1), (1, 0)),
                ("irfftn", y, (3, -1), (0, 1)),
                ("irfft2", y, (-1, 8), (0, 1)),
            ):
                found = getattr(fft, name)(array, s=s, axes=axes or (0, 1, 2))
                expected = getattr(np.fft, name)(array.asarray(), s=s, axes=axes or (0, 1, 2))
                np.testing.assert_allclose(found.asarray(), expected, rtol=0, atol=1e-12)
        for s in ((-2, 3), (0, 3), (-1,)):
            with pytest.raises(ShapeError, match="has a positive extent for each, or -1 for that of x"):
                fft.fftn(y, s=s, axes=(0, 1))
        with pytest.raises(ShapeError, match="n of a transform is positive, not -1"):  # as NumPy has it
            fft.fft(y, n=-1)

    comm.virtual_ranks(ranks, run)


def test_plans_take_what_they_use() -> None:
    layout = layout_of(comm.current(), (4, 6))
    for kind in ("fft", "ifft", "rfft"):
        with pytest.raises(
            ParameterError, match=f"n=12 is of kind irfft alone, {kind} transforms the extents"
        ):
            fft.FftPlan(layout, axes=(1,), kind=kind, n=12)
    assert fft.FftPlan(layout, axes=(1,), kind="irfft", n=10).result_layout.shape == (4, 10)
    with pytest.raises(ParameterError, match=r"a plan is of a layout, such as x.layout .* not of \(4, 6\)"):
        fft.FftPlan((4, 6))  # type: ignore[arg-type]


def test_options_are_documented_and_others_refused() -> None:
    x = DistributedArray.to_dist(numbers((4, 6), "complex128"))
    for name in ("fft", "ifft", "irfft", "fft2", "irfft2", "fftn", "ifftn", "irfftn"):
        text = getattr(fft, name).__doc__
        for option in ("layout", "workspace", "provider", "out", "overwrite_x"):
            assert f"`{option}`" in text
        with pytest.raises(
            ParameterError, match="no option pieces: a jali.fft.FftPlan does; its options are layout, "
        ):
            getattr(fft, name)(x, pieces=2)
        with pytest.raises(ParameterError, match="no option colour; its options are layout"):
            getattr(fft, name)(x, colour=2)
