"""Data-parallel and sharded training of a small model: the losses of 100 steps are those of gloo's backend."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch
import torch.distributed as dist
from torch import nn

STEPS = 100


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(11, 37), Block(37), Block(37), nn.Linear(37, 5))


def by_ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.02)  # several buckets


def by_ddp_with_hook() -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    made = nn.parallel.DistributedDataParallel(model(), static_graph=True)
    made.register_comm_hook(None, default_hooks.allreduce_hook)
    return made


def by_fsdp() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
    )


def by_fully_shard() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    made = model()
    for part in made:
        if isinstance(part, Block):
            fully_shard(part, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def by_hybrid_shard() -> nn.Module:
    """Sharded within groups of one rank, replicated over groups: both collectives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicas", "shards"))
    return fully_shard(model(), mesh=mesh)


def train(make, seed: int) -> list[float]:
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed + dist.get_rank())  # other data on each rank
    losses = []
    for _ in range(STEPS):
        x = torch.randn(16, 11, generator=generator)
        loss = ((net(x) - torch.sin(x[:, :5])) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [by_ddp, by_ddp_with_hook, by_fsdp, by_fully_shard, by_hybrid_shard])
def test_losses_of_a_hundred_steps_are_those_of_gloo(two_ranks, make):
    theirs = two_ranks.run(train, make, 3, backend="gloo", seconds=120)
    mine = two_ranks.run(train, make, 3, seconds=120)
    assert theirs[0][-1] < 0.7 * theirs[0][0]  # it learns, so that wrong gradients would show
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=0, atol=1e-5)


def test_ddp_on_three_ranks(three_ranks):
    theirs = three_ranks.run(train, by_ddp, 4, backend="gloo", seconds=120)
    mine = three_ranks.run(train, by_ddp, 4, seconds=120)
    torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=0, atol=1e-5)
