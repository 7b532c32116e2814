"""Histories whose bits are recorded: groups, precisions, storage formats, solvers and random formulas, of one rank or several.

A history is a function that returns JSON values: numbers as text with every bit, arrays as SHA-256 of their bytes. All inputs are
whole numbers or come from jali's own random numbers, so nothing depends on the mathematics library of a machine or on LAPACK.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.extend([str(Path(__file__).parents[1] / name) for name in ("", "language", "identity", "gpu")])

import history
import test_odd_halves
import test_random_formulas

import jali
from jali import SU, Field, Lattice, Real, Spinor, Vector, fermions, gauge, solvers
from jali.gauge import GaugeField

GRIDS = {1: None, 2: (1, 1, 1, 2), 4: (2, 1, 2, 1)}  # of the lattices of four directions


def digest(values: Any) -> str:
    """SHA-256 of the bytes of an array in C order, of all numbers in little-endian order."""
    array = np.ascontiguousarray(values)
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def links_of(U: GaugeField) -> str:
    """That of all links."""
    return digest(np.stack([field[...] for field in U.fields]))


def exactly(*numbers: Any) -> list[str]:
    """Every bit of real and complex numbers."""
    found: list[str] = []
    for number in numbers:
        found += (
            [number.real.hex(), number.imag.hex()] if isinstance(number, complex) else [float(number).hex()]
        )
    return found


def of_identity(precision: str, ranks: int = 1, **options: Any) -> dict[str, Any]:
    """That of tests/identity/history.py."""
    return {"values": list(history.history(precision, GRIDS[ranks], **options).values())}


def of_group(
    n: int, precision: str, ranks: int, storage: str | None = None, **options: Any
) -> dict[str, Any]:
    """Updates, measurements, smearing, flow and the Wilson operator, in a storage format of the links."""
    lattice = Lattice(4, 4, 4, 8, grid=GRIDS[ranks], **options)
    U, rng = GaugeField(lattice, SU(n), precision=precision, storage=storage), jali.Random(seed=7)
    U.hot_start(rng)
    found: dict[str, Any] = {"start": links_of(U)}
    gauge.sweep(U, 2.0 * n, rng, heatbath=1, overrelaxation=1)
    found["sweep"] = links_of(U)
    found["measured"] = exactly(*gauge.plaquettes(U), gauge.polyakov_loop(U))
    psi, out = (
        Field(lattice, Spinor(n), precision=precision, boundary={3: "antiperiodic"}) for _ in range(2)
    )
    normal_numbers(psi, rng)
    fermions.WilsonDirac(U, 0.1).apply(psi, out)
    found["wilson"] = digest(out[...])
    flow = gauge.Flow(U, step=0.05)
    flow.advance(1)
    found["flow"] = links_of(flow.field)
    return found


@jali.site_function
def normal_numbers(X, psi, rng):
    rows, columns = psi[X].shape
    numbers = [[jali.complex(rng.gaussian(X), rng.gaussian(X)) for _ in range(columns)] for _ in range(rows)]
    psi[X] = jali.matrix(numbers)


@jali.site_function
def three_uniforms(X, v, rng):
    v[X] = jali.vector([rng.uniform(X), rng.uniform(X) - 0.5, rng.uniform(X)])


@jali.site_function
def spread(X, out, v, total, largest):
    for mu in X.directions():
        out[X] += 0.25 * v[X + mu] - 0.125 * v[X - mu]
    total += v[X].norm2()
    largest.max(v[X][0] * v[X + X.directions()[0]][1])


def of_storage(storage: str, precision: str, ranks: int, **options: Any) -> dict[str, Any]:
    """Vectors in a storage format: what is stored, a sum over neighbours, a sum and a maximum over sites."""
    lattice = Lattice(4, 4, 4, 8, grid=GRIDS[ranks], **options)
    v, out = (
        Field(
            lattice,
            Vector(3, kind="real"),
            precision=precision,
            storage=storage,
            boundary={3: "antiperiodic"},
        )
        for _ in range(2)
    )
    three_uniforms(v, jali.Random(seed=3))
    out[...] = 0.0
    total, largest = lattice.reduce(spread, out, v)
    return {"stored": digest(v[...]), "spread": digest(out[...]), "reduced": exactly(total, largest)}


def of_solver(precision: str, ranks: int, **options: Any) -> dict[str, Any]:
    """Conjugate gradients on the normal Wilson operator."""
    lattice = Lattice(4, 4, 4, 8, grid=GRIDS[ranks], **options)
    rng = jali.Random(seed=5)
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(rng)
    b = Field(lattice, Spinor(3), precision=precision, boundary={3: "antiperiodic"})
    normal_numbers(b, rng)
    found = solvers.cg(fermions.WilsonDirac(U, 1.0).normal, b, rtol=1e-4)
    return {"iterations": found.iterations, "x": digest(found.x[...])}


def of_formula(seed: int, ranks: int, lanes: int | None = None, **options: Any) -> dict[str, Any]:
    """A random formula of tests/identity on whole numbers, with boundary conditions that are no phases."""
    formula = test_random_formulas.Formula(random.Random(seed))
    grid = formula.grid(ranks) if ranks > 1 else None
    return {"bytes": [hashlib.sha256(part).hexdigest() for part in formula.run(grid, lanes=lanes, **options)]}


def suits(seed: int) -> bool:
    """Whether a formula's inputs are the same on any machine."""
    formula = test_random_formulas.Formula(random.Random(seed))
    conditions = [c for boundary in formula.boundaries if boundary for c in boundary]
    return formula.whole and not any(isinstance(c, complex) for c in conditions)


