"""The program of the guide runs under torchrun, and what it trains learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/pytorch.md"


def test_the_program_of_the_guide_trains(tmp_path):
    (block,) = re.findall(r"^```py\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "train.py"
    program.write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"loss ([\d.]+)", done.stdout)[1]) < 5
