"""What each operation of the IR looks like in C++: one method per operation, named after it.

`Operations` needs from its heir the text and memory of a kernel (`emit.py`): lines, arrays, words.
"""

from __future__ import annotations

from dataclasses import dataclass

from jali.codegen.ir import Node, SiteProgram
from jali.codegen.items import Item
from jali.codegen.passes import RENAMING, Analysis


@dataclass(frozen=True)
class Variant:
    """How one program is lowered: everything that changes the text and is not physics."""

    lanes: int
    masked: bool = False  # some lanes of some blocks are outside the domain
    phased: frozenset[tuple[int, tuple[int, ...]]] = (
        frozenset()
    )  # (slot, offset) with non-periodic boundaries
    single: frozenset[int] = frozenset()  # slots stored in float32 under float64 arithmetic
    items: tuple[Item, ...] = ()  # what neighbours on other ranks send instead of fields
    adds: bool = False  # on a GPU: sums are added up by the kernel itself, not by another one
    gpu: bool = False  # a thread of a device computes a site, and loads it into registers
    several: bool = False  # or several sites (codegen.several)
    ahead: int = (
        0  # on the host: so many reads of each field, the leading ones, are asked for a position ahead
    )


@dataclass(frozen=True)
class Word:
    """What a word of the kernel's argument list holds, from word 8 on."""

    what: str  # field, table, permutations, phases, scalar, key, call, blocks, item, output
    slot: int = 0
    offset: tuple[int, ...] = ()
    windings: bool = False
    component: int = 0


class Value:
    """A value in the text: an array by name, or one expression per real component."""

    __slots__ = ("_parts", "array", "reals")

    def __init__(self, reals: int, array: str | None = None, parts: list[str] | None = None):
        self.reals = reals
        self.array = array
        self._parts = parts

    @property
    def parts(self) -> list[str]:
        if self._parts is None:
            return [f"{self.array}[{k}]" for k in range(self.reals)]
        return self._parts


