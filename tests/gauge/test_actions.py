"""Actions: value, staple and force against NumPy and each other, colours by brute force, updates that agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, warm
from scipy.special import iv

import jali
from jali import Complex
from jali.codegen.stage_cache import COUNTS
from jali.errors import LayoutError, ParameterError, TraceError
from jali.gauge import (
    SU,
    Action,
    Flow,
    GaugeField,
    RectangleAction,
    WilsonAction,
    dbw2_action,
    haar_random,
    heat_bath_link,
    heat_bath_sweep,
    iwasaki_action,
    metropolis_link,
    metropolis_sweep,
    overrelax_link,
    overrelaxation_sweep,
    plaquette,
    project,
    simulate,
    staple,
    sweep,
    symanzik_action,
    wilson_loop,
)
from jali.gauge.link_colours import (
    RECTANGLES,
    _Search,
    _searched_colours,
    displacements,
    link_colours,
    link_parts,
)
from jali.gauge.overrelaxation import overrelax
from jali.statistics import mean_error

Path = tuple[int, ...]


def along(X: Any, U: Any, steps: Sequence[int]) -> Any:
    """The product of links along a path from X, inside a site function; a step is mu + 1 or -(mu + 1)."""
    product, here = None, X
    for step in steps:
        mu = X.directions()[abs(step) - 1]
        if step < 0:
            here = here - mu
        link = U[mu][here] if step > 0 else U[mu][here].dagger()
        if step > 0:
            here = here + mu
        product = link if product is None else product * link
    return product


def inverse(path: Path) -> Path:
    return tuple(-step for step in reversed(path))


class LoopAction(Action):
    """S = beta sum over loops of (1 - Re tr / n): an action of a user's own, from nothing but closed paths."""

    def __init__(self, beta: float, loops: Sequence[Path], reach: Any):
        self.beta, self.loops, self._reach = beta, tuple(loops), reach

    @property
    def reach(self) -> Any:
        return self._reach

    def value(self, U: GaugeField) -> float:
        @jali.site_function
        def loops(X: Any, U: Any, total: Any) -> None:
            for loop in self.loops:
                total += 1 - along(X, U, loop).trace().real / U[0][X].shape[0]

        return self.beta * U.lattice.sum(loops, U)

    def staple(self, X: Any, U: Any, mu: Any) -> Any:
        total = None
        for loop in self.loops:
            for k in range(len(loop)):
                rotated = loop[k:] + loop[:k]
                if abs(rotated[0]) - 1 != int(mu):
                    continue
                # U times the rest closes the loop, so the rest is the inverse of a staple from X.
                path = along(X, U, inverse(rotated[1:]) if rotated[0] > 0 else rotated[1:])
                total = path if total is None else total + path
        return total


def chairs(ndim: int) -> list[Path]:
    """Two plaquettes of a cube that share an edge at a right angle, one for each way to lie and one sense."""
    found = {}
    for m, v, r in itertools.permutations(range(1, ndim + 1), 3):
        for sv, sr in itertools.product((1, -1), repeat=2):
            path = (sv * v, m, -sv * v, sr * r, -m, -sr * r)
            turns = [p[k:] + p[:k] for p in (path, inverse(path)) for k in range(6)]
            # the first site does not matter: all sites of the lattice are summed over
            found.setdefault(min(turns), path)
    return list(found.values())


class Chairs(LoopAction):
    """Plaquettes and some of the chairs, which alone would have a second vacuum with all plaquettes turned round."""

    def __init__(self, beta: float, ndim: int):
        plaquettes = [(m, v, -m, -v) for m, v in itertools.combinations(range(1, ndim + 1), 2)]
        super().__init__(beta, plaquettes + chairs(ndim)[::4], ((1, 1, 1),))


ACTIONS = {
    "Wilson": lambda ndim: WilsonAction(1.7),
    "Symanzik": lambda ndim: symanzik_action(1.7),
    "Iwasaki": lambda ndim: iwasaki_action(1.3),
    "DBW2": lambda ndim: dbw2_action(0.7),
    "chairs": lambda ndim: Chairs(0.5, ndim),
}


