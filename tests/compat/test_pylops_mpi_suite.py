"""The tests of pylops-mpi 0.8.0 pass on jali. Needs the network, or the source package in the folder of the temporary files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from programs import need_mpi, run_program

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tools" / "pylops_mpi_suite.py"
EXCEPTIONS = ROOT / "tests" / "compat" / "pylops_mpi_exceptions.txt"


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("ranks", "tests"), [(2, 519), (3, 44), (4, 44)])
def test_the_librarys_own_tests_pass(ranks: int, tests: int) -> None:
    need_mpi()
    pytest.importorskip("pylops")
    pytest.importorskip("pyproximal")
    result = run_program([sys.executable, SUITE, "-n", ranks, "-v"], status=None, timeout=3000)
    if "pip" in result.stderr and not result.stdout:
        pytest.skip("pip could not download pylops-mpi")
    assert result.returncode == 0, result.stdout[-8000:]
    passed, failed = map(int, re.search(r"^all +(\d+) +(\d+)", result.stdout, re.M).groups())  # type: ignore[union-attr]
    assert passed + failed == tests


def test_each_exception_has_a_reason() -> None:
    rows = [line for line in EXCEPTIONS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"test_\w+\.py::test_\S+ \S.{15,}", row) for row in rows)
    assert len(rows) <= 5


TESTS = """
import pytest
from mpi4py import MPI
import pylops_mpi

rank = MPI.COMM_WORLD.Get_rank()


@pytest.mark.mpi(min_size=2)
def test_it_is_jali():
    assert pylops_mpi.DistributedArray.__module__.startswith("jali.")


@pytest.mark.mpi(min_size=2)
def test_wrong_on_one_rank_while_the_other_waits():
    assert rank == 0
    MPI.COMM_WORLD.recv(source=1)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [1, 2])
def test_after_it(n):
    x = pylops_mpi.DistributedArray(global_shape=10)
    x[:] = n
    assert x.dot(x) == 10 * n**2


@pytest.mark.mpi(min_size=2)
def test_wrong_on_all():
    raise KeyError("lost")


@pytest.mark.mpi(min_size=2)
def test_hangs():
    MPI.COMM_WORLD.recv(source=1 - rank)


@pytest.mark.mpi(min_size=2)
def test_ends_a_rank():
    if rank == 1:
        import os

        os._exit(3)
    MPI.COMM_WORLD.recv(source=1)


@pytest.mark.mpi(min_size=2)
def test_last():
    pass
"""


@pytest.mark.full
@pytest.mark.mpi
def test_the_runner_says_which_tests_failed_and_goes_on_behind_them(tmp_path: Path) -> None:
    need_mpi()
    pytest.importorskip("pylops")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    (tmp_path / "tests" / "test_broken.py").write_text("import no_such_module_at_all")
    result = run_program(
        [sys.executable, SUITE, "--source", tmp_path, "--timeout", "6", "--behind", "1", "-v"], status=5
    )
    assert re.search(r"^test_some.py +4 +4 ", result.stdout, re.M), result.stdout
    assert re.search(r"^test_broken.py +0 +1 ", result.stdout, re.M)
    assert re.findall(r"FAILED (\S+)", result.stdout) == [
        *("(file)", "test_wrong_on_one_rank_while_the_other_waits", "test_wrong_on_all", "test_hangs"),
        "test_ends_a_rank",
    ]
    assert "KeyError: 'lost'" in result.stdout
    assert "no_such_module_at_all" in result.stdout
    assert "nothing happened in 6 s" in result.stdout
