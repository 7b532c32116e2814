"""Damaged, truncated and impossible files: every one is refused, and the message says what and where."""

import itertools
import struct
import tracemalloc

import numpy as np
import pytest
from handmade import (
    checksum_xml,
    ildg_file,
    ildg_format,
    lime_record,
    milc_file,
    nersc_checksum,
    nersc_file,
    payload,
    random_links,
)

from jali.errors import FileFormatError
from jali.io import Box, open_configuration, write_ildg

LATTICE = (3, 2, 4, 2)
LINKS = random_links(LATTICE)

FILES = {
    "nersc": nersc_file(LINKS),
    "nersc two rows little-endian": nersc_file(LINKS, "<f4", 2),
    "ildg": ildg_file(LINKS),
    "ildg single": ildg_file(LINKS, ">f4"),
    "milc": milc_file(LINKS),
    "milc big-endian": milc_file(LINKS, ">"),
}


def payload_span(path, data: bytes) -> tuple[int, int]:
    """Where the payload begins and ends."""
    path.write_bytes(data)
    file = open_configuration(path)
    start = data.index(
        payload(LINKS, (">" if file.byte_order == "big" else "<") + f"f{file.precision // 8}", file.rows)
    )
    return start, start + 48 * 4 * file.rows * 3 * 2 * file.precision // 8


