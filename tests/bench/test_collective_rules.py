"""Rules of collectives from made-up times: who wins, where stretches end, what a rule asks for, and that noise makes none."""

from __future__ import annotations

import tomllib
from math import comb

import numpy as np
import pytest

from jali import _core
from jali.bench.collective_rules import (
    AGAIN,
    DEFAULT,
    FIRST,
    LEAST_ROUNDS,
    Library,
    Rule,
    Stretch,
    Variant,
    possible_winners,
    ratio,
    rules_of,
    rules_text,
    stretches,
    without,
)
from jali.bench.collectives import order_of_median

ROUNDS = 20
PLAIN = Variant("gather", "fp32", None)


def times(
    default: float = 1.0, spread: float = 0.0, rounds: int = ROUNDS, **specs: float
) -> dict[str, list[float]]:
    """Rounds that all algorithms share: a slow one is slow for all, as on a busy machine."""
    busy = 1 + spread * np.abs(np.random.default_rng(3).normal(size=rounds))
    return {spec: list(seconds * busy) for spec, seconds in {DEFAULT: default, **specs}.items()}


@pytest.mark.parametrize("error", [FIRST, AGAIN])
@pytest.mark.parametrize("rounds", [LEAST_ROUNDS, 20, 57])
def test_intervals_are_as_wide_as_they_say_and_no_wider_than_they_need(rounds: int, error: float) -> None:
    found = ratio(
        {DEFAULT: [float(k + 1) for k in range(rounds)], "ring": [1.0] * rounds}, "ring", error=error
    )
    k = round(found.low) - 1
    assert round(found.high) == rounds - k
    assert found.value == (rounds + 1) / 2

    def misses(k: int) -> float:
        return 2 * sum(comb(rounds, j) for j in range(k + 1)) / 2.0**rounds

    assert misses(k) <= error < misses(k + 1)


def test_too_few_rounds_say_nothing() -> None:
    assert order_of_median(LEAST_ROUNDS - 1, FIRST / 2) is None
    assert order_of_median(LEAST_ROUNDS, FIRST / 2) == 0
    assert possible_winners(times(ring=0.01, rounds=LEAST_ROUNDS - 1)) == {}
    assert list(possible_winners(times(ring=0.01, rounds=LEAST_ROUNDS))) == ["ring"]


def test_the_fastest_wins_if_it_is_faster_than_the_default() -> None:
    assert list(possible_winners(times(ring=0.8, chain=0.5, direct=2.0))) == ["chain"]
    assert possible_winners(times(ring=1.0, chain=1.2)) == {}  # ties keep the default
    assert possible_winners(times(ring=0.985)) == {}  # and so does what is hardly faster
    assert possible_winners(times()) == {}


def test_a_busy_machine_hides_no_winner_since_rounds_are_compared() -> None:
    cell = times(ring=0.9, spread=5.0)
    assert np.std(cell["ring"]) > 1
    assert list(possible_winners(cell)) == ["ring"]


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5])
def test_noise_makes_no_rules(sigma: float) -> None:
    """Ten times as many cells as are measured by default, of eight equal algorithms."""
    random = np.random.default_rng(7)
    specs = [DEFAULT, *"abcdefgh"]
    for _ in range(720):
        noisy = np.exp(sigma * random.normal(size=(len(specs), ROUNDS)))
        assert possible_winners({spec: list(row) for spec, row in zip(specs, noisy, strict=True)}) == {}


def test_what_is_faster_is_found_within_noise() -> None:
    random = np.random.default_rng(8)
    found = 0
    for _ in range(100):
        noisy = np.exp(0.1 * random.normal(size=(3, ROUNDS)))
        noisy[1] *= 0.7
        winners = possible_winners(dict(zip([DEFAULT, "ring", "chain"], map(list, noisy), strict=True)))
        assert "chain" not in winners
        found += "ring" in winners
    assert found > 95


def test_neighbours_with_the_same_winner_are_one_stretch() -> None:
    cells = [
        (8, times()),
        (64, times(ring=0.5, chain=0.9)),
        (512, times(ring=0.6)),
        (4096, times(ring=0.5, chain=0.4)),
        (32768, times(chain=0.4)),
        (262144, times(ring=1.5)),
        (2097152, times(ring=0.5)),
    ]
    assert stretches(cells) == [
        Stretch("ring", (64, 512)),
        Stretch("chain", (4096, 32768)),
        Stretch("ring", (2097152,)),
    ]
    assert stretches([(8, times()), (64, times(ring=1.0))]) == []


def test_algorithms_that_nothing_tells_apart_make_one_stretch() -> None:
    """Of two that are as fast as each other here, the one that wins next door."""
    random = np.random.default_rng(9)

    def cell(**specs: float) -> dict[str, list[float]]:
        return {
            spec: list(seconds * np.exp(0.02 * random.normal(size=ROUNDS)))
            for spec, seconds in {DEFAULT: 1.0, **specs}.items()
        }

    for ring, chain in ((0.5, 0.501), (0.501, 0.5)):
        cells = [
            (8, cell(ring=ring, chain=chain)),
            (64, cell(chain=0.5, ring=0.9)),
            (512, cell(ring=0.5, chain=0.5)),
        ]
        assert stretches(cells) == [Stretch("chain", (8, 64, 512))]


def test_what_is_lost_splits_stretches() -> None:
    found = [Stretch("ring", (8, 64, 512, 4096)), Stretch("chain", (32768,))]
    assert without(found, []) == found
    assert without(found, [64]) == [Stretch("ring", (8,)), Stretch("ring", (512, 4096)), found[1]]
    assert without(found, [8, 4096, 32768]) == [Stretch("ring", (64, 512))]
    assert without(found, [8, 64, 512, 4096, 32768]) == []


