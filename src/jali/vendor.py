"""What a row about a vendor of devices says; the rows are files of `jali.vendors`. Nothing here loads a library."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Library:
    """A library that is looked for when it is first needed: where its setting says, in Python's packages, then by
    `files`.
    """

    title: str
    """In messages: "NVIDIA's driver"."""
    files: tuple[str, ...]
    setting: str = ""
    """Of core/settings/rows.cpp, which names another file."""
    packages: tuple[str, ...] = ()
    """Patterns below the folders of `sys.path`."""
    install: str = ""
    """What to do where none is found."""

    def packaged(self) -> list[str]:
        """Files of installed packages."""
        from pathlib import Path  # which costs more than the rows

        return [
            os.fspath(path)
            for folder in sys.path
            for pattern in self.packages
            for path in sorted(Path(folder or ".").glob(pattern))
        ]


@dataclass(frozen=True)
class Compiler:
    """A run-time compiler with the interface of NVRTC."""

    library: Library
    functions: Mapping[str, str]
    """Names of the functions that `jali.codegen.gpu_compiler` calls."""
    options: tuple[str, ...]
    """Contraction must be off: a fused multiply-add is written where it is meant."""
    target: str
    """What stands before the architecture among the options."""
    bounds_blocks: bool = False
    """Whether it takes the number of blocks of a multiprocessor as a bound on registers."""


@dataclass(frozen=True)
class Vendor:
    """A row. Members that the core reads have the names, and the defaults, of its `GpuVendor`."""

    name: str
    platform: str
    driver: Library
    functions: Mapping[str, str]
    """Names of the driver's functions, by the members of core/device/gpu_api.hpp."""
    attributes: Mapping[str, int]
    """Numbers of a device's attributes, likewise."""
    compiler: Compiler
    dlpack: int
    """Number of such devices in DLPack."""
    default_stream: int
    """Handle of the stream that other libraries use unless told otherwise."""
    named_streams: tuple[int, ...] = ()
    """Numbers up to 2 that DLPack lets takers name as streams."""
    architecture: str = ""
    major_unit: int = 1000
    minor_unit: int = 10
    oldest: int = 0
    descriptors_by_value: int = 0
    fine_grained: int = 0
    ccl: Library | None = None
    ccl_functions: Mapping[str, str] = field(default_factory=dict)
    mpi_queries: tuple[str, ...] = ()
    mpi_number: int = -1
    mpi_memory_kind: str = ""
    mpi_setting: str = ""
    note: str = ""
    """What `jali info` adds."""
