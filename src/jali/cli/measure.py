"""`jali measure`: plaquettes, Polyakov loop and link trace of configurations, the gradient flow, and their means.

Configurations are files, or the folder of a run, which means all that it has saved. Everything is computed from the links, in
float64, and then compared with the file's header: a header that does not match the links is an error, after the numbers have
been printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali import comm
from jali.cli.configurations import (
    Configuration,
    add_source_arguments,
    keep_fault,
    load_configuration,
    sources_of,
    warn,
)
from jali.cli.error_text import several
from jali.cli.flow_summary import FlowSummary, estimate_numbers, summarise_flow
from jali.cli.markov_chain import flow_profile, flow_steps
from jali.cli.report_data import observables_of
from jali.errors import FileFormatError, JaliError, ParameterError
from jali.files import shown
from jali.gauge import link_trace, plaquettes, polyakov_loop
from jali.io.parallel import raised_alike, together
from jali.io.writing import write_file
from jali.statistics import Estimate, format_value, mean_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali measure`."""
    parser.description = (
        "Measure configuration files (NERSC, ILDG, SciDAC, MILC, .npy, HDF5, .jali), the configurations that a run has saved, or its checkpoint "
        "where it saves none. Means over several have errors that know about autocorrelation; the order given is that "
        "of the Markov chain."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="configuration file, or directory of a run")
    parser.add_argument(
        "--output",
        metavar="FILE.json",
        help="write what --json prints into this file, beside what is printed",
    )
    parser.add_argument(
        "--flow", action="store_true", help="energy density and charge along the gradient flow"
    )
    parser.add_argument(
        "--flow-time", type=float, default=1.0, metavar="T", help="flow time at which it ends (default 1.0)"
    )
    parser.add_argument(
        "--flow-step", type=float, default=0.02, metavar="S", help="step of its integrator (default 0.02)"
    )
    add_source_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Measure one file after the other. A fault of one does not prevent measuring the others."""
    ranks = comm.current()
    with together(ranks):
        for name, value in (("--flow-time", arguments.flow_time), ("--flow-step", arguments.flow_step)):
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name} {value:g} should be a positive number")
        if arguments.flow:
            flow_steps(arguments.flow_time, arguments.flow_step)
    results: list[dict[str, Any]] = []
    problems: list[Exception] = []
    for source in sources_of(arguments.files, ranks, problems):
        try:
            configuration = load_configuration(
                source.path,
                arguments.lattice,
                arguments.group,
                ranks,
                arguments.device,
                verify=not arguments.ignore_checksum,
            )
        except (JaliError, OSError) as error:
            if source.saved is not None and isinstance(error, FileNotFoundError):
                error.strerror = f"{error.strerror}; {shown(source.saved.manifest)} lists it"
            keep_fault(error, problems)
            continue
        result = measure(configuration)
        result["number"] = None if source.saved is None else source.saved.number
        deviation = result["unitarity_deviation"]
        result["warnings"] = warn(configuration, math.inf if deviation is None else deviation, ranks)
        if arguments.flow:
            profile = flow_profile(configuration.U, arguments.flow_time, arguments.flow_step)
            result["charge"] = _known(profile[-1][-1])
            names = ("flow_time", "energy", "energy_plaquette", "t2_energy", "charge")
            result["flow"] = [dict(zip(names, map(_known, row), strict=True)) for row in profile]
        agrees = True
        try:
            with raised_alike():
                configuration.require_header()
        except FileFormatError as error:
            agrees = False
            problems.append(error)
        other = source.saved.mismatch(configuration.file) if source.saved and configuration.file else None
        if other:
            problems.append(FileFormatError(other))
        result["in_means"] = source.in_means and agrees and not other and _is_finite(result)
        results.append(result)
        if ranks.rank == 0 and not arguments.json:
            print(render_line(result) if source.saved else render(result), flush=True)
    with together(ranks):
        if ranks.rank == 0:
            _conclude(results, arguments)
    with together(ranks):
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise several(problems)
    return 0


def _conclude(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print and write what all configurations have in common."""
    means = ensemble_means(results)
    common = None if means is None else means.as_dict()
    document = json.dumps({"configurations": results, "means": common}, indent=2, allow_nan=False)
    if arguments.output is not None:
        write_file(arguments.output, f"{document}\n".encode())
    if arguments.json:
        print(document, flush=True)
    elif means is not None:
        print(render_means(means), flush=True)


