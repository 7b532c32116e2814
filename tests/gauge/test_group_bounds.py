"""Groups that are too large for kernels to be compiled in reasonable time are refused before anything is."""

from __future__ import annotations

import warnings

import pytest

import jali
from jali.cli.main import main
from jali.codegen import kernel_cache
from jali.errors import LayoutError, ParameterError
from jali.gauge import SU, GaugeField, heat_bath_sweep, overrelaxation_sweep
from jali.gauge.updates import check_subgroups


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(kernel_cache, "load", lambda *_: pytest.fail("compiled"))


@pytest.mark.parametrize("n", [17, 99])
def test_gauge_field_of_a_large_group_is_refused(n):
    with pytest.raises(LayoutError, match=rf"up to SU\(16\), not SU\({n}\)"):
        GaugeField(jali.Lattice(2, 2, 2, 2), SU(n))


def test_updates_by_subgroups_of_a_large_group_are_refused_before_the_trace():
    U = GaugeField(jali.Lattice(2, 2, 2, 2), SU(13))
    with pytest.raises(ParameterError, match=r"up to SU\(12\), not SU\(13\): .* 78 SU\(2\) subgroups"):
        heat_bath_sweep(U, 20.0, jali.Random(1))
    with pytest.raises(ParameterError, match=r"up to SU\(12\)"):
        overrelaxation_sweep(U)


def test_long_compilations_are_announced_with_their_time():
    check_subgroups.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"SU\(10\) links takes about 40 s"):
        check_subgroups(10, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_subgroups(8, True)
        check_subgroups(10, False)


@pytest.mark.parametrize(
    ("group", "algorithm", "bound"), [("SU(13)", "heatbath", "SU(12)"), ("SU(17)", "metropolis", "SU(16)")]
)
def test_run_of_a_large_group_is_refused_and_leaves_nothing(group, algorithm, bound, tmp_path, capsys):
    file = tmp_path / "large.toml"
    file.write_text(f'[lattice]\nextents = [4, 4, 4, 4]\n[gauge]\ngroup = "{group}"\nbeta = 30.0\n')
    update = ["--set", f"algorithm={algorithm}", "--set", "overrelaxation=0"]
    assert main(["run", str(file), *update, "--output", str(tmp_path / "run")]) == 2
    assert f"up to {bound}, not {group}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
