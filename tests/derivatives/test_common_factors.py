"""Sums of products of matrices have their common factors taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Matrix
from jali.codegen.language import matrices
from jali.codegen.rewriting import reachable
from jali.codegen.state import current_trace
from jali.codegen.values import Value
from jali.derivatives.common_factors import without_common_factors
from jali.gauge import SU, GaugeField, iwasaki_action, wilson_action
from jali.gauge.link_terms import LinkTerms


def products(function: Any, *arguments: Any) -> int:
    """Of the values of a function of a field and more, which also adds to a sum."""
    program = function.program_of(*arguments)
    nodes = reachable([effect.value for effect in program.effects])
    return sum(matrices.matmul.made(node) or matrices.matmul_add.made(node) for node in nodes)


SUMS: dict[str, tuple[Callable[..., Any], int]] = {
    "on the left": (lambda a, b, c, d: a * b + a * c - 2.0 * (a * d), 1),
    "on both sides": (lambda a, b, c, d: a * b * d - a * c * d, 2),
    "of adjoints": (lambda a, b, c, d: (b * a).dagger() - 3.0 * (a.dagger() * c), 1),
    "in a product": (lambda a, b, c, d: (a * b + a * c) * d + a * d, 2),
    "with signs": (lambda a, b, c, d: -(a * b) - a * c, 1),
    "none": (lambda a, b, c, d: a * b + c * d, 2),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_has_fewer_products_and_the_same_value(name: str) -> None:
    formula, most = SUMS[name]

    @jali.site_function
    def plain(X, out, a, b, c, d, total):
        out[X] = formula(a[X], b[X], c[X], d[X])
        total += 1.0

    @jali.site_function
    def factored(X, out, a, b, c, d, total):
        value = formula(a[X], b[X], c[X], d[X])
        found = Value(without_common_factors(current_trace().builder, value.node))
        assert name != "none" or found.node is value.node
        out[X] = found
        total += 1.0

    lattice, chance = Lattice(4), np.random.default_rng(5)
    fields = [Field(lattice, Matrix(3)) for _ in range(4)]
    for field in fields:
        field[...] = chance.normal(size=field.shape) + 1j * chance.normal(size=field.shape)
    out = [Field(lattice, Matrix(3)) for _ in range(2)]
    lattice.sum(plain, out[0], *fields)
    lattice.sum(factored, out[1], *fields)
    assert np.allclose(out[0][...], out[1][...], rtol=1e-13, atol=1e-13)
    assert products(factored, lattice, out[1], *fields) == most


def test_sums_that_are_made_of_themselves_are_not_multiplied_out() -> None:
    """Multiplied out, 40 steps of x <- x + x m would be more words than there are atoms, and 40 squares as many letters."""

    @jali.site_function
    def grow(X, x, m, total):
        value = x[X]
        for _ in range(40):
            value = 0.5 * (value + value * m[X])
        for _ in range(40):
            value = 0.1 * (value * value)
        for _ in range(1500):  # deeper than Python's recursion
            value = value + m[X]
        found = Value(without_common_factors(current_trace().builder, value.node))
        total += found.trace().real

    lattice = Lattice(2)
    x, m = (Field(lattice, Matrix(2)) for _ in range(2))
    assert products(grow, lattice, x, m) == 80


@pytest.mark.parametrize(("action", "most"), [(wilson_action(6.0), 12), (iwasaki_action(2.6), 62)])
def test_derived_staples_take_no_more_products_than_those_by_hand(action: Any, most: int) -> None:
    """The products of staples by hand."""

    @jali.site_function
    def staples(X, out, U, mu, staple, given, total):
        out[X] = staple(X, U, mu, *given)
        total += 1.0

    lattice = Lattice(4, 4, 4, 4)
    U = GaugeField(lattice, SU(3)).cold_start()
    terms = LinkTerms.of_links(action, U)
    out = Field(lattice, Matrix(3))
    assert products(staples, lattice, out, U, lattice.directions[1], terms.staple, terms.given) == most
