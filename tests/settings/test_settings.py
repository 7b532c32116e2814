"""jali.settings: what variables may be, errors that name all that is wrong, names that nobody reads, other settings for a while."""

from __future__ import annotations

import os
import random as random_
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_jali, run_python

import jali
from jali import _core, settings
from jali.comm import algorithms
from jali.errors import ParameterError
from jali.tune import MODES, experiment

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {spec.variable: spec.name for spec in settings.specs() if spec.variable}
RULES = str(ROOT / "core" / "planning" / "rules.toml")
# For each setting texts that it takes, with what they are then, and texts that it does not take.
TAKEN: dict[str, dict[str, object]] = {
    "threads": {"1": 1, "4096": 4096},
    "vector_bytes": {"8": 8, "64": 64},
    "cache_dir": {"/tmp/kernels": "/tmp/kernels"},
    "prefetch": {"auto": "auto", "off": "off", "leading": "leading", "all": "all"},
    "device": {"cpu": "cpu", "cuda": "cuda", "hip": "hip", "cuda:12": "cuda:12"},
    "tune": {name: name for name in MODES},
    "nvtx": {"0": False, "1": True},
    "transport": {"mpi": "mpi", "self": "self", "thread": "thread"},
    "watchdog": {"600": 600.0, "1.5": 1.5, "1e3": 1000.0},
    "device_watchdog": {"60": 60.0, "0.5": 0.5},
    "wait_warning": {"0": 0.0, "0.25": 0.25},
    "shm": {"auto": "auto", "0": "0", "1": "1"},
    "shm_copy": {"auto": "auto", "cma": "cma", "slots": "slots"},
    "collective_rules": {RULES: RULES},
    "halo_policy": {
        "auto": "auto",
        "auto-graph": "auto-graph",
        "messages-wait": "messages-wait",
        "nccl-directions": "nccl-directions",
    },
    "collective": {
        text: text
        for text in ("ring", "all_reduce=ring, binomial", "ring by nccl", "two_level by shm and mpi", "mpi")
    },
    "cxx": {text: text for text in ("g++", "ccache g++ -O1", "'/a b/g++'", '"it\'s"', "a\\ b")},
    "checked": {"0": False, "1": True},
    "expected_ranks": {"1": 1, "100000": 100000},
    "mpi_counters": {"0": False, "1": True},
    "mpi_serve": {"auto": "auto", "0": "0"},
    "mpi_ask_from": {"0": 0, "4096": 4096},
    "gpu_aware_mpi": {"auto": "auto", "0": "0", "1": "1"},
    "peer_handles": {"auto": "auto", "ipc": "ipc", "virtual": "virtual"},
    "launch": {"256,1": "256,1"},
    "early_launch": {"0": False, "1": True},
    "halo_off": {"bulk": "bulk", "pack,transport, bulk,boundary": "pack,transport, bulk,boundary"},
    "device_tile": {"4,4,4,4": "4,4,4,4"},
    "device_tables": {"codes": "codes", "entries": "entries"},
    "device_queues": {"channels=32": "channels=32"},
    "device_transport": {
        name: name for name in ("remote-write", "copy-engine", "array-write", "nccl", "rccl", "gpu-aware-mpi")
    },
    "message_transport": {
        name: name for name in ("remote-write", "copy-engine", "nccl", "rccl", "gpu-aware-mpi", "host-staged")
    },
    "prove_launches": {"0": False, "1": True},
}
FREE = (
    "cuda_driver",
    "nvrtc",
    "hip_driver",
    "hiprtc",
    "nccl",
    "rccl",
    "nvtx_library",
    "roctx_library",
)
FREE += (
    "xdg_cache_home",
    "home",
    "nvtx_injection64_path",
    "mpich_gpu_support_enabled",
    "mv2_use_cuda",
    "mv2_use_rocm",
)
TAKEN |= {name: {"/any where": "/any where"} for name in FREE}
REFUSED = {
    "threads": ("0", "-1", "2.5", "many", "4097", "99999999999", "1 ", "0x10"),
    "vector_bytes": ("4", "128", "32 bytes"),
    "prefetch": ("yes", "AUTO", "leading,all"),
    "device": ("gpu", "cpu:0", "cuda:", "cuda:x", "cuda:1:2", "cuda:-1"),
    "tune": ("sometimes",),
    "nvtx": ("yes", "2", "true"),
    "transport": ("pigeon",),
    "watchdog": ("soon", "-3", "0", "inf", "nan", "12x", "0x10", " 7", "7 ", "+7", "1e10", "1,5", "1e400"),
    "wait_warning": ("soon", "-1", "inf", "-0.1"),
    "cache_dir": (__file__,),
    "collective_rules": ("/nowhere/rules.toml", "/", __file__, "rules\x1b.toml"),
    "cxx": ('g++ "', "g++ '", "g++ \\", " ", "\t", '""" g++'),
    "launch": ("many", "256", "256,1,1,1,1", "256,,1", "0,1", "256;1"),
    "device_tile": ("4x4", "4,0", "4,", "-4"),
    "shm": ("yes", "2"),
    "shm_copy": ("teleport",),
    "halo_policy": ("by-pigeon", "remote-write", "overlap,wait"),
    "collective": (
        *("fastest", "all_reduce=fastest", "everything=ring", "ring,,binomial", "all_reduce="),
        *(
            "ring by by",
            "ring by ",
            "ring by nccl and mpi",
            "pipelined by nccl",
            "broadcast=bruck",
            "ring by shm and mpi",
        ),
    ),
    "checked": ("on",),
    "expected_ranks": ("0", "two"),
    "mpi_counters": ("yes",),
    "mpi_serve": ("always",),
    "mpi_ask_from": ("-1", "4 KiB"),
    "gpu_aware_mpi": ("maybe",),
    "peer_handles": ("fabric",),
    "early_launch": ("maybe",),
    "halo_off": ("bulk,weather", "bulk,"),
    "device_transport": ("staged", "peer", "ccl"),
    "message_transport": ("pigeon",),
    "prove_launches": ("maybe",),
}


