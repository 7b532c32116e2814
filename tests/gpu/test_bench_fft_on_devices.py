"""`jali bench fft --device`: transforms of arrays on devices beside their parts and the library of the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import pytest
from fake_driver import REAL, make_fake_fft

import jali
from jali.bench import fft, fft_report
from jali.errors import ParameterError
from jali.fft import vendors

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        vendors.use_file("cufft", str(make_fake_fft()))
        yield module
        vendors.use_file("cufft", None)


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
    cells = {cell.row: set(cell.timings) for cell in report.cells}
    if number == 1:
        assert cells["natural"] == {"cufft", "cupy", "cupy.fft itself"}
        assert "exchanges" not in cells
        assert fft_report.judge(report) == []
    else:
        assert cells["transposed"] == {"cufft", "cufft in 2 pieces", "cupy", "cupy in 2 pieces"}
        assert cells["exchanges"] == cells["local transforms"] == {"cufft", "cupy"}
        assert [v.asks.partition(":")[0] for v in fft_report.judge(report)] == ["cufft", "cupy"]


def test_devices_need_a_library_of_arrays_and_are_not_compared_with_libraries_of_hosts() -> None:
    ranks = jali.comm.current()
    gpu = fake_cupy.use("cuda", 0)
    x = fft.make_array(ranks, (4, 4), "complex64", None, gpu, "cupy")
    with pytest.raises(ParameterError, match="it transforms arrays of NumPy, not on devices"):
        fft.measure(ranks, x, ["cufft"], "mpi4py-fft")
    with pytest.raises(ParameterError, match="engine 'torch' is not installed|engine 'pigeon' is none"):
        fft.make_array(ranks, (4, 4), "complex64", None, gpu, "pigeon")
