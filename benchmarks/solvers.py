"""Claims: on one H200, 32^4, an iteration of conjugate gradients takes 86 % of a copy's bandwidth over compulsory bytes in float64 and 87 % in float32.

What solvers take beside the fraction of a copy's bandwidth, or beside one another. Parts, chosen by --parts; each number is printed with its aim:

iteration  an iteration of conjugate gradients on the even-odd normal Wilson operator, L^4, links of 12 reals: in float64, in float32, and in float64 with
           an inner solve of 16 bits (reliable updates)
full       the same on all sites, where the host looks at every iteration, at every eighth, at every 32nd; and with p^dagger A p from a kernel of its own
light      on quenched configurations of L^3 x 2L at beta 6: solves in few bits, of many right-hand sides and of many shifts at once, and from
           eigenvectors (--of)
ranks      an iteration of the first kind with L^4 sites per rank, split in one and in two directions: `mpiexec -n N python benchmarks/solvers.py
           --parts ranks --device cuda`, one GPU per rank
core       on one core: the fraction of compulsory bytes of an iteration beside that of the operator alone

The time of an iteration is the slope between two solves of different length, so that what a solve does once (recording a graph, |b - A x| in the end)
is left out; the links are random, with a mass at which neither converges. Compulsory bytes of an iteration count 20 spinors and 32 links of an even site: each hop
reads a spinor and 8 links and writes a spinor, the second hop of each application adds a spinor, and 10 spinors are the updates. The bandwidth is
that of a copy of a large field in the same run. Medians over rounds. `JALI_TUNE=now` finds the fastest launches first.

Configurations of `light` are made by heat bath and overrelaxation (1 + 4) from a cold start, each from a seed of its own, and kept in the folder --cache. Its
shifts are 0 and eleven from 0.001 to 10 in equal ratios; eigenvectors are those of the largest kappa.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from half_lattice import copy_rate

import jali
from jali import ODD, SU, Field, Lattice, Random, Spinor, Vector, comm
from jali.bench.halo import Clock
from jali.bench.operators import FORMATS
from jali.bench.timing import pin
from jali.fermions import HISQ, WilsonDirac, hisq_links
from jali.gauge import GaugeField, plaquette, plaquette_reference, sweep
from jali.lattice.vectors import FieldVectors
from jali.solvers import Inner, Workspace, cg, lanczos, multishift_cg

ANTIPERIODIC = {3: "antiperiodic"}
MASS = -1.9  # of random links, on which the pion is massless at -2
BETA, MASS_OF_HISQ = 6.0, 0.05
SHIFTS = (0.0, *np.geomspace(1e-3, 10, 11))
AIMS_32 = {"float64": "84 % (847 us)", "float32": "82 % (424 us)", "mixed": "66 % (222 us)"}
AIMS_16 = {"float64": "60 us", "float32": "40 us", "mixed": "40 us"}


class Case(NamedTuple):
    """An operator for `cg`, a right-hand side of it, and the options of a solve; `bytes` are the compulsory ones of an iteration, `of_operator` those of A."""

    A: Callable[..., Any]
    b: Field
    options: dict[str, Any]
    bytes: int
    of_operator: int


class Bench:
    """What all parts share: options, clock and bandwidth, and who prints."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.ranks = options, comm.current()
        self.rate = 0.0
        if options.device == "cpu" and self.ranks.size == 1:
            pin()

    def say(self, text: str) -> None:
        if self.ranks.rank == 0:
            print(text, flush=True)

    def extents(self, *usual: int) -> list[int]:
        """Those of --extents, else the usual ones of a part."""
        return self.options.extents or list(usual)

    def lattice(self, *extents: int, grid: list[int] | None = None) -> Lattice:
        more = {} if grid is None else {"grid": grid}
        return Lattice(*extents, device=self.options.device, **more)

    def measure_copy(self) -> float:
        """Bytes per second of a copy, measured once."""
        if not self.rate:
            self.rate = copy_rate(self.options.device, max(self.options.rounds, 4), self.options.copy)
            self.say(f"copy: {self.rate / 1e9:.1f} GB/s on {self.options.device}")
        return self.rate

    def seconds(self, lattice: Lattice, work: Callable[[], Any]) -> float:
        """Of one call, the slowest rank's."""
        clock = Clock(self.ranks, lattice.gpu)
        return clock.slowest([clock.batch(work, 1)])[0]

    def median(self, lattice: Lattice, work: Callable[[], Any]) -> float:
        """Of `rounds` calls."""
        return float(np.median([self.seconds(lattice, work) for _ in range(self.options.rounds)]))

    def of_iteration(self, cases: list[Case]) -> list[float]:
        """Seconds of an iteration of each case, which take turns."""
        short, long = self.options.iterations // 4, self.options.iterations
        # recording graphs anew would take longer on several ranks than what is measured
        kept = {id(case): Workspace() for case in cases}

        def solve(case: Case, iterations: int) -> None:
            options = {**case.options, "workspace": kept[id(case)], "maxiter": iterations}
            found = cg(case.A, case.b, rtol=1e-13, must_converge=False, **options)
            if found.iterations < iterations:
                raise SystemExit(
                    f"a solve ended after {found.iterations} of {iterations} iterations; ask for fewer (--iterations)"
                )

        for case in cases:
            for iterations in (short, long):
                solve(case, iterations)
        times: list[list[float]] = [[] for _ in cases]
        for _ in range(self.options.rounds):
            for found, case in zip(times, cases, strict=True):
                lattice = case.b.lattice
                some, all_of_them = (
                    self.seconds(lattice, functools.partial(solve, case, n)) for n in (short, long)
                )
                found.append((all_of_them - some) / (long - short))
        return [float(np.median(found)) for found in times]


