"""Histories have the bits that were recorded (`histories.json`), on one rank or several, with vectors of any length."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import jali

sys.path.insert(0, str(Path(__file__).parent))

from histories import GRIDS, HISTORIES

RECORDED = json.loads(Path(__file__).with_name("histories.json").read_text())


def test_every_history_is_recorded():
    assert list(RECORDED) == list(HISTORIES)


@pytest.mark.short(5)
@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_has_the_recorded_bits(name):
    assert HISTORIES[name](ranks=1) == RECORDED[name]


@pytest.mark.short(2)
@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("ranks", [ranks for ranks in GRIDS if ranks > 1])
def test_a_history_of_several_ranks_has_the_recorded_bits(name, ranks):
    if name.startswith("odd halves") and ranks > 2:
        pytest.skip("a rank's box would be narrower than what is read")
    results = jali.virtual_ranks(ranks, HISTORIES[name], ranks)
    assert all(result == RECORDED[name] for result in results)


@pytest.mark.lanes
@pytest.mark.short(2)
@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_history_of_other_lanes_has_the_recorded_bits(name, lanes):
    assert HISTORIES[name](ranks=1, lanes=lanes) == RECORDED[name]
