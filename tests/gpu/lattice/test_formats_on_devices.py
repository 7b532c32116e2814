"""Storage formats on devices: the bytes and values of the host, in any launch shape, in halos between devices."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import REAL

import jali
from jali import SU, Algebra, Complex, Field, Integer, Lattice, Real, Spinor, StorageError, _core
from jali._core import with_gpu_prelude
from jali.codegen.emit import emit
from jali.codegen.recode import copy_program
from jali.codegen.stages import analyse_program, lower, write
from jali.codegen.storage_formats import FORMATS, stored, wires
from jali.codegen.writer import Lowering
from jali.comm.virtual import virtual_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))
from test_formats import numbers, pairs, random_links, wilson
from test_halo_items import LINKS, STEPS, argument, norm_ahead, program, wilson_at, wilson_twice
from test_overflow import drop_launches_and_look, overflow, overflow_and_sum

ELEMENTS = (SU(3), SU(2), Spinor(3), Complex(), Real(), Algebra(2), Integer())


def fields_of_all_formats(lattice, precision, elements):
    """A field for every format and every one of the elements that go together, with values."""
    shape = lattice.extents
    values = {
        SU(3): random_links(3, shape),
        SU(2): random_links(2, shape),
        Spinor(3): numbers((*shape, 4, 3)),
        Complex(): numbers(shape),
        Real(): numbers(shape).real,
        Algebra(2): random_links(2, shape),
        Integer(): np.arange(int(np.prod(shape))).reshape(shape) - 7,
    }
    u = values[Algebra(2)]
    u = u - np.swapaxes(u, -1, -2).conj()
    values[Algebra(2)] = u - np.trace(u, axis1=-2, axis2=-1)[..., None, None] * np.eye(2) / 2
    for element in elements:
        value = values[element]
        for name in FORMATS:
            try:
                field = Field(lattice, element, precision=precision, storage=name)
            except jali.LayoutError:
                continue
            field[...] = value
            yield field


# Two kernels are compiled for each field and way through it. Of what is computed in single precision the short test has links,
# numbers and integers; the Wilson operator below has spinors.
@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("precision", "elements"),
    [
        ("float64", ELEMENTS),
        ("float32", (SU(3), Real(), Integer())),
        pytest.param(
            "float32", (SU(2), Spinor(3), Complex(), Algebra(2)), marks=() if REAL else pytest.mark.full
        ),
    ],
    ids=["float64", "float32", "float32-others"],
)
def test_devices_hold_the_bytes_of_the_host(precision, elements, device):
    host, there = (
        fields_of_all_formats(Lattice(5, 7, device=d), precision, elements) for d in ("cpu", device)
    )
    for a, b in zip(host, there, strict=True):
        assert np.array_equal(a.storage.export_box(), b.storage.export_box()), a.stored
        assert a[...].tobytes() == b[...].tobytes()
        assert a[2:4, 1:].tobytes() == b[2:4, 1:].tobytes()
        b[3, 2] = b[1, 1]
        a[3, 2] = a[1, 1]
        assert np.array_equal(a.storage.export_box(), b.storage.export_box()), a.stored


@pytest.mark.short(2)
@pytest.mark.parametrize("shape", [None, "64,1,2", "64,1,1,4", "64,1,2,2"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_any_two_formats_meet_on_a_device(precision, shape, device):
    with jali.tune.experiment(launch=shape):
        got, expected = pairs(precision, device=device)
    assert got == expected
    assert got == pairs(precision)[0]


def test_wilson_operator_of_compressed_fields_is_the_host_s(device):
    _, _, here = wilson("fixed16-12", "fixed16", "float32")
    _, _, there = wilson("fixed16-12", "fixed16", "float32", device=device)
    assert here[...].tobytes() == there[...].tobytes()


def test_halos_of_stored_bytes_travel_between_devices(device, monkeypatch):
    monkeypatch.setenv("JALI_FAKE_GPUS", "2")
    alone = pairs("float32")[0]
    for got, _ in virtual_ranks(2, lambda: pairs("float32", grid=(2, 1, 1), device=device)):
        assert got == alone


def test_devices_count_what_cannot_be_held(device):
    lattice = Lattice(4, 6, device=device)
    for storage in ("float32", "float16", "fixed8", "float16-scaled"):
        y = Field(lattice, Real(), storage=storage)
        overflow[jali.EVEN](y, 2)
        with pytest.raises(StorageError, match="6 sites.*overflow"):
            y[0, 0]
        with pytest.raises(StorageError, match="12 sites"):
            lattice.sum(overflow_and_sum, y, 2)


def test_overflows_of_dropped_launches_are_reported_at_the_next_read(device):
    drop_launches_and_look(device)


@jali.site_function
def widen(X, out, x, y):
    out[X] = x[X + X.directions()[0]] + y[X]


def test_fields_of_two_precisions_meet_on_a_device_in_the_wider(device):
    lattice = Lattice(4, 6, device=device)
    x, y = Field(lattice, Complex(), precision="float32", storage="float16"), Field(lattice, Complex())
    x[...], y[...] = numbers((4, 6)), numbers((4, 6), seed=2)
    out = y.like()
    widen(out, x, y)
    assert np.array_equal(out[...], np.roll(x[...].astype(complex), -1, 0) + y[...])


@pytest.mark.parametrize(
    ("elements", "precision", "multi_site"),
    [
        ((Complex(), Integer()), "float32", True),
        *(
            pytest.param((SU(3), SU(2), Spinor(3), Integer()), precision, multi_site, marks=pytest.mark.full)
            for precision in ("float64", "float32")
            for multi_site in (False, True)
        ),
    ],
)
def test_every_entry_compiles_for_sm_90(nvrtc, elements, precision, multi_site):
    """All formats in one text for each element; NVRTC needs no device."""
    for element in elements:
        texts = []
        for name in FORMATS:
            try:
                storage = stored(name, element, precision)
            except jali.LayoutError:
                continue
            program = copy_program(storage, storage, precision, 2)
            texts.append(emit(program, Lowering(lanes=1, gpu=True, multi_site=multi_site)).text)
        assert texts
        names = {"float64": "double", "float32": "float"}
        head = f"#define JALI_LANES 1\n#define JALI_REAL {names[precision]}\n#define JALI_THREADS 128\n#define JALI_BLOCKS 1\n"
        head += "#define JALI_SITES 2\n#define JALI_WIDTH 2\n" * multi_site
        assert nvrtc.compile(with_gpu_prelude(f"{head}\n{in_one_program(texts)}"), "rows", "sm_90")


def in_one_program(texts):
    """Kernels under names of their own; the prelude is compiled once for them all."""
    spaces = []
    for k, text in enumerate(texts):
        text, found = re.subn(r"(JALI_(?:EARLY_)?KERNEL\(kernel)", rf"\g<1>{k}", text)
        assert found == 1
        spaces.append(f"namespace space{k} {{\n{text}\n}}")
    return "\n".join(spaces)


@pytest.mark.short(2)
@pytest.mark.parametrize("wire", ["", *wires()])
def test_halo_items_in_a_wire_format_travel_between_devices(wire, device, monkeypatch):
    monkeypatch.setenv("JALI_FAKE_GPUS", "2")
    shape = (4, 6, 4, 8)
    values = [random_links(3, shape, seed=k) for k in range(4)], numbers((*shape, 4, 3))
    arguments = (values, (1, 1, 1, 2), True, {3: "antiperiodic"}, wire)
    here, there = (
        virtual_ranks(2, lambda d=d: wilson_twice(*arguments, device=d)[0].tobytes()) for d in ("cpu", device)
    )
    assert here == there


def test_devices_count_what_the_wire_cannot_hold(device, monkeypatch):
    monkeypatch.setenv("JALI_FAKE_GPUS", "2")

    def run():
        lattice = Lattice(4, 8, grid=(1, 2), halo_wire="float16", device=device)
        psi, out = lattice.field(jali.Vector(3)), lattice.field(Real())
        psi[...] = 1
        psi[3, 4] = 1000
        norm_ahead(out, psi)
        with pytest.raises(StorageError, match="1 site was given values .* by a halo item of norm_ahead"):
            out[...]

    virtual_ranks(2, run)


@pytest.mark.parametrize("there", [False, True], ids=["host", "device"])
def test_runs_for_the_clock_lose_nothing_on_the_wire(there, device, monkeypatch):
    """What a trial sends is counted by nobody: neither what the wire, nor what the field that is written cannot hold."""
    monkeypatch.setenv("JALI_FAKE_GPUS", "2")

    def run():
        lattice = Lattice(4, 8, grid=(1, 2), halo_wire="float16", device=device if there else "cpu")
        psi, out = lattice.field(jali.Vector(3)), lattice.field(Real(), storage="float16")
        psi[...] = 1
        norm_ahead(out, psi)
        psi[3, 4] = 1000
        kernel = norm_ahead.kernels(out, psi)[0]
        trial = _core.LaunchTrial(kernel.launch)
        trial.prepare_exchange()
        assert len(trial.exchange(2, 2)) == 2
        counted = [overflow.counters.values[1] for overflow in kernel.overflow]
        assert len(counted) == 2
        assert lattice.communicator.all_reduce_sum(counted).sum() > 0
        trial.finish()
        assert [overflow.counters.values[1] for overflow in kernel.overflow] == [0, 0]
        assert (out[...] == 3).all()

    virtual_ranks(2, run)


# In the long run those too that are like another one.
@pytest.mark.short(2)
@pytest.mark.parametrize(
    "wire", ["", *(pytest.param(w, marks=pytest.mark.full if k % 2 else ()) for k, w in enumerate(wires()))]
)
def test_kernels_of_halo_items_compile_for_sm_90(wire, nvrtc):
    def hop(X, out, psi, U):
        out[X] = wilson_at(X, psi, U, 0.1)

    made = program(hop, [argument(Spinor(3), 8), argument(Spinor(3), 9), LINKS], ["out", "psi", "U"])
    lowering = Lowering(1, crossing=tuple(STEPS[:2]), wire=wire, gpu=True)
    lowered = lower(analyse_program(made), lowering)
    texts = [write(one).kernel.text for one in (lowered, *(producer for _, producer in lowered.producers))]
    assert len(texts) == 3
    head = "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS 128\n#define JALI_BLOCKS 1\n"
    assert nvrtc.compile(with_gpu_prelude(f"{head}\n{in_one_program(texts)}"), "items", "sm_90")
