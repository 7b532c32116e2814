"""Site functions, sums and operators as functions of PyTorch's tensors, which `torch.autograd` differentiates.

Forward they run on the tensors' memory, backward `jali.pullback` (of a sum `jali.gradient`, of an operator its adjoint) runs on it:
nothing is copied, but tensors that are not contiguous. PyTorch's gradient with respect to a complex number is dL/d Re z + i dL/d Im z, which is
jali's. PyTorch is imported by the first call.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray, StackedDistributedArray
from jali.derivatives.array_functions import OperatorArrayFunction, array_function, nested, vector
from jali.errors import ParameterError, TraceError


def torch_function(
    function: Any,
    lattice: Any = None,
    *,
    out: str | Sequence[str] | None = None,
    elements: Mapping[str, Any] | None = None,
    boundaries: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A function of PyTorch's tensors that does what a site function or an operator of `jali.linops` does, and has its derivative.

    ::

        energy = torch_function(gradient_energy, lattice)     # def gradient_energy(X, phi, total): total += ...
        energy(phi).backward()                                # phi.grad
        hop = torch_function(hopping, lattice, out="y")       # def hopping(X, y, x, mass): y[X] = ...
        y = hop(x, 0.1)
        blur = torch_function(A)                              # A.matvec, and backward A.rmatvec

    The function takes the arguments of the site function, by place or by name, but `out` and sums. Tensors stand for fields: each is this
    rank's box, of shape `(*lattice.local_extents, *element.numpy_shape)`, float32, float64, complex64 or complex128, on the device of
    the lattice. Numbers, fields and everything else are constant; lists of tensors are lists of fields. `function[EVEN]` runs over a colour,
    and leaves 0 elsewhere.

    - `out`: the parameters that the function writes. They are new tensors, which are returned, several in a tuple. Without it parameters that get no
      argument are sums, as of `lattice.sum`: tensors of no dimension and of double precision, the same on all ranks.
    - `elements`: of parameters whose element is not what trailing indices say (none: a number, one: a `Vector`, two: a `Matrix`), such as
      `{"psi": Spinor(3), "U": SU(3)}`. What is written is like the first argument of tensors by default, as many as there; for a list of fields
      give a list of elements.
    - `boundaries`: of parameters whose boundary is not periodic, as that of `jali.Field`. What is written has that of the first argument of tensors by
      default.

    Gradients are of those tensors that require one. For `SU(n)` the gradient is that with respect to the numbers of the matrices. There are no
    second derivatives.

    Ranks call together, forward and backward, in the same order. A sum is one number that all ranks have: each computes the same
    loss from it, and gets the gradient of this loss, once, with respect to its own box. Of boxes each rank may have a loss of its own: gradients are those
    of the sum of all ranks' losses.

    An operator takes a DistributedArray of tensors, or a stack of them, and gives one; or a tensor, this rank's part of `A.domain()`, by default an
    even split of `A.dims` along its first axis, and gives a tensor, this rank's part of the result.

    Raises ParameterError for other functions and for names that are no parameters; calls raise ParameterError for arguments that do not fit, for a
    function that reads or does not write what is new, or writes something else, LayoutError for tensors that are not this rank's box, ShapeError for those that
    are no part of an operator's vector, and TraceError, in the backward pass, at the line of what has no derivative.
    """
    run = array_function(function, lattice, out, elements, boundaries, "torch_function")
    return _of_operator(run) if isinstance(run, OperatorArrayFunction) else _of_site_function(run)


def _of_site_function(run: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        torch = importlib.import_module("torch")

        def is_array(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.ndim > 0

        plan, tensors = run.arranged(
            [_number(one, torch) for one in arguments],
            {k: _number(v, torch) for k, v in named.items()},
            is_array,
        )
        call_of = _Call(
            lambda ready: run.forward(plan, ready),
            lambda ready, wanted, form, cotangents: run.backward(plan, ready, wanted, form, cotangents),
        )
        found = _autograd_function().apply(call_of, *tensors)
        return nested(call_of.form, found)

    return functools.update_wrapper(call, run.function.function, updated=())


def _of_operator(run: Any) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        torch = importlib.import_module("torch")
        space, parts = run.space_of(x)
        if not all(isinstance(one, torch.Tensor) for one in parts):
            raise ParameterError(
                f"{run!r} takes tensors, or distributed arrays of them, not {type(parts[0]).__name__}"
            )
        call_of = _Call(
            lambda ready: run.forward(space, ready),
            lambda ready, wanted, out, cotangents: run.backward(out, cotangents, space, ready),
        )
        found = _autograd_function().apply(call_of, *parts)
        if isinstance(x, DistributedArray | StackedDistributedArray):
            return vector(call_of.form, list(found))
        return found[0]

    return call


def _number(value: Any, torch: Any) -> Any:
    """A tensor of no dimension is a number, and numbers are constant."""
    if not isinstance(value, torch.Tensor) or value.ndim > 0:
        return value
    if value.requires_grad:
        raise ParameterError(
            "derivatives are with respect to fields: a number that requires a gradient is applied by PyTorch to what the function gives, or is a "
            "tensor with an element for each site"
        )
    return value.item()


class _Call:
    """What a call computes, forward and backward; `form` is how its results belong together."""

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]):
        self.forward, self.backward = forward, backward
        self.form: Any = None


def _ready(tensor: Any) -> Any:
    """Without its history, contiguous; a copy only where it has to be."""
    tensor = tensor.detach()
    return namespace_of(tensor).contiguous(tensor)


@functools.cache
def _autograd_function() -> Any:
    torch = importlib.import_module("torch")

    class Backward(torch.autograd.Function):  # type: ignore[name-defined]
        """The gradients. It is a function of its own so that what asks for a derivative of them is refused, not taken for 0."""

        @staticmethod
        def forward(call: Any, wanted: Any, *tensors: Any) -> Any:
            ready = [_ready(one) for one in tensors]
            count = len(wanted)
            cotangents = [one if one.ndim else one.item() for one in ready[count:]]
            return tuple(call.backward(ready[:count], wanted, call.form, cotangents))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            raise TraceError(
                "jali.derivatives.torch_function has no second derivatives: jali.tangent(jali.gradient(...)) is one"
            )

    class Forward(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(call: Any, *tensors: Any) -> Any:
            call.form, found = call.forward([_ready(one) for one in tensors])
            device = tensors[0].device
            return tuple(
                one if isinstance(one, torch.Tensor) else _as_tensor(torch, one, device) for one in found
            )

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.call = inputs[0]
            ctx.save_for_backward(*inputs[1:])
            ctx.mark_non_differentiable(
                *(one for one in output if not (one.is_floating_point() or one.is_complex()))
            )

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return (
                None,
                *Backward.apply(ctx.call, ctx.needs_input_grad[1:], *ctx.saved_tensors, *cotangents),
            )

    return Forward


def _as_tensor(torch: Any, number: Any, device: Any) -> Any:
    kind = (
        torch.complex128
        if isinstance(number, complex)
        else torch.int64
        if isinstance(number, int)
        else torch.float64
    )
    return torch.tensor(number, dtype=kind, device=device)
