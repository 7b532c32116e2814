"""Linear operators on distributed arrays: see `jali.arrays`.

Operators of blocks give each rank local operators, of `pylops`, of SciPy or matrices; stacked ones put operators of distributed
arrays beside each other. All have the algebra of `LinearOperator`, `A / y`, `todense`, `eigs`, `cond` and `trace`.
"""

from jali.linops.basic import Diagonal, Identity, Restriction, Transpose, Zero
from jali.linops.blocks import BlockDiag, HStack, VStack
from jali.linops.dot_test import dottest
from jali.linops.functions import aslinearoperator, from_functions
from jali.linops.operator import LinearOperator, StackedLinearOperator
from jali.linops.stacked import StackedBlockDiag, StackedHStack, StackedVStack

__all__ = [
    "BlockDiag",
    "Diagonal",
    "HStack",
    "Identity",
    "LinearOperator",
    "Restriction",
    "StackedBlockDiag",
    "StackedHStack",
    "StackedLinearOperator",
    "StackedVStack",
    "Transpose",
    "VStack",
    "Zero",
    "aslinearoperator",
    "dottest",
    "from_functions",
]
