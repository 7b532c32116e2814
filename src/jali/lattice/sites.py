"""Site functions: traced once, compiled once, bound to fields, run often.

`@site_function` turns ordinary Python into a kernel. Calling it finds, from cheapest to dearest: the same fields and
numbers as before (a bound launch), the same program for other fields (bind), the same types (lower), or none (trace).
"""

from __future__ import annotations

import functools
import inspect
import struct
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.codegen import cache
from jali.codegen.captured import Captured
from jali.codegen.directions import Direction, Offset
from jali.codegen.emit import FIRST_WORD, KernelText, Variant, emit
from jali.codegen.ir import Output, SiteProgram, Store
from jali.codegen.items import Item, find_items
from jali.codegen.trace import FieldArgument, Site, Value, trace
from jali.codegen.types import Element, Type
from jali.errors import LayoutError, TraceError
from jali.lattice.binding import BoundKernel, CompiledKernel
from jali.lattice.domain import ALL, Domain
from jali.lattice.field import Field
from jali.lattice.random import Random

_MOST_BOUND = 256  # launches that a site function remembers; the least recently used goes first

REAL, COMPLEX, INT = Type("real"), Type("complex"), Type("int")


class SiteFunction:
    """A function of a symbolic site; calling it runs it over a lattice.

    `f(a, b, 2.0)` runs over all sites, `f[EVEN](a, b, 2.0)` over a colour. Fields (and lists of fields), numbers,
    small arrays, `Random`s and directions may be arguments. Numbers are run-time values: changing them does not
    compile again. Raises TraceError for mistakes in the function, LayoutError for fields that do not fit together.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self.function = function
        self.__wrapped_site_function__ = function
        signature = inspect.signature(function)
        names = list(signature.parameters)
        if not names:
            raise TraceError(
                f"{function.__name__} takes no site; its first parameter is the site, usually called X"
            )
        for parameter in signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                raise TraceError(
                    f"{function.__name__}: site functions take plain positional parameters, not {parameter}"
                )
        self.parameters = names[1:]
        self.exhausted = 0
        self._captured: Captured | None = None  # made by the first call: what is defined below the function counts too
        self._bound: OrderedDict[Any, _Bound] = OrderedDict()
        self._programs: dict[Any, list[SiteProgram]] = {}
        self._everywhere = SiteFunctionOn(self, ALL)

    def __getitem__(self, domain: Domain) -> SiteFunctionOn:
        if not isinstance(domain, Domain):
            raise LayoutError(f"{self.__name__}[...] takes a domain such as EVEN, not {domain!r}")
        return self._everywhere if domain is ALL else SiteFunctionOn(self, domain)

    def __call__(self, *arguments: Any) -> None:
        if arguments and isinstance(arguments[0], Site):
            return self.function(*arguments)  # inlined into the site function that calls it
        self.run(ALL, arguments)
        return None

    def run(
        self, domain: Domain, arguments: tuple[Any, ...], lattice: Any = None, sums: Sums | None = None
    ) -> Any:
        """Runs over a domain; with `sums`, the parameters beyond `arguments` are sums and their values are returned."""
        key = (
            domain,
            sums,
            None if lattice is None else lattice.serial,
            self._captured_values(),
            *map(_key, arguments),
        )
        try:
            bound = self._bound.get(key)
        except TypeError:  # an argument without a hash is one that no site function takes, and binding says so
            self._bind(domain, arguments, lattice, sums)
            raise
        if bound is None:
            bound = self._bind(domain, arguments, lattice, sums)
            self._remember(key, bound)
        result = bound.run(arguments)
        self.exhausted += bound.exhausted
        return result

    def _captured_values(self) -> tuple[Any, ...]:
        """The numbers that the function sees besides its arguments, now."""
        if self._captured is None:
            self._captured = Captured(self.function)
        return self._captured.values()

    def kernels(
        self, *arguments: Any, over: Domain = ALL, lattice: Any = None, sums: Sums | None = None
    ) -> list[BoundKernel]:
        """The kernels that a call with these arguments runs, compiled and bound but not run."""
        return self._bind(over, arguments, lattice, sums).kernels

    def _remember(self, key: Any, bound: _Bound) -> None:
        if len(self._bound) >= _MOST_BOUND:
            self._bound.popitem(last=False)
        self._bound[key] = bound
        for field in bound.fields:
            field.on_release(_Forget(weakref.ref(self), key))

    def _bind(self, domain: Domain, arguments: tuple[Any, ...], lattice: Any, sums: Sums | None) -> _Bound:
        nsums = len(self.parameters) - len(arguments)
        if nsums < 0 or (nsums > 0) != (sums is not None):
            wanted = f"{len(self.parameters)} arguments ({', '.join(self.parameters)})"
            if sums is None:
                raise TraceError(
                    f"{self.__name__} takes {wanted}, {len(arguments)} were given; sums over sites are called as "
                    f"lattice.sum({self.__name__}, ...)"
                )
            raise TraceError(
                f"{self.__name__} takes {wanted}; lattice.sum needs at least one of them left for the sum"
            )
        fields = list(_fields(arguments))
        lattice = _common_lattice(self.__name__, fields, lattice)
        precision = _common_precision(self.__name__, fields)
        shapes = tuple(_describe(a, n) for a, n in zip(arguments, self.parameters, strict=False))
        key = (
            lattice.ndim,
            precision,
            nsums,
            self._captured_values(),
            repr(_aliases(fields)),
            _hashable(shapes),
        )
        programs = self._programs.get(key)
        if programs is None:
            programs = trace(self.function, shapes, self.parameters, lattice.ndim, precision, nsums)
            self._programs[key] = programs
            self._captured = Captured(self.function)  # what was replaced may see other things than what was there
        return _Bound(programs, fields, arguments, lattice, domain, sums)


class SiteFunctionOn:
    """A site function restricted to a domain."""

    __slots__ = ("domain", "function")

    def __init__(self, function: SiteFunction, domain: Domain):
        self.function = function
        self.domain = domain

    def __call__(self, *arguments: Any) -> None:
        self.function.run(self.domain, arguments)


def site_function(function: Callable[..., Any]) -> SiteFunction:
    """Decorator: makes a kernel of a function of a symbolic site. See the guide to the site language."""
    return SiteFunction(function)


@dataclass(frozen=True)
class Sums:
    """How the sums of a call are taken: per slice of a direction or over all sites; reproducibly or fast."""

    per: int | None = None
    fast: bool = False


class _Forget:
    """Drops a bound launch when one of its fields goes away."""

    __slots__ = ("function", "key")

    def __init__(self, function: weakref.ref[SiteFunction], key: Any):
        self.function = function
        self.key = key

    def __call__(self) -> None:
        function = self.function()
        if function is not None:
            function._bound.pop(self.key, None)


# ---- arguments -----------------------------------------------------------------------------------------


def _key(argument: Any) -> Any:
    """What of an argument decides which bound launch is used; cheap, called for every run."""
    kind = type(argument)
    if kind is Field:
        return argument.serial
    if kind is float or kind is int or kind is complex or kind is Random:
        return kind
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return tuple([f.serial for f in fields])
    if kind is list or kind is tuple:
        return (kind, *map(_key, argument))
    if isinstance(argument, np.ndarray):
        return (kind, argument.shape, argument.dtype.kind)
    if isinstance(argument, np.generic):
        return kind
    if isinstance(argument, Field):
        return argument.serial
    return argument


def _describe(argument: Any, name: str) -> Any:
    """An argument as the tracer wants it."""
    if isinstance(argument, Field):
        return FieldArgument(argument.element, argument.serial)
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return [_describe(f, name) for f in fields]
    if isinstance(argument, Random):
        return "random"
    if isinstance(argument, Direction | Offset | bool | np.bool_ | str | type(None) | Element | Domain):
        return ("static", argument)
    if isinstance(argument, list | tuple):
        return [_describe(a, f"{name}[{k}]") for k, a in enumerate(argument)]
    if isinstance(argument, int | np.integer):
        return INT
    if isinstance(argument, float | np.floating):
        return REAL
    if isinstance(argument, complex | np.complexfloating):
        return COMPLEX
    if isinstance(argument, np.ndarray) and argument.ndim in (0, 1, 2) and argument.size <= 256:
        if argument.dtype.kind not in "fciub":
            raise TraceError(f"{name}: an array of {argument.dtype} cannot be used in a site function")
        return Type("complex" if argument.dtype.kind == "c" else "real", argument.shape)
    if isinstance(argument, np.ndarray):
        raise TraceError(f"{name}: an array of {argument.size} numbers is not an argument; make it a Field")
    if isinstance(argument, Value | Site):
        raise TraceError(f"{name} is a symbol of another site function")
    if callable(argument):
        return ("static", argument)
    raise TraceError(
        f"{name}: a {type(argument).__name__} cannot be an argument; fields, numbers, small arrays, jali.Random, directions and "
        "functions can"
    )


def _fields(arguments: Any) -> Any:
    for a in arguments:
        if isinstance(a, Field):
            yield a
        elif getattr(a, "fields", None) is not None:
            yield from a.fields
        elif isinstance(a, list | tuple):
            yield from _fields(a)


def _aliases(fields: list[Field]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(f.serial, k) for k, f in enumerate(fields)]


def _hashable(shape: Any) -> Any:
    if isinstance(shape, FieldArgument):
        return shape.element
    if isinstance(shape, list | tuple) and not (len(shape) == 2 and isinstance(shape[0], str)):
        return tuple(_hashable(s) for s in shape)
    return shape


def _common_lattice(name: str, fields: list[Field], lattice: Any) -> Any:
    for field in fields:
        if lattice is None:
            lattice = field.lattice
        elif field.lattice is not lattice:
            raise LayoutError(
                f"{name}: {field.name} lives on {field.lattice}, another argument on {lattice}; a site function runs on one lattice"
            )
    if lattice is None:
        raise LayoutError(
            f"{name} has no field argument, so its lattice is unknown; use lattice.sum or pass a field"
        )
    return lattice


def _common_precision(name: str, fields: list[Field]) -> str:
    precisions = {f.precision for f in fields}
    if len(precisions) > 1:
        listing = ", ".join(f"{f.name}: {f.precision}" for f in fields)
        raise LayoutError(
            f"{name} mixes precisions ({listing}); convert a field with .astype(precision), or store it in float32 with "
            "Field(..., precision='float64', storage='float32')"
        )
    return precisions.pop() if precisions else "float64"


def _scalars(arguments: Any) -> Any:
    """Values of the run-time scalars, in the order in which the tracer numbered them."""
    for a in arguments:
        if isinstance(
            a, Field | Random | Direction | Offset | bool | np.bool_ | str | type(None) | Element | Domain
        ):
            continue
        if getattr(a, "fields", None) is not None:
            continue
        if isinstance(a, list | tuple):
            yield from _scalars(a)
        elif isinstance(a, int | float | complex | np.generic | np.ndarray):
            yield a


# ---- a call, ready to run ------------------------------------------------------------------------------


class _Bound:
    """The kernels of one call: which words of each come from which argument."""

    def __init__(
        self,
        programs: list[SiteProgram],
        fields: list[Field],
        arguments: tuple[Any, ...],
        lattice: Any,
        domain: Domain,
        sums: Sums | None,
    ):
        distinct = list({f.serial: f for f in fields}.values())
        self.fields = [weakref.proxy(field) for field in distinct]  # a launch must not keep its fields alive
        self.kernels = [_lower(program, distinct, lattice, domain, sums) for program in programs]
        self.exhausted = 0
        self.types = programs[0].sums
        self.per_slice = sums is not None and sums.per is not None
        self.counted = any(k.text.analysis.bodies for k in self.kernels)
        self.simple = self._simple_scalars(arguments)
        self.has_randoms = any(program.randoms for program in programs)

    def _simple_scalars(self, arguments: tuple[Any, ...]) -> list[tuple[Any, int, int]] | None:
        """(words, index, argument number) if every scalar is a plain top-level float; else None."""
        plan = []
        scalars = list(_scalars(arguments))
        positions = [k for k, a in enumerate(arguments) if type(a) is float]
        if len(positions) != len(scalars):
            return None
        for kernel in self.kernels:
            for index, word in kernel.scalar_words:
                plan.append((kernel.floats, index, positions[word.slot]))
        return plan

    def run(self, arguments: tuple[Any, ...]) -> Any:
        if self.simple is not None:
            for words, index, position in self.simple:
                words[index] = arguments[position]
        else:
            values = list(_scalars(arguments))
            for kernel in self.kernels:
                for index, word in kernel.scalar_words:
                    _set_scalar(kernel, index, values[word.slot], word.component)
        if self.has_randoms:
            self._advance(arguments)
        result = None
        for kernel in self.kernels:
            out = kernel.launch.run()
            if out is not None and result is None:
                result = out
        if self.counted:
            self.exhausted = sum(
                int(kernel.launch.counters[0]) for kernel in self.kernels if kernel.text.analysis.bodies
            )
        return None if result is None else self._shape(result)

    def _advance(self, arguments: tuple[Any, ...]) -> None:
        randoms = list(_randoms(arguments))
        for kernel in self.kernels:
            for index, word in kernel.random_words:
                rng = randoms[word.slot]
                kernel.words[index] = rng.key if word.what == "key" else rng.call
        for rng in dict.fromkeys(randoms):
            rng.call += 1

    def _shape(self, values: np.ndarray) -> Any:
        """Doubles of the sums as the numbers and arrays that the user asked for."""
        out = []
        first = 0
        for type in self.types:
            part = values[..., first : first + type.reals]
            first += type.reals
            if type.kind == "complex":
                part = np.ascontiguousarray(part).view(np.complex128)
            part = part.reshape(part.shape[:-1] + type.shape)
            if not self.per_slice:
                out.append(part.item() if not type.shape else part.copy())
            else:
                out.append(part.copy())
        return out[0] if len(out) == 1 else tuple(out)


def _randoms(arguments: Any) -> Any:
    for a in arguments:
        if isinstance(a, Random):
            yield a
        elif isinstance(a, list | tuple):
            yield from _randoms(a)


def _set_scalar(kernel: BoundKernel, index: int, value: Any, component: int) -> None:
    if isinstance(value, np.ndarray):
        flat = value.ravel()
        if value.dtype.kind == "c":
            part = flat[component // 2]
            kernel.floats[index] = float(part.imag if component % 2 else part.real)
        else:
            kernel.floats[index] = float(flat[component])
    elif isinstance(value, int | np.integer):
        if not -(1 << 31) <= value < 1 << 31:
            raise TraceError(f"the whole number {value} does not fit 32 bits; pass it as a float")
        kernel.words[index] = struct.unpack("Q", struct.pack("q", int(value)))[0]
    elif isinstance(value, complex | np.complexfloating):
        kernel.floats[index] = float(value.imag if component else value.real)
    else:
        kernel.floats[index] = float(value)


def _lower(
    program: SiteProgram, fields: list[Field], lattice: Any, domain: Domain, sums: Sums | None
) -> BoundKernel:
    """Chooses the variant for these fields and this domain, compiles and binds."""
    check_races(program, lattice, domain)
    layout = lattice.layout(program.precision)
    phased = frozenset(
        (slot, offset)
        for slot, offsets in _reads(program).items()
        for offset in offsets
        if fields[slot].boundary.matters(offset)
    )
    single = frozenset(k for k, f in enumerate(fields) if f.storage_precision != f.precision)
    sites = lattice.sites_of(domain, program.shift, layout)
    items = _items(program, phased, fields, lattice)
    variant = Variant(layout.lanes, sites.masks is not None, phased, single, items)
    kernel = _compile(program, variant)
    producers = [
        (item, _compile(_producer(program, item), Variant(layout.lanes, single=single))) for item in items
    ]
    return BoundKernel(program, variant, kernel, producers, fields, lattice, layout, sites, sums)


def _compile(program: SiteProgram, variant: Variant) -> CompiledKernel:
    text = _emit(program, variant)
    address, source = cache.load(program.name, text.text, variant.lanes, program.precision)
    return CompiledKernel(text, address, source)


def _items(program: SiteProgram, phased: Any, fields: list[Field], lattice: Any) -> tuple[Item, ...]:
    """Halo items of the offsets that can leave this rank's box, where they cannot change a bit."""
    if not lattice.halo_items or lattice.communicator.size == 1:
        return ()
    crossing = tuple(
        dict.fromkeys(
            offset
            for offsets in _reads(program).values()
            for offset in offsets
            if any(step and ranks > 1 for step, ranks in zip(offset, lattice.grid, strict=True))
            and not any(
                fields[slot].boundary.rounds(offset) for slot, at in _reads(program).items() if offset in at
            )
        )
    )
    known = program.__dict__.setdefault("_items", {})
    key = (crossing, phased)
    if key not in known:
        known[key] = tuple(find_items(program, crossing, phased))
    found: tuple[Item, ...] = known[key]
    return found


