"""Full-waveform inversion has the gradient that is written by hand, the same bits under a limit of memory and on ranks, and finds the body; the blur
of `adjoint.py` and its adjoint are a matrix and its transpose."""

from __future__ import annotations

import functools
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import need_mpi, run_program

import jali

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = {
    "fwi": ("--extents", "36", "28", "--steps", "120", "--iterations", "3"),
    "adjoint": ("--size", "24"),
}
KEPT = {"fwi": ("g", "again", "value", "found", "history"), "adjoint": ("pictures", "left", "after")}


def executed(name: str, upto: str | None = None) -> dict[str, Any]:
    """The variables that an example ends with, or those before a comment."""
    path = EXAMPLES / f"{name}.py"
    text = path.read_text()
    assert upto is None or upto in text
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text if upto is None else text[: text.index(upto)], str(path), "exec"), found)
    return found


@functools.cache
def run(name: str, ranks: int = 1, upto: str | None = None) -> dict[str, Any]:
    """What an example finds: with one rank all variables, and `drawn`, the bytes of its picture; else some variables of each rank, which are
    asserted to be the same on all."""
    if name == "fwi":
        pytest.importorskip("checkpoint_schedules")
    pytest.importorskip("matplotlib").use("Agg")
    before = sys.argv
    try:
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder, "picture.png")
            sys.argv = [f"{name}.py", *SMALL[name], *([str(picture)] if ranks == 1 else [])]
            if ranks == 1:
                return executed(name) | {"drawn": picture.stat().st_size}

            def kept() -> dict[str, Any]:
                return {key: value for key, value in executed(name, upto).items() if key in KEPT[name]}

            of_ranks = jali.virtual_ranks(ranks, kept)
    finally:
        sys.argv = before
    for one in of_ranks[1:]:
        np.testing.assert_equal(one, of_ranks[0])
    return of_ranks[0]


# ---- full-waveform inversion ---------------------------------------------------------------------------


def laplacian(u: np.ndarray) -> np.ndarray:
    wide = np.pad(u, [(1, 1), (1, 1), (0, 0)])
    return wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2] - 4 * u


