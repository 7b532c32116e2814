"""`Vectors`: the operations that solvers need. Zeros, copies, inner products and fused updates."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jali.errors import ParameterError
from jali.vectors.files import Read

Assignment = tuple[Any, Any, Sequence[tuple[Any, Any]]]
"""(y, c, [(a, x), ...]): y becomes c y + a x + ... Factors 0, 1 and -1 as whole numbers cost nothing."""


Partial = tuple[Any, Any]
"""A number of this rank, and the communicator over which it is summed: None where it is the sum already."""


def vectors_in(assignments: Sequence[Assignment]) -> list[Any]:
    """All vectors of an update."""
    return [x for y, _, terms in assignments for x in (y, *(x for _, x in terms))]


class Vectors(Protocol):
    """The operations of one kind of vector. Numbers are Python's; where `wait` is False they may be `jali.Scalar`s."""

    def check(self, name: str, x: Any, like: Any) -> None:
        """Raises LayoutError, a sentence that begins with `name`, unless x could be added to `like`."""

    def like(self, x: Any, precision: str | None = None) -> Any:
        """A vector of zeros; with `precision`, "float32" or "float64", of this arithmetic and with the numbers of it as its storage.

        Raises ParameterError for another precision, LayoutError for whole numbers.
        """

    def stored(self, x: Any, storage: str | None = None) -> Any:
        """A vector of zeros like x, of the same arithmetic, whose numbers are kept as `storage` says; left out, as those of the arithmetic.

        Of fields `storage` is that of `Field`; arrays have "float64", "float32" and, real ones, "float16". Raises LayoutError, ParameterError for
        another one.
        """

    def storage(self, x: Any) -> str:
        """The name of how its numbers are kept, as `stored` takes it."""

    def batch_of(self, x: Any, count: int) -> Any:
        """A vector of zeros with a batch of so many, each like x; None where x cannot have one."""

    def copy(self, x: Any) -> Any:
        """A vector with the same values."""

    def random(self, x: Any, seed: int) -> Any:
        """A vector like x of random numbers, uniform in (-1, 1) each, which belong to elements: the same on any number of ranks."""

    def ranks(self, x: Any) -> list[Any]:
        """The communicators of the ranks that compute with it together; none where there is one rank."""

    def epsilon(self, x: Any) -> float:
        """The distance from 1 to the next number of its arithmetic."""

    def precision(self, x: Any) -> str:
        """The name of its arithmetic."""

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        """Sum of conj(x) y. Where y is A x, `jali.solvers.operators.apply_inner_of` asks the operator for it first."""

    def norm2(self, x: Any, wait: bool = True) -> Any:
        """Sum of |x|^2."""

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        """The assignments one after the other, in as few passes over memory as it can; with `norm` the sum of |y|^2 of the y that was
        assigned last, as it is stored.

        Vectors may be of several precisions: an assignment is computed in the widest of its vectors (of fields, in the widest of all
        assignments), and rounded once, when it is stored. A factor is rounded to the arithmetic, as IEEE 754 has it. Raises LayoutError
        for whole numbers and where a complex value would become a real one, ParameterError for a factor that is no number.
        """

    def several(self, x: Any, count: int) -> list[Any]:
        """So many vectors of zeros like x, for which, and the first of which, the next three methods are fast."""

    def inner_products(self, xs: Sequence[Any], y: Any) -> np.ndarray:
        """The inner product of each x with y, as numbers of the host; where they are those of members of a batch, a row for each x."""

    def add_several(self, y: Any, factors: np.ndarray, xs: Sequence[Any], own: int = 1) -> None:
        """y = own y + the sum of factors times xs; own is 0 or 1. A row of factors has one for each member of y, and y is no x."""

    def combine_several(self, ys: Sequence[Any], S: np.ndarray, xs: Sequence[Any]) -> None:
        """y_k = the sum over i of S_ik x_i, for matrices of numbers; no y is an x, nor of the same set."""

    def partial_sums(self, x: Any, y: Any) -> list[Partial]:
        """Numbers whose sum over the ranks that are named is that of conj(x) y, or of `y` of each part of x where it is a function:
        see `sums`."""

    def parts(self, x: Any) -> list[Any]:
        """This rank's numbers of it as arrays, of the library that it has: to read."""

    def with_parts(self, x: Any, parts: Sequence[Any]) -> Any:
        """A vector of the form of x with these numbers on this rank."""

    def memory(self, x: Any) -> list[Any]:
        """What holds its numbers: where two vectors have one of these in common, writing one changes the other."""

    def count(self, x: Any) -> float:
        """How many numbers it has, of all ranks; of a batch each member."""

    def write(self, path: str | os.PathLike[str], named: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Writes vectors of one form by name into a file, and `state`, values of JSON with names, the same on all ranks. Collective.

        An older file stays until the new one is complete. Raises ParameterError, LayoutError, OSError, the same on all ranks.
        """

    def reader(self, path: str | os.PathLike[str], like: Any) -> tuple[dict[str, Any], Read]:
        """What `write` wrote, on any number of ranks: the state, and a function that reads a vector by name, in the form of `like`. Collective.

        Raises FileFormatError, LayoutError where the file holds vectors of another form, OSError, the same on all ranks.
        """

    def mean_ratio(self, r: Any, x: Any) -> Any:
        """The mean over sites of |r|^2 / |x|^2, where a site without x counts 1; of a batch for each member. Raises ParameterError for vectors without sites."""

    def repeats(self, x: Any) -> bool:
        """Whether calls on it can be recorded in a graph: only then are `number` and `graph` called, and `wait` is False."""

    def check_interval(self, x: Any) -> int:
        """After how many repetitions of a graph it pays to read a number."""

    def number(self, x: Any, value: Any) -> Any:
        """A `jali.Scalar` beside it that can be assigned."""

    def graph(self, x: Any, step: Callable[[], Any], kept: int = 0) -> Any:
        """The calls of `step` as a `jali.Graph`, which keeps the results of so many repetitions."""


class WithoutGraphs:
    """For vectors whose operations the host starts one by one, and which have no batches and no files."""

    def write(self, path: str | os.PathLike[str], named: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        raise ParameterError("these vectors have no files: a list or a stack is saved part by part")

    def reader(self, path: str | os.PathLike[str], like: Any) -> tuple[dict[str, Any], Read]:
        raise ParameterError("these vectors have no files: a list or a stack is read part by part")

    def batch_of(self, x: Any, count: int) -> Any:
        return None

    def count(self, x: Any) -> float:
        """By a vector of ones."""
        ones = self.with_parts(x, [0 * part + 1 for part in self.parts(x)])  # type: ignore[attr-defined]
        return float(self.norm2(ones))  # type: ignore[attr-defined]

    def mean_ratio(self, r: Any, x: Any) -> Any:
        raise ParameterError("the heavy-quark residual is one of fields: these vectors have no sites")

    def repeats(self, x: Any) -> bool:
        return False

    def check_interval(self, x: Any) -> int:
        return 1

    def number(self, x: Any, value: Any) -> Any:
        raise ParameterError("these vectors know no graphs")

    def graph(self, x: Any, step: Callable[[], Any], kept: int = 0) -> Any:
        raise ParameterError("these vectors know no graphs")
