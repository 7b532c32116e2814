"""200 programs whose kernels' texts are compared: those of the tests of language, gauge theory and fermions, of the examples, and
random ones.

A program is a function of a `Target`, which says where its lattice is. Values do not matter, since nothing is computed.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jali
from jali import (
    EVEN,
    SU,
    Algebra,
    Complex,
    Field,
    Integer,
    Lattice,
    Matrix,
    Real,
    Spinor,
    Vector,
    fermions,
    gauge,
)
from jali.gauge import GaugeField

sys.path.extend(
    [
        str(Path(__file__).parents[1] / name)
        for name in ("", "language", "gauge", "identity", "gpu", "lattice", "fermions")
    ]
)

import collect_kernels
import test_arrays
import test_block_sums
import test_extremes
import test_formats
import test_given_offsets
import test_labels
import test_neighbours
import test_odd_halves
import test_operations
import test_random
import test_random_formulas
import test_spin
import test_tables
import test_two_lattices
import test_u1
import test_whole_numbers
from random_programs import Generator, element_of
from support import bind

from jali.bench.compare import cases as benchmarks

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Target:
    """What a program is written for: the device of its lattices, and contexts in which texts are recorded and not recorded."""

    device: str
    recorded: Callable[[], Any]
    unrecorded: Callable[[], Any]

    def lattice(self, *extents: int, **options: Any) -> Lattice:
        """A lattice on this target."""
        return Lattice(*extents, device=self.device, **options)

    def links(
        self, lattice: Lattice, n: int, precision: str = "float64", storage: str | None = None
    ) -> GaugeField:
        """Links that are set, as their users demand."""
        with self.unrecorded():
            return GaugeField(lattice, SU(n), precision=precision, storage=storage).cold_start()

    def on_ranks(self, count: int, body: Callable[[], object]) -> None:
        """Runs a program on so many ranks; the texts are those of rank 0."""

        def of_rank() -> None:
            if jali.comm.current().rank == 0:
                with self.recorded():
                    body()
            else:
                body()

        jali.virtual_ranks(count, of_rank)


PROGRAMS: dict[str, Callable[[Target], object]] = {}


def program(name: str) -> Callable[[Callable[[Target], object]], Callable[[Target], object]]:
    """Registers a program."""

    def register(function: Callable[[Target], object]) -> Callable[[Target], object]:
        assert name not in PROGRAMS, name
        PROGRAMS[name] = function
        return function

    return register


# ---- operations of the language ---------------------------------------------------------------------------------

CHOSEN_CASES = ("real", "complex", "Matrix(3)", "real Matrix(2)", "rectangles", "Algebra(3)", "integers")


def operation(case: Any, expression: Any, element: Any, sites: bool, precision: str, target: Target) -> None:
    """One operation of tests/language/test_operations.py."""
    lattice = target.lattice(4, 8, 2)
    inputs = [Field(lattice, e, precision=precision) for e in case.inputs]

    def body(J: Any, X: Any, ins: Any, out: Any) -> None:
        values = [f[X] for f in ins]
        out[X] = expression(J, X, *values) if sites else expression(J, *values)

    bind(body, ["ins", "out"]).kernels(inputs, Field(lattice, element, precision=precision))


for case_name in CHOSEN_CASES:
    case = test_operations.CASES[case_name]
    for number, (name, (expression, element)) in enumerate(case.operations.items()):
        if number % 2 == 0:
            precision = ("float64", "float32")[number // 2 % 2]
            program(f"operation/{case_name}/{name}/{precision}")(
                functools.partial(operation, case, expression, element, case_name == "integers", precision)
            )


# ---- random programs --------------------------------------------------------------------------------------------


def random_program(seed: int, target: Target) -> None:
    """Eight random operations on values at random offsets, as in tests/language/test_expressions.py."""
    g = Generator(random.Random(seed))
    lattice = target.lattice(*g.random.choice([(8, 12), (24,), (4, 8, 6), (4, 4, 8, 4)]))
    precision, n = g.random.choice(["float64", "float32"]), g.n
    elements = [
        Real(),
        Real(),
        Complex(),
        Vector(n),
        Matrix(n),
        SU(n),
        Algebra(n),
        Spinor(n),
        Matrix(2, kind="real"),
    ]
    conditions = ["periodic", "periodic", "antiperiodic", "open"]
    inputs = [
        Field(lattice, element, precision=precision, boundary=g.random.choice(conditions))
        for element in g.random.sample(elements, 4)
    ]
    loads = []
    for k, field in enumerate(inputs):
        for _ in range(2):
            loads.append((k, [g.random.choice([0, 0, 1, -1, 2]) for _ in range(lattice.ndim)]))
            g.add(None, field.element.type.kind, field.element.type.shape)
    first = len(g.types)
    while len(g.types) < first + 8:
        g.grow()
    chosen = sorted(g.random.sample(range(first, len(g.types)), 3))

    def body(J: Any, X: Any, ins: Any, outs: Any, total: Any) -> None:
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
        total += values[chosen[-1]]

    outputs = [Field(lattice, element_of(*g.types[k]), precision=precision) for k in chosen]
    lattice.sum(bind(body, ["ins", "outs", "total"]), inputs, outputs)


for seed in range(34):
    program(f"random/{seed}")(functools.partial(random_program, seed))


def formula(seed: int, target: Target) -> None:
    """A formula of tests/identity on two ranks, with what they send each other."""

    def body() -> None:
        drawn = test_random_formulas.Formula(random.Random(seed))
        drawn.run(drawn.grid(2), device=target.device)

    target.on_ranks(2, body)


for seed in range(12):
    program(f"formula/{seed}")(functools.partial(formula, seed))


# ---- gauge theory, fermions and solvers -------------------------------------------------------------------------


def with_links(
    n: int, precision: str, use: Callable[[GaugeField], object], storage: str | None, target: Target
) -> None:
    """Something that is done with links."""
    use(target.links(target.lattice(4, 4, 4, 8), n, precision, storage))


def spinors(U: GaugeField, count: int, **options: Any) -> list[Field]:
    """Fields beside links."""
    return [Field(U.lattice, Spinor(U.n), precision=U.precision, **options) for _ in range(count)]


def vector_algebra(U: GaugeField) -> None:
    """What conjugate gradients do besides the operator."""
    vectors = collect_kernels.FieldVectors()
    x, r, p, q = spinors(U, 4)
    alpha = vectors.inner(p, q, wait=False).real / U.lattice.scalar(2.0)
    vectors.update([(r, 0, [(1, x), (-1, q)])], norm=True)
    rr = vectors.update([(r, 1, [(-alpha, q)])], norm=True, wait=False)
    vectors.update([(x, 1, [(alpha, p)]), (p, (rr > 1.0).where(jali.sqrt(rr) / 3.0, 0.0), [(1, r)])])


def _unitarity(U: GaugeField) -> None:
    with contextlib.suppress(ValueError):  # no kernel runs here, and there is no root of what the sum is then
        U.unitarity_deviation()


USES: dict[str, Callable[[GaugeField], object]] = {
    "hot start": lambda U: U.hot_start(jali.Random(1)),
    "reunitarise": lambda U: U.reunitarise(),
    "unitarity": _unitarity,
    "heat bath": lambda U: gauge.heat_bath_sweep(U, 6.0, jali.Random(1)),
    "overrelaxation": lambda U: gauge.overrelaxation_sweep(U),
    "metropolis": lambda U: gauge.metropolis_sweep(U, 6.0, jali.Random(1)),
    "plaquettes": gauge.plaquettes,
    "link trace": gauge.link_trace,
    "polyakov loop": gauge.polyakov_loop,
    "wilson loops": lambda U: gauge.wilson_loops(U, 2, 2),
    "ape smearing": gauge.ape_smear,
    "stout smearing": gauge.stout_smear,
    "force": lambda U: gauge.wilson_action(6.0).force(U),
    "flow": lambda U: gauge.Flow(U, step=0.05).advance(1),
    "rectangles": lambda U: gauge.iwasaki_action(2.0).force(U),
    "wilson": lambda U: fermions.WilsonDirac(U, 0.1).apply(*spinors(U, 2)),
    "normal wilson": lambda U: fermions.WilsonDirac(U, 0.1).normal(
        spinors(U, 1, boundary=[1, 1, 1, "antiperiodic"])[0]
    ),
    "vector algebra": vector_algebra,
}
ONLY_SU3 = ("reunitarise", "unitarity", "link trace", "ape smearing", "rectangles", "normal wilson")
for n, precision in ((3, "float64"), (2, "float32")):
    for name, use in USES.items():
        if n == 3 or name not in ONLY_SU3:
            program(f"gauge/SU({n})/{precision}/{name}")(
                functools.partial(with_links, n, precision, use, None)
            )
for storage in ("float32-12", "fixed16-8", "float16"):
    for name in ("plaquettes", "wilson"):
        program(f"gauge/SU(3)/{storage}/{name}")(
            functools.partial(with_links, 3, "float64", USES[name], storage)
        )
for name in ("heat bath", "flow"):
    program(f"gauge/SU(1)/float64/{name}")(functools.partial(with_links, 1, "float64", USES[name], None))


@program("gauge/SU(3)/on two ranks/wilson")
def wilson_on_ranks(target: Target) -> None:
    def body() -> None:
        U = target.links(target.lattice(4, 4, 4, 8, grid=(1, 1, 1, 2)), 3)
        fermions.WilsonDirac(U, 0.1).apply(*spinors(U, 2, boundary=[1, 1, 1, "antiperiodic"]))

    target.on_ranks(2, body)


# ---- examples ---------------------------------------------------------------------------------------------------


@functools.cache
def example(name: str) -> dict[str, Any]:
    """What an example imports and defines, without what it runs."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)
    ]
    space: dict[str, Any] = {"__name__": name, "q": 10, "np": np}
    exec(compile(tree, f"{name}.py", "exec"), space)
    return space


