"""`tools/check_site.py`, which `make docs` runs on the built site, finds what a reader would stumble over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_site

FIRST = '<nav><a href="far.html">far</a></nav><article><h1 id="top">T</h1><a href="a/page.html#here">a</a></article>'
SECOND = '<article><p id="here">b</p><a href="../index.html">up</a> <a href="far.html">c</a><img src="../p.png"></article>'


def site(folder: Path, **pages: str) -> Path:
    (folder / "a").mkdir()
    (folder / "p.png").write_bytes(b"")
    texts = {"index": FIRST, "a/page": SECOND, "a/far": "<article>end</article>", **pages}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(f"<html><body>{text}</body></html>")
    return folder


def test_a_site_without_a_fault_has_none(tmp_path: Path) -> None:
    first = FIRST.replace("far.html", "a/far.html")
    elsewhere = (
        '<article><a href="https://x.y/z">z</a> <a href=".">x</a> <a href="#q"><b id="q">y</b></a></article>'
    )
    assert check_site.faults(site(tmp_path, index=first + elsewhere)) == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ('<a href="none.html">x</a>', "none.html leads to no file"),
        ('<a href="far.html#none">x</a>', "far.html#none leads to no place"),
        ('<a href="#none">x</a>', "#none leads to no place"),
        ('<img src="none.png">', "none.png leads to no file"),
        ('<a href="../../index.html">x</a>', "leads to no file"),
        ('<pre><code>--8<-- "file.py"</code></pre>'.replace("<-", "&lt;-"), "an include was left"),
        ('<pre><code>--8 &lt; --"file.py"</code></pre>', "an include was left"),
        ("<p>::: jali.gauge</p>", "a directive was left"),
        ("<p>```python</p>", "a fence was left"),
        ("<p>see [the guide](guide.md)</p>", "a link in Markdown was left"),
        ("<p>see [the name][jali.gauge]</p>", "a link in Markdown was left"),
        ("<p>| a | b |\n|---|---|\n| 1 | 2 |</p>", "a table in Markdown was left"),
        ("<p>{{ name }}</p>", "a template was left"),
    ],
)
def test_what_is_broken_is_found(broken: str, fault: str, tmp_path: Path) -> None:
    found = check_site.faults(site(tmp_path, **{"a/far": f"<article>{broken}</article>"}))
    assert [one for one in found if one.startswith("a/far.html") and fault in one], found


def test_code_may_look_like_markdown(tmp_path: Path) -> None:
    code = "<article><code>[f](x) {{ y }}</code><pre>::: z\n```</pre></article>"
    assert not [one for one in check_site.faults(site(tmp_path, **{"a/far": code})) if "was left" in one]


def test_clicks_are_those_of_texts_and_not_of_the_navigation(tmp_path: Path) -> None:
    """The first page's navigation leads to all pages; its text does not."""
    third = '<article><a href="last.html">d</a></article>'
    found = check_site.faults(site(tmp_path, **{"a/far": third, "a/last": "", "alone": ""}))
    far = [one for one in found if "clicks" in one]
    assert far == [
        "a/last.html is 3 clicks from index.html",
        "alone.html is no number of clicks from index.html",
    ]


def test_a_folder_that_is_no_site_is_a_fault(tmp_path: Path) -> None:
    assert check_site.faults(tmp_path) == [f"{tmp_path} has no index.html"]
