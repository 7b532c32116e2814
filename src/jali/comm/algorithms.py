"""Ways of doing a standard collective, and the one that somebody asks for by name.

The table is core/collective/algorithms.cpp. Which way is taken where nobody names one is said by rules
(core/collective/rules.toml, and the file of JALI_COLLECTIVE_RULES before them), which ask about numbers that are equal on all ranks
only, so ranks agree without a word. JALI_COLLECTIVE=ring, or JALI_COLLECTIVE=all_reduce=ring,broadcast=binomial, or the argument
`algorithm`, overrules them.
"""

from __future__ import annotations

from jali import _core, settings
from jali._core import Algorithm
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
ALGORITHMS = tuple(_core.algorithms())

# For arrays in device memory there are those without hosts and pipelines in host memory, whose messages one of
# CARRIERS_OF_DEVICES carries, and who has collectives itself.
_OF_DEVICES = _core.collective_rows(libraries())
CARRIERS_OF_DEVICES = {name for name, _, carries, _ in _OF_DEVICES if carries}
ON_DEVICES = tuple(name for name, _, _, itself in _OF_DEVICES if itself)


def names(collective: str, on_device: bool = False) -> list[str]:
    """The ways of a collective on the host or on devices."""
    table = [row.name for row in ALGORITHMS if collective in row.collectives and row.on_devices >= on_device]
    return [*table, *ON_DEVICES] if on_device else table


def check(name: str, collective: str, on_device: bool = False) -> str:
    """The name, if it is a way of the collective. Raises ParameterError that lists those there are."""
    known = names(collective, on_device)
    if name not in known:
        where = " on devices" if on_device else ""
        raise ParameterError(
            f"there is no algorithm {name!r} for {collective}{where}; choose one of {', '.join(known)}"
        )
    return name


def algorithm(name: str, collective: str) -> Algorithm:
    """The row of that name for a collective. Raises ParameterError that lists those there are."""
    check(name, collective)
    return next(row for row in ALGORITHMS if row.name == name and collective in row.collectives)


def forced(collective: str, on_device: bool = False) -> str | None:
    """The algorithm that JALI_COLLECTIVE names for this collective, if it does.

    Those that exist only for the host, or only for devices, say nothing about the other.
    """
    here, elsewhere = (names(collective, there) for there in (on_device, not on_device))
    text = settings.current().collective
    for part in text.split(",") if text else ():
        where, _, name = part.strip().rpartition("=")
        if where == collective and (name in here or name not in elsewhere):
            return check(name, collective, on_device)
        if not where and name in here:
            return name
    return None
