"""An emulated cluster, or a skip that says what this machine lacks for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import emulated_cluster


@pytest.fixture
def cluster() -> Iterator[emulated_cluster.Cluster]:
    """Two nodes joined by 1 Gbit/s."""
    made = emulated_cluster.Cluster(2, "1gbit")
    try:
        made.__enter__()
    except emulated_cluster.UnavailableError as error:
        pytest.skip(f"no emulated cluster: {error}")
    try:
        yield made
    finally:
        made.close()
