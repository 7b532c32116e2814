"""Replicas of the Ising model at many couplings, as the members of one batch, through its phase transition.

Each member has a coupling of its own in an array, and neighbours in coupling exchange it (K. Hukushima and K. Nemoto, J. Phys. Soc. Jpn.
65 (1996) 1604), so that ordered replicas turn round by becoming disordered. At every coupling, and on any lattice, the spin s at a site and the
sum h of its neighbours have <s h> = <h tanh(beta h)> exactly (H. B. Callen, Phys. Lett. 4 (1963) 161). `--picture replicas.png` draws.
"""

import argparse

import numpy as np

import jali
from jali import EVEN, ODD
from jali.statistics import mean_error, mean_error_of

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extent", type=int, default=16, help="of the lattice, even")
parser.add_argument("--replicas", type=int, default=16)
parser.add_argument("--sweeps", type=int, default=4000)
parser.add_argument("--picture", metavar="FILE")
arguments = parser.parse_args()


def around(X, spin):
    return sum(spin[X + mu] + spin[X - mu] for mu in X.directions())


@jali.site_function
def heat_bath(X, spin, rng, couplings):
    up = 1 / (1 + jali.exp(-2 * couplings[X.member] * around(X, spin)))
    spin[X] = jali.where(rng.uniform(X) < up, 1.0, -1.0)


@jali.site_function
def measure(X, spin, couplings, magnetisation, bonds, expected):
    magnetisation += spin[X]
    bonds += spin[X] * around(X, spin) / 2
    expected += around(X, spin) * jali.tanh(couplings[X.member] * around(X, spin)) / 2


def exchange(couplings, bonds, first):
    """Pairs of neighbours in coupling exchange it, from the first or the second on. Returns which of them did."""
    order = np.argsort(couplings)
    low, high = order[first:-1:2], order[first + 1 :: 2]
    gain = (couplings[high] - couplings[low]) * (bonds[low] - bonds[high])
    accepted = np.log(chance.random(len(gain))) < gain  # the same on all ranks, as sums are
    low, high = low[accepted], high[accepted]
    couplings[low], couplings[high] = couplings[high], couplings[low]
    return accepted


n, replicas = arguments.extent, arguments.replicas
lattice = jali.Lattice(n, n)
spin = jali.Field(lattice, jali.Real(), batch=replicas)
spin[...] = 1.0
rng, chance = jali.Random(seed=5), np.random.default_rng(5)
betas = np.linspace(0.34, 0.54, replicas)
couplings, rows, accepted = betas.copy(), [], []
for sweep in range(arguments.sweeps):
    heat_bath[EVEN](spin, rng, couplings)
    heat_bath[ODD](spin, rng, couplings)
    sums = np.array(lattice.sum(measure, spin, couplings))  # three sums for each member
    if sweep >= arguments.sweeps // 10:
        rows.append(sums[:, np.argsort(couplings)] / lattice.volume)
    accepted += exchange(couplings, sums[1], sweep % 2).tolist()

series = np.array(rows)  # sweeps, sums, couplings
order, susceptibility, deviations = [], [], []
for k, beta in enumerate(betas):
    m, bonds, expected = series[:, :, k].T
    order.append(mean_error(np.abs(m)))
    moments = np.stack([np.abs(m), m**2], axis=1)
    susceptibility.append(mean_error_of(lambda mean: lattice.volume * (mean[1] - mean[0] ** 2), moments))
    difference = mean_error(bonds - expected)
    deviations.append(difference.mean / difference.error)
    if lattice.rank == 0:
        print(
            f"beta {beta:.4f}  <|m|> {order[k]!s:12} chi {susceptibility[k]!s:12} "
            f"bonds {mean_error(bonds)!s:12} Callen {deviations[k]:+.1f} sigma"
        )
if lattice.rank == 0:
    print(f"{np.mean(accepted):.0%} of the exchanges were accepted")
if np.max(np.abs(deviations)) > 4.5:
    raise SystemExit("Callen's identity does not hold")
if arguments.picture and lattice.rank == 0:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), layout="constrained")
    left.errorbar(betas, [m.mean for m in order], [m.error for m in order], fmt="o")
    infinite = np.linspace(betas[0], betas[-1], 400)  # C. N. Yang, Phys. Rev. 85 (1952) 808
    left.plot(infinite, np.maximum(1 - np.sinh(2 * infinite) ** -4, 0) ** (1 / 8))
    left.set(title="magnetisation", xlabel="beta")
    right.errorbar(betas, [x.mean for x in susceptibility], [x.error for x in susceptibility], fmt="o")
    right.set(title="susceptibility", xlabel="beta")
    figure.savefig(arguments.picture)
