"""Cases of `jali bench compare` on the jali under test: on one rank, on two, and in fresh processes."""

from __future__ import annotations

import math
import time

import pytest
from programs import TIMEOUT, need_mpi, package_of_jali

from jali.bench.compare import pairs
from jali.bench.compare.cases import CASES

ONCE = pairs.Settings(starts=1, turns=1, seconds=1e-4)


def turn_of(name, tmp_path):
    package = package_of_jali(tmp_path)
    found, about = pairs.measure_pair(
        name, [package, package], ONCE, time.monotonic() + TIMEOUT, ranks=CASES[name].ranks
    )
    ((a, b),) = found
    assert 0 < a < math.inf
    assert 0 < b < math.inf
    return about


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("call", {"unit": "us", "per": 1}),
        ("copy 8", {"unit": "ns/site", "per": 8**4}),
        ("staple 8", {"unit": "ns/link", "per": 4 * 8**4}),
        pytest.param("import", {"unit": "ms", "per": 1}, marks=pytest.mark.full),
    ],
)
def test_a_case_of_one_rank(name, about, tmp_path):
    assert turn_of(name, tmp_path) == about


@pytest.mark.short(1)
@pytest.mark.mpi
@pytest.mark.parametrize("name", ["halo 8", "all_reduce 64 B"])
def test_a_case_of_two_ranks(name, tmp_path):
    need_mpi()
    assert turn_of(name, tmp_path)["unit"] == "us"


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize("name", CASES)
def test_every_entry(name, tmp_path):
    if CASES[name].ranks > 1:
        need_mpi()
    turn_of(name, tmp_path)
