"""Site functions that are methods: attributes of the object are numbers that are watched, and fields."""

import copy
import dataclasses
import gc
import pickle
import weakref

import numpy as np
import pytest
from support import random_field

import jali
from jali import EVEN, Field, Lattice, Real, TraceError
from jali.codegen.stage_cache import COUNTS
from jali.gauge import SU, GaugeField

HALF = 0.5


class Scalar:
    coupling = 2.0

    def __init__(self, lattice, mass, **options):
        self.lattice = lattice
        self.mass = mass
        self.phi = random_field(lattice, Real(), 1, **options)
        self.momenta = [Field(lattice, Real(), **options) for _ in range(2)]
        self.unused = Field(Lattice(7), Real())  # neither of its lattice nor of its precision

    @jali.site_function
    def action(self, X, total, factor=1.0):
        total += factor * (self.potential(self.phi[X]) + self.gradient(X, self.phi))

    def potential(self, x):
        return HALF * self.mass * x * x

    def gradient(self, X, f):
        return sum((f[X + mu] - f[X]) ** 2 for mu in X.directions())

    @jali.site_function
    def kick(self, X, step):
        self.momenta[0][X] -= step * self.mass * self.phi[X]

    @jali.site_function
    def copied(self, X, out):
        out[X] = self.coupling * self.phi[X]

    @jali.site_function
    def copied_twice(self, X, out):
        self.copied(X, out)
        out[X] *= 2

    def total(self, **names):
        return self.lattice.sum(self.action, **names)


def reference(model):
    phi = model.phi[...].astype(float)
    return (0.5 * model.mass * phi**2).sum() + sum(
        ((np.roll(phi, -1, mu) - phi) ** 2).sum() for mu in range(phi.ndim)
    )


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_fields_and_numbers_of_the_object(precision):
    model = Scalar(Lattice(5, 3, 4), 0.25, precision=precision)
    close = {"rtol": 1e-12 if precision == "float64" else 1e-5}
    assert np.isclose(model.total(), reference(model), **close)
    assert np.isclose(model.total(factor=2.0), 2 * reference(model), **close)
    model.mass = 4.0
    assert np.isclose(model.total(), reference(model), **close)
    model.phi = random_field(model.lattice, Real(), 5, precision=precision)  # another field
    assert np.isclose(model.total(), reference(model), **close)
    model.phi = random_field(Lattice(3, 4), Real(), 6)  # on another lattice
    model.lattice = model.phi.lattice
    assert np.isclose(model.total(), reference(model))


def test_fields_of_the_object_are_written_and_read():
    model = Scalar(Lattice(5, 4), 0.5)
    model.momenta[0][...] = 1.0
    model.kick(0.1)
    model.kick[EVEN](0.2)
    parity = np.add.outer(np.arange(5), np.arange(4)) % 2
    assert np.allclose(model.momenta[0][...], 1 - 0.05 * model.phi[...] - 0.1 * model.phi[...] * (1 - parity))
    model.momenta.reverse()
    model.kick(1.0)
    assert np.allclose(model.momenta[0][...], -0.5 * model.phi[...])


def test_a_field_of_the_object_may_be_an_argument_too():
    model = Scalar(Lattice(4, 4), 0.5)
    before = model.phi[...]
    model.copied(model.momenta[1])
    assert np.array_equal(model.momenta[1][...], 2 * before)
    model.copied(model.phi)  # the same field under two names
    assert np.array_equal(model.phi[...], 2 * before)
    out = Field(model.lattice, Real())
    model.copied(out)
    assert np.array_equal(out[...], 4 * before)


def test_methods_are_inlined_into_methods():
    model = Scalar(Lattice(4, 3), 0.5)
    out = Field(model.lattice, Real())
    model.copied_twice(out)
    assert np.array_equal(out[...], 4 * model.phi[...])


def test_two_objects_have_numbers_of_their_own_and_share_kernels():
    one, two, three = (Scalar(Lattice(4, 4), mass) for mass in (1.0, 1.0, 3.0))
    assert np.isclose(one.total(), reference(one))
    made = COUNTS["binary"].made
    assert np.isclose(two.total(), reference(two))
    assert COUNTS["binary"].made == made  # the same text is the same kernel
    assert np.isclose(three.total(), reference(three))
    assert np.isclose(one.total(), reference(one))


def test_a_repeated_call_makes_nothing():
    model = Scalar(Lattice(4, 4), 1.0)
    model.total()
    before = {name: count.made for name, count in COUNTS.items()}
    model.total()
    assert {name: count.made for name, count in COUNTS.items()} == before


def test_gauge_fields_of_the_object():
    class Model:
        def __init__(self, lattice):
            self.U = GaugeField(lattice, SU(2)).hot_start(seed=3)

        @jali.site_function
        def plaquettes(self, X, total):
            for mu, nu in X.planes():
                loop = (
                    self.U[mu][X] * self.U[nu][X + mu] * self.U[mu][X + nu].dagger() * self.U[nu][X].dagger()
                )
                total += loop.trace().real / 2

    lattice = Lattice(4, 2, 4)
    model = Model(lattice)
    mean = lattice.sum(model.plaquettes) / (3 * lattice.volume)
    assert np.isclose(mean, jali.gauge.plaquette(model.U))


def test_an_object_goes_with_its_kernels_and_fields():
    model = Scalar(Lattice(4, 4), 1.0)
    model.total()
    gone, field = weakref.ref(model), weakref.ref(model.phi)
    del model
    gc.collect()
    assert gone() is None
    assert field() is None


