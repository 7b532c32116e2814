"""Distributed arrays and stacks of them as vectors of solvers: see `jali.vectors`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from jali._core import inner_of_host_vectors
from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays.distributed import DistributedArray
from jali.arrays.fields import FieldPart
from jali.arrays.layout import Box, Layout, layout_of, shape_of, slices_in
from jali.arrays.norms import floating
from jali.arrays.stacked import StackedDistributedArray
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.vectors import FieldVectors
from jali.vectors import WithoutGraphs, addable, assign, combined, inner_by_library, summed, type_in
from jali.vectors.arrays import MISMATCHED, array_stored, random_array, storage_of_array
from jali.vectors.files import Read, box_reader, write_boxes
from jali.vectors.protocol import Assignment, Partial, vectors_in
from jali.vectors.registry import VectorKind, add, check_kinds
from jali.vectors.sets import OneByOne


def _leaves(x: Any) -> list[DistributedArray]:
    return x.leaves() if isinstance(x, StackedDistributedArray) else [x]


class DistributedVectors(OneByOne, WithoutGraphs):
    """Inner products are one all-reduce, of stacks too; updates communicate nothing."""

    def check(self, name: str, x: Any, like: Any) -> None:
        if isinstance(x, StackedDistributedArray) != isinstance(like, StackedDistributedArray):
            raise LayoutError(
                f"{name} is {value_shown(x)}, b is {value_shown(like)}: one is a stack, the other none"
            )
        mine, theirs = _leaves(x), _leaves(like)
        if len(mine) != len(theirs):
            raise LayoutError(f"{name} is a stack of {len(mine)} arrays, b one of {len(theirs)}")
        for a, b in zip(mine, theirs, strict=True):
            a._alike(b, name)
            if not addable(a.dtype, b.dtype):
                raise LayoutError(f"{name} is an array of {a.dtype}, b one of {b.dtype}")

    def like(self, x: Any, precision: str | None = None) -> Any:
        if precision is None:
            return x.zeros_like()
        if isinstance(x, StackedDistributedArray):
            return StackedDistributedArray([self.like(one, precision) for one in x.distarrays], x._base_comm)
        if _of_fields(x):
            return DistributedArray.of(
                x.layout, FieldPart(FIELDS.like(x.local.field, precision)), x._base_comm
            )
        _epsilon(numpy_dtype(x.local))  # refuses whole numbers
        part = namespace_of(x.local).zeros_beside(x.local, tuple(x.local.shape), type_in(precision, x.dtype))
        return DistributedArray.of(x.layout, part, x._base_comm)

    def stored(self, x: Any, storage: str | None = None) -> Any:
        if isinstance(x, StackedDistributedArray):
            return StackedDistributedArray([self.stored(one, storage) for one in x.distarrays], x._base_comm)
        if _of_fields(x):
            return DistributedArray.of(
                x.layout, FieldPart(FIELDS.stored(x.local.field, storage)), x._base_comm
            )
        return DistributedArray.of(x.layout, array_stored(x.local, storage), x._base_comm)

    def storage(self, x: Any) -> str:
        names = (
            FIELDS.storage(leaf.local.field) if _of_fields(leaf) else storage_of_array(leaf.local)
            for leaf in _leaves(x)
        )
        return ", ".join(dict.fromkeys(names))

    def write(self, path: str | os.PathLike[str], named: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        first = _one_array(next(iter(named.values())))
        box = _box_in_files(first.layout)
        inside = slices_in(box, first.layout.box)
        parts = {name: namespace_of(_numbers(x)).to_host(_numbers(x))[inside] for name, x in named.items()}
        origin, ranks = [begin for begin, _ in box], first.layout.communicator
        write_boxes(path, first.layout.shape, origin, parts, state, ranks)

    def reader(self, path: str | os.PathLike[str], like: Any) -> tuple[dict[str, Any], Read]:
        layout = _one_array(like).layout
        origin, shape = [begin for begin, _ in layout.box], shape_of(layout.box)
        state, read = box_reader(path, layout.shape, origin, shape, layout.communicator)

        def array(name: str) -> DistributedArray:
            values = read(name)
            if _of_fields(like):
                return _filled(like, iter([values]))
            if not isinstance(like.local, np.ndarray):
                values = namespace_of(like.local).from_host(values, like.local)
            return DistributedArray.of(layout, values, like._base_comm)

        return state, array

    def copy(self, x: Any) -> Any:
        return x.copy()

    def random(self, x: Any, seed: int) -> Any:
        seeds = itertools.count(1000003 * seed) if isinstance(x, StackedDistributedArray) else iter([seed])
        parts = (_random(leaf.layout, _numbers(leaf), next(seeds)) for leaf in _leaves(x))
        return _filled(x, parts)

    def ranks(self, x: Any) -> list[Any]:
        groups = {id(ranks): ranks for ranks in (leaf.layout.group for leaf in _leaves(x)) if ranks.size > 1}
        return list(groups.values())

    def epsilon(self, x: Any) -> float:
        return max([_epsilon(numpy_dtype(leaf)) for leaf in _leaves(x)])

    def precision(self, x: Any) -> str:
        return ", ".join(dict.fromkeys(str(leaf.dtype) for leaf in _leaves(x)))

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        return summed([self.partial_sums(x, y)])[0]

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return self.inner(x, x).real

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        try:
            if type(assignments[0][0]) is DistributedArray:
                own = [_assign(assignments, norm)]
            else:
                own = [_assign(of_leaf, norm) for of_leaf in zip(*map(_by_leaf, assignments), strict=True)]
        except MISMATCHED:
            _check_form(vectors_in(assignments))
            raise
        return summed([own])[0] if norm else None

    def partial_sums(self, x: Any, y: Any) -> list[Partial]:
        if callable(y):
            return [(_on_host(y(_numbers(leaf))), leaf.layout.summed_over) for leaf in _leaves(x)]
        try:
            if type(x) is type(y) is DistributedArray:
                return [(_dot(x, y), _ranks(x))]
            return [(_dot(a, b), _ranks(a)) for a, b in zip(_leaves(x), _leaves(y), strict=True)]
        except MISMATCHED:
            _check_form([x, y])
            raise

    def parts(self, x: Any) -> list[Any]:
        return [_numbers(leaf) for leaf in _leaves(x)]

    def memory(self, x: Any) -> list[Any]:
        return [leaf.local.field if _of_fields(leaf) else leaf.local for leaf in _leaves(x)]

    def with_parts(self, x: Any, parts: Sequence[Any]) -> Any:
        rest = iter(parts)
        return _filled(x, rest)


def _one_array(x: Any) -> DistributedArray:
    """x. Raises ParameterError, LayoutError for a stack, for groups of ranks with an array each, and for an order that only these ranks know."""
    if isinstance(x, StackedDistributedArray):
        raise ParameterError("a stack of distributed arrays has no file: its arrays are saved one by one")
    if x.layout.mask is not None or isinstance(x.layout.flat_of, Layout):
        raise LayoutError(f"no file has an array that is {x.layout!r}")
    return x


def _box_in_files(layout: Layout) -> Box:
    """What this rank writes: its part, or a share of what all ranks have."""
    if layout.scattered:
        return layout.box
    return layout_of(layout.communicator, layout.shape).box


def _random(layout: Layout, part: Any, seed: int) -> Any:
    """Of a part, its numbers by global index; those of a flattened array are in the order of the array."""
    if isinstance(layout.flat_of, Layout):
        box = layout.flat_of.box
        shaped = part.reshape(tuple(end - begin for begin, end in box))
        return _random(layout.flat_of, shaped, seed).reshape(part.shape)
    return random_array(part, layout.shape, [begin for begin, _ in layout.box], seed)


def _filled(x: Any, parts: Iterator[Any]) -> Any:
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([_filled(member, parts) for member in x], x._base_comm)
    part = next(parts)
    if _of_fields(x):
        found = x.zeros_like()
        found.local.field.set_local(part)
        return found
    return DistributedArray.of(x.layout, part, x._base_comm)


def _check_form(vectors: Sequence[Any]) -> None:
    """Raises ParameterError or LayoutError unless all are arrays, or all are stacks of as many."""
    first = vectors[0]
    check_kinds(first, vectors)
    for x in vectors:
        if type(x) is not type(first) or len(_leaves(x)) != len(_leaves(first)):
            raise LayoutError(
                f"vectors of one operation are of one form, not {value_shown(first)} and {value_shown(x)}"
            )


FIELDS = FieldVectors()


def _of_fields(x: Any) -> bool:
    """Whether its memory is that of a field, for which `FieldVectors` has kernels of its own."""
    return type(x) is DistributedArray and type(x._local) is not np.ndarray and x.engine == "jali"


def _numbers(x: DistributedArray) -> Any:
    """This rank's part as an array, to read."""
    return x.local[...] if _of_fields(x) else x.local


