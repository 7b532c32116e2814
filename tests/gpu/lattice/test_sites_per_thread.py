"""Several sites per thread, and neighbours loaded together: the bits of one site per thread, for every kind of kernel.

On the fake device a kernel runs as one thread, so that tiles are as small as they can be; `make test-gpu` runs the same with blocks of 64 to 256.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cubin import resources_of
from fake_driver import REAL, make_fake_ccl
from ptx import ptx_text

import jali
from jali import _core
from jali._core import with_gpu_prelude
from jali.gauge import SU, GaugeField, overrelaxation_sweep, plaquette
from jali.lattice import tuning
from jali.lattice.sums import Sums
from jali.tune import room_for, stores, variants_for

sys.path.insert(0, str(Path(__file__).parents[2] / "tune"))
from invented_times import forget_in_memory, invent_times

LAUNCHES = ["64,1,2", "256,1,4", "128,2,1,2", "64,1,1,4", "64,1,2,4"]


@pytest.fixture(autouse=True)
def untuned(
    kernels_of_file: Path, monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    use_settings(tune="off")
    monkeypatch.setenv("JALI_FAKE_GPUS", "2")
    forget_in_memory()


def filled(lattice: Any, element: Any, seed: int, **options: Any) -> Any:
    """A field of normal numbers that do not depend on the device."""
    field = jali.Field(lattice, element, **options)
    shape = field.local().shape
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    if field.local().dtype.kind == "c":
        values = values + 1j * rng.normal(size=shape)
    field.set_local(values.astype(field.local().dtype))
    return field


@jali.site_function
def axpy(X, y, x, a):
    y[X] += a * x[X]


@jali.site_function
def swap(X, x, y):
    old = x[X]
    x[X] = y[X]
    y[X] = old


@jali.site_function
def norms(X, x, y, total, other):
    total += x[X].norm2()
    other += (0.3 * y[X]).norm2()


@jali.site_function
def mix(X, x, a):
    for mu in X.directions():
        x[X] += a * (x[X + mu] - 0.5 * x[X - mu])


@jali.site_function
def hop(X, out, psi, U):
    for mu in X.directions():
        out[X] += U[mu][X] * psi[X + mu] - U[mu][X - mu].dagger() * psi[X - mu]


@jali.site_function
def noise(X, x, rng, total):
    x[X] = 0.5 * x[X] + rng.gaussian(X) + 0.1 * X.coordinate(X.directions()[0])
    total += x[X]


@jali.site_function
def attempts(X, x, rng, total):
    def attempt():
        u = rng.uniform(X)
        return u < 0.3, u + x[X]

    x[X] = X.repeat_until(attempt, 3, 0.0)
    total += x[X]


# Each has other packets: 8, 8, 16, 4, 8, 8 and 4 bytes; the last is stored in another precision than it is computed in.
ELEMENTS: dict[str, tuple[Any, dict[str, str], int]] = {
    "real": (jali.Real(), {}, 2),
    "three reals": (jali.Vector(3, "real"), {}, 2),
    "colour vector": (jali.Vector(3), {}, 1),
    "real, float32": (jali.Real(), {"precision": "float32"}, 4),
    "complex, float32": (jali.Complex(), {"precision": "float32"}, 2),
    "colour vector, float32": (jali.Vector(3), {"precision": "float32"}, 2),
    "algebra, float32": (jali.Algebra(2), {"precision": "float32"}, 4),
    "stored in float32": (jali.Real(), {"storage": "float32"}, 4),
}


def element_wise(device: str, name: str) -> list[bytes]:
    """Fields and sums after functions of single sites: over everything, over colours, and over a list of sites."""
    lattice = jali.Lattice(3, 5, 7, device=device)  # colours end where no neighbours do
    element, options, _ = ELEMENTS[name]
    x, y = filled(lattice, element, 1, **options), filled(lattice, element, 2, **options)
    three = jali.Colouring(3, lambda c: (c[0] + c[1]) % 3)
    sums: list[Any] = []
    for domain in (jali.ALL, jali.EVEN, jali.ODD, three[1]):
        axpy[domain](y, x, 0.7)
        swap[domain](x, y)
    sums += lattice.sum(norms, x, y)
    sums += lattice.sum(norms, x, y, per=lattice.directions[1])
    return [*(np.asarray(s).tobytes() for s in sums), x.local().tobytes(), y.local().tobytes()]


# one launch for each kind of packets in the short run, all in the long one
SHORT = [
    ("real", "64,1,2,4"),
    ("three reals", "128,2,1,2"),
    ("colour vector", "256,1,4"),
    ("real, float32", "64,1,1,4"),
]
LONG = [(name, launch) for name in ELEMENTS for launch in LAUNCHES if (name, launch) not in SHORT]


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("name", "launch"), [*SHORT, *(pytest.param(*pair, marks=pytest.mark.full) for pair in LONG)]
)
def test_functions_of_single_sites_have_the_bits_of_the_host(name, launch, use_settings):
    expected = element_wise("cpu", name)
    use_settings(launch=launch)
    assert element_wise("cuda", name) == expected


def others(device: str) -> list[Any]:
    """With neighbours, halo items, random numbers, coordinates, attempts that are counted, and sums over slices."""
    lattice = jali.Lattice(4, 6, 8, device=device)
    x = filled(lattice, jali.Real(), 1)
    rng = jali.Random(3)
    before = attempts.exhausted
    found: list[Any] = []
    for per in (None, lattice.directions[1]):
        for colour in jali.PARITIES:
            mix[colour](x, 0.1)
        found.append(lattice.sum(noise, x, rng, per=per))
        found.append(lattice.sum(attempts, x, rng, per=per))
    U = GaugeField(lattice, SU(2)).hot_start(seed=4)
    overrelaxation_sweep(U)
    psi, out = filled(lattice, jali.Vector(2), 5), filled(lattice, jali.Vector(2), 6)
    hop(out, psi, U)
    found += [plaquette(U), *(field.local() for field in (x, out, *U.fields))]
    return [*(np.asarray(f).tobytes() for f in found), rng.state, attempts.exhausted - before]


@pytest.mark.full
@pytest.mark.parametrize(
    ("launch", "device"),
    [
        ("64,1,2", "cuda"),
        *(pytest.param(launch, "cuda", marks=pytest.mark.full) for launch in LAUNCHES[1:]),
        pytest.param("64,1,4", "hip", marks=pytest.mark.full),
    ],
)
def test_all_other_functions_have_the_bits_of_the_host(launch, device, use_settings):
    expected = others("cpu")
    use_settings(launch=launch)
    assert others(device) == expected


def with_halos(device: str) -> list[bytes]:
    """A rank's part after functions of neighbours, in bulk and boundary."""
    lattice = jali.Lattice(4, 6, 8, device=device, grid=(1, 1, 2))
    x = filled(lattice, jali.Real(), 1)
    U = GaugeField(lattice, SU(2)).hot_start(seed=4)
    psi, out = filled(lattice, jali.Vector(2), 5), filled(lattice, jali.Vector(2), 6)
    for _ in range(2):
        for colour in jali.PARITIES:
            mix[colour](x, 0.1)
        hop(out, psi, U)
        hop(psi, out, U)
        axpy(x, x, 0.1)
    sums = lattice.sum(norms, x, x)
    return [np.asarray(f).tobytes() for f in (*sums, x.local(), psi.local())]


