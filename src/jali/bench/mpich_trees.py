"""MPICH's selection trees as rules of collectives.

A tree is JSON: keys are predicates ("comm_size<=8") with what holds under them, or a leaf ("composition=..." or "algorithm=..."
with its parameters). MPICH goes down the first predicate that is true, never back up, and takes its own defaults where it finds
no leaf. So each leaf becomes a rule with all predicates on its way as conditions, in the order of the tree, and where those
under a predicate may all be false a following rule leaves the choice to the MPI library.

Predicates become conditions of rules. Some have none: the branches under them are left out, listed with their position
(`Imported.left_out`), and calls that MPICH would send there take the rules that follow. `assumed` gives the value of such a
predicate on the machine at hand, and then nothing is left out. Leaves become jali's algorithms of the same name and meaning;
what has no counterpart is "mpi", the MPI library's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NoReturn

from jali.comm.algorithms import BY_MPI, OTHER_NAMES
from jali.comm.elements import OPERATIONS
from jali.errors import FileFormatError
from jali.files import shown

MOST_DEEP = 64
ENDLESS = 1 << 62

# MPICH's collectives: jali's, and whether counts are even (None: no matter).
COLLECTIVES = {
    "bcast": ("broadcast", None),
    "reduce": ("reduce", None),
    "allreduce": ("all_reduce", None),
    "allgather": ("all_gather", True),
    "allgatherv": ("all_gather", False),
    "gather": ("gather", True),
    "gatherv": ("gather", False),
    "scatter": ("scatter", True),
    "scatterv": ("scatter", False),
    "alltoall": ("all_to_all", True),
    "alltoallv": ("all_to_all", False),
    "reduce_scatter_block": ("reduce_scatter", True),
    "reduce_scatter": ("reduce_scatter", False),
}
WHOLE = ("bcast", "reduce", "allreduce")  # a vector as long on every rank
PARTS = (
    "allgather",
    "allgatherv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "reduce_scatter_block",
    "reduce_scatter",
)
COUNTED = (*WHOLE, "allgather", "allgatherv", "reduce_scatter_block", "reduce_scatter")
REDUCING = ("reduce", "allreduce", "reduce_scatter_block", "reduce_scatter")

# Algorithms that jali has as well, by the name without the collective; other ones are the MPI library's.
ALGORITHMS = {
    "bcast": {"binomial": "binomial", "smp": "two_level"},
    "reduce": {"binomial": "binomial", "smp": "two_level"},
    "allreduce": {
        "recursive_doubling": "recursive_doubling",
        "reduce_scatter_allgather": "halving_doubling",
        "ring": "ring",
        "smp": "two_level",
    },
    "allgather": {"recursive_doubling": "recursive_doubling", "ring": "ring"},
    "allgatherv": {"recursive_doubling": "recursive_doubling", "ring": "ring"},
    "gather": {"binomial": "binomial", "linear": "direct"},
    "gatherv": {"linear": "direct"},
    "scatter": {"binomial": "binomial", "linear": "direct"},
    "scatterv": {"linear": "direct"},
    "alltoall": {"brucks": "bruck", "pairwise": "pairwise", "scattered": "direct"},
    "alltoallv": {"scattered": "direct"},
    "reduce_scatter_block": {"recursive_halving": "recursive_halving"},
    "reduce_scatter": {"recursive_halving": "recursive_halving"},
}
# Compositions, and what MPICH does where they do not apply: on one host what goes through its memory, else all at once.
COMPOSITIONS = {
    "two_level": ("two_level", "node_only", "flat"),
    "slices": ("slices", "node_only", "flat"),
    "node_only": ("node_only", "flat"),
    "flat": ("flat",),
}
ON_HOSTS = {
    "two_level": ("two_level by shm and mpi",),
    "slices": ("slices by shm and mpi",),
    "node_only": ("node_only by shm",),
    "flat": ("mpi", "flat by mpi"),  # its own, in programs that call it
}

UNASKED = {
    "is_node_consecutive": "how ranks are numbered over hosts is no condition",
    "is_multi_threaded": "whether ranks have several threads is no condition",
    "per_proc_msg_size": "it is no condition",
}
"""Predicates that rules cannot express, and why."""

Range = tuple[int, int]
Condition = Range | bool | frozenset[str]
Conditions = Mapping[str, Condition]  # by key of a rule; all are to hold


@dataclass
class Node:
    """A key of the tree and what is under it."""

    key: str
    line: int
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class ImportedRule:
    """An entry of the file. `line` is the leaf's in the tree."""

    conditions: Conditions
    specs: tuple[str, ...]
    why: str
    line: int


