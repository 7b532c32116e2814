"""Wrong arguments of public functions: an error of jali's that says what would be right, and never one of Python's insides."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import jali
from jali import (
    EVEN,
    ODD,
    Colouring,
    Field,
    JaliError,
    Lattice,
    LayoutError,
    Random,
    TraceError,
    comm,
    statistics,
)
from jali.fermions import SpinMatrix, WilsonDirac, gamma
from jali.gauge import (
    SU,
    Flow,
    FlowPoint,
    GaugeField,
    ape_smear,
    link_trace,
    loop_action,
    metropolis_sweep,
    plaquette,
    plaquette_reference,
    plaquettes,
    polyakov_loop,
    reference_time,
    reference_width,
    simulate,
    stout_smear,
    sweep,
    topological_charge,
    wilson_action,
    wilson_flow,
    wilson_loop,
    wilson_loops,
)
from jali.lattice.algebra import axpy, inner, norm2
from jali.solvers import cg

L = Lattice(4, 4, 4, 4)
E = L.directions
R, C = Field(L, jali.Real()), Field(L, jali.Complex())
U, RNG = GaugeField(L, SU(3)).cold_start(), Random(1)


@jali.site_function
def f(X, a, b):
    a[X] = b


@jali.site_function
def total(X, a, s):
    s += a[X]


def plain(X, a, s):
    s += a[X]


class Method:
    def method(self, X, a):
        a[X] = 1.0

    def of_class(cls, X, a):  # noqa: N805
        a[X] = 1.0


class Slotted:
    __slots__ = ()
    method = jali.site_function(Method.method)


def generator(X, a):
    yield a[X]


async def coroutine(X, a):
    a[X] = 1.0


CALLS = [
    # lattices and fields
    (lambda: Lattice("4"), "positive whole numbers, not '4'"),
    (lambda: Lattice(4.0), "positive whole numbers, not 4.0"),
    (lambda: Lattice(None), "positive whole numbers, not None"),
    (lambda: Lattice(4, 4, grid=4), "a rank grid is"),
    (lambda: Lattice(4, 4, grid="11"), "a rank grid is"),
    (lambda: Lattice(4, 4, grid=(1.0, 1)), "a rank grid is"),
    (lambda: Lattice(4, 4, communicator=5), "a jali.comm.Communicator"),
    (lambda: Lattice(4, 4, lanes="x"), "most vector lanes"),
    (lambda: Lattice(4, 4, device=3), "named by a string"),
    (lambda: Lattice(4, 4, device=0), "named by a string"),
    (lambda: Lattice(4, 4, device=""), "device .. is unknown"),
    (lambda: jali.use_device(5), "named by a string"),
    (lambda: Field(5, jali.Real()), r"a field lives on a Lattice, not on 5"),
    (lambda: Field(L, "SU(3)"), "a field holds an element type"),
    (lambda: Field(L, SU(3), precision=64), "precision 64 is unknown"),
    (lambda: Field(L, SU(3), precision=[1]), "is unknown"),
    (lambda: Field(L, SU(3), name=5), "the name of a field is a string"),
    (lambda: Field(L, jali.Real(), boundary=object()), "boundary conditions are"),
    (lambda: Field(L, jali.Real(), boundary=[np.ones(2)] * 4), "is unknown"),
    (
        lambda: Field(L, jali.Real(), boundary=Field(Lattice(4), jali.Real()).boundary),
        "boundary conditions are",
    ),
    (
        lambda: R.assign(np.zeros(3)),
        r"a field is assigned, not a numpy.ndarray of shape .*; f\[...\] = array",
    ),
    (lambda: R.assign(U), "a field is assigned, not <"),
    (lambda: R.set_local("x"), "takes numbers, not str"),
    (lambda: R.set_local([[1], [2, 3]]), "takes an array of numbers"),
    (lambda: R.__setitem__((0, 0, 0, 0), "x"), "takes numbers, not str"),
    (lambda: R.__setitem__((0, 0, 0, 0), None), "takes numbers, not NoneType"),
    (lambda: R.__setitem__(..., [[1], [1, 2]]), "takes an array of numbers"),
    (lambda: float(R), "is no number"),
    # site functions and their calls
    (lambda: f(R, c=1), r"f has no parameter c; it takes a, b"),
    (lambda: f[EVEN](R, 1.0, b=1), r"f got b twice, by its place and by its name"),
    (lambda: f(R), r"takes 2 arguments \(a, b\), 1 were given: b is missing; sums over sites"),
    (lambda: f(R, 1.0, 2.0), r"takes 2 arguments \(a, b\), 3 were given"),
    (lambda: L.sum(total, R, s=1.0), "needs at least one of them left for the sum"),
    (lambda: L.sum(total, R, b=1.0), "total has no parameter b; it takes a, s"),
    (lambda: f[0], "takes a domain such as EVEN, not 0"),
    (lambda: f["even"], "takes a domain such as EVEN, not 'even'"),
    (lambda: f[Colouring(2, lambda x: x[0] % 2)], r"one of its colours is a domain, c\[0\]"),
    (lambda: f(R, L), "a Lattice cannot be an argument"),
    (lambda: f(R, np.zeros((2, 0))), "an array without numbers, of shape .2, 0."),
    (
        lambda: L.sum(R),
        r"takes a site function, not .*; to sum a field, write a function with total \+= f\[X\]",
    ),
    (lambda: L.sum(plain, R), "not plain; decorate plain with @jali.site_function"),
    (lambda: L.sum(total[EVEN], R), r"lattice.sum\(total, ..., over=EVEN\)"),
    (lambda: L.sum(3), "takes a site function, not 3"),
    (lambda: L.sum(total, R, over="even"), "over= takes a domain such as EVEN, not 'even'"),
    (lambda: L.sum(total, R, over=0), "over= takes a domain such as EVEN, not 0"),
    (lambda: L.sum(total, R, over=Colouring(2, lambda x: x[0] % 2)), "one of its colours is a domain"),
    (lambda: L.sum(total, R, per="t"), "sums per slice of direction 't'"),
    (lambda: L.sum(total, R, per=1.5), "sums per slice of direction 1.5"),
    (lambda: L.sum(total, R, per=(0, 5)), "sums per slice of direction 5, which"),
    (lambda: L.sum(total, R, per=(0, 0)), r"directions \(0, 0\): one direction, or several that differ"),
    (lambda: L.sum(total, R, per=()), r"directions \(\): one direction, or several"),
    (lambda: jali.Lattice(800, 800).sum(total, R, per=(0, 1)), "are 640000 sums, at most 262144"),
    (lambda: L.sum(total, R, per=[E]), "sums per slice of direction"),
    (lambda: jali.inspect(plain, R), "jali.inspect takes a site function, not plain"),
    (lambda: jali.inspect(total, R, over="even"), "over= takes a domain"),
    (lambda: f.bind(R, 1, over="even"), "over= takes a domain"),
    (lambda: f.kernels(R, 1, over="even"), "over= takes a domain"),
    (lambda: jali.site_function(), "without parentheses"),
    (lambda: jali.site_function(3), "3 is none"),
    (lambda: jali.site_function(f), "a site function already"),
    (lambda: jali.site_function(print), "is none"),
    (lambda: jali.site_function(functools.lru_cache(plain)), "other decorators stand above"),
    (lambda: jali.site_function(staticmethod(plain)), "other decorators stand above"),
    (lambda: jali.site_function(functools.partial(plain)), "is none"),
    (lambda: jali.site_function(Method.method)(), "is a method: call it on an object"),
    (lambda: L.sum(jali.site_function(Method.method), R), "is a method: call it on an object"),
    (lambda: Slotted().method(R), 'add "__dict__" to the slots'),
    (lambda: jali.site_function(Method.of_class), "is a method of a class"),
    (lambda: jali.site_function(generator), "is a generator or a coroutine"),
    (lambda: jali.site_function(coroutine), "is a generator or a coroutine"),
    (lambda: jali.site_function(lambda X, *a: None), r"have names; \*a has none"),
    (lambda: jali.site_function(lambda X, **a: None), r"have names; \*\*a has none"),
    (lambda: RNG.uniform(), "inside a site function that has it as an argument"),
    (lambda: RNG.integers(0, 4), "inside a site function that has it as an argument"),
    (lambda: RNG.gaussian(0), "inside a site function that has it as an argument"),
    (lambda: Colouring(0, lambda x: x), "a positive whole number of colours, not 0"),
    (lambda: Colouring(2, 5), "a function of the coordinates, not 5"),
    (lambda: Colouring(2, lambda x: x[0] % 2)["a"], "a colour is a whole number"),
    (lambda: f[Colouring(2, lambda x: np.zeros(7, int))[0]](R, 1.0), "one colour per site"),
    (lambda: E[0] + 1, "directions are added to one another"),
    (lambda: E[0] == 0, r"the number of a direction is int\(mu\)"),
    (lambda: jali.virtual_ranks("x", print), "a number of ranks and a function"),
    (lambda: jali.virtual_ranks(2, 5), "a number of ranks and a function"),
    # algebra, solvers, fermions
    (lambda: inner(R, 5), "inner takes fields, not 5"),
    (lambda: norm2(5), "norm2 takes fields, not 5"),
    (lambda: axpy(1, R, 5), "axpy takes fields, not 5"),
    (lambda: axpy("x", R, R), "a factor of fields is a number"),
    (lambda: cg(5, R), "the operator has a function matvec, or is a function A"),
    (
        lambda: cg(lambda p, q: None, 5),
        r"cg: b is a vector \(.*jali.Field, .*list of vectors, .*NumPy array\), not 5",
    ),
    (lambda: cg(lambda p, q: None, R, x0=5), r"cg: x0 is a vector \(.*jali.Field, .*\), not 5"),
    (
        lambda: cg(lambda p, q: None, R, x0=np.zeros(3)),
        "cg: x0 is a vector of the kind of b, Field, not ndarray",
    ),
    (lambda: cg(lambda p, q: None, R, check_interval=0), "check_interval is a positive whole number, not 0"),
    (lambda: WilsonDirac(5, 0.1), "the links are a GaugeField or a list"),
    (lambda: WilsonDirac([], 0.1), "the links are a GaugeField or a list"),
    (lambda: WilsonDirac([R] * 4, 0.1), "the links are matrices, not Real"),
    (lambda: WilsonDirac(U, "x"), "the mass is a finite real number, not 'x'"),
    (lambda: WilsonDirac(U, 0.1).apply(5), "acts on fields of Spinor"),
    # gauge theory
    (lambda: GaugeField(L, "SU(3)"), r"the group is SU\(3\) or the like, not 'SU\(3\)'"),
    (lambda: GaugeField(L, SU), "the group is SU"),
    (lambda: GaugeField(L, 3), r"the group is SU\(3\) or the like, not 3"),
    (lambda: GaugeField("L", SU(3)), "a gauge field lives on a Lattice"),
    (lambda: U["x"], r"the links of one direction are U\[mu\]"),
    (lambda: U[-E[0]], r"the links of one direction are U\[mu\]"),
    (lambda: U + 1, "has no arithmetic of its own"),
    (lambda: U.hot_start("x"), "seed is a whole number"),
    (lambda: U.random_gauge_transform(1.5), "seed is a whole number"),
    (lambda: U.assign(R), "a gauge field is assigned, not a Field"),
    (lambda: U.gauge_transform(5), "a gauge transformation is a field"),
    (lambda: U.set_local_links("x"), "takes numbers, not str"),
    (lambda: sweep(U, 5.7, 3), "sweep: rng is a Random, not 3"),
    (lambda: sweep(U, "x", RNG), "sweep: beta is a real number or an Action, not 'x'"),
    (lambda: sweep(R, 5.7, RNG), "sweep: U is a GaugeField"),
    (lambda: sweep(U, True, RNG), "sweep: beta is a real number or an Action, not True"),
    (lambda: metropolis_sweep(U, 1.0, RNG, hits="x"), "hits is a whole number"),
    (lambda: plaquette(5), "plaquette: U is a GaugeField, not 5"),
    (lambda: plaquettes([R]), "U is a GaugeField"),
    (lambda: link_trace(L), "U is a GaugeField"),
    (lambda: polyakov_loop(U, "t"), "direction 't' does not exist"),
    (lambda: polyakov_loop(U, 9), "direction 9 does not exist"),
    (lambda: polyakov_loop(U, 1.5), "direction 1.5 does not exist"),
    (lambda: wilson_loop(U, "1", 1), "r is a whole number"),
    (lambda: wilson_loops(U, 1.5, 1), "r_max is a whole number"),
    (lambda: wilson_loop(U, 1, 1, 7), "direction 7 does not exist"),
    (lambda: ape_smear(U, "x"), "alpha is a real number"),
    (lambda: ape_smear(U, directions="xy"), "a list of directions or their numbers"),
    (lambda: stout_smear(U, 0.1, 1.5), "steps is a whole number"),
    (lambda: Flow(U, "x"), "step is a real number"),
    (lambda: wilson_flow(U, "x"), "until is a real number"),
    (lambda: simulate(U, 5.7, RNG, "x"), "sweeps is a whole number"),
    (lambda: wilson_action("x"), "beta is a finite number"),
    (lambda: wilson_action(5.7).value(5), "of fields, lists of fields and gauge fields, not of 5"),
    (lambda: wilson_action(5.7).density(U.fields), "density: U is a gauge field, which has a volume"),
    (
        lambda: wilson_action(5.7).with_couplings(c1=1.0),
        "with the couplings beta, weights, loops, each given once",
    ),
    (lambda: sweep(U, wilson_action, RNG), "sweep: beta is a real number or an Action"),
    (lambda: loop_action(1.0, [1, 2, -1, -2]), "a closed path of steps from 1, .* not 1"),
    (lambda: Flow(U, action=5.7), "action is an Action or None, not 5.7"),
    (lambda: topological_charge(5), "U is a GaugeField"),
    (lambda: reference_time([]), "does not reach"),
    (lambda: reference_time(5), "takes the FlowPoints of wilson_flow, not 5"),
    (lambda: reference_width([1, 2, 3]), "takes the FlowPoints of wilson_flow"),
    (lambda: reference_time([FlowPoint("x", 1.0, 1.0, 1.0)]), "are real numbers"),
    (lambda: reference_time([], level=None), "level is a real number, not None"),
    (lambda: sweep(U, 5.7, RNG, heatbath=-1), "0 or more, not -1 and 4"),
    (lambda: ape_smear(U, directions=3), "a list of directions or their numbers, not 3"),
    (lambda: wilson_action(5.7).force(U, out=3), "a list of 4 fields, one per direction, not 3"),
    (lambda: plaquette_reference("SU(3)", 5.7, 4), "extents are whole numbers of sites, not 4"),
    (lambda: plaquette_reference("SU(3)", "x", (4, 4)), "beta is a real number, not 'x'"),
    (lambda: GaugeField.from_file(5), "a path or an open file, not from 5"),
    (lambda: GaugeField.from_file("x", lattice=4), "is a Lattice, not 4"),
    (lambda: GaugeField.from_file("x", group=3), r"is SU\(n\), not 3"),
    (lambda: U.save(None), "written to a path, not to None"),
    (lambda: U.save("x", metadata=3), "metadata is a dictionary"),
    (lambda: U.save("x", metadata={3: 4}), "metadata key 3"),
    # functions on plain numbers, spin matrices
    (lambda: jali.exp("x"), r"jali.exp\('x'\): takes numbers and symbols"),
    (lambda: jali.sqrt(-1), r"jali.sqrt\(-1\): "),
    (lambda: jali.exp(10000), r"jali.exp\(10000\): math range error"),
    (lambda: jali.floor(np.ones(2)), "takes numbers and symbols"),
    (lambda: jali.minimum("a", 1), "takes numbers and symbols"),
    (lambda: jali.power(0, -1), r"jali.power\(0, -1\): "),
    (lambda: jali.complex("x", 1), r"jali.complex\('x', 1\): "),
    (lambda: SpinMatrix("x"), "made of 4 x 4 fixed numbers, not of 'x'"),
    (lambda: SpinMatrix(3), "a spin matrix is 4 x 4"),
    (lambda: gamma[0] + "x", "combined with spin matrices and numbers, .* not on 'x'"),
    (lambda: 2 - gamma[0] * None, "combined with spin matrices and numbers"),
    (lambda: WilsonDirac(U, float("nan")), "the mass is a finite real number, not nan"),
    (lambda: WilsonDirac(U, 0.1).normal("x"), r"acts on fields of Spinor\(3\), not on 'x'"),
    # fields, domains, ranks, statistics
    (lambda: R[np.array([0.5, 1]), 0, 0, 0], "sites are given by whole numbers and slices"),
    (lambda: R[np.array([True, False])], "a mask of axis 0"),
    (lambda: R[::0, 0, 0, 0], "slice step cannot be zero"),
    (
        lambda: R.like(lattice=L),
        "like changes element, precision, storage, boundary, name, over and batch, not lattice",
    ),
    (lambda: Field(L, SU(100000)), "an element has at most 65536"),
    (lambda: jali.Vector(10**9), "an element has at most 65536"),
    (lambda: jali.Boundary("x", "open", jali.Real()), "a number of dimensions, not for 'x'"),
    (lambda: jali.Domain("x", "y"), "the parities of a domain"),
    (lambda: jali.inspect(f, R, 1.0, lattice=3), "f runs on a Lattice, not on 3"),
    (lambda: jali.virtual_ranks(0, print), "0 virtual ranks: give 1 to 1024"),
    (lambda: Random.from_state({**RNG.state, "call": -1}), "call is a whole number"),
    (lambda: Random.from_state({**RNG.state, "call": 1.5}), "call is a whole number"),
    (lambda: statistics.mean_error([1.0, 2.0], s="x"), "s is a real number, not 'x'"),
    (lambda: statistics.mean_errors(3), "a dictionary of series, not 3"),
    (lambda: statistics.jackknife(3, [1.0, 2.0]), "takes a function of means, not 3"),
    (lambda: statistics.jackknife(np.mean, [1.0, 2.0], "x"), "bin_size is a whole number, not 'x'"),
    (lambda: statistics.binning([1.0, 2.0], least_bins="x"), "least_bins is a whole number"),
    (lambda: statistics.autocorrelation_function([1.0, 2.0], -1), "max_lag is 0 or more, not -1"),
    (lambda: statistics.format_value("x", 1.0), "mean is a real number, not 'x'"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_wrong_call_is_an_error_that_says_what_would_be_right(call, message):
    with pytest.raises(JaliError, match=message) as caught:
        call()
    if isinstance(caught.value, TraceError):
        assert str(caught.value).endswith(f"  at {__file__}:{call.__code__.co_firstlineno}")


def test_numbers_of_numpy_are_numbers():
    assert Lattice(np.int64(4)).extents == (4,)
    assert Lattice(np.array([4, 2])).extents == (4, 2)
    U.cold_start()
    assert wilson_loop(U, np.int64(1), np.int32(1)) == 1.0
    assert polyakov_loop(U, np.int64(3)) == polyakov_loop(U, E[3]) == polyakov_loop(U) == 1.0
    assert np.int64(2) * E[0] == 2 * E[0]


def test_link_field_that_does_not_exist_is_named_with_their_number():
    with pytest.raises(IndexError, match="direction 5 does not exist; .* has 4, from 0"):
        U[5]
    assert len(list(U)) == 4


def test_missing_arguments_of_checked_functions_are_named_by_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'rng'"):
        sweep(U, 5.7)


def test_field_strength_and_plaquettes_for_ones_own_kernels_are_public():
    from jali import gauge

    @jali.site_function
    def energy(X, U, total):
        for mu, nu in X.planes():
            total += gauge.field_strength(X, U, mu, nu).norm2()

    V = GaugeField(Lattice(4, 4), SU(2)).hot_start(3)
    assert V.lattice.sum(energy, V) / V.lattice.volume == pytest.approx(gauge.energy_density(V), rel=1e-12)
    assert {"field_strength", "plaquette_trace"} <= set(gauge.__all__)


# ---- lattices that look equal, and colours of odd extents ----


def test_two_lattices_that_look_equal_are_said_to_be_two():
    with pytest.raises(
        LayoutError, match=r"look equal, but are two lattices, .* make one and use it for all"
    ):
        f(R, Field(Lattice(4, 4, 4, 4), jali.Real()))
    with pytest.raises(LayoutError, match="look equal, but are two lattices"):
        R.assign(Field(Lattice(4, 4, 4, 4), jali.Real()))
    with pytest.raises(LayoutError, match="look equal, but are two lattices"):
        inner(R, Field(Lattice(4, 4, 4, 4), jali.Real()))
    with pytest.raises(LayoutError, match="look equal, but are two lattices"):
        cg(lambda p, q: None, R, x0=Field(Lattice(4, 4, 4, 4), jali.Real()))


def test_what_differs_between_two_lattices_is_said():
    def differ(a, b):
        with pytest.raises(LayoutError) as caught:
            f(Field(a, jali.Real()), Field(b, jali.Real()))
        return str(caught.value)

    assert "extents (4, 6) and (4, 4) differ" in differ(Lattice(4, 4), Lattice(4, 6))
    assert "lanes 1 and None differ" in differ(Lattice(4, 4), Lattice(4, 4, lanes=1))

    def on_two_ranks():
        return differ(Lattice(4, 4, grid=(1, 2)), Lattice(4, 4, grid=(2, 1)))

    assert "rank grids (2, 1) and (1, 2) differ" in jali.virtual_ranks(2, on_two_ranks)[0]


@pytest.mark.parametrize("domain", [EVEN, ODD, jali.ALL], ids=str)
def test_race_of_neighbours_on_odd_extents_says_that_extents_are_odd(domain):
    a = Field(Lattice(4, 3, 5), jali.Real())
    mu, nu, rho = a.lattice.directions

    @jali.site_function
    def relax(X, a):
        a[X] = a[X + nu] + a[X - rho]

    with pytest.raises(
        TraceError, match=r"Extents are odd \((3 in direction 1|5 in direction 2)\).*Colouring"
    ) as caught:
        relax[domain](a)
    assert "Run it over EVEN and ODD" not in str(caught.value)


def test_race_within_a_colour_does_not_advise_that_colour():
    @jali.site_function
    def two_steps(X, a):
        a[X] += a[X + E[0] + E[1]]

    with pytest.raises(
        TraceError,
        match="joins sites of one parity, which EVEN and ODD do not separate: use a jali.Colouring",
    ):
        two_steps[EVEN](R)
    with pytest.raises(TraceError, match="The offset joins sites of slice 0 of 2"):
        two_steps[Colouring(2, lambda x: x[3] % 2, "slice")[0]](R)


def test_ranks_that_fail_differently_are_all_reported():
    def fail():
        rank = comm.current().rank
        comm.current().barrier()
        raise ValueError(f"rank {rank} is unhappy")

    with pytest.raises(ValueError, match="is unhappy") as caught:
        jali.virtual_ranks(2, fail)
    said = str(caught.value) + " ".join(getattr(caught.value, "__notes__", []))
    assert "rank 0 is unhappy" in said
    assert "rank 1 is unhappy" in said

    def fail_alike():
        comm.current().barrier()
        raise ValueError("all alike")

    with pytest.raises(ValueError, match="all alike") as caught:
        jali.virtual_ranks(2, fail_alike)
    assert not getattr(caught.value, "__notes__", [])
