"""The comparison of two checkouts: each process runs its own, and what is missing is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import jali

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "against.py"
BUILT_HERE = Path(jali.__file__).parent == ROOT / "src" / "jali" and list(
    (ROOT / "src" / "jali").glob("_core.*so")
)


def against(other, *options):
    command = [sys.executable, str(SCRIPT), str(other), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_a_checkout_without_a_core_is_named(tmp_path):
    done = against(tmp_path)
    assert done.returncode != 0
    assert "has no jali._core beside its sources" in done.stderr


@pytest.mark.skipif(not BUILT_HERE, reason="jali._core is not built beside the sources")
def test_two_checkouts_take_turns_and_a_row_is_their_ratio(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "jali").symlink_to(ROOT / "src" / "jali")
    done = against(
        tmp_path, "--rows", "plaquette 4", "--starts", "1", "--turns", "2", "--seconds", "0.001", "--json"
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["row"], row["unit"]) == ("plaquette 4", "ns/site")
    assert min(row["this"], row["other"], row["ratio"]) > 0
