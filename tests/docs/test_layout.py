"""What the documents say of files and folders is true, and the map leaves none out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from docs.site.stage import GENERATED
from tests.support.ray_cluster import ROOT

DOCS: Final = ROOT / "docs"
README: Final = (ROOT / "README.md").read_text("utf-8")
ARCHITECTURE: Final = (DOCS / "architecture.md").read_text("utf-8")
CONTRIBUTING: Final = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PAGES: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("tutorials/*.md")),
    *sorted(DOCS.glob("decisions/*.md")),
]
# `path` in a page, from the root of the repository
_PATH: Final = re.compile(
    r"`((?:serve_app|tests|docs|deploy|k8s|benchmarks|recipes|\.ci)/[\w./-]*)(?:::\w+)*`"
)
_LINK: Final = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CODE: Final = re.compile(r"^```.*?^```$", re.M | re.S)
_IGNORED: Final = {line.strip("/\n") for line in (ROOT / ".gitignore").open()}


@cache
def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text("utf-8"))


def code_folders(folder: Path, depth: int) -> list[str]:
    """Folders of Python below `folder`, down to a depth, from the root of the repository."""
    found = []
    for child in sorted(folder.iterdir()):
        if child.is_dir() and child.name != "__pycache__" and any(child.glob("*.py")):
            found.append(f"{child.relative_to(ROOT)}/")
            if depth > 1:
                found += code_folders(child, depth - 1)
    return found


# One test for all pages, here and below: a test for each page takes longer than what it reads.
def test_every_path_that_a_page_names_exists() -> None:
    named = {(page, path) for page in PAGES for path in _PATH.findall(prose(page))}
    assert [(str(page), path) for page, path in named if not (ROOT / path).exists()] == []


def test_every_link_leads_somewhere() -> None:
    made = {DOCS / name for name in GENERATED}
    for page in PAGES:
        for target in _LINK.findall(prose(page)):
            file = (page.parent / target).resolve()
            assert re.match(r"[a-z]+:", target) or file.exists() or file in made, f"{page}: {target}"


@cache
def settings_page() -> dict[Path, str]:
    """The page that is made from the code and that others link into, by its file."""
    name = "reference/settings.md"
    return {DOCS / name: GENERATED[name]()}


@cache
def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as the site makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        found.add(slug if slug not in found else f"{slug}_{sum(one.startswith(slug) for one in found)}")
    return found


def test_every_anchor_is_there() -> None:
    made = settings_page()
    for page in PAGES:
        for target, fragment in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", prose(page)):
            file = (page.parent / target).resolve() if target else page
            if file in made:
                there = {line[3:].lower() for line in made[file].splitlines() if line.startswith("## ")}
            elif file.suffix == ".md" and not re.match(r"[a-z]+:", target):
                there = anchors(file)
            else:
                continue
            assert fragment in there, f"{page}: {target}#{fragment}"


def test_the_map_names_every_entry_at_the_top() -> None:
    """Folders, and files that are no mere convention of a tool."""
    conventions = {"LICENSE", "Makefile", "pyproject.toml", "requirements.lock", "mkdocs.yml", "README.md"}
    entries = {
        entry.name for entry in ROOT.iterdir() if entry.name == ".ci" or not entry.name.startswith(".")
    }
    entries = {name for name in entries - conventions - _IGNORED if not name.endswith(".egg-info")}
    named = set(re.findall(r"`([\w.-]+)/?`|\(([\w.-]+)\)", README))
    assert entries - {name for pair in named for name in pair} == set()


def test_the_map_names_every_folder_of_the_package() -> None:
    missing = [path for path in code_folders(ROOT / "serve_app", 2) if f"`{path}`" not in ARCHITECTURE]
    assert missing == []
    dialects = [path.rsplit("/", 2)[1] for path in code_folders(ROOT / "serve_app/api/dialects", 1)]
    assert [name for name in dialects if f"`{name}/`" not in ARCHITECTURE] == []
    files = [path.name for path in (ROOT / "serve_app").glob("*.py") if path.name != "__init__.py"]
    assert [name for name in files if f"`serve_app/{name}`" not in ARCHITECTURE] == []


def test_the_map_names_every_folder_of_tests_and_no_other() -> None:
    line = next(line for line in README.splitlines() if line.startswith("| `tests/`"))
    named = set(re.findall(r"`(\w+)/`", line)) - {"tests"}
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert named == folders


def test_the_index_of_what_tests_share_has_every_file_once() -> None:
    shared = ROOT / "tests" / "support"
    named = re.findall(r"^\| `([\w.]+)` \|", (shared / "README.md").read_text("utf-8"), re.M)
    assert sorted(named) == sorted(
        path.name for path in shared.iterdir() if path.suffix in (".py", ".c", ".h")
    )


def test_the_map_does_not_name_a_folder_twice() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", ARCHITECTURE, re.M)
    named = [path for row in rows for path in re.findall(r"`([^`]+)`", row) if "/" in path]
    assert len(named) == len(set(named)) > 20


def test_the_first_screen_has_the_two_commands() -> None:
    head = README.splitlines()[:25]
    assert any(line.startswith("make serve") for line in head)
    assert any(line.startswith("make test") for line in head)
    assert "Linux" in " ".join(head)


def test_a_recipe_links_to_real_files() -> None:
    """Each of the four says which files to edit."""
    for title in ("a field", "a protocol", "a sampling feature", "a kernel"):
        section = CONTRIBUTING.partition(f"## Add {title}")[2].partition("\n## ")[0]
        assert len(_LINK.findall(section)) >= 5, title


def test_the_glossary_has_each_word_once() -> None:
    section = CONTRIBUTING.partition("## Glossary")[2].partition("\n## ")[0]
    words = [
        word for row in re.findall(r"^\| ([^|]+) \| .+ \|$", section, re.M)[1:] for word in row.split(", ")
    ]
    assert len(words) == len(set(words)) >= 25
    wanted = {"sequence", "group", "chunk", "step", "block", "delta", "endpoint", "served entity", "dialect"}
    assert wanted <= set(words)


def test_a_decision_says_its_context_its_consequence_and_nothing_out_of_order() -> None:
    """A record has one decision, in headings of their own, or several, each below a heading."""
    orders = (["Context", "Decision", "Consequence"], ["Context", "Decision", "Consequence", "Figure"])
    for page in sorted(DOCS.glob("decisions/*.md")):
        text = page.read_text("utf-8")
        assert text.startswith("# "), page
        headings = re.findall(r"^## (.+)$", text, re.M)
        parts = re.split(r"^## .+$", text, flags=re.M)[1:]
        assert all(part.strip() for part in parts), page
        if headings[:1] == ["Context"]:
            assert headings in orders, page
        else:
            assert len(parts) > 1, page
            for heading, part in zip(headings, parts, strict=True):
                assert re.findall(r"^\*\*(\w+)\.\*\*", part, re.M) in orders, f"{page}: {heading}"
        assert len(text) <= 6_500, page
