"""Keywords that a function does not have: a TypeError that names the nearest one that it has, and all the others.

`named` decorates functions with several options. The words of other libraries, and what is called otherwise in one of them, are
in `ELSEWHERE`; for others the nearest spelling counts. Arguments are passed unchanged: there are no aliases.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

ELSEWHERE = {
    "tol": ("rtol", "atol", "tolerance"),
    "tolerance": ("rtol", "atol"),
    "reltol": ("rtol",),
    "abstol": ("atol",),
    "rtol": ("atol", "btol", "tolerance"),
    "rtol1": ("cost_btol",),
    "niter": ("maxiter",),
    "max_iterations": ("maxiter",),
    "iterations": ("maxiter",),
    "max_iter": ("maxiter",),
    "maxit": ("maxiter",),
    "iter_lim": ("maxiter",),
    "limit": ("maxiter",),
    "niterback": ("max_backtracks",),
    "every": ("check_interval",),
    "callbacks": ("callback",),
    "callbackz": ("callback_pair",),
    "callbacky": ("callback_pair",),
    "preconditioner": ("M",),
    "kwargs_solver": ("solver_options",),
    "eigsdict": ("eigs_options",),
    "verb": ("show",),
    "verbose": ("show",),
    "apply": ("A",),
    "Op": ("A",),
    "operator": ("A",),
    "y": ("b",),
    "rhs": ("b",),
    "guess": ("x0",),
    "b_k": ("like",),
    "v0": ("like",),
    "comm": ("base_comm",),
    "communicator": ("base_comm",),
    "proc_grid_shape": ("grid",),
    "grid_shape": ("grid",),
    "orig_shape": ("global_shape",),
}
"""Names that differ here: the words that may be meant, where the function has them."""


def named(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator: an unknown keyword is a TypeError that lists the known ones, the nearest first."""
    parameters = inspect.signature(function).parameters.values()
    words = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    words += getattr(function, "more", ())  # of its `**more`, which a decorator below this one names
    is_method = words[:1] == ["self"]
    if is_method:
        del words[0]
    known = frozenset(words)

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        if not known.issuperset(options):
            name = f"{type(arguments[0]).__name__}.{function.__name__}" if is_method else function.__name__
            raise unknown(name.removesuffix(".__init__"), options, words)
        return function(*arguments, **options)

    return call


def unknown(name: str, given: Iterable[str], words: Iterable[str]) -> TypeError:
    """The error for the first of `given` that is none of `words`, which are the arguments of the function of this name."""
    words = list(words)
    wrong = next(word for word in given if word not in words)
    meant = [word for word in ELSEWHERE.get(wrong, ()) if word in words]
    nearest = sorted(
        words, key=lambda word: (word not in meant, -difflib.SequenceMatcher(None, wrong, word).ratio())
    )
    hint = f"here it is {' or '.join(meant)}" if meant else f"the nearest is {nearest[0]}"
    return TypeError(f"{name} has no argument {wrong!r}; {hint}; there are {', '.join(nearest)}")
