"""Formulas of whole fields as text in postfix notation: `f0 n0 * f1 +` is f0 * n0 + f1.

Fields and numbers of a formula are f0, n0 and so on; `BINARY` take two values, all else one. What is computed of a formula alone, without
its fields, is here; `whole_fields` gives it values at a site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

BINARY = frozenset({"+", "-", "*", "/", "@", "**", "dot", "outer", "maximum", "minimum", "power", "atan2"})
"""What takes two values."""


def is_operand(token: str) -> bool:
    """Whether it is a field or a number."""
    return token[0] in "fn" and token[1:].isdigit()


def count_operands(formula: str) -> int:
    """Fields and numbers, each as often as it occurs."""
    return sum(map(is_operand, formula.split()))


_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(5)  # what binds more is larger
_LEVELS = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "@": _PRODUCT}
_METHODS = frozenset({"conj", "dagger", "trace", "transpose", "det", "inverse", "norm2"})


def as_written(formula: str, names: Mapping[str, str]) -> str:
    """The formula as Python writes it, with these names of its operands."""
    stack: list[tuple[str, int]] = []

    def taken(level: int) -> str:
        text, own = stack.pop()
        return text if own >= level else f"({text})"

    for token in formula.split():
        if is_operand(token):
            name = names[token]
            stack.append((name, _SIGN if name.startswith("-") else _ATOM))
        elif token in _LEVELS:
            level = _LEVELS[token]
            b, a = taken(level + 1), taken(level)
            stack.append((f"{a} {token} {b}", level))
        elif token == "**":
            b, a = taken(_SIGN), taken(_ATOM)
            stack.append((f"{a}**{b}", _POWER))
        elif token in ("dot", "outer"):
            b, a = taken(_SUM), taken(_ATOM)
            stack.append((f"{a}.{token}({b})", _ATOM))
        elif token in BINARY:
            b, a = taken(_SUM), taken(_SUM)
            stack.append((f"{token}({a}, {b})", _ATOM))
        elif token[:2] == "**":
            stack.append((f"{taken(_ATOM)}{token}", _POWER))
        elif token[0] in "%/":
            operator = token.rstrip("-0123456789")
            stack.append((f"{taken(_PRODUCT)} {operator} {token[len(operator) :]}", _PRODUCT))
        elif token in ("negative", "positive"):
            stack.append((f"{'-' if token == 'negative' else '+'}{taken(_SIGN)}", _SIGN))
        elif token in ("real", "imag"):
            stack.append((f"{taken(_ATOM)}.{token}", _ATOM))
        elif token in _METHODS:
            stack.append((f"{taken(_ATOM)}.{token}()", _ATOM))
        else:
            stack.append((f"{token}({taken(_SUM)})", _ATOM))
    return stack.pop()[0]


def power_of_factor(formula: str, is_phase: bool) -> int | None:
    """The power of a factor that a formula is multiplied by when its fields are by that factor, -1 or a phase; None where there is none."""
    stack: list[int | None] = []
    for token in formula.split():
        power: int | None
        if is_operand(token):
            power = int(token[0] == "f")
        elif token in BINARY:
            b, a = stack.pop(), stack.pop()
            rule = _POWERS_OF_TWO.get(token, _power_of_periodic)
            power = None if a is None or b is None else rule(a, b)
        else:
            a = stack.pop()
            if a and (token in _LINEAR or (token in ("real", "imag") and not is_phase)):
                power = a
            elif a and token in ("conj", "dagger", "inverse"):
                power = -a
            elif a and token.startswith("**"):
                power = a * int(token[2:])
            else:
                power = 0 if a == 0 or (a and token in ("abs", "norm2")) else None
        stack.append(power if power is None or is_phase else power % 2)
    return stack.pop()


_LINEAR = frozenset({"negative", "positive", "trace", "transpose", "sum"})


def _power_of_periodic(a: int, b: int) -> int | None:
    return 0 if a == b == 0 else None


_POWERS_OF_TWO: dict[str, Callable[[int, int], int | None]] = {
    "+": lambda a, b: a if a == b else None,
    "-": lambda a, b: a if a == b else None,
    "*": lambda a, b: a + b,
    "@": lambda a, b: a + b,
    "/": lambda a, b: a - b,
    "dot": lambda a, b: b - a,
    "outer": lambda a, b: a - b,
}
"""What becomes of the powers of two values; other operations have none, unless both values are periodic."""
