"""Operators of functions, of SciPy and of matrices on arrays that, as those of CuPy, never become arrays of NumPy by themselves."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.linops import BlockDiag, FirstDerivative, LinearOperator, aslinearoperator, dottest, from_functions
from jali.solvers import CG, cgls


def _host(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(map(_host, x))
    return x.values if isinstance(x, ndarray) else x


def _there(x: Any) -> Any:
    return ndarray(x) if isinstance(x, np.ndarray) else ndarray(np.asarray(x))


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):  # noqa: N801 (as CuPy's)
    """What CuPy's arrays do, in host memory: they compute with numbers and with each other, and refuse NumPy's arrays."""

    __module__ = "cupy"

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        if any(isinstance(x, np.ndarray) for x in inputs):
            raise TypeError("Unsupported type numpy.ndarray")
        out = named.pop("out", None)
        if out is not None:
            getattr(ufunc, method)(*_host(inputs), out=tuple(_host(o) for o in out), **named)
            return out[0]
        return _there(getattr(ufunc, method)(*_host(inputs), **named))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # interfaces of memory, by which NumPy would take it
            raise AttributeError(name)
        found = getattr(self.values, name)
        if not callable(found):
            return _there(found) if isinstance(found, np.ndarray) else found
        return lambda *a, **k: _there(found(*_host(a), **{n: _host(x) for n, x in k.items()}))

    @property
    def device(self) -> Any:
        """Which may be made the current one."""
        return contextlib.nullcontext()

    @property
    def data(self) -> Any:
        """Where it lies."""
        return types.SimpleNamespace(ptr=self.values.ctypes.data)

    def item(self) -> Any:
        return self.values.item()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, where: Any) -> Any:
        return _there(self.values[_host(where)])

    def __setitem__(self, where: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type numpy.ndarray")
        self.values[_host(where)] = _host(value)


def _function(name: str) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        if "out" in named:
            getattr(np, name)(*_host(given), **{n: _host(x) for n, x in named.items()})
            return named["out"]
        return _there(getattr(np, name)(*_host(given), **{n: _host(x) for n, x in named.items()}))

    return call


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    made = types.ModuleType("cupy")
    names = "empty zeros zeros_like empty_like ascontiguousarray vdot dot matmul conjugate asarray multiply add subtract divide abs"
    for name in names.split():
        setattr(made, name, _function(name))
    made.ndarray = ndarray
    made.asnumpy = _host
    made.finfo = np.finfo
    monkeypatch.setitem(sys.modules, "cupy", made)
    from jali.array_namespaces import NAMESPACES

    monkeypatch.delitem(NAMESPACES["cupy"].__dict__, "xp", raising=False)
    yield made
    NAMESPACES["cupy"].__dict__.pop("xp", None)


def there(a: np.ndarray, **named: Any) -> DistributedArray:
    x = DistributedArray.to_dist(a, **named)
    return DistributedArray.of(x.layout, ndarray(x.local))


def numbers(shape: Any, is_complex: bool = False, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + (1j * rng.normal(size=shape) if is_complex else 0)


@pytest.mark.parametrize("is_complex", [False, True])
def test_scipys_operators_of_functions_compute_where_the_vector_is(is_complex) -> None:
    c = numbers(6, is_complex)
    factors = ndarray(c)
    serial = scipy.sparse.linalg.LinearOperator(
        (6, 6), matvec=lambda x: factors * x, rmatvec=lambda y: factors.conj() * y, dtype=c.dtype
    )
    a = numbers(6, is_complex, 2)
    with pytest.raises(TypeError):
        serial.matvec(ndarray(a))  # SciPy's own way
    x = there(a, partition=Partition.BROADCAST)
    for op in (LinearOperator(serial), aslinearoperator(serial)):
        y = op @ x
        assert y.engine == "cupy"
        assert np.array_equal(y.local.values, c * a)
        assert np.array_equal((op.H @ x).local.values, c.conj() * a)
        assert dottest(op, x, y, rtol=1e-12)
    blocks = BlockDiag([serial]) @ there(a)
    assert np.array_equal(blocks.local.values, c * a)


def test_scipys_operators_of_functions_still_take_numpys() -> None:
    serial = scipy.sparse.linalg.LinearOperator(
        (3, 3), matvec=lambda x: 2 * x, rmatvec=lambda y: 2 * y, dtype="float64"
    )
    x = DistributedArray.to_dist(np.arange(3.0), partition=Partition.BROADCAST)
    assert np.array_equal((aslinearoperator(serial) @ x).local, [0, 2, 4])


@pytest.mark.parametrize("parts", [False, True])
def test_pairs_of_functions_compute_where_the_vector_is(parts) -> None:
    c, a = numbers(6), numbers(6, seed=2)
    factors = ndarray(c) if parts else there(c)
    op = from_functions(lambda x: factors * x, lambda y: factors * y, (6, 6), parts=parts)
    x = there(a)
    y = op @ x
    assert y.engine == "cupy"
    assert np.array_equal(y.local.values, c * a)
    assert dottest(op, x, y, rtol=1e-12)
    normal = op.H @ op
    for found in (
        CG(normal).solve(normal @ x, maxiter=20, atol=1e-07)[0],
        cgls(op, y, maxiter=40, atol=1e-07).x,
    ):
        assert found.engine == "cupy"
        np.testing.assert_allclose(found.local.values, a, rtol=1e-6)


def test_a_function_that_copies_vectors_to_the_host_is_reported() -> None:
    op = from_functions(lambda x: np.asarray(x), lambda y: y, (6, 6), parts=True)
    with pytest.raises(TypeError, match="Implicit conversion"):
        op @ there(numbers(6))


def test_matrices_and_derivatives_compute_where_the_vector_is() -> None:
    A, a = numbers((4, 6), True), numbers(6, True, 2)
    y = BlockDiag([ndarray(A)]) @ there(a)
    np.testing.assert_allclose(y.local.values, A @ a)
    b = numbers((7, 4))
    found, right = (FirstDerivative((7, 4), edge=True) @ x for x in (there(b), DistributedArray.to_dist(b)))
    assert found.engine == "cupy"
    assert np.array_equal(found.local.values, right.local)


def test_what_is_on_a_device_is_not_what_the_host_shares() -> None:
    def run() -> None:
        x = there(numbers((4, 3)))
        assert (x + 1).engine == "cupy"
        assert np.isclose(x.norm(), np.linalg.norm(numbers((4, 3))))

    comm.virtual_ranks(1, run)
