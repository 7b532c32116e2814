"""Post-stack inversion: the acoustic impedance of a volume, from its seismic section, crosslines over ranks.

At normal incidence reflections are half the derivative of the logarithm of the impedance along time, and the section is their
convolution with the wavelet of the source (Oldenburg, Scheuer and Levy, Geophysics 48 (1983) 1318):

    d = W D m,    m = ln(impedance),    W = convolution with w / 2,    D = d/dt

Each rank models its crosslines, which communicates nothing. What the wavelet does not see, low and high frequencies, comes from a
smooth background, where the inversion begins, and from neighbours, which should be alike:

    minimize |W D m - d|^2 + weight^2 |L m|^2

with the Laplacian L, for which neighbouring ranks exchange a crossline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.arrays import DistributedArray, StackedDistributedArray
from jali.arrays.layout import even_split
from jali.examples import AtMost, Expected, Found, Of, Options, Sizes, furthest, on_host, timing
from jali.examples.wavelets import ricker
from jali.linops import BlockDiag, Laplacian, StackedVStack
from jali.solvers import cgls

INTERVAL = 0.004
LARGEST_CHECKED = 1 << 20  # points that serial pylops may have in a check


@dataclass(frozen=True)
class PoststackParameters(Sizes):
    """Crosslines, inlines, samples of time; iterations; the weight of the Laplacian; noise, of which the section itself is 1."""

    LEAST = {"crosslines": 3, "inlines": 3, "times": 32}  # noqa: RUF012
    crosslines: int = 48
    inlines: int = 64
    times: int = 128
    iterations: int = 60
    weight: float = 0.05
    noise: float = 0.1


SIZES = {
    "laptop": PoststackParameters(),
    "small": PoststackParameters(crosslines=10, inlines=12, times=64, iterations=15),
    "gpu": PoststackParameters(crosslines=512, inlines=512, times=512, iterations=100),
}


def impedance(p: PoststackParameters, first: int, count: int) -> np.ndarray:
    """Of so many crosslines from the first on, in shape (count, inlines, times): layers over a dome, broken by a fault, 2000 to 7000 in
    units of 1000 kg/m^2/s."""
    y = (np.arange(first, first + count) / p.crosslines - 0.5)[:, None, None]
    x = (np.arange(p.inlines) / p.inlines - 0.5)[None, :, None]
    t = (np.arange(p.times) / p.times)[None, None, :]
    depth = t + 0.15 * np.exp(-8 * (x**2 + y**2)) + 0.06 * (x + 0.3 * y > 0.2)
    contrasts = np.random.default_rng(3).uniform(-0.12, 0.12, 64)  # the layers', on every rank
    return np.asarray((2000 + 3500 * depth) * (1 + contrasts[np.floor(20 * depth).astype(int)]))


def smoothed(m: np.ndarray, samples: int) -> np.ndarray:
    """Means of so many samples before and behind each, along the last axis; the ends are continued as constants."""
    padded = np.pad(m, [(0, 0)] * (m.ndim - 1) + [(samples + 1, samples)], mode="edge")
    sums = padded.cumsum(-1)
    return np.asarray((sums[..., 2 * samples + 1 :] - sums[..., : -2 * samples - 1]) / (2 * samples + 1))


def noise(p: PoststackParameters, first: int, count: int) -> np.ndarray:
    """Of unit variance, which does not depend on the rank that has the crossline."""
    shape = p.inlines, p.times
    planes = [np.random.default_rng([17, line]).normal(size=shape) for line in range(first, first + count)]
    return np.array(planes).reshape((count, *shape))


def wavelet() -> np.ndarray:
    """With half the amplitude, for reflections are half of the derivative."""
    return ricker(20.0, INTERVAL, 20) / 2


def modelling(p: PoststackParameters, count: int, samples: Any) -> Any:
    """That of so many crosslines, flat, each trace in a row: pylops has time as the first axis."""
    import pylops

    traces = count, p.inlines
    transpose = pylops.Transpose((*traces, p.times), (2, 0, 1))
    return transpose.H @ pylops.avo.poststack.PoststackLinearModelling(samples, p.times, traces) @ transpose


def solve(p: PoststackParameters, options: Options) -> Found:
    """Norms of residuals, and how far the background and the inverse are from the truth; sections of the middle crossline."""
    ranks = comm.current()
    counts = even_split(p.crosslines, ranks.size)
    first, count = sum(counts[: ranks.rank]), counts[ranks.rank]
    dims = p.crosslines, p.inlines, p.times
    parts = [(n * p.inlines * p.times,) for n in counts]

    def spread(x: np.ndarray) -> DistributedArray:
        """Of this rank's crosslines."""
        return DistributedArray(
            int(np.prod(dims)), local_array=options.array(x.reshape(-1)), local_shapes=parts
        )

    logarithm = np.log(impedance(p, first, count))
    truth, background = spread(logarithm), spread(smoothed(logarithm, p.times // 8))
    sections = BlockDiag([modelling(p, count, options.array_of_operators(wavelet()))])
    data = sections @ truth
    loudness = data.norm() / len(data) ** 0.5
    data += p.noise * loudness * spread(noise(p, first, count))
    options.progress(f"{' x '.join(map(str, dims))} points of a section")

    both = StackedVStack(
        [sections, p.weight * Laplacian(dims, axes=(0, 1, 2), weights=(1, 1, 1), sampling=(1, 1, 1))]
    )
    wanted = StackedDistributedArray([data, data.zeros_like()])
    with timing(p.iterations) as iterations:
        solution = cgls(
            both, wanted, x0=background, maxiter=p.iterations, rtol=0, callback=options.counted(p.iterations)
        )
    before, after = (float((x - truth).norm() / truth.norm()) for x in (background, solution.x))
    options.progress(f"differs from the truth by {100 * before:.2f} % before and {100 * after:.2f} % after")

    middle = p.crosslines // 2
    size = p.inlines * p.times

    def section(x: DistributedArray) -> np.ndarray:
        """The middle crossline, on all ranks."""
        plane = on_host(x.global_index[middle * size : (middle + 1) * size].asarray())
        return plane.reshape(p.inlines, p.times)

    return Found(
        {"error_before": before, "error": after},
        {"residual": [float(norm) for norm in solution.cost]},
        {
            "impedance": np.exp(section(truth)),
            "background": np.exp(section(background)),
            "inverse": np.exp(section(solution.x)),
            "section": section(data),
        },
        {"iterations": iterations},
    )


def expected(p: PoststackParameters, found: Found) -> Expected:
    """The error shrinks; residuals and the inverse are those of serial pylops, where the volume is small."""
    wanted: dict[str, Any] = {"error": AtMost(0.6 * found.numbers["error_before"])}
    dims = p.crosslines, p.inlines, p.times
    if np.prod(dims) > LARGEST_CHECKED:
        return wanted
    import pylops

    truth = np.log(impedance(p, 0, p.crosslines))
    sections = modelling(p, p.crosslines, wavelet())
    data = sections @ truth.reshape(-1)
    data = data + p.noise * np.linalg.norm(data) / data.size**0.5 * noise(p, 0, p.crosslines).reshape(-1)
    laplacian = pylops.Laplacian(dims, axes=(0, 1, 2), weights=(1, 1, 1), sampling=(1, 1, 1))
    both = pylops.VStack([sections, p.weight * laplacian])
    inverse, *_, cost = pylops.cgls(
        both,
        np.concatenate([data, np.zeros_like(data)]),
        x0=smoothed(truth, p.times // 8).reshape(-1),
        niter=p.iterations,
        tol=0,
    )
    there = np.exp(inverse.reshape(dims)[p.crosslines // 2])
    wanted["inverse - pylops"] = Of(abs(there / found.arrays["inverse"] - 1).max(), AtMost(1e-8))
    wanted["residuals - pylops"] = Of(furthest(found.series["residual"], cost), AtMost(1e-8))
    return wanted


def draw(found: Found, path: Path) -> None:
    """The middle crossline: impedances and the section."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained", sharey=True)
    truth = found.arrays["impedance"]
    limits = {"vmin": truth.min(), "vmax": truth.max(), "cmap": "viridis"}
    extent = (0, truth.shape[0], truth.shape[1] * INTERVAL, 0)
    for axis, name in zip(axes, ("section", "background", "inverse", "impedance"), strict=True):
        plane = found.arrays[name]
        most = abs(plane).max()
        how = {"vmin": -most, "vmax": most, "cmap": "gray"} if name == "section" else limits
        shown = axis.imshow(plane.T, extent=extent, aspect="auto", interpolation="nearest", **how)
        axis.set(title=name, xlabel="inline")
    axes[0].set(ylabel="t (s)")
    figure.colorbar(shown, ax=axes, label="impedance (1000 kg/m²/s)")
    figure.savefig(path)
    plt.close(figure)
