"""Spectra of a turbulent velocity field: made with a given energy spectrum, or read from a file, and measured.

The field is made in Fourier space (Rogallo, NASA TM 81315 (1981), section 3.2): perpendicular to each wave vector k two complex
amplitudes have random phases and a random share of the energy, so no flow diverges, and all modes of a shell have the same energy. What
is random belongs to the wave vector: the same field comes out on any number of ranks, and the same large scales at any resolution. Each
component is one distributed transform of real numbers, "transposed", so one exchange.

The requested spectrum is Pope's model (Turbulent Flows, 2000, equations 6.246 to 6.248), or k^(-5/3). The box is 2 pi wide,
wave vectors k are whole numbers, and shell number s has those with |k| next to s: E(s) is the sum of |u_k|^2 / 2 over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.amounts import counted
from jali.array_namespaces import ArrayNamespace, namespace_of
from jali.arrays import DistributedArray, layout_of, load
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError
from jali.examples import AtMost, Expected, Found, Near, Of, Options, Sizes, Timing, on_host, timing
from jali.fft import FftPlan
from jali.philox import philox, uniform

KOLMOGOROV = 1.5
"""C of E = C epsilon^(2/3) k^(-5/3)."""
MODES = 1 << 21  # that are processed together
MOST_GATHERED = 1 << 21  # points of a field that is checked as a whole
POINTS = 4  # at which the field is compared with the sum over its modes
SPLITS = {"slabs": (0,), "pencils": (0, 1)}
PRECISIONS: dict[str, np.dtype[Any]] = {"double": np.dtype(np.float64), "single": np.dtype(np.float32)}


@dataclass(frozen=True)
class TurbulenceParameters(Sizes):
    """Of the field:

    - `n`: points in each direction; `precision`: double or single; `split`: slabs or pencils;
    - `spectrum`: pope or kolmogorov; `energy`: of the flow, <u^2> / 2;
    - `scale`: L of Pope's model; `resolution`: the largest wave number times the Kolmogorov length;
    - `seed`: names the field;
    - `file`: a velocity field to be measured instead, .npy or HDF5, of shape (3, x, y, z);
    - `viscosity`: of the fluid, 0 for that of the model.
    """

    LEAST = {"n": 4, "energy": 1e-30, "scale": 1e-3, "resolution": 1e-3, "seed": 0}  # noqa: RUF012
    WORDS = {"precision": tuple(PRECISIONS), "split": tuple(SPLITS), "spectrum": ("pope", "kolmogorov")}  # noqa: RUF012
    n: int = 64
    precision: str = "double"
    split: str = "slabs"
    spectrum: str = "pope"
    energy: float = 1.5
    scale: float = 1.0
    resolution: float = 1.5
    seed: int = 1
    file: str = ""
    viscosity: float = 0.0


SIZES = {
    "laptop": TurbulenceParameters(),
    "small": TurbulenceParameters(n=32),
    "large": TurbulenceParameters(n=256, precision="single"),
    "gpu": TurbulenceParameters(n=1024, precision="single"),
}


# --- the requested spectrum --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """E of the shells 0 to the largest, whose sum is the energy, and the viscosity that belongs to it, if any."""

    energy: np.ndarray
    viscosity: float = 0.0


def pope(k: np.ndarray, scale: float, eta: float) -> np.ndarray:
    """E(k) for a dissipation of 1, of Pope's model with large eddies of `scale` and the Kolmogorov length `eta`."""
    large = (k * scale / np.sqrt((k * scale) ** 2 + 6.78)) ** (5 / 3 + 2)
    small = np.exp(-5.2 * (((k * eta) ** 4 + 0.4**4) ** 0.25 - 0.4))
    return np.asarray(KOLMOGOROV * k ** (-5 / 3) * large * small)


