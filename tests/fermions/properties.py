"""What tests of Dirac operators ask of each of them: symmetries, dense matrices, even-odd forms, batches, correlators."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from test_wilson import random_links

import jali
from jali import EVEN, ODD, Field, Lattice
from jali.fermions import gamma5
from jali.gauge import GaugeField
from jali.lattice.algebra import inner
from jali.solvers import cg

ANTIPERIODIC = {3: "antiperiodic"}
FORMS = [(over, form) for form in ("asymmetric", "symmetric") for over in (EVEN, ODD)]


def random_field(D, seed, **options):
    """Gaussian numbers that D acts on, antiperiodic in the last direction; in a batch of Ls where there is a fifth one."""
    usual = {"boundary": {D.lattice.ndim - 1: "antiperiodic"}, "batch": getattr(D, "Ls", None)}
    psi = Field(D.lattice, D.element, **{**usual, **options})
    rng = np.random.default_rng(seed)
    psi[...] = rng.normal(size=psi.shape) + 1j * rng.normal(size=psi.shape)
    return psi


def dense(apply, psi):
    """The matrix of an operator on fields like psi, which have at most 256 numbers: all columns in one call."""
    units = psi.like(batch=psi[...].size)
    size, sites = units.batch, psi.lattice.ndim
    columns = np.eye(size).reshape(size, *psi.shape)
    units[...] = np.moveaxis(columns, 0, sites)
    return np.moveaxis(apply(units)[...], sites, 0).reshape(size, size).T


def flipped(psi):
    """gamma_5 psi."""
    out = psi.like()
    out[...] = gamma5.dense() @ psi[...]
    return out


def check_symmetries(D, other):
    """gamma_5 D gamma_5 is the adjoint of the operator `other`; adjoints of all parts move to the other side of inner products."""
    psi, chi = random_field(D, 1), random_field(D, 2)
    expected = flipped(other.apply(flipped(psi)))[...]
    assert np.allclose(D.adjoint(psi)[...], expected, rtol=1e-13, atol=1e-13)
    check_adjoints(D, psi, chi)


def check_adjoints(D, psi, chi):
    """Adjoints of D, of its parts and of its even-odd forms move to the other side of inner products."""
    pairs = [(D.apply, D.adjoint, psi, chi)]
    pairs += [
        (act, lambda field, act=act: act(field, dagger=True), psi, chi)
        for act in (D.hop, D.diagonal, D.diagonal_inverse)
    ]
    pairs += [
        (E.apply, E.adjoint, psi.on(ODD), chi.on(ODD)) for E in (D.even_odd(), D.even_odd(form="symmetric"))
    ]
    for act, adjoint, p, q in pairs:
        found, expected = (D.of_one_vector(inner(*pair)) for pair in ((q, act(p)), (adjoint(q), p)))
        assert found == pytest.approx(expected, rel=1e-12)
    normal, number = D.normal_inner(psi)
    assert number == D.of_one_vector(inner(psi, normal).real)
    assert number == pytest.approx(np.linalg.norm(D.apply(psi)[...]) ** 2, rel=1e-12)


def check_gauge_covariance(make, lattice, n):
    """The operator of moved links on a moved spinor gives the moved result."""
    U = random_links(lattice, n, 3)
    g = random_links(Lattice(*lattice.extents), n, 9)[0][...]
    moved = [u.like() for u in U]
    for mu, (new, old) in enumerate(zip(moved, U, strict=True)):
        new[...] = g @ old[...] @ np.roll(g, -1, mu).conj().swapaxes(-1, -2)
    D, there = make(U), make(moved)
    psi, rotated = random_field(D, 4), random_field(D, 4)
    rotated[...] = np.einsum("...ij,...sj->...si", g, psi[...])
    expected = np.einsum("...ij,...sj->...si", g, D.apply(psi)[...])
    assert np.allclose(there.apply(rotated)[...], expected, rtol=0, atol=1e-13 * abs(expected).max())


def check_even_odd(D, rtol=1e-14, error=2e-13):
    """Both forms on both colours give the full solution, to rounding."""
    b = random_field(D, 5)
    full = cg(D.normal, D.adjoint(b), rtol=rtol).x[...]
    for over, form in FORMS:
        E = D.even_odd(over, form)
        x = E.reconstruct(cg(E.normal, E.adjoint(E.prepare(b)), rtol=rtol).x, b)
        assert np.allclose(x[...], full, rtol=0, atol=error * abs(full).max()), (over, form)


def check_batches_and_colours(D):
    """Members of a batch have the bits of single fields, fields on a colour those of whole ones."""
    check_batches(D, 2)
    check_colours(D, random_field(D, 6))


def check_batches(D, n):
    """Members of a batch of n have the bits of single fields."""
    several = random_field(D, 6, batch=n)
    E = D.even_odd(form="symmetric")
    acts = (
        D.apply,
        D.adjoint,
        D.diagonal_inverse,
        lambda psi: D.hop(psi, scale=-0.5, plus=psi, times=2.0),
        lambda psi: E.normal(psi.on(ODD)),
    )
    found = [act(several) for act in acts]
    for k in range(n):
        single = several.members[k].copy()
        for act, batch in zip(acts, found, strict=True):
            assert np.array_equal(batch.members[k][...], act(single)[...])


def check_colours(D, psi):
    """Parts of D on fields of a colour have the bits of those on whole fields."""
    for act in (D.diagonal, D.diagonal_inverse, D.hop):
        for dagger in (False, True):
            whole = act(psi, dagger=dagger)
            for over in (EVEN, ODD):
                half = act(psi.on(over), dagger=dagger)
                assert half.over is (over.opposite if act == D.hop else over)
                assert np.array_equal(half[...], whole.on(half.over)[...])


def check_bits_on_ranks(make, ranks):
    """Results have the same bits on any number of ranks; `make(lattice)` makes the operator."""

    def run(n):
        D = make(Lattice(4, 2, 2, 12, grid=(1, 1, 1, n)))
        psi = random_field(D, 7)
        E = D.even_odd()
        return D.normal(psi)[...], E.normal(psi.on(ODD))[...], D.log_det(), D.log_det(EVEN)

    one = run(1)
    for found in jali.virtual_ranks(ranks, lambda: run(ranks)):
        assert all(np.array_equal(a, b) for a, b in zip(found, one, strict=True))


def point_propagator(D, rtol=1e-12):
    """S from the origin, one member for each spin and colour of the source."""
    source = Field(D.lattice, D.element, boundary=ANTIPERIODIC, batch=4 * D.colours)
    source[0, 0, 0, 0] = np.eye(4 * D.colours).reshape(4 * D.colours, 4, D.colours)
    E = D.even_odd()
    return E.reconstruct(cg(E.normal, E.adjoint(E.prepare(source)), rtol=rtol).x, source)


def correlator(D):
    """C(t): the sum of |S|^2 from the origin over space, colours and spins."""
    return (abs(point_propagator(D)[...]) ** 2).sum(axis=(0, 1, 2, 4, 5, 6))


def log_det_by_colours(D):
    """log det of the even-odd form on the odd sites, from its dense matrix, which is made in batches."""
    n = 4 * D.colours
    E = D.even_odd()
    sites = np.argwhere(np.indices(D.lattice.extents).sum(0) % 2 == 1)
    matrix = np.empty((len(sites), n, len(sites), n), complex)
    step = 256 // n
    units = Field(D.lattice, D.element, boundary=ANTIPERIODIC, batch=step * n, over=ODD)
    for first in range(0, len(sites), step):
        mine = sites[first : first + step]
        values = np.zeros((*D.lattice.extents, step, n, 4, D.colours), complex)
        for k, site in enumerate(mine):
            values[(*site, k)] = np.eye(n).reshape(n, 4, D.colours)
        units[...] = values.reshape(units.shape)
        columns = E.apply(units)[...][tuple(sites.T)].reshape(len(sites), step, n, n)
        matrix[:, :, first : first + len(mine)] = columns[:, : len(mine)].transpose(0, 3, 1, 2)
    sign, size = np.linalg.slogdet(matrix.reshape(len(sites) * n, -1))
    return size, np.angle(sign)


def check_value(found, expected, wrong, what, **tolerance):
    """A number of the known configuration; `wrong` has the causes of others that are known."""
    close = [cause for number, cause in wrong.items() if found == pytest.approx(number, rel=1e-6)]
    assert found == pytest.approx(expected, **tolerance), f"{what}: {', '.join(close) or 'no known cause'}"


def shared_configuration():
    """Links of 8^3 x 4 beside this checkout; CI must have them, elsewhere tests of them are skipped."""
    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "nersc.l8t4b3360"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip("the shared configurations are not beside this checkout (shared/data)")
    return GaugeField.from_file(path)
