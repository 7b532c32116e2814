"""Metropolis: small random rotations, accepted by their change of the action (`jali.gauge.metropolis`)."""

from jali.gauge.algorithms import Algorithm
from jali.gauge.updates import metropolis_sweep

ALGORITHM = Algorithm(
    "Metropolis", metropolis_sweep, options={"width": "metropolis_step", "hits": "metropolis_hits"}
)
