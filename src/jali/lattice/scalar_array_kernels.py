"""What computes arrays of numbers: programs of elements, found by calling functions of Scalars, and launches of their kernels.

The arrays themselves, and which functions there are, is in `scalar_arrays.py`.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jali import _core, graph_recorder
from jali.codegen import kernel_cache
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.codegen.ir import BOOL, REAL
from jali.codegen.number_array_kernels import ElementKernel, element_kernel
from jali.codegen.number_kernels import Given, NumberProgram, Step
from jali.errors import ParameterError
from jali.files import value_shown
from jali.lattice.scalar_parts import THREADS, ScalarPart, in_order, order_of, perform
from jali.lattice.scalars import ApartError, Condition, Scalar

NOT_GIVEN = "elementwise: the function uses a Scalar that is not among its arguments"
Form = tuple[str, bool]
"""Of an operand: its kind, and whether a kernel gets its address."""


class Operand(NamedTuple):
    """An array, Scalar, Condition or number of which elements are computed."""

    kind: str  # real, complex or bool
    words: list[int]  # of the real and the imaginary part: addresses, or bits
    by_address: bool
    shape: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    held: Any = None

    @property
    def form(self) -> Form:
        """What a kernel depends on."""
        return self.kind, self.by_address


class Elements(NamedTuple):
    """What a function computes of every element."""

    kind: str
    program: NumberProgram
    sources: tuple[Any, ...]  # of each value that is given: (operand, component), or a number


@lru_cache(maxsize=1024)
def elements_of(function: Callable[..., Any], forms: tuple[Form, ...]) -> Elements:
    """What a function makes of Scalars and Conditions that stand for elements. Raises ParameterError where it gives neither."""
    with graph_recorder.suspended():
        places: dict[ScalarPart, tuple[int, int]] = {}
        given = []
        for k, (kind, _) in enumerate(forms):
            type = BOOL if kind == "bool" else REAL
            parts = tuple([ScalarPart(type=type) for _ in range(2 if kind == "complex" else 1)])
            places.update((part, (k, component)) for component, part in enumerate(parts))
            given.append((Condition if kind == "bool" else Scalar)(None, parts))
        try:
            found = function(*given)
        except ApartError:  # those that stand for elements are nowhere
            raise ParameterError(NOT_GIVEN) from None
        if not isinstance(found, Scalar | Condition):
            raise ParameterError(
                f"elementwise: the function gave {value_shown(found)}, not a Scalar or a Condition"
            )
        order = order_of(found.parts)
    index = {part: k for k, part in enumerate(order)}
    values: list[Given | Step] = []
    sources: list[Any] = []
    for part in order:
        source = places.get(part, part.value)
        if part.location is not None or (source is None and part.operation is None):
            raise ParameterError(NOT_GIVEN)
        if source is None:
            assert part.operation is not None
            values.append(Step(part.operation, part.attrs, tuple([index[a] for a in part.args])))
        else:
            values.append(Given(part.type, isinstance(source, tuple) and forms[source[0]][1]))
        sources.append(source)
    kind = "bool" if isinstance(found, Condition) else "complex" if found.is_complex else "real"
    return Elements(
        kind, NumberProgram(tuple(values), tuple([index[p] for p in found.parts])), tuple(sources)
    )


@lru_cache(maxsize=1024)
def _kernel_of(function: Callable[..., Any], forms: tuple[Form, ...], gpu: bool) -> ElementKernel:
    return element_kernel(elements_of(function, forms).program, gpu)


def compute_elements(
    gpu: Any,
    function: Callable[..., Any],
    given: Sequence[Operand],
    kept: Sequence[int],
    shape: tuple[int, ...],
    memory: Any,
) -> None:
    """Puts what a function makes of operands, whose shapes fit, where `kept` says, row by row."""
    forms = tuple([one.form for one in given])
    kernel, sources = _kernel_of(function, forms, gpu is not None), elements_of(function, forms).sources
    words = [*kept, math.prod(shape), shape[-1]]
    for parameter in kernel.parameters:
        source = sources[parameter.slot]
        if not isinstance(source, tuple):
            words.append(bits_of(source))
        elif parameter.what == "step":
            one, axis = given[source[0]], parameter.component - 2  # rows are axis -2, columns -1
            words.append(one.steps[axis] if len(one.shape) >= -axis and one.shape[axis] > 1 else 0)
        else:
            words.append(given[source[0]].words[source[1]])
    launch(gpu, kernel.text, words, given, [memory])


def bits_of(x: float) -> int:
    """Those of a double."""
    return int(struct.unpack("Q", struct.pack("d", x))[0])


def launch(gpu: Any, text: str, words: Sequence[int], given: Sequence[Any], memories: list[Any]) -> None:
    """Runs a kernel that computes numbers in these memories of what is given, or records that."""
    unsigned = [word % (1 << 64) for word in words]  # steps may go back
    if gpu is None:
        call, here = _on_host(text), (ctypes.c_uint64 * len(words))(*unsigned)

        def run() -> None:
            call(here, 0, 0)
    else:
        function, there = on_device(gpu.kind, gpu.ordinal, text), struct.pack(f"{len(words)}Q", *unsigned)

        def run() -> None:
            with in_order:
                gpu.launch(function, 1, THREADS, there)

    perform(run, [given, memories])
    if graph_recorder.recorders and (recorder := graph_recorder.current()) is not None:
        recorder.written += memories


@lru_cache(maxsize=1024)
def _on_host(text: str) -> Any:
    address, _ = kernel_cache.load("number_array", text, 1, IEEE_PRECISIONS[-1])
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)


@lru_cache(maxsize=1024)
def on_device(kind: str, ordinal: int, text: str) -> Any:
    """A kernel of one block on a device."""
    gpu = _core.Gpu.open(kind, ordinal)
    return kernel_cache.load_on_device(gpu, "number_array", text, IEEE_PRECISIONS[-1], THREADS)[0]
