"""Which objects of a schema are closed: objects that declare members and do not mention other members.

JSON Schema leaves such an object open. A model may then invent members until its answer is cut, which no
client wants. Other servers also close such objects. An answer that has only declared members conforms either
way. Schemas that are combined in place (`allOf`, a reference with siblings, ...) are closed together, because
closed one by one they would exclude each other's members.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from serve_app.json_schema.references import References
from serve_app.json_schema.vocabulary import (
    DEFINITIONS,
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    Schema,
    UnusableSchema,
    asserts,
    subschemas,
)

# Keywords about members that are not declared.
_SAYS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_IN_PLACE: Final = (*IN_PLACE_LISTS, *IN_PLACE, *IN_PLACE_MAPS)
_MAX_STEPS: Final = 100_000  # through combined schemas and their members: about 0.2 s
_CHOICES: Final = ("anyOf", "oneOf")


def combined_in_place(schema: Schema) -> bool:
    """Whether other schemas apply to the same value, besides `schema`'s own keywords."""
    if any(key in schema for key in (*IN_PLACE, *IN_PLACE_MAPS)):
        return True
    parts = [key for key in ("$ref", "allOf", *_CHOICES) if key in schema]
    if not parts:
        return False
    if len(parts) > 1 or asserts(schema, besides=(parts[0], "type")):
        return True
    members = schema.get("allOf")
    return isinstance(members, list) and len(members) > 1


class Closing:
    """Decides, for each schema inside `root`, which members its closed objects may have."""

    def __init__(self, root: Schema, references: References) -> None:
        self._references = references
        self._steps = 0
        self._parts: set[int] = set()  # ids of schemas that share their value with other schemas
        self._visit(root)

    def members(self, schema: Schema) -> list[str] | None:
        """The only members allowed in objects of `schema`; None if the schema stays as it is."""
        if id(schema) in self._parts:
            return None
        if not combined_in_place(schema):
            return None if any(key in schema for key in _SAYS) else declared([schema])
        group = self.group(schema)
        return None if any(_is_open(each) for each in group) else declared(group)

    def exact(self, schema: Schema) -> bool:
        """Whether `unevaluatedProperties: false` allows exactly `members`: no part is conditional."""
        group = self.group(schema)
        return (
            id(schema) not in self._parts
            and not any(key in each for each in group for key in (*_CHOICES, *IN_PLACE, *IN_PLACE_MAPS))
            and not any(_is_open(each) for each in group)
        )

    def group(self, schema: Schema) -> list[Schema]:
        """`schema` and all other schemas for the same value, each once."""
        found: dict[int, Schema] = {}
        pending: list[Any] = [schema]
        while pending:
            each = pending.pop()
            if not isinstance(each, dict) or id(each) in found:
                continue
            found[id(each)] = each
            self._steps += 1 + len(_properties(each))
            if self._steps > _MAX_STEPS:
                raise UnusableSchema("it combines too many schemas in one place")
            pending += self._references.targets(each)
            pending += [part for keyword, _, part in subschemas(each) if keyword in _IN_PLACE]
        return list(found.values())

    def _visit(self, root: Schema) -> None:
        """Find the parts. Visits a schema at most twice: as a whole and as a part."""
        pending: list[tuple[Any, bool]] = [(root, False)]
        seen: set[tuple[int, bool]] = set()
        while pending:
            schema, is_part = pending.pop()
            if not isinstance(schema, dict) or (id(schema), is_part) in seen:
                continue
            seen.add((id(schema), is_part))
            if is_part:
                self._parts.add(id(schema))
            if combined_in_place(schema) and not is_part:
                group = self.group(schema)
                self._parts.update(id(each) for each in group[1:])
                pending += _below(group)
            else:
                below = (*self._references.targets(schema), *(each for _, _, each in subschemas(schema)))
                pending += [(each, is_part) for each in below]


def _below(group: list[Schema]) -> list[tuple[Any, bool]]:
    """(schema, whether it is a part) for the subschemas of a group; a member declared twice is a part."""
    times = Counter(name for each in group for name in _properties(each))
    all_shared = any(_is_open(each) for each in group)
    found: list[tuple[Any, bool]] = []
    for each in group:
        for keyword, name, child in subschemas(each):
            if keyword == "properties":
                found.append((child, all_shared or times[name] > 1))
            elif keyword not in (*_IN_PLACE, *DEFINITIONS):
                found.append((child, True))
    return found


def declared(group: list[Schema]) -> list[str] | None:
    """The members that `schemas` declare or require, in order; None if no members are declared."""
    names = dict.fromkeys(name for each in group for name in _properties(each))
    if not names:
        return None
    return list(names | dict.fromkeys(name for each in group for name in _asked_for(each)))


def _is_open(schema: Schema) -> bool:
    """Whether `schema` itself says which other members are allowed."""
    return any(schema.get(key, False) is not False for key in (*_SAYS, "patternProperties"))


def _properties(schema: Schema) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _asked_for(schema: Schema) -> list[str]:
    """Names of members that are allowed or required without a declaration."""
    lists: list[Any] = [schema.get("required")]
    for keyword in ("dependentRequired", "dependencies"):
        depending = schema.get(keyword)
        if isinstance(depending, dict):
            lists += depending.values()
    return [name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)]
