"""Post-stack inversion, multi-dimensional deconvolution and denoising give what serial pylops gives, find what was hidden, and give the
same on any number of ranks."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.examples import EXAMPLES, Found, Options, denoising, mdd, poststack, verdicts

NAMES = ("poststack", "mdd", "denoising")


@functools.cache
def run(name: str, ranks: int) -> tuple[Found, ...]:
    """On virtual ranks."""
    for package in EXAMPLES[name].needs:
        pytest.importorskip(package)
    module = EXAMPLES[name].load()
    return tuple(comm.virtual_ranks(ranks, lambda: module.solve(module.SIZES["small"], Options())))


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_what_it_should(name: str) -> None:
    for package in EXAMPLES[name].check_needs:
        pytest.importorskip(package)
    module = EXAMPLES[name].load()
    (found,) = run(name, 1)
    entries = verdicts(found.numbers, module.expected(module.SIZES["small"], found))
    assert any("- py" in entry.name for entry in entries)
    assert all(entry.holds for entry in entries), entries
    assert json.loads(json.dumps([vars(entry) for entry in entries]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_number_of_ranks_gives_the_same(name: str, ranks: int) -> None:
    (alone,) = run(name, 1)
    for found in run(name, ranks):
        assert found.numbers == pytest.approx(alone.numbers, rel=1e-9)
        for what, series in alone.series.items():
            np.testing.assert_allclose(found.series[what], series, rtol=1e-9)
        for what, array in alone.arrays.items():
            np.testing.assert_allclose(found.arrays[what], array, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [*NAMES, "lsm"])
def test_tensors_give_the_same(name: str) -> None:
    pytest.importorskip("torch")
    module = EXAMPLES[name].load()
    p, (alone,) = module.SIZES["small"], run(name, 1)
    for found in comm.virtual_ranks(2, lambda: module.solve(p, Options("torch"))):
        assert found.numbers == pytest.approx(alone.numbers, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_picture(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    EXAMPLES[name].load().draw(run(name, 1)[0], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "array", "failing"),
    [
        ("poststack", "inverse", "inverse - pylops"),
        ("mdd", "inverse", "inverse - pylops"),
        ("mdd", "up", "up - convolution in time"),
        ("denoising", "denoised", "denoised - pyproximal"),
    ],
)
def test_a_check_notices_what_is_wrong(name: str, array: str, failing: str) -> None:
    for package in EXAMPLES[name].check_needs:
        pytest.importorskip(package)
    module = EXAMPLES[name].load()
    (found,) = run(name, 1)
    arrays = found.arrays | {array: found.arrays[array] * 1.002}
    wrong = replace(found, arrays=arrays)
    entries = verdicts(wrong.numbers, module.expected(module.SIZES["small"], wrong))
    assert [entry.name for entry in entries if not entry.holds] == [failing]


def test_a_gap_that_is_too_small_for_the_energy_is_noticed() -> None:
    for package in EXAMPLES["denoising"].check_needs:
        pytest.importorskip(package)
    p = replace(denoising.SIZES["small"], iterations=10)
    found = comm.virtual_ranks(1, lambda: denoising.solve(p, Options()))[0]
    failing = {
        entry.name for entry in verdicts(found.numbers, denoising.expected(p, found)) if not entry.holds
    }
    assert "gap" in failing  # ten iterations are too few


@pytest.mark.parametrize(
    ("make", "extent"),
    [
        (lambda first, count: poststack.impedance(poststack.SIZES["small"], first, count), 10),
        (lambda first, count: poststack.noise(poststack.SIZES["small"], first, count), 10),
        (lambda first, count: denoising.volume(denoising.SIZES["small"], first, count), 20),
        (lambda first, count: denoising.noise(denoising.SIZES["small"], first, count), 20),
    ],
    ids=["impedance", "its noise", "volume", "its noise too"],
)
def test_parts_of_models_are_those_of_the_whole(make: Any, extent: int) -> None:
    np.testing.assert_array_equal(
        make(0, extent), np.concatenate([make(0, 3), make(3, 0), make(3, extent - 3)])
    )


@pytest.mark.parametrize(
    ("module", "extents"),
    [
        (poststack, {"crosslines": 3}),
        (mdd, {"receivers": 4, "sources": 5, "thinned": 9}),
        (denoising, {"points": 8}),
    ],
    ids=NAMES,
)
def test_there_may_be_more_ranks_than_work(module: Any, extents: dict[str, int]) -> None:
    """Ranks without a crossline, and one virtual source."""
    for package in ("pylops", "pyproximal"):
        pytest.importorskip(package)
    p = replace(module.SIZES["small"], **extents)
    found = comm.virtual_ranks(4, lambda: module.solve(p, Options()))[0]
    for entry in verdicts(found.numbers, module.expected(p, found)):
        assert entry.holds or "- py" not in entry.name, entry


def test_means_of_neighbours_leave_straight_lines_as_they_are() -> None:
    line = np.arange(20.0)[None]
    np.testing.assert_allclose(poststack.smoothed(line, 3)[0, 3:-3], line[0, 3:-3])
    np.testing.assert_allclose(poststack.smoothed(line, 1)[0, :2], [1 / 3, 1])


def test_waves_from_above_arrive_when_they_should() -> None:
    """The direct wave over a source, after its way of 30 m, and each echo 240 m later and weaker."""
    p = mdd.SIZES["small"]
    wave = np.fft.irfft(
        mdd.down(p, np.fft.rfftfreq(p.times, mdd.INTERVAL))[:, p.sources // 2, p.receivers // 2], p.times
    )
    for echo in range(3):
        distance = mdd.DEPTH - mdd.SOURCE_DEPTH + 2 * mdd.DEPTH * echo
        sample = distance / mdd.VELOCITY / mdd.INTERVAL
        peak = mdd.ECHO**echo / np.sqrt(distance / mdd.DEPTH)
        near = wave[int(sample) - 1 : int(sample) + 3]
        assert abs(abs(near).max() / abs(peak) - 1) < 0.1, echo
        assert np.sign(near[abs(near).argmax()]) == np.sign(peak)
