"""Finds which Python code runs while a site function is traced, however it is called.

Only code that ran can have decided what the formula is, so only what such code mentions is guarded afterwards (`guards.py`).
The interpreter's profiling hook reports every call; it is installed while a function is traced and then put back. Calls of
compiled code that reads something which changes by itself (a clock, a file, a source of random numbers) are refused here.
"""

from __future__ import annotations

import datetime
import dis
import functools
import gc
import random
import re
import signal
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Mapping
from importlib.util import resolve_name
from typing import Any, NamedTuple, TypeVar

from jali import _core
from jali.codegen.lines import line_of_frame
from jali.errors import TraceError

Result = TypeVar("Result")

# Code that reads no coupling: imports, messages, tools that only observe, and jali but for its physics.
_MACHINERY = {
    *("importlib", "_frozen_importlib", "linecache", "logging", "tokenize", "traceback", "warnings"),
    *("_pytest", "pytest", "pluggy", "hypothesis", "coverage", "pdb", "bdb", "pydevd", "debugpy", "IPython"),
}
_MESSAGES = ("logging", "traceback", "warnings")  # and what they call
_PHYSICS = ("jali.gauge.", "jali.fermions.", "jali.solvers.")
_PYTHON = sysconfig.get_path("stdlib")
_LOOKUPS = {"getattr", "hasattr", "vars", "dir"}  # attributes whose names the code need not mention
HIDING = {"__closure__", "__globals__", "cell_contents", "f_builtins", "f_globals", "f_locals"}
INTROSPECTED = frozenset(
    {"__annotations__", "__code__", "__defaults__", "__doc__", "__kwdefaults__", "__name__", "__qualname__"}
)
"""What `inspect` and its like read of functions and classes, partly under names that they do not mention."""
DYNAMIC = {"__dict__", "__getattribute__", "attrgetter", "methodcaller"}
_ATTRIBUTE_IN_FORMAT = re.compile(r"{\w*(\[[^]]*\])*\.")
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
            called = what == "LOAD_GLOBAL" and instruction.arg is not None and instruction.arg & 1
            if instruction.argval in _LOOKUPS and not called:
                attributes.add("__dict__")  # handed to something that calls it unseen
        elif what in _ATTRIBUTES:
            attributes.add(instruction.argval)
        elif what == "MATCH_CLASS":
            attributes |= {"__dict__", "__match_args__"}  # names of attributes are among the constants
        elif what == "IMPORT_NAME":
            imports.add((level, instruction.argval))
        elif what == "LOAD_CONST" and type(instruction.argval) is int:
            level = instruction.argval  # of the import that follows
    return Mentioned(frozenset(names), frozenset(attributes), frozenset(imports))


@functools.lru_cache(maxsize=4096)
def _fixed_lookups(code: types.CodeType) -> dict[int, str]:
    """Where a code object calls something whose second argument is a fixed text, and the text; so `getattr` mentions a name."""
    found: dict[int, str] = {}
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "CALL" and instruction.arg in (2, 3) and len(before) > 2:
            name, last = before[1 - instruction.arg], before[-1]
            simple = last.opname in (
                "LOAD_CONST",
                "LOAD_FAST",
                "LOAD_FAST_BORROW",
            )  # one instruction, one value
            if simple and name.opname == "LOAD_CONST" and isinstance(name.argval, str):
                found[instruction.offset] = name.argval
        if instruction.opname != "PRECALL":
            before.append(instruction)
    return found


def origin(space: Mapping[str, Any]) -> str:
    """The owner of the module with these globals: "machinery", "library" (Python's own, NumPy) or "user"."""
    name, file = f"{space.get('__name__', '')}.", space.get("__file__")
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and file is not None and not file.startswith(_PYTHON):
        return "user"  # whose file has the name of one of Python's
    if top in _MACHINERY or (top == "jali" and not name.startswith(_PHYSICS)):
        return "machinery"
    return "library" if top == "numpy" or top in sys.stdlib_module_names else "user"


