"""How a kernel is compiled for a device and started on it: the candidates of launch questions.

Compiled, at most four times: threads of a block and how many blocks a multiprocessor should hold, which bounds the registers
of a thread, for kernels that need many; sites per thread and, where neighbouring sites lie side by side in less than 16
bytes, the width of loads, for kernels that need few. What changes nothing is left out (a kernel that needs 70 registers is the same under a
bound of 128). Started: with fewer threads than it was compiled for, or with so few blocks that a thread goes
through several sites one after the other; this needs no compilation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from jali import vendors

REGISTERS = 65536  # of a multiprocessor, on every NVIDIA architecture that is supported
MOST_REGISTERS = 255  # of a thread
_NAME = re.compile(r"(\d+),(\d+)(?:,(\d+))?(?:,(\d+))?(?: as (\d+) threads)?(?: in (\d+) waves?)?")
SITES_PER_THREAD = (1, 2, 4)  # sites per thread, and neighbours that are loaded together


@dataclass(frozen=True)
class LaunchConfig:
    """`bound` threads and `blocks` were compiled for; `threads` of a block run; at most `waves` times as many blocks as the
    device holds at once (0: any number). A thread takes `sites` times `width` sites at once, of which `width` are neighbours."""

    bound: int
    blocks: int
    threads: int
    waves: int = 0
    sites: int = 1
    width: int = 1

    @property
    def each(self) -> int:
        """Sites of a thread at a time."""
        return self.sites * self.width

    @property
    def name(self) -> str:
        """As it stands in the tuner's files: "256,2", "256,2 as 128 threads in 4 waves", "256,1,2", "256,1,1,2"."""
        text = f"{self.bound},{self.blocks}"
        if self.each > 1:
            text += f",{self.sites}"
        if self.width > 1:
            text += f",{self.width}"
        if self.threads != self.bound:
            text += f" as {self.threads} threads"
        if self.waves:
            text += f" in {self.waves} wave{'' if self.waves == 1 else 's'}"
        return text

    @classmethod
    def parse(cls, name: str) -> LaunchConfig | None:
        """The configuration of that name; None where it is none or makes no sense."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        bound, blocks, threads, waves = (int(n or 0) for n in found.group(1, 2, 5, 6))
        sites, width = (int(n or 1) for n in found.group(3, 4))
        threads = threads or bound
        sensible = 32 <= threads <= bound <= 1024 and 1 <= blocks <= 32 and waves <= 64
        sensible = sensible and sites in SITES_PER_THREAD and width in SITES_PER_THREAD
        return cls(bound, blocks, threads, waves, sites, width) if sensible else None

    def with_threads(self, threads: int) -> LaunchConfig:
        """The same compiled kernel, started otherwise."""
        return replace(self, threads=threads)

    def in_waves(self, waves: int) -> LaunchConfig:
        """The same, with so few blocks."""
        return replace(self, waves=waves)

    def with_sites(self, sites: int, width: int = 1) -> LaunchConfig:
        """Compiled for so many sites per thread, and so many neighbours of each loaded together."""
        return replace(self, sites=sites, width=width)

    @property
    def most_registers(self) -> int:
        """What a thread may use under this bound."""
        return min(MOST_REGISTERS, REGISTERS // (self.bound * self.blocks) // 8 * 8)


DEFAULT_LAUNCH = LaunchConfig(256, 1, 256)
# Bounds of 255, 168, 128 and 80 registers: fp32 kernels tend to gain from 128, fp64 kernels that need more lose.
_BOUNDS = (DEFAULT_LAUNCH, LaunchConfig(128, 3, 128), LaunchConfig(256, 2, 256), LaunchConfig(256, 3, 256))
THREADS = (128, 64)
WAVES = (1, 4)
MOST_OF_SEVERAL = 128  # registers of a thread that may be needed for several sites
PLACES = 4  # registers for where a site is


def variants_for(kind: str, registers: int) -> tuple[LaunchConfig, ...]:
    """The configurations, the default first, that may be compiled otherwise for a kernel that needs so many registers unbounded.

    One where the vendor's compiler does not take the number of blocks as a bound.
    """
    if not vendors.vendor(kind).compiler.bounds_blocks:
        return _BOUNDS[:1]
    return tuple(c for c in _BOUNDS if c is DEFAULT_LAUNCH or c.most_registers < registers)


def room_for(each: int, registers: int, words: int) -> bool:
    """Whether a thread may have registers for so many sites of a kernel that needs `registers` for one, of which so many
    4-byte words are what it loads; the rest is mostly needed once."""
    return registers + (each - 1) * (words + PLACES) <= MOST_OF_SEVERAL
