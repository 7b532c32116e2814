"""`jali bench fft --device`: transforms of arrays on devices beside their parts and the library of the arrays."""

from __future__ import annotations

import collections
import re
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali.bench import fft, fft_one_process, fft_report
from jali.bench.fft_one_process import ONE_PROCESS
from jali.comm import DeviceArray
from jali.errors import ParameterError, RankError
from jali.fft.one_process import SpreadPlan

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    use_fake_gpus(monkeypatch, 2)
    with fake_cupy.installed(fake_driver) as module:
        yield module


@pytest.mark.full
@pytest.mark.parametrize("number", [1, 2])
def test_devices_are_measured_beside_the_sum_of_the_parts(number: int) -> None:
    def body() -> fft.Report:
        ranks = jali.comm.current()
        gpu = fake_cupy.use("cuda", ranks.rank)
        x = fft.make_array(ranks, (4, 4, 4), "complex64", None, gpu, None)
        assert isinstance(x.local, fake_cupy.ndarray)
        assert fft.chosen(x, ()) == ["cufft", "cupy"]
        return fft.measure(ranks, x, ["cufft", "cupy"], pieces=2, rounds=1, seconds=0.001)

    report = jali.virtual_ranks(number, body)[0]
    assert report.on_device
    cells = {cell.case: set(cell.timings) for cell in report.cells}
    if number == 1:
        assert cells["natural"] == {"cufft", "cupy", "cupy.fft itself"}
        assert "exchanges" not in cells
        assert fft_report.judge(report) == []
    else:
        for case in fft.UNSCALED.values():
            assert cells[case] == cells["transposed"]
            (why,) = report.cell(case).missing.values()
            assert re.search(r"cufftMakePlan3d .4 x 4 x 4 numbers on 2 devices. .*INVALID_SIZE", why)
        assert cells["transposed"] == {"cufft", "cufft in 2 pieces", "cupy", "cupy in 2 pieces"}
        assert cells["exchanges"] == cells["local transforms"] == {"cufft", "cupy"}
        assert [v.asks.partition(":")[0] for v in fft_report.judge(report)] == ["cufft", "cupy"]


def measured(dims: tuple[int, ...], dtype: str = "complex64", **named: Any) -> fft.Report:
    """By two ranks."""

    def body() -> fft.Report:
        ranks = jali.comm.current()
        gpu = fake_cupy.use("cuda", ranks.rank)
        x = fft.make_array(ranks, dims, dtype, None, gpu, None)
        return fft.measure(ranks, x, ["cufft"], pieces=2, rounds=3, seconds=0.001, **named)

    first, second = jali.virtual_ranks(2, body)
    assert fft_report.as_json(first)["cells"] == fft_report.as_json(second)["cells"]
    return first


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_one_process_has_all_devices(dtype: str, tmp_path: Path) -> None:
    reported: list[str] = []
    report = measured(
        (32, 33, 32), dtype, progress=lambda cell, r: reported.append(fft_report.case_text(cell, r))
    )
    for case in fft.UNSCALED.values():
        cell = report.cell(case)
        assert set(cell.timings) == {"cufft", "cufft in 2 pieces", ONE_PROCESS}
        assert not cell.missing
        assert len(cell.timings[ONE_PROCESS].seconds) >= 3
        assert min(cell.timings[ONE_PROCESS].seconds) > 0
    assert re.search(r"^transposed, not scaled .*  cuFFT, one process +[0-9.]+ ..s? .*GFLOP/s", reported[-2])
    assert re.search(
        r"^cufft, natural, not scaled: [0-9.]+ times as fast as cuFFT, one process$",
        fft_report.summary(report),
        re.MULTILINE,
    )
    fft_report.write_csv(report, tmp_path / "fft.csv")
    assert '\n"natural, not scaled","cuFFT, one process",' in (tmp_path / "fft.csv").read_text()


@pytest.mark.full
def test_numbers_are_loaded_again_before_they_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, largest = [], []
    load, copy_to_host = SpreadPlan.load, SpreadPlan.copy_to_host
    close = SpreadPlan.close

    def at_last(plan: SpreadPlan) -> None:
        if plan._parts:
            out = np.empty(plan.extents, plan.dtype)
            copy_to_host(plan, out)
            largest.append(float(np.abs(out).max()))
        close(plan)

    monkeypatch.setattr(SpreadPlan, "load", lambda plan, x: (loads.append(1), load(plan, x)))
    monkeypatch.setattr(SpreadPlan, "close", at_last)
    measured((32, 32, 32))
    assert len(loads) == 2  # to be compared, and for 13 trips, of which 12 are made
    assert np.isfinite(largest).all()
    assert largest[0] > 2.0**60
    monkeypatch.setattr(fft_one_process, "EXPONENTS", {"complex64": (-100, 0)})
    loads.clear()
    measured((32, 32, 32))
    assert len(loads) == 4  # for 5 trips each


