"""Which device computes: the host's processor, or a GPU.

Chosen per lattice (`Lattice(..., device="cuda")`), for a program (`jali.use_device("cuda")`) or for a process
(`JALI_DEVICE=cuda`); "cpu" is the default. The name of a vendor (`jali.vendors`: "cuda", "hip") gives every rank of a host the
next GPU in turn, "cuda:1" a certain one. Nothing else in a program changes. HIP has never run on AMD hardware: it is exercised
against a driver made for tests only.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any

from jali import _core, settings, vendors
from jali.errors import DeviceError
from jali.files import value_shown

_default: str | None = None
_agreed: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # devices by name
_guard = threading.Lock()


def use_device(name: str) -> None:
    """Lattices made from now on compute on this device: "cpu", "cuda", "cuda:1". Raises DeviceError for other names."""
    global _default
    parse_device(name)
    _default = name


def default_device() -> str:
    """The device of lattices that name none."""
    return _default or settings.current().device


def open_device(name: str | None, communicator: Any) -> Any:
    """The core's device of this name for this rank, ready for kernels; None is the host's processor.

    Collective over the ranks of `communicator`. Raises DeviceError: no such device, no driver, too old a driver.
    """
    kind, ordinal = parse_device(default_device() if name is None else name)
    if kind == "cpu":
        return None
    count = _core.Gpu.count(kind)
    if count == 0:
        raise DeviceError(f"this process sees no {kind} device (is CUDA_VISIBLE_DEVICES or its like empty?)")
    if ordinal is None:
        ordinal = communicator.rank_on_host % count
    gpu = _core.Gpu.open(kind, ordinal)
    _agree_on_peer_handles(gpu, communicator)
    return gpu


def parse_device(name: str) -> tuple[str, int | None]:
    """Kind ("cpu" or the name of a vendor) and number, None where a name has none. Raises DeviceError for other names."""
    if not isinstance(name, str):
        raise DeviceError(
            f"a device is named by a string such as 'cpu', 'cuda' or 'cuda:1', not {value_shown(name)}"
        )
    kind, colon, number = name.partition(":")
    if kind == "cpu" and not colon:
        return "cpu", None
    if kind not in vendors.names() or (colon and not re.fullmatch("[0-9]{1,9}", number)):
        raise DeviceError(f"device {value_shown(name)} is unknown; use {device_names()}")
    return kind, int(number) if colon else None


def device_names(quote: str = "'") -> str:
    """What devices are called, for messages: 'cpu', 'cuda', 'hip', or one of several like 'cuda:1'."""
    names = ", ".join(f"{quote}{name}{quote}" for name in ("cpu", *vendors.names()))
    return f"{names}, or one of several like {quote}cuda:1{quote}"


def _agree_on_peer_handles(gpu: Any, communicator: Any) -> None:
    """How processes map each other's device memory is chosen before any is allocated. Collective at first, then remembered.

    Whether there is any is checked again where it is needed.
    """
    device = f"{gpu.kind}:{gpu.ordinal}"
    with _guard:
        known = _agreed.setdefault(communicator, set())
        if device in known:
            return
        known.add(device)
    if communicator.size > 1:
        _core.agree_on_peer_handles(gpu, communicator.core)
