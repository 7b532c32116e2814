"""tools/pylops_mpi_scripts.py finds what differs between two runs of a script, and its recorder what a script computed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import need_mpi, run_program

from jali.arrays import DistributedArray, Partition, StackedDistributedArray

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "pylops_mpi_scripts.py"
sys.path[:0] = [str(TOOL.parent), str(Path(__file__).parent)]

import pylops_mpi_recorder as recorder  # noqa: E402
import pylops_mpi_scripts as scripts  # noqa: E402

TABLE = """CGLS
-----------------------------------------------------------------
The Operator Op has 40 rows and 30 cols
-----------------------------------------------------------------

    Itn          x[0]              r1norm         r2norm
     1        2.7357e-01         1.1440e+01     1.1440e+01
    11        4.5467e-01         6.9207e+00     6.9207e+00

Iterations = 11        Total time (s) = 0.21
-----------------------------------------------------------------

x = [1.  2.
 3.], took 0.5 s
"""
OURS = """CGLS
-------------------------------------------------------
damp = 0.0
-------------------------------------------------------
   Itn        r1norm            r2norm
     0         2.0000e+01       2.0000e+01
     1         1.1440e+01       1.1440e+01
    11         6.9207e+00       6.9207e+00

Iterations = 11        Total time (s) = 0.02
-------------------------------------------------------

x = [1.          2.00000001  3.        ], took 7 s
"""


def recorded(printed: str = TABLE, **variables: Any) -> scripts.Run:
    """A run on one rank with these variables."""
    record = recorder.Record()
    for name, value in variables.items():
        record.add(name, value)
    values = {line["name"]: line for line in record.lines}
    numbers = {
        name: record.numbers[line["at"]] for name, line in values.items() if line["at"] in record.numbers
    }
    return scripts.Run([scripts.Rank("", "", values, numbers, printed)], 0.0, "")


def differences(a: scripts.Run, b: scripts.Run) -> list[str]:
    return sorted(scripts.compare(a, b))


def test_runs_that_are_the_same_but_for_rounding_and_times_do_not_differ() -> None:
    x = np.arange(4.0)
    assert not differences(recorded(x=x, n=3), recorded(OURS, x=x * (1 + 1e-9), n=3))


def test_values_that_differ_are_found_in_the_precision_of_their_type() -> None:
    x = np.arange(4.0)
    assert differences(recorded(x=x), recorded(x=x + 1e-5)) == ["x:values"]
    assert not differences(
        recorded(x=x.astype("float32")), recorded(x=x.astype("float32") + np.float32(1e-5))
    )
    assert differences(recorded(x=x), recorded(x=np.full(4, np.nan))) == ["x:values"]
    assert differences(recorded(n=3), recorded(n=4)) == ["n:values"]


def test_differences_of_the_size_that_the_library_itself_makes_are_within_its_spread() -> None:
    theirs, ours, changed = recorded(x=1.0), recorded(x=1.001), recorded(x=1.0002)
    found, spread = scripts.compare(theirs, ours), scripts.compare(theirs, changed, exact=True)
    assert scripts.within_spread(found["x:values"], spread)
    assert not scripts.within_spread(scripts.compare(theirs, recorded(x=1.01))["x:values"], spread)
    assert not scripts.within_spread(found["x:values"], scripts.compare(theirs, theirs, exact=True))
    complex_ones = recorded(TABLE.replace("2.7357e-01", "0.00e+00+0.00e+00j"))
    assert "printed:table-1-r1norm" in scripts.compare(complex_ones, complex_ones, exact=True)


def test_other_local_shapes_types_names_and_partitions_are_found() -> None:
    x = DistributedArray.to_dist(np.arange(6.0))
    broadcast = DistributedArray.to_dist(np.arange(6.0), partition=Partition.BROADCAST)
    assert differences(recorded(x=np.ones((2, 3))), recorded(x=np.ones((3, 2)))) == ["x:local-shape"]
    assert differences(recorded(x=x), recorded(x=x.reshape((2, 3)))) == ["x:global-shape", "x:local-shape"]
    assert differences(recorded(x=x), recorded(x=broadcast)) == ["x:partition"]
    assert differences(recorded(x=1.0), recorded(x=1)) == ["x:type"]
    assert differences(recorded(x=slice(0, 3)), recorded(x=slice(0, None))) == ["x:slice"]
    assert differences(recorded(x=1), recorded(y=1)) == ["x:name", "y:name"]
    stacks = [StackedDistributedArray([x, y]) for y in (x, 2 * x)]
    assert differences(recorded(s=stacks[0]), recorded(s=stacks[1])) == ["s[1]:values"]


def test_text_after_a_table_that_has_no_last_line_is_read() -> None:
    table = (
        "ADMM\n"
        + "-" * 55
        + "\n   Itn   f   J = f + g\n     0   4.0e+02   4.0e+02\n     1   7.0e+01   2.0e+02\n"
    )
    found = scripts.Printed.read(table + table + "Same True\n" + TABLE + "\nend 1")
    assert [len(it.cells) for it in found.tables] == [4, 4, 6]
    assert found.tables[0].cells[1, "J"] == "2.0e+02"
    assert found.lines == ["Same True", "x = [1. 2. 3.], took", "end 1"]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("6.9207e+00     ", "6.9307e+00     ", "printed:table-1-r1norm"),
        ("Iterations = 11", "Iterations = 12", "printed:iterations"),
        ("2.\n", "2.001\n", "printed:numbers"),
        ("took", "needs", "printed:text"),
        ("r1norm         r2norm", "f    g", "printed:columns"),
    ],
)
def test_printed_residuals_numbers_and_words_that_differ_are_found(old: str, new: str, what: str) -> None:
    assert old in TABLE
    assert differences(recorded(), recorded(TABLE.replace(old, new, 1))) == [what]


def test_runs_that_end_in_other_ways_differ() -> None:
    broken = recorded()
    broken.ranks[0].ended = "Traceback\nKeyError: 1"
    assert differences(recorded(), broken) == ["end:error"]
    hanging = recorded()
    hanging.why, hanging.ranks[0].ended = "others hang", scripts.UNENDED
    assert differences(recorded(), hanging) == differences(hanging, hanging) == ["end:error", "end:time"]


def test_a_variable_is_recorded_before_it_gets_another_value_and_at_the_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "y = np.zeros(2)\n"
        "y[0] = 5\n"
        "y = y + 1\n"
        "pair = (1, y[:1])\n"
        "def last():\n"
        "    return y\n"
        "assert last() is y\n"
        "exit(0)\n"
    )
    record = recorder.Record()
    assert recorder.run(script, record) == ""
    found = {line["name"]: record.numbers[line["at"]].tolist() for line in record.lines}
    assert found == {"y": [5, 0], "y#2": [6, 1], "pair[0]": [1], "pair[1]": [6]}
    script.write_text("x = 1\nraise KeyError('lost')")
    assert "KeyError: 'lost'" in recorder.run(script, record)
    assert record.lines[-1]["name"] == "x"


def test_each_exception_of_scripts_has_a_reason() -> None:
    entries = scripts.exceptions(scripts.EXCEPTIONS)
    assert all(
        re.fullmatch(r"\w+\.py(@\d)?::[^:\s]+:\S+", what) and len(why) > 15 for what, why in entries.items()
    )
    assert scripts.reason_of({"a.py@2::end:*": "so"}, Path("a.py"), 2, "end:time") == "so"
    assert scripts.reason_of({"a.py@2::end:*": "so"}, Path("a.py"), 4, "end:time") is None


LIBRARY = """
import enum
import numpy as np
from mpi4py import MPI
class Partition(enum.Enum):
    SCATTER = "Scatter"
