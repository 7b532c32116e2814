"""Claims: a generated Wilson force takes at most 1.10 times the hand-written one, the adjoint of a stencil or of the Wilson operator 1.05 times the
forward kernel; a stout level costs 7 plain forces in float64 and 5 in float32; a gradient through time steps 3.5 forward runs, 5 in a
tenth of the memory.

Each row is the median ratio of two times that are measured in turn, with its quartiles. "compulsory" is the time in which a copy of a large
field would move every field of each kernel once. `--device cpu` runs on one core; `JALI_TUNE=now` finds the fastest launches first.
"""

import argparse
import time

import numpy as np
from half_lattice import copy_rate

import jali
from jali import SU, Algebra, Complex, Field, Lattice, Matrix, Real, Spinor
from jali.bench.timing import pin
from jali.fermions import wilson_at
from jali.gauge import GaugeField, staple, stout_smear, wilson_action
from jali.gauge.link_terms import LinkTerms
from jali.gauge.smearing import _stout


@jali.site_function
def force_by_hand(X, F, U, half_coupling):
    for mu in X.directions():
        F[mu][X] = half_coupling * (U[mu][X] * staple(X, U, mu).dagger()).traceless_antihermitian()


@jali.site_function
def stencil(X, y, x, a):
    y[X] = a * x[X] + sum(0.3j * x[X + mu] - 0.7 * x[X - mu] for mu in X.directions())


@jali.site_function
def dirac(X, y, psi, U, m):
    y[X] = wilson_at(X, psi, U, m)


@jali.site_function
def pseudofermion(X, psi, U, m, total):
    total -= wilson_at(X, psi, U, m, -1).norm2()


@jali.site_function
def step(X, u, old, speed):
    laplacian = sum(u[X + mu] + u[X - mu] for mu in X.directions()) - 2 * X.ndim * u[X]
    old[X] = 2 * u[X] - old[X] + speed[X] ** 2 * laplacian


@jali.site_function
def half_norm2(X, u, total):
    total += 0.5 * u[X] ** 2


def timed(call, lattice) -> float:
    if lattice.gpu is not None:
        lattice.gpu.synchronize()
    start = time.perf_counter()
    call()
    if lattice.gpu is not None:
        lattice.gpu.synchronize()
    return time.perf_counter() - start


def compare(name: str, call, other, lattice, rounds: int, aim: float, repeat: int = 1) -> float:
    """Times two calls in turn; prints the median of their ratios, and returns the median time of the first."""

    def several(one):
        return lambda: [one() for _ in range(repeat)]

    for one in (call, other):
        timed(several(one), lattice), timed(several(one), lattice)
    pairs = [(timed(several(call), lattice), timed(several(other), lattice)) for _ in range(rounds)]
    low, middle, high = np.quantile([a / b for a, b in pairs], [0.25, 0.5, 0.75])
    mine, theirs = (float(np.median([pair[k] for pair in pairs])) / repeat for k in (0, 1))
    print(
        f"  {name:42s} {middle:6.3f} ({low:.3f} to {high:.3f}), aim {aim}; {mine * 1e6:10.1f} us, {theirs * 1e6:10.1f} us",
        flush=True,
    )
    return mine


def against_bytes(name: str, function, arguments, seconds: float, rate: float, forward=None) -> None:
    """Prints the time beside that of the compulsory bytes, and flops beside those of the forward function."""
    report = jali.inspect(function, *arguments)
    lattice = (
        next(f.lattice for f in arguments[0]) if isinstance(arguments[0], list) else arguments[0].lattice
    )
    least = report.bytes_least * lattice.volume / rate
    flops = "" if forward is None else f", flops {report.flops / forward:.2f} times the forward ones"
    kernels = len(report.kernels) or 1
    print(
        f"  {'':42s} {name}: {seconds / least:.2f} times its compulsory bytes' time, {kernels} kernels{flops}"
    )


@jali.site_function
def force_of_direction(X, F, U, mu, force, given):
    F[mu][X] = force(X, U, mu, *given)


