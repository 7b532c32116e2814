"""Arrays on a device with several elements at each site as fields: the bits of the host, and every way that halos travel."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_ccl, use_fake_gpus

import jali
from jali import ALL, EVEN, ODD, Complex, Integer, Lattice, LayoutError, Matrix, Real, Spinor, Vector, _core
from jali.comm import DeviceArray
from jali.comm.virtual import virtual_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))

from test_arrays_with_batches import PROGRAMS, around, batch_of, in_array, numbers_of, some_in_arrays, summed
from test_batches import run_batch


@pytest.mark.short(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_random_programs_have_the_bits_of_the_host(seed, precision, device):
    extents, members, _ = PROGRAMS[seed]
    alone = run_batch(seed, extents, members, "cpu", precision)
    for made in (in_array, some_in_arrays(seed)):
        assert run_batch(seed, extents, members, device, precision, made=made) == alone


@TWO_DEVICES
@pytest.mark.short(1)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_devices_too(seed, monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    extents, members, grids = PROGRAMS[seed]

    def run():
        return run_batch(seed, extents, members, "cuda", made=some_in_arrays(seed), grid=grids[1])

    assert virtual_ranks(2, run) == [run_batch(seed, extents, members)] * 2


@TWO_DEVICES
@pytest.mark.ranks(2)
@pytest.mark.short(1)
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
        for over in (ALL, ODD):
            f = batch_of(lattice, Vector(3), boundary={0: "antiperiodic"}).on(over)
            out = f.like(over=f.over.opposite if over is ODD else ALL)
            inner, outer = in_array(f), in_array(out)
            for kernel in around.kernels(outer, inner):
                kernel.launch.check()
            for _ in range(2):
                around(outer, inner)
                around(out, f)
                assert np.array_equal(outer.array.to_host(), numbers_of(out))
                inner *= 0.5
                f *= 0.5
            assert lattice.sum(summed, outer).tolist() == lattice.sum(summed, out).tolist()
        return ""

    found = virtual_ranks(2, run)
    if found[0]:
        pytest.skip(found[0])


@pytest.mark.short(1)
@pytest.mark.parametrize("element", [Spinor(3), Integer(), Real(), Complex(), Matrix(2, 3)], ids=str)
def test_an_array_is_the_memory_of_its_field(element, device):
    lattice = Lattice(4, 3, 6, device=device)
    f = batch_of(lattice, element, boundary={1: "open"})
    for g in (f, f.on(EVEN)):
        field = in_array(g)
        assert np.array_equal(field.array.to_host(), numbers_of(g))
        assert np.array_equal(field[...], g[...])
        field.members[1] = g.members[2]
        g.members[1] = g.members[2]
        field.members[[2, 0]] = g.members[:2]
        g.members[[2, 0]] = g.members[:2].copy()
        field[1, :, 2:, 1] = g[2, :, 1:5, 1]
        g[1, :, 2:, 1] = g[2, :, 1:5, 1]
        field.members[1].assign(field.members[0])
        g.members[1].assign(g.members[0])
        assert np.array_equal(field.array.to_host(), numbers_of(g))
        assert np.array_equal(field.members[2].copy()[...], g.members[2][...])
        more = field.like(batch=5)
        assert not more.array.to_host().any()
        more.members[1:4] = field
        assert np.array_equal(more.members[2][...], g.members[1][...])
        assert np.array_equal(field.like().assign(g).array.to_host(), numbers_of(g))
        assert np.array_equal(g.like().assign(field)[...], g[...])
        other = in_array(g.like(precision="float32"))
        assert np.array_equal(other.assign(field)[...], g[...].astype(other.dtype))
        assert np.array_equal(field.assign(other).array.to_host(), other.array.to_host())


def test_graphs_repeat_calls_on_them(device):
    lattice = Lattice(4, 6, device=device)
    f = batch_of(lattice, Vector(2))
    for each in (f, array := in_array(f)):
        out = each.like()
        jali.graph(lambda out=out, each=each: (around(out, each), each.assign(out)), lattice).run(3)
    assert np.array_equal(array.array.to_host(), numbers_of(f))


def test_arrays_that_do_not_fit_are_refused(device):
    lattice = Lattice(4, 6, device=device)
    array = DeviceArray.from_host(np.zeros((4, 6, 3)), lattice.gpu)
    with pytest.raises(
        LayoutError, match=r"a batch of 2 has shape \(4, 6, 2\) first, .* this one has \(4, 6, 3\)"
    ):
        lattice.wrap(array, batch=2)
    with pytest.raises(LayoutError, match="shares memory with that of"):
        around(lattice.wrap(array, batch=3), lattice.wrap(array, batch=3))
