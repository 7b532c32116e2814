"""Fermions: gamma matrices that act on spinors inside site functions, and the Wilson Dirac operator."""

from jali.fermions.spin import SpinMatrix, gamma, gamma5, project, reconstruct
from jali.fermions.wilson import WilsonDirac, wilson_at

__all__ = ["SpinMatrix", "WilsonDirac", "gamma", "gamma5", "project", "reconstruct", "wilson_at"]
