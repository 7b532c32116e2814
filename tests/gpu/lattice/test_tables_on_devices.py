"""Tables of neighbours on devices: codes and entries mean the same."""

from __future__ import annotations

import concurrent.futures
import time

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import SU, Complex, Field, Lattice, Real, Vector, _core
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.tune import experiment


@jali.site_function
def laplacian(X, out, f):
    total = -2.0 * X.ndim * f[X]
    for mu in X.directions():
        total += f[X + mu] + 0.5 * f[X - 2 * mu]
    out[X] = total


def width_of(kernel):
    """Bits of its codes; 32 where there are none."""
    return kernel.lowering.code_bits


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("box", "bits"), [((8, 8, 8, 8), 8), ((6, 7, 9), 8), ((10, 10, 10, 10), 16), ((64, 3), 8)], ids=str
)
@pytest.mark.parametrize("boundary", [None, "antiperiodic"])
def test_codes_and_entries_give_the_bytes_of_the_host(box, bits, boundary, device):
    def run(on):
        lattice = Lattice(*box, device=on)
        f, out = Field(lattice, Complex(), boundary=boundary), Field(lattice, Complex())
        rng = np.random.default_rng(1)
        f[...] = rng.normal(size=box) + 1j * rng.normal(size=box)
        (kernel,) = laplacian.kernels(out, f)
        laplacian(out, f)
        return out[...].tobytes(), width_of(kernel)

    expected, _ = run("cpu")
    for tables in ("codes", "entries"):
        with experiment(device_tables=tables):
            found, width = run(device)
        assert found == expected
        if tables == "entries":
            assert width == 32
        elif not REAL:  # the order of tiles is by multiprocessors
            assert width == bits


def test_a_thread_that_comes_first_to_a_device_binds_what_others_have_compiled(device):
    def run(_=None):
        lattice = Lattice(4, 4, device=device)
        f, out = Field(lattice, Real()), Field(lattice, Real())
        f[...] = 1.0
        laplacian.kernels(out, f)
        return lattice, f, out

    lattice, f, out = run()
    other = out.like()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert threads.submit(laplacian.kernels, other, f).result()


def test_neighbours_of_few_bytes_have_codes(device):
    lattice = Lattice(4, 4, 4, device=device)
    for element, bits in ((Real(), 8), (Complex(), 8), (Vector(3), 32)):
        (kernel,) = laplacian.kernels(Field(lattice, element), Field(lattice, element))
        assert width_of(kernel) == bits


@pytest.mark.short(1)
@pytest.mark.parametrize("grid", [(1, 1, 1, 2), (2, 1, 1, 1)])
def test_codes_lead_to_ghosts_and_halo_items(grid, device, monkeypatch):
    if REAL and device == "cuda" and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    use_fake_gpus(monkeypatch, 2)

    def run(grid, on):
        lattice = Lattice(4, 4, 4, 8, grid=grid, device=on)
        U = GaugeField(lattice, SU(3)).hot_start(seed=1)
        psi = lattice.field(jali.Spinor(3), boundary={3: "antiperiodic"})
        psi[...] = np.random.default_rng(2).normal(size=(4, 4, 4, 8, 4, 3))
        return WilsonDirac(U, 0.1).apply(psi)[...].tobytes()

    expected = run((1, 1, 1, 1), "cpu")
    with experiment(device_tables="codes"):
        found = jali.virtual_ranks(2, lambda: run(grid, f"{device}:{jali.comm.current().rank}"))
    assert found == [expected] * 2


def test_whoever_waits_for_a_device_lets_other_ranks_go_on(device, monkeypatch, use_settings):
    """Tables go to a device behind its work, which may wait for what another rank of this process launches next."""
    if REAL and device == "cuda" and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    use_fake_gpus(monkeypatch, 2)
    use_settings(watchdog=30)

    def run():
        rank = jali.comm.current().rank
        lattice = Lattice(4, 8, grid=(1, 2), device=f"{device}:{rank}")
        f, out = Field(lattice, Complex()), Field(lattice, Complex())
        (kernel,) = laplacian.kernels(out, f)
        f.set_local(np.ones(lattice.local_extents))
        laplacian(out, f)
        lattice.gpu.synchronize()
        jali.comm.current().barrier()
        f.set_local(np.ones(lattice.local_extents))
        if rank == 0:
            time.sleep(0.3)
        laplacian(out, f)
        layout = lattice.layout("float64")
        table = layout.neighbours([1, 0])
        for bits in (8, 16, 32):
            assert layout.on_device(table, bits)
        assert layout.differences_on_device(table)
        kernel.launch.make_ready()
        return out[...].real.sum()

    assert jali.virtual_ranks(2, run) == [-32.0, -32.0]
