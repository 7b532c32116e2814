"""Which of the values that a call reads its way back needs: of a function that is linear in a field none of that field, so a tape need not keep it.

Found by tracing: the function's values are turned around for cotangents of all that it writes and sums, and what the results are made of is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jali.codegen.derivatives import pulled_back
from jali.codegen.ir import Node
from jali.codegen.language import leaves
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.codegen.state import current_trace
from jali.derivatives.inlined import fields_in, inlined, loads_of
from jali.errors import TraceError

Places = frozenset[tuple[str, int]]
"""Fields of a call: the parameter, and which of its fields."""


class NeededError(TraceError):
    """How the trace that looks for needed values ends: `what` is where they are."""

    def __init__(self, what: Places):
        super().__init__("")
        self.what = what


def needing(base: Any, plan: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """The body of a function that is only traced, by which it raises NeededError."""

    def find(X: Any, *symbols: Any) -> None:
        trace = current_trace()
        own = dict(zip(names, symbols, strict=True))
        found = inlined(trace, base, own, plan.sums)
        terms = [term for term in found.terms if term.value.type.kind != "int"]
        values = [store.value for store in found.stores] + [term.value for term in terms]
        loads = loads_of(values, {f.slot for name in plan.of for f in fields_in(own[name])})
        seeds = [(value, _any_cotangent(value, k)) for k, value in enumerate(values)]
        pulled = pulled_back(trace.builder, seeds, loads).values()
        roots: list[Node] = [node for both in pulled for node in both if node is not None]
        roots += [index for load in loads for index in load.args]  # which members are read,
        roots += [term.label for term in terms if term.label is not None]  # and which entries get a term
        for store in found.stores:
            links = (
                trace.slots[store.slot].storage.element.codec == "algebra" and not store.value.antihermitian
            )
            if links:  # their cotangent is multiplied by them
                roots.append(store.value)
        read = {node.attrs[0] for node in reachable(roots) if described(node).reads}
        raise NeededError(
            frozenset(
                (name, k)
                for name, symbol in own.items()
                for k, one in enumerate(fields_in(symbol))
                if one.slot in read
            )
        )

    def _any_cotangent(value: Node, k: int) -> Node:
        """A read of a field that is none of the call's."""
        return leaves.load(current_trace().builder, -1 - k, (0,) * current_trace().ndim, value.type)

    return find
