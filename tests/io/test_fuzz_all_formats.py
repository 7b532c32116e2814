"""Seeded damage to a file of every format that jali reads: the answer is right, or an error that names the file.

A `Kind` makes a file or a folder, and reads it. One case damages one place of one of its files. What has a checksum over numbers and
description is `sealed`: its numbers are never wrong. Others may read as other numbers, and never end in anything but a documented
error, within bounded memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import ildg_file, lime_record, link_trace, milc_file, nersc_file, plaquette, random_links

import jali
import jali.files
from jali.arrays import DistributedArray, load, save
from jali.errors import FileFormatError, LayoutError, ParameterError, ShapeError
from jali.io import open_checkpoint, open_configuration, saved_configurations
from jali.io.array_formats import _reader_process

LATTICE = (2, 3, 2, 4)
LINKS = random_links(LATTICE)
# without it a file with exchanged extents is another configuration, and as good
PLAQUETTE = lime_record("xlf-info", f"plaquette = {plaquette(LINKS)!r}".encode())
VALUES = np.random.default_rng(3).normal(size=(6, 8)).astype("float32")
DOCUMENTED = (FileFormatError, LayoutError, ParameterError, ShapeError, OSError)
MOST_MEMORY = 32 << 20  # bytes, for files of some kilobytes; half of it is what the machine is said to have


@dataclass(frozen=True)
class Kind:
    """A format: how a path in a folder is made, and read again."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    sealed: bool = True
    package: str = "numpy"


# --- formats --------------------------------------------------------------------------------------------------


def lattice_format(content: Callable[[], bytes]) -> Kind:
    def make(folder: Path) -> Path:
        (folder / "conf").write_bytes(content())
        return folder / "conf"

    def read(path: Path) -> np.ndarray:
        file = open_configuration(path)
        links = file.read()
        said = file.header_mismatch(plaquette(links), link_trace(links))
        if said is not None:  # as GaugeField.from_file does
            raise FileFormatError(f"{path}: {said}")
        return links

    return Kind(make, read)


def array_format(name: str, package: str = "numpy", **options: Any) -> Kind:
    """Written by jali, on one rank."""

    def make(folder: Path) -> Path:
        endings = {"npy": ".npy", "zarr": ".zarr", "segy": ".sgy"}
        path = folder / f"x{endings.get(name, '.h5')}"
        save(path, DistributedArray.to_dist(VALUES), format=name, **options)
        return path

    return Kind(make, lambda path: load(path).local, package=package, sealed=name != "segy")


def of_others(make: Callable[[Path], Path], package: str = "numpy") -> Kind:
    return Kind(make, lambda path: load(path).local, sealed=False, package=package)


def numpy_file(folder: Path) -> Path:
    np.save(folder / "x.npy", VALUES)
    return folder / "x.npy"


def hdf5_file(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(4, 3), compression="gzip")
    return folder / "x.h5"


