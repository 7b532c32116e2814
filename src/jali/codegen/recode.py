"""Values from one storage format into another: a kernel that reads one field and writes another.

Over a lattice where both have one layout, and over arrays of sites (boxes from NumPy, files), which are kernels of one lane. So the
formats' own encode and decode are all there is.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from jali.codegen import kernel_cache
from jali.codegen.builder import Builder
from jali.codegen.emit import FIRST_PARAMETER, emit
from jali.codegen.ir import FieldSlot, SiteProgram, Store
from jali.codegen.language import leaves
from jali.codegen.storage_formats import Stored, decoding
from jali.codegen.writer import Lowering

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def copy_program(source: Stored, target: Stored, precision: str, ndim: int) -> SiteProgram:
    """Slot 0, kept as `source`, into slot 1, by the narrowest arithmetic from `precision` on that can decode both."""
    precision = decoding(precision, source.format, target.format)
    here = (0,) * ndim
    value = leaves.load(Builder(), 0, here, source.element.type)
    leaves.know_symmetry(value, source.element)
    slots = [FieldSlot("source", source), FieldSlot("target", target)]
    return SiteProgram("recode", ndim, precision, slots, [], [], [Store(1, here, value, "recode")], [])


def recode(sites: np.ndarray, source: Stored, target: Stored, precision: str) -> tuple[np.ndarray, int]:
    """Bytes of sites `(..., source.site_bytes)` as bytes `(..., target.site_bytes)`, by arithmetic of this precision at least.

    Returns them, and how many sites hold what `target` cannot.
    """
    sites = np.ascontiguousarray(sites, np.uint8)
    out = np.zeros((*sites.shape[:-1], target.site_bytes), np.uint8)
    program = copy_program(source, target, precision, 1)
    text = emit(program, Lowering(lanes=1))
    address, _ = kernel_cache.load("recode", text.text, 1, program.precision)
    counters = np.zeros(2, np.int64)
    parameters = np.zeros(FIRST_PARAMETER + len(text.parameters), np.uint64)
    parameters[6] = counters.ctypes.data
    for k, parameter in enumerate(text.parameters):
        parameters[FIRST_PARAMETER + k] = (sites, out)[parameter.slot].ctypes.data
    _KERNEL(address)(parameters.ctypes.data, 0, out.size // target.site_bytes)
    return out, int(counters[1])


def parameters_of_copy(text: Any, source: Any, target: Any) -> tuple[np.ndarray, list[tuple[int, Any]]]:
    """The parameters of a launch of `copy_program`, and which of them are addresses of storages."""
    parameters = np.zeros(FIRST_PARAMETER + len(text.parameters), np.uint64)
    addresses = []
    for k, parameter in enumerate(text.parameters):
        storage = (source, target)[parameter.slot]
        if parameter.what == "field":
            addresses.append((FIRST_PARAMETER + k, storage))
        elif parameter.what == "first_ghost":  # ghosts are neither read nor written
            parameters[FIRST_PARAMETER + k] = storage.layout.first_ghost
    return parameters, addresses
