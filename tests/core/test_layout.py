"""core/halo/layout: blocks, lanes, neighbour tables and slabs against brute force on global coordinates."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from site_numbers import Numbers

from jali._core import FieldStorage, Layout, Partition
from jali.errors import LayoutError

CASES = [  # extents, grid, lanes
    ((1,), (1,), 4),
    ((8,), (1,), 4),
    ((16,), (1,), 4),
    ((7,), (3,), 4),
    ((2, 2), (1, 1), 8),
    ((5, 3), (1, 1), 4),
    ((8, 4), (1, 2), 4),
    ((6, 7), (2, 3), 4),
    ((4, 4, 8), (1, 1, 1), 8),
    ((3, 8, 5), (1, 1, 2), 2),
    ((4, 4, 4, 4), (1, 1, 1, 1), 4),
    ((4, 4, 4, 4), (2, 1, 1, 3), 4),
    ((8, 8, 4, 6), (1, 2, 1, 1), 16),
    ((2, 3, 4, 1), (1, 1, 1, 1), 4),
    ((4, 2, 4, 2, 4), (1, 1, 1, 1, 1), 4),
    ((3, 2, 4, 2, 4), (3, 1, 1, 2, 1), 4),
    # odd halves, whose lanes are shifted
    ((6, 10), (1, 1), 2),
    ((2, 2, 2, 2), (1, 1, 1, 1), 8),
    ((6, 6, 6, 6), (1, 1, 1, 1), 8),
    ((6, 14, 5, 10), (1, 1, 1, 1), 4),
    ((6, 8, 10, 6), (1, 1, 1, 1), 16),
    ((6, 6, 9), (1, 1, 3), 2),
    ((6, 2, 6), (1, 2, 1), 4),
    ((2, 6, 2, 2, 6), (1, 1, 1, 1, 1), 16),
]


def layouts(extents, grid, lanes, tile=(), block_bits=26):
    p = Partition(extents, grid)
    return [Layout(p, rank, lanes, tile, block_bits=block_bits) for rank in range(p.nranks)]


def sites(layout):
    """[block][lane] -> global coordinates, as an array [block][lane][direction]."""
    return np.stack([layout.site_coordinates(d) for d in range(layout.ndim)], axis=2)


@pytest.mark.parametrize(("extents", "grid", "lanes"), CASES)
def test_blocks_and_lanes_cover_the_lattice_once(extents, grid, lanes):
    seen = set()
    for layout in layouts(extents, grid, lanes):
        s = sites(layout)
        for block in range(layout.nblocks):
            for lane in range(layout.lanes):
                site = tuple(int(c) for c in s[block, lane])
                assert site not in seen
                seen.add(site)
                local = [c - o for c, o in zip(site, layout.origin, strict=True)]
                assert layout.locate(local) == (block, lane)
                index = sum(c * math.prod(layout.extents[:d]) for d, c in enumerate(local))
                assert layout.box_sites[block, lane] == index
    assert len(seen) == math.prod(extents)


@pytest.mark.parametrize(("extents", "grid", "lanes"), CASES)
def test_all_lanes_of_a_block_share_the_parity_of_its_range(extents, grid, lanes):
    for layout in layouts(extents, grid, lanes):
        parity = sites(layout).sum(axis=2) % 2
        assert (parity[: layout.even_blocks] == 0).all()
        assert (parity[layout.even_blocks :] == 1).all()


def test_lanes_go_into_unsplit_directions_from_the_last_and_never_into_odd_blocks():
    (a,) = layouts((8, 8, 8, 8), (1, 1, 1, 1), 4)
    assert a.virtual_nodes == (1, 1, 2, 2)
    (b,) = layouts((8, 8, 8, 6), (1, 1, 1, 1), 4)
    assert b.virtual_nodes == (1, 2, 2, 1)  # half of 6 is odd
    (c,) = layouts((16, 3), (1, 1), 8)
    assert c.virtual_nodes == (8, 1)
    for d in layouts((8, 8, 8, 8), (1, 1, 1, 2), 4):
        assert d.virtual_nodes == (1, 2, 2, 1)
    for e in layouts((8, 8), (2, 2), 4):
        assert e.lanes == 1


def test_directions_with_odd_halves_hold_lanes_in_pairs():
    (a,) = layouts((6, 6, 6, 6), (1, 1, 1, 1), 8)
    assert a.virtual_nodes == (1, 2, 2, 2)
    assert tuple(sites(a)[0][1]) == (3, 3, 0, 0)  # half of direction 1, shifted by half of direction 0
    assert tuple(sites(a)[0][3]) == (0, 3, 3, 0)  # shifted twice: not at all
    (b,) = layouts((10, 14), (1, 1), 8)
    assert b.virtual_nodes == (1, 2)
    (c,) = layouts((10, 7, 7), (1, 1, 1), 8)
    assert c.lanes == 1  # no second direction to be shifted along
    (d,) = layouts((6, 6, 4, 6), (1, 1, 1, 1), 4)
    assert d.virtual_nodes == (1, 1, 2, 2)
    for e in layouts((6, 6, 6), (2, 1, 1), 8):
        assert e.virtual_nodes == (1, 1, 2)


@pytest.mark.parametrize("tile", [(2, 2, 2, 2), (3, 1, 4, 2), (100, 2, 4, 1)])
def test_a_tiled_order_is_another_order_of_the_same_sites(tile):
    (plain,) = layouts((6, 4, 8, 4), (1, 1, 1, 1), 4)
    (tiled,) = layouts((6, 4, 8, 4), (1, 1, 1, 1), 4, tile)
    of_plain, of_tiled = plain.box_sites[:, 0], tiled.box_sites[:, 0]
    assert sorted(of_plain) == sorted(of_tiled)
    assert tiled.even_blocks == plain.even_blocks
    for half in (slice(0, plain.even_blocks), slice(plain.even_blocks, None)):
        assert sorted(of_plain[half]) == sorted(of_tiled[half])
    assert list(of_plain) != list(of_tiled)


def ghost_sites(layout):
    """ghost block number -> [lane] global coordinates, from the meaning of the slab keys."""
    extents = layout.partition.global_extents
    split = [ranks > 1 for ranks in layout.partition.grid]
    here = sites(layout)
    lanes = {
        tuple(block[0][np.logical_not(split)]): block - block[0] for block in here
    }  # by unsplit directions
    found = {}
    for key, first, even, odd, _, _ in layout.slabs:
        ranges = []
        for d, k in enumerate(key):
            if k > 0:
                ranges.append([layout.extents[d] - 1 + k])
            elif k < 0:
                ranges.append([k])
            else:
                ranges.append(range(layout.block_extents[d]))
        order = {0: [], 1: []}
        for reverse in itertools.product(*reversed(ranges)):
            site = [(c + o) % n for c, o, n in zip(reversed(reverse), layout.origin, extents, strict=True)]
            order[sum(site) % 2].append(site)
        assert (len(order[0]), len(order[1])) == (even, odd)
        for number, site in enumerate(order[0] + order[1]):
            found[first + number] = site + lanes[tuple(np.array(site)[np.logical_not(split)])]
    return found


def check_table(layout, offset):
    extents = np.array(layout.partition.global_extents)
    here = sites(layout)
    table, wound = layout.neighbours(offset), layout.neighbours(offset, True)
    ghosts = ghost_sites(layout)
    assert (table.permutations[0] == np.arange(layout.lanes)).all()
    assert (wound.permutations[0] == np.arange(layout.lanes)).all()
    assert (wound.windings[0] == 0).all()
    assert table.classes <= 1 << (32 - layout.block_bits)
    for block in range(layout.nblocks):
        target = here[block] + np.array(offset)
        for t in (table, wound):
            entry = int(t.entries[block])
            number, kind = entry & ((1 << layout.block_bits) - 1), entry >> layout.block_bits
            source = here[number] if number < layout.nblocks else ghosts[number]
            assert (source[t.permutations[kind]] == target % extents).all()
        kind = int(wound.entries[block]) >> layout.block_bits
        assert (target // extents == wound.windings[kind].T).all()


@pytest.mark.short(2)
@pytest.mark.parametrize(("extents", "grid", "lanes"), CASES)
def test_neighbour_tables_agree_with_global_coordinates(extents, grid, lanes):
    draw = random.Random(str((extents, grid)))
    p = Partition(extents, grid)
    smallest = [n // g for n, g in zip(extents, grid, strict=True)]
    offsets = [[0] * len(extents)]
    for d in range(len(extents)):
        for sign in (1, -1):
            offsets.append([sign if e == d else 0 for e in range(len(extents))])
    for _ in range(12):
        widths = [min(s, 3) if g > 1 else 2 * n + 1 for s, g, n in zip(smallest, grid, extents, strict=True)]
        offsets.append([draw.randint(-w, w) for w in widths])
    for rank in range(p.nranks):
        layout = Layout(p, rank, lanes)
        for offset in offsets:
            check_table(layout, offset)


def test_entries_of_large_layouts_have_more_bits_for_blocks_and_fewer_for_classes():
    for layout in layouts((4, 6, 8), (1, 2, 1), 4, block_bits=30):
        for offset in ([0, 1, 0], [0, 0, 1], [1, 0, -1]):
            check_table(layout, offset)
    (layout,) = layouts((4, 4, 4), (1, 1, 1), 8, block_bits=30)
    with pytest.raises(LayoutError, match="more than 4 classes .* with more ranks there is room for more"):
        layout.neighbours([1, 1, 1])


@pytest.mark.full
def test_more_than_two_to_the_26_blocks_fit():
    n = (1 << 26) + 6
    (layout,) = layouts((n,), (1,), 1)
    assert (layout.nblocks, layout.block_bits) == (n, 27)
    table = layout.neighbours([3])
    for site in (0, 1, n // 2, n - 4, n - 3, n - 1):
        here, _ = layout.locate([site])
        assert int(table.entries[here]) == layout.locate([(site + 3) % n])[0]


@pytest.mark.parametrize("extent", [1, 2, 3])
def test_wrap_around_on_tiny_extents(extent):
    (layout,) = layouts((extent, 4, 4), (1, 1, 1), 4)
    for offset in range(-7, 8):
        check_table(layout, [offset, 1, -5])


def test_unsplit_directions_have_no_ghosts():
    (layout,) = layouts((4, 4), (1, 1), 4)
    layout.neighbours([3, -9])
    assert layout.ghost_blocks == 0
    half = layouts((4, 8), (1, 2), 4)[0]
    half.neighbours([1, 0])
    assert half.ghost_blocks == 0
    half.neighbours([1, 2])
    assert [key for key, *_ in half.slabs] == [(0, 1), (0, 2)]


def test_an_offset_needs_exactly_the_slabs_that_its_sites_fall_into():
    layout = layouts((8, 8), (2, 2), 1)[0]
    layout.neighbours([1, -2])
    assert {key for key, *_ in layout.slabs} == {(1, 0), (0, -1), (1, -1), (0, -2), (1, -2)}
    before = layout.ghost_blocks
    layout.neighbours([1, 0])
    layout.neighbours([1, -1])
    assert layout.ghost_blocks == before  # nothing new
    whole = layouts((4,), (2,), 1)[0]
    whole.neighbours([2])
    assert whole.ghost_blocks == 2


def test_slab_sender_lists_the_blocks_that_the_receiver_expects():
    p = Partition((7, 5, 6), (3, 2, 1))
    ranks = [Layout(p, rank, 2) for rank in range(p.nranks)]
    for layout in ranks:
        for offset in ([1, 0, 0], [-1, 1, 0], [2, -1, 3], [0, 2, 1]):
            layout.neighbours(offset)
    for layout in ranks:
        for number, (key, _, _, _, source, target) in enumerate(layout.slabs):
            assert ranks[source].slabs[number][5] == layout.rank
            assert ranks[target].slabs[number][4] == layout.rank
            assert ranks[source].slabs[number][0] == key


def test_reachable_parities():
    (even,) = layouts((4, 6), (1, 1), 1)
    assert even.reach(1, [1, 0]) == 2
    assert even.reach(2, [1, 1]) == 2
    assert even.reach(3, [1, 0]) == 3
    (odd,) = layouts((5, 6), (1, 1), 1)
    assert odd.reach(1, [1, 0]) == 3
    assert odd.reach(1, [0, 1]) == 2


def test_too_wide_a_halo_is_refused_with_advice():
    layout = Layout(Partition((4, 20), (1, 4)), 0, 4)
    with pytest.raises(LayoutError) as error:
        layout.neighbours([0, 6])
    assert (
        "local extent 5 in direction 1 cannot carry a halo of width 6; "
        "use at most 3 ranks in direction 1 (lattice 20)" in str(error.value)
    )
    uneven = Layout(Partition((7,), (3,)), 0, 1)  # rank 0 owns 3 sites, the others 2
    with pytest.raises(LayoutError, match="local extent 2"):
        uneven.neighbours([3])


def test_too_many_blocks_are_refused_on_every_rank():
    for rank in range(2):
        with pytest.raises(LayoutError, match="2\\^30"):
            Layout(Partition((2**15 + 1, 2**16), (1, 2)), rank, 1)


# FieldStorage


@pytest.mark.parametrize(("extents", "grid", "lanes"), CASES)
@pytest.mark.parametrize("scalar", [4, 8])
def test_box_round_trip_is_exact_and_places_sites_where_the_tables_say(extents, grid, lanes, scalar):
    rng = np.random.default_rng(1)
    dtype = np.float32 if scalar == 4 else np.float64
    for layout in layouts(extents, grid, lanes):
        f = Numbers(layout, 3, scalar, "f")
        box = rng.normal(size=(*reversed(layout.extents), 3)).astype(dtype)
        f.import_box(box)
        assert (f.export_box() == box).all()
        flat = box.reshape(-1, 3)
        memory = np.ctypeslib.as_array(
            (np.ctypeslib.as_ctypes_type(dtype) * (layout.nblocks * 3 * layout.lanes)).from_address(f.address)
        ).reshape(layout.nblocks, 3, layout.lanes)
        assert (memory == flat[layout.box_sites].transpose(0, 2, 1)).all()


def test_sections_of_a_site_lie_behind_each_other_and_sites_keep_their_bytes():
    """24 units of 2 bytes and a unit of 4, as of fixed point with a norm."""
    (one,) = layouts((4, 4, 6), (1, 1, 1), 1)
    (four,) = layouts((4, 4, 6), (1, 1, 1), 4)
    memory = [(24, 2, 8), (1, 4, 1)]
    box = np.random.default_rng(2).integers(0, 256, size=(6, 4, 4, 52), dtype=np.uint8)
    f, g = FieldStorage(four, memory, "f"), FieldStorage(one, memory, "g")
    assert f.site_bytes == 52
    f.import_box(box)
    assert (f.export_box() == box).all()
    assert (f.export_part([1, 0, 2], [2, 4, 3]) == box[2:5, 0:4, 1:3]).all()
    g.copy_from(f)
    assert (g.export_box() == box).all()
    flat = box.reshape(-1, 52)
    block = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * (4 * 52)).from_address(f.address))
    sites = flat[four.box_sites[0]]
    units = sites[:, :48].copy().view(np.uint16)
    assert (block[: 4 * 48].view(np.uint16).reshape(24, 4) == units.T).all()
    assert (block[4 * 48 :].view(np.uint32) == sites[:, 48:].copy().view(np.uint32)[:, 0]).all()


def test_parts_of_a_box_go_in_and_out():
    layout = layouts((6, 8, 5), (1, 1, 2), 4)[1]
    f = Numbers(layout, 2, 8, "f")
    box = np.random.default_rng(3).normal(size=(*reversed(layout.extents), 2))
    f.import_box(box)
    part = f.export_part([1, 3, 0], [4, 5, 2])
    assert (part == box[0:2, 3:8, 1:5]).all()
    before = f.versions()
    f.import_part([2, 0, 1], -part[:1, :3, :2].copy())
    assert f.versions() == before
    box[1:2, 0:3, 2:4] = -part[:1, :3, :2]
    assert (f.export_box() == box).all()
    with pytest.raises(LayoutError, match="sites 3 to 9"):
        f.export_part([3, 0, 0], [7, 1, 1])


def test_new_storage_is_zero_and_fill_zero_counts_as_a_write():
    (layout,) = layouts((4, 4), (1, 1), 4)
    f = Numbers(layout, 1, 8, "f")
    assert (f.export_box() == 0).all()
    f.import_box(np.ones((4, 4, 1)))
    before = f.versions()
    f.fill_zero()
    assert (f.export_box() == 0).all()
    assert f.versions() == (before[0] + 1, before[1] + 1)


def test_copy_between_layouts_keeps_sites():
    p = Partition((8, 4, 6), (1, 1, 1))
    box = np.random.default_rng(4).normal(size=(6, 4, 8, 3))
    source = Numbers(Layout(p, 0, 1), 3, 8, "source")
    source.import_box(box)
    for lanes, tile in [(1, []), (4, []), (2, [2, 2, 2])]:
        target = Numbers(Layout(p, 0, lanes, tile), 3, 8, "target")
        target.copy_from(source)
        assert (target.export_box() == box).all()
    with pytest.raises(LayoutError, match="24 bytes per site.*12"):
        Numbers(source.layout, 3, 4, "narrow").copy_from(source)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: f.import_box(np.zeros((4, 6, 2))), ["6x4", "4x6"]),
        (lambda f: f.import_box(np.zeros((6, 4, 3))), ["(6, 4, 3)", "16 bytes per site"]),
        (lambda f: FieldStorage(f.layout, [(0, 8, 1)], "g"), ["'g'", "0 units"]),
        (lambda f: FieldStorage(f.layout, [(1, 3, 1)], "g"), ["3 bytes"]),
        (lambda f: FieldStorage(f.layout, [(3, 8, 2)], "g"), ["packets of 2 units"]),
        (lambda f: f.layout.locate([4, 0]), ["coordinate 4 in direction 0"]),
        (lambda f: f.layout.neighbours([1]), ["(1)", "2 directions"]),
    ],
)
def test_mistakes_with_fields_are_explained(make, words):
    (layout,) = layouts((4, 6), (1, 1), 1)
    with pytest.raises(LayoutError) as error:
        make(Numbers(layout, 2, 8, "f"))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("grid", [(1, 1), (1, 2)])
@pytest.mark.parametrize("far", [2**30 + 1, -(2**30) - 1, 2**62, 2**63 - 1, -(2**63)])
def test_offset_that_would_overflow_is_refused(grid, far):
    layout = Layout(Partition((4, 8), grid), 0, 2)
    for offset in ((far, 0), (0, far), (far, far)):
        for windings in (False, True):
            with pytest.raises(LayoutError, match=r"is larger than 2\^30 = 1073741824 sites in a direction"):
                layout.neighbours(offset, windings)
        with pytest.raises(LayoutError, match=r"larger than 2\^30"):
            layout.reach(1, offset)
    with pytest.raises(LayoutError, match="has 1 components; the lattice has 2 directions"):
        layout.reach(1, (1,))


def test_largest_offsets_wrap_as_their_remainders_do():
    layout = Layout(Partition((4, 8), (1, 1)), 0, 2)
    for far in (2**30, -(2**30), 2**30 - 3, 3 - 2**30):
        for near in (far % 4, far % 4 - 4):
            assert np.array_equal(
                layout.neighbours((far, 0)).entries & (2**26 - 1),
                layout.neighbours((near, 0)).entries & (2**26 - 1),
            )
        assert layout.reach(1, (far, 0)) == layout.reach(1, (far % 2, 0))


@pytest.mark.parametrize(
    ("extents", "grid"), [((4, 6), (1, 1)), ((3, 8), (3, 2)), ((6, 2, 8), (2, 1, 2)), ((8,), (2,))]
)
def test_a_checkerboard_is_an_array_for_each_parity(extents, grid):
    p = Partition(extents, grid)
    for rank in range(p.nranks):
        layout = Layout.c_ordered(p, rank, checkerboard=True)
        box = p.extents(rank)
        assert layout.lanes == 1
        assert layout.even_blocks == layout.nblocks // 2
        for block, (site,) in enumerate(sites(layout)):
            odd, local = sum(site) % 2, [x - o for x, o in zip(site, p.origin(rank), strict=True)]
            compact = np.ravel_multi_index((*local[:-1], local[-1] // 2), (*box[:-1], box[-1] // 2))
            assert block == odd * layout.even_blocks + compact
    with pytest.raises(LayoutError, match="local extent 3 in the last direction: .* needs an even one"):
        Layout.c_ordered(Partition((4, 3), (1, 1)), 0, checkerboard=True)
