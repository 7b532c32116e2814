"""Rules by which collectives choose their algorithms: what a file may say, which rule is taken, and that ranks have the same."""

from __future__ import annotations

import os
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jali
from jali import _core, comm, settings
from jali._core import CollectiveCall
from jali.comm.algorithms import COLLECTIVES, names
from jali.errors import ParameterError

HEAD = "version = 1\n"
RULE = HEAD + "[[rule]]\n"

WRONG = [  # a file, and what is said of it
    ("", "line 1: rules begin with version = 1"),
    ("version = 2\n", "line 1: version = 1 is the only one"),
    ("version = true\n", "line 1: version = 1 is the only one"),
    (HEAD + "algorithms = ['ring']\n", "line 2: 'algorithms' stands in no rule"),
    (HEAD + "[rule]\nalgorithms = ['ring']\n", "line 2: a table 'rule'; there are only rules"),
    (HEAD + "[[rules]]\nalgorithms = ['ring']\n", "line 2: a table 'rules'; there are only rules"),
    (RULE + "ways = ['ring']\n", "line 3: 'ways' is called 'algorithms': algorithms = [\"ring\"]"),
    (RULE + "bytes = 8\n", "line 2: a rule without algorithms"),
    (RULE + "algorithms = []\n", "line 3: algorithms is an empty list"),
    (RULE + "algorithms = 3\n", "line 3: algorithms is a text in quotes"),
    (RULE + "algorithms = ['ring', 'ring']\n", "line 3: algorithms: 'ring' twice"),
    (RULE + "algorithms = ['rings']\n", "line 3: algorithms: there is no algorithm 'rings'; there are alpha, beta, binomial, bruck"),
    (RULE + "algorithms = ['ring by pigeon']\n", "line 3: algorithms: 'pigeon' carries no messages; array-write, copy-engine"),
    (RULE + "algorithms = ['ring by ']\n", "line 3: algorithms: 'ring by ' does not say by which transport; there are array-write, copy-engine"),
    (RULE + "memory = 'gpu'\nalgorithms = ['ring']\n", "line 3: memory: there is no memory 'gpu'; there is cuda, device, hip, host"),
    (RULE + "memory = ['host', 'Cuda']\nalgorithms = ['ring']\n", "line 3: memory: there is no memory 'Cuda'"),
    (RULE + "mpich = '5.x'\nalgorithms = ['ring']\n", 'line 3: mpich is a version or a range'),
    (RULE + "openmpi = '99999999999..'\nalgorithms = ['ring']\n", 'line 3: openmpi is a version or a range'),
    (RULE + "algorithms = ['pipelined by nccl']\n", "line 3: algorithms: 'pipelined' is for hosts; 'nccl' carries messages"),
    (RULE + "algorithms = ['slices by ']\n", "line 3: algorithms: 'slices by ' does not say by which transport; there are array-write,"),
    (RULE + "algorithms = ['slices by shm and ']\n", "line 3: algorithms: 'slices by shm and ' does not say by which transport"),
    (RULE + "algorithms = ['slices by shm and pigeon']\n", "line 3: algorithms: 'pigeon' carries no messages; array-write"),
    (RULE + "algorithms = ['slices by shm and nccl']\n", "line 3: algorithms: of 'shm' and 'nccl' one carries messages between devices"),
    (RULE + "algorithms = ['ring by remote-write and nccl']\n", "line 3: algorithms: 'ring' does not tell messages inside hosts from"),
    (RULE + "algorithms = ['flat by mpi and mpi']\n", "line 3: algorithms: 'flat' does not tell messages inside hosts from"),
    (RULE + "algorithms = ['slice']\n", "line 3: algorithms: there is no algorithm 'slice'; there are alpha, beta, binomial, bruck"),
    (RULE + "collective = 'gather'\nalgorithms = ['two_level']\n", "line 4: algorithms: 'two_level' is no algorithm of gather"),
    (RULE + "collective = ['gather', 'reduce']\nalgorithms = ['delta']\n", "line 4: algorithms: 'delta' is no algorithm of gather, reduce"),
    (RULE + "algorithms = ['nccl by nccl']\n", "line 3: algorithms: there is no algorithm 'nccl'"),
    (
        RULE + "collective = 'broadcast'\nalgorithms = ['bruck']\n",
        "line 4: algorithms: 'bruck' is no algorithm of broadcast",
    ),
    (RULE + "collective = 'all_reduces'\nalgorithms = ['ring']\n", "line 3: collective: "),
    (RULE + "type = 'fp8'\nalgorithms = ['ring']\n", "line 3: type: "),
    (RULE + "operation = 'plus'\nalgorithms = ['ring']\n", "line 3: operation: "),
    (RULE + "bytes = '64 KB..'\nalgorithms = ['ring']\n", 'line 3: bytes is a number or a range'),
    (RULE + "bytes = '..'\nalgorithms = ['ring']\n", "line 3: bytes is a number or a range"),
    (RULE + "bytes = -1\nalgorithms = ['ring']\n", "line 3: bytes is a number or a range"),
    (RULE + "bytes = 1.5\nalgorithms = ['ring']\n", "line 3: bytes is a number or a range"),
    (RULE + "bytes = '9999999999 GiB..'\nalgorithms = ['ring']\n", "line 3: bytes is a number or a range"),
    (RULE + "bytes = '8..4'\nalgorithms = ['ring']\n", "line 3: bytes: nothing is in \"8..4\""),
    (RULE + "ranks = '2..4..8'\nalgorithms = ['ring']\n", "line 3: ranks is a number or a range"),
    (RULE + "ranks = '2..4 KiB'\nalgorithms = ['ring']\n", 'line 3: ranks is a number or a range such as "3..", "..8" or'),
    (RULE + "power_of_two = 2\nalgorithms = ['ring']\n", "line 3: power_of_two is true or false"),
    (RULE + "elements = '8 KiB'\nalgorithms = ['ring']\n", "line 3: elements is a number or a range"),
    (RULE + "in_place = 'yes'\nalgorithms = ['ring']\n", "line 3: in_place is true or false"),
    (RULE + "nccl = 2.27\nalgorithms = ['ring']\n", 'line 3: nccl is a version or a range of them such as "2.27.."'),
    (RULE + "nccl = '..'\nalgorithms = ['ring']\n", 'line 3: nccl is a version or a range'),
    (RULE + "nccl = '>=2.27'\nalgorithms = ['ring']\n", 'line 3: nccl is a version or a range'),
    (RULE + "nccl = '2..3..4'\nalgorithms = ['ring']\n", 'line 3: nccl is a version or a range'),
    (RULE + "nccl = '2.'\nalgorithms = ['ring']\n", 'line 3: nccl is a version or a range'),
    (RULE + "rccl = '2.-1'\nalgorithms = ['ring']\n", 'line 3: rccl is a version or a range'),
    (RULE + "rccl = '2.29..2.28.9'\nalgorithms = ['ring']\n", 'line 3: rccl: nothing is in "2.29..2.28.9"'),
    (RULE + "copy-engine = '2'\nalgorithms = ['ring']\n", "line 3: no condition 'copy-engine'"),
    (RULE + "host-staged = '2'\nalgorithms = ['ring']\n", "line 3: no condition 'host-staged'"),
    (RULE + "size = 8\nalgorithms = ['ring']\n", "line 3: no condition 'size'; there are collective, type"),
    (RULE + "algorithms = ['ring']\nalgorithms = ['chain']\n", "line 4: 'algorithms' was said in line 3 already"),
    (RULE + "algorithms = ['ring'\n", "line 4: an array without an end"),
    (RULE + "algorithms = ['ring\n", "line 3: a string without an end"),
    (RULE + "algorithms = [\"ri\\ng\"]\n", "line 3: algorithms: there is no algorithm 'ri\ng'"),
    (RULE + "algorithms = [\"ri\\u0041\"]\n", "line 3: '\\u' in a string"),
    (RULE + "algorithms = ring\n", "line 3: 'ring' is neither a string in quotes"),
    (RULE + "algorithms = ['ring'] bytes = 8\n", "line 3: more than one thing on a line"),
    (RULE + "algorithms ['ring']\n", "line 3: 'algorithms' lacks its '='"),
    (RULE + "a.b = 3\n", "line 3: dotted keys are not read here"),
    (RULE + "algorithms = {a = 3}\n", "line 3: inline tables are not read here"),
    (RULE + 'why = """\nx"""\n', "line 3: strings of several lines are not read here"),
    (HEAD + "[[rule]\n", "line 2: the name of a table ends with ']'"),
    (HEAD + "[rule.more]\n", "line 2: tables within tables are not read here"),
    (HEAD + "version = 1\n", "line 2: 'version' was said in line 1 already"),
    ("= 3\n", "line 1: expected a key, not '= 3'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_wrong_is_said_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(ParameterError, match="^" + re.escape("mine.toml, " + said)):
        _core.check_rules(text, "mine.toml")


def test_rules_that_come_with_jali_are_toml() -> None:
    tables = tomllib.loads(_core.shipped_rules())
    assert tables["version"] == 1
    assert len(tables["rule"]) == _core.check_rules(_core.shipped_rules(), "shipped") > 20


def test_every_call_finds_a_way_of_its_collective_by_the_rules_that_come_with_jali() -> None:
    random_ = random.Random(2)
    specs: dict[str, set[str]] = {}
    for _ in range(4000):
        collective = random_.choice(COLLECTIVES)
        hosts = [random_.randrange(1, 9) for _ in range(random_.choice([1, 1, 2, 5]))]
        spec = chosen(collective, int(2 ** random_.uniform(0, 27)), hosts, in_place=random_.random() < 0.5)
        assert spec in names(collective)
        specs.setdefault(collective, set()).add(spec)
    assert min(map(len, specs.values())) >= 2  # of few bytes and many, of few ranks and many
    assert sum(map(len, specs.values())) > 20


def test_what_is_read_means_the_same_to_every_reader_of_toml() -> None:
    """Texts that were changed at random: refused here, or accepted by Python's reader as well."""
    words = random.Random(5)
    shipped = _core.shipped_rules()
    read = refused = 0
    for _ in range(3000):
        text = list(shipped[: words.randrange(600, 2400)])
        for _ in range(words.randrange(1, 4)):
            at = words.randrange(len(text))
            text[at : at + words.randrange(3)] = words.choice(
                ["", "\n", '"', "'", "[", "]", "=", "#", ".", "1", "a", ","]
            )
        mutant = "".join(text)
        try:
            count = _core.check_rules(mutant, "mutant")
        except ParameterError:
            refused += 1
            continue
        assert len(tomllib.loads(mutant).get("rule", [])) == count
        read += 1
    assert min(read, refused) > 200


@pytest.fixture
def use_rules(tmp_path: Path, use_settings: Callable[..., None]) -> Callable[[str], None]:
    def use(text: str, number: list[int] = [0]) -> None:  # noqa: B006
        number[0] += 1
        file = tmp_path / f"rules{number[0]}.toml"
        file.write_text(HEAD + text)
        use_settings(collective_rules=str(file))

    return use


def chosen(collective: str, count: int | list[int], hosts: list[int], **more: Any) -> str:
    call = CollectiveCall(collective, **{"type": "fp64", "counts": count, **more})
    return str(_core.choose_on_host(call, hosts).name)


CONDITIONS = [  # a condition, calls that it holds for, and calls that it does not
    ("collective = 'broadcast'", [("broadcast", 8, [2])], [("reduce", 8, [2])]),
    ("collective = ['reduce', 'broadcast']", [("reduce", 8, [2])], [("all_reduce", 8, [2])]),
    ("bytes = '80..160'", [("reduce", 10, [2]), ("reduce", 20, [2])], [("reduce", 9, [2]), ("reduce", 21, [2])]),
    ("bytes = 80", [("reduce", 10, [2])], [("reduce", 11, [2])]),
    ("bytes = '1 KiB..'", [("reduce", 128, [2])], [("reduce", 127, [2])]),
    ("bytes = '..1KiB'", [("gather", 32, [4])], [("gather", 33, [4])]),  # of all ranks
    ("total = '320..'", [("reduce", 10, [4])], [("reduce", 10, [3])]),
    ("part = '41..'", [("gather", 8, [3])], [("gather", 5, [3])]),  # bytes over ranks
    ("elements = '9..'", [("reduce", 9, [3]), ("gather", 9, [3])], [("reduce", 8, [3]), ("gather", 8, [3])]),
    ("elements = 18", [("gather", [9, 3, 6], [3])], [("gather", [9, 9, 9], [3])]),  # of all where they differ
    ("few_elements = true", [("reduce", 3, [7]), ("reduce", 3, [4])], [("reduce", 4, [4]), ("reduce", 3, [3])]),
    ("power_of_two = true", [("reduce", 8, [2]), ("reduce", 8, [3, 1]), ("reduce", 8, [1])], [("reduce", 8, [3])]),
    ("power_of_two = false", [("reduce", 8, [3])], [("reduce", 8, [4])]),
    ("ranks = 3", [("reduce", 8, [2, 1])], [("reduce", 8, [2, 2])]),
    ("hosts = '2..3'", [("reduce", 8, [2, 1])], [("reduce", 8, [3]), ("reduce", 8, [1, 1, 1, 1])]),
    ("ranks_per_host = '2..'", [("reduce", 8, [1, 2])], [("reduce", 8, [1, 1])]),
    ("memory = ['host', 'hip']", [("reduce", 8, [2])], []),
    ("memory = 'device'", [], [("reduce", 8, [2])]),
    ("nccl = '0..'", [], [("reduce", 8, [2])]),  # hosts have none
    ("mpich = '0..'", [], [("reduce", 8, [2])]),  # this process neither
]  # fmt: skip


@pytest.mark.parametrize(("condition", "true", "false"), CONDITIONS)
def test_rules_hold_where_all_they_ask_is_so(condition, true, false, use_rules) -> None:
    """Among so few ranks and bytes jali's own rules do not name this way."""
    use_rules(f"[[rule]]\n{condition}\nalgorithms = ['chain', 'binomial']\n")
    for calls, there in ((true, True), (false, False)):
        for collective, count, hosts in calls:
            assert (chosen(collective, count, hosts) in ("chain", "binomial")) == there


@pytest.mark.parametrize(
    ("condition", "matching", "other"),
    [
        ("type = ['fp32', 'int8']", {"type": "int8"}, {"type": "fp64"}),
        ("operation = 'user'", {"operation": "user"}, {"operation": "sum"}),
        ("in_place = true", {"in_place": True}, {"in_place": False}),
        ("reproducible = false", {"reproducible": False}, {"reproducible": True}),
    ],
)
def test_rules_ask_about_types_operations_and_flags(condition, matching, other, use_rules) -> None:
    use_rules(f"[[rule]]\n{condition}\nalgorithms = ['pipelined']\n")
    assert chosen("reduce", 8, [2], **matching) == "pipelined"
    assert chosen("reduce", 8, [2], **other) == "direct"


def test_rules_ask_whether_counts_are_even(use_rules) -> None:
    use_rules("[[rule]]\neven = false\nalgorithms = ['ring']\n")
    for counts, spec in (([4], "direct"), ([4, 4], "direct"), ([4, 5], "ring")):
        choice = _core.choose_on_host(CollectiveCall("all_gather", "fp64", counts), [2])
        assert choice.name == spec


def test_the_mpi_librarys_own_is_a_name_of_rules(use_rules) -> None:
    use_rules("[[rule]]\nalgorithms = ['mpi', 'chain']\n")
    choice = _core.choose_on_host(CollectiveCall("reduce", "fp64", 8), [2])
    assert choice.name == "chain"
    assert "; not mpi: the ranks are not MPI's" in choice.why


def test_the_first_rule_that_holds_says_why(use_rules) -> None:
    use_rules(
        "[[rule]]\nranks = 2\nalgorithms = ['nccl', 'chain']\nwhy = 'measured on Sunday'\n\n[[rule]]\nalgorithms = ['pipelined']\n"
    )
    choice = _core.choose_on_host(CollectiveCall("reduce", "fp64", 8), [2])
    assert (choice.name, choice.transport) == ("chain", "")
    assert re.fullmatch(
        r"line 2 of \S+/rules\d+.toml: measured on Sunday; not nccl: 'nccl' is for devices", choice.why
    )
    choice = _core.choose_on_host(CollectiveCall("reduce", "fp64", 8), [3])
    assert re.match(r"line 7 of \S+/rules\d+.toml$", choice.why)
    assert chosen("all_to_all", 8, [3]) == "direct"  # neither way is one of it: by jali's own


def sums(count: int) -> tuple[str, np.ndarray]:
    c = comm.current()
    x = np.arange(count, dtype=np.float64) * (c.rank + 1)
    call = CollectiveCall("all_reduce", x.dtype, count, 0, "sum", False, None, False)
    return c.collectives.algorithm_of(call).name, c.all_reduce(x)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives_follow_a_file_of_rules(ranks, use_rules) -> None:
    use_rules("[[rule]]\nbytes = '100..'\nalgorithms = ['halving_doubling']\n")
    for count, spec in ((4, None), (13, "halving_doubling"), (1000, "halving_doubling")):
        for name, found in jali.virtual_ranks(ranks, sums, count):
            assert (name == "halving_doubling") == (spec is not None)
            assert np.array_equal(found, np.arange(count) * sum(range(1, ranks + 1)))


def test_a_named_algorithm_overrules_rules(use_rules, use_settings) -> None:
    use_rules("[[rule]]\nalgorithms = ['halving_doubling', 'chain']\n")

    def specs() -> list[tuple[str, str]]:
        there = comm.current().collectives
        calls = [
            CollectiveCall("all_reduce", np.dtype("f8"), 8, 0, "sum", False, spec, False)
            for spec in (None, "ring")
        ]
        return [(choice.name, choice.why) for choice in map(there.algorithm_of, calls)]

    (by_rules, by_name), *_ = jali.virtual_ranks(2, specs)
    assert by_rules[0] == "halving_doubling"
    assert by_name == ("ring", "asked for")
    use_settings(collective="two_step")
    (by_setting, by_name), *_ = jali.virtual_ranks(2, specs)
    assert (by_setting, by_name) == (("two_step", "JALI_COLLECTIVE"), ("ring", "asked for"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the rules of collectives, .* cannot be read"),
        ("a folder", "the rules of collectives, .*rules.toml, cannot be read: it is no file"),
        ("a pipe", "the rules of collectives, .*rules.toml, cannot be read: it is no file"),
        (RULE, "line 2: a rule without algorithms"),
    ],
)
def test_rules_that_cannot_be_read_are_an_error_where_they_are_named(text, said, tmp_path) -> None:
    file = tmp_path / "rules.toml"
    if text == "a folder":
        file.mkdir()
    elif text == "a pipe":
        os.mkfifo(file)
    elif text is not None:
        file.write_text(text)
    with pytest.raises(
        ParameterError, match=rf"^collective_rules={re.escape(str(file))} should be a file of rules: .*{said}"
    ):
        settings.changed(collective_rules=str(file))
