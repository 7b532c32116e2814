"""Claims: quenched masses at beta 5.7 agree with known ones in one chi-square over all; from a source to correlators of clover quarks solves take 91 % of the time (one H200, 16^3 x 32).

Parts, chosen by --parts:

quenched  masses of pion and rho at kappa 0.16 and 0.165, of the staggered pion at m = 0.1, the pion's C(4) and tr G(0, 0), from configurations of 8^3 x 16 at
          beta 5.7, beside those of 1076 configurations (jali's reference, Kennedy-Pendleton heat bath, point to point; KNOWN). The configurations are links of chains
          of heat bath and overrelaxation (1 + 4) from cold starts, whose seeds stand here (SEEDS) and were written before the first run. The result is one
          chi-square over all numbers, with the covariance of this sample and the errors of those of the reference, and its p-value
speed     a clover propagator from a point, twelve right-hand sides at once, to 1e-10 in float64 with few bits inside (--inner), and the correlators of all
          mesons at zero momentum and of the nucleon: what takes how long, and the share of the solves; kernels are compiled before
start     seconds from the start of `jali spectrum` to its first solve, with kernels of a first run kept
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from jali import SU, Lattice, Random
from jali.bench.timing import pin
from jali.fermions import CloverDirac, Staggered, WilsonDirac
from jali.gauge import GaugeField, plaquette, sweep
from jali.hadrons import mesons, nucleon, point_source, staggered_mesons
from jali.statistics import jackknife

BETA, EXTENTS = 5.7, (8, 8, 8, 16)
SEEDS = (5701, 5702, 5703, 5704)  # of chains; written on 2026-11-30, before the first run
THERMALISATION, SEPARATION = 500, 50  # sweeps
KAPPAS, STAGGERED_MASS = (0.16, 0.165), 0.1
# value and error; masses are arcosh(C(7) / C(8)) / 1 at the middle, where C(7) / C(8) = cosh(m)
KNOWN = {
    "plaquette": (0.54919, 0.00006),
    "kappa 0.16 pion C(4)": (0.011002, 0.000061),
    "kappa 0.16 pion": (0.6889, 0.0030),
    "kappa 0.16 rho": (0.8096, 0.0036),
    "kappa 0.165 pion": (0.444, 0.007),
    "kappa 0.165 rho": (0.657, 0.008),
    "staggered pion": (0.8257, 0.0017),
    "staggered tr G": (0.663, 0.004),
}


def numbers_of(U: GaugeField) -> np.ndarray:
    """What a configuration gives: plaquette; C(4), C(7), C(8) of pions and rhos; of staggered quarks C(7), C(8), tr G(0, 0)."""
    found = [plaquette(U)]
    for kappa in KAPPAS:
        D = WilsonDirac(U, kappa=kappa)
        of_pairs = mesons(D.propagator(point_source(D)))
        for name in ("pion", "rho"):
            C = of_pairs[name]
            found += [(C[4] + C[12]) / 2, (C[7] + C[9]) / 2, C[8]]
    K = Staggered(U, STAGGERED_MASS)
    S = K.propagator(point_source(K))
    C = staggered_mesons(S)["pion"]
    trace = sum(S.members[k][0, 0, 0, 0][k].real for k in range(3))
    return np.array([*found, (C[7] + C[9]) / 2, C[8], trace])


def derived(mean: np.ndarray) -> np.ndarray:
    """The numbers of KNOWN, of the means."""
    heavy, light, staggered = mean[1:7], mean[7:13], mean[13:]
    mass = lambda before, middle: np.arccosh(before / middle)  # noqa: E731
    return np.array(
        [
            mean[0],
            heavy[0],
            mass(heavy[1], heavy[2]),
            mass(heavy[4], heavy[5]),
            mass(light[1], light[2]),
            mass(light[4], light[5]),
            mass(staggered[0], staggered[1]),
            staggered[2],
        ]
    )


def compared(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Values, their errors, chi-square and its p-value: the covariance is that of the jackknife and the reference's variances."""
    found = jackknife(derived, samples)
    each = np.array([derived(np.delete(samples, k, axis=0).mean(axis=0)) for k in range(len(samples))])
    difference = each - each.mean(axis=0)
    covariance = difference.T @ difference * (len(samples) - 1) / len(samples)
    known, errors = np.array(list(KNOWN.values())).T
    d = np.asarray(found.value) - known
    chi2 = float(d @ np.linalg.solve(covariance + np.diag(errors**2), d))
    return np.asarray(found.value), np.asarray(found.error), chi2, float(stats.chi2.sf(chi2, len(d)))


