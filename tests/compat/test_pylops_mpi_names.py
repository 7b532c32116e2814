"""jali.compat.pylops_mpi has the modules, names, arguments and defaults of pylops-mpi 0.8.0; no download, no MPI."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python

pytest.importorskip("pylops")

import jali.compat.pylops_mpi as pylops_mpi
from jali import arrays, comm, compat, linops, solvers
from jali.errors import ParameterError

ROWS = [
    line
    for line in (Path(__file__).parent / "pylops_mpi_interface.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
MODULES = sorted({row.split()[0] for row in ROWS})
ALONE = {"x", "y", "dist_array", "stacked_array"}
PARTS = [
    "DistributedArray", "LinearOperator", "StackedLinearOperator", "basicoperators.VStack", "basicoperators.FirstDerivative",
    "optimization.basic", "optimization.sparsity", "utils.benchmark", "utils.dottest", "plotting.plotting",
    "proximal.ProxOperator", "proximal.optimization.primal", "signalprocessing.FFTND", "waveeqprocessing.MDC",
]  # fmt: skip


def module(name: str) -> Any:
    return sys.modules[f"jali.compat.pylops_mpi.{name}"]


def arguments_of(text: str) -> list[tuple[str, Any]]:
    """Names and defaults of a list of arguments."""
    found = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
    defaults = [inspect.Parameter.empty] * (len(found.args) - len(found.defaults)) + [
        arrays.Partition.SCATTER if isinstance(node, ast.Attribute) else ast.literal_eval(node)
        for node in found.defaults
    ]
    return list(zip([arg.arg for arg in found.args], defaults, strict=True))


def same(ours: Any, theirs: Any) -> bool:
    if theirs is inspect.Parameter.empty:
        return True  # who had to give it may leave it out
    if theirs in ("float64", "complex128"):
        return ours is not None and np.dtype(ours) == theirs
    return ours == theirs or (ours is None and theirs == {})


@pytest.mark.parametrize("row", ROWS)
def test_what_scripts_write_is_understood(row: str) -> None:
    where, name, listed = re.fullmatch(r"(\S+) ([\w.]+)(?:\((.*)\))?", row).groups()  # type: ignore[union-attr]
    thing = module(where)
    for part in name.split("."):
        if not hasattr(thing, part) and part in ("shape", "dims", "dimsd"):
            return  # attributes of operators
        thing = getattr(thing, part)
    if listed is None:
        return
    ours = [p for p in inspect.signature(thing).parameters.values() if p.name != "self" or "." not in name]
    positional = [p for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    theirs = arguments_of(listed)
    for number, (argument, default) in enumerate(theirs):
        assert number < len(positional), f"argument {argument} is missing in {inspect.signature(thing)}"
        found = positional[number]
        assert found.name == argument or {found.name, argument} <= ALONE, inspect.signature(thing)
        assert same(found.default, default), f"default of {argument}: {found.default!r}, not {default!r}"
    for extra in positional[len(theirs) :]:
        assert extra.default is not inspect.Parameter.empty, f"{extra.name} has to be given"
    if "**kwargs" in listed:
        assert any(p.kind is p.VAR_KEYWORD for p in ours)


def test_names_at_the_top_are_those_of_the_submodules() -> None:
    for name in (
        *(
            "DistributedArray",
            "Partition",
            "StackedDistributedArray",
            "MPILinearOperator",
            "asmpilinearoperator",
        ),
        *("MPIStackedLinearOperator", "MPIBlockDiag", "MPIStackedBlockDiag", "MPIVStack", "MPIStackedVStack"),
        *(
            "MPIHStack",
            "MPIFirstDerivative",
            "MPISecondDerivative",
            "MPILaplacian",
            "MPIGradient",
            "MPIMatrixMult",
        ),
        *(
            "MPIHalo",
            "cg",
            "cgls",
            "CG",
            "CGLS",
            "ista",
            "fista",
            "MPIProxOperator",
            "plot_distributed_array",
        ),
        "plot_local_arrays",
    ):
        assert name in pylops_mpi.__all__
        assert callable(getattr(pylops_mpi, name))
    for name in (
        "basicoperators",
        "optimization",
        "plotting",
        "signalprocessing",
        "waveeqprocessing",
        "proximal",
        "utils",
    ):
        assert inspect.ismodule(getattr(pylops_mpi, name))
    assert pylops_mpi.__version__ == "0.8.0"
    for name in ("MPIFredholm1", "MPINonStationaryConvolve1D", "MPIFFT2D", "MPIFFTND"):
        assert callable(getattr(pylops_mpi.signalprocessing, name))
    for name in ("MPIL2", "MPIL21", "MPIProxOperator", "ProximalGradient", "ADMML2", "PrimalDual"):
        assert callable(getattr(pylops_mpi.proximal, name))
    for name in ("dottest", "benchmark", "mark", "nccl_enabled", "fftshift_nd", "ifftshift_nd"):
        assert hasattr(pylops_mpi.utils, name)


def test_they_are_jalis_own() -> None:
    assert pylops_mpi.DistributedArray is arrays.DistributedArray
    assert pylops_mpi.MPILinearOperator is linops.LinearOperator
    assert issubclass(pylops_mpi.MPIFirstDerivative, linops.LinearOperator)
    assert issubclass(pylops_mpi.MPIStackedVStack, pylops_mpi.MPIStackedLinearOperator)
    assert issubclass(pylops_mpi.CG, solvers.CG)


def test_importing_a_submodule_leaves_classes_and_functions_in_their_places() -> None:
    text = """