@dataclass(frozen=True)
class EnsembleMeans:
    """Means over configurations, with errors that take the autocorrelation into account; times are in configurations."""

    configurations: int
    left_out: int
    spacing: int | None
    estimates: dict[str, Estimate]
    flow: FlowSummary | None

    def as_dict(self) -> dict[str, Any]:
        """As plain numbers for JSON."""
        return {
            "configurations": self.configurations,
            "left_out": self.left_out,
            "spacing": self.spacing,
            "observables": {name: estimate_numbers(found) for name, found in self.estimates.items()},
            "flow": None if self.flow is None else self.flow.as_dict(),
        }


def ensemble_means(results: Sequence[dict[str, Any]]) -> EnsembleMeans | None:
    """Means over the configurations that count; None for less than two, and for several lattices or groups."""
    counted = [result for result in results if result["in_means"]]
    if len(counted) < 2 or len({(tuple(result["extents"]), result["group"]) for result in counted}) > 1:
        return None
    columns: dict[str, list[Any]] = {}
    for name in observables_of(counted[0]["group"]):
        loop = {"polyakov_re": 0, "polyakov_im": 1}.get(name)
        columns[name] = [
            result[name] if loop is None else (result["polyakov"] or [None, None])[loop] for result in counted
        ]
    return EnsembleMeans(
        len(counted),
        len(results) - len(counted),
        _spacing([result["number"] for result in counted]),
        {name: mean_error(column) for name, column in columns.items() if None not in column},
        _flow(counted),
    )


def _is_finite(result: dict[str, Any]) -> bool:
    """Whether what is averaged are numbers."""
    energies = [point["energy"] for point in result.get("flow", [])]
    return None not in (result["plaquette"], *(result["polyakov"] or ()), *energies)


def _flow(results: Sequence[dict[str, Any]]) -> FlowSummary | None:
    """Means along the flow, if it was measured."""
    if "flow" not in results[0]:
        return None
    numbers = {
        name: np.array([[point[name] for point in result["flow"]] for result in results], dtype=float)
        for name in ("flow_time", "energy", "energy_plaquette", "charge")
    }
    return summarise_flow(
        np.arange(1.0, len(results) + 1),
        numbers["flow_time"][0].tolist(),
        numbers["energy"],
        numbers["energy_plaquette"],
        numbers["charge"][:, -1],
        results[0]["extents"],
    )


def _spacing(numbers: Sequence[int | None]) -> int | None:
    """Updates between one configuration and the next, where that is known and always the same."""
    if None in numbers:
        return None
    steps = {after - before for before, after in itertools.pairwise(n for n in numbers if n is not None)}
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else None


def measure(configuration: Configuration) -> dict[str, Any]:
    """The results for a configuration, as plain values; None where something does not exist."""
    U, file = configuration.U, configuration.file
    mean, spatial, temporal = plaquettes(U)
    loop = None if U.lattice.ndim - 1 in U.open else polyakov_loop(U)
    return {
        "file": configuration.path,
        "format": configuration.format,
        "extents": list(U.lattice.extents),
        "group": "U(1)" if U.n == 1 else f"SU({U.n})",
        "precision": configuration.precision,
        "rows": configuration.rows,
        "boundary": U[0].boundary.words,
        "checksum": configuration.checksum,
        "checksum_ignored": configuration.checksum is None and configuration.carries_checksum,
        "plaquette": _known(mean),
        "plaquette_spatial": _known(spatial),
        "plaquette_temporal": _known(temporal),
        "link_trace": _known(link_trace(U)),
        "polyakov": None if loop is None else [_known(loop.real), _known(loop.imag)],
        "unitarity_deviation": _known(U.unitarity_deviation()),
        "header": None if file is None else {"plaquette": file.plaquette, "link_trace": file.link_trace},
    }


