"""Collectives that were started with blocking=False."""

from __future__ import annotations

from typing import Any

from jali import _core, graph_recorder


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
        graph_recorder.refuse_call("test")
        if self._plan is not None and self._plan.test():
            self._plan = None
        return self._plan is None

    def wait(self) -> Any:
        """Return what the blocking call would have returned, when it has ended."""
        graph_recorder.refuse_call("wait")
        if self._plan is not None:
            self._plan.wait()
            self._plan = None
        return self._result


DeviceRequest = _core.DeviceRequest