def named(*short: str) -> list[Any]:
    """All actions, of which the short run has these: each has kernels of its own, which take seconds to compile."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.full) for name in ACTIONS]


def cases(*lattices: tuple[int, ...]) -> list[Any]:
    """Actions, groups and extents: in the short run one action for all of them, the others for a group each."""
    own = {"Wilson": 3, "Iwasaki": 1, "DBW2": 2, "chairs": 2}
    return [
        pytest.param(
            name,
            n,
            extents,
            marks=() if own.get(name, n) == n and (len(extents) < 4 or n == 3) else pytest.mark.full,
        )
        for name in ACTIONS
        for n in GROUPS
        for extents in lattices
    ]


# ---- value, staple, force --------------------------------------------------------------------------------


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", [(3, 4), (4, 3, 5), (4, 3, 3, 4)])
@pytest.mark.parametrize("n", GROUPS)
def test_the_value_counts_loops_as_numpy_does(extents: tuple[int, ...], n: int) -> None:
    U = warm(extents, n)
    array, d, volume = as_array(U), len(extents), math.prod(extents)
    P, R = reference.wilson_loop(array, 1, 1), reference.wilson_loop(array, 2, 1)
    for action, c1 in (
        (symanzik_action(2.5), -1 / 12),
        (iwasaki_action(2.5), -0.331),
        (dbw2_action(2.5), -1.4088),
    ):
        plaquettes, rectangles = volume * d * (d - 1) / 2 * (1 - P), volume * d * (d - 1) * (1 - R)
        exact = 2.5 * ((1 - 8 * c1) * plaquettes + c1 * rectangles)
        assert action.value(U) == pytest.approx(exact, rel=1e-12)
        assert action.density(U) == pytest.approx(exact / volume, rel=1e-12)
    assert iwasaki_action(2.5).value(GaugeField(U.lattice, SU(n)).cold_start()) == pytest.approx(0, abs=1e-9)


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", [(3, 4), (4, 3, 5), (3, 4, 5, 3)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_rectangle_staples_agree_with_paths_in_numpy(extents: tuple[int, ...], precision: str) -> None:
    U = warm(extents, 3, precision=precision)
    array = as_array(U)
    out = jali.Field(U.lattice, jali.Matrix(3), precision=precision)

    @jali.site_function
    def store(X: Any, U: Any, out: Any, mu: Any, staple: Any) -> None:
        out[X] = staple(X, U, mu)

    action = RectangleAction(1.0, -0.3)
    for mu, direction in enumerate(U.lattice.directions):
        total = (1 + 8 * 0.3) * reference.staple(array, mu)
        m = mu + 1
        for nu in range(len(extents)):
            for v in (nu + 1, -nu - 1) if nu != mu else ():
                for steps in ([v, v, m, -v, -v], [v, m, m, -v, -m], [-m, v, m, m, -v]):
                    total = total - 0.3 * reference.path(array, steps)
        store(U, out, direction, action.staple)
        np.testing.assert_allclose(out.local(), total, atol=1e-13 if precision == "float64" else 2e-5)


@pytest.mark.short(2)
@pytest.mark.parametrize(("name", "n", "extents"), cases((3, 4, 4), (4, 3, 3, 6)))
def test_the_force_is_the_numerical_derivative_of_the_value(
    name: str, n: int, extents: tuple[int, ...]
) -> None:
    U = warm(extents, n)
    action = ACTIONS[name](len(extents))
    forces = action.force(U)
    rng = np.random.default_rng(2)
    for mu in range(len(extents)):
        site = tuple(int(rng.integers(extent)) for extent in extents)
        omega = reference.traceless_antihermitian(rng.normal(size=(n, n)) + 1j * rng.normal(size=(n, n)))
        link = U[mu][site]
        step, values = 1e-2, []
        for k in (-2, -1, 1, 2):
            U[mu][site] = reference.exponential(k * step * omega) @ link
            values.append(action.value(U))
        U[mu][site] = link
        slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        assert slope == pytest.approx(-2 * np.trace(omega @ forces[mu][site]).real, abs=4e-6)


@pytest.mark.parametrize("name", named("Symanzik"))
def test_force_and_flow_are_gauge_covariant(name: str) -> None:
    U = warm((4, 3, 4, 3), 3)
    action = ACTIONS[name](4)
    g = GaugeField(U.lattice, SU(3)).hot_start(5)[0]
    before, flowed = [f.local() for f in action.force(U)], Flow(U, 0.01, action).advance(2)
    U.gauge_transform(g)
    after, G = [f.local() for f in action.force(U)], g.local()
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, G @ a @ reference.dagger(G), atol=1e-11)
    again = Flow(U, 0.01, action).advance(2)
    np.testing.assert_allclose(as_array(flowed.gauge_transform(g)), as_array(again), atol=1e-12)


@pytest.mark.short(1)
@pytest.mark.parametrize("name", named("Wilson", "Symanzik", "chairs"))
def test_the_flow_lowers_its_own_action_by_the_square_of_the_force(name: str) -> None:
    """dS/dt = -(beta / 2n) sum |2n F / beta|^2 with dV/dt = -(2n / beta) F V."""
    U = warm((4, 4, 4), 2, spread=0.3)
    action = ACTIONS[name](3)
    step = 1e-4
    values = [action.value(Flow(U, step, action).advance(k) if k else U) for k in range(3)]
    middle = Flow(U, step, action).advance(1)
    slope = (values[2] - values[0]) / (2 * step)
    norm = sum(float(np.sum(np.abs(f.local()) ** 2)) for f in action.force(middle))
    assert slope == pytest.approx(-2 * norm * 2 * U.n / action.beta, rel=1e-3)


@jali.site_function
def _force_by_hand(X: Any, F: Any, U: Any, half_coupling: Any, staple: Any) -> None:
    for mu in X.directions():
        F[mu][X] = half_coupling * (U[mu][X] * staple(X, U, mu).dagger()).traceless_antihermitian()


@pytest.mark.parametrize("n", GROUPS)
@pytest.mark.parametrize("name", named("Wilson", "Iwasaki"))
def test_the_force_is_that_of_the_staples(name: str, n: int) -> None:
    """F = (beta / 2n) TA(U S^dagger), the traceless anti-Hermitian part."""
    action = ACTIONS[name](3)
    U = warm((4, 3, 4), n)
    by_hand = [jali.Field(U.lattice, jali.Algebra(n)) for _ in U.fields]
    _force_by_hand(by_hand, U, action.beta / (2 * n), action.staple)
    for a, b in zip(action.force(U), by_hand, strict=True):
        np.testing.assert_allclose(a.local(), b.local(), atol=2e-13)


class _Composed(Action):
    """An action of one's own, made of one of jali's and a term of plaquettes."""

    beta = 2.3
    reach = ((1, 1), (1, 2))
    part = RectangleAction(2.3, -0.3)

    def value(self, U: GaugeField) -> float:
        return self.part.value(U) + 0.5 * WilsonAction(self.beta).value(U)

    def staple(self, X: Any, U: Any, mu: Any) -> Any:
        return self.part.staple(X, U, mu) + 0.5 * staple(X, U, mu)


class _MadeInside(_Composed):
    def staple(self, X: Any, U: Any, mu: Any) -> Any:
        return RectangleAction(2.3, -0.3).staple(X, U, mu) + 0.5 * staple(X, U, mu)


def test_an_action_of_ones_own_is_composed_of_jalis() -> None:
    """With the weights c0 + 1/2 and c1 of a RectangleAction of another beta and c1; the staple has been used before."""
    part = RectangleAction(2.3, -0.3)
    U = warm((4, 5, 4), 2)
    part.force(U)
    whole = part.c0 + 0.5 + 8 * part.c1
    same = RectangleAction(2.3 * whole, part.c1 / whole)
    expected = U.copy()
    overrelaxation_sweep(expected, same)
    for action in (_Composed(), _MadeInside()):
        assert action.value(U) == pytest.approx(same.value(U), rel=1e-12)
        for a, b in zip(action.force(U), same.force(U), strict=True):
            np.testing.assert_allclose(a.local(), b.local(), atol=1e-12)
        V = U.copy()
        overrelaxation_sweep(V, action)
        np.testing.assert_allclose(as_array(V), as_array(expected), atol=1e-11)
        heat_bath_sweep(V, action, jali.Random(1))
        assert 0 < metropolis_sweep(V, action, jali.Random(2)) < 1


# ---- colours ---------------------------------------------------------------------------------------------


def loops_in_boxes(reach: Any, ndim: int) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
    """All links (direction, site) of every box of a reach with its corner at the origin."""
    for box in reach:
        for s in set(itertools.permutations((*box, *(0,) * (ndim - len(box))), ndim)):
            sites = list(itertools.product(*(range(k + 1) for k in s)))
            yield [(mu, x) for x in sites for mu in range(ndim) if x[mu] < s[mu]]


REACHES = [((1, 1),), RECTANGLES, ((1, 1, 1),), ((2, 2),), ((1, 2), (1, 1, 1)), ((1, 3),)]


@pytest.mark.parametrize(
    "extents", [(3, 4), (4, 4), (5, 7), (4, 3, 5), (4, 6, 8), (3, 4, 5, 6), (4, 4, 4, 4)]
)
@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_no_two_links_of_a_colour_are_in_one_term(reach: Any, extents: tuple[int, ...]) -> None:
    if max(map(max, reach)) >= min(extents):
        pytest.skip("a term would contain a link twice")
    lattice, ndim = jali.Lattice(*extents), len(extents)
    coordinates = list(np.meshgrid(*map(np.arange, extents), indexing="ij"))
    colours = np.stack(
        [
            next(iter(link_colours(lattice, reach, mu))).colouring.colour_of(coordinates)
            if reach != ((1, 1),)
            else _painted(lattice, mu)
            for mu in range(ndim)
        ]
    )
    for corner in itertools.product(*map(range, extents)):
        for links in loops_in_boxes(reach, ndim):
            seen = [
                (mu, int(colours[(mu, *((c + x) % n for c, x, n in zip(corner, at, extents, strict=True)))]))
                for mu, at in links
            ]
            assert len(set(seen)) == len(seen)


def _painted(lattice: jali.Lattice, mu: int) -> np.ndarray:
    colour = jali.Field(lattice, jali.Real())

    @jali.site_function
    def mark(X: Any, colour: Any, value: Any) -> None:
        colour[X] += value

    for number, domain in enumerate(link_colours(lattice, ((1, 1),), mu)):
        mark[domain](colour, float(number))
    return colour.local().astype(int)


def test_few_colours_do_where_extents_allow() -> None:
    for extents, reach, number in (
        ((8, 8, 8, 8), RECTANGLES, 4),
        ((12, 4, 8, 16), RECTANGLES, 4),
        ((6, 6, 6, 6), RECTANGLES, 6),
        ((5, 5, 5, 5), RECTANGLES, 5),
        ((8, 8, 8, 8), ((1, 1, 1),), 6),
    ):
        assert len(list(link_colours(jali.Lattice(*extents), reach, 1))) == number


@pytest.mark.parametrize("extents", [(4, 4, 6), (5, 3, 4)])
def test_links_are_updated_once_each(extents: tuple[int, ...]) -> None:
    lattice = jali.Lattice(*extents)
    count = [jali.Field(lattice, jali.Real()) for _ in extents]

    @jali.site_function
    def mark(X: Any, count: Any, mu: Any) -> None:
        count[mu][X] += 1.0

    for mu, colour in link_parts(lattice, RECTANGLES):
        mark[colour](count, mu)
    assert all((f.local() == 1.0).all() for f in count)


@pytest.mark.parametrize(
    ("extents", "reach", "number"),
    [((8, 8, 8, 8), ((2, 2),), 8), ((5, 5, 5, 5), ((2, 2),), 13), ((4, 4, 4, 4), ((3, 3),), 16)],
)
def test_the_search_for_colours_takes_few_steps(
    extents: tuple[int, ...], reach: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took millions where the direction of the links came last, minutes of silence before the first update."""
    steps, sum_of = [0], _Search._sum

    def counted(self: Any, a: int, b: int) -> int:
        steps[0] += 1
        return sum_of(self, a, b)

    monkeypatch.setattr(_Search, "_sum", counted)
    for mu in range(4):
        tables = _searched_colours.__wrapped__(extents, tuple(displacements(reach, 4, mu)))
        assert len(list(tables)) == number
    assert steps[0] < 1_000_000


