"""Collectives on arrays in device memory: which way each takes, and the plans that are kept.

Ways are those of `jali.comm.algorithms`, run as one launch on each device that reads and writes the memory of its peers
(core/collective/gpu_plan.hpp), and two more: the library of the vendor ("nccl", "rccl"), and "host-staged", a plan of the host
on copies in its memory. Where devices cannot reach each other's memory the first of these that can is taken.
Work goes on jali's stream, in order with the streams of the arrays' owners; nobody waits on the host, except in "host-staged".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali import _core, recording, settings
from jali.codegen import cache
from jali.comm import algorithms
from jali.comm.calls import Call, composition_of, payload
from jali.comm.ccl_library import library_communicator
from jali.comm.device_arrays import element_dtype
from jali.comm.elements import SIZES, check_operation
from jali.comm.kept_plans import KeepsPlans
from jali.errors import DeviceError, ParameterError
from jali.vendors import library_of, names

STAGED = "host-staged"
Key = tuple[tuple[Any, ...], bool]  # a call, and whether overflows are counted
Plan = Callable[[tuple[Any, ...]], None]  # takes the arrays of a call: a GpuPlan, or another way


class DeviceRequest:
    """A collective on a device that was not waited for. It is on jali's stream already, so whatever jali does next with
    its arrays comes after it. Raises DeviceError, with the first cause, when a rank has failed and the device has given it up."""

    def __init__(self, gpu: _core.Gpu, result: Any) -> None:
        self._event = _core.GpuEvent(gpu, False)
        gpu.record(self._event)
        self._result = result

    def test(self) -> bool:
        """Whether the device has done it."""
        recording.refuse_call("test")
        return self._event.reached()

    def wait(self) -> Any:
        """What the blocking call would have returned; like that, it does not wait for the device."""
        recording.refuse_call("wait")
        self._event.gpu.refuse_if_aborted()
        return self._result


class DeviceCollectives(KeepsPlans[Key, Plan]):
    """What the collectives of one communicator keep for one device. Made at the first such call, which is collective."""

    def __init__(
        self,
        ranks: _core.Communicator,
        gpu: _core.Gpu,
        planned_calls: _core.PlannedCalls,
        start_on_host: Callable[[], Callable[..., Any] | None],
    ) -> None:
        """`start_on_host` gives what starts the host's collectives of the same ranks, as `start` does these; it owns this."""
        super().__init__()
        self._ranks = ranks
        self._start_on_host = start_on_host
        self.gpu = gpu
        self.size = ranks.size
        self.library = library_of(gpu.kind)  # the name of the vendor's
        self._libraries_of_others = {library_of(name) for name in names()} - {self.library, ""}
        self.why_not_peer = ""
        self.queues: _core.CollectiveQueues | None = None
        self._core = ranks.duplicate()
        try:
            self.queues = _core.CollectiveQueues(gpu, self._core)
        except DeviceError as error:
            self.why_not_peer = str(error)
        self._ccl: _core.CclCommunicator | None = None
        self.why_not_ccl = ""
        self._planned_calls = planned_calls
        self._proved: set[Key] = set()

    def start(
        self,
        call: tuple[Any, ...],
        arrays: tuple[Any, ...],
        result: Any,
        blocking: bool,
        checked: bool = False,
    ) -> Any:
        """Put a call (the fields of `Call`) on jali's stream: the result, or a request. `checked` counts overflows, and a
        plan is proved before its first run: RuntimeError on all ranks where it does something else."""
        plan = self.plan_of((call, checked))
        if checked and (call, checked) not in self._proved and not self.gpu.recording:
            if isinstance(plan, _core.GpuPlan):  # neither the library's collectives nor the host's
                self.recorded(call, plan, arrays).check_together(self._ranks)
            self._proved.add((call, checked))
        plan(arrays)
        _core.let_owners_go_on(arrays)
        if not checked:
            self._planned_calls.note(plan, arrays, result, None if blocking else DeviceRequest)
        return result if blocking else DeviceRequest(self.gpu, result)

    def recorded(
        self, call: tuple[Any, ...], plan: _core.GpuPlan, arrays: tuple[Any, ...]
    ) -> _core.RecordedCalls:
        """What the driver is given for some runs of a call's plan on arrays, which are as before afterwards. Collective."""
        of = Call._make(call)
        row = algorithms.algorithm(self.algorithm_of(of), of.collective)
        composition = composition_of(of, self.size, row.form)
        return plan.recorded(arrays, composition, of.reproducible, self._ranks)

    def report_overflows(self, call: tuple[Any, ...]) -> None:
        """Raise ParameterError on all ranks if a 16-bit result of a checked call overflowed; waits for the device."""
        if self.queues is None or call[1] not in ("fp16", "bf16"):
            return
        counts = np.array([self.queues.take_overflows()])
        self._ranks.all_reduce_sum(counts, "overflows of a collective")
        if counts[0]:
            error = ParameterError(
                f"{call[0]}: {int(counts[0])} results are too large for {call[1]} and became infinite; "
                "scale the numbers, or send them as fp32"
            )
            error.on_every_rank = True  # type: ignore[attr-defined]
            raise error

    def algorithm_of(self, call: Call) -> str:
        """The name of the way that this call takes here."""
        name = call.algorithm or algorithms.forced(call.collective, on_device=True)
        if name is not None and (call.algorithm or name not in self._libraries_of_others):
            if name in self._libraries_of_others:
                raise ParameterError(
                    f"algorithm {name!r} is not for {self.gpu.kind} devices; theirs is {self.library!r}"
                )
            return algorithms.algorithm(name, call.collective, on_device=True).name
        if self.queues is not None and not callable(call.op):
            return algorithms.choose_on_device(call.collective, payload(call, self.size), self.size)
        if self._combines_by_ccl(call):
            return self.library
        return STAGED

    def explain(self, call: Call) -> str:
        """How a call runs on this rank, a line per instruction where it is one launch."""
        name = self.algorithm_of(call)
        if name in (self.library, STAGED):
            return name
        return f"{name}: {self._plan(call, name).describe()}"

    def _drop(self, calls: list[Key]) -> None:
        self._planned_calls.clear()
        self._proved.difference_update(calls)

    def _make(self, key: Key) -> Plan:
        call, checked = Call._make(key[0]), key[1]
        if callable(call.op):
            check_operation(call.op, np.dtype(np.float64))
        else:
            check_operation(call.op, element_dtype(call.dtype))
        name = self.algorithm_of(call)
        named = call.algorithm or algorithms.forced(call.collective, on_device=True)
        if self.queues is None and named is None and self._ranks.rank == 0:
            trouble = (
                self.why_not_peer if name == self.library else f"{self.why_not_peer}; {self.why_not_ccl}"
            )
            _core.tell_once(f"collectives on devices go by way of {name!r}, since {trouble}")
        if name == self.library:
            return self._by_ccl(call)
        if name == STAGED:
            return self._staged(call)
        return self._plan(call, name, checked)

    def _plan(self, call: Call, name: str, checked: bool = False) -> _core.GpuPlan:
        row = algorithms.algorithm(name, call.collective)
        composition = composition_of(call, self.size, row.form)
        parameters = _core.PlanParameters(
            _core.Hierarchy.binary(self.size) if row.hierarchy == "binary" else _core.Hierarchy(self.size),
            libraries=[self.carrier],
            ring=self.size if row.ring else 1,
            reproducible=call.reproducible,
            pack_below=0,
        )
        what = f"{call.collective} of {payload(call, self.size)} bytes on devices ({name})"
        return self.plan(composition, parameters, what, checked)

    @property
    def carrier(self) -> str:
        """Who carries messages of algorithms: "remote-write", or the vendor's library where devices cannot reach each other's memory or
        an experiment says so."""
        return settings.current().device_carrier or (
            "remote-write" if self.queues is not None else self.library
        )

    def plan(
        self,
        composition: _core.Composition,
        parameters: _core.PlanParameters,
        what: str,
        checked: bool = False,
    ) -> _core.GpuPlan:
        """This rank's part of a composition, ready to run: libraries "remote-write" and the vendor's. Collective where it is the first
        that uses the library. Raises PlanError, DeviceError."""
        schedule = _core.plan_rank(composition, parameters, self._ranks.rank)
        by_library = bool(self.library) and self.library in schedule.libraries
        if not by_library and self.queues is None:
            raise DeviceError(f"{what} goes through the memory of peers, but {self.why_not_peer}")
        ccl = self.ccl if by_library else None
        if self.queues is not None:
            stages = self.queues.compile(schedule, composition)
        else:
            stages = _core.compile_for_device(schedule, self.size, self._ranks.rank, composition, self.gpu)
        wire = stages[0].program.wire  # the same in all: it depends on the composition
        combining = next((stage.program for stage in stages if stage.program.combines), None)
        if combining is not None:
            kernel = cache.collective_kernel(self.gpu, wire, combining.type, combining.operation, checked)
        else:
            kernel = cache.collective_kernel(self.gpu, wire, "uint32", "none")
        return _core.GpuPlan(self.gpu, self.queues, ccl, stages, schedule, kernel, what)

    # --- the vendor's library ----------------------------------------------------------------------------------

    @property
    def ccl(self) -> _core.CclCommunicator:
        """The communicator of NCCL or RCCL; the first use is collective, and raises DeviceError where there is none."""
        if self._ccl is None:
            self._ccl = library_communicator(self._ranks, self.gpu)
        return self._ccl

    def _combines_by_ccl(self, call: Call) -> bool:
        if self.why_not_ccl or callable(call.op):
            return False
        try:
            if call.collective in ("all_reduce", "reduce", "reduce_scatter"):
                self.ccl.check_combines(call.dtype, call.op)
                return not call.reproducible and not isinstance(call.elements, tuple)
            return bool(self.ccl)
        except DeviceError as error:
            if self._ccl is None:
                self.why_not_ccl = str(error)  # the same on all ranks
            return False
        except ValueError:
            return False

    def _by_ccl(self, call: Call) -> Any:
        if callable(call.op):
            raise ParameterError(
                f"algorithm {self.library!r} has no operations of the user; choose {STAGED!r}, or none"
            )
        if call.reproducible:
            raise ParameterError(
                f"algorithm {self.library!r} does not say in which order it combines; leave reproducible out"
            )
        core, size, rank = self.ccl, self.size, self._ranks.rank
        kind, count = call.dtype, call.elements
        uneven = isinstance(count, tuple)
        counts = list(count) if isinstance(count, tuple) else [count] * size
        before = sum(counts[:rank]) * SIZES[kind]

        def address(array: Any) -> int:
            return 0 if array is None else int(array.address)

        if call.collective == "all_reduce":
            return lambda a: core.all_reduce(address(a[0]), address(a[-1]), counts[0], kind, call.op)
        if call.collective == "reduce":
            return lambda a: core.reduce(address(a[0]), address(a[-1]), counts[0], kind, call.op, call.root)
        if call.collective == "broadcast":
            return lambda a: core.broadcast(address(a[0]), counts[0], kind, call.root)
        if call.collective == "reduce_scatter":
            if uneven:
                raise ParameterError(
                    f"algorithm {self.library!r} has no reduce_scatter with counts; choose another, or none"
                )
            offset = before if call.in_place else 0
            return lambda a: core.reduce_scatter(
                address(a[0]), address(a[-1]) + offset, counts[0], kind, call.op
            )
        if call.collective == "all_gather":
            offset = before if call.in_place else 0
            return lambda a: core.all_gather(address(a[0]) + offset, address(a[-1]), counts, kind)
        if call.collective == "gather":
            return lambda a: core.gather(address(a[0]), address(a[1]), counts, kind, call.root)
        if call.collective == "scatter":
            return lambda a: core.scatter(address(a[0]), address(a[1]), counts, kind, call.root)
        if call.in_place:
            raise ParameterError(
                f"algorithm {self.library!r} has no all_to_all in place; choose another, or none"
            )
        if not uneven:
            return lambda a: core.all_to_all(address(a[0]), address(a[1]), counts[0], kind)
        sent = [counts[rank * size + r] for r in range(size)]
        received = [counts[r * size + rank] for r in range(size)]
        return lambda a: core.all_to_all_v(address(a[0]), address(a[1]), sent, received, kind)

    # --- by way of the host ------------------------------------------------------------------------------------

    def _staged(self, call: Call) -> Any:
        host = call._replace(algorithm=None, dtype=element_dtype(call.dtype))
        if call.dtype == "bf16" and host.dtype.name != "bfloat16":
            host = host._replace(dtype="bf16")

        gpu, kind, start_on_host = self.gpu, element_dtype(call.dtype), self._start_on_host

        def go(arrays: tuple[Any, ...]) -> None:
            here: list[Any] = []
            for array in arrays:
                if array is None:
                    here.append(None)
                    continue
                raw = np.empty(array.nbytes, np.uint8)
                gpu.download_address(array.address, raw)
                here.append(raw.view(kind))
            start = start_on_host()
            assert start is not None
            start(tuple(host), tuple(here), None, True, False)
            for array, copy in zip(arrays, here, strict=True):
                if array is not None:
                    gpu.upload_address(array.address, copy.view(np.uint8))

        return go
