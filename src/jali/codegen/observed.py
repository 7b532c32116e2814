"""Sees which Python code runs while a site function is traced, by whatever way it is called.

Only code that ran can have decided what the formula is, so only what such code mentions is watched afterwards (`captured.py`).
The interpreter's profiling hook tells of every call; it is in place while a function is traced and then put back. Calls of
compiled code that reads something which changes by itself (a clock, a file, a source of random numbers) are refused here.
"""

from __future__ import annotations

import datetime
import dis
import functools
import gc
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from importlib.util import resolve_name
from typing import Any, NamedTuple, TypeVar

from jali import _core
from jali.errors import TraceError

Result = TypeVar("Result")

# Code that reads nobody's coupling: imports, messages, tools that look on, and jali but for its physics.
_MACHINERY = {
    *("importlib", "_frozen_importlib", "linecache", "logging", "tokenize", "traceback", "warnings"),
    *("_pytest", "pytest", "pluggy", "hypothesis", "coverage", "pdb", "bdb", "pydevd", "debugpy", "IPython"),
}
_PHYSICS = ("jali.gauge.", "jali.fermions.", "jali.solvers.")
_PYTHON = sysconfig.get_path("stdlib")
_LOOKUPS = {"getattr", "hasattr", "vars", "dir"}  # attributes whose names the code need not mention
DYNAMIC = {"__dict__", "__getattribute__", "attrgetter", "methodcaller"}
_READS = {"open", "open_code", "read", "read1", "readall", "readinto", "readline", "readlines", "input"}
_CLOCK = {"now", "today", "utcnow"}
_NAMES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "STORE_ATTR", "DELETE_ATTR"}


class Mentioned(NamedTuple):
    """Names in a code object: globals, attributes, and (level, module) of imports."""

    names: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[tuple[int, str]]


@functools.lru_cache(maxsize=4096)
def mentioned(code: types.CodeType) -> Mentioned:
    """What a code object mentions, without the code that is defined inside it."""
    names, attributes, imports = set(), {code.co_name}, set()
    level = 0
    for instruction in dis.get_instructions(code):
        what = instruction.opname
        if what in _NAMES:
            names.add(instruction.argval)
        elif what in _ATTRIBUTES:
            attributes.add(instruction.argval)
        elif what == "MATCH_CLASS":
            attributes.add("__dict__")  # the names of its attributes are among the constants
        elif what == "IMPORT_NAME":
            imports.add((level, instruction.argval))
        elif what == "LOAD_CONST" and type(instruction.argval) is int:
            level = instruction.argval  # of the import that follows
    return Mentioned(frozenset(names), frozenset(attributes), frozenset(imports))


def origin(space: Mapping[str, Any]) -> str:
    """Whose the module with these globals is: "machinery", "library" (Python's own, NumPy) or "user"."""
    name, file = f"{space.get('__name__', '')}.", space.get("__file__")
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and file is not None and not file.startswith(_PYTHON):
        return "user"  # whose file has the name of one of Python's
    if top in _MACHINERY or (top == "jali" and not name.startswith(_PHYSICS)):
        return "machinery"
    return "library" if top == "numpy" or top in sys.stdlib_module_names else "user"


class Observation:
    """The code that ran, and whether it looked up attributes whose names it did not mention."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any], str]] = {}
        self.asked: list[Any] = []  # context variables that were read
        self.any_attribute = False
        self.refusal: TraceError | None = None

    def of(self, *origins: str) -> list[tuple[types.CodeType, dict[str, Any]]]:
        """Code with its globals that ran and belongs to one of these."""
        return [(code, space) for code, space, whose in self.seen.values() if whose in origins]

    def run(self, work: Callable[[], Result]) -> Result:
        """Does `work` and sees what runs. Raises TraceError for calls whose results cannot be watched."""
        before, collects = sys.getprofile(), gc.isenabled()
        gc.disable()  # finalizers and callbacks of the collector are no part of the function
        hook = _core.CallObserver(self._entered, self._compiled)
        hook.start()
        try:
            result = work()
        finally:
            sys.setprofile(None)
            if collects:
                gc.enable()
            if callable(before):
                sys.setprofile(before)
            elif before is not None:  # cProfile's, which only it can put back
                before.enable()
        if self.refusal is not None:  # and the function caught it
            raise self.refusal
        return result

    def _entered(self, code: types.CodeType, space: dict[str, Any]) -> bool:
        whose = origin(space)
        self.seen[id(code), id(space)] = code, space, whose
        return whose != "machinery"

    def _compiled(self, frame: types.FrameType, called: Any) -> None:
        name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", None)
        holder = owner if isinstance(owner, type) else type(owner)
        module: str = getattr(called, "__module__", None) or holder.__module__
        if module == "builtins" and name in _LOOKUPS:
            if not frame.f_globals.get("__name__", "").startswith("numpy."):
                self.any_attribute = True
        elif module in ("_contextvars", "contextvars") and name == "get":
            self.asked.append(owner)
        elif _changes(module, name, owner, origin(frame.f_globals)):
            what = name if module in ("builtins", "io") else f"{module}.{name}"
            self.refusal = TraceError(
                f"{what}() is called while the function is traced, and what it gives can change without being noticed. "
                f"Call it outside and pass what is needed as an argument\n  at {_line(frame)}"
            )
            raise self.refusal


def _changes(module: str, name: str, owner: Any, whose: str) -> bool:
    """Whether a compiled function reads what changes by itself or where nobody can watch it."""
    if isinstance(owner, random.Random) or (module in ("_io", "io") and name in _READS):
        return True
    return whose == "user" and (
        (module == "builtins" and name in ("globals", "input"))
        or (module in ("time", "posix", "nt", "_socket", "select") and name != "fspath")
        or (isinstance(owner, type) and issubclass(owner, datetime.date) and name in _CLOCK)
    )


def _line(frame: types.FrameType | None) -> str:
    while frame is not None and origin(frame.f_globals) != "user":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "<unknown>"


def imported(level: int, name: str, space: dict[str, Any]) -> list[str]:
    """Full names of the modules that an import statement reads."""
    try:
        full = (
            resolve_name("." * level + name, space.get("__package__") or space.get("__name__"))
            if level
            else name
        )
    except ImportError:
        return []
    return list(dict.fromkeys((full, full.partition(".")[0])))
