"""Sums of products of matrices with common factors taken out: A B C + A D C = A (B + D) C.

Staples of loops are such sums, and begin or end with the same links. A sum is taken apart into words, whose letters are what is multiplied; of
the letters at their ends the one that most words share is taken out first. A sum without any stays as it is, node by node.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, replace

from jali.codegen.builder import Builder
from jali.codegen.derivatives import ScaledSum, scaled, split_off_numbers
from jali.codegen.ir import Node
from jali.codegen.language import arithmetic, matrices
from jali.codegen.rewriting import reachable

MOST_WORDS = 256
MOST_LETTERS = 32


@dataclass(frozen=True)
class _Word:
    """A term of a sum: whether it is subtracted, the number in front of it (None: 1), and its letters."""

    minus: bool
    scale: Node | None
    letters: tuple[Node, ...]


def without_common_factors(nodes: Builder, total: Node) -> Node:
    """The sum with fewer products, where it has common factors; else itself."""
    known: dict[int, list[_Word]] = {}
    for node in _taken_apart(total):  # arguments first: long sums are no deep recursion
        _words(nodes, node, known)
    words = known[total.number]
    if len(words) < 2:
        return total
    found = _sum_of(nodes, words)
    return found if _products(found) < _products(total) else total


def _taken_apart(total: Node) -> list[Node]:
    """The sums, products and adjoints that a value is made of, arguments first, and the letters in them."""
    kinds = (
        arithmetic.add,
        arithmetic.sub,
        arithmetic.neg,
        arithmetic.mul,
        matrices.matmul,
        matrices.adjoint,
    )
    found: dict[int, Node] = {}
    waiting = [(total, False)]
    while waiting:
        node, done = waiting.pop()
        if done:
            found[node.number] = node
        elif node.number not in found:
            waiting.append((node, True))
            if any(kind.made(node) for kind in kinds):
                waiting += [(one, False) for one in node.args if len(one.type.shape) == 2]
    return list(found.values())


def _products(root: Node) -> int:
    return sum(matrices.matmul.made(node) for node in reachable([root]))


def _words(nodes: Builder, node: Node, known: dict[int, list[_Word]]) -> list[_Word]:
    """The words of a value: products of sums are multiplied out. A value with more or longer words than the limits is a letter of its own."""
    if node.number not in known:
        minus, scale, rest = split_off_numbers(nodes, None, node)
        found = _words_of_operands(nodes, rest, known)
        if not found or len(found) > MOST_WORDS or max(len(one.letters) for one in found) > MOST_LETTERS:
            found = [_Word(False, None, (rest,))]
        known[node.number] = [_times(nodes, word, minus, scale) for word in found]
    return known[node.number]


def _words_of_operands(nodes: Builder, node: Node, known: dict[int, list[_Word]]) -> list[_Word]:
    """The words of a sum, a product or an adjoint, by those of what it is made of; none of another value."""
    is_difference = arithmetic.sub.made(node)
    if is_difference or arithmetic.add.made(node):
        first, second = (_words(nodes, one, known) for one in node.args)
        return [*first, *(_times(nodes, word, is_difference, None) for word in second)]
    if matrices.adjoint.made(node):
        return [
            replace(word, letters=tuple(matrices.adjoint(nodes, one) for one in reversed(word.letters)))
            for word in _words(nodes, node.args[0], known)
        ]
    if not matrices.matmul.made(node):
        return []
    left, right = (
        _words(nodes, matrices.adjoint(nodes, one) if turned else one, known)
        for one, turned in zip(node.args, node.attrs, strict=True)
    )
    if len(left) * len(right) > MOST_WORDS:
        return []
    return [
        replace(_times(nodes, a, b.minus, b.scale), letters=(*a.letters, *b.letters))
        for a in left
        for b in right
    ]


def _times(nodes: Builder, word: _Word, minus: bool, scale: Node | None) -> _Word:
    if scale is None or word.scale is None:
        product = scale or word.scale
    else:
        product = arithmetic.mul(nodes, scale, word.scale)
    return replace(word, minus=word.minus != minus, scale=product)


def _sum_of(nodes: Builder, words: list[_Word]) -> Node:
    """The sum of words; what is equal at the ends of some is multiplied once."""
    while True:
        sharing: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for k, word in enumerate(words):
            if len(word.letters) > 1:
                for end in (0, -1):
                    sharing[end, word.letters[end].number].append(k)
        (end, _), chosen = max(sharing.items(), key=lambda one: len(one[1]), default=((0, 0), []))
        if len(chosen) < 2:
            return _added_up(nodes, words)
        own = [words[k] for k in chosen]
        scale = own[0].scale if all(word.scale is own[0].scale for word in own) else None
        letter = own[0].letters[end]
        inner = [
            _Word(
                word.minus,
                None if scale is word.scale else word.scale,
                word.letters[1:] if end == 0 else word.letters[:-1],
            )
            for word in own
        ]
        value = _sum_of(nodes, inner)
        both = (letter, value) if end == 0 else (value, letter)
        words = [word for k, word in enumerate(words) if k not in chosen[1:]]
        words[chosen[0]] = _Word(False, scale, both)


def _added_up(nodes: Builder, words: list[_Word]) -> Node:
    found = ScaledSum()
    for word in words:
        value = _product(nodes, word.letters)
        found.add(nodes, word.scale, arithmetic.neg(nodes, value) if word.minus else value)
    total = found.total(nodes)
    assert total is not None
    return scaled(nodes, total)


def _product(nodes: Builder, letters: tuple[Node, ...]) -> Node:
    found = letters[0]
    for letter in letters[1:]:
        found = matrices.matmul(nodes, found, letter)
    return found
