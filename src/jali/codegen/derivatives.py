"""Derivatives of nodes: cotangents pulled back from values to what they are made of, changes pushed forward, and proofs of linearity.

The rules of operations are columns of their descriptors (`operation.py`); this file walks graphs with them. A cotangent c of a value v
stands for dS = Re <c, dv> = Re sum conj(c_k) dv_k over components, so that of a complex number it is dS/d Re v + i dS/d Im v. Does not
depend on fields, lattices or on where leaves come from.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from jali.codegen.builder import Builder
from jali.codegen.ir import REAL, Node
from jali.codegen.language.arithmetic import add, mul, neg, sub
from jali.codegen.language.conversions import build, element, zero_of
from jali.codegen.language.leaves import exact, is_constant, is_fixed, is_zero
from jali.codegen.operation import PARTS, described
from jali.codegen.rewriting import reachable
from jali.codegen.types import Type
from jali.errors import TraceError


def depends(roots: Iterable[Node], leaves: Iterable[Node]) -> set[int]:
    """The numbers of the real and complex values among what the roots need that are made of the leaves."""
    found = {leaf.number for leaf in leaves}
    for node in reachable(roots):
        operation = described(node)
        changes = node.type.kind in ("real", "complex") or operation.repeats
        if changes and not operation.holds and any(a.number in found for a in node.args):
            found.add(node.number)
    return found


def _error(node: Node, message: str) -> TraceError:
    return TraceError(f"{message}\n  at {node.where}")


@contextlib.contextmanager
def _at_line_of(nodes: Builder, node: Node) -> Iterator[None]:
    """Nodes and errors of the derivative of a node belong to its line."""
    before, nodes.line = nodes.line, node.where
    try:
        yield
    except TraceError as error:
        text = str(error)
        raise error if text.endswith(node.where) else _error(node, text.split("\n  at ")[0]) from error
    finally:
        nodes.line = before


# ---- backwards -----------------------------------------------------------------------------------------


Scaled = tuple[Node | None, Node]
"""A cotangent, and a real number that is the same at all sites, by which it is multiplied when all are added up: rules are linear in
cotangents, so that one product serves many."""


def split_off_numbers(nodes: Builder, scale: Node | None, c: Node) -> tuple[bool, Node | None, Node]:
    """A cotangent without the fixed real numbers in front of it: whether it is subtracted, their product but for its sign, and the rest."""
    minus = False
    while True:
        if neg.made(c):
            minus, c = not minus, c.args[0]
        elif mul.made(c) and c.args[0].type == REAL and is_fixed(c.args[0]):
            scale = c.args[0] if scale is None else mul(nodes, scale, c.args[0])
            c = c.args[1]
        else:
            break
    if scale is not None and (neg.made(scale) or (is_constant(scale) and scale.attrs[0] < 0)):
        minus, scale = not minus, neg(nodes, scale)
    if scale is not None and is_constant(scale) and scale.attrs[0] == 1:
        scale = None
    return minus, scale, c


def scaled(nodes: Builder, one: Scaled) -> Node:
    """A cotangent times its number."""
    return one[1] if one[0] is None else mul(nodes, one[0], one[1])


def _with_sign(nodes: Builder, minus: bool, scale: Node | None, c: Node) -> Scaled:
    if not minus:
        return scale, c
    return (exact(nodes, -1.0) if scale is None else neg(nodes, scale)), c


class ScaledSum:
    """Cotangents that are added up, those of each number by themselves: of equal ones but for the sign there are differences."""

    def __init__(self) -> None:
        self._terms: dict[int, tuple[bool, Node | None, Node]] = {}

    def add(self, nodes: Builder, scale: Node | None, c: Node) -> None:
        """Adds a cotangent times a number."""
        minus, scale, c = split_off_numbers(nodes, scale, c)
        key = -1 if scale is None else scale.number
        before = self._terms.get(key)
        if before is None:
            self._terms[key] = minus, scale, c
            return
        was_minus, _, there = before
        if was_minus == minus:
            self._terms[key] = minus, scale, add(nodes, there, c)
        else:
            less, more = (there, c) if was_minus else (c, there)
            self._terms[key] = False, scale, sub(nodes, more, less)

    def total(self, nodes: Builder) -> Scaled | None:
        """All of them; None where there is none."""
        found = self.signed_total(nodes)
        return found and _with_sign(nodes, *found)

    def signed_total(self, nodes: Builder) -> tuple[bool, Node | None, Node] | None:
        """All of them, with a sign of their own: whether they are subtracted, their number and the rest."""
        first, *rest = self._terms.values() or (None,)
        if first is None or not rest:
            return first
        minus, scale, c = first
        total = scaled(nodes, (scale, neg(nodes, c) if minus else c))
        for minus, scale, c in rest:
            total = (sub if minus else add)(nodes, total, scaled(nodes, (scale, c)))
        return False, None, total


class _Cotangents:
    """What has arrived at each node: whole values, and components, which are put together when all are there."""

    def __init__(self, nodes: Builder):
        self.nodes = nodes
        self.whole: dict[int, ScaledSum] = {}
        self.components: dict[int, dict[int, ScaledSum]] = {}

    def add(self, node: Node, scale: Node | None, c: Node) -> None:
        if not is_zero(c):
            self.whole.setdefault(node.number, ScaledSum()).add(self.nodes, scale, c)

    def add_component(self, node: Node, k: int, scale: Node | None, c: Node) -> None:
        if not is_zero(c):
            own = self.components.setdefault(node.number, {})
            own.setdefault(k, ScaledSum()).add(self.nodes, scale, c)

    def of(self, node: Node) -> Scaled | None:
        nodes, whole, own = self.nodes, self.whole.get(node.number), self.components.get(node.number)
        if own is None:
            return None if whole is None else whole.total(nodes)
        zero = zero_of(nodes, Type(node.type.kind))
        each = {k: found for k, one in own.items() if (found := one.signed_total(nodes))}
        rest = None if whole is None else whole.signed_total(nodes)
        (minus, common, _), *others = [*each.values(), *([] if rest is None else [rest])]
        if any(scale is not common for _, scale, _ in others):
            minus, common = False, None

        def within(one: tuple[bool, Node | None, Node]) -> Node:
            own_minus, scale, c = one
            value = c if scale is common else scaled(nodes, (scale, c))
            return value if own_minus == minus else neg(nodes, value)

        parts_of = {k: within(one) for k, one in each.items()}
        there = None if rest is None else within(rest)
        parts = []
        for k in range(node.type.size):
            part = zero if there is None else element(nodes, there, k)
            parts.append(add(nodes, part, parts_of[k]) if k in parts_of else part)
        return _with_sign(nodes, minus, common, build(nodes, node.type, parts))


def pulled_back(
    nodes: Builder, seeds: Sequence[tuple[Node, Node]], leaves: Sequence[Node]
) -> dict[int, Scaled]:
    """The cotangents of the leaves that have any, by their numbers, given those of values, `seeds`.

    Raises TraceError at the line of an operation that has no derivative.
    """
    roots = [value for value, _ in seeds]
    active = depends(roots, leaves)
    known = {leaf.number for leaf in leaves}
    gathered = _Cotangents(nodes)
    for value, c in seeds:
        if value.number in active:
            gathered.add(value, None, c)
    found: dict[int, Scaled] = {}
    order = [node for node in reachable(roots) if node.number in active]
    for node in reversed(order):  # users first
        with _at_line_of(nodes, node):
            arrived = gathered.of(node)
            if arrived is None or is_zero(arrived[1]):
                continue
            scale, c = arrived
            assert c.type == node.type, f"the cotangent of {node!r} is a {c.type}"
            if node.number in known:
                found[node.number] = arrived
                continue
            operation = described(node)
            wanted = [a.number in active for a in node.args]
            if operation.component:
                gathered.add_component(node.args[0], node.attrs[0], scale, c)
                continue
            if operation.alike is not None:
                inner = pulled_back(nodes, [(operation.alike(nodes, node), c)], node.args)
                parts: Sequence[Node | None] = [
                    scaled(nodes, inner[a.number]) if a.number in inner else None for a in node.args
                ]
            elif operation.pullback is None:
                raise _error(node, f"{node.op} has no derivative: its descriptor has no pullback")
            else:
                parts = operation.pullback(nodes, node, c, wanted)
            for a, want, part in zip(node.args, wanted, parts, strict=True):
                if want and part is not None:
                    gathered.add(a, scale, part)
    return found


# ---- forwards ------------------------------------------------------------------------------------------


def pushed_forward(nodes: Builder, roots: Sequence[Node], changes: Mapping[int, Node]) -> dict[int, Node]:
    """The changes of all values that change, by their numbers, for those of leaves. Raises TraceError at the line of an operation that has
    no derivative."""
    found = dict(changes)
    real = ("real", "complex")
    for node in reachable(roots):
        operation = described(node)
        if node.number in found or operation.holds or not (node.type.kind in real or operation.repeats):
            continue
        of = [found.get(a.number) for a in node.args]
        if all(change is None for change in of):
            continue
        with _at_line_of(nodes, node):
            change = change_of(nodes, node, of)
        if change is not None and not is_zero(change):
            assert change.type == node.type, f"the change of {node!r} is a {change.type}"
            found[node.number] = change
    return found


def change_of(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    """The change of a value for those of its arguments, None where there is none. Raises TraceError where its operation has no derivative."""
    operation = described(node)
    if operation.alike is not None:
        inner = operation.alike(nodes, node)
        given = {a.number: change for a, change in zip(node.args, of, strict=True) if change is not None}
        return pushed_forward(nodes, [inner], given).get(inner.number)
    if operation.tangent is not None:
        return operation.tangent(nodes, node, of)
    if operation.linear is None or operation.jointly:
        raise _error(node, f"{node.op} has no derivative: its descriptor has no tangent")
    total: Node | None = None
    for k, (change, degree) in enumerate(zip(of, operation.linear(node), strict=True)):
        if change is None:
            continue
        if not degree:
            raise _error(node, f"{node.op} has no derivative: its descriptor has no tangent")
        args = tuple(change if at == k else a for at, a in enumerate(node.args))
        term = nodes.node(node.op, args, node.attrs, node.type)
        total = term if total is None else add(nodes, total, term)
    return total


# ---- linearity -----------------------------------------------------------------------------------------


def check_linear(
    roots: Sequence[tuple[Node, str]], leaves: Sequence[Node], names: str, of_complex: bool
) -> None:
    """Proves that values are linear in the leaves; with `of_complex` over the complex numbers, else over the real ones.

    `roots` are values with what to call them in errors. Raises TraceError at the line of what is not linear.
    """
    degree: dict[int, int] = {leaf.number: 1 for leaf in leaves}
    for node in reachable([value for value, _ in roots]):
        if node.number in degree:
            continue
        operation = described(node)
        of = [degree.get(a.number, 0) for a in node.args]
        if not any(of):
            continue
        if operation.holds:
            raise _error(node, f"what is held constant here is made of {names}: that is not linear")
        if node.type.kind not in ("real", "complex"):
            raise _error(node, f"a comparison or a whole number is made of {names}: that is not linear")
        own = (
            [1] * len(of)
            if operation.alike is not None and operation.linear is None
            else operation.linear and operation.linear(node)
        )
        if own is None or any(mine and not factor for mine, factor in zip(of, own, strict=True)):
            raise _error(node, f"{_word(node)} of {names} is not linear")
        if operation.jointly:
            choices = range(1, len(of)) if operation.chooses else range(len(of))
            for k in choices:
                if not of[k] and not _vanishes(node.args[k]):
                    raise _error(
                        node,
                        f"what is added here to a value that is linear in {names} is none itself: the function is linear but for a "
                        "constant, and has no adjoint. jali.gradient and jali.pullback take such functions",
                    )
        elif sum(1 for mine in of if mine) > 1:
            raise _error(node, f"the {_word(node)} of two values that depend on {names} is not linear")
        kinds = {
            PARTS if PARTS in (mine, factor) and node.args[k].type.kind == "complex" else mine * factor
            for k, (mine, factor) in enumerate(zip(of, own, strict=True))
            if mine
        }
        degree[node.number] = kinds.pop() if len(kinds) == 1 else PARTS
        if of_complex and degree[node.number] == PARTS and node.type.kind == "complex":
            raise _error(
                node,
                f'this is linear in {names} over the real numbers alone, so it has no adjoint under sum conj(a) b; inner="real" takes '
                "the real part of that",
            )
    for value, what in roots:
        found = degree.get(value.number, 0)
        if not found:
            if _vanishes(value):
                continue
            raise _error(
                value, f"{what} does not depend on {names}: the function is linear but for a constant"
            )
        if of_complex and found == -1 and value.type.kind == "complex":
            raise _error(
                value,
                f'{what} is linear in the conjugate of {names}, so it has no adjoint under sum conj(a) b; inner="real" takes the real '
                "part of that",
            )
        if of_complex and found == PARTS and any(leaf.type.kind == "complex" for leaf in leaves):
            raise _error(
                value,
                f'{what} is linear in {names} over the real numbers alone, so it has no adjoint under sum conj(a) b; inner="real" takes '
                "the real part of that",
            )


def _vanishes(node: Node) -> bool:
    """Whether a value is zero, of the algebra or as a user's number."""
    return is_zero(node) or (is_constant(node) and node.type.kind != "bool" and node.attrs[0] == 0)


