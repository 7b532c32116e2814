"""Heat bath: a link drawn from its exact conditional distribution, given all others.

SU(n), n >= 2: the SU(2) subgroups in turn (Cabibbo and Marinari, Phys. Lett. B 119 (1982) 387). In a subgroup
the weight is exp(alpha h0) dh, h = r v an SU(2) matrix with first component h0, alpha = beta K / n, where K
v, v in SU(2), is twice the quaternion part of the block of U S^dagger. U(1): the von Mises distribution
exp(kappa cos theta), kappa = beta |S|. S is the staple sum of any action that is linear in the link.

Rejection is bounded: a link that no attempt of `ATTEMPTS` accepts keeps its value and is counted in the site
function's `exhausted`. Whether that happens depends on the other links only, so it does not bias anything; it
needs staples that nearly cancel, and is seen about once in 1e6 draws in two dimensions at small beta,
practically never in four.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import jali
from jali.codegen.lines import trace_error
from jali.files import value_shown
from jali.gauge.groups import link_and_staple, link_with_staple
from jali.gauge.open_edges import where_linked
from jali.gauge.subgroups import (
    TINY,
    double_quaternion,
    length2,
    matrix_of,
    rotate_rows,
    rows_of,
    subgroups,
    times_conjugate,
)

ATTEMPTS = 200
KENNEDY_PENDLETON, CREUTZ = "Kennedy-Pendleton", "Creutz"


def heat_bath_link(
    X: Any, link: Any, staple: Any, coupling: Any, rng: Any, method: str = KENNEDY_PENDLETON
) -> Any:
    """A new link, drawn with the weight exp(coupling Re tr(U staple^dagger)) by the subgroups, inside a site function.

    `link` is the old one, an SU(n) matrix as `U[mu][X]` is, and `staple` any matrix that does not depend on it (or,
    for U(1), a number); with the staple sum of the Wilson action `coupling` is beta / n; it may have either sign. `method` is "Kennedy-Pendleton"
    or, where |coupling| times the length of the staple (sqrt(det) of its SU(2) part) is below 1 or may be zero,
    "Creutz". Both are exact; far on the wrong side draws run out of attempts and keep the link. U(1) has a method of
    its own.
    """
    link, staple = link_and_staple("heat_bath_link", link, staple)
    if method not in (KENNEDY_PENDLETON, CREUTZ):
        raise trace_error(
            f"heat_bath_link: the method is {KENNEDY_PENDLETON!r} or {CREUTZ!r}, not {value_shown(method)}"
        )
    coupling, staple = _positive(coupling, staple)
    if link.shape[0] == 1:
        return _best_fisher(X, link, staple, coupling, rng)
    if method == CREUTZ:
        return _creutz(X, link, staple, coupling, rng)
    if isinstance(coupling, numbers.Real) and coupling == 0:
        raise trace_error(f"heat_bath_link: {KENNEDY_PENDLETON!r} has no draw at coupling 0; {CREUTZ!r} has")
    return _kennedy_pendleton(X, link, staple, 0.5 / coupling, rng)


def _positive(coupling: Any, staple: Any) -> tuple[Any, Any]:
    """The same weight, linear in coupling times staple, with a coupling from 0: the staple takes its sign.

    A number that is known while tracing is decided at once; of others the product with 1.0 changes no bit.
    """
    if isinstance(coupling, numbers.Real):
        if not math.isfinite(coupling):
            raise trace_error(f"heat_bath_link: the coupling is a finite number, not {coupling}")
        return (-coupling, -1.0 * staple) if coupling < 0 else (coupling, staple)
    return abs(coupling), jali.where(coupling < 0.0, -1.0, 1.0) * staple


@jali.site_function
def heat_bath_kennedy_pendleton(
    X: Any, U: Any, rng: Any, width: Any, mu: Any, staple: Any, given: Any = ()
) -> None:
    """Heat bath for SU(n), n >= 2, at moderate and large beta; `width` is n / (2 beta)."""
    link, total = link_with_staple("heat_bath_sweep", X, U, mu, staple, given)
    U[mu][X] = where_linked(X, U, mu, _kennedy_pendleton(X, link, total, width, rng), link)


@jali.site_function
def heat_bath_creutz(X: Any, U: Any, rng: Any, coupling: Any, mu: Any, staple: Any, given: Any = ()) -> None:
    """Heat bath for SU(n), n >= 2, at small beta, beta = 0 included; `coupling` is beta / n."""
    link, total = link_with_staple("heat_bath_sweep", X, U, mu, staple, given)
    U[mu][X] = where_linked(X, U, mu, _creutz(X, link, total, coupling, rng), link)


@jali.site_function
def heat_bath_u1(X: Any, U: Any, rng: Any, beta: Any, mu: Any, staple: Any, given: Any = ()) -> None:
    """Exact heat bath for U(1) at any beta."""
    link, total = link_with_staple("heat_bath_sweep", X, U, mu, staple, given)
    U[mu][X] = where_linked(X, U, mu, _best_fisher(X, link, total, beta, rng), link)


def _kennedy_pendleton(X: Any, link: Any, staple: Any, width: Any, rng: Any) -> Any:
    """A new link; `width` is half the inverse of the coupling.

    A. Kennedy and B. Pendleton, Phys. Lett. B 156 (1985) 393: delta = 1 - h0 has the density sqrt(delta)
    exp(-alpha delta) sqrt(1 - delta / 2). The first two factors are those of -(ln u1 + cos^2(2 pi u2) ln u3)
    / alpha with uniform u; the last is the acceptance, u4^2 < 1 - delta / 2. The direction of the vector part
    is uniform and drawn afterwards.
    """

    def draw(inverse_length: Any, current: Any) -> Any:
        scale = -2.0 * width * inverse_length  # -1 / alpha

        def attempt() -> Any:
            u1, u2, u3, u4 = (rng.uniform(X) for _ in range(4))
            cosine = jali.cos((2 * math.pi) * u2)
            delta = (jali.log(u1) + cosine * cosine * jali.log(u3)) * scale
            return u4 * u4 < 1.0 - 0.5 * delta, delta

        # Where every attempt fails delta stays below zero, and the current value is kept.
        delta = X.repeat_until(attempt, limit=ATTEMPTS, otherwise=-1.0)
        failed = delta < 0.0
        height = 2.0 * rng.uniform(X) - 1.0
        angle = (2 * math.pi) * rng.uniform(X)
        radius = jali.sqrt(jali.maximum(delta * (2.0 - delta), 0.0))
        across = radius * jali.sqrt(jali.maximum(1.0 - height * height, 0.0))
        h = (1.0 - delta, across * jali.cos(angle), across * jali.sin(angle), radius * height)
        return tuple(jali.where(failed, old, new) for old, new in zip(current, h, strict=True))

    return _rotate(link, staple, draw)


def _creutz(X: Any, link: Any, staple: Any, coupling: Any, rng: Any) -> Any:
    """A new link.

    M. Creutz, Phys. Rev. D 21 (1980) 2308: h0 from exp(alpha h0) on (-1, 1) by inversion, accepted with
    probability sqrt(1 - h0^2). The acceptance is pi/4 at alpha = 0 and falls like sqrt(pi / (2 alpha)).
    """

    def draw(inverse_length: Any, current: Any) -> Any:
        # delta = 1 - h0 = -ln(1 - (1 - u) (1 - exp(-2 alpha))) / alpha, which tends to 2 (1 - u). The floor only keeps
        # the divisions finite: far above it weights are equal to rounding already.
        twice = jali.maximum((2.0 * coupling) / inverse_length, 1e-30)
        range_ = _one_minus_exp(twice)
        inverse_alpha = 2.0 / twice

        def attempt() -> Any:
            u, v = rng.uniform(X), rng.uniform(X)
            height = 2.0 * rng.uniform(X) - 1.0
            angle = (2 * math.pi) * rng.uniform(X)
            delta = _minus_log_one_minus((1.0 - u) * range_) * inverse_alpha
            radius2 = delta * (2.0 - delta)
            radius = jali.sqrt(jali.maximum(radius2, 0.0))
            across = radius * jali.sqrt(jali.maximum(1.0 - height * height, 0.0))
            h = (1.0 - delta, across * jali.cos(angle), across * jali.sin(angle), radius * height)
            return v * v < radius2, h

        return X.repeat_until(attempt, limit=ATTEMPTS, otherwise=current)

    return _rotate(link, staple, draw)


def _one_minus_exp(x: Any) -> Any:
    """1 - exp(-x) for x > 0 without cancellation: what exp has rounded, its logarithm undoes (W. Kahan)."""
    rounded = jali.exp(-1.0 * x)
    difference = 1.0 - rounded
    mended = jali.where(difference > 0.0, difference * x / -jali.log(rounded), x)
    return jali.where(x > 1.0, difference, mended)


def _minus_log_one_minus(x: Any) -> Any:
    """-ln(1 - x) for 0 <= x < 1 without cancellation: the rounding of 1 - x divides out (W. Kahan)."""
    rounded = 1.0 - x
    difference = 1.0 - rounded
    return jali.where(difference > 0.0, -jali.log(rounded) * x / difference, x)


def _rotate(link: Any, staple: Any, draw: Any) -> Any:
    """R U for a rotation R = h v^dagger of every SU(2) subgroup, with h from `draw(1 / K, v)`."""
    n = link.shape[0]
    rows = rows_of(link)
    W = rows_of(link * staple.dagger())
    pairs = subgroups(n)
    for number, (i, j) in enumerate(pairs):
        a = double_quaternion(W, i, j)
        K2 = length2(a)
        alone = K2 < TINY  # nothing pulls at the link, any h is as good; K = 1 keeps the rejection short
        inverse = 1.0 / jali.sqrt(jali.where(alone, 1.0, K2))
        v0 = jali.where(alone, 1.0, a[0] * inverse)
        v1, v2, v3 = (jali.where(alone, 0.0, x * inverse) for x in a[1:])
        v = (v0, v1, v2, v3)
        h = draw(inverse, v)
        r = times_conjugate(h, v)
        rotate_rows(rows, i, j, r)
        if number + 1 < len(pairs):
            rotate_rows(W, i, j, r)
    return matrix_of(rows)


def _best_fisher(X: Any, link: Any, staple: Any, coupling: Any, rng: Any) -> Any:
    """A new U(1) link.

    D. Best and N. Fisher, Appl. Stat. 28 (1979) 152: von Mises from a wrapped Cauchy envelope. The envelope
    is a uniform point e^{i phi} on the circle, mapped by z -> (z + rho) / (1 + rho z). Their formulas are
    rewritten so that nothing cancels for small or large kappa: with tau = 1 + sqrt(1 + 4 kappa^2) and q =
    (tau + sqrt(2 tau)) / 2,

        rho = kappa / q,   D = (1 - rho)^2 + 2 rho (1 + cos phi),
        cos theta = 1 - (1 - rho)^2 (1 - cos phi) / D,   sin theta = (1 - rho^2) sin phi / D,

    accepted if u < c exp(1 - c), c = q (1 - rho^2)^2 / (2 D). The probability is above 0.65 for every kappa.
    """
    old, S = link[0, 0], staple[0, 0]
    size2 = S.norm2()
    alone = size2 < TINY
    size = jali.sqrt(jali.where(alone, TINY, size2))
    direction = jali.where(alone, jali.complex(1.0, 0.0), S * (1.0 / size))
    kappa = jali.where(alone, 0.0, coupling * size)
    tau = 1.0 + jali.sqrt(1.0 + 4.0 * kappa * kappa)
    q = 0.5 * (tau + jali.sqrt(2.0 * tau))
    rho = kappa / q
    # 1 - rho without cancellation: q - kappa = (1 + (tau - 1 - 2 kappa) + sqrt(2 tau)) / 2
    minus = 0.5 * (1.0 + 1.0 / (tau - 1.0 + 2.0 * kappa) + jali.sqrt(2.0 * tau)) / q
    minus2, sine = minus * minus, minus * (1.0 + rho)
    top = 0.5 * q * sine * sine

    def attempt() -> Any:
        half = math.pi * rng.uniform(X)
        u = rng.uniform(X)
        cosine, s = jali.cos(half), jali.sin(half)
        c2 = cosine * cosine
        D = minus2 + 4.0 * rho * c2
        inverse = 1.0 / D
        c = top * inverse
        new = (1.0 - 2.0 * minus2 * s * s * inverse, 2.0 * sine * cosine * s * inverse)
        return u < c * jali.exp(1.0 - c), new

    now = old * direction.conj()
    re, im = X.repeat_until(attempt, limit=ATTEMPTS, otherwise=(now.real, now.imag))
    return jali.matrix([[jali.complex(re, im) * direction]])


def needs_creutz(n: int, size: float) -> bool:
    """Whether Creutz's method accepts more often than Kennedy and Pendleton's, for staples (coupling included) of this size: the root of |S|^2.

    The two acceptances meet near alpha = 1.5, and a typical alpha is sqrt(2) size for n = 2 and 2 size / n for n >= 3.
    """
    return (math.sqrt(2) if n == 2 else 2 / n) * size < 1.5
