"""Whatever a file holds, the readers answer with links or with `FileFormatError`, in bounded memory."""

import tracemalloc

import numpy as np
import pytest
from handmade import (
    checksum_xml,
    ildg_file,
    lime_record,
    milc_file,
    nersc_file,
    payload,
    private_file_xml,
    private_record_xml,
    random_links,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jali.errors import FileFormatError
from jali.io import Box, open_configuration, recognise, write_ildg

LATTICE = (2, 1, 2, 1)
LINKS = random_links(LATTICE)
SLACK = 2 << 20
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))


def scidac_only() -> bytes:
    data = payload(LINKS)
    return b"".join(
        (
            lime_record("scidac-private-file-xml", private_file_xml(LINKS), 0x8000),
            lime_record("scidac-private-record-xml", private_record_xml(LINKS), 0),
            lime_record("scidac-binary-data", data, 0),
            lime_record("scidac-checksum", checksum_xml(data, 576), 0x4000),
        )
    )


def ours(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("ours") / "conf"
    write_ildg(path, LINKS, Box.whole(LATTICE), LATTICE, plaquette=0.5, metadata={"a": 1})
    return path.read_bytes()


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> list[bytes]:
    """One valid file of every kind."""
    return [
        nersc_file(LINKS),
        nersc_file(LINKS, "<f4", 2, FLOATING_POINT=None, DATATYPE=None),
        nersc_file(LINKS, CHECKSUM=None),
        ildg_file(LINKS),
        ildg_file(LINKS, ">f4", lime_record("xlf-info", b"plaquette = 5.0e-01\n beta = 3, mu = 4")),
        scidac_only(),
        lime_record("ildg-binary-data", payload(LINKS)),
        ours(tmp_path_factory),
        milc_file(LINKS),
        milc_file(LINKS, ">"),
    ]


def answer(path, content: bytes, **arguments) -> np.ndarray | None:
    """Links or None, whichever the reader gives; memory beyond a small bound is a failure."""
    path.write_bytes(content)
    links, complaint = None, str(path)
    tracemalloc.start()
    try:
        recognise(path)
        links = open_configuration(path, **arguments).read()
    except FileFormatError as error:
        complaint = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(path) in complaint
    assert peak < SLACK
    return links


STARTS = st.sampled_from(
    [
        b"",
        b"BEGIN_HEADER",
        b"BEGIN_HEADER\nDIMENSION_1 = ",
        b"\x45\x67\x89\xab\x00\x01",
        b"\x45\x67\x89\xab\x00\x01\xc0\x00" + bytes(8) + b"ildg-binary-data".ljust(128, b"\0"),
        b"\x87\x4e\x00\x00",
        b"\x00\x00\x4e\x87",
        b"\x04\x00\x00\x00" * 4,
    ]
)
KNOWN = st.sampled_from([{}, {"lattice": LATTICE}, {"lattice": LATTICE, "group": 3}])


def arbitrary(path, start: bytes, rest: bytes, known: dict) -> None:
    answer(path, start + rest, **known)


@QUICK
@given(start=STARTS, rest=st.binary(max_size=400), known=KNOWN)
def test_arbitrary_bytes(tmp_path, start, rest, known) -> None:
    arbitrary(tmp_path / "conf", start, rest, known)


@pytest.mark.full
@LONG
@given(start=STARTS, rest=st.binary(max_size=4000), known=KNOWN)
def test_arbitrary_bytes_at_length(tmp_path, start, rest, known) -> None:
    arbitrary(tmp_path / "conf", start, rest, known)


def mutate(path, valid: list[bytes], data: st.DataObject) -> None:
    """Change a valid file in a few places, mostly in its headers."""
    which = data.draw(st.integers(0, len(valid) - 1))
    content = bytearray(valid[which])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, len(content)), st.integers(0, min(700, len(content)))))
        kind = data.draw(st.sampled_from(["set", "insert", "delete", "cut", "digit", "copy"]))
        if kind == "set":
            content[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=12))
        elif kind == "delete":
            del content[at : at + data.draw(st.integers(1, 20))]
        elif kind == "cut":
            del content[at:]
        elif kind == "copy":
            content[at:at] = content[data.draw(st.integers(0, len(content))) :][
                : data.draw(st.integers(1, 800))
            ]
        else:
            digits = [i for i, c in enumerate(content[:1200]) if chr(c).isdigit()]
            if digits:
                i = data.draw(st.sampled_from(digits))
                content[i : i + 1] = data.draw(
                    st.text("0123456789-+.eE \u0663", min_size=0, max_size=19)
                ).encode()
    known = data.draw(KNOWN)
    links = answer(path, bytes(content), **known)
    if links is not None and links.shape == LINKS.shape:
        # Only a file without checksum may have lost a bit, and then its links still have rows of norm 1.
        norms = np.linalg.norm(links, axis=-1)
        assert np.abs(norms - 1).max() < 0.01


@QUICK
@given(data=st.data())
def test_mutated_files(tmp_path, valid, data) -> None:
    mutate(tmp_path / "conf", valid, data)


@pytest.mark.full
@LONG
@given(data=st.data())
def test_mutated_files_at_length(tmp_path, valid, data) -> None:
    mutate(tmp_path / "conf", valid, data)


XML = st.recursive(
    st.text(max_size=8)
    | st.sampled_from(["4", "64", "su3gauge", "-1", "1" * 30, "&lt;", "&amp", "\x00", "<!--"]),
    lambda inner: st.tuples(
        st.sampled_from(["lx", "ly", "lz", "lt", "precision", "field", "suma", "a:b", "dims", "x" * 50]),
        inner,
    ).map(lambda p: f"<{p[0]}>{p[1]}</{p[0]}>"),
    max_leaves=3,
)


@QUICK
@given(
    kind=st.sampled_from(
        ["ildg-format", "scidac-private-file-xml", "scidac-checksum", "jali-info", "xlf-info"]
    ),
    head=st.sampled_from(
        ["", "<?xml version='1.0'?>", "<?xml version='1.0' encoding='utf-16'?>", "\n\n<?xml"]
    ),
    body=st.lists(XML, max_size=6).map("".join),
)
def test_arbitrary_text_records(tmp_path, kind, head, body) -> None:
    text = f"{head}<ildgFormat>{body}</ildgFormat>".encode("utf-8", "surrogatepass")
    content = lime_record(kind, text) + lime_record("ildg-binary-data", payload(LINKS))
    answer(tmp_path / "conf", content, lattice=LATTICE)


@pytest.mark.parametrize(
    "text",
    [
        b"<a>" * 60_000,
        b"<a>" * 30_000 + b"</a>" * 30_000,
        b"[" * 200_000,
        b'{"metadata": {}, "plaquette": ' + b"9" * 100_000 + b"}",
        b'{"metadata": {}, "plaquette": [1]}',
        b'{"metadata": {"\\ud800": "\\ud800"}}',
        b"=" * 100_000 + b"a=" * 50_000 + b",=" * 1000,
        b"\xff\xfe" * 100,
    ],
)
@pytest.mark.parametrize(
    "kind", ["ildg-format", "scidac-private-file-xml", "jali-info", "xlf-info", "ildg-data-lfn"]
)
def test_pathological_text_records(tmp_path, kind, text) -> None:
    path = tmp_path / "conf"
    path.write_bytes(lime_record(kind, text) + lime_record("ildg-binary-data", payload(LINKS)))
    try:
        links = open_configuration(path, lattice=LATTICE).read()
    except FileFormatError:
        return
    assert np.array_equal(links, LINKS)
