"""Claim: a message between two devices costs little more than a plain copy into the other's memory.

One-way and both-ways messages from 8 B to 1 GiB between two ranks, on streams and in graphs, against copies of the same bytes
by a copy engine into mapped memory without any order with the receiver ("plain"), and against the vendor's send and receive. Sides:

together                   ten messages that are started at once (`Communicator.start`), the way chosen by jali
remote-write, copy-engine  the same with that way
single                     one message started ten times, each start waiting for the last to arrive
plain                      ten copies
library, library one       ten of the vendor's sends and receives in one group, and one after the other

Times are per message, of the slowest rank, medians over rounds; sides take turns. Aims, in graphs: 95 % of plain from 16 MiB on, 85 % at
1 MiB. Data is compared before and after. Starts itself on two ranks:
    python benchmarks/device_messages.py
    mpiexec -n 2 python benchmarks/device_messages.py --csv messages.csv
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali import _core, comm, devices, tune
from jali.comm import CclCommunicator, Communicator, DeviceArray
from jali.comm.launcher import launch
from jali.comm.launcher_environment import find_launcher_environment
from jali.errors import DeviceError, RankError
from jali.vendors import library_of

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, KIB, 64 * KIB, MIB, 2 * MIB, 8 * MIB, 16 * MIB, 128 * MIB, 1024 * MIB)
TILE = 4 * MIB - 9  # the pattern repeats after this, at no length that copies have
AIMS = {MIB: 0.85, 16 * MIB: 0.95, 128 * MIB: 0.95, 1024 * MIB: 0.95}
LOOKED_AT = 32 * MIB  # bytes of an array that are compared at most, from both ends

Work = Callable[[], Any]


class Cell:
    """Arrays of one size, the messages on them and what each side does with them."""

    def __init__(
        self,
        ranks: Any,
        gpu: Any,
        nbytes: int,
        both: bool,
        transports: Sequence[str],
        library: Communicator | None,
    ) -> None:
        self.ranks, self.gpu, self.nbytes, self.both = ranks, gpu, nbytes, both
        self.length = 10 if nbytes <= 128 * MIB else 3
        peer = 1 - ranks.rank
        self.sends, self.receives = both or ranks.rank == 0, both or ranks.rank == 1
        self.out = [
            DeviceArray.from_host(self.pattern(ranks.rank, k), gpu) for k in range(self.length) if self.sends
        ]
        self.into = [DeviceArray.empty(gpu, (nbytes,), np.uint8) for _ in range(self.length) if self.receives]
        self.sides: dict[str, Work] = {}
        out, into = self.out, self.into

        def messages(transport: str | None, between: Any = ranks) -> list[Any]:
            ends: list[Any] = [
                between.persistent_send(x, peer, k, transport=transport) for k, x in enumerate(out)
            ]
            ends += [between.persistent_receive(x, peer, k) for k, x in enumerate(into)]
            return ends

        ends = messages(None)
        self.transport = ends[0].transport
        self.sides["together"] = lambda: ranks.start(ends)
        for transport in transports:
            of_transport = messages(transport)
            self.sides[transport] = lambda of_transport=of_transport: ranks.start(of_transport)
        first = [ends[0], ends[self.length]] if both else ends[:1]

        def single() -> None:
            for _ in range(self.length):
                ranks.start(first)

        self.sides["single"] = single
        if self.transport in ("remote-write", "copy-engine"):
            copied = ends[: self.length] if self.sends else []

            def plain() -> None:
                for one in copied:
                    one.copy_alone()

            self.sides["plain"] = plain
        if library is not None:
            theirs = messages(library_of(gpu.kind), library)
            in_turn = [theirs[k :: self.length] for k in range(self.length)]  # both ends of each

            def library_one() -> None:
                for one in in_turn:
                    library.start(one)

            self.sides["library"], self.sides["library one"] = lambda: library.start(theirs), library_one

    def pattern(self, rank: int, k: int) -> Any:
        tile = np.random.default_rng(100 * rank + k).integers(0, 256, min(self.nbytes, TILE), dtype=np.uint8)
        return np.resize(tile, self.nbytes)

    def check(self, name: str) -> None:
        """Raises RankError on both ranks where this side brings wrong bytes."""
        for x in self.into:
            self.gpu.fill(x.memory, 119)
        self.gpu.synchronize()
        self.ranks.barrier()
        self.sides[name]()
        self.gpu.synchronize()
        self.ranks.barrier()
        wrong = ""
        brought = self.into[:1] if name == "single" else self.into
        for k, x in enumerate(brought):
            wanted = self.pattern(1 - self.ranks.rank, k)
            width = min(self.nbytes, LOOKED_AT // 2)
            for begin in {0, self.nbytes - width}:
                found = np.empty(width, np.uint8)
                self.gpu.download_address(x.address + begin, found)
                bad = np.flatnonzero(found != wanted[begin : begin + width])
                if bad.size and not wrong:
                    wrong = (
                        f"{name}, {self.nbytes} B, message {k}: rank {self.ranks.rank} has {bad.size} wrong bytes, the first "
                        f"is byte {begin + bad[0]}"
                    )
        messages = [text.decode() for text in self.ranks.gather_bytes(wrong.encode()) if text]
        if messages:
            raise RankError(messages[0])

    def time(self, order: str, rounds: int) -> dict[str, float]:
        """Seconds per message of every side: medians over rounds of the slowest rank's."""
        launches = 20 if self.nbytes <= MIB else 5 if self.nbytes <= 16 * MIB else 1
        works: dict[str, Work] = dict(self.sides)
        if order == "graph":
            for name, side in self.sides.items():
                if name == "plain" and not self.sends:
                    continue  # a graph of nothing
                graph = _core.GpuGraph(self.gpu, side)
                works[name] = lambda graph=graph: self.gpu.launch_graph(graph)
        seconds = np.zeros((len(works), rounds + 1))
        for number in range(rounds + 1):  # the first warms up
            turn = list(enumerate(works.values()))
            for side, work in turn if number % 2 else reversed(turn):
                self.ranks.barrier()
                start = time.perf_counter()
                for _ in range(launches):
                    work()
                self.gpu.synchronize()
                seconds[side, number] = (time.perf_counter() - start) / launches / self.length
        slowest = self.ranks.all_reduce(seconds, op="max")[:, 1:]
        return dict(zip(works, map(float, np.median(slowest, axis=1)), strict=True))


