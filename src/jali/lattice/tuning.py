"""Questions to the tuner about a launch: when they are asked, what is measured, and what is done with the answer.

A question is looked up when the launch is bound, and stays open where nothing is remembered. Open questions are asked before each
run: the fields and numbers of that run are what is measured with, and everything that measuring changes is put back
(`_core.Rehearsal`). Nothing is measured while a graph is being recorded; graphs keep the way that they were recorded with.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable
from typing import Any

from jali import _core, settings
from jali._core import Rehearsal
from jali.codegen import cache
from jali.errors import CompileError, DeviceError, ParameterError
from jali.tune import (
    DEFAULT_SHAPE,
    Contest,
    Entry,
    Impossible,
    Question,
    Shape,
    Tuner,
    mode,
    over_ranks,
    room_for,
    tuner_of,
    variants_for,
)
from jali.tune.shapes import SEVERAL, THREADS, WAVES

FEWEST_POSITIONS = 4096  # of a kernel that is worth a measurement: fewer do not fill a device
SHORTEST = 10e-6  # seconds: below, starting a kernel takes as long as the kernel
PAYS = 0.25  # seconds of a kernel's time after which `on` measures
FIRST_LOOK = (
    16  # runs after which `on` looks at the time for the first time; then after four times as many, and so on
)
RUNS = 4  # exchanges of a series, one after the other, as a sweep has them

Compile = Callable[[Shape], Any]


class Tunings:
    """What is known and what is open about one launch that is being bound."""

    def __init__(self, shape: Shape, words: str, launch: LaunchTuning | None, halo: HaloTuning | None):
        self.shape = shape
        self.words = words
        self.launch = launch
        self.halo = halo

    def attach(self, kernel: Any, compile_shape: Compile) -> None:
        """Gives the launch its shape and its open questions. `compile_shape` returns the core's function."""
        kernel.chosen.launch = self.words or kernel.chosen.launch
        if self.shape.waves or self.shape.each > 1:
            _start(kernel, kernel.function, self.shape)
        if self.launch is not None:
            self.launch.compile_shape = compile_shape
            kernel.tunings.append(self.launch)
        if kernel.lattice.communicator.size == 1 or not any(
            any(offset) for offsets in kernel.text.analysis.reads.values() for offset in offsets
        ):
            return
        if self.halo is not None:
            kernel.chosen.halo = self.halo.words()
            kernel.tunings.append(self.halo)
        else:
            row = kernel.launch.policy
            asked = settings.current().halo_policy == row
            kernel.chosen.halo = f"{row}: {'JALI_HALO_POLICY' if asked else 'the default'}"


def tunings_of(text: Any, program: Any, lattice: Any, sites: Any, layout: Any) -> Tunings:
    """What the tuner has to say about a kernel (its text) on these sites. Raises ParameterError for
    an experiment that no kernel can be launched by."""
    asked = mode()
    gpu = lattice.gpu
    digest = cache.source_digest(text.text, layout.lanes, program.precision, gpu is not None)
    halo = None
    policy = settings.current().halo_policy
    tunable = lattice.communicator.size > 1 and asked != "off" and not settings.current().halo_off
    if policy in ("auto", "auto-graph") and tunable:
        graphs = policy == "auto-graph"
        halo = HaloTuning(_halo_question(program, digest, lattice, sites, graphs), tuner_of(gpu), graphs)
    if gpu is None:
        return Tunings(DEFAULT_SHAPE, "", None, halo)
    # the most neighbours that this kernel can load together here
    width = text.most_neighbours if sites.blocks is None else 1
    asked_shape = _forced_shape()
    if asked_shape is not None:
        forced = asked_shape.with_sites(asked_shape.sites, min(asked_shape.width, width))
        words = f"{forced.name}: an experiment"
        if forced != asked_shape:
            words += f" asked for {asked_shape.name}, but a thread loads {'no neighbours' if width == 1 else f'{width} neighbours at most'} here"
        return Tunings(forced, words, None, halo)
    if asked == "off":
        return Tunings(DEFAULT_SHAPE, f"{DEFAULT_SHAPE.name}: the default, JALI_TUNE=off", None, halo)
    positions = _positions(sites)
    if positions < FEWEST_POSITIONS:
        words = f"{DEFAULT_SHAPE.name}: the default, {positions} positions are too few to tune for"
        return Tunings(DEFAULT_SHAPE, words, None, halo)
    box = "x".join(map(str, lattice.local_extents))
    listed = "" if sites.blocks is None else "listed "
    question = Question("launch", program.name, digest, f"{positions} {listed}positions of {box}")
    tuner = tuner_of(gpu)
    entry = tuner.recall(question)
    shape = _usable(entry, width)
    if entry is not None and shape is not None:
        return Tunings(shape, f"{entry.summary()}, measured {entry.measured}", None, halo)
    words = f"{DEFAULT_SHAPE.name}: the default, not measured"
    if asked == "cached":
        return Tunings(DEFAULT_SHAPE, words, None, halo)
    return Tunings(DEFAULT_SHAPE, words, LaunchTuning(question, tuner, asked != "on", width), halo)


