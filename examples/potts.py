"""The Potts model at its self-dual point, where the mean of delta(s, s') over all bonds is (1 + 1/sqrt(q)) / 2 exactly.

On a cylinder that is wired below (row 0 has colour 0) and free above, random clusters are their own dual at any size: half of the bonds
are open, each with probability p = 1 - exp(-beta) where its ends are equal (G. Grimmett, The Random-Cluster Model, chapter 6).
"""

import argparse

import numpy as np

import jali
from jali.statistics import mean_error

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--q", type=int, default=3)
parser.add_argument("--sweeps", type=int, default=30000)
n, (q, sweeps) = 8, vars(parser.parse_args()).values()
lattice, rng, beta = jali.Lattice(n, n), jali.Random(seed=3), np.log(1 + np.sqrt(q))
s, found = lattice.field(jali.Integer()), []
right, up = np.arange(n) > 0, np.arange(n) < n - 1  # tables: rows with bonds to the right, and upward


@jali.site_function
def metropolis(X, s, rng, beta, right, up):
    (e, f), y = X.directions(), X.coordinate(1)
    new, gain = (s[X] + 1 + rng.integers(X, q - 1)) % q, 0.0
    bonds = {X + e: right[y], X - e: right[y], X + f: up[y], X - f: up[(X - f).coordinate(1)]}
    for there, bond in bonds.items():
        gain += bond * (jali.where(s[there] == new, 1, 0) - jali.where(s[there] == s[X], 1, 0))
    s[X] = jali.where((rng.uniform(X) < jali.exp(beta * gain)) & (y > 0), new, s[X])


@jali.site_function
def equal(X, s, right, up, rows, columns, k=1):
    (e, f), y = X.directions(), X.coordinate(1)
    rows += right[y] * jali.where(s[X] == s[X + k * e], 1, 0)
    columns += up[y] * jali.where(s[X] == s[X + k * f], 1, 0)


for _sweep in range(sweeps):
    metropolis[jali.EVEN](s, rng, beta, right, up), metropolis[jali.ODD](s, rng, beta, right, up)
    found.append(sum(lattice.sum(equal, s, right, up)) / (2 * n * (n - 1)))
energy, exact, row = mean_error(found[1000:]), (1 + 1 / np.sqrt(q)) / 2, s[:, n // 2]
two_point = [lattice.sum(equal, s, right, up, k=k, per=1)[0][n // 2] / n for k in range(n // 4)]
differ = two_point != [np.mean(row == np.roll(row, -k)) for k in range(n // 4)] or np.any(s[:, 0] != 0)
if lattice.rank == 0:
    print(f"q = {q}: bonds {energy!s} exact {exact:.6f}")
if differ or abs(energy.mean - exact) > 4 * energy.error:
    raise SystemExit("that is not exact")
