"""Adjoints, gradients, pullbacks and tangents of site functions: site functions that are derived from them.

A derived function runs the body of the one that it is derived from while it is traced (`inlined.py`), turns the values around by the
rules of operations (`jali.codegen.derivatives`) and gathers what each site gets (`gather.py`). What comes of it is a program
like any other: it is compiled, has its halo items, is tuned, recorded in graphs and derived from again.
"""

from __future__ import annotations

import collections
import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jali import graph_recorder, tape_recorder
from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.derivatives import Scaled, check_linear, pulled_back, pushed_forward
from jali.codegen.ir import Node
from jali.codegen.language import arithmetic, choices, conversions, elementary, groups, leaves, matrices
from jali.codegen.lines import trace_error
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.codegen.state import Trace, current_trace
from jali.codegen.symbols import Fields, FieldSymbol, Site
from jali.codegen.types import Real, Type
from jali.codegen.values import Value
from jali.derivatives.gather import Contribution, Gatherer, is_of_members, of_member, turned_members
from jali.derivatives.inlined import Inlined, Term, fields_in, inlined, loads_of
from jali.derivatives.kept_values import CHOICES, Kept, element_of, values_to_keep
from jali.derivatives.needed_values import needing
from jali.errors import ParameterError, TraceError
from jali.files import value_shown
from jali.lattice.arguments import common_precision, fields_of, randoms_of
from jali.lattice.domain import ALL, PARITIES, Domain
from jali.lattice.field import Field
from jali.lattice.random import Random
from jali.lattice.sites import SiteFunction

Part = tuple[SiteFunction, Domain, tuple[Any, ...]]
"""A function of a call that is several, where it runs, and what it takes besides the call's arguments."""


@dataclass(frozen=True)
class Chosen:
    """Which of the fields that a derivative sets one of its parts sets: those of one lattice and batch, or with sites of one colour; None: all."""

    kind: tuple[int, Any] | None = None
    colour: Domain | None = None

    def has(self, field: Field) -> bool:
        """Whether a field is among them."""
        return (self.kind is None or self.kind == kind_of(field)) and (
            self.colour is None or field.over in (ALL, self.colour)
        )


EVERY = Chosen()


def kind_of(field: Field) -> tuple[int, Any]:
    """What fields that one kernel writes have in common."""
    return field.lattice.serial, field.batch


MOST_FLOPS = {"gpu": 4000, "host": 20_000}
"""Of a kernel that gathers several fields; where it were more, each has its own. On a GPU what they share is worth less than registers."""
MOST_SEQUENCES = 256
"""Calls that are several which a derived function remembers."""


@dataclass(frozen=True)
class Derivation:
    """What is derived from a site function, with respect to which of its parameters.

    `kind`: `adjoint` of a linear function, `pullback` of cotangents, `tangent`, the change for changes, `conjugate`; `needs` looks for the values
    that a pullback reads. `sums` are parameters
    that are sums. `apart`: parameters that the function writes, whose cotangents are parameters of their own, since the function reads
    them too; `weighted`: behind all others are the weights of sums; `adds` are those of `of` for which what is found is added to what is there.
    """

    kind: str
    of: tuple[str, ...]
    sums: tuple[str, ...] = ()
    inner: str = "complex"
    turned: bool = False  # the adjoint is conjugated on both sides: the transpose
    apart: tuple[str, ...] = ()
    weighted: bool = False
    adds: tuple[str, ...] = ()
    per: tuple[int, ...] = ()  # directions whose slices sums have entries for
    # the sites that the function ran over, the colour that is gathered now, and which of the fields that are gathered are there
    over: Domain = ALL
    part: Domain = ALL
    masked: bool = False
    # what is needed at neighbours: "compute" it again, "keep" it, "" by what it costs; the values that are kept, and whether this is the
    # function that keeps them
    neighbours: str = ""
    kept: tuple[Kept, ...] = ()
    keeps: bool = False
    of_sum_alone: bool = False  # what the function writes besides has no cotangent
    only: int = -1  # which of the fields is set, of those that have kernels of their own; -1: all

    def changes(self, base: SiteFunction) -> list[str]:
        """Parameters in front: one for each that is named."""
        found: list[str] = []
        for name in () if self.kind in ("adjoint", "conjugate", "needs") else self.of:
            change = f"d{name}"
            while change in base.parameters or change in found:
                change = f"d{change}"
            found.append(change)
        return found


def _most_flops(lattice: Any) -> int:
    return MOST_FLOPS["host" if lattice.gpu is None else "gpu"]


_under_way = threading.local()
"""The function that a thread traces, and the flops that its kernel may have: inside another one nothing is kept or split, there are no
kernels to do so."""


