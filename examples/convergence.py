"""How solvers converge: five of them on Wilson's operator, three on its even-odd form, and one whose recursion has 16 bits, by applications of the operator.

The links are those of a short simulation at beta 5.7; on random ones, where eigenvalues of the operator fill a disc, all but CGNR are alike.
Solutions agree, and each residual is computed from its solution. `--picture convergence.png` draws.
"""

import argparse
from functools import partial

import numpy as np

from jali import SU, Field, Lattice, Random, Spinor
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField, sweep
from jali.solvers import Inner, bicgstab, bicgstabl, cgnr, gcr, mr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extent", type=int, default=6, help="of the lattice, even")
parser.add_argument("--mass", type=float, default=-0.6)
parser.add_argument("--rtol", type=float, default=1e-10)
parser.add_argument("--picture", metavar="FILE")
arguments = parser.parse_args()

lattice = Lattice(*[arguments.extent] * 4)
U, rng = GaugeField(lattice, SU(3)).cold_start(), Random(seed=1)
for _ in range(20):
    sweep(U, 5.7, rng)
D = WilsonDirac(U, arguments.mass)
b = Field(lattice, Spinor(3), boundary={3: "antiperiodic"})
b[...] = np.random.default_rng(2).normal(size=b.shape)

# Solvers, and the applications of D or D^dagger in one of their iterations.
SOLVERS = {
    "CGNR": (cgnr, 2),
    "BiCGStab": (bicgstab, 2),
    "BiCGStab(4)": (partial(bicgstabl, directions=4), 8),
    "GCR(10)": (gcr, 1),
    "MR": (mr, 1),
}

histories, solutions = {}, {}
for name, (solver, applications) in SOLVERS.items():
    found = solver(D, b, rtol=arguments.rtol)
    histories[name] = applications * np.arange(found.iterations + 1), found.history
    solutions[name] = found.x

E = D.even_odd()
for name in ("CGNR", "BiCGStab", "GCR(10)"):
    solver, applications = SOLVERS[name]
    found = solver(E, E.prepare(b), rtol=arguments.rtol)
    histories[f"{name}, even-odd"] = applications * np.arange(found.iterations + 1), found.history
    solutions[f"{name}, even-odd"] = E.reconstruct(found.x, b)

few = D.in_format("float32", "float16")
inner = Inner(few, b.like(precision="float32", storage="float16"))
found = cgnr(D, b, rtol=arguments.rtol, inner=inner)
histories["CGNR in 16 bits"] = 2 * np.arange(found.iterations + 1), found.history
solutions["CGNR in 16 bits"] = found.x

size = np.sqrt(b.norm2())
for name, x in solutions.items():
    residual = np.sqrt((D @ x - b).norm2()) / size
    apart = np.sqrt((x - solutions["CGNR"]).norm2() / x.norm2())
    if lattice.rank == 0:
        print(
            f"{name:28s}{histories[name][0][-1]:5d} applications  residual {residual:.1e}  from CGNR's solution {apart:.1e}"
        )
    assert residual < 20 * arguments.rtol
    assert apart < 1e3 * arguments.rtol

if arguments.picture and lattice.rank == 0:
    import matplotlib.pyplot as plt

    for name, (at, residuals) in histories.items():
        plt.semilogy(at, residuals, label=name)
    plt.xlabel("applications of the operator")
    plt.ylabel("|r| / |b|")
    plt.legend()
    plt.savefig(arguments.picture)
