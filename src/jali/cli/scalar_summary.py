"""The scalars of a run, read back and averaged: |phi|^2, |phi|^4 and the hopping term of each. Reads and draws nothing; `report_data` reads the table whose columns are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.cli.flow_summary import estimate_numbers
from jali.cli.scalars import names_on_sphere
from jali.statistics import Estimate, format_value, mean_error

SCALARS = "scalars"
"""The table of a run."""

SCALAR_COLUMNS = ("sweep", "scalar", "phi2", "phi4", "hopping")
"""A row per scalar, counted from 0 as in the parameters: means over sites of |phi|^2 and |phi|^4, and over links of Re phi(x)^dagger U phi(x+mu)."""


@dataclass(frozen=True)
class ScalarSummary:
    """Means of a scalar after thermalisation; `interval` is that of measurements in sweeps, the unit of every tau_int."""

    name: str
    kind: str
    on_sphere: bool
    interval: int
    phi2: Estimate
    phi4: Estimate
    hopping: Estimate

    def titled(self) -> list[tuple[str, Estimate]]:
        """The estimates with what they are of, without the lengths of unit vectors."""
        hopping = (f"hopping of {self.name}", self.hopping)
        if self.on_sphere:
            return [hopping]
        return [(f"<|{self.name}|^2>", self.phi2), (f"<|{self.name}|^4>", self.phi4), hopping]

    def as_dict(self) -> dict[str, Any]:
        """As plain numbers for JSON; tau_int in sweeps."""
        return {
            "name": self.name,
            "kind": self.kind,
            "phi2": estimate_numbers(self.phi2, self.interval),
            "phi4": estimate_numbers(self.phi4, self.interval),
            "hopping": estimate_numbers(self.hopping, self.interval),
        }

    def in_words(self) -> str:
        """The line of the end of a run."""
        parts = [f"{title} {format_value(one.mean, one.error)}" for title, one in self.titled()]
        longest = max((one for _, one in self.titled()), key=lambda one: one.tau_int)
        if np.isfinite(longest.tau_int):
            tau = format_value(longest.tau_int * self.interval, longest.tau_int_error * self.interval)
            parts.append(f"longest tau_int {tau} sweeps")
        return ", ".join(parts)


def summarise_scalars(
    table: Mapping[str, NDArray[np.float64]],
    scalars: Sequence[Mapping[str, Any]],
    thermalisation: int,
    interval: int,
) -> tuple[ScalarSummary, ...]:
    """The summaries of the checked scalars of a run; empty before the first measurement after thermalisation."""
    found, on_sphere = [], names_on_sphere(scalars)
    for k, one in enumerate(scalars):
        own = (table["scalar"] == k) & (table["sweep"] > thermalisation)
        if own.any():
            phi2, phi4, hopping = (mean_error(table[name][own]) for name in SCALAR_COLUMNS[2:])
            found.append(
                ScalarSummary(
                    one["name"], one["kind"], one["name"] in on_sphere, interval, phi2, phi4, hopping
                )
            )
    return tuple(found)