class DerivedFunction(SiteFunction):
    """A site function that is derived from another one."""

    def __init__(self, base: SiteFunction, derivation: Derivation):
        self.base = base
        self.derivation = derivation
        names = _parameters(base, derivation)
        body = _BODIES[derivation.kind](base, derivation, tuple(names))
        body.__name__ = body.__qualname__ = f"{derivation.kind}_of_{base.__name__}"
        body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(f"_{k}", inspect.Parameter.POSITIONAL_ONLY) for k in range(len(names) + 1)]
        )
        super().__init__(body)
        self.parameters = names
        self._only_by_place = set()
        self.source = base.source
        self._apart: dict[Any, KeptApartError | TargetsApartError] = {}  # for arguments of some types
        self._sequences: collections.deque[Any] = collections.deque()  # keys of calls that are several

    def __repr__(self) -> str:
        return f"<site function {self.__name__}(X, {', '.join(self.parameters)})>"

    @property
    def _watched(self) -> Callable[..., Any]:
        return self.base._watched

    def _beyond_types(self, fields: list[Field], lattice: Any) -> Any:
        odd = tuple(n % 2 for n in lattice.extents)
        of_fields = tuple((field.boundary.crossing, field.over) for field in fields)
        return of_fields, odd, _most_flops(lattice)

    def _read_defaults(self) -> None:
        """Those of the function that it is derived from."""
        self.base._read_defaults()
        found = {n: v for n, v in self.base._defaults.items() if n in self.parameters}
        if found != self._defaults:
            self._defaults = found
            self._rest.clear()
        self._by_place_seen = self._whose_defaults.__defaults__

    def _lattice_of(self, fields: list[Field], arguments: tuple[Any, ...], wanted: Any) -> Any:
        if self.derivation.kind in ("adjoint", "pullback"):
            targets = self._targets(arguments)
            wanted = targets[0].lattice if targets else wanted
        elif self.derivation.kind in (
            "tangent",
            "needs",
        ):  # the changes stand in front, and lie on any lattice
            own = self._of_base(arguments)
            wanted = wanted or self.base._lattice_of(list(fields_of(own)), own, None)
        return super()._lattice_of(fields, arguments, wanted)

    def _of_base(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments that the function itself takes."""
        return tuple(
            [arguments[self.parameters.index(n)] for n in self.base.parameters if n in self.parameters]
        )

    def _bind(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any, sums: Any, key: Any = None
    ) -> Any:
        plan = self.derivation
        if plan.keeps or plan.only >= 0 or plan.kind == "needs":
            return super()._bind(domain, arguments, lattice, sums, key)
        base = self.base if isinstance(self.base, DerivedFunction) else None
        if base and domain is not ALL and base.derivation.kind in ("adjoint", "pullback"):
            raise trace_error(
                f"{self.__name__} is a derivative of a derivative, and {base.__name__} over {domain} sets other sites than these. Take the derivatives in the "
                "other order, jali.gradient(jali.tangent(f, ...), ...), or name the colour by fields that live on it"
            )
        kinds = list(dict.fromkeys(map(kind_of, self._targets(arguments))))  # alike on all ranks
        if len(kinds) > 1:  # a kernel writes fields of one lattice, members or what they share
            parts: list[Any] = [(self, domain, (), Chosen(kind)) for kind in kinds]
            return self._remembered(parts, arguments, domain, lattice, key)
        if plan.kind in ("tangent", "conjugate"):
            return super()._bind(domain, arguments, lattice, sums, key)
        ran = ALL if plan.over is not ALL or plan.kept else self._ran_over(domain, arguments)
        try:
            if ran is ALL:
                return super()._bind(domain, arguments, lattice, sums, key)
            parts = self._parts(ran, arguments)
        except KeptApartError as apart:
            if plan.kept:
                raise
            parts = [(*part, EVERY) for part in self._with_kept(apart.what, arguments, domain)]
        except TargetsApartError as apart:
            parts = [(self._over(replace(plan, only=k)), domain, (), EVERY) for k in range(apart.what)]
        return self._remembered(parts, arguments, domain, lattice, key)

    @property
    def _target_names(self) -> list[str]:
        """The parameters that stand for what a call sets, as far as that is known before it is traced."""
        if self.derivation.kind in ("adjoint", "pullback"):
            return self.derivation.changes(self.base) or list(self.derivation.of)
        return self.base._target_names if isinstance(self.base, DerivedFunction) else []

    def _targets(self, arguments: tuple[Any, ...]) -> list[Field]:
        """The fields that a call sets."""
        return list(fields_of([arguments[self.parameters.index(n)] for n in self._target_names]))

    def _chosen(self, arguments: tuple[Any, ...], chosen: Chosen) -> tuple[Any, ...]:
        """The arguments, without what is set and not chosen."""
        if chosen is EVERY:
            return arguments

        def limited(argument: Any) -> Any:
            if isinstance(argument, Field):
                return argument if chosen.has(argument) else None
            many = getattr(argument, "fields", argument)
            return [limited(one) for one in many] if isinstance(many, list | tuple) else argument

        names = self._target_names
        return tuple(
            limited(one) if name in names else one
            for name, one in zip(self.parameters, arguments, strict=True)
        )

    def _remembered(
        self, parts: list[Any], arguments: tuple[Any, ...], domain: Domain, lattice: Any, key: Any
    ) -> Any:
        """A call that is several, for the calls with these arguments to come."""
        sequence = CallSequence(self, parts, domain, lattice)
        if key is None:
            return sequence.bound_to(arguments)
        while len(self._sequences) >= MOST_SEQUENCES:
            self._latest.pop(self._sequences.popleft(), None)
        self._sequences.append(key)
        self._latest[key] = sequence  # type: ignore[assignment]
        return sequence

    def _with_kept(self, kept: tuple[Kept, ...], arguments: tuple[Any, ...], domain: Domain) -> list[Part]:
        """A function that keeps values in fields, and the one that gathers from these."""
        plan = self.derivation
        first = self._targets(arguments)[0]
        precision = common_precision(list(fields_of(arguments)))
        fields = [_scratch(first.lattice, one, k, precision) for k, one in enumerate(kept)]
        keeping = self._over(replace(plan, kept=kept, keeps=True))
        gathering = self._over(replace(plan, kept=kept))
        ran = plan.over if not plan.masked else ALL
        return [(keeping, ran, (fields,)), (gathering, domain, (fields,))]

    def _traced(self, *arguments: Any) -> Any:
        key = self._key_of_types(*arguments)
        lattice = arguments[-1].lattice
        if key in self._apart:
            known = self._apart[key]
            raise type(known)(known.what)  # anew: one that is kept would collect the frames of all calls
        before = getattr(_under_way, "plan", None)
        _under_way.plan = self.base, self.derivation, _most_flops(lattice)
        try:
            return super()._traced(*arguments)
        except (KeptApartError, TargetsApartError) as apart:
            if len(self._apart) >= MOST_SEQUENCES:
                self._apart.clear()
            self._apart[key] = type(apart)(apart.what)
            raise
        finally:
            _under_way.plan = before

    def _ran_over(self, domain: Domain, arguments: tuple[Any, ...]) -> Domain:
        """The sites that the function runs over in a call over this domain, where fields may have a colour alone."""
        fields = list(fields_of(arguments))
        if domain is not ALL or all(f.over is ALL for f in fields):
            return domain
        return self.base.domain_of(self._of_base(arguments), self.derivation.sums)

    def _parts(self, ran: Domain, arguments: tuple[Any, ...]) -> list[Any]:
        """The functions that gather, and where each runs: for a function over one colour, offsets of one parity lead to one colour."""
        targets = self._targets(arguments)
        lattice = targets[0].lattice if targets else next(fields_of(arguments)).lattice
        closed = any(
            n % 2 and any(f.boundary.crossing[d] is not None for f in fields_of(arguments))
            for d, n in enumerate(lattice.extents)
        )
        one_lattice = all(f.lattice is lattice for f in fields_of(arguments))
        if ran.colouring is None and not closed and one_lattice:
            colours = {f.over for f in targets}
            parts = [part for part in PARITIES if ALL in colours or part in colours]
            return [
                (self._over(replace(self.derivation, over=ran, part=part)), part, (), Chosen(colour=part))
                for part in parts
            ]
        there = next((f.lattice for f in fields_of(self._of_base(arguments))), lattice)
        masked = self._over(replace(self.derivation, over=ran, masked=True))
        return [(masked, ALL, (_mask(there, ran),), EVERY)]

    def _over(self, derivation: Derivation) -> SiteFunction:
        return derived(self.base, derivation)


class _ApartError(TraceError):
    """A call is several; `what` says which ones."""

    def __init__(self, what: Any):
        super().__init__("")
        self.what = what


class KeptApartError(_ApartError):
    """Values are to be kept by a kernel that runs before: `what` are these, as `Kept`s."""


class TargetsApartError(_ApartError):
    """Each of the `what` fields that are gathered has a kernel of its own: together they need more registers than there are."""


class CallSequence:
    """A call of a derived function that is several calls, one behind the other; it stands where a `BoundCall` does."""

    def __init__(self, whole: DerivedFunction, parts: Sequence[Any], domain: Domain, lattice: Any):
        self.whole = whole
        self.domain = domain
        self.parts = parts
        self.lattice = lattice
        self.guards = self

    def calls(self, arguments: tuple[Any, ...]) -> list[tuple[SiteFunction, Domain, tuple[Any, ...]]]:
        """The functions, where each runs, and its arguments."""
        return [
            (function, domain, (*self.whole._chosen(arguments, chosen), *more))
            for function, domain, more, chosen in self.parts
        ]

    def hold(self) -> bool:
        """Each part looks for itself."""
        return True

    def run(self, arguments: tuple[Any, ...]) -> None:
        """Runs all parts."""
        sources = list(randoms_of(arguments))
        try:
            with next(fields_of(arguments)).lattice.lock:  # other threads keep values in the same fields
                for function, domain, given in self.calls(arguments):
                    own = _with_copies(given) if sources else given  # all parts draw the same numbers
                    function.run(domain, own, self.lattice)
            for source in {id(one): one for one in sources}.values():
                source.next_call()
        except KeptApartError:  # what the function sees has changed, and so has what is kept
            self.whole._apart.clear()
            self.whole._latest.clear()
            self.whole.run(self.domain, arguments, self.lattice)

    def bound_to(self, arguments: tuple[Any, ...]) -> BoundSequence:
        """With these arguments, for what is asked of a call that is bound."""
        return BoundSequence(self, arguments)


def _with_copies(arguments: Any) -> Any:
    """Arguments with copies of the sources of random numbers."""
    return tuple(
        copy.copy(one)
        if isinstance(one, Random)
        else list(_with_copies(one))
        if isinstance(one, list | tuple)
        else one
        for one in arguments
    )


@dataclass(frozen=True)
class GuardsOfParts:
    """The guards of all parts of a sequence."""

    parts: tuple[Any, ...]

    def hold(self) -> bool:
        """Whether all hold."""
        return all(part.hold() for part in self.parts)


class BoundSequence:
    """What a `BoundCall` says of itself, of all parts of a sequence."""

    def __init__(self, sequence: CallSequence, arguments: tuple[Any, ...]):
        self.run = sequence.run
        lattice = sequence.lattice
        self._bound = [
            function._bind(domain, given, lattice, None)
            for function, domain, given in sequence.calls(arguments)
        ]
        self.guards = GuardsOfParts(tuple(bound.guards for bound in self._bound))

    @property
    def stages(self) -> list[Any]:
        """The first stage of each kernel, and the last."""
        return [pair for bound in self._bound for pair in bound.stages]

    @property
    def kernels(self) -> list[Any]:
        """Of all parts, in order."""
        return [kernel for bound in self._bound for kernel in bound.kernels]


_scratch_fields: weakref.WeakKeyDictionary[Any, dict[Any, Field]] = weakref.WeakKeyDictionary()


def _scratch(lattice: Any, kept: Kept, number: int, precision: str) -> Field:
    """A field of a lattice for a value that is kept between two kernels; all derivatives use the same ones."""
    known = _scratch_fields.setdefault(lattice, {})
    key = (kept, number, precision)
    if key not in known:
        words: dict[Any, Any] = {1: "periodic", -1: "antiperiodic", None: "open"}
        boundary = [words.get(factor, factor) for factor in kept.factors]
        with graph_recorder.suspended():
            known[key] = Field(
                lattice, kept.element, precision=precision, boundary=boundary, name=f"kept {number}"
            )
    return known[key]


_masks: weakref.WeakKeyDictionary[Any, dict[Domain, Field]] = weakref.WeakKeyDictionary()


def _mask(lattice: Any, domain: Domain) -> Field:
    """1 on the sites of a domain, 0 elsewhere."""
    known = _masks.setdefault(lattice, {})
    if domain not in known:
        with graph_recorder.suspended(), tape_recorder.recording(None):
            field = Field(lattice, Real(), name=f"sites of {domain}")
            _fill(field, 0.0)
            _fill[domain](field, 1.0)
        known[domain] = field
    return known[domain]


def _fill_body(X: Any, field: Any, value: Any) -> None:
    field[X] = value


_fill = SiteFunction(_fill_body)


def derived(base: SiteFunction, derivation: Derivation) -> DerivedFunction:
    """The function that is derived so, made once."""
    found = base.derived.get(derivation)
    if found is None:
        found = base.derived[derivation] = DerivedFunction(base, derivation)
    assert isinstance(found, DerivedFunction)
    return found


def _parameters(base: SiteFunction, derivation: Derivation) -> list[str]:
    own = [name for name in base.parameters if derivation.kind == "tangent" or name not in derivation.sums]
    front = [*derivation.changes(base), *(f"cotangent of {name}" for name in derivation.apart)]
    weights = [f"weight of {name}" for name in derivation.sums] if derivation.weighted else []
    more = ["the sites that took part"] if derivation.masked else []
    return [*front, *own, *weights, *more, *(["kept values"] if derivation.kept else [])]


# ---- what users call -----------------------------------------------------------------------------------


def _function(function: Any, what: str) -> SiteFunction:
    if not isinstance(function, SiteFunction):
        raise ParameterError(
            f"jali.{what} takes a function decorated by jali.site_function, not {value_shown(function)}"
        )
    if function.is_method:
        raise ParameterError(
            f"{function.__name__} is a method: take it of an object, jali.{what}(model.{function.__name__}, ...)"
        )
    return function


def _named(function: SiteFunction, of: Any, what: str) -> tuple[str, ...]:
    names = tuple(of) if isinstance(of, list | tuple) else (of,)
    for name in names:
        if not isinstance(name, str) or name not in function.parameters:
            raise ParameterError(
                f"jali.{what}: of= names parameters of {function.__name__} ({', '.join(function.parameters)}), not {value_shown(name)}"
            )
    if not names or len(set(names)) < len(names):
        raise ParameterError(
            f"jali.{what}: of= names one parameter of {function.__name__} or several, each once"
        )
    return names


def _choice(neighbours: Any, what: str) -> str:
    if not isinstance(neighbours, str) or neighbours not in CHOICES:
        raise ParameterError(
            f'jali.{what}: neighbours= is "keep", "compute", or "" for whichever takes less, not {value_shown(neighbours)}'
        )
    return neighbours


def adjoint(
    function: SiteFunction, of: str | Sequence[str], *, inner: str = "complex", neighbours: str = ""
) -> DerivedFunction:
    """The adjoint of a site function that is linear in the fields that `of` names: a site function of the same parameters, which reads the
    fields that the function writes, and sets the named ones that it reads.

    <y, A x> = <A^dagger y, x> with <a, b> = sum conj(a) b over sites and components; with `inner="real"` the real part of that, which also
    functions have that are linear over the real numbers alone. Over a domain, `adjoint(f, "x")[EVEN]`, it is the adjoint of `f[EVEN]`, and
    sets all sites. Linearity is proved from the trace. `neighbours` as of `gradient`. Raises TraceError at the line of what is not linear, ParameterError for names that
    are no parameters.
    """
    function = _function(function, "adjoint")
    if inner not in ("complex", "real"):
        raise ParameterError(f'jali.adjoint: inner= is "complex" or "real", not {value_shown(inner)}')
    names, how = _named(function, of, "adjoint"), _choice(neighbours, "adjoint")
    return derived(function, Derivation("adjoint", names, inner=inner, neighbours=how))


def transpose(function: SiteFunction, of: str | Sequence[str]) -> DerivedFunction:
    """The transpose of a function that is linear in the fields that `of` names: the adjoint without complex conjugation, sum y A x = sum
    (A^T y) x. Parameters and errors as of `adjoint`."""
    function = _function(function, "transpose")
    return derived(function, Derivation("adjoint", _named(function, of, "transpose"), turned=True))


def conjugate(function: SiteFunction, of: str | Sequence[str]) -> DerivedFunction:
    """The complex conjugate of a function that is linear in the fields that `of` names: x -> conj(A conj(x)), with the parameters of the
    function. Raises TraceError at the line of what is not linear."""
    function = _function(function, "conjugate")
    return derived(function, Derivation("conjugate", _named(function, of, "conjugate")))


def gradient(
    function: SiteFunction,
    of: str | Sequence[str],
    *,
    total: str | None = None,
    weighted: bool = False,
    neighbours: str = "",
) -> DerivedFunction:
    """The gradient of a sum over sites with respect to the fields that `of` names, all others held: a site function that sets fields like
    them, which are its first parameters; behind them it takes those of `function` but the sum.

    `total` is the parameter that is the sum, by default the last one; the sum is real. Of a complex field the gradient is dS/d Re z + i
    dS/d Im z. Of links, fields of `SU(n)`, it is a field of `Algebra(n)`: F with dS = -2 tr(omega F) for U -> (1 + omega) U, as
    `Action.force`; or, where a field of `Matrix(n)` is given, the gradient with respect to the numbers of the matrix. Of `Algebra(n)` it is F
    with dS = -2 tr(dA F), of `Hermitian(n)` the Hermitian H with dS = tr(dA H). With `weighted` the last parameter is a number that
    the sum is multiplied by, for sums by label an array of them.

    What is needed at neighbours is computed again there ("compute", one kernel) or kept in fields by a kernel that runs before ("keep"), as
    `neighbours` says; by default whichever takes less by its count of flops and bytes. Raises TraceError for a sum that is not real and at the line of what has no
    derivative, ParameterError for names that are no parameters.
    """
    function = _function(function, "gradient")
    names = _named(function, of, "gradient")
    if total is None:
        total = function.parameters[-1]
        if total in names:
            raise ParameterError(
                f"jali.gradient takes a function that sums: the last parameter of {function.__name__} is its sum, and that is {total}, which of= names"
            )
    if total not in function.parameters or total in names:
        raise ParameterError(
            f"jali.gradient: total= is the parameter of {function.__name__} that is a sum ({', '.join(function.parameters)}), not {value_shown(total)}"
        )
    how = _choice(neighbours, "gradient")
    plan = Derivation("pullback", names, (total,), weighted=weighted, neighbours=how, of_sum_alone=True)
    return derived(function, plan)


def pullback(function: SiteFunction, of: str | Sequence[str], *, neighbours: str = "") -> DerivedFunction:
    """What cotangents of the fields that a function writes become, pulled back to the fields that `of` names: for dS = Re <c, dy> of each
    field y that is written, the d with dS = Re <d, dx>.

    A site function that sets fields like the named ones, which are its first parameters; behind them stand those of `function`, where those
    that are written take the cotangents. Conventions as of `gradient`: what links (`SU(n)`) get is `Algebra(n)`, and cotangents
    of links are fields of `Matrix(n)`, or of `Algebra(n)` where what is written is on the group. `neighbours` as of `gradient`. Raises
    TraceError at the line of what has no derivative, and for a function that reads a field
    which it also writes: a `jali.Tape` records such calls.
    """
    function = _function(function, "pullback")
    names, how = _named(function, of, "pullback"), _choice(neighbours, "pullback")
    return derived(function, Derivation("pullback", names, neighbours=how))


def tangent(function: SiteFunction, of: str | Sequence[str], *, total: str | None = None) -> DerivedFunction:
    """The change of what a function writes or sums, for changes of the fields that `of` names: forward mode.

    Its first parameters are these changes, one for each named field; behind them stand the parameters of `function`, and what it writes or
    sums becomes the change. A change of links is a field of `Algebra(n)`, omega of U -> (1 + omega) U, or of `Matrix(n)`; so is the change
    of links that are written. A sum is called by `lattice.sum(tangent(f, "U"), omega, U)`. Raises TraceError at the line of what has no derivative.
    """
    function = _function(function, "tangent")
    sums = () if total is None else (total,)
    return derived(function, Derivation("tangent", _named(function, of, "tangent"), sums))


# ---- what is traced ------------------------------------------------------------------------------------


def _pairs(
    names: Sequence[str], changes: Any, of: Any, linear: bool = False
) -> list[tuple[str, FieldSymbol, FieldSymbol]]:
    """Names, fields and the named ones that they belong to. Of a list there may be None for members that are left out."""
    found = []
    for name, change, symbol in zip(names, changes, of, strict=True):
        own, there = _members(change), fields_in(symbol)
        if linear and change is None:
            continue
        if not there:
            raise trace_error(f"{name} is no field: derivatives are with respect to fields")
        if any(one.element.type.kind not in ("real", "complex") for one in there):
            raise trace_error(f"{name} holds whole numbers, which have no derivative")
        if len(own) != len(there):
            raise trace_error(
                f"{name} has {len(there)} fields, and what belongs to them {len(own)}: one field for each"
            )
        found += [(name, a, b) for a, b in zip(own, there, strict=True) if a is not None]
    return found


def _members(symbol: Any) -> list[FieldSymbol | None]:
    """The fields of a parameter, None where one is left out."""
    if isinstance(symbol, Fields | list | tuple):
        return [one for member in symbol for one in _members(member)]
    return [symbol if isinstance(symbol, FieldSymbol) else None]


def is_group(element: Any) -> bool:
    """Whether a field holds links, matrices of SU(n) or phases."""
    return element.name.startswith("SU(") or element.name == "U(1)"


def _cotangent(trace: Trace, symbol: FieldSymbol, offset: tuple[int, ...], as_gradient: bool) -> Node:
    """What is read as the cotangent of a field."""
    node = leaves.load(trace.builder, symbol.slot, offset, symbol.element.type)
    leaves.know_symmetry(node, symbol.element)
    trace.slots[symbol.slot].reads.setdefault(offset, trace.builder.line)
    if as_gradient and symbol.element.codec == "algebra":
        return arithmetic.mul(trace.builder, leaves.exact(trace.builder, 2.0), node)
    return node


def _refuse_rewritten(
    base: SiteFunction, found: Inlined, trace: Trace, apart: set[int], roots: Sequence[Node]
) -> None:
    """Raises TraceError where the function reads what it writes, and its parameter stands for the cotangent."""
    written = {store.slot for store in found.stores} - apart
    for node in loads_of(roots, written):
        name = trace.slots[node.attrs[0]].name
        raise TraceError(
            f"{base.__name__} reads {name}, which it also writes, so {name} cannot stand for its cotangent: write to another field, or record "
            f"the call with jali.Tape\n  at {node.where}"
        )


def _gathering(base: SiteFunction, plan: Derivation, names: tuple[str, ...]) -> Callable[..., Any]:
    """The body of adjoints and pullbacks."""
    linear = plan.kind == "adjoint"

    def gather(X: Site, *symbols: Any) -> None:
        given = dict(zip(names, symbols, strict=True))
        trace = current_trace()
        nodes = trace.builder
        own = {name: given[name] for name in base.parameters if name in given}
        found = inlined(trace, base, own, plan.sums)
        named = [own[name] for name in plan.of]
        changes = named if linear else [given[name] for name in plan.changes(base)]
        pairs = _pairs(plan.of, changes, named, linear)
        slots = {there.slot for _, _, there in pairs}
        cotangents: dict[int, FieldSymbol | None] = {
            f.slot: f for symbol in own.values() for f in fields_in(symbol)
        }
        apart: set[int] = set()
        for name in plan.apart:
            for c, there in zip(_members(given[f"cotangent of {name}"]), fields_in(own[name]), strict=True):
                cotangents[there.slot] = c
                apart.add(there.slot)
        roots = [store.value for store in found.stores] + [term.value for term in found.terms]
        loads = loads_of(roots, slots)
        if linear:
            _check_adjoint(base, plan, found, trace, loads, slots)
        if not plan.of_sum_alone:
            _refuse_rewritten(base, found, trace, apart, roots)
        if not found.stores and not plan.sums:
            raise trace_error(f"{base.__name__} writes no field: jali.gradient takes functions that sum")
        seeds = _seeds(base, plan, found, trace, cotangents, given, linear)
        if plan.turned:
            seeds = [(value, arithmetic.conj(nodes, c)) for value, c in seeds]
        pulled = pulled_back(nodes, seeds, loads)
        gatherer = Gatherer(trace, found.ratio)
        keep, mask = _limits(plan, trace, given)
        gathered = [
            (target, there, contributions_of(trace, there, loads, pulled, target))
            for _, target, there in pairs
        ]
        outermost = getattr(_under_way, "plan", None)
        most_flops = outermost[2] if outermost and outermost[:2] == (base, plan) else None
        if found.ratio is None and most_flops:
            fields = fields_in(given["kept values"]) if plan.kept else []
            if _kept(plan, trace, gatherer, gathered, keep, fields):
                return
        totals = [
            gatherer.total(there.slot, contributions, there.element.type, keep, mask)
            if plan.only in (-1, k)
            else None
            for k, (_, there, contributions) in enumerate(gathered)
        ]
        if most_flops and plan.only < 0 and len(totals) > 1 and _flops(totals) > most_flops:
            raise TargetsApartError(len(totals))
        for (name, _, _), (target, there, _), total in zip(pairs, gathered, totals, strict=True):
            if total is not None:
                total = arithmetic.conj(nodes, total) if plan.turned else total
                _set(trace, target, there, total, linear, name in plan.adds)

    return gather


def _flops(values: Sequence[Node | None]) -> int:
    """Of one site."""
    return sum(described(node).flops(node) for node in reachable([one for one in values if one is not None]))


def _kept(
    plan: Derivation,
    trace: Trace,
    gatherer: Gatherer,
    gathered: list[tuple[FieldSymbol, FieldSymbol, list[Contribution]]],
    keep: Any,
    fields: list[FieldSymbol],
) -> bool:
    """Decides what is kept: writes it, and then this is all that is done, or has it read. Raises KeptApartError where fields for it are missing."""
    wanted = [one for _, _, some in gathered for one in gatherer.wanted(some, keep)]
    open_in = [
        {
            bool(factors) and factors[d] is None
            for _, there, _ in gathered
            for factors in [trace.slots[there.slot].factors]
        }
        for d in range(trace.ndim)
    ]
    if any(len(each) > 1 for each in open_in):
        return False
    is_open = [True in each for each in open_in]
    batched = any(slot.batch for slot in trace.slots)

    def possible(node: Node) -> bool:
        return not batched and gatherer.factors_of_value(node, is_open) is not None

    word = ARITHMETICS[trace.precision].bytes
    values = values_to_keep(wanted, word, possible, plan.neighbours, gatherer.is_bound_to_site)
    kept = tuple(Kept(element_of(node), gatherer.factors_of_value(node, is_open) or ()) for node in values)
    if kept != plan.kept:
        raise KeptApartError(kept)
    if plan.keeps:
        for node, field in zip(values, fields, strict=True):
            trace.store(field.slot, (0,) * trace.ndim, node)
        return True
    gatherer.kept = {node.number: field.slot for node, field in zip(values, fields, strict=True)}
    return False


def _check_adjoint(
    base: SiteFunction, plan: Derivation, found: Inlined, trace: Trace, loads: list[Node], slots: set[int]
) -> None:
    names = " and ".join(plan.of)
    if found.terms:
        raise trace_error(f"{base.__name__} adds to a sum: an adjoint is of a function that writes fields")
    for store in found.stores:
        if store.slot in slots:
            raise TraceError(
                f"{base.__name__} writes {trace.slots[store.slot].name}, which of= names: the adjoint is with respect to fields that are "
                f"read\n  at {store.where}"
            )
    roots = [(store.value, f"what is written to {trace.slots[store.slot].name}") for store in found.stores]
    check_linear(roots, loads, names, plan.inner == "complex")


def _seeds(
    base: SiteFunction,
    plan: Derivation,
    found: Inlined,
    trace: Trace,
    cotangents: dict[int, FieldSymbol | None],
    given: dict[str, Any],
    linear: bool,
) -> list[tuple[Node, Node]]:
    """Values and their cotangents: those of fields are read where the values are written."""
    nodes, seeds = trace.builder, []
    for store in () if plan.of_sum_alone else found.stores:
        nodes.line = store.where
        if store.slot in cotangents and cotangents[store.slot] is None:
            continue  # nothing depends on it
        symbol = cotangents.get(store.slot)
        if symbol is None:
            raise TraceError(
                f"{base.__name__} writes a field that is no argument, {trace.slots[store.slot].name}: its cotangent has no parameter\n"
                f"  at {store.where}"
            )
        if is_group(symbol.element) and not linear:
            raise TraceError(
                f"the cotangent of {symbol.name}, whose links {base.__name__} writes, is a field of Matrix, not of {symbol.element}\n"
                f"  at {store.where}"
            )
        c = _cotangent(trace, symbol, store.offset, not linear)
        if symbol.element.codec == "algebra" and not store.value.antihermitian and not linear:
            c = matrices.matmul(nodes, c, store.value)  # of links: dS = Re <c, dW> for dW = omega W
        if c.type != store.value.type:
            raise TraceError(
                f"the cotangent of what {base.__name__} writes here is a {c.type}, the value a {store.value.type}\n  at {store.where}"
            )
        seeds.append((store.value, c))
    nodes.line = ""
    for term in found.terms:
        if term.how not in ("sum", "entries"):
            raise TraceError(f"the {term.how} over sites has no derivative\n  at {term.where}")
        if term.value.type.kind == "int":
            continue
        weight = given.get(f"weight of {term.name}") if plan.weighted else 1
        if weight is None:
            continue
        complex_too = plan.weighted and term.value.type == Type("complex")
        if not complex_too and (term.value.type.kind != "real" or term.value.type.shape):
            raise TraceError(
                f"{term.name} is a {term.value.type}, and a gradient is that of a real number: take .real or .imag\n  at {term.where}"
            )
        nodes.line = term.where
        seeds.append((term.value, _weight(plan, trace, term, given)))
    nodes.line = ""
    return seeds


def _weight(plan: Derivation, trace: Trace, term: Term, given: dict[str, Any]) -> Node:
    """The cotangent of a term of a sum: the number that its entry of the sum is multiplied by."""
    nodes = trace.builder
    if not plan.weighted:
        return leaves.exact(nodes, 1.0)
    weight = given[f"weight of {term.name}"]
    index: list[Node] = [leaves.coordinate(nodes, axis, 0) for axis in plan.per]
    if term.label is not None:
        if term.label.type.kind != "int":
            raise TraceError(
                f"the weight of an entry is looked up by a whole number, and the label of {term.name} is a rounded real one\n  at {term.where}"
            )
        most = leaves.const(nodes, weight.shape[len(index)] - 1)  # a label beyond is an error of the sum
        low = elementary.call(nodes, "maximum", term.label, leaves.const(nodes, 0))
        index.append(elementary.call(nodes, "minimum", low, most))
    members = max((slot.batch for slot in trace.slots), default=0)
    if members and is_of_members(trace, term.value):
        index.append(leaves.member(nodes, members))
    if index and not getattr(weight, "shape", ()):
        raise TraceError(
            f"the sum {term.name} has an entry for each label, slice or member, and its weight is an array with a number for each\n  at {term.where}"
        )
    found = weight[tuple(map(Value, index))] if index else weight
    return conversions.convert(nodes, found.node, term.value.type.kind)


def contributions_of(
    trace: Trace, there: FieldSymbol, loads: list[Node], pulled: dict[int, Scaled], target: FieldSymbol
) -> list[Contribution]:
    """All that a field gets, from each read of it."""
    nodes = trace.builder
    batch = trace.slots[target.slot].batch
    members = max((slot.batch for slot in trace.slots), default=0)
    contributions: list[Contribution] = []
    for load in loads:
        if load.attrs[0] != there.slot or load.number not in pulled:
            continue
        scale, value = pulled[load.number]
        own = Contribution(load.attrs[1], value, load.args[0] if load.args else None, load.where, scale)
        if own.member is not None:
            of_members = is_of_members(trace, value)
            for one in turned_members(trace, own, batch, members if of_members else 0):
                contributions.append(replace(own, value=one, member=None))
        elif not batch and is_of_members(trace, value):
            for k in range(members):
                one = of_member(trace, value, leaves.const(nodes, k))
                contributions.append(replace(own, value=one))
        else:
            contributions.append(own)
    return contributions


def _limits(plan: Derivation, trace: Trace, given: dict[str, Any]) -> tuple[Any, Any]:
    """Which offsets lead to a site that took part, and what else has to be asked there."""
    if plan.masked:
        field = given["the sites that took part"]
        nodes = trace.builder

        def mask(value: Node, move: Any) -> Node:
            here = move(leaves.load(nodes, field.slot, (0,) * trace.ndim, Type("real")))
            took_part = choices.less(nodes, leaves.exact(nodes, 0.5), here)
            return choices.where(nodes, took_part, value, conversions.zero_of(nodes, value.type))

        return (lambda offset: True), mask
    if plan.over is ALL:
        return (lambda offset: True), None
    same = plan.over is plan.part
    return (lambda offset: (sum(offset) % 2 == 0) == same), None


def _set(
    trace: Trace, target: FieldSymbol, there: FieldSymbol, total: Node, linear: bool, adds: bool
) -> None:
    """Writes what a field gets, as the element that its cotangents are."""
    nodes, here = trace.builder, (0,) * trace.ndim
    total = _as_cotangent(trace, target, there, total, linear)
    if adds:
        before = leaves.load(nodes, target.slot, here, target.element.type)
        leaves.know_symmetry(before, target.element)
        trace.slots[target.slot].reads.setdefault(here, "")
        total = arithmetic.add(nodes, before, total)
    trace.store(target.slot, here, total)


def _as_cotangent(trace: Trace, target: FieldSymbol, there: FieldSymbol, total: Node, linear: bool) -> Node:
    nodes, element = trace.builder, there.element
    if leaves.is_zero(total):
        return conversions.zero_of(nodes, target.element.type)
    if element.codec == "hermitian":
        return groups.hermitian(nodes, total)
    if element.codec == "algebra":
        found = groups.antihermitian(nodes, total)
        return found if linear else arithmetic.mul(nodes, leaves.exact(nodes, 0.5), found)
    if is_group(element) and target.element.codec == "algebra":
        link = trace.load(there.slot, (0,) * trace.ndim)
        product = matrices.matmul(nodes, total, matrices.adjoint(nodes, link))
        return arithmetic.mul(nodes, leaves.exact(nodes, 0.5), groups.antihermitian(nodes, product))
    if is_group(element) and is_group(target.element) and not linear:
        raise trace_error(
            f"what {there.name}, a field of {element}, gets is a field of Algebra or of Matrix, not of {target.element}"
        )
    return total


def _forward(base: SiteFunction, plan: Derivation, names: tuple[str, ...]) -> Callable[..., Any]:
    """The body of tangents."""

    def push(X: Site, *symbols: Any) -> None:
        given = dict(zip(names, symbols, strict=True))
        trace = current_trace()
        nodes = trace.builder
        own = {name: given[name] for name in base.parameters}
        sums = [name for name in base.parameters if hasattr(given[name], "_gathered")]
        found = inlined(trace, base, own, sums)
        pairs = _pairs(plan.of, [given[name] for name in plan.changes(base)], [own[name] for name in plan.of])
        change_of = {there.slot: change for _, change, there in pairs}
        roots = [store.value for store in found.stores] + [term.value for term in found.terms]
        _refuse_rewritten(base, found, trace, set(), roots)
        gatherer = Gatherer(trace, found.ratio)
        changes = {
            load.number: _read_change(trace, gatherer, load, change_of[load.attrs[0]])
            for load in loads_of(roots, set(change_of))
        }
        pushed = pushed_forward(nodes, roots, changes)
        fields = {f.slot: f for symbol in own.values() for f in fields_in(symbol)}
        for store in found.stores:
            change = pushed.get(store.value.number)
            target = fields[store.slot]
            value = conversions.zero_of(nodes, target.element.type) if change is None else change
            if is_group(target.element):
                raise TraceError(
                    f"the change of {target.name}, whose links {base.__name__} writes, is a field of Algebra or Matrix: give such a one\n  at {store.where}"
                )
            if target.element.codec == "algebra":
                if not store.value.antihermitian:  # links are written
                    value = matrices.matmul(nodes, value, matrices.adjoint(nodes, store.value))
                value = groups.antihermitian(nodes, value)
            elif target.element.codec == "hermitian":
                value = groups.hermitian(nodes, value)
            trace.store(store.slot, store.offset, value)
        for term in found.terms:
            if term.how not in ("sum", "entries"):
                raise TraceError(f"the {term.how} over sites has no derivative\n  at {term.where}")
            change = pushed.get(term.value.number)
            value = conversions.zero_of(nodes, term.value.type) if change is None else change
            given[term.name]._add(Value(value), term.label)

    return push


def _read_change(trace: Trace, gatherer: Gatherer, load: Node, change: FieldSymbol) -> Node:
    """The change of a value that is read, by the boundary of the field that changes, whichever its own field has."""
    nodes = trace.builder
    node = nodes.node(load.op, load.args, (change.slot, *load.attrs[1:]), change.element.type)
    leaves.know_symmetry(node, change.element)
    trace.slots[change.slot].reads.setdefault(load.attrs[1], load.where)
    own = trace.slots[load.attrs[0]].storage.element
    omega = is_group(own) and change.element.codec == "algebra"  # it has no phase: the link has it
    for d, step in enumerate(load.attrs[1]):
        if step:
            has, wanted = (_factor_at_edge(trace, slot, d) for slot in (change.slot, load.attrs[0]))
            node = gatherer.with_factor(
                node, d, step, has, 1 if omega and wanted is not None else wanted, load.where
            )
    if omega:
        return matrices.matmul(nodes, node, load)
    if node.type != load.type:
        raise TraceError(
            f"the change of {own} is a field like it, not of {change.element}\n  at {load.where}"
        )
    return node


def _factor_at_edge(trace: Trace, slot: int, d: int) -> complex | None:
    """By what a field is multiplied across the upper edge; None where it is open."""
    factors = trace.slots[slot].factors
    return factors[d] if factors else 1


def _conjugated(base: SiteFunction, plan: Derivation, names: tuple[str, ...]) -> Callable[..., Any]:
    """The body of conjugates."""

    def conjugated(X: Site, *symbols: Any) -> None:
        own = dict(zip(names, symbols, strict=True))
        trace = current_trace()
        nodes = trace.builder
        found = inlined(trace, base, own, ())
        slots = {f.slot for name in plan.of for f in fields_in(own[name])}
        loads = loads_of([store.value for store in found.stores], slots)
        _check_adjoint(base, replace(plan, inner="real"), found, trace, loads, slots)
        gatherer = Gatherer(trace, found.ratio)
        changes = {}
        for load in loads:
            node = arithmetic.conj(nodes, load)
            for d, step in enumerate(load.attrs[1]):
                factor = _factor_at_edge(trace, load.attrs[0], d)
                if (
                    step and factor is not None
                ):  # the field that is conjugated has the boundary of the other one
                    node = gatherer.with_factor(
                        node, d, step, complex(factor).conjugate(), factor, load.where
                    )
            changes[load.number] = node
        pushed = pushed_forward(nodes, [store.value for store in found.stores], changes)
        for store in found.stores:
            change = pushed.get(store.value.number)
            value = conversions.zero_of(nodes, store.value.type) if change is None else change
            trace.store(store.slot, store.offset, arithmetic.conj(nodes, value))

    return conjugated


_BODIES: dict[str, Callable[[SiteFunction, Derivation, tuple[str, ...]], Callable[..., Any]]] = {
    "adjoint": _gathering,
    "pullback": _gathering,
    "tangent": _forward,
    "conjugate": _conjugated,
    "needs": needing,
}
