"""Combinations of arrays, `sum(times * x / over) / divisor * scale`, and what computes them for arrays of a kind.

All backends round as NumPy does: each product, quotient and sum by itself. On a device a combination is a program of the site
language and one kernel: one pass over memory in place of several.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali import graph_recorder
from jali._core import combine_host_vectors
from jali.array_namespaces import ArrayNamespace, numpy_dtype
from jali.codegen import array_kernels, kernel_cache
from jali.codegen.arithmetics import arithmetic_of
from jali.codegen.builder import Builder
from jali.codegen.ir import REAL, Node, SiteProgram
from jali.codegen.language.arithmetic import add, div, mul
from jali.codegen.language.leaves import const, load
from jali.comm.device_of_array import gpu_of, is_on_device

Weight = tuple[float, float]  # times, over
# Bytes of a result that are worked on at a time: they stay in a cache, and calls of NumPy do not count.
CHUNK = 1 << 19


class Combination:
    """A weighted sum of arrays. What is a power of two waits for the last operation, where it changes no bits, so that there
    are few operations."""

    def __init__(self, weights: tuple[Weight, ...], divisor: float, scale: float) -> None:
        sizes = {abs(times / over) for times, over in weights}
        common = sizes.pop() if len(sizes) == 1 else 1.0
        if not _is_power_of_two(common):
            common = 1.0
        self.weights = tuple((times / common, over) for times, over in weights)
        self.scratch = any(abs(times) != 1.0 or over != 1.0 for times, over in self.weights[1:])
        self.divisor, self.factor = divisor / common, scale
        if _is_power_of_two(abs(self.divisor)):
            self.divisor, self.factor = 1.0, scale / self.divisor

    def __call__(self, xp: Any, arrays: Sequence[Any], out: Any, scratch: Any) -> None:
        begin = self._first(xp, arrays, out)
        for x, (times, over) in zip(arrays[begin:], self.weights[begin:], strict=True):
            if abs(times) == 1.0 and over == 1.0:
                value, negative = x, times < 0
            else:
                value, negative = _term(xp, x, abs(times), over, scratch), times < 0
            (xp.subtract if negative else xp.add)(out, value, out=out)
        if self.divisor != 1.0:
            xp.divide(out, self.divisor, out=out)
        if self.factor != 1.0:
            xp.multiply(out, self.factor, out=out)

    def site_program(self, precision: str) -> SiteProgram:
        """At an element: array k is field k, and the result the field behind them."""
        nodes = Builder(precision)

        def rounded(number: float) -> float:
            with np.errstate(over="ignore"):  # as it is where arrays are multiplied by it
                return float(np.dtype(precision).type(number))

        def multiplied(value: Node, number: float) -> Node:
            return mul(nodes, value, const(nodes, rounded(number)))

        def divided(value: Node, number: float) -> Node:
            if number == 1.0:
                return value
            if rounded(number) == 0:  # no quotient of the language, but this product has its values
                return multiplied(value, math.copysign(math.inf, number))
            return div(nodes, value, const(nodes, rounded(number)))

        terms = [
            divided(multiplied(load(nodes, k, (), REAL), times), over)
            for k, (times, over) in enumerate(self.weights)
        ]
        total = functools.reduce(functools.partial(add, nodes), terms)
        total = multiplied(divided(total, self.divisor), self.factor)
        return array_kernels.array_program("combination", precision, total, len(terms))

    def _first(self, xp: Any, arrays: Sequence[Any], out: Any) -> int:
        """The first two terms, or the only one; how many."""
        (times, over), x = self.weights[0], arrays[0]
        plain = abs(times) == 1.0 and over == 1.0
        if len(arrays) > 1 and plain:
            second, below = self.weights[1]
            y = arrays[1]
            if abs(second) != 1.0 or below != 1.0:
                y = _term(xp, y, abs(second), below, out)
            if times > 0:
                (xp.subtract if second < 0 else xp.add)(x, y, out=out)
                return 2
            if second > 0:
                xp.subtract(y, x, out=out)
                return 2
        if not plain:
            _term(xp, x, times, over, out)
        elif times < 0:
            xp.multiply(
                x, -1.0, out=out
            )  # numpy.negative of NumPy 2.4 errs with strides of 4 and 8 elements into others
        else:
            out[...] = x
        return 1


def _term(xp: Any, x: Any, times: float, over: float, out: Any) -> Any:
    if times != 1.0:
        xp.multiply(x, times, out=out)
        x = out
    if over != 1.0:
        xp.divide(x, over, out=out)
    return out


def _is_power_of_two(number: float) -> bool:
    return number > 0 and math.isfinite(number) and math.frexp(number)[0] == 0.5


combination: Callable[[tuple[Weight, ...], float, float], Combination] = functools.lru_cache(maxsize=512)(
    Combination
)


class CombinationBackend(ABC):
    """What computes combinations of arrays of a kind."""

    def scratch(self, formula: Combination, like: Any) -> Any:
        """What `combine` needs beside its result, for results that are no larger than this one."""
        return None

    def at_a_time(self, out: Any) -> int | None:
        """Elements of a long result that are best computed together; None: all."""
        return None

    @abstractmethod
    def combine(self, formula: Combination, arrays: Sequence[Any], out: Any, scratch: Any) -> None:
        """Into `out`, whose last axis is contiguous like those of the arrays; one or two axes."""


class ByLibrary(CombinationBackend):
    """By operations of whole arrays, those of a library that has NumPy's."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def scratch(self, formula: Combination, like: Any) -> Any:
        return self.xp.empty_like(like) if formula.scratch else None

    def combine(self, formula: Combination, arrays: Sequence[Any], out: Any, scratch: Any) -> None:
        formula(self.xp, arrays, out, scratch)