def test_copies_and_pickles_of_an_object_are_objects_of_their_own():
    @dataclasses.dataclass
    class Number:
        k: float

        @jali.site_function
        def fill(self, X, out):
            out[X] = self.k

    out = Field(Lattice(4, 4), Real())
    number = Number(2.0)
    number.fill(out)
    for other in (copy.copy(number), copy.deepcopy(number)):
        other.k = 3.0
        other.fill(out)
        assert np.all(out[...] == 3.0)
        number.fill(out)
        assert np.all(out[...] == 2.0)
    kept = Kept(5.0)
    kept.fill(out)
    again = pickle.loads(pickle.dumps(kept))
    again.k = 7.0
    again.fill(out)
    assert np.all(out[...] == 7.0)


class Kept:
    def __init__(self, k):
        self.k = k

    @jali.site_function
    def fill(self, X, out):
        out[X] = self.k


def test_called_on_the_class_the_object_comes_first():
    out = Field(Lattice(4, 4), Real())
    Kept.fill(Kept(2.5), out)
    assert np.all(out[...] == 2.5)
    with pytest.raises(TraceError, match="fill is a method: call it on an object"):
        Kept.fill[EVEN](out)


def test_a_method_without_fields_needs_a_lattice():
    class Empty:
        @jali.site_function
        def count(self, X, total):
            total += 1.0

    with pytest.raises(jali.LayoutError, match="its lattice is unknown"):
        Empty().count.run(jali.ALL, (), None, jali.lattice.sums.Sums())
    assert Lattice(3, 5).sum(Empty().count) == 15


def test_fields_of_others_are_no_fields_of_the_object():
    phi = Field(Lattice(4, 4), Real())

    @jali.site_function
    def plain(X, out):
        out[X] = phi[X]

    with pytest.raises(TraceError, match="is not one of its arguments; pass it as one"):
        plain(phi.like())


def two_ranks():
    model = Scalar(Lattice(6, 5), 0.5)
    out = Field(model.lattice, Real())
    model.copied(out)
    return model.total(), out[...]


def test_on_several_ranks():
    (alone, values), *_ = jali.virtual_ranks(1, two_ranks)
    for total, out in jali.virtual_ranks(3, two_ranks):
        assert total == alone
        assert np.array_equal(out, values)


def test_maxima_and_entries_by_label_of_fields_of_the_object():
    class Model:
        def __init__(self, phi, labels):
            self.phi, self.labels = phi, labels

        @jali.site_function
        def gather(self, X, high, counts, scale=1.0):
            high.max(scale * self.phi[X])
            counts[self.labels[X]] += scale

    lattice = Lattice(4, 5)
    model = Model(random_field(lattice, Real(), 1), Field(lattice, jali.Integer()))
    model.labels[...] = labels = np.random.default_rng(1).integers(0, 3, (4, 5))
    high, counts = lattice.reduce(model.gather, scale=2.0, bins=3)
    assert high == 2 * model.phi[...].max()
    assert np.array_equal(counts, 2.0 * np.bincount(labels.ravel(), minlength=3))


class Twice:
    """One field by several ways, and fields that are not found before the trace."""

    def __init__(self, lattice):
        self.one = self.same = random_field(lattice, Real(), 1)
        self.other = random_field(lattice, Real(), 2)
        self.several = [self.one, self.one, self.other]
        self.named = {"x": random_field(lattice, Real(), 3)}

    @jali.site_function
    def two_names(self, X, out):
        out[X] = self.one[X] + self.same[X]

    @jali.site_function
    def a_list(self, X, out):
        out[X] = self.several[0][X] + self.several[1][X] * self.other[X] + self.several[2][X]

    @jali.site_function
    def a_dictionary_first(self, X, out):
        out[X] = self.named["x"][X] + self.one[X] * self.other[X]

    @jali.site_function
    def total(self, X, sum):
        sum += self.same[X] * self.named["x"][X] + self.several[0][X]


def test_one_field_by_several_names_and_fields_in_dictionaries():
    lattice = Lattice(5, 3)
    model, out = Twice(lattice), Field(lattice, Real())
    a, b, c = model.one[...], model.other[...], model.named["x"][...]
    model.two_names(out)
    assert np.allclose(out, 2 * a)
    model.a_list(out)
    assert np.allclose(out, a + a * b + b)
    model.a_dictionary_first(out)
    assert np.allclose(out, c + a * b)
    assert np.isclose(lattice.sum(model.total), (a * c + a).sum())
    model.same = model.other
    model.two_names(out)
    assert np.allclose(out, a + b)
    model.one = model.same
    model.two_names(out)
    assert np.allclose(out, 2 * b)


def test_called_on_the_class_with_a_field_says_what_is_right():
    lattice = Lattice(5, 3)
    with pytest.raises(TraceError, match="is a method: call it on an object"):
        Twice.two_names(Field(lattice, Real()))
    with pytest.raises(TraceError, match="an array that is an argument is a table"):
        Tabled(lattice).read(Field(lattice, Real()))


class Tabled:
    def __init__(self, lattice):
        self.table = np.arange(5.0)

    @jali.site_function
    def read(self, X, out):
        out[X] = self.table[X.coordinate(0)]


def test_a_gauge_field_that_was_never_started_looks_so():
    U = GaugeField(Lattice(4, 4), SU(2))
    assert "never started" in repr(U)
    assert "never started" not in repr(U.cold_start())
