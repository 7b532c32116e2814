"""Scalar fields of a run with hybrid Monte Carlo: the tables [[hmc.scalars]] of parameter files, checked, made, started, measured and kept.

A scalar has a name, a kind, the mass of its momenta and a start. What it is a field of follows from its kind and the gauge group, so a new kind is one entry of a table here.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.actions import ScalarMeans, scalar_means
from jali.cli.entries import choice, number, refuse_unknown_keys
from jali.codegen.types import Algebra, Complex, Element, Real, Vector
from jali.errors import FileFormatError
from jali.files import value_shown
from jali.gauge import GaugeField, higgs_means
from jali.hmc.checks import ADJOINT, FUNDAMENTAL, NEUTRAL
from jali.hmc.kinetic import hot_start
from jali.io import Checkpoint
from jali.lattice import Field, Lattice, Random

GAUGE_FIELD = "U"
"""The name of the links in actions."""

MOST_COMPONENTS = 64
STARTS = ("cold", "hot")
IN_CHECKPOINTS = "scalar."
"""In front of the names of scalars in checkpoints, where they have no name of another field."""


@dataclass(frozen=True)
class Kind:
    """A family of kinds of scalars."""

    element: Callable[[int, int], Element]
    """Of the n of the gauge group, and the number of components where the kind has one."""
    representation: str = NEUTRAL
    numbered: bool = False
    """Whether the number of components stands behind the name: O(3)."""
    on_sphere: bool = False


KINDS: dict[str, Kind] = {
    "real": Kind(lambda n, components: Real()),
    "complex": Kind(lambda n, components: Complex()),
    "vector": Kind(lambda n, components: Vector(components, "real"), numbered=True),
    "O": Kind(lambda n, components: Vector(components, "real"), numbered=True, on_sphere=True),
    "fundamental": Kind(lambda n, components: Vector(n), FUNDAMENTAL),
    "adjoint": Kind(lambda n, components: Algebra(n), ADJOINT),
}


def checked_scalar(given: Any) -> dict[str, Any]:
    """A table as the program uses it, with its defaults. Raises ValueError for one that is no scalar, with what would be right."""
    if not isinstance(given, Mapping):
        raise ValueError('a scalar is a table, such as {name = "phi", kind = "fundamental"}')
    rest = dict(given)
    name = rest.pop("name", None)
    if name is None:
        raise ValueError('name is missing; for example name = "phi"')
    good = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", name)
    if not good or keyword.iskeyword(name) or name in (GAUGE_FIELD, "X"):
        raise ValueError(
            f"name is up to 40 letters from a to z, digits and _, such as phi, no word of Python's, and neither {GAUGE_FIELD}, the links, nor X, the site; not {value_shown(name)}"
        )
    kind = _checked_kind(name, rest.pop("kind", None))
    mass = number(f"mass of {name}", rest.pop("mass", 1.0))
    if not mass > 0:
        raise ValueError(f"mass of {name} is that of its momenta, a positive number, not {mass:g}")
    start = choice(f"start of {name}", rest.pop("start", "hot"), STARTS)
    refuse_unknown_keys(rest, f"the scalar {name}", (), ("name", "kind", "mass", "start"))
    return {"name": name, "kind": kind, "mass": mass, "start": start}


def _checked_kind(name: str, given: Any) -> str:
    """The name of a kind as it is written here: "o3" gives "O(3)"."""
    match = (
        re.fullmatch(r"([a-z]+)(?:\((\d{1,3})\)|(\d{1,3}))?", given.strip().lower())
        if isinstance(given, str)
        else None
    )
    for family, kind in KINDS.items():
        if match is None or match[1] != family.lower():
            continue
        components = match[2] or match[3]
        if not kind.numbered and components is None:
            return family
        if kind.numbered and components is not None and 2 <= int(components) <= MOST_COMPONENTS:
            return f"{family}({int(components)})"
    names = [f"{family}(N)" if kind.numbered else family for family, kind in KINDS.items()]
    said = "is missing" if given is None else f"is not {value_shown(given)}"
    raise ValueError(
        f"kind of {name} {said}; it is one of {', '.join(names)}, with N from 2 to {MOST_COMPONENTS}"
    )


def family_of(kind: str) -> str:
    """The key of `KINDS` of a checked kind."""
    return kind.partition("(")[0]


def element_of(scalar: Mapping[str, Any], n: int) -> Element:
    """What a checked scalar is a field of, with the n of the gauge group."""
    family, _, components = scalar["kind"].rstrip(")").partition("(")
    return KINDS[family].element(n, int(components or 0))


def representations_of(scalars: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The representation of the gauge group by the name of the scalar."""
    return {one["name"]: KINDS[family_of(one["kind"])].representation for one in scalars}


