"""Digests of links: a few sums over all of them by which a configuration is known again, from files and in other formats.

A sum has the components of every link, times phases that depend on the site, the direction and the component; divided by the root of their number it is of
order one. So configurations differ in it, gauge transforms of one, too, and rounding does not matter; the sums are exact, the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jali
from jali.lattice.field import Field
from jali.lattice.sites import site_function

WAVES = ((0.7, 1.3, 2.1, 2.9, 0.4, 1.1, 1.9, 2.5), (1.7, 0.9, 2.6, 0.3, 2.2, 1.5, 0.6, 2.8))
ROUNDING = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-3, "fixed16": 3e-3}
"""How well digests of links in these storages agree."""
LARGEST_ROUNDING = 3e-2


@site_function
def _waved(X: Any, U: Any, wave: Any, total: Any) -> None:
    phase = sum(wave[k] * X.coordinate(mu) for k, mu in enumerate(X.directions()))
    for k, mu in enumerate(X.directions()):
        link = U[mu][X]
        for i in range(link.shape[0]):
            for j in range(link.shape[1]):
                angle = phase + (1.0 + k + 0.37 * i + 0.71 * j)
                total += jali.cos(angle) * link[i, j].real + jali.sin(angle) * link[i, j].imag


def digest_of_links(links: Sequence[Field]) -> dict[str, Any]:
    """Numbers that belong to these links, and how well they agree with those of a copy: values of JSON, the same on all ranks."""
    lattice = links[0].lattice
    root = math.sqrt(lattice.volume * len(links) * links[0].element.type.shape[0])
    rounding = max(
        ROUNDING.get(link.stored.format.name.partition("-")[0], LARGEST_ROUNDING) for link in links
    )
    if any(link.precision == "float32" for link in links):
        rounding = max(rounding, ROUNDING["float32"])
    numbers = [lattice.sum(_waved, list(links), wave[: lattice.ndim]) / root for wave in WAVES]
    return {"numbers": numbers, "rounding": rounding}
