"""`jali example` lists applications, runs one with other parameters, checks and draws it, and says what is wrong with what it is told."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import need_mpi, run_jali

from jali import comm, examples
from jali.arrays import engine_choice
from jali.cli.main import main
from jali.cli.progress import StepProgress
from jali.errors import DeviceError, ParameterError
from jali.examples import AtLeast, AtMost, Near, Of, Verdict, furthest, verdicts
from jali.examples.timing import covered
from jali.profile import Span

QUICK = ["example", "lsm", "--size", "small", "--set", "iterations=3", "--set", "sources=2"]


def test_examples_are_listed_with_what_they_need_and_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 0
    text = capsys.readouterr().out
    assert "lsm           least-squares migration" in text
    assert "needs pylops for --check" in text
    assert "size gpu: nx=1001, nz=501" in text
    assert main(["example", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(entries) == set(examples.EXAMPLES)
    assert entries["lsm"]["sizes"]["gpu"]["sources_per_rank"] == 64


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_each_example_has_what_the_command_calls(name: str) -> None:
    module = pytest.importorskip(examples.EXAMPLES[name].module)
    assert module.__doc__
    assert len(module.__doc__.splitlines()[0]) > 30
    assert {"laptop", "small"} <= set(module.SIZES)
    assert "gpu" in module.SIZES or name == "radio"  # which is gridded on the host
    for attribute in ("solve", "expected", "draw"):
        assert getattr(module, attribute).__doc__
    for size in module.SIZES.values():
        assert all(isinstance(value, int | float | str) for value in vars(size).values())


def test_an_example_is_checked_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pylops")
    pytest.importorskip("matplotlib").use("Agg")
    picture = tmp_path / "new" / "image.svg"
    assert main([*QUICK, "--check", "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    assert picture.read_text().lstrip().startswith("<?xml")
    assert "pass: residuals - pylops: " in text
    assert text.count("pass: ") == 2
    assert "% of it in communication" in text
    assert main([*QUICK, "--check", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"]["iterations"] == 3
    assert len(document["series"]["residual"]) == 4
    assert [check["holds"] for check in document["checks"]] == [True, True]


def test_a_number_that_is_not_what_it_should_be_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pylops")
    module = examples.EXAMPLES["lsm"].load()
    monkeypatch.setattr(module, "expected", lambda p, found: {"fall": AtMost(0.0), "none": AtLeast(0.0)})
    assert main([*QUICK, "--check"]) == 1
    text = capsys.readouterr().out
    assert "FAIL: fall: " in text
    assert "FAIL: none: nan, expected at least 0" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lms"], r"there is no example 'lms'; did you mean lsm?"),
        (["xyz"], "there is no example 'xyz'; there are lsm, "),
        (["lsm", "--size", "huge"], "example lsm has no size 'huge'; there are laptop, small, gpu, wide"),
        (
            ["lsm", "--set", "recievers=3"],
            "example lsm has no parameter 'recievers'; did you mean receivers?",
        ),
        (["lsm", "--set", "q=3"], "example lsm has no parameter 'q'; there are nx, nz"),
        (["lsm", "--set", "nx"], "--set takes KEY=VALUE, not 'nx'"),
        (["lsm", "--set", "nx=4.5"], "nx of example lsm is a whole number, not '4.5'"),
        (["lsm", "--set", "tables=much"], "tables of example lsm is a number, not 'much'"),
        (["lsm", "--set", "nx=0"], "nx is 22 or more, not 0"),
        (["lsm", "--set", "sources=0"], "sources or sources_per_rank is 1 or more, both are 0"),
        (["lsm", "--set", "tables=inf"], "tables is 0.0 or more, not inf"),
        (["lsm", "--engine", "fortran"], "engine 'fortran' is none; there are numpy, cupy, torch"),
        (
            ["lsm", "--device", "cuda", "--engine", "numpy"],
            "engine 'numpy' has no arrays on the device 'cuda'",
        ),
        (["lsm", "--picture", "image.txt"], "'image.txt' is no picture: its name should end with one of"),
        (["--check"], "--check is for an example: give its name, one of lsm, "),
        (["--size", "small", "--set", "nx=3"], "--size and --set are for an example: give its name, one of"),
        (["--picture", "a.png"], "--picture is for an example"),
    ],
)
def test_bad_input_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_computing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    assert main([*QUICK, "--picture", "image.png"]) == 2
    reported = capsys.readouterr()
    assert "a picture needs matplotlib, which is not installed: pip install matplotlib" in reported.err
    assert reported.out == ""


def test_an_unknown_device_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["example", "lsm", "--device", "abacus"])
    assert end.value.code == 2
    assert "device 'abacus' is unknown" in capsys.readouterr().err


class Cuda:
    """What CuPy has of devices, two of them; which one is current in a thread."""

    def __init__(self, count: int) -> None:
        self.runtime = SimpleNamespace(getDeviceCount=lambda: count)
        self.current = threading.local()

    @contextmanager
    def Device(self, number: int) -> Iterator[None]:
        self.current.number = number
        yield
        self.current.number = None


def test_ranks_take_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(2)
    monkeypatch.setitem(engine_choice.NAMESPACES, "cupy", SimpleNamespace(xp=SimpleNamespace(cuda=cuda)))

    def device(name: str) -> int:
        with engine_choice.on_device(name, "cupy"):
            return cuda.current.number

    assert comm.virtual_ranks(3, lambda: device("cuda")) == [0, 1, 0]
    assert comm.virtual_ranks(2, lambda: device("cuda:1")) == [1, 1]
    with pytest.raises(DeviceError, match="cupy sees 2 devices here, and the device asked for is 'cuda:2'"):
        device("cuda:2")
    cuda.runtime.getDeviceCount = lambda: 0
    with pytest.raises(DeviceError, match="cupy sees 0 devices here"):
        device("cuda")


def test_the_engine_of_a_device_is_one_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()
    monkeypatch.setattr(engine_choice.importlib.util, "find_spec", lambda name: name in installed or None)
    assert engine_choice.choose_engine("cpu", None) == "numpy"
    with pytest.raises(ParameterError, match="need CuPy or PyTorch, of which none is installed"):
        engine_choice.choose_engine("cuda", None)
    installed.add("torch")
    assert engine_choice.choose_engine("cuda:1", None) == "torch"
    installed.add("cupy")
    assert engine_choice.choose_engine("cuda", None) == "cupy"


def test_a_package_that_is_missing_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = examples.Example("jali.examples.none", "nothing", ("no_such_package",))
    checked = examples.Example("jali.examples.lsm", "nothing", (), ("no_such_package",))
    monkeypatch.setattr(examples, "EXAMPLES", {"none": entry, "checked": checked})
    assert main(["example", "none"]) == 2
    assert (
        "example none needs no_such_package, which is not installed: pip install" in capsys.readouterr().err
    )
    assert main(["example", "checked", "--check"]) == 2
    assert "the check of example checked needs no_such_package" in capsys.readouterr().err
    assert main(["example"]) == 0
    assert "needs no_such_package; not installed: no_such_package" in capsys.readouterr().out


def test_time_of_communication_is_counted_once() -> None:
    def span(phase: str, begin: float, end: float, name: str = "") -> Span:
        return Span(name, phase, 0, "host", begin, end)

    spans = [
        span("collective", 1, 3),
        span("wait", 2, 2.5, "messages"),
        span("send", 2.5, 4),
        span("kernel", 0, 9),
        span("wait", 5, 6, "device"),
        span("transport", 7, 8),
    ]
    assert covered(spans) == 4
    assert covered([]) == 0


def test_what_is_near_enough() -> None:
    wanted = {"near": Near(2.0, 0.1), "zero": Near(0.0, 0.1), "most": AtMost(1.0), "least": AtLeast(1.0)}
    inside = {"near": 2.19, "zero": -0.09, "most": 1.0, "least": 1.0}
    outside = {"near": 2.21, "zero": -0.11, "most": 1.1, "least": 0.9}
    assert [entry.holds for entry in verdicts(inside, wanted)] == [True] * 4
    assert [entry.holds for entry in verdicts(outside, wanted)] == [False] * 4
    assert [entry.holds for entry in verdicts(dict.fromkeys(wanted, float("nan")), wanted)] == [False] * 4
    assert [entry.holds for entry in verdicts({}, wanted)] == [False] * 4
    assert verdicts({}, {"other": Of(1.5, AtMost(2.0))}) == [Verdict("other", 1.5, "at most 2", True)]
    assert furthest([1.0, 2.0, 9.0], [1.0, 2.5]) == 0.2
    assert math.isnan(furthest([1.0], [1.0, 2.0]))


@pytest.mark.mpi
def test_ranks_are_started_and_a_failing_check_is_their_status() -> None:
    need_mpi()
    pytest.importorskip("pylops")
    words = ["example", "lsm", "--size", "small", "--set", "iterations=1", "--check", "-n", 2]
    done = run_jali(*words, status=1)
    assert re.search(r"^pass: residuals - pylops: .*, expected at most 1e-06$", done.stdout, re.MULTILINE)
    assert "FAIL: fall: " in done.stdout
    assert "on 2 ranks" in done.stdout


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_steps_change_one_line_of_a_terminal_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("jali.cli.progress.time.monotonic", lambda: float(next(clock)))
    stream = Terminal()
    progress = StepProgress(stream)
    for done in range(1, 5):
        progress.advance(done, 4)
    progress.say("done")
    text = stream.getvalue()
    assert "step 2/4, 0:02 left" in text
    assert "step 3/4, 0:01 left" in text
    assert text.endswith("\r" + " " * len("step 3/4, 0:01 left") + "\rdone\n")
