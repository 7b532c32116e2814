"""Ways of doing a standard collective on processors, as rows of a table, and which one is taken when.

A row says what the planner is asked for: the form of the composition, the hierarchy, ring and pipeline. Names
are those of the field. The choice depends only on numbers that are equal on all ranks (collective, payload,
ranks on each host), so ranks agree without a word. JALI_COLLECTIVE=ring, or
JALI_COLLECTIVE=all_reduce=ring,broadcast=binomial, or the argument `algorithm`, overrules it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jali import _core, settings
from jali.errors import ParameterError
from jali.vendors import libraries

COLLECTIVES = (
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "scatter",
    "gather",
    "all_to_all",
)


@dataclass(frozen=True)
class Algorithm:
    """One way: `form` of the composition, `hierarchy` flat, binary (halves of halves) or hosts; `ring` over all ranks
    or hosts; `chunk` bytes of a chunk of the pipeline (0: all in one)."""

    name: str
    collectives: tuple[str, ...]
    form: str
    hierarchy: str
    summary: str
    ring: bool = False
    striped: bool = False
    chunk: int = 0


ALGORITHMS = (
    Algorithm(
        "direct",
        ("broadcast", "reduce", "all_gather", "reduce_scatter", "scatter", "gather", "all_to_all"),
        "single",
        "flat",
        "everything straight from its source to its destination",
    ),
    Algorithm(
        "one_shot",
        ("all_reduce",),
        "single",
        "flat",
        "every rank sends all it has to all others and combines",
    ),
    Algorithm(
        "two_step",
        ("all_reduce", "broadcast", "reduce"),
        "composed",
        "flat",
        "reduce-scatter or scatter, then all-gather or gather, each direct",
    ),
    Algorithm(
        "recursive_doubling",
        ("all_reduce", "all_gather"),
        "single",
        "binary",
        "partners at doubling distances exchange all they have",
    ),
    Algorithm(
        "recursive_halving",
        ("reduce_scatter",),
        "single",
        "binary",
        "partners at halving distances exchange the halves they are not responsible for",
    ),
    Algorithm(
        "halving_doubling",
        ("all_reduce",),
        "composed",
        "binary",
        "recursive halving, then recursive doubling (Rabenseifner)",
    ),
    Algorithm(
        "binomial",
        ("broadcast", "reduce", "gather", "scatter"),
        "single",
        "binary",
        "a binomial tree from or to the root",
    ),
    Algorithm(
        "bruck",
        ("all_to_all",),
        "single",
        "binary",
        "log2(ranks) rounds, in each of which messages are combined",
    ),
    Algorithm(
        "pairwise",
        ("all_to_all",),
        "pairwise",
        "flat",
        "one partner after the other: to the next rank and from the one before, then to the second next",
    ),
    Algorithm(
        "ring",
        ("all_gather", "reduce_scatter"),
        "single",
        "flat",
        "chunks go from neighbour to neighbour",
        ring=True,
    ),
    Algorithm(
        "ring",
        ("all_reduce",),
        "composed",
        "flat",
        "a ring reduce-scatter, then a ring all-gather",
        ring=True,
    ),
    Algorithm(
        "chain",
        ("broadcast", "reduce"),
        "single",
        "flat",
        "a pipeline from neighbour to neighbour",
        ring=True,
        chunk=1 << 18,
    ),
    Algorithm(
        "pipelined",
        ("all_reduce", "reduce"),
        "composed",
        "flat",
        "two steps in chunks: a chunk is gathered while the next is reduced",
        chunk=1 << 20,
    ),
    # inside hosts and between them
    Algorithm(
        "hosts",
        ("broadcast", "reduce", "all_gather", "reduce_scatter", "scatter", "gather", "all_to_all"),
        "single",
        "hosts",
        "between hosts once, then inside them; roots spread over the ranks of their host",
        striped=True,
        chunk=1 << 21,
    ),
    Algorithm(
        "hosts",
        ("all_reduce",),
        "composed",
        "hosts",
        "reduce-scatter and all-gather, inside hosts and between them, in chunks",
        chunk=1 << 21,
    ),
)
LARGEST_DEPTH = 32

# For arrays in device memory there are the rows without hosts and chunks, whose messages one of CARRIERS_OF_DEVICES carries, and
# what has collectives itself.
_OF_DEVICES = _core.collective_rows(libraries())
CARRIERS_OF_DEVICES = {name for name, _, carries, _ in _OF_DEVICES if carries}
ON_DEVICES = tuple(
    Algorithm(name, COLLECTIVES, "", "", words) for name, words, _, itself in _OF_DEVICES if itself
)
ROWS_OF_DEVICES = {row.name for row in ON_DEVICES}


def rows(collective: str, on_device: bool = False) -> list[Algorithm]:
    """The ways of a collective on the host or on devices."""
    table: tuple[Algorithm, ...] = ALGORITHMS
    if on_device:
        table = tuple(row for row in ALGORITHMS if row.hierarchy != "hosts" and row.name != "pipelined")
        table = table + ON_DEVICES
    return [row for row in table if collective in row.collectives]


def algorithm(name: str, collective: str, on_device: bool = False) -> Algorithm:
    """The row of that name for a collective. Raises ParameterError that lists those there are."""
    for row in rows(collective, on_device):
        if row.name == name:
            return row
    known = ", ".join(row.name for row in rows(collective, on_device))
    where = " on devices" if on_device else ""
    raise ParameterError(f"there is no algorithm {name!r} for {collective}{where}; choose one of {known}")


def forced(collective: str, on_device: bool = False) -> str | None:
    """The algorithm that JALI_COLLECTIVE names for this collective, if it does.

    Those that exist only for the host, or only for devices, say nothing about the other.
    """
    here = {row.name for row in rows(collective, on_device)}
    text = settings.current().collective
    for part in text.split(",") if text else ():
        where, _, name = part.strip().rpartition("=")
        if where == collective and (name in here or not rows_elsewhere(name, collective, on_device)):
            algorithm(name, collective, on_device)
            return name
        if not where and name in here:
            return name
    return None


def rows_elsewhere(name: str, collective: str, on_device: bool) -> bool:
    """Whether a collective has a way of this name on the host only, or on devices only: in the other place."""
    return any(row.name == name for row in rows(collective, not on_device))


def choose(collective: str, payload: int, ranks_of_hosts: Sequence[int]) -> str:
    """The algorithm for a payload of `payload` bytes (the largest buffer, p*d) on hosts with so many ranks each."""
    ranks, hosts = sum(ranks_of_hosts), len(ranks_of_hosts)
    if hosts > 1 and ranks > hosts and payload >= 1 << 16:
        return "hosts"
    # Measured on one host, 2 ranks on 2 cores and 4 ranks oversubscribed (`jali bench collectives`).
    if collective == "all_reduce":
        if ranks <= 2:
            return "one_shot" if payload <= 1 << 16 or ranks == 1 else "two_step"
        return "recursive_doubling" if payload <= 1 << 13 else "two_step"
    if collective == "broadcast":
        if ranks <= 4:
            return "direct"
        return "binomial" if payload <= 1 << 15 else "two_step"
    if collective == "reduce":
        if payload > 1 << 20:
            return "chain" if ranks == 2 else "two_step"
        return "direct" if ranks <= 4 else "binomial"
    if payload <= 1 << 12 and ranks > 8:
        return {
            "reduce_scatter": "recursive_halving",
            "all_gather": "recursive_doubling",
            "all_to_all": "bruck",
        }.get(collective, "binomial")
    return "direct"


# One neighbour after the other keeps links busier than all at once, where messages are long.
IN_TURNS = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_to_all": "pairwise",
}


def choose_on_device(collective: str, payload: int, ranks: int) -> str:
    """The algorithm for a payload of `payload` bytes on devices that reach each other's memory."""
    # Measured on two and four H200 of one host (`jali bench collectives --device cuda`).
    if ranks <= 2:
        return "direct" if collective != "all_reduce" else "one_shot" if payload <= 1 << 24 else "two_step"
    if payload >= 1 << 26 and collective in IN_TURNS:
        return IN_TURNS[collective]
    if collective == "all_reduce":
        # messages of two steps are short enough to be flagged for twice as long
        few = payload * ranks <= 1 << 18 or 1 << 18 < payload <= (1 << 22) // ranks
        return "one_shot" if few else "two_step"
    if collective in ("broadcast", "reduce") and payload > 1 << 17:
        return "chain"
    return "direct"


def depth_of(row: Algorithm, payload: int) -> int:
    """Chunks of the pipeline for a payload in bytes."""
    return max(1, min(LARGEST_DEPTH, payload // row.chunk)) if row.chunk else 1
