"""Gamma matrices for use inside site functions.

A `SpinMatrix` is a 4 x 4 matrix of ordinary numbers that acts on the spin of a spinor. In a kernel a spinor is an (n, 4)
matrix, colour by spin, so `gamma[mu] * psi[X]` mixes columns and leaves colours alone; zeros cost nothing and factors
1, -1, i, -i cost no multiplication. The basis is chiral (DeGrand and Rossi, Comput. Phys. Commun. 60 (1990) 211):

    gamma_1 = [  .  .  .  i ]  gamma_2 = [  .  .  . -1 ]  gamma_3 = [  .  .  i  . ]  gamma_4 = [  .  .  1  . ]
              [  .  .  i  . ]            [  .  .  1  . ]            [  .  .  . -i ]            [  .  .  .  1 ]
              [  . -i  .  . ]            [  .  1  .  . ]            [ -i  .  .  . ]            [  1  .  .  . ]
              [ -i  .  .  . ]            [ -1  .  .  . ]            [  .  i  .  . ]            [  .  1  .  . ]

    gamma_5 = gamma_1 gamma_2 gamma_3 gamma_4 = diag(1, 1, -1, -1)

`gamma[0]` to `gamma[3]` belong to the directions 0 to 3, so gamma_4 belongs to the last direction of a four-dimensional lattice.
They are Hermitian and anticommute: gamma_mu gamma_nu + gamma_nu gamma_mu = 2 delta_mu_nu. All are off-diagonal in
2 x 2 blocks, gamma_mu = [[0, B], [B^dagger, 0]] with B unitary; projection rests on that. Does not depend on lattices.
"""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np

from jali.codegen.language import leaves
from jali.codegen.lines import trace_error
from jali.codegen.state import builder, tracing
from jali.codegen.symbol import Symbol
from jali.codegen.values import Value, matrix
from jali.errors import ParameterError
from jali.files import value_shown

_ENTRIES = {0: "0", 1: "1", -1: "-1", 1j: "i", -1j: "-i"}


class SpinMatrix:
    """A 4 x 4 matrix in spin space.

    Products (`*` or `@`), sums, multiples, `dagger()`; a number in a sum stands for that multiple of the unit matrix, so `1 -
    gamma[mu]` has its usual meaning. Times a spinor symbol `(n, 4)` it is a spinor. `dense()` is the NumPy matrix, which acts
    on NumPy spinors `(..., 4, n)` by `@`. As an argument of a site function it is fixed while tracing: every matrix is a
    kernel of its own, in which zeros cost nothing.
    """

    SITE_CONSTANT = True  # an argument of site functions that is fixed while tracing, known by its value
    __slots__ = ("_rows",)
    __array_ufunc__ = None  # NumPy scalars leave the operation to us

    def __init__(self, rows: Any):
        try:
            array = np.array(rows, dtype=complex)
        except (TypeError, ValueError):
            raise _refusal(
                f"a spin matrix is made of 4 x 4 fixed numbers, not of {value_shown(rows)}"
            ) from None
        if array.shape != (4, 4):
            raise _refusal(f"a spin matrix is 4 x 4, not {array.shape}")
        self._rows = array
        self._rows.setflags(write=False)

    def __repr__(self) -> str:
        rows = (" ".join(f"{_ENTRIES.get(v, f'{v:g}'):>2}" for v in row) for row in self._rows.tolist())
        return "SpinMatrix(" + "; ".join(rows) + ")"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpinMatrix) and bool(np.array_equal(self._rows, other._rows))

    def __hash__(self) -> int:
        return hash(self._rows.tobytes())

    def dense(self) -> np.ndarray:
        """The matrix as a complex NumPy array `(4, 4)`."""
        return self._rows.copy()

    def dagger(self) -> SpinMatrix:
        """Hermitian conjugate."""
        return SpinMatrix(self._rows.conj().T)

    def __neg__(self) -> SpinMatrix:
        return SpinMatrix(-self._rows)

    def __add__(self, other: Any) -> SpinMatrix:
        dense = _dense(other)
        return NotImplemented if dense is None else SpinMatrix(self._rows + dense)

    __radd__ = __add__

    def __sub__(self, other: Any) -> SpinMatrix:
        dense = _dense(other)
        return NotImplemented if dense is None else SpinMatrix(self._rows - dense)

    def __rsub__(self, other: Any) -> SpinMatrix:
        dense = _dense(other)
        return NotImplemented if dense is None else SpinMatrix(dense - self._rows)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Value):
            return self._act(other)
        dense = _dense(other)
        return NotImplemented if dense is None else SpinMatrix(self._rows @ dense)

    __matmul__ = __mul__

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, Value):
            if other.shape:
                raise trace_error(
                    f"a spin matrix acts from the left: gamma[mu] * psi, not {other.node.type} * gamma[mu]"
                )
            raise trace_error("a spin matrix holds fixed numbers: write number * (gamma[mu] * psi)")
        dense = _dense(other)
        return NotImplemented if dense is None else SpinMatrix(dense @ self._rows)

    def _act(self, psi: Value) -> Value:
        """The spinor sum_t M[s, t] psi[c, t]."""
        _check_spinor(psi, 4, "a spin matrix acts on")
        columns = [_combine(self._rows[s], psi) for s in range(4)]
        return _from_columns(columns)


