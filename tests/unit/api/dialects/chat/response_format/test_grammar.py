"""The fields of an OpenAI body that say what the output must match."""

import json
from typing import Any

import pytest

from serve_app import limits
from serve_app.api.dialects.chat.response_format.grammar import FIELDS
from serve_app.api.dialects.openai.chat import ChatDialect
from serve_app.api.dialects.openai.completions import CompletionDialect
from serve_app.errors import InvalidField, ServeError, UnsupportedField
from serve_app.types import Grammar, GrammarKind

CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
DIALECTS: dict[str, Any] = {
    "chat": (ChatDialect(), {"messages": [{"role": "user", "content": "Hi"}]}),
    "completions": (CompletionDialect(), {"prompt": "Hi"}),
}


@pytest.fixture(params=DIALECTS)
def parse(request):
    dialect, body = DIALECTS[request.param]
    return lambda **fields: dialect.parse(json.dumps({"model": "demo", **body, **fields}).encode())


def json_schema(schema: Any = CITY, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "city", "schema": schema} | fields}


def schema_grammar(schema: Any) -> Grammar:
    return Grammar(kind=GrammarKind.SCHEMA, text=json.dumps(schema, separators=(",", ":")))


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(kind=GrammarKind.JSON)),
        ({"response_format": json_schema()}, schema_grammar(CITY)),
        ({"response_format": json_schema(strict=True, description="A city")}, schema_grammar(CITY)),
        ({"response_format": json_schema({}, strict=False)}, schema_grammar({})),
        ({"guided_json": CITY}, schema_grammar(CITY)),
        ({"guided_json": json.dumps(CITY)}, schema_grammar(CITY)),
        ({"guided_regex": "[0-9]+"}, Grammar(kind=GrammarKind.REGEX, text="[0-9]+")),
        ({"guided_choice": ["yes", "no"]}, Grammar(kind=GrammarKind.CHOICE, text='["yes", "no"]')),
        ({"guided_grammar": 'start: "a"'}, Grammar(kind=GrammarKind.LARK, text='start: "a"')),
        ({"structured_outputs": {"json": CITY}}, schema_grammar(CITY)),
        ({"structured_outputs": {"regex": "a"}}, Grammar(kind=GrammarKind.REGEX, text="a")),
        ({"structured_outputs": {"json_object": True}}, Grammar(kind=GrammarKind.JSON)),
        ({"structured_outputs": {"json_object": False, "regex": None}}, None),
        (
            {"response_format": {"type": "text"}, "guided_regex": "a"},
            Grammar(kind=GrammarKind.REGEX, text="a"),
        ),
    ],
)
def test_a_form_becomes_a_grammar(parse, fields, grammar):
    call = parse(**fields)
    assert call.requests[0].grammar == grammar
    assert call.ignored == ()


@pytest.mark.parametrize(
    ("fields", "space"),
    [
        ({"guided_json": CITY}, None),
        ({"guided_json": CITY, "guided_whitespace_pattern": "[ ]?"}, r"[\x20]{0,1}"),
        ({"response_format": json_schema(), "guided_whitespace_pattern": ""}, ""),
        ({"structured_outputs": {"json": CITY, "disable_any_whitespace": True}}, ""),
        ({"structured_outputs": {"json": CITY, "disable_any_whitespace": False}}, None),
        ({"structured_outputs": {"json_object": True, "whitespace_pattern": " "}}, r"[\x20]"),
    ],
)
def test_whitespace_is_the_models_unless_the_client_says_otherwise(parse, fields, space):
    call = parse(**fields)
    assert call.requests[0].grammar.space == space
    assert call.ignored == ()


def test_whitespace_without_json_has_no_effect_and_is_told(parse):
    given = {"regex": "a", "disable_any_whitespace": True, "disable_additional_properties": True}
    assert parse(structured_outputs=given).ignored == ("structured_outputs.disable_any_whitespace",)
    assert parse(guided_whitespace_pattern=" ").ignored == ("guided_whitespace_pattern",)


TAGS = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"response_format": json_schema(TAGS)}, "response_format.json_schema.schema"),
        ({"guided_json": TAGS}, "guided_json"),
        ({"guided_json": json.dumps(TAGS)}, "guided_json"),
        ({"structured_outputs": {"json": TAGS}}, "structured_outputs.json"),
    ],
)
def test_keywords_that_are_not_enforced_are_named(parse, fields, place):
    assert parse(**fields).ignored == (f"{place}.properties.tags.uniqueItems",)


