"""Acoustic waves in a layered medium: seismograms at receivers, and a picture of the wave field.

(1 / c^2) d^2 u / dt^2 = laplacian u + s, u = 0 at the edges; s is a Ricker wavelet at one site. Reciprocity is exact in any medium:
source and receiver may be exchanged. `python waves.py waves.png` draws.
"""

import sys

import numpy as np

import jali

lattice = jali.Lattice(120, 90)
speed = lattice.field(jali.Real())  # c dt / h, at most 1 / sqrt(2)
speed[:, :50], speed[:, 50:] = 0.35, 0.6
speed[40:60, 20:40] = 0.25  # something hidden


@jali.site_function
def step(X, u, old, speed, s, x, y):  # the new field takes the place of the old one
    laplacian = sum(u[X + mu] + u[X - mu] for mu in X.directions()) - 2 * X.ndim * u[X]
    source = jali.where((X.coordinate(0) == x) & (X.coordinate(1) == y), s, 0.0)
    old[X] = 2 * u[X] - old[X] + speed[X] ** 2 * (laplacian + source)


def shoot(source, receivers, steps=300):
    u, seismograms = lattice.field(jali.Real(), boundary="open"), []
    old = u.like()
    for n in range(steps):
        t = 0.08 * n - 2.0
        step(u, old, speed, (1 - 2 * t * t) * np.exp(-t * t), *source)
        u, old = old, u
        seismograms.append(u[[x for x, _ in receivers], [y for _, y in receivers]])
    return u, np.array(seismograms)


source, receivers = (30, 5), [(10 * k + 10, 2) for k in range(10)]
u, there = shoot(source, receivers)
_, back = shoot(receivers[7], [source])
difference = np.max(np.abs(there[:, 7] - back[:, 0])) / np.max(np.abs(back))
if lattice.rank == 0:
    print(f"source and receiver exchanged: relative difference {difference:.1e}")
assert difference < 1e-10, "reciprocity is broken"
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    plt.imshow(u, cmap="RdBu")  # every rank looks, one of them saves
    if lattice.rank == 0:
        plt.savefig(sys.argv[1])
