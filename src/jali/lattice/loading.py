"""Fields from files of jali and of other programs: `jali.load`.

A file of jali's describes its field (`saving.description`). An array of others is interpreted as by `Lattice.wrap`: its first
indices are the site, the others the element.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali import comm, io
from jali.codegen.arithmetics import IEEE_PRECISIONS, PRECISIONS, arithmetic_of
from jali.codegen.storage_formats import FORMATS
from jali.codegen.types import Element, element_named
from jali.errors import FileFormatError, LayoutError, ParameterError
from jali.files import checked_path, shown, value_shown
from jali.io.array_formats import Outline
from jali.io.parallel import together
from jali.lattice.batches import batch_of_field
from jali.lattice.borrowed_arrays import element_of
from jali.lattice.boundary import Boundary
from jali.lattice.domain import ALL, EVEN, ODD, Domain
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice
from jali.lattice.overflow import raise_on_all_ranks
from jali.lattice.saving import FIELDS, reversed_sites


def load(
    path: str | os.PathLike[str],
    lattice: Lattice | None = None,
    *,
    name: str | None = None,
    element: Element | None = None,
    precision: str | None = None,
    storage: str | None = None,
    boundary: Any = None,
    verify: bool = True,
) -> Field:
    """The field in a file of `Field.save`, or the array in a file of NumPy or h5py. Collective; every rank reads its own part.

    The format is recognised by content. `lattice` is the lattice of the field, by default a new one of the file's extents; the
    number of ranks and the grid are arbitrary. `name` is needed where the file has several. A file of jali's has element,
    precision, storage and boundary, and its checksum is verified unless `verify` is False; `precision`, `storage` and
    `boundary` replace those of the file. Arrays of `.npy` and HDF5 are stored as plain numbers unless `storage` is given, so
    the field has the values of the file.

    Of an array of others the first indices are the site and the rest the element, as in `Lattice.wrap`; without `lattice`,
    `element` separates them, and without either all indices are sites. Raises FileFormatError for damaged files, ParameterError
    and LayoutError for arguments that contradict the file, StorageError for values that do not fit, OSError; the same on all
    ranks.
    """
    if not isinstance(path, str | os.PathLike):
        raise ParameterError(f"a field is loaded from a path, not from {value_shown(path)}")
    if not isinstance(lattice, Lattice | None):
        raise ParameterError(f"a field is loaded onto a Lattice, not onto {value_shown(lattice)}")
    if not isinstance(element, Element | None):
        raise LayoutError(
            f"a field holds an element type such as SU(3) or Real(), not {value_shown(element)}"
        )
    ranks = comm.current() if lattice is None else lattice.communicator
    with together(ranks):
        is_folder = os.path.isdir(checked_path(path))
    request = _LoadRequest(lattice, name, element, precision, storage, boundary, verify)
    if ranks.broadcast_bytes(b"folder" if is_folder else b"", 0):
        return _from_checkpoint(io.open_checkpoint(path, ranks=ranks), request)
    return _from_arrays(io.open_arrays(path, verify=verify, ranks=ranks), request)


@dataclass(frozen=True)
class _LoadRequest:
    """The arguments of `load`."""

    lattice: Lattice | None
    name: str | None
    element: Element | None
    precision: str | None
    storage: str | None
    boundary: Any
    verify: bool

    def which(self, path: str, names: list[str]) -> str:
        """The name of the one that is meant."""
        if self.name is None and len(names) == 1:
            return names[0]
        found = ", ".join(shown(name, 60) for name in names[:20]) + (", ..." if len(names) > 20 else "")
        if not names:
            raise FileFormatError(f"{path} holds no fields")
        if self.name is None:
            raise ParameterError(f"{path} holds {found}: say which, name={names[0]!r}")
        if self.name not in names and found == "":
            raise ParameterError(f"{path} holds one array without a name: name={self.name!r} is left out")
        if self.name not in names:
            raise ParameterError(f"{path} holds {found}, not {value_shown(self.name)}")
        return self.name

    def lattice_of(self, path: str, extents: tuple[int, ...]) -> Lattice:
        """The lattice of the field."""
        lattice = Lattice(*extents) if self.lattice is None else self.lattice
        if lattice.extents != extents:
            raise LayoutError(f"{path} holds a lattice {extents}, not {lattice.extents}")
        return lattice

    def agree(self, path: str, element: Element) -> None:
        """Raises LayoutError where the file has another element."""
        if self.element not in (None, element):
            raise LayoutError(f"{path} holds {element}, not {self.element}")


@dataclass(frozen=True)
class _Description:
    """The description of a field in a file of jali's."""

    element: Element
    precision: str
    storage: str
    boundary: Boundary
    over: Domain = ALL
    batch: int | None = None

    @classmethod
    def read(cls, path: str, metadata: Any) -> _Description:
        """Raises FileFormatError where it makes no sense."""
        try:
            element = element_named(metadata["element"])
            precision, storage = metadata["precision"], metadata["storage"]
            if precision not in PRECISIONS:
                raise LayoutError(f"the precision {precision!r}")
            over = {str(domain): domain for domain in (ALL, EVEN, ODD)}[metadata.get("over", "ALL")]
            boundary = Boundary.from_words(list(metadata["boundary"]), element)
            return cls(element, precision, storage, boundary, over, batch_of_field(metadata.get("batch")))
        except (KeyError, TypeError, LayoutError) as error:
            raise FileFormatError(
                f"{path}: what it says of its field makes no sense: {shown(error)}"
            ) from None


