"""Integrators of molecular dynamics, as lists of letters, and the schedule that nested ones make of a trajectory.

A step of length 1 is a list of letters with coefficients: U moves the fields, P kicks the momenta by the forces of a level. All here are symmetric, so that a
trajectory is reversible, and preserve area, since each letter does. Sources: H. Omelyan, I. Mryglod and R. Folk, Comput. Phys. Commun. 151 (2003) 272, for 2MN and 4MN5; P. Silva,
A. Kennedy, M. Clark, Phys. Rev. D 88 (2013) 071503, and H. Yin and R. Mawhinney, arXiv:1111.5059, for the force gradient; J. Sexton and D. Weingarten, Nucl. Phys. B 380 (1992) 665, for levels.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jali.errors import ParameterError
from jali.files import value_shown

Letter = tuple[Any, ...]
"""("U", c), ("P", c), ("P", c, s): a kick with the force at fields moved by -s F first; ("G", c): a kick of the next finer level."""


@dataclass(frozen=True)
class Integrator:
    """An entry of `INTEGRATORS`: the letters of one step of length 1, in their order.

    ("U", c) moves the fields over c, ("P", c) kicks the momenta over c by the forces of the level, ("P", c, s) by those at fields that have been moved by -s F, ("G", c) by the
    forces of the next level, which then has no integrator of its own. `order` is the power of the step by which std(dH) falls. Raises ParameterError for letters that are no
    symmetric step.
    """

    name: str
    order: int
    letters: tuple[Letter, ...]

    def __post_init__(self) -> None:
        kinds = {"U": 0.0, "P": 0.0, "G": 0.0}
        for letter in self.letters:
            good = isinstance(letter, tuple) and 2 <= len(letter) <= 3 and letter[0] in kinds
            if not good or not all(isinstance(c, numbers.Real) and math.isfinite(c) for c in letter[1:]):
                raise ParameterError(
                    f'a letter of an integrator is ("U", c), ("P", c), ("P", c, s) or ("G", c), not {value_shown(letter)}'
                )
            if len(letter) == 3 and letter[0] != "P":
                raise ParameterError(f"only kicks P are taken at moved fields, not {value_shown(letter)}")
            kinds[letter[0]] += letter[1]
        for kind, total in kinds.items():
            if (kind != "G" or total) and abs(total - 1.0) > 1e-12:
                raise ParameterError(
                    f"the coefficients of {kind} in the integrator {self.name} add up to {total:.15g}; a step of length 1 has 1"
                )
        turned = self.letters[::-1]
        same = all(
            a[0] == b[0]
            and len(a) == len(b)
            and all(abs(x - y) < 1e-12 for x, y in zip(a[1:], b[1:], strict=True))
            for a, b in zip(self.letters, turned, strict=True)
        )
        if not same:
            raise ParameterError(
                f"the integrator {self.name} is not symmetric: read backwards it must be the same, else trajectories are not reversible"
            )

    @property
    def kicks_next(self) -> bool:
        """Whether it kicks by the forces of the next level as well."""
        return any(letter[0] == "G" for letter in self.letters)


def _mirrored(*half: Letter) -> tuple[Letter, ...]:
    """Letters up to the middle one, and back."""
    return (*half, *half[-2::-1])


_LAMBDA = 0.1931833275037836  # of the smallest error of second order with two kicks
_R = (0.08398315262876693, 0.2539785108410595, 0.6822365335719091, -0.03230286765269967)
_RHO, _VARTHETA, _THETA, _LAM = (
    0.2750081212332419,
    -0.08442961950707149,
    -0.1347950099106792,
    0.3549000571574260,
)
_ALPHA = _BETA = 0.1  # of MILC's 3G1F

INTEGRATORS = {
    "leapfrog": Integrator("leapfrog", 2, _mirrored(("P", 0.5), ("U", 1.0))),
    "2MN": Integrator("2MN", 2, _mirrored(("P", _LAMBDA), ("U", 0.5), ("P", 1 - 2 * _LAMBDA))),
    "2MN-position": Integrator(
        "2MN-position", 2, _mirrored(("U", _LAMBDA), ("P", 0.5), ("U", 1 - 2 * _LAMBDA))
    ),
    "4MN5": Integrator(
        "4MN5",
        4,
        _mirrored(
            ("P", _R[0]),
            ("U", _R[1]),
            ("P", _R[2]),
            ("U", _R[3]),
            ("P", 0.5 - _R[0] - _R[2]),
            ("U", 1 - 2 * (_R[1] + _R[3])),
        ),
    ),
    "4MN5-position": Integrator(
        "4MN5-position",
        4,
        _mirrored(
            ("U", _RHO),
            ("P", _VARTHETA),
            ("U", _THETA),
            ("P", _LAM),
            ("U", 0.5 - _RHO - _THETA),
            ("P", 1 - 2 * (_LAM + _VARTHETA)),
        ),
    ),
    "force-gradient": Integrator(
        "force-gradient", 4, _mirrored(("P", 1 / 6), ("U", 0.5), ("P", 2 / 3, 1 / 24))
    ),
    "3G1F": Integrator(
        "3G1F",
        2,
        _mirrored(
            ("U", (1 / 6 - _ALPHA / 3) / 2),
            ("G", 1 / 6),
            ("U", (1 / 3 + _ALPHA / 3 - _BETA) / 2),
            ("P", 1 / 2),
            ("U", (_ALPHA / 3 + _BETA) / 2),
            ("G", 1 / 6),
            ("U", (1 / 3 - 2 * _ALPHA / 3) / 2),
            ("G", 1 / 6),
            ("U", (1 / 3 + 2 * _ALPHA / 3) / 2),
        ),
    ),
}
"""By name. 2MN and 4MN5 begin with a kick, which two steps share; the `-position` versions begin with the fields. 3G1F kicks once by its own forces for three kicks of the next level."""


def is_whole(value: Any, least: int) -> bool:
    """Whether something is a whole number, of Python or NumPy, from the least one on."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