@dataclass(frozen=True)
class LeftOut:
    """A branch, or a fact about one, that has no rule."""

    path: str
    line: int
    why: str
    order: bool = False  # calls of this branch take rules that follow, which they do not in MPICH

    def __str__(self) -> str:
        follows = "; calls of this branch take the rules that follow" if self.order else ""
        return f"line {self.line}: {self.path}: {self.why}{follows}"


@dataclass(frozen=True)
class Imported:
    """The rules of a tree and what was left out, in the order of the tree."""

    entries: tuple[ImportedRule | LeftOut, ...]
    notes: tuple[str, ...] = ()

    @property
    def rules(self) -> list[ImportedRule]:
        return [entry for entry in self.entries if isinstance(entry, ImportedRule)]

    @property
    def left_out(self) -> list[LeftOut]:
        return [entry for entry in self.entries if isinstance(entry, LeftOut)]


# --- the tree -----------------------------------------------------------------------------------------------------------


class TreeReader:
    """Objects in objects, with the lines of their keys."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.at = text, source, 0

    def read(self) -> Node:
        """The tree under a root without a key. Raises FileFormatError that names the line."""
        root = Node("", 1)
        self._object(root, 0)
        self._blank()
        if self.at < len(self.text):
            self.fail("a tree is one object, and something stands behind it")
        return root

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        raise FileFormatError(f"{self.source}, line {self._line(self.at if at is None else at)}: {what}")

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def _blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def _next(self) -> str:
        self._blank()
        return self.text[self.at : self.at + 1]

    def _object(self, into: Node, depth: int) -> None:
        if depth > MOST_DEEP:
            self.fail(f"more than {MOST_DEEP} predicates within each other")
        if self._next() != "{":
            self.fail(
                f"an object in braces is expected{_of(into)}, not {shown(self.text[self.at : self.at + 12]) or 'the end'}"
            )
        self.at += 1
        lines: dict[str, int] = {}
        while self._next() != "}":
            if lines:
                if self._next() != ",":
                    self.fail("a comma or a closing brace is expected")
                self.at += 1
                self._blank()
            if self._next() != '"':
                self.fail("a key in double quotes is expected")
            begin = self.at
            try:
                key, self.at = scanstring(self.text, begin + 1)
            except JSONDecodeError as error:
                self.fail(error.msg, begin)
            line = self._line(begin)
            if key in lines:
                self.fail(f"{shown(key)!r} was said in line {lines[key]} already", begin)
            lines[key] = line
            if self._next() != ":":
                self.fail(f"a colon is expected behind {shown(key)!r}")
            self.at += 1
            child = Node(key, line)
            self._object(child, depth + 1)
            into.children.append(child)
        self.at += 1


def _of(node: Node) -> str:
    return f" for {shown(node.key)!r}" if node.key else ""


# --- predicates ---------------------------------------------------------------------------------------------------------

NO_INTER = "jali has no intercommunicators"


class Never(str):
    """Why a predicate is true for no call of jali's."""


ALWAYS: list[Conditions] = [{}]
NEVER: list[Conditions] = []
Answer = list[Conditions] | str
"""Alternatives, of which one is to hold; or why rules cannot express it."""


