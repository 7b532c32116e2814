"""What has no derivative is refused, with a message that says why and names the user's line."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jali
from jali import SU, Algebra, Complex, Field, Lattice, Matrix, ParameterError, Real, TraceError, Vector


def fields(count: int, element: Any = None, **options: Any) -> list[Field]:
    lattice = Lattice(4, 4)
    found = [Field(lattice, element or Complex(), **options) for _ in range(count)]
    for field in found:
        field[...] = 1.0 if not field.element.type.shape else field[...] * 0
    return found


def refused(call: Callable[[], Any], message: str, line: str = "") -> None:
    """The call raises a TraceError that says `message` and names a line that contains `line`."""
    with pytest.raises(TraceError, match=message) as caught:
        call()
    if line:
        place = re.search(r"at (\S+\.py):(\d+)", str(caught.value))
        assert place, f"no line is named: {caught.value}"
        assert place[1] == __file__, place[0]
        assert line in linecache.getline(place[1], int(place[2])), place[0]


def linear(
    body: Callable[..., None], message: str, line: str, inner: str = "complex", element: Any = None
) -> None:
    """The adjoint of a function of one field is refused."""
    out, x = fields(2, element)
    function = jali.site_function(body)
    refused(lambda: jali.adjoint(function, "x", inner=inner)(out, x), message, line)


def test_a_product_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        total = x[X] + x[X]
        out[X] = total * x[X + X.directions()[0]]  # here

    linear(body, "the product of two values that depend on x is not linear", "# here")


def test_a_quotient_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X] + 1.0 / x[X]  # here

    linear(body, "quotient of x is not linear", "# here")


def test_a_norm_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        size = x[X].norm2()  # here
        out[X] = x[X] + size

    linear(body, "norm2 of x is not linear", "# here")


def test_an_elementary_function_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = jali.sin(x[X])  # here

    linear(body, "sin of x is not linear", "# here", element=Real())


def test_a_matrix_function_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X].inverse()  # here

    linear(body, "inverse of x is not linear", "# here", element=Matrix(2))


def test_a_constant_that_is_added_is_named() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        y = 2.0 * x[X]
        out[X] = y + 1.0  # here

    linear(body, "linear but for a constant, and has no adjoint", "# here")


def test_what_does_not_depend_on_the_field_is_named() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = jali.complex(1.0 * X.coordinate(0), 2.0)  # here

    linear(body, "does not depend on x", "# here")


def test_a_comparison_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        positive = x[X] > 0.0  # here
        out[X] = jali.where(positive, x[X], -x[X])

    linear(body, "a comparison or a whole number is made of x: that is not linear", "# here", element=Real())


def test_the_modulus_is_not_linear() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X] + abs(x[X])  # here

    linear(body, "abs of x is not linear", "# here")


REAL = 'inner="real" takes the real part of that'


def test_conjugates_have_no_adjoint_under_the_complex_product() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = 2.0 * x[X].conj()  # here

    linear(body, "linear in the conjugate of x, so it has no adjoint under sum conj.a. b.*" + REAL, "# here")


def test_sums_with_conjugates_have_no_adjoint_under_the_complex_product() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X] + x[X].conj()  # here

    linear(body, "linear in x over the real numbers alone.*" + REAL, "# here")


def test_real_parts_have_no_adjoint_under_the_complex_product() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = 1j * x[X].real  # here

    linear(body, "linear in x over the real numbers alone.*" + REAL, "# here")


def test_transposes_and_conjugates_are_of_linear_functions() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X] * x[X]  # here

    function = jali.site_function(body)
    out, x = fields(2)
    refused(lambda: jali.transpose(function, "x")(out, x), "is not linear", "# here")
    refused(lambda: jali.conjugate(function, "x")(out, x), "is not linear", "# here")


@jali.site_function
def summed(X: Any, x: Any, total: Any) -> None:
    total += x[X] * x[X]  # the sum


@jali.site_function
def highest(X: Any, x: Any, total: Any) -> None:
    total.max(x[X].real)  # the maximum


@jali.site_function
def lowest(X: Any, x: Any, total: Any) -> None:
    total.min(x[X].real)  # the minimum


@jali.site_function
def squared(X: Any, out: Any, x: Any) -> None:
    out[X] = x[X] * x[X]


def test_what_reads_neighbours_that_it_writes_is_refused() -> None:
    def body(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X] + out[X + X.directions()[0]]  # here

    out, x = fields(2)
    function = jali.site_function(body)
    refused(
        lambda: jali.pullback(function, "x")(x.like(), out, x), "reads out, which it also writes", "# here"
    )


def test_a_complex_sum_has_no_gradient() -> None:
    g, x = fields(2)
    refused(
        lambda: jali.gradient(summed, "x")(g, x),
        "gradient is that of a real number: take .real or .imag",
        "# the sum",
    )


def test_maxima_and_minima_have_no_derivative() -> None:
    g, x = fields(2)
    refused(
        lambda: jali.gradient(highest, "x")(g, x), "the max over sites has no derivative", "# the maximum"
    )
    refused(lambda: jali.gradient(lowest, "x")(g, x), "the min over sites has no derivative", "# the minimum")
    tangent = jali.tangent(lowest, "x", total="total")
    refused(lambda: x.lattice.sum(tangent, g, x), "the min over sites has no derivative", "# the minimum")


def test_the_sum_is_none_of_the_fields() -> None:
    g, x = fields(2)
    gradient = jali.gradient(squared, "x", total="out")
    refused(lambda: gradient(g, x), "an entry of out can only be added to", "out[X] = x[X] * x[X]")


def test_rejection_loops_have_no_derivative() -> None:
    def body(X: Any, out: Any, x: Any, rng: Any) -> None:
        def attempt() -> Any:
            return rng.uniform(X) < 0.9, rng.uniform(X) * x[X]

        out[X] = X.repeat_until(attempt, limit=10, otherwise=0.0)  # here

    function = jali.site_function(body)
    found, out, x = fields(3, Real())
    for derive in (jali.pullback, jali.tangent):
        derived = derive(function, "x")
        message = "what repeat_until accepts has no derivative"
        refused(lambda derived=derived: derived(found, out, x, jali.Random(1)), message, "# here")


def test_names_are_those_of_parameters() -> None:
    for derive in (jali.adjoint, jali.transpose, jali.conjugate, jali.gradient, jali.pullback, jali.tangent):
        for names in ("y", ("x", "y"), 3, (), ("x", "x")):
            with pytest.raises(ParameterError, match="of= names|names one parameter"):
                derive(squared, names)
    with pytest.raises(ParameterError, match="total= is the parameter of summed that is a sum"):
        jali.gradient(summed, "x", total="y")
    with pytest.raises(
        ParameterError, match="takes a function that sums: the last parameter of summed is its sum"
    ):
        jali.gradient(summed, "total")
    with pytest.raises(ParameterError, match='inner= is "complex" or "real", not'):
        jali.adjoint(squared, "x", inner="euclidean")


def test_only_site_functions_have_derivatives() -> None:
    for derive in (jali.adjoint, jali.transpose, jali.conjugate, jali.gradient, jali.pullback, jali.tangent):
        with pytest.raises(ParameterError, match="takes a function decorated by jali.site_function"):
            derive(abs, "x")


def test_derivatives_are_with_respect_to_fields() -> None:
    @jali.site_function
    def scaled(X: Any, out: Any, x: Any, a: Any) -> None:
        out[X] = a * x[X]

    out, x = fields(2)
    refused(
        lambda: jali.adjoint(scaled, "a")(out, x, 2.0),
        "a is no field: derivatives are with respect to fields",
    )


def test_what_is_read_and_written_is_refused() -> None:
    @jali.site_function
    def updated(X: Any, x: Any, y: Any) -> None:
        x[X] = x[X] * y[X]  # here

    g, x, y = fields(3)
    refused(lambda: jali.pullback(updated, "y")(g, x, y), "updated reads x, which it also writes", "# here")


def test_the_adjoint_is_not_by_what_is_written() -> None:
    out, x = fields(2)

    @jali.site_function
    def doubled(X: Any, out: Any, x: Any) -> None:
        out[X] = 2.0 * x[X]  # here

    refused(lambda: jali.adjoint(doubled, "out")(out, x), "doubled writes out, which of= names", "# here")


def test_a_weight_is_wanted_where_it_was_announced() -> None:
    g, x = fields(2)

    @jali.site_function
    def real_sum(X: Any, x: Any, total: Any) -> None:
        total[jali.floor(x[X].real)] += x[X].norm2()  # here

    gradient = jali.gradient(real_sum, "x", weighted=True)
    refused(lambda: gradient(g, x), "weight of total is missing")
    message = (
        "the weight of an entry is looked up by a whole number, and the label of total is a rounded real one"
    )
    refused(lambda: gradient(g, x, np.ones(4)), message, "# here")


def test_links_get_fields_of_the_algebra() -> None:
    @jali.site_function
    def traced(X: Any, U: Any, total: Any) -> None:
        total += U[X].trace().real

    lattice = Lattice(4, 4)
    U = Field(lattice, SU(3))
    U[...] = np.eye(3)
    refused(
        lambda: jali.gradient(traced, "U")(Field(lattice, SU(3)), U),
        "is a field of Algebra or of Matrix, not of",
    )
    wrong = Field(lattice, Vector(3))
    refused(lambda: jali.gradient(traced, "U")(wrong, U), "cannot be stored in dU, which holds Vector")


def test_cotangents_of_links_are_matrices_and_changes_are_of_the_algebra() -> None:
    @jali.site_function
    def exponential(X: Any, V: Any, A: Any) -> None:
        V[X] = A[X].exp()  # here

    lattice = Lattice(4, 4)
    V, A, B = Field(lattice, SU(2)), Field(lattice, Algebra(2)), Field(lattice, Algebra(2))
    V[...], A[...] = np.eye(2), np.zeros((2, 2))
    refused(
        lambda: jali.pullback(exponential, "A")(B, V, A),
        "the cotangent of V.* is a field of Matrix",
        "# here",
    )
    refused(
        lambda: jali.tangent(exponential, "A")(A, V, B), "the change of V.* is a field of Algebra", "# here"
    )


def test_members_that_arguments_name() -> None:
    @jali.site_function
    def member(X: Any, out: Any, x: Any, k: Any) -> None:
        out[X] = x[X, k]

    lattice = Lattice(4, 4)
    out, x = Field(lattice, Complex()), Field(lattice, Complex(), batch=3)
    out[...], x[...] = 1.0, np.ones((4, 4, 3))
    refused(
        lambda: jali.adjoint(member, "x")(out, x, 1), "the member that is read here is named by an argument"
    )


def test_lists_have_a_field_for_each() -> None:
    @jali.site_function
    def traced(X: Any, x: Any, total: Any) -> None:
        total += x[0][X].norm2() + x[1][X].norm2()

    a, b, g = fields(3)
    refused(lambda: jali.gradient(traced, "x")([g], [a, b]), "x has 2 fields, and what belongs to them 1")


def test_values_of_fields_whose_boundaries_differ() -> None:
    @jali.site_function
    def moved(X: Any, out: Any, x: Any) -> None:
        out[X] = x[X + X.directions()[0]]  # here

    lattice = Lattice(4, 4)
    out, x = Field(lattice, Complex(), boundary="open"), Field(lattice, Complex())
    out[...] = x[...] = 1.0
    refused(lambda: jali.adjoint(moved, "x")(out, x), "out is open in direction 0, where x goes on", "# here")
