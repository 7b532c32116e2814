"""Multi-shift conjugate gradients: dense solutions, conjugate gradients of each shift alone, honest refinement, the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import SU, Complex, Field, Lattice, Real, Spinor, Vector
from jali.arrays import DistributedArray
from jali.errors import LayoutError, ParameterError, RecordingError, SolverError
from jali.fermions import DomainWallDirac, Staggered, WilsonDirac
from jali.gauge import GaugeField
from jali.lattice.vectors import FieldVectors
from jali.linops import BlockDiag
from jali.solvers import Inner, MultiShiftSolution, Workspace, cg, multishift_cg
from jali.vectors import vectors_of

SHIFTS = [0.0, 0.02, 0.3, 5.0, 80.0]


@jali.site_function
def helmholtz(X, out, phi, m2):
    """(m^2 - Laplace) phi."""
    total = (m2 + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def operator(m2):
    return lambda p, q: helmholtz(q, p, m2)


def random_field(element=None, lattice=None, **options):
    field = Field(Lattice(8, 6, 4) if lattice is None else lattice, element or Real(), **options)
    rng = np.random.default_rng(3)
    values = rng.normal(size=field.shape)
    field[...] = values if field.element.type.kind == "real" else values + 1j * rng.normal(size=field.shape)
    return field


def dense(dtype, n=40):
    """A Hermitian matrix with eigenvalues from 0.05 on, and a right-hand side."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        found = rng.normal(size=shape)
        return (found + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else found).astype(dtype)

    M = normal(n, n)
    return M @ M.conj().T / n + 0.05 * np.eye(n, dtype=dtype), normal(n)


class MatrixOperator:
    def __init__(self, M):
        self.M = M
        self.calls = 0

    def matvec(self, x):
        self.calls += 1
        return self.M @ x


class Plus:
    """A + shift, made without multishift_cg."""

    def __init__(self, A, shift, joins_members=False):
        self.A, self.shift, self.joins_members = A, shift, joins_members

    def matvec(self, x):
        out = x.like()
        self.A(x, out)
        vectors_of("x", x).update([(out, 1, [(self.shift, x)])])
        return out


def quarks(operator_class, element, mass, seed=1):
    lattice = Lattice(4, 4, 2, 4)
    D = operator_class(GaugeField(lattice, SU(3)).hot_start(seed=seed), mass)
    return D, random_field(element, lattice, boundary={3: "antiperiodic"})


def bits(x):
    return x.stored_bytes().tobytes() if isinstance(x, Field) else x.tobytes()


def all_of(found):
    """What must not depend on how a solve was made."""
    return [(one.history, one.residual, one.iterations, bits(one.x)) for one in found.solutions]


# --- solutions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shifts", [SHIFTS, [-0.03, 0.01, 2.0], [0.5], np.array([0.1, 0.2], np.float32)], ids=str
)
@pytest.mark.parametrize("dtype", [np.complex128, np.float64])
def test_solutions_are_those_of_dense_systems(dtype, shifts):
    M, b = dense(dtype)
    before = b.copy()
    found = multishift_cg(MatrixOperator(M), b, shifts, rtol=1e-12)
    assert found.converged
    assert len(found) == len(found.x) == len(shifts)
    assert found.shifts == tuple(float(shift) for shift in shifts)
    for k, shift in enumerate(found.shifts):
        exact = np.linalg.solve(M + shift * np.eye(len(b)), b)
        np.testing.assert_allclose(found.x[k], exact, rtol=0, atol=1e-10 * np.abs(exact).max())
        assert found[k].x is found.x[k]
        assert found[k].residual <= 1e-12
    assert np.array_equal(b, before)


@pytest.mark.parametrize(
    ("operator_class", "element", "mass"), [(WilsonDirac, Spinor(3), 0.3), (Staggered, Vector(3), 0.5)]
)
def test_each_shift_of_a_dirac_operator_is_solved_as_it_is_alone(operator_class, element, mass):
    """In exact arithmetic conjugate gradients for A + shift has the same residuals, from a Krylov space of its own."""
    D, b = quarks(operator_class, element, mass)
    found = multishift_cg(D.normal, b, SHIFTS, rtol=1e-9)
    for k, shift in enumerate(SHIFTS):
        alone = cg(Plus(D.normal, shift), b, rtol=1e-9)
        assert found[k].iterations == alone.iterations
        np.testing.assert_allclose(found[k].history, alone.history, rtol=1e-6)
        assert (found.x[k] - alone.x).norm2() < 1e-16 * alone.x.norm2()
    assert len({one.iterations for one in found.solutions}) > 3
    assert found.iterations == found[0].iterations


