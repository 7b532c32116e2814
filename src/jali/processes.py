"""Programs that end with this process, for any cause: compilers, builds, processes of a benchmark.

A program may be several processes. They are a group of their own, since a terminal's Ctrl-C is for this process, which may
finish its work first. A shell leads the group. Beside the program it waits for the end of a pipe that only this process holds
open, which closes even when this process is killed, and then ends the group: by SIGTERM first, so that temporary files are
removed. MPI ranks, which need longer to end and a launcher of their own, are started by `jali.comm.launcher`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

_GUARD = """
exec 3<&0 </dev/null
(
    trap '' HUP INT TERM
    read -r _ <&3
    kill -TERM 0
    sleep 1
    kill -KILL 0
) >/dev/null 2>&1 &
guard=$!
"$@" 3<&-
status=$?
kill -KILL $guard
exit $status
"""


@contextlib.contextmanager
def ended_with_us(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program that runs while this is entered, with nothing to read; its group has ended afterwards, or will in a second.

    Yields the shell that leads the group, and ends with the program's status (128 and the number of a signal). Options are
    those of `subprocess.Popen`. Raises OSError where no shell can be started.
    """
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "jali", *command], stdin=theirs, process_group=0, **options
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        yield process
    finally:
        os.close(ours)
        _end_group(process)


def _end_group(process: subprocess.Popen[Any]) -> None:
    """End the group that `process` leads, if it has not ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
