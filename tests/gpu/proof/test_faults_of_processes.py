"""Faults do harm between processes too: two MPI ranks whose fake devices share memory, each with a scheduler of its own.

The faults are those of test_faults_do_harm.py, made by rank 0. Both ranks go through all of them in one program: after one
that did harm they have new devices, in effect, and another communicator.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import numpy as np
import pytest
import test_checked_launches as launches
import test_faults_do_harm as harm
import test_faults_in_collectives as collectives
from fake_driver import REAL, run_on_devices
from seeded_faults import outcome

import jali
from jali import _core, comm
from jali.comm import world
from jali.lattice import binding

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(REAL, reason="faults are made by the fake driver"),
]
HARM = ("right", "other bits", "fault", "stuck")
# What every fault of a list is made of, by the name of the list: on each of the two ranks.
MADE_OF = {
    "halos": lambda policy: harm.Halos(noted(), "pair", policy),
    "graphs": lambda policy: harm.Graphs(noted(), "pair", policy),
    "messages": lambda transport: harm.Messages(transport, 2),
    "collectives": harm.Collectives,
}


def noted() -> launches.Made:
    """The launches that this process makes from now on."""
    made = launches.Made()
    binding._core.Launch = launches.noting(made)  # type: ignore[misc, assignment]
    return made


def everywhere(of: Any, number: int | None) -> str:
    """What becomes of a fault on all ranks: the worst of what it does on one."""
    mine = outcome(lambda: of.body(number))
    said = HARM[int(comm.current().all_gather(np.array([HARM.index(mine)])).max())]
    if said != "right":  # others' devices are as new as well
        world._process = comm.current().duplicate()
    return said


def draw_from(seed: int) -> None:
    """Each rank draws from a seed of its own."""
    os.environ["JALI_FAKE_SEED"] = str(comm.current().size * seed + comm.current().rank)


def hold(kind: str, which: str, every: int, excused: list[str]) -> None:
    """As in test_faults_do_harm.py, on this rank; the first prints what came of each fault: (what, found, said)."""
    prove = kind != "collectives"  # faults are seeded into them as well
    jali.settings.use(prove_launches=prove, device_queues=collectives.SMALL_QUEUES)
    if kind in ("halos", "graphs"):
        jali.settings.use(halo_policy=which)
    of = MADE_OF[kind](which)
    os.environ["JALI_FAKE_NAP"] = "1000"
    for seed in range(2):  # without a fault
        draw_from(seed)
        assert everywhere(of, None) == "right"
    record = of.record()
    reported = dict(enumerate(comm.current().gather_bytes(record.reported())))
    about = []  # as the first rank has them, which makes them
    for number, (what, fault) in (
        list(enumerate(of.faults(record)))[::every] if comm.current().rank == 0 else []
    ):
        if not fault.can_be_made():
            continue
        try:
            _core.check_reported({**reported, 0: fault.recorded().reported()})
            about.append((number, what, False))
        except RuntimeError:
            about.append((number, what, True))
    said = []
    for number, what, found in json.loads(comm.current().broadcast_bytes(json.dumps(about).encode(), 0)):
        os.environ["JALI_FAKE_TIMEOUT"] = str(harm.TIMEOUT if found else 20)
        spared = found and any(re.fullmatch(one, what) for one in excused)
        result = "right"
        for seed in range(1, harm.SEEDS + 1 if found and not spared else 3):
            draw_from(seed)
            result = everywhere(of, number)
            if result != "right":
                break
        if not spared:
            said.append((what, found, result))
    if comm.current().rank == 0:
        print(json.dumps(said), flush=True)


# Faults that the checker refuses and that do no harm between processes.
PUT_TOGETHER = [
    (
        "0 launch pass_messages: received . other arrived",
        "both messages are put by one launch of the other process, which is seldom late between the two",
    )
]
HALOS_PUT_TOGETHER = [
    (
        "1 launch pack_halos: awaited_count -1",
        "likewise: both neighbours of a rank are the other process, whose one launch puts both messages",
    )
]
EXCUSED = {
    "slotted pair": harm.FREED_OTHERWISE,
    "remote-write": PUT_TOGETHER,
    "remote-write-overlap": harm.ONLY_REPORTED + HALOS_PUT_TOGETHER,
}


@pytest.mark.parametrize(
    ("kind", "which", "every"),
    harm.sampled(
        ("halos", "remote-write-overlap", 12),
        pytest.param("messages", "remote-write", 11, marks=pytest.mark.full),
        pytest.param("collectives", "slotted pair", 40, marks=pytest.mark.full),
        whole=[
            ("halos", "remote-write-overlap"),
            ("halos", "buffered-write-overlap"),
            ("halos", "copy-engine-overlap"),
            ("halos", "remote-write-one-launch"),
            ("graphs", "remote-write-overlap"),
            ("messages", "remote-write"),
            ("messages", "copy-engine"),
            ("collectives", "slotted pair"),
            ("collectives", "flagged pair"),
        ],
    ),
)
def test_faults_do_harm_between_processes(kind, which, every, fake_environment):
    """What the checker finds does harm, what it does not find does none; see test_faults_do_harm.py."""
    excused = [fault for fault, _ in EXCUSED.get(which, harm.ONLY_REPORTED)]
    text = f"import test_faults_of_processes as t\nt.hold({kind!r}, {which!r}, {every}, {excused})"
    done = run_on_devices(2, text, fake_environment, unproved="faults are seeded")
    said = json.loads(done.stdout)
    assert [one for one in said if one[1] != (one[2] != "right")] == []
    assert len(said) >= 2
    assert {"right"} != {one[2] for one in said}
