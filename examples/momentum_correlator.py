"""Correlators of a free scalar field at fixed momentum: the energies are exactly those of the lattice's dispersion relation.

S = sum_x [ 1/2 sum_mu (phi(x+mu) - phi(x))^2 + m^2/2 phi^2 ]. A time slice is projected to momentum p, s_p(t) = sum_x exp(-i p x) phi(x, t),
and C_p(t) = <s_p(t) s_p(0)^*> is proportional to cosh(E (t - T/2)), so that [C(t-1) + C(t+1)] / [2 C(t)] = cosh E at every t > 0:

    cosh E(p) = 1 + m^2 / 2 + 2 sum_i sin^2(p_i / 2)
"""

import numpy as np

import jali
from jali import EVEN, ODD
from jali.statistics import jackknife

lattice, m2, sweeps = jali.Lattice(12, 12, 16), 0.3, 3000
momenta = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]  # in units of 2 pi / 12


@jali.site_function
def update(X, phi, rng, m2, reflect):
    """Heat bath or, with reflect = 1, overrelaxation: phi -> 2 h/a - phi leaves the action as it is."""
    a, h = m2 + 2 * X.ndim, sum(phi[X + mu] + phi[X - mu] for mu in X.directions())
    phi[X] = h / a + jali.where(reflect > 0, h / a - phi[X], rng.gaussian(X) / jali.sqrt(a))


@jali.site_function
def project(X, phi, px, py, s):
    angle = px * X.coordinate(0) + py * X.coordinate(1)
    s += jali.complex(jali.cos(angle), -jali.sin(angle)) * phi[X]


phi, rng, spectra = lattice.field(jali.Real()), jali.Random(seed=4), []
for n in range(sweeps + 50):
    for reflect in (0, 1, 1):
        update[EVEN](phi, rng, m2, reflect), update[ODD](phi, rng, m2, reflect)
    if n >= 50:
        slices = [lattice.sum(project, phi, *(np.pi / 6 * np.array(p)), per=2) for p in momenta]
        spectra.append(np.abs(np.fft.fft(slices)) ** 2)
C = np.fft.ifft(spectra).real / lattice.volume  # [sweep][momentum][t], averaged over the origin
found = jackknife(lambda c: np.arccosh((c[:, 0] + c[:, 2]) / (2 * c[:, 1])), C, bin_size=50)
exact = np.arccosh(1 + m2 / 2 + 2 * np.sum(np.sin(np.pi / 12 * np.array(momenta)) ** 2, axis=1))
sigmas = (found.value - exact) / found.error
if lattice.rank == 0:
    for row in zip(momenta, found.value, found.error, exact, sigmas, strict=True):
        print("p = 2 pi / 12 * {}   E = {:.4f} +- {:.4f}   exact {:.4f}   {:+.1f} sigma".format(*row))
if np.max(np.abs(sigmas)) > 4:
    raise SystemExit("an energy is not that of the dispersion relation")
