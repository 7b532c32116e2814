"""Files of propagators: what is written, byte by byte, what of others is read, and what is refused.

Files of others are made here, by `struct` and `zlib` alone.
"""

import json
import os
import re
import struct
import threading
import zlib
from itertools import product

import numpy as np
import pytest

import jali
from jali.errors import FileFormatError, LayoutError, ParameterError
from jali.hadrons.propagator_files import load_propagator, load_source, propagator_info, save_propagator
from jali.io.propagators import open_propagator

EXTENTS = (4, 2, 3, 5)
SMALL = (2, 1, 3, 2)
SPINOR, VECTOR = jali.Spinor, jali.Vector


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("jali.io.writing.os.fsync", lambda fd: None)


def numbers(extents, *element, seed=0, dtype=complex):
    """Random numbers (x, y, z, t, *element), other ones for each seed."""
    rng = np.random.default_rng(seed)
    shape = (*extents, *element)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def members(element):
    return int(np.prod(element.numpy_shape))


def propagator(lattice, element, precision="float64", seed=0, boundary=None):
    """A field of random numbers, the same on any number of ranks."""
    boundary = {3: "antiperiodic"} if boundary is None else boundary
    S = lattice.field(element, batch=members(element), precision=precision, boundary=boundary)
    return S.set_local(cut(lattice, numbers(lattice.extents, S.batch, *element.numpy_shape, seed=seed)))


def cut(lattice, whole):
    """This rank's box of an array."""
    box = zip(lattice.local_origin, lattice.local_extents, strict=True)
    return whole[tuple(slice(o, o + e) for o, e in box)]


def scalar_source(S):
    """One complex field times unit vectors, as wall sources are."""
    eta = cut(S.lattice, numbers(S.lattice.extents, seed=7))
    values = np.zeros((*S.lattice.local_extents, S.batch, S.batch), complex)
    for k in range(S.batch):
        values[..., k, k] = eta
    return S.like().set_local(values.reshape(S.local().shape))


def same_bits(f, g):
    a, b = f.local(), g.local()
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---- files by hand --------------------------------------------------------------------------------


def lime(kind, data, flags=0):
    head = struct.pack(">IHHQ", 0x456789AB, 1, flags, len(data)) + kind.encode().ljust(128, b"\0")
    return head + data + b"\0" * (-len(data) % 8)


def records_of(data):
    """(type, flags, bytes) of each record of a LIME file."""
    at, found = 0, []
    while at < len(data):
        magic, version, flags, length = struct.unpack(">IHHQ", data[at : at + 16])
        assert (magic, version) == (0x456789AB, 1)
        kind = data[at + 16 : at + 144].rstrip(b"\0").decode()
        assert not data[at + 144 + length : at + 144 + length + -length % 8].strip(b"\0")
        found.append((kind, flags, data[at + 144 : at + 144 + length]))
        at += 144 + length + -length % 8
    return found


def rotated(word, by):
    return (word << by | word >> (32 - by)) & 0xFFFFFFFF


def sums(payload, sites):
    """SciDAC's two sums of the records of these sites."""
    a, b, size = 0, 0, len(payload) // len(sites)
    for i, site in enumerate(sites):
        code = zlib.crc32(payload[i * size : (i + 1) * size])
        a, b = a ^ rotated(code, site % 29), b ^ rotated(code, site % 31)
    return a, b


def payload_of(values, real=">f8"):
    """Bytes of an array (x, y, z, t, ...): x runs fastest, the element's last index faster still."""
    values = np.moveaxis(values, (0, 1, 2, 3), (3, 2, 1, 0))
    return np.stack([values.real, values.imag], axis=-1).astype(real).tobytes()


def site_numbers(extents, low=(0, 0, 0, 0), shape=None):
    """Numbers on the lattice of the sites of a part, in its order."""
    x, y, z, _ = extents
    ranges = [range(o, o + e) for o, e in zip(low, shape or extents, strict=True)]
    return [a + x * (b + y * (c + z * d)) for d, c, b, a in product(*ranges[::-1])]


def xml(tag, **children):
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in children.items() if value is not None)
    return f"<?xml version='1.0'?>\n<{tag}> {inner}</{tag}>\n".encode()


def field_records(values, user, *, extents=None, low=None, real=">f8", sites=None, **private):
    """The four records of a field, as QIO has them, with a date."""
    size = int(np.prod(values.shape[4:], dtype=int)) * 2 * int(real[2])
    hyper = {} if low is None else {
        "spacetime": 4,
        "hyperlower": " ".join(map(str, low)),
        "hyperupper": " ".join(str(o + e - 1) for o, e in zip(low, values.shape, strict=False)),
    }  # fmt: skip
    described = {
        "version": "1.1", "date": "Mon Jan  1 00:00:00 2001 UTC", "recordtype": 0 if low is None else 2, **hyper,
        "datatype": f"USQCD_{'F' if real == '>f4' else 'D'}3_DiracFermion", "precision": "F" if real == ">f4" else "D",
        "colors": 3, "spins": 4, "typesize": size, "datacount": 1, **private,
    }  # fmt: skip
    data = payload_of(values, real)
    a, b = sums(
        data, sites or site_numbers(extents or values.shape[:4], low or (0, 0, 0, 0), values.shape[:4])
    )
    return b"".join(
        (
            lime("scidac-private-record-xml", xml("scidacRecord", **described), 0x8000),
            lime("scidac-record-xml", user + b"\0"),
            lime("scidac-binary-data", data),
            lime(
                "scidac-checksum", xml("scidacChecksum", version="1.0", suma=f"{a:x}", sumb=f"{b:x}"), 0x4000
            ),
        )
    )


def start(extents, type=None, tag="usqcdPropFile", info="", volfmt=0):
    """The records of a whole file."""
    dims = " ".join(map(str, extents))
    private = xml("scidacFile", version="1.1", spacetime=4, dims=dims, volfmt=volfmt)
    user = xml(tag, version="1.0", type=type, info=info)
    return lime("scidac-private-file-xml", private, 0x8000) + lime("scidac-file-xml", user, 0x4000)


