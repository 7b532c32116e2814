"""`jali convert`: a configuration written again in another format, precision or number of rows.

Links go from one file to the other as they are, unless they are to be projected back to the group. Plaquette
and link trace of the new header are computed from the links in the precision of the new file; the rest of the
metadata is kept. A source whose header does not belong to its links is refused.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from jali import comm, io
from jali.cli.configurations import (
    Configuration,
    add_source_arguments,
    load_configuration,
    warn,
)
from jali.errors import ParameterError
from jali.gauge import link_trace, plaquette
from jali.gauge.field import link_format_named, link_formats, require_configuration
from jali.io.formats import writers
from jali.io.parallel import raised_alike, together
from jali.lattice.saving import endings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali convert`."""
    titles = " or ".join([*(writer.title for writer in writers().values()), "arrays or fields"])
    parser.description = f"Rewrite a configuration file, or the checkpoint of a run, as {titles}."
    parser.add_argument("source", metavar="IN", help="configuration file, or directory of a run")
    parser.add_argument("target", metavar="OUT", help="file to write; an existing one is replaced when done")
    parser.add_argument("--format", choices=link_formats(), help="format of OUT (default: by its name)")
    parser.add_argument(
        "--precision", type=int, choices=(32, 64), help="bits of a real number (default: as in IN)"
    )
    parser.add_argument(
        "--rows", type=int, choices=(2, 3), help=f"rows of a link, {_of_two_rows()} only (default 3)"
    )
    parser.add_argument(
        "--reunitarise", action="store_true", help="project the links back to the group first"
    )
    add_source_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Read, perhaps project, write."""
    ranks = comm.current()
    with together(ranks):
        format = arguments.format or format_of(arguments.target)
        writer = writers().get(format)
        if arguments.rows == 2 and not (writer and writer.two_rows):
            raise ParameterError(f"two rows can be stored in {_of_two_rows()} files only, not as {format}")
    configuration = load_configuration(
        arguments.source,
        arguments.lattice,
        arguments.group,
        ranks,
        arguments.device,
        verify=not arguments.ignore_checksum,
    )
    U = configuration.U
    warn(configuration, U.unitarity_deviation(), ranks)
    with together(ranks):
        if writer is not None:
            require_configuration(U)
        if writer is not None and writer.n not in (None, U.n):
            others = " or ".join(
                name for name in link_formats() if name not in writers() or writers()[name].n in (None, U.n)
            )
            raise ParameterError(
                f"{configuration.path}: {writer.title} files hold {_group(writer.n)} only, this is {_group(U.n)}; "
                f"use --format {others}"
            )
    configuration.require_header("; nothing written")
    if arguments.reunitarise:
        U.reunitarise()
    precision = arguments.precision or configuration.precision
    result = write(configuration, arguments.target, format, precision, arguments.rows or 3)
    if ranks.rank == 0:
        print(json.dumps(result, indent=2) if arguments.json else render(result), flush=True)
    return 0


def write(
    configuration: Configuration, target: str, format: str, precision: int, rows: int
) -> dict[str, Any]:
    """Write the links (collective) and return what was written, as plain values. Raises ParameterError, OSError."""
    U = configuration.U
    lattice = U.lattice
    links = U.local_links()
    if precision == 32:
        # The header is computed from the digits that the file keeps.
        links = links.astype(np.complex64)
        U.set_local_links(links)
    numbers = {"plaquette": plaquette(U), "link_trace": link_trace(U)}
    writer = writers().get(format)
    with raised_alike():
        if writer is None:
            U.save(target, format, precision=precision)
        else:
            box = io.Box(lattice.local_origin, lattice.local_extents)
            options: dict[str, Any] = {
                **numbers,
                "precision": precision,
                "metadata": configuration.metadata,
                "ranks": lattice.communicator,
            }
            if writer.two_rows:
                options["rows"] = rows
            writer.write(target, links, box, lattice.extents, **options)
    return {
        "source": configuration.path,
        "source_format": configuration.format,
        "file": target,
        "format": format,
        "extents": list(lattice.extents),
        "group": _group(U.n),
        "precision": precision,
        "rows": rows if writer is not None and writer.two_rows else U.n,
        **numbers,
    }


def render(result: dict[str, Any]) -> str:
    """The result as text."""
    extents = " x ".join(map(str, result["extents"]))
    writer = writers().get(result["format"])
    rows = f", {result['rows']} rows" if writer is not None and writer.two_rows else ""
    return (
        f"{result['source']} ({result['source_format']}) -> {result['file']}: {result['format']}, "
        f"{result['group']} on {extents}, {result['precision']} bits{rows}, "
        f"plaquette {result['plaquette']:.12f}, link trace {result['link_trace']:.12f}"
    )


def format_of(name: str) -> str:
    """The format that a file name suggests by its ending or beginning. Raises ParameterError if it does not."""
    found = link_format_named(name)
    if found is None:
        known = [*(ending for writer in writers().values() for ending in writer.endings), *endings()]
        raise ParameterError(
            f"the name {name} does not tell a format (known endings: {', '.join(known)}); "
            f"give --format {' or '.join(link_formats())}"
        )
    return found


def _of_two_rows() -> str:
    """The formats that hold links without their third row."""
    return ", ".join(writer.title for writer in writers().values() if writer.two_rows)


def _group(n: int | None) -> str:
    return "U(1)" if n == 1 else f"SU({n})"
