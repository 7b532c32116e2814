"""ILDG and SciDAC files as different programs write them, made by hand."""

import json
import re
import struct

import numpy as np
import pytest
from handmade import (
    checksum_xml,
    ildg_file,
    ildg_format,
    lime_record,
    link_trace,
    payload,
    plaquette,
    private_file_xml,
    private_record_xml,
    random_links,
    scidac_checksum,
)

from jali.errors import FileFormatError, ParameterError
from jali.io import Box, open_configuration, recognise, write_ildg

LATTICE = (3, 2, 4, 5)
VOLUME = 120
LINKS = random_links(LATTICE)
DATA = payload(LINKS)
FORMAT = lime_record("ildg-format", ildg_format(LINKS))
BINARY = lime_record("ildg-binary-data", DATA)
CHECKSUM = lime_record("scidac-checksum", checksum_xml(DATA, 576))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "conf.0017.lime"


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("real", [">f4", ">f8"])
def test_every_group_and_precision_is_read(path, n, real) -> None:
    links = random_links(LATTICE, n)
    path.write_bytes(ildg_file(links, real))
    assert recognise(path) == "lime"
    file = open_configuration(path)
    assert (file.format, file.extents, file.group_size) == ("ildg", LATTICE, n)
    assert (file.precision, file.checksum_kind) == (8 * int(real[2]), "scidac")
    assert np.array_equal(file.read(), links.astype(np.complex64 if real[2] == "4" else np.complex128))


@pytest.mark.parametrize("letter", ["F", "D"])
def test_scidac_file_without_ildg_records_is_read(path, letter) -> None:
    data = payload(LINKS, ">f4" if letter == "F" else ">f8")
    size = len(data) // VOLUME
    parts = [
        lime_record("scidac-private-file-xml", private_file_xml(LINKS), 0x8000),
        lime_record("scidac-file-xml", b"<title>x</title>", 0x4000),
        lime_record("scidac-private-record-xml", private_record_xml(LINKS, letter), 0x8000),
        lime_record("scidac-record-xml", b"<info>y</info>", 0),
        lime_record("scidac-binary-data", data, 0),
        lime_record("scidac-checksum", checksum_xml(data, size), 0x4000),
    ]
    path.write_bytes(b"".join(parts))
    file = open_configuration(path)
    assert (file.format, file.extents, file.group_size) == ("scidac", LATTICE, 3)
    assert np.abs(file.read() - LINKS).max() < 1e-7
    del parts[2]  # only the dimensions are described now
    path.write_bytes(b"".join(parts))
    assert np.abs(open_configuration(path).read() - LINKS).max() < 1e-7


def test_file_without_checksum_is_read_and_says_so(path) -> None:
    path.write_bytes(FORMAT + BINARY)
    file = open_configuration(path)
    assert (file.checksum_kind, file.checksum) == (None, ())
    assert np.array_equal(file.read(), LINKS)


@pytest.mark.parametrize(("n", "real"), [(1, ">f4"), (2, ">f8"), (2, ">f4"), (3, ">f8"), (4, ">f4")])
def test_bare_record_is_read_given_the_lattice(path, n, real) -> None:
    links = random_links(LATTICE, n)
    path.write_bytes(lime_record("ildg-binary-data", payload(links, real)))
    with pytest.raises(FileFormatError, match="size of the lattice"):
        open_configuration(path)
    for group in (None, n, f"SU({n})" if n > 1 else "U1"):
        file = open_configuration(path, lattice=LATTICE, group=group)
        assert (file.group_size, file.precision) == (n, 8 * int(real[2]))
        assert np.abs(file.read() - links).max() < 1e-7
    with pytest.raises(FileFormatError, match="bytes, which are not the links"):
        open_configuration(path, lattice=LATTICE, group=n + 1)
    with pytest.raises(FileFormatError, match="bytes, which are not the links"):
        open_configuration(path, lattice=(3, 2, 4, 7))


def test_unknown_records_and_message_flags_are_ignored(path) -> None:
    extra = lime_record("some-program", b"\x00\x01\xff not text", 0x0000) + lime_record("empty", b"")
    path.write_bytes(extra + ildg_file(LINKS, extra=extra))
    assert np.array_equal(open_configuration(path).read(), LINKS)


