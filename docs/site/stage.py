"""All pages of the site in one folder: those of docs/, those made from the code, and files that they link to.

A page of docs/ links to files of the repository, such as a deploy file. The site has such a file as a page of
its own below `files/`, so that every link of the site stays in the site.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.site import commands, decisions, http_api, settings

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
GENERATED: Final[dict[str, Callable[[], str]]] = {
    "reference/settings.md": settings.page,
    "reference/commands.md": commands.page,
    "reference/http.md": http_api.page,
    "decisions/index.md": decisions.page,
}
LINK: Final = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
_FENCES: Final = re.compile(r"^```.*?^```$", re.M | re.S)
_LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".proto": "protobuf", ".json": "json"}
_LISTED: Final = 200  # of a linked folder, at most so many files


def stage(folder: Path) -> list[str]:
    """Write all pages into `folder`, which is made anew. Returns one line for each link to nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    sources = {
        str(path.relative_to(DOCS)): path
        for path in DOCS.rglob("*")
        if path.is_file()
        and path.suffix in {".md", ".svg", ".png", ".css"}
        and "site" not in path.relative_to(DOCS).parts
    }
    texts = {name: make() for name, make in GENERATED.items()}
    waiting = [*sources, *texts]
    found: list[str] = []
    while waiting:
        name = waiting.pop()
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = sources.get(name)
        if source is not None and source.suffix in {".svg", ".png", ".css"}:
            shutil.copyfile(source, target)
            continue
        if source is None or name in texts:
            text, place = texts[name], DOCS / name
        else:
            text, place = _page_of(source), source

        def moved(link: re.Match[str], name: str = name, place: Path = place) -> str:
            destination = _destination(link[1], place)
            if destination is None:
                return link[1]
            at, file = destination
            if at not in sources and at not in texts:
                if not file.exists():
                    found.append(f"{place.relative_to(ROOT)}: nothing is at {link[1]}")
                    return link[1]
                sources[at] = file
                waiting.append(at)
            return os.path.relpath(at, Path(name).parent)

        is_prose = source is None or source.suffix == ".md"
        target.write_text(_outside_of_code(text, moved) if is_prose else text, "utf-8")
    return sorted(found)


def _destination(link: str, place: Path) -> tuple[str, Path] | None:
    """Where the site has what a link on the page at `place` leads to, and its file; none: another site."""
    if re.match(r"[a-z]+:", link):
        return None
    file = Path(os.path.normpath(place.parent / link))
    if file.is_relative_to(DOCS) and "site" not in file.relative_to(DOCS).parts:
        inside = str(file.relative_to(DOCS))
        return (f"{inside}/index.md" if file.is_dir() else inside), file
    inside = str(file.relative_to(ROOT))
    return (f"files/{inside}" if inside.endswith(".md") else f"files/{inside}.md"), file


def _page_of(source: Path) -> str:
    if source.is_dir():
        files = sorted(
            path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
        lines = [f"- `{path.relative_to(source)}`" for path in files[:_LISTED]]
        return f"# `{source.relative_to(ROOT)}/`\n\n" + "\n".join(lines) + "\n"
    text = source.read_text("utf-8")
    if source.suffix == ".md":
        return re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)  # a model card's front matter
    language = _LANGUAGES.get(source.suffix, "text")
    return f"# `{source.relative_to(ROOT)}`\n\n````{language}\n{text.rstrip()}\n````\n"


def _outside_of_code(text: str, moved: Callable[[re.Match[str]], str]) -> str:
    """The text with its links moved, and its blocks of code as they are."""
    parts, end = [], 0
    for fence in _FENCES.finditer(text):
        parts += [LINK.sub(moved, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(moved, text[end:])])
