"""Sources of quark propagators: fields with a batch, whose members are solved for together.

A source has a member for each spin and colour, the spin slowest: member k = spin * n + colour, the column of S(x, y) that it gives (of staggered
quarks a member for each colour). Its members are one number at each site, times that unit vector:

    point   delta(x, y)
    wall    exp(i p x) on one time slice
    noise   random numbers with <eta(x) eta(y)^*> = delta(x, y), on one time slice or on all

The last direction is time. Quarks are antiperiodic there and periodic in space unless a boundary is given, and open where links are. A source of
another kind is a field that a program fills; `with_momentum` multiplies by a plane wave, `gaussian_smear` smears.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import jali
from jali.codegen.types import Element
from jali.codegen.values import Value
from jali.errors import LayoutError, ParameterError
from jali.fermions import Dirac
from jali.files import value_shown
from jali.hadrons.places import angle_at, checked_site, checked_time, wave_of
from jali.lattice.base import no_field
from jali.lattice.field import Field
from jali.lattice.random import Random
from jali.lattice.sites import SiteFunction, site_function

DILUTIONS = ("spin", "colour", "time", "parity")
"""What may tell members of a noise source apart, in the order in which members are counted: the first is the slowest."""


def point_source(
    D: Dirac, site: Sequence[int] | None = None, *, boundary: Any = None, precision: str | None = None
) -> Field:
    """One at a site, by default at the origin: a field of D's quarks with a member for each spin and colour.

    `boundary` is that of the quarks (`jali.Boundary`); `precision` is that of the links unless given. Raises ParameterError for a site
    outside of the lattice, LayoutError for boundaries that do not fit.
    """
    source = _zeros(D, boundary, precision)
    where = checked_site(source.lattice.extents, site)
    shape = source.element.type.shape
    units = np.eye(source.batch or 0)
    # spinors are (spin, colour) in arrays, whatever a kernel sees
    source[where] = units.reshape(-1, *(shape[::-1] if len(shape) == 2 else shape))
    return source


def wall_source(
    D: Dirac,
    time: int = 0,
    momentum: Sequence[int] | None = None,
    *,
    boundary: Any = None,
    precision: str | None = None,
) -> Field:
    """exp(i p x) at all sites of a time slice, with p_k = 2 pi `momentum`[k] / L_k: a member for each spin and colour.

    What it gives depends on the gauge, so links are fixed first (`jali.gauge.coulomb_gauge`). Raises ParameterError for a slice outside of the lattice and for
    momenta that are no whole numbers, one for each direction of space; else as `point_source`.
    """
    source = _zeros(D, boundary, precision)
    wave = wave_of(source.lattice.extents, momentum)
    noise = Field(source.lattice, source.element, precision=source.precision)
    _ones(noise)
    _place(source, noise, tuple(_members_of(D.element)), checked_time(source.lattice.extents, time))
    if wave is not None:
        _times_wave(source, source, wave, np.zeros(source.lattice.ndim))
    return source


def noise_source(
    D: Dirac,
    rng: Random,
    kind: str = "Z4",
    *,
    time: int | None = None,
    dilution: Iterable[str] | None = None,
    boundary: Any = None,
    precision: str | None = None,
) -> Field:
    """Random numbers eta with <eta(x) eta(y)^*> = delta(x, y), on the slice `time` or on all: "Z2" (signs), "Z4" (fourth roots of one) or "U1" (phases).

    `dilution` says what tells members apart (J. Foley et al., Comput. Phys. Commun. 172 (2005) 145): "spin", "colour", "time", "parity", any of them or none; by
    default spin and colour. The number does not depend on a diluted spin or colour, so what the members have in common is what the one-end trick needs (M. Foster and C.
    Michael, Phys. Rev. D 59 (1999) 074503). By default, on one slice, S is the sum of point sources over the slice, each with
    its number: its mesons are those of all these points, plus noise. `rng` advances. Raises ParameterError for other kinds and dilutions and for slices
    outside of the lattice; else as `point_source`.
    """
    if not isinstance(kind, str) or kind not in NOISES:
        raise ParameterError(f"a noise is one of {', '.join(NOISES)}, not {value_shown(kind)}")
    if not isinstance(rng, Random):
        raise ParameterError(f"a noise takes a jali.Random(seed), not {value_shown(rng)}")
    _check_operator(D)
    chosen = _dilution(dilution, D.element)
    if time is not None and "time" in chosen:
        raise ParameterError(
            "a source on one time slice is not diluted in time: give time= or dilute, not both"
        )
    lattice = D.lattice
    slice_ = None if time is None else checked_time(lattice.extents, time)
    source = _zeros(D, boundary, precision, math.prod(_counts(chosen, D).values()))
    noise = Field(lattice, source.element, precision=source.precision)
    NOISES[kind](noise, rng)
    _place(source, noise, chosen, slice_)
    return source


def with_momentum(psi: Field, momentum: Sequence[int], origin: Sequence[int] | None = None) -> Field:
    """exp(i p (x - origin)) psi(x), with p_k = 2 pi `momentum`[k] / L_k in the directions of space: a new field.

    Raises ParameterError for momenta that are no whole numbers, one for each direction of space, and for origins outside of the lattice.
    """
    if not isinstance(psi, Field):
        raise LayoutError(f"a momentum is that of a field, not of {no_field(psi)}")
    if psi.element.type.kind != "complex":
        raise LayoutError(f"a momentum makes complex numbers, and {psi.name} holds {psi.element}")
    extents = psi.lattice.extents
    wave, out = wave_of(extents, momentum), psi.like()
    if wave is None:
        return out.assign(psi)
    _times_wave(out, psi, wave, np.array(checked_site(extents, origin), float))
    return out


# ---- kernels -----------------------------------------------------------------------------------------------


def _members_of(element: Element) -> dict[str, int]:
    """Spins and colours of a quark."""
    shape = element.type.shape
    if element.spinor:
        return {"spin": shape[1], "colour": shape[0]}
    if len(shape) == 1:
        return {"colour": shape[0]}
    raise LayoutError(
        f"a source has spins and colours, those of spinors or of vectors, and {element} has not"
    )


def _check_operator(D: Any) -> None:
    if not isinstance(D, Dirac):
        raise LayoutError(
            f"a source is one of a Dirac operator, for whose quarks it is, not of {value_shown(D)}"
        )


def _zeros(D: Any, boundary: Any, precision: str | None, batch: int | None = None) -> Field:
    """A field of D's quarks with a batch."""
    _check_operator(D)
    count = math.prod(_members_of(D.element).values()) if batch is None else batch
    if boundary is None:
        open_edges = {mu: "open" for mu in D.links[0].boundary.open}
        boundary = {D.lattice.ndim - 1: "antiperiodic"} | open_edges
    return Field(
        D.lattice,
        D.element,
        boundary=boundary,
        batch=count,
        precision=D.links[0].precision if precision is None else precision,
    )