@pytest.mark.full
def test_wrong_results_of_one_process_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpreadPlan, "to_natural", lambda plan: None)
    with pytest.raises(RankError, match="cuFFT, one process: a transform in natural order is off by"):
        measured((32, 32, 32))


@pytest.mark.full
def test_what_has_no_room_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs = fft._needs
    monkeypatch.setattr(fft, "_needs", lambda x: needs(x) << 24)
    report = measured((4, 4, 4))
    assert [cell.case for cell in report.cells] == [*fft.CASES, *fft.UNSCALED.values()]
    for cell in report.cells:
        assert not cell.timings
        why = r"no room: about [0-9.]+ GiB are needed on a device, [0-9.]+ MiB are free"
        assert re.fullmatch(why, cell.missing["cufft"])
    assert re.search(
        "^transposed +cufft not measured: no room", fft_report.case_text(report.cells[0], report)
    )
    assert not fft_report.judge(report)
    fft_report.summary(report)
    fft_report.write_plot(report, tmp_path / "fft.png")
    fft_report.write_csv(report, tmp_path / "fft.csv")
    assert "# natural, cufft not measured: no room" in (tmp_path / "fft.csv").read_text()
    found = fft_report.as_json(report)["cells"][0]
    assert found["cufft"]["not_measured"].startswith("no room")
    monkeypatch.setattr(fft, "_needs", needs)
    monkeypatch.setattr(fft_one_process, "ARRAYS", 1 << 20)
    report = measured((32, 32, 32))
    assert report.cells[-1].missing[ONE_PROCESS].startswith("no room: about")


@pytest.mark.full
def test_a_side_has_memory_while_it_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that live at any time are those of one side, and not more than it said before."""
    alive, most = collections.defaultdict(int), collections.defaultdict(int)
    empty, of_jali, allocated = fake_cupy.empty, DeviceArray.empty, 0

    def count(memory: Any, nbytes: int) -> None:
        nonlocal allocated
        ordinal = memory.gpu.ordinal
        allocated += nbytes
        alive[ordinal] += nbytes
        most[ordinal] = max(most[ordinal], alive[ordinal])
        weakref.finalize(memory, lambda: alive.__setitem__(ordinal, alive[ordinal] - nbytes))

    def counted(shape: Any, dtype: Any = float) -> Any:
        found = empty(shape, dtype)
        fake_cupy._all.remove(found.memory)  # which would keep it
        count(found.memory, found.nbytes)
        return found

    def counted_pieces(gpu: Any, shape: Any, dtype: Any, label: str = "array") -> Any:
        found = of_jali(gpu, shape, dtype, label)
        if label == "pieces of arrays":
            count(found, found.nbytes)
        return found

    monkeypatch.setattr(DeviceArray, "empty", counted_pieces)
    monkeypatch.setattr(fake_cupy, "empty", counted)
    monkeypatch.setattr(sys.modules["cupy"], "empty", counted)
    needs = []
    said = fft._needs
    monkeypatch.setattr(fft, "_needs", lambda x: needs.append(said(x) + x.local.nbytes) or said(x))
    report = measured((8, 8, 6))
    assert all(not cell.missing.get("cufft") for cell in report.cells)
    assert all(0.3 * needs[0] < most[ordinal] <= needs[0] for ordinal in range(2))
    assert allocated > 10 * needs[0]
    visits = 2 * fft.VISITS * (2 * 5 + 2)  # of ranks, to both sides for five cases and to one for its parts
    assert [sys.modules["cupy"].freed.count(what) for what in ("plans", "blocks")] == [visits] * 2


def test_devices_need_a_library_of_arrays_and_are_not_compared_with_libraries_of_hosts() -> None:
    ranks = jali.comm.current()
    gpu = fake_cupy.use("cuda", 0)
    x = fft.make_array(ranks, (4, 4), "complex64", None, gpu, "cupy")
    with pytest.raises(ParameterError, match="it transforms arrays of NumPy, not on devices"):
        fft.measure(ranks, x, ["cufft"], "mpi4py-fft")
    with pytest.raises(ParameterError, match="engine 'torch' is not installed|engine 'pigeon' is none"):
        fft.make_array(ranks, (4, 4), "complex64", None, gpu, "pigeon")
