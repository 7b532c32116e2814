"""What a run left behind, read back and analysed: the numbers behind ``report.html``.

A run directory holds ``parameters.toml``, ``history.csv`` (``HISTORY_COLUMNS``, one row per measurement,
thermalisation included), perhaps ``timing.csv`` (``TIMING_COLUMNS``, one row per sweep) and ``flow.csv``
(``FLOW_COLUMNS``, one row per flow time of each flow, none during thermalisation). Of hybrid Monte Carlo it holds the tables
of ``jali.cli.hmc_summary``, of scalars that of ``jali.cli.scalar_summary``. An empty field means that the observable does not exist for this lattice or was not measured.
Nothing here draws.
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

from jali.cli.flow_summary import FlowSummary, estimate_numbers, summarise_flow
from jali.cli.hmc_summary import (
    FORCE_COLUMNS,
    FORCES,
    KICK_COLUMNS,
    KICKS,
    SCALAR_FORCE_COLUMNS,
    SCALAR_FORCES,
    TRAJECTORIES,
    TRAJECTORY_COLUMNS,
    HmcSummary,
    summarise_trajectories,
)
from jali.cli.parameters import load_parameters
from jali.cli.scalar_summary import SCALAR_COLUMNS, SCALARS, ScalarSummary, summarise_scalars
from jali.cli.schema import HMC, RunParameters
from jali.cli.terms import is_gauge_alone, term_names
from jali.errors import FileFormatError
from jali.files import read_bytes
from jali.gauge.literature import Reference, plaquette_reference
from jali.hmc import INTEGRATORS
from jali.statistics import Estimate, drift, mean_error

__all__ = ["FLOW_COLUMNS", "HISTORY_COLUMNS", "TIMING_COLUMNS", "RunSummary", "summarise"]

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

FLOW_COLUMNS = ("sweep", "flow_time", "energy", "energy_plaquette", "t2_energy", "charge")

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
        flow: means along the gradient flow; None where it was not measured.
        hmc: trajectories and forces; None without hybrid Monte Carlo.
        scalars: means of scalar fields; empty where there are none, or no measurement.
    """

    parameters: RunParameters
    history: Mapping[str, FloatArray]
    timing: Mapping[str, FloatArray] | None
    estimates: Mapping[str, Estimate]
    interval: int
    reference: Reference | None
    deviation: float | None
    drift: float
    flow: FlowSummary | None
    hmc: HmcSummary | None = None
    scalars: tuple[ScalarSummary, ...] = ()

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
            "action": self.parameters.gauge.action,
            "beta": self.parameters.gauge.beta,
            "extents": list(self.parameters.lattice.extents),
            "measurements": int(self.measured.sum()),
            "measure_every": self.interval,
            "observables": {
                name: estimate_numbers(estimate, self.interval) for name, estimate in self.estimates.items()
            },
            "drift_sigma": _known(self.drift),
            "flow": None if self.flow is None else self.flow.as_dict(),
            "hmc": None if self.hmc is None else self.hmc.as_dict(),
            "scalars": [one.as_dict() for one in self.scalars],
            "reference": None,
        }
        if self.reference:
            result["reference"] = {
                "plaquette": self.reference.value,
                "error": self.reference.error,
                "kind": self.reference.kind,
                "source": self.reference.source,
                "caution": self.reference.caution,
                "deviation_sigma": self.deviation,
            }
        return result


def observables_of(group: str) -> tuple[str, ...]:
    """The columns of history.csv with information: traces of SU(2) are real, so its Polyakov loop has no other part."""
    names = HISTORY_COLUMNS[1:]
    return names[:-1] if group == "SU(2)" else names


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
    for name in observables_of(parameters.gauge.group):
        series = history[name][measured]
        if len(series) and np.isfinite(series).all():
            estimates[name] = mean_error(series)
    gauge = parameters.gauge
    known = gauge.action == "wilson" and is_gauge_alone(
        parameters.hmc.terms
    )  # the plaquettes that we know are all of the Wilson action
    reference = plaquette_reference(gauge.group, gauge.beta, parameters.lattice.extents) if known else None
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
        _read_flow(directory / "flow.csv", parameters),
        _read_hmc(directory, parameters) if parameters.update.algorithm == HMC else None,
        _read_scalars(directory / f"{SCALARS}.csv", parameters),
    )


def _read_hmc(directory: Path, parameters: RunParameters) -> HmcSummary | None:
    """The trajectories and forces of a run; None without their tables. Raises FileFormatError."""
    paths = {name: directory / f"{name}.csv" for name in (TRAJECTORIES, FORCES, KICKS, SCALAR_FORCES)}
    if not paths[TRAJECTORIES].exists():
        return None
    optional = ("dH", "reversibility", "unitarity")
    trajectories = _read_table(paths[TRAJECTORIES], TRAJECTORY_COLUMNS, optional)
    forces, kicks, scalar_forces = (
        _read_table(paths[name], columns, (), repeated=True) if paths[name].exists() else None
        for name, columns in (
            (FORCES, FORCE_COLUMNS),
            (KICKS, KICK_COLUMNS),
            (SCALAR_FORCES, SCALAR_FORCE_COLUMNS),
        )
    )
    hmc = parameters.hmc
    return summarise_trajectories(
        trajectories,
        forces,
        kicks,
        parameters.update.thermalisation,
        hmc.steps,
        INTEGRATORS[hmc.integrator[0]].order,
        term_names(hmc.terms),
        scalar_forces,
        [one["name"] for one in hmc.scalars],
    )


def _read_scalars(path: Path, parameters: RunParameters) -> tuple[ScalarSummary, ...]:
    """Means of the scalars of a run; none without the table. Raises FileFormatError."""
    if not path.exists():
        return ()
    table = _read_table(path, SCALAR_COLUMNS, (), repeated=True)
    every, thermalisation = parameters.run.measure_every, parameters.update.thermalisation
    return summarise_scalars(table, parameters.hmc.scalars, thermalisation, every)


def _read_flow(path: Path, parameters: RunParameters) -> FlowSummary | None:
    """Means of flow.csv; None without the file and without a measurement. Raises FileFormatError."""
    if not path.exists():
        return None
    table = _read_table(path, FLOW_COLUMNS, optional=("charge",), repeated=True)
    sweeps, counts = np.unique(table["sweep"], return_counts=True)
    if not len(sweeps):
        return None
    shape = (len(sweeps), int(counts[0]))
    times = table["flow_time"]
    if (counts != counts[0]).any() or (times.reshape(shape) != times[: shape[1]]).any():
        raise FileFormatError(f"{path}: the flows of its sweeps do not have the same flow times")
    return summarise_flow(
        sweeps,
        times[: shape[1]].tolist(),
        table["energy"].reshape(shape),
        table["energy_plaquette"].reshape(shape),
        table["charge"].reshape(shape)[:, -1],
        parameters.lattice.extents,
        parameters.measure.flow_every,
    )


def _read_table(
    path: Path, columns: tuple[str, ...], optional: tuple[str, ...], repeated: bool = False
) -> dict[str, FloatArray]:
    """The columns of a table, whose sweeps increase; `repeated` allows several rows of one sweep."""
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
    step = np.diff(sweep)
    backward = np.flatnonzero(step < 0 if repeated else step <= 0)
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
