"""Random formulas give the same bytes however they are run: on 1 to 4 ranks, with and without halo items, with any number of lanes, on a
device. Where a value is rounded is decided by the formula and its types, and this is the test of it.

A formula is drawn by hypothesis: sums of products over neighbours, as in hopping terms and Laplacians, with signs, adjoints, factors and
boundary conditions; and the programs of tests/language. Half of them run on small whole numbers, where sums cancel exactly
and the sign of a zero tells who did what.
"""

from __future__ import annotations

import cmath
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import jali
from jali import SU, Algebra, Complex, Field, Lattice, Matrix, Real, Spinor, Vector
from jali.codegen.types import Type

sys.path.insert(0, str(Path(__file__).parents[1] / "language"))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

from fake_driver import FILES, REAL, make_fake_driver
from random_programs import Generator, element_of
from support import bind, random_values

EXTENTS = [(8, 12), (4, 6, 8), (24,), (6, 8, 4), (5, 6, 4), (16, 6), (6, 10), (10, 4, 6)]
CONDITIONS = ["periodic", "periodic", "antiperiodic", "open", cmath.exp(0.7j)]
PRECISIONS = ["float64", "float64", "float32"]


@pytest.fixture(scope="module", autouse=True)
def devices():
    """The fake driver, unless the machine's own is asked for."""
    with jali.settings.using(**{} if REAL else dict.fromkeys(FILES["cuda"], str(make_fake_driver()))):
        yield


class Places(Generator):
    """A generator whose values may be picked from `allowed` only: those of one site, or those that hops may use."""

    allowed: list[int]
    remote: list[int]  # values of neighbours, which hops prefer
    wanted: list[int]  # of a recipe

    def pick(self, accept):
        found = [k for k in self.allowed if accept(*self.types[k])]
        return self.random.choice(found) if found else None

    def add(self, step, kind, shape):
        super().add(step, kind, shape)
        self.allowed.append(len(self.types) - 1)

    def evaluate(self, J, fields):
        """All values, from those of the fields."""
        values = list(fields)
        for step in self.steps[len(fields) :]:
            values.append(step(J, values))
        return values

    def product(self):
        """A product of a matrix, or its adjoint, and something that stands at the same place, as it is."""
        a = self.pick(lambda kind, shape: len(shape) == 2 and shape[0] == shape[1])
        b = None if a is None else self.pick(lambda kind, shape: shape[:1] == self.types[a][1][:1])
        if b is None:
            return
        dagger = self.random.random() < 0.5
        self.add(lambda J, v: (v[a].dagger() if dagger else v[a]) * v[b], self.join(a, b), self.types[b][1])

    def hop(self):
        """A sum of values, some of them multiplied by a number or a matrix, which is what is rounded together."""
        shape = self.types[self.random.choice(self.remote)][1]
        terms, used = [], []
        for _ in range(self.random.choice([2, 3, 4])):
            alike = [k for k in self.allowed if self.types[k][1] == shape]
            fresh = [k for k in alike if k in self.remote and k not in used]
            value = self.random.choice(fresh or [k for k in alike if k not in self.remote] or alike)
            matrix = self.pick(lambda kind, have: shape != () and have == (shape[0], shape[0]))
            if self.random.random() < 0.7:
                matrix = None
            terms.append(
                (self.random.choice([1, 1, -1]), self.random.choice([None, None, None, 0.25]), matrix, value)
            )
            used += [value] if matrix is None else [value, matrix]

        def step(J, v):
            total = None
            for sign, factor, matrix, value in terms:
                term = v[value] if matrix is None else v[matrix].dagger() * v[value]
                term = term if factor is None else factor * term
                total = term if total is None else total + term if sign > 0 else total - term
            return total

        self.add(step, self.join(*used), shape)


