"""Eigenvalues of quarks on a field of topological charge one: the index theorem on the lattice.

Links of three colours are phases of constant field strengths, whose fluxes through the planes of a torus are whole multiples of 2 pi: the charge is that of the
first colour, with one flux through the plane of x and y and `--charge` of them through that of z and t. Of the Hermitian operator gamma5 D as many eigenvalues
cross zero while the mass falls as the charge says, and their modes have one chirality (R. Narayanan and H. Neuberger, Nucl. Phys. B 443 (1995) 305).
`--picture eigenvalues.png` draws.
"""

import argparse

import numpy as np

import jali
from jali import SU, Field, Lattice, Spinor
from jali.fermions import WilsonDirac, gamma5
from jali.gauge import GaugeField, topological_charge
from jali.solvers import lanczos

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extent", type=int, default=4, help="of the lattice")
parser.add_argument("--charge", type=int, default=1)
parser.add_argument("--picture", metavar="FILE")
arguments = parser.parse_args()

L, charge = arguments.extent, arguments.charge
lattice = Lattice(L, L, L, L)
x = np.indices((L, L, L, L))


def angles(mu, fluxes):
    """Of the links in direction mu, with these fluxes through (x, y) and (z, t) in units of 2 pi."""
    plane, second = divmod(mu, 2)
    strength = 2 * np.pi * fluxes[plane] / L**2
    if second:
        return strength * x[mu - 1]
    return np.where(x[mu] == L - 1, -strength * L * x[mu + 1], 0.0)  # so that the edge has it, too


U = GaugeField(lattice, SU(3))
for mu, links in enumerate(U.fields):
    of_colours = [angles(mu, fluxes) for fluxes in ((1, charge), (-1, 0), (0, -charge))]
    links[...] = np.exp(1j * np.stack(of_colours, axis=-1))[..., np.newaxis] * np.eye(3)

psi = Field(lattice, Spinor(3), boundary={0: "antiperiodic", 3: "antiperiodic"})


@jali.site_function
def times_gamma5(X, out, psi):
    out[X] = gamma5 * psi[X]


def array(out, v):
    times_gamma5(out, v)
    return out[...].ravel()


def low_modes(mass, start):
    """Eigenvalues of gamma5 D near zero and chiralities <v, gamma5 v>, from eigenvectors of its square D^dagger D, which are also given."""
    D = WilsonDirac(U, mass)
    window = 1.25, (mass + 8) ** 2  # from above the wanted eigenvalues to above all of them
    pairs = lanczos(D.normal, psi, abs(charge) + 2, rtol=1e-5, degree=8, window=window, start=start)
    V, out = np.array([v[...].ravel() for v in pairs.vectors]), psi.like()
    images = np.array([array(out, D @ v) for v in pairs.vectors])
    values, S = np.linalg.eigh(V.conj() @ images.T)
    left = np.linalg.norm(S.T @ images - values[:, np.newaxis] * (S.T @ V), axis=1)
    chirality = S.conj().T @ (V.conj() @ np.array([array(out, v) for v in pairs.vectors]).T) @ S
    found = left < 1e-2  # others belong to an eigenvalue of the square that has more vectors than these
    return values[found], chirality.diagonal().real[found], pairs


masses, flow, pairs = np.linspace(0.2, -0.8, 6), [], None
for mass in masses:
    values, chirality, pairs = low_modes(mass, pairs)
    flow.append(sorted(zip(values, chirality, strict=True), key=lambda mode: abs(mode[0])))
    if lattice.rank == 0:
        modes = ", ".join(f"{value:8.4f} (chirality {chi:5.2f})" for value, chi in flow[-1])
        print(f"mass {mass:5.2f}: gamma5 D has {modes}")

# Modes of a chirality near one cross zero, from the side of their chirality to the other.
chiral = [[value * chi for value, chi in modes if abs(chi) > 0.9] for modes in flow]
crossed = sum(value > 0 for value in chiral[0]) - sum(value > 0 for value in chiral[-1])
sign = -1 if any(chi < -0.9 for modes in flow for _, chi in modes) else 1
measured = topological_charge(U)
if lattice.rank == 0:
    print(f"{crossed} modes of chirality {sign:+d} cross zero; the charge of the links is {measured:.2f}")
assert crossed == abs(charge)
assert round(measured) == charge

if arguments.picture and lattice.rank == 0:
    import matplotlib.pyplot as plt

    m, values, chi = np.array(
        [(mass, *mode) for mass, modes in zip(masses, flow, strict=True) for mode in modes]
    ).T
    plt.scatter(m, values, c=chi, cmap="coolwarm", vmin=-1, vmax=1)
    plt.axhline(0, color="black", linewidth=0.5)
    plt.colorbar(label="chirality")
    plt.xlabel("mass")
    plt.ylabel("eigenvalues of gamma5 D")
    plt.savefig(arguments.picture)
