"""What a field needs of its lattice: its type, and how it differs from another.

`Lattice` makes fields and fields refer to a lattice, so this module is below both.
"""

from __future__ import annotations

from jali.files import is_array, value_shown


class LatticeBase:
    """A `Lattice`, as fields see it."""

    extents: tuple[int, ...]


def what_differs(a: LatticeBase, b: LatticeBase) -> str:
    """How two lattices differ, for messages: often only in being two."""
    for what in ("extents", "grid", "communicator", "gpu", "_lanes", "halo_items", "halo_wire"):
        mine, theirs = getattr(a, what), getattr(b, what)
        if mine != theirs:
            return f"{_NAMES.get(what, what)} {mine} and {theirs} differ"
    return "they look equal, but are two lattices, made by two calls of Lattice(...): make one and use it for all fields"


def no_field(value: object) -> str:
    """What was given instead of a field, for messages, and for an array what makes a field of it."""
    makes = "; lattice.wrap(array) makes a field of an array, and f[...] = array sets the values of one"
    return value_shown(value) + makes * is_array(value)


_NAMES = {"grid": "rank grids", "communicator": "communicators", "gpu": "devices", "_lanes": "lanes"}
