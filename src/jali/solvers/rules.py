"""Rules by which `jali.solve` chooses a solver: read from TOML, checked, and matched with the facts of a solve.

    version = 1

    [[rule]]
    operator = "Staggered"       # conditions, of which all must hold: words or lists of words,
    tolerance = "..1e-6"         # numbers, or ranges of them, ends included,
    few_bits = true              # true or false
    why = "the even-odd form of staggered quarks is positive"
    choices = [
        { method = "cg", form = "even-odd", inner = "fixed16" },
        { method = "cg", form = "even-odd" },
    ]

The first rule whose conditions hold, and of whose choices one is possible, is the one; the other choices go on where a solve fails, or has not converged in
the `maxiter` iterations that its choice may have. A file of the user comes before the rules of jali (`rules.toml`). Errors name file, line and key, and say what would be right.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jali.errors import CompileError, ParameterError
from jali.files import parse_toml, read_bytes, shown, value_shown
from jali.solvers.methods import FORMS, KINDS, METHODS, Candidate
from jali.solvers.reliable import RULES as UPDATES
from jali.tune import mode, tune_directory

VERSION = 1
MOST_BYTES = 1 << 22
OWN = Path(__file__).with_name("rules.toml")
OF_USER = "solvers.toml"  # in the folder of what tuning found

FACTS = {
    "operator": "classes of the operator",
    "kind": "what the operator is",
    "even_odd": "whether it has even-odd forms",
    "few_bits": "whether it can be had in other formats",
    "device": "where the vectors are",
    "precision": "the arithmetic of b",
    "tolerance": "the tolerance",
    "batch": "right-hand sides",
    "unknowns": "numbers in a right-hand side",
    "ranks": "ranks",
    "condition": "the condition number",
}
"""What rules ask for."""
WORDS = {
    "operator": (),
    "kind": tuple(KINDS),
    "device": ("host", "cuda", "hip"),
    "precision": ("float64", "float32"),
}
FLAGS = ("even_odd", "few_bits")
OF_CHOICE = ("method", "form", "inner", "update", "delta", "maxiter")


@dataclass(frozen=True)
class Condition:
    """Of one fact: words, true or false, or a range."""

    fact: str
    value: Any  # tuple of words, bool, or (least, most)
    text: str

    def holds(self, found: Any) -> bool:
        """Of what was found; None is not known, and holds nowhere."""
        if found is None:
            return False
        if isinstance(self.value, bool):
            return bool(found) is self.value
        if self.fact in WORDS:
            words = (found,) if isinstance(found, str) else found
            return any(word in self.value for word in words)
        least, most = self.value
        return bool(least <= found <= most)

    def __str__(self) -> str:
        return f"{self.fact} = {self.text}"


@dataclass(frozen=True)
class Rule:
    """A rule of a file: `number` counts from 1, `line` is that of its [[rule]]."""

    source: str
    number: int
    line: int
    conditions: tuple[Condition, ...]
    choices: tuple[Candidate, ...]
    why: str

    def __str__(self) -> str:
        return f"rule {self.number} of {self.source}, line {self.line}"


def user_file() -> Path | None:
    """The file of the user's own rules, which `jali tune solvers` writes; None where there is no cache directory, or JALI_TUNE is off."""
    if mode() == "off":
        return None
    try:
        return tune_directory() / OF_USER
    except CompileError:
        return None


def own_text() -> str:
    """The rules that come with jali."""
    return OWN.read_text(encoding="utf-8")


def text_of(path: Path) -> str:
    """The text of a file of rules. Raises ParameterError, FileFormatError and OSError, with its name."""
    try:
        return read_bytes(path, MOST_BYTES, "a file of rules").decode()
    except UnicodeDecodeError as error:
        raise ParameterError(
            f"the rules of solvers, {shown(str(path))}: byte {error.start} is no UTF-8"
        ) from None


def rules_in(text: str, source: str) -> list[Rule]:
    """The rules of a text. Raises ParameterError that names the source, the line and the key."""
    name = f"the rules of solvers, {shown(source)}"
    tables = parse_toml(text, name)
    if tables.get("version") != VERSION:
        raise ParameterError(
            f"{name}: the file begins with version = {VERSION}"
            + (f", not {value_shown(tables['version'])}" if "version" in tables else "")
        )
    if others := sorted(tables.keys() - {"version", "rule"}):
        raise ParameterError(
            f"{name}, line {_line_of(text, 0, others[0])}: {value_shown(others[0])} is unknown; a file has version and [[rule]]"
        )
    found = tables.get("rule", [])
    if not isinstance(found, list):
        raise ParameterError(f"{name}: a rule begins with [[rule]], in two brackets")
    return [_Reader(text, name, source, k + 1).rule(table) for k, table in enumerate(found)]


