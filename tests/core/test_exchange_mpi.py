"""The halo exchange over MPI: the same bits as one rank, with both policies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import need_mpi, on_ranks, run_program

PROGRAM = r"""
import sys
import numpy as np
from jali import _core, comm

kernels = _core.KernelModule(sys.argv[1])
world = comm.current()
extents = (4, 6, 8)
reference = np.random.default_rng(3).normal(size=(8, 6, 4, 3))
expected = None
for policy in ("remote-write-overlap", "remote-write-wait", "messages-overlap", "messages-wait"):
    grid = _core.choose_grid(extents, world.size, 4)
    p = _core.Partition(extents, grid)
    layout = _core.Layout(p, world.rank, 4)
    pool = _core.ThreadPool(1)
    f, out = (_core.FieldStorage(layout, [(n, 8, 1)], "f") for n in (3, 1))
    box = tuple(slice(o, o + n) for o, n in zip(p.origin(world.rank), p.extents(world.rank)))[::-1]
    f.import_box(np.ascontiguousarray(reference[box]))
    offsets = [[1, 0, 0], [0, -1, 1], [0, 1, -1], [-1, -1, -1]]
    tables = [layout.neighbours(o) for o in offsets]
    parameters = np.zeros(11 + 6 * len(offsets), np.uint64)
    parameters[8], parameters[9] = layout.lanes, len(offsets)
    for k, t in enumerate(tables):
        parameters[12 + 6 * k], parameters[14 + 6 * k], parameters[15 + 6 * k] = 3, t.entries_address, t.permutations_address
    launch = _core.Launch(layout, world.core, pool, kernels.symbol("gather"), parameters,
        [(10, out)] + [(11 + 6 * k, f) for k in range(len(offsets))], [(f, o, 3) for o in offsets], [(out, 3)],
        policy=policy)
    total = _core.Launch(layout, world.core, pool, kernels.symbol("sum_reals"),
        np.array([0] * 8 + [layout.lanes, 1, 0], np.uint64), [(10, out)], [], [], nsums=1)
    for repeat in range(20):
        launch.run()
        f.mark_written()
    want = sum((np.roll(reference, [-x for x in o], [2, 1, 0]) * np.arange(1, 4)).sum(-1, keepdims=True)
               for o in offsets)
    assert np.abs(out.export_box().view(float) - want[box]).max() < 1e-12
    value = total.run()[0]
    assert expected is None or value == expected
    expected = value
if world.rank == 0:
    print("sum", expected.hex())
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (3, 4))])
def test_exchange_over_mpi_gives_the_bits_of_one_rank(
    kernel_library: Path, tmp_path: Path, ranks: int
) -> None:
    need_mpi()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    sums = {
        run_program(on_ranks(n, sys.executable, program, kernel_library)).stdout.strip() for n in (1, ranks)
    }
    assert len(sums) == 1
