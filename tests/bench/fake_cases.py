"""Cases of two fake jalis that sleep: what a comparison finds is then known."""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jali


@dataclass
class Work:
    call: Any
    per: float = 1
    unit: str = "us"
    together: Any = lambda: None
    own_clock: bool = False


def clocked(seconds: float) -> Work:
    """A call that says what it took, so that no machine is too busy for it."""
    return Work(lambda: seconds, unit="ms", own_clock=True)


def set_up(name: str, precision: str, device: str) -> Work:
    if name == "sleep":
        return Work(lambda: time.sleep(jali.SLEEP), unit="ms")
    if name == "clock":
        return clocked(jali.CLOCK)
    if name == "new":
        return clocked(jali.ONLY_NEW)
    if name == "dies":
        raise SystemExit(7)
    if name == "hangs":
        time.sleep(600)
    if name == "starts another":
        child = subprocess.Popen(["sleep", "1000"])
        started = Path(os.environ["FAKE_CASES_STARTED"])
        started.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
        started.with_suffix(".new").rename(started)
        child.wait()
    if name == "wrong":
        raise ValueError("a field of the wrong size")
    raise AssertionError(name)
