"""`jali run` with scalar fields: one history on any ranks and after a resumption, checkpoints, checks and memory, an exact value, and what is refused."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jali_command import jali_here

import jali
from jali import io
from jali.actions import phi4_action, portal_action, scalar_means
from jali.cli.hmc_summary import summarise_trajectories
from jali.cli.parameters import load_parameters, parse_parameters, render_parameters
from jali.cli.report_data import summarise
from jali.cli.report_hmc import hmc_card, scalars_card
from jali.cli.scalars import KINDS
from jali.cli.terms import NAMED
from jali.errors import ParameterError
from jali.gauge import SU, GaugeField, higgs_action, higgs_means, wilson_action
from jali.hmc import HMC, Level, Monomial
from jali.lattice import Random
from jali.lattice.random import CHAIN
from jali.statistics import mean_error

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "higgs-hmc.toml"

HIGGS = """\
[lattice]
extents = [4, 6]
[gauge]
group = "SU(2)"
beta = 2.0
[update]
algorithm = "hmc"
thermalisation = 2
sweeps = 4
[run]
checkpoint_every = 3
[hmc]
steps = 4
accept_always = 2
forces_every = 2
[[hmc.scalars]]
name = "h"
kind = "fundamental"
mass = 2.0
[[hmc.scalars]]
name = "s"
kind = "real"
start = "cold"
[[hmc.terms]]
action = "gauge"
[[hmc.terms]]
action = "higgs"
scalars = "h"
kappa = 0.2
lam = 0.1
[[hmc.terms]]
action = "phi4"
scalars = "s"
kappa = 0.1
lam = 0.5
[[hmc.terms]]
action = "portal"
scalars = ["h", "s"]
lam = 0.1
"""

FREE = """\
[lattice]
extents = [4, 4]
[gauge]
group = "U(1)"
beta = 0
start = "cold"
[update]
algorithm = "hmc"
thermalisation = 20
sweeps = 400
[run]
checkpoint_every = 0
[hmc]
tau = 1.5
spread = 0.3
steps = 4
scalars = [{name = "phi", kind = "real"}]
terms = [{action = "phi4", kappa = 0.15, lam = 0}]
"""

TABLES = ("history", "trajectories", "forces", "scalars", "scalar_forces")


@pytest.fixture(autouse=True)
def _no_time_for_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of HIGGS on one rank, and what it printed."""
    folder, said = tmp_path_factory.mktemp("whole"), StringIO()
    (folder / "p.toml").write_text(HIGGS)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")
        assert jali_here("run", folder / "p.toml", "--output", folder / "run") == 0
    return folder / "run", said.getvalue()


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes a parameter file."""

    def write(text: str = HIGGS) -> Path:
        path = tmp_path / "p.toml"
        path.write_text(text)
        return path

    return write


def table(directory: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((directory / f"{name}.csv").read_text().splitlines()))


def histories(directory: Path) -> list[bytes]:
    return [(directory / f"{name}.csv").read_bytes() for name in TABLES]


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(ParameterError) as caught:
        parse_parameters(text, "p.toml", overrides)
    return str(caught.value)


# ---- a run -------------------------------------------------------------------------------------------------


def test_a_run_with_scalars_is_that_of_the_functions(whole: tuple[Path, str]) -> None:
    lattice, rng = jali.Lattice(4, 6), Random.reserved(CHAIN, 1, 0)
    U = GaugeField(lattice, SU(2)).hot_start(rng)
    h, s = jali.Field(lattice, jali.Vector(2)), jali.Field(lattice, jali.Real())
    s[...] = 0.0

    @jali.site_function
    def gaussian(X: Any, h: Any, rng: Any) -> None:
        h[X] = jali.vector([jali.complex(rng.gaussian(X), rng.gaussian(X)) for _ in range(2)])

    gaussian(h, rng)
    terms = [
        wilson_action(2.0),
        higgs_action(0.2, 0.1).renamed(phi="h"),
        phi4_action(0.1, 0.5).renamed(phi="s"),
        portal_action(0.1).renamed(phi="h", chi="s"),
    ]
    hmc = HMC(
        {"U": U, "h": h, "s": s},
        [Monomial(one) for one in terms],
        seed=1,
        levels=[Level("2MN", 4)],
        accept_always=2,
        masses={"h": 2.0},
    )
    run, _ = whole
    rows = iter(table(run, "scalars"))
    for row, one in zip(table(run, "trajectories"), hmc.run(6), strict=True):
        assert float(row["dH"]) == one.dH
        for k, means in enumerate((higgs_means(U, h), scalar_means(s))):
            said = next(rows)
            assert (int(said["sweep"]), int(said["scalar"])) == (one.number, k)
            assert tuple(float(said[name]) for name in ("phi2", "phi4", "hopping")) == means
    assert next(rows, None) is None
    forces = [(row["term"], row["scalar"]) for row in table(run, "scalar_forces")]
    assert forces == [("1", "0"), ("2", "1"), ("3", "0"), ("3", "1")] * 3
    assert {row["term"] for row in table(run, "forces")} == {"0", "1"}
    # What reads a checkpoint as a configuration finds the links.
    checkpoint = io.open_checkpoint(run / "checkpoint")
    assert sorted(checkpoint.fields) == ["links", "scalar.h", "scalar.s"]
    np.testing.assert_array_equal(GaugeField.from_file(run)[0][...], U[0][...])
    np.testing.assert_array_equal(checkpoint.read("scalar.h").swapaxes(0, 1), h[...])


def test_a_run_that_was_resumed_on_other_ranks_has_the_same_history(
    whole: tuple[Path, str], written: Any, tmp_path: Path
) -> None:
    """Of links and scalars, on 2 and on 3 ranks, with rows behind the checkpoint that are made again."""
    parts, words = tmp_path / "parts", ("--set", "sweeps=1")
    assert jali_here("run", written(), "--output", parts, *words, ranks=3) == 0
    shutil.copytree(parts / "checkpoint", tmp_path / "checkpoint")
    assert jali_here("run", "--resume", parts, "--set", "sweeps=2") == 0
    shutil.rmtree(parts / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", parts / "checkpoint")
    assert jali_here("run", "--resume", parts, "--set", "sweeps=4", ranks=2) == 0
    assert histories(parts) == histories(whole[0])


def test_a_checkpoint_without_the_scalars_is_refused_on_all_ranks(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoint"
    assert jali_here("run", written(), "--output", run, "--set", "sweeps=0", "--set", "thermalisation=0") == 0
    there = io.open_checkpoint(checkpoint)
    fields = {name: there.read(name) for name in there.fields}
    h = fields.pop("scalar.h")
    for others in ({}, {"scalar.h": h.real.copy()}, {"scalar.h": h[..., :1].copy()}):
        io.write_checkpoint(
            checkpoint, (4, 6), io.Box((0, 0), (4, 6)), fields | others, rng=there.rng, state=there.state
        )
        capsys.readouterr()
        assert jali_here("run", "--resume", run, "--set", "sweeps=2", ranks=2) == 2
        said = capsys.readouterr().err
        assert said.count("not the scalar h of the kind fundamental") == 1
        assert "complex128 of shape (2,)" in said


def test_the_report_shows_scalars_and_their_forces(whole: tuple[Path, str]) -> None:
    run, said = whole
    line = r"^<\|h\|\^2> \d\.\d+\(\d+\), <\|h\|\^4> .*, hopping of h .*, longest tau_int "
    assert re.search(line, said, re.MULTILINE)
    assert "higgs of h (kappa = 0.2, lam = 0.1) + phi4 of s" in said
    summary = summarise(run)
    page = scalars_card(summary) + hmc_card(summary)
    for text in ("&lt;|s|^2&gt;", "hopping of h", "higgs of h, on h", "portal of h and s, on s"):
        assert text in page
    found = summary.as_dict()
    assert [one["name"] for one in found["scalars"]] == ["h", "s"]
    rows = [float(row["phi2"]) for row in table(run, "scalars") if row["scalar"] == "1"][2:]
    assert found["scalars"][1]["phi2"]["mean"] == pytest.approx(np.mean(rows))
    assert json.dumps(found, allow_nan=False)
    assert [(f["term"], f["scalar"]) for f in found["hmc"]["forces"]][:3] == [
        ("gauge", None),
        ("higgs of h", None),
        ("higgs of h", "h"),
    ]


def test_links_without_a_term_stay_and_a_free_field_has_its_exact_means(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S = sum_k |phi_k|^2 (1 - 2 kappa sum_mu cos k_mu); the seed was written down before the first run."""
    out = tmp_path / "run"
    assert jali_here("run", written(FREE), "--output", out) == 0
    assert "links stay as they are" in capsys.readouterr().out
    assert {row["plaquette"] for row in table(out, "history")} == {"1.0"}
    assert not (out / "scalar_forces.csv").read_text().startswith("sweep,term,level")
    cosines = np.cos(np.pi / 2 * np.indices((4, 4)))
    modes = 1 / (2 * (1 - 2 * 0.15 * cosines.sum(0)))
    exact = {"phi2": modes.mean(), "hopping": (modes * cosines[0]).mean()}
    for name, value in exact.items():
        found = mean_error([float(row[name]) for row in table(out, "scalars")][20:])
        assert abs(found.mean - value) < 4 * found.error
        assert found.error < 0.05 * exact["phi2"]


