"""`jali bench`: measurements on these ranks.

`collectives`: jali's beside those of the MPI library, on the same data; with `--device` on arrays in device memory, beside
those of the device's vendor (NCCL, RCCL); with `--hybrid` or `--osu` jali's choice beside every single algorithm and MPI by hand. `halo`: every policy of halo exchange for a
kernel with neighbours, part by part. `arrays`: distributed arrays beside another library and plain NumPy. `fft`: Fourier transforms by every provider, beside their parts
and another library. `compare A B`: how much faster or slower one commit of jali is than another.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from jali import comm, settings
from jali.bench.journal import Journal, why_no_verdict
from jali.cli import launch
from jali.cli.options import device_argument, keep_defaults, make_folder, refuse_others
from jali.cli.plan_arguments import factors_argument, names_argument, size_argument, whole_argument
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.devices import default_device, device_names
from jali.errors import ParameterError

DONE, FAILED, BAD_INPUT = 0, 1, 2  # as jali.cli.main has them
JOURNAL = "--journal"
SILENCE = 2  # times JALI_WATCHDOG, which ends waits of jali: then ranks hang elsewhere

OPTIONS = {
    "collectives": ("only", "smallest", "largest", "factor", "rounds", "sides", "hybrid", "osu"),
    "arrays": ("against", "cases", "rounds", "dims", "dtype"),
    "fft": ("against", "providers", "engine", "pieces", "rounds", "seconds", "dims", "dtype", "grid"),
    "halo": (
        "kernel",
        "operator",
        "format",
        "local",
        "grid",
        "precision",
        "policies",
        "rounds",
        "seconds",
        "no_graphs",
    ),
    "compare": ("cases", "list", "minutes", "go_on", "starts", "turns", "precision", "seconds"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali bench`."""
    parser.description = (
        "Time collectives against the MPI library's own (p*d/t, results compared in every round), or every algorithm of "
        "exchanging the halos of a kernel, part by part; both need ranks (-n). Or distributed arrays and Fourier transforms beside other "
        "libraries. Or compare the speed of two commits of jali."
    )
    parser.add_argument(
        "what", choices=("collectives", "halo", "arrays", "fft", "compare"), help="what is measured"
    )
    parser.add_argument(
        "commits",
        nargs="*",
        metavar="A B",
        help='of compare: commits, branches or folders with a checkout, "." for this one; A is the older',
    )
    parser.add_argument(
        "--only", type=names_argument, metavar="NAME,...", help="these collectives (default: all eight)"
    )
    parser.add_argument(
        "--smallest", type=size_argument, metavar="BYTES", help="default 8; with --hybrid or --osu 4"
    )
    parser.add_argument(
        "--largest",
        type=size_argument,
        metavar="BYTES",
        help="default 64MiB; with --hybrid on devices 1GiB, with --osu 1MiB",
    )
    parser.add_argument(
        "--factor",
        type=whole_argument,
        metavar="F",
        help="between sizes (default 8; with --hybrid 4, with --osu 2)",
    )
    parser.add_argument(
        "--hybrid",
        action="store_true",
        help="of collectives: what jali chooses beside every single algorithm, and beside MPI: on hosts the library's own, on devices "
        "what programs do by hand, copies to the host and back around it",
    )
    parser.add_argument(
        "--osu",
        action="store_true",
        help="as --hybrid, for all-reduce of 4 bytes to 1 MiB unless --only and sizes say more, drawn as latencies with the sizes at "
        "which the choice changes",
    )
    parser.add_argument(
        "--rounds", type=whole_argument, default=10, metavar="N", help="measured rounds at least (default 10)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="where CSV, JSON and plot go; of compare the file of results",
    )
    parser.add_argument(
        "--device",
        type=device_argument,
        metavar="NAME",
        help=f"{device_names('')} (default: for halos JALI_DEVICE, for collectives and arrays the host; arrays on devices are CuPy's)",
    )
    parser.add_argument(
        "--sides",
        type=names_argument,
        metavar="NAME,...",
        help="of collectives on devices: jali, the vendor's library (nccl, rccl), that on memory which it has registered "
        "(nccl-symmetric), or algorithms of jali (default: jali and the library)",
    )
    arrays = parser.add_argument_group("arrays and fft")
    arrays.add_argument(
        "--against", default="", metavar="NAME", help="another library: pylops-mpi, of fft mpi4py-fft"
    )
    arrays.add_argument(
        "--dims",
        type=factors_argument,
        default=[256, 256, 256],
        metavar="N,N,...",
        help="default 256,256,256",
    )
    arrays.add_argument(
        "--dtype",
        choices=("float32", "float64", "complex64", "complex128"),
        help="of elements (default float32, of fft complex64)",
    )
    fft = parser.add_argument_group("fft")
    fft.add_argument(
        "--providers",
        type=names_argument,
        metavar="NAME,...",
        help="of local transforms (default: all that there are for such arrays)",
    )
    fft.add_argument(
        "--engine",
        metavar="NAME",
        help="whose arrays, on devices cupy or torch (default: the first of these)",
    )
    fft.add_argument(
        "--pieces",
        type=whole_argument,
        default=4,
        metavar="N",
        help="in which transforms and exchanges overlap (default 4)",
    )
    halo = parser.add_argument_group("halo")
    halo.add_argument(
        "--kernel", default="staple", metavar="NAME", help="staple (default), plaquette, wilson or laplace"
    )
    halo.add_argument(
        "--operator",
        metavar="NAME",
        help="a Dirac operator between half fields in place of a kernel: wilson-dirac, clover, clover-compressed, twisted-mass, twisted-clover, staggered, hisq, "
        "domain-wall; wilson-hop without the inverse diagonal",
    )
    halo.add_argument(
        "--format", choices=("float64", "float32", "float16", "fixed16"), help="of an operator's fields"
    )
    halo.add_argument(
        "--wire",
        default="",
        metavar="FORMAT",
        help="in which halo items travel, like float16 (default: as they are computed, without loss)",
    )
    halo.add_argument(
        "--local",
        type=factors_argument,
        default=[16, 16, 16, 16],
        metavar="L,L,...",
        help="sites per rank in each direction (default 16,16,16,16)",
    )
    halo.add_argument(
        "--grid",
        type=factors_argument,
        metavar="N,N,...",
        help="ranks in each direction (default: all in the last, of fft in the first)",
    )
    parser.add_argument(
        "--precision",
        choices=IEEE_PRECISIONS[::-1],
        default=IEEE_PRECISIONS[-1],
        help="of the fields of halo and compare (default float64)",
    )
    halo.add_argument(
        "--policies",
        type=names_argument,
        metavar="NAME,...",
        help="these policies (default: all that work here)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="that a batch of calls takes (default 0.02; of compare 0.05), of fft a case (default 1)",
    )
    halo.add_argument("--no-graphs", action="store_true", help="leave out what is recorded in graphs")
    compare = parser.add_argument_group("compare")
    compare.add_argument(
        "--cases",
        type=names_argument,
        metavar="PATTERN,...",
        help="these cases (default: all), like 'staple*'; of arrays their names",
    )
    compare.add_argument("--list", action="store_true", help="list the cases")
    compare.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="this part takes at most so long, 10 at most (default 10)",
    )
    compare.add_argument(
        "--continue", dest="go_on", action="store_true", help="go on with what the file of results has"
    )
    compare.add_argument(
        "--starts",
        type=whole_argument,
        default=3,
        metavar="N",
        help="fresh pairs of processes per case (default 3)",
    )
    compare.add_argument(
        "--turns", type=whole_argument, default=7, metavar="N", help="turns of each process (default 7)"
    )
    parser.add_argument(JOURNAL, type=Path, metavar="FILE", help=argparse.SUPPRESS)  # of start_ranks
    keep_defaults(parser, OPTIONS)


