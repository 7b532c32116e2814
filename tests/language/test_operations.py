"""Every operation of the language on every element type it accepts, against NumPy on random fields.

One kernel computes all operations of a case; each fact is its own test.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy_sites import interpret, kernel_values, symbol_of
from support import assert_close, bind, random_field

import jali
from jali import SU, Algebra, Complex, Matrix, Real, Spinor, Vector

EXTENTS = (4, 3, 2)


class Case:
    """Operations over the same input fields: name -> (expression, element of the result)."""

    def __init__(self, inputs):
        self.inputs = inputs
        self.operations = {}

    def add(self, name, element):
        def register(expression):
            self.operations[name] = (expression, element)
            return expression

        return register


def real_functions():
    case = Case([Real(), Real()])
    for name in ["exp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "floor"]:
        case.add(name, Real())(lambda J, a, b, name=name: getattr(J, name)(a))
    for name in ["ceil", "round", "sign", "arg"]:
        case.add(name, Real())(lambda J, a, b, name=name: getattr(J, name)(10 * a))
    case.add("Python's round", Real())(lambda J, a, b: round(8 * a) - b)
    case.add("log", Real())(lambda J, a, b: J.log(a * a + 0.01))
    case.add("sqrt", Real())(lambda J, a, b: J.sqrt(a * a))
    case.add("exp of large", Real())(lambda J, a, b: J.log(J.exp(80 * a)))
    case.add("sin of large", Real())(lambda J, a, b: J.sin(100 * a + 3 * b))
    case.add("atan2", Real())(lambda J, a, b: J.atan2(a, b))
    case.add("power", Real())(lambda J, a, b: J.power(a * a + 0.1, b))
    case.add("operator **", Real())(lambda J, a, b: (a * a + 0.1) ** 0.75)
    case.add("whole powers", Real())(lambda J, a, b: a**3 + (b + 2) ** -2 + a**1 + (a * b) ** 0)
    case.add("minimum and maximum", Real())(lambda J, a, b: J.minimum(a, b) + 2 * J.maximum(a, 0.25))
    case.add("abs", Real())(lambda J, a, b: abs(a) - abs(b))
    case.add("arithmetic", Real())(
        lambda J, a, b: (a + 2) * (3 - b) / (b + 2) - a / 4 + 1 / (a + 3) - (-a) + (+b)
    )
    case.add("where of <", Real())(lambda J, a, b: J.where(a < b, a, 2 * b))
    case.add("where of <=", Real())(lambda J, a, b: J.where(a <= a, a, b))
    case.add("where of >", Real())(lambda J, a, b: J.where(a > 0.5, a, b))
    case.add("where of >=", Real())(lambda J, a, b: J.where(b >= a, a, -b))
    case.add("where of ==", Real())(lambda J, a, b: J.where(a == b, 1.0, J.where(a == a, a, 2.0)))
    case.add("where of !=", Real())(lambda J, a, b: J.where(a != b, b, 1.0))
    case.add("logic", Real())(lambda J, a, b: J.where(((a < b) & (a > -0.5)) | ~(b < 0.25), a, b))
    case.add("where of conditions", Real())(
        lambda J, a, b: J.where(J.where(a < 0, b < 0, b > 0.5), 1.0, -1.0)
    )
    case.add("complex from parts", Complex())(lambda J, a, b: J.complex(a, b) * J.complex(b, 2))
    case.add("matrix from parts", Matrix(2, 3))(
        lambda J, a, b: J.matrix([[a, b, 1], [J.complex(a, b), 2j, a * b]])
    )
    case.add("real matrix from parts", Matrix(2, 3, kind="real"))(
        lambda J, a, b: J.matrix([[a, b, 1], [0, -b, a * b]])
    )
    case.add("vector from parts", Vector(3))(lambda J, a, b: J.vector([a, 1j * b, 3]))
    case.add("a real number in a complex field", Complex())(lambda J, a, b: a + b)
    case.add("a constant", Real())(lambda J, a, b: 2.5)
    case.add("NumPy numbers", Real())(lambda J, a, b: np.float64(2.5) * a + b * np.float32(0.5) - np.int64(3))
    case.add("dot and norm2 of numbers", Real())(lambda J, a, b: a.dot(b) + b.norm2())
    case.add("parts of a real number", Real())(lambda J, a, b: a.real + 2 * b.imag + a.conj())
    return case


def complex_numbers():
    case = Case([Complex(), Complex(), Real()])
    case.add("arithmetic", Complex())(lambda J, z, w, r: (z + 1j) * w - w / 3 + (2 - 1j) * z - (-w))
    case.add("quotient", Complex())(lambda J, z, w, r: z / (w + 3) + 1 / (z - 2j) + r / (w + 3))
    case.add("times real", Complex())(lambda J, z, w, r: r * z + w * r + z / (r + 2))
    case.add("times i", Complex())(lambda J, z, w, r: 1j * z + w * -1j)
    case.add("conj", Complex())(lambda J, z, w, r: z.conj() * w + z.dagger() + w.conj().conj())
    case.add("real part", Real())(lambda J, z, w, r: z.real * w.imag + (z * w).real)
    case.add("abs", Real())(lambda J, z, w, r: abs(z))
    case.add("norm2", Real())(lambda J, z, w, r: (z + w).norm2())
    case.add("arg", Real())(lambda J, z, w, r: J.arg(z) + J.arg(z * w) / 3)
    case.add("dot", Complex())(lambda J, z, w, r: z.dot(w))
    case.add("exp", Complex())(lambda J, z, w, r: J.exp(z) + w.exp())
    case.add("log", Complex())(lambda J, z, w, r: J.log(z))
    case.add("sqrt", Complex())(lambda J, z, w, r: J.sqrt(z))
    case.add("powers", Complex())(lambda J, z, w, r: z**3 + (w + 3) ** -1)
    case.add("where", Complex())(lambda J, z, w, r: J.where(z.real < w.imag, z, r))
    case.add("matrix", Matrix(2))(lambda J, z, w, r: J.matrix([[z, w], [-w.conj(), r]]))
    return case


def matrices(n):
    case = Case([Matrix(n), Matrix(n), Vector(n), Vector(n), Complex(), Real()])
    case.add("product", Matrix(n))(lambda J, A, B, u, v, z, r: A * B)
    case.add("product with @", Matrix(n))(lambda J, A, B, u, v, z, r: A @ B)
    case.add("adjoint times", Matrix(n))(lambda J, A, B, u, v, z, r: A.dagger() * B)
    case.add("times adjoint", Matrix(n))(lambda J, A, B, u, v, z, r: A * B.dagger())
    case.add("adjoint times adjoint", Matrix(n))(lambda J, A, B, u, v, z, r: A.dagger() * B.dagger())
    case.add("sum of products", Matrix(n))(
        lambda J, A, B, u, v, z, r: A * B + B * A - A * B.dagger() + r * A - z * B + A * A
    )
    case.add("product minus", Matrix(n))(lambda J, A, B, u, v, z, r: A * B - B)
    case.add("minus product", Matrix(n))(lambda J, A, B, u, v, z, r: B - A * B)
    case.add("double dagger", Matrix(n))(lambda J, A, B, u, v, z, r: A.dagger().dagger() + B.dagger())
    case.add("conj and transpose", Matrix(n))(lambda J, A, B, u, v, z, r: A.conj() + B.transpose())
    case.add("trace", Complex())(lambda J, A, B, u, v, z, r: A.trace() + 2 * B.trace().conj())
    case.add("trace of product", Complex())(lambda J, A, B, u, v, z, r: (A * B).trace())
    for k, pair in enumerate(
        [
            lambda A, B: A * B,
            lambda A, B: A.dagger() * B,
            lambda A, B: A * B.dagger(),
            lambda A, B: A.dagger() * B.dagger(),
        ]
    ):
        case.add(f"real trace of product {k}", Real())(
            lambda J, A, B, u, v, z, r, pair=pair: pair(A, B).trace().real
        )
        case.add(f"imaginary trace of product {k}", Real())(
            lambda J, A, B, u, v, z, r, pair=pair: pair(A, B).trace().imag
        )
    case.add("det", Complex())(lambda J, A, B, u, v, z, r: A.det())
    case.add("inverse", Matrix(n))(lambda J, A, B, u, v, z, r: (A + (3 + n) * J.identity(n)).inverse())
    case.add("exp", Matrix(n))(lambda J, A, B, u, v, z, r: A.exp())
    case.add("exp function", Matrix(n))(lambda J, A, B, u, v, z, r: J.exp(0.5 * B))
    case.add("exp of antihermitian", Matrix(n))(
        lambda J, A, B, u, v, z, r: (2 * A.traceless_antihermitian()).exp()
    )
    case.add("reunitarise", Matrix(n))(lambda J, A, B, u, v, z, r: (A + 2 * J.identity(n)).reunitarise())
    case.add("traceless_antihermitian", Matrix(n))(lambda J, A, B, u, v, z, r: A.traceless_antihermitian())
    case.add("norm2", Real())(lambda J, A, B, u, v, z, r: (A - B).norm2())
    case.add("dot", Complex())(lambda J, A, B, u, v, z, r: A.dot(B))
    case.add("matrix times vector", Vector(n))(lambda J, A, B, u, v, z, r: A * u + B.dagger() * v)
    case.add("vector dot", Complex())(lambda J, A, B, u, v, z, r: u.dot(v))
    case.add("vector norm2", Real())(lambda J, A, B, u, v, z, r: u.norm2() + v.norm2())
    case.add("vector algebra", Vector(n))(
        lambda J, A, B, u, v, z, r: z * u - v * r + u / (z + 3) - (-v).conj()
    )
    case.add("outer", Matrix(n))(lambda J, A, B, u, v, z, r: u.outer(v))
    case.add("components", Complex())(lambda J, A, B, u, v, z, r: A[0, n - 1] * u[-1] + B[-1, 0])
    case.add("row", Vector(n))(lambda J, A, B, u, v, z, r: A[0, :] + B[:, n - 1])
    case.add("block", Matrix(1, n))(lambda J, A, B, u, v, z, r: A[0:1, :] + B[n - 1 :, :])
    case.add("identity", Matrix(n))(lambda J, A, B, u, v, z, r: J.identity(n) * z + A)
    case.add("zero", Matrix(n))(lambda J, A, B, u, v, z, r: J.zero(Matrix(n)) + A)
    case.add("powers", Matrix(n))(lambda J, A, B, u, v, z, r: A**2 + B**3)
    case.add("matrix power 0", Matrix(n))(lambda J, A, B, u, v, z, r: A**0 + B)
    case.add("constant matrix", Matrix(n))(
        lambda J, A, B, u, v, z, r: A * np.arange(n * n, dtype=float).reshape(n, n) + B
    )
    case.add("constant on the left", Matrix(n))(lambda J, A, B, u, v, z, r: np.eye(n) * (1 + 2j) * A + B)
    case.add("where", Matrix(n))(lambda J, A, B, u, v, z, r: J.where(r < 0, A, B))
    case.add("real part", Matrix(n, kind="real"))(lambda J, A, B, u, v, z, r: A.real + (B * A).imag)
    case.add("divided", Matrix(n))(lambda J, A, B, u, v, z, r: A / (r + 2) + B / (z + 3))
    return case


def real_matrices(n):
    case = Case([Matrix(n, kind="real"), Matrix(n, kind="real"), Vector(n, kind="real"), Matrix(n), Real()])
    R = Matrix(n, kind="real")
    case.add("product", R)(lambda J, A, B, u, C, r: A * B + B.dagger() * A - A * B.transpose())
    case.add("times vector", Vector(n, kind="real"))(lambda J, A, B, u, C, r: A * u - r * u)
    case.add("with complex", Matrix(n))(lambda J, A, B, u, C, r: A * C + C * B + A)
    case.add("trace", Real())(
        lambda J, A, B, u, C, r: A.trace() + (A * B).trace() + (A.dagger() * B).trace().real
    )
    case.add("det", Real())(lambda J, A, B, u, C, r: A.det())
    case.add("inverse", R)(lambda J, A, B, u, C, r: (A + (3 + n) * J.identity(n).real).inverse())
    case.add("exp", R)(lambda J, A, B, u, C, r: A.exp() + J.exp(0.5 * B))
    case.add("rotation", R)(lambda J, A, B, u, C, r: (2 * A.traceless_antihermitian()).exp() * B)
    case.add("reunitarise", R)(lambda J, A, B, u, C, r: (A + 2 * J.identity(n).real).reunitarise())
    case.add("dot and norm2", Real())(lambda J, A, B, u, C, r: A.dot(B) + u.norm2() + u.dot(u))
    case.add("outer", R)(lambda J, A, B, u, C, r: u.outer(A * u))
    case.add("times complex number", Matrix(n))(lambda J, A, B, u, C, r: C.trace() * A)
    return case


def rectangles():
    case = Case([Matrix(2, 3), Matrix(3, 4), Matrix(4, 2), Spinor(3), Spinor(3)])
    case.add("chain", Matrix(2))(lambda J, A, B, C, s, t: A * B * C)
    case.add("adjoint chain", Matrix(2))(lambda J, A, B, C, s, t: C.dagger() * B.dagger() * A.dagger())
    case.add("spinor products", Matrix(3))(lambda J, A, B, C, s, t: s * t.dagger())
    case.add("spinor inner", Complex())(lambda J, A, B, C, s, t: s.dot(t))
    case.add("spin trace", Complex())(lambda J, A, B, C, s, t: (s.dagger() * t).trace())
    case.add("spinor columns", Spinor(3))(
        lambda J, A, B, C, s, t: J.matrix([[s[c, 2], s[c, 3], t[c, 0], t[c, 1]] for c in range(3)])
    )
    case.add("half spinor", Matrix(3, 2))(lambda J, A, B, C, s, t: s[:, 0:2] - 1j * t[:, 2:4])
    case.add("transpose", Matrix(4, 3))(lambda J, A, B, C, s, t: B.transpose() + s.dagger())
    return case


def algebras(n):
    case = Case([Algebra(n), SU(n), SU(n), Real()])
    case.add("sum", Algebra(n))(lambda J, P, U, V, r: P + r * P - P / 3)
    case.add("negative and dagger", Algebra(n))(lambda J, P, U, V, r: -P + P.dagger())
    case.add("of a product", Algebra(n))(lambda J, P, U, V, r: (U * V).traceless_antihermitian())
    case.add("exponential", SU(n))(lambda J, P, U, V, r: P.exp() * U)
    case.add("norm2", Real())(lambda J, P, U, V, r: P.norm2())
    case.add("in a matrix", Matrix(n))(lambda J, P, U, V, r: P * U - U.dagger() * P)
    case.add("where", Algebra(n))(lambda J, P, U, V, r: J.where(r < 0, P, 2 * P))
    case.add("unitarity", Matrix(n))(lambda J, P, U, V, r: U * U.dagger() - V.dagger() * V)
    case.add("determinant", Complex())(lambda J, P, U, V, r: (U * V).det())
    return case


def integers():
    case = Case([Real()])
    case.add("coordinates", Real())(
        lambda J, X, a: X.coordinate(0) + 10 * X.coordinate(1) + 100 * X.coordinate(X.directions()[2])
    )
    case.add("shifted coordinates", Real())(
        lambda J, X, a: (X + X.directions()[0]).coordinate(0) - 3 * (X - 2 * X.directions()[1]).coordinate(1)
    )
    case.add("parity", Real())(lambda J, X, a: X.parity + 2 * (X + X.directions()[1]).parity)
    case.add("extents", Real())(lambda J, X, a: X.extent(0) * X.extent(1) + X.extent(2))
    case.add("mod and floor division", Real())(
        lambda J, X, a: (X.coordinate(0) - 3) % 2 + 10 * ((X.coordinate(0) - 3) // 2)
    )
    case.add("functions that stay whole", Real())(
        lambda J, X, a: (
            (J.floor(X.coordinate(0)) + J.ceil(X.coordinate(1)) + J.round(X.coordinate(2))) % 3
            + 10 * J.sign(X.coordinate(0) - 2)
            + 20 * abs(X.coordinate(0) - 2)
            + 50 * J.minimum(X.coordinate(0), X.coordinate(1))
            + 100 * J.maximum(X.coordinate(0), X.coordinate(2))
            + 200 * J.minimum(X.coordinate(0), 1.5)
        )
    )
    case.add("distance on the torus", Real())(
        lambda J, X, a: (X.coordinate(0) + X.extent(0) // 2 - 1) % X.extent(0)
    )
    case.add("integer where", Real())(
        lambda J, X, a: J.where(X.coordinate(0) == 1, X.coordinate(1), -X.coordinate(2)) + 0
    )
    case.add("integer comparison", Real())(
        lambda J, X, a: J.where((X.coordinate(0) < X.coordinate(1)) | (X.coordinate(2) != 0), a, 0)
    )
    case.add("integer times real", Real())(lambda J, X, a: X.coordinate(0) * a + a / (X.coordinate(1) + 1))
    case.add("plane wave", Complex())(lambda J, X, a: J.exp(J.complex(0, 2 * np.pi / 4 * X.coordinate(0))))
    return case


CASES = {
    "real": real_functions(),
    "complex": complex_numbers(),
    **{f"Matrix({n})": matrices(n) for n in (1, 2, 3, 4, 5)},
    **{f"real Matrix({n})": real_matrices(n) for n in (1, 2, 3)},
    "rectangles": rectangles(),
    **{f"Algebra({n})": algebras(n) for n in (1, 2, 3, 4)},
    "integers": integers(),
}
FACTS = [
    pytest.param(case, name, precision, id=f"{case}-{name}-{precision}")
    for case, content in CASES.items()
    for name in content.operations
    for precision in ("float64", "float32")
]


@functools.cache
def results(case_name, precision):
    """name -> (by jali, by NumPy) for one case; what went wrong is kept too, so that a case is tried once."""
    try:
        return compute(case_name, precision)
    except jali.JaliError as error:
        return error


def compute(case_name, precision):
    case = CASES[case_name]
    lattice = jali.Lattice(*EXTENTS)
    inputs = [random_field(lattice, e, seed=k, precision=precision) for k, e in enumerate(case.inputs)]
    outputs = [jali.Field(lattice, element, precision=precision) for _, element in case.operations.values()]
    sites = case_name == "integers"

    def everything(J, X, ins, outs):
        values = [f[X] for f in ins]
        for out, (expression, _) in zip(outs, case.operations.values(), strict=True):
            out[X] = expression(J, X, *values) if sites else expression(J, *values)

    symbols = [symbol_of(f) for f in inputs], [symbol_of(f) for f in outputs]
    interpret(everything, EXTENTS, symbols)
    bind(everything, ["ins", "outs"])(inputs, outputs)
    return {
        name: (kernel_values(out), twin.array)
        for name, out, twin in zip(case.operations, outputs, symbols[1], strict=True)
    }


@pytest.mark.short(5)
@pytest.mark.parametrize(("case", "name", "precision"), FACTS)
def test_operation_agrees_with_numpy(case, name, precision):
    found = results(case, precision)
    assert not isinstance(found, Exception), found
    got, expected = found[name]
    assert_close(got, expected, precision, scale=20)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("lanes", [1, None])
def test_the_negative_of_what_cancels_is_a_negative_zero(lanes, precision):
    """Re (1 + i)^2 is 1 * 1 - 1 * 1, one multiply-add; compilers may not move the sign into it."""
    lattice = jali.Lattice(16, 8, lanes=lanes)
    z, negative, product = (jali.Field(lattice, Complex(), precision=precision) for _ in range(3))
    z[...] = 1 + 1j

    @jali.site_function
    def squares(X, negative, product, z):
        negative[X] = -(z[X] * z[X])
        product[X] = -(z[X] * z[X]) * 1.0

    squares(negative, product, z)
    assert np.all(negative[...] == -2j)
    assert np.all(np.signbit(negative[...].real))
    assert np.all(np.signbit(product[...].real))