import importlib, sys
import jali.compat.pylops_mpi as p
before = {name: getattr(p, name) for name in p.__all__}
for name in sys.argv[1].split():
    importlib.import_module("jali.compat.pylops_mpi." + name)
import jali.compat.pylops_mpi.DistributedArray
from jali.compat.pylops_mpi.basicoperators.FirstDerivative import MPIFirstDerivative
from jali.compat.pylops_mpi.utils.benchmark import benchmark, mark
from jali.compat.pylops_mpi.utils.dottest import dottest
assert isinstance(p.DistributedArray, type), p.DistributedArray
assert p.MPIFirstDerivative is MPIFirstDerivative
assert p.utils.benchmark is benchmark and p.utils.dottest is dottest
assert all(getattr(p, name) is value for name, value in before.items())
"""
    run_python(text, " ".join(MODULES))


def test_it_stands_in_for_the_library_in_scripts_that_cannot_be_changed() -> None:
    text = """
from jali.compat import stand_in
stand_in("pylops_mpi")
import pylops_mpi
import pylops_mpi.basicoperators.VStack
from pylops_mpi.DistributedArray import local_split
from pylops_mpi.optimization.eigs import power_iteration
import jali
assert pylops_mpi.DistributedArray is jali.arrays.DistributedArray
assert pylops_mpi.MPIVStack is pylops_mpi.basicoperators.VStack.MPIVStack
stand_in("pylops_mpi")
"""
    run_python(text)


def test_it_says_when_it_cannot_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="stands in for pylops_mpi, not for 'numpy'"):
        compat.stand_in("numpy")
    monkeypatch.setitem(sys.modules, "pylops_mpi", sys)
    with pytest.raises(ParameterError, match="imported already"):
        compat.stand_in("pylops_mpi")


def test_helpers_of_communication_move_arrays() -> None:
    utils = pylops_mpi.utils

    def program() -> None:
        ranks = comm.current()
        me, size = ranks.rank, ranks.size
        mine = np.full((me + 1, 2), me, float)
        parts = utils._mpi.mpi_allgather(ranks, mine)
        assert [p.shape for p in parts] == [(r + 1, 2) for r in range(size)]
        assert all(np.all(p == r) for r, p in enumerate(parts))
        assert utils._mpi.mpi_allreduce(ranks, np.array([me, 1j])).tolist() == [
            size * (size - 1) / 2,
            size * 1j,
        ]
        assert (
            utils._nccl.nccl_allreduce(utils._nccl.initialize_nccl_comm(), np.array([me]), op="max")
            == size - 1
        )
        values = np.full(3, me, float)
        assert utils._mpi.mpi_bcast(ranks, values, root=1) is values
        assert values.tolist() == [1, 1, 1]
        got = utils._mpi.mpi_sendrecv(
            ranks, np.full(2, me, float), np.empty(2), dest=(me + 1) % size, source=(me - 1) % size
        )
        assert got.tolist() == [(me - 1) % size] * 2
        whole = utils._nccl.nccl_asarray(ranks, mine.T.copy(), [(2, r + 1) for r in range(size)], 1)
        assert whole.shape == (2, size * (size + 1) // 2)
        assert utils._nccl.nccl_allgather(ranks, np.full(2, me)).tolist() == [
            r for r in range(size) for _ in range(2)
        ]
        padded, into = utils._nccl._prepare_allgather_inputs_nccl(
            mine, [(r + 1, 2) for r in range(size)], "numpy"
        )
        gathered = utils._nccl.nccl_allgather(ranks, padded, into)
        chunks = utils._common._unroll_allgather_recv(
            gathered, padded.shape, [(r + 1, 2) for r in range(size)]
        )
        assert all(np.array_equal(a, b) for a, b in zip(chunks, parts, strict=True))
        group = utils._nccl.nccl_split([r % 2 for r in range(size)])
        assert group.size == len(range(me % 2, size, 2))

    comm.virtual_ranks(3, program)


def test_functions_of_operators_get_arrays_and_give_vectors() -> None:
    class Twice(pylops_mpi.MPILinearOperator):  # type: ignore[misc,name-defined]
        """As scripts derive operators."""

        def __init__(self, dims: tuple[int, ...]) -> None:
            super().__init__(shape=(np.prod(dims), np.prod(dims)), dims=dims, dimsd=dims, dtype=np.float64)

        @pylops_mpi.utils.decorators.reshaped
        def _matvec(self, x: Any) -> Any:
            assert x.global_shape == self.dims
            assert x.local_shape[1:] == self.dims[1:]
            return x * 2

        @pylops_mpi.utils.decorators.reshaped(forward=False)
        def _rmatvec(self, x: Any) -> Any:
            assert x.global_shape == self.dimsd
            return x * 2

    def program() -> None:
        x = arrays.DistributedArray.to_dist(np.arange(20.0))
        A = Twice((5, 4))
        for y in (A @ x, A.H @ x):
            assert y.global_shape == (20,)
            assert np.array_equal(y.asarray(), 2 * np.arange(20.0))

    comm.virtual_ranks(3, program)


@pytest.mark.parametrize("shape", [(4, 6), (5, 7, 3)])
@pytest.mark.parametrize("axes", [None, 0, (0, 1), (-1,)])
def test_frequencies_are_shifted_as_numpy_does(shape: tuple[int, ...], axes: Any) -> None:
    whole = np.random.default_rng(1).normal(size=shape)

    def program() -> None:
        for axis in range(len(shape)):
            x = arrays.DistributedArray.to_dist(whole, axis=axis)
            y = pylops_mpi.utils.fftshift_nd(x, axes)
            assert np.array_equal(y.asarray(), np.fft.fftshift(whole, axes))
            assert np.array_equal(pylops_mpi.utils.ifftshift_nd(y, axes).asarray(), whole)

    comm.virtual_ranks(2, program)


def test_operators_take_vectors_of_another_communicator_of_as_many_ranks() -> None:
    def program() -> None:
        ranks = comm.current()
        others = ranks.split(0, ranks.rank)
        assert others is not None
        A = pylops_mpi.MPIBlockDiag([np.full((2, 2), ranks.rank + 1.0)])
        x = arrays.DistributedArray(2 * ranks.size, base_comm=others)
        x[:] = 1
        y = A @ x
        assert y.communicator is others
        assert y.local.tolist() == [2 * (ranks.rank + 1.0)] * 2
        reversed_ranks = ranks.split(0, -ranks.rank)
        assert reversed_ranks is not None
        z = arrays.DistributedArray(2 * ranks.size, base_comm=reversed_ranks)
        with pytest.raises(ValueError, match="another communicator"):
            A @ z

    comm.virtual_ranks(2, program)


def test_real_problems_may_begin_with_complex_zeros() -> None:
    a = np.random.default_rng(2).normal(size=(6, 4)).astype("float32")

    def program() -> None:
        A = pylops_mpi.MPIBlockDiag([a])
        x = arrays.DistributedArray(4 * comm.current().size, dtype="float32")
        x[:] = np.arange(4)
        x0 = arrays.DistributedArray(x.global_shape, dtype="complex64")
        x0[:] = 0
        for found in (
            pylops_mpi.cgls(A, A @ x, x0, niter=20, tol=1e-12)[0],
            pylops_mpi.cg(A.H @ A, A.H @ (A @ x), x0, niter=20, tol=1e-12)[0],
        ):
            assert found.dtype.kind == "c"
            np.testing.assert_allclose(found.local, x.local, atol=1e-2)

    comm.virtual_ranks(2, program)
