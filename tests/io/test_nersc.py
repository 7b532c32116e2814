"""NERSC files of all kinds, made by hand."""

import numpy as np
import pytest
from handmade import (
    link_trace,
    nersc_checksum,
    nersc_file,
    nersc_header,
    payload,
    plaquette,
    random_links,
)

from jali.errors import FileFormatError, ParameterError
from jali.io import Box, open_configuration, recognise, write_nersc

LATTICE = (3, 2, 4, 5)
LINKS = random_links(LATTICE)
REALS = [">f4", "<f4", ">f8", "<f8"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lat.17"


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("real", REALS)
def test_every_storage_is_read(path, real, rows) -> None:
    path.write_bytes(nersc_file(LINKS, real, rows))
    assert recognise(path) == "nersc"
    file = open_configuration(path)
    links = file.read()
    assert file.extents == LATTICE
    assert (file.rows, file.precision, file.checksum_kind) == (rows, 8 * int(real[2]), "nersc")
    assert links.dtype == (np.complex64 if real[2] == "4" else np.complex128)
    stored = LINKS.astype(links.dtype)
    assert np.array_equal(links[..., :rows, :], stored[..., :rows, :])
    assert np.abs(links - LINKS).max() < (3e-7 if real[2] == "4" else 1e-15)
    assert file.header_mismatch(plaquette(links), link_trace(links)) is None


@pytest.mark.parametrize("real", REALS)
def test_unspecific_ieee_finds_the_byte_order_by_itself(path, real) -> None:
    path.write_bytes(nersc_file(LINKS, real, FLOATING_POINT=f"IEEE{8 * int(real[2])}"))
    file = open_configuration(path)
    assert file.byte_order == {">": "big", "<": "little"}[real[0]]
    assert np.abs(file.read() - LINKS).max() < 1e-7


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("rows", [2, 3])
def test_unit_links_in_unspecific_ieee_are_read(path, real, rows) -> None:
    cold = np.broadcast_to(np.eye(3, dtype=complex), LINKS.shape)
    path.write_bytes(nersc_file(cold, real, rows, FLOATING_POINT=None, DATATYPE=None))
    assert np.array_equal(open_configuration(path).read(), cold)


def test_any_key_but_the_dimensions_may_be_missing(path) -> None:
    keys = [key for key in nersc_header(LINKS, payload(LINKS)) if not key.startswith("DIMENSION")]
    for key in keys:
        path.write_bytes(nersc_file(LINKS, **{key: None}))
        assert np.array_equal(open_configuration(path).read(), LINKS), key
    path.write_bytes(nersc_file(LINKS, **dict.fromkeys(keys)))
    file = open_configuration(path)
    assert np.array_equal(file.read(), LINKS)
    assert (file.plaquette, file.link_trace, file.checksum_kind) == (None, None, None)
    assert file.header_mismatch(0.1, 0.2) is None


def test_missing_dimensions_can_be_given(path) -> None:
    path.write_bytes(nersc_file(LINKS, DIMENSION_2=None))
    with pytest.raises(FileFormatError, match="DIMENSION_2"):
        open_configuration(path)
    assert np.array_equal(open_configuration(path, lattice=LATTICE).read(), LINKS)
    with pytest.raises(FileFormatError, match="DIMENSION_1 is 3, but 4"):
        open_configuration(path, lattice=(4, 2, 3, 5))


def test_keys_in_any_order_with_blanks_tabs_and_empty_lines_are_read(path) -> None:
    data = payload(LINKS, "<f4", 2)
    lines = list(nersc_header(LINKS, data, "<f4", 2).items())[::-1]
    text = "BEGIN_HEADER \r\n\n" + "".join(f"  {k}\t =   {v} \r\n" for k, v in lines) + " END_HEADER\t\n"
    path.write_bytes(text.encode() + data)
    file = open_configuration(path)
    assert np.abs(file.read() - LINKS).max() < 3e-7
    assert file.metadata == {"ENSEMBLE_ID": "test", "SEQUENCE_NUMBER": "17"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATATYPE": "4D_SU2_GAUGE"}, "DATATYPE"),
        ({"FLOATING_POINT": "IBM32"}, "FLOATING_POINT"),
        ({"DIMENSION_1": "4"}, r"truncated: the payload should have 92160 bytes but has 69120"),
        ({"DIMENSION_4": "4"}, r"13824 bytes too many from offset"),
        ({"DIMENSION_1": "-3"}, "positive integer"),
        ({"DIMENSION_1": "0"}, "positive integer"),
        ({"DIMENSION_1": "3.5"}, "positive integer"),
        ({"DIMENSION_1": "1" + 17 * "0"}, "truncated"),
        ({"CHECKSUM": "xyz"}, "hexadecimal"),
        ({"CHECKSUM": "123456789"}, "hexadecimal"),
        ({"PLAQUETTE": "nan"}, "finite"),
        ({"LINK_TRACE": "1e999"}, "finite"),
        ({"FLOATING_POINT": "IEEE32BIG"}, "too many"),
        ({"DATATYPE": "4D_SU3_GAUGE"}, "too many"),
        ({"DATATYPE": None, "FLOATING_POINT": None, "DIMENSION_1": "4"}, "fit no storage"),
    ],
)
def test_impossible_headers_are_refused(path, changes, message) -> None:
    path.write_bytes(nersc_file(LINKS, **changes))
    with pytest.raises(FileFormatError, match=message) as caught:
        open_configuration(path).read()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"END_HEADER\n", b"", "no line END_HEADER"),
        (b"BEGIN_HEADER\n", b"BEGIN_HEADERS\n", "BEGIN_HEADER alone"),
        (b"ENSEMBLE_ID =", b"ENSEMBLE_ID :", "line 13 .* KEY = value"),
        (b"ENSEMBLE_ID = test", b"ENSEMBLE_ID = \xff", "not text"),
        (b"BOUNDARY_1 = PERIODIC", b"DIMENSION_1 = 4", "an earlier line 3"),
    ],
)
def test_damaged_headers_are_refused(path, old, new, message) -> None:
    data = nersc_file(LINKS)
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=message):
        open_configuration(path)


