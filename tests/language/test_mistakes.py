"""Mistakes that a person who knows only the docs makes: each is a TraceError at the line, and none is an error of Python's own.

A mistake is one line of a site function. The function is compiled under a file name of its own, as if a user had written it.
"""

from __future__ import annotations

import copy
import decimal
import fractions
import functools
import itertools
import math
import pickle
import re
import statistics

import numpy as np
import pytest

import jali
from jali import fermions, gauge
from jali.gauge import SU, GaugeField

LATTICE = jali.Lattice(4, 4, 4, 4)
E = LATTICE.directions
REAL, COMPLEX, VECTOR, MATRIX, SPINOR, HALF = (
    jali.Field(LATTICE, element)
    for element in (
        jali.Real(),
        jali.Complex(),
        jali.Vector(3),
        jali.Matrix(3),
        jali.Spinor(3),
        jali.Matrix(3, 2),
    )
)
LINKS, RNG = GaugeField(LATTICE, SU(3)), jali.Random(1)
KNOWN = {
    "copy": copy,
    "decimal": decimal,
    "fractions": fractions,
    "functools": functools,
    "jali": jali,
    "math": math,
    "np": np,
    "pickle": pickle,
    "statistics": statistics,
    "field_strength": gauge.field_strength,
    "gamma": fermions.gamma,
    "project": fermions.project,
    "reconstruct": fermions.reconstruct,
    "staple": gauge.staple,
    "wilson_at": fermions.wilson_at,
    "E": E,
    "LATTICE": LATTICE,
    "LINKS": LINKS,
    "REAL": REAL,
    "RNG": RNG,
}
FILE = "/home/somebody/mistake.py"
_numbers = itertools.count()


def error_of(line, *arguments, sums=False):
    """The TraceError of `def mistake(X, a, b, ...): line`, which must end with the place of the line."""
    names = ", ".join(["X", *"abcd"[: len(arguments)], *(["total"] if sums else [])])
    space, file = dict(KNOWN), f"{FILE}.{next(_numbers)}"
    exec(compile(f"def mistake({names}):\n    {line}\n", file, "exec"), space)
    function = jali.site_function(space["mistake"])
    with pytest.raises(jali.TraceError) as caught:
        if sums:
            LATTICE.sum(function, *arguments)
        else:
            function(*arguments)
    message = str(caught.value)
    assert message.rsplit("\n", 1)[1] in (f"  at {file}:2", f"  at {file}:1"), message
    return message


