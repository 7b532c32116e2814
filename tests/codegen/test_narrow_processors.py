"""Vectors that are wider than the processor's compile to several pieces, and to the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import run_python

PROGRAM = """
import jali, sys
from jali.gauge import SU, GaugeField, plaquette, sweep
def history():
    U = GaugeField(jali.Lattice(4, 8, 16), SU(2)).hot_start(seed=5)
    rng = jali.Random(3)
    sweep(U, 2.3, rng, overrelaxation=1)
    return plaquette(U).hex(), U[0][...].tobytes().hex()[:400]
print(jali.virtual_ranks(2, history))
"""


def history(cache: Path, compiler: str, width: int) -> str:
    environment = {
        **os.environ,
        "CXX": compiler,
        "JALI_VECTOR_BYTES": str(width),
        "JALI_CACHE_DIR": str(cache),
    }
    return run_python(PROGRAM, env=environment).stdout


@pytest.fixture(scope="module")
def of_one_lane(tmp_path_factory: pytest.TempPathFactory) -> str:
    return history(tmp_path_factory.mktemp("cache"), os.environ.get("CXX", "c++"), 8)


# Without vectors of 256 and 512 bits, and without fused multiply-add; without those of 512. Half a dozen kernels are compiled for
# each; the short run has kernels of single operations for them (test_prelude_lanes.py).
@pytest.mark.full
@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3"])
def test_vectors_of_64_bytes_on_a_processor_with_less_give_the_same_bits(
    processor: str, of_one_lane: str, tmp_path: Path
) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("names processors with narrower vectors for x86-64 only")
    compiler = tmp_path / "c++"
    compiler.write_text(
        f'#!/bin/bash\nwords=("${{@/#-march=native/-march={processor}}}")\nexec c++ "${{words[@]}}"\n'
    )
    compiler.chmod(0o755)
    assert history(tmp_path / "cache", str(compiler), 64) == of_one_lane
    assert list((tmp_path / "cache").glob("*.so"))
