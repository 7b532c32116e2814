"""Halos between devices: every policy on any ranks gives the host's bits, sends what the host sends, and stops with others."""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import (
    PATH,
    REAL,
    make_fake_ccl,
    make_fake_driver,
    run_on_devices,
    until_idle,
    use_fake_ccl,
    use_fake_gpus,
)
from programs import run_python

import jali
from jali import _core, comm
from jali.errors import DeviceError, RankError
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField, plaquettes, sweep

POLICIES = [name for name, *_ in _core.halo_policies("cuda")]
OF_THREADS = [name for name in POLICIES if not name.startswith("gpu-aware-mpi")]  # which takes an MPI library
WAIT_BESIDE_THE_BULK = ["remote-write-one-launch", "remote-write-pack-in-bulk"]  # in one launch
EXTENTS = (4, 4, 4, 8)


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path) -> None:
    """Fake devices and, for these, a fake library of collectives."""
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)


def use(policy: str, use_settings: Callable[..., None], ranks: int = 2) -> None:
    """The policy for all exchanges of this test, which is skipped where a real machine has not what it takes."""
    if REAL:
        layouts = jali.virtual_ranks(ranks, why_not, policy)
        if layouts[0]:
            pytest.skip(layouts[0])
    use_settings(halo_policy=policy)


def why_not(policy: str) -> str:
    lattice = jali.Lattice(*EXTENTS, device="cuda")
    return str(lattice.layout("float64").why_not_halo_policy(comm.current().core, policy))


@jali.site_function
def diagonal(X, out, x):
    mu, nu, rho, sigma = X.directions()
    out[X] = x[X + sigma - rho] - 2 * x[X - sigma + nu] + x[X + 2 * sigma]


@jali.site_function
def slices(X, x, total, squares):
    total += x[X + X.directions()[3]].real
    squares += x[X].norm2()


def results(device: str, grid: Any = None) -> list[Any]:
    """What a program computes that needs halos of many kinds: links, spinors as items, diagonals, sums per slice."""
    lattice = jali.Lattice(*EXTENTS, grid=grid, device=device)
    U = GaugeField(lattice, SU(3)).hot_start(seed=5)
    rng = jali.Random(3)
    out: list[Any] = []
    for _ in range(2):
        sweep(U, 5.7, rng, overrelaxation=1)
        out += plaquettes(U)
    dirac = WilsonDirac(U, mass=0.1)
    psi = lattice.field(jali.Spinor(3))
    spinor = np.random.default_rng(1).normal(size=(*EXTENTS, 4, 3, 2)).view(complex)[..., 0]
    psi[:, :, :, :] = spinor
    out.append(dirac.apply(dirac.apply(psi))[...].tobytes())
    single = lattice.field(jali.Complex(), precision="float32")
    single[:, :, :, :] = spinor[..., 0, 0].astype(np.complex64)
    other = single.like()
    diagonal(other, single)
    diagonal(single, other)
    out.append(single[...].tobytes())
    for per in (None, lattice.directions[3], lattice.directions[1]):
        out += [np.asarray(part).tobytes() for part in lattice.sum(slices, single, per=per)]
    return out


@pytest.fixture(scope="module")
def reference() -> list[Any]:
    return results("cpu")


@pytest.mark.short(3)
@pytest.mark.parametrize("policy", OF_THREADS)
def test_every_policy_gives_the_bits_of_the_host(reference, policy, use_settings):
    use(policy, use_settings)
    assert all(found == reference for found in jali.virtual_ranks(2, results, "cuda"))


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("ranks", "grid"), [(3, None), (4, (1, 1, 2, 2)), (4, (2, 1, 1, 2)), (2, (1, 2, 1, 1))]
)
@pytest.mark.parametrize(
    "policy",
    [
        "remote-write-directions",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in (
                "remote-write-overlap",
                "buffered-write-directions",
                "nccl-directions",
                "copy-engine-overlap",
            )
        ),
    ],
)
def test_any_grid_gives_the_bits_of_the_host(reference, ranks, grid, policy, use_settings):
    if _core.Gpu.count("cuda") < ranks:
        pytest.skip(f"ranks of one process need a device each: {ranks}")
    use(policy, use_settings, ranks)
    assert jali.virtual_ranks(ranks, results, "cuda", grid)[-1] == reference


