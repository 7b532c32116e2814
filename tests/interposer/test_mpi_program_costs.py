"""The benchmark of what jali costs MPI programs says what it claims: each case is measured, each claim gets its verdict."""

import re
import sys
from pathlib import Path

import pytest
from mpi_programs import clean_environment, programs_of
from programs import need_mpi, run_program

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "mpi_programs.py"
CLAIMS = [
    r"passed on, no driver",
    r"passed on, (fake|CUDA's) driver",
    r"passed on, (fake|CUDA's) driver, 2 ranks",
    r"served, 8 B",
    r"asked, (fake|CUDA's) driver",
]
FEW = ["--repeats", 1, "--calls", 3000, "--starts", 1, "--batches", 3, "--sizes", 8]


@pytest.mark.full
def test_every_claim_is_measured_and_judged(tmp_path: Path) -> None:
    need_mpi()
    programs_of("mpich", tmp_path)  # skips where there is no mpicxx
    done = run_program([sys.executable, BENCHMARK, *FEW], env=clean_environment(), status=None)
    verdicts = re.findall(r"^(pass|FAIL): (.*): (-?\d+) ns \(asked: under (\d+)\)", done.stdout, re.MULTILINE)
    assert len(verdicts) == len(CLAIMS), done.stdout + done.stderr
    for claim, (verdict, name, found, bound) in zip(CLAIMS, verdicts, strict=True):
        assert re.fullmatch(claim, name)
        assert (verdict == "pass") == (int(found) < int(bound))
        case = re.search(
            rf"^{re.escape(name)} +(\d+) \(.*\) +(\d+) \(.*\) +{found} \(", done.stdout, re.MULTILINE
        )
        assert case
        assert min(map(int, case.groups())) > 0
    assert done.returncode == any(verdict == "FAIL" for verdict, *_ in verdicts)
    assert re.search(r"\d cores; ns of a call", done.stdout)
