"""Components, stacks and blocks of whole fields are on devices what they are on the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))
import test_shapes_of_whole_fields as on_the_host


@on_the_host.on_ranks
@pytest.mark.parametrize(
    ("test", "more"),
    [
        (on_the_host.test_shapes_are_those_of_numpy, ("complex",)),
        (on_the_host.test_a_spinor_to_its_chiral_halves_and_back, ("float32",)),
        (on_the_host.test_blocks_act_on_halves_without_a_site_function, ()),
    ],
)
@pytest.mark.short(2)
def test_what_holds_on_the_host_holds_on_devices(test, more, ranks, device, monkeypatch):
    everywhere = on_the_host.everywhere
    monkeypatch.setattr(on_the_host, "everywhere", lambda ranks, body: everywhere(ranks, body, device))
    test(ranks, *more)
