"""The Wilson Dirac operator and conjugate gradients, written out; checked against the exact free quark propagator.

Solves D psi = delta(x, 0), colour 0, spin 0 through D^dagger D psi = D^dagger b, antiperiodic in time. With all links one, the answer in
momentum space is [m + sum (1 - cos p) - i sum gamma sin p] / [(m + sum (1 - cos p))^2 + sum sin^2 p].
"""

import numpy as np

import jali
from jali.fermions import gamma, gamma5
from jali.gauge import SU, GaugeField

lattice, mass = jali.Lattice(6, 6, 6, 12), 0.2


def hop(X, psi, U, mu):
    """What D takes from the two neighbours along mu; a spinor is colour by spin, gamma matrices act on spin."""
    ahead = (1 - gamma[mu]) * (U[mu][X] * psi[X + mu])
    behind = (1 + gamma[mu]) * (U[mu][X - mu].dagger() * psi[X - mu])
    return ahead + behind


@jali.site_function
def gamma5_dirac(X, out, psi, U, mass):
    """H = gamma_5 D, which is Hermitian."""
    out[X] = gamma5 * ((mass + X.ndim) * psi[X] - 0.5 * sum(hop(X, psi, U, mu) for mu in X.directions()))


@jali.site_function
def dot(X, a, b, total):
    total += a[X].dot(b[X]).real


@jali.site_function
def descend(X, x, r, p, q, alpha, norm):
    x[X] += alpha * p[X]
    r[X] -= alpha * q[X]
    norm += r[X].norm2()


@jali.site_function
def turn(X, p, r, beta):
    p[X] = r[X] + beta * p[X]


def solve(U, b, rtol=1e-11):
    """H x = b by conjugate gradients on H^2 x = H b."""
    x, r, q, half = (b.like() for _ in range(4))
    gamma5_dirac(r, b, U, mass)
    p, rr, iterations = r.copy(), lattice.sum(dot, r, r), 0
    goal = rtol**2 * rr
    while rr > goal:
        gamma5_dirac(half, p, U, mass)
        gamma5_dirac(q, half, U, mass)
        before, rr = rr, lattice.sum(descend, x, r, p, q, rr / lattice.sum(dot, p, q))
        turn(p, r, rr / before)
        iterations += 1
    return x, iterations


b = lattice.field(jali.Spinor(3), boundary={3: "antiperiodic"})
b[0, 0, 0, 0] = gamma5.dense() @ np.eye(4, 3) * [1, 0, 0]  # gamma_5 D psi = gamma_5 delta
psi, iterations = solve(GaugeField(lattice, SU(3)).cold_start(), b)

n = lattice.extents
p = np.meshgrid(*[2 * np.pi * (np.arange(k) + (mu == 3) / 2) / k for mu, k in enumerate(n)], indexing="ij")
scalar = mass + sum(1 - np.cos(q) for q in p)
slash = sum(np.sin(q)[..., None] * g.dense()[:, 0] for q, g in zip(p, gamma, strict=True))
wave = (scalar[..., None] * np.eye(4)[0] - 1j * slash) / (scalar**2 + sum(np.sin(q) ** 2 for q in p))[
    ..., None
]
half_step = np.exp(1j * np.pi * np.arange(n[3]) / n[3])[:, None]  # momenta in time are half whole
exact = half_step * np.fft.ifftn(wave, axes=(0, 1, 2, 3))
error = float(np.max(np.abs(psi[...][..., 0] - exact)))
if lattice.rank == 0:
    print(f"{iterations} iterations; largest difference from the exact propagator {error:.1e}")
if error > 1e-9:
    raise SystemExit("the propagator is not the exact one")
