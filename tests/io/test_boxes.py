"""Boxes: which parts of a file they are, and that any box can be read."""

import numpy as np
import pytest
from handmade import cut_out, ildg_file, nersc_file, on_ranks, payload, product_boxes, random_links
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jali.io.boxes
from jali.errors import FileFormatError, LayoutError
from jali.io import Box, open_configuration
from jali.io.boxes import boxes_tile

LATTICE = (4, 3, 2, 5)
LINKS = random_links(LATTICE)


@st.composite
def lattices_with_a_box(draw):
    lattice = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    origin = [draw(st.integers(0, size - 1)) for size in lattice]
    extents = [draw(st.integers(0, size - o)) for size, o in zip(lattice, origin, strict=True)]
    return tuple(lattice), tuple(origin), tuple(extents)


@given(lattices_with_a_box())
def test_runs_are_the_sites_of_the_box_in_order_and_as_long_as_they_can_be(case) -> None:
    lattice, origin, extents = case
    number = np.arange(np.prod(lattice)).reshape(lattice[::-1])
    expected = cut_out(number, origin, extents).ravel()
    starts, length = Box(origin, extents).runs(lattice)
    assert np.array_equal((starts[:, None] + np.arange(length)).ravel(), expected)
    leading = 0
    while leading < len(lattice) - 1 and extents[leading] == lattice[leading]:
        leading += 1
    assert length == np.prod(extents[: leading + 1])


@pytest.mark.parametrize("chunk", [1, 600, 5000, 1 << 22])
def test_any_box_is_read_through_buffers_of_any_size(tmp_path, monkeypatch, chunk) -> None:
    monkeypatch.setattr(jali.io.boxes, "CHUNK_BYTES", chunk)
    path = tmp_path / "conf"
    path.write_bytes(ildg_file(LINKS))
    file = open_configuration(path)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def check(data) -> None:
        origin = tuple(data.draw(st.integers(0, size - 1)) for size in LATTICE)
        extents = tuple(data.draw(st.integers(0, size - o)) for size, o in zip(LATTICE, origin, strict=True))
        found = file.read(Box(origin, extents))
        assert np.array_equal(found, cut_out(LINKS, origin, extents))

    check()


def test_reading_a_part_still_verifies_the_whole(tmp_path) -> None:
    path = tmp_path / "conf"
    data = bytearray(nersc_file(LINKS))
    data[-1] ^= 1
    path.write_bytes(data)
    file, box = open_configuration(path), Box((0, 0, 0, 0), (4, 3, 2, 1))
    with pytest.raises(FileFormatError, match="checksum"):
        file.read(box)
    assert np.array_equal(file.read(box, verify=False), LINKS[:1])

    def part(ranks):
        return open_configuration(path, ranks=ranks).read(box)

    assert all("checksum" in str(result) for result in on_ranks(3, part))


def test_boxes_that_leave_the_lattice_are_refused(tmp_path) -> None:
    path = tmp_path / "conf"
    path.write_bytes(ildg_file(LINKS))
    file = open_configuration(path)
    with pytest.raises(LayoutError, match="direction 1 would end at 4, the lattice ends at 3"):
        file.read(Box((0, 1, 0, 0), (4, 3, 2, 5)))
    with pytest.raises(LayoutError, match="3 directions"):
        file.read(Box((0, 0, 0), (4, 3, 2)))
    with pytest.raises(LayoutError, match="negative"):
        Box((0, 0), (1, -1))
    with pytest.raises(LayoutError, match="as many"):
        Box((0, 0), (1,))


def test_tiling_is_distinguished_from_gaps_and_overlaps() -> None:
    boxes = product_boxes((4, 3), [[1], [2]])
    assert len(boxes) == 4
    gap = [*boxes[:3], ((3, 2), (1, 1))]
    overlap = [((0, 0), (2, 3)), ((1, 0), (2, 3)), ((0, 0), (0, 3)), ((4, 0), (0, 3))]
    empty = [((0, 0), (4, 3)), ((0, 0), (0, 3)), ((2, 1), (0, 1)), ((4, 3), (0, 0))]
    for case, expected in ((boxes, True), (boxes[::-1], True), (gap, False), (overlap, False), (empty, True)):
        answers = on_ranks(4, lambda ranks, case=case: boxes_tile(ranks, Box(*case[ranks.rank]), (4, 3)))
        assert answers == [expected] * 4


def test_payload_helper_and_reader_agree_on_the_site_order(tmp_path) -> None:
    """One link differs from 1: it must appear at its coordinates, found from the bytes by arithmetic."""
    links = np.broadcast_to(np.eye(3, dtype=complex), LINKS.shape).copy()
    data = bytearray(payload(links))
    x, y, z, t, mu = 2, 1, 1, 3, 1
    site = x + 4 * (y + 3 * (z + 2 * t))
    at = site * 576 + mu * 144 + (1 * 3 + 2) * 16 + 8  # row 1, column 2, imaginary part
    data[at : at + 8] = np.array([0.001], ">f8").tobytes()
    file = nersc_file(links, CHECKSUM=None)
    path = tmp_path / "conf"
    path.write_bytes(file[: -len(data)] + data)
    found = open_configuration(path).read()
    assert found[t, z, y, x, mu, 1, 2] == 0.001j
    assert np.count_nonzero(found != links) == 1
