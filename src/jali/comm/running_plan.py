"""One rank's part of a plan on a communicator: it owns the schedule, its scratch and its tags.

Arrays are given at every start and are not copied. In host memory the core's executor runs the schedule, in device memory one or
more launches on jali's stream do.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import _core, recording
from jali.amounts import counted
from jali.comm import algorithms
from jali.comm.device_arrays import DeviceArray, lent_among
from jali.comm.elements import as_array, element_name
from jali.comm.whereabouts import data_on_device, is_on_device
from jali.errors import ParameterError, PlanError

if TYPE_CHECKING:
    from jali._core import DeviceCollectives, Gpu, GpuPlan
    from jali.comm.communicator import Communicator
    from jali.comm.plan import Plan


class RunningPlan:
    """One rank's part of a plan on one communicator. Made by `Plan.on`.

    All ranks start plans of one communicator in the same order. Arrays must be C-contiguous, of exactly the buffer's
    size and type; None where a buffer has no elements on this rank. Arrays in device memory are taken as well, all of them then:
    the plan runs on jali's stream, with libraries that carry messages between devices ("remote-write", "copy-engine", the vendor's
    "nccl"), and slices of the device's queues take the place of chunks (`depth`).
    """

    def __init__(self, plan: Plan, communicator: Communicator) -> None:
        if communicator.size != plan.ranks:
            raise ParameterError(
                f"a plan for {counted(plan.ranks, 'rank')} cannot run on {communicator.size}"
            )
        self.plan = plan
        self._communicator = weakref.ref(communicator)
        self._what = plan.collective or "composition"
        self._on_devices: dict[_core.Gpu, _core.GpuPlan] = {}
        self._last: _core.GpuEvent | None = None  # of a run on a device
        self._on_host: _core.PersistentPlan | None = None
        if not algorithms.CARRIERS_OF_DEVICES & set(plan.parameters.libraries):
            space = communicator.collectives.space
            self._on_host = _core.PersistentPlan(plan.schedule(communicator.rank), space, self._what)
        self._names = [name for name, _, _ in plan.composition.core.buffers if name != "work"]
        self._element = plan.composition.element

    @property
    def _core(self) -> _core.PersistentPlan:
        if self._on_host is None:
            named = ", ".join(self.plan.parameters.libraries)
            raise PlanError(f"a plan with libraries {named} is for arrays in device memory; give such arrays")
        return self._on_host

    def start(self, *arrays: Any, **named: Any) -> RunningPlan:
        """Start on these arrays, which are kept alive until the end and must not be touched before."""
        given = self._arrays(arrays, named)
        if not self._run_on_device(given):
            recording.refuse_call("start")
            self._core.start(*given)
        return self

    def run(self, *arrays: Any, **named: Any) -> None:
        """Start and wait; on devices, it is on jali's stream afterwards."""
        given = self._arrays(arrays, named)
        if not self._run_on_device(given):
            recording.refuse_call("run")
            self._core.run(*given)

    def check(self, *arrays: Any, **named: Any) -> None:
        """Prove that what runs on these arrays, on all ranks together, does what the composition says. Collective.

        On devices some runs are made, the arrays are as before afterwards, and what each rank gives to its driver meanwhile is
        decoded and looked at for all ranks together: no wait is in vain, whatever uses the same memory is ordered, and every
        byte is in the end what the composition says. In host memory schedules are what runs, so it is `Plan.check`. Raises
        `RuntimeError`, or `CheckError` for schedules, on all ranks.
        """
        recording.refuse_call("check")
        on_device = self._on_device(self._arrays(arrays, named))
        if on_device is None:
            self.plan.check()
        else:
            self._check_on_device(*on_device)
            _core.let_owners_go_on([a for a in on_device[1] if a is not None])

    def _check_on_device(self, plan: GpuPlan, buffers: tuple[Any, ...]) -> None:
        communicator = self._communicator()
        assert communicator is not None, "a communicator that is gone runs no plans"
        composition, p = self.plan.composition.core, self.plan.parameters
        plan.check(buffers, composition, p.reproducible, communicator.core)

    def _run_on_device(self, arrays: list[Any]) -> bool:
        with recording.suspended():
            on_device = self._on_device(arrays)
        if on_device is None:
            self._last = None
            return False
        plan, buffers = on_device
        gpu = plan.gpu
        if recording.recorders and (tape := recording.current()) is not None:
            if not plan.recordable:
                recording.refuse_for_host(
                    f"a plan of {self._what}", f"with libraries {', '.join(self.plan.parameters.libraries)}"
                )
            tape.append(
                f"a plan of {self._what}", gpu, functools.partial(plan, buffers), self, lent_among(buffers)
            )
            with recording.suspended():
                self._prove_once(plan, buffers)
                plan.rehearse()
            return True
        if not gpu.recording:
            self._prove_once(plan, buffers)
        plan(buffers)
        self._last = _core.GpuEvent(gpu, False)
        gpu.record(self._last)
        _core.let_owners_go_on([a for a in buffers if a is not None])
        return True

    def _prove_once(self, plan: GpuPlan, buffers: tuple[Any, ...]) -> None:
        """Before the first run, where first runs are proved."""
        if _core.first_runs_are_proved() and not plan.proved and self._communicator() is not None:
            self._check_on_device(plan, buffers)

    def _there(self, gpu: Gpu) -> DeviceCollectives:
        communicator = self._communicator()
        assert communicator is not None, "a communicator that is gone runs no plans"
        return communicator.collectives.on_device(gpu)

    def _on_device(self, arrays: list[Any]) -> tuple[GpuPlan, tuple[Any, ...]] | None:
        """The plan for arrays in device memory, and one of them or None per buffer; None if they are in the host's."""
        there = [a for a in arrays if isinstance(a, _core.PlacedArray)]
        if not there:
            return None
        if len(there) != sum(1 for a in arrays if not isinstance(a, np.ndarray) or a.size):
            raise ParameterError(
                "some arrays of a plan are in device memory and some are not; give all in the same"
            )
        gpu = there[0].gpu
        plan = self._on_devices.get(gpu)
        if plan is None:
            p = self.plan.parameters
            parameters = _core.PlanParameters(
                p.hierarchy,
                libraries=p.libraries,
                stripe=p.stripe,
                stripe_weights=p.stripe_weights,
                ring=p.ring,
                reproducible=p.reproducible,
                pack_below=0,
            )
            plan = self._there(gpu).plan(self.plan.composition.core, parameters, self._what)
            self._on_devices[gpu] = plan
        buffers = [a if isinstance(a, _core.PlacedArray) else None for a in arrays]
        for number, (name, array) in enumerate(zip(self._names, buffers, strict=False)):
            size = 0 if array is None else array.nbytes
            if size != plan.bytes_of(number):
                raise ParameterError(
                    f"{self._what}: buffer '{name}' has {plan.bytes_of(number)} bytes on this rank, the array given for it {size}"
                )
        return plan, tuple(buffers)

    def test(self) -> bool:
        """Make progress; whether it has ended. On devices: whether the last run has."""
        recording.refuse_call("test")
        if self._last is not None:
            return self._last.reached()
        return self._core.test()

    def wait(self) -> None:
        """Return when it has ended; after a run on devices at once, since it is on jali's stream.

        Raises RankError if a rank fails or nothing moves for JALI_WATCHDOG seconds, DeviceError with the first cause where
        devices have given up waiting for a rank that failed.
        """
        recording.refuse_call("wait")
        if self._last is None:
            self._core.wait()
        else:
            self._last.gpu.refuse_if_aborted()

    @property
    def running(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return not self.test() if self._last is not None else self._core.running

    def _arrays(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        unknown = sorted(set(named) - set(self._names))
        if unknown:
            raise ParameterError(
                f"no buffer is named {', '.join(unknown)}; there are {', '.join(self._names)}"
            )
        given = list(arrays) + [named.get(name) for name in self._names[len(arrays) :]]
        result: list[Any] = []
        for k, x in enumerate(given):
            if x is None:
                result.append(np.empty(0, np.uint8))
                continue
            array = x if isinstance(x, DeviceArray) else data_on_device(x) if is_on_device(x) else as_array(x)
            kind = element_name(array.dtype) if isinstance(array, np.ndarray) else array.element
            if kind != self._element:
                name = self._names[k] if k < len(self._names) else f"number {k}"
                given_type = array.dtype if isinstance(array, np.ndarray) else kind
                raise ParameterError(
                    f"buffer '{name}' holds {self._element}, the array given for it {given_type}"
                )
            result.append(array)
        return result