def test_smallest_shift_is_the_run_of_cg():
    """Without a shift of its own to the last bit; with one it computes p^dagger A p and |p|^2 apart."""
    D, b = quarks(Staggered, Vector(3), 0.5)
    alone = cg(D.normal, b)
    found = multishift_cg(D.normal, b, SHIFTS)
    assert (found[0].history, found[0].residual) == (alone.history, alone.residual)
    assert bits(found.x[0]) == bits(alone.x)
    shifted = multishift_cg(D.normal, b, [0.2, 0.7])
    alone = cg(Plus(D.normal, 0.2), b)
    assert shifted.iterations == alone.iterations
    np.testing.assert_allclose(shifted[0].history, alone.history, rtol=1e-6)


def test_histories_are_the_true_residuals_of_each_iteration():
    M, b = dense(np.complex128)
    found = multishift_cg(MatrixOperator(M), b, SHIFTS, rtol=1e-10)
    for one in found.solutions:
        assert one.history[0] == 1.0
        assert len(one.history) == one.iterations + 1
        assert one.history[-1] <= 1e-10 < one.history[-2]
        assert one.residual == pytest.approx(one.history[-1], rel=1e-3)
    for steps in (1, 2, 3, 9):
        early = multishift_cg(MatrixOperator(M), b, SHIFTS, rtol=1e-10, maxiter=steps, must_converge=False)
        for k, shift in enumerate(SHIFTS):
            r = b - M @ early.x[k] - shift * early.x[k]
            at = min(steps, found[k].iterations)
            assert np.linalg.norm(r) / np.linalg.norm(b) == pytest.approx(found[k].history[at], rel=1e-4)
            assert early[k].history == found[k].history[: at + 1]


def test_one_application_serves_all_shifts():
    M, b = dense(np.float64)
    A = MatrixOperator(M)
    found = multishift_cg(A, b, SHIFTS)
    assert A.calls == found.iterations + len(SHIFTS)  # one each for the true residuals


def test_a_shift_that_has_converged_is_left_alone():
    M, b = dense(np.complex128)
    found = multishift_cg(MatrixOperator(M), b, SHIFTS)
    counts = [one.iterations for one in found.solutions]
    assert counts == sorted(counts, reverse=True)
    early = multishift_cg(MatrixOperator(M), b, SHIFTS, maxiter=counts[-1], must_converge=False)
    assert counts[-1] < counts[0]
    assert bits(early.x[-1]) == bits(found.x[-1])
    assert [one.converged for one in early.solutions] == [False] * 4 + [True]


def test_vectors_of_a_shift_are_updated_in_its_own_iterations_only(monkeypatch):
    targets, update = [], FieldVectors.update

    def counted(self, assignments, *options, **named):
        targets.extend(id(y) for y, *_ in assignments)
        return update(self, assignments, *options, **named)

    monkeypatch.setattr(FieldVectors, "update", counted)
    found = multishift_cg(operator(0.05), random_field(), SHIFTS, check_interval=1)
    at_first = 1  # zero
    assert [targets.count(id(x)) - at_first for x in found.x] == [one.iterations for one in found.solutions]
    assert len({one.iterations for one in found.solutions}) >= 4


