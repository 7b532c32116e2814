"""`jali invert`: the quark propagator of a configuration, written into a file that other codes read."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np

from jali import comm
from jali.amounts import time_text
from jali.cli.configurations import add_source_arguments, load_configuration
from jali.cli.operators import add_operator_arguments, check_solve, numbers_given, operator_from
from jali.cli.quark_sources import add_quark_source_arguments, quark_sources
from jali.files import checked_path, shown
from jali.gauge import plaquette
from jali.hadrons import mesons, save_propagator, staggered_mesons
from jali.io.parallel import raised_alike, together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali invert`."""
    parser.description = (
        "Solve for the quark propagator from a source on a configuration, for all spins and colours at once, and write it as SciDAC in LIME "
        "(.prop, .lime, .scidac) or HDF5 (.h5, .hdf5)."
    )
    parser.add_argument("file", metavar="FILE", help="configuration file, or directory of a run")
    parser.add_argument(
        "--output",
        metavar="OUT.prop",
        help="file to write (default: FILE's name, the operator and its mass); an older one is replaced when done",
    )
    add_operator_arguments(parser)
    add_quark_source_arguments(parser, several=False)
    parser.add_argument(
        "--tolerance", type=float, default=1e-10, metavar="T", help="of |b - D S| / |b| (default 1e-10)"
    )
    parser.add_argument("--inner", metavar="STORAGE", help="of a recursion in few bits, such as fixed16")
    parser.add_argument(
        "--precision",
        type=int,
        choices=(32, 64),
        default=64,
        help="bits of a real number in OUT (default 64)",
    )
    parser.add_argument("--explain", action="store_true", help="say why the solver was chosen")
    add_source_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Read, solve, write, and print the pion's correlator."""
    ranks = comm.current()
    with together(ranks):
        numbers = numbers_given(arguments, "jali invert")
        sources = quark_sources(arguments)
        check_solve(arguments)
        output = arguments.output or _usual_name(arguments.file, arguments.operator, numbers)
        checked_path(output)
    configuration = load_configuration(
        arguments.file,
        arguments.lattice,
        arguments.group,
        ranks,
        arguments.device,
        verify=not arguments.ignore_checksum,
    )
    with raised_alike():
        configuration.require_header()
    U = configuration.U
    with raised_alike():
        (site,) = sources.places(U.lattice.extents)
        D = operator_from(arguments.operator, numbers, U)
        links = sources.links(U) if sources.smears else None
    b = sources.make(D, links, site, 0)
    solutions: list[Any] = []
    begun = time.monotonic()
    options = {} if arguments.inner is None else {"inner": arguments.inner}
    S = D.propagator(b, arguments.tolerance, on_solution=solutions.append, **options)
    seconds = time.monotonic() - begun
    members = [one for found in solutions for one in getattr(found, "members", [found])]
    residual = max(one.residual for one in members)
    metadata = {
        "configuration": ascii(os.path.basename(configuration.path.rstrip("/")))[1:-1],
        "configuration_plaquette": f"{plaquette(U):.15g}",
        "operator": arguments.operator,
        **{name: f"{value:.17g}" for name, value in numbers.items()},
        "source": f"{sources.kind} at {' '.join(map(str, site))}",
        "boundary": f"{sources.boundary} in time",
        "residual": f"{residual:.3g}",
    }
    if sources.smear is not None:
        metadata["smearing"] = (
            f"Gaussian, width {sources.smear[0]:g}, {sources.smear[1]} steps, links {sources.smear_links}"
        )
    with raised_alike():
        save_propagator(S, output, source=b, precision=arguments.precision, metadata=metadata)
    found = mesons(S, origin=site) if S.element.spinor else staggered_mesons(S, origin=site)
    pion = found["pion"]
    if ranks.rank == 0:
        result = {
            "file": configuration.path,
            "propagator": output,
            "operator": arguments.operator,
            "numbers": numbers,
            "source": {"kind": sources.kind, "at": list(site)},
            "iterations": [one.iterations for one in members],
            "residual": float(residual),
            "seconds": seconds,
            "pion": [float(c) for c in pion],
        }
        print(json.dumps(result, indent=2) if arguments.json else _render(result, pion), flush=True)
        if arguments.explain and not arguments.json:
            print(solutions[0].explain(), flush=True)
    return 0


def _usual_name(path: str, operator: str, numbers: dict[str, float]) -> str:
    name = os.path.basename(os.path.abspath(path))
    word = "kappa" if "kappa" in numbers else "mass"
    return f"{name}-{operator}-{word}{numbers[word]:g}.prop"


def _render(result: dict[str, Any], pion: np.ndarray) -> str:
    lines = [
        f"{shown(result['file'])} -> {shown(result['propagator'])}: {len(result['iterations'])} columns of {result['operator']}, {max(result['iterations'])} iterations at most, "
        f"largest |b - D S|/|b| {result['residual']:.1e}, {time_text(result['seconds'])}",
        "  t   pion C(t)",
        *(f"{t:3d}   {c:.12g}" for t, c in enumerate(pion)),
    ]
    return "\n".join(lines)
