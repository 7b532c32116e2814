"""Solvers of linear systems. Their vectors are fields, lists of them, or arrays: see `jali.solvers.vectors`."""

from jali.solvers.conjugate_gradient import CG, CGSolution, Solution, cg
from jali.solvers.least_squares import CGLS, LeastSquares, cgls
from jali.solvers.solver import Solver
from jali.solvers.vectors import Row, Vectors, each, register, sums, vectors_of

__all__ = ["CG", "CGLS", "CGSolution", "LeastSquares", "Row", "Solution", "Solver", "Vectors", "cg", "cgls", "each", "register", "sums", "vectors_of"]
