"""Checkpoints: any field comes back bit for bit, and any damage is noticed."""

import contextlib
import hashlib
import json
import math

import numpy as np
import pytest
from handmade import cut_out
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jali.errors import FileFormatError, LayoutError, ParameterError
from jali.io import Box, open_checkpoint, write_checkpoint

TYPES = ["?", "i1", "u1", "<i2", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", ">f8", ">i4"]
LATTICE = (3, 2, 4)
WHOLE = Box.whole(LATTICE)


def noise(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random bits of a type (booleans: true and false); floats include infinities and NaNs."""
    kind = np.dtype(dtype)
    data = np.random.default_rng(seed).bytes(math.prod(shape) * kind.itemsize)
    if kind.kind == "b":
        data = bytes(b & 1 for b in data)
    return np.frombuffer(data, kind).reshape(shape)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("element", [(), (1,), (3,), (4, 3, 3)])
@pytest.mark.parametrize("lattice", [(7,), (3, 5), (2, 3, 4), (2, 1, 3, 2), (2, 3, 1, 2, 2)])
def test_any_field_on_one_to_five_dimensions_comes_back_bit_for_bit(
    tmp_path, dtype, element, lattice
) -> None:
    field = noise((*lattice[::-1], *element), dtype)
    write_checkpoint(tmp_path / "c", lattice, Box.whole(lattice), {"phi": field})
    checkpoint = open_checkpoint(tmp_path / "c")
    found = checkpoint.read("phi")
    little = np.dtype(dtype).newbyteorder("<")
    assert checkpoint.lattice == lattice
    assert (checkpoint.fields["phi"].dtype, checkpoint.fields["phi"].element_shape) == (little, element)
    assert (found.dtype, found.shape) == (little, field.shape)
    assert found.tobytes() == field.astype(little).tobytes()


def test_files_are_raw_little_endian_in_lexicographic_order(tmp_path) -> None:
    field = np.arange(24 * 2, dtype=">i4").reshape(4, 2, 3, 2)
    write_checkpoint(tmp_path / "c", LATTICE, WHOLE, {"phi": field})
    (file,) = (tmp_path / "c").glob("data-*/phi.bin")
    assert file.read_bytes() == np.arange(48, dtype="<i4").tobytes()


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_box_is_read(tmp_path_factory, data) -> None:
    lattice = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    field = noise((*lattice[::-1], 3), "<u2")
    path = tmp_path_factory.mktemp("box") / "c"
    write_checkpoint(path, lattice, Box.whole(lattice), {"phi": field})
    origin = tuple(data.draw(st.integers(0, size - 1)) for size in lattice)
    extents = tuple(data.draw(st.integers(0, size - o)) for size, o in zip(lattice, origin, strict=True))
    found = open_checkpoint(path).read("phi", Box(origin, extents))
    assert np.array_equal(found, cut_out(field, origin, extents))


def test_states_come_back_exactly(tmp_path) -> None:
    rng = {"algorithm": "philox", "key": [2**64 - 1, 3], "counter": 2**200}
    state = {
        "beta": 0.1 + 0.2,
        "tiny": 5e-324,
        "none": None,
        "deep": {"list": [1, [2.5, "β\n"], True]},
        "": "",
    }
    write_checkpoint(tmp_path / "c", LATTICE, WHOLE, {}, rng=rng, state=state)
    checkpoint = open_checkpoint(tmp_path / "c")
    assert (checkpoint.rng, checkpoint.state, checkpoint.fields) == (rng, state, {})
    assert checkpoint.writer.startswith("jali")
    assert checkpoint.created.endswith("Z")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": (1, 2)}, r"state\['a'\] is a tuple"),
        ({"a": [1, {"b": b"x"}]}, r"state\['a'\]\[1\]\['b'\] is a bytes"),
        ({"a": np.float64(1)}, "float64"),
        ({"a": {1: 2}}, "string keys"),
    ],
)
def test_states_that_would_come_back_as_something_else_are_refused(tmp_path, state, message) -> None:
    with pytest.raises(ParameterError, match=message):
        write_checkpoint(tmp_path / "c", LATTICE, WHOLE, {}, state=state)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("lattice", "fields", "kind", "message"),
    [
        (LATTICE, {"a/b": np.zeros((4, 2, 3))}, ParameterError, "a/b"),
        (LATTICE, {3: np.zeros((4, 2, 3))}, ParameterError, "field name 3"),
        (LATTICE, {"a": np.ma.masked_equal(np.zeros((4, 2, 3)), 0)}, ParameterError, "masked"),
        (LATTICE, {"..": np.zeros((4, 2, 3))}, ParameterError, "letters"),
        (LATTICE, {"a": np.zeros((3, 2, 4))}, ParameterError, r"box needs \(4, 2, 3\)"),
        (LATTICE, {"a": np.zeros((4, 2, 3), object)}, ParameterError, "double precision"),
        (LATTICE, {"a": np.zeros((4, 2, 3), np.longdouble)}, ParameterError, "double precision"),
        (LATTICE, {"a": np.zeros((4, 2, 3), "f4,i4")}, ParameterError, "double precision"),
        (LATTICE, {"a": np.zeros((4, 2, 3, 0))}, ParameterError, "hold nothing"),
        ((3, 2, 0), {}, ParameterError, "positive extents"),
        ((1,) * 9, {}, ParameterError, "1 to 8"),
        ((3, 2, 3), {}, LayoutError, "leaves the lattice"),
        ((3, 2, 5), {}, LayoutError, "exactly once"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, lattice, fields, kind, message) -> None:
    with pytest.raises(kind, match=message):
        write_checkpoint(tmp_path / "c", lattice, WHOLE, fields)
    assert not (tmp_path / "c").exists()


@pytest.fixture
def saved(tmp_path):
    """Path, field file and manifest of a checkpoint with one field of odd element size (6 bytes)."""
    path = tmp_path / "c"
    write_checkpoint(
        path, LATTICE, WHOLE, {"phi": noise((4, 2, 3, 3), "<i2")}, rng={"k": 12345}, state={"x": 1.5}
    )
    (file,) = path.glob("data-*/phi.bin")
    return path, file, path / "manifest.json"


def test_a_flipped_bit_in_any_byte_of_a_field_is_detected(saved) -> None:
    path, file, _ = saved
    good = file.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        file.write_bytes(bad)
        with pytest.raises(FileFormatError, match="checksum is"):
            open_checkpoint(path).read("phi")
    assert open_checkpoint(path).read("phi", verify=False).shape == (4, 2, 3, 3)
    with pytest.raises(FileFormatError, match="checksum is"):
        open_checkpoint(path).read("phi", Box((0, 0, 0), (1, 1, 1)))


def test_exchanged_sites_are_detected(saved) -> None:
    path, file, _ = saved
    good = file.read_bytes()
    for i in range(24):
        for j in range(i):
            bad = bytearray(good)
            bad[6 * i : 6 * i + 6], bad[6 * j : 6 * j + 6] = good[6 * j : 6 * j + 6], good[6 * i : 6 * i + 6]
            file.write_bytes(bad)
            with pytest.raises(FileFormatError):
                open_checkpoint(path).read("phi")


def test_every_damaged_byte_of_the_manifest_is_detected(saved) -> None:
    path, _, manifest = saved
    good = manifest.read_bytes()
    plain = json.loads(good)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        manifest.write_bytes(bad)
        try:
            same = json.loads(bad) == plain  # white space or the case of an escape: nothing is lost
        except ValueError:
            same = False
        if not same:
            with pytest.raises(FileFormatError):
                open_checkpoint(path)
    for cut in range(0, len(good), 7):
        manifest.write_bytes(good[:cut])
        with pytest.raises(FileFormatError, match="damaged"):
            open_checkpoint(path)


def test_missing_truncated_and_longer_parts_are_refused(saved) -> None:
    path, file, manifest = saved
    good = file.read_bytes()
    for content in (good[:-1], good + b"\0", b""):
        file.write_bytes(content)
        with pytest.raises(FileFormatError, match=f"has {len(content)} bytes, expected 144"):
            open_checkpoint(path)
    file.unlink()
    with pytest.raises(FileFormatError, match="missing"):
        open_checkpoint(path)
    manifest.unlink()
    with pytest.raises(FileFormatError, match="no complete checkpoint"):
        open_checkpoint(path)
    with pytest.raises(FileFormatError, match="no complete checkpoint"):
        open_checkpoint(path.parent / "nowhere")


def test_unknown_fields_are_named(saved) -> None:
    with pytest.raises(ParameterError, match="no field 'psi'; it has phi"):
        open_checkpoint(saved[0]).read("psi")


def sealed(manifest: object) -> str:
    """A manifest file with the right SHA-256."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({"manifest": manifest, "sha256": hashlib.sha256(text).hexdigest()})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**13), 10**13) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sealed_manifests_that_make_no_sense_are_refused_without_other_errors(saved, data) -> None:
    path, _, file = saved
    manifest = json.loads(file.read_text())["manifest"]
    original = dict(manifest)
    key = data.draw(st.sampled_from(sorted(manifest)))
    if key == "fields" and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(["dtype", "element_shape", "checksum"]))
        manifest["fields"] = {"phi": {**manifest["fields"]["phi"], inner: data.draw(JSON)}}
    else:
        manifest[key] = data.draw(JSON)
    file.write_text(sealed(manifest))
    with contextlib.suppress(FileFormatError):
        checkpoint = open_checkpoint(path)
        for name in checkpoint.fields:
            checkpoint.read(name)
    file.write_text(sealed(original))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lattice": [10**6, 10**6, 1]}, "expected 6000000000000"),
        ({"data": "../../etc"}, "impossible names"),
        ({"version": 2}, "version 2, this jali reads 1"),
        ({"format": "other"}, "not the manifest"),
        ({"lattice": [3, 2, 4.0]}, "integer"),
    ],
)
def test_impossible_manifests_are_refused(saved, changes, message) -> None:
    path, _, file = saved
    file.write_text(sealed({**json.loads(file.read_text())["manifest"], **changes}))
    with pytest.raises(FileFormatError, match=message):
        open_checkpoint(path)
