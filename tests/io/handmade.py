"""What the tests of jali.io stand on: byte streams, checksums and plaquettes made without jali.

Slow and literal on purpose: loops over sites, Python integers, `struct`. Nothing here imports the code under
test, except that `ThreadRanks` has the shape that jali.io expects of a communicator.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared_file(name: str) -> Path:
    """A reference configuration beside the checkout; CI must have it, elsewhere its tests are skipped."""
    path = SHARED / name
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail(f"reference configuration {name} is missing beside the checkout, and CI is set")
        pytest.skip(f"reference configuration {name} is not beside the checkout (shared/data)")
    return path


def random_links(lattice: tuple[int, int, int, int], n: int = 3, seed: int = 0) -> np.ndarray:
    """Random SU(n) links (t, z, y, x, 4, n, n); any unit phase for n = 1."""
    rng = np.random.default_rng(seed)
    shape = (*lattice[::-1], 4, n, n)
    q, _ = np.linalg.qr(rng.normal(size=shape) + 1j * rng.normal(size=shape))
    if n > 1:
        q[..., 0, :] /= np.linalg.det(q)[..., None]
    return np.ascontiguousarray(q)


def plaquette(u: np.ndarray) -> float:
    """Mean of Re tr P / n over all planes and sites."""
    total = 0.0
    for mu in range(4):
        for nu in range(mu):
            a, b = u[..., mu, :, :], u[..., nu, :, :]
            a_ahead, b_ahead = np.roll(a, -1, axis=3 - nu), np.roll(b, -1, axis=3 - mu)
            with np.errstate(invalid="ignore"):
                loop = a @ b_ahead @ a_ahead.conj().swapaxes(-1, -2) @ b.conj().swapaxes(-1, -2)
            total += float(np.trace(loop, axis1=-2, axis2=-1).real.mean())
    return total / 6 / u.shape[-1]


def link_trace(u: np.ndarray) -> float:
    """Mean of Re tr U / n over all links."""
    return float(np.trace(u, axis1=-2, axis2=-1).real.mean()) / u.shape[-1]


def payload(u: np.ndarray, real: str = ">f8", rows: int | None = None) -> bytes:
    """Links as bytes: t slowest, then z, y, x, mu, row, column, (re, im)."""
    u = u[..., :rows, :]
    return np.stack([u.real, u.imag], axis=-1).astype(real).tobytes()


def rotl(word: int, by: int) -> int:
    """Rotate a 32-bit word left."""
    return ((word << by) | (word >> (32 - by))) & 0xFFFFFFFF


def nersc_checksum(data: bytes, order: str = ">") -> int:
    """Sum of all 32-bit words."""
    return sum(struct.unpack(f"{order}{len(data) // 4}I", data)) & 0xFFFFFFFF


def scidac_checksum(data: bytes, site_bytes: int) -> tuple[int, int]:
    """(suma, sumb)."""
    a = b = 0
    for r in range(len(data) // site_bytes):
        c = zlib.crc32(data[r * site_bytes : (r + 1) * site_bytes])
        a, b = a ^ rotl(c, r % 29), b ^ rotl(c, r % 31)
    return a, b


def milc_checksum(data: bytes, order: str) -> tuple[int, int]:
    """(sum29, sum31)."""
    a = b = 0
    for i, word in enumerate(struct.unpack(f"{order}{len(data) // 4}I", data)):
        a, b = a ^ rotl(word, i % 29), b ^ rotl(word, i % 31)
    return a, b


def nersc_header(
    u: np.ndarray, data: bytes, real: str = ">f8", rows: int = 3, **changes: str | None
) -> dict[str, str]:
    """All keys of a NERSC header; a change to None removes the key."""
    bits, order = 8 * int(real[2]), {">": "BIG", "<": "LITTLE"}[real[0]]
    header: dict[str, str | None] = {
        "HDR_VERSION": "1.0",
        "DATATYPE": "4D_SU3_GAUGE" if rows == 2 else "4D_SU3_GAUGE_3x3",
        "STORAGE_FORMAT": "1.0",
        **{f"DIMENSION_{i + 1}": str(size) for i, size in enumerate(u.shape[3::-1])},
        "LINK_TRACE": f"{link_trace(u):.10f}",
        "PLAQUETTE": f"{plaquette(u):.10f}",
        "BOUNDARY_1": "PERIODIC",
        "CHECKSUM": f"{nersc_checksum(data, real[0]):x}",
        "ENSEMBLE_ID": "test",
        "SEQUENCE_NUMBER": "17",
        "FLOATING_POINT": f"IEEE{bits}{order}",
    }
    header.update(changes)
    return {key: value for key, value in header.items() if value is not None}


def nersc_file(u: np.ndarray, real: str = ">f8", rows: int = 3, **changes: str | None) -> bytes:
    """A NERSC file."""
    data = payload(u, real, rows)
    lines = [f"{key} = {value}" for key, value in nersc_header(u, data, real, rows, **changes).items()]
    return ("\n".join(["BEGIN_HEADER", *lines, "END_HEADER"]) + "\n").encode() + data


def lime_record(kind: str, data: bytes, flags: int = 0xC000, pad: bool = True) -> bytes:
    """One LIME record."""
    head = struct.pack(">IHHQ", 0x456789AB, 1, flags, len(data)) + kind.encode().ljust(128, b"\0")
    return head + data + (b"\0" * (-len(data) % 8) if pad else b"")


def ildg_format(u: np.ndarray, bits: int = 64, field: str | None = None) -> bytes:
    """The ildg-format record's XML, laid out as no writer of ours would."""
    t, z, y, x, _, n, _ = u.shape
    return (
        f'\n<?xml version="1.0"?>\n<ildgFormat xmlns="http://www.lqcd.org/ildg"\n  other="1" >\n'
        f"<version> 1.0 </version>"
        f"<field>{field or f'su{n}gauge'}</field><precision>{bits}</precision>\n"
        f"<lx> {x}</lx><ly>{y}</ly>\n<lz>{z}</lz><lt>\n{t}\n</lt></ildgFormat>\n"
    ).encode()


