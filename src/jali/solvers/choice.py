"""`solve` chooses a solver for A x = b by rules, runs it, and says why; `choose` only chooses.

What is chosen is a `Candidate` (`methods.py`): a solver, a form of the operator and the bits of its recursion. A rule (`rules.py`) names several, which are
tried one after the other where a solve fails. Whatever form solves, what ends a solve is |b - A x| / |b| of the operator that was named: where it is above the
tolerance although the form's own residual is below, the solve goes on to a smaller one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jali.amounts import counted, size_text, time_text
from jali.errors import JaliError, LayoutError, ParameterError, SolverError, StorageError
from jali.files import checked_path, value_shown
from jali.keywords import named
from jali.solvers import rules as rule_files
from jali.solvers.batches import BatchSolution
from jali.solvers.causes import not_finite
from jali.solvers.facts import Facts
from jali.solvers.memory import agreed_least, agreed_text, bytes_of, device_of, free_memory
from jali.solvers.methods import FORMS, KINDS, METHODS, Candidate
from jali.solvers.operators import into_of, is_operator, joins_members, widened
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.rules import Condition, Rule, candidate
from jali.solvers.scaling import scaled, unscaled
from jali.solvers.solver import check_arguments
from jali.vectors import check_alike, vectors_of

MAXITER = 10_000
MOST_ROUNDS = 8  # solves of a form to smaller and smaller tolerances
LEAST_GAIN = 0.9  # of the true residual, in a further round; some rounds may have less
STRIKES = 3
SAFETY = 0.8  # of the tolerance that the second round aims at; later ones aim at half of the last one's
PRECISION_OF_FEW = "float32"
WIDTH = 108
# vectors that an operator keeps, at most, that a form does, and more of one that joins members of a batch
KEPT, KEPT_BY_FORMS, KEPT_BY_JOINED = 2, 10, 4
MOST_MEMBERS = 1e9  # that explanations speak of


class Impossible(Exception):  # noqa: N818  (not an error: the candidate is out)
    """A candidate is not possible here; has the reason."""


class NoRoom(Impossible):
    """The vectors of a candidate do not fit into memory; `fitting` right-hand sides would."""

    def __init__(self, text: str, fitting: int):
        super().__init__(text)
        self.fitting = fitting


class Form:
    """The operator that is solved with: A itself, or an even-odd form of it."""

    def __init__(self, facts: Facts, form: str):
        self.facts, self.form = facts, form
        self.A = facts.A
        if form == "full":
            self.S, self.kind = self.A, facts["kind"]
            return
        if not facts["even_odd"]:
            raise Impossible("the operator has no even-odd forms, or an extent of the lattice is odd")
        try:
            self.S = self.A.even_odd(form="symmetric" if form == "symmetric" else "asymmetric")
        except JaliError as error:
            raise Impossible(str(error)) from None
        self.kind = getattr(self.S, "solver_kind", "adjoint")

    def prepare(self, b: Any) -> Any:
        return b if self.form == "full" else self.S.prepare(b)

    def start(self, x0: Any) -> Any:
        return x0 if self.form == "full" or x0 is None else x0.on(self.S.over)

    def reconstruct(self, x: Any, b: Any, out: Any) -> Any:
        return x if self.form == "full" else self.S.reconstruct(x, b, out)

    def in_format(self, storage: str) -> Any:
        """S in few bits. Raises Impossible."""
        owner = self.S if self.form != "full" else self.facts.owner
        if not callable(getattr(owner, "in_format", None)):
            raise Impossible("the operator cannot be had in another format (it has no in_format)")
        try:
            few = owner.in_format(PRECISION_OF_FEW, None if storage == PRECISION_OF_FEW else storage)
        except (LayoutError, StorageError) as error:
            raise Impossible(str(error)) from None
        return few if owner is self.S else getattr(few, self.S.__name__)


class Prepared:
    """A candidate with its operators. Raises Impossible where it is none for this solve."""

    def __init__(self, facts: Facts, one: Candidate):
        self.facts, self.candidate = facts, one
        self.method = METHODS[one.method]
        self.form = Form(facts, one.form)
        S, kind = self.form.S, self.form.kind
        order = list(KINDS)
        self.of_normal = False  # conjugate gradients of S^H S
        if self.method.needs == "positive" and kind != "positive" and callable(getattr(S, "normal", None)):
            self.of_normal = True
        elif order.index(kind) > order.index(self.method.needs):
            raise Impossible(
                f"{one.method} needs an operator that is {KINDS[self.method.needs]}, and {FORMS[one.form]} is {KINDS[kind]}"
            )
        least, most = self.method.members
        if not least <= (facts.count_of_batch or 1) <= most:
            raise Impossible(
                f"{one.method} is for {least} to {most} right-hand sides, not for {facts.count_of_batch or 1}"
            )
        if self.method.needs == "adjoint" and not callable(getattr(S, "rmatvec", None)):
            raise Impossible(f"{one.method} needs an adjoint, a function rmatvec, which the operator has not")
        self.few: Any = None
        self.model: Any = None  # a vector of few bits, of one right-hand side
        if one.inner:
            if not facts["few_bits"]:
                raise Impossible(
                    "b has few bits itself"
                    if not facts.many_bits
                    else "the operator cannot be had in another format (it has no in_format)"
                )
            self.few = self.form.in_format(one.inner)
            self.model = self._in_few_bits(
                facts.b if facts.count_of_batch is None else facts.b.like(batch=None)
            )

    def _in_few_bits(self, x: Any) -> Any:
        vectors = vectors_of("b", x)
        try:
            found = vectors.like(x, PRECISION_OF_FEW)
            storage = re.sub(r"-\d+$", "", self.candidate.inner)
            return found if storage == PRECISION_OF_FEW else vectors.stored(found, storage)
        except (LayoutError, ParameterError) as error:
            raise Impossible(str(error)) from None

    # ---- memory ------------------------------------------------------------------------------------------

    def bytes_beside(self) -> int:
        """Of the vectors that a solve makes beside b, on this rank: x and b - A x, those of the recursion, and those that the operator keeps between kernels."""
        whole, half = bytes_of(self.facts.b), self.form.form != "full"
        unit = whole / 2 if half else whole
        joins = joins_members(self.facts.A)
        kept = (KEPT_BY_FORMS if half else KEPT) + (KEPT_BY_JOINED if joins else 0)
        own = self.method.vectors(self.candidate.options) + 2
        if self.candidate.form == "symmetric" or self.of_normal:
            kept += own - 1  # a second round may begin before Python has given back what the first one had
        if self.few is None:
            return int(2 * whole + (own + kept) * unit)
        few = unit * bytes_of(self.model) * (self.facts.count_of_batch or 1) / whole
        # x and r in many bits, x in the numbers of the arithmetic of few
        return int(2 * whole + (2 + kept) * unit + unit / 2 + (own + 1 + kept) * few)

    def check_memory(self) -> str:
        """What is needed and what there is, as a sentence. Raises Impossible, alike on all ranks."""
        b, count = self.facts.b, self.facts["batch"]
        needed, free = self.bytes_beside(), free_memory(b)
        fitting = int(
            min(agreed_least(self.facts.vectors.ranks(b), free / max(needed / count, 1.0)), MOST_MEMBERS)
        )
        where = device_of(b)[0]
        where = "on the host" if where == "host" else f"on the {where} device"
        fits = f"{counted(fitting, 'right-hand side')} would fit at once"
        if fitting < count:
            what = counted(count, "right-hand side")
            fits = fits if fitting else "not even one would fit"
            raise NoRoom(
                f"{what} would take {size_text(needed)} beside b, of {size_text(free)} that are free {where}: {fits}",
                fitting,
            )
        return f"It takes {size_text(needed)} beside b, of {size_text(free)} that are free {where}; {fits}"

    # ---- the solve ---------------------------------------------------------------------------------------

    def solve(self, x0: Any, tolerance: float, maxiter: int, must_converge: bool) -> Outcome:
        """Solves with the form, and as long as the operator that was named is above the tolerance to smaller ones. Raises SolverError."""
        vectors: Any = self.facts.vectors
        single = self.facts.count_of_batch is None
        joined = single and getattr(self.facts.b, "batch", None) is not None
        vectors = vectors.of_whole_batch() if joined else vectors
        b, x0, size, factors = scaled(vectors, self.facts.b, x0)
        rhs, start = self.form.prepare(b), self.form.start(x0)
        A: Any = self.form.S
        few: Any = self.few
        if self.of_normal:
            rhs, A, few = self.form.S.adjoint(rhs), self.form.S.normal, few and few.normal
        elif self.method.needs == "positive" and callable(getattr(A, "apply", None)):
            A, few = A.apply, few and few.apply  # which write into a vector that there is
        options: dict[str, Any] = dict(self.candidate.options)
        if few is not None:
            options["inner"] = Inner(few, self._in_few_bits(rhs), **self.candidate.updates)
        of_form: Any = vectors_of("b", rhs)
        size_of_form = np.sqrt(
            np.asarray((of_form.of_whole_batch() if joined else of_form).norm2(rhs), float)
        )
        size = np.where(np.asarray(size) > 0, size, 1.0)
        # |r| of an even-odd form is that of all sites, of other forms and of normal equations nearly
        ratio = np.min(
            np.where(size_of_form > 0, size / np.where(size_of_form > 0, size_of_form, 1.0), math.inf)
        )
        rtol = tolerance if self.of_normal else min(tolerance * float(ratio), 0.5)
        residual, apply = vectors.like(b), into_of("the operator", self.facts.A, vectors)
        iterations, last, strikes = np.zeros(np.shape(size), int), math.inf, 0
        history: list[list[float]] = []
        flops: int | None = 0
        x: Any = None
        for round_ in range(MOST_ROUNDS):
            found = self.method.solver(
                A, rhs, start, rtol=rtol, maxiter=maxiter, must_converge=must_converge, **options
            )
            members = list(found.members) if isinstance(found, BatchSolution) else [found]
            iterations += np.reshape([one.iterations for one in members], iterations.shape)
            history = [
                [*before, *one.history[1 if before else 0 :]]
                for before, one in zip(history or [[] for _ in members], members, strict=True)
            ]
            flops = None if flops is None or members[0].flops is None else flops + members[0].flops
            x, start = self.form.reconstruct(found.x, b, x), found.x
            turns, goes_on = members[0].check_interval, found.converged
            del found, members  # and the vectors of the solver
            apply(x, residual)
            squares = vectors.update([(residual, -1, [(1, b)])], norm=True)
            residuals = np.sqrt(np.asarray(squares, float)) / size
            above = float(np.max(residuals)) / tolerance
            if above <= 1 or not goes_on:
                break
            strikes += not above < LEAST_GAIN * last
            if strikes == STRIKES or round_ + 1 == MOST_ROUNDS:
                if must_converge:
                    raise SolverError(
                        f"{self.candidate.method}: |b - A x|/|b| is {above * tolerance:.3g} and smaller tolerances no longer lower it: the tolerance "
                        f"{tolerance:.3g} is below what rounding in {self.facts.vectors.precision(b)} allows for this operator",
                        history[0] if single else history,
                    )
                break
            last, rtol = above, SAFETY / 2**round_ * rtol / above
        return Outcome(unscaled(vectors, x, factors), residuals, iterations, history, turns, flops)


class Outcome(NamedTuple):
    """What a candidate found: x, |b - A x| / |b| and iterations, of a batch arrays, the residuals of the recursions of each member, after how many
    iterations the host looked, and the operations of the recursions, None where they were not counted."""

    x: Any
    residuals: np.ndarray
    iterations: np.ndarray
    history: list[list[float]]
    check_interval: int
    flops: int | None


class SolverChoice:
    """What `choose` has chosen for a solve: `candidates`, the first to be tried first, by `rule`; `explain()` says why, and `run()` solves.

    `passed` are the rules before it, each with the condition that did not hold, or None where no choice was possible, and `impossible` the choices of the rule that are not possible here.
    """

    def __init__(self, facts: Facts, rule: Rule | None, tolerance: float):
        self.facts, self.rule, self.tolerance = facts, rule, tolerance
        self.candidates: list[Candidate] = []
        self.passed: list[tuple[Rule, Condition | None]] = []
        self.impossible: list[tuple[Candidate, str]] = []
        self.first: Prepared | None = None
        self.memory = ""

    def __repr__(self) -> str:
        return f"<{self.candidates[0]} for {_operator_text(self.facts)}>"

    def explain(self) -> str:
        """Which rule fired and why, what was measured, how much memory is needed, and what is tried if it fails: in sentences."""
        first, *others = self.candidates
        what = METHODS[first.method].what
        if self.first is not None and self.first.of_normal:
            what += ", here of the normal equations"
        lines = [f"{_operator_text(self.facts)} is solved by {first} ({what})"]
        lines += (
            [f"{self.facts['batch']} right-hand sides are solved at once"] if self.facts["batch"] > 1 else []
        )
        if self.rule is None:
            lines.append("It was named by the caller; no rule was asked")
        else:
            because = f", since {self.rule.why}" if self.rule.why else ""
            lines.append(f"So says {self.rule}{because}")
            held = [f"{one} ({self.facts.text(one.fact)})" for one in self.rule.conditions]
            lines.append(f"Its conditions hold: {'; '.join(held)}" if held else "It has no conditions")
            lines += self._passed_text()
        lines += [f"Not {one}: {why}" for one, why in self.impossible]
        lines += self.facts.said
        lines.append(self.memory)
        if others:
            after = f", or has not converged in {first.maxiter} iterations" if first.maxiter else ""
            lines.append(f"Where it fails{after}, {', then '.join(map(str, others))} goes on")
        return "\n".join(_wrapped(line) for line in lines)

    def _passed_text(self) -> list[str]:
        """Why rules before were not the one; those that are for others of one fact, one after the other, together."""
        lines = []
        for (source, fact), several in itertools.groupby(
            self.passed, lambda one: (one[0].source, "" if one[1] is None else one[1].fact)
        ):
            passed = list(several)
            first, last = passed[0][0].number, passed[-1][0].number
            which = (
                f"Rule {first} of {source} is"
                if first == last
                else f"Rules {first} to {last} of {source} are"
            )
            if fact:
                asked = " or ".join(dict.fromkeys(str(one) for _, one in passed))
                lines.append(f"{which} for {asked}, and it is {self.facts.text(fact)}")
            else:
                lines.append(f"{which} for this operator, but none of the choices is possible here")
        return lines

    def run(
        self, x0: Any = None, *, maxiter: int = MAXITER, must_converge: bool = True
    ) -> ChosenSolution | ChosenBatchSolution:
        """Solves. Raises what `solve` raises."""
        begun = time.perf_counter()
        check_arguments("solve", self.tolerance, 0.0, maxiter=maxiter)
        if x0 is not None:
            check_alike("solve: x0", x0, "b", self.facts.b)
        self._refuse_bad()
        failed: list[tuple[Candidate, str]] = []
        for k, one in enumerate(self.candidates):
            is_last = k + 1 == len(self.candidates)
            most = min(maxiter, one.maxiter or maxiter)
            try:
                prepared = self.first if k == 0 and self.first is not None else Prepared(self.facts, one)
                if k:
                    prepared.check_memory()
                found = prepared.solve(x0, self.tolerance, most, must_converge and is_last)
            except Impossible as why:
                failed.append((one, str(why)))
                continue
            except SolverError as error:
                failed.append((one, str(error)))
                if not is_last:
                    continue
                raise SolverError(_and_before(str(error), failed[:-1]), error.history) from None
            worst, most_used = float(np.max(found.residuals)), int(np.max(found.iterations))
            if is_last or worst <= self.tolerance:
                return self._solution(one, found, failed, time.perf_counter() - begun)
            failed.append((one, f"|b - A x|/|b| is {worst:.3g} after {counted(most_used, 'iteration')}"))
            if worst < 1:
                x0 = found.x  # the next one goes on from there
        raise SolverError(_and_before("solve: no candidate was possible", failed))

    def _refuse_bad(self) -> None:
        """Raises SolverError for infinities and nan in b, which no solver takes."""
        b, vectors = self.facts.b, self.facts.vectors
        _, _, size, _ = scaled(vectors, b, None)
        if np.all(np.isfinite(size)):
            return
        if getattr(b, "batch", None) is None:
            raise not_finite("solve", b=b)
        members = ", ".join(map(str, np.flatnonzero(~np.isfinite(np.asarray(size))).tolist()))
        raise SolverError(f"solve: b has infinities or nan in members {members}")

    def _solution(
        self, one: Candidate, found: Outcome, failed: list[tuple[Candidate, str]], seconds: float
    ) -> ChosenSolution | ChosenBatchSolution:
        worst, longest = float(np.max(found.residuals)), int(np.max(found.iterations))
        report = Report(self, one, tuple(failed), worst, longest, seconds)
        count = self.facts.count_of_batch
        parts = zip(
            [found.x] if count is None else [found.x.members[k] for k in range(count)],
            np.ravel(found.iterations).tolist(),
            found.history,
            np.ravel(found.residuals).tolist(),
            strict=True,
        )
        members = [
            (
                x,
                iterations,
                history,
                residual,
                residual <= self.tolerance,
                found.check_interval,
                seconds,
                found.flops,
            )
            for x, iterations, history, residual in parts
        ]
        if count is None:
            return ChosenSolution(*members[0], report=report)
        return ChosenBatchSolution(found.x, tuple(Solution(*one) for one in members), report)


@dataclass(frozen=True)
class Report:
    """What became of a choice: the candidate that solved, and those that failed before it, with why."""

    choice: SolverChoice
    candidate: Candidate
    failed: tuple[tuple[Candidate, str], ...]
    residual: float
    iterations: int
    seconds: float

    def explain(self) -> str:
        """The explanation of the choice, and what happened."""
        lines = [f"The solve by {one} failed: {why}" for one, why in self.failed]
        worst = " at most" if self.choice.facts["batch"] > 1 else ""
        lines.append(
            f"The solve by {self.candidate} took {counted(self.iterations, 'iteration')} and {time_text(self.seconds)}; |b - A x| / |b|, of the operator that was named, "
            f"is {self.residual:.2g}{worst}, of a tolerance of {self.choice.tolerance:.2g}"
        )
        return "\n".join([self.choice.explain(), *map(_wrapped, lines)])


@dataclass(frozen=True, repr=False)
class ChosenSolution(Solution):
    """A `Solution` of `jali.solve`. `residual` is that of the operator that was named, `residuals` are those of the form that was solved with."""

    report: Report | None = None

    def explain(self) -> str:
        """Which rule chose the solver, and why; what it took."""
        return self.report.explain() if self.report is not None else ""


@dataclass(frozen=True, repr=False)
class ChosenBatchSolution(BatchSolution):
    """A `BatchSolution` of `jali.solve`, whose members are like its solutions."""

    report: Report | None = None

    def explain(self) -> str:
        """Which rule chose the solver, and why; what it took."""
        return self.report.explain() if self.report is not None else ""


@named
def choose(
    A: Any,
    b: Any,
    tolerance: float = 1e-10,
    *,
    method: str | None = None,
    form: str | None = None,
    inner: str | None = None,
    options: Mapping[str, Any] | None = None,
    kind: str | None = None,
    condition: float | None = None,
    rules: Any = None,
) -> SolverChoice:
    """The solver that `solve` would take, without solving: `choose(A, b).explain()` says why. Arguments and errors are those of `solve`."""
    check_arguments("solve", tolerance, 0.0)
    if is_operator(A):
        b = widened(b, A)
    facts = Facts(A, b, float(tolerance), kind, condition)
    if tolerance < (epsilon := facts.vectors.epsilon(b)):
        raise ParameterError(
            f"solve: the tolerance {tolerance:g} is below rounding in {facts.vectors.precision(b)}, {epsilon:.2g}: ask for more, or solve for a b of float64"
        )
    named = {"method": method, "form": form, "inner": inner}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    try:
        candidate(
            "cgnr" if method is None else method,
            "full" if form is None else form,
            "" if method is not None or inner is None else inner,
        )
    except ParameterError as error:
        raise ParameterError(f"solve: {error}") from None
    if options is not None:
        if not isinstance(options, Mapping):
            raise ParameterError(
                f"solve: options is a dictionary of options of the method that is named beside them, not {value_shown(options)}"
            )
        if method is None:
            raise ParameterError(
                f'solve: options {value_shown(dict(options))} are those of a method; name it, as method="gcr"'
            )
        changes["options"] = dict(options)
    found = SolverChoice(facts, None, float(tolerance))
    if named.keys() <= changes.keys():
        _take(found, [Candidate("")], changes)
    else:
        _by_rules(found, _rules(facts, rules), changes)
    return found


def _rules(facts: Facts, path: Any) -> list[Rule]:
    """The rules of a file, those of the user and jali's own, in this order; of several ranks the files of the first one."""
    ranks = facts.vectors.ranks(facts.b)
    found = []
    if path is not None:
        name = checked_path(path)
        found += rule_files.rules_in(agreed_text(ranks, rule_files.text_of(Path(name))), name)
    of_user = rule_files.user_file()
    text = rule_files.text_of(of_user) if of_user is not None and of_user.exists() else ""
    if text := agreed_text(ranks, text):
        found += rule_files.rules_in(text, str(of_user))
    return [*found, *rule_files.rules_in(rule_files.own_text(), "jali's own rules.toml")]