def gauge_rows(lattice, precision: str, rounds: int, rate: float, repeat: int) -> None:
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    F = [Field(lattice, Algebra(3), precision=precision) for _ in U.fields]
    action = wilson_action(6.0)

    def force():
        action.force(U, out=F)

    def by_hand():
        force_by_hand(F, U, 1.0)

    if lattice.gpu is not None:  # as in a flow or a trajectory: the host starts several kernels, or one graph
        compare("Wilson force, by calls", force, by_hand, lattice, rounds, 1.10, repeat)
        force, by_hand = (jali.graph(one, lattice).run for one in (force, by_hand))
    plain = compare("Wilson force", force, by_hand, lattice, rounds, 1.10, repeat)
    terms = LinkTerms.of_links(action, U)
    one = (F, U, lattice.directions[0], terms.force, terms.given)
    against_bytes("force", force_of_direction, one, plain / 4, rate)

    psi, y = (Field(lattice, Spinor(3), precision=precision) for _ in range(2))
    psi[...] = 1.0
    D = jali.adjoint(dirac, of="psi")
    compare(
        "adjoint of the Wilson operator",
        lambda: D(psi, y, U, 0.1),
        lambda: dirac(y, psi, U, 0.1),
        lattice,
        rounds,
        1.05,
        repeat,
    )
    x, z = (Field(lattice, Complex(), precision=precision) for _ in range(2))
    A = jali.adjoint(stencil, of="x")
    compare(
        "adjoint of a stencil",
        lambda: A(x, z, 0.5),
        lambda: stencil(z, x, 0.5),
        lattice,
        rounds,
        1.05,
        repeat,
    )
    g = jali.gradient(pseudofermion, of="U")
    seconds = compare(
        "pseudofermion force, D^dagger",
        lambda: g(F, psi, U, 0.1),
        lambda: dirac(y, psi, U, 0.1),
        lattice,
        rounds,
        5,
        repeat,
    )
    forward = jali.inspect(pseudofermion, psi, U, 0.1).flops
    against_bytes("gradient", g, (F, psi, U, 0.1), seconds, rate, forward)

    # a stout level: its forward kernels, and the way back from a cotangent of its links
    V = U.like()
    c = [Field(lattice, Matrix(3), precision=precision) for _ in U.fields]
    for field in c:
        field[...] = 0.1 * np.eye(3)
    kernel = _stout((0, 1, 2, 3))
    back = jali.pullback(kernel, of="U")
    dU = [Field(lattice, Algebra(3), precision=precision) for _ in U.fields]

    def level():
        for mu in lattice.directions:
            kernel(V, U, 0.1, mu)
        for mu in lattice.directions:
            back(dU, c, U, 0.1, mu)

    compare(
        "a stout level, forth and back",
        level,
        force,
        lattice,
        rounds,
        7 if precision == "float64" else 5,
        repeat,
    )

    def smeared_force():
        with jali.Tape(U) as tape:
            S = action.value(stout_smear(U, 0.1))
        tape.gradient(S)

    name = "stout and Wilson force by a tape"
    for how, one in {"a graph": jali.graph(smeared_force, lattice).run, "calls": smeared_force}.items():
        compare(f"{name}, by {how}", one, force, lattice, max(rounds // 4, 3), 9)


def steps_rows(device: str, extents, steps: int, rounds: int) -> None:
    lattice = Lattice(*extents, device=device)
    speed = lattice.field(Real())
    speed[...] = 0.4
    u, old, start, zero = (lattice.field(Real(), boundary="open") for _ in range(4))
    start[...] = np.random.default_rng(1).normal(size=lattice.extents)

    def waves(loop):
        a, b = u.assign(start), old.assign(zero)
        for _ in loop(steps):
            step(a, b, speed)
            a, b = b, a
        return a

    def forward():
        return lattice.sum(half_norm2, waves(range), wait=False)

    def gradient(memory=None):
        with jali.Tape(speed, memory=memory) as tape:
            total = lattice.sum(half_norm2, waves(tape.steps), wait=False)
        (found,) = tape.gradient(total)
        return found, tape.peak

    found, peak = gradient()
    again, small = gradient(peak / 10)
    same = np.array_equal(found[...], again[...])
    print(
        f"  {steps} steps on {lattice.extents}: kept {peak / 1e6:.1f} MB, {small / 1e6:.1f} MB; the same bits: {same}"
    )
    del found, again
    cases = {"all kept": (gradient, 3.5), "a tenth of the memory": (lambda: gradient(peak / 10), 5)}
    for name, (one, aim) in cases.items():
        compare(f"gradient, {name}, by calls", one, forward, lattice, rounds, aim)
    forward = jali.graph(forward, lattice).run
    for name, (one, aim) in cases.items():
        compare(f"gradient, {name}, a graph", jali.graph(one, lattice).run, forward, lattice, rounds, aim)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extents", default="16")
    parser.add_argument("--precisions", default="float64,float32")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--plane", default="256,256", help="extents of the time steps")
    options = parser.parse_args()
    if options.device == "cpu":
        pin()
    rate = copy_rate(options.device, max(options.rounds // 2, 4))
    print(f"copy: {rate / 1e12:.3f} TB/s on {options.device}")
    for extent in map(int, options.extents.split(",")):
        lattice = Lattice(*[extent] * 4, device=options.device)
        for precision in options.precisions.split(","):
            print(f"{extent}^4, {precision}")
            gauge_rows(lattice, precision, options.rounds, rate, 1 if options.device == "cpu" else 20)
    steps_rows(
        options.device, tuple(map(int, options.plane.split(","))), options.steps, max(options.rounds // 4, 3)
    )


if __name__ == "__main__":
    main()
