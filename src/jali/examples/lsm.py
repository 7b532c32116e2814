"""Least-squares migration: two reflectors, from data of sources that are spread over ranks.

Each rank models the data of its sources by Kirchhoff demigration; all have the whole image. Conjugate gradients on the normal
equations find the image whose data are the recorded ones. An iteration is one all-reduce of the image: the adjoint of a column
of operators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.arrays.layout import even_split
from jali.arrays.libraries import library_by_name, library_of
from jali.examples import Expected, Found, Options
from jali.linops import Kirchhoff, VStack
from jali.solvers import cgls

NX, NZ, STEP = 81, 60, 4.0  # image points and metres between them
VELOCITY = 1000.0
RECEIVERS, SOURCES = 11, 20
TIMES, INTERVAL = 651, 0.004
ITERATIONS = 20

# PyLops-MPI 0.8.0 on two ranks: 522, 279, 191, 142, 115
EXPECTED: Expected = {
    "residual_0": (522.4306, 1e-6),
    "residual_1": (279.1068, 1e-6),
    "residual_2": (190.6238, 1e-6),
    "residual_3": (142.3014, 1e-6),
    "residual_4": (114.7231, 1e-6),
}


def ricker(frequency: float, samples: int) -> np.ndarray:
    """A wavelet with so many samples on both sides of its middle one."""
    a = (np.pi * frequency * INTERVAL * np.arange(-samples, samples + 1)) ** 2
    return np.asarray((1 - 2 * a) * np.exp(-a))


def reflectors() -> np.ndarray:
    """What shall be found again."""
    image = np.zeros((NX, NZ))
    image[:, 30], image[:, 50] = -1, 0.5
    return image


def demigration(first: int, count: int) -> Kirchhoff:
    """That of so many sources from the first on."""
    span = 10 * STEP, (NX - 10) * STEP
    sources = np.linspace(*span, SOURCES)[first : first + count]
    receivers = np.linspace(*span, RECEIVERS)
    return Kirchhoff(
        np.arange(NZ) * STEP,
        np.arange(NX) * STEP,
        np.arange(TIMES) * INTERVAL,
        np.vstack((sources, np.full(count, 10.0))),
        np.vstack((receivers, np.full(RECEIVERS, 20.0))),
        VELOCITY,
        ricker(20.0, 40),
        40,
    )


def solve(options: Options) -> Found:
    """Norms of residuals; of arrays the reflectors, their migration and the inverse, and the data of the middle source."""
    ranks = comm.current()
    counts = even_split(SOURCES, ranks.size)
    modelling = VStack([demigration(sum(counts[: ranks.rank]), counts[ranks.rank])])
    library = library_by_name(options.engine)
    image = library.xp.asarray(reflectors().reshape(-1))
    data = modelling @ DistributedArray.to_dist(image, partition=Partition.BROADCAST)
    options.progress(f"{data.global_shape[0]} samples of {SOURCES} sources on {ranks.size} ranks")
    migrated = modelling.H @ data
    solution = cgls(modelling, data, niter=ITERATIONS)
    options.progress(f"residual {solution.cost[0]:.1f} -> {solution.cost[-1]:.1f}")

    def on_host(x: Any) -> np.ndarray:
        return library_of(x).to_host(x)

    shots = on_host(data.asarray()).reshape(SOURCES, RECEIVERS, TIMES)
    return Found(
        {f"residual_{k}": float(norm) for k, norm in enumerate(solution.cost)},
        {
            "reflectors": reflectors(),
            "migration": on_host(migrated.local).reshape(NX, NZ),
            "inverse": on_host(solution.x.local).reshape(NX, NZ),
            "data": shots[SOURCES // 2],
        },
    )


def draw(found: Found, path: Path) -> None:
    """Three images and the data of one source."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.5), layout="constrained")
    extent = (0, NX * STEP, NZ * STEP, 0)
    for axis, name in zip(axes, ("reflectors", "migration", "inverse"), strict=False):
        image = found.arrays[name]
        most = abs(image).max()
        axis.imshow(image.T, cmap="gray", vmin=-most, vmax=most, extent=extent, aspect="auto")
        axis.set(title=name, xlabel="x (m)", ylabel="z (m)")
    traces = found.arrays["data"]
    axes[3].imshow(traces.T, cmap="gray", extent=(0.5, RECEIVERS + 0.5, TIMES * INTERVAL, 0), aspect="auto")
    axes[3].set(title="data of a source", xlabel="receiver", ylabel="t (s)", ylim=(1, 0))
    figure.savefig(path)
    plt.close(figure)