def test_graphs_are_recorded_anew_for_the_shifts_that_go_on(monkeypatch):
    graphs, graph = [], FieldVectors.graph

    def kept(self, *arguments, **options):
        graphs.append(graph(self, *arguments, **options))
        return graphs[-1]

    monkeypatch.setattr(FieldVectors, "graph", kept)
    found = multishift_cg(operator(0.05), random_field(), SHIFTS, check_interval=4)
    counts = [one.iterations for one in found.solutions]
    recorded, expected = len(SHIFTS), 1
    for k in range(1, found.iterations, 4):  # the first iteration runs as it is
        active = sum(count > k for count in counts)
        if active <= 2 / 3 * recorded or active == 1 < recorded:
            recorded, expected = active, expected + 1
    assert len(graphs) == expected >= 2
    sizes = [one.operations for one in graphs]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def test_huge_shifts_converge_at_once_and_give_no_nan():
    b = random_field(Complex())
    for check_interval in (1, 4):
        found = multishift_cg(operator(0.5), b, [0.0, 1e30, 1e200, 1e300], check_interval=check_interval)
        for k in (1, 2, 3):
            assert found[k].iterations == 1
            np.testing.assert_allclose(found.x[k][...], b[...] / found.shifts[k], rtol=1e-14)


def test_shifts_that_the_precision_cannot_hold_are_an_error_with_their_number():
    for shift, said in ((1e60, r"1e\+60 overflows"), (1e-60, "1e-60 underflows")):
        with pytest.raises(
            ParameterError, match=rf"shifts\[1\] = {said} in float32: shifts are zero or between"
        ):
            multishift_cg(operator(0.5), random_field(precision="float32"), [0.0, shift], rtol=1e-4)
    with pytest.raises(ParameterError, match=r"shifts\[1\] = 9\.99989e-321 underflows in float64"):
        multishift_cg(operator(0.5), random_field(), [0.0, 1e-320])
    M, b = dense(np.float64)
    with pytest.raises(SolverError, match=r"refinement of shift 1 = 1e\+308"):  # steps times shifts overflow
        multishift_cg(MatrixOperator(1e-3 * M), b, [0.0, 1e308])


# --- the same bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shifts", [[0.0, 0.02, 0.3, 5.0, 80.0], [0.1, 0.4, 90.0]], ids=str)
@pytest.mark.parametrize("element", [Complex(), Real()], ids=str)
def test_result_does_not_depend_on_how_often_the_host_looks(element, shifts):
    b = random_field(element)
    each = multishift_cg(operator(0.05), b, shifts, check_interval=1)
    assert each[0].check_interval == 1
    assert multishift_cg(operator(0.05), b, shifts)[0].check_interval == 8
    for check_interval in (4, 7):
        some = multishift_cg(operator(0.05), b, shifts, check_interval=check_interval)
        assert some[0].check_interval == check_interval
        assert all_of(some) == all_of(each)


def test_looking_less_often_gives_up_and_fails_in_the_same_iteration():
    b = random_field()
    for m2, bound in ((0.01, 11), (0.01, 13), (-0.3, 100)):
        results = []
        for check_interval in (1, 4):
            try:
                found = multishift_cg(
                    operator(m2),
                    b,
                    [0.05, 2.0, 9.0],
                    maxiter=bound,
                    must_converge=False,
                    check_interval=check_interval,
                )
                results.append(all_of(found))
            except SolverError as error:
                results.append(str(error))
        assert results[0] == results[1]
        assert isinstance(results[0], str) == (m2 < 0)


def test_more_shifts_than_an_array_of_numbers_holds():
    shifts = [0.01 * k for k in range(70)]
    b = random_field(lattice=Lattice(6, 4))
    each, some = (multishift_cg(operator(0.3), b, shifts, check_interval=n) for n in (1, 4))
    assert all_of(some) == all_of(each)
    assert each.converged


@pytest.mark.lanes
@pytest.mark.parametrize("check_interval", [1, 4])
def test_bits_are_the_same_on_any_number_of_ranks(check_interval):
    def run():
        b = random_field(Complex(), Lattice(8, 6, 4))
        found = multishift_cg(operator(0.1), b, [0.1, 0.6, 30.0], check_interval=check_interval)
        return [(one.history, one.residual, one.x[...].tobytes()) for one in found.solutions]

    expected = run()
    assert jali.virtual_ranks(1, run) == [expected]
    assert jali.virtual_ranks(2, run) == [expected] * 2


