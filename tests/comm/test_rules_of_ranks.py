"""Processes whose settings differ: rules of collectives, and values that only one of them cannot have."""

from __future__ import annotations

import pytest
from programs import on_ranks, run_program


@pytest.mark.mpi
def test_ranks_with_other_rules_hear_of_it(mpi) -> None:
    ended = mpi.run("""
        import tempfile
        import jali
        from jali.errors import ParameterError
        world = comm.current()
        file = os.path.join(tempfile.mkdtemp(), f"rules{world.rank}.toml")
        with open(file, "w") as stream:
            stream.write("version = 1\\n[[rule]]\\nalgorithms = ['ring']\\n" if world.rank else "version = 1\\n")
        jali.settings.use(collective_rules=os.path.abspath(file))
        try:
            world.duplicate().all_reduce(np.ones(4))
        except ParameterError as error:
            print(f"{world.rank}: {error}", flush=True)
        """)
    assert ended.status == 0, ended.err
    for rank in range(2):
        assert f"{rank}: ranks 0 and 1 have other rules of collectives" in ended.out


WRONG_ON_ONE = """
import os
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    os.environ[{variable!r}] = {value!r}
from jali import comm
comm.current().barrier()
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("variable", "value"), [("JALI_WATCHDOG", "soon"), ("JALI_COLLECTIVE_RULES", "/nowhere/rules.toml")]
)
def test_a_wrong_setting_of_one_rank_ends_all_ranks(mpi, variable, value) -> None:
    """MPI starts when all ranks have come: one whose settings are wrong has to come as well, so that the others hear of it."""
    program = WRONG_ON_ONE.format(variable=variable, value=value)
    command = on_ranks(2, mpi.python, "-c", program, python=mpi.python)
    ended = run_program(command, status=None, timeout=120)
    assert ended.returncode not in (0, 124)
    assert f"ParameterError: {variable}={value} should be " in ended.stderr
    assert f"rank 0 stopped: rank 1 failed: ParameterError: {variable}={value} should be " in ended.stderr
