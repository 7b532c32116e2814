"""A matrix of a device that is not positive definite, or singular, is the error that it is on the host, on several devices too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import jali
from jali import Lattice

sys.path.insert(0, str(Path(__file__).parents[2] / "language"))
import test_pivots as on_the_host


@on_the_host.on_ranks
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_errors_are_those_of_the_host(grid, precision, device):
    def body(lattice):
        return on_the_host.names_of_all(lattice, precision)

    assert on_the_host.on(grid, body, device) == body(Lattice(*on_the_host.EXTENTS))


@on_the_host.on_ranks
@pytest.mark.parametrize(
    "test",
    [
        on_the_host.test_an_error_is_told_once_and_the_next_names_its_own_site,
        on_the_host.test_sites_are_those_of_the_matrix_wherever_it_is_read_and_written,
        on_the_host.test_only_sites_of_the_domain_count,
        on_the_host.test_what_a_choice_does_not_take_is_no_error,
        on_the_host.test_sums_tell_where_they_are_read,
        on_the_host.test_whole_fields_copies_and_lost_launches_tell,
        on_the_host.test_the_error_names_the_member_of_a_batch,
        on_the_host.test_the_error_names_the_edge_where_a_zero_or_a_sign_comes_from,
        on_the_host.test_unlike_failures_of_several_launches_are_counted_apart,
    ],
)
@pytest.mark.short(4)
def test_what_holds_on_the_host_holds_on_devices(test, grid, device, monkeypatch):
    on = on_the_host.on
    monkeypatch.setattr(on_the_host, "on", lambda grid, body: on(grid, body, device))
    test(grid)


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_several_sites_of_a_thread_count_once_each(sites, device, use_settings):
    use_settings(launch=f"64,1,{sites},{sites}")
    lattice = Lattice(*on_the_host.EXTENTS, device=device)
    h, out = on_the_host.blocks(lattice, x0_0=[-1, -1, -1], x3_5=[-1, -1, -1])
    on_the_host.solution(out, h)
    assert "site (0, 0)" in (said := on_the_host.message(lambda: out[0, 0]))
    assert "the first of 2 such matrices" in said
    source = jali.inspect(on_the_host.solution, out, h).source
    assert source.count("count_pivots") == 1
    assert ("JALI_FOR_EACH_TILE" in source) == (sites > 1)
