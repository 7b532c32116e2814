"""Faults on purpose: each ends in its own error, the same on all ranks, with the residuals so far."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import jali
from jali import EVEN, ODD, SU, Field, Lattice, LayoutError, ParameterError, Spinor
from jali.errors import SolverError, StorageError
from jali.fermions import WilsonDirac, gamma5
from jali.gauge import GaugeField
from jali.solvers import (
    Inner,
    bicgstab,
    bicgstabl,
    block_cg,
    cg,
    cgls,
    cgnr,
    chebyshev,
    defect_correction,
    fgmres,
    gcr,
    lanczos,
    lsqr,
    minres,
    mr,
    multishift_cg,
)

every_number_of_ranks = pytest.mark.parametrize("ranks", [4, 1, 2])


def as_it_is(r, z):
    """A preconditioner that is none."""
    z.assign(r)


def halved_by_cgnr(A, b, **options):
    """Defect correction, whose inner solve is of the same operator."""
    return defect_correction(A, b, lambda r: cgnr(A, r, rtol=1e-2), like=b, **options)


# Of Hermitian positive operators, of others, and of those with an adjoint.
OF_POSITIVE: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "cg with M": functools.partial(cg, M=as_it_is),
    "minres": minres,
    "multishift_cg": lambda A, b, **options: multishift_cg(A, b, [0.0, 0.5], **options),
    "chebyshev": functools.partial(chebyshev, window=(2.0, 70.0)),
}
OF_ANY = {"bicgstab": bicgstab, "bicgstabl": bicgstabl, "gcr": gcr, "mr": mr, "fgmres": fgmres}
WITH_ADJOINT = {"cgnr": cgnr, "defect_correction": halved_by_cgnr}
LEAST_SQUARES = {"cgls": cgls, "lsqr": lsqr}


class Operator:
    """Of two functions."""

    def __init__(self, matvec, rmatvec=None):
        self.matvec = matvec
        if rmatvec is not None:
            self.rmatvec = rmatvec


class Setting:
    """A Wilson operator and a right-hand side, on a lattice that up to four ranks share."""

    def __init__(self):
        self.lattice = Lattice(4, 2, 8)
        self.U = GaugeField(self.lattice, SU(2)).hot_start(seed=2)
        self.D = WilsonDirac(self.U, 2.0)
        self.b = self.field(1)
        self.many = self.b.like(batch=2)
        for k in range(2):
            self.many.members[k].assign(self.field(1 + k))

    def field(self, seed, **options):
        b = Field(self.lattice, Spinor(2), **options)
        rng = np.random.default_rng(seed)
        b[...] = rng.normal(size=b.shape) + 1j * rng.normal(size=b.shape)
        return b

    def with_(self, value):
        """A field that is zero but for this value at one site, which one rank has."""
        damage = self.b.like()
        damage[...] = 0.0
        damage[0, 0, 5] = value
        return damage

    def few(self, mass, storage="float16"):
        """The operator with this mass in a storage of few bits, and a vector of it."""
        links = [u.like(precision="float32", storage=storage).assign(u) for u in self.U.fields]
        return WilsonDirac(links, mass), self.b.like(precision="float32", storage=storage).assign(self.b)


class Fault(NamedTuple):
    """A call that raises this error, whose message has these words, after so many iterations at least; -1: it has no residuals."""

    call: Callable[[Setting], Any]
    error: type[Exception]
    words: str
    iterations: int = -1


def check(ranks: int, faults: dict[str, Fault]) -> None:
    """Each call raises its error on each rank, with the same words and residuals."""

    def run() -> dict[str, tuple[type, str, int, str]]:
        setting, found = Setting(), {}
        for name, fault in faults.items():
            try:
                found[name] = type(fault.call(setting)), "no error", 0, ""
            except (SolverError, StorageError, ParameterError, LayoutError) as error:
                words = re.sub(r"field \d+|0x[0-9a-f]+", "", str(error))  # numbers that each rank counts
                history = getattr(error, "history", [])
                found[name] = type(error), words, len(history), repr(history)
        return found

    first, *others = jali.virtual_ranks(ranks, run)
    for name, fault in faults.items():
        kind, words, count, history = first[name]
        assert kind is fault.error, f"{name}: {kind.__name__}: {words}"
        assert re.search(fault.words, words), f"{name}: {words}"
        assert count > fault.iterations, f"{name}: {history}"
        assert all(other[name] == first[name] for other in others), name


# ---- operators that are not what they should be --------------------------------------------------------------


def with_adjoint(make: Callable[[Setting, Any], Any]) -> Callable[[Setting], Operator]:
    """The operator of a setting with another adjoint."""
    return lambda s: Operator(s.D.apply, lambda x: make(s, x))


WRONG_DAGGERS = {
    "D": with_adjoint(lambda s, x: s.D.apply(x)),
    "twice D^dagger": with_adjoint(lambda s, x: (2 * s.D.adjoint(x)).field()),
    "D^dagger + i": with_adjoint(lambda s, x: (s.D.adjoint(x) + 1j * x).field()),
}


@pytest.mark.short(1)
@every_number_of_ranks
def test_a_wrong_dagger(ranks):
    faults = {}
    for wrong, operator in WRONG_DAGGERS.items():
        for name, solver in (LEAST_SQUARES | {"cgnr": cgnr}).items():
            words = r"rmatvec is not the adjoint of matvec: \|A v\|\^2 = "
            faults[f"{name} of {wrong}"] = Fault(
                lambda s, solver=solver, operator=operator: solver(operator(s), s.b, maxiter=30),
                SolverError,
                words,
                0,
            )
        if wrong != "D":  # of twice D^dagger A^dagger A is Hermitian
            continue

        def normal(s, operator=operator):
            A = operator(s)
            return Operator(lambda x: A.rmatvec(A.matvec(x)))

        for name, solver in {
            "cg": cg,
            "multishift_cg": OF_POSITIVE["multishift_cg"],
            "minres": minres,
        }.items():
            faults[f"{name} of the normal operator of {wrong}"] = Fault(
                lambda s, solver=solver, normal=normal: solver(normal(s), s.b, maxiter=30),
                SolverError,
                "the operator is not Hermitian",
                0,
            )
        faults[f"cg of a batch of the normal operator of {wrong}"] = Fault(
            lambda s, normal=normal: cg(normal(s), s.many),
            SolverError,
            r"members 0, 1 of the batch: p\^dagger A p = .* is not real: the operator is not Hermitian",
            0,
        )
        faults[f"lanczos of the normal operator of {wrong}"] = Fault(
            lambda s, normal=normal: lanczos(normal(s), s.b, 2), SolverError, "the operator is not Hermitian"
        )
    check(ranks, faults)


@jali.site_function
def times_gamma5(X, out, psi):
    out[X] = gamma5 * psi[X]


def gamma5_D(s):
    """Hermitian, with as many negative eigenvalues as positive ones."""

    def matvec(x):
        out = x.like()
        times_gamma5(out, s.D.apply(x))
        return out

    return Operator(matvec)


@every_number_of_ranks
def test_an_indefinite_operator(ranks):
    faults = {}
    for name, words in {
        "cg": "not positive definite: eigenvalues reach from -",
        "cg with M": r"p\^dagger A p is not positive: the operator is singular, not positive definite or not Hermitian",
        "multishift_cg": "A \\+ 0, of the smallest shift: .* not positive definite: eigenvalues reach from -",
        "chebyshev": r"A has an eigenvalue near -.*, outside of window=\(2, 70\), and is not positive definite",
    }.items():
        faults[name] = Fault(lambda s, name=name: OF_POSITIVE[name](gamma5_D(s), s.b), SolverError, words, 0)
        if name != "multishift_cg":
            faults[f"{name} of a batch"] = Fault(
                lambda s, name=name: OF_POSITIVE[name](gamma5_D(s), s.many),
                SolverError,
                "of the batch: .*not positive",
                0,
            )
    faults["block_cg"] = Fault(
        lambda s: block_cg(gamma5_D(s), s.many),
        SolverError,
        r"D\^dagger A D is not positive definite: the operator is singular, not positive definite or not",
        0,
    )
    check(ranks, faults)


@every_number_of_ranks
def test_operators_without_a_dagger(ranks):
    faults = {}
    for name, solver in (LEAST_SQUARES | {"cgnr": cgnr}).items():
        faults[name] = Fault(
            lambda s, solver=solver: solver(Operator(s.D.apply), s.b),
            ParameterError,
            "has no adjoint, a function rmatvec",
        )
        faults[f"{name} of a function"] = Fault(
            lambda s, solver=solver: solver(s.D.apply, s.b),
            ParameterError,
            "is an operator with matvec and rmatvec, not <",
        )
    faults["an inner operator"] = Fault(
        lambda s: cgnr(s.D, s.b, inner=Inner(Operator(s.few(2.0)[0].apply), s.few(2.0)[1])),
        ParameterError,
        "the inner operator has no adjoint, a function rmatvec",
    )
    check(ranks, faults)


# ---- numbers that are none -----------------------------------------------------------------------------------


@pytest.mark.short(1)
@every_number_of_ranks
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_a_bad_number_at_one_site_of_one_rank(ranks, value):
    def damaged(s):
        def matvec(x):
            return (s.D.normal(x) + s.with_(value)).field()

        return Operator(matvec, matvec)

    faults = {}
    for name, solver in (OF_POSITIVE | OF_ANY | WITH_ADJOINT | LEAST_SQUARES).items():
        faults[f"{name}, in b"] = Fault(
            lambda s, solver=solver: solver(Operator(s.D.normal, s.D.normal), (s.b + s.with_(value)).field()),
            SolverError,
            r": b contains infinities or nan \(8 numbers\)"
            if np.isnan(value)
            else ": b contains infinities or nan",
        )
        words = "infinit|nan" if name != "chebyshev" else r"infinit|nan|\|r\| grows"
        faults[f"{name}, in A"] = Fault(
            lambda s, solver=solver: solver(damaged(s), s.b),
            SolverError,
            words,
            -1 if name in LEAST_SQUARES else 0,
        )
    faults["lanczos"] = Fault(lambda s: lanczos(damaged(s), s.b, 2), SolverError, "infinities or nan")

    def in_a_member(s):
        b = s.many.copy()
        b.members[1].assign((b.members[1] + s.with_(value)).field())
        return b

    for name, solver in {"cg": cg, "block_cg": block_cg}.items():
        faults[f"{name}, in a member of b"] = Fault(
            lambda s, solver=solver: solver(s.D.normal, in_a_member(s)),
            SolverError,
            "member 1 of the batch: b has infinities or nan",
        )
    check(ranks, faults)


@every_number_of_ranks
def test_a_format_of_16_bits_that_overflows(ranks):
    """D b has numbers of 1e5, float16 ends at 65504."""
    words = "sites? .*given values that the storage of their field cannot hold, by WilsonDirac"
    faults = {}
    for name, solver in ({"cg": cg, "gcr": gcr, "cgnr": cgnr, "bicgstab": bicgstab}).items():

        def plain(s, solver=solver, name=name):
            few, b = s.few(1e5)
            return solver(few.normal if name == "cg" else few, b, rtol=1e-2)

        def inside(s, solver=solver, name=name):
            few, like = s.few(1e5)
            D = WilsonDirac(s.U, 1e5)
            A, F = (D.normal, few.normal) if name == "cg" else (D, few)
            return solver(A, s.b, inner=Inner(F, like))

        faults[f"{name} in float16"] = Fault(plain, StorageError, words)
        faults[f"{name}, inner in float16"] = Fault(inside, StorageError, words)

    def at_one_site(s):
        few, like = s.few(2.0)
        return cg(few.normal, like.assign(s.with_(1e6)), rtol=1e-2)

    faults["b at one site"] = Fault(at_one_site, StorageError, "1 site was given values")
    check(ranks, faults)


# ---- arguments -----------------------------------------------------------------------------------------------


@every_number_of_ranks
def test_shifts_that_are_none(ranks):
    faults = {}
    for shifts, words in (
        ((0.0, 1e-50), r"shifts\[1\] = 1e-50 underflows in float32"),
        ((0.0, 1e50), r"shifts\[1\] = 1e\+50 overflows in float32"),
        ((0.5, 0.1), r"shifts\[1\] = 0\.1 follows 0\.5; sort them"),
        ((0.5, 0.5), r"shifts\[1\] = 0\.5 follows 0\.5; leave out one"),
    ):
        faults[str(shifts)] = Fault(
            lambda s, shifts=shifts: multishift_cg(
                s.few(2.0, "float32")[0].normal, s.few(2.0, "float32")[1], shifts
            ),
            ParameterError,
            words,
        )
    faults["negative"] = Fault(
        lambda s: multishift_cg(s.D.normal, s.b, [-20.0, 0.0]),
        SolverError,
        r"A \+ -20, of the smallest shift: .* not positive definite",
        1,
    )
    check(ranks, faults)


def operator_for(name, s):
    """The one that a solver is for."""
    return s.D.normal if name in OF_POSITIVE else s.D


@pytest.mark.short(1)
@every_number_of_ranks
def test_a_tolerance_of_zero_and_one_below_rounding(ranks):
    faults = {}
    for name, solver in (OF_POSITIVE | OF_ANY | WITH_ADJOINT).items():
        faults[f"{name}, 0"] = Fault(
            lambda s, name=name, solver=solver: solver(operator_for(name, s), s.b, rtol=0.0),
            ParameterError,
            "rtol is below 1, and rtol or atol above 0, not 0.0 and 0.0",
        )
        if ranks > 1 and name not in ("cg", "minres", "multishift_cg", "cgnr", "mr"):
            continue  # ends as these do: see the tests of one rank
        words = r"the tolerance( 1e-17)? is below what rounding in float64 allows"
        if name == "multishift_cg":
            words = "miss the tolerance 1e-17: .* below what rounding in float64 allows"
        faults[f"{name}, 1e-17"] = Fault(
            lambda s, name=name, solver=solver: solver(operator_for(name, s), s.b, rtol=1e-17),
            SolverError,
            words,
            1 if name == "multishift_cg" else 5,  # of two shifts
        )
    for name, solver in {"cg of a batch": cg, "block_cg": block_cg}.items():
        faults[f"{name}, 1e-17"] = Fault(
            lambda s, solver=solver: solver(s.D.normal, s.many, rtol=1e-17),
            SolverError,
            "members 0, 1 of the batch: .* is below what rounding in float64 allows",
            10,
        )
    faults["block_cg, 0"] = Fault(
        lambda s: block_cg(s.D.normal, s.many, rtol=0.0),
        ParameterError,
        "rtol is below 1, and rtol or atol above 0",
    )
    faults["cg in few bits, 1e-17"] = Fault(
        lambda s: cg(s.D.normal, s.b, rtol=1e-17, inner=Inner(s.few(2.0)[0].normal, s.few(2.0)[1])),
        SolverError,
        "the tolerance 1e-17 is below what rounding in float64 allows",
        10,
    )
    faults["lanczos, 0"] = Fault(
        lambda s: lanczos(s.D.normal, s.b, 2, rtol=0.0), ParameterError, r"rtol is between 0 and 1, not 0\.0"
    )
    faults["lanczos, 1e-17"] = Fault(
        lambda s: lanczos(s.D.normal, s.b, 2, rtol=1e-17),
        ParameterError,
        "below what rounding in float64 allows",
    )
    check(ranks, faults)


@every_number_of_ranks
def test_vectors_of_another_form(ranks):
    faults = {}
    for name, solver in (OF_POSITIVE | OF_ANY | WITH_ADJOINT | LEAST_SQUARES).items():

        def on(s, b, name=name, solver=solver):
            E = s.D.even_odd()
            if name in OF_POSITIVE:
                return solver(Operator(E.normal), b)
            return solver(E, b)

        faults[f"{name}, colour"] = Fault(
            lambda s, on=on: on(s, s.b.on(EVEN)), LayoutError, "acts on fields over ODD, and .* lives on EVEN"
        )
        faults[f"{name}, all sites"] = Fault(
            lambda s, on=on: on(s, s.b), LayoutError, "acts on fields over ODD, and .* lives on ALL"
        )

        def of_three(s, name=name, solver=solver):
            b = Field(s.lattice, Spinor(3))
            b[...] = 1.0
            return solver(operator_for(name, s), b)

        faults[f"{name}, colours"] = Fault(
            of_three, LayoutError, r"acts on fields of Spinor\(2\), .* holds Spinor\(3\)"
        )
        if name in ("multishift_cg", "defect_correction") or name in LEAST_SQUARES:
            continue
        for what, start, words in (
            ("members", lambda s: s.many, "x0 has 2 members, b has None"),
            ("colour", lambda s: s.b.on(ODD), "x0 lives on ODD, b on ALL"),
        ):
            faults[f"{name}, x0 of other {what}"] = Fault(
                lambda s, name=name, solver=solver, start=start: solver(operator_for(name, s), s.b, start(s)),
                LayoutError,
                words,
            )
    words = "has a batch of 2, and this solver is about one vector"
    for name, solver in LEAST_SQUARES.items():
        faults[f"{name}, batch"] = Fault(lambda s, solver=solver: solver(s.D, s.many), LayoutError, words)
    faults["multishift_cg, list"] = Fault(
        lambda s: multishift_cg(s.D.normal, [s.many, s.many], [0.0]), ParameterError, "a list"
    )
    faults["lanczos, batch"] = Fault(
        lambda s: lanczos(s.D.normal, s.many, 2), LayoutError, "like has a batch whose members"
    )
    faults["block_cg, x0 of one"] = Fault(
        lambda s: block_cg(s.D.normal, s.many, s.b), LayoutError, "x0 has None members, b has 2"
    )
    faults["block_cg, one"] = Fault(
        lambda s: block_cg(s.D.normal, s.b),
        ParameterError,
        "b is one right-hand side, and several share a space",
    )
    faults["an inner format of another batch"] = Fault(
        lambda s: cg(s.D.normal, s.b, inner=Inner(s.few(2.0)[0].normal, s.many.like(precision="float32"))),
        LayoutError,
        "inner: like is a vector of the form of b",
    )
    check(ranks, faults)


@every_number_of_ranks
@pytest.mark.parametrize("solver", [cg, block_cg])
def test_dependent_right_hand_sides_are_none(ranks, solver):
    """Each has its solution, and a combination of two that of theirs."""

    def run():
        s = Setting()
        b = s.b.like(batch=3)
        for k in range(2):
            b.members[k].assign(s.many.members[k])
        b.members[2].assign((s.many.members[0] - 2 * s.many.members[1]).field())
        found = solver(s.D.normal, b)
        rest = (b - s.D.normal(found.x))[...]
        sizes = [np.linalg.norm(rest[..., k, :, :]) / np.linalg.norm(b.members[k][...]) for k in range(3)]
        assert max(sizes) <= 1e-10
        assert [one.residual for one in found.members] == pytest.approx(sizes, rel=1e-3)
        x = [found.x.members[k][...] for k in range(3)]
        assert np.allclose(x[2], x[0] - 2 * x[1], rtol=0, atol=1e-9)
        return [one.history for one in found.members]

    first, *others = jali.virtual_ranks(ranks, run)
    assert all(other == first for other in others)


@every_number_of_ranks
def test_an_inner_operator_of_another_mass(ranks):
    check(
        ranks,
        {
            "cg": Fault(
                lambda s: cg(s.D.normal, s.b, inner=Inner(s.few(4.0)[0].normal, s.few(4.0)[1])),
                SolverError,
                "the recursion has lost it: the inner operator is another one than A",
                5,
            )
        },
    )
