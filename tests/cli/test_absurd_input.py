"""Absurd input: pipes, devices, files larger than memory, names and numbers that nothing can hold. Each is one clear line."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path

import pytest
from jali_command import jali_here

from jali.cli.parameters import load_parameters, parse_parameters
from jali.cli.schema import parameter_specs, toml_value
from jali.errors import FileFormatError, JaliError, LayoutError, ParameterError
from jali.io import open_checkpoint, open_configuration, recognise, write_checkpoint, write_ildg
from jali.planner.machine import Machine

DIGITS = "9" * 5000
GOOD = '[lattice]\nextents = [4, 4]\n[gauge]\ngroup = "U1"\nbeta = 1.0\n'


def one_line(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """What a refused command said: one line, short enough to be read; exit status 2."""
    said = capsys.readouterr()
    assert status == 2, said.err
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("jali: ")
    assert len(lines[0]) < 1500
    return lines[0]


@pytest.fixture
def odd_names(tmp_path: Path):
    """Names that lead to no file, with the words that say so."""
    os.mkfifo(tmp_path / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(tmp_path)  # names of sockets are short
    listener.bind("socket")
    os.chdir(here)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "to-fifo").symlink_to(tmp_path / "fifo")
    yield {
        tmp_path / "fifo": "pipe",
        tmp_path / "to-fifo": "pipe",
        tmp_path / "socket": "socket",
        "/dev/zero": "device",
        "/dev/full": "device",
        tmp_path / "loop": "symbolic links",
        tmp_path / "empty": "empty",
        tmp_path / ("a" * 5000): "name too long",
        tmp_path / "missing": "No such file",
    }
    listener.close()


def test_measure_and_convert_refuse_what_is_no_file_in_one_line_and_wait_for_nobody(
    odd_names, tmp_path, capsys
):
    for name, word in odd_names.items():
        for words in (["measure", name], ["convert", name, tmp_path / "out.lime"]):
            assert word in one_line(capsys, jali_here(*words))
    assert not (tmp_path / "out.lime").exists()


def test_readers_in_python_refuse_what_is_no_file(odd_names):
    for name in odd_names:
        for read in (open_configuration, recognise, load_parameters, Machine.load, open_checkpoint):
            with pytest.raises((JaliError, OSError)):
                read(name)


def test_parameter_and_machine_files_that_are_no_files_are_refused(odd_names, tmp_path, capsys):
    for name, word in odd_names.items():
        if word != "empty":
            assert word in one_line(capsys, jali_here("run", name, "--output", tmp_path / "out"))
        machine = ["simulate", "all-reduce", "--machine", name]
        one_line(capsys, jali_here(*machine))


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "nothing\0"])
def test_names_that_no_file_can_have_are_refused(name, tmp_path):
    import numpy as np

    from jali.io import Box

    links = np.zeros((1, 1, 1, 1, 4, 3, 3), complex)
    for use in (
        open_configuration,
        recognise,
        open_checkpoint,
        load_parameters,
        Machine.load,
        lambda p: write_ildg(p, links, Box.whole((1, 1, 1, 1)), (1, 1, 1, 1)),
        lambda p: write_checkpoint(p, (1,), Box.whole((1,)), {"a": np.zeros(1)}),
    ):
        with pytest.raises(ParameterError, match="no file's name"):
            use(name)


def test_a_run_cannot_start_from_a_name_with_nul():
    with pytest.raises(ParameterError, match="start_file = .*NUL"):
        parse_parameters(GOOD + 'start = "file"\nstart_file = "a\\u0000b"\n')


def test_a_sparse_file_that_is_larger_than_memory_is_one_line(tmp_path, capsys):
    path = tmp_path / "huge.nersc"
    extents = (128, 128, 128, 1 << 12)
    size = math.prod(extents) * 4 * 9 * 16
    header = "".join(f"DIMENSION_{d} = {n}\n" for d, n in enumerate(extents, 1))
    text = f"BEGIN_HEADER\nDATATYPE = 4D_SU3_GAUGE_3x3\n{header}FLOATING_POINT = IEEE64BIG\nEND_HEADER\n".encode()
    path.write_bytes(text)
    try:
        os.truncate(path, len(text) + size)
    except OSError:
        pytest.skip("this file system holds no such file")
    for words in (["measure", path], ["convert", path, tmp_path / "out.lime"]):
        line = one_line(capsys, jali_here(*words))
        assert "128 x 128 x 128 x 4096" in line
        assert "TiB" in line
        assert "of this machine" in line
    with pytest.raises(ParameterError, match="of this machine"):
        open_configuration(path).read()


@pytest.mark.parametrize("ranks", ["99999999999999", "1048577"])
def test_absurd_numbers_of_ranks_to_check_are_refused(ranks, tmp_path, capsys):
    (tmp_path / "p.toml").write_text(GOOD)
    assert "give 1 to 1048576" in one_line(capsys, jali_here("run", tmp_path / "p.toml", "--check", ranks))
    with pytest.raises(SystemExit) as ended:
        jali_here("run", tmp_path / "p.toml", "--check", DIGITS[:4000])
    assert ended.value.code == 2
    assert "argument --check: '9999" in capsys.readouterr().err


@pytest.mark.parametrize("extents", ["1073741823,1073741823", "1073741823,1073741823,1073741823,1073741823"])
@pytest.mark.parametrize("words", [["--check", "1"], ["--check", "1048576"], ["--output", "out"]])
def test_absurd_extents_are_refused(extents, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(GOOD)
    one_line(capsys, jali_here("run", "p.toml", "--set", f"extents={extents}", *words))
    assert not Path("out").exists()


@pytest.mark.parametrize("value", ["0", "-1", "99999999999999", DIGITS, "1e400", "nan", "0x7"])
def test_absurd_numbers_of_ranks_to_start_are_refused(value, capsys):
    with pytest.raises(SystemExit) as ended:
        jali_here("info", "-n", value)
    assert ended.value.code == 2
    assert "is not a number of ranks to start; give 1 to" in capsys.readouterr().err


@pytest.mark.parametrize("spec", parameter_specs(), ids=lambda spec: spec.path)
@pytest.mark.parametrize(
    "value",
    [
        DIGITS,
        "-" + DIGITS,
        "0x" + "f" * 5000,
        "1" + "0" * 400,
        str(2**63),
        str(-(2**63) - 1),
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-inf",
        "[" * 5000,
        "[" * 90 + "]" * 90,
        "{a = {b = [1]}}",
        "[1e400]",
        f"[{10**30}, 4]",
        '"\\u0000"',
        '"' + "x" * 5000 + '"',
        "1979-05-27T07:32:00Z",
        "-0.0",
        "-0",
    ],
    ids=lambda value: f"{value[:12]}-{len(value)}",
)
def test_every_parameter_takes_or_refuses_absurd_values_in_a_short_line(spec, value):
    section, name = spec.path.split(".")
    keys = {"lattice": {"extents": "[4, 4]"}, "gauge": {"group": '"U1"', "beta": "1.0"}, section: {}}
    keys = {"lattice": {"extents": "[4, 4]"}, "gauge": {"group": '"U1"', "beta": "1.0"}} | (
        {section: {}} if section not in keys else {}
    )
    keys.setdefault(section, {})[name] = value
    text = "".join(f"[{s}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for s, of in keys.items())
    for attempt in (
        lambda: parse_parameters(text, "p.toml"),
        lambda: parse_parameters(GOOD, "p.toml", [f"{spec.path}={value}"]),
    ):
        found, complaint = None, ""
        try:
            found = getattr(getattr(attempt(), section), name)
        except ParameterError as error:
            complaint = str(error)
        assert all(len(line) < 700 for line in complaint.splitlines()), complaint[:300]
        # texts may be anything; numbers within the range
        assert complaint or spec.is_text or spec.kind is float or found == 0, found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gauge]\nbeta = " + DIGITS, "too many digits"),
        ("a = " + "[" * 100000, "nested too deeply|is not TOML"),
        ("a = " + "{b=" * 5000, "nested too deeply|is not TOML"),
        ("gauge.beta" + ".a" * 5000 + " = 1", "must be a number"),
        ("[" + "a" * 100000 + "]\nb=1", "there is no section"),
        ("a" * 100000 + " = 1", "stands outside any section"),
        (" " * 100000 + "x", "not TOML"),
        ("[lattice]\nextents = [4, 4] #" + " " * 100000 + "\n[gauge]\nbeta = 1", "group is missing"),
        ("a = 1\0", "not TOML"),
        ("a = 2000-99-99", "not TOML"),
    ],
    ids=range(10),
)
def test_absurd_parameter_files_are_refused_in_short_lines(text, message, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ParameterError, match=message) as refused:
        load_parameters(path)
    assert all(len(line) < 1000 for line in str(refused.value).splitlines())


def test_a_parameter_file_may_begin_with_a_byte_order_mark_and_has_an_end(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_parameters(path).lattice.extents == (4, 4)
    path.write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(ParameterError, match="is not UTF-8 text"):
        load_parameters(path)
    os.truncate(path, 145_000_000_000)
    with pytest.raises(FileFormatError, match="too many for a parameter file"):
        load_parameters(path)


MACHINE = """
name = "m"
nodes = {nodes}
[network]
nics = {nics}
rated = {rated}
latency = {latency}
binding = {binding}
crowd = {crowd}
[[level]]
name = "gpu"
parts = {parts}
wiring = "ports"
bandwidth = {bandwidth}
[library.l]
node = {{ latency = {gap} }}
gpu = {{}}
"""
USUAL = {"nodes": 2, "nics": 1, "rated": 25, "latency": 1, "binding": '"packed"', "crowd": 4, "parts": 4} | {
    "bandwidth": 100,
    "gap": 1,
}


@pytest.mark.parametrize("key", USUAL)
@pytest.mark.parametrize(
    "value",
    [
        str(10**20),
        DIGITS,
        "0x" + "f" * 5000,
        str(10**400),
        str(2**63),
        "1e400",
        "nan",
        "-1",
        "-inf",
        "1e-320",
        "[" * 5000,
        "[" * 90 + "]" * 90,
        "{}",
        '"' + "x" * 5000 + '"',
        "true",
    ],
    ids=lambda value: f"{value[:12]}-{len(value)}",
)
def test_machine_files_with_absurd_values_are_refused_at_once_in_a_short_line(key, value, tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(MACHINE.format(**USUAL))
    assert Machine.load(path).ranks == 8
    path.write_text(MACHINE.format(**{**USUAL, key: value}))
    if value == "1e400" and key == "bandwidth":
        assert Machine.load(path).ranks == 8  # infinite: free
        return
    with pytest.raises(ParameterError) as refused:
        Machine.load(path)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("nodes", [10**20, 2**31, 1 << 20, 0, -5, True])
def test_a_machine_with_absurdly_many_nodes_is_refused(nodes):
    with pytest.raises(ParameterError, match="nodes"):
        Machine.load("perlmutter", nodes)


@pytest.mark.parametrize(
    "option", ["--nodes", "--root", "--stripe", "--ring", "--depth", "--hierarchy", "--size"]
)
@pytest.mark.parametrize("value", ["99999999999999999999", DIGITS, "1e400", "nan", ""])
def test_absurd_numbers_for_plans_are_refused(option, value, capsys):
    with pytest.raises(SystemExit) as ended:
        jali_here("plan", "all-reduce", "--machine", "delta", f"{option}={value}")
    assert ended.value.code == 2
    assert len(capsys.readouterr().err) < 2500


@pytest.mark.parametrize(
    ("time", "step"), [("1e300", "0.02"), ("1", "1e-300"), ("1e400", "0.02"), ("nan", "0.02")]
)
def test_a_flow_without_end_is_refused_before_anything_is_read(time, step, capsys, tmp_path):
    words = ["measure", tmp_path / "missing", "--flow", "--flow-time", time, "--flow-step", step]
    line = one_line(capsys, jali_here(*words))
    assert "steps" in line or "positive number" in line
    with pytest.raises(ParameterError, match="flow"):
        parse_parameters(GOOD + f"[measure]\nflow = true\nflow_time = {time}\nflow_step = {step}\n")


def test_lattices_beyond_the_numbers_of_sites_are_refused():
    import jali

    for extents in ((1 << 30, 2), (10**30, 2), ((1 << 30) - 1,) * 4):
        with pytest.raises(LayoutError, match="too large"):
            jali.Lattice(*extents)


def test_the_echo_of_large_values_is_read_back():
    text = toml_value(2**63 - 1)
    assert parse_parameters(GOOD, overrides=[f"run.seed={text}"]).run.seed == 2**63 - 1


def test_a_name_that_is_no_text_is_printed_as_it_was_given(tmp_path):
    """Names are bytes; they come back as the same bytes, whatever the locale."""
    import subprocess
    import sys

    import numpy as np

    from jali.io import Box

    name = os.fsencode(tmp_path) + b"/\xff.ildg"
    whole = Box.whole((2, 2, 2, 2))
    write_ildg(os.fsdecode(name), np.ones((*whole.shape, 4, 1, 1), complex), whole, (2, 2, 2, 2))
    words = [sys.executable, "-m", "jali", "measure", name]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert name in done.stdout
