"""What a run left behind, read back and analysed: the numbers behind ``report.html``.

A run directory holds ``parameters.toml``, ``history.csv`` (``HISTORY_COLUMNS``, one row per measurement,
thermalisation included) and perhaps ``timing.csv`` (``TIMING_COLUMNS``, one row per sweep). An empty field of
history.csv means that the observable does not exist for this lattice or was not measured. Nothing here draws.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.cli.parameters import load_parameters
from jali.cli.schema import Parameters
from jali.errors import FileFormatError
from jali.files import read_bytes
from jali.gauge.literature import Reference, plaquette_reference
from jali.statistics import Estimate, drift, mean_error

__all__ = ["HISTORY_COLUMNS", "TIMING_COLUMNS", "RunSummary", "summarise"]

MOST_BYTES = 1 << 32
"""Of a table: some 40 million rows."""

HISTORY_COLUMNS = (
    "sweep",
    "plaquette",
    "plaquette_spatial",
    "plaquette_temporal",
    "polyakov_re",
    "polyakov_im",
)

# Wall time of the update and of the measurements of each sweep, and links updated per second by all ranks
# together; each heat bath, Metropolis or overrelaxation pass counts as one update of every link.
TIMING_COLUMNS = ("sweep", "update_seconds", "measure_seconds", "link_updates_per_second")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run's parameters, history and results.

    Attributes:
        parameters: as in parameters.toml.
        history: columns of history.csv, each of shape (rows,); nan where a field is empty.
        timing: columns of timing.csv, or None without the file.
        estimates: mean and error of each observable after thermalisation; empty before the first measurement.
        interval: sweeps between measurements, the unit of every tau_int.
        reference: known plaquette of this theory on this lattice, if any.
        deviation: (plaquette - reference) / combined error; None without either, without errors, or where the
            reference holds for larger lattices only.
        drift: difference of the plaquette between the halves of the measurements, in sigma; nan if too short.
    """

    parameters: Parameters
    history: Mapping[str, FloatArray]
    timing: Mapping[str, FloatArray] | None
    estimates: Mapping[str, Estimate]
    interval: int
    reference: Reference | None
    deviation: float | None
    drift: float

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rows of the history lie after thermalisation."""
        return self.history["sweep"] > self.parameters.update.thermalisation

    @property
    def plaquette(self) -> FloatArray:
        """Plaquettes after thermalisation."""
        return self.history["plaquette"][self.measured]

    @property
    def target(self) -> Reference | None:
        """The reference, where it holds for the lattice of the run: what pictures may show beside the data."""
        return None if self.reference is None or self.reference.caution else self.reference

    @property
    def links(self) -> int:
        return self.parameters.volume * len(self.parameters.lattice.extents)

    def as_dict(self) -> dict[str, Any]:
        """The results as plain numbers for JSON; tau_int in sweeps, None for what is not known."""
        result: dict[str, Any] = {
            "group": self.parameters.gauge.group,
            "beta": self.parameters.gauge.beta,
            "extents": list(self.parameters.lattice.extents),
            "measurements": int(self.measured.sum()),
            "measure_every": self.interval,
            "observables": {
                name: estimate_numbers(estimate, self.interval) for name, estimate in self.estimates.items()
            },
            "drift_sigma": _known(self.drift),
            "reference": None,
        }
        if self.reference:
            result["reference"] = {
                "plaquette": self.reference.value,
                "error": self.reference.error,
                "source": self.reference.source,
                "caution": self.reference.caution,
                "deviation_sigma": self.deviation,
            }
        return result


def estimate_numbers(estimate: Estimate, interval: int = 1) -> dict[str, float | None]:
    """An estimate as plain numbers for JSON; times in units of which measurements are `interval` apart."""
    return {
        "mean": estimate.mean,
        "error": _known(estimate.error),
        "tau_int": _known(estimate.tau_int * interval),
        "tau_int_error": _known(estimate.tau_int_error * interval),
        "window": estimate.window * interval,
    }


def summarise(directory: str | Path) -> RunSummary:
    """Read and analyse a run directory.

    Raises:
        ParameterError: parameters.toml missing or wrong.
        FileFormatError: history.csv missing; either table with a wrong header, a wrong number of fields,
            something that is no number, a plaquette that is not finite, or sweeps that do not increase.
    """
    directory = Path(directory)
    parameters = load_parameters(directory / "parameters.toml")
    history = _read_table(directory / "history.csv", HISTORY_COLUMNS, optional=HISTORY_COLUMNS[2:])
    timing_file = directory / "timing.csv"
    timing = _read_table(timing_file, TIMING_COLUMNS, optional=()) if timing_file.exists() else None
    measured = history["sweep"] > parameters.update.thermalisation
    estimates = {}
    for name in HISTORY_COLUMNS[1:]:
        series = history[name][measured]
        if len(series) and np.isfinite(series).all():
            estimates[name] = mean_error(series)
    reference = plaquette_reference(parameters.gauge.group, parameters.gauge.beta, parameters.lattice.extents)
    plaquette = estimates.get("plaquette")
    deviation = None
    if reference and plaquette and not reference.caution:
        error = math.hypot(plaquette.error, reference.error)
        if error > 0 and math.isfinite(error):
            deviation = (plaquette.mean - reference.value) / error
    series = history["plaquette"][measured]
    return RunSummary(
        parameters,
        history,
        timing,
        estimates,
        parameters.run.measure_every,
        reference,
        deviation,
        drift(series) if len(series) else math.nan,
    )


def _read_table(path: Path, columns: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, FloatArray]:
    try:
        text = read_bytes(path, MOST_BYTES, "a table of a run").decode("utf-8")
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not a table: byte {error.start} is not UTF-8 text") from None
    lines = list(csv.reader(text.splitlines()))
    if not lines or tuple(lines[0]) != columns:
        found = ",".join(lines[0]) if lines else "nothing"
        raise FileFormatError(f"{path}, line 1: the header is {found!r}, not {','.join(columns)!r}")
    table = np.empty((len(lines) - 1, len(columns)))
    for row, fields in enumerate(lines[1:]):
        where = f"{path}, line {row + 2}"
        if len(fields) != len(columns):
            raise FileFormatError(
                f"{where}: {len(fields)} fields instead of {len(columns)}; was the file cut off?"
            )
        for column, (name, field) in enumerate(zip(columns, fields, strict=True)):
            table[row, column] = _number(field, name, where, name in optional)
    sweep = table[:, 0]
    backward = np.flatnonzero(np.diff(sweep) <= 0)
    if len(backward):
        row = int(backward[0]) + 1
        raise FileFormatError(
            f"{path}, line {row + 2}: sweep {sweep[row]:.0f} follows sweep {sweep[row - 1]:.0f}"
        )
    return {name: table[:, column].copy() for column, name in enumerate(columns)}


def _number(field: str, name: str, where: str, optional: bool) -> float:
    if optional and field in ("", "nan"):
        return math.nan
    try:
        value = float(field)
    except ValueError:
        raise FileFormatError(f"{where}: {name} is {field!r}, not a number") from None
    if not math.isfinite(value):
        raise FileFormatError(f"{where}: {name} is {field}; a run cannot have measured that")
    return value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
