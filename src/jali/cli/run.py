"""`jali run`: a simulation from a parameter file, or a run continued from its checkpoint.

A run is a directory: parameters.toml as understood, history.csv, timing.csv (flow.csv; trajectories.csv, forces.csv, kicks.csv;
scalars.csv, scalar_forces.csv), checkpoint/, report.html and, if it saves them, configurations/. The same seed gives the same history.csv to the byte, on any number of ranks, interrupted and
resumed or not. The physics is in `jali.cli.markov_chain`, the files in `jali.cli.run_directory`; here they are combined with
signals, progress and output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from jali import comm, io
from jali.cli.configurations import add_device_argument
from jali.cli.file_kinds import FOLDER, RUN, refuse_other_kinds
from jali.cli.interruption import EXIT_CODES, SAME_PRESS, Interrupted, Interruption
from jali.cli.markov_chain import MarkovChain, total_sweeps
from jali.cli.parameters import load_parameters, parse_parameters, render_parameters
from jali.cli.progress import Progress, show_progress
from jali.cli.run_directory import (
    ENSEMBLE,
    PARAMETERS,
    TABLES,
    HeldDirectory,
    Table,
    check_saved,
    remove_half_written,
    replace_parameters,
    tables_of,
)
from jali.cli.scalar_summary import SCALARS
from jali.cli.schema import RunParameters, parameter_specs, toml_value
from jali.cli.terms import GAUGE, is_gauge_alone, terms_in_words
from jali.cli.update_kinds import update_kind
from jali.comm.stopping import end_job, speaker
from jali.comm.world import known
from jali.errors import FileFormatError, ParameterError, RankError
from jali.files import shown, value_shown
from jali.gauge import exhausted_attempts
from jali.gauge.actions import ACTIONS
from jali.io.ensemble import CHECKPOINT
from jali.io.parallel import raised_alike, together
from jali.statistics import format_value

# What may change when a run is resumed: how long it is, how often it is saved, how it is split and where it
# computes. None of it changes a row of the history.
CHANGEABLE = (
    "update.sweeps",
    "run.checkpoint_every",
    "run.save_every",
    "run.save_format",
    "run.device",
    "lattice.grid",
    "hmc.check_reversibility",
    "hmc.forces_every",
)


PHYSICS = "physics"
"""What --check without a number of ranks checks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali run`."""
    parser.description = (
        "Run the simulation that a parameter file describes, or resume one. Either way it ends with report.html in the "
        "directory of the run: to make the report of a finished run anew, resume it."
    )
    parser.add_argument("parameters", nargs="?", metavar="PARAMETERS.toml", help="what to simulate")
    parser.add_argument("--output", metavar="DIR", help="directory of a new run; made if it does not exist")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in this directory")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a parameter, for example --set beta=6.0 --set extents=8,8,8,16; with --resume only "
        + ", ".join(CHANGEABLE),
    )
    add_device_argument(parser)
    parser.add_argument(
        "--tune-steps",
        type=float,
        metavar="WANTED",
        help="hybrid Monte Carlo: find, during thermalisation, the steps for this acceptance, such as 0.8 (--set hmc.tune_steps=WANTED)",
    )
    parser.add_argument(
        "--check",
        nargs="?",
        const=PHYSICS,
        type=_check_argument,
        metavar="N",
        help="without N: check at the start that the action is gauge-invariant, that its force is its gradient and that trajectories go back, "
        "then run, or stop where no --output is given; with N: say how N ranks would share the lattice and what memory they need, and stop",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run, resume or check."""
    with Interruption(at_once=True) as interruption:
        try:
            return _execute(arguments, interruption)
        except Interrupted as interrupted:
            if not _heard_from_another_rank():
                print(f"{speaker()}: {interrupted}{_what_is_left(arguments)}", file=sys.stderr, flush=True)
            status = EXIT_CODES[interrupted.number]
            end_job(interrupted, status)
            return status


def _execute(arguments: argparse.Namespace, interruption: Interruption) -> int:
    ranks = comm.current()
    with together(ranks):
        _check_arguments(arguments)
    if arguments.device is not None:
        arguments.overrides = [*arguments.overrides, f"run.device={toml_value(arguments.device)}"]
    if arguments.tune_steps is not None:
        arguments.overrides = [*arguments.overrides, f"hmc.tune_steps={arguments.tune_steps!r}"]
    if isinstance(arguments.check, int):
        return _check_layout(arguments, ranks)
    if arguments.check == PHYSICS and not arguments.output:
        return _check_physics(arguments, ranks)
    stream = sys.stderr if arguments.json else sys.stdout
    with contextlib.ExitStack() as files:
        if arguments.resume:
            run = Run.resumed(Path(arguments.resume), arguments.overrides, files, ranks)
        else:
            with together(ranks):
                parameters = load_parameters(arguments.parameters, arguments.overrides)
            checks = stream if arguments.check == PHYSICS else None
            run = Run.new(Path(arguments.output), parameters, files, ranks, checks)
        signalled = run.proceed(interruption, stream if ranks.rank == 0 else None)
        with together(ranks):
            if ranks.rank == 0:
                _conclude(run, signalled, arguments.json)
    return EXIT_CODES[signalled] if signalled else 0


def _heard_from_another_rank() -> bool:
    """Whether another rank, which had the same signal, reports it. The first rank does not wait for others."""
    ranks = known()
    if ranks is None or ranks.rank == 0:
        return False
    end = time.monotonic() + SAME_PRESS
    while time.monotonic() < end:
        try:
            ranks.check()
        except RankError:
            return True
        time.sleep(0.01)
    return False


def _what_is_left(arguments: argparse.Namespace) -> str:
    """Of a run that a signal has ended where it was."""
    directory = Path(arguments.resume or arguments.output or "")
    if arguments.check is not None:
        return ""
    if (directory / CHECKPOINT / "manifest.json").exists():
        return f" before the end of a sweep; jali run --resume {directory} goes on from the last checkpoint"
    return " before the run had begun; nothing of it is left"


class Run:
    """A simulation with its directory. Collective: every rank has one; files are rank 0's.

    Made by `new` or `resumed`, whose argument `closing` closes the tables in the end.
    """

    def __init__(
        self, directory: Path, chain: MarkovChain, tables: dict[str, Table], ranks: comm.Communicator
    ) -> None:
        self.directory = directory
        self.chain = chain
        self.parameters = chain.parameters
        self._tables = tables
        self._ranks = ranks
        self._saved: int | None = None
        self._plaquette: float | None = None

    @classmethod
    def new(
        cls,
        directory: Path,
        parameters: RunParameters,
        closing: contextlib.ExitStack,
        ranks: comm.Communicator,
        checks: TextIO | None = None,
    ) -> Run:
        """A run before its first sweep, with a checkpoint. Raises ParameterError if `directory` holds a run.

        With the stream `checks` its physics is checked before, and what was checked is written there.
        """
        held: HeldDirectory | None = None
        with together(ranks):
            if ranks.rank == 0:
                held = closing.enter_context(HeldDirectory.for_new_run(directory))
        tables: dict[str, Table] = {}
        try:
            chain = MarkovChain.start(parameters, ranks)
            if checks is not None:
                found = chain.check_physics()
                if ranks.rank == 0:
                    print("\n".join(map(str, found)), file=checks, flush=True)
            with together(ranks):
                if held is not None:
                    held.create_parameters(parameters)
                    for name in tables_of(parameters):
                        tables[name] = closing.enter_context(held.create_table(name))
            run = cls(directory, chain, tables, ranks)
            run.save()
        except BaseException:
            # Without its first checkpoint there is no run: leave nothing that would be in the way of the next try.
            if held is not None:
                held.discard()
            raise
        return run

    @classmethod
    def resumed(
        cls,
        directory: Path,
        overrides: Sequence[str],
        closing: contextlib.ExitStack,
        ranks: comm.Communicator,
    ) -> Run:
        """A run as its checkpoint left it; rows of the tables after that are cut off.

        Raises ParameterError if parameters differ in more than `CHANGEABLE`, FileFormatError for damage.
        """
        with together(ranks):
            refuse_other_kinds(directory, [RUN, FOLDER], "the folder of a run is needed")
            if not directory.is_dir():
                raise ParameterError(f"there is no directory {shown(directory)} to resume")
            if not (directory / CHECKPOINT / "manifest.json").exists():
                raise ParameterError(
                    f"{shown(directory)} holds no checkpoint ({CHECKPOINT}/manifest.json); begin the run anew with "
                    "jali run PARAMETERS.toml --output DIR"
                )
            if ranks.rank == 0:
                closing.enter_context(HeldDirectory.of_run(directory))
        with raised_alike():
            checkpoint = io.open_checkpoint(directory / CHECKPOINT, ranks=ranks)
        with together(ranks):
            parameters = load_parameters(directory / PARAMETERS, overrides)
            state = checkpoint.state
            try:
                before = parse_parameters(state["parameters"], f"{checkpoint.path}: parameters")
                marks, done = dict(state["tables"]), int(state["sweep"])
            except (KeyError, TypeError, ValueError) as error:
                raise FileFormatError(f"{checkpoint.path} is not that of a run: it lacks {error}") from None
            _check_changes(before, parameters, done)
        chain = MarkovChain.restore(parameters, ranks, checkpoint)
        tables = {}
        with together(ranks):
            if ranks.rank == 0:
                check_saved(directory)
                remove_half_written(directory)
                for name, mark in marks.items():
                    table = Table.reopen(directory / f"{name}.csv", mark)
                    tables[name] = closing.enter_context(table)
                for name in tables_of(parameters):
                    if (
                        name not in tables
                    ):  # it begins with this resumption, or with one that had no checkpoint
                        path = directory / f"{name}.csv"
                        path.unlink(missing_ok=True)
                        tables[name] = closing.enter_context(Table.create(path, TABLES[name]))
                replace_parameters(directory, parameters)
        run = cls(directory, chain, tables, ranks)
        run._saved = chain.sweep if parameters == before else None
        return run

    def proceed(self, interruption: Interruption, stream: TextIO | None) -> signal.Signals | None:
        """Sweep until the end or until a signal, which is returned; either way with a checkpoint.

        `stream` is the output of progress, on the rank that shows it.
        """
        chain, run = self.chain, self.parameters.run
        interruption.at_once = False
        signalled = interruption.agreed(self._ranks)
        progress = self._progress(stream) if stream else None
        with progress or contextlib.nullcontext():
            while not chain.finished and signalled is None:
                interruption.saved = self._saved == chain.sweep
                self._step()
                interruption.saved = False
                if progress is not None:
                    progress.advance(chain.sweep, self._plaquette)
                if chain.is_due(run.checkpoint_every):
                    self.save()
                signalled = interruption.agreed(self._ranks)
        self.save()
        return signalled

    def _progress(self, stream: TextIO) -> Progress:
        """The display of the remaining work, below a line that describes it."""
        first, total = self.chain.sweep, total_sweeps(self.parameters)
        print(_headline(self), file=stream, flush=True)
        if self.chain.finished:
            print(
                f"all {total} sweeps are done; --set update.sweeps=N with a larger N prolongs the run",
                file=stream,
                flush=True,
            )
        return show_progress(stream, first, total, self.parameters.update.thermalisation)

    def save(self) -> None:
        """Write a checkpoint, unless the last one is as new."""
        if self._saved == self.chain.sweep:
            return
        marks = {}
        with together(self._ranks):
            if self._ranks.rank == 0:
                marks = {name: table.mark() for name, table in self._tables.items()}
        state = {
            "parameters": render_parameters(self.parameters),
            "tables": json.loads(self._ranks.broadcast_bytes(json.dumps(marks).encode(), 0)),
        }
        self.chain.save(self.directory / CHECKPOINT, state)
        self._saved = self.chain.sweep

    def _step(self) -> None:
        """One sweep, its measurements, perhaps its configuration, and the rows of all of them."""
        chain, parameters = self.chain, self.parameters
        new: dict[str, Sequence[Sequence[float | str | None]]] = {}
        begun = time.perf_counter()
        new.update(chain.advance())
        updated = time.perf_counter()
        if chain.is_due(parameters.run.measure_every):
            row = chain.measure()
            self._plaquette = row[1]
            new["history"] = [row]
            new[SCALARS] = chain.measure_scalars()
        thermalised = chain.sweep > parameters.update.thermalisation
        if parameters.measure.flow and thermalised and chain.is_due(parameters.measure.flow_every):
            new["flow"] = list(chain.measure_flow())
        measured = time.perf_counter()
        speed = chain.update.passes * chain.U.links / (updated - begun)
        new["timing"] = [(chain.sweep, updated - begun, measured - updated, speed)]
        if chain.is_due(parameters.run.save_every):
            new[ENSEMBLE] = [chain.save_configuration(self.directory)]
        with together(self._ranks):
            for name, table in self._tables.items():
                table.append(new.get(name, ()))


def _check_arguments(arguments: argparse.Namespace) -> None:
    if arguments.resume:
        for name, value in (
            ("PARAMETERS.toml", arguments.parameters),
            ("--output", arguments.output),
            ("--check", arguments.check),
        ):
            if value is not None:
                raise ParameterError(
                    f"--resume goes with --set, --device and -n only, not with {name}: the run is in its directory"
                )
        return
    if not arguments.parameters:
        raise ParameterError("name a parameter file (jali run PARAMETERS.toml --output DIR) or --resume DIR")
    if arguments.check is None and not arguments.output:
        raise ParameterError("say with --output DIR where the run is to be written")
    if isinstance(arguments.check, int) and arguments.check < 1:
        raise ParameterError(f"--check {arguments.check}: a lattice needs 1 rank or more")


def _check_changes(before: RunParameters, now: RunParameters, done: int) -> None:
    """Raise ParameterError unless the run that has `done` sweeps can continue with these parameters."""
    refused = []
    for spec in parameter_specs():
        old, new = (getattr(getattr(p, spec.section), spec.name) for p in (before, now))
        if old != new and spec.path not in CHANGEABLE:
            refused.append(f"{spec.path} was {toml_value(old)} and is {toml_value(new)} now")
    if refused:
        raise ParameterError(
            f"resuming goes on with the same chain, so {'; '.join(refused)} cannot be. "
            f"Only {', '.join(CHANGEABLE)} may change; begin another run for the rest"
        )
    if total_sweeps(now) < done:
        least = max(0, done - now.update.thermalisation)
        raise ParameterError(
            f"update.sweeps = {now.update.sweeps} would end the run at sweep {total_sweeps(now)}, but {done} "
            f"are done; give {least} or more"
        )


def _check_argument(text: str) -> int | str:
    if text == PHYSICS:
        return text
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} is no number of ranks; to check physics, write --check behind the parameter file"
        )
    return int(text)


def _check_physics(arguments: argparse.Namespace, ranks: comm.Communicator) -> int:
    """Checks at the start of the run, and stops."""
    with together(ranks):
        parameters = load_parameters(arguments.parameters, arguments.overrides)
    found = MarkovChain.start(parameters, ranks).check_physics()
    if ranks.rank == 0:
        checks = [{"what": one.what, "deviation": one.deviation, "limit": one.limit} for one in found]
        print(json.dumps({"checks": checks}, indent=2) if arguments.json else "\n".join(map(str, found)))
    return 0


def _check_layout(arguments: argparse.Namespace, ranks: comm.Communicator) -> int:
    from jali.cli.layout_check import check_layout, render_check

    with together(ranks):
        parameters = load_parameters(arguments.parameters, arguments.overrides)
        found = check_layout(parameters, arguments.check)
    if ranks.rank == 0:
        print(json.dumps(found, indent=2) if arguments.json else render_check(found))
    return 0


def _headline(run: Run) -> str:
    p, lattice = run.parameters, run.chain.U.lattice
    update = p.update
    ranks = "1 rank" if math.prod(lattice.grid) == 1 else f"ranks {' x '.join(map(str, lattice.grid))}"
    on_device = "" if lattice.gpu is None else f", {lattice.gpu.name}"
    text = (
        f"{p.gauge.group} on {' x '.join(map(str, lattice.extents))}, {_weight(p)}: "
        f"{update.thermalisation} + {update.sweeps} sweeps of {update_kind(p).title(p)}, "
        f"seed {p.run.seed}, {p.run.precision}, {ranks}{on_device}"
    )
    return text if run.chain.sweep == 0 else f"{text}; resumed after sweep {run.chain.sweep}"


def _weight(parameters: RunParameters) -> str:
    gauge, terms = parameters.gauge, parameters.hmc.terms
    words = f"{ACTIONS[gauge.action].title}, beta = {gauge.beta:g}"
    if is_gauge_alone(terms):
        return words
    return f"{terms_in_words(terms)}" + (f" ({GAUGE}: {words})" if gauge.beta else "")


def _conclude(run: Run, signalled: signal.Signals | None, as_json: bool) -> None:
    """Write the report and print the results."""
    from jali.cli.report import write_report
    from jali.cli.report_data import summarise

    report = write_report(run.directory)
    summary = summarise(run.directory)
    done, total = run.chain.sweep, total_sweeps(run.parameters)
    exhausted = exhausted_attempts()
    if as_json:
        result: dict[str, Any] = {
            "directory": str(run.directory),
            "status": "interrupted" if signalled else "done",
            "signal": signalled.name if signalled else None,
            "sweeps_done": done,
            "sweeps": total,
            **summary.as_dict(),
            "exhausted_attempts": exhausted,
            "report": str(report),
        }
        print(json.dumps(result, indent=2, allow_nan=False))
        return
    if signalled:
        print(
            f"interrupted ({signalled.name}) after sweep {done} of {total}; "
            f"jali run --resume {run.directory} goes on"
        )
    estimate = summary.estimates.get("plaquette")
    if estimate is None:
        print("no measurements after thermalisation yet")
    else:
        parts = [f"plaquette {format_value(estimate.mean, estimate.error)}"]
        if math.isfinite(estimate.tau_int):
            every = summary.interval
            tau = format_value(estimate.tau_int * every, estimate.tau_int_error * every)
            parts.append(f"tau_int {tau} sweeps, {estimate.n} measurements")
        if summary.reference is not None:
            reference = summary.reference
            known = f"{reference.kind} {reference}"
            if summary.deviation is not None:
                known += f": {summary.deviation:+.1f} sigma"
            parts.append(known + (f" ({reference.caution})" if reference.caution else ""))
        print("; ".join(parts))
    if summary.flow is not None:
        for line in summary.flow.in_words():
            print(f"flow: {line}")
    for scalar in summary.scalars:
        print(scalar.in_words())
    for line in [*(summary.hmc.in_words() if summary.hmc else []), *run.chain.update.in_words()]:
        print(line)
    if exhausted:
        print(f"{exhausted} heat-bath draws ended without an accepted proposal and kept the old link")
    print(f"report: {report}")