def read(**variables: str) -> _core.Settings:
    return _core.read_settings(variables)[0]


def test_every_setting_is_tried_here() -> None:
    assert set(TAKEN) == {spec.name for spec in settings.specs()}


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_setting_takes_arrives_with_its_type(name: str) -> None:
    default = getattr(read(), name)
    for text, value in TAKEN[name].items():
        found = getattr(settings.current().changed({name: text}), name)
        assert (found, type(found)) == (value, type(default))
        for variable in (v for v, of in VARIABLES.items() if of == name):
            assert getattr(read(**{variable: text}), name) == value
    assert getattr(settings.current().changed({name: ""}), name) == default


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in REFUSED for text in REFUSED[name]])
def test_what_a_setting_does_not_take_is_an_error_that_says_what_it_takes(name: str, text: str) -> None:
    (spec,) = (spec for spec in settings.specs() if spec.name == name)
    there = text.replace("\t", "\\x09").replace("\x1b", "\\x1b")
    with pytest.raises(ParameterError, match=re.escape(f"{name}={there} should be {spec.values}")):
        settings.current().changed({name: text})
    if spec.variable:
        with pytest.raises(
            ParameterError, match=re.escape(f"{spec.variable}={there} should be {spec.values}")
        ):
            read(**{spec.variable: text})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("collective", "ring by by", "'by' carries no messages; array-write, "),
        ("collective", "ring, broadcast=bruck", "'bruck' is no algorithm of broadcast"),
        ("collective", "reduce_all=ring", "there is no collective 'reduce_all'"),
        ("cxx", 'g++ -DX="a b', 'a " is opened and not closed'),
        ("cxx", "g++ \\", "a \\ stands at its end"),
        ("cxx", " ", "it names no program"),
        ("collective_rules", "/", "the rules of collectives, /, cannot be read"),
        ("collective_rules", __file__, "test_settings.py, line 1: "),
    ],
)
def test_what_the_words_do_not_say_is_said_of_the_value(name: str, text: str, why: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{name}=.* should be .*: .*{re.escape(why)}"):
        settings.current().changed({name: text})


def mutated(text: str, random: random_.Random) -> str:
    """The text after some edits that people and scripts make, and some that nobody makes."""
    odd = [
        *"\"'\\=,: \t\n\x01\x7f0-",
        "\u00e4",
        "\u2028",
        "\x85",
        " by ",
        " and ",
        "9" * 40,
        "x" * 4000,
        "\U0001f600",
    ]
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(text))
        text = random.choice(
            [
                text[:at] + random.choice(odd) + text[at:],
                text[:at] + text[at + 1 :],
                text[::-1],
                text * 2,
                text.upper(),
            ]
        )
    return text


