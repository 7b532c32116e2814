"""Operators of blocks: each rank has a list of local operators, which act on its part of a vector.

BlockDiag communicates nothing; a column of blocks (VStack) is one all-reduce in its adjoint, a row of them (HStack) one in
itself. The shape of the whole is known after the ranks have exchanged the sizes of their blocks, once, at its first use. A rank
may have no block. An exception of a local operator is raised on its rank; the others raise RankError where they next wait.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.amounts import counted
from jali.array_namespaces import dtype_of_numpy, namespace_of
from jali.arrays import DistributedArray, communicator_of, layout_of
from jali.arrays.layout import C_ORDER, Layout, Partition
from jali.arrays.lazy_property import lazy_property
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.local import LocalOperator
from jali.linops.operator import MOST_KEPT, LinearOperator, with_mutable_views
from jali.linops.spaces import Space

Sizes = tuple[int, ...]


class _Blocks(LinearOperator):
    """What the three have in common. `_side` is how the blocks lie: "diagonal", "column" or "row"."""

    takes_stacks = False
    _side: str
    _congruent = (
        False  # whether vectors may belong to another communicator of as many ranks in the same order
    )

    def __init__(self, ops: Sequence[Any], base_comm: Any, mask: Sequence[Any] | None, dtype: Any) -> None:
        if not isinstance(ops, list | tuple):
            raise ParameterError(
                f"{type(self).__name__} takes a list of local operators, not {type(ops).__name__}"
            )
        for op in ops:
            if isinstance(op, LinearOperator):
                raise ParameterError(
                    f"{type(self).__name__} takes operators of local arrays; {value_shown(op)} is one of distributed arrays, for which there is "
                    f"Stacked{type(self).__name__}"
                )
        self.Op = self._local = None
        self.ops, self._blocks = list(ops), [LocalOperator(op) for op in ops]
        self._base_comm, self.mask, self._type = base_comm, mask, dtype
        self._ranks = communicator_of(base_comm)
        self._kept = {}
        self._plans: dict[Any, _BlocksPlan] = {}
        rows, columns = [op.rows for op in self._blocks], [op.columns for op in self._blocks]
        self._rows, self._columns = _parts(rows, self._side == "row"), _parts(columns, self._side == "column")
        for name, sizes, one in (
            ("rows", rows, self._side == "row"),
            ("columns", columns, self._side == "column"),
        ):
            if one and len(set(sizes)) > 1:
                raise ShapeError(
                    f"{type(self).__name__}: operators have different numbers of {name}: {', '.join(map(str, sizes))} on rank "
                    f"{self._ranks.rank}"
                )

    def __repr__(self) -> str:
        if "_all" not in self.__dict__:  # a query of the others would be collective
            return (
                f"<{type(self).__name__} of {counted(len(self.ops), 'operator')} on rank {self._ranks.rank}>"
            )
        return super().__repr__()

    @property
    def communicator(self) -> Communicator:
        return self._ranks

    @lazy_property
    def _all(self) -> tuple[Sizes, Sizes, np.dtype[Any]]:
        """Rows and columns of all ranks, and the type that holds all. Collective."""
        rows, columns = (sorted({part.stop for part in parts}) for parts in (self._rows, self._columns))
        mine = {
            "rows": rows[:1] if self._side == "row" else max(rows, default=0),
            "columns": columns[:1] if self._side == "column" else max(columns, default=0),
            "types": str(np.result_type(*(op.dtype for op in self._blocks))) if self._blocks else None,
            "given": None if self._type is None else str(dtype_of_numpy(self._type)),
        }
        gathered = self._ranks.gather_bytes(json.dumps(mine).encode(), what=type(self).__name__)
        reports = [json.loads(text) for text in gathered]
        of_all = [self._agreed([one[name] for one in reports], name) for name in ("rows", "columns")]
        given = {one["given"] for one in reports}
        if len(given) > 1:
            raise ParameterError(
                f"{type(self).__name__}: ranks gave different types: {', '.join(str(one['given']) for one in reports)}"
            )
        types = [one["types"] for one in reports if one["types"] is not None]
        dtype = given.pop() or (np.result_type(*types) if types else np.float64)
        return of_all[0], of_all[1], np.dtype(dtype)

    def _agreed(self, gathered: list[Any], name: str) -> Sizes:
        """Of what all ranks have in common, the same number for each. ShapeError on all ranks where it is not."""
        if not isinstance(gathered[0], list):
            return tuple(gathered)
        there = {rank: one[0] for rank, one in enumerate(gathered) if one}
        if not there:
            raise ShapeError(f"{type(self).__name__}: no rank has an operator, so its {name} are not known")
        if len(set(there.values())) > 1:
            raise ShapeError(
                f"{type(self).__name__}: operators have different numbers of {name}: "
                + ", ".join(f"{n} on rank {rank}" for rank, n in there.items())
            )
        return (next(iter(there.values())),) * len(gathered)

    @lazy_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole. Collective at its first use."""
        rows, columns, _ = self._all
        return (
            rows[0] if self._side == "row" else sum(rows),
            columns[0] if self._side == "column" else sum(columns),
        )

    @lazy_property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds elements of all blocks, or that was given."""
        return self._all[2]

    @lazy_property
    def dims(self) -> tuple[int, ...]:
        return (self.shape[1],)

    @lazy_property
    def dimsd(self) -> tuple[int, ...]:
        return (self.shape[0],)

    def domain(self) -> Space:
        return self._space(self.shape[1], None if self._side == "column" else self._all[1])

    def range_(self) -> Space:
        return self._space(self.shape[0], None if self._side == "row" else self._all[0])

    def _space(
        self, size: int, parts: Sizes | None, mask: Any = None, ranks: Communicator | None = None
    ) -> Layout:
        mask = self.mask if mask is None else mask
        ranks = ranks or self._ranks
        if parts is None:
            return layout_of(ranks, size, Partition.BROADCAST, mask=mask)
        shapes = tuple((n,) for n in parts)
        return layout_of(ranks, size, Partition.SCATTER, local_shapes=shapes, mask=mask)

    def _layout_for(self, x: DistributedArray, forward: bool) -> Layout:
        ranks = x.layout.communicator
        congruent = self._congruent and (ranks.size, ranks.rank) == (self._ranks.size, self._ranks.rank)
        if ranks is not self._ranks and not congruent:
            raise ShapeError(f"{self!r}: the vector belongs to another communicator than the operator")
        takes, gives = ("column", "row") if forward else ("row", "column")
        parts, results = (self._all[1], self._all[0]) if forward else (self._all[0], self._all[1])
        if self._side == takes:
            if x.layout.scattered:
                raise ShapeError(
                    f"{self._name(forward)} takes a vector that all ranks have (Partition.BROADCAST), this one is scattered: take "
                    "x.redistribute(partition=Partition.BROADCAST)"
                )
        else:
            self._check_parts(x.layout, parts, forward)
        size = self.shape[0 if forward else 1]
        mask = x.layout.mask if self.mask is None else None
        found = self._space(size, None if self._side == gives else results, mask, ranks)
        order = x.layout.flat.flat_of  # what blocks give is where they took it from
        return (
            found
            if found.scattered != x.layout.scattered and order is not C_ORDER
            else found.with_(flat_of=order)
        )

    def _check_parts(self, layout: Layout, parts: Sizes, forward: bool) -> None:
        has = tuple(math.prod(shape) for shape in layout.local_shapes)
        if layout.scattered and has == parts:
            return
        how = f"x.redistribute(partition=Partition.SCATTER, local_shapes={[(n,) for n in parts]})"
        if layout.ndim != 1:
            how = f"a flat vector with local_shapes={[(n,) for n in parts]}"
        if not layout.scattered:
            raise ShapeError(
                f"{self._name(forward)} takes a scattered vector, this one has Partition.{layout.partition.name}: take {how}"
            )
        rank = next(r for r, (a, b) in enumerate(zip(has, parts, strict=True)) if a != b)
        raise ShapeError(
            f"{self._name(forward)}: rank {rank} has {counted(has[rank], 'element')} of the vector, its blocks take {parts[rank]}: take {how}"
        )

    def _name(self, forward: bool) -> str:
        return type(self).__name__ if forward else f"the adjoint of {type(self).__name__}"

    def matvec(self, x: Any) -> Any:
        return self._apply(x, True)

    def rmatvec(self, x: Any) -> Any:
        return self._apply(x, False)

    def _plan(self, x: Any, forward: bool) -> _BlocksPlan:
        """The work for vectors like `x`, which is determined at the first one."""
        self._check(x, self.shape[1 if forward else 0], "x" if forward else "x of the adjoint")
        layout, dtype = self._result(x, forward)
        if len(self._plans) >= MOST_KEPT:
            self._plans.clear()
        takes, gives = (self._columns, self._rows) if forward else (self._rows, self._columns)
        plan = _BlocksPlan()
        plan.layout, plan.shape, plan.dtype, plan.namespace = (
            layout,
            layout.local_shape,
            dtype,
            namespace_of(x.local),
        )
        plan.flat = len(x.local.shape) == 1
        plan.summed = self._side == ("row" if forward else "column")
        plan.steps = [
            (block.forward if forward else block.adjoint, part, into)
            for block, part, into in zip(self._blocks, takes, gives, strict=True)
        ]
        self._plans[x.layout, x.local.dtype, type(x.local), forward] = plan
        return plan

    def _apply(self, x: Any, forward: bool) -> DistributedArray:
        plan = None
        if type(x) is DistributedArray:
            plan = self._plans.get((x.layout, x._local.dtype, type(x._local), forward))
        if plan is None:
            if type(x) is DistributedArray and namespace_of(x.local).immutable:
                return with_mutable_views(self.matvec if forward else self.rmatvec, x)
            plan = self._plan(x, forward)
        with plan.namespace.where(x._local):
            out = self._applied(x._local, plan, forward)
        return DistributedArray.of(plan.layout, out, x._base_comm)

    def _applied(self, local: Any, plan: _BlocksPlan, forward: bool) -> Any:
        """This rank's part of the result."""
        namespace, steps = plan.namespace, plan.steps
        flat = local if plan.flat else namespace.contiguous(local).reshape(-1)
        out = namespace.empty_beside(flat, plan.shape, plan.dtype)
        number = 0
        try:
            if len(steps) == 1:
                steps[0][0](flat, out)
            elif plan.summed:
                out[...] = 0
                part = namespace.empty_beside(flat, plan.shape, plan.dtype)
                for number, (apply, where, _) in enumerate(steps):  # noqa: B007 (for the note)
                    apply(flat[where], part)
                    out += part
            else:
                for number, (apply, where, into) in enumerate(steps):  # noqa: B007
                    apply(flat[where], out[into])
        except Exception as error:
            error.add_note(f"in operator {number} of {self._name(forward)} on rank {self._ranks.rank}")
            raise
        if plan.summed and self._ranks.size > 1:
            self._ranks.all_reduce(out, out)
        return out


