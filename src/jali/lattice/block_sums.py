"""Sums over blocks: a field of a coarser lattice gets, at each of its sites, a sum over the sites of a finer one in its block.

One kernel computes the terms, which it writes to a field of the fine lattice. They are added up in steps, over lattices in between, each by
a kernel that reads at most MOST_TOGETHER sites, so that no text grows with the block. The order of additions belongs to the block: no
bit depends on ranks, threads or lanes. What a call needs beside its fields it leaves with the first field that it writes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jali import graph_recorder
from jali.codegen.directions import directions
from jali.codegen.language.terms import rounded
from jali.codegen.lines import trace_error
from jali.codegen.state import Gathered, current_trace
from jali.codegen.symbols import Accumulator
from jali.codegen.values import Value
from jali.errors import LayoutError
from jali.lattice.arguments import fields_of
from jali.lattice.base import no_field
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.field import Field
from jali.lattice.functions import zero
from jali.lattice.ratio import why_not_together
from jali.lattice.sites import SiteFunction, site_function
from jali.lattice.sums import as_site_function
from jali.single_instance import single_instance

MOST_TOGETHER = 16
"""Sites that one kernel adds up: with more it takes longer to compile than the next step does to run."""


def block_sums(
    function: SiteFunction, *arguments: Any, onto: Field | Sequence[Field], over: Domain = ALL
) -> None:
    """Sums over the sites of each block: the parameters of `function` beyond `arguments` are sums (`total += value`), and `onto` are the
    fields of a coarser lattice that they are written to, one for each sum.

    The function runs over the lattice of its first field, whose extents are multiples of the coarser one's; ranks own the same part of both,
    as where kernels read two lattices. Sites outside `over` add nothing. Terms are kept in the element type and the precision of the
    field that they go to; sums of whole numbers onto a field of `Integer()` are whole. Raises TraceError for mistakes in the function, LayoutError for fields that do not fit together.
    """
    function, over = as_site_function(function, "jali.block_sums"), as_domain(over, "over=")
    targets = tuple(onto) if isinstance(onto, list | tuple) else (onto,)
    fine = _checked(function, arguments, targets)
    with fine.lock:  # other threads use the same terms
        space = _space_of(fine, targets)
        terms = list(space.terms)
        if over is not ALL:
            _clear(terms)
        _terms_of(function, len(targets))[over](terms, *arguments)
        for step in space.steps:
            step(list(targets))


def _checked(function: SiteFunction, arguments: tuple[Any, ...], targets: tuple[Any, ...]) -> Any:
    """The fine lattice. Raises LayoutError, TraceError."""
    name = function.__name__
    for target in targets:
        if not isinstance(target, Field):
            raise LayoutError(
                f"block_sums: onto= is a field, or one for each sum of {name}, not {no_field(target)}"
            )
    if len(arguments) + len(targets) != len(function.parameters):
        raise trace_error(
            f"{name} takes {len(function.parameters)} arguments ({', '.join(function.parameters)}); {len(arguments)} are given, and "
            f"fields for {len(targets)} sums: every parameter is one or the other"
        )
    for field in (*fields_of(arguments), *targets):
        if field.batch is not None:
            raise LayoutError(
                f"block_sums takes fields without a batch, and {field.name} has one of {field.batch}: call it for each member, f.members[k]"
            )
    if len({target.serial for target in targets}) < len(targets):
        raise LayoutError(f"block_sums: two sums of {name} are written to one field; give each its own")
    first = next(fields_of(arguments), None)
    if first is None:
        raise LayoutError(
            f"{name} has no field argument, so the lattice that it runs over is unknown; pass a field"
        )
    fine, coarse = first.lattice, targets[0].lattice
    if any(target.lattice is not coarse for target in targets):
        raise LayoutError(f"block_sums: the sums of {name} are written to fields of one lattice")
    if (
        fine is coarse
        or len(fine.extents) != len(coarse.extents)
        or any(n % m for n, m in zip(fine.extents, coarse.extents, strict=True))
    ):
        raise LayoutError(
            f"block_sums: {name} runs over {fine}, the lattice of {first.name}, and {coarse} of {targets[0].name} is none of blocks of it: "
            "extents of the finer one are multiples"
        )
    if why := why_not_together(fine, coarse):
        raise LayoutError(f"block_sums: {first.name} and {targets[0].name}: {why}")
    return fine


# ---- terms ---------------------------------------------------------------------------------------------


@site_function
def _clear(X: Any, fields: Any) -> None:
    for field in fields:
        field[X] = zero(field.element)


def _terms_of(function: SiteFunction, count: int) -> SiteFunction:
    """The site function that writes what `function` adds to its last `count` parameters to as many fields, given in front."""
    if count not in function.derived:
        function.derived[count] = _terms_written(function, count)
    return function.derived[count]


def _terms_written(function: SiteFunction, count: int) -> SiteFunction:
    given = len(function.parameters) - count
    body, name, names = function.function, function.__name__, function.parameters[given:]

    def terms(X: Any, fields: Any, *arguments: Any) -> Any:
        trace = current_trace()
        gathered = [Gathered(whole=field.element.type.kind == "int") for field in fields]
        accumulators = [Accumulator(trace, g, n) for g, n in zip(gathered, names, strict=True)]
        result = body(X, *arguments, *accumulators)
        for sum_, field, parameter in zip(gathered, fields, names, strict=True):
            if sum_.how not in ("", "sum"):
                raise trace_error(
                    f"block_sums adds up {parameter} += value, and nothing else; {name} does otherwise at {sum_.where}"
                )
            if not sum_.values:
                raise trace_error(f"{name} never adds to its sum {parameter}")
            values = sum_.values[None]
            kind = next((value.type for value in values if value.type.kind != "int"), None)
            if sum_.whole and kind is not None:
                raise trace_error(
                    f"{name} adds {kind} values to its sum {parameter}, which goes to a field of whole numbers; give onto= a field "
                    f"of {kind.kind} ones for it"
                )
            field[X] = sum(map(Value, values)) if sum_.whole else Value(rounded(trace.builder, values))
        return result

    plain = inspect.Parameter.POSITIONAL_ONLY
    parameters = ["X", "the terms of blocks", *function.parameters[:given]]
    terms.__name__ = name
    terms.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(f"_{k}", plain) for k, _ in enumerate(parameters)]
    )
    made = SiteFunction(terms)
    made.parameters = parameters[1:]
    return made


# ---- steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Space:
    """Fields for the terms of blocks, and what adds them up into the fields that the sums are written to."""

    key: Any
    terms: tuple[Field, ...]
    steps: tuple[Callable[[list[Field]], None], ...]  # called with these


_spaces: weakref.WeakKeyDictionary[Field, _Space] = weakref.WeakKeyDictionary()


def _space_of(fine: Any, targets: tuple[Field, ...]) -> _Space:
    """The space of the last call onto these fields, if it fits."""
    key = fine.serial, *(target.serial for target in targets)
    space = _spaces.get(targets[0])
    if space is None or space.key != key:
        with graph_recorder.suspended():  # it is there before what is recorded
            space = _spaces[targets[0]] = _make_space(key, fine, targets)
    return space


def _make_space(key: Any, fine: Any, targets: tuple[Field, ...]) -> _Space:
    coarse = targets[0].lattice
    ratio = [n // m for n, m in zip(fine.extents, coarse.extents, strict=True)]

    def fields_on(lattice: Any) -> tuple[Field, ...]:
        return tuple(
            Field(lattice, t.element, precision=t.precision, name=f"terms of {t.name}") for t in targets
        )

    terms = fields_on(fine)
    steps: list[Callable[[list[Field]], None]] = []
    extents, here = fine.extents, terms
    blocks = blocks_of(ratio)
    for block in blocks:
        extents = tuple(n // b for n, b in zip(extents, block, strict=True))
        there = (
            None if block is blocks[-1] else fields_on(fine.like(*extents))
        )  # None: the fields that are given
        sites = list(itertools.product(*map(range, block)))
        for first in range(0, len(sites), MOST_TOGETHER):
            adder = _adder(tuple(sites[first : first + MOST_TOGETHER]), first > 0)
            steps.append(functools.partial(_add_up, adder, here, there))
        here = there or ()
    return _Space(key, terms, tuple(steps))


def _add_up(
    adder: SiteFunction, fine: tuple[Field, ...], coarse: tuple[Field, ...] | None, targets: list[Field]
) -> None:
    adder(targets if coarse is None else list(coarse), list(fine))


def blocks_of(ratio: Sequence[int]) -> list[tuple[int, ...]]:
    """Blocks whose product is `ratio`: of at most MOST_TOGETHER sites, or a larger prime number of them in one direction."""
    primes = sorted(
        ((p, axis) for axis, n in enumerate(ratio) for p in _prime_factors(n)), key=lambda found: found[1]
    )
    blocks: list[list[int]] = []
    for p, axis in primes:
        fits = next((b for b in blocks if math.prod(b) * p <= MOST_TOGETHER), None)
        if fits is None:
            fits = [1] * len(ratio)
            blocks.append(fits)
        fits[axis] *= p
    return [tuple(b) for b in blocks]


def _prime_factors(n: int) -> list[int]:
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found + ([n] if n > 1 else [])


@single_instance
def _adder(sites: tuple[tuple[int, ...], ...], more: bool) -> SiteFunction:
    """The kernel that adds up these sites of a block, and what is there already if there is `more`."""

    def add_up_blocks(X: Any, coarse: Any, fine: Any) -> None:
        mus = directions(X.ndim)
        for c, f in zip(coarse, fine, strict=True):
            first = X.on(f)
            terms = [
                functools.reduce(operator.add, (n * mu for n, mu in zip(at, mus, strict=True)), first)
                for at in sites
            ]
            total = functools.reduce(operator.add, (f[Y] for Y in terms))
            c[X] = c[X] + total if more else total

    return site_function(add_up_blocks)
