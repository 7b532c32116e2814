"""Operators in another format: as close as the format, with the parameters of the operator, and following it."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from operators import OPERATORS, VARIANTS, operator, storage_beside
from test_wilson import random_links, unit_links

import jali
from jali import ODD, SU, Complex, Field, Lattice, LayoutError, Real, Spinor, StorageError
from jali.fermions import HISQ, Asqtad, CloverDirac, Staggered, WilsonDirac, wilson_hop_at
from jali.gauge import GaugeField

BOUNDS = {"float32": 3e-8, "fixed16": 2.2e-5, "float16": 2.2e-4}  # of test_all_operators.py
SHORT = {"clover": "float16", "HISQ": "fixed16-8", "Moebius": None}


def random_field(D, seed, **options):
    psi = Field(
        D.lattice,
        D.element,
        boundary={D.lattice.ndim - 1: "antiperiodic"},
        batch=getattr(D, "Ls", None),
        **options,
    )
    rng = np.random.default_rng(seed)
    psi[...] = rng.normal(size=psi.shape) + 1j * rng.normal(size=psi.shape)
    return psi


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def in_few(psi, storage):
    """The field in float32, stored as quarks are beside links of this storage."""
    return psi.like(precision="float32", storage=storage and storage_beside(storage)).assign(psi)


@functools.cache
def setting(name):
    D = operator(name, Lattice(4, 2, 4, 6))
    return D, random_field(D, 1)


@pytest.mark.short(4)
@pytest.mark.parametrize(
    ("name", "storage"),
    [
        pytest.param(name, storage, marks=[] if SHORT.get(name, "") == storage else pytest.mark.full)
        for name in OPERATORS
        for storage in ("float16", "fixed16-8", None)
    ],
)
def test_an_operator_in_another_format_is_as_close_as_it(name, storage):
    D, psi = setting(name)
    F, few = D.in_format("float32", storage), in_few(psi, storage)
    assert type(F) is type(D)
    assert repr(F) == repr(D)
    bound = 4 * BOUNDS[storage_beside(storage or "float32")] * (1.6 if "-8" in str(storage) else 1)
    for act in ("apply", "adjoint"):
        expected, found = getattr(D, act)(psi)[...], getattr(F, act)(few, few.like(storage=None))[...]
        assert 0 < relative(found, expected) < bound
    if name in VARIANTS:
        return
    for form in ("asymmetric", "symmetric"):
        E, G = D.even_odd(form=form), F.even_odd(form=form)
        expected, found = E.apply(psi.on(ODD))[...], G.apply(few.on(ODD), few.on(ODD).like(storage=None))[...]
        assert 0 < relative(found, expected) < 1.4 * bound


def stored(fields):
    return {str(field.stored) for field in fields}


def test_one_word_names_the_storage_of_each_field():
    """Unitary links keep what determines them, sums of products all numbers, others the format beside."""
    U = random_links(Lattice(4, 2, 2, 4), 3, 1)
    wilson, clover = WilsonDirac(U, 0.5), CloverDirac(U, 0.5, 1.0)
    assert stored(wilson.in_format("float32", "fixed16").links) == {"fixed16-12"}
    assert stored(wilson.in_format("float32", "fixed16-8").links) == {"fixed16-8"}
    assert stored(wilson.in_format("float32", "float16-scaled").links) == {"float16-scaled"}
    assert stored(wilson.in_format("float32").links) == {"float32"}
    assert stored(wilson.in_format(storage="float32").links) == {"float32-12"}
    few = clover.in_format("float32", "float16-8")
    assert (stored(few.links), stored(few.blocks)) == ({"float16-8"}, {"float16"})
    four = WilsonDirac(random_links(Lattice(4, 2, 2, 4), 2, 1), 0.5)
    assert stored(four.in_format("float32", "float16").links) == {"float16-4"}
    five = WilsonDirac([Field(f.lattice, SU(5)) for f in U], 0.5)
    assert stored(five.in_format("float32", "float16").links) == {"float16"}
    twelve = WilsonDirac([u.like(storage="float64-12").assign(u) for u in U], 0.5)
    assert stored(twelve.in_format("float32").links) == {"float32-12"}
    sixteen = wilson.in_format("float32", "fixed16")
    assert stored(sixteen.in_format("float64").links) == {"fixed16-12"}
    assert {f.precision for f in sixteen.in_format("float64").links} == {"float64"}


def test_links_that_are_not_unitary_keep_all_of_their_numbers():
    U = random_links(Lattice(4, 2, 2, 4), 3, 1)
    U[1][...] = -U[1][...]  # a sign that someone has multiplied into them: not of SU(3)
    D = WilsonDirac(U, 0.5)
    psi = random_field(D, 2)
    few = D.in_format("float32", "float16")
    assert [str(u.stored) for u in few.links] == ["float16-12", "float16", "float16-12", "float16-12"]
    assert relative((few @ in_few(psi, "float16"))[...], (D @ psi)[...]) < 1e-3
    with pytest.raises(
        LayoutError, match='not stored as float16-12, .* difference of 1.2; storage="float16" keeps'
    ):
        D.in_format("float32", "float16-12")
    unit = WilsonDirac(unit_links(Lattice(4, 2, 2, 4), 3), 0.5)
    assert stored(unit.in_format("float32", "float16-8").links) == {"float16-8"}


def test_clover_blocks_are_those_of_the_links_in_many_bits():
    """Rounded once, their inverses too: neither is made of links in few bits."""
    D = CloverDirac(random_links(Lattice(4, 2, 2, 4), 3, 1), 0.5, 1.3)
    D.check_inverse()
    few = D.in_format("float32", "fixed8-12")
    few.even_odd()  # which finds the inverses
    for mine, exact in zip([*few.blocks, *few._inverses], [*D.blocks, *D._inverses], strict=True):
        expected = exact.like(precision="float32", storage="fixed8").assign(exact)
        assert np.array_equal(mine[...], expected[...])


def test_ranks_convert_alike():
    def run(ranks=1):
        D = operator("clover", Lattice(4, 2, 2, 4, grid=(1, 1, 1, ranks)))
        few = D.in_format("float32", "float16")
        return (few @ in_few(random_field(D, 1), "float16"))[...], stored(few.links)

    alone = run()
    for found in jali.virtual_ranks(2, run, 2):
        assert np.array_equal(found[0], alone[0])
        assert found[1] == alone[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda U: WilsonDirac(U, 0.5),
        lambda U: CloverDirac(U, 0.5, 1.3),
        pytest.param(lambda U: CloverDirac(U, 0.5, 1.3, compressed=True), marks=pytest.mark.full),
        lambda U: HISQ(U, 0.5, 0.0),
        pytest.param(lambda U: Asqtad(U, 0.5), marks=pytest.mark.full),
    ],
    ids=["Wilson", "clover", "clover in 54 numbers", "HISQ", "asqtad"],
)
def test_it_follows_links_and_numbers_of_the_operator(make):
    lattice = Lattice(4, 2, 4, 4)
    U, other = (GaugeField(lattice, SU(3)).hot_start(seed=k) for k in (1, 2))
    D = make(U)
    few, again = D.in_format("float32"), D.in_format("float32").in_format("float64")
    psi = random_field(D, 3)
    for change in (lambda: None, lambda: U.assign(other), lambda: setattr(D, "mass", 0.7)):
        change()
        expected = (D @ psi)[...]
        assert relative((few @ in_few(psi, None))[...], expected) < 3e-7
        assert relative((again @ psi)[...], expected) < 3e-7
        E, G = D.even_odd(form="symmetric"), few.even_odd(form="symmetric")
        half = psi.on(ODD)
        assert relative(G.apply(in_few(half, None))[...], E.apply(half)[...]) < 1e-6
    few.mass = 0.2  # its own, until the operator changes
    D.mass, expected = 0.2, None
    lighter = (D @ psi)[...]
    assert relative((few @ in_few(psi, None))[...], lighter) < 3e-7


def test_forms_and_adjoints_have_formats_too():
    D, psi = setting("clover")
    few = in_few(psi, None)
    E = D.even_odd(form="symmetric")
    G = E.in_format("float32")
    assert (G.symmetric, G.over, G.D.links[0].precision) == (True, E.over, "float32")
    assert relative(G.adjoint(few.on(ODD))[...], E.adjoint(psi.on(ODD))[...]) < 2e-7
    assert relative((D.dagger.in_format("float32") @ few)[...], D.adjoint(psi)[...]) < 2e-7
    assert G.apply(few.on(ODD)).precision == "float32"


class Yukawa(jali.Dirac):
    """Wilson's operator with fields of its own, in an attribute, in a list and in a dictionary."""

    def __init__(self, U, mass, phi, pi, chi):
        super().__init__(U, Spinor)
        self.mass, self.phi, self.others, self.named = mass, phi, [pi], {"chi": chi}

    @property
    def data(self):
        return self.links, self.mass, self.phi, self.others[0], self.named["chi"]

    @staticmethod
    def diagonal_at(X, psi, dagger, U, mass, phi, pi, chi):
        return (mass + X.ndim + phi[X] + pi[X] + chi[X].real) * psi[X]

    @staticmethod
    def hop_at(X, psi, dagger, U, mass, phi, pi, chi):
        return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1)


