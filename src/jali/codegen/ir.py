"""The intermediate representation: a graph of matrix-level expressions, built and checked one node at a time.

Nodes are hash-consed, so common subexpressions are one node by construction. Every constructor checks the types
of its arguments and reports the line of the user's site function. What a node *means* is in the table `OPERATIONS`
(type rule and flops) and in the emitter; nothing here knows of fields, lattices or C++.
"""

from __future__ import annotations

import dis
import functools
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from jali.codegen.types import Type
from jali.errors import TraceError

BOOL, INT, REAL, COMPLEX = Type("bool"), Type("int"), Type("real"), Type("complex")

_KINDS = {"bool": 0, "int": 1, "real": 2, "complex": 3}

# ---- the user's line -----------------------------------------------------------------------------

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LANGUAGE = tuple(
    _PACKAGE + part for part in ("codegen" + os.sep, "lattice" + os.sep, os.path.join("fermions", "spin.py"))
)
_TRACING = _PACKAGE + os.path.join("codegen", "trace.py")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (_STANDARD + "site-packages" + os.sep, _STANDARD + "dist-packages" + os.sep)
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


@functools.cache
def _whose(file: str) -> str:
    """Whose code a file holds: `user`; `language`, `library` (jali's two parts); `python`, which nobody here wrote."""
    if file.startswith(_PACKAGE):
        return "language" if file.startswith(_LANGUAGE) else "library"
    if file.startswith(("<frozen ", _NUMPY)) or (
        file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    ):
        return "python"
    return "user"


