"""Exact values from first principles, an independent reference for the physics tests.

Nothing here imports jali. Gauge theory: weight exp((beta/N) sum_p Re Tr U_p) with Haar measure, plaquette
P = <(1/N) Re Tr U_p>. The character expansion exp((beta/N) Re Tr U) = sum_r d_r lambda_r chi_r(U) solves two
dimensions; its coefficients are determinants of Bessel functions (D. Gross and E. Witten, Phys. Rev. D 21
(1980) 446; A. Migdal, Zh. Eksp. Teor. Fiz. 69 (1975) 810). Free fields: finite lattices, momentum by
momentum.

U(1) is written "U(1)", SU(N) as "SU(2)", "SU(3)", ... and U(N) as "U(2)", "U(3)", ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.integrate import quad
from scipy.special import ive

# --- one plaquette and the infinite plane -----------------------------------------------------------------


def colours(group: str) -> int:
    return int(group[group.index("(") + 1 : -1])


def _charges(group: str, largest: int) -> range:
    """Powers of det U in the sum over q: all of them project U(N) onto SU(N), only 0 is left for U(N)."""
    return range(-largest, largest + 1) if group.startswith("SU") else range(1)


def _determinant(orders: np.ndarray, x: float) -> tuple[float, float]:
    """det I_orders(x) and its derivative, both times exp(-N x)."""
    bessel = ive(orders, x)
    slope = (ive(orders - 1, x) + ive(orders + 1, x)) / 2
    derivative = 0.0
    for row in range(len(orders)):
        changed = bessel.copy()
        changed[row] = slope[row]
        derivative += float(np.linalg.det(changed))
    return float(np.linalg.det(bessel)), derivative


def character_coefficient(group: str, beta: float, weights: Sequence[int]) -> tuple[float, float]:
    """c_r = integral dU chi_r(U)* exp((beta/N) Re Tr U) and dc_r/dbeta, both times exp(-beta).

    ``weights`` is the highest weight l_1 >= l_2 >= ... >= l_N of the representation (l_N = 0 for SU(N)):
    c_r = sum_q det I_{l_j + i - j + q}(beta/N).
    """
    n = colours(group)
    index = np.arange(n)
    orders = np.asarray(weights)[None, :] + index[:, None] - index[None, :]
    # I_q(x) / I_0(x) falls like exp(-q^2 / 2x): this range leaves less than 1e-16.
    largest = 12 + max(abs(w) for w in weights) + int(9 * math.sqrt(1 + beta / n))
    value = slope = 0.0
    for q in _charges(group, largest):
        determinant, derivative = _determinant(orders + q, beta / n)
        value += determinant
        slope += derivative / n
    return value, slope


def single_plaquette(group: str, beta: float) -> float:
    """Plaquette of one plaquette, which is that of the infinite two-dimensional lattice."""
    value, slope = character_coefficient(group, beta, (0,) * colours(group))
    return slope / value


# --- the two-dimensional torus ------------------------------------------------------------------------------


def dimension(weights: Sequence[int]) -> int:
    """Weyl's formula for U(N) and SU(N)."""
    n = len(weights)
    result = 1.0
    for i, j in itertools.combinations(range(n), 2):
        result *= (weights[i] - weights[j] + j - i) / (j - i)
    return round(result)


def representations(group: str, largest: int) -> Iterator[tuple[int, ...]]:
    """Highest weights of the irreducible representations with |n|, or the first row, up to ``largest``."""
    if group == "U(1)":
        yield from ((n,) for n in range(-largest, largest + 1))
        return
    if not group.startswith("SU"):
        raise ValueError(f"representations of {group} are not listed; use U(1) or SU(N)")
    for rows in itertools.product(range(largest, -1, -1), repeat=colours(group) - 1):
        if all(a >= b for a, b in itertools.pairwise(rows)):
            yield (*rows, 0)


