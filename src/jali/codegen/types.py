"""Element types: what a field holds at a site, and how a value looks inside a kernel.

A `Type` is what the compiler sees: a kind and a shape. An `Element` is what the user names (`SU(3)`, `Spinor(3)`): a
`Type`, the reals that it is given by (its codec), and its NumPy face. Precision is not part of either, nor is memory
(`storage_formats.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.codegen.arithmetics import ARITHMETICS
from jali.errors import LayoutError, StorageError
from jali.files import value_shown

KINDS = ("bool", "int", "real", "complex")
MOST_COMPONENTS = 1 << 16  # of an element; kernels name each, and reach their limits long before


@dataclass(frozen=True, slots=True)
class Type:
    """Kind (`bool`, `int`, `real`, `complex`) and shape (`()`, `(n,)`, `(n, m)`) of a value in a kernel."""

    kind: str
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of components."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def reals(self) -> int:
        """Number of real (or integer, or boolean) numbers: two for each complex component."""
        return self.size * (2 if self.kind == "complex" else 1)

    def __str__(self) -> str:
        if not self.shape:
            return self.kind
        name = "Vector" if len(self.shape) == 1 else "Matrix"
        return f"{self.kind} {name}({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class Element:
    """What a field holds at each site. Use the constructors `Real`, `Complex`, `Vector`, `Matrix`, `SU`, `Algebra`, `Hermitian`,
    `Spinor`.

    `codec` is how the value is stored: `plain` (every real, row by row, re and im interleaved), `algebra` (the n*n - 1 independent
    reals of a traceless anti-Hermitian matrix) or `hermitian` (the n*n of a Hermitian one).
    """

    name: str
    type: Type
    codec: str = "plain"
    spinor: bool = False

    def __post_init__(self) -> None:
        if not self.name.isprintable() or "\\" in self.name:
            raise LayoutError(f"the name of an element type is printed in kernels; {self.name!r} cannot be")
        if self.type.size > MOST_COMPONENTS:
            raise LayoutError(
                f"{self.name} has {self.type.size} components; an element has at most {MOST_COMPONENTS}, "
                "because kernels write out what they do with each"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def stored_reals(self) -> int:
        """Reals stored per site."""
        if self.codec == "algebra":
            n = self.type.shape[0]
            return max(1, n * n - 1)
        return self.type.size if self.codec == "hermitian" else self.type.reals

    @property
    def numpy_shape(self) -> tuple[int, ...]:
        """Shape of one element in NumPy; a `Spinor(n)` is `(4, n)`: spin, colour."""
        return self.type.shape[::-1] if self.spinor else self.type.shape

    def numpy_dtype(self, precision: str) -> np.dtype[Any]:
        """`float64` or `float32`, or the complex or whole numbers of the same precision."""
        return ARITHMETICS[precision].dtype(self.type.kind)

    def check(self, array: np.ndarray, precision: str) -> None:
        """Raises LayoutError for numbers of another kind, matrices of another symmetry and whole numbers that this precision cannot hold,
        StorageError for others that it cannot."""
        if self.type.kind == "real" and np.iscomplexobj(array):
            raise LayoutError(f"{self.name} is real, the array is {array.dtype}")
        if self.type.kind == "int" and array.dtype.kind not in "iub":
            raise LayoutError(f"{self.name} holds whole numbers, the array is {array.dtype}")
        if self.codec == "hermitian":
            _check_hermitian(self, array, precision)
        dtype = self.numpy_dtype(precision)
        if not array.size or np.can_cast(array.dtype, dtype, "safe"):
            return
        if self.type.kind == "int":
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            if int(array.min()) < least or int(array.max()) > most:
                raise LayoutError(
                    f"{self.name} holds {dtype}; the array reaches from {array.min()} to {array.max()}"
                )
        else:
            with np.errstate(over="ignore"):
                lost = ~np.isfinite(array.astype(dtype)) & np.isfinite(array)
            if lost.any():
                raise StorageError(
                    f"{int(lost.sum())} of the numbers given are too large for {dtype}; scale them, or take float64"
                )

    def to_reals(self, values: Any, precision: str) -> np.ndarray:
        """Turn an array `(..., *numpy_shape)` into the stored reals `(..., stored_reals)`.

        Raises LayoutError when the trailing shape is not that of this element.
        """
        array = np.asarray(values)
        if array.shape[array.ndim - len(self.numpy_shape) :] != self.numpy_shape or array.ndim < len(
            self.numpy_shape
        ):
            raise LayoutError(
                f"{self.name} elements have shape {self.numpy_shape}, the array has {array.shape}"
            )
        self.check(array, precision)
        array = array.astype(self.numpy_dtype(precision), copy=False)
        if self.type.kind == "int":
            return np.ascontiguousarray(array)[..., None]
        if self.spinor:
            array = np.swapaxes(array, -1, -2)
        lead = array.shape[: array.ndim - len(self.type.shape)]
        if self.codec == "algebra":
            return np.ascontiguousarray(_algebra_to_reals(array), dtype=precision)
        if self.codec == "hermitian":
            return np.ascontiguousarray(_hermitian_to_reals(array), dtype=precision)
        array = np.ascontiguousarray(array)
        return array.view(precision).reshape(*lead, self.stored_reals)

    def from_reals(self, reals: np.ndarray) -> np.ndarray:
        """Inverse of `to_reals`."""
        lead = reals.shape[:-1]
        if self.type.kind == "int":
            return reals[..., 0]
        if self.codec == "algebra":
            return _reals_to_algebra(reals, self.type.shape[0])
        if self.codec == "hermitian":
            return _reals_to_hermitian(reals, self.type.shape[0])
        dtype = self.numpy_dtype(str(reals.dtype))
        array = np.ascontiguousarray(reals).view(dtype).reshape(*lead, *self.type.shape)
        return np.ascontiguousarray(np.swapaxes(array, -1, -2)) if self.spinor else array


def _algebra_to_reals(a: np.ndarray) -> np.ndarray:
    n = a.shape[-1]
    if n == 1:
        return a[..., 0, 0].imag[..., None]
    parts = []
    for i in range(n):
        for j in range(i + 1, n):
            parts += [a[..., i, j].real, a[..., i, j].imag]
    parts += [a[..., i, i].imag for i in range(n - 1)]
    return np.stack(parts, axis=-1)


def _reals_to_algebra(reals: np.ndarray, n: int) -> np.ndarray:
    dtype = np.result_type(reals.dtype, np.complex64)
    a = np.zeros((*reals.shape[:-1], n, n), dtype)
    if n == 1:
        a[..., 0, 0] = 1j * reals[..., 0]
        return a
    k = 0
    for i in range(n):
        for j in range(i + 1, n):
            a[..., i, j] = reals[..., k] + 1j * reals[..., k + 1]
            a[..., j, i] = -np.conj(a[..., i, j])
            k += 2
    for i in range(n - 1):
        a[..., i, i] = 1j * reals[..., k + i]
    a[..., n - 1, n - 1] = -sum(a[..., i, i] for i in range(n - 1))
    return a


def _hermitian_to_reals(a: np.ndarray) -> np.ndarray:
    rows, cols = np.triu_indices(a.shape[-1], 1)
    upper = np.stack([a[..., rows, cols].real, a[..., rows, cols].imag], axis=-1)
    diagonal = np.diagonal(a, axis1=-2, axis2=-1).real
    return np.concatenate([upper.reshape(*a.shape[:-2], 2 * rows.size), diagonal], axis=-1)


def _reals_to_hermitian(reals: np.ndarray, n: int) -> np.ndarray:
    rows, cols = np.triu_indices(n, 1)
    a = np.zeros((*reals.shape[:-1], n, n), np.result_type(reals.dtype, np.complex64))
    upper = reals[..., : 2 * rows.size].reshape(*reals.shape[:-1], rows.size, 2)
    a.real[..., rows, cols], a.imag[..., rows, cols] = upper[..., 0], upper[..., 1]
    a.real[..., cols, rows], a.imag[..., cols, rows] = upper[..., 0], -upper[..., 1]
    a.real[..., range(n), range(n)] = reals[..., 2 * rows.size :]
    return a


def _check_hermitian(element: Element, array: np.ndarray, precision: str) -> None:
    """Raises LayoutError for matrices that differ from their adjoints by more than many roundings, as arrays of NumPy are computed."""
    try:
        shape = np.broadcast_shapes(array.shape, element.type.shape)
    except ValueError:
        return  # what is wrong with its shape is found by others
    a = np.broadcast_to(array, shape)
    if shape[-2:] != element.type.shape:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(a - np.swapaxes(a, -1, -2).conj()).max(axis=(-2, -1), initial=0.0)
        size = np.abs(a).max(axis=(-2, -1), initial=0.0)
    narrow = precision if array.dtype.char not in "fFe" else "float32"
    wrong = difference > size * ARITHMETICS[narrow].epsilon ** 0.5
    if wrong.any():
        raise LayoutError(
            f"{element.name} holds Hermitian matrices; {int(wrong.sum())} of those given differ from their adjoints, by up to "
            f"{float(difference[wrong].max()):.3g}: (a + np.swapaxes(a, -1, -2).conj()) / 2 is Hermitian"
        )


def _positive(name: str, *numbers: Any) -> None:
    for n in numbers:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise LayoutError(f"{name} needs positive whole numbers, not {value_shown(n)}")


def _kind(kind: str) -> str:
    if not isinstance(kind, str) or kind not in ("real", "complex"):
        raise LayoutError(f"kind is 'real' or 'complex', not {value_shown(kind)}")
    return kind


def Real() -> Element:
    """One real number per site."""
    return Element("Real", Type("real"))


def Integer() -> Element:
    """One whole number per site, of 64 bits where arithmetic is float64 and of 32 where it is float32."""
    return Element("Integer", Type("int"))


def Complex() -> Element:
    """One complex number per site."""
    return Element("Complex", Type("complex"))


def Vector(n: int, kind: str = "complex") -> Element:
    """`n` complex (or real) components per site."""
    _positive("Vector", n)
    suffix = "" if _kind(kind) == "complex" else ", real"
    return Element(f"Vector({n}{suffix})", Type(kind, (n,)))


def Matrix(n: int, m: int | None = None, kind: str = "complex") -> Element:
    """An `n` by `m` complex (or real) matrix per site; square when `m` is left out."""
    m = n if m is None else m
    _positive("Matrix", n, m)
    suffix = "" if _kind(kind) == "complex" else ", real"
    return Element(f"Matrix({n}, {m}{suffix})", Type(kind, (n, m)))


def SU(n: int) -> Element:
    """A special unitary matrix per site; `SU(1)` stands for U(1), a phase."""
    _positive("SU", n)
    return Element(f"SU({n})" if n > 1 else "U(1)", Type("complex", (n, n)))


def Algebra(n: int) -> Element:
    """A traceless anti-Hermitian matrix per site (for n = 1 an imaginary number), stored as its independent reals."""
    _positive("Algebra", n)
    return Element(f"Algebra({n})", Type("complex", (n, n)), codec="algebra")


def Hermitian(n: int) -> Element:
    """A Hermitian matrix per site, stored as its n * n independent reals."""
    _positive("Hermitian", n)
    return Element(f"Hermitian({n})", Type("complex", (n, n)), codec="hermitian")


def Spinor(n: int = 3) -> Element:
    """Four spins by `n` colours per site. In a kernel a complex `(n, 4)` matrix, in NumPy `(4, n)`."""
    _positive("Spinor", n)
    return Element(f"Spinor({n})", Type("complex", (n, 4)), spinor=True)


def element_named(name: str) -> Element:
    """The element that prints as this text: "SU(3)", "Vector(2, real)". Raises LayoutError where none does."""
    match = re.fullmatch(r"(\w+)(?:\((\d{1,6}(?:, \d{1,6})*)(, real)?\))?", name)
    kinds: tuple[Callable[..., Element], ...] = (
        Real,
        Integer,
        Complex,
        Vector,
        Matrix,
        SU,
        Algebra,
        Hermitian,
        Spinor,
    )
    makers = {f.__name__: f for f in kinds}
    if name == "U(1)":
        return SU(1)
    if match and match[1] in makers:
        numbers = [int(n) for n in match[2].split(", ")] if match[2] else []
        try:
            found = makers[match[1]](*numbers, **({"kind": "real"} if match[3] else {}))
        except TypeError:  # too many numbers, or too few
            found = Real()
        if str(found) == name:
            return found
    raise LayoutError(f"no element type prints as {value_shown(name)}")
