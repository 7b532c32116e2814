"""The files of a forge, of editors and of releases agree with the Makefile and pyproject.toml, which are the source."""

from __future__ import annotations

import configparser
import functools
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import jali

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MATRIX = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")


@functools.cache
def read(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def jobs() -> dict[str, dict[str, Any]]:
    return {f"{w.stem}:{name}": job for w in WORKFLOWS for name, job in read(w)["jobs"].items()}


def commands() -> list[str]:
    """Every line that a workflow runs."""
    steps = [step for job in jobs().values() for step in job["steps"]]
    return [line.strip() for step in steps for line in step.get("run", "").splitlines()]


def targets() -> set[str]:
    lines = re.findall(r"^([\w. -]+):(?!=)", MAKEFILE, re.MULTILINE)
    return {name for line in lines for name in line.split()} - {".PHONY"}


def pythons() -> list[str]:
    """The Pythons that the package says it runs with."""
    classifiers = "\n".join(PYPROJECT["project"]["classifiers"])
    return re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)


def variable(name: str) -> list[str]:
    """The words of a variable of the Makefile."""
    (words,) = re.findall(rf"^{name} = (.*)$", MAKEFILE, re.MULTILINE)
    return words.split()


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_oldest_python_is_that_of_the_package() -> None:
    assert PYPROJECT["project"]["requires-python"] == f">={pythons()[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == pythons()[0]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{pythons()[0].replace('.', '')}"


@pytest.mark.parametrize("job", ["ci:tests", "wheels:wheels"])
def test_job_has_every_python(job: str) -> None:
    assert jobs()[job]["strategy"]["matrix"]["python"] == pythons()


def test_wheels_are_those_of_cibuildwheel() -> None:
    found = {f"cp{python.replace('.', '')}-manylinux_*" for python in pythons()}
    assert set(PYPROJECT["tool"]["cibuildwheel"]["build"]) == found
    used = {name for command in commands() for name in MATRIX.findall(command)}
    assert used <= set(jobs()["wheels:wheels"]["strategy"]["matrix"])


def test_tests_run_with_two_mpi_libraries() -> None:
    recipe = re.search(r"^environment-test:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    assert {"mpich", "openmpi"} <= set(recipe[1].split())
    assert re.search(r"^test-ci: environment-test$", MAKEFILE, re.MULTILINE)
    assert any(command.startswith("make test-ci ") for command in commands())


def test_commands_of_workflows_are_there() -> None:
    made = [word for c in commands() if c.startswith("make ") for word in shlex.split(c)[1:]]
    assert {word for word in made if "=" not in word} <= targets()
    for word in made:
        name, is_variable, _ = word.partition("=")
        assert not is_variable or re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE), word
    test = PYPROJECT["tool"]["cibuildwheel"]["test-command"]
    files = re.findall(r"\btools/\w+\.py", "\n".join([test, *map(Path.read_text, WORKFLOWS)]))
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_hooks_are_the_checks_of_make_lint() -> None:
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == [f"make {target}" for target in variable("LINT")]
    assert {hook["language"] for hook in hooks} == {"system"}  # no version but those of pyproject.toml
    assert set(variable("LINT")) <= targets()
    assert re.search(r"^lint:\n\t@\$\(MAKE\) --keep-going \$\(LINT\)\n\n", MAKEFILE, re.MULTILINE)


def test_editors_break_lines_where_the_formatters_do() -> None:
    editor = configparser.ConfigParser()
    editor.read_string("[all]\n" + (ROOT / ".editorconfig").read_text())
    columns = re.findall(r"^ColumnLimit: (\d+)$", (ROOT / ".clang-format").read_text(), re.MULTILINE)
    indents = re.findall(r"^IndentWidth: (\d+)$", (ROOT / ".clang-format").read_text(), re.MULTILINE)
    code = editor["*.{py,pyi,cpp,hpp,ipp,c,h}"]
    assert [code["max_line_length"]] == columns == [str(PYPROJECT["tool"]["ruff"]["line-length"])]
    assert [code["indent_size"]] == indents


def test_citation_has_the_version_of_the_package() -> None:
    citation = read("CITATION.cff")
    assert (citation["cff-version"], citation["title"]) == ("1.2.0", PYPROJECT["project"]["name"])
    assert citation["version"] == jali.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]
    assert citation["authors"] == [{"name": "The jali developers"}]
    released = f"## {jali.__version__} (not released)" not in (ROOT / "CHANGELOG.md").read_text()
    assert ("date-released" in citation) == released


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_issue_form_has_questions_with_names_of_their_own(form: str) -> None:
    body = read(f".github/ISSUE_TEMPLATE/{form}.yml")["body"]
    names = [part["id"] for part in body if part["type"] != "markdown"]
    assert names
    assert len(set(names)) == len(names)
    assert all(part["attributes"] for part in body)