def test_a_reach_that_says_too_little_is_a_race() -> None:
    U = warm((4, 4, 4), 2)
    action = LoopAction(1.0, [(1, 1, 2, -1, -1, -2)], ((1, 1),))
    with pytest.raises(TraceError, match="of a site that the same loop writes"):
        heat_bath_sweep(U, action, jali.Random(1))


def test_what_is_no_reach_no_action_or_does_not_fit_is_refused() -> None:
    U = warm((4, 4, 2), 2)
    with pytest.raises(LayoutError, match=r"loops in boxes \(\(1, 2\),\) need .* extents of at least 3"):
        sweep(U, iwasaki_action(1.0), jali.Random(1))
    for reach in ((1, 2), [(1, 1)], ((1,),), ((0, 1),), ()):
        with pytest.raises(LayoutError, match="the reach of an action is a tuple of boxes"):
            heat_bath_sweep(U, LoopAction(1.0, [(1, 2, -1, -2)], reach), jali.Random(1))
    with pytest.raises(ParameterError, match="c1 is a finite number"):
        RectangleAction(1.0, math.inf)
    with pytest.raises(ParameterError, match="beta from 0, not -1"):
        heat_bath_sweep(U, WilsonAction(-1.0), jali.Random(1))
    with pytest.raises(ParameterError, match="beta is a real number or an Action"):
        next(simulate(U, "Iwasaki", jali.Random(1), 1))
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (Action,), {"reach": ((1, 1),)})()


