import contextlib
import sys
import time

import numpy as np

import jali
from jali import Lattice, Spinor
from jali.fermions import WilsonDirac, wilson_at
from jali.gauge import SU, GaugeField
from jali.lattice import fused_sums
from jali.lattice.algebra import inner
from jali.solvers import cg, conjugate_gradient

label = sys.argv[1]

@jali.site_function
def adj_norm(X, out, psi, U, mass, total):
    out[X] = wilson_at(X, psi, U, mass, -1)
    total += psi[X].norm2()
@jali.site_function
def fwd_norm(X, out, psi, U, mass, total):
    y = wilson_at(X, psi, U, mass)
    out[X] = y
    total += y.norm2()
@jali.site_function
def adj_real(X, p, out, psi, U, mass, total):
    y = wilson_at(X, psi, U, mass, -1)
    out[X] = y
    total += p[X].dot(y).real

class Base(WilsonDirac):
    pass
def setup(self, psi, out):
    self._between = self._between if self._between is not None else psi.like()
    return self._between, self._out(psi, out)
class NormAdj(Base):
    def normal_inner(self, psi, out=None, wait=True):
        b, out = setup(self, psi, out)
        self.apply(psi, b)
        return out, self.lattice.sum(adj_norm, out, b, self.links, self.mass, wait=wait)
class NormFwd(Base):
    def normal_inner(self, psi, out=None, wait=True):
        b, out = setup(self, psi, out)
        n = self.lattice.sum(fwd_norm, b, psi, self.links, self.mass, wait=wait)
        self.adjoint(b, out)
        return out, n
class Real(Base):
    def normal_inner(self, psi, out=None, wait=True):
        b, out = setup(self, psi, out)
        self.apply(psi, b)
        return out, self.lattice.sum(adj_real, psi, out, b, self.links, self.mass, wait=wait)
class Norm2(Base):  # apart: norm of D psi
    def normal_inner(self, psi, out=None, wait=True):
        b, out = setup(self, psi, out)
        self.apply(psi, b)
        n = inner(b, b, wait=wait)
        self.adjoint(b, out)
        return out, n

SHORT, LONG = 33, 225
def seconds(call, lattice):
    lattice.gpu.synchronize(); t = time.perf_counter(); call(); lattice.gpu.synchronize()
    return time.perf_counter() - t
launches = []
kept = conjugate_gradient._Repeated.__init__
def count(self, run, turns):
    kept(self, run, turns); launches.append(self.graph.operations)
conjugate_gradient._Repeated.__init__ = count
which = sys.argv[2].split(",")
configs = [c.split(":") for c in sys.argv[3].split(",")]
lconf = sys.argv[4].split(";") if len(sys.argv) > 4 else [""]
for ext, prec in configs:
    ext = int(ext); prec = {"d": "float64", "f": "float32"}[prec]
    lattice = Lattice(*[ext] * 4, device="cuda")
    U = GaugeField(lattice, SU(3), precision=prec).hot_start(seed=1)
    b = lattice.field(Spinor(3), precision=prec, boundary={3: "antiperiodic"})
    b[...] = np.random.default_rng(2).normal(size=(*lattice.extents, 4, 3))
    for conf in lconf:
      with (jali.tune.experiment(launch=conf) if conf else contextlib.nullcontext()):
        rows = []
        for name in which:
            cls, most = {"apart": (WilsonDirac, 0), "complex": (WilsonDirac, 1000), "nadj": (NormAdj, 64), "nfwd": (NormFwd, 64), "real": (Real, 64), "napart": (Norm2, 64)}[name]
            fused_sums.MOST_READ = most
            D = cls(U, 0.1)
            def solve(n):
                cg(D.normal, b, rtol=1e-300, maxiter=n, must_converge=False, check_interval=8)
            launches.clear()
            solve(SHORT); solve(LONG)
            rows.append((name, solve, (launches[0] - 1) / 8, most))
        res = {name: ([], []) for name, *_ in rows}
        for _ in range(25):
            for name, solve, n, most in rows:
                fused_sums.MOST_READ = most
                res[name][0].append(seconds(lambda: solve(SHORT), lattice))
                res[name][1].append(seconds(lambda: solve(LONG), lattice))
        def show(f):
            v = {name: f(*res[name]) for name, *_ in rows}
            base = v[rows[0][0]]
            return "  ".join(f"{name} {v[name]:.2f} ({v[name]/base:.3f})" for name in v)
        print(f"{label:6s} {ext}^4 {prec} {conf or '-':6s} iteration us, minima: " + show(lambda a, b: (min(b) - min(a)) / (LONG - SHORT) * 1e6)
          + " | medians: " + show(lambda a, b: (np.median(b) - np.median(a)) / (LONG - SHORT) * 1e6)
          + " | 33 iterations ms, median: " + show(lambda a, b: np.median(a) * 1e3), flush=True)
