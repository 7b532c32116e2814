"""`jali bench collectives --device`: the table, the plots and what is refused, on fake devices and a fake NCCL."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_driver import REAL, make_fake_ccl, use_fake_ccl, use_fake_gpus
from programs import run_jali

from jali import comm
from jali.bench import device_collectives, device_report
from jali.bench.cases import COLLECTIVES
from jali.bench.collectives import Cell, Report, Timing
from jali.errors import DeviceError, ParameterError, RankError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]) -> None:
    use_fake_gpus(monkeypatch, 2)
    use_settings(device_queues="channels=4,slot_bytes=1024,flagged_bytes=512,flagged_below=1024")


def test_the_command_measures_and_draws(tmp_path: Path) -> None:
    words = "bench collectives --device cuda --sides jali,two_step --only all_reduce,broadcast --smallest 8 --largest 8KiB"
    run_jali(*words.split(), "--factor", 32, "--rounds", 2, "--output", tmp_path)
    for order in device_collectives.ORDERS:
        rows = [
            r for r in csv.reader((tmp_path / f"collectives-{order}.csv").open()) if not r[0].startswith("#")
        ]
        assert {(r[0], r[2]) for r in rows[1:]} == {
            (c, s) for c in ("all_reduce", "broadcast") for s in ("jali", "two_step")
        }
        assert (
            json.loads((tmp_path / f"collectives-{order}.json").read_text())["conditions"]["order"] == order
        )
        assert (tmp_path / f"collectives-{order}.png").stat().st_size > 10_000


def wrong_results() -> None:
    from jali.devices import open_device

    class Wrong(device_collectives.JaliSide):
        def prepare(self, case):  # type: ignore[no-untyped-def]
            return lambda: None

    c = comm.current()
    gpu = open_device("cuda", c)
    device_collectives.measure(c, gpu, [Wrong(c)], [64], ["all_gather"], rounds=1, batch=1)


def test_wrong_results_stop_all_ranks() -> None:
    with pytest.raises(RankError, match="all_gather of 64 B"):
        comm.virtual_ranks(2, wrong_results)


def every_case_is_right() -> None:
    from jali.devices import open_device

    c = comm.current()
    gpu = open_device("cuda", c)
    names = ["jali"] if REAL else ["jali", "nccl", "nccl-symmetric"]
    sides = [device_collectives.side(name, c, gpu) for name in names]
    reports = device_collectives.measure(c, gpu, sides, [8, 5000], orders=("stream",), rounds=1, batch=2)
    report = reports["stream"]
    assert report.sides == names
    if not REAL:
        assert report.conditions["library"] == "NCCL 2.28.3"
        assert report.conditions["multicast"] == "off (NCCL_NVLS_ENABLE=0)"
        assert report.conditions["symmetric windows"] == "possible"
        assert "of nccl-symmetric" in device_report.summary(reports)
    assert "largest buffer" in report.conditions["sizes"]
    assert {cell.collective for cell in reports["stream"].cells} == set(COLLECTIVES)


def test_all_collectives_are_timed(
    use_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_fake_ccl(use_settings)
    monkeypatch.setenv("JALI_FAKE_CCL_FOLDER", str(tmp_path))
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    comm.virtual_ranks(2, every_case_is_right)
    if not REAL:  # all that the windows' side did was between windows: 8 collectives, 2 sizes, warm-up, a round and checks
        assert len((tmp_path / "symmetric-0").read_text().splitlines()) > 8 * 2 * 4
        assert not list(tmp_path.glob("fault-*"))


def test_without_windows_that_side_says_why(use_settings: Callable[..., None]) -> None:
    if REAL:
        pytest.skip("needs a fake library")
    use_settings(nccl=str(make_fake_ccl("-DJALI_OLD")))

    def run() -> None:
        from jali.devices import open_device

        with pytest.raises(DeviceError, match="NCCL 2.22.3 has no symmetric windows"):
            device_collectives.side("nccl-symmetric", comm.current(), open_device("cuda", comm.current()))

    comm.virtual_ranks(2, run)


def test_verdicts_are_those_of_the_thresholds() -> None:
    cells = [
        Cell("all_reduce", 8, {"jali": Timing([1.0] * 9), "nccl": Timing([2.5] * 9)}),
        Cell("all_reduce", 1 << 30, {"jali": Timing([1.0] * 9), "nccl": Timing([0.9] * 9)}),
    ]
    found = device_report.judge(Report({}, ["jali", "nccl"], cells), "stream")
    assert [v.holds for v in found] == [False, True, True]
    assert found[0].missing == ("all_reduce 1 GiB: 0.90",)
    assert [v.holds for v in device_report.judge(Report({}, ["jali", "nccl"], cells[1:]), "graph")] == [
        False,
        False,
    ]


def test_unknown_sides_are_refused() -> None:
    from jali.devices import open_device

    gpu = open_device("cuda", comm.current())
    for name in ("pigeon", "ccl", "symmetric"):
        with pytest.raises(
            ParameterError, match=f"no side '{name}'; there are jali, nccl, nccl-symmetric, and"
        ):
            device_collectives.side(name, comm.current(), gpu)