def _refusal(text: str) -> Exception:
    """The error of a mistake made while a function is traced, or outside."""
    return trace_error(text) if tracing() else ParameterError(text)


def _dense(other: Any) -> np.ndarray | None:
    """A spin matrix, or a number as a multiple of the unit matrix; None for what may know how to combine with one.

    Raises ParameterError (TraceError while a function is traced) for Python's and NumPy's own that cannot.
    """
    if isinstance(other, SpinMatrix):
        return other._rows
    if isinstance(other, numbers.Complex) and not isinstance(other, Value):
        return complex(other) * np.eye(4)
    if other is not None and not isinstance(other, str | bytes | list | tuple | dict | set | np.ndarray):
        return None  # symbols and fields raise their own errors
    raise _refusal(
        f"a spin matrix is combined with spin matrices and numbers, and acts on spinors, not on {value_shown(other)}; "
        "its NumPy matrix is dense()"
    )


_B = (
    [[0, 1j], [1j, 0]],
    [[0, -1], [1, 0]],
    [[1j, 0], [0, -1j]],
    [[1, 0], [0, 1]],
)


def _from_block(block: Any) -> SpinMatrix:
    b = np.array(block, dtype=complex)
    return SpinMatrix(np.block([[np.zeros((2, 2)), b], [b.conj().T, np.zeros((2, 2))]]))


gamma = tuple(_from_block(block) for block in _B)
gamma5 = gamma[0] * gamma[1] * gamma[2] * gamma[3]


def project(psi: Value, mu: Any, sign: int) -> Value:
    """The two independent spins of (1 + sign gamma_mu) psi: half a spinor, (n, 2), for `sign` 1 or -1.

    (1 + sign gamma_mu) psi = reconstruct(project(psi, mu, sign), mu, sign); colour matrices may act between the two, at half
    the cost. With gamma_mu = [[0, B], [B^dagger, 0]] and psi = (upper, lower) it is upper + sign B lower.
    """
    _check_spinor(psi, 4, "project takes")
    block = _block(mu, sign)
    rows = sign * block
    lower = psi[:, 2:4]
    return psi[:, 0:2] + _from_columns([_combine(rows[s], lower) for s in range(2)])


def reconstruct(half: Value, mu: Any, sign: int) -> Value:
    """The spinor whose two independent spins `project` kept: (half, sign B^dagger half)."""
    _check_spinor(half, 2, "reconstruct takes")
    block = _block(mu, sign)
    rows = sign * block.conj().T
    upper = [_combine(row, half) for row in np.eye(2)]
    return _from_columns(upper + [_combine(rows[s], half) for s in range(2)])


def _block(mu: Any, sign: int) -> np.ndarray:
    if isinstance(sign, Symbol):
        raise trace_error(
            "the sign of a projector is fixed while tracing, and a number given as an argument is known at run time only; "
            "pass True or False and write 1 if forward else -1, or capture the number"
        )
    if not isinstance(sign, int | float | np.number) or sign not in (1, -1):
        raise trace_error(f"the sign of a projector is 1 or -1, not {value_shown(sign)}")
    try:
        axis = operator.index(mu)
    except TypeError:
        raise trace_error(
            f"a projector has a direction, X.directions()[...] or its number, not {value_shown(mu)}"
        ) from None
    if not 0 <= axis < 4:
        raise trace_error(f"there are gamma matrices for directions 0 to 3, not for {axis}")
    return np.array(_B[axis], dtype=complex)


def _check_spinor(psi: Any, spins: int, what: str) -> None:
    if not isinstance(psi, Value) or len(psi.shape) != 2 or psi.shape[1] != spins:
        found = psi.node.type if isinstance(psi, Value) else value_shown(psi)
        raise trace_error(f"{what} a matrix of n colours by {spins} spins, not {found}")


def _combine(coefficients: Any, psi: Value) -> list[Value]:
    """One column: sum over spins t of coefficients[t] psi[c, t], for every colour c."""
    column = []
    for c in range(psi.shape[0]):
        total: Any = None
        for t, factor in enumerate(coefficients):
            if factor == 0:
                continue
            term = _times(complex(factor), psi[c, t])
            total = term if total is None else total + term
        column.append(Value(leaves.exact(builder(), 0.0)) if total is None else total)
    return column


def _times(factor: complex, value: Value) -> Value:
    if factor.imag == 0:
        return factor.real * value
    return Value(leaves.exact(builder(), factor)) * value


def _from_columns(columns: list[list[Value]]) -> Value:
    return matrix([[column[c] for column in columns] for c in range(len(columns[0]))])


__all__ = ["SpinMatrix", "gamma", "gamma5", "project", "reconstruct"]
