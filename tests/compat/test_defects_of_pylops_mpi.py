"""Defects of pylops-mpi 0.8.0 that jali does not have: a test for each, named by what it is.

Numbers are those of the list in issue 19's reference. What follows them are traps that its users and its tests meet. Tests import the
compatibility module where scripts would call it; classes are those of `jali.arrays` and `jali.linops`.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import Any

import numpy as np
import pytest
from programs import run_python

pytest.importorskip("pylops")

import jali.compat.pylops_mpi as pylops_mpi
from jali import comm, linops
from jali.array_namespaces import NAMESPACES
from jali.arrays import DistributedArray, Partition, StackedDistributedArray, layout_of, save
from jali.arrays.exchange import _counts
from jali.arrays.layout import shape_of
from jali.comm import Communicator
from jali.errors import LayoutError, PlanError, ShapeError
from jali.linops import BlockDiag, FirstDerivative, Halo, Kirchhoff, VStack, dottest
from jali.profile import benchmark, benchmarks, mark
from jali.solvers import cgls

pytestmark = pytest.mark.timeout(120)  # what hangs there must not hang here


def numbers(shape: Any, dtype: Any = "float64", seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(2, *np.atleast_1d(shape)))
    return (x[0] + 1j * x[1] if np.dtype(dtype).kind == "c" else x[0]).astype(dtype)


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, int]:
    """How often rank 0 calls these methods of communicators."""
    found: dict[str, int] = dict.fromkeys(names, 0)

    def watch(name: str) -> None:
        inner = getattr(Communicator, name)

        def call(self: Communicator, *arguments: Any, **named: Any) -> Any:
            found[name] += self.rank == 0
            return inner(self, *arguments, **named)

        monkeypatch.setattr(Communicator, name, call)

    for name in names:
        watch(name)
    return found


# --- the list -------------------------------------------------------------------------------------------------


def test_1_thousands_of_operations_on_masked_arrays_split_one_communicator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There each splits one and frees none, until MPI has no more at the 2044th."""
    splits = counted(monkeypatch, "split")

    def run() -> None:
        x = DistributedArray.to_dist(np.arange(4.0), mask=[0, 1])
        for _ in range(3000):
            y = x + x
        for _ in range(3000):
            y.dot(x)
        assert y.layout.group is x.layout.group
        assert y.norm() == 2 * np.linalg.norm(x.local)
        assert DistributedArray.to_dist(np.zeros(4), mask=np.array([0, 1])).layout is x.layout

    comm.virtual_ranks(2, run)
    assert splits["split"] == 1


@pytest.mark.parametrize("partition", [Partition.BROADCAST, Partition.UNSAFE_BROADCAST])
def test_2_dot_products_of_masked_broadcast_arrays_count_all_elements(partition: Partition) -> None:
    """There ones(10) on two ranks of two groups gives 5."""

    def run() -> None:
        ones = DistributedArray((10,), partition=partition, mask=[0, 1])
        ones[:] = 1
        assert ones.dot(ones) == 10
        assert ones.norm(1) == 10
        assert ones.sum() == 10

    comm.virtual_ranks(2, run)