def test_xlf_info_gives_plaquette_and_metadata(path) -> None:
    text = (
        f"plaquette = {plaquette(LINKS):.6e}\n trajectory nr = 17\n"
        " beta = 3.9, kappa = 0.16, 2*kappa*mu = 0.1\n date = x"
    )
    path.write_bytes(ildg_file(LINKS, extra=lime_record("xlf-info", text.encode() + b"\0")))
    file = open_configuration(path)
    assert file.plaquette == pytest.approx(plaquette(LINKS), rel=1e-6)
    assert file.header_mismatch(plaquette(LINKS), 0.0) is None
    assert "plaquette" in file.header_mismatch(plaquette(LINKS) + 1e-4, 0.0)
    assert file.metadata == {
        "trajectory_nr": "17",
        "beta": "3.9",
        "kappa": "0.16",
        "2_kappa_mu": "0.1",
        "date": "x",
    }


@pytest.mark.parametrize("cut", range(1, 8))
def test_last_record_may_lack_part_of_its_padding(path, cut) -> None:
    data = FORMAT + BINARY + lime_record("note", b"x")
    path.write_bytes(data[:-cut])
    assert np.array_equal(open_configuration(path).read(), LINKS)


def test_lengths_count_no_padding(path) -> None:
    links = random_links((1, 1, 1, 3), 1)  # 8 * 4 * 3 = 96 bytes per file in single precision, 32 per site
    odd = lime_record("ildg-data-lfn", b"lfn://x/y")
    path.write_bytes(ildg_file(links, ">f4", extra=odd))
    file = open_configuration(path)
    assert np.abs(file.read() - links).max() < 1e-7
    assert file.metadata["ildg-data-lfn"] == "lfn://x/y"


def swapped(old: bytes, new: bytes, record: bytes = FORMAT) -> bytes:
    """The ildg-format record with other text in its XML."""
    xml = record[144:].rstrip(b"\0")
    assert old in xml
    return lime_record("ildg-format", xml.replace(old, new))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (FORMAT + CHECKSUM, "no record 'ildg-binary-data'"),
        (FORMAT + BINARY + BINARY, "2 records 'ildg-binary-data'"),
        (swapped(b"<lx> 3</lx>", b"") + BINARY, "lacks lx"),
        (swapped(b"<lx> 3</lx>", b"<lx>4</lx>") + BINARY, "should have 92160 bytes but has 69120"),
        (swapped(b"<lx> 3</lx>", b"<lx>2</lx>") + BINARY, "23040 bytes too many"),
        (swapped(b"<lx> 3</lx>", b"<lx>1000000000000</lx>") + BINARY, "truncated"),
        (swapped(b"<lx> 3</lx>", b"<lx>three</lx>") + BINARY, "positive integer"),
        (swapped(b">64<", b">32<") + BINARY, "too many"),
        (swapped(b">64<", b">80<") + BINARY, "expected 32 or 64"),
        (swapped(b"su3gauge", b"su2gauge") + BINARY, "too many"),
        (swapped(b"<lx> 3</lx>", b"<lx 3</lx>") + BINARY, "well-formed"),
        (swapped(b"<lx> 3</lx>", b"<lx>3<lx>4</lx>") + BINARY, "well-formed"),  # one or the other
        (swapped(b"<precision>64</precision>", b"<precision>&64") + BINARY, "expected 32 or 64"),
        (swapped(b"<ildgFormat", b"<!DOCTYPE a [<!ENTITY b 'c'>]><ildgFormat") + BINARY, "document type"),
        (FORMAT + lime_record("scidac-private-file-xml", private_file_xml(LINKS, 1)) + BINARY, "in parts"),
        (
            FORMAT
            + lime_record("scidac-private-file-xml", private_file_xml(random_links((2, 3, 4, 5))))
            + BINARY,
            r"lattice \(3, 2, 4, 5\), scidac-private-file-xml \(2, 3, 4, 5\)",
        ),
        (
            lime_record("scidac-private-file-xml", private_file_xml(LINKS))
            + lime_record("scidac-private-record-xml", private_record_xml(LINKS, "D", 12))
            + lime_record("scidac-binary-data", DATA),
            "datacount",
        ),
    ],
)
def test_records_that_make_no_sense_are_refused(path, records, message) -> None:
    path.write_bytes(records)
    with pytest.raises(FileFormatError, match=message):
        open_configuration(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"<a><suma>1</suma></a>", "lacks suma or sumb"),
        (b"<a><suma>1</suma><sumb>q</sumb></a>", "hexadecimal"),
        (b"<a><suma>1</suma><sumb></sumb></b>", "not well-formed"),
        (b"<a><suma>1</suma><sumb>1</sumb></b>", "checksum of the payload"),
    ],
)
def test_a_checksum_that_cannot_be_read_is_refused_unless_nobody_wants_it(path, text, message) -> None:
    path.write_bytes(FORMAT + BINARY + lime_record("scidac-checksum", text))
    with pytest.raises(FileFormatError, match=f"{message}.*--ignore-checksum"):
        open_configuration(path).read()
    assert np.array_equal(open_configuration(path).read(verify=False), LINKS)


