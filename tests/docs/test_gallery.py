"""Each example has a page in the gallery, with its picture, which is small, and the command that draws it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from jali.examples import EXAMPLES

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import gallery_pictures

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_BYTES = 100 << 10
PROGRAMS = sorted(
    p.relative_to(ROOT / "examples")
    for kind in ("py", "toml", "cpp")
    for p in (ROOT / "examples").rglob(f"*.{kind}")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_a_page_with_its_picture(name: str) -> None:
    text = (DOCS / "gallery" / f"{name}.md").read_text()
    assert f"](../images/{name}.png)" in text
    assert re.search(rf"^jali example {name} .*--picture docs/images/{name}\.png", text, re.MULTILINE)
    assert f"src/jali/examples/{name}.py" in text
    assert f"]({name}.md)" in (DOCS / "gallery" / "index.md").read_text()
    assert (DOCS / "images" / f"{name}.png").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_of_examples_is_in_the_gallery_with_its_picture(program: Path) -> None:
    text = (DOCS / "gallery" / "scripts.md").read_text()
    picture = gallery_pictures.picture_of(str(program))
    (section,) = (one for one in re.split("^#+ ", text, flags=re.MULTILINE) if f"`examples/{program}`" in one)
    assert f"](../images/examples/{picture.name})" in section
    assert picture.stat().st_size < MOST_BYTES


def test_every_picture_of_examples_is_of_a_program() -> None:
    assert {str(program) for program in PROGRAMS} == set(gallery_pictures.PICTURES)
    drawn = {gallery_pictures.picture_of(str(program)) for program in PROGRAMS}
    assert drawn == set(gallery_pictures.IMAGES.glob("*"))


def test_a_picture_is_drawn_by_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gallery_pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(gallery_pictures, "ROOT", tmp_path.parent)
    monkeypatch.setattr(sys, "argv", ["gallery_pictures.py", "cpp/three_roots.cpp"])
    assert gallery_pictures.main() == 0
    assert (tmp_path / "three_roots.png").read_bytes().startswith(b"\x89PNG")