def read(path):
    return open_configuration(path).read()


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_in_the_payload_is_detected(tmp_path, name) -> None:
    path, data = tmp_path / "conf", FILES[name]
    start, end = payload_span(path, data)
    read(path)
    offsets = sorted({start, start + 1, end - 1, *range(start, end, (end - start) // 99)})
    for at, bit in zip(offsets, itertools.cycle(range(8)), strict=False):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"checksum|not finite"):
            read(path)


@pytest.mark.parametrize("name", FILES)
def test_exchanged_sites_are_detected_where_the_checksum_knows_the_order(tmp_path, name) -> None:
    path, data = tmp_path / "conf", FILES[name]
    start, end = payload_span(path, data)
    size = (end - start) // 48
    a, b = start + 5 * size, start + 11 * size
    damaged = bytearray(data)
    damaged[a : a + size], damaged[b : b + size] = data[b : b + size], data[a : a + size]
    path.write_bytes(damaged)
    if name.startswith("nersc"):  # a plain sum cannot see it; the plaquette does
        read(path)
    else:
        with pytest.raises(FileFormatError, match="checksum"):
            read(path)


def test_checksum_errors_name_both_values_and_the_position(tmp_path) -> None:
    path = tmp_path / "conf"
    data = bytearray(FILES["nersc"])
    start, end = payload_span(path, bytes(data))
    data[start + 10] ^= 4
    path.write_bytes(data)
    found, expected = nersc_checksum(bytes(data[start:])), nersc_checksum(FILES["nersc"][start:])
    message = f"offsets {start} to {end}\\) is {found:08x}, the file says {expected:08x}"
    with pytest.raises(FileFormatError, match=message):
        read(path)
    assert open_configuration(path).read(verify=False).shape == LINKS.shape


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_checksum_in_the_header_is_detected(tmp_path, name) -> None:
    path, data = tmp_path / "conf", FILES[name]
    start, _ = payload_span(path, data)
    if name.startswith("milc"):
        offsets = [88, 95]
    elif name.startswith("ildg"):
        offsets = [data.index(b"<suma>") + 6, data.index(b"</sumb>") - 1]
    else:
        offsets = [data.index(b"CHECKSUM") + 11]
        assert offsets[0] < start
    for at in offsets:
        damaged = bytearray(data)
        damaged[at] = (
            damaged[at] ^ 1 if name.startswith("milc") else ord("a" if data[at] != ord("a") else "b")
        )
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="checksum"):
            read(path)


def boundaries(name: str, data: bytes, start: int, end: int) -> list[int]:
    """Every place at which a part of the file ends: header lines, record headers, data, padding, sites and
    links.
    """
    offsets = {0, 1, 4, start, end, len(data)}
    size = (end - start) // 48
    offsets |= {start + size * i for i in range(0, 48, 5)} | {start + size // 4 * i for i in (1, 2, 3, 191)}
    if name.startswith("nersc"):
        offsets |= {i + 1 for i in range(start) if data[i : i + 1] == b"\n"}
    elif name.startswith("milc"):
        offsets |= {20, 84, 88, 92, 96}
    else:
        at = 0
        while at < len(data):
            length = struct.unpack(">Q", data[at + 8 : at + 16])[0]
            offsets |= {at, at + 4, at + 8, at + 16, at + 144, at + 144 + length}
            at += 144 + length + -length % 8
    return sorted(
        {offset + step for offset in offsets for step in (-1, 0, 1) if 0 <= offset + step < len(data)}
    )


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_boundary_is_refused(tmp_path, name) -> None:
    """Exceptions that no reader can tell: an ILDG file cut right before its checksum record is one without
    checksum, and missing padding at the very end is common."""
    path, data = tmp_path / "conf", FILES[name]
    start, end = payload_span(path, data)
    records_end = end + -end % 8
    unpadded = data.rstrip(b"\0")
    for cut in boundaries(name, data, start, end):
        path.write_bytes(data[:cut])
        if name.startswith("ildg") and (cut == records_end or cut >= len(unpadded)):
            assert open_configuration(path).checksum_kind == (None if cut == records_end else "scidac")
            assert read(path).shape == LINKS.shape
        else:
            with pytest.raises(FileFormatError) as caught:
                read(path)
            assert str(path) in str(caught.value)


def test_our_own_ildg_file_cut_anywhere_before_its_checksum_ends_is_refused(tmp_path) -> None:
    path = tmp_path / "conf"
    write_ildg(path, LINKS, Box.whole(LATTICE), LATTICE)
    data = path.read_bytes()
    start, end = payload_span(path, data)
    info = data.index(b"jali-info") - 16
    for cut in boundaries("ildg", data, start, end):
        path.write_bytes(data[:cut])
        if len(data[:info].rstrip(b"\0")) <= cut <= info or cut >= len(data.rstrip(b"\0")):
            assert open_configuration(path).checksum_kind == "scidac"
        else:
            with pytest.raises(FileFormatError):
                read(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("garbage", [b"\0", b"\n", b"garbage" * 40, bytes(576), bytes(10000)])
def test_trailing_garbage_is_refused(tmp_path, name, garbage) -> None:
    path = tmp_path / "conf"
    path.write_bytes(FILES[name].ljust(len(FILES[name]) + -len(FILES[name]) % 8, b"\0") + garbage)
    with pytest.raises(FileFormatError, match="offset"):
        open_configuration(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["nersc", "nersc2", "ildg", "no checksum", "milc"])
def test_numbers_that_are_not_finite_are_refused_with_their_position_though_the_checksum_is_right(
    tmp_path, kind, value
) -> None:
    path = tmp_path / "conf"
    bad = LINKS.copy()
    x, y, z, t, mu = 2, 0, 3, 1, 2
    bad[t, z, y, x, mu, 1, 1] = value
    site = x + 3 * (y + 2 * (z + 4 * t))
    if kind.startswith("nersc"):
        rows = 2 if kind == "nersc2" else 3
        path.write_bytes(nersc_file(bad, ">f8", rows, PLAQUETTE="0", LINK_TRACE="0"))
        size = rows * 3 * 16
    elif kind == "milc":
        path.write_bytes(milc_file(bad))
        size = 72
    else:
        data = payload(bad)
        records = lime_record("ildg-format", ildg_format(bad)) + lime_record("ildg-binary-data", data)
        path.write_bytes(
            records + (lime_record("scidac-checksum", checksum_xml(data, 576)) if kind == "ildg" else b"")
        )
        size = 144
    start = path.stat().st_size - 48 * 4 * size if kind[0] in "nm" and kind[1] != "o" else None
    with pytest.raises(FileFormatError, match=r"\(x, y, z, t\) = \(2, 0, 3, 1\), direction 2") as caught:
        read(path)
    if start is not None:
        assert f"(offset {start + (site * 4 + mu) * size})" in str(caught.value)
    with pytest.raises(FileFormatError, match="not finite"):
        open_configuration(path).read(verify=False)


def test_without_checksum_links_must_at_least_have_rows_of_norm_one(tmp_path) -> None:
    path = tmp_path / "conf"
    bad = LINKS.copy()
    bad[1, 0, 1, 2, 3, 2] *= 1.1
    path.write_bytes(nersc_file(bad, CHECKSUM=None))
    with pytest.raises(
        FileFormatError, match=r"\(2, 1, 0, 1\), direction 3 .* squared norm 1.21, expected 1"
    ):
        read(path)
    assert np.array_equal(open_configuration(path).read(verify=False), bad)


@pytest.mark.parametrize("lattice", [(10**3, 10**3, 10**3, 10**3), (10**6, 10**6, 1, 1), (2**31 - 1,) * 4])
def test_huge_claims_cost_no_memory(tmp_path, lattice) -> None:
    path = tmp_path / "conf"
    x, y, z, t = lattice
    claims = {f"DIMENSION_{d}": str(size) for d, size in enumerate(lattice, 1)}
    xml = ildg_format(LINKS)
    for d, old in zip("xyzt", (b"> 3<", b">2<", b"> 4<", b">\n2\n<"), strict=True):
        xml = xml.replace(b"<l" + d.encode() + old, b"<l%s>%d<" % (d.encode(), lattice["xyzt".index(d)]))
    data = payload(LINKS)
    files = [
        nersc_file(LINKS, **claims),
        lime_record("ildg-format", xml) + lime_record("ildg-binary-data", data),
        milc_file(LINKS)[:4] + struct.pack("<4i", x, y, z, t) + milc_file(LINKS)[20:],
    ]
    for content in files:
        path.write_bytes(content)
        tracemalloc.start()
        with pytest.raises(FileFormatError, match="truncated"):
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_file_that_shrinks_after_opening_is_refused(tmp_path) -> None:
    path = tmp_path / "conf"
    path.write_bytes(FILES["nersc"])
    file = open_configuration(path)
    path.write_bytes(FILES["nersc"][:-1000])
    with pytest.raises(FileFormatError, match="truncated: the file ends at offset"):
        file.read()
