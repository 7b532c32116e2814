"""The operators of `jali.linops` under the names of pylops_mpi.LinearOperator."""

from __future__ import annotations

from typing import Any

from jali.linops import LinearOperator as MPILinearOperator
from jali.linops.algebra import (
    AdjointLinearOperator as _AdjointLinearOperator,
)
from jali.linops.algebra import (
    ConjLinearOperator as _ConjLinearOperator,
)
from jali.linops.algebra import (
    PowerLinearOperator as _PowerLinearOperator,
)
from jali.linops.algebra import (
    ProductLinearOperator as _ProductLinearOperator,
)
from jali.linops.algebra import (
    ScaledLinearOperator as _ScaledLinearOperator,
)
from jali.linops.algebra import (
    SumLinearOperator as _SumLinearOperator,
)
from jali.linops.algebra import (
    TransposedLinearOperator as _TransposedLinearOperator,
)

__all__ = [
    "MPILinearOperator",
    "_AdjointLinearOperator",
    "_ConjLinearOperator",
    "_PowerLinearOperator",
    "_ProductLinearOperator",
    "_ScaledLinearOperator",
    "_SumLinearOperator",
    "_TransposedLinearOperator",
    "asmpilinearoperator",
]


def asmpilinearoperator(Op: Any) -> MPILinearOperator:
    """The operator itself, or a serial one that every rank applies to what it has."""
    return Op if isinstance(Op, MPILinearOperator) else MPILinearOperator(Op)
