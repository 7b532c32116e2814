"""Hybrid Monte Carlo: momenta, a trajectory of molecular dynamics, and an accept step that makes it exact.

S. Duane, A. Kennedy, B. Pendleton and D. Roweth, Phys. Lett. B 195 (1987) 216. The Hamiltonian is H = sum of the kinetic energies (`kinetic.py`) and of the actions. Time is that of momenta with the
density exp(-(1/2) sum_a (P^a)^2) in the basis tr(T^a T^b) = -1/2 delta_ab, T_a = lambda_a / 2: `TAU_OF_OTHERS` has that of other codes.
"""

from __future__ import annotations

import hashlib
import math
import numbers
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import jali
from jali.actions.metropolis import OFF_SPHERE, off_sphere
from jali.actions.protocol import Action, listed
from jali.codegen.arithmetics import ARITHMETICS
from jali.errors import LayoutError, ParameterError, RecordingError
from jali.files import value_shown
from jali.hmc.integrators import Level, Move, is_whole, schedule
from jali.hmc.kinetic import Kinetic, kinetic_of
from jali.hmc.monomials import Kicks, Monomial
from jali.lattice.colours import sites_of
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice
from jali.lattice.random import MOMENTA, Random
from jali.philox import philox

LARGEST_FORCE = 1e3
"""Of one variable, at the start: a larger one is taken for an action or a start that does not make sense."""

IRREVERSIBLE = 1e-2
"""A difference of fields after going back beyond which the algorithm is not exact any more."""

MANY_REJECTED = 8
"""So many trajectories in a row that are rejected with a large dH bring a hint."""

TAU_OF_OTHERS = {"Chroma, openQCD": 1.0, "QUDA, Grid, MILC": math.sqrt(2.0), "tmLQCD": 2.0}
"""What a trajectory of tau = 1 of other codes is here; they normalise momenta in other ways."""


@dataclass(frozen=True)
class Trajectory:
    """What came out of one trajectory."""

    number: int
    """From 1."""
    tau: float
    dH: float  # noqa: N815
    """H at the end less H at the beginning."""
    accepted: bool
    forced: bool
    """Whether it was accepted whatever dH was, as trajectories of the start are."""
    kinetic: float
    """Change of the kinetic energies."""
    actions: Mapping[str, float]
    """Change of each action, by the name of its monomial."""
    reversibility: float | None = None
    """Largest difference of a number of the fields after going forth and back, where it was looked at."""
    unitarity: float | None = None
    """Largest |U U^dagger - 1| before links were made unitary again, where that was done."""


@dataclass
class Force:
    """The size of a force: over all variables of a field, root of the mean square and largest, and times the step of its level."""

    monomial: str
    field: str
    level: int
    rms: float
    largest: float
    step: float
    """The largest kick of the level in one step, as a time."""

    @property
    def kick(self) -> float:
        """The largest change of a momentum in one step; forces are well integrated where it is below about 1/4."""
        return self.largest * self.step


