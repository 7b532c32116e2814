"""Members of a batch that have converged leave: the others go on as a smaller batch, which does less in each step, with the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError, TraceError
from jali.files import value_shown
from jali.solvers import saved_solves
from jali.solvers.elementwise import read
from jali.solvers.krylov import Krylov
from jali.vectors import vectors_of


def unfinished(run: Krylov, leave: int) -> tuple[int, ...]:
    """The members that go on by themselves: no more than half, where by their residuals they are likely to take as many iterations or more; else none."""
    if run.batch is None or not run.leaves:
        return ()
    missing = run.history[-1] > run.tolerances
    ids = tuple(np.flatnonzero(missing).tolist())
    if not 0 < len(ids) <= run.batch // 2 or run.left_of(missing) < leave:
        return ()
    return ids


class Rest:
    """The members of a run that go on, as a run of their own: the same vectors and numbers, of fewer members."""

    def __init__(self, run: Krylov, ids: tuple[int, ...]):
        *fixed, rtol, atol, inner = run.arguments
        self.whole, self.ids = run, list(ids)
        b = run.b if run.outer is None else run.outer.b
        if inner is not None:
            low = vectors_of("inner: like", inner.like)
            inner = replace(inner, like=low.copy(inner.like.members[self.ids]))
        b = run.vectors.copy(b.members[self.ids])
        kind: Any = type(run)
        self.run = kind(run.of, b, None, *fixed, rtol, atol, inner)
        self.run.arguments = (*fixed, rtol, atol, inner)
        self.run.labels = [run.labels[k] for k in ids]

    def has_the_operator(self) -> bool:
        """Whether A does the same to these members as in the whole."""
        run, rest = self.whole, self.run
        q, part = run.vectors.like(run.r), rest.vectors.like(rest.r)
        run.apply(run.r, q)
        rest.apply(rest.vectors.copy(run.r.members[self.ids]), part)
        return not np.any(rest.vectors.update([(part, 1, [(-1, q.members[self.ids])])], norm=True))

    def take_over(self) -> None:
        """Gives it the state that the whole has now."""
        run, rest, ids = self.whole, self.run, self.ids
        rest.patience, rest.must_converge, rest.maxiter = run.patience, run.must_converge, run.maxiter
        of_whole, of_rest = (one.b if one.outer is None else one.outer.b for one in (run, rest))
        # b is another one in each solve of a workspace
        rest.vectors.update([(of_rest, 0, [(1, of_whole.members[ids])])])
        here = saved_solves.vectors_in(rest)
        for name, x in saved_solves.vectors_in(run).items():
            rest.vectors.update([(here[name], 0, [(1, x.members[ids])])])
        for name in (*saved_solves.VALUES, "true_sizes", "tolerances", "tightened"):
            value = getattr(run, name)
            setattr(rest, name, value[ids].copy() if np.ndim(value) else value)
        rest.history = [row[ids] for row in run.history]
        rest.took_part = [row[ids] for row in run.took_part]
        rest.set_numbers([read(number)[..., ids] for number in run.numbers])
        if run.outer is not None and rest.outer is not None:
            assert run.outer.scale is not None
            rest.outer.set_scale(rest, run.outer.scale[ids])
            rest.outer.norm_of_A, rest.outer.unit = run.outer.norm_of_A, run.outer.unit
            rest.keep_rule([read(number)[..., ids] for number in run.outer.numbers])
        rest.set_bounds()
        rest.resumed()

    def give_back(self) -> None:
        """Gives the whole what the rest has found since."""
        run, rest, ids = self.whole, self.run, self.ids
        here = saved_solves.vectors_in(run)
        for name, x in saved_solves.vectors_in(rest).items():
            rest.vectors.update([(here[name].members[ids], 0, [(1, x)])])
        begun = len(run.history)
        for row, own in zip(rest.history[begun:], rest.took_part[begun:], strict=True):
            residuals, took_part = run.history[-1].copy(), np.zeros(len(run.labels), bool)
            residuals[ids], took_part[ids] = row, own
            run.history.append(residuals)
            run.took_part.append(took_part)
        for name in saved_solves.VALUES:
            value = getattr(rest, name)
            if np.ndim(value):
                whole = getattr(run, name).copy()
                whole[ids] = value
                setattr(run, name, whole)
            else:
                setattr(run, name, value)
        run.stagnates = rest.stagnates
        for numbers, set_numbers, of_rest in self._numbers():
            values = [read(number).copy() for number in numbers]
            for value, number in zip(values, of_rest, strict=True):
                value[..., ids] = read(number)
            set_numbers(values)
        run.set_bounds()

    def _numbers(self) -> list[tuple[list[Any], Any, list[Any]]]:
        run, rest = self.whole, self.run
        found = [(run.numbers, run.set_numbers, rest.numbers)]
        if run.outer is not None and rest.outer is not None:
            found.append((run.outer.numbers, run.keep_rule, rest.outer.numbers))
        return found


def rest_of(run: Krylov, ids: tuple[int, ...]) -> Rest:
    """The rest of a run, with its state. Raises ParameterError where the operator does not act on a smaller batch, or does something else to these members
    there."""
    wrong = ""
    if ids not in run.rests:
        try:
            rest = Rest(run, ids)
            if not rest.has_the_operator():
                wrong = f"A does something else to the members {value_shown(list(ids))} where they are a batch of their own"
        except (LayoutError, TraceError, ParameterError) as error:
            wrong = f"A does not act on a batch of {len(ids)}: {error}"
        if wrong:
            raise ParameterError(
                f"{run.name}: leave is for operators that do the same to each member of a batch, and {wrong}; leave it out"
            )
        run.rests[ids] = rest
    run.rests[ids].take_over()
    return run.rests[ids]
