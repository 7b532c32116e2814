"""Claim: an iteration of conjugate gradients with the Wilson operator takes under 140 us at 16^4 in float64 on one H200.

D^dagger D on SU(3) links, and `jali.solvers.cg`, whose host looks at every iteration (numbers of Python) and at every eighth (a graph,
numbers on the device). The time of an iteration is the slope between two solves of different length, so that what a solve does once is
left out. p^dagger A p comes from the operator's own kernel; the same follows with a kernel of its own, in turns with it. Beside it stand
the operator alone, the launches of an iteration, and the time in which the memory could move what the operator and the vectors of an
iteration are (each field once per launch), the roof. `--device cpu` runs on one core.
"""

import argparse
import time

import numpy as np

from jali import Lattice, Spinor
from jali.bench.timing import pin
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField
from jali.solvers import cg, conjugate_gradient

SHORT, LONG = 1 + 32, 1 + 32 * 7  # iterations of the two solves


def seconds(call, lattice) -> float:
    """Wall time of a call, the device included."""
    if lattice.gpu is not None:
        lattice.gpu.synchronize()
    start = time.perf_counter()
    call()
    if lattice.gpu is not None:
        lattice.gpu.synchronize()
    return time.perf_counter() - start


def per_iteration(solves, lattice, rounds: int) -> list[list[float]]:
    """us of an iteration of each of these solves, from each round; a round has all of them."""
    for solve in solves:
        for count in (SHORT, LONG):
            solve(count)
    found: list[list[float]] = [[] for _ in solves]
    for _ in range(rounds):
        for times, solve in zip(found, solves, strict=True):
            short, long = (seconds(lambda: solve(count), lattice) for count in (SHORT, LONG))
            times.append((long - short) / (LONG - SHORT) * 1e6)
    return found


class Apart(WilsonDirac):
    """The same operator without the inner product in its kernel."""

    normal_inner = None  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extent", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", choices=("float64", "float32"), default="float64")
    parser.add_argument("--bandwidth", type=float, default=4.0, help="of the memory, in TB/s, for the roof")
    options = parser.parse_args()
    if options.device == "cpu":
        pin()
    lattice = Lattice(*[options.extent] * 4, device=options.device)
    U = GaugeField(lattice, SU(3), precision=options.precision).hot_start(seed=1)
    D = WilsonDirac(U, 0.1)
    b = lattice.field(Spinor(3), precision=options.precision, boundary={3: "antiperiodic"})
    b[...] = np.random.default_rng(2).normal(size=(*lattice.extents, 4, 3))
    out = b.like()
    print(f"{lattice} on {options.device}, SU(3), {options.precision}")

    def say(name: str, times: list[float], remarks: str = "") -> None:
        print(
            f"{name:44s} {np.median(times):9.2f} us  ({min(times):.2f} .. {max(times):.2f})  {remarks}",
            flush=True,
        )

    D.normal(b, out)
    times = [
        seconds(lambda: [D.normal(b, out) for _ in range(50)], lattice) / 50 * 1e6
        for _ in range(options.rounds)
    ]
    say("D^dagger D alone", times)
    real = 8 if options.precision == "float64" else 4
    spinor, links = 24 * real * lattice.volume, 4 * 18 * real * lattice.volume
    moved = 2 * (2 * spinor + links) + (2 + 3 + 5) * spinor
    say(
        "roof of an iteration",
        [moved / options.bandwidth / 1e6],
        f"{moved / 1e6:.1f} MB at {options.bandwidth:g} TB/s",
    )

    launches: list[int] = []
    kept = conjugate_gradient._Repeated.__init__

    def count(self, run, turns):
        kept(self, run, turns)
        launches.append(self.graph.operations)

    conjugate_gradient._Repeated.__init__ = count  # type: ignore[method-assign]
    rows = [(D, 1, ""), (D, 8, ""), (Apart(U, 0.1), 8, ", inner product apart"), (D, 32, "")]
    solves, names, remarks = [], [], []
    for operator, check_interval, how in rows:

        def solve(iterations: int, operator: WilsonDirac = operator, interval: int = check_interval) -> None:
            cg(
                operator.normal,
                b,
                rtol=1e-300,
                maxiter=iterations,
                must_converge=False,
                check_interval=interval,
            )

        launches.clear()
        solve(SHORT)
        solves.append(solve)
        names.append(f"cg, the host looks every {check_interval}{how}")
        remarks.append(f"{(launches[0] - 1) / check_interval:g} launches" if launches else "")
    for name, found, remark in zip(
        names, per_iteration(solves, lattice, options.rounds), remarks, strict=True
    ):
        say(name, found, remark)


if __name__ == "__main__":
    main()
