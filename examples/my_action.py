"""An action that no package has, simulated by hybrid Monte Carlo: plaquettes of HYP-smeared links, and a price for topological charge.

S = -(beta / 2) sum_p tr V_p + lam Q(V)^2 of SU(2), where V are the HYP-smeared links and Q is their clover charge. The force goes back through
projections and staples by itself. The term narrows the distribution of Q, and reweighting the run without it says how much.
"""

import argparse
import math

import numpy as np

import jali
from jali.gauge import SU, GaugeField, charge_action, hyp_smear, wilson_action
from jali.hmc import HMC, Level
from jali.statistics import mean_error, mean_error_of

charge = charge_action(1.0)


class MyAction(jali.Action):
    fields = ("U",)

    def __init__(self, beta, lam):
        self.beta, self.lam = beta, lam

    def value(self, U):
        V = hyp_smear(U)
        Q = charge.value(V)
        return wilson_action(self.beta).value(V) + self.lam * Q * Q


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--beta", type=float, default=0.5)
parser.add_argument("--lam", type=float, default=100.0)
parser.add_argument("--trajectories", type=int, default=25)
arguments = parser.parse_args()

lattice = jali.Lattice(4, 4, 4, 4)
U = GaugeField(lattice, SU(2)).hot_start(seed=1)
charges = {}
for lam in (0.0, arguments.lam):
    action = MyAction(arguments.beta, lam)
    hmc = HMC({"U": U}, action, seed=2, stream=int(lam > 0), levels=[Level("2MN", 6)], accept_always=6)
    found = []
    for trajectory in hmc.run(6 + arguments.trajectories):
        found.append((trajectory.dH, trajectory.accepted, charge.value(hyp_smear(U))))
    changes, accepted, Q = np.array(found[6:]).T
    charges[lam], exact, back = Q, mean_error(np.exp(-changes)), hmc.reversibility()
    if lattice.rank == 0:
        print(
            f"lam {lam:g}: accepted {accepted.mean():.2f}, rms dH {np.std(changes):.2f}, <exp(-dH)> {exact}"
        )
        print(f"    there and back: {back:.0e}; <Q^2> {mean_error(Q**2)}")
    if not abs(exact.mean - 1) < 4 * exact.error:
        raise SystemExit("<exp(-dH)> is 1 where the force is the gradient of the action")

free, bound = charges[0.0], charges[arguments.lam]
weight = np.exp(-arguments.lam * free**2)
expected = mean_error_of(lambda means: means[0] / means[1], np.column_stack([free**2 * weight, weight]))
measured = mean_error(bound**2)
if lattice.rank == 0:
    fall = np.mean(free**2) / measured.mean
    print(f"<Q^2> falls by {fall:.1f}, to {measured}; the run without the term expects {expected}")
if not abs(measured.mean - expected.mean) < 4 * math.hypot(measured.error, expected.error):
    raise SystemExit("the two runs are not of one action")
