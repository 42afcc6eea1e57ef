"""Tests by their names: whether the source has them, and which words they put into requests.

Source is read, never imported, so that a document is checked against tests that need what is not
installed. A name is what pytest takes: `FILE::test` or `FILE::Class::test`, where a class may have
the test from a base of another module.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CONFORMANCE: Final = "tests/conformance/"
REFERENCE: Final = re.compile(r"(?:\w+/)*\w+\.py(?:::\w+)+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NoSuchTest(Exception):
    """The source has no test of that name."""


@dataclass(slots=True)
class Source:
    """A module's definitions at top level, and from where in `tests` it imports which names."""

    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[Path, str]] = field(default_factory=dict)


@cache
def source_of(path: Path) -> Source:
    """Raises NoSuchTest for a file that is not there."""
    if not path.is_file():
        raise NoSuchTest(f"there is no file {path.name}")
    found = Source()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, Function):
            found.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found.classes[node.name] = node
        elif isinstance(node, ast.Assign):
            found.values |= {each.id: node.value for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.values[node.target.id] = node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            origin = ROOT / f"{(node.module or '').replace('.', '/')}.py"
            found.imports |= {each.asname or each.name: (origin, each.name) for each in node.names}
    return found


def find(reference: str) -> tuple[Path, Function]:
    """The test, and the module that defines it. Raises NoSuchTest."""
    file, *names = reference.split("::")
    path = ROOT / (file if file.startswith("tests/") else CONFORMANCE + file)
    if len(names) == 1 and names[0] in source_of(path).functions:
        return path, source_of(path).functions[names[0]]
    if len(names) == 2:
        return _method(path, *names)
    raise NoSuchTest(f"{file} has no test {'::'.join(names)}")


def _method(path: Path, owner: str, name: str) -> tuple[Path, Function]:
    source = source_of(path)
    if owner in source.imports:
        return _method(*source.imports[owner], name)
    if owner not in source.classes:
        raise NoSuchTest(f"{path.name} has no class {owner}")
    for node in source.classes[owner].body:
        if isinstance(node, Function) and node.name == name:
            return path, node
    for base in source.classes[owner].bases:
        if isinstance(base, ast.Name):
            return _method(path, base.id, name)
    raise NoSuchTest(f"{owner} has no test {name}")


def mentions(reference: str, name: str) -> bool:
    """Whether a test has `name` in its own or among its words. Raises NoSuchTest."""
    return f"_{name}_" in f"{reference.rpartition('::')[2]}_" or name in words_of(reference)


@cache
def words_of(reference: str) -> frozenset[str]:
    """The words in strings and in names of arguments and attributes of a test, and of the tables it names.

    Not those of functions that it calls: what all tests of a module send says nothing of one of them.
    Raises NoSuchTest.
    """
    path, node = find(reference)
    return frozenset(_words(path, node, set()))


def _words(path: Path, node: ast.AST, seen: set[tuple[Path, str]]) -> set[str]:
    words: set[str] = set()
    docstring = node.body[0] if isinstance(node, Function) and ast.get_docstring(node) else None
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        pending += [child for child in ast.iter_child_nodes(item) if child is not docstring]
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            words |= set(re.findall(r"\w+", item.value))
        elif isinstance(item, ast.keyword) and item.arg:
            words.add(item.arg)
        elif isinstance(item, ast.Attribute):
            words.add(item.attr)
        elif isinstance(item, ast.Name) and (path, item.id) not in seen:
            seen.add((path, item.id))
            words |= _words_of_value(path, item.id, seen)
    return words


def _words_of_value(path: Path, name: str, seen: set[tuple[Path, str]]) -> set[str]:
    source = source_of(path)
    if name in source.values:
        return _words(path, source.values[name], seen)
    origin, original = source.imports.get(name, (None, ""))
    if origin is None or not origin.is_file():
        return set()
    return _words_of_value(origin, original, seen)
