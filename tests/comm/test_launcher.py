"""The program that starts ranks: what ends it ends them. Without MPI: any process stands for the launcher."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from programs import PATIENCE, alive, wait_until

from jali.comm.launcher import IMPLEMENTATIONS, _Forwarding

STARTER = """
import subprocess
from jali.comm.launcher import _ended_with_us
launcher = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with _ended_with_us(launcher.pid):
    print(launcher.pid, flush=True)
    launcher.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_launcher_ends_if_the_process_that_started_it_is_killed(number):
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        launcher = int(starter.stdout.readline())
        assert alive(launcher)
        starter.send_signal(number)
        starter.wait(PATIENCE)
    wait_until(lambda: not alive(launcher))


def test_signal_that_comes_before_the_launcher_is_started_reaches_it():
    before = signal.getsignal(signal.SIGTERM)
    with _Forwarding(IMPLEMENTATIONS[1]) as forwarding:
        signal.raise_signal(signal.SIGTERM)
        with subprocess.Popen(["sleep", "1000"]) as launcher:
            forwarding.start(launcher)
            assert launcher.wait(PATIENCE) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_that_our_signal_killed_are_a_status_of_that_signal():
    with _Forwarding(IMPLEMENTATIONS[0]) as forwarding:
        assert forwarding.status(signal.SIGTERM) == 15  # a rank's own business
        signal.raise_signal(signal.SIGTERM)
    assert [forwarding.status(ended) for ended in (signal.SIGTERM, -signal.SIGTERM, 143, 2, 0)] == [
        143,
        143,
        143,
        2,
        0,
    ]
