"""Operators of distributed arrays beside each other: on stacks of vectors, as blocks along a diagonal, in a column or in a row.

All ranks have all of these operators; each communicates as it does alone, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy
from jali.arrays import Layout, StackedDistributedArray
from jali.arrays.lazy_property import lazy_property
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.operator import LinearOperator, StackedLinearOperator
from jali.linops.spaces import Space, knows_order, order_for, owned, space_of


class _Stacked(StackedLinearOperator):
    """What the three have in common. The shape is read from the operators at its first use."""

    def __init__(self, ops: Sequence[Any], base_comm: Any = None, dtype: Any = None) -> None:
        if not isinstance(ops, list | tuple) or not ops:
            raise ParameterError(f"{type(self).__name__} takes a list of operators, not {value_shown(ops)}")
        for op in ops:
            if not isinstance(op, LinearOperator):
                raise ParameterError(
                    f"{type(self).__name__} takes operators of distributed arrays, not {type(op).__name__}; "
                    f"{type(self).__name__.removeprefix('Stacked')} takes local ones"
                )
        self.Op = self._local = None
        self.ops, self._type, self._kept = list(ops), dtype, {}
        self._base_comm = next((op._base_comm for op in ops), None) if base_comm is None else base_comm

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self.ops))}>"

    def _rows(self) -> int:
        return sum(op.shape[0] for op in self.ops)

    def _columns(self) -> int:
        return sum(op.shape[1] for op in self.ops)

    @lazy_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole. Collective at its first use, where that of an operator is."""
        return self._rows(), self._columns()

    @lazy_property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds elements of all operators, or that was given."""
        return dtype_of_numpy(
            np.result_type(*(op.dtype for op in self.ops)) if self._type is None else self._type
        )

    @lazy_property
    def dims(self) -> tuple[int, ...]:
        return (self.shape[1],)

    @lazy_property
    def dimsd(self) -> tuple[int, ...]:
        return (self.shape[0],)

    @property
    def copies(self) -> int:  # type: ignore[override]
        """Raises ShapeError where operators differ."""
        return self._common("copies of parts on ranks", [op.copies for op in self.ops if op.copies] or [0])

    def _common(self, name: str, sizes: list[int]) -> int:
        if len(set(sizes)) > 1:
            raise ShapeError(
                f"{type(self).__name__}: operators have different numbers of {name}: {', '.join(map(str, sizes))}"
            )
        return sizes[0]

    def _check(self, x: Any, elements: int, name: str) -> None:
        super()._check(x, elements, name)
        if not knows_order(x):
            self.flat_order(space_of(x), not name.endswith("adjoint"))

    def flat_order(self, space: Space, forward: bool) -> Any:
        if isinstance(space, Layout):
            return order_for(self.ops, space, forward, repr(self))
        return [op.flat_order(one, forward) for op, one in zip(self.ops, space, strict=False)]

    def _each(self, x: Any, forward: bool) -> list[Any]:
        """Every operator applied to its part of a stack."""
        if not isinstance(x, StackedDistributedArray) or len(x) != len(self.ops):
            what = f"a stack of {len(x)}" if isinstance(x, StackedDistributedArray) else type(x).__name__
            raise ShapeError(
                f"{'' if forward else 'the adjoint of '}{type(self).__name__} takes a stack of {len(self.ops)} arrays, not {what}"
            )
        return [
            owned(op, op.matvec(part) if forward else op.rmatvec(part))
            for op, part in zip(self.ops, x.distarrays, strict=True)
        ]

    def _spaces(self, of: Callable[[Any], Space | None]) -> Space | None:
        spaces = [of(op) for op in self.ops]
        return None if any(space is None for space in spaces) else spaces

    def _space(self, of: Callable[[Any], Space | None]) -> Space | None:
        return next((space for op in self.ops if (space := of(op)) is not None), None)


def _stack(parts: list[Any], like: Any) -> StackedDistributedArray:
    return StackedDistributedArray(parts, like._base_comm)


def _total(parts: list[Any]) -> Any:
    """Their sum."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class StackedBlockDiag(_Stacked):
    """Operators along a diagonal: each takes and gives one part of a stack."""

    def _matvec(self, x: Any) -> Any:
        return _stack(self._each(x, True), x)

    def _rmatvec(self, x: Any) -> Any:
        return _stack(self._each(x, False), x)

    def domain(self) -> Space | None:
        return self._spaces(lambda op: op.domain())

    def range_(self) -> Space | None:
        return self._spaces(lambda op: op.range_())


class StackedVStack(_Stacked):
    """Operators one below the other: each takes the same vector and gives a part of a stack; the adjoint sums. ShapeError, when it is
    first used, where they differ in their columns."""

    def _columns(self) -> int:
        return self._common("columns", [op.shape[1] for op in self.ops])

    def _matvec(self, x: Any) -> Any:
        return _stack([owned(op, op.matvec(x)) for op in self.ops], x)

    def _rmatvec(self, x: Any) -> Any:
        return _total(self._each(x, False))

    def domain(self) -> Space | None:
        return self._space(lambda op: op.domain())

    def range_(self) -> Space | None:
        return self._spaces(lambda op: op.range_())


class StackedHStack(_Stacked):
    """Operators side by side: each takes a part of a stack, and what they give is summed. ShapeError, when it is first used, where
    they differ in their rows."""

    def _rows(self) -> int:
        return self._common("rows", [op.shape[0] for op in self.ops])

    def _matvec(self, x: Any) -> Any:
        return _total(self._each(x, True))

    def _rmatvec(self, x: Any) -> Any:
        return _stack([owned(op, op.rmatvec(x)) for op in self.ops], x)

    def domain(self) -> Space | None:
        return self._spaces(lambda op: op.domain())

    def range_(self) -> Space | None:
        return self._space(lambda op: op.range_())
