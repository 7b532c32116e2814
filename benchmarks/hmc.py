"""Claims: a 2MN trajectory of the Wilson action in SU(3) takes at most 1.05 times the sum of its kernels; momenta, energies and link updates run at
85 % of copy speed over their bytes; a kick by the force takes at most 1.10 times one written by hand.

Times are medians, ratios of times that are measured in turn. Bytes are those of every field that is read or written, once per kernel. Beside stand one heat-bath and four
overrelaxation sweeps, per link. `--device cpu` runs on one core; `JALI_TUNE=now` finds the fastest launches first.
"""

import argparse
from functools import partial

import numpy as np
from derivatives import timed
from half_lattice import copy_rate

import jali
from jali import Lattice
from jali.bench.timing import pin
from jali.gauge import (
    SU,
    GaugeField,
    heat_bath_sweep,
    overrelaxation_sweep,
    staple,
    stout_smear,
    wilson_action,
)
from jali.hmc import HMC, Level, Monomial


@jali.site_function
def kick_by_hand(X, P, U, half_coupling, mu):
    F = (U[mu][X] * staple(X, U, mu).dagger()).traceless_antihermitian()
    P[mu][X] = P[mu][X] - half_coupling * F


def median(call, lattice, rounds: int, repeat: int) -> float:
    """Seconds of one call."""
    for _ in range(2):
        timed(call, lattice)
    times = [timed(lambda: [call() for _ in range(repeat)], lattice) for _ in range(rounds)]
    return float(np.median(times)) / repeat


def recorded(call, lattice):
    """The call as a graph, for which the host does nothing between its kernels."""
    call()
    return jali.graph(call, lattice).run


def rows(lattice: Lattice, precision: str, rounds: int, rate: float, repeat: int, steps: int) -> None:
    word = 8 if precision == "float64" else 4
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    rng = jali.Random(1)
    for _ in range(3):
        heat_bath_sweep(U, 5.9, rng)
    hmc = HMC({"U": U}, Monomial(wilson_action(5.9)), seed=1, levels=[Level("2MN", steps)], tau=0.5)
    hmc.draw_momenta()
    P, kinetic, (kicks,) = hmc.momenta["U"], hmc._kinetic["U"], hmc._kicks
    links = lattice.ndim * lattice.volume
    measure = partial(median, lattice=lattice, rounds=rounds, repeat=repeat)

    print(f"  {'':28s} {'us':>10s} {'of copy speed':>14s}")
    drift = recorded(lambda: kinetic.move(U, P, 0.01, hmc._tau_now, 1.0), lattice)
    energy = recorded(lambda: lattice.sum(kinetic.energy, P, 1.0, wait=False), lattice)
    for name, call, reals in (
        ("momenta drawn", hmc.draw_momenta, 8),  # no graph: each call has random numbers of its own
        ("kinetic energy", energy, 8),
        ("link update", drift, 8 + 2 * 18),
    ):
        seconds = measure(call)
        print(f"  {name:28s} {seconds * 1e6:10.1f} {links * reals * word / rate / seconds:14.2f}", flush=True)
    kick = recorded(lambda: kicks.kick(hmc.momenta, 1e-7, hmc._tau_now), lattice)
    hand = recorded(lambda: [kick_by_hand(P, U, 1e-7, mu) for mu in lattice.directions], lattice)
    pairs = [(measure(kick, rounds=3), measure(hand, rounds=3)) for _ in range(max(rounds // 3, 3))]
    ratio, one = float(np.median([a / b for a, b in pairs])), float(np.median([a for a, _ in pairs]))
    print(f"  {'kick':28s} {one * 1e6:10.1f}   {ratio:.3f} times the one by hand, aim 1.10")
    moves = hmc._moves
    kernels = sum(one if m.level >= 0 else 0.0 for m in moves) + sum(m.level < 0 for m in moves) * measure(
        drift
    )
    whole = median(hmc.integrate, lattice, rounds, 1)
    print(
        f"  {f'trajectory, {steps} steps':28s} {whole * 1e6:10.1f}   {whole / kernels:.3f} times its {len(moves)} moves, aim 1.05; "
        f"{whole / links * 1e9:.2f} ns per link"
    )
    complete = median(hmc.trajectory, lattice, max(rounds // 2, 3), 1)
    print(
        f"  {'with energies and accept step':28s} {complete * 1e6:10.1f}   {complete / whole:.3f} times the moves alone"
    )

    def sweeps():
        heat_bath_sweep(U, 5.9, rng)
        for _ in range(4):
            overrelaxation_sweep(U)

    seconds = median(sweeps, lattice, max(rounds // 2, 3), 1)
    print(
        f"  {'heat bath, 4 overrelaxations':28s} {seconds * 1e6:10.1f}   {seconds / links * 1e9:.2f} ns per link",
        flush=True,
    )


def smeared_rows(lattice: Lattice, precision: str, rounds: int, repeat: int) -> None:
    """The kick of an action of stout links, beside that of plain ones."""
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    times = []
    for action in (wilson_action(5.9), wilson_action(5.9).on(lambda V: stout_smear(V, 0.1))):
        hmc = HMC({"U": U}, Monomial(action), seed=1, levels=[Level("2MN", 2)], tau=0.1)
        hmc.draw_momenta()
        (kicks,) = hmc._kicks

        def kick(hmc=hmc, kicks=kicks):
            kicks.kick(hmc.momenta, 1e-9, hmc._tau_now)

        times.append(median(recorded(kick, lattice) if kicks.direct else kick, lattice, rounds, repeat))
    how = "a graph" if kicks._graph else "calls"
    plain, stout = times
    print(
        f"  {'kick of stout links':28s} {stout * 1e6:10.1f}   {stout / plain:.1f} plain kicks, by {how}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extents", default="8,16")
    parser.add_argument("--precisions", default="float64,float32")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    if options.device == "cpu":
        pin()
    rate = copy_rate(options.device, max(options.rounds // 2, 4))
    print(f"copy: {rate / 1e12:.3f} TB/s on {options.device}")
    each = [
        (extent, precision)
        for extent in map(int, options.extents.split(","))
        for precision in options.precisions.split(",")
    ]
    repeat = 1 if options.device == "cpu" else 20
    for extent, precision in each:
        print(f"{extent}^4, {precision}")
        lattice = Lattice(*[extent] * 4, device=options.device)
        rows(lattice, precision, options.rounds, rate, repeat, options.steps)
    for extent, precision in each:  # kernels that take long to compile
        print(f"{extent}^4, {precision}")
        smeared_rows(Lattice(*[extent] * 4, device=options.device), precision, options.rounds, repeat)


if __name__ == "__main__":
    main()
