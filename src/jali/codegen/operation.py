"""An operation of the site language: one descriptor with all of its properties.

The descriptors themselves are in `jali.codegen.language`, in files by idea. Passes and the emitter read them; none
identifies an operation by its name for a property of the descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jali.codegen.ir import Node

if TYPE_CHECKING:
    from jali.codegen.builder import Builder
    from jali.codegen.writer import Writer

Make = Callable[..., Node]
Text = Callable[["Writer", Node], None]
Flops = Callable[[Node], int]


@dataclass(frozen=True)
class Fusion:
    """How a product is rounded together with the sum that it belongs to, as a multiply-add.

    `possible(product, total)` decides by the types alone whether it is; `text(writer, total, other, product)` writes `total`,
    the sum or difference of `other` and the product.
    """

    possible: Callable[[Node, Node], bool]
    text: Callable[[Writer, Node, Node, Node], None]


@dataclass(frozen=True)
class Operation:
    """One operation. Calling it makes a node: `add(nodes, a, b)`.

    `make(nodes, ...)` is its type rule: it checks and converts arguments, gives what is simpler where there is such a thing, and
    raises TraceError at the user's line. `flops(node)` counts per site; elementary functions count as 1, so that
    figures compare with hand counts. `text(writer, node)` writes the node in the kernel dialect. An operation that `renames` only
    names components of its arguments anew and needs no memory of its own. `method` is its name as a method of symbols, whose
    arguments are then those of `make`.
    """

    name: str
    make: Make
    text: Text
    flops: Flops
    renames: bool = False
    fusion: Fusion | None = None
    method: str = ""

    def __call__(self, nodes: Builder, *arguments: Any) -> Node:
        return self.make(nodes, *arguments)


OPERATIONS: dict[str, Operation] = {}


def no_flops(node: Node) -> int:
    """Of what moves, names or chooses values."""
    return 0


def operation(
    name: str,
    text: Text,
    *,
    flops: Flops = no_flops,
    renames: bool = False,
    fusion: Fusion | None = None,
    method: str = "",
) -> Callable[[Make], Operation]:
    """Decorator: makes the descriptor of an operation from its type rule, and puts it on the list."""

    def describe(make: Make) -> Operation:
        assert name not in OPERATIONS, f"operation {name} is described twice"
        found = OPERATIONS[name] = Operation(name, make, text, flops, renames, fusion, method)
        return found

    return describe
