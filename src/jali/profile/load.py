"""What else runs on this machine while something is measured: processor time that the system spent and these processes did not.

Rates that are measured beside other programs are unreliable, and roofs most of all. Where the system does not
report it (`/proc/stat`), the load is unknown, which is not the same as none.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

BUSY = 0.1
"""Share of the cores that others may take before rates are doubted."""


@dataclass(frozen=True)
class Load:
    """Cores that processes of others kept busy on average, of the cores of a host, over some seconds."""

    host: str
    cores: int
    others: float
    seconds: float

    @property
    def is_busy(self) -> bool:
        """Whether concurrent measurements are doubtful."""
        return self.others > BUSY * self.cores


class LoadMeter:
    """Reads the clocks of processors at its creation, and again at each query."""

    def __init__(self) -> None:
        self._begin = _clocks()

    def reading(self) -> bytes:
        """What this process and its host have done since, for `loads`."""
        begin, end = self._begin, _clocks()
        known = begin[2] is not None and end[2] is not None
        return json.dumps(
            {
                "host": socket.gethostname(),
                "process": os.getpid(),
                "cores": os.cpu_count() or 1,
                "seconds": end[0] - begin[0],
                "own": end[1] - begin[1],
                "all": (end[2] or 0.0) - (begin[2] or 0.0) if known else None,
            }
        ).encode()


def loads(readings: Sequence[bytes]) -> list[Load]:
    """The load of each host from the readings of all ranks; ranks may share a process. Hosts that do not report it
    are left out."""
    gathered = [json.loads(text) for text in readings]
    found = []
    for host in dict.fromkeys(one["host"] for one in gathered):
        here = [
            one for one in gathered if one["host"] == host and one["all"] is not None and one["seconds"] > 0
        ]
        if not here:
            continue
        own: dict[int, float] = {}
        for one in here:
            own[one["process"]] = max(own.get(one["process"], 0.0), one["own"] / one["seconds"])
        spent = max(one["all"] / one["seconds"] for one in here)
        seconds = max(one["seconds"] for one in here)
        found.append(Load(host, here[0]["cores"], max(0.0, spent - sum(own.values())), seconds))
    return found


def _clocks() -> tuple[float, float, float | None]:
    """Seconds: of the clock, of this process and the children that it waited for, of all processors that were not idle."""
    return time.perf_counter(), sum(os.times()[:4]), _busy_seconds()


def _busy_seconds() -> float | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = file.readline().split()
        # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in user and nice
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
