"""Actions of the gauge field: value, staple and force against NumPy and each other, colours by brute force, updates that agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, warm
from scipy.special import iv

import jali
from jali import ALL, EVEN, Complex
from jali.actions.colours import _Search, _searched_colours
from jali.codegen.stage_cache import COUNTS
from jali.errors import LayoutError, ParameterError, TraceError
from jali.gauge import (
    SU,
    Flow,
    GaugeField,
    anisotropic_action,
    dbw2_action,
    haar_random,
    heat_bath_link,
    heat_bath_sweep,
    iwasaki_action,
    loop_action,
    metropolis_link,
    metropolis_sweep,
    overrelax_link,
    overrelaxation_sweep,
    plaquette,
    plaquettes,
    project,
    rectangle_action,
    simulate,
    staple,
    stout_smear,
    sweep,
    symanzik_action,
    tadpole_symanzik_action,
    wilson_action,
    wilson_loop,
)
from jali.gauge.link_terms import LinkTerms
from jali.gauge.overrelaxation import overrelax
from jali.statistics import mean_error

Path = tuple[int, ...]

PLAQUETTE, RECTANGLE, PARALLELOGRAM = (1, 2, -1, -2), (1, 1, 2, -1, -1, -2), (1, 2, 3, -1, -2, -3)
CHAIR = (2, 1, -2, 3, -1, -3)  # two plaquettes of a cube that share an edge
# Loops with a start in the middle, backwards, and each with a weight; two of them have no link in direction 2.
EXPLICIT = [(1, 2, -1, -2), (-2, -1, -1, 2, 1, 1), (1, 3, -1, -3), (3, 1, 1, -3, -3, -1, -1, 3)]
WEIGHTS = [1.0, -0.15, 0.4, 0.2]

ACTIONS = {
    "Wilson": lambda: wilson_action(1.7),
    "Symanzik": lambda: symanzik_action(1.7),
    "Iwasaki": lambda: iwasaki_action(1.3),
    "DBW2": lambda: dbw2_action(0.7),
    "one loop": lambda: tadpole_symanzik_action(1.7, 0.85),
    "explicit": lambda: loop_action(0.9, EXPLICIT, WEIGHTS),
}


def named(*short: str) -> list[Any]:
    """All actions, of which the short run has these: each has kernels of its own, which take seconds to compile."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.full) for name in ACTIONS]


def cases(*lattices: tuple[int, ...]) -> list[Any]:
    """Actions, groups and extents: in the short run one action for all of them, the others for a group each."""
    own = {"Wilson": 3, "Iwasaki": 1, "DBW2": 2, "one loop": 2, "explicit": 2}
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


def images(path: Path, ndim: int) -> list[Path]:
    """A path turned and reflected in all ways, each as often as there are permutations and signs of the axes."""
    axes = max(map(abs, path))
    return [
        tuple((1 if step > 0 else -1) * signs[abs(step) - 1] * along[abs(step) - 1] for step in path)
        for along in itertools.permutations(range(1, ndim + 1), axes)
        for signs in itertools.product((1, -1), repeat=axes)
    ]


def mean_deficit(links: np.ndarray, paths: Sequence[Path]) -> float:
    """The mean of 1 - Re tr / n over all sites and paths."""
    n = links.shape[-1]
    return float(np.mean([1 - reference.trace(reference.path(links, p)).real.mean() / n for p in paths]))


def per_site(path: Path, ndim: int) -> int:
    """How many loops of a shape a site has: of all sites together, each loop once."""
    seen = set()
    for image in images(path, ndim):
        backwards = tuple(-step for step in reversed(image))
        seen.add(frozenset(one[k:] + one[:k] for one in (image, backwards) for k in range(len(image))))
    return len(seen)


@pytest.mark.parametrize(
    ("path", "in_two", "in_three", "in_four"),
    [(PLAQUETTE, 1, 3, 6), (RECTANGLE, 2, 6, 12), (PARALLELOGRAM, None, 4, 16), (CHAIR, None, 12, 48)],
)
def test_a_shape_lies_on_the_lattice_in_so_many_ways(
    path: Path, in_two: int | None, in_three: int, in_four: int
) -> None:
    action = loop_action(1.0, [path], oriented=True)
    for ndim, number in ((2, in_two), (3, in_three), (4, in_four)):
        if number is None:
            with pytest.raises(LayoutError, match="a lattice of 2 dimensions has no loops of this action"):
                action.loops.of(ndim)
        else:
            (found,) = action.loops.of(ndim)
            assert len(found) == number == per_site(path, ndim)
            assert set(found) <= {p[k:] + p[:k] for p in images(path, ndim) for k in range(len(p))}


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
        (dbw2_action(2.5, c1=-1.4067), -1.4067),
    ):
        squares, rectangles = volume * d * (d - 1) / 2 * (1 - P), volume * d * (d - 1) * (1 - R)
        exact = 2.5 * ((1 - 8 * c1) * squares + c1 * rectangles)
        assert action.value(U) == pytest.approx(exact, rel=1e-12)
        assert action.density(U) == pytest.approx(exact / volume, rel=1e-12)
    assert iwasaki_action(2.5).value(GaugeField(U.lattice, SU(n)).cold_start()) == pytest.approx(0, abs=1e-9)


