"""Where references lead, as schemas are written and published, with the real parser and a validator."""

import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from jsonschema_specifications import REGISTRY

from serve_app.json_schema import References, UnusableSchema, adapt
from tests.support.schema_answers import accepts, matcher, walk

FLAG: dict[str, Any] = {"type": "boolean"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def to(reference: str, **beside: Any) -> dict[str, Any]:
    """An object whose member `c` is what a reference leads to."""
    return {**of(c={"$ref": reference}), **beside}


# schema whose member `c` is a boolean
LEADING_TO_A_FLAG: dict[str, dict[str, Any]] = {
    "OpenAPI's components": to("#/components/schemas/Flag", components={"schemas": {"Flag": FLAG}}),
    "a container of definitions": to("#/$defs/shared/flag", **{"$defs": {"shared": {"flag": FLAG}}}),
    "an x- member": to("#/x-defs/flag", **{"x-defs": {"flag": FLAG}}),
    "an unknown keyword": to("#/schemas/flag", schemas={"flag": FLAG}),
    "oneOf": to("#/not/oneOf/1", **{"not": {"oneOf": [{"type": "null"}, FLAG], "minLength": 5}}),
    "then": to("#/then/properties/x", **{"if": {"required": ["x"]}, "then": {"properties": {"x": FLAG}}}),
    "else": to("#/else", **{"if": {"required": ["x"]}, "else": FLAG}),
    "dependencies": to("#/dependencies/x/properties/y", dependencies={"x": {"properties": {"y": FLAG}}}),
    "dependentSchemas": to("#/dependentSchemas/x", dependentSchemas={"x": FLAG}),
    "contains": to("#/contains", contains=FLAG),
    "propertyNames": to("#/x-names/propertyNames", **{"x-names": {"propertyNames": FLAG}}),
    "patternProperties": to("#/patternProperties/^x", patternProperties={"^x": FLAG}),
    "an item by its number": to("#/x-items/prefixItems/1", **{"x-items": {"prefixItems": [{}, FLAG]}}),
    "raw angle brackets": to("#/$defs/Record<string,number>", **{"$defs": {"Record<string,number>": FLAG}}),
    "percent escapes": to("#/$defs/Record%3Cx%2Cy%3E", **{"$defs": {"Record<x,y>": FLAG}}),
    "a name with a percent sign": to("#/$defs/100%25", **{"$defs": {"100%25": FLAG}}),
    "a pointer's own escapes": to("#/$defs/a~1b~0c", **{"$defs": {"a/b~c": FLAG}}),
    "spaces and quotes": to('#/$defs/a "b"', **{"$defs": {'a "b"': FLAG}}),
    "an empty name": to("#/$defs/", **{"$defs": {"": FLAG}}),
    "a chain": to(
        "#/$defs/a", **{"$defs": {"a": {"$ref": "#/x-b/0"}}, "x-b": [{"$ref": "#/x-c"}], "x-c": FLAG}
    ),
    "an anchor": to("#flag", **{"$defs": {"f": {"$anchor": "flag", **FLAG}}}),
    "an anchor of draft 4": to(
        "#flag", **{"$schema": DRAFT_4, "definitions": {"f": {"id": "#flag", **FLAG}}}
    ),
    "the document's own address": to(
        "https://x.org/a#/$defs/f", **{"$id": "https://x.org/a", "$defs": {"f": FLAG}}
    ),
    "a schema by its address": to(
        "flag.json", **{"$id": "https://x.org/a", "$defs": {"f": {"$id": "https://x.org/flag.json", **FLAG}}}
    ),
    "inside a schema with an address": to(
        "https://x.org/b#/$defs/g",
        **{
            "$defs": {
                "f": {"$id": "https://x.org/b", "$defs": {"g": {"$ref": "#/$defs/h"}, "h": FLAG}},
                "h": {},
            }
        },
    ),
    "true": {**to("#/$defs/any"), "$defs": {"any": True}, "allOf": [of(c=FLAG)]},
}


@pytest.mark.parametrize("name", LEADING_TO_A_FLAG)
def test_a_reference_may_lead_anywhere_in_the_document(name: str) -> None:
    schema = LEADING_TO_A_FLAG[name]
    assert accepts(schema, {"c": True})
    assert not accepts(schema, {"c": 1})
    assert not any("$ref" in keyword for keyword in adapt(schema).lost)


NAMES = (
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "$id",
    "id",
    "$anchor",
    "$schema",
    "$defs",
    "properties",
    "x-a",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_property_may_have_the_name_of_a_keyword(name: str) -> None:
    link = of(**{name: {"type": "string", "maxLength": 4}})
    for schema, answer in (
        (link, {name: "#/x"}),
        ({**of(l={"$ref": "#/$defs/link"}), "$defs": {"link": link}}, {"l": {name: "#/x"}}),
        (of(l={"oneOf": [link, {"type": "null"}]}), {"l": {name: "#/x"}}),
    ):
        assert adapt(schema).lost == ()
        assert accepts(schema, answer)
        assert not accepts(schema, {"l": {name: 5}, name: 5})
        References(schema).check()


@pytest.mark.parametrize("keyword", ["enum", "const", "default", "examples"])
def test_data_is_never_a_reference(keyword: str) -> None:
    value = {"$ref": "https://example.com/a.json", "$id": "b"}
    schema = of(c={keyword: value if keyword in ("const", "default") else [value]})
    References(schema).check()
    assert accepts(schema, {"c": value})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (to("https://example.com/a.json"), r"\$\.properties\.c\.\$ref: .* nothing is fetched"),
        (to("a.json#/x", **{"$id": "https://example.com/"}), "nothing is fetched"),
        (to("//[x"), "nothing is fetched"),
        (of(c={"$ref": 5}), "nothing is fetched"),
        (of(c={"$ref": None}), "nothing is fetched"),
        (to("#/$defs/none"), r"\$\.properties\.c\.\$ref: .*'#/\$defs/none' leads to no schema"),
        (to("#none"), "leads to no schema"),
        (to("#/required"), "leads to no schema"),
        (to("#/x-l/9", **{"x-l": [FLAG]}), "leads to no schema"),
        (to("#/x-l/-1", **{"x-l": [FLAG]}), "leads to no schema"),
        (
            to("#/$defs/a", **{"$defs": {"a": {"items": {"$ref": "b.json"}}}}),
            r"\$\.\$defs\.a\.items\.\$ref: ",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_with_its_place(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableSchema, match=words):
        adapt(schema)


def test_what_no_reference_reaches_is_not_looked_at() -> None:
    unused = {"a": {"$ref": "https://example.com/a"}, "b": {"required": True}, "c": {"uniqueItems": True}}
    for container in ("$defs", "definitions", "components", "x-defs"):
        assert adapt({**of(c=FLAG), container: unused}).schema == adapt(of(c=FLAG)).schema


def test_what_is_lost_is_named_with_its_place_behind_a_reference() -> None:
    pet = {"type": "array", "uniqueItems": True}
    assert adapt(to("#/components/schemas/Pet", components={"schemas": {"Pet": pet}})).lost == (
        "components.schemas.Pet.uniqueItems",
    )
    assert adapt({**to("#p"), "$defs": {"q": {"$anchor": "p", **pet}}}).lost == ("$defs.q.uniqueItems",)


# --- the shapes of published schemas -----------------------------------------------------------

ANYTHING = {"type": "object", "additionalProperties": True}
# Like nbformat's, Travis', CircleCI's, Meltano's, OpenAPI's and SCIM's, in the small.
PUBLISHED: dict[str, tuple[dict[str, Any], Any]] = {
    "nbformat": (
        {
            "$schema": DRAFT_4,
            **of(
                cells={
                    "type": "array",
                    "items": {"oneOf": [{"$ref": "#/definitions/raw"}, {"$ref": "#/definitions/code"}]},
                }
            ),
            "additionalProperties": False,
            "definitions": {
                "misc": {"source": {"$ref": "#/definitions/misc/lines"}, "lines": {"type": "string"}},
                "raw": of(cell_type={"enum": ["raw"]}, source={"$ref": "#/definitions/misc/source"}),
                "code": of(cell_type={"enum": ["code"]}, source={"$ref": "#/definitions/misc/source"}),
            },
        },
        {"cells": [{"cell_type": "raw", "source": "x"}, {"cell_type": "code", "source": "y"}]},
    ),
    "Travis": (
        {
            "$schema": DRAFT_4,
            "type": "object",
            "properties": {"email": {"$ref": "#/definitions/notification/webhooks"}},
            "definitions": {
                "notification": {
                    "webhooks": {"oneOf": [{"type": "boolean"}, of(on={"$ref": "#/definitions/frequency"})]}
                },
                "frequency": {"enum": ["always", "never"]},
            },
        },
        {"email": {"on": "always"}},
    ),
    "CircleCI": (
        {
            "$schema": DRAFT_7,
            **of(steps={"type": "array", "items": {"$ref": "#/definitions/step"}}),
            "definitions": {
                "step": {
                    "anyOf": [
                        {"enum": ["checkout"]},
                        {"oneOf": [{"type": "null"}, of(run={"type": "string"})]},
                        of(when={"$ref": "#/definitions/step/anyOf/1/oneOf/1/properties/run"}),
                    ]
                }
            },
        },
        {"steps": ["checkout", {"run": "x"}, {"when": "y"}]},
    ),
    "Meltano": (
        {
            "$schema": DRAFT_7,
            "type": "object",
            "properties": {"plugins": {"$ref": "#/$defs/plugins/extractor_shared"}},
            "$defs": {
                "plugins": {
                    "extractor_shared": {"allOf": [{"$ref": "#/$defs/base"}, of(variant={"type": "string"})]}
                },
                "base": of(name={"type": "string"}),
            },
        },
        {"plugins": {"name": "x", "variant": "y"}},
    ),
    "OpenAPI 3.0": (
        {
            "$schema": DRAFT_4,
            "id": "https://spec.openapis.org/oas/3.0/schema/2021-09-28",
            **of(schema={"oneOf": [{"$ref": "#/definitions/Schema"}, {"$ref": "#/definitions/Reference"}]}),
            "definitions": {
                "Reference": {
                    "type": "object",
                    "required": ["$ref"],
                    "patternProperties": {r"^\$ref$": {"type": "string"}},
                },
                "Schema": {
                    "type": "object",
                    "properties": {
                        "not": {
                            "oneOf": [{"$ref": "#/definitions/Schema"}, {"$ref": "#/definitions/Reference"}]
                        }
                    },
                    "patternProperties": {"^x-": {}},
                    "additionalProperties": False,
                },
            },
        },
        {"schema": {"not": {"$ref": "#/x"}}},
    ),
    "OpenAPI 3.1": (
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://spec.openapis.org/oas/3.1/schema/2022-10-07",
            **of(media={"$ref": "#/$defs/media"}),
            "$defs": {
                "media": {
                    "$comment": "https://spec.openapis.org/oas/v3.1.0#media-type-object",
                    "type": "object",
                    "properties": {"schema": {"$dynamicRef": "#meta"}},
                    "$ref": "#/$defs/specification-extensions",
                    "unevaluatedProperties": False,
                },
                "schema": {"$dynamicAnchor": "meta", "type": ["object", "boolean"]},
                "specification-extensions": {"patternProperties": {"^x-": True}},
            },
        },
        {"media": {"schema": {"type": "object"}}},
    ),
    "SCIM": (
        {
            "$id": "urn:ietf:params:scim:schemas:core:2.0:User",
            **of(**{"$ref": {"type": "string"}, "manager": {"$ref": "#/definitions/manager"}}),
            "definitions": {
                "manager": of(**{"$ref": {"type": "string", "format": "uri"}, "value": {"type": "string"}})
            },
        },
        {"$ref": "x", "manager": {"$ref": "https://x.org/1", "value": "1"}},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_schema_of_a_published_shape(name: str) -> None:
    schema, answer = PUBLISHED[name]
    jsonschema.validators.validator_for(schema)(schema).validate(answer)
    assert accepts(schema, answer)


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_a_metaschema(draft: str) -> None:
    schema: Any = REGISTRY.contents(f"http://json-schema.org/{draft}/schema")
    assert accepts(
        schema, {"minLength": 0, "required": ["a"], "properties": {"a": {"items": {"maxLength": 5}}}}
    )
    assert not accepts(schema, {"minLength": -1})
    assert not accepts(schema, {"properties": {"a": {"items": 5}}})


# --- random schemas ----------------------------------------------------------------------------

NODES = ("#/$defs/a", "#/components/schemas/b", "#/x-c/0", "#/$defs/d<e>")
LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        FLAG,
        {"type": "null"},
        {"enum": ["x", 1]},
        {"type": "string", "maxLength": 3},
        {"type": "integer", "minimum": 0, "maximum": 9},
    ]
)
PARTS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAVES | st.sampled_from([{"$ref": node} for node in NODES]),
    lambda part: st.one_of(
        st.builds(
            lambda members, required: {
                "type": "object",
                "properties": members,
                "required": required & members.keys(),
            },
            st.dictionaries(st.sampled_from(["p", "q", "$ref", "oneOf"]), part, min_size=1, max_size=3),
            st.sets(st.sampled_from(["p", "$ref"])),
        ).map(lambda schema: {**schema, "required": sorted(schema["required"])}),
        st.builds(lambda item: {"type": "array", "items": item, "maxItems": 2}, part),
        st.builds(lambda options: {"anyOf": options}, st.lists(part, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


@given(root=PARTS, nodes=st.tuples(PARTS, PARTS, PARTS, PARTS), seed=st.integers(0, 2**32))
def test_every_answer_of_a_random_walk_is_valid(
    root: dict[str, Any], nodes: tuple[dict[str, Any], ...], seed: int
) -> None:
    schema = {
        **of(r=root),
        "$defs": {"a": nodes[0], "d<e>": nodes[3]},
        "components": {"schemas": {"b": nodes[1]}},
        "x-c": [nodes[2]],
    }
    try:
        lost = adapt(schema).lost
    except UnusableSchema:  # that is right: `test_endings.py`
        return
    assert set(lost) <= {"components"}  # where no reference leads there
    matcher(schema)
    answer = walk(schema, random.Random(seed))
    if answer is not None:
        try:
            jsonschema.Draft202012Validator(schema).validate(answer)
        except RecursionError:  # an option that leads back to the same value: validators do not end
            reject()