def test_any_value_is_taken_or_is_one_short_line_with_variable_value_and_what_would_be_right() -> None:
    random = random_.Random(7)
    refused = 0
    for spec in settings.specs():
        for _ in range(60):
            text = mutated(random.choice([*TAKEN[spec.name], *REFUSED.get(spec.name, ("x",))]), random)
            name = spec.variable or spec.name
            changed, said = None, ""
            try:
                changed = read(**{name: text}) if spec.variable else settings.current().changed({name: text})
            except ParameterError as error:
                said = str(error)
            if changed is None:
                refused += 1
                assert len(said.splitlines()) == 1
                assert said.startswith(f"{name}=")
                assert f" should be {spec.values}" in said
                assert len(said) < len(spec.values) + 1200
            else:
                assert text == "" or dict(changed.differing()).get(name, text) == text or spec.name in SPELT
    assert refused > 800


# Of which differing() has another spelling of the same number or flag.
SPELT = ("watchdog", "device_watchdog", "wait_warning", "threads", "expected_ranks", "mpi_ask_from")


def test_bytes_that_are_no_text_are_an_error_by_name_in_the_environment_and_in_python() -> None:
    given = {spec.variable: b"\xff/a" for spec in settings.specs() if spec.variable}
    environment = {os.fsencode(name): os.fsencode(value) for name, value in settings.environment().items()}
    text = """
try:
    import jali
except Exception as error:
    print(type(error).__name__, error, sep="\\n")
"""
    done = run_python(text, env=environment | {name.encode(): value for name, value in given.items()})
    kind, *lines = done.stdout.splitlines()
    assert kind == "ParameterError"
    for line, (name, spec) in zip(
        lines, ((r.variable, r) for r in settings.specs() if r.variable), strict=True
    ):
        assert line == rf"{name}=\xff/a should be {spec.values}, written in UTF-8"
    with pytest.raises(ParameterError, match=r"cache_dir=.*should be text that UTF-8 can hold"):
        settings.changed(cache_dir="\udcff")


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("name", ["threads", "cache_dir", "collective", "device_queues"])
def test_a_value_that_is_neither_text_nor_number_is_refused(name: str) -> None:
    words = f"{name} should be a text, a number, True, False or None, not "
    for value in (np.zeros((100, 100)), [Unshown()], Unshown(), object(), b"4", 1j, iter([1]), len):
        with pytest.raises(ParameterError, match=words) as caught:
            settings.changed(**{name: value})  # type: ignore[arg-type]
        assert len(str(caught.value)) < 250


def test_numbers_of_numpy_and_paths_are_values() -> None:
    found = settings.changed(threads=np.int64(3), checked=np.True_, watchdog=np.float32(1.5), cache_dir=ROOT)
    assert (found.threads, found.checked, found.watchdog, found.cache_dir) == (3, True, 1.5, str(ROOT))