def ensemble(
    lattice: Lattice, count: int, callback: Callable[[GaugeField], None], seeds: Sequence[int] = SEEDS
) -> None:
    """`count` configurations, as many of each chain, one chain after the other."""
    for number, seed in enumerate(seeds):
        U, rng = GaugeField(lattice, SU(3)).cold_start(), Random(seed=seed)
        here = len(range(number, count, len(seeds)))
        for k in range(here):
            for _ in range(THERMALISATION if k == 0 else SEPARATION):
                sweep(U, BETA, rng, heatbath=1, overrelaxation=4)
            U.reunitarise()
            callback(U)


def quenched(options: argparse.Namespace) -> None:
    lattice = Lattice(*EXTENTS, device=options.device)
    samples: list[np.ndarray] = []
    begun = time.monotonic()
    ensemble(lattice, options.configurations, lambda U: samples.append(numbers_of(U)))
    if options.save:
        np.save(options.save, np.array(samples))
    values, errors, chi2, p = compared(np.array(samples))
    for (name, (known, known_error)), value, error in zip(KNOWN.items(), values, errors, strict=True):
        sigmas = (value - known) / np.hypot(error, known_error)
        print(
            f"quenched {name:24s} {value:.6f} +- {error:.6f}, known {known:g} +- {known_error:g}: {sigmas:+.1f} sigma"
        )
    print(
        f"quenched {len(samples)} configurations in {time.monotonic() - begun:.0f} s: chi2 {chi2:.1f} of {len(KNOWN)} numbers, p = {p:.3f}"
    )


def speed(options: argparse.Namespace) -> None:
    if options.device == "cpu":
        pin()
    extent = options.extent
    lattice = Lattice(extent, extent, extent, 2 * extent, device=options.device)
    U, rng = GaugeField(lattice, SU(3)).cold_start(), Random(seed=1)
    for _ in range(options.sweeps):
        sweep(U, 6.0, rng, heatbath=1, overrelaxation=4)
    D = CloverDirac(U, kappa=options.kappa, csw=options.csw)
    inner: dict[str, Any] = {} if options.inner == "rules" else {"inner": options.inner}
    rows: list[dict[str, float]] = []
    for round_ in range(options.rounds + 1):
        times: dict[str, float] = {}

        def timed(what: str, call: Callable[[], Any], into: dict[str, float] = times) -> Any:
            begun = time.perf_counter()
            found = call()
            if lattice.gpu is not None:
                lattice.gpu.synchronize()
            into[what] = time.perf_counter() - begun
            return found

        b = timed("source", lambda: point_source(D))
        solutions: list[Any] = []
        S = timed("solve", lambda b=b, s=solutions: D.propagator(b, 1e-10, on_solution=s.append, **inner))
        timed("mesons", lambda S=S: mesons(S))
        timed("nucleon", lambda S=S: nucleon(S))
        if round_:
            rows.append(times)
        else:
            print(solutions[0].explain())
    medians = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    total = sum(medians.values())
    for name, seconds in medians.items():
        print(f"speed {extent}^3 x {2 * extent} {name:8s} {1e3 * seconds:9.2f} ms {seconds / total:6.1%}")
    print(
        f"speed solves {medians['solve'] / total:.1%} (aim 85 %), mesons {medians['mesons'] / total:.1%} (aim below 5 %), {total:.3f} s in all, {solutions[0].iterations} iterations"
    )


def start(options: argparse.Namespace) -> None:
    lattice = Lattice(8, 8, 8, 16)
    U, rng = GaugeField(lattice, SU(3)).cold_start(), Random(seed=1)
    for _ in range(20):
        sweep(U, 6.0, rng, heatbath=1, overrelaxation=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "links.ildg"
        U.save(path)
        program = (
            "import sys, time, jali.solvers.choice as choice\n"
            "solve = choice.solve\n"
            "def first(*a, **k):\n    print('first solve', time.time(), flush=True)\n    return solve(*a, **k)\n"
            "import jali\njali.solve = first\n"
            "from jali.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
        )
        for round_ in range(options.rounds + 1):
            output = f"{folder}/out{round_}"
            words = ["spectrum", str(path), "--operator", "clover", "--kappa", "0.12", "--output", output]
            words += ["--device", options.device]
            begun = time.time()
            done = subprocess.run(
                [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
            )
            line = next(line for line in done.stdout.splitlines() if line.startswith("first solve"))
            seconds = float(line.split()[-1]) - begun
            print(
                f"start {'first run' if round_ == 0 else 'kernels kept'}: {seconds:.2f} s to the first solve (aim 3 s)"
            )


PARTS = {"quenched": quenched, "speed": speed, "start": start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="quenched,speed,start", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--save", metavar="FILE.npy", help="numbers of each configuration")
    parser.add_argument("--extent", type=int, default=16)
    parser.add_argument("--sweeps", type=int, default=150)
    parser.add_argument("--kappa", type=float, default=0.1335)
    parser.add_argument("--csw", type=float, default=1.769)
    parser.add_argument("--inner", default="fixed16", help='storage of the recursion, or "rules"')
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name in options.parts.split(","):
        PARTS[name](options)


if __name__ == "__main__":
    main()
