"""Runs that are stopped in the middle: a valid checkpoint, the right exit status, and the same history after resuming."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from jali_command import jali_here, running, wait_for, wait_for_rows
from programs import PATIENCE, run_jali

from jali.comm.launcher import local_ranks
from jali.io import open_checkpoint

ENDLESS = """\
[lattice]
extents = [4, 4, 4, 4]
[gauge]
group = "SU(2)"
beta = 2.3
[update]
thermalisation = 5
sweeps = 1000000
overrelaxation = 1
[run]
checkpoint_every = 7
"""


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    path = tmp_path / "endless.toml"
    path.write_text(ENDLESS)
    return path


def resume_and_compare(file: Path, out: Path, ranks: int) -> None:
    """Resume for a few sweeps; the history must be that of a run that nobody disturbed."""
    done = open_checkpoint(out / "checkpoint").state["sweep"]
    sweeps = f"sweeps={done + 3}"
    assert jali_here("run", "--resume", out, "--set", sweeps, ranks=ranks) == 0
    undisturbed = out.with_name("undisturbed")
    assert jali_here("run", file, "--output", undisturbed, "--set", sweeps) == 0
    assert (out / "history.csv").read_bytes() == (undisturbed / "history.csv").read_bytes()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)]
)
def test_signal_leaves_a_checkpoint_of_the_last_sweep_and_a_report(number, status, endless, tmp_path):
    out = tmp_path / "run"
    with running("run", endless, "--output", out) as process:
        wait_for_rows(out, 10, process)
        # To the whole process group, as a terminal does.
        os.killpg(process.pid, number)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, said
    rows = (out / "history.csv").read_text().count("\n") - 1
    assert open_checkpoint(out / "checkpoint").state["sweep"] == rows
    assert f"interrupted ({number.name}) after sweep {rows} of 1000005" in said
    assert f"jali run --resume {out}" in said
    assert (out / "report.html").exists()
    resume_and_compare(endless, out, ranks=2)


def test_killed_run_goes_on_from_its_last_checkpoint(endless, tmp_path):
    out = tmp_path / "run"
    with running("run", endless, "--output", out) as process:
        wait_for_rows(out, 17, process)
        process.kill()
        process.wait(timeout=PATIENCE)
    done = open_checkpoint(out / "checkpoint").state["sweep"]
    assert done % 7 == 0
    assert done >= 7
    resume_and_compare(endless, out, ranks=3)


def test_run_that_goes_on_elsewhere_is_not_resumed_at_the_same_time(endless, tmp_path, capsys):
    out = tmp_path / "run"
    with running("run", endless, "--output", out) as process:
        wait_for_rows(out, 3, process)
        assert jali_here("run", "--resume", out) == 2
        assert "is being written by another process" in capsys.readouterr().err
        assert process.poll() is None


@pytest.mark.full
@pytest.mark.mpi
def test_signal_to_one_mpi_rank_stops_both_at_the_same_sweep(endless, tmp_path):
    out = tmp_path / "run"
    with running("run", endless, "--output", out, "-n", 2) as process:
        wait_for_rows(out, 10, process)
        os.kill(local_ranks(process.pid)[1], signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, said
    assert said.count("interrupted (SIGTERM)") == 1
    rows = (out / "history.csv").read_text().count("\n") - 1
    assert open_checkpoint(out / "checkpoint").state["sweep"] == rows
    resume_and_compare(endless, out, ranks=1)


@pytest.mark.full
@pytest.mark.mpi
def test_interrupt_of_the_program_that_started_the_ranks_leaves_a_checkpoint(endless, tmp_path):
    out = tmp_path / "run"
    with running("run", endless, "--output", out, "-n", 2) as process:
        wait_for_rows(out, 10, process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    done = open_checkpoint(out / "checkpoint").state["sweep"]
    run_jali("run", "--resume", out, "--set", f"sweeps={done}", "-n", 2)
    resume_and_compare(endless, out, ranks=1)


@pytest.mark.mpi
def test_mpi_rank_that_is_killed_ends_the_job_and_the_run_can_be_resumed(endless, tmp_path):
    out = tmp_path / "run"
    with running("run", endless, "--output", out, "-n", 2) as process:
        wait_for_rows(out, 10, process)
        os.kill(local_ranks(process.pid)[1], signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    resume_and_compare(endless, out, ranks=1)


def test_interruption_while_a_kernel_is_compiled_is_an_interruption_after_the_first_sweep(endless, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    out = tmp_path / "run"
    # A compiler that waits until it is told to go on, so that the signal surely comes while it runs.
    compiler = tmp_path / "slow-c++"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *heat_bath*) touch {tmp_path}/begun; '
        f'while [ ! -e {tmp_path}/go ]; do sleep 0.05; done;; esac\nexec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    environment = {**os.environ, "JALI_CACHE_DIR": str(cache), "CXX": str(compiler)}
    with running("run", endless, "--output", out, env=environment) as process:
        wait_for(lambda: (tmp_path / "begun").exists(), process)
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert open_checkpoint(out / "checkpoint").state["sweep"] == 1
