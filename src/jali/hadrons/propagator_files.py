"""Propagators into files and back: `save_propagator`, `load_propagator`, `load_source`, `propagator_info`.

A propagator is a field with a member for each spin and colour of its source, `spin * n + colour`: 4 n of `Spinor(n)`, or n
of `Vector(n)` for staggered fermions. SciDAC files are those of `jali.io.propagators`; an HDF5 file is one of jali's fields,
with the datasets `propagator` and `source`. Every rank reads and writes its own part.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

import jali
from jali import io
from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.types import element_named
from jali.comm.validation import flag, integer
from jali.errors import FileFormatError, LayoutError, ParameterError, StorageError
from jali.files import checked_path, shown, value_shown
from jali.io.arrays import holds_arrays
from jali.io.parallel import together
from jali.io.propagator_contents import DIRAC, STAGGERED, in_words
from jali.io.propagators import PropagatorFile, is_lime, kept_metadata, open_propagator, write_propagator
from jali.lattice.boundary import Boundary
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice
from jali.lattice.saving import description, reversed_sites

SCIDAC, HDF5 = "scidac", "hdf5"
_ENDINGS = {".lime": SCIDAC, ".scidac": SCIDAC, ".prop": SCIDAC, ".h5": HDF5, ".hdf5": HDF5}
_SINK, _SOURCE = "propagator", "source"  # datasets
_METADATA = "propagator-metadata"  # beside the dataset of the propagator, JSON
_DIRECTIONS = 4  # of SciDAC's files


def save_propagator(
    S: Field,
    path: str | os.PathLike[str],
    *,
    source: Field | None = None,
    precision: int | None = None,
    metadata: Mapping[str, object] | None = None,
    format: str | None = None,
) -> None:
    """Writes a propagator, and its sources if given, into one file, which appears when complete. Every rank calls it.

    `S` has a batch of 4 n members of element `Spinor(n)`, or of n members of `Vector(n)`: member `spin * n + colour` is the
    solution for the source of this spin and colour. `source` is the field of sources, with the same element and batch.
    `format` is `"scidac"` (`.lime`, `.scidac`, `.prop`) or `"hdf5"` (`.h5`, `.hdf5`; needs h5py), by default what the name ends
    with. `precision`, 32 or 64, are the bits of a real number, by default those of the field. `metadata` are texts and real
    numbers by name (operator, kappa, residual), which `propagator_info` returns.

    SciDAC files are those of USQCD (`jali.io.propagators` names the documents), in four dimensions: with one scalar source where
    all sources are one complex field times unit vectors of spin and colour, or where none is given (zeros), else with a source
    before each solution. Numbers are stored as they are; the bytes do not depend on the ranks. Raises LayoutError for fields
    that are no propagators, ParameterError for other arguments, for numbers too large for the precision and, in SciDAC files,
    for those that are not finite, OSError; the same on all ranks.
    """
    _check_propagator(S, "S")
    lattice, ranks = S.lattice, S.lattice.communicator
    if source is not None:
        _check_propagator(source, "source")
        if source.lattice is not lattice or source.element != S.element:
            raise LayoutError(
                f"the source is {source!r}, the propagator {S!r}: both are on one lattice, of one element"
            )
    bits = _bits(precision, S.dtype.itemsize * 4)
    kind = _format_of(path) if format is None else format
    kept = kept_metadata(metadata)
    box = io.Box(lattice.local_origin, lattice.local_extents)
    if kind == HDF5:
        fields = {_SINK: S} if source is None else {_SINK: S, _SOURCE: source}
        fields = {name: _in_bits(path, name, field, bits) for name, field in fields.items()}
        about = {name: description(field) for name, field in fields.items()}
        about[_SINK][_METADATA] = json.dumps(kept)
        with together(ranks):
            numbers = {name: field.local() for name, field in fields.items()}
        io.write_arrays(path, HDF5, lattice.extents, box, numbers, about, ranks=ranks)
        return
    if kind != SCIDAC:
        raise ParameterError(f"propagators are saved as {SCIDAC!r} or {HDF5!r}, not as {value_shown(kind)}")
    if lattice.ndim != _DIRECTIONS:
        raise LayoutError(
            f"a SciDAC file holds propagators in four dimensions, not in {lattice.ndim}; HDF5 (.h5) holds any"
        )
    sources = None
    with together(ranks):
        sinks = reversed_sites(S.local(), lattice.ndim)
        if source is not None:
            sources = reversed_sites(source.local(), lattice.ndim)
            scalar = _scalar(sources)
    if sources is not None and all(
        one == b"1" for one in ranks.gather_bytes(b"1" if scalar is not None else b"0")
    ):
        sources = scalar
    write_propagator(
        path,
        sinks,
        box,
        lattice.extents,
        source=sources,
        precision=bits,
        metadata=metadata,
        boundary=S.boundary.words,
        ranks=ranks,
    )


def load_propagator(
    path: str | os.PathLike[str],
    lattice: Lattice | None = None,
    *,
    precision: int | None = None,
    device: str | None = None,
    boundary: Any = None,
    verify: bool = True,
) -> Field:
    """The propagator in a file of `save_propagator` or, in LIME, of others: a field with a batch. Every rank calls it.

    Read are the USQCD formats of propagators, of Dirac fermions and of color vectors, and the LatticePropagator of Chroma and
    QDP++; the format is recognised by content. Members are in the order `spin * n + colour`, whatever the order in the file.
    `lattice` is the lattice of the field, by default a new one of the file's extents, on `device`. `precision` is 32 or 64, by
    default that of the file. `boundary` is that of the field; by default what jali has written, and antiperiodic in the last
    direction for files of others, which do not say it. Checksums are verified unless `verify` is False.

    Raises FileFormatError for damaged files, other files and such in another basis of spins, LayoutError and ParameterError
    where the arguments contradict the file or its numbers are too large for `precision`, DeviceError for a `device` that
    cannot be used, OSError; the same on all ranks.
    """
    return _load(path, lattice, _SINK, precision, device, boundary, verify)


def load_source(
    path: str | os.PathLike[str],
    lattice: Lattice | None = None,
    *,
    precision: int | None = None,
    device: str | None = None,
    boundary: Any = None,
    verify: bool = True,
) -> Field:
    """The sources in a file of a propagator, a field like it. A scalar source stands at the spin and colour of each member.

    Arguments and errors are those of `load_propagator`; ParameterError where the file has no source.
    """
    return _load(path, lattice, _SOURCE, precision, device, boundary, verify)


def propagator_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file of a propagator says of itself, without its numbers. Every rank calls it.

    The keys are `format` ("scidac", "hdf5"), `type` (USQCD's name for the file, empty where it has none), `extents`, `element`
    ("Spinor(3)"), `members`, `precision` (bits), `source` ("scalar", "full" or None), `boundary` (a text per direction, or None),
    `checksums` (whether there are any), `metadata`, and `info`, the text for users in a SciDAC file. Raises what `load_propagator` does.
    """
    ranks = jali.comm.current()
    if _is_scidac(path, ranks):
        file = open_propagator(path, ranks=ranks)
        return {
            "format": SCIDAC,
            "type": file.type,
            "extents": file.extents,
            "element": str(_element(file)),
            "members": math.prod(file.element),
            "precision": file.precision,
            "source": file.source,
            "boundary": file.boundary,
            "checksums": file.has_checksums,
            "metadata": file.metadata,
            "info": file.info,
        }
    arrays = io.open_arrays(path, ranks=ranks)
    about, extents = _dataset(arrays, _SINK)
    kept = about.get(_METADATA, "{}")
    return {
        "format": HDF5,
        "type": "",
        "extents": extents,
        "element": about["element"],
        "members": about["batch"],
        "precision": ARITHMETICS[about["precision"]].bits,
        "source": "full" if _SOURCE in arrays.arrays else None,
        "boundary": list(about["boundary"]),
        "checksums": "checksum" in about,
        "metadata": json.loads(kept),
        "info": "",
    }


