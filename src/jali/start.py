"""What `import jali` does first: it reads the settings. A wrong value ends the program, and all ranks of its job.

Ranks whose settings are right wait for the others where MPI starts. A rank whose settings are wrong therefore starts MPI too,
reports its error like any other, and ends. The command `jali` prints one line, programs raise `ParameterError`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings

from jali import _core, early, settings
from jali.errors import JaliError, ParameterError


def _start() -> None:
    """Read the environment and warn of unknown variables: in one process of a job, the one that started the ranks or the first."""
    try:
        notes = _core.start_settings()
    except ParameterError as error:
        _join_ranks()
        if early.is_command():
            _end(error)
        raise
    if early.is_first() and not settings.current().expected_ranks:
        for note in notes:
            warnings.warn(note, FutureWarning, stacklevel=3)


def _join_ranks() -> None:
    """Start MPI, where the other ranks of this job wait, if there are any."""
    from jali.comm.launcher_environment import find_launcher_environment

    under_launcher = find_launcher_environment()
    alone = settings.of_others("JALI_TRANSPORT").get("JALI_TRANSPORT") in ("self", "thread")
    if under_launcher is None or under_launcher.size == 1 or alone:
        return
    _core.replace_settings(_core.read_settings({})[0])  # needed to notify other ranks
    with contextlib.suppress(JaliError):  # without MPI no rank waits
        from jali.comm.world import current

        current()


def _end(error: ParameterError) -> None:
    from jali.comm import stopping

    silent = stopping.said_elsewhere(error)
    if not silent:
        print(f"jali: {error}", file=sys.stderr, flush=True)
    stopping.end_job(error, 2, silent=silent)
    sys.exit(2)  # bad input: jali.cli.main


_start()
