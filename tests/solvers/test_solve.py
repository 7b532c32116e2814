"""`jali.solve`: what it chooses, why, and that the residual it says is that of the operator that was named."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse.linalg

import jali
from jali import ODD, SU, Field, Lattice, ParameterError, Spinor, Vector
from jali.errors import FileFormatError, SolverError
from jali.fermions import DomainWallDirac, Staggered, WilsonDirac
from jali.gauge import GaugeField
from jali.linops import Identity, Laplacian
from jali.solvers import choice, choose, rules, tune_solver
from jali.solvers.choice import Impossible, Prepared
from jali.solvers.facts import STEPS, Facts
from jali.solvers.methods import METHODS, Candidate

ANTIPERIODIC = {3: "antiperiodic"}


def operator(matrix):
    return scipy.sparse.linalg.aslinearoperator(matrix)


def general(n=40, shift=8.0, seed=1):
    return np.random.default_rng(seed).normal(size=(n, n)) + shift * np.eye(n)


def matrix_of(kind, n=40):
    """A matrix that is no more than this."""
    M = general(n)
    return {"positive": M @ M.T + np.eye(n), "hermitian": M + M.T - 20 * np.eye(n), "adjoint": M}[kind]


def function_of(matrix):
    def apply(p, q):
        q[...] = matrix @ p

    return apply


@functools.cache
def quarks(name):
    """An operator and a right-hand side."""
    lattice = Lattice(4, 4, 4, 4)
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    D = {
        "Wilson": lambda: WilsonDirac(U, 0.5),
        "staggered": lambda: Staggered(U, 0.5),
        "domain wall": lambda: DomainWallDirac.shamir(U, 0.4, 1.4, Ls=2),
    }[name]()
    b = Field(lattice, D.element, boundary=ANTIPERIODIC, batch=getattr(D, "Ls", None))
    rng = np.random.default_rng(2)
    b[...] = rng.normal(size=b.shape) + 1j * rng.normal(size=b.shape)
    return D, b


def residual(A, x, b):
    return np.linalg.norm(b[...] - (A @ x)[...]) / np.linalg.norm(b[...])


# ---- what is chosen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method"), [("positive", "cg"), ("hermitian", "minres"), ("adjoint", "bicgstabl")]
)
def test_what_an_operator_is_is_measured_and_the_solution_is_exact(kind, method):
    M, b = matrix_of(kind), np.arange(1.0, 41.0)
    for A in (operator(M), function_of(M)):
        found = jali.solve(A, b, 1e-12)
        assert found.report.candidate.method == method
        assert np.allclose(found.x, np.linalg.solve(M, b), rtol=1e-9)
        assert found.residual == pytest.approx(
            np.linalg.norm(b - M @ found.x) / np.linalg.norm(b), rel=1e-3, abs=1e-15
        )
        assert found.converged
        assert found.residual <= 1e-12


def test_a_function_without_an_adjoint_is_solved_without_one():
    found = choose(function_of(general()), np.ones(40))
    assert found.facts["kind"] == "general"
    assert {one.method for one in found.candidates} == {"bicgstabl", "fgmres"}


@pytest.mark.parametrize(
    ("name", "method", "form"),
    [
        ("Wilson", "bicgstab", "even-odd"),
        ("staggered", "cg", "even-odd"),
        ("domain wall", "cgnr", "even-odd"),
    ],
)
def test_quarks_are_solved_on_half_of_the_sites_and_the_residual_is_that_of_all(name, method, form):
    D, b = quarks(name)
    found = jali.solve(D, b)
    assert (found.report.candidate.method, found.report.candidate.form) == (method, form)
    assert found.residual == pytest.approx(residual(D, found.x, b), rel=1e-6)
    assert found.residual <= 1e-10
    assert f"{found.iterations} iterations" in found.explain()
    if found.iterations > 8:  # some were recorded
        assert found.flops > 1000 * D.lattice.volume


def test_forms_adjoints_and_normal_operators_are_operators_too():
    D, b = quarks("Wilson")
    E = D.even_odd()
    half = b.on(ODD)
    for A, rhs, method, apply in (
        (E, half, "bicgstab", E.apply),
        (D.dagger, b, "bicgstab", D.adjoint),
        (D.normal, b, "cg", D.normal),
    ):
        found = jali.solve(A, rhs, 1e-8)
        assert (found.report.candidate.method, found.report.candidate.form) == (method, "full")
        true = np.linalg.norm(rhs[...] - apply(found.x)[...]) / np.linalg.norm(rhs[...])
        assert found.residual == pytest.approx(true, rel=1e-6)
        assert true <= 1e-8
    K = Staggered(D.links, 0.5)
    assert choose(K.even_odd(), Field(D.lattice, Vector(3), over=ODD)).facts["kind"] == "positive"
    assert (
        choose(Staggered(D.links, -0.5).even_odd(), Field(D.lattice, Vector(3), over=ODD)).facts["kind"]
        == "hermitian"
    )


def test_distributed_arrays_are_solved():
    from jali.arrays import DistributedArray

    L = Laplacian((8, 6), axes=(0, 1), weights=(1, 1), sampling=(1, 1))
    A = Identity(48) + 0.1 * (L.H @ L)
    b = DistributedArray.to_dist(np.arange(48.0))
    found = jali.solve(A, b)
    assert found.report.candidate.method == "cg"
    assert (A @ found.x - b).norm() <= 1e-10 * b.norm()


def test_members_of_a_batch_are_solved_at_once_to_their_own_residuals():
    D, b = quarks("Wilson")
    many = b.like(batch=3)
    for k in range(3):
        many.members[k].assign(b if k == 0 else ((0.1**k) * D.apply(b)).field())
    found = jali.solve(D, many)
    assert len(found) == 3
    for k in range(3):
        mine = many.members[k].copy()
        assert found[k].residual == pytest.approx(residual(D, found[k].x.copy(), mine), rel=1e-6)
        assert found[k].residual <= 1e-10
    assert "3 right-hand sides are solved at once" in found.explain()


def test_what_is_named_stays_and_rules_choose_the_rest():
    D, b = quarks("Wilson")
    for changes, expected in (
        ({"method": "gcr"}, ("gcr", "even-odd", "")),
        ({"form": "full"}, ("bicgstab", "full", "")),
        ({"method": "cg", "form": "symmetric"}, ("cg", "symmetric", "")),
        ({"inner": "float32"}, ("bicgstab", "even-odd", "float32")),
        ({"method": "cgnr", "form": "full", "inner": "none"}, ("cgnr", "full", "")),
    ):
        first = choose(D, b, **changes).candidates[0]
        assert (first.method, first.form, first.inner) == expected
    found = jali.solve(D, b, method="gcr", options={"restart": 7}, form="full")
    assert found.report.candidate.options == {"restart": 7}
    assert residual(D, found.x, b) <= 1e-10


@pytest.mark.parametrize("inner", ["float32", pytest.param("fixed16", marks=pytest.mark.full), "float16-12"])
def test_a_recursion_in_few_bits_ends_with_the_residual_of_many(inner):
    D, b = quarks("Wilson")
    found = jali.solve(D, b, 1e-11, method="cg", form="even-odd", inner=inner)
    assert found.report.candidate.inner == inner
    assert found.report.failed == ()
    assert found.residual == pytest.approx(residual(D, found.x, b), rel=1e-5)
    assert found.residual <= 1e-11
    assert f"in {inner} with reliable updates" in found.explain()


def test_a_start_near_the_solution_is_gone_on_from():
    D, b = quarks("Wilson")
    x = jali.solve(D, b, 1e-6).x
    assert jali.solve(D, b, 1e-8, x0=x).iterations < jali.solve(D, b, 1e-8).iterations


@pytest.mark.parametrize("size", [1e-250, 1e250])
def test_right_hand_sides_may_have_any_size(size):
    M, b = matrix_of("positive"), size * np.arange(1.0, 41.0)
    found = jali.solve(operator(M), b)
    assert np.allclose(found.x / size, np.linalg.solve(M, b / size), rtol=1e-8)
    assert found.residual <= 1e-10


def test_the_solution_of_zero_is_zero():
    D, b = quarks("Wilson")
    found = jali.solve(D, b.like())
    assert np.all(found.x[...] == 0)
    assert found.residual == 0


# ---- facts -----------------------------------------------------------------------------------------------------


def test_the_condition_number_is_measured_or_said():
    """Of as many different eigenvalues as there are steps it is exact; of more a lower bound."""
    few = np.diag(np.linspace(1, 30, STEPS)).astype(float)
    assert Facts(operator(few), np.ones(STEPS), 1e-8, None, None)["condition"] == pytest.approx(30, rel=1e-6)
    rotated = few @ np.linalg.qr(general(STEPS))[0]  # whose singular values are the same
    facts = Facts(operator(rotated), np.ones(STEPS), 1e-8, "adjoint", None)
    assert facts["condition"] == pytest.approx(30, rel=1e-6)
    many = matrix_of("positive", 200)
    facts = Facts(operator(many), np.ones(200), 1e-8, None, None)
    assert 5 < facts["condition"] <= np.linalg.cond(many)
    assert Facts(operator(many), np.ones(200), 1e-8, None, 77.0)["condition"] == 77.0
    assert Facts(function_of(general()), np.ones(40), 1e-8, None, None)["condition"] is None


def test_a_condition_number_decides_and_is_measured_only_when_asked():
    well, ill = np.eye(40) + 0.05 * general(shift=0.0), general(shift=7.0)
    assert choose(operator(well), np.ones(40)).candidates[0].method == "cgnr"
    found = choose(operator(ill), np.ones(40))
    assert found.candidates[0].method == "bicgstabl"
    assert "condition number of the operator is" in found.explain()
    assert choose(operator(ill), np.ones(40), condition=1.5).candidates[0].method == "cgnr"
    D, b = quarks("Wilson")
    assert "condition" not in choose(D, b).facts._known


def test_choosing_for_a_quark_operator_applies_nothing():
    class Counted(WilsonDirac):
        count = 0

        def _application(self, psi, dagger):
            Counted.count += 1
            return super()._application(psi, dagger)

    D, b = quarks("Wilson")
    choose(Counted(D.links, 0.5), b)
    assert Counted.count == 0


def test_an_operator_with_numbers_of_its_own_for_members_says_what_it_is():
    lattice = Lattice(2, 2)
    b = Field(lattice, Vector(2), batch=3)
    b[...] = 1.0

    class Scaled:
        def matvec(self, x):
            out = x.like()
            scale(out, x, np.array([2.0, 3.0, 4.0]))
            return out

        rmatvec = matvec

    with pytest.raises(
        ParameterError, match=r'(?s)cannot be measured on a single vector .* say it, as kind="positive"'
    ):
        jali.solve(Scaled(), b)
    found = jali.solve(Scaled(), b, kind="positive")
    assert np.allclose(found.x[...][0, 0], (1 / np.array([2.0, 3.0, 4.0]))[:, None])


@jali.site_function
def scale(X, out, x, factors):
    out[X] = factors[X.member] * x[X]


# ---- explanations ----------------------------------------------------------------------------------------------


def test_an_explanation_says_the_rule_its_line_what_held_and_what_did_not(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'version = 1\n\n[[rule]]\nkind = "hermitian"\nchoices = [{ method = "minres" }]\n\n'
        '[[rule]]\nkind = ["positive", "adjoint"]\nunknowns = "10..50"\nwhy = "it was a wish"\n'
        'choices = [{ method = "cg", inner = "float32" }, { method = "mr" }, { method = "cg" }]\n'
    )
    text = " ".join(
        jali.solve(operator(matrix_of("positive")), np.ones(40), rules=file, maxiter=50, must_converge=False)
        .explain()
        .split()
    )
    for part in (
        "is solved by mr (minimal residuals)",
        f"So says rule 2 of {file}, line 7, since it was a wish.",
        'kind = ["positive", "adjoint"] (Hermitian and positive definite); unknowns = "10..50" (40)',
        f'Rule 1 of {file} is for kind = "hermitian", and it is Hermitian and positive definite.',
        "Not cg, in float32 with reliable updates: the operator cannot be had in another format",
        "The operator is Hermitian for random vectors, and its eigenvalues reach from",
        "that are free on the host",
        "Where it fails, cg goes on.",
        "of the operator that was named, is",
    ):
        assert part in text, text


def test_a_choice_explains_itself_before_the_solve():
    D, b = quarks("staggered")
    found = choose(D, b)
    assert "is solved by cg on its even-odd form (conjugate gradients)" in " ".join(found.explain().split())
    assert repr(found) == f"<cg on its even-odd form for {D!r}>"
    assert residual(D, found.run().x, b) <= 1e-10


# ---- failures --------------------------------------------------------------------------------------------------


def test_where_a_choice_has_not_converged_the_next_goes_on_from_there(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'version = 1\n[[rule]]\nchoices = [{ method = "cgnr", maxiter = 40 }, { method = "bicgstabl", directions = 4 }]\n'
    )
    M, b = general(200, 20.0), np.ones(200)
    found = jali.solve(operator(M), b, rules=file)
    assert found.report.candidate.method == "bicgstabl"
    ((first, why),) = found.report.failed
    assert first.method == "cgnr"
    assert re.match(r"\|b - A x\|/\|b\| is .* after 40 iterations", why)
    assert "The solve by cgnr failed" in found.explain()
    assert found.history[0] < 0.1
    assert np.allclose(found.x, np.linalg.solve(M, b), rtol=1e-7)


def test_an_error_of_the_last_choice_names_those_before_it():
    M = general(60, 0.0)  # not definite
    with pytest.raises(
        SolverError, match="^minres: no convergence .* not Hermitian.*; before it cg failed: .* not Hermitian"
    ):
        jali.solve(operator(M - M.T), np.ones(60), kind="positive", maxiter=30)


def test_a_tolerance_below_rounding_and_bad_numbers_end_in_errors():
    M = matrix_of("positive")
    with pytest.raises(SolverError, match="below what rounding in float64 allows"):
        jali.solve(operator(M), np.ones(40), 3e-16, method="cg")
    bad = np.ones(40)
    bad[3] = np.nan
    with pytest.raises(SolverError, match="solve: b contains infinities or nan .1 numbers"):
        jali.solve(operator(M), bad)
    D, b = quarks("Wilson")
    many = b.like(batch=3)
    many.members[1].assign(b)
    many[0, 0, 0, 0, 1, 0, 0] = np.inf
    with pytest.raises(SolverError, match="infinities or nan in members 1"):
        jali.solve(D, many)
    found = jali.solve(operator(M), np.ones(40), maxiter=2, must_converge=False)
    assert not found.converged
    assert found.residual == pytest.approx(np.linalg.norm(1 - M @ found.x) / np.sqrt(40))


def test_impossible_arguments_are_refused():
    A, b = operator(matrix_of("positive")), np.ones(40)
    D, psi = quarks("Wilson")
    for act, match in (
        (lambda: jali.solve(3, b), "the operator has a function matvec, or is a function"),
        (lambda: jali.solve(A, b, 2.0), "solve: rtol is below 1"),
        (lambda: jali.solve(A, b, 1e-17), "the tolerance 1e-17 is below rounding in float64, 2.2e-16"),
        (
            lambda: jali.solve(D, psi.astype("float32")),
            "1e-10 is below rounding in float32, 1.2e-07: ask for more",
        ),
        (lambda: jali.solve(A, b, method="gcrr"), "'gcrr' is unknown; method is .*; the nearest is gcr"),
        (lambda: jali.solve(A, b, method=""), "solve: '' is unknown; method is cg"),
        (lambda: jali.solve(A, b, form="odd"), "'odd' is unknown; form is full, even-odd, symmetric"),
        (lambda: jali.solve(A, b, form="symmetric"), "no solver is possible .* has no even-odd forms"),
        (lambda: jali.solve(A, b, inner="float16"), "no solver is possible .* no in_format"),
        (lambda: jali.solve(A, b, kind="definite"), "kind is positive, hermitian, adjoint, general"),
        (lambda: jali.solve(A, b, condition=0.5), "the condition is a number from 1 on, not 0.5"),
        (lambda: jali.solve(A, b, options={"restart": 2}), 'those of a method; name it, as method="gcr"'),
        (lambda: jali.solve(A, b, method="gcr", options={"start": 2}), "'start' is unknown; gcr has restart"),
        (lambda: jali.solve(A, b, method="block_cg"), "block_cg is for 2 to 16 right-hand sides, not for 1"),
        (
            lambda: jali.solve(D, psi, method="minres"),
            "minres needs an operator that is Hermitian, and .* is general",
        ),
        (lambda: jali.solve(D, psi, inner="float17"), "storage 'float17' is unknown"),
        (lambda: jali.solve(D, psi.astype("float32"), 1e-5, inner="fixed16"), "b has few bits itself"),
    ):
        with pytest.raises(ParameterError, match=match):
            act()
    with pytest.raises(TypeError, match="no argument 'rtol'; here it is tolerance"):
        jali.solve(A, b, rtol=1e-8)


# ---- memory ----------------------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_refused_with_how_many_would(monkeypatch):
    D, b = quarks("Wilson")
    many = b.like(batch=4)
    many[...] = 1.0
    one = Prepared(Facts(D, b, 1e-8, None, None), Candidate("cgnr", "even-odd")).bytes_beside()
    monkeypatch.setattr(choice, "free_memory", lambda x: int(2.5 * one))
    with pytest.raises(
        ParameterError,
        match="4 right-hand sides would take .* beside b, of .* free on the host: 2 right-hand sides would fit at once",
    ):
        jali.solve(D, many, method="cgnr", form="even-odd")
    monkeypatch.setattr(choice, "free_memory", lambda x: 1000)
    with pytest.raises(ParameterError, match="1 right-hand side would take .*not even one would fit"):
        jali.solve(D, b)


def test_a_solver_with_fewer_vectors_is_taken_where_the_first_does_not_fit(monkeypatch, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'version = 1\n[[rule]]\nchoices = [{ method = "gcr", restart = 50 }, { method = "cgnr" }]\n'
    )
    monkeypatch.setattr(choice, "free_memory", lambda x: 20 * x.nbytes)
    found = choose(operator(general()), np.ones(40), rules=file)
    assert found.candidates[0].method == "cgnr"
    assert "Not gcr(restart=50): 1 right-hand side would take" in found.explain()


@pytest.mark.parametrize(
    "one",
    [
        Candidate("cgnr", "symmetric"),
        Candidate("cg", "even-odd", "float32"),
        Candidate("bicgstab", "even-odd"),
        Candidate("gcr", "full", options={"restart": 7}),
    ],
    ids=str,
)
def test_the_memory_that_is_asked_for_holds_the_fields_of_a_solve(one, monkeypatch):
    """All fields that are made and not yet gone, at most; the prediction is no more than twice that."""
    D, b = quarks("Wilson")
    prepared = Prepared(Facts(D, b, 1e-8, None, None), one)
    now, most, make = [0], [0], Field.__init__

    def gone(size):
        now[0] -= size

    def made(self, *arguments, **options):
        make(self, *arguments, **options)
        now[0] += self.storage.nbytes
        most[0] = max(most[0], now[0])
        weakref.finalize(self, gone, self.storage.nbytes)

    gc.collect()
    monkeypatch.setattr(Field, "__init__", made)
    prepared.solve(None, 1e-8, 1000, True)
    assert most[0] <= prepared.bytes_beside() <= 2 * most[0]


# ---- rules -----------------------------------------------------------------------------------------------------


def test_the_rules_that_come_with_jali_are_sound():
    found = rules.rules_in(rules.own_text(), "rules.toml")
    assert found[-1].conditions == ()  # it always holds
    lines = rules.own_text().splitlines()
    for rule in found:
        assert rule.why
        assert lines[rule.line - 1] == "[[rule]]"
        for one in rule.conditions:
            assert one.fact in rules.FACTS
        assert {one.method for one in rule.choices} <= METHODS.keys()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[[rule]]\n", "begins with version = 1$"),
        ("version = 2\n", "begins with version = 1, not 2"),
        ("version = 1\n[[rule]\n", "is not TOML: .*line 2"),
        ("version = 1\nrules = 3\n", "'rules' is unknown; a file has version and"),
        ("version = 1\n[rule]\nx = 1\n", r"a rule begins with \[\[rule\]\]"),
        (
            'version = 1\n\n[[rule]]\nknd = "hermitian"\n',
            "line 4, rule 1: 'knd' is unknown; .*; the nearest is kind",
        ),
        (
            'version = 1\n[[rule]]\nkind = "odd"\nchoices = []\n',
            "line 3, rule 1: 'odd' is unknown; kind is positive",
        ),
        ("version = 1\n[[rule]]\nkind = 3\n", "line 3, rule 1: kind is a word or a list of words, not 3"),
        (
            'version = 1\n[[rule]]\nbatch = "some"\n',
            'line 3, rule 1: batch is a number or a range such as "1e-8.."',
        ),
        ('version = 1\n[[rule]]\nbatch = "9..2"\n', "line 3, rule 1: batch is a number or a range"),
        ("version = 1\n[[rule]]\nfew_bits = 1\n", "line 3, rule 1: few_bits is true or false, not 1"),
        ("version = 1\n[[rule]]\nwhy = 1\n", "line 3, rule 1: why is a sentence, not 1"),
        ("version = 1\n[[rule]]\nbatch = 1\n", r"line 2, rule 1: choices are a list such as"),
        ("version = 1\n[[rule]]\nchoices = [3]\n", "line 3, rule 1: a choice is a table such as"),
        ("version = 1\n[[rule]]\nchoices = [{}]\n", "line 3, rule 1: a choice has a method: cg, cgnr"),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "gc"}]\n',
            "line 3, .*'gc' is unknown; .*; the nearest is",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg", frm = "full"}]\n',
            "'frm' is unknown; a choice of cg has",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg", form = "half"}]\n',
            "'half' is unknown; form is full",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "gcr", restart = 0}]\n',
            "restart is a positive whole number",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg", maxiter = -1}]\n',
            "maxiter, .* is a whole number, not -1",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "fgmres", inner = "float32"}]\n',
            "fgmres has no recursion in few",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg", delta = 0.1}]\n',
            "delta is about a recursion in few bits",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg", inner = "float32", delta = 3}]\n',
            "delta is between 0 and 1, not 3",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg", inner = "float32", update = "often"}]\n',
            "'often' is unknown; update is residual, estimate",
        ),
        (
            'version = 1\n[[rule]]\nchoices = [{method = "cg"}]\n[[rule]]\nbatch = 1\ncondition = "x"\nchoices = []\n',
            "line 6, rule 2: condition is a number or a range",
        ),
    ],
)
def test_what_is_wrong_with_a_file_of_rules_is_said_with_its_place(text, match, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ParameterError, match=f"the rules of solvers, .*mine.toml.*{match}"):
        jali.solve(operator(matrix_of("positive")), np.ones(40), rules=file)


def test_files_of_rules_that_cannot_be_read_are_errors(tmp_path):
    A, b = operator(matrix_of("positive")), np.ones(40)
    (tmp_path / "bytes.toml").write_bytes(b"version = 1 # \xff\n")
    for path, kind, match in (
        (tmp_path / "missing.toml", FileNotFoundError, "missing.toml"),
        (tmp_path, IsADirectoryError, "directory"),
        (tmp_path / "bytes.toml", ParameterError, "byte 14 is no UTF-8"),
        (Path("/dev/null"), FileFormatError, "is a device, not a file"),
        (3, ParameterError, "the path of a file is a text, not 3"),
    ):
        with pytest.raises(kind, match=match):
            jali.solve(A, b, rules=path)


def test_a_file_of_the_user_comes_before_the_rules_of_jali(tmp_path):
    A, b = operator(matrix_of("positive")), np.ones(40)
    with jali.settings.using(cache_dir=str(tmp_path)):
        rules.user_file().write_text('version = 1\n[[rule]]\nbatch = 1\nchoices = [{ method = "minres" }]\n')
        found = choose(A, b)
        assert found.candidates[0].method == "minres"
        assert "solvers.toml, line 2" in " ".join(found.explain().split())  # which breaks lines
        rules.user_file().write_text("version = 1\n[[rule]]\nbtch = 1\n")
        with pytest.raises(ParameterError, match="solvers.toml, line 3, rule 1: 'btch' is unknown"):
            choose(A, b)
    assert choose(A, b).candidates[0].method == "cg"


# ---- tuning ----------------------------------------------------------------------------------------------------


def test_a_measured_rule_is_the_one_that_is_taken_and_others_stay(tmp_path):
    A, b = operator(general()), np.ones(40)
    file = tmp_path / "mine.toml"
    file.write_text(
        '# a comment\nversion = 1\n\n# of mine\n[[rule]]\nbatch = 7\nchoices = [{ method = "mr" }]\n'
    )
    seen = []
    found = tune_solver(A, b, 1e-8, rounds=1, output=file, callback=seen.append)
    assert len(seen) == len(found.timings) == 6
    assert found.timings[0].seconds == min(one.seconds for one in found.timings if one.seconds is not None)
    fastest = found.timings[0].candidate
    chosen = choose(A, b, 1e-8, rules=file)
    assert chosen.candidates[0] == fastest
    assert "it was measured here" in " ".join(chosen.explain().split())
    text = file.read_text()
    assert text.startswith("# a comment\nversion = 1\n")
    assert text.endswith('# of mine\n[[rule]]\nbatch = 7\nchoices = [{ method = "mr" }]\n')
    assert found.rule in text
    with pytest.raises(ParameterError, match="mine.toml, line 4, has a rule with these conditions"):
        tune_solver(A, b, 1e-8, rounds=1, output=file)
    again = tune_solver(A, b, 1e-8, rounds=1, output=file, force=True)
    assert again.rule in file.read_text()
    assert len(rules.rules_in(file.read_text(), "mine.toml")) == 2
    other = tune_solver(A, b, 1e-3, rounds=1, output=file)
    assert len(rules.rules_in(file.read_text(), "mine.toml")) == 3
    assert 'tolerance = "1e-05..0.1"' in other.rule


def test_tuning_says_what_failed_and_writes_nothing_where_nothing_solves(tmp_path):
    singular = np.diag([1.0, 2.0, 0.0, 3.0])
    with pytest.raises(ParameterError, match="no candidate solves to 1e-08: cg: "):
        tune_solver(operator(singular), np.ones(4), 1e-8, kind="positive", output=tmp_path / "mine.toml")
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.full
def test_tuning_of_quarks_measures_forms_and_few_bits():
    D, b = quarks("Wilson")
    found = tune_solver(D, b, 1e-8, rounds=1, output="")
    measured = {(one.candidate.form, one.candidate.inner) for one in found.timings if one.seconds is not None}
    assert {("even-odd", ""), ("symmetric", ""), ("full", "")} < measured
    assert {inner for _, inner in measured} == {"", "float32", "fixed16", "float16"}
    assert rules.rules_in("version = 1\n" + found.rule, "x")[0].choices[0] == found.timings[0].candidate


# ---- ranks -----------------------------------------------------------------------------------------------------


def test_ranks_choose_alike_and_have_the_bits_of_one(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'version = 1\n[[rule]]\noperator = "WilsonDirac"\nchoices = [{ method = "bicgstab", form = "even-odd" }]\n'
    )

    def run(ranks=1):
        lattice = Lattice(4, 4, 4, 4, grid=(1, 1, 1, ranks))
        U = GaugeField(lattice, SU(3)).hot_start(seed=1)
        b = Field(lattice, Spinor(3), boundary=ANTIPERIODIC)
        b[0, 0, 0, 0, 0, 0] = 1.0
        found = jali.solve(WilsonDirac(U, 0.5), b, 1e-6, rules=file)
        return found.x[...], found.iterations, str(found.report.candidate), found.report.choice.rule.line

    alone = run()
    for found in jali.virtual_ranks(2, run, 2):
        assert np.array_equal(found[0], alone[0])
        assert found[1:] == alone[1:]


def test_what_is_impossible_says_so_by_its_class():
    D, b = quarks("Wilson")
    with pytest.raises(Impossible, match="no even-odd forms"):
        Prepared(Facts(D.even_odd(), b.on(ODD), 1e-8, None, None), Candidate("cgnr", "even-odd"))


def test_a_real_right_hand_side_of_a_complex_operator_is_widened():
    class Turned:
        dtype = np.dtype(complex)

        def matvec(self, x):
            return (1 + 1j) * x

        def rmatvec(self, x):
            return (1 - 1j) * x

    found = jali.solve(Turned(), np.ones(4))
    assert np.allclose(found.x, 0.5 - 0.5j, rtol=0, atol=1e-12)
    with pytest.raises(ParameterError, match="solve: b has no elements"):
        jali.solve(Turned(), np.zeros(0))
