"""A short SU(3) history that touches everything random or communicating: run it on any ranks, get the same bits.

Hot start, heat bath and overrelaxation with measurements, gradient flow; per precision the exact history and a SHA-256 of all
links. As a program: `python history.py [checkpoint directory]` prints JSON on rank 0; with a directory it stops half way, writes a
checkpoint there, or continues from it if there is one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import jali
from jali import comm
from jali.gauge import SU, Flow, GaugeField, plaquettes, polyakov_loop, sweep
from jali.io import Box, open_checkpoint, write_checkpoint

EXTENTS = (4, 4, 6, 6)
SWEEPS = 4


def digest(U: GaugeField) -> str:
    """SHA-256 over the bytes of all links in global order, the same on every rank."""
    sha = hashlib.sha256()
    for field in U.fields:
        sha.update(np.ascontiguousarray(field[...]).tobytes())
    return sha.hexdigest()


def measure(U: GaugeField) -> list[str]:
    """Plaquettes and Polyakov loop, every bit."""
    loop = polyakov_loop(U)
    return [value.hex() for value in (*plaquettes(U), loop.real, loop.imag)]


def history(
    precision: str, grid: Any = None, directory: Path | None = None, **options: Any
) -> dict[str, Any]:
    """The history in one precision; see the module for `directory`."""
    lattice = jali.Lattice(*EXTENTS, grid=grid, **options)
    box = Box(lattice.local_origin, lattice.local_extents)
    ranks = lattice.communicator
    path = directory / precision if directory else None
    U = GaugeField(lattice, SU(3), precision=precision)
    rows: list[list[str]] = []
    if path is not None and path.exists():
        saved = open_checkpoint(path, ranks=ranks)
        U.set_local_links(saved.read("links", box))
        rng = jali.Random.from_state(saved.rng)
        rows = saved.state["rows"]
    else:
        rng = jali.Random(seed=11)
        U.hot_start(rng)
        rows.append(measure(U))
    while len(rows) <= SWEEPS:
        sweep(U, 5.7, rng, heatbath=1, overrelaxation=2)
        rows.append(measure(U))
        if path is not None and not path.exists() and len(rows) == SWEEPS // 2:
            fields = {"links": U.local_links()}
            write_checkpoint(path, EXTENTS, box, fields, rng=rng.state, state={"rows": rows}, ranks=ranks)
            return {}
    links = digest(U)
    flow = Flow(U, step=0.05)
    flow.advance(2)
    return {"rows": rows, "links": links, "flowed": digest(flow.field), "flow": measure(flow.field)}


def both(grid: Any = None, directory: Path | None = None, **options: Any) -> dict[str, Any]:
    """The histories in both precisions."""
    return {precision: history(precision, grid, directory, **options) for precision in ("float64", "float32")}


if __name__ == "__main__":
    result = both(directory=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    if comm.current().rank == 0:
        print(json.dumps(result))
