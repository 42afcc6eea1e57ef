"""The site builds without a network, loads nothing from elsewhere, and has no dead link."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from docs.site import commands, decisions, settings
from docs.site.check import problems
from docs.site.stage import stage
from serve_app.cli.main import cli
from tests.support.ray_cluster import ROOT


def page(site: Path, name: str, body: str) -> None:
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / name).write_text(f"<!doctype html><html><body>{body}</body></html>")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="sub/">', None),
        ('<a href="https://elsewhere.example/">', None),
        ('<img src="data:image/png;base64,AA==">', None),
        ('<a href="c.html">', "a.html: nothing is at c.html"),
        ('<a href="b.html#gone">', "a.html: nothing is at b.html#gone"),
        ('<a href="#gone">', "a.html: nothing is at #gone"),
        ('<a href="../outside.html">', "a.html: nothing is at ../outside.html"),
        ('<img src="x.svg">', "a.html: nothing is at x.svg"),
        ('<script src="https://unpkg.com/x.js"></script>', "a.html: loads https://unpkg.com/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/f.css">', "a.html: loads //fonts.example/f.css"),
        ('<div style="background: url(https://x.example/i.png)">', "a.html: loads https://x.example/i.png"),
        ('<pre class="mermaid">', "a.html: mermaid would be fetched from elsewhere"),
    ],
)
def test_the_check_finds_what_is_wrong(tmp_path: Path, body: str, problem: str | None) -> None:
    page(tmp_path, "a.html", body)
    page(tmp_path, "b.html", '<h1 id="there">')
    page(tmp_path, "sub/index.html", "")
    assert problems(tmp_path) == ([] if problem is None else [problem])


def test_the_check_finds_styles_that_load_from_elsewhere(tmp_path: Path) -> None:
    page(tmp_path, "index.html", "")
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/a.css'; b { src: url(f.woff2) }")
    assert problems(tmp_path) == ["a.css: loads https://fonts.example/a.css"]


def test_an_empty_site_is_a_problem(tmp_path: Path) -> None:
    assert problems(tmp_path)


def test_every_page_is_staged_and_every_link_of_it_stays_in_the_site(tmp_path: Path) -> None:
    assert stage(tmp_path / "pages") == []
    staged = {str(path.relative_to(tmp_path / "pages")) for path in (tmp_path / "pages").rglob("*.md")}
    nav = {
        line.split()[-1] for line in (ROOT / "mkdocs.yml").read_text().splitlines() if line.endswith(".md")
    }
    assert nav <= staged
    lone = {name for name in staged if "/" not in name or name.startswith(("tutorials/", "reference/"))} - nav
    assert lone == set(), "pages that the navigation does not have"
    assert "../files/deploy/gpu.yaml.md" in (tmp_path / "pages/tutorials/your-model.md").read_text()


def _models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        for one in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(one, type) and issubclass(one, BaseModel):
                found |= _models(one)
    return found


def test_the_reference_has_every_setting() -> None:
    text = settings.page()
    models = set().union(*(_models(root) for root, _ in settings.ROOTS))
    assert len(models) >= 10
    for model in models:
        section = text.partition(f"## {model.__name__}\n")[2].partition("\n## ")[0]
        assert [name for name in model.model_fields if f"| `{name}` |" not in section] == [], model


def test_the_reference_tells_types_bounds_and_defaults() -> None:
    text = settings.page()
    assert "| `max_sequences` | integer from 1 to 4096 | `64` |" in text
    assert '| `dtype` | `auto`, `float32`, `bfloat16`, `float16` | `"auto"` |' in text
    assert "| `threads` | integer from 1 to 1024 or none | none |" in text
    assert "[EngineConfig](#engineconfig)" in text


def test_the_reference_has_every_command() -> None:
    text = commands.page()
    for name in set(cli.commands) - {"keys"} | {"keys new"}:
        assert f"## `serve-app {name}`\n" in text


def test_every_record_of_a_decision_stands_under_its_subject() -> None:
    records = {path.stem: path.name for path in (ROOT / "docs/decisions").glob("*.md")}
    subjects = {stem.partition("-")[0] for stem in records}
    assert subjects == set(decisions.SUBJECTS), "a record without a subject, or a subject without a record"
    text = decisions.page()
    assert [name for name in records.values() if text.count(f"]({name})") != 1] == []
    assert len(records) <= 90, "merge records of one subject"


@pytest.mark.full
def test_the_site_builds_without_a_network(tmp_path: Path) -> None:
    """As `make docs` does, in a network namespace with nothing in it where that is allowed."""
    pytest.importorskip("zensical")
    assert stage(tmp_path / "build/docs") == []
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    alone = ["unshare", "-n"] if os.geteuid() == 0 and shutil.which("unshare") else []
    command = [*alone, sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "0 issues" in built.stdout + built.stderr or "No issues" in built.stdout + built.stderr
    assert problems(tmp_path / "build/site") == []
