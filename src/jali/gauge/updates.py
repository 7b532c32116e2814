"""Sweeps: every link once by heat bath, overrelaxation or Metropolis, in an order that keeps the updates
independent.

Links of one direction on sites of one colour do not share a plaquette, so they are updated together. Even
extents need two colours, odd ones three. The weight is exp((beta/n) sum_p Re tr U_p).
"""

from __future__ import annotations

import functools
import math
import numbers
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError
from jali.gauge.field import GaugeField
from jali.gauge.heatbath import heat_bath_creutz, heat_bath_kennedy_pendleton, heat_bath_u1, needs_creutz
from jali.gauge.metropolis import metropolis
from jali.gauge.overrelaxation import overrelax, overrelax_u1
from jali.lattice import PARITIES, Colouring, Domain, Lattice, Random
from jali.lattice.checked import checked

# Heat bath and overrelaxation are written out for each of the n (n - 1) / 2 SU(2) subgroups.
LARGEST_WITH_SUBGROUPS = 12
LONG = 15.0  # seconds of compiling that are worth a warning


@checked
def sweep(U: GaugeField, beta: float, rng: Random, heatbath: int = 1, overrelaxation: int = 4) -> None:
    """Updates all links: `heatbath` heat-bath sweeps, then `overrelaxation` overrelaxation sweeps.

    Raises ParameterError for a negative number of them.
    """
    if heatbath < 0 or overrelaxation < 0:
        raise ParameterError(
            f"sweep: heatbath and overrelaxation are numbers of sweeps, 0 or more, not {heatbath} and {overrelaxation}"
        )
    for _ in range(heatbath):
        heat_bath_sweep(U, beta, rng)
    for _ in range(overrelaxation):
        overrelaxation_sweep(U)


@checked
def heat_bath_sweep(U: GaugeField, beta: float, rng: Random) -> None:
    """Draws every link once from its conditional distribution.

    Raises ParameterError for a negative beta, and for SU(n) with n above `LARGEST_WITH_SUBGROUPS`.
    """
    beta = _coupling(beta)
    n = U.n
    check_subgroups(n, U.lattice.communicator.rank == 0)
    kernel, parameter = heat_bath_u1, beta
    if n > 1 and needs_creutz(n, beta, U.lattice.ndim):
        kernel, parameter = heat_bath_creutz, beta / n
    elif n > 1:
        kernel, parameter = heat_bath_kennedy_pendleton, n / (2 * beta)
    for mu, colour in link_parts(U.lattice):
        kernel[colour](U, rng, parameter, mu)


@checked
def overrelaxation_sweep(U: GaugeField) -> None:
    """Reflects every link once; the action stays as it is.

    Raises ParameterError for SU(n) with n above `LARGEST_WITH_SUBGROUPS`.
    """
    check_subgroups(U.n, U.lattice.communicator.rank == 0)
    kernel = overrelax if U.n > 1 else overrelax_u1
    for mu, colour in link_parts(U.lattice):
        kernel[colour](U, mu)


@checked
def metropolis_sweep(U: GaugeField, beta: float, rng: Random, width: float = 0.3, hits: int = 4) -> float:
    """Proposes `hits` changes exp(width A) U of every link, A a Gaussian element of the algebra; returns the
    acceptance.

    Raises ParameterError for a negative beta, a width that is not positive and fewer than one hit.
    """
    beta = _coupling(beta)
    if not (math.isfinite(width) and width > 0) or hits < 1:
        raise ParameterError(
            f"Metropolis needs a positive width and at least one hit, not {width} and {hits}"
        )
    kernel = metropolis(hits)
    accepted = 0.0
    for mu, colour in link_parts(U.lattice):
        accepted += U.lattice.sum(kernel, U, rng, beta / U.n, float(width), mu, over=colour)
    return accepted / (U.links * hits)


@functools.cache
def check_subgroups(n: int, warn: bool) -> None:
    """Raises ParameterError if n is above `LARGEST_WITH_SUBGROUPS`; warns once, if asked, where compiling takes long."""
    if n > LARGEST_WITH_SUBGROUPS:
        raise ParameterError(
            f"heat bath and overrelaxation go up to SU({LARGEST_WITH_SUBGROUPS}), not SU({n}): they go through "
            f"{n * (n - 1) // 2} SU(2) subgroups one by one, and compiling that would take {_compile_time(n) / 60:.0f} "
            "minutes and more; Metropolis updates do without subgroups"
        )
    if warn and _compile_time(n) > LONG:
        warnings.warn(
            f"compiling a kernel that updates SU({n}) links takes about {_compile_time(n):.0f} s, the first time",
            RuntimeWarning,
            stacklevel=3,
        )


def _compile_time(n: int) -> float:
    """Seconds of a core for the overrelaxation of SU(n) links, where g++ 12 took 2 for n = 6, 9 for 8, 40 for 10 and 104 for 12."""
    return 40 * (n / 10) ** 5.5


def exhausted_attempts() -> int:
    """How many heat-bath draws so far have kept the old value because no attempt was accepted; practically
    never.
    """
    kernels = (heat_bath_u1, heat_bath_creutz, heat_bath_kennedy_pendleton)
    return sum(kernel.exhausted for kernel in kernels)


def _coupling(beta: float) -> float:
    if not (isinstance(beta, numbers.Real) and math.isfinite(beta) and beta >= 0):
        raise ParameterError(f"beta is a number from 0, not {beta!r}")
    return float(beta)


def link_parts(lattice: Lattice) -> Iterable[tuple[Any, Domain]]:
    """Directions and sets of sites, in turn: links of one direction on one set can be updated together."""
    colours = link_colours(lattice)
    return [(mu, colour) for mu in lattice.directions for colour in colours]


def link_colours(lattice: Lattice) -> Iterable[Domain]:
    """Sets of sites whose links of one direction can be updated together.

    EVEN and ODD; on a lattice with odd extents three colours. Raises LayoutError where an extent is 1, since
    a link's staples would contain the link itself, and below two dimensions, where there are no plaquettes.
    """
    if lattice.ndim < 2 or min(lattice.extents) < 2:
        raise LayoutError(
            f"link updates need at least two dimensions and extents of at least 2, the lattice is {lattice.extents}"
        )
    if all(n % 2 == 0 for n in lattice.extents):
        return PARITIES
    return _three_colours(lattice.extents)


@functools.cache
def _three_colours(extents: tuple[int, ...]) -> Colouring:
    def colour_of(x: list[np.ndarray]) -> Any:
        # Along an odd extent the numbers 0 1 0 1 ... 2 change by +1 or -1 modulo 3 in every step, the last
        # one included.
        numbers = [np.where((n % 2 == 1) & (c == n - 1), 2, c % 2) for c, n in zip(x, extents, strict=True)]
        return sum(numbers) % 3

    return Colouring(3, colour_of, "link colour")