class _Reader:
    """One rule of a text."""

    def __init__(self, text: str, name: str, source: str, number: int):
        self.text, self.name, self.source, self.number = text, name, source, number

    def wrong(self, key: str, what: str) -> ParameterError:
        return ParameterError(
            f"{self.name}, line {_line_of(self.text, self.number, key)}, rule {self.number}: {what}"
        )

    def rule(self, table: Any) -> Rule:
        if not isinstance(table, dict):
            raise self.wrong("", "a rule is a table of conditions and choices")
        known = (*FACTS, "choices", "why")
        for key in table:
            if key not in known:
                raise self.wrong(key, _unknown(key, known, "a rule has conditions"))
        why = table.get("why", "")
        if not isinstance(why, str):
            raise self.wrong("why", f"why is a sentence, not {value_shown(why)}")
        conditions = tuple(
            self.condition(key, value) for key, value in table.items() if key not in ("choices", "why")
        )
        choices = table.get("choices")
        if not isinstance(choices, list) or not choices:
            raise self.wrong(
                "choices", 'choices are a list such as [{ method = "cgnr", form = "symmetric" }]'
            )
        return Rule(
            self.source,
            self.number,
            _line_of(self.text, self.number, ""),
            conditions,
            tuple(self.choice(one) for one in choices),
            why,
        )

    def condition(self, key: str, value: Any) -> Condition:
        text = _toml(value)
        if key in FLAGS:
            if not isinstance(value, bool):
                raise self.wrong(key, f"{key} is true or false, not {value_shown(value)}")
            return Condition(key, value, text)
        if key in WORDS:
            words = [value] if isinstance(value, str) else value
            if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
                raise self.wrong(key, f"{key} is a word or a list of words, not {value_shown(value)}")
            if WORDS[key] and (wrong := [word for word in words if word not in WORDS[key]]):
                raise self.wrong(key, _unknown(wrong[0], WORDS[key], f"{key} is"))
            return Condition(key, tuple(words), text)
        least, most = self.range(key, value)
        return Condition(key, (least, most), text)

    def range(self, key: str, value: Any) -> tuple[float, float]:
        """The ends of a number, or of "a..b", either of which may be left out."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value), float(value)
        parts = value.split("..") if isinstance(value, str) else []
        if len(parts) == 2 and any(parts):
            try:
                least = float(parts[0]) if parts[0].strip() else -math.inf
                most = float(parts[1]) if parts[1].strip() else math.inf
            except ValueError:
                least, most = math.inf, -math.inf
            if least <= most:
                return least, most
        raise self.wrong(
            key,
            f'{key} is a number or a range such as "1e-8..", "..1e-6" or "2..16", not {value_shown(value)}',
        )

    def choice(self, table: Any) -> Candidate:
        if not isinstance(table, dict):
            raise self.wrong(
                "choices", f'a choice is a table such as {{ method = "cgnr" }}, not {value_shown(table)}'
            )
        method = table.get("method")
        if method not in METHODS:
            raise self.wrong(
                "choices",
                _unknown(method, tuple(METHODS), "method is")
                if "method" in table
                else f"a choice has a method: {', '.join(METHODS)}",
            )
        known = (*OF_CHOICE, *METHODS[method].options)
        for key in table:
            if key not in known:
                raise self.wrong("choices", _unknown(key, known, f"a choice of {method} has"))
        try:
            return candidate(**table)
        except ParameterError as error:
            raise self.wrong("choices", str(error)) from None


def candidate(
    method: str,
    form: str = "full",
    inner: str = "",
    update: str | None = None,
    delta: float | None = None,
    maxiter: int = 0,
    **options: Any,
) -> Candidate:
    """A candidate of these words. Raises ParameterError."""
    if method not in METHODS:
        raise ParameterError(_unknown(method, tuple(METHODS), "method is"))
    if form not in FORMS:
        raise ParameterError(_unknown(form, tuple(FORMS), "form is"))
    if not isinstance(inner, str):
        raise ParameterError(
            f'inner is a format of few bits such as "fixed16" or "float32", not {value_shown(inner)}'
        )
    inner = "" if inner == "none" else inner
    if inner and not METHODS[method].inner:
        raise ParameterError(f"{method} has no recursion in few bits, so no inner")
    updates: dict[str, Any] = {}
    if update is not None:
        if update not in UPDATES:
            raise ParameterError(_unknown(update, tuple(UPDATES), "update is"))
        updates["update"] = update
    if delta is not None:
        if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
            raise ParameterError(f"delta is between 0 and 1, not {value_shown(delta)}")
        updates["delta"] = delta
    if updates and not inner:
        raise ParameterError(
            f"{' and '.join(updates)} is about a recursion in few bits, and there is no inner"
        )
    for name, value in options.items():
        if name not in METHODS[method].options:
            raise ParameterError(_unknown(name, METHODS[method].options, f"{method} has"))
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParameterError(f"{name} is a positive whole number, not {value_shown(value)}")
    if isinstance(maxiter, bool) or not isinstance(maxiter, int) or maxiter < 0:
        raise ParameterError(
            f"maxiter, after which the next choice goes on, is a whole number, not {value_shown(maxiter)}"
        )
    return Candidate(method, form, inner, options, updates, maxiter)


def rule_text(
    rule: Mapping[str, Any], choices: Sequence[Candidate], why: str, comments: Sequence[str]
) -> str:
    """A rule as TOML, with comments in front."""
    lines = [*(f"# {line}" for line in comments), "[[rule]]"]
    lines += [f"{key} = {_toml(value)}" for key, value in rule.items()]
    lines += [f"why = {_toml(why)}", "choices = ["]
    for one in choices:
        words = {"method": one.method, "form": one.form, "inner": one.inner, **one.updates, **one.options}
        words["maxiter"] = one.maxiter
        own = ", ".join(
            f"{key} = {_toml(value)}" for key, value in words.items() if value not in ("", "full", 0)
        )
        lines.append(f"    {{ {own} }},")
    return "\n".join([*lines, "]"]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unknown(word: Any, known: Sequence[str], begins: str) -> str:
    near = difflib.get_close_matches(str(word), known, 1)
    hint = f"; the nearest is {near[0]}" if near else ""
    return f"{value_shown(word)} is unknown; {begins} {', '.join(known) or 'nothing'}{hint}"


def _line_of(text: str, number: int, key: str) -> int:
    """The line of a key of rule `number`, of its [[rule]] where the key is not found; of rule 0 that of a key of the file."""
    found, seen = 1, 0
    for line, words in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*rule\s*\]\]", words):
            seen += 1
            if seen == number:
                found = line
        elif seen == number and key and re.match(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[]=.]""", words):
            return line
    return found