def _by_rules(found: SolverChoice, rules: list[Rule], changes: Mapping[str, Any]) -> None:
    """Fills a choice by the first rule that holds and has a possible candidate. Raises ParameterError where there is none."""
    facts = found.facts
    refusals = []
    for rule in rules:
        missed = next((one for one in rule.conditions if not one.holds(facts[one.fact])), None)
        if missed is not None:
            found.passed.append((rule, missed))
            continue
        found.rule, found.impossible = rule, []
        try:
            _take(found, rule.choices, changes)
            return
        except ParameterError as error:
            refusals.append(error)
            found.passed.append((rule, None))
    if refusals:
        raise refusals[0]
    raise ParameterError(
        f'solve: no rule holds for {_operator_text(facts)} ({KINDS[facts["kind"]]}); name a method, as method="gcr"'
    )


def _take(found: SolverChoice, choices: Sequence[Candidate], changes: Mapping[str, Any]) -> None:
    """Keeps those of these choices, with what the caller has named, that are possible. Raises ParameterError where none is."""
    candidates: dict[str, Candidate] = {}
    for one in choices:
        try:
            new = _changed(one, changes)
        except ParameterError as error:
            found.impossible.append((one, str(error)))
            continue
        candidates.setdefault(str(new), new)
    left, most = list(candidates.values()), None
    while left:
        try:
            found.first = Prepared(found.facts, left[0])
            found.memory = found.first.check_memory()
        except Impossible as why:
            if isinstance(why, NoRoom) and (most is None or why.fitting > most[1].fitting):
                most = left[0], why
            found.impossible.append((left.pop(0), str(why)))
            continue
        found.candidates = left
        return
    found.first = None
    if most is not None:
        raise ParameterError(f"solve: {most[1]} (by {most[0]}, which takes least)")
    reasons = "; ".join(f"{one}: {why}" if one.method else why for one, why in found.impossible)
    raise ParameterError(f"solve: no solver is possible for {_operator_text(found.facts)}: {reasons}")


