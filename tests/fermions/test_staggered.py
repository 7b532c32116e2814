"""Staggered operators: a configuration whose numbers are known, NumPy's rolls, exact spectra, and their symmetries."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from test_even_odd import EXTENTS, known_links
from test_fat_links import links_of
from test_wilson import random_links, unit_links

import jali
from jali import EVEN, ODD, SU, Field, Lattice, LayoutError, Matrix, ParameterError, Vector
from jali.fermions import HISQ, Asqtad, ImprovedStaggered, Staggered, asqtad_links, hisq_links
from jali.gauge import GaugeField
from jali.lattice.algebra import inner
from jali.solvers import cg

ANTIPERIODIC = {3: "antiperiodic"}


def random_field(lattice, n, seed, **options):
    field = Field(lattice, Vector(n), **options)
    rng = np.random.default_rng(seed)
    field[...] = rng.normal(size=field.shape) + 1j * rng.normal(size=field.shape)
    return field


def random_matrices(lattice, n, seed):
    """Links of no group, as fat and long ones are."""
    rng, fields = np.random.default_rng(seed), [Field(lattice, Matrix(n)) for _ in lattice.directions]
    for field in fields:
        field[...] = rng.normal(size=field.shape) + 1j * rng.normal(size=field.shape)
    return fields


# ---- the known configuration ---------------------------------------------------------------------------------


def known_vector():
    """Re 2 ((k^2 + 3 k) mod 103) / 103 - 1, Im 2 ((k^2 + 5 k) mod 107) / 107 - 1, k = 1 + c + 3 n; (*EXTENTS, 3)."""
    n = np.arange(np.prod(EXTENTS)).reshape(EXTENTS[::-1]).T
    k = 1 + np.arange(3) + 3 * n[..., None]
    return 2 * ((k * k + 3 * k) % 103) / 103 - 1 + 1j * (2 * ((k * k + 5 * k) % 107) / 107 - 1)


KNOWN = {  # of mass 0.1: |M eta|^2, ln det, S = eta_e^dagger (M^dagger M)^-1 eta_e, C(0), C(1), C(4), iterations, tr M^-1 / V
    "staggered": (
        2331.0305704482,
        199.3694317038,
        1222.713624179,
        (2.502584188590, 1.160940552473, 0.278411300495),
        200,
        0.6548302157,
    ),
    "asqtad": (
        1888.5474819437,
        148.6360559377,
        845.839274145,
        (2.073367929854, 0.916187240243, 0.113388875902),
        102,
        None,
    ),
    "HISQ": (
        2904.4951534928,
        557.6275525297,
        408.203876261,
        (0.930512254482, 0.421207526291, 0.008594698409),
        61,
        None,
    ),
    "asqtad, u0 = 0.9": (2344.275884040, None, 691.382697885, None, None, None),
    "HISQ, epsilon = -0.1": (2826.616228659, None, 416.123449995, None, None, None),
}
OPERATORS = {
    "staggered": lambda U: Staggered(U, 0.1),
    "asqtad": lambda U: Asqtad(U, 0.1),
    "HISQ": lambda U: HISQ(U, 0.1, 0),
    "asqtad, u0 = 0.9": lambda U: Asqtad(U, 0.1, 0.9),
    "HISQ, epsilon = -0.1": lambda U: HISQ(U, 0.1, -0.1),
}
CAUSES = {
    ("asqtad", 712.168869): "Lepage's term has paths that go up and down again",
    ("asqtad", 1807.494126): "there are no long links",
}


def cause(name, value):
    """Why |M eta|^2 is wrong, where that is known."""
    for (operator, wrong), text in CAUSES.items():
        if operator == name and abs(value - wrong) < 1e-5:
            return f"{name}: {text}"
    return f"{name}: |M eta|^2 is {value}"


def correlator(D, rtol=1e-13):
    """C(t), the sum of |S|^2 from the origin, of three solves on even sites at once."""
    b = Field(D.lattice, Vector(3), boundary=ANTIPERIODIC, batch=3)
    b[0, 0, 0, 0] = np.eye(3)
    half = cg(D.normal, D.adjoint(b).on(EVEN), rtol=rtol)
    x = D.even_odd(EVEN).reconstruct(half.x, b)
    return (abs(x[...]) ** 2).sum((0, 1, 2, 4, 5))


@pytest.fixture(scope="module")
def known():
    """Links and eta."""
    U = links_of(known_links())
    eta = Field(U[0].lattice, Vector(3), boundary=ANTIPERIODIC)
    eta[...] = known_vector()
    return U, eta


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_configuration_has_its_norms_actions_and_correlators(known, name):
    U, eta = known
    norm, _, action, known_correlator, iterations, _ = KNOWN[name]
    D = OPERATORS[name](U)
    found = (D @ eta).norm2()
    assert found == pytest.approx(norm, rel=3e-13), cause(name, found)
    even = eta.on(EVEN)
    solved = cg(D.normal, even, rtol=1e-10)
    assert inner(even, solved.x) == pytest.approx(action, abs=6e-10)
    assert iterations is None or solved.iterations == iterations
    if known_correlator is not None:
        assert correlator(D)[[0, 1, 4]] == pytest.approx(known_correlator, abs=1e-12)


def test_the_known_wrong_norms_have_their_causes(known):
    U, eta = known
    fat, long = asqtad_links(U)
    zero = [f.like() for f in long]
    backtracking = [(f - 6 / 16 * u).field() for f, u in zip(fat, U, strict=True)]
    for wrong, text in (
        (ImprovedStaggered(backtracking, long, 0.1), "up and down again"),
        (ImprovedStaggered(fat, zero, 0.1), "no long links"),
    ):
        assert text in cause("asqtad", (wrong @ eta).norm2())


def even_normal_matrix(D):
    """M^dagger M on even sites, from unit vectors in batches."""
    even = np.indices(EXTENTS).sum(0) % 2 == 0
    sites, columns = np.argwhere(np.repeat(even[..., None], 3, axis=-1)), []
    for some in np.array_split(sites, 3):
        unit = Field(D.lattice, Vector(3), boundary=ANTIPERIODIC, batch=len(some), over=EVEN)
        values = np.zeros(unit.shape)
        for k, (*site, c) in enumerate(some):
            values[(*site, k, c)] = 1
        unit[...] = values
        columns.append(np.moveaxis(D.normal(unit)[...][even], 1, 0).reshape(len(some), -1))
    return np.concatenate(columns).T


@pytest.mark.parametrize("name", ["staggered", "asqtad", "HISQ"])
def test_the_known_configuration_has_its_determinants(known, name):
    """det M = det (M^dagger M)_ee, and tr M^-1 = 2 m tr (M^dagger M)_ee^-1, since the hop has eigenvalues in pairs."""
    U, _ = known
    _, log_det, _, _, _, trace = KNOWN[name]
    A = even_normal_matrix(OPERATORS[name](U))
    assert np.allclose(A, A.conj().T, rtol=0, atol=1e-14)
    assert 2 * np.log(np.linalg.cholesky(A).diagonal().real).sum() == pytest.approx(log_det, abs=1e-10)
    if trace is not None:
        assert 0.2 * np.linalg.inv(A).trace().real / np.prod(EXTENTS) == pytest.approx(trace, abs=6e-11)


def test_correlators_of_unit_links_are_the_free_ones():
    D = Staggered(unit_links(Lattice(*EXTENTS), 3), 0.1)
    expected = 1.078365236861, 0.487732482923, 0.032312118193, 0.325311422505, 0
    assert correlator(D)[:5] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("staggered", (3.560350107, 1.831326187, 1.007882598)),
        ("asqtad", (2.929587119, 1.169424768, 0.430610687)),
        ("HISQ", (1.037035625, 0.298954694, 0.076952795)),
    ],
)
def test_correlators_of_the_shared_configuration(name, expected):
    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "nersc.l8t4b3360"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip("the shared configurations are not beside this checkout (shared/data)")
    D = OPERATORS[name](GaugeField.from_file(path))
    assert correlator(D, 1e-11)[:3] == pytest.approx(expected, abs=6e-10)


# ---- the formula ---------------------------------------------------------------------------------------------


def shifted(psi, mu, steps, condition):
    """psi(x + steps mu), with the factor of each crossing of the edge."""
    factor = {"periodic": 1, "antiperiodic": -1, "open": 0}.get(condition, condition)
    extent, x = psi.shape[mu], np.arange(psi.shape[mu])
    crossings = np.abs((x + steps) // extent)
    factors = (factor if steps > 0 else np.conj(factor)) ** crossings
    shape = [1] * psi.ndim
    shape[mu] = extent
    return np.roll(psi, -steps, mu) * factors.reshape(shape)


def staggered_numpy(links, psi, mass, conditions, dagger=False, order=None):
    """The formula by rolls; `links` are pairs of a number of steps and arrays of links."""
    ndim, hops = psi.ndim - 1, 0
    x = np.indices(psi.shape[:-1])
    order = range(ndim) if order is None else order
    for k, mu in enumerate(order):
        eta = (-1.0) ** sum((x[nu] for nu in order[:k]), np.zeros(psi.shape[:-1]))
        for steps, U in links:
            ahead = np.einsum("...ij,...j->...i", U[mu], shifted(psi, mu, steps, conditions[mu]))
            behind = np.einsum("...ji,...j->...i", U[mu].conj(), psi)
            hops = hops + eta[..., None] * (ahead - shifted(behind, mu, -steps, conditions[mu]))
    return mass * psi + (-0.5 if dagger else 0.5) * hops


@pytest.mark.lanes
@pytest.mark.parametrize(
    ("extents", "n", "conditions"),
    [
        ((4, 2, 2, 6), 3, ["periodic", "periodic", np.exp(0.3j), "antiperiodic"]),
        ((2, 8), 1, ["antiperiodic", "periodic"]),
        ((4, 3, 6), 2, ["periodic", "open", "antiperiodic"]),
        ((6, 2, 4, 2), 2, ["antiperiodic"] * 4),
    ],
    ids=["4x2x2x6", "U(1), 2x8", "SU(2), 4x3x6, open", "SU(2), 6x2x4x2"],
)
def test_operators_agree_with_numpy(extents, n, conditions):
    """Also where three steps cross the edge twice."""
    lattice, mass, ndim = Lattice(*extents), 0.3, len(extents)
    opened = {mu: c for mu, c in enumerate(conditions) if c == "open"}
    U, fat, long = random_links(lattice, n, 1), random_matrices(lattice, n, 2), random_matrices(lattice, n, 3)
    psi = random_field(lattice, n, 4, boundary=conditions)
    if opened:
        bounded = GaugeField(lattice, SU(n), boundary=opened)
        for field, u in zip(bounded.fields, U, strict=True):
            field[...] = u[...]
        U = bounded
    one = [(1, [u[...] for u in U])]
    both = [(1, [f[...] for f in fat]), (3, [f[...] for f in long])]
    cases = [
        (Staggered(U, mass), one, None),
        (Staggered(U, mass, phases="milc"), one, (ndim - 1, *range(ndim - 1))),
    ]
    if not opened:
        cases.append((ImprovedStaggered(fat, long, mass), both, None))
    for D, links, order in cases:
        for dagger, found in ((False, D @ psi), (True, D.dagger @ psi)):
            expected = staggered_numpy(links, psi[...], mass, conditions, dagger, order)
            assert np.allclose(found[...], expected, rtol=0, atol=1e-13)


def test_plane_waves_on_unit_links_have_the_exact_symbol():
    """M^dagger M exp(ipx) = [m^2 + sum s(p)^2] exp(ipx) with s = sin p, and with long links 9/8 sin p - 1/24 sin 3p."""
    lattice, mass = Lattice(4, 6, 2, 8), 0.25
    momenta = 2 * np.pi * np.array([1 / 4, 2 / 6, 0 / 2, (3 + 0.5) / 8])
    psi = Field(lattice, Vector(2), boundary=ANTIPERIODIC)
    psi[...] = np.exp(1j * np.tensordot(momenta, np.indices(lattice.extents), axes=1))[..., None] * np.array(
        [1, 2j]
    )
    U = unit_links(lattice, 2)
    naik = 9 / 8 * np.sin(momenta) - np.sin(3 * momenta) / 24
    for D, s in ((Staggered(U, mass), np.sin(momenta)), (Asqtad(U, mass), naik), (HISQ(U, mass, 0), naik)):
        assert np.allclose(D.normal(psi)[...], (mass**2 + (s**2).sum()) * psi[...], rtol=0, atol=1e-13)


# ---- symmetries ----------------------------------------------------------------------------------------------


def improved(lattice, seed=1, mass=0.2):
    return ImprovedStaggered(random_matrices(lattice, 3, seed), random_matrices(lattice, 3, seed + 1), mass)


@pytest.fixture(scope="module")
def setting():
    """An operator with long links and two fields, on a lattice whose parts are uneven."""
    lattice = Lattice(4, 2, 4, 6)
    return improved(lattice), *(random_field(lattice, 3, k, boundary=ANTIPERIODIC) for k in (4, 5))


def test_the_hop_is_antihermitian(setting):
    long, psi, chi = setting
    for D in (long, Staggered(random_links(long.lattice, 3, 1), 0.2)):
        assert np.array_equal(D.hop(psi, dagger=True)[...], -D.hop(psi)[...])
        assert inner(chi, D.hop(psi)) == pytest.approx(-inner(D.hop(chi), psi), rel=1e-13)
        assert inner(chi, D @ psi) == pytest.approx(inner(D.dagger @ chi, psi), rel=1e-13)
        assert np.allclose((D @ psi)[...] + (D.dagger @ psi)[...], 2 * D.mass * psi[...], rtol=0, atol=1e-13)


def test_the_normal_operator_is_that_of_each_colour(setting):
    """It is Hermitian and positive there, and the even-odd form times the mass."""
    D, psi, chi = setting
    whole = D.normal(psi)
    assert np.allclose(whole[...], D.adjoint(D @ psi)[...], rtol=0, atol=1e-12)
    for over in (EVEN, ODD):
        half, other = psi.on(over), chi.on(over)
        found, number = D.normal_inner(half)
        assert found.over is over
        assert np.array_equal(found[...], D.normal(half)[...])
        assert np.allclose(found[...], whole.on(over)[...], rtol=0, atol=1e-12)
        assert np.allclose(found[...], D.mass * D.even_odd(over).apply(half)[...], rtol=0, atol=1e-11)
        assert number == inner(half, found).real
        assert number.real > D.mass**2 * half.norm2()
        assert inner(other, found) == pytest.approx(np.conj(inner(half, D.normal(other))), rel=1e-12)
        assert D.normal(half, other) is other
        assert np.array_equal(other[...], found[...])


def test_half_fields_have_the_bits_of_full_ones(setting):
    D, psi, _ = setting
    for dagger in (False, True):
        whole = D.hop(psi, dagger=dagger)
        for over in (EVEN, ODD):
            half = D.hop(psi.on(over), dagger=dagger)
            assert half.over is over.opposite
            assert np.array_equal(half[...], whole.on(over.opposite)[...])


def test_a_solution_of_one_colour_gives_that_of_both():
    """Against a dense matrix; without a mass one colour has its normal operator still."""
    lattice = Lattice(2, 2, 2, 2)
    D, b = improved(lattice, mass=0.4), random_field(lattice, 3, 7, boundary=ANTIPERIODIC)
    unit = Field(lattice, Vector(3), boundary=ANTIPERIODIC, batch=48)
    unit[...] = np.moveaxis(np.eye(48).reshape(48, 2, 2, 2, 2, 3), 0, 4)
    dense = np.moveaxis((D @ unit)[...], 4, 0).reshape(48, 48).T
    assert np.allclose(dense @ b[...].ravel(), (D @ b)[...].ravel(), rtol=0, atol=1e-12)
    for over in (EVEN, ODD):
        half = cg(D.normal, D.adjoint(b).on(over), rtol=1e-13)
        x = D.even_odd(over).reconstruct(half.x, b)
        assert np.allclose(x[...].ravel(), np.linalg.solve(dense, b[...].ravel()), rtol=0, atol=1e-10)
    massless = ImprovedStaggered(D.links, D.long, 0)
    expected = massless.hop(massless.hop(b)).on(EVEN)
    assert np.allclose(massless.normal(b.on(EVEN))[...], -expected[...], rtol=0, atol=1e-12)


@pytest.mark.lanes
def test_members_of_a_batch_have_the_bits_of_single_fields(setting):
    D, _, _ = setting
    several = random_field(D.lattice, 3, 6, boundary=ANTIPERIODIC, batch=3)
    even = several.on(EVEN)
    found, half, numbers = D @ several, D.normal(even), D.normal_inner(even)[1]
    for k in range(3):
        one = several.members[k].copy()
        assert np.array_equal(found.members[k][...], (D @ one)[...])
        assert np.array_equal(half.members[k][...], D.normal(one.on(EVEN))[...])
        assert numbers[k] == D.normal_inner(one.on(EVEN))[1]


@pytest.mark.lanes
@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [4, 3, 2])
def test_operators_have_the_same_bits_on_any_number_of_ranks(ranks):
    def run(n):
        lattice = Lattice(4, 2, 2, 12, grid=(1, 1, 1, n))
        U = GaugeField(lattice, SU(3)).hot_start(seed=1)
        psi, found = random_field(lattice, 3, 2, boundary=ANTIPERIODIC), []
        for D in (Staggered(U, 0.5), HISQ(U, 0.5, 0)):
            solved = cg(D.normal, psi.on(EVEN), rtol=1e-6)
            found += [(D @ psi)[...], solved.x[...], np.array(solved.history)]
        return found

    one = run(1)
    for found in jali.virtual_ranks(ranks, lambda: run(ranks)):
        assert all(np.array_equal(a, b) for a, b in zip(found, one, strict=True))


@pytest.mark.parametrize("name", ["staggered", "asqtad", "HISQ"])
def test_gauge_transformed_operators_are_transforms_of_operators(name):
    lattice = Lattice(4, 2, 4, 6)
    U, psi = random_links(lattice, 3, 1), random_field(lattice, 3, 2, boundary=ANTIPERIODIC)
    g = random_links(lattice, 3, 3)[0][...]
    moved = np.stack([g @ u[...] @ np.roll(g, -1, mu).conj().swapaxes(-1, -2) for mu, u in enumerate(U)])
    there = links_of(moved)
    rotated = Field(there[0].lattice, Vector(3), boundary=ANTIPERIODIC)
    rotated[...] = np.einsum("...ij,...j->...i", g, psi[...])
    expected = np.einsum("...ij,...j->...i", g, (OPERATORS[name](U) @ psi)[...])
    assert np.allclose((OPERATORS[name](there) @ rotated)[...], expected, rtol=0, atol=1e-13)


def test_phases_of_milc_are_another_basis(known):
    """Signs s(x) of the fields lead from one order of directions to the other, so that correlators are the same."""
    U, _ = known
    x = np.indices(EXTENTS)
    sign = ((-1.0) ** (x[3] * (x[0] + x[1] + x[2])))[..., None]
    psi = random_field(U[0].lattice, 3, 1, boundary=ANTIPERIODIC)
    flipped = psi.like()
    flipped[...] = sign * psi[...]
    D, milc = Staggered(U, 0.1), Staggered(U, 0.1, phases="milc")
    assert np.allclose((milc @ psi)[...], sign * (D @ flipped)[...], rtol=0, atol=1e-14)


def test_masses_change_without_compiling_and_share_links():
    lattice = Lattice(4, 4, 4, 4)
    H = hisq_links(random_links(lattice, 3, 1))
    psi = random_field(lattice, 3, 2)
    light, heavy = HISQ(H, 0.01, 0), HISQ(H, 0.4, -0.1)
    assert light.smeared is heavy.smeared is H
    assert light.links[0] is H.fat()[0]
    hop = light.hop(psi)[...]
    light.mass = 0.4
    assert np.allclose((light @ psi)[...], 0.4 * psi[...] + hop, rtol=0, atol=1e-13)
    assert not np.allclose((light @ psi)[...], (heavy @ psi)[...], rtol=0, atol=1e-2)


def test_flops_are_those_of_the_formula():
    """1146 of the hops with long links and 570 without, as QUDA counts them, and up to 4 x 3 x 6 of phases, the mass and the half."""
    lattice = Lattice(4, 4, 4, 4)
    psi = Field(lattice, Vector(3))
    for D, hops in ((Staggered(unit_links(lattice, 3), 0.1), 570), (improved(lattice), 1146)):
        flops = jali.inspect(D.kernel("apply"), psi.like(), psi, False, *D.data).flops
        assert hops <= flops <= hops + 72


def test_mistakes_are_reported():
    lattice = Lattice(4, 4, 4, 4)
    U = unit_links(lattice, 3)
    few = [Field(lattice, SU(3), storage="float16-12") for _ in U]
    D, other = Staggered(U, 0.1), random_matrices(Lattice(4, 4), 3, 1)
    for error, act, match in (
        (LayoutError, lambda: Staggered(3, 0.1), "a GaugeField or a list of one field per direction, not 3"),
        (
            LayoutError,
            lambda: Staggered(unit_links(Lattice(4), 3), 0.1),
            "2 to 4 dimensions, and the lattice has 1",
        ),
        (
            LayoutError,
            lambda: Staggered(unit_links(Lattice(4, 3), 3), 0.1),
            r"even extents, also in directions \[1\]",
        ),
        (ParameterError, lambda: Staggered(U, 1j), "the mass is a finite real number, not 1j"),
        (ParameterError, lambda: Staggered(U, np.nan), "the mass is a finite real number, not nan"),
        (ParameterError, lambda: Staggered(U, 0.1, phases="t"), "phases are 'x first' or 'milc', not 't'"),
        (LayoutError, lambda: Staggered(U, 0).even_odd(), "the mass 0 has no inverse on one colour"),
        (
            LayoutError,
            lambda: D @ Field(lattice, Vector(2)),
            r"acts on fields of Vector\(3\), .* holds Vector\(2\)",
        ),
        (LayoutError, lambda: D.normal(3), r"acts on fields of Vector\(3\), not on 3"),
        (
            LayoutError,
            lambda: D.normal(Field(lattice, Vector(3), over=EVEN), Field(lattice, Vector(3), over=ODD)),
            "a hop leads",
        ),
        (LayoutError, lambda: ImprovedStaggered(U, other, 0.1), "fat and long links do not fit"),
        (
            LayoutError,
            lambda: ImprovedStaggered(U, unit_links(lattice, 2), 0.1),
            "fat and long links do not fit",
        ),
        (
            LayoutError,
            lambda: ImprovedStaggered(few, U, 0.1),
            r"fat links are .* not unitary: float16-12 keeps too few.* direction 0 need a field of Matrix\(3, 3\), such as of float16",
        ),
        (
            LayoutError,
            lambda: ImprovedStaggered(U, few, 0.1),
            "long links are .* not unitary: float16-12 keeps too few",
        ),
        (
            LayoutError,
            lambda: Asqtad(other, 0.1),
            "staples of 7 links, which need 4 dimensions; the lattice has 2",
        ),
        (
            ParameterError,
            lambda: HISQ(U, 0.1),
            r"epsilon, which has no default: .*hisq_epsilon\(mass\), -0.00672086,",
        ),
        (ParameterError, lambda: HISQ(U, "light"), "epsilon, which has no default"),
    ):
        with pytest.raises(error, match=match):
            act()
    assert repr(D) == f"Staggered(SU(3) on {lattice}, mass 0.1)"
