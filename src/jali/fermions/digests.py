"""Digests of links: a few sums over all of them by which a configuration is known again, from files and in other formats.

A sum has the components of every link, times phases that depend on the site, the direction and the component; divided by the root of their number it is of
order one. So configurations differ in it, gauge transforms of one, too, and rounding does not matter; the sums are exact, the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jali
from jali.codegen.arithmetics import ARITHMETICS
from jali.lattice.field import Field
from jali.lattice.sites import site_function

WAVES = ((0.7, 1.3, 2.1, 2.9, 0.4, 1.1, 1.9, 2.5), (1.7, 0.9, 2.6, 0.3, 2.2, 1.5, 0.6, 2.8))
OF_16_BITS = ("float16", "fixed16")
ROUNDING = 3e-3  # how well digests of links in these storages agree
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


def _rounding(link: Field) -> float:
    """How well digests of this field and of a copy agree: half of the digits of its arithmetic, and what its storage keeps."""
    storage = link.stored.format.name.partition("-")[0]
    if storage in ARITHMETICS:
        return max(ARITHMETICS[one].epsilon ** 0.5 for one in (storage, link.precision))
    return ROUNDING if storage in OF_16_BITS else LARGEST_ROUNDING


def digest_of_links(links: Sequence[Field]) -> dict[str, Any]:
    """Numbers that belong to these links, and how well they agree with those of a copy: values of JSON, the same on all ranks."""
    lattice = links[0].lattice
    root = math.sqrt(lattice.volume * len(links) * links[0].element.type.shape[0])
    rounding = max(_rounding(link) for link in links)
    numbers = [lattice.sum(_waved, list(links), wave[: lattice.ndim]) / root for wave in WAVES]
    return {"numbers": numbers, "rounding": rounding}
