"""Kernels and halos tuned on devices: same bits whatever is chosen, nothing left behind, nothing in graphs, remembered."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import use_fake_gpus
from test_halos_between_devices import on_processes

import jali
from jali import _core
from jali.comm import Communicator
from jali.lattice import tuning
from jali.tune import Question, stores

sys.path.insert(0, str(Path(__file__).parents[2] / "tune"))
from invented_times import forget_in_memory, invent_times

VARIANTS = ["256,1", "128,3", "256,2", "256,3"]


def need_registers(monkeypatch: pytest.MonkeyPatch, registers: int) -> None:
    """Kernels are tuned as if they needed so many."""
    monkeypatch.setattr(tuning, "registers_of", lambda kernel: registers)


@pytest.fixture(autouse=True)
def tuned_at_once(
    kernels_of_file: Path, monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    use_settings(tune="now")
    need_registers(monkeypatch, 200)
    use_fake_gpus(monkeypatch, 4)
    forget_in_memory()


def fastest(winner: str) -> Any:
    """Times in which one candidate wins; those that come before it in its family are good, too."""

    def times(name: str, rank: int) -> float:
        if name == winner:
            return 1e-3
        return 1.5e-3 - 1e-6 * len(name) if winner.startswith(name) else 1.8e-3

    return times


@jali.site_function
def draw(X, x, rng, total):
    def attempt():
        u = rng.uniform(X)
        return u < 0.3, u

    x[X] += X.repeat_until(attempt, 3, 0.0)
    total += x[X]


@jali.site_function
def mix(X, x):
    for mu in X.directions():
        x[X] += 0.125 * (x[X + mu] - 0.5 * x[X - mu])


def history(device: str) -> list[Any]:
    """Fields, sums and counters after updates in place, some of which draw random numbers."""
    lattice = jali.Lattice(4, 4, 8, device=device)
    x = lattice.field(jali.Real())
    x[...] = np.random.default_rng(1).normal(size=(4, 4, 8))
    rng = jali.Random(3)
    out: list[Any] = []
    for per in (None, lattice.directions[2], None):
        for colour in jali.PARITIES:
            mix[colour](x)
        out.append(lattice.sum(draw, x, rng, per=per))
    return [*(np.asarray(o).tobytes() for o in out), x[...].tobytes(), rng.state, draw.exhausted]


def without_exhausted(device: str) -> list[Any]:
    before = draw.exhausted
    found = history(device)
    return [*found[:-1], found[-1] - before]


@pytest.mark.parametrize(
    "winner", ["256,1", "256,2 as 64 threads in 4 waves", "128,3 as 64 threads", "256,3 in 1 wave"]
)
@pytest.mark.short(2)
def test_every_choice_gives_the_bits_of_the_host(winner, device, monkeypatch, use_settings):
    expected = without_exhausted("cpu")
    ran = invent_times(monkeypatch, fastest(winner if device == "cuda" else winner.replace("128,3", "256,1")))
    assert without_exhausted(device) == expected
    assert len(ran) > 5
    chosen = {e.chosen for store in stores() for e in store.read().values()}
    if device == "cuda":
        assert winner in chosen
        assert chosen <= {
            winner,
            winner.partition(" in ")[0],
        }  # kernels that add sums up have no waves to choose
    ran.clear()
    for mode in ("cached", "on", "off", "again"):
        use_settings(tune=mode)
        forget_in_memory()
        assert without_exhausted(device) == expected, mode
        assert (ran != []) == (mode == "again"), mode


@jali.site_function
def scale(X, x, y):
    x[X] = 2 * x[X] + y[X]


def fields(n: int = 16) -> tuple[Any, Any]:
    lattice = jali.Lattice(n, n, device="cuda")
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[:, :] = np.arange(float(n * n)).reshape(n, n)
    y[:, :] = 1.0
    return x, y


def chosen_for(function: Any, *arguments: Any) -> str:
    return jali.inspect(function, *arguments).launch


def test_what_is_chosen_is_shown_remembered_and_at_most_four_kernels_are_compiled(
    kernels_of_file, monkeypatch
):
    ran = invent_times(monkeypatch, fastest("256,2 as 128 threads"))

    @jali.site_function
    def five_times(X, x, y):
        x[X] = 5 * x[X] + y[X]

    x, y = fields()
    assert chosen_for(five_times, x, y) == "256,1: the default, not measured"
    five_times(x, y)
    assert {name for _, name in ran} >= set(VARIANTS)
    assert len(list(kernels_of_file.glob("five_times-*.bin"))) == 4
    wanted = "256,2 as 128 threads: 1.80 times as fast as 256,1, of 8, measured "
    assert chosen_for(five_times, x, y).startswith(wanted)
    assert wanted in str(jali.inspect(five_times, x, y))
    ((entry,),) = [store.read().values() for store in stores()]
    assert entry.question.volume == "256 positions of 16x16"
    forget_in_memory()
    ran.clear()
    again = jali.site_function(five_times.function)
    u, v = fields()
    again(u, v)
    again(u, v)
    (kernel,) = next(iter(again._bound.values())).kernels
    assert kernel.chosen.launch.startswith(wanted)
    assert ran == []
    other, ones = fields(32)  # another volume is another question
    again(other, ones)
    assert ran != []


def test_variants_that_bound_nothing_are_not_compiled(kernels_of_file, monkeypatch):
    need_registers(monkeypatch, 70)
    ran = invent_times(monkeypatch, fastest("256,1"))

    @jali.site_function
    def thrice(X, x, y):
        x[X] = 3 * x[X] + y[X]

    thrice(*fields())
    # instead, two neighbours and two sites per thread, neither of which was faster
    assert len(list(kernels_of_file.glob("thrice-*.bin"))) == 3
    assert {name for _, name in ran} >= {"256,1", "256,1,1,2", "256,1,2"}
    assert {name for _, name in ran}.isdisjoint(VARIANTS[1:])


def test_fields_are_put_back_when_a_candidate_raises(monkeypatch, use_settings):
    def times(name: str, rank: int) -> float:
        if name == "256,2":
            raise ArithmeticError("no clock")
        return 1e-3

    invent_times(monkeypatch, times)
    x, y = fields()
    before = x[:, :], x.storage.versions()
    function = jali.site_function(scale.function)
    with pytest.raises(ArithmeticError, match="no clock"):
        function(x, y)
    assert np.array_equal(x[:, :], before[0])
    assert x.storage.versions() == before[1]
    assert stores() == []
    use_settings(tune="off")
    scale(x, y)
    assert np.array_equal(x[:, :], 2 * before[0] + 1)


def test_a_variant_that_does_not_compile_is_out(monkeypatch):
    from jali.codegen import kernel_cache
    from jali.errors import CompileError

    load = kernel_cache.load_on_device

    def broken(
        gpu: Any, name: str, text: str, precision: str, threads: int, blocks: int, *more: int, **named: int
    ) -> Any:
        if blocks == 2:
            raise CompileError("the compiler has had enough\nof this")
        return load(gpu, name, text, precision, threads, blocks, *more, **named)

    monkeypatch.setattr(kernel_cache, "load_on_device", broken)
    invent_times(monkeypatch, fastest("256,3"))
    scale(*fields())
    ((entry,),) = [store.read().values() for store in stores()]
    assert entry.chosen == "256,3"
    assert {c.name: c.note for c in entry.candidates}["256,2"] == "the compiler has had enough"


def test_small_and_short_kernels_keep_the_default():
    x, y = fields()
    scale(x, y)
    assert "256 positions are too few to tune for" in chosen_for(scale, x, y)
    x, y = fields(64)
    function = jali.site_function(scale.function)
    function(x, y)
    (kernel,) = next(iter(function._bound.values())).kernels
    assert kernel.tunings == []
    assert stores() == [] or "us are too short to tune" not in kernel.chosen.launch


def test_by_default_a_kernel_is_measured_when_it_has_run_long_enough(monkeypatch, use_settings):
    use_settings(tune="on")
    ran = invent_times(monkeypatch, fastest("256,2"))
    x, y = fields()
    function = jali.site_function(scale.function)
    monkeypatch.setattr(tuning, "PAYS", 1e9)
    for _ in range(tuning.FIRST_CHECK):
        function(x, y)
    assert ran == []
    monkeypatch.setattr(tuning, "PAYS", 0.0)
    for _ in range(4 * tuning.FIRST_CHECK - tuning.FIRST_CHECK - 1):
        function(x, y)
    assert ran == []
    function(x, y)
    assert ran != []


def test_nothing_is_measured_while_a_graph_is_recorded(monkeypatch, use_settings):
    use_settings(tune="on")
    monkeypatch.setattr(tuning, "FIRST_CHECK", 2)
    monkeypatch.setattr(tuning, "PAYS", 0.0)
    ran = invent_times(monkeypatch, fastest("256,2"))
    x, y = fields()
    start = x[:, :]
    function = jali.site_function(scale.function)
    function(x, y)
    graph = _core.GpuGraph(x.lattice.gpu, lambda: function(x, y))
    assert ran == []
    (kernel,) = next(iter(function._bound.values())).kernels
    assert kernel.chosen.launch == "256,1: the default, not measured"
    x[:, :] = start
    x.lattice.gpu.launch_graph(graph)
    function(x, y)  # now it is measured, which the graph does not mind
    assert ran != []
    assert kernel.chosen.launch.startswith("256,2: ")
    x.lattice.gpu.launch_graph(graph)
    assert np.array_equal(x[:, :], 2 * (2 * (2 * start + 1) + 1) + 1)


def test_an_experiment_is_not_overruled(monkeypatch, use_settings):
    use_settings(launch="128,4")
    ran = invent_times(monkeypatch, fastest("256,2"))
    x, y = fields()
    scale(x, y)
    assert ran == []
    assert chosen_for(scale, x, y) == "128,4: an experiment"


# ---- halos --------------------------------------------------------------------------------------------------------


@jali.site_function
def hop(X, out, psi, U):
    for mu in X.directions():
        out[X] += U[X] * psi[X + mu] - U[X - mu].dagger() * psi[X - mu]


def with_halos(device: str) -> list[Any]:
    """A field after products with neighbours, some of which travel as halo items, and what was exchanged."""
    lattice = jali.Lattice(4, 4, 8, device=device)
    U, psi, out = (lattice.field(e) for e in (jali.Matrix(2), jali.Vector(2), jali.Vector(2)))
    rng = np.random.default_rng(2)
    U[...] = rng.normal(size=(4, 4, 8, 2, 2, 2)).view(complex)[..., 0]
    psi[...] = rng.normal(size=(4, 4, 8, 2, 2)).view(complex)[..., 0]
    for _ in range(2):
        hop(out, psi, U)
        psi.assign(out)
        for colour in jali.PARITIES:
            hop[colour](psi, out, U)
    return [psi.local().tobytes(), *(field.storage.halo_counters for field in (U, psi, out))]


@pytest.mark.parametrize("ranks", [2, 4])
def test_entries_are_tuned_alike_and_change_no_bit(ranks, monkeypatch, use_settings):
    if _core.Gpu.count("cuda") < ranks:
        pytest.skip(f"ranks of one process need a device each: {ranks}")
    use_settings(tune="off")
    expected = jali.virtual_ranks(ranks, with_halos, "cuda")
    use_settings(tune="now")
    use_settings(halo_policy="auto")
    policies = [name for name, *_ in _core.halo_policies("cuda")]
    # the last rank spoils what is best on the others
    slow = {"copy-engine-wait": 0, "buffered-write-wait": ranks - 1}

    def times(name: str, rank: int) -> float:
        if slow.get(name) == rank:
            return 1e-2
        return (
            1e-3
            if name in ("copy-engine-directions", *VARIANTS)
            else 1e-3 + 1e-5 * (" " in name or policies.index(name))
        )

    ran = invent_times(monkeypatch, times)
    assert jali.virtual_ranks(ranks, with_halos, "cuda") == expected
    halos = [e for s in stores() for q, e in s.read().items() if q.kind == "halo"]
    assert len(halos) >= 3
    # copy-engine-directions and the default, which stands first, are equal; the default stays
    assert {e.chosen for e in halos} == {policies[0]}
    assert {name for _, name in ran} >= set(policies)
    use_settings(tune="again")
    slow[policies[0]] = ranks - 1
    forget_in_memory()
    assert jali.virtual_ranks(ranks, with_halos, "cuda") == expected
    halos = [e for s in stores() for q, e in s.read().items() if q.kind == "halo"]
    assert {e.chosen for e in halos} == {"copy-engine-directions"}
    assert all(dict((c.name, c.seconds) for c in e.candidates)["buffered-write-wait"] == 1e-2 for e in halos)


def test_cases_that_cannot_work_are_left_out(monkeypatch, use_settings):
    """Two ranks on one device: no symmetric buffers, so that only messages by way of the host are possible."""
    use_settings(halo_policy="auto")
    monkeypatch.setattr(Communicator, "rank_on_host", 0)
    invent_times(monkeypatch, lambda name, rank: 2e-3 if name == "host-staged-overlap" else 1e-3)
    found = jali.virtual_ranks(2, with_halos, "cuda")
    use_settings(tune="off")
    assert found == jali.virtual_ranks(2, with_halos, "cuda")
    halos: dict[Question, Any] = {q: e for s in stores() for q, e in s.read().items() if q.kind == "halo"}
    for entry in halos.values():
        seconds = {c.name: c.seconds for c in entry.candidates}
        assert {name for name, s in seconds.items() if s is not None} <= {
            name for name in seconds if name.startswith("host-staged-")
        }
        assert entry.chosen == "host-staged-wait"
        note = next(c.note for c in entry.candidates if c.name == "buffered-write-overlap")
        assert re.search("share (a device|1 GPU)", note), note  # the latter where there is no other


@pytest.mark.mpi
@pytest.mark.full
def test_entries_for_graphs_can_be_recorded(fake_environment, tmp_path):
    environment = {**fake_environment, "JALI_TUNE": "now", "JALI_CACHE_DIR": str(tmp_path)}
    found = on_processes("print(t.in_a_graph(), flush=True)", "auto-graph", environment)
    assert found == ["True", "True"]
    (volume,) = {
        e["volume"] for path in tmp_path.glob("tune/*.json") for e in json.loads(path.read_text())["entries"]
    }
    assert volume == "sites of 8x8 on 2 ranks as 1x2, transport mpi, in graphs"