TWELVE = "USQCD_DiracFermion_ScalarSource_TwelveSink"
PAIRS = "USQCD_DiracFermion_Source_Sink_Pairs"
SCALAR_PAIRS = "USQCD_DiracFermion_ScalarSource_Sink_Pairs"
S3 = numbers(SMALL, 12, 4, 3)  # x, y, z, t, member, spin, colour
ETA = numbers(SMALL, seed=1)
COMPLEX = {"datatype": "USQCD_D_Complex", "colors": 0, "spins": 0}


def sink(k, values=None, tag="usqcdPropInfo", **changes):
    spin, color = divmod(k, 3)
    label = {"version": "1.0", "spin": spin, "color": color, "info": "", **changes}
    return field_records(S3[..., k, :, :] if values is None else values, xml(tag, **label))


def source_record(values=ETA, **options):
    return field_records(values, xml("usqcdSourceInfo", version="1.0", info=""), **(COMPLEX | options))


def twelve(order=range(12), **options):
    return start(SMALL, TWELVE, **options) + source_record() + b"".join(sink(k) for k in order)


def written(tmp_path, data, name="theirs.lime"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


# ---- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["lime", "scidac", "prop", "h5", "hdf5"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("element", [SPINOR(3), SPINOR(2), SPINOR(1), VECTOR(3), VECTOR(2), VECTOR(1)])
def test_a_propagator_and_its_source_come_back_bit_for_bit(tmp_path, element, precision, ending):
    lattice, path = jali.Lattice(EXTENTS), tmp_path / f"S.{ending}"
    S = propagator(lattice, element, precision, boundary={0: -1j, 3: "antiperiodic"})
    eta = propagator(lattice, element, precision, seed=1)
    save_propagator(S, path, source=eta, metadata={"operator": "Wilson <&>", "kappa": 0.125, "sweep": 3})
    loaded = load_propagator(path)
    assert same_bits(loaded, S)
    assert loaded.boundary == S.boundary
    assert loaded.precision == precision
    assert loaded.element == element
    assert loaded.batch == S.batch
    assert loaded.lattice is not lattice
    again = load_source(path, lattice)
    assert same_bits(again, eta)
    assert again.lattice is lattice
    info = propagator_info(path)
    assert info["metadata"] == {"operator": "Wilson <&>", "kappa": 0.125, "sweep": 3}
    assert info["element"] == str(element)
    assert info["precision"] == int(precision[5:])
    assert info["source"] == ("scalar" if S.batch == 1 and info["format"] == "scidac" else "full")
    assert info["extents"] == EXTENTS
    assert info["members"] == S.batch
    assert info["boundary"] == S.boundary.words


@pytest.mark.parametrize("element", [SPINOR(3), SPINOR(2), VECTOR(3), VECTOR(2)])
def test_a_scalar_source_is_one_record_and_comes_back_as_the_field_of_sources(tmp_path, element):
    S = propagator(jali.Lattice(EXTENTS), element)
    eta = scalar_source(S)
    save_propagator(S, tmp_path / "S.lime", source=eta)
    assert propagator_info(tmp_path / "S.lime")["source"] == "scalar"
    payloads = [
        data
        for kind, _, data in records_of((tmp_path / "S.lime").read_bytes())
        if kind == "scidac-binary-data"
    ]
    assert len(payloads) == 1 + S.batch
    assert payloads[0] == payload_of(numbers(EXTENTS, seed=7))
    assert same_bits(load_source(tmp_path / "S.lime"), eta)
    assert same_bits(load_propagator(tmp_path / "S.lime"), S)


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize(
    ("element", "type", "file_tag", "sink_tag"),
    [
        (SPINOR(3), "DiracFermion", "usqcdPropFile", "usqcdPropInfo"),
        (SPINOR(2), "DiracFermion", "usqcdPropFile", "usqcdPropInfo"),
        (VECTOR(3), "ColorVector", "usqcdKSPropFile", "usqcdKSPropInfo"),
    ],
)
def test_records_are_those_of_usqcd(tmp_path, element, type, file_tag, sink_tag, source):
    S = propagator(jali.Lattice(EXTENTS), element, "float32")
    n, shape = element.numpy_shape[-1], element.numpy_shape
    save_propagator(
        S, tmp_path / "S.lime", source=S if source else None, metadata={"kappa": 0.1, "long": "x" * 900}
    )
    first, second, *rest, last = records_of((tmp_path / "S.lime").read_bytes())
    assert first[:2] == ("scidac-private-file-xml", 0x8000)
    assert b"<dims>4 2 3 5 </dims><volfmt>0<" in first[2]
    twelve = "Twelve" if type == "DiracFermion" else "Three"
    kind = "Source_Sink_Pairs" if source else f"ScalarSource_{twelve}Sink"
    info = f"kappa = 0.1; jali-info crc32 = {zlib.crc32(last[2]):08x}"
    whole = (
        f"<{file_tag}><version>1.0</version><type>USQCD_{type}_{kind}</type><info>{info}</info></{file_tag}>"
    )
    assert second[:2] == ("scidac-file-xml", 0x4000)
    assert second[2].decode().endswith(whole)
    assert last[:2] == ("jali-info", 0xC000)
    assert json.loads(last[2])["metadata"]["long"] == "x" * 900
    groups = [rest[i : i + 4] for i in range(0, len(rest), 4)]
    assert len(groups) == S.batch * 2 if source else S.batch + 1
    values, zero = S.local(), np.zeros(EXTENTS)
    for i, group in enumerate(groups):
        assert [(kind, flags) for kind, flags, _ in group] == [
            ("scidac-private-record-xml", 0x8000),
            ("scidac-record-xml", 0),
            ("scidac-binary-data", 0),
            ("scidac-checksum", 0x4000),
        ]
        private, user, data, checksum = (data for _, _, data in group)
        k, is_sink = (i // 2, i % 2 == 1) if source else (i - 1, i > 0)
        scalar = not source and i == 0
        size = 8 if scalar else 8 * members(element)
        datatype = "USQCD_F_Complex" if scalar else f"USQCD_F{n}_{type}"
        spins = 4 if len(shape) == 2 and not scalar else 0
        assert private.decode().partition("?>")[2] == (
            f"<scidacRecord><version>1.1</version><recordtype>0</recordtype><datatype>{datatype}</datatype>"
            f"<precision>F</precision><colors>{0 if scalar else n}</colors><spins>{spins}</spins>"
            f"<typesize>{size}</typesize><datacount>1</datacount></scidacRecord>"
        )
        spin = f"<spin>{k // n}</spin>" if len(shape) == 2 else ""
        label = "" if scalar else f"{spin}<color>{k % n}</color>"
        tag, info = (
            (sink_tag, "") if is_sink else ("usqcdSourceInfo", "no source was given" if scalar else "")
        )
        assert user.decode().endswith(f"<{tag}><version>1.0</version>{label}<info>{info}</info></{tag}>")
        assert data == payload_of(zero if scalar else values[:, :, :, :, k], ">f4")
        a, b = sums(data, site_numbers(EXTENTS))
        assert f"<suma>{a:08x}</suma><sumb>{b:08x}</sumb>" in checksum.decode()


def test_a_number_is_where_site_spin_and_colour_say(tmp_path):
    S = propagator(jali.Lattice(EXTENTS), SPINOR(3))
    save_propagator(S, tmp_path / "S.lime")
    payloads = [
        data
        for kind, _, data in records_of((tmp_path / "S.lime").read_bytes())
        if kind == "scidac-binary-data"
    ]
    x, y, z, t, spin, colour, source_spin, source_colour = 3, 1, 2, 4, 2, 1, 1, 2
    at = 16 * (colour + 3 * (spin + 4 * (x + 4 * (y + 2 * (z + 3 * t)))))
    found = complex(*struct.unpack(">2d", payloads[1 + 3 * source_spin + source_colour][at : at + 16]))
    assert found == S[x, y, z, t][5, spin, colour]


def test_precision_may_change_on_the_way(tmp_path):
    S = propagator(jali.Lattice(SMALL), SPINOR(3))
    for ending in ("lime", "h5"):
        save_propagator(S, tmp_path / f"S.{ending}", precision=32)
        assert propagator_info(tmp_path / f"S.{ending}")["precision"] == 32
        assert np.array_equal(
            load_propagator(tmp_path / f"S.{ending}").local(), S.local().astype(np.complex64)
        )
        wide = load_propagator(tmp_path / f"S.{ending}", precision=64)
        assert wide.precision == "float64"
        assert np.array_equal(wide.local(), S.local().astype(np.complex64))
        save_propagator(S, tmp_path / f"S.{ending}")
        narrow = load_propagator(tmp_path / f"S.{ending}", precision=32, boundary="periodic")
        assert np.array_equal(narrow.local(), S.local().astype(np.complex64))
        assert narrow.boundary.words == ["periodic"] * 4


def test_metadata_may_speak_of_any_basis_but_not_name_one(tmp_path):
    S = propagator(jali.Lattice(SMALL), SPINOR(2))
    notes = {"note": "basis: chiral, gamma basis = chiral", "text": "<basis>chiral</basis>", "step": 2.5}
    for ending in ("lime", "h5"):
        save_propagator(S, tmp_path / f"S.{ending}", metadata=notes)
        assert same_bits(load_propagator(tmp_path / f"S.{ending}", S.lattice), S)
        assert propagator_info(tmp_path / f"S.{ending}")["metadata"] == notes
        assert propagator_info(tmp_path / f"S.{ending}")["checksums"]


def test_format_is_given_by_the_name_or_by_the_argument(tmp_path):
    S = propagator(jali.Lattice(SMALL), VECTOR(2))
    save_propagator(S, tmp_path / "any", format="hdf5")
    assert propagator_info(tmp_path / "any")["format"] == "hdf5"
    save_propagator(S, tmp_path / "any", format="scidac")
    assert propagator_info(tmp_path / "any")["format"] == "scidac"


def test_hdf5_holds_other_dimensions_and_says_that_there_is_no_source(tmp_path):
    S = jali.Lattice(3, 4).field(VECTOR(2), batch=2)
    S[...] = numbers((3, 4), 2, 2)
    save_propagator(S, tmp_path / "S.h5")
    assert same_bits(load_propagator(tmp_path / "S.h5"), S)
    assert propagator_info(tmp_path / "S.h5")["source"] is None
    with pytest.raises(ParameterError, match=r"S\.h5 holds no source: none was given"):
        load_source(tmp_path / "S.h5")
    with pytest.raises(LayoutError, match="in four dimensions, not in 2; HDF5"):
        save_propagator(S, tmp_path / "S.lime")


@pytest.mark.parametrize("ending", ["lime", "h5"])
@pytest.mark.parametrize("kind", ["none", "scalar", "full"])
def test_bytes_do_not_depend_on_the_ranks_and_any_number_of_them_reads(tmp_path, ending, kind):
    def save(path):
        S = propagator(jali.Lattice(EXTENTS), SPINOR(2), "float32")
        source = {
            "none": None,
            "scalar": scalar_source(S),
            "full": propagator(S.lattice, SPINOR(2), "float32", 1),
        }[kind]
        save_propagator(S, path, source=source, metadata={"kappa": 0.125})

    def load(path):
        S = load_propagator(path)
        wanted = numbers(EXTENTS, 8, 4, 2).astype(np.complex64)
        return np.array_equal(S.local(), cut(S.lattice, wanted)), propagator_info(path)["metadata"]

    for ranks in (1, 2, 3):
        jali.virtual_ranks(ranks, save, tmp_path / f"{ranks}.{ending}")
    one, two, three = ((tmp_path / f"{ranks}.{ending}").read_bytes() for ranks in (1, 2, 3))
    assert one == two == three
    assert len(os.listdir(tmp_path)) == 3
    for ranks in (2, 3):
        assert jali.virtual_ranks(ranks, load, tmp_path / f"1.{ending}") == [(True, {"kappa": 0.125})] * ranks


# ---- files of others ------------------------------------------------------------------------------


def test_twelve_sinks_are_put_into_their_order_by_their_labels(tmp_path):
    S = load_propagator(written(tmp_path, twelve([7, 3, 11, 0, 1, 2, 4, 5, 6, 10, 9, 8])))
    assert np.array_equal(S.local(), S3)
    assert S.element == SPINOR(3)
    assert S.lattice.extents == SMALL
    assert S.boundary.words == ["periodic"] * 3 + ["antiperiodic"]
    eta = load_source(tmp_path / "theirs.lime").local().reshape(*SMALL, 12, 12)
    assert np.array_equal(eta, ETA[..., None, None] * np.eye(12))


def test_a_source_on_a_time_slice_is_zero_elsewhere_and_its_checksum_goes_by_the_lattice(tmp_path):
    low, one = (0, 0, 1, 1), ETA[:, :, 1:, 1:]
    data = (
        start(SMALL, TWELVE)
        + source_record(one, extents=SMALL, low=low)
        + b"".join(sink(k) for k in range(12))
    )
    path = written(tmp_path, data)

    def load():
        source = load_source(path)
        wanted = np.zeros(SMALL, complex)
        wanted[:, :, 1:, 1:] = one
        values = source.local()[..., 4, 1, 1]
        return np.array_equal(values, cut(source.lattice, wanted)), np.abs(source.local()[..., 4, 1, 0]).max()

    for ranks in (1, 2, 3):
        assert jali.virtual_ranks(ranks, load) == [(True, 0)] * ranks
    wrong = source_record(one, extents=SMALL, low=low, sites=range(one.size))
    path = written(tmp_path, start(SMALL, TWELVE) + wrong + b"".join(sink(k) for k in range(12)))
    with pytest.raises(FileFormatError, match="checksum of record"):
        load_source(path)


@pytest.mark.parametrize("labels", [True, False])
def test_pairs_are_read_with_or_without_labels_and_with_the_tag_of_old_writers(tmp_path, labels):
    eta, gone = numbers(SMALL, 12, 4, 3, seed=3), {} if labels else {"spin": None, "color": None}
    order = [5, 0, 11, 1, 2, 3, 4, 6, 7, 8, 9, 10] if labels else range(12)
    data = start(SMALL, PAIRS)
    for k in order:
        data += field_records(eta[..., k, :, :], xml("usqcdSourceInfo", version="1.0", info=""))
        data += sink(k, tag="usqcdInfo", **gone)
    path = written(tmp_path, data)
    assert np.array_equal(load_propagator(path).local(), S3)
    assert np.array_equal(load_source(path).local(), eta)


def test_scalar_sources_of_pairs_stand_at_the_spin_and_colour_of_their_sinks(tmp_path):
    eta = numbers(SMALL, 12, seed=3)
    path = written(
        tmp_path,
        start(SMALL, SCALAR_PAIRS)
        + b"".join(source_record(eta[..., k]) + sink(k) for k in range(11, -1, -1)),
    )
    assert np.array_equal(load_propagator(path).local(), S3)
    found = load_source(path).local().reshape(*SMALL, 12, 12)
    assert np.array_equal(found, eta[..., None] * np.eye(12))


def test_staggered_files_of_others_are_read(tmp_path):
    values, words = numbers(SMALL, 3, 3), {"datatype": "QDP_F3_ColorVector", "spins": 0}
    data = start(SMALL, "USQCD_ColorVector_ScalarSource_ThreeSink", "usqcdKSPropFile")
    data += source_record(real=">f4", datatype="QLA_F_Complex")
    for k in (2, 0, 1):
        user = xml("usqcdKSPropInfo", version="1.0", color=k, info="")
        data += field_records(values[..., k, :], user, real=">f4", **words)
    S = load_propagator(written(tmp_path, data))
    assert S.element == VECTOR(3)
    assert S.precision == "float32"
    assert np.array_equal(S.local(), values.astype(np.complex64))


@pytest.mark.parametrize(("type", "tag"), [(None, "propagator"), ("LHPC_DiracPropagator", "usqcdPropFile")])
@pytest.mark.parametrize("datatype", ["Lattice", "QDP_D3_DiracPropagator"])
def test_a_lattice_propagator_of_chroma_is_one_record_of_matrices(tmp_path, type, tag, datatype):
    # sink spin, source spin, sink colour, source colour
    whole = np.empty((*SMALL, 4, 4, 3, 3), complex)
    for i, j, a, b in product(range(4), range(4), range(3), range(3)):
        whole[..., i, j, a, b] = S3[..., 3 * j + b, i, a]
    user = b"<?xml version='1.0'?><Propagator><spin>9</spin><kappa>0.1</kappa></Propagator>"
    path = written(tmp_path, start(SMALL, type, tag) + field_records(whole, user, datatype=datatype))
    assert np.array_equal(load_propagator(path).local(), S3)
    assert propagator_info(path)["source"] is None


def test_typesize_and_datacount_of_old_writers_are_a_number_and_how_many(tmp_path):
    words = {"typesize": 8, "datacount": 24}
    data = start(SMALL, TWELVE) + source_record(typesize=8, datacount=2, datatype="USQCD_D3_Complex")
    for k in range(12):
        label = xml("usqcdPropInfo", version="1.0", spin=k // 3, color=k % 3, info="")
        data += field_records(S3[..., k, :, :], label, **words)
    assert np.array_equal(load_propagator(written(tmp_path, data)).local(), S3)


def test_the_text_of_others_becomes_metadata(tmp_path):
    info = propagator_info(written(tmp_path, twelve(info="mass = 0.05; source = wall\nnote=a b")))
    assert info["metadata"] == {"mass": "0.05", "source": "wall", "note": "a b"}
    assert info["type"] == TWELVE
    assert info["boundary"] is None
    info = propagator_info(written(tmp_path, twelve(info="<Propagator><Mass>0.1</Mass></Propagator>")))
    assert info["info"] == "<Propagator><Mass>0.1</Mass></Propagator>"
    assert info["metadata"] == {}
    assert propagator_info(written(tmp_path, twelve(info="a < b & c")))["type"] == TWELVE  # no XML


# ---- what is refused ------------------------------------------------------------------------------

REST = b"".join(sink(k) for k in range(1, 12))
HEAD = start(SMALL, TWELVE) + source_record()
BAD = {
    "empty": (b"", "the file is empty|neither a LIME file"),
    "text": (b"# numbers\n" * 100, "neither a LIME file, which begins with 45 67 89 ab, nor HDF5"),
    "no records": (lime("title", b"x", 0xC000), "no record 'scidac-private-file-xml', so no propagator"),
    "cut in a record": (twelve()[:-700], "truncated"),
    "cut between fields": (HEAD + sink(0) + sink(1), "2 sinks, and a propagator of 3 colours has 12: missing are spin 0, color 2; "),
    "one missing": (HEAD + REST, "11 sinks, and a propagator of 3 colours has 12: missing are spin 0, color 0$"),
    "one twice": (HEAD + sink(1) + REST, r"\(spin 0, color 1\) is there twice, first in record .* at offset \d+"),
    "one too many": (HEAD + sink(0) + REST + sink(4), r"\(spin 1, color 1\) is there twice"),
    "no such spin": (HEAD + sink(0, spin=4) + REST, r"\(spin 4, color 0\), of 3 colours and 4 spins"),
    "no label": (HEAD + sink(0, spin=None) + REST, "does not say spin and color of its source"),
    "a label that is no number": (HEAD + sink(0, spin="-1") + REST, "spin in scidac-record-xml at offset .* is '-1'"),
    "a source among sinks": (HEAD + source_record() + REST, "is Complex under usqcdSourceInfo, and .*TwelveSink has a sink there"),
    "no source": (start(SMALL, TWELVE) + sink(0) + REST, "is DiracFermion under usqcdPropInfo, and .* has a source there"),
    "source without sink": (start(SMALL, PAIRS) + sink(0), "1 field, and the last is a source without sink"),
    "only a source": (HEAD, "holds no sinks"),
    "other type": (start(SMALL, "USQCD_Eigenvectors") + sink(0), "the type is 'USQCD_Eigenvectors', and the fields are 1 DiracFermion"),
    "no type": (start(SMALL) + sink(0) + sink(1), "no type of propagators is named, and the fields are 2 DiracFermion"),
    "in parts": (twelve(volfmt=1), "a file in parts; join the parts"),
    "other colours": (HEAD + sink(0, numbers(SMALL, 4, 2)) + REST, r"says 128 bytes per site, 3 colours and 4 spins in 64 bits"),
    "mixed precision": (
        HEAD + field_records(S3[..., 0, :, :], xml("usqcdPropInfo", version="1.0", spin=0, color=0, info=""), real=">f4") + REST,
        "in 64 bits, .* in 32: all fields of a propagator are alike|in 32 bits, .* in 64",
    ),
    "another basis": (twelve(info="<gammaBasis>Dirac-Pauli</gammaBasis>"), "the basis of spins is 'Dirac-Pauli', jali reads DeGrand-Rossi"),
    "another basis, as text": (twelve(info="spin_basis = chiral"), "the basis of spins is 'chiral'"),
    "a configuration": (lime("ildg-format", b"<ildgFormat/>"), "a gauge configuration, no propagator: GaugeField.from_file"),
    "links": (
        start(SMALL) + field_records(numbers(SMALL, 4, 3, 3), b"", datatype="QDP_D3_ColorMatrix", typesize=144, datacount=4),
        "matrices, as gauge configurations have them",
    ),
    "of ETMC": (
        lime("propagator-type", b"DiracFermion_Sink") + lime("etmc-propagator-format", b"<etmcFormat/>"),
        "a propagator or source of ETMC .tmLQCD., in another basis of spins",
    ),
    "unknown type of data": (start(SMALL) + field_records(S3[..., 0, :, :], b"", datatype="Fish"), "says datatype 'Fish'"),
    "no precision": (start(SMALL) + field_records(S3[..., 0, :, :], b"", precision="H"), "says precision 'H', expected F or D"),
    "part outside": (
        start(SMALL) + field_records(ETA, b"", low=(0, 0, 0, 1), **COMPLEX),
        r"says sites \[0, 0, 0, 1\] to \[1, 0, 2, 2\], which do not lie on the lattice \(2, 1, 3, 2\)",
    ),
    "other lattice": (start((2, 1, 3, 3), TWELVE) + source_record() + sink(0) + REST, "truncated: record 'scidac-binary-data'"),
    "not finite": (HEAD + sink(0, np.full((*SMALL, 4, 3), np.nan + 0j)) + REST, r"\(spin 0, color 0\) holds .*nan.* \(0, 0, 0, 0\) .*not finite"),
    "records of no field": (start(SMALL, TWELVE) + lime("scidac-binary-data", b"") + sink(0), "should follow a 'scidac-private-record-xml'"),
    "info of another": (twelve() + lime("jali-info", b"{}", 0xC000), "'jali-info' is not the JSON object that jali writes"),
    "basis in our record": (
        twelve() + lime("jali-info", b'{"basis": "Weyl", "source": "scalar", "metadata": {}}', 0xC000),
        "the basis of spins is 'Weyl'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_propagator_is_refused_with_the_reason(tmp_path, what):
    data, message = BAD[what]
    path = written(tmp_path, data)
    with pytest.raises(FileFormatError, match=f"(?s){message}") as caught:
        load_propagator(path)
    assert str(path) in str(caught.value)


def test_a_flipped_bit_is_found_by_the_checksum_of_its_field(tmp_path):
    S = propagator(jali.Lattice(SMALL), SPINOR(3))
    save_propagator(S, tmp_path / "S.lime", source=scalar_source(S))
    data = bytearray((tmp_path / "S.lime").read_bytes())
    data[data.index(payload_of(S.local()[..., 5, :, :])) + 100] ^= 1
    path = written(tmp_path, bytes(data))
    message = r"the checksum of record 'scidac-binary-data' at offset \d+ \(spin 1, color 2\), up to \d+, is \w{8} \w{8}, the file says"
    with pytest.raises(FileFormatError, match=message):
        load_propagator(path)
    assert same_bits(load_source(path), scalar_source(S))  # which is intact
    different = np.argwhere(load_propagator(path, verify=False).local() != S.local())
    assert len(different) == 1
    assert different[0][4] == 5
    path = written(
        tmp_path,
        (tmp_path / "S.lime")
        .read_bytes()
        .replace(b"<suma>", b"<sume>", 1)
        .replace(b"</suma>", b"</sume>", 1),
    )
    with pytest.raises(FileFormatError, match="lacks suma or sumb; verify=False"):
        load_source(path)


def own_file(tmp_path, source=True):
    """The records of a file of jali's with a boundary that others do not have, whose last record ends with zeros; and its propagator."""
    S = propagator(jali.Lattice(2, 1, 1, 3), VECTOR(2), boundary="periodic")
    for more in range(8):
        save_propagator(
            S, tmp_path / "S.lime", source=S if source else None, metadata={"log": "x" * more, "kappa": 0.125}
        )
        records = records_of((tmp_path / "S.lime").read_bytes())
        if len(records[-1][2]) % 8:
            break
    return records, S


def joined(records):
    return b"".join(lime(kind, data, flags) for kind, flags, data in records)


def changed_info(old, new):
    return lambda records: [
        (kind, flags, data.replace(old, new) if kind == "jali-info" else data)
        for kind, flags, data in records
    ]


def changed_mark(records):
    return [
        (kind, flags, data.replace(b"jali-info crc32", b"jali-infn crc32")) for kind, flags, data in records
    ]


INFO_DAMAGE = {
    "key": (changed_info(b"boundary", b"bouneary"), r"the checksum of record 'jali-info' is \w{8}, 'scidac-file-xml' says \w{8}"),
    "digit": (changed_info(b"0.125", b"0.135"), "the checksum of record 'jali-info' is"),
    "condition": (changed_info(b'"periodic"', b'"antiperiodic"'), "the checksum of record 'jali-info' is"),
    "brace": (changed_info(b"{", b"["), "record 'jali-info' is not the JSON object that jali writes"),
    "name": (lambda records: [*records[:-1], ("jali-infp", *records[-1][1:])], "no record 'jali-info', which 'scidac-file-xml' says"),
    "cut": (lambda records: records[:-1], "no record 'jali-info', which 'scidac-file-xml' says that jali wrote"),
    "mark": (changed_mark, "'scidac-file-xml' does not say the checksum of record 'jali-info'"),
}  # fmt: skip


@pytest.mark.parametrize("what", INFO_DAMAGE)
def test_damage_in_the_record_of_our_own_is_found(tmp_path, what):
    change, message = INFO_DAMAGE[what]
    records, S = own_file(tmp_path)
    assert same_bits(load_propagator(written(tmp_path, joined(records))), S)
    path = written(tmp_path, joined(change(records)))
    for call in (load_propagator, load_source, propagator_info):
        with pytest.raises(FileFormatError, match=f"{re.escape(str(path))}: {message}.*verify=False takes"):
            call(path)
    if what in ("mark", "digit", "condition"):
        assert same_bits(load_propagator(path, verify=False), S)
    else:  # never a boundary that nobody has said
        with pytest.raises(FileFormatError, match="it does not say the boundary: boundary= says it"):
            load_propagator(path, verify=False)
    assert same_bits(load_propagator(path, verify=False, boundary="periodic"), S)


@pytest.mark.parametrize("which", ["one", "all"])
@pytest.mark.parametrize("how", ["dropped", "renamed"])
def test_a_missing_checksum_is_damage_in_files_of_jali(tmp_path, which, how):
    records, S = own_file(tmp_path, source=False)
    sums = [i for i, (kind, _, _) in enumerate(records) if kind == "scidac-checksum"]
    for i in reversed(sums if which == "all" else sums[-1:]):
        records[i : i + 1] = [] if how == "dropped" else [("scidac-checkzum", *records[i][1:])]
    path = written(tmp_path, joined(records))
    message = r"no record 'scidac-checksum' follows record 'scidac-binary-data' at offset \d+ \(color [01]\); verify=False takes"
    with pytest.raises(FileFormatError, match=message):
        load_propagator(path)
    assert same_bits(load_propagator(path, verify=False), S)
    assert not propagator_info(path)["checksums"]


def test_in_files_of_others_all_fields_have_a_checksum_or_none(tmp_path):
    records = records_of(twelve())
    last = max(i for i, (kind, _, _) in enumerate(records) if kind == "scidac-checksum")
    path = written(
        tmp_path, joined([one for i, one in enumerate(records) if i != last] + [("other", 0x4000, b"")])
    )
    with pytest.raises(FileFormatError, match=r"no record 'scidac-checksum' follows .* \(spin 3, color 2\)"):
        load_propagator(path)
    none = [one for one in records if one[0] != "scidac-checksum"] + [("other", 0x4000, b"")]
    assert np.array_equal(load_propagator(written(tmp_path, joined(none))).local(), S3)


def test_a_cut_in_the_last_zeros_is_found_in_files_of_jali(tmp_path):
    records, S = own_file(tmp_path)
    path = written(tmp_path, joined(records)[:-1])
    with pytest.raises(
        FileFormatError,
        match=r"truncated: the zeros after record 'jali-info' at offset \d+ end at \d+, expected at",
    ):
        load_propagator(path)
    assert same_bits(load_propagator(path, verify=False), S)


def test_long_metadata_are_read_and_what_is_too_long_is_not_written(tmp_path, monkeypatch):
    S, path = propagator(jali.Lattice(SMALL), VECTOR(2)), tmp_path / "S.lime"
    for ending in ("lime", "h5"):
        save_propagator(S, tmp_path / f"S.{ending}", metadata={"log": "x" * 300_000})
        assert same_bits(load_propagator(tmp_path / f"S.{ending}"), S)
        assert propagator_info(tmp_path / f"S.{ending}")["metadata"] == {"log": "x" * 300_000}
    before = path.read_bytes()
    monkeypatch.setattr("jali.io.propagators.OWN_LIMIT", 1000)
    with pytest.raises(
        ParameterError,
        match=r"a record of 1\d{3} bytes, and a file of a propagator has 1000 at most; nothing written",
    ):
        save_propagator(S, path, metadata={"log": "x" * 1000})
    assert path.read_bytes() == before


@pytest.mark.parametrize("ending", ["lime", "h5"])
def test_numbers_in_metadata_stay_numbers(tmp_path, ending):
    S, path = propagator(jali.Lattice(SMALL), VECTOR(1)), tmp_path / f"S.{ending}"
    given = {
        "a": np.int32(3),
        "b": np.float64(0.1),
        "c": np.float32(0.5),
        "d": np.inf,
        "e": -0.0,
        "f": 10**40,
        "g": np.str_("1"),
    }
    save_propagator(S, path, metadata={**given, "nan": np.nan})
    found = propagator_info(path)["metadata"]
    assert np.isnan(found.pop("nan"))
    assert found == given
    assert [type(value) for value in found.values()] == [int, float, float, float, float, int, str]


def test_numbers_too_large_for_32_bits_are_named_in_hdf5_on_every_rank(tmp_path):
    errors = [None, None]

    def attempt(what):
        S = propagator(jali.Lattice(EXTENTS), SPINOR(3))
        S[3, 1, 2, 4] = np.where(np.arange(144).reshape(12, 4, 3) == 12 * 7 + 5, 1e300, 1)
        if what == "load":
            save_propagator(S, tmp_path / "b.h5")
        try:
            if what == "load":
                load_propagator(tmp_path / "b.h5", S.lattice, precision=32)
            else:
                save_propagator(
                    S.like() if what == "source" else S, tmp_path / "a.h5", source=S, precision=32
                )
        except ParameterError as error:
            errors[S.lattice.rank] = error

    for what, name, end in (
        ("sink", "a.h5: the sink", "nothing written"),
        ("source", "a.h5: the source", "nothing written"),
        ("load", "b.h5: the sink", "read it in 64"),
    ):
        errors[:] = None, None
        jali.virtual_ranks(2, attempt, what)
        assert all(error.on_every_rank for error in errors)
        assert {str(error) for error in errors} == {
            f"{tmp_path}/{name} of spin 2, color 1 holds (1e+300+0j) at (3, 1, 2, 4), too large for 32 bits; {end}"
        }
        assert not (tmp_path / "a.h5").exists()


def test_hdf5_that_goes_round_in_a_damaged_file_is_ended_soon(tmp_path, monkeypatch):
    S, path = propagator(jali.Lattice(SMALL), VECTOR(1)), tmp_path / "S.h5"
    save_propagator(S, path)
    load_propagator(path)  # the process that looks is there
    data = bytearray(path.read_bytes())
    entry = data.index(b"GCOL") + 16
    data[entry : entry + 256] = bytes(256)
    path.write_bytes(data)
    monkeypatch.setattr("jali.io.array_formats._reader_process.BUSY", 0.4)
    with pytest.raises(
        FileFormatError,
        match=r"S\.h5: HDF5 cannot read it: it finds no end .*0\.4 s of computing without a step",
    ):
        load_propagator(path)
    save_propagator(S, path)
    monkeypatch.undo()
    assert same_bits(load_propagator(path), S)


def test_any_flipped_bit_leaves_the_numbers_right_or_is_refused(tmp_path):
    S = propagator(jali.Lattice(2, 1, 1, 2), SPINOR(1), boundary="periodic")
    save_propagator(S, tmp_path / "S.lime", source=S)
    data, rng = (tmp_path / "S.lime").read_bytes(), np.random.default_rng(5)
    refused = 0
    for at in rng.integers(len(data), size=120):
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        try:
            loaded = load_propagator(written(tmp_path, bytes(bad)), S.lattice)
            assert same_bits(loaded, S)
            assert loaded.boundary == S.boundary
        except (FileFormatError, LayoutError):
            refused += 1
    assert refused > 20
    for length in rng.integers(len(data), size=30):
        with pytest.raises(FileFormatError):
            load_propagator(written(tmp_path, data[:length]), S.lattice)


def test_the_lattice_must_be_that_of_the_file(tmp_path):
    S = propagator(jali.Lattice(SMALL), VECTOR(2))
    for ending in ("lime", "h5"):
        save_propagator(S, tmp_path / f"S.{ending}")
        with pytest.raises(
            LayoutError, match=rf"S\.{ending} holds a lattice \(2, 1, 3, 2\), not \(2, 1, 2, 3\)"
        ):
            load_propagator(tmp_path / f"S.{ending}", jali.Lattice(2, 1, 2, 3))
        with pytest.raises(ParameterError, match="device= is for the lattice that is made"):
            load_propagator(tmp_path / f"S.{ending}", S.lattice, device="cpu")
        with pytest.raises(ParameterError, match="onto a Lattice, not onto 4"):
            load_propagator(tmp_path / f"S.{ending}", 4)
        for wrong in (16, 32.0, True, "32"):
            with pytest.raises(ParameterError, match=f"precision {wrong!r} should be 32 or 64"):
                load_propagator(tmp_path / f"S.{ending}", precision=wrong)
            with pytest.raises(ParameterError, match=f"precision {wrong!r} should be 32 or 64"):
                save_propagator(S, tmp_path / f"T.{ending}", precision=wrong)
        assert load_propagator(tmp_path / f"S.{ending}", precision=np.int64(32)).precision == "float32"
        for wrong in ("no", 0, None):
            with pytest.raises(ParameterError, match=f"verify is True or False, not {wrong!r}"):
                load_propagator(tmp_path / f"S.{ending}", verify=wrong)
        for wrong in (True, {3: False}, ["periodic", True, 1, 1]):
            with pytest.raises(LayoutError, match=r"'open' or phases, not .*(True|False)"):
                load_propagator(tmp_path / f"S.{ending}", boundary=wrong)
    with pytest.raises(ParameterError, match="holds no source: none was given"):
        load_source(tmp_path / "S.lime")


def test_hdf5_files_of_other_fields_are_refused(tmp_path):
    S = propagator(jali.Lattice(SMALL), VECTOR(2))
    S.save(tmp_path / "S.h5")
    with pytest.raises(FileFormatError, match="holds field, and no dataset 'propagator'"):
        load_propagator(tmp_path / "S.h5")
    jali.save(tmp_path / "S.h5", propagator=S.members[0])
    with pytest.raises(
        FileFormatError, match="'propagator' is not the propagator that save_propagator writes"
    ):
        propagator_info(tmp_path / "S.h5")
    with pytest.raises(FileNotFoundError):
        load_propagator(tmp_path / "missing.lime")


def test_what_is_no_propagator_is_not_saved(tmp_path):
    lattice, path = jali.Lattice(SMALL), tmp_path / "S.lime"
    S = propagator(lattice, SPINOR(3))
    for field, message in (
        (lattice.field(SPINOR(3)), r"S has no batch; a propagator of Spinor\(3\) has a batch of 12, a member for each spin and colour"),
        (lattice.field(SPINOR(3), batch=3), "S has a batch of 3"),
        (lattice.field(VECTOR(3), batch=12), r"S has a batch of 12; .* Vector\(3\) has a batch of 3, a member for each colour"),
        (lattice.field(VECTOR(3, kind="real"), batch=3), "has the element Spinor"),
        (lattice.field(jali.SU(3), batch=9), r"S is a field of SU\(3\); a propagator has the element Spinor\(n\), or Vector\(n\)"),
        (np.zeros(3), "S is a field with a batch"),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=message):
            save_propagator(field, path)
    for source, message in (
        (lattice.field(SPINOR(3)), "source has no batch"),
        (propagator(jali.Lattice(SMALL), SPINOR(3)), "both are on one lattice, of one element"),
        (propagator(lattice, SPINOR(2)), "both are on one lattice, of one element"),
    ):
        with pytest.raises(LayoutError, match=message):
            save_propagator(S, path, source=source)
    for options, message in (
        ({"precision": 16}, "precision 16 should be 32 or 64"),
        ({"format": "npy"}, "propagators are saved as 'scidac' or 'hdf5', not as 'npy'"),
        ({"metadata": {"basis": "chiral"}}, "metadata cannot set basis"),
        ({"metadata": {"a b": 1}}, "metadata key 'a b'"),
        ({"metadata": [1]}, "metadata is a dictionary"),
        ({"metadata": {"a": None}}, "metadata 'a' is a text or a real number, not None"),
        ({"metadata": {"a": [1]}}, r"metadata 'a' is a text or a real number, not \[1\]"),
        ({"metadata": {"a": {}}}, "metadata 'a' is a text or a real number, not {}"),
        ({"metadata": {"a": b"x"}}, "metadata 'a' is a text or a real number, not b'x'"),
        ({"metadata": {"a": True}}, "metadata 'a' is a text or a real number, not True"),
        ({"metadata": {"a": np.True_}}, "metadata 'a' is a text or a real number, not np.True_"),
        ({"metadata": {"a": 1j}}, "metadata 'a' is a text or a real number, not 1j"),
        ({"metadata": {"a": np.zeros(2)}}, "metadata 'a' is a text or a real number, not a numpy.ndarray"),
        ({"metadata": {"a": 10**5000}}, "metadata 'a' is a text or a real number, not a number of"),
    ):
        with pytest.raises(ParameterError, match=message):
            save_propagator(S, path, **options)
    with pytest.raises(ParameterError, match=r"does not say in which format: it ends with \.lime, "):
        save_propagator(S, tmp_path / "S.dat")
    assert os.listdir(tmp_path) == []


def test_numbers_that_are_not_finite_are_refused_on_every_rank_and_the_older_file_stays(tmp_path):
    path = tmp_path / "S.lime"
    path.write_bytes(b"older")
    errors = [None, None]

    def save(value, precision):
        S = propagator(jali.Lattice(EXTENTS), SPINOR(3))
        S[3, 1, 2, 4] = np.where(np.arange(144).reshape(12, 4, 3) == 12 * 7 + 5, value, 1)
        try:
            save_propagator(S, path, precision=precision)
        except ParameterError as error:
            errors[S.lattice.rank] = error

    for value, precision in ((np.nan, 64), (1e300, 32)):
        jali.virtual_ranks(2, save, value, precision)
        texts = {re.sub(r"\(.*j\)", "N", str(error)) for error in errors}
        assert all(error.on_every_rank for error in errors)
        assert len(texts) == 1
        assert (
            f"the sink of spin 2, color 1 holds N at (x, y, z, t) = (3, 1, 2, 4) in {precision} bits"
            in texts.pop().replace("at N", "at (x, y, z, t) = (3, 1, 2, 4)")
        )
        assert path.read_bytes() == b"older"
        assert os.listdir(tmp_path) == ["S.lime"]


def test_damage_in_the_part_of_one_rank_is_an_error_on_all(tmp_path):
    S = propagator(jali.Lattice(EXTENTS), VECTOR(3))
    save_propagator(S, tmp_path / "S.lime")
    data = bytearray((tmp_path / "S.lime").read_bytes())
    at = data.index(payload_of(S.local()[..., 2, :]))
    data[at + len(payload_of(S.local()[..., 2, :])) - 1] ^= 1
    path, texts, lock = written(tmp_path, bytes(data)), [], threading.Lock()

    def load():
        try:
            load_propagator(path)
        except FileFormatError as error:
            with lock:
                texts.append(str(error))

    jali.virtual_ranks(3, load)
    assert len(texts) == 3
    assert len(set(texts)) == 1
    assert "(color 2)" in texts[0]


def test_boxes_of_numpy_are_read_without_a_field(tmp_path):
    file = open_propagator(written(tmp_path, twelve()))
    assert (file.extents, file.colours, file.spins, file.element, file.precision) == (SMALL, 3, 4, (4, 3), 64)
    assert file.has_checksums
    assert file.source == "scalar"
    assert np.array_equal(
        np.moveaxis(file.read(dtype=np.complex64), (3, 2, 1, 0), (0, 1, 2, 3)), S3.astype(np.complex64)
    )
    with pytest.raises(LayoutError, match="do not cover the lattice"):
        file.read(jali.io.Box((0, 0, 0, 0), (1, 1, 1, 1)))
    big = written(tmp_path, HEAD + sink(0, np.full((*SMALL, 4, 3), 1e300 + 0j)) + REST)
    with pytest.raises(ParameterError, match="too large for 32 bits; read it in 64"):
        open_propagator(big).read(dtype=np.complex64)