def exchanged(device: str) -> list[dict[str, int]]:
    lattice = jali.Lattice(*EXTENTS, device=device, lanes=1)
    U = GaugeField(lattice, SU(3)).hot_start(seed=5)
    sweep(U, 5.7, jali.Random(3), overrelaxation=1)
    return [field.storage.halo_counters for field in U.fields]


@pytest.mark.unproved("counts messages")
def test_devices_send_what_the_host_sends():
    on_host = jali.virtual_ranks(2, exchanged, "cpu")
    assert on_host[0][0]["exchanged"] > 0
    assert jali.virtual_ranks(2, exchanged, "cuda") == on_host


def long_messages(element: Any, precision: str) -> bool:
    @jali.site_function
    def neighbours(X, y, x):
        mu = X.directions()[2]
        y[X] = 2 * x[X + mu] - 0.5 * x[X - mu]

    ranks = comm.current()
    found = []
    values = None
    for device in ("cpu", "cuda"):
        lattice = jali.Lattice(64, 64, 4 * ranks.size, grid=(1, 1, ranks.size), device=device)
        x, y = (lattice.field(element, precision=precision) for _ in range(2))
        if values is None:
            values = np.random.default_rng(ranks.rank).normal(size=x.local().shape).astype(x.local().dtype)
        x.set_local(values)
        for _ in range(3):  # both slots, and one again
            neighbours(y, x)
            x.assign(y)
        found.append(y.local())
    return np.array_equal(*found)


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("element", "precision"),
    [
        (jali.Matrix(6), "float64"),  # 2.25 MiB
        (jali.Matrix(6), "float32"),
        (jali.Real(), "float64"),
        (jali.Real(), "float32"),
        (jali.Vector(3), "float32"),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["remote-write-overlap", "buffered-write-overlap", "nccl-overlap"])
def test_long_messages_arrive_whole(element, precision, policy, use_settings):
    use(policy, use_settings)
    assert jali.virtual_ranks(2, long_messages, element, precision) == [True, True]


LONG = (32, 32, 16, 16)  # whose bulk is many waves of blocks, so that the boundary begins before it has ended


def long_bulks(device: str) -> list[Any]:
    """Chains of kernels each of which reads what the bulk and the boundary of the one before have written, and sums of both."""
    grid = (1, 1, 1, comm.current().size)
    lattice = jali.Lattice(*LONG, grid=grid, device=device)
    sigma = lattice.directions[3]

    @jali.site_function
    def near(X, y, x):
        r, s = X.directions()[2:]
        y[X] = x[X + s] - 2 * x[X - s] + 3 * x[X - r + s] + 0.5 * y[X]

    @jali.site_function
    def relax(X, x):
        s = X.directions()[3]
        x[X] = 0.25 * (x[X + s] + x[X - s]) - 0.125 * x[X]

    @jali.site_function
    def slope(X, x, total):
        s = X.directions()[3]
        total += x[X + s] * x[X - s] - x[X]

    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[...] = np.random.default_rng(4).normal(size=LONG)
    out: list[Any] = []
    for _ in range(3):
        near(y, x)
        near(x, y)
        relax[jali.EVEN](x)
        relax[jali.ODD](x)
        out.append(lattice.sum(slope, x).hex())
    out.append(np.asarray(lattice.sum(slope, y, per=sigma)).tobytes())
    return [*out, x[...].tobytes(), y[...].tobytes()]


@pytest.fixture(scope="module")
def long_reference() -> list[Any]:
    return long_bulks("cpu")


