"""Random fields and comparisons shared by the tests of the language."""

from __future__ import annotations

import numpy as np
from numpy_sites import interpret, kernel_values, symbol_of

import jali

TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


def random_values(rng, extents, element):
    shape = tuple(extents) + element.numpy_shape
    values = rng.uniform(-1, 1, shape)
    if element.type.kind == "complex":
        values = values + 1j * rng.uniform(-1, 1, shape)
    n = element.type.shape[0] if element.type.shape else 0
    if element.codec == "algebra":
        values = (values - np.swapaxes(values, -1, -2).conj()) / 2
        if n > 1:
            values -= np.trace(values, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n
    elif element.codec == "hermitian":
        values = (values + np.swapaxes(values, -1, -2).conj()) / 2
    elif element.name.startswith("SU"):
        values, _ = np.linalg.qr(values)
        values[..., -1] /= np.linalg.det(values)[..., None]
    elif element.name == "U(1)":
        values = values / np.abs(values)
    return values


def random_field(lattice, element, seed, **options):
    """A field of random values of order one: the same for any ranks, since every rank makes all of them."""
    rng = np.random.default_rng(seed)
    field = jali.Field(lattice, element, **options)
    field[...] = random_values(rng, lattice.extents, element)
    return field


def assert_close(got, expected, precision, scale=1.0):
    """Agreement relative to the largest value."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    assert np.all(np.isfinite(expected))
    size = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    difference = float(np.max(np.abs(got - expected), initial=0.0))
    assert difference <= scale * TOLERANCE[precision] * size, f"difference {difference:.3g} of {size:.3g}"


def bind(function, parameters):
    """A site function with the given parameters that calls `function(jali, X, ...)`.

    Site functions have fixed parameters; this writes out a definition with as many as are needed.
    """
    names = ", ".join(parameters)
    space = {"function": function, "jali": jali}
    exec(f"def traced(X, {names}):\n    function(jali, X, {names})", space)
    return jali.site_function(space["traced"])


def _symbols(arguments):
    out = []
    for a in arguments:
        if isinstance(a, jali.Field):
            out.append(symbol_of(a))
        elif isinstance(a, list):
            out.append([symbol_of(f) for f in a])
        else:
            out.append(a)
    return out


def _fields(arguments):
    for a in arguments:
        if isinstance(a, jali.Field):
            yield a
        elif isinstance(a, list):
            yield from a


def compare(function, *arguments, over=jali.ALL, inside=None, scale=1.0):
    """Runs `function(J, X, *arguments)` by jali and by NumPy and compares every field argument afterwards."""
    fields = list(_fields(arguments))
    symbols = _symbols(arguments)
    interpret(function, fields[0].lattice.extents, symbols, inside=inside)
    bind(function, [f"a{k}" for k in range(len(arguments))])[over](*arguments)
    twins = [t for s in symbols for t in (s if isinstance(s, list) else [s]) if hasattr(t, "commit")]
    for field, twin in zip(fields, twins, strict=True):
        assert_close(kernel_values(field), twin.array, field.precision, scale)


def compare_sums(function, nsums, *arguments, over=jali.ALL, inside=None, per=None, lattice=None, scale=1.0):
    """The same for sums over sites."""
    fields = list(_fields(arguments))
    lattice = fields[0].lattice if lattice is None else lattice
    precision = fields[0].precision if fields else "float64"
    values = interpret(function, lattice.extents, _symbols(arguments), nsums, inside)
    names = [f"a{k}" for k in range(len(arguments))] + [f"total{k}" for k in range(nsums)]
    got = lattice.sum(bind(function, names), *arguments, over=over, per=per)
    got = got if isinstance(got, tuple) else (got,)
    kept = () if per is None else tuple(map(int, per)) if isinstance(per, tuple) else (int(per),)
    axes = tuple(d for d in range(lattice.ndim) if d not in kept)
    for g, v in zip(got, values, strict=True):
        expected = v.sum(axis=axes)  # with the directions in order, not in that of `per`
        order = [sorted(kept).index(d) for d in kept]
        expected = expected.transpose(*order, *range(len(kept), expected.ndim))
        assert_close(g, expected, precision, scale * lattice.volume)


def where_colour(lattice, domain):
    """Boolean array over the global lattice: the sites of a domain."""
    x = list(np.indices(lattice.extents))
    if domain.colouring is not None:
        return domain.colouring.colour_of(x) == domain.colour
    return (1 << (sum(x) % 2)) & domain.parities != 0
