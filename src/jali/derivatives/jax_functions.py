"""Site functions, sums and operators as functions of JAX's arrays on the host, which `jax.grad` and `jax.vjp` differentiate (`jax.custom_vjp`).

As `torch_functions`, with two differences. JAX's gradient with respect to a complex number is dL/d Re z - i dL/d Im z, the conjugate of jali's and PyTorch's:
cotangents are conjugated on the way in and out. And JAX traces what it compiles: inside `jax.jit` a call is a `jax.pure_callback`, whose
order JAX does not fix, so that several ranks call outside of it. JAX is imported by the first call.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import NAMESPACES
from jali.arrays import DistributedArray, StackedDistributedArray
from jali.derivatives.array_functions import OperatorArrayFunction, array_function, nested, vector
from jali.errors import ParameterError

ALIGNMENT = 64
"""Bytes: arrays of NumPy that begin at a multiple become arrays of JAX without a copy."""


def jax_function(
    function: Any,
    lattice: Any = None,
    *,
    out: str | Sequence[str] | None = None,
    elements: Mapping[str, Any] | None = None,
    boundaries: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A function of JAX's arrays that does what a site function or an operator of `jali.linops` does, and has its derivative.

    ::

        energy = jax_function(gradient_energy, lattice)      # def gradient_energy(X, phi, total): total += ...
        force = jax.grad(energy)(phi)
        hop = jax_function(hopping, lattice, out="y")        # def hopping(X, y, x, mass): y[X] = ...
        y, pull = jax.vjp(hop, x, 0.1)

    Arguments, results, ranks and errors are those of `torch_function`, with arrays of JAX on the host, of shape `(*lattice.local_extents,
    *element.numpy_shape)`, in place of tensors. Sums are of double precision where JAX has it (`jax_enable_x64`). Of a complex number the gradient is
    JAX's, the conjugate of `jali.gradient`'s, whose argument a step of descent takes as `z - rate * conj(g)`.

    It is called with arrays or, on one rank, inside `jax.jit`, where numbers have to be constants. It has no second derivatives, no forward mode and
    no `vmap`: JAX refuses them. Besides the errors of `torch_function` calls raise ParameterError on several ranks inside `jax.jit`, and LayoutError for arrays
    that are on a device.
    """
    run = array_function(function, lattice, out, elements, boundaries, "jax_function")
    if isinstance(run, OperatorArrayFunction):
        return _of_operator(run)
    run.new = _aligned
    return _of_site_function(run)


