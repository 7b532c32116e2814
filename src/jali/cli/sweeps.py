"""Sweeps: passes of an algorithm of `jali.gauge.algorithms` over the links, as the update of a chain of `jali run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jali.actions.protocol import Action
from jali.cli.schema import RunParameters
from jali.cli.terms import GAUGE
from jali.cli.updates import Rows, Update
from jali.gauge import GaugeField, overrelaxation_sweep
from jali.gauge.algorithms import algorithms
from jali.gauge.link_terms import LinkTerms
from jali.gauge.updates import check_subgroups
from jali.hmc import HMC, Monomial
from jali.hmc.checks import Check, check_simulation
from jali.lattice import Field, Random


class Sweeps(Update):
    """Passes of an algorithm of `jali.gauge.algorithms`, then overrelaxation; now and then a projection back to the group. Of links alone: parameters of others have no scalars."""

    def __init__(
        self, parameters: RunParameters, gauge: Action, U: GaugeField, scalars: Mapping[str, Field]
    ) -> None:
        update, ranks = parameters.update, U.lattice.communicator
        self._update, self._action, self._U = update, gauge, U
        self._every = parameters.run.reunitarise_every
        self._algorithm = algorithms()[update.algorithm]
        self._acceptance: float | None = None
        if self._algorithm.by_subgroups or update.overrelaxation:
            check_subgroups(U.n, ranks.rank == 0)
        LinkTerms.of_links(gauge, U).parts(U)  # refuses lattices on which links cannot be updated

    @staticmethod
    def title(parameters: RunParameters) -> str:
        """What a sweep is, in words."""
        update = parameters.update
        words = f"{update.heatbath} {algorithms()[update.algorithm].title}"
        return words + (f" + {update.overrelaxation} overrelaxation" if update.overrelaxation else "")

    @property
    def passes(self) -> int:
        """Updates of every link in one sweep."""
        return self._update.heatbath + self._update.overrelaxation

    def restore(self, state: Mapping[str, Any], sweep: int) -> None:
        """Sweeps keep nothing: the next one follows from links and random numbers."""

    def check(self) -> None:
        """What is wrong was raised when it was made."""

    def check_physics(self) -> list[Check]:
        """Checks the action and its force, of which staples are a part."""
        hmc = HMC({"U": self._U}, Monomial(self._action, name=GAUGE), seed=0)
        return check_simulation(hmc, reversibility=False)

    def advance(self, sweep: int, rng: Random) -> Rows:
        """One sweep."""
        update, algorithm = self._update, self._algorithm
        options = {argument: getattr(update, key) for argument, key in algorithm.options.items()}
        passes = [algorithm.sweep(self._U, self._action, rng, **options) for _ in range(update.heatbath)]
        accepted = [part for part in passes if part is not None]
        self._acceptance = sum(accepted) / len(accepted) if accepted else None
        for _ in range(update.overrelaxation):
            overrelaxation_sweep(self._U, self._action)
        if self._every and sweep % self._every == 0:
            self._U.reunitarise()
        return {}

    def in_words(self) -> list[str]:
        """What was accepted in the last sweep."""
        if self._acceptance is None:
            return []
        return [f"{self._algorithm.title} acceptance in the last sweep: {self._acceptance:.3f}"]
