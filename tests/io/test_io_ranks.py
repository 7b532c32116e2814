"""Several ranks, simulated by threads: identical files, identical reads, identical errors, no hanging."""

import datetime
import errno
import os

import numpy as np
import pytest
from handmade import cut_out, ildg_file, nersc_file, on_ranks, product_boxes, random_links

import jali.io.boxes
import jali.io.formats.ildg
from jali.errors import FileFormatError, LayoutError, ParameterError, RankError
from jali.io import (
    Box,
    RankGroup,
    SingleRank,
    open_checkpoint,
    open_configuration,
    write_checkpoint,
    write_ildg,
    write_nersc,
)
from jali.io.parallel import together

LATTICE = (5, 4, 3, 7)
LINKS = random_links(LATTICE)
WHOLE = Box.whole(LATTICE)
CUTS = {
    2: [[2], [], [], []],
    3: [[], [], [], [1, 3]],
    5: None,  # no product of cuts
    6: [[1], [], [], [2, 3]],
    8: [[3], [1], [2], []],
}


def boxes(ranks: int) -> list[Box]:
    if CUTS[ranks] is not None:
        return [Box(*b) for b in product_boxes(LATTICE, CUTS[ranks])]
    return [
        Box((0, 0, 0, 0), (5, 4, 3, 2)),
        Box((0, 0, 0, 2), (2, 4, 3, 5)),
        Box((2, 0, 0, 2), (3, 1, 3, 5)),
        Box((2, 1, 0, 2), (3, 3, 2, 5)),
        Box((2, 1, 2, 2), (3, 3, 1, 5)),
    ]


def part(box: Box, field: np.ndarray = LINKS) -> np.ndarray:
    return cut_out(field, box.origin, box.extents)


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2020, 2, 29, 12, 0, 0, tzinfo=tz)


WRITERS = {
    "nersc": lambda path, box, links, ranks: write_nersc(
        path,
        links,
        box,
        LATTICE,
        plaquette=0.1,
        link_trace=0.2,
        metadata={"CREATION_DATE": "now"},
        ranks=ranks,
    ),
    "nersc two rows single": lambda path, box, links, ranks: write_nersc(
        path,
        links,
        box,
        LATTICE,
        plaquette=0.1,
        link_trace=0.2,
        rows=2,
        precision=32,
        metadata={"CREATION_DATE": "now"},
        ranks=ranks,
    ),
    "ildg": lambda path, box, links, ranks: write_ildg(path, links, box, LATTICE, ranks=ranks),
    "ildg single": lambda path, box, links, ranks: write_ildg(
        path, links, box, LATTICE, precision=32, ranks=ranks
    ),
}


