"""What the documentation names is there: environment variables, options, files. And every variable that is read is documented."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

from jali import settings
from jali.tune import experiment

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import settings_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "ARCHITECTURE"))]
)
VARIABLE = re.compile(r"\bJALI_[A-Z0-9_]*[A-Z0-9]\b")
FILE = re.compile(r"\b(?:benchmarks|core|docs|examples|src|tests|tools)/[\w./-]+\.(?:cpp|hpp|md|py|toml)\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b")
# Macros of generated kernels, and what several variables begin with.
NO_VARIABLES = {
    *(
        "JALI_REAL",
        "JALI_NUMBER",
        "JALI_IEEE",
        "JALI_INLINE",
        "JALI_MEMBER",
        "JALI_KERNEL",
        "JALI_ONE_THREAD",
    ),
    "JALI_PYTHON",
}
# What only the tests and their fake driver read.
OF_TESTS = ("JALI_TEST_", "JALI_FAKE_", "JALI_SHADOW")
# Options of other programs: CMake, NVRTC and torchrun.
OF_OTHERS = {
    "--build",
    "--cflags",
    "--fmad",
    "--install",
    "--libs",
    "--nproc-per-node",
    "--parallel",
    "--prefix",
}


def read(*folders: str, kinds: tuple[str, ...]) -> str:
    files = [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.suffix in kinds]
    assert files
    return "\n".join(p.read_text() for p in files)


def variables_that_are_read() -> set[str]:
    return {spec.variable for spec in settings.specs() if spec.variable}


def named(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """(page, name) of everything of this form that the documentation names."""
    return sorted(
        {(str(p.relative_to(ROOT)), name) for p in PAGES for name in pattern.findall(p.read_text())}
    )


def test_every_variable_that_is_named_is_read() -> None:
    known = variables_that_are_read() | NO_VARIABLES
    wrong = [(page, v) for page, v in named(VARIABLE) if v not in known and not v.startswith(OF_TESTS)]
    assert not wrong


def test_page_of_variables_is_what_the_table_of_settings_says() -> None:
    assert settings_page.PAGE.read_text() == settings_page.text(), (
        "`python tools/settings_page.py` writes it anew"
    )


def test_every_experiment_is_explained() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text()
    experiments = {spec.name for spec in settings.specs() if not spec.variable}
    assert set(re.findall(r"^\| `(\w+)=", page, re.MULTILINE)) == experiments
    assert set(inspect.signature(experiment).parameters) == experiments


def test_every_option_that_is_named_exists() -> None:
    code = (
        read("src/jali/cli", "benchmarks", "tools", kinds=(".py",))
        + (ROOT / "src/jali/cli/main.py").read_text()
    )
    known = set(re.findall(r'"(--[a-z][a-z-]*[a-z])"', code)) | OF_OTHERS
    assert not [(page, option) for page, option in named(OPTION) if option not in known]


def made_by_recipes() -> set[str]:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "recipes").glob("*.md"))
    return set(re.findall("^New file `(.*)`:$", pages, re.MULTILINE))


@pytest.mark.parametrize(("page", "file"), named(FILE), ids=lambda x: x.replace("/", "-"))
def test_file_that_is_named_exists(page: str, file: str) -> None:
    assert (ROOT / file).exists() != (file in made_by_recipes()), f"{page} names {file}"
