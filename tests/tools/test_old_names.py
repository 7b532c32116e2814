"""Names that were given up do not come back: those of the maps of renames, wherever they held for the whole project."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import rename

ROOT = rename.ROOT
FOLDERS = ("benchmarks", "core", "docs", "examples", "src", "tests", "tools")
# what says which names are old
SAYS_SO = ("tools/rename.py", "tools/renames", "tests/baselines", "CHANGELOG.md")


def texts() -> dict[str, str]:
    known = (*rename.PYTHON, *rename.CPP, *rename.PAGES)
    files = [
        *ROOT.glob("*.md"),
        *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in known),
    ]
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files if path.is_file()}
    return {path: text for path, text in found.items() if not path.startswith(SAYS_SO)}


def maps() -> list[rename.Map]:
    return [rename.Map.read(path) for path in sorted((ROOT / "tools/renames").glob("*.toml"))]


def test_no_identifier_has_an_old_name() -> None:
    """Names that are words of texts, and those that are old in some folders only, cannot be told from honest ones."""
    entries = [one for each in maps() for one in each.names]
    new = {one.new for one in entries}
    old = {one.old: one.new for one in entries if not one.is_plain and not one.inside and not one.outside}
    old = {name: now for name, now in old.items() if name not in new}
    assert len(old) > 25
    found = [
        f"{path}: {name} is called {old[name]}"
        for path, text in texts().items()
        for name in sorted(set(rename.WORD.findall(text)) & old.keys())
    ]
    assert found == []


def test_no_file_has_an_old_name() -> None:
    new = {one.new for each in maps() for one in each.files}
    old = [one.old for each in maps() for one in each.files if one.old not in new]
    assert [path for path in old if (ROOT / path).exists()] == []


def test_an_old_name_would_be_found() -> None:
    name = "Collective" + "Way"
    assert set(rename.WORD.findall(f"struct {name} {{")) & {one.old for each in maps() for one in each.names}