def _number(text: str, at_most: bool) -> Range:
    return (0, int(text) if at_most else int(text) - 1)


def _in_range(key: str, bounds: Range) -> list[Conditions]:
    return [{key: bounds}] if bounds[0] <= bounds[1] else NEVER


def _size(name: str, collective: str) -> str | None:
    """The condition for this size of a collective; none where MPICH has no such size."""
    if name == "avg_msg_size":
        return "bytes" if collective in WHOLE else "part" if collective == "alltoall" else None
    if collective in WHOLE:
        return "total"
    return "bytes" if collective in PARTS or collective == "alltoall" else None


def _flag(name: str, yes: bool, collective: str) -> Answer:
    """Of a predicate that is yes or no."""
    user = frozenset({"user"})
    built_in = frozenset(OPERATIONS)
    if name == "is_sendbuf_inplace":
        return "a broadcast has one buffer" if collective == "bcast" else [{"in_place": yes}]
    if name == "is_block_regular":
        return [{"even": yes}]
    if collective not in REDUCING:
        return f"{collective} combines nothing"
    if name == "is_op_built_in":
        return [{"operation": built_in if yes else user}]
    if yes:  # what need not commute are operations of the user, where the order of ranks is kept
        return [{"operation": built_in}, {"operation": user, "reproducible": False}]
    return [{"operation": user, "reproducible": True}]


FLAGS = ("is_commutative", "is_op_built_in", "is_sendbuf_inplace", "is_block_regular", *UNASKED)
KNOWN = (
    "collective=, comm_type=intra or inter, comm_size<=N, <N, =pow2, =node_comm_size or =any, comm_hierarchy=, comm_avg_ppn<=N, <N or "
    "=any, avg_msg_size and total_msg_size <=N, <N or =any, count<=N, <N, <pow2 or =any, is_commutative, is_op_built_in, "
    "is_sendbuf_inplace, is_block_regular, is_node_consecutive and is_multi_threaded =yes, =no or =any, composition= and algorithm="
)


class Predicates:
    """What keys mean as conditions."""

    def __init__(self, fail: Callable[[Node, str], NoReturn], assumed: Mapping[str, str]) -> None:
        self.fail, self.assumed = fail, assumed

    def answer(self, node: Node, collective: str) -> Answer:
        """Raises FileFormatError for a key that is not a predicate."""
        key = node.key
        if key == "any":
            return ALWAYS
        found = re.fullmatch(r"([a-z_]+)(<=|<|=)(.*)", key)
        if found is None:
            self.fail(node, f"{shown(key)!r} is no predicate; there are {KNOWN}")
        name, sign, value = found.groups()
        if name in self.assumed:
            return self._assumed(node, name, sign, value)
        if (
            sign == "="
            and value == "any"
            and (name in FLAGS or name in SIZES or name in ("comm_size", "comm_hierarchy", "comm_avg_ppn"))
        ):
            return ALWAYS
        if name == "comm_type" and sign == "=" and value in ("intra", "inter"):
            return ALWAYS if value == "intra" else Never(NO_INTER)
        if name == "comm_hierarchy" and sign == "=" and value in HIERARCHIES:
            if value == "parent":  # some host has several of the ranks
                return [{"ranks_per_host": (2, ENDLESS)}]
            return Never(f"a communicator of the kind {value} is MPICH's own")
        if name == "comm_size" and sign == "=" and value in ("pow2", "node_comm_size"):
            return [{"power_of_two": True}] if value == "pow2" else [{"hosts": (1, 1)}]
        power = name == "count" and sign == "<" and value == "pow2"
        is_flag = name in FLAGS and name not in SIZES and sign == "=" and value in ("yes", "no")
        is_bound = (
            name in (*SIZES, "comm_size", "comm_avg_ppn")
            and sign != "="
            and re.fullmatch(r"[0-9]{1,18}", value)
        )
        if not (power or is_flag or is_bound):
            self.fail(node, f"{shown(key)!r} is no predicate; there are {KNOWN}")
        if name in UNASKED:
            return UNASKED[name]
        if not collective and name in (*SIZES, *FLAGS):
            return "it is asked before collective=, on which its meaning depends"
        if name == "count" and collective not in COUNTED:
            return f"MPICH counts no elements of {collective}"
        if power:
            return [{"few_elements": True}]
        if is_flag:
            return _flag(name, value == "yes", collective)
        return self._bounded(name, _number(value, sign == "<="), collective)

    def _bounded(self, name: str, bounds: Range, collective: str) -> Answer:
        if name == "comm_size":
            return _in_range("ranks", bounds)
        if name == "comm_avg_ppn":
            return _in_range("ranks_per_host", bounds)
        if name == "count":
            return _in_range("elements", bounds)
        key = _size(name, collective)
        return (
            f"MPICH has no {name} of {collective} that all ranks know"
            if key is None
            else _in_range(key, bounds)
        )

    def _assumed(self, node: Node, name: str, sign: str, value: str) -> Answer:
        if sign != "=" or value not in ("yes", "no", "any"):
            self.fail(node, f"{shown(node.key)!r} is no predicate; there are {KNOWN}")
        return ALWAYS if value in ("any", self.assumed[name]) else NEVER


