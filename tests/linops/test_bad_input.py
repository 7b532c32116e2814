"""Arrays, operators and solvers that are given what makes no sense: clear errors on every rank, no hang.

More of these stand beside what they are about: shapes and partitions of arrays in tests/arrays/test_distributed_arrays.py, what each
operator refuses in its own file here, files in tests/arrays/test_formats_of_files.py.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
from programs import need_mpi, on_ranks, run_program

from jali import comm
from jali.array_namespaces import NAMESPACES
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.errors import LayoutError, ParameterError, RankError, ShapeError
from jali.linops import (
    FFT,
    BlockDiag,
    Diagonal,
    FirstDerivative,
    Fredholm1,
    Gradient,
    Halo,
    HStack,
    Identity,
    Laplacian,
    LinearOperator,
    MatrixMult,
    NonStationaryConvolve1D,
    Restriction,
    SecondDerivative,
    Sliding,
    Transpose,
    VStack,
    Zero,
    aslinearoperator,
    dottest,
    from_functions,
)
from jali.solvers import CG, cgls, fista

pytestmark = pytest.mark.timeout(120)


def on_all(ranks: int, error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    """Every rank raises it, with the same words but for its own number and shapes."""

    def run() -> str:
        with pytest.raises(error, match=words) as caught:
            call()
        return type(caught.value).__name__

    assert len(set(comm.virtual_ranks(ranks, run))) == 1


# --- shapes ---------------------------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[[], LinearOperator]] = {
    "FirstDerivative": lambda: FirstDerivative((4, 3)),
    "Laplacian": lambda: Laplacian((4, 3)),
    "Gradient": lambda: Gradient((4, 3)),
    "Identity": lambda: Identity(12),
    "Restriction": lambda: Restriction((12,), [0, 5]),
    "FFT": lambda: FFT((4, 3)),
    "BlockDiag": lambda: BlockDiag([np.ones((3, 12 // comm.current().size))]),
    "VStack": lambda: VStack([np.ones((3, 12))]),
    "HStack": lambda: HStack([np.ones((3, 12 // comm.current().size))]),
    "functions": lambda: from_functions(lambda x: x, lambda x: x, (12, 12)),
    "sum": lambda: FirstDerivative((4, 3)) + 2 * Identity(12),
    "product": lambda: FirstDerivative((4, 3)) @ Identity(12),
    "adjoint": lambda: FirstDerivative((4, 3)).H,
}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", OPERATORS)
def test_vectors_of_another_size_are_refused(name: str, ranks: int) -> None:
    for partition in (Partition.SCATTER, Partition.BROADCAST):
        for elements in (11, 13, 0):
            on_all(
                ranks,
                ShapeError,
                rf"has {elements} elements \(global shape \({elements},\)\), not 12",
                lambda p=partition, n=elements: OPERATORS[name]() @ DistributedArray(n, partition=p),
            )


ONES = np.ones((2, 6, 6))
OF_ONE_ARRAY: dict[str, Callable[[], LinearOperator]] = {
    **{
        name: OPERATORS[name]
        for name in (
            "FirstDerivative",
            "Laplacian",
            "Gradient",
            "Restriction",
            "FFT",
            "BlockDiag",
            "VStack",
            "sum",
            "adjoint",
        )
    },
    "SecondDerivative": lambda: SecondDerivative((4, 3)),
    "Halo": lambda: Halo((4, 3), 0),
    "Fredholm1": lambda: Fredholm1(ONES[: 2 // comm.current().size]),
    "MatrixMult": lambda: MatrixMult(ONES[0, : 6 // comm.current().size], 2, kind="block"),
    "NonStationaryConvolve1D": lambda: NonStationaryConvolve1D((4, 3), np.ones((2, 3)), [0, 1]),
    "Sliding": lambda: Sliding(scipy.sparse.linalg.aslinearoperator(np.eye(4)), 12, 4, 0),
    "Transpose": lambda: Transpose((4, 3), (1, 0)),
    "Zero": lambda: Zero((4, 3)),
    "Diagonal": lambda: Diagonal(DistributedArray.to_dist(np.ones(12))),
    "functions of parts": lambda: from_functions(lambda x: x, lambda x: x, (12, 12), parts=True),
    "matrix": lambda: aslinearoperator(np.eye(12)),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_stacks_are_refused_by_operators_of_one_array(name: str, ranks: int) -> None:
    def call() -> Any:
        half = DistributedArray(6)
        return OF_ONE_ARRAY[name]() @ StackedDistributedArray([half, half])

    on_all(ranks, ShapeError, "takes one DistributedArray, not a stack of 2", call)


def test_things_that_are_no_vectors_are_refused() -> None:
    for thing in (np.ones(12), [1.0] * 12, None, "x"):
        on_all(
            2,
            ParameterError,
            "a DistributedArray or a stack of them, not",
            lambda t=thing: FirstDerivative(12).matvec(t),
        )


def test_operators_that_do_not_fit_each_other_are_refused() -> None:
    a, b = FirstDerivative(12), FirstDerivative(7)
    on_all(2, ShapeError, "cannot add .*12x12.*7x7", lambda: a + b)
    on_all(2, ShapeError, "cannot multiply .*12x12.*7x7", lambda: a @ b)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("M is a positive whole number, not 0", lambda: MatrixMult(ONES[0], 0, kind="block")),
        ("M is a positive whole number, not -1", lambda: MatrixMult(ONES[0], -1, kind="block")),
        ("nz is a positive whole number, not 0", lambda: Fredholm1(ONES, nz=0)),
        ("nz is a positive whole number, not None", lambda: Fredholm1(ONES, nz=None)),  # type: ignore[arg-type]
        (r"nfft.* is a positive whole number, not 0", lambda: FFT((4, 3), nfft=0)),
        (
            "sampling is the distance of samples, a number that is not 0; not 0",
            lambda: FFT((4, 3), sampling=0),
        ),
        ("sampling is .* not nan", lambda: FFT((4, 3), sampling=float("nan"))),
        (
            "x is .*, not _CustomLinearOperator: jali.linops.aslinearoperator makes",
            lambda: Identity(4) @ scipy.sparse.linalg.LinearOperator((4, 4), abs, abs),
        ),
        (
            "an operator is added to operators, not to _CustomLinearOperator: jali.linops.aslinearoperator makes",
            lambda: Identity(4) + scipy.sparse.linalg.LinearOperator((4, 4), abs, abs),
        ),
        ("not ndarray: DistributedArray.to_dist makes one", lambda: Identity(4) @ np.ones(4)),
    ],
)
def test_arguments_that_make_no_sense_are_refused(words: str, call: Callable[[], Any]) -> None:
    on_all(2, ParameterError, words, call)


def test_halos_of_arrays_of_other_shapes_on_other_ranks_are_refused() -> None:
    for other in ((4, 4, 4), (4, 8)):
        on_all(
            2,
            ShapeError,
            "dims of Halo are the same on all ranks, not",
            lambda dims=other: Halo(dims if comm.current().rank else (4, 4), 1),
        )


# --- communicators --------------------------------------------------------------------------------------------


def test_vectors_of_different_communicators_are_not_mixed() -> None:
    def run() -> None:
        other = comm.current().duplicate()
        x, y = DistributedArray.to_dist(np.arange(6.0)), DistributedArray.to_dist(np.arange(6.0), other)
        for call in (
            lambda: x + y,
            lambda: np.add(x, y),
            lambda: x.dot(y),
            lambda: x.__setitem__(slice(None), y),
            lambda: x.__iadd__(y),
            lambda: StackedDistributedArray([x]) + StackedDistributedArray([y]),
            lambda: StackedDistributedArray([x]).dot(StackedDistributedArray([y])),
            lambda: CG(Identity(6)).solve(x, y, maxiter=1),
            lambda: cgls(Identity(6), x, x0=y, maxiter=1),
        ):
            with pytest.raises(ShapeError, match="different communicators"):
                call()

    comm.virtual_ranks(2, run)


def test_operators_of_different_communicators_are_not_mixed() -> None:
    def run() -> None:
        reversed_ranks = comm.current().split(0, -comm.current().rank)
        A, B = BlockDiag([np.eye(3)]), BlockDiag([np.eye(3)], reversed_ranks)
        x = DistributedArray.to_dist(np.arange(6.0))
        for call in (lambda: B @ x, lambda: (A + B) @ x, lambda: A @ (B @ x), lambda: (B @ A) @ x):
            with pytest.raises(ShapeError, match="another communicator than the operator"):
                call()

    comm.virtual_ranks(2, run)


def test_stacks_sum_each_array_over_its_own_group() -> None:
    """Arrays with masks beside others without: not one all-reduce for what has several groups."""

    def run() -> None:
        a, b = np.arange(8.0), np.arange(4.0) + 1
        masked, plain = DistributedArray.to_dist(a, mask=[0, 0, 1, 1]), DistributedArray.to_dist(b)
        replicated = DistributedArray.to_dist(b, partition=Partition.BROADCAST)
        half = a.reshape(2, 4)[comm.current().rank // 2]
        stack = StackedDistributedArray([masked, plain, replicated])
        assert stack.dot(stack) == half @ half + 2 * (b @ b)

    comm.virtual_ranks(4, run)


# --- arrays of other libraries --------------------------------------------------------------------------------


class ndarray:  # noqa: N801
    """An array on a device, as CuPy's: NumPy does not get at it."""

    __module__ = "cupy"
    device = contextlib.nullcontext()

    def __init__(self, host: np.ndarray) -> None:
        self.host, self.shape, self.dtype, self.ndim, self.flags = (
            host,
            host.shape,
            host.dtype,
            host.ndim,
            host.flags,
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __getitem__(self, where: Any) -> Any:
        return ndarray(self.host[where])

    def reshape(self, *shape: int) -> Any:
        return ndarray(self.host.reshape(*shape))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = types.ModuleType("cupy")
    found.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setitem(NAMESPACES["cupy"].__dict__, "xp", found)
    return found


def test_arrays_of_the_host_and_of_devices_are_not_mixed(cupy: Any) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.arange(6.0))
        y = DistributedArray.of(x.layout, ndarray(x.local))
        for call in (
            lambda: x + y,
            lambda: y - x,
            lambda: x.__imul__(y),
            lambda: np.add(x, y),
            lambda: np.add(x, x, out=y),
            lambda: x.dot(y),
            lambda: y.dot(x),
            lambda: x.__setitem__(slice(None), y),
            lambda: CG(Identity(6)).solve(x, y, maxiter=1),
        ):
            with pytest.raises(
                ShapeError, match="parts of one array are of (numpy|cupy), of the other of (numpy|cupy)"
            ):
                call()
        with pytest.raises(ShapeError, match="Stacked arrays have different engines: cupy, numpy"):
            StackedDistributedArray([x, y])
        assert x.engine == "numpy"
        x.local_array = y.local
        assert x.engine == "cupy"

    comm.virtual_ranks(2, run)


