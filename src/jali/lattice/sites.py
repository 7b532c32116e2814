"""Site functions: traced once, compiled once, bound to fields, run often.

`@site_function` turns ordinary Python into a kernel. Calling it finds, from cheapest to dearest: the same fields and
numbers as before (a bound launch), the same program for other fields (bind), the same types (lower), or none (trace).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import _core, recording
from jali.codegen.lines import trace_error
from jali.codegen.stage_cache import COUNTS
from jali.codegen.stages import Traced, programs_of, trace_function
from jali.codegen.symbols import Site
from jali.errors import JaliError, RecordingError
from jali.lattice.arguments import (
    aliases,
    check_function,
    common_lattice,
    common_precision,
    describe,
    fields_of,
    hashable,
    key_of,
    randoms_of,
    scalars_of,
    statics_of,
)
from jali.lattice.binding import BoundKernel
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.expressions import PendingSum, constant, number
from jali.lattice.field import Field
from jali.lattice.lost import raise_on_all_ranks
from jali.lattice.lowering import bind
from jali.lattice.scalars import Scalar, address_of, scalars_of_parts, settle_arguments
from jali.lattice.sums import Sums, check_scalars, values_as_asked

_MOST_BOUND = 256  # launches that a site function remembers; the oldest goes first
_MOST_PROGRAMS = 256  # kinds of arguments for which it remembers programs,
_MOST_VARIANTS = 16  # and programs of a kind, which saw different numbers
_tracing = threading.RLock()  # one trace at a time: what one thread traces, others need not


class SiteFunction:
    """A function of a symbolic site; calling it runs it over a lattice.

    `f(a, b, 2.0)` runs over all sites, `f[EVEN](a, b, 2.0)` over a colour. Fields (and lists of fields), numbers,
    small arrays, `Random`s and directions may be arguments. Numbers are run-time values: changing them does not
    compile again. Raises TraceError for mistakes in the function, LayoutError for fields that do not fit together.
    """

    __name__: str

    def __init__(self, function: Any):
        check_function(function)
        functools.update_wrapper(self, function)
        self.function = function
        self.__wrapped_site_function__ = function
        signature = inspect.signature(function)
        names = list(signature.parameters)
        if not names:
            raise trace_error(
                f"{function.__name__} takes no site; its first parameter is the site, usually called X"
            )
        for parameter in signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                raise trace_error(
                    f"{function.__name__}: site functions take plain positional parameters, not {parameter}"
                )
        self.parameters = names[1:]
        self._guard = threading.RLock()  # of what follows; held for moments, never while anything runs
        self._exhausted_before = 0  # by launches that are gone
        self._bound: dict[Any, _Bound] = {}  # by arguments and program
        self._latest: dict[Any, _Bound] = {}  # by arguments
        self._programs: dict[Any, tuple[Traced, ...]] = {}  # by types of arguments, the latest first
        self._everywhere = SiteFunctionOn(self, ALL)

    def __getitem__(self, domain: Domain) -> SiteFunctionOn:
        domain = as_domain(domain, f"{self.__name__}[...]")
        return self._everywhere if domain is ALL else SiteFunctionOn(self, domain)

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.refuse(named)
        if arguments and isinstance(arguments[0], Site):
            return self.function(*arguments)  # inlined into the site function that calls it
        self.run(ALL, arguments)
        return None

    def refuse(self, named: dict[str, Any]) -> None:
        """Raises TraceError for arguments by name."""
        if named:
            raise trace_error(
                f"{self.__name__} takes its arguments in order, without names: {', '.join(self.parameters)}"
            )

    def run(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any = None, sums: Sums | None = None
    ) -> Any:
        """Runs over a domain; with `sums`, the parameters beyond `arguments` are sums and their values are returned."""
        key = (domain, sums, None if lattice is None else lattice.serial, *map(key_of, arguments))
        try:
            bound = self._latest.get(key)
        except TypeError:  # a domain or an argument without a hash is none that there is, and binding says so
            self._bind(domain, arguments, lattice, sums)
            raise
        if bound is None or not bound.watch.unchanged():
            bound = self._bind(domain, arguments, lattice, sums, key)
        return bound.run(arguments)

    @property
    def exhausted(self) -> int:
        """How many `repeat_until`s of all calls so far gave up, on this rank."""
        recording.refuse("attempts that gave up are counted on the host", "do it before or after")
        with self._guard:
            before, bound = self._exhausted_before, list(self._bound.values())
        return before + sum(b.exhausted for b in bound)

    def _forget(self, key: Any) -> None:
        with self._guard:
            gone = self._bound.pop(key, None)
            if gone is None:
                return
            if self._latest.get(key[0]) is gone:
                del self._latest[key[0]]
        # A device that is lost counts no more; whoever uses it hears of it. It may be waited for, so without the guard.
        with contextlib.suppress(JaliError):
            exhausted = gone.exhausted
            with self._guard:
                self._exhausted_before += exhausted

    def kernels(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> list[BoundKernel]:
        """The kernels that a call with these arguments runs, compiled and bound but not run."""
        return self._bind(over, arguments, lattice, sums).kernels

    def traced(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> tuple[Traced, list[BoundKernel]]:
        """The first stage of such a call, and the last, `kernels`."""
        bound = self._bind(over, arguments, lattice, sums)
        return bound.traced, bound.kernels

    def bind(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> Callable[[], Any]:
        """A call with these arguments, bound anew, under the settings of now (halo policy, launch parameters).

        The fields live as long as what is returned. For measurements; ordinary calls bind by themselves.
        """
        return functools.partial(self._bind(over, arguments, lattice, sums).run, arguments)

    def _remember(self, key: Any, bound: _Bound) -> None:
        with self._guard:
            for oldest in list(self._bound)[: max(0, len(self._bound) + 1 - _MOST_BOUND)]:
                lock = self._bound[oldest].lock
                if lock.acquire(blocking=False):  # else another rank runs it just now
                    try:
                        self._forget(oldest)
                    finally:
                        lock.release()
            self._bound[key] = bound
        bound.forget = _Forget(weakref.ref(self), key)
        for field in bound.fields:
            field.on_release(bound.forget)

    def _bind(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any, sums: Sums | None, key: Any = None
    ) -> _Bound:
        """A launch with these arguments; where there is a `key`, one that is there already or is remembered from now on."""
        domain = as_domain(domain, "over=")
        nsums = len(self.parameters) - len(arguments)
        if nsums < 0 or (nsums > 0) != (sums is not None):
            wanted = f"{len(self.parameters)} arguments ({', '.join(self.parameters)})"
            if sums is None:
                raise trace_error(
                    f"{self.__name__} takes {wanted}, {len(arguments)} were given; sums over sites are called as "
                    f"lattice.sum({self.__name__}, ...)"
                )
            raise trace_error(
                f"{self.__name__} takes {wanted}; lattice.sum needs at least one of them left for the sum"
            )
        shapes = tuple(describe(a, n) for a, n in zip(arguments, self.parameters, strict=False))
        fields = list(fields_of(arguments))
        lattice = common_lattice(self.__name__, fields, lattice)
        precision = common_precision(self.__name__, fields)
        with lattice.lock:
            traced = self._traced(arguments, shapes, fields, (lattice.ndim, precision, nsums))
            if key is None:
                return _Bound(traced, fields, arguments, lattice, domain, sums)
            whole = (key, id(traced.watch))
            bound = self._bound.get(whole)
            if bound is None:
                bound = _Bound(traced, fields, arguments, lattice, domain, sums)
                self._remember(whole, bound)
            else:
                COUNTS["bound"].count(found=True)
            self._latest[key] = bound
        return bound

    def _traced(
        self, arguments: tuple[Any, ...], shapes: Any, fields: list[Field], how: tuple[int, str, int]
    ) -> Traced:
        """The program for arguments of these types that saw what the function would see now."""
        key = (*how, repr(aliases(fields)), hashable(shapes))
        with _tracing:
            known = self._programs.get(key, ())
            for traced in known:
                if traced.watch.unchanged():
                    COUNTS["traced"].count(found=True)
                    return traced
            traced = trace_function(self.function, statics_of(arguments), shapes, self.parameters, *how)
            if len(self._programs) >= _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = (traced, *known[: _MOST_VARIANTS - 1])
            return traced


class SiteFunctionOn:
    """A site function restricted to a domain."""

    __slots__ = ("domain", "function")

    def __init__(self, function: SiteFunction, domain: Domain):
        self.function = function
        self.domain = domain

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.function.refuse(named)
        self.function.run(self.domain, arguments)


def site_function(function: Callable[..., Any] | None = None) -> SiteFunction:
    """Decorator: makes a kernel of a function of a symbolic site. See the guide to the site language."""
    return SiteFunction(function)


class _Forget:
    """Drops a bound launch when one of its fields goes away. Belongs to the launch: fields know it weakly."""

    __slots__ = ("__weakref__", "function", "key")

    def __init__(self, function: weakref.ref[SiteFunction], key: Any):
        self.function = function
        self.key = key

    def __call__(self) -> None:
        function = self.function()
        if function is not None:
            function._forget(self.key)


# ---- a call, ready to run ------------------------------------------------------------------------------


class _Bound:
    """The kernels of one call: which words of each come from which argument."""

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
        self.watch = traced.watch
        self.lattice = lattice
        self.lock = lattice.lock  # numbers are set and the kernels run as one, whatever other threads do
        self.forget: _Forget | None = None
        distinct = list({f.serial: f for f in fields}.values())
        self.fields = [weakref.proxy(field) for field in distinct]  # a launch must not keep its fields alive
        placed = frozenset(k for k, value in enumerate(scalars_of(arguments)) if type(value) is Scalar)
        per_slice = sums is not None and sums.per is not None
        program = traced.programs[0]
        self.sums = program.sums
        self.stays = sums is not None and not sums.wait  # sums are Scalars
        if self.stays:
            check_scalars(program.name, self.sums, per_slice)
        self.reproducible = lattice.communicator.size == 1 or not (sums is not None and sums.fast)
        analysed = programs_of(traced)
        self.kernels = [bind(one, distinct, lattice, domain, sums, placed) for one in analysed]
        self.as_asked = values_as_asked(self.sums, per_slice)
        self.placed = bool(placed)
        self.pending: weakref.ref[PendingSum] | None = None  # sums of the last run that are still digits
        self.listed: list[tuple[Any, int, int, int]] = []  # words, index, argument number, place in the list
        self.simple = self._simple_scalars(arguments)
        self.lattice = lattice
        self.lost = [lost for kernel in self.kernels for lost in kernel.lost]
        self.has_randoms = any(program.randoms for program in traced.programs)

    def _simple_scalars(self, arguments: tuple[Any, ...]) -> list[tuple[Any, int, int]] | None:
        """(words, index, argument number) if every scalar is a float, at top level or in a list there (which `listed` has); else None."""
        paths: list[tuple[int, int | None]] = []
        for k, argument in enumerate(arguments):
            if type(argument) is float:
                paths.append((k, None))
            elif isinstance(argument, list | tuple):
                paths += [(k, at) for at, member in enumerate(argument) if type(member) is float]
        if len(paths) != len(list(scalars_of(arguments))):
            return None
        plan = []
        for kernel in self.kernels:
            for index, word in kernel.scalar_words:
                position, at = paths[word.slot]
                if at is None:
                    plan.append((kernel.floats, index, position))
                else:
                    self.listed.append((kernel.floats, index, position, at))
        return plan

    def run(self, arguments: tuple[Any, ...]) -> Any:
        if recording.recorders and (tape := recording.current()) is not None:
            return self._record(arguments, tape)
        result = None
        with self.lock:
            if self.simple is not None:
                for words, index, position in self.simple:
                    words[index] = arguments[position]
                for words, index, position, at in self.listed:
                    words[index] = arguments[position][at]
            else:
                self._set_scalars(arguments)
            if self.has_randoms:
                self._advance(arguments)
            if self.stays:
                return self._run_for_scalars()
            for kernel in self.kernels:
                if kernel.tunings:
                    kernel.tune()
                out = kernel.launch.run()
                if out is not None and result is None:
                    result = out
            if self.lost and result is not None:
                raise_on_all_ranks(self.lattice.communicator, self.lost)
        return None if result is None else self.as_asked(result)

    def _set_scalars(self, arguments: tuple[Any, ...]) -> None:
        values = list(scalars_of(arguments))
        if self.placed:
            settle_arguments(self.lattice.gpu, values, self.kernels[0].program.name)
        for kernel in self.kernels:
            for index, word in kernel.scalar_words:
                _set_scalar(kernel, index, values[word.slot], word.component)

    # ---- sums that stay, and graphs -----------------------------------------------------------------

    @property
    def _leaves_digits(self) -> bool:
        """Whether sums are left on the device: the device of one rank, since ranks add through their hosts."""
        return self.lattice.gpu is not None and self.lattice.communicator.size == 1

    def _scalars(self, nodes: list[Any]) -> Any:
        return scalars_of_parts(self.lattice.gpu, nodes, self.sums, self.reproducible)

    def _run_for_scalars(self) -> Any:
        nodes: list[Any] = []
        self.take_sums()
        for kernel in self.kernels:
            if kernel.tunings:
                kernel.tune()
            if not kernel.program.sums:
                kernel.launch.run()
            elif self._leaves_digits:
                kernel.launch.run_leaving_sums()
                nodes = self._pend(kernel).nodes
            else:
                nodes = [constant(value) for value in np.asarray(kernel.launch.run()).tolist()]
        return self._scalars(nodes)

    def _pend(self, kernel: BoundKernel) -> PendingSum:
        pending = PendingSum(kernel.launch, sum(t.reals for t in self.sums), self.lattice.gpu)
        self.pending = weakref.ref(pending)
        return pending

    def take_sums(self) -> None:
        """Before the launch makes others: the sums of its last run, if somebody still has them."""
        pending = None if self.pending is None else self.pending()
        if pending is not None:
            pending.take()
        self.pending = None

    def _record(self, arguments: tuple[Any, ...], tape: recording.Tape) -> Any:
        """Appends the call with the numbers of now to what a graph repeats."""
        name, line = self.kernels[0].program.name, recording.line
        if self.lattice.gpu is not tape.lattice.gpu:
            raise RecordingError(
                f"{name} runs on {self.lattice}, which is not on the device of the graph, that of {tape.lattice}\n  at {line()}"
            )
        if self.has_randoms:
            raise RecordingError(
                f"{name} draws random numbers, which the host numbers call by call: a graph would repeat the same ones; call it "
                f"outside of graphs\n  at {line()}"
            )
        if self.sums and not self.stays:
            recording.refuse(f"{name} sums for the host", "pass wait=False to lattice.sum")
        nodes: list[Any] = []
        with self.lock:
            self._set_scalars(arguments)
            self.take_sums()
            for kernel in self.kernels:
                launch = kernel.launch
                run: Callable[[], Any] = launch.run
                launch.make_ready()
                if kernel.program.sums and self._leaves_digits:
                    pending = self._pend(kernel)
                    tape.sums.append(pending)
                    nodes, run = pending.nodes, launch.run_leaving_sums
                elif kernel.program.sums:
                    block = _core.Numbers(None, sum(t.reals for t in self.sums))
                    nodes = [number(block, k) for k in range(sum(t.reals for t in self.sums))]
                    tape.written += nodes
                    run = functools.partial(launch.run_into, block)
                saved = kernel.words.copy() if kernel.scalar_words else None
                tape.operations.append(_Repeated(kernel, run, saved))
                tape.launches.append(launch)
            tape.held.append((arguments, self))
            tape.bound.append(self)
        return self._scalars(nodes) if nodes else None

    @property
    def exhausted(self) -> int:
        """How many `repeat_until`s of all runs gave up, on this rank."""
        return sum(
            int(kernel.launch.counters.values[0]) for kernel in self.kernels if kernel.text.analysis.bodies
        )

    def _advance(self, arguments: tuple[Any, ...]) -> None:
        # A source that is given twice is asked twice, so that the two arguments differ.
        drawn = [(rng.key, rng.next_call()) for rng in randoms_of(arguments)]
        for kernel in self.kernels:
            for index, word in kernel.random_words:
                kernel.words[index] = drawn[word.slot][word.what != "key"]


class _Repeated:
    """A launch of a graph, with the numbers that it was recorded with."""

    def __init__(self, kernel: BoundKernel, run: Callable[[], Any], saved: np.ndarray | None):
        self.kernel = kernel
        self.run = run
        self.saved = saved

    def __call__(self) -> None:
        if self.saved is not None:
            self.kernel.words[:] = self.saved
        if self.kernel.tunings:
            self.kernel.tune()
        self.run()


def _set_scalar(kernel: BoundKernel, index: int, value: Any, component: int) -> None:
    if isinstance(value, Scalar):
        kernel.words[index] = address_of(value, component)
    elif isinstance(value, np.ndarray):
        flat = value.ravel()
        if value.dtype.kind == "c":
            part = flat[component // 2]
            kernel.floats[index] = float(part.imag if component % 2 else part.real)
        else:
            kernel.floats[index] = float(flat[component])
    elif isinstance(value, int | np.integer):
        if not -(1 << 31) <= value < 1 << 31:
            raise trace_error(f"the whole number {value} does not fit 32 bits; pass it as a float")
        kernel.words[index] = struct.unpack("Q", struct.pack("q", int(value)))[0]
    elif isinstance(value, complex | np.complexfloating):
        kernel.floats[index] = float(value.imag if component else value.real)
    else:
        kernel.floats[index] = float(value)
