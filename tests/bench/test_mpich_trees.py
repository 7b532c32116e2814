"""Selection trees of MPICH as rules: the same choice for every call, by an interpreter of trees that shares nothing with the importer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import _core, settings
from jali.bench.mpich_trees import ALGORITHMS, COLLECTIVES, import_tree, text_of
from jali.errors import FileFormatError

JALIS = {of: name for name, of in COLLECTIVES.items()}


class Call:
    """A call of MPI as MPICH sees it, and the same of jali."""

    def __init__(self, words: random.Random) -> None:
        self.name = words.choice(list(COLLECTIVES))
        self.collective, self.even = COLLECTIVES[self.name]
        self.hosts = [words.randrange(1, 5)] * words.randrange(1, 5)
        self.ranks = p = sum(self.hosts)
        self.item, numpy_type = words.choice([(4, "f4"), (8, "i8"), (1, "u1")])
        self.op = words.choice(["sum", "max", "user"]) if "reduce" in self.name else "sum"
        self.reproducible = "reduce" in self.name and words.random() < 0.5
        self.in_place = self.name == "bcast" or words.random() < 0.3
        self.count = int(2 ** words.uniform(0, 22)) if words.random() < 0.6 else words.randrange(0, 20)
        counts: Any = self.count
        if self.even is False:
            n = p * p if self.collective == "all_to_all" else p
            counts = [words.randrange(0, 1000) for _ in range(n)]
            counts[0] = counts[-1] + 1  # differ, if there are several
            self.count = sum(counts)
        self.differ = self.even is not False or p > 1
        self.call = _core.CollectiveCall(
            self.collective, np.dtype(numpy_type), counts, 0, self.op, self.in_place, None, self.reproducible
        )

    def commutes(self) -> bool:
        return not (self.op == "user" and self.reproducible)

    def avg_msg_size(self) -> int:
        return self.count * self.item

    def total_msg_size(self) -> int:
        return self.count * self.item * (1 if self.even is False else self.ranks)


def holds(key: str, call: Call) -> bool:
    """Whether a predicate of a tree is true, word for word as MPICH says it."""
    if key == "any" or key.endswith("=any"):
        return True
    facts = {
        f"collective={call.name}": True,
        "comm_type=intra": True,
        "comm_type=inter": False,
        "comm_size=pow2": call.ranks & (call.ranks - 1) == 0,
        "comm_size=node_comm_size": len(call.hosts) == 1,
        "comm_hierarchy=parent": max(call.hosts) > 1,
        "comm_hierarchy=flat": False,
        "count<pow2": call.count < 2 ** (call.ranks.bit_length() - 1),
        "is_commutative=yes": call.commutes(),
        "is_commutative=no": not call.commutes(),
        "is_op_built_in=yes": call.op != "user",
        "is_op_built_in=no": call.op == "user",
        "is_sendbuf_inplace=yes": call.in_place,
        "is_sendbuf_inplace=no": not call.in_place,
        "is_block_regular=yes": call.even is not False,
        "is_block_regular=no": call.even is False,
    }
    if key in facts:
        return facts[key]
    if key.startswith("collective="):
        return False
    name, sign, number = key.partition("<=") if "<=" in key else key.partition("<")
    value = {
        "comm_size": call.ranks,
        "comm_avg_ppn": call.ranks // len(call.hosts),
        "avg_msg_size": call.avg_msg_size(),
        "total_msg_size": call.total_msg_size(),
        "count": call.count,
    }[name]
    return value <= int(number) if sign == "<=" else value < int(number)


def selected(tree: dict[str, Any], call: Call) -> str | None:
    """MPICH's search: down the first that is true, never back; None where it finds no leaf."""
    for key, under in tree.items():
        if key.startswith(("algorithm=", "composition=")):
            return key
        if key.startswith(("is_node_consecutive", "is_multi_threaded")) and not key.endswith("=any"):
            continue  # left out
        if holds(key, call):
            return selected(under, call)
    return None


