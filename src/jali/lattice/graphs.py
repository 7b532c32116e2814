"""Graphs: a sequence of calls, recorded once and repeated without Python.

Recording runs a function whose calls append to a `GraphRecorder` (`graph_recorder.py`) and do nothing else. On a device the
recorded operations are then put once on a stream that is being captured, and the driver repeats them as one launch; on the host
they are repeated one by one, which means the same. Values computed before the recording, numbers and bound arguments included,
are as they were then; what the graph writes has, after a run, the values of the last repetition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from jali import _core, graph_recorder, tape_recorder
from jali.errors import ParameterError, RecordingError
from jali.files import value_shown
from jali.graph_recorder import GraphRecorder, line
from jali.lattice.lattice import Lattice
from jali.lattice.scalar_parts import evaluate, in_order
from jali.lattice.scalars import Condition, read

CHECK_INTERVAL = 8  # repetitions on a device between two checks of a condition, by default


class Graph:
    """Calls that were recorded; see `jali.graph`. With `kept`, the results of so many repetitions can be read one after the other (`KeptResults`)."""

    def __init__(self, step: Callable[[], Any], lattice: Lattice, kept: int = 0):
        self.lattice = lattice
        recorder = GraphRecorder(lattice)
        with lattice.lock:
            with recorder, _recorded(lattice):
                self.result = step()
                left = [node for pending in recorder.sums if not pending.taken for node in pending.nodes]
                evaluate(
                    lattice.gpu, [*left, *(node for made in recorder.made if (node := made()) is not None)]
                )
            for node in recorder.written:
                node.changes()
            recorder.launches = list(dict.fromkeys(recorder.launches))
            recorder.bound = list(dict.fromkeys(recorder.bound))
            recorder.borrowed = list(dict.fromkeys(recorder.borrowed))
            if not recorder.operations:
                raise RecordingError(
                    f"the function of a graph makes no call that could be repeated\n  at {line()}"
                )
            self._recorder = recorder
            self._changing = list(dict.fromkeys(recorder.changing))
            self._meets = lattice.communicator.size > 1 and lattice.gpu is not None  # other devices, in halos
            self._layouts = [
                *dict.fromkeys(kernel.layout for bound in recorder.bound for kernel in bound.kernels)
            ]
            self._ghost_locations: list[Any] = []  # of what other ranks write, in the driver's graph
            self._instance: Any = None
            self.kept = self._kept_results(kept)
            if lattice.gpu is not None:
                self._capture()

    def __repr__(self) -> str:
        return f"<graph of {len(self._recorder.operations)} operations on {self.lattice}>"

    @property
    def operations(self) -> int:
        """Launches and computations of numbers in a repetition."""
        return len(self._recorder.operations)

    @property
    def is_current(self) -> bool:
        """Whether the functions that were recorded see the same values as then: numbers, functions and objects beside their arguments."""
        return all(bound.guards.hold() for bound in self._recorder.bound)

    @property
    def on_device(self) -> bool:
        """Whether the host goes on while it runs."""
        return self._instance is not None

    @property
    def flops(self) -> float:
        """Floating-point operations of a repetition on all ranks, as kernels count them: of each on all sites of its colours."""
        return self._recorder.flops

    def _once(self) -> None:
        for operation in self._recorder.operations:
            operation.run()
        if self.kept is not None:
            self.kept.record()

    def _capture(self) -> None:
        """Puts the operations on a stream that is being captured. Collective between devices of several ranks."""
        from jali.lattice.tuning import recordable_policies

        kernels = [kernel for bound in self._recorder.bound for kernel in bound.kernels]
        with recordable_policies(kernels) if self._meets else contextlib.nullcontext():
            if self._meets:
                self._warm_up()
            with in_order:  # without waits for other ranks
                self._instance = _core.GpuGraph(self.lattice.gpu, self._once)
            self._instance.make_ready()
        self._forget_ghosts()
        self._ghost_locations = self._now_at()

    def _warm_up(self) -> None:
        """Makes ready what operations need of other ranks. A repetition begins with old ghosts of all that the graph writes, as
        the one before leaves them at worst, and with new ones of all else."""
        self._forget_ghosts()
        self._refresh_ghosts()
        for operation in self._recorder.operations:
            if operation.warm_up is not None:
                operation.warm_up()
        self._forget_ghosts()

    def _forget_ghosts(self) -> None:
        for storage, parities in self._changing:
            storage.mark_written(parities)

    def _refresh_ghosts(self) -> None:
        for launch in self._recorder.launches:
            launch.refresh_ghosts(self._changing)

    def _now_at(self) -> list[Any]:
        return [layout.positions for layout in self._layouts]

    def run(self, times: int = 1) -> None:
        """Repeats the calls so many times. On a device the host does not wait for it."""
        _check("times", times, 0)
        graph_recorder.refuse("a graph runs", "make its calls in the step, or run it before or after")
        tape_recorder.refuse("a graph that runs", "make its calls, or record the tape in the graph")
        with self.lattice.lock:
            self._prepare()
            for _ in range(times):
                if self.kept is not None:
                    self.kept.make_room()
                if self._instance is None:
                    self._once()
                else:
                    self.lattice.gpu.launch_graph(self._instance)
                if self.kept is not None:
                    self.kept.repeated()
            if self._instance is not None and times > 0:
                self._forget_ghosts()
                for storage in self._recorder.borrowed:
                    storage.let_owner_go_on()
            # ranks that sum meet, and check together; kept results are checked when they are read
            if self.lattice.communicator.size > 1 and self.kept is None:
                for bound in self._recorder.bound:
                    if bound.sums:
                        bound.raise_if_overflow()

    def read(self) -> list[Any]:
        """The numbers of `result`, a Scalar, a Condition or several of them, after the last repetition; waits for it."""
        return read(*self._results)

    def _kept_results(self, kept: int) -> Any:
        """What keeps the results of so many repetitions; None for none."""
        if not kept:
            return None
        # with the code generator, which most programs need late
        from jali.lattice.kept_results import KeptResults

        return KeptResults(self.lattice, self._results, self._counting(), kept)

    def _counting(self) -> list[Any]:
        """The calls that sum and count sites at which they fail, which several ranks check together."""
        if self.lattice.communicator.size == 1:
            return []
        return [bound for bound in self._recorder.bound if bound.sums and bound.counts_sites]

    @property
    def _results(self) -> list[Any]:
        return list(self.result) if isinstance(self.result, list | tuple) else [self.result]

    def _prepare(self) -> None:
        """Evaluates what depends on numbers that change now, and takes sums of launches that run now."""
        waiting = [
            n for source in self._recorder.written for n in source.dependents or () if n.location is None
        ]
        evaluate(self.lattice.gpu, waiting)
        for bound in self._recorder.bound:
            bound.take_sums()
        for launch in self._recorder.launches:
            launch.make_ready()
        for storage in self._recorder.borrowed:
            storage.await_owner()
        if self._meets:
            if self._ghost_locations != self._now_at():  # ghosts have moved
                self._capture()
            else:
                self._refresh_ghosts()

    def run_until(
        self, condition: Condition | Callable[[], Any], at_most: int, check_interval: int | None = None
    ) -> int:
        """Repeats the calls until a condition holds, checked after every `check_interval` repetitions (8 on devices, 1 on the host), or
        `at_most` times. Returns how often they were repeated.

        `condition` is one that the recorded function made (such as `graph.result`), or a function that makes one of Scalars. On
        several ranks it must be computed from reproducible sums, since all ranks leave together. Raises ParameterError.
        """
        _check("at_most", at_most, 0)
        every = (
            check_interval
            if check_interval is not None
            else 1
            if self.lattice.gpu is None
            else CHECK_INTERVAL
        )
        _check("check_interval", every, 1)
        if isinstance(condition, Condition) and condition.parts[0] not in self._recorder.written:
            raise ParameterError(
                "the condition was not made by the recorded function and would keep the value that it has now; return it from "
                "there, or pass a function that makes it: run_until(lambda: a < b, ...)"
            )
        if not isinstance(condition, Condition) and not callable(condition):
            raise ParameterError(
                f"run_until takes a condition of Scalars, such as rr < goal, not {value_shown(condition)}"
            )
        if at_most > 0:
            _condition_of(condition)  # an invalid condition is refused before anything is repeated
        done = 0
        while done < at_most:
            turn = min(every, at_most - done)
            self.run(turn)
            done += turn
            if _condition_of(condition):
                break
        return done


@contextlib.contextmanager
def _recorded(lattice: Lattice) -> Iterator[None]:
    """An error of a thread that waits for this rank names the recording."""
    lattice.lock.recorded = True
    try:
        yield
    finally:
        lattice.lock.recorded = False


def _condition_of(condition: Condition | Callable[[], Any]) -> Condition:
    """The condition, or the one that a function makes now. Raises ParameterError for what ranks cannot leave by together."""
    found = condition if isinstance(condition, Condition) else condition()
    if not isinstance(found, Condition):
        raise ParameterError(f"run_until: the function gave {found!r}, not a condition of Scalars")
    if not found.reproducible:
        raise ParameterError(
            "the condition is made of fast sums, which may differ between ranks, and these must leave together: sum without "
            "fast=True"
        )
    return found


def _check(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(f"{name} is a whole number of at least {least}, not {value_shown(value)}")


def graph(step: Callable[[], Any], lattice: Lattice) -> Graph:
    """Records the calls of `step()` on the device of a lattice (or the host), without doing them; the `Graph` repeats them.

    Calls of site functions, `lattice.sum(..., wait=False)`, arithmetic of `Scalar`s, `Scalar.assign`, `Field.assign`, and what ranks
    do with arrays of the device (collectives, runs of plans, starts of messages) can be recorded. Numbers of Python keep the value that they had, also if they change later; numbers from one repetition for the next are
    `lattice.scalar(...)`s that are assigned. What `step` returns is the graph's `result`. The graph holds the fields. Raises
    RecordingError with the line of a call that cannot be repeated: one that reads or sets numbers or fields on the host, makes fields, draws
    random numbers, or runs on another device; and where halos, sums or what `jali.comm` does need the host.
    On several ranks all make the same graphs and run them as often, as with any call.
    """
    if not isinstance(lattice, Lattice):
        raise ParameterError(
            f"a graph is recorded for a Lattice: jali.graph(step, lattice), not {value_shown(lattice)}"
        )
    if not callable(step):
        raise ParameterError(f"a graph records a function without arguments, not {value_shown(step)}")
    return Graph(step, lattice)
