"""Links lead somewhere when the documentation is read in a clone, file by file, and generated pages are as their source is now."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import parameters_page
import reference_pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)[^()]*\)")
ATTRIBUTE = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=[\"']([^\"']+)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
DOCSTRINGS = re.compile(r"^::: (\S+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


def links(page: Path) -> list[str]:
    without_code = re.sub(r"`[^`\n]*`", "", prose(page))
    found = LINK.findall(without_code) + ATTRIBUTE.findall(without_code)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to headings: lower case, no punctuation, hyphens for blanks, a number for the second of a name."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        shown = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading).lower()
        name = first = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        number = 0
        while name in found:
            number += 1
            name = f"{first}-{number}"
        found.add(name)
    return found


def dead(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_page_lead_somewhere_in_a_clone(page: Path) -> None:
    assert dead(page) == []


def test_dead_links_and_anchors_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        "# Here `and` now, twice\n# Here and now, twice\n```\n# not here\n```\n"
    )
    page = tmp_path / "page.md"
    good = "[a](other.md) [b](other.md#here-and-now-twice-1) [c](#title) [d](https://x.y/z) `[e](code)`"
    bad = "[a](none.md) ![b](none.png) [c](other.md#not-here) [`d`](#none) <img src='gone.svg'>"
    page.write_text(f"# Title\n{good}\n{bad}\n")
    assert dead(page) == ["none.md", "none.png", "other.md#not-here", "#none", "gone.svg"]


def clicks(roots: list[Path]) -> dict[Path, int]:
    """How many links lead from one of these pages to each page."""
    near = {root: 0 for root in roots}
    line = list(roots)
    for page in line:
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in near:
                near[target] = near[page] + 1
                line.append(target)
    return near


def test_every_page_is_two_clicks_from_where_readers_begin() -> None:
    near = clicks([ROOT / "README.md", ROOT / "docs" / "index.md"])
    assert not {str(page.relative_to(ROOT)) for page in PAGES if near.get(page, 3) > 2}


def test_clicks_are_counted(tmp_path: Path) -> None:
    for name, text in {
        "a": "[b](b.md#x)",
        "b": "[c](c.md) [a](a.md)",
        "c": "[d](d.md)",
        "d": "",
        "e": "[a](a.md)",
    }.items():
        (tmp_path / f"{name}.md").write_text(text)
    found = clicks([tmp_path / "a.md"])
    assert {page.stem: n for page, n in found.items()} == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_page_of_parameters_is_what_the_schema_says() -> None:
    assert parameters_page.PAGE.read_text() == parameters_page.text(), (
        "`python tools/parameters_page.py` writes it anew"
    )


@pytest.mark.parametrize("page", reference_pages.pages(), ids=lambda page: page.name)
def test_names_on_a_page_of_the_reference_are_those_of_the_sources(page: Path) -> None:
    assert page.read_text() == reference_pages.with_names(page.read_text()), (
        "`python tools/reference_pages.py` writes them anew"
    )


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda page: page.name
)
def test_a_reader_of_the_clone_finds_every_public_name_with_a_sentence(page: Path) -> None:
    """What only the site understands is taken away first, and so is what no viewer shows."""
    shown = re.sub(r"<!--.*?-->|^::: [^\n]*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for module in DOCSTRINGS.findall(page.read_text()):
        for name in getattr(importlib.import_module(module), "__all__", ()):
            if not name.startswith("_"):
                assert re.search(rf"^\| `{name}[(`].*\| \S.*\|$", shown, re.MULTILINE), f"{module}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_nothing_that_only_the_site_shows(page: Path) -> None:
    assert not re.search(r"^(?:!!!|\?\?\?|===) |^--8<--|\{\{ ?\w", prose(page), re.MULTILINE)
    named = page.parent.name == "reference"
    assert named or not DOCSTRINGS.search(page.read_text())


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda page: page.name
)
def test_page_that_shows_docstrings_links_to_their_source(page: Path) -> None:
    for module in DOCSTRINGS.findall(page.read_text()):
        source = Path("../../src", *module.split("."))
        folder = (page.parent / source).is_dir()
        assert str(source if folder else source.with_suffix(".py")) in links(page)
