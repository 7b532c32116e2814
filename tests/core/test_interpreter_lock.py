"""Objects of Python are touched with the interpreter's lock only: every count of references that is lost ends Python some day."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BIND = Path(__file__).parents[2] / "core" / "bind"
FILES = sorted(BIND.glob("*.cpp")) + sorted(BIND.glob("*.hpp"))
RELEASE = re.compile(r"\bnb::gil_scoped_release\s+\w+;")
ACQUIRE = re.compile(r"\bnb::gil_scoped_acquire\s+\w+;")
# What counts references, makes, copies or converts objects; types in declarations of parameters are no use of them.
TOUCHES = re.compile(
    r"\bnb::(none|cast|object|handle|borrow|steal|str|bytes|list|dict|tuple|make_tuple|args|capsule|ndarray|callable|"
    r"module_|getattr|isinstance|find|inst_\w+|python_error)\b|\bPy(?!GILState)[A-Z]\w*_\w+"
)


def without_comments(text: str) -> str:
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\])*"', '""', text)


def rest_of_block(text: str, start: int) -> str:
    """Text from `start` to the end of the block that holds it, without parts that take the lock again."""
    depth, end = 0, len(text)
    for k in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[k], 0)
        if depth < 0:
            end = k
            break
    block = text[start:end]
    taken = ACQUIRE.search(block)
    return block if taken is None else block[: taken.start()]


def touched_without_lock(text: str) -> list[str]:
    text = without_comments(text)
    return [
        f"{found.group(0)} in: {' '.join(block.split())[:160]}"
        for release in RELEASE.finditer(text)
        for block in [rest_of_block(text, release.end())]
        for found in TOUCHES.finditer(block)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_object_of_python_is_touched_where_the_lock_is_released(path):
    assert touched_without_lock(path.read_text()) == []


def test_a_none_that_is_returned_without_the_lock_is_found():
    code = "nb::object run() { if (x) { nb::gil_scoped_release released; go(); return nb::none(); } return nb::none(); }"
    assert len(touched_without_lock(code)) == 1
    code = "nb::object run() { { nb::gil_scoped_release released; go(); } return nb::none(); }"
    assert touched_without_lock(code) == []


def test_guards_of_whole_calls_stand_at_functions_without_objects():
    """`nb::call_guard` releases the lock for the whole body of a lambda."""
    for path in FILES:
        text = re.sub(
            r"_a(\.none\(\))? = nb::none\(\)", "", without_comments(path.read_text())
        )  # values by default
        for found in re.finditer(r"\bcall_guard<nb::gil_scoped_release>\(\)|\bReleased\(\)", text):
            start = text.rfind(".def", 0, found.start())
            assert not re.search(
                r"\bnb::(none|object|list|dict|bytes|make_tuple|cast)\b", text[start : found.start()]
            ), f"{path.name}: {text[start : found.start()][:200]}"
