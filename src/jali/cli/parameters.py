"""Reading, overriding and echoing parameter files.

A file is strict TOML: every key must be one of ``jali.cli.schema`` and every value of its type and in its
range. All problems of a file are reported at once, each with its line and with what would be right. The echo
contains every value, defaults included, with its meaning as a comment, and reads back to exactly the same
parameters.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from jali.cli.file_kinds import EMPTY, PARAMETERS, TEXT, TOML, refuse_other_kinds
from jali.cli.schema import (
    REQUIRED,
    ParameterSpec,
    RunParameters,
    find_inconsistencies,
    parameter_specs,
    said,
    section_docs,
    toml_value,
)
from jali.errors import ParameterError
from jali.files import parse_toml, read_bytes, shown

__all__ = ["load_parameters", "parse_parameters", "render_parameters", "resolve_key"]

MOST_BYTES = 1 << 20
"""A parameter file is written by hand."""

# A value and its source, for messages.
_Said = tuple[Any, str]


def load_parameters(path: str | Path, overrides: Iterable[str] = ()) -> RunParameters:
    """Parameters from a TOML file, then from ``key=value`` overrides.

    Raises:
        ParameterError: the file cannot be read, or see :func:`parse_parameters`.
    """
    refuse_other_kinds(path, [PARAMETERS, TOML, TEXT, EMPTY], "a parameter file (TOML) is needed")
    try:
        text = read_bytes(path, MOST_BYTES, "a parameter file").decode("utf-8")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ParameterError(f"cannot read the parameter file {shown(path)}: {reason}") from None
    except UnicodeDecodeError as error:
        raise ParameterError(
            f"{shown(path)} is not a parameter file: byte {error.start} is not UTF-8 text; TOML is needed"
        ) from None
    return parse_parameters(text, shown(path), overrides)


def parse_parameters(text: str, source: str = "parameters", overrides: Iterable[str] = ()) -> RunParameters:
    """Parameters from TOML text and ``key=value`` overrides, later ones winning.

    Args:
        text: TOML.
        source: name of the text in messages.
        overrides: ``section.key=value`` or, where only one section has the key, ``key=value``. The value is
            read as TOML; bare words are strings, and lists may be written 8,8,8,16.

    Raises:
        ParameterError: not TOML; unknown keys (with the nearest right one); wrong types or ranges; keys
            missing. All problems found are listed, one a line.
    """
    document = parse_toml(text, source)
    lines = text.splitlines()
    table = parameter_specs()
    problems: list[str] = []
    stated: dict[str, _Said] = {}
    _collect(document, table, lambda *path: _origin(source, lines, *path), stated, problems)
    for override in overrides:
        try:
            spec, value = _parse_override(override, table)
        except ParameterError as error:
            problems.append(str(error))
        else:
            stated[spec.path] = (value, f"--set {shown(override, 80)}")
    return _build(table, stated, source, problems)


def render_parameters(parameters: RunParameters) -> str:
    """The parameters as a TOML file with every value and, as comments, what it means and may be."""
    docs = section_docs()
    blocks = []
    for section in dataclasses.fields(RunParameters):
        lines = [f"# {docs[section.name]}", f"[{section.name}]"]
        for spec in parameter_specs():
            if spec.section == section.name:
                value = getattr(getattr(parameters, section.name), spec.name)
                comment = (
                    spec.doc if spec.expected() == "a string" else f"{spec.doc} Must be {spec.expected()}."
                )
                lines += textwrap.wrap(comment, 100, initial_indent="# ", subsequent_indent="#   ")
                lines.append(f"{spec.name} = {toml_value(value)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def resolve_key(name: str, table: Sequence[ParameterSpec] | None = None) -> ParameterSpec:
    """The parameter that ``section.key``, or ``key`` alone if only one section has it, means.

    Raises:
        ParameterError: no such key, or several.
    """
    table = parameter_specs() if table is None else table
    matches = [spec for spec in table if name in (spec.path, spec.name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        candidates = ", ".join(spec.path for spec in matches)
        raise ParameterError(f'"{shown(name, 80)}" is ambiguous; write one of {candidates}')
    inside = ", ".join(spec.path for spec in table if spec.section == name)
    if inside:
        raise ParameterError(f'"{shown(name, 80)}" is a section; write one of its parameters: {inside}')
    raise ParameterError(f'there is no parameter "{shown(name, 80)}"{_suggest_path(name, table)}')


def _collect(
    document: dict[str, Any],
    table: Sequence[ParameterSpec],
    origin: Any,
    stated: dict[str, _Said],
    problems: list[str],
) -> None:
    """Sort the values of a document into ``stated``; entries of no parameter are added to ``problems``."""
    sections = list(dict.fromkeys(spec.section for spec in table))
    for section, content in document.items():
        if section not in sections:
            problems.append(f"{origin(section)}: {_unknown_section(section, content, sections, table)}")
        elif not isinstance(content, dict):
            problems.append(
                f"{origin(section)}: {shown(section, 80)} = {said(content)} stands where a section is needed; "
                f"write [{section}]"
            )
        else:
            for name, value in content.items():
                if any(spec.path == f"{section}.{name}" for spec in table):
                    stated[f"{section}.{name}"] = (value, origin(section, name))
                else:
                    problems.append(f"{origin(section, name)}: {_unknown_key(section, name, table)}")


def _unknown_section(name: str, content: Any, sections: list[str], table: Sequence[ParameterSpec]) -> str:
    if isinstance(content, dict):
        near = difflib.get_close_matches(name.lower(), sections, 1, 0.5)
        if near:
            return f"there is no section [{shown(name, 80)}]; did you mean [{near[0]}]?"
        return f"there is no section [{shown(name, 80)}]; the sections are {', '.join(f'[{s}]' for s in sections)}"
    homes = [spec.section for spec in table if spec.name == name]
    if homes:
        return f'"{shown(name, 80)}" stands outside any section; it belongs under [{homes[0]}]'
    return f'"{shown(name, 80)}" stands outside any section and no section has it{_suggest_path(name, table)}'


def _unknown_key(section: str, name: str, table: Sequence[ParameterSpec]) -> str:
    homes = [spec.section for spec in table if spec.name == name]
    if homes:
        return f'"{shown(name, 80)}" is not a key of [{section}]; it belongs under [{homes[0]}]'
    own = [spec.name for spec in table if spec.section == section]
    near = difflib.get_close_matches(name.lower(), own, 1, 0.6)
    if near:
        return f'[{section}] has no key "{shown(name, 80)}"; did you mean "{near[0]}"?'
    elsewhere = _nearest(name, table)
    if elsewhere:
        return f'[{section}] has no key "{shown(name, 80)}"; did you mean "{elsewhere.name}" of [{elsewhere.section}]?'
    return f'[{section}] has no key "{shown(name, 80)}"; its keys are {", ".join(own)}'


def _nearest(name: str, table: Sequence[ParameterSpec]) -> ParameterSpec | None:
    key = name.lower().rpartition(".")[2]
    near = difflib.get_close_matches(key, [spec.name for spec in table], 1, 0.6)
    return next((spec for spec in table if near and spec.name == near[0]), None)


def _suggest_path(name: str, table: Sequence[ParameterSpec]) -> str:
    nearest = _nearest(name, table)
    if nearest:
        return f'; did you mean "{nearest.path}"?'
    return f"; the parameters are {', '.join(spec.path for spec in table)}"


def _parse_override(override: str, table: Sequence[ParameterSpec]) -> tuple[ParameterSpec, Any]:
    name, equals, text = override.partition("=")
    name, text = name.strip(), text.strip()
    where = f"--set {shown(override, 80)}"
    if not equals or not name:
        raise ParameterError(f"{where}: write --set key=value, for example --set beta=6.0")
    try:
        spec = resolve_key(name, table)
    except ParameterError as error:
        raise ParameterError(f"{where}: {error}") from None
    if spec.is_list and re.fullmatch(r"\d+(\s*,\s*\d+)*", text):
        text = f"[{text}]"
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        document = {}
    except (ValueError, RecursionError):
        raise ParameterError(
            f"{where}: a number with so many digits, or anything nested so deeply, is no value of {spec.path}; "
            f"it must be {spec.expected()}"
        ) from None
    # What is not exactly one TOML value is a bare word; so is anything unquoted where a string is wanted.
    value = document["value"] if list(document) == ["value"] else text
    return spec, text if spec.is_text and not isinstance(value, str) else value


def _build(
    table: Sequence[ParameterSpec], stated: dict[str, _Said], source: str, problems: list[str]
) -> RunParameters:
    values: dict[str, dict[str, Any]] = {spec.section: {} for spec in table}
    for spec in table:
        if spec.path in stated:
            value, origin = stated[spec.path]
            try:
                values[spec.section][spec.name] = _encodable(spec.check(value))
            except ValueError as error:
                problems.append(f"{origin}: {spec.name} = {error}")
        elif spec.default is REQUIRED:
            problems.append(
                f"{source}: {spec.name} is missing under [{spec.section}]; "
                f"for example {spec.name} = {toml_value(spec.example)}"
            )
    if not problems:
        hints = get_type_hints(RunParameters)
        parameters = RunParameters(**{section: hints[section](**keys) for section, keys in values.items()})
        for path, complaint in find_inconsistencies(parameters):
            origin = stated[path][1] if path in stated else source
            problems.append(f"{origin}: {path.partition('.')[2]} {complaint}")
        if not problems:
            return parameters
    raise ParameterError("\n".join(problems))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{value!r}; a parameter file holds UTF-8 text, which cannot say this") from None
    return value


def _origin(source: str, lines: list[str], section: str, name: str | None = None) -> str:
    line = _line_of(lines, section, name)
    return f"{source}, line {line}" if line else source


def _line_of(lines: list[str], section: str, name: str | None) -> int | None:
    """Line, from 1, where a key or section is written, however it is spelled; None where it was not found."""
    current = ""
    fallback = None
    for number, whole in enumerate(lines, 1):
        line = whole[:500]  # what stands further right is no key that we have
        header = re.match(r"\s*\[+\s*([^\]\s][^\]]*?)\s*\]", line)
        if header and not re.match(r"\s*[\w\"'.-]+\s*=", line):
            current = header[1].strip("\"'")
            if current == section or current.startswith(section + "."):
                fallback = fallback or number
                if name is not None and current == f"{section}.{name}":
                    return number
            continue
        assignment = re.match(r"\s*([\w\"'.-][\w\"'.\s-]*?)\s*=", line)
        if assignment:
            path = ".".join(filter(None, [current, re.sub(r"[\"'\s]", "", assignment[1])]))
            if name is None and path.split(".")[0] == section:
                fallback = fallback or number
            elif name is not None and (path + ".").startswith(f"{section}.{name}."):
                return number
            elif path == section:
                fallback = number
    return fallback
