"""Launches on devices are explained, and the simulation is held against what fake devices measure."""

import re
import sys
from pathlib import Path

import pytest
from fake_driver import REAL, TWO_DEVICES, make_fake_ccl, use_fake_ccl, use_fake_gpus
from programs import run_program

import jali
from jali.bench.halo import make_case

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "halo_simulation.py"


STEPS = {
    "remote-write-overlap": "stream 0: grant credit + pack + await credit + put + signal + wait of stage 0",
    "copy-engine-wait": "stream 0: signal\n    stream 0: grant credit + wait + unpack of stage 0",
    "remote-write-one-launch": "wilson_hop at 128 sites, at 128 that wait, with ",
    "host-staged-directions": "stream 0: copy to host\n    stream 1: bulk; after what was on stream 0\n    stream 0: message",
}


def explained(kernel):
    case = make_case(kernel, (4, 4, 4, 4), (1, 1, 1, 2), "cuda")
    return case.bind().explain()


@TWO_DEVICES
@pytest.mark.parametrize("policy", STEPS)
def test_a_launch_on_devices_is_explained(policy, monkeypatch, use_settings, tmp_path):
    use_fake_gpus(monkeypatch, 2, folder=tmp_path)
    use_fake_ccl(use_settings)
    use_settings(halo_policy=policy)
    for rank, text in enumerate(jali.virtual_ranks(2, explained, "wilson")):
        assert f"on cuda:{rank} (" in text
        assert f"halo policy {policy}: JALI_HALO_POLICY" in text
        assert f"{policy}: taken;" in text
        assert re.search(r"gpu-aware-mpi-wait: not here: \w", text)
        assert "item of 12 reals at (0, 0, 0, 1) 6 KiB" in text
        assert "256 sites: 128 in the bulk, 128 in the boundary" in text
        steps = text.partition("steps of a run whose ghosts are all stale:\n")[2]
        assert steps.count("\n") > 4
        assert steps.count("mark begin on stream 0") == 1  # a run, not all that were recorded
        assert re.search(r"psi +read +192 B +48 KiB +\d+ KiB ", text)  # with ghosts
        assert STEPS[policy] in steps
        assert "wilson_hop" in steps or "kernel" in steps
        assert not re.search(r" field \d", steps)  # arguments have names


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="times mean nothing on fake devices")
# Hosts are measured first, which takes long.
@pytest.mark.parametrize("device", ["cuda", pytest.param("cpu", marks=pytest.mark.full)])
def test_the_benchmark_compares_measured_and_simulated_cases(device, fake_environment, tmp_path):
    environment = {**fake_environment, "JALI_FAKE_GPUS": "2", "JALI_NCCL": str(make_fake_ccl())}
    words = ["--kernels", "laplace", "--sizes", "4", "--rounds", "2", "--seconds", "0.0005", "--policies"]
    policies = "messages-wait" if device == "cpu" else "remote-write-wait,nccl-overlap,gpu-aware-mpi-wait"
    done = run_program(
        [sys.executable, BENCHMARK, *words, policies, "--device", device, "--csv", tmp_path / "rows.csv"],
        env=environment,
    )
    assert ("no machine file is known for 'fake GPU" in done.stdout) == (device == "cuda")
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    assert rows[0] == "case,policy,measured_s,kernel_s,alone_s,told_s"
    measured = policies.removesuffix(",gpu-aware-mpi-wait").split(",")
    assert [row.split(",")[1] for row in rows[1:]] == measured
    assert all(float(number) > 0 for row in rows[1:] for number in row.split(",")[2:])
    assert re.search(
        rf"by the machine's file alone: {len(measured)} comparisons, median error [\d.]+% \(aim 15%\)",
        done.stdout,
    )
    assert "predicted policy within 5 % of the best" in done.stdout
