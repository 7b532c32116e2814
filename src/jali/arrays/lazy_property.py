"""Lazy properties: computed at their first use, by messages to the other ranks if need be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class lazy_property:  # noqa: N801 (a decorator)
    """As `functools.cached_property`, without its lock, which all objects of a class share in Python 3.11: a virtual rank that
    waits for the others would block their access."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self.function(instance)
        setattr(instance, self.name, value)  # which is found first from now on
        return value
