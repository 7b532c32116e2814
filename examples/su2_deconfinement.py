"""SU(2) gauge theory heats up: the Polyakov loop leaves zero where quarks are set free.

With two slices in time the transition lies at beta_c = 1.880. Below it the distribution of the mean Polyakov loop L is centred at
zero and <|L|> falls with the volume; above it L sits at one of two opposite values, as the spins of an Ising magnet do.
"""

import argparse

import numpy as np

import jali
from jali.gauge import SU, GaugeField, polyakov_loop, sweep
from jali.statistics import mean_error

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--beta", type=float, nargs="+", default=[1.5, 1.7, 1.8, 1.85, 1.9, 2.0, 2.3])
parser.add_argument("--extent", type=int, default=8, help="extent of space; time has 2 slices")
parser.add_argument("--sweeps", type=int, default=120)
arguments = parser.parse_args()

L = arguments.extent
lattice = jali.Lattice(L, L, L, 2)
U = GaugeField(lattice, SU(2)).cold_start()
rng = jali.Random(seed=3)
if lattice.rank == 0:
    print("  beta   <|L|>          susceptibility")
found = {}
for beta in sorted(arguments.beta, reverse=True):  # from the hot, ordered side, where the start is close
    series = []
    for n in range(arguments.sweeps + 50):
        sweep(U, beta, rng, heatbath=1, overrelaxation=2)
        if n >= 50:
            series.append(abs(polyakov_loop(U)))
    order = mean_error(series)
    susceptibility = L**3 * float(np.var(series))
    found[beta] = order.mean
    if lattice.rank == 0:
        bar = "#" * round(60 * order.mean)
        print(f"{beta:6.2f}   {order!s:14} {susceptibility:8.3f}   {bar}")
low, high = found[min(found)], found[max(found)]
if not low < 0.1 < 0.4 < high:
    raise SystemExit(
        f"<|L|> goes from {low:.3f} to {high:.3f}: no transition between the smallest and the largest beta"
    )
