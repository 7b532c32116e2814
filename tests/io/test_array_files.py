"""Files of arrays: NumPy and h5py read them, ranks do not matter, and damage is noticed."""

import itertools
import json
import math
import os
import sys

import numpy as np
import pytest
from handmade import cut_out, on_ranks, product_boxes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jali.io.boxes
from jali.errors import FileFormatError, LayoutError, ParameterError
from jali.io import Box, open_arrays, write_arrays

h5py = pytest.importorskip("h5py")

TYPES = ["?", "i1", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", ">f8", ">i4"]
FORMATS = ("npy", "hdf5")
LATTICE = (5, 4, 3)
CUTS = {1: [[], [], []], 2: [[2], [], []], 3: [[], [1, 3], []], 4: [[3], [], [2]]}


def noise(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random bits of a type (booleans: true and false); floats include infinities and NaNs."""
    kind = np.dtype(dtype)
    data = np.random.default_rng(seed).bytes(math.prod(shape) * kind.itemsize)
    if kind.kind == "b":
        data = bytes(b & 1 for b in data)
    return np.frombuffer(data, kind).reshape(shape)


def name_in(format: str) -> str:
    return "" if format == "npy" else "phi"


def numbers_of(path, format: str) -> np.ndarray:
    """What others read."""
    if format == "npy":
        mapped = np.load(path, mmap_mode="r")
        assert np.array_equal(mapped.view(np.uint8), np.load(path).view(np.uint8))
        return np.array(mapped)
    with h5py.File(path) as file:
        return file["phi"][...]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("element", [(), (1,), (4, 3)])
@pytest.mark.parametrize("extents", [(7,), (3, 5), (2, 1, 3, 2), (2, 3, 1, 2, 2)])
def test_any_array_comes_back_bit_for_bit_by_jali_numpy_and_h5py(
    tmp_path, format, dtype, element, extents
) -> None:
    array, whole = noise((*extents, *element), dtype), Box.whole(extents)
    write_arrays(tmp_path / "a", format, extents, whole, {"phi": array}, {"phi": {"hello": "there"}})
    little = array.astype(np.dtype(dtype).newbyteorder("<"))
    others = numbers_of(tmp_path / "a", format)
    file = open_arrays(tmp_path / "a")
    found = file.read(name_in(format), whole)
    for read in (others, found):
        assert (read.dtype, read.shape, read.tobytes()) == (little.dtype, array.shape, little.tobytes())
    assert file.arrays[name_in(format)].metadata["hello"] == "there"


@pytest.mark.parametrize("chunk", [100, 1 << 22])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", CUTS)
def test_files_are_bit_identical_for_any_number_of_ranks(tmp_path, monkeypatch, size, format, chunk) -> None:
    monkeypatch.setattr(jali.io.boxes, "CHUNK_BYTES", chunk)
    arrays = {"phi": noise((*LATTICE, 3), "<u4")}
    if format == "hdf5":
        arrays["pi"] = noise((*LATTICE, 2, 2), "<u8", seed=1)
    metadata = {"phi": {"words": ["a", "b"], "n": 3}}
    write_arrays(tmp_path / "one", format, LATTICE, Box.whole(LATTICE), arrays, metadata)
    boxes = [Box(*b) for b in product_boxes(LATTICE, CUTS[size])]

    def write_and_read(ranks):
        box = boxes[ranks.rank]
        part = {
            name: array[tuple(slice(o, o + n) for o, n in zip(box.origin, box.extents, strict=True))]
            for name, array in arrays.items()
        }
        write_arrays(tmp_path / "many", format, LATTICE, box, part, metadata, ranks=ranks)
        file = open_arrays(tmp_path / "one", ranks=ranks)
        return all(np.array_equal(file.read(n or "", box), part[n or "phi"]) for n in file.arrays)

    assert on_ranks(size, write_and_read) == [True] * size
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["many", "one"]


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_of_numpy_in_either_order_are_read_by_ranks(tmp_path_factory, data) -> None:
    extents = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    element = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    array = noise((*extents, *element), data.draw(st.sampled_from(TYPES)))
    if data.draw(st.booleans()):
        array = np.asfortranarray(array)
    path = tmp_path_factory.mktemp("a") / "a.npy"
    np.save(path, array)
    cuts = [[data.draw(st.integers(1, n - 1))] if n > 1 else [] for n in extents]
    boxes = [Box(*b) for b in product_boxes(extents, cuts)]

    def read(ranks):
        box = boxes[ranks.rank]
        found = open_arrays(path, ranks=ranks).read("", box)
        box_slices = tuple(slice(o, o + n) for o, n in zip(box.origin, box.extents, strict=True))
        return found.tobytes() == np.ascontiguousarray(array[box_slices]).tobytes()

    assert on_ranks(len(boxes), read) == [True] * len(boxes)


@pytest.fixture(params=FORMATS)
def saved(request, tmp_path):
    """A file of 6 bytes per site, and its array."""
    array = noise((*LATTICE, 3), "<i2")
    metadata = {"phi": {"element": "Vector(3, real)", "boundary": ["open", "periodic", "(0.6+0.8j)"]}}
    path = tmp_path / "a"
    write_arrays(path, request.param, LATTICE, Box.whole(LATTICE), {"phi": array}, metadata)
    return path, array, request.param


def read(path, format: str, **options) -> np.ndarray:
    return open_arrays(path, **options).read(name_in(format), Box.whole(LATTICE), **options)


def test_a_flipped_bit_in_any_number_is_found(saved) -> None:
    path, array, format = saved
    good = path.read_bytes()
    begin = good.index(array.tobytes())
    for at in range(begin, begin + array.nbytes):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(FileFormatError, match="checksum of the numbers is [0-9a-f]{16}, the file says"):
            read(path, format)
    assert read(path, format, verify=False).shape == array.shape


def test_exchanged_sites_are_found(saved) -> None:
    path, array, format = saved
    good = path.read_bytes()
    begin = good.index(array.tobytes())
    for i, j in ((0, 1), (7, 40), (58, 59)):
        bad = bytearray(good)
        a, b = begin + 6 * i, begin + 6 * j
        bad[a : a + 6], bad[b : b + 6] = good[b : b + 6], good[a : a + 6]
        path.write_bytes(bad)
        with pytest.raises(FileFormatError, match="checksum"):
            read(path, format)


@pytest.mark.parametrize("saved", ["npy"], indirect=True)
def test_a_flipped_bit_anywhere_else_in_a_npy_file_is_found_or_changes_nothing(saved) -> None:
    path, array, _ = saved
    good, metadata = path.read_bytes(), open_arrays(path).arrays[""].metadata
    begin = good.index(array.tobytes())
    for at, bit in itertools.product((*range(begin), *range(begin + array.nbytes, len(good))), (0, 5, 7)):
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        path.write_bytes(bad)
        try:
            file = open_arrays(path)
            found = file.read("", Box.whole(LATTICE))
        except FileFormatError as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        assert np.array_equal(found, array)
        assert file.arrays[""].metadata == metadata


@pytest.mark.parametrize("saved", ["hdf5"], indirect=True)
def test_a_flipped_bit_in_what_an_hdf5_file_says_is_found(saved) -> None:
    """Of HDF5's own bytes many are read by nobody."""
    path, _, format = saved
    good = path.read_bytes()
    words = [b"Vector(3, real)", b"open", b"periodic", b"(0.6+0.8j)", b"jali array", b"element", b"boundary"]
    words += [b"checksum", b"seal", b"format"]
    for word in words:
        for at in range(good.index(word), good.index(word) + len(word)):
            bad = bytearray(good)
            bad[at] ^= 1
            path.write_bytes(bad)
            with pytest.raises(FileFormatError, match=r"seal|what stands beside|HDF5 cannot read"):
                read(path, format)


def test_truncated_files_are_refused(saved) -> None:
    path, array, format = saved
    good = path.read_bytes()
    end = good.index(array.tobytes()) + array.nbytes
    for size in range(0, len(good), 1 if format == "npy" else 97):
        path.write_bytes(good[:size])
        if size == end and format == "npy":  # then it is a file as NumPy writes it
            assert np.array_equal(read(path, format), array)
            continue
        with pytest.raises(FileFormatError):
            read(path, format)
    path.write_bytes(good[: end - 1])
    with pytest.raises(FileFormatError, match="truncated"):
        read(path, format)


def test_bytes_of_others_behind_an_array_are_refused_unless_nothing_is_verified(tmp_path) -> None:
    path, array = tmp_path / "a.npy", noise(LATTICE, "<i2")
    with open(path, "wb") as file:
        np.save(file, array)
        np.save(file, array)
    with pytest.raises(FileFormatError, match="bytes follow the array at offset"):
        open_arrays(path)
    assert np.array_equal(read(path, "npy", verify=False), array)


def test_other_versions_and_marks_are_reported(saved, monkeypatch) -> None:
    path, _, format = saved
    if format == "npy":
        path.write_bytes(path.read_bytes().replace(b'"version": 2', b'"version": 3'))
    else:
        with h5py.File(path, "r+") as file:
            file["phi"].attrs["version"] = 3
    with pytest.raises(FileFormatError, match="version 3, this jali reads 2"):
        read(path, format)
    assert read(path, format, verify=False).shape == (*LATTICE, 3)


def test_an_attribute_that_another_program_changes_breaks_the_seal(saved) -> None:
    path, _, format = saved
    if format == "npy":
        path.write_bytes(path.read_bytes().replace(b'"open"', b'"antiperiodic"'))
    else:
        with h5py.File(path, "r+") as file:
            file["phi"].attrs["element"] = "Vector(3)"
    with pytest.raises(FileFormatError, match="seal does not belong"):
        open_arrays(path)


def test_damage_seen_by_one_rank_stops_all(saved) -> None:
    path, array, format = saved
    boxes = [Box(*b) for b in product_boxes(LATTICE, CUTS[3])]
    data = bytearray(path.read_bytes())
    data[data.index(array.tobytes()) + array.nbytes - 1] ^= 1
    path.write_bytes(data)

    def look(ranks):
        return open_arrays(path, ranks=ranks).read(name_in(format), boxes[ranks.rank])

    results = on_ranks(3, look)
    assert {type(one) for one in results} == {FileFormatError}
    assert len(set(map(str, results))) == 1
    path.write_bytes(data[:100])
    assert {type(one) for one in on_ranks(3, look)} == {FileFormatError}
    path.unlink()
    assert {type(one) for one in on_ranks(3, look)} == {FileNotFoundError}


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_on_one_rank_stops_all_and_keeps_the_old_file(tmp_path, monkeypatch, format) -> None:
    path, array = tmp_path / "a", noise((*LATTICE, 100), "<f8")
    path.write_bytes(b"old")
    boxes = [Box(*b) for b in product_boxes(LATTICE, [[1, 3], [], []])]
    real = os.pwrite

    def full(fd, data, offset):
        if offset >= 3 * 12 * 800 and len(data) > 5000:  # only the last rank's part lies there
            raise OSError(28, os.strerror(28))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)

    def write(ranks):
        box = boxes[ranks.rank]
        part = array[box.origin[0] : box.origin[0] + box.extents[0]]
        write_arrays(path, format, LATTICE, box, {"phi": part}, {}, ranks=ranks)

    results = on_ranks(3, write)
    assert {str(one) for one in results} == {f"[Errno 28] cannot write {path}: No space left on device"}
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            ("npy", LATTICE, {"a": np.zeros(LATTICE), "b": np.zeros(LATTICE)}),
            ParameterError,
            "one array, not 2",
        ),
        (("tiff", LATTICE, {"a": np.zeros(LATTICE)}), ParameterError, "'hdf5' or 'npy', not 'tiff'"),
        (("hdf5", LATTICE, {"a/b": np.zeros(LATTICE)}), ParameterError, "a/b"),
        (("hdf5", LATTICE, {"a": np.zeros(LATTICE[::-1])}), ParameterError, r"the box needs \(5, 4, 3\)"),
        (("npy", LATTICE, {"a": np.zeros(LATTICE, object)}), ParameterError, "not numbers"),
        (("npy", LATTICE, {"a": np.zeros((*LATTICE, 0))}), ParameterError, "the box needs"),
        (("npy", (5, 4, 4), {"a": np.zeros(LATTICE)}), LayoutError, "exactly once"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, arguments, kind, message) -> None:
    format, extents, arrays = arguments
    with pytest.raises(kind, match=message):
        write_arrays(tmp_path / "a", format, extents, Box.whole(LATTICE), arrays, {})
    assert os.listdir(tmp_path) == []