@pytest.mark.parametrize("launch", ["64,1,2", pytest.param("64,1,4,2", marks=pytest.mark.full)])
def test_every_entry_of_halo_policies_has_the_bits_of_the_host(launch, monkeypatch, use_settings, tmp_path):
    if _core.Gpu.count("cuda") < 2:
        pytest.skip("ranks of one process need a device each: 2")
    expected = jali.virtual_ranks(2, with_halos, "cpu")
    use_settings(launch=launch)
    monkeypatch.setenv("JALI_FAKE_CCL_FOLDER", str(tmp_path))
    if not REAL:
        use_settings(nccl=str(make_fake_ccl()))
    for policy, *_ in _core.halo_policies("cuda"):
        if policy.startswith("gpu-aware-mpi"):  # which takes an MPI library
            continue
        use_settings(halo_policy=policy)
        assert jali.virtual_ranks(2, with_halos, "cuda") == expected, policy


def test_a_graph_repeats_what_was_recorded(use_settings):
    use_settings(launch="64,1,2,2")
    lattice = jali.Lattice(5, 7, device="cuda")
    x, y = filled(lattice, jali.Real(), 1), filled(lattice, jali.Real(), 2)
    start = x.local()

    def both() -> None:
        axpy(x, y, 0.5)
        for colour in jali.PARITIES:
            axpy[colour](y, x, 0.25)

    for _ in range(3):
        both()
    wanted = x.local(), y.local()
    x.set_local(start)
    y.assign(filled(lattice, jali.Real(), 2))
    graph = _core.GpuGraph(lattice.gpu, both)
    for _ in range(3):
        lattice.gpu.launch_graph(graph)
    assert np.array_equal(x.local(), wanted[0])
    assert np.array_equal(y.local(), wanted[1])