class _BlocksPlan:
    """How vectors of one layout, type and library are applied: the layout of the result, and the blocks with what
    they read and write."""

    __slots__ = ("dtype", "flat", "layout", "namespace", "shape", "steps", "summed")
    layout: Layout
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    namespace: Any
    flat: bool
    summed: bool
    steps: list[tuple[Any, slice, slice]]


def _parts(sizes: list[int], all_the_same: bool) -> list[slice]:
    """Where each block reads or writes: one after the other, or all the whole."""
    if all_the_same:
        return [slice(0, n) for n in sizes]
    ends = [0, *np.cumsum(sizes).tolist()]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


class BlockDiag(_Blocks):
    """The blocks of all ranks along a diagonal: scattered vectors to scattered vectors, without communication.

    `ops` are this rank's local operators: those of `pylops` or SciPy, anything with `shape`, `dtype`, `matvec` and `rmatvec`, or
    matrices. `mask` gives ranks a number; results are vectors of the groups of ranks with the same. `dtype` is that of the operator
    (default: the one that holds elements of all blocks).

    Vectors have as many elements on each rank as its blocks together take; ShapeError for others. Blocks act on parts, in any
    distribution of the whole; what they give is taken to be in the same order, so that parts of columns of a matrix give such
    parts.
    """

    _side = "diagonal"

    def __init__(
        self, ops: Sequence[Any], base_comm: Any = None, mask: Sequence[Any] | None = None, dtype: Any = None
    ) -> None:
        super().__init__(ops, base_comm, mask, dtype)


class VStack(_Blocks):
    """The blocks of all ranks one below the other: takes vectors that all ranks have and gives scattered ones; its adjoint is
    one all-reduce.

    Arguments as those of BlockDiag. ShapeError where blocks differ in their columns: at once on a rank whose own do, on all ranks at the
    first use where those of ranks do.
    """

    _side = "column"

    def __init__(self, ops: Sequence[Any], base_comm: Any = None, dtype: Any = None) -> None:
        super().__init__(ops, base_comm, None, dtype)


class HStack(_Blocks):
    """The blocks of all ranks side by side: takes scattered vectors and gives, by one all-reduce, one that all ranks have. Its adjoint
    communicates nothing.

    Arguments as those of BlockDiag. ShapeError where blocks differ in their rows, as in VStack.
    """

    _side = "row"

    def __init__(self, ops: Sequence[Any], base_comm: Any = None, dtype: Any = None) -> None:
        super().__init__(ops, base_comm, None, dtype)
