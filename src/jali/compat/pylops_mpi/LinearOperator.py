"""The operators of `jali.linops` under the names of pylops_mpi.LinearOperator."""

from jali.linops import LinearOperator as MPILinearOperator
from jali.linops import aslinearoperator as asmpilinearoperator
from jali.linops import operator

_AdjointLinearOperator = operator.AdjointLinearOperator
_ConjLinearOperator = operator.ConjLinearOperator
_PowerLinearOperator = operator.PowerLinearOperator
_ProductLinearOperator = operator.ProductLinearOperator
_ScaledLinearOperator = operator.ScaledLinearOperator
_SumLinearOperator = operator.SumLinearOperator
_TransposedLinearOperator = operator.TransposedLinearOperator

__all__ = ["MPILinearOperator", "asmpilinearoperator"]
