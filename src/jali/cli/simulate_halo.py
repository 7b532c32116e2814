"""`jali simulate halo`: how long an update of a split lattice takes on a described machine, with every halo policy.

The kernels are those of `jali bench halo`; any other is simulated from Python (`SiteFunction.bind(...).simulate`). One
is compiled for a lattice of a few sites, to know what it reads: nothing of the simulated size is made.
"""

from __future__ import annotations

import argparse
import json
import math

from jali import _core, comm
from jali.cli.plan_arguments import factors_argument, load_machine, names_argument
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.errors import ParameterError
from jali.lattice.lattice import Lattice

SMALL = 4  # sites in each direction of the lattice for which the kernel is compiled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali simulate halo`."""
    halo = parser.add_argument_group("halo")
    halo.add_argument(
        "--kernel",
        metavar="NAME",
        help="staple (default), plaquette, wilson or laplace, as of jali bench halo",
    )
    halo.add_argument(
        "--lattice",
        type=factors_argument,
        metavar="L,L,...",
        help="sites of the whole lattice in each direction",
    )
    halo.add_argument(
        "--grid",
        type=factors_argument,
        metavar="N,N,...",
        help="ranks in each direction (default: the best for all ranks of the machine's nodes)",
    )
    halo.add_argument("--precision", choices=IEEE_PRECISIONS[::-1], help="of the fields (default float64)")
    halo.add_argument(
        "--policies", type=names_argument, metavar="NAME,...", help="these policies (default: all)"
    )
    halo.add_argument(
        "--site-ns",
        type=float,
        metavar="NS",
        help="what the kernel takes per site on one rank, if it was measured",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Simulate and print; only rank 0 calls this."""
    from jali.bench.halo import KERNELS

    kernel = "staple" if arguments.kernel is None else arguments.kernel
    if arguments.lattice is None:
        raise ParameterError("give the sites of the whole lattice: --lattice 32,32,32,64")
    if kernel not in KERNELS:
        raise ParameterError(f"no kernel {kernel!r} here; there are {', '.join(KERNELS)}")
    if kernel != "laplace" and not 2 <= len(arguments.lattice) <= 4:
        raise ParameterError(f"the kernel {kernel!r} needs 2 to 4 directions, not {len(arguments.lattice)}")
    if arguments.site_ns is not None and not 0 < arguments.site_ns < math.inf:
        raise ParameterError(f"--site-ns {arguments.site_ns}: a positive number of nanoseconds is needed")
    machine = load_machine(arguments.machine, arguments.nodes)
    grid = arguments.grid
    if grid is None:
        grid = _core.choose_grid(arguments.lattice, machine.ranks, 1)
    alone = comm.Communicator(_core.make_self_communicator(), 1)
    small = Lattice([SMALL] * len(arguments.lattice), communicator=alone, device="cpu")
    case = KERNELS[kernel](small, arguments.precision or "float64")
    found = case.bind().simulate(
        machine,
        arguments.lattice,
        grid,
        fixed=case.fixed,
        policies=arguments.policies or (),
        site_seconds=None if arguments.site_ns is None else arguments.site_ns * 1e-9,
    )
    print(json.dumps(found.facts(), indent=2) if arguments.json else found, flush=True)
    return 0
