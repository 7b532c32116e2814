"""The pion of free quarks, exactly: correlators of Wilson, twisted-mass, clover and staggered quarks on unit links, and their sums over momenta.

C(t) = sum_x tr S(x, t)^dagger S(x, t) of the quark propagator S from the origin. On unit links S is a sum of plane waves, momenta are multiples of
2 pi / L, half-integer ones in time, where quarks are antiperiodic. The twelve (or three) colours and spins of a source are a batch.
"""

import numpy as np

import jali
from jali import Lattice, Spinor, Vector
from jali.fermions import CloverDirac, Staggered, TwistedMassDirac, WilsonDirac, gamma, gamma5
from jali.gauge import SU, GaugeField
from jali.solvers import cg

MASS, MU = 0.1, 0.3
EXTENTS = 4, 4, 4, 8


@jali.site_function
def density(X, psi, total):
    total += psi[X].norm2()


def correlator(D, element):
    """C(t), with a solve for all members of a batch at once."""
    members = int(np.prod(element.numpy_shape))
    b = lattice.field(element, boundary={3: "antiperiodic"}, batch=members)
    b[0, 0, 0, 0] = np.eye(members).reshape(members, *element.numpy_shape)
    E = D.even_odd()
    x = E.reconstruct(cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-12).x, b)
    return np.array([lattice.sum(density, x.members[k], per=3) for k in range(members)]).sum(axis=0)


def momenta():
    shift = np.array([0, 0, 0, 0.5])
    return 2 * np.pi * (np.array(list(np.ndindex(*EXTENTS))) + shift) / EXTENTS


def exact_wilson(mu):
    """sum_x tr |S|^2 by Parseval's theorem in space: S(p) = (i gamma.sin p + m + sum (1 - cos p) + i mu gamma_5)^-1."""
    gammas = [g.dense() for g in gamma]
    p = momenta()
    D = 1j * sum(np.sin(p[:, k, None, None]) * gammas[k] for k in range(4)) + 1j * mu * gamma5.dense()
    D = D + (MASS + (1 - np.cos(p)).sum(axis=1))[:, None, None] * np.eye(4)
    return summed(np.linalg.inv(D).reshape(*EXTENTS, 4, 4), 3)


def exact_staggered():
    """The same of M = m + i eta_mu sin p_mu: phases join momenta that differ by pi, and M^dagger M = m^2 + sum sin^2 p is diagonal."""
    shape = tuple(EXTENTS)
    size = int(np.prod(shape))
    index = np.arange(size).reshape(shape)
    x = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"))
    M = MASS * np.eye(size)
    for mu in range(4):
        eta = (-1.0) ** x[:mu].sum(axis=0)
        ahead = np.roll(index, -1, axis=mu).ravel()
        sign = np.where((mu == 3) & (x[mu] == shape[mu] - 1), -1.0, 1.0) * eta
        M[index.ravel(), ahead] += 0.5 * sign.ravel()
        M[ahead, index.ravel()] -= 0.5 * sign.ravel()
    S = np.linalg.inv(M)[:, 0].reshape(shape)
    return 3 * (np.abs(S) ** 2).sum(axis=(0, 1, 2))


def summed(S, colours):
    """C(t) of a propagator by momentum: p_t goes to t, with its half-integer phase, and space is Parseval's."""
    t = np.arange(EXTENTS[3])
    of_t = np.fft.ifft(S, axis=3) * np.exp(1j * np.pi * t / EXTENTS[3])[:, None, None]
    return colours * (np.abs(of_t) ** 2).sum(axis=(0, 1, 2, 4, 5)) / np.prod(EXTENTS[:3])


lattice = Lattice(*EXTENTS)
U = GaugeField(lattice, SU(3)).cold_start()
cases = {
    "Wilson": (WilsonDirac(U, MASS), Spinor(3), exact_wilson(0.0)),
    "clover": (
        CloverDirac(U, MASS, csw=1.0),
        Spinor(3),
        exact_wilson(0.0),
    ),  # unit links have no field strength
    "twisted mass": (TwistedMassDirac(U, MASS, mu=MU), Spinor(3), exact_wilson(MU)),
    "staggered": (Staggered(U, MASS), Vector(3), exact_staggered()),
}
for name, (D, element, exact) in cases.items():
    C = correlator(D, element)
    worst = np.max(np.abs(C - exact) / exact.max())
    if lattice.rank == 0:
        print(
            f"{name:13}C(1..4) = {' '.join(f'{c:.6f}' for c in C[1:5])}   difference from the exact one {worst:.1e}"
        )
    if worst > 1e-9:
        raise SystemExit(f"the correlator of {name} quarks is not that of free ones")
