"""Damage in HDF5 files, in their structure and in compressed chunks: whatever the library makes of it, `load` returns and names the
file.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, load, save
from jali.errors import FileFormatError, ParameterError
from jali.io.array_formats import _reader_process, _reader_program

h5py = pytest.importorskip("h5py")
VALUES = np.arange(64.0).reshape(8, 8)


@pytest.mark.parametrize("width", [64, 512])
def test_an_index_with_zeroed_blocks_is_refused_or_right(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    save(path, DistributedArray.to_dist(VALUES), format="hdf5-parts")
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")  # the heap of objects of size zero that HDF5 goes round in
    offsets = [*range(0, len(whole), 512), *range(heap // 64 * 64, heap + 256, 64)]
    monkeypatch.setattr(_reader_process, "TIMEOUT", 2.0)
    refused = 0
    for at in offsets if width == 512 else offsets[-5:]:
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
    monkeypatch.setattr(_reader_process, "TIMEOUT", 2.0)
    with pytest.raises(FileFormatError, match=r"x\.h5: HDF5 cannot read it"):
        load(path)
    save(path, DistributedArray.to_dist(2 * VALUES), format="hdf5-parts")
    assert np.array_equal(load(path).local, 2 * VALUES)


# --- chunks ---------------------------------------------------------------------------------------------------

NUMBERS = np.arange(16 * 24.0).reshape(16, 24)
CHUNKED: dict[str, dict[str, Any]] = {
    "plain": {"chunks": (5, 7)},
    "gzip": {"chunks": (5, 7), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (1, 24), "compression": "lzf", "shuffle": True},
    "scaled": {"chunks": (4, 8), "scaleoffset": 3},
    "checked": {"chunks": (4, 8), "fletcher32": True},
    "both": {"chunks": (1, 2), "compression": "gzip", "fletcher32": True, "maxshape": (None, 24)},
}


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, mostly where there are any, or the end missing."""
    content = bytearray(whole)
    offsets = [at for at, byte in enumerate(whole) if byte or chance.random() < 0.1]
    kind = chance.choice(["bit", "bit", "zeros", "ones", "noise", "cut"])
    for _ in range(chance.choice([1, 1, 3])):
        at = chance.choice(offsets)
        if kind == "bit":
            content[at] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del content[max(1, at) :]
            break
        else:
            width = len(content[at : at + 16])
            noise = {"zeros": bytes(width), "ones": b"\xff" * width, "noise": chance.randbytes(width)}
            content[at : at + width] = noise[kind]
    return bytes(content)


def sweep(path: Path, cases: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case another damage to one of the files. Numbers with a checksum are right or refused."""
    monkeypatch.setattr(_reader_process, "TIMEOUT", 5.0)
    files = {}
    for name, options in CHUNKED.items():
        for library in ("earliest", "latest"):
            with h5py.File(path, "w", libver=library) as file:
                file.create_dataset("x", data=NUMBERS, **options)
            files[name, library] = path.read_bytes()
    refused = 0
    for case in cases:
        chance = random.Random(case)
        (name, library), whole = chance.choice(list(files.items()))
        path.write_bytes(damaged(whole, chance))
        try:
            found = load(path).local
        except (FileFormatError, ParameterError) as error:  # the latter where it says more than memory holds
            assert os.fspath(path) in str(error), case  # noqa: PT017
            refused += 1
        else:
            right = np.array_equal(found, NUMBERS)
            # what older files say of shape and type has no checksum
            assert right or library == "earliest" or name not in ("checked", "both"), case
    assert refused > len(cases) // 4


def test_damaged_chunks_are_refused_and_end_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(tmp_path / "x.h5", range(150), monkeypatch)


@pytest.mark.full
def test_damaged_chunks_are_refused_and_end_no_program_at_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(tmp_path / "x.h5", range(10_000, 14_000), monkeypatch)


@pytest.mark.parametrize("ranks", [1, 3])
def test_chunks_that_end_the_process_that_reads_them_are_an_error_on_all_ranks(
    tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, take = tmp_path / "x.h5", _reader_process._take
    whole = np.arange(300_000.0).reshape(3000, 100)  # more than a pipe holds
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=whole, chunks=(500, 100), compression="gzip")

    def end_and_take(*given: Any) -> int:
        process = _reader_process._PROCESS._process
        assert process is not None
        process.kill()  # as the library does, in the middle of an answer
        return take(*given)

    def program() -> str:
        with pytest.raises(FileFormatError) as caught:
            load(path)
        return str(caught.value)

    with monkeypatch.context() as patch:
        patch.setattr(_reader_process, "_take", end_and_take)
        said = comm.virtual_ranks(ranks, program)
    assert (
        said
        == [f"{path}: HDF5 cannot read it: the file ends the process that reads it, by SIGKILL: damaged"]
        * ranks
    )
    assert np.array_equal(load(path).local, whole)


@pytest.mark.parametrize("block", [1, 100, 1 << 23])
def test_parts_are_read_in_blocks_of_whole_chunks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reader_program, "_BLOCK", block)
    chance = random.Random(block)
    for _ in range(200):
        shape = [chance.randrange(1, 20) for _ in range(chance.randrange(1, 4))]
        chunks = [chance.randrange(1, n + 1) for n in shape]
        part = [sorted(chance.sample(range(n + 1), 2)) for n in shape]
        count = np.zeros(shape, int)
        for piece in _reader_program._blocks(chunks, part, 8):
            count[tuple(slice(*ends) for ends in piece)] += 1
            for (begin, end), chunk, (first, last) in zip(piece, chunks, part, strict=True):
                assert begin == first or begin % chunk == 0
                assert end == last or end % chunk == 0
            assert math.prod(end - begin for begin, end in piece) * 8 <= max(block, math.prod(chunks) * 8)
        inside = tuple(slice(*ends) for ends in part)
        assert np.all(count[inside] == 1)
        assert count.sum() == count[inside].size
