"""Rules of collectives where arrays are in device memory: algorithms, transports, and what is not possible."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import REAL, TWO_DEVICES, make_fake_ccl, run_on_devices, use_fake_ccl, use_fake_gpus
from programs import need_mpi

import jali
from jali import comm
from jali._core import CollectiveCall
from jali.comm import DeviceArray
from jali.devices import open_device

FILE = """version = 1
[[rule]]
memory = "hip"
algorithms = ["one_shot"]

[[rule]]
memory = "device"
bytes = "..64"
algorithms = ["rccl", "ring by copy-engine"]

[[rule]]
memory = "cuda"
collective = "all_reduce"
bytes = "..128"
algorithms = ["recursive_doubling by nccl"]

[[rule]]
memory = "device"
collective = "all_reduce"
bytes = "..256"
algorithms = ["nccl"]
"""


@pytest.fixture
def two_devices(monkeypatch, use_settings, tmp_path):
    use_fake_gpus(monkeypatch, 3)
    use_fake_ccl(use_settings)
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    use_settings(collective_rules=str(file))


def sums(count: int) -> tuple[str, str, str, bool]:
    c = comm.current()
    gpu = open_device("cuda", c)
    there = c.collectives.on_device(gpu)
    spec = there.algorithm_of(CollectiveCall("all_reduce", "fp32", count, 0, "sum", False, None, False))
    x = np.arange(count, dtype=np.float32) + c.rank
    found = c.all_reduce(DeviceArray.from_host(x, gpu)).to_host()
    return spec.name, spec.transport, spec.why, bool(np.array_equal(found, c.all_reduce(x)))


@pytest.mark.skipif(REAL, reason="a fake library is named")
@pytest.mark.parametrize(
    ("count", "name", "transport", "why"),
    [
        (16, "ring", "copy-engine", r"line 6 of \S+mine.toml; not rccl: 'rccl' is not for cuda devices"),
        (32, "recursive_doubling", "nccl", r"line 11 of \S+mine.toml"),
        (64, "nccl", "", r"line 17 of \S+mine.toml"),
        (65, "one_shot", "", r"line \d+ of jali's own rules"),
    ],
)
def test_algorithms_and_transports_of_a_file_are_taken(count, name, transport, why, two_devices) -> None:
    import re

    for found in jali.virtual_ranks(3, sums, count):
        assert found[:2] == (name, transport)
        assert re.fullmatch(why, found[2])
        assert found[3]


def chosen() -> str:
    c = comm.current()
    there = c.collectives.on_device(open_device("cuda", c))
    return there.algorithm_of(CollectiveCall("broadcast", "fp32", 8, 0, "sum", True, None, False)).name


@pytest.mark.skipif(REAL, reason="a fake library is named")
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("versions", "new_one", "old_one"),  # 2.28.3 and 2.22.3
    [
        ("2.27..", True, False),
        ("2.28.3..", True, False),
        ("2.28.4..", False, False),
        ("3..", False, False),
        ("..2.28", True, True),
        ("..2.28.2", False, True),
        ("..2", True, True),
        ("2.28", True, False),
        ("2.22.3", False, True),
        ("2.2", False, False),
        ("2.9..2.22", False, True),
        (" 2.22 .. 2.28.3 ", True, True),
    ],
)
def test_rules_ask_for_versions_of_the_library(
    versions, new_one, old_one, old, monkeypatch, use_settings, tmp_path
) -> None:
    use_fake_gpus(monkeypatch, 2)
    use_settings(nccl=str(make_fake_ccl(*(["-DJALI_OLD"] if old else []))))
    file = tmp_path / "mine.toml"
    file.write_text(f"version = 1\n[[rule]]\nnccl = '{versions}'\nalgorithms = ['chain']\n")
    use_settings(collective_rules=str(file))
    expected = "chain" if (old_one if old else new_one) else "direct"
    assert jali.virtual_ranks(2, chosen) == [expected] * 2


@TWO_DEVICES
def test_without_a_library_no_version_is_required(monkeypatch, use_settings, tmp_path) -> None:
    use_fake_gpus(monkeypatch, 2)
    use_settings(nccl=str(tmp_path / "missing.so"))
    file = tmp_path / "mine.toml"
    file.write_text(
        "version = 1\n[[rule]]\nnccl = '0..'\nalgorithms = ['chain']\n[[rule]]\nrccl = '0..'\nalgorithms = ['chain']\n"
    )
    use_settings(collective_rules=str(file))
    assert jali.virtual_ranks(2, chosen) == ["direct"] * 2


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="fake libraries are named")
def test_of_different_versions_none_is_that_of_all_ranks(fake_environment, tmp_path) -> None:
    need_mpi()
    file = tmp_path / "mine.toml"
    file.write_text("version = 1\n[[rule]]\nnccl = '2..'\nalgorithms = ['chain']\n")
    text = f"""
import jali
from jali import comm
from jali._core import CollectiveCall
from jali.devices import open_device
jali.settings.use(collective_rules={str(file)!r})
world = comm.current()
if world.rank and {{other}}:
    jali.settings.use(nccl={str(make_fake_ccl("-DJALI_OLD"))!r})
there = world.collectives.on_device(open_device("cuda", world))
way = there.algorithm_of(CollectiveCall("broadcast", "fp32", 8, 0, "sum", True, None, False))
print(f"{{{{world.rank}}}}: {{{{way.name}}}}", flush=True)
"""
    for other, name in ((False, "chain"), (True, "direct")):
        said = run_on_devices(2, text.format(other=other), fake_environment).stdout
        assert sorted(said.split("\n")) == ["", f"0: {name}", f"1: {name}"]