def test_matrices_of_the_host_do_not_take_vectors_of_devices(cupy: Any) -> None:
    def run() -> None:
        A = BlockDiag([np.eye(3)])
        y = DistributedArray.of(DistributedArray(3 * comm.current().size).layout, ndarray(np.ones(3)))
        for call in (lambda: A @ y, lambda: A.H @ y):
            with pytest.raises(
                ParameterError, match=r"matrix of shape \(3, 3\) is of numpy, the vector of cupy"
            ):
                call()

    comm.virtual_ranks(2, run)


def test_parts_that_are_no_arrays_are_refused() -> None:
    for thing in ([1.0, 2.0, 3.0], memoryview(b"123"), 3, "abc", None):
        words = f"an array of numpy, cupy, torch, jax, jali, not {type(thing).__name__}"
        on_all(2, ParameterError, words, lambda t=thing: DistributedArray.to_dist(t))
        on_all(2, ParameterError, words, lambda t=thing: setattr(DistributedArray(6), "local_array", t))
        if thing is not None:
            on_all(2, ParameterError, words, lambda t=thing: DistributedArray((6,), local_array=t))


# --- arrays that all ranks have -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "apply",
    [
        lambda x: VStack([np.eye(4)]) @ x,
        lambda x: HStack([np.eye(4)]).H @ x,
        lambda x: Identity(4) @ x,
        lambda x: FirstDerivative(4) @ x,
        lambda x: from_functions(lambda v: v, lambda v: v, (4, 4)) @ x,
        lambda x: Identity(4) @ StackedDistributedArray([x]),
        lambda x: cgls(Identity(4), x, maxiter=2),
        lambda x: StackedDistributedArray([x]).norm(),
        lambda x: x.redistribute(0),
    ],
)
def test_in_checked_mode_arrays_that_differ_between_ranks_are_refused(apply: Callable[[Any], Any]) -> None:
    def run() -> None:
        c = comm.current()
        x = DistributedArray(4, partition=Partition.BROADCAST)
        x[:] = 1
        c.checked = True
        x.local[2] += c.rank == 1
        with pytest.raises(LayoutError, match="differs from that of rank 0 on rank 1: assign to x"):
            apply(x)

    comm.virtual_ranks(3, run)


