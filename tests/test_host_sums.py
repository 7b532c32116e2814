"""Sums on the host are rounded after each addition, as on devices, in every version of Python."""

from __future__ import annotations

import numpy as np

from jali import EVEN, Field, Lattice, Real
from jali.host_sums import sum_in_order
from jali.lattice.algebra import norm2, sum_of_members

HARD = [1.0, 1e16, 1.0, -1e16]  # 0 if every sum is rounded, 2 by a sum that carries on what rounding takes


def test_every_addition_is_rounded():
    assert sum_in_order(HARD) == 0.0
    assert sum_of_members(np.array(HARD)) == 0.0


def test_numbers_of_members_are_added_as_a_device_adds_them():
    x = Field(Lattice(2, 2), Real(), over=EVEN, batch=3)
    x[...] = [1e8, 1.0, 1.0]  # squares: 1e16 and twice what half of its last digit is
    assert sum_of_members(norm2(x)) == float(sum_of_members(norm2(x, wait=False)))
