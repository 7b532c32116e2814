"""A redefined method switches off what stands beside it: solvers solve the operator that a subclass is."""

from __future__ import annotations

import inspect
import types

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Real, Spinor
from jali.arrays import from_field
from jali.beside import beside, beside_method, made_of
from jali.fermions import WilsonDirac, gamma5
from jali.gauge import SU, GaugeField
from jali.lattice.algebra import inner
from jali.linops import SiteOperator
from jali.solvers import CG, cg, cgls, lsqr, power_iteration

SHAPE = (6, 4)


@jali.site_function
def helmholtz(X, out, phi):
    total = 5.0 * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def numpy_helmholtz(v):
    return 5.0 * v - sum(np.roll(v, step, axis) for axis in (0, 1) for step in (1, -1))


class OfMatvec(SiteOperator):
    def matvec(self, x):
        return (super().matvec(x) + 3.0 * x).field()

    rmatvec = matvec


class OfPrivate(SiteOperator):
    def _matvec(self, x):
        return (super()._matvec(x) + 3.0 * x).field()

    _rmatvec = _matvec


class OfApply(SiteOperator):
    def _apply(self, x, forward):
        return (super()._apply(x, forward) + 3.0 * x).field()


class OfRun(SiteOperator):
    def _run(self, forward, out, x):
        super()._run(forward, out, x)
        out += 3.0 * x
        return out


class Heir(OfPrivate):
    pass


class Shift:
    def _matvec(self, x):
        return (super()._matvec(x) + 3.0 * x).field()

    _rmatvec = _matvec


class Mixed(Shift, SiteOperator):
    pass


class Counted(SiteOperator):
    """Has forms of its own, and does not say what they are made of: what it redefines does."""

    def matvec_kept(self, x):
        return super().matvec_kept(x)

    def matvec_inner(self, x, wait=True):
        return super().matvec_inner(x, wait)

    def matvec_norm2(self, x, wait=True):
        return super().matvec_norm2(x, wait)


class OfCounted(Counted):
    def _apply(self, x, forward):
        return (super()._apply(x, forward) + 3.0 * x).field()


def of_its_own():
    """An operator whose methods the object itself redefines."""
    A = SiteOperator(helmholtz, SHAPE, adjoint=helmholtz)
    A._matvec = A._rmatvec = lambda x: (A._apply(x, True) + 3.0 * x).field()
    return A


class Around:
    """Has all attributes of another operator, and another `matvec`."""

    def __init__(self):
        self.A = SiteOperator(helmholtz, SHAPE, adjoint=helmholtz)

    def __getattr__(self, name):
        return getattr(self.A, name)

    def matvec(self, x):
        return (self.A.matvec(x) + 3.0 * x).field()

    rmatvec = matvec


SHIFTED = [OfMatvec, OfPrivate, OfApply, OfRun, Heir, Mixed, OfCounted, of_its_own, Around]


def operator(kind):
    return kind() if kind in (of_its_own, Around) else kind(helmholtz, SHAPE, adjoint=helmholtz)


class Plain:
    """The two functions of an operator, and nothing beside them."""

    def __init__(self, A):
        self.matvec, self.rmatvec, self.dtype = A.matvec, A.rmatvec, A.dtype


def filled(element=None, lattice=None, seed=1, **options):
    field, rng = Field(lattice or Lattice(*SHAPE), element or Real(), **options), np.random.default_rng(seed)
    values = rng.normal(size=field.shape)
    field[...] = values + 1j * rng.normal(size=values.shape) if np.iscomplexobj(field[...]) else values
    return field


@pytest.mark.parametrize("solver", [cg, cgls, lsqr], ids=lambda solver: solver.__name__)
@pytest.mark.parametrize("kind", SHIFTED, ids=lambda kind: kind.__name__)
def test_solvers_solve_the_operator_that_a_subclass_is(kind, solver):
    op, b = operator(kind), filled()
    bounds = {"atol": 1e-12, "btol": 1e-12} if solver is lsqr else {"rtol": 1e-10}
    found, plain = solver(op, b, **bounds), solver(Plain(op), b, **bounds)
    x = found.x[...]
    assert np.abs(numpy_helmholtz(x) + 3.0 * x - b[...]).max() < 1e-8
    assert found.iterations == plain.iterations
    assert x.tobytes() == plain.x[...].tobytes()