class ByCore(ByLibrary):
    """NumPy's arrays in one pass over memory, where they are of real or complex numbers; others by NumPy."""

    def __init__(self) -> None:
        super().__init__(np)

    def at_a_time(self, out: Any) -> int | None:
        return None if out.dtype.char in "fdFD" else max(1, CHUNK // out.dtype.itemsize)

    def combine(self, formula: Combination, arrays: Sequence[Any], out: Any, scratch: Any) -> None:
        if not combine_host_vectors(out, arrays, formula.weights, formula.divisor, formula.factor):
            super().combine(formula, arrays, out, scratch)


class ByKernel(CombinationBackend):
    """On the stream of the array's library. Roundings are those of real arrays of NumPy; real and imaginary parts are real numbers."""

    def __init__(self, namespace: ArrayNamespace, out: Any) -> None:
        graph_recorder.refuse_call("a derivative of arrays")
        self.namespace, self.gpu, self.stream = namespace, gpu_of(out), namespace.stream(out)
        dtype = numpy_dtype(out)
        arithmetic = arithmetic_of(dtype)
        assert arithmetic is not None, "backend_on chose another"
        self.precision, self.parts = arithmetic.name, 2 if dtype.kind == "c" else 1

    def combine(self, formula: Combination, arrays: Sequence[Any], out: Any, scratch: Any) -> None:
        rows, count = (1, *out.shape)[-2:]
        total = rows * count * self.parts
        if total == 0:
            return
        function = _function(self.gpu, formula, self.precision)
        every = (*arrays, out)
        addresses = [self.namespace.address(x) for x in every]
        steps = [self.namespace.strides(x)[0] * self.parts if rows > 1 else 0 for x in every]
        arguments = array_kernels.arguments(addresses, steps, count * self.parts, total)
        blocks = array_kernels.blocks(total)
        self.gpu.launch(function, blocks, array_kernels.THREADS, arguments, 1, self.stream)


@functools.lru_cache(maxsize=512)
def _function(gpu: Any, formula: Combination, precision: str) -> Any:
    kernel = array_kernels.emit_for_arrays(formula.site_program(precision))
    return kernel_cache.load_on_device(gpu, kernel.name, kernel.text, precision, array_kernels.THREADS)[0]


def backend_on(namespace: ArrayNamespace, out: Any) -> CombinationBackend:
    """What computes results like `out`: the core on NumPy's arrays, kernels on a device for types that they have, else the library."""
    if namespace.name == "numpy":
        return ByCore()
    if not is_on_device(out) or numpy_dtype(out).kind not in "fc" or arithmetic_of(numpy_dtype(out)) is None:
        return ByLibrary(namespace.xp)
    return ByKernel(namespace, out)
