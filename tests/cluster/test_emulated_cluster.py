"""The emulated cluster: links that hold their rate, nodes that are apart, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import emulated_cluster
import pytest
from emulated_cluster import BypassedError, Cluster, UnavailableError
from programs import TIMEOUT, wait_until

pytestmark = pytest.mark.mpi

TOOLS = Path(emulated_cluster.__file__).parent

SUM_OF_RANKS = """
import socket, sys
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
total = np.zeros(1000)
world.Allreduce(np.full(1000, 2.0**world.rank), total)
assert (total == 2.0**world.size - 1).all(), total
print(socket.gethostname(), world.rank, node.size, sys.argv[1:], flush=True)
sys.exit(5 if world.rank == 0 and "fail" in sys.argv else 0)
"""


def _interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def _running(mark: str) -> bool:
    """Whether some process of this host has `mark` as a word of its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                return True
    return False


def _link(cluster: Cluster, node: int) -> tuple[int, int]:
    """Bytes that a node's link has carried, and how often it held something back."""
    statistics = cluster._output(cluster.on_node(node, ["tc", "-s", "qdisc", "show", "dev", "eth0"]))
    assert "rate 1Gbit" in statistics
    found = re.search(r"Sent (\d+) bytes .*overlimits (\d+)", statistics)
    assert found is not None
    return int(found[1]), int(found[2])


