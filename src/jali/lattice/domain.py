"""Where a site function runs: all sites, even or odd sites, or one colour of any colouring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jali.errors import LayoutError
from jali.files import value_shown


@dataclass(frozen=True)
class Domain:
    """A set of sites. `parities` is a mask: 1 even, 2 odd; `colouring` narrows it to one `colour`."""

    name: str
    parities: int = 3
    colouring: Colouring | None = None
    colour: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.parities, int) or not 0 <= self.parities <= 3:
            raise LayoutError(
                f"the parities of a domain are 1 (even), 2 (odd) or 3 (both), not {value_shown(self.parities)}"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def opposite(self) -> Domain:
        """EVEN for ODD and the reverse. Raises LayoutError for other domains."""
        if self is EVEN:
            return ODD
        if self is ODD:
            return EVEN
        raise LayoutError(f"{self.name} has no opposite; only EVEN and ODD have")


@dataclass(frozen=True)
class Colouring:
    """Divides the sites into `colours` sets by a function of the global coordinates.

    `colour_of(x)` receives a list of integer arrays, one per direction, and returns an array of colours
    0 .. colours - 1. Example, the four colours of actions with rectangles in a plane::

        four = Colouring(4, lambda x: (x[0] + 2 * x[1]) % 4)
        for colour in four:
            update[colour](U)
    """

    colours: int
    colour_of: Callable[[list[np.ndarray]], Any] = field(compare=True)
    name: str = "colour"

    def __post_init__(self) -> None:
        if not isinstance(self.colours, int) or isinstance(self.colours, bool) or self.colours < 1:
            raise LayoutError(
                f"a colouring has a positive whole number of colours, not {value_shown(self.colours)}"
            )
        if not callable(self.colour_of):
            raise LayoutError(
                f"a colouring needs a function of the coordinates, not {value_shown(self.colour_of)}"
            )

    def __getitem__(self, colour: int) -> Domain:
        if not isinstance(colour, int | np.integer):
            raise LayoutError(
                f"a colour is a whole number from 0 to {self.colours - 1}, not {value_shown(colour)}"
            )
        if not 0 <= colour < self.colours:
            raise IndexError(f"colour {colour} does not exist; there are {self.colours}")
        return Domain(f"{self.name} {colour} of {self.colours}", 3, self, colour)

    def __len__(self) -> int:
        return self.colours

    def __iter__(self) -> Any:
        return (self[k] for k in range(self.colours))

    def evaluate(self, coordinates: list[np.ndarray]) -> np.ndarray:
        """Colours of the given sites. Raises LayoutError when the function returns anything else."""
        found, shape = np.asarray(self.colour_of(coordinates)), coordinates[0].shape
        try:
            colours = np.broadcast_to(found, shape)
        except ValueError:
            raise LayoutError(
                f"a colouring returns one colour per site, shape {shape}, this one returned {found.shape}"
            ) from None
        if colours.dtype.kind not in "iub":
            raise LayoutError(f"a colouring returns whole numbers, this one returned {colours.dtype}")
        if colours.size and (colours.min() < 0 or colours.max() >= self.colours):
            raise LayoutError(
                f"the colouring returned colours {colours.min()} to {colours.max()}; it has {self.colours} (0 to {self.colours - 1})"
            )
        return colours


def as_domain(over: Any, what: str) -> Domain:
    """`over` if it is a domain. Raises LayoutError that begins with `what`."""
    if not isinstance(over, Domain):
        hint = "; one of its colours is a domain, c[0]" if isinstance(over, Colouring) else ""
        raise LayoutError(f"{what} takes a domain such as EVEN, not {value_shown(over)}{hint}")
    return over


ALL = Domain("ALL")
EVEN = Domain("EVEN", 1)
ODD = Domain("ODD", 2)
PARITIES = (EVEN, ODD)