def test_refinements_have_the_same_bits_too():
    b = random_field(precision="float32")
    results = [multishift_cg(operator(0.03), b, [0.0, 0.2], rtol=1e-6, check_interval=n) for n in (1, 4)]
    lost = multishift_cg(operator(0.03), b, [0.0, 0.2], rtol=1e-6, refine=False, must_converge=False)
    assert all_of(results[0]) == all_of(results[1])
    assert results[0].iterations > lost.iterations


# --- refinement ---------------------------------------------------------------------------------------------------


def single_precision():
    """A condition of 800 in float32, where rounding moves residuals after 150 iterations."""
    lattice = Lattice(4, 4, 4, 4)
    links = [u.astype("float32") for u in GaugeField(lattice, SU(3)).hot_start(seed=1).fields]
    b = random_field(Vector(3), lattice, boundary={3: "antiperiodic"}, precision="float32")
    return Staggered(links, 0.1), b


def test_refinement_solves_on_where_rounding_has_lost_a_residual():
    D, b = single_precision()
    shifts = [0.0, 0.1, 2.0]
    lost = multishift_cg(D.normal, b, shifts, rtol=1e-5, refine=False, must_converge=False)
    found = multishift_cg(D.normal, b, shifts, rtol=1e-5)
    assert lost[0].history[-1] <= 1e-5 < lost[0].residual
    assert [one.converged for one in lost.solutions] == [False, True, True]
    assert not lost.converged
    assert found.converged
    assert found[0].residual <= 1e-5
    assert found[0].iterations > lost[0].iterations
    assert len(found[0].history) == found[0].iterations + 1
    assert found[0].history[: len(lost[0].history)] == lost[0].history
    assert all_of(found)[1:] == all_of(lost)[1:]
    out = b.like()
    D.normal(found.x[0], out)
    r = b.astype("float64") - out.astype("float64")
    assert r.norm2() <= 1.01e-10 * b.norm2()
    with pytest.raises(SolverError, match=r"1 of 3 shifts miss .* 1e-05: shift 0 = 0 with .* refine=True"):
        multishift_cg(D.normal, b, shifts, rtol=1e-5, refine=False)


def test_a_shift_that_refinement_cannot_help_is_an_error_with_its_name():
    D, b = single_precision()
    with pytest.raises(SolverError, match=r"shift 0 = 0 with \|b - .*below what rounding in float32 allows"):
        multishift_cg(D.normal, b, [0.0, 2.0], rtol=1e-7)
    found = multishift_cg(D.normal, b, [0.0, 2.0], rtol=1e-7, must_converge=False)
    assert not found[0].converged
    assert found[0].residual > 1e-7 >= found[0].history[-1]


def test_refinement_counts_against_the_same_bound():
    D, b = single_precision()
    steps = multishift_cg(D.normal, b, [0.0, 2.0], rtol=1e-5, refine=False, must_converge=False).iterations
    found = multishift_cg(D.normal, b, [0.0, 2.0], rtol=1e-5, maxiter=steps, must_converge=False)
    assert found.iterations == steps
    assert not found.converged
    with pytest.raises(SolverError, match=f"shift 0 = 0 .* more iterations than maxiter={steps}"):
        multishift_cg(D.normal, b, [0.0, 2.0], rtol=1e-5, maxiter=steps)
    steps = multishift_cg(D.normal, b, [0.0], rtol=1e-6, refine=False, must_converge=False).iterations
    free = multishift_cg(D.normal, b, [0.0], rtol=1e-6, must_converge=False)
    bound = multishift_cg(D.normal, b, [0.0], rtol=1e-6, maxiter=steps + 2, must_converge=False)
    assert bound.iterations == steps + 2 < free.iterations


# --- kinds of vectors ---------------------------------------------------------------------------------------------


def test_members_that_an_operator_joins_are_one_vector():
    lattice = Lattice(4, 4, 2, 4)
    W = DomainWallDirac(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.2, 1.6, Ls=3)
    b = random_field(Spinor(3), lattice, boundary={3: "antiperiodic"}, batch=3)
    for check_interval in (1, 4):
        found = multishift_cg(W.normal, b, [0.1, 3.0], rtol=1e-8, check_interval=check_interval)
        for k, shift in enumerate(found.shifts):
            alone = cg(Plus(W.normal, shift, joins_members=True), b, rtol=1e-8)
            assert alone.iterations == found[k].iterations
            assert np.all((alone.x - found.x[k]).norm2() < 1e-15 * alone.x.norm2())
    lost = multishift_cg(W.normal, b, [0.1, 3.0], rtol=1e-8, maxiter=20, must_converge=False)
    assert not lost[0].converged


