"""The command line turns what happens into exit codes and one line, and starts ranks only when it has to."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from programs import TIMEOUT

import jali
from jali import errors
from jali.cli import launch
from jali.cli import main as cli
from jali.comm.launcher_environment import LAUNCHERS


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]) -> None:
    use_settings(expected_ranks=None)
    for name in (name for pair in LAUNCHERS for name in pair):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command `try`, whose `execute` each test sets."""
    module = ModuleType("jali.cli.attempt")
    module.add_arguments = lambda parser: parser.add_argument("files", nargs="*")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jali.cli.attempt", module)
    monkeypatch.setitem(cli.COMMANDS, "try", cli.Command("jali.cli.attempt", "try something"))
    return module


def raising(error: BaseException):
    def execute(arguments: argparse.Namespace) -> int:
        raise error

    return execute


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ParameterError("no key bta; did you mean beta?"), 2),
        (errors.FileFormatError("x.ildg: truncated"), 2),
        (errors.LayoutError("3 ranks do not fit"), 2),
        (FileNotFoundError(2, "No such file or directory", "x.ildg"), 2),
        (PermissionError(13, "Permission denied", "/x"), 2),
        (errors.CompileError("no compiler"), 1),
        (errors.RankError("rank 3 died"), 1),
        (errors.TraceError("a race"), 1),
        (OSError(28, "No space left on device", "history.csv"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_error_becomes_one_line_and_an_exit_status(
    command: ModuleType, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    command.execute = raising(error)  # type: ignore[attr-defined]
    assert cli.main(["try"]) == status
    printed = capsys.readouterr()
    words = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    assert printed.err == f"jali: {words}\n"
    assert printed.out == ""


def test_error_that_all_ranks_raised_is_said_by_one_of_them(
    command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    error = errors.FileFormatError("x.ildg: truncated")
    error.on_every_rank = True  # type: ignore[attr-defined]
    command.execute = raising(error)  # type: ignore[attr-defined]
    assert jali.virtual_ranks(3, cli.main, ["try"]) == [2, 2, 2]
    assert capsys.readouterr().err == "jali: x.ildg: truncated\n"


def test_interruption_is_130(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    command.execute = raising(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == "jali: interrupted\n"


def test_exit_status_of_a_command_is_that_of_the_process(command: ModuleType) -> None:
    command.execute = lambda arguments: 143  # type: ignore[attr-defined]
    assert cli.main(["try"]) == 143


def test_a_mistake_in_the_program_is_not_hidden(command: ModuleType) -> None:
    command.execute = raising(ZeroDivisionError())  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


@pytest.mark.parametrize(
    "words", [[], ["plot"], ["info", "--frob"], ["info", "-n", "0"], ["info", "-n", "two"]], ids=" ".join
)
def test_words_that_mean_nothing_are_bad_input(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_ranks_are_started_with_the_same_words(command: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(
        launch, "relaunch", lambda count, words, hung: started.append((count, list(words))) or 7
    )
    command.execute = raising(AssertionError("must run in the ranks only"))  # type: ignore[attr-defined]
    assert cli.main(["try", "a", "b", "-n", "4"]) == 7
    assert started == [(4, ["try", "a", "b", "-n", "4"])]


@pytest.mark.parametrize("by", ["a launcher", "jali"])
def test_one_of_the_ranks_runs_the_command_itself(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], by: str
) -> None:
    if by == "jali":
        use_settings(expected_ranks=4)
    else:
        monkeypatch.setenv("PMI_RANK", "1")
        monkeypatch.setenv("PMI_SIZE", "4")
    command.execute = lambda arguments: 5  # type: ignore[attr-defined]
    assert cli.main(["try", "-n", "4"]) == 5


def test_one_rank_needs_no_launcher(command: ModuleType) -> None:
    command.execute = lambda arguments: 0  # type: ignore[attr-defined]
    assert cli.main(["try", "-n", "1"]) == 0


def test_another_number_of_ranks_than_the_launcher_started_is_bad_input(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.execute = raising(AssertionError("must not run"))  # type: ignore[attr-defined]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert cli.main(["try", "-n", "4"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("jali: rank 1: -n 4 asks for 4 ranks, but a launcher has started 2 already")


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("stream", "words"), [("0<&-", "vectors"), ("1>&-", ""), ("2>&-", "vectors"), ("0<&- 1>&- 2>&-", "")]
)
def test_streams_that_whoever_started_the_command_has_closed_are_done_without(
    stream: str, words: str
) -> None:
    line = f'exec "$0" -m jali plan all-reduce --machine delta --nodes 2 --size 1MiB {stream}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("delta" in done.stdout) == bool(words)


def test_names_that_hold_new_lines_and_escape_sequences_are_shown_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tmp_path / "no\nsuch\x1b[31mfile"
    out = tmp_path / "out"
    words = [
        ["measure", name],
        ["run", name, "--output", out],
        ["run", "--resume", name],
        ["machine", "show", name],
    ]
    for there in (False, True):
        if there:
            name.write_text("BEGIN_HEADER\n")
        for line in words:
            assert cli.main([str(word) for word in line]) == 2
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert r"no\nsuch\x1b[31mfile" in said


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["explain", "reduce", "--type", "fp64"], "--dtype"),
        (["tune", "collectives", "--types=float64"], "--dtypes"),
        (["plan", "all-reduce", "--node", "2", "--dtyp", "x", "--machin", "x", "--nods", "3"], "--nodes"),
        (["run", "x.toml", "--outptu", "y"], "--output"),
    ],
)
def test_an_option_that_is_none_is_answered_with_the_nearest_of_the_command(words, near, capsys):
    with pytest.raises(SystemExit):
        cli.main(words)
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(f"jali {words[0]}: error: unrecognized arguments: --")
    assert said[-1].endswith(f"; the nearest option is {near}")
