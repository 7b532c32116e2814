"""Writes a `SiteProgram` as C++ in jali's kernel dialect.

The text uses only names that the prelude defines, so a backend is a prelude. Matrices live in small local arrays and are
combined by the prelude's functions; scalars are named constants; renaming operations (components, parts, assembled
matrices) cost nothing. All values are computed before the first field is written, so a kernel may write what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jali.codegen.ir import Node, Output, SiteProgram, Store, Sum
from jali.codegen.items import Item
from jali.codegen.passes import RENAMING, Analysis, analyse, reachable

FIRST_WORD = 8  # words 0 to 7 belong to the launcher (ARCHITECTURE.md, section 3)


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


@dataclass(frozen=True)
class Word:
    """What a word of the kernel's argument list holds, from word 8 on."""

    what: str  # field, table, permutations, phases, scalar, key, call, blocks, item, output
    slot: int = 0
    offset: tuple[int, ...] = ()
    windings: bool = False
    component: int = 0


@dataclass
class KernelText:
    """The C++ of one kernel (without the prelude), its argument words and the facts about it."""

    name: str
    text: str
    words: list[Word]
    analysis: Analysis


class _Value:
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


def emit(program: SiteProgram, variant: Variant) -> KernelText:
    """The C++ text of a program."""
    return _Emitter(program, variant, analyse(program, variant.items)).run()


