"""The main job on the ranks and devices that this process is one of: the history of one processor, and files that all can read.

These tests run like all others on one rank; started on several (`mpiexec -n 4 python -m pytest tests/any_ranks tests/physics`, as
`make test-gpu` does on all GPUs of a machine) every rank runs them, and they are about all of them together.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jali
from jali import _core, comm
from jali.comm.communicator import Communicator
from jali.gauge import SU, GaugeField, plaquette, sweep

sys.path.insert(0, str(Path(__file__).parents[1] / "identity"))

import history

pytestmark = pytest.mark.lanes


@pytest.fixture
def alone() -> Communicator:
    """A communicator of this rank alone."""
    return Communicator(_core.make_self_communicator(), 1)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One folder for all ranks, which goes when the last has left."""
    ranks = comm.current()
    with tempfile.TemporaryDirectory() as mine:
        yield Path(pickle.loads(ranks.broadcast_bytes(pickle.dumps(mine), 0)))
        ranks.barrier()


def links_of(U: GaugeField) -> list[bytes]:
    return [np.ascontiguousarray(field[...]).tobytes() for field in U.fields]


def evolved(**options: object) -> GaugeField:
    U = GaugeField(jali.Lattice(4, 6, 4, 8, **options), SU(3)).hot_start(seed=7)  # type: ignore[arg-type]
    sweep(U, 5.7, jali.Random(3), overrelaxation=1)
    return U


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_history_is_that_of_one_processor(precision: str, alone: Communicator) -> None:
    expected = history.history(precision, communicator=alone, device="cpu")
    assert history.history(precision) == expected


def test_checkpoint_is_continued(folder: Path, alone: Communicator) -> None:
    assert history.history("float64", directory=folder) == {}
    found = history.history("float64", directory=folder)
    assert found == history.history("float64", communicator=alone, device="cpu")


@pytest.mark.parametrize("format", ["ildg", "nersc"])
def test_files_are_those_of_one_processor_and_are_read_by_all(
    format: str, folder: Path, alone: Communicator
) -> None:
    U, own = evolved(), evolved(communicator=alone, device="cpu")
    ranks = comm.current()
    metadata = {"ENSEMBLE_ID": "test"} if format == "nersc" else None
    U.save(folder / "together", format=format, metadata=metadata)
    own.save(folder / f"alone-{ranks.rank}", format=format, metadata=metadata)
    ranks.barrier()
    read = GaugeField.from_file(folder / "together", lattice=U.lattice)
    assert links_of(read) == links_of(own)
    assert plaquette(read) == plaquette(own)
    back = GaugeField.from_file(folder / f"alone-{ranks.rank}", lattice=own.lattice)
    assert links_of(back) == links_of(own)
    assert os.path.getsize(folder / "together") == os.path.getsize(folder / f"alone-{ranks.rank}")
    ranks.barrier()
