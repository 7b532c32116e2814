"""`jali explain` between ranks that have devices: what it says without them is what they take."""

from __future__ import annotations

import json

import pytest
from fake_driver import REAL, use_fake_ccl, use_fake_gpus

import jali
from jali.cli.main import main


def explained(words: list[str]) -> int:
    return main(["explain", *words, "--device", "cuda", "--json"])


@pytest.mark.skipif(REAL, reason="a fake library is named")
@pytest.mark.parametrize(
    ("collective", "size"), [("all-reduce", "4KiB"), ("all-to-all", "64MiB"), ("broadcast", "1MiB")]
)
@pytest.mark.parametrize("forced", ["", "nccl"])
def test_ranks_take_what_is_said_without_them(
    collective, size, forced, monkeypatch, use_settings, capsys
) -> None:
    use_fake_gpus(monkeypatch, 3)
    use_fake_ccl(use_settings)
    use_settings(device_transport=forced)
    assert jali.virtual_ranks(3, explained, [collective, "--size", size]) == [0] * 3
    facts = json.loads(capsys.readouterr().out)
    assert facts["here"]["algorithm"] == facts["takes"]
    assert facts["algorithms"][0]["by"] == (forced or "remote-write")
    assert main(["explain", collective, "--size", size, "--device", "cuda", "-n", "3", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    del facts["here"]
    assert alone == facts