@pytest.mark.parametrize("check_interval", [1, 4])
def test_members_are_solved_as_they_are_alone(check_interval):
    D, _ = quarks(WilsonDirac, Spinor(3), 0.3)
    b = random_field(Spinor(3), D.links[0].lattice, boundary={3: "antiperiodic"}, batch=2)
    b.members[1].assign((1e-3 * b.members[1] + b.members[0]).field())
    for shifts in ([0.0, 0.1, 4.0], [0.2, 0.7]):
        found = multishift_cg(D.normal, b, shifts, check_interval=check_interval)
        for m in range(2):
            alone = multishift_cg(D.normal, b.members[m].copy(), shifts, check_interval=check_interval)
            for k, one in enumerate(alone.solutions):
                assert found[k][m].history == one.history
                assert found[k][m].residual == one.residual
                assert bits(found.x[k].members[m].copy()) == bits(one.x)
    with pytest.raises(ParameterError, match="a list"):
        multishift_cg(D.normal, [b, b], [0.0, 0.1])


def test_few_bits_inside_give_the_same_solutions():
    """Each shift is refined by `cg` with the few bits inside, to the tolerance of the many."""
    D, b = quarks(WilsonDirac, Spinor(3), 0.3)
    few = WilsonDirac([u.astype("float32") for u in D.links], 0.3)
    shifts = [0.0, 0.1, 4.0]
    exact = multishift_cg(D.normal, b, shifts, rtol=1e-11)
    for storage in (None, "float16", "fixed16"):
        like = b.like(precision="float32", storage=storage)
        found = multishift_cg(D.normal, b, shifts, rtol=1e-10, inner=Inner(few.normal, like))
        assert found.converged
        for k, one in enumerate(found.solutions):
            assert one.residual <= 1e-10
            assert (one.x - exact.x[k]).norm2() < 1e-17 * exact.x[k].norm2()
            assert one.x.precision == "float64"
    with pytest.raises(ParameterError, match=r"workspace is a jali\.solvers\.Workspace"):
        multishift_cg(D.normal, b, shifts, workspace=3)
    with pytest.raises(ParameterError, match=r"inner is a jali\.solvers\.Inner"):
        multishift_cg(D.normal, b, shifts, inner=few)


def test_a_workspace_gives_the_same_bits():
    D, b = quarks(WilsonDirac, Spinor(3), 0.3)
    fresh = multishift_cg(D.normal, b, SHIFTS)
    kept = Workspace()
    first = multishift_cg(D.normal, b, SHIFTS, workspace=kept)
    other = multishift_cg(D.normal, (2 * b).field(), SHIFTS, workspace=kept)
    again = multishift_cg(D.normal, b, SHIFTS, workspace=kept)
    assert all_of(first) == all_of(again) == all_of(fresh)
    assert [one.iterations for one in other.solutions] == [one.iterations for one in fresh.solutions]


def test_lists_and_distributed_arrays():
    M, b = dense(np.float64)

    class Two:
        def matvec(self, x):
            return [M @ x[0], 3 * x[1]]

    found = multishift_cg(Two(), [b, b[:5]], [0.0, 1.0])
    np.testing.assert_allclose(found.x[1][0], np.linalg.solve(M + np.eye(len(b)), b), atol=1e-8)
    np.testing.assert_allclose(found.x[1][1], b[:5] / 4)

    def run():
        y = DistributedArray.to_dist(np.tile(b, 2))
        return multishift_cg(BlockDiag([M]), y, [0.0, 1.0]).x[1].local_array

    for part in jali.virtual_ranks(2, run):
        np.testing.assert_allclose(part, np.linalg.solve(M + np.eye(len(b)), b), atol=1e-8)