@pytest.mark.short(1)
@pytest.mark.parametrize(("n", "extents"), [(2, (4, 3, 5)), (3, (4, 3, 3, 4)), (1, (3, 4, 3))])
def test_sums_of_loops_are_those_of_numpy(n: int, extents: tuple[int, ...]) -> None:
    U = warm(extents, n)
    links, ndim, volume = as_array(U), len(extents), math.prod(extents)
    expected = sum(w * mean_deficit(links, [loop]) for loop, w in zip(EXPLICIT, WEIGHTS, strict=True))
    assert ACTIONS["explicit"]().value(U) == pytest.approx(0.9 * volume * expected, rel=1e-12)

    P, R, L = (
        volume * per_site(path, ndim) * mean_deficit(links, images(path, ndim))
        for path in (PLAQUETTE, RECTANGLE, PARALLELOGRAM)
    )
    # arXiv:0812.0503: alpha = -4 ln u0 / 3.06839
    u0, n_f = 0.87, 3
    alpha = -4 * math.log(u0) / 3.06839
    for quarks, a, b in (("asqtad", 0.3637, 0.009), ("hisq", 0.899, 0.0121), ("quenched", 0.0, 0.0)):
        weights = (-(1 + (0.4805 - a * n_f) * alpha) / (20 * u0**2), -(0.03325 - b * n_f) * alpha / u0**2)
        action = tadpole_symanzik_action(7.0, u0, n_f, quarks)
        assert action.value(U) == pytest.approx(7 * (P + weights[0] * R + weights[1] * L), rel=1e-12)
    # without loops of quarks and gluons it is the action at tree level, 5/3 - 1/12 of the sum to 1
    assert tadpole_symanzik_action(10.0, 1.0).value(U) == pytest.approx(
        symanzik_action(6.0).value(U), rel=1e-12
    )


@pytest.mark.short(1)
@pytest.mark.parametrize(("n", "extents"), [(2, (4, 3, 5)), (1, (4, 6)), (3, (4, 3, 3, 4))])
def test_the_anisotropic_action_weighs_planes_with_time(n: int, extents: tuple[int, ...]) -> None:
    U = warm(extents, n)
    links, time = as_array(U), len(extents)
    _, space, along_time = plaquettes(U)
    in_space = (time - 1) * (time - 2) / 2 * (1 - space) if time > 2 else 0.0
    expected = 2.5 * U.volume * (in_space / 1.5 + (time - 1) * (1 - along_time) * 1.5)
    assert anisotropic_action(2.5, 1.5).value(U) == pytest.approx(expected, rel=1e-12)
    assert anisotropic_action(2.5, 1.0).value(U) == pytest.approx(wilson_action(2.5).value(U), rel=1e-12)

    expected = 0.0
    for path, c in ((PLAQUETTE, 1 + 8 / 12), (RECTANGLE, -1 / 12)):
        for with_time, weight in ((False, 1 / 1.5), (True, 1.5)):
            some = [p for p in images(path, time) if (time in p) == with_time]
            share = per_site(path, time) * len(some) / len(images(path, time))
            expected += c * weight * share * mean_deficit(links, some) if some else 0.0
    action = anisotropic_action(2.5, 1.5, c1=-1 / 12)
    assert action.value(U) == pytest.approx(2.5 * U.volume * expected, rel=1e-12)


@jali.site_function
def store_staple(X: Any, U: Any, out: Any, mu: Any, staple: Any, given: Any) -> None:
    out[X] = staple(X, U, mu, *given)


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", [(4, 3, 5), (3, 4, 5, 3), (3, 4)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_staples_agree_with_paths_in_numpy(extents: tuple[int, ...], precision: str) -> None:
    """-Re tr(U staple^dagger): the paths that close with the link, times beta / n and their weights."""
    U = warm(extents, 3, precision=precision)
    array = as_array(U)
    out = jali.Field(U.lattice, jali.Matrix(3), precision=precision)
    terms = LinkTerms.of_links(rectangle_action(2.0, -0.3), U)
    for mu, direction in enumerate(U.lattice.directions):
        total = (1 + 8 * 0.3) * reference.staple(array, mu)
        m = mu + 1
        for nu in range(len(extents)):
            for v in (nu + 1, -nu - 1) if nu != mu else ():
                for steps in ([v, v, m, -v, -v], [v, m, m, -v, -m], [-m, v, m, m, -v]):
                    total = total - 0.3 * reference.path(array, steps)
        store_staple(U, out, direction, terms.staple, terms.given)
        np.testing.assert_allclose(out.local(), 2 / 3 * total, atol=1e-13 if precision == "float64" else 2e-5)


@pytest.mark.short(2)
@pytest.mark.parametrize(("name", "n", "extents"), cases((3, 4, 4), (4, 3, 3, 6)))
def test_the_force_is_the_numerical_derivative_of_the_value(
    name: str, n: int, extents: tuple[int, ...]
) -> None:
    U = warm(extents, n)
    action = ACTIONS[name]()
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


@pytest.mark.parametrize("extents", [(4, 3), pytest.param((4, 3, 4, 3), marks=pytest.mark.full)])
@pytest.mark.parametrize("name", named("Symanzik"))
def test_force_and_flow_are_gauge_covariant(name: str, extents: tuple[int, ...]) -> None:
    U = warm((4, 3, 4) if (name, len(extents)) == ("explicit", 2) else extents, 2)
    action = ACTIONS[name]()
    g = GaugeField(U.lattice, SU(2)).hot_start(5)[0]
    before, flowed = [f.local() for f in action.force(U)], Flow(U, 0.01, action).advance(2)
    U.gauge_transform(g)
    after, G = [f.local() for f in action.force(U)], g.local()
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, G @ a @ reference.dagger(G), atol=1e-11)
    again = Flow(U, 0.01, action).advance(2)
    np.testing.assert_allclose(as_array(flowed.gauge_transform(g)), as_array(again), atol=1e-12)


