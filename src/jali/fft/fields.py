"""Fields and distributed arrays: the same numbers on the same ranks, so that transforms take fields.

What a field has at each site are further dimensions of the array, behind those of the lattice. On the host values are copied,
on devices a kernel copies them into an array of CuPy or PyTorch there; a field that is such an array already (`Lattice.wrap`)
is taken as it is. Transforms do not depend on boundary conditions: values are those of the sites.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from jali import graph_recorder, tape_recorder
from jali.array_namespaces import NAMESPACES, ArrayNamespace, namespace_of, numpy_dtype
from jali.arrays import DistributedArray, Layout, layout_of
from jali.arrays.recorded import contiguous
from jali.codegen.arithmetics import IEEE_PRECISIONS, arithmetic_of
from jali.codegen.types import Element
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.borrowed_arrays import element_of
from jali.lattice.colours import with_zeros
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice


def layout_of_field(field: Field) -> Layout:
    """How the array of a field is split: as its lattice. Communicates nothing."""
    lattice, inner = field.lattice, field.element.numpy_shape
    split = [axis for axis in reversed(range(lattice.ndim)) if lattice.grid[axis] > 1] or [0]
    ranks = range(lattice.communicator.size)
    shapes = tuple(tuple(lattice.partition.extents(rank)) + inner for rank in ranks)
    return layout_of(
        lattice.communicator, tuple(lattice.extents) + inner, axis=tuple(split),
        grid=tuple(lattice.grid[axis] for axis in split), local_shapes=shapes,
    )  # fmt: skip


def array_of(field: Field) -> DistributedArray:
    """The values of a field as a distributed array, split as its lattice; on a device one of CuPy or PyTorch.

    A wrapped field on all sites (`Lattice.wrap`) is its array, others are copied; a field on a colour has zeros elsewhere. Raises
    ParameterError for a field on a device where neither library is installed, LayoutError for one with a batch.
    """
    if not isinstance(field, Field):
        raise ParameterError(f"array_of takes a Field, not {no_field(field)}")
    return _array_of(field)[0]


def _array_of(field: Field) -> tuple[DistributedArray, bool]:
    """The array, and whether it is a copy."""
    if field.batch is not None:
        raise LayoutError(
            f"{field.name} has a batch of {field.batch}, and arrays of fields and transforms are about fields without one: take its members, "
            "f.members[k]"
        )
    if field.lattice.gpu is None:
        graph_recorder.refuse("the array of a field is made", "make it before or after")
    field.check_set()
    layout, borrowed = layout_of_field(field), field.array
    if borrowed is not None and field.over is ALL and field.element.type.kind != "int":
        try:
            namespace_of(borrowed)
        except ParameterError:
            pass  # memory of jali's own, or of another library
        else:
            return DistributedArray.of(layout, borrowed), False
    if field.lattice.gpu is None:
        return DistributedArray.of(layout, np.ascontiguousarray(field.local())), True
    dtype = field.element.numpy_dtype(field.precision)
    local = _device_namespace(field).empty_on(field.lattice.gpu.ordinal, layout.local_shape, dtype)
    plain = field.element if field.element.codec == "plain" else _element(dtype, layout, field.lattice)
    if field.over is not ALL:
        field = with_zeros(field)
    _wrapped(field.lattice, local, plain).assign(field)
    return DistributedArray.of(layout, local), True


def field_of(array: DistributedArray, lattice: Lattice, element: Element | None = None) -> Field:
    """A field with the values of an array that is split as a lattice; `element` by default from the dimensions after
    its directions.

    Raises LayoutError where the array is of another shape or split otherwise, or no element is known.
    """
    if not isinstance(array, DistributedArray) or not isinstance(lattice, Lattice):
        raise ParameterError(
            f"field_of takes a DistributedArray and a Lattice, not a {type(array).__name__} and a {type(lattice).__name__}"
        )
    dtype = numpy_dtype(array.local)
    found = element or element_of(dtype, tuple(array.global_shape[lattice.ndim :]))
    arithmetic = arithmetic_of(dtype)
    field = Field(lattice, found, IEEE_PRECISIONS[-1] if arithmetic is None else arithmetic.name)
    return set_from(field, array)


def set_from(field: Field, array: DistributedArray) -> Field:
    """Give a field the values of an array that is split as its lattice. Returns the field. Raises LayoutError."""
    wanted = layout_of_field(field)
    if array.layout is not wanted:
        raise LayoutError(
            f"a field on {field.lattice} takes an array that is split as it is, {wanted!r}, not {array.layout!r}; redistribute it"
        )
    if field.lattice.gpu is None:
        return field.set_local(array.local)
    local = contiguous(array.local)
    plain = None if not field.element.spinor else field.element
    return field.assign(_wrapped(field.lattice, local, plain))


def _wrapped(lattice: Lattice, local: Any, element: Element | None) -> Field:
    """An array as a field, also while a graph is recorded, which keeps it."""
    with graph_recorder.suspended():
        return lattice.wrap(local, element)


def transformed_field(
    call: Any, kind: str, x: Field, s: Any, axes: Any, out: Field | None, layout: str, **options: Any
) -> Any:
    """A transform `call(array, s, axes, ...)` of a field: a field of complex numbers on its lattice, or an array where extents change."""
    if tape_recorder.recorders and (tape := tape_recorder.current()) is not None:
        return _recorded(tape, call, kind, x, s, axes, out, layout, options)
    lattice = x.lattice
    along = directions_of(lattice, s, axes)
    if out is not None and not (isinstance(out, Field) and out.lattice is lattice):
        raise ParameterError(
            f"the result of a transform of a field goes into a field on {lattice}, not into {no_field(out)}"
        )
    if out is not None and out.over is not ALL:
        raise ParameterError(
            f"the result of a transform has values at all sites, and {out.name} lives on {out.over}; take a field on ALL sites as out"
        )
    if x.element.type.kind not in ("real", "complex", "int"):
        raise ParameterError(f"transforms are of numbers, not of a field of {x.element}")
    if kind == "rfft" and x.element.type.kind == "complex":
        raise ParameterError(f"a transform of real numbers got a field of {x.element}; take fft")
    array, owned = _array_of(x)
    overwrite = owned or options.pop("overwrite_x", False)
    options.pop("overwrite_x", None)
    found = call(kind, array, s, along, layout=layout, overwrite_x=overwrite, **options)
    if found.layout is not array.layout or kind in ("rfft", "irfft"):
        if out is not None:
            raise ParameterError(
                f"the result has shape {found.global_shape} and is {found.layout!r}; that is no field on {lattice}, leave out= away"
            )
        return found
    if out is not None:
        return set_from(out, found)
    return field_of(found, lattice, x.element if x.element.spinor else None)


_OTHER_WAY = {"fft": "ifft", "ifft": "fft"}
_OTHER_NORM = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _recorded(
    tape: Any,
    call: Any,
    kind: str,
    x: Field,
    s: Any,
    axes: Any,
    out: Field | None,
    layout: str,
    options: dict[str, Any],
) -> Any:
    """A transform that a tape records: its adjoint is the transform the other way, with the other norm."""
    if kind not in _OTHER_WAY or s is not None:
        if tape.is_active(x):
            tape.refuse(
                "a transform of real numbers, or to other extents, has no derivative that a tape knows: take jali.fft.fftn of the field"
            )
        with tape_recorder.recording(None):
            return transformed_field(call, kind, x, s, axes, out, layout, **options)
    options.pop("overwrite_x", None)

    def transformed(source: Field, target: Field | None) -> Any:
        with tape_recorder.recording(None):
            return transformed_field(call, kind, source, s, axes, target, layout, **options)

    def pull(c: Field, primal: Any) -> list[tuple[Field, Field]]:
        back = {**options, "norm": _OTHER_NORM[options.get("norm")]}
        found = transformed_field(call, _OTHER_WAY[kind], c, s, axes, None, layout, **back)
        if x.element.type.kind == "real":
            found = found.real.field()
        return [(x, found)]

    return tape.rule(
        lambda: transformed(x, out),
        [x],
        lambda put: transformed(put(x), put(out) if out else None),
        pull,
        out,
    )


def directions_of(lattice: Lattice, s: Any, axes: Any) -> tuple[int, ...]:
    """Axes of the array that are meant. Raises ShapeError for those that are no directions of the lattice."""
    if axes is None:
        count = lattice.ndim if s is None else 1 if hasattr(s, "__index__") else len(s)
        axes = range(lattice.ndim - count, lattice.ndim)
    found = []
    for axis in [axes] if hasattr(axes, "__index__") else axes:
        number = operator.index(axis) if hasattr(axis, "__index__") else lattice.ndim
        if not -lattice.ndim <= number < lattice.ndim:
            raise ShapeError(
                f"axes of a field are the {lattice.ndim} directions of its lattice, not {value_shown(axis)}"
            )
        found.append(number % lattice.ndim)
    return tuple(found)


def _element(dtype: Any, layout: Layout, lattice: Lattice) -> Element:
    return element_of(np.dtype(dtype), tuple(layout.shape[lattice.ndim :]))


def _device_namespace(field: Field) -> ArrayNamespace:
    for name in ("cupy", "torch"):
        namespace = NAMESPACES[name]
        if namespace.installed:
            return namespace
    raise ParameterError(
        f"{value_shown(field)} is on a device, where transforms are of arrays of CuPy or PyTorch; neither is installed"
    )
