"""What calls of `torch.distributed` cost with the backend "jali", beside gloo's (on devices NCCL's).

Processes of one host make the same calls in groups of both backends, in turn, batch by batch, so that what else the
machine does meets both: medians over the batches of the time until the call returns (with `async_op`: host time alone)
and until it has been waited for, and the ratio of the medians. Where every rank has a GPU of its own the tensors are there
and the other backend is NCCL; "waited for" then includes the stream. Run it with a Python that has PyTorch
(`make environment-torch`): `.venv-torch/bin/python benchmarks/torch_backend.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

SIZES = [4, 4096, 65536, 1 << 20, 16 << 20]


def calls(size: int, ranks: int, device: Any) -> dict[str, Callable[[Any], Any]]:
    """By name: what starts a call in a group, with `size` bytes on each rank, and returns what is to be waited for."""
    import torch
    import torch.distributed as dist

    count = max(1, size // 4)
    x = torch.zeros(count, device=device)
    whole = torch.zeros(count * ranks, device=device)
    return {
        "all_reduce": lambda group: dist.all_reduce(x, group=group, async_op=True),
        "all_reduce, at once": lambda group: dist.all_reduce(x, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(
            whole, x, group=group, async_op=True
        ),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(
            x, whole, group=group, async_op=True
        ),
        "broadcast": lambda group: dist.broadcast(x, 0, group=group, async_op=True),
        "all_to_all_single": lambda group: dist.all_to_all_single(
            whole, whole.clone(), group=group, async_op=True
        ),
    }


def run_rank(rank: int, ranks: int, store: str, sizes: list[int], batches: int) -> None:
    import torch
    import torch.distributed as dist

    import jali.torch  # noqa: F401

    torch.set_num_threads(1)
    on_devices = torch.cuda.device_count() >= ranks
    device = torch.device("cuda", rank) if on_devices else torch.device("cpu")
    if on_devices:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "jali",
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    other = "nccl" if on_devices else "gloo"
    groups = {"jali": dist.group.WORLD, other: dist.new_group(backend=other)}

    def wait(work: Any) -> None:
        if work is not None:
            work.wait()
        if on_devices:
            torch.cuda.current_stream().synchronize()

    if rank == 0:
        print(f"{ranks} ranks, tensors on {device.type}; microseconds")
        print(f"| call | bytes | {other}: returns | jali | ratio | {other}: waited for | jali | ratio |")
        print("|---" * 8 + "|")
    for size in sizes:
        rounds = max(2, min(50, (8 << 20) // size))
        for name, call in calls(size, ranks, device).items():
            times: dict[str, list[list[float]]] = {backend: [[], []] for backend in groups}
            for batch in range(batches + 1):
                for backend, group in groups.items():
                    issued = waited = 0.0
                    dist.barrier()
                    for _ in range(rounds):
                        start = time.perf_counter()
                        work = call(group)
                        issued += time.perf_counter() - start
                        wait(work)
                        waited += time.perf_counter() - start
                    if batch > 0:  # the first connects
                        times[backend][0].append(issued / rounds * 1e6)
                        times[backend][1].append(waited / rounds * 1e6)
            if rank == 0:
                cells = []
                for k in (0, 1):
                    theirs, ours = (statistics.median(times[backend][k]) for backend in (other, "jali"))
                    cells.append(f"{theirs:.0f} | {ours:.0f} | {ours / theirs:.2f}")
                print(f"| {name} | {size} | {' | '.join(cells)} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batches", type=int, default=11)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes on each rank")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            spawn.Process(
                target=run_rank,
                args=(rank, options.ranks, f"{folder}/store", options.sizes, options.batches),
            )
            for rank in range(options.ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
