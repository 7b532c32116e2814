"""One rank's part of a plan on a communicator: the Python part of core/bind/running_plan.cpp.

Arrays are given at every start and are not copied. In host memory the core's executor runs the schedule, in device memory one or
more launches on jali's stream do (core/running/running_plan.hpp).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jali import _core, graph_recorder
from jali._core import RunningPlan as RunningPlan
from jali.comm.device_arrays import borrowed_among

if TYPE_CHECKING:
    from jali.comm.communicator import Communicator


def collectives_before_graphs(communicator: Communicator) -> _core.Collectives:
    """What a communicator keeps for its collectives, for a plan that a graph may record; it is there before what is recorded."""
    with graph_recorder.suspended():
        return communicator.collectives


def record(
    recorder: graph_recorder.GraphRecorder,
    running: RunningPlan,
    there: _core.GpuPlan,
    buffers: tuple[Any, ...],
) -> None:
    """Appends a run on arrays of a device to a graph."""
    what = f"a plan of {there.what}"
    if not there.recordable:
        named = ", ".join(running.plan.parameters.libraries)
        graph_recorder.refuse_for_host(what, f"with libraries {named}")
    recorder.append(what, there.gpu, functools.partial(there, buffers), running, borrowed_among(buffers))