# ---- what is tuned ----------------------------------------------------------------------------------------------------


def launch_of(function: Any, *arguments: Any) -> str:
    return str(jali.inspect(function, *arguments).launch)


def fastest(winner: str) -> Any:
    """Times in which one candidate wins, and those on the way to it are better than the default."""
    return lambda name, rank: (
        1e-3 if name == winner else 1.5e-3 - 1e-6 * len(name) if winner.startswith(name) else 1.8e-3
    )


def fresh(device: str = "cuda") -> Any:
    """A site function that is compiled nowhere yet, and its fields."""

    @jali.site_function
    def halve(X, y, x):
        y[X] = 0.5 * x[X] - y[X]

    lattice = jali.Lattice(16, 16, device=device)
    return halve, filled(lattice, jali.Real(), 1), filled(lattice, jali.Real(), 2)


@pytest.mark.parametrize(
    ("winner", "compiled"),
    [
        ("256,1", {"256,1", "256,1,1,2", "256,1,2"}),
        ("256,1,2", {"256,1", "256,1,1,2", "256,1,2", "256,1,4"}),
        ("256,1,4 as 64 threads in 1 wave", {"256,1", "256,1,1,2", "256,1,2", "256,1,4"}),
        ("256,1,1,2", {"256,1", "256,1,1,2", "256,1,2,2"}),
    ],
)
def test_few_variants_are_compiled_and_the_fastest_is_remembered(
    winner, compiled, monkeypatch, use_settings, tmp_path
):
    tmp_path.chmod(0o700)
    use_settings(cache_dir=str(tmp_path))
    use_settings(tune="now")
    monkeypatch.setattr(tuning, "registers_of", lambda kernel: 32)

    def times(name: str, rank: int) -> float:
        if name == "256,1,2" and winner.startswith("256,1,4"):
            return 1.4945e-3  # on the way to four sites: better than one, worse than four
        return float(fastest(winner)(name, rank))

    ran = invent_times(monkeypatch, times)
    function, y, x = fresh()
    before = y.local()
    function(y, x)
    assert np.array_equal(y.local(), 0.5 * x.local() - before)
    assert {name.partition(" ")[0] for _, name in ran} == compiled
    assert len(list(tmp_path.glob("halve-*.bin"))) == len(compiled) <= 4
    ((entry,),) = [store.read().values() for store in stores()]
    assert (entry.chosen, entry.default) == (winner, "256,1")
    assert launch_of(function, y, x).startswith(f"{winner}:")
    # another process reads it, and compiles nothing else
    forget_in_memory()
    ran.clear()
    again = jali.site_function(function.function)
    again(y, x)
    assert ran == []
    assert launch_of(again, y, x).startswith(f"{winner}:")
    assert np.array_equal(y.local(), 0.5 * x.local() - (0.5 * x.local() - before))


