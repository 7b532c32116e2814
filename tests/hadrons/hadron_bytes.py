"""All that makes hadrons of links, as bytes, for comparisons between ranks and devices."""

from __future__ import annotations

import numpy as np
from quarks import filled

from jali import SU, Field, Lattice, Random, Spinor, Vector
from jali.fermions import Staggered, WilsonDirac
from jali.gauge import GaugeField
from jali.hadrons import (
    gaussian_smear,
    mesons,
    noise_source,
    nucleon,
    pcac_mass,
    point_source,
    staggered_mesons,
    wall_sink,
    wall_source,
    with_momentum,
)

EXTENTS = (4, 2, 6, 12)
ORIGIN = (1, 1, 2, 3)
MOMENTA = [(0, 0, 0), (1, 0, -2)]


def sources(lattice):
    """Bytes of sources."""
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    D, M = WilsonDirac(U, 0.5), Staggered(U, 0.5)
    found = [
        point_source(D, ORIGIN),
        wall_source(D, 3, (1, 0, 2)),
        wall_source(M, lattice.extents[3] - 1),
        with_momentum(point_source(M, ORIGIN), (1, 1, 1), (0, 0, 1, 0)),
        noise_source(D, Random(seed=2), "Z2", time=2, dilution="parity"),
        noise_source(M, Random(seed=2), "U1", dilution=("time", "parity")),
        noise_source(D, Random(seed=2)),
        gaussian_smear(point_source(D, ORIGIN), U, 1.2, 3),
        gaussian_smear(noise_source(M, Random(seed=3), time=0), U, 1.2, 3),
    ]
    return [psi[...].tobytes() for psi in found]


def correlators(lattice):
    """Bytes of correlators of Gaussian numbers in place of propagators."""
    antiperiodic = {3: "antiperiodic"}
    S, other = (filled(Field(lattice, Spinor(3), boundary=antiperiodic, batch=12), seed) for seed in (1, 2))
    V = filled(Field(lattice, Vector(3), boundary=antiperiodic, batch=3), 3)
    options = {"origin": ORIGIN, "momenta": MOMENTA}
    walls = wall_sink(S, (1, 0, 0), origin=ORIGIN)
    pairs = mesons(S, other, **options)
    found = [
        pairs.values,
        mesons(S, origin=ORIGIN).values,
        nucleon(S, other, **options).values,
        staggered_mesons(V, **options).values,
        walls[...],
        wall_sink(V)[...],
        mesons(walls, origin=(0, 0, 0, 3)).values,
        nucleon(walls, origin=(0, 0, 0, 3)).values,
        pcac_mass(pairs),
    ]
    return [np.ascontiguousarray(values).tobytes() for values in found]


def everything(**options):
    """Bytes of both on a lattice with these options."""
    lattice = Lattice(*EXTENTS, **options)
    return sources(lattice) + correlators(lattice)