class Hidden(Yukawa):
    """Which makes a field that no attribute has."""

    @property
    def data(self):
        (links, *others), pi = super().data, self.keep()
        return links, others[0], others[1], pi, others[3]

    def keep(self):
        return next(iter(POSSESSIONS[id(self.lattice)]))


POSSESSIONS: dict[int, set[Field]] = {}


def test_operators_of_ones_own_are_converted_by_their_attributes():
    lattice = Lattice(4, 2, 2, 4)
    U = random_links(lattice, 3, 1)
    fields = [Field(lattice, element) for element in (Real(), Real(), Complex())]
    for k, field in enumerate(fields):
        field[...] = np.random.default_rng(k).normal(size=field.shape)
    D = Yukawa(U, 0.5, *fields)
    psi = random_field(D, 2)
    few = D.in_format("float32", "fixed16")
    assert stored([few.phi, *few.others, few.named["chi"]]) == {"fixed16"}
    assert relative((few @ in_few(psi, "fixed16"))[...], (D @ psi)[...]) < 3 * BOUNDS["fixed16"]
    assert (few @ in_few(psi, "fixed16")).precision == "float32"
    fields[1][...] = 2.0
    assert relative((few @ in_few(psi, "fixed16"))[...], (D @ psi)[...]) < 3 * BOUNDS["fixed16"]
    POSSESSIONS[id(lattice)] = {Field(lattice, Real(), name="pion")}
    with pytest.raises(
        LayoutError, match=r"pion of the data of Hidden is not in the other format .*converted\(convert\)"
    ):
        Hidden(U, 0.5, *fields).in_format("float32")


