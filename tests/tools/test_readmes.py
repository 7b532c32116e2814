"""Each folder of the core and of the package has a README in which its files are found."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = 40
SOURCES = (".py", ".cpp", ".hpp", ".toml")
OWN = {"__init__.py", "README.md"}


def folders() -> list[Path]:
    found = {p.parent for top in ("core", "src/jali") for p in (ROOT / top).rglob("*") if p.suffix in SOURCES}
    return sorted(p.relative_to(ROOT) for p in found)


def sources(folder: Path) -> list[Path]:
    return sorted(p for p in (ROOT / folder).iterdir() if p.suffix in SOURCES and p.name not in OWN)


def quoted(readme: str) -> set[str]:
    """The last parts of all names between backquotes: `halos.cpp`, `shm*.cpp`, `local/`."""
    return {name.rstrip("/").split("/")[-1] for name in re.findall(r"`([^`\s]+)`", readme)}


def speaks_for(folder: Path) -> Path | None:
    """The README of a folder, or that of the one above which names it."""
    if (ROOT / folder / "README.md").is_file():
        return folder
    above = folder.parent
    if len(above.parts) > 1 and (owner := speaks_for(above)) is not None:
        text = (ROOT / owner / "README.md").read_text()
        below = folder.relative_to(owner).parts[0]
        return owner if f"`{below}/`" in text else None
    return None


@pytest.mark.parametrize("folder", folders(), ids=str)
def test_files_are_found_in_the_readme_of_their_folder(folder: Path) -> None:
    owner = speaks_for(folder)
    assert owner is not None, f"{folder} has no README, and that of a folder above does not name it"
    readme = (ROOT / owner / "README.md").read_text()
    assert len(readme.splitlines()) <= LINES
    if owner != folder:
        return  # a folder that the README names has what the README says of such folders
    names = quoted(readme)
    stems = {Path(name).stem for name in names if "." in name and not name.startswith(".")}
    missing = [
        p.name
        for p in sources(folder)
        if p.stem not in stems and not any(fnmatch.fnmatch(p.name, n) for n in names)
    ]
    assert not missing, f"no row of {owner}/README.md names {missing}"


@pytest.mark.parametrize(
    "readme",
    sorted(
        p.relative_to(ROOT)
        for t in ("core", "src/jali", "tests", "tools")
        for p in (ROOT / t).rglob("README.md")
    ),
    ids=str,
)
def test_what_the_table_of_a_readme_names_exists(readme: Path) -> None:
    """Files of the last column of the table."""
    folder = ROOT / readme.parent
    rows = [
        line
        for line in (ROOT / readme).read_text().splitlines()
        if line.startswith("|") and line.count("|") > 3
    ]
    for row in rows:
        for name in re.findall(r"`([^`\s]+)`", row.split("|")[-2]):
            if "." in name or name.endswith("/"):
                there = list(folder.glob(name.rstrip("/"))) or (folder / name).exists()
                assert there, f"{readme} names {name}, which is not there"
