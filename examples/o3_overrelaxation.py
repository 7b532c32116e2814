"""The O(3) model as a ring: heat bath and overrelaxation against the exact energy, <s.s'> = coth(beta) - 1/beta.

In the field h of its neighbours a spin has the weight exp(beta s.h); a half turn about h keeps it. M. Fisher, Am. J. Phys. 32 (1964) 343.
"""

import argparse

import numpy as np

import jali
from jali.statistics import mean_error


@jali.site_function
def update(X, s, rng, beta, heat):
    h = sum(s[X + mu] + s[X - mu] for mu in X.directions())
    size = jali.sqrt(h.norm2() + 1e-30)
    n = h / size
    reflected = 2 * s[X].dot(n) * n - s[X]  # overrelaxation
    kappa, u, phi = beta * size, rng.uniform(X), 2 * np.pi * rng.uniform(X)
    cosine = 1 + jali.log(u + (1 - u) * jali.exp(-2 * kappa)) / kappa
    sine = jali.sqrt(jali.maximum(1 - cosine**2, 0.0))
    side = jali.where(n[2] < 0, -1.0, 1.0)  # unit vectors orthogonal to n: Duff et al., JCGT 6 (2017) 1
    a, b = -1 / (side + n[2]), -n[0] * n[1] / (side + n[2])
    first = jali.vector([1 + side * n[0] ** 2 * a, side * b, -side * n[0]])
    second = jali.vector([b, side + n[1] ** 2 * a, -n[1]])
    s[X] = cosine * n + sine * (jali.cos(phi) * first + jali.sin(phi) * second) if heat else reflected


@jali.site_function
def bonds(X, s, total):
    total += s[X].dot(s[X + X.directions()[0]])


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--beta", type=float, default=2.0)
beta, lattice, rng = parser.parse_args().beta, jali.Lattice(2048), jali.Random(seed=1)
s, found = lattice.field(jali.Vector(3, kind="real")), []
s[...] = [0, 0, 1]
for _sweep in range(800):
    for heat in (True, False, False):
        for parity in jali.PARITIES:
            update[parity](s, rng, beta, heat=heat)
    found.append(lattice.sum(bonds, s) / lattice.volume)
energy, exact = mean_error(found[100:]), 1 / np.tanh(beta) - 1 / beta
if lattice.rank == 0:
    print(f"beta {beta}: <s.s'> {energy!s} exact {exact:.6f}")
if abs(energy.mean - exact) > 4 * energy.error:
    raise SystemExit("that is not exact")