def test_wrong_expectations_are_refused(path) -> None:
    path.write_bytes(nersc_file(LINKS))
    for arguments, message in (
        ({"lattice": (3, 2, 5, 4)}, r"lattice \(3, 2, 4, 5\), but \(3, 2, 5, 4\)"),
        ({"group": "SU2"}, "N 3, but 2"),
        ({"precision": 32}, "precision 64, but 32"),
    ):
        with pytest.raises(FileFormatError, match=message):
            open_configuration(path, **arguments)
    open_configuration(path, lattice=LATTICE, group="su(3)", precision=64)


@pytest.mark.parametrize(
    "arguments",
    [{"lattice": (4, 4, 4)}, {"lattice": (4, 4, 4, 0)}, {"group": "SO3"}, {"group": "U2"}, {"precision": 16}],
)
def test_impossible_arguments_are_refused(path, arguments) -> None:
    path.write_bytes(nersc_file(LINKS))
    with pytest.raises(ParameterError):
        open_configuration(path, **arguments)


def test_header_values_far_from_the_links_are_reported(path) -> None:
    plaq, trace = plaquette(LINKS), link_trace(LINKS)
    path.write_bytes(nersc_file(LINKS))
    file = open_configuration(path)
    assert file.header_mismatch(plaq + 5e-10, trace - 5e-10) is None
    assert "plaquette" in file.header_mismatch(plaq + 2e-9, trace)
    assert "link trace" in file.header_mismatch(plaq, trace + 2e-9)
    assert "plaquette" in file.header_mismatch(float("nan"), trace)
    path.write_bytes(nersc_file(LINKS, ">f4"))
    single = open_configuration(path)
    assert single.header_mismatch(plaq + 9e-6, trace) is None
    assert single.header_mismatch(plaq + 2e-5, trace) is not None


def test_header_values_are_compared_only_as_far_as_they_are_printed(path) -> None:
    plaq = plaquette(LINKS)
    path.write_bytes(nersc_file(LINKS, PLAQUETTE=f"{plaq:.5e}", LINK_TRACE=None))
    file = open_configuration(path)
    digit = 10.0 ** (np.floor(np.log10(abs(plaq))) - 5)
    assert file.header_mismatch(plaq + 0.4 * digit, 0) is None
    assert file.header_mismatch(plaq + 2 * digit, 0) is not None
    path.write_bytes(nersc_file(LINKS, PLAQUETTE="1", LINK_TRACE=None))
    assert open_configuration(path).header_mismatch(1.0, 0) is None
    assert open_configuration(path).header_mismatch(0.9, 0) is not None


def test_plaquette_normalised_to_three_is_named_as_such(path) -> None:
    plaq = plaquette(LINKS)
    path.write_bytes(nersc_file(LINKS, PLAQUETTE=f"{3 * plaq:.12f}"))
    assert "another normalisation" in open_configuration(path).header_mismatch(plaq, link_trace(LINKS))


