"""`jali spectrum`: quark propagators and hadron correlators of configurations, and their masses.

What a configuration gives is written into a file of its own in the output folder as soon as it is known, named by the digest of the configuration's file. So the
same command goes on after a kill, with more configurations too, and its results have the same bytes: they hold no times and no numbers of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jali import comm
from jali.amounts import counted
from jali.cli.configurations import (
    Configuration,
    Source,
    add_source_arguments,
    keep_fault,
    load_configuration,
    sources_of,
)
from jali.cli.error_text import error_text, several
from jali.cli.operators import add_operator_arguments, numbers_given, operator_from
from jali.cli.options import make_folder
from jali.cli.progress import StepProgress, clock
from jali.cli.quark_sources import (
    SourceChoice,
    add_quark_source_arguments,
    momentum_argument,
    quark_sources,
)
from jali.cli.run_directory import lock_folder
from jali.cli.spectrum_summary import Summary, render, summarise
from jali.errors import FileFormatError, JaliError, ParameterError, SolverError
from jali.fermions import Dirac
from jali.files import read_bytes, shown
from jali.gauge import GaugeField, plaquette
from jali.hadrons import GAMMAS, STAGGERED_MESONS, mesons, nucleon, staggered_mesons
from jali.hadrons.places import checked_momenta
from jali.io.parallel import raised_alike, together
from jali.io.writing import write_file
from jali.lattice import Field

VERSION = 1
PARAMETERS, RESULTS, SUMMARY, REPORT = "parameters.json", "configurations", "spectrum.json", "report.html"
MOST_BYTES = 1 << 30  # of a result
MOST_FAILURES = 3  # of solves, one configuration after the other, before the rest is left
OF_A_SINGLE_ONE = 4  # sources, where one configuration has to give an error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali spectrum`."""
    parser.description = (
        "Solve for quark propagators on configurations, contract them to mesons and nucleons, and find masses with errors. The same command goes on where it was "
        "stopped. Configurations are those of `jali measure`, in the order of the Markov chain."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="configuration file, or directory of a run")
    parser.add_argument(
        "--output", metavar="DIR", default="spectrum", help="folder of results and report (default spectrum)"
    )
    add_operator_arguments(parser)
    add_quark_source_arguments(parser, several=True)
    parser.add_argument(
        "--momenta",
        type=momentum_argument,
        nargs="+",
        default=[],
        metavar="PX,PY,PZ",
        help="of the sink, in units of 2 pi / L, beside zero",
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-10, metavar="T", help="of |b - D S| / |b| (default 1e-10)"
    )
    parser.add_argument("--inner", metavar="STORAGE", help="of a recursion in few bits, such as fixed16")
    parser.add_argument(
        "--bin",
        type=int,
        default=1,
        metavar="N",
        help="configurations per bin of the errors: several autocorrelation times (default 1)",
    )
    parser.add_argument(
        "--window",
        type=window_argument,
        metavar="T1,T2",
        help="slices of the fits (default: an average over windows)",
    )
    add_source_arguments(parser)


def window_argument(text: str) -> tuple[int, int]:
    """T1,T2."""
    first, comma, last = text.partition(",")
    if not (comma and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} should be two slices, for example 4,8")
    return int(first), int(last)


