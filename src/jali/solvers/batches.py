"""What a solve of a field with a batch returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jali.solvers.recursion import Solution


@dataclass(frozen=True, repr=False)
class BatchSolution:
    """The solutions of a batch: `x` has all, `found[k]` is the `Solution` of member k, `len(found)` their number. `iterations` is that of the
    member that took longest; `converged` whether all have."""

    x: Any
    members: tuple[Solution, ...]

    def __getitem__(self, k: int) -> Solution:
        return self.members[k]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def iterations(self) -> int:
        """Of the member that took longest."""
        return max(member.iterations for member in self.members)

    @property
    def converged(self) -> bool:
        """Whether all members have."""
        return all(member.converged for member in self.members)

    def __repr__(self) -> str:
        counts = ", ".join(str(member.iterations) for member in self.members)
        how = "converged" if self.converged else "not all converged"
        return f"<solutions of a batch of {len(self)}, {how} in {counts} iterations: {self.x!r}>"
