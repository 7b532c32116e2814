"""Elementary functions of numbers: `call(nodes, "exp", x)`. In the prelude a function f is `vf`, of complex numbers `complex_f`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, REAL, Node
from jali.codegen.language.arithmetic import add, conj, div, mul, neg, sub
from jali.codegen.language.choices import less, less_equal, where
from jali.codegen.language.conversions import convert, number_of, zero_of
from jali.codegen.language.leaves import const, exact
from jali.codegen.language.parts import imag, real
from jali.codegen.lines import trace_error
from jali.codegen.operation import operation

if TYPE_CHECKING:
    from jali.codegen.writer import Writer

_OF_COMPLEX = ("exp", "log", "sqrt")
_OF_WHOLE = ("abs", "ceil", "floor", "maximum", "minimum", "round", "sign")
_OF_ANY = ("abs", "ceil", "floor", "maximum", "minimum", "sign", "sqrt")  # of no arithmetic's bits
_COMPANIONS = {"sin": "cos", "cos": "sin"}  # computed together where both are wanted


def _call(w: Writer, node: Node) -> None:
    function = node.attrs[0]
    if node.number in w.values:
        return  # computed together with its companion
    companion = _COMPANIONS.get(function)
    if companion:
        for other in w.scope(-1 if w.loop is None else w.loop):
            if (
                call.made(other)
                and other.attrs == (companion,)
                and other.args == node.args
                and other.number not in w.values
            ):
                sine, cosine = (node, other) if function == "sin" else (other, node)
                names = [f"t{w.number(sine)}", f"t{w.number(cosine)}"]
                w.line(f"real {names[0]}, {names[1]};")
                w.line(f"vsincos(&{names[0]}, &{names[1]}, {w.one(node.args[0])});")
                w.assign(sine, [names[0]])
                w.assign(cosine, [names[1]])
                return
    if function == "abs" and node.args[0].type.kind == "complex":
        w.name(node, [f"modulus({', '.join(w.parts(node.args[0]))})"])
        return
    if node.type.kind == "complex":
        a = w.array(node.args[0])
        w.line(f"complex_{function}({w.result(node)}, {a});")
        return
    w.name(node, [f"v{function}({', '.join(w.one(a) for a in node.args)})"])


def _call_flops(node: Node) -> int:
    is_modulus = node.attrs == ("abs",) and node.args[0].type.kind == "complex"
    return 4 if is_modulus else node.type.reals


def _of_bits(node: Node) -> str:
    function, kind = node.attrs[0], node.args[0].type.kind
    return (
        ""
        if function in _OF_ANY and (kind == "real" or function == "abs")
        else f"{function} of a {kind} number"
    )


def _root(a: float) -> float:
    return math.sqrt(a) if a >= 0 else math.nan


def _compute(node: Any) -> Callable[..., Any] | None:
    return None if node.args[0].type.kind == "complex" else _EXACT.get(node.attrs[0])


_EXACT: dict[str, Callable[..., Any]] = {"sqrt": _root, "abs": abs}
"""What Python rounds as kernels do, of real numbers."""


Slope = Callable[[Builder, Node], Sequence[Node]]
"""What the changes of the arguments of a function are multiplied by, given its node."""


def _square_less(nodes: Builder, a: Node) -> Node:
    """1 - a^2, right to the last bits near 1."""
    one = exact(nodes, 1.0)
    return mul(nodes, sub(nodes, one, a), add(nodes, one, a))


def _one_and_square(nodes: Builder, a: Node) -> Node:
    return add(nodes, exact(nodes, 1.0), mul(nodes, a, a))


def _one_over(nodes: Builder, a: Node) -> Node:
    return div(nodes, convert(nodes, exact(nodes, 1.0), a.type.kind), a)


def _slopes_of_atan2(nodes: Builder, node: Node) -> Sequence[Node]:
    y, x = node.args
    square = add(nodes, mul(nodes, x, x), mul(nodes, y, y))
    return div(nodes, x, square), neg(nodes, div(nodes, y, square))


def _slopes_of_power(nodes: Builder, node: Node) -> Sequence[Node]:
    a, b = node.args
    less_one = call(nodes, "pow", a, sub(nodes, b, const(nodes, 1.0)))
    return mul(nodes, b, less_one), mul(nodes, call(nodes, "log", a), node)


def _slopes_of_choice(nodes: Builder, node: Node) -> Sequence[Node]:
    """Of two equal numbers the first is the one that is chosen."""
    (a, b), one, none = node.args, exact(nodes, 1.0), exact(nodes, 0.0)
    second = less(nodes, b, a) if node.attrs == ("minimum",) else less(nodes, a, b)
    return where(nodes, second, none, one), where(nodes, second, one, none)


def _no_slope(nodes: Builder, node: Node) -> Sequence[Node]:
    return [exact(nodes, 0.0) for _ in node.args]


def _of_modulus(node: Node) -> bool:
    return node.attrs == ("abs",) and node.args[0].type.kind == "complex"


def _phase(nodes: Builder, node: Node) -> Node:
    """a / |a| of the modulus of a complex number, 0 where that is 0."""
    zero = exact(nodes, 0.0)
    none = less_equal(nodes, node, zero)
    found = div(nodes, node.args[0], where(nodes, none, exact(nodes, 1.0), node))
    return where(nodes, none, zero_of(nodes, COMPLEX), found)


def _pull_back_call(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    if _of_modulus(node):
        return (mul(nodes, c, _phase(nodes, node)),)
    slopes = _SLOPES[node.attrs[0]](nodes, node)
    pairs = zip(wanted, slopes, strict=True)
    return [mul(nodes, conj(nodes, slope), c) if want else None for want, slope in pairs]


def _change_of_call(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    if _of_modulus(node):
        return of[0] and real(nodes, mul(nodes, conj(nodes, _phase(nodes, node)), of[0]))
    total: Node | None = None
    for slope, change in zip(_SLOPES[node.attrs[0]](nodes, node), of, strict=True):
        if change is not None:
            term = mul(nodes, slope, change)
            total = term if total is None else add(nodes, total, term)
    return total


@operation(
    "call",
    _call,
    flops=_call_flops,
    gives_whole=lambda node: node.attrs[0] in ("floor", "ceil", "round"),
    compute=_compute,
    of_bits=_of_bits,
    linear=lambda node: [0] * len(node.args),
    pullback=_pull_back_call,
    tangent=_change_of_call,
)
def call(nodes: Builder, name: str, *given: Node) -> Node:
    """An elementary function of real scalars; `exp`, `log`, `sqrt`, `abs`, `arg` of complex ones too."""
    args = [number_of(nodes, a) for a in given]
    for a in args:
        if a.type.shape or a.type.kind == "bool":
            raise trace_error(f"{name} needs a number, not {a.type}")
    if name == "arg":
        return call(nodes, "atan2", imag(nodes, args[0]), real(nodes, args[0]))
    if any(a.type.kind == "complex" for a in args):
        if name == "abs":
            return nodes.node("call", args, ("abs",), REAL)
        if name not in _OF_COMPLEX:
            raise trace_error(f"{name} of a complex number is not defined here")
        return nodes.node("call", args, (name,), COMPLEX)
    if name in _OF_WHOLE and all(a.type.kind == "int" for a in args):
        return _of_whole(nodes, name, *args)
    return nodes.node("call", [convert(nodes, a, "real") for a in args], (name,), REAL)


_SLOPES: dict[str, Slope] = {
    "exp": lambda nodes, node: (node,),
    "log": lambda nodes, node: (_one_over(nodes, node.args[0]),),
    "sqrt": lambda nodes, node: (div(nodes, convert(nodes, exact(nodes, 0.5), node.type.kind), node),),
    "sin": lambda nodes, node: (call(nodes, "cos", node.args[0]),),
    "cos": lambda nodes, node: (neg(nodes, call(nodes, "sin", node.args[0])),),
    "tan": lambda nodes, node: (_one_and_square(nodes, node),),
    "sinh": lambda nodes, node: (call(nodes, "cosh", node.args[0]),),
    "cosh": lambda nodes, node: (call(nodes, "sinh", node.args[0]),),
    "tanh": lambda nodes, node: (_square_less(nodes, node),),
    "asin": lambda nodes, node: (_one_over(nodes, call(nodes, "sqrt", _square_less(nodes, node.args[0]))),),
    "acos": lambda nodes, node: (
        neg(nodes, _one_over(nodes, call(nodes, "sqrt", _square_less(nodes, node.args[0])))),
    ),
    "atan": lambda nodes, node: (_one_over(nodes, _one_and_square(nodes, node.args[0])),),
    "abs": lambda nodes, node: (call(nodes, "sign", node.args[0]),),  # 0 at 0
    "atan2": _slopes_of_atan2,
    "pow": _slopes_of_power,
    "minimum": _slopes_of_choice,
    "maximum": _slopes_of_choice,
    "sign": _no_slope,
    "floor": _no_slope,
    "ceil": _no_slope,
    "round": _no_slope,
}


def _of_whole(nodes: Builder, name: str, a: Node, b: Node | None = None) -> Node:
    """The same functions of whole numbers, which stay whole."""
    if b is not None:
        return where(nodes, less(nodes, a, b) if name == "minimum" else less(nodes, b, a), a, b)
    if name in ("floor", "ceil", "round"):
        return a
    zero = const(nodes, 0)
    if name == "abs":
        return where(nodes, less(nodes, a, zero), neg(nodes, a), a)
    negative = where(nodes, less(nodes, a, zero), const(nodes, -1), zero)
    return where(nodes, less(nodes, zero, a), const(nodes, 1), negative)
