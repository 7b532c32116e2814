"""Hybrid Monte Carlo of any action: monomials, integrators on several time scales, trajectories with an accept step."""

from jali.hmc.integrators import INTEGRATORS, Integrator, Level
from jali.hmc.monomials import Monomial
from jali.hmc.simulation import HMC, Force, Trajectory

__all__ = ["HMC", "INTEGRATORS", "Force", "Integrator", "Level", "Monomial", "Trajectory"]