def stored(U: GaugeField, name: str) -> list[Field]:
    """The links in a format of `jali.bench.operators`."""
    precision, _, of_links = FORMATS[name]
    return [u.like(precision=precision, storage=of_links).assign(u) for u in U.fields]


def gaussian(like: Field, seed: int) -> Field:
    """A field like this one with Gaussian numbers."""
    b = like.like()
    rng = np.random.default_rng(seed)
    b[...] = rng.normal(size=b.shape) + 1j * rng.normal(size=b.shape)
    return b


def inner_solve(U: GaugeField, name: str, mass: float, b: Field) -> tuple[Any, Any]:
    """The inner solve for vectors like b in a format of few bits, and its operator."""
    precision, storage, _ = FORMATS[name]
    few = WilsonDirac(stored(U, name), mass).even_odd()
    return Inner(few.normal, b.like(precision=precision, storage=storage)), few


def even_odd_case(U: GaugeField, name: str, few: str | None = None) -> Case:
    """Conjugate gradients on the even-odd normal Wilson operator in a format, with an inner solve in the format `few`."""
    D = WilsonDirac(stored(U, name), MASS)
    precision, storage, _ = FORMATS[name]
    b = gaussian(
        Field(D.lattice, Spinor(3), precision=precision, storage=storage, boundary=ANTIPERIODIC, over=ODD), 2
    )
    options, counted, links = {}, b, D.links
    if few is not None:
        options["inner"], inside = inner_solve(U, few, MASS, b)
        counted, links = (
            b.like(precision=FORMATS[few].precision, storage=FORMATS[few].storage),
            inside.D.links,
        )
    spinor, link = counted.stored.site_bytes, links[0].stored.site_bytes
    sites = D.lattice.volume // 2
    return Case(
        D.even_odd().normal, b, options, sites * (20 * spinor + 32 * link), sites * (10 * spinor + 32 * link)
    )


def even_odd_cases(U: GaugeField, formats: list[str]) -> dict[str, Case]:
    """By format: "float64/float16" has an inner solve in float16."""
    return {name: even_odd_case(U, *name.split("/")) for name in formats}


def aim_of(aims: dict[str, str], name: str) -> str:
    return aims["mixed" if "/" in name else name]


# ---- parts -------------------------------------------------------------------------------------------------


