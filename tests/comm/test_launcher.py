"""The program that starts ranks: what ends it ends them. Without MPI: any process stands for the launcher."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from programs import TIMEOUT, alive, wait_until

from jali.comm import launcher as launchers
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
        starter.wait(TIMEOUT)
    wait_until(lambda: not alive(launcher))


def test_signal_that_comes_before_the_launcher_is_started_reaches_it():
    before = signal.getsignal(signal.SIGTERM)
    with _Forwarding(IMPLEMENTATIONS[1]) as forwarding:
        signal.raise_signal(signal.SIGTERM)
        with subprocess.Popen(["sleep", "1000"]) as launcher:
            forwarding.start(launcher)
            assert launcher.wait(TIMEOUT) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_that_our_signal_killed_are_a_status_of_that_signal():
    with _Forwarding(IMPLEMENTATIONS[0]) as forwarding:
        assert forwarding.status(signal.SIGTERM) == 15  # a rank's own business
        signal.raise_signal(signal.SIGTERM)
    ended = (signal.SIGTERM, -signal.SIGTERM, 143, 2, 0, None)
    assert [forwarding.status(status) for status in ended] == [143, 143, 143, 2, 0, 143]


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("does", "status"), [("time.sleep(1000); rank.wait()", None), ("rank.wait(); time.sleep(1.2)", 0)]
)
def test_launcher_that_does_not_notice_the_end_of_its_ranks_is_ended(does, status, monkeypatch, capfd):
    monkeypatch.setattr(launchers, "UNNOTICED", 0.5)
    program = f"import subprocess, time; rank = subprocess.Popen(['true']); {does}"
    with subprocess.Popen([sys.executable, "-c", program]) as launcher:
        assert launchers._wait(launcher, "mpiexec") == status
    said = "jali: mpiexec has not noticed for 0.5 s that ranks have ended, and was ended too\n"
    assert capfd.readouterr().err == (said if status is None else "")


def test_killed_launcher_without_a_signal_of_ours_is_a_failure():
    with _Forwarding(IMPLEMENTATIONS[0]) as forwarding:
        assert forwarding.status(None) == 1