class Clock:
    """What the time went into."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun = time.monotonic()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Counts the block."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.monotonic() - begun

    def text(self) -> str:
        """Shares of all."""
        total = time.monotonic() - self.begun
        parts = [f"{what} {seconds / total:.0%}" for what, seconds in self.seconds.items()]
        return f"{clock(total)}, of which {', '.join(parts)}" if parts else clock(total)


class Measurement:
    """What is measured on each configuration, by these options."""

    def __init__(self, arguments: argparse.Namespace, single: bool):
        self.numbers = numbers_given(arguments, "jali spectrum")
        self.operator = arguments.operator
        count = arguments.sources
        if count is None:
            count = OF_A_SINGLE_ONE if single else 1
        self.sources: SourceChoice = quark_sources(arguments, count)
        self.momenta = [tuple(p) for p in arguments.momenta]
        self.tolerance, self.inner = arguments.tolerance, arguments.inner

    def parameters(self) -> dict[str, Any]:
        """What results are of, as plain values; those of others are not taken."""
        return {
            "version": VERSION,
            "operator": self.operator,
            "numbers": self.numbers,
            "sources": self.sources.as_dict(),
            "momenta": [list(p) for p in self.momenta],
            "tolerance": self.tolerance,
            "inner": self.inner,
        }

    def check(self, U: GaugeField) -> None:
        """Raises ParameterError where sources or momenta do not fit the lattice."""
        extents = U.lattice.extents
        self.sources.check(extents)
        checked_momenta(extents, self.momenta or None)

    def of(self, configuration: Configuration, digest: str, ticks: Clock, advance: Any) -> dict[str, Any]:
        """The results of a configuration, as plain values."""
        U = configuration.U
        D: Dirac = operator_from(self.operator, self.numbers, U)
        links = self.sources.links(U) if self.sources.smears else None
        found: list[dict[str, Any]] = []
        for number, site in enumerate(self.sources.places(U.lattice.extents)):
            with ticks.on("sources"):
                b = self.sources.make(D, links, site, number)
            solutions: list[Any] = []
            options = {} if self.inner is None else {"inner": self.inner}
            with ticks.on("solves"):
                S = D.propagator(b, self.tolerance, on_solution=solutions.append, **options)
            with ticks.on("sinks"):
                S = self.sources.sink(S, links)
            with ticks.on("contractions"):
                correlators = self._contract(S, site)
            found.append({"at": list(site), **_solved(solutions), "correlators": correlators})
            advance()
        return {
            "file": configuration.path,
            "digest": digest,
            "extents": list(U.lattice.extents),
            "colours": U.n,
            "plaquette": plaquette(U),
            "sources": found,
        }

    def _contract(self, S: Field, site: tuple[int, ...]) -> dict[str, dict[str, list[float]]]:
        """Correlators by name and momentum, their real parts."""
        ndim = S.lattice.ndim
        momenta = [(0,) * (ndim - 1), *self.momenta]
        found: dict[str, dict[str, list[float]]] = {}

        def put(name: str, p: tuple[int, ...], C: np.ndarray) -> None:
            found.setdefault(name, {})[",".join(map(str, p))] = [float(c) for c in np.real(C)]

        if not S.element.spinor:
            of_quarks = staggered_mesons(S, momenta=momenta, origin=site)
            for p in momenta:
                for name in STAGGERED_MESONS:
                    put(name, p, of_quarks.correlator(name, p))
            return found
        of_pairs = mesons(S, momenta=momenta, origin=site)
        for p in momenta:
            for name in GAMMAS:
                put(name, p, of_pairs.correlator(name, momentum=p))
            put("gtg5 g5", p, of_pairs.correlator("gtg5", "g5", p))
        if S.element.type.shape[0] == 3 and S.batch == 12:
            of_three = nucleon(S, momenta=momenta, origin=site)
            for p in momenta:
                put("nucleon", p, of_three.correlator("+", p))
                put("nucleon backwards", p, of_three.correlator("-", p))
        return found


def _solved(solutions: Sequence[Any]) -> dict[str, Any]:
    """Iterations, residuals and the history of the slowest column."""
    members = [
        one for found in solutions for one in (found.members if hasattr(found, "members") else [found])
    ]
    slowest = max(members, key=lambda one: one.iterations)
    return {
        "iterations": [one.iterations for one in members],
        "residual": float(max(one.residual for one in members)),
        "history": [float(r) for r in slowest.history],
    }


def execute(arguments: argparse.Namespace) -> int:
    """One configuration after the other, then masses and the report. A fault of one does not prevent the others."""
    ranks = comm.current()
    problems: list[Exception] = []
    sources = sources_of(arguments.files, ranks, problems)
    with together(ranks):
        if not (arguments.tolerance > 0):
            raise ParameterError(f"--tolerance {arguments.tolerance:g} should be a positive number")
        if arguments.bin < 1:
            raise ParameterError(f"--bin {arguments.bin} should be a positive number")
        measurement = Measurement(arguments, len(sources) == 1)
    folder = Path(arguments.output)
    with together(ranks):
        if ranks.rank == 0:
            make_folder("--output", folder / RESULTS)
    with lock_folder(folder, ranks):
        _agree(measurement.parameters(), folder, ranks)
        results, ticks = _measure(sources, measurement, folder, arguments, ranks, problems)
        with together(ranks):
            if ranks.rank == 0 and results:
                _conclude(results, measurement, folder, arguments)
    with together(ranks):
        if ranks.rank == 0 and ticks.seconds:
            print(f"time {ticks.text()}", file=sys.stderr, flush=True)
        _raise(problems)
    return 0


def _measure(
    sources: Sequence[Source],
    measurement: Measurement,
    folder: Path,
    arguments: argparse.Namespace,
    ranks: comm.Communicator,
    problems: list[Exception],
) -> tuple[list[dict[str, Any]], Clock]:
    """The results of all configurations that have them, new ones and those of the folder."""
    ticks = Clock()
    show = StepProgress(sys.stderr) if ranks.rank == 0 else None
    digests, kept = _kept(sources, folder, ranks, problems)
    missing = [k for k, digest in enumerate(digests) if digest and digest not in kept]
    if show and kept:
        show.say(
            f"{counted(len(kept), 'configuration')} of {len(sources)} {'is' if len(kept) == 1 else 'are'} in {shown(str(folder))} already"
        )
    done, steps, failures = 0, len(missing) * measurement.sources.count, 0

    def advance() -> None:
        nonlocal done
        done += 1
        if show:
            show.advance(done, steps)

    for place, k in enumerate(missing):
        source = sources[k]
        try:
            with ticks.on("reading"):
                configuration = load_configuration(
                    source.path,
                    arguments.lattice,
                    arguments.group,
                    ranks,
                    arguments.device,
                    verify=not arguments.ignore_checksum,
                )
            with raised_alike():
                configuration.require_header()
                _check_alike(configuration, kept)
                measurement.check(configuration.U)
                result = measurement.of(configuration, digests[k], ticks, advance)
        except SolverError as error:
            failures += 1
            problems.append(SolverError(f"{shown(source.path)}: {error}", getattr(error, "history", [])))
            if failures == MOST_FAILURES and place + 1 < len(missing):
                problems.append(
                    SolverError(
                        f"{counted(len(missing) - place - 1, 'configuration')} left, since {MOST_FAILURES} in a row did not converge: is kappa beyond its critical value?",
                        [],
                    )
                )
                break
            continue
        except (JaliError, OSError) as error:
            if isinstance(error, ParameterError):
                raise
            keep_fault(error, problems)
            continue
        failures = 0
        kept[digests[k]] = result
        with together(ranks):
            if ranks.rank == 0:
                write_file(_result_path(folder, digests[k]), _document(result))
    return [kept[digest] for digest in digests if digest in kept], ticks


def _check_alike(configuration: Configuration, kept: dict[str, dict[str, Any]]) -> None:
    """Raises FileFormatError where a configuration has another lattice or group than those before."""
    for other in kept.values():
        U = configuration.U
        if list(U.lattice.extents) != other["extents"] or U.n != other["colours"]:
            raise FileFormatError(
                f"{shown(configuration.path)} has {U.n} colours on {' x '.join(map(str, U.lattice.extents))}, and {shown(other['file'])} {other['colours']} on "
                f"{' x '.join(map(str, other['extents']))}: an ensemble has one lattice and one group; give another --output for each"
            )
        break


def _kept(
    sources: Sequence[Source], folder: Path, ranks: comm.Communicator, problems: list[Exception]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Digests of the files, empty for those that cannot be read, and the results that the folder has of them."""
    digests: list[str] = []
    kept: dict[str, dict[str, Any]] = {}
    for source in sources:
        try:
            with raised_alike(), together(ranks):
                digest = _digest(source.path) if ranks.rank == 0 else ""
            digest = ranks.broadcast_bytes(digest.encode(), 0).decode()
            if digest in digests:
                raise ParameterError(
                    f"{shown(source.path)} is {shown(sources[digests.index(digest)].path)}: a configuration counts once"
                )
            with raised_alike(), together(ranks):
                result = _read_result(folder, digest) if ranks.rank == 0 else None
            text = ranks.broadcast_bytes(json.dumps(result).encode(), 0)
            if (found := json.loads(text)) is not None:
                kept[digest] = found
        except ParameterError:
            raise
        except (JaliError, OSError) as error:
            keep_fault(error, problems)
            digest = ""
        digests.append(digest)
    return digests, kept


