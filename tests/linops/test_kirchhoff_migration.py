"""Kirchhoff demigration and migration against serial pylops, and against the formula element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, layout_of
from jali.errors import ParameterError, ShapeError
from jali.linops import Kirchhoff, LinearOperator, VStack


def survey(nx: int = 9, nz: int = 7, ns: int = 3, nr: int = 4, nt: int = 40) -> dict[str, Any]:
    x, z, t = np.arange(nx) * 4.0, np.arange(nz) * 4.0, np.arange(nt) * 0.004
    srcs = np.vstack((np.linspace(x[0], x[-1], ns), np.full(ns, 3.0)))
    recs = np.vstack((np.linspace(x[1], x[-2], nr), np.full(nr, 5.0)))
    at = np.arange(-8, 9) * 0.004
    a = (np.pi * 20 * at) ** 2
    return {
        "z": z, "x": x, "t": t, "srcs": srcs, "recs": recs, "vel": 500.0,
        "wav": (1 - 2 * a) * np.exp(-a), "wavcenter": 8,
    }  # fmt: skip


def numbers(size: int, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=size) + (1j * generator.normal(size=size) if dtype[0] == "c" else 0)
    return x.astype(dtype)


@pytest.mark.filterwarnings("ignore:A new implementation of Kirchhoff")
@pytest.mark.parametrize("mode", ["analytic", "byot"])
@pytest.mark.parametrize("nt", [40, 18])  # of the second, times lie behind the end
@pytest.mark.parametrize("wavcenter", [8, 0, 16, 5])
def test_demigration_and_migration_are_those_of_pylops(mode: str, nt: int, wavcenter: int) -> None:
    kirchhoff = pytest.importorskip("pylops.waveeqprocessing.kirchhoff")
    given = survey(nt=nt) | {"wavcenter": wavcenter}
    serial = kirchhoff.Kirchhoff(**given, mode="analytic", engine="numpy")
    if mode == "byot":
        given |= {"vel": None, "trav": (serial.trav_srcs, serial.trav_recs)}
    Op = Kirchhoff(**given, mode=mode)
    assert (Op.shape, Op.dims, Op.dimsd) == (serial.shape, serial.dims, serial.dimsd)
    m, d = numbers(Op.shape[1], "float64", 1), numbers(Op.shape[0], "float64", 2)
    np.testing.assert_allclose(Op.matvec(m), serial @ m, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(Op.rmatvec(d), serial.H @ d, rtol=1e-9, atol=1e-11)


def test_demigration_is_the_formula() -> None:
    given = survey()
    Op = Kirchhoff(**given)
    m = numbers(Op.shape[1], "float64", 1).reshape(Op.dims)
    expected = np.zeros(Op.dimsd)
    for s, (sx, sz) in enumerate(given["srcs"].T):
        for r, (rx, rz) in enumerate(given["recs"].T):
            trace = np.zeros(Op.nt)
            for i, x in enumerate(given["x"]):
                for j, z in enumerate(given["z"]):
                    tau = (np.hypot(x - sx, z - sz) + np.hypot(x - rx, z - rz)) / given["vel"] / 0.004
                    k = int(tau)
                    if k < Op.nt - 1:
                        trace[k] += m[i, j] * (1 - (tau - k))
                        trace[k + 1] += m[i, j] * (tau - k)
            expected[s, r] = np.convolve(trace, given["wav"])[8 : 8 + Op.nt]
    np.testing.assert_allclose(Op @ m, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("nt", [40, 18])
def test_migration_is_the_adjoint(dtype: str, nt: int) -> None:
    Op = Kirchhoff(
        **survey(nt=nt), dtype=dtype.replace("complex64", "float32").replace("complex128", "float64")
    )
    m, d = numbers(Op.shape[1], dtype, 1), numbers(Op.shape[0], dtype, 2)
    data, image = Op @ m, Op.H @ d
    assert data.dtype == image.dtype == np.dtype(dtype)
    forward, backward = np.vdot(data, d), np.vdot(m, image)
    assert abs(forward - backward) < (1e-5 if dtype in ("float32", "complex64") else 1e-12) * abs(forward)
    assert Op.H.H is Op
    assert Op.H.shape == Op.shape[::-1]
    assert (Op @ m.reshape(Op.dims)).shape == Op.dimsd


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_tensors_give_the_same(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    Op = Kirchhoff(**survey(), dtype=dtype.replace("complex64", "float32").replace("complex128", "float64"))
    m, d = numbers(Op.shape[1], dtype, 1), numbers(Op.shape[0], dtype, 2)
    close = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype in ("float32", "complex64") else {"rtol": 1e-10, "atol": 1e-11}
    )
    for found, right in ((Op @ torch.asarray(m), Op @ m), (Op.H @ torch.asarray(d), Op.H @ d)):
        assert found.dtype == torch.asarray(right).dtype
        np.testing.assert_allclose(found.numpy(), right, **close)


def test_tables_that_are_not_kept_give_the_same() -> None:
    kept, some, none = (Kirchhoff(**survey(), keep=keep) for keep in (1 << 30, 16 * 4 * 63, 0))
    m, d = numbers(63, "float64", 1), numbers(kept.shape[0], "float64", 2)
    for Op in (some, none):
        np.testing.assert_array_equal(Op @ m, kept @ m)
        np.testing.assert_array_equal(Op.H @ d, kept.H @ d)
    assert [len(Op._kept) for Op in (kept, some, none)] == [3, 1, 0]


def test_a_rank_may_have_no_sources() -> None:
    Op = Kirchhoff(**survey() | {"srcs": np.zeros((2, 0))})
    assert Op.shape == (0, 63)
    assert (Op @ np.ones(63)).shape == (0,)
    np.testing.assert_array_equal(Op.H @ np.ones(0), np.zeros(63))


def test_mistakes_say_what_would_be_right() -> None:
    given = survey()
    with pytest.raises(ParameterError, match="analytic, byot"):
        Kirchhoff(**given, mode="eikonal")
    with pytest.raises(ParameterError, match="positive number"):
        Kirchhoff(**given | {"vel": np.ones((9, 7))})
    with pytest.raises(ParameterError, match="pair of tables"):
        Kirchhoff(**given, mode="byot")
    with pytest.raises(ShapeError, match=r"shapes \[\(63, 3\), \(63, 4\)\]"):
        Kirchhoff(**given, mode="byot", trav=(np.ones((63, 4)), np.ones((63, 4))))
    with pytest.raises(ParameterError, match="not negative"):
        Kirchhoff(**given, mode="byot", trav=(-np.ones((63, 3)), np.ones((63, 4))))
    with pytest.raises(ShapeError, match="x in row 0"):
        Kirchhoff(**given | {"srcs": np.ones((3, 2))})
    with pytest.raises(ShapeError, match="one of its samples"):
        Kirchhoff(**given | {"wavcenter": 17})
    for times in (given["t"][::-1], given["t"] ** 2, 0 * given["t"]):
        with pytest.raises(ParameterError, match="rise in equal steps"):
            Kirchhoff(**given | {"t": times})
    with pytest.raises(ParameterError, match="real or complex numbers, not int32"):
        Kirchhoff(**given, dtype="int32")
    with pytest.raises(ShapeError, match="63 elements"):
        Kirchhoff(**given) @ np.ones(62)


class Column(LinearOperator):
    """Local operators of all ranks one below the other."""

    def __init__(self, op: Kirchhoff) -> None:
        ranks = comm.current()
        texts = ranks.gather_bytes(np.int64(op.shape[0]).tobytes())
        self.rows = [(int(np.frombuffer(text, np.int64)[0]),) for text in texts]
        self.op = op
        super().__init__(shape=(sum(n for (n,) in self.rows), op.shape[1]))

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        layout = layout_of(x.communicator, self.shape[0], local_shapes=self.rows)
        return DistributedArray.of(layout, self.op.matvec(x.local))

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        layout = layout_of(x.communicator, self.shape[1], Partition.BROADCAST)
        return DistributedArray.of(layout, x.communicator.all_reduce(self.op.rmatvec(x.local)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_least_squares_migration_converges_as_it_is_known_to(ranks: int) -> None:
    """Costs of PyLops-MPI 0.8.0 for 20 sources: 522, 279, 191, 142, 115."""

    def run() -> list[float]:
        world = comm.current()
        x, z, span = np.arange(81) * 4.0, np.arange(60) * 4.0, (40.0, 284.0)
        a = (np.pi * 20 * np.arange(-40, 41) * 0.004) ** 2
        sources = np.array_split(np.linspace(*span, 20), world.size)[world.rank]
        Op = Column(
            Kirchhoff(
                z, x, np.arange(651) * 0.004,
                np.vstack((sources, np.full(len(sources), 10.0))),
                np.vstack((np.linspace(*span, 11), np.full(11, 20.0))),
                1000.0, (1 - 2 * a) * np.exp(-a), 40,
            )
        )  # fmt: skip
        m = np.zeros((81, 60))
        m[:, 30], m[:, 50] = -1, 0.5
        r = Op @ DistributedArray.to_dist(m.ravel(), partition=Partition.BROADCAST)
        costs = [float(r.norm())]
        p = s = Op.H @ r
        ss = s.dot(s)
        for _ in range(4):
            q = Op @ p
            r = r - (ss / q.dot(q)) * q
            s = Op.H @ r
            now = s.dot(s)
            p, ss = s + (now / ss) * p, now
            costs.append(float(r.norm()))
        return costs

    for costs in comm.virtual_ranks(ranks, run):
        np.testing.assert_allclose(costs, [522.43, 279.11, 190.62, 142.30, 114.72], rtol=5e-5)
        assert [round(cost) for cost in costs] == [522, 279, 191, 142, 115]


def test_distributed_arrays_are_for_columns_of_operators() -> None:
    one = np.ones((2, 1))
    op = Kirchhoff(np.arange(4.0), np.arange(4.0), np.arange(4.0), one, one, 1.0, np.ones(1), 0)
    image = DistributedArray.to_dist(np.ones(16), partition=Partition.BROADCAST)
    for call in (op.matvec, op.H.rmatvec, lambda x: op @ x):
        with pytest.raises(ParameterError, match="on plain arrays, not on a DistributedArray: VStack"):
            call(image)
    assert np.array_equal((VStack([op]) @ image).asarray(), op @ np.ones(16))
