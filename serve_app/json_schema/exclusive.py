"""Whether several schemas exclude each other: no value can match two of them, by their types and tags."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Final

from serve_app.json_schema.references import References
from serve_app.json_schema.vocabulary import Schema, type_of

MAX_OPTIONS: Final = 64
_MAX_VALUES: Final = 64
_MAX_TAGS: Final = 16  # required members of an object that are compared
_DEPTH: Final = 2
_ALL: Final = frozenset({"string", "number", "boolean", "null", "object", "array"})


def exclusive(options: list[Any], references: References) -> bool:
    """Returns True only if certainly no value matches two options. At most `MAX_OPTIONS` are compared."""
    if len(options) > MAX_OPTIONS:
        return False
    resolved = [references.resolved(option) for option in options]
    return all(_differ(a, b, references, _DEPTH) for a, b in combinations(resolved, 2))


def _differ(a: Any, b: Any, references: References, depth: int) -> bool:
    if not isinstance(a, dict) or not isinstance(b, dict):
        return a is False or b is False
    if not _types(a) & _types(b):
        return True
    values_a, values_b = _values(a), _values(b)
    if values_a is not None and values_b is not None:
        return _apart(values_a, values_b)
    if _types(a) & _types(b) != {"object"} or depth == 0:
        return False
    return any(
        _differ(
            references.resolved(a["properties"][name]),
            references.resolved(b["properties"][name]),
            references,
            depth - 1,
        )
        for name in _tags(a, b)
    )


def _types(schema: Schema) -> frozenset[str]:
    values = _values(schema)
    if values is not None:
        return frozenset(map(type_of, values))
    named = schema.get("type", list(_ALL))
    names = named if isinstance(named, list) else [named]
    # An integer is a number too.
    return frozenset("number" if name == "integer" else name for name in names if isinstance(name, str))


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and len(values) <= _MAX_VALUES else None


def _apart(a: list[Any], b: list[Any]) -> bool:
    """Whether no value is in both sets. Since Python has 1 == True, this errs on the safe side."""
    try:
        return set(a).isdisjoint(b)
    except TypeError:  # arrays and objects
        return False


def _tags(a: Schema, b: Schema) -> list[str]:
    """Members that both objects declare and require."""
    sides = []
    for schema in (a, b):
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return []
        sides.append([name for name in required[:_MAX_TAGS] if isinstance(name, str) and name in properties])
    return [name for name in sides[0] if name in sides[1]]