def test_links_carry_what_goes_between_nodes_and_hold_it_back(cluster: Cluster) -> None:
    amount = 32 << 20
    cluster._streams([(0, 0), (1, 1)], amount)
    for node in (0, 1):
        carried, held = _link(cluster, node)
        assert (carried < amount // 100, held) == (True, 0)  # a few words of the network about itself
    cluster._streams([(0, 1), (1, 0)], amount)
    for node in (0, 1):
        carried, held = _link(cluster, node)
        assert carried >= amount
        assert held > 0


def test_a_line_without_its_limit_is_reported_as_bypassed(cluster: Cluster) -> None:
    for k in range(2):
        cluster._switch(f"tc qdisc del dev port{k} root")
        subprocess.run(cluster.on_node(k, ["tc", "qdisc", "del", "dev", "eth0", "root"]), check=True)
    cluster.line_rate = 1e5  # so little that any machine is faster
    with pytest.raises(BypassedError, match=r"moved .* over a line of 0.1 MB/s: it went round"):
        cluster.measure_line(0.25)


def test_nodes_that_share_memory_are_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    on_node = cluster.on_node
    monkeypatch.setattr(cluster, "on_node", lambda node, command: on_node(0, command))
    with pytest.raises(BypassedError, match="node 1 sees the /dev/shm of node 0"):
        cluster._check_apart()


def test_nothing_is_left_after_a_failure_inside() -> None:
    before = _interfaces()
    mark = f"jali-test-{os.getpid()}-failure"
    try:
        with Cluster() as cluster:
            folder = cluster.work
            cluster.start(cluster.on_node(1, ["sh", "-c", "sleep 1000; true", mark]))
            limit = time.monotonic() + TIMEOUT
            while not _running(mark) and time.monotonic() < limit:
                time.sleep(0.02)
            assert _running(mark)
            raise KeyError("a failure of the user's")
    except UnavailableError as error:
        pytest.skip(f"no emulated cluster: {error}")
    except KeyError:
        pass
    assert not _running(mark)
    assert not folder.exists()
    assert _interfaces() == before


def test_a_killed_owner_leaves_no_process_and_its_folder_goes_with_the_next_cluster(cluster: Cluster) -> None:
    mark = f"jali-test-{os.getpid()}-killed"
    program = f"""
import sys, time
sys.path.insert(0, {str(TOOLS)!r})
from emulated_cluster import Cluster
with Cluster() as cluster:
    cluster.start(cluster.on_node(0, ["sh", "-c", "sleep 1000; true", {mark!r}]))
    print(cluster.work, flush=True)
    time.sleep(1000)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    limit = time.monotonic() + TIMEOUT
    while not _running(mark):
        assert time.monotonic() < limit
        time.sleep(0.02)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    while _running(mark):
        assert time.monotonic() < limit, "the process in the node outlived the cluster's owner"
        time.sleep(0.02)
    os.utime(folder, (0, 0))
    with Cluster():
        wait_until(lambda: not folder.exists())  # another program's cluster may be about it
    assert cluster.work.exists()  # a living one is left alone


def test_folder_that_goes_while_stale_ones_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{emulated_cluster.PREFIX}a").symlink_to(tmp_path / "gone")  # has a name, is not there
    stale = tmp_path / f"{emulated_cluster.PREFIX}b"
    stale.mkdir()
    os.utime(stale, (0, 0))
    emulated_cluster._remove_stale()
    assert not stale.exists()


def test_unmodified_mpi_program_runs_across_nodes(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if not (Path(sys.executable).parent / "mpiexec.hydra").exists():
        pytest.skip("the MPI library beside this Python is not MPICH")
    (tmp_path / "program.py").write_text(SUM_OF_RANKS)
    command = cluster.mpi_command("mpich", 1, [sys.executable, str(tmp_path / "program.py"), "a b"])
    job = cluster.start(command, stdout=subprocess.PIPE)
    out, _ = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0
    assert sorted(out.splitlines()) == ["node0 0 1 ['a b']", "node1 1 1 ['a b']"]


@pytest.mark.full
def test_algorithms_are_tuned_between_nodes_and_the_mpi_librarys_own_is_among_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("mpi4py")
    if not (Path(sys.executable).parent / "mpiexec.hydra").exists():
        pytest.skip("the MPI library beside this Python is not MPICH")
    rules = tmp_path / "rules.toml"
    words = [
        "tune",
        "collectives",
        "--only",
        "all_reduce,broadcast",
        "--smallest",
        "4KiB",
        "--largest",
        "4KiB",
    ]
    words += ["--rounds", "11", "--seconds", "0", "--out", str(rules), "--json"]
    command = cluster.mpi_command("mpich", 2, [sys.executable, "-m", "jali", *words])
    job = cluster.start(command, stdout=subprocess.PIPE)
    out, _ = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0
    for cell in json.loads(out)["cells"]:
        assert {"mpi", "slices", "two_level"} <= {*cell["times"], *cell["far"]}
        assert cell["impossible"] == {}
    for rule in tomllib.loads(rules.read_text()).get("rule", []):
        assert (rule["memory"], rule["ranks"], rule["hosts"], rule["ranks_per_host"]) == ("host", 4, 2, 2)
        assert ("mpich" in rule) == (rule["algorithms"] == ["mpi"])


@pytest.mark.full
@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_command_runs_a_script_with_either_library_and_returns_its_status(
    library: str, tmp_path: Path
) -> None:
    pytest.importorskip("mpi4py")
    if lack := emulated_cluster.missing():
        pytest.skip(f"no emulated cluster: {lack}")
    python = sys.executable if library == "mpich" else os.environ.get("JALI_TEST_OPENMPI_PYTHON")
    if not python:
        pytest.skip("JALI_TEST_OPENMPI_PYTHON names no Python of an environment with jali[openmpi]")
    (tmp_path / "program.py").write_text(SUM_OF_RANKS)
    for word, status in (("well", 0), ("fail", 5)):
        command = [
            sys.executable,
            str(TOOLS / "emulated_cluster.py"),
            "--nodes",
            "3",
            "--ranks-per-node",
            "2",
        ]
        command += ["--mpi", library, "--python", python, str(tmp_path / "program.py"), word]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode == 3:
            pytest.skip(done.stderr)
        assert done.returncode == status, done.stderr
        lines = sorted(line for line in done.stdout.splitlines() if line.startswith("node"))
        assert lines == [f"node{r // 2} {r} 2 ['{word}']" for r in range(6)]
        assert "across all ranks" in done.stderr


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert emulated_cluster.missing() == "making network namespaces needs root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in ("tc", "unshare") else f"/sbin/{tool}")
    assert emulated_cluster.missing() == "not installed: tc (iproute2), unshare (util-linux)"
    with pytest.raises(UnavailableError, match="not installed: tc"):
        Cluster().__enter__()


@pytest.mark.parametrize(("text", "value"), [("1gbit", 125e6), ("250mbit", 31.25e6), ("64kbit", 8e3)])
def test_rates_are_bits(text: str, value: float) -> None:
    assert emulated_cluster.bytes_per_second(text) == value


def test_rate_without_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="rate '1000' is not a number with kbit, mbit or gbit"):
        Cluster(rate="1000")
