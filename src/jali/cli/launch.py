"""Decides whether `-n N` on the command line has to start ranks, or is the option of a started rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jali.amounts import counted
from jali.comm.launcher import relaunch
from jali.comm.launcher_environment import expected_ranks, find_launcher_environment
from jali.errors import ParameterError


def start_ranks(count: int, arguments: Sequence[str], hung: Callable[[], bool] | None = None) -> int | None:
    """Start `jali` with these arguments on `count` ranks and return its exit status. Where they are
    `hung`, they are ended.

    Returns None if there is nothing to start: one rank is wanted, or this process is one of `count`
    already. Raises ParameterError under a launcher that has started another number of ranks.
    """
    under_launcher = find_launcher_environment()
    started = expected_ranks() or (under_launcher.size if under_launcher else 1)
    if started > 1 and started != count:
        raise ParameterError(
            f"-n {count} asks for {counted(count, 'rank')}, but a launcher has started {started} already; "
            "give the number to one of them only"
        )
    return None if started == count else relaunch(count, arguments, hung)
