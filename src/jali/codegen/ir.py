"""The intermediate representation: a graph of matrix-level expressions and what is done with them.

A `SiteProgram` is a list of effects on `Node`s. What an operation means is in its descriptor (`jali.codegen.operation`);
does not depend on operations, fields, lattices or C++.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from jali.codegen.types import Type

BOOL, INT, REAL, COMPLEX = Type("bool"), Type("int"), Type("real"), Type("complex")


def _printable(name: str) -> str:
    """A name for generated text: what could end a line or a comment there becomes an underscore."""
    return re.sub(r"[^\w\[\]<>(),. ]", "_", name)


class Node:
    """One value: an operation on other nodes. Compared by identity; equal expressions are the same object."""

    __slots__ = (
        "antihermitian",
        "args",
        "attrs",
        "hermitian",
        "loops",
        "number",
        "op",
        "phase",
        "type",
        "where",
    )

    def __init__(self, number: int, op: str, args: tuple[Node, ...], attrs: tuple[Any, ...], type: Type):
        self.number = number
        self.op = op
        self.args = args
        self.attrs = attrs
        self.type = type
        self.where = ""
        self.antihermitian = False  # known to be traceless anti-Hermitian
        self.hermitian = False  # known to be Hermitian, or real and symmetric
        self.phase = False  # made of links of U(1): a 1 x 1 matrix that numbers of the site make a number
        self.loops: frozenset[int] = frozenset()  # repeat_until bodies this value varies in

    def keep_symmetry(self, *of: Node) -> None:
        """Its symmetry is known to be that which all of these values have."""
        self.antihermitian |= all([a.antihermitian for a in of])
        self.hermitian |= all([a.hermitian for a in of])

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
    """Effect: `value` goes into accumulator `slot`; `how`: `sum`, `max` or `min`. Where `label` is not -1 the accumulator has
    entries, and that `Label` selects one."""

    slot: int
    value: Node
    where: str
    how: str = "sum"
    name: str = ""
    label: int = -1

    @property
    def reduction(self) -> str:
        """What the core calls it, for each real number of the value (core/sum/site_reduction.hpp)."""
        return f"{self.how}_whole" if self.value.type.kind == "int" else self.how


@dataclass
class Label:
    """Effect: `value`, a whole number (or a real one that is), is label number `slot` of the program: which entry of accumulators this site
    is of."""

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
    """A field as the program sees it: how its elements are kept (`storage_formats.Stored`), and where it is read and written."""

    name: str
    storage: Any
    reads: dict[tuple[int, ...], str] = field(default_factory=dict)  # offset -> first line that reads there
    writes: dict[tuple[int, ...], str] = field(default_factory=dict)
    reads_after: dict[tuple[int, ...], str] = field(
        default_factory=dict
    )  # those below a write at another offset
    ratio: Any = None  # of its lattice to the loop's (`storage_formats.Ratio`); offsets are its lattice's
    batch: int = 0  # its members at each site; 0: it has none
    factors: tuple[complex | None, ...] = ()  # of its boundary, direction by direction; None: it is open

    def __post_init__(self) -> None:
        self.name = _printable(self.name)

    @property
    def element(self) -> Any:
        """Its element type."""
        return self.storage.element


@dataclass
class SiteProgram:
    """A traced site function: what it computes at one site."""

    name: str
    ndim: int
    precision: str
    fields: list[FieldSlot]
    scalars: list[tuple[str, Type]]
    randoms: list[str]
    effects: list[Any]  # Store, Sum, Label or Output, in source order
    sums: list[Type]  # of accumulators
    # The kernel runs over the sites that are written: what it does at an offset o, the user's function does at o + `shift`.
    shift: tuple[int, ...] = ()
    loops: list[Any] = field(default_factory=list)
    outputs: int = 0  # reals per position that Output effects write
    batch: int = 0  # the effects are those of one member of a batch of so many; 0: of none
    # offsets that arguments decide: the text does not name them, so that others have the same
    given: frozenset[tuple[int, ...]] = frozenset()
    items: tuple[Any, ...] = ()  # halo items that are received
    rewrites: tuple[str, ...] = ()  # what passes have done

    def __post_init__(self) -> None:
        self.name = _printable(self.name)
        self.shift = self.shift or (0,) * self.ndim
        self.scalars = [(_printable(name), type) for name, type in self.scalars]
        self.randoms = [_printable(name) for name in self.randoms]

    @property
    def terms(self) -> list[Sum]:
        """What a site contributes, in the order of accumulators."""
        return [effect for effect in self.effects if isinstance(effect, Sum)]

    @property
    def reductions(self) -> list[str]:
        """What becomes of each number that a site contributes; as the core calls it."""
        return [term.reduction for term in self.terms for _ in range(term.value.type.reals)]

    @property
    def labelled(self) -> dict[str, int]:
        """Accumulators that have entries: their names and slots."""
        return {term.name: term.slot for term in self.terms if term.label >= 0}

    def offset_of_user(self, offset: tuple[int, ...]) -> tuple[int, ...]:
        """An offset as the user's function has it."""
        return tuple(o + s for o, s in zip(offset, self.shift, strict=True))

    def location(self, offset: tuple[int, ...]) -> str:
        """An offset for a kernel's text: kernels that differ in what arguments decide have one text."""
        return "an offset that arguments decide" if offset in self.given else offset_text(offset)


def offset_text(offset: tuple[int, ...]) -> str:
    """An offset as the user wrote it: `X + e0 - 2e3`."""
    text = "X"
    for axis, n in enumerate(offset):
        if n:
            text += f" {'+' if n > 0 else '-'} {abs(n) if abs(n) != 1 else ''}e{axis}"
    return text
