"""Every example runs, on one rank and on two MPI ranks, and its own check of the result holds."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

import pytest
from programs import need_mpi, run_jali, run_program

from jali.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONG = (
    "fwi",
    "gradient_flow",
    "ising",
    "momentum_correlator",
    "my_action",
    "own_correlator",
    "free_pion",
    "convergence",
    "dirac_operator",
    "phi4",
    "waves",
    "o3_overrelaxation",
    "plaquette",
    "pion_from_ensemble",
    "potts",
    "su2_deconfinement",
    "su2_higgs",
    "u1_2d",
)  # twice, on two ranks: in the full tests

# What a run must print beside ending with status 0, which the example's own check against the exact result decides.
EXPECTED = {
    "adjoint": r"A' y written by hand differs by \de[+-]\d\d\n.*\nerror of the picture: 0\.[34]\d+, after \d+ iterations of LSQR 0\.0\d+",
    "convergence": r"even-odd +\d+ applications .*\nCGNR in 16 bits +5\d\d applications  residual \d\.\de-1[12]",
    "dirac_operator": r"asymmetric +2\d iterations.*\nsymmetric +2\d iterations",
    "eigenvalues": r"(.*chirality -1\.00.*\n){5}.*\n1 modes of chirality -1 cross zero; the charge of the links is 0\.95",
    "free_pion": r"staggered +C\(1\.\.4\) = 0\.487732 .* \d\.\de-1[3-7]",
    "fwi": r"the same bits\n.* to the power (1\.9|2\.0)\d\n(.*\n)+error of the speed: 0\.[4-7]\d+",
    "gradient_flow": r"t0 / a\^2 = 1\.\d+",
    "heat": r"open +amplitude .* relative error \d\.\de-1[3-6]",
    "ising": r"beta 0\.44\d+",
    "momentum_correlator": r"exact 0\.5",
    "my_action": r"lam 100: accepted (0\.[6-9]|1\.0)\d, .*\n.*there and back: \de-1[3-6].*\n<Q\^2> falls by ([3-9]|\d\d)\.",
    "o3_overrelaxation": r"beta 2.0: <s.s'> 0\.53\d+.* exact 0\.537315",
    "phi4": r"free correlator at t = 3",
    "own_correlator": r"the conserved charge changes by \d\.\de-1[0-3] of itself",
    "pion_from_ensemble": r"pion mass \d\.\d+\(\d+\).*\n.* 1\.000000; by a gauge transformation \d\.\de-(09|1\d)",
    "pion_from_file": r"largest residual \d\.\de-1[0-3]",
    "plaquette": r"plaquette 0\.5\d+\(\d+\), tau_int",
    "potts": r"q = 3: bonds 0\.7[89]\d+.* exact 0\.788675",
    "red_black": r"red-black +200 sweeps.*difference \d\.\de-09",
    "replicas": r"beta 0\.4200 +<\|m\|> 0\.\d+\(\d+\) .*\n(.*\n)+7\d% of the exchanges",
    "su2_deconfinement": r"1\.85 ",
    "su2_higgs": r"beta 2\.3 kappa 0\.0: plaquette 0\.60\d+\(\d+\), .* known \(0\.602229",
    "u1_2d": r"4\.00 .* 0\.863523",
    "waves": r"exchanged: relative difference \d\.\de-1[3-6]",
    "wilson_cg": r"largest difference from the exact propagator \d\.\de-1[0-6]",
}


# What takes too long for the short run: it has fewer sweeps there, or an ensemble of its own.
SHORTER = {
    "potts": ("--sweeps", "5000"),
    "pion_from_ensemble": (),
    "my_action": ("--trajectories", "10"),
    "fwi": ("--extents", "36", "28", "--steps", "120", "--iterations", "3"),
}
FEW_CONFIGURATIONS = ("extents=2,2,2,8", "thermalisation=6", "sweeps=12", "save_every=2")


@functools.cache
def run(example: Path, ranks: int, *arguments: str) -> str:
    command = [sys.executable, str(example), *arguments]
    if ranks > 1:  # as users start them, without jali's launcher
        command = [need_mpi().program, "-n", str(ranks), *command]
    environment = {**os.environ, "JALI_THREADS": "1", "MPLBACKEND": "Agg"}
    return run_program(command, env=environment).stdout


def test_there_are_at_least_six_examples_and_each_says_what_it_prints():
    assert len(EXAMPLES) >= 6
    assert {e.stem for e in EXAMPLES} == set(EXPECTED)


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=pytest.mark.full if e.stem in SHORTER else ()) for e in EXAMPLES],
    ids=lambda e: e.stem,
)
def test_example_runs_and_its_check_holds(example):
    output = run(example, 1)
    assert re.search(EXPECTED[example.stem], output), output


@pytest.mark.parametrize("name", SHORTER)
def test_example_that_is_given_less_to_do_runs_and_its_check_holds(name, tmp_path):
    arguments = SHORTER[name]
    if name == "pion_from_ensemble":
        arguments = (str(tmp_path / "run"),)
        words = [f"--set={word}" for word in FEW_CONFIGURATIONS]
        run_jali("run", ROOT / "examples" / "su3.toml", "--output", *arguments, *words)
    output = run(ROOT / "examples" / f"{name}.py", 1, *arguments)
    assert re.search(EXPECTED[name], output), output


def test_the_pion_of_a_file_is_the_known_one(monkeypatch):
    """C(0), C(1), C(2) of clover quarks with kappa 0.13 and c 1.5, by an independent program."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "io"))
    from handmade import shared_file

    output = run(ROOT / "examples" / "pion_from_file.py", 1, str(shared_file("nersc.l8t4b3360")))
    assert re.findall(r"C = (\S+)", output)[:3] == ["1.195380901", "0.087272888", "0.024305806"], output


@pytest.mark.mpi
@pytest.mark.short(2)
@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=pytest.mark.full if e.stem in LONG else ()) for e in EXAMPLES],
    ids=lambda e: e.stem,
)
def test_example_prints_the_same_on_two_ranks(example):
    """Not only the same physics: the same numbers, since sums and random numbers do not depend on the split."""
    assert run(example, 2) == run(example, 1)


@pytest.mark.parametrize("name", ["o3_overrelaxation", "potts"])
def test_spin_models_fit_in_fifty_lines(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 50


def test_dirac_operator_with_conjugate_gradients_fits_in_eighty_lines():
    assert len((ROOT / "examples" / "wilson_cg.py").read_text().splitlines()) < 80


def test_a_higgs_model_fits_in_fifty_lines():
    assert len((ROOT / "examples" / "su2_higgs.py").read_text().splitlines()) < 50


@pytest.mark.parametrize("parameters", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_parameters_of_an_example_are_those_of_a_run(parameters):
    assert main(["run", str(parameters), "--check", "1"]) == 0


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example_begins_with_what_it_shows(example):
    first = example.read_text().splitlines()[0]
    assert first.startswith('"""')
    assert len(first) > 30
