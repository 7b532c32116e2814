"""Fat and long links: against sums over paths, exact sums on unit links, a configuration whose numbers are known, and the group."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_even_odd import EXTENTS, known_links
from test_wilson import random_links, unit_links

import jali
from jali import SU, Field, Lattice, LayoutError, Matrix, ParameterError
from jali.fermions import (
    FAT7,
    HISQ_LEVEL_2,
    PathCoefficients,
    asqtad_coefficients,
    asqtad_links,
    fatten,
    hisq_epsilon,
    hisq_links,
    long_links,
    unitary_links,
)
from jali.gauge import GaugeField


def links_of(array):
    """Fields of SU(n) with the links of an array (d, *extents, n, n)."""
    lattice = Lattice(*array.shape[1:-2])
    fields = [Field(lattice, SU(array.shape[-1])) for _ in lattice.directions]
    for field, values in zip(fields, array, strict=True):
        field[...] = values
    return fields


def along(U, steps):
    """The product of links along a path from each site, by rolls; steps are 1 + mu forwards and -1 - mu backwards."""
    product, at = np.eye(U.shape[-1]), np.zeros(len(U), int)
    axes = tuple(range(len(U)))
    for step in steps:
        mu = abs(step) - 1
        at[mu] -= step < 0
        link = np.roll(U[mu], tuple(-at), axes)
        product = product @ (link if step > 0 else link.conj().swapaxes(-1, -2))
        at[mu] += step > 0
    return product


def fat_by_paths(U, c):
    """Each path on its own: there, along mu, and back."""
    weights = (c.link, c.three, c.five, c.seven)
    fat = []
    for mu in range(len(U)):
        total = 0
        for length, weight in enumerate(weights[: len(U)]):
            for axes in itertools.permutations([nu for nu in range(len(U)) if nu != mu], length):
                for signs in itertools.product((1, -1), repeat=length):
                    there = [sign * (1 + nu) for sign, nu in zip(signs, axes, strict=True)]
                    total = total + weight * along(U, [*there, 1 + mu, *(-step for step in there[::-1])])
        for nu, sign in itertools.product(range(len(U)), (1, -1)):
            if nu != mu:
                step = sign * (1 + nu)
                total = total + c.lepage * along(U, [step, step, 1 + mu, -step, -step])
        fat.append(total)
    return fat


@pytest.mark.lanes
@pytest.mark.parametrize(
    ("extents", "n", "c"),
    [
        ((2, 4, 2, 4), 3, asqtad_coefficients(0.8)),
        ((4, 2, 6), 1, PathCoefficients(0.3, 0.2, 0.1, 0.0, -0.4)),
        ((4, 6), 2, PathCoefficients(0.3, 0.2, 0.0, 0.0, -0.4)),
        ((3, 4, 2, 4), 2, HISQ_LEVEL_2),
    ],
    ids=["asqtad", "U(1) in three dimensions", "two dimensions", "HISQ with an odd extent"],
)
def test_fat_links_are_sums_over_paths(extents, n, c):
    U = random_links(Lattice(*extents), n, 1)
    array = np.stack([u[...] for u in U])
    for got, expected in zip(fatten(U, c), fat_by_paths(array, c), strict=True):
        assert np.allclose(got[...], expected, rtol=0, atol=1e-13)
    for mu, got in enumerate(long_links(U, -1 / 24)):
        assert np.allclose(got[...], along(array, [1 + mu] * 3) / -24, rtol=0, atol=1e-14)


def test_unit_links_stay_unit_links():
    """A derivative of step 1 with weight c and one of step 3 with weight d are c + 3 d derivatives."""
    U = unit_links(Lattice(4, 4, 4, 4), 3)

    def size(links):
        values = links[2][...]
        assert np.allclose(values, values[0, 0, 0, 0, 0, 0] * np.eye(3), rtol=0, atol=1e-15)
        return values[0, 0, 0, 0, 0, 0].real

    assert size(fatten(U, FAT7)) == pytest.approx(1, abs=1e-15) == FAT7.fat
    fat, long = asqtad_links(U)
    assert (size(fat), size(long)) == pytest.approx((9 / 8, -1 / 24), abs=1e-15)
    H = hisq_links(U)
    assert size(H.W) == pytest.approx(1, abs=1e-15)
    for epsilon in (0, -0.1, 0.3):
        assert size(H.fat(epsilon)) + 3 * size(H.long(epsilon)) == pytest.approx(1, abs=1e-15)
    for c in (HISQ_LEVEL_2, asqtad_coefficients()):
        assert c.fat + 3 * c.naik == pytest.approx(1, abs=1e-15)


@jali.site_function
def _plaquettes(X, U, total):
    for mu, nu in X.planes():
        total += (U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()).trace().real


def wilson_action(U):
    """-(beta / 3) sum Re tr P of beta = 6, also of links that are not unitary."""
    return -2 * U[0].lattice.sum(_plaquettes, U)


def test_smeared_links_of_the_known_configuration_have_their_action():
    U = links_of(known_links())
    W = hisq_links(U).W
    assert wilson_action(U) == pytest.approx(-9730.734171593, abs=1e-8)
    assert wilson_action(W) == pytest.approx(-17096.943971734, abs=1e-8)
    assert wilson_action(W) / (-2 * 3 * 6 * np.prod(EXTENTS)) == pytest.approx(0.927568574855, abs=1e-12)
    fat, _ = asqtad_links(U)
    assert wilson_action(fat) == pytest.approx(-9270.243195576, abs=1e-8)


def test_epsilon_of_a_mass_is_that_of_the_series():
    for mass, epsilon in (
        (0.1, -0.006720862),
        (0.2, -0.026536621),
        (0.432, -0.116202584),
        (0.6, -0.208184336),
    ):
        assert hisq_epsilon(mass) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize("mass", [0.2, 0.3, 0.432, 0.6])
def test_a_free_quark_has_the_same_mass_by_its_energy_and_by_its_inertia(mass):
    """M^dagger M = m^2 + sum s(p)^2 with s = sin p + (1 + epsilon) / 6 sin^3 p vanishes at p_t = i E. There dE / dp^2 = 1 / (2 E) at p = 0
    where S S' = E, with S(E) = sinh E - (1 + epsilon) / 6 sinh^3 E = m."""
    a, E = (1 + hisq_epsilon(mass)) / 6, mass
    for _ in range(20):  # Newton's steps
        s, c = np.sinh(E), np.cosh(E)
        E -= (s - a * s**3 - mass) / (c - 3 * a * s * s * c)
    assert abs(mass * (c - 3 * a * s * s * c) / E - 1) < 0.02 * mass**12