def seen_and_gradient(
    c: np.ndarray, data: np.ndarray, sources: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """What the receivers see, the misfit, and its gradient by the method of adjoint states."""
    (nx, ny), row = c.shape, 2
    x, y = np.indices(c.shape)
    edge = np.minimum(np.minimum(x, nx - 1 - x), ny - 1 - y)
    d = (0.1 * np.maximum(1 - edge / 15, 0) ** 2)[..., None]
    c = c[..., None]
    u = [np.zeros((nx, ny, len(sources)))] * 2
    forces = []
    for n in range(len(data)):
        t = 0.06 * n - 2
        force = laplacian(u[-1])
        force[sources, row, range(len(sources))] += (1 - 2 * t * t) * np.exp(-t * t)
        forces.append(force)
        u.append((2 * u[-1] - (1 - d) * u[-2] + c**2 * force) / (1 + d))
    seen = np.array([one[:, row] for one in u[2:]])
    now, before, gradient = np.zeros_like(u[0]), np.zeros_like(u[0]), np.zeros_like(u[0])
    for force, rest in zip(reversed(forces), reversed(seen - data), strict=True):
        now[:, row] += rest
        a = now / (1 + d)
        gradient += 2 * c * force * a
        now, before = before + 2 * a + laplacian(c**2 * a), -(1 - d) * a
    return seen, 0.5 * float(np.sum((seen - data) ** 2)), gradient.sum(-1)


def test_waves_and_the_gradient_of_their_misfit_are_those_written_by_hand() -> None:
    e = run("fwi")
    data = np.array([u[:, 2] for u in e["waves"](e["speed_of"](e["truth"]), 120)])
    seen, _, _ = seen_and_gradient(e["truth"], data, e["sources"])
    np.testing.assert_allclose(seen, data, rtol=0, atol=1e-12)
    _, value, gradient = seen_and_gradient(e["layers"], data, e["sources"])
    assert e["value"] == pytest.approx(value, rel=1e-11)
    np.testing.assert_allclose(e["g"], gradient, rtol=0, atol=1e-11 * abs(gradient).max())


@pytest.mark.parametrize("site", [(16, 9), (7, 2), (30, 20), (0, 0)])
def test_the_gradient_at_a_site_is_that_of_differences(site: tuple[int, int]) -> None:
    e = run("fwi")
    data = np.array([u[:, 2] for u in e["waves"](e["speed_of"](e["truth"]), 120)])
    h, values = 1e-4, []
    for k in (-2, -1, 1, 2):
        c = e["layers"].copy()
        c[site] += k * h
        values.append(e["misfit"](e["speed_of"](c), data))
    slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
    assert e["g"][site] == pytest.approx(slope, abs=1e-7 * abs(e["g"]).max())


@pytest.mark.parametrize("share", [0.4, 0.08])
def test_a_limit_of_memory_is_kept_and_changes_no_bit(share: float) -> None:
    e = run("fwi")
    data = np.array([u[:, 2] for u in e["waves"](e["speed_of"](e["truth"]), 120)])
    limit = share * e["tape"].peak
    value, g, tape = e["gradient"](e["speed_of"](e["layers"]), data, limit)
    assert value == e["value"]
    np.testing.assert_array_equal(g, e["g"])
    assert 0 < tape.peak <= limit
    assert e["small"].peak <= e["tape"].peak / 10


def test_the_inversion_finds_the_body() -> None:
    e = run("fwi")
    assert e["history"] == sorted(e["history"], reverse=True)
    assert e["history"][-1] < 0.1
    more = e["found"] - e["layers"]
    assert np.all(more[:, :5] == 0)  # known there
    assert np.all((more >= 0) & (more < 0.1 + 1e-12))
    beside = ~e["body"] & (abs(e["j"] - 0.34 * e["depth"]) < 4)
    assert more[e["body"]].mean() > 5 * more[beside].mean()


def test_two_ranks_find_the_same_bits_of_the_gradient() -> None:
    alone, two = run("fwi"), run("fwi", 2, "# The inversion")
    np.testing.assert_equal(two, {key: alone[key] for key in ("g", "again", "value")})


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_find_the_same_bits_of_the_body(ranks: int) -> None:
    alone = run("fwi")
    np.testing.assert_equal(run("fwi", ranks), {key: alone[key] for key in KEPT["fwi"]})


@pytest.mark.full
@pytest.mark.mpi
def test_the_gradient_of_a_thousand_steps_is_the_same_on_two_processes() -> None:
    pytest.importorskip("checkpoint_schedules")
    command = [sys.executable, str(EXAMPLES / "fwi.py")]
    alone = run_program(command).stdout
    assert re.search(r"1000 steps: misfit 0\.4\d+.*\n.* the same bits\n.* the power (1\.9|2\.0)", alone), (
        alone
    )
    assert run_program([need_mpi().program, "-n", "2", *command]).stdout == alone


# ---- an operator of one's own --------------------------------------------------------------------------


def test_the_blur_and_its_derived_adjoint_are_a_matrix_and_its_transpose() -> None:
    e = run("adjoint")
    n, length = e["n"], e["length"][...]
    matrix = np.zeros((n, n, n, n))
    for i in range(n):
        for j in range(n):
            for k, m, c in e["TERMS"]:
                if i >= k and 0 <= j + m < n:
                    matrix[i, j, i - k, j + m] += c * np.exp(-k / length[i, j]) / (length[i, j] + 0.5)
    matrix = matrix.reshape(n * n, n * n)
    v = e["image"].like()
    v[...] = np.random.default_rng(2).normal(size=v.shape)
    np.testing.assert_allclose((e["A"] @ v)[...].ravel(), matrix @ v[...].ravel(), rtol=0, atol=1e-13)
    np.testing.assert_allclose((e["A"].H @ v)[...].ravel(), matrix.T @ v[...].ravel(), rtol=0, atol=1e-13)


def test_ranks_find_the_same_picture() -> None:
    alone = run("adjoint")
    np.testing.assert_equal(run("adjoint", 2), {key: alone[key] for key in KEPT["adjoint"]})


@pytest.mark.parametrize("name", SMALL)
def test_a_picture_is_drawn(name: str) -> None:
    assert run(name)["drawn"] > 5_000
