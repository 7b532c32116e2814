"""Arrays that are arguments and are indexed by whole numbers of the site: their copies for kernels, and whether indices are inside.

And the other whole numbers with a range: the n of `rng.integers(X, n)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.ir import Node
from jali.codegen.language import leaves
from jali.codegen.language.draws import integers
from jali.codegen.operation import described
from jali.codegen.passes import reachable
from jali.codegen.ranges import range_of
from jali.errors import LayoutError, TraceError
from jali.lattice.binding import BoundKernel

_ADDRESSES = ("array", "whole_array")


class Tables:
    """The tables of one call, as its kernels read them: in the arithmetic of the kernels, on their device.

    A copy is made when numbers change, and never overwritten, so that launches and graphs keep what they began with.
    """

    def __init__(self, kernels: Sequence[BoundKernel], lattice: Any, values: Sequence[Any]):
        self._gpu = lattice.gpu
        self._wanted = [
            (kernel, index, parameter)
            for kernel in kernels
            for index, parameter in kernel.scalar_parameters
            if parameter.what in (*_ADDRESSES, "array_extent")
        ]
        self._copies: dict[
            tuple[int, str], tuple[np.ndarray, Any, int]
        ] = {}  # numbers, what holds them, address
        self._bounds: dict[
            tuple[int, int], Node
        ] = {}  # what draws from 0 to n - 1, by the number of the argument that is n and the component of it
        for kernel in kernels:
            for node in reachable(effect.value for effect in kernel.program.effects):
                if described(node).looks_up:
                    slot = node.attrs[0]
                    _check(node, kernel.program.scalars[slot][0], lattice.extents, values[slot])
                elif integers.made(node) and (argument := described(node.args[0]).argument) is not None:
                    self._bounds[argument(node.args[0])] = node
                elif integers.made(node) and range_of(node.args[0], lattice.extents)[0] < 1:
                    raise TraceError(
                        "rng.integers(X, n) draws from 0 to n - 1, and this n may be less than 1; bound it, as by jali.maximum(n, 1)\n"
                        f"  at {node.where}"
                    )

    def __bool__(self) -> bool:
        return bool(self._wanted or self._bounds)

    @property
    def held(self) -> list[Any]:
        """What the kernels read now."""
        return list(self._copies.values())

    def set(self, values: Sequence[Any]) -> None:
        """Before a run: gives the kernels the numbers of now. Raises LayoutError for those that do not fit the arithmetic, TraceError
        for a bound of random numbers below 1."""
        for (slot, component), node in self._bounds.items():
            n = np.ravel(values[slot])[component]
            if n < 1:
                raise TraceError(
                    f"rng.integers(X, n) draws from 0 to n - 1; n is at least 1, not {n}\n  at {node.where}"
                )
        for kernel, index, parameter in self._wanted:
            array = values[parameter.slot]
            if parameter.what == "array_extent":
                kernel.parameters[index] = array.shape[parameter.component]
                continue
            kernel.parameters[index] = self._address(parameter.slot, parameter.what, array, kernel)

    def _address(self, slot: int, what: str, array: np.ndarray, kernel: BoundKernel) -> int:
        real = ARITHMETICS[kernel.program.precision].dtype("real")
        if what == "whole_array":
            kind = np.dtype(f"int{8 * real.itemsize}")
            limits = np.iinfo(kind)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                name = kernel.program.scalars[slot][0]
                raise LayoutError(
                    f"{name} reaches from {array.min()} to {array.max()}; whole numbers of {kernel.program.precision} kernels are {kind}"
                )
        else:
            kind = np.result_type(real, np.complex64) if array.dtype.kind == "c" else real
        numbers = np.array(array, kind, order="C")  # a copy
        before = self._copies.get((slot, what))
        if before is None or before[0].tobytes() != numbers.tobytes():
            memory = None if self._gpu is None else self._gpu.upload(numbers, "tables of arguments")
            address = numbers.ctypes.data if memory is None else memory.address
            before = self._copies[slot, what] = (numbers, memory, int(address))
        return before[2]


def _check(node: Node, name: str, extents: Sequence[int], array: np.ndarray) -> None:
    """Raises TraceError where an index may be outside of an array."""
    for axis, (index, length) in enumerate(zip(node.args, array.shape, strict=False)):
        low, high = range_of(index, extents)
        if low >= 0 and high < length:
            continue
        if low == -np.inf or high == np.inf:
            what = f"can be any number; bound it, as by % {length} or jali.minimum(jali.maximum(k, 0), {length - 1})"
        elif leaves.member.made(index):
            raise TraceError(
                f"{name} has {length} entries at index {axis}, and is indexed there by X.member, of a batch of {index.attrs[0]}: it has one "
                f"for each member\n  at {node.where}"
            )
        else:
            what = f"reaches from {low:.0f} to {high:.0f} on a lattice of {tuple(extents)}"
        raise TraceError(
            f"{name} has {length} entries at index {axis}, numbered from 0, and is indexed there by what {what}\n  at {node.where}"
        )
