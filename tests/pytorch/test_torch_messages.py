"""Messages between two ranks, groups of some ranks, and calls that are started together."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch
import torch.distributed as dist


def messages() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    after, before = (me + 1) % size, (me - 1) % size
    for count in (0, 1, 1000, 300_000):
        # Both send before they receive: nobody may wait for a receive in order to go on.
        x, y = torch.full((count,), float(me)), torch.empty(count)
        sends, receives = dist.isend(x, after), dist.irecv(y, before)
        sends.wait()
        receives.wait()
        assert torch.equal(y, torch.full((count,), float(before)))
    # By tag, in another order than they were sent, beside a collective that others have not called yet.
    works = [dist.isend(torch.full((5,), tag), after, tag=tag) for tag in (7, 2**40, 3)]
    total = torch.ones(10)
    works.append(dist.all_reduce(total, async_op=True))
    got = {tag: torch.empty(5, dtype=torch.int64) for tag in (3, 7, 2**40)}
    for tag, into in got.items():
        dist.recv(into, before, tag=tag)
        assert torch.equal(into, torch.full((5,), tag))
    for work in works:
        work.wait()
    ops = [
        dist.P2POp(dist.isend, torch.full((2000,), me), after),
        dist.P2POp(dist.irecv, z := torch.empty(2000), before),
    ]
    ops[0].tensor = ops[0].tensor.float()
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert torch.equal(z, torch.full((2000,), float(before)))
    z = torch.zeros(6, 4)
    works = [dist.isend(torch.ones(4, 6).t()[::2], after), dist.irecv(z[::2], before)]
    [work.wait() for work in works]
    assert z.sum() == 12
    assert z[1].sum() == 0


@pytest.mark.parametrize("ranks", ["two_ranks", "three_ranks"])
def test_messages_go_both_ways_and_by_tag(ranks, request):
    request.getfixturevalue(ranks).run(messages)


def from_anybody() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    if me:
        dist.send(torch.full((3,), float(me)), 0, tag=4)
    else:
        seen = set()
        for _ in range(size - 1):
            x = torch.empty(3)
            source = dist.recv(x, tag=4)
            assert torch.equal(x, torch.full((3,), float(source)))
            seen.add(source)
        assert seen == set(range(1, size))
    dist.barrier()
    with pytest.raises(Exception, match=r"tag|another rank of the group, not 9"):
        dist.group.WORLD.send([torch.ones(1)], 9, 0)


def test_a_message_of_any_rank(three_ranks):
    three_ranks.run(from_anybody)


def of_another_size() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(3), 1)
        with pytest.raises(dist.DistBackendError, match="takes 20 bytes, but rank 0 sent 12"):
            dist.recv(torch.empty(1), 1)
    else:
        with pytest.raises(dist.DistBackendError, match="takes 20 bytes, but rank 0 sent 12 with tag 0"):
            dist.recv(torch.empty(5), 0)


def test_a_message_of_another_size_is_an_error_on_both(two_ranks):
    two_ranks.run(of_another_size)


def groups() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([rank, (rank + 1) % size]) for rank in range(size)]
    for number, group in enumerate(pairs):
        members = sorted({number, (number + 1) % size})
        if me in members:
            x = torch.ones(5)
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((5,), float(len(members))))
            x = torch.full((2,), float(me))
            dist.broadcast(x, members[-1], group=group)
            assert torch.equal(x, torch.full((2,), float(members[-1])))
    everyone = dist.new_group()
    first, second = torch.ones(50_000), torch.ones(50_000)
    # Two groups at once, in another order on each rank.
    works = [
        dist.all_reduce(x, group=group, async_op=True)
        for x, group in [(first, everyone), (second, dist.group.WORLD)][:: 1 if me else -1]
    ]
    [work.wait() for work in works]
    assert first.sum() == second.sum() == 50_000 * size
    alone = [dist.new_group([rank]) for rank in range(size)][me]
    dist.all_reduce(first, group=alone)
    dist.barrier(group=alone)
    parts = [torch.empty(3)]
    dist.all_gather(parts, torch.full((3,), 2.0), group=alone)
    out = torch.empty(4)
    dist.all_to_all_single(out, torch.ones(4), group=alone)
    dist.reduce_scatter_tensor(out, torch.full((4,), 3.0), group=alone)
    assert first.sum() == 50_000 * size
    assert parts[0].sum() == 6
    assert out.sum() == 12
    dist.destroy_process_group(everyone)
    dist.all_reduce(second)
    assert second.sum() == 50_000 * size * size


@pytest.mark.parametrize("ranks", ["two_ranks", "three_ranks"])
def test_groups_of_some_ranks(ranks, request):
    request.getfixturevalue(ranks).run(groups)


def together() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    tensors = [torch.full((100 * k + 1,), float(me + 1)) for k in range(9)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    assert all(torch.equal(x, torch.full_like(x, total)) for x in tensors)
    inputs = [torch.full((k + 1,), float(me)) for k in range(5)]
    outputs = [torch.empty(size * (k + 1)) for k in range(5)]
    with dist._coalescing_manager():
        for out, x in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(out, x)
    for k, out in enumerate(outputs):
        assert torch.equal(out, torch.arange(float(size)).repeat_interleave(k + 1))
    parts = [torch.empty(k + 1) for k in range(5)]
    with dist._coalescing_manager():
        for k, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, torch.full((size * (k + 1),), float(me + 1)))
    assert all(torch.equal(part, torch.full_like(part, total)) for part in parts)
    # The older way, of any calls.
    x, y = torch.full((7,), float(me)), torch.ones(3)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(x, 1)
        dist.group.WORLD.allreduce([y])
    manager.wait()
    assert x.sum() == 7
    assert y.sum() == 3 * size
    z = torch.empty(3)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((3,), float(me)), (me + 1) % size)
        dist.broadcast(x, 0)
        dist.irecv(z, (me - 1) % size)
    manager.works[0].get_future().wait()
    manager.wait()
    assert manager.works[0].is_success()
    assert z.sum() == 3 * ((me - 1) % size)
    dist.all_reduce_coalesced(tensors)
    assert all(torch.equal(x, torch.full_like(x, total * size)) for x in tensors)
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(me)), torch.full((3,), 10.0 + me)])
    assert all(a.sum() == 2 * r and b.sum() == 30 + 3 * r for r, (a, b) in enumerate(lists))


@pytest.mark.parametrize("ranks", ["two_ranks", "three_ranks"])
def test_calls_that_are_started_together(ranks, request):
    request.getfixturevalue(ranks).run(together)


def functional() -> None:
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    me, size = dist.get_rank(), dist.get_world_size()
    x = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    assert torch.equal(x + 0, torch.full((4,), float(size)))
    x = functional.all_gather_tensor(torch.full((2,), float(me)), 0, dist.group.WORLD)
    assert torch.equal(x + 0, torch.arange(float(size)).repeat_interleave(2))
    x = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, dist.group.WORLD)
    assert torch.equal(x + 0, torch.full((2,), float(size)))
    x = functional.all_to_all_single(torch.arange(2.0 * size), None, None, dist.group.WORLD)
    assert torch.equal(x + 0, torch.tensor([2.0 * me, 2.0 * me + 1] * size))
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).view(6, 2)
    shards = distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(shards, DTensor)
    assert shards.to_local().shape[0] == 6 // size
    assert torch.equal(shards.redistribute(mesh, [Replicate()]).to_local(), whole)


@pytest.mark.parametrize("ranks", ["two_ranks", "three_ranks"])
def test_functional_collectives_and_distributed_tensors(ranks, request):
    request.getfixturevalue(ranks).run(functional)


def barrier_with_one_missing() -> None:
    group = dist.group.WORLD
    if dist.get_rank() == 2:
        return
    with pytest.raises(dist.DistBackendError, match="ranks 2 did not come to a monitored barrier in 1 s"):
        group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)


def test_a_monitored_barrier_names_who_is_missing(three_ranks):
    three_ranks.run(barrier_with_one_missing)
