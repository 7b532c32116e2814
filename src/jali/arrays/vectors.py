"""Distributed arrays and stacks of them as vectors of solvers: see `jali.solvers.vectors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays.distributed import DistributedArray, batch_of_dots
from jali.arrays.stacked import StackedDistributedArray
from jali.errors import LayoutError
from jali.solvers.vectors import Assignment, WithoutGraphs


def _leaves(x: Any) -> list[DistributedArray]:
    return x.leaves() if isinstance(x, StackedDistributedArray) else [x]


class DistributedVectors(WithoutGraphs):
    """Inner products are one all-reduce, of stacks too; updates communicate nothing."""

    def check(self, name: str, x: Any, like: Any) -> None:
        mine, theirs = _leaves(x), _leaves(like)
        if len(mine) != len(theirs):
            raise LayoutError(f"{name} is a stack of {len(mine)} arrays, b one of {len(theirs)}")
        for a, b in zip(mine, theirs, strict=True):
            a._alike(b, name)
            if a.dtype != b.dtype:
                raise LayoutError(f"{name} is an array of {a.dtype}, b one of {b.dtype}")

    def like(self, x: Any) -> Any:
        return x.zeros_like()

    def copy(self, x: Any) -> Any:
        return x.copy()

    def epsilon(self, x: Any) -> float:
        return max(float(np.finfo(_real_dtype(leaf)).eps) for leaf in _leaves(x))

    def precision(self, x: Any) -> str:
        return ", ".join(dict.fromkeys(str(leaf.dtype) for leaf in _leaves(x)))

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        total: Any = 0
        for number in batch_of_dots(list(zip(_leaves(x), _leaves(y), strict=True))):
            total = total + number
        return total.item() if hasattr(total, "item") else total

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return self.inner(x, x).real

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        from jali.solvers.vectors import vectors_of

        last = None
        for y, own, terms in assignments:
            last = y
            for number, leaf in enumerate(_leaves(y)):
                local = leaf.local
                parts = [(a, _leaves(x)[number].local) for a, x in terms]
                vectors_of("a part", local).update([(local, own, parts)])
        return self.norm2(last) if norm else None


def _real_dtype(x: DistributedArray) -> np.dtype[Any]:
    dtype = np.dtype(str(x.dtype).removeprefix("torch."))
    if dtype.kind not in "fc":
        raise LayoutError(f"solvers compute with real and complex numbers, not with arrays of {dtype}")
    return dtype
