"""What NCCL would take between hosts: from a machine's /sys that tests make, and plug-ins that can be loaded or not."""

from __future__ import annotations

import ctypes.util
from pathlib import Path
from typing import Any

import pytest

from jali.cli import info
from jali.cli.network import algorithm_between_hosts, infiniband_devices, plug_in, plug_in_names

LIBM = ctypes.util.find_library("m")
NONE = {"missing": "libnccl-net.so: cannot open"}


def machine(root: Path, **devices: tuple[str, str]) -> Path:
    """A /sys with these devices: (state, link) of their port."""
    for name, (state, link) in devices.items():
        port = root / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"4: {state}\n")
        (port / "link_layer").write_text(f"{link}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    return root


def test_devices_are_those_of_the_folder(tmp_path: Path) -> None:
    root = machine(tmp_path, mlx5_1=("ACTIVE", "InfiniBand"), mlx5_0=("DOWN", "Ethernet"))
    (root / "class" / "infiniband" / "mlx5_2").mkdir()  # without ports
    (root / "class" / "infiniband" / "mlx5_3" / "ports" / "1").mkdir(parents=True)  # that says nothing
    assert infiniband_devices(root) == [
        {"name": "mlx5_0", "ports": [{"port": "1", "state": "DOWN", "link": "Ethernet", "rate": "400 Gb/sec (4X NDR)"}]},
        {"name": "mlx5_1", "ports": [{"port": "1", "state": "ACTIVE", "link": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}]},
        {"name": "mlx5_2", "ports": []},
        {"name": "mlx5_3", "ports": [{"port": "1", "state": "unknown", "link": "unknown", "rate": "unknown"}]},
    ]  # fmt: skip
    assert infiniband_devices(tmp_path / "nowhere") == []


def test_plug_ins_are_looked_for_as_nccl_does() -> None:
    assert plug_in_names("nccl", {}) == ["libnccl-net.so"]
    assert plug_in_names("rccl", {}) == ["librccl-net.so"]
    assert plug_in_names("nccl", {"NCCL_NET_PLUGIN": "aws"}) == ["libnccl-net-aws.so", "aws"]
    assert plug_in("nccl", {"NCCL_NET_PLUGIN": "none"}) == {"missing": "NCCL_NET_PLUGIN=none"}
    assert "libnccl-net-nowhere.so" in plug_in("nccl", {"NCCL_NET_PLUGIN": "nowhere"})["missing"]
    assert LIBM is not None
    assert plug_in("nccl", {"NCCL_NET_PLUGIN": LIBM}) == {"path": LIBM}


@pytest.mark.parametrize(
    ("devices", "environment", "words", "tcp"),
    [
        ({}, {}, "TCP, since there is no plug-in (libnccl-net.so: cannot open) and no InfiniBand or RoCE device", True),
        ({"a": ("ACTIVE", "InfiniBand")}, {}, "a (InfiniBand, 400 Gb/sec (4X NDR))", False),
        ({"a": ("ACTIVE", "Ethernet")}, {}, "a (RoCE, 400 Gb/sec (4X NDR))", False),
        ({"a": ("DOWN", "InfiniBand"), "b": ("INIT", "Ethernet")}, {}, "no port of a, b is active", True),
        ({"a": ("ACTIVE", "InfiniBand")}, {"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE leaves out a (InfiniBand", True),
        ({"a": ("ACTIVE", "InfiniBand")}, {"NCCL_IB_DISABLE": "0"}, "a (InfiniBand", False),
        ({"a": ("ACTIVE", "InfiniBand")}, {"NCCL_NET": "Socket"}, "TCP, as NCCL_NET=Socket says", True),
    ],
)  # fmt: skip
def test_the_algorithm_between_hosts(
    devices: Any, environment: dict[str, str], words: str, tcp: bool, tmp_path: Path
) -> None:
    found, is_tcp = algorithm_between_hosts(
        NONE, infiniband_devices(machine(tmp_path, **devices)), environment
    )
    assert words in found
    assert is_tcp == tcp
    assert algorithm_between_hosts({"path": "libnccl-net.so"}, [], {}) == (
        "its plug-in libnccl-net.so",
        False,
    )


def report(gpus: int, tcp: bool = True, missing: bool = False) -> dict[str, Any]:
    library = (
        {"missing": "NCCL was not found\nmore"}
        if missing
        else {"name": "NCCL", "version": "2.28.3", "path": "/l.so"}
    )
    return {
        "devices": {"cuda": {"gpus": [{}] * gpus}},
        "collectives": {
            "cuda": {**library, "between_hosts": "TCP, since" if tcp else "a (InfiniBand)", "tcp": tcp}
        },
    }


def test_tcp_between_hosts_is_warned_of_where_there_are_devices() -> None:
    rows = info._ccl_rows("cuda", report(2))
    assert rows[0] == ("nccl", "NCCL 2.28.3  /l.so")
    assert rows[1][0] == "WARNING"
    assert rows[1][1].startswith("between hosts NCCL would go by TCP, since: slow")
    assert [label for label, _ in info._ccl_rows("cuda", report(2, tcp=False))] == ["nccl", ""]
    (_, nobody) = info._ccl_rows("cuda", report(0))
    assert nobody[0] == ""
    assert nobody[1].startswith("no cuda devices here that it could be for")
    assert info._ccl_rows("cuda", report(2, missing=True)) == [("nccl", "none: NCCL was not found")]


def links(*rows: tuple[int, int, int, int]) -> dict[str, Any]:
    return {"links": [{"device": a, "peer": b, "reaches": r, "atomics": t, "rank": 0} for a, b, r, t in rows]}


def test_links_that_are_alike_are_said_together() -> None:
    nvlink, pcie = (
        "NVLink (atomic operations reach peers)",
        "PCIe (memory of peers is reached, without atomic operations)",
    )
    assert info._link_rows("cuda", links((0, 1, 1, 1))) == [("", f"between the two devices: {nvlink}")]
    assert info._link_rows("cuda", links((0, 1, 1, 1), (0, 2, 1, 1), (1, 2, 1, 1))) == [
        ("", f"between all 3 pairs of devices: {nvlink}")
    ]
    mixed = info._link_rows(
        "cuda", links((0, 1, 1, 1), (0, 2, 1, 0), (1, 2, 1, 0), (0, 3, 0, 0), (1, 3, 1, -1))
    )
    assert mixed == [
        ("", f"between 0-1: {nvlink}"),
        ("", f"between 0-2, 1-2: {pcie}"),
        ("", "between 0-3: no access to each other's memory"),
        ("", "between 1-3: memory of peers is reached; the driver does not tell by what"),
    ]
    assert "xGMI" in info._link_rows("hip", links((0, 1, 1, 1)))[0][1]
    assert info._link_rows("cuda", {}) == []


def test_how_it_is_known_whether_mpi_takes_device_memory(
    use_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA", "MV2_USE_ROCM"):
        monkeypatch.delenv(name, raising=False)

    def of(answer: dict[str, Any], why_not: dict[str, str] | None = None) -> tuple[Any, str]:
        found = info._mpi_devices(answer, why_not or {})["cuda"]
        return found["takes"], found["by"]

    query = {"MPIX_Query_cuda_support": 1}
    assert of({"said": {"cuda": query}, "late": ""}) == (True, "MPIX_Query_cuda_support() says so")
    assert of({"said": {"cuda": {"MPIX_Query_cuda_support": 0}}, "late": ""}) == (
        False,
        "MPIX_Query_cuda_support() says no",
    )
    takes, by = of({"said": {}, "late": "MPIX_GPU_query_support"})
    assert takes is None
    assert by.startswith("MPIX_GPU_query_support() tells when MPI has begun")
    assert of({"said": {}, "late": ""})[0] is None
    assert of({"missing": "no MPI"}) == (None, "no MPI")
    assert of({"said": {"cuda": query}}, {"cuda": "it does not"}) == (False, "it does not")
    assert of({}, {"cuda": ""}) == (True, "the library says so")
    monkeypatch.setenv("MV2_USE_CUDA", "1")
    assert of({"said": {}, "late": ""}) == (True, "MV2_USE_CUDA=1")
    assert info._mpi_devices({"said": {}, "late": ""}, {})["hip"]["takes"] is None
    use_settings(gpu_aware_mpi="0")
    assert of({"said": {"cuda": query}}) == (False, "JALI_GPU_AWARE_MPI=0")
