"""What an update is on a rank, from geometry alone, against counting sites one by one and against what exchanges really
send."""

import itertools

import numpy as np
import pytest

import jali
from jali import ALL, EVEN, ODD, Colouring
from jali.bench.halo import KERNELS, laplace
from jali.errors import LayoutError, ParameterError
from jali.lattice.updates import Update


@jali.site_function
def lopsided(X, out, a, b):
    """Wide on one side of one direction, diagonal in another two."""
    x, y, z = X.directions()
    out[X] = a[X + 2 * x] + a[X - x] * b[X + y - z] + b[X]


@jali.site_function
def forward(X, out, a):
    """Ghosts of one side."""
    total = a[X]
    for mu in X.directions():
        total = total + a[X + mu]
    out[X] = total


def small(function, ndim, fields, precision="float64", over=ALL):
    lattice = jali.Lattice(*[4] * ndim)
    call = function.bind(*(lattice.field(jali.Real(), precision=precision) for _ in range(fields)), over=over)
    return Update.of(kernel_of(call), over)


def kernel_of(call):
    """The kernel of a call that has one."""
    (kernel,) = call.kernels
    return kernel


def counted(split, rank, reads, parities):
    """Sites of the bulk and of the boundary by their highest late direction, one by one."""
    partition = split.partition
    extents, origin = partition.extents(rank), partition.origin(rank)
    bulk, boundary = 0, {}
    for site in itertools.product(*map(range, extents)):
        if not parities >> (sum(site) + sum(origin)) % 2 & 1:
            continue
        late = [
            d
            for offset in reads
            for d, step in enumerate(offset)
            if split.grid[d] > 1 and not 0 <= site[d] + step < extents[d]
        ]
        if late:
            boundary[max(late)] = boundary.get(max(late), 0) + 1
        else:
            bulk += 1
    return bulk, boundary


@pytest.mark.parametrize("over", [ALL, EVEN, ODD], ids=str)
@pytest.mark.parametrize(
    ("extents", "grid"),
    [
        ((8, 6, 6), (1, 1, 3)),
        ((9, 7, 10), (2, 1, 2)),
        ((11, 6, 9), (3, 2, 3)),
        ((8, 8, 8), (2, 2, 2)),
        ((7, 5, 3), (1, 2, 1)),
    ],
)
def test_bulk_and_boundary_are_those_that_counting_finds(extents, grid, over):
    reads = [(2, 0, 0), (-1, 0, 0), (0, 1, -1), (0, 0, 0)]
    update = small(lopsided, 3, 3, over=over)
    split = update.on(extents, grid)
    for rank in range(split.ranks):
        part = split.part(rank)
        found = part.bulk.sites, {d: work.sites for d, work in part.boundary.items()}
        assert found == counted(split, rank, reads, over.parities)
        assert part.whole.sites == part.bulk.sites + part.late.sites


def exchanged(kernel, extents, grid, precision):
    """What a run of a kernel really sends, and what geometry says, on this rank."""
    lattice = jali.Lattice(*extents, grid=grid)
    case = KERNELS[kernel](lattice, precision)
    run = case.bind()
    run()
    counters = lattice.layout(precision)
    case.mark()
    before = counters.halo_counters
    run()
    after = counters.halo_counters
    sent = after["bytes"] - before["bytes"], after["messages"] - before["messages"]
    fixed = {field.serial for field in case.fixed}
    split = Update.of(kernel_of(run), ALL, fixed).on(extents, grid)
    part = split.part(lattice.rank)
    return sent, (sum(m.bytes for m in part.sent), len(part.sent)), [(m.source, m.to) for m in part.sent]