# --- real and complex -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", list(Partition))
@pytest.mark.parametrize(
    "assign",
    [
        lambda x, z: x.__setitem__(slice(None), z),
        lambda x, z: x.__setitem__(slice(None), z.local),
        lambda x, z: x.__setitem__(0, 1j),
        lambda x, z: x.__setitem__(0, np.complex64(1)),
        lambda x, z: x.__setitem__(slice(0, 2), [1, 1j]),
        lambda x, z: x.global_index.__setitem__(slice(None), z),
        lambda x, z: x.global_index.__setitem__(slice(0, 2), np.array([1, 1j])),
        lambda x, z: x.global_index.__setitem__(0, 1j),
    ],
)
def test_assigning_complex_numbers_to_real_arrays_is_refused(
    partition: Partition, assign: Callable[..., None]
) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.arange(6.0), partition=partition)
        z = DistributedArray.to_dist(np.arange(6) * 1j, partition=partition)
        with pytest.raises(ParameterError, match="type float64 would lose the imaginary parts"):
            assign(x, z)
        assert x.asarray().tolist() == list(range(6))
        x[:] = z.real

    comm.virtual_ranks(2, run)


def test_solvers_begin_with_what_can_hold_the_solution() -> None:
    def run() -> None:
        real, imaginary = DistributedArray.to_dist(np.ones(6)), DistributedArray.to_dist(np.ones(6) * 1j)
        for found in (
            cgls(Identity(6), imaginary, x0=real, maxiter=3),
            CG(Identity(6)).solve(imaginary, real, maxiter=3),
            fista(Identity(6), imaginary, real, maxiter=99, alpha=1.0, eps=1e-9),
        ):
            assert np.allclose(found.x.asarray(), 1j)
            assert np.all(real.asarray() == 1)
        assert np.allclose(cgls(Identity(6), imaginary, maxiter=3).x.asarray(), 1j)

    comm.virtual_ranks(2, run)