class _Bare(Action):
    """Plaquettes, with members of the object that a test gives."""

    def __init__(self, **members: Any):
        vars(self).update(members)

    def value(self, U: GaugeField) -> float:
        return WilsonAction(1.0).value(U)

    def staple(self, X: Any, U: Any, mu: Any) -> Any:
        return staple(X, U, mu)


USES = {
    "heat bath": lambda U, action: heat_bath_sweep(U, action, jali.Random(1)),
    "Metropolis": lambda U, action: metropolis_sweep(U, action, jali.Random(1)),
    "overrelaxation": overrelaxation_sweep,
    "force": lambda U, action: action.force(U),
}


@pytest.mark.short(2)
@pytest.mark.parametrize("use", USES)
def test_members_that_an_action_lacks_are_named(use: str) -> None:
    U = warm((4, 4), 2)
    with pytest.raises(ParameterError, match=r"_Bare has no reach, boxes .* or set in __init__"):
        USES[use](U, _Bare(beta=1.0))
    for reach in ((1, 1), (), [(1, 1)]):
        with pytest.raises(LayoutError, match="the reach of an action is a tuple of boxes"):
            USES[use](U, _Bare(beta=1.0, reach=reach))
    if use == "overrelaxation":
        USES[use](U, _Bare(reach=((1, 1),)))  # at any beta
    else:
        with pytest.raises(ParameterError, match="_Bare has no beta, the factor in front"):
            USES[use](U, _Bare(reach=((1, 1),)))
        for beta in ("2", math.nan, None):
            with pytest.raises(ParameterError, match="beta is a finite number, not"):
                USES[use](U, _Bare(beta=beta, reach=((1, 1),)))
    V = U.copy()
    USES[use](U, _Bare(beta=1.0, reach=((1, 1),)))
    USES[use](V, WilsonAction(1.0))
    assert np.array_equal(as_array(U), as_array(V))