@pytest.mark.parametrize("name", ["x" * 100_000, "\udc80", "a\nb"])
def test_a_name_that_no_setting_has_is_one_short_line(name: str) -> None:
    with pytest.raises(ParameterError, match="there is no setting ") as caught:
        settings.changed(**{name: 1})
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"halo_off": 3}, "halo_off=3 should be a list of pack, transport, bulk or boundary"),
        ({"halo_off": [None]}, "halo_off=None should be"),
        ({"device_tile": 7.5}, "device_tile=7.5 should be extents"),
    ],
)
def test_several_choices_of_an_experiment_are_judged_by_the_table(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words), experiment(**choice):
        pass
    with pytest.raises(ParameterError, match="device_tile=a .*Unshown that cannot be shown should be"):
        experiment(device_tile=[Unshown()]).__enter__()  # type: ignore[list-item]


def test_a_name_that_is_no_text_is_noted() -> None:
    environment = {os.fsencode(k): os.fsencode(v) for k, v in settings.environment().items()}
    done = run_python("import jali", env=environment | {b"JALI_\xff": b"1"})
    assert r"FutureWarning: JALI_\xff is no setting of jali; did you mean JALI_" in done.stderr


RULES_HEAD = "version = 1\n[[rule]]\nalgorithms = ['ring']\nwhy = "


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version = 1\n\n# \xe4\n", r"line 3: byte \xe4 is no text; TOML is written in UTF-8"),
        (RULES_HEAD.encode() + b"'\xed\xa0\x80'\n", r"line 4: byte \xed is no text"),
        (b"version = 1\n\x00", r"line 2: byte \x00 is no text"),
        (
            "version = 1\n\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\n".encode(),
            "line 2: expected a key, not '\u00e4",
        ),
        ((RULES_HEAD + '"\\\u00e4"\n').encode(), "line 4: '\\\u00e4' in a string"),
        (b"version = 1\n\x1b[31m\n", r"line 2: expected a key, not '\x1b[31m'"),
        (b"\xff\xfev\x00", r"line 1: byte \xff is no text"),
        (b"", "line 1: rules begin with version = 1"),
    ],
)
def test_a_file_of_rules_that_is_no_text_is_reported_with_line_and_byte(
    content: bytes, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "rules.toml"
    file.write_bytes(content)
    with pytest.raises(ParameterError, match=re.escape(f"{file}, {said}")) as caught:
        settings.changed(collective_rules=str(file))
    assert len(str(caught.value).splitlines()) == 1


def test_a_mark_of_byte_order_in_front_of_rules_is_no_part_of_them(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_bytes(b"\xef\xbb\xbf" + (RULES_HEAD + "'fast'\n").encode())
    assert settings.changed(collective_rules=str(file)).collective_rules == str(file)


def test_rules_with_any_bytes_in_them_are_read_or_are_one_line(tmp_path: Path) -> None:
    random = random_.Random(5)
    whole = Path(RULES).read_bytes()
    first = whole[: whole.index(b"[[rule]]", 3000)]
    file = tmp_path / "rules.toml"
    refused = 0
    for _ in range(150):
        data = bytearray(first)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        file.write_bytes(data)
        said = ""
        try:
            settings.changed(collective_rules=str(file))
        except ParameterError as error:
            said = str(error)
        refused += bool(said)
        assert said == "" or (len(said.splitlines()) == 1 and "rules.toml, line " in said)
    assert refused > 50


def test_one_error_names_all_that_is_wrong() -> None:
    wrong = {"JALI_THREADS": "many", "JALI_TUNE": "off", "JALI_WATCHDOG": "0", "JALI_CHECKED": "yes"}
    with pytest.raises(ParameterError) as caught:
        read(**wrong)
    lines = str(caught.value).splitlines()
    assert [line.partition(" should be ")[0] for line in lines] == [
        "JALI_THREADS=many",
        "JALI_WATCHDOG=0",
        "JALI_CHECKED=yes",
    ]


def test_a_wrong_value_is_an_error_when_jali_is_imported() -> None:
    variables = settings.environment() | {"JALI_TRANSPORT": "pigeon", "JALI_SHM": "yes"}
    text = """
try:
    import jali
except Exception as error:
    print(type(error).__name__)
    print(error)
"""
    assert run_python(text, env=variables).stdout.splitlines() == [
        "ParameterError",
        "JALI_TRANSPORT=pigeon should be mpi, self or thread",
        "JALI_SHM=yes should be auto, 0 or 1",
    ]
    done = run_jali("info", env=variables, status=2)
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "jali: JALI_TRANSPORT=pigeon should be mpi, self or thread",
        "JALI_SHM=yes should be auto, 0 or 1",
    ]


def test_an_empty_variable_is_as_if_it_were_not_there() -> None:
    assert read(**dict.fromkeys(VARIABLES, "")).differing() == []


def test_experiments_have_no_variable() -> None:
    assert read(JALI_LAUNCH="256,1", launch="256,1").differing() == []


@pytest.mark.parametrize(
    ("variable", "note"),
    [
        ("JALI_HALO_POLCY", "JALI_HALO_POLCY is no setting of jali; did you mean JALI_HALO_POLICY?"),
        ("JALI_WATCHDOGS", "JALI_WATCHDOGS is no setting of jali; did you mean JALI_WATCHDOG?"),
        ("JALI_CACHE", "JALI_CACHE is no setting of jali; did you mean JALI_CACHE_DIR?"),
        ("JALI_LAUNCH", "JALI_LAUNCH is not read any more; use jali.tune.experiment(launch=...)"),
        (
            "JALI_PEER_PUT",
            "JALI_PEER_PUT is not read any more; use transport=... at the sender, or jali.tune.experiment(message_transport=...)",
        ),
    ],
)
def test_names_that_nobody_reads_are_noted(variable: str, note: str) -> None:
    assert _core.read_settings({variable: "1", "PATH": "/bin"})[1] == [note]


def test_what_tests_and_other_programs_say_is_not_noted() -> None:
    assert _core.read_settings({"JALI_TEST_X": "1", "JALI_FAKE_GPUS": "1", "MY_JALI_X": "1"})[1] == []


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, True),
        ({"PMI_RANK": "0"}, True),
        ({"PMI_RANK": "1"}, False),
        ({"JALI_EXPECTED_RANKS": "2"}, False),
    ],
)
def test_one_process_of_a_job_warns(more: dict[str, str], warned: bool) -> None:
    done = run_python("import jali", env=settings.environment() | {"JALI_EARLY_LAUNCH": "off"} | more)
    assert ("FutureWarning: JALI_EARLY_LAUNCH is not read any more" in done.stderr) == warned


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        settings.current().threads = 3  # type: ignore[misc]