def test_unit_vectors_stay_so_and_start_as_they_are_told(written: Any, tmp_path: Path) -> None:
    text = FREE.replace('"real"', '"O(3)"').replace('"phi4", kappa = 0.15, lam = 0', '"sigma", beta = 1.0')
    for start in ("cold", "hot"):
        out = tmp_path / start
        file = written(text.replace('"O(3)"', f'"O(3)", start = "{start}"'))
        assert jali_here("run", file, "--output", out, "--set", "sweeps=4", "--set", "thermalisation=0") == 0
        assert all(abs(float(row["phi2"]) - 1) < 1e-13 for row in table(out, "scalars"))
        (n,) = [checkpoint_of(file, start)]
        aligned = np.abs(n - n.reshape(-1, 3)[0]).max()
        assert aligned == 0 if start == "cold" else aligned > 1


def checkpoint_of(file: Path, start: str) -> np.ndarray:
    """The scalar of a run before its first trajectory."""
    out = file.parent / f"at start, {start}"
    assert jali_here("run", file, "--output", out, "--set", "sweeps=0", "--set", "thermalisation=0") == 0
    return io.open_checkpoint(out / "checkpoint").read("scalar.phi")


def test_the_example_has_the_exact_mean_of_its_virial(tmp_path: Path) -> None:
    """<phi dS/dphi> is the number of real components: 2 |phi|^2 + 4 lam (|phi|^4 - |phi|^2) - 4 kappa d hopping = 4, in d dimensions."""
    (term,) = [one for one in load_parameters(EXAMPLE).hmc.terms if one["action"] == "higgs"]
    kappa, lam, d = term["kappa"], term["lam"], 2
    words = [
        f"--set={one}" for one in ("extents=4,6", "sweeps=200", "thermalisation=30", "checkpoint_every=0")
    ]
    assert jali_here("run", EXAMPLE, "--output", tmp_path / "run", *words) == 0
    series = []
    for row in table(tmp_path / "run", "scalars")[30:]:
        phi2, phi4, hopping = (float(row[name]) for name in ("phi2", "phi4", "hopping"))
        series.append(2 * phi2 + 4 * lam * (phi4 - phi2) - 4 * kappa * d * hopping)
    found = mean_error(series)
    assert abs(found.mean - 4) < 4 * found.error
    assert found.error < 0.2


