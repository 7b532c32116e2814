"""Roofs: how fast this machine can move bytes and compute, measured in the same run as the rates that are compared
with them.

Memory is a copy of arrays that fit no cache, bytes read plus bytes written. Cache is repeated reading of a working
set in the second-level cache. Arithmetic is fused multiply-adds that depend on nothing but themselves, two
operations each. On the host all threads of the rank work together (`host_roofs`); a device is measured with kernels
of the same compiler as site functions (`device_roofs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.comm import validation
from jali.errors import ParameterError
from jali.files import value_shown
from jali.profile import device_roofs, host_roofs

MOST_THREADS = 4096


@dataclass(frozen=True)
class Roofs:
    """GB/s of a copy in memory and of reading from the second-level cache; GFLOP/s by precision.

    `last_cache` is the size in bytes of the last cache before memory, 0 where it is not known.
    """

    device: str
    memory: float
    cache: float
    arithmetic: dict[str, float] = field(default_factory=dict)
    last_cache: int = 0

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in self.arithmetic.items())
        return f"{self.device}: memory {self.memory:,.0f} GB/s, cache {self.cache:,.0f} GB/s, {rates}"

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def measure_roofs(
    gpu: Any = None, threads: int = 1, precisions: Sequence[str] = IEEE_PRECISIONS[::-1]
) -> Roofs:
    """Measures all roofs now, of a device of the core or of this host with `threads` threads; takes about a second.

    Raises CompileError without a compiler, MemoryError, DeviceError, ParameterError.
    """
    threads = validation.whole("threads", threads, error=ParameterError)
    if not 1 <= threads <= MOST_THREADS:
        raise ParameterError(f"threads is a whole number from 1 to {MOST_THREADS}, not {threads}")
    names = validation.each(precisions)
    if not all(isinstance(name, str) and name in IEEE_PRECISIONS for name in names):
        raise ParameterError(
            f"precisions are some of {', '.join(map(repr, reversed(IEEE_PRECISIONS)))}, not {value_shown(precisions)}"
        )
    if gpu is not None:
        return Roofs(
            f"{gpu.kind}:{gpu.ordinal} {gpu.name}",
            device_roofs.copy_rate(gpu) / 1e9,
            device_roofs.cache_rate(gpu) / 1e9,
            {name: device_roofs.arithmetic_rate(gpu, name) / 1e9 for name in names},
        )
    return Roofs(
        f"host, {threads} thread{'' if threads == 1 else 's'}",
        host_roofs.copy_rate(threads=threads) / 1e9,
        host_roofs.cache_rate(threads=threads) / 1e9,
        {name: host_roofs.arithmetic_rate(name, threads=threads) / 1e9 for name in names},
        host_roofs.last_cache_bytes(),
    )
