"""Schemas as clients send them, as grammars enforce them, with the real parser and a validator."""

import json
import random
from typing import Any

import jsonschema
import pytest

from serve_app.json_schema import UnusableSchema, adapt
from serve_app.json_schema.vocabulary import ENFORCED, FORMATS, NOTES
from tests.support.schema_answers import accepts, matcher, walk

ABC: dict[str, Any] = {name: {"type": "integer"} for name in "abc"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}


def of(**keywords: Any) -> dict[str, Any]:
    """A schema of objects."""
    return {"type": "object", **keywords}


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


# schema, values that match it; values that do not
ENFORCED_IN_FULL: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "required": (of(properties=ABC, required=["a"]), [{"a": 1}, {"a": 1, "c": 2}], [{}, {"a": "1"}]),
    "required but not declared": (of(properties=ABC, required=["z"]), [{"z": [1]}], [{"a": 1}]),
    "minProperties": (of(properties=ABC, minProperties=2), [{"a": 1, "c": 1}], [{}, {"a": 1}]),
    "maxProperties": (of(properties=ABC, maxProperties=1), [{}, {"c": 1}], [{"a": 1, "c": 1}]),
    "minProperties of a map": (of(minProperties=1), [{"x": 1}], [{}]),
    "maxProperties of a map": (of(maxProperties=1), [{}, {"x": 1}], [{"x": 1, "y": 1}]),
    "minProperties that required sees to": (
        of(properties=ABC, required=["a"], minProperties=1),
        [{"a": 1}],
        [{}],
    ),
    "dependentRequired": (
        of(properties=ABC, dependentRequired={"a": ["b"], "c": ["z"]}),
        [{}, {"b": 1}, {"a": 1, "b": 1}, {"c": 1, "z": 1}],
        [{"a": 1}, {"a": 1, "c": 1}],
    ),
    "dependentSchemas": (
        of(properties=ABC, dependentSchemas={"a": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}}),
        [{}, {"b": 1}, {"a": 1, "b": 6}],
        [{"a": 1}, {"a": 1, "b": 1}],
    ),
    "propertyNames as a pattern": (
        of(propertyNames={"pattern": "^x"}, additionalProperties={"type": "integer"}),
        [{}, {"xa": 1}],
        [{"a": 1}, {"xa": "1"}],
    ),
    "propertyNames as an enum": (
        {**of(propertyNames={"$ref": "#/$defs/n"}), "$defs": {"n": {"type": "string", "enum": ["x", "y"]}}},
        [{}, {"y": 1}],
        [{"z": 1}],
    ),
    "unevaluatedProperties": (of(properties=ABC, unevaluatedProperties=False), [{"a": 1}], [{"z": 1}]),
    "unevaluatedProperties of parts": (
        {
            "allOf": [{"$ref": "#/$defs/n"}, of(properties={"q": of(properties={"r": {}})})],
            "unevaluatedProperties": False,
            "$defs": {"n": of(properties={"p": {"type": "string"}})},
        },
        [{}, {"p": "x", "q": {"r": 1}}],
        [{"z": 1}, {"p": 1}],
    ),
    "unevaluatedItems": (
        {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
        [[1]],
        [[1, 2], ["x"]],
    ),
    "uniqueItems of one": ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 1]]),
    "oneOf by type": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "x"], [None, 1.5]),
    "oneOf by a tag": (
        {"oneOf": [CAT, DOG]},
        [{"kind": "cat", "lives": 9}, {"kind": "wolf"}],
        [{}, {"kind": "x"}],
    ),
    "$dynamicRef": (
        {
            "$dynamicRef": "#n",
            "$defs": {"n": {"$dynamicAnchor": "n", **of(properties={"k": {"$dynamicRef": "#n"}})}},
        },
        [{}, {"k": {"k": {}}}],
        [{"k": 1}],
    ),
    "a form of numbers": ({"type": "integer", "format": "int64"}, [5], ["x"]),
    "notes": (
        {"type": "integer", "title": "x", "x-ours": 1, "nullable": True, "deprecated": False},
        [5],
        ["x"],
    ),
}


@pytest.mark.parametrize("name", ENFORCED_IN_FULL)
def test_what_is_enforced(name: str) -> None:
    schema, good, bad = ENFORCED_IN_FULL[name]
    assert adapt(schema).lost == ()
    assert [value for value in good if not is_valid(schema, value)] == []
    assert [value for value in bad if is_valid(schema, value)] == []
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []


