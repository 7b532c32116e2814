"""Scalar field theory: S = sum_x [ 1/2 sum_mu (phi(x+mu) - phi(x))^2 + m^2/2 phi^2 + lambda phi^4 ].

Given its neighbours, phi(x) is Gaussian times exp(-lambda phi^4): a heat bath draws the Gaussian and accepts with that probability,
again and again until it accepts. Two exact checks:

    lambda = 0    the correlation of time slices is that of a free field on this very lattice
    any lambda    <phi dS/dphi> = 1 at every site (integration by parts)
"""

import argparse

import numpy as np

import jali
from jali import EVEN, ODD
from jali.statistics import mean_error

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extents", type=int, nargs="+", default=[12, 12, 16])
parser.add_argument("--mass2", type=float, default=0.5)
parser.add_argument("--couplings", type=float, nargs="+", default=[0.0, 0.5, 2.0])
parser.add_argument("--sweeps", type=int, default=400)
arguments = parser.parse_args()


def neighbours(X, phi):
    total = jali.zero(jali.Real())
    for mu in X.directions():
        total += phi[X + mu] + phi[X - mu]
    return total


@jali.site_function
def heat_bath(X, phi, rng, m2, coupling):
    a = m2 + 2 * X.ndim  # the local weight is exp(-a/2 phi^2 + h phi - coupling phi^4)
    h = neighbours(X, phi)

    def attempt():
        new = h / a + rng.gaussian(X) / jali.sqrt(a)
        return rng.uniform(X) < jali.exp(-coupling * new**4), new

    phi[X] = X.repeat_until(attempt, limit=1000, otherwise=phi[X])


@jali.site_function
def measure(X, phi, m2, coupling, square, identity):
    p = phi[X]
    square += p * p
    identity += p * ((m2 + 2 * X.ndim) * p - neighbours(X, phi) + 4 * coupling * p**3)


@jali.site_function
def slices(X, phi, total):
    total += phi[X]


def free_correlator(lattice, m2):
    """<s(t) s(0)> / spatial volume for slice sums s, at lambda = 0: only momenta along time contribute."""
    n = lattice.extents[-1]
    p = 2 * np.pi * np.arange(n) / n
    return np.fft.ifft(1 / (m2 + 4 * np.sin(p / 2) ** 2)).real


lattice = jali.Lattice(*arguments.extents)
time, m2 = lattice.directions[-1], arguments.mass2
rng = jali.Random(seed=11)
worst = 0.0
for coupling in arguments.couplings:
    phi = lattice.field(jali.Real())
    squares, identities, correlators = [], [], []
    for n in range(arguments.sweeps + 50):
        for colour in (EVEN, ODD):
            heat_bath[colour](phi, rng, m2, coupling)
        if n < 50:
            continue
        square, identity = lattice.sum(measure, phi, m2, coupling)
        squares.append(square / lattice.volume)
        identities.append(identity / lattice.volume)
        s = lattice.sum(slices, phi, per=time)
        spectrum = np.abs(np.fft.fft(s)) ** 2
        correlators.append(np.fft.ifft(spectrum).real / lattice.volume)
    square, identity = mean_error(squares), mean_error(identities)
    checks = {"<phi dS/dphi> = 1": (identity, 1.0)}
    if coupling == 0:
        exact = free_correlator(lattice, m2)
        series = np.array(correlators)
        checks |= {f"free correlator at t = {t}": (mean_error(series[:, t]), exact[t]) for t in range(4)}
    if lattice.rank == 0:
        print(f"lambda {coupling:.2f}: <phi^2> = {square}, tau_int {square.tau_int:.1f}")
    for name, (found, wanted) in checks.items():
        sigma = (found.mean - wanted) / found.error
        worst = max(worst, abs(sigma))
        if lattice.rank == 0:
            print(f"    {name:26} {found!s:14} exact {wanted:.5f}  {sigma:+.1f} sigma")
if worst > 4.5:
    raise SystemExit(f"{worst:.1f} sigma from an exact value")
if heat_bath.exhausted:
    raise SystemExit(f"{heat_bath.exhausted} draws gave up")
