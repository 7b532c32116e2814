"""Every operation's pullback and tangent, held against differences of sixth order, and its second derivatives too.

A formula is a function of values at a site. Those of a group share their kernels; each has fields of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from spaces import (
    change_of,
    cotangent_of,
    exp_of,
    fields,
    in_algebra,
    inner,
    is_group,
    normal,
    stepped,
    turned,
    values_of,
)

import jali
from jali import SU, Algebra, Complex, Hermitian, Lattice, Matrix, Real, Vector
from jali.codegen.language import elementary, groups
from jali.codegen.operation import OPERATIONS
from jali.codegen.rewriting import reachable
from jali.codegen.state import current_trace
from jali.codegen.types import Element
from jali.codegen.values import Value

EXTENTS = (4, 3)
STEP = 2.0**-9

ELEMENTS = {"r": Real(), "c": Complex()}
for _n in range(1, 6):
    ELEMENTS[f"a{_n}"], ELEMENTS[f"h{_n}"], ELEMENTS[f"u{_n}"] = Algebra(_n), Hermitian(_n), SU(_n)
    ELEMENTS[f"v{_n}"], ELEMENTS[f"x{_n}"] = Vector(_n), Vector(_n, kind="real")
    for _m in range(1, 6):
        ELEMENTS[f"m{_n}{_m}"], ELEMENTS[f"w{_n}{_m}"] = Matrix(_n, _m), Matrix(_n, _m, kind="real")
for _n in (6, 9):
    ELEMENTS[f"v{_n}"] = Vector(_n)


def _magnitude(low: float, high: float) -> Callable[..., Any]:
    return lambda rng, extents, element: rng.uniform(low, high, (*extents, *element.numpy_shape))


def _away_from_zero(rng: Any, extents: Any, element: Element) -> Any:
    found = normal(rng, extents, element)
    return found * (1 + 0.5 / abs(found))


def _between_whole_numbers(rng: Any, extents: Any, element: Element) -> Any:
    shape = (*extents, *element.numpy_shape)
    return rng.integers(-3, 3, shape) + rng.uniform(0.1, 0.4, shape) + 0.5 * rng.integers(0, 2, shape)


def _near_twice_one(rng: Any, extents: Any, element: Element) -> Any:
    return 2 * np.eye(element.type.shape[0]) + 0.4 * normal(rng, extents, element)


def _positive_definite(rng: Any, extents: Any, element: Element) -> Any:
    n = element.type.shape[0]
    m = normal(rng, extents, Matrix(n))
    return m @ turned(m) / n + np.eye(n)


def _scaled(size: float) -> Callable[..., Any]:
    return lambda rng, extents, element: size * normal(rng, extents, element)


def _of_norm(size: float) -> Callable[..., Any]:
    def fill(rng: Any, extents: Any, element: Element) -> Any:
        found = normal(rng, extents, element)
        return size * found / np.linalg.norm(found, axis=(-2, -1), keepdims=True)

    return fill


def _turned_diagonal(*eigenvalues: float) -> Callable[..., Any]:
    """i times Hermitian matrices of these eigenvalues."""

    def fill(rng: Any, extents: Any, element: Element) -> Any:
        n = element.type.shape[0]
        u = exp_of(normal(rng, extents, Algebra(n)))
        return in_algebra(u @ np.diag(1j * np.array(eigenvalues)) @ turned(u))

    return fill


def _one_site_each(*fills: Callable[..., Any]) -> Callable[..., Any]:
    """Of each of these one site, in turn."""

    def fill(rng: Any, extents: Any, element: Element) -> Any:
        each = [one(rng, extents, element) for one in fills]
        found = each[0].copy()
        for k, site in enumerate(np.ndindex(*extents)):
            found[site] = each[k % len(each)][site]
        return found

    return fill


FILLS: dict[str, Callable[..., Any]] = {
    "": normal,
    "positive": _magnitude(0.4, 2.0),
    "inside": _magnitude(-0.7, 0.7),
    "nonzero": _away_from_zero,
    "broken": _between_whole_numbers,
    "regular": _near_twice_one,
    "definite": _positive_definite,
    "zero": _scaled(0.0),
    "norm1": _of_norm(1.0),
    "any": _one_site_each(_scaled(0.0), _of_norm(1.0), _of_norm(3.0)),
    "any2": _one_site_each(_scaled(0.0), _scaled(0.02), _scaled(0.1), _of_norm(1.0), _of_norm(3.0)),
    "any3": _one_site_each(
        _scaled(0.0),
        _scaled(0.02),
        _of_norm(1.0),
        _of_norm(3.0),
        _of_norm(6.0),
        _turned_diagonal(1.0, 1.0, -2.0),
        _turned_diagonal(-0.6, -0.6, 1.2),
        _turned_diagonal(1.0, 1.0 + 1e-5, -2.0 - 1e-5),
        _turned_diagonal(0.9, 1.0, -1.9),
        _turned_diagonal(1.3, 0.0, -1.3),
        _turned_diagonal(0.5, 0.0, -0.5),  # where the series ends
        _turned_diagonal(-0.3, -0.3001, 0.6001),
    ),
    "any4": _one_site_each(
        _scaled(0.0), _of_norm(1.0), _of_norm(3.0), _turned_diagonal(1.0, 1.0, -1.0, -1.0)
    ),
}


@dataclass
class Formula:
    """`takes` are words for its inputs, "m33 regular", `gives` is one for its value; `second`: its second derivative is tested, too."""

    name: str
    function: Callable[..., Any]
    takes: tuple[str, ...]
    gives: str

    def elements(self) -> list[Element]:
        return [ELEMENTS[word.split(" ")[0]] for word in self.takes]

    def drawn(self, rng: Any) -> list[Any]:
        found = []
        for word in self.takes:
            name, _, fill = word.partition(" ")
            found.append(FILLS[fill](rng, EXTENTS, ELEMENTS[name]))
        return found


def given(name: str, gives: str, function: Callable[..., Any], *takes: str) -> Formula:
    return Formula(name, function, takes, gives)


def _arithmetic() -> list[Formula]:
    kinds = {"r": "real", "c": "complex"}
    found = []
    for a in "rc":
        for b in "rc":
            both = "c" if "c" in (a, b) else "r"
            words = f"of {kinds[a]} and {kinds[b]} numbers"
            found += [
                given(f"sum {words}", both, lambda x, y: x + 2 * y, a, b),
                given(f"difference {words}", both, lambda x, y: 3 * x - y, a, b),
                given(f"product {words}", both, lambda x, y: x * y, a, b),
                given(f"quotient {words}", both, lambda x, y: x / y, a, f"{b} nonzero"),
            ]
            for shaped, wide in (("x3", "v3"), ("v3", "v3"), ("w23", "m23"), ("m23", "m23")):
                kind = "c" if shaped in ("v3", "m23") else "r"
                if kind == b and a == "r":
                    into = wide if "c" in (a, kind) else shaped
                    found += [given(f"real number times {shaped}", into, lambda x, y: x * y, a, shaped)]
                if kind == b and a == "c":
                    found += [given(f"complex number times {shaped}", wide, lambda x, y: x * y, a, shaped)]
    found += [
        given("matrix over a real number", "m23", lambda m, x: m / x, "m23", "r nonzero"),
        given("matrix over a complex number", "m23", lambda m, x: m / x, "m23", "c nonzero"),
        given("sum of matrices", "m33", lambda m, n: -(m + 0.5 * n) - n, "m33", "m33"),
        given("real and complex matrix", "m22", lambda m, n: m - n, "w22", "m22"),
        given("square of what stands twice", "c", lambda z: z * z * 0.5 - z, "c"),
        given("products with i", "c", lambda z: 1j * z - (2 + 0.5j) * z, "c"),
        given("complex numbers times a real one", "c", lambda x: (1 + 2j) * x, "r"),
        given("conjugate", "c", lambda z: z.conj() * z * z, "c"),
        given("conjugate of a vector", "v3", lambda v: v.conj() * 2j, "v3"),
        given("power", "r", lambda x: x**3, "r"),
        given("power of a complex number", "c", lambda z: z**3 + z**-2, "c nonzero"),
        given("real part", "r", lambda z: (z * z).real, "c"),
        given("imaginary part", "r", lambda z: (z * z).imag, "c"),
        given("real part of a matrix", "w22", lambda m: (m * m).real, "m22"),
        given("imaginary part of a vector", "x3", lambda m: m.imag * 2, "v3"),
        given("complex of two", "c", lambda x, y: jali.complex(x * y, x - y) ** 2, "r", "r"),
        given("complex of one", "c", lambda x: jali.complex(0.5, x) ** 2, "r"),
        given("choice", "c", lambda x, a, b: jali.where(x > 0.0, a * a, b), "r nonzero", "c", "c"),
        given("choice of a matrix", "m22", lambda x, a: jali.where(x < 0.0, a, a * a), "r nonzero", "m22"),
        given("choice or zero", "r", lambda x, a: jali.where(x < 0.0, a * a, 0.0), "r nonzero", "r"),
    ]
    return found


def function_named(name: str) -> Callable[..., Any]:
    function = getattr(jali, name)
    return lambda x: function(x)


def _elementary() -> list[Formula]:
    ranges = {
        "exp": "", "log": "positive", "sqrt": "positive", "sin": "", "cos": "", "tan": "inside", "sinh": "", "cosh": "", "tanh": "",
        "asin": "inside", "acos": "inside", "atan": "", "floor": "broken", "ceil": "broken", "round": "broken", "sign": "nonzero",
    }  # fmt: skip
    found = [given(name, "r", function_named(name), f"r {fill}".strip()) for name, fill in ranges.items()]
    found += [
        given("abs", "r", lambda x: abs(x) * x, "r nonzero"),
        given("modulus", "r", lambda z: abs(z), "c nonzero"),
        given("arg", "r", jali.arg, "c positive"),
        given("atan2", "r", jali.atan2, "r nonzero", "r nonzero"),
        given("pow", "r", jali.power, "r positive", "r"),
        given("power of a half", "r", lambda x: x**2.5, "r positive"),
        given("number to the power", "r", lambda x: 1.7**x, "r"),
        given("minimum", "r", lambda x, y: jali.minimum(x * x, 2 * y), "r", "r"),
        given("maximum", "r", lambda x, y: jali.maximum(x * x, 2 * y), "r", "r"),
        given("exp of a complex number", "c", jali.exp, "c"),
        given("log of a complex number", "c", jali.log, "c positive"),
        given("sqrt of a complex number", "c", jali.sqrt, "c positive"),
        given("functions of functions", "r", lambda x: jali.sin(jali.exp(jali.cos(x)) * x), "r"),
    ]
    return found


def _turned(x: Any, how: str) -> Any:
    return x.dagger() if how == "dagger" else x.transpose() if how else x


def _products() -> list[Formula]:
    found = []
    for a, b, into in (("m", "m", "m"), ("w", "w", "w"), ("m", "w", "m"), ("w", "m", "m")):
        for left in ("", "dagger", "transpose"):
            for right in ("", "dagger", "transpose"):
                takes = f"{a}{'32' if left else '23'}", f"{b}{'43' if right else '34'}"

                def product(x: Any, y: Any, left: str = left, right: str = right) -> Any:
                    return _turned(x, left) * _turned(y, right)

                found.append(given(f"{a} {left} times {b} {right}", f"{into}24", product, *takes))
    for a, v in (("m", "v"), ("w", "x"), ("m", "x"), ("w", "v")):
        into = "x2" if (a, v) == ("w", "x") else "v2"
        found += [
            given(f"{a} times {v}", into, lambda x, y: x * y, f"{a}23", f"{v}3"),
            given(f"{a} dagger times {v}", into, lambda x, y: x.dagger() * y, f"{a}32", f"{v}3"),
        ]
    return found


def _contractions() -> list[Formula]:
    found = []
    for a, v, number in (("m", "v", "c"), ("w", "x", "r")):
        for left in ("", "dagger"):
            for right in ("", "dagger"):
                takes = f"{a}{'32' if left else '23'}", f"{a}{'23' if right else '32'}"

                def product(x: Any, y: Any, left: str = left, right: str = right) -> Any:
                    return _turned(x, left) * _turned(y, right)

                words = f"of {a} {left} times {a} {right}"
                found += [
                    given(f"trace {words}", number, lambda x, y, p=product: p(x, y).trace(), *takes),
                    given(f"real trace {words}", "r", lambda x, y, p=product: p(x, y).trace().real, *takes),
                ]
        found += [
            given(f"trace of {a}", number, lambda x: x.trace() * 2.0, f"{a}33"),
            given(f"outer of {v}", f"{a}32", lambda x, y: x.outer(y), f"{v}3", f"{v}2"),
            given(f"dot of {v}", number, lambda x, y: x.dot(y), f"{v}3", f"{v}3"),
            given(f"dot of {a}", number, lambda x, y: x.dot(y), f"{a}23", f"{a}23"),
            given(f"norm2 of {v}", "r", lambda x: x.norm2(), f"{v}3"),
            given(f"norm2 of {a}", "r", lambda x: x.norm2() * x[0, 1].real, f"{a}23"),
            given(f"norm2 of {number}", "r", lambda x: x.norm2(), number),
            given(f"transpose of {a}", f"{a}32", lambda x: x.transpose() * 2.0, f"{a}23"),
            given(f"dagger of {a}", f"{a}32", lambda x: x.dagger() * 2.0, f"{a}23"),
        ]
    found += [
        given("outer of real and complex", "m32", lambda x, y: x.outer(y), "x3", "v2"),
        given("dot of real and complex", "c", lambda x, y: x.dot(y), "x3", "v3"),
        given("imaginary part of a trace", "r", lambda x: x.trace().imag * x[0, 0].real, "m33"),
        given(
            "imaginary part of a trace of a product",
            "r",
            lambda x, y: (x * y.dagger()).trace().imag,
            "m23",
            "m23",
        ),
        given("component", "c", lambda x: x[1, 2] * x[0, 0], "m23"),
        given("components of a vector", "r", lambda x: x[1] * x[-1], "x3"),
        given("block", "m22", lambda x: x[:, 1:] * x[0, 0], "m23"),
        given("column", "v2", lambda x: x[:, 1] * x[0, 0], "m23"),
        given("component that is set", "m22", _with_component, "m22", "c"),
        given("reshape", "m23", lambda x: x.reshape(2, 3) * x[0], "v6"),
        given("reshape of a matrix", "v6", lambda x: x.reshape(6) * x[0, 0], "m23"),
        given("diagonal", "v3", lambda x: x.diagonal() * 2j, "m33"),
        given("diagonal matrix", "m33", lambda x: jali.diagonal(x) * jali.diagonal(x), "v3"),
        given("stack", "m23", lambda x, y: jali.stack([x, x[0] * y]), "v3", "v3"),
        given("concatenate", "v5", lambda x, y: jali.concatenate([x, y[0] * y]), "v2", "v3"),
        given("matrix of numbers", "m22", lambda x, z: jali.matrix([[x, z], [z * z, 1.0]]), "r", "c"),
        given("vector of numbers", "x3", lambda x: jali.vector([x, x * x, 2.0]), "r"),
        given("unit matrix", "m33", lambda z: z * jali.identity(3) + z * z * jali.identity(3), "c"),
        given("phase of U(1) times a vector", "v3", lambda u, v: u * v, "u1", "v3"),
        given("phase of U(1) as a number", "c", lambda u, z: (u * u.dagger() * u + z) * u, "u1", "c"),
    ]
    return found


def _with_component(x: Any, z: Any) -> Any:
    y = x.copy()
    y[0, 1] = z * x[0, 0]
    y[1, 1] *= z
    return y


def _matrices() -> list[Formula]:
    found = []
    for n in range(1, 6):
        found.append(given(f"det of {n} rows", "c", lambda m: m.det(), f"m{n}{n} regular"))
    for n in range(1, 5):
        found += [
            given(f"inverse of {n} rows", f"m{n}{n}", lambda m: m.inverse(), f"m{n}{n} regular"),
            given(f"Hermitian inverse of {n} rows", f"h{n}", lambda m: m.inverse(), f"h{n} definite"),
        ]
    found += [
        given("real det", "r", lambda m: m.det(), "w33 regular"),
        given("real inverse", "w22", lambda m: m.inverse(), "w22 regular"),
        given("det of a Hermitian matrix", "r", lambda m: m.det().real, "h3 definite"),
        given("det of a product", "c", lambda m, k: (m * k).det(), "m22", "m22"),
        given("Hermitian inverse times a vector", "v3", lambda m, v: m.inverse() * v, "h3 definite", "v3"),
        given("det of a singular matrix", "c", lambda m: m.det(), "m33 zero"),
    ]
    return found


def _exponentials() -> list[Formula]:
    found = []
    for n in (3, 2, 1, 4):
        fill = f"any{n}" if n > 1 else ""
        found.append(given(f"exp of algebra({n})", f"m{n}{n}", lambda a: a.exp(), f"a{n} {fill}".strip()))
    for n in (1, 2, 3):
        found.append(given(f"exp of {n} rows", f"m{n}{n}", lambda a: a.exp(), f"m{n}{n} any"))
        found.append(given(f"exp of i Hermitian({n})", f"m{n}{n}", lambda a: (1j * a).exp(), f"h{n} norm1"))
    found += [
        given("real exp", "w22", lambda a: a.exp(), "w22 norm1"),
        given("exp of a projection", "m33", lambda a: a.traceless_antihermitian().exp(), "m33"),
        given("exp times link", "u3", lambda a, u: a.exp() * u, "a3", "u3"),
        given("exp times link of SU(2)", "u2", lambda a, u: a.exp() * u * u, "a2", "u2"),
        given("stout step", "u3", _stout, "u3", "m33"),
    ]
    for n in (2, 3):
        takes = f"a{n} any{n}", f"a{n}"
        found += [
            given(f"change of exp of {n} rows", f"a{n}", _exp_changed, *takes),
            given(f"pullback of exp of {n} rows", f"a{n}", _exp_pulled_back, *takes),
        ]
    return found


def _exp_changed(a: Any, b: Any) -> Any:
    found = Value(groups.exp_changed(current_trace().builder, a.node, b.node))
    return found.traceless_antihermitian()


def _exp_pulled_back(a: Any, b: Any) -> Any:
    found = Value(groups.exp_pulled_back(current_trace().builder, a.node, b.node))
    return found.traceless_antihermitian()


def _stout(u: Any, staple: Any) -> Any:
    return (0.1 * (staple * u.dagger()).traceless_antihermitian()).exp() * u


def _projections() -> list[Formula]:
    found = []
    for n in range(1, 5):
        found += [
            given(f"reunitarise of {n} rows", f"m{n}{n}", lambda m: m.reunitarise(), f"m{n}{n} regular"),
            given(
                f"algebra part of {n} rows", f"a{n}", lambda m: (m * m).traceless_antihermitian(), f"m{n}{n}"
            ),
            given(f"Hermitian part of {n} rows", f"h{n}", lambda m: (m * m).hermitian(), f"m{n}{n}"),
        ]
    found += [
        given("reunitarise of links", "u3", lambda u, m: (u + 0.1 * m).reunitarise(), "u3", "m33"),
        given("real Hermitian part", "w22", lambda m: m.hermitian(), "w22"),
    ]
    return found


def _polar() -> list[Formula]:
    return [
        given(f"project of {n} rows", f"m{n}{n}", jali.gauge.groups.project, f"m{n}{n} regular")
        for n in (1, 2, 3)
    ]


def _polar_of_four_rows() -> list[Formula]:
    return [given("project of 4 rows", "m44", jali.gauge.groups.project, "m44 regular")]


def _definite() -> list[Formula]:
    found = []
    for n in range(1, 4):
        found += [
            given(f"cholesky of {n} rows", f"m{n}{n}", lambda h: h.cholesky(), f"h{n} definite"),
            given(f"solve of {n} rows", f"v{n}", lambda h, v: h.solve(v), f"h{n} definite", f"v{n}"),
            given(f"log_det of {n} rows", "r", lambda h: h.log_det(), f"h{n} definite"),
        ]
    found += [
        given("solve for columns", "m32", lambda h, m: h.solve(m), "h3 definite", "m32"),
        given("solve with a Hermitian part", "v3", lambda m, v: m.hermitian().solve(v), "m33 regular", "v3"),
        given(
            "real cholesky",
            "w22",
            lambda m: (m * m.transpose() + jali.identity(2)).hermitian().cholesky(),
            "w22",
        ),
        given("real solve", "x2", lambda m, x: m.hermitian().solve(x), "w22 regular", "x2"),
        given("real log_det", "r", lambda m: m.hermitian().log_det(), "w33 regular"),
    ]
    return found


GROUPS: dict[str, Callable[[], list[Formula]]] = {
    "arithmetic": _arithmetic,
    "elementary": _elementary,
    "products": _products,
    "contractions": _contractions,
    "matrices": _matrices,
    "exponentials": _exponentials,
    "projections": _projections,
    "polar": _polar,
    "polar of four rows": _polar_of_four_rows,
    "definite": _definite,
}


def computing(formulas: list[tuple[Any, list[int]]]) -> Any:
    """A site function that computes formulas, each of its own inputs."""

    def body(X: Any, ins: Any, outs: Any) -> None:
        for out, (formula, own) in zip(outs, formulas, strict=True):
            out[X] = formula(*[ins[j][X] for j in own])

    return jali.site_function(body)


class Together:
    """The formulas of a group: functions that compute all of them, and points at which they do."""

    def __init__(self, name: str):
        self.formulas = GROUPS[name]()
        self.own: list[list[int]] = []
        count = 0
        for formula in self.formulas:
            self.own.append(list(range(count, count + len(formula.takes))))
            count += len(formula.takes)
        self.takes = [element for formula in self.formulas for element in formula.elements()]
        self.gives = [ELEMENTS[formula.gives] for formula in self.formulas]

        self.function = computing([(f.function, own) for f, own in zip(self.formulas, self.own, strict=True)])
        self.pullback = jali.pullback(self.function, "ins")
        self.tangent = jali.tangent(self.function, "ins")
        self.second = jali.tangent(self.pullback, "ins")
        rng = np.random.default_rng(5)
        self.points = [values for formula in self.formulas for values in formula.drawn(rng)]
        self.changes = [normal(rng, EXTENTS, change_of(element)) for element in self.takes]
        self.cotangents = [normal(rng, EXTENTS, cotangent_of(element)) for element in self.gives]

    def moved(self, size: float) -> list[Any]:
        return [
            stepped(x, element, d, size)
            for x, element, d in zip(self.points, self.takes, self.changes, strict=True)
        ]

    def computed(self, precision: str = "float64", points: Any = None) -> list[Any]:
        lattice, at = Lattice(*EXTENTS), self.points if points is None else points
        outs = fields(lattice, self.gives, precision=precision)
        self.function(fields(lattice, self.takes, at, precision=precision), outs)
        return values_of(outs)

    def tangents(self, precision: str = "float64") -> list[Any]:
        lattice = Lattice(*EXTENTS)
        ins = fields(lattice, self.takes, self.points, precision=precision)
        changes = fields(lattice, map(change_of, self.takes), self.changes, precision=precision)
        found = fields(lattice, map(change_of, self.gives), precision=precision)
        self.tangent(changes, ins, found)
        return values_of(found)

    def gradients(self, precision: str = "float64", points: Any = None) -> list[Any]:
        lattice, at = Lattice(*EXTENTS), self.points if points is None else points
        ins = fields(lattice, self.takes, at, precision=precision)
        cotangents = fields(lattice, map(cotangent_of, self.gives), self.cotangents, precision=precision)
        found = fields(lattice, map(change_of, self.takes), precision=precision)
        self.pullback(found, ins, cotangents)
        return values_of(found)

    def seconds(self) -> list[Any]:
        lattice = Lattice(*EXTENTS)
        ins = fields(lattice, self.takes, self.points)
        changes = fields(lattice, map(change_of, self.takes), self.changes)
        cotangents = fields(lattice, map(cotangent_of, self.gives), self.cotangents)
        found = fields(lattice, map(change_of, self.takes))
        self.second(changes, found, ins, cotangents)
        return values_of(found)


together = functools.cache(Together)


def difference(at: Callable[[float], list[Any]]) -> list[Any]:
    """The derivative of `at` at 0, by differences of sixth order."""
    total: list[Any] = []
    for k, weight in ((1, 45.0), (2, -9.0), (3, 1.0)):
        each = [(a - b) * (weight / (60 * STEP)) for a, b in zip(at(k * STEP), at(-k * STEP), strict=True)]
        total = [a + b for a, b in zip(total, each, strict=True)] if total else each
    return total


def deviation(found: Any, wanted: Any) -> float:
    """The largest difference, of what is of order one or larger."""
    return float(abs(found - wanted).max() / max(1.0, abs(wanted).max()))


def report(names: list[str], deviations: list[float], bound: float) -> None:
    """Fails with the names of all formulas that are wrong."""
    wrong = [f"{name}: {d:.2g}" for name, d in zip(names, deviations, strict=True) if not d <= bound]
    assert not wrong, "; ".join(wrong)


LONG = ("polar of four rows",)  # its kernels take half a minute to compile
GROUP = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in LONG else name for name in GROUPS]
)


@GROUP
def test_tangents_are_what_differences_tend_to(name: str) -> None:
    group = together(name)
    wanted = difference(lambda size: group.computed(points=group.moved(size)))
    at = group.computed()
    wanted = [
        w @ turned(y) if is_group(element) else w
        for w, y, element in zip(wanted, at, group.gives, strict=True)
    ]
    found = group.tangents()
    names = [formula.name for formula in group.formulas]
    report(names, [deviation(f, w) for f, w in zip(found, wanted, strict=True)], 1e-9)


@GROUP
def test_pullbacks_are_adjoint_to_tangents(name: str) -> None:
    group = together(name)
    pushed, pulled, at = group.tangents(), group.gradients(), group.computed()
    deviations = []
    for k, formula in enumerate(group.formulas):
        change, c = pushed[k], group.cotangents[k]
        given_element = change_of(group.gives[k])
        if is_group(group.gives[k]):
            change, given_element = change @ at[k], Matrix(change.shape[-1])
        left = inner(change, c, given_element)
        each = [inner(group.changes[j], pulled[j], change_of(group.takes[j])) for j in group.own[k]]
        size = np.linalg.norm(change) * np.linalg.norm(c) + sum(map(abs, each))
        deviations.append(abs(left - sum(each)) / max(size, 1e-300))
        assert len(each) == len(formula.takes)
    report([formula.name for formula in group.formulas], deviations, 1e-12)


@pytest.mark.short(3)
@GROUP
@pytest.mark.parametrize("of", ["tangents", "gradients"])
def test_derivatives_of_single_precision_are_those_of_double(name: str, of: str) -> None:
    group = together(name)
    found, wanted = getattr(group, of)("float32"), getattr(group, of)()
    names = [formula.name for formula in group.formulas]
    if of == "gradients":
        names = [formula.name for formula in group.formulas for _ in formula.takes]
    report(names, [deviation(f, w) for f, w in zip(found, wanted, strict=True)], 1e-4)


@pytest.mark.short(4)
@GROUP
def test_second_derivatives_are_what_differences_of_first_ones_tend_to(name: str) -> None:
    group = together(name)
    wanted = difference(lambda size: group.gradients(points=group.moved(size)))
    names = [formula.name for formula in group.formulas for _ in formula.takes]
    report(names, [deviation(f, w) for f, w in zip(group.seconds(), wanted, strict=True)], 1e-8)


def frechet(a: Any, b: Any) -> Any:
    n = a.shape[-1]
    pairs = zip(a.reshape(-1, n, n), b.reshape(-1, n, n), strict=True)
    return np.array([scipy.linalg.expm_frechet(x, y, compute_expm=False) for x, y in pairs]).reshape(a.shape)


def test_derivatives_of_exponentials_are_those_of_scipy() -> None:
    group = together("exponentials")
    pushed, pulled = group.tangents(), group.gradients()
    names, deviations = [], []
    for k, formula in enumerate(group.formulas):
        if not formula.name.startswith("exp of ") or "Hermitian" in formula.name or "project" in formula.name:
            continue
        (j,) = group.own[k]
        a, change, c = group.points[j], group.changes[j], group.cotangents[k]
        names += [f"tangent of {formula.name}", f"pullback of {formula.name}"]
        wanted = frechet(turned(a), c)
        if group.takes[j].codec == "algebra":
            wanted = in_algebra(wanted) / 2
        deviations += [deviation(pushed[k], frechet(a, change)), deviation(pulled[j], wanted)]
    assert len(names) == 14
    report(names, deviations, 2e-14)


TESTED_ELSEWHERE = {
    "stored": "test_gradients",
    "terms": "test_gradients",
    "repeat": "test_refusals",
    "repeat_value": "test_refusals",
}


def test_every_operation_that_has_a_derivative_is_in_a_formula() -> None:
    met = set()
    for name in GROUPS:
        if name in LONG:
            continue
        group, lattice = together(name), Lattice(*EXTENTS)
        arguments = fields(lattice, group.takes), fields(lattice, group.gives)
        for traced, _ in group.function.stages(*arguments):
            for node in reachable([store.value for program in traced.programs for store in program.effects]):
                met.add(node.op)
                if elementary.call.made(node):
                    met.add(f"{node.attrs[0]} of {node.args[0].type.kind} numbers")
    rules = {name for name, one in OPERATIONS.items() if one.pullback or one.tangent or one.alike}
    assert rules - met - set(TESTED_ELSEWHERE) == set()
    functions = {f"{name} of real numbers" for name in elementary._SLOPES}
    functions |= {f"{name} of complex numbers" for name in (*elementary._OF_COMPLEX, "abs")}
    assert functions - met == set()