def predicates(name: str, words: random.Random) -> list[str]:
    """Siblings of one kind, as trees have them; not all are complete."""
    sizes = sorted(int(2 ** words.uniform(0, 20)) for _ in range(words.randrange(1, 4)))
    sign = words.choice(["<=", "<"])
    ends = words.choice([[], ["any"]])

    def bounded(of: str, numbers: list[int]) -> list[str]:
        return [f"{of}{sign}{n}" for n in dict.fromkeys(numbers)] + [f"{of}=any" for _ in ends]

    def flags(of: str) -> list[str]:
        found = words.choice(
            [[f"{of}=yes", f"{of}=no"], [f"{of}=no", f"{of}=yes"], [f"{of}=yes"], [f"{of}=no", f"{of}=any"]]
        )
        return list(found)

    kinds: list[list[str]] = [
        bounded("comm_size", sorted(words.randrange(1, 17) for _ in range(2))),
        ["comm_size=pow2", *(f"comm_size={e}" for e in ends)],
        ["comm_size=node_comm_size", *(f"comm_size={e}" for e in ends)],
        ["comm_hierarchy=parent", *(f"comm_hierarchy={e}" for e in ends)],
        bounded("comm_avg_ppn", sorted(words.randrange(1, 5) for _ in range(2))),
        ["comm_type=intra", "comm_type=inter"],
        flags("is_node_consecutive"),
        flags("is_multi_threaded"),
        flags("is_block_regular"),
        ["any"],
    ]
    whole = name in ("bcast", "reduce", "allreduce")
    if whole or name == "alltoall":
        kinds += [bounded("avg_msg_size", sizes)] * 3
    if name != "alltoallv":
        kinds += [bounded("total_msg_size", sizes)] * 3
    if whole or name in ("allgather", "allgatherv", "reduce_scatter", "reduce_scatter_block"):
        kinds += [["count<pow2", *(f"count={e}" for e in ends)], bounded("count", sizes)]
    if "reduce" in name:
        kinds += [flags("is_commutative"), flags("is_op_built_in")] * 2
    if name != "bcast":
        kinds.append(flags("is_sendbuf_inplace"))
    return words.choice(kinds)


def random_tree(name: str, words: random.Random, depth: int, number: list[int]) -> dict[str, Any]:
    if depth == 0 or words.random() < 0.1:
        number[0] += 1
        return {f"algorithm=MPIR_X_intra_leaf{number[0]}": {}}
    return {key: random_tree(name, words, depth - 1, number) for key in predicates(name, words)}


@pytest.mark.parametrize("seed", range(24))
def test_rules_choose_what_the_tree_does(seed: int, tmp_path: Path) -> None:
    words = random.Random(seed)
    number = [0]
    names = list(COLLECTIVES)
    words.shuffle(names)
    tree = {
        f"collective={name}": random_tree(name, words, words.randrange(1, 5), number) for name in names[:9]
    }
    imported = import_tree(json.dumps(tree, indent=1), "tree.json")
    file = tmp_path / f"rules-{seed}.toml"
    file.write_text(text_of(imported, ["of a test"]))
    found: set[str] = set()
    with settings.using(collective_rules=str(file)):
        for _ in range(700):
            call = Call(words)
            if not call.differ:
                continue
            leaf = selected(tree, call)
            first = _core.matched_rules(call.call, call.hosts)[0]
            if leaf is not None:
                assert first.why.startswith(f"MPICH: {leaf.partition('=')[2]}, line "), (
                    call.name,
                    vars(call),
                    first.why,
                )
                found.add(leaf)
            elif f"collective={call.name}" in tree:
                assert first.why.startswith("MPICH: no leaf"), (call.name, vars(call), first.why)
                assert first.spec == "mpi"
            else:
                assert first.file == "jali's own rules"
    assert found


def rules(tree: dict[str, Any], **more: Any) -> list[Any]:
    return import_tree(json.dumps(tree), "tree.json", **more).rules


def leaf(text: str, **parameters: str) -> dict[str, Any]:
    return {text: {f"{key}={value}": {} for key, value in parameters.items()}}


