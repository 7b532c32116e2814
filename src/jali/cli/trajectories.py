"""Hybrid Monte Carlo as the update of a chain of `jali run`: a trajectory a sweep, and the tables of trajectories and forces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jali.actions.protocol import Action
from jali.cli.hmc_summary import FORCES, KICKS, SCALAR_FORCES, TRAJECTORIES
from jali.cli.scalars import GAUGE_FIELD, names_on_sphere, representations_of
from jali.cli.schema import RunParameters
from jali.cli.step_tuning import StepTuning
from jali.cli.terms import depends_on_links, make_monomials
from jali.cli.updates import Rows, Update
from jali.gauge import GaugeField
from jali.hmc import HMC, Level
from jali.hmc.checks import Check, check_simulation
from jali.io.parallel import raised_alike
from jali.lattice import Field, Random


class Trajectories(Update):
    """Trajectories of hybrid Monte Carlo, with steps that thermalisation may find."""

    def __init__(
        self, parameters: RunParameters, gauge: Action, U: GaugeField, scalars: Mapping[str, Field]
    ) -> None:
        hmc, update, run = parameters.hmc, parameters.update, parameters.run
        self._every = hmc.forces_every
        self._timed = False
        levels = levels_of(parameters)
        self._scalars = hmc.scalars
        self._moves_links = depends_on_links(hmc.terms)
        self.hmc = HMC(
            {GAUGE_FIELD: U, **scalars},
            make_monomials(hmc.terms, hmc.scalars, gauge, len(levels) - 1),
            seed=run.seed,
            stream=run.stream,
            tau=hmc.tau,
            spread=hmc.spread,
            levels=levels,
            fixed=[] if self._moves_links else [GAUGE_FIELD],
            masses={GAUGE_FIELD: hmc.mass, **{one["name"]: one["mass"] for one in hmc.scalars}},
            on_sphere=names_on_sphere(hmc.scalars),
            accept_always=min(hmc.accept_always, update.thermalisation),
            check_reversibility=hmc.check_reversibility,
            reunitarise=run.reunitarise_every,
        )
        self._tuning: StepTuning | None = None
        if hmc.tune_steps:
            self._tuning = StepTuning(hmc.tune_steps, levels[0].of_letters.order, update.thermalisation)

    @staticmethod
    def title(parameters: RunParameters) -> str:
        """What a trajectory is, in words."""
        hmc = parameters.hmc
        levels = " x ".join(f"{one.steps} {one.of_letters.name}" for one in levels_of(parameters))
        found = f", tuned for {hmc.tune_steps:g}" if hmc.tune_steps else ""
        still = "" if depends_on_links(hmc.terms) else ", links stay as they are"
        return f"hybrid Monte Carlo, tau = {hmc.tau:g}, steps {levels}{found}{still}"

    @property
    def passes(self) -> int:
        """Moves of the links in one trajectory."""
        return self.hmc.moves_of_fields if self._moves_links else 0

    @property
    def state(self) -> dict[str, Any]:
        """The steps of the first level, and what they are found from."""
        if self._tuning is None:
            return {}
        return {"steps": self.hmc.levels[0].steps, "tuning": self._tuning.state}

    def restore(self, state: Mapping[str, Any], sweep: int) -> None:
        """Goes on after this trajectory."""
        self.hmc.number = sweep
        if self._tuning is not None:
            self._tuning.restore(state["tuning"])
            self._take_steps(int(state["steps"]))

    def check(self) -> None:
        """Raises ParameterError for a force that no step can follow, and what smearing refuses."""
        self.hmc.check_forces()

    def check_physics(self) -> list[Check]:
        """Checks all terms, their forces, and a trajectory there and back."""
        return check_simulation(self.hmc, representations=representations_of(self._scalars))

    def advance(self, sweep: int, rng: Random) -> Rows:
        """One trajectory, whose random numbers follow from its number alone; now and then sizes of forces before it."""
        with raised_alike():
            return self._advance(sweep)

    def _advance(self, sweep: int) -> Rows:
        rows: dict[str, list[Sequence[float | str | None]]] = {}
        if self._every and sweep % self._every == 0:
            terms = [one.name for one in self.hmc.monomials]
            scalars = [one["name"] for one in self._scalars]
            found = [(terms.index(f.monomial), f) for f in self.hmc.forces()]
            rows[FORCES] = [
                (sweep, k, f.level, f.rms, f.largest, f.step) for k, f in found if f.field == GAUGE_FIELD
            ]
            rows[SCALAR_FORCES] = [
                (sweep, k, scalars.index(f.field), f.level, f.rms, f.largest, f.step)
                for k, f in found
                if f.field != GAUGE_FIELD
            ]
        if not self._timed:  # once by each program that goes on with the run
            rows[KICKS] = [(sweep, k, seconds) for k, seconds in enumerate(self.hmc.seconds_of_kicks())]
            self._timed = True
        steps = self.hmc.levels[0].steps
        one = self.hmc.trajectory()
        dH = one.dH if math.isfinite(one.dH) else None
        rows[TRAJECTORIES] = [
            (sweep, one.tau, steps, dH, int(one.accepted), int(one.forced), one.reversibility, one.unitarity)
        ]
        if self._tuning is not None:
            self._take_steps(self._tuning.next_steps(sweep, steps, one.dH))
        return rows

    def in_words(self) -> list[str]:
        """The steps that were found."""
        if self._tuning is None:
            return []
        return [f"steps of the first level: {self.hmc.levels[0].steps}"]

    def _take_steps(self, steps: int) -> None:
        first, *rest = self.hmc.levels
        if steps != first.steps:
            self.hmc.set_levels([replace(first, steps=steps), *rest])


def levels_of(parameters: RunParameters) -> list[Level]:
    """The levels of the parameters, the coarsest first."""
    hmc = parameters.hmc
    names = hmc.integrator * len(hmc.steps) if len(hmc.integrator) == 1 else hmc.integrator
    return [Level(name, steps) for name, steps in zip(names, hmc.steps, strict=True)]
