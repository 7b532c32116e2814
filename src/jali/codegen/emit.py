"""Writes a `SiteProgram` as C++ in jali's kernel dialect.

The text uses only names that the prelude defines, so a backend is a prelude. Matrices are small local arrays and are
combined by the prelude's functions; scalars are named constants; renaming operations (components, parts, assembled
matrices) cost nothing. All values are computed before the first field is written, so a kernel may write what it reads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from jali.codegen.arithmetics import ARITHMETICS, seen_by_numpy
from jali.codegen.ir import Label, Node, Output, SiteProgram, Store, Sum
from jali.codegen.local_arrays import LocalArrays
from jali.codegen.members_together import declared_names, of_another
from jali.codegen.operation import described
from jali.codegen.passes import Analysis, analyse, for_members, of_members
from jali.codegen.sites_per_thread import SitesPerThread, most_neighbours
from jali.codegen.storage_formats import Stored, on_the_wire
from jali.codegen.writer import KernelParameter, Lowering, Value, Writer

FIRST_PARAMETER = 8  # parameters 0 to 7 belong to the launcher (docs/notes/kernel-abi.md)
STREAMS = 0x9E3779B97F4A7C15  # between the keys of two members: odd, and far from the differences of seeds
LEAST_STREAMED = 4  # reals read per site; with fewer, finding the position takes as long as reading it


@dataclass(frozen=True)
class KernelText:
    """The C++ of one kernel (without the prelude), its parameters and the facts about it."""

    name: str
    text: str
    parameters: list[KernelParameter]
    analysis: Analysis
    most_neighbours: int  # of a device, that a thread may load together


def counts_overflow(program: SiteProgram) -> bool:
    """Whether a kernel counts sites whose values a field's format cannot hold, in counters[1]."""
    written = {e.slot for e in program.effects if isinstance(e, Store)}
    return any(program.fields[slot].storage.counts(program.precision) for slot in written)


def counters_of(program: SiteProgram, analysis: Analysis) -> int:
    """How many counters a kernel has (docs/notes/kernel-abi.md)."""
    if analysis.failing:
        return 2 + 2 * len(analysis.failing)
    return 2 if counts_overflow(program) else 1 if analysis.counts_attempts else 0


def emit(program: SiteProgram, lowering: Lowering) -> KernelText:
    """The C++ text of a program."""
    return Emitter(program, lowering, analyse(program)).run()