@pytest.mark.short(2)
@pytest.mark.parametrize("policy", [name for name in OF_THREADS if name.endswith("-overlap")])
def test_a_boundary_that_begins_before_the_bulk_has_ended_gives_the_bits_of_the_host(
    long_reference, policy, use_settings
):
    use(policy, use_settings)
    assert all(found == long_reference for found in jali.virtual_ranks(2, long_bulks, "cuda"))


def comings_and_goings(device: str, grid: tuple[int, ...], extents: tuple[int, ...] = EXTENTS) -> list[bytes]:
    """Ghosts that grow between exchanges while others are kept, fields that go and others in their place."""
    lattice = jali.Lattice(*extents, grid=grid, device=device)
    out: list[bytes] = []

    @jali.site_function
    def near(X, y, x):
        y[X] = x[X + X.directions()[3]] - 2 * x[X - X.directions()[2]]

    @jali.site_function
    def far(X, y, x):
        mu, nu, rho, sigma = X.directions()
        y[X] += x[X + 2 * sigma] + 3 * x[X - sigma] - x[X + rho + sigma]

    def filled(element: Any, number: int, precision: str = "float64") -> Any:
        field = lattice.field(element, precision=precision)
        whole = np.random.default_rng(number).normal(size=field[...].shape)
        field[...] = whole.astype(precision)
        return field

    old = filled(jali.Real(), 1)
    first, second, y = filled(jali.Vector(3), 2), filled(jali.Vector(3), 3), filled(jali.Vector(3), 4)
    near(y, first)
    far(y, first)  # more ghosts, while those of `first` from before stay valid
    near(y, second)  # which had them before it was ever mapped, on every rank
    near(first, y)
    far(second, first)
    out.append(second[...].tobytes())
    for number in range(4):  # each in the memory of the one before, perhaps
        z = filled(jali.Vector(3), 10 + number)
        far(y, z)
        del z
    out.append(y[...].tobytes())
    single, more = filled(jali.Real(), 5, "float32"), filled(jali.Real(), 6, "float32")
    far(more, single)
    far(single, more)
    near(more, old.astype("float32"))
    out += [single[...].tobytes(), more[...].tobytes()]
    return out


@pytest.mark.short(2)
@pytest.mark.parametrize(("ranks", "grid"), [(2, (1, 1, 1, 2)), (4, (1, 1, 2, 2))])
@pytest.mark.parametrize(
    "policy",
    ["remote-write-overlap", "remote-write-wait", "remote-write-directions", "buffered-write-overlap"],
)
def test_ghosts_grow_and_fields_go_between_exchanges(policy, ranks, grid, use_settings):
    if _core.Gpu.count("cuda") < ranks:
        pytest.skip(f"ranks of one process need a device each: {ranks}")
    use(policy, use_settings, ranks)
    expected = comings_and_goings("cpu", (1, 1, 1, 1))
    assert jali.virtual_ranks(ranks, comings_and_goings, "cuda", grid) == [expected] * ranks


@pytest.mark.parametrize("policy", ["remote-write-overlap", "remote-write-directions"])
def test_parts_of_different_size_have_different_addresses_on_each_rank(policy, use_settings):
    use(policy, use_settings, 3)
    if _core.Gpu.count("cuda") < 3:
        pytest.skip("ranks of one process need a device each: 3")
    extents = (3, 5, 4, 11)  # 4, 4 and 3 slices, whose parities differ
    expected = comings_and_goings("cpu", (1, 1, 1, 1), extents)
    assert jali.virtual_ranks(3, comings_and_goings, "cuda", (1, 1, 1, 3), extents) == [expected] * 3


@pytest.mark.mpi
@pytest.mark.full
def test_processes_map_ghosts_that_grow(fake_environment):
    text = """
made = t.comings_and_goings("cuda", (1, 1, 1, 2))
print(hashlib.sha256(repr(made).encode()).hexdigest(), flush=True)
"""
    wanted = hashlib.sha256(repr(comings_and_goings("cpu", (1, 1, 1, 1))).encode()).hexdigest()
    for policy in ("remote-write-overlap", "remote-write-wait"):
        assert on_processes(text, policy, fake_environment) == [wanted] * 2