@pytest.mark.parametrize(("kind", "registers"), [("cuda", 90), ("hip", 125)])
def test_kernels_of_many_registers_are_not_given_several_sites(kind, registers, monkeypatch, use_settings):
    use_settings(tune="now")
    monkeypatch.setattr(tuning, "registers_of", lambda kernel: registers)
    ran = invent_times(monkeypatch, fastest("256,1"))
    function, y, x = fresh(kind)
    function(y, x)
    bounded = {config.name for config in variants_for(kind, registers)}
    assert {name.partition(" ")[0] for _, name in ran} == bounded


def test_room_for_several_sites_is_a_matter_of_what_they_load():
    assert room_for(4, 52, 4)  # the norm of a real field in float64
    assert room_for(2, 76, 36)  # norms of SU(3) matrices in float32
    assert not room_for(2, 86, 72)  # an axpy of such matrices in float64
    assert not room_for(2, 130, 0)


def test_neighbours_are_loaded_together_where_they_make_sixteen_bytes(use_settings):
    use_settings(launch="64,1,2,4")
    lattice = jali.Lattice(4, 4, device="cuda")
    for element, options, most in ELEMENTS.values():
        x, y = filled(lattice, element, 1, **options), filled(lattice, element, 2, **options)
        said = launch_of(axpy, y, x, 0.5)
        if most == 4:
            assert said == "64,1,2,4: an experiment"
        elif most == 2:
            assert (
                said
                == "64,1,2,2: an experiment asked for 64,1,2,4, but a thread loads 2 neighbours at most here"
            )
        else:
            assert said == "64,1,2: an experiment asked for 64,1,2,4, but a thread loads no neighbours here"
    x = filled(lattice, jali.Real(), 1)
    no_neighbours = "64,1,2: an experiment asked for 64,1,2,4, but a thread loads no neighbours here"
    assert launch_of(mix[jali.EVEN], x, 0.5) == no_neighbours
    three = jali.Colouring(3, lambda c: (c[0] + c[1]) % 3)
    assert launch_of(axpy[three[0]], x, x, 0.5) == no_neighbours


def test_a_width_that_a_file_names_is_not_taken_where_sites_are_a_list(monkeypatch, use_settings):
    """As many sites of the same box, in a row and listed, are two questions; an edited answer is measured again."""
    use_settings(tune="now")
    monkeypatch.setattr(tuning, "registers_of", lambda kernel: 32)
    ran = invent_times(monkeypatch, fastest("256,1,1,2"))
    function, y, x = fresh()
    two = jali.Colouring(2, lambda c: c[0] % 2)
    function[jali.EVEN](y, x)
    assert launch_of(function[jali.EVEN], y, x).startswith("256,1,1,2: ")
    function[two[1]](y, x)
    assert launch_of(function[two[1]], y, x).startswith("256,1: the default")
    (file,) = [store.path for store in stores()]
    text = file.read_text()
    assert '"volume": "128 listed positions of 16x16"' in text
    file.write_text(text.replace('"chosen": "256,1"', '"chosen": "256,1,1,2"'))
    forget_in_memory()
    ran.clear()
    again = jali.site_function(function.function)
    before = y.local()
    again[two[1]](y, x)
    assert ran != []
    assert launch_of(again[two[1]], y, x).startswith("256,1: the default")
    expected = before.copy()
    expected[1::2] = (0.5 * x.local() - before)[1::2]
    assert np.array_equal(y.local(), expected)


@pytest.mark.parametrize(
    "text",
    [
        "256",
        "256,1,3",
        "256,1,0",
        "256,1,2,8",
        "256,1,2,2,1",
        "256,1,",
        "256,1,2,",
        "100,1,2",
        "256,40,2",
        "a,b",
    ],
)
def test_other_launches_are_refused(text, use_settings):
    x = filled(jali.Lattice(4, 4, device="cuda"), jali.Real(), 1)
    with pytest.raises(jali.ParameterError, match=f"launch={text} should be threads.*sites"):
        use_settings(launch=text)  # what is no launch at all
        axpy(x, x, 0.5)


