"""What `import jali` loads: a count, since seconds depend on the machine (`jali bench compare`, row "import", measures them)."""

from __future__ import annotations

import json

import pytest
from programs import run_python

import jali
from jali import comm

LOADED = "import sys, numpy; n = set(sys.modules); import json, jali; print(json.dumps(sorted(set(sys.modules) - n)))"
MOST = 170  # modules, those of the standard library that NumPy does not load included; some 140 when this was written
LATER = (
    "jali.comm.ccl",
    "jali.comm.choice",
    "jali.comm.composition",
    "jali.comm.device_messages",
    "jali.comm.launcher",
    "jali.comm.machine",
    "jali.comm.plan",
    "jali.comm.planning",
    "jali.comm.simulation",
    "jali.fermions",
    "jali.gauge",
    "jali.io",
    "jali.lattice.inspection",
    "jali.profile",
    "jali.solvers",
    "jali.statistics",
    "matplotlib",
    "mpi4py",
    "rich",
    "tomllib",
)


@pytest.fixture(scope="module")
def loaded():
    return json.loads(run_python(LOADED).stdout)


def test_only_what_every_program_needs_is_imported(loaded):
    assert not [name for name in loaded if name in LATER or name.startswith(tuple(f"{n}." for n in LATER))]


def test_the_number_of_imported_modules_is_bounded(loaded):
    assert len(loaded) <= MOST, f"{len(loaded)} modules: {loaded}"


@pytest.mark.parametrize("module", [jali, comm])
def test_every_public_name_is_found_listed_and_itself(module):
    for name in module.__all__:
        assert name in dir(module)
        assert getattr(module, name) is getattr(module, name)


@pytest.mark.parametrize("module", [jali, comm])
def test_a_name_that_does_not_exist_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
