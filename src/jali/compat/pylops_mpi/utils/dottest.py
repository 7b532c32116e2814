"""The dot test, under the name of pylops_mpi.utils.dottest."""

from __future__ import annotations

from typing import Any

from jali.compat.pylops_mpi._parts import split_as
from jali.linops.dot_test import dottest as _dottest

__all__ = ["dottest"]


class _SplitAsGiven:
    """An operator whose results are split as the vectors that they are multiplied with: the library gathers both."""

    def __init__(self, Op: Any, u: Any, v: Any) -> None:
        self.Op, self.u, self.v, self.shape = Op, u, v, Op.shape
        self.gives_new = getattr(Op, "gives_new", True)

    def __repr__(self) -> str:
        return repr(self.Op)

    def matvec(self, x: Any) -> Any:
        return split_as(self.Op.matvec(x), self.v)

    def rmatvec(self, x: Any) -> Any:
        return split_as(self.Op.rmatvec(x), self.u)


def dottest(
    Op: Any,
    u: Any,
    v: Any,
    nr: int | None = None,
    nc: int | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-21,
    raiseerror: bool = True,
    verb: bool = False,
) -> bool:
    """`jali.linops.dottest`: whether (A u)^H v = u^H (A^H v). Raises AssertionError where it is not, unless `raiseerror` is False."""
    return _dottest(_SplitAsGiven(Op, u, v), u, v, nr, nc, rtol, atol, raiseerror, verb)
