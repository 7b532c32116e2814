"""The dot test: whether what an operator calls its adjoint is one, (A u)^H v = u^H (A^H v), on random vectors."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.keywords import named
from jali.lattice.field import Field
from jali.linops import spaces

SEED = 42


@named
def dottest(
    Op: Any,
    u: Any = None,
    v: Any = None,
    nr: int | None = None,
    nc: int | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-21,
    raiseerror: bool = True,
    show: bool = False,
) -> bool:
    """Whether (A u)^H v and u^H (A^H v) agree to `atol` plus `rtol` times the larger one, or to rounding. Collective.

    `u` is a vector that A takes, `v` one that its adjoint takes: random ones by default, of the operator's type, where it
    defines their layouts (`domain`, `range_`). `nr` and `nc`, if given, are rows and columns that the operator has to have.
    With `show` rank 0 writes the numbers to standard output. Where models are real, as A^H gives them too, real parts are
    compared.

    Raises AssertionError where they do not agree, unless `raiseerror` is False; ParameterError where `u` or `v` is missing.
    """
    rows, columns = Op.shape
    if (nr is not None and nr != rows) or (nc is not None and nc != columns):
        raise AssertionError(f"Provided nr={nr} and nc={nc} do not match operator shape {Op.shape} of {Op!r}")
    u = _random(Op, Op.domain(), "u", SEED) if u is None else u
    v = _random(Op, Op.range_(), "v", SEED + 1) if v is None else v
    found = spaces.owned(Op, Op.matvec(u))
    there = _inner(found, v)
    image = Op.rmatvec(v)
    back = _inner(u, image)
    if (
        "complex" not in f"{u.dtype} {image.dtype}"
    ):  # models are real, so that real parts of inner products count
        there = there.real
    off, size = abs(there - back), max(abs(there), abs(back))
    passed = bool(off <= atol + rtol * size)
    if not passed and size < math.inf:  # of vectors that are orthogonal nothing but rounding is left
        sizes = [math.sqrt(abs(_inner(x, x))) for x in (found, v, u, image)]
        passed = bool(off <= 64 * _epsilon(found, image) * (sizes[0] * sizes[1] + sizes[2] * sizes[3]))
    relative = float(off / size) if size > 0 else 0.0
    text = (
        f"Dot test {'passed' if passed else 'failed'}, (A u)^H v = {there} and u^H (A^H v) = {back}: they differ by {off}, which is "
        f"{relative:.2g} of the larger one ({rtol:g} is permitted), {Op!r}"
    )
    if show and (u.lattice if isinstance(u, Field) else u).rank == 0:
        sys.stdout.write(f"{text}\n")
    if not passed and raiseerror:
        raise AssertionError(text)
    return passed


def _inner(x: Any, y: Any) -> Any:
    """Sum of conj(x) y over all ranks."""
    return x.inner(y) if isinstance(x, Field) else x.dot(y, vdot=True)


def _epsilon(*vectors: Any) -> float:
    kinds = [np.dtype(str(x.dtype).removeprefix("torch.")) for x in vectors]
    return max((float(np.finfo(kind).eps) for kind in kinds if kind.kind in "fc"), default=0.0)


def _random(Op: Any, space: Any, name: str, seed: int) -> Any:
    if space is None:
        raise ParameterError(
            f"dottest: {Op!r} does not say which layout its vectors have; give u, a vector that it takes, and v, one that it gives "
            f"({name} is missing)"
        )
    return spaces.random(space, Op.dtype, seed, times=max(1, Op.copies))