def in_example(name: str, use: Callable[[dict[str, Any], Target], object], target: Target) -> None:
    use(example(name), target)


def scalar_fields(
    target: Target, count: int, *extents: int, element: Any = None, **options: Any
) -> list[Field]:
    """Real fields, or others, on a lattice of this target."""
    lattice = target.lattice(*extents)
    return [Field(lattice, element or Real(), **options) for _ in range(count)]


def links_of(target: Target, n: int = 3) -> GaugeField:
    return target.links(target.lattice(4, 4, 4, 4), n)


def potts(space: dict[str, Any], target: Target) -> None:
    (s,) = scalar_fields(target, 1, 8, 8, element=Integer())
    bonds = np.ones(8), np.ones(8)
    space["metropolis"][EVEN](s, jali.Random(1), 0.5, *bonds)
    s.lattice.sum(space["equal"], s, *bonds)


def higgs(space: dict[str, Any], target: Target) -> None:
    U = links_of(target, 2)
    a = Field(U.lattice, SU(2))
    space["update_link"].kernels(U, a, jali.Random(1), 2.0, 0.3, U.lattice.directions[1], "Creutz", over=EVEN)
    space["update_higgs"].kernels(U, a, jali.Random(1), 0.3, over=EVEN)
    U.lattice.sum(space["hopping"], U, a)