def private_records(file_xml: bytes, record_xml: bytes) -> bytes:
    return lime_record("scidac-private-file-xml", file_xml) + lime_record(
        "scidac-private-record-xml", record_xml
    )


@pytest.mark.parametrize("both", [True, False])
def test_a_declaration_that_lacks_a_quote_loses_nothing(path, both) -> None:
    """`<?xml version="1.0" encoding="UTF-8?>` is in files of old writers."""
    head = b'<?xml version="1.0" encoding="UTF-8?>'
    file_xml, record_xml = private_file_xml(LINKS), private_record_xml(LINKS)
    strip = re.compile(rb"^\s*<\?xml[^>]*\?>")
    path.write_bytes(
        private_records(
            head + strip.sub(b"", file_xml) if both else file_xml, head + strip.sub(b"", record_xml)
        )
        + lime_record("scidac-binary-data", DATA)
        + CHECKSUM
    )
    file = open_configuration(path)
    assert (file.extents, file.group_size, file.precision, file.warnings) == (LATTICE, 3, 64, ())
    assert np.array_equal(file.read(), LINKS)


def test_private_xml_that_lacks_a_quote_is_a_warning_where_something_else_tells(path) -> None:
    file_xml, record_xml = private_file_xml(LINKS), private_record_xml(LINKS)
    broken = record_xml.replace(b"<precision>", b"<precision &gt;")
    path.write_bytes(private_records(file_xml, broken) + lime_record("scidac-binary-data", DATA) + CHECKSUM)
    file = open_configuration(path)  # the size of the payload tells
    assert (file.extents, file.group_size, file.precision) == (LATTICE, 3, 64)
    (warning,) = file.warnings
    assert "'scidac-private-record-xml' is not well-formed XML" in warning
    assert np.array_equal(file.read(), LINKS)

    broken = file_xml.replace(b"<dims>", b"<dims ")
    path.write_bytes(private_records(broken, record_xml) + lime_record("scidac-binary-data", DATA) + CHECKSUM)
    with pytest.raises(
        FileFormatError, match="'scidac-private-file-xml' is not well-formed.*--lattice.*--group"
    ):
        open_configuration(path)
    file = open_configuration(path, lattice=LATTICE, group="SU3")
    assert len(file.warnings) == 1
    assert np.array_equal(file.read(), LINKS)
    path.write_bytes(FORMAT + private_records(broken, record_xml) + BINARY + CHECKSUM)
    file = open_configuration(path)
    assert len(file.warnings) == 1
    assert np.array_equal(file.read(), LINKS)


NEARLY_XML = {
    "an unbound prefix": lambda xml: xml.replace(b"<lx>", b"<a:lx>").replace(b"</lx>", b"</a:lx>"),
    "no end": lambda xml: xml.replace(b"</ildgFormat>", b""),
    "another end": lambda xml: xml.replace(b"</ildgFormat>", b"</ILDGFormat>"),
    "no ends at all": lambda xml: re.sub(rb"</\w+>", b"", xml),
    "an ampersand": lambda xml: xml.replace(b"<version>", b"<note>this & that</note><version>"),
    "a quote that is missing": lambda xml: xml.replace(b'other="1"', b'other="1'),
    "an attribute twice": lambda xml: xml.replace(b'other="1"', b'other="1" other="2"'),
    "something behind": lambda xml: xml + b"<!-- end",
    "control characters": lambda xml: xml.replace(b"<version>", b"\x01\x02<version>"),
}


