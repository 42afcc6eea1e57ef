"""A client's schema -> a schema that a grammar can fully enforce, and the keywords that are lost.

Every answer that the adapted schema allows conforms to the client's schema, except for the lost
keywords. The adapted schema may allow less: an object that declares members has no others (see
`closing.py`). The targets of references are collected in `$defs` under new names, so that the parser needs
only plain references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.json_schema.closing import Closing, combined_in_place
from serve_app.json_schema.counts import KEYWORDS as COUNTS
from serve_app.json_schema.counts import rewrite_counts
from serve_app.json_schema.dates import DATES
from serve_app.json_schema.endings import Endings
from serve_app.json_schema.exact.plain import can_count
from serve_app.json_schema.exclusive import exclusive
from serve_app.json_schema.members import disjoint
from serve_app.json_schema.numerals import is_number
from serve_app.json_schema.patterns import Overlaps, PatternError, Translation, translate
from serve_app.json_schema.references import References
from serve_app.json_schema.vocabulary import (
    CONDITIONS,
    ENFORCED,
    FORMATS,
    NOTES,
    NUMBER_FORMATS,
    POINTER,
    REFERENCES,
    ROOT,
    SIZES,
    Path,
    Schema,
    UnusableSchema,
    check_form,
    place,
    shallow,
    subschemas,
)

_MAX_CONDITIONS: Final = 6  # such as `dependentRequired`, of one object: each doubles the grammar
_MAX_COMPARED: Final = 10_000  # pairs of options of a schema's `oneOf`s, about 0.3 s
_MAX_SCHEMAS: Final = 50_000  # adapted schemas, counted once for each reference: the parser's limit
_MAX_SIZE: Final = 2**31  # no answer is so long
_QUOTED_CHARS: Final = 60  # of a wrong pattern, in an error
_MAX_LISTED: Final = 10_000  # names of a schema's `propertyNames`
# Keywords that are never enforced, and are skipped with their subschemas.
_LOST: Final = ("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems")
_REWRITTEN: Final = frozenset(
    {
        *("oneOf", *REFERENCES, "format", *COUNTS, *_LOST),
        *("unevaluatedItems", "unevaluatedProperties", "propertyNames"),
        *CONDITIONS,
    }
)


@dataclass(frozen=True, slots=True)
class Adapted:
    """An adapted schema, and the keywords that it does not enforce."""

    schema: Schema
    lost: tuple[str, ...]  # places of keywords that are not enforced, each as `properties.tags.uniqueItems`
    places: Mapping[str, Path]  # target of its references -> the place in the client's schema


def adapt(schema: Schema) -> Adapted:
    """Adapt a schema. The time is linear in the schema's size, plus a bounded time for combined schemas.

    Raises UnusableSchema.
    """
    try:
        adapter = _Adapter(schema)
        adapted = adapter.document(schema)
    except RecursionError:
        raise UnusableSchema("it nests too deep") from None
    return Adapted(adapted, adapter.lost(), adapter.places())


class _Adapter:
    def __init__(self, root: Schema) -> None:
        self._lost: dict[Path, bool] = {}  # the place of a lost keyword -> whether it is unknown
        self._compared = self._listed = self._adapted = 0
        self._references = References(root)
        self._closing = Closing(root, self._references)
        self._overlaps = Overlaps()
        self._pointers: dict[Path, str] = {}  # the place that a reference leads to -> where its schema is now
        self._pending: list[tuple[Any, Path]] = []  # definitions that are not yet adapted

    def document(self, root: Schema) -> Schema:
        """The adapted copy of a whole schema, with the targets of its references."""
        whole: Schema = self.adapted(root, ())
        if not self._pointers:
            return whole
        whole = {**whole, "$defs": {}}
        while self._pending:
            schema, path = self._pending.pop()
            whole["$defs"][self._pointers[path].removeprefix(POINTER)] = self.adapted(schema, path)
        endings = Endings(whole)
        if ROOT in endings.endless:
            endless = (path for path, pointer in self._pointers.items() if pointer in endings.endless)
            raise UnusableSchema(f"no answer of finite length matches {place(next(endless, ()))}")
        return endings.pruned(whole) if endings.endless else whole

    def places(self) -> dict[str, Path]:
        """The places of definitions in the client's schema."""
        return {pointer: path for path, pointer in self._pointers.items()}

    def lost(self) -> tuple[str, ...]:
        """Places of lost keywords; unknown ones that references lead into count as containers of schemas."""
        containers = {path[:i] for path in self._pointers for i in range(1, len(path))}
        lost = (path for path, unknown in self._lost.items() if not (unknown and path in containers))
        return tuple(".".join(path) for path in lost)

    def adapted(self, schema: Any, path: Path) -> Any:
        """The adapted copy of the schema that lies at `path`."""
        if not isinstance(schema, dict):
            return schema
        self._adapted += 1
        if self._adapted > _MAX_SCHEMAS:
            raise UnusableSchema("it is too large, or its references lead into one another too often")
        try:
            check_form(schema)
        except UnusableSchema as error:
            raise error.at(path) from None
        node = self._copied(schema, path)
        _rewrite_sizes(node)
        more = [
            *self._reference(schema, node, path),
            *self._one_of(schema, node, path),
            *self._conditions(schema, node, path),
        ]
        more += self._text(schema, node, path)
        self._drop(schema, node, path)
        self._patterns(schema, node, path)
        self._names(schema, node, path)
        self._unevaluated(schema, node, path)
        more += self._close(schema, node)
        if any(key in node for key in COUNTS):
            lost, counted = rewrite_counts(node, alone=not combined_in_place(schema))
            self._lose(path, lost)
            more += counted
        if more:
            node["allOf"] = [*node.get("allOf", ()), *more]
        return node

    def _copied(self, schema: Schema, path: Path) -> Schema:
        """A copy with adapted subschemas; the subschemas of lost keywords are left out."""
        said = {key: value for key, value in schema.items() if key not in NOTES and not key.startswith("x-")}
        node = shallow(said)
        for keyword, key, child in subschemas(schema):
            if keyword in (*_LOST, *NOTES, "propertyNames"):
                continue
            if key is None:
                node[keyword] = self.adapted(child, (*path, keyword))
            else:
                node[keyword][key] = self.adapted(child, (*path, keyword, str(key)))
        return node

    def _lose(self, path: Path, keywords: Any) -> None:
        self._lost |= {(*path, keyword): False for keyword in keywords}

    def _reference(self, schema: Schema, node: Schema, path: Path) -> list[Schema]:
        """Turn references, even dynamic ones within one document, into plain references to definitions."""
        more: list[Schema] = []
        found = self._references
        for keyword in [keyword for keyword in REFERENCES if keyword in schema]:
            try:
                target, place = found.target(schema, keyword)
            except UnusableSchema as error:
                raise error.at((*path, keyword)) from None
            definition = {"$ref": self._definition(target, place)}
            if keyword == "$ref":
                node |= definition
                continue
            del node[keyword]
            if not found.one_resource or found.dynamic_anchors.get(schema[keyword][1:], 1) > 1:
                self._lose(path, [keyword])
            elif "$ref" in node:
                more.append(definition)
            else:
                node |= definition
        return more

    def _definition(self, target: Any, path: Path) -> str:
        """A pointer to the definition that the schema at `path` has become."""
        if path not in self._pointers:
            self._pointers[path] = f"{POINTER}{len(self._pointers)}" if path else ROOT
            if path:
                self._pending.append((target, path))
        return self._pointers[path]

    def _one_of(self, schema: Schema, node: Schema, path: Path) -> list[Schema]:
        """Turn `oneOf` into `anyOf`, which is equivalent if no value matches two options."""
        options = node.pop("oneOf", None)
        if options is None:
            return []
        self._compared += len(options) ** 2
        if self._compared > _MAX_COMPARED or not exclusive(schema["oneOf"], self._references):
            self._lose(path, ["oneOf"])
        if "anyOf" in node:
            return [{"anyOf": options}]
        node["anyOf"] = options
        return []

    def _conditions(self, schema: Schema, node: Schema, path: Path) -> list[Schema]:
        """Rewrite conditions on a member: either the member is absent, or the condition holds."""
        given = {key: node.pop(key) for key in CONDITIONS if key in node}
        always = set(node.get("required", ()))
        more: list[Schema] = []
        for depending in given.values():
            for name, then in depending.items():
                rest = {"required": then} if isinstance(then, list) else then
                more.append(rest if name in always else {"anyOf": [{"properties": {name: False}}, rest]})
        if len(more) > _MAX_CONDITIONS:
            self._lose(path, given)
            return []
        return more

    def _text(self, schema: Schema, node: Schema, path: Path) -> list[Schema]:
        """Write `pattern`, and the formats that are patterns, in the parser's notation."""
        patterns: list[str] = []
        if "pattern" in schema:
            translation = self._translated(schema["pattern"], (*path, "pattern"))
            patterns += translation.patterns
            if not translation.exact:
                self._lose(path, ["pattern"])
            del node["pattern"]
        if schema.get("format") in DATES:
            patterns.append(DATES[node.pop("format")])
        if patterns:
            node["pattern"] = patterns[0]
        return [{"pattern": pattern} for pattern in patterns[1:]]

    def _translated(self, pattern: str, path: Path) -> Translation:
        try:
            return translate(pattern)
        except PatternError as error:
            raise UnusableSchema(f"{pattern[:_QUOTED_CHARS]!r} is no pattern: {error}").at(path) from None

    def _patterns(self, schema: Schema, node: Schema, path: Path) -> None:
        """Make the patterns of `patternProperties` exclude each other."""
        if "patternProperties" not in schema:
            return
        place = (*path, "patternProperties")
        given = [(self._translated(p, (*place, p)), each) for p, each in node["patternProperties"].items()]
        node["patternProperties"], exact = disjoint(given, self._overlaps)
        if not exact:
            self._lose(path, ["patternProperties"])

    def _drop(self, schema: Schema, node: Schema, path: Path) -> None:
        """Remove keywords that cannot be enforced or are unknown."""
        unknown = [key for key in node if key not in ENFORCED and key not in _REWRITTEN]
        self._lost |= {(*path, key): True for key in unknown}
        lost: list[str] = []
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
        if is_number(schema.get("multipleOf")) and not can_count(schema["multipleOf"]):
            lost.append("multipleOf")
        if schema.get("format") not in FORMATS:
            node.pop("format", None)
        self._lose(path, lost)
        for key in (*_LOST, *unknown, *lost):
            node.pop(key, None)

    def _names(self, schema: Schema, node: Schema, path: Path) -> None:
        """Turn `propertyNames` into a list of allowed names, or a pattern for them."""
        rule = self._references.resolved(schema.get("propertyNames", True))
        node.pop("propertyNames", None)
        if rule is True or (isinstance(rule, dict) and not rule.keys() - NOTES - {"type"}):
            return
        others = node.get("additionalProperties", True)
        properties = node.get("properties", {})
        said = set(rule) - NOTES - {"type"} if isinstance(rule, dict) else set()
        if "patternProperties" in node or combined_in_place(schema):
            self._lose(path, ["propertyNames"])
        elif said in ({"enum"}, {"const"}) and self._may_list(
            names := [rule["const"]] if "const" in rule else rule["enum"]
        ):
            allowed = {name: properties.get(name, others) for name in names if isinstance(name, str)}
            node["properties"] = {**{name: False for name in properties if name not in allowed}, **allowed}
            node["additionalProperties"] = False
        elif said == {"pattern"} and not properties and isinstance(rule["pattern"], str):
            translation = self._translated(rule["pattern"], (*path, "propertyNames"))
            if not translation.exact or len(translation.patterns) > 1:
                self._lose(path, ["propertyNames"])
            if translation.patterns:
                node["patternProperties"] = {translation.patterns[0]: others}
                node["additionalProperties"] = False
        else:
            self._lose(path, ["propertyNames"])

    def _may_list(self, names: Any) -> bool:
        """Whether the limit on names allows writing out `names` too."""
        self._listed += len(names) if isinstance(names, list) else _MAX_LISTED
        return self._listed < _MAX_LISTED

    def _unevaluated(self, schema: Schema, node: Schema, path: Path) -> None:
        """If no schemas are combined, the unevaluated members and items are the undeclared ones."""
        combined = combined_in_place(schema)
        items, members = node.pop("unevaluatedItems", True), node.pop("unevaluatedProperties", True)
        if items is not True and ("items" not in schema or isinstance(schema["items"], list)):
            if combined or "contains" in schema:
                self._lose(path, ["unevaluatedItems"])
            else:
                node.setdefault("additionalItems" if "items" in schema else "items", items)
        if members is not True and "additionalProperties" not in schema:
            if not combined:
                node.setdefault("additionalProperties", members)
            elif members is not False or not self._closing.exact(schema):
                self._lose(path, ["unevaluatedProperties"])

    def _close(self, schema: Schema, node: Schema) -> list[Schema]:
        names = self._closing.members(schema)
        if names is None:
            return []
        if combined_in_place(schema):
            return [{"properties": {name: {} for name in names}, "additionalProperties": False}]
        node["properties"] = {**node["properties"], **{n: {} for n in names if n not in node["properties"]}}
        node["additionalProperties"] = False
        return []


def _rewrite_sizes(node: Schema) -> None:
    """Write `2.0` as `2`, and remove upper bounds that no answer can reach, such as that of an int64.

    The parser reads lengths and counts as 32-bit integers.
    """
    for key in SIZES:
        value = node.get(key)
        if isinstance(value, float) and value.is_integer():
            node[key] = value = int(value)
        if key.startswith("max") and isinstance(value, int) and value >= _MAX_SIZE:
            del node[key]


def _known_format(schema: Schema) -> bool:
    """Whether the format is enforced, or asserts nothing that could be enforced."""
    name = schema.get("format")
    if name is None or name in FORMATS or name in NUMBER_FORMATS:
        return True
    types = schema.get("type", "string")
    return "string" not in (types if isinstance(types, list) else [types])