NOTES = {
    "comm_avg_ppn": "comm_avg_ppn is asked as ranks_per_host, the most of a host: the same where hosts have as many ranks",
    "comm_hierarchy": 'comm_hierarchy=parent is asked as ranks_per_host = "2..": some host has several ranks',
}
SIZES = ("avg_msg_size", "total_msg_size", "per_proc_msg_size", "count")
HIERARCHIES = ("parent", "flat", "node", "node_roots", "multi_leads")


def _both(a: Conditions, b: Conditions) -> Conditions | None:
    """Conditions that hold where both do; none where nothing does."""
    found: dict[str, Condition] = dict(a)
    for key, other in b.items():
        mine = found.get(key)
        if mine is None:
            found[key] = other
        elif isinstance(mine, tuple) and isinstance(other, tuple):
            found[key] = bounds = (max(mine[0], other[0]), min(mine[1], other[1]))
            if bounds[0] > bounds[1]:
                return None
        elif isinstance(mine, frozenset) and isinstance(other, frozenset):
            found[key] = words = mine & other
            if not words:
                return None
        elif mine != other:
            return None
    return found


# --- rules --------------------------------------------------------------------------------------------------------------


class TreeImporter:
    """Walks a tree; `memory` is whose arrays the rules are for."""

    def __init__(self, source: str, memory: str, assumed: Mapping[str, str]) -> None:
        self.source, self.memory = source, memory
        self.predicates = Predicates(self.fail, assumed)
        self.notes: dict[str, None] = {}

    def fail(self, node: Node, what: str) -> NoReturn:
        raise FileFormatError(f"{self.source}, line {node.line}: {what}")

    def entries(self, root: Node) -> Iterator[ImportedRule | LeftOut]:
        yield from self._under(root, [{"memory": frozenset({self.memory})}], "", [])

    def _under(
        self, node: Node, alternatives: list[Conditions], collective: str, path: list[str]
    ) -> Iterator[ImportedRule | LeftOut]:
        """Rules for what is under a key, if one of the alternatives holds."""
        complete = False
        said: set[str] = set()
        for child in node.children:
            here = [*path, child.key]
            if complete:
                self._check(child, collective)
                inter = child.key == "comm_type=inter"
                why = NO_INTER if inter else "it is behind what is always true, and never reached"
                yield LeftOut(" > ".join(here), child.line, why)
                continue
            kind, _, name = child.key.partition("=")
            if kind in ("composition", "algorithm"):
                yield from self._leaf(child, kind, name, alternatives, collective, here)
                complete = True
                continue
            if kind == "collective":
                yield from self._collective(child, name, alternatives, collective, here)
                continue
            answer = self.predicates.answer(child, collective)
            if isinstance(answer, str):
                self._check(child, collective)
                yield LeftOut(" > ".join(here), child.line, answer, order=not isinstance(answer, Never))
                continue
            if answer is not ALWAYS and child.key.startswith(("comm_avg_ppn", "comm_hierarchy")):
                self.notes[NOTES[child.key.partition("<")[0].partition("=")[0]]] = None
            inside = [both for a in alternatives for b in answer if (both := _both(a, b)) is not None]
            if not inside:
                self._check(child, collective)
                yield LeftOut(" > ".join(here), child.line, "nothing is under it after what is asked above")
            else:
                yield from self._under(child, inside, collective, here)
            said.add(child.key)
            opposite = {"yes": "no", "no": "yes"}.get(name)
            complete = answer == ALWAYS or f"{kind}={opposite}" in said
        if not complete and collective:
            yield from self._fallback(node, alternatives, path)

    def _check(self, node: Node, collective: str) -> None:
        """What is left out is read all the same. Raises FileFormatError."""
        kind, _, name = node.key.partition("=")
        if kind in ("composition", "algorithm"):
            self._parameters(node)
            return
        if kind == "collective":
            collective = name
        else:
            self.predicates.answer(node, collective)
        for child in node.children:
            self._check(child, collective)

    def _collective(
        self, node: Node, name: str, alternatives: list[Conditions], before: str, path: list[str]
    ) -> Iterator[ImportedRule | LeftOut]:
        if before:
            self.fail(node, f"{shown(node.key)!r} within collective={before}")
        if name not in COLLECTIVES:
            if not re.fullmatch(r"i?(neighbor_)?[a-z]+(_[a-z]+)*", name):
                self.fail(node, f"{shown(name)!r} is no collective")
            self._check(node, name)
            does_not_wait = name.startswith("i") and name[1:] in COLLECTIVES
            why = (
                "calls that do not wait take the rules of those that do"
                if does_not_wait
                else "jali has no such collective"
            )
            yield LeftOut(" > ".join(path), node.line, why)
            return
        ours, even = COLLECTIVES[name]
        requested: dict[str, Condition] = {"collective": frozenset({ours})}
        if even is not None:
            requested["even"] = even
        inside = [both for a in alternatives if (both := _both(a, requested)) is not None]
        yield from self._under(node, inside, name, path)

    def _leaf(
        self,
        node: Node,
        kind: str,
        name: str,
        alternatives: list[Conditions],
        collective: str,
        path: list[str],
    ) -> Iterator[ImportedRule | LeftOut]:
        if not collective:
            self.fail(node, f"{shown(node.key)!r} is under no collective=")
        parameters = self._parameters(node)
        specs, why_not = self._ways(node, kind, name, collective, parameters)
        if not specs:
            yield LeftOut(" > ".join(path), node.line, why_not, order=True)
            return
        lost = [key for key in parameters if not key.startswith("ccl=")]
        if lost and specs != ("mpi",):
            self.notes[f"parameters of leaves have no counterpart: {', '.join(lost)} in line {node.line}"] = (
                None
            )
        for conditions in alternatives:
            yield ImportedRule(conditions, specs, f"MPICH: {name}, line {node.line}", node.line)

    def _parameters(self, node: Node) -> list[str]:
        for child in node.children:
            if child.children or not re.fullmatch(r"[A-Za-z_]+=[A-Za-z0-9_.-]+", child.key):
                self.fail(child, f"{shown(child.key)!r} is no parameter of a leaf, like k=2 or ccl=rccl")
        return [child.key for child in node.children]

    def _ways(
        self, node: Node, kind: str, name: str, collective: str, parameters: list[str]
    ) -> tuple[tuple[str, ...], str]:
        """jali's algorithms for a leaf; or none, and why."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            self.fail(
                node,
                f"{shown(name)!r} is no name of {'an algorithm' if kind == 'algorithm' else 'a composition'}",
            )
        short = re.sub(r"^.*?_(intra|inter|allcomm)_", "", name)
        if kind == "composition":
            return self._named(_composition(collective, short))
        if short == "ccl":
            return self._of_library(node, parameters)
        return self._named(ALGORITHMS[collective].get(short, "mpi") if name.startswith("MPIR_") else "mpi")

    def _named(self, spec: str) -> tuple[tuple[str, ...], str]:
        specs = COMPOSITIONS.get(spec, (spec,))
        if self.memory == "host":
            return tuple(name for one in specs for name in ON_HOSTS.get(one, (one,))), ""
        if spec == BY_MPI:
            return (), "arrays of devices are no business of the MPI library's own algorithms"
        return specs, ""

    def _of_library(self, node: Node, parameters: list[str]) -> tuple[tuple[str, ...], str]:
        requested = [key.partition("=")[2] for key in parameters if key.startswith("ccl=")]
        library = requested[0] if requested else "auto"
        if library not in ("auto", "nccl", "rccl"):
            self.fail(node, f"ccl={shown(library)}; there are auto, nccl and rccl")
        if self.memory == "host":
            return (), f"ccl={library} is for arrays of devices: import the tree with --memory device, too"
        return ("nccl", "rccl") if library == "auto" else (library,), ""

    def _fallback(
        self, node: Node, alternatives: list[Conditions], path: list[str]
    ) -> Iterator[ImportedRule | LeftOut]:
        """Where no leaf is found under a key, MPICH does not continue: its own defaults choose."""
        if self.memory != "host":
            why = "not all calls find a leaf here, and MPICH's defaults are none for devices"
            yield LeftOut(" > ".join(path), node.line, why, order=True)
            return
        for conditions in alternatives:
            yield ImportedRule(conditions, ("mpi",), f"MPICH: no leaf, line {node.line}", node.line)


def _composition(collective: str, letter: str) -> str:
    """Its plain name; the MPI library's own where MPICH has the letter for something else."""
    letter = letter.removeprefix("composition_")
    ours, even = COLLECTIVES[collective]
    if even is False or collective == "reduce_scatter_block":
        return "mpi"
    for name, of, algorithm, one_host in OTHER_NAMES:
        if (name, of) == (letter, ours):
            return algorithm or ("node_only" if one_host else "flat")
    return "mpi"


