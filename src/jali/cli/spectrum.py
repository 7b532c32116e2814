"""`jali spectrum`: quark propagators and hadron correlators of configurations, and their masses.

What a configuration gives is written into a file of its own in the output folder as soon as it is known (`spectrum_folder.py`). So the same command goes on after
a kill, with more configurations too, and its results have the same bytes: they hold no times and no numbers of ranks.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from jali.cli.operators import add_operator_arguments, check_solve, numbers_given, operator_from
from jali.cli.progress import StepProgress, clock
from jali.cli.quark_sources import (
    SourceChoice,
    add_quark_source_arguments,
    momentum_argument,
    quark_sources,
)
from jali.cli.spectrum_folder import REPORT, SUMMARY, ResultFolder, digest_of_file, document
from jali.cli.spectrum_summary import Summary, render, summarise
from jali.errors import FileFormatError, JaliError, ParameterError, SolverError
from jali.fermions import Dirac, gamma, gamma5
from jali.files import shown, value_shown
from jali.gauge import GaugeField, plaquette
from jali.hadrons import GAMMAS, STAGGERED_MESONS, mesons, nucleon, staggered_mesons
from jali.hadrons.places import checked_momenta
from jali.io.parallel import raised_alike, together
from jali.io.writing import write_file
from jali.lattice import Field

VERSION = 1
LEAST_SLICES = 3
ROUNDING = 1e-5  # by which a configuration in 32 bits differs from itself in 64, and no two of an ensemble
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
    if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{value_shown(text)} should be two slices, for example 4,8")
    first, last = text.split(",")
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

    def __init__(self, arguments: argparse.Namespace, single: bool, stored: dict[str, Any] | None):
        self.numbers = numbers_given(arguments, "jali spectrum")
        self.operator = arguments.operator
        usual = OF_A_SINGLE_ONE if single else 1
        if stored is not None and isinstance(stored.get("sources"), dict):
            usual = stored["sources"].get("count", usual)  # those that the folder has
        self.sources: SourceChoice = quark_sources(arguments, usual)
        self.momenta = [tuple(p) for p in arguments.momenta]
        self.tolerance, self.inner, self.window = arguments.tolerance, arguments.inner, arguments.window
        check_solve(arguments)
        if self.momenta and self.sources.kind != "point":
            raise ParameterError(
                f"--momenta are those of point sources: of {self.sources.kind} sources, whose quark and antiquark have no momentum together, all but zero vanish"
            )

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
        """Raises ParameterError where a lattice has no room for sources, momenta, windows or masses."""
        extents = U.lattice.extents
        if U.lattice.ndim - 1 in U.open:
            raise ParameterError(
                'the links are open in time, and masses are fitted on a circle here: mesons(S) and fit_correlator(..., form="exp") are for open ones'
            )
        if extents[-1] < LEAST_SLICES:
            raise ParameterError(
                f"a mass takes {LEAST_SLICES} time slices at least, and there are {extents[-1]}; jali invert gives the propagator"
            )
        self.sources.places(extents)
        once: set[tuple[int, ...]] = {(0,) * (len(extents) - 1)}
        for p in checked_momenta(extents, self.momenta) if self.momenta else ():
            turned = tuple(k % size for k, size in zip(p, extents, strict=False))
            if turned in once:
                raise ParameterError(
                    f"the momentum {','.join(map(str, p))} is there already: zero always is, and momenta are counted up to the extents"
                )
            once.add(turned)
        if self.window is not None and not 0 <= self.window[0] < self.window[1] < extents[-1]:
            raise ParameterError(
                f"--window {self.window[0]},{self.window[1]} should be two slices from 0 to {extents[-1] - 1}, the first before the last"
            )

    def of(self, configuration: Configuration, digest: str, ticks: Clock, advance: Any) -> dict[str, Any]:
        """The results of a configuration, as plain values."""
        U = configuration.U
        with raised_alike():
            D: Dirac = operator_from(self.operator, self.numbers, U)
            links = self.sources.links(U) if self.sources.smears else None
        found: list[dict[str, Any]] = []
        stream = int(digest[:12], 16) << 8  # noise of its own
        for number, site in enumerate(self.sources.places(U.lattice.extents)):
            with ticks.on("sources"), raised_alike():
                b = self.sources.make(D, links, site, stream + number)
            solutions: list[Any] = []
            options = {} if self.inner is None else {"inner": self.inner}
            with ticks.on("solves"), raised_alike():
                S = D.propagator(b, self.tolerance, on_solution=solutions.append, **options)
            with ticks.on("sinks"), raised_alike():
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

    def _has_nucleon(self, S: Field) -> bool:
        """Three colours, in four dimensions; noise has no three quarks from one site, and the quarks of a twisted mass differ."""
        fits = S.element.type.shape[0] == 3 and S.batch == 12 and S.lattice.ndim == 4
        return fits and not self.sources.is_noise and not self.operator.startswith("twisted")

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
            put("gtg5 g5", p, of_pairs.correlator(gamma[ndim - 1] * gamma5, "g5", p))
        if self._has_nucleon(S):
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
    early = [source for source in sources if not source.in_means]
    sources = [source for source in sources if source.in_means]
    if early and ranks.rank == 0:
        print(
            f"{counted(len(early), 'configuration')} of the thermalisation left out",
            file=sys.stderr,
            flush=True,
        )
    with together(ranks):
        if not 1 <= arguments.bin <= max(len(sources), 1):
            raise ParameterError(
                f"--bin {arguments.bin} should be a number from 1 to that of the configurations, {len(sources)}"
            )
        numbers_given(arguments, "jali spectrum")
    ticks = Clock()
    with ResultFolder.opened(arguments.output, ranks) as folder:
        stored = folder.stored_parameters()
        with together(ranks):
            measurement = Measurement(arguments, len(sources) == 1, stored)
        folder.agree(measurement.parameters(), stored)
        results = _measure(sources, measurement, folder, arguments, ticks, problems)
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
    folder: ResultFolder,
    arguments: argparse.Namespace,
    ticks: Clock,
    problems: list[Exception],
) -> list[dict[str, Any]]:
    """The results of all configurations that have them, new ones and those of the folder."""
    ranks, parameters = folder.ranks, measurement.parameters()
    show = StepProgress(sys.stderr) if ranks.rank == 0 else None
    digests, kept = _kept(sources, folder, parameters, problems)
    missing = [k for k, digest in enumerate(digests) if digest and digest not in kept]
    if show and kept:
        show.say(
            f"{counted(len(kept), 'configuration')} of {len(sources)} {'is' if len(kept) == 1 else 'are'} in {shown(str(folder.path))} already"
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
        folder.write(result, parameters)
    results = [kept[digest] for digest in digests if digest in kept]
    with together(ranks):
        _check_different(results)
    return results


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


def _check_different(results: Sequence[dict[str, Any]]) -> None:
    """Raises ParameterError where two configurations are one, in another format or precision: to rounding they have one plaquette and one correlator."""
    ordered = sorted(results, key=lambda result: result["plaquette"])
    for one, other in itertools.pairwise(ordered):
        first, second = (_pion_of(result) for result in (one, other))
        if np.allclose([one["plaquette"], *first], [other["plaquette"], *second], rtol=ROUNDING, atol=0):
            raise ParameterError(
                f"{shown(one['file'])} and {shown(other['file'])} have one plaquette, {one['plaquette']:.9f}, and one pion: a configuration counts once"
            )


def _pion_of(result: dict[str, Any]) -> list[float]:
    """The pion's correlator from the first source."""
    correlators = result["sources"][0]["correlators"]
    return list(next(iter(correlators["g5" if "g5" in correlators else "pion"].values())))