def ranges(found: list[Stretch], sizes: list[int]) -> list[tuple[str, int, int]]:
    return [(rule.spec, rule.least, rule.most) for rule in rules_of({PLAIN: found}, {PLAIN: sizes})]


def test_rules_reach_as_far_as_was_measured_and_meet_in_the_middle() -> None:
    sizes = [8, 64, 512, 4096, 32768]
    assert ranges([Stretch("ring", (64, 512))], sizes) == [("ring", 64, 512)]
    assert ranges([Stretch("ring", (8,))], sizes) == [("ring", 8, 8)]
    met = ranges([Stretch("ring", (8, 64)), Stretch("chain", (512,)), Stretch("ring", (32768,))], sizes)
    assert met == [("ring", 8, 181), ("chain", 182, 512), ("ring", 32768, 32768)]


def test_what_changes_nothing_is_no_condition() -> None:
    def conditions_of(found: dict[tuple[str, bool | None], str]) -> set[tuple[str | None, bool | None, str]]:
        of = {Variant("reduce", t, p): [Stretch(spec, (8,))] for (t, p), spec in found.items()}
        return {(r.type, r.in_place, r.spec) for r in rules_of(of, {variant: [8] for variant in of})}

    both = {("fp32", False): "ring", ("fp32", True): "ring", ("fp64", False): "ring", ("fp64", True): "ring"}
    assert conditions_of(both) == {(None, None, "ring")}
    assert conditions_of({("fp32", False): "ring"}) == {(None, False, "ring")}
    assert conditions_of({("fp32", False): "ring", ("fp32", True): "chain"}) == {
        (None, False, "ring"),
        (None, True, "chain"),
    }
    assert conditions_of(both | {("fp64", True): "chain"}) == {
        ("fp32", None, "ring"),
        ("fp64", False, "ring"),
        ("fp64", True, "chain"),
    }
    assert conditions_of({("fp32", False): "ring", ("fp64", False): "chain"}) == {
        ("fp32", False, "ring"),
        ("fp64", False, "chain"),
    }


def test_graphs_are_conditions_where_they_differ() -> None:
    def conditions_of(
        found: dict[tuple[bool, bool | None], str],
    ) -> set[tuple[bool | None, bool | None, str]]:
        of = {Variant("reduce", "fp32", p, g): [Stretch(spec, (8,))] for (p, g), spec in found.items()}
        return {(r.in_place, r.persistent, r.spec) for r in rules_of(of, {variant: [8] for variant in of})}

    assert conditions_of({(False, None): "ring"}) == {(False, None, "ring")}
    assert conditions_of({(False, False): "ring"}) == {(False, False, "ring")}
    assert conditions_of({(False, False): "ring", (False, True): "ring"}) == {(False, None, "ring")}
    both = {(p, g): "chain" if g else "ring" for p in (False, True) for g in (False, True)}
    assert conditions_of(both) == {(None, False, "ring"), (None, True, "chain")}
    text = rules_text([Rule("all_reduce", None, None, True, 8, 8, "ring")], {"memory": "cuda"}, [])
    assert _core.check_rules(text, "mine.toml") == 1
    assert tomllib.loads(text)["rule"][0]["persistent"] is True


def test_rules_by_a_library_ask_for_its_version() -> None:
    specs = ("nccl", "nccl-windows", "ring by nccl", "ring", "ring by copy-engine")
    rules = [Rule("all_gather", None, None, None, 8, 8, spec) for spec in specs]
    text = rules_text(rules, {"memory": "cuda"}, [], Library("nccl", "2.28.3", "nccl"))
    assert _core.check_rules(text, "mine.toml") == 5
    assert [rule.get("nccl") for rule in tomllib.loads(text)["rule"]] == ["2.28"] * 3 + [None] * 2


LIMITS = {
    (8, 8): 8,
    (8, 181): "8..181",
    (1024, 1 << 20): "1 KiB..1 MiB",
    (1 << 30, 1 << 30): "1 GiB",
    (0, 3): "0..3",
}


def row(limits: tuple[int, int]) -> Rule:
    return Rule("broadcast", None, None, None, *limits, "chain")


def test_the_file_is_read_and_holds_the_conditions() -> None:
    rules = [
        Rule("all_reduce", "fp64", False, None, 8, 181, "ring", 'twice as "fast"\n\\'),
        Rule("all_to_all", None, None, None, 512, 512, "pairwise by copy-engine"),
        Rule("broadcast", None, None, None, 1, 9, "chain"),
    ]
    conditions = {"memory": "cuda", "ranks": 4, "hosts": 1, "ranks_per_host": 4}
    text = rules_text(rules, conditions, ["Measured.", "", "processor: a"])
    assert _core.check_rules(text, "mine.toml") == 3
    assert text.startswith("# Measured.\n#\n# processor: a\nversion = 1\n")
    first, second, third = tomllib.loads(text)["rule"]
    assert first == {
        "collective": "all_reduce",
        **conditions,
        "bytes": "8..181",
        "type": "fp64",
        "in_place": False,
        "reproducible": False,
        "algorithms": ["ring"],
        "why": "twice as fast",
    }
    assert (second["bytes"], second["even"], second["algorithms"]) == (512, True, ["pairwise by copy-engine"])
    assert [r["bytes"] for r in tomllib.loads(rules_text(map(row, LIMITS), {}, []))["rule"]] == list(
        LIMITS.values()
    )
    assert _core.check_rules(rules_text(map(row, LIMITS), {}, []), "mine.toml") == len(LIMITS)
    assert not {"even", "reproducible", "in_place", "type", "why"} & third.keys()
    assert _core.check_rules(rules_text([], conditions, []), "mine.toml") == 0
