"""Programs that know nothing of jali get what MPI alone gives them: on the host, on devices, and in any mixture."""

import re
from pathlib import Path

import pytest
from conftest import MpiPrograms

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1800)]

PLANS = """version = 1
[[rule]]
memory = "host"
mpi_program = true
collective = ["all_reduce", "reduce_scatter", "broadcast", "reduce", "all_gather"]
ways = ["two_step", "direct"]
[[rule]]
memory = "host"
mpi_program = true
ways = ["direct"]
"""


def served(errors: str) -> set[str]:
    """Who did calls, by the counters."""
    return set(re.findall(r"^jali: MPI_\w+ .* by (.*)$", errors, re.MULTILINE))



@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_collectives_of_any_memory_are_those_of_mpi(mpi: MpiPrograms, kind: str) -> None:
    if kind == "hip" and mpi.name != "mpich":
        pytest.skip("vendors differ in names alone: one library is enough")
    program = mpi.build("collectives")
    for seed in (1, 2):
        out, errors = mpi.run(program, seed, 400, kind=kind, JALI_MPI_COUNTERS="1")
        assert "same 400" in out
        by = served(errors)
        assert {"mpi", "mpi, staged"} < by
        assert any(who.endswith(f" on {kind}") for who in by)


def test_collectives_on_staged_memory_alone(mpi: MpiPrograms) -> None:
    out, errors = mpi.run(mpi.build("collectives"), 3, 400, JALI_MPI_SERVE="0", JALI_MPI_COUNTERS="1")
    assert "same 400" in out
    assert served(errors) == {"mpi", "mpi, staged"}


@pytest.mark.parametrize("kind", [None, "cuda"])
def test_collectives_by_rules_of_the_user(mpi: MpiPrograms, tmp_path: Path, kind: str | None) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(PLANS)
    out, errors = mpi.run(
        mpi.build("collectives"), 4, 400, kind=kind, JALI_COLLECTIVE_RULES=str(rules), JALI_MPI_COUNTERS="1"
    )
    assert "same 400" in out
    assert {"two_step", "direct", "mpi"} <= served(errors)


def test_the_library_alone_agrees_with_the_test(mpi: MpiPrograms) -> None:
    assert "same 100" in mpi.run(mpi.build("collectives"), 5, 100, kind=None, between=False)[0]
    assert "same 3" in mpi.run(mpi.build("messages"), 5, 3, kind=None, between=False)[0]


def test_messages_of_any_memory(mpi: MpiPrograms) -> None:
    program = mpi.build("messages")
    for seed in (1, 2):
        out, errors = mpi.run(program, seed, 25, JALI_MPI_COUNTERS="1")
        assert "same 25" in out
        assert served(errors) == {"mpi", "mpi, staged"}