def test_files_that_hold_no_arrays_are_refused(tmp_path) -> None:
    for content in (b"", b"NUMPY", b"\x93NUMPY", b"\x93NUMPY\x03\x00", b"\x89HDF\r\n\x1a\n", b"x" * 5000):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(FileFormatError):
            open_arrays(tmp_path / "a")
    np.save(tmp_path / "b.npy", np.array([{}, None], object), allow_pickle=True)
    with pytest.raises(FileFormatError, match="not numbers"):
        open_arrays(tmp_path / "b.npy")
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**30, 2)}"
    for shape in (b"(-3, 2)", b"(99999999999999999999, 2)"):
        text = head.replace(b"(10**30, 2)", shape).ljust(117) + b"\n"
        (tmp_path / "c").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        with pytest.raises(FileFormatError, match="impossible shape|truncated"):
            open_arrays(tmp_path / "c")


def test_hdf5_without_h5py_names_the_extra(tmp_path, monkeypatch) -> None:
    array = {"phi": np.zeros(LATTICE)}
    write_arrays(tmp_path / "a.h5", "hdf5", LATTICE, Box.whole(LATTICE), array, {})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ParameterError, match=r'pip install "jali\[hdf5\]"'):
        open_arrays(tmp_path / "a.h5")
    with pytest.raises(ParameterError, match=r'pip install "jali\[hdf5\]"'):
        write_arrays(tmp_path / "b.h5", "hdf5", LATTICE, Box.whole(LATTICE), array, {})
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_tail_is_a_json_object_that_others_can_read(tmp_path) -> None:
    array = noise(LATTICE, "<f4")
    write_arrays(tmp_path / "a", "npy", LATTICE, Box.whole(LATTICE), {"x": array}, {"x": {"element": "Real"}})
    data = (tmp_path / "a").read_bytes()
    metadata = json.loads(data[data.index(array.tobytes()) + array.nbytes :])
    assert (metadata["format"], metadata["version"], metadata["element"]) == ("jali array", 2, "Real")
    assert set(metadata) == {"format", "version", "writer", "element", "checksum", "seal"}


def test_boxes_are_cut_as_the_reference_cuts_them() -> None:
    """`product_boxes` with the first direction slowest gives the parts that NumPy's slices do."""
    array = noise(LATTICE[::-1], "<i2")
    for origin, extents in product_boxes(LATTICE, CUTS[4]):
        box_slices = tuple(slice(o, o + n) for o, n in zip(origin, extents, strict=True))
        assert np.array_equal(cut_out(array, origin, extents).T, array.T[box_slices])