def o3(space: dict[str, Any], target: Target) -> None:
    (s,) = scalar_fields(target, 1, 64, element=Vector(3, kind="real"))
    space["update"][EVEN](s, jali.Random(1), 2.0, True)
    s.lattice.sum(space["bonds"], s)


def of_one_field(*names: str, sums: Callable[[dict[str, Any], Field], object]) -> Any:
    def use(space: dict[str, Any], target: Target) -> None:
        (phi,) = scalar_fields(target, 1, 8, 8, 8)
        for name in names:
            space[name][EVEN](
                phi,
                jali.Random(1),
                *((0.5,) if name == "heat_bath" and "beta" in space[name].parameters else (0.3, 0.1)),
            )
        sums(space, phi)

    return use


EXAMPLE_USES: dict[str, Callable[[dict[str, Any], Target], object]] = {
    "heat": lambda space, target: space["diffuse"](*scalar_fields(target, 2, 8, 8, boundary="open"), 0.1),
    "waves": lambda space, target: space["step"](
        *scalar_fields(target, 3, 16, 16, boundary="open"), 0.1, 3, 4
    ),
    "plaquette": lambda space, target: (lambda U: U.lattice.sum(space["plaquette"], U))(links_of(target)),
    "free_pion": lambda space, target: (lambda psi: psi.lattice.sum(space["density"], psi, per=3))(
        scalar_fields(target, 1, 4, 4, 4, 8, element=Spinor(3))[0]
    ),
    "potts": potts,
    "su2_higgs": higgs,
    "o3_overrelaxation": o3,
    "ising": of_one_field("heat_bath", sums=lambda space, phi: phi.lattice.sum(space["measure"], phi)),
    "phi4": of_one_field(
        "heat_bath", sums=lambda space, phi: phi.lattice.sum(space["measure"], phi, 0.1, 0.2)
    ),
    "momentum_correlator": of_one_field(
        "update", sums=lambda space, phi: phi.lattice.sum(space["project"], phi, 0.1, 0.2, per=2)
    ),
}
for name, use_of_example in EXAMPLE_USES.items():
    program(f"example/{name}")(functools.partial(in_example, name, use_of_example))