def _lambdas(group: str, beta: float, largest: int) -> dict[tuple[int, ...], tuple[float, float]]:
    """lambda_r = c_r / d_r and its derivative, relative to c_0, for all representations up to ``largest``."""
    scale, _ = character_coefficient(group, beta, (0,) * colours(group))
    table = {}
    for weights in representations(group, largest):
        value, slope = character_coefficient(group, beta, weights)
        table[weights] = (value / scale / dimension(weights), slope / scale / dimension(weights))
    return table


def torus_plaquette(group: str, beta: float, volume: int, largest: int = 24) -> float:
    """Plaquette of a two-dimensional torus with ``volume`` plaquettes: Z = sum_r lambda_r^V, P = dlnZ/dbeta /
    V.

    ``largest`` bounds the representations; 24 is far beyond what volume >= 4 and beta <= 10 need for 12
    digits.
    """
    table = _lambdas(group, beta, largest if colours(group) < 3 else min(largest, 14))
    partition = sum(value**volume for value, _ in table.values())
    return sum(value ** (volume - 1) * slope for value, slope in table.values()) / partition


def plane_wilson_loop(group: str, beta: float, area: int) -> float:
    """Wilson loop of the infinite plane, P^area: the exact area law, string tension -ln P."""
    return single_plaquette(group, beta) ** area


def torus_wilson_loop(group: str, beta: float, volume: int, area: int, largest: int = 24) -> float:
    """Contractible non-self-intersecting Wilson loop (1/N) Re Tr around ``area`` of ``volume`` plaquettes.

    The disc inside carries r with weight d_r lambda_r^A, the punctured torus outside s with lambda_s^(V-A) /
    d_s, and the loop joins them where s is in r times the fundamental (multiplicity one).
    """
    table = _lambdas(group, beta, largest if colours(group) < 3 else min(largest, 14))
    partition = sum(value**volume for value, _ in table.values())
    total = 0.0
    for r, (inside, _) in table.items():
        for row in range(len(r)):
            raised = list(r)
            raised[row] += 1
            if any(a < b for a, b in itertools.pairwise(raised)):
                continue
            s = tuple(w - raised[-1] for w in raised) if group.startswith("SU") else tuple(raised)
            if s in table:
                outside = table[s][0]
                ratio = dimension(r) / dimension(s)
                total += ratio * inside**area * outside ** (volume - area)
    return total / colours(group) / partition


def u1_torus_charge(beta: float, volume: int, largest: int = 24) -> tuple[float, float]:
    """<Q^2> and <Q^2>/V of U(1) on a two-dimensional torus; Q = sum of plaquette angles in (-pi, pi] over 2
    pi.

    From Z(theta) = sum_n lambda(n + theta/2pi)^V with lambda(nu) = integral dphi/2pi exp(beta cos phi) cos(nu
    phi).
    """
    if volume < 3:
        raise ValueError(f"a torus of {volume} plaquettes has no charge; use 3 or more")
    nodes, weights = np.polynomial.legendre.leggauss(400)
    phi = math.pi * nodes
    measure = weights * np.exp(beta * np.cos(phi))
    measure /= measure.sum()  # lambda(0) = 1, so that high powers stay within range
    nu = np.arange(-largest, largest + 1)[:, None]
    value = np.cos(nu * phi) @ measure
    first = (-phi * np.sin(nu * phi)) @ measure
    second = (-(phi**2) * np.cos(nu * phi)) @ measure
    partition = np.sum(value**volume)
    # Charge conjugation makes the first derivative of Z vanish.
    curvature = np.sum(
        volume * (volume - 1) * value ** (volume - 2) * first**2 + volume * value ** (volume - 1) * second
    )
    square = float(-curvature / partition) / (4 * math.pi**2)
    return square, square / volume


def u1_plane_susceptibility(beta: float) -> float:
    """Topological susceptibility of U(1) on the infinite plane, <phi^2> / 4 pi^2 of one plaquette angle."""
    top, _ = quad(lambda phi: phi**2 * math.exp(beta * (math.cos(phi) - 1)), 0, math.pi, epsabs=1e-14)
    bottom, _ = quad(lambda phi: math.exp(beta * (math.cos(phi) - 1)), 0, math.pi, epsabs=1e-14)
    return top / bottom / (4 * math.pi**2)


