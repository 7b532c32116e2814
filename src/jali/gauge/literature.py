"""Known plaquettes to compare a run with: exact ones in two dimensions, in four published ones or those of another code.

Convention: weight exp((beta/N) sum Re Tr U_p), P = <(1/N) Re Tr U_p>. On a two-dimensional torus the
character expansion gives P exactly, for the very lattice of the run. In four dimensions there are numbers
from large lattices at single couplings, each with the extent from which on it can be compared. For SU(2) we
know no published table that we could cite, so those numbers are a simulation's, and are called so.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jali.errors import ParameterError
from jali.files import value_shown
from jali.statistics import format_value

__all__ = ["Reference", "plaquette_reference", "torus_plaquette"]


@dataclass(frozen=True)
class Reference:
    """A plaquette from elsewhere.

    ``kind`` is "exact", "literature" or "another code": a simulation of which nothing is published. ``caution`` is
    empty where the value holds for the lattice at hand; otherwise it is the reason why it holds only roughly.
    """

    value: float
    error: float
    source: str
    caution: str = ""
    kind: str = "literature"

    def __str__(self) -> str:
        return f"{self.value:.8g}" if self.error == 0 else format_value(self.value, self.error)


@dataclass(frozen=True)
class _Known:
    group: str
    beta: float
    value: float
    error: float
    least_extent: int
    source: str
    kind: str = "literature"


_QCDSF = "QCDSF, hep-ph/0502212 (Wilson action, large lattices)"
_SU2 = (
    "a simulation with another code (quaternion heat bath and overrelaxation, 12^4, 800 measurements); no published value "
    "is known to us"
)

# The QCDSF values come from 16^4 to 48^4 lattices. Their error is taken as 1e-5, above the statistical one,
# since determinations by several groups agree to that. least_extent is some 2.2 r0, below which the box
# changes P by more than 1e-4.
_KNOWN = (
    _Known("SU(3)", 5.7, 0.549195, 1e-5, 8, _QCDSF),
    _Known("SU(3)", 5.8, 0.567651, 1e-5, 8, _QCDSF),
    _Known("SU(3)", 5.95, 0.588006, 1e-5, 11, _QCDSF),
    _Known("SU(3)", 6.0, 0.593679, 1e-5, 12, _QCDSF),
    _Known("SU(3)", 6.07, 0.601099, 1e-5, 14, _QCDSF),
    _Known("SU(3)", 6.2, 0.613633, 1e-5, 16, _QCDSF),
    _Known("SU(3)", 6.4, 0.630633, 1e-5, 22, _QCDSF),
    _Known("SU(3)", 6.57, 0.643524, 1e-5, 28, _QCDSF),
    _Known("SU(2)", 2.3, 0.602229, 1.01e-4, 8, _SU2, "another code"),
    _Known("SU(2)", 2.4, 0.629956, 7.7e-5, 12, _SU2, "another code"),
    _Known("SU(2)", 2.5, 0.652062, 6.3e-5, 12, _SU2, "another code"),
)


# The character expansion has some (beta / volume)^((n - 1) / 2) sqrt(beta) terms: up to here a second of them at most.
_LARGEST_TORUS_BETA = 1e3


def plaquette_reference(group: str, beta: float, extents: Sequence[int]) -> Reference | None:
    """What the plaquette of the Wilson theory should be on a periodic lattice; None where it is not known
    here.

    Args:
        group: "U(1)", "SU(2)", "SU(3)", ...
        beta: coupling.
        extents: sites per direction.
    """
    if not isinstance(extents, Sequence) or not all(isinstance(n, numbers.Integral) for n in extents):
        raise ParameterError(
            f"plaquette_reference: extents are whole numbers of sites, not {value_shown(extents)}"
        )
    if not isinstance(beta, numbers.Real):
        raise ParameterError(f"plaquette_reference: beta is a real number, not {value_shown(beta)}")
    if not isinstance(group, str):
        raise ParameterError(f"plaquette_reference: group is a name, not {value_shown(group)}")
    if len(extents) == 2 and min(extents) >= 2 and group in ("U(1)", "SU(2)", "SU(3)"):
        if beta > _LARGEST_TORUS_BETA or (group == "SU(3)" and beta > 10 * math.prod(extents)):
            return None
        value = torus_plaquette(group, beta, math.prod(extents))
        return Reference(value, 0.0, "exact, character expansion on this torus", kind="exact")
    if len(extents) != 4:
        return None
    for entry in _KNOWN:
        if entry.group == group and abs(entry.beta - beta) < 1e-9:
            caution = ""
            if min(extents) < entry.least_extent:
                caution = (
                    f"holds for {entry.least_extent} sites or more in every direction, not for {min(extents)}"
                )
            return Reference(entry.value, entry.error, entry.source, caution, entry.kind)
    return None


def torus_plaquette(group: str, beta: float, volume: int) -> float:
    """Exact plaquette of U(1), SU(2) or SU(3) on a two-dimensional periodic lattice of ``volume`` >= 4 sites.

    Z = sum_r lambda_r^V and P = (1/V) dlnZ/dbeta, with lambda_r d_r = sum_q det I_{l_j + i - j + q}(beta/N)
    over highest weights l, d_r the dimension; q runs over all integers for SU(N) and is 0 for U(1).
    """
    if group not in ("U(1)", "SU(2)", "SU(3)") or volume < 4 or beta < 0:
        raise ValueError(f"no exact torus for {group}, {volume} sites, beta = {beta:g}")
    n = int(group[group.index("(") + 1 : -1])
    x = beta / n
    # lambda_r / lambda_0 falls like exp(-l^2 / 2 beta) or faster, so these leave less than 1e-15.
    largest = 8 + math.ceil(math.sqrt(70 * beta / volume))
    if n == 1:
        weights = np.arange(-largest, largest + 1)[:, None]
        twist = np.zeros(1, dtype=int)
    else:
        falling = itertools.product(range(largest + 1), repeat=n - 1)
        weights = np.array(
            [(*rows, 0) for rows in falling if all(a >= b for a, b in itertools.pairwise(rows))]
        )
        reach = 12 + largest + math.ceil(9 * math.sqrt(1 + x))
        twist = np.arange(-reach, reach + 1)
    index = np.arange(n)
    orders = weights[:, None, None, :] + (index[:, None] - index) + twist[:, None, None]
    table = _scaled_bessel(int(np.abs(orders).max()) + 1, x)
    matrix = table[np.abs(orders)]
    slope = (table[np.abs(orders - 1)] + table[np.abs(orders + 1)]) / 2
    derivative = np.zeros(orders.shape[:2])
    for row in range(n):
        changed = matrix.copy()
        changed[..., row, :] = slope[..., row, :]
        derivative += np.linalg.det(changed) / n
    dimensions = np.ones(len(weights))
    for i, j in itertools.combinations(range(n), 2):
        dimensions *= (weights[:, i] - weights[:, j] + j - i) / (j - i)
    values = np.linalg.det(matrix).sum(axis=1) / dimensions
    slopes = derivative.sum(axis=1) / dimensions
    # Relative to the largest, the trivial representation, so that powers stay within range.
    top = values.max()
    return float(np.sum((values / top) ** (volume - 1) * slopes / top) / np.sum((values / top) ** volume))


def _scaled_bessel(largest: int, x: float) -> NDArray[np.float64]:
    """exp(-x) I_k(x) for k = 0 .. largest, as the Fourier coefficients of exp(x (cos t - 1))."""
    points = 2 * (largest + 40 + math.ceil(9 * math.sqrt(1 + x)))
    angle = 2 * math.pi * np.arange(points) / points
    return np.fft.rfft(np.exp(x * (np.cos(angle) - 1))).real[: largest + 1] / points
