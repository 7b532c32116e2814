"""Tuning questions of a launch: when they are resolved, what is measured, and how the answer is used.

A question is looked up when the launch is bound, and stays open where the store has no answer. Open questions are resolved
before each run: the fields and numbers of that run are used for the measurement, and everything that it changes is restored
(`_core.LaunchTrial`). Nothing is measured while a graph is being recorded; graphs keep the choice that they were recorded with.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jali import _core, graph_recorder, settings
from jali._core import LaunchTrial
from jali.amounts import counted
from jali.codegen import kernel_cache
from jali.codegen.arithmetics import ARITHMETICS
from jali.errors import CompileError, DeviceError, ParameterError, RecordingError
from jali.tune import (
    DEFAULT_LAUNCH,
    Autotuner,
    Entry,
    Impossible,
    LaunchConfig,
    Question,
    Tuner,
    mode,
    over_ranks,
    room_for,
    tuner_of,
    variants_for,
)
from jali.tune.launch_config import SITES_PER_THREAD, THREADS, WAVES

FEWEST_POSITIONS = 4096  # of a kernel that is worth a measurement: fewer do not fill a device
SHORTEST = 10e-6  # seconds: below, starting a kernel takes as long as the kernel
PAYS = 0.25  # seconds of a kernel's time after which `on` measures
FIRST_CHECK = (
    16  # runs after which `on` checks the time for the first time; then after four times as many, and so on
)
BATCH_THREADS = 128  # with 256 a batch of 8 Wilson hops takes 1.03 to 1.3 times as long (H200)
RUNS = 4  # exchanges of a series, one after the other, as a sweep has them

Compile = Callable[[LaunchConfig], Any]


class Tunings:
    """The answers and open questions of a launch that is being bound."""

    def __init__(
        self, config: LaunchConfig, words: str, launch: LaunchTuning | None, halo: HaloTuning | None
    ):
        self.config = config
        self.words = words
        self.launch = launch
        self.halo = halo

    def attach(self, kernel: Any, compile_config: Compile) -> None:
        """Gives the launch its configuration and its open questions. `compile_config` returns the core's function."""
        kernel.chosen.launch = self.words or kernel.chosen.launch
        kernel.chosen.config = self.config
        if self.config.waves or self.config.each > 1:
            _start(kernel, kernel.function, self.config)
        if self.launch is not None:
            self.launch.compile_config = compile_config
            kernel.tunings.append(self.launch)
        if kernel.lattice.communicator.size == 1 or not _has_halos(kernel):
            return
        if self.halo is not None:
            kernel.chosen.halo = self.halo.words()
            kernel.tunings.append(self.halo)
        else:
            policy = kernel.launch.policy
            requested = settings.current().halo_policy == policy
            kernel.chosen.halo = f"{policy}: {'JALI_HALO_POLICY' if requested else 'the default'}"


def default_launch(program: Any) -> LaunchConfig:
    """How a kernel is started that was not measured: with a batch by blocks of fewer threads, whose sites fit a first-level cache."""
    return DEFAULT_LAUNCH.with_threads(BATCH_THREADS) if program.batch else DEFAULT_LAUNCH


def tunings_of(text: Any, program: Any, lattice: Any, sites: Any, layout: Any) -> Tunings:
    """The tuner's text about a kernel on these sites. Raises ParameterError for an experiment that
    no kernel can be launched by."""
    requested = mode()
    gpu = lattice.gpu
    default = default_launch(program)
    digest = kernel_cache.source_digest(text.text, layout.lanes, program.precision, gpu is not None)
    halo = None
    policy = settings.current().halo_policy
    tunable = lattice.communicator.size > 1 and requested != "off" and not settings.current().halo_off
    if policy in ("auto", "auto-graph") and tunable:
        graphs = policy == "auto-graph"
        halo = HaloTuning(_halo_question(program, digest, lattice, sites, graphs), tuner_of(gpu), graphs)
    if gpu is None:
        return Tunings(default, "", None, halo)
    # the most neighbours that this kernel can load together here
    width = text.most_neighbours if sites.blocks is None else 1
    requested_config = _forced_config()
    if requested_config is not None:
        sites = 1 if program.batch else requested_config.sites
        forced = requested_config.with_sites(sites, min(requested_config.width, width))
        words = f"{forced.name}: an experiment"
        if forced != requested_config:
            words += f" asked for {requested_config.name}, but a thread loads {'no neighbours' if width == 1 else f'{width} neighbours at most'} here"
        return Tunings(forced, words, None, halo)
    if requested == "off":
        return Tunings(default, f"{default.name}: the default, JALI_TUNE=off", None, halo)
    positions = _positions(sites)
    if positions < FEWEST_POSITIONS:
        words = f"{default.name}: the default, {positions} positions are too few to tune for"
        return Tunings(default, words, None, halo)
    box = "x".join(map(str, lattice.local_extents))
    listed = "" if sites.blocks is None else "listed "
    question = Question("launch", program.name, digest, f"{positions} {listed}positions of {box}")
    tuner = tuner_of(gpu)
    entry = tuner.recall(question)
    config = _usable(entry, width)
    if entry is not None and config is not None:
        return Tunings(config, f"{entry.summary()}, measured {entry.measured}", None, halo)
    words = f"{default.name}: the default, not measured"
    if requested == "cached":
        return Tunings(default, words, None, halo)
    return Tunings(default, words, LaunchTuning(question, tuner, requested != "on", width, default), halo)


