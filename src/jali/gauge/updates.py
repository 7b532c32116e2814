"""Sweeps: every link once by heat bath, overrelaxation or Metropolis, in an order that keeps the updates
independent.

The weight is exp(-S) of any action that is a formula over sites; a number stands for the beta of the Wilson action. Links of one direction on
sites of one colour share no term of it, so they are updated together (`jali.gauge.link_terms`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from jali.actions.metropolis import check_proposals
from jali.actions.protocol import Action
from jali.errors import ParameterError
from jali.gauge.actions import as_action
from jali.gauge.field import GaugeField
from jali.gauge.heatbath import heat_bath_creutz, heat_bath_kennedy_pendleton, heat_bath_u1, needs_creutz
from jali.gauge.link_terms import LinkTerms
from jali.gauge.metropolis import metropolis, metropolis_by_change
from jali.gauge.overrelaxation import overrelax
from jali.lattice import Random
from jali.lattice.checked import checked

# Heat bath and overrelaxation are written out for each of the n (n - 1) / 2 SU(2) subgroups.
LARGEST_WITH_SUBGROUPS = 12
LONG = 15.0  # seconds of compiling that are worth a warning


@checked
def sweep(
    U: GaugeField,
    beta: float | Action,
    rng: Random,
    heatbath: int = 1,
    overrelaxation: int = 4,
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Updates all links: `heatbath` heat-bath sweeps, then `overrelaxation` overrelaxation sweeps.

    `beta` is the coupling of the Wilson action, or any action that is linear in every link; `fields` are the other fields that it depends on, by name.
    Raises ParameterError for a negative number of sweeps.
    """
    if heatbath < 0 or overrelaxation < 0:
        raise ParameterError(
            f"sweep: heatbath and overrelaxation are numbers of sweeps, 0 or more, not {heatbath} and {overrelaxation}"
        )
    action = as_action(beta)
    for _ in range(heatbath):
        heat_bath_sweep(U, action, rng, fields)
    for _ in range(overrelaxation):
        overrelaxation_sweep(U, action, fields)


@checked
def heat_bath_sweep(
    U: GaugeField, beta: float | Action, rng: Random, fields: Mapping[str, Any] | None = None
) -> None:
    """Draws every link once from its conditional distribution.

    `beta` is the coupling of the Wilson action, or any action that is linear in every link, of U and `fields`. Raises ParameterError for other actions, and for SU(n)
    with n above `LARGEST_WITH_SUBGROUPS`.
    """
    n = U.n
    check_subgroups(n, U.lattice.communicator.rank == 0)
    terms = _linear_terms("heat bath", as_action(beta), U, fields)
    kernel, parameter = heat_bath_u1, 1.0
    if n > 1 and needs_creutz(n, terms.size_of_staples(U)):
        kernel = heat_bath_creutz
    elif n > 1:
        kernel, parameter = heat_bath_kennedy_pendleton, 0.5
    staple, given = terms.staple, terms.given
    for mu, colour in terms.parts(U):
        kernel[colour](U, rng, parameter, mu, staple, given)


@checked
def overrelaxation_sweep(
    U: GaugeField, action: Action | None = None, fields: Mapping[str, Any] | None = None
) -> None:
    """Reflects every link once; the action, by default Wilson's at any beta, stays as it is.

    Raises ParameterError for an action that is not linear in every link, and for SU(n) with n above `LARGEST_WITH_SUBGROUPS`.
    """
    check_subgroups(U.n, U.lattice.communicator.rank == 0)
    terms = _linear_terms("overrelaxation", as_action(1.0 if action is None else action), U, fields)
    staple, given = terms.staple, terms.given
    for mu, colour in terms.parts(U):
        overrelax[colour](U, mu, staple, given)


@checked
def metropolis_sweep(
    U: GaugeField,
    beta: float | Action,
    rng: Random,
    width: float = 0.3,
    hits: int = 4,
    fields: Mapping[str, Any] | None = None,
) -> float:
    """Proposes `hits` changes exp(width A) U of every link, A a Gaussian element of the algebra; returns the
    acceptance.

    `beta` is the coupling of the Wilson action, or any action of U and `fields` that is a formula over sites. Raises ParameterError for a width that
    is not positive and fewer than one hit.
    """
    check_proposals(width, hits)
    terms = LinkTerms.of_links(as_action(beta), U, fields)
    linear, accepted = terms.is_linear(U), 0.0
    kernel, how, times = (
        (metropolis(hits), terms.staple, 1) if linear else (metropolis_by_change, terms.change, hits)
    )
    for mu, colour in terms.parts(U):
        for _ in range(times):
            accepted += U.lattice.sum(kernel, U, rng, float(width), mu, how, terms.given, over=colour)
    return accepted / (U.links * hits)


def _linear_terms(what: str, action: Action, U: GaugeField, fields: Mapping[str, Any] | None) -> LinkTerms:
    terms = LinkTerms.of_links(action, U, fields)
    if not terms.is_linear(U):
        raise ParameterError(
            f"{what} needs an action that is linear in every link, and {action!r} is not; metropolis_sweep and jali.hmc take it"
        )
    return terms


@functools.cache
def check_subgroups(n: int, warn: bool) -> None:
    """Raises ParameterError if n is above `LARGEST_WITH_SUBGROUPS`; warns once, if requested, where compiling takes
    long."""
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
