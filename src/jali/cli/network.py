"""The network of libraries of collectives on devices: their plug-in, and the machine's InfiniBand devices.

NCCL and RCCL take a plug-in (`libnccl-net.so`, or what NCCL_NET_PLUGIN names) if there is one, else InfiniBand or RoCE devices,
and else TCP, which is slow and which they do not report. Nothing is opened but the plug-in, by callers of `plug_in` in a
separate process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SYS = Path("/sys")


def infiniband_devices(root: Path = SYS) -> list[dict[str, Any]]:
    """The devices of /sys/class/infiniband with their ports: state ("ACTIVE"), link ("InfiniBand" or "Ethernet", which is RoCE), rate.

    `root` is where /sys is. What cannot be read is reported as unknown.
    """
    found = []
    for device in _folders(root / "class" / "infiniband"):
        ports = []
        for port in _folders(device / "ports"):
            state = _text(port / "state")  # "4: ACTIVE"
            ports.append(
                {
                    "port": port.name,
                    "state": state.partition(":")[2].strip() or state,
                    "link": _text(port / "link_layer"),
                    "rate": _text(port / "rate"),
                }
            )
        found.append({"name": device.name, "ports": ports})
    return found


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(one for one in path.iterdir() if one.is_dir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def plug_in_names(library: str, environment: Mapping[str, str]) -> list[str]:
    """The files that a library ("nccl", "rccl") tries as its network plug-in, in order; none where plug-ins are disabled."""
    requested = environment.get("NCCL_NET_PLUGIN", "")
    if requested == "none":
        return []
    if not requested:
        return [f"lib{library}-net.so"]
    return [f"lib{library}-net-{requested}.so", requested]


def plug_in(library: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The plug-in that can be loaded, or why there is none. Loads it."""
    names = plug_in_names(library, environment)
    if not names:
        return {"missing": "NCCL_NET_PLUGIN=none"}
    why = []
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            why.append(" ".join(str(error).split()))
            continue
        return {"path": name}
    return {"missing": "; ".join(why)}


def algorithm_between_hosts(
    found_plug_in: Mapping[str, Any], devices: list[dict[str, Any]], environment: Mapping[str, str]
) -> tuple[str, bool]:
    """What the library takes between hosts, in words, and whether that is TCP."""
    forced = environment.get("NCCL_NET", "")
    if forced.lower() == "socket":
        return "TCP, as NCCL_NET=Socket says", True
    if "path" in found_plug_in:
        return f"its plug-in {found_plug_in['path']}", False
    plug = f"there is no plug-in ({found_plug_in['missing']})"
    active = {
        f"{device['name']} ({'RoCE' if port['link'] == 'Ethernet' else port['link']}, {port['rate']})"
        for device in devices
        for port in device["ports"]
        if port["state"] == "ACTIVE"
    }
    if active and environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return f"TCP, since {plug} and NCCL_IB_DISABLE leaves out {', '.join(sorted(active))}", True
    if active:
        return ", ".join(sorted(active)), False
    if devices:
        return f"TCP, since {plug} and no port of {', '.join(one['name'] for one in devices)} is active", True
    return f"TCP, since {plug} and no InfiniBand or RoCE device", True
