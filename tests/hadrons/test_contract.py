"""`contract` against NumPy's einsum of whole fields, on one rank and on several."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from quarks import filled

import jali
from jali import EVEN, SU, Field, Lattice, LayoutError, Matrix, ParameterError, Real, Spinor, Vector
from jali.fermions import WilsonDirac, gamma, gamma5
from jali.gauge import GaugeField
from jali.hadrons import contract, mesons, point_source

pytest.importorskip("opt_einsum")

EXTENTS = (2, 3, 4, 6)


def whole(field):
    """A field with one axis for space, then time."""
    values = field[...]
    return values.reshape(-1, *values.shape[3:])


@pytest.fixture(scope="module")
def lattice():
    return Lattice(*EXTENTS)


@pytest.fixture(scope="module")
def fields(lattice):
    S, other = (filled(Field(lattice, Spinor(3), batch=12), seed) for seed in (1, 2))
    U = filled(Field(lattice, Matrix(3)), 3)
    phi = filled(Field(lattice, Vector(3)), 4)
    f = Field(lattice, Real())
    f[...] = np.random.default_rng(5).normal(size=EXTENTS)
    return S, other, U, phi, f


CASES = [
    ("xksc,xksc->t", (0, 1), (0,)),
    ("xksc,xksc->", (0, 1), ()),
    ("xksc,xlsc->tkl", (0, 1), [1]),
    ("xksc,xksd->dtc", (0, 1), (0, 1)),
    ("xksc,xcd,xksd->t", (0, 2, 1), (0,)),
    ("xcd,xd,xc->t", (2, 3, 3), (2,)),
    ("x,xc,xc->t", (4, 3, 3), (1,)),
    ("x->t", (4,), ()),
    ("x->", (4,), ()),
    ("xcc->t", (2,), ()),
    ("xcd->dc", (2,), ()),
    ("xab -> ta", (2,), ()),
]


@pytest.mark.parametrize(("subscripts", "numbers", "conjugate"), CASES)
def test_contractions_are_those_of_numpy(fields, subscripts, numbers, conjugate):
    operands = [fields[k] for k in numbers]
    arrays = [whole(field).conj() if k in conjugate else whole(field) for k, field in enumerate(operands)]
    left, output = subscripts.replace(" ", "").split("->")
    expected = np.einsum(f"{left.replace('x', 'xt')}->{output}", *arrays, optimize=True)
    found = contract(subscripts, *operands, conjugate=conjugate)
    assert found.shape == expected.shape
    assert found.dtype == complex
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-11)


def test_constants_are_arrays_without_a_site(fields):
    S, other = fields[:2]
    g = gamma[2].dense()
    found = contract("xksc,su,xkuc->tk", S, g, other, conjugate=[0, 1])
    expected = np.einsum("xtksc,su,xtkuc->tk", whole(S).conj(), g.conj(), whole(other), optimize=True)
    assert np.allclose(found, expected, rtol=1e-12)
    assert np.allclose(contract("xc,->t", fields[3], 2.0), 2 * whole(fields[3]).sum((0, 2)))
    assert np.allclose(
        contract("a,xc->ta", [1, 2j], fields[3]), np.outer(whole(fields[3]).sum((0, 2)), [1, 2j])
    )


def test_contractions_are_those_of_mesons(fields):
    """-tr [S^dagger g5 Gamma S Gammabar g5]."""
    S, other = fields[:2]
    G, T = gamma[0].dense(), gamma[3].dense()
    # members are spin, then colour of the source
    split = [[S.members[3 * s : 3 * s + 3] for s in range(4)] for S in (S, other)]
    before, behind = gamma5.dense() @ G, T @ G.conj().T @ T @ gamma5.dense()
    C = 0
    for a in range(4):
        for b in range(4):
            C = C - behind[b, a] * contract(
                "xksc,su,xkuc->t", split[1][a], before, split[0][b], conjugate=[0]
            )
    assert np.allclose(C, mesons(S, other).correlator("gx"), rtol=1e-10)


def test_single_precision_is_summed_as_it_is(fields):
    single = fields[0].astype("float32")
    found = contract("xksc,xksc->t", single, single, conjugate=[0])
    assert np.allclose(found, contract("xksc,xksc->t", fields[0], fields[0], conjugate=[0]), rtol=1e-5)


@pytest.mark.parametrize(("ranks", "grid"), [(2, (1, 1, 1, 2)), (3, (1, 3, 1, 1)), (4, (2, 1, 1, 2))])
def test_all_ranks_have_the_whole_sum(fields, ranks, grid):
    expected = [
        contract(subscripts, *(fields[k] for k in numbers), conjugate=c) for subscripts, numbers, c in CASES
    ]

    def run():
        lattice = Lattice(*EXTENTS, grid=grid)
        elements = [(Spinor(3), 12), (Spinor(3), 12), (Matrix(3), None), (Vector(3), None), (Real(), None)]
        mine = [Field(lattice, element, batch=batch) for element, batch in elements]
        for here, there in zip(mine, values, strict=True):
            here[...] = there
        return [
            contract(subscripts, *(mine[k] for k in numbers), conjugate=c) for subscripts, numbers, c in CASES
        ]

    values = [field[...] for field in fields]
    for found in jali.virtual_ranks(ranks, run):
        assert all(np.allclose(a, b, rtol=1e-12, atol=1e-11) for a, b in zip(found, expected, strict=True))
        assert [a.shape for a in found] == [np.shape(b) for b in expected]


WRONG = [
    ("xksc,xksc->t", 1, {}, ParameterError, "has 2 operands, and 1 were given"),
    ("xksc", 1, {}, ParameterError, "subscripts are letters of each operand"),
    ("x1sc->", 1, {}, ParameterError, "subscripts are letters of each operand"),
    (7, 1, {}, ParameterError, "subscripts are letters of each operand"),
    ("xksc->x", 1, {}, ParameterError, "sites are summed over"),
    ("xksc->tt", 1, {}, ParameterError, "each once, or t for a time slice: 'tt' has 't'"),
    ("xksc->kk", 1, {}, ParameterError, "'kk' has 'k'"),
    ("xksc->tq", 1, {}, ParameterError, "'tq' has 'q', and operands have 'xksc'"),
    ("xtsc->", 1, {}, ParameterError, "t for a time slice of the result alone, not 'xtsc'"),
    ("ksxc->", 1, {}, ParameterError, "in front of the letters of a field"),
    ("xks->", 1, {}, ParameterError, "operand 0 has 4 indices with its site, and 'xks' has 3"),
    ("ksca->", 1, {}, ParameterError, "operand 0 is a field, whose letters begin with x"),
    ("xkss->", 1, {}, LayoutError, "s counts 4 in operand 0 and 3 in operand 0, of 'xkss'"),
    (
        "xksc,xkcs->",
        2,
        {},
        LayoutError,
        "s counts 4 in operand 0 and 3 in operand 1|c counts 3 in operand 0 and 4 in",
    ),
    ("xksc,xksc->", 2, {"conjugate": [2]}, ParameterError, r"from 0 to 1, each once, not \[2\]"),
    ("xksc,xksc->", 2, {"conjugate": "0"}, ParameterError, "from 0 to 1, each once, not '0'"),
    ("xksc,xksc->", 2, {"conjugate": [True]}, ParameterError, "from 0 to 1"),
]


@pytest.mark.parametrize(("subscripts", "count", "options", "error", "text"), WRONG)
def test_wrong_subscripts_are_named(fields, subscripts, count, options, error, text):
    with pytest.raises(error, match=text):
        contract(subscripts, *[fields[0]] * count, **options)


def test_wrong_operands_are_named(lattice, fields):
    S = fields[0]
    elsewhere = Field(Lattice(*EXTENTS), Spinor(3), batch=12)
    half = Field(Lattice(2, 2, 2, 2), Spinor(3), over=EVEN, batch=12)
    for operands, subscripts, error, text in (
        ([S, elsewhere], "xksc,xksc->", LayoutError, "live on one lattice"),
        ([half], "xksc->", LayoutError, "has all sites, and .* lives on EVEN"),
        ([np.eye(3)], "ab->", LayoutError, "at least one operand is a field"),
        ([S, "ab"], "xksc,a->", LayoutError, "an operand is a field or an array of numbers"),
        ([S, gamma5], "xksc,su->", LayoutError, "an operand is a field or an array of numbers"),
        ([S, np.eye(4)], "xksc,xsu->", ParameterError, "operand 1 is no field, whose letters have no x"),
        ([S, np.eye(4)], "xksc,s->", ParameterError, "operand 1 has 2 indices with its site, and 's' has 1"),
    ):
        with pytest.raises(error, match=text):
            contract(subscripts, *operands)


def test_without_the_library_the_message_says_how_to_have_it(fields, monkeypatch):
    monkeypatch.setitem(sys.modules, "opt_einsum", None)
    with pytest.raises(ParameterError, match=r"pip install \"jali\[spectrum\]\""):
        contract("x->", fields[4])


def test_the_pion_in_one_line():
    D = WilsonDirac(GaugeField(Lattice(2, 2, 2, 4), SU(3)).hot_start(1), 0.6)
    S = D.propagator(point_source(D))
    found = contract("xksc,xksc->t", S, S, conjugate=[0])
    assert np.allclose(found, mesons(S)["pion"], rtol=1e-12)
