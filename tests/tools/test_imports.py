"""Imports of the package: parsed, not run.

Counted is every import that runs, at the top of a module or inside a function: one inside a function hides a circle, it does not
remove it. So does loading by name, `import_module("jali.arrays")`, and a module that assigns into one of a package below it: that one then
uses what is above. Not counted are imports under TYPE_CHECKING, which never run: two classes that make one another may name
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
        elif isinstance(node, ast.Call):
            found |= loaded_by_name(node)
    return found & MODULES.keys()


def loaded_by_name(call: ast.Call) -> set[str]:
    """Modules that `import_module` and `__import__` load: a literal, or all below the package that an f-string begins with. A table of a
    package that loads its own entries, `import_module(f"{__name__}.{name}")`, is no import of others."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called not in ("import_module", "__import__") or not call.args:
        return set()
    name = call.args[0]
    if isinstance(name, ast.Constant):
        return {str(name.value)}
    if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        begin = str(name.values[0].value)
        return {module for module in MODULES if begin.startswith("jali.") and module.startswith(begin)}
    return set()


def assigned_into(text: str, package: str = "jali") -> set[str]:
    """Modules of jali into which a module assigns: `module.name = ...`, or `setattr(module, ...)`."""
    tree, called = ast.parse(text), {}
    for node in running_nodes(tree):
        if isinstance(node, ast.Import):
            called |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            called |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    found = set()
    for node in running_nodes(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [t.value for t in node.targets if isinstance(t, ast.Attribute)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            targets = [node.target.value]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr" and node.args:
            targets = [node.args[0]]
        found |= {called.get(ast.unparse(target), "") for target in targets}
    return found & MODULES.keys()


def package_of(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


@functools.cache
def imports() -> dict[str, set[str]]:
    """Of every module, once they are asked for: parsing them all takes longer than the tests."""
    return {name: imports_of(path.read_text(), package_of(name)) - {name} for name, path in MODULES.items()}


@functools.cache
def uses() -> dict[str, set[str]]:
    """As `imports`; a module also uses those of other packages that assign into it."""
    found = {name: set(others) for name, others in imports().items()}
    for name, path in MODULES.items():
        for other in assigned_into(path.read_text(), package_of(name)):
            if part_of(other) != part_of(name):
                found[other].add(name)
    return found


def part_of(name: str) -> str:
    """The package or module directly below jali; empty for jali itself."""
    return [*name.split("."), ""][1]


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
    "host_sums",
    "beside",
    "early",
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
    "tape_recorder",
    "_core",
}
JALI = ""  # the names of jali itself, which are those of lattices, fields and the site language
# What a package may import of jali besides itself, from the bottom to the top (ARCHITECTURE.md).
MAY_IMPORT = {
    "devices": BELOW,
    "statistics": BELOW,
    "io": BELOW,
    "codegen": BELOW,
    "tune": BELOW | {"codegen"},
    "graph_recorder": BELOW | {"codegen"},
    "comm": BELOW | {"codegen", "tune", "graph_recorder"},
    "start": BELOW | {"comm"},
    "torch": BELOW | {"comm"},
    "planner": BELOW | {"comm", "graph_recorder"},
    "profile": BELOW | {"codegen", "comm"},
    "array_namespaces": BELOW | {"comm"},
    "philox": BELOW | {"array_namespaces"},
    "vectors": BELOW | {"array_namespaces", "io", "philox"},
    "lattice": BELOW
    | {"codegen", "tune", "graph_recorder", "comm", "planner", "devices", "io", "philox", "vectors"},
    JALI: BELOW | {"start", "codegen", "comm", "devices", "lattice"},
    "derivatives": BELOW | {JALI, "array_namespaces", "arrays", "codegen", "graph_recorder", "io", "lattice"},
    "fermions": BELOW | {JALI, "codegen", "derivatives", "lattice"},
    "actions": BELOW | {JALI, "codegen", "derivatives", "graph_recorder", "lattice"},
    "gauge": BELOW
    | {JALI, "actions", "codegen", "derivatives", "graph_recorder", "io", "lattice", "statistics"},
    "hmc": BELOW | {JALI, "actions", "codegen", "derivatives", "gauge", "lattice", "philox"},
    "hadrons": BELOW | {JALI, "codegen", "comm", "fermions", "gauge", "io", "lattice", "statistics"},
    "arrays": BELOW
    | {
        "array_namespaces",
        "codegen",
        "comm",
        "devices",
        "io",
        "lattice",
        "graph_recorder",
        "philox",
        "vectors",
    },
    "fft": BELOW | {"array_namespaces", "arrays", "codegen", "comm", "lattice", "graph_recorder"},
    "solvers": BELOW | {"array_namespaces", "arrays", "comm", "tune", "vectors"},
    "linops": BELOW
    | {
        "array_namespaces",
        "arrays",
        "codegen",
        "comm",
        "derivatives",
        "fft",
        "lattice",
        "graph_recorder",
        "solvers",
    },
    "examples": BELOW
    | {"array_namespaces", "arrays", "comm", "fft", "linops", "philox", "profile", "solvers"},
    "compat": BELOW | {"array_namespaces", "arrays", "comm", "fft", "linops", "profile", "solvers"},
    "bench": BELOW
    | {
        JALI,
        "array_namespaces",
        "arrays",
        "codegen",
        "comm",
        "fermions",
        "fft",
        "gauge",
        "hadrons",
        "lattice",
        "planner",
        "profile",
    },
    "cli": BELOW
    | {
        "actions",
        "arrays",
        "bench",
        "codegen",
        "comm",
        "devices",
        "examples",
        "fermions",
        "gauge",
        "hadrons",
        "hmc",
        "io",
        "lattice",
        "planner",
        "profile",
        "solvers",
    }
    | {"statistics", "tune"},
    "__main__": BELOW | {"cli"},
}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_downward(package):
    for name in MODULES:
        if part_of(name) == package:
            for other in uses()[name]:
                part = part_of(other)
                assert part == package or part in MAY_IMPORT[package], f"{name} imports {other}"


def test_every_package_has_its_place_in_the_order():
    assert {part_of(name) for name in MODULES} <= MAY_IMPORT.keys() | BELOW
    assert circle_in({package: others - BELOW for package, others in MAY_IMPORT.items()}) == []


def test_vectors_are_below_those_who_have_them_and_those_who_compute_with_them():
    for name in within("jali.vectors"):
        assert not {part_of(other) for other in imports()[name]} & {"arrays", "solvers", "lattice"}


def test_loading_by_name_and_assignments_are_found():
    assert imports_of('import importlib\nx = importlib.import_module("jali.arrays.vectors")\n') == {
        "jali.arrays.vectors"
    }
    assert "jali.arrays.layout" in imports_of('import_module(f"jali.arrays.{name}")\n')
    assert imports_of('import_module(f"{__name__}.{name}")\nimport_module("numpy")\n') == set()
    assert assigned_into("from jali.lattice import field\nfield.Field = None\n") == {"jali.lattice.field"}
    assert assigned_into("import jali.lattice.field\njali.lattice.field.Field = None\n") == {
        "jali.lattice.field"
    }
    assert assigned_into("from jali.lattice import field as f\nsetattr(f, 'Field', None)\n") == {
        "jali.lattice.field"
    }
    assert assigned_into("import sys\nsys.stdout = None\n") == set()


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
    *(
        "simulation",
        "planning",
        "running",
        "proof",
        "halo",
        "device_transports",
        "jali",
        "interposer",
        "bind",
    ),
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
