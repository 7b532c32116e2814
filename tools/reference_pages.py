"""Write the tables of names into the pages of docs/reference, from signatures and docstrings.

A page shows the docstrings of a module where it says `::: module`, which only the site understands. So that the page
can be read in a clone, a table of the module's public names stands before that line, between two comments. The pages
are kept in the repository; a test compares them with the sources.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
BEGIN, END = "<!-- names: written by tools/reference_pages.py -->", "<!-- end of names -->"
DIRECTIVE = re.compile(
    rf"(?:{re.escape(BEGIN)}.*?{re.escape(END)}\n\n)?^::: (\S+)$", re.MULTILINE | re.DOTALL
)
PLAIN = (bool, int, float, str, type(None))


def with_names(page: str) -> str:
    """A page with a table before each of its directives, as the sources are now."""
    return DIRECTIVE.sub(lambda found: f"{BEGIN}\n\n{table(found[1])}\n{END}\n\n::: {found[1]}", page)


def table(module: str) -> str:
    """The public names of a module: signatures and what the docstrings begin with."""
    lines = ["| name | what it is |", "|---|---|"]
    for name, value in public(importlib.import_module(module)):
        lines.append(row(name, value))
        if inspect.isclass(value):
            lines += [row(f"{name}.{member}", one) for member, one in members(value)]
    return "\n".join(lines) + "\n"


def public(module: Any) -> list[tuple[str, Any]]:
    """What a module lists, with functions that have names of Python's and are not listed for that; or what it defines and describes."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        pythons = [
            name
            for name in vars(module)
            if name in vars(builtins) and inspect.isfunction(getattr(module, name))
        ]
        return [(name, getattr(module, name)) for name in [*listed, *pythons] if not name.startswith("_")]
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__ and said(value)
    ]


def members(cls: type) -> list[tuple[str, Any]]:
    """Methods and properties that a class itself defines and describes; of those that are done in C++ what Python has."""
    kinds = staticmethod | classmethod
    return [
        (name, value)
        for name, found in vars(cls).items()
        for value in [found if isinstance(found, kinds) else inspect.unwrap(found)]
        if not name.startswith("_")
        and (isinstance(value, property | staticmethod | classmethod | type(row)) or of_core(value))
        and said(value)
    ]


def row(name: str, value: Any) -> str:
    """A line of the table."""
    cell = f"{name}{signature(value)}".replace("|", "\\|")
    return f"| `{cell}` | {said(value)} |"


def of_core(value: Any) -> tuple[str, str | None, tuple[Any, ...] | None] | None:
    """Of a function of the core: its definition, its docstring, and the defaults that the definition numbers."""
    found = getattr(value, "__nb_signature__", None)
    return found[0] if found else None


def signature_of_core(definition: str, defaults: tuple[Any, ...] | None) -> str:
    """Arguments of a method with their defaults, without types."""
    text = re.sub(r"\\(\d+)", lambda number: repr((defaults or ())[int(number[1])]), definition)
    arguments = ast.parse(f"{text}: ...").body[0].args  # type: ignore[attr-defined]
    arguments.args.pop(0)  # self
    for one in (*arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg):
        if one is not None:
            one.annotation = None
    return f"({ast.unparse(arguments)})"


def signature(value: Any) -> str:
    """Arguments with their defaults, without types; nothing for what is not called."""
    if core := of_core(value):
        return signature_of_core(core[0], core[2])
    if isinstance(value, staticmethod | classmethod):
        is_bound, value = isinstance(value, classmethod), value.__func__
    else:
        is_bound = (
            inspect.isfunction(value) and "." in value.__qualname__ and "<locals>" not in value.__qualname__
        )
    is_called = inspect.isroutine(value) or inspect.isclass(value)
    if not is_called or is_error(value) or is_enumeration(value) or getattr(value, "_is_protocol", False):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    if (
        inspect.isclass(value) and str(found) == "(*args, **kwargs)"
    ):  # some versions of Python say so of what cannot be made
        return "(...)"
    parameters = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    if is_bound:
        parameters = parameters[1:]
    parameters = [
        one if one.default is one.empty else one.replace(default=Shown(one.default)) for one in parameters
    ]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


def is_enumeration(value: Any) -> bool:
    """Whether this has members, which nobody makes."""
    return inspect.isclass(value) and issubclass(value, enum.Enum)


def is_error(value: Any) -> bool:
    """Whether this is an exception, whose arguments are nobody's business."""
    return inspect.isclass(value) and issubclass(value, BaseException)


class Shown:
    """A default as it is written, not as an interpreter prints it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, PLAIN) or (
            isinstance(value, tuple) and all(isinstance(one, PLAIN) for one in value)
        ):
            return repr(value)
        return getattr(value, "__name__", None) or "..."


def said(value: Any) -> str:
    """The first sentence of a docstring, of an object that of its class; of values of Python's own types, the value."""
    if isinstance(value, (*PLAIN, tuple, frozenset)):
        text = repr(sorted(value) if isinstance(value, frozenset) else value)
        if len(text) < 200 and " at 0x" not in text:
            return f"`{text}`"
        assert not isinstance(value, PLAIN)
        return f"{len(value)} of: {said(type(next(iter(value))))}"
    if isinstance(value, dict):
        return f"A table: {', '.join(f'`{name}`' for name in value)}."
    found = of_core(value)
    text = (found[1] if found else inspect.getdoc(value)) or ""
    if dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}("):
        return ""  # made by dataclass
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.]\.)\s+(?=[A-Z`(\"])", paragraph, maxsplit=1)[0]
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", sentence).replace("|", "\\|")


def pages() -> list[Path]:
    """The pages with directives that are written by hand otherwise."""
    return [
        page
        for page in sorted(FOLDER.glob("*.md"))
        if page.name != "environment.md" and DIRECTIVE.search(page.read_text())
    ]


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_names(page.read_text()))
