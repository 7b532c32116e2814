"""The processor that kernels are compiled for: its name and the width of its vectors."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from jali import settings
from jali.codegen.arithmetics import ARITHMETICS

BLOCK_BITS = 26  # of an entry of a neighbour table; layouts of more blocks use more (core/halo/layout.hpp)


@dataclass(frozen=True)
class Target:
    """`fingerprint` changes when code compiled here may not run there; `vector_bytes` is the widest vector."""

    name: str
    vector_bytes: int
    fingerprint: str

    def lanes(self, precision: str) -> int:
        """Numbers of the given precision in one vector; compilers have none of numbers of several words."""
        arithmetic = ARITHMETICS[precision]
        return max(1, self.vector_bytes // arithmetic.bytes) if arithmetic.words == 1 else 1


@functools.cache
def host() -> Target:
    """This machine. JALI_VECTOR_BYTES (8, 16, 32, 64) overrides the width, for experiments."""
    import hashlib
    import platform

    machine = platform.machine()
    name, flags = machine, ""
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                key, _, value = line.partition(":")
                if key.strip() == "model name" and name == machine:
                    name = value.strip()
                if key.strip() in ("flags", "Features"):
                    flags = " ".join(sorted(value.split()))
                    break
    except OSError:
        name = platform.processor() or machine
    words = set(flags.split())
    width = 64 if "avx512f" in words else 32 if "avx2" in words else 16
    width = settings.current().vector_bytes or width
    digest = hashlib.sha256(f"{machine} {name} {flags}".encode()).hexdigest()[:12]
    return Target(name, width, digest)
