"""An operation of the site language: one descriptor with all of its properties.

The descriptors themselves are in `jali.codegen.language`, in files by idea. Passes and the emitter read their columns; nothing else
compares names of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jali.codegen.ir import Node

if TYPE_CHECKING:
    from jali.codegen.builder import Builder
    from jali.codegen.writer import Writer

Make = Callable[..., Node]
Text = Callable[["Writer", Node], None]
Flops = Callable[[Node], int]
Range = tuple[float, float]  # least and largest value of a whole number; infinite where it is not known
Compute = Callable[[Any], Callable[..., Any] | None]
Bounds = Callable[[Node, list[Range], Sequence[int]], Range]
Pullback = Callable[["Builder", Node, Node, Sequence[bool]], Sequence[Node | None]]
Tangent = Callable[["Builder", Node, Sequence[Node | None]], Node | None]


def always(function: Callable[..., Any]) -> Compute:
    """The column `compute` of an operation that is computed alike for all attributes and types."""
    return lambda node: function


PARTS = 2  # the degree of an argument of which real and imaginary parts go different ways


def degrees(*each: int) -> Callable[[Node], Sequence[int]]:
    """The column `linear` of an operation that is linear alike for all attributes."""
    return lambda node: each


def no_flops(node: Node) -> int:
    """Of what moves, names or chooses values."""
    return 0


def nothing(node: Node) -> str:
    """Of what any arithmetic has."""
    return ""


@dataclass(frozen=True)
class Fusion:
    """How a product is rounded together with the sum that it belongs to, as a multiply-add.

    `possible(product, total)` decides by the types alone whether it is; `make(nodes, sign, product, other, first)` makes the sum (1)
    or difference (-1) of the product and another value; `first`: the product stands in front.
    """

    possible: Callable[[Node, Node], bool]
    make: Callable[[Builder, int, Node, Node, bool], Node]


@dataclass(frozen=True, eq=False, repr=False)
class Operation:
    """One operation. Calling it makes a node: `add(nodes, a, b)`.

    `make(nodes, ...)` is its type rule: it checks and converts arguments, gives what is simpler where there is such a thing, and
    raises TraceError at the user's line. `flops(node)` counts per site; elementary functions count as 1, so that
    figures compare with hand counts. `text(writer, node)` writes the node in the kernel dialect.
    """

    name: str
    make: Make
    text: Text
    flops: Flops = no_flops
    renames: bool = False  # it only names components of its arguments anew, and needs no memory of its own
    method: str = ""  # its name as a method of symbols and whole fields; `make` has the same arguments
    is_property: bool = False  # of a method: it is written without brackets
    # of a method, for the boundaries of whole fields: arguments are multiplied by factors -1 or phases, and each term of the value is
    # then multiplied by these powers of the factors, 1 of what is linear, -1 of a conjugate; nothing where it is not
    degrees: tuple[tuple[int, ...], ...] = ()
    fusion: Fusion | None = None  # of a product
    sign: int = 0  # of the second term of a sum: 1 or -1
    fused: bool = False  # a sum that is rounded together with a product
    keeps_hermitian: bool = False  # of a Hermitian matrix it gives one
    makes_hermitian: bool = False  # it gives one of any square matrix

    # where its value comes from
    constant: bool = False  # attrs[0] is a number that is known while tracing
    # slot and component of a number that is an argument
    argument: Callable[[Node], tuple[int, int]] | None = None
    everywhere: bool = False  # it has no arguments, and the same value at all sites
    reads: bool = False  # a field: attrs are its slot and the offset
    # which of its attributes are numbers in lists of the program: the list, and the position of the attribute
    indexes: Mapping[str, int] = field(default_factory=dict)
    # its attributes where it is seen from another site; None: they are the same
    shifted: Callable[[tuple[Any, ...], tuple[int, ...]], tuple[Any, ...]] | None = None
    of_member: bool = False  # it differs between the members of a batch
    looks_up: bool = False  # an array that is an argument: attrs[0] is its slot, args are indices
    draws: bool = False  # random numbers: attrs[0] is the slot of their source
    by_coordinates: bool = False  # it depends on the coordinates of the site
    chooses: bool = False  # between its second and third argument, by the first
    # what its argument is where it fails, in words; its text counts such sites, and an argument behind all others says where its value
    # is used
    fails: str = ""
    component: bool = False  # component attrs[0] of its argument
    collects: bool = False  # its components are its arguments, in order
    repeats: bool = False  # a rejection loop: attrs[0] is its number
    encloses: bool = False  # its arguments are written inside a branch of its own

    # what may be done with it
    # what of it needs the bits of IEEE numbers, in words, so that arithmetics of several machine words lack it; "": nothing
    of_bits: Callable[[Node], str] = nothing
    wide: bool = False  # doubles in kernels of any precision, which only sums take
    sendable: bool = True  # a halo item may contain it
    # least and largest value of a whole number, by those of its arguments and the extents of the lattice
    bounds: Bounds | None = None
    # what computes the value of a node from those of its arguments: Python's numbers, with the bits that kernels give in double
    # precision; None where Python's functions have others
    compute: Compute | None = None
    # whether its value is a whole number, though it is real
    gives_whole: Callable[[Node], bool] | None = None

    # its derivative (docs/derivatives.md)
    # how it depends on each argument while the others are held: 1 linear, -1 of its conjugate, PARTS of both, 0 not linear
    linear: Callable[[Node], Sequence[int]] | None = None
    jointly: bool = False  # it is linear in all its arguments together, as a sum is
    # `pullback(nodes, node, c, wanted)`: what each wanted argument contributes to Re <c, d node> = sum Re <contribution, d argument>, with
    # <a, b> = sum conj(a) b over components; None: nothing
    pullback: Pullback | None = None
    # `tangent(nodes, node, of)`: the change of its value for changes `of` the arguments, None where there is none; where it is left out, the
    # sum of the operation itself on each change (`linear`)
    tangent: Tangent | None = None
    holds: bool = False  # its value is constant to derivatives, whatever it is made of
    # `alike(nodes, node)`: the same value by other operations, whose derivatives are its own
    alike: Callable[[Builder, Node], Node] | None = None

    def __call__(self, nodes: Builder, *arguments: Any) -> Node:
        return self.make(nodes, *arguments)

    def __repr__(self) -> str:
        return f"<operation {self.name}>"

    def made(self, node: Node) -> bool:
        """Whether a node is one of this operation."""
        return node.op == self.name


OPERATIONS: dict[str, Operation] = {}


def described(node: Node) -> Operation:
    """The descriptor of a node's operation."""
    return OPERATIONS[node.op]


def operation(name: str, text: Text, **columns: Any) -> Callable[[Make], Operation]:
    """Decorator: makes the descriptor of an operation from its type rule and its columns, and puts it on the list."""

    def describe(make: Make) -> Operation:
        assert name not in OPERATIONS, f"operation {name} is described twice"
        found = OPERATIONS[name] = Operation(name, make, text, **columns)
        return found

    return describe
