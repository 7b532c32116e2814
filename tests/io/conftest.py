"""Keeps the file tests fast: none of their facts can depend on waiting for the disk."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield
