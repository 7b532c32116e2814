"""Mesons: all pairs of gamma matrices from one sum over colours, sites and slices.

A meson psibar_1 Gamma psi_2 at the sink and Gamma' at the source has, with the propagators S_1 and S_2 from a source at y,

    C(t, p) = - sum_x exp(-i p (x - y)) tr[ gamma_5 S_1^dagger(x) gamma_5 Gamma S_2(x) Gammabar' ],   Gammabar' = gamma_t Gamma'^dagger gamma_t

(C. Gattringer and C. B. Lang, Quantum Chromodynamics on the Lattice (2010), chapter 6; gamma_5-hermiticity used), which is positive for gamma_5,
gamma_k and gamma_t gamma_5 at zero momentum. Only spins meet Gamma and Gamma', so what is summed are the 256 numbers

    G(t, p)[s', r', s, r] = sum_x exp(-i p (x - y)) sum_colours conj(S_1[s, s']) S_2[r, r']

of which every pair is a combination. Disconnected parts are not in C. gamma_t is the matrix of the last direction; mesons that have names from their spins
have them in four dimensions.

gamma_5 S_1^dagger gamma_5 is the propagator backwards of the quark whose operator is gamma_5 D_1^dagger gamma_5: the same quark of Wilson's and the clover operator
and of domain walls, the one with -mu of a twisted mass mu. So `mesons(S)` of a twisted mass is a charged meson, and the connected part of a neutral one
is `mesons(S_plus, S_minus)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import jali
from jali.errors import LayoutError, ParameterError
from jali.fermions import SpinMatrix, gamma, gamma5
from jali.files import value_shown
from jali.hadrons.places import Projected, checked_momenta, checked_site, slices_from, times_wave, wave_of
from jali.lattice.base import no_field, what_differs
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice
from jali.lattice.sites import site_function

_X, _Y, _Z, _T = gamma

GAMMAS: dict[str, SpinMatrix] = {
    "1": SpinMatrix(np.eye(4)),
    "gx": _X,
    "gy": _Y,
    "gxgy": _X * _Y,
    "gz": _Z,
    "gxgz": _X * _Z,
    "gygz": _Y * _Z,
    "gtg5": _T * gamma5,
    "gt": _T,
    "gxgt": _X * _T,
    "gygt": _Y * _T,
    "gzg5": _Z * gamma5,
    "gzgt": _Z * _T,
    "gyg5": _Y * gamma5,
    "gxg5": _X * gamma5,
    "g5": gamma5,
}
"""The 16 matrices by name, in the order of Chroma's and Grid's numbers (bit k is gamma_k), up to signs: numbers 7, 11, 13 and 14 are written with gamma_5."""

MESONS: dict[str, tuple[str, ...]] = {
    "pion": ("g5",),
    "pion by its axial charge": ("gtg5",),
    "rho": ("gx", "gy", "gz"),
    "scalar": ("1",),
    "axial vector": ("gxg5", "gyg5", "gzg5"),
    "tensor": ("gxgy", "gxgz", "gygz"),
}
"""What one speaks of, by the matrices whose correlators are added up."""


class Mesons(Projected):
    """Correlators of all mesons of two propagators: `mesons(S)` makes it.

    `values` is the array G of the module, (momenta, T, 4, 4, 4, 4), with the slice of the source first. Indexed by a name of `MESONS` or `GAMMAS` it gives a
    real correlator at the first momentum; `correlator` any pair at any momentum.
    """

    def correlator(self, sink: Any, source: Any = None, momentum: Sequence[int] | None = None) -> np.ndarray:
        """C(t) for the matrices `sink` and `source` (by default the same), each a `SpinMatrix` or a name of `GAMMAS`: complex, (T,).

        `momentum` is one of those that were asked for, by default the first. Raises ParameterError for others, and for what is no matrix.
        """
        sink = _matrix(sink)
        source = sink if source is None else _matrix(source)
        before = (gamma5 * sink).dense()
        in_time = gamma[len(self.origin) - 1]
        behind = (in_time * source.dagger() * in_time * gamma5).dense()
        # tr[ S^dagger (gamma_5 Gamma) S (Gammabar gamma_5) ] = sum conj(S[s, s']) (gamma_5 Gamma)[s, r] S[r, r'] (Gammabar gamma_5)[r', s']
        return -np.einsum("tabsr,sr,ba->t", self.at(momentum), before, behind, optimize=True)

    def __getitem__(self, name: str) -> np.ndarray:
        """The real part of the correlator of this name at the first momentum, of several matrices their sum: (T,)."""
        if not isinstance(name, str) or name not in self.keys():
            raise ParameterError(
                f"a meson is one of {', '.join(self.keys())}, not {value_shown(name)}; correlator(sink, source) takes any matrices"
            )
        return np.sum([self.correlator(one).real for one in MESONS.get(name, (name,))], axis=0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Names that an index takes: in fewer than four dimensions mesons without a spin, and matrices."""
        return [*(MESONS if len(self.origin) == 4 else ("pion", "scalar")), *GAMMAS]


