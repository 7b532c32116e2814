"""What nobody has set is zero, in fields, arrays and everything made like them, also where memory was used before; the links of a gauge
field say that they are unset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Integer, Lattice, Real, comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray, from_field
from jali.gauge import SU, GaugeField

pytestmark = pytest.mark.parametrize("ranks", [1, 2, 3])
SIZE = (96, 50)  # so large that memory comes back


def dirty(make: Any, times: int = 3) -> Any:
    """What `make` gives after earlier ones were filled and left."""
    for _ in range(times):
        make()[...] = 7
    return make()


@pytest.mark.parametrize("element", [Real(), Complex(), Integer(), SU(3)], ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_fields(ranks: int, element: Any, precision: str) -> None:
    def run() -> None:
        lattice = Lattice(8, 6)
        of_numbers = element.numpy_shape
        value = np.ones((8, 6, *of_numbers), int)
        for make in (
            lambda: Field(lattice, element, precision=precision),
            lambda: lattice.field(element, precision=precision),
            Field(lattice, element, precision=precision).like,
        ):
            for _ in range(3):
                make()[...] = value
            assert not make()[...].any()

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64", "float16", "bool"])
@pytest.mark.parametrize("engine", ["numpy", "torch", "jali"])
def test_arrays(ranks: int, dtype: str, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    if engine == "jali" and dtype in ("float16", "bool"):
        pytest.skip("no element of fields")

    def run() -> None:
        def made(**options: Any) -> DistributedArray:
            return DistributedArray(SIZE, dtype=dtype, engine=engine, **options)

        everywhere = {} if engine == "jali" else {"partition": Partition.BROADCAST}
        for options in ({}, {"axis": 1}, everywhere):
            x = dirty(lambda options=options: made(**options))
            assert not np.asarray(x.asarray()).any()
            assert not np.asarray(dirty(x.zeros_like).asarray()).any()
        if engine == "numpy":
            assert not StackedDistributedArray([x, x]).zeros_like().asarray().any()

    comm.virtual_ranks(ranks, run)


def test_arrays_of_fields(ranks: int) -> None:
    def run() -> None:
        assert not from_field(Field(Lattice(8, 6), Real())).asarray().any()

    comm.virtual_ranks(ranks, run)


def test_gauge_fields_say_that_they_are_unset(ranks: int) -> None:
    def run() -> None:
        U = GaugeField(Lattice(4, 4), SU(2))
        for read in (
            lambda: U[0][...],
            lambda: jali.gauge.plaquette(U),
            U.copy,
            U.reunitarise,
            U.like().copy,
        ):
            with pytest.raises(
                jali.UnsetError, match=r"was never set: start the gauge field with cold_start\(\)"
            ):
                read()
        assert jali.gauge.plaquette(U.cold_start()) == 1

    comm.virtual_ranks(ranks, run)
