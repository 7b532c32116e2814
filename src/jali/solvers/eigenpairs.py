"""Eigenpairs of a Hermitian operator, and what they are for: the part of a solution that lies within the vectors, which solvers begin with.

Vectors may be kept in few bits, of which sums and inner products take the values; they are orthonormal up to the rounding of their storage.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jali.errors import FileFormatError, ParameterError
from jali.files import value_shown
from jali.solvers.eigs import Eigenpair
from jali.solvers.operators import adjoint_into_of, digest_of, digests_agree, into_of
from jali.solvers.subspaces import meeting, operations
from jali.vectors import vectors_of

_STATE, _NAME = "eigenpairs", "v"  # in files
_ARRAYS = "values", "residuals", "accuracy"
_NUMBERS = "applications", "iterations", "bound", "rounding", "converged", "digest"


@dataclass(frozen=True, repr=False)
class Eigenpairs:
    """Eigenvalues, ascending, and their vectors, orthonormal; `pairs[k]` is an `Eigenpair`.

    `residuals` are |A v - lambda v| of vectors of norm 1, computed with A, and `bound` what they are compared with; `applications` are those of A, of
    all purposes; `iterations` the steps of the recursion. `converged`: all residuals are within the bound, and a search from another
    random vector found no further eigenvalue. `rounding` is the eigenvalue that is zero up to rounding. `accuracy` bounds the errors of the values:
    residuals, of vectors that are kept in fewer bits those of before. `digest` is that of A, where it has one: of Dirac operators that of their links.
    """

    values: np.ndarray
    vectors: list[Any]
    residuals: np.ndarray
    applications: int
    iterations: int
    bound: float
    rounding: float
    converged: bool
    kept_accuracy: np.ndarray | None = None
    digest: Any = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, k: int) -> Eigenpair:
        return Eigenpair(float(self.values[k]), self.vectors[k], self.iterations)

    def __repr__(self) -> str:
        how = "converged" if self.converged else "not all converged"
        return (
            f"<{len(self)} eigenpairs, {how}, from {self.values[0]:.6g} to {self.values[-1]:.6g}, "
            f"largest residual {self.residuals.max():.2g}, {self.applications} applications>"
        )

    @property
    def accuracy(self) -> np.ndarray:
        """Within so much of each value there is an eigenvalue of A."""
        return self.residuals if self.kept_accuracy is None else self.kept_accuracy

    # ---- files -----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes them into a checkpoint, which `Eigenpairs.read` reads. Collective; an older one under the name stays until the new one is complete.

        Vectors are kept as they are stored, bit for bit: fields, arrays and distributed arrays. Raises ParameterError for lists of vectors, OSError, the same
        on all ranks.
        """
        about: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        for name in _ARRAYS:
            about[name] = np.asarray(getattr(self, name), float).tolist()
        named = {f"{_NAME}{k}": x for k, x in enumerate(self.vectors)}
        vectors_of("save: an eigenvector", self.vectors[0]).write(path, named, {_STATE: about})

    @classmethod
    def read(cls, path: str | os.PathLike[str], like: Any, A: Any = None) -> Eigenpairs:
        """What `save` has written, for vectors like one, on any number of ranks. Collective.

        With A, the operator that they are for, eigenvectors of another configuration are refused; without it `check` does so.

        Raises:
            ParameterError: they belong to an operator with another digest.
            LayoutError: they have another form than `like`, which may have another precision and storage.
            FileFormatError: damage, and files that hold something else.
            OSError: it cannot be read. All of these are the same on all ranks.
        """
        state, vector = vectors_of("read: like", like).reader(path, like)
        about = state.get(_STATE)
        if not isinstance(about, dict) or set(about) != {*_NUMBERS, *_ARRAYS}:
            raise FileFormatError(f"{os.fsdecode(path)} holds no eigenpairs")
        arrays = {name: np.array(about[name], float) for name in _ARRAYS}
        count = len(arrays["values"])
        if not count or any(array.shape != (count,) for array in arrays.values()):
            raise FileFormatError(f"{os.fsdecode(path)}: what it says of its eigenpairs makes no sense")
        known: dict[str, Any] = {name: about[name] for name in _NUMBERS} | arrays
        known["kept_accuracy"] = known.pop("accuracy")
        found = cls(vectors=[like], **known)
        if A is not None:
            found.check(A)
        first = vector(f"{_NAME}0")
        meeting(f"{os.fsdecode(path)}: an eigenvector", first, like)
        of_first = operations(first)
        vectors = of_first.several(first, count)
        for k, x in enumerate(vectors):
            of_first.update([(x, 0, [(1, vector(f"{_NAME}{k}") if k else first)])])
        return replace(found, vectors=vectors)

    def check(self, A: Any) -> None:
        """Raises ParameterError where A has another digest than the operator of these pairs: where they are eigenvectors of another gauge configuration."""
        check_digest(self.digest, A)

    # ---- deflation -----------------------------------------------------------------------------------------

    def deflate(self, b: Any, of: Any = None) -> Any:
        """The solution of A x = b within these vectors, sum_k v_k <v_k, b> / lambda_k: the x0 with which a solver begins.

        `cg(A, b, x0=pairs.deflate(b))`; the solver is left with the part of b outside of them. b is not changed. It may be of another precision than the
        vectors, and of a batch each member has its x0. Where these are eigenvectors of D^H D, `deflate(b, of=D)` is the x0 of D x = b, sum_k v_k
        <v_k, D^H b> / lambda_k; for those of gamma5 D it is `deflate(gamma5 b)`.

        Raises:
            ParameterError: an eigenvalue is zero up to rounding, or within its accuracy; b is a vector of another kind; D has another digest.
            LayoutError: b has another form than the vectors.
        """
        if of is not None:
            self.check(of)
            between = b
            b = vectors_of("deflate: b", b).like(b)
            adjoint_into_of("deflate: of", of, vectors_of("deflate: b", b))(between, b)
        x0 = meeting("deflate: b", b, self.vectors[0]).like(b)
        self.correct(b, x0)
        return x0

    def correct(self, r: Any, x: Any) -> None:
        """Adds to x the solution of A e = r within these vectors: where r = b - A x has such a part again, as after a restart. Raises what `deflate` does."""
        for k, (value, accuracy) in enumerate(zip(self.values, self.accuracy, strict=True)):
            if abs(value) <= max(self.rounding, accuracy):
                why = (
                    "rounding, which divides nothing"
                    if abs(value) <= self.rounding
                    else f"its residual {accuracy:.3g}; a smaller rtol tells it from zero"
                )
                raise ParameterError(f"deflate: the eigenvalue {k}, {value:.3g}, is zero within {why}")
        self._add_within(r, x, 1 / self.values)

    def project(self, b: Any) -> Any:
        """The part of b outside of these vectors, b - sum_k v_k <v_k, b>, a new vector. Raises LayoutError, ParameterError as `deflate` does."""
        y = meeting("project: b", b, self.vectors[0]).copy(b)
        self._add_within(b, y, -np.ones(len(self)))
        return y

    def preconditioner(self, level: float | None = None) -> Callable[[Any, Any], None]:
        """The M of `cg(A, b, M=M)` that lifts the eigenvalues of A to `level`, by default the largest one here: r + sum_k v_k (level / lambda_k - 1) <v_k, r>.

        It needs no precise vectors: with M the solution is that of A x = b, whatever they are. Raises ParameterError unless all eigenvalues are positive.
        """
        level = float(self.values[-1]) if level is None else float(level)
        if not (self.values[0] > 0 and level > 0):
            raise ParameterError(
                f"preconditioner: eigenvalues and their level are positive, not {self.values[0]:.3g} and {level:.3g}"
            )
        factors = level / self.values - 1

        def lift(r: Any, z: Any) -> None:
            meeting("preconditioner: r", r, self.vectors[0]).update([(z, 0, [(1, r)])])
            self._add_within(r, z, factors)

        return lift

    def _add_within(self, b: Any, y: Any, factors: np.ndarray) -> None:
        """y += sum_k factors_k v_k <v_k, b>."""
        of_b = meeting("b", b, self.vectors[0])
        products = of_b.inner_products(self.vectors, b)
        of_b.add_several(y, (factors * products.T).T, self.vectors)

    # ---- storage -------------------------------------------------------------------------------------------

    def stored(self, storage: str, A: Any) -> Eigenpairs:
        """The same with vectors kept in fewer bits, for deflation: of fields in one of their storage formats, such as "float16" or "fixed16", of arrays in
        "float32" (real ones in "float16").

        Values stay, and `accuracy`; `residuals` are measured with A, which is applied once to each vector as it is stored. What rounding does to a vector of
        n bits is about 2^-n |A|, which may be more than small eigenvalues: the solver that begins with such vectors takes it away.

        Raises LayoutError, ParameterError for a format that there is not, and for an operator with another digest.
        """
        self.check(A)
        vectors = operations(self.vectors[0])
        found = self.stored_by(vectors.stored(self.vectors[0], storage), into_of("stored: A", A, vectors))
        return replace(found, applications=self.applications + len(self))

    def stored_by(self, zeros: Any, of_A: Callable[[Any, Any], object]) -> Eigenpairs:
        """As `stored`, in vectors like this one of zeros, with a function that writes A p into q."""
        vectors, residuals = operations(self.vectors[0]), []
        kept = vectors.several(zeros, len(self))
        full, image = vectors.stored(self.vectors[0]), vectors.stored(self.vectors[0])
        for value, x, y in zip(self.values, self.vectors, kept, strict=True):
            vectors.update([(y, 0, [(1, x)])])
            vectors.update([(full, 0, [(1, y)])])
            of_A(full, image)
            residual = vectors.update([(image, 1, [(-float(value), full)])], norm=True)
            residuals.append(math.sqrt(residual / vectors.norm2(full)))
        return replace(self, vectors=kept, residuals=np.array(residuals), kept_accuracy=self.accuracy)


def check_digest(digest: Any, A: Any) -> None:
    """Raises ParameterError where A has another digest than this one, of the operator of eigenvectors."""
    other = digest_of(A)
    if not digests_agree(digest, other):
        raise ParameterError(
            f"these eigenvectors belong to an operator of other links, or other data: their digest is {_shown(digest)}, that of the operator "
            f"{_shown(other)}"
        )


def _shown(digest: Any) -> str:
    if isinstance(digest, dict) and "numbers" in digest:
        return ", ".join(f"{number:.6g}" for number in digest["numbers"])
    return value_shown(digest)
