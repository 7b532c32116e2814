"""What a tape records: calls of site functions, copies, and steps with a rule of their own. Each can be run again and pulled back.

A record names fields by their memory (a view of members belongs to the field that it is a view of). `Values` says which field holds a value
that was there when the record was made.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jali import graph_recorder
from jali.codegen.lines import user_line
from jali.codegen.types import Element, Matrix
from jali.derivatives.functions import Derivation, derived, is_group
from jali.derivatives.needed_values import NeededError, Places
from jali.errors import TraceError
from jali.lattice.arguments import key_of
from jali.lattice.domain import ALL, Domain
from jali.lattice.field import Field
from jali.lattice.random import Random
from jali.lattice.sites import SiteFunction


def whole_of(one: Field) -> Field:
    """The field whose memory a field has."""
    return one if one.view_of is None else one.view_of


def new_like(one: Field, element: Element, name: str) -> Field:
    """A field of zeros like this one, of plain numbers, also while a graph is recorded."""
    with graph_recorder.suspended():
        return Field(
            one.lattice, element, one.precision, None, one.boundary, name, over=one.over, batch=one.batch
        )


def cotangent_element(element: Element) -> Element:
    """What the cotangent of a field of this element is, while it may not be on the group."""
    return Matrix(element.type.shape[0]) if is_group(element) else element


class Values(Protocol):
    """Which field holds a value now."""

    def primal(self, serial: int, number: int, where: str) -> Field:
        """The field with value `number` of the memory `serial`."""
        ...

    def there(self, serial: int, number: int) -> Field | None:
        """The same field where no work is needed for it."""
        ...


class Pool:
    """Fields that are used again: calls with fields that they have met before are bound already."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Field]] = {}

    @staticmethod
    def kind(one: Field) -> Any:
        """What fields have in common which may stand for each other."""
        return one.lattice.serial, one.element, one.precision, one.format, one.boundary, one.over, one.batch

    def take(self, one: Field, element: Element | None = None, name: str = "") -> Field:
        """A field like this one, or of plain numbers of another element, with any values."""
        if element is None:
            kind = self.kind(one)
        else:
            kind = one.lattice.serial, element, one.precision, None, one.boundary, one.over, one.batch
        free = self._free.get(kind)
        if free:
            return free.pop()
        if element is not None:
            return new_like(one, element, name)
        with graph_recorder.suspended():
            return one.like(name=name)

    def give(self, one: Field, plain: bool = False) -> None:
        """Takes a field back that nobody uses any more."""
        kind = self.kind(one)
        self._free.setdefault((*kind[:3], None, *kind[4:]) if plain else kind, []).append(one)


class Cotangents:
    """The cotangents of fields, by their memory, at one moment of the way back."""

    def __init__(self, pool: Pool) -> None:
        self.fields: dict[int, Field] = {}
        self.pool = pool

    def get(self, one: Field) -> Field | None:
        """That of a field; of a view its members."""
        whole = self.fields.get(whole_of(one).serial)
        return whole if whole is None or one.view_of is None else members_like(whole, one)

    def new(self, whole: Field, zero: bool = True) -> Field:
        """A field for the cotangent of a memory, of zeros or of anything."""
        found = self.pool.take(whole, cotangent_element(whole.element), f"cotangent of {whole.name}")
        if zero:
            _clear(found)
        return found

    def make(self, one: Field, zero: bool = True) -> Field:
        """A new one for the memory of a field."""
        whole = whole_of(one)
        found = self.fields[whole.serial] = self.new(whole, zero or one.view_of is not None)
        return found

    def drop(self, one: Field) -> None:
        """Nothing depends any more on what a field held later."""
        gone = self.fields.pop(whole_of(one).serial, None)
        if gone is not None:
            self.pool.give(gone, plain=True)


def members_like(whole: Field, view: Field) -> Field:
    """The same members of another field as a view has."""
    assert view.listed_members is not None
    listed = list(view.listed_members)
    return whole.members[listed] if view.batch is not None else whole.members[listed[0]]


def substituted(argument: Any, put: Callable[[Field], Any]) -> Any:
    """An argument with other fields."""
    if isinstance(argument, Field):
        return put(argument)
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return [put(one) for one in fields]
    if isinstance(argument, list | tuple):
        return [substituted(one, put) for one in argument]
    return argument


def _held(argument: Any) -> Any:
    """An argument as it is now: arrays and sources of random numbers may be others later."""
    if isinstance(argument, np.ndarray):
        return argument.copy()
    if isinstance(argument, Random):
        return copy.copy(argument)
    if isinstance(argument, list | tuple):
        return [_held(one) for one in argument]
    return argument


