"""Batches: fields with several elements at each site, and views of some of their members.

The members of a site lie one behind the other in its block (on a device in its group of sites), each with the bytes of a field without
a batch, norms included. A view is the same memory and a list of members, which its kernels read. Does not depend on kernels:
`codegen/accesses.py` does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.errors import LayoutError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.lattice.field import Field

MOST_MEMBERS = 256


def batch_of_field(batch: Any) -> int | None:
    """The argument `batch=` of a field. Raises LayoutError."""
    if batch is None:
        return None
    if not isinstance(batch, int | np.integer) or isinstance(batch, bool) or not 1 <= batch <= MOST_MEMBERS:
        raise LayoutError(f"a batch has 1 to {MOST_MEMBERS} members, not {value_shown(batch)}")
    return int(batch)


class Members:
    """The members of a field with a batch; see `Field.members`. `len()` is their number, a loop goes over them one by one."""

    __slots__ = ("_field",)

    def __init__(self, field: Field):
        if field.batch is None:
            raise LayoutError(f"{field.name} has no batch, and so no members")
        self._field = field

    def __len__(self) -> int:
        return int(self._field.batch or 0)

    def __repr__(self) -> str:
        return f"<{len(self)} members of {self._field!r}>"

    def __iter__(self) -> Iterator[Field]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> Field:
        """A member as a field, by its number; or several as a batch, by a slice, a list of numbers or a mask. A view. Raises LayoutError for
        members that do not exist, and for the same one twice."""
        field, count = self._field, len(self)
        before = range(field.members_in_memory) if field.listed_members is None else field.listed_members
        if isinstance(index, slice):
            chosen = list(range(count))[index]
        elif isinstance(index, list | tuple | np.ndarray):
            array = np.asarray(index)
            if array.dtype.kind == "b" and array.shape == (count,):
                array = np.flatnonzero(array)
            elif array.dtype.kind == "b":
                raise LayoutError(
                    f"a mask of the members of {field.name} has shape {(count,)}, one entry for each, not {array.shape}"
                )
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise LayoutError(
                    f"members of {field.name} are chosen by numbers, a slice or a mask, not by {value_shown(index)}"
                )
            chosen = [self._number(k) for k in array.tolist()]
        else:
            return _view(field, (before[self._number(index)],), None)
        if not chosen or len(set(chosen)) < len(chosen):
            raise LayoutError(
                f"a view of {field.name} has one member or more, each once, not {value_shown(index)}"
            )
        return _view(field, tuple(before[k] for k in chosen), len(chosen))

    def __setitem__(self, index: Any, value: Any) -> None:
        """`f.members[k] = g` copies the values of a field or an expression into members; numbers and arrays too. Raises LayoutError."""
        view = self[index]
        if value is not view:  # which `f.members[k] += g` has set already
            view[...] = value

    def _number(self, index: Any) -> int:
        try:
            k = None if isinstance(index, bool) else operator.index(index)
        except TypeError:
            k = None
        if k is None:
            raise LayoutError(
                f"members of {self._field.name} are chosen by numbers, a slice or a mask, not by {value_shown(index)}"
            )
        if not -len(self) <= k < len(self):
            raise LayoutError(f"{self._field.name} has the members 0 to {len(self) - 1}, not {k}")
        return k % len(self)


def _view(field: Field, listed: tuple[int, ...], batch: int | None) -> Field:
    """The same memory with some of its members. As long as a view is in use it is one object, so that a call knows it in two arguments."""
    whole = field if field.view_of is None else field.view_of
    if batch is not None and listed == tuple(range(whole.members_in_memory)):
        return whole
    known = whole.views.get((listed, batch))
    if known is not None:
        return known
    view = object.__new__(type(whole))
    vars(view).update(vars(whole), batch=batch, listed_members=listed, view_of=whole)
    view._begin_view(f"{whole.name}.members{list(listed)}")
    return whole.views.setdefault((listed, batch), view)


def shared_members(a: Field, b: Field) -> list[int]:
    """The members of their memory that two fields have both."""
    if a.storage is not b.storage:
        return []
    of_a, of_b = (
        range(f.members_in_memory) if f.listed_members is None else f.listed_members for f in (a, b)
    )
    return sorted(set(of_a) & set(of_b))
