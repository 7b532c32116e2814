"""Every call of the backend on two and three processes, held against NumPy and against gloo."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch
import torch.distributed as dist
from rank_processes import RankProcesses

SIZES = (1, 7, 1000, 4099, 100003)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.fixture(params=["two_ranks", "three_ranks"])
def ranks(request):
    return request.getfixturevalue(request.param)


def given(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, so that sums and products are exact in every type."""
    numbers = (torch.arange(count) * 7 + 3 * rank) % 4 + 1
    if dtype == torch.bool:
        return (torch.arange(count) + rank) % 3 == 0
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers + rank).double() % 3).to(dtype)
    return numbers.to(dtype)


def wide(tensor: torch.Tensor) -> np.ndarray:
    """As NumPy's numbers in which everything here is exact."""
    if tensor.dtype == torch.bool:
        return tensor.numpy()
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64).numpy()


NUMPY = {
    "SUM": lambda all: all.sum(0),
    "AVG": lambda all: all.sum(0) / len(all),
    "PRODUCT": lambda all: all.prod(0),
    "MIN": lambda all: all.min(0),
    "MAX": lambda all: all.max(0),
    "BAND": lambda all: np.bitwise_and.reduce(all.astype(int)),
    "BOR": lambda all: np.bitwise_or.reduce(all.astype(int)),
    "BXOR": lambda all: np.bitwise_xor.reduce(all.astype(int)),
}


def has(op: str, dtype: torch.dtype) -> bool:
    if dtype == torch.bool:
        return op != "AVG"
    if op in ("BAND", "BOR", "BXOR"):
        return dtype in INTEGERS
    if dtype.is_complex:  # PyTorch itself refuses the others
        return op in ("SUM", "AVG")
    return op != "AVG" or dtype not in INTEGERS


def reduced(dtype: torch.dtype) -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    for op, formula in NUMPY.items():
        kind = getattr(dist.ReduceOp, op)
        if not has(op, dtype):
            with pytest.raises(Exception, match=rf"jali has no ReduceOp.{op} of {dtype}|does not support"):
                dist.all_reduce(given(me, 3, dtype), kind)
            continue
        for count in SIZES:
            every = np.array([wide(given(rank, count * size, dtype)) for rank in range(size)])
            if dtype == torch.bool:  # any, all: as with NCCL
                expected = {"SUM": every.any(0), "PRODUCT": every.all(0)}.get(op)
                expected = formula(every).astype(bool) if expected is None else expected
            else:
                expected = formula(every)
            close = (
                {"rtol": 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6}
                if op == "AVG"
                else {"rtol": 0}
            )
            x = given(me, count * size, dtype)
            dist.all_reduce(x, kind)
            np.testing.assert_allclose(wide(x), expected, **close)
            x = given(me, count * size, dtype)
            dist.reduce(x, size - 1, kind)
            mine = expected if me == size - 1 else every[me]
            np.testing.assert_allclose(wide(x), mine, **close)
            part = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(part, given(me, count * size, dtype), kind)
            np.testing.assert_allclose(wide(part), expected[me * count : (me + 1) * count], **close)
            dist.reduce_scatter(part.zero_(), list(given(me, count * size, dtype).chunk(size)), kind)
            np.testing.assert_allclose(wide(part), expected[me * count : (me + 1) * count], **close)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS, torch.bool], ids=str)
def test_reductions_are_those_of_numpy(ranks, dtype):
    ranks.run(reduced, dtype)


def moved(dtype: torch.dtype) -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    for count in SIZES:
        all = [given(rank, count, dtype) for rank in range(size)]
        x = all[me].clone()
        dist.broadcast(x, 1)
        assert torch.equal(x, all[1])
        parts = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, all[me])
        assert all_equal(parts, all)
        whole = torch.empty(count * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, all[me])
        assert torch.equal(whole, torch.cat(all))
        whole = torch.cat(all) if me == 0 else torch.cat([all[me]] * size)
        dist.all_gather_into_tensor(whole, whole[me * count : (me + 1) * count])  # in place
        assert torch.equal(whole, torch.cat(all))
        parts = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.gather(all[me], parts if me == 1 else None, dst=1)
        assert me != 1 or all_equal(parts, all)
        x = torch.empty(count, dtype=dtype)
        dist.scatter(x, all if me == 0 else None, src=0)
        assert torch.equal(x, all[me])
        table = [[given(10 * a + b, count, dtype) for b in range(size)] for a in range(size)]
        column = [table[rank][me] for rank in range(size)]
        parts = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.all_to_all(parts, table[me])
        assert all_equal(parts, column)
        whole = torch.empty(count * size, dtype=dtype)
        dist.all_to_all_single(whole, torch.cat(table[me]))
        assert torch.equal(whole, torch.cat(column))