def _again(argument: Any) -> Any:
    """The same for one more call, which draws the same random numbers."""
    if isinstance(argument, Random):
        return copy.copy(argument)
    if isinstance(argument, list | tuple):
        return [_again(one) for one in argument]
    return argument


@dataclass
class Access:
    """A field that a record reads or writes: its memory's value before, or the one that it leaves."""

    one: Field
    number: int
    full: bool = True  # of a write: nothing is left of the value before


@dataclass
class Record:
    """One step. `active`: it has a derivative with respect to what the tape is for."""

    reads: dict[int, Access]
    writes: dict[int, Access]
    active: bool
    where: str = field(default_factory=lambda: user_line(beyond_trace=True))

    def needs(self) -> frozenset[int]:
        """Which of the memories that it reads its way back needs as they were."""
        return frozenset(self.reads)

    def run_again(self, put: Callable[[Field], Field]) -> None:
        """Does the same to other fields."""
        raise NotImplementedError

    def pull_back(
        self,
        values: Values,
        cotangents: Cotangents,
        weights: Mapping[int, Any],
        wanted: Callable[[Access], bool],
    ) -> None:
        """Takes the cotangents of what is written to what is read; `weights` are those of its sums, `wanted` says which reads have any."""
        raise NotImplementedError


Known = dict[Any, "Places | None"]
"""What calls of some kind need for their way back, by what it depends on; None: all that they read."""


def _kind_of(argument: Any, seen: dict[int, int]) -> Any:
    """What of an argument a trace depends on, as a key; `seen` numbers fields."""
    if isinstance(argument, Field):
        return seen.setdefault(argument.serial, len(seen)), Pool.kind(argument)
    many = getattr(argument, "fields", argument)
    return tuple(_kind_of(one, seen) for one in many) if isinstance(many, list | tuple) else key_of(argument)