# --- four dimensions, strong coupling -----------------------------------------------------------------------


def strong_coupling_plaquette(group: str, beta: float) -> float:
    """P = u + C u^5 u' in four dimensions: one plaquette, and the smallest cube.

    Four cubes meet in a plaquette and each weighs N^2 per orientation: C = 8 N^2, half of that for SU(2),
    whose representations are real. The remainder grows with beta: about 1e-4 at beta = 1 for SU(2).
    """
    factor = 4 * colours(group) ** 2 * (1 if group == "SU(2)" else 2)
    step = 1e-4 * max(beta, 1.0)
    u = single_plaquette(group, beta)
    slope = (single_plaquette(group, beta + step) - single_plaquette(group, beta - step)) / (2 * step)
    return u + factor * u**5 * slope


# --- free fields ------------------------------------------------------------------------------------------


def momenta(extents: Sequence[int], antiperiodic: Sequence[bool] | None = None) -> np.ndarray:
    """Lattice momenta 2 pi (k + shift) / L, shift 1/2 where antiperiodic, shape (d, *extents)."""
    shifts = [0.5 * flag for flag in (antiperiodic or [False] * len(extents))]
    axes = [2 * math.pi * (np.arange(n) + s) / n for n, s in zip(extents, shifts, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"))


def _to_position(values: np.ndarray, p: np.ndarray) -> np.ndarray:
    """sum_p exp(i p x) values(p) / V over the leading axes; the half-integer shift becomes a phase."""
    d = p.shape[0]
    extents = p.shape[1:]
    result = np.fft.ifftn(values, axes=tuple(range(d)))
    for axis, n in enumerate(extents):
        shift = float(p[(axis, *([0] * d))])
        shape = [1] * result.ndim
        shape[axis] = n
        result = result * np.exp(1j * shift * np.arange(n)).reshape(shape)
    return result


def scalar_propagator_momentum(extents: Sequence[int], mass: float) -> np.ndarray:
    """1 / (m^2 + sum 4 sin^2(p/2)), the propagator of -Laplacian + m^2, shape extents."""
    p = momenta(extents)
    return 1 / (mass**2 + np.sum(4 * np.sin(p / 2) ** 2, axis=0))


def scalar_propagator(extents: Sequence[int], mass: float) -> np.ndarray:
    """<phi(x) phi(0)> of the free lattice scalar, periodic, shape extents; phi^4 theory at lambda = 0."""
    return np.fft.ifftn(scalar_propagator_momentum(extents, mass)).real


def scalar_energy(p: Sequence[float], mass: float) -> float:
    """cosh E = 1 + (m^2 + sum 4 sin^2(p_i/2)) / 2 at spatial momentum p."""
    return math.acosh(1 + (mass**2 + sum(4 * math.sin(k / 2) ** 2 for k in p)) / 2)


def wilson_energy(p: Sequence[float], mass: float) -> float:
    """Energy of a free Wilson quark (r = 1) at spatial momentum p; E(0) = ln(1 + m)."""
    hat = mass + sum(1 - math.cos(k) for k in p)
    return math.acosh(1 + (sum(math.sin(k) ** 2 for k in p) + hat**2) / (2 * (1 + hat)))


def staggered_energy(p: Sequence[float], mass: float) -> float:
    """sinh^2 E = m^2 + sum sin^2 p_i."""
    return math.asinh(math.sqrt(mass**2 + sum(math.sin(k) ** 2 for k in p)))


def gamma_matrices(d: int) -> np.ndarray:
    """Hermitian Euclidean gamma matrices for ``d`` = 2 (Pauli) or 4 (chiral basis), shape (d, s, s)."""
    sigma = np.array([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]], dtype=complex)
    if d == 2:
        return sigma[:2]
    if d != 4:
        raise ValueError(f"gamma matrices are listed for 2 and 4 dimensions, not {d}")
    spatial = [np.kron(sigma[1], s) for s in sigma]
    return np.array([*spatial, np.kron(sigma[0], np.eye(2))])


def wilson_propagator_momentum(
    extents: Sequence[int],
    mass: float,
    gamma: np.ndarray | None = None,
    antiperiodic: Sequence[bool] | None = None,
) -> np.ndarray:
    """Inverse of D(p) = m + sum (1 - cos p) + i gamma sin p, shape (*extents, spin, spin).

    D psi(x) = (m + d) psi(x) - 1/2 sum_mu [(1 - gamma_mu) psi(x + mu) + (1 + gamma_mu) psi(x - mu)], r = 1.
    """
    p = momenta(extents, antiperiodic)
    matrices = gamma_matrices(len(extents)) if gamma is None else gamma
    hat = mass + np.sum(1 - np.cos(p), axis=0)
    slash = np.einsum("m...,mab->...ab", np.sin(p), matrices)
    unit = np.eye(matrices.shape[-1])
    numerator = hat[..., None, None] * unit - 1j * slash
    return numerator / (hat**2 + np.sum(np.sin(p) ** 2, axis=0))[..., None, None]


def wilson_propagator(
    extents: Sequence[int],
    mass: float,
    gamma: np.ndarray | None = None,
    antiperiodic: Sequence[bool] | None = None,
) -> np.ndarray:
    """S(x, 0) in position space, shape (*extents, spin, spin); colour is a factor of the unit matrix."""
    values = wilson_propagator_momentum(extents, mass, gamma, antiperiodic)
    return _to_position(values, momenta(extents, antiperiodic))


def wilson_spectrum(
    extents: Sequence[int], mass: float, antiperiodic: Sequence[bool] | None = None
) -> np.ndarray:
    """All eigenvalues of the free Wilson operator for one colour, m + sum (1 - cos p) +- i |sin p|.

    Each sign has multiplicity spin / 2; shape (volume * spin,), unordered.
    """
    p = momenta(extents, antiperiodic)
    spin = 2 ** (len(extents) // 2)
    real = (mass + np.sum(1 - np.cos(p), axis=0)).ravel()
    imaginary = np.sqrt(np.sum(np.sin(p) ** 2, axis=0)).ravel()
    return np.concatenate([real + 1j * imaginary, real - 1j * imaginary] * (spin // 2))


def free_pion_correlator(
    extents: Sequence[int], mass: float, antiperiodic: Sequence[bool] | None = None
) -> np.ndarray:
    """C(t) = sum_x tr S(x,t) S(x,t)^dagger for one colour, shape (extents[-1],); time comes last."""
    propagator = wilson_propagator(extents, mass, antiperiodic=antiperiodic)
    d = len(extents)
    return np.sum(np.abs(propagator) ** 2, axis=(*range(d - 1), d, d + 1))


# --- heat equation
# --------------------------------------------------------------------------------------------


def heat_kernel(n: int, time: float) -> np.ndarray:
    """u(x, time) for du/dt = u(x+1) - 2 u(x) + u(x-1) on a ring, from a unit source at 0, shape (n,)."""
    decay = np.exp(-4 * time * np.sin(math.pi * np.arange(n) / n) ** 2)
    return np.fft.ifft(decay).real


def heat_kernel_line(x: np.ndarray, time: float) -> np.ndarray:
    """The same on the infinite line: exp(-2t) I_|x|(2t)."""
    return ive(np.abs(x), 2 * time)


def heat_kernel_euler(n: int, step: float, steps: int) -> np.ndarray:
    """What ``steps`` explicit Euler steps of size ``step`` give on the ring; stable for step <= 1/2."""
    factor = 1 - 4 * step * np.sin(math.pi * np.arange(n) / n) ** 2
    return np.fft.ifft(factor**steps).real