def smeared_wilson() -> jali.Action:
    return wilson_action(1.7).on(lambda U: stout_smear(U, 0.1))


@pytest.mark.parametrize("name", [*named("Wilson"), "smeared", pytest.param("sum", marks=pytest.mark.full)])
def test_the_flow_lowers_its_own_action_by_the_square_of_the_force(name: str) -> None:
    """dS/dt = -(beta / 2n) sum |2n F / beta|^2 with dV/dt = -(2n / beta) F V."""
    U = warm((4, 4, 4) if name in ("one loop", "explicit") else (4, 4), 2, spread=0.3)
    others = {"smeared": smeared_wilson, "sum": lambda: wilson_action(1.0) + 0.5 * wilson_action(2.0)}
    action = (ACTIONS | others)[name]()
    step = 1e-4
    values = [float(action.value(Flow(U, step, action).advance(k) if k else U)) for k in range(3)]
    middle = Flow(U, step, action).advance(1)
    slope = (values[2] - values[0]) / (2 * step)
    norm = sum(float(np.sum(np.abs(f.local()) ** 2)) for f in action.force(middle))
    # actions of several parts flow as at beta = 1
    assert slope == pytest.approx(-2 * norm * 2 * U.n / getattr(action, "beta", 1.0), rel=1e-3)


def test_links_in_no_term_of_the_action_have_no_force_and_do_not_flow() -> None:
    U = warm((3, 4, 3), 2)
    action = loop_action(1.7, [PLAQUETTE])  # in one plane of three
    F, V = action.force(U), Flow(U, 0.01, action).advance(1)
    assert not F[2].local().any()
    assert np.array_equal(V[2].local(), U[2].local())
    assert all(F[mu].local().any() and not np.array_equal(V[mu].local(), U[mu].local()) for mu in (0, 1))


def test_an_action_without_weight_has_no_flow() -> None:
    with pytest.raises(ParameterError, match="divided by beta, which is 0"):
        Flow(warm((4, 4), 2), 0.01, wilson_action(0.0))


@jali.site_function
def _force_by_hand(X: Any, F: Any, U: Any, half_coupling: Any) -> None:
    for mu in X.directions():
        F[mu][X] = half_coupling * (U[mu][X] * staple(X, U, mu).dagger()).traceless_antihermitian()


@pytest.mark.parametrize("n", GROUPS)
def test_the_force_is_that_of_the_staples(n: int) -> None:
    """F = (beta / 2n) TA(U S^dagger), the traceless anti-Hermitian part."""
    action = wilson_action(1.7)
    U = warm((4, 3, 4), n)
    by_hand = [jali.Field(U.lattice, jali.Algebra(n)) for _ in U.fields]
    _force_by_hand(by_hand, U, action.beta / (2 * n))
    given = [jali.Field(U.lattice, jali.Algebra(n)) for _ in U.fields]
    assert action.force(U, out=given) is given
    for found in (given, action.force(U)):
        for a, b in zip(found, by_hand, strict=True):
            np.testing.assert_allclose(a.local(), b.local(), atol=2e-13)


# ---- colours ---------------------------------------------------------------------------------------------


def plaquette_of(X: Any, U: Any, mu: Any, nu: Any) -> Any:
    return (U[mu][X] * U[nu][X + mu] * (U[nu][X] * U[mu][X + nu]).dagger()).trace()


@jali.action
def adjoint_plaquettes(X: Any, U: Any, *, beta: Any, gamma: Any) -> Any:
    """beta times the plaquettes, gamma times those of the adjoint representation: |tr P|^2 - 1."""
    n = U[0][X].shape[0]
    total = 0.0
    for mu, nu in X.planes():
        P = plaquette_of(X, U, mu, nu)
        total += beta * (1 - P.real / n) + gamma * (1 - (P.norm2() - 1) / max(n * n - 1, 1))
    return total


@jali.action
def squared_plaquettes(X: Any, U: Any, *, beta: Any) -> Any:
    """The square of the sum of a site's plaquettes, so that all of their links share a term."""
    return beta * sum(plaquette_of(X, U, mu, nu).real for mu, nu in X.planes()) ** 2


def links_along(path: Path) -> list[tuple[int, Path]]:
    """Links of a loop: direction, and displacement from the start."""
    here, found = [0] * 4, []
    for step in path:
        axis = abs(step) - 1
        here[axis] -= step < 0
        found.append((axis, tuple(here)))
        here[axis] += step > 0
    return found


def shape(*paths: Path) -> tuple[Any, Any]:
    """An action of loops that lie in all ways, and the links of its terms."""
    return (
        loop_action(1.0, paths, oriented=True),
        lambda ndim: [
            links_along(image) for path in paths if max(path) <= ndim for image in images(path, ndim)
        ],
    )


def planes_of(ndim: int) -> list[list[tuple[int, Path]]]:
    return [links_along((m, v, -m, -v)) for m, v in itertools.combinations(range(1, ndim + 1), 2)]


