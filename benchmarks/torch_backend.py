"""What calls of `torch.distributed` cost with the backend "jali", beside gloo's (on devices NCCL's).

Processes of one host make the same calls in groups of both backends, in turn, batch by batch, so that what else the
machine does meets both: medians over the batches of the time until the call returns (with `async_op`: host time alone)
and until it has been waited for, and the ratio of the medians. Where every rank has a GPU of its own the tensors are there
and the other backend is NCCL; "waited for" then includes the stream. Run it with a Python that has PyTorch
(`make environment-torch`): `.venv-torch/bin/python benchmarks/torch_backend.py`.

With `--graphs`, on devices only, all-reduces alone: of each size twenty are captured in a CUDA graph, one graph per backend, and events of the
device around two replays say what one takes. A replay before them brings the ranks together. Medians of the slowest rank's times.

With `--host`, on devices only, what a call takes of the host: a hundred are made one after the other, and nobody waits for the device
but between such batches. With `async_op` the caller's stream is let wait for each. Medians of the slowest rank's times.
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
GRAPH_SIZES = [1 << k for k in range(10, 25, 2)]
IN_A_GRAPH, REPLAYS = 20, 2
HOST_SIZES = [4096]
IN_A_BATCH = 100  # below what a stream holds before it lets the host wait


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


def captured(call: Callable[[], Any]) -> Any:
    """A CUDA graph of so many calls, each after the one before it. Threads of the backends may ask their events meanwhile."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_A_GRAPH):
            call()
    return graph


def microseconds_of_one(graph: Any) -> float:
    """Of the device, for one of the calls in a graph."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / (REPLAYS * IN_A_GRAPH)


def compare_graphs(groups: dict[str, Any], device: Any, sizes: list[int], batches: int) -> None:
    """A line per size. Raises RuntimeError where a graph does not compute sums."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    other = next(backend for backend in groups if backend != "jali")
    if rank == 0:
        print(
            f"{ranks} ranks, all-reduces in graphs of {IN_A_GRAPH}; microseconds of the device, medians of {batches}"
        )
        print(f"| bytes | {other} | jali | {other} / jali | lowest and highest of {other} | of jali |")
        print("|---" * 6 + "|")
    for size in sizes:
        graphs, tensors = {}, {}
        for backend, group in groups.items():
            x = tensors[backend] = torch.zeros(max(1, size // 4), device=device)
            for _ in range(3):  # connections and plans are made outside of graphs
                dist.all_reduce(x, group=group)
            synchronize(device)
            graphs[backend] = captured(lambda x=x, group=group: dist.all_reduce(x, group=group))
            x.fill_(1 / ranks**IN_A_GRAPH)
            synchronize(device)
            dist.barrier()
            graphs[backend].replay()
            synchronize(device)
            if not torch.allclose(x, torch.ones_like(x), rtol=1e-4):
                raise RuntimeError(f"{IN_A_GRAPH} all-reduces of {size} bytes by {backend} give {x[:4]}")
            x.zero_()
        times = torch.zeros(len(groups), batches, device=device)
        for batch in range(batches + 1):
            for k, backend in enumerate(groups):
                synchronize(device)
                dist.barrier()
                found = microseconds_of_one(graphs[backend])
                if batch > 0:
                    times[k, batch - 1] = found
        dist.all_reduce(times, dist.ReduceOp.MAX)
        synchronize(device)
        graphs.clear()  # communicators outlive the graphs that they are in
        if rank == 0:
            by_backend = dict(zip(groups, times.tolist(), strict=True))
            theirs, ours = (statistics.median(by_backend[backend]) for backend in (other, "jali"))
            ratio = f"{theirs / ours:.2f}"
            print(
                f"| {size} | {theirs:.1f} | {ours:.1f} | {ratio} | {spreads(by_backend, other)} |", flush=True
            )


def compare_host(groups: dict[str, Any], device: Any, sizes: list[int], batches: int) -> None:
    """A line per call, with and without `async_op`."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    other = next(backend for backend in groups if backend != "jali")
    if rank == 0:
        print(
            f"{ranks} ranks, {IN_A_BATCH} calls after each other; microseconds of the host a call, medians of {batches}"
        )
        print(f"| call | bytes | {other} | jali | jali / {other} | lowest and highest of {other} | of jali |")
        print("|---" * 7 + "|")
    for size in sizes:
        x = torch.zeros(max(1, size // 4), device=device)
        whole = torch.zeros(len(x) * ranks, device=device)
        several: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "all_reduce": (dist.all_reduce, (x,)),
            "all_gather_into_tensor": (dist.all_gather_into_tensor, (whole, x)),
            "reduce_scatter_tensor": (dist.reduce_scatter_tensor, (x, whole)),
            "broadcast": (dist.broadcast, (x, 0)),
            "all_to_all_single": (dist.all_to_all_single, (whole, whole.clone())),
        }
        for name, (call, arguments) in several.items():
            for asynchronous in (False, True):
                times = torch.zeros(len(groups), batches, device=device)
                for batch in range(batches + 1):
                    for k, group in enumerate(groups.values()):
                        synchronize(device)
                        dist.barrier()
                        start = time.perf_counter()
                        for _ in range(IN_A_BATCH):
                            work = call(*arguments, group=group, async_op=asynchronous)
                            if asynchronous:
                                work.wait()
                        if batch > 0:  # the first connects
                            times[k, batch - 1] = (time.perf_counter() - start) / IN_A_BATCH * 1e6
                dist.all_reduce(times, dist.ReduceOp.MAX)
                synchronize(device)
                if rank == 0:
                    by_backend = dict(zip(groups, times.tolist(), strict=True))
                    theirs, ours = (statistics.median(by_backend[backend]) for backend in (other, "jali"))
                    print(
                        f"| {name}{', async_op' if asynchronous else ''} | {size} | {theirs:.1f} | {ours:.1f} "
                        f"| {ours / theirs:.2f} | {spreads(by_backend, other)} |",
                        flush=True,
                    )


def spreads(by_backend: dict[str, list[float]], other: str) -> str:
    """The lowest and highest time of each, as two cells."""
    return " | ".join(
        f"{min(by_backend[backend]):.1f} .. {max(by_backend[backend]):.1f}" for backend in (other, "jali")
    )


def synchronize(device: Any) -> None:
    """Wait for the device's work, all of it."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run_rank(rank: int, ranks: int, store: str, sizes: list[int], batches: int, what: str) -> None:
    import torch
    import torch.distributed as dist

    import jali.torch  # noqa: F401

    torch.set_num_threads(1)
    on_devices = torch.cuda.device_count() >= ranks
    if what != "calls" and not on_devices:
        raise SystemExit(f"--{what}: {ranks} ranks need a GPU each, PyTorch sees {torch.cuda.device_count()}")
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

    if what != "calls":
        {"graphs": compare_graphs, "host": compare_host}[what](groups, device, sizes, batches)
        dist.destroy_process_group()
        return

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
    parser.add_argument("--sizes", type=int, nargs="*", help="bytes on each rank")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--graphs", action="store_true", help="all-reduces in CUDA graphs")
    instead.add_argument("--host", action="store_true", help="what calls take of the host")
    options = parser.parse_args()
    what = "graphs" if options.graphs else "host" if options.host else "calls"
    sizes = options.sizes or {"graphs": GRAPH_SIZES, "host": HOST_SIZES, "calls": SIZES}[what]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            spawn.Process(
                target=run_rank,
                args=(rank, options.ranks, f"{folder}/store", sizes, options.batches, what),
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
