"""Rename identifiers, words of the prose and files, by checked-in maps: `rename.py apply NAME...`, `rename.py check COMMIT NAME...`.

A map, `tools/renames/NAME.toml`, has entries of four kinds, each with the folders or files for which it holds (`in`, default:
everywhere; `not_in`), and `keep`: phrases of the prose whose words stay ("under way"):

- `[[name]] old, new`: an identifier. It changes as a token of Python and C++ and as a whole string ("way"). One that no text can hold
  by chance (with an underscore, a digit or a capital inside) changes in comments, strings and pages as well.
- `[[string]] old, new`: a whole string that becomes something else than the identifier of that name: a key of JSON or TOML.
- `[[word]] old, new`: a word of comments, docstrings, strings that have a blank, and pages (not of their code); capitals are kept, and
  "a" becomes "an" where the new word needs it.
- `[[file]] old, new`: a file or a folder, moved by git; paths in texts change with it.

`apply` does what is not done yet in this checkout: entries whose `old` is nowhere left in their scope change nothing. It refuses a name
whose `new` is in one of the files already, unless the entry says `merge = true`. `check` compares with a commit: its syntax trees (Python)
and tokens (C++), with the map applied to them, are those of this checkout, for all files that the map alone has changed.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAPS = ROOT / "tools/renames"
PYTHON, CPP, PAGES = (".py", ".pyi"), (".cpp", ".hpp", ".h", ".in"), (".md", ".toml", ".yml", ".txt")
SELF = ("tools/rename.py", "tools/renames/", "tests/baselines/", "tests/tools/old_names.txt")

# comments; raw strings; strings; characters; identifiers
CPP_TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"(?P<mark>\w*)\(.*?\)(?P=mark)")|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<char>'(?:\\.|[^'\\\n])+')|(?P<name>[A-Za-z_]\w*)",
    re.DOTALL,
)
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Entry:
    old: str
    new: str
    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    merge: bool = False

    def holds_for(self, path: str) -> bool:
        return (not self.inside or path.startswith(self.inside)) and not path.startswith(
            self.outside or ("\0",)
        )

    @property
    def is_plain(self) -> bool:
        """Whether the name may be a word of a text."""
        return re.fullmatch(r"[A-Z]?[a-z]+_?", self.old) is not None


@dataclass
class Map:
    names: list[Entry] = field(default_factory=list)
    strings: list[Entry] = field(default_factory=list)
    words: list[Entry] = field(default_factory=list)
    files: list[Entry] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Map:
        said = tomllib.loads(path.read_text())

        def entries(kind: str) -> list[Entry]:
            return [
                Entry(
                    one["old"],
                    one["new"],
                    tuple(one.get("in", ())),
                    tuple(one.get("not_in", ())),
                    one.get("merge", False),
                )
                for one in said.get(kind, ())
            ]

        return cls(entries("name"), entries("string"), entries("word"), entries("file"), said.get("keep", []))

    def moved(self, path: str) -> str:
        return self.texts(path).moved(path)

    def texts(self, path: str) -> Texts:
        return Texts(
            {one.old: one.new for one in self.names if one.holds_for(path)},
            {one.old: one.new for one in self.names if one.holds_for(path) and not one.is_plain},
            {one.old: one.new for one in self.strings if one.holds_for(path)},
            {one.old: one.new for one in self.words if one.holds_for(path)},
            {one.old: one.new for one in self.files},
            tuple(self.keep),
        )


@dataclass(frozen=True)
class Texts:
    """What changes in one file."""

    names: dict[str, str]
    odd_names: dict[str, str]
    strings: dict[str, str]
    words: dict[str, str]
    files: dict[str, str]
    keep: tuple[str, ...] = ()

    def moved(self, path: str) -> str:
        for old, new in self.files.items():
            if path == old or path.startswith(f"{old}/"):
                path = new + path[len(old) :]
        return path

    def name(self, text: str) -> str:
        return self.names.get(text, text)

    def string(self, text: str) -> str:
        """The inside of a string."""
        if text in self.strings or text in self.names:
            return self.strings.get(text) or self.names[text]
        return self.prose(text) if re.search(r"\s", text) else self.odd(text)

    def odd(self, text: str) -> str:
        for old, new in self.files.items():
            if old in text:
                text = re.sub(rf"(?<![\w/.-]){re.escape(old)}(?![\w-])", new, text)
                text = re.sub(rf"(?<=\./){re.escape(old)}(?![\w-])", new, text)
        return WORD.sub(lambda m: self.odd_names.get(m[0], m[0]), text)

    def prose(self, text: str) -> str:
        text = self.odd(text)
        if not self.words:
            return text

        kept = [
            m.span()
            for phrase in self.keep
            for m in re.finditer(rf"\b{phrase}\b".replace(" ", r"[\s#/*]+"), text, re.IGNORECASE)
        ]

        def one(m: re.Match[str]) -> str:
            article, word = m[1] or "", m[2]
            if any(begin <= m.start(2) < end for begin, end in kept):
                return m[0]
            new = self.words.get(word.lower() if word[:1].isupper() and word[1:].islower() else word)
            if new is None:
                return m[0]
            if article:
                head = "an" if new[0] in "aeio" else "a"
                article = (head.capitalize() if article[0] == "A" else head) + article[
                    len(article.rstrip()) :
                ]
                if not article[-1].isspace():
                    article += m[1][len(m[1].rstrip()) :]
            return article + (new[0].upper() + new[1:] if word[0].isupper() else new)

        found = "|".join(sorted(map(re.escape, self.words), key=len, reverse=True))
        return re.sub(rf"(?<![\w`.])((?:[Aa]n?)\s+)?\b({found})\b(?![\w`(=])", one, text, flags=re.IGNORECASE)

    # --- files --------------------------------------------------------------------------------------------

    def python(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        begins = [0]
        for one in lines:
            begins.append(begins[-1] + len(one))
        out: list[str] = []
        at = 0
        for kind, old, (line, column), (last, behind), _ in tokenize.generate_tokens(
            io.StringIO(text).readline
        ):
            begin, end = begins[line - 1] + column, begins[last - 1] + behind
            new = old
            if kind == tokenize.NAME:
                new = self.name(old)
            elif kind == tokenize.COMMENT:
                new = self.prose(old)
            elif kind == tokenize.STRING:
                new = self.python_string(old)
            if new != old:
                out += [text[at:begin], new]
                at = end
        return "".join([*out, text[at:]])

    def python_string(self, token: str) -> str:
        head = re.match(r"[A-Za-z]*(\"\"\"|'''|\"|')", token)
        assert head is not None
        begin, end = len(head[0]), len(token) - len(head[1])
        inside = token[begin:end]
        if "f" in head[0].lower().split(head[1][0])[0]:
            return token[:begin] + self.f_string(inside) + token[end:]
        return token[:begin] + self.string(inside) + token[end:]

    def f_string(self, inside: str) -> str:
        """Texts as texts, expressions as code."""
        out, depth, piece = [], 0, ""

        def done() -> None:
            nonlocal piece
            if depth:
                # keys in quotes are strings, all else is code
                parts = re.split(r"('[^']*'|\"[^\"]*\")", piece)
                parts[::2] = [WORD.sub(lambda m: self.name(m[0]), one) for one in parts[::2]]
                parts[1::2] = [one[0] + self.string(one[1:-1]) + one[0] for one in parts[1::2]]
                out.append("".join(parts))
            else:
                out.append(self.prose(piece) if re.search(r"\s", inside) else self.odd(piece))
            piece = ""

        k = 0
        while k < len(inside):
            if not depth and inside[k : k + 2] in ("{{", "}}"):
                piece += inside[k : k + 2]
                k += 2
                continue
            if inside[k] == "{":
                if not depth:
                    done()
                depth += 1
                piece += "{"
            elif inside[k] == "}" and depth:
                piece += "}"
                if depth == 1:
                    done()
                depth -= 1
            else:
                piece += inside[k]
            k += 1
        done()
        return "".join(out)

    def cpp(self, text: str) -> str:
        def one(m: re.Match[str]) -> str:
            if m["name"]:
                return self.name(m[0])
            if m["comment"]:
                return self.prose(m[0])
            if m["raw"]:
                return self.cpp(m[0]) if not m[0].startswith('R"(') else 'R"(' + self.cpp(m[0][3:-2]) + ')"'
            if m["string"] and m[0].endswith(('.hpp"', '.h"')):  # of #include: as core/ sees it
                return '"' + self.moved(f"core/{m[0][1:-1]}").removeprefix("core/") + '"'
            if m["string"]:
                return '"' + self.string(m[0][1:-1]) + '"'
            return m[0]

        return CPP_TOKEN.sub(one, text)

    def page(self, text: str) -> str:
        """A page: prose outside of code; in code the names that no text has by chance, in fenced Python all."""
        out = []
        for part in re.split(r"(^ *```.*?^ *```[ \t]*$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL):
            fence = re.match(r" *```(py|python|cpp)\b", part)
            if fence:
                out.append(WORD.sub(lambda m: self.name(m[0]), self.odd(part)))
            elif part.startswith("`") and part[1:-1] in self.names:
                out.append(f"`{self.names[part[1:-1]]}`")
            elif part.lstrip().startswith("`"):
                out.append(self.odd(part))
            else:
                out.append(self.prose(part))
        return "".join(out)

    def of(self, path: str) -> Callable[[str], str]:
        if path.endswith(PYTHON):
            return self.python
        if path.endswith(CPP):
            return self.cpp
        return self.page if path.endswith(".md") else self.odd


# --- apply ----------------------------------------------------------------------------------------------------


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def paths(commit: str | None = None) -> list[str]:
    listed = git("ls-files") if commit is None else git("ls-tree", "-r", "--name-only", commit)
    known = (*PYTHON, *CPP, *PAGES, "Makefile", "CMakeLists.txt")
    return [path for path in listed.splitlines() if path.endswith(known) and not path.startswith(SELF)]


def identifiers(path: str, text: str) -> set[str]:
    if path.endswith(PYTHON):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {t.string for t in tokens if t.type == tokenize.NAME}
    if path.endswith(CPP):
        return {m[0] for m in CPP_TOKEN.finditer(text) if m["name"]}
    return set()


def clashes(changes: Map, found: dict[str, str]) -> Iterator[str]:
    for path, text in found.items():
        names = identifiers(path, text)
        for one in changes.names:
            if not one.merge and one.holds_for(path) and one.old in names and one.new in names:
                yield f"{path}: has {one.old} and {one.new}"


def apply(changes: Map, only: tuple[str, ...]) -> int:
    found = {path: (ROOT / path).read_text() for path in paths() if path.startswith(only)}
    wrong = sorted(set(clashes(changes, found)))
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    for path, text in found.items():
        new = changes.texts(path).of(path)(text)  # by where it is before files move
        if new != text:
            (ROOT / path).write_text(new)
            print(path)
    for one in changes.files:
        if (ROOT / one.old).exists():
            (ROOT / one.new).parent.mkdir(parents=True, exist_ok=True)
            git("mv", one.old, one.new)
    return 0


# --- check ----------------------------------------------------------------------------------------------------


class Stripped(ast.NodeTransformer):
    """Without docstrings; texts with blanks are one text."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and re.search(r"\s", node.value):
            return ast.copy_location(ast.Constant("text"), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        node.values = [one for one in node.values if not isinstance(one, ast.Constant)]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return ast.Pass()
        self.generic_visit(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        node.names.sort(key=lambda one: one.name)
        return node


def stripped(path: str, text: str) -> list[str]:
    """What a program is, without layout and prose: the order of imports and includes does not matter."""
    if path.endswith(PYTHON):
        tree = Stripped().visit(ast.parse(text))
        parts = [ast.dump(one) for one in tree.body]
        imports = sorted(one for one in parts if one.startswith(("Import(", "ImportFrom(")))
        return [*imports, *(one for one in parts if not one.startswith(("Import(", "ImportFrom(")))]
    includes = sorted(re.findall(r"^#include .*$", text, re.MULTILINE))
    rest = re.sub(r"^#include .*$", "", text, flags=re.MULTILINE)
    out = []
    at = 0
    for m in CPP_TOKEN.finditer(rest):
        out += rest[at : m.start()].split()
        if not m["comment"]:
            out.append('"text"' if (m["string"] or m["raw"]) and re.search(r"\s", m[0]) else m[0])
        at = m.end()
    text = " ".join([*out, *rest[at:].split()]).replace('"text" "text"', '"text"')
    return [*includes, re.sub(r'("text" ?)+', '"text"', text)]


def check(maps: list[Map], commit: str) -> int:
    wrong = []
    for path in paths(commit):
        if not path.endswith((*PYTHON, *CPP)):
            continue
        new, before = path, git("show", f"{commit}:{path}")
        for changes in maps:
            before = changes.texts(new).of(new)(before)
            new = changes.moved(new)
        if not (ROOT / new).exists():
            wrong.append(f"{path}: {new} is not there")
            continue
        if stripped(new, before) != stripped(new, (ROOT / new).read_text()):
            wrong.append(f"{new}: differs from {path} of {commit} by more than names")
    print("\n".join(wrong) or "the map explains every change")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("apply", "check"):
        command = commands.add_parser(what)
        if what == "check":
            command.add_argument("commit")
        if what == "apply":
            command.add_argument("--only", action="append", help="change nothing but paths that begin so")
        command.add_argument("maps", nargs="+", help="names of maps, in their order")
    arguments = parser.parse_args()
    maps = [Map.read(MAPS / f"{name}.toml") for name in arguments.maps]
    if arguments.what == "check":
        return check(maps, arguments.commit)
    return max(apply(one, tuple(arguments.only or [""])) for one in maps)


if __name__ == "__main__":
    sys.exit(main())
