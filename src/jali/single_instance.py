"""A single-instance cache: its values are the same objects for all threads.

Ranks that are threads of a process bind launches together, each by the objects that it is given. `functools.cache` gives two
concurrent threads an object each, and both the later one from then on: one of them would then bind anew, and wait for a rank
that does not.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def single_instance(function: Function) -> Function:
    """`function`, which is called once for each of its arguments, by one thread at a time; for what makes site functions, domains,
    and what they are given. It must wait for no other rank."""
    cached, turn = functools.cache(function), threading.RLock()

    @functools.wraps(function)
    def known(*arguments: Any) -> Any:
        with turn:
            return cached(*arguments)

    return known  # type: ignore[return-value]
