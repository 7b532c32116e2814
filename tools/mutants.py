"""Small wrong changes of the source ("mutants") and the tests that notice them: `python tools/mutants.py --check`.

    python tools/mutants.py --check [--area halos] [--number 3]   apply each mutant of the record again; its tests must fail
    python tools/mutants.py --find                                where each mutant of the record is in today's sources
    python tools/mutants.py --make [--area halos]                 make the record (it goes on where it was stopped)
    python tools/mutants.py --verify                              the tests that noticed a mutant pass without it

A mutant is one small change: a comparison (`<` and `<=`, `>` and `>=`), `+` and `-`, `and` and `or`, an integer by one, a negated
condition, a call statement that is dropped. A seed chooses among all places of a kind in the files of an area (codegen, halos,
collectives), never in a comment, a string, or a statement that throws. The record `tests/baselines/mutants.json` has, of each mutant,
the file, the function, and the ordinal of the token in the stripped stream of the function: its operators, numbers and control
keywords, without names, brackets, strings, comments and statements that throw, with one token `call` for each call statement. So a
mutant is found again after identifiers are renamed and lines are broken otherwise. A function that has another name or file is found
by `tests/baselines/renamed.toml` (its tables `[mutants.files]`, from old path to new one, and `[mutants.functions]`, from
"old path:old function" to the new name), or else by the digest of its stream, if just one function has this.

Mutants are applied to a checkout of their own (`--checkout`, else a clone in build/mutants, which gets an environment), never to this
one: `--make` to the commit of the record, the others to the last commit of this checkout. After a change in C++, ninja builds what it
touches. Then the tests of the area run: of each folder the three test files that speak most of the changed file, then seven more of each,
folder by folder, those first that take less time. The first failure ends the search, and so does a test that hangs. A folder that does not
end in `SECONDS` (more on a machine that has more to do than it has cores) says nothing: it is recorded as not finished. Several
processes make one record: `--share 0/2` and `--share 1/2`, each with a checkout of its own. A mutant that nothing notices is recorded
with `killed_by` null.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import collections
import contextlib
import fcntl
import functools
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path("tests/baselines/mutants.json")
RENAMED = Path("tests/baselines/renamed.toml")
SEED = 47
COUNT = 15  # mutants of an area
NEAREST, MOST = 3, 10  # test files of a folder that run before all others; that run at all
SECONDS = 120  # a folder of tests; a single test has three quarters of it
# What these make is read by people only, as errors are.
TEXTS = re.compile(r"describe|explain|text\b|text_|stage_name|refuse|__repr__|__str__")
KINDS = ("comparison", "sum", "logic", "constant", "condition", "call")
SWAPPED = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    **{"+": "-", "-": "+", "+=": "-=", "-=": "+=", "++": "--", "--": "++"},
    **{"and": "or", "or": "and", "&&": "||", "||": "&&"},
}
KIND_OF = {
    **dict.fromkeys(("<", "<=", ">", ">="), "comparison"),
    **dict.fromkeys(("+", "-", "+=", "-="), "sum"),
    **dict.fromkeys(("and", "or", "&&", "||"), "logic"),
}


@dataclass(frozen=True)
class Area:
    """Files, the words that a function must have (none: any function will do) and the folders of tests, the quickest first."""

    files: tuple[str, ...]
    words: dict[str, str] = field(default_factory=dict)  # by the beginning of a path: a pattern
    tests: tuple[str, ...] = ()


AREAS = {
    "codegen": Area(("src/jali/codegen/**/*.py",), {}, ("lattice", "language", "codegen", "identity")),
    "halos": Area(
        ("core/halo/*.cpp", "core/halo/*.hpp", "src/jali/lattice/*.py"),
        {"src/jali/lattice/": r"halo|ghost|stale"},
        ("any_ranks", "core", "lattice", "gpu"),
    ),
    "collectives": Area(
        (
            *(
                f"core/{folder}/*.{ending}"
                for folder in ("composition", "planning", "simulation", "proof", "running", "schedule")
                for ending in ("cpp", "hpp")
            ),
            "src/jali/planner/*.py",
        ),
        {},
        ("core", "collective", "gpu", "comm"),
    ),
}


def each(words: str) -> frozenset[str]:
    return frozenset(words.split())


class Token(NamedTuple):
    """One of a stripped stream: what it is, where it stands in the text, and what a mutant of it changes."""

    text: str
    start: int
    end: int
    kind: str = ""  # of the mutants it can have
    span: tuple[int, int] = (0, 0)  # of the condition, or of the call statement


@dataclass(frozen=True)
class Function:
    """A function at the level of a file or class, with the functions in it."""

    name: str
    text: str
    stream: tuple[Token, ...]
    digest: str


# --- C++ -----------------------------------------------------------------------------------------------------------------------

CPP_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*)
    | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'?[0-9A-Za-z_.])*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<operator><=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w])""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
CPP_CONTROL = each("if else for while do switch case default return break continue")
SPACED = each("< > <= >= == != + - * / % & | ^ << >> && || = += -= *= /= %= &= |= ^= <<= >>= ?")
OPENING, CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class Word(NamedTuple):
    """A token of a file as it is written."""

    sort: str
    text: str
    start: int
    end: int


def cpp_words(text: str) -> list[Word]:
    """Without comments and directives."""
    found = []
    for match in CPP_TOKEN.finditer(text):
        sort = match.lastgroup or ""
        if sort == "mark":
            sort = "string"
        if sort not in ("comment", "directive"):
            found.append(Word(sort, match.group(), match.start(), match.end()))
    return found


def partners(words: list[Word]) -> dict[int, int]:
    """From the index of each opening bracket to that of its closing one, and from minus this one back."""
    found, waiting = {}, []
    for k, word in enumerate(words):
        if word.sort == "operator" and word.text in OPENING:
            waiting.append(k)
        elif word.sort == "operator" and word.text in CLOSING and waiting:
            opening = waiting.pop()
            found[opening], found[-k] = k, opening
    return found


def cpp_functions(text: str) -> list[Function]:
    words = cpp_words(text)
    ends = partners(words)
    found: list[Function] = []
    names: dict[str, int] = {}

    def scope(begin: int, end: int, prefix: str) -> None:
        k = head = begin
        while k < end:
            word = words[k]
            if word.text in ("(", "[") and word.sort == "operator":
                k = ends.get(k, k)
            elif word.text == ";" or (
                word.text == ":" and words[k - 1].text in ("public", "private", "protected")
            ):
                head = k + 1
            elif word.text == "{" and word.sort == "operator":
                close = ends.get(k, end)
                what, name = head_of(words, head, k, ends)
                if what == "scope":
                    scope(k + 1, close, prefix + name)
                elif what == "function":
                    whole = number_of(prefix + name, names)
                    found.append(cpp_function(whole, text, words, head, k, close, ends))
                if what != "initialiser":
                    head = close + 1
                k = close
            k += 1

    scope(0, len(words), "")
    return found


def number_of(name: str, names: dict[str, int]) -> str:
    """Functions of one name in one file have numbers from the second one on."""
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}#{names[name]}"


def head_of(words: list[Word], head: int, brace: int, ends: dict[int, int]) -> tuple[str, str]:
    """What a brace at the level of a file or class opens: a scope, a function or an initialiser; and its name."""
    level = []  # indices of words outside all round brackets
    k = head
    while k < brace:
        level.append(k)
        k = ends.get(k, k) if words[k].text in ("(", "[", "{") else k
        k += 1
    texts = [words[k].text for k in level]
    if texts[:1] == ["template"]:  # its parameters
        depth, cut = 0, 1
        for cut in range(1, len(texts)):
            depth += {"<": 1, ">": -1, ">>": -2}.get(texts[cut], 0)
            if depth <= 0:
                break
        level, texts = level[cut + 1 :], texts[cut + 1 :]
    if not texts:
        return "initialiser", ""
    if "namespace" in texts or texts[0] == "extern":
        return "scope", ""
    if "(" not in texts:
        for word in ("class", "struct", "union", "enum"):
            if word in texts:
                names = [t for t in texts[texts.index(word) + 1 :] if t not in ("class", "struct", "final")]
                name = names[0] if names and re.match(r"[A-Za-z_]", names[0]) else ""
                return ("scope" if word != "enum" else "skip"), f"{name}::" if name else ""
        return "initialiser", ""
    first = texts.index("(")
    if "operator" in texts:
        first = texts.index("(", texts.index("operator") + 2)
    elif "=" in texts[:first] or ("=" in texts and words[brace - 1].text not in (")", "const", "noexcept")):
        return "initialiser", ""
    constructor = ":" in texts[first:]
    before = words[brace - 1]
    if constructor and before.sort == "name":  # a member that is initialised with braces
        return "initialiser", ""
    name = ""
    if texts[first - 1] == ">" and "<" in texts[:first]:  # arguments of a template
        first = first - 1 - texts[:first][::-1].index("<")
    for word in reversed(texts[:first]):
        part = re.fullmatch(r"[A-Za-z_]\w*|::|~", word) and not (name[:1].isalnum() and word.isidentifier())
        if not part and ("operator" not in texts or "operator" in name):
            break
        name = word + name
    return "function", name


def cpp_function(
    name: str, text: str, words: list[Word], head: int, brace: int, close: int, ends: dict[int, int]
) -> Function:
    stream: list[Token] = []
    wide: list[str] = []
    k = brace + 1
    while k < close:
        word = words[k]
        if word.text in ("throw", "static_assert"):
            while k < close and words[k].text != ";":
                k = ends.get(k, k) + 1 if words[k].text in OPENING else k + 1
                if k < close and words[k].text in CLOSING:  # an expression in another one
                    break
            continue
        if word.sort == "name" and begins_statement(words, k, ends):
            last = call_statement(words, k, ends)
            if last:
                stream.append(
                    Token("call", word.start, word.start, "call", (word.start, words[last].end - 1))
                )
                wide.append("call")
        made = cpp_token(text, words, k, ends)
        if made is not None:
            if made.kind in ("sum", "constant") and beside_string(words, k):
                made = made._replace(kind="")
            stream.append(made)
            wide.append(made.text)
        elif word.sort == "name" and wide[-1:] != ["_"]:
            wide.append("_")
        k += 1
    body = text[words[head].start : words[close].end]
    return Function(name, body, tuple(stream), digest_of(wide))


def beside_string(words: list[Word], k: int) -> bool:
    """True where the statement of a word has a string in it: numbers and sums may be of a text."""
    for step in (-1, 1):
        at = k
        while words[at].text not in (";", "{", "}"):
            if words[at].sort == "string":
                return True
            at += step
    return False


def digest_of(wide: list[str]) -> str:
    return hashlib.sha256(" ".join(wide).encode()).hexdigest()[:16]


def cpp_token(text: str, words: list[Word], k: int, ends: dict[int, int]) -> Token | None:
    """The token of a stripped stream that a word is, if any."""
    sort, word, start, end = words[k]
    if sort == "number":
        whole = re.fullmatch(r"(0|[1-9][0-9']*|0[xX][0-9a-fA-F']+)([uUlLzZ]*)", word)
        return Token(word, start, end, "constant" if whole else "")
    if sort == "name":
        if word in ("if", "while") and k + 1 < len(words):
            opening = k + 2 if words[k + 1].text == "constexpr" else k + 1
            if words[opening].text == "(":
                span = (words[opening].end, words[ends[opening]].start)
                plain = ";" not in text[span[0] : span[1]] and words[opening - 1].text != "constexpr"
                return Token(word, start, end, "condition" if plain else "", span)
        return Token(word, start, end) if word in CPP_CONTROL else None
    if sort != "operator":
        return None
    if word in ("++", "--", "!"):
        return Token(word, start, end)
    spaced = text[start - 1].isspace() and text[end : end + 1].isspace()
    if word in SPACED and spaced:
        return Token(word, start, end, KIND_OF.get(word, ""))
    if word == "-" and not text[end : end + 1].isspace():
        return Token(word, start, end)
    return None


def begins_statement(words: list[Word], k: int, ends: dict[int, int]) -> bool:
    before = words[k - 1].text
    if before in (";", "{", "}", "else"):
        return True
    if before != ")":
        return False
    opening = ends.get(-(k - 1), 0)
    return words[opening - 1].text in ("if", "for", "while", "constexpr")


def call_statement(words: list[Word], k: int, ends: dict[int, int]) -> int:
    """The index of the semicolon of a statement that is nothing but a call; else 0."""
    if words[k].text in CPP_CONTROL | {"delete", "goto", "using", "typedef", "co_await"}:
        return 0
    k, before = k + 1, words[k]
    while k < len(words):
        word = words[k]
        if word.text == ";":
            return k if before.text == ")" else 0
        if word.sort == "name":
            if before.text not in ("::", ".", "->", "<", ",", "template"):
                return 0
        elif word.text in ("(", "["):
            k = ends[k]
            word = words[k]
        elif word.text not in ("::", ".", "->", "<", ">", ","):
            return 0
        before = word
        k += 1
    return 0


# --- Python --------------------------------------------------------------------------------------------------------------------

PYTHON_CONTROL = each(
    "if elif else for while and or not in is return yield lambda try except finally with break continue pass "
    "True False None assert"
)
DROPPED = each("( ) [ ] { } , . : ; @ ->")


def python_functions(text: str) -> list[Function]:
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def offset_of(line: int, column: int) -> int:
        """From a line and a column in bytes."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    words = list(python_words(text, starts))
    found: list[Function] = []
    names: dict[str, int] = {}

    def scope(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                scope(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                whole = number_of(prefix + node.name, names)
                found.append(python_function(whole, text, node, words, offset_of))
            elif isinstance(node, ast.If | ast.Try):
                scope([*node.body, *node.orelse], prefix)

    scope(tree.body, "")
    return found


def python_words(text: str, starts: list[int]) -> Iterator[Word]:
    depth = 0
    sorts = {tokenize.NUMBER: "number", tokenize.NAME: "name", tokenize.OP: "operator"}
    sorts |= {tokenize.STRING: "string", tokenize.NEWLINE: "end"}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        depth += {"FSTRING_START": 1, "FSTRING_END": -1}.get(name, 0)  # from Python 3.12 on
        sort = "string" if name == "FSTRING_START" else sorts.get(token.type) if depth == 0 else None
        if sort is not None:
            start = starts[token.start[0] - 1] + token.start[1]
            yield Word(sort, token.string, start, start + len(token.string))


def python_function(name: str, text: str, node: Any, words: list[Word], offset_of: Any) -> Function:
    def span(part: Any) -> tuple[int, int]:
        return offset_of(part.lineno, part.col_offset), offset_of(part.end_lineno, part.end_col_offset)

    begin, end = span(node)
    raised, calls, conditions = [], {}, {}
    for part in ast.walk(node):
        if isinstance(part, ast.Raise):
            raised.append(span(part))
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            calls[span(part)[0]] = span(part)
        elif isinstance(part, ast.If | ast.While | ast.IfExp):
            conditions[span(part.test)[0]] = span(part.test)
    stream: list[Token] = []
    wide: list[str] = []
    starts = [word.start for word in words]
    for at in range(bisect.bisect_left(starts, begin), bisect.bisect_left(starts, end)):
        word = words[at]
        if any(a <= word.start < b for a, b in raised):
            continue
        if word.start in calls:
            stream.append(Token("call", word.start, word.start, "call", calls[word.start]))
            wide.append("call")
        made = None
        if word.sort == "number":
            made = Token(
                word.text, word.start, word.end, "constant" if re.fullmatch(r"\d+", word.text) else ""
            )
        elif word.sort == "operator" and word.text not in DROPPED:
            operand = at and words[at - 1]
            binary = operand and (operand.sort == "number" or operand.text in (")", "]", "}"))
            binary = binary or (
                operand and operand.sort == "name" and operand.text not in PYTHON_CONTROL - {"None"}
            )
            kind = KIND_OF.get(word.text, "")
            made = Token(word.text, word.start, word.end, kind if binary or kind != "sum" else "")
        elif word.sort == "name" and word.text in PYTHON_CONTROL:
            kind, where = KIND_OF.get(word.text, ""), (0, 0)
            following = min((s for s in conditions if s >= word.end), default=None)
            if word.text in ("if", "elif", "while") and following is not None:
                between = text[word.end : following].strip(" \n(")
                if not between:
                    kind, where = "condition", conditions[following]
            made = Token(word.text, word.start, word.end, kind, where)
        if made is not None:
            if made.kind in ("sum", "constant") and in_line_with_string(words, at):
                made = made._replace(kind="")
            stream.append(made)
            wide.append(made.text)
        elif word.sort == "name" and wide[-1:] != ["_"]:
            wide.append("_")
    return Function(name, text[begin:end], tuple(stream), digest_of(wide))


def in_line_with_string(words: list[Word], at: int) -> bool:
    for step in (-1, 1):
        k = at
        while 0 <= k < len(words) and words[k].sort != "end":
            if words[k].sort == "string":
                return True
            k += step
    return False


# --- Mutants -------------------------------------------------------------------------------------------------------------------


@functools.cache
def functions(path: Path) -> tuple[Function, ...]:
    text = path.read_text()
    return tuple(python_functions(text) if path.suffix == ".py" else cpp_functions(text))


def successor(number: str) -> str:
    match = re.fullmatch(r"(0[xX][0-9a-fA-F']+|[0-9']+)(\D*)", number)
    assert match is not None
    return str(int(match.group(1).replace("'", ""), 0) + 1) + match.group(2)


def mutated(path: Path, token: Token) -> str:
    """The text of a file with a mutant."""
    text = path.read_text()
    a, b = token.span
    if token.kind == "call":
        return text[:a] + ("pass" if path.suffix == ".py" else "") + text[b:]
    if token.kind == "condition":
        return text[:a] + ("not (" if path.suffix == ".py" else "!(") + text[a:b] + ")" + text[b:]
    return text[: token.start] + new_token(token) + text[token.end :]


def new_token(token: Token) -> str:
    if token.kind == "call":
        return ""
    if token.kind == "condition":
        return f"{token.text} not"
    return successor(token.text) if token.kind == "constant" else SWAPPED[token.text]


def files_of(area: Area, root: Path) -> list[Path]:
    return sorted({path for pattern in area.files for path in root.glob(pattern)})


def candidates(name: str, root: Path) -> Iterator[dict[str, Any]]:
    """Mutants of an area in the order of the seed, kinds in turn, until one kind has no more places."""
    of_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for site in sites(name, root):
        of_kind[site["kind"]].append(site)
    chance = random.Random(f"{SEED} {name}")
    for kind in KINDS:
        chance.shuffle(of_kind[kind])
    kinds = list(KINDS)
    chance.shuffle(kinds)
    while True:
        for kind in kinds:
            if not of_kind[kind]:
                return
            yield of_kind[kind].pop()


def sites(name: str, root: Path) -> Iterator[dict[str, Any]]:
    """Every place for a mutant in the files of an area."""
    area = AREAS[name]
    for path in files_of(area, root):
        relative = path.relative_to(root).as_posix()
        pattern = next((p for start, p in area.words.items() if relative.startswith(start)), "")
        for function in functions(path):
            named = function.name.strip("#0123456789")
            if (
                not named
                or not re.search(pattern, function.text)
                or TEXTS.search(f"{relative}:{function.name}")
            ):
                continue
            for ordinal, token in enumerate(function.stream):
                if token.kind:
                    yield {
                        "kind": token.kind,
                        "file": relative,
                        "function": function.name,
                        "ordinal": ordinal,
                        "old": token.text,
                        "new": new_token(token),
                        "digest": function.digest,
                    }


class NotFoundError(Exception):
    """A mutant of the record has no place in today's sources."""


def renamed(root: Path) -> dict[str, dict[str, str]]:
    path = root / RENAMED
    return tomllib.loads(path.read_text()).get("mutants", {}) if path.exists() else {}


def find(mutant: dict[str, Any], root: Path = ROOT) -> tuple[Path, Function, Token]:
    """Where a mutant of the record is today. Raises NotFoundError."""
    table = renamed(root)
    old_file, old_name = mutant["file"], mutant["function"]
    path = root / table.get("files", {}).get(old_file, old_file)
    name = table.get("functions", {}).get(f"{old_file}:{old_name}", old_name)
    here = [(path, f) for f in (functions(path) if path.exists() else ())]
    known = [
        (p, f) for p, f in here if f.name.split("#")[0] == name.split("#")[0] and f.digest == mutant["digest"]
    ]
    known = known[:1] or [(p, f) for p, f in here if f.name == name]
    if not known:
        known = [
            (other, function)
            for other in sources(root)
            for function in functions(other)
            if function.digest == mutant["digest"]
        ]
    where = f"{mutant['area']} {mutant['number']}: {old_file}: {old_name}"
    if len(known) != 1:
        raise NotFoundError(
            f"{where}: {len(known) or 'no'} functions of today have its name and file, or else its tokens: "
            f"{RENAMED} says which one it is"
        )
    path, function = known[0]
    ordinal = mutant["ordinal"]
    token = function.stream[ordinal] if ordinal < len(function.stream) else None
    if token is None or (token.text, token.kind) != (mutant["old"], mutant["kind"]):
        raise NotFoundError(
            f"{where}: token {ordinal} of {path.relative_to(root)}: {function.name} is "
            f"{token.text if token else 'not there'!r}, not {mutant['old']!r} ({mutant['kind']})"
        )
    return path, function, token


@functools.cache
def sources(root: Path) -> tuple[Path, ...]:
    folders = ("core", "src/jali")
    return tuple(sorted(p for f in folders for s in ("cpp", "hpp", "py") for p in (root / f).rglob(f"*.{s}")))


# --- Running -------------------------------------------------------------------------------------------------------------------


class Checkout:
    """A checkout with an environment, in which mutants run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / ".venv" / "bin" / "python"
        self.work = root / "build" / "mutants-work"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("JALI_")},
            "MPLBACKEND": "Agg",
            "TMPDIR": str(self.work / "tmp"),
            "JALI_CACHE_DIR": str(self.work / "cache"),
            "PATH": f"{root}/.venv/bin:{os.environ['PATH']}",
        }
        self._ticks = int(time.time())

    @property
    def build(self) -> Path:
        (file,) = self.root.glob("build/*/build.ninja")
        return file.parent

    def write(self, path: Path, text: str) -> None:
        """A time of its own for each text: bytecode is made anew."""
        path.write_text(text)
        self._ticks = max(self._ticks + 2, int(time.time()))
        os.utime(path, (self._ticks, self._ticks))

    def compile(self) -> str:
        """Builds the core and puts it in place; what the compiler says where it fails."""
        done = subprocess.run(
            ["ninja", "-C", str(self.build), "_core"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            return done.stdout
        (made,) = self.build.glob("_core.*.so")
        (installed,) = self.root.glob(".venv/lib/python3*/site-packages/jali")
        partial = installed / "part"
        shutil.copy2(made, partial)
        partial.replace(installed / made.name)
        return ""

    def object_of(self, path: Path) -> Path | None:
        """What a source is compiled to; None for a header."""
        made = self.build / "CMakeFiles" / "jali.dir" / f"{path.relative_to(self.root)}.o"
        return made if made.exists() else None

    def fresh_work(self) -> None:
        """Kernels that were compiled before any mutant are there, of other mutants none."""
        for name in ("tmp", "cache"):
            shutil.rmtree(self.work / name, ignore_errors=True)
        base = self.work / "base-cache"
        if base.exists():
            shutil.copytree(base, self.work / "cache")
        (self.work / "tmp").mkdir(parents=True)

    def keep_kernels(self) -> None:
        """Kernels that a mutant outside of codegen compiled are those of any other one: digests of their texts name them."""
        base = self.work / "base-cache"
        base.mkdir(parents=True, exist_ok=True)
        for made in (self.work / "cache").glob("*.so"):
            for file in (made.with_suffix(".cpp"), made):
                if file.exists() and not (base / file.name).exists():
                    shutil.copy2(file, base / file.name)

    def test(self, targets: list[str], seconds: float, single: float, log: Any) -> tuple[str, str, float]:
        """Runs tests until the first failure: "passed", "failed", "hung" (one test) or "late" (all), the test, seconds."""
        command = [str(self.python), "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += [
            "-m",
            "not full",
            "--timeout",
            str(int(single)),
            "--timeout-method",
            "thread",
            "-rfE",
            *targets,
        ]
        begin = time.monotonic()
        running = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,  # of this session, and so of the priority that this process has
        )
        late = False
        try:
            out, _ = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        if late:
            out, _ = running.communicate()
        took = time.monotonic() - begin
        print(out[-20000:], file=log, flush=True)
        named = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", out, re.MULTILINE)
        test = re.sub(r"\[.*", "", named[0]) if named else ""
        if late:
            return "late", "", took
        if not test:  # the process ended: its stack says where, the inner frames first
            stack = re.findall(r'File "[^"]*/(tests/[^"]*/test_\w+\.py)", line \d+,? in (\w+)', out)
            test = "::".join(stack[0]) if stack else ""
        if "+++ Timeout +++" in out:
            return "hung", test, took
        if running.returncode in (0, 5):  # all passed, or none was chosen
            return "passed", "", took
        return "failed", test or f"(status {running.returncode})", took


def prepared(folder: Path | None, commit: str) -> Checkout:
    """A checkout of a commit ("": whatever is there), without changes, with its core built."""
    root = (folder or ROOT / "build" / "mutants").resolve()
    if root == ROOT:
        raise SystemExit("mutants are not applied to the checkout of the tool: name another one (--checkout)")
    git = ["git", "-C", str(root)]
    if folder is None:
        if not root.exists():
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
        head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        subprocess.run([*git, "fetch", "--quiet"], check=True)
        subprocess.run([*git, "checkout", "--quiet", "--detach", commit or head.stdout.strip()], check=True)
        command = [sys.executable, "tools/environment.py", ".venv", "mpich", "test", "cuda"]
        subprocess.run(command, cwd=root, check=True)
    here = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    if not here.startswith(commit):
        raise SystemExit(f"the mutants of the record are those of commit {commit[:8]}; {root} has {here[:8]}")
    changes = subprocess.run([*git, "status", "--porcelain", "core", "src"], capture_output=True, text=True)
    if changes.stdout:
        raise SystemExit(f"{root} has changes: {changes.stdout}")
    made = Checkout(root)
    if trouble := made.compile():
        raise SystemExit(f"the core cannot be built without a mutant:\n{trouble}")
    return made


def ordered_targets(checkout: Checkout, folder: str, file: str) -> list[str]:
    """Test files of a folder, those first that speak most of the file's name and folder."""
    words = {w for w in re.split(r"[_/.]", file) if len(w) > 2} - {"core", "src", "jali", "cpp", "hpp"}
    stem = set(Path(file).stem.split("_"))

    def score(path: Path) -> tuple[float, str]:
        text = path.read_text().lower()
        counts = sum((4 if w in stem else 1) * min(text.count(w), 20) for w in words)
        return -counts - 100 * len(stem & set(path.stem.split("_"))), path.name

    found = sorted((checkout.root / "tests" / folder).rglob("test_*.py"), key=score)
    return [path.relative_to(checkout.root).as_posix() for path in found]


def killed_by(
    checkout: Checkout, mutant: dict[str, Any], folders: tuple[str, ...], log: Any
) -> dict[str, Any]:
    """What the folders of tests say of a mutant that is in place: the nearest files of each folder first, then the others."""
    files = {folder: ordered_targets(checkout, folder, mutant["file"]) for folder in folders}
    rounds = [(folder, targets[:NEAREST]) for folder, targets in files.items()]
    rounds += [(folder, targets[NEAREST:MOST]) for folder, targets in files.items() if targets[NEAREST:]]
    verdicts = collections.defaultdict(set)
    for folder, targets in rounds:
        checkout.fresh_work()
        slow = slowness()
        verdict, test, took = checkout.test(targets, SECONDS * slow, SECONDS * 0.75 * slow, log)
        print(f"  {folder} ({len(targets)} files): {verdict} {test} {took:.0f} s", flush=True)
        if verdict in ("passed", "failed") and mutant["area"] != "codegen":
            checkout.keep_kernels()
        if verdict in ("failed", "hung"):
            return {"killed_by": folder, "how": "test" if verdict == "failed" else "timeout", "test": test}
        verdicts[folder].add(verdict)
    late = [folder for folder in folders if "late" in verdicts[folder] or len(files[folder]) > MOST]
    return {"killed_by": None, "not_finished": late}


def slowness() -> float:
    """On a machine with more to do than it has cores, times are longer."""
    return min(8.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@contextlib.contextmanager
def applied(checkout: Checkout, mutant: dict[str, Any]) -> Iterator[str]:
    """With a mutant in place; yields "" or what keeps it from being one."""
    path, _, token = find(mutant, checkout.root)
    before, text, when = path.read_text(), mutated(path, token), path.stat()
    compiled = path.suffix != ".py"
    made = checkout.object_of(path) if compiled else None
    old_object = made.read_bytes() if made else b""
    checkout.write(path, text)
    try:
        why = ""
        if checkout.compile():  # also where Python changed: the core is that of the mutant before
            why = "does not compile"
        elif made and made.read_bytes() == old_object:
            why = "equivalent: the compiler makes the same object file"
        yield why
    finally:
        checkout.write(path, before)
        if made:  # it need not be compiled again
            os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
            made.write_bytes(old_object)
        functions.cache_clear()


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def save(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    partial.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[dict[str, Any]]:
    """A record, which other processes change as well; it is written at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        record = load(path)
        yield record
        save(path, record)


def make(checkout: Checkout, areas: list[str], output: Path, share: int, shares: int) -> None:
    """Makes the record, in `output`, until each area has its mutants; of several processes each takes its share of the candidates."""
    for name in areas:
        for candidate, mutant in enumerate(candidates(name, checkout.root), 1):
            record = load(output)
            mine = [m["candidate"] for m in record.get("mutants", []) if m["area"] == name]
            if sum(other < candidate for other in mine) >= COUNT:
                break
            gone = [m["candidate"] for m in record.get("replaced", []) if m["area"] == name]
            if candidate % shares != share or candidate in (*mine, *gone):
                continue
            whole = {"area": name, "number": 0, "candidate": candidate, **mutant}
            print(f"{time.strftime('%H:%M')} {whole}", flush=True)
            with applied(checkout, whole) as why, (checkout.work / "log").open("a") as log:
                print(f"== {whole}", file=log, flush=True)
                begin = time.monotonic()
                found = {"why": why} if why else killed_by(checkout, whole, AREAS[name].tests, log)
                took = round(time.monotonic() - begin)
            print(f"  {found}", flush=True)
            with locked(output) as record:
                record["seed"] = SEED
                if why:
                    del whole["number"]
                    record.setdefault("replaced", []).append({**whole, **found})
                else:
                    record.setdefault("mutants", []).append({**whole, **found, "seconds": took})
                    in_order(record)


def in_order(record: dict[str, Any]) -> None:
    """Mutants by area and candidate, with numbers from 0 on in each area, and no more than wanted."""
    kept: list[dict[str, Any]] = []
    for name in AREAS:
        mine = sorted((m for m in record["mutants"] if m["area"] == name), key=lambda m: m["candidate"])[
            :COUNT
        ]
        kept += [{**m, "number": number} for number, m in enumerate(mine)]
    record["mutants"] = kept


def find_all(chosen: list[dict[str, Any]]) -> int:
    missing = 0
    for mutant in chosen:
        try:
            path, function, token = find(mutant)
            line = path.read_text().count("\n", 0, token.start) + 1
            where = f"{path.relative_to(ROOT)}:{line}: {function.name}: {mutant['old']} -> {mutant['new'] or 'dropped'}"
            print(f"{mutant['area']} {mutant['number']}: {where} (killed by {mutant['killed_by']})")
        except NotFoundError as trouble:
            missing += 1
            print(f"NOT FOUND {trouble}")
    return int(missing > 0)


def check(checkout: Checkout, chosen: list[dict[str, Any]]) -> int:
    """Applies mutants again; those that were noticed have to be noticed by the same folder of tests."""
    missed = 0
    chosen = [mutant for mutant in chosen if mutant["killed_by"] is not None]
    for mutant in chosen:
        name = f"{mutant['area']} {mutant['number']}"
        with applied(checkout, mutant) as why, (checkout.work / "log").open("a") as log:
            found = {"killed_by": why} if why else killed_by(checkout, mutant, (mutant["killed_by"],), log)
        good = found["killed_by"] == mutant["killed_by"]
        missed += not good
        print(f"{name}: {'killed' if good else 'NOT KILLED'} by {mutant['killed_by']} {why}", flush=True)
    checkout.compile()
    print(f"{missed} of {len(chosen)} are not noticed any more" if missed else "all are noticed")
    return int(missed > 0)


def verify(checkout: Checkout, chosen: list[dict[str, Any]]) -> int:
    """Tests that noticed mutants pass without them."""
    tests = sorted({m["test"] for m in chosen if "::" in m.get("test", "")})
    checkout.compile()
    checkout.fresh_work()
    command = [
        str(checkout.python),
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not full",
        *tests,
    ]
    return subprocess.run(command, cwd=checkout.root, env=checkout.environment).returncode


def end(*_: object) -> None:
    raise SystemExit("ended by a signal")


def main() -> int:
    signal.signal(signal.SIGTERM, end)  # mutants are taken back
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    for word in ("check", "find", "make", "verify", "list"):
        what.add_argument(f"--{word}", action="store_true")
    parser.add_argument("--area", action="append", choices=tuple(AREAS))
    parser.add_argument("--number", type=int, action="append")
    parser.add_argument("--checkout", type=Path, help="where mutants are applied; it has an environment")
    parser.add_argument(
        "--share", default="0/1", metavar="K/N", help="of --make: every Nth candidate, from the Kth on"
    )
    parser.add_argument("--record", type=Path, default=ROOT / RECORD)
    options = parser.parse_args()
    areas = options.area or list(AREAS)
    record = load(options.record)
    if options.list:
        for name in areas:
            print(name, collections.Counter(m["kind"] for m in sites(name, ROOT)))
        return 0
    chosen = [
        m
        for m in record.get("mutants", [])
        if m["area"] in areas and (options.number is None or m["number"] in options.number)
    ]
    if not chosen and not options.make:
        raise SystemExit(f"{options.record} has no such mutants")
    if options.find:
        return find_all(chosen)
    checkout = prepared(options.checkout, record.get("commit", "") if options.make else "")
    if options.make:
        make(checkout, areas, options.record, *(int(word) for word in options.share.split("/")))
        return 0
    return verify(checkout, chosen) if options.verify else check(checkout, chosen)


if __name__ == "__main__":
    sys.exit(main())