def test_real_right_hand_sides_of_complex_operators_are_widened():
    M, b = dense(np.complex128)

    class Typed(MatrixOperator):
        dtype = M.dtype

    found = multishift_cg(Typed(M), b.real.copy(), [0.1])
    np.testing.assert_allclose(found.x[0], np.linalg.solve(M + 0.1 * np.eye(len(b)), b.real), atol=1e-8)


@pytest.mark.parametrize("power", [-540, 540])
def test_right_hand_sides_whose_squares_vanish_or_overflow_are_scaled(power):
    M, b = dense(np.float64)
    found, scaled = (multishift_cg(MatrixOperator(M), c, SHIFTS) for c in (b, b * 2.0**power))
    for one, other in zip(found.x, scaled.x, strict=True):
        np.testing.assert_allclose(other / 2.0**power, one, rtol=1e-8)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_true_residuals_of_tiny_and_huge_right_hand_sides_are_told(size):
    M, b = dense(np.float64)
    options = {"maxiter": 5, "must_converge": False}
    found, scaled = (multishift_cg(MatrixOperator(M), c, SHIFTS, **options) for c in (b, size * b))
    for one, other in zip(found.solutions, scaled.solutions, strict=True):
        assert other.residual == pytest.approx(one.residual, rel=1e-9)
        assert other.converged == one.converged
    with pytest.raises(SolverError, match="miss the tolerance"):
        multishift_cg(MatrixOperator(M), size * b, SHIFTS, maxiter=5)


def test_members_have_their_own_bounds_of_few_bits():
    D, b = quarks(WilsonDirac, Spinor(3), 0.3)
    few = WilsonDirac([u.astype("float32") for u in D.links], 0.3)
    low = b.like(precision="float32", storage="float16")
    many = b.like(batch=2)
    many.members[0].assign(b)
    many.members[1].assign((1e-8 * random_field(Spinor(3), D.links[0].lattice, boundary=b.boundary)).field())
    together = multishift_cg(D.normal, many, [0.0, 0.5], inner=Inner(few.normal, low.like(batch=2)))
    alone = multishift_cg(D.normal, b, [0.0, 0.5], inner=Inner(few.normal, low))
    for k in range(2):
        assert together[k][0].history == alone[k].history
        assert bits(together.x[k].members[0].copy()) == bits(alone.x[k])
    for like in (low, low.like(batch=3)):
        with pytest.raises(LayoutError, match="multishift_cg: inner: like is a vector of the form of b"):
            multishift_cg(D.normal, many, [0.0, 0.5], inner=Inner(few.normal, like))


def test_right_hand_side_zero_and_loose_bounds_need_no_iteration():
    b = random_field()
    for found in (
        multishift_cg(operator(0.3), b.like(), SHIFTS),
        multishift_cg(operator(0.3), b, SHIFTS, rtol=0, atol=2 * np.sqrt(b.norm2())),
    ):
        assert found.converged
        assert [one.iterations for one in found.solutions] == [0] * 5
        assert not any(np.any(x[...]) for x in found.x)
        assert len({id(x) for x in found.x}) == 5


# --- what is said -------------------------------------------------------------------------------------------------


def test_representation_names_counts_and_residuals():
    M, b = dense(np.float64)
    found = multishift_cg(MatrixOperator(M), b, [0.0, 5.0])
    assert isinstance(found, MultiShiftSolution)
    counts = f"{found[0].iterations}, {found[1].iterations}"
    assert repr(found).startswith(
        f"<solutions of 2 shifts, converged in {counts} iterations, largest residual"
    )
    early = multishift_cg(MatrixOperator(M), b, [0.0, 5.0], maxiter=3, must_converge=False)
    assert "not all converged" in repr(early)


