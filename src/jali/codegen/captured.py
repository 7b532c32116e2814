"""Watches what a traced function saw besides its symbols, so that a changed coupling is never stale.

A traced function may use numbers that are not its arguments: globals, closures, defaults, attributes and elements of objects that
it reaches from there or from arguments that are fixed while tracing, the same in functions that it calls. They become constants
of the kernel. `watched` traces a function and returns a `Watch`, which is asked before every run whether all of this is as it was.

What decides is the code that ran (`observed.py`): of modules and objects, the names that this code mentions are followed; of
containers, everything. What is immutable is compared by value, what is made of other things through these, functions by their
code, closure and defaults. An object of compiled code whose contents cannot be seen is refused, and so is a function that gives
another formula when it is traced once more.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import contextvars
import datetime
import decimal
import fractions
import functools
import inspect
import itertools
import operator
import os
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from importlib.machinery import BuiltinImporter, ExtensionFileLoader
from typing import Any, TypeVar

import numpy as np

from jali import _core
from jali.codegen.directions import Offset
from jali.codegen.ir import SiteProgram
from jali.codegen.observed import DYNAMIC, HIDING, Observation, imported, mentioned, origin
from jali.codegen.symbols import FieldSymbol, RandomSymbol, Site, SumSymbol
from jali.codegen.types import Element, Type
from jali.codegen.values import Value
from jali.errors import TraceError

Look = Callable[[], tuple[Any, ...]]
Result = TypeVar("Result")

_LARGEST_ARRAY = 4096
_MOST_OBJECTS = 100_000
_MISSING = type("Missing", (), {"__repr__": lambda self: "missing"})()
_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
_BY_TEXT = (float, complex, fractions.Fraction, decimal.Decimal, slice)
_DATES = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo)
_SYMBOLS = (Value, Site, FieldSymbol, SumSymbol, RandomSymbol)
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
_OF_COMPILED = (types.GetSetDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType)
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
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_NUMBERS = (int, float, complex, str, bytes)  # whose subclasses may have attributes


class Watch:
    """What one trace saw. `unchanged` is cheap where the same objects are where they were."""

    def __init__(self, observation: Observation, statics: Iterable[Any], name: str):
        user, library = observation.of("user"), observation.of("library")
        self._name = name
        self._codes = {id(code): code for code, _ in user + library}
        names, foreign = (
            frozenset().union(*(mentioned(code).attributes for code, _ in codes)) for codes in (user, library)
        )
        names |= observation.looked_up["user"]
        foreign |= observation.looked_up["library"]
        self._names = tuple(sorted((names | foreign) - DYNAMIC))
        self._foreign = foreign - names
        for hiding in sorted(names & HIDING):
            raise TraceError(
                f"{name} captures what can be seen through {hiding}, which jali cannot watch for changes; mention what is "
                "needed by its name, or pass it as an argument"
            )
        self._any = observation.any_attribute or bool(DYNAMIC & names)
        self.given = (*statics, *observation.asked)
        self._roots = self._find_roots(user, library)
        known = self._any
        walk = _Walk(self)
        if self._any != known:
            walk = _Walk(self)
        self._check_closures(user, walk)
        self._records, self._rows, self._looks = walk.records, walk.rows, walk.looks

    def __len__(self) -> int:
        """Number of objects that are watched."""
        return len(self._records)

    def unchanged(self) -> bool:
        """Whether the function would see now what it saw then."""
        if not self._rows.check():
            return self._equal()
        for look, seen in self._looks:
            now = look()
            if len(now) != len(seen) or not all(map(operator.is_, now, seen)):
                return self._equal()
        return True

    def _equal(self) -> bool:
        """The same for objects that are other objects of equal contents, such as numbers that were computed again."""
        try:
            walk = _Walk(self)
        except TraceError:  # something new that cannot be watched: a new trace says so
            return False
        if walk.records != self._records:
            return False
        self._rows, self._looks = walk.rows, walk.looks
        return True

    def _find_roots(self, user: Any, library: Any) -> list[tuple[Any, tuple[str, ...]]]:
        """Dictionaries of modules, and the names in them that the code mentions."""
        spaces: dict[int, tuple[Any, set[str]]] = {id(sys.modules): (sys.modules, set())}
        for code, space in user:
            names = mentioned(code).names
            spaces.setdefault(id(space), (space, set()))[1].update(names)
            spaces.setdefault(id(vars(builtins)), (vars(builtins), set()))[1].update(names - space.keys())
            for level, module in mentioned(code).imports:
                spaces[id(sys.modules)][1].update(imported(level, module, space))
        if any(space is os.__dict__ for _, space in library):
            spaces.setdefault(id(os.__dict__), (os.__dict__, set()))[1].add("environ")
        return [(space, tuple(sorted(names))) for space, names in spaces.values() if names]

    def _check_closures(self, user: Any, walk: _Walk) -> None:
        """Refuses functions that ran, have closures, and are nowhere where they can be looked at again."""
        inner: set[int] = set()
        for code, _ in user:
            _add_inner(code, inner)
        for code, _ in user:
            hidden = code.co_freevars not in ((), ("__class__",))
            if hidden and id(code) not in inner and id(code) not in walk.functions:
                raise TraceError(
                    f"{self._name} calls {code.co_qualname} in a way that "
                    f"hides its closure ({', '.join(code.co_freevars)}); call it by name, or pass it as an argument\n"
                    f"  at {code.co_filename}:{code.co_firstlineno}"
                )


class _Walk:
    """Everything that can be reached now: `records` to compare by value, `rows` and `looks` to compare by identity.

    A row is a look that the core does.
    """

    def __init__(self, watch: Watch):
        self.watch = watch
        self.records: list[Any] = []
        self.rows = _core.Unchanged(_MISSING)
        self.looks: list[tuple[Look, tuple[Any, ...]]] = []
        self.functions: set[int] = set()  # codes of functions that were reached
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []  # so that no id is used twice
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self.records.append([self._value("an argument", given, True) for given in watch.given])
        for space, names in watch._roots:
            look = functools.partial(_lookup, space, names)
            self._node(names, "root", look, True, ("names", space, names))
        while self._waiting:
            self._waiting.popleft()()
            if len(self._numbers) > _MOST_OBJECTS:
                raise self._refusal("objects without end", f"more than {_MOST_OBJECTS}")

    def _refusal(self, path: str, what: str) -> TraceError:
        return TraceError(
            f"{self.watch._name} captures {path}, {what}, which jali cannot watch for changes; pass the numbers that are needed "
            "as arguments, larger arrays as fields"
        )

    def _node(self, paths: Iterable[str], kind: Any, look: Look, strict: bool, row: Any) -> None:
        """A thing made of what `look` returns. `row`: what the core needs to look by itself, or `_FIXED` if none must."""
        seen = look()
        if row is None:
            self.looks.append((look, seen))
        elif row is not _FIXED:
            holder, of, names = row
            self.rows.add(holder, of, names, seen)
        record = [kind]
        self.records.append(record)
        for path, value in zip(paths, seen, strict=False):
            _, dot, name = path.rpartition(".")
            foreign = (
                bool(dot) and name in self.watch._foreign
            )  # an attribute that no code of the user mentions
            record.append(self._value(path, value, strict and not foreign))

    def _later(
        self, value: Any, paths: Iterable[str], look: Look, kind: Any, strict: bool, row: Any = None
    ) -> tuple[str, int]:
        number = self._numbers[id(value)] = len(self._numbers)
        self._held.append(value)
        self._waiting.append(lambda: self._node(paths, (number, kind), look, strict, row))
        return "node", number

    def _value(self, path: str, value: Any, strict: bool) -> Any:
        """What identifies a value: itself where it cannot change, else the number of its node."""
        kind = type(value)
        if kind in _PLAIN or value is _MISSING:
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
                f"{self.watch._name} keeps a symbol of the trace in {path}; symbols mean nothing once the function has returned"
            )
        return self._compound(path, value, kind, strict)

    def _same(self, value: Any) -> Any:
        """What is known by its identity."""
        self._held.append(value)
        return "is", id(value)

    def _compound(self, path: str, value: Any, kind: type, strict: bool) -> Any:
        names = self.watch._names
        if isinstance(value, types.ModuleType):
            whose, top = origin(value.__dict__), value.__name__.partition(".")[0]
            mine = whose == "user"
            if top == "jali" or whose == "machinery" or (top in _QUIET and not mine):
                return "module", value.__name__
            if mine and self.watch._any:
                return self._later(value, *_everything(path, value.__dict__, names), "module", strict=False)
            paths = [f"{path}.{n}" for n in names]
            look = functools.partial(_lookup, value.__dict__, names)
            return self._later(value, paths, look, "module", mine, ("names", value.__dict__, names))
        if isinstance(value, types.FunctionType):
            return self._function(path, value)
        if isinstance(value, types.MethodType):
            return self._later(
                value, (path, path), lambda: (value.__func__, value.__self__), "method", strict, _FIXED
            )
        if isinstance(value, _BOUND):
            owner = value.__self__
            if value.__name__ in DYNAMIC:
                self.watch._any = True  # names that no code mentions
            if owner is None or isinstance(owner, types.ModuleType):
                return self._same(value)
            return self._later(value, (path,), lambda: (owner,), (kind, value.__name__), strict, _FIXED)
        if isinstance(value, functools.partial):
            paths, looks, _ = self._attributes(path, value)
            looks.append(lambda: (value.func, value.args, value.keywords))
            return self._later(value, [*paths, *(path,) * 3], _chained(looks), kind, strict)
        if isinstance(value, super):
            above: Any = value
            return self._later(
                value, (path,) * 2, lambda: (above.__thisclass__, above.__self__), kind, strict, _FIXED
            )
        if isinstance(value, _LRU):
            return self._later(
                value, (path, path), lambda: (value.__wrapped__, value.cache_info().misses), kind, strict
            )
        if isinstance(value, property):
            return self._later(value, (path,) * 2, lambda: (value.fget, value.fset), kind, strict, _FIXED)
        if isinstance(value, staticmethod | classmethod):
            return self._later(value, (path,), lambda: (value.__func__,), kind, strict, _FIXED)
        if isinstance(value, contextvars.ContextVar):
            return self._later(value, (path,), lambda: (value.get(_MISSING),), kind, strict)
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
        ran = id(value.__code__) in self.watch._codes
        if not ran and not value.__dict__:
            return self._same(value)
        if ran:
            self.functions.add(id(value.__code__))
        names = self.watch._names
        paths = ["code", path, path, *value.__code__.co_freevars, *(f"{path}.{n}" for n in names)]

        def look() -> tuple[Any, ...]:
            cells = map(_content, value.__closure__ or ())
            own = _lookup(value.__dict__, names) if value.__dict__ else ()
            return (value.__code__, value.__defaults__, value.__kwdefaults__, *cells, *own)

        row = ("function", value, ()) if not value.__dict__ else None
        return self._later(value, paths, look, ("function", id(value.__globals__)), ran, row)

    def _array(self, path: str, value: np.ndarray | np.void, strict: bool) -> Any:
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:  # with attributes of its own
            paths, looks, _ = self._attributes(path, value)
            numbers = value.view(np.ndarray)
            looks.append(lambda: (numbers,))
            return self._later(value, [*paths, path], _chained(looks), "array", strict)
        if value.size > _LARGEST_ARRAY:
            if not strict:
                return self._same(value)
            raise self._refusal(path, f"an array of {value.size} numbers")
        if value.dtype.hasobject:
            if isinstance(value, np.void) or value.dtype.kind == "V":
                raise self._refusal(path, "a structure of NumPy that holds objects")
            look = lambda: tuple(value.ravel())  # noqa: E731
            return self._later(value, itertools.repeat(path), look, ("array", value.shape), strict=True)
        return self._bytes(value, lambda: (value.shape, value.dtype, value.tobytes()))

    def _bytes(self, value: Any, contents: Callable[[], Any]) -> Any:
        """What is compared byte by byte."""
        last = [contents()]

        def look() -> tuple[Any, ...]:
            now = contents()
            if now != last[0]:
                last[0] = now
            return (last[0],)

        self.looks.append((look, look()))
        self._held.append(value)
        self._numbers[id(value)] = len(self._numbers)
        self.records.append(("bytes", last[0]))
        return "node", self._numbers[id(value)]

    def _container(self, path: str, value: Any, kind: type, strict: bool) -> Any:
        if value is sys.modules or len(value) > _MOST_OBJECTS:
            raise self._refusal(
                path, "the table of all modules" if value is sys.modules else f"{len(value)} elements"
            )
        parts: list[Look] = [lambda: tuple(value)]
        paths: list[str] = [f"{path}[{k}]" for k in range(len(value))]
        if isinstance(value, dict | types.MappingProxyType):
            parts.append(lambda: tuple(value.values()))
            paths = [f"a key of {path}"] * len(value) + [f"{path}[{k!r}]" for k in value]
        if kind not in _CONTAINERS:
            more, looks, _ = self._attributes(path, value)
            paths += more
            parts += looks
        look = parts[0] if len(parts) == 1 else _chained(parts)
        rows: dict[type, Any] = {
            list: ("list", value, ()),
            dict: ("dictionary", value, ()),
            tuple: _FIXED,
            frozenset: _FIXED,
        }
        row = rows.get(kind)
        return self._later(value, paths, look, (kind.__qualname__, len(value)), strict, row)

    def _class(self, path: str, value: type) -> Any:
        space = getattr(sys.modules.get(value.__module__), "__dict__", {"__name__": value.__module__})
        if _compiled(value) or value.__module__.partition(".")[0] == "jali" or origin(space) != "user":
            return self._same(value)
        special = (
            n for n, entry in vars(value).items() if _is_special_method(n, entry)
        )  # operators call these
        names = (*self.watch._names, *special)
        kind = ("class", id(value))
        above = [*(base.__name__ for base in value.__bases__), path]
        if self.watch._any:
            paths, look = _everything(path, value.__dict__, names)
            return self._later(
                value, paths + above, lambda: (*look(), *value.__bases__, type(value)), kind, strict=False
            )
        return self._later(
            value,
            [*(f"{path}.{n}" for n in names), *above],
            lambda: (*_lookup(value.__dict__, names), *value.__bases__, type(value)),
            kind,
            strict=True,
            row=("type", value, names),
        )

    def _attributes(self, path: str, value: Any) -> tuple[list[str], list[Look], Any]:
        """Paths and looks at what an object of Python holds, as far as the code mentions it, and its class; its row if there is one."""
        kind = type(value)
        names = self.watch._names
        slots = [
            (name, slot)
            for base in kind.__mro__
            for name, slot in vars(base).items()
            if isinstance(slot, types.MemberDescriptorType) and (self.watch._any or name in names)
        ]
        paths = [kind.__name__, *(f"{path}.{n}" for n, _ in slots)]
        looks: list[Look] = [lambda: (type(value), *[_slot(slot, value) for _, slot in slots])]
        row = None
        if _dict_of(value) is not None:
            if self.watch._any:
                more, _ = _everything(path, _dict_of(value), names)
                paths += more
                looks.append(lambda: _everything(path, _dict_of(value), names)[1]())
            else:
                paths += [f"{path}.{n}" for n in names]
                looks.append(lambda: _lookup(_dict_of(value), names))
                if not slots and not isinstance(value, threading.local):
                    row = ("object", value, names)
        return paths, looks, row

    def _object(self, path: str, value: Any, kind: type, strict: bool) -> Any:
        if kind.__module__ in ("jali.lattice.field", "jali.lattice.lattice") and hasattr(value, "serial"):
            # Fields are arguments and lattices are fixed; what a program adds to them is not.
            names, own = self.watch._names, vars(value)
            look = functools.partial(_lookup, own, names)
            paths = [f"{path}.{n}" for n in names]
            return self._later(value, paths, look, (kind, value.serial), strict, ("names", own, names))
        if "__wrapped_site_function__" in (_dict_of(value) or ()):
            paths, looks, _ = self._attributes(path, value)
            looks.append(lambda: (value.function,))
            return self._later(value, [*paths, path], _chained(looks), "site function", strict)
        if isinstance(value, operator.attrgetter | operator.methodcaller):
            self.watch._any = True  # names that no code mentions
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
        if not all(_open_to_view(part) for part in kind.__mro__):
            if hasattr(kind, "__array__"):
                return self._bytes(value, lambda: _bytes_of_array(np.asarray(value)))
            with contextlib.suppress(TypeError, ValueError, BufferError):
                if memoryview(value).nbytes <= 8 * _LARGEST_ARRAY and not _points(memoryview(value).format):
                    return self._bytes(value, lambda: bytes(memoryview(value)))
            # Descriptors have no number of their own; a second trace shows what iterators do.
            known = hasattr(kind, "__get__") or hasattr(kind, "__next__") or _FUNCTION.search(kind.__name__)
            if strict and not known:
                raise self._refusal(path, f"a {kind.__module__}.{kind.__qualname__}")
            if _dict_of(value) is None:
                return self._same(value)
        base = [plain.__repr__(value) for plain in _NUMBERS if isinstance(value, plain)]
        paths, looks, row = self._attributes(path, value)
        if isinstance(value, BaseException):
            paths, looks, row = [*paths, path], [*looks, lambda: (value.args,)], None
        return self._later(value, paths, _chained(looks), ("object", kind.__qualname__, base), strict, row)


def watched(
    function: Callable[..., Any], statics: Iterable[Any], work: Callable[[], list[SiteProgram]]
) -> tuple[list[SiteProgram], Watch]:
    """Programs that `work` makes by tracing `function`, and the watch over what it saw; `statics`: arguments that are no symbols.

    It is traced twice, since what a function takes from an iterator, a clock or a source of random numbers is only seen so.
    Raises TraceError for what cannot be watched, and for a function whose formula is another each time.
    """
    observation = Observation()
    programs = observation.run(work)
    watch = Watch(observation, [function, *statics], function.__name__)
    where = inspect.unwrap(function)
    code = getattr(where, "__func__", where).__code__
    advice = (
        "take what changes by itself (random numbers, iterators, counters, times) outside, and pass it as an argument\n"
        f"  at {code.co_filename}:{code.co_firstlineno}"
    )
    try:
        again = work()
    except Exception as error:
        raise TraceError(f"{function.__name__} cannot be traced a second time ({error}); {advice}") from error
    if _signature(programs) != _signature(again):
        raise TraceError(f"{function.__name__} is another formula each time it is traced; {advice}")
    if not watch.unchanged():
        raise TraceError(
            f"{function.__name__} changes what it sees (a global, a list, an attribute) each time it is traced; {advice}"
        )
    return programs, watch


def _signature(programs: list[SiteProgram]) -> Any:
    """What programs compute, comparable with `==`."""
    numbers: dict[int, int] = {}
    nodes: list[Any] = []

    def number(top: Any) -> int:
        waiting = [top]
        while waiting:
            node = waiting[-1]
            missing = [a for a in node.args if id(a) not in numbers]
            if id(node) in numbers or missing:
                waiting.extend(missing)
                if id(node) in numbers:
                    waiting.pop()
                continue
            waiting.pop()
            numbers[id(node)] = len(nodes)
            nodes.append((node.op, tuple(numbers[id(a)] for a in node.args), repr(node.attrs), node.type))
        return numbers[id(top)]

    effects = [
        (
            p.name,
            p.shift,
            [(type(e).__name__, e.slot, getattr(e, "offset", ()), number(e.value)) for e in p.effects],
        )
        for p in programs
    ]
    loops = [[(loop.limit, loop.first_draw, loop.draws) for loop in p.loops] for p in programs]
    return nodes, effects, loops


def _add_inner(code: types.CodeType, found: set[int]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.add(id(constant))
            _add_inner(constant, found)


def _lookup(space: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(map(space.get, names, itertools.repeat(_MISSING)))


def _everything(path: str, space: Any, special: tuple[str, ...]) -> tuple[list[str], Look]:
    """Paths of, and a look at, all names and values of a dictionary of attributes; of Python's own names, the `special` ones."""

    def present() -> list[str]:
        return [n for n in space if not n.startswith("__") or n in special or _is_special_method(n, space[n])]

    def look() -> tuple[Any, ...]:
        now = present()
        return (*now, *map(space.get, now))

    names = present()

    return [f"a name of {path}"] * len(names) + [f"{path}.{n}" for n in names], look


