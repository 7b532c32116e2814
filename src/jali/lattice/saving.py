"""Fields into files: `Field.save` and `jali.save`.

The metadata (`description`) are the same in every format: the element, the precision of the arithmetic, the storage and the
boundary. jali's own format is a checkpoint, which keeps bytes as the storage has them; the others hold numbers as NumPy sees
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import io
from jali.codegen.types import element_named
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.io.array_formats import array_formats
from jali.io.parallel import together
from jali.lattice.base import LatticeBase, no_field, what_differs
from jali.lattice.domain import ALL

if TYPE_CHECKING:
    from jali.lattice.field import Field

OWN, OWN_ENDING = "jali", ".jali"
FIELDS = "fields"  # of a checkpoint's state: descriptions by name


def save(path: str | os.PathLike[str], /, *, format: str | None = None, **fields: Field) -> None:
    """Writes fields of one lattice into one file, by name: `jali.save("state.h5", phi=f, pi=g)`. Every rank calls it and writes its own
    part.

    `format` is `"jali"`, `"npy"` (one field only) or `"hdf5"` (needs h5py), by default what the name ends with: `.jali`, `.npy`,
    `.h5` or `.hdf5`. An older file under the name is replaced when the new one is complete. Raises ParameterError, LayoutError,
    StorageError for values that were lost on the way into a field, and OSError, the same on all ranks.
    """
    save_fields(path, format, fields)


def save_fields(
    path: str | os.PathLike[str],
    format: str | None,
    fields: Mapping[str, Field],
    state: Mapping[str, Any] | None = None,
) -> None:
    """`save` of fields whose names may be any; in jali's own format with a state beside them, as checkpoints have it."""
    if not isinstance(path, str | os.PathLike):
        raise ParameterError(f"fields are saved under a path, not under {value_shown(path)}")
    if not fields:
        raise ParameterError('nothing is to be saved: give fields by name, jali.save("state.h5", phi=f)')
    for name, field in fields.items():
        if not isinstance(getattr(field, "lattice", None), LatticeBase) or not hasattr(field, "stored_bytes"):
            raise ParameterError(f"{name} is to be saved as a field and is {no_field(field)}")
    lattice = next(iter(fields.values())).lattice
    for name, field in fields.items():
        if field.lattice is not lattice:
            raise LayoutError(
                f"{name} is on {field.lattice}, another field on {lattice} ({what_differs(field.lattice, lattice)}): fields in one "
                "file are on one lattice"
            )
    format = format_of(path) if format is None else format
    if not isinstance(format, str):
        raise ParameterError(f"the format of a file is a word, not {value_shown(format)}")
    box = io.Box(lattice.local_origin, lattice.local_extents)
    ranks = lattice.communicator
    descriptions = {name: description(field) for name, field in fields.items()}
    if format == OWN:
        with together(ranks):
            sites = {name: reversed_sites(f.stored_bytes(), lattice.ndim) for name, f in fields.items()}
        io.write_checkpoint(
            path,
            lattice.extents,
            box,
            sites,
            state={**(state or {}), FIELDS: descriptions},
            formats={name: field.format for name, field in fields.items()},
            ranks=ranks,
        )
        return
    if format not in array_formats():
        names = ", ".join(map(repr, (OWN, *array_formats())))
        raise ParameterError(f"fields are saved as {names}, not as {value_shown(format)}")
    with together(ranks):
        numbers = {name: field.local() for name, field in fields.items()}
    io.write_arrays(path, format, lattice.extents, box, numbers, descriptions, ranks=ranks)


def endings() -> dict[str, str]:
    """Formats by the endings of names."""
    return {OWN_ENDING: OWN} | {
        ending: entry.name for entry in array_formats().values() for ending in entry.endings
    }


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a name ends with. Raises ParameterError where it ends otherwise."""
    name = os.fsdecode(path)
    for ending, format in endings().items():
        if name.lower().endswith(ending):
            return format
    raise ParameterError(
        f"{name!r} does not say in which format: it ends with {', '.join(endings())}, or format= says it"
    )


def description(field: Field) -> dict[str, Any]:
    """The metadata of a field. Raises LayoutError for elements that only their program defines."""
    if element_named(str(field.element)) != field.element:
        raise LayoutError(
            f"{field.element} is not the element type of that name, so no file can say what it is"
        )
    found: dict[str, Any] = {
        "element": str(field.element),
        "precision": field.precision,
        "storage": field.stored.format.name,
        "boundary": field.boundary.words,
    }
    if field.over is not ALL:
        found["over"] = str(field.over)
    if field.batch is not None:
        found["batch"] = field.batch
    return found


def reversed_sites(array: np.ndarray, ndim: int) -> np.ndarray:
    """An array of sites with the last direction first, as checkpoints have them, and back."""
    return np.transpose(array, (*reversed(range(ndim)), *range(ndim, array.ndim)))
