"""SU(3) gauge theory in a few lines: a hot lattice thermalises, and the plaquette becomes that of the literature.

At beta = 5.7 the mean plaquette in large volume is 0.549195 (QCDSF, hep-ph/0502212).
"""

import jali
from jali.gauge import SU, GaugeField, sweep
from jali.statistics import mean_error

lattice = jali.Lattice(8, 8, 8, 8)  # split over all ranks by itself
U = GaugeField(lattice, SU(3)).hot_start(seed=7)
rng = jali.Random(seed=8)


@jali.site_function
def plaquette(X, U, total):
    for mu, nu in X.planes():
        loop = U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()
        total += loop.trace().real / 3


history = []
for n in range(120):
    sweep(U, 5.7, rng, heatbath=1, overrelaxation=4)
    history.append(lattice.sum(plaquette, U) / (6 * lattice.volume))
    if lattice.rank == 0 and n % 20 == 0:
        print(f"sweep {n:3d}  plaquette {history[-1]:.5f}")

result = mean_error(history[40:])
deviation = (result.mean - 0.549195) / result.error
if lattice.rank == 0:
    print(f"plaquette {result}, tau_int {result.tau_int:.1f}, literature 0.549195: {deviation:+.1f} sigma")
if abs(deviation) > 4:
    raise SystemExit("the plaquette is not that of the literature")