def _number(value: float) -> str:
    """A floating-point constant that loses no bit."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()"}.get(str(value), '__builtin_nan("")')
    return repr(float(value))


class _Emitter:
    def __init__(self, program: SiteProgram, variant: Variant, analysis: Analysis):
        self.program = program
        self.variant = variant
        self.analysis = analysis
        self.lines: list[str] = []
        self.depth = 2
        self.values: dict[int, _Value] = {}
        self.words: list[Word] = []
        self.constants: dict[str, str] = {}
        self.free: dict[int, list[str]] = {}
        self.sizes: dict[str, int] = {}
        self.owned: dict[int, list[str]] = {}
        self.roots: dict[int, frozenset[int]] = {}
        self.last: dict[int, int] = {}
        self.loop: int | None = None
        self.position = 0
        self.branch: Item | None = None
        self.numbers: dict[int, int] = {}
        self.item_of = {node.number: item for item in variant.items for node in item.cut}

    def number(self, node: Node) -> int:
        """Numbers values in the order they are written, so that equal programs have equal text."""
        return self.numbers.setdefault(node.number, len(self.numbers))

    # ---- text and memory -------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def buffer(self, reals: int, owner: Node) -> str:
        """A local array; given back when the last value that lives in it has been used."""
        waiting = self.free.get(reals)
        if waiting and self.loop is None:
            name = waiting.pop()
        else:
            name = f"b{len(self.sizes)}"
            self.sizes[name] = reals
        self.owned.setdefault(owner.number, []).append(name)
        return name

    def _plan_memory(self) -> None:
        for node in [n for body in self.analysis.bodies.values() for n in body] + self.analysis.order:
            self._roots(node)
        for position, node in enumerate(self.analysis.order):
            for a in self._arguments(node):
                for root in self._roots(a):
                    self.last[root] = position
        for effect in self.program.effects:
            for root in self._roots(effect.value):
                self.last[root] = len(self.analysis.order)

    def _arguments(self, node: Node) -> list[Node]:
        """The values a node reads when it is written, through fused products and loop bodies."""
        out: list[Node] = []
        for a in node.args:
            if a.number in self.analysis.fused:
                out += a.args
            else:
                out.append(a)
        if node.op == "repeat":
            for inner in self.analysis.bodies[node.attrs[0]]:
                out += self._arguments(inner)
        if node.number in self.item_of:
            return []  # what an item needs is written inside its own branch
        return out

    def _roots(self, node: Node) -> frozenset[int]:
        found = self.roots.get(node.number)
        if found is None:
            found = frozenset({node.number})
            item = self.item_of.get(node.number)
            if item is not None:
                found = found | item.cone | {n.number for n in item.cut}
            elif node.op in RENAMING or node.number in self.analysis.fused:
                found = found.union(*(self._roots(a) for a in node.args))
            self.roots[node.number] = found
        return found

    def _release(self, position: int) -> None:
        for number, names in list(self.owned.items()):
            if self.last.get(number, -1) <= position:
                for name in names:
                    self.free.setdefault(self.sizes[name], []).append(name)
                del self.owned[number]

    # ---- values ----------------------------------------------------------------------------------

    def value(self, node: Node) -> _Value:
        return self.values[node.number]

    def parts(self, node: Node) -> list[str]:
        return self.value(node).parts

    def one(self, node: Node) -> str:
        return self.value(node).parts[0]

    def array(self, node: Node) -> str:
        """The value as an array; components are copied into one if need be."""
        value = self.value(node)
        if value.array is None:
            name = self.buffer(value.reals, node)
            for k, part in enumerate(value.parts):
                self.line(f"{name}[{k}] = {part};")
            self.values[node.number] = value = _Value(value.reals, name)
        assert value.array is not None
        return value.array

    def assign(self, node: Node, parts: list[str]) -> None:
        self.values[node.number] = _Value(node.type.reals, parts=parts)

    def name(self, node: Node, expressions: list[str], ctype: str = "real") -> None:
        """Names each expression as a constant."""
        names = []
        for k, expression in enumerate(expressions):
            suffix = f"_{k}" if len(expressions) > 1 else ""
            names.append(f"t{self.number(node)}{suffix}")
            self.line(f"const {ctype} {names[-1]} = {expression};")
        self.assign(node, names)

    def result(self, node: Node) -> str:
        """A fresh array for a node's value."""
        name = self.buffer(node.type.reals, node)
        self.values[node.number] = _Value(node.type.reals, name)
        return name

    def constant(self, value: float) -> str:
        text = _number(value)
        if text not in self.constants:
            self.constants[text] = f"c{len(self.constants)}"
        return self.constants[text]

    def word(self, word: Word) -> int:
        if word not in self.words:
            self.words.append(word)
        return FIRST_WORD + self.words.index(word)

    def field(self, slot: int) -> str:
        """The name of a field's base pointer; numbered by first use, so that the text does not depend on who is bound."""
        return f"f{self.word(Word('field', slot))}"

    # ---- the whole -------------------------------------------------------------------------------

    def run(self) -> KernelText:
        program, analysis = self.program, self.analysis
        self._plan_memory()
        for position, node in enumerate(analysis.order):
            self.position = position
            self.emit(node)
            self._release(position)
        self.position = len(analysis.order)
        self._effects()
        return KernelText(program.name, self._assemble(), self.words, analysis)

    def _effects(self) -> None:
        component = 0
        for effect in self.program.effects:
            if isinstance(effect, Output):
                word = self.word(Word("output"))
                target = f"(real*)w[{word}] + i * {self.program.outputs} + {effect.first}"
                self.line(f"copy<{effect.value.type.reals}>({target}, {self.array(effect.value)});")
        stores = [e for e in self.program.effects if isinstance(e, Store)]
        sums = [e for e in self.program.effects if isinstance(e, Sum)]
        for total in sums:
            for part in self.parts(total.value):
                inside = f"select(active, {part}, splat(0))" if self.variant.masked else part
                self.line(
                    f"store_sum(sums + ({component} * sum_stride + (i - begin)) * JALI_LANES, {inside});"
                )
                component += 1
        # A stored value that is still a bare load of another stored field must be read before that field is written.
        written = {s.slot for s in stores}
        for store in stores:
            value = store.value
            if value.op == "load" and value.attrs[0] in written and len(stores) > 1:
                source, copy = self.array(value), self.buffer(value.type.reals, value)
                self.line(f"copy<{value.type.reals}>({copy}, {source});")
                self.values[value.number] = _Value(value.type.reals, copy)
        targets = []
        for store in stores:
            element = self.program.fields[store.slot].element
            array = self.array(store.value)
            reals = element.stored_reals
            if element.codec == "algebra":
                packed = self.buffer(reals, store.value)
                self.line(f"algebra_encode<{element.type.shape[0]}>({packed}, {array});")
                array = packed
            targets.append((store.slot, array, reals))
        for slot, array, reals in targets:
            function = "store_f32" if slot in self.variant.single else "store_element"
            if self.variant.masked:
                self.line(f"{function}_masked<{reals}>({self.field(slot)}, x, {array}, active);")
            else:
                self.line(f"{function}<{reals}>({self.field(slot)}, x, {array});")

    def _assemble(self) -> str:
        program, analysis = self.program, self.analysis
        out = [
            f"// {program.name}: {analysis.flops} flops, reads {analysis.loads} and writes {analysis.stores} reals per site."
        ]
        for slot in [word.slot for word in self.words if word.what == "field"]:
            field = program.fields[slot]
            reads = ", ".join(_shift(o) for o in analysis.reads.get(slot, {}))
            what = [f"read at {reads}"] if reads else []
            what += ["written"] if slot in analysis.writes else []
            out.append(f"//   {self.field(slot)} = {field.name}, {field.element}: {'; '.join(what)}")
        out.append(
            'extern "C" __attribute__((visibility("default"))) void kernel(const uint64_t* w, int64_t begin, int64_t end) {'
        )
        head = ["const int32_t* const blocks = (const int32_t*)w[0];"]
        if self.variant.masked:
            head.append("const uint32_t* const masks = (const uint32_t*)w[1];")
        if program.sums:
            head.append("double* const sums = (double*)w[2];")
            head.append("const int64_t sum_stride = (int64_t)w[3];")
        if analysis.coordinates:
            index = self.word(Word("blocks"))
            head.append("const int32_t* const coordinates = (const int32_t*)w[4];")
            head.append("const int32_t* const lane_offsets = (const int32_t*)w[5];")
            head.append(f"const int64_t blocks_held = (int64_t)w[{index}];")
        if analysis.bodies:
            head.append("int64_t* const counters = (int64_t*)w[6];")
        head.append("const int64_t* const extents = (const int64_t*)w[7];")
        head.append("(void)extents;")
        for k, word in enumerate(self.words):
            head += _declare(word, FIRST_WORD + k, self.variant, program)
        for text, name in self.constants.items():
            head.append(f"const real {name} = splat((JALI_REAL){text});")
        lanes, numbering = self._site_number() if analysis.randoms else ([], [])
        head += lanes
        out += ["    " + line for line in head]
        out.append("    for (int64_t i = begin; i < end; ++i) {")
        out.append("        const int64_t x = blocks ? (int64_t)blocks[i] : i;")
        if self.variant.masked:
            out.append("        const mask active = lanes_from_bits(masks ? masks[i] : 0xffffffffu);")
        out += ["        " + line for line in numbering]
        for name, reals in self.sizes.items():
            out.append(f"        real {name}[{reals}];")
        out += self.lines
        out += ["    }", "}", ""]
        return "\n".join(out)

    def _site_index(self) -> list[str]:
        ndim = self.program.ndim
        shift = self.program.shift or (0,) * ndim
        lines = ["integer origin[" + str(ndim) + "];"]
        for d in range(ndim):
            lines.append(f"origin[{d}] = {_coordinate(d, -shift[d])};")
        lines += ["site_vector site;", f"site_index(&site, {ndim}, origin, extents);"]
        return lines

    def _site_number(self) -> tuple[list[str], list[str]]:
        """Before the loop and in it: site numbers, from that of lane 0 where no lane can wrap around the lattice."""
        if any(self.program.shift):
            return [], self._site_index()
        ndim = self.program.ndim
        head = [f"const lane_sites lane_site = sites_of_lanes({ndim}, lane_offsets, extents);"]
        coordinates = ", ".join(f"coordinates[{d} * blocks_held + x]" for d in range(ndim))
        return head, [
            f"const int32_t corner[{ndim}] = {{{coordinates}}};",
            f"const site_vector site = site_of_block(number_of_site({ndim}, corner, extents), lane_site);",
        ]

    # ---- operations ------------------------------------------------------------------------------

    def emit(self, node: Node) -> None:
        item = self.item_of.get(node.number)
        if item is not None and self.branch is not item:
            if node.number not in self.values:
                self._item(item)
            return
        handler: Callable[[Node], None] = getattr(self, f"_{node.op}")
        handler(node)

    def _item(self, item: Item) -> None:
        """Values that are computed from a neighbour of this rank, or arrive computed from another one."""
        offset = self.program.offset(item.offset)
        phased = any((slot, offset) in self.variant.phased for slot in item.slots)
        table = self.word(Word("table", offset=offset, windings=phased))
        permutations = self.word(Word("permutations", offset=offset, windings=phased))
        storage, blocks = self.word(Word("item", offset=offset)), self.word(Word("blocks"))
        names = [f"g{self.number(node)}" for node in item.cut]
        for name in names:
            self.line(f"const real* {name};")
        self.line(f"if ((n{table}[x] & ENTRY_BLOCK) < w[{blocks}]) {{")
        self.depth += 1
        outer, self.loop, self.branch = self.loop, -1, item
        for node in reachable(item.cut):
            if node.op == "const" and node.number in self.values:
                continue
            if node.number not in self.analysis.fused:
                self.emit(node)
        for name, node in zip(names, item.cut, strict=True):
            self.line(f"{name} = {self.array(node)};")
        self.depth -= 1
        self.line("} else {")
        self.depth += 1
        staged = self.buffer(item.reals, item.cut[0])
        arguments = f"{staged}, (const JALI_REAL*)w[{storage}], n{table}[x], n{permutations}"
        kind = ""
        if phased:
            slot = next(s for s in item.slots if (s, offset) in self.variant.phased)
            arguments += f", h{self.word(Word('phases', slot, offset, True))}"
            kind = "_phased" if item.cut[0].type.kind == "complex" else "_signed"
        self.line(
            f"const real* const arrived = stage{kind}<{item.reals}>({arguments});  // sent by {_shift(offset)}"
        )
        first = 0
        for name, node in zip(names, item.cut, strict=True):
            self.line(f"{name} = arrived + {first};")
            first += node.type.reals
        self.depth -= 1
        self.line("}")
        self.loop, self.branch = outer, None
        for name, node in zip(names, item.cut, strict=True):
            self.values[node.number] = _Value(node.type.reals, name)

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
        self.name(node, [_coordinate(axis, step - shift)], "integer")

    def _load(self, node: Node) -> None:
        slot, source_offset = node.attrs
        offset = self.program.offset(source_offset)
        element = self.program.fields[slot].element
        reals = element.stored_reals
        single = "_f32" if slot in self.variant.single else ""
        name = f"p{self.number(node)}"
        source = self.field(slot)
        if not any(offset):
            if single:
                staged = self.buffer(reals, node)
                self.line(
                    f"const real* const {name} = block_at_f32<{reals}>({staged}, {self.field(slot)}, x);"
                )
            else:
                self.line(f"const real* const {name} = block_at<{reals}>({self.field(slot)}, x);")
        else:
            phased = (slot, offset) in self.variant.phased
            table = self.word(Word("table", offset=offset, windings=phased))
            permutations = self.word(Word("permutations", offset=offset, windings=phased))
            staged = self.buffer(reals, node)
            arguments = f"{staged}, {source}, n{table}[x], n{permutations}"
            kind = ""
            if phased:
                phases = self.word(Word("phases", slot, offset, True))
                arguments += f", h{phases}"
                kind = "_phased" if element.type.kind == "complex" and element.codec == "plain" else "_signed"
            self.line(
                f"const real* const {name} = stage{kind}{single}<{reals}>({arguments});  // {self.program.fields[slot].name} at {_shift(offset)}"
            )
        if element.codec == "algebra":
            decoded = self.result(node)
            self.line(f"algebra_decode<{element.type.shape[0]}>({decoded}, {name});")
        else:
            self.values[node.number] = _Value(node.type.reals, name)

    def _philox(self, node: Node) -> None:
        slot, number, loop, kind = node.attrs
        if node.number in self.values:
            return  # drawn together with another one
        name = self.result(node)
        key, call = self.word(Word("key", slot)), self.word(Word("call", slot))
        draw = self._draw(node)
        if kind == "uniform":
            # two counters at once: the rounds of one fill the latencies of the other
            scope = self.analysis.bodies[loop] if loop >= 0 else []
            for other in scope:
                if other.op == "philox" and other.number not in self.values and other.attrs[0] == slot and other.attrs[3] == kind:
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
            self.values[node.number] = _Value(node.type.reals, array)
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
        value = self.value(a)
        if value.array:
            self.name(node, [f"norm2<{value.reals}>({value.array})"])
            return
        text = f"{value.parts[0]} * {value.parts[0]}"
        for p in value.parts[1:]:
            text = f"fma({p}, {p}, {text})"
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

    def _call(self, node: Node) -> None:
        function = node.attrs[0]
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
        self.line(f"if (!all(done{number})) counters[0] += lanes_unset(done{number});")
        self.kept = getattr(self, "kept", {})
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