@pytest.mark.parametrize("what", NEARLY_XML)
def test_a_format_record_that_a_person_can_read_is_read_with_a_warning(path, what) -> None:
    xml = NEARLY_XML[what](ildg_format(LINKS))
    path.write_bytes(lime_record("ildg-format", xml) + BINARY + CHECKSUM)
    file = open_configuration(path)
    (warning,) = file.warnings
    assert f"{path}: record 'ildg-format' is not well-formed XML" in warning
    assert "taken: precision 64, lx 3, ly 2, lz 4, lt 5" in warning
    assert (file.extents, file.group_size, file.precision) == (LATTICE, 3, 64)
    assert np.array_equal(file.read(), LINKS)
    with pytest.raises(FileFormatError, match="but 2 was asked for|not the links"):
        open_configuration(path, group=2)


def test_scidac_records_that_a_person_can_read_are_read_with_a_warning_each(path) -> None:
    def broken(xml: bytes) -> bytes:
        return re.sub(rb"(<\w+)(>)", rb'\1 version="1.0\2', xml, count=1)

    records = private_records(broken(private_file_xml(LINKS)), broken(private_record_xml(LINKS)))
    checksum = lime_record("scidac-checksum", broken(checksum_xml(DATA, 576)))
    path.write_bytes(records + lime_record("scidac-binary-data", DATA) + checksum)
    file = open_configuration(path)
    assert ["not well-formed XML" in warning for warning in file.warnings] == [True] * 3
    assert (file.extents, file.group_size, file.precision) == (LATTICE, 3, 64)
    assert file.checksum == scidac_checksum(DATA, 576)
    assert np.array_equal(file.read(), LINKS)


def test_our_own_record_that_cannot_be_read_is_a_warning(path) -> None:
    path.write_bytes(FORMAT + BINARY + lime_record("jali-info", b"{"))
    file = open_configuration(path)
    assert "jali-info" in file.warnings[0]
    assert file.metadata == {}
    assert np.array_equal(file.read(), LINKS)


def test_a_bare_record_names_the_options_that_are_needed(path) -> None:
    path.write_bytes(BINARY)
    with pytest.raises(FileFormatError, match="--lattice X,Y,Z,T, and --group"):
        open_configuration(path)


def test_field_of_unknown_name_is_sized_by_its_payload_but_keeps_its_precision(path) -> None:
    path.write_bytes(lime_record("ildg-format", ildg_format(LINKS, field="gauge")) + BINARY)
    assert open_configuration(path).group_size == 3
    path.write_bytes(lime_record("ildg-format", ildg_format(LINKS, bits=32, field="gauge")) + BINARY)
    with pytest.raises(FileFormatError, match="32 bits"):
        open_configuration(path)


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (512, b"\x00", "offset 512 a LIME record should begin with 456789ab"),
        (517, b"\x07", "version 7"),
        (520, b"\x7f", "truncated: record 'ildg-binary-data'"),
        (528, b"\xff", "not ASCII"),
    ],
)
def test_damaged_record_headers_are_refused(path, at, new, message) -> None:
    data = bytearray(FORMAT + BINARY)
    start = len(FORMAT)
    at = at - 512 + start
    data[at : at + 1] = new
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=message.replace("512", str(start))):
        open_configuration(path)


def test_long_records_are_ignored_unless_they_describe_the_payload(path) -> None:
    path.write_bytes(FORMAT + lime_record("job-input", b"x" * 300_000) + BINARY)
    assert np.array_equal(open_configuration(path).read(), LINKS)
    path.write_bytes(FORMAT + BINARY + lime_record("scidac-checksum", b" " * 300_000))
    with pytest.raises(FileFormatError, match="300000 bytes, expected a short text"):
        open_configuration(path)


