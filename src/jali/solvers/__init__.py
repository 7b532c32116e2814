"""Solvers of linear systems and inverse problems. Their vectors are fields, arrays, distributed arrays, stacks and lists of them: see
`jali.vectors`; operators have `matvec` and `rmatvec`: see `jali.solvers.operators`."""

from jali.beside import made_of
from jali.solvers.batches import BatchSolution
from jali.solvers.bicgstab import bicgstab
from jali.solvers.bicgstabl import bicgstabl
from jali.solvers.block_cg import block_cg
from jali.solvers.cgnr import cgnr
from jali.solvers.chebyshev import ChebyshevPreconditioner, chebyshev, chebyshev_window
from jali.solvers.choice import ChosenBatchSolution, ChosenSolution, SolverChoice, choose, solve
from jali.solvers.conjugate_gradient import CG, CGSolution, Solution, cg
from jali.solvers.defect_correction import defect_correction
from jali.solvers.eigcg import Harvest, Harvested, eigcg
from jali.solvers.eigenpairs import Eigenpairs
from jali.solvers.eigs import Eigenpair, power_iteration
from jali.solvers.fgmres import fgmres
from jali.solvers.gcr import gcr
from jali.solvers.lanczos import lanczos
from jali.solvers.least_squares import CGLS, LeastSquares, cgls
from jali.solvers.lsqr import LSQR, LsqrSolution, lsqr
from jali.solvers.minimal_residual import mr
from jali.solvers.minres import minres
from jali.solvers.multishift import MultiShiftSolution, multishift_cg
from jali.solvers.primal import ADMM, ADMML2, LinearizedADMM, ProximalGradient
from jali.solvers.primal_dual import PrimalDual
from jali.solvers.proximal import L2, L21, ProxOperator
from jali.solvers.reliable import Inner
from jali.solvers.repetitions import Workspace
from jali.solvers.solver import Solver
from jali.solvers.sparsity import FISTA, ISTA, ResidualError, SparseSolution, fista, ista
from jali.solvers.tuning import TunedSolver, tune_solver
from jali.vectors import VectorKind, Vectors, each, register, sums, vectors_of

__all__ = [
    "ADMM",
    "ADMML2",
    "CG",
    "CGLS",
    "FISTA",
    "ISTA",
    "L2",
    "L21",
    "LSQR",
    "BatchSolution",
    "CGSolution",
    "ChebyshevPreconditioner",
    "ChosenBatchSolution",
    "ChosenSolution",
    "Eigenpair",
    "Eigenpairs",
    "Harvest",
    "Harvested",
    "Inner",
    "LeastSquares",
    "LinearizedADMM",
    "LsqrSolution",
    "MultiShiftSolution",
    "PrimalDual",
    "ProxOperator",
    "ProximalGradient",
    "ResidualError",
    "Solution",
    "Solver",
    "SolverChoice",
    "SparseSolution",
    "TunedSolver",
    "VectorKind",
    "Vectors",
    "Workspace",
    "bicgstab",
    "bicgstabl",
    "block_cg",
    "cg",
    "cgls",
    "cgnr",
    "chebyshev",
    "chebyshev_window",
    "choose",
    "defect_correction",
    "each",
    "eigcg",
    "fgmres",
    "fista",
    "gcr",
    "ista",
    "lanczos",
    "lsqr",
    "made_of",
    "minres",
    "mr",
    "multishift_cg",
    "power_iteration",
    "register",
    "solve",
    "sums",
    "tune_solver",
    "vectors_of",
]
