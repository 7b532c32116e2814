"""Sources of quarks: where they are, what tells members apart, and noise; sinks that are walls; propagators of them."""

from __future__ import annotations

import numpy as np
import pytest
from quarks import as_matrices, dense, filled, gauge_field, random_links

import jali
from jali import EVEN, SU, Field, Lattice, Random, Spinor
from jali.errors import SolverError
from jali.fermions import CloverDirac, DomainWallDirac, Laplace, Staggered, WilsonDirac
from jali.gauge import GaugeField
from jali.hadrons import mesons, noise_source, nucleon, point_source, wall_sink, wall_source, with_momentum

EXTENTS = (4, 2, 2, 6)


@pytest.fixture(scope="module")
def U():
    return gauge_field(Lattice(*EXTENTS), random_links(EXTENTS, 3, 2))


def wilson(U):
    return WilsonDirac(U, 0.6)


def staggered(U):
    return Staggered(U, 0.4)


OPERATORS = [wilson, staggered]


@pytest.mark.parametrize("make", OPERATORS)
def test_points_are_one_at_their_site_for_each_spin_and_colour(U, make):
    D, site = make(U), (3, 1, 0, 5)
    psi = point_source(D, site)
    count = psi.batch
    expected = np.zeros(psi.shape)
    expected[site] = np.eye(count).reshape(
        count, *D.element.numpy_shape
    )  # the spin of a member is the slower one
    assert count == (12 if make is wilson else 3)
    assert np.array_equal(psi[...], expected)
    assert np.array_equal(psi.norm2(), np.ones(count))
    assert np.array_equal(point_source(D)[0, 0, 0, 0], expected[site])


def test_sources_are_antiperiodic_in_time_and_in_the_precision_of_the_links(U):
    D = WilsonDirac(U, 0.6)
    for psi in (point_source(D), wall_source(D), noise_source(D, Random(seed=1))):
        assert psi.boundary.conditions == ["periodic"] * 3 + ["antiperiodic"]
        assert psi.precision == "float64"
    single = D.in_format("float32")
    assert point_source(single).precision == "float32"
    assert point_source(single, precision="float64").precision == "float64"
    assert point_source(D, boundary="periodic").boundary.conditions == ["periodic"] * 4


def test_sources_are_open_where_links_are():
    lattice = Lattice(2, 2, 2, 4)
    for time in ("open", "periodic"):
        links = [Field(lattice, SU(3), boundary={0: "open", 3: time}) for _ in range(4)]
        for u in links:
            u[...] = np.eye(3)
        found = point_source(WilsonDirac(links, 0.5)).boundary.conditions
        assert found == ["open", "periodic", "periodic", "open" if time == "open" else "antiperiodic"]


@pytest.mark.parametrize("make", OPERATORS)
@pytest.mark.parametrize("momentum", [None, (0, 0, 0), (1, 0, -1), np.array([3, 1, 0]), [4, 2, 0]])
def test_walls_are_plane_waves_on_one_slice(U, make, momentum):
    D = make(U)
    psi = wall_source(D, 4, momentum)
    p = (0, 0, 0) if momentum is None else momentum
    x = np.indices(EXTENTS)
    wave = np.exp(2j * np.pi * sum(p[k] * x[k] / EXTENTS[k] for k in range(3))) * (x[3] == 4)
    unit = np.eye(psi.batch).reshape(psi.batch, *D.element.numpy_shape)
    expected = np.einsum("xyzt,...->xyzt...", wave, unit)
    assert np.allclose(psi[...], expected, rtol=0, atol=1e-14)
    assert psi.norm2() == pytest.approx([16] * psi.batch)