@dataclass
class CallRecord(Record):
    """A call of a site function. `targets`: the memories that it reads which have a derivative; `known` is what the tape knows of other calls."""

    function: SiteFunction = None  # type: ignore[assignment]
    domain: Domain = ALL
    arguments: tuple[Any, ...] = ()
    lattice: Any = None
    sums: Any = None
    guards: Any = None
    targets: frozenset[int] = frozenset()
    known: Known = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arguments = tuple(_held(one) for one in self.arguments)

    def needs(self) -> frozenset[int]:
        return self._needed

    @functools.cached_property
    def _needed(self) -> frozenset[int]:
        places = self._needed_places
        if places is None:
            return frozenset(self.reads)
        pairs = zip(self.function.parameters, self.arguments, strict=True)
        return frozenset(
            whole_of(one).serial
            for name, argument in pairs
            for k, one in enumerate(_fields(argument))
            if (name, k) in places and whole_of(one).serial in self.reads
        )

    @functools.cached_property
    def _needed_places(self) -> Places | None:
        """What its way back needs; None, all, where what the function sees is not what it was. Of a loop's calls with the same fields the second one
        need not look at what these are."""
        if not self.guards.hold():
            return None
        key = (self.function, self.guards, self.targets, self.lattice, *map(key_of, self.arguments))
        if key not in self.known:
            self.known[key] = self._places_of_kind()
        return self.known[key]

    def _places_of_kind(self) -> Places | None:
        sums = tuple(self._sums())
        pairs = list(zip(self.function.parameters, self.arguments, strict=True))
        of = tuple(
            name for name, one in pairs if any(whole_of(f).serial in self.targets for f in _fields(one))
        )
        given = tuple(one for name, one in pairs if name not in sums)
        seen: dict[int, int] = {}
        key = (self.function, self.guards, of, self.lattice, *(_kind_of(one, seen) for one in given))
        if key not in self.known:
            self.known[key] = None  # where it cannot be traced, the way back says why
            try:
                derived(self.function, Derivation("needs", of, sums))._bind(ALL, given, self.lattice, None)
            except NeededError as found:
                self.known[key] = found.what
            except TraceError:
                pass
        return self.known[key]

    def _call(self, function: SiteFunction, arguments: Sequence[Any]) -> Any:
        try:
            return function.run(self.domain, tuple(map(_again, arguments)), self.lattice, None)
        except TraceError as error:
            raise TraceError(str(error).replace("at <unknown>", f"at {self.where}")) from error

    def run_again(self, put: Callable[[Field], Field]) -> None:
        if self.writes:
            self._check_guards()
            if self.sums is not None:
                raise TraceError(
                    f"{self.function.__name__} writes fields and sums in one call, which is not repeated to compute values again: make two "
                    f"functions of it\n  at {self.where}"
                )
            self._call(self.function, [substituted(one, put) for one in self.arguments])

    def pull_back(
        self,
        values: Values,
        cotangents: Cotangents,
        weights: Mapping[int, Any],
        wanted: Callable[[Access], bool],
    ) -> None:
        sums = self._sums()
        has_weight = [k for k in range(len(sums)) if k in weights]
        arrived = [one for one in self.writes.values() if cotangents.get(one.one) is not None]
        targets = {serial: one for serial, one in self.reads.items() if wanted(one)}
        if (arrived or has_weight) and targets:
            self._check_guards()
            self._pull(values, cotangents, weights, targets, sums)
        else:
            self._consume(cotangents, {})

    def _sums(self) -> list[str]:
        from jali.lattice.arguments import SUM

        pairs = zip(self.function.parameters, self.arguments, strict=True)
        return [name for name, one in pairs if one is SUM]

    def _check_guards(self) -> None:
        if not self.guards.hold():
            raise TraceError(
                f"{self.function.__name__} would be another formula now than when it was recorded: a number, a function or an object that it "
                f"sees has changed. Pass what changes as an argument\n  at {self.where}"
            )

    def _pull(
        self,
        values: Values,
        cotangents: Cotangents,
        weights: Mapping[int, Any],
        targets: dict[int, Access],
        sums: list[str],
    ) -> None:
        in_place = {serial for serial in targets if serial in self.writes}
        made: dict[
            int, Field
        ] = {}  # cotangents of what is read and written, which take the place of those of what is written
        seen: set[int] = set()
        of: list[str] = []
        changes: list[Any] = []
        adds: list[str] = []
        for name, argument in zip(self.function.parameters, self.arguments, strict=True):
            fields = [one for one in _fields(argument) if self._is_target(one, targets, seen)]
            if not fields:
                continue
            known = [
                whole_of(one).serial not in in_place and cotangents.get(one) is not None for one in fields
            ]
            mine = {one.serial for one in fields}
            if any(known):
                adds.append(name)

            def target(one: Field, mine: set[int] = mine, zero: bool = any(known)) -> Any:
                if one.serial not in mine:
                    return None
                whole = whole_of(one)
                if whole.serial in in_place:
                    if whole.serial not in made:
                        made[whole.serial] = cotangents.new(whole, zero or one.view_of is not None)
                    found = made[whole.serial]
                    return found if one.view_of is None else members_like(found, one)
                existing = cotangents.get(one)
                if existing is None:
                    cotangents.make(one, zero)
                    existing = cotangents.get(one)
                return existing

            of.append(name)
            changes.append(substituted(argument, target))
        apart, given = [], []
        written = set(self.writes)
        for name, argument in zip(self.function.parameters, self.arguments, strict=True):
            if any(whole_of(one).serial in written for one in _fields(argument)):
                apart.append(name)
                given.append(
                    substituted(
                        argument, lambda one: cotangents.get(one) if whole_of(one).serial in written else None
                    )
                )
        plan = Derivation(
            "pullback",
            tuple(of),
            tuple(sums),
            apart=tuple(apart),
            weighted=True,
            adds=tuple(adds),
            per=() if self.sums is None or self.sums.per is None else tuple(self.sums.per),
        )
        primal = [
            self._primals(values, name, one)
            for name, one in zip(self.function.parameters, self.arguments, strict=True)
            if name not in sums
        ]
        self._check_first_lattice(primal)
        self._call(
            derived(self.function, plan),
            [*changes, *given, *primal, *(weights.get(k) for k in range(len(sums)))],
        )
        self._consume(cotangents, made)

    def _check_first_lattice(self, arguments: Sequence[Any]) -> None:
        first = next((one.lattice for argument in arguments for one in _fields(argument)), None)
        if self.sums is not None and self.lattice is not None and first is not self.lattice:
            raise TraceError(
                f"{self.function.__name__} is summed over {self.lattice}, and its first field lives on {first}: of a sum that has a derivative the first field lives "
                f"on the lattice that is summed\n  at {self.where}"
            )

    def _is_target(self, one: Field, targets: dict[int, Access], seen: set[int]) -> bool:
        """Whether this is the first place of a field among the arguments; several views of one memory have a place each."""
        if whole_of(one).serial not in targets or one.serial in seen:
            return False
        seen.add(one.serial)
        return True

    def _primals(self, values: Values, name: str, argument: Any) -> Any:
        """An argument with the values that there were; where these are not needed and not at hand with any fields of the same kind, its own."""
        number = itertools.count()
        return substituted(argument, lambda one: self._primal(values, one, (name, next(number))))

    def _primal(self, values: Values, one: Field, place: tuple[str, int]) -> Field:
        whole = whole_of(one)
        access = self.reads.get(whole.serial)
        if access is None:
            return one
        found = values.there(whole.serial, access.number)
        if found is None:
            places = self._needed_places
            if places is not None and place not in places:
                return one
            found = values.primal(whole.serial, access.number, self.where)
        return found if one.view_of is None else members_like(found, one)

    def _consume(self, cotangents: Cotangents, made: dict[int, Field]) -> None:
        """What was written has no cotangent before the call, but for what it was read for."""
        for serial, access in self.writes.items():
            old = cotangents.fields.get(serial)
            if old is None:
                if serial in made:
                    cotangents.fields[serial] = made[serial]
                continue
            if access.full:
                cotangents.drop(access.one)
            else:
                with_zeros(old, access.one, self.domain)
            if serial in made:
                if serial in cotangents.fields:
                    add_to(cotangents.fields[serial], made[serial])
                    cotangents.pool.give(made[serial], plain=True)
                else:
                    cotangents.fields[serial] = made[serial]


