"""Inner products in the kernel that writes: a site function runs, and the same pass over memory gives conj(p) y of a field y that it wrote.

`apply_inner` derives from the function one that also adds conj(p[X]) y[X] to a sum, once for each function. It adds what is stored,
so the number has the bits of `algebra.inner(p, y)` after the call. Where one kernel cannot give these bits there are two: this file
decides that, and nobody else has to know.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from jali.codegen.arithmetics import widest
from jali.codegen.language import leaves
from jali.codegen.lines import trace_error, user_line
from jali.codegen.state import Trace, current_trace
from jali.codegen.symbols import FieldSymbol
from jali.codegen.values import Value
from jali.errors import LayoutError, TraceError
from jali.files import value_shown
from jali.lattice.algebra import inner
from jali.lattice.arguments import common_precision, fields_of, key_of
from jali.lattice.base import no_field, what_differs
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.field import Field
from jali.lattice.sites import SiteFunction
from jali.lattice.sums import as_site_function

MOST_APART = 256
"""Calls of a function that are known to need two kernels."""


def apply_inner(
    function: SiteFunction,
    p: Field | None,
    *arguments: Any,
    written: int | str = 0,
    over: Domain = ALL,
    wait: bool = True,
    real: bool = False,
) -> Any:
    """Runs `function(*arguments)`; returns the sum over all sites and components of conj(p) y, of the field y that it wrote, or of its `real` part.

    `written` is the parameter of y, by its position behind the site or by its name; by default the first one. p may be any field like y,
    also one of the arguments; None: y itself. The number is that of `jali.lattice.algebra.inner(p, y)` after the call, to the last bit;
    with `wait=False` a `Scalar`. One kernel gives it, except where that could change a bit or leave sites out: `over` a part of the sites,
    methods, functions that write y or p elsewhere than at X or that read what storage has rounded, fields of a wider arithmetic beside p and y,
    and p of a wider one than the function has without it.

    Raises TraceError for mistakes in the function or the call, LayoutError where p and y are no fields of one lattice and element.
    """
    function, over = as_site_function(function, "apply_inner"), as_domain(over, "over=")
    if len(arguments) != len(function.parameters):
        arguments = function.complete(arguments, {}, sums=False)
    place = _place(function, written)
    y = arguments[place]
    p = y if p is None else p
    _check(function, place, p, y)
    if over is ALL and not isinstance(function.function, types.MethodType) and _runs_alike(p, y, arguments):
        fused = _with_inner(function, place, widest((p.precision, y.precision)), real)
        given = (p, *arguments)
        if not fused.apart or tuple(map(key_of, given)) not in fused.apart:
            try:
                return y.lattice.sum(fused, *given, wait=wait)
            except _ApartError:
                if len(fused.apart) >= MOST_APART:
                    fused.apart.clear()
                fused.apart.add(tuple(map(key_of, given)))
    function[over](*arguments)
    product = inner(p, y, wait=wait)
    return product.real if real else product


def _place(function: SiteFunction, written: Any) -> int:
    """The position of a parameter among those behind the site. Raises TraceError."""
    names = function.parameters
    if isinstance(written, str) and written in names:
        return names.index(written)
    if isinstance(written, int) and not isinstance(written, bool) and 0 <= written < len(names):
        return written
    raise trace_error(
        f"apply_inner: written= is a parameter of {function.__name__} ({', '.join(names)}), by name or by position from 0, "
        f"not {value_shown(written)}"
    )


def _check(function: SiteFunction, place: int, p: Any, y: Any) -> None:
    """Raises LayoutError unless the inner product of p and y is one of two fields of one form."""
    name, parameter = function.__name__, function.parameters[place]
    for what, field in ((f"{parameter} of {name}", y), ("p", p)):
        if not isinstance(field, Field):
            raise _error(f"apply_inner takes the inner product of two fields; {what} is {no_field(field)}")
    if p.lattice is not y.lattice:
        raise _error(
            f"apply_inner: {p.name} lives on {p.lattice}, {y.name}, which {name} writes, on {y.lattice} "
            f"({what_differs(p.lattice, y.lattice)})"
        )
    if p.over is not y.over:
        raise _error(f"apply_inner: {p.name} lives on {p.over}, {y.name}, which {name} writes, on {y.over}")
    if p.batch not in (None, y.batch):
        raise _error(
            f"apply_inner: {p.name} has a batch of {p.batch}, {y.name}, which {name} writes, {'none' if y.batch is None else f'one of {y.batch}'}"
        )
    if p.element != y.element:
        raise _error(
            f"apply_inner: {p.name} holds {p.element}, {y.name}, which {name} writes, holds {y.element}"
        )


def _runs_alike(p: Field, y: Field, arguments: tuple[Any, ...]) -> bool:
    """Whether the function runs over the lattice of y, and p leaves the arithmetic that it computes in as it is."""
    if next(fields_of(arguments)).lattice is not y.lattice:
        return False
    if p.precision == y.precision:  # the usual case, without looking at all fields
        return True
    wide = widest((p.precision, y.precision))
    return wide == y.precision or wide == common_precision(list(fields_of(arguments)))


def _error(message: str) -> LayoutError:
    return LayoutError(f"{message}\n  at {user_line(beyond_trace=True)}")


# ---- the derived function ------------------------------------------------------------------------------


class _ApartError(TraceError):
    """One kernel would not give the bits of two."""


class _WithInner(SiteFunction):
    """A derived function, and the arguments for which it has been given up."""

    def __init__(self, function: Any):
        super().__init__(function)
        self.apart: set[Any] = set()


def _with_inner(function: SiteFunction, place: int, precision: str, real: bool) -> _WithInner:
    """The site function `(X, p, *parameters, total)` that runs `function` and adds conj(p[X]) y[X], in this arithmetic, or its real part, to `total`."""
    key = ("inner", place, precision, real)
    found = function.derived.get(key)
    if found is None:
        found = function.derived[key] = _derived(function, place, precision, real)
    assert isinstance(found, _WithInner)
    return found


def _derived(function: SiteFunction, place: int, precision: str, real: bool) -> _WithInner:
    body, name, parameters = function.function, function.__name__, function.parameters
    behind = len(parameters) - body.__code__.co_kwonlyargcount

    def with_inner(X: Any, p: Any, *symbols: Any) -> Any:
        *given, total = symbols
        result = body(X, *given[:behind], **dict(zip(parameters[behind:], given[behind:], strict=True)))
        trace, y = current_trace(), given[place]
        if trace.precision != precision:
            raise _ApartError("")  # products would be rounded later
        written, of_p = ({offset for slot, offset in trace.stores if slot == f.slot} for f in (y, p))
        if not written:
            raise trace_error(
                f"{name} never writes {y.name}: apply_inner takes the inner product of a field that it writes"
            )
        if written != {X.vector} or of_p - {X.vector}:
            raise _ApartError("")  # at X there is an old value yet
        now = _held(trace, y, X)
        product = (now if p.slot == y.slot else _held(trace, p, X)).dot(now)
        total += product.real if real else product
        return result

    names = ["X", "the other field", *parameters, "the inner product"]
    with_inner.__name__ = name
    with_inner.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(f"_{k}", inspect.Parameter.POSITIONAL_ONLY) for k, _ in enumerate(names)]
    )
    made = _WithInner(with_inner)
    made.parameters = names[1:]
    return made


def _held(trace: Trace, field: FieldSymbol, X: Any) -> Value:
    """What memory holds of a field at X after the function, as a value of which nothing else is known.

    A value that the function computed could be simplified in the product (`jali.zero`), and a product that it has itself could be the same
    one, which is then used twice and is no multiply-add any more. What has just been read of a stored value is neither.
    """
    store = trace.stores.get((field.slot, X.vector))
    if store is None:
        return field[X]
    known = len(trace.builder.nodes)
    node = leaves.stored(trace.builder, field.slot, store.value)
    if node.number < known:
        raise _ApartError("")
    return Value(node)
