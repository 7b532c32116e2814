"""The documentation does what it says: its Python and its cheap commands run, output and parameter files that it shows are of that form.

`tools/run_doc_blocks.py` says what of a page runs. That commands exist, those that do not run too, is tested in test_inline_code.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from programs import run_program

from jali.cli.main import main
from jali.cli.parameters import parse_parameters
from jali.planner.machine import SHIPPED, Machine
from jali.solvers.rules import rules_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import run_doc_blocks
from run_doc_blocks import Block

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tools" / "run_doc_blocks.py"
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
BLOCKS = [(page, block) for page in PAGES for block in run_doc_blocks.blocks(page.read_text())]
LANGUAGES = {"bash", "cmake", "cpp", "diff", "py", "python", "text", "toml"}
# Output that only devices, other machines or an hour make, by page: who prints it, whose words must be those of the page.
PRINTED_BY = {
    "docs/emulated-cluster.md": ("benchmarks/cluster.py", "tools/emulated_cluster.py", "src/jali/bench"),
    "docs/gpus.md": ("core/device", "src/jali/cli", "src/jali/devices.py", "tests/gpu", "Makefile"),
    "docs/mpi-programs.md": ("core/interposer", "core/planning", "core/running"),
    "docs/profiling.md": ("src/jali/profile", "src/jali/gauge", "src/jali/lattice", "src/jali/cli"),
}
WORDS_OF_OTHERS = {
    "MPICH",
    "Version",
    "Open",
    "MPI",
    "package",
    "ident",
    "repo",
    "rev",
    "user",
    "localhost",
    "Distribution",
    "Sep",
}


def run_blocks(page: Path) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, RUNNER, page], status=None, env={**os.environ, "MPLBACKEND": "Agg"})


def runs(block: Block) -> bool:
    if block.language == "bash":
        return any(not run_doc_blocks.why_not_run(command) for _, command in run_doc_blocks.commands(block))
    return block.language == "python"


def of(language: str) -> list[pytest.param]:
    return [
        pytest.param(page, block, id=f"{page.relative_to(ROOT)}:{block.first}")
        for page, block in BLOCKS
        if block.language == language
    ]


# Blocks of recipes are parts of files, which tests/tools/test_recipes.py puts together and runs.
RUN = sorted({page for page, block in BLOCKS if runs(block) and page.parent.name != "recipes"})


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.name)
def test_python_and_commands_of_the_page_run(page: Path) -> None:
    done = run_blocks(page)
    assert done.returncode == 0, done.stderr


def test_every_block_says_what_language_it_is() -> None:
    assert not [f"{page}:{block.first}" for page, block in BLOCKS if block.language not in LANGUAGES]


@pytest.mark.parametrize(("page", "block"), of("text"))
def test_text_of_a_page_is_output_or_a_formula(page: Path, block: Block) -> None:
    """What was printed in the same page is compared where it runs; commands and Python are fenced as such."""
    assert not re.search(
        r"^(?:jali (?:run|measure|tune|bench|info)|python3?|pip|make|mpiexec|import|from) ",
        block.text,
        re.MULTILINE,
    )
    makers = PRINTED_BY.get(str(page.relative_to(ROOT)), ())
    if not makers:
        return
    files = [f for maker in makers for f in [ROOT / maker, *(ROOT / maker).rglob("*")] if f.is_file()]
    sources = "\n".join(f.read_text(errors="replace") for f in files if f.suffix != ".pyc")
    words = set(re.findall(r"[A-Za-z]{3,}", block.text)) - WORDS_OF_OTHERS
    assert not {word for word in words if not re.search(rf"(?<![A-Za-z]){word}(?![A-Za-z])", sources)}


@pytest.mark.parametrize(("page", "block"), of("toml"))
def test_parameters_rules_and_machines_of_a_page_are_read(page: Path, block: Block, tmp_path: Path) -> None:
    tables = tomllib.loads(block.text)
    if "rule" in tables and "choices" in tables["rule"][0]:  # of solvers
        assert len(rules_in(block.text, str(page))) == len(tables["rule"])
    elif "rule" in tables:
        rules = tmp_path / "rules.toml"
        rules.write_text(block.text)
        assert main(["explain", "all-reduce", "--size", "1MiB", "-n", "2", "--rules", str(rules)]) == 0
    elif "device" in tables:
        shipped = tomllib.loads((SHIPPED / "perlmutter.toml").read_text())
        machine = Machine.from_table({**shipped, **tables}, str(page))
        assert getattr(machine.device, "kind", None) == tables["device"]["kind"]
    else:
        needed = ["extents=4,4,4,4", "group=SU(3)", "beta=6.0", "sweeps=1"]
        given = {key for table in tables.values() for key in table}
        parse_parameters(block.text, str(page), [word for word in needed if word.split("=")[0] not in given])


def test_a_file_that_a_page_shows_is_that_of_the_examples() -> None:
    shown = [(page, block) for page, block in BLOCKS if block.title.endswith(".py")]
    assert shown
    for page, block in shown:
        (file,) = (ROOT / "examples").rglob(block.title)
        assert file.read_text() == block.text + "\n", page


@pytest.mark.parametrize(("page", "block"), of("diff"))
def test_lines_of_a_difference_are_those_of_the_examples(page: Path, block: Block) -> None:
    files = [path.read_text().splitlines() for path in (ROOT / "examples").rglob("*.py")]
    for sign in "-+":
        lines = [line[1:] for line in block.text.splitlines() if line.startswith(sign)]
        assert lines
        assert any(set(lines) <= set(file) for file in files), page


def test_failing_block_is_reported_with_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\ny = x + 1\nassert y == 3\n```\n")
    done = run_blocks(page)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"{page}:11: AssertionError")


def test_blocks_of_a_page_share_one_namespace_and_other_languages_do_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shared = "```python\nx = 41\n```\n```bash\nexit 1\n```\n"
    indented = "- item\n\n    ```python\n    assert x + 1 == 42\n    ```\n"
    page.write_text(shared + indented)
    done = run_blocks(page)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{page}: 2 blocks, 0 commands\n"


def test_unclosed_fence_is_an_error_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n")
    done = run_blocks(page)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{page}:3: ")


FAULTS = {
    "output": "```python\nprint('sum 4.5')\n```\n\n```text\ntotal 5\n```\n",
    "files": "```text\nrun/none.csv\n```\n",
    "command": '```toml title="my.toml"\nbeta = 1\n```\n\n```bash\njali run my.toml --check 1\n```\n',
    "script": '```python title="mine.py"\nraise SystemExit(3)\n```\n\n```bash\npython mine.py  # here\n```\n',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_page_shows_and_does_not_get_is_reported(fault: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(FAULTS[fault])
    with pytest.raises((run_doc_blocks.LineError, SystemExit)):
        run_doc_blocks.run_page(page)


def test_output_may_have_other_numbers_and_leave_lines_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint('a 1.5e-3', 'b', 'c 7', sep='\\n')\n```\n\n```text\na -2\n...\nc 8\n```\n"
    )
    assert run_doc_blocks.run_page(page) == (1, 0)


def test_a_reader_has_what_commands_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\n# of a friend\njali measure a.nersc \\\n  --json\njali tune collectives -n 2\n```\n"
    )
    assert run_doc_blocks.run_page(page) == (0, 1)