# a line over a real field a, and what its error says
OF_NUMBERS = {
    # functions of other libraries
    "a[X] = math.sin(a[X])": "jali.sin, not math.sin",
    "a[X] = math.floor(a[X])": "has no value",
    "a[X] = np.sin(a[X])": r"NumPy's sin does not take symbols; write jali.sin\(x\)",
    "a[X] = np.exp(a[X])": r"write jali.exp\(x\)",
    "a[X] = np.abs(a[X])": r"write abs\(x\)",
    "a[X] = np.maximum(a[X], 0)": r"write jali.maximum\(x, y\)",
    "a[X] = np.where(a[X] > 0, 1, 2)": r"write jali.where\(condition, a, b\)",
    "a[X] = np.array([a[X], a[X]])": "NumPy cannot make an array of symbols",
    "a[X] = np.asarray(a[X])": "NumPy cannot make an array of symbols",
    "a[X] = np.mean([a[X], a[X]])": "NumPy cannot make an array of symbols",
    "a[X] = np.add.reduce([a[X]])": "NumPy cannot make an array of symbols",
    "a[X] = np.dot(a[X], a[X])": "NumPy's dot does not take symbols",
    "a[X] = np.sum(a[X])": r"write Python's sum\(...\)",
    "a[X] = np.einsum('i,i', a[X], a[X])": "NumPy's einsum does not take symbols",
    "a[X] = np.linalg.norm(a[X])": "NumPy's norm does not take symbols",
    "a[X] = np.linalg.inv(a[X])": r"write m.inverse\(\)",
    "a[X] = np.stack([a[X], a[X]])": "NumPy's stack does not take symbols",
    "a[X] = np.exp(a)": "NumPy's exp does not take symbols",
    "a[X] = np.float64(2) * X": "X is a site, not a number",
    "a[X] = statistics.mean([a[X], a[X]])": "",
    "a[X] = functools.reduce(max, [a[X], a[X]])": "no truth value",
    # values that are wanted
    "a[X] = int(a[X])": "run-time number",
    "a[X] = round(a[X], 2)": "digits. does not take symbols",
    "a[X] = jali.sign(1j * a[X])": "sign of a complex number is not defined here",
    "a[X] = np.rint(a[X])": r"write jali.round\(x\)",
    "a[X] = len(a[X])": r"has no len\(\)",
    "a[X] = 0 if 1 in a[X] else 1": "cannot be searched",
    "a[X] = not a[X]": "no truth value",
    "a[X] = a[X] or 1": "no truth value",
    "assert a[X] > 0": "no truth value",
    "a[X] = sorted([a[X], a[X]])": "no truth value",
    "a[X] = [1, 2][a[X]]": "cannot be an index",
    "a[X] = f'{a[X]:.3f}'": "the format '.3f' needs a value",
    "print(f'{a[X]:.3f}')": "the format '.3f' needs a value",
    "pickle.dumps(a[X])": "symbols cannot be pickled",
    "pickle.dumps(X)": "symbols cannot be pickled",
    "a[X] = copy.deepcopy(a)": "a is a field",
    # attributes and calls
    "a[X] = a[X].T": r"did you mean .transpose\(\)",
    "a[X] = a[X].H": r"did you mean .dagger\(\)",
    "a[X] = a[X].norm()": r"did you mean .norm2\(\)",
    "a[X] = a[X].dager()": "did you mean .dagger",
    "a[X] = a[X].foo": "has no attribute foo; it has cholesky, conj, copy, dagger",
    "a[X] = a[X].dagger": r"call it, dagger\(...\)",
    "a[X] = a[X].dagger * 2": "call it|parentheses",
    "a[X] = a[X].real()": "without parentheses",
    "a[X] = X.parity()": "without parentheses",
    "a[X].real = 1": "has no setter",
    "a[X].x = 3": "has no attribute 'x'",
    "a[X] = a.local()": "a is a field",
    "a[X] = X.x": "X is a site, not a number",
    "for mu in X.directions: pass": "with parentheses",
    "a(X)": "'field' object is not callable",
    "a[X] = a[X].uniform(X)": r"random numbers come from a jali.Random\(seed\)",
    # assignment
    "a[X][0] = 1": "has no components to assign",
    "del a[X]": "a is a field",
    "a += 1": r"a value at a site is a\[X\]",
    "a[X] *= a": "a is a field",
    "a[X] = None": "a NoneType cannot be used",
    "a[X] = [1, 2]": r"jali.vector\(\[...\]\)",
    "a[X] = jali.Real()": "jali.zero",
    "a[X] = LATTICE": "a Lattice cannot be used",
    "a[X] = 10**400": "OverflowError",
    "a[X] = X.coordinate(0) * 10**20": r"100000000000000000000 does not fit 64 bits[\s\S]*it is written 1e\+20",
    # directions and offsets
    "a[X] = a[X] * E[0]": "a Direction cannot be used in a site function's arithmetic",
    "a[X] = E[0] * a[X]": "a Direction cannot be used in a site function's arithmetic",
    "a[X] = a[X] + E[0]": "a Direction cannot be used in a site function's arithmetic",
    "a[X] = a[X] / E[0]": "a Direction cannot be used in a site function's arithmetic",
    "a[X] = a[X] ** E[0]": "a Direction cannot be used in a site function's arithmetic",
    "a[X] = E[0] + 1": "directions are added to one another",
    "a[X] = a[X + 1.5 * E[0]]": "multiplied by whole numbers",
    "a[X] = a[X + E[0] / 2]": "multiplied by whole numbers",
    "a[X] = 1 if E[0] == 0 else 2": r"the number of a direction is int\(mu\)",
    "a[X] = 1 if E[0] < E[1] else 2": r"directions have no order; compare int\(mu\)",
    "a[X] = a[X + 'x']": "a site is shifted by directions",
    "a[X] = a[1 + X]": "a site is shifted by directions",
    "a[X] = a[X + X]": "a site is shifted by directions",
    "a[X] = a[-X]": "X is a site",
    "a[X] = a[X, E[0]]": "a is indexed by a site",
    "a[X] = a[...]": "a is indexed by a site",
    "a[X] = X.coordinate('x')": "'x' is not a direction",
    "a[X] = X.coordinate(E[0] + E[1])": "is an offset, not one direction",
    "a[X] = X.coordinate()": "missing 1 required positional argument",
    "mu, nu = X.directions()": "too many values to unpack",
    "a[X] = 1 if X == 0 else 2": "X is a site",
    "a[X] = jali.where(a == 0, 1, 2)": "a is a field",
    "for x in X: pass": "X is a site",
    "a[X] = X[0]": "X is a site",
    "a[X] = a[X + 2**62 * E[0]]": r"offsets go up to 536870912 = 2\*\*29",
    "a[X] = a[X - (2**29 + 1) * E[3]]": r"an offset of -536870913 sites in direction 3",
    "a[X] = a[X + 2**29 * E[0] + E[0]]": "an offset of 536870913 sites in direction 0",
    # what is captured and should be an argument
    "a[X] = REAL[X]": "pass it as one",
    "a[X] = 2 * REAL": "has no arithmetic of its own",
    "a[X] = a[X] * REAL": "has no arithmetic of its own",
    "a[X] = np.exp(REAL)": "has no arithmetic of its own",
    "a[X] = LINKS[X]": "pass it as one",
    "a[X] = LINKS[0][X].trace().real": "pass it as one",
    "a[X] = RNG.uniform(X)": "inside a site function that has it as an argument",
    "a[X] = RNG.gaussian(X)": "inside a site function that has it as an argument",
    # Python's own
    "a[X] = undefined_name": "NameError: name 'undefined_name' is not defined",
    "a[X] = {}['k']": "KeyError: 'k'",
    "a[X] = 1 / 0": "ZeroDivisionError",
    "a[X] = math.sqrt(-1)": "math domain error",
    "a[X] = a[X] * (lambda: 1)": "is a function; call it",
    "a[X] = a[X] * fractions.Fraction(1, 2)": "Fraction",
    "a[X] = decimal.Decimal(1) * a[X]": "Decimal",
    "a[X] = a[X] << 1": "no operator for this",
    "a[X] = divmod(a[X], 2)": "no operator for this",
    # jali's functions
    "a[X] = jali.exp('x')": r"jali.exp\('x'\): takes numbers and symbols",
    "a[X] = jali.exp(a)": "a is a field",
    "a[X] = jali.atan2(a, 1)": "a is a field",
    "a[X] = jali.matrix(5)": "needs a list of rows",
    "a[X] = jali.matrix([1, 2])": "needs a list of rows",
    "a[X] = jali.vector(a[X])": "needs a list of components",
    "a[X] = jali.identity(0)": "needs a positive whole number, not 0",
    "a[X] = jali.identity('3')": "needs a positive whole number, not '3'",
    "a[X] = jali.zero(jali.Real)": "needs an element type",
    "a[X] = gamma[0] * a[X]": "a spin matrix acts on",
    "a[X] = X.repeat_until(5, 10, 0)": "repeat_until calls a function",
    "a[X] = wilson_at(X, a, a, 0.1)": "a is indexed by a site",
    "a[X] = staple(X, a, E[0])": "a is indexed by a site",
    "a[X] = field_strength(X, a, E[0], E[1])": "a is indexed by a site",
    "a[X] = LATTICE.sum(a)": "lattice.sum takes a site function",
    "a[X] = 1 if X.parity in {0, 1} else 2": "looked up in a set or a dictionary",
    "a[X] = {0: 1.0}.get(X.parity, 3.0)": "looked up in a set or a dictionary",
    "a[X] = len({a[X], 2 * a[X]})": "nor kept in one",
    "a[X] = functools.lru_cache(lambda x: 2 * x)(a[X])": "nor kept in one",
    "a[X] = jali.log(0)": r"jali.log\(0\): ",
    "a[X] = jali.maximum('a', 'b')": "takes numbers and symbols",
    "a[X] = (gamma[0] + 'x') * a[X]": "combined with spin matrices and numbers",
    "a[X] = jali.identity(100000)[0, 0].real": "a matrix has at most 65536",
    "return a[X]": "returned a value",
    "pass": "neither writes a field nor adds to a sum",
}


