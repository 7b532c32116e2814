"""Collectives that were started with blocking=False."""

from __future__ import annotations

from typing import Any

from jali import _core, recording


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


class DeviceRequest:
    """A collective on a device that was not waited for. It is on jali's stream already (or on that which it was given), so whatever
    jali does next with its arrays comes after it. Raises DeviceError, with the first cause, when a rank has failed and the device has given it up."""

    def __init__(self, gpu: _core.Gpu, result: Any, stream: int | None = None) -> None:
        self._event = _core.GpuEvent(gpu, False)
        gpu.record(self._event, stream)
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
