"""Elementary functions of numbers: `call(nodes, "exp", x)`. In the prelude a function f is `vf`, of complex numbers `complex_f`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, REAL, Node
from jali.codegen.language.arithmetic import neg
from jali.codegen.language.choices import less, where
from jali.codegen.language.conversions import convert, number_of
from jali.codegen.language.leaves import const
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


@operation(
    "call",
    _call,
    flops=_call_flops,
    gives_whole=lambda node: node.attrs[0] in ("floor", "ceil", "round"),
    compute=_compute,
    of_bits=_of_bits,
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
