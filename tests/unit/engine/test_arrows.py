"""The arrows between the parts of the engine: any other import fails, and there is no circle of any kind.

Imports for types only and imports inside functions count like all others.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import serve_app

ROOT = Path(serve_app.__file__).parent

# module or sub-package of engine/ -> what else of engine/ it may import, from the ground up
ENGINE: dict[str, set[str]] = {
    "deadlines": set(),
    "forward_context": set(),
    "grammar": set(),
    "request": set(),
    "sequence": {"grammar", "request"},
    "finish": {"sequence"},
    "grammar_queue": {"grammar", "sequence"},
    "cache": {"sequence"},
    "scheduler": {"cache", "sequence"},
    "batch": {"forward_context", "sequence"},
    "kernels": {"forward_context"},
    "linear": {"kernels"},
    "attention": {"forward_context", "kernels"},
    "sampling": {"batch", "grammar", "kernels", "request", "sequence"},
    "model": {"attention", "batch", "cache", "forward_context", "linear", "sequence"},
    "cpu": {"attention", "forward_context", "kernels", "linear", "model"},
    "embedding": {"attention", "model"},
    "counters": {"sampling", "scheduler"},
    "group": {"finish", "request", "sampling", "sequence"},
    "engine": {
        "cache",
        "counters",
        "deadlines",
        "finish",
        "grammar",
        "grammar_queue",
        "group",
        "model",
        "request",
        "sampling",
        "scheduler",
        "sequence",
    },
    "loop": {"engine"},
    "assemble": {"attention", "cpu", "engine", "grammar_queue", "kernels", "model"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in (ROOT / "engine").rglob("*.py")}


def imports(path: Path) -> set[str]:
    """The modules of the engine that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (whole & MODULES.keys()) or {node.module}
    return found & MODULES.keys()


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"serve_app.engine"}))
def test_every_import_follows_an_arrow(name: str) -> None:
    own = name.split(".")[2]
    others = {target.split(".")[2] for target in imports(MODULES[name])} - {own}
    assert others <= ENGINE[own], f"{own} must not import {sorted(others - ENGINE[own])}"


def test_the_arrows_have_no_circle_and_none_is_unused() -> None:
    tuple(TopologicalSorter(ENGINE).static_order())
    used: dict[str, set[str]] = {own: set() for own in ENGINE}
    for name in MODULES.keys() - {"serve_app.engine"}:
        used[name.split(".")[2]] |= {target.split(".")[2] for target in imports(MODULES[name])}
    assert {own: targets - {own} for own, targets in used.items()} == ENGINE


def test_the_modules_have_no_circle() -> None:
    tuple(TopologicalSorter({name: imports(path) - {name} for name, path in MODULES.items()}).static_order())