def names_on_sphere(scalars: Sequence[Mapping[str, Any]]) -> list[str]:
    """The scalars that are unit vectors."""
    return [one["name"] for one in scalars if KINDS[family_of(one["kind"])].on_sphere]


def make_scalars(
    scalars: Sequence[Mapping[str, Any]], lattice: Lattice, n: int, precision: str
) -> dict[str, Field]:
    """The fields of checked scalars, not yet started, by their names."""
    return {
        one["name"]: Field(lattice, element_of(one, n), precision=precision, name=one["name"])
        for one in scalars
    }


def start_scalars(fields: Mapping[str, Field], scalars: Sequence[Mapping[str, Any]], rng: Random) -> None:
    """Starts scalars cold, zero or unit vectors along their last component, or hot, Gaussian numbers of variance 1 or unit vectors in all directions."""
    for one in scalars:
        phi, on_sphere = fields[one["name"]], KINDS[family_of(one["kind"])].on_sphere
        if one["start"] == "cold":
            phi[...] = np.eye(phi.element.type.size)[-1] if on_sphere else 0.0
        else:
            hot_start(phi, rng, on_sphere)


def measure_scalar(scalar: Mapping[str, Any], U: GaugeField, phi: Field) -> ScalarMeans:
    """Means of |phi|^2, |phi|^4 and of the hopping term, with links where they transport the scalar."""
    neutral = KINDS[family_of(scalar["kind"])].representation == NEUTRAL
    return scalar_means(phi) if neutral else higgs_means(U, phi)


# ---- in checkpoints ------------------------------------------------------------------------------------------


def kept_scalars(fields: Mapping[str, Field]) -> dict[str, NDArray[Any]]:
    """This rank's part of scalars as checkpoints have them, the last direction first."""
    return {
        IN_CHECKPOINTS + name: np.ascontiguousarray(_reversed(phi.local(), phi))
        for name, phi in fields.items()
    }


def check_kept_scalars(
    checkpoint: Checkpoint, fields: Mapping[str, Field], scalars: Sequence[Mapping[str, Any]]
) -> None:
    """Raises FileFormatError where a checkpoint does not hold these scalars."""
    for one in scalars:
        phi, info = fields[one["name"]], checkpoint.fields.get(IN_CHECKPOINTS + one["name"])
        wanted = phi.element.numpy_dtype(phi.precision)
        if info is None or info.element_shape != phi.element.numpy_shape or info.dtype != wanted:
            found = "no such field" if info is None else f"{info.dtype} of shape {info.element_shape}"
            raise FileFormatError(
                f"{checkpoint.path} holds {sorted(checkpoint.fields)}, not the scalar {one['name']} of the kind {one['kind']} "
                f"({wanted} of shape {phi.element.numpy_shape}): {found}"
            )


def read_scalars(checkpoint: Checkpoint, fields: Mapping[str, Field], box: Any) -> None:
    """Sets scalars to what a checkpoint holds, bit for bit."""
    for name, phi in fields.items():
        phi.set_local(_reversed(checkpoint.read(IN_CHECKPOINTS + name, box), phi))


def _reversed(values: NDArray[Any], phi: Field) -> NDArray[Any]:
    d = phi.lattice.ndim
    return values.transpose(*reversed(range(d)), *range(d, values.ndim))
