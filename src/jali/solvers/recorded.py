"""Solvers whose solutions a tape records: the derivative of x with A x = b is one more solve, with the adjoint of A."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jali import tape_recorder
from jali.errors import ParameterError
from jali.files import value_shown


def recorded(hermitian: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of a solver `(A, b, ...)`; one for Hermitian operators solves with the adjoint as it solves with A."""

    def decorate(solver: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(solver)
        def solve(*arguments: Any, **named: Any) -> Any:
            tape = tape_recorder.current() if tape_recorder.recorders else None
            given = [*arguments, *(named[name] for name in ("A", "b")[len(arguments) :] if name in named)]
            if tape is None or len(given) < 2:
                return solver(*arguments, **named)
            A, b = given[:2]
            if not hermitian:
                adjoint_of(A)  # what has none is refused here

            def solve_adjoint(c: Any) -> Any:
                options = {k: v for k, v in named.items() if k not in ("A", "b", "x0", "callback", "M")}
                return solver(A if hermitian else adjoint_of(A), c, **options).x

            return tape.solution(A, b, lambda: solver(*arguments, **named), solve_adjoint)

        return solve

    return decorate


def adjoint_of(A: Any) -> Any:
    """The adjoint of an operator. Raises ParameterError for one that has none."""
    for name in ("dagger", "H"):
        found = getattr(A, name, None)
        if found is not None:
            return found
    raise ParameterError(
        f"the derivative of a solve needs the adjoint of the operator, A.dagger or A.H, which {value_shown(A)} has not"
    )
