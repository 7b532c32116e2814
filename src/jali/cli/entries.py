"""Checks of what stands in the tables of a list of tables of a parameter file, such as [[hmc.terms]]: keys, names, numbers.

Each raises ValueError with what is wrong and what would be right; the schema says where.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jali.files import shown, value_shown


def refuse_unknown_keys(given: Iterable[str], what: str, own: Sequence[str], beside: Sequence[str]) -> None:
    """Raises ValueError for keys that are not `own` ones; `beside` are others of the table, for what would be right."""
    for key in given:
        if key not in own:
            raise ValueError(
                f'{what} has no key "{shown(key, 40)}"; {suggestion(key, [*own, *beside], "its keys are")}'
            )


def suggestion(name: str, known: Sequence[str], list_begins: str) -> str:
    """The known name that is nearest to one that is not known, or all of them."""
    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    return f'did you mean "{near[0]}"?' if near else f"{list_begins} {', '.join(known)}"


def choice(what: str, value: Any, names: Sequence[str]) -> str:
    """One of some names."""
    if not isinstance(value, str) or value not in names:
        said = "is missing" if value is None else f"is not {value_shown(value)}"
        raise ValueError(f"{what} {said}; it is one of {', '.join(names)}")
    return value


def number(what: str, value: Any) -> float:
    """A finite number."""
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond floats
        pass
    raise ValueError(f"{what} is a finite number, not {value_shown(value)}")


def whole_number(what: str, value: Any) -> int:
    """An integer of 32 bits."""
    if type(value) is int and abs(value) < 2**31:
        return value
    raise ValueError(f"{what} is a whole number, not {value_shown(value)}")


def text(what: str, value: Any) -> str:
    """A string."""
    if isinstance(value, str):
        return value
    raise ValueError(f"{what} is a text, not {value_shown(value)}")


def numbers(what: str, value: Any) -> list[float]:
    """A list of finite numbers."""
    if isinstance(value, list | tuple):
        return [number(what, one) for one in value]
    raise ValueError(f"{what} is a list of numbers, not {value_shown(value)}")
