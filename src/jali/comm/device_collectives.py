"""Collectives on arrays in device memory: which algorithm each takes, and the plans that are kept.

Who carries them is a row of core/collective/collective_transport.hpp: messages of the algorithms of `jali.comm.algorithms`, which
run as launches on each device (core/collective/gpu_plan.hpp), or whole collectives, by names of their own. Which row is taken
stands in core/collective/device_collectives.hpp. Work goes on jali's stream, in order with the streams of the arrays' owners.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jali import _core, recording
from jali.codegen import cache
from jali.comm import algorithms, checking
from jali.comm.calls import Call, check_call, composition_of, counts_of, operation_of, payload
from jali.comm.ccl_library import find_library
from jali.comm.device_arrays import DeviceArray, element_dtype, lent_among
from jali.comm.elements import check_operation
from jali.comm.kept_plans import KeepsPlans
from jali.errors import ParameterError
from jali.vendors import libraries, library_of

Key = tuple[tuple[Any, ...], bool]  # a call, and whether overflows are counted


class Way(NamedTuple):
    """What a call takes: an algorithm and the carrier of its messages (empty: the usual one), or a row; and why."""

    name: str
    carrier: str
    why: str


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


class DeviceCollectives(KeepsPlans[Key, _core.DevicePlan]):
    """What the collectives of one communicator keep for one device. Made at the first such call, which is collective.

    `core` has the carriers. `plan_of((call, checked))` is a call's plan, which may be run again and again, on arrays or
    addresses of the device; `plan.recordable` says whether as part of a graph.
    """

    def __init__(
        self,
        ranks: _core.Communicator,
        gpu: _core.Gpu,
        planned_calls: _core.PlannedCalls,
        start_on_host: Callable[[], Callable[..., Any] | None],
        ranks_of_hosts: list[int],
    ) -> None:
        """`start_on_host` gives what starts the host's collectives of the same ranks, as `start` does these; it owns this."""
        super().__init__()
        self._ranks = ranks
        self._start_on_host = start_on_host
        self._ranks_of_hosts = ranks_of_hosts
        self.gpu = gpu
        self.size = ranks.size
        _core.suggest_ccl_library(gpu.kind, find_library(gpu.kind))
        # Copy engines need some, and perhaps no lattice has been on this device.
        gpu.set_builtin_kernels(cache.builtin_kernels(gpu))
        self.core = _core.DeviceCollectives(gpu, ranks)
        self._planned_calls = planned_calls

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
        if recording.recorders and (tape := recording.current()) is not None:
            self._record(tape, call, arrays, checked)
            return result
        try:
            plan = self.plan_of((call, checked))
        except TypeError:  # of what has no hash
            check_call(Call._make(call))
            raise
        self.prove_once(call, plan, arrays, checked)
        plan(arrays)
        _core.let_owners_go_on(arrays)
        if not checked:
            self._planned_calls.note(plan, arrays, result, None if blocking else DeviceRequest)
        return result if blocking else DeviceRequest(self.gpu, result)

    def prove_once(
        self, call: tuple[Any, ...], plan: _core.DevicePlan, arrays: tuple[Any, ...], checked: bool
    ) -> None:
        """Before the first run of a call's plan, where it is checked or all are proved. Collective then; RuntimeError on all ranks."""
        if not (checked or _core.first_runs_are_proved()) or self.gpu.recording:
            return
        if isinstance(plan, _core.GpuPlan) and not plan.proved:  # what a row does itself is not jali's
            of = Call._make(call)
            plan.check(arrays, self._composition_of(of), of.reproducible, self._ranks)

    def _composition_of(self, call: Call) -> _core.Composition:
        return composition_of(
            call, self.size, algorithms.algorithm(self.way_of(call).name, call.collective).form
        )

    def _record(
        self, tape: recording.Tape, call: tuple[Any, ...], arrays: tuple[Any, ...], checked: bool
    ) -> None:
        """Appends a call to a graph, which nobody looks into for overflows. Collective."""
        key = (call, False)
        with recording.suspended():
            plan = self.plan_of(key)
        if not plan.recordable:
            recording.refuse_for_host(call[0], f"by way of {self.way_of(Call._make(call)).name!r}")
        tape.append(call[0], self.gpu, functools.partial(plan, arrays), arrays, lent_among(arrays))
        with recording.suspended():
            self.prove_once(call, plan, arrays, checked)
            self.rehearse(plan)

    def rehearse(self, plan: _core.DevicePlan) -> None:
        """Runs it once, on other arrays: libraries connect ranks at their first call, which no graph can do. Collective."""
        sizes = [plan.bytes_of(k) for k in range(plan.user_buffers)]
        plan(
            tuple(
                DeviceArray.empty(self.gpu, (n,), np.uint8, "rehearsed arrays") if n else None for n in sizes
            )
        )

    def recorded(
        self, call: tuple[Any, ...], plan: _core.GpuPlan, arrays: tuple[Any, ...]
    ) -> _core.RecordedCalls:
        """What the driver is given for some runs of a call's plan on arrays, which are as before afterwards. Collective."""
        of = Call._make(call)
        return plan.recorded(arrays, self._composition_of(of), of.reproducible, self._ranks)

    def report_overflows(self, call: tuple[Any, ...]) -> None:
        """Raise ParameterError on all ranks if a 16-bit result of a checked call overflowed; waits for the device."""
        if call[1] in ("fp16", "bf16") and (count := self.core.take_overflows()):
            raise checking.on_every_rank(
                f"{call[0]}: {count} results are too large for {call[1]} and became infinite; "
                "scale the numbers, or send them as fp32"
            )

    def way_of(self, call: Call) -> Way:
        """What this call takes here: an algorithm, or a row that does it itself."""
        name = call.algorithm or algorithms.forced(call.collective, on_device=True)
        if name is not None:
            theirs = library_of(self.gpu.kind)
            of_others = name in libraries() and name != theirs
            if of_others and call.algorithm:
                raise ParameterError(
                    f"algorithm {name!r} is not for {self.gpu.kind} devices; theirs is {theirs!r}"
                )
            if not of_others:
                why = "asked for" if call.algorithm else "JALI_COLLECTIVE"
                return Way(algorithms.check(name, call.collective, on_device=True), "", why)
        choice = self.core.choose(self._described(call), self._ranks_of_hosts)
        return Way(choice.name, choice.carrier, choice.why)

    def explain(self, call: Call) -> str:
        """How a call runs on this rank, a line per instruction where it is one launch. Collective where it uses a row first."""
        way = self.way_of(call)
        text = self._plan(call, way).describe()
        return f"{way.name} ({way.why}): {text}" if text else f"{way.name} ({way.why})"

    def _drop(self, calls: list[Key]) -> None:
        self._planned_calls.clear()

    def _make(self, key: Key) -> _core.DevicePlan:
        call, checked = Call._make(key[0]), key[1]
        check_call(call)
        check_operation(call.op, np.dtype(np.float64) if callable(call.op) else element_dtype(call.dtype))
        return self._plan(call, self.way_of(call), checked)

    def _plan(self, call: Call, way: Way, checked: bool = False) -> _core.DevicePlan:
        by = f" by {way.carrier}" if way.carrier else ""
        what = f"{call.collective} of {payload(call, self.size)} bytes on devices ({way.name}{by})"
        if way.name in algorithms.ON_DEVICES:
            return self.core.plan_of_row(way.name, self._described(call), what)
        row = algorithms.algorithm(way.name, call.collective)
        parameters = _core.PlanParameters(
            _core.Hierarchy.binary(self.size) if row.hierarchy == "binary" else _core.Hierarchy(self.size),
            libraries=[way.carrier],
            ring=self.size if row.ring else 1,
            reproducible=call.reproducible,
            pack_below=0,
        )
        return self.plan(composition_of(call, self.size, row.form), parameters, what, checked)

    def plan(
        self,
        composition: _core.Composition,
        parameters: _core.PlanParameters,
        what: str,
        checked: bool = False,
    ) -> _core.GpuPlan:
        """This rank's part of a composition, ready to run; libraries are those that carry messages between devices, empty for
        the one that does so by default. Collective where it is the first that uses one. Raises PlanError, DeviceError."""

        def kernel(wire: str, element: str, operation: str) -> Any:
            return cache.collective_kernel(
                self.gpu, wire, element, operation, checked and operation != "none"
            )

        return self.core.plan(composition, parameters, kernel, what)

    def _described(self, call: Call) -> _core.DeviceCall:
        """For the core, with what does it on copies in the host's memory."""
        kind, start_on_host = element_dtype(call.dtype), self._start_on_host
        of_host = "bf16" if call.dtype == "bf16" and kind.name != "bfloat16" else kind
        host = tuple(call._replace(algorithm=None, dtype=of_host))

        def on_host(views: list[memoryview | None]) -> None:
            start = start_on_host()
            assert start is not None
            copies = tuple(
                None if view is None else np.frombuffer(view, np.uint8).view(kind) for view in views
            )
            start(host, copies, None, True, False)

        return _core.DeviceCall(
            call.collective,
            call.dtype,
            counts_of(call),
            call.root,
            operation_of(call),
            call.in_place,
            call.reproducible,
            on_host,
        )
