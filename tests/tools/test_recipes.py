"""Recipes of CONTRIBUTING.md are found as they are written, applied as they say, and do what they promise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import run_program

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import recipes

ROOT = Path(__file__).resolve().parents[2]
PAGE = """# Page

### First: `recipe-one`

At the end of `a/old.py`:

```python
# a comment
x = 1
```

New file `tests/test_new.py`:

```python
y = 2
```

### Second: `recipe-two`

New file `b`:

```
z
```

Before the line `"k": (` of `c/table.py`:

```python
    "j": 1,
```

## Other

New file `c`:

```
no recipe
```
"""


def test_steps_belong_to_the_recipe_above_them():
    found = recipes.recipes(PAGE)
    assert [step.path for step in found["one"]] == ["a/old.py", "tests/test_new.py"]
    assert found["one"][0] == recipes.Step("a/old.py", False, "# a comment\nx = 1\n")
    assert found["two"] == [
        recipes.Step("b", True, "z\n"),
        recipes.Step("c/table.py", False, '    "j": 1,\n', '"k": ('),
    ]


def test_steps_are_applied_and_their_tests_are_named(tmp_path):
    steps = recipes.recipes(PAGE)["one"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old.py").write_text("w = 0\n")
    assert recipes.apply(steps, tmp_path) == ["tests/test_new.py"]
    assert (tmp_path / "a" / "old.py").read_text() == "w = 0\n\n\n# a comment\nx = 1\n"
    assert (tmp_path / "tests" / "test_new.py").read_text() == "y = 2\n"


def test_a_step_before_a_line_needs_that_line_once(tmp_path):
    step, table = recipes.recipes(PAGE)["two"][1], tmp_path / "c" / "table.py"
    table.parent.mkdir()
    table.write_text('T = {\n    "k": (\n    ),\n}\n')
    assert recipes.apply([step], tmp_path) == []
    assert table.read_text() == 'T = {\n    "j": 1,\n    "k": (\n    ),\n}\n'
    for found, text in ((2, 'a = {\n"k": (\n"k": (\n'), (0, 'a = {"k": (\n')):
        table.write_text(text)
        with pytest.raises(SystemExit, match=rf"c/table\.py has the line .* {found} times, not once"):
            recipes.apply([step], tmp_path)


def test_a_step_that_does_not_fit_is_an_error(tmp_path):
    steps = recipes.recipes(PAGE)["one"]
    with pytest.raises(SystemExit, match=r"a/old\.py does not exist"):
        recipes.apply(steps, tmp_path)
    with pytest.raises(SystemExit, match=r"test_new\.py is there already"):
        recipes.apply([steps[1], steps[1]], tmp_path)


# One that changes the core builds it. Of the others the short run has every second: most of its time goes into the checkout.
ALL = recipes.recipes((ROOT / recipes.PAGE).read_text())
OF_PYTHON = [name for name, steps in ALL.items() if not recipes.changes_core(steps)]
NAMES = [
    pytest.param(name, marks=[] if name in OF_PYTHON[::2] else [pytest.mark.full, pytest.mark.timeout(1800)])
    for name in ALL
]


@pytest.mark.parametrize("name", NAMES)
def test_recipe_works_on_a_fresh_checkout(name):
    done = run_program([sys.executable, ROOT / "tools" / "recipes.py", name])
    assert " passed" in done.stdout
