"""`jali run`, `jali measure` and `jali info` with devices."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_driver import REAL, make_fake_ccl, make_fake_fft
from programs import run_jali

import jali
from jali import vendors
from jali.cli.main import main
from jali.fft.vendors import FFT_LIBRARIES

PARAMETERS = """
[lattice]
extents = [4, 4, 2, 4]

[gauge]
group = "SU(2)"
beta = 2.3

[update]
sweeps = 4
thermalisation = 1
overrelaxation = 1

[run]
seed = 5
checkpoint_every = 2

[measure]
flow = true
flow_every = 2
flow_time = 0.1
flow_step = 0.05
"""


@pytest.fixture
def jali_command(fake_environment, tmp_path):
    """`jali WORDS...` as a program on fake devices; returns what it printed."""
    (tmp_path / "p.toml").write_text(PARAMETERS)

    def run(*words: object, status: int = 0, **more: str) -> str:
        environment = {k: v for k, v in fake_environment.items() if k != "JALI_DEVICE"}
        done = run_jali(*words, env={**environment, **more}, cwd=tmp_path, status=status)
        return done.stdout + done.stderr

    return run


@pytest.fixture
def run_here(tmp_path, monkeypatch, capsys):
    """`jali WORDS...` in this process; returns what it printed."""
    (tmp_path / "p.toml").write_text(PARAMETERS)
    monkeypatch.chdir(tmp_path)
    # drawing takes longer than these runs, and test_report.py is about it
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")

    def run(*words: str) -> str:
        status = main(list(words))
        said = capsys.readouterr()
        assert status == 0, said.out + said.err
        return said.out

    return run


def tables(directory: Path) -> dict[str, bytes]:
    """What a run wrote and another device must write too; timing.csv is about time."""
    return {name: (directory / name).read_bytes() for name in ("history.csv", "flow.csv")}


def test_run_writes_the_same_bytes_on_any_device_and_goes_on_on_another(run_here, tmp_path):
    said = run_here("run", "p.toml", "--output", "host", "--device", "cpu")
    assert " GPU " not in said
    reference = tables(tmp_path / "host")
    assert reference["history.csv"].count(b"\n") > 4

    said = run_here("run", "p.toml", "--output", "there", "--device", "cuda")
    assert jali.Lattice(2, device="cuda").gpu.name in said
    assert tables(tmp_path / "there") == reference
    assert 'device = "cuda"' in (tmp_path / "there" / "parameters.toml").read_text()

    # half of it on one device, the rest on another
    for first, second in (("cpu", "cuda:0"), ("cuda", "cpu")):
        half = f"half-{first}"
        run_here("run", "p.toml", "--output", half, "--set", "sweeps=2", "--set", f"run.device={first}")
        run_here("run", "--resume", half, "--set", "sweeps=4", "--device", second)
        assert f'device = "{second}"' in (tmp_path / half / "parameters.toml").read_text()
        assert tables(tmp_path / half) == reference


def test_measurements_are_the_same_on_any_device(run_here):
    run_here("run", "p.toml", "--output", "host", "--set", "sweeps=1", "--device", "cpu")
    words = ("measure", "host", "--json", "--flow", "--flow-time", "0.1", "--flow-step", "0.05", "--device")
    host = json.loads(run_here(*words, "cpu"))
    assert json.loads(run_here(*words, "cuda")) == host
    assert len(host["configurations"][0]["flow"]) == 3


@pytest.mark.full
def test_programs_take_the_device_of_the_environment_where_the_parameters_do_not_name_one(
    jali_command, tmp_path
):
    short = ("--set", "sweeps=0", "--set", "measure.flow=false")
    said = jali_command("run", "p.toml", "--output", "a", *short, JALI_DEVICE="cuda")
    assert "fake GPU 0" in said
    assert 'device = ""' in (tmp_path / "a" / "parameters.toml").read_text()
    said = jali_command("run", "p.toml", "--output", "b", *short, "--device", "cpu", JALI_DEVICE="cuda")
    assert "fake GPU" not in said
    assert (tmp_path / "a" / "history.csv").read_bytes() == (tmp_path / "b" / "history.csv").read_bytes()


def test_wrong_devices_are_bad_input_and_missing_ones_a_failure(jali_command, tmp_path):
    said = jali_command("run", "p.toml", "--output", "x", "--device", "gpu", status=2)
    assert "device 'gpu' is unknown; use 'cpu', 'cuda'" in said
    said = jali_command("run", "p.toml", "--output", "x", "--set", 'run.device="gpu"', status=2)
    assert "device 'gpu' is unknown" in said
    said = jali_command("measure", "x", "--device", "cuda:x", status=2)
    assert "device 'cuda:x' is unknown" in said
    said = jali_command("run", "p.toml", "--output", "x", "--device", "cuda:3", status=1)
    assert "there is no cuda device 3; this process sees 1" in said
    said = jali_command(
        "run", "p.toml", "--output", "x", "--device", "cuda", status=1, JALI_CUDA_DRIVER="/nowhere"
    )
    assert "NVIDIA's driver was not found" in said
    assert not (tmp_path / "x").exists()


def test_info_lists_drivers_devices_and_compilers(jali_command, fake_driver):
    found = json.loads(jali_command("info", "--json", JALI_FAKE_GPUS="2", JALI_DEVICE="cuda:1"))
    assert found["device"] == "cuda:1"
    cuda, hip = found["devices"]["cuda"], found["devices"]["hip"]
    assert cuda["driver"] == {"path": str(fake_driver), "version": "13.0"}
    assert hip["driver"]["version"] == "6.3"
    assert cuda["compiler"] == {"path": str(fake_driver), "version": "0.1"}
    assert [gpu["name"] for gpu in cuda["gpus"]] == ["fake GPU 0", "fake GPU 1"]
    assert cuda["gpus"][1]["bytes"] == 1 << 30
    assert (cuda["gpus"][0]["architecture"], hip["gpus"][0]["architecture"]) == ("sm_90", "")
    text = jali_command("info", JALI_FAKE_GPUS="2")
    assert re.search(r"^cuda +2 devices, driver for 13\.0  /", text, re.MULTILINE)
    assert re.search(r"^ +cuda:1  fake GPU 1, sm_90, 1\.0 of 1\.0 GiB free$", text, re.MULTILINE)
    assert re.search(r"^hip +2 devices, driver for 6\.3 .*never run on AMD hardware$", text, re.MULTILINE)


def test_info_names_libraries_and_links_of_devices(jali_command, tmp_path):
    library = str(make_fake_ccl())
    found = json.loads(
        jali_command("info", "--json", JALI_FAKE_GPUS="3", JALI_NCCL=library, JALI_FAKE_PCIE="1")
    )
    nccl = found["collectives"]["cuda"]
    assert (nccl["name"], nccl["version"], nccl["path"]) == ("NCCL", "2.28.3", library)
    assert "path" in nccl["plug_in"] or "libnccl-net.so" in nccl["plug_in"]["missing"]
    links = found["devices"]["cuda"]["links"]
    assert [(link["device"], link["peer"]) for link in links] == [(0, 1), (0, 2), (1, 2)]
    assert all((link["reaches"], link["atomics"], link["rank"]) == (1, 0, 1) for link in links)
    assert found["devices"]["hip"]["links"] == links  # whose driver numbers its questions from 0
    text = jali_command(
        "info", JALI_FAKE_GPUS="4", JALI_FAKE_ISLANDS="2", JALI_NCCL=library, NCCL_NET="Socket"
    )
    assert re.search(r"^ +between 0-1, 2-3: NVLink \(atomic operations reach peers\)$", text, re.MULTILINE)
    assert re.search(r"^ +between 0-2, 0-3, 1-2, 1-3: no access to each other's memory$", text, re.MULTILINE)
    assert re.search(r"^nccl +NCCL 2\.28\.3  /", text, re.MULTILINE)
    assert re.search(
        r"^WARNING +between hosts NCCL would go by TCP, as NCCL_NET=Socket says: slow", text, re.MULTILINE
    )
    text = jali_command("info", JALI_FAKE_GPUS="2", JALI_NCCL="/nowhere/libnccl.so")
    assert re.search(r"^nccl +none: NCCL was not found", text, re.MULTILINE)
    assert "WARNING" not in text


@pytest.mark.skipif(REAL, reason="this machine may have its own")
@pytest.mark.skipif(
    vendors.packaged(FFT_LIBRARIES["cufft"]) != [], reason="a package's cuFFT comes before that of the loader"
)
def test_info_names_libraries_of_fourier_transforms(jali_command, tmp_path):
    (tmp_path / "libcufft.so.12").symlink_to(make_fake_fft())
    found = json.loads(jali_command("info", "--json", LD_LIBRARY_PATH=str(tmp_path)))["transforms"]
    assert found["cuda"] == {"name": "cuFFT", "version": 11206, "path": "libcufft.so.12"}
    assert found["hip"]["missing"].startswith("hipFFT was not found (libhipfft.so.0: ")
    text = jali_command("info", LD_LIBRARY_PATH=str(tmp_path))
    assert re.search(r"^fft +cuFFT 11206  libcufft\.so\.12$", text, re.MULTILINE)
    assert re.search(r"^fft +none of the vendor's: hipFFT was not found \(", text, re.MULTILINE)


@pytest.mark.full
def test_info_says_what_is_missing_and_goes_on(jali_command):
    found = json.loads(jali_command("info", "--json", JALI_FAKE_DRIVER_VERSION="11000"))
    assert "supports CUDA 11.0, jali needs 12.0" in found["devices"]["cuda"]["driver"]["missing"]
    assert found["devices"]["cuda"]["compiler"]["version"] == "0.1"
    assert found["cores"] >= 1
    text = jali_command("info", JALI_FAKE_INIT_ERROR="100")
    assert re.search(r"^cuda +none: NVIDIA's driver cannot be used: NO_DEVICE", text, re.MULTILINE)
    text = jali_command("info", JALI_NVRTC="/nowhere")
    assert re.search(r"^cuda +1 device, ", text, re.MULTILINE)
    assert "kernels for cuda devices need NVRTC, which was not found" in text
