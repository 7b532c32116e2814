"""Below the edges each setting is read in one file of a language, which gives to others what it means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from jali import settings

ROOT = Path(__file__).resolve().parents[2]
NAMES = [spec.name for spec in settings.specs()]
# where calls of users arrive: they turn settings into arguments
EDGES = (
    *("core/settings/", "core/bind/", "core/interposer/"),
    *("src/jali/settings.py", "src/jali/start.py", "src/jali/cli/", "src/jali/bench/", "src/jali/torch/"),
)
# a setting that several ideas have, and why
SEVERAL = {
    "checked": {  # each kind of call is compared, and proved, where it is made
        "core/messaging/wait_loop.cpp",
        "core/running/collectives.cpp",
        "core/running/device_collectives.cpp",
        "core/schedule/first_run.hpp",
    },
    "threads": {
        "src/jali/comm/thread_share.py",
        "src/jali/comm/virtual.py",
    },  # of processes, of virtual ranks
}


def read_in(text: str, call: str) -> Iterator[str]:
    """The settings that a text reads, by the call that gives them or by a name that holds them."""
    holders = [re.escape(call), *re.findall(rf"(\w+) = {re.escape(call)}(?![.\w])", text)]
    for holder in holders:
        yield from re.findall(rf"(?<![\w.]){holder}\.\*?(\w+)", text)


def readers(pattern: str, call: str) -> dict[str, set[str]]:
    found = defaultdict(set)
    for path in sorted(p for top in ("core", "src/jali") for p in (ROOT / top).rglob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(EDGES):
            for setting in read_in(path.read_text(), call):
                if setting in NAMES:
                    found[setting].add(name)
    return found


def test_one_file_of_a_language_reads_a_setting() -> None:
    for found in (readers("*.?pp", "settings()"), readers("*.py", "settings.current()")):
        assert len(found) > 10, found
        for setting, files in found.items():
            assert len(files) == 1 or files == SEVERAL.get(setting), f"{setting} is read in {sorted(files)}"


def test_a_setting_is_found_by_the_call_and_by_a_name() -> None:
    assert set(read_in("const Settings& now = settings();\nnow.threads + settings().home", "settings()")) == {
        "threads",
        "home",
    }
    assert set(
        read_in("a = settings.current()\na.tune or settings.current().device", "settings.current()")
    ) == {"tune", "device"}
