"""Sums, maxima and minima over sites: how they are requested, and their values as numbers and arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from jali.codegen.ir import Sum
from jali.codegen.lines import trace_error
from jali.codegen.types import Type
from jali.errors import ParameterError, TraceError
from jali.files import value_shown
from jali.lattice.domain import Domain
from jali.lattice.scalar_parts import MOST_EXTENT, MOST_SUMS


class Sums(NamedTuple):
    """How the sums of a call are taken: per slice of one or more directions or over all sites; reproducibly or fast; waited for, or as Scalars; `only`:
    nothing but sums; `bins`: how many entries those have that have labels, by name if not all alike."""

    per: tuple[int, ...] | None = None
    fast: bool = False
    wait: bool = True
    only: bool = False
    bins: int | tuple[tuple[str, int], ...] | None = None


PLAIN_SUMS = Sums(only=True)

MOST_ENTRIES = 1 << 16
"""Of all accumulators of a call: a sum that does not depend on the order takes a kilobyte wherever it is."""


def as_bins(bins: Any) -> Any:
    """The argument `bins=`, where there is one, as `Sums` keeps it. Raises ParameterError."""

    def checked(count: Any, of: str) -> int:
        if (
            not isinstance(count, int | np.integer)
            or isinstance(count, bool)
            or not 1 <= count <= MOST_ENTRIES
        ):
            raise ParameterError(
                f"bins={of} is a number of entries from 1 to {MOST_ENTRIES}, not {value_shown(count)}"
            )
        return int(count)

    if not isinstance(bins, dict):
        return checked(bins, "")
    return tuple(sorted((str(name), checked(count, f"{{{name!r}: ...}}")) for name, count in bins.items()))


def entries_of(program: Any, sums: Sums | None) -> list[int]:
    """How many entries each accumulator of a program has, in the order of accumulators. Raises TraceError where `bins` does not fit."""
    entries = [1] * len(program.sums)
    labelled, bins = program.labelled, None if sums is None else sums.bins
    where = next((term.where for term in program.terms if term.label >= 0), "")
    if bins is None and labelled:
        name = next(iter(labelled))
        raise TraceError(
            f"{program.name} adds to entries, {name}[label] += ...; the call says how many there are: "
            f"lattice.sum({program.name}, ..., bins=10)\n  at {where}"
        )
    if bins is None:
        return entries
    counts = dict.fromkeys(labelled, bins) if isinstance(bins, int) else dict(bins)
    if set(counts) != set(labelled) or not labelled:
        given = "bins" if isinstance(bins, int) else f"bins of {', '.join(counts)}"
        has = (
            f"those with labels are {', '.join(labelled)}"
            if labelled
            else "none has labels (total[label] += ...)"
        )
        raise trace_error(f"{program.name} is given {given}, but of its sums {has}")
    assert sums is not None
    if sums.per is not None:
        name = next(iter(labelled))
        raise TraceError(
            f"{program.name} sums by label and per slice; make the slice a part of the label, "
            f"{name}[label + {counts[name]} * X.coordinate(mu)] += ..., with as many more bins\n  at {where}"
        )
    for name, slot in labelled.items():
        entries[slot] = counts[name]
    total = sum(n * t.reals for n, t in zip(entries, program.sums, strict=True))
    if total > MOST_ENTRIES:
        raise TraceError(
            f"{program.name} sums into {total} real numbers; by label at most {MOST_ENTRIES} of one call\n  at {where}"
        )
    return entries


class Gathering(NamedTuple):
    """The accumulators of a program, for the core's `Launch`: what each result is, and terms where there are labels."""

    reductions: list[str]
    terms: list[tuple[int, int, int, int]]  # first result, entries, label, group
    labels: int


def gathering_of(program: Any, sums: Sums | None) -> Gathering:
    """Results lie accumulator by accumulator, in each component by component, in each entry by entry. A group is an effect of the
    program, in order, so that labels that are of no entry are counted for each."""
    entries = entries_of(program, sums)
    if not program.labelled:
        reductions = program.reductions * (program.batch or 1)
        return Gathering([] if set(reductions) <= {"sum"} else reductions, [], 0)
    first = [0]
    for count, type in zip(entries, program.sums, strict=True):
        first.append(first[-1] + count * type.reals)
    how = ["sum"] * first[-1]
    terms, group = [], -1
    for term in program.terms:
        group += term.label >= 0
        for k in range(term.value.type.reals):
            count = entries[term.slot]
            at = first[term.slot] + k * count
            terms.append((at, count, term.label, group if term.label >= 0 else -1))
            how[at] = term.reduction
    return Gathering([] if set(how) <= {"sum"} else how, terms, 1 + max(term.label for term in program.terms))


