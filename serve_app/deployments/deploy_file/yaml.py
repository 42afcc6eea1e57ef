"""A deploy file's text as plain values. Unlike YAML readers in general, refuses a key that is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from serve_app.deployments.deploy_file.problem import Place, Problem


def read(text: str) -> tuple[Any, list[Problem]]:
    """The values of a YAML document, and what is wrong with it; with an error the values are None."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return {}, []
        twice = list(_twice(root, Place(), set()))
        return (None if twice else loader.construct_document(root)), twice
    except yaml.YAMLError as error:
        return None, [Place().error(f"is no YAML: {' '.join(str(error).split())}")]
    except (ValueError, RecursionError) as error:  # a date or number that YAML's own rules cannot read
        return None, [Place().error(f"cannot be read: {error}")]


def _twice(node: yaml.Node, place: Place, seen: set[int]) -> Iterator[Problem]:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _twice(item, place.at(index), seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            here = place.at(str(key.value))
            if not isinstance(key, yaml.ScalarNode):
                yield place.error(f"line {key.start_mark.line + 1}: a key must be a word")
                continue
            line = key.start_mark.line + 1
            if key.value in first and key.value != "<<":
                yield here.error(
                    f"the key is there twice, on lines {first[key.value]} and {line}, and YAML would keep "
                    "the last; remove one, or merge them"
                )
            first.setdefault(key.value, line)
            yield from _twice(value, here, seen)