class _NotLinear(WilsonAction):
    def staple(self, X: Any, U: Any, mu: Any) -> Any:  # type: ignore[override]
        return staple(X, U, mu) * U[mu][X].trace().real


@pytest.mark.parametrize("use", [use for use in USES if use != "force"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_staple_that_reads_its_own_link_is_refused(use: str, n: int) -> None:
    def run() -> None:
        U = warm((4, 4), n)
        before = as_array(U)
        with pytest.raises(
            TraceError, match=r"the staple depends on the link that it multiplies[^$]*test_actions\.py"
        ):
            USES[use](U, _NotLinear(1.0))
        assert np.array_equal(as_array(U), before)

    jali.virtual_ranks(2, run)


@pytest.mark.short(2)
@pytest.mark.parametrize("use", USES)
def test_a_sum_of_staples_may_begin_with_zero_times_the_link(use: str) -> None:
    class FromZero(WilsonAction):
        def staple(self, X: Any, U: Any, mu: Any) -> Any:  # type: ignore[override]
            return 0.0 * U[mu][X] + staple(X, U, mu)

    U, V = warm((4, 4), 2), warm((4, 4), 2)
    USES[use](U, FromZero(1.5))
    USES[use](V, WilsonAction(1.5))
    np.testing.assert_allclose(as_array(U), as_array(V), atol=1e-13)


# ---- updates ---------------------------------------------------------------------------------------------


@pytest.mark.short(2)
@pytest.mark.parametrize(("name", "n", "extents"), cases((3, 4, 5), (4, 4, 3, 4)))
def test_overrelaxation_keeps_the_action_and_moves_the_links(
    name: str, n: int, extents: tuple[int, ...]
) -> None:
    U = warm(extents, n)
    action = ACTIONS[name](len(extents))
    value, before = action.value(U), as_array(U)
    overrelaxation_sweep(U, action)
    assert action.value(U) == pytest.approx(value, rel=1e-11)
    assert U.unitarity_deviation() < 1e-12
    assert np.abs(as_array(U) - before).max() > 0.1


@pytest.mark.parametrize("n", [1, 2])
def test_overrelaxation_in_the_opposite_order_goes_back(n: int) -> None:
    U = warm((3, 4, 5), n)
    before, action = as_array(U), symanzik_action(1.0)
    overrelaxation_sweep(U, action)
    for mu, colour in reversed(list(link_parts(U.lattice, action.reach))):
        overrelax[colour](U, mu, action.staple)
    np.testing.assert_allclose(as_array(U), before, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("Symanzik", 3),
        *(pytest.param(*of, marks=pytest.mark.full) for of in (("chairs", 1), ("Symanzik", 1), ("DBW2", 2))),
    ],
)
def test_heat_bath_and_metropolis_agree_on_the_same_action(name: str, n: int) -> None:
    lattice = jali.Lattice(4, 4, 4)
    action = {
        "Symanzik": symanzik_action(0.8 * n),
        "DBW2": dbw2_action(0.15 * n),
        "chairs": Chairs(0.2 * n, 3),
    }[name]
    found = []
    for seed, update in enumerate((heat_bath_sweep, lambda *a: metropolis_sweep(*a, width=0.6, hits=6))):
        U, rng = GaugeField(lattice, SU(n)).hot_start(1), jali.Random(seed)
        series = []
        for k in range(270):
            update(U, action, rng)
            if seed == 0:
                overrelaxation_sweep(U, action)
            if k >= 20:
                series.append([plaquette(U), action.density(U)])
        found.append([mean_error(column) for column in np.array(series).T])
    for heat, metro in zip(*found, strict=True):
        error = math.hypot(heat.error, metro.error)
        assert abs(heat.mean - metro.mean) < 4 * error
        assert error < 0.02 * abs(heat.mean) + 0.01


@pytest.mark.full
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.full), 3])
def test_updates_have_the_same_bits_on_any_ranks(ranks: int) -> None:
    def run() -> list[str]:
        U = GaugeField(jali.Lattice(6, 4, 4, 6), SU(2)).hot_start(3)
        rng, action = jali.Random(2), iwasaki_action(2.0)
        sweep(U, action, rng, 1, 1)
        metropolis_sweep(U, action, rng)
        return [action.value(U).hex(), plaquette(Flow(U, 0.02, action).advance(1)).hex()]

    alone = jali.virtual_ranks(1, run)[0]
    assert jali.virtual_ranks(ranks, run) == [alone] * ranks


