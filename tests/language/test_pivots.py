"""A matrix that is not positive definite, or singular, is an error that names the site and the pivot, told once, on every rank."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import EVEN, Field, Hermitian, Lattice, Matrix, Real, SingularError, Vector, virtual_ranks

pytestmark = pytest.mark.lanes

EXTENTS = (4, 6)
GRIDS = [(1, 1), (2, 1)]
on_ranks = pytest.mark.parametrize("grid", GRIDS)


@jali.site_function
def factor(X, out, h):
    out[X] = h[X].cholesky()[0, :].reshape(-1)


@jali.site_function
def solution(X, out, h):
    out[X] = h[X].solve(jali.vector([1.0] * h[X].shape[0]))


@jali.site_function
def logarithm(X, out, h):
    out[X][0] = h[X].log_det()


@jali.site_function
def inverted(X, out, h):
    out[X] = h[X].inverse()[0, :].reshape(-1)


FUNCTIONS = [factor, solution, logarithm, inverted]


def on(grid, body, device="cpu"):
    """The body on a lattice of so many ranks; what all of them return."""

    def run():
        return body(Lattice(*EXTENTS, grid=grid, device=device))

    found = virtual_ranks(grid[0] * grid[1], run)
    assert all(one == found[0] for one in found)
    return found[0]


def blocks(lattice, n=3, precision="float64", **bad):
    """A field of unit matrices, and one for what is made of them; at sites "x1_2" the diagonals that are given."""
    h, out = Field(lattice, Hermitian(n), precision=precision), Field(lattice, Vector(n), precision=precision)
    h[...] = np.eye(n)
    for place, diagonal in bad.items():
        h[tuple(map(int, place[1:].split("_")))] = np.diag(diagonal)
    return h, out


def message(what):
    with pytest.raises(SingularError) as caught:
        what()
    return str(caught.value)


def names_of_all(lattice, precision="float64"):
    """What each function says of a matrix whose last pivot is wrong."""
    said = []
    for function in FUNCTIONS:
        h, out = blocks(lattice, precision=precision, x3_2=[1, 2, 0.0])
        function(out, h)
        said.append(message(lambda out=out: out[0, 0]).split(", in ")[0])
    return said


@pytest.mark.parametrize("precision", ["float64", "float32"])
@on_ranks
def test_the_error_names_function_field_site_and_pivot(grid, precision):
    assert on(grid, lambda lattice: names_of_all(lattice, precision)) == [
        *(
            f"{name}: h at site (3, 2) is not positive definite: pivot 2 of 0 to 2 is 0"
            for name in ("factor", "solution", "logarithm")
        ),
        "inverted: h at site (3, 2) is singular: pivot 2 of 0 to 2 is 0",
    ]


@on_ranks
def test_the_error_ends_with_the_line_that_reads_and_names_that_of_the_operation(grid):
    def body(lattice):
        h, out = blocks(lattice, x0_0=[1, -1, 1])
        solution(out, h)
        said = message(lambda: out[...])
        line = solution.function.__code__.co_firstlineno + 2
        assert f"in {__file__}:{line}" in said
        assert said.splitlines()[-1].startswith(f"  at {__file__}:")
        return said

    on(grid, body)


@pytest.mark.parametrize(
    ("matrix", "pivot", "value"),
    [
        (-np.eye(2), 0, -1),
        ([[1, 1j], [-1j, 1]], 1, 0),
        (np.diag([1.0, -1.0, 1.0]), 1, -1),
        (np.full((3, 3), np.nan), 0, np.nan),
        (np.diag([1.0] * 11 + [-3e-200]), 11, -3e-200),
        (np.diag([2.0] * 17 + [-6e30] * 3), 17, -6e30),
    ],
)
def test_number_and_value_of_the_pivot_are_those_of_the_elimination(matrix, pivot, value):
    lattice = Lattice(3, 2)
    h, out = Field(lattice, Hermitian(len(matrix))), Field(lattice, Real())

    @jali.site_function
    def f(X, out, h):
        out[X] = h[X].log_det()

    h[...], h[2, 1] = np.eye(len(matrix)), matrix
    f(out, h)
    said = message(lambda: out[0, 0])
    assert f"h at site (2, 1) is not positive definite: pivot {pivot} of 0 to {len(matrix) - 1} is " in said
    found = float(said.split(" is ")[2].split(",")[0])
    assert found == pytest.approx(value, rel=0.05, nan_ok=True)  # two digits, of eight bits
    assert np.count_nonzero(np.isnan(out[...])) == 1


@on_ranks
def test_an_error_is_told_once_and_the_next_names_its_own_site(grid):
    def body(lattice):
        h, out = blocks(lattice, x1_1=[1, -1, 1], x2_5=[1, 1, -2])
        solution(out, h)
        assert "(1, 1)" in (said := message(lambda: out[0, 0]))
        assert "the first of 2 such matrices" in said
        assert np.isnan(out[2, 5]).all()
        h[1, 1] = np.eye(3)
        for _ in range(2):
            solution(out, h)
        assert "(2, 5)" in (said := message(lambda: out[0, 0]))
        assert "the first of 2 such matrices" in said  # of two runs
        h[2, 5] = np.eye(3)
        solution(out, h)
        return out[2, 5].tolist()

    assert on(grid, body) == [1, 1, 1]


@on_ranks
def test_sites_are_those_of_the_matrix_wherever_it_is_read_and_written(grid):
    @jali.site_function
    def ahead(X, out, h):
        mu, nu = X.directions()
        out[X] = h[X + mu - nu].solve(jali.vector([1, 1, 1]))

    @jali.site_function
    def scattered(X, out, h):
        out[X + X.directions()[0]] = h[X].solve(jali.vector([1, 1, 1]))

    @jali.site_function
    def summed(X, out, h):
        out[X] = (h[X] + h[X + X.directions()[1]]).solve(jali.vector([1, 1, 1]))

    def body(lattice):
        said = []
        for function in (ahead, scattered, summed):
            h, out = blocks(lattice, x0_5=[-1, -1, -1])
            function(out, h)
            said.append(message(lambda out=out: out[0, 0]))
        return [text.split(" is not")[0] for text in said]

    assert on(grid, body) == [
        "ahead: h at site (0, 5)",
        "scattered: h at site (0, 5)",
        "summed: the matrix made of h at site (0, 4)",
    ]


@on_ranks
def test_only_sites_of_the_domain_count(grid):
    def body(lattice):
        h, out = blocks(lattice, x1_2=[-1, 1, 1])
        solution[EVEN](out, h)
        out[0, 0]
        solution(out, h)
        return message(lambda: out[0, 0]).split(" is ")[0]

    assert on(grid, body) == "solution: h at site (1, 2)"


@jali.site_function
def guarded(X, out, h, ok):
    out[X] = jali.where(ok[X] > 0, h[X].solve(jali.vector([1.0, 1, 1])), jali.vector([7.0, 7, 7]))


@on_ranks
def test_what_a_choice_does_not_take_is_no_error(grid):
    @jali.site_function
    def in_turn(X, out, h, ok):
        inner = jali.where(ok[X] > 0, h[X].log_det(), 1.0)
        out[X][0] = jali.where(X.coordinate(0) < 2, 3.0, inner)
        out[X][1] = 2.0

    @jali.site_function
    def twice(X, out, h, ok):
        one = jali.where(ok[X] > 0, h[X].log_det(), 1.0)
        out[X][0] = one + jali.where(X.coordinate(0) == 1, h[X].cholesky()[0, 0], 0.0)

    @jali.site_function
    def by_its_own(X, out, h, ok):
        L = h[X].cholesky()
        out[X][0] = jali.where(L[2, 2].real > 0, h[X].log_det(), ok[X])

    @jali.site_function
    def unused(X, out, h, ok):
        h[X].cholesky()
        out[X][0] = ok[X]

    def body(lattice):
        found = []
        for function in (guarded, in_turn, twice, by_its_own, unused):
            h, out = blocks(lattice, x1_2=[1, -1, 1], x3_3=[-1, 1, 1])
            ok = Field(lattice, Real())
            ok[...] = 1.0
            ok[1, 2] = 0.0
            for at in ((3, 3), None):
                function(out, h, ok)
                try:
                    found.append(out[1, 2].real.tolist()[0])
                except SingularError as error:
                    found.append(str(error).split("site ")[1][:6])
                if at:
                    ok[at] = 0.0
        return found

    assert on(grid, body) == ["(3, 3)", 7, "(3, 3)", 3, "(1, 2)", "(1, 2)", "(1, 2)", "(1, 2)", 0, 0]


@on_ranks
def test_sums_tell_where_they_are_read(grid):
    @jali.site_function
    def total(X, h, sum):
        sum += h[X].log_det()

    def body(lattice):
        h, _ = blocks(lattice, x2_0=[1, 1, -4])
        assert "total: h at site (2, 0)" in message(lambda: lattice.sum(total, h))
        assert "(2, 0)" in message(lambda: float(lattice.sum(total, h, wait=False)))
        if lattice.gpu is None or grid == (1, 1):
            graph = jali.graph(lambda: lattice.sum(total, h, wait=False), lattice)

            def run():
                graph.run(2)
                graph.read()

            assert "(2, 0)" in message(run)
        h[2, 0] = np.e * np.eye(3)
        return round(lattice.sum(total, h), 9)

    assert on(grid, body) == 3


@on_ranks
def test_whole_fields_copies_and_lost_launches_tell(grid):
    def body(lattice):
        h, _ = blocks(lattice, x0_3=[1, 1, -4])
        named = Field(lattice, Hermitian(3), name="clover").assign(h)
        said = [
            message(what)
            for what in (
                lambda: named.log_det().sum(),
                lambda: named.solve(Field(lattice, Vector(3)))[0, 0],
                lambda: np.asarray(named.cholesky()),
            )
        ]
        assert all("clover at site (0, 3) is not positive definite: pivot 2" in text for text in said)
        x = Field(lattice, Vector(3))
        solution(x, h)
        other = x.copy()
        message(lambda: x[0, 0])
        message(lambda: other.local() if lattice.communicator.size == 1 else other[0, 0])
        assert x[1, 1][0] == other[1, 1][0] == 1
        y = Field(lattice, Vector(3), storage="fixed16")  # cannot hold nan: that follows from the pivot
        solution(y, h)
        message(lambda: y[0, 0])
        return y[1, 1].tolist()

    assert on(grid, body) == [1, 1, 1]


def test_indefinite_matrices_have_inverses_and_general_ones_no_error():
    lattice = Lattice(*EXTENTS)
    h, _ = blocks(lattice, 2, x1_1=[1, -4])
    h[2, 2] = [[0, 2j], [-2j, 0]]
    assert np.allclose(h.inverse()[...] @ h[...], np.eye(2))
    m = Field(lattice, Matrix(2))
    assert not np.isfinite(m.inverse()[...]).any()


@pytest.mark.parametrize("n", range(1, 7))
def test_the_pivot_of_a_singular_matrix_is_that_of_elimination_with_exchanges(n):
    lattice = Lattice(*EXTENTS)
    h, _ = blocks(lattice, n)
    for value, pivot, shown in ((np.ones((n, n)), min(1, n - 1), "0"), (np.full((n, n), np.nan), 0, "nan")):
        h[1, 0] = value
        if n > 1 or shown == "nan":
            said = message(lambda: h.inverse()[0, 0])
            assert f"at site (1, 0) is singular: pivot {pivot} of 0 to {n - 1} is {shown}" in said


def test_a_kernel_without_factors_counts_nothing():
    lattice = Lattice(*EXTENTS)
    h, out = blocks(lattice)

    @jali.site_function
    def f(X, out, h):
        out[X] = h[X] * out[X]

    assert "counters" not in jali.inspect(f, out, h).source
    assert jali.inspect(solution, out, h).source.count("count_pivots<2>(counters + 2,") == 1


def test_rejection_loops_count_only_lanes_that_still_try():
    lattice = Lattice(*EXTENTS)
    h, out = blocks(lattice, x1_2=[-1, 1, 1])

    @jali.site_function
    def f(X, out, h, rng):
        def attempt():
            x = rng.uniform(X)
            return x < 0.5, (h[X] * (1 + x)).log_det()

        out[X][0] = X.repeat_until(attempt, limit=50, otherwise=0.0)

    f(out, h, jali.Random(seed=1))
    assert "the matrix made of h at site (1, 2)" in message(lambda: out[0, 0])


@jali.site_function
def of_another(X, out, h):
    out[X] = h[X, X.member + 1].solve(jali.vector([1.0, 1, 1]))


@jali.site_function
def of_the_first(X, out, h):
    out[X] = h[X, 0].solve(jali.vector([1.0, 1, 1]))


@jali.site_function
def of_all(X, out, h, g):
    out[X] = g[X].solve(h[X] @ jali.vector([1.0, 1, 1]))


@jali.site_function
def times_member(X, out, h, g):
    out[X] = (g[X] * jali.where(X.member < 2, 1.0, -1.0)).solve(h[X] @ jali.vector([1.0, 1, 1]))


@on_ranks
def test_the_error_names_the_member_of_a_batch(grid):
    def body(lattice):
        h = Field(lattice, Hermitian(3), batch=3, name="h")
        h[...] = np.eye(3)
        out, g = h.like(element=Vector(3)), Field(lattice, Hermitian(3))
        g[...] = np.eye(3)
        h[1, 2] = np.array([np.eye(3), -np.eye(3), np.eye(3)])
        h[3, 3] = np.array([-np.eye(3), -np.eye(3), np.eye(3)])
        said = []

        def run(function, *fields):
            function(out, *fields)
            text = message(lambda: out[0, 0])
            said.append(text.split(" is ")[0] + text.splitlines()[0].rpartition(",")[2])

        run(solution, h)
        said.append(message(lambda: h.solve(out)[0, 0]).split(" is ")[0])
        run(of_another, h)
        h[3, 3, 0] = np.eye(3)
        run(solution, h)
        h[0, 1, 0] = -np.eye(3)
        run(of_the_first, h)
        solution(out.members[:2], h.members[1:])
        said.append(message(lambda: out[0, 0]).split(" is ")[0])
        g[2, 2] = -np.eye(3)
        run(of_all, h, g)
        g[2, 2] = np.eye(3)
        run(times_member, h, g)
        return said

    assert on(grid, body) == [
        "solution: member 1 of h at site (1, 2) the first of 3 such matrices",
        "member 1 of h at site (1, 2)",
        "of_another: the matrix made of h at site (1, 2), for member 0, the first of 3 such matrices",
        "solution: member 1 of h at site (1, 2) the first of 2 such matrices",
        f"of_the_first: member 0 of h at site (0, 1) in {__file__}:{of_the_first.function.__code__.co_firstlineno + 2}",
        "solution: member 0 of h at site (1, 2)",
        f"of_all: g at site (2, 2) in {__file__}:{of_all.function.__code__.co_firstlineno + 2}",
        "times_member: the matrix made of g at site (0, 0), for member 2, the first of 24 such matrices",
    ]


@on_ranks
def test_the_error_names_the_edge_where_a_zero_or_a_sign_comes_from(grid):
    @jali.site_function
    def ahead(X, out, h):
        mu, _ = X.directions()
        out[X] = h[X + mu].solve(jali.vector([1.0, 1, 1]))

    @jali.site_function
    def behind(X, out, h):
        mu, nu = X.directions()
        out[X] = h[X - mu + nu].solve(jali.vector([1.0, 1, 1]))

    def body(lattice):
        said = []
        for function in (ahead, behind):
            for boundary in ({0: "open"}, {0: "antiperiodic"}, {1: "antiperiodic"}, None):
                h = Field(lattice, Hermitian(3), boundary=boundary, name="h")
                h[...] = np.eye(3)
                out = Field(lattice, Vector(3))
                if boundary is None:
                    h[0, 0] = -np.eye(3)
                function(out, h)
                try:
                    out[0, 0]
                    said.append("")
                except SingularError as error:
                    said.append(str(error).split(": ", 1)[1].split(" is ")[0])
        return said

    assert on(grid, body) == [
        "h read from site (3, 0) across the open end of direction 0",
        "h at site (0, 0), read from site (3, 0) with the boundary factor -1,",
        "",
        "h at site (0, 0)",
        "h read from site (0, 0) across the open end of direction 0",
        "h at site (3, 1), read from site (0, 0) with the boundary factor -1,",
        "h at site (3, 0), read from site (0, 5) with the boundary factor -1,",
        "h at site (0, 0)",
    ]


@on_ranks
def test_unlike_failures_of_several_launches_are_counted_apart(grid):
    def body(lattice):
        h, out = blocks(lattice, x1_1=[1, -1, 1], x2_5=[1, 1, -2])
        g, _ = blocks(lattice, x2_1=[1, 1, 0])
        for _ in range(2):
            solution(out, h)
        inverted(out, g)
        said = [message(lambda: out[0, 0])]
        g[0, 0] = np.diag([0, 1, 1])
        solution(out, h)
        inverted(out, g)
        said.append(message(lambda: out[0, 0]))
        return [text.splitlines()[0] for text in said]

    first, second = on(grid, body)
    assert first.startswith("solution: h at site (1, 1) is not positive definite")
    assert first.endswith(", the first of 4 such matrices; 1 other fails, too")
    assert second.startswith("inverted: h at site (0, 0) is singular")
    assert second.endswith(", the first of 2 such matrices; 2 others fail, too")
