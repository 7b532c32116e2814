"""Halos that are packed into the ghosts of another process: memory comes back, forks are apart, failures end waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import need_mpi, on_ranks, run_program

HEAD = r"""
import os, sys, time
import numpy as np
import jali
from jali import comm
world = comm.current()
other = 1 - world.rank
jali.settings.use(halo_policy="remote-write-wait")
lattice = jali.Lattice(6, 5, 8, grid=(1, 1, 2))
up = lattice.directions[2]

@jali.site_function
def shift(X, out, f):
    out[X] = f[X + up]

@jali.site_function
def far(X, out, f):
    out[X] = f[X + 2 * up] + f[X - up]

def numbers(element=jali.Real()):
    f = jali.Field(lattice, element)
    return f

def check(out, f, *offsets):
    whole = f[...]
    want = sum(np.roll(whole, -o, 2) for o in offsets)
    assert (out[...] == want).all()

def heap_bytes():
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memfd:jali" in os.readlink(f"/proc/self/fd/{name}"):
                return 512 * os.stat(f"/proc/self/fd/{name}").st_blocks
        except OSError:
            pass
    return -1
"""

PROGRAMS = {
    "memory comes back": r"""
held = []
for k in range(30):
    f, out = numbers(jali.Vector(3)), numbers(jali.Vector(3))
    f[...] = np.arange(6 * 5 * 8 * 3).reshape(6, 5, 8, 3) + 1j * k
    shift(out, f)
    check(out, f, 1)
    held.append(heap_bytes())
    del f, out
assert heap_bytes() < min(held), (heap_bytes(), held)
assert 0 < max(held) < 1 << 22, held
assert held[-1] <= held[2], held
""",
    "ghosts that grow are exposed anew": r"""
f, out = numbers(), numbers()
f[...] = np.random.default_rng(1).normal(size=(6, 5, 8))
for k in range(3):
    shift(out, f)
    check(out, f, 1)
    f *= 2
    far(out, f)
    check(out, f, 2, -1)
    f += 1
assert lattice.layout("float64").halo_counters["exchanged"] > 0
""",
    "a forked child has ghosts of its own": r"""
f, out = numbers(), numbers()
f[...] = np.random.default_rng(1).normal(size=(6, 5, 8))
shift(out, f)
before = f.local().copy()
child = os.fork()
if child == 0:
    f.storage.fill_zero()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (f.local() == before).all()
shift(out, f)
check(out, f, 1)
""",
    "what ranks do is in order": r"""
f, out = numbers(jali.Vector(2)), numbers(jali.Vector(2))
f[...] = 1
shift(out, f)
for bound in shift._bound.values():
    for kernel in bound.kernels:
        kernel.launch.check()
        assert "put" in kernel.launch.describe()
""",
    "many fields at once": r"""
fields = [numbers() for _ in range(40)]
outs = [numbers() for _ in range(40)]
for k, f in enumerate(fields):
    f[...] = np.arange(240).reshape(6, 5, 8) + k
for f, out in zip(fields, outs):
    shift(out, f)
for f, out in zip(fields, outs):
    check(out, f, 1)
""",
}


def on_two_ranks(folder: Path, text: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the text behind HEAD."""
    need_mpi()
    program = folder / "program.py"
    program.write_text(HEAD + text)
    return run_program(on_ranks(2, sys.executable, program), **options)


@pytest.mark.short(2)
@pytest.mark.mpi
@pytest.mark.parametrize("name", PROGRAMS)
def test_ghosts_of_another_process(name: str, tmp_path: Path) -> None:
    done = on_two_ranks(tmp_path, PROGRAMS[name] + '\nprint("fine")\n')
    assert done.stdout.split() == ["fine", "fine"], done.stderr


@pytest.mark.mpi
def test_a_rank_that_dies_ends_the_wait_for_its_signal(tmp_path: Path) -> None:
    text = r"""
f, out = numbers(), numbers()
f[...] = 1
shift(out, f)
f += 1
if world.rank == 1:
    raise ValueError("rank 1 gives up")
shift(out, f)
"""
    done = on_two_ranks(tmp_path, text, status=None)
    assert done.returncode != 0
    assert "rank 1 gives up" in done.stderr


@pytest.mark.mpi
def test_where_no_memory_is_shared_the_default_is_messages_and_a_named_row_an_error(tmp_path: Path) -> None:
    text = r"""
f, out = numbers(), numbers()
f[...] = np.arange(240).reshape(6, 5, 8)
jali.settings.use(halo_policy=None)
plain = shift.bind(out, f)
plain()
check(out, f, 1)
print([kernel.launch.policy for bound in shift._bound.values() for kernel in bound.kernels])
jali.settings.use(halo_policy="remote-write-wait")
f += 1
try:
    far(out, f)
except jali.JaliError as error:
    print(error)
"""
    done = on_two_ranks(tmp_path, text, env={**os.environ, "JALI_SHM": "0"})
    assert "remote-write" not in done.stdout.split("\n")[0]
    assert done.stdout.count("halo policy remote-write-wait is not possible here: ranks of transport") == 2
