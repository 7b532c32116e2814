"""Writing a file by many ranks at once, so that it appears complete or not at all.

Rank 0 makes a temporary file beside the target; every rank writes its own box into it; checksums are
combined; rank 0 adds what surrounds the payload and renames. After any failure, on any rank, the temporary
file is removed, an older file under the name stays, and all ranks raise the same error.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator
from importlib import metadata

import numpy as np
from numpy.typing import NDArray

from jali.errors import LayoutError, ParameterError
from jali.files import checked_path, shown

from .boxes import Box, SiteRecords, boxes_tile, site_coordinates, write_all
from .checksums import Checksum
from .links import DIRECTIONS, LinkStorage, first_non_finite, third_row
from .parallel import RankGroup, together

try:
    WRITER = f"jali {metadata.version('jali')}"
except metadata.PackageNotFoundError:
    WRITER = "jali (not installed)"

TEMPORARY = re.compile(r"\..{1,80}\.[0-9a-f]{12}\.tmp")
"""Names of files that are being written, as `create_beside` makes them."""

_TWO_ROW_TOLERANCE = {32: 1e-5, 64: 1e-10}

Envelope = Callable[[tuple[int, ...]], tuple[bytes, bytes]]
"""The bytes before and after the payload, for a checksum (empty: unknown yet). Lengths must not depend on
it.
"""


def write_configuration(
    path: str | os.PathLike[str],
    links: NDArray,
    box: Box,
    lattice: tuple[int, ...],
    storage: LinkStorage,
    checksum: Checksum,
    envelope: Envelope,
    ranks: RankGroup,
) -> None:
    """Write head, site records and tail of a configuration file (collective)."""
    with together(ranks):
        flat = _checked_links(links, box, lattice, storage)
        checked_path(path)
    check_tiling(ranks, box, lattice)
    with writing_beside(path, ranks) as (target, name):
        begins = str(len(envelope(())[0])) if ranks.rank == 0 else ""
        offset = int(ranks.broadcast_bytes(begins.encode(), 0))
        records = SiteRecords(target, offset, storage.record_bytes, lattice)

        def encode(first: int, last: int) -> NDArray[np.uint8]:
            _check_chunk(flat[first:last], first, box, storage)
            return storage.encode(flat[first:last])

        with together(ranks), explained(f"cannot write {target}"), opened(name, os.O_WRONLY) as fd:
            records.write(fd, box, encode, checksum.add)
            os.fsync(fd)
        sums = checksum.combined(ranks)
        with together(ranks), explained(f"cannot write {target}"):
            if ranks.rank == 0:
                head, tail = envelope(sums)
                with opened(name, os.O_WRONLY) as fd:
                    write_all(fd, head, 0)
                    write_all(fd, tail, offset + records.record_bytes * math.prod(lattice))
                    os.fsync(fd)


@contextlib.contextmanager
def writing_beside(path: str | os.PathLike[str], ranks: RankGroup) -> Iterator[tuple[str, str]]:
    """Around the phases in which the ranks write a file: yields its real name, and that of an empty file to be filled.

    Where the block ends well on all ranks (`together`) the new file takes the name; else it is removed, and an older
    one stays.
    """
    with together(ranks):
        target = os.path.realpath(checked_path(path))
    temporary = ""
    try:
        with together(ranks), explained(f"cannot write {target}"):
            if ranks.rank == 0:
                temporary = create_beside(target)
        name = os.fsdecode(ranks.broadcast_bytes(os.fsencode(temporary), 0))
        yield target, name
        with together(ranks), explained(f"cannot write {target}"):
            if ranks.rank == 0:
                os.replace(name, target)
                temporary = ""
                sync_directory(os.path.dirname(target))
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_tiling(ranks: RankGroup, box: Box, lattice: tuple[int, ...]) -> None:
    """Raise `LayoutError` on all ranks unless their boxes cover the lattice exactly once (collective)."""
    if not boxes_tile(ranks, box, lattice):
        raise LayoutError(
            f"the boxes of {ranks.size} rank(s) do not cover the lattice {lattice} exactly once, so a file "
            "cannot be written from them"
        )


@contextlib.contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A file descriptor, closed in the end."""
    fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Put `what` in front of the system's message in any `OSError`, keeping its number and so its type."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{what}: {os.strerror(error.errno)}") from error


def create_beside(target: str) -> str:
    """Create an empty temporary file in the directory of `target` and return its name."""
    if os.path.exists(target) and not os.path.isfile(target):
        raise ParameterError(f"cannot write {target}: something that is not a regular file has this name")
    directory, base = os.path.split(target)
    name = os.path.join(directory, f".{base[:80]}.{secrets.token_hex(6)}.tmp")
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.close(fd)
    except OSError:
        os.unlink(name)
        raise
    return name


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file of one rank, complete or not at all; an older one under the name stays if that fails.

    Raises OSError that names the path, ParameterError where something else than a file has the name.
    """
    target = os.path.realpath(checked_path(path))
    with explained(f"cannot write {shown(path)}"):
        temporary = create_beside(target)
        try:
            with opened(temporary, os.O_WRONLY) as fd:
                write_all(fd, data, 0)
                os.fsync(fd)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def sync_directory(directory: str) -> None:
    """Make a rename in a directory durable, where the file system supports it."""
    with contextlib.suppress(OSError), opened(directory, os.O_RDONLY) as fd:
        os.fsync(fd)


def _checked_links(links: NDArray, box: Box, lattice: tuple[int, ...], storage: LinkStorage) -> NDArray:
    if len(lattice) != DIRECTIONS or min(lattice) < 1:
        raise ParameterError(f"lattice {lattice} should be four positive extents x, y, z, t")
    box.check_inside(lattice)
    links = np.asarray(links)
    wanted = (*box.shape, DIRECTIONS, storage.n, storage.n)
    if links.shape != wanted:
        raise ParameterError(f"links have shape {links.shape}, the box needs {wanted}")
    if links.dtype not in (np.complex64, np.complex128):
        raise ParameterError(f"links have type {links.dtype}, expected complex64 or complex128")
    return np.ascontiguousarray(links).reshape(box.volume, *wanted[4:])


def _check_chunk(links: NDArray, first: int, box: Box, storage: LinkStorage) -> None:
    """Refuse what the file could not give back: non-finite numbers, and matrices that two rows lose."""
    with np.errstate(over="ignore"):
        bad = first_non_finite(links.astype(np.complex64) if storage.precision == 32 else links)
    if bad:
        site, mu, value = bad
        local = site_coordinates(first + site, box.extents)
        at = tuple(o + c for o, c in zip(box.origin, local, strict=True))
        raise ParameterError(
            f"link at (x, y, z, t) = {at}, direction {mu} holds {value} in {storage.precision} bits; "
            "nothing written"
        )
    if storage.rows < storage.n and len(links):
        deviation = float(np.abs(links[:, :, 2] - third_row(links)).max())
        if not deviation <= _TWO_ROW_TOLERANCE[storage.precision]:
            raise ParameterError(
                f"third rows differ from conj(row 1 x row 2) by up to {deviation:.2e}, so two rows would "
                "lose them; reunitarise first or write three rows"
            )
