"""Loops of a tape whose steps say how they are undone: nothing is kept but the first and the last state.

On the way back the user's function undoes one step after another, on fields of the tape's own, and each step is pulled back from the state that it
began with. Undone values differ from the first ones by rounding. So the states before the last step and before the first one are
kept while the loop runs, and compared with what comes of undoing: a step that loses something, such as one that damps, is refused and does not
give a wrong gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali import tape_recorder
from jali.codegen.arithmetics import ARITHMETICS
from jali.derivatives.records import Record, members_like, substituted, whole_of
from jali.errors import TraceError
from jali.lattice.arguments import fields_of
from jali.lattice.field import Field
from jali.lattice.sites import SiteFunction

Pull = Callable[[Sequence[Record], Any], None]


class Undone:
    """How the steps of a loop are undone: `undo(k)` undoes step k."""

    def __init__(self, steps: Any, undo: Callable[[int], Any]):
        self.steps, self.undo = steps, undo
        self.scales: dict[int, float] = {}  # of fields, for those that begin with zeros

    def keeps(self, serial: int, number: int) -> bool:
        """Whether a value that is about to be overwritten is kept: of the first state, of the last two."""
        numbers = self.steps.numbers
        last = numbers[-2:] if len(numbers) > self.steps.n else numbers[-1:] * (len(numbers) == self.steps.n)
        return any(state.get(serial, 0) == number for state in (*numbers[:1], *last))

    def backwards(self, pull: Pull) -> None:
        """The way back through the loop, from the state that it has left."""
        steps = self.steps
        for k in reversed(range(steps.n)):
            self._undo(k)
            if k in (0, steps.n - 1):
                self._check_state(k)
            made = steps.is_made(k)
            if made:  # values that the step itself makes
                steps.run_for_way_back(k)
            pull(steps.steps[k], steps.replay)
            if made:
                steps.drop_deps()
                self._undo(k)

    def _undo(self, k: int) -> None:
        steps = self.steps
        calls = Undoing(steps, k)
        with tape_recorder.recording(calls):
            self.undo(k)
        for serial in calls.written & steps.written:
            steps.replay.numbers[serial] = steps.numbers[k].get(serial, 0)
        for serial, number in steps.live(k):
            if steps.replay.numbers.get(serial) != number and not steps.tape.has(serial, number):
                raise TraceError(
                    f"undo({k}) does not set {steps.tape._fields[serial].name}, which step {k} overwrites and this step or an earlier one reads\n  at {steps.where}"
                )

    def _check_state(self, k: int) -> None:
        """Raises TraceError where a state is another one than it was."""
        steps = self.steps
        for serial, number in steps.live(k):
            kept = steps.tape._kept.get((serial, number))
            found = steps.replay.fields.get(serial)
            if kept is None or found is None or steps.replay.numbers.get(serial) != number:
                continue
            with tape_recorder.recording(None):
                sums = kept.lattice.sum(_change_and_size, found, kept)
            change, size = (float(np.sum(one)) for one in sums)
            size = self.scales[serial] = max(size, self.scales.get(serial, 0.0))
            epsilon = ARITHMETICS[kept.precision].epsilon
            if not change <= size * epsilon:  # root mean squares differ by the root of epsilon
                far = math.sqrt(change / size) if size else math.inf
                raise TraceError(
                    f"undoing steps {steps.n - 1} to {k} gives {steps.tape._fields[serial].name} another value than it had, by {far:.2g} of its size: undo is not the inverse "
                    f"of a step, or it makes rounding grow. tape.steps(n) without undo=, under a limit of memory, repeats steps\n  at {steps.where}"
                )


class Undoing:
    """Stands where a tape does while the user's function runs: its calls go to the fields on which steps are repeated."""

    def __init__(self, steps: Any, k: int):
        self.steps, self.k = steps, k
        self.written: set[int] = set()

    def _put(self, one: Field, reads: bool) -> Field:
        """The field that stands for one here; `reads`: its value matters."""
        steps, memory = self.steps, whole_of(one)
        tape, serial = steps.tape, memory.serial
        if serial in steps.written:
            found = steps.replay.field(serial)
            if reads and serial not in steps.replay.numbers:  # for the first time: what the loop has left
                number = steps.numbers[steps.n].get(serial, 0)
                if number != steps.numbers[self.k + 1].get(serial, 0):
                    raise TraceError(
                        f"undo({self.k}) reads {memory.name}, whose value after step {self.k} is gone: undo what later steps do to it\n  at {steps.where}"
                    )
                steps.replay.hold(serial, number)
                steps.replay.settle(serial)
        elif serial in tape._fields:
            found = tape.primal(serial, steps.numbers[self.k].get(serial, 0), steps.where)
        else:
            return one
        return found if one.view_of is None else members_like(found, one)

    def call(
        self,
        function: SiteFunction,
        bound: Any,
        domain: Any,
        arguments: tuple[Any, ...],
        lattice: Any,
        sums: Any,
    ) -> Any:
        """Runs a call of a site function with the other fields."""
        whole = bound if hasattr(bound, "kernels") else bound.bound_to(arguments)
        own = {one.serial: whole_of(one).serial for one in fields_of(arguments)}
        reads: set[int] = set()
        for kernel in whole.kernels:
            analysis = kernel.text.analysis
            for slots, of in ((analysis.reads, reads), (analysis.writes, self.written)):
                of |= {own[serial] for slot in slots if (serial := kernel.fields[slot].serial) in own}
        self._check_written()
        with tape_recorder.recording(None):
            given = [
                substituted(one, lambda f: self._put(f, whole_of(f).serial in reads)) for one in arguments
            ]
            return function.run(domain, tuple(given), lattice, sums)

    def copy(self, target: Field, source: Field, partly: bool, run: Callable[[], Any]) -> Any:
        """Copies between the other fields."""
        self.written.add(whole_of(target).serial)
        self._check_written()
        with tape_recorder.recording(None):
            self._put(target, False)._assign(self._put(source, True), partly)
        return target

    def _check_written(self) -> None:
        tape = self.steps.tape
        for serial in self.written - self.steps.written:
            if serial in tape._fields:
                raise TraceError(
                    f"undo({self.k}) sets {tape._fields[serial].name}, which no step sets\n  at {self.steps.where}"
                )

    def before_write(self, one: Field, whole: bool) -> None:
        """A field that is set from Python."""
        if whole_of(one).serial in self.steps.written:
            self.refuse(f"undo sets {one.name} from Python")

    def rule(self, *given: Any, **named: Any) -> Any:
        """A transform."""
        self.refuse("undo takes a transform")

    def solution(self, *given: Any, **named: Any) -> Any:
        """A solve."""
        self.refuse("undo solves a system")

    def refuse(self, what: str) -> None:
        """Raises TraceError."""
        raise TraceError(
            f"{what}, and the steps of a loop are undone by calls of site functions and copies of fields\n  at {self.steps.where}"
        )


@SiteFunction
def _change_and_size(X: Any, a: Any, b: Any, change: Any, size: Any) -> None:
    change += (a[X] - b[X]).norm2()
    size += b[X].norm2()
