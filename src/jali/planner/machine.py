"""Machines described in files: levels of hardware, links, NICs and their binding to ranks, and libraries.

A file is TOML, in GB/s (10^9 bytes) and microseconds. `Machine.load` takes the name of a machine that comes with jali
or the path of a file; the number of nodes can be changed. `core` is the same machine for the simulator, in bytes and
seconds. The file does not describe collectives: it has no factors, stripes or depths.

    name = "example"           nodes = 4
    [network]                  (may be missing for one host) nics, rated, bandwidth, duplex (numbers, or one per NIC), latency, binding, crowd, crowded
    [[level]]                  inside a node, outermost first: name, parts, wiring ("pairs" or "ports"), bandwidth, ...
    [compute]                  copy, reduction (read and written, GB/s), launch (us)
    [library.NAME.LEVEL]       LEVEL is "node" or a level's name: latency, gap, bandwidth, duplex, efficiency
    [library.NAME]             engine
    [device]                   what computes on a rank, for updates of fields (jali.lattice.update_simulation); see `Device`
    [transport.NAME]             a transport of halos, by the first part of a halo policy's name: before, after (us), and library,
    [transport.NAME.LEVEL]       or levels of its own, as of a library
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jali import _core, vendors
from jali.amounts import counted
from jali.comm import validation
from jali.errors import ParameterError
from jali.files import checked_path, parse_toml, read_bytes, shown, value_shown

GIGA, MICRO = 1e9, 1e-6
MOST_RANKS, MOST_NICS = 1 << 20, 1 << 12
SMALLEST, LARGEST = 1e-9, 1e12
"""Of numbers in a file (GB/s, microseconds); beyond them nothing can be meant."""
MOST_BYTES = 1 << 20
MOST_AT_ONCE = 1 << 30
BINDINGS = ("packed", "round-robin")
SHIPPED = Path(__file__).resolve().parent.parent / "machines"


@dataclass(frozen=True)
class Network:
    """NICs of a node. `rated`, `bandwidth` (one direction) and `duplex` (both together) per NIC in GB/s; latency in us."""

    rated: tuple[float, ...]
    bandwidth: tuple[float, ...]
    duplex: tuple[float, ...]
    latency: float
    binding: tuple[int, ...]  # NIC of each rank of a node
    crowd: int = 2**31 - 1  # with more messages than this under way in one direction ...
    crowded: float = 1.0  # ... a NIC keeps this share of its bandwidth


@dataclass(frozen=True)
class Level:
    """Inside a node: each unit of the level above has `parts` units, with wires between pairs or ports into a switch."""

    name: str
    parts: int
    wiring: str
    bandwidth: float = math.inf
    duplex: float = math.inf
    latency: float = 0.0  # us


@dataclass(frozen=True)
class LibraryLevel:
    """What a library does at a level.

    `latency` (us) passes before the first byte and overlaps earlier messages; `gap` (us) is the time for which a
    message occupies its links beyond its bytes; `bandwidth` and `duplex` (GB/s) bound what one rank moves;
    `efficiency` is the share of payload in what crosses the wires.
    """

    latency: float = 0.0
    gap: float = 0.0
    bandwidth: float = math.inf
    duplex: float = math.inf
    efficiency: float = 1.0


@dataclass(frozen=True)
class Library:
    """What carries messages: per level, and `engine` (GB/s), what one rank sends with it at all levels together."""

    at: dict[str, LibraryLevel]
    engine: float = math.inf


@dataclass(frozen=True)
class Device:
    """What computes on a rank: a GPU, or the threads of a process.

    `memory` and `cache` (GB/s) are the bandwidths of its memory and its caches for kernels, `cache_size` (MB) what stays in
    them from one kernel to the next, `float64` and `float32` (GFLOP/s) its computing rates. `thread` (GB/s) is what one
    thread loads, which is what a kernel of few sites takes time for, and `at_once` the sites that are computed at the same
    time. `launch` (us) passes from one kernel to the next, `join` (us) until a stream that waits for another continues, and
    the host needs `host` (us) for each operation that it puts on a stream.
    """

    kind: str  # "cpu", or a kind of device: selects the halo policies
    memory: float
    cache: float = math.inf
    cache_size: float = 0.0
    float64: float = math.inf
    float32: float = math.inf
    thread: float = math.inf
    at_once: int = 1
    launch: float = 0.0
    join: float = 0.0
    host: float = 0.0


@dataclass(frozen=True)
class HaloTransport:
    """A transport of halos. `before` (us) passes between packing and the first message, `after` (us) between the last one's
    arrival and the kernel that depends on it. While messages are under way they hold the share `holds` of a device; where they
    queue (`queues`), their kernel starts when the first blocks of a concurrent bulk end."""

    messages: Library
    before: float = 0.0
    after: float = 0.0
    holds: float = 0.0
    queues: bool = False


@dataclass(frozen=True)
class Machine:
    """A described machine: `nodes` equal nodes. Ranks are numbered node by node, inside a node level by level."""

    name: str
    nodes: int
    network: Network
    levels: tuple[Level, ...]
    libraries: dict[str, Library]
    copy: float = math.inf  # GB/s, bytes read plus bytes written
    reduction: float = math.inf
    launch: float = 0.0  # us
    device: Device | None = None
    transports: dict[str, HaloTransport] = field(default_factory=dict)
    about: str = ""
    source: str = field(default="", compare=False)

    @staticmethod
    def load(name_or_path: str | Path, nodes: int | None = None) -> Machine:
        """The machine of that name, or in that file. Raises ParameterError that names the file and the key."""
        path = Path(checked_path(name_or_path))
        if not path.suffix and not os.path.exists(path):
            path = SHIPPED / f"{name_or_path}.toml"
            if not os.path.exists(path):
                raise ParameterError(
                    f"no machine '{shown(name_or_path)}'; jali knows {', '.join(shipped())}, "
                    "and reads a description from the path of a .toml file"
                )
        try:
            text = read_bytes(path, MOST_BYTES, "a machine file").decode("utf-8")
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ParameterError(f"cannot read machine file {shown(path)}: {reason}") from None
        except UnicodeDecodeError as error:
            raise ParameterError(
                f"{shown(path)} is not a machine file: byte {error.start} is not UTF-8 text; TOML is needed"
            ) from None
        machine = Machine.from_table(parse_toml(text, shown(path)), shown(path))
        return machine if nodes is None else machine.with_nodes(nodes)

    @staticmethod
    def from_table(table: dict[str, Any], source: str) -> Machine:
        """A machine from the tables of a file; `source` is named in errors."""
        return _Reader(source).machine(table)

    @property
    def ranks_per_node(self) -> int:
        return math.prod(level.parts for level in self.levels)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the hardware's levels as libraries refer to them: "node" is between nodes."""
        return ("node", *(level.name for level in self.levels))

    @property
    def shape(self) -> tuple[int, ...]:
        """The factors of the hardware: nodes, then parts of each level; levels of one part are left out."""
        return tuple(n for n in (self.nodes, *(level.parts for level in self.levels)) if n > 1) or (1,)

    def with_nodes(self, nodes: int) -> Machine:
        """The same machine with another number of nodes."""
        number = validation.integer(nodes)
        if number is None or number < 1:
            raise ParameterError(
                f"machine '{self.name}': nodes = {value_shown(nodes)}; a positive whole number is needed"
            )
        if nodes * self.ranks_per_node > MOST_RANKS:
            raise ParameterError(
                f"machine '{self.name}': {value_shown(nodes)} nodes of {counted(self.ranks_per_node, 'rank')} are too many to be planned for; "
                f"{MOST_RANKS // self.ranks_per_node} are the most"
            )
        if nodes > 1 and math.isinf(self.network.rated[0]):
            raise ParameterError(
                f"machine '{self.name}' describes one host and no network; it cannot have {nodes} nodes"
            )
        return replace(self, nodes=number)

    def libraries_at(self, level: str) -> tuple[str, ...]:
        """Libraries that work at a level, in the file's order (the first is the default)."""
        return tuple(name for name, library in self.libraries.items() if level in library.at)

    def ideal(self) -> Machine:
        """As the paper's bounds see it: NICs at their rating, everything else free, no latency."""
        network = self.network
        free = tuple(math.inf for _ in network.rated)
        return replace(
            self,
            network=replace(network, bandwidth=network.rated, duplex=free, latency=0.0, crowded=1.0),
            levels=tuple(Level(level.name, level.parts, "ports") for level in self.levels),
            libraries={
                name: Library({level: LibraryLevel() for level in library.at})
                for name, library in self.libraries.items()
            },
            copy=math.inf,
            reduction=math.inf,
            launch=0.0,
        )

    def core(self) -> _core.Machine:
        """The machine for the simulator of collectives: bytes and seconds."""
        return self._core(self.libraries, math.inf)

    def core_of_halos(self) -> _core.Machine:
        """The same with the transports of halos as its libraries, and paths to memory that kernels and messages share: those through
        caches, if these are known, since no kernel is bound by memory alone."""
        transports = {name: transport.messages for name, transport in self.transports.items()}
        shared = math.inf
        if self.device is not None:
            shared = self.device.memory if math.isinf(self.device.cache) else self.device.cache
        return self._core(transports, shared)

    def _core(self, libraries: dict[str, Library], memory: float) -> _core.Machine:
        network = self.network
        return _core.Machine(
            name=self.name,
            nodes=self.nodes,
            levels=[
                (
                    level.name,
                    level.parts,
                    level.wiring == "pairs",
                    level.bandwidth * GIGA,
                    level.duplex * GIGA,
                    level.latency * MICRO,
                )
                for level in self.levels
            ],
            nics=[
                (r * GIGA, b * GIGA, d * GIGA, network.crowd, network.crowded)
                for r, b, d in zip(network.rated, network.bandwidth, network.duplex, strict=True)
            ],
            binding=list(network.binding),
            network_latency=network.latency * MICRO,
            libraries=[
                (
                    name,
                    library.engine * GIGA,
                    [_library_spec(library.at.get(level)) for level in self.level_names],
                )
                for name, library in libraries.items()
            ],
            copy=self.copy * GIGA,
            reduction=self.reduction * GIGA,
            launch=self.launch * MICRO,
            memory=memory * GIGA,
        )


