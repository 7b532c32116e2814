"""Solvers made of the pieces of `jali.solvers.krylov`: solutions, bits in graphs, on ranks and of batches, and honest ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from known_systems import HERMITIAN, OfMatrix, halved, matrix_for, source, wilson

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Spinor
from jali.errors import RecordingError, SolverError
from jali.fermions import DomainWallDirac, WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import bicgstab, bicgstabl, cg, cgnr, defect_correction, gcr, minres, mr, multishift_cg
from jali.vectors import vectors_of

SOLVERS: dict[str, Any] = {
    "cgnr": cgnr,
    "bicgstab": bicgstab,
    "bicgstabl 1": functools.partial(bicgstabl, directions=1),
    "bicgstabl 2": bicgstabl,
    "bicgstabl 4": functools.partial(bicgstabl, directions=4),
    "gcr": gcr,
    "gcr 4": functools.partial(gcr, restart=4, M=halved),
    "mr": mr,
    "minres": minres,
    "cg with M": functools.partial(cg, M=halved),
}
every_solver = pytest.mark.parametrize("name", SOLVERS)


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@every_solver
def test_arrays_have_the_solution_of_numpy(name, complex_):
    M, b = matrix_for(name, complex_)
    x0 = np.ones_like(b)
    for start in (None, x0):
        found = SOLVERS[name](OfMatrix(M), b, start, rtol=1e-11)
        expected = np.linalg.solve(M, b)
        assert np.linalg.norm(found.x - expected) < 1e-9 * np.linalg.norm(expected)
        true = np.linalg.norm(b - M @ found.x) / np.linalg.norm(b)
        assert found.residual <= 1e-11
        assert abs(found.residual - true) < 1e-14
        assert len(found.history) == found.iterations + 1
        assert found.time > 0
    assert (x0 == 1).all()


@every_solver
def test_graphs_and_ranks_have_the_same_bits(name):
    def run(check_interval):
        lattice = Lattice(4, 2, 6)
        A, D = wilson(lattice, name)
        b = source(lattice)
        found = SOLVERS[name](A, b, rtol=1e-9, check_interval=check_interval)
        r = b[...] - ((D.dagger @ (D @ found.x)) if name in HERMITIAN else (D @ found.x))[...]
        true = np.linalg.norm(r) / np.linalg.norm(b[...])
        return found.history, found.x[...].tobytes(), abs(found.residual - true) < 1e-13, found.residual

    alone = run(1)
    assert alone[2]
    assert alone[3] <= 1e-9
    assert run(4) == alone
    for one in jali.virtual_ranks(2, run, 1):
        assert one == alone


@every_solver
def test_members_of_a_batch_have_the_bits_of_single_solves_and_stop_one_by_one(name):
    lattice = Lattice(4, 2, 4)
    A, _ = wilson(lattice, name)
    b = source(lattice, 3)
    b.members[1][...] = 0.0
    atol = 1e-6 * np.linalg.norm(b.members[0][...])  # so that they take different numbers of iterations
    for check_interval in (1, 3):
        found = SOLVERS[name](A, b, rtol=1e-11, atol=float(atol), check_interval=check_interval)
        assert found.converged
        assert found[1].iterations == 0
        assert found[0].iterations < found[2].iterations
        for k in (0, 2):
            single = b.members[k].copy()
            alone = SOLVERS[name](A, single, rtol=1e-11, atol=float(atol), check_interval=1)
            assert found[k].history == alone.history
            assert found[k].x[...].tobytes() == alone.x[...].tobytes()


@every_solver
def test_an_operator_that_joins_members_takes_a_batch_as_one_vector(name):
    lattice = Lattice(4, 2, 2, 2)
    D = DomainWallDirac(GaugeField(lattice, SU(2)).hot_start(seed=2), 0.5, 1.2, Ls=3)
    b = source(lattice, 3)
    if name in (
        "mr",
        "gcr",
        "gcr 4",
        "bicgstab",
        "bicgstabl 1",
        "bicgstabl 2",
    ):  # its Hermitian part is not definite
        A = D.normal
    else:
        A = D.normal if name in HERMITIAN else D
    A = A if A is D else type("N", (), {"matvec": lambda s, x: D.dagger @ (D @ x), "joins_members": True})()
    found = SOLVERS[name](A, b, rtol=1e-6, maxiter=3000)
    r = b[...] - A.matvec(found.x)[...]
    assert found.residual == pytest.approx(np.linalg.norm(r) / np.linalg.norm(b[...]), rel=1e-5)
    assert found.residual <= 1e-6


@every_solver
def test_zero_and_what_is_solved_already_take_no_iteration(name):
    M, b = matrix_for(name, True)
    found = SOLVERS[name](OfMatrix(M), np.zeros_like(b))
    assert found.iterations == 0
    assert not found.x.any()
    x = np.linalg.solve(M, b)
    assert SOLVERS[name](OfMatrix(M), b, x).iterations == 0


@every_solver
def test_a_tolerance_below_rounding_ends_in_its_error(name):
    lattice = Lattice(4, 2, 4)
    A, _ = wilson(lattice, name)
    with pytest.raises(SolverError, match="below what rounding in float64 allows|stagnation") as raised:
        SOLVERS[name](A, source(lattice), rtol=1e-18, maxiter=2000)
    history = raised.value.history
    assert history[0] == 1.0
    assert min(history) < 1e-13


@every_solver
def test_too_few_iterations_end_in_an_error_with_the_history(name):
    lattice = Lattice(4, 2, 4)
    A, _ = wilson(lattice, name)
    with pytest.raises(SolverError, match="no convergence to 1e-10 in ") as raised:
        SOLVERS[name](A, source(lattice), maxiter=2)
    assert 3 <= len(raised.value.history) <= 11
    found = SOLVERS[name](A, source(lattice), maxiter=2, must_converge=False)
    assert not found.converged
    assert found.history == raised.value.history
    with pytest.raises(SolverError, match="members 0, 1 of the batch: no convergence") as raised:
        SOLVERS[name](A, source(lattice, 2), maxiter=2)
    assert len(raised.value.history[0]) == 2


@every_solver
def test_nan_at_one_site_of_one_rank_is_an_error_on_all(name):
    def run():
        lattice = Lattice(4, 2, 6)
        A, _ = wilson(lattice, name)
        apply = A if callable(A) else A.apply
        damage = Field(lattice, Spinor(2))
        damage[...] = 0.0
        damage[0, 0, 5] = np.nan

        def broken(p, q):
            apply(p, q)
            vectors_of("q", q).update([(q, 1, [(1, damage)])])

        class Broken:
            def matvec(self, x):
                q = x.like()
                broken(x, q)
                return q

            rmatvec = matvec

        with pytest.raises(SolverError, match="infinit|nan"):
            SOLVERS[name](Broken(), source(lattice))
        return True

    assert run()
    assert jali.virtual_ranks(2, run) == [True, True]


def test_what_is_no_adjoint_is_named():
    M, b = matrix_for("cgnr", True)

    class Wrong(OfMatrix):
        def rmatvec(self, x):
            return -(self.matrix @ x)

    with pytest.raises(SolverError, match="rmatvec is not the adjoint of matvec"):
        cgnr(Wrong(M), b)
    with pytest.raises(ParameterError, match="the operator has no adjoint, a function rmatvec"):
        cgnr(type("One", (), {"matvec": lambda self, x: x})(), b)
    with pytest.raises(
        ParameterError, match="the operator is an operator with matvec and rmatvec, not <function"
    ):
        cgnr(lambda p, q: None, b)


def test_what_is_not_hermitian_or_not_definite_is_named():
    M, b = matrix_for("gcr", True)
    with pytest.raises(SolverError, match="the operator is not Hermitian"):
        minres(OfMatrix(1j * M + np.diag(np.arange(24))), b, maxiter=30)
    H, b = matrix_for("minres", True)
    with pytest.raises(SolverError, match=r"p\^dagger A p is not positive: .* not positive definite"):
        cg(OfMatrix(-H), b, M=halved)
    with pytest.raises(SolverError, match=r"<M r, r> is not positive: M is singular, not positive definite"):
        cg(OfMatrix(H), b, M=lambda r, z: np.multiply(r, -1, out=z))


def test_minres_solves_what_is_indefinite():
    M, b = matrix_for("minres", True)
    A = M - 1.1 * np.eye(len(M))
    values = np.linalg.eigvalsh(A)
    assert values[0] < -0.1 < 0.1 < values[-1]
    found = minres(OfMatrix(A), b)
    assert np.linalg.norm(A @ found.x - b) < 1e-10 * np.linalg.norm(b)
    assert all(
        after <= before * (1 + 1e-12) for before, after in zip(found.history, found.history[1:], strict=False)
    )


def test_a_breakdown_is_named():
    swap = np.array([[0.0, 1.0], [-1.0, 0.0]])  # <r, A r> is zero for all real r
    b = np.array([1.0, 0.0])
    with pytest.raises(
        SolverError, match="breakdown: <r0, A p> is zero; start from another x0, or use gcr or cgnr"
    ):
        bicgstab(OfMatrix(swap), b)
    for solver in (cgnr, bicgstabl):
        assert np.allclose(solver(OfMatrix(swap), b).x, [0, 1])


@every_solver
def test_an_exact_solution_is_no_breakdown(name):
    b = np.array([1.0, -2.0, 0.5])
    for factor in (1.0, 3.0, 0.7):
        found = SOLVERS[name](OfMatrix(factor * np.eye(3)), b)
        assert np.allclose(found.x, b / factor, rtol=1e-12)
    lattice = Lattice(2, 2, 2)
    for batch in (None, 2):
        field = source(lattice, batch)
        found = SOLVERS[name](
            type(
                "T",
                (OfMatrix,),
                {"matvec": lambda s, x: (3 * x).field(), "rmatvec": lambda s, x: (3 * x).field()},
            )(None),
            field,
        )
        assert np.allclose(3 * found.x[...], field[...], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e-158, 1e200])
@every_solver
def test_right_hand_sides_of_any_size_are_solved_for(name, size):
    M, b = matrix_for(name, True)
    found = SOLVERS[name](OfMatrix(M), size * b, rtol=1e-11)
    plain = SOLVERS[name](OfMatrix(M), b, rtol=1e-11)
    assert found.iterations == pytest.approx(plain.iterations, abs=1)
    assert np.linalg.norm(found.x / size - plain.x) < 1e-9 * np.linalg.norm(plain.x)
    x0 = 2 * size * np.ones_like(b)
    assert np.linalg.norm(
        SOLVERS[name](OfMatrix(M), size * b, x0, rtol=1e-11).x / size - plain.x
    ) < 1e-9 * np.linalg.norm(plain.x)
    if size > 1e-290:  # the residual is the one of b, so is its bound
        loose = SOLVERS[name](OfMatrix(M), size * b, rtol=1e-11, atol=1e-3 * size * float(np.linalg.norm(b)))
        assert 1e-11 < loose.residual <= 1e-3


@pytest.mark.parametrize("solver", [*SOLVERS.values(), cg], ids=[*SOLVERS, "cg"])
@pytest.mark.short(3)
def test_members_of_any_size_are_solved_for_with_the_bits_that_they_have_alone(solver):
    lattice = Lattice(2, 2, 2)
    for precision, sizes, rtol in (
        ("float64", (1e-200, 1.0, 1e200), 1e-9),
        ("float32", (1e-30, 1.0, 1e25), 1e-4),
    ):
        D = WilsonDirac(
            [u.astype(precision) for u in GaugeField(lattice, SU(2)).hot_start(seed=2).fields], 0.4
        )
        A = D.normal if solver is cg or solver in (SOLVERS["minres"], SOLVERS["cg with M"]) else D
        b = source(lattice).astype(precision)
        many = b.like(batch=3)
        for k, size in enumerate(sizes):
            many.members[k][...] = size * b[...].astype(complex)
        found = solver(A, many, rtol=rtol)
        for k in range(3):
            alone = solver(A, many.members[k].copy(), rtol=rtol)
            assert found[k].history == alone.history
            assert found[k].x[...].tobytes() == alone.x[...].tobytes()
            assert np.allclose(found[k].x[...] / sizes[k], found[1].x[...], rtol=100 * rtol, atol=100 * rtol)


@every_solver
def test_where_b_is_zero_so_is_x(name):
    M, b = matrix_for(name, True)
    found = SOLVERS[name](OfMatrix(M), 0 * b, np.ones_like(b))
    assert found.iterations == 0
    assert found.residual == 0
    assert not found.x.any()


@every_solver
def test_nan_never_comes_back(name):
    M, b = matrix_for(name, True)

    def spoil(x):
        x[...] = np.nan

    with pytest.raises(SolverError, match="infinities or nan"):
        SOLVERS[name](OfMatrix(M), b, callback=spoil, must_converge=False)


def test_a_preconditioner_that_is_none_of_zero_does_not_spoil_a_solution():
    b = np.ones(3)

    def normalised(r, z):
        z[:] = r / np.linalg.norm(r)

    assert np.allclose(gcr(OfMatrix(np.eye(3)), b, M=normalised, must_converge=False).x, b)


def test_stagnation_is_a_solution_where_convergence_is_not_asked_for():
    M, b = matrix_for("minres", False)
    for solver in (minres, mr):
        found = solver(OfMatrix(M), b, rtol=1e-18, must_converge=False)
        assert not found.converged
        assert found.residual < 1e-13


def test_minres_stays_where_rounding_leaves_it():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(12, 12))
    S = (M @ M.T + 12 * np.eye(12)).astype("f4")
    found = minres(OfMatrix(S), rng.normal(size=12).astype("f4"), must_converge=False)
    assert found.residual < 1e-5


def test_gcr_ends_inside_a_cycle():
    M, b = matrix_for("gcr", False)
    calls = []

    class Counted(OfMatrix):
        def matvec(self, x):
            calls.append(1)
            return super().matvec(x)

    found = gcr(Counted(M), b, restart=500)
    assert len(calls) == found.iterations + 1  # and the residual of the end
    calls.clear()
    found = gcr(Counted(M), b, restart=500, maxiter=3, must_converge=False)
    assert found.iterations == 3
    assert len(calls) == 4


@pytest.mark.parametrize("solver", [cg, gcr])
def test_a_preconditioner_that_changes_saves_iterations(solver):
    lattice = Lattice(4, 4, 6)
    _, D = wilson(lattice, "cgnr", mass=0.1)
    b = source(lattice)
    r32 = b.like(precision="float32")
    E = WilsonDirac([u.astype("float32") for u in D.links], D.mass)
    A = D.normal if solver is cg else D.apply

    def inner(r, z):
        """Some iterations in float32, to an accuracy that depends on r."""
        r32.assign(r)
        of = E.normal if solver is cg else E.apply
        z.assign(
            (cg if solver is cg else mr)(of, r32, rtol=0.1, must_converge=False, maxiter=20).x.astype(
                "float64"
            )
        )

    plain = solver(A, b)
    found = solver(A, b, M=inner)
    assert found.iterations < plain.iterations / 3
    assert found.residual <= 1e-10


@pytest.mark.parametrize(
    "kind",
    [
        {"precision": "float32"},
        {"precision": "float32", "storage": "float16"},
        {"precision": "float32", "storage": "fixed16"},
    ],
    ids=lambda kind: kind.get("storage", "float32"),
)
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.short(1)
def test_defect_correction_reaches_float64_by_numbers_of_few_bits(kind, batch):
    lattice = Lattice(4, 4, 6)
    D = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=2), 0.4)
    rng = np.random.default_rng(1)
    b = Field(lattice, Spinor(3), batch=batch)
    b[...] = rng.normal(size=b.shape)
    E = WilsonDirac([u.like(precision="float32", storage="float16-12").assign(u) for u in D.links], 0.4)
    found = defect_correction(D, b, lambda r: cgnr(E, r, rtol=1e-2), like=b.like(**kind))
    assert found.converged
    x = D @ found.x
    for k in range(batch or 1):
        one, expected, at = (
            (found, b[...], x[...]) if batch is None else (found[k], b.members[k][...], x.members[k][...])
        )
        assert np.linalg.norm(expected - at) / np.linalg.norm(expected) == pytest.approx(
            one.residual, rel=1e-3
        )
        assert one.residual <= 1e-10
    assert found.iterations <= 1.2 * cgnr(D, b).iterations


def test_defect_correction_with_another_operator_is_an_error():
    M, b = matrix_for("gcr", True)
    low = np.zeros(len(b), np.complex64)
    with pytest.raises(
        SolverError, match="cycle 1 lowered .* the inner solve is too inaccurate, of another operator"
    ) as raised:
        defect_correction(OfMatrix(M), b, lambda r: np.linalg.solve(3 * M, r).astype(np.complex64), like=low)
    assert len(raised.value.history) == 2
    with pytest.raises(ParameterError, match="inner is a function of a right-hand side, not 3"):
        defect_correction(OfMatrix(M), b, 3, like=low)
    found = defect_correction(OfMatrix(M), b, lambda r: np.linalg.solve(M, r).astype(np.complex64), like=low)
    assert found.residual <= 1e-10
    assert found.iterations == len(found.history) - 1 > 1


@every_solver
def test_bad_arguments_are_named(name):
    M, b = matrix_for(name, True)
    A, solver = OfMatrix(M), SOLVERS[name]
    for options, match in (
        ({"rtol": 0.0}, "rtol is below 1, and rtol or atol above 0, not 0.0 and 0.0"),
        ({"rtol": 1.0}, "rtol is below 1"),
        ({"rtol": -1.0}, "rtol is a real number from 0, not -1.0"),
        ({"maxiter": 0}, "maxiter is a positive whole number, not 0"),
        ({"maxiter": None}, "maxiter is a positive whole number, not None"),
        ({"check_interval": 2}, "cannot be recorded"),
        ({"callback": 3}, "a callback is a function of x, not 3"),
    ):
        with pytest.raises(ParameterError, match=match):
            solver(A, b, **options)
    with pytest.raises((ParameterError, LayoutError), match="x0"):
        solver(A, b, np.ones(3))
    with pytest.raises((ParameterError, LayoutError)):
        solver(3, b)
    with pytest.raises(SolverError, match="b contains infinities or nan"):
        solver(A, b * np.inf)


def test_cg_says_its_time_and_its_history_too():
    lattice = Lattice(4, 2, 4)
    _, D = wilson(lattice, "cgnr")
    for b in (source(lattice), source(lattice, 2)):
        found = cg(D.normal, b)
        assert all(one.time > 0 for one in (found.members if b.batch else [found]))
        with pytest.raises(SolverError, match="no convergence") as raised:
            cg(D.normal, b, maxiter=3)
        assert len(raised.value.history) == 4
        with pytest.raises(SolverError, match="not positive|not Hermitian|positive definite") as raised:
            cg(lambda p, q: vectors_of("q", q).update([(q, 0, [(-1.0, p)])]), b)
        assert np.all(np.array(raised.value.history) == 1)


@every_solver
def test_batches_in_lists_are_refused(name):
    b = source(Lattice(2, 2, 2), 2)
    with pytest.raises(ParameterError, match="b is a list in which there is a field with a batch"):
        SOLVERS[name](lambda p, q: None, [b, b]) if name != "cgnr" else cgnr(OfMatrix(np.eye(2)), [b, b])
    with pytest.raises(ParameterError, match="cg: b is a list in which there is a field with a batch"):
        cg(lambda p, q: None, [b])


def test_arguments_of_single_solvers_are_checked():
    M, b = matrix_for("mr", True)
    for solver, options, match in (
        (mr, {"omega": 2.0}, "omega is a number between 0 and 2, not 2.0"),
        (gcr, {"restart": 0}, "restart is a positive whole number, not 0"),
        (gcr, {"M": 3}, "the preconditioner M has a function matvec"),
        (bicgstabl, {"directions": 9}, "directions is a whole number from 1 to 8, not 9"),
    ):
        with pytest.raises(ParameterError, match=match):
            solver(OfMatrix(M), b, **options)


def test_callbacks_see_x_and_what_cannot_be_recorded_is_an_error_where_it_was_asked_for():
    lattice = Lattice(4, 2, 4)
    _, D = wilson(lattice, "gcr")
    b, seen = source(lattice), []
    found = bicgstab(D, b, callback=lambda x: seen.append(np.linalg.norm(b[...] - (D @ x)[...])))
    assert len(seen) == found.iterations
    assert seen[-1] / np.linalg.norm(b[...]) == pytest.approx(found.residual, rel=1e-3)

    def reads(p, q):
        D.apply(p, q)
        float(q[0, 0, 0, 0, 0].real)

    with pytest.raises(RecordingError):
        bicgstab(reads, b, check_interval=4)
    assert bicgstab(reads, b).history == found.history


def test_a_solution_draws_its_residuals():
    M, b = matrix_for("gcr", True)
    found = gcr(OfMatrix(M), b)
    axes = found.plot()
    line = axes.get_lines()[0]
    assert line.get_ydata().tolist() == found.history
    assert axes.get_yscale() == "log"
    assert found.plot(axes) is axes
    assert len(axes.get_lines()) == 2
    assert "time" in found._repr_html_()


def test_a_wrong_adjoint_is_found_in_the_first_iteration():
    matrix, b = matrix_for("cgnr", True)

    class Wrong(OfMatrix):
        def rmatvec(self, x):
            return 1.001 * super().rmatvec(x) + 0.001 * x

    with pytest.raises(SolverError, match="rmatvec is not the adjoint of matvec") as raised:
        cgnr(Wrong(matrix), b)
    assert len(raised.value.history) == 1
    lattice = Lattice(4, 2, 4)
    _, D = wilson(lattice, "cgnr")

    class OfFields:
        matvec = staticmethod(D.matvec)
        rmatvec = staticmethod(D.matvec)

    with pytest.raises(SolverError, match="members 0, 1 of the batch: rmatvec is not the adjoint"):
        cgnr(OfFields(), source(lattice, 2))


def test_nan_is_blamed_on_who_made_it():
    lattice = Lattice(4, 2, 4)
    _, D = wilson(lattice, "cg with M")
    calls = []

    def bad(p, q):
        calls.append(1)
        D.normal(p, q)
        if len(calls) > 3:
            q[0, 0, 0, 0, 0] = np.nan

    with pytest.raises(SolverError, match=r"p\^dagger A p is infinite or nan: the operator gave"):
        cg(bad, source(lattice), M=halved)
    with pytest.raises(SolverError, match="<M r, r> is not positive: M is singular"):
        cg(D.normal, source(lattice), M=lambda r, z: vectors_of("z", z).update([(z, 0, [(-1.0, r)])]))


@every_solver
def test_a_function_that_does_not_write_is_found(name):
    def slip(p, q):
        q = 2 * p  # noqa: F841

    if name != "cgnr":  # which takes operators
        with pytest.raises(ParameterError, match="leaves q as it was"):
            SOLVERS[name](slip, np.arange(5.0))


def test_a_function_that_does_not_write_is_found_by_others_too():
    def slip(p, q):
        q = 2 * p  # noqa: F841

    for solve in (
        lambda: defect_correction(slip, np.arange(5.0), lambda r: r, like=np.arange(5.0)),
        lambda: multishift_cg(slip, np.arange(5.0), [1.0]),
        lambda: cg(slip, np.arange(5.0)),
        lambda: jali.solve(slip, np.arange(5.0)),
    ):
        with pytest.raises(ParameterError, match="leaves q as it was"):
            solve()


def test_a_callback_that_raises_on_one_rank_stops_all_of_them(tmp_path):
    def run():
        D = wilson(Lattice(4, 2, 6), "cgnr")[0]

        def stop(x):
            if jali.comm.current().rank == 1:
                raise KeyError("enough")

        with pytest.raises((KeyError, SolverError), match="enough|a callback of another rank"):
            cgnr(D, source(D.lattice), callback=stop, save_to=tmp_path / "solve")
        return len(cgnr(D, source(D.lattice), resume=tmp_path / "solve").history)

    assert len(set(jali.virtual_ranks(2, run))) == 1
