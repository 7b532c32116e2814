"""Which plan for this machine, collective and size: a search by model, with reasons.

Structures (form, hierarchy, stripe, ring) are made from the machine's levels: nodes split in one or in several steps,
the inside of a node by its levels, in one step, or in halves. Each is simulated twice without a pipeline, once with
the data and once with next to none. That yields a cheap estimate for every depth: what the busiest link needs, the
rest shrinking with the depth, what each message costs beyond its bytes growing with it. The best estimates are then
simulated as they are, the depth is adjusted by doubling and halving, and libraries and stripe weights are varied on
the best. Nothing here knows any machine by name.

A search may take ranks for alike whose pieces are nearly equal; the best few it finds are simulated once more, exactly.
Many nodes are searched on few first: of structures that differ inside a node only, those that do best on SAMPLE nodes
go on. Nothing depends on how long something took, so that all ranks choose alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jali import _core
from jali.amounts import counted
from jali.comm.algorithms import COLLECTIVES
from jali.errors import ParameterError, PlanError
from jali.planner.bounds import bound
from jali.planner.machine import Machine
from jali.planner.simulation import Result, result_of

# More than this many ranks: an all-reduce in one step is no longer looked at; it has ranks^2 partial results.
ONE_STEP_RANKS = 16
# The depth is adjusted for those of the short list that take no longer than this times the best.
NEAR = 1.1
# More nodes than this: structures are compared on so many first, and of each kind the best few go on.
SAMPLE, KEPT = 16, 2
# More ranks than this: steps in which every rank sends to all are no longer mixed with steps from or to one root. Such
# plans look alike from no two ranks, and a rank's part is as large as the group.
MIXED_RANKS = 64
# So many of the best are simulated exactly.
FINALISTS = 3
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Parameters:
    """The five parameters, and the form of the composition.

    `sizes` are the groups of each split along the ranks, outermost first, without the last split into single ranks;
    `factors` says the same where all groups of a split are equal. `libraries` has one name per split.
    """

    sizes: tuple[tuple[int, ...], ...]
    ranks: int
    libraries: tuple[str, ...]
    stripe: int = 1
    ring: int = 1
    depth: int = 1
    form: str = "single"
    stripe_weights: tuple[float, ...] = ()

    @staticmethod
    def of_factors(factors: Sequence[int], libraries: Sequence[str], **others: Any) -> Parameters:
        """Equal groups, by the factors of the number of ranks."""
        ranks = math.prod(factors)
        sizes, groups = [], 1
        for factor in factors[:-1]:
            groups *= factor
            sizes.append((ranks // groups,) * groups)
        return Parameters(tuple(sizes), ranks, tuple(libraries), **others)

    @property
    def factors(self) -> tuple[int, ...] | None:
        """Factors of the number of ranks, or None where groups differ."""
        if any(len(set(groups)) > 1 for groups in self.sizes):
            return None
        counts = [1, *(len(groups) for groups in self.sizes), self.ranks]
        return tuple(after // before for before, after in itertools.pairwise(counts))

    def plan_parameters(self) -> Any:
        """The same as `_core.PlanParameters`."""
        hierarchy = _core.Hierarchy.from_sizes(self.ranks, [list(groups) for groups in self.sizes])
        return _core.PlanParameters(
            hierarchy,
            libraries=list(self.libraries),
            stripe=self.stripe,
            stripe_weights=list(self.stripe_weights),
            ring=self.ring,
            depth=self.depth,
        )

    def describe(self) -> str:
        factors = self.factors
        shape = (
            " x ".join(map(str, factors))
            if factors
            else " / ".join(f"{len(s)} groups" for s in self.sizes) + " / 1"
        )
        weights = ", weighted" if self.stripe_weights else ""
        return (
            f"{self.form}, hierarchy {shape}, libraries {', '.join(self.libraries)}, "
            f"stripe {self.stripe}{weights}, ring {self.ring}, depth {self.depth}"
        )


@dataclass(frozen=True)
class Candidate:
    """Parameters that were simulated, and their time in seconds."""

    parameters: Parameters
    time: float


@dataclass(frozen=True)
class Choice:
    """The best plan found: its parameters, form and simulated time; the runners-up; what was looked at and why."""

    parameters: Parameters
    form: str
    time: float
    result: Result
    runners_up: tuple[Candidate, ...]
    estimated: int  # structures that were estimated
    simulated: int  # plans that were simulated in full
    why: str


# (parameters, share of the size, exactly) -> core simulation of the plan
Evaluate = Callable[[Parameters, float, bool], Any]
Progress = Callable[[str], None]


def simulate_collective(
    machine: Machine, collective: str, size: float, parameters: Parameters, root: int = 0, core: Any = None
) -> Result:
    """Simulates a standard collective of a payload p * d of `size` bytes with these parameters."""
    core = machine.core() if core is None else core
    composition = _core.standard_for_size(collective, parameters.form, size, root, parameters.ranks, False)
    simulated = _core.simulate_plan(composition, parameters.plan_parameters(), core)
    return result_of(simulated, machine, core, size, _bound(machine, collective, parameters.ranks))


def _bound(machine: Machine, collective: str, ranks: int) -> float | None:
    return bound(machine, collective) if ranks == machine.ranks and ranks > 1 else None


def choose(
    machine: Machine,
    collective: str,
    size: float,
    ranks: int | None = None,
    root: int = 0,
    shortlist: int = 6,
    progress: Progress | None = None,
) -> Choice:
    """The best plan found for a standard collective with a payload p * d of `size` bytes.

    `ranks` (default: all of the machine) fill it from the first node on. `progress` is told what is being done.
    Raises ParameterError.
    """
    ranks = _check(machine, size, ranks)
    if collective not in COLLECTIVES:
        raise ParameterError(f"no collective '{collective}'; there are {', '.join(COLLECTIVES)}")
    forms = _core.forms_of(collective)
    if collective == "all_reduce" and ranks > ONE_STEP_RANKS:
        forms.remove("single")
    if "pairwise" in forms:
        forms.remove("pairwise")  # as many steps as ranks
    if collective != "all_reduce" and "composed" in forms and ranks > MIXED_RANKS:
        forms.remove("composed")

    def search_on(part: Machine, of_ranks: int) -> _Search:
        core, compositions = part.core(), {}
        whole = size * (of_ranks / ranks) ** _SCALING.get(collective, 1)
        small = max(4.0 * of_ranks, whole * 1e-6)

        def evaluate(parameters: Parameters, share: float, exactly: bool) -> Any:
            # Equal parts are compared in a search; what is chosen is simulated with its own.
            key = (parameters.form, share, exactly)
            if key not in compositions:
                bytes_ = max(small, whole * share) if not exactly else whole
                even = collective == "all_reduce" and not exactly
                compositions[key] = _core.standard_for_size(
                    collective, parameters.form, bytes_, root % of_ranks, of_ranks, even
                )
            symmetric = "exactly" if exactly else "everywhere"
            plan = parameters.plan_parameters()
            return _core.simulate_plan(compositions[key], plan, core, symmetric, not exactly)

        return _Search(part, of_ranks, forms, evaluate, progress)

    search = search_on(machine, ranks)
    if search.full_nodes > SAMPLE and not search.rest:
        part = machine.with_nodes(SAMPLE)
        search.sample = search_on(part, part.ranks)
        search.wide = collective == "all_to_all"
        shortlist = min(shortlist, 3)
    return search.run(shortlist, size, _bound(machine, collective, ranks))


# How the payload shrinks with the number of ranks if every rank is to send as much as before: with an all-to-all, to
# each other rank. Whole vectors stay.
_SCALING = {"broadcast": 0, "reduce": 0, "all_reduce": 0, "all_to_all": 2}


def choose_for(
    machine: Machine,
    composition_of: Callable[[float], Any],
    size: float,
    shortlist: int = 6,
    progress: Progress | None = None,
) -> Choice:
    """The same for any composition. `composition_of(share)` returns it with its counts scaled by `share` (0 to 1,
    at least one element each); `size` is the payload in bytes of the whole."""
    whole = composition_of(1.0)
    ranks = _check(machine, size, whole.ranks)
    core = machine.core()
    tiny = composition_of(0.0)

    def evaluate(parameters: Parameters, share: float, exactly: bool) -> Any:
        composition, plan = tiny if share == 0 else whole, parameters.plan_parameters()
        return _core.simulate_plan(
            composition, plan, core, "exactly" if exactly else "everywhere", not exactly
        )

    return _Search(machine, ranks, ("single",), evaluate, progress).run(shortlist, size, None)


def _check(machine: Machine, size: float, ranks: int | None) -> int:
    ranks = machine.ranks if ranks is None else ranks
    if not 1 <= ranks <= machine.ranks:
        raise ParameterError(f"{counted(ranks, 'rank')} on machine '{machine.name}' with {machine.ranks}")
    if not size > 0:
        raise ParameterError(f"a size of {size} bytes; it must be positive")
    return ranks


@dataclass(frozen=True)
class _Estimate:
    parameters: Parameters  # depth 1
    empty: float  # seconds without data
    full: float  # seconds with data
    load: float  # seconds that the busiest link needs
    per_chunk: float  # seconds that each further chunk costs

    def at(self, depth: int) -> float:
        moving = max(0.0, self.full - self.empty - self.load)
        return self.load + moving / depth + self.empty + (depth - 1) * self.per_chunk

    def best(self) -> float:
        return min(self.at(depth) for depth in DEPTHS)


class _Search:
    def __init__(
        self,
        machine: Machine,
        ranks: int,
        forms: Sequence[str],
        evaluate: Evaluate,
        progress: Progress | None = None,
    ) -> None:
        self.machine, self.ranks, self.forms, self.evaluate = machine, ranks, forms, evaluate
        self.progress = progress
        self.full_nodes, self.rest = divmod(ranks, machine.ranks_per_node)
        self.tried: dict[Parameters, float] = {}
        self.best: Parameters | None = None
        self.whole: set[Parameters] = set()  # simulated rank by rank already
        self.sample: _Search | None = None  # the same on fewer nodes
        self.wide = False  # the pieces are so many that only the sample is searched

    # --- structures ---

    def hierarchies(self) -> dict[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], tuple[str, int]]:
        """(sizes, level of the machine that each split crosses), the last split into single ranks included; with the
        kind of split between nodes and the number of that inside them."""
        g = self.machine.ranks_per_node
        if self.full_nodes == 0 or (self.full_nodes == 1 and self.rest == 0):
            between: list[tuple[int, ...]] = [()]
        elif self.rest:
            between = [(self.full_nodes + 1,)]
        else:
            between = factorings(self.full_nodes)
        inside = self.inside_splits()
        flat: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] = (
            (),
            (0 if self.full_nodes > 1 or (self.full_nodes and self.rest) else self.outermost_inside() or 0,),
        )
        result = {flat: ("flat", 0)}
        for outer, (number, inner) in itertools.product(between, enumerate(inside)):
            if len(outer) <= 1:
                name = "at once"
            else:
                name = "primes" if outer == prime_factors(self.full_nodes) else "two steps"
            sizes: list[tuple[int, ...]] = []
            levels: list[int] = []
            groups = 1
            for factor in outer:
                groups *= factor
                if self.rest:
                    sizes.append((*(g,) * self.full_nodes, self.rest))
                else:
                    sizes.append((self.ranks // groups,) * groups)
                levels.append(0)
            if self.rest and self.full_nodes:  # nodes differ: their ranks in one step
                if self.outermost_inside() is not None:
                    levels.append(self.outermost_inside() or 1)
                else:
                    sizes.pop()
                result.setdefault((tuple(sizes), tuple(levels)), (name, number))
                break
            below = self.ranks // groups
            for factor, level in inner:
                below //= factor
                groups *= factor
                sizes.append((below,) * groups)
                levels.append(level)
            if sizes and sizes[-1][0] == 1:
                sizes.pop()
            result.setdefault((tuple(sizes), tuple(levels)), (name, number))
        return result

    def outermost_inside(self) -> int | None:
        for k, level in enumerate(self.machine.levels):
            if level.parts > 1:
                return k + 1
        return None

    def inside_splits(self) -> list[tuple[Any, ...]]:
        """Ways to split a node: (factor, level of the machine) from outside in."""
        levels = [(level.parts, k + 1) for k, level in enumerate(self.machine.levels) if level.parts > 1]
        if self.full_nodes == 0:  # part of one node: in one step
            return [((self.ranks, levels[0][1]),)] if self.ranks > 1 else [()]
        if not levels:
            return [()]
        by_level = tuple(levels)
        at_once = ((self.machine.ranks_per_node, levels[0][1]),)
        halves = tuple((prime, level) for parts, level in levels for prime in prime_factors(parts))
        return list(dict.fromkeys([by_level, at_once, halves]))

    def structures(self) -> dict[tuple[Any, ...], Parameters]:
        """What to look at, by kind: form, split between nodes and ring; split inside, stripe. Other numbers of nodes
        have the same kinds."""
        machine = self.machine
        several = self.full_nodes + bool(self.rest) > 1
        in_node = min(self.ranks, machine.ranks_per_node)
        nics = len({nic for nic in machine.network.binding})
        stripes = {1, in_node, min(nics, in_node)} if several else {1, in_node}
        result = {}
        for ((sizes, levels), (between, inside)), form in itertools.product(
            self.hierarchies().items(), self.forms
        ):
            rings = {1}
            nodes = self.full_nodes + bool(self.rest)
            if nodes > 2 and any(len(groups) == nodes for groups in sizes):
                rings.add(nodes)
            if not several and self.ranks > 2:
                rings.add(self.ranks)
            libraries = tuple(self.library_for(level, 0) or "" for level in levels)
            for stripe, ring in itertools.product(sorted(stripes), sorted(rings)):
                if ring > 1 and ring == nodes and len(sizes[0]) != nodes:
                    continue  # the same as with the nodes in one step
                kind = (form, between, ring > 1, inside, stripe)
                result[kind] = Parameters(sizes, self.ranks, libraries, stripe, ring, 1, form)
        return result

    def library_for(self, level: int, place: int) -> str | None:
        """The `place`-th best library at a level for a message of middling size, or None."""
        names = self.machine.libraries_at(self.machine.level_names[level])

        # A flat split between nodes also carries messages inside them.
        def cost(name: str) -> float:
            library = self.machine.libraries[name]
            at = library.at[self.machine.level_names[level]]
            wire = (
                self.machine.network.bandwidth[0] if level == 0 else self.machine.levels[level - 1].bandwidth
            )
            rate = min(wire * at.efficiency, at.bandwidth, at.duplex / 2, library.engine)
            return (at.latency + at.gap) * 1e-6 + 1e6 / (rate * 1e9)

        ranked = sorted(names, key=cost)
        return ranked[place] if place < len(ranked) else None

    # --- estimates and search ---

    def say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)

    def estimate(self, parameters: Parameters) -> _Estimate | None:
        try:
            empty = self.evaluate(parameters, 0.0, False).result
            full = self.evaluate(parameters, 1.0, False).result
        except (PlanError, ValueError):
            return None
        self.note(parameters, full.time)
        # A further chunk costs each rank's messages their gap once more.
        messages = 2 * full.transfers / max(1, self.ranks)
        gap = max(
            (at.gap for library in self.machine.libraries.values() for at in library.at.values()), default=0.0
        )
        return _Estimate(
            parameters, empty.time, full.time, full.bottleneck_load, min(empty.time, messages * gap * 1e-6)
        )

    def estimates(self) -> list[_Estimate]:
        """Of all structures; of many nodes' structures those that are promising on few. The best first."""
        structures = self.structures()
        if self.sample is not None:
            promising = self.sample.promising()
            structures = {kind: p for kind, p in structures.items() if kind in promising}
        found = []
        for number, parameters in enumerate(structures.values(), 1):
            self.say(f"structure {number} of {len(structures)} on {self.full_nodes or 1} nodes")
            if (estimate := self.estimate(parameters)) is not None:
                found.append(estimate)
        return sorted(found, key=_Estimate.best)

    def promising(self) -> set[tuple[Any, ...]]:
        """The kinds of structures that go on to more nodes: of each form and split between nodes the best few."""
        kinds = {parameters: kind for kind, parameters in self.structures().items()}
        kept: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for estimate in self.estimates():
            kind = kinds[estimate.parameters]
            same = kept.setdefault(kind[:3], [])
            if len(same) < KEPT:
                same.append(kind)
        return {kind for same in kept.values() for kind in same}

    def note(self, parameters: Parameters, time: float) -> float:
        self.tried[parameters] = time
        if self.best is None or time < self.tried[self.best]:
            self.best = parameters
        return time

    def time(self, parameters: Parameters) -> float:
        if parameters not in self.tried:
            self.say(f"plan {len(self.tried) + 1}")
            try:
                found = self.evaluate(parameters, 1.0, False)
                self.note(parameters, float(found.result.time))
                if found.planned == self.ranks:
                    self.whole.add(parameters)
            except (PlanError, ValueError):
                self.tried[parameters] = math.inf
        return self.tried[parameters]

    def climb(self, parameters: Parameters) -> Parameters:
        """Doubles and halves the depth while that helps."""
        best = parameters
        for factor in (2, 0.5):
            while True:
                depth = int(best.depth * factor)
                if not 1 <= depth <= DEPTHS[-1]:
                    break
                other = replace(best, depth=depth)
                if self.time(other) >= self.time(best) * (1 - 1e-3):
                    break
                best = other
        return best

    def search(self, shortlist: int) -> list[_Estimate]:
        """Fills `tried`. What it returns are the estimates that it began with."""
        ranked = self.estimates()
        if not ranked:
            raise ParameterError(f"no plan fits machine '{self.machine.name}' and its libraries")
        short = [replace(e.parameters, depth=min(DEPTHS, key=e.at)) for e in ranked[:shortlist]]
        assert self.best is not None
        fastest = self.tried[self.best]
        loads = {replace(e.parameters, depth=1): e.load for e in ranked}
        # What its busiest link needs is less than any plan of a structure takes.
        short = [p for p in short if loads[replace(p, depth=1)] < fastest]
        for parameters in sorted(short, key=self.time):
            assert self.best is not None
            if self.time(parameters) < NEAR * self.tried[self.best]:
                self.climb(parameters)
        self.vary()
        if self.ranks <= MIXED_RANKS:  # small messages may want another library at every level
            found = self.best
            levels = {(sizes, len(crossed)): crossed for sizes, crossed in self.hierarchies()}
            for p in short:
                crossed = levels[p.sizes, len(p.libraries)]
                second = tuple(self.library_for(k, 1) or self.library_for(k, 0) or "" for k in crossed)
                self.time(replace(p, libraries=second))
            if self.best != found:
                self.vary()
        return ranked

    def run(self, shortlist: int, size: float, limit: float | None) -> Choice:
        if self.ranks == 1:
            only = Parameters((), 1, ("",), form=self.forms[0])
            result = result_of(self.evaluate(only, 1.0, True), self.machine, self.machine.core(), size)
            return Choice(only, only.form, result.time, result, (), 1, 1, "one rank: nothing to send")
        if self.wide and self.sample is not None:
            estimated, simulated = len(self.sample.search(shortlist)), len(self.sample.tried)
            candidates = self.grown()
        else:
            estimated = len(self.search(shortlist))
            simulated = len(self.tried)
            candidates = sorted(
                (p for p in self.tried if self.tried[p] < math.inf), key=lambda p: self.tried[p]
            )
        assert candidates
        found: dict[Parameters, Any] = {}
        for parameters in candidates[:FINALISTS]:
            if parameters in self.whole:
                continue
            self.say(f"exactly: {parameters.describe()}")
            found[parameters] = self.evaluate(parameters, 1.0, True)
            self.tried[parameters] = found[parameters].result.time
        best = min(candidates[:FINALISTS], key=lambda p: self.tried[p])
        raw = found[best] if best in found else self.evaluate(best, 1.0, True)
        return self.choice(best, raw, estimated, simulated, size, limit)

    def grown(self) -> list[Parameters]:
        """The best of the sample, on all nodes."""
        assert self.sample is not None
        kinds = {parameters: kind for kind, parameters in self.sample.structures().items()}
        here, found = self.structures(), []
        for p in sorted(self.sample.tried, key=lambda p: self.sample.tried[p]):  # type: ignore[union-attr]
            kind = kinds.get(replace(p, depth=1))
            if kind in here and math.isfinite(self.sample.tried[p]):
                found.append(replace(here[kind], depth=p.depth))
        return found[:FINALISTS]

    def vary(self) -> None:
        """Other libraries, level by level, and weighted stripes, on the best so far."""
        best = self.best
        assert best is not None
        names = self.machine.level_names
        crossed = next(
            levels
            for sizes, levels in self.hierarchies()
            if sizes == best.sizes and len(levels) == len(best.libraries)
        )
        for split in range(len(best.libraries)):
            for name in self.machine.libraries_at(names[crossed[split]]):
                if name == best.libraries[split]:
                    continue
                other = list(best.libraries)
                other[split] = name
                if self.time(replace(best, libraries=tuple(other))) < self.time(best):
                    best = replace(best, libraries=tuple(other))
        network = self.machine.network
        share = [network.bandwidth[nic] / network.binding.count(nic) for nic in network.binding]
        if best.stripe > 1 and len(set(share)) > 1:
            weights = tuple(share[rank % len(share)] for rank in range(self.ranks))
            weighted = replace(best, stripe_weights=weights)
            if self.time(weighted) < self.time(best):
                best = weighted
        self.climb(best)

    def choice(
        self, best: Parameters, raw: Any, estimated: int, simulated: int, size: float, limit: float | None
    ) -> Choice:
        result = result_of(raw, self.machine, self.machine.core(), size, limit)
        # One runner-up per structure: its best depth.
        others: dict[Parameters, Candidate] = {}
        for parameters, time in sorted(self.tried.items(), key=lambda item: item[1]):
            structure = replace(parameters, depth=1)
            if structure != replace(best, depth=1) and math.isfinite(time):
                others.setdefault(structure, Candidate(parameters, time))
        runners_up = tuple(others.values())[:5]
        share = result.bottleneck_load / result.time if result.time > 0 else 0.0
        why = (
            f"{estimated} structures estimated, {simulated} plans simulated. The busiest link, "
            f"{result.bottleneck}, is needed for {share:.0%} of the time."
        )
        if runners_up:
            why += f" The next best structure ({runners_up[0].parameters.describe()}) takes {runners_up[0].time / result.time:.2f} times as long."
        return Choice(best, best.form, result.time, result, runners_up, estimated, simulated, why)


def prime_factors(n: int) -> tuple[int, ...]:
    """Prime factors, largest first."""
    result, k = [], 2
    while n > 1:
        while n % k == 0:
            result.append(k)
            n //= k
        k += 1
    return tuple(reversed(result))


def factorings(n: int) -> list[tuple[int, ...]]:
    """Ways to split n nodes: at once, in two near-equal steps, and by prime factors."""
    result = [(n,), prime_factors(n)]
    near = [k for k in range(2, math.isqrt(n) + 1) if n % k == 0]
    if near:
        result.append((n // near[-1], near[-1]))
    return list(dict.fromkeys(result))