def _by_leaf(assignment: Assignment) -> Sequence[Assignment]:
    """The same of each array of a stack."""
    y, own, terms = assignment
    factors, vectors = [a for a, _ in terms], [_leaves(x) for _, x in terms]
    parts = zip(_leaves(y), *vectors, strict=True)
    return [(leaf, own, list(zip(factors, others, strict=True))) for leaf, *others in parts]


def _assign(assignments: Sequence[Assignment], norm: bool) -> Partial:
    """Assignments to this rank's parts of arrays of one form; those that never change give way to others. With `norm` this rank's
    number of the last."""
    last = assignments[-1][0]
    if type(last._local) is not np.ndarray:
        if _of_fields(last):
            of_fields = [
                (y.local.field, own, [(a, _part_like(x, y).field) for a, x in terms])
                for y, own, terms in assignments
            ]
            return FIELDS.update(of_fields, norm), None
        if namespace_of(last.local).immutable:
            for y, own, terms in assignments:
                y._local = _new(y, own, terms)
            return (_norm2(last), last.layout.summed_over) if norm else (None, None)
    number = assign(
        [(y._local, own, [(a, _part_like(x, y)) for a, x in terms]) for y, own, terms in assignments], norm
    )
    if not norm:
        return None, None
    return _norm2(last) if number is None else number, last.layout.summed_over