def start_ranks(count: int, words: Sequence[str]) -> int | None:
    """As `jali.cli.launch.start_ranks`; where a case stalls, or ranks die, fresh ranks continue with the other
    cases."""
    from jali.bench import journal

    if JOURNAL in words or "compare" in words:
        return launch.start_ranks(count, words)
    timeout = SILENCE * settings.current().watchdog
    with tempfile.TemporaryDirectory(prefix="jali-") as folder:
        path = Path(folder, "cases")
        path.touch()
        while True:
            hung = False

            def is_hung() -> bool:
                nonlocal hung
                hung = journal.is_hung(path, timeout)
                return hung

            status = launch.start_ranks(count, [*words, JOURNAL, str(path)], is_hung)
            if status is None or status in (DONE, BAD_INPUT) or status > 128:
                return status
            silent = f"{journal.STALL} {timeout:g} s, and no rank says why"
            lost = journal.give_up(path, silent if hung else f"its ranks ended with status {status}")
            if lost is None:
                return status
            print(
                f"jali: {lost[0]} {lost[1]}; fresh ranks go on with the other cases",
                file=sys.stderr,
                flush=True,
            )


def execute(arguments: argparse.Namespace) -> int:
    """Measure and report; one rank prints for all."""
    also = ("--device", "--output", "--json")
    refuse_others(arguments, OPTIONS, arguments.what, f"jali bench {arguments.what}", also)
    if arguments.what == "compare":
        from jali.cli.compare import execute as compare

        return compare(arguments)
    if arguments.commits:
        raise ParameterError(f"jali bench {arguments.what} takes no {arguments.commits[0]!r}; compare does")
    if arguments.seconds is None:
        arguments.seconds = 1.0 if arguments.what == "fft" else 0.02
    journal = Journal(comm.current(), arguments.journal)
    run = {"halo": _halo, "arrays": _arrays, "fft": _fft, "collectives": _collectives}[arguments.what]
    return run(arguments, journal)


