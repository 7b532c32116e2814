"""The core's vendors of devices: an entry for each, with everything specific to it.

The entries are files of core/device/vendors. Python adds the paths of libraries in its packages, when such a device is
first requested. No code branches on the vendor.
"""

from __future__ import annotations

import functools
import os
import sys

from jali import _core


@functools.cache
def names() -> list[str]:
    """Names of all vendors, in alphabetical order."""
    return _core.vendor_names()


@functools.cache
def vendor(name: str) -> _core.GpuVendor:
    """The entry of this name. Raises ValueError where there is none."""
    return _core.vendor(name)


def library_of(name: str) -> str:
    """The name of this vendor's library of collectives, as ways, transports and policies are named: "nccl". Empty where it has none."""
    return vendor(name).ccl.setting


@functools.cache
def libraries() -> list[str]:
    """The names of all vendors' libraries."""
    return [library_of(name) for name in names() if library_of(name)]


def packaged(library: _core.VendorLibrary) -> list[str]:
    """Files of a library in installed packages."""
    from pathlib import Path  # which costs more than the entries

    return [
        os.fspath(path)
        for folder in sys.path
        for pattern in library.packages
        for path in sorted(Path(folder or ".").glob(pattern))
    ]


@functools.cache
def suggest_libraries(name: str) -> None:
    """Passes the paths of a vendor's libraries in packages to the core, once; the core calls this at the first
    request for such a device."""
    entry = vendor(name)
    for part, library in (("driver", entry.driver), ("compiler", entry.compiler.library), ("ccl", entry.ccl)):
        if files := packaged(library):
            _core.suggest_library(name, part, files)