def private_file_xml(u: np.ndarray, volfmt: int = 0) -> bytes:
    """SciDAC's description of the file."""
    dims = "".join(f"{size} " for size in u.shape[3::-1])
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><scidacFile><version>1.1</version><spacetime>4</spacetime>'
        f"<dims>{dims}</dims><volfmt>{volfmt}</volfmt></scidacFile>"
    ).encode()


def private_record_xml(u: np.ndarray, letter: str = "D", datacount: int = 4) -> bytes:
    """SciDAC's description of the field."""
    n = u.shape[-1]
    size = 2 * n * n * (4 if letter == "F" else 8)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><scidacRecord><version>1.0</version><date>today</date>'
        f"<datatype>QDP_{letter}{n}_ColorMatrix</datatype><precision>{letter}</precision><colors>{n}</colors>"
        f"<typesize>{size}</typesize><datacount>{datacount}</datacount></scidacRecord>"
    ).encode()


def checksum_xml(data: bytes, site_bytes: int) -> bytes:
    """The checksum record's XML, in hexadecimal without leading zeros."""
    a, b = scidac_checksum(data, site_bytes)
    sums = f"<suma>{a:x}</suma><sumb>{b:x}</sumb>"
    return f"<?xml version='1.0'?><scidacChecksum><version>1.0</version>{sums}</scidacChecksum>".encode()


def ildg_file(u: np.ndarray, real: str = ">f8", extra: bytes = b"") -> bytes:
    """An ILDG file with format, data and checksum records, each a message of its own."""
    data = payload(u, real)
    return (
        lime_record("ildg-format", ildg_format(u, 8 * int(real[2])))
        + extra
        + lime_record("ildg-binary-data", data)
        + lime_record("scidac-checksum", checksum_xml(data, len(data) // int(np.prod(u.shape[:4]))))
    )


def milc_file(u: np.ndarray, order: str = "<", site_order: int = 0, magic: int = 20103) -> bytes:
    """A MILC version 5 file in the given byte order."""
    data = payload(u, order + "f4")
    sums = milc_checksum(data, order)
    stamp = b"Mon Jan  1 00:00:00 2001"
    return struct.pack(f"{order}5i64siII", magic, *u.shape[3::-1], stamp, site_order, *sums) + data


class ThreadRanks:
    """One rank of a group of threads; a rank that waits longer than 20 s fails."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[bytes]) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._slots = barrier, slots

    def barrier(self) -> None:
        self._barrier.wait(20)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        assert isinstance(data, bytes)
        self._slots[self.rank] = data
        self._barrier.wait(20)
        result = list(self._slots)
        self._barrier.wait(20)
        return result

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        return self.gather_bytes(data if self.rank == root else b"")[root]


def on_ranks(size: int, work: Callable[[ThreadRanks], Any]) -> list[Any]:
    """What `work` returns or raises on each of `size` ranks, in order."""
    barrier, slots = threading.Barrier(size), [b""] * size
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, size, barrier, slots))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def product_boxes(
    lattice: tuple[int, ...], cuts: list[list[int]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(origin, extents) of the boxes that cuts between the directions' sites make, x fastest."""
    edges = [[0, *inner, size] for inner, size in zip(cuts, lattice, strict=True)]
    spans = [list(pairwise(e)) for e in edges]
    return [(tuple(a for a, _ in s[::-1]), tuple(b - a for a, b in s[::-1])) for s in product(*spans[::-1])]


def cut_out(field: np.ndarray, origin: tuple[int, ...], extents: tuple[int, ...]) -> np.ndarray:
    """The part of a global array in a box."""
    index = tuple(slice(o, o + e) for o, e in zip(origin[::-1], extents[::-1], strict=True))
    return field[index]
