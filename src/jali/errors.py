"""The exceptions that jali raises.

One class per kind of mistake, so that a program can distinguish bad input from a broken machine. Every
message states what was wrong, where, and what would be right.
"""

from __future__ import annotations

from typing import Any


class JaliError(Exception):
    """Base of every exception that jali raises on purpose."""


class TraceError(JaliError):
    """A site function contains something that cannot be compiled to a kernel.

    Raised while the function is traced, before anything runs; the message ends with the user's file and line.
    """


class FileFormatError(JaliError):
    """A file is not what it claims to be: unknown format, wrong size, wrong checksum, impossible header."""


class LayoutError(JaliError):
    """A lattice cannot be laid out as requested: bad extents, impossible rank grid, halo wider than the local box."""


class ShapeError(LayoutError, ValueError):
    """Shapes, partitions or operators of distributed arrays do not fit each other."""


class StorageError(JaliError):
    """A value does not fit the format in which its field is stored, such as 1e6 in float16."""


class SingularError(JaliError, ArithmeticError):
    """A matrix of a site whose factor is asked for is not positive definite, or one whose inverse is asked for is singular.

    Raised when what was computed with it is read; the message names the site and the pivot.
    """


class UnsetError(JaliError):
    """Something is read before anything has set it: the links of a gauge field that was never started."""


class RankError(JaliError):
    """Another rank failed, died or stopped responding; has the first cause and its rank."""


class CompileError(JaliError):
    """No usable C++ compiler, or the compiler rejected a generated kernel."""


class DeviceError(JaliError):
    """A GPU cannot be used: no driver, too old a driver, no such device, or the driver reports an error."""


class ParameterError(JaliError):
    """A parameter file, a command-line override or an argument holds an unknown key or an impossible value."""


class PlanError(ParameterError):
    """A composition of collectives, the parameters of its plan or the plan itself makes no sense."""


class CheckError(PlanError):
    """The schedules of all ranks do not implement their composition.

    `kind` is one of structure, bounds, message, deadlock, race, unwritten, overwritten, contribution, scratch and
    hierarchy; `rank` and `step` locate it (-1: not at a certain one).
    """

    def __init__(self, text: str, kind: str, rank: int, step: int) -> None:
        super().__init__(text)
        self.kind = kind
        self.rank = rank
        self.step = step


class RecordingError(JaliError):
    """A call cannot become part of a graph: it needs the host, random numbers, or another device. Ends with the user's line."""


class SolverError(JaliError):
    """A solver broke down or did not converge: the operator is not what the solver needs, or the bound is too small.

    `history` has |r| / |b| before the first and after each iteration so far, of a batch a list of those of its members.
    """

    def __init__(self, message: str = "", history: list[Any] | None = None):
        super().__init__(message)
        self.history = history or []
