"""The operators of stacks of `jali.linops` under the names of pylops_mpi.StackedLinearOperator."""

from jali.linops import StackedLinearOperator as MPIStackedLinearOperator
from jali.linops import operator

_AdjointStackedLinearOperator = operator._STACKED[operator.AdjointLinearOperator]
_ConjLinearOperator = operator._STACKED[operator.ConjLinearOperator]
_PowerLinearOperator = operator._STACKED[operator.PowerLinearOperator]
_ProductStackedLinearOperator = operator._STACKED[operator.ProductLinearOperator]
_ScaledStackedLinearOperator = operator._STACKED[operator.ScaledLinearOperator]
_SumStackedLinearOperator = operator._STACKED[operator.SumLinearOperator]
_TransposedStackedLinearOperator = operator._STACKED[operator.TransposedLinearOperator]

__all__ = ["MPIStackedLinearOperator"]
