"""The site language, interpreted by NumPy: an independent reference for tests.

`interpret(function, fields, ...)` runs the same Python site function over arrays that hold all sites at once. Nothing of jali's
tracer, emitter or kernels is used; shifts are explicit gathers, boundary factors explicit multiplications, and
matrix functions are SciPy's or textbook loops. Functions such as `where` and `exp` are looked up on a language object, so a
function under test is written as `def f(J, X, ...)` and given either `jali` or `numpy_language`.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import scipy.linalg

from jali.codegen.directions import directions, planes


def _vector(offset, ndim):
    return offset.vector(ndim)


class Value:
    """An array `(*extents, *shape)`."""

    __array_ufunc__ = None

    def __init__(self, array, shape):
        self.array = np.asarray(array)
        self.shape = tuple(shape)

    def _up(self, other):
        """Both arrays, with the scalar one broadcastable against the other."""
        other = lift(other)
        a, b = self.array, other.array
        if self.shape and not other.shape:
            b = b[(..., *[None] * len(self.shape))]
        elif other.shape and not self.shape:
            a = a[(..., *[None] * len(other.shape))]
        return a, b, self.shape or other.shape

    def __add__(self, other):
        a, b, shape = self._up(other)
        return Value(a + b, shape)

    __radd__ = __add__

    def __sub__(self, other):
        a, b, shape = self._up(other)
        return Value(a - b, shape)

    def __rsub__(self, other):
        return lift(other) - self

    def __mul__(self, other):
        other = lift(other)
        if self.shape and other.shape:
            if len(other.shape) == 1:
                return Value(np.einsum("...ij,...j->...i", self.array, other.array), self.shape[:1])
            return Value(
                np.einsum("...ij,...jk->...ik", self.array, other.array), (self.shape[0], other.shape[1])
            )
        a, b, shape = self._up(other)
        return Value(a * b, shape)

    def __rmul__(self, other):
        return lift(other) * self

    __matmul__ = __mul__

    def __truediv__(self, other):
        a, b, shape = self._up(other)
        return Value(a / b, shape)

    def __rtruediv__(self, other):
        return lift(other) / self

    def __mod__(self, other):
        return Value(self.array % lift(other).array, ())

    def __floordiv__(self, other):
        return Value(self.array // lift(other).array, ())

    def __pow__(self, power):
        if self.shape and isinstance(power, int):
            return Value(np.linalg.matrix_power(self.array, power), self.shape)
        if isinstance(power, int):
            return Value(self.array**power if power >= 0 else 1 / self.array**-power, ())
        return Value(self.array ** lift(power).array, ())

    def __neg__(self):
        return Value(-self.array, self.shape)

    def __pos__(self):
        return self

    def __abs__(self):
        return Value(np.abs(self.array), ())

    def __round__(self):
        return Value(np.rint(self.array), ())

    def __lt__(self, other):
        return Value(self.array < lift(other).array, ())

    def __le__(self, other):
        return Value(self.array <= lift(other).array, ())

    def __gt__(self, other):
        return Value(self.array > lift(other).array, ())

    def __ge__(self, other):
        return Value(self.array >= lift(other).array, ())

    def __eq__(self, other):
        return Value(self.array == lift(other).array, ())

    def __ne__(self, other):
        return Value(self.array != lift(other).array, ())

    __hash__ = None

    def __and__(self, other):
        return Value(self.array & lift(other).array, ())

    def __or__(self, other):
        return Value(self.array | lift(other).array, ())

    def __invert__(self):
        return Value(~self.array, ())

    def __getitem__(self, index):
        indices = index if isinstance(index, tuple) else (index,)
        array = self.array[(..., *indices)]
        return Value(array, np.empty(self.shape)[indices].shape)

    @property
    def real(self):
        return Value(self.array.real, self.shape)

    @property
    def imag(self):
        return Value(self.array.imag, self.shape)

    def conj(self):
        return Value(self.array.conj(), self.shape)

    def dagger(self):
        return Value(np.swapaxes(self.array, -1, -2).conj(), self.shape[::-1]) if self.shape else self.conj()

    def transpose(self):
        return Value(np.swapaxes(self.array, -1, -2), self.shape[::-1])

    def trace(self):
        return Value(np.trace(self.array, axis1=-2, axis2=-1), ())

    def det(self):
        return Value(np.linalg.det(self.array), ())

    def inverse(self):
        return Value(np.linalg.inv(self.array), self.shape)

    def exp(self):
        return Value(scipy.linalg.expm(self.array) if self.shape else np.exp(self.array), self.shape)

    def reunitarise(self):
        """Gram-Schmidt on the rows from the first to the last, which then takes the phase that makes the determinant one.

        n = 2: the part proportional to an SU(2) matrix, (a + cofactors of a, conjugated), divided by its size.
        """
        n = self.shape[0]
        if n == 2:
            a = self.array
            cofactors = np.stack(
                [np.stack([a[..., 1, 1], -a[..., 1, 0]], -1), np.stack([-a[..., 0, 1], a[..., 0, 0]], -1)], -2
            )
            quaternion = a + cofactors.conj()
            return Value(quaternion / np.sqrt(np.linalg.det(quaternion).real)[..., None, None], self.shape)
        out = np.zeros(self.array.shape, self.array.dtype)
        for i in range(n):
            row = self.array[..., i, :]
            for j in range(i):
                overlap = np.sum(out[..., j, :].conj() * row, axis=-1, keepdims=True)
                row = row - overlap * out[..., j, :]
            out[..., i, :] = row / np.linalg.norm(row, axis=-1, keepdims=True)
        if n > 1:
            out[..., n - 1, :] /= np.linalg.det(out)[..., None]
        return Value(out, self.shape)

    def traceless_antihermitian(self):
        n = self.shape[0]
        a = (self.array - np.swapaxes(self.array, -1, -2).conj()) / 2
        if n > 1:
            a = a - np.trace(a, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n
        return Value(a, self.shape)

    def norm2(self):
        axes = tuple(range(-len(self.shape), 0))
        return Value(np.sum(np.abs(self.array) ** 2, axis=axes) if axes else np.abs(self.array) ** 2, ())

    def dot(self, other):
        other = lift(other)
        axes = tuple(range(-len(self.shape), 0))
        product = self.array.conj() * other.array
        return Value(np.sum(product, axis=axes) if axes else product, ())

    def outer(self, other):
        other = lift(other)
        return Value(np.einsum("...i,...j->...ij", self.array, other.array.conj()), self.shape + other.shape)


def lift(value):
    if isinstance(value, Value):
        return value
    array = np.asarray(value)
    return Value(array, array.shape)


class Site:
    def __init__(self, extents, vector):
        self.extents = tuple(extents)
        self.vector = tuple(vector)

    @property
    def ndim(self):
        return len(self.extents)

    def __add__(self, offset):
        return Site(
            self.extents, [a + b for a, b in zip(self.vector, _vector(offset, self.ndim), strict=True)]
        )

    def __sub__(self, offset):
        return self + (-offset)

    def directions(self):
        return directions(self.ndim)

    def planes(self):
        return list(planes(self.ndim))

    def extent(self, mu):
        return Value(np.array(self.extents[int(mu)]), ())

    def _index(self):
        """Unwrapped coordinates of the shifted sites, one array per direction."""
        grids = np.indices(self.extents)
        return [g + o for g, o in zip(grids, self.vector, strict=True)]

    def coordinate(self, mu):
        return Value(self._index()[int(mu)] % self.extents[int(mu)], ())

    @property
    def parity(self):
        return Value(sum(x % n for x, n in zip(self._index(), self.extents, strict=True)) % 2, ())


class FieldSymbol:
    """A field as an array in kernel shape; `conditions` as in `jali.Boundary`, one per direction."""

    def __init__(self, array, shape, conditions=None):
        self.array = np.array(array)
        self.shape = tuple(shape)
        self.conditions = conditions or ["periodic"] * (self.array.ndim - len(self.shape))
        self.new = {}

    def __getitem__(self, site):
        if site.vector in self.new:
            return self.new[site.vector]
        index = site._index()
        wrapped = tuple(x % n for x, n in zip(index, site.extents, strict=True))
        values = self.array[wrapped]
        for x, n, condition in zip(index, site.extents, self.conditions, strict=True):
            winding = x // n
            if condition == "periodic":
                continue
            if condition == "open":
                factor = (winding == 0).astype(float)
            elif condition == "antiperiodic":
                factor = (-1.0) ** np.abs(winding)
            else:
                factor = np.power(complex(condition), winding.astype(float))
            values = values * factor[(..., *[None] * len(self.shape))]
        return Value(values, self.shape)

    def __setitem__(self, site, value):
        value = lift(value)
        array = np.broadcast_to(value.array, site.extents + self.shape)
        self.new[site.vector] = Value(array, self.shape)

    def commit(self, extents, inside):
        for vector, value in self.new.items():
            site = Site(extents, vector)
            target = tuple((x % n)[inside] for x, n in zip(site._index(), extents, strict=True))
            self.array[target] = value.array[inside]


class Total:
    """A sum over sites; `value` keeps the site values, summed by the reader."""

    def __init__(self, extents):
        self.extents = extents
        self.value = None

    def __iadd__(self, value):
        value = lift(value)
        array = np.broadcast_to(value.array, self.extents + value.shape)
        self.value = array.copy() if self.value is None else self.value + array
        return self

    def __isub__(self, value):
        return self.__iadd__(-lift(value))


def _function(real):
    def function(x):
        x = lift(x)
        return Value(real(x.array), ()) if not x.shape else x.exp()

    return function


def _function2(real):
    return lambda x, y: Value(real(lift(x).array, lift(y).array), ())


def _where(condition, a, b):
    a, b = lift(a), lift(b)
    choice = lift(condition).array
    return Value(np.where(choice[(..., *[None] * len(a.shape))], a.array, b.array), a.shape)


def _stack(values, shape):
    arrays = np.broadcast_arrays(*[lift(v).array for v in values])
    stacked = np.stack(arrays, axis=-1)
    return Value(stacked.reshape(stacked.shape[:-1] + shape), shape)


def _matrix(rows):
    return _stack([v for row in rows for v in row], (len(rows), len(rows[0])))


def _zero(element):
    return lift(np.zeros(element.type.shape, complex if element.type.kind == "complex" else float))


numpy_language = SimpleNamespace(
    where=_where,
    matrix=_matrix,
    vector=lambda parts: _stack(parts, (len(parts),)),
    complex=lambda re, im: Value(lift(re).array + 1j * lift(im).array, ()),
    identity=lambda n: lift(np.eye(n)),
    zero=_zero,
    exp=_function(np.exp),
    log=_function(np.log),
    sqrt=_function(np.sqrt),
    sin=_function(np.sin),
    cos=_function(np.cos),
    tan=_function(np.tan),
    sinh=_function(np.sinh),
    cosh=_function(np.cosh),
    tanh=_function(np.tanh),
    asin=_function(np.arcsin),
    acos=_function(np.arccos),
    atan=_function(np.arctan),
    floor=_function(np.floor),
    ceil=_function(np.ceil),
    round=_function(np.rint),
    sign=_function(np.sign),
    arg=_function(np.angle),
    atan2=_function2(np.arctan2),
    power=_function2(np.power),
    minimum=_function2(np.minimum),
    maximum=_function2(np.maximum),
)


def kernel_values(field):
    """All global values of a jali field in kernel shape: spinors colour by spin."""
    values = np.asarray(field[...])
    return np.swapaxes(values, -1, -2) if field.element.spinor else values


def symbol_of(field):
    """The NumPy twin of a jali field, in double precision."""
    values = kernel_values(field)
    wide = complex if field.element.type.kind == "complex" else float
    return FieldSymbol(values.astype(wide), field.element.type.shape, list(field.boundary.conditions))


def interpret(function, extents, arguments, nsums=0, inside=None):
    """Runs `function(numpy_language, X, *arguments, *totals)`; returns the totals' site values.

    `arguments` are `FieldSymbol`s, lists of them or plain numbers; writes happen where `inside` is true.
    """
    extents = tuple(extents)
    totals = [Total(extents) for _ in range(nsums)]
    function(numpy_language, Site(extents, (0,) * len(extents)), *arguments, *totals)
    inside = np.ones(extents, bool) if inside is None else inside
    for argument in arguments:
        for symbol in argument if isinstance(argument, list) else [argument]:
            if isinstance(symbol, FieldSymbol):
                symbol.commit(extents, inside)
    return [np.where(inside[(..., *[None] * (t.value.ndim - len(extents)))], t.value, 0) for t in totals]
