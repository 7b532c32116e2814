"""Roofs that were measured beside other programs are called unreliable, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jali.cli.main import main
from jali.profile import Load, LoadMeter, Roofs, Span, loads, make_table

GIGA = 10**9
WORDS = "roofs are not reliable on this busy machine"
# 1000 GB/s, 2000 GB/s, 500 GFLOP/s, 32 MiB in the last cache
ROOFS = Roofs("host, 1 thread", 1000.0, 2000.0, {"float64": 500.0}, 32 << 20)


def reading(host: str, process: int, own: float, everyone: float | None, cores: int = 8) -> bytes:
    load = {"host": host, "process": process, "cores": cores, "seconds": 2.0, "own": own, "all": everyone}
    return json.dumps(load).encode()


def kernel(bytes: float = 1, moved: float = 1, flops: float = 1, spans: int = 1) -> list[Span]:
    share = {"bytes": int(bytes / spans), "moved": int(moved / spans), "flops": int(flops / spans)}
    return [
        Span("staples", "kernel", 0, "host", k / spans, (k + 1) / spans, precision="float64", **share)
        for k in range(spans)
    ]


def test_others_are_what_the_host_spent_and_its_ranks_did_not():
    (load,) = loads([reading("a", 1, 2.0, 7.0), reading("a", 2, 1.8, 7.2)])
    assert load.others == pytest.approx((7.2 - 3.8) / 2)
    assert load.is_busy
    threads = [
        reading("a", 1, 3.9, 4.0),
        reading("a", 1, 4.0, 4.0),
    ]  # ranks of one process see the same clock
    assert loads(threads)[0].others == pytest.approx(0)
    two = loads([reading("a", 1, 2.0, 2.1), reading("b", 1, 2.0, 6.0)])
    assert [(one.host, one.is_busy) for one in two] == [("a", False), ("b", True)]
    assert loads([reading("a", 1, 2.0, None)]) == []
    assert loads([reading("a", 1, 2.5, 2.0)])[0].others == 0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system does not say what its processors do")
def test_another_process_that_computes_is_seen():
    begin = time.perf_counter()
    meter = LoadMeter()
    burn = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", burn]) as other:
        time.sleep(1.0)
        (load,) = loads([meter.reading()])
        other.kill()
    assert load.seconds <= time.perf_counter() - begin
    assert 0.1 < load.others <= load.cores * 1.1


@pytest.mark.full
def test_a_quiet_machine_has_no_doubts_though_data_come_from_caches():
    # 3000 GB/s of memory in calls of 3 MB, which the cache holds
    table = make_table(kernel(bytes=3000 * GIGA, moved=3000 * GIGA, spans=10**6), [1.0], [ROOFS])
    (entry,) = table.entries
    assert entry.of_memory == pytest.approx(3, rel=1e-6)
    assert table.doubts == []
    assert table.as_dict()["roofs_reliable"] is True
    assert WORDS not in str(table)
    assert "shares above 100 %: the bytes came from a nearer cache" in str(table)


@pytest.mark.parametrize(
    ("spans", "doubt"),
    [
        (kernel(flops=600 * GIGA), "staples reached 120% of the roof of arithmetic"),
        (
            kernel(bytes=1200 * GIGA),
            "staples reached 120% of the roof of memory with what fits into no cache",
        ),
    ],
)
def test_speeds_that_cannot_be_are_called_so_in_text_and_json(spans, doubt):
    table = make_table(spans, [1.0], [ROOFS])
    assert table.doubts == [doubt]
    assert f"{WORDS}: {doubt}" in str(table)
    report = json.loads(json.dumps(table.as_dict()))
    assert (report["roofs_reliable"], report["roofs_doubts"]) == (False, [doubt])


def test_a_few_percent_above_a_roof_are_no_doubt_and_without_roofs_there_is_none():
    assert make_table(kernel(flops=515 * GIGA), [1.0], [ROOFS]).doubts == []
    bare = make_table(kernel(flops=600 * GIGA), [1.0], loads=[Load("a", 2, 1.5, 1.0)])
    assert bare.doubts == []
    assert bare.as_dict()["roofs_reliable"] is None


def test_other_processes_are_named_with_their_cores():
    table = make_table(
        kernel(), [1.0], [ROOFS], loads=[Load("node7", 8, 5.04, 1.0), Load("node8", 8, 0.1, 1.0)]
    )
    assert table.doubts == ["other processes kept 5.0 of the 8 cores of node7 busy meanwhile"]
    assert [one["host"] for one in table.as_dict()["loads"]] == ["node7", "node8"]


def test_the_command_says_so_in_text_and_json(tmp_path, monkeypatch, capsys):
    (tmp_path / "p.toml").write_text(
        '[lattice]\nextents = [4, 4, 4, 4]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\n[update]\nsweeps = 1\n'
    )
    low = Roofs("host, 1 thread", 1.0, 1.0, {"float64": 1e-6, "float32": 1e-6})

    def too_low(*_: Any, **__: Any) -> Roofs:
        return low

    monkeypatch.setattr("jali.cli.profile.measure_roofs", too_low)
    words = ["profile", str(tmp_path / "p.toml"), "--sweeps", "1"]
    assert main(words) == 0
    assert WORDS in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["roofs_reliable"] is False
    assert any("of the roof of arithmetic" in doubt for doubt in report["roofs_doubts"])
