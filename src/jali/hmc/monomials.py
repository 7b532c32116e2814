"""Monomials: the actions of a Hamiltonian, each on a level of time, and how they kick momenta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jali
from jali.actions.formulas import ActionFormula, SiteAction
from jali.actions.protocol import Action, gradient_like, listed
from jali.actions.terms import Terms
from jali.errors import ParameterError, RecordingError
from jali.files import value_shown
from jali.hmc.integrators import is_whole
from jali.lattice.field import Field


class Monomial:
    """An action and the level whose integrator kicks by its force: 0 for the coarsest steps, the default. `name` is what reports call it."""

    def __init__(self, action: Action, level: int = 0, name: str = ""):
        if isinstance(action, ActionFormula):
            name_of = action.function.__name__
            couplings = ", ".join(f"{one}=..." for one in action.couplings)
            raise ParameterError(
                f"{name_of} is the formula of an action: {name_of}({couplings}) is an action"
            )
        if not isinstance(action, Action):
            raise ParameterError(f"a Monomial is of an action, not of {value_shown(action)}")
        if not is_whole(level, 0):
            raise ParameterError(
                f"the level of a Monomial is a whole number from 0, not {value_shown(level)}"
            )
        self.action, self.level = action, level
        self.name = name or repr(action)

    def __repr__(self) -> str:
        return f"Monomial({self.action!r}, level={self.level})"


@jali.site_function
def _kick(X: Any, P: Any, field: Any, length: Any, times: Any, mu: Any, force: Any, given: Any) -> None:
    here = P if mu is None else P[mu]
    here[X] = here[X] - (length * times) * force(X, field, mu, *given)


@jali.site_function
def _kick_by(X: Any, P: Any, F: Any, length: Any, times: Any) -> None:
    P[X] = P[X] - (length * times) * F[X]


class Kicks:
    """The kicks of one monomial: of fields that move, by their names, and others that it depends on.

    An action that is a formula over sites kicks in the kernel of its force. Of others the force is a field, whose
    calculation is recorded once in a trajectory as a graph, where it can be.
    """

    def __init__(self, monomial: Monomial, fields: Mapping[str, Any], moving: Sequence[str]):
        action = monomial.action
        missing = [name for name in action.fields if name not in fields]
        if missing:
            raise ParameterError(
                f"{monomial.name} depends on {missing[0]}, which is no field of this simulation ({', '.join(fields)})"
            )
        self.monomial = monomial
        self.moving = [name for name in action.fields if name in moving]
        if not self.moving:
            raise ParameterError(
                f"{monomial.name} depends on {', '.join(action.fields)}, of which none moves: it would kick nothing"
            )
        self.arguments = [fields[name] for name in action.fields]
        self._fields = fields
        self.direct = all(isinstance(one, SiteAction) for _, one in action.parts())
        self._terms = {name: Terms.of(action, name, fields) for name in self.moving} if self.direct else {}
        self._forces: dict[str, list[Field]] = {}
        self._graph: Any = None
        self._seen = False

    def value(self) -> Any:
        """S, a number or one that stays on the device."""
        return self.monomial.action.value(*self.arguments)

    def kick(self, momenta: Mapping[str, Any], length: Any, times: Any) -> None:
        """P <- P - length times F for all fields that move."""
        if not self.direct:
            self._compute_forces()
        for name in self.moving:
            if not self.direct:
                for P, F in zip(listed(momenta[name]), self._forces[name], strict=True):
                    _kick_by(P, F, length, times)
                continue
            terms, field = self._terms[name], self._fields[name]
            directions = [None] if isinstance(field, Field) else listed(field)[0].lattice.directions
            for mu in directions:
                _kick(momenta[name], field, length, times, mu, terms.force, terms.given)

    def forces(self) -> dict[str, list[Field]]:
        """The gradient of the action with respect to the fields that move."""
        self._make_fields()
        for name in self.moving:
            field = self._fields[name]
            out = self._forces[name][0] if isinstance(field, Field) else self._forces[name]
            self.monomial.action.force(*self.arguments, of=name, out=out)
        return self._forces

    def renew(self) -> None:
        """Forgets the recorded force: what Python computes in `value`, such as couplings, is seen again by the next trajectory."""
        self._graph = None

    def _make_fields(self) -> None:
        for name in self.moving:
            if name not in self._forces:
                self._forces[name] = listed(gradient_like(self._fields[name]))

    def _compute_forces(self) -> None:
        self._make_fields()
        if self._graph and not self._graph.is_current:
            self._graph = None
        if self._graph is None:
            lattice = listed(self._fields[self.moving[0]])[0].lattice
            if not self._seen:
                self.forces()  # what is made once is made before
                self._seen = True
            try:
                self._graph = jali.graph(self.forces, lattice)
            except (RecordingError, jali.TraceError):
                self._graph = False  # it asks the host for a number
        if self._graph:
            self._graph.run()
        else:
            self.forces()
