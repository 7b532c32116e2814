"""Watches the numbers that a site function captures, so that a changed coupling is never stale.

A traced function may use numbers that are not its arguments: globals, closure cells, attributes of captured objects, and
the same in functions that it calls. They become constants of the kernel; before every run their values are compared
with those of the trace, and a change means a new trace.
"""

from __future__ import annotations

import functools
import numbers
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.codegen.directions import Offset
from jali.errors import TraceError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_QUIET_MODULES = {
    "jali",
    "numpy",
    "math",
    "cmath",
    "operator",
    "itertools",
    "functools",
    "builtins",
    "random",
}
_LARGEST_ARRAY = 4096


class Captured:
    """Everything that `function` can see besides its arguments, as far as it is numbers."""

    def __init__(self, function: Callable[..., Any]):
        self._getters: list[Callable[[], Any]] = []
        self._seen: set[Any] = set()  # functions, and objects with the names looked up on them
        self._function(function)

    def values(self) -> tuple[Any, ...]:
        """The present values, comparable with `==` and hashable."""
        return tuple([getter() for getter in self._getters])

    def _function(self, function: Any) -> None:
        function = getattr(function, "__wrapped_site_function__", function)
        if isinstance(function, types.MethodType):
            owner = function.__self__
            self._attributes(owner, lambda: owner, _names(function.__func__.__code__))
            function = function.__func__
        if not isinstance(function, types.FunctionType) or id(function) in self._seen:
            return
        self._seen.add(id(function))
        names = _names(function.__code__)
        if function.__defaults__ or function.__kwdefaults__:
            self._getters.append(lambda: _container((function.__defaults__, function.__kwdefaults__)))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self._watch(value, functools.partial(getattr, cell, "cell_contents"), name, names)
        space = function.__globals__
        for name in names:
            if name in space:
                self._watch(space[name], functools.partial(space.get, name), name, names)

    def _watch(self, value: Any, getter: Callable[[], Any], name: str, names: tuple[str, ...]) -> None:
        """Watches what `getter` returns, now `value`; `names` are the attributes that the code around it mentions."""
        if isinstance(value, (*_PLAIN, numbers.Number, np.generic, Offset)):
            self._getters.append(lambda: _plain(getter()))
        elif isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _QUIET_MODULES:
                self._attributes(value, getter, names)
        elif isinstance(value, types.FunctionType | types.MethodType) or hasattr(
            value, "__wrapped_site_function__"
        ):
            module = getattr(value, "__module__", "") or ""
            if isinstance(value, types.MethodType):  # bound anew at every look
                self._getters.append(lambda: id(getattr(getter(), "__func__", None)))
            else:
                self._getters.append(lambda: id(getter()))
            if not module.startswith("jali."):
                self._function(value)
        elif isinstance(value, list | tuple | dict | set | frozenset | np.ndarray):
            if isinstance(value, np.ndarray) and value.size > _LARGEST_ARRAY:
                raise TraceError(
                    f"the site function captures {name}, an array of {value.size} numbers; pass it as a field, or take what is needed"
                )
            self._getters.append(lambda: _container(getter()))
        elif isinstance(value, functools.partial):
            self._getters.append(lambda: _container((getter().args, getter().keywords)))
            self._watch(value.func, lambda: getattr(getter(), "func", None), name, names)
        elif not _foreign(value) and (id(value), names) not in self._seen:
            self._seen.add((id(value), names))
            # Not the identity of the object, which a property may make anew at every look, but what is seen through it.
            self._getters.append(lambda: type(getter()))
            call = getattr(type(value), "__call__", None)  # noqa: B004 - the code of the call, to see what it mentions
            if isinstance(call, types.FunctionType):
                names = tuple(dict.fromkeys(names + _names(call.__code__)))
            self._attributes(value, getter, names)

    def _attributes(self, value: Any, getter: Callable[[], Any], names: tuple[str, ...]) -> None:
        """Watches those attributes of an object, class or module that the code mentions."""
        for name in names:
            try:
                attribute = getattr(value, name)
            except Exception:  # an attribute of another object that happens to share the name
                continue
            self._watch(attribute, functools.partial(_attribute, getter, name), name, names)


def _foreign(value: Any) -> bool:
    """Objects that hold no couplings of a user: built-in functions, classes of jali, NumPy and the interpreter."""
    if isinstance(value, type):
        return value.__module__.partition(".")[0] in _QUIET_MODULES
    if callable(value) and not isinstance(getattr(type(value), "__call__", None), types.FunctionType):  # noqa: B004
        return True
    return type(value).__module__.partition(".")[0] in _QUIET_MODULES - {"jali"}


def _attribute(getter: Callable[[], Any], name: str) -> Any:
    return getattr(getter(), name, None)


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes used in a code object and in those defined inside it."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return tuple(dict.fromkeys(names))


def _plain(value: Any) -> Any:
    return (type(value).__name__, value)


def _container(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), value.tobytes())
    if isinstance(value, list | tuple):
        return tuple(_container(v) for v in value)
    if isinstance(value, set | frozenset):
        return frozenset(_container(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _container(v)) for k, v in value.items())
    if isinstance(value, (*_PLAIN, numbers.Number, np.generic, Offset)):
        return _plain(value)
    return id(value)
