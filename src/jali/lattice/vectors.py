"""Fields as vectors: see `jali.vectors` for the protocol.

An update of several fields is one kernel. Its pattern, which fields are combined and with which numbers, is fixed while tracing; the
numbers are run-time arguments, so one kernel serves all iterations, whether they are Python's or `Scalar`s.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.values import where
from jali.errors import LayoutError, TraceError
from jali.io import open_checkpoint
from jali.lattice import vector_sets
from jali.lattice.algebra import inner, norm2, sum_of_members
from jali.lattice.base import no_field, what_differs
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.graphs import Graph
from jali.lattice.loading import field_of_checkpoint
from jali.lattice.member_products import Combination, combine, gram
from jali.lattice.saving import OWN, save_fields
from jali.lattice.scalars import LocatedArray, Scalar
from jali.lattice.sites import site_function
from jali.lattice.sums_of_ranks import why_ranks_need_the_host
from jali.philox import uniform_box
from jali.vectors import sets
from jali.vectors.arrays import factor_of, type_in
from jali.vectors.files import Read
from jali.vectors.registry import VectorKind, add

# Factors that are part of the pattern; another one is a number, "n", or an array with a number for each member of a batch, "a".
_SIGNS = {0: "0", 1: "+", -1: "-"}


def _combine(X: Any, fields: Any, numbers: Any, pattern: str) -> Any:
    """Each assignment of the pattern in turn; the last field that was assigned.

    "+n;n+" is y0 = y0 + n0 x0, then y1 = n1 y1 + x1, with the fields [y0, x0, y1, x1]. Products come last, so that each becomes a
    multiply-add.
    """
    factors, members = iter(numbers), iter(fields)
    target: Any = None
    for assignment in pattern.split(";"):
        target = None
        terms: list[tuple[str, Any, Any]] = []
        for sign in assignment:
            field = next(members)
            target = field if target is None else target
            factor: Any = next(factors) if sign in "na" else None
            terms.append((sign, factor, field))
        value = None
        for sign, factor, field in sorted(terms, key=lambda term: term[0] in "na"):
            if sign in "na":
                product = (factor if sign == "n" else factor[X.member]) * field[X]
                value = product if value is None else value + product
            elif sign == "-":
                value = -field[X] if value is None else value - field[X]
            elif sign == "+":
                value = field[X] if value is None else value + field[X]
        assert target is not None
        target[X] = value
    return target


@site_function
def _update(X: Any, fields: Any, numbers: Any, pattern: Any) -> None:
    _combine(X, fields, numbers, pattern)


@site_function
def _update_norm2(X: Any, fields: Any, numbers: Any, pattern: Any, total: Any) -> None:
    total += _combine(X, fields, numbers, pattern)[X].norm2()


@site_function
def _ratios(X: Any, r: Any, x: Any, total: Any) -> None:
    square = x[X].norm2()
    total += where(square > 0, r[X].norm2() / square, 1.0)


def _check_update(assignments: Sequence[tuple[Field, Any, Sequence[tuple[Any, Field]]]]) -> None:
    """Raises LayoutError, with the names of the fields, where these or the factors do not fit: only asked once a kernel has refused them."""
    first = assignments[0][0]
    for y, own, terms in assignments:
        for a, x in ((own, y), *terms):
            if x.lattice is not first.lattice:
                raise LayoutError(
                    f"an update has one lattice: {first.name} lives on {first.lattice}, {x.name} on {x.lattice} "
                    f"({what_differs(first.lattice, x.lattice)})"
                )
            if x.batch != y.batch:
                raise LayoutError(
                    f"{x.name} has {x.batch} members, {y.name} {y.batch}: an update has one batch"
                )
            if x.over is not y.over:
                raise LayoutError(
                    f"{x.name} lives on {x.over}, {y.name} on {y.over}: an update has one colour"
                )
            if x.element.type.shape != y.element.type.shape:
                raise LayoutError(
                    f"{x.name} holds {x.element}, and {y.name}, which it is added to, {y.element}: one update has elements of one shape"
                )
            number = (
                np.iscomplexobj(a)
                if isinstance(a, np.ndarray)
                else a.kind == "complex"
                if isinstance(a, LocatedArray)
                else a.is_complex
                if isinstance(a, Scalar)
                else isinstance(factor_of(a), complex)
            )
            if y.element.type.kind == "real" and (number or x.element.type.kind == "complex"):
                factor = "a complex Scalar" if isinstance(a, Scalar) else f"the factor {a}"
                what = factor if number else f"{x.name}, which holds {x.element},"
                raise LayoutError(
                    f"{what} makes complex numbers, which {y.name} does not hold, a field of {y.element}; make that a complex one, or take "
                    "real parts"
                )


class FieldVectors:
    """The vector operations of solvers, for fields; `jali.vectors.Vectors` describes them."""

    def of_whole_batch(self) -> FieldVectors:
        """The operations for which all members of a batch are one vector."""
        return WholeBatchVectors()

    def check(self, name: str, x: Field, like: Field) -> None:
        """Raises LayoutError unless x could be added to `like`."""
        if not isinstance(x, Field):
            raise LayoutError(f"{name} is no field, as b is, but {no_field(x)}")
        if x.lattice is not like.lattice or x.element != like.element:
            differ = "" if x.lattice is like.lattice else f" ({what_differs(x.lattice, like.lattice)})"
            raise LayoutError(
                f"{name} holds {x.element} on {x.lattice}, b holds {like.element} on {like.lattice}{differ}"
            )
        if x.batch != like.batch:
            raise LayoutError(f"{name} has {x.batch} members, b has {like.batch}")
        if x.over is not like.over:
            raise LayoutError(
                f"{name} lives on {x.over}, b on {like.over}: x.on({like.over}) is the part of a field there"
            )
        if x.precision != like.precision:
            raise LayoutError(
                f"{name} has {x.precision} arithmetic, b has {like.precision}: x.astype({like.precision!r}) converts"
            )

    def like(self, x: Field, precision: str | None = None) -> Field:
        """Zeros; of another precision stored as its own numbers."""
        if precision is None:
            return x.like()
        self.epsilon(x)  # refuses whole numbers
        type_in(precision, x.dtype)  # refuses unknown ones
        return x.like() if precision == x.precision else x.like(precision=precision)

    def stored(self, x: Field, storage: str | None = None) -> Field:
        """Zeros in one of the storage formats of fields."""
        return x.like(storage=x.precision if storage is None else storage)

    def storage(self, x: Field) -> str:
        """The name of its format."""
        return x.stored.format.name

    def batch_of(self, x: Field, count: int) -> Field | None:
        """None where x has a batch."""
        return x.like(batch=count) if x.batch is None else None

    def copy(self, x: Field) -> Field:
        """The same values."""
        return x.copy()

    def random(self, x: Field, seed: int) -> Field:
        """Uniform in (-1, 1); a number belongs to a site and a component."""
        lattice, box = x.lattice, (x.lattice.local_origin, x.lattice.local_extents)
        return x.like().set_local(uniform_box(lattice.extents, *box, x.shape[lattice.ndim :], x.dtype, seed))

    def ranks(self, x: Field) -> list[Any]:
        """Those of its lattice."""
        ranks = x.lattice.communicator
        return [ranks] if ranks.size > 1 else []

    def epsilon(self, x: Field) -> float:
        """Of its arithmetic: one rounding, relative. Raises LayoutError for whole numbers, which have none."""
        if x.element.type.kind == "int":
            raise LayoutError(f"{x.name} holds whole numbers; solvers compute with real and complex ones")
        return ARITHMETICS[x.precision].epsilon

    def precision(self, x: Field) -> str:
        """Of its arithmetic, by name."""
        return x.precision

    def inner(self, x: Field, y: Field, wait: bool = True) -> Any:
        """Sum of conj(x) y."""
        return inner(x, y, wait=wait)

    def norm2(self, x: Field, wait: bool = True) -> Any:
        """Sum of |x|^2."""
        return norm2(x, wait=wait)

    def update(
        self,
        assignments: Sequence[tuple[Field, Any, Sequence[tuple[Any, Field]]]],
        norm: bool = False,
        wait: bool = True,
    ) -> Any:
        """One kernel for all assignments, in the widest precision of their fields, and the sum of |y|^2 of the last one's target."""
        fields: list[Field] = []
        numbers: list[Any] = []
        pattern = ""
        for y, own, terms in assignments:
            pattern += ";" if pattern else ""
            for a, x in ((own, y), *terms):
                if not isinstance(x, Field):
                    raise LayoutError(
                        f"an update of fields is one between fields, and one of its vectors is {no_field(x)}"
                    )
                if x.element.type.kind == "int":
                    raise LayoutError(f"{x.name} holds whole numbers; vectors are real or complex ones")
                fields.append(x)
                if type(a) is int and a in _SIGNS:
                    pattern += _SIGNS[a]
                elif isinstance(a, LocatedArray) or (isinstance(a, np.ndarray) and a.ndim):
                    if a.shape != (y.batch,):
                        raise LayoutError(
                            f"factors of shape {a.shape} in an update of {y.name}, which has {y.batch} members: one for each"
                        )
                    pattern += "a"
                    numbers.append(a)
                else:
                    pattern += "n"
                    numbers.append(a if isinstance(a, float | complex | Scalar) else factor_of(a))
        try:
            if not norm:
                _update(fields, numbers, pattern)
                return None
            return fields[0].lattice.sum(_update_norm2, fields, numbers, pattern, wait=wait)
        except (TraceError, LayoutError):
            _check_update(assignments)
            raise

    def gram(self, x: Field, y: Field, wait: bool = True) -> Any:
        """The matrix of the inner products of the members of x with those of y, for solvers in which members share a space."""
        return gram(x, y, wait)

    def combine(self, combinations: Sequence[Combination]) -> None:
        """Linear combinations of members, by matrices: `jali.lattice.member_products` describes them."""
        combine(combinations)

    def several(self, x: Field, count: int) -> list[Field]:
        """Members of batches of eight."""
        return vector_sets.several(x, count)

    def inner_products(self, xs: Sequence[Field], y: Field) -> np.ndarray:
        """Of eight with one kernel."""
        found = vector_sets.inner_products(xs, y, self.check_interval(y) == 1)
        return sets.inner_products(self, xs, y) if found is None else found

    def add_several(self, y: Field, factors: np.ndarray, xs: Sequence[Field], own: int = 1) -> None:
        """Up to 32 with one kernel."""
        if not vector_sets.add(y, factors, xs, own, self.update):
            sets.add_several(self, y, factors, xs, own)

    def combine_several(self, ys: Sequence[Field], S: np.ndarray, xs: Sequence[Field]) -> None:
        """Up to eight of up to 32 with one kernel."""
        if not vector_sets.combine_sets(ys, S, xs):
            for y, column in zip(ys, S.T, strict=True):
                self.add_several(y, column, xs, 0)

    def partial_sums(self, x: Field, y: Any) -> list[tuple[Any, Any]]:
        """Of two fields their inner product, which is exact and complete; of a function this rank's part."""
        if x.batch is not None:
            raise LayoutError(
                f"{x.name} has a batch of {x.batch}, and this solver is about one vector: solve for each member, f.members[k], or for all "
                "of them with jali.solvers.cg"
            )
        if callable(y):
            found = y(x.local())
            ranks = x.lattice.communicator
            return [(found.item() if hasattr(found, "item") else found, ranks if ranks.size > 1 else None)]
        return [(inner(x, y), None)]

    def parts(self, x: Field) -> list[Any]:
        """This rank's box as an array: a copy."""
        return [x.local()]

    def with_parts(self, x: Field, parts: Sequence[Any]) -> Field:
        """A field like x with these values on this rank's box."""
        return x.like().set_local(parts[0])

    def memory(self, x: Field) -> list[Any]:
        """The field itself."""
        return [x]

    def count(self, x: Field) -> float:
        """Of all sites; of a batch those of a member."""
        sites = x.lattice.volume / (1 if x.over is ALL else 2)
        return sites * math.prod(x.element.type.shape) * (2 if x.element.type.kind == "complex" else 1)

    def write(
        self, path: str | os.PathLike[str], named: Mapping[str, Field], state: Mapping[str, Any]
    ) -> None:
        """A checkpoint, whose fields `jali.load` reads, too."""
        save_fields(path, OWN, named, state)

    def reader(self, path: str | os.PathLike[str], like: Field) -> tuple[dict[str, Any], Read]:
        """Fields in the precision and storage of the file."""
        file = open_checkpoint(path, ranks=like.lattice.communicator)

        def field(name: str) -> Field:
            found = field_of_checkpoint(file, name, like.lattice)
            if found.element == like.element and found.boundary != like.boundary:
                raise LayoutError(f"{file.path}: {name} is {found.boundary}, {like.name} is {like.boundary}")
            return found

        return file.state, field

    def mean_ratio(self, r: Field, x: Field) -> Any:
        """By one kernel."""
        sites = x.lattice.volume / (1 if x.over is ALL else 2)
        return x.lattice.sum(_ratios, r, x) / sites

    def repeats(self, x: Field) -> bool:
        """Whether calls on it can be recorded: everywhere but where ranks' devices need the host for their sums."""
        alone = x.lattice.gpu is None or x.lattice.communicator.size == 1
        return alone or not why_ranks_need_the_host(x.lattice)

    def check_interval(self, x: Field) -> int:
        """After how many iterations the host checks: more than one where waiting costs more than the iterations in
        between."""
        return 8 if x.lattice.gpu is not None and self.repeats(x) else 1

    def number(self, x: Field, value: Any) -> Any:
        """A number that a graph carries from one repetition to the next; of an array of numbers for the members of a batch an array."""
        return x.lattice.scalar(value) if np.ndim(value) == 0 else x.lattice.scalars(value)

    def graph(self, x: Field, step: Callable[[], Any], kept: int = 0) -> Graph:
        """The calls of `step`, recorded."""
        return Graph(step, x.lattice, kept)


class WholeBatchVectors(FieldVectors):
    """Fields whose members are one vector together: numbers are those of all members."""

    def mean_ratio(self, r: Field, x: Field) -> Any:
        """Over all sites of all members."""
        return sum_of_members(super().mean_ratio(r, x)) / (x.batch or 1)

    def count(self, x: Field) -> float:
        """Of all members."""
        return super().count(x) * (x.batch or 1)

    def inner(self, x: Field, y: Field, wait: bool = True) -> Any:
        """Sum of conj(x) y."""
        return sum_of_members(super().inner(x, y, wait))

    def norm2(self, x: Field, wait: bool = True) -> Any:
        """Sum of |x|^2."""
        return sum_of_members(super().norm2(x, wait))

    def update(
        self,
        assignments: Sequence[tuple[Field, Any, Sequence[tuple[Any, Field]]]],
        norm: bool = False,
        wait: bool = True,
    ) -> Any:
        """As that of fields."""
        found = super().update(assignments, norm, wait)
        return sum_of_members(found) if norm else None


add(VectorKind("jali.Field", lambda x: isinstance(x, Field), lambda x: FieldVectors(), by_class=True))