def _changed(one: Candidate, changes: Mapping[str, Any]) -> Candidate:
    """A candidate with what the caller has named in place of what a rule says. Raises ParameterError."""
    method, form, inner = (changes.get(name, getattr(one, name)) for name in ("method", "form", "inner"))
    if "inner" not in changes and not METHODS[method].inner:
        inner = ""
    options = changes.get("options", one.options if method == one.method else {})
    new = candidate(method, form, inner, **options)
    return dataclasses.replace(
        new,
        updates=one.updates if new.inner else {},
        maxiter=one.maxiter if method == one.method else 0,
    )


@recorded(hermitian=False)
@named
def solve(
    A: Any,
    b: Any,
    tolerance: float = 1e-10,
    x0: Any = None,
    *,
    method: str | None = None,
    form: str | None = None,
    inner: str | None = None,
    options: Mapping[str, Any] | None = None,
    kind: str | None = None,
    condition: float | None = None,
    rules: Any = None,
    maxiter: int = MAXITER,
    must_converge: bool = True,
) -> ChosenSolution | ChosenBatchSolution:
    """Solves A x = b by a solver that rules choose: `found.x` is the solution, `found.explain()` says why it was solved so.

    The rules are those of a file: jali's own, behind those that `jali tune solvers` has measured and written on this machine. They choose the solver,
    the even-odd form of a Dirac operator that it works on, and the bits of its recursion. What is named here stays as it is named.

    Args:
        A: an operator with `matvec`, and perhaps `rmatvec`: a Dirac operator or a form of one, one of `jali.linops`, pylops or SciPy; or a function `A(p, q)` that
            writes A p into q.
        b: right-hand side, as of `jali.solvers.cg`; of a field with a batch all members are solved at once.
        tolerance: |b - A x| <= tolerance |b| in the end, of A and b as they are.
        x0: where to start; zero if left out. It is not changed.
        method: the name of a solver, such as "gcr".
        form: "full", "even-odd" or "symmetric", of operators that have these forms.
        inner: the storage of a recursion in few bits, such as "fixed16" or "float32"; "none" for the precision of b.
        options: options of the method that is named, {"restart": 20}.
        kind: "positive" (Hermitian and positive definite), "hermitian", "adjoint" (neither, with `rmatvec`) or "general"; measured where neither is known.
        condition: the condition number of A, if it is known; a lower bound is measured where a rule asks for it.
        rules: a file of rules before all others.
        maxiter: iterations of a solver at most.
        must_converge: raise SolverError when giving up; otherwise return with `converged` False.

    Raises:
        SolverError: what the last solver that was tried raises, and why those before it failed.
        ParameterError: impossible arguments; a wrong file of rules (with line and key); no possible solver; a batch whose vectors do not fit into the memory
            that is free, with how many right-hand sides would.
        LayoutError: vectors that do not fit together.
    """
    choice = choose(
        A,
        b,
        tolerance,
        method=method,
        form=form,
        inner=inner,
        options=options,
        kind=kind,
        condition=condition,
        rules=rules,
    )
    return choice.run(x0, maxiter=maxiter, must_converge=must_converge)


def _and_before(text: str, failed: list[tuple[Candidate, str]]) -> str:
    """A message, and what had failed before."""
    return "; ".join([text, *(f"before it {one} failed: {why}" for one, why in reversed(failed))])


def _operator_text(facts: Facts) -> str:
    """The operator, for a sentence."""
    A = facts.A
    if is_operator(A):
        return value_shown(A)
    owner = getattr(A, "__self__", None)
    name = getattr(A, "__name__", "A")
    return f"the function {name}" if owner is None else f"{value_shown(owner)}.{name}"


def _wrapped(line: str) -> str:
    text = f"{line}." if not line.endswith((".", ":")) else line
    return textwrap.fill(
        text,
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
