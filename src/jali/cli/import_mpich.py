"""`jali tune import-mpich`: rules of collectives from a selection tree of MPICH (`jali.bench.mpich_trees`)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from jali import _core, comm, vendors
from jali.amounts import counted
from jali.bench.mpich_trees import UNASKED, Imported, ImportedRule, import_tree, text_of
from jali.cli.file_kinds import JSON, TEXT, refuse_other_kinds
from jali.cli.tune_collectives import write_whole
from jali.errors import FileFormatError, ParameterError
from jali.files import read_bytes, shown, value_shown

MOST_BYTES = 1 << 24


def execute(arguments: argparse.Namespace) -> int:
    """Read the tree, write the rules, and report what was left out; one rank does it."""
    if comm.current().rank != 0:
        return 0
    if arguments.kernel is None:
        raise ParameterError(
            "which tree? give the JSON file that MPICH reads, like: jali tune import-mpich tree.json"
        )
    path = Path(arguments.kernel)
    memories = ("host", "device", *vendors.names())
    if arguments.memory not in memories:
        raise ParameterError(
            f"--memory: there is no memory {value_shown(arguments.memory)}; there is {', '.join(memories)}"
        )
    refuse_other_kinds(path, [JSON, TEXT], "the JSON file of a tree of MPICH is needed")
    try:
        tree = read_bytes(path, MOST_BYTES, "a tree of MPICH").decode()
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{shown(path)} is no tree of MPICH: byte {error.start} is not UTF-8 text"
        ) from None
    assumed = assumptions(arguments.assume)
    imported = import_tree(tree, shown(path), memory=arguments.memory, assumed=assumed)
    changed = [one for one in imported.left_out if one.order]
    if arguments.strict and changed:
        raise ParameterError(
            f"{shown(path)}: {counted(len(changed), 'branch').replace('branchs', 'branches')} cannot be said by rules, and calls of them would take others: "
            + "; ".join(map(str, changed[:5]))
            + ("; ..." if len(changed) > 5 else "")
        )
    out = arguments.output or Path(path.name).with_suffix(".toml")
    if out.is_dir():
        raise ParameterError(f"{out} is a folder; --output names a file")
    if out.exists() and not arguments.force:
        raise ParameterError(f"{out} exists; --force writes over it, --output writes another file")
    text = text_of(imported, comments(path, arguments.memory, assumed))
    _core.check_rules(text, str(out))
    write_whole(out, text)
    print(json.dumps(document(imported, out), indent=1) if arguments.json else summary(imported, out))
    return 0


def assumptions(pairs: Sequence[str]) -> dict[str, str]:
    """Answers by predicate. Raises ParameterError."""
    found = {}
    for pair in pairs:
        name, equals, word = pair.partition("=")
        if name not in UNASKED or not equals or word not in ("yes", "no"):
            names = ", ".join(name for name in UNASKED if name.startswith("is_"))
            raise ParameterError(
                f"--assume: {value_shown(pair)} is no answer like is_multi_threaded=no; there are {names}, yes or no"
            )
        found[name] = word
    return found


def comments(path: Path, memory: str, assumed: dict[str, str]) -> list[str]:
    """The head of the file."""
    said = [
        f"Rules of collectives from {re.sub(r'[^ -~]', '?', path.name)}, a selection tree of MPICH, by `jali tune import-mpich`, for "
        f"arrays of {'hosts' if memory == 'host' else memory}.",
        "The first rule that holds is taken, as in the tree. Where the tree leaves a call to MPICH's defaults, the MPI library chooses.",
    ]
    if assumed:
        said.append(f"Assumed: {', '.join(f'{name}={word}' for name, word in assumed.items())}.")
    return [*said, ""]


def summary(imported: Imported, out: Path) -> str:
    """What was done, in lines."""
    lines = [
        f"{counted(len(imported.rules), 'rule')} in {out}; programs take them with JALI_COLLECTIVE_RULES={out}"
    ]
    lines += [f"note: {note}" for note in imported.notes]
    lines += [f"left out: {one}" for one in imported.left_out]
    return "\n".join(lines)


def document(imported: Imported, out: Path) -> dict[str, object]:
    """The same as plain values."""

    def plain(rule: ImportedRule) -> dict[str, object]:
        conditions = {key: sorted(v) if isinstance(v, frozenset) else v for key, v in rule.conditions.items()}
        return {"line": rule.line, "conditions": conditions, "algorithms": rule.specs, "why": rule.why}

    return {
        "path": str(out),
        "rules": [plain(rule) for rule in imported.rules],
        "left_out": [vars(one) for one in imported.left_out],
        "notes": imported.notes,
    }
