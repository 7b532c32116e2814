"""A correlator of one's own: the conserved current of Wilson quarks, whose charge is the same on all time slices.

    V(x) = 1/2 [ psibar(x+t) (1 + gamma_t) U_t(x)^dagger psi(x) - psibar(x) (1 - gamma_t) U_t(x) psi(x+t) ]

joins two sites, so no table of gamma matrices has it. A site function states it once; the sum over a slice with the source psibar gamma_t psi at the origin is
one call. That of the local current psibar gamma_t psi changes with t.
"""

import numpy as np

import jali
from jali.fermions import WilsonDirac, gamma, gamma5
from jali.gauge import SU, GaugeField, sweep
from jali.hadrons import mesons, point_source


@jali.site_function
def charge(X, anti, quark, signs, U, total):
    t = X.directions()[3]
    for a, b, sign in zip(anti, quark, signs, strict=True):  # columns of spin and colour at the source
        ahead = (1 + gamma[3]) * (U[X].dagger() * b[X])
        behind = (1 - gamma[3]) * (U[X] * b[X + t])
        total += 0.5 * sign * ((gamma5 * a[X + t]).dot(ahead) - (gamma5 * a[X]).dot(behind))


lattice = jali.Lattice(4, 4, 4, 8)
U, rng = GaugeField(lattice, SU(3)).hot_start(seed=1), jali.Random(seed=2)
for _ in range(20):
    sweep(U, 5.7, rng, heatbath=1, overrelaxation=4)
D = WilsonDirac(U, kappa=0.15)
S = D.propagator(point_source(D), tolerance=1e-12)

spins, signs = np.argmax(np.abs(gamma[3].dense()), axis=0), np.diag(gamma5.dense()).real
anti = [S.members[k] for k in range(12)]
quark = [S.members[3 * int(spins[k // 3]) + k % 3] for k in range(12)]  # the columns of S gamma_t
C = -lattice.sum(charge, anti, quark, [float(signs[k // 3]) for k in range(12)], U[3], per=3)
local = mesons(S).correlator("gt")
change = np.ptp(C.real) / np.abs(C.real).max()
if lattice.rank == 0:
    for t, (c, v) in enumerate(zip(C.real, local.real, strict=True)):
        print(f"t = {t}   conserved {c:+.12f}   local {v:+.12f}")
    print(f"the conserved charge changes by {change:.1e} of itself")
if change > 1e-7:
    raise SystemExit("the current is not conserved")
