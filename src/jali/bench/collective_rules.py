"""From times of algorithms to rules of collectives: which algorithm replaces jali's choice, for which sizes, and the file of the rules.

A cell is a collective at one size; its times are rounds in which all algorithms took turns, so that those of one round belong
together. What is compared is the ratio of such pairs, by its median and the order statistics around it. An algorithm may
replace the default where it is faster by GAIN at least, at 99.9 % confidence (FIRST); among those that may and that are not
distinguishable from the fastest, the one that its neighbours take as well. This choice is measured anew and stays where it is
faster again, at 95 % (AGAIN). Where nothing is faster there is no rule: the default remains.

Nothing here measures; times come from `jali.bench.collective_algorithms`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jali.bench.collectives import order_of_median
from jali.bench.reports import size_text, time_text

DEFAULT = "default"
FIRST, AGAIN = (
    0.001,
    0.05,
)  # how often noise alone may make one of two equal algorithms faster, or slower
GAIN = 1.02  # faster by less is not worth a rule; as of the tuner of kernels
LEAST_ROUNDS = 11  # fewer are never significant at FIRST

Times = Mapping[str, Sequence[float]]  # seconds of rounds, by algorithm


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one algorithm is as another: of the median pair, and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} .. {self.high:.2f})"


def ratio(times: Times, spec: str, other: str = DEFAULT, error: float = AGAIN) -> Ratio:
    """Speed of `spec` over `other`, round by round; outside of the interval is the median with probability `error` at most.

    Without enough rounds for that, the interval is everything.
    """
    pairs = np.sort(np.asarray(times[other]) / np.asarray(times[spec]))
    k = order_of_median(len(pairs), error / 2)
    middle = float(np.median(pairs))
    return Ratio(middle, 0.0, math.inf) if k is None else Ratio(middle, float(pairs[k]), float(pairs[-1 - k]))


def possible_winners(times: Times) -> dict[str, float]:
    """The algorithms that may replace the default in a cell, with their median times; empty where the default stays.

    Those that are faster than the default beyond noise, but for what is slower than the fastest of them beyond noise.
    """
    faster = [w for w in times if w != DEFAULT and ratio(times, w, error=FIRST).low > GAIN]
    if not faster:
        return {}
    medians = {spec: float(np.median(times[spec])) for spec in faster}
    best = min(faster, key=lambda spec: medians[spec])
    return {spec: medians[spec] for spec in faster if spec == best or ratio(times, spec, best).high >= 1}


@dataclass(frozen=True)
class Stretch:
    """Neighbouring sizes (bytes, as measured) that take one algorithm."""

    spec: str
    sizes: tuple[int, ...]


def stretches(cells: Sequence[tuple[int, Times]]) -> list[Stretch]:
    """The sizes of one collective, in their order, in as few stretches as winners allow; sizes where the default stays are in none."""
    found: list[Stretch] = []
    sizes: list[int] = []
    common: dict[str, float] = {}  # algorithms that may win in all of `sizes`: product of medians

    def end() -> None:
        if sizes:
            found.append(Stretch(min(common, key=lambda spec: common[spec]), tuple(sizes)))
        sizes.clear()

    for size, times in cells:
        here = possible_winners(times)
        both = {spec: common[spec] * here[spec] for spec in common if spec in here} if sizes else {}
        if not both:
            end()
        common = both or here
        if here:
            sizes.append(size)
    end()
    return found


def without(found: Iterable[Stretch], slow: Iterable[int]) -> list[Stretch]:
    """Stretches without these sizes; one that loses some in its middle becomes two."""
    lost, left = set(slow), []
    for stretch in found:
        run: list[int] = []
        for size in (*stretch.sizes, None):
            if size is not None and size not in lost:
                run.append(size)
            elif run:
                left.append(replace(stretch, sizes=tuple(run)))
                run = []
    return left


@dataclass(frozen=True)
class Variant:
    """A kind of call whose sizes are measured: `type` is the core's name of the elements; `in_place` is None where a collective has
    no choice, and `persistent`, part of a graph, on hosts."""

    collective: str
    type: str
    in_place: bool | None
    persistent: bool | None = None

    def __str__(self) -> str:
        return (
            self.collective
            + (" in place" if self.in_place else "")
            + (" in a graph" if self.persistent else "")
        )


@dataclass(frozen=True)
class Rule:
    """An entry of the file: bytes from `least` to `most`. `type`, `in_place` and `persistent` are None where they are not conditions."""

    collective: str
    type: str | None
    in_place: bool | None
    persistent: bool | None
    least: int
    most: int
    spec: str
    why: str = ""


# Values of the conditions, None for those that are no conditions, and a variant with the sizes.
Said = tuple[str | None, bool | None, bool | None, Variant]


def rules_of(
    found: Mapping[Variant, Sequence[Stretch]],
    sizes: Mapping[Variant, Sequence[int]],
    why: Callable[[Variant, Stretch], str] = lambda variant, stretch: "",
) -> list[Rule]:
    """Rules for what was found among the `sizes` that were measured. Type or being in place are conditions only where they matter.

    A rule reaches from the smallest to the largest size of its stretch, ends included. Where the next size that was measured
    belongs to the next rule, the two meet at the geometric mean.
    """
    groups: dict[str, list[Variant]] = {}
    for variant in found:
        groups.setdefault(variant.collective, []).append(variant)
    rules = []
    for collective, variants in groups.items():
        said: list[Said] = [(v.type, v.in_place, v.persistent, v) for v in variants]
        for condition in (2, 1, 0):
            said = _folded(said, found, condition)
        for type_, in_place, persistent, variant in said:
            position = {size: number for number, size in enumerate(sorted(sizes[variant]))}
            ordered = sorted(found[variant], key=lambda s: s.sizes)
            bounds = [[s.sizes[0], s.sizes[-1]] for s in ordered]
            for before, after in itertools.pairwise(bounds):
                if position[after[0]] == position[before[1]] + 1:
                    before[1] = math.isqrt(before[1] * after[0])
                    after[0] = before[1] + 1
            for stretch, (least, most) in zip(ordered, bounds, strict=True):
                requested = (type_, in_place, persistent, least, most)
                rules.append(Rule(collective, *requested, stretch.spec, why(variant, stretch)))
    return rules


def _folded(said: list[Said], found: Mapping[Variant, Sequence[Stretch]], condition: int) -> list[Said]:
    """One rule for all values of a condition (0: type, 1: in place, 2: part of a graph) where several were measured and all agree."""
    groups: dict[object, list[Any]] = {}
    for entry in said:
        groups.setdefault((*entry[:condition], *entry[condition + 1 : 3]), []).append(entry)
    result: list[Any] = []
    for entries in groups.values():
        alike = all(list(found[entry[3]]) == list(found[entries[0][3]]) for entry in entries)
        of_one_type = condition == 0 and len({entry[0] for entry in said}) == 1
        if alike and (len(entries) > 1 or of_one_type):
            result.append((*entries[0][:condition], None, *entries[0][condition + 1 :]))
        else:
            result += entries
    return result


@dataclass(frozen=True)
class Library:
    """The library with collectives of its own where rules are made: that of the devices' vendor, or MPI's; and how
    its name begins in algorithms."""

    name: str
    version: str
    in_specs: str


COMBINING = ("all_reduce", "reduce", "reduce_scatter")
WITH_COUNTS = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


def rules_text(
    rules: Iterable[Rule],
    conditions: Mapping[str, object],
    comments: Iterable[str],
    library: Library | None = None,
) -> str:
    """The file: comments, then rules, each with the conditions (memory, ranks, ...) that all of them were measured under.

    Rules whose algorithm uses the `library` require the first two numbers of its version.
    """
    lines = [f"# {line}".rstrip() for line in comments] + ["version = 1"]
    for rule in rules:
        requested: dict[str, object] = {
            "collective": rule.collective,
            **conditions,
            "bytes": _bytes(rule.least, rule.most),
        }
        if rule.type is not None:
            requested["type"] = rule.type
        for name in ("in_place", "persistent"):
            if (value := getattr(rule, name)) is not None:
                requested[name] = value
        if rule.collective in COMBINING:
            requested["reproducible"] = False
        if rule.collective in WITH_COUNTS:
            requested["even"] = True
        takes = re.split(" by | and ", str(rule.spec))  # whose messages
        if library is not None and any(name.startswith(library.in_specs) for name in takes):
            requested[library.name] = ".".join(library.version.split(".")[:2])
        lines += ["", "[[rule]]", *(f"{key} = {_toml(value)}" for key, value in requested.items())]
        lines.append(f"algorithms = [{_toml(rule.spec)}]")
        if rule.why:
            lines.append(f"why = {_toml(rule.why)}")
    return "\n".join(lines) + "\n"


def _bytes(least: int, most: int) -> object:
    first, last = (size_text(n) if n and n % 1024 == 0 else str(n) for n in (least, most))
    return f"{first}..{last}" if least < most else least if first == str(least) else first


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(c for c in str(value) if c.isprintable() and c not in '"\\') + '"'


def gain_text(measured: Iterable[Times]) -> str:
    """How much faster than the default fresh rounds of some cells were, which are of the algorithms DEFAULT and "rules"."""
    pairs = [ratio(times, "rules") for times in measured]
    low, high = min(p.value for p in pairs), max(p.value for p in pairs)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def cell_text(variant: Variant, size: str, times: Times, specs: int) -> str:
    """A line about a cell as it was measured first: the default, the fastest other algorithm, and what may replace the default."""
    medians = {spec: float(np.median(rounds)) for spec, rounds in times.items() if spec != DEFAULT}
    words = [f"{variant!s:32s}{size:>9s}  {time_text(float(np.median(times[DEFAULT]))):>10s}"]
    if medians:
        best = min(medians, key=lambda spec: medians[spec])
        words.append(f"{best} {time_text(medians[best])}, ratio {ratio(times, best, error=FIRST)}")
    words.append(f"{len(times[DEFAULT])} rounds, {len(medians)} of {specs} algorithms")
    winners = possible_winners(times)
    if winners:
        words.append("may be replaced by " + ", ".join(winners))
    return "  ".join(words)