NOT_ENFORCED: dict[str, dict[str, Any]] = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "contains minContains": {"type": "array", "contains": {"type": "integer"}, "minContains": 2},
    "not": {"not": {"type": "null"}},
    "if": {"if": {"type": "integer"}, "then": {"minimum": 5}},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]},
    "format": {"type": "string", "format": "iri"},
    "minProperties": of(minProperties=2),
    "maxProperties": of(properties=ABC, additionalProperties=True, maxProperties=1),
    "propertyNames": of(properties=ABC, propertyNames={"pattern": "^x"}),
    "dependentRequired": of(properties=ABC, dependentRequired={f"x{i}": ["a"] for i in range(9)}),
    "unevaluatedProperties": of(anyOf=[CAT, DOG], properties=ABC, unevaluatedProperties=False),
    "unevaluatedItems": {"type": "array", "contains": {}, "minContains": 0, "unevaluatedItems": False},
    "maxLenght": {"type": "string", "maxLenght": 5},
}


@pytest.mark.parametrize("name", NOT_ENFORCED)
def test_what_is_not_enforced_is_named_with_its_place(name: str) -> None:
    keywords = name.split()
    schema = of(properties={"x": NOT_ENFORCED[name]}, required=["x"])
    assert adapt(schema).lost == tuple(f"properties.x.{keyword}" for keyword in keywords)
    matcher(schema)  # and nothing else of it is unknown to the parser
    definition = {"$ref": "#/$defs/d", "$defs": {"d": NOT_ENFORCED[name], "unused": {**NOT_ENFORCED[name]}}}
    assert adapt(definition).lost == tuple(f"$defs.d.{keyword}" for keyword in keywords)
    assert adapt({"const": NOT_ENFORCED[name], "default": NOT_ENFORCED[name]}).lost == ()  # that is data


def test_every_keyword_of_the_vocabularies_is_sorted() -> None:
    """Of the drafts that the validator knows; its metaschemas are the list."""
    known: set[str] = set()
    for draft in (4, 7, 201909, 202012):
        meta = getattr(jsonschema, f"Draft{draft}Validator").META_SCHEMA
        known |= meta.get("properties", {}).keys()
        for part in meta.get("allOf", ()):
            vocabulary = jsonschema.validators.Draft202012Validator(meta)._resolver.lookup(
                meta["$id"].rsplit("/", 1)[0] + "/" + part["$ref"]
            )
            known |= vocabulary.contents["properties"].keys()
    lost = {key for key in known if adapt({"$defs": {"x": {}}, key: _any_value(key)}).lost}
    assert len(known) > 50
    assert lost == {
        "not",
        "contains",
        "uniqueItems",
        "format",
    }  # alone; others need a second keyword, or are rewritten


def _any_value(keyword: str) -> Any:
    """A value of the form of that keyword, which asserts something where it can alone."""
    if keyword in (
        "properties",
        "patternProperties",
        "$defs",
        "definitions",
        "dependentRequired",
        "$vocabulary",
    ):
        return {}
    if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        return [{}]
    if keyword in ("enum", "required", "examples"):
        return []
    if keyword in ("dependentSchemas", "dependencies"):
        return {}
    if keyword.startswith(("min", "max", "exclusive")) or keyword == "multipleOf":
        return 1
    if keyword in ("uniqueItems", "$recursiveAnchor", "deprecated", "readOnly", "writeOnly"):
        return True
    if keyword == "type":
        return "string"
    if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        return "#/$defs/x"
    return {} if keyword in ("not", "if", "then", "else", "contains", "items", "propertyNames") else "x"


# --- closed objects ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (of(properties=ABC), {"a": 1}, {"z": 1}),
        (of(properties={"x": of(properties=ABC)}), {"x": {"a": 1}}, {"x": {"z": 1}}),
        ({"items": {"$ref": "#/$defs/d"}, "$defs": {"d": of(properties=ABC)}}, [{"a": 1}], [{"z": 1}]),
        ({"anyOf": [of(properties=ABC), {"type": "null"}]}, {"a": 1}, {"z": 1}),
        ({"allOf": [of(properties=ABC), of(properties={"d": {}})]}, {"a": 1, "d": 1}, {"z": 1}),
        (of(properties=ABC, anyOf=[{"required": ["a"]}, {"required": ["z"]}]), {"z": 1}, {"a": 1, "y": 1}),
        (of(properties=ABC, patternProperties={"^x": {}}), {"a": 1, "xx": 1}, {"z": 1}),
    ],
)
def test_objects_that_declare_members_are_closed(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert is_valid(schema, good)
    assert accepts(schema, good)
    assert is_valid(schema, bad)  # as JSON Schema has it
    assert not accepts(schema, bad)


@pytest.mark.parametrize(
    "schema",
    [
        of(),
        {},
        of(properties=ABC, additionalProperties=True),
        of(properties=ABC, unevaluatedProperties=True),
        {"allOf": [of(properties=ABC), of(additionalProperties=True)]},
    ],
)
def test_objects_that_are_open_stay_open(schema: dict[str, Any]) -> None:
    assert accepts(schema, {"z": [1]})


# --- answers -----------------------------------------------------------------------------------

_PIECES: list[dict[str, Any]] = [
    *(schema for schema, _, _ in ENFORCED_IN_FULL.values() if "$defs" not in schema),
    {"anyOf": [of(properties=ABC, required=["a"]), {"type": "boolean"}]},
    {
        "allOf": [
            of(properties={"a": {"type": "integer"}}),
            of(properties={"b": {"enum": [1, None]}}, required=["b"]),
        ]
    },
    {"type": "string", "format": "date"},
    {"type": ["integer", "null"], "minimum": -3, "exclusiveMaximum": 40},
    {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"const": "x"}, "maxItems": 3},
    of(patternProperties={"^[a-c]$": {"type": "null"}}, additionalProperties=False, maxProperties=2),
]