@pytest.mark.parametrize(
    ("collective", "text", "on_hosts", "on_devices"),
    [
        ("allreduce", "composition=MPIDI_Allreduce_intra_composition_alpha",
         ("two_level by shm and mpi", "node_only by shm", "mpi", "flat by mpi"), ("two_level", "node_only", "flat")),
        ("allreduce", "composition=MPIDI_Allreduce_intra_composition_beta", ("mpi", "flat by mpi",), ("flat",)),
        ("allreduce", "composition=MPIDI_Allreduce_intra_composition_gamma", ("node_only by shm", "mpi", "flat by mpi"), ("node_only", "flat")),
        ("allreduce", "composition=MPIDI_Allreduce_intra_composition_delta",
         ("slices by shm and mpi", "node_only by shm", "mpi", "flat by mpi"), ("slices", "node_only", "flat")),
        ("bcast", "composition=MPIDI_Bcast_intra_composition_gamma", ("mpi", "flat by mpi",), ("flat",)),
        ("bcast", "composition=MPIDI_Bcast_intra_composition_delta", ("node_only by shm", "mpi", "flat by mpi"), ("node_only", "flat")),
        ("alltoall", "composition=MPIDI_Alltoall_intra_composition_alpha",
         ("slices by shm and mpi", "node_only by shm", "mpi", "flat by mpi"), ("slices", "node_only", "flat")),
        ("alltoallv", "composition=MPIDI_Alltoallv_intra_composition_alpha", ("mpi",), None),
        ("gather", "composition=MPIDI_Gather_intra_composition_alpha", ("mpi",), None),
        ("allreduce", "algorithm=MPIR_Allreduce_intra_reduce_scatter_allgather", ("halving_doubling",), ("halving_doubling",)),
        ("alltoall", "algorithm=MPIR_Alltoall_intra_brucks", ("bruck",), ("bruck",)),
        ("allgather", "algorithm=MPIR_Allgather_intra_brucks", ("mpi",), None),
        ("gatherv", "algorithm=MPIR_Gatherv_allcomm_linear", ("direct",), ("direct",)),
        ("bcast", "algorithm=MPIDI_POSIX_mpi_bcast_release_gather", ("mpi",), None),
    ],
)  # fmt: skip
def test_leaves_become_algorithms(
    collective: str, text: str, on_hosts: tuple[str, ...], on_devices: Any
) -> None:
    tree = {f"collective={collective}": leaf(text)}
    assert [rule.specs for rule in rules(tree)] == [on_hosts]
    assert [rule.specs for rule in rules(tree, memory="cuda")] == ([] if on_devices is None else [on_devices])


def test_every_algorithm_of_the_table_is_one_of_jali() -> None:
    for collective, of in ALGORITHMS.items():
        ours, _ = COLLECTIVES[collective]
        text = "version = 1\n[[rule]]\ncollective = '{}'\nalgorithms = ['{}']\n"
        for spec in of.values():
            _core.check_rules(text.format(ours, spec), "table")


def test_libraries_of_devices() -> None:
    def of(library: str | None) -> dict[str, Any]:
        return {
            "collective=allreduce": leaf(
                "algorithm=MPIR_Allreduce_intra_ccl", **({"ccl": library} if library else {})
            )
        }

    assert rules(of("rccl"), memory="device")[0].specs == ("rccl",)
    assert (
        rules(of("auto"), memory="device")[0].specs
        == rules(of(None), memory="device")[0].specs
        == ("nccl", "rccl")
    )
    (left,) = import_tree(json.dumps(of("nccl")), "tree.json").left_out
    assert left.order
    assert "--memory device" in left.why
    with pytest.raises(FileFormatError, match="ccl=oneccl; there are auto, nccl and rccl"):
        rules(of("oneccl"))


def test_what_is_left_out_is_reported_with_its_position() -> None:
    tree = """{
 "collective=allreduce": {
  "is_node_consecutive=yes": {
   "algorithm=MPIR_Allreduce_intra_ring": {}
  },
  "comm_hierarchy=node_roots": {"algorithm=MPIR_Allreduce_intra_ring": {}},
  "is_node_consecutive=no": {"algorithm=MPIR_Allreduce_intra_smp": {}},
  "any": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}},
  "avg_msg_size<8": {"algorithm=MPIR_Allreduce_intra_ring": {}}
 },
 "collective=iallreduce": {"algorithm=MPIR_Iallreduce_intra_sched_auto": {}},
 "collective=scan": {"is_node_consecutive=yes": {"algorithm=MPIR_Scan_intra_smp": {}}}
}"""
    imported = import_tree(tree, "tree.json")
    assert [(one.line, one.order) for one in imported.left_out] == [
        (3, True), (6, False), (7, True), (9, False), (11, False), (12, False)
    ]  # fmt: skip
    text = text_of(imported, [])
    assert (
        "# left out: line 3: collective=allreduce > is_node_consecutive=yes: how ranks are numbered over hosts is no condition; calls"
        in text
    )
    assert text.index("line 7:") < text.index("recursive_doubling") < text.index("line 9:")
    assert _core.check_rules(text, "rules") == 1
    assumed = import_tree(tree, "tree.json", assumed={"is_node_consecutive": "no"})
    assert [rule.specs[0] for rule in assumed.rules] == ["two_level by shm and mpi"]
    assert not any(one.order for one in assumed.left_out)