def test_a_plane_wave_counts_from_its_origin(U):
    psi, origin = filled(point_source(wilson(U)), 1), (1, 0, 1, 3)
    x = np.indices(EXTENTS)
    for p in ((1, 0, 0), (-2, 1, 3), (4, 2, 2)):
        wave = np.exp(2j * np.pi * sum(p[k] * (x[k] - origin[k]) / EXTENTS[k] for k in range(3)))
        expected = psi[...] * wave[..., None, None, None]
        assert np.allclose(with_momentum(psi, p, origin)[...], expected, rtol=1e-13, atol=1e-14)
    half = psi.on(EVEN)
    assert np.allclose(
        with_momentum(half, p, origin)[...], with_momentum(psi, p, origin).on(EVEN)[...], rtol=1e-13
    )


VALUES = {"Z2": [1, -1], "Z4": [1, 1j, -1, -1j]}


@pytest.mark.parametrize("kind", ["Z2", "Z4", "U1"])
def test_noises_have_modulus_one_and_the_values_of_their_group(U, kind):
    values = noise_source(wilson(U), Random(seed=3), kind, dilution=())[...]
    assert values.shape == (*EXTENTS, 1, 4, 3)
    assert np.allclose(abs(values), 1, rtol=0, atol=4e-16)
    if kind in VALUES:
        found, counts = np.unique(values, return_counts=True)
        assert set(found) == set(map(complex, VALUES[kind]))
        share = counts / values.size
        # 1152 numbers: five standard deviations
        assert np.all(abs(share - 1 / len(found)) < 5 * np.sqrt(0.25 / values.size))
    else:
        assert len(np.unique(values)) == values.size
    # means of numbers of modulus one, and of their squares: zero but for Z2, whose square is one
    bound = 5 / np.sqrt(values.size)
    assert abs(values.mean()) < bound
    assert abs((values**2).mean() - (kind == "Z2")) < bound


def test_noise_at_two_places_is_independent(U):
    """<eta(x) eta(y)^*> = delta: over 200 sources, five standard deviations of a mean of numbers of modulus one."""
    M, rng = staggered(U), Random(seed=8)
    several = np.array(
        [noise_source(M, rng, "Z4", time=1, dilution=())[0:2, 0, 0, 1, 0].ravel() for _ in range(200)]
    )
    correlation = several.T @ several.conj() / 200
    assert np.allclose(correlation.diagonal(), 1)
    assert np.all(abs(correlation - np.diag(correlation.diagonal())) < 5 / np.sqrt(200))


DILUTIONS = [
    (),
    ("spin",),
    ("colour", "spin"),
    ("time",),
    ("parity", "time"),
    ("spin", "parity"),
    ("spin", "colour", "time", "parity"),
    "colour",
]


@pytest.mark.parametrize("dilution", DILUTIONS)
@pytest.mark.parametrize("make", OPERATORS)
def test_members_of_diluted_noise_have_a_part_each(U, make, dilution):
    """Spin is the slowest, then colour, time and parity; a spin and a colour that is diluted has the numbers of all."""
    words = (dilution,) if isinstance(dilution, str) else dilution
    if make is staggered:
        words = tuple(word for word in words if word != "spin")
    D = make(U)
    psi = noise_source(D, Random(seed=4), "U1", dilution=words)
    spins = {"spin": 4} if make is wilson else {}
    sizes = spins | {"colour": 3, "time": 6, "parity": 2}
    chosen = [word for word in sizes if word in words]
    shape = [sizes[word] for word in chosen]
    assert psi.batch == np.prod(shape, dtype=int)
    values = psi[...].reshape(*EXTENTS, *shape, *D.element.numpy_shape)
    x = np.indices(EXTENTS)
    labels = {"time": x[3], "parity": x.sum(0) % 2}
    eta = noise_source(D, Random(seed=4), "U1", dilution=()).members[0][...]
    if "colour" in words:
        eta = np.repeat(eta[..., :1], 3, axis=-1)
    if "spin" in words:
        eta = np.repeat(eta[..., :1, :], 4, axis=-2)
    for index in np.ndindex(*shape):
        expected = eta.copy()
        for word, label in zip(chosen, index, strict=True):
            if word in labels:
                expected[labels[word] != label] = 0
            else:
                axis = -1 if word == "colour" else -2
                others = [k for k in range(sizes[word]) if k != label]
                np.moveaxis(expected, axis, 0)[others] = 0
        found = values[(slice(None),) * 4 + index]
        assert np.array_equal(found, expected), index


