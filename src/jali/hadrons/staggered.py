"""Local mesons of staggered quarks.

Quark and antiquark live on one site, so a meson is a sign at each site of the sink, and with a propagator S from a site y

    C(t, p) = sum_x exp(-i p (x - y)) sign(x - y) sum_colours |S(x)|^2

(M. Golterman, Nucl. Phys. B 273 (1986) 663, table; R. Gupta et al., Phys. Rev. D 43 (1991) 2003). Each sign but the pion's also couples to a partner of opposite
parity, whose contribution has the factor (-1)^t: fit them with form="staggered".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import jali
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.hadrons.places import Projected, checked_momenta, checked_site, slices_from, times_wave, wave_of
from jali.lattice.base import no_field
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.sites import site_function

STAGGERED_MESONS = {
    "pion": "1",
    "scalar": "(-1)^(x + y + z)",
    "vector": "(-1)^x + (-1)^y + (-1)^z",
    "pseudovector": "(-1)^(x + y) + (-1)^(y + z) + (-1)^(z + x)",
}
"""Signs of the sink, which the literature calls PS, SC, VT and PV, with their partners: pion gamma_5 x xi_5; scalar and the pion gamma_4 gamma_5 x xi_4 xi_5;
rho and b_1; rho and a_1."""


class StaggeredMesons(Projected):
    """Correlators of the local mesons of staggered quarks: `staggered_mesons(S)` makes it. Indexed by a name of `STAGGERED_MESONS` it gives C(t) at the first
    momentum, (T,), real; `correlator` gives any momentum, complex. `values` is (momenta, T, 4), with the slice of the source first."""

    def correlator(self, name: str, momentum: Sequence[int] | None = None) -> np.ndarray:
        """C(t) of this name at a momentum, by default the first: complex, (T,). Raises ParameterError for unknown ones."""
        if not isinstance(name, str) or name not in STAGGERED_MESONS:
            raise ParameterError(
                f"a local staggered meson is one of {', '.join(STAGGERED_MESONS)}, not {value_shown(name)}"
            )
        return self.at(momentum)[:, list(STAGGERED_MESONS).index(name)]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.correlator(name).real

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Names that an index takes."""
        return list(STAGGERED_MESONS)


def staggered_mesons(
    S: Field, *, momenta: Sequence[Sequence[int]] | None = None, origin: Sequence[int] | None = None
) -> StaggeredMesons:
    """Correlators of the local mesons of a staggered propagator: a field of vectors with a batch, as `D.propagator(source)` gives it.

    `origin` is the site of the source, from which signs, times and phases count; `momenta` as for `mesons`. Raises LayoutError for fields that do not
    fit, ParameterError for origins and momenta that do not.
    """
    if not isinstance(S, Field):
        raise LayoutError(f"a propagator is a field with a batch, not {no_field(S)}")
    if len(S.element.type.shape) != 1 or S.batch is None or S.over is not ALL:
        has = "no batch" if S.batch is None else f"a batch of {S.batch}"
        raise LayoutError(
            f"a propagator of staggered quarks is a field of vectors with a batch on all sites, and {S.name} holds {S.element} with {has} over {S.over}"
        )
    lattice = S.lattice
    time, where = lattice.ndim - 1, checked_site(lattice.extents, origin)
    chosen = checked_momenta(lattice.extents, momenta)
    columns = [S.members[k] for k in range(S.batch)]
    site = np.array(where, float)
    turned = 1 - 2 * (site % 2)  # (-1)^(x - y) is the product of both signs
    values = np.array(
        [lattice.sum(_signed, columns, turned, wave_of(lattice.extents, p), site, per=time) for p in chosen],
        complex,
    )
    return StaggeredMesons(slices_from(values, where[time], 1.0), chosen, where)


@site_function
def _signed(X: Any, columns: Any, turned: Any, wave: Any, origin: Any, total: Any) -> None:
    density = sum(column[X].norm2() for column in columns)
    space = range(X.ndim - 1)
    signs = [turned[k] * (1.0 - 2.0 * (X.coordinate(k) % 2)) for k in space]
    all_of_them, ones, pairs = 1.0, 0.0, 0.0
    for k in space:
        all_of_them = all_of_them * signs[k]
        ones = ones + signs[k]
        for j in range(k):
            pairs = pairs + signs[j] * signs[k]
    total += times_wave(X, wave, origin, density * jali.vector([1.0, all_of_them, ones, pairs]))


__all__ = ["STAGGERED_MESONS", "StaggeredMesons", "staggered_mesons"]
