"""What moves a chain of `jali run` by one sweep: passes of an algorithm over the links (`sweeps`), or a trajectory of hybrid Monte Carlo (`trajectories`).

An update has the links and all else that it needs, keeps what a checkpoint must hold in `state`, and gives rows of tables of its own. Every method is called by all ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from jali.actions.protocol import Action
from jali.cli.schema import RunParameters
from jali.gauge import GaugeField
from jali.hmc.checks import Check
from jali.lattice import Field, Random

Rows = Mapping[str, Sequence[Sequence[float | str | None]]]
"""New rows by the name of their table."""


class Update(ABC):
    """An update of all fields. Made of parameters, the action of [gauge], links and scalars by their names; raises ParameterError and LayoutError for what does not fit."""

    @abstractmethod
    def __init__(
        self, parameters: RunParameters, gauge: Action, U: GaugeField, scalars: Mapping[str, Field]
    ) -> None: ...

    @staticmethod
    @abstractmethod
    def title(parameters: RunParameters) -> str:
        """What a sweep is, in words."""

    @property
    @abstractmethod
    def passes(self) -> int:
        """Updates of every link in one sweep."""

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON values that are equal on all ranks."""
        return {}

    @abstractmethod
    def restore(self, state: Mapping[str, Any], sweep: int) -> None:
        """Goes on after this sweep with a state of a checkpoint. Raises KeyError, TypeError and ValueError for what is none."""

    @abstractmethod
    def check(self) -> None:
        """Raises ParameterError before the first sweep for what would only fail in it."""

    @abstractmethod
    def check_physics(self) -> list[Check]:
        """Checks actions, forces and trajectories at the links as they are. Raises ParameterError for what fails."""

    @abstractmethod
    def advance(self, sweep: int, rng: Random) -> Rows:
        """Sweep number `sweep`, by the random numbers of the chain."""

    def in_words(self) -> list[str]:
        """Lines of the end of a run."""
        return []
