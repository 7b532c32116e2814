"""The applications on devices: what the host gives, and what of it goes by way of the host while they run.

The fake CuPy refuses what would silently become an array of the host, and counts copies that are asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL

from jali import comm
from jali.examples import EXAMPLES, Found, Options, poststack

with contextlib.suppress(ImportError):
    import pylops  # noqa: F401 (which would look for parts of CuPy that the fake one has not)

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")

SMALLER: dict[str, dict[str, Any]] = {
    "lsm": {"iterations": 4},
    "poststack": {"iterations": 4},
    "mdd": {"iterations": 4},
    "denoising": {"iterations": 10},
    "turbulence": {"n": 16},
    "radio": {"pixels": 32, "times": 4, "steps": 5, "iterations": 4, "accuracy": 1e-12},
}


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        yield module


class OnHost:
    """An operator of pylops, which does not know this CuPy, for vectors of it."""

    def __init__(self, op: Any) -> None:
        self.op, self.shape, self.dtype = op, op.shape, op.dtype

    def matvec(self, x: Any) -> Any:
        return fake_cupy.there(self.op.matvec(x.plain.copy()))

    def rmatvec(self, x: Any) -> Any:
        return fake_cupy.there(self.op.rmatvec(x.plain.copy()))


def run(name: str, ranks: int, on_device: bool, **others: Any) -> list[tuple[Found, int]]:
    """What each rank finds, and how often it copied to the host."""
    if EXAMPLES[name].missing():
        pytest.skip(f"needs {', '.join(EXAMPLES[name].missing())}")
    module = EXAMPLES[name].load()
    p = replace(module.SIZES["small"], **(SMALLER[name] | others))

    def body() -> tuple[Found, int]:
        fake_cupy.use("cuda", comm.current().rank)
        if not on_device:
            return module.solve(p, Options()), 0
        before = fake_cupy.copies_to_host()
        return module.solve(p, Options("cupy", "cuda")), fake_cupy.copies_to_host() - before

    return list(comm.virtual_ranks(ranks, body))


@pytest.fixture(autouse=True)
def modelling_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    modelling = poststack.modelling

    def on_host(p: Any, count: int, samples: Any) -> Any:
        if isinstance(samples, np.ndarray):
            return modelling(p, count, samples)
        return OnHost(modelling(p, count, fake_cupy.asnumpy(samples)))

    monkeypatch.setattr(poststack, "modelling", on_host)


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", SMALLER)
def test_devices_give_what_the_host_gives(name: str, ranks: int) -> None:
    alone = run(name, 1, on_device=False)[0][0]
    for found, _ in run(name, ranks, on_device=True):
        assert found.numbers == pytest.approx(alone.numbers, rel=1e-9, abs=1e-12)
        for what, series in alone.series.items():
            np.testing.assert_allclose(found.series[what], series, rtol=1e-9, atol=1e-14)
        for what, array in alone.arrays.items():
            assert type(found.arrays[what]) is np.ndarray
            if ranks == 1 or what not in ("data", "uv"):
                np.testing.assert_allclose(found.arrays[what], array, rtol=1e-8, atol=1e-8)


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("lsm", 2), ("mdd", 2), ("poststack", 2), ("denoising", 1), ("denoising", 2), ("radio", 2)],
)
def test_iterations_copy_nothing_to_the_host_but_what_is_gridded_there(name: str, ranks: int) -> None:
    few, more = (
        [copies for _, copies in run(name, ranks, on_device=True, iterations=iterations)]
        for iterations in (10, 14)
    )
    # of radio images what ducc0 takes: an image and visibilities for each iteration
    expected = 8 if name == "radio" else 0
    assert [b - a for a, b in zip(few, more, strict=True)] == [expected] * ranks
