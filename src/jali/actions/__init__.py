"""Actions of fields: formulas, their values and their gradients."""

from jali.actions.formulas import ActionFormula, action
from jali.actions.protocol import Action, SiteAction, SmearedAction, SumOfActions

__all__ = ["Action", "ActionFormula", "SiteAction", "SmearedAction", "SumOfActions", "action"]
