"""Distributed arrays in device memory of jali's own, without another library: the bits of the host, and operators of site functions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_ccl, use_fake_gpus

import jali
from jali import DeviceError, Field, Lattice, LayoutError, Real, _core, comm
from jali.arrays import DistributedArray, from_field
from jali.comm import DeviceArray
from jali.linops import SiteOperator, dottest
from jali.solvers import cg, cgls

sys.path.insert(0, str(Path(__file__).parents[2] / "linops"))
from test_site_operators import laplacian, screened, upwind, upwind_adjoint


@pytest.fixture(autouse=True)
def on_the_host_again():
    yield
    jali.use_device("cpu")


def computed(device: str, dtype: str) -> list[Any]:
    """Numbers and arrays that a script makes of jali's own memory, wherever that is."""
    jali.use_device(device)
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=(6, 5)).astype(dtype) for _ in range(2))
    x, y = (DistributedArray((6, 5), engine="jali", dtype=dtype) for _ in range(2))
    x[:], y[:] = (v[tuple(slice(*r) for r in x.layout.box)] for v in (a, b))
    z = 2 * x - y / 3 + x * y
    z += np.exp(y)
    op = SiteOperator(screened, (6, 5), dtype=dtype)
    solved = cg(op, z, rtol=1e-05).x
    least = cgls(op, z, maxiter=4, rtol=0).x
    numbers = [x.dot(y), z.norm(), z.norm(1), z.max(), z.sum()]
    assert dottest(op, x, y, rtol=1e-5)
    assert (x.local.field.lattice.gpu is None) == (device == "cpu")
    return [*numbers, *(v.asarray().tobytes() for v in (z, op @ z, solved, least))]


@pytest.mark.short(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_script_gives_the_bits_of_the_host(dtype, device):
    assert computed(device, dtype) == computed("cpu", dtype)


def test_ranks_on_devices_give_the_bits_of_one_host(monkeypatch, use_settings, tmp_path):
    if REAL and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs 2 GPUs")
    right = computed("cpu", "float64")
    use_fake_gpus(monkeypatch, 2, folder=tmp_path)
    use_fake_ccl(use_settings)
    for found in comm.virtual_ranks(2, lambda: computed("cuda", "float64")):
        assert found == right


def test_a_device_array_is_a_part_and_its_field_is_the_memory(device):
    lattice = Lattice(6, 5, device=device)
    a, c = (np.random.default_rng(seed).normal(size=(6, 5)) for seed in (1, 2))
    memory = DeviceArray.from_host(a, lattice.gpu)
    x = DistributedArray((6, 5), local_array=memory)
    assert x.engine == "jali"
    assert x.local.array is memory
    x *= 2
    assert np.array_equal(memory.to_host(), 2 * a)
    slow = DistributedArray((6, 5), local_array=DeviceArray.from_host(c, lattice.gpu))
    op = SiteOperator(upwind, (6, 5), adjoint=upwind_adjoint, arguments=(slow,))
    y = op @ x
    assert isinstance(y.local.array, DeviceArray)
    np.testing.assert_allclose(y.asarray(), c * (np.roll(2 * a, -1, 0) - 2 * a), rtol=1e-13)
    assert dottest(op, x, y, rtol=1e-12)
    field = Field(lattice, Real())
    with pytest.raises(jali.ParameterError, match="give u"):
        dottest(SiteOperator(upwind, (6, 5), adjoint=upwind_adjoint, arguments=(field,)))
    assert from_field(field).to_field() is field
    with pytest.raises(LayoutError, match="numpy cannot use the memory of an array of jali"):
        x.as_engine("numpy")
    with pytest.raises((LayoutError, DeviceError, jali.TraceError)):
        x + from_field(Field(Lattice(6, 5), Real()))


def test_iterations_of_a_solver_are_recorded_as_a_graph(device):
    lattice = Lattice(6, 4, device=device)
    b = Field(lattice, Real())
    b[...] = a = np.random.default_rng(1).normal(size=(6, 4))
    op = SiteOperator(screened, (6, 4))
    found = cg(op, b, rtol=1e-10)
    assert found.check_interval > 1
    host = Field(Lattice(6, 4), Real())
    host[...] = a
    right = cg(op, host, rtol=1e-10)
    assert found.x[...].tobytes() == right.x[...].tobytes()
    assert np.allclose((op @ found.x)[...], a)


def test_wrapping_again_makes_no_table_of_sites(monkeypatch, device):
    made = []
    table = _core.SiteTable
    monkeypatch.setattr("jali.lattice.launch_layout._core.SiteTable", lambda *a: made.append(a) or table(*a))
    for where in (device, "cpu"):
        lattice = Lattice(6, 5, device=where)
        for turn in range(3):
            fields = [
                lattice.wrap(
                    np.ones((6, 5)) if where == "cpu" else DeviceArray.from_host(np.ones((6, 5)), lattice.gpu)
                )
                for _ in range(2)
            ]
            laplacian(*fields)
            if turn == 0:
                first = len(made)
        assert len(made) == first
    assert made