def test_using_is_for_a_while_and_for_all_threads() -> None:
    before = settings.current()
    seen = []
    with settings.using(watchdog=7, checked=True, halo_policy="messages-wait") as inside:
        thread = threading.Thread(target=lambda: seen.append(settings.current()))
        thread.start()
        thread.join()
        assert seen[0] is inside is settings.current()
        with settings.using(watchdog=None):
            assert (settings.current().watchdog, settings.current().checked) == (600, True)
        assert settings.current() is inside
    assert settings.current() is before
    assert (inside.watchdog, inside.halo_policy) == (7, "messages-wait")  # it never changes
    with pytest.raises(ParameterError, match="there is no setting watch_dog"), settings.using(watch_dog=1):
        pass
    assert settings.current() is before


def test_settings_that_are_used_after_an_error_are_those_from_before() -> None:
    before = settings.current()
    with pytest.raises(ZeroDivisionError), settings.using(watchdog=7):
        raise ZeroDivisionError
    assert settings.current() is before


def test_a_changed_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (variable,) = (spec.variable for spec in settings.specs() if spec.name == "watchdog")
    monkeypatch.setenv(variable, "3")
    assert settings.current().watchdog == 600


def test_programs_that_are_started_get_the_current_settings(use_settings: Callable[..., None]) -> None:
    use_settings(watchdog=2.5, checked=True, nvtx=None)
    text = "import jali; s = jali.settings.current(); print(s.watchdog, s.checked, s.threads)"
    assert run_python(text, env=settings.environment(threads=3)).stdout.split() == ["2.5", "True", "3"]
    assert "JALI_CHECKED" not in settings.environment(checked=None)


