"""Quark smearing: sources and sinks that are spread over space by the covariant Laplacian.

    gaussian     psi <- (1 + w^2 / (4 N) Delta)^N psi
    wuppertal    psi <- [(1 + alpha H) / (1 + 2 d alpha)]^N psi, H psi(x) = sum_mu [ U_mu(x) psi(x+mu) + U_mu(x-mu)^dagger psi(x-mu) ]

with Delta = H - 2 d (`jali.fermions.Laplace`) over the d directions of space. Both are the same polynomial: alpha = b / (1 - 2 d b), b = w^2 / (4 N). For large N
and links of one a point becomes exp(-x^2 / w^2), up to its norm. The links are the caller's: smeared ones (`jali.gauge.ape_smear`, `stout_smear`,
`hyp_smear` with `directions=lattice.directions[:-1]`) make smooth sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError
from jali.fermions import Laplace
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.field import Field


def gaussian_smear(
    psi: Field, U: Any, width: float, steps: int, directions: Iterable[Any] | None = None
) -> Field:
    """(1 + width^2 / (4 steps) Delta)^steps psi: a new field (S. Gusken, Nucl. Phys. B Proc. Suppl. 17 (1990) 361; `width` and `steps` as Chroma's).

    `U` is a gauge field or a list of links, `directions` are those of Delta, by default all but the last. Of a propagator it smears the sink. More
    than width^2 / (4 steps) = 1 / (2 d) makes components with large momenta grow, and is refused. Raises ParameterError for impossible numbers, LayoutError
    for fields that do not fit.
    """
    _check(psi, "steps", steps)
    if not _number(width):
        raise ParameterError(f"a width is a number of lattice spacings from 0 on, not {value_shown(width)}")
    delta = _laplacian(psi, U, directions)
    if steps == 0:
        if width:
            raise ParameterError(f"a source of width {width:g} takes steps, at least {_least(width, delta)}")
        return psi.copy()
    b = float(width) ** 2 / (4 * steps)
    if steps < _least(width, delta):
        raise ParameterError(
            f"a width of {width:g} takes at least {_least(width, delta)} steps, not {steps}: with fewer large momenta grow"
        )
    return _repeated(psi, delta, 1 - 2 * len(delta.directions) * b, b, steps)


def wuppertal_smear(
    psi: Field, U: Any, alpha: float, steps: int, directions: Iterable[Any] | None = None
) -> Field:
    """[(1 + alpha H) / (1 + 2 d alpha)]^steps psi: a new field (S. Gusken et al., Phys. Lett. B 227 (1989) 266; alpha as QUDA's).

    Arguments and errors as for `gaussian_smear`; alpha is a number from 0 on.
    """
    _check(psi, "steps", steps)
    if not _number(alpha):
        raise ParameterError(f"alpha is a number from 0 on, not {value_shown(alpha)}")
    delta = _laplacian(psi, U, directions)
    alpha = float(alpha)
    norm = 1 / (1 + 2 * len(delta.directions) * alpha)
    return _repeated(psi, delta, norm, alpha * norm, steps)


def _number(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and 0 <= float(value) < math.inf


def _check(psi: Any, what: str, steps: Any) -> None:
    if not isinstance(psi, Field):
        raise LayoutError(f"a field of quarks is smeared, not {no_field(psi)}")
    if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 0:
        raise ParameterError(f"{what} are a whole number from 0 on, not {value_shown(steps)}")


def _laplacian(psi: Field, U: Any, directions: Iterable[Any] | None) -> Laplace:
    return Laplace(U, range(psi.lattice.ndim - 1) if directions is None else directions, psi.element)


def _least(width: float, delta: Laplace) -> int:
    return math.ceil(2 * len(delta.directions) * float(width) ** 2 / 4)


def _repeated(psi: Field, delta: Laplace, here: float, hop: float, steps: int) -> Field:
    """(here + hop H)^steps psi."""
    found, other = psi.copy(), psi.like()
    for _ in range(steps):
        delta.hop(found, other, scale=hop, plus=found, times=here)
        found, other = other, found
    return found


__all__ = ["gaussian_smear", "wuppertal_smear"]
