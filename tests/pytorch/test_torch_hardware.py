"""Every call of the backend on the tensors of real GPUs, one for each rank, against sums made by hand; on the host the same calls.

Streams, graphs and memory as programs have them: tensors that are not in one piece, other streams, another current device, tensors
that are dropped too early. On the GPU machine: `pytest tests/pytorch/test_torch_hardware.py`.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from torch._C import _distributed_c10d as c10d

from jali.errors import ParameterError

GPUS = torch.cuda.device_count()
needs_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs that PyTorch sees")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=needs_gpus)])
def ranks_on(request: pytest.FixtureRequest):
    """What runs a function on all ranks, with the kind of device first."""
    with RankProcesses(min(GPUS, 4) if request.param == "cuda" else 2) as ranks:
        yield lambda function, *arguments: ranks.run(function, request.param, *arguments)


@pytest.fixture(scope="module")
def gpu_ranks():
    with RankProcesses(min(GPUS, 4)) as ranks:
        yield ranks


def device_of(kind: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(dist.get_rank())
    return torch.device("cuda", dist.get_rank())


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers: sums are exact in every type."""
    numbers = torch.arange(count) % 5 + 2 * rank + 1
    if dtype.is_complex:
        return numbers.to(dtype) * (1 + 1j)
    return numbers % 2 == 0 if dtype == torch.bool else numbers.to(dtype)


LAYOUTS = {
    "one piece": lambda x: x,
    "every other": lambda x: torch.stack([x, x], -1).flatten()[::2],
    "part": lambda x: torch.cat([x, x])[len(x) :],
    "with gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
}


