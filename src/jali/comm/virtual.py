"""Virtual ranks: one function on several threads of this process, each being a rank.

For tests, for laptops without MPI, and to try a rank grid. The threads run Python one at a time but kernels
and messages in parallel. Which rank a thread is belongs to the thread.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jali import _core, settings
from jali.comm import validation
from jali.comm.communicator import Communicator, as_cause, came_from_elsewhere
from jali.comm.thread_share import thread_share_of_process
from jali.errors import ParameterError, RankError
from jali.files import value_shown

Result = TypeVar("Result")

_here = threading.local()


def communicator_of_thread() -> Communicator | None:
    """The communicator of this thread if it is a virtual rank."""
    return getattr(_here, "communicator", None)


@contextmanager
def rank_of_thread(communicator: Communicator) -> Iterator[None]:
    """While this lasts, this thread is that rank; its end is reported to the other ranks."""
    before = communicator_of_thread()
    _here.communicator = communicator
    try:
        yield
    except BaseException as error:
        communicator.fail(as_cause(error))
        raise
    finally:
        communicator.core.leave()
        _here.communicator = before


def virtual_ranks(ranks: int, function: Callable[..., Result], *arguments: Any, **named: Any) -> list[Result]:
    """Call `function(*arguments, **named)` on `ranks` virtual ranks at once; results come in rank order.

    Inside, `jali.comm.current()` is that rank's communicator of the `thread` transport. If one rank raises,
    the others are stopped with `RankError`, and the first exception is raised here as it was, with a note
    of every rank that failed differently. May be nested. Where there is a GPU for each they have one each; those
    inside of another virtual rank have that one's.
    """
    number = validation.integer(ranks)
    if number is None or not callable(function):
        raise ParameterError(
            f"virtual_ranks takes a number of ranks and a function, not {value_shown(ranks)} and {value_shown(function)}"
        )
    if not 1 <= number <= 1024:
        raise ParameterError(f"{value_shown(ranks)} virtual ranks: give 1 to 1024")
    ranks = number
    outer, thread_share = communicator_of_thread(), thread_share_of_process()
    threads = settings.current().threads or max(1, (outer or thread_share).threads // ranks)
    group = [
        # a virtual rank has one device, so those that are made inside of it have that one
        Communicator(
            core,
            threads,
            thread_share.rank_on_host * ranks + core.rank if outer is None else outer.known_rank_on_host,
        )
        for core in _core.make_thread_communicators(ranks)
    ]
    results: list[Any] = [None] * ranks
    errors: list[BaseException | None] = [None] * ranks

    def run(communicator: Communicator) -> None:
        try:
            with rank_of_thread(communicator):
                results[communicator.rank] = function(*arguments, **named)
        except BaseException as error:
            errors[communicator.rank] = error

    running = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(run, communicator),
            name=f"jali rank {communicator.rank} of {ranks}",
            daemon=True,
        )
        for communicator in group
    ]
    for thread in running:
        thread.start()
    try:
        for thread in running:
            thread.join()
    except BaseException as interruption:
        group[0].fail(f"stopped by {as_cause(interruption)}")
        for thread in running:
            thread.join()
        raise

    if any(error is not None for error in errors):
        raise _first(group[0], errors)
    return results


def _with_others(first: BaseException, rank: int, errors: list[BaseException | None]) -> BaseException:
    """The first exception, with a note for each other one that differs and does not only report it."""
    said = {as_cause(first)}
    for other, error in enumerate(errors):
        if error is None or other == rank or came_from_elsewhere(error, other) or as_cause(error) in said:
            continue
        said.add(as_cause(error))
        first.add_note(f"rank {other} failed differently: {as_cause(error)}")
    return first


def _first(communicator: Communicator, errors: list[BaseException | None]) -> BaseException:
    """The exception of the rank that failed first."""
    try:
        communicator.check()
    except RankError as reported:
        first = errors[reported.rank]  # type: ignore[attr-defined]
        if first is not None:
            return _with_others(first, reported.rank, errors)  # type: ignore[attr-defined]
    failed = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    own = [error for rank, error in failed if not came_from_elsewhere(error, rank)]
    return own[0] if own else failed[0][1]
