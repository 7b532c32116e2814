"""A Dirac operator of one's own in 30 lines: quarks whose mass varies in space and that a Yukawa coupling binds to a pseudoscalar field.

    D = m + d + phi(x) + i g gamma_5 pi(x) - H / 2

The formulas of its diagonal, the inverse of that and the hop are all that is written; `jali.Dirac` makes D, D^dagger, their normal operator and both
even-odd forms of them. The three solves agree, and the form that inverts most takes the fewest iterations.
"""

import math

import jali
from jali import Lattice, Real, Spinor
from jali.fermions import gamma5, wilson_hop_at
from jali.gauge import SU, GaugeField
from jali.solvers import cg


class Yukawa(jali.Dirac):
    """Wilson's operator beside fields phi and pi of one real number at a site."""

    def __init__(self, U, mass, phi, pi, coupling):
        super().__init__(U, Spinor)
        self.mass, self.phi, self.pi, self.coupling = mass, phi, pi, coupling

    @property
    def data(self):
        return self.links, self.mass, self.phi, self.pi, self.coupling

    @staticmethod
    def diagonal_at(X, psi, dagger, U, mass, phi, pi, g):
        twist = (-1j if dagger else 1j) * g * pi[X]
        return (mass + X.ndim + phi[X]) * psi[X] + twist * (gamma5 * psi[X])

    @staticmethod
    def inverse_at(
        X, psi, dagger, U, mass, phi, pi, g
    ):  # (a + i b gamma_5)^-1 = (a - i b gamma_5) / (a^2 + b^2)
        a, b = mass + X.ndim + phi[X], (-1 if dagger else 1) * g * pi[X]
        scale = 1 / (a * a + b * b)
        return (scale * a) * psi[X] - 1j * (scale * b) * (gamma5 * psi[X])

    @staticmethod
    def hop_at(X, psi, dagger, U, mass, phi, pi, g):
        return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1)


@jali.site_function
def set_fields(X, phi, pi):
    phi[X] = 0.4 * jali.cos(2 * math.pi * X.coordinate(0) / X.extent(0))
    pi[X] = jali.sin(2 * math.pi * X.coordinate(3) / X.extent(3))


lattice = Lattice(4, 4, 4, 8)
U = GaugeField(lattice, SU(3)).hot_start(seed=1)
phi, pi = lattice.field(Real()), lattice.field(Real())
set_fields(phi, pi)
D = Yukawa(U, 0.5, phi, pi, coupling=0.8)
b = lattice.field(Spinor(3), boundary={3: "antiperiodic"})
b[0, 0, 0, 0, 0, 0] = 1.0

full = cg(D.normal, D.adjoint(b), rtol=1e-12)
solutions, histories = {"full": (full.x, full.iterations)}, {"full": full.history}
for form in ("asymmetric", "symmetric"):
    E = D.even_odd(form=form)
    half = cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-12)
    solutions[form], histories[form] = (E.reconstruct(half.x, b), half.iterations), half.history
for name, (x, iterations) in solutions.items():
    residual = math.sqrt((D @ x - b).norm2() / b.norm2())
    if lattice.rank == 0:
        print(f"{name:11}{iterations:4} iterations, |b - D x| / |b| = {residual:.1e}")
    if residual > 1e-9:
        raise SystemExit(f"{name} found another solution")
