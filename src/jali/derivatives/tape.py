"""Derivatives of several calls in a row: a `Tape` records what is called, and runs backwards.

Values that later calls overwrite are kept, if the way back needs them. Of a loop of `tape.steps(n)` under a limit of memory some steps' values are kept, and others computed
again from these, by binomial checkpointing (A. Griewank and A. Walther, ACM Trans. Math. Softw. 26 (2000) 19), whose schedules are
those of the library checkpoint_schedules. Cotangents are spread over ranks as their fields are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jali import graph_recorder, tape_recorder
from jali.amounts import size_text
from jali.codegen.lines import trace_error, user_line
from jali.codegen.types import Algebra
from jali.derivatives.functions import is_group
from jali.derivatives.on_disk import Folder, Stored
from jali.derivatives.records import (
    Access,
    CallRecord,
    CopyRecord,
    Cotangents,
    Known,
    Pool,
    Record,
    RuleRecord,
    SolutionRecord,
    calls_of,
    is_needed_by,
    new_like,
    size_of,
    whole_of,
    with_zeros,
)
from jali.derivatives.steps import Steps
from jali.derivatives.totals import Total, value_of, weights_of
from jali.errors import ParameterError, TraceError
from jali.files import value_shown
from jali.lattice.arguments import fields_of
from jali.lattice.base import no_field
from jali.lattice.domain import ALL, Domain
from jali.lattice.field import Field
from jali.lattice.sites import SiteFunction

Value = tuple[int, int]
"""A value that a field held: its memory, and how many were there before."""


class Tape:
    """Records calls whose derivative with respect to `of` is wanted: fields, lists of fields or gauge fields.

    ::

        with jali.Tape(U) as tape:
            V = stout_smear(U, 0.1)
            S = action.value(V)
        (force,) = tape.gradient(S)

    Recorded are calls of site functions and what is made of them (smearing, whole-field arithmetic, operators of `jali.fermions`), sums,
    copies, `jali.solve` (whose rule is one more solve with the adjoint) and transforms of fields. All else, such as values that are set from
    Python, is constant. Sums over recorded values are `Total`s: numbers with a history.

    `memory`, a number of bytes, limits what the tape keeps of overwritten values on each rank, with which loops of
    `steps` do. Cotangents are not counted: there is one for each field that the derivative passes. `disk`, a folder, takes the values at the beginning of steps that are beyond
    this limit, so that less is computed again; its files go with the tape. Raises ParameterError for impossible
    arguments.
    """

    def __init__(self, *of: Any, memory: float | None = None, disk: str | os.PathLike[str] | None = None):
        self._of = of
        self._groups = [_fields_of(one) for one in of]
        watched = [one for group in self._groups for one in group]
        if not watched:
            raise ParameterError(
                "jali.Tape takes the fields that derivatives are with respect to: jali.Tape(U)"
            )
        for one in watched:
            if one.element.type.kind not in ("real", "complex"):
                raise ParameterError(f"{one.name} holds {one.element}, which has no derivative")
            if one.view_of is not None:
                raise ParameterError(
                    f"{one.name} is a view of members: a tape is for the field that has the batch"
                )
        self.memory = None if memory is None else _bytes(memory)
        if disk is not None and memory is None:
            raise ParameterError("disk= takes what is beyond memory=, a number of bytes: give that too")
        self.folder = None if disk is None else Folder(disk)
        self._watched = {one.serial: one for one in watched}
        self._fields: dict[int, Field] = dict(self._watched)
        self._numbers: dict[int, int] = dict.fromkeys(self._watched, 0)
        self._versions: dict[int, Any] = {}
        self._active: set[Value] = {(serial, 0) for serial in self._watched}
        self.readers: dict[
            Value, list[Record]
        ] = {}  # what has a derivative and is no part of a loop, by what it reads
        self._always: set[
            Value
        ] = {  # the way back needs them: links, which cotangents are projected at in the end; what solves read
            (serial, 0) for serial, one in self._watched.items() if is_group(one.element)
        }
        self._known: Known = {}
        self._kept: dict[Value, Field | Stored] = {}
        self._pool = Pool()
        self._staging: dict[int, Field] = {}  # where kept values are read, so that calls meet the same fields
        self._lost: set[Value] = set()
        self._size = 0  # bytes of what is kept
        self.records: list[Record] = []
        self._steps: Steps | None = None
        self._state = "new"
        self._recording: Any = None
        self.peak = 0
        """The most bytes that were kept at a time, on this rank."""

    def __repr__(self) -> str:
        return f"<tape of {len(self.records)} records, {size_text(self._bytes_kept())} kept>"

    def __enter__(self) -> Tape:
        if self._state != "new":
            raise TraceError(f"a tape records once; make another one\n  at {user_line(beyond_trace=True)}")
        if tape_recorder.current() is not None:
            raise TraceError(f"a tape is recorded already\n  at {user_line(beyond_trace=True)}")
        self._state = "recording"
        self._recording = tape_recorder.recording(self)
        self._recording.__enter__()
        return self

    def __exit__(self, *of: Any) -> None:
        self._recording.__exit__(*of)
        self._state = "recorded"
        if self._steps is not None and of[0] is None:
            self._steps.finish()

    # ---- what is recorded --------------------------------------------------------------------------------

    def steps(self, n: int, undo: Callable[[int], Any] | None = None) -> Iterator[int]:
        """The numbers 0 to n - 1, for a loop whose steps may be computed again: `for k in tape.steps(1000): ...`.

        What a step needs of those before is in fields. Without a limit of memory nothing is computed again. With `undo`, a function that undoes
        step k by calls of site functions and copies on the same fields, nothing is kept but the first and the last state: on the way back `undo(n - 1)` to `undo(0)` are called, which
        work on fields of the tape's own and leave the user's as they are. Values that are undone differ by rounding from those that were there.
        Raises ParameterError for a limit that is too small for one step, TraceError for a second loop, and on the way back for an `undo` that is not the inverse of the steps.
        """
        if self._state != "recording":
            raise TraceError(
                f"tape.steps belongs into the `with` of the tape\n  at {user_line(beyond_trace=True)}"
            )
        if self._steps is not None:
            raise TraceError(f"a tape has one loop of steps\n  at {user_line(beyond_trace=True)}")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ParameterError(f"tape.steps takes a positive whole number of steps, not {value_shown(n)}")
        if undo is not None and not callable(undo):
            raise ParameterError(
                f"tape.steps: undo= is a function that undoes step k, not {value_shown(undo)}"
            )
        self._steps = Steps(self, n, user_line(beyond_trace=True), undo)
        return self._steps.run()

    def call(
        self,
        function: SiteFunction,
        bound: Any,
        domain: Domain,
        arguments: tuple[Any, ...],
        lattice: Any,
        sums: Any,
    ) -> Any:
        """Runs a call of a site function, and records it."""
        whole = bound if hasattr(bound, "kernels") else bound.bound_to(arguments)
        own = {one.serial: one for one in fields_of(arguments)}
        reads: dict[int, Access] = {}
        writes: dict[int, Access] = {}
        sites: dict[int, int] = {}  # colours that are written
        for kernel in whole.kernels:
            analysis = kernel.text.analysis
            for slots in (analysis.reads, analysis.writes):
                for slot in slots:
                    one = own.get(kernel.fields[slot].serial)
                    if one is None:
                        self._refuse_captured(function, kernel.fields[slot])
                    elif slots is analysis.reads:
                        self._note(reads, one)
                    else:
                        memory = whole_of(one).serial
                        sites[memory] = sites.get(memory, 0) | kernel.sites.parities
                        every = domain.colouring is None and not one.over.parities & ~sites[memory]
                        writes[memory] = Access(one, 0, every and one.view_of is None)
        for access in writes.values():  # a part that is written leaves the rest
            if not access.full:
                self._note(reads, access.one)
        active = self._any_active(reads)
        record = CallRecord(
            reads,
            writes,
            active,
            function=function,
            domain=domain,
            arguments=arguments,
            lattice=lattice,
            sums=sums,
            guards=whole.guards,
            targets=frozenset(
                serial for serial, one in reads.items() if (serial, one.number) in self._active
            ),
            known=self._known,
        )
        found = self._do(record, lambda: bound.run(arguments))
        if sums is None or not active:
            return found
        number = len(self.records) - 1
        several = found if isinstance(found, tuple) else (found,)
        totals = tuple(Total(self, one, (number, k)) for k, one in enumerate(several))
        return totals if isinstance(found, tuple) else totals[0]

    def copy(self, target: Field, source: Field, partly: bool, run: Callable[[], Any]) -> Any:
        """Runs and records a copy of a field."""
        reads: dict[int, Access] = {}
        self._note(reads, source)
        full = target.view_of is None and (
            target.over is source.over or (target.over is not ALL and source.over is ALL)
        )
        active = (whole_of(source).serial, reads[whole_of(source).serial].number) in self._active
        if not full:
            self._note(reads, target)
        memory = whole_of(target)
        record = CopyRecord(
            reads,
            {memory.serial: Access(target, 0, full)},
            active,
            target=target,
            source=source,
            partly=partly,
        )
        return self._do(record, run)

    def rule(
        self,
        run: Callable[[], Any],
        reads: Sequence[Field],
        again: Callable[[Callable[[Field], Field]], Any],
        pull: Callable[[Field, Callable[[Field], Field]], list[tuple[Field, Field]]],
        out: Field | None = None,
    ) -> Any:
        """Runs a step that brings its own rule (`records.RuleRecord`), and returns the field that it gives: `out`, or one that it makes."""
        noted: dict[int, Access] = {}
        for one in reads:
            self._note(noted, one)
        record = RuleRecord(noted, {}, self._any_active(noted), again=again, pull=pull)
        if out is not None:
            record.target = out
            record.writes[whole_of(out).serial] = Access(out, 0, out.view_of is None)
            return self._do(record, run)
        with tape_recorder.recording(None):
            found = run()
        record.target = found
        self._remember(found)
        self._append(record, {found.serial: Access(found, 0, True)})
        return found

    def solution(self, A: Any, b: Any, run: Callable[[], Any], solve_adjoint: Callable[[Any], Any]) -> Any:
        """Runs a solve of A x = b and records it; `solve_adjoint(c)` solves A^dagger y = c. Vectors that are no fields are constant."""
        if isinstance(b, Field):
            self._record_what_operator_keeps(A, b)
        with tape_recorder.recording(None):
            found = run()
        if not isinstance(b, Field):
            return found
        x = found.x
        self._remember(x)
        noted: dict[int, Access] = {}
        self._note(noted, b)
        application, image = self._application(A, x)
        with tape_recorder.recording(None):  # what the operator keeps for itself, the next solve uses again
            for record in application:
                for serial, access in record.reads.items():
                    made = any(serial in other.writes for other in application)
                    if made and self._numbers[serial] == access.number and serial != image.serial:
                        self.keep_value((serial, access.number), self._fields[serial])
        active = self._any_active(noted) or any(record.active for record in application)
        for record in application:
            noted |= {
                serial: access
                for serial, access in record.reads.items()
                if serial not in (x.serial, image.serial)
            }
        record = SolutionRecord(
            noted,
            {},
            active,
            target=x,
            b=b,
            image=image,
            application=[one for one in application if one.active],
            solve_adjoint=solve_adjoint,
            calls=_calls_of_application(A, x),
            calls_now=lambda: _calls_of_application(A, x),
        )
        self._always |= {(serial, access.number) for serial, access in noted.items()}
        self._always.add((x.serial, self._numbers[x.serial]))
        self._active.discard((x.serial, self._numbers[x.serial]))
        if active:
            self._active.add((x.serial, self._numbers[x.serial]))
            self.records.append(record)
            if self._steps is not None:
                if self._steps.is_running:
                    self._steps.note_reads(record)
                record.writes[x.serial] = Access(x, self._numbers[x.serial])
                self._steps.note(record)
        return found

    def _application(self, A: Any, x: Field) -> tuple[list[Record], Field]:
        """The records of A x, which are not among those of the tape, and the field that holds it."""
        records, self.records = self.records, []
        with tape_recorder.recording(self):
            image = _applied(A, x)
        application, self.records = self.records, records
        return application, image

    def _record_what_operator_keeps(self, A: Any, b: Field) -> None:
        """What an operator computes once, such as clover blocks, is made by calls of its own: those of A b that do not depend on b."""
        self._remember(b)
        application, _ = self._application(A, b)
        made = {whole_of(b).serial}
        for record in application:
            if made.isdisjoint(record.reads):
                self.records.append(record)
            else:
                made |= record.writes.keys()

    def _any_active(self, reads: dict[int, Access]) -> bool:
        return any((serial, access.number) in self._active for serial, access in reads.items())

    def refuse(self, why: str) -> None:
        """Raises TraceError at the user's line."""
        raise TraceError(f"{why}\n  at {user_line(beyond_trace=True)}")

    def is_active(self, one: Field) -> bool:
        """Whether a field depends now on what the tape is for."""
        serial = whole_of(one).serial
        return (serial, self._numbers.get(serial, 0)) in self._active

    def _refuse_captured(self, function: SiteFunction, one: Any) -> None:
        if (one.serial, self._numbers.get(one.serial, 0)) in self._active:
            raise trace_error(
                f"{function.__name__} takes {one.name} from its object, not as an argument: a tape needs it as one"
            )

    def _note(self, reads: dict[int, Access], one: Field) -> None:
        memory = whole_of(one)
        self._remember(memory)
        reads[memory.serial] = Access(one, self._numbers[memory.serial])

    def _remember(self, memory: Field) -> None:
        """Knows the memory of a field from now on; a change that nothing has told of makes another value."""
        serial = memory.serial
        if serial not in self._fields:
            self._fields[serial] = memory
            self._numbers[serial] = 0
        elif self._changed(serial):
            self._new_number(serial, lost=True)
        self._versions[serial] = memory.storage.versions()

    def _changed(self, serial: int) -> bool:
        """Whether a memory has been written by something that has not told; while a graph is recorded nothing is written."""
        if graph_recorder.current() is not None or serial not in self._versions:
            return False
        return bool(self._fields[serial].storage.versions() != self._versions[serial])

    def _new_number(self, serial: int, lost: bool = False) -> None:
        value = (serial, self._numbers[serial])
        if lost and value not in self._kept:
            self._lost.add(value)
        self._numbers[serial] += 1

    def _do(self, record: Record, run: Callable[[], Any]) -> Any:
        """Keeps what is overwritten, runs, and appends the record."""
        if self._steps is not None and self._steps.is_running:
            self._steps.note_reads(record)
        elif record.active:
            for serial, access in record.reads.items():
                self.readers.setdefault((serial, access.number), []).append(record)
        with tape_recorder.recording(None):
            for access in record.writes.values():
                self._remember(whole_of(access.one))
                self._keep(whole_of(access.one))
            found = run()
        self._append(record, record.writes)
        return found

    def _append(self, record: Record, writes: dict[int, Access]) -> None:
        for serial, access in writes.items():
            memory = whole_of(access.one)
            self._versions[serial] = memory.storage.versions()
            before = (serial, self._numbers[serial])
            self._new_number(serial)
            access.number = self._numbers[serial]
            record.writes[serial] = access
            if record.active or (not access.full and before in self._active):
                self._active.add((serial, access.number))
        if record.active or self._steps is not None:
            self.records.append(record)
            if self._steps is not None:
                self._steps.note(record)

    def before_write(self, one: Field, whole: bool) -> None:
        """A field is set from Python: what it held is kept if that is needed. Raises TraceError where a part of it would stay, and depends on
        what the tape is for."""
        memory = whole_of(one)
        if memory.serial not in self._fields:
            return
        self._remember(memory)
        if self.is_active(one) and not (whole and one.view_of is None):
            self.refuse(
                f"{one.name} depends on what the tape is for, and a part of it is set from Python: do it in a site function"
            )
        with tape_recorder.recording(None):
            self._keep(memory)
        self._new_number(memory.serial)
        self._versions.pop(memory.serial)  # it changes now

    # ---- what is kept ------------------------------------------------------------------------------------

    def _keep(self, memory: Field) -> None:
        """Keeps the value of a field that is about to be overwritten, if something needs it."""
        value = (memory.serial, self._numbers[memory.serial])
        if value in self._kept or value in self._lost:
            return
        if self.is_needed(value) or (self._steps is not None and self._steps.wants(value)):
            self.keep_value(value, memory)

    def is_needed(self, value: Value) -> bool:
        """Whether the way back needs a value for what is no part of a loop."""
        return value in self._always or is_needed_by(value, self.readers)

    def keep_value(self, value: Value, holds: Field) -> None:
        """Keeps a value that a field holds now."""
        if value in self._kept:
            return
        if self.folder is not None and self._steps is not None and self._steps.is_for_disk(value):
            self._kept[value] = self.folder.write(holds)
            return
        copy = self._pool.take(holds, name=f"kept of {holds.name}")
        copy.assign(holds)
        self._kept[value] = copy
        self._size += size_of(copy)
        self._check_limit()

    def drop_value(self, value: Value) -> None:
        """A value that is not needed any more."""
        gone = self._kept.pop(value, None)
        if isinstance(gone, Stored):
            gone.remove()
        elif gone is not None:
            self._size -= size_of(gone)
            self._pool.give(gone)

    def move_to_disk(self, value: Value) -> None:
        """A value that is kept, if it is for the disk."""
        kept = self._kept[value]
        if isinstance(kept, Field) and self._steps is not None and self._steps.is_for_disk(value):
            assert self.folder is not None
            stored = self.folder.write(kept)
            self.drop_value(value)
            self._kept[value] = stored

    def _bytes_kept(self) -> int:
        return self._size

    def _check_limit(self) -> None:
        replay = 0 if self._steps is None else self._steps.bytes_of_replay()
        now = self._size + replay + sum(map(size_of, self._staging.values()))
        self.peak = max(self.peak, now)
        if self.memory is not None and now > self.memory:
            hint = (
                "write the loop as `for k in tape.steps(n)`, whose values may be computed again, or give more memory"
                if self._steps is None
                else "a limit for more than what one step needs is too small for it"
            )
            raise ParameterError(
                f"the tape would keep {size_text(now)} of overwritten values, and memory= allows {size_text(self.memory)}: {hint}\n"
                f"  at {user_line(beyond_trace=True)}"
            )

    def read_into(self, field: Field, serial: int, number: int, where: str) -> None:
        """Sets a field to a value that is kept, or still there."""
        kept = self._kept.get((serial, number))
        if isinstance(kept, Stored):
            kept.read_into(field)
        else:
            field.assign(self.primal(serial, number, where) if kept is None else kept)

    def has(self, serial: int, number: int) -> bool:
        """Whether a value is kept or still there."""
        value = (serial, number)
        return value in self._kept or (self._numbers[serial] == number and value not in self._lost)

    def there(self, serial: int, number: int) -> Field | None:
        """The field of the user that holds a value still."""
        gone = (serial, number) in self._lost or self._numbers[serial] != number
        return None if gone or self._changed(serial) else self._fields[serial]

    def primal(self, serial: int, number: int, where: str) -> Field:
        """The field that holds a value now. Raises TraceError where it is gone."""
        value = (serial, number)
        kept = self._kept.get(value)
        if isinstance(kept, Field) and graph_recorder.current() is not None:
            return (
                kept  # calls with other fields are bound once for all repetitions, copies take time in each
            )
        if kept is not None:
            if serial not in self._staging:
                memory = self._fields[serial]
                self._staging[serial] = self._pool.take(memory, name=f"earlier {memory.name}")
            staging = self._staging[serial]
            return kept.read_into(staging) if isinstance(kept, Stored) else staging.assign(kept)
        memory = self._fields[serial]
        if self.there(serial, number) is not None:
            return memory
        if self._numbers[serial] == number or value in self._lost:
            raise TraceError(
                f"{memory.name} has been changed since this call was recorded, by something that the tape does not record: change it after "
                f"tape.gradient, or give the call a copy\n  at {where}"
            )
        raise TraceError(f"the tape has not kept a value of {memory.name} that this call needs\n  at {where}")

    # ---- backwards ---------------------------------------------------------------------------------------

    def gradient(self, total: Total) -> Any:
        """The gradient of a real `Total` with respect to what the tape is for: a field for each, in the order of `jali.Tape(...)`; a list of
        fields where a list or a gauge field was given.

        Conventions as of `jali.gradient`: of complex fields dS/d Re z + i dS/d Im z, of links (`SU(n)`) fields of `Algebra(n)`. A tape runs backwards
        once. Raises TraceError for a tape that has run, fields and formulas that have changed since, and what has no derivative.
        """
        at = user_line(beyond_trace=True)
        if self._state == "run":
            raise TraceError(f"this tape has run backwards already: record another one\n  at {at}")
        if self._state != "recorded":
            raise TraceError(f"tape.gradient stands behind the `with` of the tape\n  at {at}")
        if not isinstance(total, Total):
            raise TraceError(
                f"{value_shown(total)} does not depend on what the tape is for: the gradient is that of a sum that was recorded\n  at {at}"
            )
        if total.tape is not self:
            raise TraceError(f"this number was recorded on another tape\n  at {at}")
        shape = getattr(total.value, "shape", ())
        if shape not in ((), None) or getattr(
            value_of(total), "is_complex", isinstance(total.value, complex)
        ):
            raise TraceError(
                f"a gradient is that of one real number, not of {value_shown(total.value)}: take .real, .sum() or an entry\n  at {at}"
            )
        self._state = "run"
        weights: dict[int, dict[int, Any]] = {}
        for (number, k), weight in weights_of(total).items():
            weights.setdefault(number, {})[k] = weight
        cotangents = Cotangents(self._pool)
        self._backwards(cotangents, weights)
        found = [self._result(one, cotangents) for one in self._watched.values()]
        by_serial = dict(zip(self._watched, found, strict=True))
        results = [
            by_serial[group[0].serial]
            if isinstance(given, Field)
            else [by_serial[one.serial] for one in group]
            for given, group in zip(self._of, self._groups, strict=True)
        ]
        self._kept.clear()
        if self.folder is not None:
            self.folder.close()
        self.records.clear()
        return results

    def _backwards(self, cotangents: Cotangents, weights: dict[int, dict[int, Any]]) -> None:
        numbers = {id(record): k for k, record in enumerate(self.records)}

        def wanted(access: Access) -> bool:
            return (whole_of(access.one).serial, access.number) in self._active

        def pull(records: Sequence[Record], values: Any) -> None:
            for record in reversed(records):
                if record.active:
                    record.pull_back(values, cotangents, weights.get(numbers[id(record)], {}), wanted)
                    for serial, access in record.writes.items():
                        if not access.full and not wanted(record.reads[serial]):
                            cotangents.drop(access.one)  # what it has not overwritten was constant
                else:
                    self._drop_written(record, cotangents)

        if self._steps is None:
            pull(self.records, self)
        else:
            self._steps.backwards(pull)

    def _drop_written(self, record: Record, cotangents: Cotangents) -> None:
        """A call that depends on nothing has written: what was there before has no cotangent from behind."""
        for serial, access in record.writes.items():
            if serial in cotangents.fields:
                if access.full:
                    cotangents.drop(access.one)
                else:
                    domain = getattr(record, "domain", ALL)
                    with_zeros(cotangents.fields[serial], access.one, domain)

    def _result(self, one: Field, cotangents: Cotangents) -> Field:
        found = cotangents.fields.get(one.serial)
        if not is_group(one.element):
            if found is None:
                return new_like(one, one.element, f"gradient of {one.name}")
            return found
        result = new_like(one, Algebra(one.element.type.shape[0]), f"gradient of {one.name}")
        if found is not None:
            _to_algebra(result, found, self.primal(one.serial, 0, "tape.gradient"))
        return result


