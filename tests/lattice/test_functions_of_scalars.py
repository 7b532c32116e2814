"""Operations of the site language on numbers that stay: their bits are those of site functions, or of Python where it computes them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Real
from jali.codegen.ir import BOOL, REAL
from jali.codegen.language import arithmetic, choices, elementary
from jali.errors import JaliError, LayoutError, ParameterError
from jali.lattice.scalar_parts import ScalarPart, _host_kernel, computed_by

LATTICE = Lattice(1)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 5e-324, 1e-310, 1.8e308, 1e300, math.inf, -math.inf, math.nan]
ONE = [
    "exp",
    "log",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "floor",
    "ceil",
]
ONE += ["round", "sign", "abs"]
TWO = ["atan2", "power", "minimum", "maximum"]


def function(name):
    return abs if name == "abs" else getattr(jali, name)


def bits(x):
    return np.float64(x).view(np.uint64) if x == x else "nan"


def at_a_site(f, *values):
    """What a site function computes of the same numbers."""
    fields = [Field(LATTICE, Real()) for _ in values]
    for field, value in zip(fields, values, strict=True):
        field[0] = value
    out = Field(LATTICE, Real())

    @jali.site_function
    def write(X, out, fields):
        out[X] = f(*(field[X] for field in fields))

    write(out, fields)
    return float(out[0])


@pytest.mark.parametrize("name", ONE)
def test_functions_of_a_scalar_have_the_bits_of_site_functions(name):
    f = function(name)
    lattice = Lattice(len(SPECIAL))
    x, y = Field(lattice, Real()), Field(lattice, Real())
    x[...] = np.array(SPECIAL)

    @jali.site_function
    def write(X, y, x):
        y[X] = f(x[X])

    write(y, x)
    found = [float(f(LATTICE.scalar(value))) for value in SPECIAL]
    assert list(map(bits, found)) == list(map(bits, y[...].tolist()))


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_scalars_or_a_scalar_and_a_number(name):
    f = function(name)
    for x, y in ((0.3, -2.0), (2.5, 0.5), (-0.0, 0.0), (math.nan, 1.0), (-1.5, 3.0)):
        expected = bits(at_a_site(f, x, y))
        for given in ((LATTICE.scalar(x), LATTICE.scalar(y)), (LATTICE.scalar(x), y), (x, LATTICE.scalar(y))):
            assert bits(float(f(*given))) == expected, (name, x, y)


def test_functions_of_complex_scalars():
    z = 0.3 - 1.7j
    s = LATTICE.scalar(z)
    field, out = Field(LATTICE, Complex()), Field(LATTICE, Complex())
    field[0] = z
    for f in (jali.exp, jali.log, jali.sqrt):

        @jali.site_function
        def write(X, out, field, f=f):
            out[X] = f(field[X])

        write(out, field)
        assert complex(f(s)) == out[0]
    assert float(abs(s)) == pytest.approx(abs(z), rel=1e-15)
    assert float(jali.arg(s)) == at_a_site(jali.atan2, z.imag, z.real)
    assert not abs(s).is_complex


def test_functions_combine_with_arithmetic_and_conditions():
    x = LATTICE.scalar(0.7)
    y = jali.where(jali.exp(x) < 2, jali.sin(x) + 1, jali.exp(-x) / 2)
    assert float(y) == at_a_site(lambda x: jali.exp(-x) / 2, 0.7)
    before = jali.exp(x)
    x.assign(jali.log(before))
    assert float(x) == at_a_site(lambda x: jali.log(jali.exp(x)), 0.7)
    assert float(before) == at_a_site(jali.exp, 0.7)


def test_complex_functions_are_computed_before_their_argument_changes_and_in_graphs():
    z = LATTICE.scalar(3 + 4j)
    size, power = abs(z), jali.exp(z)
    expected = complex(jali.exp(LATTICE.scalar(3 + 4j)))
    z.assign(1j)
    assert float(size) == 5
    assert complex(power) == expected
    x = LATTICE.scalar(0.5)
    x.assign(abs(jali.exp(x * 1j)))
    assert float(x) == pytest.approx(1, rel=1e-15)
    field = Field(LATTICE, Complex())
    field[0] = 3 - 4j

    @jali.site_function
    def total_of(X, field, total):
        total += field[X]

    graph = jali.graph(lambda: (jali.exp(z), abs(LATTICE.sum(total_of, field, wait=False))), LATTICE)
    graph.run(2)
    assert graph.read() == [complex(jali.exp(z)), 5.0]
    z.assign(2j)
    graph.run()
    assert graph.read()[0] == complex(jali.exp(LATTICE.scalar(2j)))


def test_complex_numbers_of_scalars_and_of_whole_fields():
    s, t = LATTICE.scalar(2.0), LATTICE.scalar(-0.0)
    assert complex(jali.complex(s, t)) == complex(2.0, -0.0)
    assert complex(jali.complex(1, s)) == 1 + 2j
    f, g = Field(LATTICE, Real()), Field(LATTICE, Real())
    f[0], g[0] = 3.0, 4.0
    assert jali.complex(f, g)[0] == 3 + 4j
    assert jali.complex(2.0, g)[0] == 2 + 4j
    with pytest.raises(JaliError, match="a complex cannot be used as a real value"):
        jali.complex(s * 1j, t)


def test_conditions_combine_with_booleans_and_numbers_of_python_are_chosen_at_once():
    s = LATTICE.scalar(2.0)
    assert bool((s > 1) & True)
    assert not bool(False & (s > 1))
    assert bool((s < 1) | np.True_)
    assert jali.where(True, s, 2) is s
    assert jali.where(np.False_, s, 2) == 2


def test_functions_of_numpys_numbers():
    assert jali.exp(np.complex64(1j)) == pytest.approx(np.exp(1j))
    assert jali.sqrt(np.complex64(-1)) == 1j
    assert jali.exp(np.array(1j)) == pytest.approx(np.exp(1j))
    assert jali.sqrt(np.array(4.0)) == 2
    assert [jali.sign(x) for x in (np.float64(-2), np.int64(-2), True, False, 0.0)] == [-1, -1, 1, 0, 0]


COMPUTED = [
    (operation, (), 2)
    for operation in (
        arithmetic.add,
        arithmetic.sub,
        arithmetic.mul,
        arithmetic.div,
        choices.less,
        choices.less_equal,
        choices.equal,
        choices.not_equal,
    )
] + [(arithmetic.neg, (), 1), (elementary.call, ("sqrt",), 1), (elementary.call, ("abs",), 1)]


@pytest.mark.parametrize(("operation", "attrs", "count"), COMPUTED, ids=lambda x: getattr(x, "name", None))
def test_what_python_computes_has_the_bits_of_the_kernel(operation, attrs, count):
    conditions = operation in (choices.less, choices.less_equal, choices.equal, choices.not_equal)
    type = BOOL if conditions else REAL
    node = ScalarPart(operation, tuple(ScalarPart() for _ in range(count)), attrs, type)
    kernel = _host_kernel(operation, attrs, (REAL,) * count, type)
    python = computed_by(node)
    assert python is not kernel
    for values in itertools.product(SPECIAL, repeat=count):
        found, expected = python(*values), kernel(*values)
        assert bits(found) == bits(expected), (values, found, expected)


def test_conditions_have_the_truth_of_the_kernel():
    for operation in (choices.both, choices.either):
        kernel = _host_kernel(operation, (), (BOOL, BOOL), BOOL)
        for a, b in itertools.product((False, True), repeat=2):
            assert operation.compute(None)(a, b) == kernel(a, b)
    kernel = _host_kernel(choices.where, (), (BOOL, REAL, REAL), REAL)
    for c in (False, True):
        assert choices.where.compute(None)(c, -0.0, 2.0) == kernel(c, -0.0, 2.0)
        assert choices.negation.compute(None)(c) == _host_kernel(choices.negation, (), (BOOL,), BOOL)(c)


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (
            lambda s: jali.sin(s * 1j),
            JaliError,
            "sin of a complex number is not defined here(.|\n)*test_functions_of",
        ),
        (
            lambda s: jali.maximum(s, "a"),
            ParameterError,
            "scalars combine with numbers and scalars, not with 'a'",
        ),
        (lambda s: jali.atan2("a", s), ParameterError, "scalars combine with numbers and scalars"),
        (lambda s: jali.power(s, 10**400), ParameterError, "float64, which cannot hold"),
        (lambda s: jali.where(s, 1, 2), ParameterError, "chooses by a comparison of Scalars, such as s > 0"),
        (lambda s: s ** "a", TypeError, "unsupported operand"),
    ],
)
def test_mistakes_are_said_at_the_line(wrong, error, match):
    with pytest.raises(error, match=match):
        wrong(LATTICE.scalar(2.0))


def test_scalars_of_two_devices_do_not_meet():
    class Elsewhere:
        kind, ordinal = "cuda", 0

    here, there = LATTICE.scalar(1.0), LATTICE.scalar(1.0)
    there.gpu = Elsewhere()
    with pytest.raises(LayoutError, match="do not meet"):
        jali.atan2(here, there)
