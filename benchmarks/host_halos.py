"""Claim: halos between processes of one host go faster when they are packed into the neighbour's ghosts.

Exchanges alone (packing to unpacking; nothing is computed) of a field between two ranks on a core each, for halos of
64 KiB to 16 MiB in each of the two directions: packed straight into the neighbour's ghosts, as messages of the MPI
library, and, for orientation, a plain copy of as many bytes from memory to memory on one core. In turn, batch by batch:
medians, and the fastest batch for machines that others use too. Run it with the Python of each MPI library.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from on_two_ranks import is_rank, run_ranks, take_core

POLICIES = ("remote-write-wait", "messages-wait")


def child(batches: int, extents: list[int]) -> None:
    import numpy as np

    import jali
    from jali import comm, settings
    from jali.bench.halo import laplace

    world = comm.current()
    take_core(world.rank)
    settings.use(threads=1, halo_off="bulk,boundary")
    for extent in extents:
        lattice = jali.Lattice(extent, extent, extent, 8, grid=(1, 1, 1, 2))
        x, out = (jali.Field(lattice, jali.Vector(3)) for _ in range(2))
        bytes_each_way = extent**3 * 48
        calls: dict[str, Any] = {}
        for policy in POLICIES:
            world.barrier()
            settings.use(halo_policy=policy)
            world.barrier()
            calls[policy] = laplace.bind(out, x)
            calls[policy]()
        source = np.random.default_rng(1).random(2 * bytes_each_way // 8)
        target = np.empty_like(source)

        def exchange(policy: str, x: Any = x, out: Any = out, calls: Any = calls) -> None:
            x.storage.mark_written(3)
            calls[policy]()

        rounds = max(2, min(200, (16 << 20) // bytes_each_way))
        times: dict[str, list[float]] = {policy: [] for policy in (*POLICIES, "copy")}
        for batch in range(batches + 1):
            for policy, taken in times.items():
                world.barrier()
                start = time.perf_counter()
                for _ in range(rounds):
                    if policy == "copy":
                        target[:] = source
                    else:
                        exchange(policy)
                world.barrier()
                if batch > 0:
                    taken.append((time.perf_counter() - start) / rounds)
        if world.rank == 0:
            put, sent, copied = (statistics.median(times[policy]) for policy in times)
            best = min(times[POLICIES[1]]) / min(times[POLICIES[0]])
            print(
                f"{bytes_each_way / 1024:9.0f} KiB  put {put * 1e6:9.1f} us  messages {sent * 1e6:9.1f} us  "
                f"ratio {sent / put:5.2f} (fastest batches {best:5.2f})  copy {copied * 1e6:9.1f} us, {copied / put:4.0%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--extents", type=int, nargs="*", default=[11, 16, 22, 32, 44, 64])
    options = parser.parse_args()
    if is_rank():
        child(options.batches, options.extents)
    else:
        run_ranks(__file__, "--batches", str(options.batches), "--extents", *map(str, options.extents))


if __name__ == "__main__":
    main()
