"""The benchmark of solvers runs on devices, one and several, whatever its times mean on fake ones."""

import re
import sys
from pathlib import Path

import pytest
from fake_driver import REAL, make_fake_ccl
from programs import on_ranks, run_program

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "solvers.py"
FEW = ["--device", "cuda", "--extents", 4, "--rounds", 1, "--copy", "16,16"]

pytestmark = pytest.mark.skipif(REAL, reason="times mean nothing on fake devices")


@pytest.mark.full
def test_each_part_runs_on_a_device(fake_environment, tmp_path):
    words = ["--parts", "iteration,full,light", "--iterations", 120, "--sweeps", 2, "--configurations", 1]
    words += ["--cache", tmp_path, "--of", "mixed,sides,shifts", "--formats", "float64,float64/float16"]
    text = run_program([sys.executable, BENCHMARK, *FEW, *words], env=fake_environment).stdout
    assert len(re.findall(r"^iteration 4\^4 \S+ +-?\d+\.\d+ us", text, re.MULTILINE)) == 2
    launches = [float(one) for one in re.findall(r"(\d+\.\d) launches$", text, re.MULTILINE)]
    assert len(launches) == 4 - (len(re.findall("looks at every iteration .*launches", text)) == 0)
    assert len(re.findall(r"^light 4\^3 x 8, median of 1: ", text, re.MULTILINE)) == 4


@pytest.mark.mpi
@pytest.mark.full
def test_iterations_of_ranks_with_a_device_each(fake_environment):
    environment = {**fake_environment, "JALI_FAKE_GPUS": "2", "JALI_NCCL": str(make_fake_ccl())}
    words = ["--parts", "ranks", "--formats", "float64", "--iterations", 24]
    text = run_program(on_ranks(2, sys.executable, BENCHMARK, *FEW, *words), env=environment).stdout
    assert re.search(r"^ranks 2 in one direction, 4\^4 each, float64 +-?\d+\.\d+ us$", text, re.MULTILINE), (
        text
    )
