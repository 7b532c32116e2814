"""Site functions: traced once, compiled once, bound to fields, run often.

`@site_function` turns ordinary Python into a kernel. Calling it finds, from cheapest to dearest: the same fields and
numbers as before (a bound launch), the same program for other fields (bind), the same types (lower), or none (trace). What makes
kernels is imported with the first of them.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import operator
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jali import graph_recorder, tape_recorder
from jali.codegen.lines import trace_error
from jali.codegen.stage_cache import COUNTS
from jali.codegen.state import tracing
from jali.codegen.symbols import Site
from jali.errors import JaliError
from jali.lattice.arguments import (
    SUM,
    Outside,
    aliases,
    check_function,
    common_precision,
    describe,
    fields_at_hand,
    fields_of,
    hashable,
    key_of,
    lattice_of,
    statics_of,
    whole_numbers_of,
)
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.field import Field
from jali.lattice.sums import Sums

if TYPE_CHECKING:
    from jali.codegen.ir import SiteProgram
    from jali.codegen.stages import Traced
    from jali.codegen.types import Type
    from jali.lattice.binding import BoundKernel
    from jali.lattice.bound_call import BoundCall, Call

# Launches that a site function remembers on a lattice; the oldest is dropped first. On every rank the same one, since binding
# it again may be collective: counted are those that were bound, whether they are still there or not.
_MOST_BOUND = 256
_MOST_GONE = 256  # deleted launches whose counts have not been read
_MOST_PROGRAMS = 256  # kinds of arguments for which it remembers programs,
_MOST_VARIANTS = 16  # and programs of a kind, which saw different numbers
_KEPT = "_jali_site_functions"  # where an object keeps the site functions of its methods
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
        self.source: Any = function  # whose object's fields it may take
        self.__wrapped_site_function__ = function
        signature = inspect.signature(function)
        known = list(signature.parameters.values())
        self.is_method = (
            isinstance(function, types.FunctionType) and known[:1] != [] and known[0].name == "self"
        )
        del known[: self.is_method]
        if not known:
            raise trace_error(
                f"{function.__name__} takes no site; its first parameter is the site, usually called X"
            )
        for parameter in known:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise trace_error(
                    f"{function.__name__}: the parameters of a site function have names; {parameter} has none"
                )
        self.site = known.pop(0).name
        self.parameters = [p.name for p in known]
        whose = inspect.unwrap(function)
        self._whose_defaults = getattr(whose, "__func__", whose)
        self._defaults: dict[str, Any] = {}
        self._defaults_seen: tuple[Any, ...] = ()
        self._by_place_seen: Any = None
        self._only_by_place = {p.name for p in known if p.kind is p.POSITIONAL_ONLY}
        self._places = sum(p.kind is not p.KEYWORD_ONLY for p in known)  # parameters that may be given so
        self._complete = -1 if self.is_method or self._places < len(known) else len(known)  # without more ado
        self._rest: dict[
            tuple[int, bool], tuple[Any, ...]
        ] = {}  # what stands for parameters that are left out
        self._read_defaults()
        self._fixed: frozenset[str] = frozenset()  # numbers that offsets are made of
        self._guard = threading.RLock()  # of what follows; held for moments, never while anything runs
        self._exhausted_before = 0  # by deleted launches, as far as their counts were read
        self._gone: dict[Any, Any] = {}  # counters of the other deleted launches, and their devices
        self.derived: dict[
            Any, SiteFunction
        ] = {}  # others that run this one at each site, by what they do beside
        self._bound: dict[Any, BoundCall] = {}  # by arguments and program
        self._bound_on: weakref.WeakKeyDictionary[Any, collections.deque[weakref.ref[BoundCall]]] = (
            weakref.WeakKeyDictionary()
        )  # in the order in which they were bound
        self._latest: dict[Any, BoundCall] = {}  # by arguments
        self._programs: dict[Any, tuple[Traced, ...]] = {}  # by types of arguments, the latest first
        self._everywhere = SiteFunctionOn(self, ALL)

    def __repr__(self) -> str:
        return f"<site function {self.__name__}{inspect.signature(self.function)}>"

    def __getitem__(self, domain: Domain) -> SiteFunctionOn:
        domain = as_domain(domain, f"{self.__name__}[...]")
        return self._everywhere if domain is ALL else SiteFunctionOn(self, domain)

    def __get__(self, instance: Any, owner: type | None = None) -> SiteFunction:
        """The site function of an object, where this is a method; it is deleted with the object."""
        if instance is None or not self.is_method:
            return self
        if tracing():  # it is inlined, and the object stays as it is
            return SiteFunction(types.MethodType(self.function, instance))
        own = getattr(instance, "__dict__", None)
        if own is None:
            raise trace_error(
                f"{self.__name__} is a method of {type(instance).__name__}, whose objects have __slots__ and no __dict__: what "
                'has been made for one cannot be kept with it; add "__dict__" to the slots'
            )
        kept = own.setdefault(_KEPT, _Methods())
        key = (id(instance), id(self))
        found = kept.get(key)
        if found is None or found.function.__self__ is not instance:
            found = kept[key] = SiteFunction(types.MethodType(self.function, instance))
        return found

    def __call__(self, *arguments: Any, **named: Any) -> None:
        if self.is_method:
            classes = type(arguments[0]).__mro__ if arguments else ()
            if not any(one is self for kind in classes for one in vars(kind).values()):
                raise trace_error(self._unbound())
            return self.__get__(arguments[0])(*arguments[1:], **named)
        if (arguments and isinstance(arguments[0], Site)) or (
            named and isinstance(named.get(self.site), Site)
        ):
            return self.function(*arguments, **named)  # inlined into the site function that calls it
        self.run(ALL, arguments, None, None, named)
        return None

    def complete(self, arguments: tuple[Any, ...], named: dict[str, Any], sums: bool) -> tuple[Any, ...]:
        """One argument per parameter, in their order: given by place or by name, else its default, else, with `sums`, `SUM`.

        Raises TraceError for arguments that are unknown, given twice or missing.
        """
        if self.is_method:
            raise trace_error(self._unbound())
        self._read_defaults()
        if len(arguments) > self._places:
            only = ", ".join(self.parameters[self._places :])
            raise trace_error(
                f"{self._wanted()}{f', {only} by name' if only else ''}, {len(arguments)} were given{self._for_sums(sums)}"
            )
        found = dict(zip(self.parameters, arguments, strict=False))
        for name, value in named.items():
            if name not in self.parameters:
                raise trace_error(
                    f"{self.__name__} has no parameter {name}; it takes {', '.join(self.parameters)}"
                )
            if name in found:
                raise trace_error(f"{self.__name__} got {name} twice, by its place and by its name")
            if name in self._only_by_place:
                raise trace_error(f"{self.__name__} takes {name} by its place, not by its name")
            found[name] = value
        rest = self.missing(arguments, named)
        if sums and not rest:
            raise trace_error(
                f"{self._wanted()}; lattice.sum needs at least one of them left for the sum, lattice.reduce for what it finds"
            )
        if rest and not sums:
            count = len(arguments) + len(named)
            raise trace_error(
                f"{self._wanted()}, {count} were given: {', '.join(rest)} {'is' if len(rest) == 1 else 'are'} missing"
                f"{self._for_sums(sums)}"
            )
        return tuple([found[n] if n in found else self._defaults.get(n, SUM) for n in self.parameters])

    def _read_defaults(self) -> None:
        """Reads the function's current defaults, where these have been replaced."""
        whose = self._whose_defaults
        named = whose.__kwdefaults__ or {}
        now = (whose.__defaults__, *named, *named.values())
        if len(now) == len(self._defaults_seen) and all(map(operator.is_, now, self._defaults_seen)):
            return
        parameters = inspect.signature(self.function).parameters
        self._defaults = {
            n: parameters[n].default
            for n in self.parameters
            if parameters[n].default is not inspect.Parameter.empty
        }
        self._rest.clear()
        self._defaults_seen, self._by_place_seen = now, whose.__defaults__

    def _unbound(self) -> str:
        return (
            f"{self.__name__} is a method: call it on an object, model.{self.__name__}(...), not on the class"
        )

    def missing(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[str]:
        """Parameters that neither an argument nor a default is for: sums, in a call that has them."""
        known = {*self.parameters[: len(arguments)], *named, *self._defaults}
        return [name for name in self.parameters if name not in known]

    def _wanted(self) -> str:
        return f"{self.__name__} takes {len(self.parameters)} arguments ({', '.join(self.parameters)})"

    def _for_sums(self, sums: bool) -> str:
        return "" if sums else f"; sums over sites are called as lattice.sum({self.__name__}, ...)"

    def run(
        self,
        domain: Domain,
        arguments: tuple[Any, ...],
        lattice: Any = None,
        sums: Sums | None = None,
        named: dict[str, Any] | None = None,
    ) -> Any:
        """Runs over a domain; with `sums`, parameters that are not given are sums and their values are returned."""
        if named:
            arguments = self.complete(arguments, named, sums is not None)
        elif sums is not None or len(arguments) != self._complete:
            whose = self._whose_defaults
            if whose.__defaults__ is not self._by_place_seen or (self._complete < 0 and whose.__kwdefaults__):
                self._read_defaults()
            count = len(arguments)
            rest = self._rest.get((count, sums is None))
            if rest is None:
                rest = self.complete(arguments, {}, sums is not None)[count:]
                self._rest[count, sums is None] = rest
            arguments = (*arguments, *rest)
        key: tuple[Any, ...] = (
            domain,
            sums,
            None if lattice is None else lattice.serial,
            *map(key_of, arguments),
        )
        if self._fixed:
            key = (*key, self._fixed_of(arguments))
        try:
            bound = self._latest.get(key)
        except TypeError:  # an unhashable domain or argument is invalid, and binding raises the error
            self._bind(domain, arguments, lattice, sums)
            raise
        if bound is None or not bound.guards.hold():
            bound = self._bind(domain, arguments, lattice, sums, key)
        if tape_recorder.recorders and (tape := tape_recorder.current()) is not None:
            return tape.call(self, bound, domain, arguments, lattice, sums)
        return bound.run(arguments)

    def _key(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any, sums: Sums | None
    ) -> tuple[Any, ...]:
        """What decides which launch a call is."""
        key = (domain, sums, None if lattice is None else lattice.serial, *map(key_of, arguments))
        return (*key, self._fixed_of(arguments)) if self._fixed else key

    def _fixed_of(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of the numbers that offsets are made of, as far as that is known."""
        if not self._fixed:
            return ()
        pairs = zip(self.parameters, arguments, strict=True)
        return tuple([whole_numbers_of(a) for n, a in pairs if n in self._fixed])

    @property
    def exhausted(self) -> int:
        """How many `repeat_until`s of all calls so far gave up, on this rank."""
        graph_recorder.refuse("attempts that gave up are counted on the host", "do it before or after")
        with self._guard:
            before, gone, bound = self._exhausted_before, list(self._gone), list(self._bound.values())
        derived = sum(d.exhausted for d in [*self.derived.values()])
        return before + self._count_exhausted(gone) + sum(b.exhausted for b in bound) + derived

    def _count_exhausted(self, gone: list[Any]) -> int:
        """The counts of these counters of deleted launches, after the work of their devices so far; the counters are
        dropped."""
        total = 0
        for counters in gone:
            found = 0
            with contextlib.suppress(
                JaliError
            ):  # a lost device counts no more; its next use raises the error
                found = int(counters.values[0])
            with self._guard:
                if counters in self._gone:
                    del self._gone[counters]
                    self._exhausted_before += found
            total += found
        return total

    def _count_some_gone(self, gpu: Any) -> None:
        """Where many launches are deleted, reads those of this device: another rank's may wait for a launch of this
        one."""
        if len(self._gone) > _MOST_GONE:
            with self._guard:
                gone = [counters for counters, of in self._gone.items() if of is gpu]
            self._count_exhausted(gone)

    def _forget(self, key: Any) -> None:
        """Waits for no device: garbage is collected anywhere, also where other ranks wait for this one."""
        with self._guard:
            gone = self._bound.pop(key, None)
            if gone is None:
                return
            if self._latest.get(key[0]) is gone:
                del self._latest[key[0]]
            self._gone.update(dict.fromkeys(gone.attempts, gone.lattice.gpu))

    def kernels(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None, **named: Any
    ) -> list[BoundKernel]:
        """The kernels that a call with these arguments runs, compiled and bound but not run."""
        pairs = self.stages(*arguments, over=over, lattice=lattice, sums=sums, **named)
        return [kernel for _, kernel in pairs]

    def stages(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None, **named: Any
    ) -> list[tuple[Traced, BoundKernel]]:
        """The first stage of each kernel of such a call, and the last."""
        return self._bind(over, self.complete(arguments, named, sums is not None), lattice, sums).stages

    def bind(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None, **named: Any
    ) -> Call:
        """A call with these arguments, bound anew, under the settings of now (halo policy, launch parameters).

        It can be run, explained and simulated; ordinary calls bind by themselves. The result keeps the fields alive.
        """
        from jali.lattice.bound_call import Call

        arguments = self.complete(arguments, named, sums is not None)
        return Call(self._bind(over, arguments, lattice, sums).run, arguments)

    def types_of_sums(self, lattice: Any, *arguments: Any) -> list[Type]:
        """What the sums of such a call are, before anything is compiled. Raises TraceError for mistakes in the function."""
        return list(self.program_of(lattice, *arguments).sums)

    def program_of(self, lattice: Any, *arguments: Any) -> SiteProgram:
        """What such a call computes, before anything is compiled; parameters that are not given are sums. Raises TraceError."""
        arguments = self.complete(arguments, {}, sums=True)
        fields = list(fields_of(arguments))
        shapes = tuple(describe(a, n, lattice) for a, n in zip(arguments, self.parameters, strict=True))
        how = lattice.ndim, common_precision(fields)
        with lattice.lock:
            traced = self._traced(
                arguments,
                shapes,
                fields,
                how,
                Outside([], lattice, False, dict(zip(self.parameters, arguments, strict=True))),
            )
        return traced.programs[0]

    def domain_of(self, arguments: tuple[Any, ...], sums: tuple[str, ...] = ()) -> Domain:
        """The sites that such a call runs over where it is given no domain, before anything is compiled: a colour, where fields have one alone.
        `sums` are parameters that are sums, for which there are no arguments. Raises TraceError, LayoutError."""
        from jali.codegen.stages import programs_of
        from jali.lattice.colours import domain_of_call

        given = iter(arguments)
        whole = tuple(SUM if name in sums else next(given) for name in self.parameters)
        fields = list(fields_of(whole))
        lattice = lattice_of(self.__name__, fields, None)
        shapes = tuple(describe(a, n, lattice) for a, n in zip(whole, self.parameters, strict=True))
        captured = fields_at_hand(self.source)
        of_object = isinstance(self.source, types.MethodType)
        outside = Outside(captured, lattice, of_object, dict(zip(self.parameters, whole, strict=True)))
        with lattice.lock:
            how = lattice.ndim, common_precision([*fields, *captured])
            traced = self._traced(whole, shapes, [*fields, *captured], how, outside)
        distinct = {f.serial: f for f in (*fields, *captured, *outside.taken.values())}
        return domain_of_call(programs_of(traced), list(distinct.values()), lattice, ALL)

    def _remember(self, key: Any, bound: BoundCall) -> None:
        """With the lock of its lattice, so that no deleted launch is run."""
        bound.forget = _Forget(weakref.ref(self), key)
        for field in bound.fields:
            field.on_release(bound.forget)
        with self._guard:
            self._bound[key] = bound
            of_lattice = self._bound_on.setdefault(bound.lattice, collections.deque())
            of_lattice.append(weakref.ref(bound))
            oldest = of_lattice.popleft()() if len(of_lattice) > _MOST_BOUND else None
        if oldest is not None and oldest.forget is not None:
            oldest.forget()

    def _bind(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any, sums: Sums | None, key: Any = None
    ) -> BoundCall:
        """A launch with these arguments; where there is a `key`, one that is there already or is remembered from now on."""
        domain = as_domain(domain, "over=")
        given, wanted = list(fields_of(arguments)), lattice
        of_object = isinstance(self.source, types.MethodType)
        captured = fields_at_hand(self.source)  # a first guess; the trace determines them
        while True:
            fields = given + captured
            lattice = self._lattice_of(fields, arguments, wanted)
            self._count_some_gone(lattice.gpu)
            shapes = tuple(describe(a, n, lattice) for a, n in zip(arguments, self.parameters, strict=True))
            how = (lattice.ndim, common_precision(fields))
            outside = Outside(
                captured, lattice, of_object, dict(zip(self.parameters, arguments, strict=True))
            )
            with lattice.lock:
                traced = self._traced(arguments, shapes, fields, how, outside)
                taken = [f for f in (reference() for reference in traced.captured) if f is not None]
                known = traced.fixed <= self._fixed
                if not known:
                    with self._guard:
                        self._fixed |= traced.fixed
                if known and {f.serial for f in taken} == {f.serial for f in captured}:
                    key = None if key is None else self._key(domain, arguments, wanted, sums)
                    return self._bound_to(traced, fields, arguments, lattice, domain, sums, key)
            captured = [*(f for f in captured if f in taken), *(f for f in taken if f not in captured)]

    def _lattice_of(self, fields: list[Field], arguments: tuple[Any, ...], wanted: Any) -> Any:
        """The lattice that a call runs over; `wanted` is the one that is asked for, if any."""
        return lattice_of(self.__name__, fields, wanted)

    def _beyond_types(self, fields: list[Field], lattice: Any) -> Any:
        """What a trace depends on besides the types of arguments, as a key."""
        return ()

    def _bound_to(
        self,
        traced: Traced,
        fields: list[Field],
        arguments: tuple[Any, ...],
        lattice: Any,
        domain: Domain,
        sums: Sums | None,
        key: Any,
    ) -> BoundCall:
        """The launch of a program with these fields, made or found."""
        from jali.lattice.bound_call import BoundCall

        if key is None:
            return BoundCall(traced, fields, arguments, lattice, domain, sums)
        whole = (key, id(traced.guards))
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
        self,
        arguments: tuple[Any, ...],
        shapes: Any,
        fields: list[Field],
        how: tuple[int, str],
        outside: Outside,
    ) -> Traced:
        """The program for arguments of these types that saw what the function would see now."""
        from jali.codegen.stages import trace_function

        fixed = self._fixed
        key = self._key_of_types(arguments, shapes, fields, how, outside)
        with _tracing:
            known = self._programs.get(key, ())
            for traced in known:
                if traced.guards.hold():
                    COUNTS["traced"].count(found=True)
                    return traced
            traced = trace_function(
                self.function, statics_of(arguments), shapes, self.parameters, *how, outside, self._watched
            )
            if not traced.fixed <= fixed:  # the key does not contain the numbers it is for
                return traced
            if len(self._programs) >= _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = (traced, *known[: _MOST_VARIANTS - 1])
            return traced

    @property
    def _watched(self) -> Callable[..., Any]:
        """The user's function, for what it sees besides its arguments."""
        return self.function

    def _key_of_types(
        self,
        arguments: tuple[Any, ...],
        shapes: Any,
        fields: list[Field],
        how: tuple[int, str],
        outside: Outside,
    ) -> tuple[Any, ...]:
        """What a trace depends on, but for what guards watch."""
        serials = tuple(field.serial for field in outside.known)
        lattice_serial = outside.lattice.serial if serials else 0
        return (
            *how,
            repr(aliases(fields)),
            hashable(shapes),
            lattice_serial,
            serials,
            self._fixed_of(arguments) if self._fixed else (),
            self._beyond_types(fields, outside.lattice),
        )


class _Methods(dict[tuple[int, int], SiteFunction]):
    """The site functions of an object's methods, which copies and pickles of the object do not have."""

    def __reduce__(self) -> Any:
        return _Methods, ()

    def __deepcopy__(self, memo: Any) -> _Methods:
        return _Methods()


class SiteFunctionOn:
    """A site function restricted to a domain."""

    __slots__ = ("domain", "function")

    def __init__(self, function: SiteFunction, domain: Domain):
        self.function = function
        self.domain = domain

    def __repr__(self) -> str:
        return f"<{self.function!r} over {self.domain}>"

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.function.run(self.domain, arguments, named=named)


def site_function(function: Callable[..., Any] | None = None) -> SiteFunction:
    """Decorator: makes a kernel of a function of a symbolic site. See the guide to the site language."""
    return SiteFunction(function)


class _Forget:
    """Drops a bound launch when one of its fields is deleted. Belongs to the launch: fields know it weakly."""

    __slots__ = ("__weakref__", "function", "key")

    def __init__(self, function: weakref.ref[SiteFunction], key: Any):
        self.function = function
        self.key = key

    def __call__(self) -> None:
        function = self.function()
        if function is not None:
            function._forget(self.key)
