"""`jali run` with hybrid Monte Carlo: one history on any ranks and after a kill, checks before a run, steps that are found, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jali_command import jali_here

import jali
from jali.cli.hmc_summary import TermForces, suggest, summarise_trajectories
from jali.cli.parameters import load_parameters, parse_parameters, render_parameters
from jali.cli.step_tuning import StepTuning, expected_acceptance, steps_for
from jali.cli.terms import NAMED, SMEARINGS
from jali.errors import ParameterError
from jali.gauge import SU, GaugeField, iwasaki_action, plaquette, stout_smear, wilson_action
from jali.hmc import HMC, Level, Monomial
from jali.hmc.checks import check_simulation
from jali.lattice import Random
from jali.lattice.random import CHAIN

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "iwasaki-hmc.toml"

SMALL = """\
[lattice]
extents = [4, 6]
[gauge]
group = "SU(2)"
beta = 2.0
[update]
algorithm = "hmc"
thermalisation = 4
sweeps = 8
[run]
checkpoint_every = 3
reunitarise_every = 4
[hmc]
steps = 4
spread = 0.2
accept_always = 2
check_reversibility = 5
forces_every = 4
"""

SMEARED = """\
[lattice]
extents = [4, 4, 6]
[gauge]
group = "SU(2)"
beta = 2.0
[update]
algorithm = "hmc"
thermalisation = 2
sweeps = 4
[hmc]
steps = [2, 2]
integrator = ["2MN", "leapfrog"]
forces_every = 2
[[hmc.terms]]
action = "gauge"
level = 1
[[hmc.terms]]
action = "symanzik"
beta = 0.3
name = "fat"
links = {kind = "stout", rho = 0.1, steps = 2}
"""


@pytest.fixture(autouse=True)
def _no_time_for_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "report" not in request.node.name:
        monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes a parameter file."""

    def write(text: str = SMALL) -> Path:
        path = tmp_path / "p.toml"
        path.write_text(text)
        return path

    return write


def table(directory: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((directory / f"{name}.csv").read_text().splitlines()))


def histories(directory: Path) -> list[bytes]:
    return [(directory / f"{name}.csv").read_bytes() for name in ("history", "trajectories", "forces")]


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(ParameterError) as caught:
        parse_parameters(text, "p.toml", overrides)
    return str(caught.value)


# ---- a run -------------------------------------------------------------------------------------------------


