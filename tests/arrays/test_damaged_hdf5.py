"""Damage in the structure of HDF5 files: whatever the library makes of it, `load` returns and names the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from jali.arrays import DistributedArray, load, save
from jali.errors import FileFormatError
from jali.io.array_formats import hdf5

pytest.importorskip("h5py")
VALUES = np.arange(64.0).reshape(8, 8)


@pytest.mark.parametrize("width", [64, 512])
def test_an_index_with_zeroed_blocks_is_refused_or_right(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    save(path, DistributedArray.to_dist(VALUES), format="hdf5-parts")
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")  # the heap of objects of size zero that HDF5 goes round in
    places = [*range(0, len(whole), 512), *range(heap // 64 * 64, heap + 256, 64)]
    monkeypatch.setattr(hdf5, "PATIENCE", 2.0)
    refused = 0
    for at in places if width == 512 else places[-5:]:
        damaged = bytearray(whole)
        damaged[at : at + width] = bytes(len(damaged[at : at + width]))
        path.write_bytes(damaged)
        try:
            assert np.array_equal(load(path).local, VALUES)
        except FileFormatError as error:
            assert os.fspath(path) in str(error)  # noqa: PT017
            refused += 1
    assert refused
    path.write_bytes(whole)
    assert np.array_equal(load(path).local, VALUES)  # whatever became of the process that looked


def test_an_index_without_an_end_is_refused_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    save(path, DistributedArray.to_dist(VALUES), format="hdf5-parts")
    load(path)  # the process that looks is there
    damaged = bytearray(path.read_bytes())
    entry = damaged.index(b"GCOL") + 16
    damaged[entry : entry + 256] = bytes(256)
    path.write_bytes(damaged)
    monkeypatch.setattr(hdf5, "PATIENCE", 2.0)
    with pytest.raises(FileFormatError, match=r"x\.h5: HDF5 cannot read it"):
        load(path)
    save(path, DistributedArray.to_dist(2 * VALUES), format="hdf5-parts")
    assert np.array_equal(load(path).local, 2 * VALUES)