class HMC:
    """A simulation of fields with the weight exp(-S), S the sum of the actions of `monomials`.

    ::

        hmc = HMC({"U": U}, [Monomial(wilson_action(5.7))], seed=1, tau=1.0, levels=[Level("2MN", steps=8)])
        for trajectory in hmc.run(100):
            print(trajectory.dH, trajectory.accepted)

    `fields` are all fields that the actions depend on, by the names of their parameters; those of `fixed` do not move. Monomials may be actions, which are on level 0. `levels` are the time scales, the coarsest first
    (`integrators.py`). `tau` is the length of a trajectory; with `spread` s it is drawn between (1 - s) tau and (1 + s) tau. `masses` are those of the momenta by field, 1 by default; `on_sphere` names fields of real vectors of
    length 1. The first `accept_always` trajectories are accepted whatever dH is. Every `check_reversibility`th one is also gone back; every `reunitarise`th one links are made unitary again (0: never). `seed` and `stream` are of the
    momenta and accept steps, which have random numbers of their own. Raises ParameterError and LayoutError for what does not fit together, before anything moves.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        monomials: Sequence[Monomial | Action] | Monomial | Action,
        *,
        seed: int,
        stream: int = 0,
        tau: float = 1.0,
        spread: float = 0.0,
        levels: Sequence[Level] = (Level("2MN", 10),),
        fixed: Sequence[str] = (),
        masses: Mapping[str, float] | None = None,
        on_sphere: Sequence[str] = (),
        accept_always: int = 0,
        check_reversibility: int = 0,
        reunitarise: int = 10,
    ):
        self.fields = dict(fields)
        self.tau, self.spread = _positive("tau", tau), _between("spread", spread)
        self.accept_always = _count("accept_always", accept_always)
        self.check_reversibility = _count("check_reversibility", check_reversibility)
        self.reunitarise = _count("reunitarise", reunitarise)
        self.seed, self.stream = seed, stream
        self.number = 0
        """Of trajectories so far; a simulation continues where this number and the fields are as they were."""
        self.lattice = _lattice_of(self.fields)
        _refuse_one_field_twice(self.fields)
        for said, names in (("fixed", fixed), ("on_sphere", on_sphere)):
            if isinstance(names, str):
                raise ParameterError(f"{said}= is a list of names, [{names!r}], not {names!r}")
        for name in (*fixed, *on_sphere, *(masses or {})):
            if name not in self.fields:
                raise ParameterError(
                    f"{value_shown(name)} is no field of this simulation ({', '.join(self.fields)})"
                )
        self.moving = [name for name in self.fields if name not in fixed]
        self._rng = Random.reserved(MOMENTA, seed, stream)
        given = list(monomials) if isinstance(monomials, Sequence) else [monomials]
        self.monomials = _with_names_of_their_own(
            [one if isinstance(one, Monomial) else Monomial(one) for one in given]
        )
        self.set_levels(levels)
        self._kicks = [Kicks(one, self.fields, self.moving) for one in self.monomials]
        still = set(self.moving) - {name for kicks in self._kicks for name in kicks.moving}
        if still:
            raise ParameterError(
                f"no action depends on {', '.join(sorted(still))}: leave it out, or name it in fixed="
            )
        self._kinetic: dict[str, Kinetic] = {}
        self._masses: dict[str, float] = {}
        self.momenta: dict[str, Any] = {}
        for name in self.moving:
            self._add_momenta(
                name, name in on_sphere, _positive(f"the mass of {name}", (masses or {}).get(name, 1.0))
            )
        self._saved = {name: [one.like() for one in listed(self.fields[name])] for name in self.moving}
        self._moved: dict[str, Any] = {}
        self._tau_now, self._tau_squared = self.lattice.scalar(tau), self.lattice.scalar(tau * tau)
        self._checked = False
        self._rejected = self._without_number = 0

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.monomials)
        return f"<HMC of {', '.join(self.moving)} on {self.lattice}, actions: {names}>"

    # ---- what it is made of ------------------------------------------------------------------------------

    def set_levels(self, levels: Sequence[Level]) -> None:
        """Makes the next trajectories go by other integrators or numbers of steps. Raises ParameterError as the constructor."""
        self.levels = tuple(levels) if isinstance(levels, Sequence) else (levels,)
        self._check_levels()
        self._moves = schedule(self.levels)
        self._graph: Any = None

    @property
    def moves_of_fields(self) -> int:
        """How often a trajectory moves the fields."""
        return sum(move.level < 0 for move in self._moves)

    def _check_levels(self) -> None:
        if not self.levels or not all(isinstance(one, Level) for one in self.levels):
            raise ParameterError(
                f'levels= is a list of Levels, such as [Level("2MN", 10)], not {value_shown(self.levels)}'
            )
        if not self.monomials:
            raise ParameterError("a simulation needs a Monomial")
        have = {one.level for one in self.monomials}
        for level in have:
            if level >= len(self.levels):
                raise ParameterError(
                    f"a Monomial is on level {level}, and there are {len(self.levels)} levels, from 0"
                )
        kicked_by = {k + 1 for k, one in enumerate(self.levels) if one.of_letters.kicks_next}
        for k in range(len(self.levels)):
            if k not in have and k not in kicked_by:
                raise ParameterError(f"level {k} has no Monomial: its steps would kick nothing")

    def _add_momenta(self, name: str, on_sphere: bool, mass: float) -> None:
        given = self.fields[name]
        kinetic = kinetic_of(listed(given), on_sphere)
        made = [
            Field(
                one.lattice,
                kinetic.momentum_element(one.element),
                precision=one.precision,
                over=one.over,
                batch=one.batch,
                name=f"momentum of {one.name}",
            )
            for one in listed(given)
        ]
        self._kinetic[name], self._masses[name] = kinetic, mass
        self.momenta[name] = made[0] if isinstance(given, Field) else made

    # ---- parts of a trajectory ---------------------------------------------------------------------------

    def draw_momenta(self) -> None:
        """Draws all momenta from their Gaussian distribution, those of the trajectory that comes next."""
        for kicks in self._kicks:
            kicks.renew()
        self._rng.call = self.number * len(self.moving)
        for name in self.moving:
            self._kinetic[name].draw(
                self.momenta[name], self.fields[name], self._rng, math.sqrt(self._masses[name])
            )

    def kinetic_energy(self) -> Any:
        """Of all momenta, a number that stays on the device."""
        found = [
            self.lattice.sum(
                self._kinetic[name].energy, self.momenta[name], 1.0 / self._masses[name], wait=False
            )
            for name in self.moving
        ]
        return sum(found[1:], found[0])

    def integrate(self, tau: float | None = None) -> None:
        """Moves fields and momenta over a time, by default `tau`; a negative one goes back."""
        length = self.tau if tau is None else float(tau)
        self._tau_now.assign(length)
        self._tau_squared.assign(length * length)
        if self._graph and not self._graph.is_current:
            self._graph = None
        if self._graph is None:
            self._run_moves()  # what is bound once is bound now
            self._graph = self._recorded()
        elif self._graph:
            self._graph.run()
        else:
            self._run_moves()

    def _recorded(self) -> Any:
        """A trajectory as a graph; False where it cannot be one: a force asks the host, or halos go by way of it."""
        if not all(kicks.direct for kicks in self._kicks):
            return False
        try:
            return jali.graph(self._run_moves, self.lattice)
        except RecordingError:
            return False

    def _run_moves(self) -> None:
        for move in self._moves:
            if move.level < 0:
                for name in self.moving:
                    self._kinetic[name].move(
                        self.fields[name],
                        self.momenta[name],
                        move.length,
                        self._tau_now,
                        1.0 / self._masses[name],
                    )
            elif move.shift:
                self._kick_moved(move)
            else:
                self._kick(self.momenta, move.level, move.length, self._tau_now)

    def _kick(self, momenta: Mapping[str, Any], level: int, length: float, times: Any) -> None:
        for kicks in self._kicks:
            if kicks.monomial.level == level:
                kicks.kick(momenta, length, times)
        for name in self.moving:
            if self._kinetic[name].tangent is not None:
                self._kinetic[name].tangent(momenta[name], self.fields[name])

    def _kick_moved(self, move: Move) -> None:
        """A kick with the force at fields that the force itself has moved."""
        if not self._moved:
            self._moved = {name: [one.like() for one in listed(self.fields[name])] for name in self.moving}
            self._slopes = {
                name: one.like() if isinstance(one, Field) else [p.like() for p in one]
                for name, one in self.momenta.items()
            }
        for name in self.moving:
            for kept, one in zip(self._moved[name], listed(self.fields[name]), strict=True):
                kept.assign(one)
            for slope in listed(self._slopes[name]):
                _clear(slope)
        self._kick(self._slopes, move.level, move.shift, self._tau_squared)
        for name in self.moving:
            self._kinetic[name].move(
                self.fields[name], self._slopes[name], 1.0, 1.0, 1.0 / self._masses[name]
            )
        self._kick(self.momenta, move.level, move.length, self._tau_now)
        for name in self.moving:
            for kept, one in zip(self._moved[name], listed(self.fields[name]), strict=True):
                one.assign(kept)

    # ---- trajectories ------------------------------------------------------------------------------------

    def run(self, trajectories: int) -> Iterator[Trajectory]:
        """Simulates, and yields a `Trajectory` after each; the fields are those that it left. Raises ParameterError where a force at the start is beyond `LARGEST_FORCE`."""
        count = _count("trajectories", trajectories)
        return (self.trajectory() for _ in range(count))

    def trajectory(self) -> Trajectory:
        """One trajectory with its accept step."""
        if not self._checked:
            self._check_lengths()
            self.check_forces()
            self._checked = True
        tau = self._length_of_next()
        reversibility = None
        if self.check_reversibility and (self.number + 1) % self.check_reversibility == 0:
            reversibility = self.reversibility(tau)
        self.draw_momenta()
        self._save()
        before = [self.kinetic_energy(), *self._values()]
        self.integrate(tau)
        after = [self.kinetic_energy(), *self._values()]
        kinetic, *actions = _read([b - a for a, b in zip(before, after, strict=True)])
        parts = [kinetic, *actions]
        dH = math.fsum(parts) if all(map(math.isfinite, parts)) else math.nan  # rejected
        if not math.isfinite(dH) and not all(map(math.isfinite, _read(before))):
            raise ParameterError(
                f"H was not finite before trajectory {self.number + 1}: {dict(zip(('kinetic', *(m.name for m in self.monomials)), _read(before), strict=True))}. The action is not "
                "bounded below, or fields have been set to what is no number"
            )
        self._without_number = 0 if math.isfinite(dH) else self._without_number + 1
        if self._without_number == MANY_REJECTED:
            self._restore()
            raise ParameterError(
                f"dH of the last {MANY_REJECTED} trajectories is no number: the fields run away. The action is not bounded below, or steps are too large"
            )
        uniform, _ = self._uniforms("accept")
        forced = self.number < self.accept_always
        accepted = (forced and math.isfinite(dH)) or dH <= 0 or uniform < math.exp(-dH)
        if not accepted:
            self._restore()
        self.number += 1
        unitarity = None
        if accepted and self.reunitarise and self.number % self.reunitarise == 0:
            unitarity = self._make_unitary()
        changes = dict(zip((one.name for one in self.monomials), actions, strict=True))
        self._hint_at_conventions(dH, forced)
        return Trajectory(self.number, tau, dH, accepted, forced, kinetic, changes, reversibility, unitarity)

    def reversibility(self, tau: float | None = None) -> float:
        """The largest difference of a number of the fields after a trajectory, there and back; fields and momenta are then as before."""
        length = self.tau if tau is None else tau
        self.draw_momenta()
        self._save()
        self.integrate(length)
        self.integrate(-length)
        found = max(
            self.lattice.reduce(_difference, one, kept)
            for name in self.moving
            for one, kept in zip(listed(self.fields[name]), self._saved[name], strict=True)
        )
        self._restore()
        self.draw_momenta()
        if not found < IRREVERSIBLE:
            few_bits = ARITHMETICS[self.precision].bits < 64
            raise ParameterError(
                f"a trajectory of length {length:g} and back changes the fields by {found:.3g} in {self.precision}: steps are unstable, or rounding grows too much. Take "
                f"smaller steps{', float64' if few_bits else ''} or a shorter trajectory"
            )
        return float(found)

    @property
    def precision(self) -> str:
        """The arithmetic of the fields that move."""
        return listed(self.fields[self.moving[0]])[0].precision

    def forces(self) -> list[Force]:
        """The sizes of all forces at the fields as they are."""
        found = []
        for kicks in self._kicks:
            level = kicks.monomial.level
            step = max((abs(m.length) for m in self._moves if m.level == level), default=0.0) * self.tau
            for name, fields in kicks.forces().items():
                scale = 2.0 if fields[0].element.codec == "algebra" else 1.0  # -2 tr F^2 = sum_a F_a^2
                sums = [self.lattice.reduce(_sizes, one, scale) for one in fields]
                sites = sum(sites_of(one.over, self.lattice.extents) for one in fields)
                mean = sum(total for total, _ in sums) / sites
                largest = math.sqrt(max(most for _, most in sums))
                found.append(Force(kicks.monomial.name, name, level, math.sqrt(mean), largest, step))
        return found

    def seconds_of_kicks(self, repeat: int = 3) -> list[float]:
        """Wall time of a kick by each monomial, the shortest of some; momenta and fields stay as they are."""
        found = []
        for kicks in self._kicks:
            times = []
            for _ in range(repeat + 1):  # the first one makes kernels
                self._synchronise()
                begun = time.perf_counter()
                kicks.kick(self.momenta, 0.0, self._tau_now)
                self._synchronise()
                times.append(time.perf_counter() - begun)
            found.append(min(times[1:]))
        return found

    def _synchronise(self) -> None:
        if self.lattice.gpu is not None:
            self.lattice.gpu.synchronize()
        if self.lattice.communicator.size > 1:
            self.lattice.communicator.barrier()

    def check_forces(self) -> list[Force]:
        """The sizes of all forces. Raises ParameterError for one beyond `LARGEST_FORCE`, with its monomial and site."""
        found = self.forces()
        for force in found:
            if not force.largest <= LARGEST_FORCE:
                raise ParameterError(
                    f"the force of {force.monomial} on {force.field} is {force.largest:.3g} at {self._where(force)}, beyond {LARGEST_FORCE:g}: the action or the start is not what it "
                    "should be, or steps would have to be very small"
                )
        return found

    def _check_lengths(self) -> None:
        for name in self.moving:
            if self._kinetic[name].tangent is not None:
                off = self.lattice.reduce(off_sphere, self.fields[name])
                if not off < OFF_SPHERE:
                    raise ParameterError(
                        f"on_sphere= names fields of vectors of length 1, and a length of {name} differs from 1 by {off:.3g}: divide by the lengths first"
                    )

    def _where(self, force: Force) -> str:
        (kicks,) = [one for one in self._kicks if one.monomial.name == force.monomial][:1]
        fields = kicks.forces()[force.field]
        most, text = -1.0, "some site"
        for mu, one in enumerate(fields):
            values = one[...]
            sizes = np.abs(values.reshape(*self.lattice.extents, -1)).max(-1)
            sizes = np.where(np.isfinite(sizes), sizes, np.inf)
            if sizes.max() > most:
                most = sizes.max()
                site = tuple(int(k) for k in np.unravel_index(int(sizes.argmax()), sizes.shape))
                text = f"site {site}" + (f", direction {mu}" if len(fields) > 1 else "")
        return text

    def _hint_at_conventions(self, dH: float, forced: bool) -> None:
        """Warns once where trajectories are rejected from the start."""
        if self._rejected < 0 or forced:
            return
        self._rejected = self._rejected + 1 if dH > 5 else -1
        if self._rejected == MANY_REJECTED:
            self._rejected = -1
            if self.lattice.communicator.rank:  # one rank speaks for all
                return
            warnings.warn(
                f"the first {MANY_REJECTED} trajectories have dH above 5: take more steps, or a shorter trajectory. tau = {self.tau:g} is the time of unit Gaussian momenta with T_a = lambda_a / 2; "
                f"tau = 1 is {', '.join(f'{factor:.4g} here of {codes}' for codes, factor in TAU_OF_OTHERS.items())}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _values(self) -> list[Any]:
        return [kicks.value() for kicks in self._kicks]

    def _save(self) -> None:
        for name in self.moving:
            for kept, one in zip(self._saved[name], listed(self.fields[name]), strict=True):
                kept.assign(one)

    def _restore(self) -> None:
        for name in self.moving:
            for kept, one in zip(self._saved[name], listed(self.fields[name]), strict=True):
                one.assign(kept)

    def _make_unitary(self) -> float | None:
        worst = None
        for name in self.moving:
            given = self.fields[name]
            if hasattr(given, "reunitarise") and not isinstance(given, Field):
                worst = max(worst or 0.0, float(given.unitarity_deviation()))
                given.reunitarise()
        return worst

    def _length_of_next(self) -> float:
        if not self.spread:
            return self.tau
        uniform, _ = self._uniforms("length")
        return self.tau * (1.0 + self.spread * (2.0 * uniform - 1.0))

    def _uniforms(self, purpose: str) -> tuple[float, float]:
        return host_uniforms(purpose, self.seed, self.stream, self.number)


def host_uniforms(purpose: str, seed: int, stream: int, number: int) -> tuple[float, float]:
    """Two numbers, uniform between 0 and 1, that all ranks draw alike on the host for the decision `number` of a purpose: by Philox, under a key that no `Random` has."""
    key = int.from_bytes(hashlib.sha256(f"{purpose} {seed} {stream}".encode()).digest()[:8], "little")
    a, b, c, d = (int(word) for word in philox((number, number >> 32, 0, 0), key))
    first, second = (((high << 20 | low >> 12) + 0.5) * 2.0**-52 for high, low in ((a, b), (c, d)))
    return first, second


def _read(values: Sequence[Any]) -> list[float]:
    """Numbers and such that stayed on the device, for which the host waits once."""
    return [float(one) for one in jali.read(*values)]


@jali.site_function
def _clear(X: Any, P: Any) -> None:
    P[X] = 0.0 * P[X]


@jali.site_function
def _difference(X: Any, a: Any, b: Any, high: Any) -> None:
    high.max(jali.sqrt((a[X] - b[X]).norm2()))


@jali.site_function
def _sizes(X: Any, F: Any, scale: Any, total: Any, high: Any) -> None:
    size = scale * F[X].norm2()
    total += size
    high.max(size)


def _lattice_of(fields: Mapping[str, Any]) -> Lattice:
    if not fields:
        raise ParameterError(
            'a simulation has fields by the names that actions have for them: HMC({"U": U}, ...)'
        )
    found: Lattice | None = None
    for name, given in fields.items():
        several = given if isinstance(given, Field) else getattr(given, "fields", given)
        one = (
            several
            if isinstance(several, Field)
            else next(iter(several), None)
            if isinstance(several, Sequence)
            else None
        )
        if not isinstance(name, str) or not isinstance(one, Field):
            raise ParameterError(f"{value_shown(name)} is a field or a gauge field, not {value_shown(given)}")
        if found is not None and one.lattice is not found:
            raise LayoutError(
                f"{name} lives on another lattice than the fields before it: {one.lattice}, and {found}"
            )
        found = one.lattice
    assert found is not None
    return found


def _refuse_one_field_twice(fields: Mapping[str, Any]) -> None:
    """It would move twice, with two momenta."""
    names: dict[int, str] = {}
    for name, given in fields.items():
        for one in listed(given):
            memory = one if one.view_of is None else one.view_of
            if names.setdefault(memory.serial, name) != name:
                raise ParameterError(
                    f"{names[memory.serial]} and {name} are the same field: each name of a simulation is another one's"
                )


def _with_names_of_their_own(monomials: list[Monomial]) -> list[Monomial]:
    names: dict[str, int] = {}
    for one in monomials:
        names[one.name] = count = names.get(one.name, 0) + 1
        if count > 1:
            one.name = f"{one.name} ({count})"
    return monomials


def _count(name: str, value: Any) -> int:
    if not is_whole(value, 0):
        raise ParameterError(f"{name} is a whole number from 0, not {value_shown(value)}")
    return int(value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (0 < float(value) < math.inf):
        raise ParameterError(f"{name} is a positive number, not {value_shown(value)}")
    return float(value)


def _between(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < 1:
        raise ParameterError(f"{name} is from 0 to below 1, not {value_shown(value)}")
    return float(value)