def field_of_checkpoint(checkpoint: io.Checkpoint, name: str, lattice: Lattice) -> Field:
    """A field of an open checkpoint on this lattice, in the precision and storage of the file. Raises what `load` does."""
    return _from_checkpoint(checkpoint, _LoadRequest(lattice, name, None, None, None, None, True))


def _from_checkpoint(checkpoint: io.Checkpoint, request: _LoadRequest) -> Field:
    path = checkpoint.path
    described = checkpoint.state.get(FIELDS)
    if not isinstance(described, dict) or set(described) != set(checkpoint.fields):
        raise FileFormatError(
            f"{path} is a checkpoint that does not say what its fields are ({', '.join(sorted(checkpoint.fields))}): "
            "jali.io.open_checkpoint reads them as arrays, GaugeField.from_file the links of a run"
        )
    name = request.which(path, sorted(described))
    metadata, info = _Description.read(path, described[name]), checkpoint.fields[name]
    request.agree(path, metadata.element)
    entry = FORMATS.get(metadata.storage)
    if entry is None or info.format is None or info.format != (entry.name, entry.version):
        kept = f"{info.format[0]} version {info.format[1]}" if info.format else "numbers"
        here = f"has version {entry.version}" if entry else "does not know"
        raise FileFormatError(f"{path}: {name!r} is stored as {kept}, which this jali {here}")
    lattice = request.lattice_of(path, checkpoint.lattice)
    options: dict[str, Any] = {
        "boundary": metadata.boundary if request.boundary is None else request.boundary,
        "name": name,
        "over": metadata.over,
        "batch": metadata.batch,
    }
    try:
        field = Field(lattice, metadata.element, metadata.precision, metadata.storage, **options)
    except LayoutError as error:
        if request.boundary is not None:
            raise
        raise FileFormatError(f"{path}: what it says of {name!r} makes no sense: {error}") from None
    if info.element_shape != (field.storage.site_bytes,):
        raise FileFormatError(
            f"{path}: {name!r} has {info.record_bytes} bytes per site, {metadata.element} as {metadata.storage} has {field.storage.site_bytes}"
        )
    box = io.Box(lattice.local_origin, lattice.local_extents)
    sites = checkpoint.read(name, box, verify=request.verify)
    with together(lattice.communicator):
        field.set_stored_bytes(reversed_sites(sites, lattice.ndim), field.format)
    if (request.precision, request.storage) == (None, None):
        return field
    precision = request.precision or metadata.precision
    other = Field(lattice, metadata.element, precision, request.storage, **options).assign(field)
    raise_on_all_ranks(lattice.communicator, other.counts())
    return other


