"""Claims on several GPUs: strong and weak scaling, what overlap hides, halo messages against NCCL's.

`mpiexec -n N python benchmarks/device_scaling.py` (N = 1, 2, 4), one GPU per rank. Parts, chosen by --parts:

strong    staple sum at 16^4 local sites, split in one and in two directions: every policy against the fastest host-staged one
          (aim: the best at least 3 times as fast)
weak      the same at 32^4 against a lattice that each rank has for itself on its GPU, in the same run (aim: 95 % split in one
          direction, 90 % in two)
update    overrelaxation and heat bath of SU(3): the fraction of the communication's time that overlap hides (aim: 60 % where
          communication is 20 to 50 % of the whole)
messages  halo exchange of messages of 1 to 128 MiB, packing and placing included, by every transport between devices against
          NCCL's send and receive of the same bytes between the same ranks, on streams and in graphs; "pass" or "FAIL" for each
          size, whether the fastest policy is 2 times as fast (the aim, at NCCL's best setting)

Medians over batches of calls, each batch the slowest rank's (jali.bench.halo). The library's settings are passed on as they
are: for its best one sweep the channels of point-to-point messages in a shell,

    for c in 1 2 4 8 16 32; do echo "$c channels"
      NCCL_MIN_P2P_NCHANNELS=$c NCCL_MAX_P2P_NCHANNELS=$c mpiexec -n 2 python benchmarks/device_scaling.py --parts messages
    done

and take, for each size, its shortest time of all (--csv FILE appends lines that are easy to join). NCCL_P2P_NVL_CHUNKSIZE and
NCCL_BUFFSIZE are worth a try. With CUDA_VISIBLE_DEVICES set by rank or not, every rank takes the next GPU of its host.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import os
from collections.abc import Callable
from typing import Any

import jali
from jali import _core, comm, devices
from jali.bench import halo
from jali.bench.collectives import Timing
from jali.bench.collectives_report import geometric_mean
from jali.bench.compare.cases import neighbours
from jali.errors import DeviceError
from jali.gauge import SU, GaugeField, heat_bath_sweep, overrelaxation_sweep
from jali.vendors import library_of

OVERLAPPED = (
    "remote-write-overlap",
    "remote-write-one-launch",
    "buffered-write-overlap",
    "copy-engine-overlap",
    "nccl-overlap",
    "gpu-aware-mpi-overlap",
    "host-staged-overlap",
)


class Bench:
    """What all parts share: ranks, this rank's device, clock, options, and who prints."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ranks = comm.current()
        self.gpu = devices.open_device(options.device, self.ranks)
        self.own = f"{self.gpu.kind}:{self.gpu.ordinal}"
        self.alone = comm.Communicator(_core.make_self_communicator(), 1)
        self.clock = halo.Clock(self.ranks, self.gpu)

    def say(self, text: str = "") -> None:
        if self.ranks.rank == 0:
            print(text, flush=True)

    def line(self, part: str, *values: Any) -> None:
        """A line of --csv: the part, NCCL's channels if they are set, and what was measured."""
        if self.options.csv and self.ranks.rank == 0:
            channels = os.environ.get("NCCL_MAX_P2P_NCHANNELS", "")
            with open(self.options.csv, "a") as file:
                file.write(",".join([part, str(self.ranks.size), channels, *map(str, values)]) + "\n")

    def time(self, work: Callable[[], Any], calls: int = 1) -> Timing:
        timing = self.clock.time(work, self.options.rounds, self.options.seconds)
        return Timing([s / calls for s in timing.seconds])

    def graph(self, work: Callable[[], Any], calls: int = 4) -> Timing | None:
        """The same recorded; None where it cannot be."""

        def several() -> None:
            for _ in range(calls):
                work()

        several()
        self.gpu.synchronize()
        try:
            graph = _core.GpuGraph(self.gpu, several)
        except DeviceError:
            return None
        timing = self.time(functools.partial(self.gpu.launch_graph, graph), calls)
        self.gpu.synchronize()
        return timing

    def grids(self) -> list[tuple[str, list[int]]]:
        """Splits in one direction and, with four ranks, in two."""
        n = self.ranks.size
        found = [("one direction", [1, 1, 1, n])]
        if n % 2 == 0 and n > 2:
            found.append(("two directions", [1, 1, 2, n // 2]))
        return found

    def lattice_alone(self, local: int) -> jali.Lattice:
        return jali.Lattice(local, local, local, local, communicator=self.alone, device=self.own)


def us(timing: Timing | None) -> str:
    return f"{timing.median * 1e6:10.2f} us" if timing else f"{'-':>13s}"


def strong(bench: Bench) -> None:
    local = bench.options.strong
    for words, grid in bench.grids():
        case = halo.make_case("staple", [local] * 4, grid, bench.options.device)
        report = halo.measure(case, rounds=bench.options.rounds, seconds=bench.options.seconds, parts=())
        measurements = [measurement for measurement in report.measurements if measurement.times]
        staged = min(
            (
                measurement.median("whole")
                for measurement in measurements
                if measurement.policy.startswith("host-staged")
            ),
            default=math.nan,
        )
        bench.say(f"strong scaling, staple sum, {local}^4 per rank, split in {words}")
        for measurement in report.measurements:
            if measurement.why_not:
                bench.say(f"  {measurement.policy:18s} not here: {measurement.why_not}")
                continue
            whole, recorded = measurement.times["whole"], measurement.times.get("graph whole")
            best = min(whole.median, recorded.median if recorded else math.inf)
            bench.say(
                f"  {measurement.policy:18s} whole {us(whole)}  graph {us(recorded)}  exchange {us(measurement.times['exchange'])}  "
                f"compute {us(measurement.times['compute'])}  {staged / whole.median:5.2f} times staged, "
                f"{staged / best:5.2f} with graph"
            )
            bench.line("strong", words, measurement.policy, whole.median, best, staged / best)
        del case
        gc.collect()


def weak(bench: Bench) -> None:
    local = bench.options.weak
    single = halo.KERNELS["staple"](bench.lattice_alone(local), "float64")
    run = single.bind()
    alone = bench.time(run)
    alone_recorded = bench.graph(run)
    bench.say(
        f"weak scaling, staple sum, {local}^4 per rank, each for itself {us(alone)}, graph {us(alone_recorded)}"
    )
    del single, run
    gc.collect()
    for words, grid in bench.grids():
        case = halo.make_case("staple", [local] * 4, grid, bench.options.device)
        report = halo.measure(
            case, OVERLAPPED, rounds=bench.options.rounds, seconds=bench.options.seconds, parts=()
        )
        for measurement in report.measurements:
            if measurement.why_not:
                continue
            whole, recorded = measurement.times["whole"], measurement.times.get("graph whole")
            share = alone.median / whole.median
            more = (
                f", graph {alone_recorded.median / recorded.median:6.1%}"
                if recorded and alone_recorded
                else ""
            )
            bench.say(
                f"  {words:15s} {measurement.policy:15s} {us(whole)}  {share:6.1%} of the speed alone{more}  "
                f"(exchange {us(measurement.times['exchange'])}, {measurement.rate / 1e9:.0f} GB/s, hidden {measurement.hidden():.0%})"
            )
            bench.line("weak", words, measurement.policy, whole.median, share)
        del case
        gc.collect()


def update(bench: Bench) -> None:
    settings = halo.Choices(bench.ranks)
    sweeps: dict[str, Callable[[GaugeField, jali.Random], None]] = {
        "overrelaxation": lambda U, rng: overrelaxation_sweep(U),
        "heat bath": lambda U, rng: heat_bath_sweep(U, 5.7, rng),
    }
    try:
        for local in bench.options.update:
            own = GaugeField(bench.lattice_alone(local), SU(3)).hot_start(seed=1)
            rng = jali.Random(1)
            alone = {name: bench.time(functools.partial(sweep, own, rng)) for name, sweep in sweeps.items()}
            recorded = bench.graph(functools.partial(overrelaxation_sweep, own), 1)
            del own
            for words, grid in bench.grids():
                bench.say(f"SU(3) update, {local}^4 per rank, split in {words}, per sweep")
                extents = [local * n for n in grid]
                for policy in (
                    "remote-write-overlap",
                    "buffered-write-overlap",
                    "nccl-overlap",
                    "copy-engine-overlap",
                    "remote-write-wait",
                ):
                    settings.set(policy)
                    lattice = jali.Lattice(extents, grid=grid, device=bench.options.device)
                    if lattice.layout("float64").why_not_halo_policy(bench.ranks.core, policy):
                        continue
                    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
                    for name, sweep in sweeps.items():
                        work = functools.partial(sweep, U, rng)
                        settings.set(policy)
                        whole = bench.time(work)
                        settings.set(policy, "bulk,boundary")
                        exchange = bench.time(work)
                        _say_overlap(bench, f"{name} {policy}", alone[name], exchange, whole)
                        bench.line(
                            "update",
                            local,
                            words,
                            name,
                            policy,
                            alone[name].median,
                            exchange.median,
                            whole.median,
                        )
                    if recorded is not None:  # a heat bath in a graph would draw the same numbers each time
                        work = functools.partial(overrelaxation_sweep, U)
                        settings.set(policy)
                        whole_recorded = bench.graph(work, 1)
                        settings.set(policy, "bulk,boundary")
                        exchange_recorded = bench.graph(work, 1)
                        if whole_recorded and exchange_recorded:
                            _say_overlap(
                                bench, f"... in a graph {policy}", recorded, exchange_recorded, whole_recorded
                            )
                    settings.set(policy)
                    del U, lattice
                    gc.collect()
    finally:
        settings.restore()


def _say_overlap(bench: Bench, name: str, compute: Timing, exchange: Timing, whole: Timing) -> None:
    share = exchange.median / (exchange.median + compute.median)
    hidden = 1 - (whole.median - compute.median) / exchange.median
    bench.say(
        f"  {name:30s} whole {us(whole)}  compute {us(compute)}  communication {us(exchange)} ({share:4.0%} of both)  "
        f"hidden {hidden:5.0%}"
    )


def face(mebibytes: int) -> list[int]:
    """Extents whose product is the sites of a message: 64 bytes each."""
    bits = int(math.log2(mebibytes << 14))
    return [1 << (bits + k) // 3 for k in range(3)]


AIM = 2.0  # times the library


def _say_whether_fast_enough(bench: Bench, size: str, times: dict[tuple[str, str], Timing | None]) -> None:
    """The fastest policy of this size against the library, on streams and in graphs."""
    for how in ("stream", "graph"):
        against = times.get(("library", how))
        measurements = {
            name: t.median for (name, h), t in times.items() if h == how and t and name != "library"
        }
        if against is None or not measurements:
            continue
        best = min(measurements, key=lambda name: measurements[name])
        ratio = against.median / measurements[best]
        verdict = "pass" if ratio >= AIM else "FAIL"
        bench.say(
            f"  {size:>8s}  {how:6s} {verdict}: {best} is {ratio:.2f} times the library, wanted {AIM:g}"
        )
        bench.line("verdict", size, how, best, ratio, verdict)


def messages(bench: Bench) -> None:
    n, rank = bench.ranks.size, bench.ranks.rank
    settings = halo.Choices(bench.ranks)
    ratios: dict[tuple[str, str], list[float]] = {}
    try:
        library: Any = bench.ranks.duplicate()
        transport = library_of(bench.gpu.kind)
        try:
            library_found = comm.CclCommunicator(library, bench.gpu).library
            with jali.tune.experiment(message_transport=transport):
                library.device_messages(bench.gpu)
            bench.say(f"messages against {' '.join(library_found[:2])}, bandwidth is what a rank sends")
        except DeviceError as error:
            library = None
            bench.say(f"messages, with nothing to compare: {error}")
        for mebibytes in bench.options.messages:
            bytes_ = mebibytes << 20
            times: dict[tuple[str, str], Timing | None] = {}
            if library is not None:
                arrays = [
                    comm.DeviceArray.empty(bench.gpu, (bytes_,), "uint8", "benchmark") for _ in range(4)
                ]
                ahead, behind = (rank + 1) % n, (rank - 1) % n
                ends = [
                    library.persistent_send(arrays[0], ahead, 0, transport=transport),
                    library.persistent_receive(arrays[1], behind, 0),
                    library.persistent_send(arrays[2], behind, 1, transport=transport),
                    library.persistent_receive(arrays[3], ahead, 1),
                ]

                def both_ways(library=library, ends=ends) -> None:
                    library.start(ends)

                times["library", "stream"] = bench.time(both_ways)
                times["library", "graph"] = bench.graph(both_ways)
                bench.gpu.synchronize()
                del arrays, ends, both_ways
            local = [*face(mebibytes), 4]
            for policy in (
                "remote-write-overlap",
                "remote-write-wait",
                "buffered-write-overlap",
                "copy-engine-overlap",
                "nccl-overlap",
            ):
                settings.set(policy, "bulk,boundary")
                lattice = jali.Lattice([*local[:3], 4 * n], grid=[1, 1, 1, n], device=bench.options.device)
                if lattice.layout("float64").why_not_halo_policy(bench.ranks.core, policy):
                    continue
                x, y = lattice.field(jali.Matrix(2)), lattice.field(jali.Matrix(2))
                run = neighbours.bind(y, x)

                def exchange(x=x, run=run) -> None:
                    x.storage.mark_written(3)
                    run()

                times[policy, "stream"] = bench.time(exchange)
                times[policy, "graph"] = bench.graph(exchange)
                del x, y, run, exchange, lattice
                gc.collect()
            for (name, how), timing in times.items():
                if timing is None:
                    continue
                against = times.get(("library", how))
                ratio = against.median / timing.median if against else math.nan
                ratios.setdefault((name, how), []).append(ratio)
                bench.say(
                    f"  {mebibytes:4d} MiB  {name:14s} {how:6s} {us(timing)}  {2 * bytes_ / timing.median / 1e9:7.1f} GB/s"
                    + (f"  {ratio:5.2f} times the library" if name != "library" and against else "")
                )
                bench.line("messages", mebibytes, name, how, timing.median)
            _say_whether_fast_enough(bench, f"{mebibytes} MiB", times)
        for (name, how), values in ratios.items():
            if name != "library" and not math.isnan(values[0]):
                mean = geometric_mean(values)
                bench.say(
                    f"  {name} {how}: {mean:.2f} times the library in geometric mean, at least {min(values):.2f}"
                )
    finally:
        settings.restore()


PARTS = {"strong": strong, "weak": weak, "update": update, "messages": messages}


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--strong", type=int, default=16, metavar="L", help="local extent")
    parser.add_argument("--weak", type=int, default=32, metavar="L", help="local extent")
    parser.add_argument(
        "--update", type=numbers, default=[12, 16, 24, 32], metavar="L,...", help="local extents"
    )
    parser.add_argument("--messages", type=numbers, default=[1, 2, 4, 8, 16, 32, 64, 128], metavar="MiB,...")
    parser.add_argument("--rounds", type=int, default=9, help="batches")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a batch")
    parser.add_argument("--csv", default="", metavar="FILE", help="append lines to this file")
    options = parser.parse_args()
    bench = Bench(options)
    shown = jali.settings.of_others("NCCL_", "RCCL_") | dict(jali.settings.current().differing())
    bench.say(f"{bench.ranks.size} ranks, {bench.gpu.name}, settings {shown or 'all defaults'}")
    for name in options.parts.split(","):
        if name not in PARTS:
            parser.error(f"no part {name!r}; there are {', '.join(PARTS)}")
        if bench.ranks.size == 1:
            bench.say(f"{name}: one rank has nobody to exchange halos with; start 2 or 4")
            continue
        PARTS[name](bench)


if __name__ == "__main__":
    main()
