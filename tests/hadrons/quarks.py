"""What tests of hadrons share: links, propagators, and the definitions of correlators in NumPy."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from known_configuration import EXTENTS, known_links

from jali import SU, Field, Lattice
from jali.fermions import gamma, gamma5
from jali.gauge import GaugeField

G5, GT = gamma5.dense(), gamma[3].dense()


def gauge_field(lattice, links):
    """Links by direction as a gauge field: arrays (*extents, n, n)."""
    U = GaugeField(lattice, SU(links[0].shape[-1])).cold_start()
    for u, values in zip(U, links, strict=True):
        u[...] = values
    return U


def random_links(extents, n, seed):
    """Haar-distributed links of SU(n), of U(1) for one colour, (d, *extents, n, n)."""
    rng, d = np.random.default_rng(seed), len(extents)
    z = rng.normal(size=(d, *extents, n, n)) + 1j * rng.normal(size=(d, *extents, n, n))
    q, _ = np.linalg.qr(z)
    if n > 1:
        q[..., -1] /= np.linalg.det(q)[..., None]
    return q


def known_gauge_field():
    """The configuration "G"."""
    return gauge_field(Lattice(*EXTENTS), known_links())


def shared_configuration():
    """Links of 8^3 x 4 beside this checkout; CI must have them, elsewhere tests of them are skipped."""
    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "nersc.l8t4b3360"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip("the shared configurations are not beside this checkout (shared/data)")
    return GaugeField.from_file(path)


def filled(field, seed):
    """The field, with Gaussian numbers."""
    rng = np.random.default_rng(seed)
    field[...] = rng.normal(size=field.shape) + 1j * rng.normal(size=field.shape)
    return field


def dense(D, **options):
    """The matrix of D: (sites, element) by the same, in the order of `field[...]`; `options` are those of a field."""
    psi = Field(D.lattice, D.element, **options)
    size = psi[...].size
    matrix = np.empty((size, size), complex)
    for columns in np.array_split(np.arange(size), -(-size // 192)):
        units = psi.like(batch=len(columns))
        values = np.zeros((len(columns), size))
        values[np.arange(len(columns)), columns] = 1
        units[...] = np.moveaxis(values.reshape(-1, *psi.shape), 0, D.lattice.ndim)
        matrix[:, columns] = np.moveaxis((D @ units)[...], D.lattice.ndim, 0).reshape(len(columns), size).T
    return matrix


def as_matrices(S):
    """Members of a batch as spins and colours of the source: (*extents, s, c, s', c'); of vectors (*extents, c, c')."""
    values, d = S[...], S.lattice.ndim
    if not S.element.spinor:
        return np.moveaxis(values, d, -1)
    shape = *values.shape[:d], 4, S.batch // 4, *values.shape[d + 1 :]
    return np.moveaxis(values.reshape(shape), (d, d + 1), (d + 2, d + 3))


def waves(extents, momentum, origin):
    """exp(-i p (x - y)) over space, with an axis of one slice."""
    angle = sum(
        2 * np.pi * p / size * (x - y)
        for p, size, x, y in zip(momentum, extents, np.indices((*extents[:-1], 1)), origin, strict=False)
    )
    return np.exp(-1j * angle)


def meson(S, anti, sink, source, momentum=(0, 0, 0), origin=(0, 0, 0, 0)):
    """-sum_x exp(-i p (x - y)) tr[g5 anti^dagger g5 Gamma S g_t Gamma'^dagger g_t] by slice, as the formula stands; arrays of `as_matrices`."""
    behind = GT @ source.conj().T @ GT
    site = np.einsum("ij,...lcjd,lk,km,...mcnd,ni->...", G5, anti.conj(), G5, sink, S, behind, optimize=True)
    # the dagger: [anti^dagger]_{(j d) (l c)} = conj(anti_{(l c) (j d)})
    return -(site * waves(S.shape[:4], momentum, origin)).sum((0, 1, 2))


EPSILON = np.zeros((3, 3, 3))
for _order in itertools.permutations(range(3)):
    EPSILON[_order] = np.linalg.det(np.eye(3)[list(_order)])


def nucleon_of(S, down, diquark, projector, momentum=(0, 0, 0), origin=(0, 0, 0, 0)):
    """sum_x exp(-i p (x - y)) eps eps' { tr[S_aa'^T D_bb'] tr[P S_cc'] + tr[P S_aa' D_bb'^T S_cc'] }, term by term."""
    D = np.einsum("ij,...jakb,kl->...ialb", diquark, down, GT @ diquark.conj().T @ GT, optimize=True)
    site = 0
    for a, b, c in itertools.permutations(range(3)):
        for i, j, k in itertools.permutations(range(3)):
            A, B, C = S[..., a, :, i], D[..., b, :, j], S[..., c, :, k]
            first = np.einsum("...ji,...ji->...", A, B) * np.einsum("ij,...ji->...", projector, C)
            second = np.einsum("ij,...jk,...lk,...li->...", projector, A, B, C, optimize=True)
            site = site + EPSILON[a, b, c] * EPSILON[i, j, k] * (first + second)
    return (site * waves(S.shape[:4], momentum, origin)).sum((0, 1, 2))
