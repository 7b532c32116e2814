"""What is known of an operation stands in its descriptor: nothing else compares names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jali
from jali.codegen.builder import Builder
from jali.codegen.ir import INT, Node
from jali.codegen.language.arithmetic import add, mul, neg, sub
from jali.codegen.language.choices import less, where
from jali.codegen.language.integers import floordiv, mod
from jali.codegen.language.leaves import const, coordinate, extent, scalar
from jali.codegen.operation import OPERATIONS, described
from jali.codegen.ranges import range_of
from jali.codegen.values import METHODS

PACKAGE = Path(jali.__file__).parent


def compares_an_operation(node: ast.AST) -> bool:
    """`node.op == "load"`, `"load" != node.op`, `node.op in ("add", "sub")`."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    texts = [
        n
        for side in sides
        for n in ast.walk(side)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    of_operation = ("described", "operation", "method")
    return bool(texts) and any(
        isinstance(side, ast.Attribute)
        and (side.attr == "op" or (side.attr == "name" and getattr(side.value, "id", "") in of_operation))
        for side in sides
    )


@pytest.mark.parametrize(
    "text",
    [
        'method.name == "conj"',
        'n.op == "load"',
        '"load" != n.op',
        'n.op in ("add", "sub")',
        'a.op == b.op == "const"',
    ],
)
def test_a_comparison_of_names_is_found(text: str) -> None:
    assert any(map(compares_an_operation, ast.walk(ast.parse(text))))


def test_no_code_compares_names_of_operations() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in [path.read_text()]
        if ".op" in text or ".name" in text
        for node in ast.walk(ast.parse(text))
        if compares_an_operation(node)
    ]
    assert found == []


def test_columns_agree_with_each_other() -> None:
    for operation in OPERATIONS.values():
        assert operation.sign in (-1, 0, 1)
        assert operation.fusion is None or operation.sign == 0
        assert not operation.constant or operation.everywhere
        assert operation.argument is None or operation.everywhere
        assert not operation.draws or operation.by_coordinates, "random numbers belong to sites"
        assert not (operation.repeats and operation.sendable), "a loop is not cut by a halo item"


def numbers() -> tuple[Builder, Node, Node, Node]:
    """A builder, a coordinate, a number from 2 to 9, and one that is known at run time only."""
    nodes = Builder()
    x = coordinate(nodes, 0, 0)
    return nodes, x, add(nodes, x, const(nodes, 2)), scalar(nodes, 0, INT)


def test_bounds_are_those_of_all_values() -> None:
    nodes, x, y, n = numbers()
    three, values = const(nodes, 3), range(8)
    for node, expected in (
        (add(nodes, x, y), [a + a + 2 for a in values]),
        (sub(nodes, three, x), [3 - a for a in values]),
        (neg(nodes, y), [-a - 2 for a in values]),
        (mul(nodes, neg(nodes, three), y), [-3 * (a + 2) for a in values]),
        (floordiv(nodes, sub(nodes, x, three), three), [(a - 3) // 3 for a in values]),
        (extent(nodes, 0), [8]),
    ):
        assert range_of(node, (8,)) == (min(expected), max(expected)), node
    assert range_of(mod(nodes, n, three), (8,)) == (0, 2)
    assert range_of(mod(nodes, x, const(nodes, 100)), (8,)) == (0, 7)
    assert range_of(mod(nodes, extent(nodes, 0), const(nodes, 100)), (8,)) == (8, 8)
    assert range_of(n, (8,)) == (float("-inf"), float("inf"))
    lesser = where(nodes, less(nodes, n, three), n, three)
    assert range_of(lesser, (8,)) == (float("-inf"), 3)
    modulus = where(nodes, less(nodes, y, const(nodes, 0)), neg(nodes, y), y)
    assert range_of(modulus, (8,)) == (2, 9)


def test_a_descriptor_is_found_from_a_node_and_knows_its_own() -> None:
    nodes, _, y, _ = numbers()
    assert described(y) is add
    assert add.made(y)
    assert not sub.made(y)


def test_type_checkers_know_methods_of_whole_fields_that_are_there() -> None:
    """What stands below TYPE_CHECKING are names that descriptors give at run time."""
    tree = ast.parse((PACKAGE / "lattice" / "field_arithmetic.py").read_text())
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    declared = {n.target.id for block in blocks for n in block.body if isinstance(n, ast.AnnAssign)}
    assert len(declared) > 5
    assert declared <= {function.__name__ for function in METHODS}
