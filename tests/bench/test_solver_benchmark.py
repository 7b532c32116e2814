"""The benchmark of solvers measures what it says: each part prints its numbers with their aims, on small lattices."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from programs import on_ranks, run_program

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "solvers.py"
FEW = ["--extents", 4, "--rounds", 3, "--copy", "16,16"]


def lines(pattern: str, text: str, count: int) -> list[tuple[str, ...]]:
    """The groups of each line that is one of these, of which there are so many."""
    found = [match.groups() for match in re.finditer(f"^{pattern}$", text, re.MULTILINE)]
    assert len(found) == count, text
    return found


def test_an_iteration_moves_its_compulsory_bytes_and_has_the_operators_fraction() -> None:
    text = run_program(
        [
            sys.executable,
            BENCHMARK,
            "--parts",
            "iteration,core",
            "--formats",
            "float64",
            *FEW,
            "--iterations",
            120,
        ]
    ).stdout
    ((rate,),) = lines(r"copy: (\d+\.\d) GB/s on cpu", text, 1)
    ((name, us, least, share),) = lines(
        r"iteration 4\^4 (\S+) +(\d+\.\d+) us +(\d+) bytes of a site +(\d+\.\d)% of copy", text, 1
    )
    assert (name, int(least)) == ("float64", 6912)  # 20 spinors of 192 bytes, 32 links of 96
    expected = 128 * 6912 / float(us) / float(rate) / 1e3
    rounding = 0.05 / float(rate) + 0.05 / float(us)  # of printed numbers: a busy machine copies slowly
    assert float(share) == pytest.approx(100 * expected, rel=0.01 + rounding)
    ((us, alone, share),) = lines(
        r"core 4\^4 float64 +iteration +(\d+\.\d) us, operator +(\d+\.\d) us: (\d+\.\d)% of the operator's fraction, aim 85 %",
        text,
        1,
    )
    assert float(share) == pytest.approx(100 * 6912 / 4992 * float(alone) / float(us), abs=0.5)


@pytest.mark.full
def test_all_sites_are_measured_with_each_number_of_iterations_between_checks() -> None:
    text = run_program([sys.executable, BENCHMARK, "--parts", "full", *FEW, "--iterations", 120]).stdout
    found = lines(r"full 4\^4 the host looks at (.*?) +(\d+\.\d+) us .*?(?:  (\d+\.\d) launches)?", text, 4)
    assert [what for what, *_ in found] == [
        "every iteration",
        "every 8",
        "every 8, inner product apart",
        "every 32",
    ]
    assert float(found[2][2]) == pytest.approx(float(found[1][2]) + 1)


@pytest.mark.full
def test_quenched_configurations_are_made_once_and_solved_on(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARK, "--parts", "light", *FEW, "--sweeps", 4, "--configurations", 2]
    command += ["--cache", tmp_path, "--eigenvectors", 2, "--accuracy", 1e-6]
    first, again = (run_program([*command, *more]).stdout for more in ([], ["--of", "sides"]))
    made = lines(r"configuration \d: .*, made in .*: plaquette (0\.\d+) \(known 0\.593679\)", first, 2)
    assert made == lines(r"configuration \d: .*, read: plaquette (0\.\d+) \(known 0\.593679\)", again, 2)
    medians = lines(r"light 4\^3 x 8, median of 2: kappa 0\.155, (.*): \d+\.\d+ \(.*\)", first, 9)
    assert sum("aim" in what for (what,) in medians) == 8  # all but the set-up of eigenvectors
    for iterations, deflated in zip(
        lines(r"light .*: cg in float64 .* (\d+) iterations", first, 2),
        lines(r"light .*: deflated by 2 eigenvectors .* (\d+) iterations: .*", first, 2),
        strict=True,
    ):
        assert int(*deflated) < int(*iterations)


@pytest.mark.full
@pytest.mark.mpi
def test_ranks_split_the_lattice_in_one_direction_and_in_two() -> None:
    command = [
        sys.executable,
        BENCHMARK,
        "--parts",
        "ranks",
        *FEW,
        "--iterations",
        24,
        "--formats",
        "float64",
    ]
    text = run_program(on_ranks(4, *command)).stdout
    lines(r"ranks 4 in (one direction|two directions), 4\^4 each, float64 +\d+\.\d+ us", text, 2)