def test_a_boundary_that_links_do_not_have_is_a_warning(path) -> None:
    path.write_bytes(nersc_file(LINKS, BOUNDARY_4="ANTIPERIODIC"))
    (warning,) = open_configuration(path).warnings
    assert "BOUNDARY_4 is 'ANTIPERIODIC'; the links are taken as periodic" in warning
    path.write_bytes(nersc_file(LINKS, BOUNDARY_4="periodic"))
    assert open_configuration(path).warnings == ()


def write(path, links=LINKS, plaquette=0.5, link_trace=0.1, **arguments) -> None:
    write_nersc(
        path, links, Box.whole(LATTICE), LATTICE, plaquette=plaquette, link_trace=link_trace, **arguments
    )


def test_round_trip_in_double_precision_is_bit_identical(path) -> None:
    write(path)
    assert open_configuration(path).read().tobytes() == LINKS.tobytes()


def test_written_file_is_what_the_format_says(path) -> None:
    write(
        path,
        plaquette=plaquette(LINKS),
        rows=2,
        precision=32,
        metadata={"ensemble_id": "b6", "RNG_STATE": "1 2 3", "BETA": 6.0},
    )
    head, _, data = path.read_bytes().partition(b"END_HEADER\n")
    assert data == payload(LINKS, ">f4", 2)
    lines = head.decode().split("\n")
    assert lines[0] == "BEGIN_HEADER"
    header = dict(line.split(" = ") for line in lines[1:-1])
    assert header["CHECKSUM"] == f"{nersc_checksum(data):08x}"
    assert [header[f"DIMENSION_{d}"] for d in (1, 2, 3, 4)] == ["3", "2", "4", "5"]
    assert header["DATATYPE"] == "4D_SU3_GAUGE"
    assert header["FLOATING_POINT"] == "IEEE32BIG"
    assert header["HDR_VERSION"] == header["STORAGE_FORMAT"] == "1.0"
    assert float(header["PLAQUETTE"]) == pytest.approx(plaquette(LINKS), abs=1e-12)
    assert header["ENSEMBLE_ID"] == "b6"
    assert header["BETA"] == "6.0"
    assert header["CREATOR"].startswith("jali")
    assert header["CREATION_DATE"].endswith("Z")
    file = open_configuration(path)
    assert file.metadata["RNG_STATE"] == "1 2 3"


def test_two_rows_come_back_within_1e_15_and_single_precision_within_6e_8(path) -> None:
    write(path, rows=2)
    assert np.abs(open_configuration(path).read() - LINKS).max() < 1e-15
    write(path, precision=32)
    single = open_configuration(path).read(dtype=np.complex128)
    for part in (np.real, np.imag):
        assert np.abs(part(single) / part(LINKS) - 1).max() <= 6e-8


def test_single_precision_links_are_written_from_any_memory_layout(path) -> None:
    links = np.asfortranarray(LINKS.astype(np.complex64))
    write(path, links, precision=32)
    assert np.array_equal(open_configuration(path).read(), links)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 1}, "rows"),
        ({"precision": 16}, "16 bits"),
        ({"plaquette": float("nan")}, "plaquette"),
        ({"metadata": {"CHECKSUM": "0"}}, "CHECKSUM"),
        ({"metadata": {"A KEY": "0"}}, "A KEY"),
        ({"metadata": {"A": "x\nEND_HEADER"}}, "one line"),
        ({"metadata": {"A": "β"}}, "ASCII"),
        ({"metadata": {"A": "x" * 40000}}, "too long"),
        ({"links": LINKS[:, :, :, :2]}, r"box needs \(5, 4, 2, 3, 4, 3, 3\)"),
        ({"links": LINKS.real}, "float64"),
        ({"links": random_links(LATTICE, 2)}, "SU\\(3\\) only"),
        ({"links": 1.001 * LINKS, "rows": 2}, "two rows would lose"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_appears(path, arguments, message) -> None:
    with pytest.raises(ParameterError, match=message):
        write(path, **arguments)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(("value", "precision"), [(np.nan, 64), (np.inf, 64), (1e200, 32)])
def test_links_that_are_not_finite_in_the_file_are_not_written(path, value, precision) -> None:
    links = LINKS.copy()
    links[4, 3, 1, 2, 1, 0, 2] = value
    with pytest.raises(ParameterError, match=r"\(2, 1, 3, 4\), direction 1"):
        write(path, links, precision=precision)
    assert list(path.parent.iterdir()) == []
