"""Actions of fields: formulas, their values and their gradients."""

from jali.actions.formulas import ActionFormula, SiteAction, action
from jali.actions.protocol import Action, SmearedAction, SumOfActions

__all__ = ["Action", "ActionFormula", "SiteAction", "SmearedAction", "SumOfActions", "action"]
