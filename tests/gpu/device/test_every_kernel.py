"""Host and device agree to the last bit in every kernel of the test suite.

The tests of the language and of the physics run once more, in a process of their own, with `shadow.py` in between: it repeats
every kernel on the device and compares. What the short test leaves out are further sizes of what it has.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from fake_driver import REAL
from programs import TESTS, run_program, run_python

# Per file: which tests the short run takes (a regular expression), and how many calls and sums must have been compared then.
QUICK = {
    "language/test_neighbours.py": (
        r"\((7,|2, 3\)|4, 4, 4, 8|2, 2, 2, 2, 2)|different|differs|storage|matrix_fields",
        6,
        0,
    ),
    "language/test_sums.py": (r"", 60, 60),
    "fermions/test_wilson.py": (r"adjoint|boundary|single", 5, 1),
}
# In the long run: everything of these files, with the least numbers of calls and sums.
WHOLE = {
    "language/test_operations.py": (32, 0),
    "language/test_writes.py": (75, 2),
    "language/test_hermitian.py": (30, 0),
    "language/test_neighbours.py": (70, 0),
    "language/test_sums.py": (60, 60),
    "language/test_extremes.py": (60, 60),
    "language/test_labels.py": (60, 60),
    "lattice/test_block_sums.py": (100, 0),
    "language/test_random.py": (100, 15),
    "language/test_scalars.py": (90, 0),
    "language/test_expressions.py": (200, 200),
    "fermions/test_spin.py": (14, 0),
    "fermions/test_wilson.py": (40, 7),
    "solvers/test_algebra.py": (30, 16),
    "solvers/test_conjugate_gradient.py": (1400, 700),
    "gauge/test_gauge_field.py": (120, 25),
    "gauge/test_gauge_observables.py": (3000, 1200),
    "gauge/test_gauge_updates.py": (6000, 160),
    "gauge/test_smearing_and_flow.py": (4500, 200),
}
# A second kind of device differs in names only, so one file of each sort is enough for it.
OF_HIP = ("fermions/test_wilson.py",)


def run_shadowed(file: str, kind: str, report: Path, only: str, arguments: list[str]) -> dict[str, int]:
    environment = {
        **os.environ,
        "JALI_SHADOW": kind,
        "JALI_SHADOW_REPORT": str(report),
        "JALI_SHADOW_ONLY": only,
        "JALI_DEVICE": "cpu",
    }
    options = ["-q", "-x", "-p", "shadow", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *arguments, TESTS / file]
    run_program(command, env=environment, path=[Path(__file__).parents[1]], timeout=3600)
    return json.loads(report.read_text())


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("file", "kind"),
    [(f, "cuda") for f in QUICK]
    + [pytest.param(f, "hip", marks=pytest.mark.full) for f in QUICK if f in OF_HIP],
)
def test_host_and_device_agree_in_the_kernels_of(file, kind, tmp_path):
    only, calls, sums = QUICK[file]
    found = run_shadowed(file, kind, tmp_path / "report", only, ["-m", "not full and not mpi"])
    assert found["calls"] >= calls, found
    assert found["sums"] >= sums, found
    assert found["kernels"] > 0


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", WHOLE)
def test_host_and_device_agree_in_all_kernels_of(file, tmp_path):
    calls, sums = WHOLE[file]
    selection = ["-m", "not mpi", "--timeout", "1800"] if not REAL else ["-m", "not mpi and not full"]
    found = run_shadowed(file, "cuda", tmp_path / "report", "", selection)
    assert found["calls"] >= (calls if not REAL else 1), found
    assert found["sums"] >= (sums if not REAL else 0), found


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", ["64,1,2,2", "128,1,4"])
@pytest.mark.parametrize("file", [file for file in WHOLE if file.startswith(("language/", "fermions/"))])
def test_host_and_device_agree_with_several_sites_per_thread_in(file, shape, tmp_path, use_settings):
    use_settings(launch=shape)
    only, calls, sums = QUICK.get(file, ("", 1, 0))
    found = run_shadowed(file, "cuda", tmp_path / "report", only, ["-m", "not full and not mpi"])
    assert found["calls"] >= calls, found
    assert found["sums"] >= sums, found


def test_shadow_notices_one_wrong_bit(tmp_path):
    """The comparison itself can fail: signs of zeros and last bits count, payloads of NaNs do not."""
    code = """
import numpy as np, shadow
a = np.array([1.0, 0.0, np.nan])
assert shadow.same_bits(a, a.copy())
assert shadow.same_bits(a, np.array([1.0, 0.0, -np.nan]))
assert not shadow.same_bits(a, np.array([np.nextafter(1.0, 2), 0.0, np.nan]))
assert not shadow.same_bits(a, np.array([1.0, -0.0, np.nan]))
assert not shadow.same_bits(a.astype(complex), np.conj(a.astype(complex)))
assert not shadow.same_bits(a, a.astype("float32"))
for wrong in (np.array([1.0, -0.0, np.nan]), np.array([2.0, 0.0, np.nan])):
    try:
        shadow.assert_same_bits(wrong, a, "what")
    except AssertionError as error:
        assert "what" in str(error)
    else:
        raise SystemExit("not noticed")
"""
    run_python(code, path=[Path(__file__).parents[1]])