class DistributedArray:
    def __init__(self, global_shape):
        world = MPI.COMM_WORLD
        n = global_shape // world.size + (world.rank >= world.size - global_shape % world.size)  # the last ones have more
        self.global_shape, self.axis, self.mask, self.partition = (global_shape,), 0, None, Partition.SCATTER
        self.local_array = np.ones(n)
    def __setitem__(self, index, value):
        self.local_array[index] = value
    def dot(self, other): ...
    norm = dot
"""
SCRIPTS = {
    "same": "x = pylops_mpi.DistributedArray(10)\nx[:] = 2.0\nprint('two', 2.0)",
    "shapes": "x = pylops_mpi.DistributedArray(11)\nx[:] = 0.0",
    "hangs": "if pylops_mpi.__name__ == 'pylops_mpi': MPI.COMM_WORLD.rank or MPI.COMM_WORLD.recv(source=1)",
}


@pytest.mark.full
@pytest.mark.mpi
def test_the_program_compares_scripts_under_a_library_and_on_jali(tmp_path: Path) -> None:
    need_mpi()
    for folder, files in (("pylops_mpi", {"__init__": LIBRARY}), ("examples", SCRIPTS)):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / f"{name}.py").write_text(
                "import pylops_mpi\nfrom mpi4py import MPI\n" * (folder != "pylops_mpi") + text
            )
    result = run_program([sys.executable, TOOL, "--source", tmp_path, "--behind", "5", "-v"], status=2)
    assert re.search(r"^same.py +\d+ +0 +0 +0 ", result.stdout, re.M), result.stdout
    assert re.search(r"^shapes.py +\d+ +0 +0 +1 ", result.stdout, re.M), result.stdout
    assert "DIFFERENT x:local-shape: rank 0: [5], on jali [6]" in result.stdout
    assert re.search(r"^hangs.py +\d+ +0 +0 +2 ", result.stdout, re.M), result.stdout


def test_the_spread_of_a_part_of_a_cost_is_that_of_the_cost_too() -> None:
    moved = {"printed:table-2-J": scripts.Difference("printed:table-2-J", "", 0.01)}
    for column, within in (("g", True), ("f", True), ("xupdate", False)):
        it = scripts.Difference(f"printed:table-2-{column}", "", 0.02)
        assert scripts.within_spread(it, moved) is within
    assert not scripts.within_spread(scripts.Difference("printed:table-1-g", "", 0.02), moved)
