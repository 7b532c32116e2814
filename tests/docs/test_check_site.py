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
        (r"<p>S = \frac{1}{2} x</p>", "a formula in TeX was left"),
        ("<p>$$ x $$</p>", "a formula in TeX was left"),
        ('<script src="https://x.y/z.js"></script>', "https://x.y/z.js is loaded from another host"),
        ('<link rel="stylesheet" href="//x.y/z.css">', "//x.y/z.css is loaded from another host"),
        ('<link href="https://x.y" rel="preconnect">', "https://x.y is loaded from another host"),
        ('<img srcset="../p.png 1x, https://x.y/p.png 2x">', "https://x.y/p.png is loaded from another host"),
        ("<style>@import 'https://x.y/z.css';</style>", "https://x.y/z.css is loaded from another host"),
        (
            '<p style="background: url(http://x.y/p.png)">x</p>',
            "http://x.y/p.png is loaded from another host",
        ),
        ('<iframe src="https://x.y/"></iframe>', "https://x.y/ is loaded from another host"),
        ('<pre class="mermaid">x</pre>', "a script for mermaid is loaded from another host"),
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


def test_style_sheets_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    folder = site(tmp_path)
    (folder / "here.css").write_text(
        "@import 'b.css'; a { mask: url(\"data:image/svg+xml,<svg xmlns='http://www.w3.org/'/>\") }"
    )
    (folder / "there.css").write_text("@font-face { src: url(https://x.y/f.woff2) }")
    found = [one for one in check_site.faults(folder) if "another host" in one]
    assert found == ["there.css: https://x.y/f.woff2 is loaded from another host"]


def test_links_to_elsewhere_load_nothing(tmp_path: Path) -> None:
    page = '<link rel="canonical" href="https://x.y/"><article><a href="https://x.y/">z</a></article>'
    assert not [one for one in check_site.faults(site(tmp_path, **{"a/far": page})) if "another host" in one]


def test_a_search_that_needs_a_server_is_found(tmp_path: Path) -> None:
    folder = site(tmp_path)
    (folder / "search").mkdir()
    (folder / "search" / "search_index.json").write_text("{}")
    assert "the search has no search/search_index.js" in check_site.faults(folder)