@SiteFunction
def _to_algebra(X: Any, F: Any, M: Any, U: Any) -> None:
    F[X] = 0.5 * (M[X] * U[X].dagger()).traceless_antihermitian()


def _calls_of_application(A: Any, x: Field) -> list[Any]:
    """What A x is made of now, but for fields."""
    with tape_recorder.recording(None), Tape(x) as tape:
        _applied(A, x)
    return calls_of(tape.records)


def _applied(A: Any, x: Field) -> Field:
    """A x, by calls that are recorded."""
    if hasattr(A, "matvec"):
        found = A.matvec(x)
        if not isinstance(found, Field):
            raise ParameterError(f"the operator of a recorded solve gives a field, not {value_shown(found)}")
        return found
    image = x.like()
    A(x, image)
    return image


def _fields_of(given: Any) -> list[Field]:
    if isinstance(given, Field):
        return [given]
    fields = getattr(given, "fields", given)
    found = list(fields) if isinstance(fields, Iterable) else []
    if not found or not all(isinstance(one, Field) for one in found):
        raise ParameterError(
            f"jali.Tape takes fields, lists of fields and gauge fields, not {no_field(given)}"
        )
    return found


def _bytes(memory: Any) -> int:
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0:
        raise ParameterError(f"memory= is a positive number of bytes, such as 2e9, not {value_shown(memory)}")
    return int(memory)
