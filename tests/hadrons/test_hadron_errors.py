"""What sources and correlators refuse, and how they say so."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jali import EVEN, SU, Field, Lattice, LayoutError, Matrix, ParameterError, Random, Real, Spinor
from jali.fermions import Laplace, Staggered, WilsonDirac, gamma5
from jali.gauge import GaugeField
from jali.hadrons import (
    contract,
    gaussian_smear,
    mesons,
    noise_source,
    nucleon,
    pcac_mass,
    point_source,
    staggered_mesons,
    wall_sink,
    wall_source,
    with_momentum,
    wuppertal_smear,
)


@pytest.fixture(scope="module")
def f():
    """What is given to functions."""
    lattice = Lattice(4, 4, 4, 6)
    U = GaugeField(lattice, SU(3)).cold_start()
    D, M = WilsonDirac(U, 0.5), Staggered(U, 0.5)
    there = WilsonDirac(GaugeField(Lattice(4, 4, 4, 6), SU(3)).cold_start(), 0.5)
    S, V, elsewhere = (point_source(operator) for operator in (D, M, there))
    return SimpleNamespace(U=U, D=D, M=M, S=S, V=V, elsewhere=elsewhere, rng=Random(seed=1))


SITE = r"a site of a lattice 4 x 4 x 4 x 6 is 4 whole numbers from 0 to its extent less one, not "
SLICE = r"a time slice of a lattice 4 x 4 x 4 x 6 is a whole number from 0 to 5, not "
MOMENTUM = r"a momentum is 3 whole numbers, in units of 2 pi / L for each direction of space, not "

PARAMETERS = [
    (lambda f: point_source(f.D, (0, 0, 0)), SITE + r"\(0, 0, 0\)"),
    (lambda f: point_source(f.D, (0, 0, 0, 6)), SITE + r"\(0, 0, 0, 6\)"),
    (lambda f: point_source(f.D, (0, -1, 0, 0)), SITE + r"\(0, -1, 0, 0\)"),
    (lambda f: point_source(f.D, (0, 0.0, 0, 0)), SITE),
    (lambda f: point_source(f.D, (True, 0, 0, 0)), SITE),
    (lambda f: point_source(f.D, 5), SITE + "5"),
    (lambda f: point_source(f.D, "0000"), SITE + "'0000'"),
    (lambda f: wall_source(f.D, 6), SLICE + "6"),
    (lambda f: wall_source(f.D, -1), SLICE + "-1"),
    (lambda f: wall_source(f.D, True), SLICE + "True"),
    (lambda f: wall_source(f.D, 1.0), SLICE + "1.0"),
    (lambda f: wall_source(f.D, 0, (1, 0)), MOMENTUM + r"\(1, 0\)"),
    (lambda f: wall_source(f.D, 0, (0.5, 0, 0)), MOMENTUM),
    (lambda f: wall_source(f.D, 0, (True, 0, 0)), MOMENTUM),
    (lambda f: wall_source(f.D, 0, 1), MOMENTUM + "1"),
    (lambda f: with_momentum(f.S, (1, 0, 0, 0)), MOMENTUM),
    (lambda f: with_momentum(f.S, {1, 0, 2}), MOMENTUM),
    (lambda f: mesons(f.S, momenta=[{1, 0, 2}]), MOMENTUM),
    (
        lambda f: gaussian_smear(f.S, f.U, True, 3),
        "a width is a number of lattice spacings from 0 on, not True",
    ),
    (lambda f: with_momentum(f.S, (1, 0, 0), (4, 0, 0, 0)), SITE + r"\(4, 0, 0, 0\)"),
    (lambda f: noise_source(f.D, f.rng, "Z3"), "a noise is one of Z2, Z4, U1, not 'Z3'"),
    (lambda f: noise_source(f.D, f.rng, ["Z2"]), r"a noise is one of Z2, Z4, U1, not \['Z2'\]"),
    (lambda f: noise_source(f.D, 3), r"a noise takes a jali.Random\(seed\), not 3"),
    (lambda f: noise_source(f.D, f.rng, time=6), SLICE + "6"),
    (lambda f: noise_source(f.D, f.rng, time=1, dilution=("spin", "time")), "give time= or dilute, not both"),
    (lambda f: noise_source(f.D, f.rng, dilution=("spin", "spin")), "each once, not 'spin'"),
    (
        lambda f: noise_source(f.D, f.rng, dilution="taste"),
        "some of spin, colour, time, parity, .*, not 'taste'",
    ),
    (
        lambda f: noise_source(f.M, f.rng, dilution="spin"),
        "some of colour, time, parity, each once, not 'spin'",
    ),
    (lambda f: noise_source(f.D, f.rng, dilution=5), "each once, not 5"),
    (
        lambda f: gaussian_smear(f.S, f.U, 1.0, 1),
        "a width of 1 takes at least 2 steps, not 1: with fewer large momenta grow",
    ),
    (lambda f: gaussian_smear(f.S, f.U, 1.0, 0), "a source of width 1 takes steps, at least 2"),
    (lambda f: gaussian_smear(f.S, f.U, -1, 3), "a width is a number of lattice spacings from 0 on, not -1"),
    (lambda f: gaussian_smear(f.S, f.U, float("nan"), 3), "from 0 on, not nan"),
    (lambda f: gaussian_smear(f.S, f.U, float("inf"), 3), "from 0 on, not inf"),
    (lambda f: gaussian_smear(f.S, f.U, "1", 3), "from 0 on, not '1'"),
    (lambda f: gaussian_smear(f.S, f.U, 1.0, 2.0), "steps are a whole number from 0 on, not 2.0"),
    (lambda f: gaussian_smear(f.S, f.U, 1.0, True), "steps are a whole number from 0 on, not True"),
    (lambda f: wuppertal_smear(f.S, f.U, 0.1, -1), "steps are a whole number from 0 on, not -1"),
    (lambda f: wuppertal_smear(f.S, f.U, -0.1, 1), "alpha is a number from 0 on, not -0.1"),
    (lambda f: wuppertal_smear(f.S, f.U, None, 1), "alpha is a number from 0 on, not None"),
    (lambda f: wall_sink(f.S, (1, 0)), MOMENTUM),
    (lambda f: wall_sink(f.S, origin=(0, 0, 0, 6)), SITE),
    (
        lambda f: mesons(wall_sink(f.S), momenta=[(0, 0, 1)]),
        "direction 2 has one site, so there is no momentum 1 in it; walls have that which wall_sink was given",
    ),
    (lambda f: mesons(f.S, origin=(0, 0, 0)), SITE),
    (lambda f: mesons(f.S, momenta=[]), "a correlator has a momentum at least, and the list is empty"),
    (lambda f: mesons(f.S, momenta=5), r"momenta are a list of them, \[\(0, 0, 0\), \(1, 0, 0\)\], not 5"),
    (lambda f: mesons(f.S, momenta=(1, 0, 0)), MOMENTUM + "1"),
    (lambda f: mesons(f.S)["sigma"], "a meson is one of pion, .* g5, not 'sigma'"),
    (lambda f: mesons(f.S)[0], "a meson is one of pion, .*, not 0"),
    (lambda f: mesons(f.S).correlator("pion"), "a matrix of spins is a SpinMatrix, .*, not 'pion'"),
    (lambda f: mesons(f.S).correlator("g5", np.eye(4)), "a matrix of spins is a SpinMatrix"),
    (
        lambda f: mesons(f.S).correlator("g5", momentum=(1, 0, 0)),
        r"\(1, 0, 0\) was not asked for; there are \(0, 0, 0\)",
    ),
    (lambda f: mesons(f.S).correlator("g5", momentum=3), "momentum 3 was not asked for"),
    (lambda f: mesons(f.S).correlator("g5", momentum=(0.5, 0, 0)), r"\(0.5, 0, 0\) was not asked for"),
    (lambda f: mesons(f.S).correlator("g5", momentum=np.zeros((3, 3))), "was not asked for"),
    (lambda f: nucleon(f.S, diquark=np.eye(4)), "the matrix of a diquark is a SpinMatrix"),
    (lambda f: nucleon(f.S).correlator("1"), r'a projector is "\+", "-" or a SpinMatrix, not \'1\''),
    (lambda f: nucleon(f.S).correlator(["+"]), "a projector is"),
    (lambda f: nucleon(f.S).correlator("+", (0, 0, 1)), "was not asked for"),
    (lambda f: staggered_mesons(f.V)["rho"], "one of pion, scalar, vector, pseudovector, not 'rho'"),
    (lambda f: staggered_mesons(f.V)[["pion"]], "one of pion, scalar, vector, pseudovector"),
    (lambda f: staggered_mesons(f.V, origin=(4, 0, 0, 0)), SITE),
    (lambda f: staggered_mesons(f.V, momenta=[(0, 0)]), MOMENTUM),
    (
        lambda f: pcac_mass(mesons(f.S, momenta=[(1, 0, 0)])),
        r"\(0, 0, 0\) was not asked for; there are \(1, 0, 0\)",
    ),
]

LAYOUTS = [
    (
        lambda f: gaussian_smear(f.S, f.U, 1.0, 2, directions=[0.5]),
        r"different numbers from 0 to 3, at least one, not \[0.5\]",
    ),
    (
        lambda f: with_momentum(Field(f.S.lattice, Real()), (1, 0, 0)),
        "a momentum makes complex numbers, and .* holds Real",
    ),
    (lambda f: contract("xksc,xksc->t", f.S, f.U), r"not .*gauge field.*; U\[mu\] is a field"),
    (lambda f: point_source(f.U), "a source is one of a Dirac operator, for whose quarks it is, not of <SU"),
    (lambda f: wall_source(None), "a source is one of a Dirac operator, .* not of None"),
    (lambda f: noise_source(f.U, f.rng), "a source is one of a Dirac operator"),
    (
        lambda f: point_source(Laplace(f.U, range(3), Matrix(3, 2))),
        "those of spinors or of vectors, and Matrix",
    ),
    (
        lambda f: point_source(f.D, boundary={3: "closed"}),
        "boundary condition 'closed' in direction 3 is unknown",
    ),
    (lambda f: point_source(f.D, precision="float8"), "precision 'float8' is unknown"),
    (lambda f: with_momentum(f.U, (1, 0, 0)), "a momentum is that of a field, not of"),
    (lambda f: gaussian_smear(f.U, f.U, 1.0, 3), "a field of quarks is smeared, not"),
    (lambda f: gaussian_smear(f.S.on(EVEN), f.U, 1.0, 3), "lives on EVEN"),
    (lambda f: gaussian_smear(f.S, f.U, 1.0, 3, directions=[0, 0]), "different numbers from 0 to 3"),
    (lambda f: gaussian_smear(f.S, f.D, 1.0, 3), "the links are a GaugeField or a list"),
    (lambda f: gaussian_smear(f.elsewhere, f.U, 1.0, 3), "two lattices"),
    (lambda f: wall_sink(f.U), "a propagator on all sites is summed, not"),
    (lambda f: wall_sink(f.S.on(EVEN)), "a propagator on all sites is summed, not .* EVEN"),
    (lambda f: mesons(f.U), "a propagator is a field with a batch, not"),
    (
        lambda f: mesons(f.V),
        "a field of spinors, and .* holds Vector.*; those of staggered quarks are for staggered_mesons",
    ),
    (lambda f: mesons(f.S.members[0]), "a batch that is a multiple of four, .* has no batch"),
    (lambda f: mesons(f.S.members[:6]), "a batch that is a multiple of four, .* has a batch of 6"),
    (lambda f: mesons(f.S.on(EVEN)), "a propagator has all sites, and .* lives on EVEN"),
    (lambda f: mesons(f.S, f.elsewhere), "propagators of a hadron live on one lattice, .* two lattices"),
    (lambda f: mesons(f.S, f.S.members[:8]), "have the same source: .* with a batch of 12, .* with 8"),
    (lambda f: mesons(f.S, f.U), "a propagator is a field with a batch, not"),
    (lambda f: nucleon(f.V), "a field of spinors"),
    (
        lambda f: nucleon(f.S.members[:8]),
        "a nucleon has three colours, .* with a batch of 8, in place of Spinor",
    ),
    (lambda f: nucleon(f.S, f.elsewhere), "two lattices"),
    (lambda f: staggered_mesons(f.S), "a field of vectors with a batch on all sites, .* holds Spinor"),
    (lambda f: staggered_mesons(f.V.members[0]), "with no batch"),
    (lambda f: staggered_mesons(f.V.on(EVEN)), "over EVEN"),
    (lambda f: staggered_mesons(f.U), "a propagator is a field with a batch, not"),
    (lambda f: pcac_mass(f.S), r"a PCAC mass is that of correlators of mesons\(S\), not of"),
    (lambda f: f.D.propagator(f.V), r"acts on fields of Spinor\(3\), .* holds Vector\(3\)"),
    (lambda f: f.D.propagator(f.S.on(EVEN)), "reads and writes both colours"),
    (lambda f: f.D.propagator(gamma5), "acts on fields of Spinor"),
]


@pytest.mark.parametrize("number", range(len(PARAMETERS)))
def test_impossible_numbers_and_names_are_errors_of_parameters(f, number):
    call, text = PARAMETERS[number]
    with pytest.raises(ParameterError, match=text):
        call(f)


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_fields_that_do_not_fit_are_errors_of_layout(f, number):
    call, text = LAYOUTS[number]
    with pytest.raises(LayoutError, match=text):
        call(f)


def test_more_members_than_a_batch_has_are_an_error_of_it(f):
    operator = WilsonDirac(GaugeField(Lattice(2, 2, 2, 24), SU(3)).cold_start(), 1.0)
    with pytest.raises(LayoutError, match="a batch has 1 to 256 members, not 288"):
        noise_source(operator, f.rng, dilution=("spin", "colour", "time"))


def test_nucleons_live_in_four_dimensions():
    psi = Field(Lattice(4, 4, 4), Spinor(3), batch=12)
    with pytest.raises(LayoutError, match="a nucleon lives in four dimensions"):
        nucleon(psi)


def test_correlators_say_what_they_are(f):
    assert repr(mesons(f.S, momenta=[(0, 0, 0), (0, 0, 1)], origin=(1, 0, 0, 2))) == (
        "Mesons(6 slices from (1, 0, 0, 2), momenta (0, 0, 0), (0, 0, 1))"
    )
    assert repr(nucleon(f.S)) == "Nucleon(6 slices from (0, 0, 0, 0), momenta (0, 0, 0))"
    assert repr(staggered_mesons(f.V)) == "StaggeredMesons(6 slices from (0, 0, 0, 0), momenta (0, 0, 0))"
