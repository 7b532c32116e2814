"""Checked mode: ranks compare what they call before anything moves.

How is in core/running/compared_calls.cpp; here is what Python programs call, and where. JALI_CHECKED switches it on for all calls of
all communicators, also where ranks would otherwise exchange no word about what they do: halos and collectives whose plans exist.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from jali import _core, settings
from jali.errors import ParameterError


def is_on() -> bool:
    """Whether JALI_CHECKED is set."""
    return settings.current().checked


def compare(core: _core.Communicator, description: dict[str, Any], called: str = "") -> None:
    """Raise ParameterError on every rank unless all ranks describe the same call, whose first key is "call". Collective.
    `called` is the function of jali that the program called, where Python's frames do not show it."""
    _core.compare_calls(core, [(key, str(value)) for key, value in description.items()], _location(called))


def on_every_rank(text: str) -> ParameterError:
    """An error that all ranks raise, so that one of them may report it."""
    error = ParameterError(text)
    error.on_every_rank = True  # type: ignore[attr-defined]
    return error


def _location(called: str) -> str:
    """The line of the program that called jali, and the function of jali that it called."""
    frame = sys._getframe(1)
    name = ""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "jali":
        name = frame.f_code.co_qualname
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}, {called or name}"