def render(result: dict[str, Any]) -> str:
    """A result as text."""
    extents = " x ".join(map(str, result["extents"]))
    rows = "" if result["rows"] >= 3 or result["group"] != "SU(3)" else ", two rows"
    checksum, boundary = result["checksum"], result["boundary"]
    lines = [
        result["file"],
        f"  {result['format']}, {result['group']} on {extents}, {result['precision']} bits{rows}, "
        + (
            f"{checksum} checksum verified"
            if checksum
            else "checksum ignored"
            if result["checksum_ignored"]
            else "no checksum"
        )
        + ("" if set(boundary) == {"periodic"} else f", boundary {', '.join(boundary)}"),
        f"  plaquette           {_number(result['plaquette'])}{_header(result, 'plaquette')}",
    ]
    for name in ("plaquette_spatial", "plaquette_temporal"):
        if result[name] is not None:
            lines.append(f"  {name:<20}{_number(result[name])}")
    lines.append(f"  link trace          {_number(result['link_trace'])}{_header(result, 'link_trace')}")
    if result["polyakov"] is not None:
        re, im = (math.nan if part is None else part for part in result["polyakov"])
        lines.append(f"  Polyakov loop       {_number(re)} {'+' if im >= 0 else '-'} {_number(abs(im))} i")
    deviation = result["unitarity_deviation"]
    lines.append(f"  unitarity           rms deviation {math.inf if deviation is None else deviation:.1e}")
    if "flow" in result:
        lines.append("  flow time   E           t^2 E       charge")
        for point in result["flow"]:
            charge = "" if point["charge"] is None else f"{point['charge']:<+12.6f}"
            lines.append(
                f"  {point['flow_time']:<12.4g}{point['energy']:<12.6g}{point['t2_energy']:<12.6g}{charge}".rstrip()
            )
    return "\n".join(lines)


def render_line(result: dict[str, Any]) -> str:
    """One of many configurations as text."""
    line = f"{result['file']}  plaquette {_number(result['plaquette'])}"
    if result["polyakov"] is not None:
        re, im = (math.nan if part is None else part for part in result["polyakov"])
        line += f"  Polyakov loop {re:+.6f} {im:+.6f} i"
    if "flow" in result:
        last = result["flow"][-1]
        charge = "" if last["charge"] is None else f"  charge {last['charge']:+.4f}"
        line += f"  t^2 E({last['flow_time']:g}) {last['t2_energy']:.6g}{charge}"
    return line


def render_means(means: EnsembleMeans) -> str:
    """Means as text."""
    apart = "" if means.spacing is None else f", {_sweeps(means.spacing)} apart"
    left = f", {means.left_out} left out" if means.left_out else ""
    lines = [f"means of {means.configurations} configurations{apart}{left}, errors with autocorrelation"]
    for name, found in means.estimates.items():
        value = format_value(found.mean, found.error)
        lines.append(f"  {name:<20}{value:<20}tau_int {format_value(found.tau_int, found.tau_int_error)}")
    if means.flow is not None:
        lines += [f"  {line}" for line in means.flow.in_words()]
    return "\n".join(lines)


def _sweeps(number: int) -> str:
    return f"{number} sweep{'' if number == 1 else 's'}"


def _header(result: dict[str, Any], name: str) -> str:
    said = (result["header"] or {}).get(name)
    return "" if said is None else f"   header {said!r}"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "beyond numbers"
    return f"{value:.12f}" if abs(value) < 1e6 else f"{value:.12e}"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