class Operations:
    """The operations; see the module."""

    program: SiteProgram
    variant: Variant
    analysis: Analysis
    values: dict[int, Value]
    loop: int | None
    branch: Item | None
    depth: int
    position: int
    owned: dict[int, list[str]]
    last: dict[int, int]
    kept: dict[int, list[list[str]]]

    # ---- what the heir provides ------------------------------------------------------------------

    def line(self, text: str) -> None:
        raise AssertionError

    def buffer(self, reals: int, owner: Node) -> str:
        raise AssertionError

    def emit(self, node: Node) -> None:
        raise AssertionError

    def value(self, node: Node) -> Value:
        raise AssertionError

    def parts(self, node: Node) -> list[str]:
        raise AssertionError

    def one(self, node: Node) -> str:
        raise AssertionError

    def array(self, node: Node) -> str:
        raise AssertionError

    def assign(self, node: Node, parts: list[str]) -> None:
        raise AssertionError

    def name(self, node: Node, expressions: list[str], ctype: str = "real") -> None:
        raise AssertionError

    def result(self, node: Node) -> str:
        raise AssertionError

    def constant(self, value: float) -> str:
        raise AssertionError

    def number(self, node: Node) -> int:
        raise AssertionError

    def word(self, word: Word) -> int:
        raise AssertionError

    def field(self, slot: int) -> str:
        raise AssertionError

    def load_ahead(self, name: str, pointer: str, reals: int) -> str:
        raise AssertionError

    # ---- operations ------------------------------------------------------------------------------

    def _const(self, node: Node) -> None:
        value = node.attrs[0]
        if node.type.kind == "bool":
            self.assign(node, [f"all_lanes({'true' if value else 'false'})"])
        elif node.type.kind == "int":
            self.assign(node, [f"splat_integer({value})"])
        elif node.type.kind == "complex":
            self.assign(node, [self.constant(value.real), self.constant(value.imag)])
        else:
            self.assign(node, [self.constant(value)])

    def _scalar(self, node: Node) -> None:
        k = node.attrs[0]
        if node.type.kind == "int":
            self.assign(node, [f"s{self.word(Word('scalar', k))}"])
            return
        self.assign(node, [f"s{self.word(Word('scalar', k, component=c))}" for c in range(node.type.reals)])

    def _extent(self, node: Node) -> None:
        self.assign(node, [f"splat_integer((lane_integer)extents[{node.attrs[0]}])"])

    def _coordinate(self, node: Node) -> None:
        axis, step = node.attrs
        shift = self.program.shift[axis] if self.program.shift else 0
        self.name(node, [coordinate_text(axis, self.program.ndim, step - shift)], "integer")

    def _load(self, node: Node) -> None:
        slot, source_offset = node.attrs
        offset = self.program.offset(source_offset)
        element = self.program.fields[slot].element
        reals = element.stored_reals
        name = f"p{self.number(node)}"
        source = self.field(slot)
        phased = (slot, offset) in self.variant.phased
        complex_factor = element.type.kind == "complex" and element.codec == "plain"
        copied = slot in self.variant.single or self.variant.gpu
        if self.variant.ahead:
            self._fetch_ahead(slot, offset, reals)
        if not any(offset):
            if self.variant.several and self.loop is None:
                self.line(f"const real* const {name} = {self.load_ahead(name, source, reals)};")
            elif phased:  # in the producer of a halo item: what its reader sees across the boundary
                name = self.buffer(reals, node)
                if copied:
                    self.line(f"block_at<{reals}>({name}, {source}, x);")
                else:
                    self.line(f"copy<{reals}>({name}, block_at<{reals}>({source}, x));")
                phases = self.word(Word("phases", slot, offset, True))
                self.line(f"apply_{'phase' if complex_factor else 'sign'}<{reals}>({name}, h{phases});")
            elif copied:
                staged = self.buffer(reals, node)
                self.line(f"const real* const {name} = block_at<{reals}>({staged}, {source}, x);")
            else:
                self.line(f"const real* const {name} = block_at<{reals}>({source}, x);")
        else:
            staged = self.buffer(reals, node)
            arguments = f"{staged}, {source}, {self.neighbour(offset, phased)}"
            kind = ""
            if phased:
                phases = self.word(Word("phases", slot, offset, True))
                arguments += f", h{phases}"
                kind = "_phased" if complex_factor else "_signed"
            self.line(
                f"const real* const {name} = stage{kind}<{reals}>({arguments});  // {self.program.fields[slot].name} at {offset_text(offset)}"
            )
        if element.codec == "algebra":
            decoded = self.result(node)
            self.line(f"algebra_decode<{element.type.shape[0]}>({decoded}, {name});")
        else:
            self.values[node.number] = Value(node.type.reals, name)

    def _fetch_ahead(self, slot: int, offset: tuple[int, ...], reals: int) -> None:
        """Asks for what the next position reads here, if it leads: the order of visits comes to a leading read
        first, and others follow it into the caches. One at a time, since memory answers only so many at once."""
        in_order_of_visits = sorted(self.analysis.reads[slot], key=lambda o: o[::-1])
        if offset not in in_order_of_visits[-self.variant.ahead :]:
            return
        entry = "ahead"
        if any(offset):
            phased = (slot, offset) in self.variant.phased
            entry = f"n{self.word(Word('table', offset=offset, windings=phased))}[ahead]"
        self.line(f"fetch_ahead<{reals}>({self.field(slot)}, {entry});")

    def neighbour(self, offset: tuple[int, ...], windings: bool) -> str:
        """The entry of the neighbour table at this position, and where there are lanes their permutations."""
        entry = f"n{self.word(Word('table', offset=offset, windings=windings))}[x]"
        if self.variant.gpu:
            return entry
        return f"{entry}, n{self.word(Word('permutations', offset=offset, windings=windings))}"

    def _philox(self, node: Node) -> None:
        slot, _, loop, kind = node.attrs
        if node.number in self.values:
            return  # drawn together with another one
        name = self.result(node)
        key, call = self.word(Word("key", slot)), self.word(Word("call", slot))
        draw = self._draw(node)
        if kind == "uniform":
            # two counters at once: the rounds of one fill the latencies of the other
            for other in self.scope(loop):
                if (
                    other.op == "philox"
                    and other.number not in self.values
                    and other.attrs[0] == slot
                    and other.attrs[3] == kind
                ):
                    second = self.result(other)
                    self.line(
                        f"philox_uniform_two({name}, {second}, site, w[{call}], {draw}, {self._draw(other)}, k{key});"
                    )
                    return
        self.line(f"philox_{kind}(&{name}[0], &{name}[1], site, w[{call}], {draw}, k{key});")

    def _draw(self, node: Node) -> str:
        """Number of a draw; in a rejection loop every attempt has its own."""
        _, number, loop, _ = node.attrs
        return f"{number}u + attempt * {self.program.loops[loop].draws}u" if loop >= 0 else f"{number}u"

    def _uniform(self, node: Node) -> None:
        self.assign(node, [self.parts(node.args[0])[node.attrs[0]]])

    _gaussian = _uniform

    def _fused(self, node: Node) -> bool:
        return node.number in self.analysis.fused

    def _add(self, node: Node) -> None:
        left, right = node.args
        if self._fused(left):
            left, right = right, left
        if self._fused(right):
            if right.op == "matmul":
                self._multiply_add(node, left, right)
            else:
                self._scaled_add(node, left, right)
            return
        sign = "+" if node.op == "add" else "-"
        a, b = self.value(left), self.value(right)
        if node.type.shape and a.array and b.array:
            self.line(f"{node.op}<{node.type.reals}>({self.result(node)}, {a.array}, {b.array});")
        else:
            ctype = "integer" if node.type.kind == "int" else "real"
            self.name(node, [f"{p} {sign} {q}" for p, q in zip(a.parts, b.parts, strict=True)], ctype)

    _sub = _add

    def _accumulator(self, node: Node, left: Node, keep: set[str]) -> str:
        """An array that holds `left` and may be overwritten with the node's value; never one of `keep`."""
        array = self.value(left).array
        owned = self.owned.get(left.number, [])
        last = self.last.get(left.number, -1) <= self.position and self.loop is None
        if (
            array is not None
            and array in owned
            and array not in keep
            and last
            and left.op not in RENAMING
            and left.op != "load"
        ):
            owned.remove(array)
            self.owned.setdefault(node.number, []).append(array)
            self.values[node.number] = Value(node.type.reals, array)
            return array
        source = self.value(left)
        target = self.result(node)
        if source.array is not None:
            self.line(f"copy<{node.type.reals}>({target}, {source.array});")
        else:
            for k, part in enumerate(source.parts):
                self.line(f"{target}[{k}] = {part};")
        return target

    def _multiply_add(self, node: Node, left: Node, product: Node) -> None:
        a, b = self.array(product.args[0]), self.array(product.args[1])
        op = "matmul_add" if node.op == "add" else "matmul_sub"
        target = self._accumulator(node, left, keep={a, b})
        self.line(f"{op}<{_sizes(product)}>({target}, {a}, {b});")

    def _scaled_add(self, node: Node, left: Node, product: Node) -> None:
        factor, scaled = self.one(product.args[0]), product.args[1]
        function = "fma" if node.op == "add" else "fnma"
        pairs = zip(self.parts(scaled), self.parts(left), strict=True)
        self.name(node, [f"{function}({factor}, {p}, {q})" for p, q in pairs])

    def _neg(self, node: Node) -> None:
        a = self.value(node.args[0])
        if node.type.shape and a.array:
            self.line(f"neg<{node.type.reals}>({self.result(node)}, {a.array});")
        else:
            self.name(node, [f"-{p}" for p in a.parts], "integer" if node.type.kind == "int" else "real")

    def _mul(self, node: Node) -> None:
        a, b = node.args
        if node.type.kind == "int":
            self.name(node, [f"{self.one(a)} * {self.one(b)}"], "integer")
            return
        value = self.value(b)
        if a.type.kind == "real":
            s = self.one(a)
            if node.type.shape and value.array:
                self.line(f"scale<{node.type.reals}>({self.result(node)}, {s}, {value.array});")
            else:
                self.name(node, [f"{s} * {p}" for p in value.parts])
            return
        sr, si = self.parts(a)
        if a.op == "const" and a.attrs[0].real == 0.0:
            out = []
            for re, im in _pairs(value.parts):
                out += (
                    [f"-({si} * {im})", f"{si} * {re}"]
                    if abs(a.attrs[0].imag) != 1
                    else _turn(a.attrs[0].imag, re, im)
                )
            self.name(node, out)
            return
        out = []
        for re, im in _pairs(value.parts):
            out += [f"fms({sr}, {re}, {si} * {im})", f"fma({sr}, {im}, {si} * {re})"]
        self.name(node, out)

    def _div(self, node: Node) -> None:
        a, b = node.args
        if b.type.kind == "real":
            s = self.one(b)
            self.name(node, [f"{p} / {s}" for p in self.parts(a)])
            return
        br, bi = self.parts(b)
        norm = f"d{self.number(node)}"
        self.line(f"const real {norm} = fma({br}, {br}, {bi} * {bi});")
        out = []
        for re, im in _pairs(self.parts(a)):
            out += [f"fma({re}, {br}, {im} * {bi}) / {norm}", f"fms({im}, {br}, {re} * {bi}) / {norm}"]
        self.name(node, out)

    def _conj(self, node: Node) -> None:
        out = []
        for re, im in _pairs(self.parts(node.args[0])):
            out += [re, f"-{im}"]
        self.assign(node, [out[k] if k % 2 == 0 else f"({out[k]})" for k in range(len(out))])

    def _adjoint(self, node: Node) -> None:
        rows, cols = node.args[0].type.shape
        parts = self.parts(node.args[0])
        out = []
        for j in range(cols):
            for i in range(rows):
                if node.type.kind == "complex":
                    out += [parts[2 * (i * cols + j)], f"(-{parts[2 * (i * cols + j) + 1]})"]
                else:
                    out.append(parts[i * cols + j])
        self.assign(node, out)

    def _real(self, node: Node) -> None:
        self.assign(node, self.parts(node.args[0])[::2])

    def _imag(self, node: Node) -> None:
        self.assign(node, self.parts(node.args[0])[1::2])

    def _complex(self, node: Node) -> None:
        self.assign(node, [self.one(node.args[0]), self.one(node.args[1])])

    def _to_real(self, node: Node) -> None:
        self.name(node, [f"to_real({p})" for p in self.parts(node.args[0])])

    def _build(self, node: Node) -> None:
        self.assign(node, [p for a in node.args for p in self.parts(a)])

    def _element(self, node: Node) -> None:
        k = node.attrs[0]
        each = 2 if node.type.kind == "complex" else 1
        self.assign(node, self.parts(node.args[0])[each * k : each * (k + 1)])

    def _matmul(self, node: Node) -> None:
        a, b = self.array(node.args[0]), self.array(node.args[1])
        op = "matmul" if node.type.kind == "complex" else "matmul_real"
        self.line(f"{op}<{_sizes(node)}>({self.result(node)}, {a}, {b});")

    def _trace(self, node: Node) -> None:
        n = node.args[0].type.shape[0]
        parts = self.parts(node.args[0])
        each = 2 if node.type.kind == "complex" else 1
        self.name(
            node,
            [" + ".join(parts[each * (i * n + i) + c] for i in range(n)) for c in range(each)],
        )

    def _retrace_mul(self, node: Node) -> None:
        a, b = node.args
        rows = a.type.shape[1 if node.attrs[0] else 0]
        inner = a.type.shape[0 if node.attrs[0] else 1]
        flags = ", ".join("true" if f else "false" for f in node.attrs)
        op = "retrace_mul" if a.type.kind == "complex" else "trace_mul_real"
        self.name(node, [f"{op}<{rows}, {inner}, {flags}>({self.array(a)}, {self.array(b)})"])

    def _trace_mul(self, node: Node) -> None:
        a, b = node.args
        rows = a.type.shape[1 if node.attrs[0] else 0]
        inner = a.type.shape[0 if node.attrs[0] else 1]
        flags = ", ".join("true" if f else "false" for f in node.attrs)
        x, y = self.array(a), self.array(b)
        self.line(f"trace_mul<{rows}, {inner}, {flags}>({self.result(node)}, {x}, {y});")

    def _dot(self, node: Node) -> None:
        a, b = node.args
        x, y = self.array(a), self.array(b)
        if node.type.kind == "complex":
            self.line(f"dot<{a.type.reals}>({self.result(node)}, {x}, {y});")
        else:
            self.name(node, [f"dot_real<{a.type.reals}>({x}, {y})"])

    def _norm2(self, node: Node) -> None:
        a = node.args[0]
        if a.type.shape:  # not by how the value happens to be kept: the order of the sum is a matter of types
            self.name(node, [f"norm2<{a.type.reals}>({self.array(a)})"])
            return
        text = ""
        for p in self.parts(a):
            text = f"fma({p}, {p}, {text})" if text else f"{p} * {p}"
        self.name(node, [text])

    def _outer(self, node: Node) -> None:
        a, b = self.parts(node.args[0]), self.parts(node.args[1])
        out = []
        if node.type.kind == "real":
            out = [f"{p} * {q}" for p in a for q in b]
        else:
            for ar, ai in _pairs(a):
                for br, bi in _pairs(b):
                    out += [f"fma({ar}, {br}, {ai} * {bi})", f"fms({ai}, {br}, {ar} * {bi})"]
        self.name(node, out)

    def _square(self, node: Node, function: str) -> None:
        n = node.args[0].type.shape[0]
        a = self.array(node.args[0])
        self.line(f"{function}<{n}>({self.result(node)}, {a});")

    def _det(self, node: Node) -> None:
        self._square(node, "det")

    def _inverse(self, node: Node) -> None:
        self._square(node, "inverse")

    def _expm(self, node: Node) -> None:
        self._square(node, "exp_antihermitian" if node.attrs[0] else "exp_matrix")

    def _reunitarise(self, node: Node) -> None:
        self._square(node, "reunitarise")

    def _antihermitian(self, node: Node) -> None:
        self._square(node, "traceless_antihermitian")

    def scope(self, loop: int) -> list[Node]:
        """The nodes that are written together with those of a loop's body, or with those outside of loops (-1)."""
        return self.analysis.bodies[loop] if loop >= 0 else self.analysis.order

    def _call(self, node: Node) -> None:
        function = node.attrs[0]
        if node.number in self.values:
            return  # computed together with its companion
        companion = {"sin": "cos", "cos": "sin"}.get(function)
        if companion and self.branch is None:
            for other in self.scope(-1 if self.loop is None else self.loop):
                if (
                    other.op == "call"
                    and other.attrs == (companion,)
                    and other.args == node.args
                    and other.number not in self.values
                ):
                    sine, cosine = (node, other) if function == "sin" else (other, node)
                    names = [f"t{self.number(sine)}", f"t{self.number(cosine)}"]
                    self.line(f"real {names[0]}, {names[1]};")
                    self.line(f"vsincos(&{names[0]}, &{names[1]}, {self.one(node.args[0])});")
                    self.assign(sine, [names[0]])
                    self.assign(cosine, [names[1]])
                    return
        if node.type.kind == "complex":
            a = self.array(node.args[0])
            self.line(f"complex_{function}({self.result(node)}, {a});")
            return
        self.name(node, [f"v{function}({', '.join(self.one(a) for a in node.args)})"])

    def _compare(self, node: Node, sign: str) -> None:
        a, b = node.args
        if a.type.kind == "int":
            self.name(node, [f"(mask)({self.one(a)} {sign} {self.one(b)})"], "mask")
        else:
            self.name(node, [f"({self.one(a)} {sign} {self.one(b)})"], "mask")

    def _less(self, node: Node) -> None:
        self._compare(node, "<")

    def _less_equal(self, node: Node) -> None:
        self._compare(node, "<=")

    def _equal(self, node: Node) -> None:
        self._compare(node, "==")

    def _not_equal(self, node: Node) -> None:
        self._compare(node, "!=")

    def _and(self, node: Node) -> None:
        self.name(node, [f"{self.one(node.args[0])} & {self.one(node.args[1])}"], "mask")

    def _or(self, node: Node) -> None:
        self.name(node, [f"{self.one(node.args[0])} | {self.one(node.args[1])}"], "mask")

    def _not(self, node: Node) -> None:
        self.name(node, [f"~{self.one(node.args[0])}"], "mask")

    def _where(self, node: Node) -> None:
        condition = self.one(node.args[0])
        a, b = self.parts(node.args[1]), self.parts(node.args[2])
        if node.type.kind == "bool":
            self.name(node, [f"({condition} & {a[0]}) | (~{condition} & {b[0]})"], "mask")
        elif node.type.kind == "int":
            pairs = zip(a, b, strict=True)
            self.name(node, [f"select({condition}, {p}, {q})" for p, q in pairs], "integer")
        else:
            self.name(node, [f"select({condition}, {p}, {q})" for p, q in zip(a, b, strict=True)])

    def _mod(self, node: Node) -> None:
        self.name(node, [f"floor_mod({self.one(node.args[0])}, {self.one(node.args[1])})"], "integer")

    def _floordiv(self, node: Node) -> None:
        self.name(node, [f"floor_div({self.one(node.args[0])}, {self.one(node.args[1])})"], "integer")

    def _repeat(self, node: Node) -> None:
        number, count = node.attrs
        loop = self.program.loops[number]
        accept, values, others = node.args[0], node.args[1 : 1 + count], node.args[1 + count :]
        kept: list[list[str]] = []
        for k, other in enumerate(others):
            names = []
            for c, part in enumerate(self.parts(other)):
                names.append(f"r{number}_{k}_{c}")
                ctype = {"int": "integer", "bool": "mask"}.get(other.type.kind, "real")
                self.line(f"{ctype} {names[-1]} = {part};")
            kept.append(names)
        start = "~active" if self.variant.masked else "all_lanes(false)"
        self.line(f"mask done{number} = {start};")
        self.line(f"for (uint32_t attempt = 0; attempt < {loop.limit} && !all(done{number}); ++attempt) {{")
        self.depth += 1
        outer, self.loop = self.loop, number
        for inner in self.analysis.bodies[number]:
            self.emit(inner)
        self.line(f"const mask accepted = {self.one(accept)} & ~done{number};")
        for k, value in enumerate(values):
            for c, part in enumerate(self.parts(value)):
                name = kept[k][c]
                if value.type.kind == "bool":
                    self.line(f"{name} = (accepted & {part}) | (~accepted & {name});")
                else:
                    self.line(f"{name} = select(accepted, {part}, {name});")
        self.line(f"done{number} = done{number} | accepted;")
        self.loop = outer
        self.depth -= 1
        self.line("}")
        self.line(f"if (!all(done{number})) count_exhausted(counters, lanes_unset(done{number}));")
        self.kept[node.number] = kept

    def _repeat_value(self, node: Node) -> None:
        self.assign(node, self.kept[node.args[0].number][node.attrs[0]])


