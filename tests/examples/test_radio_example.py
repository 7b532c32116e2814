"""The interferometer measures what a sum over pixels says, on any ranks, and the sky is found again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ducc0")

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.errors import ParameterError
from jali.examples import Found, Options, radio, verdicts
from jali.linops import VStack
from jali.linops.dot_test import dottest

SMALL = radio.SIZES["small"]
FEW = replace(SMALL, antennas=7, times=5, channels=2, pixels=32, accuracy=1e-12, iterations=4, steps=5)


def solved(p: radio.RadioParameters, ranks: int) -> list[Found]:
    return comm.virtual_ranks(ranks, lambda: radio.solve(p, Options()))


@pytest.fixture(scope="module")
def alone() -> Found:
    return solved(FEW, 1)[0]


def test_the_sky_is_found_again(tmp_path: Path) -> None:
    found = solved(SMALL, 2)[0]
    entries = verdicts(found.numbers, radio.expected(SMALL, found))
    assert len(entries) == 9
    assert all(entry.holds for entry in entries), entries
    cost = np.array(found.series["residual"])
    assert np.all(np.diff(cost) < 0)
    # the dirty image is Jy per beam, its peak the brightest point; the sparse one is sharp
    truth = found.arrays["sky"]
    peak = np.unravel_index(found.arrays["sparse"].argmax(), truth.shape)
    assert peak == radio.positions(SMALL)[0]
    error = {
        name: np.linalg.norm(found.arrays[name] - truth) for name in ("dirty", "least squares", "sparse")
    }
    assert error["sparse"] < 0.5 * error["least squares"] < error["dirty"]
    assert found.arrays["sparse"].min() >= 0
    wrong = Found(found.numbers | {"degridding": 1e-3}, found.series | {"fluxes, sparse": [0.9] * 6})
    assert sum(not entry.holds for entry in verdicts(wrong.numbers, radio.expected(SMALL, wrong))) >= 6
    pytest.importorskip("matplotlib").use("Agg")
    radio.draw(found, tmp_path / "radio.png")
    assert (tmp_path / "radio.png").stat().st_size > 10_000


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_images_and_numbers_are_the_same_on_any_ranks(ranks: int, alone: Found) -> None:
    for one in solved(FEW, ranks):
        for name in ("dirty", "least squares", "sparse"):
            image = alone.arrays[name]
            assert np.allclose(one.arrays[name], image, rtol=0, atol=1e-8 * abs(image).max())
        for name in ("visibilities", "residual over noise, sparse", "residual over noise, least squares"):
            assert one.numbers[name] == pytest.approx(alone.numbers[name])
        assert one.numbers["degridding"] <= FEW.accuracy
        assert one.numbers["adjoint"] < 1e-12
        assert one.series["residual"] == pytest.approx(alone.series["residual"])


def test_degridding_is_the_sum_over_pixels_to_the_requested_accuracy_also_far_from_the_middle() -> None:
    image = np.random.default_rng(1).normal(size=(32, 32))
    for degrees in (1.0, 40.0):  # where w matters
        for accuracy in (1e-3, 1e-10):
            p = replace(FEW, degrees=degrees, accuracy=accuracy)
            uvw = radio.coverage(p, 0, 40)
            got = radio.Degridding(p, uvw, 1).matvec(image.reshape(-1)).view(np.complex128)
            wanted = radio.direct(p, image, uvw).reshape(-1)
            assert np.linalg.norm(got - wanted) < accuracy * np.linalg.norm(wanted)
    flat = uvw * (1, 1, 0)
    assert np.linalg.norm(radio.direct(p, image, flat).reshape(-1) - wanted) > 0.1 * np.linalg.norm(wanted)


@pytest.mark.parametrize("ranks", [1, 3])
def test_adjoint_of_the_operator_is_one(ranks: int) -> None:
    def program() -> bool:
        here = comm.current().rank
        A = VStack([radio.Degridding(FEW, radio.coverage(FEW, 30 * here, 25 + here), 1)])
        rng = np.random.default_rng(2)
        u = DistributedArray.to_dist(rng.normal(size=32 * 32), partition=Partition.BROADCAST)
        return dottest(A, u=u, rtol=1e-12)

    assert all(comm.virtual_ranks(ranks, program))


def test_baselines_turn_with_the_earth() -> None:
    p = FEW
    rows = radio.rows_of(p)
    uvw = radio.coverage(p, 0, rows).reshape(p.times, -1, 3)
    position = radio.antennas(p)
    one, other = np.triu_indices(p.antennas, 1)
    lengths = np.linalg.norm(position[other] - position[one], axis=1)
    assert np.allclose(np.linalg.norm(uvw, axis=2), lengths)
    # a source at the zenith sees east and north as they are
    here = radio.LATITUDE
    angle = 0.3
    x = np.array([-math.sin(here), 0, math.cos(here)])  # north, in the frame of the equator
    rotated = radio.baselines(0.0, 1.0, angle)
    source = np.array(
        [
            math.cos(radio.DECLINATION) * math.cos(angle),
            -math.cos(radio.DECLINATION) * math.sin(angle),
            math.sin(radio.DECLINATION),
        ]
    )
    assert rotated[2] == pytest.approx(source @ x)  # w is the part towards the source
    assert rotated[0] == pytest.approx(math.sin(angle) * x[0])
    # parts of the rows are those of the whole
    assert np.array_equal(radio.coverage(p, 17, 31), uvw.reshape(-1, 3)[17:48])


def test_visibilities_are_differences_of_paths_to_two_antennas() -> None:
    p = replace(FEW, degrees=30.0)
    position, hour_angle = np.array([312.0, -145.0]), 0.7
    here = radio.LATITUDE

    def towards(hour_angle: float, declination: float) -> np.ndarray:
        along = math.cos(declination)
        return np.array([along * math.cos(hour_angle), -along * math.sin(hour_angle), math.sin(declination)])

    # east is towards hour angle -6 h on the equator, north towards the pole's side of the horizon
    east, north = towards(-math.pi / 2, 0.0), towards(math.pi, math.pi / 2 - here)
    baseline = position[0] * east + position[1] * north
    uvw = radio.baselines(*position, hour_angle)[None]
    for i, j in ((3, 25), (30, 9)):
        l, m = ((k - 16) * p.pixel for k in (i, j))  # noqa: E741
        n = math.sqrt(1 - l * l - m * m)
        declination = math.asin(m * math.cos(radio.DECLINATION) + n * math.sin(radio.DECLINATION))
        angle = math.atan2(l, n * math.cos(radio.DECLINATION) - m * math.sin(radio.DECLINATION))
        path = baseline @ (towards(hour_angle - angle, declination) - towards(hour_angle, radio.DECLINATION))
        image = np.zeros((32, 32))
        image[i, j] = n
        wanted = np.exp(-2j * math.pi * path * radio.frequencies(p) / radio.LIGHT)
        assert np.allclose(radio.direct(p, image, uvw)[0], wanted)


def test_noise_belongs_to_visibilities_and_is_normal() -> None:
    p = replace(FEW, noise=2.0)
    whole = radio.noise(p, 0, 5000)
    assert np.array_equal(radio.noise(p, 123, 50), whole[123:173])
    parts = whole.view(float)
    assert abs(parts.mean()) < 0.06
    assert parts.std() == pytest.approx(2.0, rel=0.03)
    assert abs((whole.real * whole.imag).mean()) < 0.15
    assert (abs(parts) > 4).mean() == pytest.approx(0.0455, abs=0.006)
    assert not np.array_equal(radio.noise(replace(p, seed=2), 0, 10), whole[:10])


def test_without_noise_the_residual_vanishes() -> None:
    p = replace(FEW, noise=0.0, iterations=60, damping=1e-4)
    found = solved(p, 2)[0]
    assert found.series["residual"][-1] < 0.02 * found.series["residual"][0]
    assert "residual over noise, sparse" not in radio.expected(p, found)


def test_a_step_is_one_all_reduce_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    images: list[int] = []
    all_reduce = comm.Communicator.all_reduce

    def counted(self: comm.Communicator, x: object, *arguments: object, **named: object) -> object:
        if comm.current().rank == 0 and getattr(x, "size", 1) == FEW.pixels**2:
            images.append(1)
        return all_reduce(self, x, *arguments, **named)

    monkeypatch.setattr(comm.Communicator, "all_reduce", counted)

    def calls(steps: int) -> int:
        images.clear()
        solved(replace(FEW, steps=steps), 2)
        return len(images)

    assert calls(9) - calls(2) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"pixels": 33},
        {"pixels": 16},
        {"accuracy": 0.1},
        {"accuracy": 1e-14},
        {"degrees": 200.0},
        {"antennas": 2},
    ],
)
def test_impossible_parameters_are_refused(wrong: dict) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        replace(SMALL, **wrong)