def _fields(argument: Any) -> list[Field]:
    if isinstance(argument, Field):
        return [argument]
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return list(fields)
    if isinstance(argument, list | tuple):
        return [found for one in argument for found in _fields(one)]
    return []


@SiteFunction
def _clear(X: Any, f: Any) -> None:
    from jali.codegen.values import zero

    f[X] = zero(f.element)


def with_zeros(cotangent: Field, written: Field, domain: Domain) -> None:
    """Zeros where a call over a domain has written a field, which is perhaps a view of some members."""
    there = cotangent if written.view_of is None else members_like(cotangent, written)
    _clear[domain if there.over is ALL else ALL](there)


def add_to(total: Field, more: Field) -> None:
    """total += more."""
    total += more


def is_needed_by(value: tuple[int, int], readers: Mapping[tuple[int, int], Sequence[Record]]) -> bool:
    """Whether the way back of any of these, by the values that they read, needs a value."""
    return any(value[0] in one.needs() for one in readers.get(value, ()))


@dataclass
class CopyRecord(Record):
    """The values of a field into another one, of the same sites or of a colour of them."""

    target: Field = None  # type: ignore[assignment]
    source: Field = None  # type: ignore[assignment]
    partly: bool = False

    def needs(self) -> frozenset[int]:
        return frozenset()

    def run_again(self, put: Callable[[Field], Field]) -> None:
        put(self.target)._assign(put(self.source), self.partly)

    def pull_back(
        self,
        values: Values,
        cotangents: Cotangents,
        weights: Mapping[int, Any],
        wanted: Callable[[Access], bool],
    ) -> None:
        arrived = cotangents.get(self.target)
        if arrived is None:
            return
        if wanted(self.reads[whole_of(self.source).serial]):
            gain(cotangents, self.source, self._over_sites_of_source(arrived))
        (access,) = self.writes.values()
        if access.full:
            cotangents.drop(self.target)
        else:
            with_zeros(cotangents.fields[whole_of(self.target).serial], self.target, self.source.over)

    def _over_sites_of_source(self, c: Field) -> Field:
        """A cotangent of the target, of the sites that the source has."""
        if c.over is self.source.over:
            return c
        if self.source.over is not ALL:
            return c.on(self.source.over)
        spread = new_like(self.source, c.element, "spread")
        return spread._assign(c, True)


@dataclass
class RuleRecord(Record):
    """A step that brings its own rule: `again(put)` repeats it, `pull(cotangent, primal)` gives pairs of fields that it read and their
    cotangents for that of what it wrote; `primal(field)` is a field as it was before."""

    target: Field = None  # type: ignore[assignment]
    again: Callable[[Callable[[Field], Field]], Any] = None  # type: ignore[assignment]
    pull: Callable[[Field, Callable[[Field], Field]], list[tuple[Field, Field]]] = None  # type: ignore[assignment]

    def run_again(self, put: Callable[[Field], Field]) -> None:
        self.again(put)

    def pull_back(
        self,
        values: Values,
        cotangents: Cotangents,
        weights: Mapping[int, Any],
        wanted: Callable[[Access], bool],
    ) -> None:
        arrived = cotangents.get(self.target)
        if arrived is None:
            return

        def primal(one: Field) -> Field:
            serial = whole_of(one).serial
            found = values.primal(serial, self.reads[serial].number, self.where)
            return found if one.view_of is None else members_like(found, one)

        cotangents.drop(self.target)
        for one, part in self.pull(arrived, primal):
            if wanted(self.reads[whole_of(one).serial]):
                gain(cotangents, one, part)