def _coordinate(axis: int, step: int) -> str:
    text = f"block_coordinate(coordinates + {axis} * blocks_held, lane_offsets + {axis} * JALI_LANES, x)"
    if step:
        text = f"floor_mod({text} + splat_integer({step}), splat_integer((lane_integer)extents[{axis}]))"
    return text


def _shift(offset: tuple[int, ...]) -> str:
    """An offset as the user wrote it: `X + e0 - 2e3`."""
    text = "X"
    for axis, n in enumerate(offset):
        if n:
            text += f" {'+' if n > 0 else '-'} {abs(n) if abs(n) != 1 else ''}e{axis}"
    return text


def _declare(word: Word, index: int, variant: Variant, program: SiteProgram) -> list[str]:
    if word.what == "field":
        scalar = "float" if word.slot in variant.single else "JALI_REAL"
        return [f"{scalar}* const f{index} = ({scalar}*)w[{index}];  // {program.fields[word.slot].name}"]
    if word.what == "table":
        return [
            f"const uint32_t* const n{index} = (const uint32_t*)w[{index}];  // neighbours at {_shift(word.offset)}"
        ]
    if word.what == "permutations":
        return [f"const int32_t* const n{index} = (const int32_t*)w[{index}];"]
    if word.what == "phases":
        return [f"const JALI_REAL* const h{index} = (const JALI_REAL*)w[{index}];"]
    if word.what == "key":
        return [f"const philox_keys k{index} = philox_schedule(w[{index}]);  // {program.randoms[word.slot]}"]
    if word.what == "scalar":
        name, type = program.scalars[word.slot]
        if type.kind == "int":
            return [f"const integer s{index} = splat_integer((lane_integer)w[{index}]);  // {name}"]
        return [f"const real s{index} = splat((JALI_REAL)__builtin_bit_cast(double, w[{index}]));  // {name}"]
    return []


__all__ = ["KernelText", "Variant", "Word", "emit"]