def _number(value: float) -> str:
    """A floating-point constant that loses no bit."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"inf": "infinity_of_target()", "-inf": "-infinity_of_target()"}.get(
            str(value), "nan_of_target()"
        )
    return repr(float(value))


class Emitter(Writer):
    """Writes the kernel of a program over sites; heirs write those of programs over something else."""

    first_parameter = FIRST_PARAMETER

    def __init__(self, program: SiteProgram, lowering: Lowering, analysis: Analysis):
        self.program = program
        self.lowering = lowering
        self.analysis = analysis
        self.lines: list[str] = []
        self.multi_site = SitesPerThread() if lowering.multi_site else None
        self.depth = 3 if lowering.multi_site else 2
        self.values: dict[int, Value] = {}
        self.parameters: list[KernelParameter] = []
        self.constants: dict[str, str] = {}
        self.loop: int | None = None
        self.position = 0
        self.branch: int | None = None
        self.kept: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        # how many lines of a site are written once for all members of a batch; -1: that is not known yet
        self.shared = -1
        if program.batch and not lowering.gpu:
            self.analysis = analysis = for_members(program, analysis)
        self.not_shared = of_members(program) if program.batch else frozenset()
        # values of a member, and the names that each member of a thread has of its own
        self.of_members = self.not_shared if lowering.together > 1 else frozenset()
        self.own_names = {"member"}
        self.arrays = LocalArrays(program, analysis)

    def number(self, node: Node) -> int:
        """Numbers values in the order they are written, so that equal programs have equal text."""
        return self.numbers.setdefault(node.number, len(self.numbers))

    # ---- text and memory -------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def buffer(self, reals: int, owner: Node) -> str:
        """A local array; released when its last value has been used."""
        return self.arrays.take(reals, owner, fresh=self.loop is not None)

    # ---- values ----------------------------------------------------------------------------------

    def value(self, node: Node) -> Value:
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
            self.values[node.number] = value = Value(value.reals, name)
        assert value.array is not None
        return value.array

    def assign(self, node: Node, parts: list[str]) -> None:
        self.values[node.number] = Value(node.type.reals, parts=parts)

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
        self.values[node.number] = Value(node.type.reals, name)
        return name

    def constant(self, value: float) -> str:
        text = _number(value)
        if text not in self.constants:
            self.constants[text] = f"c{len(self.constants)}"
        return self.constants[text]

    def parameter(self, parameter: KernelParameter) -> int:
        if parameter not in self.parameters:
            self.parameters.append(parameter)
        return self.first_parameter + self.parameters.index(parameter)

    def field(self, slot: int) -> str:
        """The name of a field's base pointer; numbered by first use, so that the text does not depend on the bound
        fields."""
        return f"f{self.parameter(KernelParameter('field', slot))}"

    # ---- the whole -------------------------------------------------------------------------------

    def run(self) -> KernelText:
        program, analysis = self.program, self.analysis
        self.write()
        neighbours = most_neighbours(program, self.lowering, analysis)
        return KernelText(program.name, self.assemble(), self.parameters, analysis, neighbours)

    def write(self) -> None:
        """The lines of one site: its values, then what becomes of them."""
        for position, node in enumerate(self.analysis.order):
            self.position = position
            if position == self.analysis.for_all_members:
                self._begin_members()
            start = len(self.lines)
            self.arrays.of_members = node.number in self.of_members
            self.emit(node)
            self._repeat(start)
            self.arrays.release(position)
        self.position = len(self.analysis.order)
        if self.shared < 0:
            self._begin_members()
        start = len(self.lines)
        self.arrays.of_members = self.lowering.together > 1
        self.effects()
        self._repeat(start)

    def _repeat(self, start: int) -> None:
        """Writes the lines from a start on once more for each further member of a thread, where they are of a member."""
        if self.arrays.of_members:
            lines = self.lines[start:]
            self.own_names |= declared_names(lines) | self.arrays.own | {f"k{k}" for k in self._keys()}
            for member in range(1, self.lowering.together):
                self.lines += of_another(lines, self.own_names, member)

    def _begin_members(self) -> None:
        """What comes now is written for each member of a batch."""
        self.shared = len(self.lines)
        self.arrays.keep()

    def effects(self) -> None:
        """The lines that store, sum and send values."""
        component = 0
        outputs = [e for e in self.program.effects if isinstance(e, Output)]
        if outputs and (self.lowering.gpu or self._may_overflow()):
            # as a field of so many reals, so that it travels like one
            sent = self.buffer(self.program.outputs, outputs[0].value)
            for effect in outputs:
                self.line(
                    f"copy<{effect.value.type.reals}>({sent} + {effect.first}, {self.array(effect.value)});"
                )
            index = self.parameter(KernelParameter("output"))
            memory = self._sent(self.program.outputs).pointer(self.program.precision, self.lowering.gpu)
            counted = ", counters" if self._may_overflow() else ""
            if counted:
                self.parameter(KernelParameter("overflow"))
            target = f"({memory}*)w[{index}]"
            if self.program.batch:
                target = f"member_of<{self.program.outputs}>({target}, i, {self.program.batch}, member)"
            self.line(f"store_element<{self.program.outputs}>({target}, i, {sent}{counted});")
        elif outputs:
            index = self.parameter(KernelParameter("output"))
            for effect in outputs:
                at = f"(i * {self.program.batch} + member)" if self.program.batch else "i"
                target = f"(real*)w[{index}] + {at} * {self.program.outputs} + {effect.first}"
                self.line(f"copy<{effect.value.type.reals}>({target}, {self.array(effect.value)});")
        stores = [e for e in self.program.effects if isinstance(e, Store)]
        sums = [e for e in self.program.effects if isinstance(e, Sum)]
        for total in sums:
            ctype = "wide" if described(total.value).wide else "real"
            for part in self.parts(total.value):
                self._contribute(component, part, total.reduction, ctype)
                component += 1
        for label in [e for e in self.program.effects if isinstance(e, Label)]:
            ctype = "integer" if label.value.type.kind == "int" else "real"
            self._contribute(component + label.slot, self.one(label.value), "label", ctype)
        # A stored value that is still a bare load of another stored field must be read before that field is written.
        written = {s.slot for s in stores}
        for store in stores:
            value = store.value
            if value.type.kind == "int":
                continue  # a copy already
            if (
                described(value).reads
                and value.attrs[0] in written
                and len(stores) > 1
                and not self.multi_site
            ):
                source, copy = self.array(value), self.buffer(value.type.reals, value)
                self.line(f"copy<{value.type.reals}>({copy}, {source});")
                self.values[value.number] = Value(value.type.reals, copy)
        targets = [
            (store.slot, self.encoded(self.program.fields[store.slot].storage, store.value), store.value)
            for store in stores
        ]
        for slot, array, value in targets:
            storage = self.program.fields[slot].storage
            counted = ", counters" if storage.counts(self.program.precision) else ""
            here = self.lowering.access(slot, (0,) * self.program.ndim)
            here.store(self, value, storage, array, counted)

    def _sent(self, reals: int) -> Stored:
        """How a halo item of so many reals is kept."""
        return on_the_wire(reals, self.program.precision, self.lowering.wire)

    def _may_overflow(self) -> bool:
        """Whether this is the producer of a halo item whose wire format cannot hold all values."""
        sent = self.program.outputs
        return sent > 0 and self._sent(sent).counts(self.program.precision)

    def _contribute(self, component: int, part: str, reduction: str, ctype: str = "real") -> None:
        """A site's term of a sum, maximum or minimum, or a label of it."""
        i = "i" if self.multi_site is None else "own.i[j]"
        position = f"{component} * sum_stride"
        if self.program.batch:
            position = f"(member * {len(self.program.reductions)} + {component}) * sum_stride"
        whole = reduction.endswith("_whole")
        ctype = "integer" if whole else ctype
        if self.lowering.in_kernel_reduction and reduction == "sum":
            statement = (
                f"add_to_sums(d{component}, double(({{value}}).value), words + {component} * SUM_WORDS);"
            )
        elif self.lowering.in_kernel_reduction:
            term = "int64_t" if whole else "double"
            statement = f"raise_key(d{component}, key_of_{reduction}({term}(({{value}}).value)));"
        else:
            store = "store_label" if reduction == "label" else "store_whole" if whole else "store_sum"
            statement = f"{store}(sums + ({position} + ({i} - begin)) * JALI_LANES, {{value}});"
        if self.multi_site is not None:
            self.line(f"{self.multi_site.add(component, statement, ctype)} = {part};")
            return
        inside = part
        if self.lowering.masked and reduction != "label":
            neutral = "splat_wide(0)" if ctype == "wide" else self._neutral(reduction)
            inside = f"select(active, {part}, {neutral})"
        self.line(statement.format(value=inside))

    def _neutral(self, reduction: str) -> str:
        """A term that changes nothing."""
        if reduction == "sum":
            return "splat(0)"
        if reduction.endswith("_whole"):
            return "sign_bits()" if reduction == "max_whole" else "~sign_bits()"  # the least, the largest
        return self.constant(float("-inf") if reduction == "max" else float("inf"))

    def assemble(self) -> str:
        """The text around the lines of a site."""
        program, analysis = self.program, self.analysis
        out = [
            f"// {program.name}: {analysis.flops} flops, reads {analysis.loads} and writes {analysis.stores} reals per site."
        ]
        for slot in [parameter.slot for parameter in self.parameters if parameter.what == "field"]:
            field = program.fields[slot]
            reads = ", ".join(program.location(o) for o in analysis.reads.get(slot, {}))
            what = [f"read at {reads}"] if reads else []
            what += ["written"] if slot in analysis.writes else []
            out.append(f"//   {self.field(slot)} = {field.name}, {field.element}: {'; '.join(what)}")
        used = {*analysis.reads, *analysis.writes}
        kept = [program.fields[slot].storage for slot in sorted(used)]
        kept += [
            self._sent(reals) for reals in (program.outputs, *(item.reals for item in program.items)) if reals
        ]
        out += dict.fromkeys(text for stored in kept for text in stored.texts)
        head = []
        if self.lowering.gpu:
            if analysis.coordinates:
                self.parameter(KernelParameter("blocks"))
            size = FIRST_PARAMETER + len(self.parameters)
            out.append(f"struct arguments {{ int64_t begin, end; uint64_t w[{size}]; }};")
            if self.lowering.with_halos:
                out.append("struct arguments_with_halos { arguments sites; halo_roles halos; };")
                out.append("JALI_KERNEL(kernel, arguments_with_halos) {")
                head += ["grid_part part;", "if (!begin_role(part, a.halos)) return;"]
                head += ["const uint64_t* const w = a.sites.w;"]
                head += [
                    f"const int64_t {name} = part.late ? a.halos.{name} : a.sites.{name};"
                    for name in ("begin", "end")
                ]
            else:
                out.append(
                    f"{'JALI_EARLY_KERNEL' if program.outputs else 'JALI_KERNEL'}(kernel, arguments) {{"
                )
                if program.outputs:  # beside the other producers of an exchange (core/halo/gpu_exchange.cpp)
                    head += [
                        "const bool in_front = a.w[2] != 0;",
                        "if (!in_front) after_previous();",
                        "let_next_begin();",
                    ]
                head += ["const grid_part part = whole_grid();"]
                head += ["const uint64_t* const w = a.w;", "const int64_t begin = a.begin, end = a.end;"]
        else:
            out.append(
                'extern "C" __attribute__((visibility("default"))) void kernel(const uint64_t* w, int64_t begin, int64_t end) {'
            )
        listed, summed_at = ("a.halos.blocks", "a.halos.sums") if self.lowering.with_halos else ("", "")
        head.append(f"const int32_t* const blocks = (const int32_t*)({_late(listed, 'w[0]')});")
        if self.lowering.masked:
            head.append("const uint32_t* const masks = (const uint32_t*)w[1];")
        count = len(program.reductions)
        if self.lowering.in_kernel_reduction:
            head.append(f"JALI_SHARED int64_t words[{count} * SUM_WORDS];")
            head.append(f"begin_words(words, {count} * SUM_WORDS);")
            summed = [reduction == "sum" for reduction in program.reductions]
            head += [
                f"digit_sums d{k};" if is_sum else f"uint64_t d{k} = 0;" for k, is_sum in enumerate(summed)
            ]
            head += [f"begin_sums(d{k});" for k, is_sum in enumerate(summed) if is_sum]
        elif program.sums:
            head.append(f"double* const sums = (double*)({_late(summed_at, 'w[2]')});")
            head.append("const int64_t sum_stride = (int64_t)w[3];")
        if analysis.coordinates:
            index = self.parameter(KernelParameter("blocks"))
            head.append("const int32_t* const coordinates = (const int32_t*)w[4];")
            head.append("const int32_t* const lane_offsets = (const int32_t*)w[5];")
            head.append(f"const int64_t blocks_held = (int64_t)w[{index}];")
        if counters_of(program, analysis) or self._may_overflow():
            index = self.parameter(KernelParameter("overflow")) if self._may_overflow() else 6
            head.append(f"int64_t* const counters = (int64_t*)w[{index}];")
        head.append("const int64_t* const extents = (const int64_t*)w[7];")
        head.append("(void)extents;")
        head += self.declarations()
        lanes, numbering = self._site_number() if analysis.randoms else ([], [])
        head += lanes
        out += ["    " + line for line in head]
        of_site = ["        " + line for line in numbering]
        of_site += [f"        real {name}[{reals}];" for name, reals in self.arrays.sizes.items()]
        for member in range(1, self.lowering.together):
            of_site.append(f"        const int64_t member_of{member} = member + {member};")
            of_site += [
                f"        real {name}_of{member}[{reals}];"
                for name, reals in self.arrays.sizes.items()
                if name in self.arrays.own
            ]
        of_site = ["    " * (self.depth - 2) + line for line in of_site] + self._lines_of_members()
        if self.multi_site is not None:
            out += self.multi_site.text(
                of_site, counts=bool(analysis.bodies or analysis.failing), part="part"
            )
        else:
            out += self._loop(of_site)
        if self.lowering.in_kernel_reduction:
            out += [
                f"    {'end_sums' if reduction == 'sum' else 'end_key'}(d{k}, words + {k} * SUM_WORDS);"
                for k, reduction in enumerate(program.reductions)
            ]
            out += self._add_words()
        if self.lowering.gpu and program.outputs:
            out.append("    if (in_front) after_previous();")
        out += ["}", ""]
        return "\n".join(out)

    def declarations(self) -> list[str]:
        """The lines that name parameters and constants."""
        lines = []
        for k, parameter in enumerate(self.parameters):
            lines += _declare(parameter, self.first_parameter + k, self.lowering, self.program)
        return lines + [
            f"const real {name} = splat((JALI_REAL){text});" for text, name in self.constants.items()
        ]

    def _add_words(self) -> list[str]:
        """What a block has found, to what the device has: neighbouring sums together, every extreme by itself."""
        out: list[str] = []
        reductions = self.program.reductions
        for is_sum, members in itertools.groupby(enumerate(reductions), lambda member: member[1] == "sum"):
            found = [k for k, _ in members]
            first = f" + {found[0]} * SUM_WORDS" if found[0] else ""
            if is_sum:
                out.append(f"    add_words((int64_t*)w[2]{first}, words{first}, {len(found)} * SUM_WORDS);")
            else:
                out += [
                    f"    take_key((int64_t*)w[2] + {k} * SUM_WORDS, words + {k} * SUM_WORDS);" for k in found
                ]
        return out

    def _loop(self, of_site: list[str]) -> list[str]:
        """The loop over positions around the lines of a site."""
        out = []
        if self._streams():
            out.append("    for (int64_t turn = begin; turn < end; ++turn) {")
            out.append("        const int64_t i = position_at(turn, begin, end);")
        elif self.lowering.gpu and self.program.batch:
            together = self.lowering.together
            turns = self.program.batch // together
            each = f" * {together}" if together > 1 else ""
            out += [
                f"    JALI_FOR_EACH_TURN(turn, turns_of_members(part, begin, end, {turns})) {{",
                f"        const int64_t group = turn / (GROUP * {turns}), rest = turn % (GROUP * {turns});",
                f"        const int64_t member = rest / GROUP{each}, i = (begin / GROUP + group) * GROUP + rest % GROUP;",
            ]
            out.append("        if (i < begin || i >= end) continue;")
        elif self.lowering.gpu:
            out.append("    JALI_FOR_EACH_OF(part, i, begin, end) {")
        else:
            out.append("    for (int64_t i = begin; i < end; ++i) {")
        out.append("        const int64_t x = blocks ? (int64_t)blocks[i] : i;")
        if self.lowering.prefetches:
            out.append("        const int64_t next = i + 1 < end ? i + 1 : i;")
            out.append("        const int64_t ahead = blocks ? (int64_t)blocks[next] : next;")
        if self.lowering.masked:
            out.append("        const mask active = lanes_from_bits(masks ? masks[i] : 0xffffffffu);")
        return [*out, *of_site, "    }"]

    def _lines_of_members(self) -> list[str]:
        """The lines of a site; on hosts members are a loop, behind what they share."""
        members, lines = self.program.batch, self.lines
        if not members:
            return lines
        keys = [
            f"const philox_keys k{k} = philox_schedule(w[{k}] + uint64_t(member) * {STREAMS}u);"
            for k in self._keys()
        ]
        if self.lowering.gpu:
            every = [*keys]
            for member in range(1, self.lowering.together):
                every += of_another(keys, self.own_names, member)
            return ["        " + line for line in every] + lines
        begin = f"        for (int64_t member = 0; member < {members}; ++member) {{"
        own = ["    " + line for line in ["        " + line for line in keys] + lines[self.shared :]]
        if self.lowering.prefetches:
            own = [
                f"            const int64_t soon_member = member + 1 < {members} ? member + 1 : 0;",
                "            const int64_t soon = soon_member ? x : ahead;",
                *own,
            ]
        return [*lines[: self.shared], begin, *own, "        }"]

    def _keys(self) -> list[int]:
        """Parameters that are keys of random numbers. Each member has a key of its own, the first one that of a field without a batch."""
        return [
            self.first_parameter + k for k, parameter in enumerate(self.parameters) if parameter.what == "key"
        ]

    def _streams(self) -> bool:
        """Whether memory is read that sites do not share and that is not written, and enough to pay for the order."""
        if self.lowering.gpu or self.lowering.tables or self.program.batch:
            return False
        reads, writes = self.analysis.reads, self.analysis.writes
        local = not any(any(offset) for at in reads.values() for offset in at)
        return local and not (reads.keys() & writes.keys()) and self.analysis.loads >= LEAST_STREAMED

    def _site_index(self) -> list[str]:
        ndim = self.program.ndim
        lines = ["integer origin[" + str(ndim) + "];"]
        for d in range(ndim):
            lines.append(f"origin[{d}] = {self.coordinate(d, self.analysis.drawn_at[d])};")
        lines += ["site_vector site;", f"site_index(&site, {ndim}, origin, extents);"]
        return lines

    def _site_number(self) -> tuple[list[str], list[str]]:
        """Before the loop and in it: site numbers, from that of lane 0 where no lane can wrap around the lattice."""
        if any(self.analysis.drawn_at):
            return [], self._site_index()
        ndim = self.program.ndim
        head = [f"const site_numbering<{ndim}> numbering(coordinates, lane_offsets, extents, blocks_held);"]
        return head, ["const site_vector site = numbering.of_block(x);"]

    # ---- nodes -------------------------------------------------------------------------------------

    def emit(self, node: Node) -> None:
        described(node).text(self, node)


