"""Loops of a tape whose steps may be computed again: which values are kept while the loop runs, and how steps are repeated on the way back.

A checkpoint at step c are the values that steps from c on read before they are overwritten. They are kept when they are overwritten, so a value
that two checkpoints have is kept once, and what is not overwritten costs nothing. Steps are repeated on fields of the tape's own, by the same
kernels, so that all ways give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jali import graph_recorder, tape_recorder
from jali.amounts import counted, size_text
from jali.derivatives.records import Access, Record, is_needed_by, members_like, size_of, whole_of
from jali.derivatives.undone import Undone
from jali.errors import ParameterError, TraceError
from jali.lattice.field import Field, next_serial

Value = tuple[int, int]
PROBED = 3
"""Steps after which it is known what a step needs."""


class Steps:
    """The loop of a tape."""

    def __init__(self, tape: Any, n: int, where: str, undo: Callable[[int], Any] | None = None):
        self.tape, self.n, self.where = tape, n, where
        self.undone = None if undo is None else Undone(self, undo)
        self.before: list[Record] = list(tape.records)
        self.after: list[Record] = []
        self.steps: list[list[Record]] = []
        self.numbers: list[dict[int, int]] = []  # of the values at the beginning of each step, and at the end
        self.reads: list[set[Value]] = []  # of each step
        # calls of the loop that have a derivative, by what they read
        self.readers: dict[Value, list[Record]] = {}
        self.written: set[int] = set()
        self.made_inside: dict[int, str] = {}  # fields that are first seen in the loop, and where
        self.first_inside = 0  # the number of the first field that is made in the loop
        self.state = "new"
        self.mode = "undone" if self.undone else "all" if tape.memory is None else "probing"
        self.checkpoints: dict[int, set[Value]] = {}  # by steps: values that have been read since
        self.on_disk: set[int] = set()  # those of them that go to files
        self.actions: Iterator[Any] | None = None
        self.action: Any = None
        self.deps: set[Value] = set()  # what the way back through the step under way needs
        self.replay: Replay | None = None

    # ---- forward -----------------------------------------------------------------------------------------

    def run(self) -> Iterator[int]:
        """The loop."""
        self.state = "running"
        self.first_inside = next_serial()
        for k in range(self.n):
            self._begin(k)
            yield k
        self._begin(self.n)
        self.state = "ended"

    def _begin(self, k: int) -> None:
        self.numbers.append(dict(self.tape._numbers))
        if k < self.n:
            self.steps.append([])
            self.reads.append(set())
        if self.mode == "probing" and (k == PROBED or k == self.n):
            self._decide(k)
        if self.mode == "probing":
            self.checkpoints[k] = set()
        elif self.mode == "some":
            self._next_action(k)

    def finish(self) -> None:
        """The recording ends."""
        if self.state == "running":
            if self.mode == "all":
                return
            raise TraceError(
                f"the loop of tape.steps({self.n}) ended after {counted(len(self.steps), 'step')}: under a limit of memory, and to be undone, all are needed\n"
                f"  at {self.where}"
            )

    @property
    def is_running(self) -> bool:
        """Whether what is recorded now is part of a step."""
        return self.state == "running"

    def note_reads(self, record: Record) -> None:
        """What a record of a step reads, before it overwrites anything."""
        values = {(serial, access.number) for serial, access in record.reads.items()}
        self.reads[-1] |= values
        if record.active and self.mode in ("all", "probing"):
            for value in values:
                self.readers.setdefault(value, []).append(record)
        for c, since in self.checkpoints.items():
            since.update(v for v in values if self.numbers[c].get(v[0], 0) == v[1])
        if self._is_last():
            self.deps |= _needs_of([record])

    def note(self, record: Record) -> None:
        """A record that has been made."""
        if self.state == "running":
            self.steps[-1].append(record)
            self.written |= set(record.writes)
            for serial, access in record.writes.items():
                if serial >= self.first_inside and serial not in self.made_inside:
                    self.made_inside[serial] = record.where
                    if self.mode in ("some", "undone"):
                        self._refuse_made_inside(whole_of(access.one))
        elif self.state == "ended":
            self.after.append(record)
        else:
            self.before.append(record)

    def wants(self, value: Value) -> bool:
        """Whether a value that is about to be overwritten is kept for the way back through the loop."""
        if value in self.deps or (self.replay is not None and self.replay.awaited.get(value[0]) == value[1]):
            return True
        if self.undone:
            return self.undone.keeps(*value)
        return is_needed_by(value, self.readers) or bool(self._checkpoints_with(value))

    def _checkpoints_with(self, value: Value) -> set[int]:
        serial, number = value
        return {
            c
            for c, since in self.checkpoints.items()
            if value in since and self.numbers[c].get(serial, 0) == number
        }

    def is_for_disk(self, value: Value) -> bool:
        """Whether all that keeps a value are checkpoints in files."""
        if self.mode != "some" or self.tape.is_needed(value) or value in self.deps:
            return False
        return self._checkpoints_with(value) <= self.on_disk

    def _is_last(self) -> bool:
        return self.mode == "some" and len(self.steps) == self.n

    def _refuse_made_inside(self, memory: Field) -> None:
        raise ParameterError(
            f"{memory.name} is made inside of the loop of tape.steps: under a limit of memory, and to be undone, the fields that a step writes are made before the "
            f"loop\n  at {self.made_inside[memory.serial]}"
        )

    def _bytes_of_all(self, needed: set[Value], done: int) -> float:
        """What the tape keeps if it keeps what all steps need, by what so many steps have needed."""
        fields, second = self.tape._fields, self.numbers[min(1, done)]
        first = {value for value in needed if value[1] < second.get(value[0], 0)}  # gone in the first step

        def bytes_of(values: set[Value]) -> int:
            return sum(size_of(fields[serial]) for serial, _ in values)

        each = bytes_of(needed - first) / max(done - 1, 1)
        return bytes_of(first) + each * (self.n - 1) + sum(size_of(fields[s]) for s in {s for s, _ in needed})

    def _decide(self, done: int) -> None:
        """How much is kept, from what the first steps have needed."""
        tape, size = self.tape, size_of
        needed = {value for value in tape._kept if tape.is_needed(value) or is_needed_by(value, self.readers)}
        if self._bytes_of_all(needed, done) <= tape.memory or done == self.n:
            self.mode = "all"
            self.checkpoints.clear()
            for value in tape._kept.keys() - needed:
                tape.drop_value(value)
            return
        at = 1
        snapshot = sum(
            size(tape._fields[serial]) for serial, _ in self.checkpoints[at] if serial in self.written
        )
        inside = {s for s, _ in _needs_of(self.steps[at]) if s in self.written} if self.is_made(at) else set()
        replay = sum(size(tape._fields[serial]) for serial in self.written)
        apart = {serial for serial, _ in tape.readers if serial in self.written}
        rest = 2 * replay + sum(size(tape._fields[serial]) for serial in (*inside, *apart))
        count = int((tape.memory - rest) // snapshot) if snapshot else self.n - 1
        if count < (1 if tape.folder is None else 0):
            raise ParameterError(
                f"memory= allows {size_text(tape.memory)}, and a step needs {size_text(rest + snapshot)}: {size_text(snapshot)} for what it begins "
                f"with, {size_text(rest)} to be run again\n  at {self.where}"
            )
        for serial in self.made_inside:
            self._refuse_made_inside(tape._fields[serial])
        self.mode = "some"
        self.readers.clear()
        in_memory = min(count, self.n - 1)
        on_disk = 0 if tape.folder is None else self.n - 1 - in_memory
        self.actions = iter(_schedule(self.n, in_memory, on_disk))
        found = self.checkpoints
        self.checkpoints = {}
        self.action = next(self.actions)
        while self.action.n1 < done:
            self._checkpoint(self.action, found)
            self.action = next(self.actions)
        self._checkpoint(self.action, found)
        for value in list(tape._kept):
            self.drop(value)
            if self.on_disk and value in tape._kept:
                tape.move_to_disk(value)

    def _checkpoint(self, action: Any, found: dict[int, set[Value]]) -> None:
        if action.write_ics:
            self.checkpoints[action.n0] = found.get(action.n0, set())
            self._note_place(action)

    def _note_place(self, action: Any) -> None:
        """A checkpoint that has been taken is in memory or in files."""
        if action.storage.name == "DISK":
            self.on_disk.add(action.n0)
        else:
            self.on_disk.discard(action.n0)

    def _next_action(self, k: int) -> None:
        assert self.actions is not None
        while self.action is not None and getattr(self.action, "n1", None) == k and k < self.n:
            self.action = next(self.actions)
            self._checkpoint(self.action, {})

    # ---- backwards ---------------------------------------------------------------------------------------

    def backwards(self, pull: Callable[[Sequence[Record], Any], None]) -> None:
        """The way back through what stands behind the loop, the loop, and what stands before it."""
        tape = self.tape
        pull(self.after, tape)
        if self.undone:
            self.replay = Replay(tape, self)
            self.undone.backwards(pull)
            pull(self.before, tape)
            return
        if self.mode != "some":
            for step in reversed(self.steps):
                pull(step, tape)
            pull(self.before, tape)
            return
        assert self.actions is not None
        self.replay = Replay(tape, self)
        for action in self.actions:
            name = type(action).__name__
            if name == "Reverse":
                for k in reversed(range(action.n0, action.n1)):
                    pull(self.steps[k], self.replay)
                self.drop_deps()
            elif name in ("Copy", "Move"):
                self._restore(action.n)
                if name == "Move":
                    self._drop_checkpoint(action.n)
            elif name == "Forward":
                self._forward(action)
        pull(self.before, tape)

    def _forward(self, action: Any) -> None:
        assert self.replay is not None
        if action.write_ics:
            live = self.live(action.n0)
            self.checkpoints[action.n0] = live
            self._note_place(action)
            for value in live:
                if value not in self.tape._kept:
                    self.tape.keep_value(value, self.replay.primal(*value, self.where))
        for k in range(action.n0, action.n1):
            if not action.write_adj_deps:
                self._run_again(k)
            elif self.is_made(k):
                self.run_for_way_back(k)

    def run_for_way_back(self, k: int) -> None:
        """Repeats a step, and keeps what the way back through it needs and it overwrites."""
        self.deps = _needs_of(self.steps[k])
        self._run_again(k)

    def _run_again(self, k: int) -> None:
        assert self.replay is not None
        for record in self.steps[k]:
            self.replay.run(record, self.deps)

    def is_made(self, k: int) -> bool:
        """Whether the way back through a step needs values that are not there when it begins, so that it has to run once more."""
        begins = self.numbers[k]
        return any(s in self.written and number != begins.get(s, 0) for s, number in _needs_of(self.steps[k]))

    def live(self, c: int) -> set[Value]:
        """The values at the beginning of a step that it or later ones read."""
        found = set()
        for serial in self.written:
            number = self.numbers[c].get(serial, 0)
            for k in range(c, self.n):
                if self.numbers[k].get(serial, 0) != number:
                    break
                if (serial, number) in self.reads[k]:
                    found.add((serial, number))
                    break
        return found

    def _restore(self, c: int) -> None:
        assert self.replay is not None
        for serial, number in self.live(c):
            self.replay.hold(serial, number)

    def _drop_checkpoint(self, c: int) -> None:
        gone = self.checkpoints.pop(c)
        for value in gone:
            self.drop(value)

    def drop(self, value: Value) -> None:
        """Drops a value that nothing needs any more."""
        constant = value[0] not in self.written  # all steps that are repeated may read it
        if value in self.tape._kept and not (constant or self.tape.is_needed(value) or self.wants(value)):
            self.tape.drop_value(value)

    def drop_deps(self) -> None:
        """The values that the way back through a step needed."""
        gone, self.deps = self.deps, set()
        for value in gone:
            self.drop(value)

    def bytes_of_replay(self) -> int:
        """What the fields take on which steps are repeated."""
        return 0 if self.replay is None else sum(map(size_of, self.replay.fields.values()))


class Replay:
    """Fields on which steps are repeated, and the values that they hold."""

    def __init__(self, tape: Any, steps: Steps):
        self.tape, self.steps = tape, steps
        self.fields: dict[int, Field] = {}
        self.numbers: dict[int, int] = {}
        # values that a field holds when a step is repeated; the way back reads them where they are
        self.awaited: dict[int, int] = {}

    def field(self, serial: int) -> Field:
        """The one that stands for the memory of a field."""
        if serial not in self.fields:
            memory = self.tape._fields[serial]
            with graph_recorder.suspended():
                self.fields[serial] = memory.like(name=f"{memory.name} again")
            self.tape._check_limit()
        return self.fields[serial]

    def hold(self, serial: int, number: int) -> None:
        """Lets a field hold a value that is kept, or still there, from the next repetition on."""
        self._forget(serial)
        if self.numbers.get(serial) != number:
            self.awaited[serial] = number

    def _forget(self, serial: int) -> None:
        """A value that is not awaited any more."""
        if serial in self.awaited:
            self.steps.drop((serial, self.awaited.pop(serial)))

    def settle(self, serial: int) -> None:
        """Copies a value that is awaited."""
        if serial in self.awaited:
            number = self.awaited[serial]
            self.tape.read_into(self.field(serial), serial, number, self.steps.where)
            self.numbers[serial] = number
            self._forget(serial)

    def there(self, serial: int, number: int) -> Field | None:
        """The field of these, or of the user, that holds a value."""
        if self.numbers.get(serial) == number and serial not in self.awaited:
            return self.fields[serial]
        found: Field | None = self.tape.there(serial, number)
        return found

    def primal(self, serial: int, number: int, where: str) -> Field:
        """The field that holds a value."""
        found = self.there(serial, number)
        if found is None:
            found = self.tape.primal(serial, number, where)
        return found

    def run(self, record: Record, deps: set[Value]) -> None:
        """Repeats a record, and keeps those of the values in `deps` that it overwrites."""
        if not record.writes:
            return
        for serial in record.reads.keys() & self.steps.written:
            self.settle(serial)
            if self.numbers.get(serial) != record.reads[serial].number:
                raise TraceError(
                    f"{self.tape._fields[serial].name} has been changed in a step by something that the tape does not record, such as values that are set from Python: "
                    f"steps that are repeated do it in site functions\n  at {record.where}"
                )
        for serial in record.writes:
            self._forget(serial)
            value = (serial, self.numbers.get(serial, -1))
            if value in deps:
                self.tape.keep_value(value, self.fields[serial])

        def put(one: Field) -> Field:
            memory = whole_of(one)
            access: Access | None = record.reads.get(memory.serial)
            if memory.serial in self.steps.written:
                found = self.field(memory.serial)
            elif access is None:  # the call was given it, and has no use for it
                return one
            else:
                found = self.tape.primal(memory.serial, access.number, record.where)
            return found if one.view_of is None else members_like(found, one)

        with tape_recorder.recording(None):
            record.run_again(put)
        for serial, access in record.writes.items():
            self.numbers[serial] = access.number


def _needs_of(records: Sequence[Record]) -> set[Value]:
    """The values that the way back through these needs."""
    return {(serial, one.reads[serial].number) for one in records if one.active for serial in one.needs()}


def _schedule(n: int, in_memory: int, on_disk: int) -> Any:
    try:
        from checkpoint_schedules import MultistageCheckpointSchedule
    except ImportError as error:
        raise ParameterError(
            "loops under a limit of memory take their schedule from the library checkpoint-schedules: pip install checkpoint-schedules"
        ) from error
    return MultistageCheckpointSchedule(n, in_memory, on_disk)
