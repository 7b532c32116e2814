"""MILC version 5 files in both byte orders, made by hand."""

import struct

import numpy as np
import pytest
from handmade import milc_file, random_links

from jali.errors import FileFormatError
from jali.io import open_configuration, recognise

LATTICE = (3, 2, 4, 5)
LINKS = random_links(LATTICE)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(tmp_path, order) -> None:
    path = tmp_path / "l3245.lat"
    path.write_bytes(milc_file(LINKS, order))
    assert recognise(path) == "milc"
    file = open_configuration(path)
    assert (file.extents, file.group_size, file.precision, file.checksum_kind) == (LATTICE, 3, 32, "milc")
    assert np.array_equal(file.read(), LINKS.astype(np.complex64))
    assert file.header["time_stamp"] == "Mon Jan  1 00:00:00 2001"
    assert file.header_mismatch(0.0, 0.0) is None


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"site_order": 1}, "natural order"),
        ({"magic": 59354}, "versions 1 to 4"),
        ({"magic": 53546}, "1996"),
        ({"magic": 0x71626434}, "FNAL"),
    ],
)
def test_old_versions_and_other_site_orders_are_refused(tmp_path, order, arguments, message) -> None:
    path = tmp_path / "old.lat"
    path.write_bytes(milc_file(LINKS, order, **arguments))
    with pytest.raises(FileFormatError, match=message):
        open_configuration(path)


def test_wrong_extents_are_refused(tmp_path) -> None:
    path = tmp_path / "wrong.lat"
    data = milc_file(LINKS)
    for x, message in (
        (4, "truncated"),
        (2, "too many"),
        (0, "positive"),
        (-1, "positive"),
        (2**31 - 1, "truncated"),
    ):
        path.write_bytes(data[:4] + struct.pack("<i", x) + data[8:])
        with pytest.raises(FileFormatError, match=message):
            open_configuration(path)