def _producer(program: SiteProgram, item: Item) -> SiteProgram:
    """The program that computes an item at the sender's own site."""
    known = program.__dict__.setdefault("_producers", {})
    if item not in known:
        effects, first = [], 0
        for node in item.cut:
            effects.append(Output(first, node))
            first += node.type.reals
        known[item] = SiteProgram(
            f"{program.name}_item",
            program.ndim,
            program.precision,
            program.fields,
            [],
            [],
            effects,
            [],
            item.offset,
            [],
            first,
        )
    made: SiteProgram = known[item]
    return made


def _emit(program: SiteProgram, variant: Variant) -> KernelText:
    known = program.__dict__.setdefault("_texts", {})
    if variant not in known:
        known[variant] = emit(program, variant)
    text: KernelText = known[variant]
    return text


def _reads(program: SiteProgram) -> dict[int, list[tuple[int, ...]]]:
    from jali.codegen.passes import analyse

    known = program.__dict__.get("_reads")
    if known is None:
        known = {slot: list(offsets) for slot, offsets in analyse(program).reads.items()}
        program.__dict__["_reads"] = known
    result: dict[int, list[tuple[int, ...]]] = known
    return result


def check_races(program: SiteProgram, lattice: Any, domain: Domain) -> None:
    """Raises TraceError where a read of a written field could hit a site that the same loop writes."""
    written = {e.slot: e for e in program.effects if isinstance(e, Store)}
    reads = _reads(program)
    for slot, store in written.items():
        for offset in reads.get(slot, []):
            if any(offset) and lattice.meets(domain, program.shift, offset):
                field = program.fields[slot]
                source = tuple(o + s for o, s in zip(offset, program.shift, strict=True))
                line = field.reads.get(source, store.where)
                raise TraceError(
                    f"{program.name} over {domain} reads {field.name} at offset {source} of a site that the same loop writes "
                    f"(written at {store.where}): the result would depend on the order of the sites.\n"
                    "  Run it over EVEN and ODD separately if the offset is odd, or write to another field\n"
                    f"  at {line}"
                )


__all__ = ["FIRST_WORD", "SiteFunction", "SiteFunctionOn", "Sums", "site_function"]
