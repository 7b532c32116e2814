"""Operators in another format: the same operator, whose fields have another arithmetic precision and storage, for solvers that compute in few bits.

`D.in_format("float32", "float16")` is a copy of D with each of its fields converted: links, clover blocks and their inverses, fat and long links,
fields of an operator of one's own. A storage is one word for all: links of SU(3) and SU(2) keep the numbers that determine a unitary matrix
("float16-12"), everything else the format of all reals beside that. Fields are converted, not made anew of links that have lost bits. The copy follows: where
links or numbers of D have changed, an application brings it up to date.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.packings import is_group
from jali.codegen.storage_formats import FORMATS
from jali.errors import LayoutError, RecordingError
from jali.files import value_shown
from jali.lattice.field import Field, precision_named
from jali.lattice.overflow import raise_if_found, raise_on_all_ranks, unreported
from jali.lattice.sites import site_function

USUAL_ENDINGS = ("12", "4")  # of unitary links whose storage is named without one: SU(3), SU(2)


def split_storage(name: str) -> tuple[str, str]:
    """A storage as the format of all reals and what it keeps of a matrix: ("fixed16", "12") of "fixed16-12", ("float16-scaled", "") of itself."""
    packing = FORMATS[name].packing
    return (name, "") if packing is None else (name.removesuffix(f"-{packing.name}"), packing.name)


class Conversion:
    """`convert(value)`: a field in another format, always the same one of the same field; of lists, tuples, dictionaries and operators one whose
    fields are; anything else as it is.

    Raises LayoutError for a precision or a storage that does not exist, and for fields that it does not hold.
    """

    def __init__(self, precision: Any, storage: str | None):
        self.precision = None if precision is None else precision_named(precision)
        if storage is not None and (not isinstance(storage, str) or storage not in FORMATS):
            raise LayoutError(
                f"storage {value_shown(storage)} is unknown; there are {', '.join(FORMATS)}; one without an ending is for all fields"
            )
        self.storage = storage
        self._found: dict[int, tuple[Field, Field, Any]] = {}
        self._operators: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Field):
            return self.field(value)
        if isinstance(value, list | tuple):
            members = [self(one) for one in value]
            if all(a is b for a, b in zip(members, value, strict=True)):
                return value
            return value._make(members) if hasattr(value, "_make") else type(value)(members)
        if isinstance(value, dict):
            return {name: self(one) for name, one in value.items()}
        if callable(getattr(value, "in_format", None)):
            if id(value) not in self._operators:
                self._operators[id(value)] = value, value.in_format(self.precision, self.storage)
            return self._operators[id(value)][1]
        return value

    def field(self, field: Field) -> Field:
        """The field in this format, with the values that it has now."""
        known, mine, versions = self._found.get(id(field), (None, None, None))
        now = field.storage.versions()
        if known is None or mine is None:
            precision = self.precision or field.precision
            name, storage = f"{field.name} in another format", self._storage_of(field, precision)
            mine = field.like(precision=precision, storage=storage, name=name)
        if versions != now:
            field.check_set()
            mine.assign(field)
            # now, and not when it is read: what was converted before an error is not reported later
            if mine.may_overflow:
                raise_on_all_ranks(field.lattice.communicator, mine.counts())
            self._found[id(field)] = field, mine, now
        return mine

    def changed(self) -> bool:
        """Whether a field was written after it had been converted."""
        return any(field.storage.versions() != versions for field, _, versions in self._found.values())

    def fields(self) -> list[Field]:
        """What was made."""
        return [mine for _, mine, _ in self._found.values()]

    def _storage_of(self, field: Field, precision: str) -> str | None:
        """What `Field.like` takes. Without a storage that of the field, where it is not numbers of its arithmetic or of a wider one."""
        element = field.element
        if element.type.kind == "int":
            return None
        had, kept = split_storage(field.stored.format.name)
        if self.storage is None:
            bits = ARITHMETICS[had].bits if had in ARITHMETICS else 0
            base = precision if had == field.precision or bits > ARITHMETICS[precision].bits else had
            return f"{base}-{kept}" if kept else base
        base, ending = split_storage(self.storage)
        packing = FORMATS[self.storage].packing
        if packing is not None and (packing.exact or (is_group(element) and not packing.holds(element))):
            return self.storage  # where the field does not hold it, it says what it holds
        if not is_group(element):
            return base
        for one in [ending] if ending else USUAL_ENDINGS:
            name = f"{base}-{one}"
            if name not in FORMATS or not FORMATS[name].packing.holds(element):  # type: ignore[union-attr]
                continue
            distance = 0.0 if kept == one else distance_from_unitary(field, one)
            if not distance:
                return name
            if ending:
                raise LayoutError(
                    f"{field.name} is not stored as {name}, from which a matrix comes back only where it is unitary: it comes back with a relative "
                    f'difference of {distance:.2g}; storage="{base}" keeps all numbers'
                )
        return base


def distance_from_unitary(field: Field, ending: str) -> float:
    """|U' - U| / |U| where U' is what comes back of the numbers that "-12" or the like keep; zero where that is rounding."""
    had = split_storage(field.stored.format.name)[0]
    arithmetic = ARITHMETICS[field.precision if f"{field.precision}-{ending}" in FORMATS else "float64"]
    kept = field.like(precision=arithmetic.name, storage=f"{arithmetic.name}-{ending}").assign(field)
    squares = [field.lattice.sum(_square, field), field.lattice.sum(_square_of_difference, kept, field)]
    size, difference = (math.sqrt(float(np.sum(one))) for one in squares)
    epsilon = max(arithmetic.epsilon, ARITHMETICS[had].epsilon if had in ARITHMETICS else 0.0)
    # a matrix of eight numbers has lost up to half of its digits
    return 0.0 if difference <= math.sqrt(epsilon) * size else difference / size


@site_function
def _square(X: Any, a: Any, total: Any) -> None:
    total += a[X].norm2()


@site_function
def _square_of_difference(X: Any, a: Any, b: Any, total: Any) -> None:
    total += (a[X] - b[X]).norm2()


class Followed:
    """The operator that one in another format was made of, and what it was then."""

    def __init__(self, original: Any, convert: Conversion):
        self.original, self.convert = original, convert
        self._attributes: dict[str, Any] = {}

    def converted(self) -> Any:
        """The operator in the other format, of the original as it is now. Raises LayoutError and StorageError."""
        given = {
            id(field) for field in _fields_in(self.original.data)
        }  # data makes fields anew of links that have changed
        raise_if_found(unreported(self.original.lattice.left.take()))  # of fields that are gone, not of these
        found = self.original.converted(self.convert)
        self._attributes = dict(vars(self.original))
        for field in _fields_in(found.data):
            if id(field) in given or self.convert.precision not in (None, field.precision):
                raise LayoutError(
                    f"{field.name} of the data of {type(found).__name__} is not in the other format ({field.stored} in {field.precision} arithmetic): fields "
                    "that no attribute has, alone, in a list or in a dictionary, are converted by the method converted(convert) of the class"
                )
        self._raise_if_overflow()
        return found

    def changed(self) -> bool:
        """Whether the original has changed since."""
        self.original.follow()
        self.original.data  # noqa: B018  (what is made of links that have changed is made anew)
        now, before = vars(self.original), self._attributes
        other = len(now) != len(before) or any(before.get(name) is not value for name, value in now.items())
        return other or self.convert.changed()

    def _raise_if_overflow(self) -> None:
        """Raises StorageError for numbers that the storage cannot hold; reading any of the fields would."""
        for field in self.convert.fields():
            if field.stored.counts(field.precision):
                with contextlib.suppress(RecordingError):  # a graph reads nothing
                    field[(0,) * field.lattice.ndim]


def _fields_in(value: Any) -> list[Field]:
    """The fields of the data of an operator: those that it has, and those in lists and in what has `fields`."""
    if isinstance(value, Field):
        return [value]
    parts = value if isinstance(value, list | tuple) else getattr(value, "fields", ())
    return [field for one in parts for field in _fields_in(one)] if isinstance(parts, list | tuple) else []