def test_thousands_of_empty_records_are_refused(path) -> None:
    path.write_bytes(lime_record("x", b"") * 5000)
    with pytest.raises(FileFormatError, match="more than 4096"):
        open_configuration(path)


def test_round_trip_in_double_precision_is_bit_identical(path) -> None:
    for n in (1, 2, 3, 4):
        links = random_links(LATTICE, n)
        write_ildg(path, links, Box.whole(LATTICE), LATTICE)
        file = open_configuration(path)
        assert file.read().tobytes() == links.tobytes()
        assert (file.group_size, file.extents) == (n, LATTICE)


def test_single_precision_comes_back_within_6e_8(path) -> None:
    write_ildg(path, LINKS, Box.whole(LATTICE), LATTICE, precision=32)
    links = open_configuration(path).read(dtype=np.complex128)
    for part in (np.real, np.imag):
        assert np.abs(part(links) / part(LINKS) - 1).max() <= 6e-8


def test_written_file_holds_all_records_in_order(path) -> None:
    write_ildg(
        path,
        LINKS,
        Box.whole(LATTICE),
        LATTICE,
        plaquette=plaquette(LINKS),
        link_trace=link_trace(LINKS),
        metadata={"trajectory": 12, "rng": "philox 7 3"},
    )
    data, at, found = path.read_bytes(), 0, {}
    flags = []
    while at < len(data):
        magic, version, flag, length = struct.unpack(">IHHQ", data[at : at + 16])
        assert (magic, version) == (0x456789AB, 1)
        found[data[at + 16 : at + 144].rstrip(b"\0").decode()] = data[at + 144 : at + 144 + length]
        flags.append(flag)
        at += 144 + length + -length % 8
    assert at == len(data)
    assert list(found) == [
        "scidac-private-file-xml",
        "scidac-file-xml",
        "scidac-private-record-xml",
        "scidac-record-xml",
        "ildg-format",
        "ildg-binary-data",
        "scidac-checksum",
        "jali-info",
    ]
    assert flags == [0x8000, 0x4000, 0x8000, 0, 0, 0, 0x4000, 0xC000]
    assert found["ildg-binary-data"] == DATA
    a, b = scidac_checksum(DATA, 576)
    assert f"<suma>{a:08x}</suma><sumb>{b:08x}</sumb>".encode() in found["scidac-checksum"]
    assert b"<dims>3 2 4 5 </dims>" in found["scidac-private-file-xml"]
    assert b"<typesize>144</typesize><datacount>4</datacount>" in found["scidac-private-record-xml"]
    info = json.loads(found["jali-info"])
    assert info["metadata"] == {"trajectory": "12", "rng": "philox 7 3"}
    assert info["created"].endswith("Z")
    assert info["writer"].startswith("jali")
    file = open_configuration(path)
    assert (file.plaquette, file.link_trace) == (plaquette(LINKS), link_trace(LINKS))
    assert file.metadata == info["metadata"]


def test_metadata_survive_a_change_of_format_and_back(path, tmp_path) -> None:
    from jali.io import write_nersc

    box, kept = Box.whole(LATTICE), {"ENSEMBLE_ID": "a", "CREATION_DATE": "2001-01-01"}
    write_nersc(path, LINKS, box, LATTICE, plaquette=0, link_trace=0, metadata=kept)
    first = open_configuration(path).metadata
    write_ildg(tmp_path / "b", LINKS, box, LATTICE, metadata=first)
    write_nersc(
        path,
        LINKS,
        box,
        LATTICE,
        plaquette=0,
        link_trace=0,
        metadata=open_configuration(tmp_path / "b").metadata,
    )
    assert open_configuration(path).metadata == first
    assert first.items() >= kept.items()


@pytest.mark.parametrize(
    "arguments",
    [
        {"precision": 16},
        {"plaquette": float("inf")},
        {"metadata": {"plaquette": 1}},
        {"links": LINKS[..., :2]},
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_appears(path, arguments) -> None:
    with pytest.raises(ParameterError):
        write_ildg(path, **{"links": LINKS, "box": Box.whole(LATTICE), "extents": LATTICE, **arguments})
    assert list(path.parent.iterdir()) == []
