"""The stages of a kernel: what is made once, what is found again, what goes when its maker goes, and what `jali.inspect` says."""

from __future__ import annotations

import ast
import dataclasses
import gc
import weakref
from pathlib import Path

import pytest

import jali
from jali import EVEN, ODD, SU, Field, Lattice, Real, Spinor, Vector
from jali.codegen.items import with_items
from jali.codegen.language import arithmetic, groups
from jali.codegen.number_kernels import NumberProgram, Summed, program_of_numbers
from jali.codegen.operation import OPERATIONS, Fusion, operation
from jali.codegen.rewriting import reachable
from jali.codegen.stage_cache import COUNTS, STAGES, StageCache
from jali.codegen.stages import analyse_program, lower, trace_function, write
from jali.codegen.state import builder
from jali.codegen.storage_formats import ArrayArgument, FieldArgument, stored
from jali.codegen.trace import trace
from jali.codegen.types import Type
from jali.codegen.values import Value
from jali.codegen.writer import Lowering
from jali.gauge.groups import project


def made():
    return {stage: COUNTS[stage].made for stage in STAGES}


def more_than(before):
    return {stage: n - before[stage] for stage, n in made().items() if n != before[stage]}


def average():
    @jali.site_function
    def average(X, out, f):
        out[X] = 0.5 * (f[X + X.directions()[0]] + f[X - X.directions()[0]])

    return average


def real_fields(lattice, n=2):
    return [Field(lattice, Real()) for _ in range(n)]


def program_of(function, *elements, ndim=2):
    fields = [FieldArgument(stored("float64", element, "float64"), k) for k, element in enumerate(elements)]
    names = [f"f{k}" for k in range(len(fields))]
    (program,) = trace_function(function, [], fields, names, ndim, "float64").programs
    return program


def test_every_stage_is_immutable():
    lattice = Lattice(4, 6)
    ((traced, bound),) = average().stages(*real_fields(lattice))
    source = bound.binary.source
    stages = traced, source.lowered.analysed, source.lowered, source, bound.binary, bound
    assert len(stages) == len(STAGES) - 1  # rewritten programs belong to what is traced and analysed
    for stage in stages:
        for name in (field.name for field in dataclasses.fields(stage)):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(stage, name, None)


def test_other_fields_of_the_same_types_are_only_bound():
    lattice, function = Lattice(8, 8), average()
    function(*real_fields(lattice))
    before = made()
    function(*real_fields(lattice))
    assert more_than(before) == {"bound": 1}


def test_a_call_that_was_made_before_makes_nothing():
    lattice, function = Lattice(8, 8), average()
    out, f = real_fields(lattice)
    function(out, f)
    before = made()
    function(out, f)
    assert more_than(before) == {}


def test_both_colours_share_one_text():
    lattice, function = Lattice(8, 8), average()
    out, f = real_fields(lattice)
    function[EVEN](out, f)
    before = made()
    function[ODD](out, f)
    assert more_than(before) == {"bound": 1}


def test_another_precision_is_another_trace_and_another_boundary_another_text():
    lattice, function = Lattice(8, 8), average()
    function(*real_fields(lattice))
    before = made()
    out, f = (Field(lattice, Real(), boundary="antiperiodic") for _ in range(2))
    function(out, f)
    assert set(more_than(before)) == {"lowered", "source", "binary", "bound"}
    before = made()
    out, f = (Field(lattice, Real(), precision="float32") for _ in range(2))
    function(out, f)
    assert set(more_than(before)) == set(STAGES)


def test_stages_go_with_what_they_are_made_of():
    analysed = analyse_program(
        program_of(lambda X, a, b: b.__setitem__(X, a[X] + a[X + X.directions()[1]]), Real(), Real())
    )
    lowered = lower(analysed, Lowering(4))
    source = write(lowered)
    assert lower(analysed, Lowering(4)) is lowered
    assert write(lowered) is source
    assert write(lower(analysed, Lowering(2))) is not source
    stages = [weakref.ref(stage) for stage in (analysed, lowered, source)]
    del analysed, lowered, source
    gc.collect()
    assert [stage() for stage in stages] == [None] * 3


