"""Solvers of linear systems whose vectors are fields."""

from jali.solvers.conjugate_gradient import Solution, cg

__all__ = ["Solution", "cg"]