# ---- what a real compiler makes of it ------------------------------------------------------------------------------------


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("launch", "precision"),
    [
        ("256,1,4", "float64"),
        ("256,1,1,4", "float32"),
        *(
            pytest.param(launch, precision, marks=pytest.mark.full)
            for launch in ("256,1", "256,1,2", "256,1,4", "256,1,1,2", "256,1,2,4")
            for precision in ("float64", "float32")
        ),
    ],
)
def test_launches_compile_for_sm_90_and_keep_all_sites_in_registers(
    launch, precision, nvrtc, monkeypatch, use_settings, tmp_path, request
):
    tmp_path.chmod(0o700)
    use_settings(cache_dir=str(tmp_path))
    use_settings(launch=launch)
    monkeypatch.setenv("JALI_FAKE_COMPILER", "idle")  # only the texts are wanted
    lattice = jali.Lattice(4, 6, 8, device="cuda")
    x, y = (jali.Field(lattice, jali.Real(), precision=precision) for _ in range(2))
    u, v = (jali.Field(lattice, jali.Complex(), precision=precision) for _ in range(2))
    axpy.kernels(y, x, 0.5)
    swap.kernels(u, v)
    norms.kernels(x, y, lattice=lattice, sums=Sums())
    mix.kernels(x, 0.5, over=jali.EVEN)
    if request.node.get_closest_marker("full"):
        a, b = (jali.Field(lattice, jali.Matrix(3), precision=precision) for _ in range(2))
        axpy.kernels(a, b, 0.5)
        norms.kernels(a, b, lattice=lattice, sums=Sums())
        attempts.kernels(x, jali.Random(1), lattice=lattice, sums=Sums())
    several = set()
    for source in sorted(tmp_path.glob("*.cu")):
        if source.stem.startswith("builtin"):
            continue
        text, name = source.read_text(), source.stem.rpartition("-")[0]
        if "JALI_SITES" in text:
            several.add(name)
        found = resources_of(nvrtc.compile(with_gpu_prelude(text), name, "sm_90"))["kernel"]
        print(f"{launch} {name} {precision}: {found.registers} registers")
        assert 0 < found.registers <= 255
        assert found.stack == 0, name
    of_single_sites = {"axpy", "norms"} | ({"swap"} if precision == "float32" else set())
    if launch == "256,1":
        assert several == set()
    else:
        assert several >= of_single_sites
        assert ("mix" in several) == (not launch.startswith("256,1,1"))


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("launch", "precision", "loads", "stores"),
    [
        ("256,1,2", "float64", {"f64": 4}, {"f64": 2}),
        ("256,1,4", "float64", {"f64": 8}, {"f64": 4}),
        # what is stored singly are ends where not all neighbours are there
        ("256,1,1,2", "float64", {"v2.f64": 2}, {"v2.f64": 1, "f64": 2}),
        ("256,1,1,4", "float32", {"v4.f32": 2}, {"v4.f32": 1, "f32": 4}),
        ("256,1,2,4", "float32", {"v4.f32": 4}, {"v4.f32": 2, "f32": 8}),
    ],
)
def test_a_thread_loads_all_its_sites_before_it_stores_the_first(
    launch, precision, loads, stores, nvrtc, monkeypatch, use_settings, tmp_path
):
    """By what NVRTC hands to the assembler, which keeps the order of loads and stores that may meet."""
    tmp_path.chmod(0o700)
    use_settings(cache_dir=str(tmp_path))
    use_settings(launch=launch)
    monkeypatch.setenv("JALI_FAKE_COMPILER", "idle")
    lattice = jali.Lattice(4, 6, 8, device="cuda")
    x, y = (jali.Field(lattice, jali.Real(), precision=precision) for _ in range(2))
    axpy.kernels(y, x, 0.5)
    (source,) = tmp_path.glob("axpy-*.cu")
    text = ptx_text(nvrtc, with_gpu_prelude(source.read_text()), "sm_90")
    accesses = re.findall(r"\b(ld|st)\.global\.((?:v\d\.)?f\d+)", text)
    assert Counter(t for way, t in accesses if way == "ld") == loads
    assert Counter(t for way, t in accesses if way == "st") == stores
    assert [way for way, _ in accesses] == ["ld"] * sum(loads.values()) + ["st"] * sum(stores.values())
