"""The line that an error names is the user's: in files, sessions, strings, generated methods and in jali's own functions."""

from __future__ import annotations

import json
import linecache
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import jali
from jali.codegen import ir
from jali.codegen.lines import line_of_function
from jali.codegen.storage_formats import plain
from jali.codegen.types import Element
from jali.gauge import SU, GaugeField, field_strength, staple, staple_sum

LATTICE = jali.Lattice(4, 4)
A = jali.Field(LATTICE, jali.Real())
WRONG = """\
import jali
lattice = jali.Lattice(4, 4)
a = jali.Field(lattice, jali.Real())

@jali.site_function
def wrong(X, a):
    if a[X] > 0:
        a[X] = 1.0
"""


def last_line(error: BaseException) -> str:
    return str(error).rsplit("\n", 1)[1]


def run_as(file: str, main: bool = True) -> str:
    """The last line of the error of WRONG, compiled as `file`."""
    space: dict[str, Any] = {"__name__": "__main__"} if main else {}
    exec(compile(WRONG, file, "exec"), space)
    with pytest.raises(jali.TraceError) as caught:
        exec(compile("\n\nwrong(a)\n", file + "2", "exec"), space)
    return last_line(caught.value)


@pytest.mark.parametrize(
    "file",
    [
        "<ipython-input-3-0123456789ab>",  # IPython in a terminal
        "/tmp/ipykernel_1234/1234567890.py",  # a notebook
        "<stdin>",
        "<string>",  # python -c
        "<python-input-0>",  # the prompt of Python 3.13
        "<doctest somewhere[0]>",
        "/home/somebody/program.py",
        "relative.py",
    ],
)
def test_line_of_a_session_is_the_users(file):
    assert run_as(file) == f"  at {file}:7"


def test_text_of_a_line_that_is_in_no_file_is_shown():
    file = "<ipython-input-9-0123456789ab>"
    linecache.cache[file] = (len(WRONG), None, WRONG.splitlines(keepends=True), file)
    try:
        assert run_as(file) == f"  at {file}:7: if a[X] > 0:"
    finally:
        del linecache.cache[file]


def test_ipython_in_a_terminal_names_the_line_of_the_cell():
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        assert shell.run_cell(WRONG, store_history=True).success
        error = shell.run_cell("wrong(a)", store_history=True).error_in_exec
    finally:
        InteractiveShell.clear_instance()
    assert isinstance(error, jali.TraceError)
    location = last_line(error)
    assert "site-packages" not in location, location
    assert ":7" in location


