"""Sources of quarks as options of a command: what they are, where they are, and how they are smeared."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from jali.errors import ParameterError
from jali.fermions import Dirac
from jali.files import value_shown
from jali.gauge import GaugeField, ape_smear, hyp_smear, stout_smear
from jali.hadrons import gaussian_smear, noise_source, point_source, wall_source
from jali.hadrons.places import checked_site
from jali.hadrons.sources import NOISES
from jali.lattice import Field, Random

KINDS = ("point", "wall", *NOISES)
MOST = 10_000  # steps, and lattice spacings
LINKS: dict[str, tuple[Callable[..., GaugeField], int]] = {
    "thin": (lambda U, directions: U, 0),
    "ape": (lambda U, alpha, steps, directions: ape_smear(U, alpha, int(steps), directions), 2),
    "stout": (lambda U, rho, steps, directions: stout_smear(U, rho, int(steps), directions), 2),
    "hyp": (lambda U, steps, directions: hyp_smear(U, steps=int(steps), directions=directions), 1),
}
"""Links of smearing by name: what makes them, and how many numbers it takes."""


@dataclass(frozen=True)
class SourceChoice:
    """The sources of a command. `as_dict` is what a result is told apart by."""

    kind: str
    at: tuple[int, ...] | None
    count: int
    boundary: str
    smear: tuple[float, int] | None
    smear_sink: tuple[float, int] | None
    smear_links: tuple[Any, ...]
    seed: int
    usual_count: bool = False  # nobody asked for so many

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = asdict(self)
        del found["usual_count"]
        return found

    def check(self, extents: tuple[int, ...]) -> None:
        """Raises ParameterError where a lattice of these extents has no room for the sources."""
        self.places(extents)

    def places(self, extents: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The sites of the sources: the first one, others spread evenly over time, every second half a lattice away in space."""
        first, count = checked_site(extents, self.at), self.count
        if count > extents[-1]:
            if not self.usual_count:
                raise ParameterError(
                    f"{count} sources are spread over {extents[-1]} time slices: --sources is at most as many"
                )
            count = extents[-1]
        found = []
        for k in range(count):
            site = [(x + (k % 2) * (size // 2)) % size for x, size in zip(first, extents, strict=True)]
            site[-1] = (first[-1] + k * extents[-1] // count) % extents[-1]
            found.append(tuple(site))
        return found

    def links(self, U: GaugeField) -> GaugeField:
        """The links by which quarks are smeared, in space."""
        name, *numbers = self.smear_links
        return LINKS[name][0](U, *numbers, directions=U.lattice.directions[:-1])

    def make(self, D: Dirac, links: GaugeField | None, site: tuple[int, ...], stream: int) -> Field:
        """A source at the site; noise and walls are on its time slice, and `stream` is that of the noise's random numbers."""
        last = D.lattice.ndim - 1
        open_edges = {mu: "open" for mu in D.links[0].boundary.open}
        boundary = {last: self.boundary} | open_edges
        if self.kind == "point":
            b = point_source(D, site, boundary=boundary)
        elif self.kind == "wall":
            b = wall_source(D, site[-1], boundary=boundary)
        else:
            rng = Random(seed=self.seed, stream=stream)
            b = noise_source(D, rng, self.kind, time=site[-1], boundary=boundary)
        return b if self.smear is None else gaussian_smear(b, links, *self.smear)

    def sink(self, S: Field, links: GaugeField | None) -> Field:
        """The propagator with its sink smeared."""
        return S if self.smear_sink is None else gaussian_smear(S, links, *self.smear_sink)

    @property
    def is_noise(self) -> bool:
        """Whether its numbers are random."""
        return self.kind in NOISES

    @property
    def smears(self) -> bool:
        """Whether smeared links are needed."""
        return self.smear is not None or self.smear_sink is not None


def add_quark_source_arguments(parser: argparse.ArgumentParser, several: bool) -> None:
    """Kind, place and smearing of sources; `several`: how many, and the sink's smearing."""
    group = parser.add_argument_group("its sources")
    group.add_argument(
        "--source",
        choices=KINDS,
        default="point",
        metavar="KIND",
        help=f"one of {', '.join(KINDS)} (default point); a wall and noise (Z2, Z4, U1) are on a time slice",
    )
    group.add_argument(
        "--at",
        type=site_argument,
        metavar="X,Y,Z,T",
        help="site of the first source (default 0,0,0,0); of walls and noise T counts",
    )
    group.add_argument(
        "--boundary",
        choices=("antiperiodic", "periodic"),
        default="antiperiodic",
        metavar="WORD",
        help="of quarks in time: antiperiodic (default) or periodic",
    )
    group.add_argument(
        "--smear-source",
        type=smearing_argument,
        metavar="WIDTH,STEPS",
        help="Gaussian smearing of the source, of this width in lattice spacings",
    )
    group.add_argument(
        "--smear-links",
        type=links_argument,
        default=("thin",),
        metavar="KIND:NUMBERS",
        help="links of that smearing: thin (default), ape:ALPHA,STEPS, stout:RHO,STEPS or hyp:STEPS, smeared in space",
    )
    group.add_argument("--seed", type=int, default=1, metavar="N", help="of noise (default 1)")
    if several:
        group.add_argument(
            "--sources",
            type=int,
            metavar="N",
            help="sources on each configuration, spread over time (default: one, and four on a single configuration)",
        )
        group.add_argument(
            "--smear-sink",
            type=smearing_argument,
            metavar="WIDTH,STEPS",
            help="Gaussian smearing of the sink",
        )


def quark_sources(arguments: argparse.Namespace, usual: int = 1) -> SourceChoice:
    """The sources of these options, `usual` of them unless the options say. Raises ParameterError for options without effect."""
    sink, given = getattr(arguments, "smear_sink", None), getattr(arguments, "sources", None)
    count = usual if given is None else given
    if arguments.smear_links != ("thin",) and arguments.smear_source is None and sink is None:
        raise ParameterError("--smear-links are those of --smear-source, which is not given")
    if count < 1:
        raise ParameterError(f"--sources {count} should be a positive number")
    if arguments.seed < 0:
        raise ParameterError(f"--seed {arguments.seed} should be a number from 0 on")
    return SourceChoice(
        arguments.source,
        arguments.at,
        count,
        arguments.boundary,
        arguments.smear_source,
        sink,
        arguments.smear_links,
        arguments.seed,
        given is None,
    )


def site_argument(text: str) -> tuple[int, ...]:
    """X,Y,Z,T."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text.replace(" ", "")):
        raise argparse.ArgumentTypeError(f"{value_shown(text)} should be a site x,y,z,t, for example 0,0,0,4")
    return tuple(int(x) for x in text.split(","))


def momentum_argument(text: str) -> tuple[int, ...]:
    """PX,PY,PZ."""
    if not re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text.replace(" ", "")):
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} should be a momentum in units of 2 pi / L, for example 1,0,0"
        )
    return tuple(int(p) for p in text.split(","))


def smearing_argument(text: str) -> tuple[float, int]:
    """WIDTH,STEPS."""
    width, comma, steps = text.partition(",")
    try:
        found = float(width), int(steps)
    except ValueError:
        comma = ""
    if not comma or not 0 < found[0] < MOST or not 0 < found[1] < MOST:
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} should be a width and a number of steps, for example 3.0,30"
        )
    return found


def links_argument(text: str) -> tuple[Any, ...]:
    """KIND:NUMBERS."""
    name, _, rest = text.partition(":")
    try:
        numbers = tuple(float(part) for part in rest.split(",")) if rest else ()
    except ValueError:
        numbers = (0.0,) * 9
    sensible = all(0 < x < MOST for x in numbers) and all(x == int(x) for x in numbers[-1:])
    if name not in LINKS or len(numbers) != LINKS[name][1] or not sensible:
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} should be thin, ape:ALPHA,STEPS, stout:RHO,STEPS or hyp:STEPS, for example stout:0.1,20"
        )
    return (name, *numbers)
