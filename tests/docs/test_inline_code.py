"""Inline code of the documentation, and code that it shows without running it, name what is there.

Names are looked up in the sources with comments and docstrings taken away: a word of code there is known. Dotted names of the package and
members of its public classes are imported, calls have keywords that some callable of that name takes, files and folders are there, commands
parse. Names of other people's programs are in names_of_others.txt, each as long as some page needs it.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jali.cli.main import COMMANDS, make_parser

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import reference_pages
import run_doc_blocks

pytestmark = pytest.mark.xdist_group("inline code")  # one process reads the sources

ROOT = Path(__file__).resolve().parents[2]
# Recipes name files and functions that their steps make.
PAGES = sorted(
    page
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    if page.parent.name != "recipes"
)
FENCED = re.compile(r"^( *)(```+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- names: .*?<!-- end of names -->", re.DOTALL)
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
NO_CODE = re.compile(r'""".*?"""|(?<![\w"\'])#(?!include|define).*?$|//.*?$', re.MULTILINE | re.DOTALL)
NAME = re.compile(r"(?<!\w)[^\W\d]\w*")
DOTTED = re.compile(r"(?<![\w./-])jali(?:\.[a-zA-Z_]\w*)+(?!\w)(?!\.toml)")
CALL = re.compile(r"(?<![\w.])((?:\w+\.)*)(\w+)\(([^()]*)\)")
KEYWORD = re.compile(r"(?<![\w.])(\w+) ?=(?!=)")
FOLDERS = ("src", "core", "benchmarks", "tools", "tests", "examples")
KINDS = {".py", ".cpp", ".hpp", ".h", ".toml", ".txt", ".f90", ".c"}
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)+/?|[\w*-]+\.(?:py|cpp|hpp)(?!\w)")

# Names of other programs and libraries, of mathematics, and of what readers have themselves.
OF_OTHERS = set((Path(__file__).parent / "names_of_others.txt").read_text().split())


def inline_code(page: Path) -> set[str]:
    """The spans of inline code of a page, but for those of tables that a tool writes."""
    text = FENCED.sub("", GENERATED.sub("", page.read_text()))
    return {" ".join(found[2].split()) for found in SPAN.finditer(text)}


@functools.cache
def sources() -> dict[Path, str]:
    """The sources with neither comments nor docstrings."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    return {p: NO_CODE.sub("", p.read_text(errors="replace")) for p in files if p.parent.name != "docs"}


@functools.cache
def known_names() -> set[str]:
    words = {name for text in sources().values() for name in re.findall(r"[^\W\d]\w*", text)}
    return words | {path.stem for path in sources()} | set(dir(builtins)) | OF_OTHERS


@functools.cache
def paths() -> str:
    """Every file and folder of the repository, one a line, that of a Python or C++ file also without its suffix."""
    files = [path for folder in (*FOLDERS, "docs") for path in (ROOT / folder).rglob("*")]
    return "\n".join(f"/{path.relative_to(ROOT)}" for path in files)


@functools.cache
def public_classes() -> dict[str, list[type]]:
    """By name, those of the modules that the reference shows, and of the core."""
    directives = re.compile(r"^::: (\S+)$", re.MULTILINE)
    names = {name for page in reference_pages.pages() for name in directives.findall(page.read_text())}
    found: dict[str, list[type]] = {}
    for module in [importlib.import_module(name) for name in (*sorted(names), "jali._core")]:
        for name, value in vars(module).items():
            if isinstance(value, type):
                found.setdefault(name, []).append(value)
    return found


@functools.cache
def takes(name: str) -> list[set[str] | None]:
    """The parameters of each callable of the package that has this name; None for one that takes any."""
    defined = re.compile(rf"^ *(?:def|class) {name}\b", re.MULTILINE)
    files = [
        path for path, text in sources().items() if path.is_relative_to(ROOT / "src") and defined.search(text)
    ]
    return [given for path in files if path.suffix == ".py" for given in callables(path).get(name, [])]