def _dilution(dilution: Any, element: Element) -> tuple[str, ...]:
    known = [word for word in DILUTIONS if word != "spin" or element.spinor]
    if dilution is None:
        return tuple(_members_of(element))
    try:
        words = (dilution,) if isinstance(dilution, str) else tuple(dilution)
    except TypeError:
        words = (dilution,)
    for word in words:
        if word not in known or words.count(word) > 1:
            raise ParameterError(
                f"a dilution of {element} names some of {', '.join(known)}, each once, not {value_shown(word)}"
            )
    return tuple(word for word in known if word in words)


def _counts(dilution: Iterable[str], D: Dirac) -> dict[str, int]:
    """How many members each word tells apart."""
    sizes = _members_of(D.element) | {"time": D.lattice.extents[-1], "parity": 2}
    return {word: sizes[word] for word in dilution}


def _place(source: Field, noise: Field, dilution: Sequence[str], time: int | None) -> None:
    """Each member of the source is the noise where its spin, colour, slice and parity are those of the member."""
    sizes = _members_of(source.element) | {"time": source.lattice.extents[-1], "parity": 2}
    shape = [sizes[word] for word in dilution]
    places = np.indices(shape).reshape(len(shape), -1) if shape else np.zeros((0, 1))
    labels = {word: row.astype(float) for word, row in zip(dilution, places, strict=True)}
    if time is not None:
        labels["time"] = np.full(source.batch or 1, float(time))
    _placed(source, noise, *(labels.get(word) for word in DILUTIONS))


@site_function
def _placed(X: Any, source: Any, noise: Any, spin: Any, colour: Any, time: Any, parity: Any) -> None:
    k, here = X.member, None
    for labels, found in ((time, X.coordinate(X.ndim - 1)), (parity, X.parity)):
        if labels is not None:
            matches = labels[k] == found
            here = matches if here is None else here & matches

    def entry(c: int, s: int | None) -> Value:
        """The noise at this colour and spin; the first one's where members are told apart by it."""
        at = () if s is None else (0 if spin is not None else s,)
        value, condition = noise[X][(0 if colour is not None else c, *at)], here
        for labels, index in ((colour, c), (spin, s)):
            if labels is not None and index is not None:
                matches = labels[k] == index
                condition = matches if condition is None else condition & matches
        return value if condition is None else jali.where(condition, value, jali.complex(0.0, 0.0))

    shape = source.element.type.shape
    if len(shape) == 1:
        source[X] = jali.vector([entry(c, None) for c in range(shape[0])])
    else:
        source[X] = jali.matrix([[entry(c, s) for s in range(shape[1])] for c in range(shape[0])])


def _filled(shape: tuple[int, ...], number: Any) -> Value:
    """A spinor or a vector of numbers."""
    if len(shape) == 1:
        return jali.vector([number() for _ in range(shape[0])])
    return jali.matrix([[number() for _ in range(shape[1])] for _ in range(shape[0])])


@site_function
def _ones(X: Any, noise: Any) -> None:
    noise[X] = _filled(noise.element.type.shape, lambda: jali.complex(1.0, 0.0))


@site_function
def _signs(X: Any, noise: Any, rng: Any) -> None:
    noise[X] = _filled(noise.element.type.shape, lambda: jali.complex(1.0 - 2.0 * rng.integers(X, 2), 0.0))


@site_function
def _fourth_roots(X: Any, noise: Any, rng: Any) -> None:
    def root() -> Value:
        quarter = rng.integers(X, 4)
        half = 1.0 - 2.0 * (quarter // 2)
        return jali.where(quarter % 2 == 0, jali.complex(half, 0.0), jali.complex(0.0, half))

    noise[X] = _filled(noise.element.type.shape, root)


@site_function
def _phases(X: Any, noise: Any, rng: Any) -> None:
    def phase() -> Value:
        angle = 2 * math.pi * rng.uniform(X)
        return jali.complex(jali.cos(angle), jali.sin(angle))

    noise[X] = _filled(noise.element.type.shape, phase)


@site_function
def _times_wave(X: Any, out: Any, psi: Any, wave: Any, origin: Any) -> None:
    angle = angle_at(X, wave, origin)
    out[X] = jali.complex(jali.cos(angle), jali.sin(angle)) * psi[X]


NOISES: dict[str, SiteFunction] = {"Z2": _signs, "Z4": _fourth_roots, "U1": _phases}
"""Site functions that fill a field with random numbers, by the kind of noise."""

__all__ = ["DILUTIONS", "NOISES", "noise_source", "point_source", "wall_source", "with_momentum"]
