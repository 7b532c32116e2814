"""A pion mass from links to a picture: clover quarks on each configuration of an ensemble, correlators, their effective mass and a fit with errors.

`pion_from_ensemble.py FOLDER` takes that of a `jali run` with save_every; without one a short run is made. `--picture FILE` draws. On every configuration
no meson's correlator is above the pion's, and the pion's does not change under gauge transformations; both are checked.
"""

import argparse
import contextlib
import sys
import tempfile

import numpy as np

from jali import comm, io
from jali.cli.main import main
from jali.fermions import CloverDirac
from jali.gauge import GaugeField
from jali.hadrons import GAMMAS, effective_mass, fold, mesons, plateau, point_source
from jali.statistics import format_value

RUN = ["--set=extents=4,4,4,12", "--set=thermalisation=30", "--set=sweeps=120", "--set=save_every=10"]
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", nargs="?", metavar="FOLDER")
parser.add_argument("--picture", metavar="FILE")
arguments = parser.parse_args()


def correlators(U):
    D = CloverDirac(U, kappa=0.135, csw=1.4)
    return mesons(D.propagator(point_source(D), tolerance=1e-11))


ranks = comm.current()
with tempfile.TemporaryDirectory() as own, contextlib.redirect_stdout(sys.stderr):
    folder = arguments.folder or ranks.broadcast_bytes(f"{own}/run".encode(), 0).decode()
    if not arguments.folder:
        main(["run", f"{sys.path[0]}/su3.toml", "--output", folder, *RUN])
    saved = [GaugeField.from_file(one.path) for one in io.saved_configurations(folder)]
chosen = saved[-12:]  # thermalised by then
found = [correlators(U) for U in chosen]
C = fold(np.array([one["pion"] for one in found]))
mass, fit = effective_mass(C), plateau(C, correlated=False)
change = np.max(np.abs(correlators(chosen[0].random_gauge_transform(seed=1))["pion"] / found[0]["pion"] - 1))
above = max(np.max(np.abs(one[name]) / one["pion"]) for one in found for name in GAMMAS)
if ranks.rank == 0:
    for t, m, error in zip(mass.t, mass.value, mass.error, strict=True):
        if 0 < t < C.shape[1] // 2:
            print(f"t = {t}   C = {C[:, t].mean():.5e}   effective mass {m:.4f} +- {error:.4f}")
    print(f"pion mass {format_value(fit.mass, fit.error)}, best window {fit.best.window}")
    print(f"largest |C| / C of the pion {above:.6f}; by a gauge transformation {change:.1e}")
    if arguments.picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        half = (mass.t > 0) & (mass.t < C.shape[1] // 2)
        axes.errorbar(mass.t[half], mass.value[half], mass.error[half], fmt="o", label="effective mass")
        axes.axhspan(fit.mass - fit.error, fit.mass + fit.error, alpha=0.3, label="average of fits")
        axes.set(xlabel="t", ylabel="pion mass")
        axes.legend()
        figure.savefig(arguments.picture)
if change > 1e-7 or above > 1 + 1e-9:
    raise SystemExit("the correlator depends on the gauge, or is above its bound")