def _load(
    path: str | os.PathLike[str],
    lattice: Lattice | None,
    name: str,
    precision: int | None,
    device: str | None,
    boundary: Any,
    verify: bool,
) -> Field:
    if not isinstance(lattice, Lattice | None):
        raise ParameterError(f"a propagator is loaded onto a Lattice, not onto {value_shown(lattice)}")
    if lattice is not None and device is not None:
        raise ParameterError("device= is for the lattice that is made; the one that is given has a device")
    verify = flag("verify", verify, ParameterError)
    _refuse_flags(boundary)
    ranks = jali.comm.current() if lattice is None else lattice.communicator
    if not _is_scidac(path, ranks):
        arrays = io.open_arrays(path, verify=verify, ranks=ranks)
        lattice = _lattice_of(arrays.path, _dataset(arrays, name)[1], lattice, device)
        wanted = None if precision is None else f"float{_bits(precision, 64)}"
        try:
            return jali.load(path, lattice, name=name, precision=wanted, boundary=boundary, verify=verify)
        except StorageError:
            values = arrays.read(name, io.Box(lattice.local_origin, lattice.local_extents), verify=verify)
            with together(ranks):
                _require_fit(arrays.path, name, values, lattice, "read it in 64")
            raise
    file = open_propagator(path, verify=verify, ranks=ranks)
    lattice = _lattice_of(file.path, file.extents, lattice, device)
    bits = _bits(precision, file.precision)
    element = _element(file)
    if boundary is None and file.boundary is not None:
        try:
            boundary = Boundary.from_words(file.boundary, element)
        except LayoutError as error:
            raise FileFormatError(
                f"{file.path}: the boundary that it names makes no sense: {error}"
            ) from None
    if boundary is None and file.fault:
        raise FileFormatError(f"{file.fault}; it does not say the boundary: boundary= says it")
    if boundary is None:
        boundary = {lattice.ndim - 1: "antiperiodic"}
    field = Field(
        lattice, element, f"float{bits}", boundary=boundary, name=name, batch=math.prod(file.element)
    )
    values = file.read(
        io.Box(lattice.local_origin, lattice.local_extents),
        source=name == _SOURCE,
        verify=verify,
        dtype=field.dtype,
    )
    with together(ranks):
        field.set_local(reversed_sites(values, lattice.ndim))
    return field


