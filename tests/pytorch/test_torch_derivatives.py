"""Site functions, sums and operators as functions of tensors: gradients are those of differences, and of the same formula in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch

import jali
from jali import EVEN, SU, Complex, Field, Lattice, Real, Vector
from jali.arrays import DistributedArray
from jali.derivatives.torch_functions import torch_function
from jali.errors import LayoutError, ParameterError, ShapeError, TraceError
from jali.linops import FirstDerivative, Identity, LinearOperator

EXTENTS = (4, 6)


@jali.site_function
def hop(X, y, x, a, c):
    here = c * a[X] * x[X]
    for mu in X.directions():
        here = here + x[X + mu] * x[X] - 2.0 * x[X - mu]
    y[X] = here


@jali.site_function
def products(X, x, c, total):
    total += c * (x[X].conj() * x[X + X.directions()[0]])


@jali.site_function
def energy(X, x, mass, total):
    for mu in X.directions():
        total += abs(x[X + mu] - x[X]) ** 2
    total += mass * abs(x[X]) ** 2


@jali.site_function
def transported(X, y, x, U):
    found = 0.5 * x[X]
    for mu in X.directions():
        found = found + U[mu][X] * x[X + mu] - U[mu][X - mu].dagger() * x[X - mu]
    y[X] = found


@jali.site_function
def plaquettes(X, U, total):
    for mu, nu in X.planes():
        total += (U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()).trace().real


def gradcheck(function, inputs):
    return torch.autograd.gradcheck(function, inputs, fast_mode=True)  # in a random direction


def numbers(*shape, dtype=torch.float64, seed=1, needs=True):
    drawn = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return drawn.requires_grad_(needs)


def energy_in_torch(x, mass):
    squares = sum((torch.roll(x, -1, mu) - x).abs().square().sum() for mu in range(x.ndim))
    return squares + mass * x.abs().square().sum()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_what_a_site_function_writes_has_its_derivative(dtype):
    lattice = Lattice(*EXTENTS)
    run = torch_function(hop, lattice, out="y")
    x, a = numbers(*EXTENTS, dtype=dtype), numbers(*EXTENTS, dtype=dtype, seed=2)
    assert gradcheck(lambda x, a: run(x, a, c=0.3), (x, a))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_sums_have_their_derivative_complex_ones_too(dtype):
    run = torch_function(products, Lattice(*EXTENTS))
    assert run(numbers(*EXTENTS, dtype=dtype), 0.3).shape == ()
    assert gradcheck(lambda x: run(x, 0.3), (numbers(*EXTENTS, dtype=dtype),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_gradients_are_those_of_the_same_formula_in_torch(dtype):
    run = torch_function(energy, Lattice(*EXTENTS))
    x = numbers(*EXTENTS, dtype=dtype)
    value, wanted = run(x, 0.5), energy_in_torch(x, 0.5)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value.to(wanted.dtype), wanted)
    (found,) = torch.autograd.grad(value.sqrt(), x)
    (there,) = torch.autograd.grad(wanted.sqrt(), x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, there)


def test_of_a_complex_number_it_is_the_change_with_the_real_part_plus_i_times_that_with_the_imaginary_one():
    run = torch_function(energy, Lattice(2, 2))
    x = torch.full((2, 2), 3.0 + 4.0j, dtype=torch.complex128, requires_grad=True)
    run(x, 1.0).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # JAX has the conjugate of it


def test_tensors_are_fields_where_they_lie(monkeypatch):
    wrapped, wrap = [], Lattice.wrap

    def noted(lattice, array, *arguments, **named):
        wrapped.append(array.data_ptr())
        return wrap(lattice, array, *arguments, **named)

    monkeypatch.setattr(Lattice, "wrap", noted)
    run = torch_function(hop, Lattice(*EXTENTS), out="y")
    x, a = numbers(*EXTENTS), numbers(*EXTENTS, seed=2, needs=False)
    y = run(x, a, 0.3)
    assert wrapped == [x.data_ptr(), a.data_ptr(), y.data_ptr()]
    del wrapped[:]
    c = numbers(*EXTENTS, seed=3, needs=False)
    (found,) = torch.autograd.grad(y, x, c)
    assert {x.data_ptr(), c.data_ptr(), found.data_ptr()} <= set(wrapped)


def test_of_tensors_that_are_not_contiguous_there_is_a_copy():
    run = torch_function(hop, Lattice(*EXTENTS), out="y")
    x, a = numbers(*EXTENTS, dtype=torch.complex128), numbers(*EXTENTS, dtype=torch.complex128, seed=2)
    y = run(x.t().contiguous().t(), a, 0.3)
    torch.testing.assert_close(y, run(x, a, 0.3))
    assert gradcheck(lambda x: run(x.conj(), a, 0.3).sum(), (x,))  # a gradient that is expanded
    assert gradcheck(lambda x: run(x, a, 0.3)[:, ::2].conj().imag, (x,))


def test_fields_and_numbers_are_constant():
    lattice = Lattice(*EXTENTS)
    run = torch_function(hop, lattice, out="y")
    x, a = numbers(*EXTENTS), numbers(*EXTENTS, seed=2)
    constant = Field(lattice, Real())
    constant[...] = a.detach().numpy()
    c = torch.tensor(0.3)
    run(x, constant, c).sum().backward()
    (wanted,) = torch.autograd.grad(run(x, a, c).sum(), x)
    torch.testing.assert_close(x.grad, wanted, rtol=0, atol=0)
    with pytest.raises(ParameterError, match="with respect to fields"):
        run(x, constant, c.clone().requires_grad_())


def links(seed=4):
    drawn = numbers(2, *EXTENTS, 3, 3, dtype=torch.complex128, seed=seed, needs=False)
    return [torch.linalg.qr(one)[0].requires_grad_() for one in drawn]


def test_vectors_links_and_boundaries_are_what_is_said_of_them():
    lattice = Lattice(*EXTENTS)
    antiperiodic = {"x": {0: "antiperiodic"}, "y": {0: "antiperiodic"}}
    run = torch_function(transported, lattice, out="y", boundaries=antiperiodic)
    x, U = numbers(*EXTENTS, 3, dtype=torch.complex128), links()

    def moved(x, by, mu):
        x = torch.roll(x, -by, mu)
        if mu == 0:
            sign = torch.ones(EXTENTS[0], 1, 1)
            sign[-1 if by == 1 else 0] = -1
            x = sign * x
        return x

    def in_torch(x, U):
        found = 0.5 * x
        for mu in range(2):
            back = torch.roll(U[mu].mH, 1, mu)
            found = (
                found
                + (U[mu] @ moved(x, 1, mu)[..., None])[..., 0]
                - (back @ moved(x, -1, mu)[..., None])[..., 0]
            )
        return found

    y, wanted = run(x, U), in_torch(x, U)
    torch.testing.assert_close(y, wanted)
    c = numbers(*EXTENTS, 3, dtype=torch.complex128, seed=5, needs=False)
    torch.testing.assert_close(torch.autograd.grad(y, [x, *U], c), torch.autograd.grad(wanted, [x, *U], c))
    (found,) = torch.autograd.grad(run(x, U), U[1], c)  # of one of the links alone
    torch.testing.assert_close(found, torch.autograd.grad(in_torch(x, U), U[1], c)[0])


def test_of_links_it_is_the_gradient_with_respect_to_the_numbers_of_matrices():
    run = torch_function(plaquettes, Lattice(*EXTENTS), elements={"U": SU(3)})
    U = links()
    loop = U[0] @ torch.roll(U[1], -1, 0) @ torch.roll(U[0], -1, 1).mH @ U[1].mH
    wanted = loop.diagonal(dim1=-1, dim2=-2).sum().real
    torch.testing.assert_close(run(U), wanted)
    torch.testing.assert_close(torch.autograd.grad(run(U), U), torch.autograd.grad(wanted, U))


def test_over_a_colour_the_rest_is_0():
    run = torch_function(energy[EVEN], Lattice(*EXTENTS))
    write = torch_function(hop[EVEN], Lattice(*EXTENTS), out="y")
    even = torch.tensor(np.indices(EXTENTS).sum(0) % 2 == 0)
    x, a = numbers(*EXTENTS), numbers(*EXTENTS, seed=2)
    assert not write(x, a, 0.3)[~even].any()
    assert gradcheck(lambda x: write(x, a, 0.3), (x,))
    assert gradcheck(lambda x: run(x, 0.3), (x,))


@jali.site_function
def parts(X, u, v, x):
    u[X] = x[X] * x[X + X.directions()[1]]
    v[X] = 2.0 * x[X].real


def test_several_results_are_a_tuple_of_elements_that_are_named():
    run = torch_function(parts, Lattice(*EXTENTS), out=("v", "u"), elements={"u": Complex(), "v": Real()})
    x = numbers(*EXTENTS, dtype=torch.complex128)
    v, u = run(x)
    assert (v.dtype, u.dtype) == (torch.float64, torch.complex128)
    assert gradcheck(run, (x,))
    u.real.sum().backward()  # the other one is not used
    torch.testing.assert_close(x.grad, (torch.roll(x, -1, 1) + torch.roll(x, 1, 1)).conj().detach())


def test_two_ranks_have_the_gradients_of_one():
    x, a = numbers(*EXTENTS), numbers(*EXTENTS, seed=2)
    c = numbers(*EXTENTS, seed=3, needs=False)

    def run():
        lattice = Lattice(*EXTENTS)
        box = tuple(slice(o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True))
        own = x.detach()[box].clone().requires_grad_()
        value = torch_function(energy, lattice)(own, 0.5)
        y = torch_function(hop, lattice, out="y")(own, a.detach()[box], 0.3)
        (value.sqrt() + (y * c[box]).sum()).backward()  # of each rank's own loss, the sum's once
        return lattice.local_origin, value.item(), own.grad

    ((_, value, whole),) = jali.virtual_ranks(1, run)
    found = jali.virtual_ranks(2, run)
    assert [one for _, one, _ in found] == [value] * 2
    for origin, _, own in found:
        box = tuple(slice(o, o + n) for o, n in zip(origin, own.shape, strict=True))
        torch.testing.assert_close(own, whole[box], rtol=0, atol=0)


class Turned(LinearOperator):
    """A complex operator: i x, whose rmatvec gives what it keeps."""

    gives_new = False

    def __init__(self):
        super().__init__(None, (6, 6), dtype=np.complex128)
        self.kept = None

    def _matvec(self, x):
        return DistributedArray.of(x.layout, 1j * x.local)

    def _rmatvec(self, x):
        if self.kept is None:
            self.kept = torch.empty_like(x.local)
        self.kept[:] = -1j * x.local
        return DistributedArray.of(x.layout, self.kept)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_way_back_of_an_operator_is_its_adjoint(dtype):
    A = FirstDerivative(EXTENTS)
    assert gradcheck(torch_function(A), (numbers(*EXTENTS, dtype=dtype),))
    assert gradcheck(torch_function(A.H), (numbers(24, dtype=dtype),))
    assert gradcheck(torch_function(Turned()), (numbers(6, dtype=dtype),))
    assert gradcheck(torch_function(Turned() @ Turned()), (numbers(6, dtype=dtype),))


def test_a_result_of_an_operator_shares_no_memory_with_its_argument():
    x = numbers(6)
    y = torch_function(Identity(6))(x)
    assert y.data_ptr() != x.data_ptr()
    assert torch.autograd.grad(y, x, c := torch.ones(6))[0].data_ptr() != c.data_ptr()


def test_operators_take_distributed_arrays_of_tensors():
    x, c = numbers(*EXTENTS), numbers(*EXTENTS, seed=3, needs=False)

    def run():
        A = torch_function(FirstDerivative(EXTENTS))
        spread = DistributedArray.to_dist(x.detach(), axis=1)
        own = spread.local.requires_grad_()
        y = A(spread)
        assert isinstance(y, DistributedArray)
        weights = DistributedArray.to_dist(c, axis=1)
        (y.local * weights.local).sum().backward()
        return own.grad

    whole = torch.autograd.grad(torch_function(FirstDerivative(EXTENTS))(x), x, c)[0]
    torch.testing.assert_close(torch.cat(jali.virtual_ranks(2, run), 1), whole)


def test_second_derivatives_are_refused_and_torch_func_has_the_first():
    run = torch_function(energy, Lattice(*EXTENTS))
    x = numbers(*EXTENTS)
    (once,) = torch.autograd.grad(run(x, 0.5), x, create_graph=True)
    torch.testing.assert_close(torch.func.grad(run)(x.detach(), 0.5), once.detach())
    with pytest.raises(TraceError, match="no second derivatives"):
        once.sum().backward()


@jali.site_function
def in_place(X, x, y):
    y[X] = 2.0 * x[X]
    x[X] = 0.0


@jali.site_function
def adding(X, y, x):
    y[X] = y[X] + x[X]


def test_what_does_not_fit_is_refused():
    lattice, x = Lattice(*EXTENTS), numbers(*EXTENTS)
    for wrong, why in [
        (lambda: torch_function(np.sin, lattice), "takes a function decorated"),
        (lambda: torch_function(hop), "takes the lattice"),
        (lambda: torch_function(hop, lattice, out="z"), "names parameters of hop"),
        (lambda: torch_function(FirstDerivative(EXTENTS), lattice), "knows its vectors"),
        (lambda: torch_function(hop, lattice, out="y")(x, x), "got no c"),
        (lambda: torch_function(hop, lattice)(x, x, x, 0.3), "leaves nothing to find"),
        (lambda: torch_function(hop, lattice, out="y")(x, x, 0.3, y=x), "y is made by the call"),
        (lambda: torch_function(hop, lattice, out="y")(Field(lattice, Real()), 1.0, 0.3), "got no array"),
        (lambda: torch_function(in_place, lattice, out="y")(x), "writes x, which out= does not name"),
        (lambda: torch_function(adding, lattice, out="y")(x), "reads y, a new array"),
        (lambda: torch_function(energy, lattice, elements={"x": Vector})(x, 1.0), "element type"),
    ]:
        with pytest.raises((ParameterError, LayoutError), match=why):
            wrong()
    with pytest.raises(LayoutError, match="this rank's box"):
        torch_function(energy, lattice)(numbers(4, 5), 1.0)
    with pytest.raises(ShapeError, match="takes an array of shape"):
        torch_function(FirstDerivative(EXTENTS))(numbers(4, 5))