def _from_arrays(file: io.ArrayFile, request: _LoadRequest) -> Field:
    path = file.path
    name = request.which(path, list(file.arrays))
    outline, storage = file.arrays[name], request.storage
    if outline.metadata:
        if outline.metadata.get("links"):
            raise FileFormatError(f"{path} holds the links of a gauge field: GaugeField.from_file reads them")
        metadata = _Description.read(path, outline.metadata)
        request.agree(path, metadata.element)
        ndim = len(metadata.boundary.conditions)
        possible = [metadata.element.numpy_dtype(p) for p in PRECISIONS]
        shape = (
            metadata.element.numpy_shape
            if metadata.batch is None
            else (metadata.batch, *metadata.element.numpy_shape)
        )
        if outline.shape[ndim:] != shape or outline.dtype not in possible:
            raise FileFormatError(
                f"{path}: an array {outline.shape} of {outline.dtype} is not the field of {metadata.element} on {ndim} "
                "directions that the file says it is"
            )
        element, precision, boundary = metadata.element, metadata.precision, metadata.boundary
        over, batch = metadata.over, metadata.batch
        if request.precision is None and request.storage is None:
            storage = _as_the_file(metadata.storage)
    else:
        element, ndim = _foreign(path, outline, request)
        precision, boundary, over, batch = _precision_of(outline.dtype), None, ALL, None
    lattice = request.lattice_of(path, outline.shape[:ndim])
    field = Field(
        lattice,
        element,
        request.precision or precision,
        storage,
        boundary if request.boundary is None else request.boundary,
        name,
        over=over,
        batch=batch,
    )
    values = file.read(name, io.Box(lattice.local_origin, lattice.local_extents), verify=request.verify)
    with together(lattice.communicator):
        field.set_local(values)
    return field


def _as_the_file(storage: str) -> str | None:
    """The storage that holds the numbers of a file of a field with this one: the same where that is plain numbers, narrower than the
    arithmetic maybe."""
    entry = FORMATS.get(storage)
    return storage if entry is not None and entry.scalar and entry.packing is None else None


def _foreign(path: str, outline: Outline, request: _LoadRequest) -> tuple[Element, int]:
    """The element of an array of others, and how many of its indices are the site."""
    if outline.dtype is None:
        raise FileFormatError(f"{path}: {shown(outline.name)!r} does not hold numbers")
    shape = outline.shape
    if request.lattice is not None:
        ndim = request.lattice.ndim
    elif request.element is not None:
        ndim = len(shape) - len(request.element.numpy_shape)
    else:
        ndim = len(shape)
    if not 1 <= ndim <= len(shape) or min(shape) < 1:
        raise LayoutError(
            f"{path} holds an array {shape}, which has no sites"
            + (f" of {request.element}" if request.element else "")
        )
    element = request.element or element_of(outline.dtype, shape[ndim:])
    if shape[ndim:] != element.numpy_shape:
        raise LayoutError(
            f"{path} holds an array {shape}; a field of {element} on {ndim} directions has {ndim} extents and then {element.numpy_shape}"
        )
    return element, ndim


def _precision_of(dtype: np.dtype[Any] | None) -> str:
    """The arithmetic that holds numbers of this type: that of `Lattice.wrap`, for 16-bit floats the narrowest, else the widest."""
    assert dtype is not None
    if dtype.newbyteorder("=") == np.float16:
        return IEEE_PRECISIONS[0]
    found = arithmetic_of(dtype.newbyteorder("="))
    return IEEE_PRECISIONS[-1] if found is None else found.name
