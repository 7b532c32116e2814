"""What `import jali` loads: a count, since seconds depend on the machine (`jali bench compare`, case "import", measures them)."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from programs import run_python

import jali
from jali import comm

LOADED = """
import sys, numpy
before = set(sys.modules)
import jali
loaded = sorted(set(sys.modules) - before)
import ast
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
    "jali.codegen.kernel_cache",
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
    "scipy",
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


PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
PACKAGES = sorted(
    {page.stem for page in PAGES.glob("*.md")} - {"index", "jali", "environment"}
    | {"compat", "examples", "settings", "torch", "tune"}
)


def test_public_packages_are_attributes_without_another_import():
    """Each in a program of its own, since one imports others."""
    run_python(
        """
import multiprocessing, sys
import jali
for name in sys.argv[1].split():
    assert name in dir(jali), name
    if name == "torch":
        continue
    context = multiprocessing.get_context("fork")
    def ask(name=name):
        module = getattr(jali, name)
        assert module is sys.modules[f"jali.{name}"] and module.__name__ == f"jali.{name}"
        assert getattr(jali, name) is module and vars(jali)[name] is module
    process = context.Process(target=ask)
    process.start()
    process.join()
    assert process.exitcode == 0, name
""",
        " ".join(PACKAGES),
    )
    assert len(PACKAGES) > 15


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
ADVICE = 'jali.torch needs PyTorch, which is not installed: pip install "jali[torch]"'


@pytest.mark.parametrize(
    "statement", ["import jali.torch", "from jali import torch", "from jali.torch import Work"]
)
def test_the_backend_of_pytorch_without_pytorch_is_one_line_that_says_how_to_install_it(statement):
    failed = run_python(WITHOUT + statement, status=None)
    assert failed.returncode != 0
    assert failed.stderr.splitlines()[-1] == f"ModuleNotFoundError: {ADVICE}"
    assert failed.stderr.count("Traceback") == 1  # the cause alone, not the causes of the cause


def test_an_attribute_whose_library_is_not_there_is_none():
    run_python(
        WITHOUT
        + """
import inspect, jali
assert not hasattr(jali, "torch")
assert "torch" in dir(jali)
inspect.getmembers(jali)
try:
    jali.torch
except AttributeError as error:
    assert str(error) == "module 'jali' has no attribute 'torch' here: " + sys.argv[1], error
else:
    raise AssertionError
""",
        ADVICE,
    )


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


def test_type_checkers_know_the_names_that_are_imported_later():
    tree = ast.parse(Path(jali.__file__).read_text())
    block = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    assert {name.asname or name.name for line in block.body for name in line.names} == set(jali._LATER)
