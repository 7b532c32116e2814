"""Site functions that more than one benchmark times, so that host and devices are measured on the same text."""

from __future__ import annotations

import jali


@jali.site_function
def copy(X, y, x):
    y[X] = x[X]


@jali.site_function
def axpy(X, y, x, a):
    y[X] += a * x[X]


@jali.site_function
def norm2(X, x, total):
    total += x[X].norm2()


@jali.site_function
def plaquette(X, U, total):
    for mu, nu in X.planes():
        total += (U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()).trace().real


@jali.site_function
def neighbours(X, y, x):
    """Reads both neighbours in the last of four directions, which is the split one."""
    mu = X.directions()[3]
    y[X] = x[X + mu] + x[X - mu]
