"""How much memory vectors take, and how much there is where they are: of the device of a field or of an array, or of the host.

Read from what vectors have: `storage.nbytes` of fields, `nbytes` or `local` of arrays, `lattice.gpu` or `device`. Numbers of several ranks are agreed: the
smallest free part decides.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from jali.files import memory_here


def bytes_of(x: Any) -> int:
    """Of a vector, on this rank."""
    if isinstance(x, list | tuple):
        return sum(map(bytes_of, x))
    if hasattr(x, "distarrays"):
        return sum(map(bytes_of, x.distarrays))
    for holder in (getattr(x, "storage", None), x, getattr(x, "local", None)):
        size = getattr(holder, "nbytes", None)
        if isinstance(size, int):
            return size
    return int(x.element_size() * x.nelement()) if hasattr(x, "element_size") else 0


def device_of(x: Any) -> tuple[str, Any]:
    """The kind of device that a vector is on, "host" or "cuda" or the like, and what knows its free memory; None on the host."""
    if isinstance(x, list | tuple):
        return device_of(x[0]) if x else ("host", None)
    if hasattr(x, "distarrays"):
        return device_of(list(x.distarrays))
    gpu = getattr(getattr(x, "lattice", None), "gpu", None)
    if gpu is not None:
        return str(gpu.kind), gpu
    local = getattr(x, "local", None)
    if local is not None and not callable(local):
        return device_of(local)
    library = type(x).__module__.partition(".")[0]
    if library == "cupy":
        return "cuda", x.device
    if library == "torch" and x.device.type != "cpu":
        return str(x.device.type), x.device
    return "host", None


def free_memory(x: Any) -> int:
    """Bytes that are free where a vector is, on this rank."""
    device = device_of(x)[1]
    if device is None:
        return free_on_host()
    if hasattr(device, "free_memory"):
        return int(device.free_memory)
    if hasattr(device, "mem_info"):
        return int(device.mem_info[0])
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def free_on_host() -> int:
    """Bytes that this process may still take: what the system has available, within the limit of its control group."""
    found = memory_here()
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found = min(found, 1024 * int(line.split()[1]))
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text(encoding="ascii"))
        found = min(found, max(0, int((group / "memory.max").read_text(encoding="ascii")) - used))
    except (OSError, ValueError):  # no such file, or no limit
        pass
    return found


def agreed_least(ranks: list[Any], value: float) -> float:
    """The least of the values of all ranks. Collective."""
    for group in ranks:
        gathered = group.gather_bytes(struct.pack("d", value), what="memory of a solve")
        value = min(struct.unpack("d", part)[0] for part in gathered)
    return value


def agreed_text(ranks: list[Any], text: str) -> str:
    """The text of the first rank. Collective."""
    for group in ranks:
        text = group.gather_bytes(text.encode(), what="rules of solvers")[0].decode()
    return text
