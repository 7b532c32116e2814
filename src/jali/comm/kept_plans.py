"""Plans of collective calls: made when they are needed, the least recently used of more than `KEPT` dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KEPT = 256  # plans per communicator, and per device

Call = TypeVar("Call", bound=Hashable)
Plan = TypeVar("Plan")


class KeepsPlans(ABC, Generic[Call, Plan]):
    """Whoever has plans by call. Until plans are dropped soon, nobody asks in which order they were used."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Call, Plan] = OrderedDict()
        self._crowded = False

    def plan_of(self, call: Call) -> Plan:
        """The plan of a call, made if it is not there."""
        plan = self._plans.get(call)
        if plan is None:
            plan = self._plans[call] = self._make(call)
            self._crowded = len(self._plans) > KEPT // 2
            if self._crowded:
                dropped = [self._plans.popitem(last=False)[0] for _ in range(len(self._plans) - KEPT)]
                self._drop(dropped)
        elif self._crowded:
            self._plans.move_to_end(call)
        return plan

    @abstractmethod
    def _make(self, call: Call, /) -> Plan:
        """A new plan."""

    @abstractmethod
    def _drop(self, calls: list[Call], /) -> None:
        """The plans of these calls, of none perhaps, were dropped as those that nobody had asked for the longest. Who uses
        plans without asking shall ask again from now on."""
