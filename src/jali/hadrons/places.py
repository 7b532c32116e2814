"""Places and momenta: sites, time slices, plane waves, as sources and correlators take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jali
from jali.codegen.values import Value
from jali.errors import ParameterError
from jali.files import value_shown


def _whole(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def checked_site(extents: tuple[int, ...], site: Any) -> tuple[int, ...]:
    """A site of a lattice of these extents; the origin for None. Raises ParameterError."""
    if site is None:
        return (0,) * len(extents)
    found = _ordered(site)
    if len(found) != len(extents) or not all(
        _whole(x) and 0 <= x < size for x, size in zip(found, extents, strict=True)
    ):
        raise ParameterError(
            f"a site of a lattice {' x '.join(map(str, extents))} is {len(extents)} whole numbers from 0 to its extent less one, not {value_shown(site)}"
        )
    return tuple(int(x) for x in found)


def _ordered(values: Any) -> tuple[Any, ...]:
    """Values one after the other; none of what has no order."""
    if isinstance(values, set | frozenset | dict):
        return ()
    try:
        return tuple(values)
    except TypeError:
        return ()


def checked_time(extents: tuple[int, ...], time: Any) -> int:
    """A time slice. Raises ParameterError."""
    if not _whole(time) or not 0 <= time < extents[-1]:
        raise ParameterError(
            f"a time slice of a lattice {' x '.join(map(str, extents))} is a whole number from 0 to {extents[-1] - 1}, not {value_shown(time)}"
        )
    return int(time)


def checked_momentum(extents: tuple[int, ...], momentum: Any) -> tuple[int, ...]:
    """A momentum in units of 2 pi / L_k, one number for each direction of space; zero for None. Raises ParameterError."""
    if momentum is None:
        return (0,) * (len(extents) - 1)
    found = _ordered(momentum)
    if len(found) != len(extents) - 1 or not all(map(_whole, found)):
        raise ParameterError(
            f"a momentum is {len(extents) - 1} whole numbers, in units of 2 pi / L for each direction of space, not {value_shown(momentum)}"
        )
    for d, (p, size) in enumerate(zip(found, extents[:-1], strict=True)):
        if size == 1 and p:
            raise ParameterError(
                f"direction {d} has one site, so there is no momentum {p} in it; walls have that which wall_sink was given"
            )
    return tuple(int(p) for p in found)


def wave_of(extents: tuple[int, ...], momentum: Any) -> np.ndarray | None:
    """The wave vector of a momentum; None where it is zero."""
    p = checked_momentum(extents, momentum)
    if not any(k % size for k, size in zip(p, extents[:-1], strict=True)):
        return None
    return np.array([2 * math.pi * k / size for k, size in zip(p, extents[:-1], strict=True)])


def angle_at(X: Any, wave: Any, origin: Any) -> Value:
    """p (x - origin) at the site X, over the directions of space."""
    return sum(wave[k] * (X.coordinate(k) - origin[k]) for k in range(X.ndim - 1))


def times_wave(X: Any, wave: Any, origin: Any, value: Value) -> Value:
    """exp(-i p (x - origin)) times a value at the site X; the value itself where `wave` is None."""
    if wave is None:
        return value
    angle = angle_at(X, wave, origin)
    return jali.complex(jali.cos(angle), -jali.sin(angle)) * value


class Projected:
    """Sums over slices at several momenta: `values` is (momenta, T, ...), with the slice of the source first.

    `momenta` are in units of 2 pi / L, `origin` is the site of the source.
    """

    def __init__(self, values: np.ndarray, momenta: tuple[tuple[int, ...], ...], origin: tuple[int, ...]):
        self.values, self.momenta, self.origin = values, momenta, origin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.values.shape[1]} slices from {self.origin}, momenta {', '.join(map(str, self.momenta))})"

    def at(self, momentum: Sequence[int] | None) -> np.ndarray:
        """The values of one of the momenta, by default the first: (T, ...). Raises ParameterError for one that was not asked for."""
        if momentum is None:
            return self.values[0]
        try:
            p = tuple(momentum)
        except TypeError:
            p = ()
        if not all(map(_whole, p)) or p not in self.momenta:
            raise ParameterError(
                f"the momentum {value_shown(momentum)} was not asked for; there are {', '.join(map(str, self.momenta))}"
            )
        return self.values[self.momenta.index(p)]


def slices_from(values: np.ndarray, slice_: int, factor: complex) -> np.ndarray:
    """Values (momenta, T, ...) with the slice of the source first. `factor` is what they are multiplied by once around time, and so by it what is
    reached across the edge is as if the source were in the first slice."""
    found = np.roll(values, -slice_, axis=1)
    if slice_ and factor != 1:
        found[:, found.shape[1] - slice_ :] *= factor
    return found


def checked_momenta(extents: tuple[int, ...], momenta: Any) -> tuple[tuple[int, ...], ...]:
    """Several momenta; zero alone for None. Raises ParameterError."""
    try:
        given = [None] if momenta is None else list(momenta)
    except TypeError:
        raise ParameterError(
            f"momenta are a list of them, [(0, 0, 0), (1, 0, 0)], not {value_shown(momenta)}"
        ) from None
    if not given:
        raise ParameterError("a correlator has a momentum at least, and the list is empty")
    return tuple(checked_momentum(extents, p) for p in given)