def _positions(sites: Any) -> int:
    return sites.end - sites.begin if sites.blocks is None else len(sites.blocks)


def _forced_shape() -> Shape | None:
    """The experiment `launch`: threads of a block, blocks that a multiprocessor should hold and, if wanted, sites per thread and neighbours that
    are loaded together. Raises ParameterError."""
    text = settings.current().launch
    if not text:
        return None
    numbers = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
    numbers += [1] * (4 - len(numbers)) if len(numbers) >= 2 else [0] * 3
    threads, blocks, sites, width = numbers if len(numbers) == 4 else [0] * 4
    sensible = 64 <= threads <= 1024 and threads % 64 == 0 and 1 <= blocks <= 32
    if not sensible or sites not in SEVERAL or width not in SEVERAL:
        raise ParameterError(
            f"launch={text} should be threads (64 to 1024, whole warps of 64), blocks (1 to 32) and, if wanted, sites per "
            "thread (1, 2 or 4) and neighbours loaded together (1, 2 or 4), such as 256,1 or 256,1,2"
        )
    return Shape(threads, blocks, threads, 0, sites, width)


def _usable(entry: Entry | None, width: int) -> Shape | None:
    """What a remembered answer says, if this kernel can be started like that; files may be edited."""
    shape = None if entry is None else Shape.parse(entry.chosen)
    return shape if shape is not None and shape.width <= width else None


def _start(kernel: Any, function: Any, shape: Shape) -> None:
    kernel.launch.set_kernel(function, shape.threads, shape.waves, shape.each)


def registers_of(kernel: Any) -> int:
    """Registers that a thread of a kernel takes as it is compiled by default."""
    return int(kernel.function.registers)


def sites_at_once(gpu: Any, function: Any, threads: int) -> int:
    """How many threads of a kernel a device runs at the same time."""
    return int(gpu.occupancy(function, threads)) * int(gpu.multiprocessors) * threads


class LaunchTuning:
    """Which shape of a kernel is fastest, asked by this rank alone: nothing here communicates."""

    compile_shape: Compile

    def __init__(self, question: Question, tuner: Tuner, at_once: bool, width: int):
        self.question = question
        self.tuner = tuner
        self.width = width  # the most neighbours that may be loaded together
        self.look_after = 1 if at_once else FIRST_LOOK
        self.at_once = at_once
        self.runs = 0

    def settle(self, kernel: Any) -> bool:
        """Before a run: measures if it is time to. True where the question is closed."""
        self.runs += 1
        if self.runs < self.look_after or kernel.launch.recording:
            return False
        self.look_after *= 4
        entry = self.tuner.recall(self.question)  # another launch of the kernel may have been measured
        if entry is None or _usable(entry, self.width) is None:
            try:
                entry = self._measure(kernel)
            except MemoryError:
                kernel.chosen.launch = f"{DEFAULT_SHAPE.name}: the default, no device memory to measure in"
                return True
            if entry is None:
                return self.at_once
            self.tuner.remember(entry)
        shape = _usable(entry, self.width) or DEFAULT_SHAPE
        _start(kernel, self.compile_shape(shape), shape)
        kernel.chosen.launch = f"{entry.summary()}, measured {entry.measured}"
        return True

    def _measure(self, kernel: Any) -> Entry | None:
        """The answer; None where measuring does not pay (yet)."""
        rehearsal = Rehearsal(kernel.launch)
        try:
            usual = statistics.median(rehearsal.kernel(3))
            if usual < SHORTEST:
                kernel.chosen.launch = (
                    f"{DEFAULT_SHAPE.name}: the default, {1e6 * usual:.1f} us are too short to tune"
                )
                self.at_once = True  # and will stay so
                return None
            if not self.at_once and usual * self.runs < PAYS:
                return None
            return self._contest(kernel, rehearsal).entry(self.question)
        finally:
            # also after an error: the launch goes on as it was
            _start(kernel, kernel.function, DEFAULT_SHAPE)
            rehearsal.finish()

    def _contest(self, kernel: Any, rehearsal: Any) -> Contest:
        def measure(name: str, repetitions: int) -> list[float]:
            shape = Shape.parse(name)
            assert shape is not None
            try:
                function = self.compile_shape(shape)
            except CompileError as error:
                raise Impossible(str(error).partition("\n")[0]) from None
            if function.most_threads and shape.threads > function.most_threads:
                raise Impossible(f"its registers let a block have {function.most_threads} threads only")
            _start(kernel, function, shape)
            return [float(s) for s in rehearsal.kernel(repetitions)]

        contest = Contest(DEFAULT_SHAPE.name, measure)
        bounded = variants_for(kernel.lattice.gpu.kind, registers_of(kernel))
        for shape in bounded:
            contest.enter(shape.name)
        if len(bounded) == 1:  # so that at most four are compiled
            self._enter_several(contest, kernel)
        compiled = Shape.parse(contest.best) or DEFAULT_SHAPE
        for threads in THREADS:
            if threads < compiled.bound:
                contest.enter(compiled.with_threads(threads).name)
        started = Shape.parse(contest.best) or DEFAULT_SHAPE
        if not kernel.variant.adds:  # which takes several sites per thread anyway
            held = sites_at_once(kernel.lattice.gpu, self.compile_shape(started), started.threads)
            for waves in WAVES:
                if waves * held * started.each < _positions(kernel.sites):
                    contest.enter(started.in_waves(waves).name)
        return contest

    def _enter_several(self, contest: Contest, kernel: Any) -> None:
        """Wide loads, where there are any, then more sites per thread for as long as that is faster."""
        words = kernel.text.analysis.loads * (2 if kernel.program.precision == "float64" else 1)
        registers = registers_of(kernel)
        if self.width > 1 and room_for(self.width, registers, words):
            contest.enter(DEFAULT_SHAPE.with_sites(1, self.width).name)
        for sites in SEVERAL[1:]:
            best = Shape.parse(contest.best) or DEFAULT_SHAPE
            more = best.with_sites(sites, best.width)
            if not room_for(more.each, registers, words):
                return
            contest.enter(more.name)
            if contest.best != more.name:
                return


