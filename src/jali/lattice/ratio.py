"""Two lattices in one kernel: how coarse one is beside the other, and whether their sites belong together."""

from __future__ import annotations

import math
from typing import Any

from jali.codegen.storage_formats import Ratio
from jali.lattice.base import what_differs


def ratio_of(lattice: Any, other: Any) -> Ratio | None:
    """How coarse or fine `other` is beside the lattice of a loop; None where it is that lattice."""
    if other is lattice:
        return None
    pairs = list(zip(lattice.extents, other.extents, strict=True))
    return Ratio(tuple(max(1, n // m) for n, m in pairs), tuple(max(1, m // n) for n, m in pairs))


def why_not_together(lattice: Any, other: Any) -> str:
    """Why fields of the two cannot meet in a kernel, the same on all ranks; empty if they can."""
    if other is lattice:
        return ""
    differs = f"({what_differs(other, lattice)})"
    same = f"a site function runs on one lattice, beside lattices whose extents are multiples of its own or divide them {differs}"
    if other.extents == lattice.extents or other.ndim != lattice.ndim:
        return same
    if any(n % m and m % n for n, m in zip(lattice.extents, other.extents, strict=True)):
        return same
    if other.communicator is not lattice.communicator or other.gpu is not lattice.gpu:
        return f"they are not on the same ranks and devices {differs}"
    pair = (other.serial, lattice.serial)
    if pair not in lattice.aligned:
        lattice.aligned[pair] = aligned(lattice, other)
    if not lattice.aligned[pair]:
        return (
            f"ranks must own the same part of both (grids are {other.grid} and {lattice.grid}): "
            f"{how_to_share(lattice, other.extents)}, and make one of them by `like` of the other, such as lattice.like{other.extents}"
        )
    return ""


def how_to_share(lattice: Any, extents: tuple[int, ...]) -> str:
    """What lets each rank own the same part of a lattice and of one of other extents."""
    size = lattice.communicator.size
    found = _shared_grid(lattice.extents, extents, size)
    if found is None:
        return f"no grid of {size} ranks does that, since it divides the extents of the coarser one; use another number of ranks"
    return f"give {lattice} grid={found}, which divides the extents of the coarser one"


def _shared_grid(extents: tuple[int, ...], others: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """The grid of so many ranks that cuts two lattices at the same places and has the smallest boxes' surface; None: there is none."""
    choices: list[list[int]] = []
    for n, m in zip(extents, others, strict=True):
        coarser = min(n, m)
        choices.append([g for g in range(1, min(coarser, size) + 1) if n == m or coarser % g == 0])
    grids: list[tuple[int, ...]] = [()]
    for choice in choices:
        grids = [(*grid, g) for grid in grids for g in choice if size % math.prod((*grid, g)) == 0]
    fitting = [grid for grid in grids if math.prod(grid) == size]
    return min(fitting, key=lambda grid: sum(g / n for g, n in zip(grid, extents, strict=True)), default=None)


def aligned(lattice: Any, other: Any) -> bool:
    """Whether every rank's box of one is a multiple of its box of the other."""
    ratio = ratio_of(lattice, other)
    assert ratio is not None
    for rank in range(lattice.communicator.size):
        for of in ("origin", "extents"):
            here, there = getattr(lattice.partition, of)(rank), getattr(other.partition, of)(rank)
            if any(
                h * f != t * c for h, t, c, f in zip(here, there, ratio.coarser, ratio.finer, strict=True)
            ):
                return False
    return True
