"""Telling formats apart by content."""

import struct

import pytest

from jali.errors import FileFormatError
from jali.io import open_configuration, recognise


def openqcd(size: tuple[int, int, int, int] = (2, 2, 2, 2)) -> bytes:
    t, x, y, z = size
    return struct.pack("<4id", t, x, y, z, 1.51) + bytes(t * x * y * z * 4 * 144)


def test_openqcd_is_recognised_and_refused_by_name(tmp_path) -> None:
    path = tmp_path / "conf"
    path.write_bytes(openqcd())
    assert recognise(path) == "openqcd"
    with pytest.raises(FileFormatError, match="openQCD"):
        open_configuration(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
        (b"\x45\x67", "unknown format: begins with 45 67"),
        (b"\x93NUMPY", "unknown format"),
        (bytes(1000), "unknown format"),
        (openqcd() + b"x", "unknown format"),
        (struct.pack("<4id", 2, 2, 2, 2, float("nan")) + bytes(9216), "unknown format"),
    ],
)
def test_other_files_are_refused(tmp_path, data, message) -> None:
    path = tmp_path / "conf"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=message) as caught:
        recognise(path)
    assert str(path) in str(caught.value)
    with pytest.raises(FileFormatError, match=message):
        open_configuration(path)


def test_missing_files_and_directories_are_system_errors_with_the_name(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot read .*nothing"):
        open_configuration(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError, match="cannot read"):
        open_configuration(tmp_path)
