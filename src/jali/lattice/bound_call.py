"""A call of a site function, ready to run: the kernels of its programs, and which of their parameters come from which argument.

What changes from run to run are numbers (parameters of scalars and of random numbers), set before the launches. Sums are
returned as requested, or stay as Scalars; a thread that records a graph appends the launches to its recorder instead. `Call` is
the object of users.
"""

from __future__ import annotations

import functools
import math
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import _core, graph_recorder
from jali.codegen.builder import why_too_large
from jali.codegen.lines import trace_error
from jali.codegen.stage_cache import COUNTS
from jali.codegen.stages import Traced, programs_of
from jali.comm import validation
from jali.errors import ParameterError, RecordingError
from jali.files import value_shown
from jali.lattice.arguments import randoms_of, scalars_of
from jali.lattice.base import no_field
from jali.lattice.binding import BoundKernel
from jali.lattice.colours import domain_of_call
from jali.lattice.domain import Domain
from jali.lattice.field import Field
from jali.lattice.launch_text import explain_launch
from jali.lattice.lowering import bind
from jali.lattice.overflow import raise_on_all_ranks
from jali.lattice.scalar_parts import PendingSum, constant, number
from jali.lattice.scalars import LocatedArray, Scalar, address_of, evaluate_arguments, scalars_of_parts
from jali.lattice.sums import (
    Sums,
    as_reals,
    check_kinds,
    check_occupied,
    check_staying,
    entries_of,
    in_requested_types,
    raise_if_left_out,
)
from jali.lattice.sums_of_ranks import SumsOfRanks, why_ranks_need_the_host
from jali.lattice.tables import Tables
from jali.lattice.updates import Update

if TYPE_CHECKING:
    from jali.lattice.scalar_arrays import StayingSums
    from jali.lattice.update_simulation import UpdateSimulation
    from jali.planner.machine import Machine


class Call(functools.partial[Any]):
    """A site function with its arguments, made by `SiteFunction.bind`: called, it runs. It keeps its fields alive."""

    @property
    def _bound(self) -> BoundCall:
        bound: BoundCall = self.func.__self__  # type: ignore[attr-defined]
        return bound

    @property
    def kernels(self) -> list[BoundKernel]:
        """Its kernels, in order: one kernel, or one for each offset that is written. `kernel.launch.check()` proves that its
        halos are in order."""
        return self._bound.kernels

    def explain(self) -> str:
        """What a run does: sites in bulk and boundary, the ghosts from each rank, the halo policy and the reasons against the
        others, the memory of fields, and the steps in order. Every rank of the lattice calls it; each gets its own."""
        bound = self._bound
        with bound.lock:
            return "\n\n".join(explain_launch(kernel, bound.domain) for kernel in bound.kernels)

    def simulate(
        self,
        machine: Machine | str | Path,
        extents: Sequence[int] | None = None,
        grid: Sequence[int] | None = None,
        *,
        fixed: Sequence[Field] = (),
        policies: Sequence[str] = (),
        site_seconds: float | None = None,
        kernel: int | None = None,
    ) -> UpdateSimulation:
        """How long this call takes on a described machine, with every halo policy (or those named), and which one is
        fastest.

        The lattice may have other `extents`, and another `grid` of ranks, than the one at hand; nothing of that size is made.
        `machine` is one, its name or a file; ranks fill its nodes from the first on. `fixed` are fields that are not written
        between two calls, so that their halos stay valid. `site_seconds` is what the kernel takes per site on one rank, where
        that was measured. A function that writes at several offsets has several kernels; `kernel` selects one. Raises
        ParameterError and LayoutError for arguments that do not fit.
        """
        from jali.lattice.update_simulation import load_machine, simulate_update

        bound = self._bound
        name, kernels = bound.kernels[0].program.name, bound.kernels
        if kernel is None and len(kernels) > 1:
            raise ParameterError(
                f"{name} is {len(kernels)} kernels, since it writes at several offsets; say which one: "
                f"kernel=0 to {len(kernels) - 1}"
            )
        if kernel is not None and validation.integer(kernel) not in range(len(kernels)):
            raise ParameterError(
                f"{name} has the kernels 0 to {len(kernels) - 1}, not kernel={value_shown(kernel)}"
            )
        if (
            isinstance(fixed, Field)
            or not isinstance(fixed, Iterable)
            or not all(isinstance(field, Field) for field in fixed)
        ):
            raise ParameterError(
                f"fixed are the fields that stay, such as fixed=(a, b), not {no_field(fixed)}"
            )
        if isinstance(policies, str):
            raise ParameterError(f"policies are several names, such as policies=[{value_shown(policies)}]")
        if not isinstance(policies, Iterable) or not all(isinstance(name, str) for name in policies):
            raise ParameterError(
                f"policies are names, such as 'remote-write-wait', not {value_shown(policies)}"
            )
        update = Update.of(kernels[kernel or 0], bound.domain, {field.serial for field in fixed})
        return simulate_update(
            update,
            load_machine(machine),
            bound.lattice.extents if extents is None else extents,
            bound.lattice.grid if grid is None else grid,
            policies,
            site_seconds,
        )


