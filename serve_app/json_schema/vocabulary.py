"""The keywords of JSON Schema (drafts 4 to 2020-12), sorted by how a grammar treats them.

Tests compare each keyword with the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

Schema = dict[str, Any]
Path = tuple[str, ...]  # of keywords and names, from the root

# What is allowed between two tokens of JSON, as a regex: what a pretty printer writes, to 8 levels of 4
# spaces, but no endless run; or nothing.
SPACE: Final = r"(\r?\n)?[ \t]{0,32}"
COMPACT: Final = ""
ROOT: Final = "#"
POINTER: Final = "#/$defs/"  # and a name
_MAX_PLACE_CHARS: Final = 200
_MAX_NAME_CHARS: Final = 50
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class UnusableSchema(ValueError):
    """A schema that cannot be used; the message begins with the keyword at fault, and says why."""

    def at(self, path: Path) -> UnusableSchema:
        """The same error for a schema at `path`."""
        return UnusableSchema(f"{place(path)}: {self}") if path else self


def place(path: Path) -> str:
    """A path in the form shown to clients, such as `$.properties.email.pattern`; long paths are cut."""
    return ".".join(("$", *path))[:_MAX_PLACE_CHARS]


# Enforced as they stand. An `allOf` or `anyOf` is enforced as far as its members are.
ENFORCED: Final = frozenset(
    {
        *("type", "enum", "const", "$ref", "allOf", "anyOf"),
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
# Keywords that accept every value: annotations, names, and OpenAPI's additions.
NOTES: Final = frozenset(
    {
        *("title", "description", "default", "examples", "example", "$comment", "deprecated"),
        *("readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
        *("$defs", "definitions", "discriminator", "nullable", "xml", "externalDocs"),
    }
)
# Enforced for strings; the parser does not know any other format.
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
# OpenAPI's names for the widths of numbers, which assert nothing in JSON Schema.
NUMBER_FORMATS: Final = frozenset({"int32", "int64", "float", "double"})

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
IN_PLACE: Final = ("not", "if", "then", "else")
IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
_LISTS: Final = (*IN_PLACE_LISTS, "prefixItems")
DEFINITIONS: Final = ("$defs", "definitions")
CONDITIONS: Final = ("dependentRequired", *IN_PLACE_MAPS)
_MAPS: Final = ("properties", "patternProperties", *DEFINITIONS, *IN_PLACE_MAPS)
_SINGLE: Final = (
    *("items", "additionalItems", "additionalProperties", "propertyNames", "contains"),
    *("unevaluatedItems", "unevaluatedProperties", *IN_PLACE),
)


def subschemas(schema: Schema) -> Iterator[tuple[str, Any, Any]]:
    """(keyword, key or index below it or None, subschema) for every schema directly inside `schema`."""
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), dict | bool):
            yield keyword, None, schema[keyword]
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            yield from ((keyword, i, each) for i, each in enumerate(schema[keyword]))
    if isinstance(schema.get("items"), list):  # until 2019-09: what prefixItems is today
        yield from (("items", i, each) for i, each in enumerate(schema["items"]))
    for keyword in _MAPS:
        if isinstance(schema.get(keyword), dict):
            yield from (
                (keyword, name, each)
                for name, each in schema[keyword].items()
                if isinstance(each, dict | bool)
            )


def definitions_of(root: Schema) -> dict[str, Any]:
    """The targets of an adapted schema's references, by pointer."""
    return {**{POINTER + name: each for name, each in root.get("$defs", {}).items()}, ROOT: root}


def shallow(schema: Schema) -> Schema:
    """A copy whose subschemas can be replaced."""
    return {
        key: dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
        for key, value in schema.items()
    }


def with_subschemas(schema: Schema, change: Callable[[Any], Any]) -> Schema:
    """A copy in which `change` has replaced each subschema."""
    node = shallow(schema)
    for keyword, key, child in subschemas(schema):
        if key is None:
            node[keyword] = change(child)
        else:
            node[keyword][key] = change(child)
    return node


def type_of(value: Any) -> str:
    """The type of a JSON value; an integer is a number here."""
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "boolean", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "number")


def asserts(schema: Schema, *, besides: tuple[str, ...] = ()) -> bool:
    """Whether `schema` restricts a value by keywords other than `besides`."""
    return any(key not in NOTES and key not in besides for key in schema)


def check_form(schema: Schema) -> None:
    """Raise UnusableSchema if the value of a keyword has the wrong form."""
    for keyword in (*_MAPS, "dependentRequired"):
        if not isinstance(schema.get(keyword, {}), dict):
            raise UnusableSchema(f"{keyword} must be an object")
    for keyword in (*_LISTS, "enum"):
        if not isinstance(schema.get(keyword, []), list):
            raise UnusableSchema(f"{keyword} must be a list")
    names = schema.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UnusableSchema("required must be a list of names")
    for keyword in ("format", "pattern"):
        if not isinstance(schema.get(keyword, ""), str):
            raise UnusableSchema(f"{keyword} must be a string")
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if not isinstance(name, str) or name not in TYPES:
            raise UnusableSchema(f"type {str(name)[:_MAX_NAME_CHARS]!r} is none of {', '.join(TYPES)}")
    for keyword in SIZES:
        size = schema.get(keyword, 0)
        if isinstance(size, bool) or not isinstance(size, int | float) or size < 0 or size != size // 1:
            raise UnusableSchema(f"{keyword} must be a whole number, 0 or more")
