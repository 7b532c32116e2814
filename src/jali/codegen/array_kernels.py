"""Writes the kernels of programs over arrays on a device, which may belong to any library.

A field of such a program is an array of real numbers: rows of `count` numbers, `step` numbers from one row to the next. A site
is an element, which has no neighbours, so offsets are (). The program stores one value. A launch has one thread for `EACH` elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jali.codegen.accesses import Access
from jali.codegen.emit import Emitter, KernelText
from jali.codegen.ir import FieldSlot, Node, SiteProgram, Store
from jali.codegen.passes import analyse
from jali.codegen.storage_formats import plain
from jali.codegen.types import Real
from jali.codegen.writer import Lowering, Writer

THREADS, EACH = 256, 4  # of a block; elements of a thread


def array_program(name: str, precision: str, value: Node, sources: int) -> SiteProgram:
    """Stores a value of elements of arrays 0 to `sources` - 1 in the array behind them. All products are rounded by themselves."""
    storage = plain(Real(), precision)
    fields = [FieldSlot(f"array {k}", storage) for k in range(sources + 1)]
    return SiteProgram(name, 0, precision, fields, [], [], [Store(sources, (), value, value.where)], [])


def emit_for_arrays(program: SiteProgram) -> KernelText:
    """The C++ text of a program over arrays, for a device."""
    accesses = frozenset(Element(slot, ()) for slot in range(len(program.fields)))
    return ArrayEmitter(program, Lowering(lanes=1, gpu=True, accesses=accesses), analyse(program)).run()


def arguments(addresses: Sequence[int], steps: Sequence[int], count: int, total: int) -> bytes:
    """Of a launch: where arrays begin and how far their rows are apart; how many elements a row has, and all rows."""
    return struct.pack(f"={len(addresses)}Q{len(steps)}q2q", *addresses, *steps, count, total)


def blocks(total: int) -> int:
    """Of a launch over so many elements."""
    return -(-total // (THREADS * EACH))


class Element(Access):
    """An element of an array of real numbers."""

    def load(self, w: Writer, node: Node) -> None:
        w.name(node, [f"splat(a.array[{self.slot}][i + row * a.step[{self.slot}]])"])


class ArrayEmitter(Emitter):
    """Writes the kernel of a program over arrays."""

    def write(self) -> None:
        self.depth = 4  # inside the loops of `assemble`
        super().write()

    def effects(self) -> None:
        (store,) = self.program.effects
        self.line(f"found[k] = {self.one(store.value)};")
        self.line(f"offsets[k] = i + row * a.step[{store.slot}];")

    def assemble(self) -> str:
        (store,) = self.program.effects
        arrays, tile = len(self.program.fields), THREADS * EACH
        constants = [
            f"\n    const real {name} = splat((JALI_REAL){text});" for text, name in self.constants.items()
        ]
        before, of_element = "".join(constants), "\n".join(self.lines)
        # A compiler lets no load pass a store, which might be to the same memory. So a thread stores when it
        # has loaded all of its elements, and memory answers all loads together.
        return f"""// {self.program.name}: {self.analysis.flops} flops per element
struct arguments {{ JALI_REAL* array[{arrays}]; int64_t step[{arrays}], count, total; }};
JALI_KERNEL(kernel, arguments) {{{before}
    for (int64_t thread = thread_in_block(); thread < {THREADS}; thread += threads_in_block()) {{
        const int64_t first = block_in_grid() * {tile} + thread;
        real found[{EACH}];
        int64_t offsets[{EACH}];
        JALI_UNROLL
        for (int k = 0; k < {EACH}; ++k) {{
            const int64_t at = first + k * {THREADS};
            if (at < a.total) {{
                const int64_t row = at < a.count ? 0 : at / a.count, i = at - row * a.count;
{of_element}
            }}
        }}
        JALI_UNROLL
        for (int k = 0; k < {EACH}; ++k)
            if (first + k * {THREADS} < a.total) a.array[{store.slot}][offsets[k]] = found[k].value;
    }}
}}
"""
