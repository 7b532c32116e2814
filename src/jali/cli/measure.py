"""`jali measure`: plaquettes, Polyakov loop and link trace of configuration files, and the gradient flow.

Everything is computed from the links, in float64, and only then compared with what the file says about
itself: a file whose header does not belong to its links is an error, after the numbers have been printed.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from jali import comm
from jali.cli.configurations import Configuration, add_source_arguments, load_configuration, warn
from jali.cli.markov_chain import flow_profile, flow_steps
from jali.errors import FileFormatError, JaliError, ParameterError
from jali.files import RECORD
from jali.gauge import link_trace, plaquettes, polyakov_loop
from jali.io.parallel import together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali measure`."""
    parser.description = "Measure configuration files (NERSC, ILDG, SciDAC, MILC) or the checkpoints of runs."
    parser.add_argument("files", nargs="+", metavar="FILE", help="configuration file, or directory of a run")
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
    """Measure one file after the other. What is wrong with one does not keep the others from being measured."""
    ranks = comm.current()
    with together(ranks):
        for name, value in (("--flow-time", arguments.flow_time), ("--flow-step", arguments.flow_step)):
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name} {value:g} should be a positive number")
        if arguments.flow:
            flow_steps(arguments.flow_time, arguments.flow_step)
    results: list[dict[str, Any]] = []
    problems: list[Exception] = []
    for path in arguments.files:
        try:
            configuration = load_configuration(
                path,
                arguments.lattice,
                arguments.group,
                ranks,
                arguments.device,
                verify=not arguments.ignore_checksum,
            )
        except (JaliError, OSError) as error:
            if not getattr(error, "on_every_rank", False):
                raise
            problems.append(error)
            continue
        result = measure(configuration)
        deviation = result["unitarity_deviation"]
        result["warnings"] = warn(configuration, math.inf if deviation is None else deviation, ranks)
        if arguments.flow:
            profile = flow_profile(configuration.U, arguments.flow_time, arguments.flow_step)
            result["charge"] = _known(profile[-1][-1])
            names = ("flow_time", "energy", "energy_plaquette", "t2_energy", "charge")
            result["flow"] = [dict(zip(names, map(_known, row), strict=True)) for row in profile]
        mismatch = configuration.mismatch(
            *(math.nan if result[name] is None else result[name] for name in ("plaquette", "link_trace"))
        )
        if mismatch:
            problems.append(FileFormatError(f"header mismatch: {mismatch}"))
        results.append(result)
        if ranks.rank == 0 and not arguments.json:
            print(render(result), flush=True)
    if ranks.rank == 0 and arguments.json:
        print(json.dumps(results, indent=2, allow_nan=False), flush=True)
    with together(ranks):
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise FileFormatError(RECORD.join(map(str, problems)))
    return 0


def measure(configuration: Configuration) -> dict[str, Any]:
    """What there is to say about a configuration, as plain values; None where something does not exist."""
    U, file = configuration.U, configuration.file
    mean, spatial, temporal = plaquettes(U)
    loop = polyakov_loop(U)
    return {
        "file": configuration.path,
        "format": configuration.format,
        "extents": list(U.lattice.extents),
        "group": "U(1)" if U.n == 1 else f"SU({U.n})",
        "precision": configuration.precision,
        "rows": configuration.rows,
        "checksum": configuration.checksum,
        "checksum_ignored": configuration.checksum is None and configuration.carries_checksum,
        "plaquette": _known(mean),
        "plaquette_spatial": _known(spatial),
        "plaquette_temporal": _known(temporal),
        "link_trace": _known(link_trace(U)),
        "polyakov": [_known(loop.real), _known(loop.imag)],
        "unitarity_deviation": _known(U.unitarity_deviation()),
        "header": None if file is None else {"plaquette": file.plaquette, "link_trace": file.link_trace},
    }


def render(result: dict[str, Any]) -> str:
    """A result for people."""
    extents = " x ".join(map(str, result["extents"]))
    rows = "" if result["rows"] >= 3 or result["group"] != "SU(3)" else ", two rows"
    checksum = result["checksum"]
    lines = [
        result["file"],
        f"  {result['format']}, {result['group']} on {extents}, {result['precision']} bits{rows}, "
        + (
            f"{checksum} checksum verified"
            if checksum
            else "checksum ignored"
            if result["checksum_ignored"]
            else "no checksum"
        ),
        f"  plaquette           {_number(result['plaquette'])}{_header(result, 'plaquette')}",
    ]
    for name in ("plaquette_spatial", "plaquette_temporal"):
        if result[name] is not None:
            lines.append(f"  {name:<20}{_number(result[name])}")
    re, im = (math.nan if part is None else part for part in result["polyakov"])
    deviation = result["unitarity_deviation"]
    lines += [
        f"  link trace          {_number(result['link_trace'])}{_header(result, 'link_trace')}",
        f"  Polyakov loop       {_number(re)} {'+' if im >= 0 else '-'} {_number(abs(im))} i",
        f"  unitarity           rms deviation {math.inf if deviation is None else deviation:.1e}",
    ]
    if "flow" in result:
        lines.append("  flow time   E           t^2 E       charge")
        for point in result["flow"]:
            charge = "" if point["charge"] is None else f"{point['charge']:<+12.6f}"
            lines.append(
                f"  {point['flow_time']:<12.4g}{point['energy']:<12.6g}{point['t2_energy']:<12.6g}{charge}".rstrip()
            )
    return "\n".join(lines)


def _header(result: dict[str, Any], name: str) -> str:
    said = (result["header"] or {}).get(name)
    return "" if said is None else f"   header {said!r}"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "beyond numbers"
    return f"{value:.12f}" if abs(value) < 1e6 else f"{value:.12e}"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
