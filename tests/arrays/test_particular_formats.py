"""What single formats of files of distributed arrays have beside: parts of HDF5, chunks of Zarr, cubes and headers of SEG-Y."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, contents, layout_of, load, save
from jali.arrays.layout import shape_of
from jali.errors import FileFormatError, ParameterError, ShapeError


def example(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    numbers = np.random.default_rng(2).normal(size=(2, *shape)) * 100
    return (numbers[0] + 1j * numbers[1] if np.dtype(dtype).kind == "c" else numbers[0]).astype(dtype)


def saved(
    path: Path, whole: np.ndarray, ranks: int = 3, layout: dict[str, Any] | None = None, **options: Any
) -> None:
    def program() -> None:
        save(path, DistributedArray.to_dist(whole, **(layout or {})), **options)

    comm.virtual_ranks(ranks, program)


def refused(error: type[Exception], words: str, call: Any, ranks: int = 2) -> None:
    """All ranks raise it."""

    def program() -> None:
        with pytest.raises(error, match=words):
            call()

    comm.virtual_ranks(ranks, program)


# --- a file for each rank -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [{}, {"axis": 1}, {"axis": (0, 1), "grid": (2, 2)}], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int16"])
def test_h5py_reads_the_parts_as_one(tmp_path: Path, layout: dict[str, Any], dtype: str) -> None:
    h5py = pytest.importorskip("h5py")
    whole = example((5, 6, 3), dtype)
    saved(tmp_path / "x.h5", whole, 4, layout, format="hdf5-parts", name="model")
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["model"].is_virtual
        assert file["model"].dtype == whole.dtype
        assert np.array_equal(file["model"][...], whole)
    assert len(list(tmp_path.glob("x.h5.parts-*/*.h5"))) == 4


def test_file_and_folder_are_moved_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("h5py")
    whole = example((5, 6))
    (tmp_path / "a").mkdir()
    saved(tmp_path / "a" / "x.h5", whole, format="hdf5-parts")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "link.h5").symlink_to(tmp_path / "b" / "x.h5")
    monkeypatch.chdir("/")
    for name in ("b/x.h5", "link.h5"):
        assert np.array_equal(load(tmp_path / name).local, whole)


def test_a_part_that_is_missing_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    whole, path = example((6, 4)), tmp_path / "x.h5"
    saved(path, whole, format="hdf5-parts")
    (part,) = tmp_path.glob("x.h5.parts-*/1.h5")
    part.unlink()
    refused(
        FileFormatError,
        "'data' lies in 3 other files, of which 1 is missing, such as .*1.h5",
        lambda: load(path),
    )
    there = load(path, verify=False).local
    assert np.array_equal(there[[0, 1, 4, 5]], whole[[0, 1, 4, 5]])
    assert np.all(there[2:4] == 0)


def test_folders_of_older_parts_go_whatever_replaces_them_and_others_stay(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    whole, path = example((6, 4)), tmp_path / "x.h5"
    saved(path, whole, format="hdf5-parts")
    (first,) = tmp_path.glob("x.h5.parts-*")
    other = tmp_path / "x.h5.parts-0123456789ab"  # of nobody knows whom
    other.mkdir()
    saved(path, 2 * whole, format="hdf5-parts")
    assert not first.exists()
    assert other.exists()
    saved(path, 3 * whole)
    assert sorted(os.listdir(tmp_path)) == ["x.h5", other.name]
    assert np.array_equal(load(path).local, 3 * whole)


# --- chunks ---------------------------------------------------------------------------------------------------


class Writers:
    """Which ranks wrote each chunk of a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        zarr = pytest.importorskip("zarr")
        self.of: dict[tuple[int, ...], set[int]] = {}
        lock, inner = threading.Lock(), zarr.Array.__setitem__

        def write(array: Any, where: tuple[slice, ...], values: Any) -> None:
            touched = [range(s.start // c, -(-s.stop // c)) for s, c in zip(where, array.chunks, strict=True)]
            with lock:
                for chunk in itertools.product(*touched):
                    self.of.setdefault(chunk, set()).add(comm.current().rank)
            inner(array, where, values)

        monkeypatch.setattr(zarr.Array, "__setitem__", write)


@pytest.mark.parametrize("chunks", [None, (2, 3), (4, 9), (1, 1), (100, 100)])
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, {}),
        (3, {}),
        (3, {"axis": 1}),
        (4, {"axis": (0, 1), "grid": (2, 2)}),
        (4, {"axis": (1, 0), "grid": (4, 1)}),
        (3, {"local_shapes": [(1, 9), (5, 9), (1, 9)]}),
        (3, {"local_shapes": [(0, 9), (7, 9), (0, 9)]}),
        (2, {"partition": Partition.BROADCAST}),
    ],
    ids=str,
)
def test_no_chunk_is_written_by_two_ranks(
    tmp_path: Path, ranks: int, layout: dict[str, Any], chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr")
    whole, writers = example((7, 9), "complex64"), Writers(monkeypatch)
    saved(tmp_path / "x.zarr", whole, ranks, layout, chunks=chunks)
    found = zarr.open_array(tmp_path / "x.zarr", mode="r")
    assert np.array_equal(found[...], whole)
    assert all(len(ranks_) == 1 for ranks_ in writers.of.values())
    assert len(writers.of) == found.nchunks
    if chunks is not None:
        assert found.chunks == tuple(map(min, chunks, whole.shape))
    elif "local_shapes" not in layout and layout.get("partition") is None:
        # all write, but where 9 columns make 3 chunks for 4 ranks
        assert len(set.union(*writers.of.values())) == (3 if layout.get("grid") == (4, 1) else ranks)


@pytest.mark.parametrize(
    ("shape", "ranks", "axis", "chunks"),
    [
        ((8, 9), 4, 0, (2, 9)),  # parts are chunks
        ((7, 9), 3, 0, (3, 9)),  # uneven: the largest part
        ((9, 8), 4, (0, 1), (5, 4)),
        ((1024, 1 << 16), 4, 0, (256, 1 << 16)),  # 64 MiB of float32
        ((2048, 1 << 16), 4, 0, (256, 1 << 16)),
        ((6, 1 << 26), 2, 0, (1, 1 << 24)),  # an index of the first dimension is more than that
        ((1 << 33,), 4, 0, (1 << 24,)),  # more elements than 32 bits count
    ],
)
def test_chunks_follow_parts_and_are_not_too_large(shape: Any, ranks: int, axis: Any, chunks: Any) -> None:
    pytest.importorskip("zarr")
    from jali.arrays.file_formats.zarr import CHUNK_BYTES, chosen_chunks, whole_chunks

    def program() -> None:
        layout = layout_of(comm.current(), shape, axis=axis)
        assert chosen_chunks(layout, 4) == chunks
        assert math.prod(chunks) * 4 <= CHUNK_BYTES
        boxes = whole_chunks(layout, chunks)
        assert sum(math.prod(shape_of(box)) for box in boxes) == math.prod(shape)
        assert all(begin % c == 0 for box in boxes for (begin, _), c in zip(box, chunks, strict=True))

    comm.virtual_ranks(ranks, program)


def test_where_parts_end_with_chunks_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr")
    from jali.arrays import redistribution

    monkeypatch.setattr(redistribution, "redistribute_boxes", lambda *_: pytest.fail("parts are moved"))
    saved(tmp_path / "x.zarr", example((8, 6)), 4)
    saved(tmp_path / "y.zarr", example((8, 6)), 4, chunks=(1, 2))


def test_stores_of_others_are_read(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    whole = example((7, 9))
    zarr.create_array(tmp_path / "v2.zarr", data=whole, chunks=(2, 4), zarr_format=2)
    zarr.create_array(tmp_path / "sharded.zarr", data=whole, chunks=(2, 3), shards=(4, 6))
    zarr.create_array(tmp_path / "partial.zarr", shape=(7, 9), chunks=(2, 4), dtype="f4", fill_value=3)
    group = zarr.create_group(tmp_path / "group.zarr")
    group.create_array("speed", shape=whole.shape, dtype="f4")[...] = whole
    group.create_group("deep").create_array("er", shape=whole.shape, dtype="f4")[...] = 2 * whole

    def program() -> None:
        for layout in ({}, {"axis": 1}, {"axis": (0, 1)}):
            assert np.array_equal(load(tmp_path / "v2.zarr", **layout).asarray(), whole)
            assert np.array_equal(load(tmp_path / "sharded.zarr", **layout).asarray(), whole)
            assert np.all(load(tmp_path / "partial.zarr", **layout).asarray() == 3)
            assert np.array_equal(load(tmp_path / "group.zarr", name="speed", **layout).asarray(), whole)
        assert np.array_equal(load(tmp_path / "group.zarr", name="deep/er").asarray(), 2 * whole)
        assert list(contents(tmp_path / "group.zarr").arrays) == ["deep/er", "speed"]
        with pytest.raises(FileFormatError, match="which of its arrays, 'deep/er', 'speed'"):
            load(tmp_path / "group.zarr")
        with pytest.raises(FileFormatError, match="has no 'slow', but 'deep/er', 'speed'"):
            load(tmp_path / "group.zarr", name="slow")

    comm.virtual_ranks(3, program)


def test_an_array_may_join_a_group(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    whole, group = example((7, 9)), tmp_path / "group.zarr"
    zarr.create_group(group).create_array("a", shape=whole.shape, dtype="f4")[...] = whole
    saved(group / "b", 2 * whole, format="zarr")
    assert np.array_equal(zarr.open_group(group, mode="r")["b"][...], 2 * whole)
    assert np.array_equal(load(group, name="b").local, 2 * whole)
    refused(
        ParameterError, "is a group of arrays; give the name of one in it", lambda: saved_here(group, whole)
    )
    assert np.array_equal(load(group, name="a").local, whole)


def saved_here(path: Path, whole: np.ndarray, **options: Any) -> None:
    save(path, DistributedArray.to_dist(whole), **options)


def test_what_is_no_store_is_not_replaced(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    whole = example((4, 4))
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr" / "thesis.txt").write_text("42")
    (tmp_path / "file.zarr").write_text("42")
    refused(
        ParameterError, "folder that holds other things", lambda: saved_here(tmp_path / "mine.zarr", whole)
    )
    refused(
        ParameterError, "something that is no Zarr array", lambda: saved_here(tmp_path / "file.zarr", whole)
    )
    assert (tmp_path / "mine.zarr" / "thesis.txt").read_text() == "42"
    assert (tmp_path / "file.zarr").read_text() == "42"
    refused(FileFormatError, "neither of", lambda: load(tmp_path / "mine.zarr"))


def test_chunks_that_are_none_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    for chunks in (3, (3,), (3, 0), (1, 2.5), "ab"):
        refused(
            ParameterError,
            r"chunks of an array of shape \(4, 4\) are 2 whole numbers",
            lambda chunks=chunks: saved_here(tmp_path / "x.zarr", example((4, 4)), chunks=chunks),
        )
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("ranks", [1, 2])
def test_zarr_has_no_long_double_but_every_order_of_bytes(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("zarr")
    for dtype in (np.longdouble, np.clongdouble):
        x = example((3, 4)).astype(dtype)
        refused(
            ParameterError,
            "at most double precision",
            lambda x=x: save(tmp_path / "x.zarr", DistributedArray.to_dist(x)),
            ranks,
        )
    whole = example((7, 4), ">f4")
    saved(tmp_path / "y.zarr", whole, ranks, {"axis": 1}, chunks=(3, 3))
    comm.virtual_ranks(
        ranks, lambda: np.testing.assert_array_equal(load(tmp_path / "y.zarr").asarray(), whole)
    )


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
@pytest.mark.parametrize("name", ["x.npy", "x.h5"])
def test_long_double_is_in_files_that_say_what_bytes_are(tmp_path: Path, name: str, dtype: type) -> None:
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    whole = (example((7, 4)).astype(dtype) + 1) / np.longdouble(3)
    saved(tmp_path / name, whole, 2, {"axis": 1})
    found = comm.virtual_ranks(2, lambda: load(tmp_path / name).asarray())
    assert all(x.dtype == dtype and np.array_equal(x, whole) for x in found)
    if name.endswith("npy"):
        assert np.array_equal(np.load(tmp_path / name), whole)


def test_a_chunk_that_is_missing_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    whole, path = example((6, 4)), tmp_path / "x.zarr"
    saved(path, whole)
    (path / "c" / "1" / "0").unlink()
    refused(FileFormatError, "1 of 3 chunks are missing", lambda: load(path))
    assert np.all(load(path, verify=False).local[2:4] == 0)
    saved(tmp_path / "zeros.zarr", np.zeros((6, 4)))  # zarr would leave such chunks out
    assert not np.any(load(tmp_path / "zeros.zarr").local)


def test_the_older_array_is_back_where_the_new_one_cannot_take_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")
    whole, path = example((6, 4)), tmp_path / "x.zarr"
    saved(path, whole)
    inner = os.rename

    def rename(a: str, b: str) -> None:
        if b == str(path) and a.endswith(".tmp"):
            raise OSError(5, "Input/output error")
        inner(a, b)

    monkeypatch.setattr(os, "rename", rename)
    refused(OSError, "Input/output error", lambda: saved_here(path, 2 * whole))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["x.zarr"]
    assert np.array_equal(load(path).local, whole)


# --- traces ---------------------------------------------------------------------------------------------------


def made_by_segyio(
    path: Path, cube: np.ndarray, crossline_first: bool = False, offsets: int = 1, code: int = 5
) -> None:
    """A file of another program: (inlines, crosslines, [offsets,] samples)."""
    segyio = pytest.importorskip("segyio")
    spec = segyio.spec()
    spec.ilines, spec.xlines = np.arange(cube.shape[0]) + 10, np.arange(cube.shape[1]) * 2 + 100
    spec.offsets, spec.samples = list(range(1, offsets + 1)), np.arange(cube.shape[-1]) * 2.0
    spec.sorting, spec.format = 1 if crossline_first else 2, code
    ordered = cube.reshape(*cube.shape[:2], offsets, cube.shape[-1])
    if crossline_first:
        ordered = ordered.transpose(1, 0, 2, 3)
    with segyio.create(path, spec) as file:
        for number, (a, b, o) in enumerate(np.ndindex(ordered.shape[:3])):
            i, j = (b, a) if crossline_first else (a, b)
            file.header[number] = {189: spec.ilines[i], 193: spec.xlines[j], 37: o + 1, 73: 1000 * i + j}
            file.trace[number] = ordered[a, b, o]


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"axis": 1},
    {"axis": 2},
    {"axis": (0, 1)},
    {"axis": (2, 1)},
    {"partition": Partition.BROADCAST},
]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("crossline_first", [False, True])
def test_cubes_of_others_are_read_in_any_layout(tmp_path: Path, ranks: int, crossline_first: bool) -> None:
    cube = example((3, 4, 11))
    made_by_segyio(tmp_path / "c.sgy", cube, crossline_first)

    def program() -> None:
        for layout in LAYOUTS:
            x = load(tmp_path / "c.sgy", cube=True, **layout)
            assert x.layout is DistributedArray.to_dist(cube, **layout).layout
            assert np.array_equal(x.asarray(), cube)
        traces = load(tmp_path / "c.sgy")
        assert np.array_equal(
            traces.asarray(), (cube.swapaxes(0, 1) if crossline_first else cube).reshape(12, 11)
        )
        sources = load(tmp_path / "c.sgy", name="SourceX", cube=True, axis=1)
        assert np.array_equal(sources.asarray(), [[1000 * i + j for j in range(4)] for i in range(3)])
        about = contents(tmp_path / "c.sgy", cube=True).about
        assert (about["interval"], about["inlines"], about["crosslines"]) == (
            0.002,
            [10, 11, 12],
            [100, 102, 104, 106],
        )

    comm.virtual_ranks(ranks, program)


@pytest.mark.parametrize("crossline_first", [False, True])
def test_cubes_with_offsets_have_four_dimensions(tmp_path: Path, crossline_first: bool) -> None:
    cube = example((3, 2, 4, 5))
    made_by_segyio(tmp_path / "c.sgy", cube, crossline_first, offsets=4)

    def program() -> None:
        for axis in (0, 1, 2, 3, (1, 2)):
            assert np.array_equal(load(tmp_path / "c.sgy", cube=True, axis=axis).asarray(), cube)

    comm.virtual_ranks(3, program)


@pytest.mark.parametrize(("code", "dtype"), [(1, "float32"), (2, "int32"), (3, "int16"), (8, "int8")])
def test_samples_of_all_types(tmp_path: Path, code: int, dtype: str) -> None:
    cube = np.arange(-60, 60).reshape(3, 4, 10).astype(dtype)
    made_by_segyio(tmp_path / "c.sgy", cube, code=code)
    x = load(tmp_path / "c.sgy", cube=True)
    assert x.dtype == dtype
    assert np.array_equal(x.local, cube)
    saved(tmp_path / "d.sgy", cube, 3, interval=0.001)
    assert np.array_equal(load(tmp_path / "d.sgy", cube=True).local, cube)


@pytest.mark.parametrize(
    "layout", [*LAYOUTS, {"local_shapes": [(3, 4, 11), (0, 4, 11), (2, 4, 11)]}], ids=str
)
def test_segyio_reads_cubes_and_headers_that_ranks_wrote(tmp_path: Path, layout: dict[str, Any]) -> None:
    segyio = pytest.importorskip("segyio")
    cube, path = example((5, 4, 11)), tmp_path / "c.sgy"

    def program() -> None:
        save(
            path, DistributedArray.to_dist(cube, **layout), interval=0.004, inlines=[3, 5, 7, 9, 11],
            headers={"SourceX": DistributedArray.to_dist(np.arange(20).reshape(5, 4), axis=1), "GroupX": -7}, text="C 1 by me",
        )  # fmt: skip

    comm.virtual_ranks(3, program)
    assert np.array_equal(segyio.tools.cube(str(path)), cube)
    with segyio.open(path) as file:
        assert file.ilines.tolist() == [3, 5, 7, 9, 11]
        assert file.xlines.tolist() == [1, 2, 3, 4]
        assert segyio.tools.dt(file) == 4000
        assert file.attributes(segyio.TraceField.SourceX)[:].tolist() == list(range(20))
        assert set(file.attributes(segyio.TraceField.GroupX)[:].tolist()) == {-7}
        assert file.attributes(segyio.TraceField.TRACE_SAMPLE_COUNT)[:].tolist() == [11] * 20
        assert file.text[0].startswith(b"C 1 by me")
    found = contents(path)
    assert found.about["text"] == "C 1 by me"
    assert found.arrays["traces"][:2] == ((20, 11), np.dtype("float32"))


def test_every_word_of_a_header_comes_back(tmp_path: Path) -> None:
    segyio = pytest.importorskip("segyio")
    from jali.arrays.file_formats.segy import _words

    words = {name: kind for name, (_, kind) in _words(segyio).items()}
    assert {kind.itemsize for kind in words.values()} == {2, 4}
    own = ("TRACE_SEQUENCE_FILE", "TRACE_SAMPLE_COUNT", "TRACE_SAMPLE_INTERVAL")
    given = {
        name: [-(k + 1), np.iinfo(kind).max - k, np.iinfo(kind).min + k]
        for k, (name, kind) in enumerate(words.items())
    }
    given = {name: values for name, values in given.items() if name not in own}
    saved(tmp_path / "t.sgy", example((3, 4)), 2, interval=0.001, headers=given)
    with segyio.open(tmp_path / "t.sgy", ignore_geometry=True) as file:
        for name, values in given.items():
            assert file.attributes(getattr(segyio.TraceField, name))[:].tolist() == values
            assert load(tmp_path / "t.sgy", name=name).local.tolist() == values


def test_ranks_read_their_own_traces_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segyio = pytest.importorskip("segyio")
    saved(tmp_path / "t.sgy", example((12, 7)), interval=0.001)
    inner, read = segyio.trace.RawTrace.__getitem__, {}

    def get(raw: Any, where: slice) -> Any:
        read[comm.current().rank] = (where.start, where.stop)
        return inner(raw, where)

    monkeypatch.setattr(segyio.trace.RawTrace, "__getitem__", get)
    comm.virtual_ranks(3, lambda: load(tmp_path / "t.sgy"))
    assert read == {0: (0, 4), 1: (4, 8), 2: (8, 12)}


def test_traces_that_are_no_cube_are_refused_as_one(tmp_path: Path) -> None:
    segyio = pytest.importorskip("segyio")
    traces = tmp_path / "t.sgy"
    saved(traces, example((6, 7)), interval=0.001)
    refused(
        FileFormatError,
        "no regular cube .*segyio: .*; cube=False reads them as traces",
        lambda: load(traces, cube=True),
    )
    cube = tmp_path / "c.sgy"
    made_by_segyio(cube, example((3, 4, 5)))
    with segyio.open(cube, "r+", ignore_geometry=True) as file:
        file.header[6] = {193: 999}
    refused(
        FileFormatError, "trace 6 has crossline 999 where 104 should be", lambda: load(cube, cube=True), 3
    )
    assert load(cube, cube=True, verify=False).global_shape == (3, 4, 5)
    shutil.copy(cube, tmp_path / "d.sgy")
    with open(tmp_path / "d.sgy", "r+b") as file:
        file.truncate(3600 + 11 * (240 + 20))  # a trace less
    refused(FileFormatError, "no regular cube", lambda: load(tmp_path / "d.sgy", cube=True))
    assert load(tmp_path / "d.sgy").global_shape == (11, 5)


def test_what_segy_does_not_hold_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("segyio")
    path, good = tmp_path / "x.sgy", {"interval": 0.004}
    for whole, options, error, words in (
        (example((4, 5), "float64"), good, ParameterError, r'not float64; x.astype\("float32"\) rounds'),
        (example((4, 5), "complex64"), good, ParameterError, "not complex64; save x.real and x.imag"),
        (example((4, 5)), {}, ParameterError, "give interval=, in seconds"),
        (example((4, 5)), {"interval": 4}, ParameterError, "1 to 32767 whole microseconds, not 4 s"),
        (example((4, 5)), {"interval": 1.5e-6}, ParameterError, "whole microseconds"),
        (example((4, 5)), {"interval": "4ms"}, ParameterError, "a number of seconds, not '4ms'"),
        (example((4, 5)), {"interval": math.nan}, ParameterError, "whole microseconds, not nan"),
        (example((4,)), good, ShapeError, r"\(traces, samples\) or .*, not an array of shape \(4,\)"),
        (np.zeros((1, 65536), "f4"), good, ShapeError, "at most 65535 samples, not 65536"),
        (example((4, 5)), {**good, "inlines": [1] * 4}, ParameterError, "inlines are numbers of cubes"),
        (example((3, 4, 5)), {**good, "inlines": [1, 2]}, ParameterError, "inlines are 3 whole numbers"),
        (example((3, 4, 5)), {**good, "crosslines": [1, 2, 2, 3]}, ParameterError, "are different numbers"),
        (example((4, 5)), {**good, "headers": [1]}, ParameterError, "by the names of header words, not list"),
        (example((4, 5)), {**good, "headers": {"Colour": 1}}, ParameterError, "'Colour' is no word"),
        (
            example((4, 5)),
            {**good, "headers": {"SourceX": [1, 2]}},
            ShapeError,
            r"has shape \(2,\), the traces \(4,\)",
        ),
        (
            example((4, 5)),
            {**good, "headers": {"SourceX": 1.5}},
            ParameterError,
            "whole numbers, not float64",
        ),
        (
            example((4, 5)),
            {**good, "headers": {"ScalarTraceHeader": [0, 0, 0, 40000]}},
            ParameterError,
            "ScalarTraceHeader of trace 3 is 40000, which its 2 bytes do not hold",
        ),
        (
            example((4, 5)),
            {**good, "headers": {"SourceX": [0, 0, 2**31, 0]}},
            ParameterError,
            "SourceX of trace 2 is 2147483648",
        ),
        (example((4, 5)), {**good, "text": "ü"}, ParameterError, "at most 3200 characters of ASCII"),
    ):
        refused(error, words, lambda w=whole, o=options: saved_here(path, w, **o))
        assert not os.listdir(tmp_path)


def test_long_traces(tmp_path: Path) -> None:
    pytest.importorskip("segyio")
    whole = example((3, 65535))
    saved(tmp_path / "x.sgy", whole, interval=0.001)
    assert np.array_equal(load(tmp_path / "x.sgy").local, whole)


def test_damaged_segy_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("segyio")
    for number, data in enumerate((b"", b"x" * 100, b"\0" * 4000)):
        path = tmp_path / f"{number}.sgy"
        path.write_bytes(data)
        refused(FileFormatError, "segyio cannot read it", lambda path=path: load(path))
    (tmp_path / "3.segy").write_bytes(b"\x93NUMPY" + b"\0" * 9)  # what it holds counts, not its name
    refused(FileFormatError, "header of the .npy file", lambda: load(tmp_path / "3.segy"))
