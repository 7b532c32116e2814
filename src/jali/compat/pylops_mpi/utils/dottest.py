"""The dot test, under the name of pylops_mpi.utils.dottest."""

from __future__ import annotations

from typing import Any

from jali.linops.dot_test import dottest as _dottest

__all__ = ["dottest"]


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
    """`jali.linops.dottest`: whether (A u)^H v = u^H (A^H v). Raises AssertionError where it is not, unless told otherwise."""
    return _dottest(Op, u, v, nr, nc, rtol, atol, raiseerror, verb)