def test_a_stage_cannot_be_changed():
    analysed = analyse_program(program_of(lambda X, a: a.__setitem__(X, 2 * a[X]), Real()))
    lowered = lower(analysed, Lowering(4))
    for stage, name in [
        (analysed, "program"),
        (lowered, "lowering"),
        (write(lowered), "kernel"),
        (write(lowered).kernel, "text"),
    ]:
        with pytest.raises(AttributeError):
            setattr(stage, name, None)


def test_a_cache_forgets_the_oldest():
    cache = StageCache("source", 2)
    for key in (1, 2, 3):
        assert cache.get(key, lambda key=key: [key]) == [key]
    assert len(cache) == 2
    assert cache.get(3, lambda: ["new"]) == [3]
    assert cache.get(1, lambda: ["new"]) == ["new"]


def test_what_two_threads_make_at_once_is_one_thing():
    cache = StageCache("source", 2)
    first = ["first"]

    def make():
        assert cache.get("key", lambda: first) is first  # another thread was faster
        return ["second"]

    assert cache.get("key", make) is first


def test_a_text_of_several_sites_per_thread_has_the_same_parameters():
    lowered = lower(
        analyse_program(program_of(lambda X, a, b: b.__setitem__(X, a[X] * a[X]), SU(3), SU(3))),
        Lowering(1, gpu=True),
    )
    one, multi_site = write(lowered), write(lowered, multi_site=True)
    assert one.kernel.text != multi_site.kernel.text
    assert one.kernel.parameters == multi_site.kernel.parameters


def test_inspect_has_a_page_for_each_stage():
    lattice = Lattice(8, 8)
    report = jali.inspect(average(), *real_fields(lattice))
    assert tuple(report.stages) == STAGES
    for stage, page in report.stages.items():
        assert str(page).startswith(f"{stage} (in this process {page.made} made, {page.found} found)")
        assert page.made >= 1
    assert report.stages["traced"].facts["programs"] == ["average"]
    assert "out at X = %" in report.stages["traced"].text
    analysed = report.stages["analysed"]
    assert analysed.facts["reads"] == ["f at X + e0", "f at X - e0"]
    assert analysed.facts["flops"] == report.flops
    assert "load(1, (1, 0))" in analysed.text
    assert report.stages["lowered"].facts["lanes"] == report.lanes
    assert report.stages["source"].text == report.source
    assert report.stages["binary"].facts["source"] == report.path
    assert report.stages["bound"].facts["bytes moved"] == report.bytes_moved


@pytest.mark.ranks(2)
def test_pages_name_halo_items_and_possible_races():
    @jali.site_function
    def hop(X, psi, U):
        mu = X.directions()[3]
        psi[X] = psi[X] + (U[X - mu].dagger() * psi[X - mu])[0, 0] * psi[X]

    def pages():
        lattice = Lattice(8, 8, 8, 8, grid=(1, 1, 1, 2))
        return [
            str(page)
            for page in jali.inspect(
                hop, lattice.field(Spinor(3)), lattice.field(SU(3)), over=EVEN
            ).stages.values()
        ]

    shown = jali.comm.virtual_ranks(2, pages)
    for rewritten, analysed, lowered in (pages[1:4] for pages in shown):
        assert "passes: 1 halo items" in rewritten
        assert "reads that may race: psi at X - e3" in analysed
        assert "halo items: 2 reals at X - e3" in lowered


@jali.site_function
def scatter(X, out, other, f):
    mu, nu = X.directions()
    out[X] = f[X]
    out[X + mu] = f[X] * f[X + nu]
    out[X - nu] = 2 * f[X + nu] + 1
    other[X - nu] = f[X]


def scattered(precision="float64"):
    lattice = Lattice(8, 8)
    return tuple(Field(lattice, Real(), precision=precision, name=name) for name in ("out", "other", "f"))


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_report_on_several_kernels_has_the_accesses_and_costs_of_all(precision):
    report = jali.inspect(scatter, *scattered(precision))
    assert report.reads == {"f": [(0, 0), (0, 1)]}
    assert report.writes == {"out": [(0, 0), (1, 0), (0, -1)], "other": [(0, -1)]}
    assert report.flops == 0 + 1 + 2
    size = int(precision[-2:]) // 8
    assert report.bytes_moved == (2 + 3 + 4) * size  # of f at so many offsets, and what is written
    assert report.bytes_least == (2 + 2 + 3) * size  # f once for each kernel
    assert [one.name for one in report.kernels] == ["scatter", "scatter_1", "scatter_2"]
    assert [one.flops for one in report.kernels] == [0, 1, 2]
    assert [one.writes for one in report.kernels] == [
        {"out": [(0, 0)]},
        {"out": [(1, 0)]},
        {"out": [(0, -1)], "other": [(0, -1)]},
    ]


