"""Compositions: any collective in three primitives.

A composition names buffers and lists, step by step, the movements of their pieces: a *multicast* sends a
piece of its root to leaves, a *reduction* combines a piece of its sources at its root, a *fence* begins the
next step. Primitives of one step run in parallel. All ranks make the same composition; `evaluate` defines its
result, a plan its execution. Example, an all-reduce of `n` elements over `p` ranks:

    c = Composition(ranks=p, dtype="float32")
    send, recv = c.buffer("send", n, parts=p), c.buffer("recv", n, parts=p, input=False)
    for i in range(p):
        c.reduce(send[i], recv[i], sources=ALL, root=i, op="sum")
    c.fence()
    for i in range(p):
        c.multicast(recv[i], recv[i], root=i, leaves=OTHERS)

Nothing here moves data between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jali import _core
from jali.amounts import counted
from jali.comm import validation
from jali.comm.elements import element_name
from jali.errors import PlanError
from jali.files import name_shown, value_shown

if TYPE_CHECKING:
    from jali.planner.machine import Machine
    from jali.planner.plan import Plan

ALL = "all"
"""All ranks, the root among them."""

OTHERS = "others"
"""All ranks but the root."""

NO_NAMES = ("communicator", "stream")
"""Of buffers: keywords of the calls that take their arrays by name."""

MOST_PARTS = 1 << 24
"""Of a buffer; each has its place in a list."""

Ranks = str | int | Iterable[int]
RankNumbers = str | int | list[int]
Operation = str | Callable[[Any, Any], Any]
Counts = int | Sequence[int]


@dataclass(frozen=True)
class Piece:
    """A run of elements of a buffer, on the rank that a primitive names."""

    buffer: Buffer
    offset: int
    count: int

    def __repr__(self) -> str:
        return f"{self.buffer.name}[{self.offset}:{self.offset + self.count}]"


class Buffer:
    """A named buffer of a composition. Made by `Composition.buffer`.

    `buffer[i]` is part i and `buffer[i:j]` the parts from i up to j as one piece; without parts, indices
    count elements. The buffer itself, where a piece is expected, stands for all of it.
    """

    def __init__(
        self, composition: Composition, number: int, name: str, offsets: Sequence[int] | None
    ) -> None:
        self.composition = composition
        self.number = number
        self.name = name
        self._offsets = offsets  # where parts begin, and the end of the last

    def __repr__(self) -> str:
        return f"<buffer {self.name}>"

    def __len__(self) -> int:
        """The number of parts; of elements, where there are none."""
        if self._offsets is not None:
            return len(self._offsets) - 1
        counts = self.counts
        if len(set(counts)) > 1:
            raise PlanError(
                f"buffer '{self.name}' has no parts and {min(counts)} to {max(counts)} elements on different "
                "ranks, so it has no length of its own; use count(rank)"
            )
        return counts[0]

    def __getitem__(self, key: int | slice) -> Piece:
        if isinstance(key, slice):
            if key.step not in (None, 1):
                raise PlanError(f"{self.name}[::{key.step}]: a piece is a run of parts without gaps")
            start, stop = (None if at is None else self._index(at) for at in (key.start, key.stop))
            if self._offsets is None and stop is not None and stop >= 0 and (start or 0) >= 0:
                begin, end = start or 0, stop  # the core knows the sizes on each rank
            else:
                begin, end, _ = slice(start, stop).indices(len(self))
            if end < begin:
                raise PlanError(f"{self.name}[{start}:{stop}] ends before it begins")
        else:
            begin = self._index(key)
            parts = len(self) if self._offsets is not None or begin < 0 else begin + 1
            if not -parts <= begin < parts:
                raise PlanError(f"{self.name}[{key}] does not exist; '{self.name}' has {parts} parts")
            begin %= parts
            end = begin + 1
        if self._offsets is not None:
            begin, end = self._offsets[begin], self._offsets[end]
        return Piece(self, begin, end - begin)

    def _index(self, value: int) -> int:
        return validation.whole(f"an index of buffer '{self.name}'", value, 62)

    @property
    def counts(self) -> list[int]:
        """Elements, one number if all ranks have as many, else one per rank."""
        return self.composition.core.buffers[self.number][1]

    def count(self, rank: int) -> int:
        """Elements on this rank."""
        rank, counts = self.composition._rank(rank), self.counts
        return counts[0] if len(counts) == 1 else counts[rank]


class Composition:
    """A collective over `ranks` ranks, of elements of one type.

    `dtype` is anything NumPy takes for integers, floats and complex numbers of usual sizes, or a name of the
    core ("fp16", "bf16", "fp32", ...). Raises `PlanError` for anything that makes no sense.
    """

    def __init__(self, ranks: int, dtype: npt.DTypeLike = "float64") -> None:
        self.collective: str | None = None  # which of the standard ones
        self.commutes = True  # whether operations do, so that contributions may be combined in any order
        self._take(_core.Composition(validation.whole("the number of ranks", ranks), element_name(dtype)))

    def _take(self, core: _core.Composition) -> None:
        self.core = core
        self._buffers = {
            name: Buffer(self, number, name, None) for number, (name, _, _) in enumerate(core.buffers)
        }

    @classmethod
    def standard(
        cls,
        collective: str,
        *,
        ranks: int,
        count: Counts,
        dtype: npt.DTypeLike = "float64",
        form: str | None = None,
        root: int = 0,
        op: Operation = "sum",
        commutative: bool = True,
        in_place: bool = False,
    ) -> Composition:
        """One of the eight standard collectives, over buffers "send" and "recv" (in place: "data").

        `collective`: broadcast, reduce, all_gather, reduce_scatter, all_reduce, scatter, gather, all_to_all
        (dashes do as well). `count`, in elements: of the whole vector (broadcast, reduce, all_reduce), of
        each rank's chunk (scatter, gather, all_gather, reduce_scatter), or of each message (all_to_all); a
        sequence gives one per rank, for all_to_all that from rank i to rank j at i * ranks + j.

        `form`: "single" step, "composed" of two standard collectives as in Table 2 of the HiCCL paper,
        "rooted" (all_reduce: broadcast after reduce), "pairwise" (all_to_all: a step for each distance
        between ranks). By default all_reduce is composed, all others are single. In place, "data" is the
        whole vector, or all chunks, one's own at its place; for scatter and gather only the root has all,
        others have theirs alone. `op` and `commutative` as in `reduce`.
        """
        name = name_shown(collective).replace("-", "_")
        made = cls.__new__(cls)
        made.collective, made.commutes = name, validation.flag("commutative", commutative)
        made._take(
            _core.standard_composition(
                validation.whole("the number of ranks", ranks),
                name,
                ("composed" if name == "all_reduce" else "single") if form is None else name_shown(form),
                element_name(dtype),
                _integers(count),
                root=validation.whole("root", root),
                operation="user" if callable(op) else name_shown(op),
                user=op if callable(op) else None,
                in_place=validation.flag("in_place", in_place),
            )
        )
        return made

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.core.ranks

    @property
    def element(self) -> str:
        """The core's name of the element type."""
        return self.core.type

    @property
    def buffers(self) -> dict[str, Buffer]:
        """All buffers by name, in the order in which a plan takes their arrays."""
        return dict(self._buffers)

    def __repr__(self) -> str:
        steps = len(self.core.steps)
        return f"<composition of {counted(self.ranks, 'rank')}, {self.core.primitives} primitives in {steps} steps>"

    def buffer(
        self, name: str, count: Counts | None = None, *, parts: Counts | None = None, input: bool = True
    ) -> Buffer:
        """Add a buffer of `count` elements: one number, or one per rank.

        `parts` divides it for indexing: into that many near-equal parts, or into parts of these sizes, which
        then also give the count if it is left out. A buffer that is no `input` holds nothing until a
        primitive writes it.
        """
        if not isinstance(name, str):
            raise PlanError(f"the name of a buffer is a text, not {value_shown(name)}")
        if name != name_shown(name):
            raise PlanError(
                f"the name of a buffer is a text of at most 80 characters on a line, not {value_shown(name)}"
            )
        if name in NO_NAMES:
            raise PlanError(
                f"a buffer has another name than {' and '.join(NO_NAMES)}, which say how a plan runs"
            )
        if count is None:
            if parts is None or not validation.several(parts):
                raise PlanError(f"buffer '{name}' needs a count of elements, or the sizes of its parts")
            count = sum(_integers(parts))
        counts = _integers(count)
        offsets: list[int] | None = None
        if parts is not None and not validation.several(parts):
            pieces = validation.whole(f"the number of parts of buffer '{name}'", parts)
            if not 1 <= pieces <= MOST_PARTS:
                raise PlanError(
                    f"buffer '{name}' in {pieces} parts; it needs at least one, and {MOST_PARTS} are the most"
                )
            offsets = _core.near_equal_offsets(max(counts, default=0), pieces)
        elif parts is not None:
            sizes = _integers(parts)
            if min(sizes, default=0) < 0 or sum(sizes) > max(counts, default=0):
                raise PlanError(
                    f"parts of buffer '{name}' have {sizes} elements, together {sum(sizes)}; "
                    f"it has {max(counts, default=0)}"
                )
            offsets = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
        number = self.core.add_buffer(name, counts, validation.flag("input", input))
        made = self._buffers[name] = Buffer(self, number, name, offsets)
        return made

    def multicast(
        self, source: Piece | Buffer, target: Piece | Buffer, *, root: int, leaves: Ranks = ALL
    ) -> None:
        """Send `source` of the root to `target` of every leaf: `ALL`, `OTHERS`, one rank or several.

        The root may be a leaf: it copies to itself, or keeps what it has if both pieces are the same.
        """
        root, others = self._rank(root, "root"), _ranks(leaves)
        begin, end = self._position("multicast", source), self._position("multicast", target)
        count = self._agree("multicast", source, target, root, others)
        self.core.multicast(begin, end, count, root, others)

    def reduce(
        self,
        source: Piece | Buffer,
        target: Piece | Buffer,
        *,
        sources: Ranks = ALL,
        root: int,
        op: Operation = "sum",
        commutative: bool = True,
    ) -> None:
        """Combine `source` of all `sources` into `target` of the root, which need not be one of them.

        `op`: sum, prod, min, max, avg, logical_and, logical_or, logical_xor, bit_and, bit_or, bit_xor, or a
        function `f(a, b)` of two arrays that returns the combination, or None after updating `b` in place; it
        has to be associative. With `commutative=False` f(b, a) may be another: then plans of this composition are
        `reproducible`, which combine in the order of ranks, `a` being of earlier ones. It must not keep the arrays
        (`a` is read-only; without ml_dtypes, bf16 comes as its bits, uint16).
        """
        self.commutes &= validation.flag("commutative", commutative)
        root, others = self._rank(root, "root"), _ranks(sources)
        begin, end = self._position("reduce", source), self._position("reduce", target)
        count = self._agree("reduce", target, source, root, others)
        name, user = ("user", op) if callable(op) else (name_shown(op), None)
        self.core.reduce(begin, end, count, others, root, name, user)

    def fence(self) -> None:
        """Begin the next step: what follows sees what was written before. No barrier."""
        self.core.fence()

    def check(self) -> None:
        """Raise `PlanError` if primitives of a step touch what one of them writes, or read undefined data."""
        self.core.check()

    def evaluate(self, arrays: Sequence[Mapping[str, npt.NDArray[Any]] | Sequence[npt.NDArray[Any]]]) -> None:
        """Do it directly on the arrays of all ranks, in place: what every plan is judged by.

        `arrays[rank]` holds one contiguous array of the right size and type per buffer, by name or in order
        (bf16 may be uint16). Buffers without elements on a rank may be left out by name.
        """
        memory: list[list[npt.NDArray[Any]]] = []
        if not isinstance(arrays, Iterable) or not all(isinstance(of_rank, Iterable) for of_rank in arrays):
            raise PlanError(
                f"evaluate takes the arrays of every rank, by name or in order, not {value_shown(arrays)}"
            )
        for of_rank in arrays:
            if isinstance(of_rank, Mapping):
                unknown = sorted(set(of_rank) - set(self._buffers))
                if unknown:
                    raise PlanError(
                        f"no buffer is named {', '.join(unknown)}; there are {', '.join(self._buffers)}"
                    )
                given = [of_rank.get(name) for name in self._buffers]
            else:
                given = list(of_rank)
            memory.append([self._as_bytes(array) for array in given])
        self.core.evaluate(memory)

    def plan(
        self,
        machine: Machine | str | Path | None = None,
        *,
        hierarchy: Any = None,
        libraries: Sequence[str] | str | None = None,
        stripe: int | None = None,
        ring: int | None = None,
        depth: int | None = None,
        stripe_weights: Sequence[float] = (),
        reproducible: bool = False,
        scratch_limit: int | None = None,
        pack_below: int = 65536,
    ) -> Plan:
        """A plan for this composition. With a machine and no further parameters, the best one by the model.

        - `machine`: name of a machine, path of its TOML file, or a `Machine`; its first ranks are used.
        - `hierarchy`: factors of the number of ranks, outermost first, like (4, 4); or the sizes of groups, level
          by level, like [[3, 5]] for uneven nodes; or "flat", "binary", a `_core.Hierarchy` (with an order of ranks).
        - `libraries`: the libraries of messages, one name per level of the hierarchy or one for all; by default any.
        - `stripe`: ranks over which a root spreads a piece; `stripe_weights`: the share of each rank.
        - `ring`: nodes of a ring (1: none). `depth`: chunks of the pipeline.
        - `reproducible`: combine in the order of ranks: the same bits with any parameters. So are all plans where an operation does not
          commute.
        - `scratch_limit`: bytes per rank that the plan may need beside the buffers.
        - `pack_below`: pieces below this many bytes travel together.

        Raises `PlanError` for compositions and parameters that make no sense, by name.
        """
        from jali.planner.planning import make_plan

        return make_plan(
            self,
            machine,
            hierarchy=hierarchy,
            libraries=libraries,
            stripe=stripe,
            ring=ring,
            depth=depth,
            stripe_weights=stripe_weights,
            reproducible=reproducible,
            scratch_limit=scratch_limit,
            pack_below=pack_below,
            collective=self.collective,
        )

    def describe(self) -> str:
        """What it does, a line for each buffer and primitive (the first sixteen of every step)."""
        return self.core.describe()

    def _as_bytes(self, given: npt.NDArray[Any] | None) -> npt.NDArray[np.uint8]:
        """The same memory; types without support in NumPy's buffer protocol are accepted as well."""
        if given is None:
            return np.empty(0, np.uint8)
        array = np.asarray(given)
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise PlanError("arrays for evaluate must be contiguous and writable")
        if element_name(array.dtype) not in (
            self.element,
            "uint16" if self.element == "bf16" else self.element,
        ):
            raise PlanError(f"an array of {array.dtype} for a composition of {self.element}")
        return array.reshape(-1).view(np.uint8)

    def _position(self, what: str, piece: Piece | Buffer) -> tuple[int, int]:
        if not isinstance(piece, Piece | Buffer):
            raise PlanError(
                f"{what} takes buffers and pieces of them, like send[3], not {value_shown(piece)}"
            )
        buffer = piece.buffer if isinstance(piece, Piece) else piece
        if buffer.composition is not self:
            raise PlanError(f"buffer '{buffer.name}' belongs to another composition")
        return buffer.number, piece.offset if isinstance(piece, Piece) else 0

    def _rank(self, number: int, called: str = "rank") -> int:
        """The number of a rank, checked. Raises PlanError where there is none."""
        number = validation.whole(called, number)
        if not 0 <= number < self.ranks:
            raise PlanError(f"{called} {number} does not exist; ranks are 0 to {self.ranks - 1}")
        return number

    def _agree(
        self, what: str, at_root: Piece | Buffer, elsewhere: Piece | Buffer, root: int, ranks: RankNumbers
    ) -> int:
        """The number of elements, which both have: the one at the root, the other on `ranks`."""
        count = at_root.count if isinstance(at_root, Piece) else at_root.count(root)
        for rank, there in _counts_on(elsewhere, root, ranks):
            if there != count:
                where = "" if isinstance(elsewhere, Piece) else f" on rank {rank}"
                raise PlanError(
                    f"{what}: the {count} elements of {_called(at_root)} on rank {root} do not fit the {there} of "
                    f"{_called(elsewhere)}{where}; name pieces of as many elements"
                )
        return count


