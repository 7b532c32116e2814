"""Asking ahead: which kernels do so and why, and that it changes no bit."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import SU, Colouring, Field, Lattice, Matrix, Real, Spinor
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.gauge.staples import staple, staple_sum
from jali.lattice import prefetch
from jali.lattice.prefetch import UNKNOWN, cache_share, last_level_cache


def report(lattice):
    """Of links so large that a block of them is asked for even with one lane."""
    U = GaugeField(lattice, SU(4))
    return jali.inspect(staple_sum, U, Field(lattice, Matrix(4)), lattice.directions[1])


@pytest.fixture(autouse=True)
def automatic(use_settings):
    """Nothing is asked for, and fields are on the processor."""
    use_settings(prefetch=None, device=None)


WORDS = {
    "off": "does not prefetch",
    "leading": "prefetches the 2 leading reads of each field",
    "all": "prefetches all reads",
}
# A staple sum reads 18 links of four fields: 6 of its own direction, 4 of each other.
ASKED = {"off": 0, "leading": 8, "all": 18}


def test_the_bytes_that_a_kernel_reads_and_its_share_of_the_cache_decide_what_it_asks_for(monkeypatch):
    read = 4 * 256 * 4**4
    for share, chosen in (
        (5 * read, "off"),
        (5 * read - 5, "leading"),
        (2 * read, "leading"),
        (2 * read - 2, "all"),
    ):
        monkeypatch.setattr(prefetch, "cache_share", lambda threads, ranks, share=share: share)
        made = report(Lattice(4, 4, 4, 4))
        assert made.launch == (
            f"{WORDS[chosen]}: 0.3 MB in all, of a last-level cache of {share / 1e6:.1f} MB for this rank"
        )
        assert made.source.count("prefetch<32>") == ASKED[chosen]
        assert f"launch {made.launch}" in str(made)


@pytest.mark.parametrize("requested", WORDS)
def test_asking_ahead_can_be_forced(use_settings, requested):
    use_settings(prefetch=requested)
    made = report(Lattice(4, 4, 4, 4))
    assert made.launch == f"{WORDS[requested]}: JALI_PREFETCH"
    assert made.source.count("prefetch<32>") == ASKED[requested]


def test_the_reads_that_lead_are_those_that_the_order_of_visits_comes_to_first(use_settings):
    use_settings(prefetch="leading")

    @jali.site_function
    def around(X, y, x):
        e, f, g = X.directions()
        y[X] = x[X + e] + x[X - e] + x[X + f] + x[X - f] + x[X + g] + x[X - g]

    lattice = Lattice(8, 8, 8)
    source = jali.inspect(around, lattice.field(Spinor(3)), lattice.field(Spinor(3))).source
    lines = source.splitlines()
    after = [lines[k + 1] for k, line in enumerate(lines) if "prefetch" in line]
    assert [line.partition("//")[2].strip() for line in after] == ["x at X + e1", "x at X + e2"]


def test_kernels_of_one_site_or_of_small_blocks_leave_it_to_the_processor(monkeypatch):
    monkeypatch.setattr(prefetch, "cache_share", lambda threads, ranks: 1)

    @jali.site_function
    def scaled(X, y, x):
        y[X] = 2.0 * x[X]

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[0]]

    for function, element, lanes, asks in (
        (scaled, Matrix(3), 1, False),
        (shifted, Real(), 1, False),
        (shifted, Matrix(3), 1, False),
        (shifted, Spinor(3), 1, True),
    ):
        lattice = Lattice(8, 8, lanes=lanes)
        made = jali.inspect(function, lattice.field(element), lattice.field(element))
        assert ("prefetch" in made.source) == asks
        assert bool(made.launch) == asks


def test_of_a_batch_the_next_member_is_asked_for_and_what_members_share_once(use_settings):
    @jali.site_function
    def hop(X, out, psi, U):
        e = X.directions()[0]
        out[X] = U[X] * psi[X + e] + psi[X - e]

    lattice = Lattice(8, 8)
    psi, out = (Field(lattice, Matrix(3), batch=4) for _ in range(2))
    for requested, asked in (("off", 0), ("leading", 3), ("all", 3)):
        use_settings(prefetch=requested)
        source = jali.inspect(hop, out, psi, Field(lattice, SU(3))).source
        before, _, after = source.partition("for (int64_t member")
        assert (before.count("prefetch<18>"), after.count("prefetch<18>")) == (asked // 3, 2 * (asked // 3))
        assert ("soon_member" in after) == bool(asked)


def bits(grid, extents, lanes):
    """Links that a kernel made of staples, phases, a colouring of odd extents, and spinors, over several ranks."""
    lattice = Lattice(*extents, grid=grid, lanes=lanes)
    U = GaugeField(lattice, SU(3)).hot_start(seed=3)
    short = Field(lattice, Matrix(3), storage="float32")
    boundary = [-1.0] + [1.0] * 3
    psi = Field(lattice, Spinor(3), boundary=boundary)
    psi[...] = np.random.default_rng(5).normal(size=(*extents, 4, 3))

    @jali.site_function
    def stored(X, out, U):
        out[X] = staple(X, U, X.directions()[2])

    @jali.site_function
    def again(X, out, short, total):
        out[X] = short[X + X.directions()[0] - X.directions()[1]]
        total += short[X - X.directions()[3]].norm2()

    three = Colouring(3, lambda x: sum(x) % 3)
    stored[three[1]](short, U)
    stored(short, U)
    out = Field(lattice, Matrix(3))
    total = lattice.sum(again, out, short)
    batch = Field(lattice, Spinor(3), boundary=boundary, batch=3)
    batch[...] = np.random.default_rng(6).normal(size=batch.shape)
    some = batch.members[[2, 0]]
    few = batch.like(precision="float32", storage="fixed16").assign(batch)
    D, E = (WilsonDirac(V, mass=0.1) for V in (U, [u.like(precision="float32").assign(u) for u in U.fields]))
    found = (short, out, D.apply(psi), D.apply(batch), D.apply(some), E.apply(few))
    return [x[...].tobytes() for x in found] + [total.hex()]


@pytest.mark.short(1)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(("grid", "extents"), [((1, 1, 1, 1), (5, 2, 4, 8)), ((2, 1, 1, 1), (4, 2, 3, 8))])
def test_asking_ahead_changes_no_bit(use_settings, grid, extents, lanes):
    def run(rank_grid):
        return bits(rank_grid, extents, lanes)

    use_settings(prefetch="off")
    plain = jali.virtual_ranks(int(np.prod(grid)), run, grid)
    for requested in ("leading", "all"):
        use_settings(prefetch=requested)
        assert jali.virtual_ranks(int(np.prod(grid)), run, grid) == plain


def test_the_last_level_cache_is_shared_among_the_threads_that_run_on_it(monkeypatch):
    monkeypatch.setattr(prefetch, "last_level_cache", lambda: (32 << 20, 8))
    assert cache_share(threads=1, ranks=1) == 32 << 20
    assert cache_share(threads=1, ranks=2) == 16 << 20
    assert cache_share(threads=1, ranks=64) == 4 << 20
    assert cache_share(threads=8, ranks=4) == 32 << 20
    assert cache_share(threads=16, ranks=1) == 64 << 20  # on two such caches


def describe(folder, cpu, levels):
    for index, (level, size, shared) in enumerate(levels):
        cache_folder = folder / f"cpu{cpu}" / "cache" / f"index{index}"
        cache_folder.mkdir(parents=True)
        (cache_folder / "level").write_text(f"{level}\n")
        (cache_folder / "size").write_text(f"{size}\n")
        (cache_folder / "shared_cpu_map").write_text(f"{shared}\n")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([(1, "48K", "1"), (2, "1024K", "1"), (3, "32768K", "0000,000000ff")], (32 << 20, 8)),
        ([(1, "64K", "1"), (2, "24M", "ff")], (24 << 20, 8)),
        ([(3, "0K", "0"), (1, "32K", "1")], (UNKNOWN, 1)),
        ([(1, "32K", "1")], (UNKNOWN, 1)),
        ([(3, "plenty", "ff"), (2, "", "1")], (UNKNOWN, 1)),
        ([], (UNKNOWN, 1)),
    ],
)
def test_a_machine_that_does_not_describe_its_caches_is_given_a_usual_one(
    tmp_path, monkeypatch, levels, expected
):
    monkeypatch.setattr(prefetch.os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    describe(tmp_path, 3, levels)
    assert last_level_cache(tmp_path) == expected
