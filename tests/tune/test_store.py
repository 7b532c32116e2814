"""The tuner's file: readable, merged by processes that write at once, forgiving of damage, private."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from jali import settings
from jali.cli.main import main
from jali.errors import CompileError
from jali.tune import MODES, Candidate, Entry, Question, Store, Tuner, mode, stores, tune_directory

DEVICE = "Device 9, cuda 13.0"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, use_settings: Callable[..., None]) -> None:
    use_settings(cache_dir=str(tmp_path / "cache"))
    use_settings(tune=None)


def entry(
    kernel: str = "staples", chosen: str = "256,2", measured: str = "2026-01-02T03:04:05+00:00"
) -> Entry:
    candidates = (Candidate("256,1", 2e-3), Candidate("256,2", 1.5e-3), Candidate("128,3", None, "too large"))
    return Entry(
        Question("launch", kernel, "00ff" * 5, "4096 positions of 8x8"), chosen, "256,1", candidates, measured
    )


def test_the_file_can_be_read_by_people():
    store = Store.of_device(DEVICE)
    store.remember(entry())
    assert store.path.name == "Device-9-cuda-13.0.json"
    document = json.loads(store.path.read_text())
    assert document["device"] == DEVICE
    (stored,) = document["entries"]
    assert (stored["kernel"], stored["chosen"], stored["volume"]) == (
        "staples",
        "256,2",
        "4096 positions of 8x8",
    )
    assert stored["candidates"][1] == {"name": "256,2", "microseconds": 1500.0}
    assert stored["candidates"][2] == {"name": "128,3", "microseconds": None, "note": "too large"}
    assert Store.of_device(DEVICE).read() == {entry().question: entry()}


def test_the_folder_belongs_to_its_user_alone():
    assert stat.S_IMODE(tune_directory().stat().st_mode) == 0o700
    tune_directory().parent.chmod(0o777)
    with pytest.raises(CompileError, match="can be written by others"):
        tune_directory()


def test_processes_that_write_at_once_lose_nothing():
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import test_store as t
for k in range(25):
    t.Store.of_device(t.DEVICE).remember(t.entry(f"kernel_{sys.argv[2]}_{k}"))
"""
    folder = str(Path(__file__).parent)
    started = [
        subprocess.Popen([sys.executable, "-c", program, folder, str(k)], env=settings.environment())
        for k in range(3)
    ]
    assert [process.wait(100) for process in started] == [0, 0, 0]
    found = {question.kernel for question in Store.of_device(DEVICE).read()}
    assert found == {f"kernel_{p}_{k}" for p in range(3) for k in range(25)}
    left = sorted(path.name for path in tune_directory().iterdir())
    assert left == ["Device-9-cuda-13.0.json", "Device-9-cuda-13.0.lock"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{ half a", "is damaged"),
        ("", "is damaged"),
        ("[1, 2]", "is not a file of this tuner"),
        ('{"format": "cookbook 3", "entries": []}', "is not a file of this tuner"),
        ('{"format": "jali tuner 1", "device": "Device 9, cuda 13.0"}', "is damaged"),
        (
            '{"format": "jali tuner 1", "device": "Device 9, cuda 13.0", "entries": [{"kind": 3}]}',
            "is damaged",
        ),
        (
            '{"format": "jali tuner 1", "device": "a toaster", "entries": []}',
            "is for another device, 'a toaster'",
        ),
        ("\x00\x01", "is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_warned_about_and_set_aside(text, words):
    store = Store.of_device(DEVICE)
    store.path.write_text(text)
    with pytest.warns(RuntimeWarning, match=words) as caught:
        assert store.read() == {}
    assert str(store.path) in str(caught[0].message)
    with pytest.warns(RuntimeWarning, match=words):
        store.remember(entry())
    assert store.path.with_suffix(".unreadable").read_text() == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(Store.of_device(DEVICE).read()) == [entry().question]


def test_bytes_that_are_no_text_are_warned_about():
    store = Store.of_device(DEVICE)
    store.path.write_bytes(b"\xff\xfe\xff")
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        assert store.read() == {}


@pytest.mark.parametrize("suffix", [".json", ".lock"])
def test_a_pipe_in_place_of_a_file_is_warned_about_and_not_waited_for(suffix):
    store = Store.of_device(DEVICE)
    os.mkfifo(store.path.with_suffix(suffix))
    with pytest.warns(RuntimeWarning, match=r"cannot be (read|written)"):
        store.remember(entry())
    assert store.path.is_file() or suffix == ".lock"


def test_a_folder_that_cannot_be_written_costs_only_time():
    store = Store(tune_directory() / "missing" / "x.json", DEVICE)
    tuner = Tuner(store)
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        tuner.remember(entry())
    assert tuner.recall(entry().question) == entry()


def test_an_equal_answer_of_another_rank_is_not_written_again():
    store = Store.of_device(DEVICE)
    store.remember(entry())
    before = store.path.stat().st_mtime_ns, store.path.stat().st_ino
    store.remember(entry(measured="2027-01-01T00:00:00+00:00"))
    assert (store.path.stat().st_mtime_ns, store.path.stat().st_ino) == before
    store.remember(entry(chosen="256,1"))
    assert store.read()[entry().question].chosen == "256,1"


@pytest.mark.parametrize(
    ("setting", "remembered"),
    [("off", False), ("cached", True), ("on", True), ("now", True), ("again", False)],
)
def test_modes_say_whether_what_is_remembered_counts(setting, remembered, use_settings):
    use_settings(tune=setting)
    Store.of_device(DEVICE).remember(entry())
    tuner = Tuner(Store.of_device(DEVICE))
    assert (tuner.recall(entry().question) is not None) == remembered
    tuner.remember(entry(chosen="256,1"))  # measured by this process: counts, unless nothing does
    found = tuner.recall(entry().question)
    assert (found.chosen if found else None) == (None if setting == "off" else "256,1")


def test_modes_are_what_the_setting_may_be(use_settings):
    assert mode() == "on"
    for name in MODES:
        use_settings(tune=name)
        assert mode() == name


def test_the_command_shows_and_forgets(capsys):
    assert main(["tune"]) == 0
    assert "nothing was measured yet" in capsys.readouterr().out
    for kernel in ("staples", "overrelax"):
        Store.of_device(DEVICE).remember(entry(kernel))
    assert main(["tune", "show"]) == 0
    shown = capsys.readouterr().out
    assert DEVICE in shown
    assert "256,2: 1.33 times as fast as 256,1, of 3" in shown
    assert main(["tune", "show", "staples", "--why"]) == 0
    shown = capsys.readouterr().out
    assert "too large" in shown
    assert "overrelax" not in shown
    assert main(["tune", "show", "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert {e["kernel"] for e in file["entries"]} == {"staples", "overrelax"}
    assert main(["tune", "forget", "staples"]) == 0
    assert [q.kernel for q in stores()[0].read()] == ["overrelax"]
    assert main(["tune", "forget", "staples"]) == 2
    assert "nothing is remembered about a kernel 'staples'" in capsys.readouterr().err
    assert main(["tune", "forget"]) == 0
    assert stores()[0].read() == {}
