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


@dataclass(frozen=True)
class _Word:
    """A term of a sum: whether it is subtracted, the number in front of it (None: 1), and its letters."""

    minus: bool
    scale: Node | None
    letters: tuple[Node, ...]


def without_common_factors(nodes: Builder, total: Node) -> Node:
    """The sum with fewer products, where it has common factors; else itself."""
    words = _words(nodes, total)
    if not 1 < len(words) <= MOST_WORDS:
        return total
    found = _sum_of(nodes, words)
    return found if _products(found) < _products(total) else total


def _products(root: Node) -> int:
    return sum(matrices.matmul.made(node) for node in reachable([root]))


def _words(nodes: Builder, node: Node) -> list[_Word]:
    """The words of a value: products of sums are multiplied out."""
    minus, scale, rest = split_off_numbers(nodes, None, node)
    is_difference = arithmetic.sub.made(rest)
    if is_difference or arithmetic.add.made(rest):
        first, second = (_words(nodes, one) for one in rest.args)
        found = [*first, *(_times(nodes, word, is_difference, None) for word in second)]
    elif matrices.matmul.made(rest):
        operands = [
            matrices.adjoint(nodes, one) if turned else one
            for one, turned in zip(rest.args, rest.attrs, strict=True)
        ]
        left, right = (_words(nodes, one) for one in operands)
        if len(left) * len(right) > MOST_WORDS:
            left, right = ([_Word(False, None, (one,))] for one in operands)
        found = [
            replace(_times(nodes, a, b.minus, b.scale), letters=(*a.letters, *b.letters))
            for a in left
            for b in right
        ]
    elif matrices.adjoint.made(rest):
        found = [
            replace(word, letters=tuple(matrices.adjoint(nodes, one) for one in reversed(word.letters)))
            for word in _words(nodes, rest.args[0])
        ]
    else:
        found = [_Word(False, None, (rest,))]
    return [_times(nodes, word, minus, scale) for word in found]


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
