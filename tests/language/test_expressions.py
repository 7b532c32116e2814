"""Differential test: random expression graphs over random fields, by jali and by NumPy.

The programs of `random_programs` over reads at random offsets, with several outputs and a sum.
"""

from __future__ import annotations

import random

import pytest
from numpy_sites import interpret, kernel_values, symbol_of
from random_programs import OPERATIONS, Generator, element_of
from support import assert_close, bind, random_field

import jali
from jali import SU, Algebra, Complex, Field, Lattice, Matrix, Real, Spinor, Vector

EXTENTS = [(4, 6), (3, 5), (8,), (2, 4, 6), (4, 4, 2, 4), (1, 3, 2), (16, 2), (2, 2, 2, 2, 2)]
SPLIT_EXTENTS = [(8, 6), (12,), (4, 6, 4), (6, 4, 2, 5), (5, 7)]  # all of them fit on 2 to 6 ranks
BOUNDARIES = ["periodic", "periodic", "periodic", "antiperiodic", "open"]


def run_case(seed, steps, precision="float64"):
    g = Generator(random.Random(seed))
    extents = g.random.choice(EXTENTS if jali.comm.current().size == 1 else SPLIT_EXTENTS)
    lattice = Lattice(*extents)
    ranks = range(lattice.communicator.size)  # no halo is wider than the smallest box
    reaches = [min([2] + [lattice.partition.extents(r)[d] for r in ranks]) for d in range(lattice.ndim)]
    n = g.n
    elements = [
        Real(),
        Real(),
        Complex(),
        Vector(n),
        Matrix(n),
        SU(n),
        Algebra(n),
        Spinor(n),
        Matrix(n, n + 1),
        Vector(2, kind="real"),
        Matrix(2, kind="real"),
    ]
    elements = g.random.sample(elements, 5)
    inputs = [
        random_field(
            lattice, e, seed=100 * seed + k, precision=precision, boundary=g.random.choice(BOUNDARIES)
        )
        for k, e in enumerate(elements)
    ]
    loads = []
    for k, field in enumerate(inputs):
        for _ in range(2):
            loads.append((k, [g.random.choice([0, 0, 1, -1, reach]) for reach in reaches]))
            g.add(None, field.element.type.kind, field.element.type.shape)
    first = len(g.types)
    while len(g.types) < first + steps:
        g.grow()
    # Half of the values are written, so that little of the program is dead and much is still used only once.
    chosen = sorted(g.random.sample(range(first, len(g.types)), steps // 2))
    outputs = [Field(lattice, element_of(*g.types[k]), precision=precision) for k in chosen]
    summed = g.random.choice(chosen)

    def program(J, X, ins, outs, total):
        values = []
        for k, offset in loads:
            site = X
            for mu, step in zip(X.directions(), offset, strict=True):
                site = site + step * mu
            values.append(ins[k][site])
        for step in g.steps[first:]:
            values.append(step(J, values))
        for out, k in zip(outs, chosen, strict=True):
            out[X] = values[k]
        total += values[summed]

    twins = [symbol_of(f) for f in inputs], [symbol_of(f) for f in outputs]
    (expected,) = interpret(program, extents, twins, nsums=1)
    got = lattice.sum(bind(program, ["ins", "outs", "total"]), inputs, outputs)
    for out, twin in zip(outputs, twins[1], strict=True):
        assert_close(kernel_values(out), twin.array, precision, scale=1000)
    assert_close(got, expected.sum(axis=tuple(range(lattice.ndim))), precision, scale=1000 * lattice.volume)


@pytest.mark.short(3)
@pytest.mark.parametrize("seed", range(10))
def test_random_program_agrees_with_numpy(seed):
    run_case(seed, steps=25)


@pytest.mark.parametrize("seed", range(10, 13))
def test_random_program_agrees_with_numpy_in_single_precision(seed):
    run_case(seed, steps=12, precision="float32")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_random_programs_agree_with_numpy(seed):
    run_case(seed, steps=15 + seed % 40)


def test_generator_covers_every_operation():
    """The short test draws nearly all operations; none is dead."""
    drawn = set()

    class Recorder(Generator):
        def grow(self):
            name = self.random.choice(OPERATIONS)
            before = len(self.types)
            getattr(self, "_" + name)()
            if len(self.types) > before:
                drawn.add(name)

    for seed in range(10):
        g = Recorder(random.Random(seed))
        for kind, shape in [
            ("real", ()),
            ("complex", ()),
            ("complex", (2,)),
            ("complex", (2, 2)),
            ("real", (2, 3)),
        ]:
            g.add(None, kind, shape)
        for _ in range(25):
            g.grow()
    assert drawn == set(OPERATIONS)
