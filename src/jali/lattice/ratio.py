"""Two lattices in one kernel: how coarse one is beside the other, and whether their sites belong together."""

from __future__ import annotations

from typing import Any

from jali.codegen.formats import Ratio
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
        lattice.aligned[pair] = _aligned(lattice, other)
    if not lattice.aligned[pair]:
        return (
            "ranks must own the same part of both, so grid= is the same and divides the extents of the coarser one (grids are "
            f"{other.grid} and {lattice.grid})"
        )
    return ""


def _aligned(lattice: Any, other: Any) -> bool:
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
