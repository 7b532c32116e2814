"""Look at the built site as a reader does: `python tools/check_site.py site` says what is broken, and ends with status 1 then.

- Links, anchors, pictures, style sheets and scripts lead to something in the site. Addresses elsewhere are not asked.
- No page shows what should have become something else: an include, a directive, a fence, a link in Markdown, an undefined reference,
  a formula in TeX, which a browser shows only with a script.
- Nothing is loaded from another host, by a page or by a style sheet, and the search works in a site that is opened as a file.
- From the first page, every page is `MOST_CLICKS` links away at most, by links in texts; navigation, which has all of them, does not count.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MOST_CLICKS = 2
FIRST = "index.html"
NOT_READ = {"404.html"}  # what a server shows where there is no page
UNRESOLVED = {
    "an include": re.compile(r"-- ?8 ?< ?--"),
    "a directive": re.compile(r"^ *(?:::: [\w.]+|!!! \w+|\?\?\? \w+)", re.MULTILINE),
    "a fence": re.compile(r"^ *(?:```|~~~)", re.MULTILINE),
    "a template": re.compile(r"\{\{ ?\w+|\{% ?\w+"),
    "a link in Markdown": re.compile(r"\[[^\]\n]+\]\([^)\s]+\)|\[[^\]\n]+\]\[[\w.]+\]"),
    "a formula in TeX": re.compile(r"\\[A-Za-z]{2,}|\$\$"),
    "a table in Markdown": re.compile(r"^ *\|(?: ?:?-+:? ?\|)+", re.MULTILINE),
}
# Of pages that are code or quote it only what cannot be code is looked for.
IN_CODE = ("an include",)
ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src"}
# What a browser fetches without being asked, by tag; of links only those of these kinds.
LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
LOADING_LINKS = {
    "stylesheet",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "icon",
    "manifest",
}
ELSEWHERE = re.compile(r"(?:^|,)\s*((?:https?:)?//\S+)")
IN_STYLES = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\s\"')]+)")
DRAWN_BY_OTHERS = {"mermaid"}  # classes for which the theme fetches a script from another host
SEARCH = ("search/search_index.json", "search/search_index.js")  # with a server, and as a file
NO_TEXT = {"script", "style", "head", "nav"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Page:
    """What of a page matters here: its anchors, its addresses (those in the text apart), what it loads from elsewhere, text and code."""

    anchors: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    in_text: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    text: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


class Reader(HTMLParser):
    """Reads a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.page.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        if tag not in VOID:
            self.open.append(tag)
        if tag != "link" or LOADING_LINKS & set(given.get("rel", "").split()):
            for name in LOADED.get(tag, ()):
                self.page.loaded.update(ELSEWHERE.findall(given.get(name, "")))
        self.page.loaded.update(IN_STYLES.findall(given.get("style", "")))
        self.page.loaded.update(
            f"a script for {name}" for name in DRAWN_BY_OTHERS & set(given.get("class", "").split())
        )
        address = given.get(ADDRESSES.get(tag, ""))
        if address:
            self.page.addresses.add(address)
            if tag == "a" and "article" in self.open and "headerlink" not in given.get("class", ""):
                self.page.in_text.add(address)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.page.loaded.update(IN_STYLES.findall(data))
        if not NO_TEXT & set(self.open):
            code = {"code", "pre"} & set(self.open)
            (self.page.code if code else self.page.text).append(data)


def read(file: Path) -> Page:
    reader = Reader()
    reader.feed(file.read_text())
    reader.close()
    return reader.page


def faults(site: Path) -> list[str]:
    """What is wrong with a site, a sentence for each."""
    pages = {file.relative_to(site).as_posix(): read(file) for file in sorted(site.rglob("*.html"))}
    if FIRST not in pages:
        return [f"{site} has no {FIRST}"]
    found, after = [], {}
    for name, page in pages.items():
        text, code = "".join(page.text), "".join(page.code)
        for what, pattern in UNRESOLVED.items():
            shown = pattern.search(text) or (pattern.search(code) if what in IN_CODE else None)
            if shown:
                found.append(f"{name}: {what} was left as it is: {shown[0].strip()}")
        found += [f"{name}: {address} is loaded from another host" for address in sorted(page.loaded)]
        for address in sorted(page.addresses):
            target, anchor = target_of(name, address)
            if target is None:
                continue
            if not (site / target).is_file():
                found.append(f"{name}: {address} leads to no file")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{name}: {address} leads to no place of the page")
        after[name] = {target for address in page.in_text if (target := target_of(name, address)[0])}
    for file in sorted(site.rglob("*.css")):
        loaded = sorted(set(IN_STYLES.findall(file.read_text())))
        found += [f"{file.relative_to(site)}: {address} is loaded from another host" for address in loaded]
    found += [
        f"the search has no {name}"
        for name in SEARCH
        if (site / "search").is_dir() and not (site / name).is_file()
    ]
    near = clicks(after)
    far = [
        f"{name} is {near.get(name, 'no number of')} clicks from {FIRST}"
        for name in pages
        if near.get(name, 99) > MOST_CLICKS
    ]
    return found + [sentence for sentence in far if sentence.split()[0] not in NOT_READ]


def target_of(name: str, address: str) -> tuple[str | None, str]:
    """The file of the site that an address on the page `name` means, and the anchor; None for what is elsewhere."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or name in NOT_READ:
        return None, ""
    path = unquote(parts.path)
    whole: list[str] = name.split("/")[:-1] if path else name.split("/")
    for step in path.split("/") if path else []:
        if step == "..":
            whole = whole[:-1] if whole else ["..", "beyond the site"]
        elif step not in ("", "."):
            whole.append(step)
    if path.endswith("/") or not whole or path in (".", ".."):
        whole.append("index.html")
    return "/".join(whole), unquote(parts.fragment)


def clicks(after: dict[str, set[str]]) -> dict[str, int]:
    """How many links lead from the first page to each page that can be reached."""
    near, line = {FIRST: 0}, [FIRST]
    for name in line:
        for target in after[name]:
            if target in after and target not in near:
                near[target] = near[name] + 1
                line.append(target)
    return near


def main() -> int:
    site = Path(sys.argv[1])
    found = faults(site)
    print(
        "\n".join(found) or f"{len(list(site.rglob('*.html')))} pages: all links lead somewhere",
        file=sys.stderr if found else sys.stdout,
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
