"""Proximal operators on any vectors of `jali.vectors`: prox_{tau f}(x) minimizes f(z) + |z - x|^2 / (2 tau) (Parikh and Boyd,
Foundations and Trends in Optimization 1 (2014) 127; equations below are its).

`ProxOperator(f)` applies an operator f of `pyproximal` to the part of each rank. That is the operator of the whole vector only where f is
a sum over elements; others, which sort, project onto a ball or factorize, are refused. `L2` and `L21` are here as they are of whole
vectors: L2 with an operator solves a linear system over all ranks, L21 adds squares of the vectors of a stack. Values are one sum over
ranks, of arrays that all ranks have none; `prox` of a sum over elements communicates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.array_namespaces import may_overlap, namespace_of
from jali.arrays.stacked import StackedDistributedArray
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.conjugate_gradient import CG
from jali.solvers.least_squares import CGLS
from jali.solvers.operators import adjoint_of, forward_of
from jali.solvers.solver import positive
from jali.vectors import each, sums, vectors_of

SEPARABLE = ("Box", "ETP", "Geman", "Huber", "L0", "L1", "Log", "Log1", "SCAD")
"""Classes of `pyproximal` that are sums over elements."""


class ProxOperator:
    """A function f of vectors with a proximal operator.

    `prox` is an operator of `pyproximal`, which is applied to local parts; a subclass without one has `__call__` and `prox`.
    The classes in `SEPARABLE` are sums over elements; `separable=True` declares others to be. Raises ParameterError for others.
    """

    def __init__(self, prox: Any = None, separable: bool | None = None) -> None:
        self.operator = prox
        self.hasgrad = bool(getattr(prox, "hasgrad", False))
        if prox is None:
            return
        if not callable(getattr(prox, "prox", None)):
            raise ParameterError(
                f"a proximal operator of pyproximal has a function prox; {value_shown(prox)} has none"
            )
        if separable is None:
            separable = _is_separable(prox)
        if not separable:
            raise ParameterError(
                f"{type(prox).__name__} of a whole vector is not made of those of its parts, so that it would depend on how the vector is "
                f"split; taken are sums over elements ({', '.join(SEPARABLE)}; L2 without an operator is jali's own L2), and any other that "
                "is one with ProxOperator(f, separable=True)"
            )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}{'' if self.operator is None else f' of {type(self.operator).__name__}'}>"
        )

    def _mine(self) -> Any:
        if self.operator is None:
            raise NotImplementedError(f"{type(self).__name__} does not say this")
        return self.operator

    def __call__(self, x: Any) -> Any:
        """f(x); of an indicator whether x is inside."""
        operator = self._mine()
        values = [
            operator(part.reshape(-1)) if math.prod(part.shape) else 0.0
            for part in vectors_of("x", x).parts(x)
        ]
        indicates, numbers = iter([isinstance(v, bool | np.bool_) for v in values]), iter(values)
        of_sums = (x, lambda part: float(np.real(next(numbers)))), (x, lambda part: float(next(indicates)))
        total, indicators = (number.real for number in sums(*of_sums))
        return total == indicators if indicators else total

    def prox(self, x: Any, tau: float, **options: Any) -> Any:
        """prox_{tau f}(x), a new vector. Raises ParameterError unless tau is positive."""
        operator, tau = self._mine(), positive("tau", tau)
        return each(lambda part: _flat(lambda flat: operator.prox(flat, tau, **options), part), x)

    def proxdual(self, x: Any, tau: float, **options: Any) -> Any:
        """prox_{tau f*}(x) = x - tau prox_{f / tau}(x / tau), of the convex conjugate f* (equation 2.4)."""
        tau = positive("tau", tau)
        vectors = vectors_of("x", x)
        scaled = vectors.copy(x)
        vectors.update([(scaled, 1 / tau, [])])
        return combination((-tau, self.prox(scaled, 1 / tau, **options)), (1, x))

    def grad(self, x: Any) -> Any:
        """The gradient of f; where it has none, that of its Moreau envelope, x - prox_f(x), if the operator defines
        it."""
        operator = self._mine()
        return each(lambda part: _flat(operator.grad, part), x)

    def postcomposition(self, sigma: float) -> ProxOperator:
        """sigma f."""
        return _Postcomposition(self, sigma)

    def precomposition(self, a: float, b: Any) -> ProxOperator:
        """f(a x + b), with numbers a and b; b may be a vector."""
        return _Precomposition(self, a, b)

    def __mul__(self, sigma: float) -> ProxOperator:
        return self.postcomposition(sigma)

    __rmul__ = __mul__


def _flat(function: Callable[[Any], Any], part: Any) -> Any:
    """Of an array as flat, which is what pyproximal takes; parts without elements stay."""
    if not math.prod(part.shape):
        return part.copy()
    with namespace_of(part).where(part):
        flat = part.reshape(-1)
        found = function(flat)
        return (namespace_of(found).copy(found) if may_overlap(found, flat) else found).reshape(part.shape)


def _is_separable(prox: Any) -> bool:
    kind = next((k for k in type(prox).__mro__ if k.__module__.startswith("pyproximal")), None)
    if kind is None or kind is not type(prox):
        return False
    if kind.__name__ == "L2":
        return all(getattr(prox, name, None) is None for name in ("Op", "b", "q"))
    return kind.__name__ in SEPARABLE


class _Postcomposition(ProxOperator):
    """sigma f."""

    def __init__(self, f: ProxOperator, sigma: float) -> None:
        super().__init__()
        self.f, self.sigma, self.hasgrad = f, positive("sigma", sigma), f.hasgrad

    def __call__(self, x: Any) -> Any:
        return self.sigma * self.f(x)

    def prox(self, x: Any, tau: float, **options: Any) -> Any:
        """prox_{sigma tau f}(x)."""
        return self.f.prox(x, self.sigma * tau, **options)

    def grad(self, x: Any) -> Any:
        """sigma times that of f."""
        return combination((self.sigma, self.f.grad(x)))


class _Precomposition(ProxOperator):
    """f(a x + b)."""

    def __init__(self, f: ProxOperator, a: float, b: Any) -> None:
        super().__init__()
        if not isinstance(a, int | float | np.number) or a == 0:
            raise ParameterError(f"precomposition: a is a number other than 0, not {value_shown(a)}")
        self.f, self.a, self.b, self.hasgrad = f, a, b, f.hasgrad

    def _inside(self, x: Any) -> Any:
        if np.isscalar(self.b):
            return each(lambda part: self.a * part + self.b, x)
        return combination((self.a, x), (1, self.b))

    def __call__(self, x: Any) -> Any:
        return self.f(self._inside(x))

    def prox(self, x: Any, tau: float, **options: Any) -> Any:
        """(prox_{a^2 tau f}(a x + b) - b) / a (equation 2.2)."""
        found = self.f.prox(self._inside(x), self.a**2 * tau, **options)
        if np.isscalar(self.b):
            return each(lambda part: (part - self.b) / self.a, found)
        return combination((1 / self.a, found), (-1 / self.a, self.b))

    def grad(self, x: Any) -> Any:
        """a times that of f at a x + b."""
        return combination((self.a, self.f.grad(self._inside(x))))


def combination(*terms: tuple[Any, Any]) -> Any:
    """A new vector a x + b y + ..."""
    (first, x), *rest = terms
    vectors = vectors_of("x", x)
    out = vectors.copy(x)
    vectors.update([(out, first, rest)])
    return out


INNER = {
    "maxiter": 10,
    "rtol": 0.0,
}  # of linear systems that are solved in each iteration, from the last solution


class L2(ProxOperator):
    """sigma / 2 |A x - b|^2 + alpha q^T x.

    Without `A` it is the identity, without `b` zero. With `A`, `prox` solves (1 + tau sigma A^H A) z = x + tau (sigma A^H b -
    alpha q) by `maxiter` steps of a solver, "cg" on this system or "cgls" on that of its squares; a function `maxiter` is
    called with the number of calls before. They begin with `x0`, or zero, and if `warm` with the solution of the last call.
    `solver_options` are arguments of the solver, as `atol`. `qgrad` is whether gradients have the term of q. Raises
    ParameterError for unknown solvers.
    """

    @named
    def __init__(
        self,
        A: Any = None,
        b: Any = None,
        q: Any = None,
        *,
        sigma: float = 1.0,
        alpha: float = 1.0,
        qgrad: bool = True,
        maxiter: int | Callable[[int], int] = 10,
        x0: Any = None,
        warm: bool = True,
        solver: str = "cgls",
        solver_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if solver not in ("cg", "cgls"):
            raise ParameterError(f'L2: the solver is "cg" or "cgls", not {value_shown(solver)}')
        if A is not None and b is None:
            raise ParameterError("L2: with an operator there are data, b, too")
        self.A, self.b, self.q, self.sigma, self.alpha, self.qgrad = A, b, q, sigma, alpha, qgrad
        self.maxiter, self.x0, self.warm, self.solver = maxiter, x0, warm, solver
        self.solver_options, self.hasgrad, self.count = dict(solver_options or {}), True, 0
        if A is not None:
            self._forward, self._adjoint = forward_of("L2: A", A), adjoint_of("L2: A", A)
            self._data = combination((1, self._adjoint(b)))  # A^H b, which all proximal operators need

    def __call__(self, x: Any) -> float:
        """The value: one sum over ranks."""
        r = self._residual(x)
        terms = [(r, r)]
        if self.q is not None:
            terms.append((each(lambda part: part.conj(), self.q), x))
        square, *dot = sums(*terms)
        found = self.sigma / 2 * square.real
        return found + self.alpha * dot[0].real if dot else found

    def _residual(self, x: Any) -> Any:
        y = x if self.A is None else self._forward(x)
        return y if self.b is None else combination((1, y), (-1, self.b))

    def grad(self, x: Any) -> Any:
        """sigma A^H (A x - b) + alpha q."""
        r = self._residual(x)
        gradient = r if self.A is None else self._adjoint(r)
        if self.q is not None and self.qgrad:
            return combination((self.sigma, gradient), (self.alpha, self.q))
        return combination((self.sigma, gradient))

    def prox(self, x: Any, tau: float, **options: Any) -> Any:
        """A division, or with an operator a linear system."""
        tau = positive("tau", tau)
        maxiter = self.maxiter(self.count) if callable(self.maxiter) else self.maxiter
        self.count += 1
        weight = tau * self.sigma
        shift = [] if self.q is None else [(-tau * self.alpha, self.q)]
        if self.A is None:
            data = [] if self.b is None else [(weight / (1 + weight), self.b)]
            scaled = [(a / (1 + weight), v) for a, v in shift]
            return combination((1 / (1 + weight), x), *data, *scaled)
        start = self.x0 if self.x0 is not None else vectors_of("x", x).like(x)
        options = INNER | {"maxiter": maxiter} | self.solver_options | options
        if self.solver == "cg":
            right = combination((1, x), (weight, self._data), *shift)
            found = CG(_Normal(self._forward, self._adjoint, weight)).solve(right, start, **options).x
        else:
            root = math.sqrt(weight)
            moved = combination((1, x), *shift)
            right = [combination((root, self.b)), moved]
            augmented = rows((root, self._forward, self._adjoint), (1, None, None))
            found = CGLS(augmented).solve(right, start, **options).x
        if self.warm:
            self.x0 = found
        return vectors_of("x", found).copy(found) if self.warm else found


class _Normal:
    """x + weight A^H A x."""

    def __init__(self, forward: Any, adjoint: Any, weight: float) -> None:
        self.forward, self.adjoint, self.weight = forward, adjoint, weight

    def matvec(self, x: Any) -> Any:
        return combination((self.weight, self.adjoint(self.forward(x))), (1, x))


class _Rows:
    """Operators one below the other, each with a factor, as a list of vectors; None is the identity."""

    def __init__(self, rows: list[tuple[float, Any, Any]]) -> None:
        self.rows = rows

    def matvec(self, x: Any) -> list[Any]:
        return [combination((a, x if forward is None else forward(x))) for a, forward, _ in self.rows]

    def rmatvec(self, y: list[Any]) -> Any:
        terms = [
            (a, part if adjoint is None else adjoint(part))
            for (a, _, adjoint), part in zip(self.rows, y, strict=True)
        ]
        return combination(*terms)


def rows(*operators: tuple[float, Any, Any]) -> Any:
    """The operator x -> [a A x, b B x, ...], from factors, functions and their adjoints; for None the identity."""
    return _Rows(list(operators))


class L21(ProxOperator):
    """sigma times the sum over elements j of the 2-norm of (x_1j, x_2j, ...), of a stack of `ndim` vectors of one layout.

    Raises ShapeError for another number of vectors.
    """

    def __init__(self, ndim: int, sigma: float = 1.0) -> None:
        super().__init__()
        if not isinstance(ndim, int) or isinstance(ndim, bool) or ndim < 1:
            raise ParameterError(f"L21: ndim is a number of vectors, from 1 on, not {value_shown(ndim)}")
        self.ndim, self.sigma = ndim, sigma

    def _members(self, x: Any) -> list[Any]:
        members = list(x) if isinstance(x, StackedDistributedArray | list | tuple) else [x]
        if len(members) != self.ndim:
            raise ShapeError(f"Expected {self.ndim} DistributedArrays in a stack, got {len(members)}")
        for member in members[1:]:
            vectors_of("L21", member).check("a vector of the stack", member, members[0])
        return members

    def _size(self, x: Any) -> Any:
        """The 2-norms, as a vector like the first one; real numbers in the type of its arithmetic."""
        members = self._members(x)

        def norm(*parts: Any) -> Any:
            return sum(abs(part) ** 2 for part in parts) ** 0.5

        return each(norm, *members)

    def __call__(self, x: Any) -> float:
        """The value: one sum over ranks."""
        return float(self.sigma * sums((self._size(x), lambda part: part.real.sum()))[0].real)

    def _each(self, function: Callable[[Any, Any], Any], x: Any) -> Any:
        size = self._size(x)
        found = [each(function, member, size) for member in self._members(x)]
        if isinstance(x, StackedDistributedArray):
            return StackedDistributedArray(found, x._base_comm)
        return type(x)(found) if isinstance(x, list | tuple) else found[0]

    def prox(self, x: Any, tau: float, **options: Any) -> Any:
        """(1 - sigma tau / max(|x_j|, sigma tau)) x_j (section 6.5.1)."""
        least = self.sigma * positive("tau", tau)
        if least == 0:
            return combination((1, x))
        return self._each(lambda part, size: (1 - least / size.clip(least)) * part, x)

    def proxdual(self, x: Any, tau: float, **options: Any) -> Any:
        """sigma x_j / max(|x_j|, sigma): the projection onto balls of radius sigma."""
        if self.sigma == 0:
            return vectors_of("x", x).like(x)
        return self._each(lambda part, size: part * (self.sigma / size.clip(self.sigma)), x)


def as_prox(name: str, f: Any) -> ProxOperator:
    """f as it is, or an operator of `pyproximal` wrapped. Raises ParameterError, a sentence about `name`, for others."""
    if isinstance(f, ProxOperator):
        return f
    if any(kind.__module__.startswith("pyproximal") for kind in type(f).__mro__):
        return ProxOperator(f)
    raise ParameterError(f"{name} is a proximal operator of jali or of pyproximal, not {value_shown(f)}")
