"""Combinations of arrays on a device by one kernel each, for arrays of any library: one pass over memory in place of several."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali import graph_recorder
from jali.array_namespaces import ArrayNamespace, numpy_dtype
from jali.codegen import kernel_cache
from jali.codegen.arithmetics import arithmetic_of
from jali.comm.device_of_array import gpu_of, is_on_device
from jali.linops.bands import Arithmetic, ByCore, ByLibrary, Combination

THREADS, EACH = 256, 4  # of a block; elements of a thread


def arithmetic_on(namespace: ArrayNamespace, out: Any) -> Arithmetic:
    """What computes results like `out`: the core on NumPy's arrays, kernels on a device for types that they have, else the library."""
    if namespace.name == "numpy":
        return ByCore()
    if not is_on_device(out) or numpy_dtype(out).kind not in "fc" or arithmetic_of(numpy_dtype(out)) is None:
        return ByLibrary(namespace.xp)
    return ByKernel(namespace, out)


class ByKernel(Arithmetic):
    """On the stream of the array's library. Roundings are those of real arrays of NumPy; real and imaginary parts are real numbers."""

    def __init__(self, namespace: ArrayNamespace, out: Any) -> None:
        graph_recorder.refuse_call("a derivative of arrays")
        self.namespace, self.gpu, self.stream = namespace, gpu_of(out), namespace.stream(out)
        dtype = numpy_dtype(out)
        arithmetic = arithmetic_of(dtype)
        assert arithmetic is not None, "arithmetic_on chose another"
        self.precision, self.parts = arithmetic.name, 2 if dtype.kind == "c" else 1

    def combine(self, program: Combination, arrays: Sequence[Any], out: Any, scratch: Any) -> None:
        rows, count = (1, *out.shape)[-2:]
        total = rows * count * self.parts
        if total == 0:
            return
        function = _function(self.gpu, program, self.precision)
        every = (*arrays, out)
        addresses = [self.namespace.address(x) for x in every]
        steps = [self.namespace.strides(x)[0] * self.parts if rows > 1 else 0 for x in every]
        arguments = struct.pack(
            f"={len(every)}Q{len(every) + 2}q", *addresses, *steps, count * self.parts, total
        )
        self.gpu.launch(function, -(-total // (THREADS * EACH)), THREADS, arguments, 1, self.stream)


@functools.lru_cache(maxsize=512)
def _function(gpu: Any, program: Combination, precision: str) -> Any:
    return kernel_cache.load_on_device(
        gpu, "combination", kernel_text(program, precision), precision, THREADS
    )[0]


def kernel_text(program: Combination, precision: str) -> str:
    """Of arrays whose last axis is contiguous: rows of `count` numbers, `step` from one another."""
    terms = []
    for k, (times, over) in enumerate(program.weights):
        text = f"a.x[{k}][i + row * a.step[{k}]]"
        if times != 1.0:
            text = f"{text} * {_number(times, precision)}"
        terms.append(text if over == 1.0 else f"{text} / {_number(over, precision)}")
    lines = [f"r = {terms[0]};", *(f"r = r + {term};" for term in terms[1:])]
    for sign, number in (("/", program.divisor), ("*", program.factor)):
        if number != 1.0:
            lines.append(f"r = r {sign} {_number(number, precision)};")
    body = "\n                ".join(lines)
    n = len(terms)
    return f"""
struct combination_arguments {{ const JALI_REAL* x[{n}]; JALI_REAL* out; int64_t step[{n}], out_step, count, total; }};
JALI_KERNEL(kernel, combination_arguments) {{
    for (int64_t thread = thread_in_block(); thread < {THREADS}; thread += threads_in_block()) {{
        const int64_t first = block_in_grid() * {THREADS * EACH} + thread;
        JALI_REAL found[{EACH}];
        int64_t offsets[{EACH}];
        JALI_UNROLL
        for (int k = 0; k < {EACH}; ++k) {{
            const int64_t at = first + k * {THREADS};
            if (at < a.total) {{
                const int64_t row = at < a.count ? 0 : at / a.count, i = at - row * a.count;
                JALI_REAL r;
                {body}
                found[k] = r;
                offsets[k] = i + row * a.out_step;
            }}
        }}
        JALI_UNROLL
        for (int k = 0; k < {EACH}; ++k)
            if (first + k * {THREADS} < a.total) a.out[offsets[k]] = found[k];
    }}
}}
"""


def _number(value: float, precision: str) -> str:
    """As the type has it."""
    with np.errstate(over="ignore"):  # as it is where arrays are multiplied by it
        rounded = float(np.dtype(precision).type(value))
    if math.isinf(rounded):
        return f"JALI_REAL({'-' if rounded < 0 else ''}infinity_of_target())"
    return f"JALI_REAL({rounded.hex()})"
