"""Solvers against dense NumPy: each on all operators, forms and formats, and the iterations that are known.

The matrix of an operator is that of its columns; those of its adjoint, its normal operator and its even-odd forms follow by NumPy.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from jali import EVEN, ODD, SU, Field, Lattice
from jali.fermions import (
    CloverDirac,
    Dirac,
    DomainWallDirac,
    Staggered,
    TwistedMassDirac,
    WilsonDirac,
)
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
    lsqr,
    minres,
    mr,
    multishift_cg,
)

EXTENTS = 2, 2, 2, 2
OPERATORS: dict[str, Callable[[Any], Dirac]] = {
    "Wilson": lambda U: WilsonDirac(U, 0.5),
    "clover": lambda U: CloverDirac(U, 0.5, 1.3),
    "twisted mass": lambda U: TwistedMassDirac(U, 0.5, 0.3),
    "staggered": lambda U: Staggered(U, 0.5),
    "domain wall": lambda U: DomainWallDirac.shamir(U, 0.4, 1.4, Ls=3),
}


class Form(NamedTuple):
    """A form of a Dirac operator: as an operator, and as a matrix, of blocks oo, oe, eo, ee."""

    of: Callable[[Any], Any]
    over: Any
    matrix: Callable[..., np.ndarray]


def schur(oo, oe, eo, ee):
    return oo - oe @ np.linalg.solve(ee, eo)


FORMS = {
    "D": Form(lambda D: D, None, lambda oo, oe, eo, ee: np.block([[oo, oe], [eo, ee]])),
    "D^dagger": Form(
        lambda D: D.dagger, None, lambda oo, oe, eo, ee: np.block([[oo, oe], [eo, ee]]).conj().T
    ),
    "even-odd": Form(lambda D: D.even_odd(), ODD, schur),
    "even-odd, on even sites": Form(
        lambda D: D.even_odd(EVEN), EVEN, lambda oo, oe, eo, ee: schur(ee, eo, oe, oo)
    ),
    "symmetric": Form(
        lambda D: D.even_odd(form="symmetric"),
        ODD,
        lambda oo, *others: np.linalg.solve(oo, schur(oo, *others)),
    ),
    "symmetric^dagger": Form(
        lambda D: D.even_odd(form="symmetric").dagger,
        ODD,
        lambda oo, *others: np.linalg.solve(oo, schur(oo, *others)).conj().T,
    ),
}
FORMATS = {  # of b and x, and of an inner recursion
    "float64": ("float64", None),
    "float32": ("float32", None),
    "float64 by float32": ("float64", ("float32", None)),
    "float64 by float16": ("float64", ("float32", "float16")),
    "float64 by fixed16": ("float64", ("float32", "fixed16")),
}
SHIFTS = 0.0, 0.3, 2.0


def halved(r, z):
    """A preconditioner that is a multiple of the identity."""
    z[...] = 0.5 * r


def corrected(A, b, *, rtol):
    return defect_correction(A, b, lambda r: cgnr(A, r, rtol=1e-2), like=b, rtol=rtol)


def shifted(A, b, *, rtol):
    return multishift_cg(A, b, SHIFTS, rtol=rtol)


# Of A, and of A^dagger A.
OF_ANY: dict[str, Callable[..., Any]] = {
    "cgnr": cgnr,
    "bicgstab": bicgstab,
    "bicgstabl": functools.partial(bicgstabl, directions=4),
    "gcr": functools.partial(gcr, restart=16),
    "mr": mr,
    "fgmres": functools.partial(fgmres, restart=16),
    "defect_correction": corrected,
    "cgls": lambda A, b, *, rtol: cgls(A, b, rtol=rtol / 100, maxiter=3000),  # of |A^H r|
    "lsqr": lambda A, b, *, rtol: lsqr(A, b, atol=rtol / 100, btol=rtol / 100),
}
OF_NORMAL: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "cg with M": functools.partial(cg, M=halved),
    "block_cg": block_cg,
    "minres": minres,
    "multishift_cg": shifted,
    "chebyshev": chebyshev,  # with the window of the matrix
    "gcr": OF_ANY["gcr"],
    "bicgstab": bicgstab,
    "bicgstabl": OF_ANY["bicgstabl"],
    "fgmres": OF_ANY["fgmres"],
}
ONE_VECTOR = ("multishift_cg", "cgls", "lsqr", "defect_correction")
OF_WALLS = (
    "cgnr",
    "defect_correction",
)  # of a spectrum on both sides of zero, and of members that are one vector


class Case(NamedTuple):
    """An operator in a form and a format, and a solver of it or of its normal operator."""

    operator: str
    form: str
    normal: bool
    solver: str
    format: str
    batch: int | None

    def __str__(self) -> str:
        what = f"normal of {self.form}" if self.normal else self.form
        return f"{self.solver}: {self.operator}, {what}, {self.format}" + f", {self.batch} members" * bool(
            self.batch
        )


def cases() -> Iterator[Case]:
    """All that make sense."""
    for operator, form, normal, format in itertools.product(OPERATORS, FORMS, (False, True), FORMATS):
        for name, solver in (OF_NORMAL if normal else OF_ANY).items():
            walls = operator == "domain wall"
            if walls and not normal and name not in OF_WALLS:
                continue
            if walls and name == "block_cg":  # the batch is the fifth direction
                continue
            if name == "mr" and operator == "staggered" and form in ("D", "D^dagger"):
                continue  # which takes thousands of iterations
            if name == "bicgstabl" and normal and FORMATS[format][1]:
                continue  # powers of A^dagger A, of which 16 bits overflow
            if FORMATS[format][1] and "inner" not in inspect.signature(solver).parameters:
                continue
            if format != "float64" and form not in ("D", "even-odd", "symmetric^dagger"):
                continue
            for batch in (None, 2):
                alone = walls or name in ONE_VECTOR
                if batch == 2 and (alone or format != "float64"):
                    continue
                if batch is None and name == "block_cg":
                    batch = 2
                yield Case(operator, form, normal, name, format, batch)


CASES = random.Random(51).sample(sorted(set(cases()), key=str), 240)
# Without those whose kernels take long: of clover terms, and of domain walls and batches in few bits.
FEW = [
    case
    for case in CASES
    if case.operator != "clover" and (case.operator != "domain wall" or case.format == "float64")
][:12]


@functools.cache
def dirac(operator: str) -> Dirac:
    U = GaugeField(Lattice(*EXTENTS), SU(3)).hot_start(seed=3)
    return OPERATORS[operator](U)


def vector(D: Dirac, over: Any = None, **options: Any) -> Field:
    """A field that D acts on, antiperiodic in time."""
    walls = {"batch": D.Ls} if isinstance(D, DomainWallDirac) else {}
    more = {} if over is None else {"over": over}
    return Field(D.lattice, D.element, boundary={3: "antiperiodic"}, **(walls | more | options))


def mask(over: Any) -> np.ndarray:
    """Where the sites of a colour are; None: all."""
    parity = np.indices(EXTENTS).sum(axis=0) % 2
    return parity >= 0 if over is None else parity == (1 if over is ODD else 0)


def numbers(x: Field, over: Any, member: int | None = None) -> np.ndarray:
    """Those of a field on the sites of a colour; odd sites come before even ones."""
    values = x[...] if member is None else x.members[member][...]
    parts = (ODD, EVEN) if over is None else (over,)
    return np.concatenate([values[mask(part)].reshape(-1) for part in parts]).astype(complex)


@functools.cache
def blocks(operator: str) -> tuple[np.ndarray, ...]:
    """The matrix of D, column by column: its parts oo, oe, eo, ee."""
    D = dirac(operator)
    unit, out = vector(D), vector(D)
    columns = []
    for over in (ODD, EVEN):
        for site in np.argwhere(mask(over)):
            for component in itertools.product(*map(range, unit.shape[4:])):
                values = np.zeros(unit.shape, complex)
                values[(*site, *component)] = 1.0
                unit[...] = values
                D.apply(unit, out)
                columns.append(numbers(out, None))
    matrix = np.array(columns).T
    half = len(matrix) // 2
    odd, even = slice(half), slice(half, None)
    return tuple(matrix[a, b] for a in (odd, even) for b in (odd, even))


@functools.cache
def matrix_of(operator: str, form: str) -> np.ndarray:
    oo, oe, eo, ee = blocks(operator)
    return FORMS[form].matrix(oo, oe, eo, ee)


def check(case: Case) -> None:
    """The solution is that of NumPy to what the tolerance allows, and the residual that is reported the one of the matrix."""
    D, form = dirac(case.operator), FORMS[case.form]
    precision, few = FORMATS[case.format]
    rtol, rounding = (1e-10, 1e-13) if precision == "float64" else (1e-4, 1e-5)
    M = form.of(D if precision == "float64" else D.in_format(precision))
    A, matrix = M, matrix_of(case.operator, case.form)
    if case.normal:
        A, matrix = _normal(M), matrix.conj().T @ matrix
    solver = (OF_NORMAL if case.normal else OF_ANY)[case.solver]
    options: dict[str, Any] = {"rtol": rtol}
    b = vector(D, form.over, precision=precision, **({"batch": case.batch} if case.batch else {}))
    rng = np.random.default_rng(1)
    b[...] = rng.normal(size=b.shape) + 1j * rng.normal(size=b.shape)
    if few is not None:
        inside = form.of(D.in_format(*few))
        options["inner"] = Inner(
            _normal(inside) if case.normal else inside, b.like(precision=few[0], storage=few[1])
        )
    if case.solver == "chebyshev":
        values = np.linalg.eigvalsh(matrix)
        options["window"] = 0.99 * values[0], 1.01 * values[-1]
    found = solver(A, b, **options)
    for member in range(case.batch) if case.batch else (None,):
        right = numbers(b, form.over, member)
        solutions = [(found if member is None else found[member], 0.0, member)]
        if case.solver == "multishift_cg":
            solutions = [(one, shift, None) for one, shift in zip(found.solutions, SHIFTS, strict=True)]
        for one, shift, _ in solutions:
            shifted = matrix + shift * np.eye(len(matrix))
            x = numbers(one.x, form.over)
            expected = np.linalg.solve(shifted, right)
            size = np.linalg.norm(right)
            rest = np.linalg.norm(right - shifted @ x) / size
            assert rest <= 1.01 * rtol + rounding
            allowed = np.linalg.norm(np.linalg.inv(shifted), 2) * (1.01 * rtol + rounding) * size
            assert np.linalg.norm(x - expected) <= allowed
            reported = one.residual if hasattr(one, "residual") else one.cost[-1] / size
            assert abs(reported - rest) <= rounding + 1e-6 * rest


def _normal(M: Any) -> Any:
    """M^dagger M as a function."""
    if hasattr(M, "normal"):
        return M.normal
    between: list[Any] = []

    def apply(p, q):
        if not between:
            between.append(p.like())
        M.apply(p, between[0])
        M.adjoint(between[0], q)

    apply.joins_members = M.joins_members  # type: ignore[attr-defined]
    return apply


@pytest.mark.parametrize("case", FEW, ids=str)
@pytest.mark.short(8)
def test_some_combinations_have_the_solutions_of_numpy(case):
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("case", [case for case in CASES if case not in FEW], ids=str)
def test_many_combinations_have_the_solutions_of_numpy(case):
    check(case)


def test_free_quarks_take_the_iterations_that_are_known():
    """Of 8^4 sites and mass 0.1, to 1e-10: conditions of 363.61, 36.956 and 24.696."""
    lattice = Lattice(8, 8, 8, 8)
    U = GaugeField(lattice, SU(3)).cold_start()
    rng = np.random.default_rng(1)

    def random_like(D):
        b = vector(D)
        b[...] = rng.normal(size=b.shape) + 1j * rng.normal(size=b.shape)
        return b

    D, M = WilsonDirac(U, 0.1), Staggered(U, 0.1)
    E, b = D.even_odd(), random_like(D)
    assert cg(D.normal, D.adjoint(b)).iterations == 71
    assert cg(E.normal, E.adjoint(E.prepare(b))).iterations == 25
    assert cg(M.normal, random_like(M).on(EVEN)).iterations == 14
