"""Which solver is fastest for an operator here: measured, and written as a rule into a file that `jali.solve` reads.

Solvers that are possible run once to make their kernels, then some times against the clock, each with all that a solve of it takes: the operator in few bits,
the form, the residual in the end. Those in few bits are measured of the fastest ones only. A rule names the fastest; behind it, for solves that fail, the fastest in
the precision of b, and one that always converges.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from jali.amounts import time_text
from jali.errors import ParameterError, SolverError
from jali.files import shown
from jali.keywords import named
from jali.solvers.choice import MAXITER, Impossible, Prepared
from jali.solvers.facts import Facts
from jali.solvers.memory import agreed_least
from jali.solvers.methods import KINDS, METHODS, Candidate
from jali.solvers.rules import VERSION, rule_text, rules_in, text_of, user_file
from jali.solvers.solver import check_arguments
from jali.version import __version__

HOPELESS = 2.0  # a candidate that takes so many times the best is measured once
IN_FEW_BITS = 3  # of the fastest, which are also measured in few bits
INNERS = ("float32", "fixed16", "float16")
MOST_ITERATIONS = 4  # of a candidate, in those of the longest solve before it
WITHIN = 16  # a rule is for so many times fewer and more unknowns than were measured,
OF_TOLERANCE = 100  # and for tolerances so many times smaller and larger
PLAIN: dict[str, tuple[tuple[str, dict[str, int]], ...]] = {
    "positive": (("cg", {}), ("block_cg", {})),
    "hermitian": (("minres", {}),),
    "adjoint": (
        ("cgnr", {}),
        ("cg", {}),
        ("block_cg", {}),
        ("bicgstab", {}),
        ("bicgstabl", {"directions": 2}),
        ("bicgstabl", {"directions": 4}),
        ("gcr", {"restart": 20}),
    ),
    "general": (
        ("bicgstabl", {"directions": 2}),
        ("bicgstabl", {"directions": 4}),
        ("bicgstab", {}),
        ("gcr", {"restart": 20}),
        ("fgmres", {"restart": 30}),
    ),
}
"""Solvers that are measured, by what an operator is."""


@dataclass(frozen=True)
class Timing:
    """A candidate with the median of its seconds, None where it was not possible or failed; `note` says why, or what else there is to say."""

    candidate: Candidate
    seconds: float | None
    iterations: int = 0
    residual: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class TunedSolver:
    """What was measured, the fastest first, and the rule that follows, as TOML."""

    timings: tuple[Timing, ...]
    rule: str

    def explain(self) -> str:
        """A line for each candidate."""
        width = max(len(str(one.candidate)) for one in self.timings)
        lines = []
        for one in self.timings:
            took = "-" if one.seconds is None else time_text(one.seconds)
            more = (
                "" if one.seconds is None else f"  {one.iterations} iterations, residual {one.residual:.1e}"
            )
            lines.append(f"{one.candidate!s:<{width}}  {took:>8}{more}{'  ' if one.note else ''}{one.note}")
        return "\n".join(lines)


@named
def tune_solver(
    A: Any,
    b: Any,
    tolerance: float = 1e-10,
    *,
    kind: str | None = None,
    rounds: int = 3,
    output: Any = None,
    force: bool = False,
    callback: Callable[[Timing], None] | None = None,
) -> TunedSolver:
    """Measures the solvers of A x = b that `jali.solve` could take, and writes a rule for the fastest into a file of rules.

    Args:
        A: as of `jali.solve`.
        b: as of `jali.solve`.
        tolerance: as of `jali.solve`.
        kind: as of `jali.solve`.
        rounds: measured solves of each candidate.
        output: the file; that of the user, which `jali.solve` reads, if left out. Its other rules stay; "" writes none.
        force: write over a rule with the same conditions.
        callback: called with each `Timing`.

    Raises:
        ParameterError: wrong arguments; a rule with these conditions is there; no file can be written; no candidate solves, with why.
    """
    check_arguments("tune_solver", tolerance, 0.0, rounds=rounds)
    facts = Facts(A, b, float(tolerance), kind, None)
    conditions = conditions_of(facts)
    path = _path(output)
    if path is not None:
        if not path.parent.is_dir():
            raise ParameterError(
                f"tune_solver: {shown(str(path))} cannot be written: its folder is not there"
            )
        if not force:
            _refuse_known(path, conditions)
    trial = _Trial(facts, int(rounds), callback)
    for one in plain_candidates(facts):
        trial.measure(one)
    for one in trial.fastest()[:IN_FEW_BITS] if facts["few_bits"] else ():
        for inner in INNERS:
            trial.measure(Candidate(one.method, one.form, inner, one.options))
    if not trial.fastest():
        reasons = "; ".join(f"{one.candidate}: {one.note}" for one in trial.timings)
        raise ParameterError(f"tune_solver: no candidate solves to {tolerance:g}: {reasons}")
    text = trial.rule(conditions)
    ordered = sorted(trial.timings, key=lambda one: math.inf if one.seconds is None else one.seconds)
    if path is not None and all(ranks.rank == 0 for ranks in facts.vectors.ranks(b)):
        write_rule(path, text, conditions)
    return TunedSolver(tuple(ordered), text)


def plain_candidates(facts: Facts) -> list[Candidate]:
    """Those in the precision of b: of each form that there is, and of the whole operator one if there are forms."""
    found = []
    for form in ("even-odd", "symmetric") if facts["even_odd"] else ():
        try:
            kind = Prepared(facts, Candidate("mr", form)).form.kind
        except Impossible:
            continue
        found += [Candidate(name, form, "", options) for name, options in PLAIN[kind]]
    whole = PLAIN[facts["kind"]]
    found += [Candidate(name, "full", "", options) for name, options in (whole[:1] if found else whole)]
    count = facts.count_of_batch or 1
    return [one for one in found if METHODS[one.method].members[0] <= count <= METHODS[one.method].members[1]]


def conditions_of(facts: Facts) -> dict[str, Any]:
    """The conditions of a rule for solves like this one."""
    unknowns, tolerance, batch, ranks = (facts[name] for name in ("unknowns", "tolerance", "batch", "ranks"))
    found: dict[str, Any] = {
        "operator": facts["operator"][0],
        "kind": facts["kind"],
        "device": facts["device"],
        "precision": facts["precision"],
        "unknowns": f"{unknowns / WITHIN:.3g}..{unknowns * WITHIN:.3g}",
        "tolerance": f"{tolerance / OF_TOLERANCE:.3g}..{min(tolerance * OF_TOLERANCE, 0.5):.3g}",
        "batch": 1 if batch == 1 else f"{max(2, batch // 2)}..{2 * batch}",
    }
    return found if ranks == 1 else {**found, "ranks": ranks}


class _Trial:
    """Candidates against the clock. Ranks find the same times: those of the slowest."""

    def __init__(self, facts: Facts, rounds: int, callback: Callable[[Timing], None] | None):
        self.facts, self.rounds, self.callback = facts, rounds, callback
        self.timings: list[Timing] = []
        self.best, self.longest = math.inf, 0

    def fastest(self) -> list[Candidate]:
        """Those that solved, the fastest first."""
        timed = [one for one in self.timings if one.seconds is not None]
        return [one.candidate for one in sorted(timed, key=lambda one: one.seconds or 0.0)]

    def measure(self, one: Candidate) -> None:
        timing = self._timing(one)
        self.timings.append(timing)
        if timing.seconds is not None:
            self.best = min(self.best, timing.seconds)
            self.longest = max(self.longest, timing.iterations)
        if self.callback is not None:
            self.callback(timing)

    def _timing(self, one: Candidate) -> Timing:
        maxiter = min(MAXITER, MOST_ITERATIONS * self.longest + 100) if self.longest else MAXITER
        times: list[float] = []
        note = ""
        try:
            self._solve(one, maxiter)  # makes the kernels
            for _ in range(self.rounds):
                seconds, iterations, residual = self._solve(one, maxiter)
                times.append(seconds)
                if len(times) == 1 and seconds > HOPELESS * self.best:
                    note = f"measured once: more than {HOPELESS:g} times the best"
                    break
        except (Impossible, SolverError) as error:
            return Timing(one, None, note=shown(str(error), 200))
        return Timing(one, statistics.median(times), iterations, residual, note)

    def _solve(self, one: Candidate, maxiter: int) -> tuple[float, int, float]:
        begun = time.perf_counter()
        prepared = Prepared(self.facts, one)
        prepared.check_memory()
        found = prepared.solve(None, self.facts["tolerance"], maxiter, True)
        seconds = time.perf_counter() - begun
        seconds = -agreed_least(self.facts.vectors.ranks(self.facts.b), -seconds)
        return seconds, int(np.max(found.iterations)), float(np.max(found.residuals))

    def rule(self, conditions: dict[str, Any]) -> str:
        """The rule of what was measured."""
        found = self.fastest()
        plain = [one for one in found if not one.inner]
        sure = [one for one in plain if one.method in ("cg", "cgnr", "minres")]
        choices = list({str(one): one for one in (found[0], *plain[:1], *sure[:1])}.values())
        of = {str(one.candidate): one for one in self.timings}
        why = f"it was measured here: {' and '.join(_took(of[str(one)]) for one in choices)}"
        now = datetime.now(timezone.utc).date().isoformat()  # noqa: UP017
        comments = [
            f"Measured {now} by jali {__version__}: {KINDS[self.facts['kind']]}, {self.rounds} solves of each candidate."
        ]
        return rule_text(conditions, choices, why, comments)


def _took(one: Timing) -> str:
    return f"{one.candidate} took {time_text(one.seconds or 0.0)}"


# ---- the file --------------------------------------------------------------------------------------------------


def _path(output: Any) -> Path | None:
    if output is None:
        if (found := user_file()) is None:
            raise ParameterError(
                "tune_solver: there is no cache directory that the file of rules could be in; name one with output="
            )
        return found
    return Path(output) if str(output) else None


def _refuse_known(path: Path, conditions: dict[str, Any]) -> None:
    """Raises ParameterError where the file has a rule with these conditions."""
    if path.exists() and (block := _known(text_of(path), str(path), conditions)) is not None:
        raise ParameterError(
            f"{shown(str(path))}, line {block[0] + 1}, has a rule with these conditions ({', '.join(f'{k} = {v}' for k, v in conditions.items())}): --force "
            "or force=True writes over it"
        )


def write_rule(path: Path, text: str, conditions: dict[str, Any]) -> None:
    """Puts a rule in front of those of a file, in place of one with the same conditions; the file is complete or as it was."""
    before = text_of(path) if path.exists() else f"# Rules of solvers, for jali.solve.\nversion = {VERSION}\n"
    lines = before.splitlines(keepends=True)
    if (block := _known(before, str(path), conditions)) is not None:
        del lines[block[0] : block[1]]
    blocks = _blocks(lines)
    at = blocks[0][0] if blocks else len(lines)
    new = "".join(
        [*lines[:at], *([] if at and not lines[at - 1].strip() else ["\n"]), text, "\n", *lines[at:]]
    )
    rules_in(new, str(path))  # what is written can be read
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        temporary.write_text(new, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ParameterError(f"{shown(str(path))} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _known(text: str, source: str, conditions: dict[str, Any]) -> tuple[int, int] | None:
    """The lines of the rule with these conditions, from the first to behind the last."""
    wanted = rules_in(f"version = {VERSION}\n" + rule_text(conditions, [Candidate("cgnr")], "", ()), source)[
        0
    ].conditions
    blocks = _blocks(text.splitlines(keepends=True))
    for rule, block in zip(rules_in(text, source), blocks, strict=True):
        if {(one.fact, one.value) for one in rule.conditions} == {(one.fact, one.value) for one in wanted}:
            return block
    return None


def _blocks(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Where each rule begins, with the comments in front of it, and ends."""
    begins = []
    for k, line in enumerate(lines):
        if re.match(r"\s*\[\[\s*rule\s*\]\]", line):
            while k and lines[k - 1].startswith("#"):
                k -= 1
            begins.append(k)
    return list(zip(begins, [*begins[1:], len(lines)], strict=True)) if begins else []
