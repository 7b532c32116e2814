"""The number of steps for which an acceptance is expected, found from dH of the first trajectories of a run.

The root mean square of dH falls with a power of the steps, the order of the integrator. In equilibrium dH is nearly Gaussian, and since <exp(-dH)> = 1 its mean is half of
its variance s^2, and the acceptance erfc(s / sqrt(8)); S. Gupta, A. Irback, F. Karsch and B. Petersson, Phys. Lett. B 242 (1990) 437.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

EVERY = 10
"""Trajectories between two choices of the steps."""

MEMORY = 40
"""Trajectories that are looked at: those before are of the approach to equilibrium."""

MOST_CHANGE = 2.0
"""Of the steps at once."""

LARGEST_DH = 1e6
"""Beyond this dH says only that steps are far too long."""


class StepTuning:
    """Finds the steps in the first `until` trajectories, by the acceptance that is `wanted`."""

    def __init__(self, wanted: float, order: int, until: int) -> None:
        self._wanted, self._order, self._until = wanted, order, until
        self._seen: list[tuple[int, float]] = []  # steps and dH

    @property
    def state(self) -> list[list[float]]:
        """What is needed to go on: steps and dH of trajectories."""
        return [[steps, dH] for steps, dH in self._seen]

    def restore(self, state: Any) -> None:
        """Goes on from a state. Raises TypeError and ValueError for what is none."""
        self._seen = [(int(steps), float(dH)) for steps, dH in state]

    def next_steps(self, number: int, steps: int, dH: float) -> int:
        """The steps of the trajectories after that of this number, which had `steps` and `dH`."""
        if number > self._until:
            return steps
        self._seen.append((steps, max(-LARGEST_DH, min(LARGEST_DH, dH if math.isfinite(dH) else LARGEST_DH))))
        self._seen = self._seen[-MEMORY:]
        if number % EVERY and number != self._until:
            return steps
        late = self._seen[len(self._seen) // 2 :]
        found = steps_for(self._wanted, late, self._order)
        return max(math.ceil(steps / MOST_CHANGE), min(math.floor(steps * MOST_CHANGE), found))


def steps_for(wanted: float, seen: Sequence[tuple[int, float]], order: int) -> int:
    """The least steps for which the acceptance that trajectories with these steps and dH let expect is the wanted one or more."""
    scaled = math.sqrt(math.fsum((dH * steps**order) ** 2 for steps, dH in seen) / len(seen))
    low, high = 0, 1
    while expected_acceptance(scaled / high**order) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if expected_acceptance(scaled / middle**order) < wanted:
            low = middle
        else:
            high = middle
    return high


def expected_acceptance(rms: float) -> float:
    """Of trajectories whose dH has this root mean square: <dH^2> = s^2 + s^4 / 4."""
    variance = 2.0 * (math.sqrt(1.0 + rms * rms) - 1.0)
    return math.erfc(math.sqrt(variance / 8.0))
