"""Quenched masses at beta 5.7 from links that are made here, beside those of 1076 configurations of an independent program.

`benchmarks/spectrum.py --parts quenched` compares eight numbers of a hundred configurations; here are ten of its first chain, of which four numbers are compared
by one test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import jali
from jali.statistics import jackknife

COMPARED = ("plaquette", "kappa 0.16 pion C(4)", "kappa 0.16 pion", "staggered pion")


@pytest.mark.full
def test_masses_of_ten_configurations_agree_with_those_of_an_independent_program(monkeypatch):
    """Hotelling's test, since the covariance is that of ten configurations: T^2 (n - p) / (p (n - 1)) is an F ratio of p and n - p degrees. The error of the
    reference is a tenth of these, and added."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sys.modules.pop("spectrum", None)
    import spectrum

    samples = []
    lattice = jali.Lattice(*spectrum.EXTENTS)
    spectrum.ensemble(lattice, 10, lambda U: samples.append(spectrum.numbers_of(U)), seeds=spectrum.SEEDS[:1])
    chosen = [list(spectrum.KNOWN).index(name) for name in COMPARED]

    def numbers(mean):
        return spectrum.derived(mean)[chosen]

    n, p = len(samples), len(chosen)
    found = jackknife(numbers, np.array(samples))
    each = np.array([numbers(np.delete(samples, k, axis=0).mean(axis=0)) for k in range(n)])
    covariance = (n - 1) / n * (each - each.mean(axis=0)).T @ (each - each.mean(axis=0))
    known, errors = np.array([spectrum.KNOWN[name] for name in COMPARED]).T
    d = found.value - known
    ratio = d @ np.linalg.solve(covariance + np.diag(errors**2), d) * (n - p) / (p * (n - 1))
    assert 1e-3 < stats.f.sf(ratio, p, n - p) < 0.999
