"""Virtual ranks: one function on several threads of this process, each being a rank.

For tests, for laptops without MPI, and to try a rank grid. The threads run Python one at a time but kernels
and messages in parallel. Which rank a thread is belongs to the thread.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from jali import _core
from jali.comm.communicator import Communicator, as_cause
from jali.errors import RankError

Result = TypeVar("Result")

_here = threading.local()


def communicator_of_thread() -> Communicator | None:
    """The communicator of this thread if it is a virtual rank."""
    return getattr(_here, "communicator", None)


def virtual_ranks(ranks: int, function: Callable[..., Result], *arguments: Any, **named: Any) -> list[Result]:
    """Call `function(*arguments, **named)` on `ranks` virtual ranks at once; results come in rank order.

    Inside, `jali.comm.current()` is that rank's communicator of the `thread` transport. If one rank raises,
    the others are stopped with `RankError`, and the first exception is raised here as it was. May be
    nested.
    """
    threads_each = _core.default_threads(ranks)
    group = [Communicator(core, threads_each) for core in _core.make_thread_communicators(ranks)]
    results: list[Any] = [None] * ranks
    errors: list[BaseException | None] = [None] * ranks

    def run(communicator: Communicator) -> None:
        _here.communicator = communicator
        try:
            results[communicator.rank] = function(*arguments, **named)
        except BaseException as error:
            errors[communicator.rank] = error
            communicator.fail(as_cause(error))
        finally:
            communicator.core.leave()

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(run, communicator),
            name=f"jali rank {communicator.rank} of {ranks}",
            daemon=True,
        )
        for communicator in group
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as interruption:
        group[0].fail(f"stopped by {as_cause(interruption)}")
        for thread in threads:
            thread.join()
        raise

    if any(error is not None for error in errors):
        raise _first(group[0], errors)
    return results


def _first(communicator: Communicator, errors: list[BaseException | None]) -> BaseException:
    """The exception of the rank that failed first."""
    try:
        communicator.check()
    except RankError as told:
        first = errors[told.rank]  # type: ignore[attr-defined]
        if first is not None:
            return first
    return next(error for error in errors if error is not None)
