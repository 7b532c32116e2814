"""Gauge observables in plain NumPy, written from their definitions: the reference for jali.gauge.

A configuration is an array `U[mu, x0, x1, ..., a, b]`: direction first, then coordinates, then the matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jali
from jali.gauge import GaugeField

GROUPS = (1, 2, 3)


def warm(extents: Sequence[int], n: int, seed: int = 1, spread: float = 0.6, **options: Any) -> GaugeField:
    """A gauge field whose links are random, but not far from a smooth field, so that no observable vanishes."""
    lattice = jali.Lattice(*extents)
    U = GaugeField(lattice, jali.SU(n), **options)
    links = near_unity((lattice.ndim, *extents), n, seed, spread)
    for mu, field in enumerate(U.fields):
        field[...] = links[mu]
    return U


def near_unity(shape: tuple[int, ...], n: int, seed: int, spread: float) -> np.ndarray:
    """Matrices exp(i spread H) of SU(n), H Hermitian (traceless for n >= 2) with Gaussian entries."""
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(*shape, n, n)) + 1j * rng.normal(size=(*shape, n, n))
    H = (H + H.conj().swapaxes(-1, -2)) / 2
    if n > 1:
        H -= np.trace(H, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n
    values, vectors = np.linalg.eigh(H)
    return (vectors * np.exp(1j * spread * values)[..., None, :]) @ vectors.conj().swapaxes(-1, -2)


def as_array(U: GaugeField) -> np.ndarray:
    """The whole configuration (on one rank)."""
    return np.stack([field.local() for field in U.fields])


def dagger(M: np.ndarray) -> np.ndarray:
    return M.conj().swapaxes(-1, -2)


def at(field: np.ndarray, *steps: tuple[int, int]) -> np.ndarray:
    """field(x + sum of steps): each step is (direction, how far)."""
    for axis, far in steps:
        field = np.roll(field, -far, axis)
    return field


def trace(M: np.ndarray) -> np.ndarray:
    return np.trace(M, axis1=-2, axis2=-1)


def path(U: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """Product of links along a path from every x; a step is mu + 1 forwards, -(mu + 1) backwards."""
    d, n = U.shape[0], U.shape[-1]
    product = np.broadcast_to(np.eye(n), U.shape[1:]).astype(complex)
    where = [0] * d
    for step in steps:
        mu = abs(step) - 1
        if step < 0:
            where[mu] -= 1
        link = at(U[mu], *enumerate(where))
        if step > 0:
            where[mu] += 1
        product = product @ (link if step > 0 else dagger(link))
    return product


def plaquettes(U: np.ndarray) -> tuple[float, float, float]:
    d, n = U.shape[0], U.shape[-1]
    means = {
        (m, v): float(trace(path(U, [m + 1, v + 1, -m - 1, -v - 1])).real.mean()) / n
        for m, v in itertools.combinations(range(d), 2)
    }
    spatial = [p for (m, v), p in means.items() if v != d - 1]
    temporal = [p for (m, v), p in means.items() if v == d - 1]
    return (
        float(np.mean(list(means.values()))),
        float(np.mean(spatial)) if spatial else math.nan,
        float(np.mean(temporal)),
    )


def wilson_loop(U: np.ndarray, r: int, t: int, time: int | None = None) -> float:
    d, n = U.shape[0], U.shape[-1]
    pairs = [(m, v) for m, v in itertools.permutations(range(d), 2) if time is None or v == time]
    loops = []
    for m, v in pairs:
        steps = [m + 1] * r + [v + 1] * t + [-m - 1] * r + [-v - 1] * t
        loops.append(trace(path(U, steps)).real.mean() / n)
    return float(np.mean(loops))


def polyakov_loop(U: np.ndarray, mu: int) -> complex:
    extent = U.shape[1 + mu]
    return complex(trace(path(U, [mu + 1] * extent)).mean()) / U.shape[-1]


def staple(U: np.ndarray, mu: int, across: Sequence[int] | None = None) -> np.ndarray:
    """S with Re tr(U S^dagger) the sum of the plaquettes on a link."""
    total = np.zeros_like(U[mu])
    for nu in range(U.shape[0]) if across is None else across:
        if nu != mu:
            total = total + path(U, [nu + 1, mu + 1, -nu - 1]) + path(U, [-nu - 1, mu + 1, nu + 1])
    return total


def traceless_antihermitian(M: np.ndarray) -> np.ndarray:
    A = (M - dagger(M)) / 2
    n = M.shape[-1]
    return A if n == 1 else A - trace(A)[..., None, None] * np.eye(n) / n


def exponential(A: np.ndarray) -> np.ndarray:
    """exp of anti-Hermitian matrices."""
    values, vectors = np.linalg.eigh(-1j * A)
    return (vectors * np.exp(1j * values)[..., None, :]) @ dagger(vectors)


def field_strength(U: np.ndarray, mu: int, nu: int) -> np.ndarray:
    m, v = mu + 1, nu + 1
    leaves = [[m, v, -m, -v], [v, -m, -v, m], [-m, -v, m, v], [-v, m, v, -m]]
    return traceless_antihermitian(sum(path(U, leaf) for leaf in leaves)) / 4


def levi_civita_charge(U: np.ndarray) -> float:
    """-(1/32 pi^2) sum over all index orders, brute force."""
    total = 0.0
    for order in itertools.permutations(range(4)):
        sign = round(float(np.linalg.det(np.eye(4)[list(order)])))
        a, b, c, d = order
        F = field_strength(U, min(a, b), max(a, b)) * (1 if a < b else -1)
        G = field_strength(U, min(c, d), max(c, d)) * (1 if c < d else -1)
        total += sign * float(trace(F @ G).real.sum())
    return -total / (32 * math.pi**2)
