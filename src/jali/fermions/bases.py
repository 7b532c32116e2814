"""Bases of gamma matrices: spinors in those of other codes and books.

jali's basis is that of DeGrand and Rossi (`jali.fermions.spin`). A basis of another name has gamma'_mu = R gamma_mu R^dagger with a unitary R, and
psi' = R psi:

| name | gamma_1, gamma_2, gamma_3 | gamma_4 | gamma_1 gamma_2 gamma_3 gamma_4 |
|---|---|---|---|
| "DeGrand-Rossi" | [[0, B_k], [B_k^dagger, 0]], B = (i sigma_1, -i sigma_2, i sigma_3) | [[0, 1], [1, 0]] | diag(1, 1, -1, -1) |
| "Dirac-Pauli" | [[0, -i sigma_k], [i sigma_k, 0]] | diag(1, 1, -1, -1) | [[0, -1], [-1, 0]] |
| "UKQCD" | [[0, i sigma_k], [-i sigma_k, 0]] | diag(1, 1, -1, -1) | [[0, 1], [1, 0]] |
| "chiral" | [[0, -i sigma_k], [i sigma_k, 0]] | [[0, 1], [1, 0]] | diag(1, 1, -1, -1) |
| "tmLQCD" | [[0, -i sigma_k], [i sigma_k, 0]] | [[0, -1], [-1, 0]] | diag(-1, -1, 1, 1) |

"chiral" is that of C. Gattringer and C. B. Lang, Quantum Chromodynamics on the Lattice (2010), appendix A.2; "UKQCD" is QUDA's and Chroma's name.
jali's gamma_5 is the last column in each of them. tmLQCD's gamma_5, and QUDA's in the basis of DeGrand and Rossi, have the opposite sign: what
goes with gamma_5 alone, such as a twisted mass, changes sign between the two. R is fixed up to a phase, which no bilinear of spinors knows.
docs/notes/dirac-conventions.md says which code has which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError
from jali.fermions.spin import SpinMatrix
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.field import Field
from jali.lattice.sites import site_function

_ROOT = np.sqrt(0.5)

BASES = {
    "DeGrand-Rossi": SpinMatrix(np.eye(4)),
    "Dirac-Pauli": SpinMatrix(_ROOT * np.array([[0, 1, 0, 1], [-1, 0, -1, 0], [0, -1, 0, 1], [1, 0, -1, 0]])),
    "UKQCD": SpinMatrix(_ROOT * np.array([[0, 1, 0, 1], [-1, 0, -1, 0], [0, 1, 0, -1], [-1, 0, 1, 0]])),
    "chiral": SpinMatrix([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]]),
    "tmLQCD": SpinMatrix([[0, 0, 0, 1], [0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0]]),
}
"""The matrices R, by the names of bases."""


def to_basis(psi: Field, name: str, out: Field | None = None) -> Field:
    """R psi: a spinor field of jali's basis in the basis `name`, written into `out` (which may be psi), or into a new field.

    Raises ParameterError for unknown bases, LayoutError for fields that do not hold spinors or do not fit together.
    """
    return _rotated(psi, _matrix_of(name), out)


def from_basis(psi: Field, name: str, out: Field | None = None) -> Field:
    """R^dagger psi: a spinor field of the basis `name` in jali's, written into `out` (which may be psi), or into a new field.

    Raises ParameterError for unknown bases, LayoutError for fields that do not hold spinors or do not fit together.
    """
    return _rotated(psi, _matrix_of(name).dagger(), out)


def _matrix_of(name: Any) -> SpinMatrix:
    if not isinstance(name, str) or name not in BASES:
        raise ParameterError(f"a basis is one of {', '.join(BASES)}, not {value_shown(name)}")
    return BASES[name]


def _rotated(psi: Field, matrix: SpinMatrix, out: Field | None) -> Field:
    for field in (psi,) if out is None else (psi, out):
        if not isinstance(field, Field):
            raise LayoutError(f"a basis is that of a field of spinors, not of {no_field(field)}")
        if not field.element.spinor:
            raise LayoutError(
                f"a basis is that of a field of spinors, and {field.name} holds {field.element}"
            )
    out = psi.like() if out is None else out
    for name in ("element", "over", "batch", "boundary"):
        mine, theirs = getattr(psi, name), getattr(out, name)
        if mine != theirs:
            raise LayoutError(
                f"a result fits its source {psi.name}: its {name} is {mine}, and that of {out.name} is {theirs}"
            )
    _rotate(out, psi, matrix)
    return out


@site_function
def _rotate(X: Any, out: Any, psi: Any, matrix: SpinMatrix) -> None:
    out[X] = matrix * psi[X]


__all__ = ["BASES", "from_basis", "to_basis"]
