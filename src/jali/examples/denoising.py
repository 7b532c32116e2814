"""Total-variation denoising of a volume: what is piecewise constant, from what noise left of it, planes over ranks.

    minimize |x - b|^2 / 2 + sigma * sum over points of |grad x|

(Rudin, Osher and Fatemi, Physica D 60 (1992) 259) by the primal-dual method of Chambolle and Pock. An iteration is a gradient and its
adjoint, for each of which neighbouring ranks exchange a plane, and nothing else is communicated.

The dual variable y, |y| <= sigma at each point, proves how near the result is: no x has a lower energy than

    <grad^T y, b> - |grad^T y|^2 / 2

so that the gap between both is an upper limit of |x - best x|^2 / 2.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.arrays import DistributedArray
from jali.arrays.layout import even_split
from jali.examples import AtLeast, AtMost, Expected, Found, Of, Options, Sizes, furthest, on_host, timing
from jali.linops import Gradient
from jali.solvers import L2, L21, PrimalDual

# tau = mu, below 1 / |grad|, whose square is at most 12 along three axes; of few bits, for pyproximal takes it in single precision
STEP = 35 / 128
LARGEST_CHECKED = 1 << 18  # points that serial pyproximal may have in a check
STAGES = 10  # of a run, after which the energy is computed


@dataclass(frozen=True)
class DenoisingParameters(Sizes):
    """Points along each axis; iterations; the standard deviation of the noise, where contrasts are of order 1; the weight of the
    gradients."""

    LEAST = {"points": 8, "iterations": STAGES}  # noqa: RUF012
    points: int = 64
    iterations: int = 200
    noise: float = 0.4
    sigma: float = 0.35


SIZES = {
    "laptop": DenoisingParameters(),
    "small": DenoisingParameters(points=20, iterations=60),
    "gpu": DenoisingParameters(points=512, iterations=200),
}


def volume(p: DenoisingParameters, first: int, count: int) -> np.ndarray:
    """So many planes from the first on: a block, a ball with a hollow, and a slanted half space, of different values."""
    z = (np.arange(first, first + count) / p.points - 0.5)[:, None, None]
    y = (np.arange(p.points) / p.points - 0.5)[None, :, None]
    x = (np.arange(p.points) / p.points - 0.5)[None, None, :]
    found = np.where(x + 0.5 * y + 0.3 * z > 0.3, 0.5, 0.0)
    found = np.where((abs(x + 0.2) < 0.15) & (abs(y - 0.2) < 0.15) & (abs(z) < 0.3), 2.0, found)
    radius = np.sqrt((x + 0.1) ** 2 + (y + 0.15) ** 2 + z**2)
    return np.asarray(np.where((radius < 0.28) & (radius > 0.12), 1.0, found))


def noise(p: DenoisingParameters, first: int, count: int) -> np.ndarray:
    """Of unit variance, which does not depend on the rank that has the plane."""
    shape = p.points, p.points
    planes = [np.random.default_rng([5, plane]).normal(size=shape) for plane in range(first, first + count)]
    return np.array(planes).reshape((count, *shape))


def solve(p: DenoisingParameters, options: Options) -> Found:
    """Energies, the gap, and ratios of signal to noise before and after; the middle planes."""
    ranks = comm.current()
    counts = even_split(p.points, ranks.size)
    first, count = sum(counts[: ranks.rank]), counts[ranks.rank]
    dims = (p.points,) * 3

    def spread(x: np.ndarray) -> DistributedArray:
        """Of this rank's planes."""
        return DistributedArray(dims, local_array=options.array(x))

    clean = volume(p, first, count)
    truth, noisy = spread(clean), spread(clean + p.noise * noise(p, first, count))
    gradient = Gradient(dims, kind="forward")
    near, flat = L2(b=noisy), L21(3, p.sigma)

    def energy(x: DistributedArray) -> float:
        return float(near(x) + flat(gradient @ x))

    options.progress(f"{' x '.join(map(str, dims))} points")
    energies = [energy(noisy)]
    advance = options.counted(p.iterations)
    done = 0

    def step(x: DistributedArray) -> None:
        nonlocal done
        done += 1
        advance()
        if done * STAGES // p.iterations > (done - 1) * STAGES // p.iterations:
            energies.append(energy(x))

    with timing(p.iterations) as iterations:
        x, y = PrimalDual(
            near,
            flat,
            gradient,
            noisy,
            tau=STEP,
            mu=STEP,
            maxiter=p.iterations,
            callback=step,
            return_pair=True,
        )
    pull = gradient.H @ y
    least = float(pull.dot(noisy) - pull.dot(pull) / 2)
    before, after = (20 * float(np.log10(truth.norm() / (one - truth).norm())) for one in (noisy, x))
    options.progress(f"signal to noise {before:.1f} dB -> {after:.1f} dB")
    middle = p.points // 2

    def plane(x: DistributedArray) -> np.ndarray:
        """The middle one, on all ranks."""
        return on_host(x.global_index[middle : middle + 1].asarray())[0]

    return Found(
        {
            "energy": energies[-1],
            "gap": (energies[-1] - least) / energies[-1],
            "before (dB)": before,
            "gain (dB)": after - before,
        },
        {"energies": energies},
        {"volume": plane(truth), "noisy": plane(noisy), "denoised": plane(x)},
        {"iterations": iterations},
    )


def expected(p: DenoisingParameters, found: Found) -> Expected:
    """Energies fall to the bound of the dual variable, the signal-to-noise ratio rises, and serial pyproximal gives the same,
    where the volume is small."""
    energies = found.series["energies"]
    falls = min(before - after for before, after in itertools.pairwise(energies))
    wanted: dict[str, Any] = {
        "gap": AtMost(0.01),
        "gap, not negative": Of(found.numbers["gap"], AtLeast(0.0)),
        "gain (dB)": AtLeast(6.0),
        "smallest fall": Of(falls, AtLeast(0.0)),
    }
    if p.points**3 > LARGEST_CHECKED:
        return wanted
    import pylops
    import pyproximal

    noisy = volume(p, 0, p.points) + p.noise * noise(p, 0, p.points)
    gradient = pylops.Gradient(noisy.shape, kind="forward")
    near, flat = pyproximal.L2(b=noisy.reshape(-1)), pyproximal.L21(3, p.sigma)
    x = pyproximal.optimization.primaldual.PrimalDual(
        near, flat, gradient, noisy.reshape(-1), STEP, STEP, niter=p.iterations
    )
    there = x.reshape(noisy.shape)[p.points // 2]
    wanted["denoised - pyproximal"] = Of(abs(there - found.arrays["denoised"]).max(), AtMost(1e-10))
    energy = float(near(x) + flat(gradient @ x))
    wanted["energy - pyproximal"] = Of(furthest([found.numbers["energy"]], [energy]), AtMost(1e-10))
    return wanted


def draw(found: Found, path: Path) -> None:
    """The middle planes, and the energies."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
    clean = found.arrays["volume"]
    limits = clean.min() - 0.5, clean.max() + 0.5
    for axis, name in zip(axes, ("noisy", "denoised", "volume"), strict=False):
        axis.imshow(found.arrays[name], cmap="magma", interpolation="nearest", vmin=limits[0], vmax=limits[1])
        axis.set(title=name, xticks=[], yticks=[])
    energies = found.series["energies"]
    axes[3].plot(np.linspace(0, 100, len(energies)), energies, "o-")
    axes[3].set(title="energy", xlabel="iterations (%)", yscale="log")
    figure.savefig(path)
    plt.close(figure)
