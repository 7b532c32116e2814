"""Eigenvectors on devices: the bits of the host."""

from __future__ import annotations

import pytest

import jali
from jali import Complex, Field, Lattice
from jali.solvers import lanczos


@jali.site_function
def laplace(X, out, phi):
    total = 2 * X.ndim * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


@pytest.mark.short(1)
def test_eigenvectors_have_the_bits_of_the_host(device):
    for options in ({}, {"degree": 3, "window": (1.5, 8.0)}):
        results = []
        for kind in ("cpu", device):
            like = Field(Lattice(6, 4, device=kind), Complex())
            pairs = lanczos(lambda p, q: laplace(q, p), like, 3, **options)
            assert abs(pairs.values[1] - 1) < 1e-12 > abs(pairs.values[2] - 1)  # 2 - 2 cos(2 pi / 6)
            values, residuals = pairs.values.tolist(), pairs.residuals.tolist()
            results.append((values, residuals, [v[...].tolist() for v in pairs.vectors]))
        assert results[1] == results[0]
