"""The heat equation, with periodic, antiperiodic and open ends: every mode decays at its exact rate.

One explicit Euler step is u <- u + r (sum of neighbours - 2 d u), r = D dt / a^2, stable for r < 1/(2d). A mode of wave vector k is
multiplied by 1 - 4 r sum_mu sin^2(k_mu / 2). The ends decide which k exist on n sites:

    periodic       k = 2 pi m / n
    antiperiodic   k = 2 pi (m + 1/2) / n
    open           u = 0 beyond the ends: sin(k (x + 1)), k = pi m / (n + 1)
"""

import argparse

import numpy as np

import jali

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extents", type=int, nargs="+", default=[48, 32])
parser.add_argument("--steps", type=int, default=100)
arguments = parser.parse_args()


@jali.site_function
def diffuse(X, new, u, r):
    change = -2 * X.ndim * u[X]
    for mu in X.directions():
        change += u[X + mu] + u[X - mu]
    new[X] = u[X] + r * change


lattice = jali.Lattice(*arguments.extents)
r = 0.8 / (2 * lattice.ndim)
MODES = {
    "periodic": lambda n, m: (2 * np.pi * m / n, np.cos(2 * np.pi * m / n * np.arange(n))),
    "antiperiodic": lambda n, m: (
        2 * np.pi * (m + 0.5) / n,
        np.cos(2 * np.pi * (m + 0.5) / n * np.arange(n)),
    ),
    "open": lambda n, m: (np.pi * m / (n + 1), np.sin(np.pi * m / (n + 1) * np.arange(1, n + 1))),
}
worst = 0.0
for ends, mode in MODES.items():
    u = lattice.field(jali.Real(), boundary=ends)
    new = u.like()
    start, eigenvalue = np.ones(()), 0.0
    for _axis, n in enumerate(lattice.extents):
        k, wave = mode(n, 1)
        start = np.multiply.outer(start, wave)
        eigenvalue += 4 * np.sin(k / 2) ** 2
    u[...] = start
    for _ in range(arguments.steps):
        diffuse(new, u, r)
        u, new = new, u
    exact = start * (1 - r * eigenvalue) ** arguments.steps
    error = float(np.max(np.abs(u[...] - exact)) / np.max(np.abs(exact)))
    worst = max(worst, error)
    if lattice.rank == 0:
        print(
            f"{ends:13} amplitude {np.max(np.abs(exact)):.6f} after {arguments.steps} steps, relative error {error:.1e}"
        )
if worst > 1e-10:
    raise SystemExit("a mode did not decay at its exact rate")
