"""Random numbers: a counter of the generator gives two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import INT, REAL, Node
from jali.codegen.language.leaves import is_constant
from jali.codegen.lines import trace_error
from jali.codegen.operation import operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _number_of_draw(w: Writer, node: Node) -> str:
    """Number of a draw; in a rejection loop every attempt has its own."""
    number, loop = node.attrs[1:3]
    return f"{number}u + attempt * {w.program.loops[loop].draws}u" if loop >= 0 else f"{number}u"


def _philox(w: Writer, node: Node) -> None:
    slot, _, loop, kind, _ = node.attrs
    if node.number in w.values:
        return  # drawn together with another one
    name = w.result(node)
    key, call = w.parameter_of("key", slot), w.parameter_of("call", slot)
    draw = _number_of_draw(w, node)
    if kind == "uniform":
        # two counters at once: the rounds of one fill the latencies of the other
        for other in w.scope(loop):
            if (
                philox.made(other)
                and other.number not in w.values
                and other.attrs[0] == slot
                and other.attrs[3] == kind
            ):
                second = w.result(other)
                w.line(
                    f"philox_uniform_two({name}, {second}, site, w[{call}], {draw}, {_number_of_draw(w, other)}, k{key});"
                )
                return
    w.line(f"philox_{kind}(&{name}[0], &{name}[1], site, w[{call}], {draw}, k{key});")


def _shifted(attrs: tuple[Any, ...], by: tuple[int, ...]) -> tuple[Any, ...]:
    return *attrs[:-1], tuple([o + b for o, b in zip(attrs[-1], by, strict=True)])


def _random(node: Node) -> str:
    return "a random number"


@operation(
    "philox",
    _philox,
    indexes={"randoms": 0, "loops": 2},
    draws=True,
    by_coordinates=True,
    shifted=_shifted,
    of_bits=_random,
)
def philox(nodes: Builder, slot: int, number: int, loop: int, kind: str, ndim: int) -> Node:
    """Two random numbers of a kind: draw `number` of a source at this site, inside a rejection loop (or -1). The last attribute is
    the offset of the site that they belong to."""
    pair = nodes.node("philox", (), (slot, number, loop, kind, (0,) * ndim), Type("real", (2,)))
    if loop >= 0:
        pair.loops = frozenset({loop})
    return pair


def _half(w: Writer, node: Node) -> None:
    w.assign(node, [w.parts(node.args[0])[node.attrs[0]]])


@operation("uniform", _half, flops=lambda node: 1, renames=True)
def uniform(nodes: Builder, pair: Node, half: int) -> Node:
    """One of a pair of numbers, uniform in the open interval (0, 1)."""
    return nodes.node("uniform", (pair,), (half,), REAL)


@operation("gaussian", _half, flops=lambda node: 4, renames=True)
def gaussian(nodes: Builder, pair: Node, half: int) -> Node:
    """One of a pair of numbers, from the normal distribution with mean 0 and variance 1."""
    return nodes.node("gaussian", (pair,), (half,), REAL)


def _integers(w: Writer, node: Node) -> None:
    slot = node.attrs[0]
    key, call = w.parameter_of("key", slot), w.parameter_of("call", slot)
    n, draw = w.one(node.args[0]), _number_of_draw(w, node)
    w.name(node, [f"philox_integer({n}, site, w[{call}], {draw}, k{key})"], "integer")


@operation(
    "integers",
    _integers,
    flops=lambda node: 1,
    indexes={"randoms": 0, "loops": 2},
    draws=True,
    by_coordinates=True,
    shifted=_shifted,
    bounds=lambda node, of, extents: (0, of[0][1] - 1),
    of_bits=_random,
)
def integers(nodes: Builder, slot: int, number: int, loop: int, n: Node, ndim: int) -> Node:
    """A whole number from 0 to n - 1, all of them equally likely: draw `number` of a source, inside a rejection loop (or -1). The
    last attribute is the offset of the site that it belongs to."""
    if n.type != INT:
        raise trace_error(f"rng.integers(X, n) needs a whole number n, not a {n.type}")
    if is_constant(n) and n.attrs[0] < 1:
        raise trace_error(f"rng.integers(X, n) draws from 0 to n - 1; n is at least 1, not {n.attrs[0]}")
    node = nodes.node("integers", (n,), (slot, number, loop, (0,) * ndim), INT)
    if loop >= 0:
        node.loops = node.loops | {loop}
    return node