def size_text(nbytes: int) -> str:
    for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    parser.add_argument("--ways", default="remote-write,copy-engine")
    parser.add_argument("--orders", default="graph,stream")
    parser.add_argument("--directions", default="one,both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--csv", help="appends lines: order, direction, bytes, side, seconds")
    options = parser.parse_args()
    under_launcher = find_launcher_environment()
    if under_launcher is None or under_launcher.size == 1:
        return launch(2, [sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
    ranks = comm.current()
    if ranks.size != 2:
        print("two ranks are wanted", file=sys.stderr)
        return 2
    gpu = devices.open_device(options.device, ranks)

    def say(text: str = "") -> None:
        if ranks.rank == 0:
            print(text, flush=True)

    library: Communicator | None = ranks.duplicate()
    try:
        CclCommunicator(library, gpu)
        with tune.experiment(message_transport=library_of(gpu.kind)):
            library.device_messages(gpu)
    except DeviceError as error:
        library = None
        say(f"the vendor's library is left out: {error}")
    say(f"{gpu.name}; times per message in us, of the slower rank; medians of {options.rounds} rounds")
    verdicts = []
    for direction in options.directions.split(","):
        for nbytes in map(int, options.sizes.split(",")):
            cell = Cell(ranks, gpu, nbytes, direction == "both", options.transports.split(","), library)
            for order in options.orders.split(","):
                for name in cell.sides:
                    cell.check(name)
                times = cell.time(order, options.rounds)
                for name in cell.sides:
                    cell.check(name)
                columns = "  ".join(f"{name} {t * 1e6:9.2f}" for name, t in times.items())
                ours, plain = times["together"], times.get("plain")
                ratios = f"{nbytes / ours / 1e9:6.1f} GB/s"
                if plain is not None:
                    ratios += f", {plain / ours:5.2f} of plain (single {plain / times['single']:5.2f})"
                if "library" in times:
                    ratios += f", {min(times['library'], times['library one']) / ours:5.2f} of the library"
                say(
                    f"{order:6s} {direction:4s} {size_text(nbytes):>8s} {cell.transport:12s} | {columns} | {ratios}"
                )
                if options.csv and ranks.rank == 0:
                    with open(options.csv, "a") as file:
                        for name, t in times.items():
                            file.write(f"{order},{direction},{nbytes},{name},{t:.4g}\n")
                if order == "graph" and nbytes in AIMS and plain is not None:
                    reached = plain / ours
                    verdicts.append(
                        f"{'pass' if reached >= AIMS[nbytes] else 'FAIL'}  {direction:4s} {size_text(nbytes):>8s} in a graph: "
                        f"{reached:.3f} of a plain copy (aim {AIMS[nbytes]})"
                    )
            del cell
            ranks.barrier()
    for verdict in verdicts:
        say(verdict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
