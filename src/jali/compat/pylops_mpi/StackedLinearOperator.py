"""The operators of stacks of `jali.linops` under the names of pylops_mpi.StackedLinearOperator."""

from jali.linops import StackedLinearOperator as MPIStackedLinearOperator
from jali.linops.algebra import (
    StackedAdjointLinearOperator as _AdjointStackedLinearOperator,
)
from jali.linops.algebra import (
    StackedConjLinearOperator as _ConjLinearOperator,
)
from jali.linops.algebra import (
    StackedPowerLinearOperator as _PowerLinearOperator,
)
from jali.linops.algebra import (
    StackedProductLinearOperator as _ProductStackedLinearOperator,
)
from jali.linops.algebra import (
    StackedScaledLinearOperator as _ScaledStackedLinearOperator,
)
from jali.linops.algebra import (
    StackedSumLinearOperator as _SumStackedLinearOperator,
)
from jali.linops.algebra import (
    StackedTransposedLinearOperator as _TransposedStackedLinearOperator,
)

__all__ = [
    "MPIStackedLinearOperator",
    "_AdjointStackedLinearOperator",
    "_ConjLinearOperator",
    "_PowerLinearOperator",
    "_ProductStackedLinearOperator",
    "_ScaledStackedLinearOperator",
    "_SumStackedLinearOperator",
    "_TransposedStackedLinearOperator",
]