def zarr_store(version: int, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import zarr

        path = folder / "x.zarr"
        zarr.create_array(path, data=VALUES, chunks=(4, 3), zarr_format=version, **options)
        return path

    return make


def zarr_group(folder: Path) -> Path:
    import zarr

    group = zarr.create_group(folder / "x.zarr")
    group.create_array("x", data=VALUES, chunks=(4, 4))
    return folder / "x.zarr"


def field(folder: Path) -> Path:
    one = jali.Lattice(6, 8).field(jali.Real(), precision="float32")
    one[...] = VALUES
    one.save(folder / "x.jali")
    return folder / "x.jali"


def ensemble(folder: Path) -> Path:
    lines = [f"{n},{n:08d}.ildg,ildg,0.5,scidac 01234567 89abcdef\n" for n in (2, 4, 6)]
    (folder / "manifest.csv").write_text("number,file,format,plaquette,checksum\n" + "".join(lines))
    return folder


def rows(path: Path) -> list[Any]:
    return saved_configurations(path)


KINDS = {
    "nersc": lattice_format(lambda: nersc_file(LINKS)),
    "nersc, two rows": lattice_format(lambda: nersc_file(LINKS, "<f4", 2)),
    "ildg": lattice_format(lambda: ildg_file(LINKS, ">f8", PLAQUETTE)),
    "milc": lattice_format(lambda: milc_file(LINKS)),
    "npy": array_format("npy"),
    "npy of others": of_others(numpy_file),
    "hdf5": array_format("hdf5", "h5py"),
    "hdf5 of others": of_others(hdf5_file, "h5py"),
    "hdf5-parts": array_format("hdf5-parts", "h5py"),
    "zarr": array_format("zarr", "zarr", chunks=(4, 3)),
    "zarr of others": of_others(zarr_store(3), "zarr"),
    "zarr without compression": of_others(zarr_store(3, compressors=None, filters=None), "zarr"),
    "zarr by gzip": of_others(
        zarr_store(3, compressors={"name": "gzip", "configuration": {"level": 1}}), "zarr"
    ),
    "zarr by blosc": of_others(
        zarr_store(3, compressors={"name": "blosc", "configuration": {"cname": "blosclz"}}), "zarr"
    ),
    "zarr version 2": of_others(zarr_store(2), "zarr"),
    "zarr in shards": of_others(zarr_store(3, shards=(4, 6)), "zarr"),
    "zarr group": of_others(zarr_group, "zarr"),
    "segy": array_format("segy", "segyio", interval=0.004),
    "checkpoint": Kind(field, lambda path: open_checkpoint(path).read("field")),
    "field": Kind(field, lambda path: jali.load(path)[...]),
    "ensemble": Kind(ensemble, rows, sealed=False),
}


# --- damage ---------------------------------------------------------------------------------------------------

NUMBERS = ["-1", "0", "1", "7", "4294967295", "9" * 25, "1e400", "nan", "-0", ""]
VALUES_OF_JSON = [
    None,
    True,
    -1,
    0,
    1,
    3,
    2.5,
    1 << 40,
    1 << 70,
    float("nan"),
    "",
    "x",
    "<f8",
    [],
    {},
    [3],
    {"a": 1},
]
TYPES = [b"<f8", b">f4", b"<i4", b"|O", b"|V8", b"<M8[s]", b"|S4", b"<f3", b"float64", b"int32", b"nothing"]


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """A bit, or a run of bytes, mostly in front. One place: a second damage might hit the checksum of the first."""
    out = bytearray(content)
    near = chance.choice([len(out), min(len(out), 1000), min(len(out), 200)])
    at, width = chance.randrange(near), chance.choice([1, 2, 4, 8, 16, 64])
    at -= at % min(width, 8)
    width = len(out[at : at + width])
    other = chance.randrange(near)
    new = {
        "bit": bytes([out[at] ^ 1 << chance.randrange(8)]),
        "zeros": bytes(width),
        "ones": b"\xff" * width,
        "noise": chance.randbytes(width),
        "copy": content[other : other + width],
    }[chance.choice(["bit", "zeros", "ones", "noise", "copy"])]
    out[at : at + len(new)] = new
    return bytes(out)


def changed_length(content: bytes, chance: random.Random) -> bytes:
    """Cut, extended, or with something missing or twice inside."""
    at = chance.choice([chance.randrange(len(content)), chance.randrange(min(len(content), 400))])
    few = chance.randrange(1, 40)
    return chance.choice(
        [
            content[:at],
            content[:-few],
            b"",
            content + bytes(few),
            content + content[:few],
            content[:at] + content[at + few :],
            content[:at] + content[max(0, at - few) :],
        ]
    )


def changed_text(content: bytes, chance: random.Random) -> bytes:
    """A number or a name of a type is another one, two numbers are exchanged."""
    texts = [m.span() for m in re.finditer(rb"[ -~\n]{24,}", content[:3000])]
    numbers = [(a + m.start(), a + m.end()) for a, b in texts for m in re.finditer(rb"\d+", content[a:b])]
    kind = rb"[<>|][bifcu]\d|float\d\d|IEEE\w+"
    types = [(a + m.start(), a + m.end()) for a, b in texts for m in re.finditer(kind, content[a:b])]
    if types and chance.random() < 0.3:
        begin, end = chance.choice(types)
        return content[:begin] + chance.choice(TYPES) + content[end:]
    if len(numbers) < 2:
        return changed_bytes(content, chance)
    if chance.random() < 0.4:
        (a, b), (c, d) = sorted(chance.sample(numbers, 2))
        return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]
    begin, end = chance.choice(numbers)
    return content[:begin] + chance.choice(NUMBERS).encode() + content[end:]


def changed_json(content: bytes, chance: random.Random) -> bytes:
    """A member is another value, is missing, or changes places with another."""
    try:
        whole = json.loads(content)
    except ValueError:
        return changed_text(content, chance)
    positions: list[tuple[Any, Any]] = []

    def collect(item: Any) -> None:
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else []
        for key in keys:
            positions.append((item, key))
            collect(item[key])

    collect(whole)
    if not positions:
        return b"{}"
    holder, key = chance.choice(positions)
    kind = chance.choice(["value", "value", "missing", "exchange"])
    if kind == "missing":
        del holder[key]
    elif kind == "exchange":
        other, other_key = chance.choice(positions)
        try:
            holder[key], other[other_key] = other[other_key], holder[key]
            json.dumps(whole)
        except (ValueError, RecursionError, LookupError):  # one is inside the other
            return b"[]"
    else:
        holder[key] = chance.choice(VALUES_OF_JSON)
    return json.dumps(whole).encode()


