"""The Ising model in two dimensions, from disorder to order, against Kaufman's exact energy of the finite lattice.

Spins are updated by a heat bath on one colour of the checkerboard after the other. Exact: B. Kaufman, Phys. Rev. 76 (1949) 1232, the
partition function of an n x n torus; its derivative gives the energy per site, here by a central difference.
"""

import argparse

import numpy as np

import jali
from jali import EVEN, ODD
from jali.statistics import mean_error


def log_partition(beta, n):
    """ln Z of the n x n torus without the trivial factor 2 sinh(2 beta)^(n^2 / 2) / 2."""
    cosh = np.cosh(2 * beta) ** 2 / np.sinh(2 * beta)
    gamma = np.arccosh(cosh - np.cos(np.pi * np.arange(2 * n) / n))
    gamma[0] = 2 * beta + np.log(np.tanh(beta))  # the one that changes sign at the transition
    even, odd = gamma[0::2], gamma[1::2]
    terms = [
        (1, np.sum(np.log(2 * np.cosh(n * odd / 2)))),
        (1, np.sum(np.log(2 * np.abs(np.sinh(n * odd / 2))))),
        (1, np.sum(np.log(2 * np.cosh(n * even / 2)))),
        (np.sign(beta - np.log(1 + np.sqrt(2)) / 2), np.sum(np.log(2 * np.abs(np.sinh(n * even / 2))))),
    ]
    largest = max(size for _, size in terms)
    total = sum(sign * np.exp(size - largest) for sign, size in terms)
    return largest + np.log(total) + n * n / 2 * np.log(2 * np.sinh(2 * beta))


def exact_energy(beta, n, h=1e-5):
    """-<sum of s s'> per site."""
    return -(log_partition(beta + h, n) - log_partition(beta - h, n)) / (2 * h * n * n)


@jali.site_function
def heat_bath(X, spin, rng, beta):
    field = sum(spin[X + mu] + spin[X - mu] for mu in X.directions())
    up = 1 / (1 + jali.exp(-2 * beta * field))
    spin[X] = jali.where(rng.uniform(X) < up, 1.0, -1.0)


@jali.site_function
def measure(X, spin, bonds, magnetisation):
    for mu in X.directions():
        bonds += spin[X] * spin[X + mu]
    magnetisation += spin[X]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extent", type=int, default=16)
parser.add_argument("--beta", type=float, nargs="+", default=[0.2, 0.35, 0.43, 0.445, 0.5])
parser.add_argument("--sweeps", type=int, default=3000)
arguments = parser.parse_args()

n = arguments.extent
lattice = jali.Lattice(n, n)
spin = lattice.field(jali.Real())
rng = jali.Random(seed=2)
worst = 0.0
for beta in arguments.beta:
    spin[...] = 1.0
    energies, orders = [], []
    for sweep in range(arguments.sweeps):
        for colour in (EVEN, ODD):
            heat_bath[colour](spin, rng, beta)
        if sweep >= arguments.sweeps // 10:
            bonds, magnetisation = lattice.sum(measure, spin)
            energies.append(-bonds / lattice.volume)
            orders.append(abs(magnetisation) / lattice.volume)
    energy, order, exact = mean_error(energies), mean_error(orders), exact_energy(beta, n)
    sigma = (energy.mean - exact) / energy.error
    worst = max(worst, abs(sigma))
    if lattice.rank == 0:
        print(f"beta {beta:.3f}  energy {energy!s:13} exact {exact:.6f} {sigma:+.1f} sigma   <|m|> {order}")
if worst > 4:
    raise SystemExit(f"{worst:.1f} sigma from the exact energy")
