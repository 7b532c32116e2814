"""How a rank ends: in order, with an error of its own, or because another rank had one.

An uncaught exception on one MPI rank would leave the others waiting for ever. So it is printed once and
sent to all ranks (which raise `RankError` with the cause and print one line), and then MPI aborts the job.
An error that all ranks raise is printed by the first of them; different errors are printed by each. A rank
whose program ends in order notifies the others, which may still wait for it, and waits for them before MPI
is shut down.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from traceback import format_exception
from types import ModuleType, TracebackType
from typing import Any

from jali.comm.communicator import Communicator, as_cause, came_from_elsewhere
from jali.comm.launcher_environment import find_launcher_environment
from jali.errors import RankError

MOMENT = 1.0  # seconds that the other ranks get to print why they stop before the job is ended,
LONGEST = 5.0  # and at most, while one of them has not reported that it did: it may wait for a busy processor
SKEW = 0.5  # seconds in which ranks that make the same mistake are expected to make it; less than MOMENT
TIMEOUT = 8.0  # seconds in which a rank notified of a failure expects to be ended by the rank that had it

_watched: list[Communicator] = []
_mpi: Any = None


def watch(communicator: Communicator, MPI: ModuleType) -> None:
    """From now on this process's end concerns the ranks of `communicator`."""
    global _mpi
    if communicator.size == 1:
        return
    if _mpi is None:
        _mpi = MPI
        atexit.register(_leave)
        sys.excepthook = _Hook(sys.excepthook)
    _watched.append(communicator)


def notify_other_ranks(cause: str) -> None:
    """Notify the ranks of every MPI communicator in use that this one cannot continue, if there are any."""
    for communicator in _watched:
        communicator.fail(cause)


def said_elsewhere(error: BaseException) -> bool:
    """Whether another MPI rank failed with this same error and reports it; sends this rank's error to all ranks
    first.

    The lowest of these ranks reports. The others are notified within SKEW seconds, or else report themselves: no
    error is lost, and a rank that is later than that is not silent.
    """
    if not _watched:
        return False
    cause, communicator = as_cause(error), _watched[0]
    notify_other_ranks(cause)
    limit = time.monotonic() + SKEW
    with contextlib.suppress(RankError):  # where nothing can be received any more, this rank reports
        while communicator.rank > 0 and time.monotonic() < limit:
            if any(rank < communicator.rank for rank in communicator.core.failed_alike(cause)):
                return True
            time.sleep(0.01)
    return False


def end_job(error: BaseException, status: int = 1, *, silent: bool = False) -> None:
    """End all ranks of an MPI job because of `error`, after the others had time to report why they stop.

    For programs that catch and print their errors themselves; uncaught ones call it automatically. Returns
    (and does nothing) without MPI ranks, and in an orderly end, where the launcher gets `status` from
    every rank. A rank that is `silent` leaves more time to the one that reports.
    """
    if not _watched:
        return
    notify_other_ranks(as_cause(error))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(KeyboardInterrupt):  # a second signal skips the report
        _let_others_speak(silent or came_from_elsewhere(error, _watched[0].rank))
    _mpi.COMM_WORLD.Abort(status)
    os._exit(status)


def _let_others_speak(silent: bool) -> None:
    core = _watched[0].core
    if silent:
        core.stopping()
        time.sleep(TIMEOUT)
        return
    time.sleep(MOMENT)
    limit = time.monotonic() + LONGEST - MOMENT
    with contextlib.suppress(RankError):  # where nothing can be received any more
        while not core.all_have_spoken() and time.monotonic() < limit:
            time.sleep(0.01)


class _Hook:
    """The `sys.excepthook` of an MPI rank; `before` is the one it found."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        silent = False
        with contextlib.suppress(KeyboardInterrupt):  # this rank ends, and with it the job, all the sooner
            silent = self._say(kind, error, traceback)
        end_job(error, 130 if issubclass(kind, KeyboardInterrupt) else 1, silent=silent)

    def _say(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> bool:
        """Print why this rank ends; whether it leaves that to another one, which had the same error."""
        rank = _watched[0].rank
        if came_from_elsewhere(error, rank):
            print(f"jali: rank {rank} stopped: {error}", file=sys.stderr, flush=True)
        elif said_elsewhere(error):
            return True
        else:
            said = f"jali: rank {rank} failed:\n"
            if self.before is sys.__excepthook__:  # in one piece, since other ranks may print as well
                sys.stderr.write(said + "".join(format_exception(kind, error, traceback)))
            else:
                sys.stderr.write(said)
                self.before(kind, error, traceback)
        return False


def _leave() -> None:
    """The end of a program, in order as far as this rank can determine."""
    if _mpi.Is_finalized():
        return
    for communicator in _watched:
        communicator.core.leave()
    for communicator in _watched:
        communicator.core.await_others_leaving()


def speaker() -> str:
    """The prefix of messages: "jali", or "jali: rank 3" of several."""
    under_launcher = find_launcher_environment()
    return (
        "jali" if under_launcher is None or under_launcher.size == 1 else f"jali: rank {under_launcher.rank}"
    )