def _fft(arguments: argparse.Namespace, journal: Journal) -> int:
    from jali.bench import fft, fft_report
    from jali.devices import open_device

    if arguments.rounds < 1 or arguments.pieces < 1 or not 0 < arguments.seconds < math.inf:
        raise ParameterError("give --rounds and --pieces 1 or more and a positive number of --seconds")
    ranks = comm.current()
    gpu = open_device(arguments.device, ranks) if arguments.device not in (None, "cpu") else None
    dims, dtype = tuple(arguments.dims), arguments.dtype or "complex64"
    x = fft.make_array(ranks, dims, dtype, arguments.grid, gpu, arguments.engine)

    def progress(cell: fft.Cell, report: fft.Report) -> None:
        print(fft_report.case_text(cell, report), flush=True)

    report = fft.measure(
        ranks,
        x,
        fft.chosen(x, arguments.providers or ()),
        arguments.against,
        pieces=arguments.pieces,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        progress=None if arguments.json else progress,
        journal=journal,
    )
    return _publish(arguments, journal, fft_report, report)


def _arrays(arguments: argparse.Namespace, journal: Journal) -> int:
    from jali.bench import arrays, arrays_report

    dtype = arguments.dtype or "float32"
    if dtype.startswith("complex"):
        raise ParameterError("jali bench arrays measures float32 or float64; fft takes complex numbers")
    if comm.current().transport != "mpi":
        raise ParameterError("distributed arrays are measured between MPI ranks; say how many, like -n 2")
    if arguments.rounds < 1:
        raise ParameterError("give --rounds 1 or more")
    from mpi4py import MPI

    from jali.arrays.engine_choice import choose_engine, on_device

    device = arguments.device or "cpu"
    engine = choose_engine(device, None if device == "cpu" else "cupy")
    with on_device(device, engine):
        report = arrays.measure(
            MPI.COMM_WORLD,
            arguments.against,
            arguments.cases or (),
            dims=tuple(arguments.dims),
            dtype=dtype,
            engine=engine,
            rounds=arguments.rounds,
            progress=None
            if arguments.json
            else lambda cell: print(arrays_report.case_text(cell), flush=True),
            journal=journal,
        )
    return _publish(arguments, journal, arrays_report, report)


