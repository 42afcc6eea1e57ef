"""A client's schema -> a schema that a grammar enforces in full, and the keywords that are lost.

Every answer that the adapted schema allows conforms to the client's schema, except for the lost
keywords. The adapted schema may allow less: an object that declares members has no others (see
`closing.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from serve_app.json_schema.closing import Closing, combined_in_place
from serve_app.json_schema.counts import KEYWORDS as COUNTS
from serve_app.json_schema.counts import rewrite_counts
from serve_app.json_schema.exclusive import exclusive
from serve_app.json_schema.references import References
from serve_app.json_schema.vocabulary import (
    CONDITIONS,
    DEFINITIONS,
    ENFORCED,
    FORMATS,
    NOTES,
    NUMBER_FORMATS,
    Schema,
    UnusableSchema,
    check_form,
    subschemas,
)

_MAX_CONDITIONS: Final = 6  # `dependentRequired` and its like of one object: each doubles the grammar
_MAX_COMPARED: Final = 10_000  # pairs of options of a schema's `oneOf`s, about 0.3 s
_MAX_LISTED: Final = 10_000  # names of a schema's `propertyNames`
# Keywords that are never enforced, and are passed over with their subschemas.
_LOST: Final = ("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems")
_REWRITTEN: Final = frozenset(
    {
        *("oneOf", "$dynamicRef", "$recursiveRef", "format", *COUNTS, *_LOST),
        *("unevaluatedItems", "unevaluatedProperties", "propertyNames"),
        *CONDITIONS,
    }
)


@dataclass(frozen=True, slots=True)
class Adapted:
    """An adapted schema, and what it does not enforce."""

    schema: Schema
    lost: tuple[str, ...]  # places of keywords that are not enforced, each as `properties.tags.uniqueItems`


def adapt(schema: Schema) -> Adapted:
    """Adapt a schema. The time is linear in its size, plus a bounded time for combined schemas.

    Raises UnusableSchema.
    """
    try:
        adapter = _Adapter(schema)
        adapted = adapter.adapted(schema, ())
    except RecursionError:
        raise UnusableSchema("it nests too deep") from None
    return Adapted(adapted, tuple(dict.fromkeys(adapter.lost)))


class _Adapter:
    def __init__(self, root: Schema) -> None:
        self.lost: list[str] = []
        self._compared = self._listed = 0
        self._references = References(root)
        self._closing = Closing(root, self._references)
        self._used = self._reached(root)

    def adapted(self, schema: Any, path: tuple[str, ...]) -> Any:
        """The adapted copy of the schema that lies at `path`."""
        if not isinstance(schema, dict):
            return schema
        check_form(schema)
        node = self._copied(schema, path)
        more = [
            *self._reference(schema, node, path),
            *self._one_of(schema, node, path),
            *self._conditions(schema, node, path),
        ]
        self._drop(schema, node, path)
        self._names(schema, node, path)
        self._unevaluated(schema, node, path)
        more += self._close(schema, node)
        if any(key in node for key in COUNTS):
            lost, counted = rewrite_counts(node, alone=not combined_in_place(schema))
            self._lose(schema, path, lost)
            more += counted
        if more:
            node["allOf"] = [*node.get("allOf", ()), *more]
        return node

    def _copied(self, schema: Schema, path: tuple[str, ...]) -> Schema:
        """A copy whose subschemas are adapted, without those of keywords that are lost."""
        node = {
            key: dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
            for key, value in schema.items()
            if not key.startswith("x-")
        }
        for keyword, key, child in subschemas(schema):
            if keyword in _LOST:
                continue
            if key is None:
                node[keyword] = self.adapted(child, (*path, keyword))
            else:
                node[keyword][key] = self.adapted(child, (*path, keyword, str(key)))
        return node

    def _lose(self, schema: Schema, path: tuple[str, ...], keywords: Any) -> None:
        if id(schema) in self._used:
            self.lost += [".".join((*path, keyword)) for keyword in keywords]

    def _reached(self, root: Schema) -> set[int]:
        """Ids of the schemas that judge some value: definitions that nobody refers to do not."""
        reached: set[int] = set()
        pending: list[Any] = [root]
        while pending:
            schema = pending.pop()
            if isinstance(schema, dict) and id(schema) not in reached:
                reached.add(id(schema))
                pending += self._references.targets(schema)
                pending += [each for keyword, _, each in subschemas(schema) if keyword not in DEFINITIONS]
        return reached

    def _reference(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> list[Schema]:
        """A dynamic reference within one document leads where a plain one does."""
        more: list[Schema] = []
        if isinstance(name := node.pop("$dynamicAnchor", None), str):
            node.setdefault("$anchor", name)
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword not in node:
                continue
            target = node.pop(keyword)
            found = self._references
            known = found.one_resource and found.target(target) is not None
            if not known or found.dynamic_anchors.get(target[1:], 1) > 1:
                self._lose(schema, path, [keyword])
            elif "$ref" in node:
                more.append({"$ref": target})
            else:
                node["$ref"] = target
        return more

    def _one_of(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> list[Schema]:
        """`oneOf` as `anyOf`: the same where no value matches two options."""
        options = node.pop("oneOf", None)
        if options is None:
            return []
        self._compared += len(options) ** 2
        if self._compared > _MAX_COMPARED or not exclusive(schema["oneOf"], self._references):
            self._lose(schema, path, ["oneOf"])
        if "anyOf" in node:
            return [{"anyOf": options}]
        node["anyOf"] = options
        return []

    def _conditions(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> list[Schema]:
        """Conditions on a member: either the member is absent, or the condition holds."""
        given = {key: node.pop(key) for key in CONDITIONS if key in node}
        always = set(node.get("required", ()))
        more: list[Schema] = []
        for depending in given.values():
            for name, then in depending.items():
                rest = {"required": then} if isinstance(then, list) else then
                more.append(rest if name in always else {"anyOf": [{"properties": {name: False}}, rest]})
        if len(more) > _MAX_CONDITIONS:
            self._lose(schema, path, given)
            return []
        return more

    def _drop(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:
        """Take out what cannot be enforced, and what is unknown."""
        lost = [key for key in node if key not in ENFORCED and key not in NOTES and key not in _REWRITTEN]
        if "not" in schema:
            lost.append("not")
        if "if" in schema and ("then" in schema or "else" in schema):
            lost.append("if")
        if "contains" in schema and (schema.get("minContains") != 0 or "maxContains" in schema):
            lost += [key for key in ("contains", "minContains", "maxContains") if key in schema]
        if schema.get("uniqueItems") is True and schema.get("maxItems") not in (0, 1):
            lost.append("uniqueItems")
        if not _known_format(schema):
            lost.append("format")
        if schema.get("format") not in FORMATS:
            node.pop("format", None)
        self._lose(schema, path, lost)
        for key in (*_LOST, *lost):
            node.pop(key, None)

    def _names(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:
        """`propertyNames` as the names, or the pattern of the names, that there may be."""
        rule = self._references.resolved(schema.get("propertyNames", True))
        node.pop("propertyNames", None)
        if rule is True or (isinstance(rule, dict) and not rule.keys() - NOTES - {"type"}):
            return
        others = node.get("additionalProperties", True)
        properties = node.get("properties", {})
        said = set(rule) - NOTES - {"type"} if isinstance(rule, dict) else set()
        if "patternProperties" in node or combined_in_place(schema):
            self._lose(schema, path, ["propertyNames"])
        elif said in ({"enum"}, {"const"}) and self._may_list(
            names := [rule["const"]] if "const" in rule else rule["enum"]
        ):
            allowed = {name: properties.get(name, others) for name in names if isinstance(name, str)}
            node["properties"] = {**{name: False for name in properties if name not in allowed}, **allowed}
            node["additionalProperties"] = False
        elif said == {"pattern"} and not properties and isinstance(rule["pattern"], str):
            node["patternProperties"] = {rule["pattern"]: others}
            node["additionalProperties"] = False
        else:
            self._lose(schema, path, ["propertyNames"])

    def _may_list(self, names: Any) -> bool:
        """Whether so many names may be written out once more."""
        self._listed += len(names) if isinstance(names, list) else _MAX_LISTED
        return self._listed < _MAX_LISTED

    def _unevaluated(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:
        """Where no schemas are combined, unevaluated members and items are those that are not declared."""
        combined = combined_in_place(schema)
        items, members = node.pop("unevaluatedItems", True), node.pop("unevaluatedProperties", True)
        if items is not True and ("items" not in schema or isinstance(schema["items"], list)):
            if combined or "contains" in schema:
                self._lose(schema, path, ["unevaluatedItems"])
            else:
                node.setdefault("additionalItems" if "items" in schema else "items", items)
        if members is not True and "additionalProperties" not in schema:
            if not combined:
                node.setdefault("additionalProperties", members)
            elif members is not False or not self._closing.exact(schema):
                self._lose(schema, path, ["unevaluatedProperties"])

    def _close(self, schema: Schema, node: Schema) -> list[Schema]:
        names = self._closing.members(schema)
        if names is None:
            return []
        if combined_in_place(schema):
            return [{"properties": {name: {} for name in names}, "additionalProperties": False}]
        node["properties"] = {**node["properties"], **{n: {} for n in names if n not in node["properties"]}}
        node["additionalProperties"] = False
        return []


def _known_format(schema: Schema) -> bool:
    """Whether the format is enforced, or asserts nothing."""
    name = schema.get("format")
    if name is None or name in FORMATS or name in NUMBER_FORMATS:
        return True
    types = schema.get("type", "string")
    return "string" not in (types if isinstance(types, list) else [types])
