"""What `strict` requires of a schema, so that an answer is guaranteed to match it.

In all protocols, `strict` requires that decoding can enforce every keyword of the schema. OpenAI's protocol
allows only a subset, in which every object is closed and requires all of its properties. Without `strict` a
schema is followed as far as possible, and the keywords that are not enforced are reported. Depends neither on
requests nor on grammars.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from serve_app import limits
from serve_app.errors import InvalidField
from serve_app.json_schema import UnusableSchema, adapt, place

TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_NOTES: Final = frozenset({"title", "description", "$schema", "$id", "$comment", "default", "examples"})
KEYWORDS: Final = _NOTES | {
    *("type", "enum", "const", "anyOf", "$ref", "$defs", "definitions"),
    *("properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems"),
    *("pattern", "format"),
    *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def lost_keywords(schema: dict[str, Any], param: str, *, strict: bool, subset: bool) -> tuple[str, ...]:
    """Places in `schema` of the keywords that are not enforced, such as `properties.tags.uniqueItems`.

    Raises InvalidField for a schema that cannot be read and, with `strict`, for a keyword that is not
    enforced. `subset`: whether a strict schema must also be in OpenAI's subset.
    """
    if strict and subset:
        check_subset(schema, param)
    try:
        lost = adapt(schema).lost
    except UnusableSchema as error:
        raise InvalidField(param, f"the schema cannot be used: {error}") from error
    if lost and strict:
        raise InvalidField(
            param,
            f"with strict, the schema must not use {place((lost[0],))}, which cannot be guaranteed",
        )
    return lost


def check_subset(schema: dict[str, Any], param: str) -> None:
    """If the schema is not in OpenAI's subset, raise InvalidField, which names the place in the schema."""
    if schema.get("type") != "object" or "anyOf" in schema:
        raise InvalidField(param, "with strict, the schema's root must be of type object")
    properties = 0
    pending: list[tuple[str, int, Any]] = [("the root", 0, schema)]
    while pending:
        path, depth, part = pending.pop()
        fault = _fault(part, depth)
        if fault is not None:
            where = path if depth == 0 and part is schema else place((path,))
            raise InvalidField(param, f"with strict, {where} {fault}")
        properties += len(part.get("properties", ()))
        if properties > limits.MAX_STRICT_PROPERTIES:
            raise InvalidField(
                param, f"with strict, a schema may have at most {limits.MAX_STRICT_PROPERTIES} properties"
            )
        pending += ((_join(path, key), depth + deeper, child) for key, deeper, child in _children(part))


def _fault(part: Any, depth: int) -> str | None:
    """A fault in the schema itself, not in its children; None: it has no fault."""
    if not isinstance(part, dict):
        return "must be an object"
    unknown = sorted(key for key in part if key not in KEYWORDS)
    if unknown:
        return f"must not use the keyword {unknown[0][:50]!r}"
    if depth > limits.MAX_STRICT_DEPTH:
        return f"lies deeper than {limits.MAX_STRICT_DEPTH} levels"
    named = part.get("type")
    types = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(name, str) and name in TYPES for name in types) or named == []:
        return f"must have a type of {', '.join(sorted(TYPES))}, or a list of these"
    if named is None and not part.keys() & {"enum", "const", "anyOf", "$ref"}:
        return "must have a type, an enum, a const, an anyOf or a $ref"
    values = part.get("enum")
    if values is not None and not (isinstance(values, list) and 1 <= len(values) <= limits.MAX_STRICT_ENUM):
        return f"must list 1 to {limits.MAX_STRICT_ENUM} values in enum"
    if "anyOf" in part and not (isinstance(part["anyOf"], list) and part["anyOf"]):
        return "must list at least one schema in anyOf"
    if "format" in part and not (isinstance(part["format"], str) and part["format"] in FORMATS):
        return f"must have a format of {', '.join(sorted(FORMATS))}"
    if "array" in types and "items" not in part:
        return "must say what its items are"
    return _object_fault(part) if "object" in types or "properties" in part else None


def _object_fault(part: dict[str, Any]) -> str | None:
    properties, required = part.get("properties", {}), part.get("required", [])
    if part.get("additionalProperties") is not False:
        return "must set additionalProperties to false"
    if not isinstance(properties, dict):
        return "must have an object of properties"
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "must have a list of names as required"
    if set(required) != set(properties):
        return "must list every one of its properties, and nothing else, as required"
    return None


def _children(part: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """The schemas directly inside `part`, each as (place, additional depth, schema)."""
    for keyword in ("properties", "$defs", "definitions"):
        named = part.get(keyword)
        if isinstance(named, dict):
            yield from ((f"{keyword}.{name}", int(keyword == "properties"), s) for name, s in named.items())
    if "items" in part:
        yield "items", 1, part["items"]
    for i, option in enumerate(part.get("anyOf", ())):
        yield f"anyOf.{i}", 0, option


def _join(path: str, key: str) -> str:
    return key if path == "the root" else f"{path}.{key}"
