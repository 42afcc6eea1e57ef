"""Which definitions of an adapted schema have answers that end.

If a node requires itself, directly or through other nodes, an answer to it could only be cut off. Schemas
without an end are replaced by `false`, so that the parser leaves them out where they are optional.
"""

from __future__ import annotations

from typing import Any, Final

from serve_app.json_schema.vocabulary import Schema, definitions_of, with_subschemas

_MAX_STEPS: Final = 200_000  # schemas to visit, about 0.3 s; beyond that the rest counts as ending
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean", "null"})
_ALL: Final = _SCALARS | {"object", "array"}
_IN_PLACE: Final = frozenset({"anyOf", "allOf", "$ref"})


class Endings:
    """Determines which definitions of `root` have an answer of finite length."""

    def __init__(self, root: Schema) -> None:
        self._definitions = definitions_of(root)
        self._steps = 0
        self._ending: set[str] = set()
        self._open: set[int] = set()  # ids of the schemas that are being checked
        waiting = list(self._definitions)
        while waiting:  # least fixpoint: an answer consists of answers that are known to end
            left = [name for name in waiting if not self._ends_now(name)]
            if len(left) == len(waiting):
                break
            waiting = left[::-1]  # a chain is mostly in order, or in the reverse order
        self.endless: Final = frozenset(waiting) if self._steps <= _MAX_STEPS else frozenset()

    def pruned(self, schema: Any) -> Any:
        """`schema`, with `false` for parts that have no end."""
        if not isinstance(schema, dict):
            return schema
        if not self._ends([schema]):
            return False
        return with_subschemas(schema, self.pruned)

    def _ends_now(self, name: str) -> bool:
        if self._ends([self._definitions[name]]):
            self._ending.add(name)
            return True
        return False

    def _ends(self, schemas: list[Any]) -> bool:
        """Whether a value of finite length may match all of `schemas`. Returns True if this is uncertain."""
        opened = {id(schema) for schema in schemas} - self._open
        if not opened or self._steps > _MAX_STEPS:
            return True
        self._open |= opened
        try:
            parts = self._parts(schemas)
            return parts is not None and self._value_ends(parts)
        finally:
            self._open -= opened

    def _parts(self, schemas: list[Any]) -> list[Schema] | None:
        """All schemas for one value, each once; None if nothing matches, or no answer is known to end."""
        parts: dict[int, Schema] = {}
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            self._steps += 1
            if schema is False:
                return None
            if schema is True or id(schema) in parts:
                continue
            parts[id(schema)] = schema
            pending += schema.get("allOf", ())
            if "$ref" in schema:
                if schema["$ref"] not in self._ending:
                    return None
                if len(schema) > 1 or len(schemas) > 1:  # else it is known to end
                    pending.append(self._definitions[schema["$ref"]])
        return list(parts.values())

    def _value_ends(self, parts: list[Schema]) -> bool:
        if any("enum" in part or "const" in part for part in parts):
            return True
        choices = [part["anyOf"] for part in parts if "anyOf" in part]
        if choices:
            plain = [{key: part[key] for key in part.keys() - _IN_PLACE} for part in parts]
            return all(any(self._ends([*plain, option]) for option in options) for options in choices)
        types = _ALL.intersection(*(_types(part) for part in parts))
        if types & _SCALARS or not types:
            return True
        return ("object" in types and self._object_ends(parts)) or (
            "array" in types and self._array_ends(parts)
        )

    def _object_ends(self, parts: list[Schema]) -> bool:
        required = {name for part in parts for name in part.get("required", ())}
        if not all(self._ends([_member(part, name)]) for part in parts for name in required):
            return False
        least = _least(parts, "minProperties")
        return least <= len(required) or all(
            any(
                self._ends([each])
                for each in (
                    *part.get("properties", {}).values(),
                    *part.get("patternProperties", {}).values(),
                    part.get("additionalProperties", True),
                )
            )
            for part in parts
        )

    def _array_ends(self, parts: list[Schema]) -> bool:
        least = _least(parts, "minItems")
        return all(self._ends([item]) for part in parts for item in _first_items(part, least))


def _types(schema: Schema) -> frozenset[str]:
    named = schema.get("type", list(_ALL))
    return frozenset(named if isinstance(named, list) else [named])


def _least(parts: list[Schema], keyword: str) -> int:
    return max((part[keyword] for part in parts if isinstance(part.get(keyword), int)), default=0)


def _member(schema: Schema, name: str) -> Any:
    properties = schema.get("properties", {})
    if name in properties or "patternProperties" in schema:  # the name may match one of its patterns
        return properties.get(name, True)
    return schema.get("additionalProperties", True)


def _first_items(schema: Schema, count: int) -> list[Any]:
    """The schemas of the first `count` items; equal schemas are listed once."""
    items, first = schema.get("items", True), schema.get("prefixItems", [])
    if isinstance(items, list):
        items, first = schema.get("additionalItems", True), items
    return [*first[:count], *([items] if count > len(first) else [])]
