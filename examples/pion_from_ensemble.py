"""The pion from a saved ensemble: Wilson quarks on each configuration, the correlator and its effective mass with errors.

`pion_from_ensemble.py FOLDER` takes that of a `jali run` with save_every; without one a short run is made. C(t) = sum_x |S(x, t; 0)|^2
does not change under gauge transformations; that is checked.
"""

import contextlib
import sys
import tempfile

import numpy as np

import jali
from jali import comm, fermions, io, solvers, statistics
from jali.cli.main import main
from jali.gauge import GaugeField

RUN = ["--set=extents=4,4,4,10", "--set=thermalisation=30", "--set=sweeps=60", "--set=save_every=10"]


@jali.site_function
def density(X, psi, total):
    total += psi[X].norm2()


def pion(U, mass=-0.6):  # kappa = 1 / (2 mass + 8) = 0.147
    D, C = fermions.WilsonDirac(U, mass), 0
    for component in np.eye(12).reshape(12, 4, 3):  # spin and colour of the source
        b = U.lattice.field(jali.Spinor(3), boundary={3: "antiperiodic"})
        b[0, 0, 0, 0] = component
        C = C + U.lattice.sum(density, solvers.cg(D.normal, D.adjoint(b), rtol=1e-11).x, per=3)
    return C


ranks = comm.current()
with tempfile.TemporaryDirectory() as own, contextlib.redirect_stdout(sys.stderr):
    folder = sys.argv[1] if sys.argv[1:] else ranks.broadcast_bytes(f"{own}/run".encode(), 0).decode()
    if not sys.argv[1:]:
        main(["run", f"{sys.path[0]}/su3.toml", "--output", folder, *RUN])
    saved = [GaugeField.from_file(one.path) for one in io.saved_configurations(folder)]
C = np.array([pion(U) for U in saved[3:]])  # thermalised by then
found = statistics.jackknife(lambda c: [c[1:-1], np.arccosh((c[:-2] + c[2:]) / (2 * c[1:-1]))], C)
change = np.max(np.abs(pion(saved[3].random_gauge_transform(seed=1)) / C[0] - 1))
if ranks.rank == 0:
    for t, (c, m, dc, dm) in enumerate(np.concatenate([found.value, found.error]).T, start=1):
        print(f"t = {t}   C = {c:.5e} +- {dc:.1e}   effective mass {m:.4f} +- {dm:.4f}")
    print(f"largest relative change by a gauge transformation {change:.1e}")
if change > 1e-8:
    raise SystemExit("the correlator depends on the gauge")