def test_the_order_of_properties_is_the_order_of_the_answer(parse):
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    grammar = parse(guided_json=schema).requests[0].grammar
    assert grammar.text.index('"z"') < grammar.text.index('"a"')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format"),
        ({"response_format": json_schema(name="a b")}, "response_format"),
        ({"response_format": json_schema(name="x" * 65)}, "response_format"),
        ({"response_format": json_schema(name=None)}, "response_format"),
        ({"response_format": json_schema(strict="yes")}, "response_format"),
        ({"response_format": json_schema(description=5)}, "response_format"),
        ({"response_format": json_schema(schema=None)}, "response_format"),
        ({"response_format": json_schema([])}, "response_format"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": '{"a":NaN}'}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_regex": "a" * (limits.MAX_REGEX_CHARS + 1)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": ["a"] * (limits.MAX_GRAMMAR_CHOICES + 1)}, "guided_choice"),
        ({"guided_grammar": "a" * (limits.MAX_GRAMMAR_CHARS + 1)}, "guided_grammar"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"json": CITY, "regex": "a"}}, "structured_outputs"),
        ({"guided_json": {"properties": 5}}, "guided_json"),
        ({"guided_json": CITY, "guided_whitespace_pattern": "x*"}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"json": CITY, "whitespace_pattern": 5}}, "structured_outputs"),
        ({"structured_outputs": {"json": CITY, "disable_any_whitespace": 1}}, "structured_outputs"),
        ({"guided_json": {"enum": ["x" * limits.MAX_SCHEMA_BYTES]}}, "guided_json"),
        ({"guided_json": {"enum": ["ü" * (limits.MAX_SCHEMA_BYTES // 2)]}}, "guided_json"),
        ({"guided_json": CITY, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_a_wrong_form_names_its_field(parse, fields, param):
    with pytest.raises(InvalidField) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
    assert len(caught.value.message) < 500


def test_kinds_we_do_not_have_are_refused_and_not_ignored(parse):
    with pytest.raises(UnsupportedField) as caught:
        parse(structured_outputs={"structural_tag": "{}"})
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "response_format"])
def test_an_error_of_the_replica_will_name_the_clients_field(parse, field):
    values = {"guided_json": CITY, "guided_choice": ["a"], "structured_outputs": {"regex": "a"}}
    assert parse(**{field: values.get(field, "a")}).names["response_format"] == field


STRICT_FAULTS: dict[str, tuple[Any, str]] = {
    "open object": (CITY | {"additionalProperties": True}, "additionalProperties"),
    "says nothing of more": ({k: v for k, v in CITY.items() if k != "additionalProperties"}, "additional"),
    "optional property": (CITY | {"required": ["name"]}, "required"),
    "unknown required": (CITY | {"required": ["name", "people", "x"]}, "required"),
    "root is no object": ({"type": "array", "items": {"type": "string"}}, "root"),
    "root is a choice": ({"anyOf": [CITY]}, "root"),
    "unknown keyword": (CITY | {"minProperties": 1}, "minProperties"),
    "all of": (CITY | {"allOf": [CITY]}, "allOf"),
    "no type": (CITY | {"properties": {"name": {}, "people": CITY}}, "properties.name"),
    "no items": (CITY | {"properties": {"name": {"type": "array"}, "people": CITY}}, "items"),
    "unknown format": (
        CITY | {"properties": {"name": {"type": "string", "format": "iri"}, "people": CITY}},
        "format",
    ),
    "open object inside": (
        CITY | {"properties": {"name": {"anyOf": [{"type": "object"}]}, "people": CITY}},
        "properties.name.anyOf.0",
    ),
    "open object in a definition": (CITY | {"$defs": {"d": {"type": "object"}}}, "$defs.d"),
    "not a schema": (CITY | {"$defs": {"d": True}}, "$defs.d"),
    "too many values": (CITY | {"$defs": {"d": {"enum": list(range(1_001))}}}, "enum"),
}


@pytest.mark.parametrize("fault", STRICT_FAULTS)
def test_strict_refuses_what_it_cannot_guarantee(parse, fault):
    schema, word = STRICT_FAULTS[fault]
    with pytest.raises(InvalidField) as caught:
        parse(response_format=json_schema(schema, strict=True))
    assert word in caught.value.message
    assert parse(response_format=json_schema(schema)).requests[0].grammar == schema_grammar(schema)


@pytest.mark.parametrize("strict", [False, True])
def test_a_type_that_there_is_not_is_refused_with_its_place(parse, strict):
    schema = CITY | {"properties": {"name": {"type": "text"}, "people": CITY}}
    with pytest.raises(InvalidField, match=r"\$\.properties\.name\b.* type"):
        parse(response_format=json_schema(schema, strict=strict))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return CITY | {"properties": CITY["properties"] | {"name": schema}}  # type: ignore[operator]


def test_strict_bounds_depth_and_size(parse):
    assert parse(response_format=json_schema(nested(9), strict=True)).requests[0].grammar
    names = [f"p{i}" for i in range(limits.MAX_STRICT_PROPERTIES + 1)]
    wide = CITY | {"properties": {name: {"type": "null"} for name in names}, "required": names}
    for schema in (nested(10), wide):
        with pytest.raises(ServeError) as caught:
            parse(response_format=json_schema(schema, strict=True))
        assert caught.value.param == "response_format"


def test_strict_allows_the_whole_subset(parse):
    schema = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
                "additionalProperties": False,
            }
        },
        "type": "object",
        "description": "all of it",
        "properties": {
            "list": {"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1, "maxItems": 3},
            "number": {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 0.5},
            "text": {"type": "string", "pattern": "^[a-z]+$"},
            "day": {"type": "string", "format": "date"},
            "kind": {"enum": ["a", 1, None]},
            "one": {"const": 1},
        },
        "required": ["list", "number", "text", "day", "kind", "one"],
        "additionalProperties": False,
    }
    call = parse(response_format=json_schema(schema, strict=True))
    assert call.requests[0].grammar == schema_grammar(schema)
