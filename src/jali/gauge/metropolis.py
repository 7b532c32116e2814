"""The Metropolis algorithm: propose a small random rotation, accept it by its change of the action.

N. Metropolis et al., J. Chem. Phys. 21 (1953) 1087. Works for every group; slower than the heat bath, and
independent of it, so that each checks the other.
"""

from __future__ import annotations

import functools
from typing import Any

import jali
from jali.errors import ParameterError
from jali.gauge.groups import gaussian_algebra
from jali.gauge.staples import staple

MOST_HITS = 1000


@functools.cache
def metropolis(hits: int) -> jali.SiteFunction:
    """The site function (X, U, rng, coupling, width, mu, accepted) that proposes `hits` times per link.

    A proposal is exp(width A) U with Gaussian A, as likely as its inverse; `coupling` is beta / n. `accepted`
    sums up the accepted proposals. The proposals are unrolled, so there are at most 1000.
    """
    if not 1 <= hits <= MOST_HITS:
        raise ParameterError(f"Metropolis proposes 1 to {MOST_HITS} times per link, not {hits} times")

    @jali.site_function
    def metropolis_kernel(
        X: Any, U: Any, rng: Any, coupling: Any, width: Any, mu: Any, accepted: Any
    ) -> None:
        link = U[mu][X]
        W = link * staple(X, U, mu).dagger()
        for hit in range(hits):
            R = (width * gaussian_algebra(X, rng, link.shape[0])).exp()
            turned = R * W
            accept = rng.uniform(X) < jali.exp(coupling * (turned.trace().real - W.trace().real))
            link = jali.where(accept, R * link, link)
            accepted += jali.where(accept, 1.0, 0.0)
            if hit + 1 < hits:
                W = jali.where(accept, turned, W)
        U[mu][X] = link

    return metropolis_kernel
