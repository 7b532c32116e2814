"""Images of the sky from a radio interferometer: its visibilities are spread over ranks, and all have the whole image.

While the Earth turns, each pair of antennas measures the Fourier transform of the sky at points (u, v, w) (Thompson, Moran and
Swenson, Interferometry and Synthesis in Radio Astronomy, equations 3.7 and 4.1):

    V(u, v, w) = sum over pixels of I(l, m) / n exp(-2 pi i (u l + v m + w (n - 1))),   n = sqrt(1 - l^2 - m^2)

`ducc0.wgridder` evaluates this and its adjoint to a requested accuracy, on each rank for its visibilities; a column of such
operators (VStack) is that of all, and its adjoint one all-reduce of the image. On other numbers of ranks results differ as
accuracy permits, since gridders choose by the data that they have. Of the same data there are three images: the dirty one,
A^T d by the number of visibilities; least squares, damped against noise; and a sparse one, the positive image with the least
|A x - d|^2 / 2 + lambda sum(x), by accelerated proximal gradients. A visibility is two real numbers, so that images are real
and the adjoint is that of real vectors.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.amounts import counted
from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray, Partition
from jali.arrays.layout import even_split
from jali.errors import ParameterError
from jali.examples import AtMost, Expected, Found, Near, Of, Options, Sizes, on_host, timing
from jali.linops import VStack
from jali.philox import philox, uniform
from jali.solvers import L2, ProximalGradient, ProxOperator, cgls, each, power_iteration

LIGHT = 299792458.0
LATITUDE, DECLINATION = math.radians(34.0), math.radians(50.0)
POINTS = ((0.30, 0.36, 1.0), (0.36, 0.70, 0.6), (0.52, 0.50, 0.4), (0.77, 0.30, 0.8), (0.62, 0.82, 0.3))
"""Point sources: where, as a part of the field across and up, and their flux in Jy."""
CLOUD = (0.68, 0.58, 0.035, 2.0)
"""A Gaussian: where, its standard deviation as a part of the field, and its flux."""
SAMPLED = 32  # rows of each rank that are compared with the sum over pixels


@dataclass(frozen=True)
class RadioParameters(Sizes):
    """Antennas on three arms, which are `arm` metres long; times at which they measure in eight hours; channels, from `megahertz` on;
    pixels of the image in both directions, and degrees that it is wide; the noise of each part of a visibility in Jy; the accuracy
    of the gridder; iterations of least squares, with `damping` as a part of the largest singular value; steps of the sparse image,
    with a threshold in units of the noise of the dirty image; a seed of the noise."""

    LEAST = {  # noqa: RUF012
        "antennas": 6, "pixels": 32, "arm": 1.0, "megahertz": 1.0, "degrees": 0.01, "accuracy": 1e-12, "damping": 1e-6, "seed": 0,
    }  # fmt: skip
    antennas: int = 27
    arm: float = 400.0
    times: int = 48
    channels: int = 2
    megahertz: float = 150.0
    pixels: int = 128
    degrees: float = 4.0
    noise: float = 0.5
    accuracy: float = 1e-6
    iterations: int = 20
    damping: float = 0.1
    steps: int = 200
    threshold: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pixels % 2 or self.degrees > 90 or self.accuracy > 0.01 or self.seed >= 1 << 63:
            raise ParameterError(
                f"pixels are an even number, degrees at most 90, the accuracy at most 0.01, a seed less than 2^63: not "
                f"{self.pixels}, {self.degrees}, {self.accuracy} and {self.seed}"
            )

    @property
    def pixel(self) -> float:
        """Its width, as a direction cosine."""
        return math.radians(self.degrees) / self.pixels


SIZES = {
    "laptop": RadioParameters(),
    "small": RadioParameters(antennas=15, arm=250.0, times=24, channels=1, pixels=64, noise=0.2, steps=150),
    "large": RadioParameters(antennas=60, arm=1600.0, times=480, channels=8, pixels=512, steps=500),
}


# --- the model ------------------------------------------------------------------------------------------


def positions(p: RadioParameters) -> list[tuple[int, int]]:
    """Pixels of the point sources."""
    return [(round(x * p.pixels), round(y * p.pixels)) for x, y, _ in POINTS]


def sky(p: RadioParameters) -> np.ndarray:
    """Jy per pixel, across and up."""
    image = np.zeros((p.pixels, p.pixels))
    x, y, width, flux = CLOUD
    across = np.arange(p.pixels) / p.pixels
    cloud = np.exp(-((across[:, None] - x) ** 2 + (across - y) ** 2) / (2 * width**2))
    image += flux * cloud / cloud.sum()
    for (i, j), (_, _, flux) in zip(positions(p), POINTS, strict=True):
        image[i, j] += flux
    return image


def antennas(p: RadioParameters) -> np.ndarray:
    """East and north of each, in metres: three arms, along which distances grow as the power 1.716 of the antenna's number (Thompson,
    Clark, Wade and Napier, Astrophys. J. Suppl. 44 (1980) 151)."""
    number = np.arange(p.antennas)
    distance = p.arm * ((number // 3 + 1) / math.ceil(p.antennas / 3)) ** 1.716
    angle = np.radians(-5.0 + 120.0 * (number % 3))
    return np.stack((distance * np.sin(angle), distance * np.cos(angle)), axis=1)


def baselines(east: Any, north: Any, hour_angle: Any) -> np.ndarray:
    """u, v, w in metres, of differences of positions east and north, while the middle of the field is at an hour angle."""
    x, y, z = -north * math.sin(LATITUDE), east, north * math.cos(LATITUDE)
    sine, cosine = np.sin(hour_angle), np.cos(hour_angle)
    up, along = math.sin(DECLINATION), math.cos(DECLINATION)
    return np.stack(
        (
            sine * x + cosine * y,
            up * (sine * y - cosine * x) + along * z,
            along * (cosine * x - sine * y) + up * z,
        ),
        axis=-1,
    )


def coverage(p: RadioParameters, first: int, count: int) -> np.ndarray:
    """u, v, w of so many rows of the data from the first on: each time has all pairs of antennas."""
    position = antennas(p)
    one, other = np.triu_indices(p.antennas, 1)
    time, pair = np.divmod(np.arange(first, first + count), len(one))
    hours = (8 * (time + 0.5) / p.times - 4) * math.pi / 12
    east, north = (position[other[pair]] - position[one[pair]]).T
    return baselines(east, north, hours)


def rows_of(p: RadioParameters) -> int:
    """All rows of the data."""
    return p.times * p.antennas * (p.antennas - 1) // 2


def noise(p: RadioParameters, first: int, count: int) -> np.ndarray:
    """Of these rows; the real and the imaginary part of each visibility belong to it, on any rank."""
    row = np.arange(first, first + count)[:, None]
    words = philox([row, np.arange(p.channels), 0, 0], p.seed)
    size, angle = np.sqrt(-2 * np.log(uniform(words[0]))), 2 * math.pi * uniform(words[1])
    return np.asarray(p.noise * size * np.exp(1j * angle))


# --- the interferometer -------------------------------------------------------------------------------------


class Degridding:
    """From an image to visibilities of some rows, each as two numbers; a local operator. `rmatvec` is the adjoint.

    ducc0 computes on the host: images and visibilities of devices are copied there, and what it finds is copied back.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, p: RadioParameters, uvw: np.ndarray, threads: int) -> None:
        self.gridder = importlib.import_module("ducc0").wgridder
        self.p, self.uvw, self.threads = p, uvw, threads
        self.frequencies = frequencies(p)
        self.shape = (2 * len(uvw) * p.channels, p.pixels**2)

    def _gridder_options(self) -> dict[str, Any]:
        p = self.p
        return {
            "uvw": self.uvw, "freq": self.frequencies, "pixsize_x": p.pixel, "pixsize_y": p.pixel, "epsilon": p.accuracy,
            "do_wgridding": True, "flip_w": True, "divide_by_n": True, "nthreads": self.threads,
        }  # fmt: skip

    def matvec(self, x: Any) -> Any:
        """Visibilities of an image."""
        image = np.ascontiguousarray(on_host(x), self.dtype).reshape(self.p.pixels, self.p.pixels)
        found = self.gridder.dirty2vis(dirty=image, **self._gridder_options())
        return namespace_of(x).from_host(np.asarray(found).reshape(-1).view(self.dtype), x)

    def rmatvec(self, y: Any) -> Any:
        """The sum of waves with the visibilities as amplitudes."""
        there = np.ascontiguousarray(on_host(y), self.dtype)
        n = self.p.pixels
        found = self.gridder.vis2dirty(
            vis=there.view(np.complex128).reshape(-1, self.p.channels),
            npix_x=n,
            npix_y=n,
            **self._gridder_options(),
        )
        return namespace_of(y).from_host(np.asarray(found).reshape(-1), y)