def _check_propagator(field: Any, what: str) -> None:
    """Raise LayoutError for what is no propagator."""
    if not isinstance(field, Field):
        raise LayoutError(f"{what} is a field with a batch of spinors or vectors, not {value_shown(field)}")
    shape = field.element.numpy_shape
    n = shape[-1] if shape else 0
    if not n or field.element not in (jali.Spinor(n), jali.Vector(n)):
        raise LayoutError(
            f"{what} is a field of {field.element}; a propagator has the element Spinor(n), or Vector(n) for staggered fermions"
        )
    count = math.prod(shape)
    if field.batch != count:
        has = "no batch" if field.batch is None else f"a batch of {field.batch}"
        raise LayoutError(
            f"{what} has {has}; a propagator of {field.element} has a batch of {count}, a member for each "
            f"{'spin and colour' if len(shape) == 2 else 'colour'} of the source"
        )
    if field.over is not ALL:
        raise LayoutError(f"{what} is on {field.over} sites only; a propagator in a file is on all sites")


def _bits(precision: Any, default: int) -> int:
    """Bits of a real number. Raises ParameterError."""
    if precision is None:
        return default
    bits = integer(precision)
    if bits not in (32, 64):
        raise ParameterError(f"precision {value_shown(precision)} should be 32 or 64 (bits of a real number)")
    return bits


def _refuse_flags(boundary: Any) -> None:
    """Raise LayoutError for True and False, which a field would take for numbers."""
    several = boundary.values() if isinstance(boundary, dict) else boundary
    given = several if isinstance(boundary, dict | list | tuple) else [boundary]
    if any(isinstance(one, bool) for one in given):
        raise LayoutError(
            f"boundary conditions are 'periodic', 'antiperiodic', 'open' or phases, not {value_shown(boundary)}"
        )


def _in_bits(path: str | os.PathLike[str], name: str, field: Field, bits: int) -> Field:
    """The field in this precision, itself where it has it. Raises ParameterError for numbers that are too large."""
    if field.dtype.itemsize * 4 == bits:
        return field
    with together(field.lattice.communicator):
        values = field.local()
        if bits == 32:
            _require_fit(shown(checked_path(path)), name, values, field.lattice, "nothing written")
    return field.astype(f"float{bits}")