@pytest.mark.parametrize(("line", "message"), OF_NUMBERS.items(), ids=OF_NUMBERS)
def test_mistake_with_numbers_is_found_at_its_line(line, message):
    text = error_of(line, REAL)
    assert re.search(message, text), text


CAPTURE = "pass True or False.*or capture the number"
OF_ARGUMENTS = [
    # a line, what it is called with, what its error says
    ("a[X] = project(b[X], 0, c)[0, 0].real", (REAL, SPINOR, 1), CAPTURE),
    ("a[X] = project(b[X], 0, c)[0, 0].real", (REAL, SPINOR, 1.0), CAPTURE),
    ("a[X] = reconstruct(b[X], 0, c)[0, 0].real", (REAL, HALF, 1), CAPTURE),
    ("a[X] = project(b[X], c, 1)[0, 0].real", (REAL, SPINOR, 1), CAPTURE),
    ("b[X] = wilson_at(X, b, c, 0.1, d)", (REAL, SPINOR, LINKS, 1), CAPTURE),
    ("a[X] = project(b[X], 'x', 1)[0, 0].real", (REAL, SPINOR), "a projector has a direction"),
    ("a[X] = project(b[X], 0, '+')[0, 0].real", (REAL, SPINOR), "the sign of a projector is 1 or -1"),
    ("a[X] = 1 if b else 2", (REAL, 1), CAPTURE),
    ("a[X] = 1 if b == 1 else 2", (REAL, 1.0), CAPTURE),
    ("a[X] = [1, 2, 3][b]", (REAL, 1), CAPTURE),
    ("a[X] = 1 if b in {1, 2} else 2", (REAL, 1), CAPTURE),
    ("a[X] = {1: 2.0}.get(b, 3.0)", (REAL, 1), CAPTURE),
    ("for i in range(b): a[X] = i", (REAL, 1), CAPTURE),
    ("a[X] = a[X + E[b]]", (REAL, 1), CAPTURE),
    ("a[X] = X.coordinate(b)", (REAL, 1), CAPTURE),
    ("a[X] = jali.identity(b)[0, 0]", (REAL, 3), CAPTURE),
    ("a[X] = a[X + b * E[0]]", (REAL, 1.0), "known while tracing"),
    ("a[X] = X.repeat_until(lambda: (True, 1), b, 0)", (REAL, 10), "capture the number"),
    ("a[X] = b.uniform(X)", (REAL, 5), r"a jali.Random\(seed\) that is given as an argument"),
    ("a[X] = b.gaussian(X)", (REAL, 5.0), r"a jali.Random\(seed\) that is given as an argument"),
    ("a[X] = b.normal(X)", (REAL, RNG), "has no attribute normal"),
    ("a[X] = b", (REAL, RNG), r"draw one with b.uniform\(X\)"),
    ("a[X] = 2 * b", (REAL, RNG), r"draw one with b.uniform\(X\)"),
    ("a[X] = b.uniform()", (REAL, RNG), "missing 1 required positional argument"),
    ("a[X] = b[X]", (REAL, None), "'NoneType' object is not subscriptable"),
    ("a[X] = b[X]", (REAL, 3.0), "b, a number, is no field, and has no value at <site X>"),
    ("a[X] = b[X]", (REAL, E[0]), "'Direction' object is not subscriptable"),
    ("a[X] = b", (REAL, SU(3)), "an Element|a Element"),
    ("b[0] = a[X]", (REAL, [REAL, REAL]), r"written b\[mu\]\[X\]"),
    ("b[E[0]] += a[X]", (REAL, [REAL, REAL]), "is a field; a value at a site is"),
    ("a[X] = b[-E[0]][X]", (REAL, [REAL, REAL]), r"b\[mu\]\[X - mu\].dagger\(\)"),
    ("a[X] = b[E[0], X]", (REAL, [REAL, REAL]), r"write b\[mu\]\[X\]"),
    ("a[X] = b * a[X]", (REAL, [REAL, REAL]), "b is a list of 2 fields"),
    ("a[X] = b + 1", (REAL, [1.0, 2.0]), "b is a list of numbers"),
    ("b.append(a[X])", (REAL, [REAL, REAL]), "has no attribute append"),
    ("b[X][3] = 1", (COMPLEX, VECTOR), r"component 3 of a complex Vector\(3\) does not exist"),
    ("b[X][0] += b[X]", (COMPLEX, VECTOR), r"cannot add|a complex Vector\(3\)"),
    ("b[X][0] = 1", (COMPLEX, MATRIX), r"takes 2 indices, not 1"),
    ("p, q, r = b[X]", (COMPLEX, VECTOR), "cannot be iterated"),
    ("a[X] = b[X]**0", (VECTOR, VECTOR), "has no powers"),
    ("a[X] = b[X][3:, :]", (COMPLEX, MATRIX), "is empty"),
    ("b[X] = b[X] + np.array([['a']])", (COMPLEX, MATRIX), "a ndarray cannot be used"),
    ("b[X] = np.ones((3, 3, 3)) * b[X]", (COMPLEX, MATRIX), "is no vector or matrix"),
    ("b[X] = np.linalg.inv(b[X])", (COMPLEX, MATRIX), r"write m.inverse\(\)"),
    ("b[X] = np.eye(3) @ b[X].H", (COMPLEX, MATRIX), r"did you mean .dagger\(\)"),
    ("a[X] = 1 if a[X] == 1 else 2", (COMPLEX,), "compared part by part"),
]


