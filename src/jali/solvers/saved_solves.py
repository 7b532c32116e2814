"""A solve that was stopped, in a file: all vectors and numbers of its recursion, so that it goes on as if it had never stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.errors import FileFormatError, ParameterError
from jali.solvers.elementwise import read
from jali.vectors import vectors_of

if TYPE_CHECKING:
    from jali.solvers.krylov import Krylov

_STATE = "jali.solve"
VALUES = (
    "counts",
    "squares",
    "going",
    "best",
    "sizes",
    "limits",
    "iterations",
    "since",
    "improved",
)
_NOT_KEPT = ("b", "outer.b", "outer.r")  # the caller's, and what an update computes
_OF_OUTER = ("scale", "norm_of_A", "unit")


def vectors_in(run: Krylov) -> dict[str, Any]:
    """The vectors of a recursion by name, those of lists with their numbers; without b, which the caller has again."""
    found: dict[str, Any] = {}
    owners = {"": run} if run.outer is None else {"": run, "outer.": run.outer}
    for prefix, owner in owners.items():
        for name, value in vars(owner).items():
            several = value if isinstance(value, list) else [value]
            for k, one in enumerate(several):
                if prefix + name not in (*_NOT_KEPT, *run.scratch) and _is_vector(one, run):
                    found[f"{prefix}{name}" + (f".{k}" if isinstance(value, list) else "")] = one
    return found


def _mark(run: Krylov) -> np.ndarray:
    """The inner product of b and a random vector, by which a file knows b."""
    b = run.b if run.outer is None else run.outer.b
    return np.asarray(run.vectors.inner(run.vectors.random(b, 1), b))


def _is_vector(value: Any, run: Krylov) -> bool:
    return type(value) is type(run.r) and getattr(value, "shape", None) == getattr(run.r, "shape", None)


def save(run: Krylov, path: str | os.PathLike[str]) -> None:
    """Writes the run into a file. Collective. Raises what `Vectors.write` does."""
    about = {
        "solver": run.name,
        "b": _plain(run.true_sizes),
        "mark": _plain(_mark(run)),
        "history": [_plain(one) for one in run.history],
        "took_part": [_plain(one) for one in run.took_part],
        "tightened": _plain(run.tightened),
        "numbers": [_plain(read(number)) for number in run.numbers],
        "rule": [] if run.outer is None else [_plain(read(number)) for number in run.outer.numbers],
    }
    about |= {name: _plain(getattr(run, name)) for name in VALUES}
    if run.outer is not None:
        about |= {f"outer.{name}": _plain(getattr(run.outer, name)) for name in _OF_OUTER}
    run.vectors.write(path, vectors_in(run), {_STATE: about})


def resume(run: Krylov, path: str | os.PathLike[str]) -> None:
    """Gives a run that has just begun the state of a file.

    Raises ParameterError for that of another solver, format or b, FileFormatError for what is no solve, and what `Vectors.reader` does.
    """
    name = os.fsdecode(path)
    state, vector = run.vectors.reader(path, run.r)
    about = state.get(_STATE)
    if not isinstance(about, dict) or "solver" not in about:
        raise FileFormatError(f"{name} holds no solve")
    kept = ("numbers", "rule", "history", "took_part", "tightened", *VALUES)
    if missing := [what for what in kept if what not in about]:
        raise FileFormatError(
            f"{name} holds a solve without {', '.join(missing)}: it is damaged, or of another state of jali"
        )
    if about["solver"] != run.name:
        raise ParameterError(f"{run.name}: {name} holds a solve by {about['solver']}")
    here = vectors_in(run)
    if ("outer.scale" in about) != (run.outer is not None):
        raise ParameterError(
            f"{run.name}: the solve in {name} {'has' if run.outer is None else 'has no'} inner operator"
        )
    mark = _mark(run)
    if not np.allclose(_array(about["b"]), run.true_sizes, rtol=1e-12, atol=0) or not np.allclose(
        _array(about["mark"]), mark, rtol=1e-9, atol=1e-12 * float(np.max(np.abs(mark)))
    ):
        raise ParameterError(
            f"{run.name}: {name} is about another b: |b| is {about['b']} there and {_plain(run.true_sizes)} here, its product with a random vector "
            f"{about['mark']} and {_plain(mark)}"
        )
    for what, x in here.items():
        found = vector(what)
        vectors_of("b", x).check(f"{name}: {what}", found, x)
        run.vectors.update([(x, 0, [(1, found)])])
    for what in VALUES:
        value = about[what]
        setattr(
            run,
            what,
            value if isinstance(value, int) and not isinstance(value, bool) else _array(value),
        )
    run.counts = np.asarray(run.counts, int)
    run.tightened = _array(about["tightened"])
    run.tolerances = run.tolerances * run.tightened
    if run.outer is None:
        run.limits = run.tolerances
    run.history = [_array(one) for one in about["history"]]
    run.took_part = [_array(one) for one in about["took_part"]]
    run.going = run.history[-1] > run.limits
    run.set_numbers([_array(one) for one in about["numbers"]])
    if run.outer is not None:
        for what in _OF_OUTER:
            value = about[f"outer.{what}"]
            if what == "scale":
                run.outer.set_scale(run, _array(value))
            else:
                setattr(run.outer, what, value)
        run.keep_rule([_array(one) for one in about["rule"]])
    run.set_bounds()
    run.resumed()


def _plain(value: Any) -> Any:
    """A number, or an array of them, as values of JSON."""
    if value is None:
        return None
    value = np.asarray(value)
    if value.dtype.kind == "c":
        return {"real": value.real.tolist(), "imag": value.imag.tolist()}
    return value.tolist()


def _array(value: Any) -> np.ndarray:
    if isinstance(value, dict):
        return np.asarray(value["real"]) + 1j * np.asarray(value["imag"])
    return np.asarray(value)