TERMS = {
    "plaquettes": shape(PLAQUETTE),
    "rectangles": shape(PLAQUETTE, RECTANGLE),
    "one loop": shape(PLAQUETTE, RECTANGLE, PARALLELOGRAM),
    "2 x 2": shape(PLAQUETTE, (1, 1, 2, 2, -1, -1, -2, -2)),
    "1 x 3": shape((1, 1, 1, 2, -1, -1, -1, -2)),
    "adjoint": (adjoint_plaquettes(1.0, 1.0), planes_of),
    "squared": (squared_plaquettes(1.0), lambda ndim: [[link for one in planes_of(ndim) for link in one]]),
}


def painted(action: jali.Action, lattice: jali.Lattice) -> np.ndarray:
    """The colours of the links: by direction, then site."""
    U = GaugeField(lattice, SU(2)).cold_start()
    colours = [jali.Field(lattice, jali.Real()) for _ in lattice.directions]

    @jali.site_function
    def mark(X: Any, colour: Any, value: Any) -> None:
        colour[X] += value

    for number, (mu, sites) in enumerate(LinkTerms.of_links(action, U).parts(U)):
        mark[sites](colours[int(mu)], number + 1.0)
    return np.stack([c.local() for c in colours])


@pytest.mark.parametrize(
    "extents", [(4, 3, 5), (4, 4), (3, 4), (5, 7), (4, 6, 8), (3, 4, 5, 6), (4, 4, 4, 4)]
)
@pytest.mark.parametrize("name", TERMS)
def test_no_two_links_of_a_colour_are_in_one_term(name: str, extents: tuple[int, ...]) -> None:
    action, terms = TERMS[name]
    if name == "1 x 3" and min(extents) == 3:
        with pytest.raises(
            LayoutError, match=r"a term of the action has one link twice.* too small for this"
        ):
            painted(action, jali.Lattice(*extents))
        return
    colours = painted(action, jali.Lattice(*extents))
    assert colours.min() > 0
    for links in terms(len(extents)):
        for (a, x), (b, y) in itertools.combinations(set(links), 2):
            if a == b:
                at_x, at_y = (reference.at(colours[a], *enumerate(z[: len(extents)])) for z in (x, y))
                assert (at_x != at_y).all()


def test_few_colours_do_where_extents_allow() -> None:
    for extents, name, number in (
        ((8, 8, 8, 8), "plaquettes", 2),
        ((8, 8, 8, 8), "rectangles", 4),
        ((12, 4, 8, 16), "rectangles", 4),
        ((6, 6, 6, 6), "rectangles", 6),
        ((5, 5, 5, 5), "rectangles", 5),
        ((8, 8, 8, 8), "one loop", 8),
        ((8, 8, 8, 8), "adjoint", 2),
        ((5, 5, 5, 5), "plaquettes", 3),
    ):
        U = GaugeField(jali.Lattice(*extents), SU(2))
        parts = LinkTerms.of_links(TERMS[name][0], U).parts(U)
        assert [int(mu) for mu, _ in parts] == sorted([*range(4)] * number)
    alone = LinkTerms.of_links(traces_of_links(1.0), U).parts(U)
    assert [(int(mu), sites) for mu, sites in alone] == [(mu, ALL) for mu in range(4)]


@pytest.mark.parametrize("extents", [(4, 4, 6), (5, 3, 4)])
def test_links_are_updated_once_each(extents: tuple[int, ...]) -> None:
    lattice = jali.Lattice(*extents)
    count = [jali.Field(lattice, jali.Real()) for _ in extents]

    @jali.site_function
    def mark(X: Any, count: Any, mu: Any) -> None:
        count[mu][X] += 1.0

    U = GaugeField(lattice, SU(2))
    for mu, colour in LinkTerms.of_links(symanzik_action(1.0), U).parts(U):
        mark[colour](count, mu)
    assert all((f.local() == 1.0).all() for f in count)


def in_boxes(box: Sequence[int], ndim: int, mu: int) -> tuple[Path, ...]:
    """Displacements between links of direction mu in boxes of these sides, along any directions."""
    found = set()
    for sides in set(itertools.permutations((*box, *(0,) * (ndim - len(box))), ndim)):
        if sides[mu]:
            most = [side - (d == mu) for d, side in enumerate(sides)]
            found |= set(itertools.product(*(range(-side, side + 1) for side in most)))
    return tuple(sorted(found - {(0,) * ndim}))


