"""Operators of one rank's arrays: what `pylops` and SciPy call a linear operator, and plain matrices, in one form.

They are applied to flat arrays and write their result into a part of another, whose type holds it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, is_complex, namespace_by_name, namespace_of
from jali.errors import ParameterError, ShapeError


class LocalOperator:
    """Anything with `shape`, `dtype`, `matvec` and `rmatvec`, or a matrix of NumPy or CuPy.

    `forward(x, out)` and `adjoint(x, out)` apply it, where its `dtype` is real to the real and the imaginary parts of complex
    vectors. Tensors of PyTorch are passed to it as arrays of NumPy or CuPy in the same memory, by DLPack. Raises ParameterError
    for an object that is not an operator.
    """

    def __init__(self, op: Any) -> None:
        self.op = op
        shape, dtype = getattr(op, "shape", None), getattr(op, "dtype", None)
        self.dtype = dtype_of_numpy(np.float64 if dtype is None else dtype)
        try:
            self.rows, self.columns = map(operator.index, shape)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ParameterError(
                f"a local operator has a shape (rows, columns), {type(op).__name__} has {shape!r}"
            ) from None
        if callable(getattr(op, "matvec", None)) and callable(getattr(op, "rmatvec", None)):
            self.forward, self.adjoint = self._by_functions("matvec"), self._by_functions("rmatvec")
        elif type(op).__module__.partition(".")[0] in ("numpy", "cupy") and hasattr(op, "__array_ufunc__"):
            self.forward, self.adjoint = self._by_matrix(True), self._by_matrix(False)
        else:
            raise ParameterError(
                f"a local operator has matvec and rmatvec, as those of pylops and SciPy have, or is a matrix of NumPy or CuPy, not "
                f"{type(op).__name__}: scipy.sparse.linalg.aslinearoperator and pylops.MatrixMult make one of a sparse matrix"
            )

    def __repr__(self) -> str:
        return repr(self.op) if hasattr(self.op, "matvec") else f"the matrix of shape {self.op.shape}"

    def _by_matrix(self, forward: bool) -> Callable[[Any, Any], None]:
        matrix, namespace = self.op if forward else self.op.T, namespace_of(self.op)
        matmul, conjugate = namespace.xp.matmul, namespace.xp.conjugate
        conjugated = not forward and matrix.dtype.kind == "c"  # conj(A^T conj(x)), without a copy of A

        def apply(x: Any, out: Any) -> None:
            if namespace_of(x) is not namespace:
                borrowed = _borrowed(x)
                if namespace_of(borrowed) is not namespace:
                    raise ParameterError(
                        f"{self!r} is of {namespace.name}, the vector of {namespace_of(x).name}: put the matrix where vectors are"
                    )
                found = matmul(matrix, conjugate(borrowed) if conjugated else borrowed)
                out[...] = _as(conjugate(found) if conjugated else found, out, repr(self))
                return
            matmul(matrix, conjugate(x) if conjugated else x, out=out)
            if conjugated:
                conjugate(out, out=out)

        return apply

    def _by_functions(self, name: str) -> Callable[[Any, Any], None]:
        given = getattr(self.op, name)
        # SciPy's own method makes NumPy's arrays of its argument, which those of devices refuse; behind it is what a user wrote
        by_scipy = getattr(getattr(type(self.op), name, None), "__module__", None) or ""
        beyond_numpy = getattr(self.op, f"_{name}") if by_scipy.startswith("scipy.") else given
        real = getattr(self.op, "clinear", True) and self.dtype.kind != "c"

        def apply(x: Any, out: Any) -> None:
            x = x if type(x) is np.ndarray else _borrowed(x)
            function = given if type(x) is np.ndarray else beyond_numpy
            if real and x.dtype.kind == "c":  # which operators of real numbers may take for real ones
                copy = namespace_of(x).contiguous
                found = function(copy(x.real)) + 1j * function(copy(x.imag))
            else:
                found = function(x)
            if type(found) is not type(out):
                found = _as(found, out, f"{name} of {self!r}")
            if found.shape != out.shape:
                if math.prod(found.shape) != out.shape[0]:
                    raise ShapeError(
                        f"{name} of {self!r} gave an array of shape {tuple(found.shape)}, not of {out.shape[0]} elements"
                    )
                found = found.reshape(-1)
            if found.dtype != out.dtype and is_complex(found) and not is_complex(out):
                raise ParameterError(
                    f"{name} of {self!r} gave {found.dtype}, which would lose its imaginary part in {out.dtype}: give the operator "
                    "a complex dtype, or complex vectors"
                )
            out[...] = found

        return apply


def _borrowed(x: Any) -> Any:
    if namespace_of(x).name != "torch":
        return x
    name = "numpy" if x.device.type == "cpu" else "cupy"
    try:
        namespace = namespace_by_name(name)
    except ParameterError as error:
        raise ParameterError(
            f"local operators compute on tensors of a device by way of CuPy: {error}"
        ) from None
    return namespace.sharing(x)


def _as(found: Any, like: Any, what: str) -> Any:
    """A result of another library, in that of `like`."""
    try:
        namespace = namespace_of(found)
    except ParameterError:
        raise ParameterError(f"{what} gave {type(found).__name__}, not an array") from None
    wanted = namespace_of(like)
    if wanted.name == "torch":
        return wanted.sharing(found)
    if wanted.name == namespace.name:  # a class of its own, such as a matrix
        return found
    raise ParameterError(
        f"{what} gave an array of {namespace.name} for one of {wanted.name}: it should compute where its input is"
    )
