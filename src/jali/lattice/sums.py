"""Sums over sites: how they are asked for, and their values as numbers and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jali.codegen.lines import trace_error
from jali.codegen.types import Type
from jali.lattice.domain import Domain
from jali.lattice.expressions import MOST_SUMS


class Sums(NamedTuple):
    """How the sums of a call are taken: per slice of a direction or over all sites; reproducibly or fast; waited for, or as Scalars."""

    per: int | None = None
    fast: bool = False
    wait: bool = True


def as_site_function(function: Any, call: str) -> Any:
    """`function` if it is a site function. Raises TraceError at the user's line, a sentence that begins with `call`."""
    if hasattr(function, "__wrapped_site_function__"):
        return function
    shown, hint = repr(function), ""
    if isinstance(getattr(function, "domain", None), Domain):
        shown = f"{function.function.__name__}[{function.domain}]"
        hint = f"; where it runs is an argument of its own, {call}({function.function.__name__}, ..., over={function.domain})"
    elif hasattr(function, "element"):
        hint = "; to sum a field, write a function with total += f[X]"
    elif callable(function) and hasattr(function, "__name__"):
        shown, hint = function.__name__, f"; decorate {function.__name__} with @jali.site_function"
    raise trace_error(f"{call} takes a site function, not {shown}{hint}")


def check_scalars(name: str, types: Sequence[Type], per_slice: bool) -> None:
    """Raises TraceError for sums that cannot stay where they are made."""
    if per_slice or any(type.shape for type in types):
        what = "per slice" if per_slice else "of vectors and matrices"
        raise trace_error(
            f"{name}: wait=False gives Scalars, real and complex numbers; sums {what} are waited for"
        )
    if (count := sum(type.reals for type in types)) > MOST_SUMS:
        raise trace_error(
            f"{name}: {count} real numbers are summed; with wait=False at most {MOST_SUMS} of one call"
        )


def values_as_asked(types: Sequence[Type], per_slice: bool) -> Callable[[np.ndarray], Any]:
    """What makes the doubles that a launch returns ([sums] or [slices][sums]) the numbers and arrays that were asked for."""

    def parts(values: np.ndarray) -> Any:
        out = []
        first = 0
        for type in types:
            part = values[..., first : first + type.reals]
            first += type.reals
            if type.kind == "complex":
                part = np.ascontiguousarray(part).view(np.complex128)
            part = part.reshape(part.shape[:-1] + type.shape)
            out.append(part.item() if not type.shape and not per_slice else part.copy())
        return out[0] if len(out) == 1 else tuple(out)

    # The usual cases without arrays: a solver asks for a number thousands of times, and on a device nothing hides this.
    if per_slice or any(type.shape for type in types):
        return parts
    if len(types) == 1:
        return _complex_number if types[0].kind == "complex" else _number
    return parts if any(type.kind == "complex" for type in types) else _numbers


def _number(values: np.ndarray) -> Any:
    return values.item()


def _complex_number(values: np.ndarray) -> complex:
    return complex(*values.tolist())


def _numbers(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())