@pytest.mark.short(2)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize(
    ("extents", "grid"),
    [((6, 4, 4, 8), (1, 1, 1, 2)), ((5, 4, 6, 7), (1, 1, 2, 2)), ((9, 4, 4, 4), (3, 1, 1, 1))],
)
def test_bytes_and_messages_are_those_of_real_exchanges(kernel, extents, grid, precision):
    for rank, (sent, reported, ways) in enumerate(
        jali.virtual_ranks(int(np.prod(grid)), exchanged, kernel, extents, grid, precision)
    ):
        assert reported == sent
        assert all(source == rank != to for source, to in ways)


def test_an_update_of_a_small_lattice_says_what_a_large_one_sends():
    """One rank, four sites in each direction, stands for ranks that nobody has."""
    case = KERNELS["wilson"](jali.Lattice(4, 4, 4, 4), "float64")
    call = case.bind()
    split = Update.of(kernel_of(call), ALL, {f.serial for f in case.fixed}).on(
        (96, 96, 96, 192), (4, 4, 8, 8)
    )
    part = split.part(1023)
    assert part.extents == (24, 24, 12, 24)
    assert part.bulk.sites == 22 * 22 * 10 * 22
    assert sum(m.bytes for m in part.sent) == 2 * 12 * 8 * (3 * 24 * 24 * 12 + 24**3)  # half spinors


def test_fields_that_nothing_writes_send_nothing():
    lattice = jali.Lattice(4, 4)
    a, out = lattice.field(jali.Real()), lattice.field(jali.Real())
    kernel = kernel_of(forward.bind(out, a))
    assert len(Update.of(kernel, ALL).on((8, 8), (1, 2)).ghosts) == 1
    assert Update.of(kernel, ALL, {a.serial}).on((8, 8), (1, 2)).ghosts == ()


def test_even_sites_that_step_once_read_odd_ghosts_only():
    update = small(laplace, 4, 2, over=EVEN)
    whole, half = (u.on((8, 8, 8, 8), (1, 1, 1, 2)).part(0) for u in (small(laplace, 4, 2), update))
    assert [m.bytes for m in half.sent] == [4 * 512, 4 * 512]
    assert [m.bytes for m in whole.sent] == [8 * 512, 8 * 512]


def test_a_colour_of_four_is_a_quarter():
    four = Colouring(4, lambda x: (x[0] + 2 * x[1]) % 4)
    update = small(laplace, 4, 2, over=four[1])
    part = update.on((8, 8, 8, 8), (1, 1, 1, 2)).part(0)
    assert part.whole.sites == 8 * 8 * 8 * 4 // 4
    assert part.bulk.sites == 8 * 8 * 8 * 2 // 4


def test_boundaries_need_more_of_memory_than_the_bulk_and_never_more_than_all_reads():
    case = KERNELS["staple"](jali.Lattice(4, 4, 4, 4), "float64")
    call = case.bind()
    part = Update.of(kernel_of(call), ALL).on((16, 16, 16, 32), (1, 1, 1, 2)).part(0)
    assert part.bulk.least == 5 * 144 * part.bulk.sites
    assert part.late.least == (3 + 2 + 1 + 1 + 1) * 144 * part.late.sites  # U_0 in three layers, U_3 in two


def test_boxes_that_are_too_small_and_lattices_of_other_dimensions_are_refused():
    update = small(lopsided, 3, 3)
    with pytest.raises(LayoutError, match="is for 3 directions"):
        update.on((8, 8), (1, 2))
    with pytest.raises(LayoutError, match="local extent|extent"):
        _ = update.on((4, 8, 8), (4, 1, 1)).ghosts
    with pytest.raises(LayoutError):
        _ = update.on((2, 8, 8), (4, 1, 1)).ghosts


def test_arrays_are_not_simulated():
    lattice = jali.Lattice(4, 4, device="cpu")  # where arrays of NumPy are
    a, out = lattice.wrap(np.zeros((4, 4), np.float32)), lattice.field(jali.Real())
    kernel = kernel_of(forward.bind(out, a))
    with pytest.raises(ParameterError, match="several lattices, or arrays"):
        Update.of(kernel, ALL)
