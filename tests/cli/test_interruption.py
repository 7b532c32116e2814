"""Signals as requests on which ranks agree."""

from __future__ import annotations

import os
import signal

import pytest

import jali
from jali import comm
from jali.cli import interruption
from jali.cli.interruption import Interruption


@pytest.mark.parametrize(
    ("requests", "agreed"),
    [
        ({}, None),
        ({2: signal.SIGINT}, signal.SIGINT),
        ({0: signal.SIGINT, 1: signal.SIGTERM}, signal.SIGTERM),
    ],
)
def test_ranks_agree_on_a_signal_that_some_of_them_received(requests, agreed):
    def rank() -> object:
        with Interruption() as noted:
            if comm.current().rank in requests:
                noted.request(requests[comm.current().rank])
            return noted.agreed(comm.current())

    assert jali.virtual_ranks(3, rank) == [agreed] * 3


def test_signal_is_noted_while_entered_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interruption() as noted:
        assert noted.agreed(comm.current()) is None
        os.kill(os.getpid(), signal.SIGINT)
        assert noted.agreed(comm.current()) is signal.SIGINT
        os.kill(os.getpid(), signal.SIGTERM)
        assert noted.agreed(comm.current()) is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_interrupt_stops_at_once_unless_it_is_the_same_press(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(interruption.time, "monotonic", lambda: now[0])
    with Interruption():
        signal.raise_signal(signal.SIGINT)
        now[0] += 0.5
        signal.raise_signal(signal.SIGINT)
        now[0] += 2.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
