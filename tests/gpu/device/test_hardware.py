"""What only a real GPU can show: many threads at once, its own code generator, its clock. Run by `make test-gpu`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_driver import TWO_DEVICES
from shadow import assert_same_bits

import jali
from jali import _core
from jali.gauge import SU, GaugeField, plaquettes, sweep, wilson_action
from jali.gauge.link_terms import LinkTerms
from jali.gauge.overrelaxation import overrelax
from jali.gauge.staples import staple_sum

pytestmark = pytest.mark.gpu


@jali.site_function
def total_of(X, a, total, squares):
    total += a[X]
    squares += a[X] * a[X]


def test_device_says_what_it_is():
    gpu = jali.Lattice(4, device="cuda").gpu
    assert gpu.kind == "cuda"
    assert "fake" not in gpu.name
    assert gpu.architecture.startswith("sm_")
    assert gpu.multiprocessors > 8
    assert 0 < gpu.free_memory < gpu.total_memory
    assert len(gpu.identity) == 32
    print(gpu.name, gpu.architecture, _core.Gpu.driver("cuda"))


@pytest.mark.parametrize("sites", [1, 31, 32, 33, 127, 4097, 1 << 21, (1 << 21) + 5])
def test_sum_over_many_threads_is_the_exact_one_rounded(sites):
    rng = np.random.default_rng(sites)
    values = rng.normal(size=sites) * 2.0 ** rng.integers(-30, 30, sites)
    results = []
    for device in ("cpu", "cuda"):
        field = jali.Field(jali.Lattice(sites, device=device), jali.Real())
        field[...] = values
        results.append(field.lattice.sum(total_of, field))
        if device == "cuda":  # whatever the order in which threads come
            assert all(field.lattice.sum(total_of, field) == results[-1] for _ in range(20))
    assert results[0] == results[1]
    assert results[1][0] == math.fsum(values)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_history_on_a_lattice_that_fills_the_device(precision):
    ends = []
    for device in ("cpu", "cuda"):
        U = GaugeField(jali.Lattice(8, 8, 8, 16, device=device), SU(3), precision=precision)
        rng = jali.Random(7)
        U.hot_start(rng)
        rows = []
        for _ in range(3):
            sweep(U, 5.9, rng, heatbath=1, overrelaxation=2)
            rows.append(plaquettes(U))
        ends.append((rows, [field[...] for field in U.fields]))
    assert ends[0][0] == ends[1][0]
    for got, expected in zip(ends[1][1], ends[0][1], strict=True):
        assert_same_bits(got, expected, "links")


def test_events_measure_the_time_of_work():
    gpu = jali.Lattice(4, device="cuda").gpu
    a, b = (gpu.allocate(256 << 20, "test") for _ in range(2))
    begin, end = _core.GpuEvent(gpu), _core.GpuEvent(gpu)
    gpu.copy(a, b)
    gpu.record(begin)
    for _ in range(10):
        gpu.copy(a, b)
    gpu.record(end)
    end.wait()
    assert end.reached()
    assert end.seconds_since(begin) > 0


def test_kernels_say_what_a_thread_uses():
    """Bytes of local memory, where values go that do not fit registers, are printed only."""
    lattice = jali.Lattice(4, 4, 4, 4, device="cuda")
    U = GaugeField(lattice, SU(3)).cold_start()
    out = jali.Field(lattice, jali.Matrix(3))
    mu = lattice.directions[0]
    terms = LinkTerms.of_links(wilson_action(6.0), U)
    kernels = staple_sum.kernels(U, out, mu)
    kernels += overrelax.kernels(U, mu, terms.staple, terms.given, over=jali.EVEN)
    for kernel in kernels:
        function = kernel.function
        print(
            kernel.program.name,
            function.registers,
            "registers,",
            function.local_bytes,
            "bytes of local memory",
        )
        assert 0 < function.registers <= 255
        assert function.most_threads >= 128


@TWO_DEVICES
@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_work_on_another_device_leaves_the_current_one(name):
    xp = pytest.importorskip(name)
    use = xp.cuda.set_device if name == "torch" else xp.cuda.runtime.setDevice
    current = xp.cuda.current_device if name == "torch" else xp.cuda.runtime.getDevice
    values = np.random.default_rng(0).normal(size=(8, 6))
    before = current()
    for first, other in ((1, 0), (0, 1)):
        use(first)
        lattice = jali.Lattice(8, 6, device=f"cuda:{other}")
        a, b = jali.Field(lattice, jali.Real()), jali.Field(lattice, jali.Real())
        a[...] = values
        lattice.sum(total_of, a)
        jali.graph(lambda a=a, b=b: b.assign(a), lattice).run()
        assert np.array_equal(b[...], values)
        del a, b
        found = current()
        use(before)
        assert found == first
