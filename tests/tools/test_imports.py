"""Imports of the package: parsed, not run.

Counted is every import that runs, at the top of a module or inside a function: one inside a function hides a circle, it does not
remove it. Not counted are imports under TYPE_CHECKING, which never run: two classes that make one another may name
each other in their signatures. A package stands for its `__init__.py`; `from package import module` is an import of the module.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import jali

ROOT = Path(jali.__file__).parent


def name_of(path: Path) -> str:
    parts = ("jali", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from running_nodes(other)
        else:
            yield child
            yield from running_nodes(child)


def imports_of(text: str, package: str = "jali", types: bool = False) -> set[str]:
    """Modules of jali that a module of `package` imports when it runs; with `types` also those that it only names in signatures."""
    found = set()
    tree = ast.parse(text)
    for node in ast.walk(tree) if types else running_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                # `_core` is compiled and imports nothing
                found.add(whole if whole in MODULES or whole == "jali._core" else module)
    return found & MODULES.keys()


def package_of(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


@functools.cache
def imports() -> dict[str, set[str]]:
    """Of every module, once they are asked for: parsing them all takes longer than the tests."""
    return {name: imports_of(path.read_text(), package_of(name)) - {name} for name, path in MODULES.items()}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """One circle, from a module back to it; empty where there is none."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_leads_back():
    assert circle_in(imports()) == []


# A plan is made from a composition, which makes it; it runs and draws itself.
OF_PLANS = {f"jali.planner.{name}" for name in ("composition", "drawing", "plan", "planning", "running_plan")}


def test_what_a_communicator_is_made_of_knows_no_communicator_not_even_in_signatures():
    named = {
        name: imports_of(path.read_text(), package_of(name), types=True) - {name}
        for name, path in MODULES.items()
        if name.startswith(("jali.comm.", "jali.planner."))
    }
    assert named["jali.comm.communicator"] >= {"jali.comm.calls", "jali.comm.device_messages"}
    graph = {name: others & named.keys() for name, others in named.items()}
    for name in OF_PLANS:
        graph[name] -= OF_PLANS
    assert circle_in(graph) == []


def within(package: str) -> dict[str, set[str]]:
    inside = {name for name in MODULES if name == package or name.startswith(f"{package}.")}
    return {name: imports()[name] & inside for name in inside}


BELOW = {
    "amounts",
    "errors",
    "files",
    "keywords",
    "notebook",
    "single_instance",
    "processes",
    "settings",
    "version",
    "vendors",
    "registry",
    "_core",
}
# What a package may import of jali besides itself, from the bottom to the top (ARCHITECTURE.md).
MAY_IMPORT = {
    "codegen": BELOW,
    "tune": BELOW | {"codegen"},
    "graph_recorder": BELOW | {"codegen"},
    "comm": BELOW | {"codegen", "tune", "graph_recorder"},
    "planner": BELOW | {"comm", "graph_recorder"},
    "torch": BELOW | {"comm"},
    "io": BELOW,
    "lattice": BELOW | {"codegen", "tune", "graph_recorder", "comm", "planner", "devices", "io"},
}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_downward(package):
    for name in within(f"jali.{package}"):
        for other in imports()[name]:
            part = [*other.split("."), ""][1]
            assert part == package or part in MAY_IMPORT[package], f"{name} imports {other}"


def test_a_circle_through_a_function_is_found():
    inner = imports_of("def f():\n    from jali.codegen import ir\n")
    assert inner == {"jali.codegen.ir"}
    assert (
        imports_of("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jali.codegen.ir\n")
        == set()
    )
    assert circle_in({"a": {"b"}, "b": {"a"}})
    assert not circle_in({"a": {"b"}, "b": set()})


CORE = Path(__file__).parents[2] / "core"
# From the bottom to the top: a folder of the core includes what is below it.
LAYERS = (
    *("settings", "device", "geometry", "sum", "vectors", "messaging", "peers", "schedule", "composition"),
    *("simulation", "planning", "running", "proof", "halo", "device_transports", "jali", "interposer", "bind"),
)


def test_folders_of_the_core_include_what_is_below_them() -> None:
    assert set(LAYERS) == {path.name for path in CORE.iterdir() if path.is_dir()}
    wrong = []
    for path in [*CORE.rglob("*.cpp"), *CORE.rglob("*.hpp")]:
        folder = path.relative_to(CORE).parts[0]
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            other = name.partition("/")[0]
            if other in LAYERS and LAYERS.index(other) > LAYERS.index(folder):
                wrong.append(f"{path.relative_to(CORE)} includes {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "start", ["geometry/geometry.cpp", "geometry/site_order.cpp", "halo/lanes.cpp", "halo/layout.cpp"]
)
def test_geometry_and_layouts_know_nothing_of_devices_and_ranks(start):
    seen, left = set(), [start]
    while left:
        text = (CORE / left.pop()).read_text()
        new = set(re.findall(r'#include "([^"]+)"', text)) - seen
        seen |= new
        left += new
    assert seen
    seen -= {"settings/counted.hpp"}  # words alone
    assert {name.partition("/")[0] for name in seen} <= {"geometry", "halo"}
    assert {name for name in seen if name.startswith("halo/")} <= {"halo/lanes.hpp", "halo/layout.hpp"}
    if start.startswith("geometry"):
        assert not any(name.startswith("halo/") for name in seen)
