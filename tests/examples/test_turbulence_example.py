"""A turbulent field has the spectrum that is asked for, is the same on any ranks, and is measured as NumPy would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jali import comm
from jali.array_namespaces import NUMPY
from jali.arrays import DistributedArray, save
from jali.errors import ParameterError, ShapeError
from jali.examples import Found, Options, turbulence, verdicts
from jali.examples.turbulence import TurbulenceParameters
from jali.philox import philox, uniform

SMALL = TurbulenceParameters(n=16)


def solved(p: TurbulenceParameters, ranks: int = 1) -> list[Found]:
    return comm.virtual_ranks(ranks, lambda: turbulence.solve(p, Options()))


def failures(p: TurbulenceParameters, found: Found) -> list[str]:
    return [entry.name for entry in verdicts(found.numbers, turbulence.expected(p, found)) if not entry.holds]


@pytest.fixture(scope="module")
def alone() -> Found:
    return solved(SMALL)[0]


def test_philox_gives_published_words_and_takes_negative_counters() -> None:
    mask = (1 << 32) - 1
    known = [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((-1,) * 4, (1 << 64) - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, words in known:
        got = philox([np.full(3, c & mask if c > 0 else c) for c in counter], key)
        assert [list(word) for word in got] == [[word] * 3 for word in words]
    drawn = uniform(np.array([0, mask]))
    assert drawn[0] > 0
    assert drawn[1] < 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("split", ["slabs", "pencils"])
def test_field_and_numbers_are_the_same_on_any_ranks(ranks: int, split: str, alone: Found) -> None:
    p = replace(SMALL, split=split)
    for one in solved(p, ranks):
        assert np.allclose(one.arrays["velocity"], alone.arrays["velocity"], rtol=0, atol=1e-13)
        for name, number in alone.numbers.items():
            assert one.numbers[name] == pytest.approx(number, rel=1e-11, abs=1e-13), name
        for name, numbers in alone.series.items():
            assert one.series[name] == pytest.approx(numbers, rel=1e-11, abs=1e-13), name
        assert failures(p, one) == []


@pytest.mark.parametrize(
    "p",
    [
        replace(SMALL, n=15),
        replace(SMALL, precision="single", spectrum="kolmogorov"),
        replace(SMALL, n=4, energy=0.3, seed=77),
    ],
)
def test_checks_hold_of_odd_extents_single_precision_and_few_points(p: TurbulenceParameters) -> None:
    for found in solved(p, 3):
        assert failures(p, found) == []
        assert found.arrays["velocity"].dtype == turbulence.PRECISIONS[p.precision]


def test_large_scales_are_the_same_at_a_higher_resolution() -> None:
    def modes(n: int) -> np.ndarray:
        p = replace(SMALL, n=n)
        plan = turbulence.plan_for((n,) * 3, "slabs")
        target = np.array([0, 3.0, 2.0, 1.0])
        field, _ = turbulence.synthesize(plan, target, p.seed, NUMPY, "double", Options())
        return np.array([np.fft.fftn(x.asarray(), norm="forward") for x in field])

    fine, coarse = modes(16), modes(10)
    where = np.r_[0:4, -3:0]
    assert abs(coarse).max() > 0.1
    assert np.allclose(
        fine[np.ix_(range(3), where, where, where)], coarse[np.ix_(range(3), where, where, where)]
    )


def test_modes_are_perpendicular_and_of_random_phase(alone: Found) -> None:
    u = alone.arrays["velocity"]
    k = np.fft.fftfreq(16) * 16
    modes = np.fft.fftn(u, axes=(1, 2, 3))
    flow = k[:, None, None] * modes[0] + k[:, None] * modes[1] + k * modes[2]
    assert abs(flow).max() < 1e-12 * abs(modes).max() * 16
    assert abs(modes[:, 0, 0, 0]).max() < 1e-12 * abs(modes).max()  # no mean flow
    # all three components have a like share, and neighbours do not look alike
    shares = (u**2).mean(axis=(1, 2, 3)) / (u**2).sum(axis=0).mean()
    assert abs(shares - 1 / 3).max() < 0.1
    phases = np.exp(1j * np.angle(modes[0][1:4, 1:4, 1:8]))
    assert abs(phases.mean()) < 0.4


def test_seeds_name_different_fields(alone: Found) -> None:
    other = solved(replace(SMALL, seed=2))[0].arrays["velocity"]
    u = alone.arrays["velocity"]
    assert abs((u * other).mean()) < 0.2 * (u * u).mean()


@pytest.mark.parametrize("ending", [".npy", ".h5"])
@pytest.mark.parametrize("split", ["slabs", "pencils"])
def test_field_of_a_file_is_measured(ending: str, split: str, tmp_path: Path) -> None:
    if ending == ".h5":
        pytest.importorskip("h5py")
    path = tmp_path / f"velocity{ending}"
    u = np.random.default_rng(3).normal(size=(3, 10, 12, 9)) + 0.5  # it diverges and drifts
    save(path, DistributedArray.to_dist(u))
    p = TurbulenceParameters(file=str(path), split=split, viscosity=0.1)
    for found in solved(p, 4):
        assert found.numbers["energy"] == pytest.approx((u**2).sum(0).mean() / 2)
        assert found.numbers["divergence"] > 0.1
        assert failures(p, found) == []
    wanted = turbulence.expected(p, found)
    assert {"E_1", "E_2", "E_4", "enstrophy", "energy of modes"} <= wanted.keys()


@pytest.mark.parametrize("precision", ["double", "single"])
def test_tensors_give_the_same(precision: str) -> None:
    pytest.importorskip("torch")
    p = replace(SMALL, precision=precision)
    alone = solved(p)[0]
    for one in comm.virtual_ranks(2, lambda: turbulence.solve(p, Options("torch"))):
        limit = 1e-13 if precision == "double" else 1e-5
        assert np.allclose(one.arrays["velocity"], alone.arrays["velocity"], rtol=0, atol=limit)
        assert failures(p, one) == []


def test_check_finds_what_is_wrong(alone: Found) -> None:
    wrong = Found(alone.numbers, alone.series, alone.arrays | {"velocity": alone.arrays["velocity"] * 1.001})
    assert {"E_1", "enstrophy", "structure_1"} <= set(failures(SMALL, wrong))
    for name, factor in (("divergence", 1e6), ("spectrum", 1e6), ("energy", 1.001)):
        off = Found(alone.numbers | {name: alone.numbers[name] * factor}, alone.series, alone.arrays)
        assert name in failures(SMALL, off)


def test_models_have_the_energy_and_the_slope(alone: Found) -> None:
    p = replace(SMALL, scale=4.0, resolution=1.5)
    target = turbulence.model(p, 500)
    assert target.energy.sum() == pytest.approx(p.energy)
    slope = np.log(target.energy[20] / target.energy[10]) / np.log(2)
    assert slope == pytest.approx(-5 / 3, abs=0.1)
    dissipation = 2 * target.viscosity * (np.arange(501) ** 2 * target.energy).sum()
    k = np.arange(10, 20)
    assert dissipation ** (-2 / 3) * k ** (5 / 3) * target.energy[10:20] == pytest.approx(1.5, rel=0.1)
    # the viscosity is that of the Kolmogorov length that was asked for
    assert (target.viscosity**3 / dissipation) ** 0.25 == pytest.approx(1.5 / 500, rel=0.1)


@pytest.mark.parametrize(
    ("array", "error", "says"),
    [
        (np.ones((2, 4, 4, 4)), ShapeError, r"shape \(3, x, y, z\)"),
        (np.ones((3, 4, 4)), ShapeError, r"shape \(3, x, y, z\)|axis"),
        (np.ones((3, 4, 4, 4), complex), ParameterError, "real numbers"),
        (np.zeros((3, 4, 4, 4)), ParameterError, "flow is 0, .* zero everywhere"),
        (np.full((3, 4, 4, 4), np.nan), ParameterError, "flow is nan"),
    ],
)
def test_files_that_hold_no_flow_are_refused(
    array: np.ndarray, error: type[Exception], says: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "u.npy", array)
    with pytest.raises(error, match=says):
        solved(TurbulenceParameters(file=str(tmp_path / "u.npy")), 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": 3}, "n is 4 or more"),
        ({"precision": "half"}, "double or single"),
        ({"split": "cubes"}, "slabs or pencils"),
        ({"spectrum": "pop"}, "pope or kolmogorov"),
        ({"energy": 0.0}, "energy is"),
        ({"scale": float("nan")}, "scale is"),
        ({"viscosity": -1.0}, "viscosity is 0"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        solved(replace(SMALL, **wrong))


def test_picture(alone: Found, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    turbulence.draw(alone, tmp_path / "turbulence.png")
    assert (tmp_path / "turbulence.png").stat().st_size > 10_000
