"""A deploy file's text -> plain values, problems of the text, and the line of each field.

Ray reads deploy files with PyYAML, and so does this module: another parser would interpret some values
differently (docs/decisions/endpoints-changes.md). Unlike PyYAML itself, this module refuses duplicate keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from serve_app.deployments.deploy_file.problem import Path, Place, Problem


@dataclass(frozen=True)
class Document:
    """One YAML document. If there is a problem, no values are returned."""

    values: Any
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)  # of each field, counted from 1

    def located(self, problem: Problem) -> Problem:
        """The problem, with the line of its field or of the nearest enclosing field that exists."""
        path = problem.path
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path) if problem.line is None else problem.line
        return replace(problem, line=line)


def read(text: str) -> Document:
    """The document with this text. Never raises."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Document({})
        document = Document(None)
        document.problems.extend(_walk(root, Place(), document.lines, set()))
        if document.problems:
            return document
        return replace(document, values=loader.construct_document(root))
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        context = f"{error.context}, " if error.context else ""
        return Document(None, [replace(Place().error(f"is no YAML: {context}{error.problem}"), line=line)])
    except yaml.YAMLError as error:
        return Document(None, [Place().error(f"is no YAML: {' '.join(str(error).split())}")])
    except (ValueError, RecursionError) as error:  # a date or number that YAML's own rules cannot read
        return Document(None, [Place().error(f"cannot be read: {error}")])


def _walk(node: yaml.Node, place: Place, lines: dict[Path, int], seen: set[int]) -> Iterator[Problem]:
    """Record the lines of all fields below `node`, and report duplicate keys."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = place.at(index)
            lines[here.path] = item.start_mark.line + 1
            yield from _walk(item, here, lines, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield replace(place.error("a key must be a word"), line=line)
                continue
            here = place.at(str(key.value))
            if key.value in first and key.value != "<<":
                problem = here.error(
                    f"the key is there twice, on lines {first[key.value]} and {line}, and YAML would keep "
                    "the last; remove one, or merge them"
                )
                yield replace(problem, line=line)
            first.setdefault(key.value, line)
            lines.setdefault(here.path, line)
            yield from _walk(value, here, lines, seen)
