"""Claim: between two ranks of one host, messages through shared memory are faster than those of the MPI library.

Ping-pong of 8 B to 64 MiB between two ranks on a core each: the `mpi` transport, and shared memory with each
way of copying long messages, in turn, batch by batch. One-way times: the median of the batches and, for a
machine that others use too, the fastest batch. Run it with the Python of each MPI library.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess

from on_two_ranks import is_rank, run_ranks, take_core

SIZES = [8, 64, 512, 4096, 8192, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def child(batches: int, sizes: list[int]) -> None:
    from jali import _core, comm, settings

    settings.use(threads=1)
    world = comm.current()
    take_core(world.rank)
    transports = {"mpi": world.core}
    for copying in ("cma", "slots"):
        with settings.using(shm_copy=copying):
            transports[f"shm {copying}"] = _core.make_host_communicator(world.core)
    for size in sizes:
        rounds = max(1, min(200, (4 << 20) // size))
        times: dict[str, list[float]] = {name: [] for name in transports}
        for batch in range(batches + 1):
            for name, transport in transports.items():
                time = _core.ping_pong(transport, 1 - world.rank, size, rounds)
                if batch > 0:
                    times[name].append(time)
        if world.rank == 0:
            case = {name: (statistics.median(t), min(t), max(t)) for name, t in times.items()}
            print(json.dumps([size, case]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    if is_rank():
        child(options.batches, options.sizes)
        return
    arguments = ["--batches", str(options.batches), "--sizes", *map(str, options.sizes)]
    out = run_ranks(__file__, *arguments, stdout=subprocess.PIPE).stdout
    cases = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
    names = list(cases[0][1])
    print("| bytes | " + " | ".join(f"{name}, us (fastest)" for name in names) + " | GB/s of the fastest |")
    print("|---" * (len(names) + 2) + "|")
    for size, case in cases:
        cells = [f"{case[name][0] * 1e6:.2f} ({case[name][1] * 1e6:.2f})" for name in names]
        best = min(case[name][1] for name in names)
        print(f"| {size} | " + " | ".join(cells) + f" | {size / best / 1e9:.2f} |")


if __name__ == "__main__":
    main()
