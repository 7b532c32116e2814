"""Vendors of devices: a file each, with all in which one differs from another.

A file of this folder is a vendor: its name is that of the devices (`device="cuda"`), and its `VENDOR` is a row
(`jali.vendor`). The core gets the row when it is first asked for such a device (core/device/vendor.hpp), the
compiler's part is read by `jali.codegen.gpu_compiler`. Nothing outside of this folder asks which vendor it has. Until
a device is wanted only names are looked at.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import TYPE_CHECKING

from jali import _core
from jali.rows import row_names

if TYPE_CHECKING:
    from jali.vendor import Vendor


_told: set[str] = set()
_guard = threading.Lock()


@functools.cache
def names() -> list[str]:
    """Names of all vendors, in alphabetical order."""
    return row_names(__file__)


@functools.cache
def vendor(name: str) -> Vendor:
    """The row of this name. Raises ValueError where there is none."""
    if name not in names():
        raise ValueError(f"there is no vendor {name!r}; there are {', '.join(names())}")
    row: Vendor = importlib.import_module(f"jali.vendors.{name}").VENDOR
    return row


def library_of(name: str) -> str:
    """The name of this vendor's library of collectives, as ways, carriers and policies are named: "nccl". Empty where it has none."""
    ccl = vendor(name).ccl
    return ccl.setting if ccl else ""


@functools.cache
def libraries() -> list[str]:
    """The names of all vendors' libraries."""
    return [library_of(name) for name in names() if library_of(name)]


def tell_core(name: str) -> None:
    """Gives the core the row of this name, once; the core asks for it. Raises ValueError where there is none."""
    row = vendor(name)
    with _guard:  # ranks may be threads
        if name not in _told:
            _core.add_vendor(row)
            _told.add(name)