def every_call(kind: str, layout: str, dtype: torch.dtype) -> None:
    me, size, device = dist.get_rank(), dist.get_world_size(), device_of(kind)
    shape, odd, n = LAYOUTS[layout], 7, 35
    given = [values(rank, n, dtype) for rank in range(size)]
    whole = [values(rank, n * size, dtype) for rank in range(size)]
    total = torch.stack(given).any(0) if dtype == torch.bool else sum(given)
    parts = torch.stack(whole).any(0) if dtype == torch.bool else sum(whole)

    def mine(x: torch.Tensor) -> torch.Tensor:
        made = shape(x.to(device, copy=True))
        assert torch.equal(made.cpu(), x)
        return made

    def room(count: int) -> torch.Tensor:
        return mine(torch.zeros(count, dtype=dtype))

    def check(asynchronous: bool, call, *arguments, **more) -> None:
        work = call(*arguments, async_op=asynchronous, **more)
        if asynchronous:
            work.wait()

    def same(x: torch.Tensor, wanted: torch.Tensor) -> None:
        assert torch.equal(x.detach().cpu(), wanted), (x, wanted)

    for asynchronous in (False, True):
        x = mine(given[me])
        check(asynchronous, dist.all_reduce, x)
        same(x, total)
        x = mine(given[me])
        check(asynchronous, dist.reduce, x, 1)
        same(x, total if me == 1 else given[me])
        x = mine(given[me])
        check(asynchronous, dist.broadcast, x, 1)
        same(x, given[1])
        outs = [room(n) for _ in range(size)]
        check(asynchronous, dist.all_gather, outs, mine(given[me]))
        for out, wanted in zip(outs, given, strict=True):
            same(out, wanted)
        out = room(n * size)
        check(asynchronous, dist.all_gather_into_tensor, out, mine(given[me]))
        same(out, torch.cat(given))
        outs = [room(n) for _ in range(size)]
        check(asynchronous, dist.gather, mine(given[me]), outs if me == 0 else None, 0)
        for out, wanted in zip(outs, given, strict=True):
            same(out, wanted if me == 0 else torch.zeros_like(wanted))
        out = room(n)
        check(asynchronous, dist.scatter, out, [mine(x) for x in given] if me == 1 else None, 1)
        same(out, given[me])
        out = room(n)
        check(asynchronous, dist.reduce_scatter_tensor, out, mine(whole[me]))
        same(out, parts[n * me : n * (me + 1)])
        out = room(n)
        check(asynchronous, dist.reduce_scatter, out, [mine(x) for x in whole[me].split(n)])
        same(out, parts[n * me : n * (me + 1)])
        wanted = torch.cat([x[n * me : n * (me + 1)] for x in whole])
        out = room(n * size)
        check(asynchronous, dist.all_to_all_single, out, mine(whole[me]))
        same(out, wanted)
        outs = [room(n) for _ in range(size)]
        check(asynchronous, dist.all_to_all, outs, [mine(x) for x in whole[me].split(n)])
        same(torch.cat([out.detach() for out in outs]), wanted)
        # Parts of different sizes: rank r sends `odd` + r numbers to everybody.
        out = room(sum(odd + rank for rank in range(size)))
        x = mine(whole[me][: (odd + me) * size])
        check(
            asynchronous,
            dist.all_to_all_single,
            out,
            x,
            output_split_sizes=[odd + rank for rank in range(size)],
            input_split_sizes=[odd + me] * size,
        )
        same(out, torch.cat([whole[r][(odd + r) * me : (odd + r) * (me + 1)] for r in range(size)]))
        x = mine(torch.zeros(0, dtype=dtype))
        check(asynchronous, dist.all_reduce, x)
        dist.barrier()


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        *[(layout, torch.float32) for layout in LAYOUTS],
        ("one piece", torch.bfloat16),
        ("one piece", torch.bool),
        ("every other", torch.int64),
        ("part", torch.uint8),
        ("every other", torch.complex64),
    ],
)
def test_every_call(ranks_on, layout: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    ranks_on(every_call, layout, dtype)


def operations(kind: str) -> None:
    me, size, device = dist.get_rank(), dist.get_world_size(), device_of(kind)
    given = [values(rank, 9, torch.float64) for rank in range(size)]
    for asynchronous in (False, True):
        for op, wanted in (
            (dist.ReduceOp.AVG, sum(given) / size),
            (dist.ReduceOp.MAX, given[-1]),
            (dist.ReduceOp.PRODUCT, torch.stack(given).prod(0)),
            (c10d._make_nccl_premul_sum(0.5), sum(given) / 2),
        ):
            x = given[me].to(device, copy=True)
            work = dist.all_reduce(x, op, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert torch.allclose(x.cpu(), wanted)
            whole = torch.cat([given[me]] * size).to(device)
            kept = whole.clone()
            out = torch.zeros(9, dtype=torch.float64, device=device)
            work = dist.reduce_scatter_tensor(out, whole, op, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert torch.allclose(out.cpu(), wanted)
            assert torch.equal(whole, kept)
    x = torch.full((4,), (me + 1) * 1j, dtype=torch.complex64, device=device)
    dist.group.WORLD.broadcast([x.conj()]).wait()  # whose memory holds something else
    assert torch.equal(x.cpu(), torch.full((4,), 1j, dtype=torch.complex64))
    # Several at once, and their future.
    xs = [torch.full((k,), me + 1.0, device=device) for k in (1, 1000, 70_000)]
    with dist._coalescing_manager(device=device, async_ops=True) as batch:
        for x in xs:
            dist.all_reduce(x)
    batch.wait()
    assert all(bool((x == size * (size + 1) / 2).all()) for x in xs)
    work = dist.all_reduce(xs[1], async_op=True)
    (result,) = work.get_future().wait()
    assert float(result[0]) == size * size * (size + 1) / 2
    assert result.data_ptr() == xs[1].data_ptr()


def test_operations_batches_and_futures(ranks_on) -> None:
    ranks_on(operations)


def on_streams() -> None:
    me, size, device = dist.get_rank(), dist.get_world_size(), device_of("cuda")
    total = size * (size + 1) / 2
    side = torch.cuda.Stream()
    count = 1 << 20
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            for asynchronous in (False, True):
                x = torch.zeros(count, device=device)
                torch.cuda._sleep(20_000_000)
                x += me + 1  # late
                work = dist.all_reduce(x, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                y = x * 2  # at once
                assert bool((y == 2 * total).all())
                assert torch.cuda.current_stream() == stream
    # Waited for by another stream than the one of the call.
    x = torch.full((count,), me + 1.0, device=device)
    torch.cuda._sleep(20_000_000)
    work = dist.all_reduce(x, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
        y = x + 1
    side.synchronize()
    assert bool((y == total + 1).all())
    # Dropped before it has been made, and its memory given out again.
    kept = []
    for _ in range(20):
        x = torch.full((count,), me + 1.0, device=device)
        out = torch.empty(size * count, device=device)
        torch.cuda._sleep(1_000_000)
        work = dist.all_gather_into_tensor(out, x[:], async_op=True)
        del x
        work.wait()
        torch.full((count,), float("nan"), device=device)
        kept.append(out)
    for out in kept:
        assert torch.equal(out.view(size, count)[:, 0].cpu(), torch.arange(1.0, size + 1))
        assert not bool(out.isnan().any())
    # Another current device.
    x = torch.full((5,), me + 1.0, device=device)
    other = (me + 1) % torch.cuda.device_count()
    torch.cuda.synchronize()
    with torch.cuda.device(other):
        for asynchronous in (False, True):
            work = dist.all_reduce(x[1:4] if asynchronous else x, async_op=asynchronous)
            assert torch.cuda.current_device() == other
            if asynchronous:
                work.wait()
            assert torch.cuda.current_device() == other
        fresh = torch.zeros(3, device="cuda")
        assert fresh.device.index == other
    torch.cuda.synchronize()
    assert x.tolist() == [total, *[size * total] * 3, total]
    with pytest.raises(ParameterError, match="give both on the same"):
        dist.group.WORLD._allgather_base(torch.zeros(5 * size), x)
    dist.all_reduce(x)


@needs_gpus
def test_streams_memory_and_devices(gpu_ranks) -> None:
    gpu_ranks.run(on_streams)


def in_graphs() -> None:
    me, size, device = dist.get_rank(), dist.get_world_size(), device_of("cuda")
    total = size * (size + 1) / 2
    x, out = torch.zeros(1000, device=device), torch.zeros(1000 * size, device=device)
    apart = torch.zeros(1000, 2, device=device)[:, 0]
    with torch.cuda.stream(torch.cuda.Stream()):  # what is made once is made before
        for asynchronous in (False, True):
            works = [dist.all_reduce(y, async_op=asynchronous) for y in (x, apart)]
            works.append(dist.all_gather_into_tensor(out, x, async_op=asynchronous))
            for work in works:
                if asynchronous:
                    work.wait()
    torch.cuda.synchronize()
    for asynchronous in (False, True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            works = [dist.all_reduce(y, async_op=asynchronous) for y in (x, apart)]
            for work in works:
                if asynchronous:
                    with pytest.raises(ParameterError, match="captured in a graph"):
                        work.is_completed()
                    work.wait()
            work = dist.all_gather_into_tensor(out, x, async_op=asynchronous)
            if asynchronous:
                work.wait()
            y = out + 1
        for _ in range(5):
            x.fill_(me + 1)
            apart.fill_(me + 2)
            graph.replay()
            torch.cuda.synchronize()
            assert bool((x == total).all())
            assert bool((apart == total + size).all())
            assert bool((y == total + 1).all())
        del graph


@needs_gpus
def test_graphs_of_pytorch(gpu_ranks) -> None:
    gpu_ranks.run(in_graphs)
