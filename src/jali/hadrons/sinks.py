"""Sinks: propagators summed over the space of each slice. Smeared sinks are `gaussian_smear(S, ...)`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.errors import LayoutError
from jali.hadrons.places import checked_site, times_wave, wave_of
from jali.lattice.base import no_field
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice
from jali.lattice.sites import site_function


def wall_sink(
    S: Field, momentum: Sequence[int] | None = None, *, origin: Sequence[int] | None = None
) -> Field:
    """sum over space of exp(-i p (x - origin)) S(x, t), with p_k = 2 pi `momentum`[k] / L_k: a field on a lattice of one site for each slice, all of
    which every rank has.

    `mesons`, `nucleon` and the others take it as any propagator, with `origin=(0, 0, 0, t)`. As that of a wall source what it gives depends on the gauge. Raises
    LayoutError for what is no field on all sites, ParameterError for momenta and origins that do not fit.
    """
    if not isinstance(S, Field) or S.over is not ALL:
        raise LayoutError(f"a propagator on all sites is summed, not {no_field(S)}")
    lattice = S.lattice
    where = np.array(checked_site(lattice.extents, origin), float)
    summed = lattice.sum(_projected, S, wave_of(lattice.extents, momentum), where, per=lattice.ndim - 1)
    if S.element.spinor:  # in kernels colour comes before spin
        summed = np.moveaxis(summed, -1, -2)
    walls = Field(
        _lattice_of_walls(lattice),
        S.element,
        boundary=S.boundary.conditions,
        batch=S.batch,
        precision=S.precision,
    )
    walls[...] = summed.reshape(walls.shape)
    return walls


_WALLS: weakref.WeakKeyDictionary[Lattice, Lattice] = weakref.WeakKeyDictionary()


def _lattice_of_walls(lattice: Lattice) -> Lattice:
    """The lattice of one site for each slice, the same one for all sums of a lattice; every rank has all of it (collective, the first time)."""
    if lattice not in _WALLS:
        ranks = lattice.communicator
        alone = ranks if ranks.size == 1 else ranks.split(ranks.rank)
        device = "cpu" if lattice.gpu is None else f"{lattice.gpu.kind}:{lattice.gpu.ordinal}"
        extents = (1,) * (lattice.ndim - 1) + lattice.extents[-1:]
        _WALLS[lattice] = Lattice(*extents, communicator=alone, device=device)
    return _WALLS[lattice]


@site_function
def _projected(X: Any, S: Any, wave: Any, origin: Any, total: Any) -> None:
    total += times_wave(X, wave, origin, S[X])


__all__ = ["wall_sink"]
