"""Linear operators on distributed arrays: see `jali.arrays`."""

from jali.linops.operator import LinearOperator, StackedLinearOperator

__all__ = ["LinearOperator", "StackedLinearOperator"]
