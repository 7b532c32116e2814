"""Contractions of fields as arrays, in an order that `opt_einsum` finds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.base import no_field, what_differs
from jali.lattice.domain import ALL
from jali.lattice.field import Field

_SITE, _TIME = "x", "t"


def contract(subscripts: str, *operands: Any, conjugate: Sequence[int] = ()) -> np.ndarray:
    """Sums over sites, or over the sites of each slice, of products of fields: `numpy.einsum` on the lattice, an operand after the other.

        contract("xkab,xkab->t", S, S, conjugate=[0])  # sum over x of |S|^2 in each slice

    The letter x in front stands for the site of a field; its other letters are the member of the batch, where there is one, and the indices of the
    element as in `field[...]` (of spinors spin, colour). Arrays without x are constants, such as `gamma[0].dense()`. The result has the letters behind the
    arrow, where t is the time slice, (T, ...), and is the same on all ranks. `conjugate` are the numbers of operands that are conjugated.

    The order of products is that of `opt_einsum`, on arrays of NumPy; on a GPU on those of CuPy, or of PyTorch where there is no CuPy, into which fields are copied. Sums are in
    the arithmetic of the fields and in no fixed order, so last bits may depend on the number of ranks; sums of site functions do not. Raises LayoutError for fields
    that do not fit, ParameterError for subscripts that do not, and where a library is missing.
    """
    inputs, output = _split(subscripts, len(operands))
    fields = [operand for operand in operands if isinstance(operand, Field)]
    if not fields:
        raise LayoutError(f"at least one operand is a field, and {value_shown(operands)} are none")
    lattice = fields[0].lattice
    library = _library(lattice)
    letters, arrays = [], []
    for number, (word, operand) in enumerate(zip(inputs, operands, strict=True)):
        if isinstance(operand, Field) != word.startswith(_SITE):
            raise ParameterError(
                f"operand {number} is {'a field, whose letters begin with x' if isinstance(operand, Field) else 'no field, whose letters have no x'}, not {word!r}"
            )
        array = (
            _array_of(operand, lattice, library)
            if isinstance(operand, Field)
            else _constant(operand, library)
        )
        if array.ndim != len(word) + isinstance(operand, Field):
            raise ParameterError(
                f"operand {number} has {array.ndim - isinstance(operand, Field)} indices with its site, and {word!r} has {len(word)}"
            )
        arrays.append(array.conj() if number in conjugate else array)
        letters.append(word.replace(_SITE, _TIME + _SITE))
    summed = _opt_einsum().contract(
        f"{','.join(letters)}->{_TIME}{output.replace(_TIME, '')}", *arrays, optimize="auto"
    )
    local = _on_host(summed).astype(complex)
    # all ranks add what each has in the same order
    whole = np.zeros((lattice.extents[-1], *local.shape[1:]), complex)
    first = lattice.local_origin[-1]
    whole[first : first + len(local)] = local
    parts = lattice.communicator.gather_bytes(whole.tobytes())
    whole = np.sum([np.frombuffer(part, complex).reshape(whole.shape) for part in parts], axis=0)
    axis = output.find(_TIME)
    return np.moveaxis(whole, 0, axis) if axis >= 0 else whole.sum(axis=0)


def _split(subscripts: Any, count: int) -> tuple[list[str], str]:
    text = subscripts.replace(" ", "") if isinstance(subscripts, str) else ""
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if not arrow or not all(c.isalpha() for c in left.replace(",", "") + output):
        raise ParameterError(
            f'subscripts are letters of each operand, with commas between and an arrow before those of the result, "xab,xab->t", not {value_shown(subscripts)}'
        )
    if len(inputs) != count:
        raise ParameterError(f"{subscripts!r} has {len(inputs)} operands, and {count} were given")
    for word in inputs:
        if _TIME in word or _SITE in word[1:]:
            raise ParameterError(
                f"x stands for a site, in front of the letters of a field, and t for a time slice of the result alone, not {word!r}"
            )
    if _SITE in output:
        raise ParameterError("sites are summed over: x is no letter of the result")
    return inputs, output


def _opt_einsum() -> Any:
    try:
        return import_module("opt_einsum")
    except ModuleNotFoundError:
        raise ParameterError(
            'contract takes the order of its products from opt_einsum: pip install "jali[spectrum]"'
        ) from None


def _library(lattice: Any) -> Any:
    """The library of arrays where fields of this lattice are."""
    if lattice.gpu is None:
        return np
    for name in ("cupy", "torch"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ParameterError(
        "contract of fields on a GPU takes CuPy or PyTorch, whose arrays they become: pip install cupy-cuda13x, or write a site function"
    )


def _array_of(field: Field, lattice: Any, library: Any) -> Any:
    """This rank's box: time, space, then as in `field[...]`."""
    if field.lattice is not lattice:
        raise LayoutError(
            f"fields of a contraction live on one lattice, and {field.name} on another one ({what_differs(field.lattice, lattice)})"
        )
    if field.over is not ALL:
        raise LayoutError(f"a field of a contraction has all sites, and {field.name} lives on {field.over}")
    if library is np:
        array = field.local()
    else:
        shape, kind = lattice.local_extents + field.shape[lattice.ndim :], field.dtype.name
        if library.__name__ == "torch":
            device = f"cuda:{lattice.gpu.ordinal}"
            array = library.empty(shape, dtype=getattr(library, kind), device=device)
        else:
            with library.cuda.Device(lattice.gpu.ordinal):
                array = library.empty(shape, dtype=kind)
        conditions = field.boundary.conditions
        lattice.wrap(array, field.element, boundary=conditions, batch=field.batch).assign(field)
    ndim = lattice.ndim
    array = library.moveaxis(array, ndim - 1, 0)
    return array.reshape(array.shape[0], -1, *array.shape[ndim:])


def _constant(operand: Any, library: Any) -> Any:
    try:
        array = np.asarray(operand, complex)
    except (TypeError, ValueError):
        raise LayoutError(f"an operand is a field or an array of numbers, not {no_field(operand)}") from None
    return library.asarray(array) if library is not np else array


def _on_host(array: Any) -> np.ndarray:
    for method in ("get", "cpu"):  # of CuPy, of PyTorch
        if hasattr(array, method):
            return np.asarray(getattr(array, method)())
    return np.asarray(array)


__all__ = ["contract"]