@dataclass(frozen=True)
class Level:
    """One time scale: an integrator, by its name or as an `Integrator`, and how many steps it takes over each move of the level around it, the whole trajectory for
    the first."""

    integrator: Integrator | str = "2MN"
    steps: int = 1

    def __post_init__(self) -> None:
        named = isinstance(self.integrator, str) and self.integrator in INTEGRATORS
        if not isinstance(self.integrator, Integrator) and not named:
            raise ParameterError(
                f"integrators are {', '.join(INTEGRATORS)}, or an Integrator of letters, not {value_shown(self.integrator)}"
            )
        if not is_whole(self.steps, 1):
            raise ParameterError(
                f"a level takes a whole number of steps from 1, not {value_shown(self.steps)}"
            )

    @property
    def of_letters(self) -> Integrator:
        """The integrator itself."""
        return self.integrator if isinstance(self.integrator, Integrator) else INTEGRATORS[self.integrator]


@dataclass(frozen=True)
class Move:
    """A part of a trajectory: the fields move over `length` times tau, or the momenta are kicked over it by the forces of a level, at fields moved by -`shift` tau^2 F."""

    length: float
    level: int = -1  # of a kick; -1: the fields move
    shift: float = 0.0


def schedule(levels: Sequence[Level]) -> tuple[Move, ...]:
    """The moves of a trajectory in order, of nested levels, the outermost first. Moves of one kind that follow one another are one."""
    moves: list[Move] = []
    for move in _moves(levels, 0, 1.0):
        _append(moves, move)
    return tuple(moves)


def _moves(levels: Sequence[Level], level: int, length: float) -> Iterable[Move]:
    if level >= len(levels):
        yield Move(length)
        return
    own = levels[level]
    integrator, step = own.of_letters, length / own.steps
    inner = level + 2 if integrator.kicks_next else level + 1
    if integrator.kicks_next and level + 1 >= len(levels):
        raise ParameterError(
            f"the integrator {integrator.name} kicks by the forces of level {level + 1}, which is missing"
        )
    for _ in range(own.steps):
        for letter, c, *shift in integrator.letters:
            if letter == "U":
                yield from _moves(levels, inner, c * step)
            elif letter == "P":
                yield Move(c * step, level, shift[0] * step * step if shift else 0.0)
            else:
                yield Move(c * step, level + 1)


def _append(moves: list[Move], move: Move) -> None:
    """Adds a move to those before: kicks change no field, so that any two of a level between moves of the fields are one."""
    for k in range(len(moves) - 1, -1, -1):
        before = moves[k]
        if before.level == move.level and before.shift == move.shift == 0.0:
            moves[k] = Move(before.length + move.length, move.level)
            return
        if before.level < 0 or move.level < 0:
            break
    moves.append(move)
