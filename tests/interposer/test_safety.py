"""What may go wrong between an MPI program, its library, devices and jali."""

import re
from pathlib import Path

import pytest
from mpi_programs import REAL, MpiPrograms
from programs import run_program

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1800)]

STAND_IN = pytest.mark.skipif(REAL, reason="the library of this machine does not fail when it is told to")
# Rank 1 alone gets these settings.
ONE_RANK = """#!/bin/sh
rank="${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
if [ "$rank" = 1 ]; then export "$1"; fi
shift
exec "$@"
"""


@pytest.mark.short(2)
@pytest.mark.parametrize(
    "what",
    [
        "shared",
        "neighbours between orders",
        "threads threads_of_requests",
        "contexts",
        pytest.param("lifetimes", marks=pytest.mark.full),  # makes more communicators than MPI has
    ],
)
def test_all_goes_well(mpi: MpiPrograms, what: str) -> None:
    """Two ranks of one device; neighbours at edges; calls between two groups; several threads with communicators of their own, and with
    requests; types in another order than memory's; devices that are current, and what failed; more communicators than MPI has at
    once, freed in any order or not at all."""
    assert mpi.run(mpi.build("safety"), *what.split(), JALI_FAKE_GPU_BYTES=str(1 << 30))[0] == "right\n"


@pytest.mark.short(1)
def test_a_killed_rank_ends_the_job(mpi: MpiPrograms) -> None:
    _, errors = mpi.run(mpi.build("safety"), "killed", status=None, timeout=60)
    assert "went on" not in errors


@pytest.mark.short(1)
@pytest.mark.skipif(REAL, reason="devices of this machine have room")
def test_a_device_without_room_for_plans(mpi: MpiPrograms, tmp_path: Path) -> None:
    """Communicators on which some rank's device has none go through MPI, staged, and jali says so."""
    script = tmp_path / "one_rank"
    script.write_text(ONE_RANK)
    script.chmod(0o700)
    out, errors = mpi.run(
        script, "JALI_FAKE_GPU_BYTES=60000000", mpi.build("safety"), "failing", JALI_MPI_COUNTERS="1"
    )
    assert out.count("right") == mpi.ranks
    assert re.search(
        r"jali: collectives on devices go through MPI, .*out of device memory.* on device 1 ", errors
    )
    assert re.search(r"jali: MPI_Allreduce .* by mpi, staged", errors)


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"JALI_NCCL": "/nonexistent"}, "NCCL was not found"),
        pytest.param({"JALI_FAKE_CCL_ERROR_AFTER": "0"}, "the fake cable is unplugged", marks=STAND_IN),
        pytest.param(
            {"JALI_FAKE_CCL_HANG_AFTER": "0", "JALI_WATCHDOG": "4"},
            "nothing has moved for 4 s",
            marks=STAND_IN,
        ),
    ],
)
def test_a_library_that_is_missing_fails_or_hangs(
    mpi: MpiPrograms, settings: dict[str, str], reported: str
) -> None:
    """Where the vendor's is asked for by name: no call of MPI says that it went well."""
    out, errors = mpi.run(
        mpi.build("safety"), "failing", status=None, timeout=120, JALI_COLLECTIVE="nccl", **settings
    )
    assert "right" not in out
    assert reported in errors


@pytest.mark.short(1)
def test_other_settings_on_one_rank_end_the_job_at_its_begin(mpi: MpiPrograms, tmp_path: Path) -> None:
    script = tmp_path / "one_rank"
    script.write_text(ONE_RANK)
    script.chmod(0o700)
    _, errors = mpi.run(
        script, "JALI_MPI_ASK_FROM=77", mpi.build("safety"), "plain", status=None, timeout=120
    )
    assert "ranks have other versions or settings of jali (JALI_COLLECTIVE" in errors
    _, errors = mpi.run(
        script, "JALI_MPI_SERVE=maybe", mpi.build("safety"), "plain", status=None, timeout=120
    )
    assert "JALI_MPI_SERVE" in errors


def test_settings_that_cannot_be_end_the_job(mpi: MpiPrograms, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("version = 1\n[[rule]]\nalgorithms = ['nothing']\n")
    _, errors = mpi.run(
        mpi.build("safety"), "plain", status=None, timeout=120, JALI_COLLECTIVE_RULES=str(rules)
    )
    assert re.search(r"jali: rank \d: .*rules.toml, line 3: ", errors)


def test_a_program_without_mpi_does_not_notice(mpi: MpiPrograms) -> None:
    done = run_program(["env", f"LD_PRELOAD={mpi.interposer}", "sh", "-c", "echo nothing"])
    assert (done.stdout, done.stderr) == ("nothing\n", "")