@pytest.mark.parametrize("kind", SHIFTED, ids=lambda kind: kind.__name__)
@pytest.mark.short(4)
def test_eigenvalues_and_steps_are_those_of_the_subclass(kind):
    op, b = operator(kind), filled()
    one, two = (power_iteration(A, b, rtol=1e-8) for A in (op, Plain(op)))
    assert one.eigenvalue == two.eigenvalue > 9.0  # without the shift it is at most 9
    assert np.array_equal(*(CG(A).solve(b, damp=0.5).cost for A in (op, Plain(op))))


@pytest.mark.parametrize("kind", [k for k in SHIFTED if k is not Around], ids=lambda kind: kind.__name__)
@pytest.mark.short(3)
def test_operators_made_of_subclasses_are_made_of_what_these_are(kind):
    def once(v):
        return numpy_helmholtz(v) + 3.0 * v

    op, b = operator(kind), filled()
    for made, right in (
        (2 * op, lambda v: 2 * once(v)),
        (op.H, once),
        (op.T, once),
        (op.conj(), once),
        (op + op.H, lambda v: 2 * once(v)),
        (op @ op, lambda v: once(once(v))),
        (op**2, lambda v: once(once(v))),
        (-op - op, lambda v: -2 * once(v)),
    ):
        for function in (made.matvec, made.rmatvec):
            assert np.allclose(function(b)[...], right(b[...]), rtol=1e-13, atol=1e-13)
        found, plain = (cgls(A, b, rtol=1e-8).x[...] for A in (made, Plain(made)))
        assert found.tobytes() == plain.tobytes()
        assert np.allclose(right(found), b[...], atol=1e-5)


def test_arrays_in_the_memory_of_fields_are_solved_for_the_subclass():
    class Twice(SiteOperator):
        def _apply(self, x, forward):
            return 2.0 * super()._apply(x, forward)

    b = from_field(filled())
    x = cg(operator(Twice), b, rtol=1e-10).x
    assert np.abs(2.0 * numpy_helmholtz(x.asarray()) - b.asarray()).max() < 1e-8


# ---- what they are made of -----------------------------------------------------------------------------


def called(kind, name, make, call):
    """Whether a call on an object calls its method NAME."""
    calls = []

    def counted(self, *args, **named):
        calls.append(name)
        return getattr(super(found, self), name)(*args, **named)

    found = type(kind.__name__, (kind,), {name: counted})
    made = make(found)
    calls.clear()
    call(made)
    return bool(calls)


def check_parts(kind, make, name, what, x):
    """What NAME calls is called by NAME_what too, or switches it off."""
    for method, _ in inspect.getmembers(kind, inspect.isfunction):
        formula = isinstance(inspect.getattr_static(kind, method), staticmethod)  # both run it, or neither
        if method.startswith("__") or method == f"{name}_{what}" or formula:
            continue
        if not called(kind, method, make, lambda op: getattr(op, name)(x)):
            continue
        redefined = type("Redefined", (kind,), {method: getattr(kind, method)})
        if beside(make(redefined), name, what) is not None:
            assert called(kind, method, make, lambda op: getattr(op, f"{name}_{what}")(x)), method


@pytest.mark.parametrize("shape", [(6, 4), (8,)])
@pytest.mark.parametrize(
    ("name", "what"), [("matvec", "kept"), ("matvec", "inner"), ("matvec", "norm2"), ("rmatvec", "kept")]
)
def test_what_a_site_operator_calls_is_called_by_what_stands_beside_it_or_switches_it_off(name, what, shape):
    field = filled(lattice=Lattice(*shape))
    for x in (field, from_field(field)):
        check_parts(SiteOperator, lambda kind: kind(helmholtz, shape, adjoint=helmholtz), name, what, x)


def test_what_the_wilson_operator_calls_is_called_by_what_stands_beside_it_or_switches_it_off():
    U = GaugeField(Lattice(4, 2, 2, 2), SU(2)).hot_start(seed=1)
    check_parts(WilsonDirac, lambda kind: kind(U, 0.5), "normal", "inner", filled(Spinor(2), U.lattice))


# ---- the Wilson operator -------------------------------------------------------------------------------


@jali.site_function
def add_twist(X, out, psi, mu):
    out[X] = out[X] + 1j * mu * (gamma5 * psi[X])