def of_odd_halves(number: int, ranks: int, lanes: int | None = None) -> dict[str, Any]:
    """Lattices with directions whose half is odd: site numbers, shifts, and sums per slice."""
    extents, conditions = test_odd_halves.CASES[number]
    grid = None if ranks == 1 else (ranks, *(1 for _ in extents[1:]))
    lattice = Lattice(*extents, lanes=lanes, grid=grid)
    x, y = (Field(lattice, Real(), boundary=conditions) for _ in range(2))
    test_odd_halves.places(x, jali.Random(seed=5))
    test_odd_halves.moved(y, x)
    sums = [lattice.sum(test_odd_halves.weighted, y, per=mu) for mu in (None, *lattice.directions)]
    return {"numbered": digest(x[...]), "moved": digest(y[...]), "sums": [digest(s) for s in sums]}


SEEDS = [seed for seed in range(60) if suits(seed)][:4]
HISTORIES: dict[str, Callable[..., dict[str, Any]]] = {
    "identity float64": functools.partial(of_identity, "float64"),
    "identity float32": functools.partial(of_identity, "float32"),
    "SU(1) float64": functools.partial(of_group, 1, "float64"),
    "SU(2) float32": functools.partial(of_group, 2, "float32"),
    "SU(3) float64 as float32-12": functools.partial(of_group, 3, "float64", storage="float32-12"),
    "SU(3) float32 as fixed16-8": functools.partial(of_group, 3, "float32", storage="fixed16-8"),
    "SU(4) float64": functools.partial(of_group, 4, "float64"),
    "float64 as float32": functools.partial(of_storage, "float32", "float64"),
    "float32 as float16": functools.partial(of_storage, "float16", "float32"),
    "float32 as bfloat16": functools.partial(of_storage, "bfloat16", "float32"),
    "float64 as fixed16": functools.partial(of_storage, "fixed16", "float64"),
    "conjugate gradients float64": functools.partial(of_solver, "float64"),
    "odd halves 4D": functools.partial(of_odd_halves, 0),
    "odd halves 2D": functools.partial(of_odd_halves, 1),
    "odd halves 3D": functools.partial(of_odd_halves, 2),
    **{f"formula {seed}": functools.partial(of_formula, seed) for seed in SEEDS},
}


def all_histories() -> dict[str, dict[str, Any]]:
    """Those of one rank."""
    return {name: compute(ranks=1) for name, compute in HISTORIES.items()}
