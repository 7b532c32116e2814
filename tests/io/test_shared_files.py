"""Real configurations of other programs, beside the checkout."""

import numpy as np
import pytest
from handmade import link_trace, nersc_checksum, on_ranks, plaquette, scidac_checksum, shared_file

from jali.errors import FileFormatError
from jali.io import Box, open_configuration, unitarity_deviation

NERSC, ILDG, BARE = "nersc.l8t4b3360", "ildg.l8t4b3360", "conf_00000100_4444nc2.ildg"


def independently(data: bytes, offset: int, lattice: tuple[int, ...], n: int) -> np.ndarray:
    """Big-endian double-precision links at an offset, as an array (t, z, y, x, 4, n, n)."""
    count = int(np.prod(lattice)) * 8 * n * n
    return (
        np.frombuffer(data, ">f8", count, offset).astype(float).view(complex).reshape(*lattice[::-1], 4, n, n)
    )


@pytest.mark.parametrize("name", [NERSC, ILDG])
def test_plaquette_of_the_real_su3_files_is_0_503866446950(name: str) -> None:
    file = open_configuration(shared_file(name))
    links = file.read()
    assert file.extents == (8, 8, 8, 4)
    assert (file.group_size, file.precision, file.byte_order) == (3, 64, "big")
    assert plaquette(links) == pytest.approx(0.503866446950, abs=5e-13)
    assert link_trace(links) == pytest.approx(0.005406083858, abs=5e-13)
    assert unitarity_deviation(links) < 1e-14
    assert file.header_mismatch(plaquette(links), link_trace(links)) is None


def test_plaquette_of_the_real_su2_file_is_0_668474886836() -> None:
    file = open_configuration(shared_file(BARE), lattice=(4, 4, 4, 4), group="SU2")
    links = file.read()
    assert (file.group_size, file.precision, file.checksum_kind) == (2, 64, None)
    assert plaquette(links) == pytest.approx(0.668474886836, abs=5e-13)
    assert link_trace(links) == pytest.approx(0.0203990788, abs=5e-11)


def test_real_nersc_file_is_read_as_an_independent_reader_reads_it() -> None:
    path = shared_file(NERSC)
    data = path.read_bytes()
    offset = data.index(b"END_HEADER\n") + 11
    file = open_configuration(path)
    assert np.array_equal(file.read(), independently(data, offset, (8, 8, 8, 4), 3))
    assert file.checksum == (nersc_checksum(data[offset:]),) == (0xB379560A,)
    assert (file.plaquette, file.link_trace) == (0.5038664469, 0.005406083858)


def test_real_ildg_file_is_read_as_an_independent_reader_reads_it() -> None:
    path = shared_file(ILDG)
    data = path.read_bytes()
    file = open_configuration(path)
    assert np.array_equal(file.read(), independently(data, 656, (8, 8, 8, 4), 3))
    assert file.checksum == scidac_checksum(data[656 : 656 + 1179648], 576) == (0x10D0EA1A, 0xA6A1B3B8)
    assert file.metadata["ildg-data-lfn"].startswith("mc://ldg///")


def test_real_bare_file_is_read_as_an_independent_reader_reads_it() -> None:
    path = shared_file(BARE)
    links = open_configuration(path, lattice=(4, 4, 4, 4), group=2, precision=64).read()
    assert np.array_equal(links, independently(path.read_bytes(), 144, (4, 4, 4, 4), 2))


def test_real_bare_file_needs_the_lattice_and_refuses_a_wrong_one() -> None:
    path = shared_file(BARE)
    with pytest.raises(FileFormatError, match="give it"):
        open_configuration(path)
    with pytest.raises(FileFormatError, match="65536 bytes"):
        open_configuration(path, lattice=(4, 4, 4, 4), group="SU3")
    with pytest.raises(FileFormatError, match="in 32 bits"):
        open_configuration(path, lattice=(4, 4, 4, 4), group="SU2", precision=32)
    twice = open_configuration(path, lattice=(8, 4, 4, 4), group="SU2")  # fits as single precision
    with pytest.raises(FileFormatError, match="wrong lattice, group or precision"):
        twice.read()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", [NERSC, ILDG])
def test_real_files_are_read_alike_by_several_ranks(name: str, ranks: int) -> None:
    path = shared_file(name)
    whole = open_configuration(path).read()
    cuts = [8 * r // ranks for r in range(ranks + 1)]

    def part(group):
        box = Box((0, cuts[group.rank], 0, 0), (8, cuts[group.rank + 1] - cuts[group.rank], 8, 4))
        return open_configuration(path, ranks=group).read(box)

    assert np.array_equal(np.concatenate(on_ranks(ranks, part), axis=2), whole)