class Twisted(WilsonDirac):
    """D + i mu gamma_5, whose normal operator is D^dagger D + mu^2."""

    def apply(self, psi, out=None):
        out = super().apply(psi, out)
        add_twist(out, psi, 0.7)
        return out

    def adjoint(self, psi, out=None):
        out = super().adjoint(psi, out)
        add_twist(out, psi, -0.7)
        return out


class OfAdjoint(WilsonDirac):
    def adjoint(self, psi, out=None):
        out = super().adjoint(psi, out)
        out *= 2
        return out


class OfNormal(WilsonDirac):
    def normal(self, psi, out=None):
        out = super().normal(psi, out)
        out += 0.49 * psi
        return out


@pytest.mark.parametrize(
    ("kind", "scale", "shift"), [(Twisted, 1, 0.49), (OfAdjoint, 2, 0), (OfNormal, 1, 0.49)]
)
def test_conjugate_gradients_take_the_normal_operator_of_the_subclass(kind, scale, shift):
    U = GaugeField(Lattice(4, 2, 2, 2), SU(3)).hot_start(seed=1)
    b, D, base = filled(Spinor(3), U.lattice), kind(U, 0.5), WilsonDirac(U, 0.5)
    found, plain = cg(D.normal, b, rtol=1e-9), cg(lambda p, q: D.normal(p, q), b, rtol=1e-9)
    assert found.history == plain.history
    x = found.x
    assert np.abs(scale * base.normal(x)[...] + shift * x[...] - b[...]).max() < 1e-6
    if kind is not OfNormal:
        out, number = D.normal_inner(b)
        assert np.array_equal(out[...], D.normal(b)[...])
        assert number == inner(b, out).real


def test_methods_that_an_object_redefines_are_those_that_are_solved():
    U = GaugeField(Lattice(4, 2, 2, 2), SU(2)).hot_start(seed=1)
    b, base = filled(Spinor(2), U.lattice), WilsonDirac(U, 0.5)
    for name, factor in (("adjoint", 2.0), ("normal", 3.0)):
        D = WilsonDirac(U, 0.5)

        def scaled(self, psi, out=None, name=name, factor=factor):
            out = getattr(WilsonDirac, name)(self, psi, out)
            out *= factor
            return out

        scaled.__name__ = name
        setattr(D, name, types.MethodType(scaled, D))
        x = cg(D.normal, b, rtol=1e-9).x
        assert np.abs(factor * base.normal(x)[...] - b[...]).max() < 1e-6
        assert cg(base.normal, b).history == cg(lambda p, q: base.normal(p, q), b).history


# ---- the rule ------------------------------------------------------------------------------------------


class Base:
    def step(self):
        return self.half()

    def half(self):
        return 1

    @made_of("half")
    def step_inner(self):
        return "of the base"


class OfHalf(Base):
    def half(self):
        return 2


def test_the_rule_looks_at_what_is_in_front_of_the_definition():
    class Own(OfHalf):
        def step_inner(self):
            return "its own"

    class Again(Own):
        def half(self):
            return 3

    class Behind(OfHalf):
        def step(self):
            return 4

        def step_inner(self):
            return "of both"

    class Off(Base):
        step_inner = None

    class Private(Base):
        def _step(self):
            return 5

    found = {
        kind: beside(kind(), "step", "inner") for kind in (Base, OfHalf, Own, Again, Behind, Off, Private)
    }
    assert {kind.__name__: f and f() for kind, f in found.items()} == {
        "Base": "of the base",
        "OfHalf": None,
        "Own": "its own",
        "Again": None,
        "Behind": "of both",
        "Off": None,
        "Private": None,
    }


def test_the_object_itself_may_have_both():
    pair = types.SimpleNamespace(matvec=lambda x: x, matvec_inner=lambda x, wait=True: (x, None))
    assert beside(pair, "matvec", "inner") is pair.matvec_inner
    one = Base()
    one.step = lambda: 6
    assert beside(one, "step", "inner") is None


def test_a_method_stands_for_its_object_by_its_own_name_only():
    class Other(Base):
        def step(self):
            return 7

    one = Other()
    assert beside_method(Base().step, "inner") is not None
    for function in (
        one.step,
        super(Other, one).step,
        types.MethodType(Base.step, one),
        lambda: None,
        np.multiply,
        np.ones(3).dot,
        [].append,
    ):
        assert beside_method(function, "inner") is None