def mesons(
    S: Field,
    anti: Field | None = None,
    *,
    momenta: Sequence[Sequence[int]] | None = None,
    origin: Sequence[int] | None = None,
) -> Mesons:
    """Correlators of all mesons of a quark with the propagator `S` and an antiquark with gamma_5 `anti`^dagger gamma_5, by default of S.

    That is the quark of `anti` run backwards, of a twisted mass mu the one with -mu: `mesons(S)` is a charged meson there.

    Both are fields of spinors with a batch that is a multiple of four, spins of the source first, as `D.propagator(source)` gives them. `origin` is the site
    of the source, from which times and phases count; `momenta` are those of the sink, in units of 2 pi / L, by default zero. The result is the same on
    all ranks, with the same bits on any number of them. Raises LayoutError for fields that do not fit, ParameterError for origins and momenta that do not.
    """
    anti = S if anti is None else anti
    check_propagators(S, anti)
    check_space(lambda d: winding_factor(S, d) * np.conj(winding_factor(anti, d)), S.lattice)
    lattice = S.lattice
    time, where = lattice.ndim - 1, checked_site(lattice.extents, origin)
    chosen = checked_momenta(lattice.extents, momenta)
    columns, conjugated = columns_of(S), columns_of(anti)
    spins = np.empty((len(chosen), lattice.extents[time], 4, 4, 4, 4), complex)
    for number, p in enumerate(chosen):
        wave = wave_of(lattice.extents, p)
        # pairs of spins of the source at a distance, since a call takes several: binding it to the fields takes longer than one pair
        hermitian = anti is S and wave is None
        for distance in range(3 if hermitian else 4):
            pairs = [(a, (a + distance) % 4) for a in range(2 if hermitian and distance == 2 else 4)]
            found = lattice.sum(
                _gram,
                [conjugated[a] for a, _ in pairs],
                [columns[b] for _, b in pairs],
                wave,
                np.array(where, float),
                per=time,
            )
            for k, (a, b) in enumerate(pairs):
                spins[number, :, a, b] = found[..., 4 * k : 4 * k + 4]
                if hermitian:
                    spins[number, :, b, a] = spins[number, :, a, b].conj().transpose(0, 2, 1)
    factor = winding_factor(S) * np.conj(winding_factor(anti))
    return Mesons(slices_from(spins, where[time], factor), chosen, where)


# ---- what all hadrons share ------------------------------------------------------------------------------------


def check_propagators(*fields: Any) -> None:
    """Raises LayoutError unless these are propagators of Wilson quarks on one lattice, with the same columns."""
    first = fields[0]
    for S in fields:
        if not isinstance(S, Field):
            raise LayoutError(f"a propagator is a field with a batch, not {no_field(S)}")
        if not S.element.spinor:
            raise LayoutError(
                f"a propagator of Wilson quarks is a field of spinors, and {S.name} holds {S.element}; those of staggered quarks are for staggered_mesons"
            )
        if S.batch is None or S.batch % 4:
            has = "no batch" if S.batch is None else f"a batch of {S.batch}"
            raise LayoutError(
                f"a propagator has a batch that is a multiple of four, spins of the source first, and {S.name} has {has}; of sources that are not diluted in "
                "spin there is no sum over the spins of the source"
            )
        if S.over is not ALL:
            raise LayoutError(f"a propagator has all sites, and {S.name} lives on {S.over}")
        if S.lattice is not first.lattice:
            raise LayoutError(
                f"propagators of a hadron live on one lattice, and {S.name} on another one ({what_differs(S.lattice, first.lattice)})"
            )
        if S.batch != first.batch or S.element != first.element:
            raise LayoutError(
                f"propagators of a hadron have the same source: {first.name} is of {first.element} with a batch of {first.batch}, {S.name} of {S.element} with {S.batch}"
            )


def columns_of(S: Field) -> list[list[Field]]:
    """For each spin of the source, the members of the batch that have it."""
    each, members = (S.batch or 0) // 4, S.members
    return [[members[spin * each + k] for k in range(each)] for spin in range(4)]


def check_space(factor: Callable[[int], complex], lattice: Lattice) -> None:
    """Raises LayoutError unless a hadron is periodic in space, as momenta that are multiples of 2 pi / L are. `factor` gives what it is multiplied by once around a direction."""
    for d in range(lattice.ndim - 1):
        if not np.isclose(factor(d), 1.0, rtol=0, atol=1e-10):
            raise LayoutError(
                f"a hadron of these quarks is multiplied by {factor(d):.6g} once around direction {d}, by their boundary conditions, and its momenta are no multiples of 2 pi / L"
            )


def winding_factor(S: Field, direction: int = -1) -> complex:
    """What S is multiplied by once around a direction, by default time: -1 of antiperiodic quarks."""
    condition = S.boundary.conditions[direction]
    return {"periodic": 1.0, "open": 1.0, "antiperiodic": -1.0}.get(condition, condition)


def _matrix(given: Any) -> SpinMatrix:
    if isinstance(given, str) and given in GAMMAS:
        return GAMMAS[given]
    if not isinstance(given, SpinMatrix):
        raise ParameterError(
            f"a matrix of spins is a SpinMatrix, such as gamma[0] * gamma5, or one of {', '.join(GAMMAS)}, not {value_shown(given)}"
        )
    return given


@site_function
def _gram(X: Any, conjugated: Any, columns: Any, wave: Any, origin: Any, total: Any) -> None:
    """For each pair of spins of the source the spins of the sink, side by side."""
    found = [
        sum(a[X].dagger() @ b[X] for a, b in zip(*both, strict=True))
        for both in zip(conjugated, columns, strict=True)
    ]
    total += times_wave(X, wave, origin, jali.concatenate(found, axis=1))


__all__ = ["GAMMAS", "MESONS", "Mesons", "mesons"]
