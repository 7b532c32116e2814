"""Entries of update algorithms fit the functions that they name and the parameters of a run."""

from __future__ import annotations

import inspect

import pytest

from jali.cli.schema import HMC, Update, parameter_specs
from jali.gauge.algorithms import algorithms


@pytest.mark.parametrize("name", algorithms())
def test_options_are_arguments_of_the_sweep_and_parameters_of_a_run(name: str) -> None:
    entry = algorithms()[name]
    first, *others = inspect.signature(entry.sweep).parameters
    assert (first, *others[:2]) == ("U", "beta", "rng")
    assert {*others[2:]} - {"fields"} == entry.options.keys()  # actions of a run are of the links alone
    assert {f"update.{key}" for key in entry.options.values()} <= {key.path for key in parameter_specs()}


def test_every_entry_can_be_chosen() -> None:
    (key,) = (key for key in parameter_specs() if key.path == "update.algorithm")
    assert key.choices == (*algorithms(), HMC)
    assert Update().algorithm in algorithms()
