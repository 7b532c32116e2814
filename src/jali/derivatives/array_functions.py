"""Site functions and operators as functions of arrays, with what cotangents of their results become: what `torch_functions` and
`jax_functions` give to their libraries.

Arrays are wrapped as fields where they lie (`Lattice.wrap`) and results are new arrays of the same library. The convention for complex
numbers is jali's: the cotangent c of y is dL/d Re y + i dL/d Im y, so that dL = Re <c, dy>.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jali.array_namespaces import may_overlap, namespace_of, numpy_dtype
from jali.arrays import DistributedArray, StackedDistributedArray
from jali.arrays.layout import Layout, layout_of
from jali.codegen.types import Element, Matrix
from jali.derivatives.functions import Derivation, derived, is_group
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.files import value_shown
from jali.lattice.arguments import SUM, common_precision
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice
from jali.lattice.sites import SiteFunction, SiteFunctionOn
from jali.lattice.sums import PLAIN_SUMS

MOST_CHECKED = 64  # kinds of calls whose kernels an ArrayFunction remembers to have looked at


class Place(NamedTuple):
    """Stands for an array among the arguments of a call."""

    number: int
    name: str  # of the parameter


class SiteArrayFunction:
    """A site function as a function of arrays; see `torch_function` for the arguments.

    `arranged` takes the arguments of a call apart, `forward` computes the results, `backward` the gradients.
    """

    def __init__(
        self,
        function: SiteFunction | SiteFunctionOn,
        lattice: Lattice,
        out: str | Sequence[str] | None,
        elements: Mapping[str, Any] | None,
        boundaries: Mapping[str, Any] | None,
        what: str,
    ) -> None:
        self.what = what
        self.function = function.function if isinstance(function, SiteFunctionOn) else function
        self.domain = function.domain if isinstance(function, SiteFunctionOn) else ALL
        if not isinstance(lattice, Lattice):
            raise ParameterError(
                f"jali.derivatives.{what} of {self.function.__name__} takes the lattice that arrays are on, not {value_shown(lattice)}"
            )
        if self.function.is_method:
            raise ParameterError(
                f"{self.function.__name__} is a method: take it of an object, {what}(model.{self.function.__name__}, ...)"
            )
        self.lattice = lattice
        self.out = (out,) if isinstance(out, str) else tuple(out or ())
        self.elements, self.boundaries = dict(elements or {}), dict(boundaries or {})
        for word, names in (
            ("out=", self.out),
            ("elements=", self.elements),
            ("boundaries=", self.boundaries),
        ):
            for name in names:
                if name not in self.function.parameters:
                    raise ParameterError(
                        f"jali.derivatives.{what}: {word} names parameters of {self.function.__name__} "
                        f"({', '.join(self.function.parameters)}), not {value_shown(name)}"
                    )
        self.new: Callable[[Any, tuple[int, ...], Any], Any] = _new
        self._checked: set[Any] = set()

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.lattice.communicator.size

    def __repr__(self) -> str:
        return f"<{self.what} of {self.function!r} on {self.lattice!r}>"

    # ---- arguments ---------------------------------------------------------------------------------------

    def arranged(
        self, arguments: Sequence[Any], named: Mapping[str, Any], is_array: Callable[[Any], bool]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """One argument per parameter, with a `Place` where an array was and `SUM` where there is none, and these arrays.

        Raises ParameterError for arguments that are unknown, given twice, missing or too many.
        """
        function, arrays = self.function, []
        free = [name for name in function.parameters if name not in self.out]
        if len(arguments) > len(free):
            raise ParameterError(
                f"{function.__name__} takes {len(free)} arguments here ({', '.join(free)}), {len(arguments)} were given"
            )
        given = dict(zip(free, arguments, strict=False))
        for name, value in named.items():
            if name not in free:
                raise ParameterError(
                    f"{name} is made by the call"
                    if name in self.out
                    else f"{function.__name__} has no parameter {name}"
                )
            if name in given:
                raise ParameterError(f"{function.__name__} got {name} twice, by its place and by its name")
            given[name] = value
        rest = function.missing((), {**given, **dict.fromkeys(self.out)})
        if self.out and rest:
            raise ParameterError(
                f"{function.__name__} got no {' and '.join(rest)}: all but out= are arguments, and sums are of functions that write no field"
            )
        if not self.out and not rest:
            raise ParameterError(
                f"{function.__name__} leaves nothing to find: out= names the fields that it writes, sums are parameters that get no argument"
            )

        def taken(value: Any, name: str) -> Any:
            if isinstance(value, list | tuple):
                return [taken(one, name) for one in value]
            if not is_array(value):
                return value
            arrays.append(value)
            return Place(len(arrays) - 1, name)

        found = tuple(
            None
            if name in self.out
            else SUM
            if name in rest
            else taken(given[name], name)
            if name in given
            else function._defaults[name]
            for name in function.parameters
        )
        if not arrays:
            raise ParameterError(f"{function.__name__} got no array: call the site function itself")
        return found, arrays

    # ---- fields ------------------------------------------------------------------------------------------

    def _wrapped(self, array: Any, name: str, element: Element | None = None) -> Field:
        namespace = namespace_of(array)
        stream = None if self.lattice.gpu is None else namespace.stream(array)
        if element is None:
            element = self.elements.get(name)
        return self.lattice.wrap(array, element, boundary=self.boundaries.get(name), name=name, stream=stream)

    def _fields(self, plan: tuple[Any, ...], arrays: Sequence[Any]) -> list[Field]:
        names: dict[int, str] = {}
        _each(plan, lambda place: names.setdefault(place.number, place.name))
        return [self._wrapped(array, names[k]) for k, array in enumerate(arrays)]

    def _form_of_out(self, plan: tuple[Any, ...], fields: Sequence[Field], name: str) -> Any:
        """Elements of what the function writes to a parameter, in lists as its fields are: by default like the first argument of arrays."""
        if name in self.elements:
            return self.elements[name]
        first = next(one for one in plan if _any_place(one))
        return _replaced(first, lambda place: fields[place.number].element)

    def _boundary_of_out(self, plan: tuple[Any, ...], name: str) -> Any:
        if name in self.boundaries:
            return self.boundaries[name]
        first: list[str] = []
        _each(plan, lambda place: first.append(place.name))
        return self.boundaries.get(first[0])

    # ---- calls -------------------------------------------------------------------------------------------

    def forward(self, plan: tuple[Any, ...], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The results: nested as they are returned, with `Place`s, and one after the other; arrays, or numbers if they are sums."""
        fields = self._fields(plan, arrays)
        filled = _replaced(plan, lambda place: fields[place.number])
        if not self.out:
            self._check(filled, fields, [])
            before = filled.index(SUM)
            names = self.function.parameters[before:]
            after = {n: one for n, one in zip(names, filled[before:], strict=True) if one is not SUM}
            found = self.function.run(self.domain, filled[:before], self.lattice, PLAIN_SUMS, after)
            several = list(found) if isinstance(found, tuple) else [found]
            places = tuple(Place(k, "") for k in range(len(several)))
            return (places if len(places) > 1 else places[0]), several
        precision = common_precision(fields)
        made: list[Any] = []
        targets: list[Field] = []

        def new(element: Any, name: str, boundary: Any) -> tuple[Any, Any]:
            if isinstance(element, list | tuple):
                pairs = [new(one, name, boundary) for one in element]
                return [a for a, _ in pairs], [b for _, b in pairs]
            if not isinstance(element, Element):
                raise ParameterError(
                    f"elements= has elements such as Vector(3) and lists of them, not {value_shown(element)}"
                )
            array = self._new_array(arrays[0], element, precision)
            stream = None if self.lattice.gpu is None else namespace_of(array).stream(array)
            field = self.lattice.wrap(array, element, boundary=boundary, name=name, stream=stream)
            made.append(array)
            targets.append(field)
            return Place(len(made) - 1, name), field

        forms: list[Any] = []
        for k, name in enumerate(self.function.parameters):
            if name in self.out:
                places, own = new(
                    self._form_of_out(plan, fields, name), name, self._boundary_of_out(plan, name)
                )
                forms.append((self.out.index(name), places))
                filled = (*filled[:k], own, *filled[k + 1 :])
        self._check(filled, fields, targets)
        self.function.run(self.domain, filled, self.lattice, None)
        ordered = [places for _, places in sorted(forms, key=lambda pair: pair[0])]
        return (ordered[0] if len(ordered) == 1 else tuple(ordered)), made

    def _new_array(self, beside: Any, element: Element, precision: str) -> Any:
        shape = (*self.lattice.local_extents, *element.numpy_shape)
        array = self.new(beside, shape, element.numpy_dtype(precision))
        if self.domain is not ALL:
            array[...] = 0
        return array

    def backward(
        self,
        plan: tuple[Any, ...],
        arrays: Sequence[Any],
        wanted: Sequence[bool],
        form: Any,
        cotangents: Sequence[Any],
    ) -> list[Any]:
        """The gradient of each array that is wanted, None for others. `form` and `cotangents` are as `forward` gave its results."""
        fields = self._fields(plan, arrays)
        found: list[Any] = [None] * len(arrays)

        def target(place: Place) -> Any:
            if not wanted[place.number]:
                return None
            like = fields[place.number]
            array = arrays[place.number]
            found[place.number] = self.new(array, tuple(array.shape), array.dtype)
            return self._wrapped(found[place.number], place.name, ambient(like.element))

        function = self.function
        of = tuple(
            name
            for name, one in zip(function.parameters, plan, strict=True)
            if _any_place(one, lambda place: wanted[place.number])
        )
        changes = [
            _only_targets(one, target)
            for name, one in zip(function.parameters, plan, strict=True)
            if name in of
        ]
        filled = _replaced(plan, lambda place: fields[place.number])
        if not self.out:
            sums = tuple(name for name, one in zip(function.parameters, plan, strict=True) if one is SUM)
            pull = derived(function, Derivation("pullback", of, sums, weighted=True))
            own = [one for one in filled if one is not SUM]
            pull.run(self.domain, (*changes, *own, *cotangents), self.lattice, None)
            return found
        forms = dict(zip(self.out, form if len(self.out) > 1 else (form,), strict=True))
        precise = common_precision(fields)

        def cotangent(place: Place, element: Element) -> Field:
            return self._cotangent(cotangents[place.number], element, precise, place.name, plan)

        own = [
            _paired(forms[name], self._form_of_out(plan, fields, name), cotangent) if name in forms else one
            for name, one in zip(function.parameters, filled, strict=True)
        ]
        pull = derived(function, Derivation("pullback", of))
        pull.run(self.domain, (*changes, *own), self.lattice, None)
        return found

    def _cotangent(
        self, array: Any, element: Element, precision: str, name: str, plan: tuple[Any, ...]
    ) -> Field:
        stream = None if self.lattice.gpu is None else namespace_of(array).stream(array)
        return self.lattice.wrap(
            array,
            ambient(element),
            boundary=self._boundary_of_out(plan, name),
            name=f"cotangent of {name}",
            stream=stream,
        )

    def _check(self, filled: tuple[Any, ...], fields: Sequence[Field], targets: Sequence[Field]) -> None:
        """Raises ParameterError where the function writes anything but what is new, or reads that: its values are not set. Looks once at
        each kind of call."""
        key = tuple((one.element, one.stored, tuple(one.boundary.conditions)) for one in (*fields, *targets))
        if key in self._checked:
            return
        if len(self._checked) >= MOST_CHECKED:
            self._checked.clear()
        sums = None if targets else PLAIN_SUMS
        new, written = {one.serial: one.name for one in targets}, set()
        for kernel in self.function._bind(self.domain, filled, self.lattice, sums).kernels:
            analysis = kernel.text.analysis
            for slot in analysis.writes:
                one = kernel.fields[slot]
                written.add(one.serial)
                if one.serial not in new:
                    raise ParameterError(
                        f"{self.function.__name__} writes {one.name}, which out= does not name: it names all that is written, and these "
                        "are new arrays"
                    )
            for slot in analysis.reads:
                if kernel.fields[slot].serial in new:
                    raise ParameterError(
                        f"{self.function.__name__} reads {kernel.fields[slot].name}, a new array that has no values yet: begin with out[X] = ..., "
                        "and add up in a variable"
                    )
        for serial, name in new.items():
            if serial not in written:
                raise ParameterError(f"{self.function.__name__} does not write {name}, which out= names")
        self._checked.add(key)