def frequencies(p: RadioParameters) -> np.ndarray:
    """Of the channels, in Hz, 1 % apart."""
    return 1e6 * p.megahertz * (1 + 0.01 * np.arange(p.channels))


def direct(p: RadioParameters, image: np.ndarray, uvw: np.ndarray) -> np.ndarray:
    """Visibilities by the sum over pixels."""
    l = (np.arange(p.pixels) - p.pixels // 2) * p.pixel  # noqa: E741 (the field's name for it)
    n = np.sqrt(1 - l[:, None] ** 2 - l**2)
    found = np.empty((len(uvw), p.channels), np.complex128)
    for row, (u, v, w) in enumerate(uvw):
        for channel, frequency in enumerate(frequencies(p)):
            turns = frequency / LIGHT * (u * l[:, None] + v * l + w * (n - 1))
            found[row, channel] = (image / n * np.exp(-2j * math.pi * turns)).sum()
    return found


class Positive(ProxOperator):
    """weight times the sum of x, of x that are not negative: its proximal operator is max(x - weight tau, 0)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def __call__(self, x: Any) -> float:
        return float(self.weight * x.sum())

    def prox(self, x: Any, tau: float, **options: Any) -> Any:
        """A threshold."""
        return each(lambda part: (part - self.weight * tau).clip(0), x)


def flux(image: np.ndarray, at: tuple[int, int], radius: float) -> float:
    """The sum of an image around a pixel."""
    i, j = np.ogrid[: image.shape[0], : image.shape[1]]
    return float(image[(i - at[0]) ** 2 + (j - at[1]) ** 2 <= radius**2].sum())


def apertures(p: RadioParameters) -> list[tuple[tuple[int, int], float]]:
    """Around which pixel, and how far, the flux of each point source and of the cloud is summed."""
    x, y, width, _ = CLOUD
    middle = round(x * p.pixels), round(y * p.pixels)
    return [*((position, p.pixels / 25) for position in positions(p)), (middle, 3.5 * width * p.pixels)]


def solve(p: RadioParameters, options: Options) -> Found:
    """Measure the sky, and find it again."""
    ranks = comm.current()
    counts = even_split(rows_of(p), ranks.size)
    first, count = sum(counts[: ranks.rank]), counts[ranks.rank]
    uvw = coverage(p, first, count)
    local = Degridding(p, uvw, ranks.threads)
    A = VStack([local])
    visibilities = rows_of(p) * p.channels
    options.progress(
        f"{visibilities} visibilities of {p.antennas} antennas on {counted(ranks.size, 'rank')}, "
        f"{p.pixels} x {p.pixels} pixels{'' if options.device == 'cpu' else '; ducc0 grids on the host, by copies'}"
    )
    truth = DistributedArray.to_dist(options.array(sky(p).reshape(-1)), partition=Partition.BROADCAST)
    data = A @ truth
    numbers = {"visibilities": float(visibilities), "degridding": far_from_sum(p, uvw, data)}
    without_noise = data.copy()
    data.local[...] += options.array(noise(p, first, count).reshape(-1).view(np.float64))
    dirty = A.H @ data
    there, back = float(without_noise.dot(data)), float(truth.dot(dirty))
    numbers["adjoint"] = abs(there - back) / abs(there)
    largest = float(power_iteration(A.H @ A, truth, maxiter=30, rtol=1e-3).eigenvalue.real)

    with timing(p.iterations) as iterations:
        least = cgls(
            A, data, maxiter=p.iterations, damp=p.damping * math.sqrt(largest), rtol=0,
            callback=options.counted(p.iterations),
        )  # fmt: skip
    weight = p.threshold * p.noise * math.sqrt(visibilities)
    with timing(p.steps) as steps:
        sparse = ProximalGradient(
            L2(A, data), Positive(weight), truth.zeros_like(), tau=0.95 / largest, maxiter=p.steps, acceleration="fista",
            callback=options.counted(p.steps),
        )  # fmt: skip
    shape = (p.pixels, p.pixels)
    images = {
        "sky": sky(p),
        "dirty": on_host(dirty.local).reshape(shape) / visibilities,
        "least squares": on_host(least.x.local).reshape(shape),
        "sparse": on_host(sparse.local).reshape(shape),
    }
    expected_noise = p.noise * math.sqrt(2 * visibilities)
    for name, x in (("least squares", least.x), ("sparse", sparse)):
        numbers[f"residual over noise, {name}"] = float((A @ x - data).norm()) / (expected_noise or 1.0)
    series = {
        f"fluxes, {name}": [flux(image, *position) for position in apertures(p)]
        for name, image in images.items()
    }
    return Found(
        numbers,
        series | {"residual": [float(norm) for norm in least.cost]},
        images | {"uv": uvw[:, :2] * frequencies(p)[0] / LIGHT},
        {"least squares, iterations": iterations, "sparse, steps": steps},
    )


def far_from_sum(p: RadioParameters, uvw: np.ndarray, data: DistributedArray) -> float:
    """How far visibilities are from the sum over pixels, at some rows of each rank: the norm of the differences over that of these
    visibilities, which is what the gridder limits."""
    some = np.linspace(0, len(uvw) - 1, min(SAMPLED, len(uvw))).astype(int)
    wanted = direct(p, sky(p), uvw[some])
    got = on_host(data.local).view(np.complex128).reshape(-1, p.channels)[some]
    squares = np.array([(abs(got - wanted) ** 2).sum(), (abs(wanted) ** 2).sum()])
    off, size = data.communicator.all_reduce(squares)
    return math.sqrt(off / size)


def expected(p: RadioParameters, found: Found) -> Expected:
    """Accuracy of the operator, fluxes of the sources, and residuals that are noise."""
    wanted: dict[str, Any] = {
        "degridding": AtMost(p.accuracy),
        "adjoint": AtMost(1e-12),
    }
    if p.noise:
        wanted["residual over noise, sparse"] = Near(1.0, 0.05)
    truth = sky(p)
    for k, (got, position) in enumerate(zip(found.series["fluxes, sparse"], apertures(p), strict=True)):
        wanted[f"flux of source {k + 1}, sparse"] = Of(got, Near(flux(truth, *position), 0.07))
    return wanted


def draw(found: Found, path: Path) -> None:
    """Where rank 0 measured, the sky, and the three images: square roots, so that faint sources are seen, of images that are smoothed by
    a pixel."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 5, figsize=(12, 3), layout="constrained")
    u, v = found.arrays["uv"][::5].T
    for sign in (1, -1):
        axes[0].plot(sign * u, sign * v, ",", color="C0", rasterized=True)
    axes[0].set(title="where it measures", xlabel="u (wavelengths)", ylabel="v (wavelengths)", aspect="equal")
    for axis, name in zip(axes[1:], ("sky", "dirty", "least squares", "sparse"), strict=True):
        image = found.arrays[name]
        k = 2 * math.pi * np.fft.fftfreq(len(image))
        image = np.fft.ifft2(np.fft.fft2(image) * np.exp(-(k[:, None] ** 2 + k**2) / 2)).real
        shown = np.sign(image) * np.sqrt(abs(image))
        most = abs(shown).max()
        axis.imshow(
            shown.T, origin="lower", cmap="inferno", interpolation="nearest", vmin=-0.2 * most, vmax=most
        )
        axis.set(title=name, xticks=[], yticks=[])
    figure.savefig(path, dpi=70)
    plt.close(figure)