def test_equal_actions_share_their_kernels() -> None:
    U, rng = warm((4, 4, 4), 2), jali.Random(1)
    heat_bath_sweep(U, iwasaki_action(1.0), rng)
    made = COUNTS["bound"].made
    for beta in (1.1, 1.2):
        heat_bath_sweep(U, iwasaki_action(beta), rng)
    assert COUNTS["bound"].made == made


@pytest.mark.full
def test_a_large_beta_orders_the_links_of_every_action() -> None:
    for action, n in ((symanzik_action(1e4), 3), (iwasaki_action(1e4), 2), (dbw2_action(1e4), 1)):
        U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(n)).cold_start()
        for m in simulate(U, beta=action, rng=jali.Random(1), sweeps=10):
            last = m
        assert 0.99 < last.plaquette < 1
        assert wilson_loop(U, 2, 1) > 0.99


# ---- building blocks -------------------------------------------------------------------------------------


@jali.site_function
def own_update(X: Any, U: Any, rng: Any, coupling: Any, mu: Any, kind: Any, accepted: Any) -> None:
    """A user's own staple, written out, with each of the building blocks."""
    S = sum(
        (
            U[nu][X] * U[mu][X + nu] * U[nu][X + mu].dagger()
            + U[nu][X - nu].dagger() * U[mu][X - nu] * U[nu][X + mu - nu]
            for nu in X.directions()
            if nu != mu
        ),
        0.0 * U[mu][X],
    )
    accepted += 0.0
    if kind == "overrelaxation":
        U[mu][X] = overrelax_link(U[mu][X], S)
    elif kind == "Metropolis":
        U[mu][X], hits = metropolis_link(X, U[mu][X], S, coupling, rng, 0.5, hits=3)
        accepted += hits / 3
    else:
        U[mu][X] = heat_bath_link(X, U[mu][X], S, coupling, rng, kind)


@pytest.mark.short(1)
@pytest.mark.parametrize("n", GROUPS)
def test_the_building_blocks_are_those_of_the_sweeps(n: int) -> None:
    """On the plane the plaquette of one's own update is the exact one of the torus."""
    lattice, beta = jali.Lattice(6, 6), 1.2 * n
    exact = jali.gauge.plaquette_reference(f"SU({n})" if n > 1 else "U(1)", beta, (6, 6)).value
    for kind in ("Creutz", "Kennedy-Pendleton", "Metropolis"):
        U, rng = GaugeField(lattice, SU(n)).hot_start(1), jali.Random(4)
        series = []
        for k in range(1050):
            for mu, colour in link_parts(lattice):
                accepted = lattice.sum(own_update, U, rng, beta / n, mu, kind, over=colour)
                lattice.sum(own_update, U, rng, beta / n, mu, "overrelaxation", over=colour)
            if k >= 50:
                series.append(plaquette(U))
        result = mean_error(series)
        assert abs(result.mean - exact) < 4 * result.error < 0.02
        assert (accepted > 0) == (kind == "Metropolis")


@jali.site_function
def draw_alone(X: Any, U: Any, rng: Any, coupling: Any, kind: Any) -> None:
    """Link 0 in the weight exp(coupling Re tr(U staple^dagger)), the staple 0.9 times the other link of the site."""
    if kind == "Metropolis":
        U[0][X], _ = metropolis_link(X, U[0][X], 0.9 * U[1][X], coupling, rng, 1.5, hits=4)
    else:
        U[0][X] = heat_bath_link(X, U[0][X], 0.9 * U[1][X], coupling, rng, kind)


