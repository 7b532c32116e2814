"""Benchmarks whose cases stall go on with the others; verdicts need more than the spread, and a quiet machine."""

from __future__ import annotations

import functools
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_jali

import jali
from jali import comm, settings
from jali.bench import journal, spreads
from jali.bench.journal import Journal, give_up, is_hung, records, why_no_verdict
from jali.bench.reports import Verdict, verdict_lines
from jali.cli import bench, launch
from jali.errors import ParameterError, RankError
from jali.profile import Load


def append(path: Path, *record: Any) -> None:
    with path.open("ab") as file:
        file.write(pickle.dumps(record))


def test_cases_that_were_found_are_taken_and_lost_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    path.touch()
    first = Journal(comm.current(), path)
    assert first.case("a", lambda: 1) == 1
    with pytest.raises(RankError):
        first.case("b", functools.partial(fail, "rank 1: nothing has moved for 60 s, step 3 of ring, peer 0"))
    name, why = give_up(path, "they ended") or ("", "")
    assert (name, why) == ("b", "stalled: rank 1: nothing has moved for 60 s, step 3 of ring, peer 0")
    assert give_up(path, "they ended") is None
    reported: list[int] = []
    second = Journal(comm.current(), path)
    assert second.lost == {"b": why}
    assert second.case("a", functools.partial(fail, "measured again"), reported.append) == 1
    assert second.case("b", functools.partial(fail, "measured again"), reported.append) is None
    assert second.case("c", lambda: 3, reported.append) == 3
    assert reported == [3]
    assert second.measured == ["c"]
    assert second.conditions()["b"] == why


def fail(text: str) -> int:
    raise RankError(text)


