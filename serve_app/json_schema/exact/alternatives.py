"""A schema as a choice between conjunctions that contain no reference, `allOf`, `anyOf` or `const`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from serve_app.json_schema.exact.documents import Definitions
from serve_app.json_schema.exact.plain import is_plain
from serve_app.json_schema.numerals import exact, is_number
from serve_app.json_schema.vocabulary import DEFINITIONS, Schema, UnusableSchema, type_of

Parts: TypeAlias = tuple[Schema, ...]  # schemas that a value must all match

MAX_ALTERNATIVES: Final = 256
_MAX_CHAIN: Final = 32  # references that lead to references
_COMBINES: Final = frozenset({"$ref", "allOf", "anyOf", "const", "enum", *DEFINITIONS})
_ALL_TYPES: Final = ("null", "boolean", "string", "number", "object", "array")


def alternatives(schema: Any, definitions: Definitions, depth: int = 0) -> list[Parts]:
    """The conjunctions, at least one of which must hold. Raises UnusableSchema if there are too many."""
    if schema is False:
        return []
    if not isinstance(schema, dict):
        return [()]
    if depth > _MAX_CHAIN:
        raise UnusableSchema("its references lead to themselves")
    own = {key: value for key, value in schema.items() if key not in _COMBINES}
    found: list[Parts] = [(own,)] if own else [()]
    for key, listed in (("const", False), ("enum", True)):
        if key in schema:
            found = _both(found, _values(schema[key] if listed else [schema[key]]))
    referred = [definitions[schema["$ref"]]] if "$ref" in schema else []
    for each in (*referred, *schema.get("allOf", ())):
        found = _both(found, alternatives(each, definitions, depth + 1))
    if "anyOf" in schema:
        options = [
            each for option in schema["anyOf"] for each in alternatives(option, definitions, depth + 1)
        ]
        found = _both(found, options)
    return found


def _both(first: list[Parts], second: list[Parts]) -> list[Parts]:
    if len(first) * len(second) > MAX_ALTERNATIVES:
        raise UnusableSchema("it combines too many schemas with a number that needs more than 15 digits")
    return [a + b for a in first for b in second]


def _values(values: list[Any]) -> list[Parts]:
    """The values of `enum`: scalars stay an `enum`, lists and objects with long numbers become schemas."""
    long = [value for value in values if isinstance(value, dict | list) and _is_long(value)]
    rest = [value for value in values if not any(value is each for each in long)]
    return [*([({"enum": rest},)] if rest else []), *((_shape(value),) for value in long)]


def _is_long(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_long, value.values()))
    if isinstance(value, list):
        return any(map(_is_long, value))
    return is_number(value) and not is_plain(value)


def _shape(value: Any) -> Schema:
    """The schema that matches exactly one list or object."""
    if isinstance(value, dict):
        members = {name: {"const": each} for name, each in value.items()}
        return {
            "type": "object",
            "properties": members,
            "required": list(members),
            "additionalProperties": False,
        }
    return {
        "type": "array",
        "prefixItems": [{"const": each} for each in value],
        "items": False,
        "minItems": len(value),
    }


def types(parts: Parts) -> list[str]:
    """The types that a value may have; an integer is a number here."""
    found = list(_ALL_TYPES)
    for part in parts:
        if "enum" in part:
            found = [name for name in found if name in set(map(type_of, part["enum"]))]
        if "type" in part:
            named = part["type"] if isinstance(part["type"], list) else [part["type"]]
            allowed = {"number" if name == "integer" else name for name in named if isinstance(name, str)}
            found = [name for name in found if name in allowed]
    return found


def is_integer(parts: Parts) -> bool:
    """Whether a number must be an integer."""
    named = [
        part["type"] if isinstance(part["type"], list) else [part["type"]] for part in parts if "type" in part
    ]
    return any("integer" in names and "number" not in names for names in named)


def listed_numbers(parts: Parts) -> list[float] | None:
    """The numbers that the `enum`s allow; None if there is no `enum`."""
    lists = [[v for v in part["enum"] if is_number(v)] for part in parts if "enum" in part]
    if not lists:
        return None
    first, *others = lists
    sets = [set(map(exact, each)) for each in others]
    return [value for value in first if all(exact(value) in each for each in sets)]


def only(parts: Parts, names: Iterable[str], type_names: list[str]) -> Schema:
    """The schema of `parts` for some types, with only the keywords in `names`."""
    kept = [{key: value for key, value in part.items() if key in (*names, "enum")} for part in parts]
    kept = [part for part in kept if part]
    schema: Schema = {"type": type_names[0] if len(type_names) == 1 else type_names}
    if kept:
        schema["allOf"] = kept
    return schema