# ---- checks before a run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("links", ["", pytest.param(" on stout links", marks=pytest.mark.full)])
def test_check_says_what_was_checked_of_scalars(
    links: str, written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    smeared = 'scalars = "h"\nlinks = {kind = "stout", rho = 0.1}\n'
    text = HIGGS.replace('scalars = "h"\n', smeared) if links else HIGGS
    assert jali_here("run", written(text), "--check", ranks=2 if links else 1) == 0
    said = capsys.readouterr().out
    for line in (
        f"higgs of h{links} after a random gauge",
        f"the force of higgs of h{links} on U",
        f"the force of higgs of h{links} on h",
        "the force of portal of h and s on s",
    ):
        assert said.count(line) == 1


def test_the_memory_of_scalars_is_counted(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def memory(text: str) -> dict[str, int]:
        assert jali_here("run", written(text), "--check", "1", "--json") == 0
        return dict(json.loads(capsys.readouterr().out)["bytes_per_rank"])

    with_scalars, without = memory(HIGGS), memory(HIGGS[: HIGGS.index("[[hmc.scalars]]")])
    assert without["scalars"] == 0
    unit = with_scalars["scalars"] // 5  # four real components and one
    assert with_scalars["scalars"] == 5 * unit >= 5 * 24 * 8
    assert unit % 8 == 0
    # To go back, momenta and forces: of h by two terms, of s by two; and forces on links by a term more.
    forces = (with_scalars["trajectories"] - without["trajectories"]) - 5 * unit * 4
    assert forces == 2 * 3 * unit  # Algebra(2) in two directions
    assert with_scalars["checkpoint_buffers"] > without["checkpoint_buffers"]


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name = "h"\n', ""), 'name is missing; for example name = "phi"'),
        (('name = "h"', 'name = "U"'), "name is up to 40 letters from a to z, digits and _, such as phi, no word of Python's, and neither U, the links, nor X, the site; not 'U'"),
        (('name = "h"', 'name = "a-b"'), "not 'a-b'"),
        (('name = "h"', 'name = "lambda"'), "not 'lambda'"),
        (('name = "h"', 'name = "s"'), "scalars has 2 scalars called s; names differ"),
        (('kind = "fundamental"', ""), "kind of h is missing; it is one of real, complex, vector(N), O(N), fundamental, adjoint, with N from 2 to 64"),
        (('kind = "fundamental"', 'kind = "O(1)"'), "kind of h is not 'O(1)'; it is one of"),
        (('kind = "fundamental"', 'kind = "real(3)"'), "kind of h is not 'real(3)'"),
        (('kind = "fundamental"', "kind = 3"), "kind of h is not 3"),
        (("mass = 2.0", "mass = 0"), "mass of h is that of its momenta, a positive number, not 0"),
        (("mass = 2.0", 'mass = "a"'), "mass of h is a finite number, not 'a'"),
        (("mass = 2.0", "masss = 2.0"), 'the scalar h has no key "masss"; did you mean "mass"?'),
        (('start = "cold"', 'start = "zero"'), "start of s is not 'zero'; it is one of cold, hot"),
        (('kind = "fundamental"', 'kind = "real"'), 'entry 2, higgs: it takes a scalar of the kind fundamental, and h is of the kind "real", which phi4 takes'),
        (('scalars = "h"', 'scalars = "hh"'), 'entry 2, higgs: it names the scalar "hh"; did you mean "h"?'),
        (('scalars = "h"', ""), 'entry 2, higgs: it takes 1 scalar, and [[hmc.scalars]] has h, s: name what it is of, scalars = ["h"]'),
        (('scalars = "h"', 'scalars = ["h", "s"]'), "takes 1 scalar, each another one, not h, s"),
        (('scalars = ["h", "s"]', 'scalars = ["s", "s"]'), "takes 2 scalars, each another one, not s, s"),
        (('scalars = ["h", "s"]', "scalars = 3"), "scalars of the action portal are a name or a list of names, not 3"),
        (('scalars = "s"', 'scalars = "s"\nlinks = {kind = "stout"}'), 'the action phi4 has no key "links"; its keys are kappa, lam, level, name, scalars'),
        (('action = "gauge"', 'action = "gauge"\nscalars = "h"'), 'gauge, the action of [gauge], has no key "scalars"'),
        (('action = "higgs"\nscalars = "h"', 'action = "symanzik"\nbeta = 1'), 'the action symanzik has no key "kappa"'),
        (("lam = 0.5", ""), "the action phi4 needs lam"),
        (('action = "phi4"', 'action = "phi"'), "action is not 'phi'; it is one of gauge, wilson"),
        (('name = "s"', 'name = "t"'), 'names the scalar "s"; there are h, t'),
        (('algorithm = "hmc"', 'algorithm = "heatbath"'), 'scalars is given, but algorithm is "heatbath"'),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_wrong_scalars_are_refused_with_what_would_be_right(change: tuple[str, str], message: str) -> None:
    assert change[0] in HIGGS
    assert message in complaint(HIGGS.replace(*change, 1))


def test_scalars_without_terms_names_of_couplings_and_adjoint_fields_of_u1_are_refused() -> None:
    alone = HIGGS[: HIGGS.index("[[hmc.terms]]")]
    assert "scalars has h, s, of which no term of [[hmc.terms]] is" in complaint(alone)
    assert '{action = "higgs", scalars = ["h"], ...}' in complaint(alone)
    assert "phi4 cannot have a field called 'kappa'" in complaint(FREE.replace('"phi"', '"kappa"'))
    adjoint = FREE.replace('"real"', '"adjoint"').replace("phi4", "adjoint-higgs")
    assert 'adjoint fields of U(1) are neutral: write kind = "real"' in complaint(adjoint)
    no_scalars = FREE.replace('scalars = [{name = "phi", kind = "real"}]\n', "")
    assert "phi4: it takes 1 scalar, and [[hmc.scalars]] has none" in complaint(no_scalars)
    with_names = no_scalars.replace("lam = 0}", 'lam = 0, scalars = "phi"}')
    assert 'names the scalar "phi"; [[hmc.scalars]] has none' in complaint(with_names)
    unstable = complaint(FREE.replace("kappa = 0.15", "kappa = -0.25"))
    assert (
        "is not bounded below: with lam = 0 in 2 directions kappa is between -1/4 and 1/4, not -0.25"
        in unstable
    )
    negative = complaint(FREE.replace("lam = 0}", "lam = -1}"))
    assert "lam of phi4_action is 0 or more, not -1" in negative
    flat = complaint(HIGGS[: HIGGS.index('action = "phi4"')] + HIGGS[HIGGS.index('action = "portal"') :])
    assert "has s in terms of two scalars alone, whose weight has no finite integral" in flat
    assert '{action = "phi4", scalars = ["s"], ...}' in flat
    assert "a scalar is a table" in complaint(FREE.replace('{name = "phi", kind = "real"}', "3"))


def test_wrong_scalars_leave_no_run_and_are_said_once(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HIGGS.replace('scalars = "h"', 'scalars = "x"')
    assert jali_here("run", written(text), "--output", tmp_path / "run", ranks=2) == 2
    assert capsys.readouterr().err.count('names the scalar "x"') == 1
    assert not (tmp_path / "run").exists()


def test_every_kind_of_scalar_is_taken_by_an_action_and_written_again() -> None:
    names = [f"{family}(3)" if kind.numbered else family for family, kind in KINDS.items()]
    for kind in names:
        (action, *_) = [
            name
            for name, one in NAMED.items()
            if len(one.scalars) == 1 and kind.partition("(")[0] in one.scalars[0]
        ]
        couplings = "beta = 1" if action == "sigma" else "kappa = 0.1, lam = 1"
        text = FREE.replace('"U(1)"', '"SU(2)"').replace('"real"', f'"{kind.upper()}"')
        parameters = parse_parameters(
            text.replace('"phi4", kappa = 0.15, lam = 0', f'"{action}", {couplings}')
        )
        assert parameters.hmc.scalars[0]["kind"] == kind
        assert parse_parameters(render_parameters(parameters)) == parameters


def test_forces_of_a_term_on_several_fields_suggest_one_level_for_it() -> None:
    columns = ("sweep", "tau", "steps", "dH", "accepted", "forced", "reversibility", "unitarity")
    rows = {name: np.array([1.0, 1.0]) for name in columns} | {"sweep": np.array([1.0, 2.0])}
    on_links = {n: np.array([v, v]) for n, v in zip(("level", "rms", "step"), (0.0, 1.0, 0.1), strict=True)}
    forces = on_links | {"term": np.array([0.0, 1.0]), "largest": np.array([1.0, 2.0])}
    scalar_forces = on_links | {
        "term": np.array([1.0]),
        "scalar": np.array([0.0]),
        "largest": np.array([20.0]),
    }
    scalar_forces |= {n: scalar_forces[n][:1] for n in ("level", "rms", "step")}
    found = summarise_trajectories(rows, forces, None, 0, [10], 2, ["gauge", "higgs"], scalar_forces, ["h"])
    assert [(f.title, f.largest) for f in found.forces] == [
        ("gauge", 1.0),
        ("higgs", 2.0),
        ("higgs, on h", 20.0),
    ]
    assert (
        "level 0: gauge, steps of about 0.25; level 1: higgs, steps of about 0.013" in found.suggestions[-1]
    )
