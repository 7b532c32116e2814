"""Each example has a page in the gallery, with its picture, which is small, and the command that draws it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jali.examples import EXAMPLES

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST_BYTES = 100 << 10


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_a_page_with_its_picture(name: str) -> None:
    text = (DOCS / "gallery" / f"{name}.md").read_text()
    assert f"](../images/{name}.png)" in text
    assert re.search(rf"^jali example {name} .*--picture docs/images/{name}\.png", text, re.MULTILINE)
    assert f"src/jali/examples/{name}.py" in text
    assert f"]({name}.md)" in (DOCS / "gallery" / "index.md").read_text()
    assert (DOCS / "images" / f"{name}.png").stat().st_size < MOST_BYTES
