"""The Metropolis algorithm for links: propose a small random rotation, accept it by its change of the action.

N. Metropolis et al., J. Chem. Phys. 21 (1953) 1087. Works for every group; slower than the heat bath, and
independent of it, so that each checks the other.
"""

from __future__ import annotations

from typing import Any

import jali
from jali.actions.metropolis import check_hits, group_step, metropolis_step
from jali.gauge.groups import gaussian_algebra, link_and_staple, link_with_staple
from jali.gauge.open_edges import where_linked
from jali.single_instance import single_instance


def metropolis_link(
    X: Any, link: Any, staple: Any, coupling: Any, rng: Any, width: Any, hits: int = 1
) -> tuple[Any, Any]:
    """A link after `hits` proposals for the weight exp(coupling Re tr(U staple^dagger)), and how many were accepted.

    For use inside a site function. A proposal is exp(width A) U with Gaussian A, as likely as its inverse. `staple` is
    any matrix that does not depend on the link, or a number for U(1). The proposals are unrolled, so there are at most
    1000.
    """
    link, staple = link_and_staple("metropolis_link", link, staple)
    check_hits(hits)
    W = link * staple.dagger()
    accepted: Any = 0
    for hit in range(hits):
        R = (width * gaussian_algebra(X, rng, link.shape[0])).exp()
        turned = R * W
        accept = rng.uniform(X) < jali.exp(coupling * (turned.trace().real - W.trace().real))
        link = jali.where(accept, R * link, link)
        accepted = accepted + jali.where(accept, 1.0, 0.0)
        if hit + 1 < hits:
            W = jali.where(accept, turned, W)
    return link, accepted


@single_instance
def metropolis(hits: int) -> jali.SiteFunction:
    """The site function (X, U, rng, width, mu, staple, given, accepted) that proposes `hits` times per link for an action that is linear in it.

    `staple` includes the coupling; `accepted` sums up the accepted proposals.
    """
    check_hits(hits)

    @jali.site_function
    def metropolis_kernel(
        X: Any, U: Any, rng: Any, width: Any, mu: Any, staple: Any, given: Any, accepted: Any
    ) -> None:
        link, total = link_with_staple("metropolis_sweep", X, U, mu, staple, given)
        new, found = metropolis_link(X, link, total, 1.0, rng, width, hits)
        U[mu][X] = where_linked(X, U, mu, new, link)
        accepted += where_linked(X, U, mu, found, 0.0)

    return metropolis_kernel


@jali.site_function
def metropolis_by_change(
    X: Any, U: Any, rng: Any, width: Any, mu: Any, change: Any, given: Any, accepted: Any
) -> None:
    """One proposal per link by the change of any action: `change` is the function (X, U, mu, new, *given) that gives it."""
    link = U[mu][X]
    new, found = metropolis_step(X, link, lambda to: change(X, U, mu, to, *given), group_step, rng, width)
    U[mu][X] = where_linked(X, U, mu, new, link)
    accepted += where_linked(X, U, mu, found, 0.0)