def test_noise_on_a_slice_is_on_no_other(U):
    for dilution in (None, (), ("parity",), ("spin", "colour", "parity")):
        psi = noise_source(wilson(U), Random(seed=5), time=2, dilution=dilution)
        values = abs(psi[...])
        assert not np.any(np.delete(values, 2, axis=3))
        # each number of a site is in one member
        assert np.allclose(values[:, :, :, 2].sum(axis=3), 1, rtol=0, atol=1e-15)


def test_noise_advances_its_random_numbers(U):
    rng = Random(seed=5)
    first, second = (noise_source(wilson(U), rng, "Z2") for _ in range(2))
    assert not np.array_equal(first[...], second[...])
    assert np.array_equal(first[...], noise_source(wilson(U), Random(seed=5), "Z2")[...])


def test_noise_that_is_diluted_in_everything_gives_the_trace_of_a_block(U):
    """Each member of a source that is diluted in spin, colour, time and parity, on space of one site for each parity, is a point times a phase: the sum of
    eta^dagger S is the trace."""
    lattice = Lattice(2, 1, 1, 2)
    D = WilsonDirac(gauge_field(lattice, random_links(lattice.extents, 3, 4)), 0.7)
    psi = noise_source(D, Random(seed=6), dilution=("spin", "colour", "time", "parity"))
    assert psi.batch == 48 == psi[...][..., 0, :, :].size
    S = D.propagator(psi, 1e-12, form="full")  # extents are odd
    trace = np.vdot(psi[...], S[...])
    assert trace == pytest.approx(np.trace(np.linalg.inv(dense(D, boundary={3: "antiperiodic"}))), rel=1e-9)


def test_the_one_end_trick_is_the_sum_of_all_points_in_the_mean_of_all_noises():
    """Mesons of a Z2 source on a slice of two sites: the mean of its two noises, that are equal and opposite at the second site, has no mixed terms."""
    lattice = Lattice(2, 1, 1, 4)
    D = WilsonDirac(gauge_field(lattice, random_links(lattice.extents, 3, 4)), 0.7)
    points = [D.propagator(point_source(D, (x, 0, 0, 1)), 1e-12, form="full") for x in range(2)]
    exact = sum(mesons(S, origin=(0, 0, 0, 1)).values for S in points)
    rng, found = Random(seed=1), {}
    while len(found) < 2:
        psi = noise_source(D, rng, "Z2", time=1)
        one, two = psi[0, 0, 0, 1, 0, 0, 0].real, psi[1, 0, 0, 1, 0, 0, 0].real
        S = D.propagator(psi, 1e-12, form="full")
        # linear: each noise is the sum of points with its numbers
        assert np.allclose(S[...], one * points[0][...] + two * points[1][...], rtol=0, atol=1e-10)
        found[one * two] = mesons(S, origin=(0, 0, 0, 1)).values
    assert np.allclose((found[1.0] + found[-1.0]) / 2, exact, rtol=0, atol=1e-10)


# ---- walls at the sink ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", OPERATORS)
def test_walls_at_the_sink_are_sums_over_space(U, make):
    S, origin = filled(point_source(make(U)), 3), (1, 1, 0, 2)
    x = np.indices(EXTENTS)
    for p in ((0, 0, 0), (1, 0, -1)):
        wave = np.exp(-2j * np.pi * sum(p[k] * (x[k] - origin[k]) / EXTENTS[k] for k in range(3)))
        walls = wall_sink(S, p, origin=origin)
        assert walls.lattice.extents == (1, 1, 1, 6)
        assert walls.boundary == S.boundary
        expected = np.einsum("xyzt...,xyzt->t...", S[...], wave)
        assert np.allclose(walls[0, 0, 0], expected, rtol=1e-12, atol=1e-12)