def draw_known(coupling: float) -> jali.SiteFunction:
    """The same with a coupling that is known while tracing."""

    @jali.site_function
    def draw(X: Any, U: Any, rng: Any, _: Any, kind: Any) -> None:
        U[0][X] = heat_bath_link(X, U[0][X], 0.9 * U[1][X], coupling, rng, kind)

    return draw


@jali.site_function
def along_the_staple(X: Any, U: Any, total: Any) -> None:
    total += (U[0][X] * U[1][X].dagger()).trace().real / U[0][X].shape[0]


def drawn_alone(
    n: int, coupling: float, kind: str, draw: jali.SiteFunction = draw_alone, precision: str = "float64"
) -> float:
    """<Re tr(U V^dagger)> / n of links that are drawn by themselves, V the other link of the site; 16 x 4095 draws."""
    lattice, rng = jali.Lattice(63, 65), jali.Random(3)
    U = GaugeField(lattice, SU(n), precision=precision).hot_start(2)
    series = []
    for k in range(24):
        draw(U, rng, coupling, kind)
        if k >= 8:
            series.append(lattice.sum(along_the_staple, U) / lattice.volume)
    return float(np.mean(series))


@pytest.mark.short(2)
@pytest.mark.parametrize("coupling", [-2.0, 2.0, -0.4])
@pytest.mark.parametrize("kind", ["Creutz", "Kennedy-Pendleton"])
def test_the_heat_bath_of_one_link_is_exact_for_couplings_of_either_sign(kind: str, coupling: float) -> None:
    """SU(2): exp(a h0) sqrt(1 - h0^2) dh0 has <h0> = I_2(a) / I_1(a), a = 2 coupling |staple|; U(1): <cos> = I_1(a) /
    I_0(a), a = coupling |staple|. Both are odd in the coupling.
    """
    a = 0.9 * coupling
    su2, u1 = iv(2, 2 * a) / iv(1, 2 * a), iv(1, a) / iv(0, a)
    # five standard deviations, for variances of at most 1/4 and 1/2
    near2, near1 = 5 * math.sqrt(0.25 / (16 * 4095)), 5 * math.sqrt(0.5 / (16 * 4095))
    for precision in ("float64", "float32"):
        assert abs(drawn_alone(2, coupling, kind, precision=precision) - su2) < near2
    assert abs(drawn_alone(2, 0.0, kind, draw_known(coupling)) - su2) < near2
    assert abs(drawn_alone(1, coupling, kind) - u1) < near1
    assert abs(drawn_alone(1, 0.0, kind, draw_known(coupling)) - u1) < near1


@pytest.mark.short(1)
@pytest.mark.parametrize("kind", ["Creutz", "Kennedy-Pendleton"])
def test_the_heat_bath_of_su3_at_a_negative_coupling_is_that_of_metropolis(kind: str) -> None:
    bath, other = drawn_alone(3, -1.5, kind), drawn_alone(3, -1.5, "Metropolis")
    assert bath < -0.1
    assert abs(bath - other) < 0.01


@pytest.mark.short(1)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Creutz", "Kennedy-Pendleton"])
def test_the_sign_of_the_coupling_is_that_of_the_staple_to_the_bit(kind: str, n: int) -> None:
    def links(coupling: float, sign: float, draw: jali.SiteFunction) -> np.ndarray:
        U = GaugeField(jali.Lattice(5, 6), SU(n)).hot_start(2)
        U[1][...] *= sign
        draw(U, jali.Random(3), coupling, kind)
        return np.asarray(U[0][...])

    alone = links(1.3, 1.0, draw_alone)
    for sign in (1.0, -1.0):
        assert np.array_equal(alone, links(sign * 1.3, sign, draw_alone))
        assert np.array_equal(alone, links(0.0, sign, draw_known(sign * 1.3)))


@pytest.mark.short(1)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_couplings_of_the_heat_bath_that_are_no_numbers_are_refused(n: int) -> None:
    for coupling in (math.nan, math.inf, -math.inf):
        with pytest.raises(
            TraceError, match=f"heat_bath_link: the coupling is a finite number, not {coupling}"
        ):
            drawn_alone(n, 0.0, "Creutz", draw_known(coupling))
    if n > 1:
        with pytest.raises(TraceError, match="'Kennedy-Pendleton' has no draw at coupling 0; 'Creutz' has"):
            drawn_alone(n, 0.0, "Kennedy-Pendleton", draw_known(0.0))
    assert abs(drawn_alone(n, 0.0, "Creutz", draw_known(0.0))) < 0.02


