"""Runs a gauge theory and compares a mean with a known value, by autocorrelation-corrected errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jali
from jali.gauge import Action, GaugeField, metropolis_sweep, plaquette, sweep
from jali.statistics import Estimate, mean_error

COLOURS = {"U(1)": 1, "SU(2)": 2, "SU(3)": 3, "SU(4)": 4}

UPDATES: dict[str, Callable[[GaugeField, Any, jali.Random], Any]] = {
    "heat bath": lambda U, beta, rng: sweep(U, beta, rng, 1, 0),
    "heat bath and overrelaxation": lambda U, beta, rng: sweep(U, beta, rng, 1, 1),
    "Metropolis": lambda U, beta, rng: metropolis_sweep(U, beta, rng, 0.6, 3),
    "many hits": lambda U, beta, rng: metropolis_sweep(U, beta, rng, 0.3, 8),
    "production": lambda U, beta, rng: sweep(U, beta, rng, 1, 4),
}


def chain(
    group: str,
    beta: float | Action,
    extents: Sequence[int],
    sweeps: int,
    *,
    seed: int = 1,
    update: str = "heat bath and overrelaxation",
    thermalise: int = 50,
    start: str = "cold",
    observe: Callable[[GaugeField], Any] = plaquette,
) -> np.ndarray:
    """What `observe` sees after each of `sweeps` updates, after `thermalise` others."""
    U = GaugeField(jali.Lattice(*extents), jali.SU(COLOURS[group]))
    U = U.cold_start() if start == "cold" else U.hot_start(seed)
    rng = jali.Random(seed)
    seen = []
    for number in range(thermalise + sweeps):
        UPDATES[update](U, beta, rng)
        if number % 50 == 0:
            U.reunitarise()
        if number >= thermalise:
            seen.append(observe(U))
    return np.array(seen)


def check(
    series: Any, exact: float, sigmas: float = 3.5, most: float | None = None, exact_error: float = 0.0
) -> Estimate:
    """Asserts that a mean agrees with an exact value, and that its error is below `most`."""
    estimate = mean_error(series)
    error = float(np.hypot(estimate.error, exact_error))
    assert abs(estimate.mean - exact) < sigmas * error, (
        f"{estimate} differs from {exact:.6f} by {(estimate.mean - exact) / error:+.1f} sigma "
        f"(tau_int {estimate.tau_int:.2f}, {estimate.n} measurements)"
    )
    if most is not None:
        assert estimate.error < most
    return estimate
