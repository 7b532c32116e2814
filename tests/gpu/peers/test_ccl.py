"""Collectives and messages of NCCL and RCCL against NumPy, on a fake library and driver.

Ranks are threads of this process, each with a fake GPU of its own. Streams are lazy, so a missing wait shows in the
numbers. Faults are in test_ccl_faults.py, arrays that change hands in test_foreign_arrays.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from by_library import ByLibrary
from ccl_ranks import FAKE, FLOATING, on_device, on_host, on_ranks, values

from jali.comm import DeviceArray
from jali.comm.elements import SIZES
from jali.errors import DeviceError, ParameterError

pytestmark = FAKE
RANKS = (1, 2, 3)
MOVED = tuple(SIZES)
COMBINED = tuple(name for name in SIZES if name not in ("int16", "uint16") and not name.startswith("complex"))
TOLERANCE = {"fp16": 2e-3, "bf16": 2e-2, "fp32": 1e-6, "complex64": 1e-6, "fp64": 1e-15, "complex128": 1e-15}


def assert_close(got: npt.NDArray[Any], wanted: npt.NDArray[Any], element: str) -> None:
    assert got.shape == wanted.shape
    if element in TOLERANCE:
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[element], atol=0)
    else:
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))


def reference(op: str, all_values: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    stacked = np.stack(all_values)
    combine = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    return combine[op](stacked, axis=0)


# --- what is combined ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_reductions_are_those_of_numpy(op: str, ranks: int) -> None:
    elements = {"avg": (*FLOATING, "complex64", "complex128")}.get(op, COMBINED)
    if op == "sum":
        elements = (*elements, "complex64", "complex128")

    def body(gpus: ByLibrary) -> None:
        for element in elements:
            whole = [values(element, (6, 5), r) for r in range(ranks)]
            wanted = reference(op, whole)
            mine = on_device(whole[gpus.rank], element, gpus.gpu)
            assert_close(on_host(gpus.all_reduce(mine, op=op)), wanted, element)
            for root in range(ranks):
                got = gpus.reduce(mine, op=op, root=root)
                assert (got is None) == (gpus.rank != root)
                if got is not None:
                    assert_close(on_host(got), wanted, element)
            rows = 6 // ranks
            part = wanted[gpus.rank * rows : (gpus.rank + 1) * rows]
            assert_close(on_host(gpus.reduce_scatter(mine, op=op)), part, element)
            assert_close(on_host(mine), whole[gpus.rank], element)  # the operands are as they were
            assert gpus.all_reduce(mine, mine, op) is mine
            assert_close(on_host(mine), wanted, element)

    on_ranks(ranks, body)


def test_reduce_scatter_in_place_leaves_the_result_at_its_part() -> None:
    def body(gpus: ByLibrary) -> None:
        whole = [values("fp32", (6,), r) for r in range(3)]
        x = on_device(whole[gpus.rank], "fp32", gpus.gpu)
        gpus.reduce_scatter(x, x)
        part = slice(2 * gpus.rank, 2 * gpus.rank + 2)
        np.testing.assert_array_equal(on_host(x)[part], reference("sum", whole)[part])

    on_ranks(3, body)


def test_what_the_library_cannot_combine_is_refused_by_name() -> None:
    def body(gpus: ByLibrary) -> None:
        def refused(element: str, op: str, error: type[Exception], text: str) -> None:
            with pytest.raises(error, match=text):
                gpus.all_reduce(DeviceArray.empty(gpus.gpu, (4,), element), op=op)

        refused("int16", "sum", DeviceError, "NCCL cannot combine elements of type int16")
        refused("uint16", "max", DeviceError, "uint16")
        refused("complex64", "prod", DeviceError, "knows no complex numbers: sum and avg of complex64 work")
        refused(
            "int32", "bit_and", DeviceError, "NCCL has no operation 'bit_and'; it has sum, prod, min, max"
        )
        refused("int32", "logical_or", DeviceError, "logical_or")
        refused("int32", "avg", ParameterError, "'avg' is not defined for int32")
        refused("fp32", "median", ParameterError, "median")
        x = on_device(values("fp32", (4,), gpus.rank), "fp32", gpus.gpu)
        got = on_host(gpus.all_reduce(x))  # nothing has been broken
        np.testing.assert_array_equal(got, reference("sum", [values("fp32", (4,), r) for r in range(2)]))

    on_ranks(2, body)


# --- what is moved -------------------------------------------------------------------------------------------------


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", RANKS)
def test_parts_of_all_types_move_as_in_numpy(
    ranks: int, ccl_library: str, use_settings: Callable[..., None]
) -> None:
    use_settings(nccl=ccl_library)

    def body(gpus: ByLibrary) -> None:
        me, gpu = gpus.rank, gpus.gpu
        for element in MOVED:
            whole = [values(element, (6, 2), r) for r in range(ranks)]
            mine = on_device(whole[me], element, gpu)
            assert_close(on_host(gpus.all_gather(mine)), np.concatenate(whole), element)
            exchanged = np.concatenate([np.split(w, ranks)[me] for w in whole])
            assert_close(on_host(gpus.all_to_all(mine)), exchanged, element)
            for root in range(ranks):
                got = gpus.gather(mine, root=root)
                assert (got is None) == (me != root)
                if got is not None:
                    assert_close(on_host(got), np.concatenate(whole), element)
                part = DeviceArray.empty(gpu, (6 // ranks, 2), element)
                gpus.scatter(mine if me == root else None, part, root)
                assert_close(on_host(part), np.split(whole[root], ranks)[me], element)
                x = on_device(whole[me], element, gpu)
                assert gpus.broadcast(x, root) is x
                assert_close(on_host(x), whole[root], element)

    on_ranks(ranks, body)


@pytest.mark.parametrize("counts", [[2, 0, 5], [1, 4, 0], [0, 0, 3], [2, 2, 2]])
def test_uneven_and_empty_parts_move_too(
    counts: list[int], ccl_library: str, use_settings: Callable[..., None]
) -> None:
    use_settings(nccl=ccl_library)
    matrix = np.array([counts, counts[::-1], np.roll(counts, 1)])

    def body(gpus: ByLibrary) -> None:
        me, gpu = gpus.rank, gpus.gpu
        parts = [values("int16", (n, 3), r) for r, n in enumerate(counts)]
        mine, stacked = on_device(parts[me], "int16", gpu), np.concatenate(parts)
        assert_close(on_host(gpus.all_gather(mine, counts=counts)), stacked, "int16")
        position = np.zeros_like(stacked)
        position[sum(counts[:me]) : sum(counts[: me + 1])] = parts[me]
        x = on_device(position, "int16", gpu)
        gpus.all_gather(x, x, counts=counts)
        assert_close(on_host(x), stacked, "int16")
        for root in range(3):
            got = gpus.gather(mine, root=root, counts=counts)
            if got is not None:
                assert_close(on_host(got), stacked, "int16")
            part = DeviceArray.empty(gpu, (counts[me], 3), "int16")
            gpus.scatter(x if me == root else None, part, root, counts=counts)
            assert_close(on_host(part), parts[me], "int16")
        sent = [values("fp64", (int(matrix[r].sum()), 2), r, seed=1) for r in range(3)]
        pieces = [np.split(sent[r], np.cumsum(matrix[r])[:-1])[me] for r in range(3)]
        got = gpus.all_to_all(on_device(sent[me], "fp64", gpu), counts=matrix.tolist())
        assert_close(on_host(got), np.concatenate(pieces), "fp64")

    on_ranks(3, body)


@pytest.mark.unproved("what proofs refuse")
def test_messages_in_turn_that_are_not_started_together_time_out(
    use_settings: Callable[..., None],
) -> None:
    use_settings(watchdog="1", message_transport="nccl")

    def body(gpus: ByLibrary) -> None:
        ranks, peer = gpus.communicator, 1 - gpus.rank
        x, y = (DeviceArray.empty(gpus.gpu, (7,), "fp64") for _ in range(2))
        ends = [ranks.persistent_send(x, peer), ranks.persistent_receive(y, peer)]
        ranks.start(ends)
        gpus.synchronize("a ring")
        for end in ends:
            end.start()
        gpus.synchronize("a ring")

    with pytest.raises(DeviceError, match="waiting for a ring: nothing has moved for 1 s"):
        on_ranks(2, body)


def test_rccl_is_the_same_table() -> None:
    def body(gpus: ByLibrary) -> tuple[str, list[float]]:
        x = on_device(np.arange(3.0) + gpus.rank, "fp64", gpus.gpu)
        exchanged = gpus.all_to_all(gpus.all_gather(x))
        return gpus.library[0], [*on_host(gpus.all_reduce(x)), *on_host(exchanged)]

    first, second = on_ranks(2, body, "hip")
    assert first == ("RCCL", [1, 3, 5, 0, 1, 2, 0, 1, 2])
    assert second == ("RCCL", [1, 3, 5, 1, 2, 3, 1, 2, 3])


def test_communicators_that_do_not_block_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_PROGRESS", "1")

    def body(gpus: ByLibrary) -> float:
        x = on_device(np.ones(3), "fp32", gpus.gpu)
        for _ in range(3):
            x = gpus.all_reduce(x)
        gpus.synchronize()
        return float(on_host(x)[0])

    assert on_ranks(3, body) == [27.0] * 3