class BoundCall:
    """The kernels of one call: which parameters of each come from which argument."""

    def __init__(
        self,
        traced: Traced,
        fields: list[Field],
        arguments: tuple[Any, ...],
        lattice: Any,
        domain: Domain,
        sums: Sums | None,
    ):
        COUNTS["bound"].count(found=False)
        self.traced = traced
        self.guards = traced.guards
        self.lattice = lattice
        self.domain = domain
        self.lock = lattice.lock  # numbers are set and the kernels run as one, whatever other threads do
        self.forget: Callable[[], None] | None = None  # what drops it when one of its fields goes
        distinct = list({f.serial: f for f in fields}.values())
        self.fields = [weakref.proxy(field) for field in distinct]  # a launch must not keep its fields alive
        by_address = frozenset(
            k for k, value in enumerate(scalars_of(arguments)) if isinstance(value, Scalar | LocatedArray)
        )
        per = () if sums is None or sums.per is None else sums.per
        program = traced.programs[0]
        analysed = programs_of(traced)
        self.domain = domain = domain_of_call(analysed, distinct, lattice, domain)
        self.sums = program.sums
        if sums is not None:
            if sums.only:
                check_kinds(program)
            check_occupied(program, lattice, domain, per)
        self.stays = sums is not None and not sums.wait  # sums are Scalars
        self.slices = tuple(lattice.extents[axis] for axis in per)
        if program.batch:  # members follow slices
            self.slices = (*self.slices, program.batch)
        self.stay_as_arrays = self.stays and check_staying(program, self.slices)
        self.entries = entries_of(program, sums)
        self.reproducible = lattice.communicator.size == 1 or not (sums is not None and sums.fast)
        self.kernels = [bind(one, distinct, lattice, domain, sums, by_address) for one in analysed]
        self.runs = [kernel.launch.run for kernel in self.kernels]
        self.untuned = [kernel for kernel in self.kernels if kernel.tunings]
        self.labelled = bool(program.labelled)
        self.in_requested_types = in_requested_types(
            self.sums, self.slices, self.entries, program.labelled.values()
        )
        self.by_address = bool(by_address)
        self.pending: weakref.ref[PendingSum] | None = None  # sums of the last run that are still digits
        self.sums_of_ranks: SumsOfRanks | None = None  # what adds those of all ranks on their devices
        # parameters, index, argument number, position in the list
        self.listed: list[tuple[Any, int, int, tuple[int, ...]]] = []
        self.tables = Tables(self.kernels, lattice, list(scalars_of(arguments)))
        self.simple = self._simple_scalars(arguments)
        self.lattice = lattice
        self.overflow = [overflow for kernel in self.kernels for overflow in kernel.overflow]
        self.elsewhere = any(field.lattice is not lattice for field in distinct)
        self.has_randoms = any(program.randoms for program in traced.programs)

    @property
    def stages(self) -> list[tuple[Traced, BoundKernel]]:
        """The first stage of each kernel, and the last."""
        return [(self.traced, kernel) for kernel in self.kernels]

    def check_set(self) -> None:
        """Raises UnsetError for fields that this call reads and that were never set.

        Checked when a call is bound, so it costs calls nothing: a field stays set. A graph is recorded before its calls
        set anything, and is not checked.
        """
        if graph_recorder.current() is not None:
            return
        written: set[int] = set()
        for kernel in self.kernels:
            for slot in kernel.text.analysis.reads:
                if kernel.fields[slot].serial not in written:
                    kernel.fields[slot].check_set()
            written |= {kernel.fields[slot].serial for slot in kernel.text.analysis.writes}

    def _simple_scalars(self, arguments: tuple[Any, ...]) -> list[tuple[Any, int, int]] | None:
        """(parameters, index, argument number) if every scalar is a float, at top level or in lists there (which `listed` has, with the way into them); else None."""
        paths = [path for path, one in _leaves(arguments) if type(one) is float]
        if len(paths) != len(scalars_of(arguments)):
            return None
        plan = []
        for kernel in self.kernels:
            for index, parameter in kernel.scalar_parameters:
                position, *more = paths[parameter.slot]
                if more:
                    self.listed.append((kernel.floats, index, position, tuple(more)))
                else:
                    plan.append((kernel.floats, index, position))
        return plan

    def run(self, arguments: tuple[Any, ...]) -> Any:
        if graph_recorder.recorders:
            if (recorder := graph_recorder.current()) is not None:
                return self._record(arguments, recorder)
            self.lock.await_recorder()
        result = None
        self.lock.acquire()  # `with` would take a tenth of a small call's time
        try:
            if self.simple is not None:
                for parameters, index, position in self.simple:
                    parameters[index] = arguments[position]
                if self.listed:
                    for parameters, index, position, path in self.listed:
                        value = arguments[position]
                        for at in path:
                            value = value[at]
                        parameters[index] = value
            else:
                self._set_scalars(arguments)
            if self.has_randoms:
                self._advance(arguments)
            if self.untuned:
                self._tune()
            if self.stays:
                return self._run_for_scalars()
            for run in self.runs:
                out = run()
                if out is not None and result is None:
                    result = out
            if self.labelled:
                raise_if_left_out(self.traced.programs[0], self.entries, self.kernels[0].launch.left_out)
            if result is not None and (self.overflow or self.elsewhere or self.lattice.left.possible):
                self.raise_if_overflow()
        finally:
            self.lock.release()
        return None if result is None else self.in_requested_types(result)

    def _tune(self) -> None:
        for kernel in self.untuned:
            kernel.tune()
        self.untuned = [kernel for kernel in self.untuned if kernel.tunings]

    def raise_if_overflow(self) -> None:
        """Collective: StorageError or SingularError for sites at which these kernels, or those that wrote their fields, failed."""
        may_overflow = self._may_overflow()
        if may_overflow or self.overflow:
            counts = [*self.overflow, *(count for field in may_overflow for count in field.counts())]
            raise_on_all_ranks(self.lattice.communicator, counts)

    @property
    def counts_sites(self) -> bool:
        """Whether these kernels, or those that wrote their fields, count sites at which they fail; alike on all ranks."""
        return bool(self._may_overflow() or self.overflow)

    def counts(self) -> list[Any]:
        """What they have counted on this rank; what is left of fields and launches that are gone stays with the lattice."""
        return [*self.overflow, *(count for field in self._may_overflow() for count in field.overflow)]

    def _may_overflow(self) -> list[Field]:
        return [field for field in self.fields if field.may_overflow]

    def _set_scalars(self, arguments: tuple[Any, ...]) -> None:
        values = scalars_of(arguments)
        if self.by_address:
            evaluate_arguments(self.lattice.gpu, values, self.kernels[0].program.name)
        for kernel in self.kernels:
            for index, parameter in kernel.scalar_parameters:
                value = values[parameter.slot]
                if parameter.what == "whole":
                    _set_scalar(kernel, index, int(value.flat[parameter.component]), 0)
                elif parameter.what == "scalar":
                    _set_scalar(kernel, index, value, parameter.component)
        if self.tables:
            self.tables.set(values)

    # ---- sums that stay, and graphs -----------------------------------------------------------------

    def _leaves_digits(self, kernel: BoundKernel) -> bool:
        """Whether its sums are left on the device: of one rank, or of ranks whose devices add them. The first call is collective."""
        if self.lattice.gpu is None or self.lattice.communicator.size == 1:
            return self.lattice.gpu is not None
        if self.sums_of_ranks is None and not why_ranks_need_the_host(self.lattice):
            with graph_recorder.suspended():
                self.sums_of_ranks = SumsOfRanks(
                    kernel.launch, kernel.program.reductions * math.prod(self.slices), self.lattice
                )
        return self.sums_of_ranks is not None

    def _unreported(self) -> list[Any]:
        """What reading sums that stay reports; several ranks have checked together."""
        return [] if self.lattice.communicator.size > 1 else self.counts()

    def _scalars(self, nodes: list[Any]) -> Any:
        if counts := self._unreported():
            for node in nodes:
                node.add_overflow_counts(counts)
        return scalars_of_parts(self.lattice.gpu, nodes, self.sums, self.reproducible)

    def _arrays(self) -> StayingSums | None:
        """For sums that stay, unless they are Scalars."""
        if not self.stay_as_arrays:
            return None
        from jali.lattice.scalar_arrays import StayingSums

        return StayingSums(self.lattice.gpu, self.sums, self.slices, self.reproducible)

    def _run_for_scalars(self) -> Any:
        nodes: list[Any] = []
        arrays = self._arrays()
        self.take_sums()
        for kernel in self.kernels:
            if not kernel.program.sums:
                kernel.launch.run()
            elif self._leaves_digits(kernel):
                self._leaving_sums(kernel)()
                if arrays is not None:
                    arrays.taking(kernel.launch)()
                else:
                    nodes = self._pend(kernel).nodes
            elif arrays is not None:
                arrays.set(kernel.launch.run())
            else:
                nodes = [constant(value) for value in as_reals(self.sums, kernel.launch.run())]
        if self.lattice.communicator.size > 1:  # ranks have met, and check together
            self.raise_if_overflow()
        return self._scalars(nodes) if arrays is None else arrays.result(self._unreported())

    def _leaving_sums(self, kernel: BoundKernel) -> Callable[[], Any]:
        """What runs it and leaves its sums on the device."""
        ranks = self.sums_of_ranks
        return kernel.launch.run_leaving_sums if ranks is None else ranks.run

    def _pend(self, kernel: BoundKernel) -> PendingSum:
        pending = PendingSum(kernel.launch, kernel.program.reductions, self.lattice.gpu)
        self.pending = weakref.ref(pending)
        return pending

    def take_sums(self) -> None:
        """Before the launch makes others: the sums of its last run, if they are still referenced."""
        pending = None if self.pending is None else self.pending()
        if pending is not None:
            pending.take()
        self.pending = None

    def _record(self, arguments: tuple[Any, ...], recorder: graph_recorder.GraphRecorder) -> Any:
        """Appends the call with the numbers of now to what a graph repeats."""
        name, line = self.kernels[0].program.name, graph_recorder.line
        if self.lattice.gpu is not recorder.lattice.gpu:
            raise RecordingError(
                f"{name} runs on {self.lattice}, which is not on the device of the graph, that of {recorder.lattice}\n  at {line()}"
            )
        if self.has_randoms:
            raise RecordingError(
                f"{name} draws random numbers, which the host numbers call by call: a graph would repeat the same ones; call it "
                f"outside of graphs\n  at {line()}"
            )
        if self.sums and not self.stays:
            graph_recorder.refuse(f"{name} sums for the host", "pass wait=False to lattice.sum")
        nodes: list[Any] = []
        arrays = self._arrays()
        with self.lock:
            self._set_scalars(arguments)
            self.take_sums()
            for kernel in self.kernels:
                launch = kernel.launch
                run: Callable[[], Any] = launch.run
                taking: list[Callable[[], Any]] = []
                launch.make_ready()
                if kernel.program.sums and self._leaves_digits(kernel):
                    run = self._leaving_sums(kernel)
                    if arrays is not None:
                        taking = [arrays.taking(launch)]
                    else:
                        pending = self._pend(kernel)
                        recorder.sums.append(pending)
                        nodes = pending.nodes
                elif kernel.program.sums and self.lattice.gpu is not None:
                    why = why_ranks_need_the_host(self.lattice)
                    raise RecordingError(
                        f"{name} has sums of several ranks, which cannot stay on these devices: {why}\n  at {line()}"
                    )
                elif kernel.program.sums and arrays is not None:
                    run = functools.partial(arrays.run_into, launch)
                elif kernel.program.sums:
                    block = _core.ScalarBlock(None, sum(t.reals for t in self.sums))
                    nodes = [number(block, k) for k in range(sum(t.reals for t in self.sums))]
                    recorder.written += nodes
                    run = functools.partial(launch.run_into, block)
                saved = kernel.parameters.copy() if kernel.scalar_parameters else None
                recorder.operations.append(
                    graph_recorder.Operation(_Repeated(kernel, run, saved), launch.warm_up)
                )
                recorder.operations += map(graph_recorder.Operation, taking)
                recorder.launches.append(launch)
                colours = bin(kernel.sites.parities).count("1")
                recorder.flops += kernel.cost.flops * self.lattice.volume * colours / 2
                recorder.changing += [
                    (kernel.fields[slot].storage, kernel.sites.parities)
                    for slot in kernel.text.analysis.writes
                ]
                recorder.borrowed += [f.storage for f in kernel.fields if f.storage.borrowed]
            recorder.held.append((arguments, self, self.tables.held))
            recorder.bound.append(self)
        if arrays is not None:
            recorder.written.append(arrays.memory)
            return arrays.result(self._unreported())
        return self._scalars(nodes) if nodes else None

    @property
    def exhausted(self) -> int:
        """How many `repeat_until`s of all runs gave up, on this rank."""
        return sum(int(counters.values[0]) for counters in self.attempts)

    @property
    def attempts(self) -> list[Any]:
        """Where they are counted: the counters of the kernels that have some."""
        return [kernel.launch.counters for kernel in self.kernels if kernel.text.analysis.counts_attempts]

    def _advance(self, arguments: tuple[Any, ...]) -> None:
        # A source that is given twice is called twice, so that the two arguments differ.
        drawn = [(rng.key, rng.next_call()) for rng in randoms_of(arguments)]
        for kernel in self.kernels:
            for index, parameter in kernel.random_parameters:
                kernel.parameters[index] = drawn[parameter.slot][parameter.what != "key"]


