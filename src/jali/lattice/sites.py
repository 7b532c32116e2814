"""Site functions: traced once, compiled once, bound to fields, run often.

`@site_function` turns ordinary Python into a kernel. Calling it finds, from cheapest to dearest: the same fields and
numbers as before (a bound launch), the same program for other fields (bind), the same types (lower), or none (trace). What makes
kernels is imported with the first of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jali import recording
from jali.codegen.lines import trace_error
from jali.codegen.stage_cache import COUNTS
from jali.codegen.symbols import Site
from jali.errors import JaliError
from jali.lattice.arguments import (
    aliases,
    check_function,
    common_precision,
    describe,
    fields_of,
    hashable,
    key_of,
    lattice_of,
    statics_of,
)
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.field import Field
from jali.lattice.sums import Sums

if TYPE_CHECKING:
    from jali.codegen.stages import Traced
    from jali.codegen.types import Type
    from jali.lattice.binding import BoundKernel
    from jali.lattice.bound_call import BoundCall

_MOST_BOUND = 256  # launches that a site function remembers; the oldest goes first
_MOST_PROGRAMS = 256  # kinds of arguments for which it remembers programs,
_MOST_VARIANTS = 16  # and programs of a kind, which saw different numbers
_tracing = threading.RLock()  # one trace at a time: what one thread traces, others need not


class SiteFunction:
    """A function of a symbolic site; calling it runs it over a lattice.

    `f(a, b, 2.0)` runs over all sites, `f[EVEN](a, b, 2.0)` over a colour. Fields (and lists of fields), numbers,
    small arrays, `Random`s and directions may be arguments. Numbers are run-time values: changing them does not
    compile again. Raises TraceError for mistakes in the function, LayoutError for fields that do not fit together.
    """

    __name__: str

    def __init__(self, function: Any):
        check_function(function)
        functools.update_wrapper(self, function)
        self.function = function
        self.__wrapped_site_function__ = function
        signature = inspect.signature(function)
        names = list(signature.parameters)
        if not names:
            raise trace_error(
                f"{function.__name__} takes no site; its first parameter is the site, usually called X"
            )
        for parameter in signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                raise trace_error(
                    f"{function.__name__}: site functions take plain positional parameters, not {parameter}"
                )
        self.parameters = names[1:]
        self._guard = threading.RLock()  # of what follows; held for moments, never while anything runs
        self._exhausted_before = 0  # by launches that are gone
        self.derived: dict[
            Any, SiteFunction
        ] = {}  # others that run this one at each site, by what they do beside
        self._bound: dict[Any, BoundCall] = {}  # by arguments and program
        self._latest: dict[Any, BoundCall] = {}  # by arguments
        self._programs: dict[Any, tuple[Traced, ...]] = {}  # by types of arguments, the latest first
        self._everywhere = SiteFunctionOn(self, ALL)

    def __getitem__(self, domain: Domain) -> SiteFunctionOn:
        domain = as_domain(domain, f"{self.__name__}[...]")
        return self._everywhere if domain is ALL else SiteFunctionOn(self, domain)

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.refuse(named)
        if arguments and isinstance(arguments[0], Site):
            return self.function(*arguments)  # inlined into the site function that calls it
        self.run(ALL, arguments)
        return None

    def refuse(self, named: dict[str, Any]) -> None:
        """Raises TraceError for arguments by name."""
        if named:
            raise trace_error(
                f"{self.__name__} takes its arguments in order, without names: {', '.join(self.parameters)}"
            )

    def run(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any = None, sums: Sums | None = None
    ) -> Any:
        """Runs over a domain; with `sums`, the parameters beyond `arguments` are sums and their values are returned."""
        key = (domain, sums, None if lattice is None else lattice.serial, *map(key_of, arguments))
        try:
            bound = self._latest.get(key)
        except TypeError:  # a domain or an argument without a hash is none that there is, and binding says so
            self._bind(domain, arguments, lattice, sums)
            raise
        if bound is None or not bound.watch.unchanged():
            bound = self._bind(domain, arguments, lattice, sums, key)
        return bound.run(arguments)

    @property
    def exhausted(self) -> int:
        """How many `repeat_until`s of all calls so far gave up, on this rank."""
        recording.refuse("attempts that gave up are counted on the host", "do it before or after")
        with self._guard:
            before, bound = self._exhausted_before, list(self._bound.values())
        return before + sum(b.exhausted for b in bound) + sum(d.exhausted for d in [*self.derived.values()])

    def _forget(self, key: Any) -> None:
        with self._guard:
            gone = self._bound.pop(key, None)
            if gone is None:
                return
            if self._latest.get(key[0]) is gone:
                del self._latest[key[0]]
        # A device that is lost counts no more; whoever uses it hears of it. It may be waited for, so without the guard.
        with contextlib.suppress(JaliError):
            exhausted = gone.exhausted
            with self._guard:
                self._exhausted_before += exhausted

    def kernels(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> list[BoundKernel]:
        """The kernels that a call with these arguments runs, compiled and bound but not run."""
        return self._bind(over, arguments, lattice, sums).kernels

    def traced(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> tuple[Traced, list[BoundKernel]]:
        """The first stage of such a call, and the last, `kernels`."""
        bound = self._bind(over, arguments, lattice, sums)
        return bound.traced, bound.kernels

    def bind(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> Callable[[], Any]:
        """A call with these arguments, bound anew, under the settings of now (halo policy, launch parameters).

        The fields live as long as what is returned. For measurements; ordinary calls bind by themselves.
        """
        return functools.partial(self._bind(over, arguments, lattice, sums).run, arguments)

    def types_of_sums(self, lattice: Any, *arguments: Any) -> list[Type]:
        """What the sums of such a call are, before anything is compiled. Raises TraceError for mistakes in the function."""
        fields = list(fields_of(arguments))
        shapes = tuple(describe(a, n, lattice) for a, n in zip(arguments, self.parameters, strict=False))
        how = lattice.ndim, common_precision(fields), len(self.parameters) - len(arguments)
        with lattice.lock:
            return list(self._traced(arguments, shapes, fields, how).programs[0].sums)

    def _remember(self, key: Any, bound: BoundCall) -> None:
        with self._guard:
            for oldest in list(self._bound)[: max(0, len(self._bound) + 1 - _MOST_BOUND)]:
                lock = self._bound[oldest].lock
                if lock.acquire(blocking=False):  # else another rank runs it just now
                    try:
                        self._forget(oldest)
                    finally:
                        lock.release()
            self._bound[key] = bound
        bound.forget = _Forget(weakref.ref(self), key)
        for field in bound.fields:
            field.on_release(bound.forget)

    def _bind(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any, sums: Sums | None, key: Any = None
    ) -> BoundCall:
        """A launch with these arguments; where there is a `key`, one that is there already or is remembered from now on."""
        from jali.lattice.bound_call import BoundCall

        domain = as_domain(domain, "over=")
        nsums = len(self.parameters) - len(arguments)
        if nsums < 0 or (nsums > 0) != (sums is not None):
            wanted = f"{len(self.parameters)} arguments ({', '.join(self.parameters)})"
            if sums is None:
                raise trace_error(
                    f"{self.__name__} takes {wanted}, {len(arguments)} were given; sums over sites are called as "
                    f"lattice.sum({self.__name__}, ...)"
                )
            raise trace_error(
                f"{self.__name__} takes {wanted}; lattice.sum needs at least one of them left for the sum, lattice.reduce for what it finds"
            )
        fields = list(fields_of(arguments))
        lattice = lattice_of(self.__name__, fields, lattice)
        shapes = tuple(describe(a, n, lattice) for a, n in zip(arguments, self.parameters, strict=False))
        precision = common_precision(fields)
        with lattice.lock:
            traced = self._traced(arguments, shapes, fields, (lattice.ndim, precision, nsums))
            if key is None:
                return BoundCall(traced, fields, arguments, lattice, domain, sums)
            whole = (key, id(traced.watch))
            bound = self._bound.get(whole)
            if bound is None:
                bound = BoundCall(traced, fields, arguments, lattice, domain, sums)
                bound.check_set()
                self._remember(whole, bound)
            else:
                COUNTS["bound"].count(found=True)
            self._latest[key] = bound
        return bound

    def _traced(
        self, arguments: tuple[Any, ...], shapes: Any, fields: list[Field], how: tuple[int, str, int]
    ) -> Traced:
        """The program for arguments of these types that saw what the function would see now."""
        from jali.codegen.stages import trace_function

        key = (*how, repr(aliases(fields)), hashable(shapes))
        with _tracing:
            known = self._programs.get(key, ())
            for traced in known:
                if traced.watch.unchanged():
                    COUNTS["traced"].count(found=True)
                    return traced
            traced = trace_function(self.function, statics_of(arguments), shapes, self.parameters, *how)
            if len(self._programs) >= _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = (traced, *known[: _MOST_VARIANTS - 1])
            return traced


class SiteFunctionOn:
    """A site function restricted to a domain."""

    __slots__ = ("domain", "function")

    def __init__(self, function: SiteFunction, domain: Domain):
        self.function = function
        self.domain = domain

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.function.refuse(named)
        self.function.run(self.domain, arguments)


def site_function(function: Callable[..., Any] | None = None) -> SiteFunction:
    """Decorator: makes a kernel of a function of a symbolic site. See the guide to the site language."""
    return SiteFunction(function)


class _Forget:
    """Drops a bound launch when one of its fields goes away. Belongs to the launch: fields know it weakly."""

    __slots__ = ("__weakref__", "function", "key")

    def __init__(self, function: weakref.ref[SiteFunction], key: Any):
        self.function = function
        self.key = key

    def __call__(self) -> None:
        function = self.function()
        if function is not None:
            function._forget(self.key)
