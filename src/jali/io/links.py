"""How links are stored in a file, and the metadata of a file.

`LinkStorage` turns site records into complex matrices and back: byte order, precision, and the two-row form
in which row 3 = conj(row 1 x row 2). `Contents` is the result of a header parser: where the records are, how
they are stored, the checksum to expect and the metadata. The helpers here complete a header by the payload's
size and the caller's values, and refuse contradictions.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jali.errors import FileFormatError, ParameterError
from jali.files import value_shown

from .boxes import SiteRecords
from .checksums import Checksum

DIRECTIONS = 4
"""Links per site: every format here is four-dimensional."""


@dataclass(frozen=True)
class LinkStorage:
    """Storage of the four links of a site: `rows` rows of an n x n matrix in floats of `precision` bits."""

    n: int
    rows: int
    precision: int
    byte_order: str

    @property
    def link_bytes(self) -> int:
        """Bytes of one link."""
        return self.rows * self.n * 2 * self.precision // 8

    @property
    def record_bytes(self) -> int:
        """Bytes of one site."""
        return DIRECTIONS * self.link_bytes

    @property
    def _real(self) -> np.dtype:
        return np.dtype(f"{self.byte_order}f{self.precision // 8}")

    def decode(self, records: NDArray[np.uint8], links: NDArray) -> None:
        """Fill `links` (sites, 4, n, n), contiguous complex, from rows of bytes (sites, record_bytes).

        Numbers that are not finite stay so; nothing is raised.
        """
        stored = records.reshape(-1).view(self._real).reshape(-1, DIRECTIONS, self.rows, 2 * self.n)
        with np.errstate(over="ignore", invalid="ignore"):
            _as_reals(links)[:, :, : self.rows] = stored
            if self.rows < self.n:
                links[:, :, 2] = third_row(links)

    def encode(self, links: NDArray) -> NDArray[np.uint8]:
        """Rows of bytes (sites, record_bytes) of `links` (sites, 4, n, n)."""
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(_as_reals(links)[:, :, : self.rows], dtype=self._real)
        return stored.reshape(-1).view(np.uint8).reshape(len(links), self.record_bytes)


def _as_reals(links: NDArray) -> NDArray:
    """Complex (..., n, n) seen as reals (..., n, 2 n)."""
    return links.view(links.real.dtype)


def third_row(links: NDArray) -> NDArray:
    """conj(row 1 x row 2) of matrices (..., 3, 3): the third row of a matrix in SU(3)."""
    a, b = links[..., 0, :], links[..., 1, :]
    row = np.empty_like(a)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        row[..., i] = (a[..., j] * b[..., k] - a[..., k] * b[..., j]).conj()
    return row


def first_non_finite(links: NDArray) -> tuple[int, int, complex] | None:
    """(site, direction, value) of the first number that is not finite in links (sites, 4, n, n), if any."""
    if np.isfinite(_as_reals(links)).all():
        return None
    site, mu, row, column = (int(i) for i in np.argwhere(~np.isfinite(links))[0])
    return site, mu, complex(links[site, mu, row, column])


@dataclass(frozen=True)
class Contents:
    """The contents of a configuration file's header, completed.

    `plaquette` and `link_trace` are kept as printed, since the number of digits decides how well they can be
    checked.
    """

    format: str
    records: SiteRecords
    storage: LinkStorage
    header: dict[str, str]
    metadata: dict[str, str] = field(default_factory=dict)
    plaquette: str | None = None
    link_trace: str | None = None
    checksum_kind: str | None = None
    make_checksum: Callable[[], Checksum] | None = None  # an empty one of this kind
    checksum: tuple[int, ...] = ()
    checksum_fault: str = ""  # why the checksum that the file carries cannot be compared
    warnings: tuple[str, ...] = ()

    def new_checksum(self) -> Checksum | None:
        """An empty checksum of the kind that the file carries."""
        return self.make_checksum() if self.checksum_kind and self.make_checksum else None


@dataclass(frozen=True)
class Expected:
    """The caller's description of a file: None for what is read from the file."""

    lattice: tuple[int, ...] | None = None
    n: int | None = None
    precision: int | None = None

    @classmethod
    def checked(
        cls, lattice: Sequence[int] | None, group: str | int | None, precision: int | None
    ) -> Expected:
        """Read the arguments of `open_configuration`; raise `ParameterError` where they make no sense."""
        if lattice is not None:
            lattice = tuple(int(size) for size in lattice)
            if len(lattice) != DIRECTIONS or min(lattice) < 1:
                raise ParameterError(f"lattice {lattice} should be four positive extents x, y, z, t")
        if precision not in (None, 32, 64):
            raise ParameterError(
                f"precision {value_shown(precision)} should be 32 or 64 (bits of a real number)"
            )
        return cls(lattice, None if group is None else group_order(group), precision)

    def agree(self, path: str, where: str, *, lattice: tuple[int, ...], n: int, precision: int) -> None:
        """Raise `FileFormatError` where the file (`where` in it) contradicts the caller."""
        for name, expected, found in (
            ("lattice", self.lattice, lattice),
            ("group size N", self.n, n),
            ("precision", self.precision, precision),
        ):
            if expected is not None and expected != found:
                raise FileFormatError(f"{path}: {where} says {name} {found}, but {expected} was asked for")


def group_order(group: str | int) -> int:
    """N of a group given as a number or as "SU2", "SU(2)", "U1", "U(1)"."""
    if isinstance(group, int) and group >= 1:
        return group
    match = re.fullmatch(r"\s*(SU|U)\s*\(?\s*(\d{1,3})\s*\)?\s*", str(group), re.IGNORECASE)
    if match and int(match[2]) >= 1 and (match[1].upper() == "SU" or match[2] == "1"):
        return int(match[2])
    raise ParameterError(f"unknown group {value_shown(group)}; write SU2, SU(3), U1 or the number N")


