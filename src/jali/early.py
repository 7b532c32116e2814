"""Ctrl-C or SIGTERM while the `jali` command is still importing what it needs: it ends there, with one line.

An exception would end in a traceback of whatever module is being imported, or be lost in one. Programs that import
jali are left alone. Importing this module first does it, until `over`.
"""

import _signal as signal  # all that is needed of the module `signal`, which has imports of its own
import os
import sys
from types import FrameType


def over() -> None:
    """Whoever runs now handles `KeyboardInterrupt`; SIGTERM ends the process again, whatever it is doing."""
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def _is_command() -> bool:
    """Whether this is the script `jali`, or `python -m jali` on its way to its main module."""
    if sys.argv[:1] == ["-m"]:
        words = sys.orig_argv
        return any(words[k : k + 2] == ["-m", "jali"] for k in range(len(words)))
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "jali"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"jali: interrupted\n")
    os._exit(128 + number)


_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

if _is_command():
    for _number, _handler in _USUAL.items():
        if signal.getsignal(_number) == _handler:
            signal.signal(_number, _end)
