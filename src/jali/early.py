"""The `jali` command before it has imported what it needs: standard streams that are closed, Ctrl-C and SIGTERM.

A signal ends it there, with one line. An exception would end in a traceback of whatever module is being imported, or be lost in one. Programs that import
jali are left alone. Importing this module first does it, until `over`.
"""

import _signal as signal  # all that is needed of the module `signal`, which has imports of its own
import os
import sys
from types import FrameType


def over() -> None:
    """From here on the program handles `KeyboardInterrupt`; SIGTERM ends the process again, at any point."""
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def is_command() -> bool:
    """Whether this is the script `jali`, or `python -m jali` on its way to its main module."""
    if sys.argv[:1] == ["-m"]:
        words = sys.orig_argv
        return any(words[k : k + 2] == ["-m", "jali"] for k in range(len(words)))
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "jali"


def _end(number: int, frame: FrameType | None) -> None:
    if is_first():
        os.write(2, b"jali: interrupted\n")
    os._exit(128 + number)


def is_first() -> bool:
    """Whether this process prints for the ranks of its job: a launcher gives a signal to all of them."""
    # as in jali.comm.launcher_environment, which is not imported yet
    ranks = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def _fill_in() -> None:
    """Replace standard streams that the parent process has closed by the null device (`jali info >&-`).

    Files that are opened next would get their descriptors, and output would be written to them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the one that is missing
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode))


if is_command():
    _fill_in()
    for _number, _handler in _USUAL.items():
        if signal.getsignal(_number) == _handler:
            signal.signal(_number, _end)