class Formula:
    """What runs, and everything that decides its bits; drawn from `numbers`, a `random.Random`.

    At each place some values are made of the fields there; sums over places follow, and whatever else the generator draws. What is
    made at a neighbour's place is often smaller than the fields, and then it is what travels.
    """

    def __init__(self, numbers):
        self.numbers = numbers
        self.extents = numbers.choice(EXTENTS)
        self.axis = numbers.randrange(len(self.extents))  # most steps and most cuts are in this direction
        self.precision = numbers.choice(PRECISIONS)
        self.whole = numbers.random() < 0.5  # fields of whole numbers
        g = self.generator = Places(numbers)
        n = g.n = numbers.choice([1, 2, 3, 3])
        elements = [SU(n), Matrix(n), Spinor(n), Complex(), Real(), Algebra(n)]
        self.elements = [numbers.choice([SU(n), Matrix(n)]), Vector(n), *numbers.sample(elements, 2)]
        if n > 1 and numbers.random() < 0.3:
            self.elements.append(Matrix(n, kind="real"))
        periodic = numbers.random() < 0.5
        self.boundaries = [None if periodic else self._boundary(e) for e in self.elements]
        self.storages = ["float32" if numbers.random() < 0.15 else self.precision for _ in self.elements]
        self.reach = 2 if min(self.extents) > 4 and numbers.random() < 0.3 else 1
        here = (0,) * len(self.extents)
        offsets = list(dict.fromkeys([here, *(self._offset() for _ in range(3))]))
        self.loads = [(k, offset) for offset in offsets for k in range(len(self.elements))]
        for k, _ in self.loads:
            element = self.elements[k].type
            Generator.add(g, None, element.kind, element.shape)
        known = list(range(len(self.elements)))  # those of this site
        recipe = self._recipe(n)
        for position in range(1, len(offsets)):
            if numbers.random() < 0.2:
                recipe = self._recipe(n)
            first = position * len(self.elements)
            for k in recipe.wanted:

                def step(J, v, recipe=recipe, first=first, k=k):
                    return recipe.evaluate(J, v[first : first + len(self.elements)])[k]

                Generator.add(g, step, *recipe.types[k])
                known.append(len(g.types) - 1)
        g.remote = known[len(self.elements) :]
        g.allowed = known
        fields = len(g.allowed)
        for _ in range(20):
            if numbers.random() < 0.6:
                g.hop()
            else:
                g.grow()
            if len(g.allowed) >= fields + numbers.choice([1, 1, 2, 4]):
                break
        made = g.allowed[fields:]
        self.chosen = sorted({made[-1], *numbers.sample(made, min(2, len(made)))})

    def _recipe(self, n):
        """What is made at a neighbour's place of the fields there; mostly the same at all places, and small."""
        recipe = Places(self.numbers)
        recipe.n = n
        recipe.allowed = []
        for element in self.elements:
            recipe.add(None, element.type.kind, element.type.shape)
        largest = max(e.type.reals for e in self.elements)
        if self.numbers.random() < 0.4:
            recipe.grow()
        for _ in range(20):
            recipe.product()
            if 2 * Type(*recipe.types[-1]).reals <= largest:
                break
        last = len(recipe.types) - 1
        recipe.wanted = [last, self.numbers.randrange(last)] if self.numbers.random() < 0.1 else [last]
        return recipe

    def _boundary(self, element):
        complex_ = element.type.kind == "complex" and element.codec == "plain"
        kinds = CONDITIONS if complex_ else CONDITIONS[:-1]
        return [self.numbers.choice(kinds) for _ in self.extents]

    def _offset(self):
        """Mostly a step in one direction, as in most formulas."""
        d = len(self.extents)
        steps = [0] * d
        others = [axis for axis in range(d) if axis != self.axis]
        axes = [self.axis if not others or self.numbers.random() < 0.7 else self.numbers.choice(others)]
        for axis in axes + (others[:1] if self.numbers.random() < 0.15 else []):
            steps[axis] = self.numbers.choice([1, -1] * 3 + [self.reach, -self.reach])
        return tuple(steps)

    def values(self, element, k):
        """The field's values over the whole lattice; whole numbers where that is asked for and possible."""
        rng = np.random.default_rng(k)
        if not self.whole or element.codec == "algebra":
            return random_values(rng, self.extents, element)
        shape = (*self.extents, *element.numpy_shape)
        values = rng.integers(-1, 2, shape).astype(float)
        return values + 1j * rng.integers(-1, 2, shape) if element.type.kind == "complex" else values

    def grid(self, ranks):
        """A random grid of so many ranks on which no box is narrower than the reach."""
        grids = [
            g
            for g in np.ndindex(*([ranks + 1] * len(self.extents)))
            if np.prod(g) == ranks
            and all(p == 1 or n // p >= self.reach for n, p in zip(self.extents, g, strict=True))
        ]
        along = [g for g in grids if g[self.axis] > 1]
        return self.numbers.choice(along if along and self.numbers.random() < 0.9 else grids)

    def run(self, grid=None, lanes=None, items=True, device="cpu"):
        """The bytes of all outputs and of their sum; NaNs all alike."""
        lattice = Lattice(*self.extents, grid=grid, lanes=lanes, halo_items=items, device=device)
        inputs = []
        for k, element in enumerate(self.elements):
            options = {"precision": self.precision, "storage": self.storages[k]}
            field = Field(lattice, element, boundary=self.boundaries[k], **options)
            field[...] = self.values(element, k)
            inputs.append(field)
        g = self.generator
        outputs = [Field(lattice, element_of(*g.types[k]), precision=self.precision) for k in self.chosen]

        def program(J, X, ins, outs, total):
            values = []
            for k, offset in self.loads:
                site = X
                for mu, step in zip(X.directions(), offset, strict=True):
                    site = site + step * mu
                values.append(ins[k][site])
            values = g.evaluate(J, values)
            for out, k in zip(outs, self.chosen, strict=True):
                out[X] = values[k]
            total += values[self.chosen[0]]

        total = lattice.sum(bind(program, ["ins", "outs", "total"]), inputs, outputs)
        return [bytes_of(a) for a in (*(out[...] for out in outputs), total)]


def bytes_of(values):
    """Every bit, the sign of zeros too, but not which NaN it is."""
    values = np.ascontiguousarray(values)
    if values.dtype.kind == "c":
        values = values.reshape(-1).view(values.real.dtype)
    return np.where(np.isnan(values), np.nan, values).tobytes()


def assert_same_bytes(formula, everything):
    expected = formula.run()
    widths = [1, 2, 4, 8, 16]
    alone = [{"lanes": n} for n in (widths if everything else [formula.numbers.choice(widths)])]
    alone += [{"device": "cuda"}] if everything or formula.numbers.random() < 0.3 else []
    for options in alone:
        assert formula.run(**options) == expected, options
    for ranks in (2, 3, 4) if everything else (2, formula.numbers.choice([3, 4])):
        ways = [{"items": True}, {"items": False}, {"device": "cuda"}]
        for options in ways if everything else [ways[0], formula.numbers.choice(ways)]:
            grid = formula.grid(ranks)
            for result in jali.virtual_ranks(ranks, lambda g=grid, o=options: formula.run(g, **o)):
                assert result == expected, (ranks, grid, options)


COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],  # every formula is compiled anew: no shrinking
}


