"""Quotients and moduli of complex numbers at the ends of the range have the bits of the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "language"))

import test_ends_of_range as on_the_host


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_bits_are_those_of_the_host(precision, device):
    (host, whole), (here, whole_here) = (on_the_host.found(precision, kind) for kind in ("cpu", device))
    for one, other in zip((*host, *whole), (*here, *whole_here), strict=True):
        assert one.tobytes() == other.tobytes()
