"""Commands that are given a file of another kind say what it is and which command takes it, in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jali_command import jali_here, random_links

import jali
from jali.cli import file_kinds
from jali.io import Box, write_ildg, write_nersc

ROOT = Path(jali.__file__).parent
PARAMETERS = '[lattice]\nextents = [2, 2]\n[gauge]\ngroup = "U1"\nbeta = 1.0\n[update]\nsweeps = 1\n'
KINDS = {
    "p.toml": "a parameter file, which `jali run` and `jali profile` take",
    "machine.toml": "the description of a machine, which `--machine` of",
    "rules.toml": "a file of rules of collectives, which JALI_COLLECTIVE_RULES",
    "c.ildg": "a gauge configuration, which `jali measure` and `jali convert` take",
    "c.nersc": "a gauge configuration, which",
    "c.npy": "a gauge configuration, which",
    "run": "the folder of a run, which `jali run --resume`, `jali measure`",
    "folder": "a folder",
    "x.json": "a JSON file",
    "empty": "empty",
    "picture.toml": "a picture",
    "program": "a program, which `jali mpirun` starts",
    "s.py": "a Python script, which `python` runs",
    "other.toml": "a TOML file",
    "text": "a text file",
}
CONFIGURATIONS = {"c.ildg", "c.nersc", "c.npy", "run"}
TEXTS = {"other.toml", "text", "binary", "missing"}  # of which readers say what they miss
# Commands, what each of them takes, and what it leaves to its reader.
COMMANDS: dict[tuple[str, ...], tuple[set[str], set[str]]] = {
    ("measure", "FILE"): (CONFIGURATIONS, {"binary", "missing", "folder"}),
    ("convert", "FILE", "out.ildg"): (CONFIGURATIONS, {"binary", "missing", "folder"}),
    ("run", "FILE", "--check", "1"): ({"p.toml"}, TEXTS | {"empty"}),
    ("run", "--resume", "FILE"): ({"run"}, {"binary", "missing", "folder"}),
    ("profile", "FILE", "--no-roofs", "--sweeps", "1"): ({"p.toml"}, TEXTS | {"empty"}),
    ("plan", "all-reduce", "--size", "8", "--nodes", "1", "--hierarchy", "4", "--machine", "FILE"): (
        {"machine.toml"},
        TEXTS,
    ),
    ("machine", "show", "FILE"): ({"machine.toml"}, TEXTS),
    ("explain", "all-reduce", "--rules", "FILE"): ({"rules.toml"}, TEXTS),
    ("explain", "all-reduce", "--times", "FILE"): (set(), TEXTS - {"other.toml"} | {"x.json", "empty"}),
    ("tune", "import-mpich", "FILE"): (set(), TEXTS - {"other.toml"} | {"x.json"}),
    ("mpirun", "./FILE"): (set(), {"binary", "missing", "folder", "program"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds")
    extents = (2, 2, 2, 2)
    links, box = random_links(extents, 3), Box.whole(extents)
    reported = {"plaquette": 0.0, "link_trace": 0.0}
    write_ildg(path / "c.ildg", links, box, extents, **reported)
    write_nersc(path / "c.nersc", links, box, extents, **reported)
    jali.gauge.GaugeField(jali.Lattice(2, 2), jali.SU(2)).cold_start().save(str(path / "c.npy"))
    (path / "p.toml").write_text(PARAMETERS)
    shutil.copy(ROOT / "machines" / "delta.toml", path / "machine.toml")
    (path / "rules.toml").write_text("version = 1\n[[rule]]\nalgorithms = ['ring']\n")
    (path / "x.json").write_text(' {"a": 1}')
    (path / "empty").write_bytes(b"")
    (path / "picture.toml").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (path / "program").write_bytes(b"\x7fELF" + bytes(100))
    (path / "s.py").write_text("x = 1\n")
    (path / "other.toml").write_text("x = 1\n")
    (path / "text").write_text("hello world\n")
    (path / "binary").write_bytes(bytes(range(200, 256)) * 50)
    (path / "folder").mkdir()
    assert jali_here("run", path / "p.toml", "--output", path / "run") == 0
    return path


@pytest.mark.parametrize(("name", "words"), KINDS.items())
def test_a_file_is_known_by_what_it_holds(name: str, words: str, folder: Path) -> None:
    assert str(file_kinds.kind_of(folder / name)).startswith(words)


def test_what_nobody_knows_has_no_kind(folder: Path) -> None:
    assert file_kinds.kind_of(folder / "binary") is None


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_says_what_another_file_is_and_who_takes_it(
    words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(folder)
    taken, left = COMMANDS[words]
    for name in [*KINDS, "binary", "missing"]:
        if name in taken or name == "folder":
            continue
        try:
            status = jali_here(*(word.replace("FILE", name) for word in words))
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr()
        assert status == 2, (name, said.err)
        lines = said.err.splitlines()
        assert name in ("empty", "other.toml") or len(lines) == 1, said.err  # readers list all that is wrong
        assert name in lines[0]
        if name not in left:
            assert f"{name} is {KINDS[name]}" in lines[0]
            assert " needed" in lines[0]
        assert not Path("out.ildg").exists()
