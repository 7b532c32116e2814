"""Arguments that contradict a function's annotations: an error that names function, parameter and the accepted types.

`checked` reads the annotations that are one or several of `int`, `float`, `str`, `None` and classes that the module of the
function knows; others (`Any`, iterables) are not checked. For functions that users call occasionally, not for those in
inner loops.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from jali import keywords
from jali.errors import ParameterError
from jali.files import value_shown

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_PLAIN: dict[str, tuple[type, str]] = {
    "int": (numbers.Integral, "a whole number"),
    "float": (numbers.Real, "a real number"),
    "str": (str, "a string"),
    "None": (type(None), "None"),
}


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator: raises ParameterError for arguments of another type than annotated (no flag is a number)."""
    signature = inspect.signature(function)
    wanted: dict[str, tuple[tuple[type, ...], str]] | None = None
    renamed = keywords.named(function)

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        nonlocal wanted
        if wanted is None:  # by the first call, when all classes of the module exist
            wanted = _wanted(function, signature)
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError:
            return renamed(*arguments, **named)  # which names what is missing, or what does not exist
        for name, value in given.items():
            if name in wanted and (not isinstance(value, wanted[name][0]) or isinstance(value, bool)):
                raise ParameterError(
                    f"{function.__qualname__}: {name} is {wanted[name][1]}, not {value_shown(value)}"
                )
        return function(*arguments, **named)

    return call


def _wanted(
    function: Callable[..., Any], signature: inspect.Signature
) -> dict[str, tuple[tuple[type, ...], str]]:
    found = {}
    for name, parameter in signature.parameters.items():
        choices = [
            _PLAIN.get(word) or _class(getattr(function, "__globals__", {}).get(word), word)
            for word in str(parameter.annotation).split(" | ")
        ]
        if all(choices):
            found[name] = (tuple(c[0] for c in choices if c), " or ".join(c[1] for c in choices if c))
    return found


def _class(found: Any, name: str) -> tuple[type, str] | None:
    article = "an" if name[0] in "AEIO" else "a"
    return (found, f"{article} {name}") if isinstance(found, type) and found is not Any else None