def _halo(arguments: argparse.Namespace, journal: Journal) -> int:
    from jali.bench import halo, halo_report

    ranks = comm.current()
    if arguments.rounds < 1 or not 0 < arguments.seconds < math.inf:
        raise ParameterError("give --rounds 1 or more and a positive number of --seconds")
    grid = arguments.grid or [1] * (len(arguments.local) - 1) + [ranks.size]
    if arguments.format and not arguments.operator:
        raise ParameterError("--format is that of an --operator; a kernel has a --precision")
    case = halo.make_case(
        arguments.operator or arguments.kernel,
        arguments.local,
        grid,
        default_device() if arguments.device is None else arguments.device,
        arguments.format or arguments.precision,
        arguments.wire,
    )
    report = halo.measure(
        case,
        arguments.policies or (),
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        graphs=not arguments.no_graphs,
        progress=None if arguments.json else lambda one: print(halo_report.case_text(one), flush=True),
        journal=journal,
    )
    return _publish(arguments, journal, halo_report, report)


def _collectives_on_device(arguments: argparse.Namespace, journal: Journal) -> int:
    from jali.bench import collectives, device_collectives, device_report
    from jali.devices import open_device
    from jali.vendors import library_of

    ranks = comm.current()
    _settle_sizes(arguments)
    gpu = open_device(arguments.device, ranks)
    names = arguments.sides or ["jali", library_of(gpu.kind)]
    sides = [device_collectives.side(name, ranks, gpu) for name in names]

    def progress(cell: collectives.Cell, order: str) -> None:
        if not arguments.json:
            print(f"{order:6s} {device_report.case_text(cell, names)}", flush=True)

    reports = device_collectives.measure(
        ranks,
        gpu,
        sides,
        collectives.sizes_between(arguments.smallest, arguments.largest, arguments.factor),
        _chosen(arguments),
        rounds=arguments.rounds,
        progress=progress,
        journal=journal,
    )
    return _publish(arguments, journal, device_report, reports)


# Sizes where none are given: smallest, largest, factor.
SIZES = {"plain": (8, 64 << 20, 8), "hybrid": (4, 64 << 20, 4), "osu": (4, 1 << 20, 2)}
LARGEST_ON_DEVICES = 1 << 30  # of hybrid


def _collectives_hybrid(arguments: argparse.Namespace, journal: Journal) -> int:
    from jali.bench import collectives, hybrid, hybrid_report
    from jali.devices import open_device

    if arguments.sides is not None:
        raise ParameterError(
            "--sides is for collectives without --hybrid and --osu, which take all algorithms"
        )
    ranks = comm.current()
    gpu = open_device(arguments.device, ranks) if arguments.device not in (None, "cpu") else None
    _settle_sizes(arguments)
    if arguments.osu and arguments.only is None:
        arguments.only = ["all_reduce"]

    def progress(report: hybrid.HybridReport, order: str) -> None:
        if not arguments.json:
            print(f"{order:6s} {hybrid_report.case_text(report)}", flush=True)

    reports = hybrid.measure(
        ranks,
        gpu,
        collectives.sizes_between(arguments.smallest, arguments.largest, arguments.factor),
        _chosen(arguments),
        rounds=arguments.rounds,
        progress=progress,
        journal=journal,
    )
    if arguments.osu and arguments.output is not None and ranks.rank == 0:
        make_folder("--output", arguments.output)
        for order, report in reports.items():
            hybrid_report.write_osu(report, arguments.output / f"osu-{order}.png")
    return _publish(arguments, journal, hybrid_report, reports)