@functools.cache
def callables(path: Path) -> dict[str, list[set[str] | None]]:
    """What a file defines, by name, with the parameters of each."""
    found: dict[str, list[set[str] | None]] = {}
    rest: list[ast.AST] = [ast.parse(path.read_text())]
    for node in rest:
        inner = [n for n in getattr(node, "body", []) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        rest += inner
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(arguments(node))
        elif isinstance(node, ast.ClassDef):
            made = [n for n in inner if isinstance(n, ast.FunctionDef) and n.name in ("__init__", "__new__")]
            fields = {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
            found.setdefault(node.name, []).extend([arguments(one) for one in made] or [fields or None])
    return found


def arguments(function: ast.FunctionDef) -> set[str] | None:
    given = function.args
    return None if given.kwarg else {a.arg for a in [*given.posonlyargs, *given.args, *given.kwonlyargs]}


def resolve(dotted: str) -> Any:
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("jali"):
                return None  # needs a package that is not here
            continue
        return functools.reduce(getattr, parts[n:], found)
    raise ImportError(dotted)


def unknown(code: str, own: frozenset[str] = frozenset()) -> list[str]:
    """What a piece of code names that is not there; `own` are names that are its own."""
    found = []
    for dotted in DOTTED.findall(code):
        try:
            resolve(dotted)
        except (ImportError, AttributeError):
            found.append(dotted)
    for name, member in re.findall(r"(?<![\w.])([A-Z]\w+)\.(\w+)", code):
        classes = public_classes().get(name, [])
        if classes and member not in OF_OTHERS and not any(has(cls, member) for cls in classes):
            found.append(f"{name}.{member}")
    for before, name, given in CALL.findall(code):
        if before.startswith(("np.", "torch.", "cupy.", "dist.")) or name in own:
            continue
        for keyword in KEYWORD.findall(given):
            known = takes(name)
            if keyword not in OF_OTHERS and known and not any(one is None or keyword in one for one in known):
                found.append(f"{name}({keyword}=)")
    without_text = re.sub(r'"[^"]*"|\b[0-9a-f]{7}\b', "", PATH.sub("", code))  # neither texts nor commits
    known_here = known_names()
    return found + [name for name in NAME.findall(without_text) if name not in known_here and name not in own]


def has(cls: type, member: str) -> bool:
    """Whether objects of a class have it: of the class, of its annotations, or assigned in its file."""
    if hasattr(cls, member) or any(member in vars(c).get("__annotations__", ()) for c in cls.__mro__):
        return True
    source = sys.modules[cls.__module__].__file__ or ""
    return bool(re.search(rf"\bself\.{member}\b.* = ", sources().get(Path(source), "")))


def wrong_command(words: list[str]) -> str:
    """Why a command is none; "" where it is one, or another program's."""
    if words[0] == "make":
        targets = re.findall(r"^([\w% -]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
        known = {target for line in targets for target in line.split()}
        missing = [w for w in words[1:] if w not in known and not w.startswith("recipe-") and "=" not in w]
        return f"make has no {missing}" if missing else ""
    if words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        requested = [
            extra for word in words for one in re.findall(r"\[(.*)\]", word) for extra in one.split(",")
        ]
        return "" if set(requested) <= set(extras) else f"jali has no extras {set(requested) - set(extras)}"
    if words[0] == "python" and words[1:] and words[1].endswith(".py") and "/" in words[1]:
        return "" if (ROOT / words[1]).exists() else f"there is no {words[1]}"
    if words[0] != "jali" or not words[1:]:
        return ""
    if words[1] not in COMMANDS:
        return f"jali has no command {words[1]}"
    if not words[2:] or "..." in words:
        return ""
    parser: argparse.ArgumentParser = make_parser(words[1])
    try:
        parser.parse_args(words[1:])
    except SystemExit as stopped:  # argparse ends the process on a mistake, and after --help
        return "jali does not understand it" if stopped.code else ""
    return ""


def shell_commands(page: Path) -> list[str]:
    blocks = [block for block in run_doc_blocks.blocks(page.read_text()) if block.language == "bash"]
    return [command for block in blocks for _, command in run_doc_blocks.commands(block)]


def words_of(command: str) -> list[str]:
    """Of a command as one writes it: without settings before it, and what follows in the shell."""
    words = shlex.split(re.split(r"\s[>|]\s", command)[0])
    while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
        words = words[1:]
    return words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_inline_code_of_the_page_names_what_is_there(page: Path) -> None:
    own, wrong = names_of_blocks(page), {}
    for code in inline_code(page):
        if re.match(r"(?:jali|make|python|pip install) [\w\"'.]", code):
            faults = [fault] if (fault := wrong_command(words_of(code))) else []
        elif PATH.fullmatch(code):
            faults = [] if is_there(code) else [f"there is no {code}"]
        else:
            faults = unknown(code, own)
        if faults:
            wrong[code] = faults
    assert not wrong


def names_of_blocks(page: Path) -> frozenset[str]:
    """What the Python that a page shows gives names to."""
    found: set[str] = set()
    for block in run_doc_blocks.blocks(page.read_text()):
        if block.language in ("py", "python"):
            nodes = list(ast.walk(ast.parse(block.text)))
            found |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            found |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            found |= {
                a.asname or a.name
                for n in nodes
                if isinstance(n, ast.Import | ast.ImportFrom)
                for a in n.names
            }
    return frozenset(found)


def is_there(name: str) -> bool:
    """Whether a file or folder of the repository ends in this way, a Python or C++ file also without its suffix, or jali makes it."""
    if name.rstrip("/").rpartition("/")[2] in known_names():
        return True
    pattern = re.escape(name.rstrip("/")).replace(r"\*", r"[^/\n]*")
    return bool(re.search(rf"/{pattern}(?:\.\w+)?$", paths(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_the_page_shows_without_running_it_names_what_is_there(page: Path) -> None:
    text = page.read_text()
    shown = [block.text for block in run_doc_blocks.blocks(text) if block.language == "py"]
    used = {name for code in shown for name in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)}
    own = names_of_blocks(page) | used
    wrong = [
        fault for code in shown for fault in unknown(re.sub(r" *#.*$", "", code, flags=re.MULTILINE), own)
    ]
    assert not wrong


@pytest.mark.parametrize("command", sorted({c for page in PAGES for c in shell_commands(page)}))
def test_a_command_that_a_page_shows_exists(command: str) -> None:
    assert wrong_command(words_of(command)) == ""


def test_every_name_of_others_is_on_some_page() -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    assert not {name for name in OF_OTHERS if not re.search(rf"\b{name}\b", pages)}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("jali.gauge.nosuchname", "jali.gauge.nosuchname"),
        ("Lattice.nosuchname", "Lattice.nosuchname"),
        ("cgls(A, y, iterations_at_most=3)", "cgls(iterations_at_most=)"),
        ("x.nosuchname()", "nosuchname"),
        ("nosuchname", "nosuchname"),
    ],
)
def test_names_that_are_not_there_are_found(code: str, fault: str) -> None:
    assert fault in unknown(code)


@pytest.mark.parametrize(
    "command",
    [
        "jali rum x.toml",
        "jali run x.toml --outpt y",
        "make demos",
        'pip install "jali[mpih]"',
        "python tools/none.py",
    ],
)
def test_commands_that_do_not_exist_are_found(command: str) -> None:
    assert wrong_command(words_of(command))


def test_files_that_are_not_there_are_found() -> None:
    assert all(map(is_there, ("codegen/stages.py", "codegen/stages", "memory_*.hpp")))
    assert not is_there("codegen/stage" + "z.py")