def iteration(bench: Bench) -> None:
    rate = bench.measure_copy()
    for extent in bench.extents(*([8] if bench.options.device == "cpu" else [32, 16])):
        U = GaugeField(bench.lattice(*[extent] * 4), SU(3)).hot_start(seed=1)
        for name in bench.options.formats:
            case = even_odd_case(U, *name.split("/"))
            (found,) = bench.of_iteration([case])
            sites = U.lattice.volume // 2
            aims = {32: AIMS_32, 16: AIMS_16}.get(extent)
            aim = f", aim {aim_of(aims, name)}" if aims else ""
            bench.say(
                f"iteration {extent}^4 {name:16s} {1e6 * found:10.2f} us  {case.bytes // sites:5d} bytes of a site  "
                f"{case.bytes / found / rate:6.1%} of copy{aim}"
            )


class Apart(WilsonDirac):
    """The same operator without the inner product in its kernel."""

    normal_inner = None  # type: ignore[assignment]


def full(bench: Bench) -> None:
    rate = bench.measure_copy()
    launches: list[int] = []
    record = FieldVectors.graph

    def counted(self: Any, x: Field, step: Callable[[], Any], kept: int = 0) -> Any:
        graph = record(self, x, step, kept)
        launches.append(graph.operations)
        return graph

    FieldVectors.graph = counted  # type: ignore[method-assign]
    try:
        for extent in bench.extents(8 if bench.options.device == "cpu" else 16):
            U = GaugeField(bench.lattice(*[extent] * 4), SU(3)).hot_start(seed=1)
            b = gaussian(Field(U.lattice, Spinor(3), boundary=ANTIPERIODIC), 2)
            D = WilsonDirac(U, MASS)
            spinor, link = b.stored.site_bytes, U[0].stored.site_bytes
            least = U.lattice.volume * (14 * spinor + 8 * link)
            out = b.like()
            D.normal(b, out)
            alone = (
                bench.median(U.lattice, lambda D=D, b=b, out=out: [D.normal(b, out) for _ in range(20)]) / 20
            )
            bench.say(f"full {extent}^4 D^dagger D alone {1e6 * alone:10.2f} us")
            kinds = [
                ("every iteration", D, 1),
                ("every 8", D, 8),
                ("every 8, inner product apart", Apart(U, MASS), 8),
                ("every 32", D, 32),
            ]
            cases = [Case(of.normal, b, {"check_interval": interval}, least, 0) for _, of, interval in kinds]
            counts = []
            for case in cases:
                launches.clear()
                cg(case.A, b, rtol=1e-13, maxiter=65, must_converge=False, **case.options)
                counts.append(launches[0] if launches else 0)
            for (what, _, interval), case, count, found in zip(
                kinds, cases, counts, bench.of_iteration(cases), strict=True
            ):
                of_launches = f"  {count / interval:.1f} launches" if count else ""
                bench.say(
                    f"full {extent}^4 the host looks at {what:32s} {1e6 * found:10.2f} us  {case.bytes / found / rate:6.1%} of copy{of_launches}"
                )
    finally:
        FieldVectors.graph = record  # type: ignore[method-assign]


