"""Every mistake in a site function is an error while tracing: what was wrong, what would be right, and the user's line.

A mistake is a function whose wrong line carries the comment `# here`.
"""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import jali
from jali import (
    EVEN,
    ODD,
    SU,
    Algebra,
    Complex,
    Field,
    Hermitian,
    Lattice,
    Matrix,
    Random,
    Real,
    Spinor,
    TraceError,
    Vector,
)

LATTICE = Lattice(4, 4, 4)
EX, EY, EZ = LATTICE.directions


def make(element):
    return Field(LATTICE, element)


def wrong_line(function):
    """Number of the line marked `# here`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + k for k, line in enumerate(lines) if "# here" in line)


def check(function, arguments, message, sums=False, over=jali.ALL):
    """The message holds `message` (a regular expression) and ends with file:line of the mistake."""
    traced = jali.site_function(function)
    with pytest.raises(TraceError, match=message) as caught:
        if sums:
            LATTICE.sum(traced, *arguments, over=over)
        else:
            traced[over](*arguments)
    assert str(caught.value).endswith(f"{__file__}:{wrong_line(function)}"), str(caught.value)


MISTAKES = []


def mistake(message, *elements, sums=False):
    """Registers a function that must fail with `message` when called with fields of `elements` (or other arguments)."""

    def register(function):
        MISTAKES.append(pytest.param(function, elements, message, sums, id=function.__name__))
        return function

    return register


def as_argument(e):
    return make(e) if isinstance(e, jali.Real().__class__) else e


# ---- types ----


@mistake(
    r"cannot add complex Matrix\(3, 3\) and complex Matrix\(2, 2\): the shapes differ", Matrix(3), Matrix(2)
)
def sum_of_different_shapes(X, a, b):
    a[X] = a[X] + b[X]  # here


@mistake(r"cannot add complex Matrix\(3, 3\) and int.*jali.identity\(n\) \* number", Matrix(3))
def number_added_to_matrix(X, a):
    a[X] = a[X] + 1  # here


@mistake(r"cannot subtract real and complex Vector\(2\)", Real(), Vector(2))
def vector_subtracted_from_number(X, a, b):
    a[X] = a[X] - b[X]  # here


@mistake(
    r"cannot multiply complex Matrix\(3, 3\) by complex Matrix\(2, 2\): the inner extents do not match",
    Matrix(3),
    Matrix(2),
)
def product_of_different_matrices(X, a, b):
    a[X] = a[X] * b[X]  # here


@mistake(r"cannot multiply complex Vector\(3\) by complex Vector\(3\)", Vector(3))
def product_of_vectors(X, a):
    a[X] = a[X] * a[X]  # here


@mistake(r"cannot divide real by complex Matrix\(2, 2\): multiply by .inverse\(\)", Real(), Matrix(2))
def division_by_matrix(X, a, b):
    b[X] = a[X] / b[X]  # here


@mistake("division by the constant 0", Real())
def division_by_zero(X, a):
    a[X] = a[X] / 0  # here


@mistake(r"a complex value cannot be stored in the real field a; use .real or .imag", Real(), Complex())
def complex_in_real_field(X, a, b):
    a[X] = b[X]  # here


@mistake(r"a complex Matrix\(2, 2\) cannot be stored in a, which holds Matrix\(3, 3\)", Matrix(3), Matrix(2))
def wrong_shape_in_field(X, a, b):
    a[X] = b[X]  # here


@mistake(r"a real cannot be stored in a, which holds SU\(2\)", SU(2))
def number_in_matrix_field(X, a):
    a[X] = 2.0  # here


@mistake(
    r"holds Algebra\(3\), traceless anti-Hermitian matrices; apply .traceless_antihermitian\(\)",
    Algebra(3),
    SU(3),
)
def matrix_in_algebra_field(X, p, U):
    p[X] = U[X]  # here


@mistake(r"h holds Hermitian\(2\).*not known to be one.*.hermitian\(\)", Hermitian(2), Matrix(2))
def product_in_hermitian_field(X, h, m):
    h[X] = m[X].dagger() * h[X] * m[X]  # here


@mistake(r"h holds Hermitian\(3\).*.hermitian\(\) is the Hermitian part", Hermitian(3))
def hermitian_times_i(X, h):
    h[X] = 1j * h[X]  # here


@mistake(r"h holds Hermitian\(2\)", Hermitian(2))
def component_of_hermitian(X, h):
    h[X][0, 1] = 1j  # here


@mistake(r"cholesky needs a positive definite Hermitian matrix, and this complex Matrix\(3, 3\)", Matrix(3))
def factor_of_any_matrix(X, m):
    m[X] = m[X].cholesky()  # here


@mistake(r"hermitian needs a square matrix, not complex Matrix\(2, 3\)", Matrix(2, 3))
def hermitian_part_of_what_is_not_square(X, m):
    m[X] = m[X].hermitian()  # here


@mistake(
    r"solve of a complex Matrix\(3, 3\) needs a vector of 3 components or a matrix of 3 rows, not a complex Vector\(2\)",
    Hermitian(3),
    Vector(2),
)
def solution_of_another_shape(X, h, v):
    v[X] = h[X].solve(v[X])  # here


@mistake(r"apply .traceless_antihermitian\(\)", Algebra(2))
def algebra_times_i(X, p):
    p[X] = 1j * p[X]  # here


@mistake(r"complex numbers have no order; compare real parts or .norm2\(\)", Complex())
def order_of_complex_numbers(X, a):
    a[X] = jali.where(a[X] < 1, a[X], 0)  # here


@mistake(r"cannot compare complex Vector\(2\) and int: compare components", Vector(2))
def comparison_of_vectors(X, a):
    a[X] = jali.where(a[X] == 0, a[X], a[X])  # here


@mistake("where needs a condition, not real", Real())
def where_of_number(X, a):
    a[X] = jali.where(a[X], 1.0, 2.0)  # here


@mistake(r"where chooses between real and complex Vector\(2\): the shapes differ", Real(), Vector(2))
def where_of_different_shapes(X, a, v):
    v[X] = jali.where(a[X] < 0, a[X], v[X])  # here


@mistake("logical and needs booleans, not real", Real())
def logic_of_numbers(X, a):
    a[X] = jali.where((a[X] < 1) & a[X], 1.0, 0.0)  # here


@mistake(r"product of bool and real: use jali.where", Real())
def condition_times_number(X, a):
    a[X] = (a[X] < 1) * a[X]  # here


@mistake("booleans are combined with &, | and ~", Real())
def sum_of_conditions(X, a):
    a[X] = (a[X] < 1) + (a[X] > 0)  # here


@mistake(r"trace needs a square matrix, not complex Matrix\(2, 3\)", Real(), Matrix(2, 3))
def trace_of_rectangle(X, a, m):
    a[X] = m[X].trace().real  # here


@mistake(r"det needs a square matrix, not complex Vector\(3\)", Complex(), Vector(3))
def determinant_of_vector(X, a, v):
    a[X] = v[X].det()  # here


@mistake(r"complex Vector\(3\) has no dagger; use v.dot\(w\)", Complex(), Vector(3))
def dagger_of_vector(X, a, v):
    a[X] = v[X].dagger() * v[X]  # here


@mistake(r"outer needs two vectors", Matrix(2))
def outer_of_matrices(X, m):
    m[X] = m[X].outer(m[X])  # here


@mistake(
    r"dot of complex Vector\(3\) and complex Vector\(2\): the shapes differ", Complex(), Vector(3), Vector(2)
)
def dot_of_different_vectors(X, a, v, w):
    a[X] = v[X].dot(w[X])  # here


@mistake(r"sin needs a number, not complex Matrix\(2, 2\)", Matrix(2))
def sine_of_matrix(X, m):
    m[X] = jali.sin(m[X])  # here


@mistake("tanh of a complex number is not defined", Complex())
def tanh_of_complex(X, a):
    a[X] = jali.tanh(a[X])  # here


@mistake(r"component \(0, 3\) of a complex Matrix\(3, 3\) does not exist", Complex(), Matrix(3))
def component_outside(X, a, m):
    a[X] = m[X][0, 3]  # here


@mistake(r"a complex Matrix\(3, 3\) takes 2 indices, not 1", Complex(), Matrix(3))
def too_few_indices(X, a, m):
    a[X] = m[X][0]  # here


@mistake(r"component index 1.5 is not a whole number", Complex(), Vector(3))
def fractional_index(X, a, v):
    a[X] = v[X][1.5]  # here


@mistake("mod needs integers, not real", Real())
def remainder_of_reals(X, a):
    a[X] = a[X] % 2  # here


@mistake("mod needs a positive divisor, not -2", Real())
def negative_divisor(X, a):
    a[X] = X.coordinate(0) % -2  # here


@mistake(r"jali.matrix needs rows of equal", Matrix(2))
def ragged_matrix(X, m):
    m[X] = jali.matrix([[1, 2], [3]])  # here


@mistake("the components of a vector are numbers", Vector(2))
def vector_of_vectors(X, v):
    v[X] = jali.vector([v[X], 1])  # here


@mistake("jali.complex takes two real numbers|cannot be used as a real value", Complex())
def complex_of_complex(X, a):
    a[X] = jali.complex(a[X], 1)  # here


@mistake("the imaginary part of real Vector.* is zero", Vector(2, kind="real"))
def imaginary_part_of_real_vector(X, v):
    v[X] = v[X].imag  # here


@mistake("a str cannot be used in a site function's arithmetic", Real())
def text_in_field(X, a):
    a[X] = "two"  # here


# ---- symbols are not values ----


@mistake("a symbol has no truth value.*\n.*jali.where", Real())
def if_on_symbol(X, a):
    if a[X] > 0:  # here
        a[X] = 1


@mistake("a symbol has no truth value", Real())
def and_of_symbols(X, a):
    a[X] = jali.where(a[X] > 0 and a[X] < 1, 1.0, 0.0)  # here


@mistake("a symbol has no truth value", Real())
def chained_comparison(X, a):
    a[X] = jali.where(0 < a[X] < 1, 1.0, 0.0)  # here


@mistake("a symbol has no truth value", Real())
def minimum_of_python(X, a):
    a[X] = min(a[X], 1.0)  # here


@mistake("a symbol has no truth value", Real())
def unbounded_loop(X, a):
    while a[X] > 1:  # here
        a[X] = a[X] / 2


@mistake("cannot be an index or a loop bound", Real(), 3)
def run_time_loop_bound(X, a, n):
    for _ in range(n):  # here
        a[X] += 1


@mistake("a symbol has no value while the function is traced", Real())
def float_of_symbol(X, a):
    a[X] = float(a[X])  # here


@mistake(r"a complex Vector\(3\) cannot be iterated; take components with v\[i\]", Complex(), Vector(3))
def iteration_over_vector(X, a, v):
    for component in v[X]:  # here
        a[X] += component


# ---- sites, fields and directions ----


@mistake(r"a site is shifted by directions \(X \+ mu, X - 2\*mu\), not by int 1", Real())
def site_plus_number(X, a):
    a[X] = a[X + 1]  # here


@mistake(r"a is indexed by a site, a\[X \+ mu\], not by e0", Real())
def field_indexed_by_direction(X, a):
    a[X] = a[EX]  # here


@mistake(r"a is a field; a value at a site is a\[X\]", Real())
def field_without_site(X, a):
    a[X] = 2 * a  # here


@mistake(r"U is a list of 3 fields: write U\[mu\]\[X\]", Real(), [make(SU(2))] * 3)
def list_indexed_by_site(X, a, U):
    a[X] = U[X].trace().real  # here


@mistake(r"U has 2 members; 2 does not exist", Real(), [make(Real()), make(Real())])
def list_index_outside(X, a, U):
    for mu in X.directions():
        a[X] += U[mu][X]  # here


@mistake(r"X is a site, not a number; its coordinates are X.coordinate\(mu\)", Real())
def site_as_number(X, a):
    a[X] = 2 * X  # here


@mistake("direction 3 does not exist on a lattice of 3 dimensions", Real())
def direction_that_does_not_exist(X, a):
    a[X] = a[X + Lattice(2, 2, 2, 2).directions[3]]  # here


@mistake("direction 5 does not exist on a lattice of 3 dimensions", Real())
def coordinate_that_does_not_exist(X, a):
    a[X] = X.coordinate(5)  # here


GLOBAL = make(Real())


@mistake("is used in a site function but is not one of its arguments; pass it as one", Real())
def captured_field(X, a):
    a[X] = GLOBAL[X]  # here


@mistake(r"a sum can only be added to: total \+= value", Real(), sums=True)
def sum_in_expression(X, a, total):
    total += a[X] * total  # here


@mistake(r"a boolean cannot be summed; use jali.where\(condition, 1, 0\)", Real(), sums=True)
def sum_of_condition(X, a, total):
    total += a[X] < 1  # here


@mistake("a spin matrix acts on a matrix of n colours by 4 spins", Spinor(3))
def spin_matrix_on_a_number(X, psi):
    from jali.fermions import gamma

    psi[X] = gamma[0] * psi[X][0, 0]  # here


# ---- random numbers and rejection ----


@mistake(r"random numbers belong to the loop's own site: rng.uniform\(X\)", Real(), Random(1))
def random_number_of_a_neighbour(X, a, rng):
    a[X] = rng.uniform(X + EX)  # here


@mistake("needs a fixed bound between 1 and 100000, not 0", Real(), Random(1))
def rejection_without_bound(X, a, rng):
    a[X] = X.repeat_until(lambda: (rng.uniform(X) < 0.5, 1.0), limit=0, otherwise=0.0)  # here


@mistake("needs a fixed bound", Real(), Random(1), 10)
def rejection_with_run_time_bound(X, a, rng, n):
    a[X] = X.repeat_until(lambda: (rng.uniform(X) < 0.5, 1.0), limit=n, otherwise=0.0)  # here


@mistake(r"the attempt of repeat_until returns \(accepted, value\)", Real(), Random(1))
def attempt_without_condition(X, a, rng):
    a[X] = X.repeat_until(lambda: rng.uniform(X), limit=5, otherwise=0.0)  # here


@mistake("the condition does not depend on a random number", Real(), Random(1))
def condition_that_never_changes(X, a, rng):
    a[X] = X.repeat_until(lambda: (a[X] < 0.5, rng.uniform(X)), limit=5, otherwise=0.0)  # here


@mistake("the attempt's first result is the condition, a boolean, not real", Real(), Random(1))
def attempt_returns_a_number_first(X, a, rng):
    a[X] = X.repeat_until(lambda: (rng.uniform(X), 1.0), limit=5, otherwise=0.0)  # here


@mistake(
    r"the attempt returns real, otherwise is complex Vector\(2\): the shapes differ",
    Real(),
    Random(1),
    Vector(2),
)
def otherwise_of_another_shape(X, a, rng, v):
    a[X] = X.repeat_until(lambda: (rng.uniform(X) < 0.5, 1.0), limit=5, otherwise=v[X])  # here


@mistake("is written inside repeat_until; return the value from the attempt instead", Real(), Random(1))
def write_in_an_attempt(X, a, rng):
    def attempt():
        a[X] = rng.uniform(X)  # here
        return a[X] < 0.5, a[X]

    X.repeat_until(attempt, limit=5, otherwise=0.0)


@mistake("repeat_until inside repeat_until is not possible", Real(), Random(1))
def nested_rejection(X, a, rng):
    def inner():
        return rng.uniform(X) < 0.5, 1.0

    def outer():
        x = X.repeat_until(inner, limit=3, otherwise=0.0)  # here
        return x < 0.5, x

    a[X] = X.repeat_until(outer, limit=3, otherwise=0.0)


# ---- races ----


@mistake("reads a at offset .* of a site that the same loop writes", Real())
def neighbour_of_the_written_field(X, a):
    a[X] = a[X + EX]  # here


@mistake("writes at several offsets .* and reads a, which it writes", Real())
def several_offsets_with_a_read(X, a):
    a[X] = a[X + EY] + 1  # here
    a[X + EX] = 2.0


@mistake(
    r"to assign a component, a\[X \+ mu\]\[k\] = ..., reads the others, which stay. Pull .*, a\[X\]\[k\] = f\[X - mu\]\[k\]",
    Vector(2),
    Vector(2),
)
def components_pushed_to_several_sites(X, a, f):
    for k, step in enumerate((EX, EY)):
        a[X + step][k] = f[X][k]  # here


@mistake(r"reads a, which it writes \(read at .*\); do it in several site functions", Vector(2))
def components_pushed_and_read(X, a):
    a[X + EX][0] = 1.0  # here
    a[X + EY][1] = a[X][0]


@pytest.mark.parametrize(("function", "elements", "message", "sums"), MISTAKES)
def test_mistake_is_reported_at_its_line(function, elements, message, sums):
    check(function, [as_argument(e) for e in elements], message, sums)


def test_every_mistake_fails_for_its_own_reason():
    assert len(MISTAKES) > 60


# ---- races over colours ----


def even_offset(X, a):
    a[X] += a[X + EX + EY]  # here


def odd_offset(X, a):
    a[X] += a[X + EX]  # here


@pytest.mark.parametrize("colour", [EVEN, ODD], ids=str)
def test_even_offset_of_the_written_field_is_a_race_over_a_colour(colour):
    check(even_offset, [make(Real())], f"even_offset over {colour} reads a at offset", over=colour)


def test_odd_offset_is_a_race_over_all_sites_but_not_over_a_colour():
    check(odd_offset, [make(Real())], "Run it over EVEN and ODD separately", over=jali.ALL)
    jali.site_function(odd_offset)[EVEN](make(Real()))


def test_a_race_that_colours_do_not_end_is_not_sent_to_them():
    def both_offsets(X, a):
        a[X] += a[X + EX] + a[X + EX + EY]

    with pytest.raises(
        TraceError, match=r"offset \(1, 1, 0\) joins sites of one parity.*use a jali.Colouring"
    ) as caught:
        jali.site_function(both_offsets)(make(Real()))
    assert "Run it over" not in str(caught.value)


def update_all(X, U):
    for mu in X.directions():
        U[mu][X] = sum(
            U[nu][X + mu] + U[mu][X + nu] + U[nu][X + mu - nu] for nu in X.directions() if nu != mu
        )


def update_one(X, U, mu):
    U[mu][X] = sum(U[nu][X + mu] + U[mu][X + nu] + U[nu][X + mu - nu] for nu in X.directions() if nu != mu)


def test_links_of_all_directions_at_once_are_sent_to_one_direction_per_call():
    links = [make(Real()) for _ in range(LATTICE.ndim)]
    update = jali.site_function(update_all)
    cure = r"write one per call, U\[mu\] with the direction mu as an argument, over "
    for colour, over in ((jali.ALL, "EVEN and over ODD"), (EVEN, "EVEN"), (ODD, "ODD")):
        with pytest.raises(TraceError, match=f"{cure}{over}\n"):
            update[colour](links)
    for mu in LATTICE.directions:
        for colour in (EVEN, ODD):
            jali.site_function(update_one)[colour](links, mu)  # the cure


def test_fields_of_a_list_that_race_alone_are_sent_elsewhere():
    @jali.site_function
    def rectangles(X, U):
        for mu in X.directions():
            U[mu][X] = U[mu][X + 2 * EX]

    with pytest.raises(TraceError, match="use a jali.Colouring"):
        rectangles([make(Real()) for _ in range(LATTICE.ndim)])


def step(X, new, u):
    new[X] = 0.5 * u[X] + 0.25 * (u[X + EX] + u[X - EX])  # here


def test_two_steps_in_one_function_are_sent_to_two_calls_and_not_to_colours():
    @jali.site_function
    def two(X, new, tmp, u):
        step(X, tmp, u)
        step(X, new, tmp)

    with pytest.raises(
        TraceError, match="make two site functions of two, and call one after the other"
    ) as caught:
        two(*(make(Real()) for _ in range(3)))
    assert str(caught.value).endswith(f"{__file__}:{wrong_line(step)}")
    assert "EVEN and ODD" not in str(caught.value)


def test_what_a_colour_reads_of_the_other_after_writing_its_own_is_what_was_there():
    """The value of a neighbour that the call does not write: accepted, and of no order."""
    a, out = make(Real()), make(Real())
    values = np.random.default_rng(1).normal(size=LATTICE.extents)
    a[...] = values

    @jali.site_function
    def f(X, a, out):
        a[X] = 2 * a[X]
        out[X] = a[X] + a[X + EX]

    f[EVEN](a, out)
    even = np.indices(LATTICE.extents).sum(axis=0) % 2 == 0
    assert np.array_equal(out[...], np.where(even, 2 * values + np.roll(values, -1, axis=0), 0))


def test_odd_offset_is_a_race_over_a_colour_where_an_odd_extent_joins_equal_parities():
    a = Field(Lattice(4, 3), Real())
    mu, nu = a.lattice.directions

    def f(X, a):
        a[X] += a[X + nu]

    with pytest.raises(TraceError, match="reads a at offset"):
        jali.site_function(f)[EVEN](a)


def test_write_at_an_offset_and_read_of_the_same_field_elsewhere_is_a_race():
    def f(X, a):
        a[X + EX] = a[X]  # here

    check(f, [make(Real())], "of a site that the same loop writes")


def test_offset_that_wraps_to_the_same_site_is_no_race():
    lattice = Lattice(1, 4)
    a = Field(lattice, Real())
    a[...] = np.arange(4.0)

    @jali.site_function
    def f(X, a):
        a[X] = 2 * a[X] + a[X + lattice.directions[0]]

    f(a)
    assert np.array_equal(a[...][0], 3 * np.arange(4.0))


# ---- calls ----


def test_wrong_number_of_arguments_names_the_parameters():
    @jali.site_function
    def f(X, out, a):
        out[X] = a[X]

    with pytest.raises(
        TraceError,
        match=r"f takes 2 arguments \(out, a\), 1 were given: a is missing; sums over sites are called as lattice.sum\(f",
    ):
        f(make(Real()))
    with pytest.raises(TraceError, match=r"f takes 2 arguments \(out, a\), 3 were given"):
        f(make(Real()), make(Real()), 1.0)
    with pytest.raises(TraceError, match="lattice.sum needs at least one of them left for the sum"):
        LATTICE.sum(f, make(Real()), make(Real()))


def test_sum_that_is_never_added_to_is_an_error():
    @jali.site_function
    def f(X, a, total, forgotten):
        total += a[X]

    with pytest.raises(TraceError, match="f never adds to its sum number 2"):
        LATTICE.sum(f, make(Real()))


def test_function_without_effect_is_an_error():
    @jali.site_function
    def f(X, a):
        _ = a[X] + 1

    with pytest.raises(TraceError, match="f neither writes a field nor adds to a sum"):
        f(make(Real()))


def test_returned_value_is_an_error():
    @jali.site_function
    def f(X, a):
        return a[X]

    with pytest.raises(TraceError, match="f returned a value; a site function writes fields"):
        f(make(Real()))


def test_function_without_site_is_an_error():
    with pytest.raises(TraceError, match="takes no site; its first parameter is the site"):

        @jali.site_function
        def f():
            pass


def test_variable_parameters_are_an_error():
    with pytest.raises(TraceError, match="the parameters of a site function have names"):

        @jali.site_function
        def f(X, *fields):
            pass


def test_argument_that_is_nothing_known_is_an_error():
    @jali.site_function
    def f(X, a, b):
        a[X] = 1

    with pytest.raises(TraceError, match="b: a dict cannot be an argument"):
        f(make(Real()), {})
    with pytest.raises(TraceError, match="b: an array of object cannot be used in a site function"):
        f(make(Real()), np.array([None]))


def test_whole_number_beyond_64_bits_is_an_error():
    @jali.site_function
    def f(X, a, n):
        a[X] = n

    with pytest.raises(
        TraceError, match="18446744073709551616 does not fit 64 bits.*as a real number it is written 1.8"
    ):
        f(make(Real()), 1 << 64)


def test_large_captured_array_is_an_error():
    table = np.zeros(5000)

    @jali.site_function
    def f(X, a):
        a[X] = table[3]

    with pytest.raises(TraceError, match="captures table, an array of 5000 numbers"):
        f(make(Real()))


def test_fields_of_two_lattices_are_an_error():
    @jali.site_function
    def f(X, a, b):
        a[X] = b[X]

    with pytest.raises(jali.LayoutError, match="lives on Lattice.*, another argument on Lattice"):
        f(make(Real()), Field(Lattice(4, 4, 4), Real()))


def test_call_without_fields_is_an_error():
    @jali.site_function
    def f(X, x):
        pass

    with pytest.raises(jali.LayoutError, match="f has no field argument, so its lattice is unknown"):
        f(1.0)


def test_symbols_outside_a_site_function_are_an_error():
    with pytest.raises(TraceError, match="can only be used inside a site function"):
        jali.identity(3)


def test_site_function_works_again_after_an_error():
    bad = True

    @jali.site_function
    def f(X, a):
        a[X] = "text" if bad else 2.0

    a = make(Real())
    with pytest.raises(TraceError):
        f(a)
    bad = False
    f(a)
    assert np.all(a[...] == 2)


def test_error_of_the_users_own_passes_through():
    class UserError(Exception):
        pass

    @jali.site_function
    def f(X, a):
        raise UserError("not jali's business")

    with pytest.raises(UserError):
        f(make(Real()))


def test_error_names_the_line_of_the_helper_that_is_wrong():
    def helper(X, a, b):
        return a[X] + b[X]  # here

    def f(X, a, b):
        a[X] = helper(X, a, b)

    with pytest.raises(TraceError) as caught:
        jali.site_function(f)(make(Matrix(3)), make(Vector(3)))
    assert re.search(rf"{re.escape(__file__)}:{wrong_line(helper)}$", str(caught.value))


# ---- fields and lattices ----


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Lattice(), "1 to 8 dimensions, not 0"),
        (lambda: Lattice(*[2] * 9), "1 to 8 dimensions, not 9"),
        (lambda: Lattice(4, 0), "positive whole numbers, not 0"),
        (lambda: Lattice(4, 2.5), "positive whole numbers, not 2.5"),
        (lambda: Lattice(4, 4, grid=(2, 2)), "4 ranks, but 1 are running"),
        (lambda: Field(LATTICE, Real), "a field holds an element type such as SU"),
        (lambda: Field(LATTICE, Real(), precision="half"), "precision 'half' is unknown"),
        (
            lambda: Field(LATTICE, Real(), precision="float32", storage="float64"),
            "not stored as float64; Real can be stored as float32",
        ),
        (
            lambda: Field(LATTICE, Real(), boundary="closed"),
            "boundary condition 'closed' in direction 0 is unknown",
        ),
        (lambda: Field(LATTICE, Real(), boundary=["open"]), "1 boundary conditions for 3 directions"),
        (lambda: Field(LATTICE, Real(), boundary={3: "open"}), "does not have"),
        (lambda: Field(LATTICE, Complex(), boundary=2.0), "has modulus 2.0, not 1"),
        (lambda: Field(LATTICE, Real(), boundary=1j), "cannot carry the complex phase"),
        (lambda: SU(0), "SU needs positive whole numbers, not 0"),
        (lambda: Matrix(2, kind="integer"), "kind is 'real' or 'complex'"),
        (lambda: make(Real()).set_local(np.zeros((4, 4))), "has shape"),
        (lambda: make(Real()).__setitem__((0, 0, 0), 1j), "is real, the array is complex128"),
        (lambda: make(Real())[0, 0, 0, 0], r"has shape \(4, 4, 4\); 4 indices were given"),
        (lambda: make(Real())["x", 0, 0], "given by whole numbers and slices"),
        (lambda: make(SU(2)).assign(make(SU(3))), r"cannot assign a field of SU\(3\) to one of SU\(2\)"),
    ],
)
def test_impossible_lattices_and_fields_say_why(make_it, message):
    with pytest.raises(jali.LayoutError, match=message):
        make_it()


def test_coordinate_outside_is_an_index_error():
    with pytest.raises(IndexError, match=r"index 4 of axis 1 is outside 0\.\.3"):
        make(Real())[0, 4, 0]