def _kept(
    sources: Sequence[Source], folder: ResultFolder, parameters: dict[str, Any], problems: list[Exception]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Digests of the files, empty for those that cannot be read, and the results that the folder has of them."""
    ranks = folder.ranks
    digests: list[str] = []
    kept: dict[str, dict[str, Any]] = {}
    for source in sources:
        try:
            with raised_alike(), together(ranks):
                digest = digest_of_file(source.path) if ranks.rank == 0 else ""
        except (JaliError, OSError) as error:
            keep_fault(error, problems)
            digests.append("")
            continue
        digest = ranks.broadcast_bytes(digest.encode(), 0).decode()
        if digest in digests:
            raise ParameterError(
                f"{shown(source.path)} is {shown(sources[digests.index(digest)].path)}: a configuration counts once"
            )
        digests.append(digest)
        if (found := folder.read(digest, parameters)) is not None:
            kept[digest] = found
    return digests, kept


def _conclude(
    results: list[dict[str, Any]],
    measurement: Measurement,
    folder: ResultFolder,
    arguments: argparse.Namespace,
) -> None:
    """Masses, files and the report, on the first rank."""
    from jali.cli.spectrum_report import write_report

    found: Summary = summarise(results, measurement.parameters(), arguments.bin, arguments.window)
    write_file(folder.path / SUMMARY, document(found.as_dict()))
    write_report(folder.path / REPORT, found, results)
    if arguments.json:
        print(document({**found.as_dict(), "configurations": results}).decode(), end="", flush=True)
    else:
        print(render(found), flush=True)
        print(f"report {shown(str(folder.path / REPORT))}", file=sys.stderr, flush=True)


def _raise(problems: list[Exception]) -> None:
    """The faults of configurations, as one."""
    if len(problems) == 1:
        raise problems[0]
    if problems and all(isinstance(error, SolverError) for error in problems):
        raise SolverError("; ".join(map(error_text, problems)), [])
    if problems:
        raise several(problems)
