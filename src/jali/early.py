"""Ctrl-C while the `jali` command is still importing what it needs: it ends there, with one line.

An exception would end in a traceback of whatever module is being imported, or be lost in one. Programs that import
jali are left alone. Importing this module first does it, until `over`.
"""

import _signal as signal  # all that is needed of the module `signal`, which has imports of its own
import os
import sys
from types import FrameType


def over() -> None:
    """Whoever runs now handles `KeyboardInterrupt`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether this is the script `jali`, or `python -m jali` on its way to its main module."""
    if sys.argv[:1] == ["-m"]:
        words = sys.orig_argv
        return any(words[k : k + 2] == ["-m", "jali"] for k in range(len(words)))
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "jali"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"jali: interrupted\n")
    os._exit(128 + number)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
