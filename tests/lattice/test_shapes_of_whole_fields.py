"""Components, reshapes, stacks and factors of whole fields are those of NumPy, in one kernel, on any ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest

import jali
from jali import (
    Complex,
    Field,
    Hermitian,
    Lattice,
    LayoutError,
    Matrix,
    Real,
    Spinor,
    TraceError,
    Vector,
    virtual_ranks,
)

EXTENTS = (3, 4, 2)
on_ranks = pytest.mark.parametrize("ranks", [1, 2])


def make(lattice, element, seed=1, **options):
    f = Field(lattice, element, **options)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=f.shape)
    f[...] = values + 1j * rng.normal(size=f.shape) if f.dtype.kind == "c" else values
    return f


def everywhere(ranks, body, device="cpu"):
    """Runs the body with a lattice of so many ranks, which all return the same."""

    def run():
        return body(Lattice(*EXTENTS, grid=(1, ranks, 1), device=device))

    found = virtual_ranks(ranks, run)
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize("kind", ["real", "complex"])
@on_ranks
def test_shapes_are_those_of_numpy(ranks, kind):
    def body(lattice):
        n = {"kind": kind}
        v, w, m = (
            make(lattice, element, k)
            for k, element in enumerate([Vector(3, **n), Vector(4, **n), Matrix(2, 3, **n)])
        )
        a = make(lattice, Real() if kind == "real" else Complex(), 7)
        V, W, M, A = (f[...] for f in (v, w, m, a))
        for found, expected in [
            (v.components[1], V[..., 1]),
            (v.components[-1], V[..., -1]),
            (v.components[:2], V[..., :2]),
            (m.components[:, 1:], M[..., :, 1:]),
            (m.components[1, ::2], M[..., 1, ::2]),
            (m.components[np.int64(0), 2], M[..., 0, 2]),
            ((2 * m).components[::-1, 0], 2 * M[..., ::-1, 0]),
            (m.reshape(-1), M.reshape(*EXTENTS, 6)),
            (m.reshape((3, 2)), M.reshape(*EXTENTS, 3, 2)),
            (m.diagonal(), np.diagonal(M, axis1=-2, axis2=-1)),
            (jali.diagonal(v), V[..., None] * np.eye(3)),
            (jali.stack([v, 2 * v, v]), np.stack([V, 2 * V, V], axis=-2)),
            (jali.stack([v, w.components[1:]], axis=1), np.stack([V, W[..., 1:]], axis=-1)),
            (jali.stack((a, 2.0, a * a)), np.stack([A, 2 + 0 * A, A * A], axis=-1)),
            (jali.concatenate([v, w]), np.concatenate([V, W], axis=-1)),
            (jali.concatenate([m, m.components[:1, :]]), np.concatenate([M, M[..., :1, :]], axis=-2)),
            (jali.concatenate([m, m], axis=-1), np.concatenate([M, M], axis=-1)),
        ]:
            assert found.shape == expected.shape, found
            assert np.array_equal(found[...], expected), found
        return True

    everywhere(ranks, body)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@on_ranks
def test_a_spinor_to_its_chiral_halves_and_back(ranks, precision):
    def body(lattice):
        psi, chi = (
            make(lattice, Spinor(3), precision=precision),
            Field(lattice, Spinor(3), precision=precision),
        )
        upper, lower = (psi.components[:, half].reshape(6).field() for half in (slice(0, 2), slice(2, 4)))
        assert upper.element == Vector(6)
        assert np.array_equal(upper[...].reshape(*EXTENTS, 3, 2), np.swapaxes(psi[...][..., :2, :], -1, -2))
        chi[...] = jali.concatenate([upper.reshape(3, 2), lower.reshape(3, 2)], axis=1)
        assert np.array_equal(chi[...], psi[...])
        return chi[...].tobytes()

    everywhere(ranks, body)


@on_ranks
def test_blocks_act_on_halves_without_a_site_function(ranks):
    def body(lattice):
        psi, chi = make(lattice, Spinor(3)), Field(lattice, Spinor(3))
        m = make(lattice, Matrix(6), 2)
        plus = (m * m.dagger()).hermitian().field()
        plus += jali.diagonal(jali.stack([1.0 + 0 * m.components[0, 0].real] * 6))
        chi[...] = psi
        chi.components[:, :2] = plus.solve(psi.components[:, :2].reshape(6)).reshape(3, 2)
        half = np.swapaxes(psi[...][..., :2, :], -1, -2).reshape(*EXTENTS, 6)
        expected = np.linalg.solve(plus[...], half[..., None])[..., 0]
        found = np.swapaxes(chi[...][..., :2, :], -1, -2).reshape(*EXTENTS, 6)
        assert np.allclose(found, expected)
        assert np.array_equal(chi[...][..., 2:, :], psi[...][..., 2:, :])
        assert np.allclose(plus.cholesky()[...], np.linalg.cholesky(plus[...]))
        assert np.allclose(plus.log_det()[...], np.linalg.slogdet(plus[...])[1])
        assert np.allclose(plus.inverse()[...] @ plus[...], np.eye(6))
        return chi[...].tobytes()

    everywhere(ranks, body)


@on_ranks
def test_components_are_assigned(ranks):
    def body(lattice):
        m, v = make(lattice, Matrix(2, 3)), make(lattice, Vector(3), 2)
        expected, V = m[...], v[...]
        m.components[0, :] = v
        expected[..., 0, :] = V
        m.components[1, 1:] = 2 * v.components[:2]
        expected[..., 1, 1:] = 2 * V[..., :2]
        m.components[1, 0] = 1j
        expected[..., 1, 0] = 1j
        m.components[:, 2] *= 2
        expected[..., 2] *= 2
        m.components[0, ::2] += m.components[1, 1:]
        expected[..., 0, ::2] += expected[..., 1, 1:]
        scalar = lattice.scalar(4.0)
        m.components[0, 1] = scalar
        expected[..., 0, 1] = 4
        assert np.array_equal(m[...], expected)
        graph = jali.graph(lambda: m.components.__setitem__((0, 0), m.components[0, 0] + 1), lattice)
        graph.run(3)
        assert np.allclose(m[...][..., 0, 0], expected[..., 0, 0] + 3)
        return m[...].tobytes()

    everywhere(ranks, body)


@on_ranks
def test_mistakes_are_errors_at_the_users_line_on_every_rank(ranks):
    def body(lattice):
        psi, v, h = make(lattice, Spinor(3)), make(lattice, Vector(6), 2), Field(lattice, Hermitian(2))
        said = []
        for wrong, error, says in [
            (lambda: psi.components[:, 4].field(), TraceError, "does not exist"),
            (lambda: psi.components[:, 4:].field(), TraceError, "is empty"),
            (lambda: psi.components[0].field(), TraceError, "takes 2 indices, not 1"),
            (lambda: psi.components["a"], TraceError, "fixed whole numbers and slices"),
            (lambda: psi.components[0, 0.5:], TraceError, "fixed whole numbers and slices"),
            (lambda: v.reshape(4, 2).field(), TraceError, r"no vector or matrix of shape \(4, 2\)"),
            (lambda: v.reshape("x"), TraceError, "reshape takes whole numbers"),
            (lambda: v.diagonal().field(), TraceError, "diagonal"),
            (lambda: jali.diagonal(psi).field(), TraceError, "needs a vector"),
            (lambda: jali.stack(v), TraceError, "needs a list of fields"),
            (lambda: jali.stack([v, psi]).field(), TraceError, "vectors of one length"),
            (lambda: jali.stack([v, v], axis=2).field(), TraceError, "axis 2"),
            (lambda: jali.stack([v, v], axis=0.5), TraceError, "axis 0.5"),
            (lambda: jali.concatenate([v, psi]).field(), TraceError, "vectors alone or matrices alone"),
            (lambda: psi.components.__setitem__((0, slice(2)), v), TraceError, "cannot be assigned"),
            (lambda: h.components.__setitem__((0, 1), 1.0), TraceError, r"holds Hermitian\(2\)"),
            (lambda: v.cholesky().field(), TraceError, "square"),
            (lambda: (2 * v).components.__setitem__(0, 1), LayoutError, "make a field of it"),
            (lambda: jali.stack([v, "x"]), LayoutError, "combine with fields"),
            (lambda: jali.stack([v, np.zeros(6)]), LayoutError, "array of NumPy"),
        ]:
            with pytest.raises(error, match=says) as caught:
                wrong()
            if error is TraceError:
                assert re.search(rf"at {__file__}:\d+$", str(caught.value))
            said.append(str(caught.value))
        return len(said)

    everywhere(ranks, body)


def test_expressions_are_shown_as_they_are_written():
    lattice = Lattice(*EXTENTS)
    v, m = Field(lattice, Vector(2), name="v"), Field(lattice, Matrix(2), name="m")
    for expression, text in [
        (v.components[0], "v.components[0]"),
        ((v + v).components[1:], "(v + v).components[1:]"),
        (m.components[:, ::2], "m.components[:, ::2]"),
        (m.reshape(4), "m.reshape(4)"),
        (m.diagonal(), "m.diagonal()"),
        (jali.diagonal(v), "diagonal(v)"),
        (jali.stack([v, v + v], axis=1), "stack([v, v + v], axis=1)"),
        (jali.concatenate([m, m]), "concatenate([m, m])"),
    ]:
        assert repr(expression).startswith(f"<{text}, of fields on "), expression
    assert repr(m.components).startswith("<components of ")


def test_one_kernel_serves_a_formula_and_boundaries_follow():
    lattice = Lattice(*EXTENTS)
    v = make(lattice, Vector(3), boundary={1: "antiperiodic"})
    w = make(lattice, Vector(3), 2, boundary={1: "antiperiodic"})
    for made in (
        v.components[:2],
        jali.stack([v, w]),
        jali.concatenate([v, w]),
        v.reshape(3, 1),
        jali.diagonal(v),
    ):
        assert made.field().boundary.conditions[1] == "antiperiodic", made
    first, second = jali.stack([v, w]), jali.stack([w, v])
    assert first.recorded == second.recorded
    assert hash(v.components[:2].recorded) == hash(w.components[:2].recorded)
    assert v.components[:2].recorded != v.components[1:].recorded
    h = Field(lattice, Hermitian(3))
    h[...] = np.eye(3)
    assert h.solve(v).field(boundary="periodic").element == Vector(3)


def test_site_functions_do_not_take_whole_fields_by_the_way():
    lattice = Lattice(*EXTENTS)
    outside = Field(lattice, Vector(3))

    @jali.site_function
    def f(X, out):
        out[X] = jali.concatenate([outside, out[X]])

    with pytest.raises(TraceError, match="no arithmetic of its own in a site function"):
        f(Field(lattice, Vector(3)))
