"""Conjugate gradients on a batch: the bits of single solves, member by member."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Real, Spinor, Vector
from jali.comm.virtual import virtual_ranks
from jali.errors import SolverError
from jali.fermions import Staggered, WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import Inner, bicgstab, block_cg, cg, fgmres, leaving
from jali.vectors import vectors_of


def batch_of(singles):
    f = singles[0].like(batch=len(singles))
    for k, single in enumerate(singles):
        f.members[k].assign(single)
    return f


@jali.site_function
def helmholtz(X, out, phi, m2):
    total = (m2 + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


@jali.site_function
def helmholtz_of_members(X, out, phi, m2):
    """Another mass for each member."""
    total = (m2[X.member] + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def sources(lattice, element, members, **options):
    rng = np.random.default_rng(4)
    found = []
    for k in range(members):
        b = Field(lattice, element, **options)
        values = 10.0**k * rng.normal(size=b.shape)
        b[...] = values if element == Real() else values + 1j * rng.normal(size=b.shape)
        found.append(b)
    return found


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_each_member_has_the_history_that_it_has_alone(precision, ranks):
    rtol = 1e-9 if precision == "float64" else 1e-5
    masses = np.array([0.05, 3.0, 40.0])  # which take different numbers of iterations

    def run():
        singles = sources(Lattice(6, 8), Real(), 3, precision=precision)
        alone = [
            cg(lambda p, q, m=m: helmholtz(q, p, m), b, rtol=rtol)
            for m, b in zip(masses.tolist(), singles, strict=True)
        ]
        b = batch_of(singles)
        found = cg(lambda p, q: helmholtz_of_members(q, p, masses), b, rtol=rtol)
        for check_interval in (1, 3):  # a graph, whose numbers stay
            again = cg(
                lambda p, q: helmholtz_of_members(q, p, masses), b, rtol=rtol, check_interval=check_interval
            )
            assert [member.history for member in again.members] == [
                member.history for member in found.members
            ]
            assert again.x.stored_bytes().tobytes() == found.x.stored_bytes().tobytes()
        assert found.converged
        assert len(found) == 3
        assert len({member.iterations for member in found.members}) == 3
        assert found.iterations == max(one.iterations for one in alone)
        for k, one in enumerate(alone):
            assert found[k].history == one.history
            assert found[k].residual == one.residual
            assert found[k].x.stored_bytes().tobytes() == one.x.stored_bytes().tobytes()
        return [member.history for member in found.members]

    assert virtual_ranks(ranks, run) == [run()] * ranks


def test_wilsons_operator_even_odd_on_a_batch():
    lattice = Lattice(4, 4, 2, 4)
    D = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.4)
    singles = sources(lattice, Spinor(3), 2, boundary={3: "antiperiodic"})
    b, E = batch_of(singles), D.even_odd()
    found = cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-9)
    x = E.reconstruct(found.x, b)
    for k, single in enumerate(singles):
        one = D.even_odd()
        alone = cg(one.normal, one.adjoint(one.prepare(single)), rtol=1e-9)
        assert alone.history == found[k].history
        assert (
            x.members[k].stored_bytes().tobytes() == one.reconstruct(alone.x, single).stored_bytes().tobytes()
        )


def test_starts_zeros_and_tolerances():
    singles = sources(Lattice(4, 6), Real(), 3)
    singles[1][...] = 0.0
    b = batch_of(singles)
    operator = lambda p, q: helmholtz(q, p, 0.3)  # noqa: E731
    found = cg(operator, b, rtol=1e-8)
    assert [member.iterations > 0 for member in found.members] == [True, False, True]
    assert not np.any(found[1].x[...])
    again = cg(operator, b, found.x, rtol=1e-6)
    assert again.iterations == 0
    late = cg(operator, b, rtol=1e-12, maxiter=3, must_converge=False)
    assert [member.converged for member in late.members] == [False, True, False]
    assert late.iterations == 3
    assert "3, 0, 3 iterations" in repr(late)
    loose = cg(operator, b, rtol=0, atol=0.1 * float(np.sqrt(b.norm2()[2])))
    assert loose[0].iterations == 0
    assert loose[2].iterations > 0


@pytest.mark.parametrize(
    ("solve", "error", "match"),
    [
        (
            lambda b: cg(lambda p, q: helmholtz_of_members(q, p, np.array([1.0, -9.0])), b),
            SolverError,
            "member 1 of the batch: p.dagger A p is not positive",
        ),
        (
            lambda b: cg(lambda p, q: helmholtz(q, p, 0.1), b, maxiter=2),
            SolverError,
            "members 0, 1 of the batch: no convergence",
        ),
        (
            lambda b: cg(lambda p, q: helmholtz(q, p, 0.1), b, b.members[0]),
            LayoutError,
            "has None members, b has 2",
        ),
        (lambda b: cg(lambda p, q: None, b, callback=3), ParameterError, "a callback is a function of x"),
        (lambda b: cg(3, b), ParameterError, "the operator has a function matvec"),
        (
            lambda b: vectors_of("b", b).update([(b, 1, [(np.ones(3), b.like())])]),
            LayoutError,
            r"factors of shape \(3,\)",
        ),
    ],
)
def test_mistakes_name_the_member(solve, error, match):
    with pytest.raises(error, match=match):
        solve(batch_of(sources(Lattice(4, 4), Real(), 2)))
    bad = batch_of(sources(Lattice(4, 4), Real(), 2))
    bad[0, 0, 1] = np.nan
    with pytest.raises(SolverError, match="member 1 of the batch: b has infinities or nan"):
        cg(lambda p, q: helmholtz(q, p, 0.1), bad)


# ---- members that leave ------------------------------------------------------------------------------------------------


def of_many_sizes():
    """Members of which the small ones reach an absolute bound early."""
    lattice = Lattice(4, 4, 4)
    b = Field(lattice, Spinor(3), batch=6)
    rng = np.random.default_rng(1)
    for k, size in enumerate([1.0, 1e-3, 1e-5, 1.0, 1e-7, 1e-8]):
        shape = b.members[k].shape
        b.members[k][...] = size * (rng.normal(size=shape) + 1j * rng.normal(size=shape))
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    few = WilsonDirac([u.astype("float32") for u in U.fields], 0.3)
    return WilsonDirac(U, 0.3), few, b, 1e-10 * float(np.sqrt(b.norm2().max()))


@pytest.fixture
def left(monkeypatch):
    """Who went on each time."""
    found, begin = [], leaving.Rest.__init__

    def noted(self, run, ids):
        found.append(ids)
        begin(self, run, ids)

    monkeypatch.setattr(leaving.Rest, "__init__", noted)
    return found


@pytest.mark.parametrize(
    ("solver", "few_bits"), [(cg, False), (cg, True), (bicgstab, False), (fgmres, False)]
)
@pytest.mark.short(2)
def test_those_that_go_on_have_the_same_bits_when_others_leave(solver, few_bits, left):
    D, few, b, atol = of_many_sizes()
    A, inside = (D.normal, few.normal) if solver is cg else (D, few)
    options = {"rtol": 1e-13, "atol": atol}
    if few_bits:
        options["inner"] = Inner(inside, b.like(precision="float32", storage="float16"))
    all_stay = solver(A, b, **options)
    assert not left
    for check_interval in (None, 1):
        found = solver(A, b, leave=1, check_interval=check_interval, **options)
        assert [one.history for one in found.members] == [one.history for one in all_stay.members]
        assert [one.residual for one in found.members] == [one.residual for one in all_stay.members]
        assert found.x[...].tobytes() == all_stay.x[...].tobytes()
        assert left
        assert {0, 3} <= set(left[0]) <= {0, 1, 3}
        left.clear()
    solver(A, b, leave=10_000, **options)
    assert not left


def test_errors_of_those_that_go_on_name_their_members(left):
    D, _, b, atol = of_many_sizes()
    needed = cg(D.normal, b, rtol=1e-13, atol=atol).iterations
    with pytest.raises(SolverError, match=r"members 0, 3 of the batch: no convergence") as raised:
        cg(D.normal, b, rtol=1e-13, atol=atol, leave=2, maxiter=needed - 1)
    assert left
    assert len(raised.value.history) == needed
    assert len(raised.value.history[-1]) == 6


def test_operators_of_members_of_their_own_are_refused_where_members_leave():
    b = batch_of(sources(Lattice(6, 8), Real(), 6))
    masses = np.array([3.0, 40.0, 40.0, 40.0, 40.0, 0.05])

    def A(p, q):
        helmholtz_of_members(q, p, masses)

    with pytest.raises(ParameterError, match=r"leave is for operators that do the same to each member"):
        cg(A, b, rtol=1e-11, leave=2)
    assert cg(A, b, rtol=1e-11).converged
    with pytest.raises(ParameterError, match="leave is a positive whole number, not 0"):
        cg(A, b, leave=0)


def test_where_no_member_can_leave_it_is_an_error():
    D, _, b, atol = of_many_sizes()
    kept = b.like()

    def A(p, q):
        D.apply(p, kept)  # of all members
        D.adjoint(kept, q)

    with pytest.raises(ParameterError, match="A does not act on a batch of 3: .*; leave it out"):
        cg(A, b, rtol=1e-13, atol=atol, leave=3)
    with pytest.raises(ParameterError, match="block_cg: no member leaves, since all share one space"):
        block_cg(D.normal, b, leave=3)


# ---- members that wait for others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_interval", [None, 1])
@pytest.mark.parametrize("few_bits", [False, True])
def test_a_member_that_goes_on_after_it_has_waited_has_the_history_that_it_has_alone(
    few_bits, check_interval
):
    """In float32 the true residual is above that of the recursion, so members begin again, together; with few bits inside all wait for updates."""
    lattice = Lattice(4, 4, 4, 4)
    K = Staggered(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.1)
    low = K.in_format(precision="float32")
    singles = sources(lattice, Vector(3), 2)
    if few_bits:
        A, options = K.normal, {"rtol": 1e-7}
        inner = {"inner": Inner(low.normal, singles[0].like(precision="float32"))}
        several = {"inner": Inner(low.normal, singles[0].like(precision="float32", batch=2))}
    else:
        A, options, inner, several = low.normal, {"rtol": 1e-4}, {}, {}
        singles = [one.astype("float32") for one in singles]
    found = cg(A, batch_of(singles), check_interval=check_interval, **options, **several)
    for k, one in enumerate(singles):
        alone = cg(A, one, **options, **inner)
        assert found[k].history == alone.history
        assert found[k].iterations == alone.iterations == len(alone.history) - 1
        assert np.array_equal(found.x.members[k][...], alone.x[...])
