"""Hybrid Monte Carlo of any action: monomials, integrators on several time scales, trajectories with an accept step."""

from jali.hmc.checks import Check, check_simulation
from jali.hmc.integrators import INTEGRATORS, Integrator, Level
from jali.hmc.monomials import Monomial
from jali.hmc.simulation import HMC, TAU_OF_OTHERS, Force, Trajectory

__all__ = [
    "HMC",
    "INTEGRATORS",
    "TAU_OF_OTHERS",
    "Check",
    "Force",
    "Integrator",
    "Level",
    "Monomial",
    "Trajectory",
    "check_simulation",
]
