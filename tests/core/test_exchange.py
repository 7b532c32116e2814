"""core/halo: launches and halo exchange on virtual ranks against brute force with rank-dependent data."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from programs import TIMEOUT
from site_numbers import Numbers

from jali import _core
from jali._core import Launch, Layout, Partition
from jali.errors import LayoutError, RankError

POLICIES = [name for name, *_ in _core.halo_policies()]


def local_part(p, rank, whole):
    """The rank's box of a global array [x_{d-1}]...[x_0][reals]."""
    slices = [slice(o, o + n) for o, n in zip(p.origin(rank), p.extents(rank), strict=True)]
    return np.ascontiguousarray(whole[tuple(reversed(slices))])


def shifted(whole, offset):
    axes = len(offset)
    return np.roll(whole, [-o for o in offset], [axes - 1 - d for d in range(axes)])


def assemble(p, parts):
    whole = np.empty((*reversed(p.global_extents), parts[0].shape[-1]))
    for rank, part in enumerate(parts):
        slices = [slice(o, o + n) for o, n in zip(p.origin(rank), p.extents(rank), strict=True)]
        whole[tuple(reversed(slices))] = part
    return whole


class Rank:
    """One rank's layout, and launches of the hand-written kernels on it."""

    def __init__(self, p, communicator, kernels, lanes=4, threads=1, policy=""):
        self.layout = Layout(p, communicator.rank, lanes)
        self.communicator = communicator
        self.pool = _core.ThreadPool(threads)
        self.kernels = kernels
        self.policy = policy
        self.kept = []

    def field(self, reals, scalar_bytes=8, label="f"):
        return Numbers(self.layout, reals, scalar_bytes, label)

    def gather(self, out, terms, policy=None, **domain):
        """out = sum over terms (field, offset, parities) of weighted reals."""
        parameters = np.zeros(11 + 6 * len(terms), np.uint64)
        parameters[8], parameters[9] = self.layout.lanes, len(terms)
        patches, reads = [(10, out)], []
        for k, (field, offset, parities) in enumerate(terms):
            table = self.layout.neighbours(offset)
            self.kept.append(table)
            at = 11 + 6 * k
            parameters[at + 1], parameters[at + 2] = field.reals, field.scalar_bytes == 4
            parameters[at + 3], parameters[at + 4] = table.entries_address, table.permutations_address
            patches.append((at, field))
            reads.append((field, offset, parities))
        return Launch(
            self.layout,
            self.communicator,
            self.pool,
            self.kernels("gather"),
            parameters,
            patches,
            reads,
            [(out, 3)],
            policy=self.policy if policy is None else policy,
            **domain,
        )

    def sum_reals(self, field, **options):
        parameters = np.zeros(11, np.uint64)
        parameters[8], parameters[9] = self.layout.lanes, field.reals
        return Launch(
            self.layout,
            self.communicator,
            self.pool,
            self.kernels("sum_reals"),
            parameters,
            [(10, field)],
            [],
            [],
            nsums=field.reals,
            **options,
        )


def gather_reference(terms):
    return sum(
        (shifted(whole, offset) * (1 + np.arange(whole.shape[-1]))).sum(axis=-1, keepdims=True)
        for whole, offset in terms
    )


GRIDS = [  # extents, grid, lanes
    ((8, 4, 4), (1, 1, 1), 4),
    ((8, 8), (1, 2), 4),
    ((9,), (2,), 1),
    ((6, 4), (3, 1), 2),
    ((7, 4, 8), (2, 1, 1), 4),
    ((4, 4, 4, 4), (1, 1, 2, 2), 4),
    ((5, 6, 4), (2, 3, 1), 2),
    ((6, 6), (2, 3), 4),
    ((4, 2, 3, 2, 4), (1, 1, 1, 1, 2), 2),
    ((4, 2, 3, 2, 9), (1, 2, 1, 1, 3), 2),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("extents", "grid", "lanes"), GRIDS)
