"""What rules ask about a solve: what the operator is, its condition, where its vectors are and how many.

Operators say what they know: `solver_kind` what they are ("positive", "hermitian", "adjoint"), `even_odd(over, form)` and `in_format(precision, storage)`
that they have other forms and formats. What they do not say is measured when a rule asks: three applications to random vectors show whether an operator is
Hermitian, and a few steps of Lanczos' recursion give a lower bound of its condition number. All ranks find the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import JaliError, ParameterError
from jali.files import value_shown
from jali.solvers.causes import not_hermitian
from jali.solvers.memory import device_of
from jali.solvers.methods import KINDS
from jali.solvers.operators import has_batch, into_of, is_operator, joins_members, widened
from jali.vectors import random, vectors_of

STEPS = 12  # of Lanczos' recursion
SEED = 5


FEW = 1e-9  # the unit of rounding of what has many bits is below it


class Facts:
    """The facts of solving A x = b, by name: those that a user says, those that are there, and those that are measured at the first question.

    `said` has sentences about what was measured.
    """

    def __init__(self, A: Any, b: Any, tolerance: float, kind: str | None, condition: float | None):
        if not (is_operator(A) or callable(A)):
            raise ParameterError(
                f"solve: the operator has a function matvec, or is a function A(p, q) that writes A p into q, not {value_shown(A)}"
            )
        if kind is not None and kind not in KINDS:
            raise ParameterError(f"solve: kind is {', '.join(KINDS)}, not {value_shown(kind)}")
        if condition is not None and (
            isinstance(condition, bool) or not isinstance(condition, int | float) or not condition >= 1
        ):
            raise ParameterError(f"solve: the condition is a number from 1 on, not {value_shown(condition)}")
        self.A, self.b = A, b
        self.vectors = vectors_of("solve: b", b)
        self.vectors.epsilon(b)  # refuses whole numbers
        self.said: list[str] = []
        self._of_user = {name for name, value in (("kind", kind), ("condition", condition)) if value}
        self._known: dict[str, Any] = {"tolerance": tolerance, "kind": kind, "condition": condition}
        self._known = {name: value for name, value in self._known.items() if value is not None}
        self._extremes: tuple[float, float] | None = None

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = getattr(self, f"_find_{name}")()
        return self._known[name]

    def text(self, name: str) -> str:
        """A fact that is known, in words."""
        value = self[name]
        if value is None:
            return "not known"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, tuple):
            return ", ".join(value)
        if name == "kind":
            return KINDS[value]
        more = " or more" if name == "condition" and name not in self._of_user else ""
        return f"{value:.4g}{more}" if isinstance(value, float) else f"{value}"

    # ---- what is there -----------------------------------------------------------------------------------

    @property
    def owner(self) -> Any:
        """The operator, or the one that A is a method of."""
        return self.A if is_operator(self.A) else getattr(self.A, "__self__", self.A)

    @property
    def count_of_batch(self) -> int | None:
        """How many right-hand sides there are in a batch; None of one vector."""
        batch = getattr(self.b, "batch", None)
        return None if batch is None or joins_members(self.A) else int(batch)

    def _find_operator(self) -> tuple[str, ...]:
        """Classes of the operator, and where it is a form or an adjoint those of what it is one of."""
        owner, found = self.owner, []
        of = getattr(owner, "D", None)  # of a form
        of = (
            getattr(owner, "dagger", None)
            if of is None and not callable(getattr(owner, "even_odd", None))
            else of
        )
        for one in (owner, of):
            if one is not None and (one is owner or callable(getattr(one, "in_format", None))):
                found += [kind.__name__ for kind in type(one).__mro__ if kind is not object]
        return tuple(dict.fromkeys(found))

    def _find_device(self) -> str:
        return device_of(self.b)[0]

    def _find_precision(self) -> str:
        return "float64" if self.vectors.epsilon(self.b) < 1e-12 else "float32"

    def _find_batch(self) -> int:
        return self.count_of_batch or 1

    def _find_unknowns(self) -> float:
        return float(self.vectors.count(self.b))

    def _find_ranks(self) -> int:
        return max((ranks.size for ranks in self.vectors.ranks(self.b)), default=1)

    def _find_even_odd(self) -> bool:
        has = is_operator(self.A) and callable(getattr(self.A, "even_odd", None))
        return has and bool(getattr(self.b, "has_colours", True))

    def _find_few_bits(self) -> bool:
        has = callable(getattr(self.owner, "in_format", None))
        return has and self.many_bits

    @property
    def many_bits(self) -> bool:
        """Whether b has more than few bits, those of an inner solve, would have."""
        return self.vectors.epsilon(self.b) < FEW

    # ---- what is measured --------------------------------------------------------------------------------

    def _find_kind(self) -> str:
        """As the operator says; else three applications show whether it is Hermitian, and Lanczos' recursion whether it is positive."""
        A = self.A
        if getattr(A, "__name__", "") == "normal" and callable(getattr(self.owner, "rmatvec", None)):
            return "positive"
        said = getattr(A, "solver_kind", None)
        if isinstance(said, str) and said in KINDS:
            return said
        try:
            one = self._single()
            forward = self._forward(A, one)
            found = not_hermitian(forward, one)
        except (JaliError, ValueError) as error:
            if has_batch(self.b):
                raise ParameterError(
                    f'solve: what {value_shown(A)} is cannot be measured on a single vector ({error}); say it, as kind="positive" or another one of '
                    f"{', '.join(KINDS)}"
                ) from None
            raise
        if not found:
            low, high = self._ritz_values(forward, one)
            between = f"its eigenvalues reach from {low:.3g} or less to {high:.3g} or more ({STEPS} steps of Lanczos' recursion)"
            self._extremes = low, high
            kind = "positive" if low > 0 else "hermitian"
            self.said.append(f"The operator is Hermitian for random vectors, and {between}")
            return kind
        self.said.append(f"It was measured that {found}")
        return "adjoint" if self._adjoint_works(one) else "general"

    def _find_condition(self) -> float | None:
        """A lower bound of the condition number: of A where it is positive, else by A^H A; None where there is no adjoint."""
        kind = self["kind"]
        if kind == "general":
            return None
        try:
            if kind != "positive" or self._extremes is None:
                one = self._single()
                forward = self._forward(self.A, one)
                if kind == "hermitian":
                    again = self._forward(self.A, one)
                    self._extremes = self._ritz_values(lambda x: again(forward(x)), one)
                elif kind == "adjoint":
                    adjoint = self.A.rmatvec
                    self._extremes = self._ritz_values(lambda x: adjoint(forward(x)), one)
                else:
                    self._extremes = self._ritz_values(forward, one)
        except (JaliError, ValueError) as error:
            self.said.append(f"The condition number could not be measured: {error}")
            return None
        low, high = self._extremes
        found = high / low if low > 0 else math.inf
        found = found if kind == "positive" else math.sqrt(found)
        self.said.append(
            f"The condition number of the operator is {found:.3g} or more, by {STEPS} steps of Lanczos' recursion"
        )
        return found

    def _single(self) -> Any:
        """A random vector like b, of a batch like one member."""
        b = widened(self.b, self.A) if is_operator(self.A) else self.b
        return random(b if self.count_of_batch is None else b.like(batch=None), SEED)

    def _forward(self, A: Any, like: Any) -> Callable[[Any], Any]:
        vectors = vectors_of("b", like)
        apply, q = into_of("the operator", A, vectors), vectors.like(like)

        def forward(x: Any) -> Any:
            apply(x, q)
            return q

        return forward

    def _adjoint_works(self, like: Any) -> bool:
        """SciPy's operators have a function `rmatvec` that may have nothing behind it."""
        adjoint = getattr(self.A, "rmatvec", None)
        if not callable(adjoint):
            return False
        try:
            adjoint(like)
        except NotImplementedError:
            return False
        return True

    def _ritz_values(self, forward: Callable[[Any], Any], v: Any) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of Lanczos' matrix after a few steps from a random vector (Y. Saad, Numerical Methods for Large Eigenvalue
        Problems, 2011, algorithm 6.5)."""
        vectors: Any = vectors_of("b", v)
        if has_batch(v):
            vectors = vectors.of_whole_batch()
        v = vectors.copy(v)
        before, w = vectors.like(v), vectors.like(v)
        alphas: list[float] = []
        betas: list[float] = []
        beta = math.sqrt(float(vectors.norm2(v)))
        if beta == 0:
            raise ParameterError("solve: b has no elements")
        vectors.update([(v, 1 / beta, [])])
        for k in range(STEPS):
            vectors.update([(w, 0, [(1, forward(v))])])
            alpha = float(np.real(vectors.inner(v, w)))
            alphas.append(alpha)
            last = betas[-1] if betas else 0.0
            square = vectors.update([(w, 1, [(-alpha, v), (-last, before)])], norm=True)
            beta = math.sqrt(float(square))
            if not math.isfinite(beta) or beta <= 1e-12 * max(map(abs, alphas)) or k + 1 == STEPS:
                break
            betas.append(beta)
            vectors.update([(before, 0, [(1, v)]), (v, 0, [(1 / beta, w)])])
        betas = betas[: len(alphas) - 1]
        values = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))
        return float(values[0]), float(values[-1])
