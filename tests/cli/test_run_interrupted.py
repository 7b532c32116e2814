"""Runs that are stopped in the middle: a valid checkpoint, the right exit status, and the same history after resuming."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from jali_command import jali_here, running, wait_for, wait_for_rows
from programs import TIMEOUT, alive, run_jali, wait_until

from jali.cli.run_directory import HeldDirectory
from jali.comm.launcher import local_ranks
from jali.io import open_checkpoint

PATH = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []

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
    undisturbed = out.with_name("undisturbed")
    # drawing takes longer than these runs, and test_report.py is about it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")
        assert jali_here("run", "--resume", out, "--set", sweeps, ranks=ranks) == 0
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
        said, _ = process.communicate(timeout=TIMEOUT)
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
        process.wait(timeout=TIMEOUT)
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
        said, _ = process.communicate(timeout=TIMEOUT)
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
        said, _ = process.communicate(timeout=TIMEOUT)
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
        process.communicate(timeout=TIMEOUT)
    assert process.returncode not in (0, None)
    resume_and_compare(endless, out, ranks=1)


@pytest.mark.mpi
@pytest.mark.parametrize("kernel", ["nothing", pytest.param("heat_bath", marks=pytest.mark.full)])
def test_ranks_end_when_the_program_that_started_them_is_killed(kernel, endless, tmp_path):
    out = tmp_path / "run"
    environment, compiling = waiting_compiler(tmp_path, kernel)
    with running("run", endless, "--output", out, "-n", 2, env=environment) as process:
        if kernel == "nothing":
            wait_for_rows(out, 10, process)
        else:
            wait_for(compiling.exists, process)
        ranks = local_ranks(process.pid)
        assert len(ranks) == 2
        process.kill()
        process.wait(TIMEOUT)
        wait_until(lambda: not any(map(alive, ranks)))
    resume_and_compare(endless, out, ranks=1)


def waiting_compiler(folder: Path, kernel: str) -> tuple[dict[str, str], Path]:
    """An environment with an empty cache and a compiler that never ends with this kernel, and the file that it makes then."""
    cache, compiling, compiler = folder / "cache", folder / "compiling", folder / "waiting-c++"
    cache.mkdir(mode=0o700)
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *{kernel}*) echo $$ > {compiling}.new; mv {compiling}.new {compiling}; '
        'while :; do sleep 0.1; done;; esac\nexec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    return {**os.environ, "JALI_CACHE_DIR": str(cache), "CXX": str(compiler)}, compiling


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)]
)
def test_signal_while_a_kernel_of_the_first_sweep_is_compiled_ends_the_run_at_once(
    number, status, endless, tmp_path
):
    out = tmp_path / "run"
    environment, compiling = waiting_compiler(tmp_path, "heat_bath")
    with running("run", endless, "--output", out, env=environment) as process:
        wait_for(compiling.exists, process)
        os.killpg(process.pid, number)
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == status, said
    assert said.count("interrupted") == 1
    assert (
        f"jali: interrupted ({number.name}) before the end of a sweep; jali run --resume {out} goes on"
        in said
    )
    assert "Traceback" not in said
    wait_until(lambda: not alive(int(compiling.read_text())))
    assert open_checkpoint(out / "checkpoint").state["sweep"] == 0
    resume_and_compare(endless, out, ranks=1)


@pytest.mark.mpi
@pytest.mark.parametrize("whom", ["all", pytest.param("one", marks=pytest.mark.full)])
def test_signal_to_ranks_that_compile_ends_them_with_their_status(whom, endless, tmp_path):
    out = tmp_path / "run"
    environment, compiling = waiting_compiler(tmp_path, "heat_bath")
    with running("run", endless, "--output", out, "-n", 2, env=environment) as process:
        wait_for(compiling.exists, process)
        os.kill(process.pid if whom == "all" else local_ranks(process.pid)[1], signal.SIGTERM)
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 143, said
    assert f"interrupted (SIGTERM) before the end of a sweep; jali run --resume {out} goes on" in said
    assert "Traceback" not in said
    resume_and_compare(endless, out, ranks=1)


def test_signal_before_the_first_checkpoint_leaves_no_run(endless, tmp_path):
    out = tmp_path / "run"
    environment, compiling = waiting_compiler(tmp_path, "set_haar")
    with running("run", endless, "--output", out, env=environment) as process:
        wait_for(compiling.exists, process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, said
    assert said == "jali: interrupted (SIGINT) before the run had begun; nothing of it is left\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("number", "status", "rank"),
    [(signal.SIGINT, 130, ""), (signal.SIGTERM, 143, "0"), (signal.SIGTERM, 143, "1")],
)
def test_signal_while_the_command_is_still_importing_ends_it_with_one_line(
    number, status, rank, endless, tmp_path
):
    # A module that takes its time, in the middle of which an exception would be lost.
    (tmp_path / "numpy.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'importing')!r}).touch()\n"
        "for _ in range(1200):\n"
        "    try:\n        time.sleep(0.1)\n"
        "    except BaseException:\n        pass\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *PATH])}
    environment |= {"PMI_RANK": rank} if rank else {}
    with running("run", endless, "--output", tmp_path / "run", env=environment) as process:
        wait_for((tmp_path / "importing").exists, process)
        process.send_signal(number)
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == status
    assert said == ("" if rank == "1" else "jali: interrupted\n")  # the first rank says it for all


def test_of_two_new_runs_in_one_directory_the_first_goes_on_undisturbed(endless, tmp_path, capsys):
    out = tmp_path / "run"
    environment, compiling = waiting_compiler(tmp_path, "set_haar")
    # the first is still in front of its first file
    with running("run", endless, "--output", out, env=environment) as first:
        wait_for(compiling.exists, first)
        before = sorted(out.iterdir())
        assert jali_here("run", endless, "--output", out) == 2
        assert f"{out} is being written by another process" in capsys.readouterr().err
        assert sorted(out.iterdir()) == before
    # the first has written some
    with running("run", endless, "--output", out) as first:
        wait_for_rows(out, 3, first)
        assert jali_here("run", endless, "--output", out, "--set", "beta=9.9") == 2
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=TIMEOUT)
    assert first.returncode == 130, said
    resume_and_compare(endless, out, ranks=1)


def test_holder_of_a_run_directory_takes_back_only_what_it_made(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "notes.txt").write_text("of somebody else")
    with HeldDirectory.for_new_run(directory) as held:
        held.create_table("history").__exit__()
        (directory / "timing.csv").write_text("of somebody else")
        with pytest.raises(FileExistsError):
            held.create_table("timing")
        held.discard()
    assert sorted(path.name for path in directory.iterdir()) == ["notes.txt", "timing.csv"]