def _new(beside: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return namespace_of(beside).empty_beside(beside, shape, dtype)


def ambient(element: Element) -> Element:
    """The element of gradients and cotangents in arrays: for links of `SU(n)` matrices, with the gradient with respect to their numbers."""
    return Matrix(element.type.shape[0]) if is_group(element) and element.type.shape else element


def _replaced(value: Any, of: Callable[[Place], Any]) -> Any:
    if isinstance(value, Place):
        return of(value)
    if isinstance(value, list):
        return [_replaced(one, of) for one in value]
    return tuple(_replaced(one, of) for one in value) if type(value) is tuple else value


def nested(form: Any, values: Sequence[Any]) -> Any:
    """Values as `forward` says that they belong together."""
    return _replaced(form, lambda place: values[place.number])


def _each(value: Any, of: Callable[[Place], Any]) -> None:
    _replaced(value, of)


def _any_place(value: Any, which: Callable[[Place], bool] = lambda place: True) -> bool:
    found: list[bool] = []
    _each(value, lambda place: found.append(which(place)))
    return any(found)


def _only_targets(value: Any, of: Callable[[Place], Any]) -> Any:
    """As `_replaced`, with None for what is no array."""
    if isinstance(value, list):
        return [_only_targets(one, of) for one in value]
    return of(value) if isinstance(value, Place) else None


def _paired(form: Any, elements: Any, of: Callable[[Place, Element], Any]) -> Any:
    if isinstance(form, Place):
        return of(form, elements)
    return [_paired(a, b, of) for a, b in zip(form, elements, strict=True)]


# ---- operators -----------------------------------------------------------------------------------------


class OperatorArrayFunction:
    """An operator of `jali.linops` as a function of this rank's parts: `forward` applies it, `backward` its adjoint."""

    def __init__(self, operator: Any, what: str) -> None:
        self.operator, self.what = operator, what

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.operator.communicator.size

    def __repr__(self) -> str:
        return f"<{self.what} of {self.operator!r}>"

    def space_of(self, x: Any) -> tuple[Any, list[Any]]:
        """How the vector is made of its parts, and these: an array that is no DistributedArray is this rank's part of one.

        Raises ShapeError where it is no such part.
        """
        if isinstance(x, StackedDistributedArray):
            return _stack_of(x)
        if isinstance(x, DistributedArray):
            return (x.layout, x._base_comm), [x.local]
        A, shape = self.operator, tuple(x.shape)
        first = A.domain()
        spaces = [first] if isinstance(first, Layout) else []
        spaces += [layout_of(A.communicator, dims) for dims in (tuple(A.dims), (math.prod(A.dims),))]
        for layout in spaces:
            if layout.local_shape == shape:
                return (layout, A._base_comm), [x]
        raise ShapeError(
            f"{A!r} takes an array of shape {' or '.join(dict.fromkeys(str(one.local_shape) for one in spaces))} on this rank, not {shape}: "
            "give a DistributedArray where it is split in another way"
        )

    def forward(self, space: Any, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The space of the result, and its parts, which are new arrays."""
        A, left = self.operator, list(arrays)
        y = A.matvec(vector(space, left))
        out, parts = (
            _stack_of(y) if isinstance(y, StackedDistributedArray) else ((y.layout, y._base_comm), [y.local])
        )
        return out, self._own(parts, arrays)

    def backward(self, out: Any, cotangents: Sequence[Any], space: Any, arrays: Sequence[Any]) -> list[Any]:
        """The gradient of each part, of its shape and type: new arrays."""
        x = self.operator.rmatvec(vector(out, list(cotangents)))
        _, parts = _stack_of(x) if isinstance(x, StackedDistributedArray) else (None, [x.local])
        found = []
        for part, like in zip(parts, arrays, strict=True):
            if math.prod(part.shape) != math.prod(like.shape):
                raise LayoutError(
                    f"{self.operator!r}: the adjoint gives this rank a part of shape {tuple(part.shape)}, where the argument had "
                    f"{tuple(like.shape)}: split the argument as the adjoint's results are"
                )
            found.append(_as(part.reshape(tuple(like.shape)), like))
        return self._own(found, cotangents)

    def _own(self, parts: list[Any], given: Sequence[Any]) -> list[Any]:
        """Copies of those that an operator may write to again, or has from its argument."""
        ours = getattr(self.operator, "gives_new", True)
        return [
            part
            if ours and not any(may_overlap(part, one) for one in given)
            else namespace_of(part).copy(part)
            for part in parts
        ]


def _stack_of(x: Any) -> tuple[Any, list[Any]]:
    if isinstance(x, DistributedArray):
        return (x.layout, x._base_comm), [x.local]
    pairs = [_stack_of(one) for one in x.distarrays]
    return [x._base_comm, *(space for space, _ in pairs)], [part for _, parts in pairs for part in parts]


def vector(space: Any, parts: list[Any]) -> Any:
    """The vector of this space; takes the parts that it is made of."""
    if isinstance(space, tuple):
        return DistributedArray.of(space[0], parts.pop(0), space[1])
    return StackedDistributedArray([vector(one, parts) for one in space[1:]], space[0])


def _as(x: Any, like: Any) -> Any:
    """Of the type of the other array: of a complex one for a real one the real part."""
    wanted, given = numpy_dtype(like), numpy_dtype(x)
    if given == wanted:
        return x
    if given.kind == "c" and wanted.kind != "c":
        x = x.real
    return namespace_of(x).astype(x, wanted)


def is_operator(function: Any) -> bool:
    """Whether this is an operator: what has `matvec`, `rmatvec` and vectors' shapes."""
    return not isinstance(function, SiteFunction) and all(
        hasattr(function, name) for name in ("matvec", "rmatvec", "dims", "dimsd", "domain")
    )


def array_function(
    function: Any, lattice: Any, out: Any, elements: Any, boundaries: Any, what: str
) -> SiteArrayFunction | OperatorArrayFunction:
    """Of a site function or of an operator. Raises ParameterError for other things, and for arguments that do not belong to it."""
    if isinstance(function, SiteFunction | SiteFunctionOn):
        return SiteArrayFunction(function, lattice, out, elements, boundaries, what)
    if not is_operator(function):
        raise ParameterError(
            f"jali.derivatives.{what} takes a function decorated by jali.site_function or an operator of jali.linops, not {value_shown(function)}"
        )
    if any(one is not None for one in (lattice, out, elements, boundaries)):
        raise ParameterError(
            f"an operator knows its vectors: jali.derivatives.{what}(A) takes no lattice, out=, elements= or boundaries="
        )
    return OperatorArrayFunction(function, what)