def test_building_blocks_say_what_fits() -> None:
    U, rng = warm((4, 4), 2), jali.Random(1)

    @jali.site_function
    def wrong(X: Any, U: Any, rng: Any, which: Any) -> None:
        link = U[0][X]
        if which == "trace":
            U[0][X] = heat_bath_link(X, link, link.trace(), 1.0, rng)
        elif which == "method":
            U[0][X] = heat_bath_link(X, link, link, 1.0, rng, "Gibbs")
        elif which == "entry":
            U[0][X] = overrelax_link(link, link[0, 0])
        else:
            U[0][X], _ = metropolis_link(X, link, jali.identity(3), 1.0, rng, 0.1)

    for which, message in (
        ("trace", r"heat_bath_link: link and staple are matrices of one shape, not \(2, 2\) and \(1, 1\)"),
        ("method", "the method is 'Kennedy-Pendleton' or 'Creutz', not 'Gibbs'"),
        ("entry", "overrelax_link: link and staple"),
        ("size", r"metropolis_link: .* not \(2, 2\) and \(3, 3\)"),
    ):
        with pytest.raises(TraceError, match=message):
            wrong(U, rng, which)


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_number_is_a_matrix_of_one_element(precision: str) -> None:
    """Links of U(1) beside charged matter; the staple is a number, and so may be the link."""
    U = warm((4, 6), 1, precision=precision)
    phi = jali.Field(U.lattice, Complex(), precision=precision)
    phi.set_local(np.exp(1j * np.arange(24.0)).reshape(4, 6))

    @jali.site_function
    def update(X: Any, U: Any, z: Any, f: Any, rng: Any, form: Any, how: Any) -> None:
        mu = X.directions()[0]
        total = 1.5 * staple(X, U, mu) + 0.5 * f[X] * f[X + mu].conj()
        link = U[mu][X]
        total = total.trace()
        if form == "matrices":
            total = jali.matrix([[total]])
        if form == "numbers":
            link = link.trace()
        if how == "heat bath":
            new = heat_bath_link(X, link, total, 1.0, rng)
        elif how == "overrelaxation":
            new = overrelax_link(link, total)
        elif how == "Metropolis":
            new, _ = metropolis_link(X, link, total, 1.0, rng, 0.5, 2)
        else:
            new = project(total)
        z[X] = new

    def updated(form: str, how: str) -> np.ndarray:
        z = jali.Field(U.lattice, Complex(), precision=precision)
        update(U, z, phi, jali.Random(1), form, how)
        return np.asarray(z[...])

    for how in ("heat bath", "overrelaxation", "Metropolis", "projection"):
        expected = updated("matrices", how)
        np.testing.assert_allclose(np.abs(expected), 1, atol=1e-14 if precision == "float64" else 1e-6)
        for form in ("a number for the staple", "numbers"):
            assert np.array_equal(updated(form, how), expected), (form, how)


class _TraceOfStaple(WilsonAction):
    def staple(self, X: Any, U: Any, mu: Any) -> Any:  # type: ignore[override]
        return staple(X, U, mu).trace()


def test_a_staple_that_is_a_number_is_taken_by_sweeps() -> None:
    U, V = warm((4, 4), 1), warm((4, 4), 1)
    action = _TraceOfStaple(1.5)
    sweep(U, action, jali.Random(1))
    sweep(V, 1.5, jali.Random(1))
    np.testing.assert_allclose(as_array(U), as_array(V), atol=1e-12)
    metropolis_sweep(U, action, jali.Random(1))


@pytest.mark.parametrize(
    "use",
    [
        lambda U: overrelaxation_sweep(U, _TraceOfStaple(1.5)),
        lambda U: heat_bath_sweep(U, _TraceOfStaple(5.0), jali.Random(1)),
        lambda U: heat_bath_sweep(U, _TraceOfStaple(0.1), jali.Random(1)),
        lambda U: metropolis_sweep(U, _TraceOfStaple(1.5), jali.Random(1)),
    ],
)
def test_a_number_is_no_staple_of_a_matrix(use: Any) -> None:
    with pytest.raises(TraceError, match=r"not \(2, 2\) and \(1, 1\); a number counts as 1 x 1"):
        use(warm((4, 4), 2))


def test_haar_random_links_have_no_mean_and_unit_determinant() -> None:
    field = jali.Field(jali.Lattice(32, 32), SU(3))

    @jali.site_function
    def fill(X: Any, f: Any, rng: Any) -> None:
        f[X] = haar_random(X, rng, 3)

    fill(field, jali.Random(1))
    links = field.local()
    np.testing.assert_allclose(np.linalg.det(links), 1, atol=1e-13)
    assert np.abs(links.mean(axis=(0, 1))).max() < 4 / math.sqrt(3 * 1024)