def _has_halos(kernel: Any) -> bool:
    """Whether it reads at other sites than its own, which may be those of other ranks."""
    return any(any(offset) for offsets in kernel.text.analysis.reads.values() for offset in offsets)


def _positions(sites: Any) -> int:
    return sites.end - sites.begin if sites.blocks is None else len(sites.blocks)


def _forced_config() -> LaunchConfig | None:
    """The experiment `launch`: threads of a block, blocks that a multiprocessor should hold and, if wanted, sites per thread and neighbours that
    are loaded together. Raises ParameterError."""
    text = settings.current().launch
    if not text:
        return None
    numbers = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
    numbers += [1] * (4 - len(numbers)) if len(numbers) >= 2 else [0] * 3
    threads, blocks, sites, width = numbers if len(numbers) == 4 else [0] * 4
    sensible = 64 <= threads <= 1024 and threads % 64 == 0 and 1 <= blocks <= 32
    if not sensible or sites not in SITES_PER_THREAD or width not in SITES_PER_THREAD:
        raise ParameterError(
            f"launch={text} should be threads (64 to 1024, whole warps of 64), blocks (1 to 32) and, if wanted, sites per "
            "thread (1, 2 or 4) and neighbours loaded together (1, 2 or 4), such as 256,1 or 256,1,2"
        )
    return LaunchConfig(threads, blocks, threads, 0, sites, width)


def _usable(entry: Entry | None, width: int) -> LaunchConfig | None:
    """The stored answer, if this kernel can be started by it; files may be edited."""
    config = None if entry is None else LaunchConfig.parse(entry.chosen)
    return config if config is not None and config.width <= width else None


def _start(kernel: Any, function: Any, config: LaunchConfig) -> None:
    kernel.chosen.config = config
    kernel.launch.set_kernel(function, config.threads, config.waves, config.each)


def registers_of(kernel: Any) -> int:
    """Registers that a thread of a kernel takes as it is compiled by default."""
    return int(kernel.function.registers)


def sites_at_once(gpu: Any, function: Any, threads: int) -> int:
    """How many threads of a kernel a device runs at the same time."""
    return int(gpu.occupancy(function, threads)) * int(gpu.multiprocessors) * threads


