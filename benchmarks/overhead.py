"""Claims: Python overhead under 5 us per call; a warm kernel load under 50 ms; cold compile of the plaquette under 3 s and of the
largest update kernel under 10 s."""

import os
import subprocess
import sys
import tempfile

from timing import Result, arguments, pin, show, time_call

PROBE = """
import time, sys
import jali
from jali.gauge import SU, GaugeField
from jali.gauge.observables import plaquettes
from jali.gauge.updates import heat_bath_sweep
lattice = jali.Lattice(4, 4, 4, 4)
U = GaugeField(lattice, SU(3)).cold_start()
rng = jali.Random(1)
start = time.perf_counter(); plaquettes(U); plaquette = time.perf_counter() - start
from jali.gauge.heatbath import heat_bath_kennedy_pendleton as kernel
start = time.perf_counter(); kernel[jali.EVEN](U, rng, 0.25, lattice.directions[0]); update = time.perf_counter() - start
print(plaquette, update)
"""


def probe(cache: str) -> list[float]:
    out = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "JALI_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in out.stdout.split()]


def main() -> None:
    options = arguments(__doc__)
    pin()
    import jali

    lattice = jali.Lattice(4, 4)
    x, y = (jali.Field(lattice, jali.Real()) for _ in range(2))

    @jali.site_function
    def axpy(X, y, x, a):
        y[X] += a * x[X]

    call = time_call(lambda: axpy(y, x, 0.5), 1, scale=1e6)
    rows = [Result("Python and launch, axpy on 4x4", *call, "us")]
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(probe(cache))
            warm += [probe(cache) for _ in range(3)]
    for k, name in enumerate(("plaquette", "SU(3) heat bath")):
        for label, times, unit, scale in (("cold compile", cold, "s", 1), ("warm load", warm, "ms", 1e3)):
            values = sorted(t[k] * scale for t in times)
            rows.append(Result(f"{label}, {name}", values[len(values) // 2], values[0], values[-1], unit))
    show(rows, options)


if __name__ == "__main__":
    main()