@pytest.mark.parametrize(
    ("shifts", "said"),
    [
        ([], "there are none, give one at least"),
        ([0.1, 0.0], r"shifts\[1\] = 0 follows 0\.1; sort them"),
        ([0.1, 0.1], r"shifts\[1\] = 0\.1 follows 0\.1; leave out one of the two"),
        ([0.0, np.nan], r"shifts\[1\] is nan, which is not finite"),
        ([0.0, np.inf], r"shifts\[1\] is inf, which is not finite"),
        ([10**400], r"shifts\[0\] is inf, which is not finite"),
        ([0.0, 1j], r"shifts\[1\] is 1j, no real number"),
        (["0.1"], r"shifts\[0\] is '0\.1', no real number"),
        (0.1, "for one shift give a list of one number"),
        ("0.1", "for one shift give a list of one number"),
        (None, "for one shift give a list of one number"),
    ],
)
def test_impossible_shifts_are_refused(shifts, said):
    with pytest.raises(ParameterError, match=f"shifts are real numbers in ascending order.*{said}"):
        multishift_cg(operator(0.3), random_field(), shifts)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rtol": 1}, "rtol is below 1"),
        ({"rtol": 0}, "rtol or atol above 0"),
        ({"rtol": "small"}, "multishift_cg: rtol is"),
        ({"maxiter": 0}, "maxiter is a positive whole number, not 0"),
        ({"maxiter": None}, "maxiter is a positive whole number, not None"),
        ({"check_interval": 1.5}, r"check_interval is a positive whole number, not 1\.5"),
    ],
)
def test_impossible_arguments_are_refused(options, said):
    with pytest.raises(ParameterError, match=said):
        multishift_cg(operator(0.3), random_field(), [0.0], **options)


def test_vectors_and_operators_that_do_not_fit_are_refused():
    M, b = dense(np.float64)
    with pytest.raises(
        ParameterError, match="check_interval=4, but operations on these vectors cannot be recorded"
    ):
        multishift_cg(MatrixOperator(M), b, [0.0], check_interval=4)
    with pytest.raises(ParameterError, match="the operator has a function matvec"):
        multishift_cg(M, b, [0.0])
    with pytest.raises(ParameterError, match="multishift_cg: b is a vector"):
        multishift_cg(operator(0.3), 3.0, [0.0])
    with pytest.raises(LayoutError, match="whole numbers"):
        multishift_cg(operator(0.3), Field(Lattice(4, 4), jali.Integer()), [0.0])
    with pytest.raises(TypeError, match="here it is rtol"):
        multishift_cg(operator(0.3), random_field(), [0.0], tol=1e-3)


def test_operators_that_are_not_positive_or_not_hermitian_are_errors():
    b = random_field()
    with pytest.raises(
        SolverError, match=r"A \+ -0\.5, of the smallest shift: iteration .* not positive definite"
    ):
        multishift_cg(operator(0.1), b, [-0.5, 3.0])
    assert multishift_cg(operator(-0.5), b, [0.6, 3.0]).converged

    def drift(p, q):
        q[...] = (5 + 2j) * p[...]

    with pytest.raises(SolverError, match="is not real: the operator is not Hermitian"):
        multishift_cg(drift, random_field(Complex()), [0.1])


def test_infinities_are_errors():
    b = random_field()
    b[0, 0, 0] = np.nan
    with pytest.raises(SolverError, match=r"multishift_cg: b contains infinities or nan \(1 numbers\)"):
        multishift_cg(operator(0.3), b, [0.0])
    M, c = dense(np.float64)
    with np.errstate(invalid="ignore"), pytest.raises(SolverError, match="produced infinities or nan"):
        multishift_cg(MatrixOperator(M * np.inf), c, [0.0, 1.0])


def test_no_convergence_is_an_error_that_names_the_shifts():
    with pytest.raises(
        SolverError, match=r"2 of 3 shifts miss .*shift 0 = 0 with .*shift 1 = 0\.1 with .*maxiter"
    ) as raised:
        multishift_cg(operator(0.01), random_field(), [0.0, 0.1, 500.0], maxiter=8)
    early = multishift_cg(operator(0.01), random_field(), [0.0, 0.1, 500.0], maxiter=8, must_converge=False)
    assert raised.value.history == [one.history for one in early.solutions]
    assert early[0].time == early[2].time > 0


def test_operator_that_cannot_be_recorded_is_refused_where_that_was_requested():
    def apply(p, q):
        q[...] = np.arange(1, 9)[:, None, None] * p[...]

    assert multishift_cg(apply, random_field(), [0.0, 1.0]).converged
    with pytest.raises(RecordingError, match="is read or set from Python while a graph is recorded"):
        multishift_cg(apply, random_field(), [0.0, 1.0], check_interval=4)
