"""The types of the core, which the build reads off the module."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest
from programs import run_program

from jali import _core

TOOL = Path(__file__).resolve().parents[2] / "tools" / "core_stub.py"
STUB = Path(_core.__file__).parent / "_core.pyi"


def tool_of(tmp_path, *, stub: str | None = None, built: bool = True, status: int = 0):
    """The tool in a checkout whose jali is installed elsewhere; what it said."""
    checkout, installed = tmp_path / "checkout", tmp_path / "installed" / "jali"
    for folder in (checkout / "tools", checkout / "src" / "jali", installed):
        folder.mkdir(parents=True)
    shutil.copy(TOOL, checkout / "tools")
    (installed / "__init__.py").write_text("")
    if built:
        (installed / "_core.py").write_text("")
    if stub is not None:
        (installed / "_core.pyi").write_text(stub)
    done = run_program(
        [sys.executable, "-S", "-P", checkout / "tools" / "core_stub.py"],
        env={"PYTHONPATH": str(installed.parent)},
        status=status,
    )
    return checkout / "src" / "jali" / "_core.pyi", done.stderr


def test_the_stub_of_an_installation_is_put_beside_the_sources(tmp_path):
    found, _ = tool_of(tmp_path, stub="x: int\n")
    assert found.read_text() == "x: int\n"


def test_a_missing_stub_and_a_missing_core_are_said(tmp_path):
    assert "_core.pyi is missing" in tool_of(tmp_path / "a", status=1)[1]
    assert "jali._core is not built" in tool_of(tmp_path / "b", built=False, status=1)[1]


def test_every_public_name_of_the_core_has_a_type():
    if not STUB.is_file():
        pytest.fail(f"the build made no {STUB}")
    tree = ast.parse(STUB.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    names |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    names |= {node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)}
    missing = {name for name in dir(_core) if not name.startswith("_")} - names
    assert not missing
