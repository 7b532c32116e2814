"""What a communicator keeps for its collectives: the message space, the plans in use, the check of calls.

A call is described by a tuple (the fields of `jali.comm.calls.Call`) that is equal on all ranks. Equal calls share a plan (`jali.comm.kept_plans`).
Which are kept needs no agreement, since plans take their tags when they start. In checked mode ranks compare their calls before anything moves.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jali import _core, recording
from jali.comm import algorithms, checking
from jali.comm.calls import (
    Call,
    check_call,
    compare_collective,
    composition_of,
    counts_of,
    on_device,
    operation_of,
    payload,
)
from jali.comm.elements import check_operation, element_name
from jali.comm.hosts import host_identity
from jali.comm.kept_plans import KeepsPlans
from jali.errors import ParameterError

if TYPE_CHECKING:
    from jali.comm.device_collectives import DeviceCollectives


class Request:
    """A collective under way. Its arrays are kept alive, and must not be touched, until `wait` or a true `test`.

    Requests may be waited for in any order; collectives must be started in the same order on all ranks.
    """

    __slots__ = ("_plan", "_result")

    def __init__(self, plan: _core.PersistentPlan, result: Any) -> None:
        self._plan: _core.PersistentPlan | None = plan
        self._result = result

    def test(self) -> bool:
        """Make progress; whether it has ended."""
        recording.refuse_call("test")
        if self._plan is not None and self._plan.test():
            self._plan = None
        return self._plan is None

    def wait(self) -> Any:
        """Return what the blocking call would have returned, when it has ended."""
        recording.refuse_call("wait")
        if self._plan is not None:
            self._plan.wait()
            self._plan = None
        return self._result


class Collectives(KeepsPlans[tuple[Any, ...], _core.PersistentPlan]):
    """The collectives of one communicator; made at its first collective call, which is collective anyway."""

    def __init__(
        self,
        core: _core.Communicator,
        sharing_memory: Callable[[], _core.Communicator],
        planned_calls: _core.PlannedCalls,
        checked: bool,
        what: str,
    ) -> None:
        """`sharing_memory` makes the same ranks' communicator for which those of one host share memory, `planned_calls` are of calls on
        devices, `what` says in errors which call makes this."""
        super().__init__()
        self._core = core
        self._planned_calls = planned_calls
        self.rank, self.size = core.rank, core.size
        self.checked = checked
        core.barrier(what)  # ranks that call something else hear of it
        self.carriers = _carriers(core, sharing_memory)
        self.space = _core.MessageSpace(self.carriers)
        _compare_rules(core)
        self.hosts = _hosts(core)
        self.ranks_of_hosts = [len(host) for host in self.hosts]
        # for calls under way several times
        self._more: dict[tuple[Any, ...], list[_core.PersistentPlan]] = {}
        self._on_devices: dict[_core.Gpu, DeviceCollectives] = {}

    def start(
        self,
        call: tuple[Any, ...],
        arrays: tuple[Any, ...],
        result: Any,
        blocking: bool,
        checked: bool | None,
    ) -> Any:
        """Run a call (the fields of `Call`) on arrays, one per buffer: the result, or a request."""
        there = on_device(arrays)
        if recording.recorders and not (there and blocking):
            recording.refuse_call(f"{call[0]} with blocking=False" if there else call[0])
        if checked or (checked is None and self.checked):
            compare_collective(self._core, call, arrays)
        if there:
            return self._start_on_device(call, arrays, result, blocking, checked)
        try:
            plan = self._plans.get(call)
        except TypeError:  # of what has no hash
            check_call(Call._make(call))
            raise
        if plan is None or self._crowded:
            plan = self.plan_of(call)
        if blocking:
            if not plan.run_unless_running(*arrays):
                self._spare(call).run(*arrays)
            return result
        if plan.running:
            plan = self._spare(call)
        plan.start(*arrays)
        return Request(plan, result)

    def way_of(self, call: Call) -> tuple[algorithms.Algorithm, str]:
        """The row of the table that this call uses here, and why."""
        if call.algorithm:
            name, why = call.algorithm, "asked for"
        elif asked := algorithms.forced(call.collective):
            name, why = asked, "JALI_COLLECTIVE"
        else:
            choice = _core.choose_on_host(
                call.collective,
                element_name(call.dtype),
                counts_of(call),
                operation_of(call),
                call.in_place,
                call.reproducible,
                self.ranks_of_hosts,
            )
            name, why = choice.name, choice.why
        return algorithms.algorithm(name, call.collective), why

    def agree_on_counts(self, mine: Iterable[int]) -> list[tuple[int, ...]]:
        """What every rank passed, in rank order."""
        told = self._core.gather_bytes(json.dumps([int(n) for n in mine]).encode(), "counts of a collective")
        return [tuple(json.loads(text)) for text in told]

    def _spare(self, call: tuple[Any, ...]) -> _core.PersistentPlan:
        """Another plan of a call whose own is under way."""
        spare = self._more.setdefault(call, [])
        for plan in spare:
            if not plan.running:
                return plan
        spare.append(self._make(call))
        return spare[-1]

    def _drop(self, calls: list[tuple[Any, ...]]) -> None:
        for call in calls:
            self._more.pop(call, None)

    def _make(self, fields: tuple[Any, ...]) -> _core.PersistentPlan:
        call = Call._make(fields)
        check_call(call)
        check_operation(call.op, call.dtype)
        row, _ = self.way_of(call)
        composition = composition_of(call, self.size, row.form)
        nbytes = payload(call, self.size)
        parameters = _core.PlanParameters(
            self._hierarchy(row),
            stripe=len(self.hosts[0]) if row.striped and call.collective in ("broadcast", "reduce") else 1,
            ring=self.size if row.ring else 1,
            depth=row.depth(nbytes),
            reproducible=call.reproducible,
        )
        schedule = _core.plan_rank(composition, parameters, self.rank)
        what = f"{call.collective} of {nbytes} bytes ({row.name})"
        return _core.PersistentPlan(schedule, self.space, what)

    def on_device(self, gpu: _core.Gpu) -> DeviceCollectives:
        """The collectives on arrays of a device; the first use is collective."""
        if gpu not in self._on_devices:
            from jali.comm.device_collectives import DeviceCollectives

            self._on_devices[gpu] = DeviceCollectives(
                self._core, gpu, self._planned_calls, weakref.WeakMethod(self.start), self.ranks_of_hosts
            )
        return self._on_devices[gpu]

    def _start_on_device(
        self,
        call: tuple[Any, ...],
        arrays: tuple[Any, ...],
        result: Any,
        blocking: bool,
        checked: bool | None,
    ) -> Any:
        first = arrays[0]
        gpu = (arrays[-1] if first is None else first).gpu
        there = self._on_devices.get(gpu) or self.on_device(gpu)
        check = checked or (checked is None and self.checked)
        done = there.start(call, arrays, result, blocking, check)
        if check and blocking and recording.current() is None:
            there.report_overflows(call)
        return done

    def _hierarchy(self, row: algorithms.Algorithm) -> _core.Hierarchy:
        if row.hierarchy == "binary":
            return _core.Hierarchy.binary(self.size)
        if row.hierarchy == "hosts" and 1 < len(self.hosts) < self.size:
            hierarchy = _core.Hierarchy.from_sizes(self.size, [[len(host) for host in self.hosts]])
            hierarchy.set_order([rank for host in self.hosts for rank in host])
            return hierarchy
        return _core.Hierarchy(self.size)


def _carriers(
    core: _core.Communicator, sharing_memory: Callable[[], _core.Communicator]
) -> list[tuple[str, _core.Communicator]]:
    """Libraries by name; the first is used where a plan names none."""
    carriers = [(core.transport, core.duplicate())]
    if core.transport == "mpi":
        shared = sharing_memory()
        if shared.transport == "shm":
            carriers.insert(0, ("shm", shared.duplicate()))
    return carriers


def _compare_rules(core: _core.Communicator) -> None:
    """Raise ParameterError on every rank unless all have the same rules, which can be read."""
    try:
        mine = "rules " + _core.rules_digest()
    except ParameterError as error:
        mine = str(error)
    told = [text.decode() for text in core.gather_bytes(mine.encode(), "rules of collectives")]
    wrong = next((rank for rank, text in enumerate(told) if not text.startswith("rules ")), None)
    if wrong is not None:
        raise checking.on_every_rank(f"rank {wrong}: {told[wrong]}" if len(told) > 1 else told[0])
    other = next((rank for rank, text in enumerate(told) if text != told[0]), None)
    if other is not None:
        raise checking.on_every_rank(
            f"ranks 0 and {other} have other rules of collectives; JALI_COLLECTIVE_RULES is to name the same text on all"
        )


def _hosts(core: _core.Communicator) -> list[list[int]]:
    """Ranks of each host, hosts in the order of their first ranks."""
    if core.transport != "mpi":
        return [list(range(core.size))]
    hosts: dict[bytes, list[int]] = {}
    for rank, name in enumerate(core.gather_bytes(host_identity().encode(), "hosts of ranks")):
        hosts.setdefault(name, []).append(rank)
    return list(hosts.values())