def shipped() -> tuple[str, ...]:
    """Names of the machines that come with jali."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def _library_spec(at: LibraryLevel | None) -> tuple[bool, float, float, float, float, float]:
    if at is None:
        return (False, 0.0, 0.0, math.inf, math.inf, 1.0)
    return (True, at.latency * MICRO, at.gap * MICRO, at.bandwidth * GIGA, at.duplex * GIGA, at.efficiency)


class _Reader:
    """Reads tables strictly: every key is known, every value has its type and range."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, key: str, what: str) -> ParameterError:
        return ParameterError(f"{self.source}: {key}: {what}")

    def keys(
        self, table: Any, where: str, needed: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.fail(where, f"a table is needed, not {value_shown(table)}")
        prefix = f"{where}." if where else ""
        for key in table:
            if not where and key == "carrier":
                raise self.fail(key, "unknown key; it is called 'transport' now")
            if key not in needed and key not in optional:
                raise self.fail(
                    prefix + shown(key, 80), f"unknown key; known here: {', '.join([*needed, *optional])}"
                )
        for key in needed:
            if key not in table:
                raise self.fail(prefix + key, "missing")
        return table

    def number(self, value: Any, key: str, zero: bool = False) -> float:
        """A float: positive, infinity included (what is free), or a time: zero or more, and finite."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.fail(key, f"{value_shown(value)} is no number")
        if value < 0 or (value == 0 and not zero):
            raise self.fail(key, f"{value_shown(value)} must be {'zero or more' if zero else 'positive'}")
        free = value == math.inf and not zero
        if not free and not (value == 0 or SMALLEST <= value <= LARGEST):
            raise self.fail(
                key, f"{value_shown(value)} is beyond every machine; between {SMALLEST:g} and {LARGEST:g}"
            )
        return float(value)

    def share(self, value: Any, key: str) -> float:
        if self.number(value, key) > 1:
            raise self.fail(key, f"{value}; at most 1")
        return float(value)

    def whole(self, value: Any, key: str, most: int = MOST_RANKS) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(key, f"{value_shown(value)}; a positive whole number is needed")
        if value > most:
            raise self.fail(key, f"{value_shown(value)}; at most {most}")
        return value

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.fail(key, f"{value_shown(value)}; a text is needed")
        return value

    def per_nic(self, value: Any, key: str, nics: int) -> tuple[float, ...]:
        if not isinstance(value, list):
            return (self.number(value, key),) * nics
        if len(value) != nics:
            raise self.fail(key, f"{len(value)} numbers for {nics} NICs")
        return tuple(self.number(v, f"{key}[{k}]") for k, v in enumerate(value))

    def machine(self, table: dict[str, Any]) -> Machine:
        self.keys(
            table,
            "",
            ("name", "library"),
            ("nodes", "about", "network", "level", "compute", "device", "transport"),
        )
        levels = self.levels(table.get("level", []))
        compute = self.keys(table.get("compute", {}), "compute", (), ("copy", "reduction", "launch"))
        per_node = math.prod(level.parts for level in levels)
        if per_node > MOST_RANKS:
            raise self.fail(
                "level", f"{counted(per_node, 'rank')} of a node, the product of parts; at most {MOST_RANKS}"
            )
        names = ("node", *(level.name for level in levels))
        libraries = self.libraries(table["library"], names)
        machine = Machine(
            name=self.text(table["name"], "name"),
            nodes=self.whole(table.get("nodes", 1), "nodes"),
            network=self.network(table.get("network"), per_node),
            levels=levels,
            libraries=libraries,
            copy=self.number(compute.get("copy", math.inf), "compute.copy"),
            reduction=self.number(compute.get("reduction", math.inf), "compute.reduction"),
            launch=self.number(compute.get("launch", 0.0), "compute.launch", zero=True),
            device=self.device(table["device"]) if "device" in table else None,
            transports=self.transports(table.get("transport", {}), names, libraries),
            about=str(table.get("about", "")),
            source=self.source,
        )
        if machine.ranks > MOST_RANKS:
            raise self.fail(
                "nodes",
                f"{machine.nodes} of {counted(per_node, 'rank')} each; at most {counted(MOST_RANKS, 'rank')} in all",
            )
        if machine.nodes > 1 and math.isinf(machine.network.rated[0]):
            raise self.fail("network", f"missing; {machine.nodes} nodes need one")
        for name in names if machine.nodes > 1 else names[1:]:
            if not machine.libraries_at(name):
                raise self.fail("library", f"no library works at level '{name}'; add [library.NAME.{name}]")
        return machine

    def network(self, table: Any, ranks: int) -> Network:
        if table is None:  # one host, nothing known of others
            return Network((math.inf,), (math.inf,), (math.inf,), 0.0, (0,) * ranks)
        self.keys(
            table,
            "network",
            ("nics", "rated", "latency"),
            ("bandwidth", "duplex", "binding", "crowd", "crowded"),
        )
        nics = self.whole(table["nics"], "network.nics", MOST_NICS)
        rated = self.per_nic(table["rated"], "network.rated", nics)
        return Network(
            rated=rated,
            bandwidth=self.per_nic(table.get("bandwidth", list(rated)), "network.bandwidth", nics),
            duplex=self.per_nic(table.get("duplex", math.inf), "network.duplex", nics),
            latency=self.number(table["latency"], "network.latency", zero=True),
            binding=self.binding(table.get("binding", "packed"), nics, ranks),
            crowd=self.whole(table.get("crowd", 2**31 - 1), "network.crowd", 2**31 - 1),
            crowded=self.share(table.get("crowded", 1.0), "network.crowded"),
        )

    def binding(self, value: Any, nics: int, ranks: int) -> tuple[int, ...]:
        if value == "packed":  # neighbours share a NIC
            return tuple(rank * nics // ranks for rank in range(ranks))
        if value == "round-robin":
            return tuple(rank % nics for rank in range(ranks))
        if not isinstance(value, list):
            raise self.fail(
                "network.binding",
                f"{value_shown(value)}; one of {', '.join(BINDINGS)}, or the NIC of each rank of a node",
            )
        if len(value) != ranks:
            raise self.fail("network.binding", f"{len(value)} entries for {counted(ranks, 'rank')} of a node")
        for k, nic in enumerate(value):
            if isinstance(nic, bool) or not isinstance(nic, int) or not 0 <= nic < nics:
                raise self.fail(f"network.binding[{k}]", f"{value_shown(nic)}; NICs are 0 to {nics - 1}")
        return tuple(value)

    def levels(self, tables: Any) -> tuple[Level, ...]:
        if not isinstance(tables, list):
            raise self.fail("level", "levels are written [[level]], outermost first")
        levels: list[Level] = []
        for k, table in enumerate(tables):
            where = f"level[{k}]"
            self.keys(table, where, ("name", "parts", "wiring", "bandwidth"), ("duplex", "latency"))
            name = self.text(table["name"], f"{where}.name")
            if name == "node" or any(level.name == name for level in levels):
                raise self.fail(f"{where}.name", f"'{name}' is taken ('node' is the network)")
            if table["wiring"] not in ("pairs", "ports"):
                raise self.fail(
                    f"{where}.wiring",
                    f"{value_shown(table['wiring'])}; 'pairs' (a wire between each two) or 'ports' (into a switch)",
                )
            levels.append(
                Level(
                    name=name,
                    parts=self.whole(table["parts"], f"{where}.parts"),
                    wiring=table["wiring"],
                    bandwidth=self.number(table["bandwidth"], f"{where}.bandwidth"),
                    duplex=self.number(table.get("duplex", math.inf), f"{where}.duplex"),
                    latency=self.number(table.get("latency", 0.0), f"{where}.latency", zero=True),
                )
            )
        return tuple(levels)

    def libraries(self, tables: Any, level_names: tuple[str, ...]) -> dict[str, Library]:
        self.keys(tables, "library", (), tuple(tables) if isinstance(tables, dict) else ())
        result: dict[str, Library] = {}
        for name, at in tables.items():
            where = f"library.{name}"
            self.keys(at, where, (), ("engine", *level_names))
            levels: dict[str, LibraryLevel] = {}
            for level, table in at.items():
                if level != "engine":
                    levels[level] = self.at_level(table, f"{where}.{level}")
            result[name] = Library(levels, self.number(at.get("engine", math.inf), f"{where}.engine"))
        return result

    def at_level(self, table: Any, where: str) -> LibraryLevel:
        self.keys(table, where, (), ("latency", "gap", "bandwidth", "duplex", "efficiency"))
        return LibraryLevel(
            latency=self.number(table.get("latency", 0.0), f"{where}.latency", zero=True),
            gap=self.number(table.get("gap", 0.0), f"{where}.gap", zero=True),
            bandwidth=self.number(table.get("bandwidth", math.inf), f"{where}.bandwidth"),
            duplex=self.number(table.get("duplex", math.inf), f"{where}.duplex"),
            efficiency=self.share(table.get("efficiency", 1.0), f"{where}.efficiency"),
        )

    def device(self, table: Any) -> Device:
        rates, times = ("cache", "float64", "float32", "thread"), ("launch", "join", "host")
        self.keys(table, "device", ("kind", "memory"), (*rates, *times, "cache_size", "at_once"))
        kind = self.text(table["kind"], "device.kind")
        if kind != "cpu" and kind not in vendors.names():
            raise self.fail(
                "device.kind", f"{value_shown(kind)}; there are cpu, {', '.join(vendors.names())}"
            )
        return Device(
            kind=kind,
            memory=self.number(table["memory"], "device.memory"),
            cache_size=self.number(table.get("cache_size", 0.0), "device.cache_size", zero=True),
            at_once=self.whole(table.get("at_once", 1), "device.at_once", MOST_AT_ONCE),
            **{key: self.number(table[key], f"device.{key}") for key in rates if key in table},
            **{key: self.number(table[key], f"device.{key}", zero=True) for key in times if key in table},
        )

    def transports(
        self, tables: Any, level_names: tuple[str, ...], libraries: dict[str, Library]
    ) -> dict[str, HaloTransport]:
        self.keys(tables, "transport", (), tuple(tables) if isinstance(tables, dict) else ())
        result: dict[str, HaloTransport] = {}
        for name, table in tables.items():
            where = f"transport.{name}"
            self.keys(table, where, (), ("before", "after", "holds", "queues", "library", *level_names))
            levels = {
                level: self.at_level(at, f"{where}.{level}")
                for level, at in table.items()
                if level in level_names
            }
            messages = Library(levels)
            if "library" in table:
                library = self.text(table["library"], f"{where}.library")
                if library not in libraries:
                    raise self.fail(
                        f"{where}.library", f"no library '{library}'; there are {', '.join(libraries)}"
                    )
                messages = replace(libraries[library], at={**libraries[library].at, **levels})
            result[name] = HaloTransport(
                messages,
                self.number(table.get("before", 0.0), f"{where}.before", zero=True),
                self.number(table.get("after", 0.0), f"{where}.after", zero=True),
                self.number(table.get("holds", 0.0), f"{where}.holds", zero=True),
                self.switch(table.get("queues", False), f"{where}.queues"),
            )
        return result

    def switch(self, value: Any, key: str) -> bool:
        if not isinstance(value, bool):
            raise self.fail(key, f"{value_shown(value)}; true or false is needed")
        return value
