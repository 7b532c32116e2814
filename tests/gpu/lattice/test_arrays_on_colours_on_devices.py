"""Arrays on a device of the sites of one colour as fields: the bits of the host, and every way that halos travel."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_ccl, use_fake_gpus
from test_arrays_on_devices import Interface

import jali
from jali import (
    EVEN,
    ODD,
    Complex,
    Integer,
    Lattice,
    LayoutError,
    Matrix,
    Random,
    Real,
    Spinor,
    Vector,
    _core,
)
from jali.comm import DeviceArray
from jali.comm.virtual import virtual_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))

from test_arrays_on_colours import PROGRAMS, compact, in_array, some_in_arrays
from test_fields_on_colours import around, filled, run_program, same, two_steps


@pytest.mark.short(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_random_programs_have_the_bits_of_the_host(seed, precision, device):
    extents, _ = PROGRAMS[seed]
    alone = run_program(seed, extents, "cpu", precision)
    for made in (in_array, some_in_arrays(seed)):
        assert run_program(seed, extents, device, precision, made=made) == alone


@TWO_DEVICES
@pytest.mark.short(1)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", range(4))
def test_ranks_of_devices_too(seed, monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    extents, grids = PROGRAMS[seed]
    found = virtual_ranks(
        2, lambda: run_program(seed, extents, "cuda", made=some_in_arrays(seed), grid=grids[1])
    )
    assert found == [run_program(seed, extents)] * 2


@TWO_DEVICES
@pytest.mark.ranks(2)
@pytest.mark.short(3)
@pytest.mark.parametrize("policy", [name for name, *_ in _core.halo_policies("cuda") if "mpi" not in name])
def test_every_halo_policy_carries_them(policy, monkeypatch, use_settings):
    use_fake_gpus(monkeypatch, 2)
    use_fake_ccl(use_settings)
    use_settings(halo_policy=policy)

    def run():
        lattice = Lattice(6, 2, 8, grid=(2, 1, 1), device="cuda")
        trouble = lattice.layout("float64").why_not_halo_policy(lattice.communicator.core, policy)
        if trouble:
            return trouble
        f = filled(lattice, Vector(3), boundary={0: "antiperiodic"})
        parts = DeviceArray.from_host(np.stack([compact(half) for half in f.split()]), lattice.gpu)
        shape, size = parts.shape[1:], parts.size * parts.dtype.itemsize // 2
        even, odd = (  # one behind the other in memory
            lattice.wrap(
                Interface(parts, shape=shape, data=(parts.address + k * size, False)),
                f.element,
                boundary=f.boundary,
                over=over,
            )
            for k, over in enumerate((EVEN, ODD))
        )
        for kernel in around.kernels(odd, even):
            kernel.launch.check()
        for _ in range(2):
            full = jali.join(even, odd)
            around[ODD](full, full)
            around(odd, even)
            around[EVEN](full, full)
            around(even, odd)
            assert same(even, full)
            assert same(odd, full)
        return ""

    found = virtual_ranks(2, run)
    if found[0]:
        pytest.skip(found[0])


@pytest.mark.short(2)
@pytest.mark.parametrize("element", [Spinor(3), Integer(), Real(), Complex(), Matrix(2, 3)], ids=str)
def test_an_array_is_the_memory_of_its_field(element, device):
    lattice = Lattice(4, 3, 6, device=device)
    f = filled(lattice, element, boundary={1: "open"})
    for half in (f.on(EVEN), f.on(ODD)):
        field, opposite = in_array(half), in_array(f.on(half.over.opposite))
        assert np.array_equal(field.array.to_host(), compact(half))
        assert np.array_equal(field[...], half[...])
        field.assign(f)
        assert np.array_equal(field.array.to_host(), compact(half))
        for to in (field, half):
            to[...] = 2 * f[...]
            to[1, 1:, 2] = f[1, 1:, 2]
        assert np.array_equal(field.array.to_host(), compact(half))
        assert np.array_equal(field[1:3, ::2], half[1:3, ::2])
        zero = field.like()
        assert not zero.array.to_host().any()
        assert np.array_equal(zero.assign(field).array.to_host(), compact(half))
        assert np.array_equal(field.copy().array.to_host(), compact(half))
        single = in_array(half.like(precision="float32"))
        assert np.array_equal(single.assign(field)[...], half[...].astype(single.dtype))
        assert np.array_equal(field.assign(single).array.to_host(), single.array.to_host())
        assert np.array_equal(half.assign(single)[...], single[...])
        assert np.array_equal(field.set_local(half.local())[...], half[...])
        parts = (field, opposite) if half.over is EVEN else (opposite, field)
        assert np.array_equal(jali.join(*parts)[...], field[...] + opposite[...])


def test_sums_random_numbers_graphs_and_arrays_of_all_sites_beside(device):
    @jali.site_function
    def drawn(X, f, rng):
        f[X] = jali.complex(rng.gaussian(X), rng.uniform(X)) * X.coordinate(1)

    lattice = Lattice(4, 6, device=device)
    f, g = (filled(lattice, Complex(), k) for k in (1, 2))
    half, array = f.on(EVEN), in_array(f.on(EVEN))
    whole = lattice.wrap(DeviceArray.from_host(g.local(), lattice.gpu))
    assert array.norm2() == half.norm2()
    assert array.inner(in_array(g.on(EVEN))) == half.inner(g.on(EVEN))
    array += 3 * whole
    half += 3 * g
    for each in (array, half):
        out = each.like()
        jali.graph(lambda out=out, each=each: (two_steps(out, each, 0.5), each.assign(out)), lattice).run(3)
    assert np.array_equal(array.array.to_host(), compact(half))
    drawn(array, Random(5))
    drawn(half, Random(5))
    assert np.array_equal(array.array.to_host(), compact(half))


def test_arrays_that_do_not_fit_are_refused(device):
    def of_zeros(lattice, *shape, over=EVEN):
        return lattice.wrap(DeviceArray.from_host(np.zeros(shape), lattice.gpu), over=over)

    lattice = Lattice(4, 6, device=device)
    with pytest.raises(
        LayoutError, match=r"12 of them EVEN, an array of them shape \(4, 3\) first; it has \(4, 6\)"
    ):
        of_zeros(lattice, 4, 6)
    with pytest.raises(LayoutError, match="even extent in the last direction, and have 5 sites there"):
        of_zeros(Lattice(4, 5, device=device), 4, 2, over=ODD)
    even = of_zeros(lattice, 4, 3)
    with pytest.raises(LayoutError, match="shares memory with that of"):
        around(lattice.wrap(even.array, over=ODD), even)