def test_reads_at_random_offsets_agree_with_brute_force(extents, grid, lanes, policy, kernels, on_ranks):
    p = Partition(extents, grid)
    rng = np.random.default_rng(5)
    a = rng.integers(-1000, 1000, size=(*reversed(extents), 3)).astype(float)
    b = rng.integers(-1000, 1000, size=(*reversed(extents), 2)).astype(float)
    draw = random.Random(str(grid) + policy)
    widths = [min(3, n // g) if g > 1 else n + 1 for n, g in zip(extents, grid, strict=True)]

    def offset():
        return [draw.randint(-w, w) for w in widths]

    rounds = [[(draw.choice("ab"), offset()) for _ in range(draw.randint(1, 5))] for _ in range(6)]

    def body(communicator):
        rank = Rank(p, communicator, kernels, lanes, policy=policy)
        fa, fb, out = rank.field(3, 8, "a"), rank.field(2, 4, "b"), rank.field(1, 8, "out")
        fa.import_box(local_part(p, communicator.rank, a))
        fb.import_box(local_part(p, communicator.rank, b))
        results = []
        for terms in rounds:
            launch = rank.gather(out, [({"a": fa, "b": fb}[name], o, 3) for name, o in terms])
            launch.check()
            launch.run()
            results.append(out.export_box())
        return results

    by_rank = on_ranks(p.nranks, body)
    for k, terms in enumerate(rounds):
        got = assemble(p, [results[k] for results in by_rank])
        assert (got == gather_reference([({"a": a, "b": b}[name], o) for name, o in terms])).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_all_ranks_do_is_in_order(kernels, policy, on_ranks):
    p = Partition((5, 6, 4), (2, 3, 1))

    def body(communicator):
        rank = Rank(p, communicator, kernels, 2, policy=policy)
        f, g, out = rank.field(3, 8, "f"), rank.field(5, 4, "g"), rank.field(1)
        terms = [
            (f, [1, 0, 0], 3),
            (f, [-1, 1, 2], 3),
            (g, [2, -2, 0], 3),
            (g, [1, 0, 0], 3),
            (f, [0, 1, 0], 3),
        ]
        launch = rank.gather(out, terms)
        launch.check()
        return launch.describe()

    text = on_ranks(p.nranks, body)[0]
    assert "slab (+1, 0, 0)" in text
    assert ("signal rank" in text and ": put " in text) == policy.startswith("remote-write")


def test_both_neighbours_are_the_same_peer_with_two_ranks(kernels, on_ranks):
    p = Partition((2, 8), (2, 1))  # local extent 1: both neighbours are even the same site
    whole = np.arange(16.0).reshape(8, 2, 1)

    def body(communicator):
        rank = Rank(p, communicator, kernels)
        f, out = rank.field(1), rank.field(1)
        f.import_box(local_part(p, communicator.rank, whole))
        rank.gather(out, [(f, [1, 0], 3), (f, [-1, 0], 3), (f, [1, 3], 3)]).run()
        return out.export_box()

    got = assemble(p, on_ranks(2, body))
    assert (got == gather_reference([(whole, [1, 0]), (whole, [-1, 0]), (whole, [1, 3])])).all()


def test_nothing_is_sent_twice_and_only_stale_parities_travel(kernels, on_ranks):
    p = Partition((4, 4, 8), (1, 1, 2))

    def body(communicator):
        rank = Rank(p, communicator, kernels, 2)
        f, out = rank.field(3), rank.field(1)
        launch = rank.gather(out, [(f, [0, 0, 1], 3)])
        per_parity = 8 * 3 * 8  # sites, reals, bytes

        launch.run()
        assert f.halo_counters == {"exchanged": 2, "avoided": 0, "messages": 1, "bytes": 2 * per_parity}
        launch.run()
        assert f.halo_counters == {"exchanged": 2, "avoided": 2, "messages": 1, "bytes": 2 * per_parity}
        f.mark_written(1)  # even sites only
        launch.run()
        assert f.halo_counters == {"exchanged": 3, "avoided": 3, "messages": 2, "bytes": 3 * per_parity}
        # even sites read odd neighbours: a write of even sites does not matter
        half = rank.gather(out, [(f, [0, 0, 1], 2)], begin=0, end=rank.layout.even_blocks)
        f.mark_written(1)
        half.run()
        assert f.halo_counters == {"exchanged": 3, "avoided": 4, "messages": 2, "bytes": 3 * per_parity}
        f.mark_written(2)
        half.run()
        assert f.halo_counters == {"exchanged": 4, "avoided": 4, "messages": 3, "bytes": 4 * per_parity}
        assert rank.layout.halo_counters == f.halo_counters
        return True

    before = _core.halo_counters()["messages"]
    assert all(on_ranks(2, body))
    assert _core.halo_counters()["messages"] == before + 6


def test_fields_that_are_read_at_the_same_slab_share_a_message(kernels, on_ranks):
    p = Partition((4, 8), (1, 2))

    def body(communicator):
        rank = Rank(p, communicator, kernels, 1)
        f, g, out = rank.field(2, 8, "f"), rank.field(2, 8, "g"), rank.field(1)
        rank.gather(out, [(f, [0, 1], 3), (g, [1, 1], 3), (f, [0, -1], 3)]).run()
        assert rank.layout.halo_counters["messages"] == 2  # slab +1 with f and g, slab -1 with f
        assert g.halo_counters["messages"] == 1
        return True

    assert all(on_ranks(2, body))


def test_checkerboard_update_in_place_reads_old_and_new_values_exactly(kernels, on_ranks):
    extents, grid = (4, 6, 6), (1, 2, 3)
    p = Partition(extents, grid)
    whole = np.random.default_rng(6).integers(0, 9, size=(*reversed(extents), 2)).astype(float)
    offset = [0, 1, 0]

    def body(communicator):
        rank = Rank(p, communicator, kernels, 2)
        f = rank.field(2)
        f.import_box(local_part(p, communicator.rank, whole))
        table = rank.layout.neighbours(offset)
        parameters = np.zeros(14, np.uint64)
        parameters[8], parameters[9] = rank.layout.lanes, 2
        parameters[12], parameters[13] = table.entries_address, table.permutations_address
        launches = []
        even = rank.layout.even_blocks
        for begin, end, reads, writes in [(0, even, 2, 1), (even, -1, 1, 2)]:
            launches.append(
                Launch(
                    rank.layout,
                    communicator,
                    rank.pool,
                    kernels("shift_add"),
                    parameters,
                    [(10, f), (11, f)],
                    [(f, offset, reads)],
                    [(f, writes)],
                    begin=begin,
                    end=end,
                )
            )
        for _ in range(3):
            for launch in launches:
                launch.check()
                launch.run()
        return f.export_box()

    got = assemble(p, on_ranks(p.nranks, body))
    parity = np.indices(tuple(reversed(extents))).sum(axis=0) % 2
    for _ in range(3):
        for colour in (0, 1):
            whole = np.where((parity == colour)[..., None], whole + 3 * shifted(whole, offset), whole)
    assert (got == whole).all()


def test_lane_masks_and_block_lists_select_sites(kernels, on_ranks):
    extents, grid = (4, 4, 8), (2, 1, 1)
    p = Partition(extents, grid)
    whole = np.random.default_rng(8).normal(size=(*reversed(extents), 1))
    offset = [-1, 1, 3]
    colour = np.indices(tuple(reversed(extents)))
    colour = colour.sum(axis=0) % 3  # lanes are 2 and 4 sites apart: a block has several colours

    def body(communicator):
        rank = Rank(p, communicator, kernels, 4)
        layout = rank.layout
        f, out = rank.field(1), rank.field(1)
        f.import_box(local_part(p, communicator.rank, whole))
        mine = local_part(p, communicator.rank, colour).reshape(-1)
        of_lane = mine[layout.box_sites] == 1
        masks = (of_lane << np.arange(layout.lanes)).sum(axis=1).astype(np.uint32)
        blocks = np.flatnonzero(masks).astype(np.int32)
        rank.gather(out, [(f, offset, 3)], blocks=blocks, masks=masks[blocks]).run()
        first = out.export_box()
        out.fill_zero()
        f.mark_written()
        rank.gather(out, [(f, offset, 3)], masks=masks).run()
        assert (out.export_box() == first).all()
        total = rank.sum_reals(f, blocks=blocks, masks=masks[blocks]).run()[0]
        part = rank.sum_reals(f, begin=3, masks=masks[3:]).run()[0]
        return first, total, part

    results = on_ranks(2, body)
    got = assemble(p, [r[0] for r in results])
    chosen = colour == 1
    assert (got[..., 0] == np.where(chosen, shifted(whole, offset)[..., 0], 0)).all()
    assert results[0][1] == pytest.approx(whole[chosen].sum(), rel=1e-14)
    assert results[0][2] != results[0][1]


def run_with(kernels, on_ranks, extents, grid, whole, policy, threads, lanes):
    p = Partition(extents, grid)
    offsets = [[1, 0, 0], [0, -1, 1], [0, 0, -1], [1, 1, 1]]

    def body(communicator):
        rank = Rank(p, communicator, kernels, lanes, threads, policy)
        f, out = rank.field(2), rank.field(1)
        f.import_box(local_part(p, communicator.rank, whole))
        launch = rank.gather(out, [(f, o, 3) for o in offsets])
        sums = []
        for _ in range(2):
            launch.run()
            f.mark_written()
            sums.append(rank.sum_reals(out).run()[0])
        return out.export_box(), sums, rank.sum_reals(out, fast=True).run()[0]

    results = on_ranks(p.nranks, body)
    return assemble(p, [r[0] for r in results]), {tuple(r[1]) for r in results}, {r[2] for r in results}


def test_policies_partitions_threads_and_lanes_give_identical_bits(kernels, on_ranks):
    extents = (8, 12, 8)
    whole = np.random.default_rng(9).normal(size=(*reversed(extents), 2))
    reference = None
    for grid, policy, threads, lanes in [
        ((1, 1, 1), "", 1, 4),
        ((1, 1, 1), "", 2, 1),
        ((1, 2, 1), "remote-write-overlap", 1, 4),
        ((1, 2, 1), "messages-wait", 2, 4),
        ((2, 1, 2), "remote-write-overlap", 2, 2),
        ((1, 3, 1), "remote-write-overlap", 1, 8),
        ((1, 3, 2), "messages-wait", 1, 4),
        ((4, 1, 1), "remote-write-overlap", 1, 4),
    ]:
        field, sums, fast = run_with(kernels, on_ranks, extents, grid, whole, policy, threads, lanes)
        assert len(sums) == 1, "ranks disagree about a sum"
        assert len(fast) == 1
        if reference is None:
            reference = field, sums
        assert (field == reference[0]).all()
        assert sums == reference[1]
        assert fast.pop() == pytest.approx(next(iter(sums))[0], rel=1e-12)


@pytest.mark.parametrize("fast", [False, True])
def test_sums_per_slice_agree_with_numpy_for_any_split(fast, kernels, on_ranks):
    extents = (4, 6, 8)
    whole = np.random.default_rng(10).normal(size=(*reversed(extents), 3))
    reference = None
    for grid, direction, lanes in itertools.product([(1, 1, 1), (1, 1, 2), (2, 3, 1)], [0, 2], [1, 4]):
        p = Partition(extents, grid)

        def body(communicator, p=p, direction=direction, lanes=lanes):
            rank = Rank(p, communicator, kernels, lanes)
            f = rank.field(3)
            f.import_box(local_part(p, communicator.rank, whole))
            layout = rank.layout
            slices = layout.site_coordinates(direction)
            launch = rank.sum_reals(f, slices=slices, nslices=extents[direction], fast=fast)
            launch.run()
            return launch.run()

        results = on_ranks(p.nranks, body)
        axis = 2 - direction
        expected = whole.sum(axis=tuple(a for a in range(3) if a != axis))
        for result in results:
            assert result.shape == expected.shape
            assert result == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert (result == results[0]).all()
        if not fast and direction == 2:
            reference = results[0] if reference is None else reference
            assert (results[0] == reference).all()


def test_kernel_counters_are_added_over_threads(kernels):
    communicator = _core.make_self_communicator()
    rank = Rank(Partition((16, 16), (1, 1)), communicator, kernels, 4, threads=3)
    launch = rank.sum_reals(rank.field(2), ncounters=2)
    launch.run()
    launch.run()
    assert launch.counters.values == [2 * rank.layout.nblocks, 0]


def test_coordinate_parameters_number_the_sites(kernels, on_ranks):
    extents, grid = (4, 3, 8), (2, 1, 2)
    p = Partition(extents, grid)

    def body(communicator):
        rank = Rank(p, communicator, kernels, 4)
        out = rank.field(1)
        parameters = np.zeros(12, np.uint64)
        parameters[8:11] = rank.layout.lanes, 3, rank.layout.nblocks
        Launch(
            rank.layout,
            communicator,
            rank.pool,
            kernels("number_sites"),
            parameters,
            [(11, out)],
            [],
            [(out, 3)],
        ).run()
        return out.export_box()

    assert (assemble(p, on_ranks(4, body)).reshape(-1) == np.arange(96)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_halo_items_are_computed_at_the_sender_once_per_change(policy, kernels, on_ranks):
    extents, grid, offset = (6, 4, 8), (2, 1, 1), [-1, 0, 1]
    p = Partition(extents, grid)
    whole = np.random.default_rng(11).integers(0, 99, size=(*reversed(extents), 6)).astype(float)

    def body(communicator):
        rank = Rank(p, communicator, kernels, 4)
        layout = rank.layout
        f, out = rank.field(6), rank.field(1)
        f.import_box(local_part(p, communicator.rank, whole))
        pack = np.zeros(12, np.uint64)
        pack[8], pack[9] = layout.lanes, 6
        item = _core.halo_item(layout, [(2, 8, 2)], "item", kernels("project"), pack, [(10, f)], 11)
        table = layout.neighbours(offset)
        parameters = np.zeros(16, np.uint64)
        parameters[8], parameters[12], parameters[15] = layout.lanes, 6, layout.nblocks
        parameters[13], parameters[14] = table.entries_address, table.permutations_address
        launch = Launch(
            layout,
            communicator,
            rank.pool,
            kernels("use_item"),
            parameters,
            [(9, out), (10, item), (11, f)],
            [(item, offset, 3)],
            [(out, 3)],
            policy=policy,
        )
        launch.check()
        launch.run()
        first = out.export_box()
        launch.run()
        sites = layout.extents[1] * layout.extents[2]
        assert item.halo_counters == {"exchanged": 2, "avoided": 2, "messages": 1, "bytes": sites * 2 * 8}
        f.mark_written(2)
        launch.run()
        assert item.halo_counters["exchanged"] == 3
        item.set_producer_parameters(pack)
        launch.run()
        assert item.halo_counters["exchanged"] == 3  # same parameters: still valid
        assert f.halo_counters["messages"] == 0
        return first

    got = assemble(p, on_ranks(2, body))
    projected = whole.sum(axis=-1, keepdims=True) + 2 * whole[..., :1]
    assert (got == shifted(projected, offset)).all()


def test_ghosts_that_grow_keep_the_data(kernels, on_ranks):
    p = Partition((6, 8), (2, 1))
    whole = np.random.default_rng(12).normal(size=(8, 6, 1))

    def body(communicator):
        rank = Rank(p, communicator, kernels)
        f, out = rank.field(1), rank.field(1)
        f.import_box(local_part(p, communicator.rank, whole))
        launch = rank.gather(out, [(f, [1, 0], 3)])
        launch.run()
        sent = f.halo_counters["bytes"]
        rank.gather(rank.field(1), [(f, [-2, 0], 3)]).run()
        launch.run()
        assert f.halo_counters["bytes"] == 3 * sent  # two new layers, and the first still valid
        return out.export_box(), f.export_box()

    results = on_ranks(2, body)
    assert (assemble(p, [r[0] for r in results]) == shifted(whole, [1, 0])).all()
    assert (assemble(p, [r[1] for r in results]) == whole).all()


def test_a_failing_rank_stops_the_others(kernels):
    import threading

    p = Partition((8, 8), (3, 1))
    communicators = _core.make_thread_communicators(3)
    raised = {}

    def body(communicator):
        rank = Rank(p, communicator, kernels)
        f, out = rank.field(1), rank.field(1)
        launch = rank.gather(out, [(f, [1, 0], 3)])
        try:
            if communicator.rank == 1:
                raise ValueError("the disk is on fire")
            launch.run()
        except ValueError as error:
            communicator.fail(str(error))
        except RankError as error:
            raised[communicator.rank] = str(error)

    threads = [threading.Thread(target=body, args=(c,), daemon=True) for c in communicators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert set(raised) >= {2} or set(raised) >= {0}
    assert all("the disk is on fire" in text for text in raised.values())


def test_unknown_policy_lists_the_entries(kernels, use_settings):
    rank = Rank(Partition((4,), (1,)), _core.make_self_communicator(), kernels)
    f, out = rank.field(1), rank.field(1)
    with pytest.raises(
        ValueError,
        match="halo policy fastest does not exist; there are: remote-write-overlap, remote-write-wait, ",
    ):
        rank.gather(out, [(f, [1], 3)], policy="fastest")
    use_settings(halo_policy="messages-wait")
    assert rank.gather(out, [(f, [1], 3)], policy="").policy == "messages-wait"
    assert rank.gather(out, [(f, [1], 3)], policy="remote-write-overlap").policy == "remote-write-overlap"
    assert POLICIES == ["remote-write-overlap", "remote-write-wait", "messages-overlap", "messages-wait"]


def test_launch_mistakes_are_explained(kernels):
    communicators = _core.make_thread_communicators(2)
    rank = Rank(Partition((4, 4), (2, 1)), communicators[0], kernels)
    f, out = rank.field(1), rank.field(1)
    even = rank.layout.even_blocks
    with pytest.raises(LayoutError, match="said to read even sites only, but reads odd"):
        rank.gather(out, [(f, [1, 0], 1)], begin=0, end=even)
    with pytest.raises(LayoutError, match="blocks 0 to 99"):
        rank.gather(out, [], begin=0, end=99)
    with pytest.raises(LayoutError, match="block 77"):
        rank.gather(out, [], blocks=np.array([77], np.int32))
    with pytest.raises(LayoutError, match="1 lane masks"):
        rank.gather(out, [], masks=np.array([1], np.uint32))
    other = Rank(Partition((4, 4), (2, 1)), communicators[0], kernels)
    with pytest.raises(LayoutError, match="another layout"):
        rank.gather(other.field(1), [])
    with pytest.raises(LayoutError, match="slice 3 of 2"):
        rank.sum_reals(f, slices=np.full(rank.layout.sites, 3, np.int32), nslices=2)