def _pairs(parts: list[str]) -> list[tuple[str, str]]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def _turn(sign: float, re: str, im: str) -> list[str]:
    """(re, im) times plus or minus i."""
    return [f"-({im})", re] if sign > 0 else [im, f"-({re})"]


def _sizes(product: Node) -> str:
    """Template arguments of a matrix product: rows, inner, columns, and which factors are adjoint."""
    rows = product.type.shape[0]
    cols = product.type.shape[1] if len(product.type.shape) > 1 else 1
    inner = product.args[0].type.shape[0 if product.attrs[0] else 1]
    flags = ", ".join("true" if f else "false" for f in product.attrs)
    return f"{rows}, {inner}, {cols}, {flags}"


def coordinate_text(axis: int, ndim: int, step: int) -> str:
    text = f"block_coordinate({axis}, {ndim}, coordinates, lane_offsets, blocks_held, x)"
    if step:
        text = f"floor_mod({text} + splat_integer({step}), splat_integer((lane_integer)extents[{axis}]))"
    return text


def offset_text(offset: tuple[int, ...]) -> str:
    """An offset as the user wrote it: `X + e0 - 2e3`."""
    text = "X"
    for axis, n in enumerate(offset):
        if n:
            text += f" {'+' if n > 0 else '-'} {abs(n) if abs(n) != 1 else ''}e{axis}"
    return text