def _settle_sizes(arguments: argparse.Namespace) -> None:
    """Fills in missing sizes, and raises ParameterError for invalid ones."""
    chosen = "osu" if arguments.osu else "hybrid" if arguments.hybrid else "plain"
    smallest, largest, factor = SIZES[chosen]
    if chosen == "hybrid" and arguments.device not in (None, "cpu"):
        largest = LARGEST_ON_DEVICES
    for name, value in (("smallest", smallest), ("largest", largest), ("factor", factor)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.factor < 2 or arguments.rounds < 1 or arguments.largest < arguments.smallest:
        raise ParameterError(
            "give --factor 2 or more, --rounds 1 or more, and --largest not below --smallest"
        )


def _chosen(arguments: argparse.Namespace) -> list[str]:
    from jali.bench import collectives

    only = [name.replace("-", "_") for name in arguments.only or collectives.COLLECTIVES]
    unknown = sorted(set(only) - set(collectives.COLLECTIVES))
    if unknown:
        raise ParameterError(
            f"no collective {', '.join(unknown)}; there are {', '.join(collectives.COLLECTIVES)}"
        )
    return only


def _collectives(arguments: argparse.Namespace, journal: Journal) -> int:
    from jali.bench import collectives, collectives_report

    if arguments.hybrid or arguments.osu:
        return _collectives_hybrid(arguments, journal)
    if arguments.device not in (None, "cpu"):
        return _collectives_on_device(arguments, journal)
    if arguments.sides is not None:
        raise ParameterError("--sides is for collectives on devices; name one, like --device cuda")

    ranks = comm.current()
    if ranks.transport != "mpi":
        raise ParameterError("the MPI library's collectives need MPI ranks; say how many, like -n 2")
    _settle_sizes(arguments)
    only = _chosen(arguments)
    from mpi4py import MPI

    sides: list[collectives.Side] = [collectives.JaliSide(ranks), collectives.MpiSide(MPI.COMM_WORLD)]
    report = collectives.measure(
        MPI.COMM_WORLD,
        sides,
        collectives.sizes_between(arguments.smallest, arguments.largest, arguments.factor),
        only,
        rounds=arguments.rounds,
        progress=None
        if arguments.json
        else lambda cell: print(collectives_report.case_text(cell, "jali", "mpi"), flush=True),
        journal=journal,
    )
    return _publish(arguments, journal, collectives_report, report)


def _publish(arguments: argparse.Namespace, journal: Journal, form: ModuleType, found: Any) -> int:
    """Write what was measured into files and print it, on rank 0; the exit status. `form` is the module that writes a report;
    `found` is one report, or several by what the names of their files end in."""
    ranks = comm.current()
    if ranks.rank != 0:
        return int(ranks.broadcast_bytes(b"", 0))
    several = found if isinstance(found, dict) else {"": found}
    busy = why_no_verdict(journal.load)
    for report in several.values():
        report.conditions = {**report.conditions, **journal.conditions()}
    if arguments.output is not None:
        make_folder("--output", arguments.output)
        for end, report in several.items():
            stem = f"{arguments.what}-{end}" if end else arguments.what
            form.write_csv(report, arguments.output / f"{stem}.csv")
            text = json.dumps(form.as_json(report), indent=1)
            (arguments.output / f"{stem}.json").write_text(text + "\n")
            if getattr(report, "cells", None) or getattr(report, "measurements", None):
                form.write_plot(report, arguments.output / f"{stem}.png")
    if arguments.json:
        values = {end: form.as_json(r) for end, r in several.items()}
        print(json.dumps(values if isinstance(found, dict) else values[""], indent=1))
    else:
        print(form.summary(found, busy=busy))
        for name, why in journal.lost.items():
            print(f"FAIL: {name} {why}")
    missed = not busy and any(not verdict.holds for verdict in form.verdicts(found))
    status = FAILED if journal.lost or missed else DONE
    return int(ranks.broadcast_bytes(str(status).encode(), 0))
