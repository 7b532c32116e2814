"""`jali run --check N`: how N ranks would share a lattice, and what memory the one with most sites needs.

The layout of that rank is really made, with the neighbours that updates and measurements read, so what would
fail for N ranks fails here; fields are only counted. Nothing runs and no rank is started.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from jali import _core
from jali.amounts import counted
from jali.cli.markov_chain import group_order
from jali.cli.scalars import element_of
from jali.cli.schema import HMC, RunParameters
from jali.cli.terms import scalars_of
from jali.codegen import target
from jali.codegen.storage_formats import plain
from jali.codegen.types import SU, Algebra, Element, Matrix
from jali.errors import LayoutError
from jali.files import in_words, memory_here, value_shown

# While a file is written or read, the links exist as arrays in file order too, twice for a moment.
FILE_COPIES = 2

MOST_RANKS = 1 << 20


def check_layout(parameters: RunParameters, ranks: int) -> dict[str, Any]:
    """The layout for `ranks` ranks as plain numbers; memory in bytes per rank.

    Raises LayoutError if there is no such layout.
    """
    extents, precision = parameters.lattice.extents, parameters.run.precision
    if ranks > MOST_RANKS:
        raise LayoutError(
            f"--check {value_shown(ranks)}: no machine has so many ranks; give 1 to {MOST_RANKS}"
        )
    if min(extents) < 2:
        raise LayoutError(f"links can be updated on extents of 2 and more, not on {extents}")
    wanted = target.host().lanes(precision)
    grid = parameters.lattice.grid or tuple(_core.choose_grid(list(extents), ranks, wanted))
    if math.prod(grid) != ranks:
        raise LayoutError(
            f"lattice.grid = {list(grid)} is a grid of {counted(math.prod(grid), 'rank')}, not of {ranks}; leave it away "
            "(--set lattice.grid=[]) to let jali choose"
        )
    partition = _core.Partition(list(extents), list(grid))
    layout = _core.Layout(partition, 0, wanted)
    offsets = _offsets(len(extents), parameters.measure.flow)
    for offset in offsets:
        layout.neighbours(list(offset))
    n = group_order(parameters)

    def field(element: Element, ghosts: bool = True) -> int:
        blocks = layout.nblocks + (layout.ghost_blocks if ghosts else 0)
        return blocks * layout.lanes * plain(element, precision).site_bytes

    links = len(extents) * field(SU(n))
    scalars = {one["name"]: element_of(one, n) for one in parameters.hmc.scalars}
    memory = {
        "links": len(extents) * field(SU(n), ghosts=False),
        "halo": links - len(extents) * field(SU(n), ghosts=False),
        "scalars": sum(field(element) for element in scalars.values()),
        "measurements": field(Matrix(n)) if parameters.measure.polyakov else 0,
        "flow": 2 * links + len(extents) * field(Algebra(n)) if parameters.measure.flow else 0,
        "trajectories": _of_trajectories(parameters, field, n),
        "neighbour_tables": layout.nblocks * (4 * len(offsets) + 4 * len(extents) + 12),
        "checkpoint_buffers": FILE_COPIES
        * (
            len(extents) * field(SU(n), ghosts=False)
            + sum(field(element, ghosts=False) for element in scalars.values())
        ),
    }
    return {
        "ranks": ranks,
        "extents": list(extents),
        "group": parameters.gauge.group,
        "precision": precision,
        "grid": list(grid),
        "local_extents": {
            "largest": [-(-e // g) for e, g in zip(extents, grid, strict=True)],
            "smallest": [e // g for e, g in zip(extents, grid, strict=True)],
        },
        "lanes": {"used": layout.lanes, "of": wanted, "virtual_nodes": list(layout.virtual_nodes)},
        "halo_sites": layout.ghost_blocks * layout.lanes,
        "bytes_per_rank": {**memory, "total": sum(memory.values())},
        "memory_of_this_machine": memory_here(),
    }


def _of_trajectories(parameters: RunParameters, field: Callable[[Element], int], n: int) -> int:
    """Of each field that moves: momenta, forces where they are looked at, and a field to go back to. What smeared links take beside is not counted."""
    hmc, terms = parameters.hmc, parameters.hmc.terms
    if parameters.update.algorithm != HMC:
        return 0
    links = len(parameters.lattice.extents)
    of_links = sum("links" in term for term in terms) if terms else 1
    moving = [(links * field(SU(n)), links * field(Algebra(n)), of_links)] if of_links else []
    for one in hmc.scalars:
        size = field(element_of(one, n))
        moving.append((size, size, sum(one["name"] in scalars_of(term, hmc.scalars) for term in terms)))
    return sum(kept + momentum * (1 + (count if hmc.forces_every else 0)) for kept, momentum, count in moving)


def render_check(found: dict[str, Any]) -> str:
    """The result of `check_layout` as text."""
    largest, smallest = found["local_extents"]["largest"], found["local_extents"]["smallest"]
    local = _by(largest) if largest == smallest else f"{_by(largest)} at most, {_by(smallest)} at least"
    lanes, memory = found["lanes"], found["bytes_per_rank"]
    sites = math.prod(largest)
    total = memory["total"] * found["ranks"]
    here = found["memory_of_this_machine"]
    lines = [
        ("lattice", f"{_by(found['extents'])}, {found['group']}, {found['precision']}"),
        ("ranks", f"{found['ranks']} as a grid {_by(found['grid'])}"),
        ("local", f"{local} ({counted(sites, 'site')})"),
        ("lanes", f"{lanes['used']} of {lanes['of']} used, as virtual nodes {_by(lanes['virtual_nodes'])}"),
        (
            "halo",
            f"{counted(found['halo_sites'], 'site')}, {found['halo_sites'] / sites:.2g} of the local ones",
        ),
        (
            "memory",
            f"{in_words(memory['total'])} per rank, {in_words(total)} in all"
            + ("" if total <= here else f"; more than the {in_words(here)} of this machine"),
        ),
        (
            "",
            ", ".join(
                f"{n.replace('_', ' ')} {in_words(b)}" for n, b in memory.items() if n != "total" and b
            ),
        ),
    ]
    return "\n".join(f"{name:<10}{text}" for name, text in lines)


def _offsets(ndim: int, flow: bool) -> list[tuple[int, ...]]:
    """What is read by staples (neighbours, and diagonal ones of which one is behind), and by clover leaves."""

    def along(*steps: tuple[int, int]) -> tuple[int, ...]:
        return tuple(dict(steps).get(d, 0) for d in range(ndim))

    offsets = [along((mu, sign)) for mu in range(ndim) for sign in (1, -1)]
    signs = [(1, -1), (-1, 1)] + ([(-1, -1)] if flow else [])
    for mu, nu in itertools.combinations(range(ndim), 2):
        offsets += [along((mu, s), (nu, t)) for s, t in signs]
    return offsets


def _by(extents: list[int]) -> str:
    return " x ".join(map(str, extents))