def import_tree(
    text: str, source: str, *, memory: str = "host", assumed: Mapping[str, str] | None = None
) -> Imported:
    """The rules of a tree for arrays in this memory ("host", "device" or a kind of devices).

    `assumed` has values of predicates that rules cannot express, like {"is_multi_threaded": "no"}. Raises
    FileFormatError, which names the line.
    """
    importer = TreeImporter(source, memory, assumed or {})
    entries = tuple(importer.entries(TreeReader(text, source).read()))
    return Imported(entries, tuple(importer.notes))


# --- the file -----------------------------------------------------------------------------------------------------------


def text_of(imported: Imported, comments: list[str]) -> str:
    """The file of rules; what was left out stands where its rules would."""
    lines = [f"# {comment}".rstrip() for comment in (*comments, *imported.notes)] + ["version = 1"]
    for entry in imported.entries:
        if isinstance(entry, LeftOut):
            lines += ["", f"# left out: {_plain(str(entry))}"]
            continue
        lines += ["", "[[rule]]", *(f"{key} = {_value(key, is_)}" for key, is_ in entry.conditions.items())]
        specs = ", ".join(f'"{spec}"' for spec in entry.specs)
        lines += [f"algorithms = [{specs}]", f'why = "{_plain(entry.why)}"']
    return "\n".join(lines) + "\n"


def _value(key: str, value: Condition) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):
        words = [f'"{word}"' for word in sorted(value)]
        return words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    least, most = value
    if least == most:
        return str(least)
    return f'"{least or ""}..{"" if most == ENDLESS else most}"'


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable() and c not in '"\\')
