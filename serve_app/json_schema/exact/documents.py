"""A part of a schema as a document of its own, with the definitions that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from serve_app.json_schema.numerals import dumps
from serve_app.json_schema.vocabulary import DEFINITIONS, POINTER, Schema, with_subschemas

Definitions: TypeAlias = Mapping[str, Any]  # what the references of an adapted schema lead to


def document(schema: Schema, definitions: Definitions, options: Schema) -> str:
    """The JSON of a part of an adapted schema, with the parser's options."""
    copier = _Copier(definitions)
    made = copier.copied(schema)
    needed = copier.needed()
    return dumps({**made, **({"$defs": needed} if needed else {}), "x-guidance": options})


class _Copier:
    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._names: dict[str, str] = {}  # a reference -> the name of its definition in the copy

    def copied(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        own = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        node = with_subschemas(own, self.copied)
        if "$ref" in node:
            node["$ref"] = POINTER + self._names.setdefault(node["$ref"], str(len(self._names)))
        return node

    def needed(self) -> dict[str, Any]:
        """The definitions that the copy refers to, directly or through other definitions."""
        found: dict[str, Any] = {}
        while len(found) < len(self._names):
            for reference, name in list(self._names.items())[len(found) :]:
                found[name] = self.copied(self._definitions[reference])
        return found