def test_masses_share_what_has_no_epsilon():
    U = links_of(known_links())
    H = hisq_links(U)
    assert H.fat() is H.fat(0)
    assert H.long() is H.long(0.0)
    fat, long, W, epsilon = H.fat(), H.long(), H.W, -0.1
    weights = PathCoefficients(
        1 + epsilon / 8, HISQ_LEVEL_2.three, HISQ_LEVEL_2.five, HISQ_LEVEL_2.seven, HISQ_LEVEL_2.lepage
    )
    whole = fatten(W, weights), long_links(W, -(1 + epsilon) / 24)
    for found, expected in zip((*H.fat(epsilon), *H.long(epsilon)), (*whole[0], *whole[1]), strict=True):
        assert np.allclose(found[...], expected[...], rtol=0, atol=1e-15)
    assert np.allclose(fat[0][...] - 0.0125 * W[0][...], H.fat(epsilon)[0][...], rtol=0, atol=1e-15)
    assert np.allclose(0.9 * long[3][...], H.long(epsilon)[3][...], rtol=0, atol=1e-15)
    for wrong in (3, None, "charm", True):
        with pytest.raises(ParameterError, match="epsilon is a number between -1 and 1, .* not"):
            H.fat(wrong)


def matrices(lattice, values, precision="float64"):
    field = Field(lattice, Matrix(values.shape[-1]), precision=precision, name="V")
    field[...] = values
    return field


@pytest.mark.parametrize("condition", [1, 1 + 1e-9, 3, 1e3, 1e6])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_unitary_part_is_the_polar_factor(n, condition):
    """Errors are the condition number times rounding, also where singular values are equal."""
    lattice = Lattice(4, 4, 4)
    left, right = (random_links(lattice, n, k)[0][...] for k in (1, 2))
    exponents = np.random.default_rng(3).integers(0, 2, (4, 4, 4, n)) * 1.0
    exponents[..., 0] = 1
    V = 0.1 * left * (condition**-exponents)[..., None, :] @ right
    (W,) = unitary_links([matrices(lattice, V)])
    assert np.allclose(W[...], left @ right, rtol=0, atol=2e-15 * (2 + condition))
    assert np.allclose(W[...] @ W[...].conj().swapaxes(-1, -2), np.eye(n), rtol=0, atol=2e-15)
    if condition <= 3:
        (W,) = unitary_links([matrices(lattice, V, "float32")])
        assert np.allclose(W[...], left @ right, rtol=0, atol=5e-6)


