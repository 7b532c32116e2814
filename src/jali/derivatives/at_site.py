"""Inside a site function: how a sum over sites depends on the value of one field at the site, all other values as they are.

These are the pieces that updates of single variables are made of: a heat bath needs what multiplies a link, a Metropolis step what the sum changes
by. Both are values of the trace around them and can be used like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jali.codegen.builder import Builder
from jali.codegen.derivatives import change_of, pulled_back
from jali.codegen.ir import Node
from jali.codegen.language import arithmetic, conversions, groups, leaves, matrices
from jali.codegen.lines import trace_error
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable, rebuild
from jali.codegen.state import Trace, current_trace
from jali.codegen.symbols import FieldSymbol
from jali.codegen.values import Value
from jali.derivatives.functions import contributions_of, is_group
from jali.derivatives.gather import Gatherer
from jali.derivatives.inlined import Inlined, inlined, loads_of
from jali.errors import TraceError
from jali.lattice.sites import SiteFunction


def gradient_at(function: SiteFunction, symbols: Mapping[str, Any], total: str, of: FieldSymbol) -> Value:
    """The gradient of the sum `total` of a site function with respect to the numbers of a field at the site, inside a site function.

    `symbols` are the arguments of `function` by name, fields as the function around it has them. For matrices G with dS = Re tr(G^dagger dM), also of
    `SU(n)`; for complex numbers dS/d Re z + i dS/d Im z. Raises TraceError at the line of what has no derivative.
    """
    trace, found = _inlined(function, symbols, total)
    nodes = trace.builder
    terms = [term.value for term in found.terms]
    loads = loads_of(terms, {of.slot})
    pulled = pulled_back(nodes, [(term, leaves.exact(nodes, 1.0)) for term in terms], loads)
    contributions = contributions_of(trace, of, loads, pulled, of)
    gatherer = Gatherer(trace, found.ratio)
    return Value(gatherer.total(of.slot, contributions, of.element.type, lambda offset: True, None))


def force_at(function: SiteFunction, symbols: Mapping[str, Any], total: str, of: FieldSymbol) -> Value:
    """The gradient of the sum as `jali.gradient` has it: of links (`SU(n)`) in the algebra, of `Algebra(n)` F with dS = -2 tr(dA F), of `Hermitian(n)` the Hermitian
    one; of all others that of `gradient_at`, whose arguments and errors it has."""
    trace = current_trace()
    nodes, node = trace.builder, gradient_at(function, symbols, total, of).node
    if is_group(of.element):
        link = trace.load(of.slot, (0,) * trace.ndim)
        node = groups.antihermitian(nodes, matrices.matmul(nodes, node, matrices.adjoint(nodes, link)))
    elif of.element.codec == "algebra":
        node = groups.antihermitian(nodes, node)
    else:
        return Value(groups.hermitian(nodes, node) if of.element.codec == "hermitian" else node)
    return Value(arithmetic.mul(nodes, leaves.exact(nodes, 0.5), node))


def change_at(
    function: SiteFunction, symbols: Mapping[str, Any], total: str, of: FieldSymbol, new: Value
) -> Value:
    """What the sum `total` of a site function changes by where a field gets the value `new` at the site, inside a site function.

    The terms that read the field there are taken at all sites from which they do, with the old and the new value. Arguments as of
    `gradient_at`. Raises TraceError for fields of other lattices and of batches, and for terms that have other values seen from their neighbours.
    """
    trace, found = _inlined(function, symbols, total)
    nodes = trace.builder
    if found.ratio is not None or any(slot.batch for slot in trace.slots):
        raise trace_error(
            f"{function.__name__}: the change by one value is found for fields of one lattice that have no batch"
        )
    gatherer = Gatherer(trace, None)
    here = trace.load(of.slot, (0,) * trace.ndim)
    change: Node | None = None
    for term in found.terms:
        for offset in dict.fromkeys(load.attrs[1] for load in loads_of([term.value], {of.slot})):
            before = gatherer.value_at(of.slot, term.value, tuple(-o for o in offset))
            one = _difference(nodes, before, here, new.node)
            change = one if change is None else arithmetic.add(nodes, change, one)
    return Value(leaves.exact(nodes, 0.0) if change is None else change)


def is_linear_at(function: SiteFunction, symbols: Mapping[str, Any], total: str, of: FieldSymbol) -> bool:
    """Whether the sum is linear in the value of a field at each site, all other values as they are; arguments as of `gradient_at`.

    It is not where a comparison or a rounding depends on the value, though these have no gradient.
    """
    _, found = _inlined(function, symbols, total)
    for term in found.terms:
        loads = loads_of([term.value], {of.slot})
        for offset in {load.attrs[1] for load in loads}:
            changed = {load.number for load in loads if load.attrs[1] == offset}
            for node in reachable([term.value]):
                of_args = [a.number in changed for a in node.args]
                if any(of_args):
                    if not _is_linear(node, of_args):
                        return False
                    changed.add(node.number)
    return True


def _inlined(function: SiteFunction, symbols: Mapping[str, Any], total: str) -> tuple[Trace, Inlined]:
    trace = current_trace()
    found = inlined(trace, function, symbols, (total,))
    if found.stores:
        raise TraceError(
            f"{function.__name__} writes a field, and is a sum here\n  at {found.stores[0].where}"
        )
    return trace, found


def _difference(nodes: Builder, value: Node, old: Node, new: Node) -> Node:
    """What a value changes by where a read becomes `new`: of what is linear in it the operation itself on the change, so that what does not depend on the read
    is in no difference."""
    replaced = rebuild(nodes, [value], _replacing(old, new))
    changed: dict[int, Node | None] = {}  # None: of conditions and whole numbers, which have no difference
    for node in reachable([value]):
        of = [a.number in changed for a in node.args]
        if _is_read(node, old):
            changed[node.number] = arithmetic.sub(nodes, new, node)
        elif any(of):
            changes = [changed.get(a.number) for a in node.args]
            if _is_linear(node, of):
                changed[node.number] = change_of(nodes, node, changes)
            elif node.type.kind in ("real", "complex"):
                changed[node.number] = arithmetic.sub(nodes, replaced[node.number], node)
            else:
                changed[node.number] = None
    found = changed.get(value.number)
    return conversions.zero_of(nodes, value.type) if found is None else found


def _is_linear(node: Node, changed: Sequence[bool]) -> bool:
    """Whether a value is linear in those of its arguments that change, together."""
    operation = described(node)
    if node.type.kind not in ("real", "complex") or operation.holds:
        return False
    if any(c and a.type.kind not in ("real", "complex") for a, c in zip(node.args, changed, strict=True)):
        return False
    if operation.jointly:
        return True
    degrees = operation.linear(node) if operation.linear else [operation.alike is not None] * len(changed)
    return sum(changed) == 1 and bool(degrees[changed.index(True)])


def _replacing(old: Node, new: Node) -> Any:
    return lambda nodes, node, args: new if _is_read(node, old) else None


def _is_read(node: Node, read: Node) -> bool:
    return described(node).reads and node.attrs == read.attrs and not node.args


def offsets_read(program: Any, slot: int) -> set[tuple[int, ...]]:
    """The offsets at which a program reads the field of a slot."""
    nodes = reachable([effect.value for effect in program.effects])
    return {node.attrs[1] for node in nodes if described(node).reads and node.attrs[0] == slot}