@pytest.mark.parametrize(("line", "arguments", "message"), OF_ARGUMENTS, ids=[c[0] for c in OF_ARGUMENTS])
def test_mistake_with_arguments_is_found_at_its_line(line, arguments, message):
    text = error_of(line, *arguments)
    assert re.search(message, text), text


OF_SUMS = {
    "total += a": "a is a field",
    "total = total + a[X]": r"total \+= value",
    "total[0] += a[X]": r"adds to entries, total\[label\] \+= ...; the call says how many there are",
    "total *= 2": r"total \+= value",
    "total.add(a[X])": "has no attribute add",
    "total += 'x'": "a str cannot be used",
    "a[X] = total[X]": "total is one of these because the call was given no argument for it",
    "pass": "never adds to its sum number 1, total",
}


@pytest.mark.parametrize(("line", "message"), OF_SUMS.items(), ids=OF_SUMS)
def test_mistake_with_sums_is_found_at_its_line(line, message):
    text = error_of(line, REAL, sums=True)
    assert re.search(message, text), text


def test_operators_of_numpy_numbers_and_arrays_with_symbols_are_those_of_the_language():
    matrix = np.arange(9.0).reshape(3, 3) + 1j
    scale = np.float64(2.0)

    @jali.site_function
    def f(X, a, m):
        m[X] = matrix * m[X] + np.complex64(1j) * m[X] * scale
        a[X] = jali.where(np.float64(1.0) > a[X], np.float32(3) ** a[X], scale - a[X] / np.int64(2))

    MATRIX[...] = np.eye(3)
    REAL[...] = 0.5
    f(REAL, MATRIX)
    assert np.allclose(MATRIX[0, 0, 0, 0], matrix + 2j * np.eye(3))
    assert REAL[1, 2, 3, 0] == pytest.approx(3**0.5)