def sealed_again(content: bytes) -> bytes | None:
    """The manifest of a checkpoint with the checksum of what it says now."""
    try:
        whole = json.loads(content)
        text = json.dumps(whole["manifest"], sort_keys=True, separators=(",", ":"))
        return json.dumps({**whole, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()
    except (ValueError, LookupError, TypeError):
        return None


def damage(path: Path, chance: random.Random) -> str:
    """Changes one file, and says how."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    files += sorted(path.parent.glob("x.h5.parts-*/*"))
    described = [p for p in files if p.suffix in (".json", ".csv") or p.name.startswith(".z")]
    file = chance.choice(described) if described and chance.random() < 0.7 else chance.choice(files)
    content = file.read_bytes()
    changes = [changed_bytes, changed_length, changed_text]
    if file in described:
        changes += [changed_json] * 3
    if len(files) > 1 and chance.random() < 0.05:
        file.unlink()
        return f"{file.name} is missing"
    change = chance.choice(changes) if content else changed_length
    new = change(content, chance) if content else b"x"
    again = sealed_again(new) if chance.random() < 0.5 else None
    file.write_bytes(new if again is None else again)
    return f"{change.__name__} of {file.name}" + (", sealed again" if again else "")


# --- the test -------------------------------------------------------------------------------------------------


def resident(what: str) -> int:
    """Bytes of this process in memory. (`tracemalloc.stop` ends a process whose other threads decompress meanwhile, as those of zarr do
    for a moment after an error.)"""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(what)]
    return int(line.split()[1]) << 10


def outcome(kind: Kind, path: Path, right: Any) -> str:
    """Whether what is read is "right", "wrong" or "refused"; errors that are none of ours are raised."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmHWM")
    try:
        found = kind.read(path)
    except DOCUMENTED as error:
        assert os.fspath(path) in str(error), f"{error!r} does not say which file"  # noqa: PT017
        return "refused"
    finally:
        more = resident("VmHWM") - before
        assert more < MOST_MEMORY, f"{more} bytes"
    if isinstance(right, np.ndarray):
        return "right" if found.shape == right.shape and np.array_equal(found, right) else "wrong"
    return "right" if found == right else "wrong"


def sweep(name: str, folder: Path, cases: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many cases of damage to a format."""
    monkeypatch.setattr(_reader_process, "TIMEOUT", 5.0)
    monkeypatch.setattr(jali.files, "memory_here", lambda: MOST_MEMORY // 2)
    kind = KINDS[name]
    pytest.importorskip(kind.package)
    (folder / "whole").mkdir()
    whole = kind.make(folder / "whole")
    right = kind.read(whole)
    met = {"right": 0, "wrong": 0, "refused": 0}
    for case in cases:
        shutil.rmtree(folder / "case", ignore_errors=True)
        shutil.copytree(folder / "whole", folder / "case")
        chance = random.Random(f"{name} {case}")
        path = folder / "case" / os.path.relpath(whole, folder / "whole")
        how = damage(path, chance)
        try:
            found = outcome(kind, path, right)
        except Exception as error:
            raise AssertionError(f"{name}, case {case}: {how}: {error!r}") from error
        assert found != "wrong" or not kind.sealed or "sealed again" in how, (
            f"{name}, case {case}: {how}: wrong numbers"
        )
        met[found] += 1
    assert met["refused"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KINDS)
def test_damage_is_refused_by_name_or_harmless(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(name, tmp_path, range(12), monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_damage_is_refused_by_name_or_harmless_at_length(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(name, tmp_path, range(1000, 1400), monkeypatch)


# --- what single formats can tell -----------------------------------------------------------------------------


def refused(path: Path, words: str, read: Callable[[Path], Any] = load) -> None:
    with pytest.raises(FileFormatError, match=words) as caught:
        read(path)
    assert os.fspath(path) in str(caught.value)


def edited(path: Path, **changes: Any) -> None:
    """Members of zarr.json are others."""
    said = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**said, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [5, 8]},
        {"shape": [7, 8]},
        {"data_type": "int32"},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
        {"codecs": "big"},
    ],
    ids=str,
)
def test_a_store_of_jali_has_a_seal_over_what_makes_numbers_of_bytes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    pytest.importorskip("zarr")
    path = KINDS["zarr"].make(tmp_path)
    said = json.loads((path / "zarr.json").read_text())
    edited(path, attributes={**said["attributes"], "unit": "m"})
    assert np.array_equal(load(path).local, VALUES)
    if changes.get("codecs") == "big":
        said["codecs"][0]["configuration"]["endian"] = "big"
        changes = {"codecs": said["codecs"]}
    edited(path, **changes)
    refused(path, "the seal does not belong to what zarr.json says")
    assert load(path, verify=False).ndim == 2


@pytest.mark.parametrize("kind", ["zarr of others", "zarr version 2", "zarr in shards"])
def test_chunks_beyond_the_shape_are_a_contradiction(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("zarr")
    path = KINDS[kind].make(tmp_path)
    file = path / ("zarr.json" if kind != "zarr version 2" else ".zarray")
    for shape in ([6, 3], [3, 6], [6, 0]):
        file.write_text(json.dumps({**json.loads(file.read_text()), "shape": shape}))
        refused(path, r"has the chunk .*[/.]\d, which an array of shape .* cannot have")
        assert load(path, verify=False).global_shape == tuple(shape)


def test_extents_that_no_array_has_name_the_file(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    path = KINDS["zarr of others"].make(tmp_path)
    edited(path, shape=[6, 10**25])
    refused(path, r"is no array: a global shape has extents below 2\^62, this one is \(6, 10000")


def test_an_empty_shard_is_not_one_that_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    path = KINDS["zarr in shards"].make(tmp_path)
    (path / "c" / "1" / "0").write_bytes(b"")
    refused(path, "the chunk c/1/0 is empty: truncated")


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("fill", [0, 2.5])
def test_stores_most_of_whose_chunks_are_missing_are_read_at_once(
    tmp_path: Path, ranks: int, fill: float
) -> None:
    zarr = pytest.importorskip("zarr")
    path, shape = tmp_path / "x.zarr", (1000, 1001)
    array = zarr.create_array(path, shape=shape, chunks=(2, 3), dtype="f4", fill_value=fill)
    array[330:340, 500:504] = right = np.arange(40).reshape(10, 4)
    whole = np.full(shape, fill, "f4")
    whole[330:340, 500:504] = right

    def program() -> None:
        for axis in (0, 1):
            assert np.array_equal(load(path, axis=axis).asarray(), whole)

    jali.comm.virtual_ranks(ranks, program)


def test_traces_say_as_well_how_many_samples_they_have(tmp_path: Path) -> None:
    pytest.importorskip("segyio")
    path = KINDS["segy"].make(tmp_path)  # 6 traces of 240 + 32 bytes
    content = bytearray(path.read_bytes())
    content[3220:3222] = (144).to_bytes(2, "big")  # 2 traces of 240 + 576 bytes
    path.write_bytes(content)
    refused(path, "says that traces have 144 samples, that of trace 0 says 8")
    assert load(path, verify=False).global_shape == (2, 144)


@pytest.mark.parametrize("cell", ["x" * 200_000, '"2', "2\0", ""])
def test_a_row_of_an_ensemble_that_is_none_is_named(tmp_path: Path, cell: str) -> None:
    ensemble(tmp_path)
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("4,00000004", f"{cell},00000004"))
    refused(manifest, "manifest.csv, line 3: .* is not number, file", lambda path: rows(path.parent))


@pytest.mark.parametrize("dtype", ["M8[s]", "S4", "U4", "V4"])
def test_numpy_files_of_other_things_than_numbers_are_refused(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(4, dtype))
    refused(path, "which are not numbers")


@pytest.mark.parametrize("damage_to_it", ["cut", "header", "sum"])
def test_whatever_a_decompressor_raises_names_the_store(tmp_path: Path, damage_to_it: str) -> None:
    pytest.importorskip("zarr")
    path = KINDS["zarr by gzip"].make(tmp_path)
    chunk = path / "c" / "1" / "0"
    whole = chunk.read_bytes()
    other = {"cut": whole[:-9], "header": whole[:10] + b"\xff" * 4 + whole[14:], "sum": whole[:-8] + bytes(8)}
    chunk.write_bytes(other[damage_to_it])
    refused(path, "zarr cannot read it")


def test_what_may_end_a_process_is_decompressed_in_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")
    take = _reader_process._take

    def end_and_take(*given: Any) -> int:
        process = _reader_process._PROCESS._process
        assert process is not None
        process.kill()
        process.wait()
        given[0].read()  # what it had said before
        return take(*given)

    path = KINDS["zarr by blosc"].make(tmp_path)
    assert np.array_equal(load(path).local, VALUES)
    with monkeypatch.context() as patch:
        patch.setattr(_reader_process, "_take", end_and_take)
        refused(path, "zarr cannot read it: the file ends the process that reads it, by SIGKILL")
    assert np.array_equal(load(path).local, VALUES)
