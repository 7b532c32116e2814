"""Fields between kernels, made once for an operator and used again."""

from __future__ import annotations

from jali.lattice.domain import Domain
from jali.lattice.field import Field


class KeptFields:
    """Fields by name, like those that an operator is applied to."""

    def __init__(self) -> None:
        self._fields: dict[str, Field] = {}

    def like(self, name: str, psi: Field, over: Domain) -> Field:
        """A field like psi on a domain, the same one as long as psi is of one kind; never psi itself."""
        known = self._fields.get(name)
        if known is None or known is psi or not known.is_like(psi, over=over):
            known = self._fields[name] = psi.like(over=over)
        return known