class _Repeated:
    """A launch of a graph, with the numbers that it was recorded with."""

    def __init__(self, kernel: BoundKernel, run: Callable[[], Any], saved: np.ndarray | None):
        self.kernel = kernel
        self.run = run
        self.saved = saved

    def __call__(self) -> None:
        if self.saved is not None:
            self.kernel.parameters[:] = self.saved
        # in a driver's graph nothing is checked, also not on other ranks
        if self.kernel.tunings and not self.kernel.launch.capturing:
            self.kernel.tune()
        self.run()


def _leaves(arguments: Any, before: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """What is in arguments and the lists among them, each with its way there."""
    for k, one in enumerate(arguments):
        if isinstance(one, list | tuple):
            yield from _leaves(one, (*before, k))
        else:
            yield (*before, k), one


def _set_scalar(kernel: BoundKernel, index: int, value: Any, component: int) -> None:
    if isinstance(value, Scalar | LocatedArray):
        kernel.parameters[index] = address_of(value, component)
    elif isinstance(value, np.ndarray) and not (value.ndim == 0 and value.dtype.kind in "iu"):
        flat = value.ravel()
        if value.dtype.kind == "c":
            part = flat[component // 2]
            kernel.floats[index] = float(part.imag if component % 2 else part.real)
        else:
            kernel.floats[index] = float(flat[component])
    elif isinstance(value, int | np.integer | np.ndarray):
        if why := why_too_large(int(value), kernel.program.precision):
            raise trace_error(why)
        kernel.parameters[index] = struct.unpack("Q", struct.pack("q", int(value)))[0]
    elif isinstance(value, complex | np.complexfloating):
        kernel.floats[index] = float(value.imag if component else value.real)
    else:
        kernel.floats[index] = float(value)