class HaloTuning:
    """Which row of halo policies is fastest for a launch, asked by all its ranks together.

    `auto` takes any row, `auto-graph` one whose exchanges can be recorded in graphs.
    """

    def __init__(self, question: Question, tuner: Tuner, graphs: bool):
        self.question = question
        self.tuner = tuner
        self.graphs = graphs

    def words(self) -> str:
        """What is known before the ranks have met."""
        entry = self.tuner.recall(self.question)
        if entry is None:
            return "auto: decided at the first exchange"
        return f"auto: {entry.summary()}, if all ranks remember that"

    def _rows(self, kernel: Any) -> list[str]:
        on_device = kernel.lattice.gpu is not None
        if self.graphs and on_device:
            return _core.recordable_halo_policies()
        return [name for name, _ in _core.halo_policies(on_device)]

    def settle(self, kernel: Any) -> bool:
        """Before a run; collective where it would exchange halos. True where the question is closed."""
        launch = kernel.launch
        if not launch.halos_stale:
            return False
        communicator = kernel.lattice.communicator
        rows = self._rows(kernel)
        known = self.tuner.recall(self.question)
        mine = "recording" if launch.recording else known.chosen if known and known.chosen in rows else ""
        said = communicator.gather_bytes(mine.encode(), what="tuning halos")
        if b"recording" in said:
            kernel.chosen.halo = f"{launch.policy}: recorded in a graph before it was measured"
            return True
        if known is None or mine == "" or len(set(said)) > 1:
            if mode() == "cached":
                kernel.chosen.halo = f"{launch.policy}: the default, not remembered by all ranks"
                return True
            known = self._measure(kernel, rows)
            if known is None:
                return True
            self.tuner.remember(known)
        if known.chosen != launch.policy:
            launch.set_policy(known.chosen)
        kernel.chosen.halo = f"{known.summary()}, measured {known.measured}"
        return True

    def _measure(self, kernel: Any, rows: list[str]) -> Entry | None:
        """The answer, the same on all ranks; None where a rank has no memory to measure in. Collective."""
        launch = kernel.launch
        default = launch.policy
        agree = over_ranks(kernel.lattice.communicator)
        rehearsal = None
        with contextlib.suppress(MemoryError):
            rehearsal = Rehearsal(launch)
        if agree(0.0 if rehearsal is not None else 1.0) > 0:
            kernel.chosen.halo = f"{default}: the default, a rank has no memory to measure in"
            return None
        assert rehearsal is not None
        prepared = ""

        def measure(name: str, series: int) -> list[float]:
            nonlocal prepared
            if name != prepared:
                trouble = ""
                try:
                    launch.set_policy(name)
                    rehearsal.prepare_exchange()
                except (DeviceError, MemoryError) as error:
                    trouble = str(error).partition("\n")[0]
                if agree(1.0 if trouble else 0.0) > 0:
                    raise Impossible(trouble or "not possible on another rank")
                prepared = name
            return [float(s) for s in rehearsal.exchange(series, RUNS)]

        try:
            contest = Contest(default, measure, agree)
            for row in rows:
                contest.enter(row)
            entry = contest.entry(self.question)
        finally:
            launch.set_policy(default)
            rehearsal.finish()
        if math.isinf(agree(0.0 if contest.candidates[contest.chosen].seconds is not None else math.inf)):
            return None
        return entry


def _halo_question(program: Any, digest: str, lattice: Any, sites: Any, graphs: bool) -> Question:
    """The same on all ranks: nothing in it depends on the part of one."""
    extents, grid = ("x".join(map(str, numbers)) for numbers in (lattice.extents, lattice.grid))
    ranks = lattice.communicator
    where = {1: "even sites", 2: "odd sites"}.get(sites.parities, "sites")
    volume = f"{where} of {extents} on {ranks.size} ranks as {grid}, transport {ranks.transport}"
    volume += ", in graphs" if graphs else ""
    return Question("halo", program.name, digest, volume)