def test_each_kernel_of_a_report_is_what_a_function_of_its_own_would_be():
    @jali.site_function
    def scatter_1(X, out, other, f):
        mu, nu = X.directions()
        out[X + mu] = f[X] * f[X + nu]

    fields = scattered()
    one, alone = jali.inspect(scatter, *fields).kernels[1], jali.inspect(scatter_1, *fields)
    assert alone.kernels == []
    assert one.kernels == []
    assert (one.source, one.reads, one.writes) == (alone.source, alone.reads, alone.writes)
    for stage in STAGES[1:]:
        assert one.stages[stage].facts == alone.stages[stage].facts, stage


def test_pages_of_several_kernels_show_all_of_them_by_name():
    report = jali.inspect(scatter, *scattered())
    names = ["scatter", "scatter_1", "scatter_2"]
    assert tuple(report.stages) == STAGES
    assert report.stages["traced"].facts["programs"] == names
    for stage in STAGES[1:]:
        page = report.stages[stage]
        assert page.facts == {one.name: one.stages[stage].facts for one in report.kernels}
        for one in report.kernels:
            assert one.stages[stage].text in page.text
            assert f"\n  {one.name}\n" in str(page)
    for stage in ("traced", "rewritten", "analysed"):
        lines = report.stages[stage].text.splitlines()
        assert [line for line in lines if line.startswith("// ")] == [f"// {name}" for name in names]
    for text in (report.stages["traced"].text, report.stages["rewritten"].text):
        for target in ("out at X = %", "out at X + e0 = %", "out at X - e1 = %", "other at X - e1 = %"):
            assert target in text
    assert report.stages["source"].text == report.source
    assert report.source == "\n".join(one.source for one in report.kernels)


def test_a_report_on_several_kernels_shows_costs_and_source_of_each():
    report = jali.inspect(scatter, *scattered())
    assert repr(report).startswith("<3 kernels of scatter: 3 flops, 72 bytes per site (at least 56), ")
    shown = str(report)
    assert shown.startswith("scatter: 3 flops")
    assert "\n  writes out at (0, 0), (1, 0), (0, -1)\n" in shown
    table = report._repr_html_()
    for one in report.kernels:
        assert f"\n  {one.name}: {one.flops} flops, {one.bytes_moved} bytes per site" in shown
        assert f"\n    source {one.path}\n" in shown
        assert f"costs of {one.name}<" in table


def test_the_kernels_of_a_report_cost_what_a_profile_counts():
    fields = scattered()
    fields[2][...] = 1.0
    report = jali.inspect(scatter, *fields)
    with jali.profile.recording() as found:
        scatter(*fields)
    spans = [span for span in found.spans if span.phase == "kernel"]
    assert [span.name for span in spans] == [one.name for one in report.kernels]
    assert sum(span.flops for span in spans) == 64 * report.flops
    assert sum(span.moved for span in spans) == 64 * report.bytes_moved
    assert sum(span.bytes for span in spans) == 64 * report.bytes_least


@pytest.mark.ranks(2)
def test_halos_of_several_kernels_are_told_by_kernel():
    def inspected():
        lattice = Lattice(8, 8, grid=(2, 1))
        return jali.inspect(scatter, *(lattice.field(Real()) for _ in range(3)), over=EVEN)

    for report in jali.comm.virtual_ranks(2, inspected):
        bound = report.stages["bound"].facts
        assert [bool(bound[one.name].get("halos sent")) for one in report.kernels] == [False, True, False]
        assert report.kernels[0].halo == ""
        assert report.halo == "; ".join(f"{one.name}: {one.halo}" for one in report.kernels[1:])


def test_nothing_is_kept_in_dicts_of_others():
    """A cache is an object with a name, not an entry in some `__dict__`."""
    texts = {path: path.read_text() for path in Path(jali.__file__).parent.rglob("*.py")}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "__dict__" in text else ():
            writes = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("setdefault", "update", "pop", "__setitem__")
                and isinstance(node.func.value, ast.Attribute)
                and node.func.value.attr == "__dict__"
            ) or (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store | ast.Del)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "__dict__"
            )
            assert not writes, f"{path}:{node.lineno}"