def line_of_sites(device: str) -> bytes:
    lattice = jali.Lattice(1, 9, grid=(1, 3), device=device) if device != "cpu" else jali.Lattice(1, 9)
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[...] = np.arange(9.0).reshape(x[...].shape)

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[1]]

    for _ in range(3):
        shifted[jali.EVEN](y, x)
        x.assign(y)
        shifted(y, x)
    return bytes(y[...].tobytes())


@pytest.mark.parametrize(
    "policy", ["remote-write-overlap", "remote-write-directions", "buffered-write-overlap"]
)
def test_a_rank_may_have_nothing_to_send(policy, use_settings):
    """A face of one site has one parity only."""
    use(policy, use_settings, 3)
    if _core.Gpu.count("cuda") < 3:
        pytest.skip("ranks of one process need a device each: 3")
    assert jali.virtual_ranks(3, line_of_sites, "cuda") == [line_of_sites("cpu")] * 3


@pytest.mark.full
@pytest.mark.mpi
def test_fields_that_cannot_be_mapped_go_through_buffers_and_say_so(fake_environment):
    text = """
print(t.long_messages(jali.Matrix(6), "float64"), flush=True)
"""
    environment = {**fake_environment, "JALI_FAKE_EXPORT_BYTES": str(12 << 20)}
    assert (
        on_processes(text, "", environment, said="go by way of buffers (policy buffered-write-overlap)")
        == ["True"] * 2
    )


@jali.site_function
def slope_of_coarse(X, fine, coarse):
    mu = X.directions()[-1]
    fine[X] = coarse[X.on(coarse) + mu] - coarse[X.on(coarse) - mu]


@jali.site_function
def two_ahead(X, out, f):
    out[X] = f[X + 2 * X.directions()[-1]]


def ghosts_that_grow_beyond_what_is_exported() -> bool:
    """An exchange before the kernel, whose field's ghosts have to be mapped anew when it comes again."""
    element = jali.Matrix(6)
    coarse_lattice, fine_lattice = (jali.Lattice(64, n, grid=(1, 2), device="cuda") for n in (256, 512))
    coarse, other, out = (coarse_lattice.field(element, name=name) for name in ("coarse", "other", "out"))
    fine = fine_lattice.field(element)
    right = []
    for turn in range(2):
        coarse[...] = values = np.random.default_rng(turn).normal(size=(64, 256, 6, 6)).astype(complex)
        slope_of_coarse(fine, coarse)
        wanted = np.roll(values, -1, 1) - np.roll(values, 1, 1)
        right.append(np.array_equal(fine[...], np.repeat(wanted, 2, 1)))
        os.environ["JALI_FAKE_EXPORT_BYTES"] = str(3 << 20)
        two_ahead(out, other)  # ghosts of all fields of this lattice are more
    return all(right)


@pytest.mark.mpi
def test_ghosts_that_cannot_be_mapped_again_go_through_buffers(fake_environment):
    text = "print(t.ghosts_that_grow_beyond_what_is_exported(), flush=True)"
    said = "buffers (policy buffered-write-overlap), since neighbours cannot write the ghosts of 'coarse'"
    assert on_processes(text, "", fake_environment, said=said) == ["True"] * 2


@pytest.mark.mpi
@pytest.mark.full
def test_fields_that_cannot_be_mapped_are_an_error_where_ghosts_were_requested(fake_environment):
    text = """
try:
    t.long_messages(jali.Matrix(6), "float64")
except jali.DeviceError as error:
    print("does not export" in str(error) and "buffered-write needs no mapped fields" in str(error), flush=True)
"""
    environment = {**fake_environment, "JALI_FAKE_EXPORT_BYTES": str(12 << 20)}
    assert on_processes(text, "remote-write-wait", environment) == ["True"] * 2


