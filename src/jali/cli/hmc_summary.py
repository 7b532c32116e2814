"""The trajectories of a run, read back and judged: dH, acceptance, reversibility, forces, and the steps that the forces suggest.

Checks that hold exactly: <exp(-dH)> = 1, and for a nearly Gaussian dH the acceptance erfc(sqrt(<dH>) / 2) (S. Gupta et al., Phys. Lett. B 242 (1990) 437). Reads and draws
nothing; `report_data` reads the tables whose columns are here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.cli.flow_summary import estimate_numbers
from jali.cli.step_tuning import steps_for
from jali.statistics import Estimate, format_value, mean_error

TRAJECTORIES, FORCES, KICKS = "trajectories", "forces", "kicks"
SCALAR_FORCES = "scalar_forces"
"""Tables of a run."""

TRAJECTORY_COLUMNS = (
    "sweep",
    "tau",
    "steps",
    "dH",
    "accepted",
    "forced",
    "reversibility",
    "unitarity",
)
"""A row per trajectory; `steps` are those of the first level."""

FORCE_COLUMNS = ("sweep", "term", "level", "rms", "largest", "step")
"""Forces on links: a row per term of the action, counted from 0 as in the parameters; `step` is the longest kick of its level, as a time."""

SCALAR_FORCE_COLUMNS = ("sweep", "term", "scalar", "level", "rms", "largest", "step")
"""Forces on scalars: a row per term and scalar, both counted from 0 as in the parameters."""

KICK_COLUMNS = ("sweep", "term", "seconds")
"""Wall times, so not the same in equal runs; a row per term for each program that went on with the run."""

WANTED_KICK = 0.25
"""Largest change of a momentum in one step with which any start goes well: where acceptance says nothing yet."""

WANTED_ACCEPTANCE = 0.8
"""Where the cost of an independent configuration is about least."""

LEAST_TRAJECTORIES = 10
"""From which the steps for an acceptance are estimated."""

APART = 2.0
"""Terms whose steps differ by this factor belong on different levels."""


@dataclass(frozen=True)
class TermForces:
    """The force of a term on a field: mean of the rms, largest ever, longest kick of its level, seconds of a kick by the term, of all its fields."""

    name: str
    level: int
    rms: float
    largest: float
    step: float
    seconds: float
    scalar: str = ""
    """The scalar on which it acts; nothing for links."""

    @property
    def title(self) -> str:
        """The term, and the scalar."""
        return f"{self.name}, on {self.scalar}" if self.scalar else self.name

    @property
    def kick(self) -> float:
        """The largest change of a momentum in one step."""
        return self.largest * self.step


@dataclass(frozen=True, eq=False)
class HmcSummary:
    """Trajectories after thermalisation, and forces.

    Attributes:
        dH, exp_minus_dH, acceptance: means; None before the first trajectory after thermalisation.
        reversibility: the largest difference of a number of the fields after going forth and back; None where it was not looked at.
        unitarity: the largest |U U^dagger - 1| before links were made unitary again; None where they were not.
        steps: of each level; the first one is that of the last trajectory.
        forces: a `TermForces` per term and field; empty where none were recorded.
        suggestions: sentences on steps and levels.
    """

    dH: Estimate | None  # noqa: N815
    exp_minus_dH: Estimate | None  # noqa: N815
    acceptance: Estimate | None
    reversibility: float | None
    unitarity: float | None
    steps: tuple[int, ...]
    forces: tuple[TermForces, ...]
    suggestions: tuple[str, ...]

    @property
    def expected_acceptance(self) -> float | None:
        """erfc(sqrt(<dH>) / 2)."""
        return None if self.dH is None else math.erfc(math.sqrt(max(self.dH.mean, 0.0)) / 2.0)

    def as_dict(self) -> dict[str, Any]:
        """As plain numbers for JSON."""

        def numbers(one: Estimate | None) -> dict[str, float | None] | None:
            return None if one is None else estimate_numbers(one, 1)

        return {
            "dH": numbers(self.dH),
            "exp_minus_dH": numbers(self.exp_minus_dH),
            "acceptance": numbers(self.acceptance),
            "expected_acceptance": self.expected_acceptance,
            "reversibility": self.reversibility,
            "unitarity": self.unitarity,
            "steps": list(self.steps),
            "forces": [
                {
                    "term": f.name,
                    "scalar": f.scalar or None,
                    "level": f.level,
                    "rms": f.rms,
                    "largest": f.largest,
                    "kick": f.kick,
                    "seconds": f.seconds if math.isfinite(f.seconds) else None,
                }
                for f in self.forces
            ],
            "suggestions": list(self.suggestions),
        }

    def in_words(self) -> list[str]:
        """Lines of the end of a run."""
        if self.acceptance is None or self.exp_minus_dH is None or self.dH is None:
            return []
        lines = [
            f"acceptance {format_value(self.acceptance.mean, self.acceptance.error)}, {self.expected_acceptance:.3f} expected of <dH> = "
            f"{format_value(self.dH.mean, self.dH.error)}; <exp(-dH)> = {format_value(self.exp_minus_dH.mean, self.exp_minus_dH.error)}"
        ]
        return [*lines, *self.suggestions]


def summarise_trajectories(
    trajectories: Mapping[str, NDArray[np.float64]],
    forces: Mapping[str, NDArray[np.float64]] | None,
    kicks: Mapping[str, NDArray[np.float64]] | None,
    thermalisation: int,
    steps: Sequence[int],
    order: int,
    names: Sequence[str],
    scalar_forces: Mapping[str, NDArray[np.float64]] | None = None,
    scalars: Sequence[str] = (),
) -> HmcSummary:
    """The summary of the tables of a run; `steps` are those of the parameters, `order` that of the first integrator, `names` those of the terms, `scalars` those of the scalars."""
    after = trajectories["sweep"] > thermalisation
    dH = trajectories["dH"][after]
    infinite = np.where(np.isfinite(dH), dH, np.inf)  # an empty field: the trajectory left all numbers
    known = len(dH) > 0
    finite = known and bool(np.isfinite(dH).all())
    first = int(trajectories["steps"][-1]) if len(trajectories["steps"]) else steps[0]
    now = (first, *steps[1:])
    found = _term_forces(forces, scalar_forces, kicks, names, scalars)
    suggestions = suggest(found, now)
    if finite and len(dH) >= LEAST_TRAJECTORIES:
        seen = [(int(n), float(x)) for n, x in zip(trajectories["steps"][after], dH, strict=True)]
        enough = steps_for(WANTED_ACCEPTANCE, seen, order)
        suggestions = [
            f"by dH an acceptance of {WANTED_ACCEPTANCE:g} needs {enough} steps of the first level, which has {first}",
            *suggestions,
        ]
    return HmcSummary(
        mean_error(dH) if finite else None,
        mean_error(np.exp(-np.clip(infinite, -700.0, None))) if known else None,
        mean_error(trajectories["accepted"][after]) if known else None,
        _largest(trajectories["reversibility"]),
        _largest(trajectories["unitarity"]),
        now,
        found,
        tuple(suggestions),
    )


def suggest(forces: Sequence[TermForces], steps: Sequence[int]) -> list[str]:
    """What sizes of forces say about steps and levels."""
    strong = [max(some, key=lambda f: f.largest) for some in _by_term(forces)]
    strong = [f for f in strong if f.largest > 0]
    if not strong:
        return []
    largest = [max((f.kick for f in strong if f.level == k), default=0.0) for k in range(len(steps))]
    wanted, finer = [], 1.0
    for own, kick in zip(steps, largest, strict=True):
        # Steps of a level are counted within one of the level around it.
        wanted.append(max(1, math.ceil(own * (kick / WANTED_KICK) / finer)) if kick else own)
        finer *= wanted[-1] / own
    said = [
        f"the largest kicks of the levels are {_listed(largest)}; {WANTED_KICK:g}, on the safe side, needs steps = {wanted}"
    ]
    groups: list[list[TermForces]] = []
    for force in sorted(strong, key=lambda f: f.largest):
        if groups and force.largest < APART * groups[-1][0].largest:
            groups[-1].append(force)
        else:
            groups.append([force])
    is_now = [{f.level for f in some} for some in groups] == [{k} for k in sorted({f.level for f in strong})]
    if len(strong) > 1 and not is_now:
        levels = "; ".join(
            f"level {k}: {', '.join(f.name for f in some)}, steps of about {WANTED_KICK / some[-1].largest:.2g}"
            for k, some in enumerate(groups)
        )
        said.append(f"by their largest forces the terms belong on {levels}")
    return said


def _by_term(forces: Sequence[TermForces]) -> list[list[TermForces]]:
    """The forces of each term, which is on one level, on all its fields."""
    return [[f for f in forces if f.name == name] for name in dict.fromkeys(f.name for f in forces)]


def _term_forces(
    forces: Mapping[str, NDArray[np.float64]] | None,
    scalar_forces: Mapping[str, NDArray[np.float64]] | None,
    kicks: Mapping[str, NDArray[np.float64]] | None,
    names: Sequence[str],
    scalars: Sequence[str],
) -> tuple[TermForces, ...]:
    found = []
    for k, name in enumerate(names):
        times = kicks["seconds"][kicks["term"] == k] if kicks is not None else np.empty(0)
        rows = [("", forces, forces["term"] == k)] if forces is not None else []
        if scalar_forces is not None:
            of_term = scalar_forces["term"] == k
            rows += [
                (s, scalar_forces, of_term & (scalar_forces["scalar"] == m)) for m, s in enumerate(scalars)
            ]
        for scalar, of, own in rows:
            if own.any():
                found.append(
                    TermForces(
                        name,
                        int(of["level"][own][-1]),
                        float(of["rms"][own].mean()),
                        float(of["largest"][own].max()),
                        float(of["step"][own][-1]),
                        float(times[-1]) if len(times) else math.nan,
                        scalar,
                    )
                )
    return tuple(found)


def _largest(values: NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.2g}" for number in numbers)
