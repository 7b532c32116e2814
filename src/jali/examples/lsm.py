"""Least-squares migration: two reflectors, from data of sources that are spread over ranks.

Each rank models the data of its sources by Kirchhoff demigration; all have the whole image. Conjugate gradients on the normal
equations find the image whose data are the recorded ones. An iteration is one all-reduce of the image: the adjoint of a column
of operators.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.amounts import counted
from jali.arrays import DistributedArray, Partition
from jali.arrays.layout import even_split
from jali.errors import ParameterError
from jali.examples import AtMost, Expected, Found, Of, Options, Sizes, furthest, on_host, timing
from jali.examples.wavelets import ricker
from jali.linops import Kirchhoff, VStack
from jali.solvers import cgls

STEP = 4.0  # metres between image points
VELOCITY = 1000.0
INTERVAL = 0.004
LARGEST_CHECKED = (
    1 << 26
)  # paths from a source by a point to a receiver that serial pylops may have in a check


@dataclass(frozen=True)
class LsmParameters(Sizes):
    """Points of the image across and down, sources of all ranks (0: so many of each rank), receivers, samples of traces, iterations,
    and GiB of tables that a rank keeps, 16 bytes for each of its sources, receivers and image points."""

    LEAST = {"nx": 22, "nz": 4, "sources": 0, "sources_per_rank": 0, "times": 2}  # noqa: RUF012
    nx: int = 81
    nz: int = 60
    sources: int = 20
    sources_per_rank: int = 0
    receivers: int = 11
    times: int = 651
    iterations: int = 20
    tables: float = 1.0

    def all_sources(self, ranks: int) -> int:
        """How many there are. Raises ParameterError for none."""
        if not self.sources and not self.sources_per_rank:
            raise ParameterError("sources or sources_per_rank is 1 or more, both are 0")
        return self.sources or self.sources_per_rank * ranks


SIZES = {
    "laptop": LsmParameters(),
    "small": LsmParameters(nx=31, nz=30, sources=6, receivers=5, times=201, iterations=10),
    # the same work for each rank, so that the time of an iteration should not depend on how many there are
    "gpu": LsmParameters(
        nx=1001, nz=501, sources=0, sources_per_rank=64, receivers=51, times=2501, iterations=20, tables=32.0
    ),
    # a large image and few data, so that the sum over ranks, of 16 MB, is much of an iteration
    "wide": LsmParameters(
        nx=2001, nz=1001, sources=0, sources_per_rank=2, receivers=4, times=4501, iterations=20, tables=1.0
    ),
}

# PyLops-MPI 0.8.0 on two ranks with 10 sources each: 522, 279, 191, 142, 115
KNOWN = (522.4306, 279.1068, 190.6238, 142.3014, 114.7231)


def reflectors(p: LsmParameters) -> np.ndarray:
    """The model to be recovered."""
    image = np.zeros((p.nx, p.nz))
    image[:, p.nz // 2], image[:, 5 * p.nz // 6] = -1, 0.5
    return image


def geometry(p: LsmParameters, first: int, count: int, sources: int) -> tuple[Any, ...]:
    """Of so many sources from the first on: what a Kirchhoff operator of pylops and of jali takes."""
    span = 10 * STEP, (p.nx - 10) * STEP
    positions = np.linspace(*span, sources)[first : first + count]
    return (
        np.arange(p.nz) * STEP,
        np.arange(p.nx) * STEP,
        np.arange(p.times) * INTERVAL,
        np.vstack((positions, np.full(count, 10.0))),
        np.vstack((np.linspace(*span, p.receivers), np.full(p.receivers, 20.0))),
        VELOCITY,
        ricker(20.0, INTERVAL, 40),
        40,
    )


def solve(p: LsmParameters, options: Options) -> Found:
    """Norms of residuals; of arrays the reflectors, their migration and the inverse, and the data of the first source."""
    ranks = comm.current()
    sources = p.all_sources(ranks.size)
    counts = even_split(sources, ranks.size)
    mine = geometry(p, sum(counts[: ranks.rank]), counts[ranks.rank], sources)
    modelling = VStack([Kirchhoff(*mine, keep=int(p.tables * (1 << 30)))])
    image = options.array(reflectors(p).reshape(-1))
    data = modelling @ DistributedArray.to_dist(image, partition=Partition.BROADCAST)
    options.progress(f"{data.global_shape[0]} samples of {sources} sources on {counted(ranks.size, 'rank')}")
    migrated = modelling.H @ data
    with timing(p.iterations) as iterations:
        solution = cgls(modelling, data, maxiter=p.iterations, rtol=0, callback=options.counted(p.iterations))
    options.progress(f"residual {solution.cost[0]:.1f} -> {solution.cost[-1]:.1f}")
    return Found(
        {"sources": sources, "fall": float(solution.cost[-1] / solution.cost[0])},
        {"residual": [float(norm) for norm in solution.cost]},
        {
            "reflectors": reflectors(p),
            "migration": on_host(migrated.local).reshape(p.nx, p.nz),
            "inverse": on_host(solution.x.local).reshape(p.nx, p.nz),
            "data": on_host(data.local)[: p.receivers * p.times].reshape(p.receivers, p.times),
        },
        {"iterations": iterations},
    )


def expected(p: LsmParameters, found: Found) -> Expected:
    """Residuals of PyLops-MPI, where they are known, and of serial pylops, where the problem is small."""
    wanted: dict[str, Any] = {"fall": AtMost(0.5)}
    if p == SIZES["laptop"]:
        wanted["residuals - PyLops-MPI"] = Of(furthest(found.series["residual"], KNOWN), AtMost(1e-6))
        return wanted
    sources = int(found.numbers["sources"])
    if sources * p.receivers * p.nx * p.nz <= LARGEST_CHECKED:
        import pylops

        with warnings.catch_warnings():  # of arguments that are not given here
            warnings.simplefilter("ignore", FutureWarning)
            modelling = pylops.waveeqprocessing.Kirchhoff(*geometry(p, 0, sources, sources), mode="analytic")
        data = modelling @ reflectors(p).reshape(-1)
        cost = pylops.cgls(modelling, data, niter=p.iterations, tol=0)[-1]
        wanted["residuals - pylops"] = Of(furthest(found.series["residual"], cost), AtMost(1e-6))
    return wanted


def draw(found: Found, path: Path) -> None:
    """Three images and the data of one source."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
    for axis, name in zip(axes, ("reflectors", "migration", "inverse"), strict=False):
        image = found.arrays[name]
        most = abs(image).max()
        extent = (0, image.shape[0] * STEP, image.shape[1] * STEP, 0)
        axis.imshow(
            image.T, cmap="gray", vmin=-most, vmax=most, extent=extent, aspect="auto", interpolation="nearest"
        )
        axis.set(title=name, xlabel="x (m)", ylabel="z (m)")
    traces = found.arrays["data"]
    receivers, times = traces.shape
    heard = np.flatnonzero(abs(traces).max(0) > 0.01 * abs(traces).max())
    axes[3].imshow(
        traces.T,
        cmap="gray",
        extent=(0.5, receivers + 0.5, times * INTERVAL, 0),
        aspect="auto",
        interpolation="nearest",
    )
    axes[3].set(
        title="data of a source", xlabel="receiver", ylabel="t (s)", ylim=(1.1 * heard[-1] * INTERVAL, 0)
    )
    figure.savefig(path)
    plt.close(figure)
