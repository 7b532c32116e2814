"""The user's line: where in a site function something was written, for messages and for nodes.

The file of a frame identifies the owner of its code: the user, jali's language, jali's own site functions, or Python.
"""

from __future__ import annotations

import dis
import linecache
import os
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from jali.errors import TraceError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LANGUAGE = tuple(
    _PACKAGE + part
    for part in (
        "codegen" + os.sep,
        "lattice" + os.sep,
        "derivatives" + os.sep,
        os.path.join("fermions", "spin.py"),
    )
)
_TRACING = _PACKAGE + os.path.join("codegen", "trace.py")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (_STANDARD + "site-packages" + os.sep, _STANDARD + "dist-packages" + os.sep)
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


_owners: dict[str, str] = {}  # of files; read without a call, since every node has a line


def _whose(file: str) -> str:
    """The owner of a file's code: `user`; `language`, `library` (jali's two parts); `python`, all other code."""
    if file.startswith(_PACKAGE):
        return "language" if file.startswith(_LANGUAGE) else "library"
    if file.startswith(("<frozen ", _NUMPY)) or (
        file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    ):
        return "python"
    return "user"


def _owner(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    # Methods that a dataclass writes for itself are "<string>" in a module with a file; what is typed in has none.
    if file == "<string>":
        return "python" if "__file__" in frame.f_globals else "user"
    return _owners.setdefault(file, _whose(file))


def _line(file: str, number: int) -> str:
    """`file:line`, and the source text if there is no file (an interactive session's input)."""
    text = linecache.getline(file, number).strip() if file.startswith("<") else ""
    return f"{file}:{number}" + (f": {text}" if text else "")


def user_line(beyond_trace: bool = False) -> str:
    """`file:line` of the innermost frame that is neither jali's nor Python's own: the user's site function.

    In a site function of jali's own it is jali's line; with `beyond_trace` that of the user who called it.
    """
    return line_of_frame(sys._getframe(1), beyond_trace)


def line_of_frame(frame: FrameType | None, beyond_trace: bool = True) -> str:
    """`user_line` of a call that is under way."""
    library: FrameType | None = None
    while frame is not None:
        owner = _owners.get(frame.f_code.co_filename) or _owner(frame)
        if owner == "user":
            return _line(frame.f_code.co_filename, frame.f_lineno)
        if owner == "library":
            library = library or frame
        elif not beyond_trace and frame.f_code.co_name == "trace" and frame.f_code.co_filename == _TRACING:
            break
        frame = frame.f_back
    return "<unknown>" if library is None else _line(library.f_code.co_filename, library.f_lineno)


def line_of_error(traceback: TracebackType | None) -> tuple[str, bool]:
    """The user's innermost line in a traceback (or else `user_line`), and whether the user's own code raised the error.

    Errors that Python finds have no `raise` statement.
    """
    line, raised = "", False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        owner = _owner(traceback.tb_frame)
        if owner == "user":
            line = _line(code.co_filename, traceback.tb_lineno)
        at = code.co_code[traceback.tb_lasti] if traceback.tb_lasti >= 0 else -1
        raised = owner == "user" and at == dis.opmap["RAISE_VARARGS"]
        traceback = traceback.tb_next
    return line or user_line(beyond_trace=True), raised


def line_of_function(function: Callable[..., Any]) -> str:
    """Where the user defines a function, or `user_line` if it is jali's own."""
    code = getattr(function, "__code__", None)
    if code is None or _whose(code.co_filename) != "user":
        return user_line(beyond_trace=True)
    return _line(code.co_filename, code.co_firstlineno)


def is_of_user(line: str) -> bool:
    """Whether `user_line` gave a line outside of jali."""
    return line not in ("", "<unknown>") and not line.startswith(_PACKAGE)


def trace_error(message: str) -> TraceError:
    """A TraceError whose message ends with the user's line."""
    return TraceError(f"{message}\n  at {user_line(beyond_trace=True)}")