def test_walls_are_propagators_of_hadrons(U):
    S = filled(point_source(wilson(U)), 3)
    walls = wall_sink(S)
    assert walls.lattice is wall_sink(S, (1, 0, 0)).lattice  # so quarks of two momenta meet
    quark = as_matrices(S).sum((0, 1, 2))
    pion = (abs(quark) ** 2).sum((1, 2, 3, 4))
    assert np.allclose(mesons(walls, origin=(0, 0, 0, 2))["pion"], np.roll(pion, -2), rtol=1e-12)
    assert nucleon(walls, origin=(0, 0, 0, 2)).values.shape == (1, 6, 4, 4)


# ---- propagators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [wilson, staggered, lambda U: CloverDirac(U, 0.6, 1.1)], ids=["Wilson", "staggered", "clover"]
)
def test_all_members_of_a_propagator_have_the_residual_that_was_asked_for(U, make):
    D = make(U)
    for tolerance in (1e-6, 1e-11):
        source = point_source(D, (1, 0, 1, 3))
        S = D.propagator(source, tolerance)
        residuals = np.sqrt((D @ S - source).norm2())
        assert residuals.shape == (source.batch,)
        assert np.all(residuals <= tolerance)
        assert S.boundary == source.boundary
        assert S.batch == source.batch


def test_a_propagator_of_one_field_has_no_batch(U):
    D = wilson(U)
    source = point_source(D).members[5].copy()
    S = D.propagator(source)
    assert S.batch is None
    assert (D @ S - source).norm2() < 1e-19


def test_solutions_with_their_residuals_are_handed_over(U):
    """Of a batch at once, of domain walls one after the other."""
    D, found = wilson(U), []
    source = point_source(D).members[:2].copy()
    S = D.propagator(source, 1e-9, on_solution=found.append)
    (solution,) = found
    assert solution.x is S
    assert [one.residual <= 1e-9 for one in solution.members] == [True, True]
    W, found = DomainWallDirac.shamir(U, 0.3, 1.6, Ls=4), []
    W.propagator(source, 1e-9, on_solution=found.append)
    assert [one.residual <= 1e-9 for one in found] == [True, True]


def test_a_propagator_that_does_not_converge_is_an_error(U):
    D = wilson(U)
    with pytest.raises(SolverError, match="no convergence to 1e-10 in 1 iterations"):
        D.propagator(point_source(D), maxiter=1)


def test_propagators_of_domain_walls_are_those_of_each_member(U):
    D = DomainWallDirac.shamir(U, 0.3, 1.6, Ls=4)
    source = point_source(D, (1, 0, 1, 3))
    assert source.batch == 12
    source = source.members[3:5].copy()
    S = D.propagator(source, 1e-11)
    assert S.batch == 2
    for k in range(2):
        one = source.members[k].copy()
        single = D.propagator(one, 1e-11)
        assert single.batch is None
        assert np.array_equal(single[...], S.members[k][...])
        # what is solved for is one vector of five dimensions, from which the quark is read off
        b = D.source(one)
        x = jali.solve(D, b, 1e-11).x
        assert (D @ x - b).norm2().sum() <= 1e-22 * b.norm2().sum()
        assert np.array_equal(D.physical(x)[...], single[...])


def test_sources_are_those_of_any_quarks(U):
    """Of domain walls in four dimensions; of the Laplacian on vectors and spinors."""
    assert point_source(Laplace(U)).batch == 3
    assert point_source(Laplace(U, range(3), Spinor)).batch == 12
    for n in (1, 2, 4):
        V = GaugeField(Lattice(2, 2, 2, 2), SU(n)).cold_start()
        assert point_source(WilsonDirac(V, 1.0)).batch == 4 * n
    plane = GaugeField(Lattice(4, 6), SU(1)).cold_start()
    assert np.array_equal(wall_source(WilsonDirac(plane, 1.0), 2, (1,))[0, 2, :, :, 0], np.eye(4))
