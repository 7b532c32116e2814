"""A rank that is killed in the middle of an exchange: the others raise, though the launcher says nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_driver import PATH, REAL
from programs import end_of, importing_from, need_openmpi, on_ranks

pytestmark = pytest.mark.mpi
LIMIT = 10.0  # seconds in which all ranks have to know

# The parent of a rank is what would end the job: it is stopped before the rank dies, and goes on when the test has seen all.
PROGRAM = """
import os, pathlib, signal, time
import jali
from jali import comm
from jali.errors import RankError

folder = pathlib.Path({folder!r})

@jali.site_function
def around(X, y, x):
    y[X] = x[X]
    for mu in X.directions():
        y[X] += x[X + mu] + x[X - mu]

def write(name, text):
    (folder / (name + ".new")).write_text(text)
    (folder / (name + ".new")).rename(folder / name)

world = comm.current()
lattice = jali.Lattice(16, 16, device="cuda")
x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
around(y, x)
around(x, y)
x[...]
world.barrier()
if world.rank == 1:
    while len(list(folder.glob("launched-*"))) < world.size - 1 or any(
        name.suffix == ".new" for name in folder.iterdir()
    ):
        time.sleep(0.01)
    time.sleep(0.5)
    write("launcher", str(os.getppid()))
    os.kill(os.getppid(), signal.SIGSTOP)
    write("killed", str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(3):  # the neighbours of rank 1 wait in the first one, theirs in the second
        around(y, x)
        around(x, y)
    write(f"launched-{{world.rank}}", "")
    x[...]
    said = "came back"
except RankError as error:
    said = str(error)
write(f"said-{{world.rank}}", f"{{time.time()}} {{said}}")
time.sleep(1000)
"""


@pytest.mark.skipif(REAL, reason="processes with fake devices")
@pytest.mark.parametrize(
    "policy",
    [
        "remote-write-one-launch",
        *(
            pytest.param(p, marks=pytest.mark.full)
            for p in ("remote-write-pack-in-bulk", "remote-write-overlap")
        ),
    ],
)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, id="4 of Open MPI", marks=pytest.mark.full)])
def test_the_others_raise_and_name_the_rank_and_what_they_wait_for(
    ranks: int, policy: str, fake_environment: dict[str, str], tmp_path: Path
) -> None:
    python = sys.executable if ranks == 2 else need_openmpi()
    env = {**fake_environment, "JALI_FAKE_GPUS": "4", "JALI_HALO_POLICY": policy}
    command = on_ranks(ranks, python, "-c", PROGRAM.format(folder=str(tmp_path)), python=python)
    job = subprocess.Popen(
        list(map(str, command)),
        env=importing_from(PATH, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    others = [rank for rank in range(ranks) if rank != 1]
    said = {rank: tmp_path / f"said-{rank}" for rank in others}
    end = time.monotonic() + 120
    try:
        while not all(path.exists() for path in said.values()):
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < end, sorted(path.name for path in tmp_path.iterdir())
            time.sleep(0.05)
    finally:
        if (tmp_path / "launcher").exists():
            os.kill(int((tmp_path / "launcher").read_text()), signal.SIGCONT)
        else:
            job.kill()
        end_of(job, 60)
    killed = float((tmp_path / "killed").read_text())
    for rank in others:
        when, _, text = said[rank].read_text().partition(" ")
        assert text.startswith("rank 1 failed: its process has died"), text
        assert re.search(rf"\(rank {rank} waits for .*(exchange|rank \d).*, in .\w", text), text
        assert killed < float(when) < killed + LIMIT, (rank, text)