def all_equal(parts, others) -> bool:
    return len(parts) == len(others) and all(torch.equal(a, b) for a, b in zip(parts, others, strict=True))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_what_moves_arrives_as_it_was(ranks, dtype):
    if dtype == torch.float8_e4m3fn:
        ranks.run(bytes_of_any_type)
        return
    ranks.run(moved, dtype)


def bytes_of_any_type() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    x = (torch.arange(33.0) + me).to(torch.float8_e4m3fn)
    whole = torch.empty(33 * size, dtype=torch.float8_e4m3fn)
    dist.all_gather_into_tensor(whole, x)
    expected = torch.cat([(torch.arange(33.0) + rank).to(torch.float8_e4m3fn) for rank in range(size)])
    assert torch.equal(whole.view(torch.uint8), expected.view(torch.uint8))
    with pytest.raises(Exception, match=r"jali combines no torch.float8_e4m3fn; it has bfloat16, bool"):
        dist.all_reduce(x)


def uneven_parts() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    # rows from rank a to rank b
    rows = [[(a + 2 * b) % 4 for b in range(size)] for a in range(size)]

    def part(a, b):
        return torch.full((rows[a][b], 3), 10.0 * a + b)

    out = torch.empty(sum(rows[a][me] for a in range(size)), 3)
    dist.all_to_all_single(
        out, torch.cat([part(me, b) for b in range(size)]), [rows[a][me] for a in range(size)], rows[me]
    )
    expected = torch.cat([part(a, me) for a in range(size)])
    assert torch.equal(out, expected)
    parts = [torch.empty(rows[a][me], 3) for a in range(size)]
    dist.all_to_all(parts, [part(me, b) for b in range(size)])
    assert torch.equal(torch.cat(parts), expected)
    # parts of other sizes on each rank
    parts = [torch.empty(rank + 1, 2) for rank in range(size)]
    dist.all_gather(parts, torch.full((me + 1, 2), float(me)))
    assert all(torch.equal(one, torch.full((r + 1, 2), float(r))) for r, one in enumerate(parts))
    mine = torch.empty(me + 1)
    dist.reduce_scatter(mine, [torch.full((rank + 1,), float(me + 1)) for rank in range(size)])
    assert torch.equal(mine, torch.full((me + 1,), size * (size + 1) / 2))


def test_parts_may_differ_in_size(ranks):
    ranks.run(uneven_parts)


def strided() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    x = torch.full((6, 8), float(me + 1))
    dist.all_reduce(x.t()[::2])  # only these columns
    assert torch.equal(x, torch.cat([torch.tensor([total, me + 1.0])] * 4).expand(6, 8))
    x = torch.zeros(4, 6)
    dist.broadcast(x[:, ::3] if me else torch.ones(4, 6)[:, ::3], 0)
    assert me == 0 or x.sum() == 8
    parts = [torch.zeros(3, 4).t() for _ in range(size)]
    dist.all_gather(parts, torch.arange(12.0).view(3, 4).t() + me)
    assert all(torch.equal(one, torch.arange(12.0).view(3, 4).t() + r) for r, one in enumerate(parts))
    x = torch.complex(torch.ones(3), torch.ones(3)).conj()
    dist.group.WORLD.allreduce([x]).wait()
    assert torch.equal(x, torch.complex(torch.full((3,), 1.0 * size), torch.full((3,), -1.0 * size)))
    out = torch.zeros(2, 6).t()[1:3]
    dist.reduce_scatter_tensor(out, torch.ones(2 * size, 2).t().contiguous().t())
    assert torch.equal(out, torch.full((2, 2), float(size)))
    for empty in (torch.empty(0), torch.empty(0, 3)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)


def test_tensors_that_are_not_in_one_piece_are_copied(ranks):
    ranks.run(strided)


