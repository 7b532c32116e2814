"""Sums, maxima and minima over sites: how they are asked for, and their values as numbers and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jali.codegen.ir import Sum
from jali.codegen.lines import trace_error
from jali.codegen.types import Type
from jali.errors import ParameterError
from jali.lattice.domain import Domain
from jali.lattice.expressions import MOST_SUMS


class Sums(NamedTuple):
    """How the sums of a call are taken: per slice of a direction or over all sites; reproducibly or fast; waited for, or as Scalars; `only`:
    nothing but sums."""

    per: int | None = None
    fast: bool = False
    wait: bool = True
    only: bool = False


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


def check_kinds(program: Any) -> None:
    """Raises TraceError where a call that only sums is given a function that compares."""
    for effect in program.effects:
        if isinstance(effect, Sum) and effect.how != "sum":
            what = {"max": "maximum", "min": "minimum"}[effect.how]
            raise trace_error(
                f"lattice.sum sums, and {program.name} takes a {what} (at {effect.where}): call lattice.reduce({program.name}, ...)"
            )


def check_occupied(program: Any, lattice: Any, domain: Domain, per: int | None) -> None:
    """Collective: ParameterError for a maximum or minimum of no sites at all. Slices of a direction are looked at one by one."""
    compared = [effect for effect in program.effects if isinstance(effect, Sum) and effect.how != "sum"]
    if not compared or (found := lattice.occupied(domain, per)).all():
        return
    empty = np.flatnonzero(~found).tolist()
    where = f"{domain} has no sites"
    if per is not None:
        shown = ", ".join(map(str, empty[:4])) + (", ..." if len(empty) > 4 else "")
        where += f" in {'slice' if len(empty) == 1 else 'slices'} {shown} of direction {per}"
    raise ParameterError(
        f"{program.name} takes a maximum or minimum, but {where} of {lattice}, and of no numbers there is none; choose another domain\n"
        f"  at {compared[0].where}"
    )


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
            if type.kind != "real":
                part = np.ascontiguousarray(part).view(np.complex128 if type.kind == "complex" else np.int64)
            part = part.reshape(part.shape[:-1] + type.shape)
            out.append(part.item() if not type.shape and not per_slice else part.copy())
        return out[0] if len(out) == 1 else tuple(out)

    # The usual cases without arrays: a solver asks for a number thousands of times, and on a device nothing hides this.
    if per_slice or any(type.shape for type in types):
        return parts
    if len(types) == 1:
        return {"complex": _complex_number, "real": _number}.get(types[0].kind, parts)
    return parts if any(type.kind != "real" for type in types) else _numbers


def as_reals(types: Sequence[Type], values: np.ndarray) -> list[float]:
    """The doubles that a launch returns for sums that become Scalars; whole numbers become real ones."""
    reals = np.asarray(values)
    first = 0
    for type in types:
        if type.kind == "int":
            reals[first] = reals[first : first + 1].view(np.int64)[0]
        first += type.reals
    return list(reals.tolist())


def _number(values: np.ndarray) -> Any:
    return values.item()


def _complex_number(values: np.ndarray) -> complex:
    return complex(*values.tolist())


def _numbers(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())
