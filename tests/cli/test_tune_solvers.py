"""`jali tune solvers`: what it measures, the rule that it writes, and that `jali.solve` follows it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from jali_command import jali_here

import jali
from jali import SU, Field, Lattice, Vector
from jali.fermions import Staggered
from jali.gauge import GaugeField
from jali.solvers import choose, rules

SMALL = ("--lattice", "4,4,4,4", "--sweeps", "0", "--solves", "1", "--tolerance", "1e-8")


def test_the_rule_that_is_written_is_the_one_that_a_solve_takes(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    assert jali_here("tune", "solvers", "staggered", "--mass", 0.4, *SMALL, "-o", file, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    timed = [one for one in said["timings"] if one["seconds"] is not None]
    assert {one["form"] for one in timed} == {"even-odd", "symmetric", "full"}
    assert {one["inner"] for one in timed} == {"", "float32", "fixed16", "float16"}
    assert all(one["residual"] <= 1e-8 for one in timed)
    assert said["path"] == str(file)
    (rule,) = rules.rules_in(file.read_text(), "mine.toml")
    first = timed[0]
    assert (rule.choices[0].method, rule.choices[0].form, rule.choices[0].inner) == (
        first["method"],
        first["form"],
        first["inner"],
    )

    lattice = Lattice(4, 4, 4, 4)
    D = Staggered(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.3)
    b = Field(lattice, Vector(3), boundary={3: "antiperiodic"})
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    found = choose(D, b, 1e-8, rules=file)
    assert found.candidates[0] == rule.choices[0]
    assert f"rule 1 of {file}" in " ".join(found.explain().split())
    assert choose(D, b, 1e-3, rules=file).rule.source != str(file)  # another tolerance than was measured

    assert jali_here("tune", "solvers", "staggered", "--mass", 0.4, *SMALL, "-o", file) == 2
    assert "has a rule with these conditions" in capsys.readouterr().err


def test_without_an_output_the_file_is_that_of_the_user(tmp_path, capsys):
    with jali.settings.using(cache_dir=str(tmp_path)):
        assert str(rules.user_file()) == str(tmp_path / "tune" / "solvers.toml")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "jali tune solvers names an operator: wilson, clover, "),
        (("cover",), "jali tune solvers knows no operator 'cover': wilson, clover, "),
        (("clover",), "the operator clover needs its mass: --mass"),
        (("twisted-mass", "--mass", "0.1"), "the operator twisted-mass needs its mu: --numbers mu=..."),
        (("wilson", "--mass", "0.1", "--numbers", "csw=1"), "the operator wilson has no csw; it has mass"),
        (("laplace", "--mass", "0.1"), "the operator laplace has no mass; it has no numbers"),
        (
            ("domain-wall", "--mass", "0.1", "--batch", "2"),
            "members of a batch of domain-wall are its slices",
        ),
        (
            ("wilson", "--mass", "0.1", "--configuration", "x", "--beta", "6"),
            "--configuration has links: --lattice, --beta and --sweeps are for links that are made here",
        ),
        (("wilson", "--mass", "0.1", "--why"), "--why is for show; jali tune solvers takes"),
        (
            ("wilson", "--mass", "0.1", "--rounds", "3"),
            "--rounds is for collectives; jali tune solvers takes",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(words, error, capsys):
    assert jali_here("tune", "solvers", *words) == 2
    said = capsys.readouterr().err
    assert error in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--numbers", "csw"), "'csw' is not NAME=NUMBER, such as csw=1.2"),
        (("--lattice", "4,4"), "should be four extents"),
    ],
)
def test_values_of_options_are_checked(words, error, capsys):
    with pytest.raises(SystemExit) as ended:
        jali_here("tune", "solvers", "wilson", *words)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_options_of_solvers_are_for_solvers(capsys):
    assert jali_here("tune", "collectives", "--mass", "0.1") == 2
    assert "--mass is for solvers; jali tune collectives takes" in capsys.readouterr().err