def premultiplied() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((5,), float(me + 1))
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(x, torch.full((5,), size * (size + 1) / 4))
    x = torch.full((4 * size,), float(me + 1))
    out = torch.empty(4)
    dist.reduce_scatter_tensor(out, x, dist._make_nccl_premul_sum(0.25))
    assert torch.equal(out, torch.full((4,), size * (size + 1) / 8))
    assert torch.equal(x, torch.full((4 * size,), float(me + 1)))  # as it was


def test_numbers_are_multiplied_before_they_are_added(ranks):
    ranks.run(premultiplied)


def as_gloo_does(seed: int) -> list[np.ndarray]:
    """Random numbers through every call that gloo has as well."""
    me, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed + me)
    out = []
    for count in (1, 33, 5000):
        x = torch.randn(count * size)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
            y = x.clone()
            dist.all_reduce(y, op)
            out.append(y)
            z = torch.empty(count)
            dist.reduce_scatter_tensor(z, x, op)
            out.append(z)
        whole = torch.empty(count * size * size)
        dist.all_gather_into_tensor(whole, x)
        out.append(whole)
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        out.append(y)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": me})
    assert objects == [{"rank": rank} for rank in range(size)]
    message = [f"from {me}"]
    dist.broadcast_object_list(message, 1)
    assert message == ["from 1"]
    return [one.numpy() for one in out]


def test_random_numbers_as_gloo_has_them(ranks):
    theirs = ranks.run(as_gloo_does, 5, backend="gloo")
    for mine, other in zip(ranks.run(as_gloo_does, 5), theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_ranks_that_share_no_memory(three_ranks):
    """As ranks of several hosts: all goes through sockets."""
    theirs = three_ranks.run(as_gloo_does, 6, backend="gloo")
    with RankProcesses(3, shm="0") as apart:
        for mine, other in zip(apart.run(as_gloo_does, 6), theirs, strict=True):
            for a, b in zip(mine, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        apart.run(uneven_parts)


def works_and_futures() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((1000 * k + 1,), float(me)) for k in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    futures = [work.get_future() for work in works]
    chained = futures[3].then(lambda future: future.value()[0].sum())
    for work, x in zip(reversed(works), reversed(tensors), strict=True):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert torch.equal(x, torch.full_like(x, size * (size - 1) / 2))
        assert work.result()[0] is x
    assert all(future.wait()[0] is x for future, x in zip(futures, tensors, strict=True))
    assert chained.wait() == 3001 * size * (size - 1) / 2
    work = dist.barrier(async_op=True)
    work.wait()
    dist.barrier()
    group = dist.group.WORLD
    assert (group.rank(), group.size(), group.name()) == (me, size, "jali")
    assert dist.get_backend() == "jali"
    assert group._get_sequence_number_for_group() >= 22
    group.monitored_barrier()


def test_works_are_waited_for_in_any_order(ranks):
    ranks.run(works_and_futures)


def wrong() -> None:
    size = dist.get_world_size()
    with pytest.raises(Exception, match="the output has 3"):
        dist.all_gather_into_tensor(torch.empty(3), torch.empty(5))
    with pytest.raises(Exception, match=r"one type, not torch\.float32, torch\.float64"):
        dist.group.WORLD._allgather_base(torch.empty(5 * size, dtype=torch.float64), torch.empty(5))
    with pytest.raises(Exception, match="its output has 2"):
        dist.reduce_scatter_tensor(torch.empty(2), torch.empty(3 * size))
    with pytest.raises(Exception, match="takes a tensor for each of"):
        dist.group.WORLD.allgather([[torch.empty(2)] * (size + 1)], [torch.empty(2)])
    with pytest.raises(Exception, match="are no parts of 4 rows"):
        dist.all_to_all_single(torch.empty(4), torch.empty(4), [1] * size, [9] * size)
    with pytest.raises(Exception, match="dense tensors"):
        dist.group.WORLD.allreduce([torch.eye(3).to_sparse()])
    with pytest.raises(Exception, match="root 9 does not exist"):
        options = dist.BroadcastOptions()
        options.rootRank = 9
        dist.group.WORLD.broadcast([torch.empty(3)], options)
    x = torch.ones(3)
    dist.all_reduce(x)  # and the group goes on
    assert torch.equal(x, torch.full((3,), float(size)))


def test_wrong_calls_say_what_is_wrong_and_the_group_goes_on(two_ranks):
    two_ranks.run(wrong)