def storage_from_size(
    path: str,
    where: str,
    *,
    payload: int,
    lattice: tuple[int, ...],
    n: int | None = None,
    precision: int | None = None,
) -> tuple[int, int]:
    """(n, precision) of full matrices that fill a payload exactly; raise `FileFormatError` if none does.

    A link takes 8 N**2 or 16 N**2 bytes, and no number has both forms, so the size settles both.
    """
    links = DIRECTIONS * math.prod(lattice)
    size, rest = divmod(payload, links)
    for bits in (32, 64):
        order = math.isqrt(size * 4 // bits)
        fits = rest == 0 and order > 0 and order * order * bits // 4 == size
        if fits and n in (None, order) and precision in (None, bits):
            return order, bits
    kind = "N x N" if n is None else f"{n} x {n}"
    digits = "32 or 64" if precision is None else str(precision)
    wanted = (
        "" if n is None else f"; expected {links * n * n * 8} (32 bit) or {links * n * n * 16} (64 bit) bytes"
    )
    raise FileFormatError(
        f"{path}: {where} has {payload} bytes, which are not the links of a lattice {_by(lattice)} as "
        f"{kind} complex matrices in {digits} bits{wanted}"
    )


def check_payload_size(path: str, where: str, records: SiteRecords, payload: int) -> None:
    """Raise `FileFormatError` unless the payload has as many bytes as its lattice needs."""
    expected = math.prod(records.lattice) * records.record_bytes
    if payload == expected:
        return
    if payload < expected:
        what = f"truncated: {where} should have {expected} bytes but has {payload}"
    else:
        what = (
            f"{where} should have {expected} bytes but has {payload}: {payload - expected} bytes too many "
            f"from offset {records.offset + expected} on"
        )
    raise FileFormatError(
        f"{path}: {what} (lattice {_by(records.lattice)}, {records.record_bytes} bytes per site from offset "
        f"{records.offset} on)"
    )


def guess_byte_order(path: str, fd: int, offset: int, n: int, precision: int) -> str:
    """Byte order of a payload without such an entry: the one in which the first row of the first link has
    norm 1.

    Big-endian, the convention of such files, if that does not decide.
    """
    data = os.pread(fd, 2 * n * precision // 8, offset)
    if len(data) < 2 * n * precision // 8:
        raise FileFormatError(
            f"{path}: truncated: the file ends before its first link at offset {offset} does"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        norm = {
            order: float((np.frombuffer(data, f"{order}f{precision // 8}").astype(np.float64) ** 2).sum())
            for order in "<>"
        }
    return "<" if abs(norm["<"] - 1) < 0.1 and not abs(norm[">"] - 1) < 0.1 else ">"


def positive_integer(path: str, where: str, text: str) -> int:
    """A positive integer from a header, or `FileFormatError`."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < 1:
        raise FileFormatError(f"{path}: {where} is {value_shown(text[:40])}, expected a positive integer")
    return int(text)


def finite_number(path: str, where: str, text: str) -> str:
    """A printed number from a header, returned as printed, or `FileFormatError`."""
    text = text.strip()
    digits = r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?"
    if re.fullmatch(digits, text) and math.isfinite(float(text)):
        return text
    raise FileFormatError(f"{path}: {where} is {value_shown(text[:40])}, expected a finite number")


def hexadecimal(path: str, where: str, text: str) -> int:
    """A 32-bit checksum printed in hexadecimal, or `FileFormatError`."""
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,8}", text.strip()):
        raise FileFormatError(
            f"{path}: {where} is {value_shown(text[:40])}, expected up to 8 hexadecimal digits"
        )
    return int(text, 16)


RESERVED_KEYS = frozenset(
    {"HDR_VERSION", "DATATYPE", "STORAGE_FORMAT", "LINK_TRACE", "PLAQUETTE", "CHECKSUM", "FLOATING_POINT"}
    | {f"{name}_{d}" for name in ("DIMENSION", "BOUNDARY") for d in range(1, 5)}
)
"""Header keys that describe the payload; metadata cannot use them."""


def checked_metadata(metadata: Mapping[str, object] | None) -> dict[str, str]:
    """Metadata to be written, as text; raise `ParameterError` for what a header line cannot hold."""
    result = {}
    if not isinstance(metadata, Mapping | None):
        raise ParameterError(f"metadata is a dictionary of keys and values, not {value_shown(metadata)}")
    for key, value in (metadata or {}).items():
        text = str(value)
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", key):
            raise ParameterError(
                f"metadata key {value_shown(key)} should be letters, digits, '_', '.' and '-'"
            )
        if key.upper() in RESERVED_KEYS:
            raise ParameterError(f"metadata cannot set {key}: the writer does")
        if not text.isprintable() or not text.isascii():
            raise ParameterError(f"metadata {key} = {text[:60]!r} should be one line of printable ASCII")
        result[key] = text.strip()
    return result


def portable_metadata(found: Mapping[str, object]) -> dict[str, str]:
    """Metadata of a file in the form that `checked_metadata` accepts: it survives a change of format."""
    result = {}
    for key, value in found.items():
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", key.strip()).lstrip(".-")
        text = " ".join(str(value).split()).encode("ascii", "backslashreplace").decode()
        if name and name.upper() not in RESERVED_KEYS:
            result[name] = "".join(c if c.isprintable() else "?" for c in text)
    return result


def _by(lattice: tuple[int, ...]) -> str:
    return " x ".join(map(str, lattice))
