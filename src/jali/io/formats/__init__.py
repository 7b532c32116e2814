"""File formats of gauge configurations: one module each, discovered in this folder.

A module of this folder has a `FORMAT`: how a file is recognised, the function that reads its header, and the writer
if there is one. `jali.io` and the commands use these entries; nothing else names a format. What all share (site
records, checksums, writing by many ranks at once) is in the modules of `jali.io`.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from jali.registry import entry_names

from ..links import Contents, Expected

RECOGNISED_BY = 24
"""Bytes at the beginning of a file by which it is recognised."""


@dataclass(frozen=True)
class Writer:
    """How configurations are written in a format."""

    name: str
    """As `jali convert --format` takes it."""
    title: str
    """In messages: "NERSC"."""
    write: Callable[..., None]
    """Called as `write(path, links, box, extents, plaquette=, link_trace=, precision=, metadata=, ranks=)`, and with
    `rows=` where `two_rows`; links, boxes and errors as those of `jali.io.write_ildg`.
    """
    endings: tuple[str, ...] = ()
    """Of names of files: ".ildg"."""
    beginnings: tuple[str, ...] = ()
    n: int | None = None
    """The only matrices that it holds, n x n; None: all."""
    two_rows: bool = False
    """Whether links can be written without their third row."""


@dataclass(frozen=True)
class Format:
    """An entry: a format that is read."""

    name: str
    """The answer of `recognise`."""
    signature: str
    """Its beginning, for messages: "NERSC ('BEGIN_HEADER')"."""
    is_one: Callable[[bytes], bool]
    """Whether a file that begins with these bytes (`RECOGNISED_BY` at most) has this format. At most one format may
    return True for a file.
    """
    parse: Callable[[str, int, int, Expected], Contents]
    """(name, descriptor, size, `Expected` of the caller) -> contents of the header; raises FileFormatError where it is
    invalid.
    """
    writer: Writer | None = None


@functools.cache
def formats() -> tuple[Format, ...]:
    """All entries, in the alphabetical order of their files."""
    return tuple(importlib.import_module(f"{__name__}.{name}").FORMAT for name in entry_names(__file__))


def writers() -> dict[str, Writer]:
    """The formats that are written, by name."""
    return {entry.writer.name: entry.writer for entry in formats() if entry.writer}


def format_named(path: str | os.PathLike[str]) -> str | None:
    """The format that is written under a name, by its ending or else its beginning; None where neither matches."""
    base = os.path.basename(os.fsdecode(path)).lower()
    ending = os.path.splitext(base)[1]
    found = [writer for writer in writers().values() if ending in writer.endings]
    found += [writer for writer in writers().values() if base.startswith(writer.beginnings)]
    return found[0].name if found else None
