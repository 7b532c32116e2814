"""libjali without Python: built, installed and found by a program of its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object) -> str:
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_program_finds_the_installed_library_and_reduces_to_three_roots(tmp_path):
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("there is no cmake on the path")
    library, program, where = tmp_path / "library", tmp_path / "program", tmp_path / "installed"
    run(cmake, "-S", ROOT, "-B", library, "-DJALI_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Debug")
    run(cmake, "--build", library, "--parallel", os.cpu_count())
    run(cmake, "--install", library, "--prefix", where)
    run(cmake, "-S", ROOT / "examples" / "cpp", "-B", program, f"-DCMAKE_PREFIX_PATH={where}")
    run(cmake, "--build", program)
    assert run(program / "three_roots") == "6 ranks, 0 wrong elements\n"
