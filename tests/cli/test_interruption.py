"""Signals as requests on which ranks agree."""

from __future__ import annotations

import os
import signal

import pytest

import jali
from jali import comm
from jali.cli import interruption
from jali.cli.interruption import Interrupted, Interruption
from jali.codegen.interruptible import interruptible


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


@jali.site_function
def interrupted_function(X, f):
    signal.raise_signal(signal.SIGTERM)
    f[X] = 1.0


def test_signal_while_a_site_function_is_traced_ends_it_if_no_sweep_is_lost():
    f = jali.Field(jali.Lattice(4, 4), jali.Real())
    with Interruption() as noted:
        noted.saved = True
        with pytest.raises(Interrupted, match="SIGTERM"):
            interrupted_function(f)
    with Interruption() as noted:
        interrupted_function(f)
        assert noted.agreed(comm.current()) is signal.SIGTERM


def test_kernels_are_not_begun_after_a_signal_if_no_sweep_is_lost():
    with Interruption() as noted:
        noted.saved = True
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted), interruptible():
            pytest.fail("begun")


def test_signal_ends_a_program_that_has_not_begun_and_its_echo_does_not_disturb_the_end():
    with Interruption(at_once=True):
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
