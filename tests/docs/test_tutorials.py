"""Tutorials work as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.walkthrough import Reader, blocks_of, reader, same
from tests.support.network import two_networks
from tests.support.ray_cluster import ROOT

DOCS: Final = ROOT / "docs"
QUICK: Final = (
    "quickstart",
    "structured-output",
    "from-anthropic",
    "from-databricks",
    "from-mindie",
    "from-openvino",
    "from-triton",
)
PAGES: Final = [DOCS / "quickstart.md", *sorted((DOCS / "tutorials").glob("*.md"))]
TUTORIALS: Final = [page for page in PAGES if page.name != "index.md"]
# The quick ones first: they share one server.
TUTORIALS.sort(key=lambda page: (page.stem not in QUICK, page.name))


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader in a network of its own, so that ports are those that the page names."""
    with two_networks() as (network, _), reader(network, tmp_path_factory.mktemp("reader")) as one:
        yield one


@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=() if page.stem in QUICK else pytest.mark.full)
        for page in TUTORIALS
    ],
)
def test_a_tutorial_works_as_it_is_written(page: Path, visitor: Reader, tmp_path: Path) -> None:
    visitor.problems.clear()
    visitor.follow(page, tmp_path / "checkout")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_shows_nothing_that_is_not_run(page: Path) -> None:
    blocks = blocks_of(page.read_text("utf-8"))
    assert any(block.is_server or "serve.run(" in block.text for block in blocks)
    assert sum(block.is_output for block in blocks) >= 2


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint()\n```\n",
        '```sh title="Terminal 2"\nls\n```\n',
        "```json\n{}\n```\n",
        "```sh\nls\n  ```\n",
    ],
)
def test_a_block_that_no_test_could_run_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"neither|begin and end"):
        blocks_of(page)


def test_an_output_must_be_the_same_but_for_its_dots() -> None:
    assert same('{"id": "...", "n": 1}\n', '{"id": "chat-7", "n": 1}')
    assert same("a\n...\nz", "a \nb\nc\nz\n")
    assert not same("a\n...\nz", "a\nb\n")
    assert not same("a", "ab")
    assert not same("a.c", "abc")