def _aligned(beside: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A new array that JAX takes as it is."""
    kind = np.dtype(dtype)
    memory = np.empty(math.prod(shape) * kind.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)


def _of_site_function(run: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        jax = importlib.import_module("jax")

        def is_array(value: Any) -> bool:
            return isinstance(value, jax.Array) and value.ndim > 0

        plan, arrays = run.arranged(
            [_number(one, jax) for one in arguments], {k: _number(v, jax) for k, v in named.items()}, is_array
        )
        call_of = _Call(
            run,
            lambda ready: run.forward(plan, ready),
            lambda ready, wanted, form, cotangents: run.backward(plan, ready, wanted, form, cotangents),
        )
        found = call_of(*arrays)
        return nested(call_of.form, found)

    return functools.update_wrapper(call, run.function.function, updated=())


def _of_operator(run: Any) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        jax = importlib.import_module("jax")
        space, parts = run.space_of(x)
        if not all(isinstance(one, jax.Array) for one in parts):
            raise ParameterError(
                f"{run!r} takes arrays of JAX, or distributed arrays of them, not {type(parts[0]).__name__}"
            )
        call_of = _Call(
            run,
            lambda ready: run.forward(space, ready),
            lambda ready, wanted, out, cotangents: run.backward(out, cotangents, space, ready),
        )
        found = call_of(*parts)
        if isinstance(x, DistributedArray | StackedDistributedArray):
            return vector(call_of.form, list(found))
        return found[0]

    return call


def _number(value: Any, jax: Any) -> Any:
    """An array of no dimension is a number, and numbers are constant."""
    if not isinstance(value, jax.Array) or value.ndim > 0:
        return value
    if isinstance(value, jax.core.Tracer):
        raise ParameterError(
            "numbers are constant, and derivatives with respect to fields: JAX applies a number that it traces to what the function gives, or it is an "
            "array with an element for each site"
        )
    return value.item()


class _Call:
    """One call: what is computed, forward and backward; `form` is how its results belong together."""

    def __init__(self, run: Any, forward: Callable[..., Any], backward: Callable[..., Any]):
        self.run, self.forward, self.backward = run, forward, backward
        self.form: Any = None
        self.wanted: tuple[bool, ...] = ()
        self.jax = importlib.import_module("jax")

    def __call__(self, *arrays: Any) -> Any:
        """The results, one after the other."""
        known = self.jax.custom_vjp(self._results)
        known.defvjp(self._results_and_arrays, self._gradients, symbolic_zeros=True)
        return known(*arrays)

    def _results(self, *arrays: Any) -> Any:
        if not self._traced(arrays):
            return tuple(map(self._to_jax, self._forward_on_host(*arrays)))
        like = self._forward_on_host(*(np.zeros(one.shape, one.dtype) for one in arrays))  # what comes out
        shapes = tuple(self.jax.ShapeDtypeStruct(one.shape, one.dtype) for one in like)
        return self.jax.pure_callback(self._forward_on_host, shapes, *arrays)

    def _results_and_arrays(self, *arrays: Any) -> Any:
        self.wanted = tuple(one.perturbed for one in arrays)
        values = tuple(one.value for one in arrays)
        return self._results(*values), values

    def _gradients(self, arrays: Any, cotangents: Any) -> Any:
        numpy = self.jax.numpy
        symbolic = self.jax.custom_derivatives.SymbolicZero
        given = [numpy.zeros(c.shape, c.dtype) if isinstance(c, symbolic) else c for c in cotangents]
        if not self._traced((*arrays, *given)):
            found = tuple(map(self._to_jax, self._backward_on_host(arrays, given)))
        else:
            shapes = tuple(
                self.jax.ShapeDtypeStruct(one.shape, one.dtype)
                for one, wanted in zip(arrays, self.wanted, strict=True)
                if wanted
            )
            found = self.jax.pure_callback(self._backward_on_host, shapes, arrays, given)
        left = iter(found)
        return tuple(next(left) if wanted else None for wanted in self.wanted)

    def _traced(self, arrays: Sequence[Any]) -> bool:
        if not any(isinstance(one, self.jax.core.Tracer) for one in arrays):
            return False
        if self.run.ranks > 1:
            raise ParameterError(
                f"{self.run!r} is of {self.run.ranks} ranks, which make their calls in one order, and inside jax.jit JAX does not fix it: call it outside"
            )
        return True

    def _forward_on_host(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        self.form, found = self.forward([_on_host(one) for one in arrays])
        return tuple(self._as_jax_has_it(np.asarray(one)) for one in found)

    def _backward_on_host(self, arrays: Sequence[Any], cotangents: Sequence[Any]) -> tuple[np.ndarray, ...]:
        given = [np.conj(_on_host(c)) if np.iscomplexobj(c) else _on_host(c) for c in cotangents]
        given = [one if one.ndim else one.item() for one in given]
        found = self.backward([_on_host(one) for one in arrays], self.wanted, self.form, given)
        pairs = zip(found, self.wanted, strict=True)
        return tuple(
            np.conj(one, out=one) if np.iscomplexobj(one) else one for one, wanted in pairs if wanted
        )

    def _as_jax_has_it(self, x: np.ndarray) -> np.ndarray:
        return x.astype(self.jax.dtypes.canonicalize_dtype(x.dtype), copy=False)

    def _to_jax(self, x: np.ndarray) -> Any:
        return self.jax.device_put(x, may_alias=True)  # nobody else writes to it


def _on_host(x: Any) -> np.ndarray:
    """Its memory, as an array of NumPy that is not written to."""
    if isinstance(x, np.ndarray | float | complex | np.generic):
        return np.ascontiguousarray(x).reshape(np.shape(x))
    view: np.ndarray = NAMESPACES["jax"].mutable_view(x)
    return np.ascontiguousarray(view).reshape(view.shape)
