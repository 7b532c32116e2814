"""Lowers the kernels of gauge theory, fermions and solvers for a device that is not there: `python collect_kernels.py 3 float64`.

With `toolbox` as a third argument those of improved actions, HYP smearing and gauge fixing, with `operators` those of all Dirac operators.

Runs with the fake driver and its idle compiler, so nothing is computed; what counts are the `.cu` files that are left in
the kernel cache (JALI_CACHE_DIR). Prints their number.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import jali
from jali import gauge
from jali.comm import DeviceArray
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField
from jali.gauge.gauge_fixing import _reunitarise, _turn
from jali.gauge.heatbath import heat_bath_creutz, heat_bath_kennedy_pendleton
from jali.gauge.link_terms import LinkTerms
from jali.lattice.vectors import FieldVectors

sys.path.insert(0, str(Path(__file__).parents[1] / "fermions"))

from operators import OPERATORS


def collect(n: int, precision: str) -> None:
    """Everything that a pure gauge simulation, its measurements, smearing, flow and a Wilson inversion launch."""
    lattice = jali.Lattice(4, 4, 4, 4, device="cuda")
    rng = jali.Random(1)
    U = GaugeField(lattice, SU(n), precision=precision).hot_start(rng)
    U.cold_start()
    U.reunitarise()
    U.unitarity_deviation()
    gauge.sweep(U, 6.0, rng, heatbath=1, overrelaxation=1)
    if n > 1:
        terms = LinkTerms.of_links(gauge.wilson_action(6.0), U)
        for kernel in (heat_bath_creutz, heat_bath_kennedy_pendleton):
            kernel.kernels(U, rng, 0.5, lattice.directions[0], terms.staple, terms.given, over=jali.EVEN)
    gauge.metropolis_sweep(U, 6.0, rng)
    gauge.plaquettes(U)
    gauge.link_trace(U)
    gauge.polyakov_loop(U)
    gauge.wilson_loops(U, 2, 2)
    gauge.ape_smear(U)
    gauge.stout_smear(U)
    gauge.wilson_action(6.0).force(U)
    gauge.staple_sum(U, U.fields[0].like(element=jali.Matrix(n)), lattice.directions[0])
    if n > 1:
        gauge.measure_field_strength(U)
    flow = gauge.Flow(U, step=0.05)
    flow.advance(1)
    dirac = WilsonDirac(U, 0.1)
    spinor = jali.Field(lattice, jali.Spinor(n), precision=precision, boundary=[1, 1, 1, "antiperiodic"])
    dirac.normal(spinor)
    dirac.apply(jali.Field(lattice, jali.Spinor(n), precision=precision))
    vectors = FieldVectors()
    x, r, p, q = (spinor.like() for _ in range(4))
    alpha = vectors.inner(p, q, wait=False).real / lattice.scalar(2.0)
    vectors.update([(r, 0, [(1, x), (-1, q)])], norm=True)
    rr = vectors.update([(r, 1, [(-alpha, q)])], norm=True, wait=False)
    beta = (rr > 1.0).where(jali.sqrt(rr) / 3.0, 0.0)
    vectors.update([(x, 1, [(alpha, p)]), (p, beta, [(1, r)])])
    mine, theirs = (arrays_of(lattice, spinor) for _ in range(2))
    dirac.apply(mine, theirs)  # beside fields, and alone
    averaged(theirs, mine)
    jali.virtual_ranks(2, averaged_by_ranks, precision)
    whole = jali.Field(lattice, jali.Integer(), precision)
    lattice.reduce(extremes, spinor, whole)
    for scalar in lattice.reduce(extremes, spinor, whole, wait=False):
        float(scalar)
    counted(whole, whole.like(boundary="open"))
    lattice.sum(by_label, spinor, whole, bins=8)
    small = jali.Lattice(2, 2, 1, 1, device="cuda")
    jali.block_sums(total_of, spinor, onto=jali.Field(small, jali.Spinor(n), precision=precision))


@jali.site_function
def extremes(X, f, n, high, low, most, least):
    high.max(f[X].norm2())
    low.min(f[X].norm2())
    most.max(n[X])
    least.min(n[X])


@jali.site_function
def averaged(X, out, f):
    out[X] = 0.5 * sum((f[X + mu] + f[X - mu] for mu in X.directions()), 0.0 * f[X])


@jali.site_function
def counted(X, out, n):
    out[X] = n[X + X.directions()[0]] + 1


@jali.site_function
def total_of(X, f, total):
    total += f[X]


@jali.site_function
def by_label(X, f, n, counts, norms):
    counts[n[X]] += 1
    norms[jali.floor(f[X].norm2())] += f[X].norm2()


@jali.site_function
def own_heat_bath(X, U, rng, coupling, method):
    U[0][X] = gauge.heat_bath_link(X, U[0][X], U[1][X], coupling, rng, method)


@jali.action
def adjoint_plaquettes(X, U, *, beta):
    return -beta * sum(
        (U[mu][X] * U[nu][X + mu] * (U[nu][X] * U[mu][X + nu]).dagger()).trace().norm2()
        for mu, nu in X.planes()
    )


def arrays_of(lattice: jali.Lattice, like: jali.Field) -> jali.Field:
    """A field of this element, precision and batch that is an array of the device."""
    members = () if like.batch is None else (like.batch,)
    shape = lattice.local_extents + members + like.element.numpy_shape
    zeros = np.zeros(shape, like.element.numpy_dtype(like.precision))
    return lattice.wrap(DeviceArray.from_host(zeros, lattice.gpu), like.element, batch=like.batch)


def averaged_by_ranks(precision: str) -> None:
    """With ghosts apart, also of whole numbers and of members."""
    lattice = jali.Lattice(4, 4, 4, 4, device="cuda")
    for element, function in ((jali.Vector(3), averaged), (jali.Integer(), counted)):
        for batch in (None, 2):
            field = jali.Field(lattice, element, precision, batch=batch)
            f, g = (arrays_of(lattice, field) for _ in range(2))
            function(g, f)
            function(g, field)


def collect_toolbox(n: int, precision: str) -> None:
    """What the sweeps, the force and the flow of an action with rectangles launch, Metropolis of one that is not linear, HYP smearing and gauge
    fixing."""
    lattice = jali.Lattice(4, 4, 4, 4, device="cuda")
    rng, action = jali.Random(1), gauge.iwasaki_action(2.0)
    U = GaugeField(lattice, SU(n), precision=precision).hot_start(rng)
    gauge.sweep(U, action, rng, heatbath=1, overrelaxation=1)
    gauge.metropolis_sweep(U, action, rng, hits=1)
    action.value(U)
    action.force(U)
    gauge.Flow(U, step=0.05, action=action).advance(1)
    gauge.metropolis_sweep(U, adjoint_plaquettes(1.0), rng, hits=1)
    for method in ("Kennedy-Pendleton", "Creutz"):
        own_heat_bath(U, rng, -1.0, method)
    gauge.hyp_smear(U)
    gauge.landau_gauge(U)
    # the device that is not there has theta = 0 at once
    g = U[0].copy()
    _turn.kernels(g, U, 1.7, tuple(lattice.directions), over=jali.EVEN)
    _reunitarise.kernels(g)


def collect_operators(n: int, precision: str) -> None:
    """What applications of Dirac operators and of their even-odd forms launch, of a batch too."""
    lattice = jali.Lattice(4, 4, 4, 4, device="cuda")
    U = GaugeField(lattice, SU(n), precision=precision).hot_start(jali.Random(1))
    for make in OPERATORS.values():
        D = make(U.fields)
        walls = getattr(D, "Ls", None)
        for batch in {walls, walls or 4}:
            psi = jali.Field(lattice, D.element, precision, boundary=[1, 1, 1, "antiperiodic"], batch=batch)
            half = psi.on(jali.ODD)
            D.normal(psi)
            D.hop(half, plus=psi.on(jali.EVEN), scale=-1.0)
            for form in ("asymmetric", "symmetric"):
                E = D.even_odd(form=form)
                E.normal(half)
                E.normal_inner(half, wait=False)
                E.reconstruct(E.prepare(psi), psi)


if __name__ == "__main__":
    parts = {"": collect, "toolbox": collect_toolbox, "operators": collect_operators}
    parts[sys.argv[3] if len(sys.argv) > 3 else ""](int(sys.argv[1]), sys.argv[2])
    print(len(list(Path(os.environ["JALI_CACHE_DIR"]).glob("*.cu"))))
