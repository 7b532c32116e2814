"""Multi-shift conjugate gradients on devices: the bits of the host, and few launches."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice
from jali.lattice.vectors import FieldVectors
from jali.solvers import multishift_cg


@jali.site_function
def helmholtz(X, out, phi, m2):
    """(m^2 - Laplace) phi."""
    total = (m2 + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def right_hand_side(device):
    b = Field(Lattice(6, 4, device=device), Complex())
    rng = np.random.default_rng(1)
    b[...] = rng.normal(size=(6, 4)) + 1j * rng.normal(size=(6, 4))
    return b


@pytest.mark.short(1)
def test_solutions_have_the_bits_of_the_host(device):
    for shifts in ([0.0, 0.3, 40.0], [0.05, 0.3, 40.0]):
        results = []
        for kind, check_interval in (("cpu", None), (device, None), (device, 1), (device, 3)):
            b = right_hand_side(kind)
            found = multishift_cg(lambda p, q: helmholtz(q, p, 0.1), b, shifts, check_interval=check_interval)
            assert found[0].check_interval == (check_interval or 8)
            results.append([(one.history, one.residual, one.x[...].tolist()) for one in found.solutions])
        assert all(other == results[0] for other in results[1:])


def test_launches_of_an_iteration_grow_by_one_for_each_pair_of_shifts(device, monkeypatch):
    """The operator, its inner product, the step, the update of r, the weight, four for the numbers of all shifts, and the updates of x and d.
    At the end of a graph six numbers and arrays of them are carried to the next repetition."""
    graphs, graph = [], FieldVectors.graph

    def kept(self, *arguments, **options):
        graphs.append(graph(self, *arguments, **options))
        return graphs[-1]

    monkeypatch.setattr(FieldVectors, "graph", kept)
    counts = (1, 2, 4, 6)
    for count in counts:
        shifts = [1e-3 * k for k in range(count)]  # which go on as long as each other
        multishift_cg(lambda p, q: helmholtz(q, p, 0.1), right_hand_side(device), shifts, check_interval=4)
    assert [one.operations for one in graphs] == [4 * (9 + (count + 1) // 2) + 6 for count in counts]
