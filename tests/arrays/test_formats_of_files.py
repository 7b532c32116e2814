"""What all formats of files of distributed arrays promise, one format after the other."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import need_mpi, on_ranks, run_program

from jali import comm
from jali.arrays import DistributedArray, Partition, contents, load, save
from jali.arrays.file_formats import file_formats
from jali.errors import FileFormatError, ParameterError, ShapeError

PACKAGES = {"hdf5": "h5py", "hdf5-parts": "h5py", "zarr": "zarr", "segy": "segyio"}
NEEDED: dict[str, dict[str, Any]] = {"segy": {"interval": 0.004}}  # options that have to be given
SHAPE = (6, 8)

CASES: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (2, {"axis": 1}),
    (3, {"axis": (0, 1)}),
    (4, {"axis": (0, 1), "grid": (2, 2)}),
    (4, {"axis": (1, 0), "grid": (2, 2)}),
    (4, {"mask": [0, 0, 1, 1]}),
    (3, {"local_shapes": [(1, 8), (0, 8), (5, 8)]}),
    (4, {"axis": 1, "local_shapes": [(6, 1), (6, 5), (6, 2), (6, 0)]}),
    (3, {"partition": Partition.BROADCAST}),
    (2, {"partition": Partition.UNSAFE_BROADCAST, "axis": 1}),
]


@pytest.fixture(params=["npy", "hdf5", "hdf5-parts", "zarr", "segy"])
def format(request: pytest.FixtureRequest) -> str:
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


def example(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape).astype("float32")


def path_in(folder: Path, format: str) -> Path:
    return folder / f"x{(file_formats()[format].endings or ('.h5',))[0]}"


def test_each_entry_is_tested_here() -> None:
    assert set(file_formats()) == {"npy", "hdf5", "hdf5-parts", "zarr", "segy"}


@pytest.mark.parametrize(("ranks", "layout"), CASES, ids=str)
def test_any_layout_is_written_and_read_in_any_other(
    tmp_path: Path, format: str, ranks: int, layout: dict[str, Any]
) -> None:
    whole, path = example(), path_in(tmp_path, format)

    def write() -> None:
        x = DistributedArray.to_dist(whole, **layout)
        save(path, x, format=format, **NEEDED.get(format, {}))
        y = load(path, **layout)
        assert y.layout is x.layout
        assert y.dtype == np.float32
        assert np.array_equal(y.local, x.local)
        y[...] = 0  # it may be written

    def read(other: dict[str, Any]) -> None:
        assert np.array_equal(load(path, **other).asarray(), whole)

    comm.virtual_ranks(ranks, write)
    for number in (1, 3, 4):
        for other in ({}, {"axis": 1}, {"axis": (1, 0)}, {"partition": Partition.BROADCAST}):
            comm.virtual_ranks(number, read, other)


def test_arrays_that_all_ranks_have_are_those_of_rank_0(tmp_path: Path, format: str) -> None:
    path = path_in(tmp_path, format)

    def program() -> None:
        x = DistributedArray(SHAPE, partition=Partition.UNSAFE_BROADCAST, dtype="float32")
        x[...] = 7 + x.rank
        save(path, x, format=format, **NEEDED.get(format, {}))

    comm.virtual_ranks(3, program)
    assert np.all(load(path).local == 7)


def test_an_older_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, format: str) -> None:
    path, whole = path_in(tmp_path, format), example()

    def program(factor: float) -> None:
        save(path, factor * DistributedArray.to_dist(whole), format=format, **NEEDED.get(format, {}))

    comm.virtual_ranks(2, program, 1.0)
    before = sorted(os.listdir(tmp_path))
    comm.virtual_ranks(3, program, 2.0)
    assert np.array_equal(load(path).local, 2 * whole)
    assert len(os.listdir(tmp_path)) == len(before)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("bad", [0, 2])
def test_where_one_rank_cannot_write_all_raise_and_no_half_file_has_the_name(
    tmp_path: Path, format: str, there: bool, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole = path_in(tmp_path, format), example()
    if there:
        save(path, DistributedArray.to_dist(whole), format=format, **NEEDED.get(format, {}))
    before = sorted(os.listdir(tmp_path))
    break_writing(format, bad, monkeypatch)

    def program() -> str:
        x = 2 * DistributedArray.to_dist(whole)
        with pytest.raises(OSError, match="No space left") as caught:
            save(path, x, format=format, **NEEDED.get(format, {}))
        return str(caught.value)

    assert len(set(comm.virtual_ranks(3, program))) == 1
    assert sorted(os.listdir(tmp_path)) == before
    monkeypatch.undo()
    if there:
        assert np.array_equal(load(path).local, whole)


def break_writing(format: str, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full where one rank writes its numbers."""

    def full(*_: Any, **__: Any) -> None:
        if comm.current().rank == bad:
            raise OSError(28, "No space left on device")

    def first(module: Any, name: str) -> None:
        inner = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            full()
            return inner(*arguments, **named)

        monkeypatch.setattr(module, name, call)

    if format in ("npy", "hdf5"):
        first(sys.modules["jali.io.arrays"], "_write_rows")
    elif format == "hdf5-parts":
        first(sys.modules["jali.arrays.file_formats._hdf5_parts"], "_write_part")
    elif format == "zarr":
        first(sys.modules["zarr"].Array, "__setitem__")
    else:
        first(sys.modules["jali.arrays.file_formats.segy"], "_write_traces")


