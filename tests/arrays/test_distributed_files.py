"""Distributed arrays in files: what NumPy and h5py write and read, on any ranks, in any layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.arrays.files import load, save
from jali.errors import FileFormatError, ParameterError, ShapeError


def example(dtype: Any = np.float64, shape: tuple[int, ...] = (5, 7, 3)) -> np.ndarray:
    rng = np.random.default_rng(3)
    whole = rng.normal(size=shape) * 100
    return (
        (whole + 1j * rng.normal(size=shape)).astype(dtype)
        if np.dtype(dtype).kind == "c"
        else whole.astype(dtype)
    )


def written(path: Path, ending: str) -> np.ndarray:
    if ending == ".npy":
        return np.load(path)
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        return np.array(file["data"])


def write(path: Path, whole: np.ndarray) -> None:
    if path.suffix == ".npy":
        np.save(path, whole)
        return
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["data"] = whole


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"axis": 1},
    {"axis": 2},
    {"axis": (0, 2)},
    {"partition": Partition.BROADCAST},
    {"partition": Partition.UNSAFE_BROADCAST, "axis": 1},
]


@pytest.mark.parametrize("ending", [".npy", ".h5"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_others_read_what_ranks_write_and_ranks_read_what_others_write(
    tmp_path: Path, ending: str, layout: dict[str, Any], ranks: int
) -> None:
    if ending == ".h5":
        pytest.importorskip("h5py")
    whole = example()
    path, theirs = tmp_path / f"x{ending}", tmp_path / f"theirs{ending}"
    write(theirs, whole)

    def program() -> None:
        x = DistributedArray.to_dist(whole, **layout)
        save(path, x)
        for name in (path, theirs):
            y = load(name, **layout)
            assert y.layout is x.layout
            assert y.local.dtype == whole.dtype
            assert np.array_equal(y.local, x.local)
            y[...] = 0  # it may be written

    comm.virtual_ranks(ranks, program)
    assert np.array_equal(written(path, ending), whole)


@pytest.mark.parametrize("dtype", ["f4", "c8", "c16", "i4", "u1", ">f8"])
def test_numbers_of_all_kinds_come_back(tmp_path: Path, dtype: str) -> None:
    whole = example(dtype)
    np.save(tmp_path / "x.npy", whole)

    def program() -> None:
        x = load(tmp_path / "x.npy")
        assert x.dtype.isnative
        save(tmp_path / "y.npy", x)

    comm.virtual_ranks(2, program)
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


def test_ranks_without_a_part_and_uneven_parts(tmp_path: Path) -> None:
    whole = example(shape=(2, 6))

    def program() -> None:
        x = DistributedArray.to_dist(whole)  # of 3 ranks the last has nothing
        save(tmp_path / "x.npy", x)
        shapes = [(2, 1), (2, 0), (2, 5)]
        y = load(tmp_path / "x.npy", axis=1, local_shapes=shapes)
        assert y.local_shapes == shapes
        assert np.array_equal(y.asarray(), whole)

    comm.virtual_ranks(3, program)
    assert np.array_equal(np.load(tmp_path / "x.npy"), whole)


def test_files_in_order_of_fortran_and_compressed_ones(tmp_path: Path) -> None:
    whole = example()
    np.save(tmp_path / "f.npy", np.asfortranarray(whole))
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("a", data=whole, chunks=(2, 2, 2), compression="gzip")
        file["b"] = whole[0]

    def program() -> None:
        for axis in range(3):
            assert np.array_equal(load(tmp_path / "f.npy", axis=axis).asarray(), whole)
            assert np.array_equal(load(tmp_path / "c.h5", axis=axis, name="a").asarray(), whole)
        with pytest.raises(FileFormatError, match="which of its arrays, 'a', 'b'"):
            load(tmp_path / "c.h5")
        with pytest.raises(FileFormatError, match="has no 'd', but 'a', 'b'"):
            load(tmp_path / "c.h5", name="d")

    comm.virtual_ranks(2, program)


def test_a_changed_number_is_noticed_and_an_older_file_stays_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    whole = example()
    save(path, DistributedArray.to_dist(whole))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)

    def program() -> None:
        with pytest.raises(FileFormatError, match="checksum"):
            load(path)
        assert np.count_nonzero(load(path, verify=False).asarray() != whole) == 1
        with pytest.raises(ParameterError, match="object"):
            save(path, DistributedArray.to_dist(whole.astype(object)))

    comm.virtual_ranks(2, program)
    assert path.read_bytes() == bytes(data)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    def program() -> None:
        x = DistributedArray.to_dist(np.ones(4))
        with pytest.raises(ParameterError, match=r"what format is meant\? Names end with"):
            save(tmp_path / "x.dat", x)
        with pytest.raises(ShapeError, match=r"shape \(0, 3\) has nothing"):
            save(tmp_path / "x.npy", DistributedArray((0, 3)))
        with pytest.raises(OSError, match="No such file"):
            load(tmp_path / "missing.npy")
        with pytest.raises(OSError, match="No such file"):
            save(tmp_path / "missing" / "x.npy", x)
        save(tmp_path / "x.dat", x, format="npy")
        with pytest.raises(ShapeError, match="axis 1 does not exist"):
            load(tmp_path / "x.dat", axis=1)

    comm.virtual_ranks(2, program)