def test_copies_of_symbols_are_the_symbols():
    @jali.site_function
    def f(X, a, b):
        b[copy.copy(X)] = copy.deepcopy([a[X]])[0] + 1

    a, b = jali.Field(LATTICE, jali.Real()), jali.Field(LATTICE, jali.Real())
    f(a, b)
    assert np.all(b[...] == 1)


def test_symbol_of_an_earlier_trace_is_refused():
    kept = {}

    @jali.site_function
    def keep(X, a):
        kept.update(X=X, a=a, value=a[X] + 1)
        a[X] = 2.0

    with pytest.raises(jali.TraceError, match="keeps a symbol of the trace"):
        keep(REAL)
    KNOWN["kept"] = kept
    for line in (
        "a[X] = kept['value']",
        "a[X] = kept['value'] + a[X]",
        "a[X] = -kept['value']",
        "a[X] = a[kept['X']]",
        "a[X] = kept['a'][X]",
    ):
        assert "cannot be kept" in error_of(line, REAL), line
    with pytest.raises(jali.TraceError, match="can only be used inside a site function"):
        kept["value"] + 1
    with pytest.raises(jali.TraceError, match="can only be used inside a site function"):
        kept["a"][kept["X"]]


def test_read_around_the_lattice_of_what_was_written_at_the_site_is_refused():
    assert "is the same site on Lattice(4, 4, 4, 4), after writing it" in error_of(
        "a[X] = 1.0; b[X] = a[X + 4 * E[0]]", REAL, COMPLEX
    )

    @jali.site_function
    def reads_before(X, a, b):
        b[X] = a[X - 8 * E[1]]
        a[X] = 1 + a[X + 4 * E[0]]

    a, b = jali.Field(LATTICE, jali.Real()), jali.Field(LATTICE, jali.Real())
    reads_before(a, b)
    assert np.all(a[...] == 1)
    assert np.all(b[...] == 0)


def test_hasattr_of_symbols_says_what_they_have():
    @jali.site_function
    def f(X, a, b):
        assert hasattr(a[X], "dagger")
        assert not hasattr(a[X], "spin")
        assert not hasattr(a, "fields")
        assert getattr(b, "mask", 7) == 7
        a[X] = 1.0

    f(REAL, COMPLEX)


def test_errors_that_the_user_raises_and_catches_are_the_users():
    @jali.site_function
    def raises(X, a):
        raise ValueError("a is not mine")

    with pytest.raises(ValueError, match="a is not mine"):
        raises(REAL)

    @jali.site_function
    def catches(X, a):
        try:
            a[X] = {}["k"]
        except KeyError:
            a[X] = 4.0

    catches(REAL)
    assert np.all(REAL[...] == 4)