def _is_special_method(name: str, entry: Any) -> bool:
    return name.startswith("__") and isinstance(entry, types.FunctionType)


def _chained(looks: list[Look]) -> Look:
    """One look at what several look at."""
    return lambda: tuple(itertools.chain.from_iterable([look() for look in looks]))


def _points(form: str) -> bool:
    """Whether a buffer of this format (of `struct`, names between colons) holds addresses, whose contents are elsewhere."""
    return not set("&OPXZz").isdisjoint(re.sub(":[^:]*:", "", form))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _MISSING


def _dict_of(value: Any) -> Any:
    """The attributes that an object itself has, by no code of the user; None if it has no place for any."""
    if isinstance(value, threading.local):
        return value.__dict__
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _bytes_of_array(array: np.ndarray) -> Any:
    return array.shape, array.dtype, array.tobytes()


@functools.lru_cache(maxsize=1024)
def _compiled(kind: type) -> bool:
    """Whether a class is made by compiled code, not by Python's `class`."""
    if not kind.__flags__ & 1 << 9:  # Py_TPFLAGS_HEAPTYPE
        return True
    loader = getattr(getattr(sys.modules.get(kind.__module__), "__spec__", None), "loader", None)
    return (
        loader is BuiltinImporter
        or isinstance(loader, ExtensionFileLoader)
        or any(
            isinstance(entry, _OF_COMPILED)
            and entry.__objclass__ is kind
            and name not in ("__dict__", "__weakref__")
            for name, entry in vars(kind).items()
        )
    )


def _open_to_view(kind: type) -> bool:
    """Whether all that a base class adds to its objects is watched, or holds no numbers."""
    return (
        not _compiled(kind)
        or kind in (object, types.SimpleNamespace, threading.local, *_NUMBERS)
        or issubclass(kind, BaseException)
        or kind.__module__.partition(".")[0] in ("_thread", "_io", "_random", "typing", "operator", "jali")
        or kind.__module__.startswith("numpy.random")
    )
