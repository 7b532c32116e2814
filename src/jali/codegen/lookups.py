"""Looking into dictionaries, attributes, cells and arrays without calling anything of the user's."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import sys
import threading
import types
from collections.abc import Callable, Iterable
from importlib.machinery import BuiltinImporter, ExtensionFileLoader
from typing import Any

import numpy as np

Probe = Callable[[], tuple[Any, ...]]

MISSING = type("Missing", (), {"__repr__": lambda self: "missing"})()
NUMBERS = (int, float, complex, str, bytes)  # whose subclasses may have attributes
_OF_COMPILED = (types.GetSetDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType)


def lookup(space: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The entries of these names, MISSING for those that are not there."""
    return tuple(map(space.get, names, itertools.repeat(MISSING)))


def everything(
    path: str, space: Any, special: tuple[str, ...], all_of_python: bool = False
) -> tuple[list[str], Probe]:
    """Paths of, and a probe for, all names and values of a dictionary of attributes; of Python's own names, the `special` ones and methods,
    or all."""

    def present() -> list[str]:
        own = [n for n in space if all_of_python or n in special or is_special_method(n, space[n])]
        return list(dict.fromkeys([*(n for n in space if not n.startswith("__")), *own]))

    def probe() -> tuple[Any, ...]:
        now = present()
        return (*now, *map(space.get, now))

    names = present()
    return [f"a name of {path}"] * len(names) + [f"{path}.{n}" for n in names], probe


def is_special_method(name: str, entry: Any) -> bool:
    """Whether operators may call what a class has under this name."""
    return name.startswith("__") and isinstance(entry, types.FunctionType)


def chained(probes: list[Probe]) -> Probe:
    """One probe for what several return."""
    return lambda: tuple(itertools.chain.from_iterable([probe() for probe in probes]))


def points(form: str) -> bool:
    """Whether a buffer of this format (of `struct`, names between colons) holds addresses, whose contents are elsewhere."""
    return not set("&OPXZz").isdisjoint(re.sub(":[^:]*:", "", form))


def content_of(cell: types.CellType) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def parts_of_function(function: types.FunctionType) -> tuple[Any, ...]:
    """What a call of it takes from elsewhere: code, defaults, keyword defaults, the variables of its closure."""
    cells = map(content_of, function.__closure__ or ())
    return (function.__code__, function.__defaults__, function.__kwdefaults__, *cells)


def described_by(value: Any, names: Iterable[str]) -> tuple[Any, ...]:
    """Attributes by which Python describes functions and classes; MISSING for those that are not there, or cannot be made (annotations)."""
    found = []
    for name in names:
        try:
            found.append(getattr(value, name))
        except Exception:
            found.append(MISSING)
    return tuple(found)


def is_slot(entry: Any) -> bool:
    """Whether an entry of a class is one of its `__slots__`, or what a type variable has in place of one since Python 3.12."""
    return isinstance(entry, types.MemberDescriptorType) or (
        isinstance(entry, types.GetSetDescriptorType) and entry.__objclass__.__module__ == "typing"
    )


def slot_of(slot: Any, value: Any) -> Any:
    """What an object keeps in one of its `__slots__`. A bound that is written as `[T: bound]` can fail to be made."""
    try:
        return slot.__get__(value)
    except Exception:
        return MISSING


def kept_by(cached: Any) -> tuple[Any, ...]:
    """What a cache of `functools` holds: its results with the arguments that they are of, in an order that hits leave as it is.

    Without a bound the cache is one dictionary. With one, its dictionary leads to links that cannot be looked into, and
    the results are the cache's own.
    """
    held = [one for one in gc.get_referents(cached) if not isinstance(one, type | types.ModuleType)]
    plain = [one for one in held if one is not cached.__wrapped__ and one is not cached.__dict__]
    return tuple(sorted(plain, key=id))


def dict_of(value: Any) -> Any:
    """The attributes that an object itself has, by no code of the user; None if it has no place for any."""
    if isinstance(value, threading.local):
        return value.__dict__
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def bytes_of_array(array: np.ndarray) -> Any:
    """An array as a value that can be compared."""
    return array.shape, array.dtype, array.tobytes()


@functools.lru_cache(maxsize=1024)
def is_compiled(kind: type) -> bool:
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


def open_to_view(kind: type) -> bool:
    """Whether all that a base class adds to its objects can be guarded, or holds no numbers."""
    return (
        not is_compiled(kind)
        or kind in (object, types.SimpleNamespace, threading.local, *NUMBERS)
        or issubclass(kind, BaseException)
        or kind.__module__.partition(".")[0] in ("_thread", "_io", "_random", "typing", "operator", "jali")
        or kind.__module__.startswith("numpy.random")
    )