def test_real_operators_that_give_complex_numbers_are_refused() -> None:
    def run() -> None:
        liar = scipy.sparse.linalg.LinearOperator((3, 3), lambda x: 1j * x, lambda x: 1j * x, dtype="float64")
        x = DistributedArray.to_dist(np.ones(3 * comm.current().size))
        for call in (lambda: BlockDiag([liar]) @ x, lambda: BlockDiag([liar]).H @ x):
            with pytest.raises(ParameterError, match="would lose its imaginary part in float64"):
                call()

    comm.virtual_ranks(2, run)


# --- ranks that raise -----------------------------------------------------------------------------------------


class Failing(LinearOperator):
    """On one rank, in its second application."""

    def __init__(self, n: int) -> None:
        super().__init__(shape=(n, n))
        self.applied, self.diagonal = 0, DistributedArray.to_dist(np.arange(1.0, n + 1))

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        self.applied += 1
        if self.applied == 2 and x.rank == 1:
            raise ZeroDivisionError("nothing left")
        return x * self.diagonal

    _rmatvec = LinearOperator._matvec


@pytest.mark.parametrize("kind", ["derived", "functions", "product"])
def test_a_rank_that_raises_inside_an_operator_stops_a_solver_on_all(kind: str) -> None:
    received: list[str] = []

    def run() -> None:
        failing = Failing(6)
        op: LinearOperator = failing
        if kind == "functions":
            op = from_functions(failing.matvec, failing.matvec, (6, 6))
        elif kind == "product":
            op = 2 * (Identity(6) @ failing)
        try:
            CG(op).solve(DistributedArray.to_dist(np.arange(6.0) + 1), maxiter=50, rtol=0)
        except RankError as error:
            received.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError, match="nothing left"):
        comm.virtual_ranks(3, run)
    assert len(received) == 2
    assert all("rank 1 failed: ZeroDivisionError: nothing left" in text for text in received)


