"""Fields as arrays to the eye: arithmetic of whole fields, in place, sums, NumPy's functions, and what is refused."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest

import jali
from jali import (
    SU,
    Algebra,
    Complex,
    Field,
    Hermitian,
    Integer,
    Lattice,
    LayoutError,
    Matrix,
    Real,
    Spinor,
    TraceError,
    Vector,
)
from jali.codegen.values import METHODS
from jali.gauge import GaugeField
from jali.lattice import algebra, functions, whole_fields

pytestmark = pytest.mark.lanes


def random_values(f: Field, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=f.shape)
    return values + 1j * rng.normal(size=f.shape) if f.dtype.kind == "c" else values


def make(element, seed=1, lattice=None, **options):
    f = Field(lattice or Lattice(5, 3, 6), element, **options)
    f[...] = random_values(f, seed)
    return f, f[...]


@pytest.fixture
def pair():
    lattice = Lattice(5, 7)
    return make(Real(), 1, lattice) + make(Real(), 2, lattice)


def test_a_field_has_what_an_array_has():
    f, a = make(Spinor(3))
    assert f.shape == a.shape == (5, 3, 6, 4, 3)
    assert f.dtype == a.dtype
    assert f.ndim == a.ndim
    assert f.size == a.size
    assert len(f) == len(a)
    assert np.array_equal(np.asarray(f), a)
    assert np.asarray(f, "complex64").dtype == "complex64"
    assert Field(f.lattice, Real(), "float32").dtype == np.float32
    assert Field(f.lattice, Real(), storage="float32").dtype == np.float32


def test_expressions_are_numpys(pair):
    f, a, g, b = pair
    s = f.lattice.scalar(2.5)
    for ours, numpys in [
        (2 * f + g, 2 * a + b),
        (f - g / 3, a - b / 3),
        (1 - f * g, 1 - a * b),
        (-f + (+g), b - a),
        (2 / (f * f + 1), 2 / (a * a + 1)),
        (abs(f) ** 0.5, abs(a) ** 0.5),
        (f**3 - g**-2, a**3 - b**-2.0),
        (np.float64(2) * f, 2 * a),
        (f + np.float32(0.5), a + 0.5),
        (np.array(3.0) * f, 3 * a),
        (s * f - f * s + f / s, a / 2.5),
        (jali.exp(f) * jali.cos(g), np.exp(a) * np.cos(b)),
        (
            jali.sign(f) + jali.ceil(g) + jali.round(5 * f) - jali.arg(f),
            np.sign(a) + np.ceil(b) + np.rint(5 * a) - np.angle(a),
        ),
        (jali.sqrt(abs(g)), np.sqrt(abs(b))),
    ]:
        assert ours.shape == a.shape
        assert ours.dtype == a.dtype
        assert np.allclose(ours, numpys, rtol=1e-14), ours
        assert np.allclose(ours.field()[1:3], numpys[1:3], rtol=1e-14)


def test_in_place(pair):
    f, a, g, b = pair
    same = f
    f += 2 * g
    f *= g
    f -= 1
    f /= 2
    f **= 2
    assert f is same
    assert np.allclose(f, (((a + 2 * b) * b - 1) / 2) ** 2, rtol=1e-14)
    f[...] = 3 * g + f
    f[:] = f - 3 * g
    assert np.allclose(f, (((a + 2 * b) * b - 1) / 2) ** 2, rtol=1e-12)
    f[...] = g
    assert np.array_equal(f, b)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_remainders_and_whole_quotients_in_place(precision):
    f = Field(Lattice(5, 7), Integer(), precision)
    a = np.arange(-17, 18).reshape(5, 7)
    f[...] = a

    def changed(f):
        f %= 5
        f //= 2

    changed(f)
    assert np.array_equal(f, a % 5 // 2)
    for wrong in (f.__imod__, f.__ifloordiv__):
        assert wrong(2.5) is NotImplemented


@jali.site_function
def beside(X, up, down, f):
    mu = X.directions()[0]
    up[X] = f[X + mu]
    down[X] = f[X - mu]


def neighbours(f):
    """What is read at the next and at the last site, as periodic fields."""
    up, down = f.like(boundary=None), f.like(boundary=None)
    beside(up, down, f)
    return up, down


PHASE = np.exp(0.7j)


@pytest.mark.short(3)
@pytest.mark.parametrize(
    ("make_value", "condition"),
    [
        (lambda f, g: 2 * f + g, "open"),
        (lambda f, g: 1 * f, "open"),
        (lambda f, g: f * g + 1, "open"),
        (lambda f, g: (2 * f + g / 3) * -1, "antiperiodic"),
        (lambda f, g: f * g, "antiperiodic"),
        (lambda f, g: f * g * f - 2 * g.imag, "antiperiodic"),
        (lambda f, g: f / g + 1, "antiperiodic"),
        (lambda f, g: f**3 - f.dot(g) * f, "antiperiodic"),
        (lambda f, g: f - 2 * g, PHASE),
        (lambda f, g: f * g, PHASE),
        (lambda f, g: f.dot(g) + abs(f) * f / g.conj() ** -1, PHASE),
        (lambda f, g: f.conj() / g**2 - f.dagger() ** 3, PHASE),
        (lambda f, g: abs(f * g) + abs(f) + 1, PHASE),
    ],
)
def test_a_new_field_reads_across_edges_what_its_formula_gives(make_value, condition):
    lattice = Lattice(5, 7)
    f, _ = make(Complex(), 1, lattice, boundary=[condition, "periodic"])
    g, _ = make(Complex(), 2, lattice, boundary=[condition, "periodic"])
    up, down = neighbours(make_value(f, g).field())
    if condition == "open":
        assert not up[-1].any()
        assert not down[0].any()
    else:
        (f_up, f_down), (g_up, g_down) = neighbours(f), neighbours(g)
        assert np.allclose(up, make_value(f_up, g_up), rtol=1e-12)
        assert np.allclose(down, make_value(f_down, g_down), rtol=1e-12)


def test_a_new_field_is_of_the_widest_precision_and_plain():
    lattice = Lattice(4, 6)
    f, _ = make(Real(), 1, lattice, precision="float32", storage="float16")
    g, _ = make(Real(), 2, lattice, precision="float64", storage="float32")
    for made, precision in [(2 * f, "float32"), (f + g, "float64")]:
        assert (made.field().precision, made.field().stored.format.name) == (precision, precision)


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("make_value", "conditions", "says"),
    [
        (
            lambda f, g: f + g,
            ("open", "periodic"),
            "differ at the boundary in direction 1, open and periodic",
        ),
        (lambda f, g: f + 1, ("antiperiodic",) * 2, "antiperiodic in direction 1 give .* no factor"),
        (lambda f, g: f + f * g, ("antiperiodic",) * 2, "no factor"),
        (lambda f, g: jali.exp(f), ("antiperiodic",) * 2, "no factor"),
        (lambda f, g: f.real, (PHASE,) * 2, "no factor"),
        (lambda f, g: f + g.conj(), (PHASE,) * 2, "no factor"),
    ],
)
def test_a_boundary_that_does_not_follow_is_required(make_value, conditions, says):
    lattice = Lattice(5, 3)
    f, g = (make(Complex(), 1, lattice, boundary={1: c})[0] for c in conditions)
    with pytest.raises(LayoutError, match=says + r".*\.field\(boundary=\.\.\.\)"):
        make_value(f, g).field()
    assert make_value(f, g).field(boundary="open").boundary.conditions == ["open", "open"]
    assert np.array_equal(make_value(f, g)[...], make_value(f, g).field(boundary={1: "antiperiodic"}))


def test_a_phase_is_no_condition_of_real_numbers_also_where_another_field_has_it():
    f = Field(Lattice(5, 3), Complex(), boundary=PHASE)
    with pytest.raises(LayoutError, match="a field of Real.* cannot carry the complex phase"):
        f.like(element=Real())
    assert f.like(element=Real(), boundary=None).boundary.conditions == ["periodic"] * 2
    assert f.like(element=Vector(2)).boundary.conditions == f.boundary.conditions


def test_products_of_matrices_are_the_site_languages():
    lattice = Lattice(4, 3)
    (m, a), (n, b), (v, w) = (
        make(Matrix(3), 1, lattice),
        make(Matrix(3), 2, lattice),
        make(Vector(3), 3, lattice),
    )
    assert np.allclose(m * n, a @ b)
    assert np.allclose(m @ n.dagger(), a @ b.conj().swapaxes(-1, -2))
    assert np.allclose(m * v, (a @ w[..., None])[..., 0])
    assert np.allclose((m * n).trace().real, np.trace(a @ b, axis1=-2, axis2=-1).real)
    assert np.allclose(m.conj().imag, -a.imag)
    m @= n
    assert np.allclose(m, a @ b)


@pytest.mark.short(3)
@pytest.mark.parametrize(
    ("make_value", "element"),
    [
        (lambda f: 2 * f[Algebra] - f[Algebra] / 3, Algebra(3)),
        (lambda f: f[Algebra] * f[Algebra], Matrix(3)),
        (lambda f: 1j * f[Algebra], Matrix(3)),
        (lambda f: 2j * f[Spinor] + f[Spinor], Spinor(3)),
        (lambda f: f[SU] * f[Spinor], Spinor(3)),
        (lambda f: f[SU] + f[SU], Matrix(3)),
        (lambda f: f[SU] * f[Vector], Vector(3)),
        (lambda f: f[Integer] * 2 + f[Integer], Integer()),
        (lambda f: f[Integer] / 2, Real()),
        (lambda f: f[Integer] + 0.5, Real()),
        (lambda f: f[Real] * 1j, Complex()),
        (lambda f: f[Complex].real, Real()),
        (lambda f: f[Real] * f[Vector], Vector(3)),
    ],
)
def test_what_an_expression_holds(make_value, element):
    lattice = Lattice(4, 3)
    elements = {Algebra: Algebra(3), Spinor: Spinor(3), SU: SU(3), Vector: Vector(3)}
    fields = {
        e: Field(lattice, elements.get(e, e if e in elements else None) or e())
        for e in (Integer, Real, Complex)
    }
    fields |= {kind: Field(lattice, e) for kind, e in elements.items()}
    fields[SU][...] = np.eye(3)
    found = make_value(fields)
    assert found.element() == element
    assert found.field().element == element
    assert np.asarray(found).dtype == found.dtype


def test_parts_of_spinors_are_as_numpy_has_them():
    f, a = make(Spinor(4))
    assert np.array_equal(f.real, a.real)
    assert np.array_equal((2 * f.imag).field()[1], 2 * a[1].imag)


def test_whole_numbers_stay_whole():
    f = Field(Lattice(7), Integer())
    f[...] = -(2**53 + 1)
    for ours, known in [
        (abs(f), 2**53 + 1),
        (jali.sign(f), -1),
        (f % 3, (-(2**53) - 1) % 3),
        (f // 2, (-(2**53) - 1) // 2),
        (jali.maximum(f, 3), 3),
        (f.conj(), -(2**53) - 1),
    ]:
        assert ours.dtype == np.int64
        assert ours.field()[3] == known
    f[...] = np.arange(7)
    assert np.array_equal(3 * f * f - f, 3 * np.arange(7) ** 2 - np.arange(7))
    assert (3 * f).dtype == np.int64
    assert np.array_equal(f / 2, np.arange(7) / 2)


@pytest.mark.short(3)
@pytest.mark.parametrize("element", [Real(), Complex(), Vector(3), Matrix(2), Spinor(2)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_sums_are_numpys(element, precision):
    lattice = Lattice(5, 3, 7)
    (f, a), (g, b) = (
        make(element, 1, lattice, precision=precision),
        make(element, 2, lattice, precision=precision),
    )
    a, b = a.astype(complex), b.astype(complex)
    close = 1e-13 if precision == "float64" else 1e-5
    assert np.isclose(f.norm2(), np.sum(abs(a) ** 2), rtol=close)
    assert np.isclose(f.inner(g), np.vdot(a, b), rtol=close, atol=close * a.size)
    assert np.isclose(f.sum(), a.sum(), rtol=close, atol=close * a.size)
    assert np.isclose((2 * f).mean(), 2 * a.mean(), rtol=close, atol=close)
    assert np.isclose((f + g).norm2(), np.sum(abs(a + b) ** 2), rtol=close)
    assert float((f - g).norm2(wait=False)) == (f - g).norm2()
    assert isinstance(f.sum(), complex if element.type.kind == "complex" else float)


@pytest.mark.short(2)
@pytest.mark.parametrize("element", [Real(), Integer(), Vector(3, kind="real"), Matrix(2, kind="real")])
def test_extremes_are_numpys(element):
    f = Field(Lattice(5, 3, 7), element)
    a = np.random.default_rng(1).integers(-100, 100, f.shape)
    f[...] = a
    assert (f.max(), f.min(), (2 * f).max(), (-f).min()) == (a.max(), a.min(), 2 * a.max(), -a.max())
    assert type(f.max()) is (int if element == Integer() else float)
    if element == Real():
        f[1, 2, 3] = np.nan
        assert np.isnan(f.max())
        assert np.isnan(f.min())


def test_functions_of_numpy_act_on_all_values(pair):
    f, a, g, b = pair
    assert np.array_equal(np.exp(f), np.exp(a))
    assert isinstance(np.exp(f), np.ndarray)
    assert np.allclose(f, a)
    assert np.max(f) == a.max()
    assert np.sum(f + g) == np.sum((f + g)[...])
    assert np.array_equal(np.stack([f, g]), [a, b])
    assert np.array_equal(np.where(f[...] > 0, f, g), np.where(a > 0, a, b))
    assert np.array_equal(np.add.reduce(f), a.sum(0))
    assert np.linalg.norm(f) == np.linalg.norm(a)


def test_numpys_functions_of_two_fields_are_numpys():
    lattice = Lattice(4, 3)
    (m, a), (n, b) = make(Matrix(2), 1, lattice), make(Matrix(2), 2, lattice)
    assert np.array_equal(np.multiply(m, n), a * b)
    assert np.allclose(m * n, a @ b)
    found = np.real(m)
    found[...] = 0  # a copy, as all of these
    assert np.array_equal(m, a)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_fields_take_values_of_lower_kinds(precision):
    lattice = Lattice(5, 7)
    whole, real, z = (Field(lattice, element, precision) for element in (Integer(), Real(), Complex()))
    v, w = Field(lattice, Vector(2, kind="real"), precision), Field(lattice, Vector(2))
    whole[...] = np.arange(-17, 18).reshape(5, 7)
    real[...] = whole
    assert np.array_equal(real, whole[...])
    real /= 8
    z[...] = 1j
    assert z.assign(real) is z
    assert np.array_equal(z, whole[...] / 8)
    z[...] = whole
    assert np.array_equal(z, whole[...])
    v[...] = np.arange(70).reshape(5, 7, 2)
    w[...] = v
    assert np.array_equal(w, v[...])
    for target, values in [(real, z), (whole, real), (z, v), (v, w)]:
        with pytest.raises(LayoutError, match="cannot assign a field of"):
            target[...] = values
        with pytest.raises(LayoutError, match="cannot assign a field of"):
            target.assign(values)


def test_an_expression_is_shown_as_it_was_written():
    lattice = Lattice(5, 7)
    f, g = Field(lattice, Real(), name="phi"), Field(lattice, Real())
    s = Field(lattice, Integer(), name="s")
    for expression, text in [
        (2 * f + g, "2.0 * phi + f1"),
        (2 * (f + g) / (f - (g - 1)), "2.0 * (phi + f1) / (phi - (f1 - 1.0))"),
        (-f * (-2), "-phi * -2.0"),
        (-(f**2) + (f + g) ** 3, "-phi**2 + (phi + f1)**3"),
        ((-f) ** 2 - abs(g) ** -0.5, "(-phi)**2 - abs(f1)**-0.5"),
        (jali.exp(f + g) * jali.maximum(f, 0.5), "exp(phi + f1) * maximum(phi, 0.5)"),
        ((f + g).dot(f).real, "(phi + f1).dot(phi).real"),
        ((f * 1j).conj().imag, "(phi * 1j).conj().imag"),
        ((s + 1) // 2 % 3, "(s + 1) // 2 % 3"),
        (s // -2 + s * (s % 3), "s // -2 + s * (s % 3)"),
        (f * lattice.scalar(2.0), "phi * n0"),
    ]:
        assert repr(expression) == f"<{text}, of fields on Lattice(5, 7); .field() computes it>"


def test_an_expression_that_grows_is_warned_of_once(pair):
    f = pair[0]

    def grown():
        x = f
        for _ in range(40):
            x = x + 0.5 * f

    with pytest.warns(RuntimeWarning, match=r"more than 32 operands(.|\n)*test_whole_fields.py") as warned:
        grown()
    assert len(warned) == 1


def test_a_precision_is_a_name_or_a_type_of_numpys():
    lattice = Lattice(4, 3)
    for given in (np.float32, np.dtype("float32"), "float32"):
        f = Field(lattice, Complex(), given)
        assert (f.precision, f.dtype) == ("float32", np.complex64)
        assert Field(lattice, Real()).astype(given).precision == "float32"
        assert GaugeField(lattice, SU(2), precision=given).precision == "float32"
    for wrong in (np.int32, "single", 32, None, np.float16, float):
        with pytest.raises(LayoutError, match="precision .* is unknown; use 'float64' or 'float32'"):
            Field(lattice, Real(), precision=wrong)


def test_operations_by_name():
    lattice = Lattice(4, 3)
    (m, a), (v, w), (f, x) = (
        make(Matrix(2), 1, lattice),
        make(Vector(2), 2, lattice),
        make(Real(), 3, lattice),
    )
    assert np.allclose(m.inverse() * m, np.eye(2))
    assert np.allclose(m.det(), np.linalg.det(a))
    assert np.array_equal(m.transpose(), a.swapaxes(-1, -2))
    assert np.allclose(v.dot(m * v), np.einsum("xyi,xyij,xyj->xy", w.conj(), a, w))
    assert np.allclose(v.outer(v), w[..., None] * w.conj()[..., None, :])
    assert np.array_equal(jali.maximum(f, 0), np.maximum(x, 0))
    assert np.array_equal(jali.minimum(0.5, f), np.minimum(x, 0.5))
    assert np.allclose(jali.atan2(f, 2.0), np.arctan2(x, 2.0))
    assert np.allclose(jali.power(2.0, f), 2.0**x)
    assert np.array_equal(round(3 * f), np.round(3 * x))


@pytest.mark.parametrize("function", METHODS, ids=lambda function: function.__name__)
def test_methods_of_symbols_are_methods_of_whole_fields(function):
    lattice, described = Lattice(4, 3), METHODS[function]
    count = len(inspect.signature(function).parameters)
    fields = [make(Matrix(2) if count == 1 else Vector(2), k, lattice)[0] for k in range(count)]
    if described.method in ("cholesky", "solve", "log_det"):
        fields[0] = Field(lattice, Hermitian(2))
        fields[0][...] = [[2, 1j], [-1j, 3]]
    if described.method == "norm2":
        values = lattice.sum(algebra._norm2, *fields)
        found = fields[0].norm2()
    else:
        found = getattr(type(fields[0]), described.method)
        found = (found.fget if described.is_property else found)(*fields)
        values = found.field()

        @jali.site_function
        def at_sites(X, out, fields):
            out[X] = function(*[f[X] for f in fields])

        values[...] = 0
        at_sites(values, fields)
    assert np.array_equal(found, values)


def test_a_function_that_is_made_later_takes_whole_fields(pair):
    f, a, g, b = pair
    capped = functions._two("capped", "minimum", min)
    modulus = functions._one("abs", abs)
    assert np.array_equal(capped(2 * f, g), np.minimum(2 * a, b))
    assert np.array_equal(capped(0.5, modulus(f)), np.minimum(0.5, abs(a)))
    assert repr(capped(modulus(f), 0.5)).startswith("<capped(abs(f0), 0.5), of fields")


def test_a_field_is_read_as_a_sequence_and_copied_as_an_array(pair):
    f, a, _, _ = pair
    assert np.array_equal(list(f), list(a))
    assert a[2, 3] in f
    for other in (copy.copy(f), copy.deepcopy(f)):
        other[...] = 0.0
        assert np.array_equal(f, a)


def test_scalars_in_expressions_keep_the_value_that_they_had(pair):
    f, a, _, _ = pair
    s = f.lattice.scalar(3.0)
    later = s * f
    s.assign(5.0)
    assert np.array_equal(later, 3 * a)
    f[...] = s
    assert np.all(f[...] == 5)


def test_one_kernel_serves_a_formula(pair):
    f, _, g, _ = pair
    f += 0.5 * g
    known = len(whole_fields.store._programs)
    for weight in (1.0, 2.0, -3):
        f += weight * g
    assert len(whole_fields.store._programs) == known


def test_a_field_that_changes_spoils_what_is_not_computed(pair):
    f, a, g, b = pair
    later = f + g
    f += 1
    with pytest.raises(LayoutError, match="has changed since it was written in an expression"):
        later.field()
    with pytest.raises(LayoutError, match="has changed between two parts"):
        later + f
    assert np.allclose(f + g, a + 1 + b)


def on_ranks() -> np.ndarray:
    f, g = Field(Lattice(9, 5), Complex()), Field(Lattice(9, 5), Complex())
    g = Field(f.lattice, Complex())
    f[...] = np.arange(45).reshape(9, 5)
    g[...] = 1j
    f += 2 * g
    return np.append(np.asarray(f * g).ravel(), [(f * g).sum(), f.norm2(), f.inner(g)])


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_compute_the_same(ranks):
    alone = on_ranks()
    assert np.allclose(alone[0], -2)
    assert all(np.array_equal(r, alone) for r in jali.virtual_ranks(ranks, on_ranks))


def test_expressions_in_graphs(pair):
    f, a, g, b = pair

    def step():
        f[...] = f + 2 * g

    repeated = jali.graph(step, f.lattice)
    for _ in range(3):
        repeated.run()
    assert np.allclose(f, a + 6 * b, rtol=1e-13)


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        (lambda f, g: f == 0, TraceError, "not compared as a whole"),
        (lambda f, g: f != np.zeros(3), TraceError, "not compared as a whole"),
        (lambda f, g: f > 0, TraceError, "not compared as a whole"),
        (lambda f, g: bool(f), TraceError, "neither true nor false"),
        (lambda f, g: float(f + g), TraceError, "is no number"),
        (lambda f, g: np.copyto(f, g), LayoutError, "copyto cannot write into a field"),
        (lambda f, g: np.add.at(f, (0, 0), 5), LayoutError, "cannot write into a field"),
        (lambda f, g: np.clip(f, 0, 1, out=f), LayoutError, "clip cannot write into a field"),
        (lambda f, g: np.cumsum(np.ones((5, 7)), axis=0, out=f), LayoutError, "cumsum cannot write"),
        (lambda f, g: pickle.dumps(f), TypeError, "is not pickled"),
        (lambda f, g: f % g, TypeError, "unsupported operand"),
        (lambda f, g: f + "x", TypeError, "unsupported operand"),
        (lambda f, g: f * f[...], LayoutError, "an array of NumPy do not combine"),
        (lambda f, g: f[...] * f, LayoutError, "an array of NumPy do not combine"),
        (lambda f, g: f + Field(Lattice(5, 7), Real()), LayoutError, "fields of one lattice combine"),
        (lambda f, g: (f + Field(f.lattice, Vector(2))).field(), TraceError, "shapes differ"),
        (lambda f, g: np.add(f, 1, out=f), LayoutError, "cannot write into a field"),
        (lambda f, g: np.asarray(f, copy=False), ValueError, "by a copy only"),
        (lambda f, g: f.__setitem__(0, g), LayoutError, r"takes values of shape \(7,\)"),
        (lambda f, g: (1j * f).max(), LayoutError, "complex numbers have no order"),
        (lambda f, g: f.inner(2), LayoutError, "takes a field"),
        (lambda f, g: f * 10**400, LayoutError, "float64"),
        (lambda f, g: f.assign(f + g), LayoutError, "a field is assigned"),
        (lambda f, g: f.set_local(f + g), LayoutError, "takes an array of numbers"),
        (lambda f, g: f.__iadd__(1j), TraceError, "complex"),
        (lambda f, g: whole_fields.store(f + g, [], [], ""), TraceError, r"pass \(\.\.\.\)\.field"),
    ],
)
def test_what_is_not_meant_is_refused(pair, what, error, says):
    f, a, g, _ = pair
    with pytest.raises(error, match=says):
        what(f, g)
    assert np.array_equal(f, a)


def test_identity_is_what_fields_are_equal_by(pair):
    f, _, g, _ = pair
    assert f == f
    assert f != g
    assert f in [g, f]
    assert {f: 1}[f] == 1
    assert f is not None
    assert f is not None


def test_fields_have_no_arithmetic_in_site_functions(pair):
    f, _, g, _ = pair

    @jali.site_function
    def wrong(X, out):
        out[X] = (f + 1)[X]

    with pytest.raises(TraceError, match="no arithmetic of its own in a site function"):
        wrong(g)


def test_matplotlib_takes_a_field(pair, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    f, a, _, _ = pair
    figure, (left, right) = pyplot.subplots(1, 2)
    image = left.imshow(f)
    (line,) = right.plot(f[2])
    line_of_field = right.plot(make(Real(), lattice=Lattice(6))[0])[0]
    figure.savefig(tmp_path / "field.png")
    pyplot.close(figure)
    assert np.array_equal(image.get_array(), a)
    assert np.array_equal(line.get_ydata(), a[2])
    assert len(line_of_field.get_ydata()) == 6
