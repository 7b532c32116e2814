"""A pool of memory for large arrays, since fresh memory costs a pass over it: the kernel hands out pages of zeros.

An operator returns arrays of the same size in every step of a solver.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of

LEAST = 1 << 20  # bytes; smaller ones come from the allocator's own lists
MOST_KEPT = 1 << 30  # bytes of deleted arrays, of the process


class _Pool:
    """Blocks that no array uses, by size; the one that was released first is freed first when there are too many."""

    def __init__(self) -> None:
        self._lock = (
            threading.RLock()
        )  # a block may be released while one is looked for, by the garbage collector
        self._blocks: OrderedDict[int, np.ndarray] = OrderedDict()
        self._bytes = 0

    def take(self, size: int) -> np.ndarray:
        with self._lock:
            for key, block in reversed(self._blocks.items()):
                if block.nbytes == size:
                    del self._blocks[key]
                    self._bytes -= size
                    return block
        return np.empty(size, np.uint8)

    def release(self, block: np.ndarray) -> None:
        with self._lock:
            self._blocks[id(block)] = block
            self._bytes += block.nbytes
            while self._bytes > MOST_KEPT:
                self._bytes -= self._blocks.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._bytes = 0


_pool = _Pool()


class _PooledBlock:
    """Owner of an array's memory: NumPy keeps it as long as the array or a view of it exists."""

    def __init__(self, size: int) -> None:
        self.block = _pool.take(size)
        self.__array_interface__ = self.block.__array_interface__

    def __del__(self) -> None:
        if _pool is not None:  # modules are taken apart at the end of a program
            _pool.release(self.block)


def empty(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array where `like` is, whose values are not set; of NumPy, in a block of the pool of this size, if there is
    one."""
    namespace = namespace_of(like)
    if namespace.name != "numpy":
        return namespace.empty_beside(like, shape, dtype)
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < LEAST or kind.hasobject:
        return np.empty(shape, kind)
    return np.asarray(_PooledBlock(size)).view(kind).reshape(shape)


def clear() -> None:
    """Return blocks that no array uses to the system."""
    _pool.clear()