def ranks(bench: Bench) -> None:
    n = bench.ranks.size
    grids = [("one direction", [1, 1, 1, n], 110)]
    if n % 2 == 0 and n > 2:
        grids.append(("two directions", [1, 1, 2, n // 2], 150))
    for local in bench.extents(16):
        for words, grid, aim in grids:
            U = GaugeField(bench.lattice(*(local * parts for parts in grid), grid=grid), SU(3)).hot_start(
                seed=1
            )
            for name in bench.options.formats:
                case = even_odd_case(U, *name.split("/"))
                (found,) = bench.of_iteration([case])
                remark = f", aim {aim} us" if name == "float64" and local == 16 else ""
                bench.say(f"ranks {n} in {words}, {local}^4 each, {name:16s} {1e6 * found:10.2f} us{remark}")


def core(bench: Bench) -> None:
    if bench.options.device != "cpu" or bench.ranks.size > 1:
        raise SystemExit("core: what one core does, with --device cpu and without a launcher of ranks")
    for extent in bench.extents(16):
        U = GaugeField(bench.lattice(*[extent] * 4), SU(3)).hot_start(seed=1)
        for name in bench.options.formats:
            if "/" in name:
                continue
            case = even_odd_case(U, name)
            out = case.b.like()
            case.A(case.b, out)
            alone = (
                bench.median(U.lattice, lambda case=case, out=out: [case.A(case.b, out) for _ in range(8)])
                / 8
            )
            (found,) = bench.of_iteration([case])
            share = (case.bytes / found) / (case.of_operator / alone)
            bench.say(
                f"core {extent}^4 {name:8s} iteration {1e6 * found:10.1f} us, operator {1e6 * alone:10.1f} us: {share:.1%} of the operator's fraction, aim 85 %"
            )


# ---- quenched configurations -------------------------------------------------------------------------------


def configuration(bench: Bench, lattice: Lattice, seed: int) -> GaugeField:
    """The quenched configuration of this seed, from the cache or made anew."""
    sweeps = bench.options.sweeps
    size = "x".join(map(str, lattice.extents))
    path = Path(bench.options.cache) / f"quenched-{size}-beta{BETA:g}-{sweeps}sweeps-seed{seed}.ildg"
    if path.exists():
        U = GaugeField.from_file(path, lattice=lattice)
        made = "read"
    else:
        U, rng = GaugeField(lattice, SU(3)).cold_start(), Random(seed=seed)
        begun = bench.seconds(
            lattice, lambda: [sweep(U, BETA, rng, heatbath=1, overrelaxation=4) for _ in range(sweeps)]
        )
        U.reunitarise()
        path.parent.mkdir(parents=True, exist_ok=True)
        U.save(path)
        made = f"made in {begun:.1f} s"
    known = plaquette_reference("SU(3)", BETA, lattice.extents)
    bench.say(
        f"configuration {seed}: {size}, beta {BETA:g}, {sweeps} sweeps from a cold start, {made}: plaquette {plaquette(U):.6f} (known {known.value if known else 0:.6f})"
    )
    return U


class Light:
    """A configuration and a quark mass: the operator, its even-odd form, a right-hand side, and solves that are timed."""

    def __init__(self, bench: Bench, U: GaugeField, kappa: float, label: str):
        self.bench, self.U, self.label = bench, U, label
        self.lattice = U.lattice
        self.mass = 1 / (2 * kappa) - U.lattice.ndim
        self.E = WilsonDirac(stored(U, "float64"), self.mass).even_odd()
        self.b = self.right_hand_sides(None)
        kept = {"workspace": Workspace()}  # as solves of many right-hand sides have it
        self.warm(cg, self.E.normal, self.b, **kept)
        self.plain, self.found = self.time(cg, self.E.normal, self.b, **kept)
        self.say(f"cg in float64 {self.plain:8.4f} s, {self.found.iterations} iterations")

    def right_hand_sides(self, batch: int | None) -> Field:
        """E^dagger of prepared Gaussian fields, the first of which is that of no batch."""
        b = Field(self.lattice, Spinor(3), boundary=ANTIPERIODIC, batch=batch)
        for k in range(batch or 1):
            one = gaussian(b if batch is None else b.members[0].copy(), 10 + k)
            (b if batch is None else b.members[k]).assign(one)
        return self.E.adjoint(self.E.prepare(b))

    def say(self, text: str) -> None:
        self.bench.say(f"light {self.label}: {text}")

    def warm(self, solver: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Kernels and launches of a solve, by a short one."""
        solver(*arguments, **{**options, "maxiter": 24, "must_converge": False})

    def time(
        self, solver: Callable[..., Any], *arguments: Any, rounds: int | None = None, **options: Any
    ) -> tuple[float, Any]:
        """Median time of a solve, and what it found."""
        found: list[Any] = []
        more = {"rtol": 1e-10, "maxiter": self.bench.options.maxiter} | options
        times = [
            self.bench.seconds(self.lattice, lambda: found.append(solver(*arguments, **more)))
            for _ in range(rounds or self.bench.options.rounds)
        ]
        return float(np.median(times)), found[0]

    # ---- what is measured: the ratio, and text about it ----------------------------------------------------

    def mixed(self, name: str) -> dict[str, float]:
        inner, _ = inner_solve(self.U, name, self.mass, self.b)
        kept = {"inner": inner, "workspace": Workspace()}
        self.warm(cg, self.E.normal, self.b, **kept)
        seconds, found = self.time(cg, self.E.normal, self.b, **kept)
        more = found.iterations / self.found.iterations
        self.say(
            f"mixed with {name} {seconds:8.4f} s, {found.iterations} iterations: {self.plain / seconds:.2f} times as fast, aim 2.5; {more:.3f} times the iterations, aim 1.15"
        )
        return {
            f"mixed with {name}, times as fast (aim 2.5)": self.plain / seconds,
            f"mixed with {name}, times the iterations (aim 1.15)": more,
        }

    def together(self, what: str, A: Any, many: Field, aim: float, **options: Any) -> dict[str, float]:
        """All members of a batch at once beside one after the other."""
        singles = [many.members[k].copy() for k in range(many.batch)]
        several, each = (options | {"workspace": Workspace()} for _ in range(2))
        self.warm(cg, A, many, **several)
        self.warm(cg, A, singles[0], **each)
        at_once, found = self.time(cg, A, many, rounds=3, **several)
        in_turn, _ = self.time(lambda **more: [cg(A, one, **more) for one in singles], rounds=3, **each)
        self.say(
            f"{what}, {many.batch} at once {at_once:8.4f} s, in turn {in_turn:8.4f} s, {found.iterations} iterations: {in_turn / at_once:.2f} times as fast, aim {aim:g}"
        )
        return {f"{what}, {many.batch} at once, times as fast (aim {aim:g})": in_turn / at_once}

    def sides(self) -> dict[str, float]:
        return self.together("Wilson", self.E.normal, self.right_hand_sides(12), 1.7)

    def hisq(self) -> dict[str, float]:
        D = HISQ(hisq_links(self.U), MASS_OF_HISQ, epsilon=0.0)
        b = Field(self.lattice, Vector(3), boundary=ANTIPERIODIC, batch=8)
        for k in range(8):
            b.members[k].assign(gaussian(b.members[k].copy(), 30 + k))
        return self.together(f"HISQ of mass {MASS_OF_HISQ:g}", D.normal, D.adjoint(b).on(jali.EVEN), 3)

    def shifts(self) -> dict[str, float]:
        A, kept = self.E.normal, {"workspace": Workspace()}
        self.warm(multishift_cg, A, self.b, SHIFTS, **kept)
        all_of_them, found = self.time(multishift_cg, A, self.b, SHIFTS, **kept)
        ratio = all_of_them / self.plain
        self.say(
            f"{len(SHIFTS)} shifts from 0 to {SHIFTS[-1]:g} {all_of_them:8.4f} s, {found.iterations} iterations: {ratio:.2f} times cg of the smallest alone, aim 1.6"
        )
        return {f"{len(SHIFTS)} shifts, times the time of the smallest (aim 1.6)": ratio}

    def window(self, count: int) -> tuple[float, float]:
        """From above so many smallest eigenvalues to above the largest one. Ritz values of one pass over the space are above eigenvalues."""
        A, b = self.E.normal, self.b
        top = 1.05 * float(
            lanczos(A, b, 1, which="largest", rtol=1e-2, maxiter=self.bench.options.maxiter).values[0]
        )
        begin, found = top / 200, math.inf
        while found > begin:  # wanted ones were in the window
            begin *= 4
            options = {"degree": 24, "window": (begin, top), "maxiter": max(2 * count, count + 20)}
            found = float(lanczos(A, b, count, rtol=1e-2, must_converge=False, **options).values[-1])
        return 1.1 * found, top

    def deflation(self) -> dict[str, float]:
        A, options = self.E.normal, self.bench.options
        count = options.eigenvectors
        kept: list[Any] = []

        def search() -> None:
            begin, top = self.window(count)
            more = {"degree": max(4, round(4 * math.sqrt(top / begin))), "window": (begin, top)}
            kept[:] = more, lanczos(A, self.b, count, rtol=options.accuracy, maxiter=options.maxiter, **more)

        set_up = self.bench.seconds(self.lattice, search)
        more, pairs = kept
        self.say(
            f"set-up of {count} eigenvectors {set_up:8.2f} s, {more}, {pairs.applications} applications, eigenvalues from "
            f"{pairs.values[0]:.4g} to {pairs.values[-1]:.4g}, residuals to {pairs.residuals.max():.1e}"
        )

        with_pairs = {"deflation": pairs, "workspace": Workspace()}
        self.warm(cg, A, self.b, **with_pairs)
        seconds, found = self.time(cg, A, self.b, **with_pairs)
        self.say(
            f"deflated by {count} eigenvectors {seconds:8.4f} s, {found.iterations} iterations: {self.plain / seconds:.2f} times as fast, aim 4"
        )
        return {
            f"deflated by {count} eigenvectors, times as fast (aim 4)": self.plain / seconds,
            f"set-up of {count} eigenvectors, seconds": set_up,
        }


OF = ("mixed", "sides", "hisq", "shifts", "deflation")


def light(bench: Bench) -> None:
    options = bench.options
    for extent in bench.extents(16):
        lattice = bench.lattice(*[extent] * 3, 2 * extent)
        ratios: dict[str, list[float]] = {}
        for seed in range(1, options.configurations + 1):
            U = configuration(bench, lattice, seed)
            for kappa in options.kappas:
                case = Light(
                    bench, U, kappa, f"{extent}^3 x {2 * extent} configuration {seed}, kappa {kappa:g}"
                )
                found: dict[str, float] = {}
                for what in options.of:
                    if what == "mixed":
                        for name in options.formats:
                            if "/" in name:
                                found |= case.mixed(name.split("/")[1])
                    elif what != "deflation" or kappa == max(options.kappas):
                        found |= getattr(case, what)()
                for name, ratio in found.items():
                    ratios.setdefault(f"kappa {kappa:g}, {name}", []).append(ratio)
        for name, values in ratios.items():
            bench.say(
                f"light {extent}^3 x {2 * extent}, median of {len(values)}: {name}: {np.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            )


PARTS = {"iteration": iteration, "full": full, "light": light, "ranks": ranks, "core": core}


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def words(known: Any) -> Callable[[str], list[str]]:
        def read(text: str) -> list[str]:
            found = text.split(",")
            if unknown := [word for word in found if word not in known]:
                raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(known)}")
            return found

        return read

    formats = ["float64", "float32", "float64/float16", "float64/fixed16"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=words(PARTS), default=["iteration", "full"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extents", type=numbers, metavar="L,...", help="in place of those of a part")
    parser.add_argument(
        "--formats",
        type=words(formats),
        default=formats,
        help="float64/float16: float64 with an inner solve in float16",
    )
    parser.add_argument("--iterations", type=int, default=160, help="of the longer one of two solves")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--copy", type=numbers, metavar="L,...", help="extents of the lattice whose fields are copied"
    )
    parser.add_argument("--of", type=words(OF), default=list(OF), help="what of `light` is measured")
    parser.add_argument("--configurations", type=int, default=10)
    parser.add_argument(
        "--sweeps",
        type=int,
        default=500,
        help="from the start to a configuration, each one heat bath and four overrelaxations",
    )
    parser.add_argument(
        "--cache", default="build/quenched", metavar="DIR", help="where configurations are kept"
    )
    parser.add_argument(
        "--kappas", type=lambda text: [float(part) for part in text.split(",")], default=[0.155]
    )
    parser.add_argument("--eigenvectors", type=int, default=100)
    parser.add_argument("--accuracy", type=float, default=1e-9, help="of eigenvectors")
    parser.add_argument("--maxiter", type=int, default=20_000, help="of a solve of `light`")
    options = parser.parse_args()
    bench = Bench(options)
    for name in options.parts:
        PARTS[name](bench)


if __name__ == "__main__":
    main()