def raise_if_left_out(program: Any, entries: Sequence[int], left_out: Sequence[int]) -> None:
    """Raises ParameterError if labels were of no entry; alike on all ranks, whose counts these are."""
    labelled = [term for term in program.terms if term.label >= 0]
    found: dict[str, tuple[int, int, str]] = {}
    for term, sites in zip(labelled, left_out, strict=True):
        if sites:
            found[term.name] = sites + found.get(term.name, (0,))[0], entries[term.slot], term.where
    if found:
        what = "; ".join(
            f"{count} labels of {name} are not among its entries, 0 to {n - 1}"
            for name, (count, n, _) in found.items()
        )
        raise ParameterError(
            f"{program.name}: {what}; give the call more bins, or the function other labels\n  at {next(iter(found.values()))[2]}"
        )


def as_site_function(function: Any, call: str) -> Any:
    """`function` if it is a site function. Raises TraceError at the user's line, a sentence that begins with `call`."""
    if hasattr(function, "__wrapped_site_function__"):
        return function
    shown, hint = value_shown(function), ""
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


def check_occupied(program: Any, lattice: Any, domain: Domain, per: tuple[int, ...]) -> None:
    """Collective: ParameterError for a maximum or minimum of no sites at all. Slices of directions are processed one by one."""
    compared = [effect for effect in program.effects if isinstance(effect, Sum) and effect.how != "sum"]
    if not compared or (found := lattice.occupied(domain, per)).all():
        return
    where = f"{domain} has no sites"
    if per:
        slices = np.argwhere(~found.reshape([lattice.extents[axis] for axis in per]))
        empty = [at[0] if len(per) == 1 else tuple(at) for at in slices[:5].tolist()]
        shown = ", ".join(map(str, empty[:4])) + (", ..." if len(empty) > 4 else "")
        where += f" in {'slice' if len(empty) == 1 else 'slices'} {shown} of {'direction' if len(per) == 1 else 'directions'} {', '.join(map(str, per))}"
    raise ParameterError(
        f"{program.name} takes a maximum or minimum, but {where} of {lattice}, and of no numbers there is none; choose another domain\n"
        f"  at {compared[0].where}"
    )


def check_staying(program: Any, slices: Sequence[int]) -> bool:
    """Whether sums that stay where they are made are arrays: those per slice (`slices`: of each direction), of vectors and matrices. Raises
    TraceError for those that cannot stay."""
    name, types = program.name, program.sums
    if program.labelled:
        raise trace_error(
            f"{name}: wait=False gives Scalars and arrays of numbers; sums by label are waited for"
        )
    count, most = sum(type.reals for type in types), MOST_SUMS
    if arrays := bool(slices) or any(type.shape for type in types):
        shapes = [(*slices, *type.shape) for type in types]
        if set(program.reductions) != {"sum"} or any(
            len(s) > 2 or max(s, default=1) > MOST_EXTENT for s in shapes
        ):
            raise trace_error(
                f"{name}: wait=False gives arrays of sums, vectors and matrices of extents up to {MOST_EXTENT}, not those of shape "
                f"{' and '.join(map(str, dict.fromkeys(shapes)))} or of maxima and minima; these are waited for"
            )
        count, most = count * math.prod(slices), 2 * MOST_EXTENT**2
    if count > most:
        raise trace_error(
            f"{name}: {count} real numbers are summed; with wait=False at most {most} of one call"
        )
    return arrays


def in_requested_types(
    types: Sequence[Type], slices: Sequence[int], entries: Sequence[int], labelled: Collection[int]
) -> Callable[[np.ndarray], Any]:
    """Converts the doubles that a launch returns ([sums] or [slices][sums]) to the requested numbers and arrays. `slices`: of
    each direction, and the members of a batch; none for sums over all sites. Accumulators in the slots `labelled` are arrays of `entries`."""

    def of_entries(values: np.ndarray) -> Any:
        out = []
        first = 0
        for slot, (type, count) in enumerate(zip(types, entries, strict=True)):
            part = values[first : first + type.reals * count].reshape(type.reals, count).T
            first += type.reals * count
            found = np.ascontiguousarray(_of_type(part, type))
            out.append(found if slot in labelled else found[0].copy() if type.shape else found.item())
        return out[0] if len(out) == 1 else tuple(out)

    def parts(values: np.ndarray) -> Any:
        out = []
        first = 0
        values = values.reshape(-1, sum(type.reals for type in types))
        for type in types:
            part = values[..., first : first + type.reals]
            first += type.reals
            part = _of_type(part, type)
            part = part.reshape((*slices, *type.shape))
            out.append(part.copy() if part.shape else part.item())
        return out[0] if len(out) == 1 else tuple(out)

    if labelled:
        return of_entries
    # The usual cases without arrays: a solver requests a number thousands of times, and on a device nothing hides this.
    if slices or any(type.shape for type in types):
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


def _of_type(values: np.ndarray, type: Type) -> np.ndarray:
    """Doubles `[...][reals]` as `[...]` of a type."""
    if type.kind != "real":
        values = np.ascontiguousarray(values).view(np.complex128 if type.kind == "complex" else np.int64)
    return values.reshape(values.shape[:-1] + type.shape)


def _number(values: np.ndarray) -> Any:
    return values.item()


def _complex_number(values: np.ndarray) -> complex:
    return complex(*values.tolist())


def _numbers(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())