@pytest.mark.parametrize("how", ["-c", "-"])
def test_python_without_a_file_names_its_line(how):
    command = [sys.executable, how] + ([WRONG + "wrong(a)\n"] if how == "-c" else [])
    done = subprocess.run(command, input=WRONG + "wrong(a)\n", capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    name = "<string>" if how == "-c" else "<stdin>"
    assert done.stderr.rstrip().rsplit("\n", 1)[1].startswith(f"  at {name}:7"), done.stderr


def test_method_that_a_dataclass_writes_is_not_the_users_line():
    @dataclass
    class Pair:
        first: Any
        second: Any

    @jali.site_function
    def f(X, a):
        if Pair(a[X], 1.0) == Pair(2.0, 1.0):  # here
            a[X] = 1.0

    with pytest.raises(jali.TraceError) as caught:
        f(A)
    assert last_line(caught.value) == f"  at {__file__}:{f.function.__code__.co_firstlineno + 2}"


def test_functions_of_the_standard_library_and_numpy_are_not_the_users_line():
    for wrong in (
        lambda a: statistics.median([a, a, a]),
        lambda a: json.dumps(a),
        lambda a: np.full(3, a),
    ):

        @jali.site_function
        def f(X, a, wrong):
            a[X] = wrong(a[X])

        with pytest.raises(jali.TraceError) as caught:
            f(A, wrong)
        assert last_line(caught.value) == f"  at {__file__}:{wrong.__code__.co_firstlineno}"


def test_function_of_jali_inside_the_users_names_the_users_line():
    U = GaugeField(LATTICE, SU(2))
    for wrong in (
        lambda X, U: staple(X, U[0], X.directions()[0]),
        lambda X, U: field_strength(X, U, 0, 1),
        lambda X, U: jali.matrix([[1, 2], [3]]),
    ):

        @jali.site_function
        def f(X, U, wrong):
            U[0][X] = wrong(X, U)

        with pytest.raises(jali.TraceError) as caught:
            f(U, wrong)
        assert last_line(caught.value) == f"  at {__file__}:{wrong.__code__.co_firstlineno}"


def test_site_function_of_jali_names_the_line_of_the_users_call():
    U = GaugeField(LATTICE, SU(2)).hot_start(1)
    here = sys._getframe().f_lineno
    with pytest.raises(jali.TraceError, match="cannot be stored in out") as caught:
        staple_sum(U, A, LATTICE.directions[0])
    assert last_line(caught.value) == f"  at {__file__}:{here + 2}"


def test_mistake_of_a_whole_function_is_where_it_is_defined():
    @jali.site_function
    def nothing(X, a):
        pass

    with pytest.raises(jali.TraceError, match="neither writes a field") as caught:
        nothing(A)
    assert last_line(caught.value) == f"  at {__file__}:{nothing.function.__code__.co_firstlineno}"


def test_mistake_of_a_call_is_where_it_is_called():
    @jali.site_function
    def f(X, a, b):
        a[X] = b

    for wrong in (lambda: f(A), lambda: f(A, {}), lambda: f(A, c=1.0), lambda: f(A, 1 << 70)):
        with pytest.raises(jali.TraceError) as caught:
            wrong()
        assert last_line(caught.value) == f"  at {__file__}:{wrong.__code__.co_firstlineno}"


# ---- names in generated text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "two\nint evil;",
        "carriage\rreturn",
        "separator\u2028line",
        "continued\\",
        "trigraph??/",
        "*/ int evil; /*",
    ],
)
def test_name_of_a_function_cannot_leave_its_comment_in_the_generated_text(name):
    def f(X, a):
        a[X] = 2.0

    f.__name__ = name
    report = jali.inspect(jali.site_function(f), A)
    comments = [line for line in report.source.splitlines() if "int evil" in line or "2028" in line]
    assert all(line.startswith("//") for line in comments)
    for sign in ("\\", "??/", "*/", "\r", "\u2028"):
        assert sign not in report.source
    jali.site_function(f)(A)
    assert A[0, 0] == 2.0


def test_names_of_elements_are_printable():
    with pytest.raises(jali.LayoutError, match="the name of an element type"):
        Element("Real\nint evil;", jali.Real().type)


def test_names_in_programs_are_printable():
    slot = ir.FieldSlot("a\nb", plain(jali.Real(), "float64"))
    program = ir.SiteProgram("f\\", 1, "float64", [slot], [("x\n", ir.REAL)], ["rng\r"], [], [])
    assert (slot.name, program.name, program.scalars, program.randoms) == (
        "a_b",
        "f_",
        [("x_", ir.REAL)],
        ["rng_"],
    )


def test_names_of_the_language_stay_as_they_are():
    def phi(X, φ):
        φ[X] = 1.0

    report = jali.inspect(jali.site_function(phi), A)
    assert report.name == "phi"
    assert list(report.writes) == ["φ"]
    assert jali.inspect(jali.site_function(lambda X, a: a.__setitem__(X, 1.0)), A).name == "<lambda>"


@pytest.mark.parametrize("function", [field_strength, len], ids=["of jali", "without code"])
def test_a_function_that_is_not_the_users_is_where_the_user_gives_it(function):
    assert __file__ in line_of_function(function)
    assert "field_strength" not in line_of_function(function)


def test_a_function_of_the_user_is_where_it_is_defined():
    def mine(): ...

    assert f"{__file__}:{mine.__code__.co_firstlineno}" in line_of_function(mine)
