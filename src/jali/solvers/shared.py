"""Options that all Krylov solvers have: when a solve has ended beside the tolerance, where it is saved, what it begins from, and what it prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from jali.comm.validation import integer
from jali.errors import ParameterError
from jali.files import value_shown
from jali.solvers.solver import check_tolerances

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Shared:
    """`cg(A, b, heavy_quark=1e-8, save_to="solve.jali")`.

    - `heavy_quark`: a solve ends when this residual is below it, too: the root of the mean over the sites of |r|^2 / |x|^2, of which a site without x counts 1.
      It sees the far sites of heavy quarks, where x has fallen below |r|. For fields.
    - `deflation`: `jali.solvers.Eigenpairs` of A (for `cgnr` of A^H A): a solve begins with the part of the solution that lies in them, and takes it out of the residual again
      whenever that is computed.
    - `save_to`: a checkpoint, a folder of this name, to which a solve that stops is saved: at `maxiter` (with `must_converge=False`, or before it raises), and where a callback
      raises an exception.
    - `resume`: such a file. The solve goes on in its direction, with its iterations and residuals; A, b and the format are those of
      before, and x0 is not used; the tolerance may be another one. A file of another b, solver or format is refused. `gcr` and `fgmres` go on with the same
      bits where they stopped at the end of a cycle.
    - `workspace`: a `jali.solvers.Workspace()`, which keeps vectors, kernels and graphs for the next solve with the same operator, whose links may have changed. Graphs
      keep numbers, so an operator with another mass gets new ones; one of your own says which numbers change by an attribute `changing_numbers`.
    - `leave`: members of a batch that have converged leave, where no more than half go on and these are likely to take so many iterations or more: the others go on
      as a smaller batch, with the same bits, and the vectors of both. For operators that do the same to each member; on a GPU the kernels of a smaller batch are
      compiled once, for seconds. If left out, and with a callback, all stay: one that has converged takes steps of length zero.
    - `progress`: print a line each second, on the first rank.
    """

    heavy_quark: float | None = None
    deflation: Any = None
    save_to: str | os.PathLike[str] | None = None
    resume: str | os.PathLike[str] | None = None
    workspace: Any = None
    leave: int | None = None
    progress: bool = False

    @classmethod
    def checked(cls, name: str, options: dict[str, Any]) -> Shared:
        """These options. Raises ParameterError for values that make no sense."""
        found = cls(**options)
        if found.heavy_quark is not None:
            check_tolerances(name, heavy_quark=found.heavy_quark)
            if found.heavy_quark == 0:
                raise ParameterError(f"{name}: heavy_quark is above 0")
        for what in ("save_to", "resume"):
            path = getattr(found, what)
            if path is not None and not isinstance(path, str | os.PathLike):
                raise ParameterError(f"{name}: {what} is the name of a file, not {value_shown(path)}")
        if found.workspace is not None and not callable(getattr(found.workspace, "run_of", None)):
            raise ParameterError(
                f"{name}: workspace is a jali.solvers.Workspace(), not {value_shown(found.workspace)}"
            )
        if found.leave is not None and ((number := integer(found.leave)) is None or number < 1):
            raise ParameterError(f"{name}: leave is a positive whole number, not {value_shown(found.leave)}")
        if not isinstance(found.progress, bool):
            raise ParameterError(f"{name}: progress is True or False, not {value_shown(found.progress)}")
        if found.deflation is not None and not callable(getattr(found.deflation, "deflate", None)):
            raise ParameterError(
                f"{name}: deflation is what jali.solvers.lanczos found, Eigenpairs, not {value_shown(found.deflation)}"
            )
        return found


def sharing(function: Function) -> Function:
    """Decorator, below `named`: the function's `**more` are the options of `Shared`."""
    function.more = tuple(field.name for field in fields(Shared))  # type: ignore[attr-defined]
    return function
