"""Recipes of docs/recipes are found as they are written, applied as they say, and do what they promise."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from programs import run_program

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import recipes

ROOT = Path(__file__).resolve().parents[2]
ONE = """# First

At the end of `a/old.py`:

```python
# a comment
x = 1
```

New file `tests/test_new.py`:

```python
y = 2
```
"""
TWO = """# Second

New file `b`:

```
z
```

Before the line `"k": (` of `c/table.py`:

```python
    "j": 1,
```

A block without a step:

```
no step
```
"""


def test_each_page_is_the_recipe_of_its_name(tmp_path):
    folder = tmp_path / recipes.FOLDER
    folder.mkdir(parents=True)
    (folder / "one.md").write_text(ONE)
    (folder / "two.md").write_text(TWO)
    found = recipes.recipes(tmp_path)
    assert [*found] == ["one", "two"]
    assert [step.path for step in found["one"]] == ["a/old.py", "tests/test_new.py"]
    assert found["one"][0] == recipes.Step("a/old.py", False, "# a comment\nx = 1\n")
    assert found["two"] == [
        recipes.Step("b", True, "z\n"),
        recipes.Step("c/table.py", False, '    "j": 1,\n', '"k": ('),
    ]


def test_steps_are_applied_and_their_tests_are_named(tmp_path):
    steps = recipes.steps(ONE)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old.py").write_text("w = 0\n")
    assert recipes.apply(steps, tmp_path) == ["tests/test_new.py"]
    assert (tmp_path / "a" / "old.py").read_text() == "w = 0\n\n\n# a comment\nx = 1\n"
    assert (tmp_path / "tests" / "test_new.py").read_text() == "y = 2\n"


def test_a_step_before_a_line_needs_that_line_once(tmp_path):
    step, table = recipes.steps(TWO)[1], tmp_path / "c" / "table.py"
    table.parent.mkdir()
    table.write_text('T = {\n    "k": (\n    ),\n}\n')
    assert recipes.apply([step], tmp_path) == []
    assert table.read_text() == 'T = {\n    "j": 1,\n    "k": (\n    ),\n}\n'
    for found, text in ((2, 'a = {\n"k": (\n"k": (\n'), (0, 'a = {"k": (\n')):
        table.write_text(text)
        with pytest.raises(SystemExit, match=rf"c/table\.py has the line .* {found} times, not once"):
            recipes.apply([step], tmp_path)


def test_a_step_that_does_not_fit_is_an_error(tmp_path):
    steps = recipes.steps(ONE)
    with pytest.raises(SystemExit, match=r"a/old\.py does not exist"):
        recipes.apply(steps, tmp_path)
    with pytest.raises(SystemExit, match=r"test_new\.py is there already"):
        recipes.apply([steps[1], steps[1]], tmp_path)


def test_contributing_lists_every_recipe():
    listed = re.findall(
        r"^\| \[`recipe-([\w-]+)`\]\(docs/recipes/\1\.md\)", (ROOT / "CONTRIBUTING.md").read_text(), re.M
    )
    assert sorted(listed) == [*recipes.recipes()]


# One that changes the core builds it, which takes minutes.
NAMES = [
    pytest.param(
        name, marks=[pytest.mark.full, pytest.mark.timeout(1800)] if recipes.changes_core(steps) else []
    )
    for name, steps in recipes.recipes().items()
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.short(3)
def test_recipe_works_on_a_fresh_checkout(name):
    done = run_program([sys.executable, ROOT / "tools" / "recipes.py", name])
    assert " passed" in done.stdout