def test_the_command_shows_what_is_not_the_default() -> None:
    said = run_jali("info", env=settings.environment(watchdog=5, tune="off")).stdout
    (line,) = (line for line in said.splitlines() if line.startswith("settings"))
    assert "JALI_TUNE=off" in line
    assert "JALI_WATCHDOG=5" in line


def test_experiments_are_settings_for_a_while() -> None:
    with experiment(launch="64,1", early_launch=False, device_tile=(4, 4), halo_off=("bulk", "boundary")):
        assert settings.current().differing()[-4:] == [
            ("launch", "64,1"),
            ("early_launch", "0"),
            ("halo_off", "bulk,boundary"),
            ("device_tile", "4,4"),
        ]
        with experiment(launch="128,1"):  # what is not given stays
            assert not settings.current().early_launch
    assert settings.current().early_launch


def test_policies_and_algorithms_are_those_that_there_are() -> None:
    """The table of settings knows no other tables, so it repeats their names."""
    values = {spec.name: spec.values for spec in settings.specs()}
    policies = {name for kind in ("cpu", "cuda", "hip") for name, *_ in _core.halo_policies(kind)}
    assert set(re.split(", | or ", values["halo_policy"])) == policies | {"auto", "auto-graph"}
    names = {*(spec.name for spec in algorithms.ALGORITHMS), *algorithms.ON_DEVICES, algorithms.BY_MPI}
    names |= {name for name, *_ in algorithms.OTHER_NAMES}
    listed, _, rest = values["collective"].removeprefix("a list of ").partition(", each ")
    assert set(re.split(", | or ", listed)) == names
    assert set(re.split(", | or ", rest.partition("(")[2].rstrip(")"))) == set(algorithms.COLLECTIVES)


def files(*folders: str, kinds: tuple[str, ...]) -> list[Path]:
    found = [
        path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds
    ]
    assert found
    return found


def test_nothing_else_reads_the_environment() -> None:
    """jali.early comes before everything, launcher_environment.py reads what launchers say, settings.py passes all of it on to children. Processes of
    jali.bench.compare may run another jali, which has no settings."""
    reading = re.compile(r"getenv|os\.environ|\benviron\b")
    found = {
        str(path.relative_to(ROOT))
        for path in files("core", "src/jali", kinds=(".cpp", ".hpp", ".py"))
        if reading.search(path.read_text()) and "compare" not in path.parts
    }
    assert found == {
        "core/settings/settings.cpp",
        "src/jali/codegen/guards.py",  # the environment that site functions of users read
        "src/jali/comm/launcher.py",  # that of the ranks of a launcher, in /proc
        "src/jali/comm/launcher_environment.py",
        "src/jali/early.py",
        "src/jali/settings.py",
    }


def test_tests_and_benchmarks_do_not_change_the_environment_of_this_process() -> None:
    ours = r'\(?\s*"JALI_(?!FAKE|TEST)'
    changing = re.compile(
        rf"(?:setenv|delenv|environ\.(?:setdefault|pop|update)){ours}|environ\[{ours}\w+\"\]\s*=(?!=)"
    )
    found = [
        p for p in files("tests", "benchmarks", "examples", kinds=(".py",)) if changing.search(p.read_text())
    ]
    assert found == []


def test_fewer_variables_than_there_were() -> None:
    assert (
        sum(variable.startswith("JALI_MPI_") for variable in VARIABLES) <= 3
    )  # programs that call MPI have nothing else
    assert sum(variable.startswith("JALI_") for variable in VARIABLES) <= 31


def test_settings_are_public() -> None:
    assert jali.settings is settings
    assert "settings" in jali.__all__