@settings(max_examples=5, derandomize=True, **COMMON)
@given(st.randoms(use_true_random=False))
def test_random_formula_gives_the_same_bytes_however_it_is_run(numbers):
    assert_same_bytes(Formula(numbers), everything=False)


@pytest.mark.full
@pytest.mark.timeout(3000)
@settings(max_examples=60, **COMMON)
@given(st.randoms(use_true_random=False))
def test_many_random_formulas_give_the_same_bytes_in_every_way(numbers):
    assert_same_bytes(Formula(numbers), everything=True)


def laplacian(n, grid, items, boundary):
    """The covariant Laplacian of the issue, whose products are rounded with their sums."""
    lattice = Lattice(4, 4, 4, 4, grid=grid, halo_items=items)
    rng = np.random.default_rng(1)
    U = []
    for _ in range(4):
        u = Field(lattice, SU(n))
        u[...] = random_values(rng, lattice.extents, SU(n))
        U.append(u)
    f, out = Field(lattice, Vector(n), boundary=boundary), Field(lattice, Vector(n))
    f[...] = random_values(rng, lattice.extents, Vector(n))

    @jali.site_function
    def laplace(X, out, U, f):
        total = jali.zero(Vector(n))
        for mu in X.directions():
            total += U[mu][X] * f[X + mu] + U[mu][X - mu].dagger() * f[X - mu]
        out[X] = total - 8 * f[X]

    laplace(out, U, f)
    return bytes_of(out[...])


@pytest.mark.short(2)
@pytest.mark.parametrize("boundary", [None, {3: "antiperiodic"}, {3: cmath.exp(0.3j)}], ids=str)
@pytest.mark.parametrize("n", [2, 3])
def test_covariant_laplacian_is_the_same_on_one_rank_and_several(n, boundary):
    expected = laplacian(n, None, True, boundary)
    for grid in ((1, 1, 1, 2), (2, 1, 2, 1)):
        for items in (True, False):
            results = jali.virtual_ranks(int(np.prod(grid)), laplacian, n, grid, items, boundary)
            assert all(result == expected for result in results)


def hop_back(grid, items):
    """Projected neighbours that cancel exactly, seen across an antiperiodic boundary: zeros with a sign."""
    lattice = Lattice(4, 8, grid=grid, halo_items=items)
    u, psi = Field(lattice, SU(3)), Field(lattice, Spinor(3), boundary={1: "antiperiodic"})
    u[...] = np.broadcast_to(np.eye(3), (4, 8, 3, 3))
    psi[...] = np.ones((4, 8, 4, 3))
    out = Field(lattice, Vector(3))

    @jali.site_function
    def project_back(X, out, u, psi):
        mu = X.directions()[1]
        p = psi[X - mu]
        h = u[X - mu].dagger() * jali.vector([p[a, 0] - p[a, 2] for a in range(3)])
        out[X] = jali.vector([h[a] for a in range(3)])

    project_back(out, u, psi)
    return bytes_of(out[...])


def test_sign_of_a_cancelled_zero_across_an_antiperiodic_boundary_does_not_depend_on_who_multiplies():
    expected = hop_back(None, True)
    assert np.frombuffer(expected).max() == 0
    for items in (True, False):
        assert all(r == expected for r in jali.virtual_ranks(2, hop_back, (1, 2), items))
