"""Follows what code can see: from the globals, closures and arguments of a function to all objects that its formula may depend on.

Of modules and objects the names that the code mentions are followed, of containers everything. Each object is kept twice: as it is, to
be compared by identity, and as a value. An object of compiled code whose contents cannot be seen is refused.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import datetime
import decimal
import fractions
import functools
import itertools
import operator
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali import _core
from jali.codegen.directions import Offset
from jali.codegen.executed_code import DYNAMIC, origin
from jali.codegen.lookups import (
    MISSING,
    NUMBERS,
    Probe,
    bytes_of_array,
    chained,
    described_by,
    dict_of,
    everything,
    is_compiled,
    is_slot,
    is_special_method,
    kept_by,
    lookup,
    open_to_view,
    parts_of_function,
    points,
    slot_of,
)
from jali.codegen.symbols import Accumulator, FieldSymbol, RandomSymbol, Site
from jali.codegen.types import Element, Type
from jali.codegen.values import Value
from jali.errors import TraceError

_LARGEST_ARRAY = 4096
_MOST_OBJECTS = 100_000
_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
_BY_TEXT = (float, complex, fractions.Fraction, decimal.Decimal, slice)
_DATES = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo)
_SYMBOLS = (Value, Site, FieldSymbol, Accumulator, RandomSymbol)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, types.MappingProxyType)
_QUIET = (
    "jali",
    "numpy",
    "math",
    "cmath",
    "operator",
    "itertools",
    "functools",
    "builtins",
    "typing",
    "random",
)
_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_FIXED = object()  # of what cannot come to hold other objects
_FUNCTION = re.compile("func|method|dispatch|wrap", re.IGNORECASE)  # in names of types of compiled functions
_LRU = type(functools.lru_cache(lambda: None))
_ALIKE = (
    re.Pattern,
    re.Match,
    np.dtype,
    np.ufunc,
    types.GenericAlias,
    types.UnionType,
    types.CodeType,
    types.CellType,
)
_PARTS_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_DESCRIPTIONS = ("__annotations__", "__doc__", "__module__", "__name__", "__qualname__", "__type_params__")
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


@dataclass
class Seen:
    """What ran during a trace: where the discovery of guards begins."""

    name: str  # of the function
    names: tuple[str, ...]  # of attributes that the code mentions,
    foreign: frozenset[str]  # and those that only code of libraries does
    given: tuple[Any, ...]  # the function, arguments fixed while tracing, the context variables that it read
    roots: list[
        tuple[Any, tuple[str, ...]]
    ]  # dictionaries of modules, and the names in them that the code mentions
    codes: dict[int, types.CodeType]  # of functions that ran
    any: bool  # whether any attribute may have been read


class GuardDiscovery:
    """Everything that can be reached now: `records` to compare by value, `core_guards` and `probes` to compare by identity.

    A core guard is a probe that the core does.
    """

    def __init__(self, seen: Seen):
        self.seen = seen
        self.records: list[Any] = []
        self.core_guards = _core.GuardCheck(MISSING)
        self.probes: list[tuple[Probe, tuple[Any, ...]]] = []
        self.functions: set[int] = set()  # codes of functions that were reached
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []  # so that no id is used twice
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self.records.append([self._value("an argument", given, True) for given in seen.given])
        for space, names in seen.roots:
            probe = functools.partial(lookup, space, names)
            self._node(names, "root", probe, True, ("names", space, names))
        while self._waiting:
            self._waiting.popleft()()
            if len(self._numbers) > _MOST_OBJECTS:
                raise self._refusal("objects without end", f"more than {_MOST_OBJECTS}")

    def _refusal(self, path: str, what: str) -> TraceError:
        return TraceError(
            f"{self.seen.name} captures {path}, {what}, which jali cannot watch for changes; pass the numbers that are needed "
            "as arguments, larger arrays as fields"
        )

    def _node(self, paths: Iterable[str], kind: Any, probe: Probe, strict: bool, core_guard: Any) -> None:
        """A thing made of what `probe` returns. `core_guard`: what the core needs to probe by itself, or `_FIXED` if nothing must be probed."""
        seen = probe()
        if core_guard is None:
            self.probes.append((probe, seen))
        elif core_guard is not _FIXED:
            holder, of, names = core_guard
            self.core_guards.add(holder, of, names, seen)
        record = [kind]
        self.records.append(record)
        for path, value in zip(paths, seen, strict=False):
            _, dot, name = path.rpartition(".")
            foreign = (
                bool(dot) and name in self.seen.foreign
            )  # an attribute that no code of the user mentions
            record.append(self._value(path, value, strict and not foreign))

    def _later(
        self, value: Any, paths: Iterable[str], probe: Probe, kind: Any, strict: bool, core_guard: Any = None
    ) -> tuple[str, int]:
        number = self._numbers[id(value)] = len(self._numbers)
        self._held.append(value)
        self._waiting.append(lambda: self._node(paths, (number, kind), probe, strict, core_guard))
        return "node", number

    def _value(self, path: str, value: Any, strict: bool) -> Any:
        """What identifies a value: itself where it cannot change, else the number of its node."""
        kind = type(value)
        if kind in _PLAIN or value is MISSING:
            return kind, value
        if kind in _BY_TEXT or isinstance(value, _DATES):
            return kind, repr(value)
        if isinstance(value, np.generic) and value.dtype.kind not in "OV":
            return kind, value.tobytes()
        if isinstance(value, Offset | Element | Type):
            return kind, value
        if id(value) in self._numbers:
            return "node", self._numbers[id(value)]
        if isinstance(value, _SYMBOLS):
            raise TraceError(
                f"{self.seen.name} keeps a symbol of the trace in {path}; symbols mean nothing once the function has returned"
            )
        return self._compound(path, value, kind, strict)

    def _same(self, value: Any) -> Any:
        """What is known by its identity."""
        self._held.append(value)
        return "is", id(value)

    def _compound(self, path: str, value: Any, kind: type, strict: bool) -> Any:
        names = self.seen.names
        if isinstance(value, types.ModuleType):
            whose, top = origin(value.__dict__), value.__name__.partition(".")[0]
            mine = whose == "user"
            if top == "jali" or whose == "machinery" or (top in _QUIET and not mine):
                return "module", value.__name__
            if mine and self.seen.any:
                return self._later(value, *everything(path, value.__dict__, names), "module", strict=False)
            paths = [f"{path}.{n}" for n in names]
            probe = functools.partial(lookup, value.__dict__, names)
            return self._later(value, paths, probe, "module", mine, ("names", value.__dict__, names))
        if isinstance(value, types.FunctionType):
            return self._function(path, value)
        if isinstance(value, types.MethodType):
            return self._later(
                value, (path, path), lambda: (value.__func__, value.__self__), "method", strict, _FIXED
            )
        if isinstance(value, _BOUND):
            owner = value.__self__
            if value.__name__ in DYNAMIC:
                self.seen.any = True  # names that no code mentions
            if owner is None or isinstance(owner, types.ModuleType):
                return self._same(value)
            return self._later(value, (path,), lambda: (owner,), (kind, value.__name__), strict, _FIXED)
        if isinstance(value, functools.partial):
            paths, probes, _ = self._attributes(path, value)
            probes.append(lambda: (value.func, value.args, value.keywords))
            return self._later(value, [*paths, *(path,) * 3], chained(probes), kind, strict)
        if isinstance(value, super):
            above: Any = value
            return self._later(
                value, (path,) * 2, lambda: (above.__thisclass__, above.__self__), kind, strict, _FIXED
            )
        if isinstance(value, _LRU):
            held = kept_by(
                value
            )  # until there is another miss; a hit runs no code that would lead to a result
            self._waiting.append(
                lambda: self._node(
                    itertools.repeat(path), "kept", lambda: held, strict=False, core_guard=_FIXED
                )
            )
            return self._later(
                value, (path, path), lambda: (value.__wrapped__, value.cache_info().misses), kind, strict
            )
        if isinstance(value, property):
            return self._later(value, (path,) * 2, lambda: (value.fget, value.fset), kind, strict, _FIXED)
        if isinstance(value, staticmethod | classmethod):
            return self._later(value, (path,), lambda: (value.__func__,), kind, strict, _FIXED)
        if isinstance(value, contextvars.ContextVar):
            return self._later(value, (path,), lambda: (value.get(MISSING),), kind, strict)
        if isinstance(value, weakref.ref):
            return self._later(value, (path,), lambda: (value(),), kind, strict)
        if isinstance(value, np.ndarray | np.void):
            return self._array(path, value, strict)
        if isinstance(value, _CONTAINERS):
            return self._container(path, value, kind, strict)
        if isinstance(value, type):
            return self._class(path, value)
        return self._object(path, value, kind, strict)

    def _function(self, path: str, value: types.FunctionType) -> Any:
        ran = id(value.__code__) in self.seen.codes
        if ran:
            self.functions.add(id(value.__code__))
        names = self.seen.names
        # what wraps another function, such as one of a cache, has it in its closure
        whole = ran or self.seen.any or bool(value.__dict__) or not _PARTS_OF_FUNCTIONS.isdisjoint(names)
        described = self._described(_DESCRIPTIONS)
        paths = ["code", path, path, *value.__code__.co_freevars] if whole else ["type"]
        probes: list[Probe] = [lambda: parts_of_function(value) if whole else (type(value),)]
        if self.seen.any:
            paths += everything(path, value.__dict__, names)[0]
            probes.append(lambda: everything(path, value.__dict__, names)[1]())
        else:
            paths += [f"{path}.{n}" for n in names]
            probes.append(lambda: lookup(value.__dict__, names))
        paths += [f"{path}.{n}" for n in described]
        probes.append(lambda: described_by(value, described))
        core_guard = ("function" if whole else "object", value, names)
        return self._later(
            value,
            paths,
            chained(probes),
            ("function", id(value.__globals__)),
            ran,
            None if self.seen.any or described else core_guard,
        )

    def _described(self, names: Iterable[str]) -> list[str]:
        """Those that code of the user mentions; what libraries do with names and texts is no formula."""
        return [n for n in names if n in self.seen.names and n not in self.seen.foreign]

    def _array(self, path: str, value: np.ndarray | np.void, strict: bool) -> Any:
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:  # with attributes of its own
            paths, probes, _ = self._attributes(path, value)
            numbers = value.view(np.ndarray)
            probes.append(lambda: (numbers,))
            return self._later(value, [*paths, path], chained(probes), "array", strict)
        if value.size > _LARGEST_ARRAY:
            if not strict:
                return self._same(value)
            raise self._refusal(path, f"an array of {value.size} numbers")
        if value.dtype.hasobject:
            if isinstance(value, np.void) or value.dtype.kind == "V":
                raise self._refusal(path, "a structure of NumPy that holds objects")
            probe = lambda: tuple(value.ravel())  # noqa: E731
            return self._later(value, itertools.repeat(path), probe, ("array", value.shape), strict=True)
        return self._bytes(value, lambda: (value.shape, value.dtype, value.tobytes()))

    def _bytes(self, value: Any, contents: Callable[[], Any]) -> Any:
        """What is compared byte by byte."""
        last = [contents()]

        def probe() -> tuple[Any, ...]:
            now = contents()
            if now != last[0]:
                last[0] = now
            return (last[0],)

        self.probes.append((probe, probe()))
        self._held.append(value)
        self._numbers[id(value)] = len(self._numbers)
        self.records.append(("bytes", last[0]))
        return "node", self._numbers[id(value)]

    def _container(self, path: str, value: Any, kind: type, strict: bool) -> Any:
        if value is sys.modules or len(value) > _MOST_OBJECTS:
            raise self._refusal(
                path, "the table of all modules" if value is sys.modules else f"{len(value)} elements"
            )
        parts: list[Probe] = [lambda: tuple(value)]
        paths: list[str] = [f"{path}[{k}]" for k in range(len(value))]
        if isinstance(value, dict | types.MappingProxyType):
            parts.append(lambda: tuple(value.values()))
            paths = [f"a key of {path}"] * len(value) + [f"{path}[{k!r}]" for k in value]
        if kind not in _CONTAINERS:
            more, probes, _ = self._attributes(path, value)
            paths += more
            parts += probes
        probe = parts[0] if len(parts) == 1 else chained(parts)
        core_guards: dict[type, Any] = {
            list: ("list", value, ()),
            dict: ("dictionary", value, ()),
            tuple: _FIXED,
            frozenset: _FIXED,
        }
        core_guard = core_guards.get(kind)
        return self._later(value, paths, probe, (kind.__qualname__, len(value)), strict, core_guard)

    def _class(self, path: str, value: type) -> Any:
        space = getattr(sys.modules.get(value.__module__), "__dict__", {"__name__": value.__module__})
        if is_compiled(value) or origin(space) != "user":
            return self._same(value)
        special = (
            n for n, entry in vars(value).items() if is_special_method(n, entry)
        )  # operators call these
        names = (*self.seen.names, *special)
        kind = ("class", id(value))
        above = [*(base.__name__ for base in value.__bases__), path]
        described = self._described(("__name__", "__qualname__"))
        paths = [f"{path}.{n}" for n in names]
        probe: Probe = functools.partial(lookup, value.__dict__, names)
        if self.seen.any:
            paths, probe = everything(path, value.__dict__, names, all_of_python=True)
        return self._later(
            value,
            [*paths, *above, *(f"{path}.{n}" for n in described)],
            lambda: (*probe(), *value.__bases__, type(value), *described_by(value, described)),
            kind,
            strict=not self.seen.any,
            core_guard=None if self.seen.any or described else ("type", value, names),
        )

    def _attributes(self, path: str, value: Any) -> tuple[list[str], list[Probe], Any]:
        """Paths of and probes for what an object of Python holds, as far as the code mentions it, and its class; its core guard, if any."""
        kind = type(value)
        names = self.seen.names
        slots = [
            (name, slot)
            for base in kind.__mro__
            for name, slot in vars(base).items()
            if is_slot(slot) and (self.seen.any or name in names)
        ]
        paths = [kind.__name__, *(f"{path}.{n}" for n, _ in slots)]
        probes: list[Probe] = [lambda: (type(value), *[slot_of(slot, value) for _, slot in slots])]
        core_guard = None
        if dict_of(value) is not None:
            if self.seen.any:
                more, _ = everything(path, dict_of(value), names)
                paths += more
                probes.append(lambda: everything(path, dict_of(value), names)[1]())
            else:
                paths += [f"{path}.{n}" for n in names]
                probes.append(lambda: lookup(dict_of(value), names))
                if not slots and not isinstance(value, threading.local):
                    core_guard = ("object", value, names)
        return paths, probes, core_guard

    def _object(self, path: str, value: Any, kind: type, strict: bool) -> Any:
        if kind.__module__ in ("jali.lattice.field", "jali.lattice.lattice") and hasattr(value, "serial"):
            # Fields are arguments and lattices are fixed; what a program adds to them is not.
            names, own = self.seen.names, vars(value)
            probe = functools.partial(lookup, own, names)
            paths = [f"{path}.{n}" for n in names]
            return self._later(value, paths, probe, (kind, value.serial), strict, ("names", own, names))
        if "__wrapped_site_function__" in (dict_of(value) or ()):
            paths, probes, _ = self._attributes(path, value)
            probes.append(lambda: (value.function,))
            return self._later(value, [*paths, path], chained(probes), "site function", strict)
        if isinstance(value, operator.attrgetter | operator.methodcaller):
            self.seen.any = True  # names that no code mentions
        if isinstance(value, _GETTERS):
            return self._later(
                value, (path, path), lambda: tuple(value.__reduce__()[:2]), kind, strict, _FIXED
            )
        if isinstance(value, np.ufunc) and value.__name__.endswith("(vectorized)"):
            raise self._refusal(path, "a function of Python inside np.frompyfunc")
        if isinstance(value, _ALIKE):
            return self._same(value)
        if isinstance(value, weakref.ProxyType | weakref.CallableProxyType):
            raise self._refusal(path, "a weak proxy")
        if not all(open_to_view(part) for part in kind.__mro__):
            if hasattr(kind, "__array__"):
                return self._bytes(value, lambda: bytes_of_array(np.asarray(value)))
            with contextlib.suppress(TypeError, ValueError, BufferError):
                if memoryview(value).nbytes <= 8 * _LARGEST_ARRAY and not points(memoryview(value).format):
                    return self._bytes(value, lambda: bytes(memoryview(value)))
            # Descriptors have no number of their own; a second trace shows what iterators do.
            known = hasattr(kind, "__get__") or hasattr(kind, "__next__") or _FUNCTION.search(kind.__name__)
            if strict and not known:
                raise self._refusal(path, f"a {kind.__module__}.{kind.__qualname__}")
            if dict_of(value) is None:
                return self._same(value)
        base = [plain.__repr__(value) for plain in NUMBERS if isinstance(value, plain)]
        paths, probes, core_guard = self._attributes(path, value)
        if isinstance(value, BaseException):
            paths, probes, core_guard = [*paths, path], [*probes, lambda: (value.args,)], None
        return self._later(
            value, paths, chained(probes), ("object", kind.__qualname__, base), strict, core_guard
        )
