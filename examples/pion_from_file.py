"""The pion of one configuration: `pion_from_file.py FILE` reads links in the format of ILDG, NERSC or MILC; without a file a lattice thermalises first.

Clover quarks, all twelve columns of the propagator in one solve for half of the sites. C(t) = sum_x tr S^dagger S (x, t; 0) is positive, and its effective
mass is that of the pion where excited states have died away.
"""

import argparse

import numpy as np

import jali
from jali import Spinor
from jali.fermions import CloverDirac
from jali.gauge import SU, GaugeField, plaquette, sweep
from jali.solvers import cg

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", nargs="?", metavar="FILE")
parser.add_argument("--kappa", type=float, default=0.13)
parser.add_argument("--csw", type=float, default=1.5)
arguments = parser.parse_args()


@jali.site_function
def density(X, S, total):
    total += S[X].norm2()


if arguments.file:
    U = GaugeField.from_file(arguments.file)
else:
    U, rng = GaugeField(jali.Lattice(4, 4, 4, 8), SU(3)).hot_start(seed=1), jali.Random(seed=2)
    for _ in range(20):
        sweep(U, 5.7, rng, heatbath=1, overrelaxation=4)
lattice, time = U.lattice, U.lattice.ndim - 1
D = CloverDirac(U, kappa=arguments.kappa, csw=arguments.csw)
b = lattice.field(Spinor(3), boundary={time: "antiperiodic"}, batch=12)
b[(0,) * lattice.ndim] = np.eye(12).reshape(12, 4, 3)
E = D.even_odd(form="symmetric")
found = cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-11)
S = E.reconstruct(found.x, b)
C = sum(np.asarray(lattice.sum(density, S.members[k], per=time)) for k in range(12))
residual, P = np.sqrt(np.max((D @ S - b).norm2())), plaquette(U)
if lattice.rank == 0:
    print(f"{lattice}, plaquette {P:.10f}, {found.iterations} iterations")
    for t, (c, after) in enumerate(zip(C, np.roll(C, -1), strict=True)):
        print(f"t = {t:2d}   C = {c:.9f}   ln C(t) / C(t + 1) = {np.log(c / after):+.4f}")
    print(f"largest residual {residual:.1e}")
if residual > 1e-8 or np.any(C <= 0):
    raise SystemExit("this is no propagator")