def test_ranks_that_share_a_device_go_by_way_of_the_host_and_say_so(reference, monkeypatch, fake_environment):
    program = """
import jali, test_halos_between_devices as t
print(jali.virtual_ranks(2, t.exchanged, "cuda")[0][0]["exchanged"] > 0)
"""
    environment = {**fake_environment, "JALI_FAKE_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    done = run_python(program, env=environment, path=PATH)
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.count("go by way of the host (policy host-staged-overlap)") == 1
    assert "share 1 GPU" in done.stderr


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("policy", "settings", "why"),
    [
        ("buffered-write-overlap", {"JALI_FAKE_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, "share 1 GPU"),
        ("nccl-wait", {"JALI_FAKE_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, "ranks 0 and 1 use one GPU"),
        *(
            (name, {"JALI_FAKE_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, "ranks 0 and 1 use one GPU")
            for name in WAIT_BESIDE_THE_BULK
        ),
        ("nccl-overlap", {"JALI_NCCL": "/nowhere/libnccl.so.2"}, "NCCL was not found"),
        ("gpu-aware-mpi-overlap", {}, "takes ranks of an MPI library"),
    ],
)
def test_a_policy_that_is_requested_and_impossible_is_an_error(policy, settings, why, fake_environment):
    program = f"""
import jali, test_halos_between_devices as t
def both():
    reason = t.why_not({policy!r})
    try:
        t.exchanged("cuda")
    except jali.DeviceError as error:
        assert f"halo policy {policy} is not possible here: {{reason}}" == str(error)
        print(reason)
jali.virtual_ranks(2, both)
"""
    environment = {**fake_environment, "JALI_NCCL": str(make_fake_ccl()), "JALI_HALO_POLICY": policy}
    done = run_python(program, env={**environment, **settings}, path=PATH)
    assert done.stdout.count(why) == 2


@pytest.mark.full
@pytest.mark.mpi
def test_processes_that_share_a_device_have_only_entries_in_which_nobody_waits_beside_the_bulk(
    reference, fake_environment
):
    text = f"""
from jali import settings
found = []
for policy in {WAIT_BESIDE_THE_BULK!r}:
    layout = jali.Lattice(*t.EXTENTS, device="cuda:0").layout("float64")
    reason = layout.why_not_halo_policy(jali.comm.current().core, policy)
    with settings.using(halo_policy=policy):
        try:
            t.exchanged("cuda:0")
        except jali.DeviceError as error:
            found.append(str(error) == f"halo policy {{policy}} is not possible here: {{reason}}")
    found.append(reason.startswith("ranks 0 and 1 use one GPU (01") and "this policy takes one for each rank" in reason)
print(all(found), len(found), hashlib.sha256(repr(t.results("cuda:0")).encode()).hexdigest(), flush=True)
"""
    wanted = hashlib.sha256(repr(reference).encode()).hexdigest()
    assert on_processes(text, "remote-write-overlap", fake_environment) == ["True", "4", wanted] * 2


def test_unknown_policies_and_switches_are_refused(use_settings):
    with pytest.raises(jali.ParameterError, match="halo_policy=by-pigeon should be .*remote-write-overlap, "):
        use_settings(halo_policy="by-pigeon")
    with pytest.raises(
        jali.ParameterError, match="halo_off=bulk,weather should be .* of pack, transport, bulk or boundary"
    ):
        use_settings(halo_off="bulk,weather")


def without(device: str) -> float:
    lattice = jali.Lattice(4, 8, device=device, grid=(1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x.set_local(np.ones(x.local().shape))

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[1]]

    shifted(y, x)
    return float(y[...].sum())


@pytest.mark.parametrize(
    ("off", "sites"), [("", 32), ("bulk", 8), ("boundary", 24), ("bulk,boundary", 0), ("transport", 24)]
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.unproved("leaves parts of exchanges out")
def test_switches_leave_out_what_they_name(off, sites, device, use_settings):
    use_settings(halo_off=off)
    assert jali.virtual_ranks(2, without, device) == [sites, sites]


def test_packing_alone_cannot_be_left_out_on_the_host(use_settings):
    use_settings(halo_off="pack")
    with pytest.raises(ValueError, match="on the host packing is a part of the transport"):
        jali.virtual_ranks(2, without, "cpu")


@jali.site_function
def add_next(X, x):
    x[X] += 2 * x[X + X.directions()[2]]


def slice_by_slice(device: str) -> Any:
    """Every rank writes a slice at a time of the field of which it sends one; those of its last slice are no bulk."""
    lattice = jali.Lattice(3, 5, 8, device=device, grid=(1, 1, 2))
    x = lattice.field(jali.Real())
    x[...] = np.random.default_rng(4).normal(size=lattice.extents)
    slices = jali.Colouring(4, lambda c: c[2] % 4)
    for _ in range(2):
        for slice in (slices[k] for k in (3, 2, 1, 0)):
            add_next[slice](x)
    return x[...]


@pytest.mark.parametrize("policy", [p for p in OF_THREADS if not p.startswith(("nccl", "host"))])
def test_what_is_sent_and_written_is_sent_first_also_without_a_bulk(policy, use_settings):
    use(policy, use_settings)
    expected, _ = jali.virtual_ranks(2, slice_by_slice, "cpu")
    for found in jali.virtual_ranks(2, slice_by_slice, "cuda"):
        assert np.array_equal(found, expected)


@jali.site_function
def following(X, out, x):
    (mu,) = X.directions()
    out[X] = x[X + mu]


def one_direction(device: str, sites: int) -> list[Any]:
    """A slab is one site. Where each rank has 4 sites none is odd, and exchanges of odd ones have no messages."""
    lattice = jali.Lattice(sites, device=device)
    x, out = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[...] = np.arange(sites) + 1
    found = []
    for domain in (jali.EVEN, jali.ODD, jali.EVEN):
        out[...] = np.zeros(sites)
        following[domain](out, x)
        x.storage.mark_written(3)
        found.append(out[...].tolist())
    return found


@pytest.mark.parametrize("policy", OF_THREADS)
def test_exchanges_may_have_no_messages(policy, use_settings):
    use(policy, use_settings)
    for sites in (8, 6):
        expected = jali.virtual_ranks(2, one_direction, "cpu", sites)
        assert jali.virtual_ranks(2, one_direction, "cuda", sites) == expected


@jali.site_function
def beyond(X, out, x):
    mu, nu = X.directions()
    out[X] = x[X] + x[X + mu] + x[X + nu]


REFUSE = 4  # what the fake driver does with a call: an error comes of it (fake_gpu_state.hpp)


def interrupted(call: int, found: list[tuple[int, int]]) -> None:
    """On rank 0 a call of an exchange fails; how many sites are written when its own stream has nothing to do, and when its
    device has not."""
    lattice = jali.Lattice(16, 16, device="cuda", grid=(2, 2))
    x, out = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[...] = np.ones(lattice.extents)
    beyond(out, x)  # all is made
    out[...] = np.zeros(lattice.extents)
    x.storage.mark_written(3)
    lattice.gpu.synchronize()
    comm.current().barrier()
    if comm.current().rank > 0:
        return beyond(out, x)
    driver = ctypes.CDLL(str(make_fake_driver()))
    written = (ctypes.c_double * 64).from_address(out.storage.address)
    driver.fakeChange(ctypes.c_long(call), REFUSE, b"", ctypes.c_long(0))
    try:
        beyond(out, x)
    finally:
        driver.fakeChange(ctypes.c_long(-1), 0, b"", ctypes.c_long(0))
        assert driver.cuStreamSynchronize(ctypes.c_void_p(lattice.gpu.stream)) == 0
        own = np.count_nonzero(written)
        assert driver.cuCtxSynchronize() == 0
        found.append((own, np.count_nonzero(written)))


@pytest.mark.skipif(REAL, reason="calls fail on the fake driver")
def test_what_an_interrupted_exchange_has_put_beside_comes_before_what_its_memory_is_used_for_next(
    use_settings,
):
    use_settings(halo_policy="host-staged-directions")
    found: list[tuple[int, int]] = []
    for call in range(9):
        with pytest.raises((DeviceError, RankError)):
            jali.virtual_ranks(4, interrupted, call, found)
    assert {own for own, all_of_it in found if own == all_of_it} == {0, 7 * 7}
    assert all(own == all_of_it for own, all_of_it in found)


def left_alone() -> None:
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[2]]

    shifted(y, x)
    comm.current().barrier()  # a rank that failed earlier would be heard of before anything waits on a device
    if comm.current().rank == 1:
        raise ArithmeticError("rank 1 has had enough")
    x.storage.mark_written(3)
    shifted(y, x)  # waits on the device for a message that never comes
    with pytest.raises(RankError, match="rank 1 has had enough") as caught:
        y.local()
    raise caught.value


@pytest.mark.short(1)
@pytest.mark.parametrize(
    "policy", ["remote-write-overlap", "remote-write-wait", "buffered-write-overlap", "nccl-overlap"]
)
def test_a_rank_whose_device_waits_for_one_that_failed_stops(policy, use_settings):
    use(policy, use_settings)
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        jali.virtual_ranks(2, left_alone)
    until_idle()


def one_ahead_of_the_other(factor: float) -> bool:
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[...] = np.arange(128.0).reshape(4, 4, 8)

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[2]]

    @jali.site_function
    def scaled(X, y):
        y[X] = factor * y[X]

    shifted(y, x)
    expected = factor * y[...]
    x.storage.mark_written(3)
    comm.current().barrier()
    if comm.current().rank == 1:
        time.sleep(0.5)
        lattice.gpu.trim()  # gives memory back, for which the driver wants this device idle, not the other
    shifted(y, x)  # the device of rank 0 waits for what rank 1 has not yet asked its own to send
    scaled(y)  # a kernel to load, for which the driver wants the device idle
    lattice.gpu.trim()
    return bool(np.array_equal(y[...], expected))


@pytest.mark.short(5)
@pytest.mark.parametrize("policy", OF_THREADS)
def test_a_rank_that_loads_a_kernel_or_frees_memory_while_a_device_waits_keeps_no_other_from_sending(
    policy, use_settings
):
    use(policy, use_settings)
    another = 3.0 + OF_THREADS.index(policy)  # a kernel that no test has loaded
    assert jali.virtual_ranks(2, one_ahead_of_the_other, another) == [True, True]


@pytest.mark.skipif(REAL, reason="needs a fake library of collectives")
def test_an_error_of_the_library_while_it_carries_halos_raises_on_all(monkeypatch, use_settings):
    use_settings(halo_policy="nccl-overlap")
    monkeypatch.setenv("JALI_FAKE_CCL_ERROR_AFTER", "6")
    monkeypatch.setenv("JALI_FAKE_CCL_ONLY", "1")
    with pytest.raises(DeviceError, match="the fake cable is unplugged"):
        jali.virtual_ranks(2, exchanged_and_waited)


def exchanged_and_waited() -> None:
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[2]]

    for _ in range(10):
        x.storage.mark_written(3)
        shifted(y, x)
    y.local()


@pytest.mark.skipif(REAL, reason="looks into the folder of a fake library")
def test_all_lattices_of_the_same_ranks_share_one_group_of_the_library(use_settings, tmp_path):
    use_settings(halo_policy="nccl-overlap")

    def groups() -> int:
        for _ in range(3):
            exchanged_and_waited()
        jali.comm.current().barrier()
        return len(list(tmp_path.glob("fake-ccl-*")))

    assert jali.virtual_ranks(2, groups) == [1, 1]
    assert not list(tmp_path.glob("fake-ccl-*"))  # ended with its ranks


def in_a_graph() -> bool:
    """Two exchanges recorded once and repeated, against the same done step by step."""
    lattice = jali.Lattice(8, 8, device="cuda", grid=(1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def average(X, y, x):
        mu, nu = X.directions()
        y[X] = 0.25 * (x[X + mu] + x[X - mu] + x[X + nu] + 2 * x[X - nu])

    def both() -> None:
        average(y, x)
        average(x, y)

    start = np.random.default_rng(comm.current().rank).normal(size=x.local().shape)
    x.set_local(start)
    for _ in range(4):
        both()
    wanted = x.local()
    graph = _core.GpuGraph(lattice.gpu, both)
    x.set_local(start)
    both()
    for _ in range(3):
        lattice.gpu.launch_graph(graph)
    return np.array_equal(x.local(), wanted) and not np.array_equal(wanted, start)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "policy",
    [
        "remote-write-overlap",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in (
                "remote-write-wait",
                "remote-write-directions",
                "buffered-write-overlap",
                "copy-engine-overlap",
                "nccl-overlap",
                "nccl-directions",
            )
        ),
    ],
)
def test_exchanges_in_a_graph_can_be_repeated(policy, fake_environment):
    text = "print(t.in_a_graph(), flush=True)"
    assert on_processes(text, policy, fake_environment) == ["True", "True"]


@pytest.mark.mpi
@pytest.mark.full
def test_exchanges_that_need_the_host_are_not_recorded(fake_environment):
    text = """
try:
    t.in_a_graph()
except jali.DeviceError as error:
    print("cannot be recorded in a graph; use one of the remote-write, buffered-write or copy-engine policies, or one of the vendor's library" in str(error), flush=True)
"""
    environment = {**fake_environment, "JALI_GPU_AWARE_MPI": "1"}
    assert on_processes(text, "gpu-aware-mpi-wait", environment) == ["True", "True"]


def on_processes(
    text: str, policy: str, environment: dict[str, str], ranks: int = 2, said: str = ""
) -> list[str]:
    """Words that ranks which are processes print, each with a fake device; `t` in their text is this module."""
    head = "import hashlib, jali, test_halos_between_devices as t\n"
    done = run_on_devices(ranks, head + text, {**environment, "JALI_HALO_POLICY": policy})
    assert done.stderr.count(said) == 1 or not said, done.stderr
    return done.stdout.split()


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("policy", "ranks"),
    [
        ("remote-write-overlap", 2),
        *(
            pytest.param(p, n, marks=pytest.mark.full)
            for p, n in (
                ("buffered-write-overlap", 2),
                ("remote-write-directions", 4),
                ("nccl-overlap", 2),
                ("gpu-aware-mpi-overlap", 2),
                ("copy-engine-directions", 2),
                ("host-staged-overlap", 2),
                ("nccl-directions", 4),
                ("gpu-aware-mpi-directions", 4),
                ("gpu-aware-mpi-wait", 2),
            )
        ),
    ],
)
def test_processes_give_the_bits_of_the_host(reference, policy, ranks, fake_environment):
    digest = 'print(hashlib.sha256(repr(t.results("cuda")).encode()).hexdigest(), flush=True)'
    wanted = hashlib.sha256(repr(reference).encode()).hexdigest()
    environment = {**fake_environment, "JALI_GPU_AWARE_MPI": "1"}
    assert on_processes(digest, policy, environment, ranks) == [wanted] * ranks


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("aware", "why"),
    [
        ("", "does not say that it takes cuda memory; use one that was built for it"),
        ("0", "JALI_GPU_AWARE_MPI=0 says that"),
    ],
)
@pytest.mark.full
def test_an_mpi_library_without_devices_is_not_given_any(aware, why, fake_environment):
    text = f"""
try:
    t.exchanged("cuda")
except jali.DeviceError as error:
    print({why!r} in str(error), flush=True)
"""
    environment = {**fake_environment, "JALI_GPU_AWARE_MPI": aware}
    assert on_processes(text, "gpu-aware-mpi-overlap", environment) == ["True", "True"]