@pytest.mark.parametrize(
    ("extents", "box", "number"),
    [((8, 8, 8, 8), (2, 2), 8), ((5, 5, 5, 5), (2, 2), 13), ((4, 4, 4, 4), (3, 3), 16)],
)
def test_the_search_for_colours_takes_few_steps(
    extents: tuple[int, ...], box: tuple[int, int], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took millions where the direction of the links came last, minutes of silence before the first update."""
    steps, sum_of = [0], _Search._sum

    def counted(self: Any, a: int, b: int) -> int:
        steps[0] += 1
        return sum_of(self, a, b)

    monkeypatch.setattr(_Search, "_sum", counted)
    for mu in range(4):
        tables = _searched_colours.__wrapped__(extents, in_boxes(box, 4, mu))
        assert len(list(tables)) == number
    assert steps[0] < 1_000_000


def test_lattices_and_loops_that_do_not_fit_are_refused() -> None:
    U, rng = warm((4, 2), 2), jali.Random(1)
    with pytest.raises(LayoutError, match=r"on the lattice \(4, 2\) a term .* \(0, -?2\) apart"):
        sweep(U, iwasaki_action(1.0), rng)
    assert len(LinkTerms.of_links(wilson_action(1.0), U).parts(U)) == 4
    with pytest.raises(LayoutError, match="a loop of the action goes in direction 4, and the lattice has 2"):
        loop_action(1.0, [[1, 4, -1, -4]]).value(U)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rectangle_action(1.0, math.inf), "c1 is a finite number, not inf"),
        (lambda: wilson_action(True), "beta is a finite number, not True"),
        (lambda: anisotropic_action(1.0, 0.0), "the anisotropy xi is positive, not 0.0"),
        (lambda: anisotropic_action(1.0, 1.0, math.nan), "c1 is a finite number"),
        (lambda: tadpole_symanzik_action(1.0, 1.1), "above 0 and at most 1, not 1.1"),
        (lambda: tadpole_symanzik_action(1.0, 0.9, 2, "clover"), "quarks one of quenched, asqtad, hisq"),
        (lambda: tadpole_symanzik_action(1.0, 0.9, -1), "n_f is a number of flavours from 0"),
        (lambda: loop_action(1.0, [[1, 2, -1]]), r"a closed path of steps .* not \[1, 2, -1\]"),
        (lambda: loop_action(1.0, [[1, 2, -1, -3]]), "a closed path"),
        (lambda: loop_action(1.0, [[0, 1, 0, -1]]), "a closed path"),
        (lambda: loop_action(1.0, [[1, -1]]), "a closed path"),
        (lambda: loop_action(1.0, [1, 2, -1, -2]), "a closed path of steps .* not 1"),
        (lambda: loop_action(1.0, 5), "loops is a list, not 5"),
        (lambda: loop_action(1.0, []), "one weight for each loop: 0 loops, 0 weights"),
        (lambda: loop_action(1.0, [PLAQUETTE], [1.0, 2.0]), "1 loops, 2 weights"),
        (lambda: loop_action(1.0, [PLAQUETTE], 2.0), "weights is a list, not 2.0"),
        (lambda: loop_action(1.0, [PLAQUETTE], [math.nan]), "a coupling of loop_action is a finite number"),
    ],
)
def test_what_is_no_action_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call()


# ---- what is linear --------------------------------------------------------------------------------------


@jali.action
def positive_plaquettes(X: Any, U: Any, *, beta: Any, penalty: Any) -> Any:
    """A constraint: a step has no gradient, and yet it depends on the link."""
    traces = [plaquette_of(X, U, mu, nu).real for mu, nu in X.planes()]
    return sum(jali.where(t > 0.0, 0.0, 1.0) * penalty - beta * t for t in traces)


@jali.action
def traces_of_links(X: Any, U: Any, *, beta: Any) -> Any:
    """Every link is alone in its term."""
    return -beta * sum(U[mu][X].trace().real for mu in X.directions())


LINEAR = {
    "Wilson": wilson_action(1.0),
    "explicit": ACTIONS["explicit"](),
    "sum": wilson_action(1.0) + 0.5 * traces_of_links(1.0),
    "links": traces_of_links(1.0),
}
NOT_LINEAR = {
    "adjoint": adjoint_plaquettes(1.0, 1.0),
    "squared": squared_plaquettes(1.0),
    "steps": positive_plaquettes(1.0, 1e4),
    "twice around": loop_action(1.0, [[1, 2, -1, -2, 1, 2, -1, -2]]),
    "there and back": loop_action(1.0, [[1, 2, -2, 3, -3, -1]]),
    "sum": wilson_action(1.0) + adjoint_plaquettes(1.0, 1.0),
}


def test_whether_an_action_is_linear_is_found_out() -> None:
    U = GaugeField(jali.Lattice(4, 4, 4), SU(2))
    for known, linear in ((LINEAR, True), (NOT_LINEAR, False)):
        for name, action in known.items():
            assert LinkTerms.of_links(action, U).is_linear(U) == linear, name


@pytest.mark.parametrize("name", NOT_LINEAR)
@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("heat bath", lambda U, action: heat_bath_sweep(U, action, jali.Random(1))),
        ("overrelaxation", overrelaxation_sweep),
    ],
)
def test_updates_by_staples_refuse_what_is_not_linear(name: str, what: str, use: Any) -> None:
    def run() -> None:
        U = warm((4, 4, 4), 2)
        before = as_array(U)
        with pytest.raises(
            ParameterError, match=f"{what} needs an action that is linear in every link, .* metropolis_sweep"
        ):
            use(U, NOT_LINEAR[name])
        assert np.array_equal(as_array(U), before)

    jali.virtual_ranks(2, run)


@jali.site_function
def change_of_one(X: Any, U: Any, V: Any, mu: Any, change: Any, given: Any, out: Any) -> None:
    out[X] = change(X, U, mu, V[X], *given)


@pytest.mark.short(2)
@pytest.mark.parametrize("boundary", ["periodic", {0: "open", 2: "antiperiodic"}, {0: "open"}], ids=str)
@pytest.mark.parametrize("name", [*NOT_LINEAR, "Wilson"])
def test_the_change_by_a_link_is_that_of_the_value(name: str, boundary: Any) -> None:
    U = warm((4, 3, 4), 2, boundary=boundary)
    action = (LINEAR | NOT_LINEAR)[name] if name != "steps" else positive_plaquettes(1.0, 1.0)
    V = GaugeField(U.lattice, SU(2)).hot_start(3)[0]
    terms, value = LinkTerms.of_links(action, U), float(action.value(U))
    for mu, site in ((0, (0, 1, 3)), (1, (3, 2, 0)), (2, (2, 0, 3)), (1, (1, 1, 1))):
        out = jali.Field(U.lattice, jali.Real())
        change_of_one(U, V, U.lattice.directions[mu], terms.change, terms.given, out)
        W = U.copy()
        W[mu][site] = V[site]
        assert out[site] == pytest.approx(float(action.value(W)) - value, abs=1e-11)


def test_metropolis_with_squares_of_plaquettes_is_exact_on_a_plane() -> None:
    """U(1) on a torus of V plaquettes with the weight w of each: by its Fourier coefficients, Z = sum_k w_k^V."""
    beta, gamma, volume = 0.8, 0.7, 16
    angles = 2 * np.pi * np.arange(256) / 256
    weight = np.exp(beta * np.cos(angles) - gamma * np.cos(angles) ** 2)
    w, c, q = (np.fft.fft(weight * f).real for f in (1.0, np.cos(angles), np.cos(angles) ** 2))
    Z = np.sum(w**volume)
    exact = [np.sum(w ** (volume - 1) * one) / Z for one in (c, q)]

    U, rng = GaugeField(jali.Lattice(4, 4), SU(1)).hot_start(1), jali.Random(5)
    action = wilson_action(beta) + squared_plaquettes(gamma)
    series = []
    for k in range(2000):
        accepted = metropolis_sweep(U, action, rng, width=1.6, hits=2)
        if k >= 100:
            series.append([plaquette(U), squared_plaquettes(1.0).value(U) / volume])
    assert 0.3 < accepted < 0.9
    for column, value in zip(np.array(series).T, exact, strict=True):
        result = mean_error(column)
        assert abs(result.mean - value) < 4 * result.error < 0.03


@pytest.mark.parametrize(("n", "extents"), [(2, (6, 5)), pytest.param(3, (6, 5), marks=pytest.mark.full)])
def test_metropolis_of_mixed_plaquettes_is_that_of_one_plaquette(n: int, extents: tuple[int, int]) -> None:
    """In two open dimensions plaquettes are independent: integrals over one matrix, by its eigenvalues."""
    beta, gamma = 1.1 * n, 1.5
    x = 2 * np.pi * (np.arange(400) + 0.5) / 400
    phases = [x, -x] if n == 2 else [x[:, None], x[None], -x[:, None] - x[None]]
    measure = np.prod([np.sin((a - b) / 2) ** 2 for a, b in itertools.combinations(phases, 2)], axis=0)
    trace = sum(np.exp(1j * a) for a in phases)
    adjoint = (np.abs(trace) ** 2 - 1) / (n * n - 1)
    weight = measure * np.exp(beta * trace.real / n + gamma * adjoint)
    exact = [np.sum(weight * f) / np.sum(weight) for f in (trace.real / n, adjoint)]

    @jali.site_function
    def squares(X: Any, U: Any, total: Any) -> None:  # beyond an open edge links are zero
        total += plaquette_of(X, U, *X.directions()).norm2()

    U, rng = GaugeField(jali.Lattice(*extents), SU(n), boundary="open").hot_start(1), jali.Random(5)
    series = []
    for k in range(1200):
        metropolis_sweep(U, adjoint_plaquettes(beta, gamma), rng, width=0.7, hits=3)
        if k >= 50:
            series.append([plaquette(U), (U.lattice.sum(squares, U) / U.volume - 1) / (n * n - 1)])
    for column, value in zip(np.array(series).T, exact, strict=True):
        result = mean_error(column)
        assert abs(result.mean - value) < 4 * result.error < 0.05


def test_metropolis_keeps_a_constraint() -> None:
    """Once all plaquettes are positive none becomes negative again: what a step forbids is not proposed by its gradient, which is zero."""
    U, rng = warm((4, 4), 2, spread=0.2), jali.Random(1)
    action = positive_plaquettes(0.0, 1e4)
    assert action.value(U) == 0.0
    accepted = [metropolis_sweep(U, action, rng, width=1.0) for _ in range(20)]
    assert action.value(U) == 0.0
    assert 0.2 < np.mean(accepted) < 0.95


# ---- several parts, other fields, smearing ---------------------------------------------------------------


def test_sums_and_multiples_of_actions_are_actions() -> None:
    """With the weights of plaquettes and rectangles added; updates of the sum are those of one action that has them."""
    U = warm((4, 5), 1)
    first, second = rectangle_action(2.3, -0.3), wilson_action(2.3)
    both = first + 0.5 * second
    same = loop_action(2.3, [PLAQUETTE, RECTANGLE], [1 + 8 * 0.3 + 0.5, -0.3], oriented=True)
    assert both.value(U) == pytest.approx(first.value(U) + 0.5 * second.value(U), rel=1e-13)
    assert both.value(U) == pytest.approx(same.value(U), rel=1e-12)
    for a, b in zip(both.force(U), same.force(U), strict=True):
        np.testing.assert_allclose(a.local(), b.local(), atol=1e-12)

    V, W = U.copy(), U.copy()
    overrelaxation_sweep(V, both)
    overrelaxation_sweep(W, same)
    np.testing.assert_allclose(as_array(V), as_array(W), atol=1e-11)
    heat_bath_sweep(V, both, jali.Random(1))
    heat_bath_sweep(W, same, jali.Random(1))
    np.testing.assert_allclose(as_array(V), as_array(W), atol=1e-9)


class OnSmearedLinks(jali.Action):
    """An action of several calls, by hand."""

    def value(self, U: Any) -> Any:
        return wilson_action(1.7).value(stout_smear(U, 0.1))


@pytest.mark.parametrize(
    "use",
    [
        lambda U, action: heat_bath_sweep(U, action, jali.Random(1)),
        overrelaxation_sweep,
        lambda U, action: metropolis_sweep(U, action, jali.Random(1)),
        lambda U, action: next(simulate(U, action, jali.Random(1), 1)),
    ],
)
def test_an_action_of_smeared_links_has_a_force_and_no_updates_of_single_links(use: Any) -> None:
    U = warm((4, 4), 2)
    for action in (smeared_wilson(), OnSmearedLinks(), 0.5 * OnSmearedLinks() + wilson_action(1.0)):
        with pytest.raises(
            ParameterError, match=r"is no sum of a formula over sites \(it needs several calls"
        ):
            use(U, action)
    V = stout_smear(U, 0.1)
    assert smeared_wilson().value(U) == OnSmearedLinks().value(U) == wilson_action(1.7).value(V)
    for a, b in zip(smeared_wilson().force(U), OnSmearedLinks().force(U), strict=True):
        assert np.array_equal(a.local(), b.local())


@jali.action
def hopping(X: Any, phi: Any, U: Any, *, kappa: Any) -> Any:
    """A field of matrices that links couple to its neighbours: -kappa Re tr(phi(x)^dagger U phi(x + mu))."""
    return -kappa * sum((phi[X].dagger() * U[mu][X] * phi[X + mu]).trace().real for mu in X.directions())


USES = {
    "heat bath": lambda U, action, phi: heat_bath_sweep(U, action, jali.Random(1), fields={"phi": phi}),
    "Metropolis": lambda U, action, phi: metropolis_sweep(U, action, jali.Random(1), fields={"phi": phi}),
    "overrelaxation": lambda U, action, phi: overrelaxation_sweep(U, action, {"phi": phi}),
    "sweep": lambda U, action, phi: sweep(U, action, jali.Random(1), 1, 1, {"phi": phi}),
}


def unitary_field(U: GaugeField) -> jali.Field:
    return GaugeField(U.lattice, U.fields[0].element).hot_start(7)[0]


@pytest.mark.short(1)
@pytest.mark.parametrize("n", [2, 1, 3])
def test_links_beside_another_field_are_drawn_from_their_own_weight(n: int) -> None:
    """Without plaquettes links are independent: phi(x)^dagger U phi(x + mu) has the weight exp(kappa Re tr)."""
    kappa = 0.9
    exact = {1: iv(1, kappa) / iv(0, kappa), 2: iv(2, 2 * kappa) / iv(1, 2 * kappa)}.get(n)
    U = GaugeField(jali.Lattice(15, 16), SU(n)).hot_start(3)
    phi, found = unitary_field(U), {}
    for update in ("heat bath", "Metropolis"):
        rng, series = jali.Random(2), []
        for k in range(220):
            if update == "heat bath":
                heat_bath_sweep(U, hopping(kappa), rng, {"phi": phi})
            else:
                metropolis_sweep(U, hopping(kappa), rng, 1.2, fields={"phi": phi})
            if k >= 20:
                series.append(-hopping(1.0).value(phi, U) / (n * U.links))
        found[update] = mean_error(series)
    for one in found.values():
        expected = found["heat bath"].mean if exact is None else exact
        assert abs(one.mean - expected) < 4 * math.hypot(one.error, exact is None and one.error) < 0.02


def test_overrelaxation_beside_another_field_keeps_the_whole_action() -> None:
    U = warm((4, 3, 4), 2)
    action, phi = wilson_action(2.0) + hopping(0.4), unitary_field(U)
    assert action.fields == ("U", "phi")
    value, before = action.value(U, phi), as_array(U)
    overrelaxation_sweep(U, action, {"phi": phi})
    assert action.value(U, phi) == pytest.approx(value, rel=1e-12)
    assert action.value(U, phi) != pytest.approx(wilson_action(2.0).value(U), rel=1e-3)
    assert np.abs(as_array(U) - before).max() > 0.1


def test_forces_of_all_fields_are_numerical_derivatives() -> None:
    U = warm((3, 4), 2)
    action = wilson_action(2.0) + 0.7 * hopping(0.4)
    phi = unitary_field(U)
    F, G = action.force(U, phi), action.force(U, phi, of="phi")
    omega = np.array([[0.3j, 0.2 + 0.5j], [-0.2 + 0.5j, -0.3j]])
    for field, force, site in ((U[1], F[1], (2, 3)), (phi, G, (1, 2)), (phi, G, (0, 0))):
        value, values = field[site], []
        for sign in (1, -1):
            field[site] = reference.exponential(sign * 1e-4 * omega) @ value
            values.append(action.value(U, phi))
        field[site] = value
        slope = (values[0] - values[1]) / 2e-4
        assert slope == pytest.approx(-2 * np.trace(omega @ force[site]).real, rel=1e-6)


def test_fields_beside_the_links_are_given_by_their_names() -> None:
    U = warm((4, 4), 2)
    phi, rng = unitary_field(U), jali.Random(1)
    for fields, message in (
        (None, "depends on phi, U: the fields besides the links .* given: none"),
        ({"psi": phi}, "depends on phi, U: .* given: psi"),
        ({"phi": phi, "U": U}, "given: phi, U"),
        ({"phi": phi, "psi": phi}, "given: phi, psi"),
        ([phi], "fields are the other fields of the action by their names"),
    ):
        with pytest.raises(ParameterError, match=message):
            metropolis_sweep(U, hopping(0.4), rng, fields=fields)


# ---- updates ---------------------------------------------------------------------------------------------


@pytest.mark.short(2)
@pytest.mark.parametrize(("name", "n", "extents"), cases((3, 4, 5), (4, 4, 3, 4)))
def test_overrelaxation_keeps_the_action_and_moves_the_links(
    name: str, n: int, extents: tuple[int, ...]
) -> None:
    U = warm(extents, n)
    action = ACTIONS[name]()
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
    terms = LinkTerms.of_links(action, U)
    for mu, colour in reversed(terms.parts(U)):
        overrelax[colour](U, mu, terms.staple, terms.given)
    np.testing.assert_allclose(as_array(U), before, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "n", "extents"),
    [
        ("Symanzik", 3, (6, 6)),
        *(
            pytest.param(name, n, (4, 4, 4), marks=pytest.mark.full)
            for name, n in (("Symanzik", 3), ("one loop", 2), ("Symanzik", 1), ("DBW2", 2))
        ),
    ],
)
def test_heat_bath_and_metropolis_agree_on_the_same_action(
    name: str, n: int, extents: tuple[int, ...]
) -> None:
    lattice = jali.Lattice(*extents)
    action = {
        "Symanzik": symanzik_action(0.8 * n),
        "DBW2": dbw2_action(0.15 * n),
        "one loop": tadpole_symanzik_action(1.2 * n, 0.85),
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


def test_actions_with_other_numbers_share_their_kernels() -> None:
    U, rng = warm((4, 4), 2), jali.Random(1)
    F = [jali.Field(U.lattice, jali.Algebra(2)) for _ in U.fields]

    def use(action: jali.Action) -> int:
        heat_bath_sweep(U, action, rng)
        assert action.value(U) > 0
        action.force(U, out=F)
        return COUNTS["bound"].made

    made = use(iwasaki_action(2.0))
    for action in (iwasaki_action(2.1), symanzik_action(5.0), dbw2_action(1.0).with_couplings(beta=2.0)):
        assert use(action) == made


def test_the_heat_bath_of_an_action_does_not_depend_on_those_before_it() -> None:
    """At these weights the one method is the faster one and at those the other: it is chosen by the numbers, not by the kind of action."""
    weak, strong = rectangle_action(0.4, 0.0), rectangle_action(0.4, -1.4)

    def drawn(*actions: Any) -> np.ndarray:
        U = warm((4, 4), 2)
        for action in actions:
            V = U.copy()
            heat_bath_sweep(V, action, jali.Random(3))
        return as_array(V)

    assert np.array_equal(drawn(strong), drawn(weak, strong))
    assert np.array_equal(drawn(weak), drawn(strong, weak))


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
        parts, series = LinkTerms.of_links(wilson_action(1.0), U).parts(U), []
        for k in range(1050):
            for mu, colour in parts:
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


@pytest.mark.parametrize(
    ("n", "own", "message"),
    [
        (
            2,
            lambda X, U, mu: staple(X, U, mu).trace(),
            r"link and staple are matrices of one shape, not \(2, 2\) and \(1, 1\); a number counts as 1 x 1",
        ),
        (
            2,
            lambda X, U, mu: staple(X, U, mu) * U[mu][X].trace().real,
            r"the staple depends on the link that it multiplies[^$]*test_actions\.py",
        ),
        (1, lambda X, U, mu: staple(X, U, mu).trace(), None),  # a number, of U(1)
        (
            2,
            lambda X, U, mu: 0.0 * U[mu][X] + staple(X, U, mu),
            None,
        ),  # a sum that begins with zero times the link
    ],
)
def test_a_staple_is_a_matrix_like_its_link_and_does_not_read_it(
    n: int, own: Any, message: str | None
) -> None:
    U, V = warm((4, 4), n), warm((4, 4), n)
    mu = U.lattice.directions[0]
    if message is not None:
        with pytest.raises(TraceError, match=message):
            overrelax[EVEN](U, mu, own)
        return
    overrelax[EVEN](U, mu, own)
    overrelax[EVEN](V, mu, staple)
    np.testing.assert_allclose(as_array(U), as_array(V), atol=1e-13)


def test_haar_random_links_have_no_mean_and_unit_determinant() -> None:
    field = jali.Field(jali.Lattice(32, 32), SU(3))

    @jali.site_function
    def fill(X: Any, f: Any, rng: Any) -> None:
        f[X] = haar_random(X, rng, 3)

    fill(field, jali.Random(1))
    links = field.local()
    np.testing.assert_allclose(np.linalg.det(links), 1, atol=1e-13)
    assert np.abs(links.mean(axis=(0, 1))).max() < 4 / math.sqrt(3 * 1024)