def _late(of_boundary: str, usual: str) -> str:
    """What a part of a launch takes that may be the boundary's."""
    return f"part.late ? {of_boundary} : {usual}" if of_boundary else usual


def _given(program: SiteProgram) -> str:
    """The C type of real numbers in arrays that the host gives: what NumPy sees of the arithmetic."""
    seen = seen_by_numpy(program.precision)
    return "JALI_REAL" if seen == program.precision else ARITHMETICS[seen].c_type


def _declare(parameter: KernelParameter, index: int, lowering: Lowering, program: SiteProgram) -> list[str]:
    if parameter.what == "field":
        field = program.fields[parameter.slot]
        pointer = field.storage.pointer(program.precision, lowering.gpu)
        return [f"{pointer}* const f{index} = ({pointer}*)w[{index}];  // {field.name}"]
    if parameter.what == "members":
        return [f"const int32_t* const m{index} = (const int32_t*)w[{index}];"]
    if parameter.what == "differences":
        return [f"const uint32_t* const n{index} = (const uint32_t*)w[{index}];"]
    if parameter.what == "table":
        entry = {8: "unsigned char", 16: "unsigned short", 32: "uint32_t"}[lowering.code_bits]
        return [
            f"const {entry}* const n{index} = (const {entry}*)w[{index}];  // neighbours at {program.location(parameter.offset)}"
        ]
    if parameter.what in ("sites", "site_lists"):
        comment = f"  // sites at {program.location(parameter.offset)}" if parameter.what == "sites" else ""
        return [f"const uint32_t* const n{index} = (const uint32_t*)w[{index}];{comment}"]
    if parameter.what == "site_classes":
        return [f"const uint16_t* const c{index}_ = (const uint16_t*)w[{index}];"]
    if parameter.what == "permutations":
        return [f"const int32_t* const n{index} = (const int32_t*)w[{index}];"]
    if parameter.what == "phases":
        given = _given(program)
        return [f"const {given}* const h{index} = (const {given}*)w[{index}];"]
    if parameter.what == "key":
        return [
            f"const philox_keys k{index} = philox_schedule(w[{index}]);  // {program.randoms[parameter.slot]}"
        ]
    if parameter.what == "array":
        given = _given(program)
        return [
            f"const {given}* const a{index} = (const {given}*)w[{index}];  // {program.scalars[parameter.slot][0]}"
        ]
    if parameter.what == "whole_array":
        return [
            f"const lane_integer* const a{index} = (const lane_integer*)w[{index}];  // {program.scalars[parameter.slot][0]}"
        ]
    if parameter.what == "whole":
        name = program.scalars[parameter.slot][0]
        return [
            f"const integer s{index} = splat_integer((lane_integer)w[{index}]);  // {name}[{parameter.component}]"
        ]
    if parameter.what == "array_extent":
        return [f"const integer s{index} = splat_integer((lane_integer)w[{index}]);"]
    if parameter.what == "scalar":
        name, type = program.scalars[parameter.slot]
        if type.kind == "int":
            return [f"const integer s{index} = splat_integer((lane_integer)w[{index}]);  // {name}"]
        value = (
            f"*(const double*)w[{index}]"
            if parameter.slot in lowering.by_address
            else f"double_of_bits(w[{index}])"
        )
        return [f"const real s{index} = splat((JALI_REAL){value});  // {name}"]
    return []


__all__ = [
    "FIRST_PARAMETER",
    "KernelParameter",
    "KernelText",
    "Lowering",
    "counters_of",
    "counts_overflow",
    "emit",
]
