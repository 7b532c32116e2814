"""Each mutant of the record has its place in today's sources, so that `python tools/mutants.py --check` can apply it again."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("jali_mutants", ROOT / "tools" / "mutants.py")
assert SPEC is not None
assert SPEC.loader is not None
tool: Any = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = tool  # its dataclasses look themselves up
SPEC.loader.exec_module(tool)
RECORD = json.loads((ROOT / tool.RECORD).read_text())["mutants"]


@pytest.mark.parametrize("mutant", RECORD, ids=lambda m: f"{m['area']}-{m['number']}")
@pytest.mark.short(2)
def test_a_mutant_of_the_record_is_found_in_the_sources(mutant: dict[str, Any]) -> None:
    path, _, token = tool.find(mutant)
    assert tool.new_token(token) == mutant["new"]
    assert tool.mutated(path, token) != path.read_text()


CPP = """
int Ring::next(int k) {
    // not a < b
    if (k < size_ && open) close(k, "k + 1");
    if (k > 9) throw Trouble(k + 1);
    return k + 1;
}
"""
RENAMED_CPP = """
int transport::RingOfRanks::next(int position) {
    if (position < number_of_ranks_ &&
        is_open) {
        connection.close(position, "another text");
    }
    if (position > 9) throw RankError(position);
    return position + 1;
}
"""
PYTHON = '''
class Ring:
    def next(self, k):
        """Not a < b."""
        if k < self.size and self.open:
            close(k, f"{k + 1}")
        if k > 9:
            raise Trouble(f"no {k + 1}")
        return k + 1
'''
RENAMED_PYTHON = """
class RingOfRanks:
    def next(self, position):
        if (
            position < self.ranks.size
            and self.is_open
        ):
            self.connection.close(
                position,
                "another text",
            )
        if position > 9:
            raise RankError("no rank")
        return position + 1
"""


@pytest.mark.parametrize(
    ("functions", "text", "renamed"),
    [(tool.cpp_functions, CPP, RENAMED_CPP), (tool.python_functions, PYTHON, RENAMED_PYTHON)],
    ids=["C++", "Python"],
)
def test_a_stream_stays_where_names_texts_and_lines_change(functions: Any, text: str, renamed: str) -> None:
    (before,), (after,) = functions(text), functions(renamed)
    tokens = [(token.text, token.kind) for token in before.stream if token.kind]
    assert [kind for _, kind in tokens] == [
        *("condition", "comparison", "logic", "call"),
        *("condition", "comparison", "constant", "sum", "constant"),
    ]
    assert [(t.text, t.kind) for t in before.stream] == [(t.text, t.kind) for t in after.stream]
    # brackets of statements are no part of a stream
    assert before.digest == after.digest


def test_a_mutant_changes_one_place() -> None:
    (function,) = tool.cpp_functions(CPP)
    path = type("Text", (), {"read_text": lambda self: CPP, "suffix": ".cpp"})()
    texts = {t.kind: tool.mutated(path, t) for t in reversed(function.stream) if t.kind}
    assert "k <= size_ && open" in texts["comparison"]
    assert "k < size_ || open" in texts["logic"]
    assert "if (!(k < size_ && open)) close" in texts["condition"]
    assert "open) ;\n" in texts["call"]
    assert "return k - 1" in texts["sum"]
    assert "(k > 10) throw Trouble(k + 1)" in texts["constant"]
