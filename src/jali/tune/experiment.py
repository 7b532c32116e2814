"""Explicit settings of jali's automatic choices: to measure what they are worth, or on a machine that it does not know.

None changes a bit of a result, but for parts of an exchange that are left out.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jali import settings
from jali.files import value_shown


def experiment(
    *,
    launch: str | None = None,
    early_launch: bool | None = None,
    halo_off: Sequence[str] = (),
    device_tile: Sequence[int] = (),
    device_tables: str | None = None,
    device_queues: str | None = None,
    device_transport: str | None = None,
    message_transport: str | None = None,
    prove_launches: bool | None = None,
) -> AbstractContextManager[object]:
    """Run a block with these choices; enter it on all ranks alike, outside of `virtual_ranks`.

    `launch`: "threads,blocks,sites,width", the last one or two left out if wanted: threads of a block, blocks that a multiprocessor
    should hold, sites per thread, neighbours that are loaded together; for kernels that are bound inside. `early_launch`: whether
    kernels begin before those in front of them have ended. `halo_off`: parts of every exchange that are left out, of "pack",
    "transport", "bulk", "boundary", so that the cost of the rest is seen; results are wrong then. `device_tile`: extents of the tiles
    in which sites on GPUs are stored; for lattices that are made inside. `device_tables`: "codes" (where there are few) or "entries", how
    tables of neighbours are kept on GPUs; for kernels that are bound inside. `device_queues`: sizes of the queues of collectives between
    GPUs, like "channels=32,slot_bytes=65536"; for communicators that are made inside. `device_transport`: "remote-write", "copy-engine",
    "array-write", "nccl" or "rccl" (the vendor's library), or "gpu-aware-mpi". `message_transport`: one of these but "array-write", or
    "host-staged".
    `prove_launches`: launches with halos, collectives and starts of messages are proved to be in order before their first
    run, as in checked mode, though ranks compare no calls. Raises ParameterError, at once or where a value is used first.
    """
    given: dict[str, settings.Value] = {
        "launch": launch,
        "early_launch": early_launch,
        "halo_off": _listed(halo_off),
        "device_tile": _listed(device_tile),
        "device_tables": device_tables,
        "device_queues": device_queues,
        "device_transport": device_transport,
        "message_transport": message_transport,
        "prove_launches": prove_launches,
    }
    return settings.using(**{name: value for name, value in given.items() if value is not None})


def _listed(values: Any) -> Any:
    """Several values as the table of settings has them, None for no value; anything but several values is checked
    there."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return values
    return (
        ",".join(str(v) if isinstance(v, str | numbers.Integral) else value_shown(v) for v in values) or None
    )
