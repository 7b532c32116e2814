"""Multi-dimensional deconvolution: reflections as they would be without what is above the receivers, frequencies over ranks.

Waves that go up at the receivers of a datum are those that go down there, reflected below (Wapenaar et al., Geophys. J. Int. 185
(2011) 1335):

    up(t, s, v) = sum over receivers r of down(t, s, r) * R(t, r, v)

with a convolution along time. Waves that go down from a source s are here known in closed form: the direct one and what comes back
from the surface again and again, each an image of the source. Cross-correlation, the adjoint, takes each of those for a reflection of
its own; least squares finds R. Each rank has the waves of its frequencies, and all have R: an application is one all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.arrays.layout import even_split
from jali.examples import AtMost, Expected, Found, Of, Options, Sizes, furthest, on_host, timing
from jali.linops import MDC
from jali.solvers import cgls

VELOCITY = 1500.0
SPACING = 15.0  # metres between receivers, and between sources
INTERVAL = 0.004
DEPTH = 120.0  # of the datum below the surface; sources are SOURCE_DEPTH below the surface
SOURCE_DEPTH = 90.0
REFLECTORS = ((150.0, 1.0), (270.0, -0.7), (420.0, 0.5))  # below the datum, with their strength
ECHOES, ECHO = 4, -0.6  # waves that come back from the surface, and how strong each is beside the one before
DOWN, REFLECTED = 22.0, 18.0  # Hz, where wavelets of waves that go down, and of R, have their peak
EARLY = 32  # samples, in which a wavelet has begun before its middle
LARGEST_CHECKED = 1 << 21  # samples of the model that serial pylops may have in a check


@dataclass(frozen=True)
class MddParameters(Sizes):
    """Receivers, which are sources of R as well (virtual sources, of which each `thinned`-th is wanted); sources; samples of time;
    iterations."""

    LEAST = {"receivers": 4, "sources": 4, "times": 300}  # noqa: RUF012
    receivers: int = 61
    sources: int = 71
    times: int = 512
    thinned: int = 5
    iterations: int = 60

    def virtual(self) -> np.ndarray:
        """Which receivers are virtual sources: the middle one and others around it."""
        return np.arange(self.receivers // 2 % self.thinned, self.receivers, self.thinned)

    def frequencies(self) -> np.ndarray:
        """Those that hold anything, in Hz."""
        every = np.fft.rfftfreq(self.times, INTERVAL)
        return np.asarray(every[every < 3 * DOWN])


SIZES = {
    "laptop": MddParameters(),
    "small": MddParameters(receivers=21, sources=24, times=400, thinned=5, iterations=20),
    "gpu": MddParameters(receivers=401, sources=451, times=2000, thinned=4, iterations=60),
}


def line(points: int) -> np.ndarray:
    """Their positions, around 0."""
    return (np.arange(points) - points // 2) * SPACING


def ricker_spectrum(frequencies: np.ndarray, peak: float) -> np.ndarray:
    """Of a wavelet of amplitude 1 with its middle at time 0, sampled in INTERVAL."""
    square = (frequencies / peak) ** 2
    return np.asarray(2 / (np.sqrt(np.pi) * peak * INTERVAL) * square * np.exp(-square))


def down(p: MddParameters, frequencies: np.ndarray) -> np.ndarray:
    """Waves that go down, in shape (frequencies, sources, receivers), as np.fft.rfft of their samples in time has them."""
    across = line(p.sources)[:, None] - line(p.receivers)[None, :]
    omega = 2 * np.pi * frequencies[:, None, None]
    found = np.zeros((len(frequencies), p.sources, p.receivers), complex)
    for echo in range(ECHOES + 1):
        distance = np.hypot(across, DEPTH - SOURCE_DEPTH + 2 * DEPTH * echo)
        found += ECHO**echo / np.sqrt(distance / DEPTH) * np.exp(-1j * omega * distance / VELOCITY)
    return found * ricker_spectrum(frequencies, DOWN)[:, None, None]


def reflections(p: MddParameters) -> np.ndarray:
    """R, in shape (times, receivers, virtual sources)."""
    positions = line(p.receivers)
    across = positions[:, None] - positions[p.virtual()][None, :]
    frequencies = np.fft.rfftfreq(p.times, INTERVAL)
    omega = 2 * np.pi * frequencies[:, None, None]
    found = np.zeros((len(frequencies), *across.shape), complex)
    for depth, strength in REFLECTORS:
        distance = np.hypot(across, 2 * depth)
        found += strength * (DEPTH / distance) ** 0.5 * np.exp(-1j * omega * distance / VELOCITY)
    return np.fft.irfft(found * ricker_spectrum(frequencies, REFLECTED)[:, None, None], p.times, axis=0)


def solve(p: MddParameters, options: Options) -> Found:
    """Norms of residuals; how far R by correlation and by inversion are from the truth; all of them for the middle virtual source."""
    ranks = comm.current()
    frequencies = p.frequencies()
    counts = even_split(len(frequencies), ranks.size)
    first = sum(counts[: ranks.rank])
    kernel = options.array(down(p, frequencies[first : first + counts[ranks.rank]]))
    sources = len(p.virtual())
    # transforms of the operator are orthonormal, those of `down` are sums
    convolution = MDC(
        kernel / p.times**0.5, p.times, sources, len(frequencies), INTERVAL, SPACING, twosided=False
    )
    model = options.array(reflections(p).reshape(-1))
    truth = DistributedArray(model.shape, partition=Partition.BROADCAST, local_array=model)
    up = convolution @ truth
    options.progress(f"{len(frequencies)} frequencies of {p.sources} sources and {p.receivers} receivers")
    correlated = convolution.H @ up
    with timing(p.iterations) as iterations:
        solution = cgls(convolution, up, maxiter=p.iterations, rtol=0, callback=options.counted(p.iterations))

    def error(x: DistributedArray) -> float:
        """Of the multiple of x that is nearest to R."""
        return float((x * (x.dot(truth) / x.dot(x)) - truth).norm() / truth.norm())

    errors = error(correlated), float((solution.x - truth).norm() / truth.norm())
    options.progress(
        f"differs from R by {100 * errors[0]:.0f} % (correlation), {100 * errors[1]:.1f} % (inversion)"
    )

    def of_the_middle(x: DistributedArray) -> np.ndarray:
        """Of the middle virtual source."""
        return on_host(x.local).reshape(p.times, -1, sources)[:, :, sources // 2]

    return Found(
        {"error_of_correlation": errors[0], "error": errors[1]},
        {"residual": [float(norm) for norm in solution.cost]},
        {
            "R": of_the_middle(truth),
            "correlation": of_the_middle(correlated),
            "inverse": of_the_middle(solution.x),
            "up": of_the_middle(up),
        },
        {"iterations": iterations},
    )


def expected(p: MddParameters, found: Found) -> Expected:
    """Data are convolutions in time; R is found; residuals and R are those of serial pylops, where the problem is small."""
    truth = reflections(p)
    middle = truth.shape[2] // 2
    source = p.sources // 3
    every = np.fft.rfftfreq(p.times, INTERVAL)
    kernel = down(p, np.where(every < 3 * DOWN, every, 0.0))
    # wavelets begin before time 0, which is at the end of what repeats itself
    wave = np.roll(np.fft.irfft(kernel[:, source], p.times, axis=0), EARLY, 0)
    trace = np.sum([np.convolve(wave[:, r], truth[:, r, middle]) for r in range(p.receivers)], 0)
    there = INTERVAL * SPACING * trace[EARLY : EARLY + p.times]
    wanted: dict[str, Any] = {
        "up - convolution in time": Of(
            abs(found.arrays["up"][:, source] - there).max() / abs(there).max(), AtMost(1e-3)
        ),
        "error": AtMost(0.1),
    }
    if truth.size > LARGEST_CHECKED:
        return wanted
    import pylops

    convolution = pylops.waveeqprocessing.MDC(
        down(p, p.frequencies()) / p.times**0.5,
        p.times,
        truth.shape[2],
        dt=INTERVAL,
        dr=SPACING,
        twosided=False,
    )
    inverse, *_, cost = pylops.cgls(convolution, convolution @ truth.reshape(-1), niter=p.iterations, tol=0)
    difference = found.arrays["inverse"] - inverse.reshape(truth.shape)[:, :, middle]
    wanted["inverse - pylops"] = Of(abs(difference).max() / abs(truth).max(), AtMost(1e-6))
    wanted["residuals - pylops"] = Of(furthest(found.series["residual"], cost), AtMost(1e-6))
    return wanted


def draw(found: Found, path: Path) -> None:
    """For the middle virtual source, along receivers: data, correlation, inverse and truth."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained", sharey=True)
    for axis, name in zip(axes, ("up", "correlation", "inverse", "R"), strict=True):
        traces = found.arrays[name]
        most = 0.7 * abs(traces).max()
        times, positions = traces.shape
        axis.imshow(
            traces,
            cmap="gray",
            vmin=-most,
            vmax=most,
            aspect="auto",
            interpolation="nearest",
            extent=(0, positions, times * INTERVAL, 0),
        )
        axis.set(title=name, xlabel="source" if name == "up" else "receiver")
    axes[0].set(ylabel="t (s)", ylim=(min(1.4, times * INTERVAL), 0))
    figure.savefig(path)
    plt.close(figure)
