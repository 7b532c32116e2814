"""The nucleon, of quarks with three colours.

N = eps_abc (u_a^T C gamma_5 d_b) u_c with C = gamma_t gamma_y, and with propagators S of u and d

    C(t, p) = sum_x exp(-i p (x - y)) eps_abc eps_a'b'c' { tr[S_aa'^T D_bb'] tr[P S_cc'] + tr[P S_aa' D_bb'^T S_cc'] },
    D = (C gamma_5) S_d (gamma_t (C gamma_5)^dagger gamma_t)

(C. Gattringer and C. B. Lang, Quantum Chromodynamics on the Lattice (2010), chapter 6; traces are those of spins). With the matrix of spins
M_cc' = sum eps eps S_aa' D_bb'^T both terms are products of M and S: tr[M_cc'] tr[P S_cc'] + tr[P M_cc' S_cc']. What is summed over sites is the
matrix N = tr[M_cc'] S_cc' + M_cc' S_cc', so every projector P comes of one sum: C = tr[P N]. A kernel takes the columns of one c'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import jali
from jali.codegen.values import Value
from jali.errors import LayoutError, ParameterError
from jali.fermions import SpinMatrix, gamma, gamma5
from jali.files import value_shown
from jali.hadrons.mesons import check_propagators, check_space, columns_of, winding_factor
from jali.hadrons.places import Projected, checked_momenta, checked_site, slices_from, times_wave, wave_of
from jali.lattice.field import Field
from jali.lattice.sites import site_function

_T = gamma[3]
CHARGE = _T * gamma[1]
"""C = gamma_t gamma_y: C gamma_mu C^-1 = -gamma_mu^T."""

DIQUARK = CHARGE * gamma5
PROJECTORS: dict[str, SpinMatrix] = {"+": 0.5 * (1 + _T), "-": 0.5 * (1 - _T)}
"""Projectors to the parities of a nucleon at rest: what goes forwards in time has the parity of the name."""

# (a, b, c) with eps_abc = 1, by c
_CYCLIC = ((1, 2, 0), (2, 0, 1), (0, 1, 2))


class Nucleon(Projected):
    """Correlators of the nucleon: `nucleon(S)` makes it. `values` is N of the module, (momenta, T, 4, 4), with the slice of the source first."""

    def correlator(self, projector: Any = "+", momentum: Sequence[int] | None = None) -> np.ndarray:
        """C(t) = tr[P N]: complex, (T,). `projector` is "+" or "-", (1 +- gamma_t) / 2, or a `SpinMatrix`.

        `momentum` is one of those that were asked for, by default the first. Raises ParameterError for others, and for what is no projector.
        """
        if isinstance(projector, str) and projector in PROJECTORS:
            projector = PROJECTORS[projector]
        if not isinstance(projector, SpinMatrix):
            raise ParameterError(f'a projector is "+", "-" or a SpinMatrix, not {value_shown(projector)}')
        return np.einsum("ij,tji->t", projector.dense(), self.at(momentum))


def nucleon(
    S: Field,
    down: Field | None = None,
    *,
    momenta: Sequence[Sequence[int]] | None = None,
    origin: Sequence[int] | None = None,
    diquark: SpinMatrix = DIQUARK,
) -> Nucleon:
    """Correlators of the nucleon, of the propagators `S` of its two equal quarks and `down` of the third (by default S).

    Both are fields of Spinor(3) with a batch of 12, as `D.propagator(source)` gives them. `diquark` is the matrix between u^T and d, C gamma_5 by default.
    `momenta` and `origin` are as for `mesons`. Across the edge of time three antiperiodic quarks change the sign, so C is as if the source were at the
    beginning. Raises LayoutError for propagators that do not fit, and for other numbers of colours than three.
    """
    down = S if down is None else down
    check_propagators(S, down)
    if S.element.type.shape[0] != 3 or S.batch != 12:
        raise LayoutError(
            f"a nucleon has three colours, at the sink and at the source: {S.name} is of {S.element} with a batch of {S.batch}, in place of Spinor(3) with 12"
        )
    if S.lattice.ndim != 4:
        raise LayoutError(f"a nucleon lives in four dimensions, and {S.name} on {S.lattice}")
    check_space(lambda d: winding_factor(S, d) ** 2 * winding_factor(down, d), S.lattice)
    if not isinstance(diquark, SpinMatrix):
        raise ParameterError(f"the matrix of a diquark is a SpinMatrix, not {value_shown(diquark)}")
    lattice = S.lattice
    time, where = lattice.ndim - 1, checked_site(lattice.extents, origin)
    chosen = checked_momenta(lattice.extents, momenta)
    # columns of one colour of the source: its four spins
    up, other = (list(map(list, zip(*columns_of(field), strict=True))) for field in (S, down))
    behind = SpinMatrix((_T * diquark.dagger() * _T).dense().T)
    spins = np.zeros((len(chosen), lattice.extents[time], 4, 4), complex)
    for number, p in enumerate(chosen):
        wave = wave_of(lattice.extents, p)
        for a, b, c in _CYCLIC:
            spins[number] += lattice.sum(
                _nucleon_of_a_colour,
                (up[a], up[b], up[c]),
                (other[a], other[b]),
                diquark,
                behind,
                wave,
                np.array(where, float),
                per=time,
            )
    factor = winding_factor(S) ** 2 * winding_factor(down)
    return Nucleon(slices_from(spins, where[time], factor), chosen, where)


@site_function
def _nucleon_of_a_colour(
    X: Any, up: Any, down: Any, diquark: Any, behind: Any, wave: Any, origin: Any, total: Any
) -> None:
    """N of the third colour c' of the source: a' and b' are the first and the second one, in both orders."""

    def of_colour(columns: Any, c: int) -> Value:
        """S with this colour at the sink: spin of the sink, spin of the source."""
        return jali.stack([column[X][c, :] for column in columns], axis=1)

    def turned(columns: Any, c: int) -> Value:
        """D^T: a spin matrix acts on the last index of a matrix."""
        rows = jali.stack([column[X][c, :] for column in columns])
        return (behind * (diquark * rows).transpose()).transpose()

    S = [[of_colour(columns, c) for c in range(3)] for columns in up]
    D = [[turned(columns, c) for c in range(3)] for columns in down]
    found: Any = None
    for a, b, c in _CYCLIC:
        M = S[0][a] * D[1][b] - S[1][a] * D[0][b] - S[0][b] * D[1][a] + S[1][b] * D[0][a]
        term = M.trace() * S[2][c] + M * S[2][c]
        found = term if found is None else found + term
    total += times_wave(X, wave, origin, found)


__all__ = ["CHARGE", "DIQUARK", "PROJECTORS", "Nucleon", "nucleon"]