def gain(cotangents: Cotangents, one: Field, part: Field) -> None:
    """Adds to the cotangent of a field."""
    found = cotangents.get(one)
    if found is None:
        cotangents.make(one)
        found = cotangents.get(one)
    assert found is not None
    add_to(found, part)


@dataclass
class SolutionRecord(Record):
    """x with A x = b: b gets y = A^-dagger c, and what A is made of gets the cotangents of A x for -y (`application` are the records of A x,
    which `image` holds)."""

    target: Field = None  # type: ignore[assignment]
    b: Field = None  # type: ignore[assignment]
    image: Field = None  # type: ignore[assignment]
    application: list[Record] = field(default_factory=list)
    solve_adjoint: Callable[[Field], Field] = None  # type: ignore[assignment]
    calls: Sequence[Any] = ()
    calls_now: Callable[[], Sequence[Any]] = None  # type: ignore[assignment]

    def run_again(self, put: Callable[[Field], Field]) -> None:
        raise TraceError(
            f"a solve is not repeated to compute values again: give the tape memory for all\n  at {self.where}"
        )

    def pull_back(
        self,
        values: Values,
        cotangents: Cotangents,
        weights: Mapping[int, Any],
        wanted: Callable[[Access], bool],
    ) -> None:
        arrived = cotangents.get(self.target)
        if arrived is None:
            return
        for record in self.application:  # the operator is used as it is now
            for serial, access in record.reads.items():
                if serial not in (self.target.serial, self.image.serial):
                    found = values.primal(serial, access.number, self.where)
                    if found is not whole_of(access.one) and serial not in self.own:
                        raise TraceError(
                            f"{access.one.name}, which the operator of this solve is made of, has changed since: the adjoint solve needs it as it was. "
                            f"Give the operator a copy\n  at {self.where}"
                        )
        if not alike(self.calls, self.calls_now()):
            raise TraceError(
                "a number, an array or a function that the operator of this solve is made of has changed since, and the adjoint solve needs it as it was: change it after "
                f"tape.gradient, or make another operator\n  at {self.where}"
            )
        cotangents.drop(self.target)
        y = self.solve_adjoint(arrived)
        if wanted(self.reads[whole_of(self.b).serial]):
            gain(cotangents, self.b, y)
        if self.application:
            with_sign = new_like(self.image, self.image.element, "minus the solution of the adjoint")
            with_sign[...] = -y
            cotangents.fields[self.image.serial] = with_sign
            for record in reversed(self.application):
                if record.active:
                    record.pull_back(values, cotangents, {}, wanted)
            cotangents.drop(self.image)

    @property
    def own(self) -> set[int]:
        """Memories that the records of A x write: made for them."""
        return {serial for record in self.application for serial in record.writes}


def calls_of(records: Sequence[Record]) -> list[Any]:
    """What calls were made of, but for fields: functions, where they ran, and values."""
    return [
        (one.function, one.domain, one.guards, [_without_fields(a) for a in one.arguments])
        for one in records
        if isinstance(one, CallRecord)
    ]


def _without_fields(argument: Any) -> Any:
    if isinstance(argument, Field) or getattr(argument, "fields", None) is not None:
        return None
    return [_without_fields(one) for one in argument] if isinstance(argument, list | tuple) else argument


def alike(before: Any, now: Any) -> bool:
    """Whether calls are those of before."""
    if isinstance(before, list | tuple):
        return len(before) == len(now) and all(map(alike, before, now))
    if hasattr(before, "hold"):
        return bool(before.hold())
    if isinstance(before, np.ndarray | int | float | complex):
        return type(before) is type(now) and np.array_equal(before, now)
    return before is now or not isinstance(before, SiteFunction | Domain)


_most_sites: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def size_of(one: Field) -> int:
    """The bytes of a field's sites on the rank that has most: ranks decide alike."""
    sites = _most_sites.get(one.lattice)
    if sites is None:
        partition, ranks = one.lattice.partition, range(one.lattice.communicator.size)
        sites = _most_sites[one.lattice] = max(math.prod(partition.extents(rank)) for rank in ranks)
    if one.over is not ALL:
        sites = (sites + 1) // 2
    return int(sites * one.stored.site_bytes * (one.members_in_memory or 1))
