"""Other libraries' modules, names and signatures on jali: scripts written for them run after one changed import.

    import jali.compat.pylops_mpi as pylops_mpi

Where imports of a script cannot be changed, `stand_in("pylops_mpi")` before them puts the module under that name.
"""

from __future__ import annotations

import importlib
import sys

from jali.errors import ParameterError

LIBRARIES = ("pylops_mpi",)


def stand_in(library: str) -> None:
    """From now on, in this process, imports of `library` and of its submodules give jali's.

    Raises ParameterError for libraries that jali has no module for, and where the library itself is imported already.
    """
    if library not in LIBRARIES:
        raise ParameterError(f"jali stands in for {', '.join(LIBRARIES)}, not for {library!r}")
    ours = f"{__name__}.{library}"
    module = importlib.import_module(ours)
    if sys.modules.get(library, module) is not module:
        raise ParameterError(f"{library} is imported already; call stand_in({library!r}) before that")
    for name in [name for name in sys.modules if name == ours or name.startswith(ours + ".")]:
        sys.modules[library + name.removeprefix(ours)] = sys.modules[name]


__all__ = ["LIBRARIES", "stand_in"]