def test_predicates_whose_meaning_is_not_known_are_left_out() -> None:
    ring = leaf("algorithm=MPIR_Allreduce_intra_ring")
    for tree, why in (
        ({"avg_msg_size<8": {"collective=allreduce": ring}}, "it is asked before collective="),
        ({"is_commutative=yes": {"collective=allreduce": ring}}, "it is asked before collective="),
        ({"collective=bcast": {"per_proc_msg_size<8": ring}}, "it is no condition"),
        ({"collective=bcast": {"is_commutative=yes": ring}}, "bcast combines nothing"),
        ({"collective=gather": {"count<8": ring}}, "MPICH counts no elements of gather"),
        (
            {"collective=gather": {"avg_msg_size<8": ring}},
            "MPICH has no avg_msg_size of gather that all ranks know",
        ),
        ({"collective=alltoallv": {"total_msg_size<8": ring}}, "MPICH has no total_msg_size of alltoallv"),
        ({"collective=bcast": {"is_sendbuf_inplace=no": ring}}, "a broadcast has one buffer"),
    ):
        (left,) = import_tree(json.dumps(tree), "tree.json").left_out
        assert left.why.startswith(why)
        assert left.order
    above = {"comm_size<8": {"collective=allreduce": ring}}  # its meaning depends on no collective
    assert rules(above)[0].conditions["ranks"] == (0, 7)


WRONG = [
    ("", "line 1: an object in braces is expected, not the end"),
    ("[]", "line 1: an object in braces is expected, not []"),
    ('{"collective=bcast": 3}', "line 1: an object in braces is expected for 'collective=bcast', not 3}"),
    ('{\n"collective=bcast": {},\n}', "line 3: a key in double quotes is expected"),
    ('{"collective=bcast" {}}', "line 1: a colon is expected behind 'collective=bcast'"),
    ('{"collective=bcast": {}', "line 1: a comma or a closing brace is expected"),
    ('{\n"collective=bcast": {}}\n{}', "line 3: a tree is one object, and something stands behind it"),
    ('{"collective=bcast\n": {}}', "line 1: Invalid control character"),
    ('{"collective=bcast": {}, \n"collective=bcast": {}}', "line 2: 'collective=bcast' was said in line 1 already"),
    ('{"collective=bcasts!": {}}', "line 1: 'bcasts!' is no collective"),
    ('{"algorithm=MPIR_X": {}}', "line 1: 'algorithm=MPIR_X' is under no collective="),
    ('{"collective=bcast": {"collective=reduce": {}}}', "line 1: 'collective=reduce' within collective=bcast"),
    ('{"collective=bcast":\n {"comm_size>8": {}}}', "line 2: 'comm_size>8' is no predicate; there are collective=, comm_type="),
    ('{"collective=bcast":\n {"comm_size<many": {}}}', "line 2: 'comm_size<many' is no predicate"),
    ('{"collective=bcast":\n {"comm_size<-1": {}}}', "line 2: 'comm_size<-1' is no predicate"),
    ('{"collective=bcast":\n {"is_commutative=maybe": {}}}', "line 2: 'is_commutative=maybe' is no predicate"),
    ('{"collective=bcast":\n {"memory=gpu": {}}}', "line 2: 'memory=gpu' is no predicate"),
    ('{"collective=barrier":\n {"memory=gpu": {}}}', "line 2: 'memory=gpu' is no predicate"),  # also where nothing is made of it
    ('{"collective=bcast": {"is_multi_threaded=no": {\n"sizes<2": {}}}}', "line 2: 'sizes<2' is no predicate"),
    ('{"collective=bcast": {"any": {"algorithm=MPIR_X": {"k=2": {"a=1": {}}}}}}', "line 1: 'k=2' is no parameter of a leaf"),
    ('{"collective=bcast": {"any": {"algorithm=MPIR_X": {"k": {}}}}}', "line 1: 'k' is no parameter of a leaf"),
    ('{"collective=bcast": {"any": {"algorithm=": {}}}}', "line 1: '' is no name of an algorithm"),
    ("{" + '"any": {' * 80 + "}" * 81, "line 1: more than 64 predicates within each other"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_wrong_is_said_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        import_tree(text, "tree.json")
    assert str(caught.value).startswith(f"tree.json, {said}")


def test_texts_that_were_changed_are_refused_or_mean_something() -> None:
    words = random.Random(7)
    number = [0]
    tree = {
        f"collective={name}": random_tree(name, words, 3, number)
        for name in ("bcast", "allreduce", "alltoall")
    }
    text = json.dumps(tree, indent=1)
    read = refused = 0
    for _ in range(1500):
        mutant = list(text)
        for _ in range(words.randrange(1, 3)):
            at = words.randrange(len(mutant))
            mutant[at : at + words.randrange(3)] = words.choice(
                ["", "{", "}", '"', ":", ",", "<", "=", "9", "\n", "\\u0022"]
            )
        try:
            imported = import_tree("".join(mutant), "mutant.json")
        except FileFormatError:
            refused += 1
            continue
        assert isinstance(json.loads("".join(mutant)), dict)
        assert _core.check_rules(text_of(imported, []), "rules") == len(imported.rules)
        read += 1
    assert min(read, refused) > 50