class ExecutedCode:
    """The code that ran, and whether it looked up attributes whose names it did not mention."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any], str]] = {}
        self.lines: dict[
            int, str
        ] = {}  # the user's, where code with a closure was first called, by the code's id
        self.context_variables: list[Any] = []  # those that were read
        self.any_attribute = False
        self.looked_up: dict[str, set[str]] = {"user": set(), "library": set()}  # by getattr of fixed names
        self.refusal: TraceError | None = None
        self._handlers = {id(_code_of(signal.getsignal(number))) for number in signal.valid_signals()}

    def of(self, *origins: str) -> list[tuple[types.CodeType, dict[str, Any]]]:
        """Code with its globals that ran and belongs to one of these."""
        return [(code, space) for code, space, whose in self.seen.values() if whose in origins]

    def introspects(self) -> bool:
        """Whether Python's own code looked into functions and classes for the user: `inspect.signature`, `typing.get_type_hints`."""
        return any(
            space.get("__name__") in ("inspect", "annotationlib") or code.co_name == "get_type_hints"
            for code, space in self.of("library")
        )

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

    def _entered(self, frame: types.FrameType) -> str:
        """What the hook is to do with this code, which it calls for the first time, or `again`."""
        code, space = frame.f_code, frame.f_globals
        whose = "aside" if self._is_aside(frame) else _whose(frame)
        self.seen[id(code), id(space)] = code, space, whose
        if code.co_freevars:
            self.lines.setdefault(id(code), line_of_frame(frame))
        return {"aside": "aside", "on behalf of machinery": "again", "machinery": "ignore"}.get(
            whose, "report"
        )

    def _is_aside(self, frame: types.FrameType) -> bool:
        """Whether this call only observes (messages), or is the interpreter's: of finalizers, handlers, callbacks of weak references."""
        code = frame.f_code
        arguments: list[Any] = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
        return (
            code.co_name == "__del__"
            or id(code) in self._handlers
            or frame.f_globals.get("__name__", "").partition(".")[0] in _MESSAGES
            or any(issubclass(type(a), weakref.ref) and a() is None for a in arguments)
        )

    def _compiled(self, frame: types.FrameType, called: Any) -> None:
        name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", None)
        holder = owner if isinstance(owner, type) else type(owner)
        module: str = getattr(called, "__module__", None) or holder.__module__
        if module == "builtins" and name in _LOOKUPS:
            fixed = _fixed_lookups(frame.f_code).get(frame.f_lasti)
            if fixed is not None:
                self.looked_up[origin(frame.f_globals)].add(fixed)
            elif not frame.f_globals.get("__name__", "").startswith("numpy."):
                self.any_attribute = True
        elif (
            isinstance(owner, str) and name in ("format", "format_map") and _ATTRIBUTE_IN_FORMAT.search(owner)
        ):
            self.any_attribute = True
        elif module in ("_contextvars", "contextvars") and name == "get":
            self.context_variables.append(owner)
        elif _changes(module, name, owner, origin(frame.f_globals)):
            what = name if module in ("builtins", "io") else f"{module}.{name}"
            self.refusal = TraceError(
                f"{what}() is called while the function is traced, and what it gives can change without being noticed. "
                f"Call it outside and pass what is needed as an argument\n  at {_line(frame)}"
            )
            raise self.refusal


def _whose(frame: types.FrameType) -> str:
    """The owner of a frame's code, and for the library's code, whether the user's or the machinery's code called it."""
    whose, caller = origin(frame.f_globals), frame.f_back
    if whose == "library":
        while caller is not None and origin(caller.f_globals) == "library":
            caller = caller.f_back
        if caller is None or origin(caller.f_globals) == "machinery":
            return "on behalf of machinery"
    return whose


def _code_of(handler: Any) -> types.CodeType | None:
    """Code of a function, a method, or an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__func__") and not isinstance(handler, types.FunctionType):
        handler = getattr(handler, "__call__", None)  # noqa: B004
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


def _changes(module: str, name: str, owner: Any, whose: str) -> bool:
    """Whether a compiled function reads what changes by itself or cannot be observed."""
    if isinstance(owner, random.Random) or (module in ("_io", "io") and name in _READS):
        return True
    if module in ("posix", "nt") and name != "fspath":
        return True
    return whose == "user" and (
        name in ("globals", "input", "_getframe", "__subclasses__")
        or module in ("time", "_socket", "select", "gc")
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