def test_a_singular_sum_of_paths_is_told_with_its_site():
    lattice = Lattice(4, 2, 4)
    values = np.tile(np.eye(3), (4, 2, 4, 1, 1))
    values[3, 1, 2] = np.diag([1, 2, 0])
    (W,) = unitary_links([matrices(lattice, values)])
    with pytest.raises(
        jali.SingularError, match=r"matrix made of V at site \(3, 1, 2\) .* pivot 2 of 0 to 2 is 0"
    ):
        W[0, 0, 0]


def test_smeared_links_transform_as_links_do():
    lattice = Lattice(4, 2, 4, 6)
    U = random_links(lattice, 3, 1)
    g = random_links(lattice, 3, 2)[0][...]

    def moved(links, steps=1):
        return [g @ u[...] @ np.roll(g, -steps, mu).conj().swapaxes(-1, -2) for mu, u in enumerate(links)]

    before, after = hisq_links(U), hisq_links(links_of(np.stack(moved(U))))
    for old, new, steps in (
        (before.V, after.V, 1),
        (before.W, after.W, 1),
        (before.fat(0.1), after.fat(0.1), 1),
        (before.long(0.1), after.long(0.1), 3),
    ):
        for expected, found in zip(moved(old, steps), new, strict=True):
            assert np.allclose(found[...], expected, rtol=0, atol=1e-13)


@pytest.mark.lanes
@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [4, 3, 2])
def test_links_have_the_same_bits_on_any_number_of_ranks(ranks):
    def run(n):
        lattice = Lattice(4, 2, 2, 12, grid=(1, 1, 1, n))
        H = hisq_links(GaugeField(lattice, SU(3)).hot_start(seed=1))
        return [f[...] for f in (*H.W, *H.fat(0.1), *H.long(0.1))]

    one = run(1)
    for found in jali.virtual_ranks(ranks, lambda: run(ranks)):
        assert all(np.array_equal(a, b) for a, b in zip(found, one, strict=True))


def test_links_may_be_stored_in_less():
    U = GaugeField(Lattice(4, 6), SU(3), storage="float64-12").hot_start(seed=1)
    c = PathCoefficients(0.3, 0.2, 0.0, 0.0)
    for found, expected in zip(fatten(U, c), fatten(GaugeField(U.lattice, SU(3)).assign(U), c), strict=True):
        assert np.array_equal(found[...], expected[...])
        assert found.precision == "float64"
    assert fatten([u.astype("float32") for u in U], c)[0].precision == "float32"


def test_mistakes_are_reported():
    cube, plane = Lattice(4, 4, 4), Lattice(4, 4)
    U = unit_links(cube, 3)
    opened = GaugeField(plane, SU(2), boundary={0: "open"}).cold_start()
    for error, act, match in (
        (LayoutError, lambda: fatten(3, FAT7), "a GaugeField or a list of one field per direction, not 3"),
        (LayoutError, lambda: fatten(U[:2], FAT7), "2 link fields on a lattice of 3 dimensions"),
        (
            LayoutError,
            lambda: fatten([*U[:2], unit_links(cube, 2)[0]], FAT7),
            r"those of direction 2 are SU\(2\)",
        ),
        (
            LayoutError,
            lambda: hisq_links(U),
            "staples of 7 links, which need 4 dimensions; the lattice has 3",
        ),
        (
            LayoutError,
            lambda: fatten(unit_links(plane, 3), PathCoefficients(1, 1, 1, 0)),
            "staples of 5 links, which need 3 to 4 dimensions; the lattice has 2",
        ),
        (
            LayoutError,
            lambda: fatten(opened, PathCoefficients(1, 1, 0, 0)),
            "periodic links, and those of direction 0 are",
        ),
        (ParameterError, lambda: fatten(U, 3), "coefficients is a PathCoefficients, not 3"),
        (ParameterError, lambda: asqtad_links(U, 1.5), "u0 is above 0 and at most 1, .* not 1.5"),
        (ParameterError, lambda: hisq_epsilon(1.5), "masses from 0 to 1 in lattice units, not 1.5"),
    ):
        with pytest.raises(error, match=match):
            act()
