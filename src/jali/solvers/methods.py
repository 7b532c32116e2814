"""The solvers of A x = b that rules may choose: what each asks of an operator, how many vectors it keeps, and its options.

A `Candidate` is a solver with all that a rule says of it: the form of the operator that it solves with, and the format of its recursion. Adding a
solver is one entry of `METHODS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jali.solvers.bicgstab import bicgstab
from jali.solvers.bicgstabl import bicgstabl
from jali.solvers.block_cg import MOST_MEMBERS, block_cg
from jali.solvers.cgnr import cgnr
from jali.solvers.conjugate_gradient import cg
from jali.solvers.fgmres import fgmres
from jali.solvers.gcr import gcr
from jali.solvers.minimal_residual import mr
from jali.solvers.minres import minres

KINDS = {
    "positive": "Hermitian and positive definite",
    "hermitian": "Hermitian",
    "adjoint": "general, with an adjoint",
    "general": "general, without an adjoint",
}
"""What an operator is, the most special first, with the words of explanations."""
FORMS = {
    "full": "the operator as it is",
    "even-odd": "its even-odd form",
    "symmetric": "its symmetric even-odd form",
}


@dataclass(frozen=True)
class Method:
    """A solver. `needs` is the kind of operator; `vectors` are those of its recursion beside x and r, with its options; `inner` is whether it
    can have a recursion in few bits, and `members` how many right-hand sides it takes."""

    solver: Callable[..., Any]
    needs: str
    vectors: Callable[[Mapping[str, Any]], int]
    what: str
    inner: bool = True
    options: tuple[str, ...] = ()
    members: tuple[float, float] = (1, math.inf)


METHODS = {
    "cg": Method(cg, "positive", lambda o: 2, "conjugate gradients"),
    "cgnr": Method(cgnr, "adjoint", lambda o: 3, "conjugate gradients of the normal equations"),
    "block_cg": Method(
        block_cg, "positive", lambda o: 4, "block conjugate gradients", inner=False, members=(2, MOST_MEMBERS)
    ),
    "minres": Method(minres, "hermitian", lambda o: 5, "minimal residuals of a Hermitian operator"),
    "bicgstab": Method(bicgstab, "general", lambda o: 4, "BiCGStab"),
    "bicgstabl": Method(
        bicgstabl,
        "general",
        lambda o: 2 * o.get("directions", 2) + 2,
        "BiCGStab(l)",
        options=("directions",),
    ),
    "gcr": Method(
        gcr, "general", lambda o: 2 * o.get("restart", 10), "conjugate residuals", options=("restart",)
    ),
    "fgmres": Method(
        fgmres,
        "general",
        lambda o: o.get("restart", 10) + 1,
        "flexible generalised minimal residuals",
        inner=False,
        options=("restart",),
    ),
    "mr": Method(mr, "general", lambda o: 1, "minimal residuals"),
}
"""Solvers by the names of their functions."""


@dataclass(frozen=True)
class Candidate:
    """A solver, the form of the operator, the storage of its recursion in few bits (empty: it has the precision of b), its options, those of `Inner`, and
    after how many iterations another one goes on from what it has found (0: it goes on to the end)."""

    method: str
    form: str = "full"
    inner: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    updates: Mapping[str, Any] = field(default_factory=dict)
    maxiter: int = 0

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        form = "" if self.form == "full" else f" on {FORMS[self.form]}"
        few = f", in {self.inner} with reliable updates" if self.inner else ""
        return f"{self.method}{f'({options})' if options else ''}{form}{few}"


__all__ = ["FORMS", "KINDS", "METHODS", "Candidate", "Method"]
