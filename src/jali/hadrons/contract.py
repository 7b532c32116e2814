"""Contractions of fields as arrays, in an order that `opt_einsum` finds."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import reduce
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
    turned = _conjugated(conjugate, len(operands))
    fields = [operand for operand in operands if isinstance(operand, Field)]
    if not fields:
        raise LayoutError(f"at least one operand is a field, and {value_shown(operands)} are none")
    lattice = fields[0].lattice
    library = _library(lattice)
    with _device_of(lattice, library):
        arrays = [_array_of(operand, lattice, library) for operand in operands]
        _check_sizes(inputs, operands, arrays)
        if library.__name__ == "torch":  # whose products take numbers of one kind
            kind = reduce(library.promote_types, [array.dtype for array in arrays])
            arrays = [array.to(kind) for array in arrays]
        arrays = [array.conj() if k in turned else array for k, array in enumerate(arrays)]
        left = ",".join(word.replace(_SITE, _TIME + _SITE) for word in inputs)
        right = _TIME + output.replace(_TIME, "")
        summed = _opt_einsum().contract(f"{left}->{right}", *arrays, optimize="auto")
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
    for letter in output:
        if output.count(letter) > 1 or (letter != _TIME and not any(letter in word for word in inputs)):
            raise ParameterError(
                f"the result has letters of operands, each once, or t for a time slice: {output!r} has {letter!r}, and operands have {left!r}"
            )
    return inputs, output


def _conjugated(conjugate: Any, count: int) -> tuple[int, ...]:
    """The numbers of operands that are conjugated."""
    try:
        numbers = tuple(conjugate)
    except TypeError:
        numbers = (conjugate,)
    if len(set(numbers)) < len(numbers) or not all(
        isinstance(k, int | np.integer) and not isinstance(k, bool) and 0 <= k < count for k in numbers
    ):
        raise ParameterError(
            f"conjugate is a list of numbers of operands, from 0 to {count - 1}, each once, not {value_shown(conjugate)}"
        )
    return numbers


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


def _device_of(lattice: Any, library: Any) -> Any:
    """Inside, the library works on the device of this lattice, where it may be on another one otherwise."""
    if library is np:
        return contextlib.nullcontext()
    device = library.cuda.device if library.__name__ == "torch" else library.cuda.Device
    return device(lattice.gpu.ordinal)


def _check_sizes(inputs: list[str], operands: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Raises ParameterError unless each operand has as many indices as letters, LayoutError unless letters count the same everywhere."""
    sizes: dict[str, tuple[int, int]] = {}
    for number, (word, operand, array) in enumerate(zip(inputs, operands, arrays, strict=True)):
        is_field = isinstance(operand, Field)
        if is_field != word.startswith(_SITE):
            raise ParameterError(
                f"operand {number} is {'a field, whose letters begin with x' if is_field else 'no field, whose letters have no x'}, not {word!r}"
            )
        axes = array.shape[is_field:]  # of a field time comes before space
        if len(axes) != len(word):
            raise ParameterError(
                f"operand {number} has {len(axes)} indices with its site, and {word!r} has {len(word)}"
            )
        for letter, size in zip(word, axes, strict=True):
            if letter != _SITE and sizes.setdefault(letter, (size, number))[0] != size:
                raise LayoutError(
                    f"{letter} counts {sizes[letter][0]} in operand {sizes[letter][1]} and {size} in operand {number}, of {word!r}"
                )


def _array_of(operand: Any, lattice: Any, library: Any) -> Any:
    """This rank's box of a field: time, space, then as in `field[...]`; a constant as it is."""
    if not isinstance(operand, Field):
        return _constant(operand, lattice, library)
    field = operand
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
            array = library.empty(shape, dtype=getattr(library, kind), device=f"cuda:{lattice.gpu.ordinal}")
        else:
            array = library.empty(shape, dtype=kind)
        conditions = field.boundary.conditions
        lattice.wrap(array, field.element, boundary=conditions, batch=field.batch).assign(field)
    ndim = lattice.ndim
    array = library.moveaxis(array, ndim - 1, 0)
    return array.reshape((array.shape[0], -1, *array.shape[ndim:]))


def _constant(operand: Any, lattice: Any, library: Any) -> Any:
    if hasattr(operand, "fields"):
        raise LayoutError(
            f"an operand is a field or an array of numbers, not {no_field(operand)}; U[mu] is a field"
        )
    try:
        array = np.asarray(operand, complex)
    except (TypeError, ValueError):
        raise LayoutError(f"an operand is a field or an array of numbers, not {no_field(operand)}") from None
    if library is np:
        return array
    if library.__name__ == "torch":
        return library.asarray(array, device=f"cuda:{lattice.gpu.ordinal}")
    return library.asarray(array)


def _on_host(array: Any) -> np.ndarray:
    if hasattr(array, "get"):  # of CuPy
        return np.asarray(array.get())
    if hasattr(array, "cpu"):  # of PyTorch, where conjugates may still be to be taken
        return np.asarray(array.cpu().resolve_conj())
    return np.asarray(array)


__all__ = ["contract"]