def test_a_run_is_that_of_the_functions(written: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert jali_here("run", written(), "--output", out) == 0
    U = GaugeField(jali.Lattice(4, 6), SU(2)).hot_start(Random.reserved(CHAIN, 1, 0))
    hmc = HMC(
        {"U": U},
        wilson_action(2.0),
        seed=1,
        spread=0.2,
        levels=[Level("2MN", 4)],
        accept_always=2,
        reunitarise=4,
    )
    rows = table(out, "trajectories")
    assert len(rows) == 12
    for row, measured, one in zip(rows, table(out, "history"), hmc.run(12), strict=True):
        assert (float(row["dH"]), float(row["tau"])) == (one.dH, one.tau)
        assert (row["accepted"], row["forced"]) == (str(int(one.accepted)), str(int(one.forced)))
        assert float(measured["plaquette"]) == plaquette(U)
    assert [row["sweep"] for row in rows if row["reversibility"]] == ["5", "10"]
    assert all(float(row["reversibility"]) < 1e-12 for row in rows if row["reversibility"])
    assert [row["sweep"] for row in table(out, "forces")] == ["4", "8", "12"]
    assert load_parameters(out / "parameters.toml") == load_parameters(tmp_path / "p.toml")


def test_terms_are_monomials_on_levels_and_smeared_links(written: Any, tmp_path: Path) -> None:
    from jali.gauge import symanzik_action

    out = tmp_path / "run"
    assert jali_here("run", written(SMEARED), "--output", out, ranks=2) == 0
    U = GaugeField(jali.Lattice(4, 4, 6), SU(2)).hot_start(Random.reserved(CHAIN, 1, 0))
    fat = symanzik_action(0.3).on(lambda V: stout_smear(V, 0.1, 2))
    monomials = [Monomial(wilson_action(2.0), 1), Monomial(fat)]
    levels = [Level("2MN", 2), Level("leapfrog", 2)]
    hmc = HMC({"U": U}, monomials, seed=1, levels=levels, accept_always=2)
    assert [float(row["dH"]) for row in table(out, "trajectories")] == [one.dH for one in hmc.run(6)]
    forces = table(out, "forces")
    assert [(row["term"], row["level"]) for row in forces[:2]] == [("0", "1"), ("1", "0")]
    found = {force.monomial: force for force in hmc.forces()}
    assert all(math.isfinite(force.rms) for force in found.values())


def test_the_example_has_one_history_on_1_2_and_3_ranks(tmp_path: Path) -> None:
    words = (
        "--set",
        "sweeps=3",
        "--set",
        "thermalisation=2",
        "--set",
        "check_reversibility=4",
        "--set",
        "forces_every=2",
    )
    found = []
    for ranks in (1, 2, 3):
        out = tmp_path / str(ranks)
        assert jali_here("run", EXAMPLE, "--output", out, *words, ranks=ranks) == 0
        found.append(histories(out))
    assert found[0] == found[1] == found[2]


@pytest.mark.full
@pytest.mark.parametrize("name", ["small", "smeared"])
def test_other_runs_have_one_history_on_any_ranks(name: str, written: Any, tmp_path: Path) -> None:
    file, found = written({"small": SMALL, "smeared": SMEARED}[name]), []
    for ranks in (1, 2, 3):
        assert jali_here("run", file, "--output", tmp_path / str(ranks), ranks=ranks) == 0
        found.append(histories(tmp_path / str(ranks)))
    assert found[0] == found[1] == found[2]


def test_a_run_that_was_killed_goes_on_bit_for_bit_on_other_ranks(written: Any, tmp_path: Path) -> None:
    """In the middle of a trajectory: there are an older checkpoint and tables ahead of it."""
    file, whole, killed = written(), tmp_path / "whole", tmp_path / "killed"
    assert jali_here("run", file, "--output", whole) == 0
    assert jali_here("run", file, "--output", killed, "--set", "sweeps=2") == 0
    shutil.copytree(killed / "checkpoint", tmp_path / "checkpoint")
    assert jali_here("run", "--resume", killed, "--set", "sweeps=5") == 0
    shutil.rmtree(killed / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", killed / "checkpoint")
    assert jali_here("run", "--resume", killed, "--set", "sweeps=8", ranks=2) == 0
    assert histories(killed) == histories(whole)


def test_a_run_has_the_exact_plaquette_and_the_mean_of_exp_of_minus_dh_is_one(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [
        "group=U1",
        "beta=1.5",
        "sweeps=600",
        "thermalisation=30",
        "checkpoint_every=0",
        "steps=3",
        "tau=1.5",
    ]
    words = [word for change in changes for word in ("--set", change)]
    assert jali_here("run", written(), "--output", tmp_path / "run", "--json", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["reference"]["deviation_sigma"]) < 4
    hmc = found["hmc"]
    assert abs(hmc["exp_minus_dH"]["mean"] - 1) < 4 * hmc["exp_minus_dH"]["error"]
    assert hmc["acceptance"]["mean"] == pytest.approx(hmc["expected_acceptance"], abs=0.08)
    assert hmc["reversibility"] < 1e-12
    (force,) = hmc["forces"]
    assert 0 < force["rms"] < force["largest"]
    assert force["seconds"] > 0


def test_the_report_shows_trajectories_and_forces(written: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert jali_here("run", written(SMEARED), "--output", out, "--set", "check_reversibility=3") == 0
    page = (out / "report.html").read_text()
    for text in ("Hybrid Monte Carlo", "⟨exp(-dH)⟩", "erfc", "fat", "time of a kick", "of tmLQCD"):
        assert text in page
    assert "gauge + fat (beta = 0.3)" in re.sub(r"\s+", " ", page)


# ---- checks before a run -----------------------------------------------------------------------------------


def test_check_says_what_was_checked_and_stops(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("run", written(SMEARED), "--check", ranks=2) == 0
    said = capsys.readouterr().out
    for text in (
        "gauge after a random gauge",
        "fat after a random gauge",
        "the force of fat on U",
        "a trajectory and back",
    ):
        assert said.count(text) == 1


def test_a_run_after_checks_is_that_without(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written()
    assert jali_here("run", file, "--output", tmp_path / "a") == 0
    assert "gauge transformation" not in capsys.readouterr().out
    assert jali_here("run", file, "--output", tmp_path / "b", "--check") == 0
    assert "gauge transformation" in capsys.readouterr().out
    assert histories(tmp_path / "a") == histories(tmp_path / "b")


@jali.action
def open_path(X: Any, U: Any, *, beta: Any) -> Any:
    """Two links in a row: not gauge-invariant."""
    return -beta * sum((U[mu][X] * U[mu][X + mu]).trace().real for mu in X.directions())


class WrongForce(jali.actions.Action):
    """Whose force is that of another coupling."""

    fields = ("U",)

    def value(self, U: Any) -> Any:
        return wilson_action(2.0).value(U)

    def force(self, *fields: Any, of: str | None = None, out: Any = None) -> Any:
        return wilson_action(2.01).force(*fields, of=of, out=out)


@pytest.mark.parametrize("start", ["cold", "hot"])
@pytest.mark.parametrize(
    ("action", "complaint"),
    [(open_path(beta=1.0), "is not gauge-invariant"), (WrongForce(), "is not the gradient of the action")],
    ids=["open path", "wrong force"],
)
def test_an_action_that_is_wrong_on_purpose_is_found(start: str, action: Any, complaint: str) -> None:
    U = GaugeField(jali.Lattice(4, 4), SU(2))
    U = U.hot_start(seed=2) if start == "hot" else U.cold_start()
    with pytest.raises(ParameterError, match=complaint):
        check_simulation(HMC({"U": U}, action, seed=1))


def test_checks_leave_fields_as_they_are_and_know_how_fields_turn() -> None:
    @jali.action
    def higgs(X: Any, U: Any, phi: Any, *, kappa: Any) -> Any:
        hop = sum(phi[X].dot(U[mu][X] * phi[X + mu]).real for mu in X.directions())
        return phi[X].norm2() - 2.0 * kappa * hop

    lattice = jali.Lattice(4, 4)
    U, phi = GaugeField(lattice, SU(2)).hot_start(seed=2), jali.Field(lattice, jali.Vector(2))
    phi[...] = np.random.default_rng(1).normal(size=phi.shape)
    before = [one[...] for one in (*U.fields, phi)]
    checks = check_simulation(HMC({"U": U, "phi": phi}, higgs(kappa=0.2), seed=1))
    assert [one.what.split(",")[0] for one in checks] == [
        "higgs(kappa=0.2) after a random gauge transformation",
        "the force of higgs(kappa=0.2) on U against a difference of the action",
        "the force of higgs(kappa=0.2) on phi against a difference of the action",
        "a trajectory and back",
    ]
    assert all(one.deviation < one.limit / 100 for one in checks)
    assert all(np.array_equal(one[...], kept) for one, kept in zip((*U.fields, phi), before, strict=True))


# ---- steps that are found ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [2, 4])
def test_steps_are_found_that_have_the_acceptance(order: int) -> None:
    """dH is Gaussian with a mean of half of its variance, and its width falls as a power of the steps."""
    seen = [(5, float(x)) for x in np.random.default_rng(3).normal(0.02, 0.2, 4000)]
    found = steps_for(0.97, seen, order)
    acceptance = [math.erfc(0.2 * (5 / n) ** order / math.sqrt(8)) for n in (found, found - 1)]
    assert acceptance[0] >= 0.969
    assert acceptance[1] < 0.971
    assert expected_acceptance(math.sqrt(0.2**2 + 0.02**2)) == pytest.approx(math.erfc(0.2 / math.sqrt(8)))


def test_tuned_steps_are_held_after_thermalisation_and_by_a_resumed_run(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tune-steps", "0.8", "--set", "thermalisation=30", "--set", "steps=1", "--set", "beta=6"]
    file, whole, parts = written(), tmp_path / "whole", tmp_path / "parts"
    assert jali_here("run", file, "--output", whole, "--set", "sweeps=12", *words) == 0
    assert "steps of the first level: " in capsys.readouterr().out
    steps = [int(row["steps"]) for row in table(whole, "trajectories")]
    assert steps[0] == 1
    assert steps[30] > 1
    assert len(set(steps[30:])) == 1
    assert jali_here("run", file, "--output", parts, "--set", "sweeps=0", *words, ranks=2) == 0
    assert jali_here("run", "--resume", parts, "--set", "sweeps=12") == 0
    assert histories(parts) == histories(whole)


def test_tuning_goes_on_from_its_state_and_ends() -> None:
    def steps_of(restored_at: int) -> list[int]:
        chance, tuning, steps, found = np.random.default_rng(1), StepTuning(0.8, 2, 40), 2, []
        for number in range(1, 60):
            if number == restored_at:
                state = json.loads(json.dumps(tuning.state))
                tuning = StepTuning(0.8, 2, 40)
                tuning.restore(state)
            steps = tuning.next_steps(number, steps, float(chance.normal(0, 40 / steps**2)))
            found.append(steps)
        return found

    whole = steps_of(0)
    assert whole == steps_of(17) == steps_of(45)
    assert whole[0] < whole[-1] == whole[40]


# ---- what is suggested ---------------------------------------------------------------------------------------


def forces(*given: tuple[float, int, float]) -> list[TermForces]:
    return [
        TermForces(f"t{k}", level, big / 2, big, step, 1e-3) for k, (big, level, step) in enumerate(given)
    ]


def test_steps_are_suggested_that_make_kicks_a_quarter() -> None:
    (said,) = suggest(forces((10.0, 0, 0.1)), [10])
    assert "steps = [40]" in said
    (said,) = suggest(forces((1.0, 0, 0.25), (10.0, 1, 0.025)), [4, 10])
    assert "steps = [4, 10]" in said


def test_terms_go_to_levels_by_their_forces() -> None:
    _, said = suggest(forces((10.0, 0, 0.1), (1.0, 0, 0.1)), [10])
    assert "level 0: t1, steps of about 0.25; level 1: t0, steps of about 0.025" in said
    assert len(suggest(forces((10.0, 0, 0.1), (9.0, 0, 0.1)), [10])) == 1
    assert suggest([], [10]) == []


def test_a_trajectory_that_left_all_numbers_counts_as_rejected() -> None:
    columns = {
        "sweep": [1, 2, 3], "tau": [1, 1, 1], "steps": [3, 3, 3], "dH": [0.1, math.nan, 0.2], "accepted": [1, 0, 1],
        "forced": [0, 0, 0], "reversibility": [math.nan] * 3, "unitarity": [math.nan] * 3,
    }  # fmt: skip
    found = summarise_trajectories(
        {n: np.array(c, float) for n, c in columns.items()}, None, None, 0, [3], 2, ["gauge"]
    )
    assert found.exp_minus_dH is not None
    assert found.exp_minus_dH.mean == pytest.approx((math.exp(-0.1) + math.exp(-0.2)) / 3)
    assert found.dH is None
    assert json.dumps(found.as_dict(), allow_nan=False)


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('action = "symanzik"', 'action = "simanzik"'), "action is not 'simanzik'; it is one of gauge, wilson"),
        (("beta = 0.3", "bta = 0.3"), 'the action symanzik has no key "bta"; did you mean "beta"?'),
        (("beta = 0.3", ""), "the action symanzik needs beta"),
        (("beta = 0.3", 'beta = "a"'), "beta of the action symanzik is a finite number, not 'a'"),
        (("beta = 0.3", "beta = 0.3\nlevel = 2"), "on level 2, and steps = [2, 2] has the levels 0 to 1"),
        (("beta = 0.3", "beta = 0.3\nlevel = -1"), "level is a whole number from 0, not -1"),
        (('"stout"', '"stot"'), "kind of links is not 'stot'; it is one of plain, stout, ape, hyp"),
        (("rho = 0.1", "alpha = 0.1"), 'stout smearing has no key "alpha"'),
        (("steps = 2}", "steps = 0}"), "stout smearing takes 1 to 1000 steps, not 0"),
        (('action = "gauge"', 'action = "gauge"\nbeta = 1.0'), 'gauge, the action of [gauge], has no key "beta"'),
        (('action = "gauge"', 'action = "wilson"\nbeta = 1.0'), "so beta = 2 of [gauge] would mean nothing"),
        (('integrator = ["2MN", "leapfrog"]', 'integrator = ["2MN", "4MN5", "2MN"]'), "has 3 entries for 2 levels"),
        (('integrator = ["2MN", "leapfrog"]', 'integrator = ["3MN"]'), 'integrator = ["3MN"]; must be one of'),
        (("steps = [2, 2]", "steps = [2, 0]"), "steps = [2, 0]; must be an integer, or a list of 1 to 8"),
        (("forces_every = 2", "tune_steps = 0.8"), "finds the steps in thermalisation = 2 trajectories; it needs 20"),
        (('algorithm = "hmc"', 'algorithm = "heatbath"'), 'terms is given, but algorithm is "heatbath"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_wrong_parameters_are_refused_with_what_would_be_right(change: tuple[str, str], message: str) -> None:
    assert change[0] in SMEARED
    assert message in complaint(SMEARED.replace(*change, 1))


def test_tuning_of_other_algorithms_is_refused() -> None:
    assert "tune_steps is given, but algorithm" in complaint(
        SMALL.replace('"hmc"', '"heatbath"'), "tune_steps=0.8"
    )


def test_a_level_without_terms_is_refused_before_the_first_trajectory(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMEARED.replace("level = 1", "level = 0")
    assert jali_here("run", written(text), "--output", tmp_path / "run", ranks=2) == 2
    assert "level 1 has no Monomial" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_force_that_no_step_can_follow_leaves_no_run(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jali_here("run", written(), "--output", tmp_path / "run", "--set", "beta=1e6", ranks=2) == 2
    said = capsys.readouterr().err
    assert "the force of gauge on U is" in said
    assert said.count("beyond 1000") == 1
    assert not (tmp_path / "run").exists()


def test_every_action_of_links_and_smearing_can_be_a_term() -> None:
    couplings = {
        "tadpole-symanzik": "beta = 1, u0 = 0.9",
        "rectangle": "beta = 1, c1 = 0.1",
        "anisotropic": "beta = 1, xi = 2",
        "clover-energy": "coupling = 1",
        "charge": "theta = 1",
    }
    for name in (name for name, one in NAMED.items() if not one.scalars):
        for kind in ("plain", *SMEARINGS):
            own = couplings.get(name, "beta = 1")
            term = f'{{action = "{name}", {own}, links = {{kind = "{kind}"}}}}'
            parameters = parse_parameters(SMALL + f"terms = [{term}]\n", overrides=["beta=0"])
            assert parse_parameters(render_parameters(parameters)) == parameters


@pytest.mark.full
@pytest.mark.parametrize("kind", SMEARINGS)
def test_trajectories_on_smeared_links_go_back(kind: str, written: Any) -> None:
    text = SMEARED.replace('kind = "stout", rho = 0.1, steps = 2', f'kind = "{kind}"')
    assert jali_here("run", written(text), "--check") == 0


def test_iwasaki_of_the_example_is_the_action_of_its_function() -> None:
    parameters = load_parameters(EXAMPLE)
    assert (parameters.update.algorithm, parameters.gauge.action) == ("hmc", "iwasaki")
    assert iwasaki_action(parameters.gauge.beta).beta == 2.6
