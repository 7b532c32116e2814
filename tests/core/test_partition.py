"""core/geometry/partition: cuts over ranks against direct enumeration."""

from __future__ import annotations

import itertools
import math

import pytest

from jali._core import Partition, choose_grid
from jali.errors import LayoutError


@pytest.mark.parametrize(
    ("extents", "grid"),
    [
        ((7,), (3,)),
        ((5, 4), (2, 4)),
        ((6, 5, 4), (1, 5, 2)),
        ((4, 4, 4, 4), (1, 2, 1, 3)),
        ((2, 3, 2, 2, 5), (2, 1, 1, 2, 3)),
    ],
)
def test_every_site_belongs_to_exactly_one_rank(extents, grid):
    p = Partition(extents, grid)
    owner = {}
    for rank in range(p.nranks):
        ranges = [range(o, o + n) for o, n in zip(p.origin(rank), p.extents(rank), strict=True)]
        for site in itertools.product(*ranges):
            assert site not in owner
            owner[site] = rank
    assert len(owner) == math.prod(extents)
    assert all(p.rank_of_site(site) == rank for site, rank in owner.items())


def test_first_ranks_get_the_odd_sites():
    p = Partition((11,), (4,))
    assert [p.extents(r)[0] for r in range(4)] == [3, 3, 3, 2]
    assert [p.origin(r)[0] for r in range(4)] == [0, 3, 6, 9]


def test_ranks_are_numbered_with_direction_zero_fastest_and_wrap():
    p = Partition((8, 8, 8), (2, 3, 4))
    assert p.coordinates(1 + 2 * 2 + 2 * 3 * 3) == (1, 2, 3)
    for rank in range(24):
        c = p.coordinates(rank)
        assert p.rank_at(c) == rank
        assert p.rank_at((c[0] + 2, c[1] - 3, c[2] + 8)) == rank
    assert p.rank_at((2, 0, 0), periodic=False) == -1


@pytest.mark.parametrize("nranks", range(1, 25))
def test_automatic_grid_has_the_right_product_and_fits(nranks):
    for extents in [(16, 16, 16, 16), (8, 4, 6), (5, 25), (12, 3, 7, 2, 4)]:
        try:
            grid = choose_grid(extents, nranks, 4)
        except LayoutError:
            divisors = [[d for d in range(1, n + 1) if nranks % d == 0] for n in extents]
            assert not any(math.prod(g) == nranks for g in itertools.product(*divisors))
            continue
        assert math.prod(grid) == nranks
        assert all(1 <= g <= n for g, n in zip(grid, extents, strict=True))


def test_automatic_grid_leaves_room_for_lanes_and_splits_evenly():
    assert choose_grid((16, 16, 16, 16), 2, 4) == (1, 1, 1, 2)
    assert choose_grid((16, 16, 16, 16), 4, 4) == (
        1,
        1,
        1,
        4,
    )  # as much surface as (1, 1, 2, 2), fewer messages
    assert choose_grid((16, 16, 16, 16), 16, 4).count(1) >= 1  # four lanes need an unsplit direction
    assert choose_grid((6, 16), 2, 1) == (1, 2)  # less surface, and local extents stay even
    assert choose_grid((4, 64), 4, 1) == (1, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: choose_grid((2, 2), 7, 4), ["2x2", "7 ranks", "4 sites"]),
        (lambda: Partition((4, 4), (5, 1)), ["5 ranks in direction 0", "use 1 to 4"]),
        (lambda: Partition((4, 4), (2,)), ["4x4"]),
        (lambda: Partition((), ()), ["1 to 8"]),
        (lambda: Partition((2,) * 9, (1,) * 9), ["got 9"]),
        (lambda: Partition((4, 0), (1, 1)), ["extent 0 in direction 1"]),
        (lambda: Partition((4, 4), (2, 2)).origin(4), ["rank 4", "4 ranks"]),
        (lambda: Partition((4, 4), (2, 2)).rank_of_site((1, 4)), ["coordinate 4 in direction 1"]),
        (lambda: choose_grid((4, 4), 0, 4), ["0 ranks"]),
        (lambda: choose_grid((4, 4), 2, 3), ["3 is not a power of two"]),
    ],
)
def test_impossible_partitions_are_refused_with_numbers(call, words):
    with pytest.raises(LayoutError) as error:
        call()
    for word in words:
        assert word in str(error.value)
