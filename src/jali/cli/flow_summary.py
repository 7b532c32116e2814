"""The gradient flow of many configurations: means along it, the scales t0 and w0, charge and susceptibility.

t^2 E is averaged over configurations first; t0 and w0 are then functions of these means, with errors that take the
autocorrelation into account. They are defined in four dimensions only, where t^2 E has no dimension, and exist where
the flow is long enough. Reads and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.errors import ParameterError
from jali.gauge import FlowPoint, reference_time, reference_width
from jali.statistics import Estimate, format_value, mean_error, mean_error_of

__all__ = ["LEVEL", "FlowSummary", "estimate_numbers", "summarise_flow"]

LEVEL = 0.3
"""t^2 E at t0, and t d(t^2 E)/dt at w0^2."""


@dataclass(frozen=True, eq=False)
class FlowSummary:
    """Means along the flow.

    Attributes:
        times: flow times, in lattice spacings squared, shape (k,).
        energy, energy_plaquette, t2_energy: one estimate per flow time.
        sweeps: when the flow was measured, shape (measurements,); numbers of configurations where there are no sweeps.
        charges: topological charge at the last flow time, shape (measurements,); nan where none is defined.
        charge, susceptibility: mean of Q and of Q^2 / V; None where no charge is defined.
        t0, w0: scales in lattice units (t0 / a^2 and w0 / a); None where they do not exist.
        notes: why a scale is missing, or to be taken with care.
        interval: sweeps between measurements, the unit of every tau_int.
    """

    times: NDArray[np.float64]
    energy: list[Estimate]
    energy_plaquette: list[Estimate]
    t2_energy: list[Estimate]
    sweeps: NDArray[np.float64]
    charges: NDArray[np.float64]
    charge: Estimate | None
    susceptibility: Estimate | None
    t0: Estimate | None
    w0: Estimate | None
    notes: tuple[str, ...]
    interval: int = 1

    def as_dict(self) -> dict[str, Any]:
        """As plain numbers for JSON."""

        def numbers(estimate: Estimate | None) -> dict[str, float | None] | None:
            return None if estimate is None else estimate_numbers(estimate, self.interval)

        return {
            "measurements": len(self.charges),
            "points": [
                {
                    "flow_time": float(time),
                    "energy": numbers(energy),
                    "energy_plaquette": numbers(plaquettes),
                    "t2_energy": numbers(t2_energy),
                }
                for time, energy, plaquettes, t2_energy in zip(
                    self.times, self.energy, self.energy_plaquette, self.t2_energy, strict=True
                )
            ],
            "charge": numbers(self.charge),
            "susceptibility": numbers(self.susceptibility),
            "t0": numbers(self.t0),
            "w0": numbers(self.w0),
            "notes": list(self.notes),
        }

    def in_words(self) -> list[str]:
        """The scales and the susceptibility, a line each; then remarks."""
        lines = []
        for name, unit, found in (("t0", "a^2", self.t0), ("w0", "a", self.w0)):
            if found is not None:
                lines.append(f"{name} = {format_value(found.mean, found.error)} {unit}")
        if self.susceptibility is not None:
            found = self.susceptibility
            lines.append(
                f"<Q^2> / V = {format_value(found.mean, found.error)} at flow time {self.times[-1]:g}"
            )
        return [*lines, *self.notes]


def estimate_numbers(estimate: Estimate, interval: int = 1) -> dict[str, float | None]:
    """An estimate as plain numbers for JSON; times in units of which measurements are `interval` apart."""
    return {
        "mean": estimate.mean,
        "error": _known(estimate.error),
        "tau_int": _known(estimate.tau_int * interval),
        "tau_int_error": _known(estimate.tau_int_error * interval),
        "window": estimate.window * interval,
    }


def summarise_flow(
    sweeps: NDArray[np.float64],
    times: Sequence[float],
    energy: NDArray[np.float64],
    energy_plaquette: NDArray[np.float64],
    charges: NDArray[np.float64],
    extents: Sequence[int],
    interval: int = 1,
) -> FlowSummary:
    """Means of energies of shape (measurements, times) and of charges at the last time, shape (measurements,)."""
    t = np.asarray(times, dtype=float)
    t2_energy = t**2 * energy
    scales: dict[str, Estimate] = {}
    notes: list[str] = []
    if len(extents) == 4:

        def points(means: NDArray[np.float64]) -> list[FlowPoint]:
            return [FlowPoint(float(a), float(b), math.nan, math.nan) for a, b in zip(t, means, strict=True)]

        definitions: dict[str, Callable[[Any], float]] = {
            "t0": lambda means: reference_time(points(means), LEVEL),
            "w0": lambda means: reference_width(points(means), LEVEL),
        }
        for name, definition in definitions.items():
            try:
                scales[name] = mean_error_of(definition, energy)
            except ParameterError as error:
                notes.append(f"{name} is not known: {error}.")
        notes += _caution(scales, extents)
    defined = bool(np.isfinite(charges).all())
    return FlowSummary(
        t,
        [mean_error(column) for column in energy.T],
        [mean_error(column) for column in energy_plaquette.T],
        [mean_error(column) for column in t2_energy.T],
        sweeps,
        charges,
        mean_error(charges) if defined else None,
        mean_error(charges**2 / math.prod(extents)) if defined else None,
        scales.get("t0"),
        scales.get("w0"),
        tuple(notes),
        interval,
    )


def _caution(scales: dict[str, Estimate], extents: Sequence[int]) -> list[str]:
    """Fields are smooth over sqrt(8 t), which has to fit into the box twice."""
    if "t0" not in scales:
        return []
    radius = math.sqrt(8 * scales["t0"].mean)
    if radius <= min(extents) / 2:
        return []
    return [
        f"sqrt(8 t0) = {radius:.2g} is more than half of the shortest extent, {min(extents)}: the box changes t0 and w0."
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
