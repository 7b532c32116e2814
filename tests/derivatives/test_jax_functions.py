"""Site functions, sums and operators as functions of JAX's arrays: gradients are JAX's own of the same formula."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
if os.environ.get("JALI_DEVICE", "cpu") != "cpu":
    pytest.skip("arrays of the host are fields of the host", allow_module_level=True)

import jax
import jax.numpy as jnp

import jali
from jali import Lattice
from jali.arrays import DistributedArray, layout_of
from jali.derivatives.jax_functions import jax_function
from jali.errors import LayoutError, ParameterError
from jali.linops import FirstDerivative

EXTENTS = (4, 6)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@jali.site_function
def hop(X, y, x, a, c):
    y[X] = c * a[X] * x[X] + x[X + X.directions()[0]] * x[X] - 2.0 * x[X - X.directions()[1]]


@jali.site_function
def energy(X, x, mass, total):
    for mu in X.directions():
        total += abs(x[X + mu] - x[X]) ** 2
    total += mass * abs(x[X]) ** 2


@jali.site_function
def products(X, x, total):
    total += x[X].conj() * x[X + X.directions()[0]]


def hop_in_jax(x, a, c):
    return c * a * x + jnp.roll(x, -1, 0) * x - 2.0 * jnp.roll(x, 1, 1)


def energy_in_jax(x, mass):
    squares = sum((abs(jnp.roll(x, -1, mu) - x) ** 2).sum() for mu in range(x.ndim))
    return squares + mass * (abs(x) ** 2).sum()


def numbers(dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=EXTENTS)
    return jnp.asarray(
        (drawn + 1j * rng.normal(size=EXTENTS) if np.dtype(dtype).kind == "c" else drawn).astype(dtype)
    )


def same(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(
        a, b, rtol=1e-4 if a.dtype.itemsize < 8 or a.dtype == np.complex64 else 1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_of_a_sum_it_is_the_gradient_that_jax_has_the_conjugate_for_complex_numbers(dtype):
    run, x = jax_function(energy, Lattice(*EXTENTS)), numbers(dtype)
    assert run(x, 0.5).dtype == np.float64
    same(jax.grad(lambda x: run(x, 0.5) ** 0.5)(x), jax.grad(lambda x: energy_in_jax(x, 0.5) ** 0.5)(x))


def test_complex_sums_have_one_too():
    run, x = jax_function(products, Lattice(*EXTENTS)), numbers(complex)
    found = jax.vjp(run, x)[1](0.3 - 0.2j)[0]
    same(found, jax.vjp(lambda x: (x.conj() * jnp.roll(x, -1, 0)).sum(), x)[1](0.3 - 0.2j)[0])


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_what_a_site_function_writes_has_its_pullback(dtype):
    run = jax_function(hop, Lattice(*EXTENTS), out="y")
    x, a, c = numbers(dtype), numbers(dtype, 2), numbers(dtype, 3)
    y, pull = jax.vjp(lambda x, a: run(x, a, c=0.3), x, a)
    wanted, pull_in_jax = jax.vjp(lambda x, a: hop_in_jax(x, a, 0.3), x, a)
    same(y, wanted)
    for found, there in zip(pull(c), pull_in_jax(c), strict=True):
        same(found, there)
    of_one = jax.grad(lambda a: (run(x, a, 0.3) * c).real.sum())(a)
    same(of_one, jax.grad(lambda a: (hop_in_jax(x, a, 0.3) * c).real.sum())(a))


def test_inside_jit_it_is_the_same():
    run, value = jax_function(hop, Lattice(*EXTENTS), out="y"), jax_function(energy, Lattice(*EXTENTS))
    x, a = numbers(), numbers(seed=2)

    def loss(x):
        return value(run(jnp.sin(x), a, 0.3), 0.5)

    same(jax.jit(loss)(x), loss(x))
    same(jax.jit(jax.grad(loss))(x), jax.grad(loss)(x))


def test_arrays_are_fields_where_they_lie(monkeypatch):
    wrapped, wrap = [], Lattice.wrap

    def noted(lattice, array, *arguments, **named):
        wrapped.append(array.ctypes.data)
        return wrap(lattice, array, *arguments, **named)

    monkeypatch.setattr(Lattice, "wrap", noted)
    x, a = numbers(), numbers(seed=2)
    y = jax_function(hop, Lattice(*EXTENTS), out="y")(x, a, 0.3)
    assert wrapped == [one.unsafe_buffer_pointer() for one in (x, a, y)]


def test_the_way_back_of_an_operator_is_its_adjoint():
    A = FirstDerivative(EXTENTS)
    run, x, c = jax_function(A), numbers(), numbers(seed=3)
    y, pull = jax.vjp(run, x)
    layout = layout_of(A.communicator, EXTENTS)
    same(y, jnp.asarray(A.matvec(DistributedArray.of(layout, np.asarray(x))).local))
    same(pull(c)[0], jnp.asarray(A.rmatvec(DistributedArray.of(layout, np.asarray(c))).local))
    (found,) = jax.vjp(lambda x: run(DistributedArray.of(layout, x)).local, x)[1](c)
    same(found, pull(c)[0])
    z, d = numbers(complex), numbers(complex, 3)
    back = A.rmatvec(DistributedArray.of(layout, np.asarray(d).conj())).local
    same(jax.vjp(run, z)[1](d)[0], jnp.asarray(back.conj()))


def test_two_ranks_have_the_gradients_of_one_outside_of_jit():
    x = np.asarray(numbers())

    def run():
        with jax.enable_x64(True):
            lattice = Lattice(*EXTENTS)
            corner = zip(lattice.local_origin, lattice.local_extents, strict=True)
            own = jnp.asarray(x[tuple(slice(o, o + n) for o, n in corner)])
            value = jax_function(energy, lattice)
            if lattice.communicator.size > 1:
                with pytest.raises(ParameterError, match="call it outside"):
                    jax.jit(lambda x: value(x, 0.5))(own)
            return lattice.local_origin, np.asarray(jax.grad(lambda x: value(x, 0.5) ** 0.5)(own))

    ((_, whole),) = jali.virtual_ranks(1, run)
    for origin, own in jali.virtual_ranks(2, run):
        box = tuple(slice(o, o + n) for o, n in zip(origin, own.shape, strict=True))
        np.testing.assert_array_equal(own, whole[box])


def test_what_does_not_fit_is_refused():
    lattice, x = Lattice(*EXTENTS), numbers()
    run = jax_function(energy, lattice)
    with pytest.raises(ParameterError, match="numbers are constant"):
        jax.grad(run, 1)(x, 0.5)
    with pytest.raises(LayoutError, match="this rank's box"):
        run(x.T, 0.5)
    with pytest.raises(ParameterError, match="leaves nothing to find"):
        jax_function(hop, lattice)(x, x, x, 0.3)
    with pytest.raises(ValueError, match="do not support JVP"):  # second derivatives
        jax.grad(lambda x: jax.grad(run)(x, 0.5).sum())(x)
