"""Kernels of arrays of numbers: a program of numbers for every element, and the functions of matrices of `prelude/dense.hpp`.

One block computes an array, on the host one thread. Extents are parameters, so arrays of any shape share a kernel. Words of a kernel:
two for every result, where it is and where the host sees it; then `MatrixWords` of every matrix, or those of `ElementKernel`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jali.codegen.number_kernels import (
    Given,
    NumberEmitter,
    NumberProgram,
    prelude_of_numbers,
    program_of_numbers,
)
from jali.codegen.passes import analyse
from jali.codegen.writer import KernelParameter, Lowering


class MatrixWords(NamedTuple):
    """Where doubles are, and steps of so many of them: `given_matrix` of the prelude."""

    real: int  # its address; 0: the unit matrix
    imaginary: int  # 0: there are none
    rows: int
    columns: int
    row_step: int
    column_step: int


@dataclass(frozen=True)
class ElementKernel:
    """A text, and its parameters behind the words of the result, the number of elements and that of columns: of the values of the
    program, by their positions (slot), `scalar`, or for arrays `element` and `step` (component: of rows, of columns)."""

    text: str
    parameters: tuple[KernelParameter, ...]


def element_kernel(numbers: NumberProgram, gpu: bool) -> ElementKernel:
    """Computes a program of numbers for every element; values that are given by address are arrays."""
    program = program_of_numbers(numbers)
    arrays = frozenset(k for k, v in enumerate(numbers.values) if isinstance(v, Given) and v.by_address)
    emitter = _ElementEmitter(program, Lowering(lanes=1, gpu=gpu, by_address=arrays), analyse(program))
    emitter.write()
    return ElementKernel(emitter.assemble(), tuple(emitter.parameters))


class _ElementEmitter(NumberEmitter):
    """The loop over elements is that of a block's threads."""

    first_parameter = 4

    def effects(self) -> None:
        self.depth = 2
        parts = [part for effect in self.program.effects for part in self.parts(effect.value)]
        for k, part in enumerate(parts):
            self.line(f"keep(kept_at(w), {len(parts)} * e + {k}, {part});")

    def assemble(self) -> str:
        of_element = [
            *self.declarations(),
            *(f"real {name}[{reals}];" for name, reals in self.arrays.sizes.items()),
            *(line.strip() for line in self.lines),
        ]
        head = "const int64_t i = e / (int64_t)w[3], j = e % (int64_t)w[3];"
        body = [
            "JALI_FOR_THREADS(e, (int64_t)w[2]) {",
            *("    " + line for line in [head, *of_element]),
            "}",
        ]
        return _kernel(body, self.lowering.gpu, self.first_parameter + len(self.parameters))

    def parameter_of(
        self,
        what: str,
        slot: int = 0,
        offset: tuple[int, ...] = (),
        windings: bool = False,
        component: int = 0,
    ) -> int:
        what = "element" if slot in self.lowering.by_address else what
        return super().parameter_of(what, slot, offset, windings, component)

    def declarations(self) -> list[str]:
        elements = []
        for given in [parameter for parameter in self.parameters if parameter.what == "element"]:
            steps = [self.parameter(KernelParameter("step", given.slot, component=axis)) for axis in (0, 1)]
            at = " + ".join(f"{name} * (int64_t)w[{step}]" for name, step in zip("ij", steps, strict=True))
            index = self.parameter(given)
            elements.append(f"const real s{index} = splat(((const double*)w[{index}])[{at}]);")
        return [*elements, *super().declarations()]


def matrix_kernel(function: str, results: int, matrices: int, is_complex: bool, gpu: bool) -> str:
    """The text that calls a function of the prelude with so many results and matrices."""
    kept = [f"kept_at(w + {2 * k})" for k in range(results)]
    given = [f"given_at(w + {2 * results + len(MatrixWords._fields) * k})" for k in range(matrices)]
    number = "complex_lane" if is_complex else "real"
    words = 2 * results + len(MatrixWords._fields) * matrices
    return _kernel([f"{function}<{number}>({', '.join([*kept, *given])});"], gpu, words)


@functools.cache
def sums_kernel() -> str:
    """The text for a device that takes sums, and leaves zeros: words of the result, their number, and where they lie."""
    body = [
        "JALI_FOR_THREADS(e, (int64_t)w[2]) {",
        "    int64_t* const words = (int64_t*)w[3] + e * SUM_WORDS;",
        "    keep(kept_at(w), e, splat(value_of_words(words)));",
        "    for (int k = 0; k < SUM_WORDS; ++k) words[k] = 0;",
        "}",
    ]
    return prelude_of_numbers() + _kernel(body, True, 4)


def _kernel(body: Sequence[str], gpu: bool, words: int) -> str:
    if gpu:
        head = [f"struct arguments {{ uint64_t w[{words}]; }};", "JALI_KERNEL(kernel, arguments) {"]
        body = ["const uint64_t* const w = a.w;", "if (block_in_grid() != 0) return;", *body]
    else:
        head = [
            'extern "C" __attribute__((visibility("default"))) void kernel(const uint64_t* w, int64_t, int64_t) {'
        ]
    return "\n".join([_prelude(), *head, *("    " + line for line in body), "}", ""])


@functools.cache
def _prelude() -> str:
    return (Path(__file__).parent / "prelude" / "dense.hpp").read_text()
