"""House idioms that CONTRIBUTING lists do not return: in guides and records, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.ray_cluster import ROOT

IDIOMS: Final = re.compile(
    r"\b(nobody|whoever|for ever|so many|(?:was|is|are|were|be) told)\b", re.IGNORECASE
)
GUIDES: Final = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("tutorials/*.md")),
    *sorted((ROOT / "docs").glob("decisions/*.md")),
]


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def idioms_in(text: str) -> list[str]:
    return IDIOMS.findall(" ".join(re.sub(r"`[^`]*`", "", text).split()))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nobody is\n    told.", ["Nobody", "is told"]),
        ("A caller gets `for ever` this many tokens.", []),
    ],
)
def test_the_check_finds_idioms_across_lines_and_not_in_code(text: str, found: list[str]) -> None:
    assert idioms_in(text) == found


def test_guides_and_records_have_no_house_idiom() -> None:
    found = {str(page.relative_to(ROOT)): idioms_in(page.read_text("utf-8")) for page in GUIDES}
    assert {page: idioms for page, idioms in found.items() if idioms} == {}


def test_docstrings_and_comments_have_no_house_idiom() -> None:
    found = []
    for path in sorted((ROOT / "serve_app").rglob("*.py")):
        source = path.read_text("utf-8")
        if not IDIOMS.search(" ".join(source.split())):
            continue  # parsing takes a hundred times as long
        for line, text in prose_of(source):
            found += [f"{path.relative_to(ROOT)}:{line}: {idiom}" for idiom in idioms_in(text)]
    assert found == []