# ---- site functions of other tests ------------------------------------------------------------------------------


def on_fields(
    function: Any, elements: list[Any], target: Target, *more: Any, over: Any = jali.ALL, **options: Any
) -> None:
    """A site function on fields of these elements, and on other arguments."""
    lattice = target.lattice(4, 8, 6)
    function.kernels(*(Field(lattice, element, **options) for element in elements), *more, over=over)


@program("language/tables")
def tables(target: Target) -> None:
    lattice = target.lattice(4, 6, 2)
    elements = [Real(), Complex(), Integer(), Vector(3), Matrix(2)]
    shapes = [(2,), (4, 6), (6,), (6, 3), (4, 4, 2, 2)]
    kinds = [float, complex, int, float, complex]
    arrays = [np.ones(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    fields = [Field(lattice, element) for element in elements]
    test_tables.look_up.kernels(*fields, *arrays)


@program("language/labels")
def labels(target: Target) -> None:
    f, n = (Field(lattice := target.lattice(8, 8), Real()), Field(lattice, Integer()))
    jali.inspect(test_labels.histogram, f, n, bins=test_labels.BINS)


@program("language/extremes")
def extremes(target: Target) -> None:
    f, n = (Field(lattice := target.lattice(8, 8), Real()), Field(lattice, Integer()))
    lattice.reduce(test_extremes.extremes, f, n)


@program("language/extremes per slice")
def extremes_per_slice(target: Target) -> None:
    f, n = (Field(lattice := target.lattice(8, 8), Real(), "float32"), Field(lattice, Integer(), "float32"))
    lattice.reduce(test_extremes.extremes, f, n, per=1)


@program("language/offsets that are arguments")
def given_offsets(target: Target) -> None:
    out, f = scalar_fields(target, 2, 8, 8)
    test_given_offsets.shifted.kernels(out, f, 2, f.lattice.directions[1])


@program("language/all neighbours")
def all_neighbours(target: Target) -> None:
    bind(test_neighbours.all_neighbours, ["out", "a"]).kernels(*scalar_fields(target, 2, 8, 8, 8))


@program("language/all neighbours, prefetched")
def all_neighbours_prefetched(target: Target) -> None:
    with jali.settings.using(prefetch="all"):
        fields = scalar_fields(target, 2, 8, 8, 8, element=Matrix(3))
        bind(test_neighbours.all_neighbours, ["out", "a"]).kernels(*fields)


for condition in ("antiperiodic", "open", 1j):

    @program(f"language/all neighbours, {condition}")
    def all_neighbours_with(target: Target, condition: Any = condition) -> None:
        fields = scalar_fields(target, 2, 8, 8, element=Complex(), boundary=condition)
        bind(test_neighbours.all_neighbours, ["out", "a"]).kernels(*fields)


for name in ("draw_uniform", "draw_gaussian", "draw_many", "semicircle"):

    @program(f"language/{name}")
    def draw(target: Target, name: str = name) -> None:
        more = (0.5,) if name == "semicircle" else ()
        element = Vector(5, kind="real") if name == "draw_many" else Real()
        on_fields(getattr(test_random, name), [element], target, jali.Random(1), *more)


@program("language/whole numbers")
def whole_numbers(target: Target) -> None:
    on_fields(test_whole_numbers.constants, [Integer()] * 5, target, 5)


@program("language/U(1)")
def u1(target: Target) -> None:
    lattice = target.lattice(8, 8)
    out, phi = (Field(lattice, Complex()) for _ in range(2))
    U = target.links(lattice, 1)
    test_u1.covariant_laplace.kernels(out, phi, U, 0.1)
    lattice.sum(test_u1.hopping, phi, U)


@program("fermions/spin matrices")
def spin_matrices(target: Target) -> None:
    on_fields(test_spin.apply_matrix, [Spinor(3)] * 2, target, fermions.gamma[1])


@program("lattice/block sums")
def block_sums(target: Target) -> None:
    f, c = Field(target.lattice(8, 8), Complex()), Field(target.lattice(4, 2), Complex())
    jali.block_sums(test_block_sums.add, f, onto=c)


for name in ("block_sum", "inject", "coarse_slope", "around_the_block"):

    @program(f"lattice/{name}")
    def two_lattices(target: Target, name: str = name) -> None:
        fine, coarse = Field(target.lattice(8, 8), Complex()), Field(target.lattice(4, 4), Complex())
        order = (coarse, fine) if name in ("block_sum", "around_the_block") else (fine, coarse)
        getattr(test_two_lattices, name).kernels(*order)


for storage in ("float16", "bfloat16", "fixed16", "float32"):

    @program(f"lattice/stored as {storage}")
    def stored(target: Target, storage: str = storage) -> None:
        lattice = target.lattice(4, 4, 2)
        y, x, z = (Field(lattice, Vector(3), storage=s) for s in (storage, None, None))
        lattice.sum(test_formats.write_and_read, y, x, z)


@program("lattice/arrays")
def arrays(target: Target) -> None:
    lattice = target.lattice(6, 8)
    wrapped = [
        collect_kernels.arrays_of(lattice, Field(lattice, Complex()))
        if target.device != "cpu"
        else lattice.wrap(np.zeros((6, 8), complex), Complex())
        for _ in range(2)
    ]
    test_arrays.laplacian.kernels(*wrapped)
    test_arrays.far.kernels(wrapped[0], Field(lattice, Complex()))


@program("lattice/odd halves")
def odd_halves(target: Target) -> None:
    lattice = target.lattice(6, 6, 6)
    fields = [Field(lattice, Complex(), boundary="antiperiodic") for _ in range(2)]
    test_odd_halves.moved.kernels(*fields)


for name in ("axpy", "laplacian", "copy"):

    @program(f"benchmark/{name}")
    def benchmark(target: Target, name: str = name) -> None:
        more = (0.5,) if name == "axpy" else ()
        on_fields(getattr(benchmarks, name), [Matrix(3)] * 2, target, *more)