class LaunchTuning:
    """Which launch configuration of a kernel is fastest, resolved by this rank alone: nothing here communicates."""

    compile_config: Compile

    def __init__(self, question: Question, tuner: Tuner, at_once: bool, width: int, default: LaunchConfig):
        self.question = question
        self.tuner = tuner
        self.default = default
        self.width = width  # the most neighbours that may be loaded together
        self.check_after = 1 if at_once else FIRST_CHECK
        self.at_once = at_once
        self.runs = 0

    def resolve(self, kernel: Any) -> bool:
        """Before a run: measures if it is time to. True where the question is closed."""
        self.runs += 1
        if self.runs < self.check_after or kernel.launch.capturing:
            return False
        self.check_after *= 4
        entry = self.tuner.recall(self.question)  # another launch of the kernel may have been measured
        if entry is None or _usable(entry, self.width) is None:
            try:
                entry = self._measure(kernel)
            except MemoryError:
                kernel.chosen.launch = f"{self.default.name}: the default, no device memory to measure in"
                return True
            if entry is None:
                return self.at_once
            self.tuner.remember(entry)
        config = _usable(entry, self.width) or self.default
        _start(kernel, self.compile_config(config), config)
        kernel.chosen.launch = f"{entry.summary()}, measured {entry.measured}"
        return True

    def _measure(self, kernel: Any) -> Entry | None:
        """The answer; None where measuring does not pay (yet)."""
        trial = LaunchTrial(kernel.launch)
        try:
            usual = statistics.median(trial.kernel(3))
            if usual < SHORTEST:
                kernel.chosen.launch = (
                    f"{self.default.name}: the default, {1e6 * usual:.1f} us are too short to tune"
                )
                self.at_once = True  # and will stay so
                return None
            if not self.at_once and usual * self.runs < PAYS:
                return None
            return self._tuned(kernel, trial).entry(self.question)
        finally:
            # also after an error: the launch is restored
            _start(kernel, kernel.function, self.default)
            trial.finish()

    def _tuned(self, kernel: Any, trial: Any) -> Autotuner:
        def measure(name: str, repetitions: int) -> list[float]:
            config = LaunchConfig.parse(name)
            assert config is not None
            try:
                function = self.compile_config(config)
            except CompileError as error:
                raise Impossible(str(error).partition("\n")[0]) from None
            if function.most_threads and config.threads > function.most_threads:
                raise Impossible(f"its registers let a block have {function.most_threads} threads only")
            _start(kernel, function, config)
            return [float(s) for s in trial.kernel(repetitions)]

        autotuner = Autotuner(DEFAULT_LAUNCH.name, measure)
        bounded = variants_for(kernel.lattice.gpu.kind, registers_of(kernel))
        for config in bounded:
            autotuner.try_candidate(config.name)
        if len(bounded) == 1 and not kernel.program.batch:  # so that at most four are compiled
            self._try_sites_per_thread(autotuner, kernel)
        compiled = LaunchConfig.parse(autotuner.best) or DEFAULT_LAUNCH
        for threads in THREADS:
            if threads < compiled.bound:
                autotuner.try_candidate(compiled.with_threads(threads).name)
        started = LaunchConfig.parse(autotuner.best) or DEFAULT_LAUNCH
        if not kernel.lowering.in_kernel_reduction:  # which takes several sites per thread anyway
            held = sites_at_once(kernel.lattice.gpu, self.compile_config(started), started.threads)
            for waves in WAVES:
                if waves * held * started.each < _positions(kernel.sites):
                    autotuner.try_candidate(started.in_waves(waves).name)
        return autotuner

    def _try_sites_per_thread(self, autotuner: Autotuner, kernel: Any) -> None:
        """Wide loads, where there are any, then more sites per thread for as long as that is faster."""
        words = kernel.text.analysis.loads * (ARITHMETICS[kernel.program.precision].bytes // 4)
        registers = registers_of(kernel)
        if self.width > 1 and room_for(self.width, registers, words):
            autotuner.try_candidate(DEFAULT_LAUNCH.with_sites(1, self.width).name)
        for sites in SITES_PER_THREAD[1:]:
            best = LaunchConfig.parse(autotuner.best) or DEFAULT_LAUNCH
            more = best.with_sites(sites, best.width)
            if not room_for(more.each, registers, words):
                return
            autotuner.try_candidate(more.name)
            if autotuner.best != more.name:
                return


class HaloTuning:
    """Which halo policy is fastest for a launch, resolved by all its ranks together.

    `auto` takes any policy, `auto-graph` one whose exchanges can be recorded in graphs.
    """

    def __init__(self, question: Question, tuner: Tuner, graphs: bool):
        self.question = question
        self.tuner = tuner
        self.graphs = graphs

    def words(self) -> str:
        """What is known before ranks communicate."""
        entry = self.tuner.recall(self.question)
        if entry is None:
            return "auto: decided at the first exchange"
        return f"auto: {entry.summary()}, if all ranks remember that"

    def _policies(self, kernel: Any) -> list[str]:
        gpu = kernel.lattice.gpu
        policies = _core.halo_policies(gpu.kind if gpu is not None else "cpu")
        return [name for name, _, recordable, *_ in policies if recordable or gpu is None or not self.graphs]

    def resolve(self, kernel: Any) -> bool:
        """Before a run; collective where it would exchange halos. True where the question is closed."""
        launch = kernel.launch
        if not launch.halos_stale:
            return False
        communicator = kernel.lattice.communicator
        policies = self._policies(kernel)
        known = self.tuner.recall(self.question)
        mine = "capturing" if launch.capturing else known.chosen if known and known.chosen in policies else ""
        said = communicator.gather_bytes(mine.encode(), what="tuning halos")
        if b"capturing" in said:
            kernel.chosen.halo = f"{launch.policy}: recorded in a graph before it was measured"
            return True
        why = ""  # ranks may be placed otherwise than when it was measured
        if known is None or mine == "" or len(set(said)) > 1:
            why = "not remembered by all ranks"
        elif trouble := kernel.layout.why_not_halo_policy(communicator.core, known.chosen):
            why = f"{known.chosen} is remembered, but {trouble}"
        if known is None or why:
            if mode() == "cached":
                kernel.chosen.halo = f"{launch.policy}: the default, {why}"
                return True
            known = self._measure(kernel, policies)
            if known is None:
                return True
            self.tuner.remember(known)
        if known.chosen != launch.policy:
            launch.set_policy(known.chosen)
        kernel.chosen.halo = f"{known.summary()}, measured {known.measured}"
        return True

    def _measure(self, kernel: Any, policies: list[str]) -> Entry | None:
        """The answer, the same on all ranks; None where a rank has no memory to measure in. Collective."""
        launch = kernel.launch
        default = launch.policy
        agree = over_ranks(kernel.lattice.communicator)
        trial = None
        with contextlib.suppress(MemoryError):
            trial = LaunchTrial(launch)
        if agree(0.0 if trial is not None else 1.0) > 0:
            kernel.chosen.halo = f"{default}: the default, a rank has no memory to measure in"
            return None
        assert trial is not None
        prepared = ""

        def measure(name: str, series: int) -> list[float]:
            nonlocal prepared
            if name != prepared:
                trouble = ""
                try:
                    launch.set_policy(name)
                    trial.prepare_exchange()
                except (DeviceError, MemoryError) as error:
                    trouble = str(error).partition("\n")[0]
                if agree(1.0 if trouble else 0.0) > 0:
                    raise Impossible(trouble or "not possible on another rank")
                prepared = name
            return [float(s) for s in trial.exchange(series, RUNS)]

        try:
            autotuner = Autotuner(default, measure, agree)
            for policy in policies:
                autotuner.try_candidate(policy)
            entry = autotuner.entry(self.question)
        finally:
            launch.set_policy(default)
            trial.finish()
        if math.isinf(agree(0.0 if autotuner.candidates[autotuner.chosen].seconds is not None else math.inf)):
            return None
        return entry


@contextlib.contextmanager
def recordable_policies(kernels: Sequence[Any]) -> Iterator[None]:
    """While this lasts these kernels, on devices of several ranks, have halo policies whose exchanges can be recorded: their
    own, or, where it was not requested by name, the first that can be. Collective. Raises RecordingError, on all ranks."""
    changed: list[tuple[Any, str]] = []
    try:
        for kernel in dict.fromkeys(kernels):
            if not _has_halos(kernel):
                continue
            before = kernel.launch.policy
            policy, trouble = _recordable_policy(kernel)
            if policy != before:
                kernel.launch.set_policy(policy)
                if kernel.lattice.communicator.rank == 0:
                    _core.report_once(
                        f"halos of {kernel.program.name} go by {policy} in a graph, not by {before}: "
                        f"{trouble or 'its exchanges need the host (JALI_HALO_POLICY=auto-graph measures those that do not)'}"
                    )
                if not trouble:
                    changed.append((kernel.launch, before))
        yield
    finally:
        for launch, before in changed:
            launch.set_policy(before)


def _recordable_policy(kernel: Any) -> tuple[str, str]:
    """A policy, and why these devices could not have the kernel's own; empty where that only cannot be recorded."""
    core, own, requested = (
        kernel.lattice.communicator.core,
        kernel.launch.policy,
        settings.current().halo_policy,
    )
    policies = {policy[0]: policy[2] for policy in _core.halo_policies(kernel.lattice.gpu.kind)}
    trouble = ""
    reasons = []
    for policy in [
        own,
        *(policy for policy in policies if policies[policy] and policy != own and requested not in policies),
    ]:
        why = kernel.layout.why_not_halo_policy(core, policy)
        trouble = why if policy == own else trouble
        if not why and policies[policy]:
            return policy, trouble
        reasons.append(f"{policy}: {why or 'its exchanges need the host'}")
    raise RecordingError(
        f"{kernel.program.name} exchanges halos in a way that cannot be recorded ({'; '.join(dict.fromkeys(reasons))}). JALI_HALO_POLICY "
        f"names the ways\n  at {graph_recorder.line()}"
    )


def _halo_question(program: Any, digest: str, lattice: Any, sites: Any, graphs: bool) -> Question:
    """The same on all ranks: nothing in it depends on the part of one."""
    extents, grid = ("x".join(map(str, numbers)) for numbers in (lattice.extents, lattice.grid))
    ranks = lattice.communicator
    where = {1: "even sites", 2: "odd sites"}.get(sites.parities, "sites")
    volume = f"{where} of {extents} on {counted(ranks.size, 'rank')} as {grid}, transport {ranks.transport}"
    volume += ", in graphs" if graphs else ""
    return Question("halo", program.name, digest, volume)
