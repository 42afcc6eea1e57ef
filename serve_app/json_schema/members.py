"""Member names given by patterns, where several patterns may match one name.

The parser needs patterns that exclude each other. Overlapping patterns are joined into one, whose members
must match the schemas of all of them. This allows no more than the client's schema does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from serve_app.json_schema.numerals import dumps
from serve_app.json_schema.patterns import Overlaps, Translation

_MAX_NAMES: Final = 64  # patterns of one object that are compared; with more, all count as overlapping


def disjoint(given: Sequence[tuple[Translation, Any]], overlaps: Overlaps) -> tuple[dict[str, Any], bool]:
    """`patternProperties` in the parser's notation, and whether they are equivalent to the client's."""
    groups: list[tuple[list[Translation], list[Any]]] = []
    for translation, schema in given:
        if not translation.patterns:
            continue
        names, schemas, apart = [translation], [schema], []
        for group in groups:
            if len(given) > _MAX_NAMES or any(overlaps.may(name, translation) for name in group[0]):
                names, schemas = group[0] + names, group[1] + schemas
            else:
                apart.append(group)
        groups = [*apart, (names, schemas)]
    exact = all(translation.exact and len(translation.patterns) == 1 for translation, _ in given)
    return {_either(names): _all_of(schemas) for names, schemas in groups}, exact


def _either(names: list[Translation]) -> str:
    patterns = [name.patterns[0] for name in names]
    return patterns[0] if len(patterns) == 1 else "|".join(f"(?:{pattern})" for pattern in patterns)


def _all_of(schemas: list[Any]) -> Any:
    """The conjunction of `schemas`, each once."""
    different = {dumps(schema): schema for schema in schemas}
    return schemas[0] if len(different) == 1 else {"allOf": list(different.values())}
