"""Fermions: gamma matrices that act on spinors inside site functions, and the Wilson Dirac operator."""

from jali.fermions.dirac import Adjoint, Dirac
from jali.fermions.even_odd import EvenOdd
from jali.fermions.spin import SpinMatrix, gamma, gamma5, project, reconstruct
from jali.fermions.wilson import WilsonDirac, wilson_at, wilson_hop_at

__all__ = [
    "Adjoint",
    "Dirac",
    "EvenOdd",
    "SpinMatrix",
    "WilsonDirac",
    "gamma",
    "gamma5",
    "project",
    "reconstruct",
    "wilson_at",
    "wilson_hop_at",
]
