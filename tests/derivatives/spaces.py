"""Random points of the spaces that fields live in, steps in them, and the inner products that gradients belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg

from jali import Algebra, Field, Matrix
from jali.codegen.types import Element


def is_group(element: Element) -> bool:
    return element.name.startswith("SU(") or element.name == "U(1)"


def change_of(element: Element) -> Element:
    """What a gradient and a change of a field of this element are."""
    return Algebra(element.type.shape[0]) if is_group(element) else element


def cotangent_of(element: Element) -> Element:
    """What a cotangent of a field that is written is."""
    return Matrix(element.type.shape[0]) if is_group(element) else element


def normal(rng: np.random.Generator, extents: Sequence[int], element: Element) -> Any:
    """Normal numbers, in the space of the element."""
    shape = (*extents, *element.numpy_shape)
    values = rng.normal(size=shape)
    if element.type.kind == "complex":
        values = values + 1j * rng.normal(size=shape)
    if element.codec == "algebra":
        return in_algebra(values)
    if element.codec == "hermitian":
        return (values + turned(values)) / 2
    if is_group(element):
        return exp_of(in_algebra(values))
    return values


def turned(values: Any) -> Any:
    return np.swapaxes(values, -1, -2).conj()


def in_algebra(values: Any) -> Any:
    """The traceless anti-Hermitian part, of one row the imaginary one."""
    n = values.shape[-1]
    found = (values - turned(values)) / 2
    if n > 1:
        found = found - np.trace(found, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n
    return found


def exp_of(values: Any) -> Any:
    n = values.shape[-1]
    return np.array([scipy.linalg.expm(m) for m in values.reshape(-1, n, n)]).reshape(values.shape)


def stepped(values: Any, element: Element, change: Any, size: float) -> Any:
    """The point that is reached by `size` times a change: exp(size change) U of links."""
    return exp_of(size * change) @ values if is_group(element) else values + size * change


def inner(change: Any, gradient: Any, element: Element) -> float:
    """dS for a change of a field and the gradient that belongs to it, both of the `element`."""
    if element.codec == "algebra":
        return float(-2 * np.sum(np.swapaxes(change, -1, -2) * gradient).real)
    return float(np.vdot(gradient, change).real)


def fields(
    lattice: Any, elements: Sequence[Element], values: Sequence[Any] = (), **options: Any
) -> list[Field]:
    """A field of each element, with these values."""
    found = [Field(lattice, element, **options) for element in elements]
    for field, one in zip(found, values, strict=False):
        field[...] = one
    return found


def values_of(given: Sequence[Field]) -> list[Any]:
    return [field[...] for field in given]
