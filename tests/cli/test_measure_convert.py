"""`jali measure` and `jali convert`: against an independent reading of the same links, on any ranks, and bad files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from jali_command import (
    jali_here,
    link_trace,
    plaquettes,
    polyakov_loop,
    random_links,
    shared_file,
)
from programs import run_jali

import jali
from jali.gauge import SU, GaugeField
from jali.io import Box, open_configuration, unitarity_deviation, write_ildg, write_nersc

EXTENTS = (4, 6, 3, 5)
NERSC, ILDG, BARE = "nersc.l8t4b3360", "ildg.l8t4b3360", "conf_00000100_4444nc2.ildg"


def write(path: Path, links: np.ndarray, *, header: np.ndarray | None = None, **options: object) -> Path:
    """Write links to a file whose header says what the links `header` (by default the same) would need."""
    said = links if header is None else header
    extents = links.shape[3::-1]
    save = write_nersc if path.suffix == ".nersc" else write_ildg
    numbers = {"plaquette": plaquettes(said)[0], "link_trace": link_trace(said)}
    save(path, links, Box.whole(extents), extents, **numbers, **options)
    return path


def one_link_changed(links: np.ndarray) -> np.ndarray:
    changed = links.copy()
    changed[1, 2, 0, 3, 2] = random_links((1, 1, 1, 1), links.shape[-1], seed=99)[0, 0, 0, 0, 0]
    return changed


def measured(capsys, *words: object, ranks: int = 1, status: int = 0) -> list[dict]:
    assert jali_here("measure", *words, "--json", ranks=ranks) == status
    return json.loads(capsys.readouterr().out)["configurations"]


# ---- measure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_real_su3_files_have_plaquette_0_503866446950(ranks, capsys):
    files = [shared_file(NERSC), shared_file(ILDG)]
    assert jali_here("measure", *files, ranks=ranks) == 0
    said = capsys.readouterr().out
    assert said.count("plaquette           0.503866446950") == 2
    assert said.count("link trace          0.005406083858") == 2


@pytest.mark.mpi
def test_real_su3_files_have_plaquette_0_503866446950_on_2_mpi_ranks():
    done = run_jali("measure", shared_file(NERSC), shared_file(ILDG), "-n", 2, "--json")
    assert [f"{result['plaquette']:.12f}" for result in json.loads(done.stdout)["configurations"]] == [
        "0.503866446950"
    ] * 2


def test_real_su2_file_without_metadata_needs_lattice_and_group(capsys):
    file = shared_file(BARE)
    assert jali_here("measure", file) == 2
    capsys.readouterr()
    assert jali_here("measure", file, "--lattice", "4,4,4,4", "--group", "SU2") == 0
    assert "plaquette           0.668474886836" in capsys.readouterr().out


def test_real_file_with_a_changed_link_and_right_checksum_is_a_header_mismatch(tmp_path, capsys):
    links = open_configuration(shared_file(NERSC)).read()
    file = write(tmp_path / "changed.nersc", one_link_changed(links), header=links)
    assert jali_here("measure", file) == 2
    said = capsys.readouterr()
    assert "checksum verified" in said.out
    assert "plaquette           0.503" in said.out
    assert "plaquette           0.503866446950" not in said.out
    assert "header mismatch" in said.err
    assert "0.503866446950" in said.err


@pytest.mark.short(2)
@pytest.mark.parametrize(("ending", "n"), [("nersc", 3), ("ildg", 3), ("ildg", 2), ("ildg", 1), ("ildg", 4)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_measured_values_are_those_of_an_independent_calculation(ending, n, ranks, tmp_path, capsys):
    links = random_links(EXTENTS, n)
    file = write(tmp_path / f"links.{ending}", links)
    (result,) = measured(capsys, file, ranks=ranks)
    mean, spatial, temporal = plaquettes(links)
    assert result["file"] == str(file)
    assert result["plaquette"] == pytest.approx(mean, abs=1e-14)
    assert result["plaquette_spatial"] == pytest.approx(spatial, abs=1e-14)
    assert result["plaquette_temporal"] == pytest.approx(temporal, abs=1e-14)
    assert result["link_trace"] == pytest.approx(link_trace(links), abs=1e-14)
    assert complex(*result["polyakov"]) == pytest.approx(polyakov_loop(links), abs=1e-14)
    assert (result["extents"], result["group"]) == (list(EXTENTS), "U(1)" if n == 1 else f"SU({n})")
    assert "charge" not in result


@pytest.mark.parametrize("ending", ["nersc", "ildg"])
def test_changed_link_is_reported_with_both_values_after_the_measurement(ending, tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    changed = one_link_changed(links)
    file = write(tmp_path / f"links.{ending}", changed, header=links)
    assert jali_here("measure", file, ranks=2) == 2
    said = capsys.readouterr()
    assert f"plaquette           {plaquettes(changed)[0]:.12f}" in said.out
    assert said.err.count("header mismatch") == 1
    assert f"{plaquettes(changed)[0]:.12f}" in said.err
    assert f"{plaquettes(links)[0]:.12f}"[:12] in said.err


def test_bad_file_does_not_keep_the_others_from_being_measured(tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    good = write(tmp_path / "good.nersc", links)
    damaged = tmp_path / "damaged.nersc"
    data = bytearray(good.read_bytes())
    data[-5] ^= 16
    damaged.write_bytes(data)
    for ranks in (1, 2):
        assert jali_here("measure", damaged, tmp_path / "missing", good, "--json", ranks=ranks) == 2
        said = capsys.readouterr()
        (result,) = json.loads(said.out)["configurations"]
        assert result["plaquette"] == pytest.approx(plaquettes(links)[0], abs=1e-14)
        assert "checksum of the payload" in said.err
        assert "missing" in said.err
        assert len(said.err.splitlines()) == 2


@pytest.mark.parametrize("ending", ["nersc", "ildg"])
def test_a_file_whose_checksum_is_known_to_be_wrong_is_measured_and_converted_on_request(
    ending, tmp_path, capsys
):
    links = random_links(EXTENTS, 3)
    file = write(tmp_path / f"links.{ending}", links)
    data = file.read_bytes()
    at = data.index(b"CHECKSUM = ") + 11 if ending == "nersc" else data.index(b"<suma>") + 6
    file.write_bytes(data[:at] + (b"0" if data[at : at + 1] != b"0" else b"1") + data[at + 1 :])
    assert jali_here("measure", file) == 2
    assert "damaged; --ignore-checksum" in capsys.readouterr().err
    (result,) = measured(capsys, file, "--ignore-checksum")
    assert result["plaquette"] == pytest.approx(plaquettes(links)[0], abs=1e-14)
    assert result["checksum"] is None
    assert jali_here("measure", file, "--ignore-checksum", ranks=2) == 0
    assert "checksum ignored" in capsys.readouterr().out
    mended = tmp_path / "mended.ildg"
    assert jali_here("convert", file, mended) == 2
    assert jali_here("convert", file, mended, "--ignore-checksum") == 0
    assert np.array_equal(open_configuration(mended).read(), links)


@pytest.mark.parametrize(("size", "deviation"), [(6e2, None), (1.01, None), (1e90, "inf"), (1.0001, "")])
def test_links_that_are_far_from_unitary_are_measured_with_a_warning(size, deviation, tmp_path, capsys):
    links = size * random_links(EXTENTS, 2)
    file = tmp_path / "links.ildg"
    write_ildg(file, links, Box.whole(EXTENTS), EXTENTS)
    assert jali_here("measure", file) == 0
    said = capsys.readouterr()
    assert ("warning: " in said.err) == (deviation != "")
    assert said.err.count("far from unitary") == (deviation != "")
    (result,) = measured(capsys, file, ranks=2)
    assert len(result["warnings"]) == (deviation != "")
    assert (result["unitarity_deviation"] is None) == (deviation == "inf")
    assert jali_here("convert", file, tmp_path / "out.ildg", "--precision", "64") == (0 if size < 1e50 else 2)
    assert ("far from unitary" in capsys.readouterr().err) == (deviation != "")


def test_a_description_that_cannot_be_read_is_a_warning_and_named(tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    file = write(tmp_path / "links.ildg", links)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"<scidacRecord>", b'<scidacReco"d>'))
    (result,) = measured(capsys, file)
    assert "scidac-private-record-xml" in result["warnings"][0]
    assert jali_here("measure", file) == 0
    assert "jali: warning: " in capsys.readouterr().err
    from jali.gauge import GaugeField

    with pytest.warns(UserWarning, match="scidac-private-record-xml"):
        GaugeField.from_file(file)


def test_flow_of_ordered_links_has_no_energy_and_no_charge(tmp_path, capsys):
    links = np.zeros((*EXTENTS[::-1], 4, 3, 3), complex)
    links[...] = np.eye(3)
    (result,) = measured(capsys, write(tmp_path / "cold.ildg", links), "--flow", "--flow-time", 0.1)
    assert result["charge"] == 0
    assert [point["energy"] for point in result["flow"]] == [0] * 6


def test_flow_lowers_the_energy_up_to_the_requested_time(tmp_path, capsys):
    file = write(tmp_path / "links.ildg", random_links((4, 4, 4, 4), 2))
    results = [
        measured(capsys, file, "--flow", "--flow-time", 0.5, "--flow-step", step, ranks=ranks)[0]
        for step, ranks in ((0.03, 1), (0.03, 2), (0.015, 1))
    ]
    energies = [point["energy_plaquette"] for point in results[0]["flow"]]
    assert energies == sorted(energies, reverse=True)
    assert results[0]["flow"][-1]["flow_time"] == 0.5
    assert results[0]["flow"] == results[1]["flow"]
    assert results[0]["charge"] == results[0]["flow"][-1]["charge"]
    assert energies[-1] == pytest.approx(results[2]["flow"][-1]["energy_plaquette"], rel=1e-4)


@pytest.mark.parametrize(
    "words", [["--flow-time", "0"], ["--flow-step", "nan"], ["--group", "SO3"], ["--lattice", "3,4,6,5"]]
)
def test_measure_refuses_numbers_that_make_no_sense(words, tmp_path, capsys):
    file = write(tmp_path / "links.ildg", random_links(EXTENTS, 2))
    assert jali_here("measure", file, "--flow", *words) == 2
    assert capsys.readouterr().err.startswith("jali: ")


# ---- convert -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_links_survive_the_way_to_ildg_and_back_bit_for_bit(ranks, tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    source = write(tmp_path / "a.nersc", links, metadata={"ENSEMBLE_ID": "test", "SEQUENCE_NUMBER": 42})
    assert jali_here("convert", source, tmp_path / "b.ildg", ranks=ranks) == 0
    assert jali_here("convert", tmp_path / "b.ildg", tmp_path / "c.nersc", ranks=ranks) == 0
    assert f"plaquette {plaquettes(links)[0]:.12f}" in capsys.readouterr().out
    for name in ("b.ildg", "c.nersc"):
        file = open_configuration(tmp_path / name)
        np.testing.assert_array_equal(file.read(), links)
        assert file.metadata["ENSEMBLE_ID"] == "test"
        assert file.metadata["SEQUENCE_NUMBER"] == "42"
        assert file.plaquette == pytest.approx(plaquettes(links)[0], abs=1e-12)
        assert file.link_trace == pytest.approx(link_trace(links), abs=1e-12)


def test_header_of_a_32_bit_file_is_computed_from_its_own_digits(tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    source = write(tmp_path / "a.ildg", links)
    target = tmp_path / "b.ildg"
    assert jali_here("convert", source, target, "--precision", 32, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    rounded = links.astype(np.complex64)
    file = open_configuration(target)
    assert file.precision == said["precision"] == 32
    np.testing.assert_array_equal(file.read(), rounded)
    assert file.plaquette == pytest.approx(plaquettes(rounded.astype(complex))[0], abs=1e-14)
    assert file.plaquette != pytest.approx(plaquettes(links)[0], abs=1e-12)


def test_two_rows_are_completed_when_read_again(tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    source, target = write(tmp_path / "a.ildg", links), tmp_path / "b.nersc"
    assert jali_here("convert", source, target, "--rows", 2) == 0
    assert open_configuration(target).rows == 2
    np.testing.assert_allclose(open_configuration(target).read(), links, atol=1e-14)
    assert jali_here("convert", source, tmp_path / "c.ildg", "--rows", 2) == 2
    assert "NERSC files only" in capsys.readouterr().err


@pytest.mark.parametrize("n", [1, 2, 3])
def test_reunitarising_puts_rounded_links_back_into_the_group(n, tmp_path):
    links = random_links(EXTENTS, n)
    coarse = write(tmp_path / "coarse.ildg", links.astype(np.complex64).astype(complex))
    target = tmp_path / "fine.ildg"
    assert jali_here("convert", coarse, target, "--reunitarise", "--precision", 64, ranks=2) == 0
    fine = open_configuration(target).read()
    assert unitarity_deviation(open_configuration(coarse).read()) > 1e-9
    assert unitarity_deviation(fine) < 1e-14
    np.testing.assert_allclose(fine, links, atol=1e-6)


def test_source_that_does_not_agree_with_its_header_is_not_converted(tmp_path, capsys):
    links = random_links(EXTENTS, 3)
    source = write(tmp_path / "a.nersc", one_link_changed(links), header=links)
    assert jali_here("convert", source, tmp_path / "b.ildg", ranks=2) == 2
    assert "header mismatch" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["a.nersc"]


def test_conversions_that_cannot_be_are_bad_input_and_leave_the_target_alone(tmp_path, capsys):
    source = write(tmp_path / "a.ildg", random_links(EXTENTS, 2))
    target = tmp_path / "b.nersc"
    target.write_bytes(b"precious")
    for words, complaint in (
        ((source, target), "SU(3) only"),
        ((source, tmp_path / "b.dat"), "does not tell a format"),
        ((tmp_path / "none.ildg", target), "none.ildg"),
        ((source, tmp_path / "nowhere" / "b.ildg"), "nowhere"),
        ((tmp_path, tmp_path / "c.ildg"), "neither a run nor a checkpoint"),
    ):
        for ranks in (1, 2):
            assert jali_here("convert", *words, ranks=ranks) == 2
            assert complaint in capsys.readouterr().err
    assert target.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ildg", "b.nersc"]


def test_run_can_be_measured_converted_and_started_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")
    parameters = tmp_path / "su3.toml"
    parameters.write_text(
        '[lattice]\nextents = [4, 4, 4, 4]\n[gauge]\ngroup = "SU(3)"\nbeta = 5.7\n'
        "[update]\nthermalisation = 0\nsweeps = 3\n"
    )
    run, file = tmp_path / "run", tmp_path / "run.nersc"
    assert jali_here("run", parameters, "--output", run) == 0
    last = (run / "history.csv").read_text().splitlines()[-1].split(",")
    assert jali_here("convert", run, file, ranks=2) == 0
    capsys.readouterr()
    for result in measured(capsys, run, file):
        assert result["plaquette"] == pytest.approx(float(last[1]), abs=1e-14)
        assert result["polyakov"] == pytest.approx([float(last[4]), float(last[5])], abs=1e-14)
    assert open_configuration(file).metadata["SEQUENCE_NUMBER"] == "3"
    again = tmp_path / "again"
    changes = ["start=file", f"start_file={file}", "beta=1e6", "overrelaxation=0", "sweeps=1"]
    words = [word for change in changes for word in ("--set", change)]
    assert jali_here("run", parameters, "--output", again, *words) == 0
    # At such a beta a heat bath from thermalised links orders them a good deal, but not at once, as from a cold start.
    first = float((again / "history.csv").read_text().splitlines()[1].split(",")[1])
    assert float(last[1]) + 0.05 < first < 0.99


def test_start_from_a_file_of_another_lattice_or_group_is_bad_input(tmp_path, capsys):
    file = write(tmp_path / "links.ildg", random_links(EXTENTS, 2))
    parameters = tmp_path / "run.toml"
    parameters.write_text(
        f'[lattice]\nextents = [4, 6, 3, 5]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\nstart = "file"\n'
        f"start_file = '{file}'\n"
    )
    for change in ("extents=4,6,5,3", "group=SU3", "extents=4,6"):
        assert jali_here("run", parameters, "--output", tmp_path / "run", "--set", change, ranks=2) == 2
        assert capsys.readouterr().err.startswith("jali: ")
        assert not (tmp_path / "run").exists()


ARRAYS = ("links.npy", "links.h5", "links.jali")


@pytest.mark.short(2)
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_links_in_arrays_and_fields_are_measured_and_converted_there_and_back(name, ranks, tmp_path, capsys):
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    links = random_links(EXTENTS, 2)
    source, there, back = write(tmp_path / "a.ildg", links), tmp_path / name, tmp_path / "b.ildg"
    assert jali_here("convert", source, there, ranks=ranks) == 0
    said = capsys.readouterr().out
    assert (
        f"{there}: {dict(npy='npy', h5='hdf5', jali='jali')[there.suffix[1:]]}, SU(2) on 4 x 6 x 3 x 5, 64 bits"
        in said
    )
    (result,) = measured(capsys, there, ranks=ranks)
    assert result["plaquette"] == pytest.approx(plaquettes(links)[0], abs=1e-13)
    assert (result["extents"], result["group"], result["precision"]) == (list(EXTENTS), "SU(2)", 64)
    assert (result["checksum"], result["checksum_ignored"]) == ("jali", False)
    assert jali_here("convert", there, back, ranks=ranks) == 0
    assert np.array_equal(open_configuration(back).read(), links)
    single = tmp_path / f"single{there.suffix}"
    assert jali_here("convert", there, single, "--precision", 32) == 0
    capsys.readouterr()
    (result,) = measured(capsys, single, "--lattice", "4,6,3,5", "--group", "SU2")
    assert result["precision"] == 32
    assert result["link_trace"] == pytest.approx(link_trace(links.astype("c8").astype("c16")), abs=1e-13)
    for words in (("--lattice", "4,6,5,3"), ("--group", "SU3")):
        assert jali_here("measure", single, *words) == 2
        assert "was asked for" in capsys.readouterr().err


@pytest.mark.parametrize("name", ARRAYS)
def test_two_dimensions_and_boundaries_go_where_there_is_a_place_for_them(name, tmp_path, capsys):
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    U = GaugeField(jali.Lattice(4, 6), SU(2), boundary=["periodic", "open"]).cold_start()
    U.save(tmp_path / name)
    (result,) = measured(capsys, tmp_path / name, "--flow", "--flow-time", 0.1)
    assert result["plaquette"] == pytest.approx(1.0, abs=1e-14)
    assert (result["plaquette_spatial"], result["polyakov"]) == (None, None)
    assert result["in_means"]
    assert jali_here("measure", tmp_path / name) == 0
    assert "Polyakov" not in capsys.readouterr().out
    assert jali_here("convert", tmp_path / name, tmp_path / "other.npy", ranks=2) == 0
    found = GaugeField.from_file(tmp_path / "other.npy")
    assert found[0].boundary.words == ["periodic", "open"]
    assert jali_here("convert", tmp_path / name, tmp_path / "b.ildg") == 2
    assert "four-dimensional" in capsys.readouterr().err
    V = GaugeField(jali.Lattice(2, 2, 2, 4), SU(3), boundary="open").cold_start()
    V.save(tmp_path / name)
    assert jali_here("convert", tmp_path / name, tmp_path / "b.nersc") == 2
    assert "no place for a boundary" in capsys.readouterr().err
    assert not (tmp_path / "b.nersc").exists()


def test_arrays_that_are_no_links_are_bad_input(tmp_path, capsys):
    file = tmp_path / "a.npy"
    for array, complaint in (
        (np.zeros((4, 4)), "links are complex numbers"),
        (np.ones((1, 6, 2, 2), complex), "no plaquettes"),
    ):
        np.save(file, array)
        for ranks in (1, 2):
            assert jali_here("measure", file, ranks=ranks) == 2
            assert complaint in capsys.readouterr().err
    links = np.zeros((2, 4, 4, 2, 2), complex)
    links[...] = np.eye(2)
    np.save(file, links)
    (result,) = measured(capsys, file)
    assert (result["plaquette"], result["checksum"], result["checksum_ignored"]) == (1.0, None, False)
    assert jali_here("convert", file, tmp_path / "b.npy", "--rows", "2") == 2
    assert "not as npy" in capsys.readouterr().err


def test_a_run_starts_from_arrays_and_from_the_folder_of_another(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")
    parameters = tmp_path / "su2.toml"
    parameters.write_text(
        '[lattice]\nextents = [4, 6]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\n'
        "[update]\nthermalisation = 0\nsweeps = 2\n"
    )
    first = tmp_path / "first"
    assert jali_here("run", parameters, "--output", first) == 0
    U = GaugeField.from_file(first)
    U.save(tmp_path / "links.npy")
    U.save(tmp_path / "links.jali")
    histories = []
    for name in ("first", "first/checkpoint", "links.npy", "links.jali"):
        words = ["--set", "start=file", "--set", f"start_file={tmp_path / name}"]
        out = tmp_path / f"from-{name.replace('/', '-')}"
        assert jali_here("run", parameters, "--output", out, *words, ranks=2) == 0
        histories.append((out / "history.csv").read_text())
    assert len(set(histories)) == 1
    assert histories[0] != (first / "history.csv").read_text()
    GaugeField(U.lattice, U.group, boundary="open").assign(U).save(tmp_path / "links.npy")
    capsys.readouterr()
    words = ["--set", "start=file", "--set", f"start_file={tmp_path / 'links.npy'}"]
    assert jali_here("run", parameters, "--output", tmp_path / "no", *words) == 2
    assert "those of a run are periodic" in capsys.readouterr().err


def test_every_option_of_convert_is_documented_and_no_other(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "files.md").read_text()
    section = page[page.index("## Converting") : page.index("## Reading from Python")]
    with pytest.raises(SystemExit):
        jali_here("convert", "--help")
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help", "--ranks"}
    assert known == set(re.findall(r"--[a-z][a-z-]+", section))


@pytest.mark.parametrize("name", ["a.ildg", "a.lime", "ildg.a", "a.nersc", "nersc.a"])
def test_the_format_follows_from_the_name_as_documented(name, tmp_path):
    source = write(tmp_path / "in.ildg", random_links((2, 2, 2, 2), 3))
    assert jali_here("convert", source, tmp_path / name) == 0
    assert open_configuration(tmp_path / name).format == ("nersc" if "nersc" in name else "ildg")