def _require_fit(path: str, name: str, values: np.ndarray, lattice: Lattice, otherwise: str) -> None:
    """Raise ParameterError for a finite number on this rank that is too large for 32 bits."""
    reals = np.ascontiguousarray(values).view(values.real.dtype)
    with np.errstate(over="ignore"):
        large = np.argwhere(np.isfinite(reals) & ~np.isfinite(reals.astype(np.float32)))
    if len(large):
        at = tuple(int(i) for i in large[0])
        ndim = lattice.ndim
        site = tuple(o + i for o, i in zip(lattice.local_origin, at[:ndim], strict=True))
        family = DIRAC if values.ndim == ndim + 3 else STAGGERED
        unit = in_words(family.label(at[ndim], values.shape[-1]))
        raise ParameterError(
            f"{path}: the {'sink' if name == _SINK else 'source'} of {unit} holds {complex(values[(*at[:-1], at[-1] // 2)])} "
            f"at {site}, too large for 32 bits; {otherwise}"
        )


def _format_of(path: str | os.PathLike[str]) -> str:
    name = checked_path(path)
    for ending, format in _ENDINGS.items():
        if name.lower().endswith(ending):
            return format
    raise ParameterError(
        f"{shown(name)!r} does not say in which format: it ends with {', '.join(_ENDINGS)}, or format= says it"
    )


def _is_scidac(path: str | os.PathLike[str], ranks: Any) -> bool:
    """Whether a file is in LIME; rank 0 looks. Raises FileFormatError for what is neither that nor HDF5, OSError."""
    found = b""
    with together(ranks):
        name = checked_path(path)
        if ranks.rank == 0:
            found = b"lime" if is_lime(name) else b""
            if not found and not holds_arrays(name):
                raise FileFormatError(
                    f"{shown(name)}: neither a LIME file, which begins with 45 67 89 ab, nor HDF5: no propagator that jali reads"
                )
    return bool(ranks.broadcast_bytes(found, 0))


def _dataset(arrays: io.ArrayFile, name: str) -> tuple[Mapping[str, Any], tuple[int, ...]]:
    """What an HDF5 file says of a dataset, and the extents of its lattice."""
    held = ", ".join(shown(one or "an array", 60) for one in list(arrays.arrays)[:8])
    if name == _SOURCE and _SINK in arrays.arrays and name not in arrays.arrays:
        raise ParameterError(f"{arrays.path} holds no source: none was given when it was written")
    if name not in arrays.arrays:
        raise FileFormatError(
            f"{arrays.path} holds {held or 'nothing'}, and no dataset {name!r} that save_propagator writes"
        )
    outline = arrays.arrays[name]
    about = outline.metadata
    element = None
    if about and "batch" in about:
        with contextlib.suppress(LayoutError, TypeError, KeyError):
            element = element_named(about["element"])
    if element is None or about["batch"] != math.prod(element.numpy_shape):
        raise FileFormatError(f"{arrays.path}: {name!r} is not the propagator that save_propagator writes")
    return about, outline.shape[: -1 - len(element.numpy_shape)]


def _lattice_of(path: str, extents: tuple[int, ...], lattice: Lattice | None, device: str | None) -> Lattice:
    if lattice is None:
        return Lattice(*extents, device=device)
    if lattice.extents != extents:
        raise LayoutError(f"{path} holds a lattice {extents}, not {lattice.extents}")
    return lattice


def _element(file: PropagatorFile) -> Any:
    return jali.Spinor(file.colours) if file.spins else jali.Vector(file.colours)


def _scalar(sources: np.ndarray) -> np.ndarray | None:
    """The complex field that stands at the spin and colour of each member, bit for bit; None where there is none."""
    count = sources.shape[_DIRECTIONS]
    words = np.dtype(f"u{sources.real.itemsize}")
    eta: np.ndarray = np.empty(0)
    for k in range(count):
        member = np.ascontiguousarray(sources[:, :, :, :, k]).reshape(-1, count)
        if k == 0:
            eta = member[:, 0]
        expected = np.zeros_like(member)
        expected[:, k] = eta
        if not np.array_equal(member.view(words), expected.view(words)):
            return None
    return eta.reshape(sources.shape[:_DIRECTIONS])