def test_3_arrays_made_from_masked_ones_have_their_mask() -> None:
    def run() -> None:
        x = DistributedArray.to_dist(numbers((8, 3)), mask=[0, 0, 1, 1])
        for y in (x.zeros_like(), x.empty_like(), x.copy(), x.conj(), x + x, -x, 2 * x, x.ravel(), np.exp(x)):
            assert y.mask == [0, 0, 1, 1]
        stack = StackedDistributedArray([x, x]).zeros_like()
        assert [part.mask for part in stack] == [[0, 0, 1, 1]] * 2
        assert x.zeros_like().asarray().tolist() == np.zeros((8, 3)).tolist()

    comm.virtual_ranks(4, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("partition", list(Partition))
def test_4_sums_of_two_types_lose_neither_imaginary_parts_nor_digits(
    ranks: int, partition: Partition
) -> None:
    def run() -> None:
        a, b = numbers(6, "float32"), numbers(6, "complex128", 1)
        x, y = (DistributedArray.to_dist(v, partition=partition) for v in (a, b))
        np.testing.assert_array_equal((x + y).asarray(), a + b)
        np.testing.assert_array_equal(x.add(y).asarray(), a + b)
        np.testing.assert_array_equal(x.multiply(y).asarray(), a * b)
        double = x.astype("float64")
        for found in (x + double, double + x, x * double, x - double):
            assert found.dtype == np.float64
        assert (2.0 * x).dtype == np.float32
        for lossy in (lambda: x.__iadd__(y), lambda: x.iadd(y), lambda: np.add(x, y, out=x)):
            with pytest.raises(TypeError, match="Cannot cast"):
                lossy()
        np.testing.assert_array_equal(x.asarray(), a)

    comm.virtual_ranks(ranks, run)


class ndarray(np.ndarray):  # noqa: N801
    """An array of another library, whose memory communicators take."""

    device = contextlib.nullcontext()  # type: ignore[assignment]


ndarray.__module__ = "cupy"


def test_5_masked_arrays_of_devices_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a method is called that does not exist."""
    monkeypatch.setitem(NAMESPACES["cupy"].__dict__, "xp", np)

    def run() -> None:
        whole = numbers((7, 3), "complex64")
        for axis, mask in ((0, [0, 1, 1, 0]), (1, [5, 5, 5, 7]), (0, [0, 0, 0, 0])):
            there = DistributedArray.to_dist(whole, axis=axis, mask=mask)
            x = DistributedArray.of(there.layout, there.local.view(ndarray))
            assert x.engine == "cupy"
            boxes = [box[axis] for box in there.layout.boxes]
            own = [boxes[r] for r in there.layout.members]
            pieces = [whole[(slice(None),) * axis + (slice(*ends),)] for ends in own]
            np.testing.assert_array_equal(x.asarray(masked=True), np.concatenate(pieces, axis))
            np.testing.assert_array_equal(x.asarray(), whole)

    comm.virtual_ranks(4, run)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("thin", [(1, 1, 1, 1), (2, 1, 0, 4), (0, 3, 0, 1), (5, 0, 0, 1)])
def test_6_ghost_cells_reach_over_blocks_that_are_thin_or_empty(axis: int, thin: tuple[int, ...]) -> None:
    """There a chain of messages goes through all ranks, and extents are compared along the first axis, whichever is split."""
    extent = sum(thin)
    shape = (extent, 3) if axis == 0 else (0 + 3, extent)
    whole = numbers(shape)
    shapes = [tuple(n if k == axis else shape[k] for k in range(2)) for n in thin]

    def run() -> None:
        x = DistributedArray.to_dist(whole, axis=axis, local_shapes=shapes)
        begin, end = x.layout.box[axis]
        for front in (0, 1, 2, 9):
            for back in (0, 1, 3):
                where = slice(max(0, begin - front), min(extent, end + back))
                right = whole[(slice(None),) * axis + (where,)]
                np.testing.assert_array_equal(x.add_ghost_cells(front, back), right)

    comm.virtual_ranks(4, run)


def test_6_ghost_cells_come_from_their_owners_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waits for nobody may have what others send it before it sends: no order of ranks is in it."""
    order: dict[int, list[str]] = {}

    def note(name: str) -> None:
        inner = getattr(Communicator, name)

        def call(self: Communicator, *arguments: Any) -> Any:
            order.setdefault(self.rank, []).append(name)
            return inner(self, *arguments)

        monkeypatch.setattr(Communicator, name, call)

    note("send")
    note("receive")

    def run() -> None:
        DistributedArray.to_dist(numbers((8, 5000))).add_ghost_cells(3, 0)

    comm.virtual_ranks(4, run)
    # blocks of two rows: three come from two ranks, none of them waits for a third
    assert order[0] == ["send", "send"]
    assert order[1] == ["receive", "send", "send"]
    assert order[3] == ["receive", "receive"]


def test_7_what_is_written_into_a_broadcast_array_is_the_same_everywhere() -> None:
    def run() -> None:
        c = comm.current()
        x = DistributedArray((3,), partition=Partition.BROADCAST)
        x.local_array = np.full(3, 7.0 + c.rank)
        assert x.local.tolist() == [7, 7, 7]
        x[1:] = np.full(2, 1.0 + c.rank)
        assert x.local.tolist() == [7, 1, 1]
        c.checked = True
        x.local[0] = c.rank  # the array itself is in nobody's care; in checked mode it is looked at
        with pytest.raises(LayoutError, match="differs from that of rank 0 on ranks 1, 2: assign to x"):
            x.dot(x)

    comm.virtual_ranks(3, run)


def test_8_numbers_of_python_do_not_widen_operators() -> None:
    def run() -> None:
        op = BlockDiag([np.eye(2, dtype="float32")])
        x = DistributedArray.to_dist(np.ones(2, "float32"))
        for a, dtype in (
            (2.0, "f4"),
            (2, "f4"),
            (np.float32(2), "f4"),
            (np.float64(2), "f8"),
            (2j, "c8"),
            (True, "f4"),
        ):
            assert (a * op).dtype == dtype
            assert (op * a).dtype == dtype
            assert ((a * op) @ x).dtype == dtype
        assert (op + BlockDiag([np.eye(2)])).dtype == np.float64
        assert (op @ BlockDiag([np.eye(2)])).dtype == np.float64

    comm.virtual_ranks(1, run)


@pytest.mark.parametrize("partition", list(Partition))
def test_9_numpys_functions_of_whole_arrays_are_refused(partition: Partition) -> None:
    """There np.sum(x) is the sum of something."""

    def run() -> None:
        x = DistributedArray.to_dist(numbers(6), partition=partition)
        for call in (np.sum, np.mean, np.linalg.norm, np.max):
            with pytest.raises(LayoutError, match="does not know what is on other ranks"):
                call(x)
        with pytest.raises(LayoutError, match=r"call x.asarray\(\) on"):
            np.asarray(x)
        with pytest.raises(LayoutError, match="does not work element by element"):
            np.add.reduce(x)
        np.testing.assert_allclose(x.sum(), x.asarray().sum())

    comm.virtual_ranks(2, run)


def test_10_nothing_needs_ranks_beyond_the_communicator(tmp_path: Any) -> None:
    """There MPI.COMM_WORLD stands in 13 places. The last of five ranks leaves at once."""
    whole = numbers((8, 12))

    def run() -> None:
        group = comm.current().split(0 if comm.current().rank < 4 else None)
        if group is None:
            return
        x = DistributedArray.to_dist(whole, group)
        flat = x.ravel()
        block = numbers((3, 24), seed=group.rank)
        tall, spread = np.vstack([block] * 4), DistributedArray.to_dist(whole.reshape(-1), group)
        replicated = DistributedArray.to_dist(whole[0], group, partition=Partition.BROADCAST)
        diagonal = pylops_mpi.MPIBlockDiag([pylops_ops(tall)], group)
        for op, u in (
            (diagonal, flat),
            (pylops_mpi.MPIVStack([pylops_ops(block[:, :12])], group), replicated),
            (pylops_mpi.MPIHStack([pylops_ops(block)], group), spread),
            (pylops_mpi.MPIFirstDerivative(whole.shape), flat),
            (pylops_mpi.MPISecondDerivative(whole.shape), flat),
            (pylops_mpi.MPILaplacian(whole.shape), flat),
            (pylops_mpi.MPIGradient(whole.shape), flat),
            (2 * diagonal.H @ diagonal, flat),
        ):
            v = op @ u
            parts = list(v) if isinstance(v, StackedDistributedArray) else [v]
            assert all(part.communicator is group for part in parts)
            assert dottest(op, u, v)
        halo = Halo(whole.shape, 1, (2, 2), group)
        grid = DistributedArray.to_dist(whole, group, axis=(0, 1), grid=(2, 2)).ravel()
        assert dottest(halo, grid, halo @ grid)
        product = pylops_mpi.MPIMatrixMult(
            whole[2 * (group.rank // 2) : 2 * (group.rank // 2) + 2, :6], 4, base_comm=group
        )
        assert product.shape[0] > 0
        fourier = pylops_mpi.signalprocessing.MPIFFT2D(whole.shape, base_comm=group)
        assert dottest(fourier, flat, fourier @ flat)
        data = diagonal @ flat
        assert cgls(diagonal, data, maxiter=3).x.communicator is group
        assert linops.Identity(5).shape == (5, 5)
        stack = StackedDistributedArray([x, x])
        assert math.isclose(stack.norm(), math.sqrt(2) * np.linalg.norm(whole))
        np.testing.assert_array_equal(x.redistribute(1).asarray(), whole)
        save(tmp_path / "x.npy", x)
        assert x.zeros_like().communicator is group

    def pylops_ops(matrix: np.ndarray) -> Any:
        import pylops

        return pylops.MatrixMult(matrix)

    comm.virtual_ranks(5, run)


def test_11_migration_in_single_precision_stays_there() -> None:
    """There the example's vectors are of twice the operator's precision on devices."""

    def run() -> None:
        c = comm.current()
        z, x, t = np.arange(7) * 4.0, np.arange(9) * 4.0, np.arange(60) * 0.004
        sources = np.vstack(([4.0 + 4 * c.rank], [4.0]))
        receivers = np.vstack((np.arange(3) * 8.0, np.full(3, 4.0)))
        wavelet = np.array([0.5, 1, 0.5], "float32")
        Op = VStack([Kirchhoff(z, x, t, sources, receivers, 1000.0, wavelet, 1, dtype="float32")])
        assert Op.dtype == np.float32
        m = DistributedArray.to_dist(numbers(63, "float32"), partition=Partition.BROADCAST)
        d = Op @ m
        found = cgls(Op, d, maxiter=5)
        assert [v.dtype for v in (d, Op.H @ d, found.x)] == [np.float32] * 3
        assert (Op @ m.astype("float64")).dtype == np.float64
        assert found.cost[-1] < 0.2 * found.cost[0]

    comm.virtual_ranks(2, run)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_12_benchmarks_survive_exceptions_and_are_right_on_a_part_of_the_ranks() -> None:
    """There an exception leaves marks behind, and all ranks of the world are waited for."""
    assert (pylops_mpi.utils.benchmark, pylops_mpi.utils.mark) == (benchmark, mark)
    logger, kept = logging.Logger("defects"), _Kept()
    logger.addHandler(kept)

    @benchmark(logger=logger)
    def fails(x: DistributedArray) -> None:
        mark("before")
        x.dot(x)
        raise KeyError("lost")

    @benchmark(logger=logger)
    def works(x: DistributedArray) -> Any:
        mark("dot product")
        return x.dot(x)

    def run() -> None:
        group = comm.current().split(0 if comm.current().rank < 2 else None)
        if group is None:
            return  # nobody waits for this one
        x = DistributedArray.to_dist(np.ones(4), group)
        with pytest.raises(KeyError, match="lost"):
            fails(x)
        assert works(x) == 4
        with pytest.raises(RuntimeError, match="outside of a benchmarked region"):
            mark("nothing is left over")

    with benchmarks(True):
        comm.virtual_ranks(3, run)
    first, second = kept.texts
    assert first.startswith("fails (ended by an exception)")
    assert [line.strip().split("  ")[0] for line in second.splitlines()] == ["works", "dot product"]


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_13_the_adjoint_of_halos_is_one(dtype: str) -> None:
    """There it crops. Scripts that ask for MPIHalo get that, and the dot test says so."""

    def run() -> None:
        dims, grid = (6, 7), (2, 2)
        for halo in (1, (1, 2), (0, 1, 2, 3)):
            op = Halo(dims, halo, grid, dtype=dtype)
            u = DistributedArray.to_dist(numbers(dims, dtype), axis=(0, 1), grid=grid).ravel()
            v = op @ u
            v[:] = numbers(v.local_shape, dtype, seed=v.rank)
            assert dottest(op, u, v, rtol=1e-5 if dtype == "complex64" else 1e-12)
        cropping = pylops_mpi.MPIHalo(dims, 1, grid, dtype=dtype)
        assert not dottest(cropping, u, cropping @ u, raiseerror=False)

    comm.virtual_ranks(4, run)


# --- traps of its communicators -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_products_of_complex_numbers_are_right_and_extremes_are_refused(dtype: str) -> None:
    """There complex numbers are pairs of real ones to NCCL, whatever the operation."""

    def run() -> None:
        c = comm.current()
        mine = numbers(5, dtype, seed=c.rank)
        product = np.prod([numbers(5, dtype, seed=r) for r in range(c.size)], axis=0)
        np.testing.assert_allclose(c.all_reduce(mine, op="prod"), product, rtol=1e-5)
        for op in ("max", "min"):
            with pytest.raises(PlanError, match=f"'{op}' is not defined for {dtype}"):
                c.all_reduce(mine, op=op)
        x = DistributedArray.to_dist(mine, base_comm=c)
        for call in (x.max, x.min):
            with pytest.raises(ShapeError, match="have no order"):
                call()

    comm.virtual_ranks(3, run)


@pytest.mark.parametrize("dtype", ["float16", "int16", "bool", "uint8", "int64", "complex64"])
def test_types_that_nccl_lacks_there_are_gathered_and_moved(dtype: str) -> None:
    whole = (numbers((7, 5), "float64") * 3).astype(dtype)

    def run() -> None:
        x = DistributedArray.to_dist(whole)
        np.testing.assert_array_equal(x.asarray(), whole)
        np.testing.assert_array_equal(x.redistribute(1).asarray(), whole)
        replicated = DistributedArray.to_dist(whole, partition=Partition.BROADCAST)
        replicated[:] = whole[::-1]
        np.testing.assert_array_equal(replicated.local, whole[::-1])

    comm.virtual_ranks(3, run)


def test_gathering_uneven_parts_moves_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, "all_gather", "all_reduce", "gather_bytes")
    whole = numbers((10, 3))

    def run() -> None:
        x = DistributedArray.to_dist(whole, local_shapes=[(7, 3), (0, 3), (3, 3)])
        np.testing.assert_array_equal(x.asarray(), whole)

    comm.virtual_ranks(3, run)
    assert calls == {"all_gather": 1, "all_reduce": 0, "gather_bytes": 0}


def test_shapes_of_all_parts_are_known_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """There `local_shapes` is a collective, and constructors check by an all-reduce."""
    calls = counted(
        monkeypatch, "all_gather", "all_reduce", "gather_bytes", "broadcast_bytes", "broadcast", "send"
    )

    def run() -> None:
        x = DistributedArray.to_dist(numbers((7, 3)))
        assert x.local_shapes == [(3, 3), (2, 3), (2, 3)]
        y = DistributedArray(x.global_shape, local_array=x.local) + x
        assert (2 * y - x.copy()).layout is x.layout
        FirstDerivative((7, 3))

    comm.virtual_ranks(3, run)
    assert not any(calls.values())


# --- traps of its tests ---------------------------------------------------------------------------------------


def test_dot_products_are_sums_of_the_parts_in_the_order_that_scripts_expect() -> None:
    """Comparisons there are to 1e-14: NumPy on each part, then one sum over ranks."""
    a, b = numbers(1001, "complex128"), numbers(1001, "complex128", 1)

    def run() -> None:
        x, y = DistributedArray.to_dist(a), DistributedArray.to_dist(b)
        np.testing.assert_allclose(x.dot(y), np.dot(a, b), rtol=1e-14)
        np.testing.assert_allclose(x.dot(y, vdot=True), np.vdot(a, b), rtol=1e-14)
        np.testing.assert_allclose(x.norm(), np.linalg.norm(a), rtol=1e-14)

    comm.virtual_ranks(4, run)


def test_the_engine_of_an_array_may_be_set_as_its_tests_do() -> None:
    x = DistributedArray(4)
    x._engine = "cupy"
    assert x.engine == "cupy"
    y = DistributedArray(4)
    with pytest.raises(ValueError, match="Stacked arrays have different engines"):
        StackedDistributedArray([x, y])


def test_importing_a_module_does_not_put_it_into_the_place_of_a_class() -> None:
    text = """
from jali import compat
compat.stand_in("pylops_mpi")
import pylops_mpi, pylops_mpi.DistributedArray, pylops_mpi.utils.benchmark
assert isinstance(pylops_mpi.DistributedArray, type)
import sys
assert sys.modules["pylops_mpi.DistributedArray"].DistributedArray is pylops_mpi.DistributedArray
from pylops_mpi.basicoperators.VStack import MPIVStack
assert MPIVStack is pylops_mpi.MPIVStack
"""
    run_python(text)


def test_what_its_tests_leave_out_works() -> None:
    """Deconvolution, pictures, arrays that each rank changes, ghost cells as scripts call them."""
    pytest.importorskip("matplotlib").use("Agg")
    G = numbers((3, 4, 5), "complex64")

    def run() -> None:
        nt, nv = 5, 2
        mdc = pylops_mpi.waveeqprocessing.MPIMDC(
            G[comm.current().rank][None], nt=nt, nv=nv, nfreq=3, twosided=True
        )
        u = DistributedArray.to_dist(numbers(mdc.shape[1], "float32"), partition=Partition.BROADCAST)
        v = DistributedArray.to_dist(numbers(mdc.shape[0], "float32", 1), partition=Partition.BROADCAST)
        assert dottest(mdc, u, v, rtol=1e-4)
        own = DistributedArray((3,), partition=Partition.UNSAFE_BROADCAST)
        own[:] = own.rank
        assert own.local.tolist() == [own.rank] * 3
        x = DistributedArray.to_dist(np.arange(6.0))
        assert x.add_ghost_cells(cells_front=1).tolist() == list(
            range(max(0, 2 * x.rank - 1), 2 * x.rank + 2)
        )

    comm.virtual_ranks(3, run)
    assert pylops_mpi.plot_distributed_array(DistributedArray.to_dist(numbers((4, 4)))) is not None


# --- beyond 2 GiB and 2^31 elements ---------------------------------------------------------------------------


def test_layouts_count_beyond_32_bits() -> None:
    """Of sizes alone; there counts are ints of C."""
    shape = (1 << 20, (1 << 14) + 3)
    elements = math.prod(shape)
    assert elements > 1 << 33

    def run() -> None:
        c = comm.current()
        rows, columns = layout_of(c, shape), layout_of(c, shape, axis=1)
        grid = layout_of(c, shape, axis=(0, 1), grid=(3, 1))
        for layout in (rows, columns, grid):
            assert sum(math.prod(shape_of(box)) for box in layout.boxes) == elements
        counts = _counts(rows.boxes, columns.boxes)
        stays = sum(
            math.prod(min(a[1], b[1]) - max(a[0], b[0]) for a, b in zip(p, q, strict=True))
            for p, q in zip(rows.boxes, columns.boxes, strict=True)
        )
        assert counts.sum() == elements - stays
        assert counts.max() > 1 << 29
        x = DistributedArray.of(rows, np.broadcast_to(np.float32(1), rows.local_shape))  # no memory
        assert x.elements == elements
        flat = layout_of(c, elements, local_shapes=[(math.prod(one),) for one in rows.local_shapes])
        assert flat.boxes[-1] == ((rows.boxes[-1][0][0] * shape[1], elements),)
        stack = StackedDistributedArray([x, x])
        assert stack.elements == 2 * elements
        assert FirstDerivative(shape).shape == (elements, elements)
        assert Halo(shape, 2, (3, 1)).shape[1] == elements

    comm.virtual_ranks(3, run)


@pytest.mark.parametrize("name", ["ista", "fista"])
def test_steps_that_are_too_long_end_with_an_infinite_cost_as_there(name: str) -> None:
    def run() -> None:
        A = BlockDiag([np.diag([1.0, 2.0, 3.0])])
        y = DistributedArray.to_dist(np.ones(3 * comm.current().size))
        with np.errstate(all="ignore"):
            cost = getattr(pylops_mpi, name)(A, y, y.zeros_like(), niter=100, alpha=1e5)[2]
        assert not math.isfinite(cost[-1])
        assert np.all(np.isfinite(cost[:-1]))

    comm.virtual_ranks(2, run)
