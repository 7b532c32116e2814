"""Update algorithms: a file each, found by being here, from which `jali run` chooses by `update.algorithm`.

A file of this folder is named as parameter files name the algorithm, and has an `ALGORITHM`: an update of every link
that keeps the weight exp(-S) of any action and is ergodic by itself. Parameter files, their documentation and `jali
run` take it from here. Overrelaxation, which draws nothing, follows it and is not an entry.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jali.registry import entry_names


@dataclass(frozen=True)
class Algorithm:
    """An entry of the table: an algorithm."""

    title: str
    """In sentences: "heat bath"."""
    sweep: Callable[..., float | None]
    """`sweep(U, beta, rng, **options)` updates every link once, `beta` a number or an Action; returns which part of
    what it proposed was accepted, or None.
    """
    options: Mapping[str, str] = field(default_factory=dict)
    """Arguments of `sweep` that a run can set, with their keys in the section `update` of parameter files
    (jali.cli.schema).
    """
    by_subgroups: bool = False
    """Whether it goes through SU(2) subgroups one by one, so that large groups are refused."""


@functools.cache
def algorithms() -> dict[str, Algorithm]:
    """All entries by name, in alphabetical order."""
    return {name: importlib.import_module(f"{__name__}.{name}").ALGORITHM for name in entry_names(__file__)}