def _new(y: DistributedArray, own: Any, terms: Sequence[tuple[Any, Any]]) -> Any:
    """What becomes of this rank's part."""
    found = combined(y.local, own, [(a, _part_like(x, y)) for a, x in terms])
    return namespace_of(y.local).zeros_like(y.local) if found is None else found.astype(y.local.dtype)


def _part_like(x: DistributedArray, y: DistributedArray) -> Any:
    """This rank's part of x, to be added to y, which is then in the order that x is known to be in. Raises ShapeError,
    LayoutError unless it can be."""
    if x.layout is not y.layout:
        y.layout = y._alike(x, "vectors")
    if type(x._local) is not type(y._local) and x.engine != y.engine:
        raise LayoutError(
            f"vectors are of one engine, not of {y.engine} and {x.engine}: x.as_engine({y.engine!r}) is one in the memory of x"
        )
    return x._local


def _dot(x: DistributedArray, y: DistributedArray) -> Any:
    """The inner product of this rank's parts."""
    if x.layout is not y.layout:
        x._alike(y, "vectors")
    mine, other = x._local, y._local
    found = inner_of_host_vectors(mine, other)
    return inner_by_library(mine, other) if found is None else found


def _norm2(x: DistributedArray) -> float:
    """The sum of |x|^2 of this rank's part: real, as the core's loops give it."""
    found = inner_of_host_vectors(x._local, x._local)
    return float(namespace_of(x._local).squares(floating(x._local)) if found is None else found.real)


def _ranks(x: DistributedArray) -> Any:
    """Over which ranks this rank's number is summed; inner products of fields are complete."""
    return None if _of_fields(x) else x.layout.summed_over


def _on_host(x: Any) -> Any:
    return x.item() if hasattr(x, "item") else x


@cache
def _epsilon(dtype: np.dtype[Any]) -> float:
    if dtype.kind not in "fc":
        raise LayoutError(f"solvers compute with real and complex numbers, not with arrays of {dtype}")
    return float(np.finfo(dtype).eps)


add(
    VectorKind(
        "jali.arrays.DistributedArray",
        lambda x: isinstance(x, DistributedArray),
        lambda x: DistributedVectors(),
        by_class=True,
    ),
    VectorKind(
        "stack of distributed arrays",
        lambda x: isinstance(x, StackedDistributedArray),
        lambda x: DistributedVectors(),
        by_class=True,
    ),
)