_WORDS = {
    "mul": "product",
    "matmul": "product",
    "div": "quotient",
    "call": "function",
    "retrace_mul": "trace of a product",
}


def _word(node: Node) -> str:
    """What an operation is called in errors; of functions the first attribute is their name."""
    return (
        str(node.attrs[0]) if node.attrs and isinstance(node.attrs[0], str) else _WORDS.get(node.op, node.op)
    )


# ---- factors across edges ------------------------------------------------------------------------------


def factor_of(
    node: Node, factors: Callable[[Node], complex | None], known: dict[int, complex | None]
) -> complex | None:
    """What a value is multiplied by where every leaf is multiplied by its own factor of modulus one; None where there is no such number."""
    for one in reachable([node], known):
        if not one.args or described(one).reads:
            known[one.number] = factors(one)
        else:
            known[one.number] = _factor(one, [known[a.number] for a in one.args])
    return known[node.number]


def _factor(node: Node, of: Sequence[complex | None]) -> complex | None:
    if all(factor == 1 for factor in of):
        return 1
    operation = described(node)
    own = operation.linear and operation.linear(node)
    powers = operation.degrees or ((tuple(own),) if own is not None else ())
    if None in of or not powers:
        return None
    if operation.jointly:
        found = {
            _powered(f, degree)
            for a, f, degree in zip(node.args, of, powers[0], strict=True)
            if degree and not is_zero(a)
        }
        held = all(f == 1 for f, degree in zip(of, powers[0], strict=True) if not degree)
        return found.pop() if len(found) == 1 and held else None
    if not operation.degrees and any(f != 1 and not d for f, d in zip(of, powers[0], strict=True)):
        return None  # not linear in it
    terms = set()
    for power in powers:
        each = [_powered(f, degree) for f, degree in zip(of, power, strict=True)]
        terms.add(None if None in each else _near(math.prod(each)))  # type: ignore[arg-type]
    return terms.pop() if len(terms) == 1 else None