# ---- descriptors ---------------------------------------------------------------------------------------


def everything(X, A, B, v, w, x, y, scale, rng, table):
    """A formula with every operation of the language."""
    e = X.directions()[0]
    n = (X.coordinate(e) // 2) % X.extent(e)
    chosen = jali.where((n < 3) & (n <= 2) | ~(n == 1), A[X], A[X + e].traceless_antihermitian())
    product = A[X] * B[X].dagger()
    matrices = chosen + product - B[X].inverse() * 2.0 + B[X].exp().reunitarise() + v[X].outer(w[X])
    block = A[X].hermitian() + 4 * jali.identity(2)
    solved = block.solve(v[X])[0] + block.cholesky()[1, 0] + block.log_det() + block.inverse()[0, 0].real
    number = (
        solved + product.trace() + B[X].trace() + B[X].det() / jali.complex(x[X], 1.0) + v[X].dot(w[X]).conj()
    )
    accepted = X.repeat_until(lambda: (rng.uniform(X) != 0.5, rng.gaussian(X)), 3, 0.0)
    turn = A[X].traceless_antihermitian()
    turned = (groups.exp_changed, groups.exp_pulled_back)
    matrices += Value(turned[0](builder(), turn.node, turned[1](builder(), turn.node, B[X].node)))
    matrices += project(A[X]).held()
    A[X] = matrices * number + B[X].dagger() + jali.matrix([[x[X], 0], [0, scale]])
    y[X] = (
        -x[X]
        + n
        + number.imag
        + product.trace().real
        + v[X].norm2()
        + jali.sin(x[X])
        + accepted
        + v[X][1].real
        + table[rng.integers(X, n + 1)]
    )
    x[X] = 2 * y[X]  # as y, which is kept in fewer bits, gives it back


def neighbours(X, out, f, a):
    """Along a batch."""
    out[X] = a[X.member] * f[X, X.member + 1]


def whole_sums(X, k, total):
    """Whole numbers of an array, which float32 sums as doubles."""
    total += k[1]


def test_every_operation_can_be_reached():
    """There is no descriptor that no formula leads to."""
    matrix, vector, real = SU(2), Vector(2), Real()
    elements = [matrix, matrix, vector, vector, real, real]
    kept = [stored("float32" if k == 5 else "float64", e, "float64") for k, e in enumerate(elements)]
    arguments = [*(FieldArgument(row, k) for k, row in enumerate(kept)), real.type, "random"]
    arguments.append(ArrayArgument("real", (300,)))
    names = ["A", "B", "v", "w", "x", "y", "scale", "rng", "table"]
    (program,) = trace_function(everything, [], arguments, names, 2, "float64").programs
    (unfused,) = trace(everything, arguments, names, 2, "float64")
    receiver, _ = with_items(
        program_of(lambda X, out, f: out.__setitem__(X, f[X + X.directions()[0]].norm2()), Real(), Vector(3)),
        [(1, 0)],
    )
    (whole,) = trace_function(
        whole_sums, [], [ArrayArgument("int", (2,)), "sum"], ["k", "total"], 2, "float32"
    ).programs
    numbers = program_of_numbers(NumberProgram((Summed(0, "sum"),), (0,), (1,)))
    kept_of_batch = [FieldArgument(stored("float64", Real(), "float64"), k, batch=3) for k in range(2)]
    kept_of_batch.append(Type("real", (3,)))
    (members,) = trace_function(neighbours, [], kept_of_batch, ["out", "f", "a"], 2, "float64").programs
    effects = [e for p in (program, unfused, whole, numbers, receiver, members) for e in p.effects]
    reached = {node.op for effect in effects for node in reachable([effect.value])}
    assert reached == set(OPERATIONS)


def test_an_operation_is_described_once():
    with pytest.raises(AssertionError, match="add is described twice"):
        operation("add", lambda w, node: None)(lambda nodes, a, b: a)


def test_products_that_are_fused_are_those_whose_descriptors_say_so():
    assert {name for name, described in OPERATIONS.items() if described.fusion} == {"mul", "matmul"}
    assert isinstance(arithmetic.mul.fusion, Fusion)
