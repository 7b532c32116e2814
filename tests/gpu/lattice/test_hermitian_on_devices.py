"""Cholesky's factor and what follows of it have the bits of the host, on several devices too; their kernels compile for real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cubin import resources_of

import jali
from jali import Field, Hermitian, Lattice, SingularError, Vector, virtual_ranks
from jali._core import with_gpu_prelude

sys.path.insert(0, str(Path(__file__).parents[2] / "language"))
import test_hermitian as on_the_host

EXTENTS = (5, 4, 2)


@pytest.mark.short(4)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("n", [6, 1, 3, 8, 2, 4, 5, 7, 12])
def test_bits_are_those_of_the_host(n, precision, device):
    found = []
    for kind in ("cpu", device):
        fields = on_the_host.fields_for(Lattice(*EXTENTS, device=kind), n, 2, precision)
        on_the_host.all_of_it(*fields)
        found.append([field[...].tobytes() for field in fields])
    assert found[0] == found[1]


@pytest.mark.parametrize("storage", ["float64", "float16", "bfloat16", "fixed16", "fixed8", "float16-scaled"])
@pytest.mark.short(3)
def test_stored_bytes_and_lost_sites_are_those_of_the_host(storage, device):
    found = []
    for kind in ("cpu", device):
        lattice = Lattice(*EXTENTS, device=kind)
        a = on_the_host.positive(3, EXTENTS)
        a[1, 2, 1] *= -1
        h = on_the_host.field_of(lattice, Hermitian(3), a, storage=storage)
        out = Field(lattice, Hermitian(3), storage=storage)
        out[...] = h.inverse() + 2 * h
        results = [h, out, h.log_det().field(), h.cholesky().field()]
        for lost in results[2:]:
            with pytest.raises(SingularError, match=r"site \(1, 2, 1\)"):
                lost[...]
        found.append([x[...].tobytes() for x in results])
    assert found[0] == found[1]


def test_halos_between_devices_bring_the_independent_reals(device):
    @jali.site_function
    def f(X, out, h, v):
        mu = X.directions()[0]
        out[X] = (h[X + mu] + h[X - mu]).solve(v[X + mu])

    def run(kind):
        lattice = Lattice(4, 4, 2, device=kind)
        h = on_the_host.field_of(lattice, Hermitian(6), on_the_host.positive(6, (4, 4, 2)))
        v = on_the_host.field_of(lattice, Vector(6), on_the_host.general(4, 4, 2, 6))
        out = Field(lattice, Vector(6))
        f(out, h, v)
        return out[...].tobytes()

    assert virtual_ranks(2, run, device) == [run("cpu")] * 2


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("n", [6, pytest.param(12, marks=pytest.mark.full)])
def test_their_kernels_compile_for_a_real_device(n, precision, nvrtc):
    fields = on_the_host.fields_for(Lattice(*EXTENTS, device="cuda"), n, 1, precision)
    report = jali.inspect(on_the_host.all_of_it, *fields)
    kernels = resources_of(nvrtc.compile(with_gpu_prelude(report.path.read_text()), report.name, "sm_90"))
    assert "kernel" in kernels


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_block_of_order_six_is_solved_in_registers(precision, nvrtc):
    """The two blocks of a clover term at a site are of this order."""

    @jali.site_function
    def solve(X, x, h, b):
        x[X] = h[X].solve(b[X])

    lattice = Lattice(*EXTENTS, device="cuda")
    x, h, b = (
        Field(lattice, element, precision=precision) for element in (Vector(6), Hermitian(6), Vector(6))
    )
    report = jali.inspect(solve, x, h, b)
    kernels = resources_of(nvrtc.compile(with_gpu_prelude(report.path.read_text()), report.name, "sm_90"))
    assert kernels["kernel"].stack == 0