@pytest.mark.parametrize("chunk", [1000, 1 << 22])
@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("name", WRITERS)
def test_files_are_bit_identical_for_any_number_of_ranks(tmp_path, monkeypatch, name, size, chunk) -> None:
    monkeypatch.setattr(jali.io.boxes, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(jali.io.formats.ildg, "datetime", FixedDate)
    WRITERS[name](tmp_path / "one", WHOLE, LINKS, SingleRank())

    def write_and_read(ranks):
        box = boxes(size)[ranks.rank]
        WRITERS[name](tmp_path / "many", box, part(box), ranks)
        links = open_configuration(tmp_path / "many", ranks=ranks).read(box)
        return np.array_equal(links, part(box, one))

    one = open_configuration(tmp_path / "one").read()
    assert on_ranks(size, write_and_read) == [True] * size
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["many", "one"]


@pytest.mark.parametrize("size", CUTS)
def test_checkpoints_written_by_many_ranks_are_read_by_one_and_the_other_way_round(tmp_path, size) -> None:
    field = np.random.default_rng(0).normal(size=(*LATTICE[::-1], 3)).astype(np.float32)

    def write(ranks):
        box = boxes(size)[ranks.rank]
        write_checkpoint(
            tmp_path / "many",
            LATTICE,
            box,
            {"U": part(box), "phi": part(box, field)},
            rng={"c": 1},
            ranks=ranks,
        )

    assert on_ranks(size, write) == [None] * size
    write_checkpoint(tmp_path / "one", LATTICE, WHOLE, {"U": LINKS, "phi": field}, rng={"c": 1})
    many, one = open_checkpoint(tmp_path / "many"), open_checkpoint(tmp_path / "one")
    for name, expected in (("U", LINKS), ("phi", field)):
        assert np.array_equal(many.read(name), expected)
    contents = []
    for path in (tmp_path / "many", tmp_path / "one"):
        contents.append({f.name: f.read_bytes() for f in path.glob("data-*/*")})
    assert contents[0] == contents[1]

    def read(ranks):
        box = boxes(size)[ranks.rank]
        checkpoint = open_checkpoint(one.path, ranks=ranks)
        return np.array_equal(checkpoint.read("U", box), part(box)) and checkpoint.rng == {"c": 1}

    assert on_ranks(size, read) == [True] * size


def same_error(results: list, kind: type[Exception], text: str) -> None:
    """Every rank raised the same error."""
    assert {type(result) for result in results} == {kind}
    assert len({str(result) for result in results}) == 1
    assert text in str(results[0])


def test_damage_in_one_part_stops_every_rank_with_the_same_message(tmp_path) -> None:
    path = tmp_path / "conf"
    data = bytearray(ildg_file(LINKS))
    at = data.index(b"ildg-binary-data") + 128 + 3 * 576
    data[at] ^= 1
    path.write_bytes(data)
    read = lambda ranks: open_configuration(path, ranks=ranks).read(boxes(3)[ranks.rank])  # noqa: E731
    same_error(on_ranks(3, read), FileFormatError, "scidac checksum of the payload")
    data[at : at + 8] = b"\x7f\xf0" + bytes(6)
    path.write_bytes(data)
    same_error(on_ranks(3, read), FileFormatError, "(3, 0, 0, 0), direction 0")
    path.write_bytes(data[:-1000])
    same_error(on_ranks(3, read), FileFormatError, "truncated")
    path.unlink()
    same_error(on_ranks(3, read), FileNotFoundError, "cannot read")


def test_a_box_outside_the_lattice_on_one_rank_stops_all(tmp_path) -> None:
    path = tmp_path / "conf"
    path.write_bytes(nersc_file(LINKS))

    def read(ranks):
        box = boxes(3)[ranks.rank]
        if ranks.rank == 1:
            box = Box((0, 0, 0, 6), (5, 4, 3, 2))
        return open_configuration(path, ranks=ranks).read(box)

    same_error(on_ranks(3, read), LayoutError, "direction 3 would end at 8")


@pytest.mark.parametrize("name", WRITERS)
def test_bad_links_on_one_rank_leave_nothing_behind(tmp_path, name) -> None:
    path = tmp_path / "conf"
    path.write_bytes(b"old")

    def write(ranks):
        box = boxes(5)[ranks.rank]
        links = part(box).copy()
        if ranks.rank == 3:
            links[2, 1, 0, 1, 3, 0, 0] = np.nan
        WRITERS[name](path, box, links, ranks)

    same_error(on_ranks(5, write), ParameterError, "(x, y, z, t) = (3, 1, 1, 4), direction 3")
    assert os.listdir(tmp_path) == ["conf"]
    assert path.read_bytes() == b"old"


def test_boxes_that_leave_a_gap_or_overlap_are_not_written(tmp_path) -> None:
    for wrong in (Box((0, 0, 0, 0), (2, 4, 3, 6)), Box((0, 0, 0, 0), (3, 4, 3, 7))):

        def write(ranks, wrong=wrong):
            box = wrong if ranks.rank == 0 else boxes(2)[ranks.rank]
            write_ildg(tmp_path / "conf", part(box), box, LATTICE, ranks=ranks)

        same_error(on_ranks(2, write), LayoutError, "exactly once")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_on_one_rank_stops_all_and_keeps_the_old_file(tmp_path, monkeypatch) -> None:
    path, checkpoint = tmp_path / "conf", tmp_path / "checkpoint"
    path.write_bytes(b"old")
    write_checkpoint(checkpoint, LATTICE, WHOLE, {"U": LINKS})
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    real = os.pwrite

    def full(fd, data, offset):
        if offset > 80_000:  # only the last rank's part lies there: it begins at site 180 of 576 bytes
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)

    def write(ranks):
        box = boxes(3)[ranks.rank]
        write_ildg(path, part(box), box, LATTICE, ranks=ranks)

    results = on_ranks(3, write)
    same_error(results, OSError, f"cannot write {path}: No space left on device")
    assert all(result.errno == errno.ENOSPC for result in results)

    def save(ranks):
        box = boxes(3)[ranks.rank]
        write_checkpoint(checkpoint, LATTICE, box, {"U": part(box)}, state={"new": True}, ranks=ranks)

    same_error(on_ranks(3, save), OSError, f"cannot write checkpoint {checkpoint}: No space left on device")
    monkeypatch.undo()
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert path.read_bytes() == b"old"
    assert np.array_equal(open_checkpoint(checkpoint).read("U"), LINKS)


def test_a_defect_on_one_rank_becomes_a_rank_error_on_all(tmp_path) -> None:
    def work(ranks):
        with together(ranks):
            if ranks.rank >= 1:
                raise ZeroDivisionError(f"oops {ranks.rank}")

    same_error(on_ranks(3, work), RankError, "rank 1 failed: ZeroDivisionError: oops 1")
    with pytest.raises(ZeroDivisionError):  # alone, a defect shows as what it is
        work_alone()


def work_alone() -> None:
    with together(SingleRank()):
        raise ZeroDivisionError


def test_ranks_that_see_different_files_raise(tmp_path) -> None:
    for i in range(2):
        (tmp_path / f"conf{i}").write_bytes(nersc_file(random_links((2, 2, 2, 2), seed=i)))
    results = on_ranks(2, lambda ranks: open_configuration(tmp_path / f"conf{ranks.rank}", ranks=ranks))
    assert all("different files" in str(result) for result in results)


def test_ranks_that_disagree_on_the_state_raise(tmp_path) -> None:
    def save(ranks):
        box = boxes(2)[ranks.rank]
        write_checkpoint(tmp_path / "c", LATTICE, box, {"U": part(box)}, state={"a": ranks.rank}, ranks=ranks)

    same_error(on_ranks(2, save), ParameterError, "disagree")
    assert os.listdir(tmp_path) == []


def test_single_rank_is_a_rank_group() -> None:
    alone: RankGroup = SingleRank()
    alone.barrier()
    assert isinstance(alone, RankGroup)
    assert (alone.rank, alone.size, alone.gather_bytes(b"x"), alone.broadcast_bytes(b"y", 0)) == (
        0,
        1,
        [b"x"],
        b"y",
    )