def _called(piece: Piece | Buffer) -> str:
    return repr(piece) if isinstance(piece, Piece) else piece.name


def _counts_on(piece: Piece | Buffer, root: int, ranks: RankNumbers) -> Iterable[tuple[int, int]]:
    """How many elements a piece has on these ranks, (rank, elements), once where it has as many on all; the core refuses
    ranks that do not exist."""
    if isinstance(piece, Piece):
        return [(root, piece.count)]
    counts = piece.counts
    if isinstance(ranks, str):
        named: Iterable[int] = (rank for rank in range(len(counts)) if ranks == ALL or rank != root)
    else:
        named = ranks if isinstance(ranks, list) else [ranks]
    if len(counts) == 1:
        first = root if isinstance(ranks, str) else min(named, default=root)
        return [(first, counts[0])]
    return [(rank, counts[rank]) for rank in named if 0 <= rank < len(counts)]


def _ranks(ranks: Ranks) -> RankNumbers:
    if isinstance(ranks, str):
        return name_shown(ranks)
    found = [validation.integer(rank) for rank in validation.each(ranks)]
    numbers = [validation.whole("rank", rank) for rank in found if rank is not None]
    if len(numbers) < len(found):
        raise PlanError(
            f"ranks are jali.planner.ALL, jali.planner.OTHERS, a rank or several, not {value_shown(ranks)}"
        )
    return numbers if validation.several(ranks) else numbers[0]


def _integers(counts: Counts) -> list[int]:
    numbers = [validation.integer(n) for n in validation.each(counts)]
    if any(n is None for n in numbers):
        raise PlanError(f"counts are integers, not {value_shown(counts)}")
    found = [n for n in numbers if n is not None]
    for n in found:
        if abs(n) >= 1 << 63:
            raise PlanError(f"{value_shown(n)} elements are more than 64 bits can number")
    return found
