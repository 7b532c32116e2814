"""`jali bench halo`: what it measures of which policy, on the host and on fake devices, and what it makes of numbers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from fake_driver import REAL, make_fake_ccl
from programs import run_jali

import jali
from jali import _core
from jali.bench import halo, halo_report
from jali.bench.collectives import Timing
from jali.bench.halo import Measurement, Report
from jali.errors import ParameterError


def measurement(policy: str, whole: float, exchange: float, compute: float, **parts: float) -> Measurement:
    seconds = {"whole": whole, "exchange": exchange, "compute": compute}
    seconds |= {f"no {part}": value for part, value in parts.items()}
    return Measurement(
        policy, "", sent=6000, messages=2, times={k: Timing([v] * 3) for k, v in seconds.items()}
    )


def test_what_is_hidden_costs_and_rates_follow_from_the_times():
    r = measurement("buffered-write-overlap", 10e-6, 4e-6, 9e-6, transport=8e-6)
    assert r.hidden() == pytest.approx(0.75)
    assert r.cost("transport") == pytest.approx(2e-6)
    assert math.isnan(r.cost("pack"))
    assert r.rate == pytest.approx(1.5e9)
    assert measurement("buffered-write-wait", 13e-6, 4e-6, 9e-6).hidden() == pytest.approx(0)


def test_the_ladder_compares_with_host_staging_and_says_what_is_not_built():
    measurements = [
        measurement("host-staged-directions", 30e-6, 1, 1),
        measurement("remote-write-overlap", 10e-6, 1, 1),
    ]
    rungs = halo_report.ladder(Report({}, measurements))
    assert [rung[0] for rung in rungs] == list("abcdefg")
    assert [rung[2] for rung in rungs[4:]] == ["remote-write-pack-in-bulk", "", "remote-write-one-launch"]
    assert rungs[0][4] == pytest.approx(1)
    assert rungs[3][4] == pytest.approx(3)
    assert math.isnan(rungs[1][3])
    text = halo_report.summary(Report({}, measurements))
    assert "d) stores into the neighbour (remote-write-overlap): 10.0 us, 3.00 times as fast as a" in text
    assert "b) peer copies (copy-engine-directions): not measured" in text
    assert "f) symmetric heap: not built" in text
    assert "g) pack and barrier fused (remote-write-one-launch): not measured" in text


def test_a_name_stands_apart_from_what_follows_it():
    for policy in {name for kind in ("cpu", "cuda") for name, *_ in _core.halo_policies(kind)}:
        assert halo_report.case_text(measurement(policy, 1e-6, 1e-6, 1e-6)).split()[:2] == [policy, "whole"]
        assert halo_report.case_text(Measurement(policy, "", "too far")).split()[:2] == [policy, "not"]


def test_every_rung_that_is_built_is_a_policy():
    names = {name for name, *_ in _core.halo_policies("cuda")}
    assert {policy for _, _, policy in halo_report.LADDER if policy} <= names


def measured(kernel: str, device: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
    local, grid = ([4, 4, 4], [1, 1, 2]) if kernel == "laplace" else ([4, 4, 4, 4], [1, 1, 1, 2])
    case = halo.make_case(kernel, local, grid, device)
    return halo_report.as_json(halo.measure(case, only, rounds=3, seconds=1e-4))


@pytest.mark.parametrize(
    ("kernel", "sent"),
    [("laplace", 2 * 16 * 8), ("wilson", 2 * 64 * 12 * 8), ("staple", (2 + 1) * 64 * 18 * 8)],
)
def test_on_the_host_both_policies_are_measured_and_their_bytes_counted(kernel, sent, use_settings):
    use_settings(halo_policy="messages-wait")
    found = jali.virtual_ranks(2, measured, kernel, "cpu")[0]
    assert jali.settings.current().halo_policy == "messages-wait"  # as it was
    assert [r["policy"] for r in found["measurements"]] == [
        "remote-write-overlap",
        "remote-write-wait",
        "messages-overlap",
        "messages-wait",
    ]
    for r in found["measurements"]:
        wanted = {"whole", "exchange", "compute", "no transport", "no boundary"}
        assert set(r["times"]) == wanted | ({"no bulk"} if r["policy"].endswith("overlap") else set())
        assert all(len(t["batches_s"]) == 3 and t["median_s"] > 0 for t in r["times"].values())
        assert (r["bytes_sent"], r["messages"]) == (sent, 2)


def bits_after(kernel: str) -> list[bool]:
    """Whether a kernel gives the same bits before and after it was measured in all ways."""
    case = halo.make_case(kernel, [4, 4, 4, 4], [1, 1, 1, 2], "cpu")
    run = case.bind()
    run()
    before = case.out.local().tobytes()
    halo.measure(case, rounds=1, seconds=1e-4)
    case.mark()
    run()
    return before == case.out.local().tobytes()


@pytest.mark.parametrize("kernel", list(halo.KERNELS))
def test_measuring_leaves_no_trace(kernel):
    assert jali.virtual_ranks(2, bits_after, kernel) == [True, True]


@pytest.mark.parametrize(
    ("kernel", "local", "grid", "why"),
    [
        ("stapler", [4, 4], [1, 2], "no kernel 'stapler'"),
        ("staple", [4], [2], "needs 2 to 4 directions, not 1"),
        ("laplace", [4, 4], [2], "different numbers of directions"),
        ("laplace", [4, 4], [2, 2], "is for 4 ranks, 2 run"),
    ],
)
def test_cases_that_make_no_sense_are_refused(kernel, local, grid, why):
    with pytest.raises(ParameterError, match=why):
        jali.virtual_ranks(2, halo.make_case, kernel, local, grid, "cpu")


def test_one_rank_has_nothing_to_exchange():
    with pytest.raises(ParameterError, match="one rank has no halos to exchange"):
        halo.make_case("laplace", [4, 4], [1, 1], "cpu")


def test_unknown_policies_are_refused_with_those_of_the_device():
    with pytest.raises(
        ParameterError,
        match="no halo policy nccl-overlap on the host; there are remote-write-overlap, remote-write-wait",
    ):
        jali.virtual_ranks(2, measured, "laplace", "cpu", ("nccl-overlap",))


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="counts on fake devices")
def test_the_command_on_two_devices(fake_environment, tmp_path: Path):
    policies = [
        "remote-write-overlap",
        "buffered-write-overlap",
        "copy-engine-wait",
        "nccl-directions",
        "gpu-aware-mpi-overlap",
        "host-staged-directions",
    ]
    words = (
        "bench halo -n 2 --kernel laplace --local 4,4,4 --device cuda --rounds 2 --seconds 0.002 --policies "
    )
    environment = {**fake_environment, "JALI_FAKE_GPUS": "2", "JALI_NCCL": str(make_fake_ccl())}
    done = run_jali(*words.split(), ",".join(policies), "--json", "--output", tmp_path, env=environment)
    found = json.loads(done.stdout)
    measurements = {r["policy"]: r for r in found["measurements"]}
    assert list(measurements) == policies
    for name, r in measurements.items():
        if name.startswith("gpu-aware-mpi"):
            assert "set JALI_GPU_AWARE_MPI=1" in r["why_not"]
            continue
        recorded = name.startswith(("remote-write", "buffered-write", "copy-engine", "nccl"))
        assert ("graph whole" in r["times"], "why_no_graph" in r) == (recorded, not recorded)
        assert ("no bulk" in r["times"]) == (not name.endswith("wait"))
        assert {"whole", "exchange", "compute", "no pack", "no transport", "no boundary"} <= set(r["times"])
        assert r["bytes_sent"] == 2 * 16 * 8
    assert [rung["built"] for rung in found["ladder"]] == [letter != "f" for letter in "abcdefg"]
    assert json.loads((tmp_path / "halo.json").read_text()) == found
    assert (tmp_path / "halo.png").read_bytes()[:4] == b"\x89PNG"
    lines = [line for line in (tmp_path / "halo.csv").read_text().splitlines() if not line.startswith("#")]
    table = list(csv.DictReader(lines))
    assert {(t["policy"], t["time"]) for t in table} == {
        (n, t) for n, r in measurements.items() for t in r.get("times", {})
    }


@pytest.mark.mpi
@pytest.mark.full
def test_the_command_on_the_host(tmp_path: Path):
    words = "bench halo -n 2 --local 4,4,4,4 --rounds 2 --seconds 0.002 --policies messages-wait"
    done = run_jali(*words.split(), "--output", tmp_path)
    assert "messages-wait              whole" in done.stdout
    assert "fastest: messages-wait" in done.stdout
    assert (tmp_path / "halo.png").exists()