def model(p: TurbulenceParameters, largest: int) -> Model:
    """The requested spectrum, in shells 1 to `largest`."""
    k = np.arange(1.0, largest + 1)
    if p.spectrum == "kolmogorov":
        shells = k ** (-5 / 3)
        return Model(np.concatenate(([0.0], p.energy * shells / shells.sum())), p.viscosity)
    shells = pope(k, p.scale, p.resolution / largest)
    dissipation = (p.energy / shells.sum()) ** 1.5
    shells *= p.energy / shells.sum()
    # where scales are far apart, this is also the viscosity of the Kolmogorov length
    return Model(np.concatenate(([0.0], shells)), dissipation / (2 * (k**2 * shells).sum()))


# --- modes --------------------------------------------------------------------------------------------------


class Modes:
    """Wave vectors of this rank's part of a spectrum.

    Going through it gives, for some rows after the other: where they are, the components of k (float64, which broadcast), and how
    many modes each stands for: two, where the conjugate is not there itself. `derivatives` are the components that derivatives are
    made with: zero for the highest frequency of an even extent, which stands for both signs.
    """

    def __init__(self, plan: FftPlan, like: Any) -> None:
        self.plan, self.namespace = plan, namespace_of(like)
        layout, extents = plan.result_layout, plan.layout.shape
        axes = []
        for axis, (begin, end) in enumerate(layout.box):
            k = np.arange(begin, end)
            k = np.where(k < (extents[axis] + 1) // 2, k, k - extents[axis]) if axis < 2 else k
            shape = [1, 1, 1]
            shape[axis] = end - begin
            axes.append(k.reshape(shape))
        self.k = [self._there(k.astype(np.float64), like) for k in axes]
        slopes = [np.where(2 * abs(k) == n, 0, k) for k, n in zip(axes, extents, strict=True)]
        self.slopes = [self._there(k.astype(np.float64), like) for k in slopes]
        own = (axes[2] == 0) | (2 * axes[2] == extents[2])
        self.weights = self._there(np.where(own, 1.0, 2.0), like)
        self.rows, a, b = layout.local_shape
        self.step = max(1, MODES // max(1, a * b))
        self.empty = self.rows * a * b == 0
        self.shells = int(math.hypot(*(n // 2 for n in extents)) + 0.5) + 1
        self.largest = (
            min(extents) - 1
        ) // 2  # whose shell is complete, and has no mode that stands for two signs

    def _there(self, x: np.ndarray, like: Any) -> Any:
        return self.namespace.from_host(x, like)

    def __iter__(self) -> Iterator[tuple[slice, list[Any], Any]]:
        for first in range(0, 0 if self.empty else self.rows, self.step):
            rows = slice(first, min(first + self.step, self.rows))
            yield rows, [self.k[0][rows], *self.k[1:]], self.weights

    def derivatives(self, rows: slice) -> list[Any]:
        """The components of k that derivatives are made with."""
        return [self.slopes[0][rows], *self.slopes[1:]]

    def shell(self, k: list[Any]) -> Any:
        """The number of the shell of each."""
        length = self.namespace.xp.sqrt(k[0] ** 2 + k[1] ** 2 + k[2] ** 2)
        return self.namespace.astype(length + 0.5, np.int64)

    def square(self, x: Any) -> Any:
        """|x|^2 in double precision."""
        return sum(self.namespace.astype(part, np.float64) ** 2 for part in (x.real, x.imag))

    def sums(self, numbers: Any, values: Any, count: int) -> Any:
        """Sums of values by their numbers, 0 to count - 1."""
        one = self.namespace.xp.broadcast_to(numbers, values.shape)
        return self.namespace.xp.bincount(one.reshape(-1), weights=values.reshape(-1), minlength=count)

    def modes_of_shells(self, ranks: Communicator) -> np.ndarray:
        """How many there are in each, on all ranks together. Collective."""
        counts = np.zeros(self.shells)
        for _, k, weights in self:
            shell = self.shell(k)
            ones = self.namespace.xp.broadcast_to(weights, shell.shape)
            counts += self.namespace.to_host(self.sums(shell, ones, self.shells))
        return np.asarray(ranks.all_reduce(counts))


def amplitudes(modes: Modes, k: list[Any], table: Any, seed: int) -> tuple[list[tuple[Any, Any]], Any]:
    """Of each component the real and the imaginary part, and the sign of the latter.

    In the plane where both a mode and its conjugate are, one of them draws for both.
    """
    namespace = modes.namespace
    other = (k[2] == 0) & ((k[0] < 0) | ((k[0] == 0) & (k[1] < 0)))
    sign = 1.0 - 2.0 * namespace.astype(other, np.float64)
    k = [sign * one for one in k]
    words = philox([*(namespace.astype(one, np.int64) for one in k), 0], seed)
    xp = namespace.xp
    first, second, share = (2 * math.pi * uniform(word) for word in words[:3])
    across = xp.sqrt(k[0] ** 2 + k[1] ** 2)
    along = namespace.astype(across == 0, np.float64)  # of such k any direction is perpendicular
    cosine, sine = k[0] / (across + along), k[1] / (across + along) + along
    length = xp.sqrt(across**2 + k[2] ** 2)
    length = length + namespace.astype(length == 0, np.float64)
    size = table[modes.shell(k)]
    found = []
    one, two = size * xp.cos(share), size * xp.sin(share)
    for turn in (xp.cos, xp.sin):
        a, b = one * turn(first), two * turn(second)
        slope = b * k[2] / length
        found.append((a * sine + slope * cosine, slope * sine - a * cosine, -b * across / length))
    return list(zip(*found, strict=True)), sign


# --- making a field -----------------------------------------------------------------------------------------


def plan_for(shape: tuple[int, ...], split: str) -> FftPlan:
    """The transform of a component: energy is the sum of squares on both sides."""
    layout = layout_of(comm.current(), shape, axis=SPLITS[split])
    return FftPlan(layout, kind="rfft", result="transposed", norm="forward")


def synthesize(
    plan: FftPlan, target: np.ndarray, seed: int, namespace: ArrayNamespace, precision: str, options: Options
) -> tuple[list[DistributedArray], float]:
    """A velocity field whose shells have the energies `asked`, and how far it is from the sum over its modes at some points, relative
    to the mean square of the velocity. Collective."""
    real = PRECISIONS[precision]
    complex_type = np.dtype(f"c{2 * real.itemsize}")
    ranks, shape = plan.layout.communicator, plan.result_layout.local_shape
    spectra = [
        DistributedArray.of(plan.result_layout, namespace.empty(shape, complex_type)) for _ in range(3)
    ]
    modes = Modes(plan, spectra[0].local)
    counts = modes.modes_of_shells(ranks)
    table = np.zeros(modes.shells)
    table[: len(target)] = np.sqrt(2 * target / np.maximum(counts[: len(target)], 1))
    on_device = namespace.from_host(table, spectra[0].local)
    points = [
        tuple(n * (2 * q + 1) * (axis + 3) // 17 % n for axis, n in enumerate(plan.layout.shape))
        for q in range(POINTS)
    ]
    direct = np.zeros((POINTS, 3))
    for rows, k, weights in modes:
        parts, sign = amplitudes(modes, k, on_device, seed)
        for axis, (a, b) in enumerate(parts):
            spectra[axis].local[rows] = a + 1j * (sign * b)
        for q, point in enumerate(points):
            wave = weights
            for x, n, one in zip(point, plan.layout.shape, k, strict=True):
                phase = 2 * math.pi * x / n * one
                wave = wave * (namespace.xp.cos(phase) + 1j * namespace.xp.sin(phase))
            for axis, (a, b) in enumerate(parts):
                direct[q, axis] += float((a * wave.real - sign * b * wave.imag).sum())
    ranks.all_reduce(direct, direct)
    field = []
    for number in range(3):
        field.append(plan.inverse(spectra[number], overwrite_x=True))
        spectra[number] = None  # type: ignore[call-overload]
        options.advance(number + 1, 6)
    there = np.zeros((POINTS, 3))
    for q, point in enumerate(points):
        if all(begin <= x < end for x, (begin, end) in zip(point, plan.layout.box, strict=True)):
            here = tuple(x - begin for x, (begin, _) in zip(point, plan.layout.box, strict=True))
            there[q] = [float(component.local[here]) for component in field]
    ranks.all_reduce(there, there)
    return field, float(abs(there - direct).max() / math.sqrt(2 * target.sum()))


def read(p: TurbulenceParameters, engine: str) -> tuple[FftPlan, list[DistributedArray]]:
    """The components in a file. Collective. Raises ShapeError, ParameterError; and what `jali.arrays.load` does."""
    axes = tuple(axis + 1 for axis in SPLITS[p.split])
    x = load(p.file, axis=axes, engine=engine)
    if x.ndim != 4 or x.global_shape[0] != 3 or min(x.global_shape) < 1:
        raise ShapeError(
            f"{Path(p.file).name}: a velocity field has the shape (3, x, y, z), not {x.global_shape}"
        )
    if np.dtype(str(x.dtype).removeprefix("torch.")).kind != "f":
        raise ParameterError(f"{Path(p.file).name}: velocities are real numbers, not {x.dtype}")
    plan = plan_for(x.global_shape[1:], p.split)
    return plan, [DistributedArray.of(plan.layout, x.local[axis]) for axis in range(3)]


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Of a velocity field: E of each shell; energy, the mean of u^2 / 2 in space; enstrophy, the mean of |curl u|^2 / 2, by modes; the size
    of k . u_k over that of |k| |u_k|; and the mean square of each component by wave number along itself."""

    shells: np.ndarray
    energy: float
    enstrophy: float
    divergence: float
    longitudinal: list[np.ndarray]

    def integral_scale(self) -> float:
        """pi / (2 u'^2) times the sum of E(k) / k (Pope, equation 6.225, of isotropic flow)."""
        k = np.arange(1, len(self.shells))
        return float(0.75 * math.pi / self.energy * (self.shells[1:] / k).sum())

    def structure(self, distances: np.ndarray) -> np.ndarray:
        """The mean square of u_i(x + r e_i) - u_i(x), over the three directions i."""
        found = np.zeros(len(distances))
        for energies in self.longitudinal:
            k = np.arange(len(energies))
            found += 2 / 3 * (1 - np.cos(np.outer(distances, k))) @ energies
        return found


def measure(plan: FftPlan, field: list[DistributedArray], options: Options) -> Measured:
    """The spectrum of a velocity field. Collective."""
    ranks, namespace = plan.layout.communicator, namespace_of(field[0].local)
    energy = sum(float(component.dot(component)) for component in field) / 2 / math.prod(plan.layout.shape)
    divergence = modes = None
    lines = [n // 2 + 1 for n in plan.layout.shape]
    totals: list[np.ndarray] = []
    for axis, component in enumerate(field):
        y = plan(component)
        if modes is None:
            modes = Modes(plan, y.local)
            divergence = namespace.zeros_like(y.local)
            totals = [np.zeros(modes.shells), np.zeros(1), np.zeros(1), *(np.zeros(n) for n in lines)]
        assert divergence is not None
        for rows, k, weights in modes:
            part, slopes = y.local[rows], modes.derivatives(rows)
            squares = weights * modes.square(part)
            totals[0] += namespace.to_host(modes.sums(modes.shell(k), squares / 2, modes.shells))
            totals[1] += float((sum(slope**2 for slope in slopes) * squares).sum())
            number = namespace.astype(abs(k[axis]), np.int64)
            totals[3 + axis] += namespace.to_host(modes.sums(number, squares, lines[axis]))
            divergence[rows] += slopes[axis] * part
            if axis == 2:
                totals[2] += float((weights * modes.square(divergence[rows])).sum())
        options.advance(4 + axis, 6)
    gathered = np.concatenate(totals)
    ranks.all_reduce(gathered, gathered)
    shells, gradients, flows, *longitudinal = np.split(gathered, np.cumsum([len(one) for one in totals])[:-1])
    ratio = math.sqrt(flows[0] / gradients[0]) if gradients[0] else 0.0
    return Measured(shells, energy, float(gradients[0] - flows[0]) / 2, ratio, longitudinal)


def solve(p: TurbulenceParameters, options: Options) -> Found:
    """Make or read a field, and measure it."""
    ranks = comm.current()
    target = None
    numbers: dict[str, float] = {}
    times: dict[str, Timing] = {}
    if p.file:
        plan, field = read(p, options.engine)
        viscosity = p.viscosity
        options.progress(
            f"{Path(p.file).name}: {' x '.join(map(str, plan.layout.shape))} points on {counted(ranks.size, 'rank')}"
        )
    else:
        plan = plan_for((p.n,) * 3, p.split)
        target = model(p, (p.n - 1) // 2)
        viscosity = p.viscosity or target.viscosity
        options.progress(
            f"{p.n}^3 points in {p.split} on {counted(ranks.size, 'rank')}, {p.precision} precision"
        )
        with timing(1) as times["making the field"]:
            field, numbers["direct sum"] = synthesize(
                plan, target.energy, p.seed, options.namespace, p.precision, options
            )
    with timing(1) as times["measuring it"]:
        found = measure(plan, field, options)
    if not (found.energy > 0 and math.isfinite(found.energy)):
        raise ParameterError(
            f"the energy of the flow is {found.energy:g}, so there is no spectrum to measure: the velocity is zero everywhere, or "
            "somewhere no number"
        )
    largest = min((n - 1) // 2 for n in plan.layout.shape)
    numbers |= {
        "energy": found.energy,
        "energy of modes": float(found.shells.sum()),
        "divergence": found.divergence,
        "enstrophy": found.enstrophy,
        "integral scale": found.integral_scale(),
    }
    if found.enstrophy:
        numbers["Taylor scale"] = math.sqrt(5 * found.energy / found.enstrophy)
    viscosity = float(viscosity)
    dissipation = 2 * viscosity * found.enstrophy
    if dissipation:
        speed = math.sqrt(2 * found.energy / 3)
        numbers |= {
            "dissipation": dissipation,
            "Kolmogorov scale": (viscosity**3 / dissipation) ** 0.25,
            "Taylor Reynolds number": speed * numbers["Taylor scale"] / viscosity,
        }
    if target is not None:
        there = slice(1, len(target.energy))
        numbers["spectrum"] = float(abs(found.shells[there] / target.energy[there] - 1).max())
        numbers["beyond"] = float(found.shells[len(target.energy) :].sum() / found.energy)
    n = plan.layout.shape[0]
    distances = 2 * math.pi / n * np.arange(n // 2 + 1)
    structure = found.structure(distances)
    arrays: dict[str, Any] = {
        "distances": distances,
        "slice": on_host(field[0].global_index[:, :, 0].asarray()),
    }
    if target is not None:
        arrays["target"] = target.energy
    if math.prod(plan.layout.shape) <= MOST_GATHERED:
        arrays["velocity"] = np.stack([on_host(component.asarray()) for component in field])
    series = {"E": found.shells[: largest + 1].tolist(), "structure": structure.tolist()}
    return Found(numbers, series, arrays, times)


# --- checking and drawing -----------------------------------------------------------------------------------


def expected(p: TurbulenceParameters, found: Found) -> Expected:
    """What follows from how the field was made, and, of a field that fits into one process, what NumPy finds in it."""
    of_file = bool(p.file)
    u = found.arrays.get("velocity")
    single = p.precision == "single" if u is None or not of_file else u.dtype.itemsize < 8
    eps = 2e-5 if single else 1e-12
    wanted: dict[str, Any] = {"energy of modes": Near(found.numbers["energy"], eps)}
    if not of_file:
        wanted |= {
            "energy": Near(p.energy, eps),
            "direct sum": AtMost(eps),
            "divergence": AtMost(eps),
            "spectrum": AtMost(eps),
            "beyond": AtMost(eps**2),
        }
    if u is not None:
        for name, value in by_numpy(u.astype(np.float64)).items():
            series, _, index = name.partition("_")
            if not index:
                wanted[name] = Near(value, 10 * eps)
            elif int(index) < len(found.series[series]):
                wanted[name] = Of(found.series[series][int(index)], Near(value, 10 * eps))
    return wanted


def by_numpy(u: np.ndarray) -> dict[str, float]:
    """Numbers of a velocity field in the words of their definitions: complex transforms of the whole, differences in space."""
    extents = u.shape[1:]
    k = np.meshgrid(*(np.rint(np.fft.fftfreq(n) * n) for n in extents), indexing="ij")
    modes = np.fft.fftn(u, axes=(1, 2, 3)) / math.prod(extents)
    energies = (abs(modes) ** 2).sum(0) / 2
    length = np.sqrt(k[0] ** 2 + k[1] ** 2 + k[2] ** 2)
    d = [np.where(2 * abs(one) == n, 0, one) for one, n in zip(k, extents, strict=True)]
    curl = [d[(i + 1) % 3] * modes[(i + 2) % 3] - d[(i + 2) % 3] * modes[(i + 1) % 3] for i in range(3)]
    found = {f"E_{s}": float(energies[abs(length - s) <= 0.5].sum()) for s in (1, 2, 4)}
    found["enstrophy"] = float(sum((abs(one) ** 2).sum() for one in curl) / 2)
    if len(set(extents)) == 1:
        for r in (1, 4):
            steps = [np.roll(u[i], -r, axis=i) - u[i] for i in range(3)]
            found[f"structure_{r}"] = float(np.mean([(one**2).mean() for one in steps]))
    return found


def draw(found: Found, path: Path) -> None:
    """A slice, the spectrum, the same times what makes it flat, and the structure function."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(12, 3), layout="constrained")
    u = found.arrays["slice"]
    most = abs(u).max()
    axes[0].imshow(
        u.T,
        cmap="RdBu_r",
        vmin=-most,
        vmax=most,
        origin="lower",
        extent=(0, 2, 0, 2),
        interpolation="nearest",
    )
    axes[0].set(title="u in a plane", xlabel="x / π", ylabel="y / π")
    shells = np.array(found.series["E"][1:])
    k = np.arange(1, len(shells) + 1)
    dissipation = found.numbers.get("dissipation")
    axes[1].loglog(k, shells, "o", markersize=3, label="measured")
    flat = (dissipation or 1.0) ** (-2 / 3) * k ** (5 / 3)
    axes[2].loglog(k, flat * shells, "o", markersize=3)
    if "target" in found.arrays:
        target = found.arrays["target"][1:]
        axes[1].loglog(k, target, "-", linewidth=1, label="asked for")
        axes[2].loglog(k, flat * target, "-", linewidth=1)
    if dissipation:
        axes[2].axhline(KOLMOGOROV, color="gray", linestyle=":")
    positive = shells[shells > 0]
    lowest = max(positive.min(), positive.max() * 1e-8)
    axes[1].set(title="spectrum", xlabel="k", ylabel="E(k)", ylim=(lowest / 2, 2 * positive.max()))
    axes[1].legend()
    axes[2].set(
        title="compensated spectrum",
        xlabel="k",
        ylabel="ε$^{-2/3}$ k$^{5/3}$ E(k)" if dissipation else "k$^{5/3}$ E(k)",
    )
    r, structure = found.arrays["distances"][1:], np.array(found.series["structure"][1:])
    axes[3].loglog(r, structure, "o-", markersize=3, linewidth=1)
    axes[3].loglog(r, structure[0] * (r / r[0]) ** 2, ":", color="gray", label="r²")
    if dissipation:  # Pope, equation 6.30
        axes[3].loglog(r, 2 * (dissipation * r) ** (2 / 3), "--", color="gray", label="2 (ε r)$^{2/3}$")
    axes[3].set(
        title="structure function",
        xlabel="r",
        ylabel="<(u(x+r) - u(x))²>",
        ylim=(structure.min() / 2, 2 * structure.max()),
    )
    axes[3].legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)
