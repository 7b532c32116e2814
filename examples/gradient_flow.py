"""The gradient flow smooths an SU(3) configuration until t^2 E passes 0.3, which sets the scale.

Luescher, 1006.4518: the links follow the steepest descent of the Wilson action, so the plaquette energy falls at every step; sqrt(8 t0),
with t^2 E = 0.3 at t0, is about half a fermi. The topological charge becomes a whole number on lattices finer than this one.
"""

import argparse
import itertools

import jali
from jali.gauge import SU, GaugeField, reference_time, sweep, wilson_flow

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--beta", type=float, default=5.75)
parser.add_argument("--extent", type=int, default=8)
parser.add_argument("--sweeps", type=int, default=40)
parser.add_argument("--until", type=float, default=1.6, help="flow time")
arguments = parser.parse_args()

lattice = jali.Lattice(*[arguments.extent] * 4)
U = GaugeField(lattice, SU(3)).hot_start(seed=5)
rng = jali.Random(seed=6)
for _ in range(arguments.sweeps):
    sweep(U, arguments.beta, rng)

points = list(wilson_flow(U, until=arguments.until, step=0.04, every=4))
if lattice.rank == 0:
    print("   t     E (clover)  E (plaquette)   t^2 E    charge")
    for p in points:
        print(
            f"{p.time:5.2f}  {p.energy:11.6f}  {p.energy_plaquette:12.6f}  {p.t2_energy:8.5f}  {p.charge:+8.4f}"
        )
falling = all(b.energy_plaquette < a.energy_plaquette for a, b in itertools.pairwise(points))
if not falling:
    raise SystemExit("the action grew along its own gradient flow")
if points[-1].t2_energy > 0.3 and lattice.rank == 0:
    print(f"t0 / a^2 = {reference_time(points):.4f}")
