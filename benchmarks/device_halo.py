"""Halo exchange between GPUs: time and bandwidth of every policy by message size, without the kernel around it, and in a graph.

`mpiexec -n 2 python benchmarks/device_halo.py`. A field of 3x3 matrices is read at both neighbours in the split direction; every rank
sends two messages of one face per exchange. Bulk and boundary are switched off (JALI_HALO_OFF), so what is timed is packing, transport and
the placing of ghosts. Bandwidth counts bytes sent by one rank.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics

os.environ["JALI_HALO_OFF"] = "bulk,boundary"

import numpy as np
from site_functions import neighbours

import jali
from jali import _core, comm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="8,16,24,32,48,64,80")
    parser.add_argument(
        "--policies", default="ghosts-overlap,ghosts-wait,store-overlap,copy-overlap,staged-overlap"
    )
    arguments = parser.parse_args()
    jali.use_device("cuda")
    ranks = comm.current()
    for policy in arguments.policies.split(","):
        os.environ["JALI_HALO_POLICY"] = policy
        for size in map(int, arguments.sizes.split(",")):
            lattice = jali.Lattice(size, size, size, 4 * ranks.size, grid=(1, 1, 1, ranks.size))
            x, y = lattice.field(jali.Matrix(3)), lattice.field(jali.Matrix(3))
            gpu = lattice.gpu
            face = size**3 * 18 * 8

            def work():
                x.storage.mark_written(3)
                neighbours(y, x)

            for _ in range(3):
                work()
            graph = None
            if policy.startswith(("ghosts", "store")):
                graph = _core.GpuGraph(gpu, lambda work=work: [work(), work()])
            begin, end = _core.GpuEvent(gpu), _core.GpuEvent(gpu)
            for name, run, exchanges in (
                ("stream", work, 1),
                ("graph", graph and functools.partial(gpu.launch_graph, graph), 2),
            ):
                if run is None:
                    continue
                repeats = max(4, min(200, int(2e9 / face / 4)))
                times = []
                for _ in range(7):
                    ranks.barrier()
                    gpu.synchronize()
                    gpu.record(begin)
                    for _ in range(repeats):
                        run()
                    gpu.record(end)
                    end.wait()
                    times.append(end.seconds_since(begin) / repeats / exchanges)
                slowest = max(
                    np.frombuffer(b, float)[0]
                    for b in ranks.gather_bytes(np.array([statistics.median(times)]).tobytes())
                )
                if ranks.rank == 0:
                    print(
                        f"{policy:16s} {name:6s} {face / 2**20:9.3f} MiB {slowest * 1e6:10.2f} us {2 * face / slowest / 1e9:8.1f} GB/s",
                        flush=True,
                    )
            graph = None


if __name__ == "__main__":
    main()
