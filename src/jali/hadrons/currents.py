"""The mass of a quark from its axial current."""

from __future__ import annotations

import numpy as np

from jali.errors import LayoutError
from jali.fermions import gamma, gamma5
from jali.files import value_shown
from jali.hadrons.mesons import Mesons


def pcac_mass(found: Mesons) -> np.ndarray:
    """m(t) = [C_AP(t + 1) - C_AP(t - 1)] / (4 C_PP(t)), (T,), by which d_mu A_mu = 2 m P defines the mass of a quark.

    A is psibar gamma_t gamma_5 psi, P psibar gamma_5 psi at the sink, and P the source (C. Gattringer and C. B. Lang, Quantum Chromodynamics on the
    Lattice (2010), chapter 9, unrenormalised and not improved). It is flat away from the source; entries beside the source, 0, 1 and T - 1, touch it.
    Correlators are those of momentum zero, one of the momenta of `mesons`. Raises ParameterError where it is none of them.
    """
    if not isinstance(found, Mesons):
        raise LayoutError(f"a PCAC mass is that of correlators of mesons(S), not of {value_shown(found)}")
    rest = (0,) * (len(found.origin) - 1)  # others would need the currents of space, too
    current = gamma[len(found.origin) - 1] * gamma5
    axial, density = found.correlator(current, "g5", rest).real, found.correlator("g5", None, rest).real
    return pcac_mass_of(axial, density)


def pcac_mass_of(axial: np.ndarray, density: np.ndarray) -> np.ndarray:
    """m(t) of the correlators C_AP and C_PP, (T,): `pcac_mass` of means, too."""
    return (np.roll(axial, -1) - np.roll(axial, 1)) / (4 * density)


__all__ = ["pcac_mass"]
