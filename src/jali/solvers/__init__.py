"""Solvers of linear systems. Their vectors are fields, lists of them, or arrays: see `jali.solvers.vectors`."""

from jali.solvers.conjugate_gradient import Solution, cg
from jali.solvers.vectors import Row, Vectors, register, vectors_of

__all__ = ["Row", "Solution", "Vectors", "cg", "register", "vectors_of"]
