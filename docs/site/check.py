"""What was built, read as a browser would: nothing is loaded from elsewhere, and no link is dead.

Covered: every page's links, pictures, scripts and styles, their files and anchors, and marks that would
make the theme's script fetch something. Not covered: links to other sites, which are not followed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# What the theme's script would load from a CDN when it finds it on a page.
FETCHED: Final = re.compile(r"^(mermaid|glightbox|pyodide)")
_STYLE_URL: Final = re.compile(r"url\(['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_FOLLOWED: Final = {"a", "area"}  # a reader's click, not a load
# rel of <link> that loads nothing
_MERE_LINKS: Final = {"canonical", "next", "prev", "alternate"}


@dataclass
class Page(HTMLParser):
    """One page: what it refers to, and where others may refer to."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.fetched += [each for each in found.get("class", "").split() if FETCHED.match(each)]
        if "href" in found:
            followed = tag in _FOLLOWED or (tag == "link" and found.get("rel") in _MERE_LINKS)
            (self.links if followed else self.loads).append(found["href"])
        self.loads += [found[name] for name in ("src", "poster", "data", "action") if found.get(name)]
        self.loads += [each.split()[0] for each in found.get("srcset", "").split(",") if each.strip()]
        if "style" in found:
            self.loads += _styles(found["style"])


def problems(site: Path) -> list[str]:
    """One line for each load from elsewhere, dead link, missing anchor and missing file of the built site."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: there are no pages"]
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where}: {name} would be fetched from elsewhere" for name in page.fetched]
        found += [f"{where}: loads {load}" for load in page.loads if _is_external(load)]
        found += [
            f"{where}: nothing is at {reference}"
            for reference in dict.fromkeys([*page.links, *page.loads])
            if not _is_external(reference) and not _leads_somewhere(reference, path, site, pages)
        ]
    for path in sorted(site.rglob("*.css")):
        urls = _styles(path.read_text("utf-8"))
        found += [f"{path.relative_to(site)}: loads {url}" for url in urls if _is_external(url)]
    return found


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


def _styles(text: str) -> list[str]:
    return [first or second for first, second in _STYLE_URL.findall(text)]


def _is_external(reference: str) -> bool:
    parts = urlsplit(reference)
    return bool(parts.netloc) or parts.scheme in {"http", "https", "mailto", "ftp"}


def _leads_somewhere(reference: str, page: Path, site: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(reference)
    if parts.scheme:  # data:
        return True
    target = page
    if parts.path:
        base = site if parts.path.startswith("/") else page.parent
        target = Path(os.path.normpath(base / unquote(parts.path).lstrip("/")))
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site):
        return False
    fragment = unquote(parts.fragment)
    return not fragment or target not in pages or fragment in pages[target].anchors
