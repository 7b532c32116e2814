"""Not a benchmark: jali's kernels on a small lattice, to be run under compute-sanitizer, which must find nothing.

compute-sanitizer --tool memcheck  --error-exitcode 1 python benchmarks/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize.py
"""

import argparse

import numpy as np

import jali
from jali import comm
from jali.comm import DeviceArray
from jali.comm.algorithms import COLLECTIVES
from jali.devices import open_device
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField, plaquettes, sweep


@jali.site_function
def slices(X, x, total, squares):
    total += x[X + X.directions()[1]].real
    squares += x[X].norm2()


@jali.site_function
def many_sums(X, x, a, b, c, d, e):
    a += x[X].real
    b += x[X].imag
    c += x[X].norm2()
    d += x[X + X.directions()[0]].real
    e += x[X - X.directions()[1]].imag


def fields(precision: str) -> None:
    lattice = jali.Lattice(6, 4, 4, 8)
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=2)
    rng = jali.Random(4)
    sweep(U, 5.7, rng, overrelaxation=1)
    plaquettes(U)
    psi, out = (lattice.field(jali.Spinor(3), precision=precision) for _ in range(2))
    psi[...] = np.random.default_rng(1).normal(size=(6, 4, 4, 8, 4, 3)).astype(complex)
    out.assign(WilsonDirac(U, mass=0.1).apply(psi))
    x = lattice.field(jali.Complex(), precision=precision)
    x[...] = np.random.default_rng(2).normal(size=(6, 4, 4, 8))
    lattice.sum(many_sums, x)
    lattice.sum(slices, x, per=lattice.directions[3])
    _ = out[...], x[0, :, :, :]


def collectives() -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    for count in (7, 1000, 300_000):
        x = DeviceArray.from_host(np.arange(count, dtype=np.float32), gpu)
        for name in COLLECTIVES:
            out = DeviceArray.empty(gpu, (count,), np.float32)
            arguments = (x,) if name == "broadcast" else (x, out)
            getattr(c, name)(*arguments)
        c.all_reduce(DeviceArray.from_host(np.ones(count, np.float16), gpu))
    gpu.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launch", help="as of jali.tune.experiment")
    jali.use_device("cuda")
    with jali.tune.experiment(launch=parser.parse_args().launch):
        for precision in ("float64", "float32"):
            fields(precision)
        collectives()
    print("all kernels ran")
