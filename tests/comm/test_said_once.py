"""Errors that all MPI ranks make are said by one of them; what one rank makes, or each differently, is said as well."""

from __future__ import annotations

from programs import on_ranks, run_program

MISTAKE = """
import jali
lattice = jali.Lattice(4, 4)
a = jali.Field(lattice, jali.Real())

@jali.site_function
def wrong(X, a):
    if a[X] > 0:
        a[X] = 1.0
"""


def test_mistake_of_all_ranks_is_said_by_one(any_mpi) -> None:
    ended = any_mpi.run(MISTAKE + "\nwrong(a)\n", ranks=2)
    assert ended.status != 0
    assert ended.err.count("Traceback") == 1, ended.err
    assert ended.err.count("a symbol has no truth value") == 1, ended.err
    assert "jali: rank 0 failed:" in ended.err
    assert "program.py:" in ended.err


def test_mistake_that_a_later_rank_makes_as_well_is_said_once(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current()
        world.barrier()
        time.sleep(0.4 * world.rank)
        raise ValueError("beta must be above 0")
        """,
        ranks=2,
    )
    assert ended.status != 0
    assert ended.err.count("ValueError: beta must be above 0") == 1, ended.err


def test_mistake_of_the_second_rank_alone_is_said(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current()
        if world.rank == 1:
            raise ValueError("only here")
        world.barrier()
        """,
        ranks=2,
    )
    assert ended.status != 0
    assert ended.err.count("Traceback") == 1, ended.err
    assert "jali: rank 1 failed:" in ended.err
    assert "jali: rank 0 stopped: rank 1 failed: ValueError: only here" in ended.err


def test_different_mistakes_of_ranks_are_all_said(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current()
        world.barrier()
        raise ValueError(f"rank {world.rank} is unhappy")
        """,
        ranks=2,
    )
    assert ended.status != 0
    for rank in range(2):
        assert f"jali: rank {rank} failed:\nTraceback" in ended.err, ended.err
        assert ended.err.count(f"ValueError: rank {rank} is unhappy") == 1, ended.err


def test_mistake_that_the_program_catches_is_the_programs_to_say(any_mpi) -> None:
    ended = any_mpi.run(
        MISTAKE
        + """
try:
    wrong(a)
except jali.TraceError as error:
    print("caught", str(error).splitlines()[0][:20], flush=True)
comm.current().barrier()
""",
        ranks=2,
    )
    assert ended.status == 0, ended.err
    assert ended.out.count("caught a symbol has no trut") == 2
    assert ended.err == ""


def test_error_that_a_command_meets_on_every_rank_is_said_once(any_mpi, tmp_path) -> None:
    parameters = tmp_path / "u1.toml"
    parameters.write_text('[lattice]\nextents = [4, 6]\n[gauge]\ngroup = "U(1)"\nbeta = 1.5\n')
    words = ["run", parameters, "--output", tmp_path / "run", "--device", "cuda:4000"]
    done = run_program(on_ranks(2, any_mpi.python, "-m", "jali", *words, python=any_mpi.python), status=None)
    assert done.returncode != 0
    assert sum(line.startswith("jali: ") for line in done.stderr.splitlines()) == 1, done.stderr
