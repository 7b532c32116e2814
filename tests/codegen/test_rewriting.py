"""Rewritten programs compute what programs written so would compute, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import SU, Complex, Field, Lattice, Real, Vector
from jali.codegen.builder import Builder
from jali.codegen.ir import Store, Sum
from jali.codegen.language import arithmetic, leaves
from jali.codegen.operation import described
from jali.codegen.rewriting import joined, part_of, reachable, rebuild, rewritten, shifted, substituted
from jali.codegen.stages import analyse_program, trace_function
from jali.codegen.storage_formats import FieldArgument, plain, stored
from jali.lattice.domain import ALL
from jali.lattice.lowering import bind
from jali.lattice.sums import Sums

EXTENTS = (6, 8)
ZERO = (0, 0)


def program_of(function, *arguments):
    described_ = [a if isinstance(a, str) else FieldArgument(a, k) for k, a in enumerate(arguments)]
    (program,) = trace_function(
        function, [], described_, [f"f{k}" for k in range(len(arguments))], 2, "float64"
    ).programs
    return program


def run(program, fields):
    """The program on fields, as a call would run it."""
    lattice = fields[0].lattice
    kernel = bind(analyse_program(program), fields, lattice, ALL, Sums() if program.sums else None)
    return kernel.launch.run()


def fields_of(*elements, seed=1, storage=None):
    lattice = Lattice(*EXTENTS)
    found = []
    for k, element in enumerate(elements):
        rng = np.random.default_rng(seed + k)
        field = Field(lattice, element, storage=storage)
        values = rng.normal(size=(*EXTENTS, *element.numpy_shape))
        if element.type.kind == "complex":
            values = values + 1j * rng.normal(size=values.shape)
        field[...] = values
        found.append(field)
    return found


def kept(*elements, storage="float64"):
    return [stored(storage, element, "float64") for element in elements]


def nodes_of(program):
    return reachable(effect.value for effect in program.effects)


def laplace(X, out, f):
    out[X] = sum(f[X + mu] + f[X - mu] for mu in X.directions()) - 4 * f[X] + X.coordinate(1)


def same(a, b):
    """Whether two programs have equal texts."""
    from jali.codegen.stages import lower, write
    from jali.codegen.writer import Lowering

    return [write(lower(analyse_program(p), Lowering(4))).kernel.text.split("\n", 1)[1] for p in (a, b)]


# ---- rebuilding ----------------------------------------------------------------------------------------


def test_a_program_that_is_rebuilt_has_the_same_nodes_and_text():
    program = program_of(laplace, *kept(Real(), Real()))
    again = rewritten(program, "nothing")
    assert [(n.op, n.attrs, n.type, n.where) for n in nodes_of(again)] == [
        (n.op, n.attrs, n.type, n.where) for n in nodes_of(program)
    ]
    assert not {id(n) for n in nodes_of(again)} & {id(n) for n in nodes_of(program)}
    one, other = same(program, again)
    assert one == other
    assert again.rewrites == (*program.rewrites, "nothing")


def test_equal_expressions_are_one_node_again():
    program = program_of(
        lambda X, out, f, g: out.__setitem__(X, f[X] * f[X] + g[X] * g[X]), *kept(*[Real()] * 3)
    )
    load = {node.attrs[0]: node for node in nodes_of(program) if described(node).reads}
    assert len(load) == 2
    merged = substituted(program, "g is f", {load[2]: lambda nodes, copy: copy(load[1])})
    products = [node for node in nodes_of(merged) if arithmetic.mul.made(node)]
    assert len([node for node in nodes_of(merged) if described(node).reads]) == 1
    assert len(products) <= 1  # the other one is rounded with the sum


def test_what_takes_the_place_of_a_value_has_its_type():
    program = program_of(laplace, *kept(Real(), Real()))
    load = next(node for node in nodes_of(program) if described(node).reads)

    def rule(nodes, node, args):
        return leaves.const(nodes, 0) if node is load else None

    with pytest.raises(AssertionError, match="a int cannot take the place of"):
        rebuild(Builder(), [effect.value for effect in program.effects], rule)


def test_loops_and_draws_are_kept():
    def draw(X, out, f, rng):
        accepted = X.repeat_until(lambda: (rng.uniform(X) < 0.5, f[X] * rng.gaussian(X)), 40, 0.0)
        out[X] = accepted + rng.integers(X, 7) + rng.uniform(X)

    program = program_of(draw, *kept(Real(), Real()), "random")
    one, other = same(program, rewritten(program, "nothing"))
    assert one == other
    assert "attempt < 40" in one


# ---- shifting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [(1, 0), (-2, 3), (0, -1)])
def test_a_shifted_program_is_seen_from_another_site(by):
    program = program_of(laplace, *kept(Real(), Real()))
    out, f = fields_of(Real(), Real())
    run(program, [out, f])
    expected = np.roll(out[...], tuple(-b for b in by), (0, 1))
    moved = shifted(program, by)
    moved.effects = [Store(e.slot, ZERO, e.value, e.where) for e in moved.effects]  # written at its own site
    run(moved, [out, f])
    assert np.array_equal(out[...], expected)


def test_shifting_there_and_back_changes_nothing():
    def push(X, out, f, rng):
        out[X] = f[X + X.directions()[0]] + rng.uniform(X) + X.coordinate(0)

    program = program_of(push, *kept(Real(), Real()), "random")
    there = shifted(program, (2, -1))
    assert there.shift == (-2, 1)
    assert {node.attrs[-1] for node in nodes_of(there) if described(node).draws} == {(2, -1)}
    one, other = same(program, shifted(there, (-2, 1)))
    assert one == other


def test_an_adjoint_is_a_sum_of_shifted_programs():
    """The gather of what a hop scatters: sum over y of the transposed weights."""
    e = (1, 0)

    def hop(X, out, f, w):
        out[X] = w[X] * f[X + X.directions()[0]]

    out, f, w = fields_of(Real(), Real(), Real())
    program = program_of(hop, *kept(Real(), Real(), Real()))
    run(program, [out, f, w])
    image = out[...]
    weights = substituted(  # d out / d f at the neighbour
        program,
        "derivative",
        {n: lambda nodes, copy: leaves.const(nodes, 1.0) for n in nodes_of(program) if n.attrs == (1, e)},
    )
    transposed = shifted(weights, tuple(-o for o in e))
    nodes = Builder()
    made = rebuild(nodes, [transposed.effects[0].value])
    value = arithmetic.mul(
        nodes, made[transposed.effects[0].value.number], leaves.load(nodes, 1, (-1, 0), Real().type)
    )
    transposed.effects = [Store(0, ZERO, value, "")]
    g = fields_of(Real(), seed=9)[0]
    back = Field(out.lattice, Real())
    rng = np.random.default_rng(5)
    values = rng.normal(size=EXTENTS)
    y = Field(out.lattice, Real())
    y[...] = values
    wy = Field(out.lattice, Real())
    wy[...] = w[...]
    run(transposed, [back, y, wy])
    assert np.isclose((image * values).sum(), (f[...] * back[...]).sum(), rtol=1e-13)
    assert g.element == Real()


# ---- parts ---------------------------------------------------------------------------------------------


def test_a_part_and_the_rest_are_the_whole():
    def formula(X, out, f, U):
        e = X.directions()[1]
        out[X] = U[X] * (U[X].dagger() * f[X + e]) + f[X]

    elements = Vector(2), Vector(2), SU(2)
    program = program_of(formula, *kept(*elements))
    value = next(n for n in nodes_of(program) if n.op == "matmul")
    part = part_of(program, "half", [value])
    assert part.outputs == value.type.reals == 4
    part.effects = [Store(3, ZERO, part.effects[0].value, "")]
    part.outputs = 0
    between = [*program.fields, type(program.fields[0])("half", plain(Vector(2), "float64"))]
    part.fields = between
    rest = substituted(
        program, "rest", {value: lambda nodes, copy: leaves.load(nodes, 3, ZERO, value.type)}, fields=between
    )
    out, f, U, half = fields_of(*elements, Vector(2))
    run(program, [out, f, U])
    expected = out[...]
    out[...] = 0
    run(part, [out, f, U, half])
    run(rest, [out, f, U, half])
    assert np.array_equal(out[...], expected)


# ---- joining -------------------------------------------------------------------------------------------


def scaled(X, out, f):
    out[X] = 0.3 * f[X] + f[X + X.directions()[0]]


def squares(X, g, h, total):
    total += (g[X].conj() * h[X]).real


@pytest.mark.parametrize("storage", ["float64", "float32", "float16"])
def test_an_operator_and_an_inner_product_are_one_kernel_with_the_same_bits(storage):
    out, f = fields_of(Complex(), Complex(), storage=storage)
    apart = program_of(scaled, *kept(Complex(), Complex(), storage=storage))
    inner = program_of(squares, *kept(Complex(), Complex(), storage=storage), "sum")
    run(apart, [out, f])
    expected, image = run(inner, [out, f]), out[...]
    out[...] = 0
    together = joined("both", apart, inner, [0, 1])
    assert [type(effect) for effect in together.effects] == [Store, Sum]
    found = run(together, [out, f])
    assert np.array_equal(found, expected)
    assert np.array_equal(out[...], image)
    reads = analyse_program(together).analysis.reads
    assert list(reads) == [1]  # what is written is not read again
    assert "joined" in together.rewrites[0]


def test_programs_over_other_fields_are_done_one_after_the_other():
    a, b, c = fields_of(Real(), Real(), Real())
    first = program_of(scaled, *kept(Real(), Real()))
    second = program_of(lambda X, z, x, y: z.__setitem__(X, x[X] * y[X] + z[X]), *kept(*[Real()] * 3))
    run(first, [a, b])
    run(second, [c, a, b])
    expected = a[...], c[...]
    a, b, c = fields_of(Real(), Real(), Real())
    run(joined("both", first, second, [None, 0, 1]), [a, b, c])
    assert np.array_equal(a[...], expected[0])
    assert np.array_equal(c[...], expected[1])


def test_the_later_of_two_stores_counts():
    a, b = fields_of(Real(), Real())
    first = program_of(scaled, *kept(Real(), Real()))
    twice = joined("twice", first, program_of(lambda X, y: y.__setitem__(X, 2 * y[X]), *kept(Real())), [0])
    assert len(twice.effects) == 1
    run(first, [a, b])
    expected = 2 * a[...]
    run(twice, [a, b])
    assert np.array_equal(a[...], expected)


def test_loops_numbers_and_sums_of_both_are_kept_apart():
    def draw(X, out, c, rng, total):
        out[X] = c * X.repeat_until(lambda: (rng.uniform(X) < 0.5, rng.gaussian(X)), 40, 0.0)
        total += out[X]

    one = trace_function(
        draw,
        [],
        [FieldArgument(kept(Real())[0], 0), Real().type, "random", "sum"],
        ["out", "c", "r", "t"],
        2,
        "float64",
    ).programs[0]
    both = joined("both", one, one, [None])
    assert [len(x) for x in (both.fields, both.scalars, both.randoms, both.loops, both.sums)] == [2] * 5
    found = nodes_of(both)
    assert {n.attrs[0] for n in found if n.op == "scalar"} == {0, 1}
    assert {(n.attrs[0], n.attrs[2]) for n in found if n.op == "philox"} == {(0, 0), (1, 1)}
    assert {n.attrs[0] for n in found if n.op == "repeat"} == {0, 1}
    assert {frozenset({0}), frozenset({1})} <= {n.loops for n in found}
    assert [effect.slot for effect in both.effects] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("first", "second", "slots", "match"),
    [
        (scaled, scaled, [1, 0], r"scaled reads at \(1, 0\) what scaled writes"),
        (scaled, scaled, [None, 0], r"scaled reads at \(1, 0\) what scaled writes"),
        (lambda X, a, b: a.__setitem__(X + X.directions()[0], b[X]), scaled, [None, None], "has the shift"),
    ],
)
def test_what_one_kernel_cannot_do_is_refused(first, second, slots, match):
    one, two = (program_of(f, *kept(Real(), Real())) for f in (first, second))
    with pytest.raises(ValueError, match=match):
        joined("both", one, two, slots)


def test_every_operation_says_what_its_attributes_number():
    """A pass that renumbers fields or loops would miss an attribute that no column names."""
    lists = {"fields", "scalars", "randoms", "loops", "items"}
    for operation in jali.codegen.operation.OPERATIONS.values():
        assert set(operation.indexes) <= lists
        for needed, what in (
            ("reads", "fields"),
            ("looks_up", "scalars"),
            ("draws", "randoms"),
            ("repeats", "loops"),
        ):
            assert not getattr(operation, needed) or what in operation.indexes, operation
        assert operation.argument is None or "scalars" in operation.indexes
        assert not (operation.reads or operation.draws) or operation.shifted is not None, operation