@pytest.mark.parametrize("seed", range(60))
def test_every_answer_of_a_random_walk_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(["a", "b", "größe", "x y"], rng.randint(1, 3))
    properties = {name: rng.choice(_PIECES) for name in names}
    schema = of(properties=properties, required=[name for name in names if rng.random() < 0.7])
    if rng.random() < 0.3:
        schema |= {"minProperties": 1}
    if rng.random() < 0.3:
        schema |= {"dependentRequired": {names[0]: [names[-1], "other"]}}
    assert adapt(schema).lost == ()
    answer = walk(schema, rng)
    if answer is not None:
        jsonschema.Draft202012Validator(schema).validate(answer)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": []}, "properties must be an object"),
        ({"required": True}, "required must be a list of names"),
        ({"anyOf": {}}, "anyOf must be a list"),
        ({"dependentRequired": 5}, "dependentRequired must be an object"),
        ({"format": []}, "format must be a string"),
        ({"pattern": 5}, r"\$\.items: pattern must be a string"),
        ({"type": "text"}, "type 'text' is none of string, number"),
        ({"type": ["string", {}]}, r"type '\{\}' is none of"),
        ({"minLength": -1}, "minLength must be a whole number"),
        ({"maxItems": "3"}, "maxItems must be a whole number"),
        ({"minProperties": True}, "minProperties must be a whole number"),
    ],
)
def test_a_wrong_form_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableSchema, match=words):
        adapt({"items": schema})


def test_what_is_combined_is_bounded() -> None:
    parts: list[Any] = [{"properties": {f"p{i}": {}}} for i in range(1_500)]
    many = {f"q{i}": {"allOf": [{"$ref": "#/$defs/d"}, {}]} for i in range(1_500)}
    with pytest.raises(UnusableSchema, match="combines too many"):
        adapt({"properties": many, "$defs": {"d": {"allOf": parts}}})
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"items": deep}
    with pytest.raises(UnusableSchema, match="nests too deep"):
        adapt(deep)


WIDE = {f"p{i}": {"enum": list(range(64))} for i in range(16)}
HOSTILE: dict[str, dict[str, Any]] = {
    "references to many names": {
        "properties": {f"q{i}": {"allOf": [{"$ref": "#/$defs/d"}, {}]} for i in range(2_000)},
        "$defs": {"d": of(properties={f"p{i}": {} for i in range(5_000)})},
    },
    "references to many options": {
        "properties": {
            f"q{i}": {"oneOf": [{"$ref": f"#/$defs/d{j}"} for j in range(64)]} for i in range(150)
        },
        "$defs": {
            f"d{j}": of(
                properties={f"p{k}": {"enum": list(range(64))} for k in range(16)}, required=["p0", "p9"]
            )
            for j in range(64)
        },
    },
    "maps of many names": {
        "properties": {f"q{i}": of(propertyNames={"$ref": "#/$defs/d"}) for i in range(2_000)},
        "$defs": {"d": {"enum": [f"n{i}" for i in range(5_000)]}},
    },
    "references in a ring": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}, {}]}},
    },
    "many counts": {"$defs": {str(i): of(properties=ABC, minProperties=2) for i in range(3_000)}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_or_stays_small(name: str) -> None:
    schema = HOSTILE[name]
    try:
        adapted = adapt(schema)
    except UnusableSchema:
        return
    assert len(json.dumps(adapted.schema)) < 10 * len(json.dumps(schema)) + 1_000_000


def test_the_tables_do_not_overlap() -> None:
    assert not ENFORCED & NOTES
    for name in FORMATS:
        assert adapt({"type": "string", "format": name}).lost == ()