def test_formats_that_do_not_go_with_an_operator_are_refused_with_its_name():
    lattice = Lattice(4, 2, 2, 4)
    U, two = random_links(lattice, 3, 1), random_links(lattice, 2, 1)
    D = WilsonDirac(U, 0.5)
    heavy = CloverDirac(U, 1e5, 1.0)
    for act, kind, match in (
        (lambda: D.in_format("float33"), LayoutError, "WilsonDirac.* precision 'float33' is unknown"),
        (
            lambda: D.in_format("float32", "float17"),
            LayoutError,
            "WilsonDirac.* storage 'float17' is unknown",
        ),
        (
            lambda: D.in_format("float32", "float64"),
            LayoutError,
            "float32 arithmetic is not stored as float64",
        ),
        (lambda: D.in_format("float32", 16), LayoutError, "storage 16 is unknown"),
        (lambda: D.in_format("float32", "float32-spin-first"), LayoutError, "does not hold SU.3."),
        (
            lambda: Staggered(two, 0.5).in_format("float32", "float16-12"),
            LayoutError,
            r"Staggered.SU.2. .*float16-12 does not hold SU.2.; SU.2. can be stored as",
        ),
        (
            lambda: heavy.in_format("float32", "float16"),
            StorageError,
            "CloverDirac.* in another format: 64 sites .* assigning A of chirality 1 to ",
        ),
    ):
        with pytest.raises(kind, match=match):
            act()
    assert stored(heavy.in_format("float32", "float16-scaled").blocks) == {"float16-scaled"}
