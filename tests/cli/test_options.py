"""Options of all commands: what their help says, and that values which make no sense are one line and exit status 2."""

from __future__ import annotations

import argparse
import random as random_
from pathlib import Path

import pytest
from jali_command import jali_here, random_links

from jali.cli.main import COMMANDS, make_parser
from jali.io import Box, write_ildg

PARAMETERS = '[lattice]\nextents = [4, 4]\n[gauge]\ngroup = "U1"\nbeta = 1.0\n'
PLAN = ("all-reduce", "--machine", "delta", "--size", "1KiB", "--nodes", "1", "--hierarchy", "4")
# For each command words that end soon, whatever its options are.
SOON: dict[str, tuple[tuple[object, ...], ...]] = {
    "run": (("run", "p.toml", "--check", "2"), ("run", "--resume", "nowhere")),
    "measure": (("measure", "c.ildg"),),
    "convert": (("convert", "c.ildg", "out.ildg"),),
    "plan": (("plan", *PLAN),),
    "explain": (("explain", "all-reduce"),),
    "simulate": (("simulate", *PLAN), ("simulate", "halo", "--machine", "delta", "--lattice", "8,8")),
    "machine": (("machine", "show", "delta"),),
    "example": (("example", "nothing"),),
    "bench": (
        *((("bench", what)) for what in ("collectives", "halo", "arrays")),
        ("bench", "fft", "--dims", "2,2", "--rounds", "1", "--seconds", "1e-9"),
        ("bench", "compare", "--list"),
    ),
    "tune": (
        ("tune", "show"),
        ("tune", "collectives", "--largest", "8", "--only", "nothing"),
        ("tune", "import-mpich"),
    ),
    "mpirun": (("mpirun", "nothing-there"),),
    "profile": (("profile", "p.toml", "--sweeps", "0"),),
    "info": (),
}
ON_ALL_RANKS = (
    "run",
    "measure",
    "convert",
    "machine",
    "profile",
)  # of the others one rank does it and speaks
DONE_FOR_REAL = ("ranks", "output", "picture", "sweeps")
ODD = (
    "",
    " ",
    "x",
    "-1",
    "0",
    "1.5",
    "nan",
    "inf",
    "1e999",
    "9" * 40,
    "1,,2",
    "1,2,3,4,5,6,7",
    "a\nb",
    "/",
    ".",
    "\u00e4",
    "\x1b[31m",
)
ODD += (
    "=",
    "a=",
    "=b",
    "a=b",
    "gauge.beta=x",
    "%s",
    "{}",
    "x" * 5000,
    "-",
    "0x10",
    "1_0",
    "p.toml",
    "c.ildg",
)


def options_of(command: str) -> list[argparse.Action]:
    """Those of a command that take a value."""
    (commands,) = (a for a in make_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    return [a for a in commands.choices[command]._actions if a.option_strings and a.nargs is None]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_has_its_help_and_ranks_are_described_correctly(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        jali_here(command, "--help")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    (commands,) = (a for a in make_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    for action in commands.choices[command]._actions:
        assert action.help or action.help is argparse.SUPPRESS, action
    wanted = {"mpirun": "ranks of the program (default 1)", "explain": "ranks of the call; none is started"}
    assert wanted.get(command, "start N MPI ranks") in text
    assert ("--json" in text) == (command != "mpirun")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(PARAMETERS)
    extents = (2, 2, 2, 2)
    write_ildg("c.ildg", random_links(extents, 2), Box.whole(extents), extents, plaquette=0.0, link_trace=0.0)


def refused(words: tuple[object, ...], ranks: int, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a command ends as bad input; it must end so in one line, or do what is asked."""
    try:
        status = jali_here(*words, ranks=ranks)
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr().err
    assert status in (0, 2), (words, status, said)
    if status == 0:
        return False
    lines = [line for line in said.splitlines() if not line.startswith("jali: warning: ")]
    assert len(lines) == 1, (words, said)
    assert lines[0].startswith("jali"), (words, said)
    assert len(lines[0]) < 1500, words
    assert not any(ord(c) < 32 for c in lines[0]), (words, said)
    return True


@pytest.mark.parametrize("command", [name for name, words in SOON.items() if words])
def test_values_that_make_no_sense_are_one_line(command: str, here, capsys) -> None:
    random = random_.Random(f"{command}, 1")
    count = 0
    options = [option for option in options_of(command) if option.dest not in DONE_FOR_REAL]
    for option in options:
        name = option.option_strings[-1]
        for value in random.sample(ODD, 6):
            words = random.choice(SOON[command])
            count += refused((*words, f"{name}={value}"), 1, capsys)
    assert count >= 2 * bool(options)


@pytest.mark.full
@pytest.mark.parametrize("command", [name for name, words in SOON.items() if words])
def test_all_values_that_make_no_sense_are_one_line_on_two_ranks_as_well(command: str, here, capsys) -> None:
    most = 2 if command in ON_ALL_RANKS else 1
    for option in options_of(command):
        if option.dest in DONE_FOR_REAL:
            continue
        for words in SOON[command]:
            for k, value in enumerate(ODD):
                refused((*words, f"{option.option_strings[-1]}={value}"), 1 + k % most, capsys)


@pytest.mark.parametrize("value", ["\udcff", "a\x1b[2J", "x" * 5000])
def test_values_that_are_no_word_are_refused_before_they_are_used(value: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        jali_here("explain", "all-reduce", f"--algorithm={value}")
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("jali explain: error: argument --algorithm: ")
    assert line.endswith(" is no value that it could have\n")
    assert line.count("\n") == 1
