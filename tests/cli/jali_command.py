"""Helpers for tests of the commands: the command in this process, on virtual ranks, as a program that goes on; small configurations."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from programs import TIMEOUT

import jali
from jali.cli.main import main

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def shared_file(name: str) -> str:
    """A reference configuration beside the checkout; CI must have it, elsewhere its tests are skipped."""
    path = SHARED / name
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail(f"reference configuration {name} is missing beside the checkout, and CI is set")
        pytest.skip(f"reference configuration {name} is not beside the checkout (shared/data)")
    return str(path)


def jali_here(*words: object, ranks: int = 1) -> int:
    """Exit status of `jali WORDS...` in this process, on one rank or on virtual ones, which must agree on it."""
    command = [str(word) for word in words]
    if ranks == 1:
        return main(command)
    statuses = jali.virtual_ranks(ranks, main, command)
    assert len(set(statuses)) == 1, statuses
    return statuses[0]


def running(
    *words: object, env: dict[str, str] | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """`jali WORDS...` as a program that is still running; killed in the end if it has not ended by itself."""
    return running_program([sys.executable, "-m", "jali", *words], env)


@contextlib.contextmanager
def running_program(
    command: Sequence[object], env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """As `running`, of any command."""
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=env,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT)
            process.kill()
            process.communicate()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Return when the condition holds, which must be while the program runs."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"nothing in {TIMEOUT} s"
        time.sleep(0.01)


def wait_for_rows(directory: Path, rows: int, process: subprocess.Popen[str]) -> None:
    """Return when history.csv has that many rows."""
    history = directory / "history.csv"
    wait_for(lambda: history.exists() and history.read_bytes().count(b"\n") > rows, process)


def random_links(lattice: tuple[int, ...], n: int, seed: int = 1) -> np.ndarray:
    """Random SU(n) links (t, z, y, x, 4, n, n), not far from one, so that no observable is tiny."""
    rng = np.random.default_rng(seed)
    shape = (*lattice[::-1], 4, n, n)
    q, r = np.linalg.qr(2 * np.eye(n) + rng.normal(size=shape) + 1j * rng.normal(size=shape))
    diagonal = np.einsum("...ii->...i", r)
    q *= (diagonal / abs(diagonal))[..., None, :]
    if n > 1:
        q[..., :, 0] /= np.linalg.det(q)[..., None]
    return np.ascontiguousarray(q)


def plaquettes(u: np.ndarray) -> tuple[float, float, float]:
    """Mean Re tr P / n of links (t, z, y, x, 4, n, n): all planes, spatial and temporal ones. Written for clarity."""
    n = u.shape[-1]
    found = {}
    for mu, nu in itertools.combinations(range(4), 2):
        a, b = u[..., mu, :, :], u[..., nu, :, :]
        a_up, b_up = np.roll(a, -1, axis=3 - nu), np.roll(b, -1, axis=3 - mu)
        loop = a @ b_up @ a_up.conj().swapaxes(-1, -2) @ b.conj().swapaxes(-1, -2)
        found[mu, nu] = np.trace(loop, axis1=-2, axis2=-1).real.mean() / n
    temporal = [p for (_, nu), p in found.items() if nu == 3]
    spatial = [p for (_, nu), p in found.items() if nu != 3]
    return float(np.mean([*spatial, *temporal])), float(np.mean(spatial)), float(np.mean(temporal))


def link_trace(u: np.ndarray) -> float:
    """Mean Re tr U / n."""
    return float(np.trace(u, axis1=-2, axis2=-1).real.mean() / u.shape[-1])


def polyakov_loop(u: np.ndarray) -> complex:
    """Mean (1/n) tr of the product of the time links, of links (t, z, y, x, 4, n, n)."""
    line = u[0, ..., 3, :, :]
    for t in range(1, u.shape[0]):
        line = line @ u[t, ..., 3, :, :]
    return complex(np.trace(line, axis1=-2, axis2=-1).mean() / u.shape[-1])