SCRIPT = """
import numpy as np
from jali import comm
from jali.arrays import DistributedArray
from jali.linops import BlockDiag, from_functions
from jali.solvers import cgls

world = comm.current()
applied = []

def broken(x):
    applied.append(1)
    if len(applied) == 3 and world.rank == 1:
        raise ZeroDivisionError("nothing left")
    return 2 * x

op = from_functions(broken, broken, (8, 8))
cgls(op, DistributedArray.to_dist(np.arange(8.0) + 1), maxiter=50, rtol=0)
print("not here")
"""


@pytest.mark.mpi
def test_a_rank_that_raises_inside_an_operator_ends_a_job_of_mpi_with_its_cause(tmp_path: Any) -> None:
    need_mpi()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = run_program(on_ranks(2, sys.executable, script), status=None, timeout=100)
    assert ended.returncode != 0
    assert "not here" not in ended.stdout
    assert ended.stderr.count("ZeroDivisionError: nothing left") >= 2
    assert "jali: rank 0 stopped: rank 1 failed: ZeroDivisionError: nothing left" in ended.stderr


# --- adjoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_wrong_adjoint_is_reported_with_numbers_on_all_ranks(ranks: int) -> None:
    wrong = {
        "scaled": lambda: from_functions(lambda x: 2 * x, lambda x: 3 * x, (6, 6)),
        "cropped": lambda: Halo(6, 1) @ from_functions(lambda x: x, lambda x: 2 * x, (6, 6)),
        "not transposed": lambda: from_functions(
            lambda x: FirstDerivative(6, kind="forward") @ x,
            lambda x: FirstDerivative(6, kind="forward") @ x,
            (6, 6),
        ),
    }
    for make in wrong.values():

        def run(make: Callable[[], LinearOperator] = make) -> str:
            op = make()
            u = DistributedArray.to_dist(np.arange(6.0) ** 2)
            v = op @ u
            v[:] = np.arange(v.local_shape[0]) + v.rank
            with pytest.raises(
                AssertionError, match=r"they differ by [0-9.]+, which is 0\.\d+ of the larger one"
            ) as caught:
                dottest(op, u, v)
            return str(caught.value)

        assert len(set(comm.virtual_ranks(ranks, run))) == 1