def test_packages_that_are_not_installed_are_named_on_all_ranks(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if format == "npy":
        pytest.skip("needs none")
    path, whole = path_in(tmp_path, format), example()
    save(path, DistributedArray.to_dist(whole), format=format, **NEEDED.get(format, {}))
    monkeypatch.setitem(sys.modules, PACKAGES[format], None)
    extra = format.removesuffix("-parts")

    def program() -> None:
        x = DistributedArray.to_dist(whole)
        with pytest.raises(ParameterError, match=rf'pip install "jali\[{extra}\]"'):
            save(path, x, format=format, **NEEDED.get(format, {}))
        with pytest.raises(ParameterError, match=rf'pip install "jali\[{extra}\]"'):
            load(path)

    comm.virtual_ranks(2, program)


def test_what_cannot_be_is_said_on_all_ranks(tmp_path: Path, format: str) -> None:
    path, needed = path_in(tmp_path, format), NEEDED.get(format, {})

    def program() -> None:
        x = DistributedArray.to_dist(example())
        for call, error, words in (
            (
                lambda: save(path, x, format=format, colour=1, **needed),
                ParameterError,
                "colour is no option of",
            ),
            (lambda: save(tmp_path / "no" / path.name, x, format=format, **needed), OSError, "No such file"),
            (
                lambda: save(path, x.astype(object), format=format, **needed),
                ParameterError,
                "not object|holds object",
            ),
            (
                lambda: save(path, DistributedArray((0, 3)), format=format, **needed),
                ShapeError,
                "has nothing",
            ),
            (lambda: load(path, format=format), OSError, "No such file"),
            (lambda: save(path, np.ones(3), format=format), ParameterError, "not ndarray"),
        ):
            with pytest.raises(error, match=words):
                call()
        save(path, x, format=format, **needed)
        for call, error, words in (
            (lambda: load(path, colour=1), ParameterError, "colour is no option of"),
            (lambda: load(path, axis=2), ShapeError, "axis 2 does not exist"),
            (lambda: load(path, engine="abacus"), ParameterError, "engine 'abacus' is none"),
            (
                lambda: load(path, format="tape"),
                ParameterError,
                "are written and read as 'hdf5', .*, not 'tape'",
            ),
        ):
            with pytest.raises(error, match=words):
                call()

    comm.virtual_ranks(2, program)


def test_damage_is_noticed(tmp_path: Path, format: str) -> None:
    """A bit in the middle, or, of SEG-Y, which has no checksums, an end that is missing."""
    path, whole = path_in(tmp_path, format), example()

    def program() -> None:
        save(path, DistributedArray.to_dist(whole), format=format, **NEEDED.get(format, {}))

    comm.virtual_ranks(2, program)
    (victim,) = {
        "hdf5-parts": sorted(tmp_path.glob("*.parts-*/1.h5")),
        "zarr": sorted(tmp_path.glob("x.zarr/c/1/0")),
    }.get(format, [path])
    data = bytearray(victim.read_bytes())
    if format == "segy":
        data = data[:-5]
    else:
        data[data.find(whole[4].tobytes()) if format != "zarr" else len(data) // 2] ^= 4
    victim.write_bytes(data)

    def read() -> None:
        with pytest.raises(FileFormatError, match="checksum|inconsistent"):
            load(path)

    comm.virtual_ranks(3, read)


def test_contents_are_read_without_numbers(tmp_path: Path, format: str) -> None:
    path = path_in(tmp_path, format)
    name = {"npy": "", "zarr": "", "segy": "traces"}.get(format, "data")

    def program() -> None:
        save(path, DistributedArray.to_dist(example()), format=format, **NEEDED.get(format, {}))
        found = contents(path)
        assert found.format == format.removesuffix("-parts")
        assert found.arrays[name][:2] == (SHAPE, np.dtype("float32"))

    comm.virtual_ranks(2, program)


SCRIPT = """
import sys
import numpy as np
from jali.arrays import DistributedArray, load, save

path, format, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
whole = np.arange(63, dtype="float32").reshape(7, 9)
x = DistributedArray.to_dist(whole, axis=1)
save(path, x, format=format, **options)
assert np.array_equal(load(path).asarray(), whole)
try:
    save(path, x.astype(object), format=format, **options)
except Exception as error:
    print(type(error).__name__, flush=True)
assert np.array_equal(load(path, axis=1).local, x.local)
"""


@pytest.mark.short(1)
@pytest.mark.mpi
@pytest.mark.parametrize(
    "format",
    [
        "npy",
        "hdf5-parts",
        *(pytest.param(format, marks=pytest.mark.full) for format in ("hdf5", "zarr", "segy")),
    ],
    indirect=True,
)
def test_ranks_may_be_processes(tmp_path: Path, format: str) -> None:
    need_mpi()
    (tmp_path / "script.py").write_text(SCRIPT)
    path = path_in(tmp_path, format)
    ended = run_program(
        on_ranks(2, sys.executable, tmp_path / "script.py", path, format, NEEDED.get(format, {})), timeout=100
    )
    assert ended.stdout.split() == ["ParameterError"] * 2
    assert np.array_equal(load(path).local.reshape(-1), np.arange(63))


class ndarray:  # noqa: N801
    """As CuPy's: NumPy does not get at it, and it is asked for nothing but its shape, its type and its parts."""

    __module__ = "cupy"
    device = contextlib.nullcontext()

    def __init__(self, host: np.ndarray) -> None:
        self.host, self.shape, self.dtype, self.ndim = host, host.shape, host.dtype, host.ndim

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __getitem__(self, where: Any) -> ndarray:
        return ndarray(self.host[where])


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = types.ModuleType("cupy")
    found.ndarray = ndarray  # type: ignore[attr-defined]
    found.asnumpy = lambda x: x.host.copy()  # type: ignore[attr-defined]
    found.asarray = lambda x: ndarray(np.array(x))  # type: ignore[attr-defined]
    found.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", found)
    from jali.array_namespaces import NAMESPACES

    monkeypatch.setitem(NAMESPACES["cupy"].__dict__, "xp", found)
    return found


@pytest.mark.parametrize("layout", [{}, {"axis": 1}, {"partition": Partition.BROADCAST}], ids=str)
def test_arrays_of_devices_come_and_go_by_the_host(
    tmp_path: Path, format: str, layout: dict[str, Any], cupy: Any
) -> None:
    path, whole = path_in(tmp_path, format), example()

    def program() -> None:
        there = DistributedArray.to_dist(whole, **layout)
        x = DistributedArray.of(there.layout, cupy.asarray(there.local))
        assert x.engine == "cupy"
        save(path, x, format=format, **NEEDED.get(format, {}))
        if there.layout.scattered and format != "segy":
            y = load(path, engine="cupy", **layout)
            assert y.engine == "cupy"
            assert np.array_equal(y.local.host, there.local)
        assert np.array_equal(load(path, **layout).local, there.local)

    comm.virtual_ranks(3, program)
