"""Kernels of numbers without sites: programs whose values are kept where the numbers are, on a device or on the host.

A `NumberProgram` says what is computed from what; it is data, so that programs of one form have one kernel. On a device one block
takes the words of sums, and one of its threads computes the rest.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.codegen.builder import Builder
from jali.codegen.emit import Emitter
from jali.codegen.ir import BOOL, REAL, Node, Output, SiteProgram
from jali.codegen.language.choices import not_equal, where
from jali.codegen.language.leaves import const, scalar, summed
from jali.codegen.operation import Operation
from jali.codegen.passes import analyse
from jali.codegen.types import Type
from jali.codegen.writer import KernelParameter, Lowering


class Given(NamedTuple):
    """A number that the kernel is given: its bits, or the address where it is. Conditions are 1 and 0."""

    type: Type
    by_address: bool = True


class Summed(NamedTuple):
    """What becomes of the words of a sum."""

    number: int  # among the sums of the program
    reduction: str  # as the core calls it


class Step(NamedTuple):
    """An operation on values before it in the program, by their positions."""

    operation: Operation
    attrs: tuple[Any, ...]
    args: tuple[int, ...]


@dataclass(frozen=True)
class NumberProgram:
    """Values in order, which of them are kept, and how many sums each launch has left as words."""

    values: tuple[Given | Summed | Step, ...]
    kept: tuple[int, ...]
    sums: tuple[int, ...] = ()


@dataclass(frozen=True)
class NumberKernel:
    """A text and its parameters: `scalar` (slot: position among the values), `kept` and `mirror` (slot: number of the result), `words`
    (slot: which launch)."""

    text: str
    parameters: tuple[KernelParameter, ...]


def number_kernel(numbers: NumberProgram, gpu: bool) -> NumberKernel:
    """Writes the kernel of a program of numbers."""
    program = program_of_numbers(numbers)
    by_address = frozenset(k for k, v in enumerate(numbers.values) if isinstance(v, Given) and v.by_address)
    emitter = NumberEmitter(program, Lowering(lanes=1, gpu=gpu, by_address=by_address), analyse(program))
    emitter.sums = numbers.sums
    emitter.write()
    return NumberKernel(emitter.assemble(), tuple(emitter.parameters))


def program_of_numbers(numbers: NumberProgram) -> SiteProgram:
    """The same as a program of the site language, without sites. No product is fused with a sum, as Python fuses none."""
    nodes, made = Builder(), list[Node]()
    for k, value in enumerate(numbers.values):
        made.append(_made(nodes, k, value, made))
    effects, first = [], 0
    for k in numbers.kept:
        node = made[k]
        if node.type == BOOL:
            node = where(nodes, node, const(nodes, 1.0), const(nodes, 0.0))
        effects.append(Output(first, node))
        first += node.type.reals
    named = [(f"number {k}", node.type) for k, node in enumerate(made)]
    return SiteProgram("numbers", 0, IEEE_PRECISIONS[-1], [], named, [], effects, [])


def _made(nodes: Builder, k: int, value: Given | Summed | Step, before: list[Node]) -> Node:
    if isinstance(value, Step):
        return value.operation(nodes, *value.attrs, *(before[a] for a in value.args))
    if isinstance(value, Summed):
        return summed(nodes, value.number, value.reduction)
    if value.type == BOOL:
        return not_equal(nodes, scalar(nodes, k, REAL), const(nodes, 0.0))
    return scalar(nodes, k, value.type)


class NumberEmitter(Emitter):
    """Values are named in the one thread that computes them; there is no loop over sites."""

    first_parameter = 0
    sums: tuple[int, ...] = ()

    def effects(self) -> None:
        self.depth = 1
        for effect in self.program.effects:
            for k, part in enumerate(self.parts(effect.value), effect.first):
                kept = self.parameter(KernelParameter("kept", k))
                if self.lowering.gpu:
                    mirror = self.parameter(KernelParameter("mirror", k))
                    self.line(f"keep_number(w[{kept}], w[{mirror}], ({part}).value);")
                else:
                    self.line(f"*(double*)w[{kept}] = ({part}).value;")

    def assemble(self) -> str:
        taken = self._taken() if self.sums else []
        of_thread = [
            *self.declarations(),
            *(f"real {name}[{reals}];" for name, reals in self.arrays.sizes.items()),
            *(line.strip() for line in self.lines),
        ]
        if self.lowering.gpu:
            size = len(self.parameters)
            assert size > 0, "what has no parameters computes nothing"
            head = [
                prelude_of_numbers(),
                f"struct arguments {{ uint64_t w[{size}]; }};",
                "JALI_KERNEL(kernel, arguments) {",
            ]
            start = ["const uint64_t* const w = a.w;", *taken]
            start.append("if (block_in_grid() != 0 || thread_in_block() != 0) return;")
        else:
            head = [
                'extern "C" __attribute__((visibility("default"))) void kernel(const uint64_t* w, int64_t begin, int64_t end) {'
            ]
            start = []
        return "\n".join([*head, *("    " + line for line in [*start, *of_thread]), "}", ""])

    def _taken(self) -> list[str]:
        """The words of all sums, taken by all threads of the block."""
        count = sum(self.sums)
        lines = [f"JALI_SHARED int64_t words[{count} * SUM_WORDS];", f"JALI_SHARED double values[{count}];"]
        first = 0
        for launch, size in enumerate(self.sums):
            of_launch = self.parameter(KernelParameter("words", launch))
            lines.append(
                f"take_words(words + {first} * SUM_WORDS, (int64_t*)w[{of_launch}], {size} * SUM_WORDS);"
            )
            first += size
        return [*lines, f"values_of_words(values, words, {count});"]


@functools.cache
def kept_results_kernel() -> str:
    """The text for a device that copies numbers to where the host sees them, for each of so many repetitions elsewhere.

    Its words: a table of their addresses, where repetitions are counted, the memory, how many numbers, and for how many repetitions there is memory.
    """
    return """struct arguments { uint64_t w[5]; };
JALI_KERNEL(kernel, arguments) {
    const uint64_t* const w = a.w;
    if (block_in_grid() != 0) return;
    int64_t* const repetitions = (int64_t*)w[1];
    const int64_t size = (int64_t)w[3], row = *repetitions % (int64_t)w[4];
    volatile int64_t* const kept = (volatile int64_t*)w[2] + row * size;
    for (int64_t k = thread_in_block(); k < size; k += threads_in_block())
        kept[k] = *(const int64_t*)((const uint64_t*)w[0])[k];
    meet();
    if (thread_in_block() == 0) *repetitions += 1;
}
"""


@functools.cache
def prelude_of_numbers() -> str:
    """What kernels of numbers on a device need besides the prelude."""
    return (Path(__file__).parent / "prelude" / "scalars.hpp").read_text()