def _digest(path: str) -> str:
    """SHA-256 of a file; of a folder of its files' names and contents."""
    total = hashlib.sha256()
    if os.path.isdir(path):
        for folder, names, files in sorted(os.walk(path)):
            names.sort()
            for name in sorted(files):
                total.update(
                    os.path.relpath(os.path.join(folder, name), path).encode("utf-8", "surrogateescape")
                )
                _take(total, os.path.join(folder, name))
    else:
        _take(total, path)
    return total.hexdigest()[:16]


def _take(total: Any, path: str) -> None:
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            total.update(block)


def _result_path(folder: Path, digest: str) -> Path:
    return folder / RESULTS / f"{digest}.json"


def _read_result(folder: Path, digest: str) -> dict[str, Any] | None:
    path = _result_path(folder, digest)
    if not path.exists():
        return None
    try:
        found = json.loads(read_bytes(path, MOST_BYTES, "a result"))
        if found["digest"] != digest or not found["sources"]:
            raise KeyError("digest")
    except (ValueError, KeyError, TypeError):
        raise FileFormatError(
            f"{shown(str(path))} is no result of jali spectrum: remove it, and its configuration is measured again"
        ) from None
    return dict(found)


def _agree(parameters: dict[str, Any], folder: Path, ranks: comm.Communicator) -> None:
    """Writes the parameters of a new folder, and compares them with those of one that has results."""
    with together(ranks):
        if ranks.rank != 0:
            return
        path = folder / PARAMETERS
        if not path.exists():
            write_file(path, _document(parameters))
            return
        try:
            before = dict(json.loads(read_bytes(path, MOST_BYTES, "the parameters")))
        except (ValueError, TypeError):
            raise FileFormatError(f"{shown(str(path))} is not what jali spectrum writes") from None
        now = json.loads(_document(parameters))
        for name in now:
            if before.get(name) != now[name]:
                raise ParameterError(
                    f"{shown(str(folder))} has results of {name} {json.dumps(before.get(name))}, and these are of {json.dumps(now[name])}: give another --output"
                )


def _conclude(
    results: list[dict[str, Any]], measurement: Measurement, folder: Path, arguments: argparse.Namespace
) -> None:
    """Masses, files and the report, on the first rank."""
    from jali.cli.spectrum_report import write_report

    parameters = json.loads(read_bytes(folder / PARAMETERS, MOST_BYTES, "the parameters"))
    found: Summary = summarise(results, parameters, arguments.bin, arguments.window)
    write_file(folder / SUMMARY, _document(found.as_dict()))
    write_report(folder / REPORT, found, results)
    if arguments.json:
        print(_document({**found.as_dict(), "configurations": results}).decode(), end="", flush=True)
    else:
        print(render(found), flush=True)
        print(f"report {shown(str(folder / REPORT))}", file=sys.stderr, flush=True)


def _raise(problems: list[Exception]) -> None:
    """The faults of configurations, as one."""
    if len(problems) == 1:
        raise problems[0]
    if problems and all(isinstance(error, SolverError) for error in problems):
        raise SolverError("; ".join(map(error_text, problems)), [])
    if problems:
        raise several(problems)


def _document(values: dict[str, Any]) -> bytes:
    """JSON, the same bytes for the same values."""
    return (json.dumps(values, indent=1, allow_nan=False) + "\n").encode()
