"""Correlators handed to pyerrors, whose errors and effective masses are compared with ours. In a file of its own, since
importing pyerrors takes seconds."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.signal import lfilter

from jali.errors import ParameterError
from jali.hadrons.masses import effective_mass, to_pyerrors
from jali.statistics import jackknife, mean_error

pyerrors = pytest.importorskip("pyerrors")

T = 12
t = np.arange(T)


def chain(n: int, a: float, seed: int) -> np.ndarray:
    """Configurations of an AR(1) chain around a cosh of mass 0.4, shape (n, T)."""
    noise = np.random.default_rng(seed).standard_normal((n, T))
    noise[1:] *= np.sqrt(1 - a * a)
    return np.cosh(0.4 * (t - T / 2)) * (1 + 0.01 * lfilter([1.0], [1.0, -a], noise, axis=0))


DATA = chain(400, 0.6, seed=42)


def test_pyerrors_has_our_means_and_errors() -> None:
    correlator = to_pyerrors(DATA, "A1")
    correlator.gamma_method(S=0)
    plain = jackknife(lambda c: c, DATA)
    numbers = [correlator[s] for s in range(T)]
    np.testing.assert_allclose([o.value for o in numbers], plain.value, rtol=1e-13)
    np.testing.assert_allclose([o.dvalue for o in numbers], plain.error, rtol=1e-6)
    correlator.gamma_method(S=1.5)
    for s in range(T):
        ours = mean_error(DATA[:, s])
        assert correlator[s].dvalue == pytest.approx(ours.error, rel=0.02)
        assert correlator[s].dvalue > 1.5 * plain.error[s]


def test_effective_masses_of_pyerrors_are_ours() -> None:
    for kind in ("cosh", "log"):
        theirs = to_pyerrors(DATA, "A1").m_eff(kind)
        theirs.gamma_method(S=0)
        ours = effective_mass(DATA, kind)
        for s in (0, 1, 2, 3, 4, 7, 8, 9, 10):
            assert theirs[s].value == pytest.approx(ours.value[s], abs=1e-7)
            assert theirs[s].dvalue == pytest.approx(ours.error[s], rel=0.01)


def test_configurations_with_gaps_and_several_ensembles() -> None:
    numbers = [10 * k for k in range(200)] + [10 * k for k in range(300, 500)]
    one = to_pyerrors(DATA, "A1|r1", numbers)
    assert one[0].idl["A1|r1"] == numbers
    other = to_pyerrors(chain(300, 0.0, seed=43), "A2")
    total = one + other
    total.gamma_method()
    assert sorted(total[0].e_names) == ["A1", "A2"]
    difference = one - to_pyerrors(DATA, "A1|r1", numbers)  # of the same configurations: nothing is left
    difference.gamma_method()
    assert max(abs(difference[s].value) + difference[s].dvalue for s in range(T)) < 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DATA[0], "A"), r"\(configurations, T\) is needed"),
        ((DATA[:4], "A"), "4 configurations; the Gamma method of pyerrors needs 5"),
        ((DATA, ""), "the name of an ensemble is a text, not ''"),
        ((DATA, 3), "the name of an ensemble is a text, not 3"),
        ((DATA, "A|"), r"a replica of it like 'B450\|r2'; not 'A\|'"),
        ((DATA, "|"), r"not '\|'"),
        ((DATA, "|r1"), r"not '\|r1'"),
        ((DATA, "A||r"), r"not 'A\|\|r'"),
        ((DATA, "A|r1|r2"), r"not 'A\|r1\|r2'"),
        ((np.ldexp(DATA, 1000), "A"), "so large that their squares"),
        ((np.ldexp(DATA, -1000), "A"), "so small that their squares"),
        ((DATA[:5], "A", [1, 2, 3]), "3 numbers for 5 configurations"),
        ((DATA[:5], "A", [1, 2, 3, 3, 5]), "3 comes after 3"),
        ((DATA[:5], "A", [1, 2, 3, 4, 5.5]), "whole number, not 5.5"),
        ((DATA[:5], "A", 7), "are a sequence, not 7"),
    ],
)
def test_bad_input_is_refused_with_what_would_be_right(arguments: tuple, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        to_pyerrors(*arguments)


def test_without_pyerrors_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyerrors", None)
    with pytest.raises(ParameterError, match=r'pip install "jali\[spectrum\]"'):
        to_pyerrors(DATA, "A")
