"""The example of least-squares migration gives the numbers that are known, on any number of ranks, and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from jali import comm
from jali.examples import Options, lsm, verdicts


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_residuals_are_those_that_are_known(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lsm, "ITERATIONS", 5)
    found = comm.virtual_ranks(ranks, lambda: lsm.solve(Options()))
    for one in found:
        rows = verdicts(one, lsm.EXPECTED)
        assert len(rows) == 5
        assert all(good for *_, good in rows), rows
        assert one.numbers == found[0].numbers
    pytest.importorskip("matplotlib").use("Agg")
    lsm.draw(found[0], tmp_path / "lsm.png")
    assert (tmp_path / "lsm.png").stat().st_size > 10_000