def test_ranks_that_end_without_a_word_lose_the_case_that_they_had_begun(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    append(path, journal.BEGUN, "a")
    append(path, journal.ENDED, "a", 1, [])
    assert give_up(path, "they ended") is None
    append(path, journal.BEGUN, "b")
    with path.open("ab") as file:
        file.write(pickle.dumps((journal.ENDED, "b", 2, []))[:-4])  # killed while it wrote
    assert give_up(path, "its ranks ended with status 9") == ("b", "failed: its ranks ended with status 9")


def test_the_error_of_a_stall_is_reported_in_any_order_of_writes(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    append(path, journal.BEGUN, "a")
    append(path, journal.ERROR, "a", "rank 0 has failed")
    append(path, journal.ERROR, "a", "nothing has moved for 60 s")
    assert give_up(path, "") == ("a", "stalled: nothing has moved for 60 s")


def test_bad_input_is_no_loss(tmp_path: Path) -> None:
    def wrong() -> int:
        raise ParameterError("no such kernel")

    path = tmp_path / "cases"
    path.touch()
    with pytest.raises(ParameterError):
        Journal(comm.current(), path).case("a", wrong)
    assert [kind for kind, *_ in records(path.read_bytes())] == [journal.BEGUN]


def test_a_case_hangs_after_a_long_time_without_progress(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    path.touch()
    long_ago = time.time() - 1000
    os.utime(path, (long_ago, long_ago))
    assert not is_hung(path, 100)  # no case has begun
    append(path, journal.BEGUN, "a")
    assert not is_hung(path, 100)
    os.utime(path, (long_ago, long_ago))
    assert is_hung(path, 100)
    append(path, journal.ENDED, "a", 1, [])
    os.utime(path, (long_ago, long_ago))
    assert not is_hung(path, 100)


def test_a_wait_that_stalls_is_known_as_one(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    path.touch()

    def case() -> int:
        ranks = comm.current()
        book = Journal(ranks, path)
        try:
            return book.case("b", functools.partial(wait_for_nobody, ranks)) or 0
        except RankError:
            return -1

    with settings.using(watchdog=1):
        assert jali.virtual_ranks(2, case) == [-1, -1]
    name, why = give_up(path, "") or ("", "")
    assert name == "b"
    assert why.startswith("stalled: ")
    assert journal.STALL in why


def wait_for_nobody(ranks: Any) -> int:
    """Each waits for a message of the other."""
    ranks.wait([ranks.receive(np.zeros(1), 1 - ranks.rank)])
    return 1


def test_fresh_ranks_are_started_until_all_other_rows_are_there(
    monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Of cases a to d, b stalls and c kills its ranks."""
    starts = []

    def start(count: int, words: Any, hung: Any) -> int:
        path = Path(words[-1])
        assert (count, words[:-1]) == (2, ["bench", "halo", bench.JOURNAL])
        assert not hung()
        starts.append(1)
        book = Journal(comm.current(), path)
        for name in "abcd":
            if name == "b" and "b" not in book.lost:
                with pytest.raises(RankError):
                    book.case(name, functools.partial(fail, "rank 1 failed: nothing has moved for 60 s"))
                return 1
            if name == "c" and "c" not in book.lost:
                append(path, journal.BEGUN, "c")
                return 137 - 128
            assert book.case(name, lambda name=name: name) in (name, None)
        return 1 if book.lost else 0

    monkeypatch.setattr(launch, "start_ranks", start)
    assert bench.start_ranks(2, ["bench", "halo"]) == 1
    assert len(starts) == 3
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0]
        == "jali: b stalled: rank 1 failed: nothing has moved for 60 s; fresh ranks go on with the other cases"
    )
    assert lines[1].startswith("jali: c failed: its ranks ended with status 9")


# A rank that dies in one case, and a stall of all ranks in another.
BREAKING = """
import importlib.util, os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "jali.bench.collectives":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            rounds = module._rounds
            def broken(comm, case, *rest):
                if case.collective == "reduce" and case.payload == 8 and comm.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                if case.collective == "broadcast" and case.payload == 64:
                    raise module.RankError("stage 2 of ring, message to rank 1: nothing has moved for 60 s")
                return rounds(comm, case, *rest)
            module._rounds = broken
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.mpi
def test_stalled_rows_and_dead_ranks_are_reported_and_the_others_measured(
    tmp_path: Path, mpi_here: None
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKING)
    words = (
        "bench",
        "collectives",
        "--only",
        "reduce,broadcast",
        "--largest",
        "64",
        "--rounds",
        "1",
        "-n",
        "2",
    )
    done = run_jali(*words, "--output", tmp_path / "out", status=1, path=[tmp_path])
    cases = [line.split()[:3] for line in done.stdout.splitlines() if "GB/s" in line]
    assert cases == [["reduce", "64", "B"], ["broadcast", "8", "B"]]
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL: ")]
    assert failures[0].startswith("FAIL: reduce 8 B failed: ")
    assert (
        failures[1]
        == "FAIL: broadcast 64 B stalled: stage 2 of ring, message to rank 1: nothing has moved for 60 s"
    )
    assert "broadcast 64 B stalled: " in done.stderr
    assert (
        '"broadcast 64 B": "stalled: stage 2 of ring' in (tmp_path / "out" / "collectives.json").read_text()
    )
    assert "Traceback" not in done.stderr


@pytest.fixture
def mpi_here() -> None:
    from programs import need_mpi

    need_mpi()


# --- spreads -------------------------------------------------------------------------------------------------


def noisy(median: float, spread: float, count: int = 41, seed: int = 1) -> list[float]:
    random = np.random.default_rng(seed)
    return [float(t) for t in median * np.exp(spread * random.normal(size=count))]


def test_a_goal_is_missed_only_beyond_the_spread() -> None:
    ours, theirs = noisy(1.0, 0.01), noisy(1.2, 0.01, seed=2)
    found = spreads.speed(ours, theirs)
    assert found[0] == pytest.approx(1.2, rel=0.02)
    assert found[1] < found[0] < found[2]
    assert spreads.at_least("", found, 1.0).word == "pass"
    assert spreads.at_least("", found, 1.5).word == "FAIL"
    assert spreads.at_most("", found, 1.5).word == "pass"
    assert spreads.at_most("", found, 1.0).word == "FAIL"
    wide = spreads.speed(noisy(1.0, 0.6), noisy(1.2, 0.6, seed=2))
    for verdict in (spreads.at_least("", wide, wide[0] * 1.05), spreads.at_most("", wide, wide[0] * 0.95)):
        assert (verdict.word, verdict.holds) == ("unclear", True)


def test_intervals_hold_the_ratio_nineteen_times_in_twenty() -> None:
    inside = 0
    for seed in range(100):
        _, low, high = spreads.speed(noisy(1.0, 0.1, seed=2 * seed), noisy(1.2, 0.1, seed=2 * seed + 1))
        inside += low <= 1.2 <= high
    assert 88 <= inside <= 100


def test_the_mean_of_equal_rounds_has_no_spread() -> None:
    assert spreads.mean_speed([([1.0] * 5, [2.0] * 5), ([1.0] * 5, [8.0] * 5)]) == pytest.approx(
        (4.0, 4.0, 4.0)
    )


def test_a_busy_machine_gives_no_verdict() -> None:
    book = Journal()
    book._done["a"] = (1, [Load("here", 2, 1.5, 10.0)])
    book._done["b"] = (1, [Load("here", 2, 0.0, 10.0)])
    assert book.load == [Load("here", 2, 0.75, 20.0)]
    said = "the machine was too busy for a verdict: other programs kept 0.8 of the 2 cores of here busy meanwhile"
    assert why_no_verdict(book.load) == said
    lines = list(verdict_lines([Verdict("fast", "slow", False)], why_no_verdict(book.load)))
    assert lines == [f"no verdict: {said}", "(FAIL): fast: slow"]
    book._done["a"] = (1, [Load("here", 2, 0.1, 10.0)])
    assert why_no_verdict(book.load) == ""
