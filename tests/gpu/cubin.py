"""Reads from a cubin what the assembler says about its kernels: registers and stack of a thread.

A cubin is an ELF file; its section .nv.info is a list of attributes, of which those used here have four-byte values
for one symbol each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

REGISTERS, FRAME = 0x2F, 0x11
SIZED = 4  # format of attributes that are followed by so many bytes


@dataclass
class Resources:
    """Of one thread: registers, and bytes of local memory for arrays that are indexed and registers that spill."""

    registers: int = 0
    stack: int = 0


def resources_of(cubin: bytes) -> dict[str, Resources]:
    """The kernels of a cubin by name."""
    assert cubin[:4] == b"\x7fELF", "no ELF file"
    sections = _sections(cubin)
    kind, symbols, size, names = sections[".symtab"]
    assert kind == 2
    strings = sections[".strtab"][1]
    found: dict[str, Resources] = {}
    for index, attribute, value in _attributes(cubin, *sections[".nv.info"][1:3]):
        (offset,) = struct.unpack_from("<I", cubin, symbols + 24 * index)
        name = _text(cubin, strings + offset)
        resources = found.setdefault(name, Resources())
        if attribute == REGISTERS:
            resources.registers = value
        elif attribute == FRAME:
            resources.stack = value
    return found


def _sections(file: bytes) -> dict[str, tuple[int, int, int, int]]:
    """Name -> (type, offset, size, link)."""
    (start,) = struct.unpack_from("<Q", file, 0x28)
    size, number, names = struct.unpack_from("<HHH", file, 0x3A)
    rows = [struct.unpack_from("<IIQQQQII", file, start + k * size) for k in range(number)]
    return {_text(file, rows[names][4] + row[0]): (row[1], row[4], row[5], row[6]) for row in rows}


def _text(file: bytes, start: int) -> str:
    return file[start : file.index(b"\0", start)].decode()


def _attributes(file: bytes, position: int, size: int):
    """(symbol, attribute, value) of the attributes that belong to symbols."""
    end = position + size
    while position < end:
        form, attribute, length = struct.unpack_from("<BBH", file, position)
        position += 4
        if form == SIZED:
            if attribute in (REGISTERS, FRAME) and length == 8:
                yield (
                    *struct.unpack_from("<I", file, position),
                    attribute,
                    *struct.unpack_from("<I", file, position + 4),
                )
            position += length
