"""What all Krylov solvers share: heavy-quark residuals, deflation, solves that are stopped, saved and continued, progress, flops."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import jali
from jali import ODD, SU, Field, Lattice, ParameterError, Spinor, Vector
from jali.errors import FileFormatError, SolverError
from jali.fermions import CloverDirac, Staggered, WilsonDirac
from jali.gauge import GaugeField, stout_smear
from jali.lattice.vectors import FieldVectors
from jali.solvers import (
    Inner,
    Workspace,
    bicgstab,
    bicgstabl,
    block_cg,
    cg,
    cgnr,
    chebyshev,
    fgmres,
    gcr,
    lanczos,
    minres,
    mr,
)

HERMITIAN = {"cg": cg, "minres": minres, "chebyshev": functools.partial(chebyshev, window=(0.5, 80.0))}
SOLVERS = {
    "cgnr": cgnr,
    "bicgstab": bicgstab,
    "bicgstabl": bicgstabl,
    "gcr 4": functools.partial(gcr, restart=4),
    "mr": mr,
    "fgmres 4": functools.partial(fgmres, restart=4),
}


@functools.cache
def case():
    lattice = Lattice(4, 4, 2, 4)
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    D = WilsonDirac(U, mass=0.3)
    b = Field(lattice, Spinor(3))
    b[0, 0, 0, 0, 0, 0] = 1
    links = [u.like(precision="float32", storage="float16-12").assign(u) for u in U.fields]
    return D, D.even_odd(), D.even_odd().prepare(b), WilsonDirac(links, 0.3).even_odd()


def problem(name, mixed):
    """The solver, its operator, a right-hand side and options."""
    _, E, b, few = case()
    like = b.like(precision="float32", storage="float16")
    if name in HERMITIAN:
        return HERMITIAN[name], E.normal, E.adjoint(b), {"inner": Inner(few.normal, like)} if mixed else {}
    return SOLVERS[name], E, b, {"inner": Inner(few, like)} if mixed else {}


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("name", [*HERMITIAN, *SOLVERS])
@pytest.mark.short(3)
def test_a_saved_solve_goes_on_with_the_same_bits(name, mixed, tmp_path):
    solver, A, b, options = problem(name, mixed)
    whole = solver(A, b, **options)
    stop = 2 if name == "bicgstabl" else 4
    with pytest.raises(SolverError, match=f"in {stop} iterations"):
        solver(A, b, maxiter=stop, save_to=tmp_path / "solve", **options)
    rest = solver(A, b, resume=tmp_path / "solve", **options)
    assert rest.iterations == whole.iterations
    assert rest.history == whole.history
    assert np.array_equal(rest.x[...], whole.x[...])


def test_a_callback_stops_a_solve_and_saves_it(tmp_path):
    _, E, b, _ = case()
    seen = []

    def stop(x):
        seen.append(x.copy())
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cgnr(E, b, callback=stop, save_to=tmp_path / "solve")
    found = cgnr(E, b, resume=tmp_path / "solve")
    assert found.history == cgnr(E, b).history


def test_saved_solves_of_a_batch_and_of_arrays(tmp_path):
    _, E, b, _ = case()
    many = b.like(batch=2)
    many.members[0].assign(b)
    many.members[1][1, 0, 0, 0, 1, 1] = 2.0
    whole = cgnr(E, many)
    cgnr(E, many, maxiter=3, must_converge=False, save_to=tmp_path / "batch")
    rest = cgnr(E, many, resume=tmp_path / "batch")
    assert [one.history for one in rest.members] == [one.history for one in whole.members]

    right = E.normal(many)
    whole = block_cg(E.normal, right)
    block_cg(E.normal, right, maxiter=4, must_converge=False, save_to=tmp_path / "block")
    rest = block_cg(E.normal, right, resume=tmp_path / "block")
    assert [one.history for one in rest.members] == [one.history for one in whole.members]

    rng = np.random.default_rng(1)
    a = rng.normal(size=(30, 30))
    a = a @ a.T / 30 + 0.2 * np.eye(30)

    class Matrix:
        def matvec(self, x):
            return a @ x

    source = rng.normal(size=30)
    cg(Matrix(), source, maxiter=7, must_converge=False, save_to=tmp_path / "array")
    assert cg(Matrix(), source, resume=tmp_path / "array").history == cg(Matrix(), source).history


def test_files_of_other_solves_are_refused(tmp_path):
    _, E, b, few = case()
    path = tmp_path / "solve"
    cgnr(E, b, maxiter=3, must_converge=False, save_to=path)
    with pytest.raises(ParameterError, match="holds a solve by cgnr"):
        bicgstab(E, b, resume=path)
    with pytest.raises(ParameterError, match="is about another b"):
        cgnr(E, E.adjoint(b), resume=path)
    with pytest.raises(ParameterError, match="has no inner operator"):
        cgnr(E, b, resume=path, inner=Inner(few, b.like(precision="float32")))
    jali.save(tmp_path / "field.jali", b=b)
    with pytest.raises(FileFormatError, match="holds no solve"):
        cgnr(E, b, resume=tmp_path / "field.jali")
    with pytest.raises((FileFormatError, OSError)):
        cgnr(E, b, resume=tmp_path / "nothing")


def test_the_heavy_quark_residual_is_that_of_numpy():
    D, _, _, _ = case()
    b = Field(D.lattice, Spinor(3))
    b[0, 0, 0, 0, 0, 0] = 1
    found = cgnr(D, b, rtol=1e-3, heavy_quark=1e-7)
    r, x = b[...] - (D @ found.x)[...], found.x[...]
    ratios = np.sum(np.abs(r) ** 2, axis=(-1, -2)) / np.sum(np.abs(x) ** 2, axis=(-1, -2))
    assert found.heavy_quark == pytest.approx(np.sqrt(ratios.mean()), rel=1e-6)
    assert found.heavy_quark <= 1e-7
    assert cgnr(D, b, rtol=1e-3).iterations < found.iterations
    assert cgnr(D, b, rtol=1e-3).heavy_quark is None
    with pytest.raises(SolverError, match="the heavy-quark residual"):
        cgnr(D, b, rtol=1e-3, heavy_quark=1e-12, maxiter=10)
    with pytest.raises(ParameterError, match="these vectors have no sites"):
        gcr(lambda p, q: np.copyto(q, p), np.ones(3), heavy_quark=1e-3)


def test_deflation_is_an_option_of_every_solver():
    _, _, b, _ = case()
    U = stout_smear(GaugeField(b.lattice, SU(3)).hot_start(seed=1), rho=0.1, steps=10)
    links = [u.like(precision="float32", storage="float16-12").assign(u) for u in U.fields]
    E, few = WilsonDirac(U, -0.5).even_odd(), WilsonDirac(links, -0.5).even_odd()
    pairs = lanczos(E.normal, b, 12, rtol=1e-9)
    right = E.adjoint(b)
    inner = Inner(few.normal, b.like(precision="float32", storage="float16"))
    for solver, A, source, options in (
        (cg, E.normal, right, {}),
        (minres, E.normal, right, {}),
        (cg, E.normal, right, {"inner": inner}),
        (cgnr, E, b, {}),
    ):
        plain, found = solver(A, source, **options), solver(A, source, deflation=pairs, **options)
        assert found.iterations < 0.9 * plain.iterations
        assert np.linalg.norm(found.x[...] - plain.x[...]) < 1e-8 * np.linalg.norm(plain.x[...])
        assert found.history[0] < 1


def test_progress_flops_and_unknown_options(capsys, monkeypatch):
    _, E, b, _ = case()
    found = cg(E.normal, E.adjoint(b))
    sites = E.D.lattice.volume // 2
    assert found.flops / found.iterations / sites == pytest.approx(5800, rel=0.05)
    times = iter(range(1000, 100000, 2))
    monkeypatch.setattr("jali.solvers.solved.time.perf_counter", lambda: float(next(times)))
    cg(E.normal, E.adjoint(b), progress=True)
    assert "cg: iteration " in capsys.readouterr().out
    with pytest.raises(TypeError, match="cg has no argument 'saveto'"):
        cg(E.normal, b, saveto="x")
    for options, match in (
        ({"heavy_quark": 0}, "heavy_quark is above 0"),
        ({"save_to": 3}, "save_to is the name of a file"),
        ({"progress": 1}, "progress is True or False"),
        ({"deflation": 1}, "deflation is what jali.solvers.lanczos found"),
    ):
        with pytest.raises(ParameterError, match=match):
            cg(E.normal, b, **options)


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("name", ["cg", "cgnr", "gcr 4", "bicgstabl"])
def test_solves_of_a_workspace_have_the_bits_of_others(name, mixed, monkeypatch):
    solver, A, b, options = problem(name, mixed)
    recorded, graph = [], FieldVectors.graph
    monkeypatch.setattr(
        FieldVectors, "graph", lambda self, *a, **k: recorded.append(1) or graph(self, *a, **k)
    )
    workspace, found = Workspace(), []
    others = [b, b.copy(), b.copy()]
    others[1][1, 0, 0, 0, 1, 1] = others[2][0, 1, 0, 0, 0, 1] = 0.5
    for k, one in enumerate(others):
        x0 = None if k < 2 else others[1]
        alone = solver(A, one, x0, **options)
        recorded.clear()
        found.append(solver(A, one, x0, workspace=workspace, **options))
        assert bool(recorded) == (k == 0)
        assert found[k].history == alone.history
        assert np.array_equal(found[k].x[...], alone.x[...])
    assert not np.array_equal(found[0].x[...], found[1].x[...])
    with pytest.raises(SolverError):
        solver(A, others[0], maxiter=2, workspace=workspace, **options)
    again = solver(A, others[0], workspace=workspace, **options)
    assert again.history == found[0].history
    with pytest.raises(ParameterError, match=r"workspace is a jali.solvers.Workspace\(\)"):
        solver(A, b, workspace=3, **options)


@pytest.mark.parametrize("name", ["cg", "bicgstab", "few bits"])
def test_a_workspace_follows_links_and_numbers(name):
    """Of a clover operator, which makes blocks of its links when it is applied, and of another mass."""
    lattice = Lattice(2, 2, 2, 4)
    U, V = (GaugeField(lattice, SU(3)).hot_start(seed=seed) for seed in (1, 5))
    D = CloverDirac(U, 0.5, 1.1)
    b = Field(lattice, Spinor(3))
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    E, inner = D.even_odd(), None
    if name == "few bits":
        few = D.in_format(precision="float32", storage="float16").even_odd()
        inner = Inner(few.normal, b.like(precision="float32", storage="float16").on(ODD))
    kept = Workspace()

    def solve(**more):
        if name == "bicgstab":
            return bicgstab(D, b, **more)
        return cg(E.normal, b.on(ODD), inner=inner, **more)

    solve(workspace=kept)
    for k in range(2):
        if k == 0:
            for u, v in zip(U.fields, V.fields, strict=True):
                u.assign(v)
        else:
            D.mass = 0.8
        found, alone = solve(workspace=kept), solve()
        if name == "few bits":  # whose inverse blocks are rounded from those of D, if D has made them by then
            assert abs(found.iterations - alone.iterations) <= 1
        else:
            assert found.history == alone.history


def test_a_batch_waiting_for_its_heavy_quark_residual_goes_on_with_the_same_bits(tmp_path):
    lattice = Lattice(4, 4, 4, 4)
    K = Staggered(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.1)
    b = Field(lattice, Vector(3), batch=2)
    rng = np.random.default_rng(1)
    for k, size in enumerate((1.0, 1e-9)):
        b.members[k][...] = size * rng.normal(size=b.members[k].shape)
    options = {
        "inner": Inner(K.in_format(precision="float32").normal, b.like(precision="float32")),
        "heavy_quark": 1e-7,
        "atol": 1e-9 * float(np.sqrt(b.norm2()[0])),
        "rtol": 1e-13,
    }
    whole = cg(K.normal, b, **options)
    for n in (40, 66):
        path = tmp_path / str(n)
        cg(K.normal, b, maxiter=n, must_converge=False, save_to=path, **options)
        found = cg(K.normal, b, resume=path, **options)
        assert [one.history for one in found.members] == [one.history for one in whole.members]