def _owner(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    # Methods that a dataclass writes for itself are "<string>" in a module with a file; what is typed in has none.
    if file == "<string>" and "__file__" in frame.f_globals:
        return "python"
    return _whose(file)


def _line(file: str, number: int) -> str:
    """`file:line`, and what stands there if the file is no file (an interactive session's input)."""
    text = linecache.getline(file, number).strip() if file.startswith("<") else ""
    return f"{file}:{number}" + (f": {text}" if text else "")


def user_line(beyond_trace: bool = False) -> str:
    """`file:line` of the innermost frame that is neither jali's nor Python's own: the user's site function.

    In a site function of jali's own it is jali's line; with `beyond_trace` that of the user who called it.
    """
    frame: FrameType | None = sys._getframe(1)
    library: FrameType | None = None
    while frame is not None:
        owner = _owner(frame)
        if owner == "user":
            return _line(frame.f_code.co_filename, frame.f_lineno)
        if owner == "library":
            library = library or frame
        elif not beyond_trace and frame.f_code.co_name == "trace" and frame.f_code.co_filename == _TRACING:
            break
        frame = frame.f_back
    return "<unknown>" if library is None else _line(library.f_code.co_filename, library.f_lineno)


def line_of_error(traceback: TracebackType | None) -> tuple[str, bool]:
    """The user's innermost line in a traceback (or else `user_line`), and whether the user's own code raised the error.

    Errors that Python finds have no `raise` statement.
    """
    line, raised = "", False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        owner = _owner(traceback.tb_frame)
        if owner == "user":
            line = _line(code.co_filename, traceback.tb_lineno)
        at = code.co_code[traceback.tb_lasti] if traceback.tb_lasti >= 0 else -1
        raised = owner == "user" and at == dis.opmap["RAISE_VARARGS"]
        traceback = traceback.tb_next
    return line or user_line(beyond_trace=True), raised


def line_of_function(function: Callable[..., Any]) -> str:
    """Where the user defines a function, or `user_line` if it is jali's own."""
    code = getattr(function, "__code__", None)
    if code is None or _whose(code.co_filename) != "user":
        return user_line(beyond_trace=True)
    return _line(code.co_filename, code.co_firstlineno)


def trace_error(message: str) -> TraceError:
    """A TraceError whose message ends with the user's line."""
    return TraceError(f"{message}\n  at {user_line(beyond_trace=True)}")


def _printable(name: str) -> str:
    """A name for generated text: what could end a line or a comment there becomes an underscore."""
    return re.sub(r"[^\w\[\]<>(),. ]", "_", name)


class Node:
    """One value: an operation on other nodes. Compared by identity; equal expressions are the same object."""

    __slots__ = ("antihermitian", "args", "attrs", "loops", "number", "op", "type", "where")

    def __init__(self, number: int, op: str, args: tuple[Node, ...], attrs: tuple[Any, ...], type: Type):
        self.number = number
        self.op = op
        self.args = args
        self.attrs = attrs
        self.type = type
        self.where = ""
        self.antihermitian = False  # known to be traceless anti-Hermitian
        self.loops: frozenset[int] = frozenset()  # repeat_until bodies this value varies in

    def __repr__(self) -> str:
        inside = ", ".join([f"%{a.number}" for a in self.args] + [repr(a) for a in self.attrs])
        return f"%{self.number} = {self.op}({inside}) : {self.type}"


@dataclass
class Store:
    """Effect: write `value` into field `slot` at `offset` from the loop's site."""

    slot: int
    offset: tuple[int, ...]
    value: Node
    where: str


@dataclass
class Sum:
    """Effect: add `value` to sum `slot`."""

    slot: int
    value: Node
    where: str


@dataclass
class Output:
    """Effect of a halo item's producer: `value` goes into the message, from real number `first` of each position on."""

    first: int
    value: Node
    where: str = ""


@dataclass
class FieldSlot:
    """A field as the program sees it: its element type and where it is read and written."""

    name: str
    element: Any
    reads: dict[tuple[int, ...], str] = field(default_factory=dict)  # offset -> first line that reads there
    writes: dict[tuple[int, ...], str] = field(default_factory=dict)
    reads_after: dict[tuple[int, ...], str] = field(
        default_factory=dict
    )  # those below a write at another offset

    def __post_init__(self) -> None:
        self.name = _printable(self.name)


@dataclass
class SiteProgram:
    """A traced site function: what it computes at one site."""

    name: str
    ndim: int
    precision: str
    fields: list[FieldSlot]
    scalars: list[tuple[str, Type]]
    randoms: list[str]
    effects: list[Any]  # Store, Sum or Output, in source order
    sums: list[Type]
    shift: tuple[int, ...] = ()  # all writes carry this offset: the kernel runs over the written sites
    loops: list[Any] = field(default_factory=list)
    outputs: int = 0  # reals per position that Output effects write
    fused: frozenset[int] = (
        frozenset()
    )  # products that are rounded with the sum they belong to (passes.fused_products)

    def __post_init__(self) -> None:
        self.name = _printable(self.name)
        self.scalars = [(_printable(name), type) for name, type in self.scalars]
        self.randoms = [_printable(name) for name in self.randoms]

    def offset(self, offset: tuple[int, ...]) -> tuple[int, ...]:
        """An offset of the source, seen from the written site."""
        return tuple(o - s for o, s in zip(offset, self.shift, strict=True))


def _flops_matmul(n: Node) -> int:
    a, b = n.args[0].type, n.args[1].type
    rows = n.type.shape[0]
    cols = n.type.shape[1] if len(n.type.shape) > 1 else 1
    inner = a.shape[0 if n.attrs[0] else 1]
    if a.kind == "complex" and b.kind == "complex":
        return rows * cols * (8 * inner - 2)
    if a.kind == "real" and b.kind == "real":
        return rows * cols * (2 * inner - 1)
    return rows * cols * (4 * inner - 2)


def _elementwise(real: int, complex_: int | None = None) -> Callable[[Node], int]:
    def count(n: Node) -> int:
        if n.type.kind == "complex" and complex_ is not None:
            return n.type.size * complex_
        return n.type.reals * real

    return count


def _flops_mul(n: Node) -> int:
    a, b = n.args
    if a.op == "const" and a.attrs[0] in (1j, -1j):
        return 0
    if a.type.kind == "complex" and b.type.kind == "complex":
        return n.type.size * 6
    return n.type.reals


def _flops_trace_mul(n: Node) -> int:
    size = n.args[0].type.size
    if n.op == "retrace_mul":
        return 4 * size - 1 if n.args[0].type.kind == "complex" else 2 * size - 1
    return 8 * size - 2


def _zero(n: Node) -> int:
    return 0


# Flops per site of each operation; elementary functions count as 1, so that figures compare with hand counts.
OPERATIONS: dict[str, Callable[[Node], int]] = {
    "const": _zero,
    "scalar": _zero,
    "extent": _zero,
    "load": _zero,
    "coordinate": _zero,
    "philox": _zero,
    "uniform": lambda n: 1,
    "gaussian": lambda n: 4,
    "add": _elementwise(1),
    "sub": _elementwise(1),
    "neg": _zero,
    "mul": _flops_mul,
    "div": lambda n: n.type.reals if n.args[1].type.kind != "complex" else n.type.size * 11,
    "fma": _elementwise(2),
    "conj": _zero,
    "real": _zero,
    "imag": _zero,
    "complex": _zero,
    "to_real": _zero,
    "to_int": _zero,
    "matmul": _flops_matmul,
    "adjoint": _zero,
    "transpose": _zero,
    "trace": lambda n: (
        n.args[0].type.shape[0] * (2 if n.type.kind == "complex" else 1)
        - (2 if n.type.kind == "complex" else 1)
    ),
    "trace_mul": _flops_trace_mul,
    "retrace_mul": _flops_trace_mul,
    "dot": lambda n: 8 * n.args[0].type.size - 2 if n.type.kind == "complex" else 2 * n.args[0].type.size - 1,
    "norm2": lambda n: 2 * n.args[0].type.reals - 1,
    "outer": lambda n: n.type.size * (6 if n.type.kind == "complex" else 1),
    "element": _zero,
    "build": _zero,
    "det": lambda n: {1: 0, 2: 14, 3: 78}.get(n.args[0].type.shape[0], 8 * n.args[0].type.shape[0] ** 3 // 3),
    "inverse": lambda n: 8 * n.type.shape[0] ** 3,
    "expm": lambda n: 8 * 12 * n.type.shape[0] ** 3,
    "reunitarise": lambda n: 14 * n.type.size,
    "antihermitian": lambda n: 2 * n.type.reals,
    "call": _elementwise(1),
    "less": lambda n: 1,
    "less_equal": lambda n: 1,
    "equal": lambda n: 1,
    "not_equal": lambda n: 1,
    "and": _zero,
    "or": _zero,
    "not": _zero,
    "where": _zero,
    "mod": lambda n: 1,
    "floordiv": lambda n: 1,
    "repeat": _zero,
    "repeat_value": _zero,
}


def _is_zero(a: Node) -> bool:
    """Whether a value is the constant zero, so that an accumulation may start from `jali.zero` at no cost."""
    if a.op == "build":
        return all(_is_zero(part) for part in a.args)
    return a.op == "const" and a.type.kind != "bool" and a.attrs[0] == 0


class Builder:
    """Makes nodes. One per trace."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[Any, ...], Node] = {}

    def node(self, op: str, args: Iterable[Node], attrs: tuple[Any, ...], type: Type) -> Node:
        """The one node for this expression; made on first use."""
        args = tuple(args)
        for a in args:
            self.check(a)
            if a.op == "const" and a.type == INT and not -(1 << 31) <= a.attrs[0] < 1 << 31:
                raise trace_error(f"the whole number {a.attrs[0]} does not fit 32 bits; write it as a float")
        key = (op, tuple(a.number for a in args), attrs, type)
        found = self._known.get(key)
        if found is None:
            if op not in OPERATIONS:
                raise AssertionError(f"operation {op} is not in the table")
            found = Node(len(self.nodes), op, args, attrs, type)
            found.where = user_line()
            if args:
                found.loops = frozenset().union(*(a.loops for a in args))
            self.nodes.append(found)
            self._known[key] = found
        return found

    def check(self, node: Node) -> None:
        """Raises TraceError for a node of another trace: a symbol that was kept."""
        if node.number >= len(self.nodes) or self.nodes[node.number] is not node:
            raise trace_error(
                "a symbol of an earlier trace: symbols stand for values of one run over the sites and cannot be kept; "
                "read the field again, or pass the value as an argument"
            )

    # ---- leaves ----------------------------------------------------------------------------------

    def const(self, value: float | int | complex | bool) -> Node:
        """A number known while tracing. Python floats keep every bit (they are written as hexadecimal)."""
        if isinstance(value, bool):
            return self.node("const", (), (value,), BOOL)
        if isinstance(value, int):
            return self.node("const", (), (value,), INT)
        if isinstance(value, complex):
            # repr tells 0.0 from -0.0, which compare equal as dictionary keys
            return self.node("const", (), (value, repr(value)), COMPLEX)
        return self.node("const", (), (float(value), repr(float(value))), REAL)

    def build(self, type: Type, components: list[Node]) -> Node:
        """A vector or matrix from its components, row by row; all are converted to the type's kind."""
        scalar = Type(type.kind)
        parts = [self.convert(c, scalar.kind) for c in components]
        first = parts[0]
        if first.op == "element" and first.args[0].type == type:
            whole = first.args[0]
            if all(p.op == "element" and p.args[0] is whole and p.attrs == (k,) for k, p in enumerate(parts)):
                return whole
        return self.node("build", parts, (), type)

    def element(self, a: Node, index: int) -> Node:
        """Component `index` (row-major) of a vector or matrix."""
        if a.op == "build":
            return a.args[index]
        return self.node("element", (a,), (index,), Type(a.type.kind))

    # ---- conversions -----------------------------------------------------------------------------

    def convert(self, a: Node, kind: str) -> Node:
        """`a` with kind `int`, `real` or `complex`; only upwards, except that nothing converts booleans."""
        if a.type.kind == kind:
            return a
        if a.type.kind == "bool" or kind == "bool" or _KINDS[kind] < _KINDS[a.type.kind]:
            hint = "; jali.where(condition, 1.0, 0.0) makes a number of it" if a.type.kind == "bool" else ""
            raise trace_error(f"a {a.type} cannot be used as a {kind} value{hint}")
        if a.op == "const":
            value = a.attrs[0]
            return self.const(float(value) if kind == "real" else complex(value))
        if a.type.kind == "int":
            a = self.node("to_real", (a,), (), Type("real", a.type.shape))
            return self.convert(a, kind)
        if a.type.shape:
            zero = self.const(0.0)
            parts = [
                self.node("complex", (self.element(a, k), zero), (), COMPLEX) for k in range(a.type.size)
            ]
            return self.build(Type("complex", a.type.shape), parts)
        return self.node("complex", (a, self.const(0.0)), (), COMPLEX)

    def common(self, a: Node, b: Node, what: str) -> tuple[Node, Node]:
        """Both with the higher of their kinds."""
        kind = a.type.kind if _KINDS[a.type.kind] >= _KINDS[b.type.kind] else b.type.kind
        if "bool" in (a.type.kind, b.type.kind):
            raise trace_error(f"{what} of {a.type} and {b.type}: booleans are combined with &, | and ~")
        return self.convert(a, kind), self.convert(b, kind)

    # ---- arithmetic ------------------------------------------------------------------------------

    def add(self, a: Node, b: Node, op: str = "add") -> Node:
        """Sum (or difference, `op="sub"`) of values of the same shape."""
        if a.type.shape != b.type.shape:
            word = "add" if op == "add" else "subtract"
            hint = ""
            if not a.type.shape or not b.type.shape:
                hint = "; a multiple of the unit matrix is written jali.identity(n) * number"
            raise trace_error(f"cannot {word} {a.type} and {b.type}: the shapes differ{hint}")
        a, b = self.common(a, b, "a sum")
        if _is_zero(b):
            return a
        if _is_zero(a) and op == "add":
            return b
        if a.op == "const" and b.op == "const":
            return self.const(a.attrs[0] + b.attrs[0] if op == "add" else a.attrs[0] - b.attrs[0])
        result = self.node(op, (a, b), (), a.type)
        result.antihermitian = a.antihermitian and b.antihermitian
        return result

    def neg(self, a: Node) -> Node:
        """Minus a."""
        if a.type.kind == "bool":
            raise trace_error("a boolean has no sign; ~ is logical not")
        if a.op == "const":
            return self.const(-a.attrs[0])
        if a.op == "neg":
            return a.args[0]
        result = self.node("neg", (a,), (), a.type)
        result.antihermitian = a.antihermitian
        return result

    def mul(self, a: Node, b: Node) -> Node:
        """Product of the algebra: scalar times anything, matrix times matrix or vector."""
        if a.type.shape and b.type.shape:
            return self.matmul(a, b)
        if "bool" in (a.type.kind, b.type.kind):
            raise trace_error(f"product of {a.type} and {b.type}: use jali.where for a choice")
        if a.type.shape:
            a, b = b, a
        # now a is a scalar
        if a.op == "const":
            if a.attrs[0] == 1 and _KINDS[a.type.kind] <= _KINDS[b.type.kind]:
                return b
            if a.attrs[0] == -1 and a.type.kind != "complex" and _KINDS[a.type.kind] <= _KINDS[b.type.kind]:
                return self.neg(b)
            if b.op == "const":
                return self.const(a.attrs[0] * b.attrs[0])
        if not b.type.shape and b.op == "const":
            a, b = b, a
            if a.attrs[0] == 1 and _KINDS[a.type.kind] <= _KINDS[b.type.kind]:
                return b
        if a.type.kind == "int" and b.type.kind == "int":
            return self.node("mul", (a, b), (), b.type)
        a = self.convert(a, "real") if a.type.kind == "int" else a
        b = self.convert(b, "real") if b.type.kind == "int" else b
        if a.type.kind == "complex" and b.type.kind == "real":
            if not b.type.shape:
                a, b = b, a
            else:
                b = self.convert(b, "complex")
        result = self.node("mul", (a, b), (), b.type)
        result.antihermitian = b.antihermitian and a.type.kind == "real"
        return result

    def div(self, a: Node, b: Node) -> Node:
        """a divided by the scalar b."""
        if b.type.shape:
            raise trace_error(f"cannot divide {a.type} by {b.type}: multiply by .inverse() instead")
        if "bool" in (a.type.kind, b.type.kind):
            raise trace_error(f"cannot divide {a.type} by {b.type}")
        a = self.convert(a, "real") if a.type.kind == "int" else a
        b = self.convert(b, "real") if b.type.kind == "int" else b
        if b.op == "const":
            if b.attrs[0] == 0:
                raise trace_error("division by the constant 0")
            if a.op == "const":
                return self.const(a.attrs[0] / b.attrs[0])
        if a.type.kind == "real" and b.type.kind == "complex":
            a = self.convert(a, "complex")
        result = self.node("div", (a, b), (), a.type)
        result.antihermitian = a.antihermitian and b.type.kind == "real"
        return result

    def matmul(self, a: Node, b: Node) -> Node:
        """Matrix product; adjoints of either factor are folded into the product."""
        if len(a.type.shape) != 2 or a.type.shape[1] != b.type.shape[0]:
            raise trace_error(f"cannot multiply {a.type} by {b.type}: the inner extents do not match")
        a, b = self.common(a, b, "a product")
        shape = (a.type.shape[0], *b.type.shape[1:])
        adjoint_a = a.op == "adjoint"
        adjoint_b = b.op == "adjoint" and len(b.type.shape) == 2
        a = a.args[0] if adjoint_a else a
        b = b.args[0] if adjoint_b else b
        return self.node("matmul", (a, b), (adjoint_a, adjoint_b), Type(a.type.kind, shape))

    def adjoint(self, a: Node) -> Node:
        """Hermitian conjugate; of a scalar the complex conjugate."""
        if not a.type.shape:
            return self.conj(a)
        if len(a.type.shape) != 2:
            raise trace_error(f"{a.type} has no dagger; use v.dot(w) for the product of v-dagger and w")
        if a.op == "adjoint":
            return a.args[0]
        if a.antihermitian:
            return self.neg(a)
        return self.node("adjoint", (a,), (), Type(a.type.kind, a.type.shape[::-1]))

    def transpose(self, a: Node) -> Node:
        """Rows and columns exchanged."""
        self._matrix(a, "transpose")
        rows, cols = a.type.shape
        parts = [self.element(a, i * cols + j) for j in range(cols) for i in range(rows)]
        return self.build(Type(a.type.kind, (cols, rows)), parts)

    def conj(self, a: Node) -> Node:
        """Complex conjugate of every component."""
        if a.type.kind != "complex":
            return a
        if a.op == "const":
            return self.const(a.attrs[0].conjugate())
        if a.op == "conj":
            return a.args[0]
        return self.node("conj", (a,), (), a.type)

    def real(self, a: Node) -> Node:
        """Real part."""
        if a.type.kind in ("real", "int"):
            return a
        if a.type.kind == "bool":
            raise trace_error("a boolean has no real part")
        if a.op == "const":
            return self.const(a.attrs[0].real)
        if a.op == "complex":
            return a.args[0]
        if a.op == "trace_mul":
            return self.node("retrace_mul", a.args, a.attrs, REAL)
        if a.op == "trace":
            return self._diagonal_sum(a.args[0], self.real)
        return self.node("real", (a,), (), Type("real", a.type.shape))

    def imag(self, a: Node) -> Node:
        """Imaginary part."""
        if a.type.kind != "complex":
            if a.type.shape:
                raise trace_error(f"the imaginary part of {a.type} is zero; did you mean another value?")
            return self.const(0.0)
        if a.op == "const":
            return self.const(a.attrs[0].imag)
        if a.op == "complex":
            return a.args[1]
        if a.op == "trace":
            return self._diagonal_sum(a.args[0], self.imag)
        return self.node("imag", (a,), (), Type("real", a.type.shape))

    def _diagonal_sum(self, a: Node, part: Callable[[Node], Node]) -> Node:
        """Sum of one part of the diagonal elements: the other part of the trace is not wanted."""
        n = a.type.shape[0]
        total = part(self.element(a, 0))
        for i in range(1, n):
            total = self.add(total, part(self.element(a, i * n + i)))
        return total

    def complex(self, re: Node, im: Node) -> Node:
        """re + i im."""
        re, im = self.convert(re, "real"), self.convert(im, "real")
        if re.type.shape or im.type.shape:
            raise trace_error("jali.complex takes two real numbers")
        if re.op == "const" and im.op == "const":
            return self.const(complex(re.attrs[0], im.attrs[0]))
        return self.node("complex", (re, im), (), COMPLEX)

    # ---- matrices --------------------------------------------------------------------------------

    def _matrix(self, a: Node, what: str, square: bool = False) -> None:
        if len(a.type.shape) != 2 or (square and a.type.shape[0] != a.type.shape[1]):
            kind = "a square matrix" if square else "a matrix"
            raise trace_error(f"{what} needs {kind}, not {a.type}")

    def trace(self, a: Node) -> Node:
        """Sum of the diagonal."""
        self._matrix(a, "trace", square=True)
        if a.op == "build":
            n = a.type.shape[0]
            total = a.args[0]
            for i in range(1, n):
                total = self.add(total, a.args[i * n + i])
            return total
        if a.op == "matmul":
            op = "trace_mul" if a.type.kind == "complex" else "retrace_mul"
            return self.node(op, a.args, a.attrs, Type(a.type.kind))
        return self.node("trace", (a,), (), Type(a.type.kind))

    def square_op(self, op: str, a: Node) -> Node:
        """`det`, `inverse`, `expm`, `reunitarise` or `antihermitian` of a square matrix."""
        names = {"expm": "exp", "antihermitian": "traceless_antihermitian"}
        self._matrix(a, names.get(op, op), square=True)
        a = self.convert(a, "complex")
        if op == "antihermitian" and a.antihermitian:
            return a
        attrs = (a.antihermitian,) if op == "expm" else ()
        result = self.node(op, (a,), attrs, COMPLEX if op == "det" else a.type)
        result.antihermitian = op == "antihermitian"
        return result

    def norm2(self, a: Node) -> Node:
        """Sum of the squares of all real and imaginary parts."""
        a = self.convert(a, "real") if a.type.kind == "int" else a
        if a.type.kind == "bool":
            raise trace_error("norm2 of a boolean")
        return self.node("norm2", (a,), (), REAL)

    def dot(self, a: Node, b: Node) -> Node:
        """Sum of conj(a_k) b_k over all components."""
        if a.type.shape != b.type.shape:
            raise trace_error(f"dot of {a.type} and {b.type}: the shapes differ")
        a, b = self.common(a, b, "dot")
        if not a.type.shape:
            return self.mul(self.conj(a), b)
        return self.node("dot", (a, b), (), Type(a.type.kind))

    def outer(self, a: Node, b: Node) -> Node:
        """The matrix a_i conj(b_j) of two vectors."""
        if len(a.type.shape) != 1 or len(b.type.shape) != 1:
            raise trace_error(f"outer needs two vectors, not {a.type} and {b.type}")
        a, b = self.common(a, b, "outer")
        return self.node("outer", (a, b), (), Type(a.type.kind, (*a.type.shape, *b.type.shape)))

    # ---- functions, comparisons, choice ----------------------------------------------------------

    def call(self, name: str, args: list[Node]) -> Node:
        """An elementary function of real scalars; `exp`, `log`, `sqrt` of complex ones too."""
        for a in args:
            if a.type.shape or a.type.kind == "bool":
                raise trace_error(f"{name} needs a number, not {a.type}")
        if any(a.type.kind == "complex" for a in args):
            if name == "abs":
                return self.call("sqrt", [self.norm2(args[0])])
            if name not in ("exp", "log", "sqrt"):
                raise trace_error(f"{name} of a complex number is not defined here")
            return self.node("call", args, (name,), COMPLEX)
        if name in ("abs", "min", "max") and all(a.type.kind == "int" for a in args):
            raise trace_error(f"{name} of whole numbers is not defined here; multiply by 1.0 first")
        return self.node("call", [self.convert(a, "real") for a in args], (name,), REAL)

    def compare(self, op: str, a: Node, b: Node) -> Node:
        """`less`, `less_equal`, `equal` or `not_equal` of two scalars."""
        if a.type.shape or b.type.shape:
            raise trace_error(f"cannot compare {a.type} and {b.type}: compare components")
        a, b = self.common(a, b, "comparison")
        if a.type.kind == "complex":
            raise trace_error(
                "complex numbers have no order; compare real parts or .norm2()"
                if op.startswith("less")
                else "complex numbers are compared part by part: .real and .imag"
            )
        return self.node(op, (a, b), (), BOOL)

    def logical(self, op: str, *args: Node) -> Node:
        """`and`, `or`, `not` of booleans."""
        for a in args:
            if a.type.kind != "bool":
                raise trace_error(f"logical {op} needs booleans, not {a.type}")
        return self.node(op, args, (), BOOL)

    def where(self, condition: Node, a: Node, b: Node) -> Node:
        """a where the condition holds, else b."""
        if condition.type.kind != "bool":
            raise trace_error(f"where needs a condition, not {condition.type}")
        if a.type.shape != b.type.shape:
            raise trace_error(f"where chooses between {a.type} and {b.type}: the shapes differ")
        if not (a.type.kind == "bool" and b.type.kind == "bool"):
            a, b = self.common(a, b, "where")
        result = self.node("where", (condition, a, b), (), a.type)
        result.antihermitian = a.antihermitian and b.antihermitian
        return result

    def integer(self, op: str, a: Node, b: Node) -> Node:
        """`mod` or `floordiv` of integers (both toward minus infinity, as in Python)."""
        if a.type != INT or b.type != INT:
            raise trace_error(f"{op} needs integers, not {a.type} and {b.type}")
        if b.op != "const" and b.op != "extent":
            raise trace_error(f"{op} needs a fixed divisor")
        if b.op == "const" and b.attrs[0] <= 0:
            raise trace_error(f"{op} needs a positive divisor, not {b.attrs[0]}")
        return self.node(op, (a, b), (), INT)
