"""The pion of one configuration: `pion_from_file.py FILE` reads links in the format of ILDG, NERSC or MILC; without a file a lattice thermalises first.

Clover quarks, all twelve columns of the propagator in one solve. `jali spectrum FILE --operator clover --kappa 0.13` does so and more.
"""

import argparse

import numpy as np

import jali
from jali.fermions import CloverDirac
from jali.gauge import SU, GaugeField, plaquette, sweep
from jali.hadrons import mesons, point_source

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", nargs="?", metavar="FILE")
parser.add_argument("--kappa", type=float, default=0.13)
parser.add_argument("--csw", type=float, default=1.5)
arguments = parser.parse_args()

if arguments.file:
    U = GaugeField.from_file(arguments.file)
else:
    U, rng = GaugeField(jali.Lattice(4, 4, 4, 8), SU(3)).hot_start(seed=1), jali.Random(seed=2)
    for _ in range(20):
        sweep(U, 5.7, rng, heatbath=1, overrelaxation=4)
D = CloverDirac(U, kappa=arguments.kappa, csw=arguments.csw)
b = point_source(D)
S = D.propagator(b, tolerance=1e-11)
C = mesons(S)["pion"]
residual, P = np.sqrt(np.max((D @ S - b).norm2())), plaquette(U)
if U.lattice.rank == 0:
    print(f"{U.lattice}, plaquette {P:.10f}")
    for t, (c, after) in enumerate(zip(C, np.roll(C, -1), strict=True)):
        print(f"t = {t:2d}   C = {c:.9f}   ln C(t) / C(t + 1) = {np.log(c / after):+.4f}")
    print(f"largest residual {residual:.1e}")
if residual > 1e-8 or np.any(C <= 0):
    raise SystemExit("this is no propagator")
