"""What a communicator keeps for its collectives: the message space, the plans in use, the check of calls.

A call is described by a tuple (the fields of `jali.comm.calls.Call`) that is equal on all ranks. Equal calls share a plan (`jali.comm.kept_plans`).
Which are kept needs no agreement, since plans take their tags when they start. In checked mode ranks compare their calls before anything moves.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jali import _core, recording
from jali.comm import algorithms
from jali.comm.calls import Call, compare_collective, on_device
from jali.comm.elements import SIZES, check_operation, element_name
from jali.comm.hosts import host_identity
from jali.comm.kept_plans import KeepsPlans

if TYPE_CHECKING:
    from jali.comm.communicator import Communicator
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

    def __init__(self, communicator: Communicator, what: str = "setting up collectives") -> None:
        super().__init__()
        self._communicator = weakref.ref(communicator)  # which owns this: memory of devices goes when it goes
        self.rank, self.size = communicator.rank, communicator.size
        self.checked = communicator.checked
        communicator.core.barrier(what)  # ranks that call something else hear of it
        self.carriers = _carriers(communicator)
        self.space = _core.MessageSpace(self.carriers)
        self.hosts = _hosts(communicator)
        # for calls under way several times
        self._more: dict[tuple[Any, ...], list[_core.PersistentPlan]] = {}
        self._on_devices: dict[_core.Gpu, DeviceCollectives] = {}

    @property
    def communicator(self) -> Communicator:
        """Whose collectives these are."""
        communicator = self._communicator()
        assert communicator is not None, "a communicator that is gone has no collectives"
        return communicator

    def start(
        self,
        call: tuple[Any, ...],
        arrays: tuple[Any, ...],
        result: Any,
        blocking: bool,
        checked: bool | None,
    ) -> Any:
        """Run a call (the fields of `Call`) on arrays, one per buffer: the result, or a request."""
        if checked or (checked is None and self.checked):
            compare_collective(self.communicator.core, call, arrays)
        if on_device(arrays):
            return self._start_on_device(call, arrays, result, blocking, checked)
        plan = self._plans.get(call)
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

    def algorithm_of(self, call: Call) -> algorithms.Algorithm:
        """The row of the table that this call uses here."""
        name = call.algorithm or algorithms.forced(call.collective)
        if name is None:
            name = algorithms.choose(call.collective, self.payload(call), [len(host) for host in self.hosts])
        return algorithms.algorithm(name, call.collective)

    def payload(self, call: Call) -> int:
        """Bytes of the largest buffer of a call."""
        size = SIZES[element_name(call.dtype)]
        if isinstance(call.elements, tuple):
            parts = self.size if call.collective == "all_to_all" else 1
            return size * sum(call.elements) // parts
        whole = call.collective in ("all_reduce", "broadcast", "reduce")
        return size * call.elements * (1 if whole else self.size)

    def agree_on_counts(self, mine: Iterable[int]) -> list[tuple[int, ...]]:
        """What every rank passed, in rank order."""
        told = self.communicator.core.gather_bytes(
            json.dumps([int(n) for n in mine]).encode(), "counts of a collective"
        )
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
        check_operation(call.op, call.dtype)
        row = self.algorithm_of(call)
        composition = self.composition(call, row)
        payload = self.payload(call)
        parameters = _core.PlanParameters(
            self._hierarchy(row),
            stripe=len(self.hosts[0]) if row.striped and call.collective in ("broadcast", "reduce") else 1,
            ring=self.size if row.ring else 1,
            depth=algorithms.depth_of(row, payload),
            reproducible=call.reproducible,
        )
        schedule = _core.plan_rank(composition, parameters, self.rank)
        what = f"{call.collective} of {payload} bytes ({row.name})"
        return _core.PersistentPlan(schedule, self.space, what)

    def composition(self, call: Call, row: algorithms.Algorithm) -> _core.Composition:
        """What a call means, in the form of a row."""
        return _core.standard_composition(
            self.size,
            call.collective,
            row.form,
            element_name(call.dtype),
            list(call.elements) if isinstance(call.elements, tuple) else [call.elements],
            root=call.root,
            operation="user" if callable(call.op) else call.op,
            user=call.op if callable(call.op) else None,
            in_place=call.in_place,
        )

    def on_device(self, gpu: _core.Gpu) -> DeviceCollectives:
        """The collectives on arrays of a device; the first use is collective."""
        if gpu not in self._on_devices:
            from jali.comm.device_collectives import DeviceCollectives

            self._on_devices[gpu] = DeviceCollectives(self, gpu)
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
        if check and blocking:
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


def _carriers(communicator: Communicator) -> list[tuple[str, _core.Communicator]]:
    """Libraries by name; the first is used where a plan names none."""
    core = communicator.core
    carriers = [(core.transport, core.duplicate())]
    if core.transport == "mpi":
        shared = communicator.sharing_memory().core
        if shared.transport == "shm":
            carriers.insert(0, ("shm", shared.duplicate()))
    return carriers


def _hosts(communicator: Communicator) -> list[list[int]]:
    """Ranks of each host, hosts in the order of their first ranks."""
    if communicator.transport != "mpi":
        return [list(range(communicator.size))]
    hosts: dict[bytes, list[int]] = {}
    for rank, name in enumerate(communicator.core.gather_bytes(host_identity().encode(), "hosts of ranks")):
        hosts.setdefault(name, []).append(rank)
    return list(hosts.values())
