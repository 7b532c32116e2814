"""`jali spectrum` and `jali invert`: known correlators, the same bytes on any ranks and after a kill, other groups, bad input."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from jali_command import jali_here, running, shared_file, wait_for
from programs import run_jali

import jali
from jali.cli import spectrum_report
from jali.fermions import CloverDirac, Staggered, WilsonDirac, gamma, gamma5
from jali.gauge import SU, GaugeField, stout_smear
from jali.hadrons import load_propagator, mesons, point_source, propagator_info, staggered_mesons

EXTENTS = (4, 4, 2, 6)
WILSON = ("--operator", "wilson", "--kappa", "0.13")


@pytest.fixture(autouse=True)
def _without_pictures(request, monkeypatch):
    """Pictures take most of the time of a small lattice; one test looks at them."""
    if "with_pictures" not in request.fixturenames:
        monkeypatch.setattr(spectrum_report, "inline", lambda figure, name: "<svg></svg>")


@pytest.fixture
def with_pictures() -> None:
    """For a test that looks at the page."""


def configuration(path: Path, seed: int, n: int = 3, extents: tuple[int, ...] = EXTENTS) -> Path:
    """Smooth links, on which solves are short."""
    U = GaugeField(jali.Lattice(*extents), SU(n)).hot_start(seed=seed)
    stout_smear(U, rho=0.1, steps=4).save(path)
    return path


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("links")
    return [configuration(folder / f"{seed}.ildg", seed) for seed in range(1, 7)]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder of results."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def spectrum(capsys, *words: object, ranks: int = 1, status: int = 0) -> dict:
    assert jali_here("spectrum", *words, "--json", ranks=ranks) == status
    return json.loads(capsys.readouterr().out)


# ---- numbers -------------------------------------------------------------------------------------------


def test_correlators_of_a_real_configuration_are_the_known_ones(tmp_path, capsys):
    """C(0), C(1), C(2) of kappa 0.14, by an independent program; source 0 is at the origin."""
    found = spectrum(
        capsys,
        shared_file("nersc.l8t4b3360"),
        *("--operator", "wilson", "--kappa", 0.14, "--sources", 1, "--tolerance", 1e-11),
        *("--output", tmp_path / "out"),
    )
    pion = found["configurations"][0]["sources"][0]["correlators"]["g5"]["0,0,0"]
    assert np.allclose(pion[:3], [1.209060014, 0.086401102, 0.022907215], rtol=0, atol=1.1e-9)


def test_means_masses_and_files_are_those_of_the_library(ensemble, tmp_path, capsys, with_pictures):
    out = tmp_path / "out"
    words = ["--operator", "clover", "--kappa", 0.12, "--csw", 1.2, "--momenta", "1,0,0", "--output", out]
    found = spectrum(capsys, *ensemble, *words)
    C = []
    for path in ensemble:
        D = CloverDirac(GaugeField.from_file(path), kappa=0.12, csw=1.2)
        one = mesons(D.propagator(point_source(D)), momenta=[(0, 0, 0), (1, 0, 0)])
        C.append((one["pion"], one.correlator("g5", momentum=(1, 0, 0)).real))
    C = np.array(C)
    C[..., 1:] = (C[..., 1:] + C[..., :0:-1]) / 2
    of_channel = {(one["channel"], one["momentum"]): one for one in found["masses"]}
    for k, p in enumerate(("0,0,0", "1,0,0")):
        one = of_channel["pion", p]
        assert np.allclose(one["correlator"], C[:, k].mean(axis=0), rtol=1e-13)
        error = C[:, k].std(axis=0, ddof=1) / np.sqrt(len(ensemble))
        assert np.allclose(one["correlator_error"], error, rtol=1e-9)
        assert abs(one["mass"] - one["fit"]["mass"]) == 0
        assert one["mass_error"] > 0
    assert of_channel["pion", "1,0,0"]["mass"] > of_channel["pion", "0,0,0"]["mass"]
    assert of_channel["rho", "0,0,0"]["mass"] >= of_channel["pion", "0,0,0"]["mass"]
    assert sorted(p.name for p in out.iterdir()) == [
        "parameters.json",
        "report.html",
        "results",
        "spectrum.json",
    ]
    assert json.loads((out / "spectrum.json").read_text())["masses"] == found["masses"]
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 4
    assert "script" not in page
    assert all(str(path) in page for path in ensemble)


@pytest.mark.short(1)
@pytest.mark.parametrize("n", [2, 1, 4])
def test_other_groups_have_pions_and_no_nucleon(n, tmp_path, capsys):
    path = configuration(tmp_path / "links.ildg", 3, n, (2, 2, 2, 4))
    found = spectrum(capsys, path, *WILSON, "--sources", 1, "--output", tmp_path / "out")
    assert {one["channel"] for one in found["masses"]} == {"pion", "rho", "scalar", "axial vector"}
    D = WilsonDirac(GaugeField.from_file(path), kappa=0.13)
    pion = found["configurations"][0]["sources"][0]["correlators"]["g5"]["0,0,0"]
    assert np.array_equal(pion, mesons(D.propagator(point_source(D)))["pion"])


def test_staggered_quarks_and_smeared_noise_are_measured(ensemble, tmp_path, capsys):
    found = spectrum(
        capsys, ensemble[0], "--operator", "staggered", "--mass", 0.3, "--output", tmp_path / "s"
    )
    assert [one["channel"] for one in found["masses"]] == ["pion", "vector", "pseudovector", "scalar"]
    K = Staggered(GaugeField.from_file(ensemble[0]), 0.3)
    pion = staggered_mesons(K.propagator(point_source(K)))["pion"]
    assert np.array_equal(found["configurations"][0]["sources"][0]["correlators"]["pion"]["0,0,0"], pion)
    words = ["--source", "Z4", "--smear-source", "1.5,4", "--smear-sink", "1.0,2", "--smear-links", "hyp:1"]
    found = spectrum(capsys, ensemble[0], *WILSON, *words, "--sources", 2, "--output", tmp_path / "z")
    assert [source["at"][3] for source in found["configurations"][0]["sources"]] == [0, 3]


# ---- the same bytes --------------------------------------------------------------------------------------


def test_files_have_the_same_bytes_on_any_number_of_ranks(ensemble, tmp_path):
    found = []
    for ranks in (1, 2, 3):
        out = tmp_path / f"{ranks}" / "out"
        out.parent.mkdir()
        assert jali_here("spectrum", *ensemble[:2], *WILSON, "--output", out, ranks=ranks) == 0
        found.append(bytes_of(out))
    assert found[0] == found[1] == found[2]


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(ensemble, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = [*ensemble[:4], *WILSON, "--sources", 1, "--output"]
    run_jali("spectrum", *words, whole)
    with running("spectrum", *words, killed) as process:
        results = killed / "results"
        wait_for(lambda: results.exists() and any(results.glob("*.json")), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = set(bytes_of(results))
    assert 0 < len(done) < 4
    again = run_jali("spectrum", *words, killed)
    assert "already" in again.stderr
    assert bytes_of(whole) == bytes_of(killed)


def test_configurations_that_are_known_are_not_solved_for_again(ensemble, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    spectrum(capsys, *ensemble[:2], *WILSON, "--output", out, "--sources", 1)
    monkeypatch.setattr(jali, "solve", None)
    assert (
        len(spectrum(capsys, *ensemble[:2], *WILSON, "--output", out, "--sources", 1)["configurations"]) == 2
    )


# ---- bad input -------------------------------------------------------------------------------------------


@pytest.mark.short(16)
@pytest.mark.parametrize("ranks", [2, 1])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--operator", "wilson"), "needs its mass: --mass or --kappa"),
        (("--operator", "staggered", "--mass", 0.1, "--csw", 1.0), "has no csw; it has mass"),
        (("--operator", "staggered", "--mass", 0.1, "--kappa", 0.1), "has no kappa"),
        ((*WILSON, "--mass", 0.1), "by --mass or by --kappa, not by both"),
        ((*WILSON, "--at", "0,0,0,6"), "a site of a lattice 4 x 4 x 2 x 6 is 4 whole numbers"),
        ((*WILSON, "--at", "0,0,0"), "a site of a lattice 4 x 4 x 2 x 6 is 4 whole numbers"),
        ((*WILSON, "--momenta", "1,0"), "a momentum is 3 whole numbers"),
        ((*WILSON, "--sources", 7), "7 sources are spread over 6 time slices"),
        ((*WILSON, "--sources", 0), "--sources 0 should be a positive number"),
        ((*WILSON, "--tolerance", 0), "--tolerance 0 should be a number between 0 and 1"),
        ((*WILSON, "--bin", 2), "--bin 2 should be a number from 1 to that of the configurations, 1"),
        ((*WILSON, "--window", "1,9"), "--window 1,9 should be two slices from 0 to 5"),
        ((*WILSON, "--window", "2,2"), "the first before the last"),
        ((*WILSON, "--smear-links", "hyp:1"), "--smear-links are those of --smear-source"),
        ((*WILSON, "--smear-source", "3.0,2"), "takes at least"),
        ((*WILSON, "--source", "Z4", "--momenta", "1,0,0"), "--momenta are those of point sources"),
        ((*WILSON, "--momenta", "1,0,0", "-3,0,0"), "the momentum -3,0,0 is there already"),
        (("--operator", "wilson", "--kappa", "nan"), "kappa of the operator wilson is a finite number"),
        (("--operator", "wilson", "--kappa", -1), "kappa is a number between 0 and 1, not -1"),
        (("--operator", "twisted-mass", "--kappa", 0.1), "needs its mu: --mu"),
    ],
)
def test_bad_options_are_said_on_every_rank(words, said, ranks, ensemble, tmp_path, capsys):
    assert jali_here("spectrum", ensemble[0], "--output", tmp_path / "out", *words, ranks=ranks) == 2
    err = capsys.readouterr().err
    assert said in err, err
    assert err.count("jali: ") == 1, err


def test_other_parameters_in_a_folder_are_refused_and_nothing_is_lost(ensemble, tmp_path, capsys):
    out = tmp_path / "out"
    assert jali_here("spectrum", ensemble[0], *WILSON, "--output", out) == 0
    before = bytes_of(out)
    assert jali_here("spectrum", ensemble[0], "--operator", "wilson", "--kappa", 0.12, "--output", out) == 2
    assert "has results of numbers kappa 0.13, and these are of 0.12" in capsys.readouterr().err
    assert bytes_of(out) == before


def test_a_fault_of_one_configuration_leaves_the_others(ensemble, tmp_path, capsys):
    """Cut off, on another lattice, with another group, not there, and given twice."""
    cut = tmp_path / "cut.ildg"
    cut.write_bytes(ensemble[1].read_bytes()[:-2000])
    other = configuration(tmp_path / "other.ildg", 9, 3, (4, 4, 4, 6))
    group = configuration(tmp_path / "group.ildg", 9, 2)
    files = [ensemble[0], cut, other, group, tmp_path / "none.ildg", ensemble[2]]
    out = tmp_path / "out"
    assert jali_here("spectrum", *files, *WILSON, "--output", out, ranks=2) == 2
    err = capsys.readouterr().err
    assert "cut.ildg: truncated" in err
    assert "other.ildg has 3 colours on 4 x 4 x 4 x 6, and" in err
    assert "group.ildg has 2 colours" in err
    assert "none.ildg: No such file" in err
    assert len(list((out / "results").iterdir())) == 2
    assert jali_here("spectrum", ensemble[0], ensemble[0], *WILSON, "--output", out) == 2
    assert "a configuration counts once" in capsys.readouterr().err


def test_a_solve_that_does_not_converge_names_the_configuration_and_three_end_the_run(
    ensemble, tmp_path, capsys, monkeypatch
):
    solve, tried = jali.solve, []

    def short(*arguments, **options):
        tried.append(arguments)
        return solve(*arguments, **{**options, "maxiter": 2})

    monkeypatch.setattr(jali, "solve", short)
    assert jali_here("spectrum", *ensemble, *WILSON, "--output", tmp_path / "out") == 1
    err = capsys.readouterr().err
    assert f"{ensemble[0]}: " in err
    assert (
        "3 configurations left, since 3 in a row did not converge: is kappa beyond its critical value?" in err
    )
    assert len(tried) == 3


@pytest.mark.parametrize(
    "change", [lambda text: text[:100], lambda text: text.replace("0.", "1.", 1), lambda text: "[" * 10**5]
)
def test_a_result_that_is_damaged_is_named(change, ensemble, tmp_path, capsys):
    out = tmp_path / "out"
    assert jali_here("spectrum", ensemble[0], *WILSON, "--output", out) == 0
    (result,) = (out / "results").iterdir()
    result.write_text(change(result.read_text()))
    assert jali_here("spectrum", ensemble[0], *WILSON, "--output", out) == 2
    assert (
        "is no result of jali spectrum with these parameters, or was changed: remove it"
        in capsys.readouterr().err
    )


def test_results_of_other_parameters_are_refused_without_the_file_that_has_them(ensemble, tmp_path, capsys):
    out = tmp_path / "out"
    assert jali_here("spectrum", ensemble[0], *WILSON, "--output", out) == 0
    (out / "parameters.json").unlink()
    assert jali_here("spectrum", ensemble[0], "--operator", "wilson", "--kappa", 0.12, "--output", out) == 2
    assert "has results and no parameters.json" in capsys.readouterr().err


def test_a_refused_command_leaves_a_folder_for_the_corrected_one(ensemble, tmp_path):
    out = tmp_path / "out"
    assert jali_here("spectrum", ensemble[0], *WILSON, "--at", "0,0,0,9", "--output", out) == 2
    assert jali_here("spectrum", ensemble[0], *WILSON, "--at", "0,0,0,5", "--output", out) == 0
    assert jali_here("spectrum", *ensemble[:2], *WILSON, "--at", "0,0,0,5", "--output", out) == 0


def test_a_folder_of_something_else_is_not_written(ensemble, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_text("theirs")
    for name, said in (
        ("run", "holds report.html, which jali spectrum has not written"),
        ("", "names a folder"),
    ):
        words = ["--output", str(tmp_path / name) if name else ""]
        assert jali_here("spectrum", ensemble[0], *WILSON, *words) == 2
        assert said in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").read_text() == "theirs"


def test_one_configuration_in_two_formats_counts_once(ensemble, tmp_path, capsys):
    copy = tmp_path / "copy.npy"
    GaugeField.from_file(ensemble[0]).save(copy)
    assert jali_here("spectrum", ensemble[0], copy, *WILSON, "--output", tmp_path / "out") == 2
    assert "and one pion: a configuration counts once" in capsys.readouterr().err


def test_the_nucleon_is_averaged_with_the_sign_of_its_boundary(ensemble, tmp_path, capsys):
    """What comes back across the edge of time has the sign of three quarks: both halves agree within what the gauge field makes of them."""
    for boundary in ("antiperiodic", "periodic"):
        words = ["--boundary", boundary, "--sources", 2, "--output", tmp_path / boundary]
        found = spectrum(capsys, *ensemble[:3], *WILSON, *words)
        (nucleon,) = [one for one in found["masses"] if one["channel"] == "nucleon"]
        one = np.mean(
            [
                [source["correlators"]["nucleon"]["0,0,0"] for source in result["sources"]]
                for result in found["configurations"]
            ],
            axis=(0, 1),
        )
        assert np.allclose(nucleon["correlator"][1:3], one[1:3], rtol=0.3)


def test_open_links_and_few_slices_are_refused_and_a_lattice_without_nucleon_is_measured(tmp_path, capsys):
    open_links = GaugeField(jali.Lattice(2, 2, 2, 4), SU(3), boundary={3: "open"}).hot_start(seed=1)
    open_links.save(tmp_path / "open.npy")
    assert jali_here("spectrum", tmp_path / "open.npy", *WILSON, "--output", tmp_path / "o") == 2
    assert "the links are open in time" in capsys.readouterr().err
    few = configuration(tmp_path / "few.ildg", 1, 2, (2, 2, 2, 2))
    assert jali_here("spectrum", few, *WILSON, "--output", tmp_path / "f") == 2
    assert "a mass takes 3 time slices at least" in capsys.readouterr().err
    GaugeField(jali.Lattice(2, 2, 3), SU(3)).hot_start(seed=1).save(tmp_path / "three.npy")
    found = spectrum(
        capsys, tmp_path / "three.npy", "--operator", "wilson", "--mass", 1, "--output", tmp_path / "t"
    )
    assert [one["channel"] for one in found["masses"]] == ["pion", "scalar"]
    D = WilsonDirac(GaugeField.from_file(tmp_path / "three.npy"), 1)
    axial = mesons(D.propagator(point_source(D))).correlator(gamma[2] * gamma5, "g5").real
    assert np.array_equal(found["configurations"][0]["sources"][0]["correlators"]["gtg5 g5"]["0,0"], axial)
    assert len(found["configurations"][0]["sources"]) == 3


def test_a_window_that_fits_one_channel_alone_keeps_the_others(ensemble, tmp_path, capsys):
    words = ["--operator", "staggered", "--mass", 0.3, "--window", "1,3", "--output", tmp_path / "out"]
    found = spectrum(capsys, *ensemble, *words)
    masses = {one["channel"]: one for one in found["masses"]}
    assert masses["pion"]["method"] == "fit from 1 to 3"
    assert masses["vector"]["mass"] is None
    assert "no fit from 1 to 3: " in masses["vector"]["method"]


# ---- invert ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("ending", ["prop", "h5"])
def test_a_propagator_is_written_and_read_back(ending, ranks, ensemble, tmp_path, capsys):
    out = tmp_path / f"quark.{ending}"
    assert jali_here("invert", ensemble[0], *WILSON, "--output", out, "--json", ranks=ranks) == 0
    said = json.loads(capsys.readouterr().out)
    D = WilsonDirac(GaugeField.from_file(ensemble[0]), kappa=0.13)
    S = load_propagator(out, D.lattice)
    assert np.array_equal(S[...], D.propagator(point_source(D))[...])
    assert np.array_equal(said["pion"], mesons(S)["pion"])
    assert propagator_info(out)["metadata"]["operator"] == "wilson"
    assert said["residual"] <= 1e-10


def test_the_usual_name_says_operator_and_mass_and_bad_input_writes_nothing(
    ensemble, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ü 1.ildg").write_bytes(ensemble[0].read_bytes())
    assert jali_here("invert", "ü 1.ildg", "--operator", "staggered", "--mass", 0.4) == 0
    (tmp_path / "ü 1.ildg").unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["ü 1.ildg-staggered-mass0.4.prop"]
    assert jali_here("invert", ensemble[0], *WILSON, "--at", "9,0,0,0", "--output", "none.prop") == 2
    assert jali_here("invert", ensemble[0], *WILSON, "--output", "none.unknown") == 2
    assert "none.unknown" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1
