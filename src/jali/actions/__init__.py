"""Actions of fields: formulas, their values and their gradients; named ones of scalar fields; Metropolis updates."""

from jali.actions.formulas import ActionFormula, SiteAction, action
from jali.actions.metropolis import metropolis_sweep
from jali.actions.protocol import Action, SmearedAction, SumOfActions
from jali.actions.scalars import ScalarMeans, phi4_action, portal_action, scalar_means, sigma_action

__all__ = [
    "Action",
    "ActionFormula",
    "ScalarMeans",
    "SiteAction",
    "SmearedAction",
    "SumOfActions",
    "action",
    "metropolis_sweep",
    "phi4_action",
    "portal_action",
    "scalar_means",
    "sigma_action",
]
