"""What `import jali` loads: a count, since seconds depend on the machine (`jali bench compare`, row "import", measures them)."""

from __future__ import annotations

import json

import pytest
from programs import run_python

import jali
from jali import comm

LOADED = """
import sys, numpy
before = set(sys.modules)
import jali
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps(loaded))
"""
MOST = 100  # modules, those of the standard library that NumPy does not load included; some 80 when this was written
LATER = (
    # of the standard library, and slow
    "decimal",
    "fractions",
    "hashlib",
    "json",
    "matplotlib",
    "pathlib",
    "platform",
    "secrets",
    "statistics",
    "subprocess",
    "sysconfig",
    "tempfile",
    "tomllib",
    "urllib",
    # what makes kernels comes with the first kernel, what collectives need with the first collective
    "jali.codegen.cache",
    "jali.codegen.compiler",
    "jali.codegen.emit",
    "jali.codegen.passes",
    "jali.codegen.stages",
    "jali.codegen.trace",
    "jali.comm.algorithms",
    "jali.comm.ccl",
    "jali.planner.choice",
    "jali.comm.calls",
    "jali.planner.composition",
    "jali.comm.device_messages",
    "jali.comm.launcher",
    "jali.planner.machine",
    "jali.planner.plan",
    "jali.planner.planning",
    "jali.planner.simulation",
    "jali.fermions",
    "jali.gauge",
    "jali.io",
    "jali.lattice.bound_call",
    "jali.lattice.inspection",
    "jali.lattice.lowering",
    "jali.processes",
    "jali.profile",
    "jali.solvers",
    "jali.statistics",
    "jali.tune",
    "mpi4py",
    "rich",
)


@pytest.fixture(scope="module")
def loaded():
    return json.loads(run_python(LOADED).stdout)


def test_what_few_programs_need_or_need_late_is_not_imported(loaded):
    assert not [name for name in loaded if name in LATER or name.startswith(tuple(f"{n}." for n in LATER))]


def test_the_number_of_imported_modules_is_bounded(loaded):
    assert len(loaded) <= MOST, f"{len(loaded)} modules: {loaded}"


@pytest.mark.parametrize("module", [jali, comm])
def test_every_public_name_is_found_listed_and_itself(module):
    for name in module.__all__:
        assert name in dir(module)
        assert getattr(module, name) is getattr(module, name)


def test_packages_that_come_later_are_attributes_too():
    run_python("import jali\nassert 'tune' in dir(jali)\nwith jali.tune.experiment(early_launch=False): pass")


@pytest.mark.parametrize("module", [jali, comm])
def test_a_name_that_does_not_exist_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_everything_from_jali_hides_none_of_pythons_names():
    hidden = run_python(
        "import builtins; from jali import *; print(sorted(set(globals()) & set(dir(builtins))))"
    )
    assert set(json.loads(hidden.stdout.replace("'", '"'))) <= {"__build_class__", "__doc__", "__import__", "__loader__", "__name__", "__package__", "__spec__"}  # fmt: skip
    assert jali.complex(1, 2) == complex(1, 2)
    assert jali.round(2.5) == 2
    assert not {"complex", "round"} & set(jali.__all__)