def _near(factor: complex) -> complex:
    """A product of factors, which rounding has not taken away from 1 and -1."""
    return next((one for one in (1, -1) if abs(factor - one) < 1e-12), factor)


def _powered(factor: complex | None, degree: int) -> complex | None:
    if factor is None or (degree == PARTS and factor not in (1, -1)):
        return None
    return 1 if degree == 0 else factor.conjugate() if degree == -1 else factor


def vanishes(node: Node, of_leaf: Callable[[Node], bool], known: dict[int, bool]) -> bool:
    """Whether a value is zero wherever the leaves that `of_leaf` names are: each of its terms has one of them as a factor, and none of
    these goes through a function that may be infinite there."""
    for one in reachable([node], known):
        if not one.args or described(one).reads:
            known[one.number] = is_zero(one) or of_leaf(one)
            continue
        operation = described(one)
        own = operation.linear and operation.linear(one)
        of = [known[a.number] for a in one.args]
        if own is None or not any(own):
            known[one.number] = False
        elif operation.jointly:
            known[one.number] = all(f for f, degree in zip(of, own, strict=True) if degree)
        else:
            known[one.number] = any(f for f, degree in zip(of, own, strict=True) if degree)
    return known[node.number] and not _is_fragile(node)


def _is_fragile(node: Node) -> bool:
    """Whether something is divided by a value that is read, or a function is taken of it."""
    for one in reachable([node]):
        operation = described(one)
        own = operation.linear and operation.linear(one)
        degrees = [0] * len(one.args) if own is None else own
        for a, degree in zip(one.args, degrees, strict=True):
            if not degree and one.args and any(described(leaf).reads for leaf in reachable([a])):
                return True
    return False
