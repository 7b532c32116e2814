"""Members of batches with each other: Gram matrices and linear combinations have the values of NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import ODD, Field, Lattice, LayoutError, Real, Vector
from jali.lattice.member_products import combine, gram


def random_field(lattice, element, batch, seed, **options):
    f = Field(lattice, element, batch=batch, **options)
    rng = np.random.default_rng(seed)
    f[...] = rng.normal(size=f.shape) + (0 if element == Real() else 1j * rng.normal(size=f.shape))
    return f


def columns(f):
    """A column of numbers for each member."""
    values = np.moveaxis(f[...], f.lattice.ndim, 0)
    return values.reshape(len(values), -1).T


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("element", [Real(), Vector(2)], ids=str)
@pytest.mark.parametrize("over", [None, ODD], ids=str)
def test_products_and_combinations_are_those_of_matrices(element, members, over):
    lattice = Lattice(4, 6)
    x, y, z = (random_field(lattice, element, members, k) for k in range(3))
    if over is not None:
        x, y, z = (f.on(over) for f in (x, y, z))
    expected = columns(x).conj().T @ columns(y)
    assert np.allclose(gram(x, y), expected, rtol=0, atol=1e-12)
    staying = gram(x, y, wait=False)
    assert np.asarray(staying).tobytes() == np.asarray(gram(x, y)).tobytes()
    C = np.random.default_rng(5).normal(size=(members, members))
    before = columns(z)
    combine([(z, 1, [(C, x), (None, y)])])
    assert np.allclose(columns(z), before + columns(x) @ C + columns(y), atol=1e-12)
    w = x.like()
    combine([(z, 0, [(lattice.scalars(C), x)]), (w, 0, [(lattice.scalars(C), x), (lattice.scalars(C), y)])])
    assert np.allclose(columns(z), columns(x) @ C, atol=1e-12)
    assert np.allclose(columns(w), (columns(x) + columns(y)) @ C, atol=1e-12)


def test_ranks_have_the_same_bits():
    def run():
        x = random_field(Lattice(4, 6), Vector(2), 3, 1)
        y = x.like()
        G = gram(x, x)
        combine([(y, 0, [(G, x)])])
        return G.tobytes(), y[...].tobytes()

    for one in jali.virtual_ranks(3, run):
        assert one == run()


def test_what_does_not_fit_is_named():
    lattice = Lattice(4, 6)
    x, y = (Field(lattice, Vector(2), batch=3, name=name) for name in "xy")
    one = Field(lattice, Vector(2), name="one")
    for call, match in (
        (lambda: gram(one, x), "one has no batch|x has a batch of 3, and one one of None"),
        (lambda: gram(x, x.members[:2]), r"members\[0, 1\] has a batch of 2, and x one of 3"),
        (lambda: combine([(x, 1, [(np.eye(3), x)])]), "x is written, and members of others are combined"),
        (lambda: combine([(x, 1, [(np.eye(2), y)])]), r"a matrix of shape \(2, 2\) combines 3 members of y"),
        (lambda: gram(*[Field(lattice, Real(), batch=17)] * 2), "17 members, and at most 16 are combined"),
    ):
        with pytest.raises(LayoutError, match=match):
            call()
