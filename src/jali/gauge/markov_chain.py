"""A Monte Carlo run in a few lines: sweeps, and the observables after each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jali.actions.protocol import Action
from jali.errors import ParameterError
from jali.gauge.field import GaugeField
from jali.gauge.observables import plaquettes, polyakov_loop
from jali.gauge.updates import sweep
from jali.lattice import Random
from jali.lattice.checked import checked


@dataclass(frozen=True)
class Measurement:
    """Mean plaquettes and Polyakov loop after `sweep` sweeps; see `plaquettes` and `polyakov_loop`.

    `polyakov` is nan where time, the last direction, is open.
    """

    sweep: int
    plaquette: float
    plaquette_spatial: float
    plaquette_temporal: float
    polyakov: complex


@checked
def simulate(
    U: GaugeField,
    beta: float | Action,
    rng: Random,
    sweeps: int,
    *,
    heatbath: int = 1,
    overrelaxation: int = 4,
    every: int = 1,
    reunitarise_every: int = 10,
) -> Iterator[Measurement]:
    """Updates U in place and yields a `Measurement` after every `every` sweeps.

    `beta` is the coupling of the Wilson action, or any action. A sweep is `heatbath` heat-bath and `overrelaxation`
    overrelaxation passes over all links. Rounding is removed from the links every `reunitarise_every` sweeps. Raises
    ParameterError for impossible numbers.
    """
    if min(sweeps, heatbath, overrelaxation) < 0 or min(every, reunitarise_every) < 1:
        raise ParameterError(
            "numbers of sweeps are not negative, and measurements and clean-ups come every 1 or more"
        )
    for number in range(1, sweeps + 1):
        sweep(U, beta, rng, heatbath, overrelaxation)
        if number % reunitarise_every == 0:
            U.reunitarise()
        if number % every == 0:
            loop = complex(math.nan, math.nan) if U.lattice.ndim - 1 in U.open else polyakov_loop(U)
            yield Measurement(number, *plaquettes(U), loop)
